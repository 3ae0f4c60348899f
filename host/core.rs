//! One rank of a communicator, without types: a call is a collective, a count and two addresses.
//!
//! The typed API and, later, a C ABI are thin skins on this. A call goes through three stages: [`Core::start`] checks it,
//! finds its plan, posts it on the board and lays out the interpreter's view; [`Core::poll`] advances its programs once;
//! [`Core::look`] is for a rank that is blocked: it compares with the board, watches the deadlines and names who is late.
//! Nothing here waits, so that one thread can drive several ranks (see `Group`).
//!
//! Every failure after `start` breaks the communicator for all its ranks: connections may hold slots of a call that was
//! never finished, and no later call could trust them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tutti_kernels::layout::Fingerprint;

use crate::board::Board;
use crate::buffer::Memory;
use crate::device::cuda::paths::Paths;
use crate::device::cuda::ranks::{CudaTransport, Ranks};
use crate::device::cuda::{Device, Stream};
use crate::dtype::{DType, Reduction};
use crate::error::{Error, ErrorKind, Result};
use crate::fingerprint::{CallWords, Purpose};
use crate::options::{Options, Overrides};
use crate::plan::select::{Capabilities, choose};
use crate::plan::{self, Algorithm, Collective, Geometry, Plan};
use crate::plan_cache::{PlanCache, PlanKey};
use crate::presence;
use crate::sync::lock;
use crate::transport::Transport;
use crate::transport::in_process::InProcess;

mod cpu;
pub(crate) mod cuda;
mod traces;
pub(crate) mod watch;

pub(crate) use cpu::CpuRank;
pub(crate) use cuda::{CudaRank, Flight};

/// What the ranks of one communicator share.
pub(crate) struct World {
    pub(crate) board: Board,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) geometry: Geometry,
    /// Processors that the ranks may use, all together. Asked for where the communicator is made, and not by the ranks: each
    /// of their threads may be bound to one processor of its own.
    pub(crate) processors: usize,
    plans: PlanCache,
    /// What ranks on CUDA devices share.
    pub(crate) cuda: Option<Arc<Ranks>>,
    watched: Mutex<cuda::Watched>,
    /// Those of the communicator, as it was made.
    options: Options,
    /// Communicators being split off, until all their ranks have come for them: by sequence and colour.
    children: Mutex<HashMap<(u64, u32), Child>>,
    /// The communicators that this one was split off from, the oldest first. Each lists this one among its descendants, so that
    /// an abort reaches it even when those in between are gone.
    ancestors: Vec<Weak<World>>,
    descendants: Mutex<Descendants>,
}

/// A communicator being split off.
struct Child {
    world: Arc<World>,
    /// How many of its ranks have come for it.
    taken: usize,
}

/// What has been split off from a communicator and its parts.
#[derive(Default)]
struct Descendants {
    worlds: Vec<Weak<World>>,
    /// Why the communicator was aborted, if it was: what is split off even so must be, too.
    aborted: Option<Error>,
}

impl World {
    /// For ranks that are threads of this process.
    pub(crate) fn in_process(rank_count: usize, options: &Options) -> Result<Arc<World>> {
        Ok(World::new(rank_count, options.geometry()?, None, options, processors(), Vec::new()))
    }

    /// For ranks on CUDA devices, one for each entry, which threads of this process drive.
    pub(crate) fn on_cuda(devices: &[Device], paths: &Paths, options: &Options) -> Result<Arc<World>> {
        let geometry = options.geometry()?;
        let ranks = Arc::new(Ranks::new(devices, paths, geometry)?);
        Ok(World::new(devices.len(), geometry, Some(ranks), options, processors(), Vec::new()))
    }

    fn new(
        rank_count: usize,
        geometry: Geometry,
        cuda: Option<Arc<Ranks>>,
        options: &Options,
        processors: usize,
        ancestors: Vec<Weak<World>>,
    ) -> Arc<World> {
        presence::watch_for_panics();
        let transport: Box<dyn Transport> = match &cuda {
            Some(ranks) => Box::new(CudaTransport(Arc::clone(ranks))),
            None => Box::new(InProcess::new(geometry)),
        };
        let on_abort = cuda.clone().map(|ranks| Box::new(move || ranks.raise_abort()) as Box<dyn Fn() + Send + Sync>);
        Arc::new(World {
            board: Board::new(rank_count, on_abort),
            transport,
            geometry,
            processors,
            plans: PlanCache::default(),
            cuda,
            watched: Mutex::default(),
            options: options.clone(),
            children: Mutex::default(),
            ancestors,
            descendants: Mutex::default(),
        })
    }

    /// A new communicator of some of the ranks here, which this one's aborts reach.
    fn split_off(self: &Arc<World>, members: &[usize]) -> Result<Arc<World>> {
        // Nobody can abort those that are gone.
        let older = self.ancestors.iter().filter(|ancestor| ancestor.strong_count() > 0).cloned();
        let ancestors = older.chain([Arc::downgrade(self)]).collect();
        let cuda = match &self.cuda {
            Some(ranks) => {
                let devices: Vec<Device> = members.iter().map(|rank| ranks.gpu(*rank).device.clone()).collect();
                Some(Arc::new(Ranks::new(&devices, ranks.paths(), self.geometry)?))
            }
            None => None,
        };
        let world = World::new(members.len(), self.geometry, cuda, &self.options, self.processors, ancestors);
        // The oldest first: if it is aborted, and gone, before this one is on its list, then the next ones have heard of it.
        for ancestor in world.ancestors.iter().filter_map(Weak::upgrade) {
            let mut descendants = lock(&ancestor.descendants);
            descendants.worlds.retain(|other| other.strong_count() > 0);
            descendants.worlds.push(Arc::downgrade(&world));
            if let Some(error) = &descendants.aborted {
                world.note_abort(error);
            }
        }
        Ok(world)
    }

    /// Breaks the communicator and all that was made from it.
    pub(crate) fn abort(&self, error: &Error) {
        let (error, descendants) = self.note_abort(error);
        for world in descendants.iter().filter_map(Weak::upgrade) {
            world.note_abort(&error);
        }
    }

    /// Breaks this communicator alone; why it was aborted first, and what an abort must reach besides.
    fn note_abort(&self, error: &Error) -> (Error, Vec<Weak<World>>) {
        self.board.fail(error.clone());
        let mut descendants = lock(&self.descendants);
        let error = descendants.aborted.get_or_insert_with(|| error.clone()).clone();
        (error, descendants.worlds.clone())
    }

    /// The algorithm for a call: the caller's, or the communicator's where it offers the collective, or the best guess.
    pub(crate) fn algorithm(
        &self,
        collective: Collective,
        count: u64,
        element_bytes: u32,
        capabilities: Capabilities,
        options: &Options,
        overrides: &Overrides,
    ) -> Algorithm {
        if let Some(algorithm) = overrides.algorithm {
            return algorithm;
        }
        if let Some(algorithm) = options.algorithm
            && algorithm.offers(collective)
        {
            return algorithm;
        }
        let bytes = count.saturating_mul(u64::from(element_bytes));
        choose(collective, self.board.rank_count(), bytes, element_bytes, capabilities)
    }

    /// The plan for a call.
    pub(crate) fn plan(&self, key: PlanKey) -> Result<Plan> {
        let PlanKey { collective, algorithm, count, element_bytes } = key;
        plan::build(collective, algorithm, self.board.rank_count(), count, element_bytes, &self.geometry)
            .map_err(|source| Error::Plan { call: collective.name(), source })
    }

    /// The world that call `sequence` split off for `color`: the first of its ranks, which are `members` here, makes it, the
    /// last takes it out.
    pub(crate) fn child(self: &Arc<World>, sequence: u64, color: u32, members: &[usize]) -> Result<Arc<World>> {
        let mut children = lock(&self.children);
        let child = match children.entry((sequence, color)) {
            Entry::Occupied(child) => child.into_mut(),
            Entry::Vacant(place) => place.insert(Child { world: self.split_off(members)?, taken: 0 }),
        };
        child.taken += 1;
        let (world, taken) = (Arc::clone(&child.world), child.taken);
        if taken == members.len() {
            children.remove(&(sequence, color));
        }
        Ok(world)
    }
}

/// Processors that this process may use.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A call, without types.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) purpose: Purpose,
    pub(crate) collective: Collective,
    pub(crate) dtype: Option<DType>,
    pub(crate) reduction: Option<Reduction>,
    /// Of a scaled sum, as the kernels take it; otherwise zero.
    pub(crate) scale: u64,
    /// In elements, as the collective counts them.
    pub(crate) count: u64,
    pub(crate) input: *const u8,
    pub(crate) output: *mut u8,
    /// Where the input lies, and the output.
    pub(crate) memory: [Memory; 2],
}

// SAFETY: the addresses are those of borrowed or owned buffers of `Send` elements; whoever moves a request to another thread
// keeps them alive and lets nobody else touch them.
unsafe impl Send for Request {}

impl Request {
    fn element_bytes(&self) -> u32 {
        self.dtype.map_or(1, |dtype| dtype.bytes() as u32)
    }
}

/// What a call asks for, but for its buffers.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Asked {
    purpose: Purpose,
    collective: Collective,
    dtype: Option<DType>,
    reduction: Option<Reduction>,
    scale: u64,
    count: u64,
    algorithm: Option<Algorithm>,
}

impl Request {
    /// What the call asks for.
    fn asked(&self, overrides: &Overrides) -> Asked {
        let Request { purpose, collective, dtype, reduction, scale, count, .. } = *self;
        Asked { purpose, collective, dtype, reduction, scale, count, algorithm: overrides.algorithm }
    }

    /// The call's fingerprint, with no sequence number yet.
    fn fingerprint(&self, algorithm: Algorithm, plan_digest: u64) -> Fingerprint {
        let Request { purpose, collective, dtype, reduction, scale, count, .. } = *self;
        CallWords { purpose, collective, algorithm, dtype, reduction, scale, count, plan_digest }.pack(0)
    }

    /// The element type and the reduction of the kernel that runs it: a collective that reduces nothing only copies, whatever
    /// the reduction; without a type it copies bytes.
    fn kernel(&self) -> (DType, Reduction) {
        (self.dtype.unwrap_or(DType::U8), self.reduction.unwrap_or(Reduction::Sum))
    }
}

/// The answer of [`Core::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    Moved,
    Waiting,
    Done,
}

/// A rank that keeps within a budget of memory.
trait Budgeted {
    fn rank(&self) -> usize;

    /// [`Options::memory_budget_bytes`].
    fn budget_bytes(&self) -> Option<u64>;

    /// What the rank holds.
    fn memory(&self) -> MemoryReport;

    /// Gives up what can be made again, and what is not needed yet: plans that were kept for later calls, and room for step times
    /// that have not come.
    fn give_room(&mut self);

    /// Lets those who do not wait for the rank's turn know what it holds.
    fn publish_memory(&self);

    /// Sees to it that so many bytes more keep within the budget.
    fn make_room(&mut self, what: &'static str, needed_bytes: u64) -> Result<()> {
        let Some(budget_bytes) = self.budget_bytes() else { return Ok(()) };
        let held_bytes = |rank: &Self| rank.memory().total_bytes();
        if held_bytes(self).saturating_add(needed_bytes) <= budget_bytes {
            return Ok(());
        }
        self.give_room();
        self.publish_memory();
        let (rank, held_bytes) = (self.rank(), held_bytes(self));
        if held_bytes.saturating_add(needed_bytes) <= budget_bytes {
            return Ok(());
        }
        Err(Error::MemoryBudget { rank, what, needed_bytes, held_bytes, budget_bytes })
    }

    /// [`Budgeted::make_room`] for what a plan needs before it is laid out.
    fn make_room_for_plan(&mut self, connection_bytes: u64, scratch_bytes: u64) -> Result<()> {
        let what = match (connection_bytes, scratch_bytes) {
            (_, 0) => "connections",
            (0, _) => "scratch memory",
            _ => "connections and scratch memory",
        };
        self.make_room(what, connection_bytes.saturating_add(scratch_bytes))
    }
}

/// One rank of a communicator, whatever runs it.
#[expect(clippy::large_enum_variant, reason = "there is one for each rank, and the larger one is the quicker one")]
pub(crate) enum Core {
    Cpu(CpuRank),
    Cuda(CudaRank),
}

/// Passes a call on to the rank.
macro_rules! of_each {
    ($core:expr, $rank:ident => $call:expr) => {
        match $core {
            Core::Cpu($rank) => $call,
            Core::Cuda($rank) => $call,
        }
    };
}

impl Core {
    pub(crate) fn new(world: Arc<World>, rank: usize, options: Options) -> Result<Core> {
        Ok(match world.cuda.clone() {
            Some(ranks) => Core::Cuda(CudaRank::new(world, ranks, rank, options)?),
            None => Core::Cpu(CpuRank::new(world, rank, options)),
        })
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        of_each!(self, rank => &rank.world)
    }

    pub(crate) fn rank(&self) -> usize {
        of_each!(self, rank => rank.rank)
    }

    pub(crate) fn rank_count(&self) -> usize {
        self.world().board.rank_count()
    }

    /// Where the rank says what it holds.
    pub(crate) fn held(&self) -> Arc<Mutex<MemoryReport>> {
        of_each!(self, rank => rank.held())
    }

    /// The sequence number of the last call.
    pub(crate) fn sequence(&self) -> u64 {
        of_each!(self, rank => rank.sequence())
    }

    /// Prepares a call that this rank makes soon, so that its beginning waits for no kernel.
    pub(crate) fn prepare(&mut self, request: &Request, overrides: &Overrides) {
        match self {
            Core::Cuda(rank) => rank.prepare(request, overrides),
            // Nothing that a CPU rank does waits for another.
            Core::Cpu(_) => {}
        }
    }

    /// Comes to a call: from here on the peers can see it.
    ///
    /// The caller keeps the request's buffers valid and lets nobody else touch them until the call is over: until
    /// [`Core::poll`] says `Done`, or an error has been given to [`Core::give_up`].
    ///
    /// An error that is not the caller's mistake breaks the communicator.
    pub(crate) fn start(&mut self, request: &Request, overrides: &Overrides) -> Result<()> {
        let begun = of_each!(self, rank => rank.begin(request, overrides));
        begun.map_err(|error| match error.kind() {
            ErrorKind::Caller => error,
            _ => self.world().board.fail(error),
        })
    }

    /// Queues a call on a stream of the caller's.
    pub(crate) fn enqueue(&mut self, request: &Request, overrides: &Overrides, stream: &Stream) -> Result<Arc<Flight>> {
        let queued = match self {
            Core::Cuda(rank) => rank.enqueue(request, overrides, stream),
            Core::Cpu(_) => Err(Error::Argument {
                call: request.collective.name(),
                what: "stream",
                expected: "none: a CPU runs these ranks".to_owned(),
                came: format!("a stream of device {}", stream.device().ordinal()),
            }),
        };
        queued.map_err(|error| match error.kind() {
            ErrorKind::Caller => error,
            _ => self.world().board.fail(error),
        })
    }

    /// Advances the call as far as it goes without waiting.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<Polled> {
        of_each!(self, rank => rank.poll())
    }

    /// Looks around on behalf of a call that has been waiting for some time: is somebody doing something else, gone, or too
    /// late?
    #[cold]
    pub(crate) fn look(&mut self, now: Instant) -> Result<()> {
        of_each!(self, rank => rank.look(now))
    }

    /// Ends a call that has failed: when this returns, no peer touches the call's buffers any more.
    pub(crate) fn give_up(&mut self, error: Error) -> Error {
        let verdict = self.world().board.fail(error);
        of_each!(self, rank => rank.leave());
        verdict
    }

    /// Begins to time steps, `capacity` of each program; what was timed before is dropped.
    pub(crate) fn start_trace(&mut self, capacity: usize) {
        of_each!(self, rank => rank.start_trace(capacity));
    }

    /// Stops timing steps; what was timed.
    pub(crate) fn take_trace(&mut self) -> Vec<TimedStep> {
        of_each!(self, rank => rank.take_trace())
    }
}

/// When a step ran, counted from the start of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedStep {
    /// Which program of this rank.
    pub program: u32,
    /// Which step of the program.
    pub step: u32,
    /// Which iteration of the step's loop.
    pub iteration: u64,
    /// When its operands were ready.
    pub start: Duration,
    /// When its data was in place.
    pub end: Duration,
}

/// Memory that one rank of a communicator holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Connections that end at this rank.
    pub connections: usize,
    /// Bytes of their slots and counters.
    pub connection_bytes: u64,
    /// Plans laid out for the interpreter.
    pub plans: usize,
    /// Their bytes, scratch memory included.
    pub plan_bytes: u64,
    /// Bytes of step times.
    pub trace_bytes: u64,
}

impl MemoryReport {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        self.connection_bytes + self.plan_bytes + self.trace_bytes
    }
}

impl std::fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} bytes: {} in {} connections, {} in {} plans, {} of step times",
            self.total_bytes(),
            self.connection_bytes,
            self.connections,
            self.plan_bytes,
            self.plans,
            self.trace_bytes
        )
    }
}
