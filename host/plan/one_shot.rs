//! One-shot all-reduce: everyone sends everything to everyone, and each rank reduces for itself.
//!
//! One exchange instead of a walk round the ranks, so it is the quickest for small data; it sends most bytes of all. Each rank
//! reduces the same numbers in rank order, so all ranks get the same bits. For that to hold to the last bit, what travels is
//! the input as it is: it is scaled where it is reduced, the same way on every rank, and not where it is sent.
//!
//! At each chunk a rank has sent its input before it writes its output; so the two may be the same memory.

use super::builder::{Builder, Request};
use super::{Operand, Step};

/// A rank sends chunk `k + 1` once its peers have read chunk `k`, and for that they need only what everyone has sent already.
const SLOTS: u32 = 1;

pub(super) fn build(builder: &mut Builder) {
    let request = builder.request;
    let mesh = builder.connect_all(SLOTS);
    let bytes = request.bytes();
    for rank in request.ranks() {
        let input = Operand::input(0);
        let operand_of = |peer| if peer == rank { input } else { Operand::Slot(mesh.connection(peer, rank)) };
        let sources = request.ranks().map(|peer| operand_of(peer).scaled()).collect();
        let steps = vec![
            Step::new(bytes, vec![input.plain()], mesh.slots_to_peers(rank)),
            Step::new(bytes, sources, vec![Operand::output(0)]).finished(),
        ];
        let steps = builder.chunked(builder.slot_chunk_bytes(), steps);
        builder.add_program(rank, vec![steps]);
    }
}

/// Bytes that each rank sends: `(N − 1) S`, all of its input to each peer. That is the price of one exchange: the
/// latency-optimal all-reduce by all-to-all broadcast (Chan, Heimlich, Purkayastha and van de Geijn, "Collective
/// communication: theory, practice, and experience", Concurrency and Computation 19, 2007, on short vectors).
pub(super) fn published_bytes(request: &Request) -> Vec<u64> {
    vec![u64::from(request.rank_count - 1) * request.bytes(); request.rank_count as usize]
}
