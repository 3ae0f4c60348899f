//! The first choice of an algorithm, by collective, size and number of ranks.
//!
//! The thresholds below are educated guesses with names: small data wants few exchanges, large data wants few bytes. They will
//! be replaced by measurements. This room chooses among algorithms that offer the collective, and never fails.

use super::{Algorithm, Collective};

/// What the transport between the ranks can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capabilities {
    /// Whether ranks can read and write each other's memory in place.
    pub windows: bool,
    /// Whether a switch with a reduction unit reaches the ranks' buffers, and does what the collective takes.
    pub switch: bool,
}

/// From how many ranks and bytes on a switch with a reduction unit is the quickest: it spares each rank the others' data, and costs more
/// to begin. (What NCCL and others found on NVSwitch of the third generation.)
const SWITCH_RANK_COUNT_MIN: usize = 5;
const SWITCH_BYTES_MIN: u64 = 1 << 20;

/// Up to how many bytes a one-shot all-reduce is the quickest, by the number of ranks: it sends `N − 1` times the data to save
/// exchanges, so the more ranks the less data. To be measured.
const ONE_SHOT_BYTES_MAX: [UpTo; 4] = [
    UpTo { rank_count: 2, bytes: 16 << 10 },
    UpTo { rank_count: 4, bytes: 8 << 10 },
    UpTo { rank_count: 8, bytes: 4 << 10 },
    UpTo { rank_count: 16, bytes: 2 << 10 },
];

/// The same, for more ranks than the table has. To be measured.
const ONE_SHOT_BYTES_MAX_BEYOND: u64 = 1 << 10;

/// Up to how many bytes a tree all-reduce (2 ⌈log2 N⌉ hops, twice the data through every inner rank) beats a ring
/// (2 (N − 1) hops, the fewest bytes), where there are no windows. To be measured.
const TREE_ALL_REDUCE_BYTES_MAX: u64 = 256 << 10;

/// Among more ranks no algorithm is chosen that has connections between all pairs of them: a connection holds some hundred
/// kilobytes, so that 128 ranks would hold gigabytes for the shortest message.
const ALL_PAIRS_RANK_COUNT_MAX: usize = 32;

/// Among so few ranks a ring has no more hops than a tree.
const RING_RANK_COUNT_MAX: usize = 3;

/// Up to how many bytes a tree broadcast (⌈log2 N⌉ hops and no answer) beats reading the root's window (a signal, the copy, and a
/// signal back). To be measured.
const TREE_BROADCAST_BYTES_MAX: u64 = 16 << 10;

/// Up to how many ranks the root of a reduce best reads everyone's window alone: one pass of a loop made for that many
/// sources. Beyond, the others should help. To be measured.
const DIRECT_REDUCE_RANK_COUNT_MAX: usize = 4;

/// Up to how many bytes a tree beats a chain for broadcast and reduce. A chain has `N − 1` hops, but each rank sends
/// everything only once; a pipeline makes up for the hops only when there are many more chunks than hops. To be measured.
const TREE_BYTES_MAX_EACH_RANK: u64 = 64 << 10;

/// A row of a table that ends where the next one begins.
struct UpTo {
    rank_count: usize,
    bytes: u64,
}

/// The algorithm to use for `collective` among `rank_count` ranks, where one rank passes `bytes` bytes: the collective's count
/// times the size of an element of `element_bytes`. It always offers the collective, and uses windows only where
/// there are any.
pub fn choose(
    collective: Collective,
    rank_count: usize,
    bytes: u64,
    element_bytes: u32,
    capabilities: Capabilities,
) -> Algorithm {
    let one_shot_bytes_max = ONE_SHOT_BYTES_MAX
        .iter()
        .find(|row| rank_count <= row.rank_count)
        .map_or(ONE_SHOT_BYTES_MAX_BEYOND, |row| row.bytes);
    let all_pairs = rank_count <= ALL_PAIRS_RANK_COUNT_MAX;
    let capabilities = Capabilities { windows: capabilities.windows && all_pairs, ..capabilities };
    if capabilities.switch
        && rank_count >= SWITCH_RANK_COUNT_MIN
        && bytes >= SWITCH_BYTES_MIN
        && Algorithm::Nvls.offers(collective)
    {
        return Algorithm::Nvls;
    }
    let tree_bytes_max = TREE_BYTES_MAX_EACH_RANK.saturating_mul(rank_count as u64);
    // With fewer elements than ranks, sharing out the work would leave ranks without any.
    let too_few_to_share = bytes / u64::from(element_bytes.max(1)) < rank_count as u64;
    match collective {
        Collective::AllReduce if !all_pairs => Algorithm::Tree,
        Collective::AllReduce if bytes <= one_shot_bytes_max => Algorithm::OneShot,
        Collective::AllReduce if too_few_to_share => Algorithm::Tree,
        Collective::AllReduce if capabilities.windows => Algorithm::Direct,
        Collective::AllReduce if rank_count <= RING_RANK_COUNT_MAX => Algorithm::Ring,
        Collective::AllReduce if bytes <= TREE_ALL_REDUCE_BYTES_MAX => Algorithm::Tree,
        Collective::AllReduce => Algorithm::Ring,
        Collective::ReduceScatter | Collective::AllGather if capabilities.windows => Algorithm::Direct,
        Collective::ReduceScatter | Collective::AllGather => Algorithm::Ring,
        Collective::Broadcast { .. } if bytes <= TREE_BROADCAST_BYTES_MAX => Algorithm::Tree,
        Collective::Broadcast { .. } if capabilities.windows => Algorithm::Direct,
        Collective::Reduce { .. } if capabilities.windows && rank_count <= DIRECT_REDUCE_RANK_COUNT_MAX => {
            Algorithm::Direct
        }
        Collective::Broadcast { .. } | Collective::Reduce { .. } if bytes <= tree_bytes_max => Algorithm::Tree,
        Collective::Broadcast { .. } | Collective::Reduce { .. } => Algorithm::Chain,
        Collective::Barrier => Algorithm::Dissemination,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Rank;

    #[test]
    fn every_choice_offers_the_collective_and_keeps_to_what_the_transport_can_do() {
        for collective in Collective::ALL {
            for rank_count in (0..40).chain([1024]) {
                for bytes in (0..64).map(|shift| 1_u64 << shift).chain([0, u64::MAX]) {
                    for windows in [false, true] {
                        for (element_bytes, switch) in [(0, false), (1, false), (4, false), (4, windows)] {
                            let capabilities = Capabilities { windows, switch };
                            let algorithm = choose(collective, rank_count, bytes, element_bytes, capabilities);
                            assert!(algorithm.offers(collective), "{algorithm} for {collective}");
                            assert!(windows || !algorithm.needs_windows(), "{algorithm} for {collective}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn small_data_takes_few_exchanges_and_large_data_few_bytes() {
        let windows = Capabilities { windows: true, switch: false };
        let slots = Capabilities::default();
        let switch = Capabilities { windows: true, switch: true };
        let (kib, gib) = (1 << 10, 1 << 30);
        assert_eq!(choose(Collective::AllReduce, 8, 8, 4, windows), Algorithm::OneShot);
        assert_eq!(choose(Collective::AllReduce, 8, gib, 4, windows), Algorithm::Direct);
        assert_eq!(choose(Collective::AllReduce, 8, 8, 4, slots), Algorithm::OneShot);
        assert_eq!(choose(Collective::AllReduce, 8, 64 * kib, 4, slots), Algorithm::Tree);
        assert_eq!(choose(Collective::AllReduce, 8, gib, 4, slots), Algorithm::Ring);
        assert_eq!(choose(Collective::AllReduce, 8, gib, 4, switch), Algorithm::Nvls);
        assert_eq!(choose(Collective::AllReduce, 8, kib, 4, switch), Algorithm::OneShot);
        assert_eq!(choose(Collective::AllGather, 2, gib, 4, switch), Algorithm::Direct);
        let root = Rank(3);
        assert_eq!(choose(Collective::Broadcast { root }, 8, kib, 4, slots), Algorithm::Tree);
        assert_eq!(choose(Collective::Broadcast { root }, 8, gib, 4, slots), Algorithm::Chain);
        assert_eq!(choose(Collective::Reduce { root }, 8, gib, 4, slots), Algorithm::Chain);
    }
}
