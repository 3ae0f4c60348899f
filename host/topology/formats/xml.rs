//! NCCL's topology XML: what `NCCL_TOPO_FILE` names and `NCCL_TOPO_DUMP_FILE` writes.
//!
//! ```text
//! system version
//! └ cpu   numaid arch vendor familyid modelid
//!   ├ pci busid class vendor device link_speed link_width      (a bridge holds devices)
//!   │  ├ gpu  dev sm rank
//!   │  │   └ nvlink target count tclass
//!   │  └ nic → net  name dev speed port guid
//!   └ nic → net                                                 (an adapter that is not on PCI)
//! ```
//!
//! The rules are NCCL's (`src/graph/xml.cc` and `topo.cc`): a link of PCI Express belongs to the device below it; an
//! empty speed is 8 GT/s and a width of 0 is 16 lanes; NVLinks to an NVSwitch, whichever one and whether it can be seen
//! or not, all end at one crossbar; a Broadcom switch that shows itself as two levels is one switch. NCCL fills in what
//! a file leaves out from the machine that it runs on. Here there is no machine, so that is assumed, or left out, with
//! a warning.

use std::collections::HashMap;

use roxmltree::{Document, Node as Element, ParsingOptions};

use super::super::cluster::{Builder, NodeId, NodeKind};
use super::super::link::{CpuModel, LinkClass};
use super::{DEVICES_MAX, FormatError, Reading, at, check_length, cut};

/// Elements and attributes together; NCCL's own limit is 256 elements of one kind.
const XML_NODES_MAX: u32 = 1 << 16;

/// Levels of bridges; a PCI bus has at most 256 of them, and no machine more than a handful.
const DEPTH_MAX: usize = 32;

/// Where something hangs: a CPU or a bridge, by its place in [`Reader::bridges`].
type Parent = usize;

/// A CPU or a PCI bridge.
struct Bridge {
    name: String,
    kind: NodeKind,
    /// Nothing for a CPU.
    above: Option<(Parent, LinkClass, u32)>,
}

/// What hangs below a bridge.
struct Device {
    name: String,
    kind: NodeKind,
    above: (Parent, LinkClass, u32),
    /// The number by which drivers list GPUs.
    number: Option<u32>,
    bus_id: String,
    nvlinks: Vec<NvLink>,
}

/// What a GPU says of its NVLinks.
struct NvLink {
    line: u32,
    far: Far,
    count: u32,
}

enum Far {
    Switch,
    Cpu(Parent),
    /// The bus address of a GPU.
    Gpu(String),
}

#[derive(Default)]
struct Reader {
    bridges: Vec<Bridge>,
    devices: Vec<Device>,
    warnings: Vec<String>,
}

/// Reads a machine; `name` is what the cluster is called.
///
/// # Errors
/// [`FormatError`], with the line.
pub fn read(name: &str, text: &str) -> Result<Reading, FormatError> {
    check_length(text)?;
    let options = ParsingOptions { nodes_limit: XML_NODES_MAX, ..ParsingOptions::default() };
    let document = match Document::parse_with_options(text, options) {
        Ok(document) => document,
        Err(error) => return at(error.pos().row, format_args!("expected XML: {error}")),
    };
    let system = document.root_element();
    let line = |element: Element<'_, '_>| document.text_pos_at(element.range().start).row;
    match system.tag_name().name() {
        "system" => {}
        "graphs" => {
            return at(
                line(system),
                "expected a topology (<system>), found a file of graphs, as NCCL_GRAPH_FILE names",
            );
        }
        other => return at(line(system), format_args!("expected <system>, found <{}>", cut(other))),
    }
    let mut reader = Reader::default();
    if !matches!(system.attribute("version"), Some("1" | "2")) {
        reader.warn(line(system), "its version is neither 1 nor 2; read as version 1");
    }
    for child in system.children().filter(Element::is_element) {
        match child.tag_name().name() {
            "cpu" => reader.cpu(child, &line)?,
            other => reader.warn(line(child), format_args!("<{}> is not known; left out", cut(other))),
        }
    }
    reader.finish(name)
}

impl Reader {
    fn warn(&mut self, line: u32, what: impl std::fmt::Display) {
        /// More say nothing new.
        const WARNINGS_MAX: usize = 1000;
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(format!("line {line}: {what}"));
        }
    }

    fn cpu(&mut self, cpu: Element<'_, '_>, line: &dyn Fn(Element<'_, '_>) -> u32) -> Result<(), FormatError> {
        let number = cpu.attribute("numaid").unwrap_or("");
        let model = self.cpu_model(cpu, line(cpu))?;
        let name = format!("cpu{}", cut(number));
        self.add_bridge(line(cpu), Bridge { name, kind: NodeKind::Cpu(model), above: None })?;
        let parent = self.bridges.len() - 1;
        for child in cpu.children().filter(Element::is_element) {
            match child.tag_name().name() {
                "pci" => self.pci(child, parent, None, 0, line)?,
                "nic" => {
                    let link = (parent, LinkClass::Pcie(3), 16);
                    self.warn(
                        line(child),
                        "an adapter without an address on the PCI bus; assumed at 16 lanes of 8 GT/s",
                    );
                    self.adapter(child, link, "", line)?;
                }
                other => self.warn(line(child), format_args!("<{}> is not known; left out", cut(other))),
            }
        }
        Ok(())
    }

    fn cpu_model(&mut self, cpu: Element<'_, '_>, line: u32) -> Result<CpuModel, FormatError> {
        let family = whole(cpu, "familyid", line)?;
        let model = whole(cpu, "modelid", line)?;
        Ok(match (cpu.attribute("arch"), cpu.attribute("vendor")) {
            (Some("arm64"), _) => CpuModel::Arm,
            (Some("ppc64"), _) => CpuModel::Power9,
            (_, Some("AuthenticAMD")) => CpuModel::Amd,
            (_, Some("CentaurHauls" | "  Shanghai  ")) => CpuModel::Zhaoxin,
            (_, Some("GenuineIntel")) => match (family, model) {
                (Some(6), Some(0xcf..)) => CpuModel::IntelEmeraldRapids,
                (Some(6), Some(0x8f..)) => CpuModel::IntelSapphireRapids,
                (Some(6), Some(0x55..)) => CpuModel::IntelSkylake,
                (Some(6), Some(_)) => CpuModel::IntelBroadwell,
                _ => {
                    self.warn(line, "an Intel CPU of an unknown model; assumed a Broadwell");
                    CpuModel::IntelBroadwell
                }
            },
            (_, vendor) => {
                let found = vendor.map_or("without a vendor".to_owned(), |vendor| format!("of {:?}", cut(vendor)));
                self.warn(line, format_args!("a CPU {found}; assumed an Intel Broadwell"));
                CpuModel::IntelBroadwell
            }
        })
    }

    /// A PCI device; `above` is the vendor and device of the bridge that it hangs on.
    fn pci(
        &mut self,
        pci: Element<'_, '_>,
        parent: Parent,
        above: Option<&str>,
        depth: usize,
        line: &dyn Fn(Element<'_, '_>) -> u32,
    ) -> Result<(), FormatError> {
        let here = line(pci);
        if depth > DEPTH_MAX {
            return at(here, format_args!("expected at most {DEPTH_MAX} bridges one below the other, found more"));
        }
        let Some(bus_id) = pci.attribute("busid") else {
            return at(here, "expected a busid of the <pci>, found none");
        };
        let link = self.pcie_link(pci, parent, here)?;
        let child = |name: &str| pci.children().find(|child| child.has_tag_name(name));
        let class = pci.attribute("class").unwrap_or("");
        let is = |prefixes: &[&str]| prefixes.iter().any(|prefix| class.starts_with(prefix));
        if let Some(gpu) = child("gpu") {
            return self.gpu(gpu, link, bus_id, line);
        }
        if let Some(nic) = child("nic") {
            return self.adapter(nic, link, bus_id, line);
        }
        if is(&["0x0604", "0x0801"]) || child("pci").is_some() {
            // The two levels of a Broadcom switch are one switch, as in NCCL.
            let identity = Option::zip(pci.attribute("vendor"), pci.attribute("device"));
            let broadcom = identity.filter(|(vendor, device)| {
                *vendor == "0x1000" && matches!(*device, "0xc030" | "0xc034") || *vendor == "0x1344"
            });
            let identity = broadcom.map(|(_, device)| device);
            let place = if identity.is_some() && identity == above {
                parent
            } else {
                let name = format!("pcie-{}", cut(bus_id));
                self.add_bridge(here, Bridge { name, kind: NodeKind::PcieSwitch, above: Some(link) })?;
                self.bridges.len() - 1
            };
            for below in pci.children().filter(Element::is_element) {
                match below.tag_name().name() {
                    "pci" => self.pci(below, place, identity, depth + 1, line)?,
                    other => self.warn(line(below), format_args!("<{}> of a bridge; left out", cut(other))),
                }
            }
            return Ok(());
        }
        if is(&["0x0302", "0x0300", "0x0380"]) {
            self.warn(here, "a GPU of which only the address is known; NVLinks and compute capability are not");
            return self.add_device(here, NodeKind::Gpu { compute_capability: 0 }, "", link, None, bus_id);
        }
        if is(&["0x0207", "0x0200"]) {
            self.warn(here, "an adapter of which only the address is known; its speed is not");
            return self.add_device(here, NodeKind::Nic, "", link, None, bus_id);
        }
        // NVSwitches are known by the links that end at them.
        if !is(&["0x0680"]) {
            let found = if class.is_empty() { "no class".to_owned() } else { format!("class {:?}", cut(class)) };
            self.warn(here, format_args!("a device with {found}: nothing says what it is; left out"));
        }
        Ok(())
    }

    /// A device's link to what is above it.
    fn pcie_link(
        &mut self,
        pci: Element<'_, '_>,
        parent: Parent,
        line: u32,
    ) -> Result<(Parent, LinkClass, u32), FormatError> {
        let speed = pci.attribute("link_speed").unwrap_or("");
        let rate = speed.split_whitespace().next().and_then(|rate| rate.parse::<f64>().ok());
        let generation = match rate {
            Some(2.5) => 1,
            Some(5.0) => 2,
            Some(8.0) => 3,
            Some(16.0) => 4,
            Some(32.0) => 5,
            Some(64.0) => 6,
            _ => {
                self.warn(line, format_args!("link_speed {:?}; assumed 8 GT/s, as NCCL does", cut(speed)));
                3
            }
        };
        let width = match whole(pci, "link_width", line)? {
            Some(width @ 1..=32) => width,
            None | Some(0) => {
                self.warn(line, "no link_width; assumed 16 lanes, as NCCL does");
                16
            }
            Some(width) => return at(line, format_args!("expected a link_width of 0 to 32 lanes, found {width}")),
        };
        Ok((parent, LinkClass::Pcie(generation), width))
    }

    fn gpu(
        &mut self,
        gpu: Element<'_, '_>,
        link: (Parent, LinkClass, u32),
        bus_id: &str,
        line: &dyn Fn(Element<'_, '_>) -> u32,
    ) -> Result<(), FormatError> {
        let here = line(gpu);
        let compute_capability = whole(gpu, "sm", here)?.unwrap_or(0);
        let number = whole(gpu, "dev", here)?;
        self.add_device(here, NodeKind::Gpu { compute_capability }, "", link, number, bus_id)?;
        for child in gpu.children().filter(Element::is_element) {
            let line = line(child);
            if !matches!(child.tag_name().name(), "nvlink" | "xgmi") {
                self.warn(line, format_args!("<{}> of a GPU; left out", cut(child.tag_name().name())));
                continue;
            }
            let target = child.attribute("target").unwrap_or("");
            let class = child.attribute("tclass").unwrap_or("");
            // The most links that a GPU has are 18; a file may add some up.
            let count = whole(child, "count", line)?.unwrap_or(1);
            if !(1..=1024).contains(&count) {
                return at(line, format_args!("expected a count of 1 to 1024 NVLinks, found {count}"));
            }
            let far = if class.starts_with("0x068001") {
                Far::Cpu(self.cpu_above(link.0))
            } else if class.starts_with("0x0680") {
                Far::Switch
            } else if target.starts_with("fffffff:") {
                self.warn(line, "an NVLink whose far end is not visible; assumed an NVSwitch");
                Far::Switch
            } else if target.eq_ignore_ascii_case(bus_id) {
                self.warn(line, "an NVLink from a GPU to itself; left out");
                continue;
            } else {
                Far::Gpu(target.to_ascii_lowercase())
            };
            // It has just been added.
            if let Some(device) = self.devices.last_mut() {
                device.nvlinks.push(NvLink { line, far, count });
            }
        }
        Ok(())
    }

    fn cpu_above(&self, mut place: Parent) -> Parent {
        while let Some((above, _, _)) = self.bridges[place].above {
            place = above;
        }
        place
    }

    /// An adapter: its ports share its link to the machine, so they are one node.
    fn adapter(
        &mut self,
        nic: Element<'_, '_>,
        link: (Parent, LinkClass, u32),
        bus_id: &str,
        line: &dyn Fn(Element<'_, '_>) -> u32,
    ) -> Result<(), FormatError> {
        let mut names = Vec::new();
        for net in nic.children().filter(|child| child.has_tag_name("net")) {
            if net.attribute("dev").is_none() {
                self.warn(line(net), "a port without a dev; left out, as NCCL does");
                continue;
            }
            names.push(cut(net.attribute("name").unwrap_or("nic")));
        }
        if names.len() > 1 {
            let what =
                format!("{} ports of one adapter; taken as one, since they share its PCI Express link", names.len());
            self.warn(line(nic), what);
        }
        self.add_device(line(nic), NodeKind::Nic, &names.join("+"), link, None, bus_id)
    }

    fn add_bridge(&mut self, line: u32, bridge: Bridge) -> Result<(), FormatError> {
        if self.bridges.len() == DEVICES_MAX {
            return at(line, format_args!("expected at most {DEVICES_MAX} CPUs and bridges, found more"));
        }
        self.bridges.push(bridge);
        Ok(())
    }

    fn add_device(
        &mut self,
        line: u32,
        kind: NodeKind,
        name: &str,
        above: (Parent, LinkClass, u32),
        number: Option<u32>,
        bus_id: &str,
    ) -> Result<(), FormatError> {
        if self.devices.len() == DEVICES_MAX {
            return at(line, format_args!("expected at most {DEVICES_MAX} GPUs and adapters, found more"));
        }
        let (name, bus_id) = (name.to_owned(), bus_id.to_ascii_lowercase());
        self.devices.push(Device { name, kind, above, number, bus_id, nvlinks: Vec::new() });
        Ok(())
    }

    /// Everything in its order: GPUs by their numbers, so that ranks are numbered as NCCL numbers them.
    fn finish(mut self, name: &str) -> Result<Reading, FormatError> {
        let is_gpu = |device: &Device| matches!(device.kind, NodeKind::Gpu { .. });
        self.devices.sort_by_key(|device| (!is_gpu(device), device.number));
        let mut builder = Builder::default();
        builder.host();
        let (mut gpus, mut nics) = (0, 0);
        let mut devices = Vec::with_capacity(self.devices.len());
        let mut by_bus_id = HashMap::new();
        for device in &self.devices {
            let (count, prefix) = if is_gpu(device) { (&mut gpus, "gpu") } else { (&mut nics, "nic") };
            let name = if device.name.is_empty() { format!("{prefix}{count}") } else { device.name.clone() };
            *count += 1;
            let node = builder.node(name, device.kind);
            devices.push(node);
            if is_gpu(device) && by_bus_id.insert(device.bus_id.as_str(), node).is_some() {
                return at(
                    1,
                    format_args!("expected every GPU at an address of its own, found two at {:?}", device.bus_id),
                );
            }
        }
        let bridges: Vec<NodeId> =
            self.bridges.iter().map(|bridge| builder.node(bridge.name.clone(), bridge.kind)).collect();
        let mut cpus: Vec<(NodeId, CpuModel)> = Vec::new();
        for (bridge, &node) in self.bridges.iter().zip(&bridges) {
            if let Some((above, class, width)) = bridge.above {
                builder.link(bridges[above], node, class, width);
            }
            if let NodeKind::Cpu(model) = bridge.kind {
                for &(other, _) in &cpus {
                    builder.link(other, node, LinkClass::CpuToCpu(model), 1);
                }
                cpus.push((node, model));
            }
        }
        for (device, &node) in self.devices.iter().zip(&devices) {
            let (above, class, width) = device.above;
            builder.link(bridges[above], node, class, width);
        }
        // Each pair of GPUs names its links twice, once at either end.
        let mut pairs: HashMap<(NodeId, NodeId), u32> = HashMap::new();
        let mut to_switch: HashMap<NodeId, u32> = HashMap::new();
        let mut warnings = Vec::new();
        for (device, &node) in self.devices.iter().zip(&devices) {
            for NvLink { line, far, count } in &device.nvlinks {
                match far {
                    Far::Switch => *to_switch.entry(node).or_default() += count,
                    Far::Cpu(cpu) => builder.link(node, bridges[*cpu], nvlink_of(device.kind), *count),
                    Far::Gpu(target) => match by_bus_id.get(target.as_str()) {
                        Some(&other) => *pairs.entry((node, other)).or_default() += count,
                        None => {
                            let target = cut(target);
                            warnings.push(format!("line {line}: an NVLink to {target:?}, where no GPU is; left out"));
                        }
                    },
                }
            }
        }
        if !to_switch.is_empty() {
            let switch = builder.node("nvswitch", NodeKind::NvSwitch);
            for (device, &node) in self.devices.iter().zip(&devices) {
                if let Some(&count) = to_switch.get(&node) {
                    builder.link(node, switch, nvlink_of(device.kind), count);
                }
            }
        }
        for (place, (device, &one)) in self.devices.iter().zip(&devices).enumerate() {
            for &other in &devices[place + 1..] {
                let [there, back] = [(one, other), (other, one)].map(|pair| pairs.get(&pair).copied().unwrap_or(0));
                if there != back {
                    let [one, other] = [one, other].map(|node| builder.nodes[node.index()].name.clone());
                    let what = format!("{one} has {there} NVLinks to {other}, and {other} {back} to {one}");
                    warnings.push(format!("line 1: {what}; taken as many as the more"));
                }
                if there.max(back) > 0 {
                    builder.link(one, other, nvlink_of(device.kind), there.max(back));
                }
            }
        }
        self.warnings.extend(warnings);
        Ok(Reading { cluster: builder.finish(name)?, warnings: self.warnings })
    }
}

/// The NVLink of a GPU's generation.
fn nvlink_of(kind: NodeKind) -> LinkClass {
    let NodeKind::Gpu { compute_capability } = kind else { return LinkClass::NvLink(2) };
    LinkClass::NvLink(match compute_capability {
        100.. => 5,
        90.. => 4,
        80.. => 3,
        70.. => 2,
        // Nobody knows it; what most machines of the files without it have.
        0 => 2,
        _ => 1,
    })
}

/// A whole number; nothing where there is none.
fn whole(element: Element<'_, '_>, name: &str, line: u32) -> Result<Option<u32>, FormatError> {
    let Some(text) = element.attribute(name) else { return Ok(None) };
    match text.trim().parse() {
        Ok(number) => Ok(Some(number)),
        // -1 is how NCCL writes that it does not know.
        Err(_) if matches!(text.trim(), "" | "-1") => Ok(None),
        Err(_) => at(line, format_args!("expected a whole number as {name}, found {:?}", cut(text))),
    }
}
