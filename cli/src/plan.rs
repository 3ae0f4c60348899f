//! `tutti plan`: prints the plan by which a collective would run, what each rank sends, and whether the plan is right.

use crate::failure::Failure;
use crate::names::{
    check_root, counts_blocks, parse_algorithm, parse_collective, parse_dtype, parse_rank_count, whole,
};
use crate::ranks::plan_bytes_at_most;
use crate::size::{format_size, parse_size};
use crate::{machine, shown};
use serde::Serialize;
use std::io::{self, BufWriter, Write};
use tutti::DType;
use tutti::plan::select::{self, Capabilities};
use tutti::plan::verify::ViolationKind;
use tutti::plan::{self, Algorithm, Collective, Geometry, Operand, Plan, Rank, verify};

/// Print the plan of a collective, what each rank sends, and whether the plan is right
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The size is, as in tutti perf, that of the larger buffer: for reduce_scatter and all_gather that of all ranks' blocks \
together. The plan is printed in its text form; the lines after it (comments in that form) say how many bytes each rank \
sends and how many steps it takes.

Examples:
  tutti plan all_reduce -g 4 --size 1M
  tutti plan broadcast -g 8 --size 64K -r 3 --algorithm chain --verify
  tutti plan all_reduce -g 64 --size 1G --verify --quiet

Exit code: 0 if all is well, 1 if the verifier finds the plan wrong or the output cannot be written, 2 for a wrong \
command line, 3 if the plan is too large to be verified: then it was found neither right nor wrong, and is printed only \
as JSON.")]
pub(crate) struct PlanArgs {
    /// all_reduce, reduce_scatter, all_gather, broadcast, reduce or barrier
    #[arg(value_parser = parse_collective)]
    collective: Collective,

    /// Number of ranks
    #[arg(short = 'g', long = "ranks", value_name = "N", value_parser = parse_rank_count)]
    ranks: usize,

    /// Size in bytes, with an optional unit K, M, G or T (a barrier has none)
    #[arg(short = 's', long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,

    /// Algorithm, such as ring, tree or direct [default: chosen by size and number of ranks]
    #[arg(long, value_name = "ALGORITHM", value_parser = parse_algorithm)]
    algorithm: Option<Algorithm>,

    /// Element type: float (f32), half (f16), int8 (i8) and so on, as in tutti perf [default: float; a barrier has none]
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", value_parser = parse_dtype)]
    dtype: Option<DType>,

    /// Root rank of a broadcast or a reduce [default: 0]
    #[arg(short = 'r', long = "root", value_name = "RANK", value_parser = whole(0..=u64::from(u32::MAX)))]
    root: Option<u64>,

    /// Verify the plan: every element right, no deadlock, as many bytes as published
    #[arg(long)]
    verify: bool,

    /// Leave out the plan itself: print what each rank sends and, with --verify, the verdict
    #[arg(short = 'q', long)]
    quiet: bool,

    /// Print JSON; the plan's text form is a string in it
    #[arg(long)]
    json: bool,
}

/// What one rank does.
#[derive(Serialize)]
struct RankSummary {
    rank: usize,
    /// What it puts into slots and into peers' windows, and what peers read from its windows.
    sent_bytes: u64,
    /// Steps that its programs fire, through all iterations.
    steps: u64,
    programs: usize,
    scratch_bytes: u64,
}

#[derive(Serialize)]
struct Summary {
    collective: &'static str,
    root: Option<u32>,
    algorithm: &'static str,
    rank_count: usize,
    count: u64,
    element_bytes: u32,
    connections: usize,
    ranks: Vec<RankSummary>,
    /// Whether the verifier found the plan right; null if it was not asked, or gave up.
    verified: Option<bool>,
    violations: Vec<String>,
    /// Null if it is to be left out.
    plan: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    check_addresses(plan_bytes_at_most(args.ranks), "the plan").map_err(Failure::Failed)?;
    let plan = build(args)?;
    let ranks = summarise(&plan);
    if args.verify {
        // About what the verifier keeps for each step, until it gives up.
        const STEP_BYTES: u64 = 200;
        const VERIFIER_BYTES_MAX: u64 = 384 << 20;
        let steps = ranks.iter().fold(0_u64, |steps, rank| steps.saturating_add(rank.steps));
        let needed = steps.saturating_mul(STEP_BYTES).saturating_add(2 * plan_bytes_at_most(args.ranks));
        check_addresses(needed.min(VERIFIER_BYTES_MAX), "verifying the plan").map_err(Failure::Unchecked)?;
    }
    let verdict = args.verify.then(|| verify::verify(&plan));
    let violations: Vec<String> = match &verdict {
        Some(Err(violations)) => violations.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    };
    // A plan on which the verifier gave up has not been found wrong, but not right either.
    let given_up = match &verdict {
        Some(Err(violations)) => {
            violations.iter().all(|violation| matches!(violation.kind, ViolationKind::TooLarge { .. }))
        }
        _ => false,
    };
    if given_up && !args.json {
        return Err(unchecked(&violations));
    }
    let printed = print(args, &plan, ranks, verdict.as_ref(), &violations, given_up);
    let found = match violations.len() {
        0 => Ok(()),
        _ if given_up => Err(unchecked(&violations)),
        count => Err(Failure::Failed(format!("the plan is wrong: the verifier found {count} violations"))),
    };
    // The verdict counts, whether somebody reads all of the plan or not.
    match printed {
        Err(Failure::ReaderGone) if found.is_err() => found,
        printed => printed.and(found),
    }
}

/// Refuses what may not fit the addresses that are left to this process, if they are limited.
fn check_addresses(needed: u64, what: &str) -> Result<(), String> {
    match machine::address_bytes_left() {
        Some(left) if left < needed => {
            let (needed, left) = (format_size(needed), format_size(left));
            Err(format!("{what} may take {needed} of addresses, and the limit (ulimit -v) leaves {left}"))
        }
        _ => Ok(()),
    }
}

fn unchecked(violations: &[String]) -> Failure {
    Failure::Unchecked(format!(
        "the plan is neither right nor wrong, it was not verified: {} (without --verify it is printed)",
        violations.join("; ")
    ))
}

fn print(
    args: &PlanArgs,
    plan: &Plan,
    ranks: Vec<RankSummary>,
    verdict: Option<&Result<verify::Report, Vec<verify::Violation>>>,
    violations: &[String],
    given_up: bool,
) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        let summary = Summary {
            collective: plan.collective.name(),
            root: plan.collective.root().map(|root| root.0),
            algorithm: plan.algorithm.name(),
            rank_count: plan.rank_count(),
            count: plan.count,
            element_bytes: plan.element_bytes,
            connections: plan.connections.len(),
            ranks,
            verified: if given_up { None } else { verdict.map(Result::is_ok) },
            violations: violations.to_vec(),
            plan: (!args.quiet).then(|| plan.to_string()),
        };
        out.write_all(shown::json(&summary)?.as_bytes()).map_err(Failure::output)?;
    } else {
        if !args.quiet {
            write!(out, "{plan}").map_err(Failure::output)?;
        }
        for RankSummary { rank, sent_bytes, steps, programs, scratch_bytes } in &ranks {
            writeln!(
                out,
                "# rank {rank}: sends {sent_bytes} bytes; {steps} steps in {programs} programs; {scratch_bytes} bytes of \
                 scratch"
            )
            .map_err(Failure::output)?;
        }
        match verdict {
            Some(Ok(report)) => writeln!(
                out,
                "# verified: every element is right, nothing waits for ever, each rank sends what is published; {} steps, \
                 {} slots filled",
                report.steps, report.slots
            )
            .map_err(Failure::output)?,
            Some(Err(_)) => {
                for violation in violations {
                    writeln!(out, "# wrong: {violation}").map_err(Failure::output)?;
                }
            }
            None => {}
        }
    }
    out.flush().map_err(Failure::output)
}

fn build(args: &PlanArgs) -> Result<Plan, Failure> {
    let usage = |text: String| Err(Failure::Usage(text));
    // What would change nothing is a misunderstanding.
    let name = args.collective.name();
    if args.root.is_some() && args.collective.root().is_none() {
        return usage(format!("{name}: expected no --root, it has none"));
    }
    if args.collective == Collective::Barrier {
        if args.size.is_some() {
            return usage(format!("{name}: expected no --size, it moves nothing"));
        }
        if args.dtype.is_some() {
            return usage(format!("{name}: expected no --datatype, it moves nothing"));
        }
    }
    let (root, dtype) = (args.root.unwrap_or(0), args.dtype.unwrap_or(DType::F32));
    check_root(root as usize, args.ranks)?;
    let collective = args.collective.with_root(Rank(root as u32));
    let element_bytes = dtype.bytes() as u64;
    let blocks = if counts_blocks(collective) { args.ranks as u64 } else { 1 };
    let size = match (collective, args.size) {
        (Collective::Barrier, _) => 0,
        (_, Some(size)) => size,
        (_, None) => return usage(format!("{name}: expected --size")),
    };
    if size % (element_bytes * blocks) != 0 {
        let unit = match blocks {
            1 => format!("{element_bytes}, the bytes of one {dtype} element"),
            _ => format!("{}: one {dtype} element for each of {blocks} ranks", element_bytes * blocks),
        };
        return usage(format!("--size {size}: expected a multiple of {unit}"));
    }
    let count = size / element_bytes / blocks;
    // What ranks in one process offer.
    let capabilities = Capabilities { windows: true, switch: false };
    let algorithm = args.algorithm.unwrap_or_else(|| {
        select::choose(collective, args.ranks, count * element_bytes, element_bytes as u32, capabilities)
    });
    plan::build(collective, algorithm, args.ranks, count, element_bytes as u32, &Geometry::default())
        .map_err(|error| Failure::Usage(error.to_string()))
}

/// Counts, for each rank, what it sends and how many steps it takes.
fn summarise(plan: &Plan) -> Vec<RankSummary> {
    let mut sent_bytes = vec![0_u64; plan.rank_count()];
    let mut step_counts = vec![0_u64; plan.rank_count()];
    for (rank, rank_plan) in plan.ranks.iter().enumerate() {
        for in_loop in rank_plan.programs.iter().flat_map(|program| &program.loops) {
            for step in &in_loop.steps {
                step_counts[rank] = step_counts[rank].saturating_add(in_loop.iterations);
                for destination in &step.destinations {
                    if !matches!(destination, Operand::Local { .. }) {
                        sent_bytes[rank] = sent_bytes[rank].saturating_add(step.bytes);
                    }
                }
                for source in &step.sources {
                    if let Operand::Window { rank: peer, .. } = source.operand
                        && let Some(sent) = sent_bytes.get_mut(peer.index())
                    {
                        *sent = sent.saturating_add(step.bytes);
                    }
                }
            }
        }
    }
    let ranks = plan.ranks.iter().zip(sent_bytes).zip(step_counts).enumerate();
    ranks
        .map(|(rank, ((rank_plan, sent_bytes), steps))| RankSummary {
            rank,
            sent_bytes,
            steps,
            programs: rank_plan.programs.len(),
            scratch_bytes: rank_plan.scratch_bytes,
        })
        .collect()
}
