//! Ranks as threads of this process: one thread for each communicator, until all of them are done.

use crate::failure::Failure;
use crate::machine;
use std::sync::{Mutex, PoisonError};
use std::thread;
use tutti::{Communicator, Options};

/// The most ranks that one process runs. Every rank's thread builds the plan of all of them, so that memory grows with the
/// third power of the ranks, and no machine has cores for more anyway.
pub(crate) const RANKS_MAX: usize = 256;

/// Options whose memory budget lets all ranks together take what is available beside `buffer_bytes`, and no more.
pub(crate) fn options_within_memory(rank_count: usize, buffer_bytes: u64) -> Options {
    let mut options = Options::default();
    let available = machine::available_memory_bytes();
    options.memory_budget_bytes =
        available.map(|available| available.saturating_sub(buffer_bytes) / rank_count.max(1) as u64);
    options
}

/// Runs `work` for every rank, each on its own thread and, where `cores` has one for each rank, on its own core.
///
/// A rank that fails or panics aborts the communicator, so that no other waits for it; the first failure is returned.
pub(crate) fn run_ranks<R: Send>(
    communicators: &[Communicator],
    cores: &[Option<usize>],
    work: impl Fn(&Communicator) -> Result<R, Failure> + Sync,
) -> Result<Vec<R>, Failure> {
    let first_failure = Mutex::new(None);
    let fail = |communicator: &Communicator, failure: Failure| {
        let mut first = first_failure.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() {
            *first = Some(failure);
        }
        communicator.abort_handle().abort("another rank failed");
    };
    let results = thread::scope(|scope| {
        let mut threads = Vec::new();
        for communicator in communicators {
            let rank = communicator.rank();
            let core = cores.get(rank).copied().flatten();
            let (fail, work) = (&fail, &work);
            let run = move || {
                let panicking = AbortOnPanic(communicator);
                if let Some(core) = core {
                    machine::pin_to_core(core);
                }
                let result = work(communicator).map_err(|failure| fail(communicator, failure)).ok();
                drop(panicking);
                result
            };
            match thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, run) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    fail(communicator, Failure::Failed(format!("cannot start a thread for rank {rank}: {error}")));
                    break;
                }
            }
        }
        threads.into_iter().map(|thread| thread.join().ok().flatten()).collect::<Option<Vec<R>>>()
    });
    let first_failure = first_failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    match (results, first_failure) {
        (_, Some(failure)) => Err(failure),
        (Some(results), None) => Ok(results),
        (None, None) => Err(Failure::Failed("a rank's thread panicked".to_owned())),
    }
}

/// Frees the other ranks when this one's thread unwinds.
struct AbortOnPanic<'a>(&'a Communicator);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.abort_handle().abort("another rank panicked");
        }
    }
}

/// A core for each rank, if there are as many cores as ranks and `pin` asks for it; rank r gets the r-th allowed core.
pub(crate) fn cores_for_ranks(rank_count: usize, pin: bool) -> Vec<Option<usize>> {
    let cores = if pin { machine::allowed_cores() } else { Vec::new() };
    (0..rank_count).map(|rank| if rank_count <= cores.len() { Some(cores[rank]) } else { None }).collect()
}
