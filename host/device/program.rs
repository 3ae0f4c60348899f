//! One rank's part of a plan as the interpreter reads it, wherever that is going to lie: loops, steps and operands with the indices
//! of its connections' ends, but no addresses of its own.
//!
//! **Invariant.** Only tables: a device gives them their place.

use std::collections::HashMap;

use tutti_kernels::layout::{self, NO_PROGRAM, ReceiveEnd, SendEnd, operand_flag, operand_kind, step_flag};

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

/// How steps are told on a device.
#[derive(Clone, Copy)]
pub(crate) struct Conventions {
    /// Whether there is a switch that reduces: otherwise a step through it is one with an operand for each rank.
    pub(crate) multicast: bool,
    /// Whether the order in which a team goes through memory, and whether that goes past the caches, is for the host to say.
    pub(crate) caches: bool,
}

/// One program.
#[derive(Default)]
pub(crate) struct ProgramTables {
    pub(crate) loops: Vec<layout::Loop>,
    pub(crate) steps: Vec<layout::Step>,
    pub(crate) operands: Vec<layout::Operand>,
    /// Operands of the longest step.
    pub(crate) operands_max: usize,
}

impl ProgramTables {
    /// How many steps it runs.
    pub(crate) fn step_count(&self) -> u64 {
        self.loops.iter().map(|looped| looped.iterations * u64::from(looped.step_count)).sum()
    }
}

/// All of them, and what is to be known of the plan to make a call of it.
pub(crate) struct RankTables {
    pub(crate) programs: Vec<ProgramTables>,
    pub(crate) digest: u64,
    pub(crate) scratch_bytes: u64,
    /// Whether some rank touches another's buffers.
    pub(crate) uses_windows: bool,
    /// Whether this rank consumes slots, or is alone.
    pub(crate) receives: bool,
    /// Whether this rank publishes a slot before it has consumed one.
    pub(crate) sends_first: bool,
}

impl RankTables {
    /// Those of `rank` in a plan, which is a right one (see `plan::verify`). Opens its connections.
    pub(crate) fn new(
        shared: &SharedPlan,
        rank: usize,
        ends: &mut Ends,
        transport: &dyn Transport,
        conventions: Conventions,
    ) -> Result<RankTables, NoMemory> {
        let SharedPlan { plan, digest, connections, uses_windows } = shared;
        let programs = &plan.ranks[rank].programs;
        let mut tables = RankTables {
            programs: Vec::with_capacity(programs.len()),
            digest: *digest,
            scratch_bytes: plan.ranks[rank].scratch_bytes,
            uses_windows: *uses_windows,
            receives: plan.ranks.len() == 1 || connections.iter().any(|connection| connection.to == rank),
            sends_first: programs.iter().any(sends_first),
        };
        for (index, program) in programs.iter().enumerate() {
            let mut table = ProgramTables::default();
            let mut steps_before = 0;
            for looped in &program.loops {
                table.loops.push(layout::Loop {
                    iterations: looped.iterations,
                    chunk_bytes: looped.chunk_bytes,
                    first_step: table.steps.len() as u32,
                    step_count: looped.steps.len() as u32,
                    reserved: 0,
                    steps_before,
                });
                steps_before += looped.iterations * looped.steps.len() as u64;
                for step in &looped.steps {
                    let expanded;
                    let step = if conventions.multicast {
                        step
                    } else {
                        expanded = step.without_multicast(Rank(rank as u32), plan.ranks.len() as u32);
                        &*expanded
                    };
                    let first_operand = table.operands.len() as u32;
                    for source in &step.sources {
                        let mut operand = match source.operand {
                            Operand::Slot(id) => slot_operand(ends.receive(connections[id.index()], transport)?),
                            other => memory_operand(other),
                        };
                        operand.flags = if source.scale { operand_flag::SCALE } else { 0 };
                        table.operands.push(operand);
                    }
                    for destination in &step.destinations {
                        table.operands.push(match *destination {
                            Operand::Slot(id) => slot_operand(ends.send(connections[id.index()], transport)?),
                            other => memory_operand(other),
                        });
                    }
                    table.operands_max = table.operands_max.max(step.sources.len() + step.destinations.len());
                    let (after_program, after_first, after_stride) = after_numbers(programs, step.after);
                    let awaited = is_awaited(programs, index as u32, table.steps.len() as u32);
                    table.steps.push(layout::Step {
                        bytes: step.bytes,
                        after_first,
                        after_stride,
                        first_operand,
                        source_count: step.sources.len() as u32,
                        destination_count: step.destinations.len() as u32,
                        flags: step_flags(step, rank, plan.ranks.len(), conventions)
                            | if awaited { step_flag::AWAITED } else { 0 },
                        after_program,
                        reserved: 0,
                    });
                }
            }
            tables.programs.push(table);
        }
        Ok(tables)
    }
}

/// The flags that a step has by itself.
fn step_flags(step: &Step, rank: usize, rank_count: usize, conventions: Conventions) -> u32 {
    let mut flags = 0;
    let mut mark = |is_so, flag| flags |= if is_so { flag } else { 0 };
    let is_multicast = |operand: &Operand| matches!(operand, Operand::Multicast { .. });
    let touches_windows = step.touches_windows();
    mark(step.finish, step_flag::FINISH);
    mark(touches_windows, step_flag::TOUCHES_WINDOWS);
    mark(step.sources.iter().any(|source| is_multicast(&source.operand)), step_flag::MULTICAST_SOURCE);
    mark(step.destinations.iter().any(is_multicast), step_flag::MULTICAST_DESTINATION);
    if conventions.caches {
        // Ranks that share out a buffer are neighbours in it, and a processor that comes to the end of its part fetches ahead
        // what its neighbour is about to write. So of two neighbours that start together one goes backwards, away from where
        // they meet.
        mark(touches_windows && rank.is_multiple_of(2), step_flag::BACKWARDS);
        mark(streams(step, rank_count), step_flag::STREAMS);
    }
    flags
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
        Operand::Multicast { buffer, offset } => (operand_kind::MULTICAST, 0, code(buffer), offset),
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
