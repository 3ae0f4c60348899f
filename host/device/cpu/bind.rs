//! A plan's tables on the heap, for the CPU's interpreter.

use tutti_kernels::interpreter::State;
use tutti_kernels::layout::{self, Completed};

use crate::device::program::{Conventions, Ends, ProgramTables, RankTables};
use crate::plan_cache::SharedPlan;
use crate::transport::{NoMemory, Transport};

/// One rank's part of a plan, laid out. The addresses inside point into the vectors beside them, which are never resized.
pub(crate) struct BoundPlan {
    pub(crate) tables: RankTables,
    pub(crate) programs: Vec<layout::Program>,
    pub(crate) states: Vec<State>,
    pub(crate) completed: Vec<Completed>,
    pub(crate) scratch: Vec<u64>,
    resolved: Vec<Vec<*mut u8>>,
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
        // There is no switch between CPU ranks: each reaches every other by its window.
        let conventions = Conventions { multicast: false, caches: true };
        let tables = RankTables::new(shared, rank, ends, transport, conventions)?;
        let mut resolved: Vec<Vec<*mut u8>> =
            tables.programs.iter().map(|table| vec![std::ptr::null_mut(); table.operands_max]).collect();
        let program = |(index, (table, resolved)): (usize, (&ProgramTables, &mut Vec<*mut u8>))| layout::Program {
            loops: table.loops.as_ptr(),
            steps: table.steps.as_ptr(),
            operands: table.operands.as_ptr(),
            resolved: resolved.as_mut_ptr(),
            loop_count: table.loops.len() as u32,
            index: index as u32,
        };
        Ok(BoundPlan {
            programs: tables.programs.iter().zip(&mut resolved).enumerate().map(program).collect(),
            states: vec![State::default(); tables.programs.len()],
            completed: tables.programs.iter().map(|_| Completed::default()).collect(),
            scratch: vec![0; tables.scratch_bytes.div_ceil(8) as usize],
            tables,
            resolved,
        })
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
        let step = self.step(program)?;
        self.tables.programs[program].operands.get((step.first_operand + operand) as usize)
    }

    /// Whether an operand of the given index is a source of the step at which the program is.
    pub(crate) fn is_source(&self, program: usize, operand: u32) -> bool {
        self.step(program).is_some_and(|step| operand < step.source_count)
    }

    /// The step at which the program is.
    fn step(&self, program: usize) -> Option<&layout::Step> {
        let (state, table) = (self.states.get(program)?, &self.tables.programs[program]);
        let looped = table.loops.get(state.loop_index as usize)?;
        table.steps.get((looped.first_step + state.step) as usize)
    }

    /// How many steps each program runs.
    pub(crate) fn step_counts(&self) -> impl Iterator<Item = u64> {
        self.tables.programs.iter().map(ProgramTables::step_count)
    }

    /// Bytes that the layout holds.
    pub(crate) fn bytes(&self) -> u64 {
        let count = |sizes: usize| sizes as u64;
        let per_program: u64 = self
            .tables
            .programs
            .iter()
            .zip(&self.resolved)
            .map(|(table, resolved)| {
                count(size_of_val(&table.loops[..]))
                    + count(size_of_val(&table.steps[..]))
                    + count(size_of_val(&table.operands[..]))
                    + count(size_of_val(&resolved[..]))
            })
            .sum();
        per_program
            + count(size_of_val(&self.programs[..]))
            + count(size_of_val(&self.states[..]))
            + count(size_of_val(&self.completed[..]))
            + count(size_of_val(&self.scratch[..]))
    }
}
