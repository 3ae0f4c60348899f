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
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tutti_kernels::interpreter::{Progress, advance};
use tutti_kernels::layout::{Call, Fingerprint, SlotHeader, StepTime, Trace, buffer, operand_kind, slot_format};
use tutti_kernels::table::Row;

use crate::board::{Board, Missing};
use crate::device::cpu::{BoundPlan, Ends, kernel_for};
use crate::dtype::{DType, Reduction, average_factors};
use crate::error::{Error, ErrorKind, RankCall, Result};
use crate::fingerprint::{AsCall, CallWords, Purpose, describe};
use crate::options::{Options, Overrides};
use crate::plan::select::{Capabilities, choose};
use crate::plan::{self, Algorithm, Collective, Geometry, Plan};
use crate::plan_cache::{PlanCache, PlanKey};
use crate::presence;
use crate::sync::lock;
use crate::transport::Transport;

#[cfg(test)]
mod tests;

/// Plans that a rank keeps laid out. A trainer uses a handful; a caller whose sizes never repeat would otherwise fill the
/// memory with plans.
const PLANS_KEPT: usize = 256;

/// Steps that a program may fire before the rank turns to its next program: most of the small ones follow one another.
const STEPS_PER_TURN: usize = 4;

/// What the ranks of one communicator share.
pub(crate) struct World {
    pub(crate) board: Board,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) geometry: Geometry,
    /// Processors that the ranks may use, all together. Asked for where the communicator is made, and not by the ranks: each
    /// of their threads may be bound to one processor of its own.
    pub(crate) processors: usize,
    plans: PlanCache,
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
    pub(crate) fn in_process(rank_count: usize, geometry: Geometry) -> Arc<World> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        World::new(rank_count, geometry, processors, Vec::new())
    }

    fn new(rank_count: usize, geometry: Geometry, processors: usize, ancestors: Vec<Weak<World>>) -> Arc<World> {
        presence::watch_for_panics();
        Arc::new(World {
            board: Board::new(rank_count),
            transport: Box::new(crate::transport::in_process::InProcess::new(geometry)),
            geometry,
            processors,
            plans: PlanCache::default(),
            children: Mutex::default(),
            ancestors,
            descendants: Mutex::default(),
        })
    }

    /// A new communicator that this one's aborts reach.
    fn split_off(self: &Arc<World>, rank_count: usize) -> Arc<World> {
        // Nobody can abort those that are gone.
        let older = self.ancestors.iter().filter(|ancestor| ancestor.strong_count() > 0).cloned();
        let ancestors = older.chain([Arc::downgrade(self)]).collect();
        let world = World::new(rank_count, self.geometry, self.processors, ancestors);
        // The oldest first: if it is aborted, and gone, before this one is on its list, then the next ones have heard of it.
        for ancestor in world.ancestors.iter().filter_map(Weak::upgrade) {
            let mut descendants = lock(&ancestor.descendants);
            descendants.worlds.retain(|other| other.strong_count() > 0);
            descendants.worlds.push(Arc::downgrade(&world));
            if let Some(error) = &descendants.aborted {
                world.note_abort(error);
            }
        }
        world
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
        let capabilities = Capabilities { windows: self.transport.guarantees().windows };
        choose(collective, self.board.rank_count(), bytes, element_bytes, capabilities)
    }

    /// The plan for a call.
    pub(crate) fn plan(&self, key: PlanKey) -> Result<Plan> {
        let PlanKey { collective, algorithm, count, element_bytes } = key;
        plan::build(collective, algorithm, self.board.rank_count(), count, element_bytes, &self.geometry)
            .map_err(|source| Error::Plan { call: collective.name(), source })
    }

    /// The world that call `sequence` split off for `color`: the first of its `rank_count` ranks makes it, the last takes it
    /// out.
    pub(crate) fn child(self: &Arc<World>, sequence: u64, color: u32, rank_count: usize) -> Arc<World> {
        let mut children = lock(&self.children);
        let child =
            children.entry((sequence, color)).or_insert_with(|| Child { world: self.split_off(rank_count), taken: 0 });
        child.taken += 1;
        let (world, taken) = (Arc::clone(&child.world), child.taken);
        if taken == rank_count {
            children.remove(&(sequence, color));
        }
        world
    }
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

/// What is known of a call before its buffers are.
#[derive(Clone, Copy)]
struct Prepared {
    asked: Asked,
    /// With no sequence number yet.
    fingerprint: Fingerprint,
    kernel: Row,
}

/// The call under way, or the last one.
struct Active {
    /// What does not change from call to call of the same plan is filled in when the plan is bound.
    call: Call,
    overrides: Overrides,
    /// When this rank first looked around in vain, and how far all ranks had come then.
    stalled: Option<(Instant, u64)>,
    /// The program and the operand of its step that were last seen waiting.
    blocked: Option<(usize, u32)>,
    waiting: bool,
    /// Whether this rank must not send yet: it has still to see that all ranks have come to the call before and made the same
    /// one. Otherwise a root could go on for as long as its slots last, and take others with it, while somebody who has yet
    /// to come does something else. Whoever gets through a call has heard, by whatever way, from a rank that has looked or
    /// from everybody; so a mismatch is an error of the call or of the next one, for every rank.
    unconfirmed: bool,
}

impl Active {
    /// No call.
    fn none() -> Active {
        Active {
            call: Call {
                fingerprint: Fingerprint::default(),
                buffers: [std::ptr::null_mut(); buffer::COUNT],
                windows: std::ptr::null(),
                multicast: std::ptr::null(),
                sends: std::ptr::null_mut(),
                receives: std::ptr::null_mut(),
                completed: std::ptr::null_mut(),
                abort: std::ptr::null(),
                touching: std::ptr::null_mut(),
                traces: std::ptr::null_mut(),
                scale: 0,
                finish: 0,
                slot_format: slot_format::SIMPLE,
                reserved: 0,
            },
            overrides: Overrides::default(),
            stalled: None,
            blocked: None,
            waiting: false,
            unconfirmed: false,
        }
    }
}

/// The answer of [`Core::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    Moved,
    Waiting,
    Done,
}

/// One rank of a communicator.
pub(crate) struct Core {
    pub(crate) world: Arc<World>,
    pub(crate) rank: usize,
    pub(crate) options: Options,
    sequence: u64,
    /// The last call's plan word, which depends on all calls so far: ranks whose earlier calls differed find out at the next
    /// slot that passes between them.
    history: u64,
    /// Whether this rank could finish its last call before everybody had come to it.
    unconfirmed: bool,
    fired: u64,
    ends: Ends,
    plans: HashMap<PlanKey, BoundPlan>,
    /// The plan of the call under way, or of the last one: the next call is usually the same.
    current: Option<(PlanKey, BoundPlan)>,
    /// The last call's preparation, as long as its plan is `current`.
    prepared: Option<Prepared>,
    active: Active,
    connection_bytes: u64,
    traces: Option<Traces>,
    /// What this rank holds, for those who ask while it is in a call.
    held: Arc<Mutex<MemoryReport>>,
}

// SAFETY: the ends point into the transport's memory, which `world` keeps alive, and are used by whichever single thread
// drives this rank.
unsafe impl Send for Core {}

impl Core {
    pub(crate) fn new(world: Arc<World>, rank: usize, options: Options) -> Core {
        Core {
            world,
            rank,
            options,
            sequence: 0,
            history: 0,
            unconfirmed: false,
            fired: 0,
            ends: Ends::default(),
            plans: HashMap::new(),
            current: None,
            prepared: None,
            active: Active::none(),
            connection_bytes: 0,
            traces: None,
            held: Arc::default(),
        }
    }

    /// Where the rank says what it holds.
    pub(crate) fn held(&self) -> Arc<Mutex<MemoryReport>> {
        Arc::clone(&self.held)
    }

    pub(crate) fn rank_count(&self) -> usize {
        self.world.board.rank_count()
    }

    /// The sequence number of the last call.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Makes `current` the plan of `key`, laid out.
    fn bind(&mut self, key: PlanKey) -> Result<()> {
        if matches!(&self.current, Some((current, _)) if *current == key) {
            return Ok(());
        }
        if let Some((old, plan)) = self.current.take() {
            if self.plans.len() >= PLANS_KEPT {
                self.plans.clear();
            }
            self.plans.insert(old, plan);
        }
        if let Some(plan) = self.plans.remove(&key) {
            self.current = Some((key, plan));
            return Ok(());
        }
        let shared = self.world.plans.take(key, self.rank_count(), || self.world.plan(key))?;
        let new_bytes = self.ends.missing(&shared, self.rank) as u64 * self.world.transport.connection_bytes();
        let scratch_bytes = shared.plan.ranks[self.rank].scratch_bytes;
        let what = match (new_bytes, scratch_bytes) {
            (_, 0) => "connections",
            (0, _) => "scratch memory",
            _ => "connections and scratch memory",
        };
        self.make_room(what, new_bytes.saturating_add(scratch_bytes))?;
        let bound = BoundPlan::new(&shared, self.rank, &mut self.ends, &*self.world.transport);
        let bound = bound.map_err(|no_memory| {
            let (rank, what) = (self.rank, "a connection");
            Error::OutOfMemory { rank, what, needed_bytes: no_memory.needed_bytes }
        })?;
        self.connection_bytes += new_bytes;
        self.make_room("a plan", bound.bytes())?;
        self.current = Some((key, bound));
        self.publish_memory();
        Ok(())
    }

    /// Sees to it that so many bytes more keep within the budget: plans that were kept for later calls can be made again, and
    /// room for step times that have not come is not needed yet.
    fn make_room(&mut self, what: &'static str, needed_bytes: u64) -> Result<()> {
        let Some(budget_bytes) = self.options.memory_budget_bytes else { return Ok(()) };
        let fits = |core: &Core| core.memory().total_bytes().saturating_add(needed_bytes) <= budget_bytes;
        if fits(self) {
            return Ok(());
        }
        self.plans.clear();
        if let Some(traces) = &mut self.traces {
            traces.trim();
        }
        let fits = fits(self);
        self.publish_memory();
        if fits {
            return Ok(());
        }
        let held_bytes = self.memory().total_bytes();
        Err(Error::MemoryBudget { rank: self.rank, what, needed_bytes, held_bytes, budget_bytes })
    }

    /// All of a call that does not depend on its buffers, with its plan bound. Most calls are the same as the last one.
    fn prepare(&mut self, request: &Request, overrides: &Overrides) -> Result<Prepared> {
        let asked = Asked {
            purpose: request.purpose,
            collective: request.collective,
            dtype: request.dtype,
            reduction: request.reduction,
            scale: request.scale,
            count: request.count,
            algorithm: overrides.algorithm,
        };
        if let Some(prepared) = self.prepared
            && prepared.asked == asked
        {
            return Ok(prepared);
        }
        let element_bytes = request.element_bytes();
        let algorithm =
            self.world.algorithm(request.collective, request.count, element_bytes, &self.options, overrides);
        let key = PlanKey { collective: request.collective, algorithm, count: request.count, element_bytes };
        self.prepared = None;
        self.bind(key)?;
        self.aim_call()?;
        let words = CallWords {
            purpose: request.purpose,
            collective: request.collective,
            algorithm,
            dtype: request.dtype,
            reduction: request.reduction,
            scale: request.scale,
            count: request.count,
            plan_digest: self.current.as_ref().map_or(0, |(_, bound)| bound.digest),
        };
        // A collective that reduces nothing only copies, whatever the reduction; without a type it copies bytes.
        let (dtype, reduction) = (request.dtype.unwrap_or(DType::U8), request.reduction.unwrap_or(Reduction::Sum));
        let no_kernel = || Error::Internal { what: format!("there is no kernel for {reduction} of {dtype}") };
        let kernel = kernel_for(dtype, reduction).ok_or_else(no_kernel)?;
        let call = &mut self.active.call;
        (call.scale, call.finish) = average_factors(dtype, self.world.board.rank_count());
        if reduction == Reduction::ScaledSum {
            call.scale = request.scale;
        }
        let prepared = Prepared { asked, fingerprint: words.pack(0), kernel };
        self.prepared = Some(prepared);
        Ok(prepared)
    }

    /// Makes the call that the interpreter sees one of the current plan.
    fn aim_call(&mut self) -> Result<()> {
        let Some((_, bound)) = &mut self.current else { return Err(no_plan()) };
        let board = &self.world.board;
        let call = &mut self.active.call;
        call.buffers[buffer::SCRATCH as usize] = bound.scratch.as_mut_ptr().cast();
        call.windows = board.windows();
        call.sends = self.ends.sends.as_mut_ptr();
        call.receives = self.ends.receives.as_mut_ptr();
        call.completed = bound.completed.as_mut_ptr();
        call.abort = board.abort_word();
        call.touching = board.touching_word(self.rank);
        Ok(())
    }

    /// Comes to a call: from here on the peers can see it.
    ///
    /// The caller keeps the request's buffers valid and lets nobody else touch them until the call is over: until
    /// [`Core::poll`] says `Done`, or an error has been given to [`Core::give_up`].
    ///
    /// An error that is not the caller's mistake breaks the communicator.
    pub(crate) fn start(&mut self, request: &Request, overrides: &Overrides) -> Result<()> {
        self.begin(request, overrides).map_err(|error| match error.kind() {
            ErrorKind::Caller => error,
            _ => self.world.board.fail(error),
        })
    }

    fn begin(&mut self, request: &Request, overrides: &Overrides) -> Result<()> {
        if let Some(error) = self.world.board.verdict() {
            return Err(error);
        }
        let prepared = self.prepare(request, overrides)?;
        let Some((_, bound)) = &mut self.current else { return Err(no_plan()) };
        bound.rewind();
        self.sequence += 1;
        presence::drive(&self.world, self.rank);
        let fingerprint = prepared.fingerprint.as_call(self.sequence, self.history);
        self.history = fingerprint.plan;
        let board = &self.world.board;
        board.post(self.rank, &fingerprint);
        let active = &mut self.active;
        active.call.fingerprint = fingerprint;
        active.call.buffers[buffer::INPUT as usize] = request.input.cast_mut();
        active.call.buffers[buffer::OUTPUT as usize] = request.output;
        if bound.uses_windows {
            // SAFETY: the rank has just come to the call, and no step of it has run.
            unsafe { board.expose(self.rank, active.call.buffers) };
        }
        active.overrides = *overrides;
        active.stalled = None;
        active.blocked = None;
        active.waiting = false;
        // What every rank needs every other for has been agreed on when it is done.
        let rooted = request.collective.root().is_some();
        active.unconfirmed = std::mem::replace(&mut self.unconfirmed, rooted) && rooted && bound.sends_first;
        if self.traces.is_some() {
            self.reserve_traces();
        }
        Ok(())
    }

    /// Finds room for the step times of the call that has just begun, as far as the budget goes.
    #[cold]
    fn reserve_traces(&mut self) {
        let budget_bytes = self.options.memory_budget_bytes.unwrap_or(u64::MAX);
        let room_bytes = budget_bytes.saturating_sub(lock(&self.held).total_bytes());
        let (Some(traces), Some((_, bound))) = (&mut self.traces, &self.current) else { return };
        let bytes_before = traces.bytes();
        self.active.call.traces = traces.reserve(bound.step_counts(), room_bytes);
        if traces.bytes() != bytes_before {
            self.publish_memory();
        }
    }

    /// Advances each program of the call by a few steps at most.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<Polled> {
        let (Some((_, bound)), Some(prepared)) = (&mut self.current, &self.prepared) else { return Err(no_plan()) };
        let active = &mut self.active;
        if active.unconfirmed {
            active.unconfirmed = !self.world.board.agreed_before(self.rank, self.sequence)?;
            if active.unconfirmed {
                return Ok(Polled::Waiting);
            }
        }
        let mut moved = false;
        let mut done = true;
        for index in 0..bound.programs.len() {
            for _ in 0..STEPS_PER_TURN {
                // SAFETY: the plan is a right one for this rank (the planner's plans are proved so by the verifier), laid out
                // by `BoundPlan::new` over buffers that `start`'s caller vouches for; its states are advanced nowhere else.
                let progress =
                    unsafe { advance(prepared.kernel, &bound.programs[index], &mut bound.states[index], &active.call) };
                match progress {
                    Progress::Fired => {
                        self.fired += 1;
                        moved = true;
                    }
                    Progress::Waiting { operand } => {
                        active.blocked = Some((index, operand));
                        done = false;
                        break;
                    }
                    Progress::Done => break,
                    Progress::Aborted => return Err(self.broken()),
                    Progress::Mismatch { operand } => return Err(self.mismatch(index, operand)),
                }
            }
            done &= bound.is_done(index);
        }
        if done {
            if active.waiting {
                self.world.board.note_waiting(self.rank, None);
            }
            // Who has compared no slot has compared nothing: a root that only sends looks at the board once.
            if !bound.receives
                && let Some(error) = self.world.board.mismatch_seen(self.rank, &active.call.fingerprint)
            {
                return Err(error);
            }
            self.world.board.finish(self.rank, self.sequence);
            return Ok(Polled::Done);
        }
        if moved {
            if active.waiting {
                active.waiting = false;
                self.world.board.note_waiting(self.rank, None);
            }
            active.stalled = None;
            self.world.board.note_fired(self.rank, self.fired);
            return Ok(Polled::Moved);
        }
        Ok(Polled::Waiting)
    }

    /// Looks around on behalf of a call that has been waiting for some time: is somebody doing something else, gone, or too
    /// late?
    #[cold]
    pub(crate) fn look(&mut self, now: Instant) -> Result<()> {
        let peer = self.waits_for();
        let active = &mut self.active;
        let fingerprint = &active.call.fingerprint;
        let board = &self.world.board;
        if let Some(error) = board.verdict() {
            return Err(error);
        }
        if let Some(error) = board.disagreement(self.rank, fingerprint) {
            return Err(board.fail(error));
        }
        active.waiting = true;
        board.note_waiting(self.rank, peer);
        let progress = board.progress();
        let since = match active.stalled {
            Some((since, before)) if before == progress => since,
            _ => {
                active.stalled = Some((now, progress));
                now
            }
        };
        let sequence = fingerprint.sequence - u64::from(active.unconfirmed);
        let progress_timeout = active.overrides.progress_timeout.unwrap_or(self.options.progress_timeout);
        let arrival_timeout = active.overrides.arrival_timeout.unwrap_or(self.options.arrival_timeout);
        let limit = match board.missing(sequence) {
            // The last one has just come, and the next poll will see it.
            Missing::Nobody if active.unconfirmed => return Ok(()),
            Missing::Nobody => progress_timeout,
            Missing::Live => arrival_timeout,
            Missing::Panicked => progress_timeout.min(arrival_timeout),
        };
        let waited = now.saturating_duration_since(since);
        if waited < limit {
            return Ok(());
        }
        let late = board.late(self.rank, sequence);
        let call = RankCall { rank: self.rank, call: describe(fingerprint) };
        let error = if late.is_empty() {
            Error::Internal { what: format!("all ranks wait for each other in call {sequence}: {call}") }
        } else {
            Error::Late { sequence: fingerprint.sequence, call, waited, late }
        };
        Err(board.fail(error))
    }

    /// Ends a call that has failed: when this returns, no peer touches the call's buffers any more.
    pub(crate) fn give_up(&mut self, error: Error) -> Error {
        let verdict = self.world.board.fail(error);
        self.world.board.expel(self.rank);
        verdict
    }

    /// The peer that this rank waits for.
    fn waits_for(&self) -> Option<usize> {
        let (_, bound) = self.current.as_ref()?;
        let (program, index) = self.active.blocked?;
        let operand = bound.operand(program, index).filter(|operand| operand.kind == operand_kind::SLOT)?;
        let end = operand.index as usize;
        let peer =
            if bound.is_source(program, index) { self.ends.receives[end].peer } else { self.ends.sends[end].peer };
        Some(peer as usize)
    }

    /// The error of a call that found the abort word raised.
    #[cold]
    fn broken(&self) -> Error {
        let unknown = || Error::Internal { what: "the abort word is raised, but nobody said why".to_owned() };
        self.world.board.verdict().unwrap_or_else(unknown)
    }

    /// The error of a call that found a slot of another one.
    #[cold]
    fn mismatch(&self, program: usize, operand: u32) -> Error {
        let found = self.current.as_ref().and_then(|(_, bound)| bound.operand(program, operand));
        let Some(end) = found.and_then(|operand| self.ends.receives.get(operand.index as usize)) else {
            return Error::Internal { what: "a mismatch on an unknown connection".to_owned() };
        };
        let index = end.received & u64::from(end.slot_count - 1);
        // SAFETY: the interpreter has acquired this slot and not released it, so its header is there to be read.
        let theirs = unsafe { *end.slots.add((index * end.slot_stride_bytes) as usize).cast::<SlotHeader>() };
        self.world.board.mismatch(self.rank, &self.active.call.fingerprint, end.peer as usize, &theirs.fingerprint)
    }

    /// What this rank holds.
    fn memory(&self) -> MemoryReport {
        let plans = self.plans.values().chain(self.current.as_ref().map(|(_, plan)| plan));
        MemoryReport {
            connections: self.ends.receives.len(),
            connection_bytes: self.connection_bytes,
            plans: self.plans.len() + usize::from(self.current.is_some()),
            plan_bytes: plans.map(BoundPlan::bytes).sum(),
            trace_bytes: self.traces.as_ref().map_or(0, Traces::bytes),
        }
    }

    /// Lets those who do not wait for the rank's turn know what it holds.
    fn publish_memory(&self) {
        *lock(&self.held) = self.memory();
    }

    /// Begins to time steps, `capacity` of each program; what was timed before is dropped.
    pub(crate) fn start_trace(&mut self, capacity: usize) {
        self.traces = Some(Traces {
            capacity,
            entries: Vec::new(),
            headers: Vec::new(),
            begun: (Instant::now(), tutti_kernels::target::timestamp()),
        });
        self.publish_memory();
    }

    /// Stops timing steps; what was timed.
    pub(crate) fn take_trace(&mut self) -> Vec<TimedStep> {
        self.active.call.traces = std::ptr::null_mut();
        let traces = self.traces.take();
        self.publish_memory();
        traces.map_or_else(Vec::new, Traces::finish)
    }
}

/// A call without a plan, which nobody makes.
#[cold]
fn no_plan() -> Error {
    Error::Internal { what: "a call without a plan".to_owned() }
}

/// Where step times go.
struct Traces {
    capacity: usize,
    entries: Vec<Vec<StepTime>>,
    headers: Vec<Trace>,
    /// The same moment by the system's clock and by the kernels'.
    begun: (Instant, u64),
}

// SAFETY: the addresses in `headers` point into `entries`, which moves with it.
unsafe impl Send for Traces {}

impl Traces {
    /// Room for the steps of one more call, given how many each program has, within `room_bytes` more than there are; less
    /// where the memory does not reach. Steps beyond it are counted and not kept.
    fn reserve(&mut self, step_counts: impl Iterator<Item = u64>, mut room_bytes: u64) -> *mut Trace {
        const ENTRY_BYTES: u64 = size_of::<StepTime>() as u64;
        for (program, steps) in step_counts.enumerate() {
            if self.headers.len() == program {
                self.entries.push(Vec::new());
                self.headers.push(Trace { entries: std::ptr::null_mut(), capacity: 0, count: 0 });
            }
            let (entries, header) = (&mut self.entries[program], &mut self.headers[program]);
            let there = entries.len() as u64;
            let wanted = header.count.saturating_add(steps);
            if wanted > there {
                // Twice as many as before, so that a long row of calls does not copy them each time.
                let most = (self.capacity as u64).min(there.saturating_add(room_bytes / ENTRY_BYTES));
                let more = wanted.max(2 * there).min(most).saturating_sub(there);
                if more > 0 && entries.try_reserve_exact(more as usize).is_ok() {
                    entries.resize((there + more) as usize, StepTime::default());
                    room_bytes -= more * ENTRY_BYTES;
                }
            }
            header.entries = entries.as_mut_ptr();
            header.capacity = entries.len() as u64;
        }
        self.headers.as_mut_ptr()
    }

    /// Gives back the room in which there are no times.
    fn trim(&mut self) {
        for (entries, header) in self.entries.iter_mut().zip(&mut self.headers) {
            entries.truncate(header.count.min(header.capacity) as usize);
            entries.shrink_to_fit();
            header.entries = entries.as_mut_ptr();
            header.capacity = entries.len() as u64;
        }
    }

    fn bytes(&self) -> u64 {
        self.entries.iter().map(|entries| size_of_val(&entries[..]) as u64).sum()
    }

    /// The times, by the system's clock: the kernels' is compared with it at both ends.
    fn finish(self) -> Vec<TimedStep> {
        let (begun, begun_ticks) = self.begun;
        let elapsed = begun.elapsed();
        let elapsed_ticks = tutti_kernels::target::timestamp().saturating_sub(begun_ticks).max(1);
        let since = |ticks: u64| {
            elapsed.mul_f64((ticks.saturating_sub(begun_ticks) as f64 / elapsed_ticks as f64).clamp(0.0, 1.0))
        };
        let mut steps: Vec<_> = self
            .headers
            .iter()
            .zip(&self.entries)
            .flat_map(|(header, entries)| &entries[..header.count.min(header.capacity) as usize])
            .map(|time| TimedStep {
                program: time.program,
                step: time.step,
                iteration: time.iteration,
                start: since(time.start),
                end: since(time.end),
            })
            .collect();
        steps.sort_by_key(|step| step.start);
        steps
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
