//! A plan made ready to run: one rank's programs laid out for the interpreter, their connections opened.

use std::collections::HashMap;

use tutti_kernels::interpreter::State;
use tutti_kernels::layout::{self, Completed, NO_PROGRAM, ReceiveEnd, SendEnd, operand_flag, operand_kind, step_flag};

use crate::plan::{After, Buffer, ConnectionId, Operand, Program, Rank, Step};
use crate::plan_cache::SharedPlan;
use crate::transport::{ConnectionKey, NoMemory, Transport};

/// One rank's ends of its connections. Plans share them: a connection's counters run on from call to call.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) sends: Vec<SendEnd>,
    pub(crate) receives: Vec<ReceiveEnd>,
    send_index: HashMap<ConnectionKey, u32>,
    receive_index: HashMap<ConnectionKey, u32>,
}

impl Ends {
    /// The place of a producing end among `sends`, opened if need be.
    fn send(&mut self, key: ConnectionKey, transport: &dyn Transport) -> Result<u32, NoMemory> {
        if let Some(index) = self.send_index.get(&key) {
            return Ok(*index);
        }
        let index = self.sends.len() as u32;
        self.sends.push(transport.connect_send(key)?);
        self.send_index.insert(key, index);
        Ok(index)
    }

    /// The place of a consuming end among `receives`, opened if need be.
    fn receive(&mut self, key: ConnectionKey, transport: &dyn Transport) -> Result<u32, NoMemory> {
        if let Some(index) = self.receive_index.get(&key) {
            return Ok(*index);
        }
        let index = self.receives.len() as u32;
        self.receives.push(transport.connect_receive(key)?);
        self.receive_index.insert(key, index);
        Ok(index)
    }

    /// How many consuming ends `plan` would open for `rank` that are not open yet.
    pub(crate) fn missing(&self, plan: &SharedPlan, rank: usize) -> usize {
        plan.connections.iter().filter(|key| key.to == rank && !self.receive_index.contains_key(key)).count()
    }
}

/// One rank's part of a plan, laid out. The addresses inside point into the vectors beside them, which are never resized.
pub(crate) struct BoundPlan {
    pub(crate) digest: u64,
    pub(crate) programs: Vec<layout::Program>,
    pub(crate) states: Vec<State>,
    pub(crate) completed: Vec<Completed>,
    pub(crate) scratch: Vec<u64>,
    /// Whether some rank touches another's buffers.
    pub(crate) uses_windows: bool,
    /// Whether this rank consumes slots.
    pub(crate) receives: bool,
    /// Whether this rank publishes a slot before it has consumed one.
    pub(crate) sends_first: bool,
    _loops: Vec<Vec<layout::Loop>>,
    _steps: Vec<Vec<layout::Step>>,
    operands: Vec<Vec<layout::Operand>>,
    _resolved: Vec<Vec<*mut u8>>,
}

// SAFETY: the addresses point into vectors that move with the plan (their heap memory stays where it is), and are used by
// whichever single thread runs it.
unsafe impl Send for BoundPlan {}

impl BoundPlan {
    /// Lays out `rank`'s part of a plan, which is a right one (see `plan::verify`), and opens its connections.
    pub(crate) fn new(
        shared: &SharedPlan,
        rank: usize,
        ends: &mut Ends,
        transport: &dyn Transport,
    ) -> Result<BoundPlan, NoMemory> {
        let SharedPlan { plan, digest, connections, uses_windows } = shared;
        let programs = &plan.ranks[rank].programs;
        let mut bound = BoundPlan {
            digest: *digest,
            programs: Vec::with_capacity(programs.len()),
            states: vec![State::default(); programs.len()],
            completed: programs.iter().map(|_| Completed::default()).collect(),
            scratch: vec![0; plan.ranks[rank].scratch_bytes.div_ceil(8) as usize],
            uses_windows: *uses_windows,
            receives: plan.ranks.len() == 1 || connections.iter().any(|connection| connection.to == rank),
            sends_first: programs.iter().any(sends_first),
            _loops: Vec::new(),
            _steps: Vec::new(),
            operands: Vec::new(),
            _resolved: Vec::new(),
        };
        for (index, program) in programs.iter().enumerate() {
            let mut loops = Vec::with_capacity(program.loops.len());
            let mut steps = Vec::new();
            let mut operands = Vec::new();
            let mut longest = 0;
            for looped in &program.loops {
                loops.push(layout::Loop {
                    iterations: looped.iterations,
                    chunk_bytes: looped.chunk_bytes,
                    first_step: steps.len() as u32,
                    step_count: looped.steps.len() as u32,
                    reserved: 0,
                });
                for step in &looped.steps {
                    // There is no switch between CPU ranks: each reaches every other by its window.
                    let step = &*step.without_multicast(Rank(rank as u32), plan.ranks.len() as u32);
                    let first_operand = operands.len() as u32;
                    for source in &step.sources {
                        let mut operand = match source.operand {
                            Operand::Slot(id) => slot_operand(ends.receive(connections[id.index()], transport)?),
                            other => memory_operand(other),
                        };
                        operand.flags = if source.scale { operand_flag::SCALE } else { 0 };
                        operands.push(operand);
                    }
                    for destination in &step.destinations {
                        operands.push(match *destination {
                            Operand::Slot(id) => slot_operand(ends.send(connections[id.index()], transport)?),
                            other => memory_operand(other),
                        });
                    }
                    longest = longest.max(step.sources.len() + step.destinations.len());
                    let (after_program, after_first, after_stride) = after_numbers(programs, step.after);
                    // Ranks that share out a buffer are neighbours in it, and a processor that comes to the end of its part
                    // fetches ahead what its neighbour is about to write. So of two neighbours that start together one goes
                    // backwards, away from where they meet.
                    let awaited = is_awaited(programs, index as u32, steps.len() as u32);
                    steps.push(layout::Step {
                        bytes: step.bytes,
                        after_first,
                        after_stride,
                        first_operand,
                        source_count: step.sources.len() as u32,
                        destination_count: step.destinations.len() as u32,
                        flags: if step.finish { step_flag::FINISH } else { 0 }
                            | if step.touches_windows() { step_flag::TOUCHES_WINDOWS } else { 0 }
                            | if step.touches_windows() && rank.is_multiple_of(2) { step_flag::BACKWARDS } else { 0 }
                            | if awaited { step_flag::AWAITED } else { 0 }
                            | if streams(step, plan.ranks.len()) { step_flag::STREAMS } else { 0 },
                        after_program,
                        reserved: 0,
                    });
                }
            }
            let mut resolved = vec![std::ptr::null_mut(); longest];
            bound.programs.push(layout::Program {
                loops: loops.as_ptr(),
                steps: steps.as_ptr(),
                operands: operands.as_ptr(),
                resolved: resolved.as_mut_ptr(),
                loop_count: loops.len() as u32,
                index: index as u32,
            });
            bound._loops.push(loops);
            bound._steps.push(steps);
            bound.operands.push(operands);
            bound._resolved.push(resolved);
        }
        Ok(bound)
    }

    /// Whether a program has run to its end.
    #[inline]
    pub(crate) fn is_done(&self, program: usize) -> bool {
        self.states[program].loop_index == self.programs[program].loop_count
    }

    /// Makes the programs start at their first step.
    pub(crate) fn rewind(&mut self) {
        self.states.fill(State::default());
        for completed in &mut self.completed {
            completed.steps = 0;
        }
    }

    /// The operand of the given index of the step at which the program is.
    pub(crate) fn operand(&self, program: usize, operand: u32) -> Option<&layout::Operand> {
        let state = self.states.get(program)?;
        let looped = self._loops[program].get(state.loop_index as usize)?;
        let step = self._steps[program].get((looped.first_step + state.step) as usize)?;
        self.operands[program].get((step.first_operand + operand) as usize)
    }

    /// Whether an operand of the given index is a source of the step at which the program is.
    pub(crate) fn is_source(&self, program: usize, operand: u32) -> bool {
        let state = &self.states[program];
        let looped = &self._loops[program][state.loop_index as usize];
        operand < self._steps[program][(looped.first_step + state.step) as usize].source_count
    }

    /// How many steps each program runs.
    pub(crate) fn step_counts(&self) -> impl Iterator<Item = u64> {
        let steps = |looped: &layout::Loop| looped.iterations * u64::from(looped.step_count);
        self._loops.iter().map(move |loops| loops.iter().map(steps).sum())
    }

    /// Bytes that the layout holds.
    pub(crate) fn bytes(&self) -> u64 {
        let count = |sizes: usize| sizes as u64;
        let per_program: u64 = (0..self.programs.len())
            .map(|program| {
                count(size_of_val(&self._loops[program][..]))
                    + count(size_of_val(&self._steps[program][..]))
                    + count(size_of_val(&self.operands[program][..]))
                    + count(size_of_val(&self._resolved[program][..]))
            })
            .sum();
        per_program
            + count(size_of_val(&self.programs[..]))
            + count(size_of_val(&self.states[..]))
            + count(size_of_val(&self.completed[..]))
            + count(size_of_val(&self.scratch[..]))
    }
}

/// Whether the program publishes a slot before it has consumed one.
fn sends_first(program: &Program) -> bool {
    let is_slot = |operand: &Operand| matches!(operand, Operand::Slot(_));
    let mut steps = program.loops.iter().flat_map(|looped| &looped.steps);
    steps
        .find_map(|step| {
            let receives = step.sources.iter().any(|source| is_slot(&source.operand));
            let sends = step.destinations.iter().any(is_slot);
            (receives || sends).then_some(!receives)
        })
        .unwrap_or(false)
}

fn slot_operand(index: u32) -> layout::Operand {
    layout::Operand { kind: operand_kind::SLOT, flags: 0, index, buffer: 0, offset: 0 }
}

fn memory_operand(operand: Operand) -> layout::Operand {
    let code = |buffer| match buffer {
        Buffer::Input => layout::buffer::INPUT,
        Buffer::Output => layout::buffer::OUTPUT,
        Buffer::Scratch => layout::buffer::SCRATCH,
    };
    let (kind, index, buffer, offset) = match operand {
        Operand::Local { buffer, offset } => (operand_kind::LOCAL, code(buffer), 0, offset),
        Operand::Window { rank, buffer, offset } => (operand_kind::WINDOW, rank.0, code(buffer), offset),
        Operand::Slot(ConnectionId(_)) => unreachable!("slots are laid out by slot_operand"),
        Operand::Multicast { .. } => unreachable!("the step is without multicast operands"),
    };
    layout::Operand { kind, flags: 0, index, buffer, offset }
}

/// Which program a step waits on, and how many steps that one must have completed: at iteration 0, and per iteration.
fn after_numbers(programs: &[Program], after: Option<After>) -> (u32, u64, u64) {
    let Some(after) = after else { return (NO_PROGRAM, 0, 0) };
    let mut completed = 0;
    let mut first_step = 0;
    for looped in &programs[after.program.index()].loops {
        let steps = looped.steps.len() as u32;
        if after.step.0 < first_step + steps {
            return (after.program.0, completed + u64::from(after.step.0 - first_step) + 1, u64::from(steps));
        }
        first_step += steps;
        completed += looped.iterations * u64::from(steps);
    }
    unreachable!("the verifier proves that every step that is waited on exists")
}

/// Bytes that all ranks together write to one buffer from which on they go past the caches. Where that begins to pay depends on
/// how large the caches are: with 32 MiB shared by two ranks, all-reduces out of place are quicker from 8 MiB on and slower at
/// 1 MiB; from here on the last cache of most machines has no room for the results anyway.
const STREAMING_BYTES_MIN: u64 = 16 << 20;

/// Whether what a step writes had better go past the caches: all ranks do such a step at the same time, the caches are common to
/// them, and nobody looks at the results before the call is over. A slot is read at once, and scratch memory soon.
fn streams(step: &Step, rank_count: usize) -> bool {
    let is_result = |operand: &Operand| match operand {
        Operand::Local { buffer, .. } | Operand::Window { buffer, .. } | Operand::Multicast { buffer, .. } => {
            *buffer == Buffer::Output
        }
        Operand::Slot(_) => false,
    };
    step.bytes.saturating_mul(rank_count as u64) >= STREAMING_BYTES_MIN && step.destinations.iter().all(is_result)
}

/// Whether a step of another program waits on this one.
fn is_awaited(programs: &[Program], program: u32, step: u32) -> bool {
    programs
        .iter()
        .flat_map(|other| &other.loops)
        .flat_map(|looped| &looped.steps)
        .any(|other| other.after.is_some_and(|after| after.program.0 == program && after.step.0 == step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Rank, Source};

    #[test]
    fn large_results_are_streamed_and_slots_and_small_ones_are_not() {
        let output = Operand::Local { buffer: Buffer::Output, offset: 0 };
        let window = Operand::Window { rank: Rank(1), buffer: Buffer::Output, offset: 0 };
        let scratch = Operand::Local { buffer: Buffer::Scratch, offset: 0 };
        let slot = Operand::Slot(ConnectionId(0));
        let step = |bytes, destinations: &[Operand]| {
            let source = Source { operand: Operand::Local { buffer: Buffer::Input, offset: 0 }, scale: false };
            Step::new(bytes, vec![source; 2], destinations.to_vec())
        };
        assert!(streams(&step(8 << 20, &[output, window]), 2));
        assert!(!streams(&step((8 << 20) - 4, &[output, window]), 2));
        assert!(!streams(&step(64 << 20, &[output, slot]), 2));
        assert!(!streams(&step(64 << 20, &[scratch]), 2));
    }
}
