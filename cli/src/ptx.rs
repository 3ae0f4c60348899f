//! `tutti ptx`: writes out the PTX images that this build carries, or names their entry points.

use crate::failure::Failure;
use crate::output::{Existing, OutputFile};
use crate::shown::{self, shown};
use serde::Serialize;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tutti::ptx::{Entry, Image, PARAMETERS, Slots, images};

/// Write out the embedded PTX images, or name their entry points
#[derive(Debug, clap::Args)]
#[command(
    group(clap::ArgGroup::new("what").required(true).args(["out", "list"])),
    after_long_help = "\
There is one image for each element type and each architecture that makes a difference to it, and one with slots of low latency; \
a driver compiles it when a module \
is loaded. An entry point serves every element type named after it: reductions that see only bits are the same code for all, \
and so are collectives that only move them. A build on a machine \
without a Rust compiler for PTX carries none, and then this command says how to get them.

Examples:
  tutti ptx --list
  tutti ptx --out ptx/

Exit code: 0 if all is well, 1 if there is no PTX or it cannot be written, 2 for a wrong command line."
)]
pub(crate) struct PtxArgs {
    /// Write every image into this directory, which is made if it is not there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Name every image, its entry points and their parameters
    #[arg(long)]
    list: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ImageSummary {
    file: String,
    dtype: &'static str,
    /// "simple" or "low_latency".
    slots: &'static str,
    architecture: &'static str,
    /// The least compute capability of a device that runs it.
    compute_capability: String,
    ptx_version: String,
    /// The first CUDA whose driver takes it.
    cuda_version: String,
    driver_version: &'static str,
    bytes: usize,
    entries: Vec<EntrySummary>,
}

#[derive(Serialize)]
struct EntrySummary {
    name: String,
    reduction: &'static str,
    /// The element types that it reduces.
    dtypes: Vec<&'static str>,
    parameters: Vec<ParameterSummary>,
}

#[derive(Serialize)]
struct ParameterSummary {
    name: &'static str,
    rust_type: &'static str,
    ptx_type: &'static str,
}

/// Runs the command.
pub(crate) fn run(args: &PtxArgs) -> Result<(), Failure> {
    let images = images().map_err(|reason| Failure::Failed(reason.to_string()))?;
    if let Some(directory) = &args.out {
        write_images(images, directory)?;
    }
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        let summaries: Vec<ImageSummary> = images.iter().map(summarise).collect();
        out.write_all(shown::json(&summaries)?.as_bytes()).map_err(Failure::output)?;
    } else {
        for image in images {
            print_image(&mut out, image, args.out.as_deref()).map_err(Failure::output)?;
        }
    }
    out.flush().map_err(Failure::output)
}

fn write_images(images: &[Image], directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory).map_err(|error| Failure::file("make the directory", directory, &error))?;
    for image in images {
        let file = OutputFile::create(&directory.join(image.file_name()), Existing::Replace)?;
        file.file().write_all(image.text().as_bytes()).map_err(|error| file.failed(&error))?;
        file.finish()?;
    }
    Ok(())
}

/// The path of an image that was written; or what it is, and its entry points.
fn print_image(out: &mut impl Write, image: &Image, directory: Option<&Path>) -> io::Result<()> {
    if let Some(directory) = directory {
        return writeln!(out, "{}", shown(&directory.join(image.file_name())));
    }
    let architecture = image.architecture();
    writeln!(
        out,
        "{}: {} through {} slots, for compute capability {} and newer, PTX {}, CUDA {} (driver {}) and newer",
        image.file_name(),
        image.dtype(),
        slots_name(image).replace('_', "-"),
        architecture.compute_capability,
        architecture.ptx,
        architecture.cuda,
        architecture.driver
    )?;
    image
        .entries()
        .iter()
        .try_for_each(|entry| writeln!(out, "  {entry}: {} of {}", entry.reduction.name, serves(entry).join(", ")))
}

fn slots_name(image: &Image) -> &'static str {
    match image.slots() {
        Slots::Simple => "simple",
        Slots::LowLatency => "low_latency",
    }
}

/// The names of the element types that an entry point reduces.
fn serves(entry: &Entry) -> Vec<&'static str> {
    entry.serves().map(|dtype| dtype.name).collect()
}

fn summarise(image: &Image) -> ImageSummary {
    let architecture = image.architecture();
    let entry = |entry: &Entry| EntrySummary {
        name: entry.name(),
        reduction: entry.reduction.name,
        dtypes: serves(entry),
        parameters: PARAMETERS
            .iter()
            .map(|parameter| ParameterSummary {
                name: parameter.name,
                rust_type: parameter.rust,
                ptx_type: parameter.ptx,
            })
            .collect(),
    };
    ImageSummary {
        file: image.file_name(),
        dtype: image.dtype(),
        slots: slots_name(image),
        architecture: architecture.name,
        compute_capability: architecture.compute_capability.to_string(),
        ptx_version: architecture.ptx.to_string(),
        cuda_version: architecture.cuda.to_string(),
        driver_version: architecture.driver,
        bytes: image.text().len(),
        entries: image.entries().iter().map(entry).collect(),
    }
}
