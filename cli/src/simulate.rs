//! `tutti simulate`: how long a collective takes on machines that need not be here.

use crate::cluster::ClusterArgs;
use crate::failure::Failure;
use crate::names::{check_offered, check_root, counts_blocks, parse_algorithm, parse_collective, parse_dtype, whole};
use crate::output::{Existing, OutputFile};
use crate::shown;
use crate::size::{format_size, parse_size};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tutti::DType;
use tutti::plan::simulate::{Network, Settings, Simulated, simulate};
use tutti::plan::{Algorithm, Collective, Geometry, MAX_RANK_COUNT, Plan, Rank, build_in_orders};
use tutti::topology::{Cluster, Software};

/// Simulate a collective on machines that need not be here
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The size is, as in tutti perf, that of the larger buffer; algbw is the size in the time, busbw what each link would show, as \
nccl-tests counts. Every step of the plan is simulated: software takes its time, flows that meet on a link share it, and a step \
waits for what it needs. Rings take the ways round that the machine's links allow.

Examples:
  tutti simulate all_reduce --topo dgx1v --size 128M
  tutti simulate all_reduce --topo 'dgx1v x8' --net edr -b 1K -e 1G -f 32 --svg bandwidth.svg
  tutti simulate all_gather --topo dgx-a100 --size 64M --algorithm ring --trace trace.json
  tutti simulate all_reduce --topo dgx-a100 --size 64M --slow-link gpu0:nvswitch=0.5

Exit code: 0 if all is well, 1 if a plan comes to a standstill (a dead link) or a file cannot be written, 2 for a wrong command \
line.")]
pub(crate) struct SimulateArgs {
    /// all_reduce, reduce_scatter, all_gather, broadcast, reduce or barrier
    #[arg(value_parser = parse_collective)]
    collective: Collective,

    #[command(flatten)]
    cluster: ClusterArgs,

    /// One size in bytes, with an optional unit K, M, G or T
    #[arg(short = 's', long, value_name = "SIZE", value_parser = parse_size, conflicts_with_all = ["min_bytes", "max_bytes", "step_factor"])]
    size: Option<u64>,

    /// Smallest size of several
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", value_parser = parse_size)]
    min_bytes: Option<u64>,

    /// Largest size of several [default: 1G]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", value_parser = parse_size)]
    max_bytes: Option<u64>,

    /// Factor from one size to the next [default: 4]
    #[arg(short = 'f', long = "stepfactor", value_name = "N", value_parser = whole(2..=u64::MAX))]
    step_factor: Option<u64>,

    /// Algorithms, such as ring,tree [default: all that the machine can run]
    #[arg(long, value_name = "ALGORITHM", value_parser = parse_algorithm, value_delimiter = ',')]
    algorithm: Vec<Algorithm>,

    /// What a step costs beside the wire, as NCCL's protocols: simple, ll128 or ll
    #[arg(long, value_name = "PROTOCOL", default_value = "simple", value_parser = parse_software)]
    protocol: Software,

    /// Element type, as in tutti perf
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float", value_parser = parse_dtype)]
    dtype: DType,

    /// Root rank of a broadcast or a reduce
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value_t = 0)]
    root: u32,

    /// A link of which only a part is left, both ways, by its ends: gpu0:nvswitch=0.5; 0 for a dead one
    #[arg(long = "slow-link", value_name = "NODE:NODE=PART")]
    slow_links: Vec<String>,

    /// A rank whose software takes so many times as long: 3=10
    #[arg(long = "slow-rank", value_name = "RANK=TIMES")]
    slow_ranks: Vec<String>,

    /// Write when each step ran, as Chrome's and Perfetto's viewers read it (one size, one algorithm)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Write a picture of the bus bandwidth by size
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_software(text: &str) -> Result<Software, String> {
    match text {
        "simple" => Ok(Software::SIMPLE),
        "ll128" => Ok(Software::LL128),
        "ll" => Ok(Software::LL),
        _ => Err("expected simple, ll128 or ll".to_owned()),
    }
}

/// A slot of a simulated connection, and how many there are: NCCL's.
pub(crate) const GEOMETRY: Geometry = Geometry { slot_bytes: 512 << 10, slots: 8 };

/// Steps of a plan beyond which it is not simulated: they would take minutes.
const STEPS_MAX: u64 = 40_000_000;

/// Links that are listed.
const LINKS_SHOWN: usize = 8;

#[derive(Serialize)]
struct Row {
    size_bytes: u64,
    algorithm: &'static str,
    channels: usize,
    time_us: f64,
    algorithm_bandwidth_gb_per_s: f64,
    bus_bandwidth_gb_per_s: f64,
    events: u64,
    critical_path: Option<String>,
    /// Those that carried the most first.
    links: Vec<LinkUse>,
}

#[derive(Serialize)]
struct LinkUse {
    link: String,
    bytes: u64,
    /// From 0 to 1.
    utilisation: f64,
}

#[derive(Serialize)]
struct Report<'a> {
    collective: &'static str,
    topology: &'a str,
    rank_count: usize,
    rows: Vec<Row>,
}

/// Runs the command.
pub(crate) fn run(args: &SimulateArgs) -> Result<(), Failure> {
    let cluster = args.cluster.needed()?;
    let rank_count = cluster.rank_count();
    if rank_count > MAX_RANK_COUNT {
        return Err(Failure::Usage(format!("--topo: expected at most {MAX_RANK_COUNT} ranks, came {rank_count}")));
    }
    check_root(args.root as usize, rank_count)?;
    let collective = args.collective.with_root(Rank(args.root));
    for algorithm in &args.algorithm {
        check_offered(Some(*algorithm), collective)?;
    }
    let settings = settings(args, &cluster)?;
    let algorithms: Vec<Algorithm> = match args.algorithm.as_slice() {
        [] => collective.algorithms().filter(|algorithm| runs(*algorithm, &cluster)).collect(),
        asked => asked.to_vec(),
    };
    let sizes = sizes(args)?;
    if args.trace.is_some() && (sizes.len(), algorithms.len()) != (1, 1) {
        return Err(Failure::Usage("--trace: expected one size and one algorithm".to_owned()));
    }
    let mut rows = Vec::new();
    for &size in &sizes {
        for &algorithm in &algorithms {
            let plan = plan(collective, algorithm, &cluster, size, args.dtype.bytes() as u64)?;
            let result = simulate(&plan, &cluster, &settings);
            let simulated = result.map_err(|error| Failure::Failed(format!("{algorithm}: {error}")))?;
            if let Some(path) = &args.trace {
                let trace = simulated.trace(&plan).ok_or_else(|| {
                    Failure::Failed(format!("--trace: more than {} steps ran, too many to keep", settings.records_max))
                })?;
                write_file(path, &trace)?;
            }
            rows.push(row(&plan, &cluster, &simulated, size));
        }
    }
    if let Some(path) = &args.svg {
        write_file(path, &svg(&rows, &format!("{} on {}", collective.name(), cluster.name())))?;
    }
    let text = if args.json {
        shown::json(&Report { collective: collective.name(), topology: cluster.name(), rank_count, rows })?
    } else {
        text(collective, &cluster, &rows)
    };
    io::stdout().lock().write_all(text.as_bytes()).map_err(Failure::output)
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    let file = OutputFile::create(path, Existing::Replace)?;
    file.file().write_all(text.as_bytes()).map_err(|error| file.failed(&error))?;
    file.finish()
}

/// Whether the machine does what the algorithm takes.
pub(crate) fn runs(algorithm: Algorithm, cluster: &Cluster) -> bool {
    match algorithm {
        Algorithm::Nvls => cluster.switched_route(0, true).is_some(),
        // All pairs, and each with all of the data: no use for many.
        Algorithm::OneShot | Algorithm::Direct => cluster.rank_count() <= 128,
        _ => true,
    }
}

fn sizes(args: &SimulateArgs) -> Result<Vec<u64>, Failure> {
    match (args.collective, args.size, args.min_bytes) {
        (Collective::Barrier, None, None) => Ok(vec![0]),
        (Collective::Barrier, ..) => Err(Failure::Usage("barrier: expected no size, it moves nothing".to_owned())),
        (_, Some(size), _) => Ok(vec![size]),
        (_, None, Some(first)) => {
            let (last, factor) = (args.max_bytes.unwrap_or(1 << 30), args.step_factor.unwrap_or(4));
            if first == 0 || first > last {
                return Err(Failure::Usage(format!("-b {first}: expected a size from 1 to -e, {last}")));
            }
            let next = |size: &u64| size.checked_mul(factor);
            Ok(std::iter::successors(Some(first), next).take_while(|size| *size <= last).collect())
        }
        (_, None, None) => Err(Failure::Usage("expected --size SIZE, or sizes from -b to -e".to_owned())),
    }
}

/// The plan for at most so many bytes, rounded down to whole elements for each rank.
pub(crate) fn plan(
    collective: Collective,
    algorithm: Algorithm,
    cluster: &Cluster,
    size: u64,
    element_bytes: u64,
) -> Result<Plan, Failure> {
    let rank_count = cluster.rank_count();
    let blocks = if counts_blocks(collective) { rank_count as u64 } else { 1 };
    let count = size / element_bytes / blocks;
    let orders: Vec<Vec<Rank>> = if algorithm.takes_orders() && rank_count > 1 {
        cluster.ring_orders().into_iter().map(|order| order.into_iter().map(Rank).collect()).collect()
    } else {
        Vec::new()
    };
    let plan = build_in_orders(collective, algorithm, rank_count, count, element_bytes as u32, &GEOMETRY, &orders);
    let plan = plan.map_err(|error| Failure::Usage(error.to_string()))?;
    let loops = plan.ranks.iter().flat_map(|rank| &rank.programs).flat_map(|program| &program.loops);
    let steps =
        loops.fold(0_u64, |steps, each| steps.saturating_add(each.iterations.saturating_mul(each.steps.len() as u64)));
    if steps > STEPS_MAX {
        return Err(Failure::Failed(format!(
            "{algorithm} of {} takes {steps} steps; at most {STEPS_MAX} are simulated: choose a smaller size",
            format_size(size)
        )));
    }
    Ok(plan)
}

fn settings(args: &SimulateArgs, cluster: &Cluster) -> Result<Settings, Failure> {
    let mut settings = Settings { software: args.protocol, slots: GEOMETRY.slots, ..Settings::default() };
    for text in &args.slow_links {
        let wrong = |what: String| Failure::Usage(format!("--slow-link {text}: {what}"));
        let form = || wrong("expected NODE:NODE=PART, such as gpu0:nvswitch=0.5".to_owned());
        let (ends, part) = text.rsplit_once('=').ok_or_else(form)?;
        let (one, other) = ends.split_once(':').ok_or_else(form)?;
        let part: f64 = part
            .parse()
            .ok()
            .filter(|part| (0.0..=1.0).contains(part))
            .ok_or_else(|| wrong("expected a part from 0 to 1".to_owned()))?;
        let is_end = |end: &tutti::topology::NodeId, name: &str| {
            cluster.describe_node(*end) == name || cluster.nodes()[end.index()].name == name
        };
        let mut found = false;
        for (index, link) in cluster.links().iter().enumerate() {
            let [first, second] = &link.ends;
            if is_end(first, one) && is_end(second, other) || is_end(first, other) && is_end(second, one) {
                found = true;
                settings.slow_links.extend([(2 * index, part), (2 * index + 1, part)]);
            }
        }
        if !found {
            return Err(wrong(format!("no link joins {one} and {other}; tutti topo --topo shows which there are")));
        }
    }
    for text in &args.slow_ranks {
        let form =
            || Failure::Usage(format!("--slow-rank {text}: expected RANK=TIMES, such as 3=10, of an existing rank"));
        let (rank, times) = text.split_once('=').ok_or_else(form)?;
        let rank: u32 = rank.parse().ok().filter(|rank| (*rank as usize) < cluster.rank_count()).ok_or_else(form)?;
        let times: f64 = times.parse().ok().filter(|times| (0.0..1e6).contains(times)).ok_or_else(form)?;
        settings.slow_ranks.push((Rank(rank), times));
    }
    Ok(settings)
}

fn row(plan: &Plan, cluster: &Cluster, simulated: &Simulated, size_bytes: u64) -> Row {
    let mut links: Vec<LinkUse> = simulated
        .link_bytes
        .iter()
        .enumerate()
        .filter(|(_, bytes)| **bytes > 0)
        .map(|(index, bytes)| {
            let facts = cluster.link(index);
            let utilisation = *bytes as f64 / (facts.bandwidth_gb_per_s * 1e3 * simulated.time_us);
            LinkUse { link: facts.name, bytes: *bytes, utilisation }
        })
        .collect();
    links.sort_by(|one, other| other.utilisation.total_cmp(&one.utilisation));
    Row {
        size_bytes,
        algorithm: plan.algorithm.name(),
        channels: plan.orders.len().max(1),
        time_us: simulated.time_us,
        algorithm_bandwidth_gb_per_s: simulated.algorithm_bandwidth_gb_per_s(plan),
        bus_bandwidth_gb_per_s: simulated.bus_bandwidth_gb_per_s(plan),
        events: simulated.events,
        critical_path: simulated.critical_path.as_ref().map(ToString::to_string),
        links,
    }
}

fn text(collective: Collective, cluster: &Cluster, rows: &[Row]) -> String {
    let mut text = format!(
        "# {} among {} ranks on {}, simulated\n#{:>14}  {:<13}  {:>8}  {:>12}  {:>8}  {:>8}\n#{:>14}  {:<13}  {:>8}  {:>12}  {:>8}  {:>8}\n",
        collective.name(),
        cluster.rank_count(),
        cluster.name(),
        "size",
        "algorithm",
        "channels",
        "time",
        "algbw",
        "busbw",
        "(B)",
        "",
        "",
        "(us)",
        "(GB/s)",
        "(GB/s)",
    );
    for row in rows {
        let _ = writeln!(
            text,
            " {:>14}  {:<13}  {:>8}  {:>12.2}  {:>8.2}  {:>8.2}",
            row.size_bytes,
            row.algorithm,
            row.channels,
            row.time_us,
            row.algorithm_bandwidth_gb_per_s,
            row.bus_bandwidth_gb_per_s,
        );
    }
    let sizes = rows.iter().map(|row| row.size_bytes).collect::<std::collections::BTreeSet<_>>();
    if sizes.len() == 1 {
        for row in rows {
            let _ = writeln!(text, "\n{}", row.algorithm);
            if let Some(path) = &row.critical_path {
                let _ = writeln!(text, "  critical path: {path}");
            }
            for LinkUse { link, bytes, utilisation } in row.links.iter().take(LINKS_SHOWN) {
                let _ = writeln!(text, "  {:>5.1} %  {:>10}  {link}", 100.0 * utilisation, format_size(*bytes));
            }
            if row.links.len() > LINKS_SHOWN {
                let _ = writeln!(text, "  and {} more links", row.links.len() - LINKS_SHOWN);
            }
        }
    }
    shown::harmless(&text)
}

/// Bus bandwidth by size, a line for each algorithm, both axes by powers.
fn svg(rows: &[Row], title: &str) -> String {
    const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
    const LEFT: f64 = 70.0;
    const TOP: f64 = 40.0;
    const WIDTH: f64 = 560.0;
    const HEIGHT: f64 = 320.0;
    let log = |value: f64| value.max(1e-3).log2();
    let sizes = || rows.iter().map(|row| log(row.size_bytes as f64));
    let bandwidths = || rows.iter().map(|row| log(row.bus_bandwidth_gb_per_s));
    let range = |values: &dyn Fn() -> Vec<f64>| {
        let values = values();
        let (low, high) =
            values.iter().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
        (low.floor(), (high + 0.01).ceil().max(low.floor() + 1.0))
    };
    let (x_low, x_high) = range(&|| sizes().collect());
    let (y_low, y_high) = range(&|| bandwidths().collect());
    let x = |size: f64| LEFT + (log(size) - x_low) / (x_high - x_low) * WIDTH;
    let y = |bandwidth: f64| TOP + HEIGHT - (log(bandwidth) - y_low) / (y_high - y_low) * HEIGHT;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 420\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"760\" height=\"420\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    let step = |low: f64, high: f64| ((high - low) / 8.0).ceil().max(1.0);
    let mut power = x_low;
    while power <= x_high {
        let at = x(power.exp2());
        let label = format_size(power.exp2() as u64);
        let _ = writeln!(
            text,
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            TOP + HEIGHT,
            TOP + HEIGHT + 16.0,
        );
        power += step(x_low, x_high);
    }
    let mut power = y_low;
    while power <= y_high {
        let (at, value) = (y(power.exp2()), power.exp2());
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            LEFT + WIDTH,
            LEFT - 6.0,
            at + 4.0,
        );
        power += step(y_low, y_high);
    }
    let _ = writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">size</text><text x=\"16\" y=\"{:.1}\" transform=\"rotate(-90 16 {:.1})\" text-anchor=\"middle\">busbw, GB/s</text>",
        LEFT + WIDTH / 2.0,
        TOP + HEIGHT + 36.0,
        TOP + HEIGHT / 2.0,
        TOP + HEIGHT / 2.0,
    );
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.algorithm) {
            names.push(row.algorithm);
        }
    }
    for (index, name) in names.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<(f64, f64)> = rows
            .iter()
            .filter(|row| row.algorithm == *name)
            .map(|row| (x(row.size_bytes as f64), y(row.bus_bandwidth_gb_per_s)))
            .collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y) in points {
            let _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let at = TOP + 14.0 + 18.0 * index as f64;
        let _ = writeln!(
            text,
            "<rect x=\"646\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"664\" y=\"{at:.1}\">{name}</text>",
            at - 10.0
        );
    }
    text.push_str("</svg>\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
