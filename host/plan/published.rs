//! How many bytes each rank sends, as the literature gives it.
//!
//! The formulas stand beside the algorithms, each with its source; this is only the way to them. They never look at a plan's
//! steps: they are what the verifier holds its own count against.

use super::builder::Request;
use super::{
    Algorithm, Collective, Plan, PlanError, bruck, chain, direct, dissemination, double_tree, halving_doubling,
    one_shot, ring, tree,
};

/// Bytes that each rank's memory sends during `plan`, by the published formula of its algorithm: what the rank puts into
/// slots and into peers' windows, and what peers read from its windows. Indexed by rank.
///
/// # Errors
///
/// [`PlanError`] where [`build`](super::build) would refuse the plan's collective, algorithm, ranks, count or element size.
pub fn published_bytes(plan: &Plan) -> Result<Vec<u64>, PlanError> {
    let request = Request::check(plan.collective, plan.algorithm, plan.rank_count(), plan.count, plan.element_bytes)?;
    let channels = request.channels(&plan.orders)?;
    if request.rank_count == 1 {
        return Ok(vec![0]);
    }
    Ok(match request.algorithm {
        Algorithm::Ring => ring::published_bytes(&request, &channels),
        Algorithm::Tree => tree::published_bytes(&request),
        Algorithm::Chain => chain::published_bytes(&request),
        Algorithm::OneShot => one_shot::published_bytes(&request),
        // Counted without the switch: what it reads and writes for a rank, the rank would.
        Algorithm::Direct | Algorithm::Nvls => direct::published_bytes(&request),
        Algorithm::Dissemination => dissemination::published_bytes(&request),
        Algorithm::HalvingDoubling => halving_doubling::published_bytes(&request),
        Algorithm::DoubleTree => double_tree::published_bytes(&request),
        Algorithm::Bruck => bruck::published_bytes(&request),
    })
}

impl Collective {
    /// Elements of the larger buffer of a call with this count: the one whose bytes are "the size", as nccl-tests counts.
    pub fn larger_count(self, count: u64, rank_count: usize) -> u64 {
        match self {
            Collective::ReduceScatter | Collective::AllGather => count.saturating_mul(rank_count as u64),
            Collective::Barrier => 0,
            _ => count,
        }
    }

    /// What turns the size in the time into the bandwidth that a link is used at, whatever the collective and the number of ranks
    /// (nccl-tests, `doc/PERFORMANCE.md`).
    pub fn bus_factor(self, rank_count: usize) -> f64 {
        let ranks = rank_count as f64;
        match self {
            Collective::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            Collective::ReduceScatter | Collective::AllGather => (ranks - 1.0) / ranks,
            Collective::Broadcast { .. } | Collective::Reduce { .. } | Collective::Barrier => 1.0,
        }
    }
}
