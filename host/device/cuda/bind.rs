//! A plan in the memory of devices: each rank's tables, with a device's addresses, as its kernels read them.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tutti_kernels::layout::{self, BlockView, Call, Completed, Fingerprint, Launch, Program, buffer, slot_format};

use super::heap::ALIGNMENT;
use super::ranks::{CudaTransport, Gpu, Ranks, address};
use super::result::Failure;
use crate::device::program::{Conventions, RankTables};
use crate::error::{Error, Result};
use crate::plan_cache::SharedPlan;

/// What the kernels of one rank need to run its part of a plan.
pub(crate) struct BoundRank {
    /// Its [`Launch`].
    pub(crate) launch: u64,
    /// Blocks: one for each program, and at least one.
    pub(crate) blocks: u32,
    pub(crate) sends_first: bool,
    pub(crate) receives: bool,
    /// Steps of each program.
    pub(crate) step_counts: Vec<u64>,
    /// Where its kernels leave when steps ran, as its launch says now.
    pub(crate) traces: AtomicU64,
    /// Bytes of the device that the tables take, and the scratch memory.
    pub(crate) bytes: u64,
    memory: u64,
}

/// A plan laid out for every rank. Its memory stays with the ranks' devices, to be used for other plans when this one goes.
pub(crate) struct Bound {
    pub(crate) shared: Arc<SharedPlan>,
    pub(crate) ranks: Vec<BoundRank>,
    /// Threads of a block.
    pub(crate) threads: u32,
    /// For each device, the blocks of all its ranks.
    pub(crate) blocks_of_device: Vec<u32>,
}

/// Memory that is filled here first: pieces one after the other, each at a known distance from the start.
#[derive(Default)]
struct Draft {
    bytes: Vec<u8>,
}

impl Draft {
    /// Room for so many bytes; where.
    fn room(&mut self, bytes: usize) -> usize {
        let at = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(at + bytes, 0);
        at
    }

    /// These values; where.
    fn put<T: Copy>(&mut self, values: &[T]) -> usize {
        let at = self.room(size_of_val(values));
        self.set(at, values);
        at
    }

    fn set<T: Copy>(&mut self, at: usize, values: &[T]) {
        // SAFETY: the layouts are made of integers and addresses.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Threads that a block needs for steps of so many bytes at most: each handles 16 bytes at least.
fn threads_for(chunk_bytes: u64) -> u32 {
    const PACK_BYTES: u64 = 16;
    let wanted = chunk_bytes.div_ceil(PACK_BYTES).clamp(1, u64::from(tutti_codegen::BLOCK_THREADS_MAX)) as u32;
    wanted.next_multiple_of(tutti_codegen::WARP_THREADS)
}

/// Lays out a plan for all ranks, and opens the connections that it needs; `switched` says whether a switch does what the plan has one
/// do.
pub(crate) fn bind(ranks: &Arc<Ranks>, shared: &Arc<SharedPlan>, switched: bool) -> Result<Bound> {
    let mut bound = Bound {
        shared: Arc::clone(shared),
        ranks: Vec::with_capacity(ranks.rank_count()),
        threads: 0,
        blocks_of_device: vec![0; ranks.gpus.len()],
    };
    let programs = shared.plan.ranks.iter().flat_map(|rank| &rank.programs);
    let chunk_bytes = programs.flat_map(|program| &program.loops).map(|looped| {
        let longest = looped.steps.iter().map(|step| step.bytes).max().unwrap_or(0);
        longest.min(u64::from(looped.chunk_bytes))
    });
    bound.threads = threads_for(chunk_bytes.max().unwrap_or(0));
    let transport = CudaTransport(Arc::clone(ranks));
    for rank in 0..ranks.rank_count() {
        let conventions = Conventions { multicast: switched, caches: false };
        let tables = ranks.with_ends(rank, |ends| RankTables::new(shared, rank, ends, &transport, conventions))?;
        let laid_out = lay_out(ranks, rank, &tables).map_err(|failure: Failure| out_of_memory(rank, failure))?;
        bound.blocks_of_device[ranks.place(rank)] += laid_out.blocks;
        bound.ranks.push(laid_out);
    }
    Ok(bound)
}

/// The error of a rank that finds no memory for its plan, or the driver's own.
fn out_of_memory(rank: usize, failure: Failure) -> Error {
    failure.during(format_args!("laying out a plan for rank {rank}"))
}

fn lay_out(ranks: &Ranks, rank: usize, tables: &RankTables) -> Result<BoundRank, Failure> {
    let gpu: &Gpu = ranks.gpu(rank);
    let blocks = tables.programs.len().max(1);
    let mut draft = Draft::default();
    let launch_at = draft.room(size_of::<Launch>());
    let programs_at = draft.room(tables.programs.len() * size_of::<Program>());
    let views_at = draft.room(blocks * size_of::<BlockView>());
    let completed_at = draft.room(tables.programs.len() * size_of::<Completed>());
    let parts: Vec<[usize; 4]> = tables
        .programs
        .iter()
        .map(|table| {
            [
                draft.put(&table.loops),
                draft.put(&table.steps),
                draft.put(&table.operands),
                draft.room(8 * table.operands_max),
            ]
        })
        .collect();
    // Nobody reads what nobody wrote there, so it need not be filled.
    let scratch_at = draft.bytes.len().next_multiple_of(ALIGNMENT);
    let bytes = scratch_at + tables.scratch_bytes as usize;
    let memory = gpu.take(bytes)?;
    let at = |offset: usize| memory + offset as u64;
    let programs: Vec<Program> = tables
        .programs
        .iter()
        .zip(&parts)
        .enumerate()
        .map(|(index, (table, [loops, steps, operands, resolved]))| Program {
            loops: address::<layout::Loop>(at(*loops)),
            steps: address::<layout::Step>(at(*steps)),
            operands: address::<layout::Operand>(at(*operands)),
            resolved: address(at(*resolved)),
            loop_count: table.loops.len() as u32,
            index: index as u32,
        })
        .collect();
    draft.set(programs_at, &programs);
    let mut buffers = [std::ptr::null_mut(); buffer::COUNT];
    buffers[buffer::SCRATCH as usize] = address(at(scratch_at));
    let call = Call {
        fingerprint: Fingerprint::default(),
        buffers,
        windows: address::<layout::Window>(ranks.ranks[rank].windows),
        multicast: std::ptr::null(),
        sends: std::ptr::null_mut(),
        receives: std::ptr::null_mut(),
        completed: address(at(completed_at)),
        abort: address::<u32>(ranks.abort_address()),
        // What is lent is given back only when the kernels of all ranks have ended.
        touching: std::ptr::null_mut(),
        traces: std::ptr::null_mut(),
        scale: 0,
        finish: 0,
        slot_format: slot_format::SIMPLE,
        reserved: 0,
    };
    let launch = Launch {
        call,
        programs: address::<Program>(at(programs_at)),
        blocks: address(at(views_at)),
        rank: address(ranks.ranks[rank].state),
        program_count: tables.programs.len() as u32,
        reserved: 0,
    };
    draft.set(launch_at, &[launch]);
    gpu.write(memory, &draft.bytes)?;
    Ok(BoundRank {
        launch: at(launch_at),
        blocks: blocks as u32,
        sends_first: tables.sends_first,
        receives: tables.receives,
        step_counts: tables.programs.iter().map(|table| table.step_count()).collect(),
        traces: AtomicU64::new(0),
        bytes: bytes as u64,
        memory,
    })
}

impl Bound {
    /// Gives its memory back. No kernel runs it any more, and none will.
    pub(crate) fn give_back(&self, ranks: &Ranks) {
        for (rank, bound) in self.ranks.iter().enumerate() {
            ranks.gpu(rank).give(bound.memory, bound.bytes as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_whole_warps_and_no_more_threads_than_there_is_work_for() {
        for (bytes, threads) in [(0, 32), (1, 32), (512, 32), (513, 64), (4096, 256), (1 << 20, 256)] {
            assert_eq!(threads_for(bytes), threads, "{bytes} bytes");
        }
    }
}
