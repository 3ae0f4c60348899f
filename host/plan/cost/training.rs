//! How much of a training step is communication.
//!
//! In data-parallel training each step ends with an all-reduce of all gradients. Without overlap its time comes on top of the
//! computation's; with overlap, the gradients of later layers are on their way while earlier ones are still computed, so that only
//! what does not fit beside the backward pass (two thirds of a step's computation, as usual) remains.

/// The share of the computation that the backward pass takes: two of three passes of the same size.
const BACKWARD_SHARE: f64 = 2.0 / 3.0;

/// A training step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Milliseconds of computation on one rank.
    pub compute_ms: f64,
    /// Milliseconds of the all-reduce.
    pub all_reduce_ms: f64,
}

impl Step {
    /// The part of a step that communication takes, from 0 to 1, if it begins when the computation is done.
    pub fn share(&self) -> f64 {
        part(self.all_reduce_ms, self.compute_ms)
    }

    /// The same, if it runs beside the backward pass.
    pub fn share_with_overlap(&self) -> f64 {
        let exposed_ms = (self.all_reduce_ms - BACKWARD_SHARE * self.compute_ms).max(0.0);
        part(exposed_ms, self.compute_ms)
    }
}

fn part(communication_ms: f64, compute_ms: f64) -> f64 {
    let sum = communication_ms + compute_ms;
    if sum > 0.0 { communication_ms / sum } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BERT-large: 340 million parameters, and the 153.5 ms that a step of 6 sequences takes on a V100 (NVIDIA's DeepLearningExamples,
    /// fine-tuning on a DGX-1 of 16 GB), among 8 ranks.
    #[test]
    fn bert_large_takes_what_its_measurements_say() {
        let share = |bytes_each: f64, bus_gb_per_s: f64| {
            let bytes = 340e6 * bytes_each;
            let step = Step { compute_ms: 153.5, all_reduce_ms: 1.75 * bytes / (bus_gb_per_s * 1e6) };
            (100.0 * step.share()).round()
        };
        // The bandwidths that were measured: NVLink, NCCL's figure for PCI Express 3.0, and what two machines got of that.
        let rows = [(135.5, 5.0, 10.0), (12.0, 39.0, 56.0), (7.2, 52.0, 68.0), (2.46, 76.0, 86.0)];
        for (bus_gb_per_s, half, single) in rows {
            assert_eq!(
                (bus_gb_per_s, share(2.0, bus_gb_per_s), share(4.0, bus_gb_per_s)),
                (bus_gb_per_s, half, single)
            );
        }
    }

    #[test]
    fn what_fits_beside_the_backward_pass_takes_no_time() {
        let step = Step { compute_ms: 90.0, all_reduce_ms: 60.0 };
        assert_eq!((step.share(), step.share_with_overlap()), (0.4, 0.0));
        let longer = Step { compute_ms: 90.0, all_reduce_ms: 70.0 };
        assert_eq!(longer.share_with_overlap(), 0.1);
    }
}
