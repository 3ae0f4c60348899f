//! Ring: each rank sends to the next one round the circle and receives from the one before.
//!
//! The data is cut into one block for each rank. Block `b` starts at rank `b + 1` and goes round, each rank adding its own
//! part, until it is complete at rank `b`, the last to add; an all-reduce then sends it round once more. The order of
//! reduction is therefore fixed for each block, one rank alone computes each result, and all ranks get the same bits. Both
//! halves are bandwidth-optimal (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", Journal of Parallel and Distributed Computing 69, 2009).
//!
//! All of a rank's steps stand in one loop over chunks. At chunk `k` a rank first reads its input's chunk `k` of every block
//! and only then writes that of another rank's block to its output, and chunks do not overlap; so input and output may be
//! the same memory.

use super::builder::{Builder, Request};
use super::{Collective, ConnectionId, Operand, Rank, Step};

/// In the middle of a chunk every rank may hold a full slot to forward while its own slot to the next rank is still full; with
/// a second slot it can send before it frees the one that it reads. One slot would be a circle of ranks that wait.
const SLOTS: u32 = 2;

pub(super) fn build(builder: &mut Builder) {
    let request = builder.request;
    let connections: Vec<ConnectionId> =
        request.ranks().map(|rank| builder.connect(rank, request.rank_after(rank, 1), SLOTS)).collect();
    for rank in request.ranks() {
        let send = Operand::Slot(connections[rank.index()]);
        let receive = Operand::Slot(connections[request.rank_before(rank, 1).index()]);
        let steps = match request.collective {
            Collective::ReduceScatter => reduce_scatter(&request, rank, send, receive),
            Collective::AllGather => all_gather(&request, rank, send, receive),
            _ => all_reduce(&request, rank, send, receive),
        };
        let steps = builder.chunked(builder.slot_chunk_bytes(), steps);
        builder.add_program(rank, vec![steps]);
    }
}

fn all_reduce(request: &Request, rank: Rank, send: Operand, receive: Operand) -> Vec<Step> {
    let mut steps = Vec::with_capacity(2 * request.rank_count as usize - 1);
    reduce_blocks_of_others(request, rank, send, receive, &mut steps);
    let own = request.block(rank);
    steps.push(
        Step::new(
            own.bytes,
            vec![receive.plain(), Operand::input(own.offset).scaled()],
            vec![Operand::output(own.offset), send],
        )
        .finished(),
    );
    receive_blocks_of_others(request, rank, send, receive, &mut steps);
    steps
}

fn reduce_scatter(request: &Request, rank: Rank, send: Operand, receive: Operand) -> Vec<Step> {
    let mut steps = Vec::with_capacity(request.rank_count as usize);
    reduce_blocks_of_others(request, rank, send, receive, &mut steps);
    let own = request.block(rank);
    let sources = vec![receive.plain(), Operand::input(own.offset).scaled()];
    steps.push(Step::new(own.bytes, sources, vec![Operand::output(0)]).finished());
    steps
}

fn all_gather(request: &Request, rank: Rank, send: Operand, receive: Operand) -> Vec<Step> {
    let mut steps = Vec::with_capacity(request.rank_count as usize);
    let own = request.block(rank);
    steps.push(Step::new(own.bytes, vec![Operand::input(0).plain()], vec![Operand::output(own.offset), send]));
    receive_blocks_of_others(request, rank, send, receive, &mut steps);
    steps
}

/// Starts the block before this rank's own on its way, then adds to those further back as they come by.
fn reduce_blocks_of_others(request: &Request, rank: Rank, send: Operand, receive: Operand, steps: &mut Vec<Step>) {
    let first = request.block(request.rank_before(rank, 1));
    steps.push(Step::new(first.bytes, vec![Operand::input(first.offset).scaled()], vec![send]));
    for distance in 2..request.rank_count {
        let block = request.block(request.rank_before(rank, distance));
        let sources = vec![receive.plain(), Operand::input(block.offset).scaled()];
        steps.push(Step::new(block.bytes, sources, vec![send]));
    }
}

/// Keeps every other rank's block as it comes by and passes it on; the last one has nowhere left to go.
fn receive_blocks_of_others(request: &Request, rank: Rank, send: Operand, receive: Operand, steps: &mut Vec<Step>) {
    for distance in 1..request.rank_count {
        let block = request.block(request.rank_before(rank, distance));
        let mut destinations = vec![Operand::output(block.offset)];
        if distance + 1 < request.rank_count {
            destinations.push(send);
        }
        steps.push(Step::new(block.bytes, vec![receive.plain()], destinations));
    }
}

/// Bytes that each rank sends.
///
/// Reduce-scatter sends every block but the rank's own, all-gather every block but the next rank's, and all-reduce does both:
/// `2 (N − 1) / N · S` for blocks of equal size (Patarasuk and Yuan 2009, theorem 1).
pub(super) fn published_bytes(request: &Request) -> Vec<u64> {
    let sent = |rank: Rank| match request.collective {
        Collective::ReduceScatter | Collective::AllGather => request.bytes() * u64::from(request.rank_count - 1),
        _ => 2 * request.bytes() - request.block(rank).bytes - request.block(request.rank_after(rank, 1)).bytes,
    };
    request.ranks().map(sent).collect()
}
