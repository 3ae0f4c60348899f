//! Double binary tree: two trees at once, each for half of the data.
//!
//! In one binary tree half of the ranks are leaves, which only send up and receive down while inner ones do three times as much. In two
//! trees in which almost every rank is a leaf of one and an inner rank of the other, all ranks are as busy (Sanders, Speck and Träff,
//! "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35, 2009). The first tree has the
//! ranks in order: leaves are the odd ones, and the parent of a rank is found by its lowest bit, as in NCCL. The second is its mirror
//! image where the number of ranks is even, and shifted by one where it is odd.

use super::Rank;
use super::builder::{Builder, Request};
use super::tree::{Shape, add_tree, ways};

pub(super) fn build(builder: &mut Builder) {
    let request = builder.request;
    for half in [0, 1] {
        let shape = InOrder { rank_count: request.rank_count, is_second: half == 1 };
        let part = request.part(request.whole(), half, 2);
        add_tree(builder, &shape, part);
    }
}

/// The ranks in order, from left to right, and rank 0 above them as the root.
struct InOrder {
    rank_count: u32,
    is_second: bool,
}

impl InOrder {
    /// Where a rank stands in the first tree for it to stand there in this one; it is its own inverse for the mirror image.
    fn place(&self, rank: Rank) -> u32 {
        match (self.is_second, self.rank_count.is_multiple_of(2)) {
            (false, _) => rank.0,
            (true, true) => self.rank_count - 1 - rank.0,
            (true, false) => (rank.0 + self.rank_count - 1) % self.rank_count,
        }
    }

    fn rank(&self, place: u32) -> Rank {
        match (self.is_second, self.rank_count.is_multiple_of(2)) {
            (false, _) => Rank(place),
            (true, true) => Rank(self.rank_count - 1 - place),
            (true, false) => Rank((place + 1) % self.rank_count),
        }
    }
}

impl Shape for InOrder {
    fn parent(&self, rank: Rank) -> Option<Rank> {
        let place = self.place(rank);
        if place == 0 {
            return None;
        }
        let bit = place & place.wrapping_neg();
        let above = (place ^ bit) | (bit << 1);
        Some(self.rank(if above < self.rank_count { above } else { place ^ bit }))
    }

    fn children(&self, rank: Rank) -> Vec<Rank> {
        let place = self.place(rank);
        // The root has all others to its right, under the one in the middle.
        let bit = if place == 0 { self.rank_count.next_power_of_two() } else { place & place.wrapping_neg() };
        let left = (place > 0 && bit > 1).then(|| place - bit / 2);
        // The nearest to the right that is still there.
        let mut step = bit / 2;
        while step > 0 && place + step >= self.rank_count {
            step /= 2;
        }
        let right = (step > 0).then_some(place + step);
        left.into_iter().chain(right).map(|place| self.rank(place)).collect()
    }
}

/// Bytes that each rank sends: of each tree, half of the data to the parent and to each child; so about `2 S`, and `2 (N − 1) S` for all
/// ranks together (Sanders, Speck and Träff 2009).
pub(super) fn published_bytes(request: &Request) -> Vec<u64> {
    let mut sent = vec![0; request.rank_count as usize];
    for half in [0, 1] {
        let shape = InOrder { rank_count: request.rank_count, is_second: half == 1 };
        let part = request.part(request.whole(), half, 2);
        for rank in request.ranks() {
            sent[rank.index()] += ways(&shape, rank, request.collective) * part.bytes;
        }
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree_and_all_ranks_hang_on_the_root() {
        for rank_count in 1..=130 {
            for is_second in [false, true] {
                let tree = InOrder { rank_count, is_second };
                let mut depth_max = 0;
                for rank in (0..rank_count).map(Rank) {
                    assert!(tree.children(rank).len() <= 2);
                    for child in tree.children(rank) {
                        assert_eq!(tree.parent(child), Some(rank), "{rank_count} ranks, {child}");
                    }
                    let (mut depth, mut above) = (0, rank);
                    while let Some(parent) = tree.parent(above) {
                        assert!(tree.children(parent).contains(&above), "{rank_count} ranks, {above} below {parent}");
                        (depth, above) = (depth + 1, parent);
                    }
                    depth_max = depth_max.max(depth);
                }
                assert!(depth_max <= rank_count.next_power_of_two().ilog2(), "{rank_count} ranks are {depth_max} deep");
            }
        }
    }

    #[test]
    fn hardly_a_rank_is_inner_in_both_trees() {
        for rank_count in 2..=130 {
            let trees = [false, true].map(|is_second| InOrder { rank_count, is_second });
            // But for the roots.
            let inner =
                |rank: &Rank| trees.iter().all(|tree| !tree.children(*rank).is_empty() && tree.parent(*rank).is_some());
            assert!((0..rank_count).map(Rank).filter(inner).count() <= 1, "{rank_count} ranks");
        }
    }
}
