//! Executes all programs of a plan on symbols instead of numbers.
//!
//! Programs run one after the other, each until it has to wait; the order is of no account (see [`verify`](super)). A
//! step takes the values of its sources, combines them and leaves the result in its destinations, as the interpreter
//! does with numbers. Beside the values travels knowledge: each program knows, of every other, how far that one was
//! known to have come (a vector clock), and each slot carries what its producer knew. Two accesses of which neither
//! knows of the other are in no order. Where nobody could ask, because no two programs have bytes in common, clocks are left out: they
//! are as long as there are programs, and plans of many ranks would spend most of their time on them.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use super::expression::{ExpressionId, Expressions, Term};
use super::memory::{Bytes, Moment, Now, Run, Trouble, Value, push_run};
use super::shape::{ProgramShape, Shape};
use super::violation::{Limit, Memory, Place, Placement, RankList, Standing, ViolationKind, Violations, WaitsFor};
use super::{Limits, Report};
use crate::plan::{Buffer, Collective, ConnectionId, Operand, Plan, Program, Rank, Step, StepId};

/// What all executions of one plan share.
pub(super) struct Context<'a> {
    pub(super) plan: &'a Plan,
    pub(super) shape: &'a Shape,
    pub(super) limits: Limits,
    pub(super) expressions: Expressions,
    /// Units spent so far.
    pub(super) work: u64,
}

/// How an execution ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Every program ran to its end, and the result was looked at.
    Finished,
    /// It stopped early; what else the plan does is not known.
    Stopped,
}

/// What a program knows of all programs: of each, how many of its steps happened before. Empty where nobody asks.
type Knowledge = Rc<Vec<u32>>;

struct Running<'a> {
    loop_index: usize,
    iteration: u64,
    /// Within the loop.
    step_index: usize,
    /// Through the program.
    step_id: u32,
    current: Option<(&'a Step, u64)>,
    fired: u32,
    known: Knowledge,
    /// How many of the current step's operands have been seen ready. What is ready stays so until the step fires:
    /// only this program empties its sources and fills its destinations.
    ready: usize,
    waits: Waits,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    No,
    Full(ConnectionId),
    Room(ConnectionId),
    After { target: usize, tick: u64 },
}

/// A full slot.
struct Message {
    length: u64,
    runs: Vec<Run>,
    sent: Moment,
    known: Knowledge,
}

/// A piece of memory under its physical address: whatever shares bytes shares the index and the positions.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Physical {
    /// Into `memories`.
    memory: usize,
    start: u64,
    end: u64,
}

/// The last touch of a rank's windows by a program.
struct Touch {
    tick: u32,
    memory: Memory,
    bytes: Range<u64>,
}

pub(super) struct Execution<'a, 'b> {
    plan: &'a Plan,
    shape: &'a Shape,
    context: &'b mut Context<'a>,
    violations: &'b mut Violations,
    placement: Placement,
    programs: Vec<Running<'a>>,
    runnable: VecDeque<usize>,
    /// Of each connection, the full slots.
    queues: Vec<VecDeque<Message>>,
    /// Of each rank, input, output and scratch; in place, one of the first two stays empty.
    memories: Vec<Bytes>,
    /// What programs knew when they completed steps that others wait on, by program and step and then by iteration.
    completed: HashMap<(usize, u32), Vec<(Moment, Knowledge)>>,
    /// Of each program, who waits for which of its ticks.
    waiters: Vec<Vec<(u64, usize)>>,
    /// By owner and toucher.
    touches: HashMap<(Rank, usize), Touch>,
    /// Intervals and reads in all memories, and intervals in full slots.
    stored: u64,
    report: Report,
    // Room that is used again for each step.
    sources: Vec<Vec<Run>>,
    result: Vec<Run>,
    trouble: Vec<Trouble>,
    doomed: Vec<u64>,
    accesses: Vec<Option<Physical>>,
    terms: Vec<Term>,
    cursors: Vec<usize>,
}

const BUFFERS: usize = 3;

/// Clock entries are compared many at a time, so several of them are one unit of work.
const CLOCK_ENTRIES_PER_WORK: u64 = 8;

impl<'a, 'b> Execution<'a, 'b> {
    pub(super) fn new(context: &'b mut Context<'a>, violations: &'b mut Violations, placement: Placement) -> Self {
        let (plan, shape) = (context.plan, context.shape);
        violations.placement = placement;
        let program_count = shape.programs.len();
        let nothing: Knowledge = Rc::new(vec![0; program_count]);
        let start = |program: &ProgramShape| {
            let current = plan.ranks[program.rank.index()].programs[program.id.index()].loops.first();
            Running {
                loop_index: 0,
                iteration: 0,
                step_index: 0,
                step_id: 0,
                current: current.map(|looped| (&looped.steps[0], u64::from(looped.chunk_bytes))),
                fired: 0,
                known: nothing.clone(),
                ready: 0,
                waits: Waits::No,
            }
        };
        let mut execution = Execution {
            plan,
            shape,
            context,
            violations,
            placement,
            programs: shape.programs.iter().map(start).collect(),
            runnable: (0..program_count).collect(),
            queues: plan.connections.iter().map(|_| VecDeque::new()).collect(),
            memories: vec![Bytes::default(); plan.ranks.len() * BUFFERS],
            completed: HashMap::new(),
            waiters: vec![Vec::new(); program_count],
            touches: HashMap::new(),
            stored: 0,
            report: Report::new(plan.ranks.len()),
            sources: Vec::new(),
            result: Vec::new(),
            trouble: Vec::new(),
            doomed: Vec::new(),
            accesses: Vec::new(),
            terms: Vec::new(),
            cursors: Vec::new(),
        };
        if !execution.may_meet() {
            let nothing: Knowledge = Rc::new(Vec::new());
            execution.programs.iter_mut().for_each(|running| running.known = nothing.clone());
        }
        for rank in (0..plan.ranks.len()).map(|index| Rank(index as u32)) {
            let bytes = shape.sizes[rank.index()][Buffer::Input as usize];
            let physical = execution.locate(rank, Buffer::Input, 0, bytes);
            let input = execution.context.expressions.input(rank);
            let value = Value { expression: input, shift: 0 }.placed_at(physical.start);
            let bytes = &mut execution.memories[physical.memory];
            bytes.fill(physical.start, physical.end, value);
            execution.stored += bytes.stored;
        }
        execution
    }

    /// Whether two programs may touch the same bytes, one of them writing, or something else depends on what they know of each other.
    fn may_meet(&mut self) -> bool {
        if self.plan.collective == Collective::Barrier || self.plan.touches_windows() {
            return true;
        }
        // Accesses that begin before others end; where there are many of them, it is not worth while to look.
        const OPEN_MAX: usize = 32;
        let mut accesses: Vec<(Physical, usize, bool)> = Vec::new();
        for (rank, own) in self.plan.ranks.iter().enumerate().filter(|(_, own)| own.programs.len() > 1) {
            accesses.clear();
            for (program, step) in own.programs.iter().enumerate().flat_map(|(program, Program { loops })| {
                loops.iter().flat_map(|looped| &looped.steps).map(move |step| (program, step))
            }) {
                let sources = step.sources.iter().map(|source| (&source.operand, false));
                for (operand, writes) in sources.chain(step.destinations.iter().map(|operand| (operand, true))) {
                    if let Operand::Local { buffer, offset } = *operand
                        && step.bytes > 0
                    {
                        accesses.push((self.locate(Rank(rank as u32), buffer, offset, step.bytes), program, writes));
                    }
                }
            }
            self.context.work += accesses.len() as u64;
            accesses.sort_unstable_by_key(|(Physical { memory, start, .. }, ..)| (*memory, *start));
            let mut open: Vec<&(Physical, usize, bool)> = Vec::new();
            for access in &accesses {
                let (physical, program, writes) = access;
                open.retain(|(other, ..)| other.overlaps(physical));
                if open.len() >= OPEN_MAX
                    || open.iter().any(|(_, other, wrote)| other != program && (*writes || *wrote))
                {
                    return true;
                }
                open.push(access);
            }
        }
        false
    }

    /// Runs the programs and looks at what they leave.
    pub(super) fn run(mut self) -> (Outcome, Report) {
        while let Some(program) = self.runnable.pop_front() {
            while self.is_ready(program) {
                self.fire(program);
                self.context.work += std::mem::take(&mut self.context.expressions.work);
                if self.is_exhausted() {
                    return (Outcome::Stopped, self.report);
                }
            }
        }
        if self.report_stuck() {
            return (Outcome::Stopped, self.report);
        }
        self.report_residue();
        self.report_late_touches();
        self.check_outputs();
        self.context.work += std::mem::take(&mut self.context.expressions.work);
        let outcome = if self.is_exhausted() { Outcome::Stopped } else { Outcome::Finished };
        (outcome, self.report)
    }

    /// Whether the work is spent. Whatever could take long asks, and leaves its task undone: the execution is about
    /// to stop.
    fn is_spent(&self) -> bool {
        self.context.work > self.context.limits.work
    }

    fn is_exhausted(&mut self) -> bool {
        let stored = self.stored + self.context.expressions.stored;
        let Limits { work, stored: keep, .. } = self.context.limits;
        let used = [(Limit::Work, self.context.work, work), (Limit::Stored, stored, keep)];
        let exceeded = used.into_iter().find(|(_, found, allowed)| found > allowed);
        if let Some((limit, found, allowed)) = exceeded {
            self.violations.push(Place::default(), None, ViolationKind::TooLarge { limit, found, allowed });
        }
        exceeded.is_some()
    }

    /// Whether the program's current step can fire. If not, it is noted down what for, and the program will be looked
    /// at again when that has come.
    fn is_ready(&mut self, program: usize) -> bool {
        let running = &mut self.programs[program];
        let Some((step, _)) = running.current else { return false };
        running.waits = Waits::No;
        let (source_count, destination_count) = (step.sources.len(), step.destinations.len());
        while running.ready < source_count {
            if let Operand::Slot(connection) = step.sources[running.ready].operand
                && self.queues[connection.index()].is_empty()
            {
                running.waits = Waits::Full(connection);
                return false;
            }
            running.ready += 1;
        }
        while running.ready < source_count + destination_count {
            if let Operand::Slot(connection) = step.destinations[running.ready - source_count]
                && self.queues[connection.index()].len() as u64
                    >= u64::from(self.plan.connections[connection.index()].slots)
            {
                running.waits = Waits::Room(connection);
                return false;
            }
            running.ready += 1;
        }
        let Some(after) = step.after else { return true };
        let iteration = running.iteration;
        let rank = self.shape.programs[program].rank;
        let target = self.shape.programs_of(rank).start + after.program.index();
        let tick = self.shape.programs[target].tick_of(after.step, iteration);
        if u64::from(self.programs[target].fired) >= tick {
            return true;
        }
        self.programs[program].waits = Waits::After { target, tick };
        self.waiters[target].push((tick, program));
        false
    }

    /// Runs the program's current step.
    fn fire(&mut self, program: usize) {
        let Some((step, chunk_bytes)) = self.programs[program].current else { return };
        let iteration = self.programs[program].iteration;
        let begin = iteration.saturating_mul(chunk_bytes).min(step.bytes);
        let firing = Firing { step, place: self.place(program), begin, length: chunk_bytes.min(step.bytes - begin) };
        self.context.work += 1 + (step.sources.len() + step.destinations.len()) as u64;

        let mut sources = std::mem::take(&mut self.sources);
        if sources.len() < step.sources.len() {
            sources.resize(step.sources.len(), Vec::new());
        }
        self.take_slots(program, &firing, &mut sources);
        if let Some(after) = step.after {
            let target = self.shape.programs_of(self.shape.programs[program].rank).start + after.program.index();
            let completed = self.completed.get(&(target, after.step.0)).and_then(|all| all.get(iteration as usize));
            if let Some((moment, known)) = completed.cloned() {
                self.learn(program, moment, &known);
            }
        }
        self.programs[program].fired += 1;
        let moment = Moment { program: program as u32, tick: self.programs[program].fired };
        // While there is a second handle, `learn` copies; so it lives only as long as the step.
        let known = self.programs[program].known.clone();
        self.result.clear();
        if firing.length > 0 {
            let now = Now { moment, known: &known };
            self.find_accesses(program, &firing, now);
            self.read_sources(&firing, now, &mut sources);
            self.reduce(&firing, &sources);
            self.write_destinations(&firing, now);
        }
        self.sources = sources;
        self.publish(&firing, moment, &known);
        self.complete(program, moment, &known);
        self.count_bytes(&firing);
        self.move_on(program);
    }

    /// Takes the current slot of each source slot, and learns what its producer knew.
    fn take_slots(&mut self, program: usize, firing: &Firing<'_>, sources: &mut [Vec<Run>]) {
        for (source, runs) in firing.step.sources.iter().zip(sources) {
            let Operand::Slot(connection) = source.operand else { continue };
            // `is_ready` has seen that there is one.
            let Some(message) = self.queues[connection.index()].pop_front() else { continue };
            self.learn(program, message.sent, &message.known);
            self.stored -= message.runs.len() as u64;
            *runs = message.runs;
            if message.length != firing.length {
                let (expected, came) = (firing.length, message.length);
                let memory = Some((Memory::Slot(connection), None));
                self.violations.push(firing.place, memory, ViolationKind::PayloadLength { expected, came });
                *runs = vec![Run { start: 0, end: firing.length, value: Value::UNKNOWN }];
            }
            self.wake(self.shape.ends[connection.index()][0], Waits::Room(connection));
        }
    }

    /// From now on the program comes after `moment`, and after all that was known then.
    fn learn(&mut self, program: usize, moment: Moment, known: &Knowledge) {
        let own = &mut self.programs[program].known;
        if own.get(moment.program as usize).is_none_or(|known| *known >= moment.tick) {
            // Whoever knows a moment knows what was known then; or nobody asks.
            return;
        }
        self.context.work += 1 + known.len() as u64 / CLOCK_ENTRIES_PER_WORK;
        let own = Rc::make_mut(own);
        for (own, known) in own.iter_mut().zip(known.iter()) {
            *own = (*own).max(*known);
        }
        own[moment.program as usize] = moment.tick;
    }

    /// Finds where the step's operands lie, and what is wrong with that.
    fn find_accesses(&mut self, program: usize, firing: &Firing<'_>, now: Now<'_>) {
        let step = firing.step;
        let operands = || step.sources.iter().map(|source| &source.operand).chain(&step.destinations);
        let mut accesses = std::mem::take(&mut self.accesses);
        accesses.clear();
        accesses.extend(operands().map(|operand| self.physical(firing, operand)));
        let (sources, destinations) = accesses.split_at_mut(step.sources.len());

        // The interpreter skips a copy onto itself: nothing is touched.
        if let ([source], [access]) = (&step.sources[..], &mut *sources)
            && let (Operand::Local { .. }, false, false) = (source.operand, source.scale, step.finish)
        {
            for (destination, operand) in destinations.iter_mut().zip(&step.destinations) {
                if matches!(operand, Operand::Local { .. }) && *destination == *access {
                    *destination = None;
                }
            }
            let is_slot = |operand: &Operand| matches!(operand, Operand::Slot(_));
            if destinations.iter().all(Option::is_none) && !step.destinations.iter().any(is_slot) {
                *access = None;
            }
        }

        for (index, destination) in destinations.iter().enumerate() {
            let Some(written) = destination else { continue };
            if self.is_spent() {
                break;
            }
            let (earlier, _) = destinations.split_at(index);
            let shifted = |read: &&Physical| read.overlaps(written) && *read != written;
            let source = sources.iter().flatten().find(shifted);
            let other = earlier.iter().flatten().find(|other| other.overlaps(written));
            self.context.work += (sources.len() + index) as u64 / 2;
            if source.or(other).is_some() {
                let memory = firing.memory(&step.destinations[index]);
                self.violations.push(firing.place, memory, ViolationKind::Overlap);
            }
        }

        for operand in operands() {
            let Operand::Window { rank: owner, .. } = *operand else { continue };
            let Some((memory, Some(bytes))) = firing.memory(operand) else { continue };
            if self.is_spent() {
                break;
            }
            let mut owners = self.shape.programs_of(owner);
            self.context.work += owners.len() as u64 / CLOCK_ENTRIES_PER_WORK;
            if !owners.any(|other| now.known[other] > 0) {
                let kind = ViolationKind::WindowBeforeStart { owner };
                self.violations.push(firing.place, Some((memory, Some(bytes.clone()))), kind);
            }
            self.touches.insert((owner, program), Touch { tick: now.moment.tick, memory, bytes });
        }
        self.accesses = accesses;
    }

    /// Where an operand lies, unless it is a slot.
    fn physical(&self, firing: &Firing<'_>, operand: &Operand) -> Option<Physical> {
        let (rank, buffer, offset) = match *operand {
            Operand::Local { buffer, offset } => (firing.place.rank?, buffer, offset),
            Operand::Window { rank, buffer, offset } => (rank, buffer, offset),
            // The plan is without multicast operands here.
            Operand::Slot(_) | Operand::Multicast { .. } => return None,
        };
        Some(self.locate(rank, buffer, offset + firing.begin, firing.length))
    }

    /// Where bytes of a buffer lie. In place, the caller's output and input are one: the smaller of them lies in the
    /// larger.
    fn locate(&self, rank: Rank, buffer: Buffer, offset: u64, bytes: u64) -> Physical {
        let sizes = &self.shape.sizes[rank.index()];
        let own_block = |block_bytes: u64| u64::from(rank.0) * block_bytes;
        let (input, output) = (Buffer::Input, Buffer::Output);
        let (buffer, start) = match (self.plan.collective, buffer) {
            _ if !self.placement.is_in_place(rank) => (buffer, offset),
            (Collective::AllReduce | Collective::Broadcast { .. }, Buffer::Input) => (output, offset),
            (Collective::Reduce { root }, Buffer::Input) if rank == root => (output, offset),
            (Collective::ReduceScatter, Buffer::Output) => (input, own_block(sizes[output as usize]) + offset),
            (Collective::AllGather, Buffer::Input) => (output, own_block(sizes[input as usize]) + offset),
            _ => (buffer, offset),
        };
        Physical { memory: rank.index() * BUFFERS + buffer as usize, start, end: start + bytes }
    }

    /// Fills in what the sources in memory hold.
    fn read_sources(&mut self, firing: &Firing<'_>, now: Now<'_>, sources: &mut [Vec<Run>]) {
        for (index, (source, runs)) in firing.step.sources.iter().zip(sources).enumerate() {
            if matches!(source.operand, Operand::Slot(_)) || self.is_spent() {
                continue;
            }
            runs.clear();
            let Some(Physical { memory, start, end }) = self.accesses[index] else {
                // The step copies onto itself, and the value goes nowhere.
                runs.push(Run { start: 0, end: firing.length, value: Value::UNKNOWN });
                continue;
            };
            let bytes = &mut self.memories[memory];
            self.stored -= bytes.stored;
            self.context.work += bytes.read(start, end, now, runs, &mut self.trouble);
            self.stored += bytes.stored;
            self.report_trouble(firing, &source.operand, start, false);
        }
    }

    /// Works out what the step makes of its sources.
    fn reduce(&mut self, firing: &Firing<'_>, sources: &[Vec<Run>]) {
        let Step { sources: operands, finish, destinations, .. } = firing.step;
        let sources = &sources[..operands.len()];
        let mut result = std::mem::take(&mut self.result);
        let mut terms = std::mem::take(&mut self.terms);
        let mut cursors = std::mem::take(&mut self.cursors);
        cursors.clear();
        cursors.resize(sources.len(), 0);
        let mut start = 0;
        while start < firing.length && !self.is_spent() {
            terms.clear();
            let mut end = firing.length;
            let mut shift = None;
            let mut mixed = None;
            for (index, (runs, operand)) in sources.iter().zip(operands).enumerate() {
                // Each source's runs cover the whole length.
                let Some(run) = runs.get(cursors[index]) else { continue };
                end = end.min(run.end);
                terms.push(Term { expression: run.value.expression, scale: operand.scale });
                if run.value.expression != ExpressionId::UNKNOWN {
                    let expected = *shift.get_or_insert(run.value.shift);
                    if expected != run.value.shift {
                        mixed = mixed.or(Some((index as u32, expected, run.value.shift)));
                    }
                }
            }
            self.context.work += sources.len() as u64 / 2;
            let memory = || firing.memory_part(&destinations[0], start, end);
            let expression = match (mixed, self.context.expressions.combine(&terms, *finish)) {
                (Some((source, expected, found)), _) => {
                    let expected_byte = expected.wrapping_add(start);
                    let found_byte = found.wrapping_add(start);
                    let kind = ViolationKind::MixedElements { source, expected_byte, found_byte };
                    self.violations.push(firing.place, memory(), kind);
                    ExpressionId::UNKNOWN
                }
                (None, Ok(expression)) => expression,
                (None, Err(faults)) => {
                    for fault in faults.iter() {
                        self.violations.push(firing.place, memory(), fault.clone());
                    }
                    ExpressionId::UNKNOWN
                }
            };
            let value = match shift {
                Some(shift) if expression != ExpressionId::UNKNOWN => Value { expression, shift },
                _ => Value::UNKNOWN,
            };
            push_run(&mut result, Run { start, end, value });
            for (cursor, runs) in cursors.iter_mut().zip(sources) {
                *cursor += usize::from(runs.get(*cursor).is_some_and(|run| run.end <= end));
            }
            start = end;
        }
        self.result = result;
        self.terms = terms;
        self.cursors = cursors;
    }

    /// Leaves the result in the destinations in memory.
    fn write_destinations(&mut self, firing: &Firing<'_>, now: Now<'_>) {
        for (index, destination) in firing.step.destinations.iter().enumerate() {
            let Some(physical) = self.accesses[firing.step.sources.len() + index] else { continue };
            if self.is_spent() {
                break;
            }
            let Physical { memory, start, end } = physical;
            let bytes = &mut self.memories[memory];
            self.stored -= bytes.stored;
            self.context.work += bytes.write(start, end, now, &self.result, &mut self.trouble, &mut self.doomed);
            self.stored += bytes.stored;
            self.report_trouble(firing, destination, start, true);
        }
    }

    /// Leaves the result in the destination slots.
    fn publish(&mut self, firing: &Firing<'_>, sent: Moment, known: &Knowledge) {
        for destination in &firing.step.destinations {
            let Operand::Slot(connection) = *destination else { continue };
            if self.is_spent() {
                break;
            }
            self.stored += self.result.len() as u64;
            self.context.work += self.result.len() as u64;
            let message = Message { length: firing.length, runs: self.result.clone(), sent, known: known.clone() };
            self.queues[connection.index()].push_back(message);
            self.wake(self.shape.ends[connection.index()][1], Waits::Full(connection));
        }
    }

    /// Lets those go on that wait for the program's current step.
    fn complete(&mut self, program: usize, moment: Moment, known: &Knowledge) {
        let step = self.programs[program].step_id;
        if self.shape.programs[program].awaited.binary_search(&step).is_ok() {
            self.completed.entry((program, step)).or_default().push((moment, known.clone()));
        }
        let waiters = &mut self.waiters[program];
        self.context.work += waiters.len() as u64;
        waiters.retain(|(tick, waiter)| {
            let reached = *tick <= u64::from(moment.tick);
            if reached {
                self.runnable.push_back(*waiter);
            }
            !reached
        });
    }

    fn wake(&mut self, program: usize, waits: Waits) {
        if self.programs[program].waits == waits {
            self.programs[program].waits = Waits::No;
            self.runnable.push_back(program);
        }
    }

    fn count_bytes(&mut self, firing: &Firing<'_>) {
        let Some(rank) = firing.place.rank else { return };
        self.report.steps += 1;
        let mut count = |from: Rank, to: Rank| {
            for (bytes, rank) in [(&mut self.report.bytes_sent, from), (&mut self.report.bytes_received, to)] {
                bytes[rank.index()] = bytes[rank.index()].saturating_add(firing.length);
            }
        };
        for source in &firing.step.sources {
            if let Operand::Window { rank: owner, .. } = source.operand {
                count(owner, rank);
            }
        }
        for destination in &firing.step.destinations {
            match *destination {
                Operand::Local { .. } | Operand::Multicast { .. } => {}
                Operand::Window { rank: owner, .. } => count(rank, owner),
                Operand::Slot(connection) => {
                    count(rank, self.plan.connections[connection.index()].to);
                    self.report.slots += 1;
                }
            }
        }
    }

    fn move_on(&mut self, program: usize) {
        let ProgramShape { rank, id, .. } = self.shape.programs[program];
        let loops = &self.plan.ranks[rank.index()].programs[id.index()].loops;
        let running = &mut self.programs[program];
        let looped = &loops[running.loop_index];
        running.ready = 0;
        running.step_index += 1;
        running.step_id += 1;
        if running.step_index == looped.steps.len() {
            running.step_index = 0;
            running.iteration += 1;
            if running.iteration == looped.iterations {
                running.iteration = 0;
                running.loop_index += 1;
            } else {
                running.step_id -= looped.steps.len() as u32;
            }
        }
        let looped = loops.get(running.loop_index);
        running.current = looped.map(|looped| (&looped.steps[running.step_index], u64::from(looped.chunk_bytes)));
    }

    fn place(&self, program: usize) -> Place {
        let (shape, running) = (&self.shape.programs[program], &self.programs[program]);
        Place {
            rank: Some(shape.rank),
            program: Some(shape.id),
            step: Some(StepId(running.step_id)),
            iteration: Some(running.iteration),
        }
    }

    /// Where a program was at a moment.
    fn place_at(&self, moment: Moment) -> Place {
        let shape = &self.shape.programs[moment.program as usize];
        let (step, iteration) = shape.step_at(moment.tick);
        Place { rank: Some(shape.rank), program: Some(shape.id), step: Some(step), iteration: Some(iteration) }
    }

    /// Reports what an access to `operand`, whose current bytes begin at the physical `start`, found wrong.
    fn report_trouble(&mut self, firing: &Firing<'_>, operand: &Operand, start: u64, writes: bool) {
        let mut trouble = std::mem::take(&mut self.trouble);
        for found in trouble.drain(..) {
            let (from, to) = match found {
                Trouble::NotWritten { start, end } | Trouble::Race { start, end, .. } => (start, end),
            };
            let memory = firing.memory_part(operand, from - start, to - start);
            let kind = match found {
                Trouble::NotWritten { .. } => ViolationKind::NotWritten,
                Trouble::Race { other, other_writes, .. } => {
                    let shape = &self.shape.programs[other.program as usize];
                    let (other_step, other_iteration) = shape.step_at(other.tick);
                    let (other, other_program) = (shape.rank, shape.id);
                    ViolationKind::Race { writes, other, other_program, other_step, other_iteration, other_writes }
                }
            };
            self.violations.push(firing.place, memory, kind);
        }
        self.trouble = trouble;
    }

    /// Reports the programs that have not ended; whether there are any.
    fn report_stuck(&mut self) -> bool {
        let mut stuck = false;
        for program in 0..self.programs.len() {
            let running = &self.programs[program];
            let Some((step, _)) = running.current else { continue };
            stuck = true;
            let other = |end: usize, connection: ConnectionId| {
                let place = self.shape.ends[connection.index()][end];
                let shape = &self.shape.programs[place];
                (shape.rank, shape.id, self.standing(place))
            };
            let waits_for = match running.waits {
                Waits::Full(connection) => {
                    let (from, program, standing) = other(0, connection);
                    WaitsFor::Full { connection, from, program, standing }
                }
                Waits::Room(connection) => {
                    let (to, program, standing) = other(1, connection);
                    let slots = self.plan.connections[connection.index()].slots;
                    WaitsFor::Room { connection, slots, to, program, standing }
                }
                Waits::After { target, .. } => {
                    let standing = self.standing(target);
                    let step = step.after.map_or(StepId(0), |after| after.step);
                    let program = self.shape.programs[target].id;
                    WaitsFor::After { program, step, iteration: running.iteration, standing }
                }
                // A program that waits for nothing has been run until it ended.
                Waits::No => continue,
            };
            let place = self.place(program);
            self.violations.push(place, None, ViolationKind::Stuck(waits_for));
        }
        stuck
    }

    fn standing(&self, program: usize) -> Standing {
        let running = &self.programs[program];
        match running.current {
            None => Standing::Ended,
            Some(_) => Standing::At { step: StepId(running.step_id), iteration: running.iteration },
        }
    }

    fn report_residue(&mut self) {
        for (index, queue) in self.queues.iter().enumerate().filter(|(_, queue)| !queue.is_empty()) {
            let shape = &self.shape.programs[self.shape.ends[index][1]];
            let place = Place { rank: Some(shape.rank), program: Some(shape.id), ..Place::default() };
            let memory = Some((Memory::Slot(ConnectionId(index as u32)), None));
            self.violations.push(place, memory, ViolationKind::Residue { slots: queue.len() as u64 });
        }
    }

    /// A rank's memory is its caller's again when all of its programs have ended: one of them must know the last
    /// touch of each peer.
    fn report_late_touches(&mut self) {
        let mut touches: Vec<_> = std::mem::take(&mut self.touches).into_iter().collect();
        touches.sort_unstable_by_key(|(key, _)| *key);
        for ((owner, toucher), Touch { tick, memory, bytes }) in touches {
            let mut owners = self.shape.programs_of(owner);
            self.context.work += owners.len() as u64;
            if !owners.any(|program| self.programs[program].known[toucher] >= tick) {
                let place = self.place_at(Moment { program: toucher as u32, tick });
                self.violations.push(place, Some((memory, Some(bytes))), ViolationKind::WindowAfterEnd { owner });
            }
        }
    }

    /// Looks at what every rank ends up with.
    fn check_outputs(&mut self) {
        let mut first_output = Vec::new();
        for rank in (0..self.plan.ranks.len()).map(|index| Rank(index as u32)) {
            let sizes = &self.shape.sizes[rank.index()];
            let output_bytes = sizes[Buffer::Output as usize];
            match self.plan.collective {
                Collective::Barrier => self.check_barrier(rank),
                Collective::AllReduce => {
                    let output = self.check_part(rank, 0..output_bytes, Expected::Reduced { from_byte: 0 });
                    if rank.0 == 0 {
                        first_output = output;
                    } else {
                        self.compare_order(rank, &output, &first_output);
                    }
                }
                Collective::ReduceScatter => {
                    let from_byte = u64::from(rank.0) * output_bytes;
                    self.check_part(rank, 0..output_bytes, Expected::Reduced { from_byte });
                }
                Collective::AllGather => {
                    let block_bytes = sizes[Buffer::Input as usize];
                    for owner in (0..self.plan.ranks.len() as u32).map(Rank) {
                        let start = u64::from(owner.0) * block_bytes;
                        self.check_part(rank, start..start + block_bytes, Expected::InputOf(owner));
                        if self.is_spent() {
                            return;
                        }
                    }
                }
                Collective::Broadcast { root } => {
                    self.check_part(rank, 0..output_bytes, Expected::InputOf(root));
                }
                // The others have no output: not a byte of it is in range.
                Collective::Reduce { root } if rank != root => {}
                Collective::Reduce { .. } => {
                    self.check_part(rank, 0..output_bytes, Expected::Reduced { from_byte: 0 });
                }
            }
            if self.is_spent() {
                return;
            }
        }
    }

    /// Checks part of a rank's output, and answers what it holds, in positions of the part.
    fn check_part(&mut self, rank: Rank, part: Range<u64>, expected: Expected) -> Vec<Run> {
        let length = part.end - part.start;
        let Physical { memory, start, end } = self.locate(rank, Buffer::Output, part.start, length);
        let mut runs = Vec::new();
        self.context.work += 1;
        // Faults of neighbours are joined: (fault, its last writer, from, to).
        let mut faults: Vec<(OutputFault, Option<Moment>, u64, u64)> = Vec::new();
        let expressions = &mut self.context.expressions;
        let mut position = 0;
        let mut note = |fault: Option<OutputFault>, writer: Option<Moment>, from: u64, to: u64| {
            let Some(fault) = fault.filter(|_| from < to) else { return };
            match faults.last_mut() {
                Some((last, _, _, end)) if *last == fault && *end == from => *end = to,
                _ => faults.push((fault, writer, from, to)),
            }
        };
        for (from, to, value, writer) in self.memories[memory].look(start, end) {
            let (from, to, value) = (from - start, to - start, value.seen_from(start));
            note(Some(OutputFault::Whole(ViolationKind::OutputNotWritten)), None, position, from);
            position = to;
            self.context.work += 1;
            push_run(&mut runs, Run { start: from, end: to, value });
            if value.expression != ExpressionId::UNKNOWN {
                note(expected.fault(value, expressions), Some(writer), from, to);
            }
        }
        note(Some(OutputFault::Whole(ViolationKind::OutputNotWritten)), None, position, length);
        for (fault, writer, from, to) in faults {
            let kind = match fault {
                OutputFault::Whole(kind) => kind,
                OutputFault::Shifted { expected, found } => ViolationKind::OutputElement {
                    expected_byte: expected.wrapping_add(from),
                    found_byte: found.wrapping_add(from),
                },
            };
            let memory = Some((Memory::Local(Buffer::Output), Some(part.start + from..part.start + to)));
            let place = match writer {
                // A peer may have written it, but it is this rank's output that is wrong.
                Some(writer) if writer.tick > 0 && self.place_at(writer).rank == Some(rank) => self.place_at(writer),
                _ => Place { rank: Some(rank), ..Place::default() },
            };
            self.violations.push(place, memory, kind);
        }
        runs
    }

    /// Equal bits on all ranks: each element is the same expression on this rank as on the first one.
    fn compare_order(&mut self, rank: Rank, output: &[Run], first: &[Run]) {
        let (mut here, mut there) = (output.iter().peekable(), first.iter().peekable());
        while let (Some(mine), Some(theirs)) = (here.peek(), there.peek()) {
            self.context.work += 1;
            let (start, end) = (mine.start.max(theirs.start), mine.end.min(theirs.end));
            let pair = [mine.value.expression, theirs.value.expression];
            let expressions = &mut self.context.expressions;
            // What is unknown or incomplete has been reported.
            let mut known =
                || pair.iter().all(|id| *id != ExpressionId::UNKNOWN && expressions.incomplete(*id).is_none());
            if start < end && pair[0] != pair[1] && known() {
                let [here, there] = pair.map(|id| expressions.render(id));
                let place = Place { rank: Some(rank), ..Place::default() };
                let memory = Some((Memory::Local(Buffer::Output), Some(start..end)));
                self.violations.push(place, memory, ViolationKind::OutputOrder { here, other: Rank(0), there });
            }
            if mine.end <= end {
                here.next();
            }
            if theirs.end <= end {
                there.next();
            }
        }
    }

    /// Nobody leaves before everyone has come: when all of a rank's programs have ended, every other rank's first
    /// step is known to one of them.
    fn check_barrier(&mut self, rank: Rank) {
        let mut absent = RankList::default();
        for other in (0..self.plan.ranks.len() as u32).map(Rank).filter(|other| *other != rank) {
            self.context.work += 1 + self.shape.programs_of(other).len() as u64;
            let knows = |own: usize| self.shape.programs_of(other).any(|theirs| self.programs[own].known[theirs] > 0);
            if !self.shape.programs_of(rank).any(knows) {
                absent.push(other);
            }
        }
        if absent.count > 0 {
            let place = Place { rank: Some(rank), ..Place::default() };
            self.violations.push(place, None, ViolationKind::BarrierLeft { absent });
        }
    }
}

/// One iteration of one step.
struct Firing<'a> {
    step: &'a Step,
    place: Place,
    /// First byte within the step.
    begin: u64,
    length: u64,
}

impl Firing<'_> {
    /// The bytes of an operand that are touched.
    fn memory(&self, operand: &Operand) -> Option<(Memory, Option<Range<u64>>)> {
        self.memory_part(operand, 0, self.length)
    }

    /// A part of them.
    fn memory_part(&self, operand: &Operand, from: u64, to: u64) -> Option<(Memory, Option<Range<u64>>)> {
        let (memory, start) = match *operand {
            Operand::Local { buffer, offset } => (Memory::Local(buffer), offset + self.begin),
            Operand::Window { rank, buffer, offset } => (Memory::Window(rank, buffer), offset + self.begin),
            Operand::Slot(connection) => (Memory::Slot(connection), 0),
            Operand::Multicast { .. } => return None,
        };
        Some((memory, Some(start + from..start + to)))
    }
}

impl Physical {
    fn overlaps(&self, other: &Physical) -> bool {
        self.memory == other.memory && self.start < other.end && other.start < self.end
    }
}

/// What belongs into a part of an output.
#[derive(Clone, Copy)]
enum Expected {
    /// The reduction of all inputs, from this byte on.
    Reduced { from_byte: u64 },
    /// The whole input of a rank.
    InputOf(Rank),
}

/// What is wrong with a part of an output.
#[derive(Clone, PartialEq)]
enum OutputFault {
    Whole(ViolationKind),
    /// Another element: the bytes of the inputs where the part starts.
    Shifted {
        expected: u64,
        found: u64,
    },
}

impl Expected {
    fn fault(self, value: Value, expressions: &mut Expressions) -> Option<OutputFault> {
        let (whole, from_byte) = match self {
            Expected::Reduced { from_byte } => (expressions.incomplete(value.expression), from_byte),
            Expected::InputOf(expected) => match expressions.as_input(value.expression) {
                Some(found) if found != expected => (Some(ViolationKind::OutputInput { expected, found }), 0),
                _ => (None, 0),
            },
        };
        match whole {
            Some(kind) => Some(OutputFault::Whole(kind)),
            None if value.shift != from_byte => Some(OutputFault::Shifted { expected: from_byte, found: value.shift }),
            None => None,
        }
    }
}
