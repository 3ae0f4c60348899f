//! Devices: their limits and attributes, and which of them reach each other.

use crate::code::{Code, Result};
use crate::driver::{Driver, driver, lock};
use crate::topology::{Device, LinkKind};

/// What a device has room for. The CUDA programming guide, "Technical Specifications per Compute Capability".
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) threads_per_multiprocessor: u32,
    pub(crate) blocks_per_multiprocessor: u32,
    pub(crate) registers_per_multiprocessor: u32,
    pub(crate) shared_bytes_per_multiprocessor: u32,
    /// Of a block, without asking.
    pub(crate) shared_bytes_default: u32,
    /// Of a block, when asked for.
    pub(crate) shared_bytes_most: u32,
    /// What the system takes of a block's.
    pub(crate) shared_bytes_reserved: u32,
}

impl Limits {
    pub(crate) fn of(device: &Device) -> Limits {
        let kib = |count: u32| count * 1024;
        let (major, minor) = device.capability;
        let (threads, blocks, shared) = match (major, minor) {
            (..=6, _) => (2048, 32, kib(96)),
            (7, 5) => (1024, 16, kib(64)),
            (7, _) => (2048, 32, kib(96)),
            (8, 0) => (2048, 32, kib(164)),
            (8, 9) => (1536, 24, kib(100)),
            (8, _) => (1536, 16, kib(100)),
            (12, _) => (1536, 24, kib(100)),
            _ => (2048, 32, kib(228)),
        };
        let reserved = if major >= 8 { kib(1) } else { 0 };
        Limits {
            threads_per_multiprocessor: threads,
            blocks_per_multiprocessor: blocks,
            registers_per_multiprocessor: 65536,
            shared_bytes_per_multiprocessor: shared,
            shared_bytes_default: kib(48),
            shared_bytes_most: if major <= 6 { kib(48) } else { shared - reserved },
            shared_bytes_reserved: reserved,
        }
    }

    /// Blocks of a kernel that a multiprocessor holds at once.
    pub(crate) fn blocks(&self, device: &Device, threads: u64, shared_bytes: u64) -> u32 {
        let threads = threads.max(1).next_multiple_of(32);
        let by_threads = u64::from(self.threads_per_multiprocessor) / threads;
        let registers = u64::from(device.registers_per_thread.next_multiple_of(8)) * threads;
        let by_registers = u64::from(self.registers_per_multiprocessor) / registers;
        let shared = (shared_bytes + u64::from(self.shared_bytes_reserved)).max(1);
        let by_shared = u64::from(self.shared_bytes_per_multiprocessor) / shared;
        let blocks = u64::from(self.blocks_per_multiprocessor);
        blocks.min(by_threads).min(by_registers).min(by_shared) as u32
    }
}

/// `cuDeviceGetAttribute`.
pub(crate) fn attribute(attribute: i32, ordinal: i32) -> Result<i32> {
    let driver = driver()?;
    let index = driver.device(ordinal)?;
    let device = &driver.topology.devices[index];
    let limits = Limits::of(device);
    let flag = |condition: bool| i32::from(condition);
    Ok(match attribute {
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        8 => limits.shared_bytes_default as i32,
        9 => 65536,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => limits.registers_per_multiprocessor as i32,
        13 => 1_980_000,
        14 | 30 => 512,
        15 => 1,
        16 => device.multiprocessors as i32,
        17 => flag(driver.topology.watchdog_ms.is_some()),
        18 => 0,
        19 => 1,
        20 => 0,
        31 => 1,
        32 => 1,
        33 => bus(index) as i32,
        34 => 0,
        35 => 0,
        36 => 2_619_000,
        37 => 5120,
        38 => 50 << 20,
        39 => limits.threads_per_multiprocessor as i32,
        40 => 3,
        41 => 1,
        50 => 0,
        51 => 32,
        75 => device.capability.0,
        76 => device.capability.1,
        78..=80 => 1,
        81 => limits.shared_bytes_per_multiprocessor as i32,
        83 => 0,
        86 => 0,
        88 | 89 => 0,
        90 => 1,
        91 => 1,
        92 | 93 | 94 | 122 | 123 => 0,
        95 => 1,
        96 => 0,
        97 => limits.shared_bytes_most as i32,
        98 => 0,
        99 => 1,
        102 => 1,
        106 => limits.blocks_per_multiprocessor as i32,
        111 => limits.shared_bytes_reserved as i32,
        115 => 1,
        120 => flag(device.capability >= (9, 0)),
        125 => 0,
        129 => 1,
        132 => flag(driver.topology.has_multicast(index)),
        _ if (1..=143).contains(&attribute) => 0,
        _ => return Err(Code::INVALID_VALUE),
    })
}

fn bus(device: usize) -> usize {
    0x10 + device
}

/// `cuDeviceGetPCIBusId`.
pub(crate) fn bus_id(ordinal: i32) -> Result<String> {
    let driver = driver()?;
    Ok(format!("0000:{:02X}:00.0", bus(driver.device(ordinal)?)))
}

/// The device with that bus identifier.
pub(crate) fn by_bus_id(text: &str) -> Result<i32> {
    let driver = driver()?;
    let text = text.to_ascii_uppercase();
    let found = (0..driver.devices.len() as i32)
        .find(|&device| bus_id(device).is_ok_and(|id| id == text || id.trim_start_matches("0000:") == text));
    found.ok_or(Code::INVALID_DEVICE)
}

/// `cuDeviceGetUuid`.
pub(crate) fn uuid(ordinal: i32) -> Result<[u8; 16]> {
    let driver = driver()?;
    let mut uuid = *b"softgpu device 0";
    uuid[15] = driver.device(ordinal)? as u8;
    Ok(uuid)
}

/// Whether one device can reach another's memory, as `cuDeviceCanAccessPeer` says.
pub(crate) fn can_access(driver: &Driver, from: usize, to: usize) -> bool {
    from != to && driver.topology.link(from, to).1 && !driver.faults().refuses_query(from, to)
}

/// `cuDeviceGetP2PAttribute`.
pub(crate) fn peer_attribute(attribute: i32, from: i32, to: i32) -> Result<i32> {
    let driver = driver()?;
    let (from, to) = (driver.device(from)?, driver.device(to)?);
    if from == to {
        return Err(Code::INVALID_DEVICE);
    }
    let (kind, _) = driver.topology.link(from, to);
    let can = can_access(driver, from, to);
    Ok(match attribute {
        1 => match kind {
            LinkKind::Nvlink => 0,
            LinkKind::Pcie => 1,
            LinkKind::None => 2,
        },
        2 | 4 => i32::from(can),
        3 => i32::from(can && kind == LinkKind::Nvlink),
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// `cuCtxEnablePeerAccess`.
pub(crate) fn enable_peer_access(peer: u64, flags: u32) -> Result {
    let driver = driver()?;
    let context = driver.current()?;
    let peer = driver.context(peer)?;
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if peer.handle == context.handle {
        return Err(Code::INVALID_CONTEXT);
    }
    if peer.device != context.device && !can_access(driver, context.device, peer.device) {
        return Err(Code::PEER_ACCESS_UNSUPPORTED);
    }
    if lock(&context.state).peers.contains(&peer.device) {
        return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
    }
    let refused = driver.faults().refuses_enable(context.device, peer.device);
    if let Some(code) = refused {
        return Err(Code(code));
    }
    crate::capture::check_unsafe_call(driver)?;
    driver.wait_for_kernels(context.device);
    driver.wait_for_kernels(peer.device);
    driver.check(&context)?;
    let mut state = lock(&context.state);
    if state.peers.contains(&peer.device) {
        return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
    }
    state.peers.push(peer.device);
    Ok(())
}

/// `cuCtxDisablePeerAccess`.
pub(crate) fn disable_peer_access(peer: u64) -> Result {
    let driver = driver()?;
    let context = driver.current()?;
    let peer = driver.context(peer)?;
    let mut state = lock(&context.state);
    let at = state.peers.iter().position(|&device| device == peer.device).ok_or(Code::PEER_ACCESS_NOT_ENABLED)?;
    state.peers.remove(at);
    Ok(())
}
