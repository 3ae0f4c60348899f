//! Whether a plan is well formed, and the tables that the execution of a well-formed plan needs.
//!
//! Plans may come from text that anybody wrote, so nothing about a plan is believed here: every index is looked up,
//! every sum is checked. What passes can be executed without overflow and without an index out of range.

use std::collections::HashMap;

use super::violation::{Limit, Memory, Place, ViolationKind, Violations};
use super::{Limits, buffer_bytes};
use crate::plan::{
    After, Buffer, Connection, ConnectionId, Loop, MULTICAST_ALIGNMENT_BYTES, Operand, Plan, Program, ProgramId, Rank,
    Step, StepId,
};

/// What the execution looks up.
pub(super) struct Shape {
    /// Of each rank, the sizes of input, output and scratch.
    pub(super) sizes: Vec<[u64; 3]>,
    /// Of each rank, the place of its first program in `programs`; and one more entry for the end.
    pub(super) first_program: Vec<usize>,
    /// The programs of all ranks, rank by rank.
    pub(super) programs: Vec<ProgramShape>,
    /// Of each connection, the places in `programs` of the one that fills it and of the one that empties it.
    pub(super) ends: Vec<[usize; 2]>,
}

/// A program among the programs of all ranks.
pub(super) struct ProgramShape {
    pub(super) rank: Rank,
    pub(super) id: ProgramId,
    pub(super) loops: Vec<LoopShape>,
    /// The steps that another program waits on, sorted.
    pub(super) awaited: Vec<u32>,
}

/// A loop within its program.
pub(super) struct LoopShape {
    /// Its first step's id.
    pub(super) first_step: u32,
    /// How many steps it has.
    pub(super) step_count: u32,
    /// Steps that the program has fired when the loop begins.
    pub(super) first_tick: u64,
}

/// Looks at the steps through a switch.
pub(super) fn check_multicast(plan: &Plan, violations: &mut Violations) {
    for (rank, rank_plan) in plan.ranks.iter().enumerate() {
        for (program, steps) in rank_plan.programs.iter().enumerate() {
            let loops = steps.loops.iter();
            let steps = loops.flat_map(|looped| looped.steps.iter().map(move |step| (looped, step)));
            for (index, (looped, step)) in steps.enumerate().filter(|(_, (_, step))| step.is_multicast()) {
                let place = Place {
                    rank: Some(Rank(rank as u32)),
                    program: Some(ProgramId(program as u32)),
                    step: Some(StepId(index as u32)),
                    ..Place::default()
                };
                let (sources, destinations) = (step.sources.len() as u64, step.destinations.len() as u64);
                if (sources, destinations) != (1, 1) {
                    let kind = ViolationKind::MulticastNotAlone { sources, destinations };
                    violations.push(place, None, kind);
                }
                let operands = step.sources.iter().map(|source| &source.operand).chain(&step.destinations);
                let offsets = operands.filter_map(|operand| match operand {
                    Operand::Local { offset, .. } | Operand::Multicast { offset, .. } => Some(*offset),
                    Operand::Window { offset, .. } => Some(*offset),
                    Operand::Slot(_) => None,
                });
                let mut numbers = offsets.chain([step.bytes, u64::from(looped.chunk_bytes)]);
                if let Some(bytes) = numbers.find(|bytes| !bytes.is_multiple_of(MULTICAST_ALIGNMENT_BYTES)) {
                    violations.push(place, None, ViolationKind::MulticastMisaligned { bytes });
                }
            }
        }
    }
}

impl Shape {
    /// Of a rank, the places of its programs.
    pub(super) fn programs_of(&self, rank: Rank) -> std::ops::Range<usize> {
        self.first_program[rank.index()]..self.first_program[rank.index() + 1]
    }
}

impl ProgramShape {
    /// The loop that holds a step.
    pub(super) fn loop_of(&self, step: StepId) -> &LoopShape {
        let index = self.loops.partition_point(|looped| looped.first_step <= step.0);
        &self.loops[index.saturating_sub(1)]
    }

    /// How many steps the program has fired once it has fired this one.
    pub(super) fn tick_of(&self, step: StepId, iteration: u64) -> u64 {
        let looped = self.loop_of(step);
        let steps_before = iteration * u64::from(looped.step_count) + u64::from(step.0 - looped.first_step);
        looped.first_tick + steps_before + 1
    }

    /// The reverse of [`tick_of`](Self::tick_of).
    pub(super) fn step_at(&self, tick: u32) -> (StepId, u64) {
        let fired_before = u64::from(tick.saturating_sub(1));
        let index = self.loops.partition_point(|looped| looped.first_tick <= fired_before);
        let looped = &self.loops[index.saturating_sub(1)];
        let within = fired_before - looped.first_tick;
        let step = (within % u64::from(looped.step_count)) as u32;
        (StepId(looped.first_step + step), within / u64::from(looped.step_count))
    }
}

/// Checks that the plan is well formed. With any violation there is no shape.
pub(super) fn check(plan: &Plan, limits: &Limits, violations: &mut Violations) -> Option<Shape> {
    if !check_head(plan, violations) {
        return None;
    }
    let rank_count = plan.ranks.len() as u64;
    let mut checker = Checker {
        plan,
        violations,
        sizes: sizes(plan),
        ends: vec![[None; 2]; plan.connections.len()],
        used_at: vec![0; plan.connections.len()],
        step_number: 0,
        publishes: vec![0; plan.connections.len()],
        step_ends: plan.ranks.iter().map(|rank| rank.programs.iter().map(step_ends).collect()).collect(),
        awaited: HashMap::new(),
        awaited_iterations: 0,
    };
    for (index, connection) in plan.connections.iter().enumerate() {
        checker.check_connection(ConnectionId(index as u32), connection, rank_count);
    }
    for (rank, rank_plan) in plan.ranks.iter().enumerate() {
        for (program, steps) in rank_plan.programs.iter().enumerate() {
            checker.check_program(Rank(rank as u32), ProgramId(program as u32), steps);
        }
    }
    checker.check_ends();
    checker.check_size(limits);
    let Checker { sizes, ends, mut awaited, .. } = checker;
    if !violations.is_empty() {
        return None;
    }

    let mut shape = Shape { sizes, first_program: vec![0], programs: Vec::new(), ends: Vec::new() };
    for (rank, rank_plan) in plan.ranks.iter().enumerate() {
        for (program, steps) in rank_plan.programs.iter().enumerate() {
            let (rank, id) = (Rank(rank as u32), ProgramId(program as u32));
            let mut awaited = awaited.remove(&(rank, id)).unwrap_or_default();
            awaited.sort_unstable();
            awaited.dedup();
            shape.programs.push(ProgramShape { rank, id, loops: loop_shapes(steps), awaited });
        }
        shape.first_program.push(shape.programs.len());
    }
    for (connection, ends) in plan.connections.iter().zip(ends) {
        let place = |rank: Rank, program: Option<ProgramId>| {
            // `check_ends` has seen to it that there is one.
            shape.first_program[rank.index()] + program.map_or(0, ProgramId::index)
        };
        let ends = [place(connection.from, ends[PRODUCER]), place(connection.to, ends[CONSUMER])];
        shape.ends.push(ends);
    }
    Some(shape)
}

/// How many steps a program has up to the end of each loop.
fn step_ends(program: &Program) -> Vec<usize> {
    let add = |end: &mut usize, looped: &Loop| {
        *end += looped.steps.len();
        Some(*end)
    };
    program.loops.iter().scan(0, add).collect()
}

/// The loops of a program whose steps have been counted and are few enough.
fn loop_shapes(program: &Program) -> Vec<LoopShape> {
    let (mut first_step, mut first_tick) = (0, 0);
    let shape = |looped: &Loop| {
        let step_count = looped.steps.len() as u32;
        let shape = LoopShape { first_step, step_count, first_tick };
        first_step += step_count;
        first_tick += u64::from(step_count) * looped.iterations;
        shape
    };
    program.loops.iter().map(shape).collect()
}

/// What the collective says about the plan as a whole.
fn check_head(plan: &Plan, violations: &mut Violations) -> bool {
    let rank_count = plan.ranks.len() as u64;
    let nowhere = Place::default();
    if rank_count == 0 {
        violations.push(nowhere, None, ViolationKind::NoRanks);
    }
    if let Some(root) = plan.collective.root()
        && u64::from(root.0) >= rank_count
    {
        violations.push(nowhere, None, ViolationKind::UnknownRoot { root, rank_count });
    }
    if plan.element_bytes == 0 {
        violations.push(nowhere, None, ViolationKind::NoElementBytes);
    }
    let total = u128::from(plan.count) * u128::from(plan.element_bytes);
    if total.checked_mul(u128::from(rank_count)).is_none_or(|total| total >= 1 << 63) {
        violations.push(nowhere, None, ViolationKind::SizeOverflow);
    }
    violations.is_empty()
}

fn sizes(plan: &Plan) -> Vec<[u64; 3]> {
    let of_rank = |index: usize| Buffer::ALL.map(|buffer| buffer_bytes(plan, Rank(index as u32), buffer));
    (0..plan.ranks.len()).map(of_rank).collect()
}

const PRODUCER: usize = 0;
const CONSUMER: usize = 1;

struct Checker<'a> {
    plan: &'a Plan,
    violations: &'a mut Violations,
    sizes: Vec<[u64; 3]>,
    /// Of each connection, the program that fills it and the one that empties it.
    ends: Vec<[Option<ProgramId>; 2]>,
    /// Of each connection, the number of the last step that used it; steps are counted from 1 through the plan.
    used_at: Vec<u64>,
    step_number: u64,
    /// Of each connection, how many slots are published.
    publishes: Vec<u64>,
    /// Of each rank's programs, how many steps there are up to the end of each loop.
    step_ends: Vec<Vec<Vec<usize>>>,
    /// The steps that are waited on.
    awaited: HashMap<(Rank, ProgramId), Vec<u32>>,
    awaited_iterations: u64,
}

impl Checker<'_> {
    fn check_connection(&mut self, id: ConnectionId, connection: &Connection, rank_count: u64) {
        let memory = Some((Memory::Slot(id), None));
        let nowhere = Place::default();
        for rank in [connection.from, connection.to] {
            if u64::from(rank.0) >= rank_count {
                self.violations.push(nowhere, memory.clone(), ViolationKind::UnknownRank { rank, rank_count });
            }
        }
        if connection.from == connection.to {
            self.violations.push(nowhere, memory.clone(), ViolationKind::ConnectionToItself);
        }
        if connection.slots == 0 {
            self.violations.push(nowhere, memory, ViolationKind::NoSlots);
        }
    }

    fn check_program(&mut self, rank: Rank, id: ProgramId, program: &Program) {
        let mut step_id = 0;
        for looped in &program.loops {
            let mut place = Place { rank: Some(rank), program: Some(id), step: Some(StepId(step_id)), iteration: None };
            if looped.steps.is_empty() {
                self.violations.push(place, None, ViolationKind::NoSteps);
            }
            if looped.iterations == 0 {
                self.violations.push(place, None, ViolationKind::NoIterations);
            }
            let (chunk_bytes, element_bytes) = (looped.chunk_bytes, self.plan.element_bytes);
            if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(element_bytes) {
                self.violations.push(place, None, ViolationKind::ChunkBytes { chunk_bytes, element_bytes });
            }
            for step in &looped.steps {
                place.step = Some(StepId(step_id));
                self.check_step(place, rank, id, looped, step);
                step_id = step_id.saturating_add(1);
            }
        }
    }

    fn check_step(&mut self, place: Place, rank: Rank, program: ProgramId, looped: &Loop, step: &Step) {
        self.step_number += 1;
        let element_bytes = self.plan.element_bytes;
        if !step.bytes.is_multiple_of(u64::from(element_bytes)) {
            let kind = ViolationKind::StepBytes { bytes: step.bytes, element_bytes };
            self.violations.push(place, None, kind);
        }
        let covered_bytes = looped.iterations.saturating_mul(u64::from(looped.chunk_bytes));
        if covered_bytes < step.bytes {
            self.violations.push(place, None, ViolationKind::LoopTooShort { bytes: step.bytes, covered_bytes });
        }
        if step.sources.is_empty() {
            self.violations.push(place, None, ViolationKind::NoSources);
        }
        if step.destinations.is_empty() {
            self.violations.push(place, None, ViolationKind::NoDestinations);
        }
        let several = step.sources.len() > 1 && step.bytes > 0;
        let scales = step.finish || step.sources.iter().any(|source| source.scale);
        if !self.plan.collective.reduces() && (several || scales) {
            self.violations.push(place, None, ViolationKind::NotAReduction);
        }
        for source in &step.sources {
            self.check_operand(place, rank, program, looped, step, &source.operand, CONSUMER);
        }
        for destination in &step.destinations {
            self.check_operand(place, rank, program, looped, step, destination, PRODUCER);
            let written = match destination {
                Operand::Local { buffer: Buffer::Input, .. } => Some(Memory::Local(Buffer::Input)),
                Operand::Window { rank, buffer: Buffer::Input, .. } => Some(Memory::Window(*rank, Buffer::Input)),
                _ => None,
            };
            if let Some(memory) = written {
                self.violations.push(place, Some((memory, None)), ViolationKind::InputWritten);
            }
        }
        if let Some(after) = step.after {
            self.check_after(place, rank, program, looped.iterations, after);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all of them say where the operand stands")]
    fn check_operand(
        &mut self,
        place: Place,
        rank: Rank,
        program: ProgramId,
        looped: &Loop,
        step: &Step,
        operand: &Operand,
        end: usize,
    ) {
        let rank_count = self.plan.ranks.len() as u64;
        match *operand {
            Operand::Local { buffer, offset } => {
                self.check_range(place, Memory::Local(buffer), rank, buffer, offset, step.bytes);
            }
            Operand::Window { rank: owner, buffer, offset } => {
                let memory = Memory::Window(owner, buffer);
                if u64::from(owner.0) >= rank_count {
                    let kind = ViolationKind::UnknownRank { rank: owner, rank_count };
                    self.violations.push(place, Some((memory, None)), kind);
                    return;
                }
                if owner == rank {
                    self.violations.push(place, Some((memory, None)), ViolationKind::OwnWindow);
                }
                self.check_range(place, memory, owner, buffer, offset, step.bytes);
            }
            Operand::Slot(id) => self.check_slot(place, rank, program, looped, step, id, end),
            // Written out before.
            Operand::Multicast { .. } => {}
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all of them say where the operand stands")]
    fn check_slot(
        &mut self,
        place: Place,
        rank: Rank,
        program: ProgramId,
        looped: &Loop,
        step: &Step,
        id: ConnectionId,
        end: usize,
    ) {
        let memory = Some((Memory::Slot(id), None));
        let Some(connection) = self.plan.connections.get(id.index()) else {
            let kind = ViolationKind::UnknownConnection { connection_count: self.plan.connections.len() as u64 };
            self.violations.push(place, memory, kind);
            return;
        };
        if self.used_at[id.index()] == self.step_number {
            self.violations.push(place, memory.clone(), ViolationKind::ConnectionTwice);
        }
        self.used_at[id.index()] = self.step_number;
        if end == PRODUCER && connection.from != rank {
            self.violations.push(place, memory, ViolationKind::NotTheProducer { from: connection.from });
            return;
        }
        if end == CONSUMER && connection.to != rank {
            self.violations.push(place, memory, ViolationKind::NotTheConsumer { to: connection.to });
            return;
        }
        match self.ends[id.index()][end] {
            None => self.ends[id.index()][end] = Some(program),
            Some(first) if first == program => {}
            Some(first) => {
                let second = [ViolationKind::SecondProducer { first }, ViolationKind::SecondConsumer { first }];
                let [producer, consumer] = second;
                self.violations.push(place, memory.clone(), if end == PRODUCER { producer } else { consumer });
            }
        }
        if end == PRODUCER {
            let bytes = step.bytes.min(u64::from(looped.chunk_bytes));
            if bytes > u64::from(connection.slot_bytes) {
                let kind = ViolationKind::SlotOverflow { bytes, slot_bytes: connection.slot_bytes };
                self.violations.push(place, memory, kind);
            }
            let publishes = &mut self.publishes[id.index()];
            *publishes = publishes.saturating_add(looped.iterations);
        }
    }

    fn check_range(&mut self, place: Place, memory: Memory, owner: Rank, buffer: Buffer, offset: u64, bytes: u64) {
        let element_bytes = self.plan.element_bytes;
        if !offset.is_multiple_of(u64::from(element_bytes)) {
            self.violations.push(place, Some((memory, None)), ViolationKind::Offset { offset, element_bytes });
        }
        let size_bytes = self.sizes[owner.index()][buffer as usize];
        let end = offset.saturating_add(bytes);
        if offset.checked_add(bytes).is_none_or(|end| end > size_bytes) {
            let kind = ViolationKind::OutOfRange { size_bytes };
            self.violations.push(place, Some((memory, Some(offset..end))), kind);
        }
    }

    fn check_after(&mut self, place: Place, rank: Rank, own: ProgramId, needed: u64, after: After) {
        let After { program, step } = after;
        if program == own {
            self.violations.push(place, None, ViolationKind::AfterItself);
            return;
        }
        let Some(target) = self.plan.ranks[rank.index()].programs.get(program.index()) else {
            self.violations.push(place, None, ViolationKind::UnknownProgram { program });
            return;
        };
        let ends = &self.step_ends[rank.index()][program.index()];
        let Some(looped) = target.loops.get(ends.partition_point(|end| *end <= step.index())) else {
            self.violations.push(place, None, ViolationKind::UnknownStep { program, step });
            return;
        };
        if looped.iterations < needed {
            let kind = ViolationKind::AfterTooFew { iterations: looped.iterations, needed };
            self.violations.push(place, None, kind);
        }
        self.awaited.entry((rank, program)).or_default().push(step.0);
        self.awaited_iterations = self.awaited_iterations.saturating_add(looped.iterations);
    }

    /// Each connection has a program at either end.
    fn check_ends(&mut self) {
        for (index, (ends, connection)) in self.ends.iter().zip(&self.plan.connections).enumerate() {
            let memory = Some((Memory::Slot(ConnectionId(index as u32)), None));
            let absent = [ViolationKind::NoProducer, ViolationKind::NoConsumer];
            for ((end, kind), rank) in ends.iter().zip(absent).zip([connection.from, connection.to]) {
                if end.is_none() {
                    let place = Place { rank: Some(rank), ..Place::default() };
                    self.violations.push(place, memory.clone(), kind);
                }
            }
        }
    }

    /// The plan is small enough to be executed.
    fn check_size(&mut self, limits: &Limits) {
        let programs = || self.plan.ranks.iter().flat_map(|rank| &rank.programs);
        let steps = |looped: &Loop| looped.iterations.saturating_mul(looped.steps.len() as u64);
        let fired = programs().flat_map(|program| &program.loops).map(steps).fold(0, u64::saturating_add);
        let in_flight = |(connection, publishes): (&Connection, &u64)| u64::from(connection.slots).min(*publishes);
        let slots = self.plan.connections.iter().zip(&self.publishes).map(in_flight).fold(0, u64::saturating_add);
        let program_count = programs().count() as u64;
        let clocks = slots.saturating_add(self.awaited_iterations).saturating_add(program_count);
        let entries = clocks.saturating_mul(program_count);
        let needs =
            [(Limit::FiredSteps, fired, limits.fired_steps), (Limit::ClockEntries, entries, limits.clock_entries)];
        for (limit, found, allowed) in needs {
            if found > allowed {
                self.violations.push(Place::default(), None, ViolationKind::TooLarge { limit, found, allowed });
            }
        }
    }
}
