//! Asynchronous calls: they own their buffers, and waiting for them gives the buffers back.
//!
//! Each communicator has at most one worker thread, started by its first asynchronous call, that runs such calls in the order
//! in which they were issued. A blocking call waits for those that were issued before it.
//!
//! The worker runs nothing of the caller's: a buffer is asked for its address and its length by the thread that issues the call,
//! once it lies where it stays until the call is over. Only its `Drop` may run here, where nobody waits for the call; that comes
//! after the turn, with nothing locked, and a panic of it ends there.
//!
//! A group takes its place in that order too, on all of its communicators at once, and then goes on with each communicator as
//! its turn comes: it may hold the very calls that somebody else's call, or an asynchronous one, waits for. Since places are
//! taken on all communicators at once, two groups are in the same order on all that they share.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::core::{Core, Request, World};
use crate::error::{Error, Result};
use crate::options::Overrides;
use crate::presence;
use crate::run::run;
use crate::sync::lock;

/// Runs a call, once, and holds on to the call's buffer until it is dropped.
type Job = Box<dyn FnMut(&mut Core) + Send>;

/// One rank and the calls that are queued for it. Ranks are made in one go and would else share cache lines at their ends.
#[repr(align(128))]
pub(crate) struct Queue {
    rank: usize,
    world: Arc<World>,
    core: Mutex<Core>,
    jobs: Mutex<Jobs>,
    changed: Condvar,
    /// Turns that have not ended.
    outstanding: AtomicUsize,
}

#[derive(Default)]
struct Jobs {
    /// The turns that have not ended, in their order: of asynchronous calls and of groups.
    turns: VecDeque<u64>,
    turns_taken: u64,
    /// The asynchronous calls that have not begun, by their turns.
    queued: VecDeque<(u64, Job)>,
    has_worker: bool,
    closed: bool,
    /// Threads that wait for a change. To wake nobody costs a call of the system too.
    waiting: usize,
}

impl Jobs {
    fn take_turn(&mut self, outstanding: &AtomicUsize) -> u64 {
        self.turns_taken += 1;
        self.turns.push_back(self.turns_taken);
        outstanding.fetch_add(1, Ordering::AcqRel);
        self.turns_taken
    }

    /// The next asynchronous call, if it is its turn.
    fn next_job(&mut self) -> Option<(u64, Job)> {
        let (turn, _) = self.queued.front()?;
        if self.turns.front() == Some(turn) { self.queued.pop_front() } else { None }
    }
}

impl Queue {
    pub(crate) fn new(core: Core) -> Queue {
        Queue {
            rank: core.rank(),
            world: Arc::clone(core.world()),
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
                jobs = self.wait(jobs);
            }
        }
        lock(&self.core)
    }

    /// Waits for a change.
    fn wait<'a>(&self, mut jobs: MutexGuard<'a, Jobs>) -> MutexGuard<'a, Jobs> {
        jobs.waiting += 1;
        let mut jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        jobs.waiting -= 1;
        jobs
    }

    /// Says that something has changed.
    fn wake(&self, jobs: &Jobs) {
        if jobs.waiting != 0 {
            self.changed.notify_all();
        }
    }

    /// Queues the call that `request` makes of the buffer.
    pub(crate) fn submit<B: Send + 'static>(
        self: &Arc<Self>,
        buffer: B,
        request: impl FnOnce(&mut B) -> Result<Request>,
        overrides: Overrides,
    ) -> Result<Pending<B>, Failed<B>> {
        let call = Arc::new(Call { buffer: Mutex::new(None), result: Mutex::new(None), over: Condvar::new() });
        // Where the buffer lies now it stays until the call is over.
        let request = request(lock(&call.buffer).insert(buffer));
        match request.and_then(|request| self.issue(Arc::clone(&call), request, overrides)) {
            Ok(()) => Ok(Pending { call }),
            Err(error) => {
                let Some(buffer) = lock(&call.buffer).take() else { unreachable!("no call has been issued over it") };
                Err(Failed { error, buffer })
            }
        }
    }

    /// Queues a call whose buffer is in its place.
    fn issue<B: Send + 'static>(
        self: &Arc<Self>,
        of: Arc<Call<B>>,
        request: Request,
        overrides: Overrides,
    ) -> Result<()> {
        // The worker makes the call, but it is this thread whose call it is.
        presence::drive(&self.world, self.rank);
        let mut jobs = lock(&self.jobs);
        if !jobs.has_worker {
            let queue = Arc::clone(self);
            let name = format!("tutti-rank-{}", self.rank);
            let worker = std::thread::Builder::new().name(name).spawn(move || queue.work());
            worker.map_err(|error| self.world.board.fail(Error::Thread { reason: error.to_string() }))?;
            jobs.has_worker = true;
        }
        let turn = jobs.take_turn(&self.outstanding);
        let job: Job = Box::new(move |core| {
            let result = catch_unwind(AssertUnwindSafe(|| run(core, &request, &overrides)));
            let result = result.unwrap_or_else(|_| {
                let what = format!("an asynchronous call of rank {} panicked", core.rank());
                Err(core.give_up(Error::Internal { what }))
            });
            *lock(&of.result) = Some(result);
            of.over.notify_all();
        });
        jobs.queued.push_back((turn, job));
        self.wake(&jobs);
        Ok(())
    }

    /// The worker: runs queued calls until the queue is closed and empty.
    fn work(&self) {
        presence::work_for_others();
        loop {
            let mut jobs = lock(&self.jobs);
            let (number, mut job) = loop {
                if let Some(next) = jobs.next_job() {
                    break next;
                }
                if jobs.closed && jobs.queued.is_empty() {
                    return self.leave();
                }
                jobs = self.wait(jobs);
            };
            drop(jobs);
            let turn = Turn { queue: self, number };
            job(&mut lock(&self.core));
            drop(turn);
            // The buffer too, if nobody waits for it. What its panic carries may panic when it is dropped in turn.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(job))) {
                std::mem::forget(panic);
            }
        }
    }

    fn end_turn(&self, turn: u64) {
        let mut jobs = lock(&self.jobs);
        jobs.turns.retain(|each| *each != turn);
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.wake(&jobs);
    }

    /// Takes no more calls. Those that are queued go on to their end, and then the rank leaves; whoever drops a communicator
    /// does not wait for that, since the peers that its calls wait for may be the next to be dropped, by the same thread.
    pub(crate) fn close(&self) {
        let mut jobs = lock(&self.jobs);
        jobs.closed = true;
        self.wake(&jobs);
        if !jobs.has_worker {
            self.leave();
        }
    }

    /// Says that the rank makes no more calls.
    fn leave(&self) {
        self.world.board.leave(self.rank);
    }
}

/// A group's place in the order of a communicator's calls.
pub(crate) struct Turn<'a> {
    queue: &'a Queue,
    number: u64,
}

impl<'a> Turn<'a> {
    /// One turn of each of these communicators, all taken at once. They are different ones, in the order of their addresses, so
    /// that two threads lock those that they share in the same order.
    pub(crate) fn take(queues: &[&'a Queue]) -> Vec<Turn<'a>> {
        debug_assert!(queues.is_sorted_by_key(|queue| std::ptr::from_ref(*queue)));
        let mut locked: Vec<_> = queues.iter().map(|queue| lock(&queue.jobs)).collect();
        let turns = queues.iter().zip(&mut locked);
        turns.map(|(queue, jobs)| Turn { queue, number: jobs.take_turn(&queue.outstanding) }).collect()
    }

    /// The rank, if the turn has come and nobody is in a call of it.
    pub(crate) fn begin(&self) -> Option<MutexGuard<'a, Core>> {
        if lock(&self.queue.jobs).turns.front() != Some(&self.number) {
            return None;
        }
        match self.queue.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn world(&self) -> &'a World {
        &self.queue.world
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.queue.end_turn(self.number);
    }
}

/// What the worker and whoever waits share.
struct Call<B> {
    /// Looked at before the call and after it, and not in between: then its memory is lent.
    buffer: Mutex<Option<B>>,
    result: Mutex<Option<Result<()>>>,
    over: Condvar,
}

/// A call under way that owns its buffer.
///
/// Dropping it does not stop the call: the buffer is dropped when the call is over, by the thread that makes the asynchronous
/// calls of its communicator. A panic of the buffer's `Drop` ends there (the panic hook hears of it); that `Drop` must not wait
/// for calls of the same communicator, which this thread makes.
#[must_use = "wait for the call to get its buffer back"]
pub struct Pending<B> {
    call: Arc<Call<B>>,
}

impl<B> Pending<B> {
    /// Whether the call is over, and [`Pending::wait`] would return at once.
    pub fn is_done(&self) -> bool {
        lock(&self.call.result).is_some()
    }

    /// Waits for the call's end; the buffer that it owned.
    ///
    /// # Errors
    ///
    /// The call's error, with the buffer, whose contents are then unspecified.
    pub fn wait(self) -> Result<B, Failed<B>> {
        let mut result = lock(&self.call.result);
        loop {
            match result.take().and_then(|result| Some((result, lock(&self.call.buffer).take()?))) {
                Some((Ok(()), buffer)) => return Ok(buffer),
                Some((Err(error), buffer)) => return Err(Failed { error, buffer }),
                None => result = self.call.over.wait(result).unwrap_or_else(PoisonError::into_inner),
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
