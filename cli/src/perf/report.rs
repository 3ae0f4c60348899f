//! What `-J` writes: nccl-tests' JSON (version 3 of its format), under its names.
//!
//! Unlike there, yes and no are JSON's, roots are numbers, times of day are in UTC, and of the environment only variables
//! that concern the measurement are kept: a report is made to be shared, and an environment holds secrets.

use super::measure::{Measured, Settings};
use super::{PerfArgs, Step, Sweep, now};
use crate::table::{Half, Spread, bandwidth_is_good};
use serde::Serialize;

/// The version of nccl-tests' format.
const FORMAT_VERSION: u32 = 3;

#[derive(Serialize)]
pub(super) struct Report {
    version: u32,
    start_time: String,
    args: Vec<String>,
    env: Vec<String>,
    tutti_version: &'static str,
    pub(super) config: Config,
    pub(super) results: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    out_of_bounds: Option<OutOfBounds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    average_bus_bandwidth: Option<AverageBusBandwidth>,
    pub(super) errors: Vec<String>,
    pub(super) end_time: Option<String>,
    #[serde(skip)]
    pub(super) wrong: u64,
    #[serde(skip)]
    pub(super) overwritten: u64,
}

#[derive(Serialize)]
pub(super) struct Config {
    nthreads: usize,
    /// Ranks of this process.
    ngpus: usize,
    /// What runs them: "cpu" or "cuda".
    device: &'static str,
    /// The CUDA version that the driver supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    cuda_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ranks_per_gpu: Option<usize>,
    minimum_bytes: u64,
    maximum_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_factor: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_bytes: Option<u64>,
    warmup_iters: u64,
    iterations: u64,
    aggregated_iterations: u64,
    validation: u64,
    graph: u64,
    blocking_collectives: bool,
    per_iter_timing: bool,
    per_iter_skip: u64,
    parallel_init: bool,
    unalign: usize,
    algorithm: Option<&'static str>,
    pub(super) devices: Vec<Device>,
}

#[derive(Serialize)]
pub(super) struct Device {
    pub(super) rank: usize,
    pub(super) group: u32,
    pub(super) pid: u32,
    pub(super) hostname: String,
    /// The core that the rank keeps to, or -1; the GPU that runs it.
    pub(super) device: i64,
    pub(super) device_hex: String,
    pub(super) device_info: String,
}

#[derive(Serialize)]
pub(super) struct Row {
    pub(super) size: u64,
    pub(super) count: u64,
    #[serde(rename = "type")]
    pub(super) dtype: &'static str,
    pub(super) redop: &'static str,
    pub(super) root: i64,
    pub(super) out_of_place: HalfRow,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) out_of_place_per_iter: Option<PerIteration>,
    pub(super) in_place: HalfRow,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) in_place_per_iter: Option<PerIteration>,
    pub(super) actual_iterations: u64,
}

#[derive(Serialize)]
pub(super) struct HalfRow {
    time: f64,
    alg_bw: f64,
    bus_bw: f64,
    nwrong: Option<u64>,
}

impl From<&Half> for HalfRow {
    fn from(half: &Half) -> HalfRow {
        HalfRow { time: half.time_us, alg_bw: half.algorithm_gb_s, bus_bw: half.bus_gb_s, nwrong: half.wrong }
    }
}

#[derive(Serialize)]
pub(super) struct PerIteration {
    skipped_iterations: usize,
    min_us: f64,
    max_us: f64,
    avg_us: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    stdev_us: f64,
    cv_pct: f64,
    times_us: Vec<f64>,
}

impl PerIteration {
    pub(super) fn of(measured: &Measured, settings: &Settings) -> Option<PerIteration> {
        let Spread { min_us, max_us, avg_us, p50_us, p95_us, p99_us, stdev_us, cv_percent } =
            measured.half.per_iteration.clone()?;
        Some(PerIteration {
            skipped_iterations: settings.per_iteration_skip.unwrap_or(0),
            min_us,
            max_us,
            avg_us,
            p50_us,
            p95_us,
            p99_us,
            stdev_us,
            cv_pct: cv_percent,
            times_us: measured.iteration_times_us.clone(),
        })
    }
}

#[derive(Serialize)]
struct OutOfBounds {
    count: u64,
    okay: bool,
}

#[derive(Serialize)]
struct AverageBusBandwidth {
    bandwidth: f64,
    okay: Okay,
}

/// nccl-tests writes "unchecked" where nobody asked for a bandwidth.
#[derive(Serialize)]
#[serde(untagged)]
enum Okay {
    Checked(bool),
    Unchecked(&'static str),
}

impl Report {
    pub(super) fn new(args: &PerfArgs, sweep: &Sweep) -> Report {
        let (step_bytes, step_factor) = match sweep.step {
            Step::Bytes(bytes) => (Some(bytes), None),
            Step::Factor(factor) => (None, Some(factor)),
        };
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
            (name.starts_with("NCCL_TESTS_") || name.starts_with("TUTTI_")).then(|| format!("{name}={value}"))
        });
        Report {
            version: FORMAT_VERSION,
            start_time: now(),
            args: std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect(),
            env: environment.collect(),
            tutti_version: env!("CARGO_PKG_VERSION"),
            config: Config {
                nthreads: 1,
                ngpus: sweep.rank_count,
                device: args.device.name(),
                cuda_version: sweep.place.gpus().map(|gpus| gpus.cuda_version.clone()),
                ranks_per_gpu: sweep.place.gpus().map(|gpus| gpus.ranks_per_gpu),
                minimum_bytes: sweep.min_bytes,
                maximum_bytes: sweep.max_bytes,
                step_factor,
                step_bytes,
                warmup_iters: sweep.settings.warmup_iterations,
                iterations: sweep.settings.iterations,
                aggregated_iterations: 1,
                validation: sweep.settings.checks,
                graph: args.graph,
                blocking_collectives: false,
                per_iter_timing: sweep.settings.per_iteration_skip.is_some(),
                per_iter_skip: args.per_iteration_skip,
                parallel_init: false,
                unalign: sweep.settings.unalign,
                algorithm: args.algorithm.map(|algorithm| algorithm.name()),
                devices: Vec::new(),
            },
            results: Vec::new(),
            out_of_bounds: None,
            average_bus_bandwidth: None,
            errors: Vec::new(),
            end_time: None,
            wrong: 0,
            overwritten: 0,
        }
    }

    /// The closing lines.
    pub(super) fn finish(&mut self, average_gb_s: f64, minimum_gb_s: Option<f64>) {
        let count = self.wrong + self.overwritten;
        self.out_of_bounds = Some(OutOfBounds { count, okay: count == 0 });
        let okay = match minimum_gb_s {
            Some(minimum) => Okay::Checked(bandwidth_is_good(average_gb_s, minimum)),
            None => Okay::Unchecked("unchecked"),
        };
        self.average_bus_bandwidth = Some(AverageBusBandwidth { bandwidth: average_gb_s, okay });
    }
}
