//! Dissemination barrier: in round `j` each rank signals the one `2^j` after it and waits for the one `2^j` before it.
//!
//! After ⌈log2 N⌉ rounds each rank has heard, directly or through others, from every rank (Hensgen, Finkel and Manber, "Two
//! algorithms for barrier synchronization", International Journal of Parallel Programming 17, 1988). Signals are slots of
//! zero bytes; no data moves. Each round has connections of its own, so a fast rank's next signal is never taken for the
//! one before.

use super::builder::{Builder, Request, await_signals, signal};
use super::{ConnectionId, Operand};

/// Each connection carries one slot in a call.
const SLOTS: u32 = 1;

pub(super) fn build(builder: &mut Builder) {
    let request = builder.request;
    let round_count = request.rank_count.next_power_of_two().trailing_zeros();
    // Indexed by round, then by the sender's rank.
    let connections: Vec<Vec<ConnectionId>> = (0..round_count)
        .map(|round| {
            let connect = |rank| builder.connect(rank, request.rank_after(rank, 1 << round), SLOTS);
            request.ranks().map(connect).collect()
        })
        .collect();
    for rank in request.ranks() {
        let mut steps = Vec::with_capacity(2 * round_count as usize);
        for (round, connections) in connections.iter().enumerate() {
            let before = request.rank_before(rank, 1 << round);
            steps.push(signal(vec![Operand::Slot(connections[rank.index()])]));
            steps.push(await_signals(vec![Operand::Slot(connections[before.index()]).plain()]));
        }
        let steps = builder.once(steps);
        builder.add_program(rank, vec![steps]);
    }
}

/// Bytes that each rank sends: none.
pub(super) fn published_bytes(request: &Request) -> Vec<u64> {
    vec![0; request.rank_count as usize]
}
