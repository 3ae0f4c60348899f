//! Machines on the command line: `--topo dgx1v --hosts 64 --net edr`.

use crate::failure::Failure;
use crate::shown;
use crate::topo::aligned;
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use tutti::plan::Collective;
use tutti::topology::formats::{self, FormatError};
use tutti::topology::{Cluster, LINK_CLASSES, Network, PRESETS, PresetError, preset};

/// Which machines are meant.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// A machine, or several of one kind, as in dgx1v or "dgx1v x64" (tutti topo --presets lists them); or a
    /// file: NCCL's topology XML, or what nvidia-smi topo -m prints
    #[arg(long = "topo", value_name = "MACHINE|FILE")]
    topo: Option<String>,

    /// The network between hosts: fdr, edr, hdr, ndr, ethernet100 and so on, as in tutti topo --links [default: the machine's]
    #[arg(long = "net", value_name = "CLASS", requires = "topo")]
    net: Option<String>,
}

impl ClusterArgs {
    /// The cluster; none if none was asked for.
    pub(crate) fn cluster(&self) -> Result<Option<Cluster>, Failure> {
        let Some(topo) = &self.topo else { return Ok(None) };
        let network = match &self.net {
            None => None,
            Some(name) => Some(Network::from_name(name).ok_or_else(|| {
                Failure::Usage(format!("--net {name}: expected a network, such as edr, hdr, ndr or ethernet100"))
            })?),
        };
        match preset(topo, network) {
            Ok(cluster) => Ok(Some(cluster)),
            Err(PresetError::Unknown { .. }) if Path::new(topo).is_file() => {
                if network.is_some() {
                    return Err(Failure::Usage(
                        "--net: expected a machine by name, found a file of one host".to_owned(),
                    ));
                }
                read(Path::new(topo)).map(Some)
            }
            Err(error @ PresetError::Unknown { .. }) => {
                Err(Failure::Usage(format!("--topo: {error}; nor is there a file of that name")))
            }
            Err(error) => Err(Failure::Usage(format!("--topo: {error}"))),
        }
    }

    /// The cluster, which must have been asked for.
    pub(crate) fn needed(&self) -> Result<Cluster, Failure> {
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        let expected = || Failure::Usage(format!("expected --topo MACHINE, one of {}", names.join(", ")));
        self.cluster()?.ok_or_else(expected)
    }
}

/// The machine of a file; what was assumed is told on standard error.
fn read(path: &Path) -> Result<Cluster, Failure> {
    let cannot = |error| Failure::file("read", path, &error);
    let file = File::open(path).map_err(cannot)?;
    let mut bytes = Vec::new();
    // A byte more than it may have, so that the reader sees that there are too many.
    file.take(formats::TEXT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(cannot)?;
    let text = String::from_utf8_lossy(&bytes);
    let name = path.file_name().map_or_else(|| shown::shown(path).to_string(), |name| shown::shown(name).to_string());
    let reading = formats::read(&name, &text).map_err(|error| {
        // As compilers write it: FILE:LINE: reason.
        Failure::Failed(match error {
            FormatError::At { line, reason } => format!("{}:{line}: {reason}", shown::shown(path)),
            error => format!("{}: {error}", shown::shown(path)),
        })
    })?;
    for warning in &reading.warnings {
        crate::warn(&format!("{}: {warning}", shown::shown(path)));
    }
    Ok(reading.cluster)
}

#[derive(Serialize)]
struct LinkClassRow {
    class: &'static str,
    /// Of both directions.
    textbook_gb_per_s: Option<f64>,
    /// Of one direction.
    usable_gb_per_s: f64,
    latency_us: f64,
    source: &'static str,
}

/// What is known of each class of links, and what each collective sends.
pub(crate) fn links(json: bool) -> Result<String, Failure> {
    let rows = LINK_CLASSES.iter().map(|row| LinkClassRow {
        class: row.name,
        textbook_gb_per_s: row.textbook_gb_per_s,
        usable_gb_per_s: row.usable_gb_per_s,
        latency_us: row.latency_us,
        source: row.source,
    });
    if json {
        return shown::json(&rows.collect::<Vec<_>>());
    }
    let mut table = vec![["class", "textbook GB/s", "usable GB/s", "latency us", "source"].map(str::to_owned).to_vec()];
    table.extend(rows.map(|row| {
        let textbook = row.textbook_gb_per_s.map_or_else(|| "-".to_owned(), |value| format!("{value}"));
        let usable = format!("{:.2}", row.usable_gb_per_s);
        vec![row.class.to_owned(), textbook, usable, format!("{}", row.latency_us), row.source.to_owned()]
    }));
    let mut text = aligned(&table);
    text += "
Of one link of NVLink, one lane of PCI Express, one port of a network. The textbook adds both directions and counts every bit that is
signalled; usable is what one direction of a large transfer gets, less encoding, headers, acknowledgements and flow control. So a V100's
six NVLinks are 300 GB/s in the textbook and 120 each way here, 16 lanes of PCI Express 3.0 are 32 and 12.

What each rank sends, of S bytes among N ranks:

";
    let sends = [
        (Collective::ALL[0], "2 (N - 1) / N S", "S: the buffer; ring, direct and their like"),
        (Collective::ALL[1], "(N - 1) / N S", "S: the input, all blocks; a block s = S / N, so (N - 1) s"),
        (Collective::ALL[2], "(N - 1) / N S", "S: the output, all blocks; a block s = S / N, so (N - 1) s"),
        (Collective::ALL[3], "S", "along a chain, all ranks but the last"),
        (Collective::ALL[4], "S", "all ranks but the root"),
        (Collective::ALL[5], "0", "ceil(log2 N) messages without data"),
    ];
    let rows: Vec<Vec<String>> = sends
        .into_iter()
        .map(|(collective, bytes, what)| vec![collective.name().to_owned(), bytes.to_owned(), what.to_owned()])
        .collect();
    text += &aligned(&rows);
    Ok(text)
}

#[derive(Serialize)]
struct Machine {
    name: &'static str,
    about: &'static str,
}

/// The machines that there are.
pub(crate) fn presets(json: bool) -> Result<String, Failure> {
    if json {
        let machines = PRESETS.iter().map(|preset| Machine { name: preset.name, about: preset.about });
        return shown::json(&machines.collect::<Vec<_>>());
    }
    let rows: Vec<Vec<String>> =
        PRESETS.iter().map(|preset| vec![preset.name.to_owned(), preset.about.to_owned()]).collect();
    Ok(aligned(&rows))
}

#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    rank_count: usize,
    hosts: usize,
    nodes: Vec<String>,
    links: Vec<ShownLink>,
    /// By rank of the first host, how it reaches each other one.
    paths: Vec<Vec<&'static str>>,
    rings: Vec<Vec<u32>>,
}

#[derive(Serialize)]
struct ShownLink {
    ends: [String; 2],
    class: String,
    count: u32,
    bandwidth_gb_per_s: f64,
    latency_us: f64,
}

/// What a machine is, as the simulator knows it: how the ranks of its first host reach each other, and the links that they do by.
pub(crate) fn shown(cluster: &Cluster, json: bool) -> Result<String, Failure> {
    let first = cluster.hosts()[0].ranks[1] as usize;
    let path = |from: usize, to: usize| {
        let path = cluster.path(from, to);
        // As nvidia-smi writes it, with the number of links where that is NVLink alone.
        let link = path.hops.first().map(|hop| &cluster.links()[hop.link.index()]);
        match (path.class.name(), link) {
            ("NVL", Some(link)) => format!("NV{}", link.count),
            (name, _) => name.to_owned(),
        }
    };
    let hosts = cluster.hosts().len();
    if json {
        let links = cluster.links().iter().map(|link| ShownLink {
            ends: link.ends.map(|end| cluster.describe_node(end)),
            class: link.class.to_string(),
            count: link.count,
            bandwidth_gb_per_s: link.bandwidth_gb_per_s,
            latency_us: link.latency_us,
        });
        let paths = (0..first).map(|from| (0..first).map(|to| cluster.path(from, to).class.name()).collect());
        return shown::json(&Shown {
            name: cluster.name(),
            rank_count: cluster.rank_count(),
            hosts,
            nodes: cluster.nodes().iter().map(|node| node.name.clone()).collect(),
            links: links.collect(),
            paths: paths.collect(),
            rings: cluster.ring_orders(),
        });
    }
    let plural = if hosts == 1 { "" } else { "s" };
    let mut text = format!("{}: {} ranks on {hosts} host{plural}\n\n", cluster.name(), cluster.rank_count());
    let name = |rank: usize| cluster.nodes()[cluster.node_of_rank(rank).index()].name.clone();
    let mut rows = vec![[vec![String::new()], (0..first).map(name).collect()].concat()];
    rows.extend((0..first).map(|from| [vec![name(from)], (0..first).map(|to| path(from, to)).collect()].concat()));
    text += &aligned(&rows);
    text += "\n  X = itself, NV# = so many NVLinks, NVB = NVLink through a GPU, PIX = one PCI Express switch, PXB = several,\n  \
             PHB = a processor, SYS = from processor to processor\n\n";
    let mut rows = vec![["link", "", "class", "GB/s each way", "latency us"].map(str::to_owned).to_vec()];
    let of_first_host =
        cluster.links().iter().filter(|link| link.ends.iter().any(|end| cluster.nodes()[end.index()].host == Some(0)));
    rows.extend(of_first_host.map(|link| {
        let [one, other] = link.ends.map(|end| cluster.nodes()[end.index()].name.clone());
        let class = if link.count > 1 { format!("{} x{}", link.class, link.count) } else { link.class.to_string() };
        vec![one, other, class, format!("{:.1}", link.bandwidth_gb_per_s), format!("{}", link.latency_us)]
    }));
    text += &aligned(&rows);
    let rings = cluster.ring_orders();
    text += &format!(
        "\n{} ring{}, each way round a link of its own\n",
        rings.len(),
        if rings.len() == 1 { "" } else { "s" }
    );
    for ring in rings.iter().take(RINGS_SHOWN) {
        let shown: Vec<String> = ring.iter().take(RANKS_SHOWN).map(u32::to_string).collect();
        let more = if ring.len() > RANKS_SHOWN { " ..." } else { "" };
        text += &format!("  {}{more}\n", shown.join(" "));
    }
    Ok(text)
}

/// Rings, and ranks of each, that are listed.
const RINGS_SHOWN: usize = 8;
const RANKS_SHOWN: usize = 32;
