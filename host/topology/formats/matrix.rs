//! What `nvidia-smi topo -m` prints: a matrix of how near each two devices are.
//!
//! ```text
//!         GPU0  GPU1  mlx5_0  CPU Affinity  NUMA Affinity
//! GPU0     X    NV2   NODE    0-31          0
//! GPU1    NV2    X    NODE    0-31          0
//! mlx5_0  NODE  NODE   X
//! ```
//!
//! It names no speeds and no switches, and where NVLink joins two GPUs it does not say how PCI Express does. So what is
//! near by PIX is put below one PCIe switch, what is near by PXB below a further one, what is near by PHB or NODE at
//! one CPU; a GPU of which only NVLinks are known, at the first CPU of which it is not said to be far. Generations
//! follow the number of NVLinks. All of that is said in warnings.

use super::super::cluster::{Builder, NodeId, NodeKind};
use super::super::link::{CpuModel, LinkClass};
use super::{DEVICES_MAX, FormatError, Reading, at, check_length, cut};

/// NVLinks of a GPU: none has had more.
const NVLINKS_MAX: u32 = 18;

/// A cell, the nearest first; the order is what devices are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cell {
    Itself,
    /// So many NVLinks: how PCI Express joins the two is not said.
    NvLink(u32),
    Pix,
    Pxb,
    Phb,
    Sys,
}

impl Cell {
    fn parse(text: &str) -> Option<Cell> {
        Some(match text {
            "X" => Cell::Itself,
            "PIX" => Cell::Pix,
            "PXB" => Cell::Pxb,
            "PHB" | "NODE" => Cell::Phb,
            "SYS" => Cell::Sys,
            _ => {
                let count = text.strip_prefix("NV")?.parse().ok()?;
                if !(1..=1024).contains(&count) {
                    return None;
                }
                Cell::NvLink(count)
            }
        })
    }
}

/// Reads a machine; `name` is what the cluster is called.
///
/// # Errors
/// [`FormatError`], with the line.
pub fn read(name: &str, text: &str) -> Result<Reading, FormatError> {
    check_length(text)?;
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let Some((first, heading)) = lines.next() else {
        return at(1, "expected the headings of a matrix, found nothing");
    };
    let devices: Vec<&str> = heading.split_whitespace().take_while(|name| *name != "CPU").collect();
    if !devices.iter().any(|name| is_gpu(name)) {
        return at(first, format_args!("expected headings such as GPU0, found {:?}", cut(heading.trim())));
    }
    if devices.len() > DEVICES_MAX {
        return at(first, format_args!("expected at most {DEVICES_MAX} devices, found {}", devices.len()));
    }
    let mut cells: Vec<Vec<Cell>> = Vec::new();
    let mut numa_nodes: Vec<Option<String>> = Vec::new();
    for (line, row) in lines.by_ref().take(devices.len()) {
        let mut words = row.split_whitespace();
        let expected = devices[cells.len()];
        let found = words.next().unwrap_or("");
        if found != expected {
            return at(line, format_args!("expected the row of {expected:?}, found {:?}", cut(found)));
        }
        let mut row = Vec::with_capacity(devices.len());
        for column in &devices {
            let word = words.next().unwrap_or("");
            let Some(cell) = Cell::parse(word) else {
                let found = cut(word);
                return at(
                    line,
                    format_args!("expected X, NV#, PIX, PXB, PHB, NODE or SYS below {column}, found {found:?}"),
                );
            };
            row.push(cell);
        }
        cells.push(row);
        numa_nodes.push(words.nth(1).filter(|numa| numa.parse::<u32>().is_ok()).map(str::to_owned));
    }
    if cells.len() < devices.len() {
        let line = text.lines().count() as u32 + 1;
        return at(line, format_args!("expected {} rows, found {}", devices.len(), cells.len()));
    }
    for one in 0..devices.len() {
        for other in 0..=one {
            if (cells[one][other] == Cell::Itself) != (one == other) || cells[one][other] != cells[other][one] {
                let line = first + 1 + one as u32;
                let names = [devices[one], devices[other]].map(cut).join(" and ");
                return at(
                    line,
                    format_args!("expected X on the diagonal and as much both ways, found otherwise: {names}"),
                );
            }
        }
    }
    build(name, &devices, &cells, &numa_nodes)
}

fn is_gpu(name: &str) -> bool {
    name.strip_prefix("GPU").is_some_and(|number| number.parse::<u32>().is_ok())
}

fn build(
    name: &str,
    devices: &[&str],
    cells: &[Vec<Cell>],
    numa_nodes: &[Option<String>],
) -> Result<Reading, FormatError> {
    let mut warnings = Vec::new();
    let gpus: Vec<usize> = (0..devices.len()).filter(|device| is_gpu(devices[*device])).collect();
    let nvlinks = |one: usize, other: usize| if let Cell::NvLink(count) = cells[one][other] { count } else { 0 };
    let degree = |gpu: usize| gpus.iter().map(|&other| nvlinks(gpu, other)).fold(0, u32::saturating_add);
    let widest = gpus.iter().flat_map(|&one| gpus.iter().map(move |&other| nvlinks(one, other))).max().unwrap_or(0);
    // Direct links add up; those to a switch reach all others.
    let switched = gpus.iter().any(|&gpu| degree(gpu) > NVLINKS_MAX);
    let most = if switched { widest } else { gpus.iter().map(|&gpu| degree(gpu)).max().unwrap_or(0) };
    let (nvlink, pcie, compute_capability, gpu_name) = match most {
        0..=6 => (2, 3, 70, "V100"),
        7..=12 => (3, 4, 80, "A100"),
        _ => (4, 5, 90, "H100"),
    };
    warnings.push(format!(
        "line 1: a matrix has no speeds; assumed {gpu_name} with NVLink {nvlink} and PCI Express {pcie}.0 x16"
    ));
    if switched {
        warnings.push(format!("line 1: more than {NVLINKS_MAX} NVLinks of a GPU; assumed {widest} to an NVSwitch"));
    }
    warnings.push("line 1: a matrix names no CPUs; assumed Intel Skylake".to_owned());

    let socket = sockets(devices.len(), cells, numa_nodes);
    if gpus.len() > 1 && widest > 0 {
        warnings
            .push("line 1: a matrix hides PCI Express where NVLink is; assumed as near as NUMA nodes say".to_owned());
    }
    let [below_pxb, below_pix] = [Cell::Pxb, Cell::Pix]
        .map(|farthest| group(devices.len(), |one, other| (Cell::Pix..=farthest).contains(&cells[one][other])));

    let mut builder = Builder::default();
    builder.host();
    let nodes: Vec<NodeId> = devices
        .iter()
        .map(|device| {
            let kind = if is_gpu(device) { NodeKind::Gpu { compute_capability } } else { NodeKind::Nic };
            builder.node(device.to_ascii_lowercase(), kind)
        })
        .collect();
    let socket_count = socket.iter().max().map_or(1, |last| last + 1);
    let cpus: Vec<NodeId> = (0..socket_count)
        .map(|socket| builder.node(format!("cpu{socket}"), NodeKind::Cpu(CpuModel::IntelSkylake)))
        .collect();
    for (place, &one) in cpus.iter().enumerate() {
        for &other in &cpus[place + 1..] {
            builder.link(one, other, LinkClass::CpuToCpu(CpuModel::IntelSkylake), 1);
        }
    }
    let pcie = LinkClass::Pcie(pcie);
    // A switch for each group of several: first those that hold others.
    let size = |groups: &[usize], group: usize| groups.iter().filter(|other| **other == group).count();
    let mut upper = vec![None; devices.len()];
    let mut lower = vec![None; devices.len()];
    for (device, &node) in nodes.iter().enumerate() {
        let (pxb, pix) = (below_pxb[device], below_pix[device]);
        let mut above = cpus[socket[device]];
        if size(&below_pxb, pxb) > size(&below_pix, pix) {
            above = *upper[pxb].get_or_insert_with(|| switch(&mut builder, above, pcie));
        }
        if size(&below_pix, pix) > 1 || size(&below_pxb, pxb) > 1 {
            above = *lower[pix].get_or_insert_with(|| switch(&mut builder, above, pcie));
        }
        builder.link(above, node, pcie, 16);
    }
    if switched {
        let crossbar = builder.node("nvswitch", NodeKind::NvSwitch);
        for &gpu in gpus.iter().filter(|gpu| degree(**gpu) > 0) {
            builder.link(nodes[gpu], crossbar, LinkClass::NvLink(nvlink), widest);
        }
    } else {
        for (place, &one) in gpus.iter().enumerate() {
            for &other in gpus[place + 1..].iter().filter(|other| nvlinks(one, **other) > 0) {
                builder.link(nodes[one], nodes[other], LinkClass::NvLink(nvlink), nvlinks(one, other));
            }
        }
    }
    Ok(Reading { cluster: builder.finish(name)?, warnings })
}

fn switch(builder: &mut Builder, above: NodeId, pcie: LinkClass) -> NodeId {
    let node = builder.node(format!("pcie{}", builder.nodes.len()), NodeKind::PcieSwitch);
    builder.link(above, node, pcie, 16);
    node
}

/// For each device the least of those that it is joined with, directly or through others.
fn group(count: usize, joined: impl Fn(usize, usize) -> bool) -> Vec<usize> {
    let mut groups: Vec<usize> = (0..count).collect();
    for one in 0..count {
        for other in 0..one {
            if joined(one, other) && groups[one] != groups[other] {
                let (keep, lose) = (groups[one].min(groups[other]), groups[one].max(groups[other]));
                groups.iter_mut().filter(|group| **group == lose).for_each(|group| *group = keep);
            }
        }
    }
    groups
}

/// The socket of each device, counted from 0.
fn sockets(count: usize, cells: &[Vec<Cell>], numa_nodes: &[Option<String>]) -> Vec<usize> {
    let near = |one: usize, other: usize| {
        let same_numa_node = numa_nodes[one].is_some() && numa_nodes[one] == numa_nodes[other];
        (Cell::Pix..=Cell::Phb).contains(&cells[one][other]) || same_numa_node && cells[one][other] != Cell::Sys
    };
    let groups = group(count, near);
    let mut sockets: Vec<Vec<usize>> = Vec::new();
    for first in (0..count).filter(|device| groups[*device] == *device) {
        let members: Vec<usize> = (first..count).filter(|device| groups[*device] == first).collect();
        // Nobody says that they are far from each other.
        let fits = |socket: &&mut Vec<usize>| {
            socket.iter().all(|&one| members.iter().all(|&other| cells[one][other] != Cell::Sys))
        };
        match sockets.iter_mut().find(fits) {
            Some(socket) => socket.extend(members),
            None => sockets.push(members),
        }
    }
    (0..count).map(|device| sockets.iter().position(|socket| socket.contains(&device)).unwrap_or(0)).collect()
}
