//! Communicators: making them, splitting them, ending them. The calls that move data are in `calls.rs`.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::calls::CallBuilder;
use crate::core::{Core, MemoryReport, TimedStep, World};
use crate::device::cuda::Device;
use crate::device::cuda::paths::Paths;
use crate::device::cuda::ranks::Ranks;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::options::{Options, Overrides};
use crate::pending::Queue;
use crate::plan::{Collective, MAX_RANK_COUNT, Plan};
use crate::plan_cache::PlanKey;
use crate::presence;
use crate::request::Asker;
use crate::run::run;
use crate::sync::lock;

/// `rank_count` communicators, one for each rank, whose ranks are threads of this process.
///
/// # Errors
///
/// [`Error::Argument`] if there are no ranks, or more than [`MAX_RANK_COUNT`].
pub fn local(rank_count: usize) -> Result<Vec<Communicator>> {
    local_with(rank_count, Options::default())
}

/// [`local`] with settings.
///
/// # Errors
///
/// As [`local`], and if a setting is out of range.
pub fn local_with(rank_count: usize, options: Options) -> Result<Vec<Communicator>> {
    if !(1..=MAX_RANK_COUNT).contains(&rank_count) {
        return Err(Error::Argument {
            call: "local",
            what: "rank_count",
            expected: format!("from 1 to {MAX_RANK_COUNT}"),
            came: rank_count.to_string(),
        });
    }
    let world = World::in_process(rank_count, &options)?;
    (0..rank_count).map(|rank| Communicator::new(&world, rank, options.clone())).collect()
}

/// See `cuda::local_with`.
pub(crate) fn on_cuda(devices: &[Device], paths: &Paths, options: Options) -> Result<Vec<Communicator>> {
    let world = World::on_cuda(devices, paths, &options)?;
    (0..devices.len()).map(|rank| Communicator::new(&world, rank, options.clone())).collect()
}

/// One rank's place among ranks that hold the same numbers after each call.
///
/// All ranks make the same calls in the same order; each call returns when this rank's buffers are its own again, with the
/// result in place. Calls that differ, ranks that do not come and ranks that go are errors that name the ranks (see
/// [`Error`]). Counts are in elements; buffers are slices, vectors or arrays of elements
/// ([`Element`](crate::Element)). A count of
/// zero moves nothing, and is a call like any other. In a broadcast or a reduce a rank may be done before others have come to
/// the call, but not before they have come to the one before it.
///
/// A communicator can be shared between threads: their calls then run one after the other, in whatever order they come, and
/// it is up to the threads that this is the same order on all ranks. When it is dropped its asynchronous calls go on to their
/// end; ranks that wait for further calls of this one get [`Error::Left`].
///
/// # Panics of a rank's thread
///
/// Peers that wait for a rank whose thread panics get [`Error::Left`] at once: when unwinding drops the communicator or, where
/// the thread had only borrowed it, when the thread ends that made the rank's last call (before the first one: that last asked
/// for [`Communicator::rank`]). A panic that is caught breaks nothing, as long as the thread makes another call before it ends;
/// until then its ranks get the shorter of their two deadlines ([`Options`]). The same goes for threads that panic and live on:
/// those of a pool, or one that waits in [`std::thread::scope`] for the peers.
///
/// Panics are noticed by a hook that [`local`] puts before the program's, once. Where it does not run there is nothing to
/// notice but the deadline: in a program that replaces it, and on a thread that takes over another thread's panic
/// ([`std::panic::resume_unwind`]). Such a thread, and any that may panic before it asks for its rank, should own its
/// communicator.
pub struct Communicator {
    queue: Arc<Queue>,
    world: Arc<World>,
    rank: usize,
    options: Options,
    /// What the rank holds, as it said last.
    held: Arc<Mutex<MemoryReport>>,
}

impl Communicator {
    pub(crate) fn new(world: &Arc<World>, rank: usize, options: Options) -> Result<Communicator> {
        let core = Core::new(Arc::clone(world), rank, options.clone())?;
        let held = core.held();
        Ok(Communicator { queue: Arc::new(Queue::new(core)), world: Arc::clone(world), rank, options, held })
    }

    /// Which rank this is, counted from 0.
    pub fn rank(&self) -> usize {
        // Whoever asks is about to act as this rank; should that thread panic before its first call, the peers must know.
        if !self.world.board.has_called(self.rank) {
            presence::drive(&self.world, self.rank);
        }
        self.rank
    }

    /// How many ranks there are.
    pub fn rank_count(&self) -> usize {
        self.world.board.rank_count()
    }

    /// What ranks on CUDA devices share, if these are such.
    pub(crate) fn cuda(&self) -> Option<&Arc<Ranks>> {
        self.world.cuda.as_ref()
    }

    /// The error that broke the communicator, if one has.
    pub(crate) fn verdict(&self) -> Option<Error> {
        self.world.board.verdict()
    }

    pub(crate) fn asker(&self) -> Asker {
        Asker { rank: self.rank, rank_count: self.rank_count() }
    }

    /// Where its calls wait for each other.
    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// The rank, once the calls issued before are done.
    pub(crate) fn in_turn(&self) -> MutexGuard<'_, Core> {
        self.queue.in_turn()
    }

    /// A call with settings of its own: `communicator.call().algorithm(Algorithm::Ring).all_reduce(…)`.
    pub fn call(&self) -> CallBuilder<'_> {
        CallBuilder::new(self)
    }

    /// Returns when every rank has come.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn barrier(&self) -> Result<()> {
        self.call().barrier()
    }

    /// Makes smaller communicators: ranks that pass the same colour come together in one, in the order of their keys (and of
    /// their ranks here, where keys are equal). A rank that passes none gets none. All ranks of this communicator call it, each on
    /// a thread of its own: it has no form in [`Group`](crate::Group), and one thread that is several ranks would wait in the
    /// first of its calls for the others until the deadline.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>> {
        const WORDS_BYTES: usize = 16;
        let mut core = self.in_turn();
        let mut mine = [0; WORDS_BYTES];
        mine[..8].copy_from_slice(&color.map_or(-1, i64::from).to_le_bytes());
        mine[8..].copy_from_slice(&key.to_le_bytes());
        let mut all = vec![0; WORDS_BYTES * self.rank_count()];
        run(&mut core, &self.asker().split(&mine, &mut all), &Overrides::default())?;
        let Some(color) = color else { return Ok(None) };
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, i64::from_le_bytes);
        let mut members: Vec<(i64, usize)> = all
            .chunks_exact(WORDS_BYTES)
            .enumerate()
            .filter(|(_, words)| word(&words[..8]) == i64::from(color))
            .map(|(rank, words)| (word(&words[8..]), rank))
            .collect();
        members.sort_unstable();
        let place = members.iter().position(|(_, rank)| *rank == self.rank);
        let Some(rank) = place else {
            let what = format!("rank {} is not among those of its colour", self.rank);
            return Err(self.world.board.fail(Error::Internal { what }));
        };
        let members: Vec<usize> = members.into_iter().map(|(_, rank)| rank).collect();
        let world = self.world.child(core.sequence(), color, &members)?;
        // Until somebody else calls, the part is this thread's.
        presence::drive(&world, rank);
        Communicator::new(&world, rank, self.options.clone()).map(Some)
    }

    /// The same ranks with connections of their own: its calls overlap with those of this communicator. All ranks call it, each
    /// on a thread of its own, as with [`Communicator::split`].
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn lane(&self) -> Result<Communicator> {
        let lane = self.split(Some(0), 0)?;
        lane.ok_or_else(|| Error::Internal { what: "a split by one colour left a rank out".to_owned() })
    }

    /// Ends the calls of this communicator, and of those that were made from it, from another thread.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle { world: Arc::clone(&self.world), rank: self.rank }
    }

    /// What this rank holds. Waits for no call: while one is under way, it is what the rank holds in it.
    pub fn memory(&self) -> MemoryReport {
        *lock(&self.held)
    }

    /// The plan by which a call with this count of elements would run. Waits for no call.
    ///
    /// # Errors
    ///
    /// [`Error::Plan`] if there is none.
    pub fn plan(&self, collective: Collective, count: usize, dtype: DType) -> Result<Plan> {
        let (count, element_bytes) = (count as u64, dtype.bytes() as u32);
        let (options, overrides) = (&self.options, Overrides::default());
        let able = self.world.transport.guarantees().capabilities();
        let algorithm = self.world.algorithm(collective, count, element_bytes, able, options, &overrides);
        self.world.plan(PlanKey { collective, algorithm, count, element_bytes })
    }

    /// Begins to time the steps of this rank's calls, keeping the first `steps_max` of each program, or fewer where
    /// [`Options::memory_budget_bytes`] leaves no room for more; what was timed before is dropped.
    ///
    /// The calls that are timed are those that are issued later: this waits, as a call does, until the ones before are over, the
    /// asynchronous ones too, and so for as long as their deadlines let them wait for peers.
    pub fn start_trace(&self, steps_max: usize) {
        self.in_turn().start_trace(steps_max);
    }

    /// Stops timing steps; those that were timed, in the order in which they started. Waits until the calls that were issued
    /// before are over, as [`Communicator::start_trace`] does.
    pub fn take_trace(&self) -> Vec<TimedStep> {
        self.in_turn().take_trace()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Peers must not wait for calls that will never be made.
            self.world.board.leave_panicking(self.rank);
        }
        self.queue.close();
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank)
            .field("rank_count", &self.rank_count())
            .finish_non_exhaustive()
    }
}

/// Ends the calls of a communicator, and of those that were made from it, from any thread.
#[derive(Clone)]
pub struct AbortHandle {
    world: Arc<World>,
    rank: usize,
}

impl AbortHandle {
    /// Breaks the communicator for all its ranks, and all that was made from it: its lanes, its parts, and theirs in turn. Calls
    /// of any of them, under way or later, return [`Error::Aborted`] with this reason. What it was made from goes on.
    ///
    /// (This is for aborts only. A communicator that breaks in another way, or is dropped, leaves the others alone.)
    pub fn abort(&self, reason: impl Into<String>) {
        self.world.abort(&Error::Aborted { rank: self.rank, reason: reason.into() });
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("rank", &self.rank).finish_non_exhaustive()
    }
}
