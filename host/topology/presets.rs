//! Machines that everybody knows, and rows of them.
//!
//! What is linked to what is the makers' (NVIDIA's DGX and HGX user guides; the mesh of the DGX-1 with V100s is also in NCCL issue
//! 671); which processor and how many adapters there are is one usual equipment.

use super::cluster::{Builder, Cluster, Fault, NodeId, NodeKind};
use super::link::{CpuModel, LinkClass};

/// A machine, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// As in `--topo NAME`.
    pub name: &'static str,
    /// In words.
    pub about: &'static str,
    gpus: u32,
    compute_capability: u32,
    fabric: Fabric,
    cpu: CpuModel,
    sockets: u32,
    /// PCI Express switches, each with as many GPUs and adapters as the others; none: all hang on the processors.
    switches: u32,
    pcie_generation: u8,
    adapters: u32,
    /// The network that it usually comes with.
    network: Network,
}

/// How GPUs of a machine are linked with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fabric {
    /// By PCI Express alone.
    None,
    /// By NVLink, each with each other one, by so many links.
    AllPairs { generation: u8, count: u32 },
    /// Through NVSwitches, each by so many links.
    Switched { generation: u8, count: u32 },
    /// The hybrid cube mesh of the DGX-1 with V100s.
    CubeMesh,
}

/// The network between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// InfiniBand at so many Gb/s.
    InfiniBand(u16),
    /// Ethernet at so many Gb/s, with remote DMA.
    Ethernet(u16),
}

impl Network {
    /// As in `--net NAME`.
    pub fn from_name(name: &str) -> Option<Network> {
        match LinkClass::from_name(name)? {
            LinkClass::InfiniBand(rate) => Some(Network::InfiniBand(rate)),
            LinkClass::Ethernet(rate) => Some(Network::Ethernet(rate)),
            _ => None,
        }
    }

    fn class(self) -> LinkClass {
        match self {
            Network::InfiniBand(rate) => LinkClass::InfiniBand(rate),
            Network::Ethernet(rate) => LinkClass::Ethernet(rate),
        }
    }
}

/// The pairs of the cube mesh, with how many links each has: NVLinks of the DGX-1 with V100s.
const CUBE_MESH: [(u32, u32, u32); 16] = [
    (0, 1, 1),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 2),
    (1, 2, 2),
    (1, 3, 1),
    (1, 5, 2),
    (2, 3, 2),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (4, 7, 2),
    (5, 6, 2),
    (5, 7, 1),
    (6, 7, 2),
];

/// Every machine.
pub const PRESETS: [Preset; 12] = {
    use CpuModel::{Amd, IntelBroadwell, IntelEmeraldRapids, IntelSapphireRapids, IntelSkylake};
    use Fabric::{AllPairs, CubeMesh, Switched};
    use Network::{Ethernet, InfiniBand};
    const fn machine(
        (name, about): (&'static str, &'static str),
        (gpus, compute_capability, fabric): (u32, u32, Fabric),
        (cpu, sockets, switches, pcie_generation): (CpuModel, u32, u32, u8),
        (adapters, network): (u32, Network),
    ) -> Preset {
        Preset {
            name,
            about,
            gpus,
            compute_capability,
            fabric,
            cpu,
            sockets,
            switches,
            pcie_generation,
            adapters,
            network,
        }
    }
    [
        machine(
            ("dgx1v", "DGX-1: 8 V100 in a hybrid cube mesh, 4 EDR adapters"),
            (8, 70, CubeMesh),
            (IntelBroadwell, 2, 4, 3),
            (4, InfiniBand(100)),
        ),
        machine(
            ("dgx2", "DGX-2: 16 V100 behind NVSwitches, 8 EDR adapters"),
            (16, 70, Switched { generation: 2, count: 6 }),
            (IntelSkylake, 2, 8, 3),
            (8, InfiniBand(100)),
        ),
        machine(
            ("dgx-a100", "DGX A100: 8 A100 behind NVSwitches, 8 HDR adapters"),
            (8, 80, Switched { generation: 3, count: 12 }),
            (Amd, 2, 4, 4),
            (8, InfiniBand(200)),
        ),
        machine(
            ("hgx-h100", "HGX H100: 8 H100 behind NVSwitches, 8 NDR adapters"),
            (8, 90, Switched { generation: 4, count: 18 }),
            (IntelSapphireRapids, 2, 8, 5),
            (8, InfiniBand(400)),
        ),
        machine(
            ("hgx-h200", "HGX H200: 8 H200 behind NVSwitches, 8 NDR adapters"),
            (8, 90, Switched { generation: 4, count: 18 }),
            (IntelEmeraldRapids, 2, 8, 5),
            (8, InfiniBand(400)),
        ),
        machine(
            ("hgx-b200", "HGX B200: 8 B200 behind NVSwitches, 8 NDR adapters"),
            (8, 100, Switched { generation: 5, count: 18 }),
            (IntelEmeraldRapids, 2, 8, 5),
            (8, InfiniBand(400)),
        ),
        machine(
            ("v100-x4", "4 V100, each linked with each other one by 2 NVLinks, an EDR adapter"),
            (4, 70, AllPairs { generation: 2, count: 2 }),
            (IntelSkylake, 2, 2, 3),
            (1, InfiniBand(100)),
        ),
        machine(
            ("pcie3-x4", "4 GPUs, PCI Express 3.0 alone, two sockets, an adapter of 25 Gb/s"),
            (4, 70, Fabric::None),
            (IntelSkylake, 2, 0, 3),
            (1, Ethernet(25)),
        ),
        machine(
            ("pcie3-x8", "8 GPUs, PCI Express 3.0 alone behind 4 switches, two sockets, an adapter of 25 Gb/s"),
            (8, 75, Fabric::None),
            (IntelSkylake, 2, 4, 3),
            (1, Ethernet(25)),
        ),
        machine(
            ("pcie4-x8", "8 GPUs, PCI Express 4.0 alone, two sockets, an adapter of 100 Gb/s"),
            (8, 86, Fabric::None),
            (Amd, 2, 0, 4),
            (1, Ethernet(100)),
        ),
        machine(
            ("pcie5-x8", "8 GPUs, PCI Express 5.0 alone behind 4 switches, two sockets, 2 adapters of 400 Gb/s"),
            (8, 90, Fabric::None),
            (IntelEmeraldRapids, 2, 4, 5),
            (2, InfiniBand(400)),
        ),
        machine(
            ("cpu", "a host with two processors and no GPU, an adapter of 100 Gb/s"),
            (0, 0, Fabric::None),
            (IntelSkylake, 2, 0, 3),
            (1, Ethernet(100)),
        ),
    ]
};

/// Why there is no such machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PresetError {
    /// No preset has the name.
    #[error("there is no machine {name:?}; there are {}", names().join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// Not a number of hosts.
    #[error("{text:?}: expected a number of hosts from 1 to {HOSTS_MAX} behind the x, as in dgx1v x64")]
    Hosts {
        /// What was asked for.
        text: String,
    },
    /// It is not a cluster.
    #[error(transparent)]
    Fault(#[from] Fault),
}

fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|preset| preset.name).collect()
}

/// Hosts that a row may have.
const HOSTS_MAX: u32 = 8192;

/// The cluster of `text`: a machine's name, or one and how many there are of it, as in `dgx1v x64`; joined by `network`, or the one
/// that it usually comes with.
///
/// # Errors
/// [`PresetError`], where there is none.
pub fn preset(text: &str, network: Option<Network>) -> Result<Cluster, PresetError> {
    let text = text.trim();
    let (name, hosts) = match text.split_once(char::is_whitespace) {
        Some((name, rest)) => (name, rest.trim()),
        None => (text, "x1"),
    };
    let known = PRESETS.iter().find(|preset| preset.name == name);
    let machine = known.ok_or_else(|| PresetError::Unknown { name: name.to_owned() })?;
    let count = hosts.strip_prefix('x').and_then(|count| count.parse::<u32>().ok());
    let hosts = count.filter(|count| (1..=HOSTS_MAX).contains(count));
    let hosts = hosts.ok_or_else(|| PresetError::Hosts { text: text.to_owned() })?;
    let network = network.unwrap_or(machine.network);
    let mut builder = Builder::default();
    let adapters: Vec<NodeId> = (0..hosts).flat_map(|_| machine.add(&mut builder)).collect();
    if hosts > 1 {
        let switch = builder.node("network", NodeKind::NetworkSwitch);
        for adapter in adapters {
            builder.link(adapter, switch, network.class(), 1);
        }
    }
    Ok(builder.finish(text)?)
}

impl Preset {
    /// Adds a host; its adapters.
    fn add(&self, builder: &mut Builder) -> Vec<NodeId> {
        builder.host();
        let kind = NodeKind::Gpu { compute_capability: self.compute_capability };
        let gpus: Vec<NodeId> = (0..self.gpus).map(|index| builder.node(format!("gpu{index}"), kind)).collect();
        let cpus: Vec<NodeId> =
            (0..self.sockets).map(|index| builder.node(format!("cpu{index}"), NodeKind::Cpu(self.cpu))).collect();
        for (index, one) in cpus.iter().enumerate() {
            for other in &cpus[index + 1..] {
                builder.link(*one, *other, LinkClass::CpuToCpu(self.cpu), 1);
            }
        }
        let pcie = LinkClass::Pcie(self.pcie_generation);
        // Where devices hang: on the switches, spread over the sockets, or on the sockets themselves.
        let places: Vec<NodeId> = match self.switches {
            0 => cpus.clone(),
            switches => (0..switches)
                .map(|index| {
                    let switch = builder.node(format!("pcie{index}"), NodeKind::PcieSwitch);
                    builder.link(switch, cpus[(index * self.sockets / switches) as usize], pcie, 16);
                    switch
                })
                .collect(),
        };
        let place = |index: u32, count: u32| places[(index as usize * places.len()) / count.max(1) as usize];
        for (index, gpu) in (0..).zip(&gpus) {
            builder.link(*gpu, place(index, self.gpus), pcie, 16);
        }
        let adapters: Vec<NodeId> =
            (0..self.adapters).map(|index| builder.node(format!("nic{index}"), NodeKind::Nic)).collect();
        for (index, adapter) in (0..).zip(&adapters) {
            builder.link(*adapter, place(index, self.adapters), pcie, 16);
        }
        match self.fabric {
            Fabric::None => {}
            Fabric::AllPairs { generation, count } => {
                for (index, one) in gpus.iter().enumerate() {
                    for other in &gpus[index + 1..] {
                        builder.link(*one, *other, LinkClass::NvLink(generation), count);
                    }
                }
            }
            Fabric::Switched { generation, count } => {
                let switch = builder.node("nvswitch", NodeKind::NvSwitch);
                for gpu in &gpus {
                    builder.link(*gpu, switch, LinkClass::NvLink(generation), count);
                }
            }
            Fabric::CubeMesh => {
                for (one, other, count) in CUBE_MESH {
                    builder.link(gpus[one as usize], gpus[other as usize], LinkClass::NvLink(2), count);
                }
            }
        }
        adapters
    }
}
