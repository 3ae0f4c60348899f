//! NVLS: a switch with a reduction unit does the work (NVIDIA's NVLink SHARP; the name is NCCL's).
//!
//! As the direct algorithms, with the same frames of empty slots, but where those read or write every rank's memory, one
//! multicast operand does: a rank reads the reduction of everyone's block, and writes a block to everyone. So each rank's memory
//! is read once and written once, however many ranks there are.
//!
//! A switch handles only aligned blocks; what is left of a block (less than a cache line, unless elements are of an odd size),
//! and blocks that begin elsewhere, are handled as the direct algorithm does.
//!
//! One rank alone makes each element of an all-reduce and writes it to all, so all ranks get the same bits. The order in which
//! the switch reduces is its own.

use super::builder::{Block, Builder, Request, aligned_unit_bytes};
use super::direct::{all_work, every_output, inputs_in_rank_order, root_works};
use super::multicast::MULTICAST_ALIGNMENT_BYTES;
use super::{Buffer, Collective, Operand, Rank, Step};

pub(super) fn build(builder: &mut Builder) {
    let request = builder.request;
    let whole = Block { offset: 0, bytes: request.bytes() };
    match request.collective {
        Collective::Broadcast { root } => root_works(builder, root, push(&request, root, whole)),
        Collective::Reduce { root } => root_works(builder, root, pull(&request, root, whole)),
        collective => all_work(builder, |rank| {
            let own = request.block(rank);
            match collective {
                Collective::ReduceScatter => pull(&request, rank, own),
                Collective::AllGather => push(&request, rank, own),
                _ => pull_and_push(&request, rank, own),
            }
        }),
    }
}

/// The reduction of everyone's block, into the own output.
fn pull(request: &Request, rank: Rank, block: Block) -> Vec<Step> {
    let step = |(part, switched): (Block, bool)| {
        let sources =
            if switched { vec![every_input(part).scaled()] } else { inputs_in_rank_order(request, rank, part) };
        Step::new(part.bytes, sources, vec![Operand::output(part.offset - block.offset)]).finished()
    };
    parts(request, block).into_iter().map(step).collect()
}

/// The own input, into everyone's block.
fn push(request: &Request, rank: Rank, block: Block) -> Vec<Step> {
    let step = |(part, switched): (Block, bool)| {
        let source = Operand::input(part.offset - block.offset).plain();
        Step::new(part.bytes, vec![source], outputs(request, rank, part, switched))
    };
    parts(request, block).into_iter().map(step).collect()
}

/// The reduction of everyone's block, into everyone's block.
fn pull_and_push(request: &Request, rank: Rank, block: Block) -> Vec<Step> {
    let step = |(part, switched): (Block, bool)| {
        let sources =
            if switched { vec![every_input(part).scaled()] } else { inputs_in_rank_order(request, rank, part) };
        Step::new(part.bytes, sources, outputs(request, rank, part, switched)).finished()
    };
    parts(request, block).into_iter().map(step).collect()
}

fn every_input(block: Block) -> Operand {
    Operand::Multicast { buffer: Buffer::Input, offset: block.offset }
}

fn outputs(request: &Request, rank: Rank, block: Block, switched: bool) -> Vec<Operand> {
    if switched {
        vec![Operand::Multicast { buffer: Buffer::Output, offset: block.offset }]
    } else {
        every_output(request, rank, block)
    }
}

/// What of a block the switch handles, and what is left; nothing where there is nothing.
fn parts(request: &Request, block: Block) -> Vec<(Block, bool)> {
    let unit_bytes = aligned_unit_bytes(request.element_bytes);
    let is_aligned = block.offset.is_multiple_of(MULTICAST_ALIGNMENT_BYTES) && unit_bytes <= UNIT_BYTES_MAX;
    let switched_bytes = if is_aligned { block.bytes / unit_bytes * unit_bytes } else { 0 };
    let rest = Block { offset: block.offset + switched_bytes, bytes: block.bytes - switched_bytes };
    let parts = [(Block { bytes: switched_bytes, ..block }, true), (rest, false)];
    parts.into_iter().filter(|(part, _)| part.bytes > 0).collect()
}

/// Elements of which no chunk is aligned go without the switch.
const UNIT_BYTES_MAX: u64 = 64 << 10;
