//! `tutti reduce`: all-reduce for files. Each input file is the data of one rank.
//!
//! Tensor by tensor, in pieces of a few MiB, every rank reads its own file, all of them all-reduce, and each writes its share
//! of the result. Files are read with positioned reads rather than mapped: a file that somebody cuts short meanwhile is then
//! an error and not a SIGBUS, data need not be aligned in the file, and the memory in use does not grow with the files.

use crate::failure::Failure;
use crate::inputs::Number;
use crate::machine;
use crate::names::{check_offered, parse_algorithm, parse_reduction};
use crate::output::{Existing, OutputFile};
use crate::ranks::{Need, check_addresses, cores_for_ranks, options_within_memory, run_ranks};
use crate::shown::{self, shown};
use crate::size::format_size;
use crate::tensors::{Format, Header, Tensor, TensorFile, differences};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::Instant;
use tutti::plan::{Algorithm, Collective, MAX_RANK_COUNT};
use tutti::{Communicator, DType, Reduction};

/// All-reduce for files: each input file is the data of one rank
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Inputs are .safetensors or .npy files, all of one kind, that hold the same tensors: the same names, shapes and types \
(floats of 8 to 64 bits, integers of 8 to 64; a .npy file holds one array and cannot hold bf16 or 8-bit floats). Sums and \
averages of 8-bit and 16-bit floats are made in f32 and rounded once per step; 8-bit floats stay finite. Integers wrap, and \
their average is the wrapped sum divided by the number of files, rounded toward zero.

The output holds the same tensors in the order of the first file, with the first file's metadata. It is written \
without a name (where the file system cannot do that, under a temporary one in the same directory) and gets its own when it is \
complete and on disk: whatever happens, there is either the whole output or none, and a file that was there before stays as \
it is until then. As with cp, an existing output is replaced \
(unless --no-clobber is given), a symbolic link is followed, and an output that is one of the inputs, or a \
symbolic link to nothing, is refused.

Examples:
  tutti reduce run1.safetensors run2.safetensors run3.safetensors --op avg -o average.safetensors
  tutti reduce rank*.npy --op sum -o total.npy

Exit code: 0 if the output is there, 1 if not, 2 for a wrong command line. A summary that cannot be written to standard output \
is a 1 too, and the message says that the output is complete; a reader of it that has gone away is no failure.")]
pub(crate) struct ReduceArgs {
    /// The ranks' files
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<PathBuf>,

    /// Reduction: sum, prod, min, max, avg, scaled_sum (with --scale), and of integers band, bor or bxor
    #[arg(long = "op", value_name = "OP", value_parser = parse_reduction)]
    reduction: Reduction,

    /// What a scaled_sum multiplies every input by
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    scale: Option<f64>,

    /// The file to write
    #[arg(short = 'o', long = "output", value_name = "OUT")]
    output: PathBuf,

    /// Refuse to replace an existing output
    #[arg(short = 'n', long)]
    no_clobber: bool,

    /// Algorithm: ring, tree, one_shot or direct [default: chosen by size and number of ranks]
    #[arg(long, value_name = "ALGORITHM", value_parser = parse_algorithm)]
    algorithm: Option<Algorithm>,

    /// Summarise in JSON
    #[arg(long)]
    json: bool,
}

/// What was done, for `--json`.
#[derive(Serialize)]
struct Summary<'a> {
    output: String,
    inputs: Vec<String>,
    op: &'a str,
    tensors: usize,
    elements: u64,
    /// Of the output's tensors.
    bytes: u64,
    seconds: f64,
}

/// Bytes that all ranks together hold at a time.
const BUFFER_BYTES: usize = 64 << 20;

/// Bytes of one piece: large enough to hide the calls' latency, small enough to stay near the caches.
const PIECE_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=4 << 20;

/// Tensors that one message about differences names.
const DIFFERENCES_SHOWN: usize = 20;

/// Runs the command.
pub(crate) fn run(args: &ReduceArgs) -> Result<(), Failure> {
    let start = Instant::now();
    let rank_count = args.inputs.len();
    if rank_count > MAX_RANK_COUNT {
        return Err(Failure::Usage(format!("expected at most {MAX_RANK_COUNT} input files, got {rank_count}")));
    }
    check_offered(args.algorithm, Collective::AllReduce)?;
    check_names(args)?;
    machine::allow_many_files();
    let files = args.inputs.iter().map(|path| TensorFile::open(path)).collect::<Result<Vec<_>, _>>()?;
    check_same(&files)?;
    check_reduction(args, &files[0].header)?;
    check_output(args, &files)?;

    let header = &files[0].header;
    let bytes: u64 = header.tensors.iter().map(|tensor| tensor.bytes).sum();
    check_memory(args, header)?;
    let mut options = options_within_memory(rank_count, BUFFER_BYTES as u64);
    options.algorithm = args.algorithm;
    let communicators = tutti::local_with(rank_count, options)?;
    let output = OutputFile::create(&args.output, if args.no_clobber { Existing::Keep } else { Existing::Replace })?;
    output.reserve(header.raw.len() as u64 + bytes)?;
    output.file().write_all_at(&header.raw, 0).map_err(|error| output.failed(&error))?;

    // Drawn on standard error, and only where that is a terminal.
    let progress = ProgressBar::new(bytes).with_style(
        ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let work =
        Work { files: &files, output: &output, reduction: args.reduction, scale: args.scale, progress: &progress };
    let reduced = run_ranks(&communicators, &cores_for_ranks(rank_count, true), |communicator| work.run(communicator));
    progress.finish_and_clear();
    reduced?;
    files.iter().try_for_each(TensorFile::check_unchanged)?;
    output.finish()?;

    let summary = Summary {
        output: args.output.display().to_string(),
        inputs: args.inputs.iter().map(|path| path.display().to_string()).collect(),
        op: args.reduction.name(),
        tensors: header.tensors.len(),
        elements: header.tensors.iter().map(|tensor| tensor.bytes / tensor.dtype.bytes() as u64).sum(),
        bytes,
        seconds: start.elapsed().as_secs_f64(),
    };
    print_summary(&summary, args.json)
}

fn print_summary(summary: &Summary<'_>, json: bool) -> Result<(), Failure> {
    let text = if json {
        shown::json(summary)?
    } else {
        let Summary { output, op, inputs, tensors, bytes, seconds, .. } = summary;
        let plural = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        format!(
            "{}: {op} of {}, {} of {} in {seconds:.2} s\n",
            shown(output),
            plural(inputs.len(), "file"),
            plural(*tensors, "tensor"),
            format_size(*bytes)
        )
    };
    io::stdout().write_all(text.as_bytes()).map_err(|error| match Failure::output(error) {
        Failure::Failed(reason) => Failure::Failed(format!("{reason}; {} is complete", shown(&summary.output))),
        other => other,
    })
}

/// All files must be of one kind, by their names.
fn check_names(args: &ReduceArgs) -> Result<(), Failure> {
    let format = Format::of(&args.inputs[0])?;
    for path in args.inputs.iter().chain([&args.output]) {
        if Format::of(path)? != format {
            return Err(Failure::Usage(format!(
                "{} is a {format} file, {} is not: inputs and output must be of one kind",
                shown(&args.inputs[0]),
                shown(path)
            )));
        }
    }
    Ok(())
}

/// All tensors must offer the reduction, and take the scale where there is one.
fn check_reduction(args: &ReduceArgs, header: &Header) -> Result<(), Failure> {
    let reduction = args.reduction;
    match (reduction, args.scale) {
        (Reduction::ScaledSum, None) => return Err(Failure::Usage("--op scaled_sum needs a --scale".to_owned())),
        (Reduction::ScaledSum, Some(scale)) => {
            if let Some(tensor) = header.tensors.iter().find(|tensor| !tensor.dtype.takes(scale)) {
                let (name, dtype) = (shown(&tensor.name), tensor.dtype);
                return Err(Failure::Failed(format!(
                    "tensor `{name}` is {dtype}, which does not take --scale {scale}"
                )));
            }
        }
        (_, Some(_)) => return Err(Failure::Usage(format!("--scale goes with --op scaled_sum, not {reduction}"))),
        (_, None) => {}
    }
    if let Some(tensor) = header.tensors.iter().find(|tensor| !tensor.dtype.offers(reduction)) {
        let offered: Vec<&str> = tensor.dtype.reductions().map(Reduction::name).collect();
        let (name, dtype) = (shown(&tensor.name), tensor.dtype);
        let offered = offered.join(", ");
        return Err(Failure::Failed(format!(
            "tensor `{name}` is {dtype}, which offers {offered}, but not {reduction}"
        )));
    }
    Ok(())
}

/// All files must hold the same tensors; other metadata is worth a warning.
fn check_same(files: &[TensorFile]) -> Result<(), Failure> {
    let (first, others) = (&files[0], &files[1..]);
    let all: Vec<String> = others.iter().flat_map(|other| differences(first, other)).collect();
    if !all.is_empty() {
        let mut text = format!(
            "the files do not hold the same tensors:\n  {}",
            all[..all.len().min(DIFFERENCES_SHOWN)].join("\n  ")
        );
        if all.len() > DIFFERENCES_SHOWN {
            text += &format!("\n  and {} more", all.len() - DIFFERENCES_SHOWN);
        }
        return Err(Failure::Failed(text));
    }
    for other in others {
        let (ours, theirs) = (&first.header.metadata, &other.header.metadata);
        let keys = ours.keys().chain(theirs.keys()).filter(|key| ours.get(*key) != theirs.get(*key));
        let keys: BTreeSet<&String> = keys.collect();
        if !keys.is_empty() {
            let keys: Vec<String> = keys.into_iter().map(|key| shown(key).to_string()).collect();
            crate::warn(&format!(
                "{} and {} differ in the metadata {}; the output keeps those of the first file",
                shown(&first.path),
                shown(&other.path),
                keys.join(", ")
            ));
        }
    }
    Ok(())
}

fn check_output(args: &ReduceArgs, files: &[TensorFile]) -> Result<(), Failure> {
    let Ok(existing) = std::fs::metadata(&args.output) else { return Ok(()) };
    let output = shown(&args.output);
    for file in files {
        let input = file.file.metadata().map_err(|error| Failure::file("read", &file.path, &error))?;
        if (input.dev(), input.ino()) == (existing.dev(), existing.ino()) {
            return Err(Failure::Failed(format!("the output {output} is one of the inputs, {}", shown(&file.path))));
        }
    }
    Ok(())
}

/// Refuses more files, or an algorithm with more connections, than the memory has room for.
fn check_memory(args: &ReduceArgs, header: &Header) -> Result<(), Failure> {
    let rank_count = args.inputs.len();
    let piece_bytes = piece_bytes(rank_count) as u64;
    let mut need = Need::of_buffers(piece_bytes.saturating_mul(rank_count as u64));
    check_addresses(rank_count, need.buffer_bytes, machine::address_bytes_left())?;
    for &dtype in DType::ALL {
        let element_bytes = dtype.bytes() as u64;
        let tensors = header.tensors.iter().filter(|tensor| tensor.dtype == dtype && tensor.bytes > 0);
        let counts: BTreeSet<u64> = tensors.map(|tensor| tensor.bytes.min(piece_bytes) / element_bytes).collect();
        need.add_calls(Collective::AllReduce, args.algorithm, rank_count, counts.into_iter(), dtype.bytes())?;
    }
    need.check(rank_count, machine::available_memory_bytes(), "reduce fewer files at a time, or by another --algorithm")
}

/// Bytes of one piece. They depend on the number of files alone, and so do the bits of the result.
fn piece_bytes(rank_count: usize) -> usize {
    (BUFFER_BYTES / rank_count).clamp(*PIECE_BYTES.start(), *PIECE_BYTES.end())
}

/// What every rank does.
struct Work<'a> {
    files: &'a [TensorFile],
    output: &'a OutputFile,
    reduction: Reduction,
    scale: Option<f64>,
    progress: &'a ProgressBar,
}

impl Work<'_> {
    fn run(&self, communicator: &Communicator) -> Result<(), Failure> {
        let file = &self.files[communicator.rank()];
        let piece_bytes = piece_bytes(self.files.len());
        let largest = file.header.tensors.iter().map(|tensor| tensor.bytes).max().unwrap_or(0);
        // Whole u64, so that it is aligned for every type.
        let mut buffer = Vec::new();
        let length = piece_bytes.min(usize::try_from(largest).unwrap_or(usize::MAX)).div_ceil(size_of::<u64>());
        buffer.try_reserve_exact(length).map_err(|error| Failure::Failed(format!("no memory: {error}")))?;
        buffer.resize(length, 0_u64);
        let own: HashMap<&str, &Tensor> =
            file.header.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        for target in &self.files[0].header.tensors {
            // The same in every file, but elsewhere in it.
            let source = own.get(target.name.as_str()).ok_or_else(|| {
                Failure::Failed(format!("{} does not have the tensor `{}`", shown(&file.path), shown(&target.name)))
            })?;
            tutti::with_element!(target.dtype, T => {
                self.tensor::<T>(communicator, source, target, bytemuck::cast_slice_mut(&mut buffer))?;
            });
        }
        Ok(())
    }

    fn tensor<T: Number>(
        &self,
        communicator: &Communicator,
        source: &Tensor,
        target: &Tensor,
        buffer: &mut [T],
    ) -> Result<(), Failure> {
        let (rank, rank_count) = (communicator.rank(), communicator.rank_count());
        let element_bytes = size_of::<T>() as u64;
        let count = target.bytes / element_bytes;
        let mut done = 0;
        while done < count {
            let length = usize::try_from(count - done).unwrap_or(usize::MAX).min(buffer.len());
            let piece = &mut buffer[..length];
            self.files[rank].read(bytemuck::cast_slice_mut(piece), source.offset + done * element_bytes)?;
            let mut call = communicator.call();
            if let Some(scale) = self.scale {
                call = call.scale(scale);
            }
            call.all_reduce_in_place(piece, self.reduction)?;
            // Every rank has the same bits; each writes its share of them.
            let share = length * rank / rank_count..length * (rank + 1) / rank_count;
            let offset = target.offset + (done + share.start as u64) * element_bytes;
            self.output
                .file()
                .write_all_at(bytemuck::cast_slice(&piece[share]), offset)
                .map_err(|error| self.output.failed(&error))?;
            done += length as u64;
            if rank == 0 {
                self.progress.inc(length as u64 * element_bytes);
            }
        }
        Ok(())
    }
}
