//! Binary tree: up to the root, and down again.
//!
//! The ranks stand in a heap: position `v` has the children `2 v + 1` and `2 v + 2`, and the root of the collective stands at
//! position 0 (the others follow it round the circle). Chunks are pipelined: a rank works on one chunk while its parent
//! works on the one before. In an all-reduce, up and down are two programs of each rank, so that the way down does not hold up
//! the way up; the root joins the two in one step. The root alone computes the result, so all ranks get the same bits.
//!
//! A chunk comes down only after every rank's chunk has gone up; so a rank's output is written after its input was read,
//! and the two may be the same memory.

use super::builder::{Block, Builder, Request};
use super::{Collective, Operand, Rank, Source, Step};

/// Nothing waits in a circle: up waits only on children, down only on the parent.
const SLOTS: u32 = 1;

pub(super) fn build(builder: &mut Builder) {
    let request = builder.request;
    add_tree(builder, &Tree::of(&request), request.whole());
}

/// A tree over all ranks.
pub(super) trait Shape {
    /// Who is above a rank; nobody is above the root.
    fn parent(&self, rank: Rank) -> Option<Rank>;

    /// Who is below it.
    fn children(&self, rank: Rank) -> Vec<Rank>;
}

/// Adds the programs by which a tree carries a part of the data.
pub(super) fn add_tree(builder: &mut Builder, tree: &impl Shape, part: Block) {
    let request = builder.request;
    let (up, down) = match request.collective {
        Collective::Broadcast { .. } => (false, true),
        Collective::Reduce { .. } => (true, false),
        _ => (true, true),
    };
    // Indexed by the child's rank; the root has neither.
    let mut to_parent = vec![None; request.rank_count as usize];
    let mut from_parent = vec![None; request.rank_count as usize];
    for rank in request.ranks() {
        if let Some(parent) = tree.parent(rank) {
            to_parent[rank.index()] = up.then(|| Operand::Slot(builder.connect(rank, parent, SLOTS)));
            from_parent[rank.index()] = down.then(|| Operand::Slot(builder.connect(parent, rank, SLOTS)));
        }
    }
    let Block { offset, bytes } = part;
    let chunk_bytes = builder.pipeline_chunk_bytes(bytes);
    let add_program = |builder: &mut Builder, rank: Rank, step: Step| {
        let steps = builder.chunked(chunk_bytes, vec![step]);
        builder.add_program(rank, vec![steps]);
    };
    for rank in request.ranks() {
        let input = Operand::input(offset);
        let children = tree.children(rank);
        let from_children = || children.iter().filter_map(|child| to_parent[child.index()]).map(Operand::plain);
        let output_and_children = || {
            let to_children = children.iter().filter_map(|child| from_parent[child.index()]);
            std::iter::once(Operand::output(offset)).chain(to_children).collect::<Vec<Operand>>()
        };
        let gathered = || std::iter::once(input.scaled()).chain(from_children()).collect::<Vec<Source>>();
        if tree.parent(rank).is_none() {
            let step = if up {
                Step::new(bytes, gathered(), output_and_children()).finished()
            } else {
                Step::new(bytes, vec![input.plain()], output_and_children())
            };
            add_program(builder, rank, step);
        } else {
            if let Some(to_parent) = to_parent[rank.index()] {
                add_program(builder, rank, Step::new(bytes, gathered(), vec![to_parent]));
            }
            if let Some(from_parent) = from_parent[rank.index()] {
                add_program(builder, rank, Step::new(bytes, vec![from_parent.plain()], output_and_children()));
            }
        }
    }
}

/// How often a rank sends the part of the data that a tree carries.
pub(super) fn ways(tree: &impl Shape, rank: Rank, collective: Collective) -> u64 {
    let up = u64::from(tree.parent(rank).is_some());
    let down = tree.children(rank).len() as u64;
    match collective {
        Collective::Broadcast { .. } => down,
        Collective::Reduce { .. } => up,
        _ => up + down,
    }
}

/// Who stands where.
#[derive(Clone, Copy)]
struct Tree {
    rank_count: u32,
    root: Rank,
}

impl Tree {
    fn of(request: &Request) -> Tree {
        Tree { rank_count: request.rank_count, root: request.collective.root().unwrap_or(Rank(0)) }
    }

    fn position(&self, rank: Rank) -> u32 {
        (rank.0 + self.rank_count - self.root.0) % self.rank_count
    }

    fn rank_at(&self, position: u32) -> Rank {
        Rank((position + self.root.0) % self.rank_count)
    }
}

impl Shape for Tree {
    fn parent(&self, rank: Rank) -> Option<Rank> {
        let position = self.position(rank);
        (position > 0).then(|| self.rank_at((position - 1) / 2))
    }

    fn children(&self, rank: Rank) -> Vec<Rank> {
        let first = 2 * self.position(rank) + 1;
        (first..(first + 2).min(self.rank_count)).map(|position| self.rank_at(position)).collect()
    }
}

/// Bytes that each rank sends: all of them to its parent (every rank but the root), and all of them to each child.
///
/// Every edge of the tree carries `S` bytes in each direction that the collective uses: `2 (N − 1) S` for all ranks of an
/// all-reduce together, `(N − 1) S` for a broadcast or a reduce (Thakur, Rabenseifner and Gropp, "Optimization of
/// collective communication operations in MPICH", International Journal of High Performance Computing Applications 19,
/// 2005, on trees).
pub(super) fn published_bytes(request: &Request) -> Vec<u64> {
    let tree = Tree::of(request);
    request.ranks().map(|rank| ways(&tree, rank, request.collective) * request.bytes()).collect()
}
