//! Recursive halving and doubling: an all-reduce in 2 ⌈log2 N⌉ exchanges, with as few bytes as any.
//!
//! Of P = 2^k ranks each exchanges half of its data with the one whose number differs in the highest bit, and reduces the half that it
//! keeps; then half of that with the one that differs in the next bit, and so on, until each has one block of P, complete. The way
//! back is the same with the bits in the opposite order, each exchange doubling what a rank has (Rabenseifner, "Optimization of
//! collective reduction operations", ICCS 2004; Thakur, Rabenseifner and Gropp 2005).
//!
//! With other numbers of ranks, N = P + r, the first 2 r ranks come together in pairs before: the even one sends all it has to the odd
//! one, which reduces and takes part for both; in the end it sends the result back.
//!
//! Each block is completed by one rank alone, so all ranks get the same bits. A rank writes a part of its output only when it has read
//! that part of its input, and reads no other part afterwards but what it sent before; so the two may be the same memory.

use super::builder::{Block, Builder, Request};
use super::{ConnectionId, Loop, Operand, Rank, Step};

/// In each exchange both sides send a chunk before they wait for one.
const SLOTS: u32 = 1;

pub(super) fn build(builder: &mut Builder) {
    let request = builder.request;
    let core = Core::of(&request);
    let chunk_bytes = builder.slot_chunk_bytes();
    // To the odd rank of a pair and back, indexed by pair.
    let pairs: Vec<[ConnectionId; 2]> = (0..core.pair_count)
        .map(|pair| {
            let (even, odd) = (Rank(2 * pair), Rank(2 * pair + 1));
            [builder.connect(even, odd, SLOTS), builder.connect(odd, even, SLOTS)]
        })
        .collect();
    // Indexed by round, then by place in the core.
    let rounds: Vec<Vec<ConnectionId>> = (0..core.round_count)
        .map(|round| {
            let connect = |place| builder.connect(core.rank(place), core.rank(core.partner(place, round)), SLOTS);
            (0..core.size()).map(connect).collect()
        })
        .collect();
    let bytes = request.bytes();
    let (input, output) = (Operand::input(0), Operand::output(0));
    for [there, back] in &pairs {
        let (even, _) = builder.ends(*there);
        let send = Step::new(bytes, vec![input.scaled()], vec![Operand::Slot(*there)]);
        let receive = Step::new(bytes, vec![Operand::Slot(*back).plain()], vec![output]);
        let loops = vec![builder.chunked(chunk_bytes, vec![send]), builder.chunked(chunk_bytes, vec![receive])];
        builder.add_program(even, loops);
    }
    for place in 0..core.size() {
        let rank = core.rank(place);
        let pair = pairs.get(place as usize).filter(|_| place < core.pair_count);
        let mut loops: Vec<Loop> = Vec::with_capacity(2 * core.round_count as usize + 2);
        if let Some([there, _]) = pair {
            let sources = vec![Operand::Slot(*there).plain(), input.scaled()];
            let mut step = Step::new(bytes, sources, vec![output]);
            // Two ranks are one pair, and nothing follows.
            step.finish = core.round_count == 0;
            loops.push(builder.chunked(chunk_bytes, vec![step]));
        }
        for round in 0..core.round_count {
            let (kept, given) =
                (core.kept(&request, place, round), core.kept(&request, core.partner(place, round), round));
            let own = |block: Block| match (round, pair) {
                (0, None) => Operand::input(block.offset).scaled(),
                _ => Operand::output(block.offset).plain(),
            };
            let (send, receive) = exchange(&core, &rounds, place, round);
            let mut reduce =
                Step::new(kept.bytes, vec![receive.plain(), own(kept)], vec![Operand::output(kept.offset)]);
            reduce.finish = round + 1 == core.round_count;
            loops
                .push(builder.chunked(chunk_bytes, vec![Step::new(given.bytes, vec![own(given)], vec![send]), reduce]));
        }
        for round in (0..core.round_count).rev() {
            let (own, other) =
                (core.kept(&request, place, round), core.kept(&request, core.partner(place, round), round));
            let (send, receive) = exchange(&core, &rounds, place, round);
            let give = Step::new(own.bytes, vec![Operand::output(own.offset).plain()], vec![send]);
            let take = Step::new(other.bytes, vec![receive.plain()], vec![Operand::output(other.offset)]);
            loops.push(builder.chunked(chunk_bytes, vec![give, take]));
        }
        if let Some([_, back]) = pair {
            let step = Step::new(bytes, vec![output.plain()], vec![Operand::Slot(*back)]);
            loops.push(builder.chunked(chunk_bytes, vec![step]));
        }
        builder.add_program(rank, loops);
    }
}

/// The slots to a place's partner of a round, and from it.
fn exchange(core: &Core, rounds: &[Vec<ConnectionId>], place: u32, round: u32) -> (Operand, Operand) {
    let of_round = &rounds[round as usize];
    let partner = core.partner(place, round);
    (Operand::Slot(of_round[place as usize]), Operand::Slot(of_round[partner as usize]))
}

/// The ranks that halve and double: one of each pair, and all that are in none.
struct Core {
    pair_count: u32,
    round_count: u32,
}

impl Core {
    fn of(request: &Request) -> Core {
        let round_count = request.rank_count.ilog2();
        Core { pair_count: request.rank_count - (1 << round_count), round_count }
    }

    /// How many there are, a power of two.
    fn size(&self) -> u32 {
        1 << self.round_count
    }

    fn rank(&self, place: u32) -> Rank {
        if place < self.pair_count { Rank(2 * place + 1) } else { Rank(place + self.pair_count) }
    }

    fn partner(&self, place: u32, round: u32) -> u32 {
        place ^ (self.size() >> (round + 1))
    }

    /// What a place keeps of the data when it has halved it in this round and those before.
    fn kept(&self, request: &Request, place: u32, round: u32) -> Block {
        let width = self.size() >> (round + 1);
        let first = place & !(width - 1);
        let (start, last) = (request.share(first, self.size()), request.share(first + width - 1, self.size()));
        Block { offset: start.offset, bytes: last.offset + last.bytes - start.offset }
    }
}

/// Bytes that each rank sends: `2 (P − 1) / P · S` for each of the P that halve and double, for blocks of equal size, and `S` more for
/// each rank of a pair (Rabenseifner 2004).
pub(super) fn published_bytes(request: &Request) -> Vec<u64> {
    let core = Core::of(request);
    let mut sent = vec![0; request.rank_count as usize];
    for pair in 0..core.pair_count {
        sent[2 * pair as usize] = request.bytes();
        sent[2 * pair as usize + 1] = request.bytes();
    }
    for place in 0..core.size() {
        let halves = (0..core.round_count).map(|round| {
            let (kept, given) =
                (core.kept(request, place, round), core.kept(request, core.partner(place, round), round));
            kept.bytes + given.bytes
        });
        sent[core.rank(place).index()] += halves.sum::<u64>();
    }
    sent
}
