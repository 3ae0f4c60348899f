//! The topology file: which devices there are, how they are connected, and what goes wrong. See the crate's documentation for the format.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;

/// Devices that there may be: access rights are kept in 64 bits.
const DEVICES_MAX: usize = 64;

/// Why a text is not a topology.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopologyError {
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    #[error("expected 1 to {DEVICES_MAX} devices, found {0}")]
    DeviceCount(usize),
    #[error("expected a compute capability such as \"9.0\", found {0:?}")]
    Capability(String),
    #[error("expected two different devices below {count} in a pair, found {pair:?}")]
    Pair { pair: [usize; 2], count: usize },
    #[error("expected a device below {count}, found {device}")]
    Device { device: usize, count: usize },
    #[error("expected `after_thread_instructions` or `after_ms` in device_lost, found neither")]
    NoMoment,
    #[error("expected `allocation` or `above_bytes` in allocation_failure, found neither")]
    NoAllocation,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    devices: Option<Devices>,
    #[serde(default)]
    device: DeviceTable,
    driver_version: Option<i32>,
    workers: Option<usize>,
    race_detector: Option<bool>,
    synchronising: Option<bool>,
    synchronising_ms: Option<u64>,
    watchdog_ms: Option<u64>,
    multicast: Option<bool>,
    #[serde(default)]
    link: Option<LinkKind>,
    #[serde(default)]
    links: Vec<LinkTable>,
    #[serde(default)]
    faults: FaultsTable,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Devices {
    Count(usize),
    List(Vec<DeviceTable>),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceTable {
    name: Option<String>,
    compute_capability: Option<String>,
    multiprocessors: Option<u32>,
    memory_bytes: Option<u64>,
    registers_per_thread: Option<u32>,
}

/// How two devices are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LinkKind {
    Nvlink,
    Pcie,
    None,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkTable {
    between: [usize; 2],
    kind: LinkKind,
    peer_access: Option<bool>,
}

/// The table of faults as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FaultsTable {
    refuse_peer_access: Vec<RefusePeerAccess>,
    peer_access_lies: Vec<PairTable>,
    launch_error: Vec<LaunchErrorTable>,
    allocation_failure: Vec<AllocationFailureTable>,
    corrupt_peer_writes: Vec<CorruptTable>,
    device_lost: Vec<DeviceLostTable>,
    slow_link: Vec<SlowLinkTable>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stage {
    Query,
    Enable,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RefusePeerAccess {
    pair: [usize; 2],
    #[serde(default)]
    one_way: bool,
    stage: Option<Stage>,
    code: Option<i32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PairTable {
    pair: [usize; 2],
    #[serde(default)]
    one_way: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LaunchErrorTable {
    device: usize,
    launch: Option<u64>,
    code: Option<i32>,
    #[serde(default)]
    asynchronous: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllocationFailureTable {
    device: Option<usize>,
    #[serde(default)]
    host: bool,
    allocation: Option<u64>,
    above_bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CorruptTable {
    pair: [usize; 2],
    #[serde(default)]
    one_way: bool,
    every: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceLostTable {
    device: usize,
    launch: Option<u64>,
    after_thread_instructions: Option<u64>,
    after_ms: Option<u64>,
    code: Option<i32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SlowLinkTable {
    pair: [usize; 2],
    #[serde(default)]
    one_way: bool,
    nanoseconds: u64,
}

/// One device.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) capability: (i32, i32),
    pub(crate) multiprocessors: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) registers_per_thread: u32,
}

/// What there is.
#[derive(Debug)]
pub(crate) struct Topology {
    pub(crate) devices: Vec<Device>,
    pub(crate) driver_version: i32,
    pub(crate) workers: Option<usize>,
    pub(crate) race_detector: bool,
    pub(crate) synchronising: bool,
    pub(crate) synchronising_ms: u64,
    pub(crate) watchdog_ms: Option<u64>,
    pub(crate) multicast: bool,
    link: LinkKind,
    links: BTreeMap<(usize, usize), (LinkKind, bool)>,
}

/// A pair of devices, from one to the other.
type Way = (usize, usize);

/// What goes wrong, with what has happened since it was asked for.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    refused_queries: Vec<Way>,
    refused_enables: Vec<(Way, i32)>,
    lies: Vec<Way>,
    launches: Vec<LaunchFault>,
    allocations: Vec<AllocationFault>,
    corruptions: Vec<(Way, u64, Arc<AtomicU64>)>,
    delays: Vec<(Way, u64)>,
}

#[derive(Debug)]
struct LaunchFault {
    device: usize,
    launch: Option<u64>,
    seen: AtomicU64,
    effect: LaunchEffect,
}

/// What befalls a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaunchEffect {
    /// The call answers this.
    Refused(i32),
    /// The launch never runs, and this comes later.
    Fails(i32),
    /// The device goes away while it runs.
    Lost { thread_instructions: Option<u64>, ms: Option<u64>, code: i32 },
}

#[derive(Debug)]
struct AllocationFault {
    device: Option<usize>,
    allocation: Option<u64>,
    above_bytes: Option<u64>,
    seen: AtomicU64,
}

fn ways(pair: [usize; 2], one_way: bool) -> Vec<Way> {
    let [from, to] = pair;
    if one_way { vec![(from, to)] } else { vec![(from, to), (to, from)] }
}

fn check_pair(pair: [usize; 2], count: usize) -> Result<(), TopologyError> {
    if pair[0] == pair[1] || pair.iter().any(|&device| device >= count) {
        return Err(TopologyError::Pair { pair, count });
    }
    Ok(())
}

impl Topology {
    /// Reads a topology; an empty text is the one that there is without any.
    pub(crate) fn parse(text: &str) -> Result<(Topology, Faults), TopologyError> {
        let file: File = toml::from_str(text)?;
        let tables = match file.devices {
            None => vec![DeviceTable::default(); 8],
            Some(Devices::Count(count)) => {
                if count > DEVICES_MAX {
                    return Err(TopologyError::DeviceCount(count));
                }
                vec![DeviceTable::default(); count]
            }
            Some(Devices::List(list)) => list,
        };
        if tables.is_empty() || tables.len() > DEVICES_MAX {
            return Err(TopologyError::DeviceCount(tables.len()));
        }
        let devices = tables
            .into_iter()
            .enumerate()
            .map(|(index, own)| {
                let common = &file.device;
                let name = own.name.or_else(|| common.name.clone());
                let capability = own.compute_capability.or_else(|| common.compute_capability.clone());
                Ok(Device {
                    name: name.unwrap_or_else(|| format!("softgpu {index}")),
                    capability: capability_of(capability.as_deref().unwrap_or("9.0"))?,
                    multiprocessors: own.multiprocessors.or(common.multiprocessors).unwrap_or(132).max(1),
                    memory_bytes: own.memory_bytes.or(common.memory_bytes).unwrap_or(80 << 30),
                    registers_per_thread: own
                        .registers_per_thread
                        .or(common.registers_per_thread)
                        .unwrap_or(32)
                        .clamp(1, 255),
                })
            })
            .collect::<Result<Vec<Device>, TopologyError>>()?;
        let mut links = BTreeMap::new();
        for link in &file.links {
            check_pair(link.between, devices.len())?;
            let peer_access = link.peer_access.unwrap_or(link.kind != LinkKind::None);
            for way in ways(link.between, false) {
                links.insert(way, (link.kind, peer_access));
            }
        }
        let faults = Faults::new(file.faults, devices.len())?;
        let topology = Topology {
            devices,
            driver_version: file.driver_version.unwrap_or(12090),
            workers: file.workers,
            race_detector: file.race_detector.unwrap_or(true),
            synchronising: file.synchronising.unwrap_or(true),
            synchronising_ms: file.synchronising_ms.unwrap_or(0),
            watchdog_ms: file.watchdog_ms.filter(|&ms| ms > 0),
            multicast: file.multicast.unwrap_or(true),
            link: file.link.unwrap_or(LinkKind::Nvlink),
            links,
        };
        Ok((topology, faults))
    }

    /// How a pair is connected, and whether one can access the other's memory.
    pub(crate) fn link(&self, from: usize, to: usize) -> (LinkKind, bool) {
        self.links.get(&(from, to)).copied().unwrap_or((self.link, self.link != LinkKind::None))
    }

    /// Whether a device takes part in multicast.
    pub(crate) fn has_multicast(&self, device: usize) -> bool {
        self.multicast && self.devices[device].capability >= (9, 0)
    }
}

fn capability_of(text: &str) -> Result<(i32, i32), TopologyError> {
    let parts = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parts.filter(|&(major, minor)| major > 0 && minor >= 0).ok_or_else(|| TopologyError::Capability(text.to_owned()))
}

impl Faults {
    /// Reads a table of faults that stands alone.
    pub(crate) fn parse(text: &str, count: usize) -> Result<Faults, TopologyError> {
        Faults::new(toml::from_str(text)?, count)
    }

    fn new(table: FaultsTable, count: usize) -> Result<Faults, TopologyError> {
        let check_device =
            |device: usize| if device < count { Ok(()) } else { Err(TopologyError::Device { device, count }) };
        let mut faults = Faults::default();
        for refuse in table.refuse_peer_access {
            check_pair(refuse.pair, count)?;
            for way in ways(refuse.pair, refuse.one_way) {
                if refuse.stage == Some(Stage::Query) {
                    faults.refused_queries.push(way);
                }
                faults.refused_enables.push((way, refuse.code.unwrap_or(217)));
            }
        }
        for lie in table.peer_access_lies {
            check_pair(lie.pair, count)?;
            faults.lies.extend(ways(lie.pair, lie.one_way));
        }
        for error in table.launch_error {
            check_device(error.device)?;
            let code = error.code.unwrap_or(719);
            let effect = if error.asynchronous { LaunchEffect::Fails(code) } else { LaunchEffect::Refused(code) };
            faults.launches.push(LaunchFault {
                device: error.device,
                launch: Some(error.launch.unwrap_or(1)),
                seen: AtomicU64::new(0),
                effect,
            });
        }
        for lost in table.device_lost {
            check_device(lost.device)?;
            if lost.after_thread_instructions.is_none() && lost.after_ms.is_none() {
                return Err(TopologyError::NoMoment);
            }
            let effect = LaunchEffect::Lost {
                thread_instructions: lost.after_thread_instructions,
                ms: lost.after_ms,
                code: lost.code.unwrap_or(719),
            };
            let launch = Some(lost.launch.unwrap_or(1));
            faults.launches.push(LaunchFault { device: lost.device, launch, seen: AtomicU64::new(0), effect });
        }
        for failure in table.allocation_failure {
            if failure.allocation.is_none() && failure.above_bytes.is_none() {
                return Err(TopologyError::NoAllocation);
            }
            if let Some(device) = failure.device {
                check_device(device)?;
            }
            let device = if failure.host { None } else { Some(failure.device.unwrap_or(0)) };
            faults.allocations.push(AllocationFault {
                device,
                allocation: failure.allocation,
                above_bytes: failure.above_bytes,
                seen: AtomicU64::new(0),
            });
        }
        for corrupt in table.corrupt_peer_writes {
            check_pair(corrupt.pair, count)?;
            for way in ways(corrupt.pair, corrupt.one_way) {
                faults.corruptions.push((way, corrupt.every.max(1), Arc::default()));
            }
        }
        for slow in table.slow_link {
            check_pair(slow.pair, count)?;
            for way in ways(slow.pair, slow.one_way) {
                faults.delays.push((way, slow.nanoseconds));
            }
        }
        Ok(faults)
    }

    /// Takes over what another one asks for.
    pub(crate) fn add(&mut self, other: Faults) {
        self.refused_queries.extend(other.refused_queries);
        self.refused_enables.extend(other.refused_enables);
        self.lies.extend(other.lies);
        self.launches.extend(other.launches);
        self.allocations.extend(other.allocations);
        self.corruptions.extend(other.corruptions);
        self.delays.extend(other.delays);
    }

    pub(crate) fn refuses_query(&self, from: usize, to: usize) -> bool {
        self.refused_queries.contains(&(from, to))
    }

    pub(crate) fn refuses_enable(&self, from: usize, to: usize) -> Option<i32> {
        self.refused_enables.iter().find(|entry| entry.0 == (from, to)).map(|entry| entry.1)
    }

    pub(crate) fn lies(&self, from: usize, to: usize) -> bool {
        self.lies.contains(&(from, to))
    }

    /// Counts a launch on a device; answers what befalls it.
    pub(crate) fn launch(&self, device: usize) -> Option<LaunchEffect> {
        let mut effect = None;
        for fault in self.launches.iter().filter(|fault| fault.device == device) {
            let number = fault.seen.fetch_add(1, Ordering::Relaxed) + 1;
            if fault.launch.is_none_or(|launch| launch == number) {
                effect = effect.or(Some(fault.effect));
            }
        }
        effect
    }

    /// Counts an allocation on a device (or of the host); answers whether it fails.
    pub(crate) fn allocation_fails(&self, device: Option<usize>, bytes: u64) -> bool {
        let mut fails = false;
        for fault in self.allocations.iter().filter(|fault| fault.device == device) {
            let number = fault.seen.fetch_add(1, Ordering::Relaxed) + 1;
            fails |= fault.allocation == Some(number) || fault.above_bytes.is_some_and(|above| bytes > above);
        }
        fails
    }

    /// What the accesses of a device's kernels to others' memory meet.
    pub(crate) fn links(&self, from: usize) -> Vec<softgpu::Link> {
        let mut links: BTreeMap<usize, softgpu::Link> = BTreeMap::new();
        for &((_, to), nanoseconds) in self.delays.iter().filter(|entry| entry.0.0 == from) {
            links.entry(to).or_default().delay = std::time::Duration::from_nanos(nanoseconds);
        }
        for ((_, to), every, counter) in self.corruptions.iter().filter(|entry| entry.0.0 == from) {
            links.entry(*to).or_default().corrupt_every = Some((*every, counter.clone()));
        }
        links.into_iter().map(|(to, link)| softgpu::Link { device: to as u32, ..link }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_text_there_are_eight_devices_all_connected() {
        let (topology, _) = Topology::parse("").unwrap();
        assert_eq!(topology.devices.len(), 8);
        assert_eq!((topology.devices[7].capability, topology.devices[7].multiprocessors), ((9, 0), 132));
        assert_eq!(topology.link(0, 7), (LinkKind::Nvlink, true));
        assert!(topology.race_detector && topology.synchronising && topology.has_multicast(3));
    }

    #[test]
    fn errors_say_what_was_expected_and_what_came() {
        let error = |text: &str| Topology::parse(text).unwrap_err().to_string();
        assert_eq!(error("devices = 65"), "expected 1 to 64 devices, found 65");
        assert!(error("[device]\ncompute_capability = \"nine\"").contains("found \"nine\""));
        assert!(error("[[links]]\nbetween = [0, 9]\nkind = \"pcie\"").contains("found [0, 9]"));
        assert!(error("[[faults.device_lost]]\ndevice = 0").contains("after_thread_instructions"));
        assert!(error("[[faults.allocation_failure]]\ndevice = 0").contains("above_bytes"));
        assert!(error("colour = 1").contains("colour"));
    }

    #[test]
    fn faults_count_from_when_they_were_asked_for() {
        let mut faults = Faults::parse("[[launch_error]]\ndevice = 1\nlaunch = 2\ncode = 5", 2).unwrap();
        assert_eq!([faults.launch(1), faults.launch(0)], [None, None]);
        faults
            .add(Faults::parse("[[launch_error]]\ndevice = 1\nlaunch = 2\ncode = 6\nasynchronous = true", 2).unwrap());
        assert_eq!(faults.launch(1), Some(LaunchEffect::Refused(5)));
        assert_eq!(faults.launch(1), Some(LaunchEffect::Fails(6)));
    }

    #[test]
    fn what_is_one_way_is_one_way() {
        let text = "[[slow_link]]\npair = [0, 1]\none_way = true\nnanoseconds = 7";
        let faults = Faults::parse(text, 2).unwrap();
        let links = faults.links(0);
        assert_eq!((links.len(), links[0].device, links[0].delay.as_nanos()), (1, 1, 7));
        assert!(faults.links(1).is_empty());
    }
}
