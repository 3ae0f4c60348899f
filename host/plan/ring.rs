//! Ring: each rank sends to the next one round the circle and receives from the one before.
//!
//! The data is cut into one block for each rank. Block `b` starts at rank `b + 1` and goes round, each rank adding its own
//! part, until it is complete at rank `b`, the last to add; an all-reduce then sends it round once more. The order of
//! reduction is therefore fixed for each block, one rank alone computes each result, and all ranks get the same bits. Both
//! halves are bandwidth-optimal (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", Journal of Parallel and Distributed Computing 69, 2009).
//!
//! With several channels each goes round in an order of its own, with its part of every block.
//!
//! All of a rank's steps in a channel stand in one loop over chunks. At chunk `k` a rank first reads its input's chunk `k` of every block
//! and only then writes that of another rank's block to its output, and chunks do not overlap; so input and output may be
//! the same memory.

use super::builder::{Block, Builder, Request};
use super::order::Order;
use super::{Collective, ConnectionId, Operand, Rank, Step};

/// In the middle of a chunk every rank may hold a full slot of each part to forward while its own slots to the next rank are still
/// full; with one more it can send before it frees the one that it reads. Without it there would be a circle of ranks that wait.
const fn slots(part_count: usize) -> u32 {
    part_count as u32 + 1
}

/// Of a block that takes several chunks, this many parts are on their way at once: while a message of one is not seen yet, bytes of the
/// other move, as with NCCL's slices. Connections of few slots do without.
const PARTS: usize = 2;

pub(super) fn build(builder: &mut Builder) {
    let request = builder.request;
    let channels = std::mem::take(&mut builder.channels);
    let chunk_bytes = builder.slot_chunk_bytes();
    for (channel, order) in channels.iter().enumerate() {
        let whole = Ring { request, order, channel, channel_count: channels.len(), part_count: 1 };
        let largest = request.ranks().map(|rank| whole.block(rank, 0).bytes).max().unwrap_or(0);
        let is_pipelined = largest > u64::from(chunk_bytes) && builder.slots() >= slots(PARTS);
        let part_count = if is_pipelined { PARTS } else { 1 };
        let ring = Ring { part_count, ..whole };
        let connections: Vec<ConnectionId> =
            request.ranks().map(|rank| builder.connect(rank, order.after(rank, 1), slots(part_count))).collect();
        for rank in request.ranks() {
            let send = Operand::Slot(connections[rank.index()]);
            let receive = Operand::Slot(connections[order.before(rank, 1).index()]);
            let mut steps = Vec::with_capacity(2 * request.rank_count as usize * part_count);
            match request.collective {
                Collective::ReduceScatter => ring.reduce_scatter(rank, send, receive, &mut steps),
                Collective::AllGather => ring.all_gather(rank, send, receive, &mut steps),
                _ => ring.all_reduce(rank, send, receive, &mut steps),
            }
            let steps = builder.chunked(chunk_bytes, steps);
            builder.add_program(rank, vec![steps]);
        }
    }
    builder.channels = channels;
}

/// One channel: a way round, and a share of each block, in parts.
#[derive(Clone, Copy)]
struct Ring<'a> {
    request: Request,
    order: &'a Order,
    channel: usize,
    channel_count: usize,
    part_count: usize,
}

impl Ring<'_> {
    /// A part of the channel's share of a rank's block.
    fn block(&self, rank: Rank, part: usize) -> Block {
        let share = self.request.part(self.request.block(rank), self.channel, self.channel_count);
        self.request.part(share, part, self.part_count)
    }

    /// The parts of the block of the rank that comes `distance` before `rank`.
    fn blocks_before(&self, rank: Rank, distance: u32) -> impl Iterator<Item = Block> {
        let owner = self.order.before(rank, distance);
        (0..self.part_count).map(move |part| self.block(owner, part))
    }

    /// The parts of a rank's own block.
    fn own_blocks(&self, rank: Rank) -> impl Iterator<Item = Block> {
        (0..self.part_count).map(move |part| self.block(rank, part))
    }

    fn all_reduce(&self, rank: Rank, send: Operand, receive: Operand, steps: &mut Vec<Step>) {
        self.reduce_blocks_of_others(rank, send, receive, steps);
        for own in self.own_blocks(rank) {
            let sources = vec![receive.plain(), Operand::input(own.offset).scaled()];
            steps.push(Step::new(own.bytes, sources, vec![Operand::output(own.offset), send]).finished());
        }
        self.receive_blocks_of_others(rank, send, receive, steps);
    }

    fn reduce_scatter(&self, rank: Rank, send: Operand, receive: Operand, steps: &mut Vec<Step>) {
        self.reduce_blocks_of_others(rank, send, receive, steps);
        for own in self.own_blocks(rank) {
            let sources = vec![receive.plain(), Operand::input(own.offset).scaled()];
            let to = own.offset - self.request.block(rank).offset;
            steps.push(Step::new(own.bytes, sources, vec![Operand::output(to)]).finished());
        }
    }

    fn all_gather(&self, rank: Rank, send: Operand, receive: Operand, steps: &mut Vec<Step>) {
        for own in self.own_blocks(rank) {
            let from = own.offset - self.request.block(rank).offset;
            let destinations = vec![Operand::output(own.offset), send];
            steps.push(Step::new(own.bytes, vec![Operand::input(from).plain()], destinations));
        }
        self.receive_blocks_of_others(rank, send, receive, steps);
    }

    /// Starts the block before this rank's own on its way, then adds to those further back as they come by.
    fn reduce_blocks_of_others(&self, rank: Rank, send: Operand, receive: Operand, steps: &mut Vec<Step>) {
        for first in self.blocks_before(rank, 1) {
            steps.push(Step::new(first.bytes, vec![Operand::input(first.offset).scaled()], vec![send]));
        }
        for distance in 2..self.request.rank_count {
            for block in self.blocks_before(rank, distance) {
                let sources = vec![receive.plain(), Operand::input(block.offset).scaled()];
                steps.push(Step::new(block.bytes, sources, vec![send]));
            }
        }
    }

    /// Keeps every other rank's block as it comes by and passes it on; the last one has nowhere left to go.
    fn receive_blocks_of_others(&self, rank: Rank, send: Operand, receive: Operand, steps: &mut Vec<Step>) {
        for distance in 1..self.request.rank_count {
            for block in self.blocks_before(rank, distance) {
                let mut destinations = vec![Operand::output(block.offset)];
                if distance + 1 < self.request.rank_count {
                    destinations.push(send);
                }
                steps.push(Step::new(block.bytes, vec![receive.plain()], destinations));
            }
        }
    }
}

/// Bytes that each rank sends.
///
/// Reduce-scatter sends every block but the rank's own, all-gather every block but the next rank's, and all-reduce does both:
/// `2 (N − 1) / N · S` for blocks of equal size (Patarasuk and Yuan 2009, theorem 1). Which rank is the next depends on the channel.
pub(super) fn published_bytes(request: &Request, channels: &[Order]) -> Vec<u64> {
    let next = |rank: Rank| {
        let part = |(channel, order): (usize, &Order)| {
            request.part(request.block(order.after(rank, 1)), channel, channels.len()).bytes
        };
        channels.iter().enumerate().map(part).sum::<u64>()
    };
    let sent = |rank: Rank| match request.collective {
        Collective::ReduceScatter | Collective::AllGather => request.bytes() * u64::from(request.rank_count - 1),
        _ => 2 * request.bytes() - request.block(rank).bytes - next(rank),
    };
    request.ranks().map(sent).collect()
}
