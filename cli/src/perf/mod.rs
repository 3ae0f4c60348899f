//! `tutti perf`: measures a collective at many sizes and checks every result, as nccl-tests does, on ranks that are threads or that
//! CUDA devices run.
//!
//! Flags, their meanings and the output are nccl-tests', so that its users and its parsers feel at home. What differs is
//! said in the help text: sizes suit CPUs, and counts of one rank's block are not rounded to multiples of 16 bytes, so that
//! odd ones are really tried.

mod measure;
mod place;
mod report;

use crate::failure::Failure;
use crate::inputs::{Inputs, Number};
use crate::names::{
    Choice, check_offered, check_root, counts_blocks, parse_algorithm, parse_collective, parse_dtypes,
    parse_rank_count, parse_reductions, parse_roots, parse_switch, whole,
};
use crate::output::{Existing, OutputFile};
use crate::ranks::{Need, check_addresses, cores_for_ranks, options_within_memory, run_ranks};
use crate::shown::{self, shown};
use crate::size::parse_size;
use crate::{machine, table};
use measure::{Average, Case, Measured, Settings, measure};
use place::{Gpus, Kind, Place};
use report::Report;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tutti::cuda::{Device, Paths};
use tutti::plan::{Algorithm, Collective, MAX_RANK_COUNT, Rank};
use tutti::{Communicator, DType, Options, Reduction};

/// Measure and check a collective, with the flags and the table of nccl-tests
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Each rank is a thread of this process; with --device cuda a GPU runs it, on buffers in the GPU's memory that its peers reach, and \
the calls of a row are queued on a stream and waited for once. A row's time is the mean over the ranks of calls made back to back; then one call \
with fresh inputs is checked (see --check): every element on every rank, the input, which an out-of-place call must leave \
as it was, and guard bands around all buffers. Inputs depend on rank and index and are chosen so that the result is known \
to the last bit, whatever the order of the reduction.

Unlike nccl-tests, which rounds the per-rank count of reduce_scatter and all_gather down to multiples of 16 bytes, tutti \
really tries odd counts. \"Out of bounds values\" counts everything that is wrong: guard elements that were overwritten, \
and all of #wrong.

Sizes are rounded down to whole elements (for reduce_scatter and all_gather, to as many for each rank): each that comes of it \
is measured once, and zero only where -b is zero.

With NCCL_TESTS_MIN_BW set, an average bus bandwidth below 0.9 times that many GB/s is a failure.

Examples:
  tutti perf all_reduce -g 4
  tutti perf reduce_scatter -g 3 -b 1K -e 1M -f 2 -d all -o all
  tutti perf broadcast -g 8 -b 1M -e 1M -r all -J result.json
  tutti perf all_reduce --device cuda -e 1G -f 2
  tutti perf all_reduce --device cuda -g 4 --ranks-per-gpu 4 -G 1

Exit code: 0 if all results are right, 1 if anything is wrong, 2 for a wrong command line.")]
pub(crate) struct PerfArgs {
    /// all_reduce, reduce_scatter, all_gather, broadcast, reduce or barrier
    #[arg(default_value = "all_reduce", value_parser = parse_collective)]
    collective: Collective,

    /// Threads, as nccl-tests counts them: the number of ranks is this times -g
    #[arg(short = 't', long = "nthreads", value_name = "N", default_value_t = 1, value_parser = whole(1..=MAX_RANK_COUNT as u64))]
    threads: u64,

    /// Number of ranks [default: 2; with --device cuda as many as the GPUs take]
    #[arg(short = 'g', long = "ranks", alias = "ngpus", value_name = "N", value_parser = parse_rank_count)]
    ranks: Option<usize>,

    /// What runs the ranks: this process's threads, or CUDA devices
    #[arg(long, value_enum, value_name = "DEVICE", default_value_t = Kind::Cpu)]
    device: Kind,

    /// How many ranks share a GPU: the first so many the first one, and so on (with --device cuda) [default: 1]
    #[arg(long, value_name = "N", value_parser = whole(1..=MAX_RANK_COUNT as u64))]
    ranks_per_gpu: Option<u64>,

    /// Smallest size in bytes, with an optional unit K, M, G or T
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "8", value_parser = parse_size)]
    min_bytes: u64,

    /// Largest size in bytes [default: 32M, or the smallest size where that is larger]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", value_parser = parse_size)]
    max_bytes: Option<u64>,

    /// Bytes to add from one size to the next
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", value_parser = parse_size, conflicts_with = "step_factor")]
    step_bytes: Option<u64>,

    /// Factor from one size to the next [default: 4, unless -i is given]
    #[arg(short = 'f', long = "stepfactor", value_name = "N", value_parser = whole(2..=u64::MAX))]
    step_factor: Option<u64>,

    /// Timed iterations
    #[arg(short = 'n', long = "iters", value_name = "N", default_value_t = 20, value_parser = whole(1..=ITERATIONS_MAX))]
    iterations: u64,

    /// Iterations before those that are timed
    #[arg(short = 'w', long = "warmup_iters", alias = "warmup-iters", value_name = "N", default_value_t = 1,
          value_parser = whole(0..=ITERATIONS_MAX))]
    warmup_iterations: u64,

    /// Checked iterations; 0 checks nothing
    #[arg(short = 'c', long = "check", value_name = "N", default_value_t = 1, value_parser = whole(0..=ITERATIONS_MAX))]
    checks: u64,

    /// Element type: float (f32), double, half, bfloat16, fp8_e4m3, fp8_e5m2, int8, uint8, int16 and so on up to uint64, or all
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float", value_parser = parse_dtypes)]
    dtypes: Choice<DType>,

    /// Reduction: sum, prod, min, max, avg, mulsum (scaled_sum: by a half, of integers by three), of integers band, bor or bxor, or
    /// all (that the type offers)
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum", value_parser = parse_reductions)]
    reductions: Choice<Reduction>,

    /// Root rank, or all
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value = "0", value_parser = parse_roots)]
    roots: Choice<usize>,

    /// How often the whole table is measured; 0 is for ever
    #[arg(short = 'N', long = "run_cycles", alias = "run-cycles", value_name = "N", default_value_t = 1,
          value_parser = whole(0..=u64::MAX))]
    cycles: u64,

    /// Which time to show: 0 rank 0's, 1 the mean, 2 the minimum, 3 the maximum over the ranks
    #[arg(short = 'a', long = "average", value_name = "0-3", default_value = "1", value_parser = parse_average)]
    average: Average,

    #[command(flatten)]
    switches: Switches,

    /// Leading iterations that the spread leaves out (with -I 1)
    #[arg(short = 'K', long = "per_iter_skip", alias = "per-iter-skip", value_name = "N", default_value_t = 0,
          value_parser = whole(0..=ITERATIONS_MAX))]
    per_iteration_skip: u64,

    /// Capture the timed iterations as a CUDA graph, and time so many launches of it; 0 captures nothing (with --device cuda)
    #[arg(short = 'G', long = "graph", alias = "cudagraph", value_name = "N", default_value_t = 0,
          value_parser = whole(0..=ITERATIONS_MAX))]
    graph: u64,

    /// Elements by which all buffers are moved off their alignment
    #[arg(short = 'u', long = "unalign", value_name = "N", default_value_t = 0, value_parser = whole(0..=4096))]
    unalign: u64,

    /// Seconds without progress after which a call fails [default: 30, and 600 for a rank that does not come]
    #[arg(short = 'T', long = "timeout", value_name = "SECONDS", value_parser = whole(1..=1_000_000))]
    timeout_s: Option<u64>,

    /// Write everything as JSON too, to a name in .json or, with -, to standard output (then the table goes to standard error)
    #[arg(short = 'J', long = "output_file", alias = "output-file", value_name = "FILE")]
    json: Option<PathBuf>,

    /// Algorithm, such as ring, tree or direct [default: chosen by size and number of ranks]
    #[arg(long, value_name = "ALGORITHM", value_parser = parse_algorithm)]
    algorithm: Option<Algorithm>,

    /// Leave the ranks' threads to the scheduler; otherwise, where there are enough cores, rank r keeps to the r-th
    #[arg(long)]
    no_pin: bool,
}

/// What is on with 1 and off with 0.
#[derive(Debug, clap::Args)]
struct Switches {
    /// 1 times each iteration for itself and shows the spread
    #[arg(short = 'I', long = "per_iter_timing", alias = "per-iter-timing", value_name = "0/1", default_value = "0",
          action = clap::ArgAction::Set, value_parser = parse_switch)]
    per_iteration: bool,

    /// 1 ends each row with the time of day (UTC)
    #[arg(short = 'S', long = "report_timestamps", alias = "report-timestamps", value_name = "0/1", default_value = "0",
          action = clap::ArgAction::Set, value_parser = parse_switch)]
    timestamps: bool,

    /// 1 reports the memory that the communicators hold
    #[arg(short = 'M', long = "memory", value_name = "0/1", default_value = "0",
          action = clap::ArgAction::Set, value_parser = parse_switch)]
    memory: bool,
}

/// The most iterations of one row.
const ITERATIONS_MAX: u64 = 1_000_000_000;

fn parse_average(text: &str) -> Result<Average, String> {
    let all = [Average::Rank0, Average::Mean, Average::Min, Average::Max];
    let number = whole(0..=all.len() as u64 - 1)(text)?;
    Ok(all[number as usize])
}

/// Runs the command.
pub(crate) fn run(args: &PerfArgs) -> Result<(), Failure> {
    let sweep = Sweep::new(args, Place::open(args)?)?;
    let json = args.json.as_deref().map(Json::open).transpose()?;
    // Standard output belongs to the JSON if that is where it goes.
    let mut out: Box<dyn Write> = match json {
        Some(Json::StandardOutput) => Box::new(io::stderr()),
        _ => Box::new(io::stdout()),
    };
    let announced = match (&json, &args.json) {
        (Some(Json::File(_)), Some(path)) => writeln!(out, "# Writing JSON output to {}", shown(path)),
        _ => Ok(()),
    };
    let mut report = Report::new(args, &sweep);
    let result = announced.map_err(Failure::output).and_then(|()| sweep.run(args, &mut *out, &mut report));
    // Whoever reads the table may leave; what was found wrong until then is still wrong.
    let result = match result {
        Err(Failure::ReaderGone) if report.wrong + report.overwritten > 0 => {
            Err(Failure::Failed(format!("{} elements are wrong", report.wrong + report.overwritten)))
        }
        result => result,
    };
    report.errors.extend(match &result {
        Ok(()) => None,
        Err(Failure::ReaderGone) => Some("not complete: standard output was closed".to_owned()),
        Err(Failure::Failed(reason) | Failure::Usage(reason) | Failure::Unchecked(reason)) => Some(reason.clone()),
    });
    let written = json.map_or(Ok(()), |json| json.write(report));
    match (result, written) {
        // Neither of two failures hides the other.
        (Err(Failure::Failed(reason)), Err(Failure::Failed(unwritten))) => {
            Err(Failure::Failed(format!("{reason}; and {unwritten}")))
        }
        (Ok(()) | Err(Failure::ReaderGone), Err(unwritten)) => Err(unwritten),
        (result, _) => result,
    }
}

/// Where the JSON goes.
enum Json {
    StandardOutput,
    File(OutputFile),
}

impl Json {
    fn open(path: &std::path::Path) -> Result<Json, Failure> {
        if path.as_os_str() == "-" {
            return Ok(Json::StandardOutput);
        }
        if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("json")) {
            return Err(Failure::Usage(format!("-J {}: expected a name in .json, or -", shown(path))));
        }
        OutputFile::create(path, Existing::Replace).map(Json::File)
    }

    fn write(self, mut report: Report) -> Result<(), Failure> {
        report.end_time = Some(now());
        let text = shown::json(&report)?;
        match self {
            Json::StandardOutput => io::stdout().lock().write_all(text.as_bytes()).map_err(Failure::output),
            Json::File(file) => {
                file.file().write_all(text.as_bytes()).map_err(|error| file.failed(&error))?;
                file.finish()
            }
        }
    }
}

/// The time of day, in UTC.
fn now() -> String {
    table::format_time(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// The sizes, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Bytes(u64),
    Factor(u64),
}

/// The command line, checked: what is measured, and how.
struct Sweep {
    program: String,
    place: Place,
    rank_count: usize,
    min_bytes: u64,
    max_bytes: u64,
    step: Step,
    dtypes: Vec<DType>,
    reductions: Vec<Option<Reduction>>,
    collectives: Vec<Collective>,
    settings: Settings,
    minimum_gb_s: Option<f64>,
}

impl Sweep {
    fn new(args: &PerfArgs, place: Place) -> Result<Sweep, Failure> {
        let usage = |text: String| Err(Failure::Usage(text));
        let rank_count = place.rank_count();
        const MAX_BYTES_DEFAULT: u64 = 32 << 20;
        let max_bytes = args.max_bytes.unwrap_or(MAX_BYTES_DEFAULT.max(args.min_bytes));
        if args.min_bytes > max_bytes {
            return usage(format!("-b {} is larger than -e {max_bytes}", args.min_bytes));
        }
        let step = match (args.step_bytes, args.step_factor) {
            (Some(0), _) => return usage("-i: expected at least one byte, got 0".to_owned()),
            (Some(bytes), _) => Step::Bytes(bytes),
            (None, factor) => Step::Factor(factor.unwrap_or(4)),
        };
        if args.min_bytes == 0 && max_bytes > 0 && matches!(step, Step::Factor(_)) {
            return usage("-b 0 goes with -i or with -e 0: no factor leads on from a size of 0".to_owned());
        }
        let skip = args.per_iteration_skip;
        if skip > 0 && (!args.switches.per_iteration || skip >= args.iterations) {
            return usage(format!("-K {skip}: expected -I 1 and fewer than the {} iterations", args.iterations));
        }
        // Each of them is kept, on every rank.
        const ITERATIONS_KEPT_MAX: u64 = 1_000_000;
        if args.switches.per_iteration && args.iterations > ITERATIONS_KEPT_MAX {
            return usage(format!("-I 1: expected at most {ITERATIONS_KEPT_MAX} iterations, got {}", args.iterations));
        }
        let collective = args.collective;
        let reductions = match collective.reduces() {
            true => args.reductions.among(Reduction::ALL.iter().copied()).into_iter().map(Some).collect(),
            false => vec![None],
        };
        let roots = args.roots.among(0..rank_count);
        roots.iter().try_for_each(|&root| check_root(root, rank_count))?;
        let collectives = match collective.root() {
            Some(_) => roots.into_iter().map(|root| collective.with_root(Rank(root as u32))).collect(),
            None => vec![collective],
        };
        check_offered(args.algorithm, collective)?;
        let is_barrier = collective == Collective::Barrier;
        let dtypes = if is_barrier { vec![DType::F32] } else { args.dtypes.among(DType::ALL.iter().copied()) };
        let offered = |dtype: &DType| reductions.iter().flatten().any(|reduction: &Reduction| dtype.offers(*reduction));
        if let ([reduction], false) =
            (&reductions.iter().flatten().copied().collect::<Vec<_>>()[..], dtypes.iter().any(offered))
        {
            let offering = DType::ALL.iter().filter(|dtype| dtype.offers(*reduction)).map(|dtype| dtype.name());
            let offering: Vec<&str> = offering.collect();
            return usage(format!("-o {reduction} is offered by {}, not by {}", offering.join(", "), dtypes[0]));
        }
        let sweep = Sweep {
            program: format!("{}_perf", collective.name()),
            place,
            rank_count,
            min_bytes: if is_barrier { 0 } else { args.min_bytes },
            max_bytes: if is_barrier { 0 } else { max_bytes },
            step,
            dtypes,
            reductions,
            collectives,
            settings: Settings {
                iterations: args.iterations,
                warmup_iterations: args.warmup_iterations,
                checks: args.checks,
                unalign: args.unalign as usize,
                average: args.average,
                per_iteration_skip: args.switches.per_iteration.then_some(skip as usize),
                graph_launches: args.graph,
            },
            minimum_gb_s: minimum_bandwidth(std::env::var_os("NCCL_TESTS_MIN_BW"))?,
        };
        for &dtype in &sweep.dtypes {
            if sweep.cases(collective, None, dtype.bytes()).next().is_none() {
                let each =
                    if counts_blocks(collective) { format!(" for each of {rank_count} ranks") } else { String::new() };
                return usage(format!("-b {} -e {max_bytes}: no size holds one {dtype} element{each}", args.min_bytes));
            }
        }
        Ok(sweep)
    }

    /// The rows of one collective. Sizes are rounded down to whole elements: each is there once, and none that was not
    /// asked for comes to nothing.
    fn cases(
        &self,
        collective: Collective,
        reduction: Option<Reduction>,
        element_bytes: usize,
    ) -> impl Iterator<Item = Case> + use<> {
        let rank_count = self.rank_count;
        let mut last = None;
        self.sizes().filter_map(move |size| {
            let case = Case::of_size(collective, reduction, rank_count, size, element_bytes);
            let new = last.replace(case.count) != Some(case.count);
            (new && (case.count > 0 || size == 0)).then_some(case)
        })
    }

    fn sizes(&self) -> impl Iterator<Item = u64> + use<> {
        let (step, max_bytes) = (self.step, self.max_bytes);
        std::iter::successors(Some(self.min_bytes), move |&size| match step {
            Step::Bytes(bytes) => size.checked_add(bytes),
            Step::Factor(factor) if size > 0 => size.checked_mul(factor),
            Step::Factor(_) => None,
        })
        .take_while(move |&size| size <= max_bytes)
    }

    /// Settings that let the ranks take the memory that there is, and no more. Refuses what does not fit, before any of it is taken.
    fn options(&self, algorithm: Option<Algorithm>) -> Result<Options, Failure> {
        // On the host too, where what devices hold is made and checked.
        let rank_bytes = self.dtypes.iter().map(|&dtype| self.rank_bytes(dtype)).max().unwrap_or(0);
        let buffer_bytes = rank_bytes.saturating_mul(self.rank_count as u64);
        let need = Need::of_buffers(buffer_bytes);
        check_addresses(self.rank_count, buffer_bytes, machine::address_bytes_left())?;
        need.check(self.rank_count, machine::available_memory_bytes(), "choose a smaller -e or -g")?;
        match self.place.gpus() {
            Some(gpus) => Ok(Options::default().memory_budget_bytes(gpus.bytes_left(rank_bytes)?)),
            None => {
                self.check_connections(need, algorithm)?;
                Ok(options_within_memory(self.rank_count, buffer_bytes))
            }
        }
    }

    /// Refuses connections and plans for which there is no memory beside what is needed already.
    fn check_connections(&self, mut need: Need, algorithm: Option<Algorithm>) -> Result<(), Failure> {
        let rank_count = self.rank_count;
        // A few roots stand for all, and a few sizes: what they leave out the library's budget catches.
        const ROOTS: usize = 16;
        let doublings = std::iter::successors(Some(self.min_bytes.max(1)), |size| size.checked_mul(2));
        let sizes: Vec<u64> = doublings.take_while(|&size| size < self.max_bytes).chain([self.max_bytes]).collect();
        for element_bytes in self.dtypes.iter().map(|dtype| dtype.bytes()) {
            for &collective in self.collectives.iter().take(ROOTS) {
                let count = |&size| Case::of_size(collective, None, rank_count, size, element_bytes).count as u64;
                need.add_calls(collective, algorithm, rank_count, sizes.iter().map(count), element_bytes)?;
            }
        }
        need.check(rank_count, machine::available_memory_bytes(), "choose a smaller -g or another --algorithm")
    }

    fn rank_bytes(&self, dtype: DType) -> u64 {
        let case = Case::of_size(self.collectives[0], None, self.rank_count, self.max_bytes, dtype.bytes());
        let unalign = self.settings.unalign;
        tutti::with_element!(dtype, T => case.rank_bytes::<T>(unalign)) as u64
    }

    fn run(&self, args: &PerfArgs, out: &mut dyn Write, report: &mut Report) -> Result<(), Failure> {
        let mut options = self.options(args.algorithm)?;
        options.algorithm = args.algorithm;
        if let Some(timeout_s) = args.timeout_s {
            options.progress_timeout = Duration::from_secs(timeout_s);
            options.arrival_timeout = Duration::from_secs(timeout_s);
        }
        let communicators = self.place.communicators(options)?;
        let is_cuda = self.place.gpus().is_some();
        let cores = cores_for_ranks(self.rank_count, !args.no_pin && !is_cuda);
        if is_cuda {
            communicators[0].paths().into_iter().flat_map(Paths::warnings).for_each(|warning| crate::warn(warning));
            // A device that runs no kernel of ours says so now, rather than in the middle of a row.
            run_ranks(&communicators, &cores, |communicator| Ok(communicator.barrier()?))?;
        }
        let mut table = Table { out, report, sweep: self, timestamps: args.switches.timestamps, bus_gb_s: Vec::new() };
        table.head(&cores)?;
        for &dtype in &self.dtypes {
            tutti::with_element!(dtype, T => table.rows::<T>(args, &communicators, &cores))?;
        }
        if args.switches.memory {
            table.memory(&communicators)?;
        }
        table.foot()
    }
}

/// What runs a rank, as the table's head has it: its number, where it is, and what.
type Seat = (i64, String, String);

fn seats_on_cores(cores: &[Option<usize>]) -> Vec<Seat> {
    let processor = machine::processor_name();
    let seat = |core: &Option<usize>| {
        let (core, pinned) = core.map_or((-1, "not pinned"), |core| (core as i64, "pinned"));
        (core, "cpu".to_owned(), format!("{processor}, {pinned}"))
    };
    cores.iter().map(seat).collect()
}

fn seats_on_gpus(gpus: &Gpus) -> Result<Vec<Seat>, Failure> {
    let seat = |device: &Device| Ok((device.ordinal() as i64, device.pci_bus_id()?, device.name()?));
    gpus.devices().iter().map(seat).collect()
}

/// The bandwidth that the environment asks for, if it does.
fn minimum_bandwidth(text: Option<OsString>) -> Result<Option<f64>, Failure> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let number = text.to_str().and_then(|text| text.trim().parse().ok());
    match number.filter(|number: &f64| number.is_finite() && *number >= 0.0) {
        Some(number) => Ok(Some(number)),
        None => Err(Failure::Usage(format!("NCCL_TESTS_MIN_BW={}: expected a number of GB/s", shown(&text)))),
    }
}

/// The table as it is printed and reported.
struct Table<'a> {
    out: &'a mut dyn Write,
    report: &'a mut Report,
    sweep: &'a Sweep,
    timestamps: bool,
    /// Of every half row.
    bus_gb_s: Vec<f64>,
}

impl Table<'_> {
    fn print(&mut self, text: &str) -> Result<(), Failure> {
        self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()).map_err(Failure::output)
    }

    fn head(&mut self, cores: &[Option<usize>]) -> Result<(), Failure> {
        let Sweep { rank_count, min_bytes, max_bytes, settings, .. } = self.sweep;
        let (step, kind) = match self.sweep.step {
            Step::Bytes(bytes) => (bytes, "bytes"),
            Step::Factor(factor) => (factor, "factor"),
        };
        let Settings { warmup_iterations, iterations, checks, unalign, per_iteration_skip, graph_launches, .. } =
            settings;
        let mut text = format!(
            "# tutti version {}\n# Collective test starting: {}\n\
             # nThread 1 nGpus {rank_count} minBytes {min_bytes} maxBytes {max_bytes} step: {step}({kind}) \
             warmup iters: {warmup_iterations} iters: {iterations} agg iters: 1 validation: {checks} graph: {graph_launches} \
             unalign: {unalign}\n#\n# Using devices\n",
            env!("CARGO_PKG_VERSION"),
            self.sweep.program,
        );
        let seats = match self.sweep.place.gpus() {
            Some(gpus) => seats_on_gpus(gpus)?,
            None => seats_on_cores(cores),
        };
        let (host, pid) = (machine::host_name(), std::process::id());
        for (rank, (device, device_hex, device_info)) in seats.into_iter().enumerate() {
            let hostname = host.clone();
            text += &format!(
                "#  Rank {rank:2} Group  0 Pid {pid:6} on {host:>10} device {device:2} [{device_hex}] {}\n",
                shown(&device_info)
            );
            let device = report::Device { rank, group: 0, pid, hostname, device, device_hex, device_info };
            self.report.config.devices.push(device);
        }
        text += &table::header(per_iteration_skip.is_some(), self.timestamps);
        self.print(&text)
    }

    /// All rows of one type.
    fn rows<T: Number>(
        &mut self,
        args: &PerfArgs,
        communicators: &[Communicator],
        cores: &[Option<usize>],
    ) -> Result<(), Failure> {
        let sweep = self.sweep;
        let offers = |reduction: &&Option<Reduction>| reduction.is_none_or(|reduction| T::DTYPE.offers(reduction));
        for &reduction in sweep.reductions.iter().filter(offers) {
            let inputs = Inputs::<T>::new(reduction, sweep.rank_count);
            for &collective in &sweep.collectives {
                let mut cycle = 0;
                while args.cycles == 0 || cycle < args.cycles {
                    cycle += 1;
                    for case in sweep.cases(collective, reduction, size_of::<T>()) {
                        self.row(&case, &inputs, communicators, cores)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn row<T: Number>(
        &mut self,
        case: &Case,
        inputs: &Inputs<T>,
        communicators: &[Communicator],
        cores: &[Option<usize>],
    ) -> Result<(), Failure> {
        let size = case.elements() as u64 * size_of::<T>() as u64;
        let dtype = if case.collective == Collective::Barrier { "none" } else { T::DTYPE.nccl_name() };
        let reduction = case.reduction.map_or("none", Reduction::name);
        let root = case.collective.root().map_or(-1, |root| i64::from(root.0));
        self.print(&table::row_start(size, case.count as u64, dtype, reduction, root))?;
        let mut measure = |in_place| -> Result<Measured, Failure> {
            match measure(communicators, cores, case, inputs, &self.sweep.settings, in_place) {
                Ok(measured) => {
                    self.print(&table::row_half(&measured.half))?;
                    self.bus_gb_s.push(measured.half.bus_gb_s);
                    Ok(measured)
                }
                Err(failure) => {
                    self.print("\n")?;
                    Err(failure)
                }
            }
        };
        let (out_of_place, in_place) = (measure(false)?, measure(true)?);
        let stamp = if self.timestamps { format!("{:>21}\n", now()) } else { "\n".to_owned() };
        self.print(&stamp)?;
        for measured in [&out_of_place, &in_place] {
            self.report.overwritten += measured.overwritten;
            self.report.wrong += measured.half.wrong.unwrap_or(0);
        }
        self.report.results.push(report::Row {
            size,
            count: case.count as u64,
            dtype,
            redop: reduction,
            root,
            out_of_place: (&out_of_place.half).into(),
            in_place: (&in_place.half).into(),
            out_of_place_per_iter: report::PerIteration::of(&out_of_place, &self.sweep.settings),
            in_place_per_iter: report::PerIteration::of(&in_place, &self.sweep.settings),
            actual_iterations: self.sweep.settings.iterations,
        });
        Ok(())
    }

    fn memory(&mut self, communicators: &[Communicator]) -> Result<(), Failure> {
        for communicator in communicators {
            let report = communicator.memory().to_string();
            let report: Vec<&str> = report.lines().map(str::trim).collect();
            self.print(&format!("# Memory of rank {:<6} : {}\n", communicator.rank(), report.join("; ")))?;
        }
        Ok(())
    }

    fn foot(&mut self) -> Result<(), Failure> {
        let average_gb_s = self.bus_gb_s.iter().sum::<f64>() / self.bus_gb_s.len().max(1) as f64;
        let (wrong, overwritten) = (self.report.wrong, self.report.overwritten);
        let minimum_gb_s = self.sweep.minimum_gb_s;
        self.report.finish(average_gb_s, minimum_gb_s);
        self.print(&table::footer(&self.sweep.program, wrong + overwritten, average_gb_s, minimum_gb_s))?;
        let mut failures = Vec::new();
        if wrong > 0 {
            failures.push(format!("{wrong} elements are wrong"));
        }
        if overwritten > 0 {
            failures.push(format!("{overwritten} elements outside of the buffers were overwritten"));
        }
        if let Some(minimum) = minimum_gb_s
            && !table::bandwidth_is_good(average_gb_s, minimum)
        {
            failures.push(format!(
                "the average bus bandwidth is {} GB/s, below 0.9 times NCCL_TESTS_MIN_BW={minimum}",
                table::format_general(average_gb_s)
            ));
        }
        if failures.is_empty() { Ok(()) } else { Err(Failure::Failed(failures.join("; "))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: PerfArgs,
    }

    fn sweep(line: &str) -> Result<Sweep, String> {
        let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?;
        match Place::open(&cli.args).and_then(|place| Sweep::new(&cli.args, place)) {
            Ok(sweep) => Ok(sweep),
            Err(Failure::Usage(reason)) => Err(reason),
            Err(other) => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn sizes_grow_by_a_factor_or_by_bytes() {
        let sizes = |line: &str| sweep(line).unwrap().sizes().collect::<Vec<_>>();
        assert_eq!(sizes("perf -b 8 -e 64 -f 2"), [8, 16, 32, 64]);
        assert_eq!(sizes("perf -b 8 -e 100"), [8, 32]);
        assert_eq!(sizes("perf -b 0 -e 12 -i 4"), [0, 4, 8, 12]);
        assert_eq!(sizes("perf -b 0 -e 0"), [0]);
        assert_eq!(sizes("perf -b 64M"), [64 << 20]);
        assert_eq!(sizes("perf -b 5 -e 5 -f 18446744073709551615"), [5]);
        assert_eq!(sizes("perf").len(), 12);
        assert_eq!(sizes("perf barrier -b 8 -e 64"), [0]);
    }

    #[test]
    fn each_size_that_comes_of_rounding_is_there_once_and_zero_where_it_was_asked_for() {
        let counts = |line: &str, collective, element_bytes| {
            sweep(line).unwrap().cases(collective, None, element_bytes).map(|case| case.count).collect::<Vec<_>>()
        };
        assert_eq!(counts("perf -b 12 -e 17 -i 1", Collective::AllReduce, 4), [3, 4]);
        assert_eq!(counts("perf -b 0 -e 9 -i 1", Collective::AllReduce, 4), [0, 1, 2]);
        assert_eq!(counts("perf -b 1 -e 16 -f 2", Collective::AllReduce, 4), [1, 2, 4]);
        assert_eq!(counts("perf -b 1 -e 16 -f 2", Collective::AllReduce, 2), [1, 2, 4, 8]);
        assert_eq!(counts("perf all_gather -g 3 -b 8 -e 36 -i 4", Collective::AllGather, 4), [1, 2, 3]);
        assert_eq!(counts("perf barrier", Collective::Barrier, 4), [0]);
    }

    #[test]
    fn a_bandwidth_that_is_no_number_is_refused() {
        let bandwidth = |text: &str| minimum_bandwidth(Some(text.into()));
        assert!(matches!(minimum_bandwidth(None), Ok(None)) && matches!(bandwidth(""), Ok(None)));
        assert!(matches!(bandwidth(" 1.5 "), Ok(Some(1.5))));
        for text in ["abc", "-1", "nan", "inf", "1,5", "1GB"] {
            assert!(matches!(bandwidth(text), Err(Failure::Usage(reason)) if reason.contains("NCCL_TESTS_MIN_BW")));
        }
    }

    #[test]
    fn command_lines_that_ask_for_nonsense_are_refused_with_a_reason() {
        for (line, reason) in [
            ("perf -b 1E", "K, M, G or T"),
            ("perf -b 100000000T", "too large"),
            ("perf -b 16 -e 8", "larger than -e"),
            ("perf -i 0", "at least one byte"),
            ("perf -f 1", "2 or more"),
            ("perf -f 0", "2 or more"),
            ("perf -f 2 -i 8", "cannot be used with"),
            ("perf -b 0", "no factor"),
            ("perf -g 0", "1 to 1024 ranks"),
            ("perf -g 100000", "1 to 1024 ranks"),
            ("perf -t 1000 -g 1000", "-t 1000 -g 1000: expected 1 to 1024 ranks, got 1000000"),
            ("perf --device tpu", "cpu, cuda"),
            ("perf --ranks-per-gpu 2", "--ranks-per-gpu goes with --device cuda"),
            ("perf --ranks-per-gpu 0", "from 1 to 1024"),
            ("perf -G 1", "-G goes with --device cuda"),
            ("perf -G 1 -w 0 --device cuda", "warm-up iteration"),
            ("perf -G 1 -I 1 --device cuda", "timed as a whole"),
            ("perf -n 0", "from 1 to 1000000000"),
            ("perf -w 9223372036854775808", "from 0 to 1000000000"),
            ("perf -c 9223372036854775808", "from 0 to 1000000000"),
            ("perf -u 4097", "from 0 to 4096"),
            ("perf -a 4", "from 0 to 3"),
            ("perf -I 2", "0 or 1"),
            ("perf -r 5 -g 2", "-r 5: there are 2 ranks"),
            ("perf -r 1 -g 1", "there is 1 rank,"),
            ("perf all_gather -g 4 -b 4 -e 8", "no size holds one f32 element for each of 4 ranks"),
            ("perf -b 2 -e 3 -d all", "no size holds one f32 element"),
            ("perf broadcast -g 4 -r 4", "counted from 0"),
            ("perf -d int4", "half (f16)"),
            ("perf -d float -o bxor", "-o bxor is offered by i8, u8"),
            ("perf -o median", "sum, prod"),
            ("perf --algorithm chain", "all_reduce is offered by ring"),
            ("perf barrier --algorithm ring", "barrier is offered by dissemination"),
            ("perf all_to_all", "all_reduce, reduce_scatter"),
            ("perf -K 1", "-I 1"),
            ("perf -I 1 -n 1000000000", "at most 1000000 iterations"),
            ("perf -I 1 -n 5 -K 5", "fewer than the 5"),
        ] {
            let error = sweep(line).err().unwrap_or_else(|| panic!("{line} was taken"));
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn all_means_every_type_reduction_and_root() {
        let all = sweep("perf reduce -g 3 -d all -o all -r all").unwrap();
        assert_eq!((all.dtypes.len(), all.reductions.len(), all.collectives.len()), (14, 9, 3));
        let minus_one = sweep("perf broadcast -g 3 -r=-1 -o all").unwrap();
        assert_eq!((minus_one.reductions.len(), minus_one.collectives.len()), (1, 3));
    }
}
