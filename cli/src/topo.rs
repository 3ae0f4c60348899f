//! `tutti topo`: the devices that can run ranks, and how each two of them would reach each other.
//!
//! Nothing here guesses: paths are those that the library has tried, and where it cannot try them that is said.

use crate::cluster::{self, ClusterArgs};
use crate::failure::Failure;
use crate::machine;
use crate::shown::{self, shown};
use crate::size::format_size;
use serde::Serialize;
use std::io::{self, Write};
use tutti::Error;
use tutti::cuda::{self, Device, Driver, Path};

/// Show the devices that can run ranks, and the paths between them
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
A path is what ranks would use: where the driver grants peer access, data is sent both ways at once and compared before the path \
is trusted. One that fails is dropped for memory of the host, with a warning that says what was seen.

  same  ranks that share a GPU
  peer  each GPU reaches the other's memory, over NVLink or PCIe
  host  by memory of the host that both reach

A machine without a CUDA driver has only its processor to show.

With --topo a machine that need not be here is shown as the simulator knows it, with --links what is known of each class of \
links, and where those figures come from.

Exit code: 0 if all is well, 1 if the driver fails or two GPUs do not reach each other, 2 for a wrong command line.")]
pub(crate) struct TopoArgs {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// List the classes of links: what textbooks say, what of it is usable, and what each collective sends
    #[arg(long, conflicts_with_all = ["topo", "presets"])]
    links: bool,

    /// List the machines that --topo knows
    #[arg(long, conflicts_with = "topo")]
    presets: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Topology {
    cpu: Cpu,
    /// Nothing where there is no driver.
    cuda: Option<Cuda>,
    errors: Vec<String>,
}

#[derive(Serialize)]
struct Cpu {
    processor: String,
    cores: usize,
    available_memory_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Cuda {
    /// The CUDA version that the driver supports.
    version: String,
    devices: Vec<Gpu>,
    /// By the devices' places; nothing where they could not be tried.
    paths: Option<Vec<Vec<&'static str>>>,
    /// Whether a switch reduces among all devices; nothing where it could not be tried.
    switch: Option<bool>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Gpu {
    device: usize,
    name: String,
    compute_capability: String,
    memory_bytes: u64,
    pci_bus_id: String,
    multiprocessors: u32,
}

/// Runs the command.
pub(crate) fn run(args: &TopoArgs) -> Result<(), Failure> {
    let known = if args.links {
        Some(cluster::links(args.json)?)
    } else if args.presets {
        Some(cluster::presets(args.json)?)
    } else {
        args.cluster.cluster()?.map(|cluster| cluster::shown(&cluster, args.json)).transpose()?
    };
    if let Some(text) = known {
        return io::stdout().lock().write_all(text.as_bytes()).map_err(Failure::output);
    }
    let (topology, failure) = look();
    let text = if args.json { shown::json(&topology)? } else { text(&topology) };
    io::stdout().lock().write_all(text.as_bytes()).map_err(Failure::output)?;
    failure.map_or(Ok(()), |failure| Err(failure.into()))
}

/// What there is, as far as it can be told; and what is wrong with it.
fn look() -> (Topology, Option<Error>) {
    let mut topology = Topology {
        cpu: Cpu {
            processor: machine::processor_name(),
            cores: machine::allowed_cores().len(),
            available_memory_bytes: machine::available_memory_bytes(),
        },
        cuda: None,
        errors: Vec::new(),
    };
    let failure = look_at_devices(&mut topology.cuda).err();
    topology.errors.extend(failure.as_ref().map(Error::to_string));
    // A machine without a driver is as it should be.
    (topology, failure.filter(|failure| !matches!(failure, Error::NoDriver { .. })))
}

fn look_at_devices(cuda: &mut Option<Cuda>) -> Result<(), Error> {
    let driver = Driver::open()?;
    let version = driver.version()?.to_string();
    let devices =
        (0..driver.device_count()?).map(|device| driver.device(device)).collect::<Result<Vec<Device>, _>>()?;
    let gpus = devices.iter().map(look_at).collect::<Result<Vec<Gpu>, _>>()?;
    let seen = cuda.insert(Cuda { version, devices: gpus, paths: None, switch: None, warnings: Vec::new() });
    let paths = cuda::paths(&devices)?;
    let all = 0..paths.devices().len();
    let row = |one| all.clone().map(|other| paths.path(one, other).name()).collect();
    seen.paths = Some(all.clone().map(row).collect());
    seen.switch = Some(paths.has_switch());
    seen.warnings = paths.warnings().to_vec();
    Ok(())
}

fn look_at(device: &Device) -> Result<Gpu, Error> {
    Ok(Gpu {
        device: device.ordinal(),
        name: device.name()?,
        compute_capability: device.compute_capability()?.to_string(),
        memory_bytes: device.memory_bytes()?,
        pci_bus_id: device.pci_bus_id()?,
        multiprocessors: device.multiprocessors()?,
    })
}

fn text(topology: &Topology) -> String {
    let Cpu { processor, cores, available_memory_bytes } = &topology.cpu;
    let memory = available_memory_bytes.map_or(String::new(), |bytes| format!(", {} available", format_size(bytes)));
    let cores_are = if *cores == 1 { "core" } else { "cores" };
    let mut text = format!("CPU   {}: {cores} {cores_are}{memory}; its ranks are threads\n", shown(processor));
    match &topology.cuda {
        None => text += &format!("CUDA  {}\n", topology.errors.join("; ")),
        Some(cuda) => text += &text_of(cuda),
    }
    shown::harmless(&text)
}

fn text_of(cuda: &Cuda) -> String {
    let mut text = format!("CUDA  {}, {} GPU{}\n", cuda.version, cuda.devices.len(), plural(cuda.devices.len()));
    if cuda.devices.is_empty() {
        return text;
    }
    let titles = ["", "name", "compute capability", "memory", "PCI bus", "multiprocessors"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    rows.extend(cuda.devices.iter().map(|gpu| {
        vec![
            gpu_name(gpu),
            shown(&gpu.name).to_string(),
            gpu.compute_capability.clone(),
            format_size(gpu.memory_bytes),
            shown(&gpu.pci_bus_id).to_string(),
            gpu.multiprocessors.to_string(),
        ]
    }));
    text += &format!("\n{}", aligned(&rows));
    if let Some(paths) = &cuda.paths {
        let names: Vec<String> = cuda.devices.iter().map(gpu_name).collect();
        let row = |name: &str, cells: Vec<String>| [vec![name.to_owned()], cells].concat();
        let mut rows = vec![row("", names.clone())];
        rows.extend(
            names.iter().zip(paths).map(|(name, paths)| row(name, paths.iter().map(|&path| path.to_owned()).collect())),
        );
        text += &format!("\n{}\n", aligned(&rows));
        for path in [Path::Same, Path::Peer, Path::Host] {
            if paths.iter().flatten().any(|name| *name == path.name()) {
                text += &format!("  {path:<4} = {}\n", meaning(path));
            }
        }
    }
    if cuda.switch == Some(true) {
        text += "  a switch reduces among all GPUs: algorithm nvls\n";
    }
    for warning in &cuda.warnings {
        text += &format!("warning: {warning}\n");
    }
    text
}

fn gpu_name(gpu: &Gpu) -> String {
    format!("GPU{}", gpu.device)
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn meaning(path: Path) -> &'static str {
    match path {
        Path::Same => "ranks that share a GPU",
        Path::Peer => "each GPU reaches the other's memory, over NVLink or PCIe",
        Path::Host => "by memory of the host that both reach",
        _ => "in another way",
    }
}

/// Lines whose columns stand under each other; each has as many.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_is_a_table_of_devices_a_matrix_of_paths_and_the_warnings_below() {
        let gpu = |device| Gpu {
            device,
            name: "Some GPU\u{1b}".to_owned(),
            compute_capability: "9.0".to_owned(),
            memory_bytes: 80 << 30,
            pci_bus_id: format!("0000:{device}b:00.0"),
            multiprocessors: 132,
        };
        let topology = Topology {
            cpu: Cpu { processor: "Some processor".to_owned(), cores: 8, available_memory_bytes: Some(3 << 30) },
            cuda: Some(Cuda {
                version: "12.9".to_owned(),
                devices: vec![gpu(0), gpu(1)],
                paths: Some(vec![vec!["same", "host"], vec!["host", "same"]]),
                switch: Some(true),
                warnings: vec!["devices 0 and 1: peer access does not work".to_owned()],
            }),
            errors: Vec::new(),
        };
        assert_eq!(
            text(&topology),
            "\
CPU   Some processor: 8 cores, 3 GiB available; its ranks are threads
CUDA  12.9, 2 GPUs

      name            compute capability  memory  PCI bus       multiprocessors
GPU0  Some GPU\\u{1b}  9.0                 80 GiB  0000:0b:00.0  132
GPU1  Some GPU\\u{1b}  9.0                 80 GiB  0000:1b:00.0  132

      GPU0  GPU1
GPU0  same  host
GPU1  host  same

  same = ranks that share a GPU
  host = by memory of the host that both reach
  a switch reduces among all GPUs: algorithm nvls
warning: devices 0 and 1: peer access does not work
"
        );
    }

    #[test]
    fn without_a_driver_the_processor_stands_alone() {
        let topology = Topology {
            cpu: Cpu { processor: "Some processor".to_owned(), cores: 1, available_memory_bytes: None },
            cuda: None,
            errors: vec!["no CUDA driver: libcuda.so.1".to_owned()],
        };
        assert_eq!(
            text(&topology),
            "CPU   Some processor: 1 core; its ranks are threads\nCUDA  no CUDA driver: libcuda.so.1\n"
        );
    }
}
