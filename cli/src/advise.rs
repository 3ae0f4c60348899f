//! `tutti advise`: which algorithm to use from which size on, on a machine, and what that rests on.

use crate::cluster::ClusterArgs;
use crate::failure::Failure;
use crate::shown;
use crate::simulate::{GEOMETRY, plan, runs};
use crate::size::format_size;
use crate::topo::aligned;
use serde::Serialize;
use std::io::{self, Write};
use tutti::plan::cost::nccl::Graph;
use tutti::plan::simulate::{Settings, simulate};
use tutti::plan::{Algorithm, Collective, MAX_RANK_COUNT, Rank};
use tutti::topology::{Cluster, Software};

/// Say which algorithm to use from which size on
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Every algorithm is simulated at every size, with plain slots and with low-latency ones, and the quickest is shown, beside what \
NCCL's own model would choose. Below it stands where rings and trees meet, and what a reduce_scatter and an all_gather take in \
place of an all_reduce. Among hundreds of ranks this takes minutes; what has too many steps is left out, and that is said.

Example:
  tutti advise --topo dgx1v
  tutti advise --topo 'dgx1v x8' --net edr")]
pub(crate) struct AdviseArgs {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The sizes that are looked at.
const SIZES: [u64; 5] = [1 << 10, 32 << 10, 1 << 20, 32 << 20, 1 << 30];

/// Element type: f32.
const ELEMENT_BYTES: u64 = 4;

#[derive(Serialize)]
struct Row {
    collective: &'static str,
    size_bytes: u64,
    /// The quickest first.
    candidates: Vec<Candidate>,
    /// Algorithms that have too many steps to be simulated.
    left_out: Vec<&'static str>,
    nccl: Option<Nccl>,
}

#[derive(Clone, Serialize)]
struct Candidate {
    algorithm: &'static str,
    slots: &'static str,
    time_us: f64,
    bus_bandwidth_gb_per_s: f64,
}

#[derive(Serialize)]
struct Nccl {
    algorithm: &'static str,
    protocol: &'static str,
    time_us: f64,
}

#[derive(Serialize)]
struct Advice<'a> {
    topology: &'a str,
    rank_count: usize,
    rows: Vec<Row>,
    conclusions: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: &AdviseArgs) -> Result<(), Failure> {
    let cluster = args.cluster.needed()?;
    let rank_count = cluster.rank_count();
    if rank_count > MAX_RANK_COUNT {
        return Err(Failure::Usage(format!("--topo: expected at most {MAX_RANK_COUNT} ranks, came {rank_count}")));
    }
    let graph = Graph::of(&cluster);
    let mut rows = Vec::new();
    let collectives = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast { root: Rank(0) },
        Collective::Reduce { root: Rank(0) },
    ];
    for collective in collectives {
        for size in SIZES {
            rows.push(row(&cluster, graph.as_ref(), collective, size)?);
        }
    }
    let conclusions = conclusions(&rows);
    let text = if args.json {
        shown::json(&Advice { topology: cluster.name(), rank_count, rows, conclusions })?
    } else {
        text(&cluster, &rows, &conclusions)
    };
    io::stdout().lock().write_all(text.as_bytes()).map_err(Failure::output)
}

fn row(cluster: &Cluster, graph: Option<&Graph>, collective: Collective, size: u64) -> Result<Row, Failure> {
    let (mut candidates, mut left_out) = (Vec::new(), Vec::new());
    for algorithm in collective.algorithms().filter(|algorithm| runs(*algorithm, cluster)) {
        let plan = match plan(collective, algorithm, cluster, size, ELEMENT_BYTES) {
            Ok(plan) => plan,
            Err(Failure::Failed(_)) => {
                left_out.push(algorithm.name());
                continue;
            }
            Err(failure) => return Err(failure),
        };
        for (slots, software) in [("simple", Software::SIMPLE), ("ll128", Software::LL128), ("ll", Software::LL)] {
            // Windows have no slots for data, and so no formats.
            if algorithm.needs_windows() && slots != "simple" {
                continue;
            }
            let settings = Settings { software, slots: GEOMETRY.slots, records_max: 0, ..Settings::default() };
            let simulated = simulate(&plan, cluster, &settings);
            let simulated = simulated.map_err(|error| Failure::Failed(format!("{algorithm}: {error}")))?;
            candidates.push(Candidate {
                algorithm: algorithm.name(),
                slots,
                time_us: simulated.time_us,
                bus_bandwidth_gb_per_s: simulated.bus_bandwidth_gb_per_s(&plan),
            });
        }
    }
    candidates.sort_by(|one, other| one.time_us.total_cmp(&other.time_us));
    let nccl = graph.and_then(|graph| graph.choose(collective, size)).map(|(estimate, time_us)| Nccl {
        algorithm: estimate.algorithm.name(),
        protocol: estimate.protocol.name(),
        time_us,
    });
    Ok(Row { collective: collective.name(), size_bytes: size, candidates, left_out, nccl })
}

/// The quickest of some algorithms in a row.
fn quickest(row: &Row, algorithms: &[Algorithm]) -> Option<f64> {
    let of_these = |candidate: &&Candidate| algorithms.iter().any(|algorithm| algorithm.name() == candidate.algorithm);
    row.candidates.iter().find(of_these).map(|candidate| candidate.time_us)
}

fn conclusions(rows: &[Row]) -> Vec<String> {
    let all_reduces: Vec<&Row> = rows.iter().filter(|row| row.collective == "all_reduce").collect();
    let trees = [Algorithm::Tree, Algorithm::DoubleTree];
    let mut conclusions = Vec::new();
    let times = all_reduces
        .iter()
        .filter_map(|row| Some((row.size_bytes, quickest(row, &[Algorithm::Ring])?, quickest(row, &trees)?)));
    let times: Vec<(u64, f64, f64)> = times.collect();
    for (size, ring, tree) in &times {
        let (first, second, factor) =
            if ring < tree { ("ring", "tree", tree / ring) } else { ("tree", "ring", ring / tree) };
        conclusions.push(format!(
            "all_reduce of {}: a {first} is {factor:.1} times as quick as a {second}",
            format_size(*size)
        ));
    }
    let crossing = times.windows(2).find(|pair| (pair[0].1 > pair[0].2) != (pair[1].1 > pair[1].2));
    if let Some([before, after]) = crossing {
        conclusions.push(format!(
            "rings and trees meet between {} and {}",
            format_size(before.0),
            format_size(after.0)
        ));
    }
    for size in SIZES {
        let best = |collective: &str| {
            let row = rows.iter().find(|row| row.collective == collective && row.size_bytes == size)?;
            row.candidates.first().map(|candidate| candidate.time_us)
        };
        if let (Some(both), Some(scatter), Some(gather)) =
            (best("all_reduce"), best("reduce_scatter"), best("all_gather"))
        {
            conclusions.push(format!(
                "{}: reduce_scatter and all_gather take {:.1} us, all_reduce {both:.1} us",
                format_size(size),
                scatter + gather
            ));
        }
    }
    conclusions
}

fn text(cluster: &Cluster, rows: &[Row], conclusions: &[String]) -> String {
    let titles = ["collective", "size", "quickest", "time us", "busbw GB/s", "next", "NCCL's model", "time us"];
    let mut table = vec![titles.map(str::to_owned).to_vec()];
    for row in rows {
        let name = |candidate: &Candidate| format!("{} {}", candidate.algorithm, candidate.slots);
        let Some(best) = row.candidates.first() else { continue };
        let next = row.candidates.iter().find(|candidate| candidate.algorithm != best.algorithm);
        let next = next.map(|next| format!("{} x{:.1}", name(next), next.time_us / best.time_us)).unwrap_or_default();
        let (nccl, nccl_us) = match &row.nccl {
            Some(nccl) => (format!("{} {}", nccl.algorithm, nccl.protocol), format!("{:.1}", nccl.time_us)),
            None => ("-".to_owned(), "-".to_owned()),
        };
        table.push(vec![
            row.collective.to_owned(),
            format_size(row.size_bytes),
            name(best),
            format!("{:.1}", best.time_us),
            format!("{:.2}", best.bus_bandwidth_gb_per_s),
            next,
            nccl,
            nccl_us,
        ]);
    }
    let mut text = format!("{}: {} ranks, simulated\n\n{}\n", cluster.name(), cluster.rank_count(), aligned(&table));
    for row in rows.iter().filter(|row| !row.left_out.is_empty()) {
        let (collective, size) = (row.collective, format_size(row.size_bytes));
        text += &format!("{collective} of {size} by {} has too many steps to be simulated\n", row.left_out.join(", "));
    }
    for conclusion in conclusions {
        text += &format!("{conclusion}\n");
    }
    shown::harmless(&text)
}
