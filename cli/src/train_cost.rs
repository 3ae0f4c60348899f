//! `tutti train-cost`: how much of a training step is communication.

use crate::cluster::ClusterArgs;
use crate::failure::Failure;
use crate::names::parse_dtype;
use crate::shown;
use serde::Serialize;
use std::io::{self, Write};
use tutti::DType;
use tutti::plan::Collective;
use tutti::plan::cost::training::Step;
use tutti::plan::simulate::{Settings, simulate};
use tutti::plan::{Algorithm, Geometry, MAX_RANK_COUNT, Rank, build_in_orders};

/// Say how much of a data-parallel training step is communication
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Each step ends with an all-reduce of all gradients. Its time is the simulated one of rings on --topo, or what --busbw gives. \
Without overlap it comes on top of the computation; with overlap it runs beside the backward pass, two thirds of the computation.

Examples (BERT-large, 153.5 ms a step of 6 sequences on a V100):
  tutti train-cost --parameters 340M -d half --step-ms 153.5 --topo dgx1v
  tutti train-cost --parameters 340M -d half --step-ms 153.5 --topo pcie3-x8
  tutti train-cost --parameters 340M -d half --step-ms 153.5 --topo 'dgx1v x64' --net edr
  tutti train-cost --parameters 340M -d half --step-ms 153.5 --ranks 8 --busbw 7.2")]
pub(crate) struct TrainCostArgs {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// Parameters of the model, with an optional K, M or G (powers of 1000)
    #[arg(long, value_name = "NUMBER", value_parser = parse_parameters)]
    parameters: u64,

    /// Type of the gradients, as in tutti perf
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "half", value_parser = parse_dtype)]
    dtype: DType,

    /// Milliseconds of computation of one step on one rank
    #[arg(long, value_name = "MS", value_parser = parse_positive)]
    step_ms: f64,

    /// Bus bandwidth in GB/s, as measured, in place of a machine
    #[arg(long, value_name = "GB/s", conflicts_with = "topo", requires = "ranks", value_parser = parse_positive)]
    busbw: Option<f64>,

    /// Ranks, for --busbw
    #[arg(long, value_name = "N", requires = "busbw", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_parameters(text: &str) -> Result<u64, String> {
    let expected = || "expected a number of parameters, such as 340M or 7G".to_owned();
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1e3),
        Some((at, 'M' | 'm')) => (&text[..at], 1e6),
        Some((at, 'G' | 'g' | 'B' | 'b')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    let number: f64 = number.parse().map_err(|_| expected())?;
    let parameters = number * unit;
    if (1.0..=1e15).contains(&parameters) { Ok(parameters as u64) } else { Err(expected()) }
}

fn parse_positive(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.parse().ok().filter(|value: &f64| *value > 0.0 && value.is_finite());
    value.ok_or_else(|| "expected a number above zero".to_owned())
}

#[derive(Serialize)]
struct Report {
    ranks: usize,
    gradient_bytes: u64,
    step_ms: f64,
    all_reduce_ms: f64,
    bus_bandwidth_gb_per_s: f64,
    /// From 0 to 1.
    share: f64,
    share_with_overlap: f64,
}

/// Bytes that are simulated: what is larger takes as much longer.
const SIMULATED_BYTES_MAX: u64 = 256 << 20;

/// Runs the command.
pub(crate) fn run(args: &TrainCostArgs) -> Result<(), Failure> {
    let gradient_bytes = args.parameters.saturating_mul(args.dtype.bytes() as u64);
    let (ranks, bus_gb_per_s) = match (args.busbw, args.ranks) {
        (Some(busbw), Some(ranks)) => (ranks as usize, busbw),
        _ => simulated(args, gradient_bytes)?,
    };
    let factor = Collective::AllReduce.bus_factor(ranks);
    let all_reduce_ms = factor * gradient_bytes as f64 / (bus_gb_per_s * 1e6);
    let all_reduce_ms = if ranks > 1 { all_reduce_ms } else { 0.0 };
    let step = Step { compute_ms: args.step_ms, all_reduce_ms };
    let report = Report {
        ranks,
        gradient_bytes,
        step_ms: args.step_ms,
        all_reduce_ms,
        bus_bandwidth_gb_per_s: bus_gb_per_s,
        share: step.share(),
        share_with_overlap: step.share_with_overlap(),
    };
    let text = if args.json { shown::json(&report)? } else { text(&report) };
    io::stdout().lock().write_all(text.as_bytes()).map_err(Failure::output)
}

/// Ranks of the machine, and the bus bandwidth of an all-reduce of so many bytes.
fn simulated(args: &TrainCostArgs, bytes: u64) -> Result<(usize, f64), Failure> {
    let cluster = args.cluster.needed()?;
    let ranks = cluster.rank_count();
    if ranks > MAX_RANK_COUNT {
        return Err(Failure::Usage(format!("--topo: expected at most {MAX_RANK_COUNT} ranks, came {ranks}")));
    }
    if ranks == 1 {
        return Ok((1, f64::INFINITY));
    }
    let orders: Vec<Vec<Rank>> =
        cluster.ring_orders().into_iter().map(|order| order.into_iter().map(Rank).collect()).collect();
    let element_bytes = args.dtype.bytes() as u64;
    let count = bytes.min(SIMULATED_BYTES_MAX) / element_bytes;
    let geometry = Geometry { slot_bytes: 512 << 10, slots: 8 };
    let (collective, algorithm) = (Collective::AllReduce, Algorithm::Ring);
    let plan = build_in_orders(collective, algorithm, ranks, count, element_bytes as u32, &geometry, &orders)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let settings = Settings { slots: geometry.slots, records_max: 0, ..Settings::default() };
    let simulated = simulate(&plan, &cluster, &settings).map_err(|error| Failure::Failed(error.to_string()))?;
    Ok((ranks, simulated.bus_bandwidth_gb_per_s(&plan)))
}

fn text(report: &Report) -> String {
    let Report { ranks, gradient_bytes, step_ms, all_reduce_ms, bus_bandwidth_gb_per_s, share, share_with_overlap } =
        report;
    format!(
        "{:.1} MB of gradients among {ranks} ranks: {all_reduce_ms:.1} ms of all-reduce (busbw {bus_bandwidth_gb_per_s:.1} GB/s) to \
         {step_ms:.1} ms of computation\nwithout overlap {:.0} % of a step is communication; beside the backward pass {:.0} %\n",
        *gradient_bytes as f64 / 1e6,
        100.0 * share,
        100.0 * share_with_overlap,
    )
}
