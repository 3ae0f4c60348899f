//! The classes of links, one row each: what the textbook says of them, what of that can be used, and how long a byte is on the wire.
//!
//! Textbooks add both directions of a link and count every bit that it carries. What a transfer gets is one direction, less
//! what goes into encoding, headers, acknowledgements and flow control. The usable figures are those of NCCL's model (`topo.h` of
//! version 2.30) where it has one, because they are the ones that large transfers were seen to reach.

use std::fmt;

/// A kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkClass {
    /// NVLink, by generation: 1 (P100), 2 (V100), 3 (A100), 4 (H100, H200), 5 (B200).
    NvLink(u8),
    /// PCI Express, by generation.
    Pcie(u8),
    /// Between the sockets of a host.
    CpuToCpu(CpuModel),
    /// InfiniBand at 56, 100, 200 or 400 Gb/s: FDR, EDR, HDR and NDR.
    InfiniBand(u16),
    /// Ethernet, with remote DMA (RoCE) or without, by Gb/s.
    Ethernet(u16),
}

/// Processors, as far as their links and their ways with traffic between devices differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // the makers' names
pub enum CpuModel {
    IntelBroadwell,
    IntelSkylake,
    IntelSapphireRapids,
    IntelEmeraldRapids,
    Amd,
    Power9,
    Arm,
    Zhaoxin,
}

impl CpuModel {
    /// Traffic between two devices that goes through the processor takes this many times its bytes of the links' bandwidth: NCCL's
    /// experience with Intel's.
    pub fn overhead(self) -> f64 {
        use CpuModel::{IntelBroadwell, IntelEmeraldRapids, IntelSapphireRapids, IntelSkylake};
        match self {
            IntelBroadwell | IntelSkylake | IntelSapphireRapids | IntelEmeraldRapids => 1.2,
            _ => 1.0,
        }
    }
}

/// What is known of a class. All bandwidths are those of one unit: a link of NVLink, a lane of PCI Express, a port of a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkRow {
    /// The class.
    pub class: LinkClass,
    /// Its name in text.
    pub name: &'static str,
    /// GB/s of both directions together, as textbooks count: the signalling rate less the line code. None where that depends on how
    /// many of them a machine has.
    pub textbook_gb_per_s: Option<f64>,
    /// GB/s of one direction that a large transfer gets.
    pub usable_gb_per_s: f64,
    /// Microseconds on the wire, from one end to the other.
    pub latency_us: f64,
    /// Where the figures come from.
    pub source: &'static str,
}

const NVLINK_SOURCE: &str =
    "textbook: NVIDIA's data sheets; usable: NCCL's topo.h; latency: TACCL's profile of a V100 mesh (2111.04867)";
const PCIE_SOURCE: &str =
    "textbook: PCI-SIG's rates; usable: NCCL topo.h; latency: half of a peer write between A100s through a switch";
const CPU_SOURCE: &str = "usable: NCCL topo.h; latency: assumed";
const INFINIBAND_SOURCE: &str =
    "textbook: the IBTA's rates; usable: NCCL's ports at 12 GB/s for each 100 Gb/s; latency: textbook";
const ETHERNET_SOURCE: &str = "usable: as InfiniBand's of the rate, less 5 % for headers; latency: assumed";

const fn row(class: LinkClass, name: &'static str, figures: [f64; 3], source: &'static str) -> LinkRow {
    let [textbook, usable_gb_per_s, latency_us] = figures;
    let textbook_gb_per_s = if textbook > 0.0 { Some(textbook) } else { None };
    LinkRow { class, name, textbook_gb_per_s, usable_gb_per_s, latency_us, source }
}

/// Every class.
pub const LINK_CLASSES: [LinkRow; 32] = {
    use LinkClass::{CpuToCpu, Ethernet, InfiniBand, NvLink, Pcie};
    [
        row(NvLink(1), "nvlink1", [40.0, 18.0, 0.7], NVLINK_SOURCE),
        row(NvLink(2), "nvlink2", [50.0, 20.0, 0.7], NVLINK_SOURCE),
        row(NvLink(3), "nvlink3", [50.0, 20.0, 0.7], NVLINK_SOURCE),
        row(NvLink(4), "nvlink4", [50.0, 20.6, 0.7], NVLINK_SOURCE),
        row(NvLink(5), "nvlink5", [100.0, 40.1, 0.7], NVLINK_SOURCE),
        row(Pcie(1), "pcie1", [0.5, 15.0 / 80.0, 1.0], PCIE_SOURCE),
        row(Pcie(2), "pcie2", [1.0, 30.0 / 80.0, 1.0], PCIE_SOURCE),
        row(Pcie(3), "pcie3", [2.0, 60.0 / 80.0, 1.0], PCIE_SOURCE),
        row(Pcie(4), "pcie4", [4.0, 120.0 / 80.0, 1.0], PCIE_SOURCE),
        row(Pcie(5), "pcie5", [8.0, 240.0 / 80.0, 1.0], PCIE_SOURCE),
        row(Pcie(6), "pcie6", [16.0, 480.0 / 80.0, 1.0], PCIE_SOURCE),
        row(CpuToCpu(CpuModel::IntelBroadwell), "qpi-broadwell", [0.0, 6.0, 0.5], CPU_SOURCE),
        row(CpuToCpu(CpuModel::IntelSkylake), "upi-skylake", [0.0, 10.0, 0.5], CPU_SOURCE),
        row(CpuToCpu(CpuModel::IntelSapphireRapids), "upi-sapphire-rapids", [0.0, 22.0, 0.5], CPU_SOURCE),
        row(CpuToCpu(CpuModel::IntelEmeraldRapids), "upi-emerald-rapids", [0.0, 40.0, 0.5], CPU_SOURCE),
        row(CpuToCpu(CpuModel::Amd), "infinity-fabric", [0.0, 16.0, 0.5], CPU_SOURCE),
        row(CpuToCpu(CpuModel::Power9), "power9-xbus", [0.0, 32.0, 0.5], CPU_SOURCE),
        row(CpuToCpu(CpuModel::Arm), "arm-fabric", [0.0, 6.0, 0.5], CPU_SOURCE),
        row(CpuToCpu(CpuModel::Zhaoxin), "zhaoxin-fabric", [0.0, 6.0, 0.5], CPU_SOURCE),
        row(InfiniBand(56), "fdr", [14.0, 6.72, 1.2], INFINIBAND_SOURCE),
        row(InfiniBand(100), "edr", [25.0, 12.0, 0.7], INFINIBAND_SOURCE),
        row(InfiniBand(200), "hdr", [50.0, 24.0, 0.5], INFINIBAND_SOURCE),
        row(InfiniBand(400), "ndr", [100.0, 48.0, 0.5], INFINIBAND_SOURCE),
        row(Ethernet(1), "ethernet1", [0.25, 0.11, 10.0], ETHERNET_SOURCE),
        row(Ethernet(10), "ethernet10", [2.5, 1.14, 5.0], ETHERNET_SOURCE),
        row(Ethernet(25), "ethernet25", [6.25, 2.85, 2.0], ETHERNET_SOURCE),
        row(Ethernet(40), "ethernet40", [10.0, 4.56, 2.0], ETHERNET_SOURCE),
        row(Ethernet(50), "ethernet50", [12.5, 5.7, 2.0], ETHERNET_SOURCE),
        row(Ethernet(100), "ethernet100", [25.0, 11.4, 1.5], ETHERNET_SOURCE),
        row(Ethernet(180), "ethernet180", [45.0, 20.5, 1.5], ETHERNET_SOURCE),
        row(Ethernet(200), "ethernet200", [50.0, 22.8, 1.5], ETHERNET_SOURCE),
        row(Ethernet(400), "ethernet400", [100.0, 45.6, 1.5], ETHERNET_SOURCE),
    ]
};

impl LinkClass {
    /// What is known of it, if it is one of the table's.
    pub fn row(self) -> Option<&'static LinkRow> {
        LINK_CLASSES.iter().find(|row| row.class == self)
    }

    /// The class with this name.
    pub fn from_name(name: &str) -> Option<LinkClass> {
        LINK_CLASSES.iter().find(|row| row.name == name).map(|row| row.class)
    }

    /// Whether it leaves a host.
    pub fn is_network(self) -> bool {
        matches!(self, LinkClass::InfiniBand(_) | LinkClass::Ethernet(_))
    }
}

impl fmt::Display for LinkClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row() {
            Some(row) => f.write_str(row.name),
            None => write!(f, "{self:?}"),
        }
    }
}
