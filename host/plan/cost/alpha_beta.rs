//! The literature's closed forms: `α` for each message, `1 / B` for each byte.
//!
//! Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (International Journal of High
//! Performance Computing Applications 19, 2005); Patarasuk and Yuan 2009 for rings; Sanders, Speck and Träff 2009 for trees. Sizes
//! are bytes of the larger buffer. What a reduction itself takes is left out: on GPUs it is hidden behind the links.

use crate::plan::{Algorithm, Collective};

/// A network on which every rank sends at the same rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlphaBeta {
    /// Microseconds of each message.
    pub alpha_us: f64,
    /// GB/s that each rank sends, and receives at the same time.
    pub bandwidth_gb_per_s: f64,
}

impl AlphaBeta {
    /// Microseconds that a collective takes; none where the literature has no form for it.
    pub fn time_us(&self, collective: Collective, algorithm: Algorithm, rank_count: usize, bytes: u64) -> Option<f64> {
        if rank_count <= 1 {
            return Some(0.0);
        }
        let (ranks, bytes) = (rank_count as f64, bytes as f64);
        let (alpha, beta) = (self.alpha_us, 1.0 / (self.bandwidth_gb_per_s * 1e3));
        let rounds = ranks.log2().ceil();
        let share = (ranks - 1.0) / ranks;
        use Collective::{AllGather, AllReduce, Barrier, Broadcast, Reduce, ReduceScatter};
        Some(match (algorithm, collective) {
            (Algorithm::Ring, AllReduce) => 2.0 * (ranks - 1.0) * alpha + 2.0 * share * bytes * beta,
            (Algorithm::Ring, ReduceScatter | AllGather) => (ranks - 1.0) * alpha + share * bytes * beta,
            (Algorithm::Direct, AllReduce) => 2.0 * alpha + 2.0 * share * bytes * beta,
            (Algorithm::Direct, ReduceScatter | AllGather) => alpha + share * bytes * beta,
            (Algorithm::OneShot, AllReduce) => alpha + (ranks - 1.0) * bytes * beta,
            // Unpipelined: one binomial tree up, and one down.
            (Algorithm::Tree, AllReduce) => 2.0 * rounds * (alpha + bytes * beta),
            (Algorithm::Tree, Broadcast { .. } | Reduce { .. }) => rounds * (alpha + bytes * beta),
            // With the best number of chunks, k = √((N − 2) S β / α).
            (Algorithm::Chain, Broadcast { .. } | Reduce { .. }) => {
                let hops = ranks - 2.0;
                let chunks = (hops * bytes * beta / alpha).sqrt().max(1.0);
                (hops + chunks) * (alpha + bytes / chunks * beta)
            }
            (Algorithm::HalvingDoubling, AllReduce) => {
                let core = ranks.log2().floor();
                let pairs = if rank_count.is_power_of_two() { 0.0 } else { 2.0 * (alpha + bytes * beta) };
                let share = 1.0 - 0.5_f64.powf(core);
                2.0 * core * alpha + 2.0 * share * bytes * beta + pairs
            }
            // Pipelined: the latency of the way up and down, and each rank sends its data about twice.
            (Algorithm::DoubleTree, AllReduce) => 2.0 * 2.0 * rounds * alpha + 2.0 * bytes * beta,
            (Algorithm::Bruck, AllGather) => rounds * alpha + share * bytes * beta,
            (Algorithm::Dissemination, Barrier) => rounds * alpha,
            _ => return None,
        })
    }

    /// Microseconds below which no schedule comes in which ranks do the sums, and send one message after the other: those of ⌈log2 N⌉
    /// messages, and of the bytes that each rank has to send.
    pub fn bound_us(&self, collective: Collective, rank_count: usize, bytes: u64) -> f64 {
        if rank_count <= 1 {
            return 0.0;
        }
        let rounds = (rank_count as f64).log2().ceil();
        let sent = bytes as f64 * collective.bus_factor(rank_count);
        (rounds * self.alpha_us).max(sent / (self.bandwidth_gb_per_s * 1e3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: AlphaBeta = AlphaBeta { alpha_us: 2.0, bandwidth_gb_per_s: 10.0 };

    #[test]
    fn small_data_is_ruled_by_messages_and_large_data_by_bytes() {
        let time = |algorithm, bytes| NETWORK.time_us(Collective::AllReduce, algorithm, 16, bytes).expect("a form");
        assert!((time(Algorithm::Ring, 8) - 60.0).abs() < 0.1);
        assert!((time(Algorithm::Tree, 8) - 16.0).abs() < 0.1);
        assert!(time(Algorithm::Tree, 1 << 10) < time(Algorithm::Ring, 1 << 10));
        assert!(time(Algorithm::Ring, 1 << 30) < time(Algorithm::Tree, 1 << 30));
        // 2 · 15 / 16 · 1 GiB at 10 GB/s.
        assert!((time(Algorithm::Ring, 1 << 30) / 201_326.592 - 1.0).abs() < 1e-3);
    }

    #[test]
    fn no_form_is_below_the_bound() {
        for algorithm in Algorithm::ALL {
            for &collective in algorithm.collectives() {
                for (rank_count, bytes) in
                    [1, 2, 3, 8, 100, 1024].into_iter().zip([0, 8, 1 << 10, 1 << 20, 1 << 30, 17])
                {
                    let bytes = if collective == Collective::Barrier { 0 } else { bytes };
                    let Some(time) = NETWORK.time_us(collective, algorithm, rank_count, bytes) else { continue };
                    // Those by which a rank sends several messages at once are not bound by how many there are.
                    let at_once = matches!(algorithm, Algorithm::Direct | Algorithm::OneShot);
                    let alpha_us = if at_once { 0.0 } else { NETWORK.alpha_us };
                    let bound = AlphaBeta { alpha_us, ..NETWORK }.bound_us(collective, rank_count, bytes);
                    assert!(time >= bound - 1e-9, "{algorithm} {collective} {rank_count} {bytes}: {time} < {bound}");
                }
            }
        }
    }
}
