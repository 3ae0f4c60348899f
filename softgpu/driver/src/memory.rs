//! Memory: allocations, pinned and registered host memory, what a pointer is, copies and fills.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use softgpu::{MemoryError, MemoryKind};

use crate::code::{Code, Result};
use crate::driver::{Context, Driver, Region, RegionKind, driver, lock};
use crate::ffi::raw::HostRange;
use crate::stream::{Completion, Failure, Stream, Submitted, Work};

/// Flags of `cuMemHostAlloc` and `cuMemHostRegister` that are known.
const HOST_FLAGS: u32 = 0xf;

/// `cuMemAlloc`, and with a stream's order `cuMemAllocAsync`.
pub(crate) fn allocate(bytes: u64, kind: RegionKind) -> Result<u64> {
    let driver = driver()?;
    let context = driver.current()?;
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if kind == RegionKind::Device {
        crate::capture::check_unsafe_call(driver)?;
        driver.wait_for_kernels(context.device);
        driver.check(&context)?;
    }
    if driver.faults().allocation_fails(Some(context.device), bytes) {
        return Err(Code::OUT_OF_MEMORY);
    }
    take_device_bytes(driver, context.device, bytes)?;
    let allocated = driver.machine.allocate(bytes, MemoryKind::Device, context.device as u32);
    let Ok(address) = allocated else {
        driver.devices[context.device].used_bytes.fetch_sub(bytes, Ordering::AcqRel);
        return Err(Code::OUT_OF_MEMORY);
    };
    let region = Region { bytes, kind, context, flags: 0, id: driver.next_number() };
    lock(&driver.tables).memory.insert(address, region);
    Ok(address)
}

/// Counts bytes of a device's memory as used, if there are so many.
pub(crate) fn take_device_bytes(driver: &Driver, device: usize, bytes: u64) -> Result {
    let total = driver.topology.devices[device].memory_bytes;
    let used = &driver.devices[device].used_bytes;
    let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= total);
    used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).map(drop).map_err(|_| Code::OUT_OF_MEMORY)
}

fn take_region(driver: &Driver, address: u64, kinds: &[RegionKind]) -> Result<Region> {
    let mut tables = lock(&driver.tables);
    match tables.memory.get(&address) {
        Some(region) if kinds.contains(&region.kind) => {
            let region = region.clone();
            tables.memory.remove(&address);
            Ok(region)
        }
        _ => Err(Code::INVALID_VALUE),
    }
}

fn has_region(driver: &Driver, address: u64, kinds: &[RegionKind]) -> Result<Arc<Context>> {
    let tables = lock(&driver.tables);
    let region = tables.memory.get(&address).filter(|region| kinds.contains(&region.kind));
    region.map(|region| region.context.clone()).ok_or(Code::INVALID_VALUE)
}

/// `cuMemFree`.
pub(crate) fn free(address: u64) -> Result {
    let driver = driver()?;
    driver.current()?;
    if address == 0 {
        return Ok(());
    }
    crate::capture::check_unsafe_call(driver)?;
    let kinds = [RegionKind::Device, RegionKind::Pooled];
    let owner = has_region(driver, address, &kinds)?;
    driver.wait_for_kernels(owner.device);
    let region = take_region(driver, address, &kinds)?;
    driver.release_region(address, &region);
    driver.current().map(drop)
}

/// `cuMemFreeAsync`.
pub(crate) fn free_async(address: u64, stream: u64) -> Result {
    let driver = driver()?;
    let stream = driver.stream(stream)?;
    crate::capture::check_not_capturing(driver, &stream)?;
    has_region(driver, address, &[RegionKind::Pooled, RegionKind::Device])?;
    stream.submit(driver, Work::Free(address)).map(drop)
}

/// The stream has come to the `cuMemFreeAsync`.
pub(crate) fn free_pooled(driver: &Driver, address: u64) {
    // Freed twice, it is gone already: the second call found it still there, and nothing else can be told now.
    if let Ok(region) = take_region(driver, address, &[RegionKind::Pooled, RegionKind::Device]) {
        driver.release_region(address, &region);
    }
}

/// `cuMemHostAlloc`.
pub(crate) fn allocate_host(bytes: u64, flags: u32) -> Result<u64> {
    let driver = driver()?;
    let context = driver.current()?;
    if bytes == 0 || flags & !HOST_FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    crate::capture::check_unsafe_call(driver)?;
    driver.wait_for_kernels(context.device);
    driver.check(&context)?;
    if driver.faults().allocation_fails(None, bytes) {
        return Err(Code::OUT_OF_MEMORY);
    }
    let address = driver.machine.allocate(bytes, MemoryKind::Host, 0).map_err(|_| Code::OUT_OF_MEMORY)?;
    // The host writes it behind the machine's back.
    driver.machine.mark_written(address, bytes).map_err(|_| Code::UNKNOWN)?;
    driver.host_bytes.fetch_add(bytes, Ordering::AcqRel);
    let region = Region { bytes, kind: RegionKind::Pinned, context, flags, id: driver.next_number() };
    lock(&driver.tables).memory.insert(address, region);
    Ok(address)
}

/// `cuMemFreeHost`.
pub(crate) fn free_host(address: u64) -> Result {
    let driver = driver()?;
    driver.current()?;
    crate::capture::check_unsafe_call(driver)?;
    let owner = has_region(driver, address, &[RegionKind::Pinned])?;
    driver.wait_for_kernels(owner.device);
    let region = take_region(driver, address, &[RegionKind::Pinned])?;
    driver.release_region(address, &region);
    Ok(())
}

/// `cuMemHostRegister`.
pub(crate) fn register(range: HostRange, flags: u32) -> Result {
    let driver = driver()?;
    let context = driver.current()?;
    if range.bytes() == 0 || range.address() == 0 || flags & !HOST_FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    crate::capture::check_unsafe_call(driver)?;
    driver.wait_for_kernels(context.device);
    driver.check(&context)?;
    if driver.faults().allocation_fails(None, range.bytes()) {
        return Err(Code::OUT_OF_MEMORY);
    }
    range.register(&driver.machine).map_err(|_| Code::HOST_MEMORY_ALREADY_REGISTERED)?;
    let region =
        Region { bytes: range.bytes(), kind: RegionKind::Registered, context, flags, id: driver.next_number() };
    lock(&driver.tables).memory.insert(range.address(), region);
    Ok(())
}

/// `cuMemHostUnregister`.
pub(crate) fn unregister(address: u64) -> Result {
    let driver = driver()?;
    driver.current()?;
    crate::capture::check_unsafe_call(driver)?;
    let kinds = [RegionKind::Registered];
    let owner = has_region(driver, address, &kinds).map_err(|_| Code::HOST_MEMORY_NOT_REGISTERED)?;
    driver.wait_for_kernels(owner.device);
    let region = take_region(driver, address, &kinds).map_err(|_| Code::HOST_MEMORY_NOT_REGISTERED)?;
    driver.release_region(address, &region);
    Ok(())
}

/// The region in which an address lies, and where that begins.
pub(crate) fn region_of(driver: &Driver, address: u64) -> Option<(u64, Region)> {
    let tables = lock(&driver.tables);
    let (&base, region) = tables.memory.range(..=address).next_back()?;
    (address - base < region.bytes).then(|| (base, region.clone()))
}

/// `cuMemHostGetDevicePointer` and `cuMemHostGetFlags`: the flags of host memory that kernels can reach.
pub(crate) fn host_flags(address: u64) -> Result<u32> {
    let driver = driver()?;
    driver.current()?;
    match region_of(driver, address) {
        Some((_, region)) if matches!(region.kind, RegionKind::Pinned | RegionKind::Registered) => Ok(region.flags),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// `cuMemGetAddressRange`.
pub(crate) fn address_range(address: u64) -> Result<(u64, u64)> {
    let driver = driver()?;
    driver.current()?;
    match driver.machine.allocation(address) {
        Some((MemoryKind::Device | MemoryKind::Host | MemoryKind::Multicast, _, base, bytes)) => Ok((base, bytes)),
        _ => Err(Code::NOT_FOUND),
    }
}

/// `cuMemGetInfo`: free and total bytes.
pub(crate) fn information() -> Result<(u64, u64)> {
    let driver = driver()?;
    let context = driver.current()?;
    let total = driver.topology.devices[context.device].memory_bytes;
    Ok((total - driver.devices[context.device].used_bytes.load(Ordering::Acquire).min(total), total))
}

/// What an attribute of a pointer is.
pub(crate) enum PointerAttribute {
    U64(u64),
    U32(u32),
    Bool(bool),
    /// Two tokens.
    Tokens(u64, u32),
}

/// `cuPointerGetAttribute`: `Err(INVALID_VALUE)` for a pointer that the driver does not know, or an attribute that it does not have.
pub(crate) fn pointer_attribute(attribute: i32, address: u64) -> Result<PointerAttribute> {
    use PointerAttribute::{Bool, Tokens, U32, U64};
    let driver = driver()?;
    let (kind, device, base, bytes) = driver.machine.allocation(address).ok_or(Code::INVALID_VALUE)?;
    let region = region_of(driver, address);
    let is_device = matches!(kind, MemoryKind::Device | MemoryKind::Multicast);
    let context = region.as_ref().map_or(0, |(_, region)| region.context.handle);
    let id = region.as_ref().map_or(base >> 9, |(_, region)| region.id);
    let device = match (&region, is_device) {
        (Some((_, region)), false) => region.context.device,
        _ => device as usize,
    };
    Ok(match attribute {
        1 => U64(context),
        2 => U32(if is_device { 2 } else { 1 }),
        3 => U64(address),
        4 if !is_device => U64(address),
        4 => return Err(Code::INVALID_VALUE),
        5 => Tokens(id, 0),
        6 => Bool(false),
        7 | 20 => U64(id),
        8 => Bool(false),
        9 => U32(device as u32),
        10 => Bool(matches!(&region, Some((_, region)) if region.kind == RegionKind::Device)),
        11 | 19 => U64(base),
        12 | 18 => U64(bytes),
        13 => Bool(true),
        14 => U64(0),
        15 => Bool(is_device),
        16 => U32(3),
        17 => U64(match &region {
            Some((_, region)) if region.kind == RegionKind::Pooled => pool_handle(region.context.device),
            _ => 0,
        }),
        21 => Bool(false),
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// The handle of a device's memory pool: there is one for each.
pub(crate) fn pool_handle(device: usize) -> u64 {
    ((crate::driver::HandleKind::Pool as u64) << 40) | ((device as u64 + 1) << 4)
}

/// The device of a pool.
pub(crate) fn pool_device(pool: u64) -> Result<usize> {
    let driver = driver()?;
    (0..driver.devices.len()).find(|&device| pool_handle(device) == pool).ok_or(Code::INVALID_VALUE)
}

/// `cuMemAllocAsync`: the memory is there at once, which is earlier than the order of the stream demands.
pub(crate) fn allocate_async(bytes: u64, stream: u64) -> Result<u64> {
    let driver = driver()?;
    let stream = driver.own_stream(stream)?;
    crate::capture::check_not_capturing(driver, &stream)?;
    allocate(bytes, RegionKind::Pooled)
}

/// One side of a copy.
#[derive(Clone)]
pub(crate) enum Side {
    /// Memory that the machine knows: of a device, or pinned.
    Known(u64),
    /// Any other memory of the host.
    Pageable(HostRange),
    /// Bytes that have been taken from there already.
    Staged(Arc<Vec<u8>>),
}

/// A copy.
#[derive(Clone)]
pub(crate) struct Copy {
    pub(crate) from: Side,
    pub(crate) to: Side,
    pub(crate) bytes: u64,
    /// Whether it may go through the host where there is no peer access.
    pub(crate) is_peer: bool,
}

/// A fill.
#[derive(Clone)]
pub(crate) struct Fill {
    pub(crate) address: u64,
    pub(crate) value: Vec<u8>,
    pub(crate) count: u64,
}

/// What a pointer given to a copy must be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    Device,
    Host,
    Any,
}

impl Side {
    fn new(driver: &Driver, range: HostRange, expected: Expected) -> Result<Side> {
        let (address, bytes) = (range.address(), range.bytes());
        match driver.machine.allocation(address) {
            Some((MemoryKind::Multicast, ..)) => Err(Code::INVALID_VALUE),
            Some((kind, _, base, length)) => {
                // A host pointer that a copy takes for a device's works where addresses are unified; the other way round it does not.
                if expected == Expected::Host && kind == MemoryKind::Device || address - base + bytes > length {
                    return Err(Code::INVALID_VALUE);
                }
                Ok(Side::Known(address))
            }
            None if expected == Expected::Device || address == 0 => Err(Code::INVALID_VALUE),
            None => Ok(Side::Pageable(range)),
        }
    }

    fn is_pageable(&self) -> bool {
        matches!(self, Side::Pageable(_))
    }

    fn is_device(&self, driver: &Driver) -> bool {
        match self {
            Side::Known(address) => {
                driver.machine.allocation(*address).is_some_and(|found| found.0 == MemoryKind::Device)
            }
            _ => false,
        }
    }
}

/// When a copy's call returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// When the copy is done, unless it is between devices.
    Synchronous,
    /// At once, if no memory is pageable.
    Asynchronous,
}

/// All copies.
pub(crate) fn copy(
    (from, from_kind): (HostRange, Expected),
    (to, to_kind): (HostRange, Expected),
    stream: u64,
    waiting: Waiting,
    is_peer: bool,
) -> Result {
    let driver = driver()?;
    let stream = driver.stream(stream)?;
    let bytes = from.bytes();
    if bytes == 0 {
        return Ok(());
    }
    if waiting == Waiting::Synchronous {
        crate::capture::check_legacy(driver, &stream.context)?;
        crate::capture::check_unsafe_call(driver)?;
    }
    let mut from = Side::new(driver, from, from_kind)?;
    let to = Side::new(driver, to, to_kind)?;
    let is_capturing = crate::capture::is_capturing(driver, &stream);
    if let (Side::Pageable(range), false, Waiting::Asynchronous) = (&from, is_capturing, waiting) {
        // As a real driver does, so that the host may change the bytes as soon as the call is back.
        from = Side::Staged(Arc::new(range.read()));
    }
    let returns_late = match waiting {
        Waiting::Synchronous => !(from.is_device(driver) && to.is_device(driver)),
        Waiting::Asynchronous => to.is_pageable(),
    };
    let submitted = stream.submit(driver, Work::Copy(Arc::new(Copy { from, to, bytes, is_peer })))?;
    finish(driver, &stream, submitted, returns_late)
}

fn finish(driver: &'static Driver, stream: &Stream, submitted: Submitted, waits: bool) -> Result {
    if let (Submitted::Queued(completion), true) = (submitted, waits) {
        join(driver, &completion);
        driver.check(&stream.context)?;
    }
    Ok(())
}

fn join(driver: &Driver, completion: &Completion) {
    driver.machine.join(&completion.wait().moment);
}

/// All fills.
pub(crate) fn fill(address: u64, value: &[u8], count: u64, stream: u64, waiting: Waiting) -> Result {
    let driver = driver()?;
    let stream = driver.stream(stream)?;
    if count == 0 {
        return Ok(());
    }
    if waiting == Waiting::Synchronous {
        crate::capture::check_legacy(driver, &stream.context)?;
        crate::capture::check_unsafe_call(driver)?;
    }
    let bytes = count.checked_mul(value.len() as u64).ok_or(Code::INVALID_VALUE)?;
    if !address.is_multiple_of(value.len() as u64) {
        return Err(Code::INVALID_VALUE);
    }
    let side = Side::new(driver, HostRange::new(address, bytes), Expected::Device)?;
    let submitted = stream.submit(driver, Work::Fill(Fill { address, value: value.to_vec(), count }))?;
    // Between a device and itself a call comes back at once, as documented.
    finish(driver, &stream, submitted, waiting == Waiting::Synchronous && !side.is_device(driver))
}

fn failure(error: &MemoryError, what: &str) -> Failure {
    let code = match error {
        MemoryError::Race(_) => Code::LAUNCH_FAILED,
        _ => Code::ILLEGAL_ADDRESS,
    };
    Failure { code: code.0, text: format!("{what}: {error}") }
}

/// Whether a context's operations may touch memory.
fn check_reach(driver: &Driver, context: &Context, side: &Side, what: &str) -> std::result::Result<(), Failure> {
    let Side::Known(address) = side else { return Ok(()) };
    let Some((MemoryKind::Device, device, ..)) = driver.machine.allocation(*address) else { return Ok(()) };
    let device = device as usize;
    let reaches = device == context.device
        || (lock(&context.state).peers.contains(&device) && !driver.faults().lies(context.device, device));
    let is_placed = region_of(driver, *address).is_none() && crate::virtual_memory::is_mapped(driver, *address);
    let allowed = if is_placed { driver.machine.is_granted(*address, context.device as u32) } else { reaches };
    if allowed {
        return Ok(());
    }
    let text = format!(
        "{what} touches device {device}'s memory at {address:#x} without access from device {}",
        context.device
    );
    Err(Failure { code: Code::ILLEGAL_ADDRESS.0, text })
}

/// The stream has come to a copy.
pub(crate) fn run_copy(driver: &Driver, context: &Context, copy: &Copy) -> std::result::Result<(), Failure> {
    if !copy.is_peer {
        check_reach(driver, context, &copy.from, "a copy")?;
        check_reach(driver, context, &copy.to, "a copy")?;
    }
    let staged = |bytes: Vec<u8>| Arc::new(bytes);
    let source = match &copy.from {
        Side::Pageable(range) => Side::Staged(staged(range.read())),
        other => other.clone(),
    };
    let machine = &driver.machine;
    let result = match (&source, &copy.to) {
        (Side::Known(from), Side::Known(to)) => machine.copy(*from, *to, copy.bytes),
        (Side::Known(from), Side::Pageable(to)) => {
            let mut bytes = vec![0; copy.bytes as usize];
            machine.read(*from, &mut bytes).inspect(|()| to.write(&bytes))
        }
        (Side::Staged(bytes), Side::Known(to)) => machine.write(*to, bytes),
        (Side::Staged(bytes), Side::Pageable(to)) => {
            to.write(bytes);
            Ok(())
        }
        (Side::Pageable(_), _) | (_, Side::Staged(_)) => Ok(()),
    };
    result.map_err(|error| failure(&error, "a copy"))
}

/// The stream has come to a fill.
pub(crate) fn run_fill(driver: &Driver, context: &Context, fill: &Fill) -> std::result::Result<(), Failure> {
    check_reach(driver, context, &Side::Known(fill.address), "a memset")?;
    driver.machine.fill(fill.address, &fill.value, fill.count).map_err(|error| failure(&error, "a memset"))
}
