//! Ranks as threads of this process: one thread for each communicator, until all of them are done.

use crate::failure::Failure;
use crate::machine;
use crate::size::format_size;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use tutti::plan::select::{Capabilities, choose};
use tutti::plan::{self, Algorithm, Collective, Geometry, Plan, Rank, Step};
use tutti::{Communicator, Options};

/// Memory that the ranks of one process take all together, as far as it is known before they run.
#[derive(Default)]
pub(crate) struct Need {
    pub(crate) buffer_bytes: u64,
    /// From whom to whom, and how many; they stay for later calls with other plans.
    connections: HashMap<(Rank, Rank), u64>,
    /// Of the largest plan. Every rank's thread makes the plan of all ranks for itself.
    plan_bytes: u64,
}

impl Need {
    /// What buffers need.
    pub(crate) fn of_buffers(buffer_bytes: u64) -> Need {
        Need { buffer_bytes, ..Need::default() }
    }

    /// Adds what calls with these counts need, smallest first. Of those that one algorithm is chosen for, the first stands for
    /// all: they differ in how often steps run, not in which there are. The very last one is looked at too.
    pub(crate) fn add_calls(
        &mut self,
        collective: Collective,
        algorithm: Option<Algorithm>,
        rank_count: usize,
        counts: impl Iterator<Item = u64>,
        element_bytes: usize,
    ) -> Result<(), Failure> {
        let (element_bytes, geometry) = (element_bytes as u32, Geometry::default());
        // What ranks in one process offer.
        let capabilities = Capabilities { windows: true, switch: false };
        let (mut last, mut counts) = (None, counts.peekable());
        while let Some(count) = counts.next() {
            let bytes = count.saturating_mul(u64::from(element_bytes));
            let chosen =
                algorithm.unwrap_or_else(|| choose(collective, rank_count, bytes, element_bytes, capabilities));
            if last.replace(chosen) != Some(chosen) || counts.peek().is_none() {
                let plan = plan::build(collective, chosen, rank_count, count, element_bytes, &geometry);
                self.add(&plan.map_err(|error| Failure::Failed(error.to_string()))?);
            }
        }
        Ok(())
    }

    /// Adds what a call by this plan needs.
    fn add(&mut self, plan: &Plan) {
        let mut pairs: HashMap<(Rank, Rank), u64> = HashMap::new();
        for connection in &plan.connections {
            *pairs.entry((connection.from, connection.to)).or_default() += 1;
        }
        for (pair, count) in pairs {
            let connections = self.connections.entry(pair).or_default();
            *connections = count.max(*connections);
        }
        self.plan_bytes = self.plan_bytes.max(plan_bytes(plan));
    }

    /// Refuses what does not fit the memory that is available, before any of it is taken; `advice` says what to change.
    pub(crate) fn check(&self, rank_count: usize, available: Option<u64>, advice: &str) -> Result<(), Failure> {
        let Options { slots, slot_bytes, .. } = Options::default();
        let connections: u64 = self.connections.values().sum();
        let connection_bytes = connections.saturating_mul(u64::from(slots) * u64::from(slot_bytes));
        let plan_bytes = self.plan_bytes.saturating_mul(rank_count as u64);
        let all = self.buffer_bytes.saturating_add(connection_bytes).saturating_add(plan_bytes);
        match available {
            Some(available) if all > available => Err(Failure::Failed(format!(
                "{rank_count} ranks need about {}, and {} are available: {} for buffers, {} for {connections} connections of \
                 {slots} slots of {} each, {} for plans; {advice}",
                format_size(all),
                format_size(available),
                format_size(self.buffer_bytes),
                format_size(connection_bytes),
                format_size(u64::from(slot_bytes)),
                format_size(plan_bytes),
            ))),
            _ => Ok(()),
        }
    }
}

/// Refuses more ranks than the addresses that are left, if they are limited, have room for beside `buffer_bytes`.
pub(crate) fn check_addresses(rank_count: usize, buffer_bytes: u64, left: Option<u64>) -> Result<(), Failure> {
    // A thread's stack, and what the system adds to it.
    const THREAD_BYTES: u64 = (2 << 20) + (64 << 10);
    // The GNU allocator reserves so much for each thread, up to eight for each processor.
    const HEAP_BYTES: u64 = 64 << 20;
    let Some(left) = left else { return Ok(()) };
    let ranks = rank_count as u64;
    let processors = thread::available_parallelism().map_or(1, usize::from) as u64;
    let heaps = HEAP_BYTES.saturating_mul(ranks.min(8 * processors));
    let needed = [THREAD_BYTES * ranks, heaps, plan_bytes_at_most(rank_count)];
    let needed = needed.into_iter().fold(buffer_bytes, u64::saturating_add);
    if needed <= left {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{rank_count} ranks may take {} of addresses for their threads, plans and buffers, and the limit (ulimit -v) leaves {}: \
         take fewer ranks, or raise the limit",
        format_size(needed),
        format_size(left),
    )))
}

/// What the plans of one communicator can take: in the largest every rank has four steps, or an operand, for each other one.
pub(crate) fn plan_bytes_at_most(rank_count: usize) -> u64 {
    const PAIR_BYTES: u64 = 560;
    PAIR_BYTES * (rank_count as u64).pow(2)
}

/// About what a plan takes, most of which is its steps and their operands.
fn plan_bytes(plan: &Plan) -> u64 {
    let steps = plan.ranks.iter().flat_map(|rank| &rank.programs).flat_map(|program| &program.loops);
    let steps = steps
        .flat_map(|in_loop| &in_loop.steps)
        .map(|step| size_of::<Step>() + size_of_val(&step.sources[..]) + size_of_val(&step.destinations[..]));
    (size_of_val(&plan.connections[..]) + steps.sum::<usize>()) as u64
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn need(algorithm: Algorithm, rank_count: usize) -> Need {
        let mut need = Need::of_buffers(1000);
        let plan = plan::build(Collective::AllReduce, algorithm, rank_count, 100, 4, &Geometry::default()).unwrap();
        need.add(&plan);
        need.add(&plan);
        need
    }

    #[test]
    fn connections_count_once_for_all_calls_that_use_them() {
        let mut need = need(Algorithm::Ring, 16);
        assert_eq!(need.connections.values().sum::<u64>(), 16);
        let one_shot = plan::build(Collective::AllReduce, Algorithm::OneShot, 16, 1, 4, &Geometry::default()).unwrap();
        need.add(&one_shot);
        assert_eq!(need.connections.values().sum::<u64>(), 16 * 15);
    }

    #[test]
    fn more_threads_than_the_addresses_have_room_for_are_refused() {
        assert!(check_addresses(1024, u64::MAX, None).is_ok());
        assert!(check_addresses(2, 1 << 20, Some(160 << 20)).is_ok());
        let Err(Failure::Failed(said)) = check_addresses(64, 0, Some(190 << 20)) else { panic!("taken") };
        for text in ["64 ranks", "190 MiB", "ulimit -v"] {
            assert!(said.contains(text), "{said}");
        }
        assert!(check_addresses(1, u64::MAX, Some(1 << 40)).is_err());
    }

    #[test]
    fn plans_take_no_more_than_is_reckoned_with() {
        for rank_count in [64, 256] {
            for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.offers(Collective::AllReduce)) {
                let geometry = Geometry::default();
                let plan = plan::build(Collective::AllReduce, algorithm, rank_count, 1 << 24, 4, &geometry).unwrap();
                assert!(plan_bytes(&plan) <= plan_bytes_at_most(rank_count), "{algorithm}: {}", plan_bytes(&plan));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_figures() {
        let need = need(Algorithm::OneShot, 64);
        let connection_bytes = 64 * 63 * 8 * (32 << 10);
        assert!(need.check(64, None, "").is_ok() && need.check(64, Some(connection_bytes + (64 << 20)), "").is_ok());
        let Err(Failure::Failed(said)) = need.check(64, Some(connection_bytes), "go slow") else { panic!("taken") };
        for text in ["64 ranks", "1008 MiB are available", "4032 connections of 8 slots of 32 KiB", "go slow"] {
            assert!(said.contains(text), "{said}");
        }
    }
}
