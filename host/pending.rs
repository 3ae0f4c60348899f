//! Asynchronous calls: they own their buffers, and waiting for them gives the buffers back.
//!
//! Each communicator has at most one worker thread, started by its first asynchronous call, that runs such calls in the order
//! in which they were issued. A blocking call waits for those that were issued before it.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::core::{Core, World};
use crate::error::{Error, Result};
use crate::presence;
use crate::sync::lock;

type Job = Box<dyn FnOnce(&mut Core) + Send>;

/// One rank and the calls that are queued for it. Ranks are made in one go and would else share cache lines at their ends.
#[repr(align(128))]
pub(crate) struct Queue {
    rank: usize,
    world: Arc<World>,
    core: Mutex<Core>,
    jobs: Mutex<Jobs>,
    changed: Condvar,
    /// Jobs that are queued or running.
    outstanding: AtomicUsize,
}

#[derive(Default)]
struct Jobs {
    queued: VecDeque<Job>,
    has_worker: bool,
    closed: bool,
}

impl Queue {
    pub(crate) fn new(core: Core) -> Queue {
        Queue {
            rank: core.rank,
            world: Arc::clone(&core.world),
            core: Mutex::new(core),
            jobs: Mutex::default(),
            changed: Condvar::new(),
            outstanding: AtomicUsize::new(0),
        }
    }

    /// The rank, once every call that was queued before is done.
    pub(crate) fn in_turn(&self) -> MutexGuard<'_, Core> {
        if self.outstanding.load(Ordering::Acquire) != 0 {
            let mut jobs = lock(&self.jobs);
            while self.outstanding.load(Ordering::Acquire) != 0 {
                jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            }
        }
        lock(&self.core)
    }

    /// Queues `call`, which leaves `buffer` as the call left it.
    pub(crate) fn submit<B: Send + 'static>(
        self: &Arc<Self>,
        mut buffer: B,
        call: impl FnOnce(&mut Core, &mut B) -> Result<()> + Send + 'static,
    ) -> Result<Pending<B>, Failed<B>> {
        // The worker makes the call, but it is this thread whose call it is.
        presence::drive(&self.world, self.rank);
        let mut jobs = lock(&self.jobs);
        if !jobs.has_worker {
            let queue = Arc::clone(self);
            let name = format!("tutti-rank-{}", self.rank);
            match std::thread::Builder::new().name(name).spawn(move || queue.work()) {
                Ok(_) => jobs.has_worker = true,
                Err(error) => return Err(Failed { error: Error::Thread { reason: error.to_string() }, buffer }),
            }
        }
        let outcome = Arc::new(Outcome { slot: Mutex::new(None), set: Condvar::new() });
        let pending = Pending { outcome: Arc::clone(&outcome) };
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        jobs.queued.push_back(Box::new(move |core| {
            let result = catch_unwind(AssertUnwindSafe(|| call(core, &mut buffer)));
            let result = result.unwrap_or_else(|_| Err(Error::Internal { what: "a call panicked".to_owned() }));
            *lock(&outcome.slot) = Some((buffer, result));
            outcome.set.notify_all();
        }));
        self.changed.notify_all();
        Ok(pending)
    }

    /// The worker: runs queued calls until the queue is closed and empty.
    fn work(&self) {
        presence::work_for_others();
        loop {
            let mut jobs = lock(&self.jobs);
            let job = loop {
                if let Some(job) = jobs.queued.pop_front() {
                    break job;
                }
                if jobs.closed {
                    return self.leave();
                }
                jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            };
            drop(jobs);
            job(&mut lock(&self.core));
            let _jobs = lock(&self.jobs);
            self.outstanding.fetch_sub(1, Ordering::AcqRel);
            self.changed.notify_all();
        }
    }

    /// Takes no more calls. Those that are queued go on to their end, and then the rank leaves; whoever drops a communicator
    /// does not wait for that, since the peers that its calls wait for may be the next to be dropped, by the same thread.
    pub(crate) fn close(&self) {
        let mut jobs = lock(&self.jobs);
        jobs.closed = true;
        self.changed.notify_all();
        if !jobs.has_worker {
            self.leave();
        }
    }

    /// Says that the rank makes no more calls.
    fn leave(&self) {
        self.world.board.leave(self.rank);
    }
}

struct Outcome<B> {
    slot: Mutex<Option<(B, Result<()>)>>,
    set: Condvar,
}

/// A call under way that owns its buffer.
///
/// Dropping it does not stop the call: the buffer is freed when the call is over.
#[must_use = "wait for the call to get its buffer back"]
pub struct Pending<B> {
    outcome: Arc<Outcome<B>>,
}

impl<B> Pending<B> {
    /// Whether the call is over, and [`Pending::wait`] would return at once.
    pub fn is_done(&self) -> bool {
        lock(&self.outcome.slot).is_some()
    }

    /// Waits for the call's end; the buffer that it owned.
    ///
    /// # Errors
    ///
    /// The call's error, with the buffer, whose contents are then unspecified.
    pub fn wait(self) -> Result<B, Failed<B>> {
        let mut slot = lock(&self.outcome.slot);
        loop {
            match slot.take() {
                Some((buffer, Ok(()))) => return Ok(buffer),
                Some((buffer, Err(error))) => return Err(Failed { error, buffer }),
                None => slot = self.outcome.set.wait(slot).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl<B> fmt::Debug for Pending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

/// An asynchronous call that failed, and the buffer that it owned.
pub struct Failed<B> {
    /// Why.
    pub error: Error,
    /// What the call owned.
    pub buffer: B,
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for Failed<B> {}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Error {
        failed.error
    }
}
