//! Bruck's all-gather: ⌈log2 N⌉ exchanges, whatever the number of ranks.
//!
//! In round `j` each rank sends all that it has, up to 2^j blocks from its own on, to the rank 2^j before it, and receives as much from
//! the rank 2^j after it (Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
//! multiport message-passing systems", IEEE Transactions on Parallel and Distributed Systems 8, 1997). There each rank keeps its blocks
//! in an order that begins with its own, and turns them round in the end; here they go to their places at once, and what goes over the
//! end of the buffer is a second message.

use super::builder::{Block, Builder, Request};
use super::{ConnectionId, Operand, Rank, Step};

/// Both sides send their two messages of a chunk before they wait for any.
const SLOTS: u32 = 2;

pub(super) fn build(builder: &mut Builder) {
    let request = builder.request;
    let chunk_bytes = builder.slot_chunk_bytes();
    // Indexed by round, then by the sender's rank.
    let connections: Vec<Vec<ConnectionId>> = (0..round_count(&request))
        .map(|round| {
            let connect = |rank| builder.connect(rank, request.rank_before(rank, 1 << round), SLOTS);
            request.ranks().map(connect).collect()
        })
        .collect();
    for rank in request.ranks() {
        let own = request.block(rank);
        let copy = Step::new(own.bytes, vec![Operand::input(0).plain()], vec![Operand::output(own.offset)]);
        let mut loops = vec![builder.chunked(builder.memory_chunk_bytes(), vec![copy])];
        for (round, connections) in (0..).zip(&connections) {
            let after = request.rank_after(rank, 1 << round);
            let send = Operand::Slot(connections[rank.index()]);
            let receive = Operand::Slot(connections[after.index()]);
            let sends = pieces(&request, rank, round)
                .map(|piece| Step::new(piece.bytes, vec![Operand::output(piece.offset).plain()], vec![send]));
            let receives = pieces(&request, after, round)
                .map(|piece| Step::new(piece.bytes, vec![receive.plain()], vec![Operand::output(piece.offset)]));
            // All ranks take as many turns, however their blocks are cut.
            let bytes = request.bytes() * u64::from(block_count(&request, round));
            loops.push(builder.chunked_for(bytes, chunk_bytes, sends.into_iter().chain(receives).collect()));
        }
        builder.add_program(rank, loops);
    }
}

fn round_count(request: &Request) -> u32 {
    request.rank_count.next_power_of_two().ilog2()
}

/// Blocks that a rank sends in a round.
fn block_count(request: &Request, round: u32) -> u32 {
    (1 << round).min(request.rank_count - (1 << round))
}

/// The blocks that a rank sends in a round: up to the end of the buffer, and from its start on.
fn pieces(request: &Request, rank: Rank, round: u32) -> [Block; 2] {
    let count = block_count(request, round);
    let before_end = count.min(request.rank_count - rank.0);
    let blocks = |first: Rank, count: u32| Block {
        offset: request.block(first).offset,
        bytes: u64::from(count) * request.bytes(),
    };
    [blocks(rank, before_end), blocks(Rank(0), count - before_end)]
}

/// Bytes that each rank sends: every block but one, `(N − 1) / N · S` (Bruck et al. 1997).
pub(super) fn published_bytes(request: &Request) -> Vec<u64> {
    vec![request.bytes() * u64::from(request.rank_count - 1); request.rank_count as usize]
}
