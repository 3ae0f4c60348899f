//! The public API, where everything meets.

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use crate::buffer::{Buffer, BufferMut};
use crate::core::{Core, MemoryReport, Request, TimedStep, World};
use crate::dtype::{DType, Reduction};
use crate::error::{Error, Result};
use crate::options::{Options, Overrides};
use crate::pending::{Failed, Pending, Queue};
use crate::plan::{Algorithm, Collective, MAX_RANK_COUNT, Plan};
use crate::presence;
use crate::request::{Asker, In, Out};
use crate::run::run;

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
    let world = World::in_process(rank_count, options.geometry()?);
    Ok((0..rank_count).map(|rank| Communicator::new(&world, rank, options.clone())).collect())
}

/// One rank's place among ranks that hold the same numbers after each call.
///
/// All ranks make the same calls in the same order; each call returns when this rank's buffers are its own again, with the
/// result in place. Calls that differ, ranks that do not come and ranks that go are errors that name the ranks (see
/// [`Error`]). Counts are in elements; buffers are slices, vectors or arrays of `f32`, `half::f16` or `half::bf16`. A count of
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
}

impl Communicator {
    fn new(world: &Arc<World>, rank: usize, options: Options) -> Communicator {
        let queue = Arc::new(Queue::new(Core::new(Arc::clone(world), rank, options)));
        Communicator { queue, world: Arc::clone(world), rank }
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

    pub(crate) fn asker(&self) -> Asker {
        Asker { rank: self.rank, rank_count: self.rank_count() }
    }

    /// Where its calls wait for each other.
    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The rank, once the calls issued before are done.
    pub(crate) fn in_turn(&self) -> MutexGuard<'_, Core> {
        self.queue.in_turn()
    }

    /// A call with settings of its own: `communicator.call().algorithm(Algorithm::Ring).all_reduce(…)`.
    pub fn call(&self) -> CallBuilder<'_> {
        CallBuilder { communicator: self, overrides: Overrides::default() }
    }

    /// Every rank's `output` becomes the reduction of all ranks' `input`; both have the same count on all ranks.
    ///
    /// # Errors
    ///
    /// See [`Error`]; so for all the calls below.
    pub fn all_reduce<B: Buffer + ?Sized>(
        &self,
        input: &B,
        output: &mut (impl BufferMut<Element = B::Element> + ?Sized),
        reduction: Reduction,
    ) -> Result<()> {
        self.call().all_reduce(input, output, reduction)
    }

    /// [`Communicator::all_reduce`] with one buffer for input and output.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn all_reduce_in_place(&self, buffer: &mut (impl BufferMut + ?Sized), reduction: Reduction) -> Result<()> {
        self.call().all_reduce_in_place(buffer, reduction)
    }

    /// Rank `r`'s `output` becomes block `r` of the reduction of all ranks' `input`. The input holds one block of the output's
    /// count for each rank.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn reduce_scatter<B: Buffer + ?Sized>(
        &self,
        input: &B,
        output: &mut (impl BufferMut<Element = B::Element> + ?Sized),
        reduction: Reduction,
    ) -> Result<()> {
        self.call().reduce_scatter(input, output, reduction)
    }

    /// [`Communicator::reduce_scatter`] where the result takes the place of this rank's own block, `buffer[rank × count ..]`;
    /// the rest of the buffer stays as it was.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn reduce_scatter_in_place(&self, buffer: &mut (impl BufferMut + ?Sized), reduction: Reduction) -> Result<()> {
        self.call().reduce_scatter_in_place(buffer, reduction)
    }

    /// Every rank's `output` becomes all ranks' `input`, one after the other: it holds the input's count for each rank.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn all_gather<B: Buffer + ?Sized>(
        &self,
        input: &B,
        output: &mut (impl BufferMut<Element = B::Element> + ?Sized),
    ) -> Result<()> {
        self.call().all_gather(input, output)
    }

    /// [`Communicator::all_gather`] where this rank's input stands in the output already, at `buffer[rank × count ..]`.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn all_gather_in_place(&self, buffer: &mut (impl BufferMut + ?Sized)) -> Result<()> {
        self.call().all_gather_in_place(buffer)
    }

    /// Every rank's `output` becomes the root's `input`. The other ranks' inputs are not read and may be empty.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn broadcast<B: Buffer + ?Sized>(
        &self,
        input: &B,
        output: &mut (impl BufferMut<Element = B::Element> + ?Sized),
        root: usize,
    ) -> Result<()> {
        self.call().broadcast(input, output, root)
    }

    /// [`Communicator::broadcast`] with one buffer for input and output.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn broadcast_in_place(&self, buffer: &mut (impl BufferMut + ?Sized), root: usize) -> Result<()> {
        self.call().broadcast_in_place(buffer, root)
    }

    /// The root's `output` becomes the reduction of all ranks' `input`. The other ranks' outputs are not written and may be
    /// empty.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn reduce<B: Buffer + ?Sized>(
        &self,
        input: &B,
        output: &mut (impl BufferMut<Element = B::Element> + ?Sized),
        reduction: Reduction,
        root: usize,
    ) -> Result<()> {
        self.call().reduce(input, output, reduction, root)
    }

    /// [`Communicator::reduce`] with one buffer for input and output; it stays as it was on all ranks but the root.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn reduce_in_place(
        &self,
        buffer: &mut (impl BufferMut + ?Sized),
        reduction: Reduction,
        root: usize,
    ) -> Result<()> {
        self.call().reduce_in_place(buffer, reduction, root)
    }

    /// Returns when every rank has come.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn barrier(&self) -> Result<()> {
        self.call().barrier()
    }

    /// [`Communicator::all_reduce_in_place`] that returns at once and owns its buffer until it is waited for.
    ///
    /// # Errors
    ///
    /// [`Failed`] gives the buffer back.
    pub fn all_reduce_async<B>(&self, buffer: B, reduction: Reduction) -> Result<Pending<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.submit(buffer, move |asker, buffer| asker.all_reduce_in_place(Out::of(buffer), reduction))
    }

    /// [`Communicator::reduce_scatter_in_place`] that returns at once and owns its buffer until it is waited for.
    ///
    /// # Errors
    ///
    /// [`Failed`] gives the buffer back.
    pub fn reduce_scatter_async<B>(&self, buffer: B, reduction: Reduction) -> Result<Pending<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.submit(buffer, move |asker, buffer| asker.reduce_scatter_in_place(Out::of(buffer), reduction))
    }

    /// [`Communicator::all_gather_in_place`] that returns at once and owns its buffer until it is waited for.
    ///
    /// # Errors
    ///
    /// [`Failed`] gives the buffer back.
    pub fn all_gather_async<B>(&self, buffer: B) -> Result<Pending<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.submit(buffer, |asker, buffer| asker.all_gather_in_place(Out::of(buffer)))
    }

    /// [`Communicator::broadcast_in_place`] that returns at once and owns its buffer until it is waited for.
    ///
    /// # Errors
    ///
    /// [`Failed`] gives the buffer back.
    pub fn broadcast_async<B>(&self, buffer: B, root: usize) -> Result<Pending<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.submit(buffer, move |asker, buffer| asker.broadcast_in_place(Out::of(buffer), root))
    }

    /// [`Communicator::reduce_in_place`] that returns at once and owns its buffer until it is waited for.
    ///
    /// # Errors
    ///
    /// [`Failed`] gives the buffer back.
    pub fn reduce_async<B>(&self, buffer: B, reduction: Reduction, root: usize) -> Result<Pending<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.submit(buffer, move |asker, buffer| asker.reduce_in_place(Out::of(buffer), reduction, root))
    }

    fn submit<B>(
        &self,
        mut buffer: B,
        request: impl Fn(Asker, &mut B) -> Result<Request> + Send + 'static,
    ) -> Result<Pending<B>, Failed<B>>
    where
        B: Send + 'static,
    {
        let asker = self.asker();
        // What is wrong with the arguments is said here rather than later. The addresses are asked for again where the call
        // runs: the buffer moves there first.
        if let Err(error) = request(asker, &mut buffer) {
            return Err(Failed { error, buffer });
        }
        self.queue.submit(buffer, move |core, buffer| run(core, &request(asker, buffer)?, &Overrides::default()))
    }

    /// Makes smaller communicators: ranks that pass the same colour come together in one, in the order of their keys (and of
    /// their ranks here, where keys are equal). A rank that passes none gets none. All ranks of this communicator call it.
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
            return Err(Error::Internal { what: format!("rank {} is not among those of its colour", self.rank) });
        };
        let world = self.world.child(core.sequence(), color, members.len());
        Ok(Some(Communicator::new(&world, rank, core.options.clone())))
    }

    /// The same ranks with connections of their own: its calls overlap with those of this communicator. All ranks call it.
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

    /// What this rank holds.
    pub fn memory(&self) -> MemoryReport {
        self.in_turn().memory()
    }

    /// The plan by which a call with this count of elements would run.
    ///
    /// # Errors
    ///
    /// [`Error::Plan`] if there is none.
    pub fn plan(&self, collective: Collective, count: usize, dtype: DType) -> Result<Plan> {
        let core = self.in_turn();
        let (count, element_bytes) = (count as u64, dtype.bytes() as u32);
        let algorithm = core.algorithm(collective, count, element_bytes, &Overrides::default());
        core.plan(collective, algorithm, count, element_bytes)
    }

    /// Begins to time the steps of this rank's calls, keeping the first `steps_max` of each program; what was timed before is
    /// dropped.
    pub fn start_trace(&self, steps_max: usize) {
        self.in_turn().start_trace(steps_max);
    }

    /// Stops timing steps; those that were timed, in the order in which they started.
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

/// A call with settings of its own; see [`Communicator::call`].
#[derive(Clone, Copy, Debug)]
#[must_use = "settings do nothing without a call"]
pub struct CallBuilder<'a> {
    communicator: &'a Communicator,
    overrides: Overrides,
}

impl CallBuilder<'_> {
    /// Uses this algorithm; the call fails where it does not offer the collective. All ranks need the same one.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.overrides.algorithm = Some(algorithm);
        self
    }

    /// Instead of [`Options::progress_timeout`].
    pub fn progress_timeout(mut self, timeout: Duration) -> Self {
        self.overrides.progress_timeout = Some(timeout);
        self
    }

    /// Instead of [`Options::arrival_timeout`].
    pub fn arrival_timeout(mut self, timeout: Duration) -> Self {
        self.overrides.arrival_timeout = Some(timeout);
        self
    }

    fn run(self, request: Result<Request>) -> Result<()> {
        run(&mut self.communicator.in_turn(), &request?, &self.overrides)
    }

    /// See [`Communicator::all_reduce`].
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn all_reduce<B: Buffer + ?Sized>(
        self,
        input: &B,
        output: &mut (impl BufferMut<Element = B::Element> + ?Sized),
        reduction: Reduction,
    ) -> Result<()> {
        self.run(self.communicator.asker().all_reduce(In::of(input), Out::of(output), reduction))
    }

    /// See [`Communicator::all_reduce_in_place`].
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn all_reduce_in_place(self, buffer: &mut (impl BufferMut + ?Sized), reduction: Reduction) -> Result<()> {
        self.run(self.communicator.asker().all_reduce_in_place(Out::of(buffer), reduction))
    }

    /// See [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn reduce_scatter<B: Buffer + ?Sized>(
        self,
        input: &B,
        output: &mut (impl BufferMut<Element = B::Element> + ?Sized),
        reduction: Reduction,
    ) -> Result<()> {
        self.run(self.communicator.asker().reduce_scatter(In::of(input), Out::of(output), reduction))
    }

    /// See [`Communicator::reduce_scatter_in_place`].
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn reduce_scatter_in_place(self, buffer: &mut (impl BufferMut + ?Sized), reduction: Reduction) -> Result<()> {
        self.run(self.communicator.asker().reduce_scatter_in_place(Out::of(buffer), reduction))
    }

    /// See [`Communicator::all_gather`].
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn all_gather<B: Buffer + ?Sized>(
        self,
        input: &B,
        output: &mut (impl BufferMut<Element = B::Element> + ?Sized),
    ) -> Result<()> {
        self.run(self.communicator.asker().all_gather(In::of(input), Out::of(output)))
    }

    /// See [`Communicator::all_gather_in_place`].
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn all_gather_in_place(self, buffer: &mut (impl BufferMut + ?Sized)) -> Result<()> {
        self.run(self.communicator.asker().all_gather_in_place(Out::of(buffer)))
    }

    /// See [`Communicator::broadcast`].
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn broadcast<B: Buffer + ?Sized>(
        self,
        input: &B,
        output: &mut (impl BufferMut<Element = B::Element> + ?Sized),
        root: usize,
    ) -> Result<()> {
        self.run(self.communicator.asker().broadcast(In::of(input), Out::of(output), root))
    }

    /// See [`Communicator::broadcast_in_place`].
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn broadcast_in_place(self, buffer: &mut (impl BufferMut + ?Sized), root: usize) -> Result<()> {
        self.run(self.communicator.asker().broadcast_in_place(Out::of(buffer), root))
    }

    /// See [`Communicator::reduce`].
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn reduce<B: Buffer + ?Sized>(
        self,
        input: &B,
        output: &mut (impl BufferMut<Element = B::Element> + ?Sized),
        reduction: Reduction,
        root: usize,
    ) -> Result<()> {
        self.run(self.communicator.asker().reduce(In::of(input), Out::of(output), reduction, root))
    }

    /// See [`Communicator::reduce_in_place`].
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn reduce_in_place(
        self,
        buffer: &mut (impl BufferMut + ?Sized),
        reduction: Reduction,
        root: usize,
    ) -> Result<()> {
        self.run(self.communicator.asker().reduce_in_place(Out::of(buffer), reduction, root))
    }

    /// See [`Communicator::barrier`].
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn barrier(self) -> Result<()> {
        self.run(Ok(self.communicator.asker().barrier()))
    }
}
