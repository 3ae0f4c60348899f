//! Chain: along the line of ranks, from the root or to it.
//!
//! The line starts at the root and follows the circle of ranks. A broadcast runs down the line, a reduce up; chunks are
//! pipelined, so that for large data every rank sends and receives all the time, and the time hardly grows with the ranks.
//! A rank touches a chunk of its output only in the very step that reads its input; so the two may be the same memory.

use super::builder::{Builder, Request};
use super::{Collective, ConnectionId, Operand, Rank, Step};

/// Nothing waits in a circle: a line has two ends.
const SLOTS: u32 = 1;

pub(super) fn build(builder: &mut Builder) {
    let request = builder.request;
    let root = request.collective.root().unwrap_or(Rank(0));
    let reduces = request.collective.reduces();
    // `links[i]` joins the ranks at positions `i` and `i + 1` of the line.
    let links: Vec<ConnectionId> = (1..request.rank_count)
        .map(|position| {
            let near = request.rank_after(root, position - 1);
            let far = request.rank_after(root, position);
            if reduces { builder.connect(far, near, SLOTS) } else { builder.connect(near, far, SLOTS) }
        })
        .collect();
    let bytes = request.bytes();
    let chunk_bytes = builder.pipeline_chunk_bytes(bytes);
    let input = Operand::input(0);
    let output = Operand::output(0);
    for rank in request.ranks() {
        let position = request.rank_before(rank, root.0).index();
        let nearer = position.checked_sub(1).map(|link| Operand::Slot(links[link]));
        let farther = links.get(position).map(|&link| Operand::Slot(link));
        let step = if reduces {
            let sources = farther.map(Operand::plain).into_iter().chain([input.scaled()]).collect();
            match nearer {
                Some(nearer) => Step::new(bytes, sources, vec![nearer]),
                None => Step::new(bytes, sources, vec![output]).finished(),
            }
        } else {
            let source = nearer.unwrap_or(input).plain();
            Step::new(bytes, vec![source], std::iter::once(output).chain(farther).collect())
        };
        let steps = builder.chunked(chunk_bytes, vec![step]);
        builder.add_program(rank, vec![steps]);
    }
}

/// Bytes that each rank sends: all of them, once. Only the far end of a broadcast and the root of a reduce send nothing.
///
/// No broadcast or reduce can send less in all, since each rank but one must receive (send) `S` bytes (Thakur, Rabenseifner
/// and Gropp 2005).
pub(super) fn published_bytes(request: &Request) -> Vec<u64> {
    let root = request.collective.root().unwrap_or(Rank(0));
    let silent = match request.collective {
        Collective::Reduce { .. } => root,
        _ => request.rank_before(root, 1),
    };
    request.ranks().map(|rank| if rank == silent { 0 } else { request.bytes() }).collect()
}
