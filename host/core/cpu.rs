//! One rank that a CPU runs: the caller's thread runs the interpreter.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tutti_kernels::interpreter::{Progress, advance};
use tutti_kernels::layout::{Call, Fingerprint, SlotHeader, buffer, operand_kind, slot_format};
use tutti_kernels::table::Row;

use super::traces::{Clock, Traces};
use super::watch::Watch;
use super::{Asked, Budgeted, MemoryReport, Polled, Request, TimedStep, World};
use crate::buffer::Memory;
use crate::device::cpu::{BoundPlan, kernel_for};
use crate::device::program::Ends;
use crate::dtype::{Reduction, average_factors};
use crate::error::{Error, Result};
use crate::options::{Options, Overrides};
use crate::plan_cache::PlanKey;
use crate::presence;
use crate::sync::lock;

#[cfg(test)]
mod tests;

/// Plans that a rank keeps laid out. A trainer uses a handful; a caller whose sizes never repeat would otherwise fill the
/// memory with plans.
const PLANS_KEPT: usize = 256;

/// Steps that a program may fire before the rank turns to its next program: most of the small ones follow one another.
const STEPS_PER_TURN: usize = 4;

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
    watch: Watch,
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
            watch: Watch::new(&Options::default(), &Overrides::default()),
            blocked: None,
            waiting: false,
            unconfirmed: false,
        }
    }
}

/// One rank of a communicator.
pub(crate) struct CpuRank {
    pub(crate) world: Arc<World>,
    pub(crate) rank: usize,
    pub(crate) options: Options,
    /// The last call. Its plan's word depends on all calls so far: ranks whose earlier calls differed find out at the next slot
    /// that passes between them.
    last: Fingerprint,
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
unsafe impl Send for CpuRank {}

impl CpuRank {
    pub(crate) fn new(world: Arc<World>, rank: usize, options: Options) -> CpuRank {
        CpuRank {
            world,
            rank,
            options,
            last: Fingerprint::default(),
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

    /// The sequence number of the last call.
    pub(crate) fn sequence(&self) -> u64 {
        self.last.sequence
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
        let shared = self.world.plans.take(key, self.world.board.rank_count(), || self.world.plan(key))?;
        let new_bytes = self.ends.missing(&shared, self.rank) as u64 * self.world.transport.connection_bytes();
        let scratch_bytes = shared.plan.ranks[self.rank].scratch_bytes;
        self.make_room_for_plan(new_bytes, scratch_bytes)?;
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

    /// All of a call that does not depend on its buffers, with its plan bound. Most calls are the same as the last one.
    fn prepare(&mut self, request: &Request, overrides: &Overrides) -> Result<Prepared> {
        let asked = request.asked(overrides);
        if let Some(prepared) = self.prepared
            && prepared.asked == asked
        {
            return Ok(prepared);
        }
        let element_bytes = request.element_bytes();
        let algorithm = {
            let able = self.world.transport.guarantees().capabilities();
            self.world.algorithm(request.collective, request.count, element_bytes, able, &self.options, overrides)
        };
        let key = PlanKey { collective: request.collective, algorithm, count: request.count, element_bytes };
        self.prepared = None;
        self.bind(key)?;
        self.aim_call()?;
        let digest = self.current.as_ref().map_or(0, |(_, bound)| bound.tables.digest);
        let (dtype, reduction) = request.kernel();
        let no_kernel = || Error::Internal { what: format!("there is no kernel for {reduction} of {dtype}") };
        let kernel = kernel_for(dtype, reduction).ok_or_else(no_kernel)?;
        let call = &mut self.active.call;
        (call.scale, call.finish) = average_factors(dtype, self.world.board.rank_count());
        if reduction == Reduction::ScaledSum {
            call.scale = request.scale;
        }
        let prepared = Prepared { asked, fingerprint: request.fingerprint(algorithm, digest), kernel };
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

    /// See [`super::Core::start`].
    pub(crate) fn begin(&mut self, request: &Request, overrides: &Overrides) -> Result<()> {
        if let Some(error) = self.world.board.verdict() {
            return Err(error);
        }
        check_memory(request)?;
        let prepared = self.prepare(request, overrides)?;
        let Some((_, bound)) = &mut self.current else { return Err(no_plan()) };
        bound.rewind();
        presence::drive(&self.world, self.rank);
        let fingerprint = prepared.fingerprint.after(&self.last);
        self.last = fingerprint;
        let board = &self.world.board;
        board.post(self.rank, &fingerprint);
        let active = &mut self.active;
        active.call.fingerprint = fingerprint;
        active.call.buffers[buffer::INPUT as usize] = request.input.cast_mut();
        active.call.buffers[buffer::OUTPUT as usize] = request.output;
        if bound.tables.uses_windows {
            // SAFETY: the rank has just come to the call, and no step of it has run.
            unsafe { board.expose(self.rank, active.call.buffers) };
        }
        active.watch = Watch::new(&self.options, overrides);
        active.blocked = None;
        active.waiting = false;
        // What every rank needs every other for has been agreed on when it is done.
        let rooted = request.collective.root().is_some();
        active.unconfirmed = std::mem::replace(&mut self.unconfirmed, rooted) && rooted && bound.tables.sends_first;
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
            active.unconfirmed = !self.world.board.agreed_before(self.rank, self.last.sequence)?;
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
            if !bound.tables.receives
                && let Some(error) = self.world.board.mismatch_seen(self.rank, &active.call.fingerprint)
            {
                return Err(error);
            }
            self.world.board.finish(self.rank, self.last.sequence);
            return Ok(Polled::Done);
        }
        if moved {
            if active.waiting {
                active.waiting = false;
                self.world.board.note_waiting(self.rank, None);
            }
            active.watch.reset();
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
        active.waiting = true;
        let board = &self.world.board;
        active.watch.look(board, self.rank, &active.call.fingerprint, active.unconfirmed, peer, now)
    }

    /// Ends a call of a communicator that is broken: when this returns, no peer touches the call's buffers any more.
    pub(crate) fn leave(&mut self) {
        self.world.board.expel(self.rank);
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

    /// Begins to time steps, `capacity` of each program; what was timed before is dropped.
    pub(crate) fn start_trace(&mut self, capacity: usize) {
        self.traces = Some(Traces::new(capacity, Clock::Processor));
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

impl Budgeted for CpuRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn budget_bytes(&self) -> Option<u64> {
        self.options.memory_budget_bytes
    }

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

    fn give_room(&mut self) {
        self.plans.clear();
        if let Some(traces) = &mut self.traces {
            traces.trim();
        }
    }

    fn publish_memory(&self) {
        *lock(&self.held) = self.memory();
    }
}

/// That the buffers are the host's.
fn check_memory(request: &Request) -> Result<()> {
    for (what, memory) in [("input", request.memory[0]), ("output", request.memory[1])] {
        if memory != Memory::Host {
            return Err(Error::Argument {
                call: request.collective.name(),
                what,
                expected: "memory of the host, since a CPU runs these ranks".to_owned(),
                came: format!("{memory:?}"),
            });
        }
    }
    Ok(())
}

/// A call without a plan, which nobody makes.
#[cold]
fn no_plan() -> Error {
    Error::Internal { what: "a call without a plan".to_owned() }
}
