//! Virtual memory and multicast: reservations, physical memory, mappings with access rights of their own, multicast objects.
//!
//! The machine's memory lies at real addresses. A reservation takes so many; physical memory is placed there when it is mapped,
//! and its bytes are put aside when it is unmapped while its handle lives on. So physical memory can be mapped at one address at a time.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

use softgpu::{MemoryKind, Reservation};

use crate::code::{Code, Result};
use crate::device::can_access;
use crate::driver::{Driver, HandleKind, driver, lock};

/// What sizes and addresses are multiples of.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// All of it.
#[derive(Default)]
pub(crate) struct VirtualMemory {
    reservations: BTreeMap<u64, Reservation>,
    mappings: BTreeMap<u64, Mapping>,
    objects: HashMap<u64, Object>,
}

struct Mapping {
    bytes: u64,
    object: u64,
}

/// What a handle names; it goes away when nobody holds it and it is not mapped.
struct Object {
    bytes: u64,
    references: u32,
    mapped_at: Option<u64>,
    kind: ObjectKind,
}

enum ObjectKind {
    Physical {
        device: usize,
        /// What was in it when it was unmapped.
        contents: Option<Vec<u8>>,
    },
    Multicast {
        device_count: usize,
        devices: Vec<usize>,
        /// Of each device: where in the object, which memory and where in it, how many bytes.
        bindings: Vec<Binding>,
    },
}

struct Binding {
    device: usize,
    at: u64,
    memory: u64,
    memory_at: u64,
    bytes: u64,
}

fn check_size(bytes: u64) -> Result {
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) { Err(Code::INVALID_VALUE) } else { Ok(()) }
}

/// Whether memory is mapped at an address.
pub(crate) fn is_mapped(driver: &Driver, address: u64) -> bool {
    let all = lock(&driver.virtual_memory);
    all.mappings.range(..=address).next_back().is_some_and(|(&base, mapping)| address - base < mapping.bytes)
}

/// `cuMemAddressReserve`.
pub(crate) fn reserve(bytes: u64, alignment: u64, flags: u64) -> Result<u64> {
    let driver = driver()?;
    check_size(bytes)?;
    if flags != 0 || (alignment != 0 && !alignment.is_power_of_two()) {
        return Err(Code::INVALID_VALUE);
    }
    let reserved = driver.machine.reserve(bytes, alignment.max(GRANULARITY)).map_err(|_| Code::OUT_OF_MEMORY)?;
    let address = reserved.address();
    lock(&driver.virtual_memory).reservations.insert(address, reserved);
    Ok(address)
}

/// `cuMemAddressFree`.
pub(crate) fn free_address(address: u64, bytes: u64) -> Result {
    let driver = driver()?;
    let mut all = lock(&driver.virtual_memory);
    let found = all.reservations.get(&address).filter(|reserved| reserved.bytes() == bytes);
    found.ok_or(Code::INVALID_VALUE)?;
    if all.mappings.range(address..address + bytes).next().is_some() {
        return Err(Code::INVALID_VALUE);
    }
    all.reservations.remove(&address);
    Ok(())
}

/// `cuMemCreate`.
pub(crate) fn create(bytes: u64, ordinal: i32) -> Result<u64> {
    let driver = driver()?;
    check_size(bytes)?;
    let device = driver.device(ordinal)?;
    if driver.faults().allocation_fails(Some(device), bytes) {
        return Err(Code::OUT_OF_MEMORY);
    }
    crate::memory::take_device_bytes(driver, device, bytes)?;
    let handle = driver.new_handle(HandleKind::Physical);
    let kind = ObjectKind::Physical { device, contents: None };
    lock(&driver.virtual_memory).objects.insert(handle, Object { bytes, references: 1, mapped_at: None, kind });
    Ok(handle)
}

impl VirtualMemory {
    /// Takes an object away if nobody holds it any more.
    fn collect(&mut self, driver: &Driver, handle: u64) {
        let is_bound = self.objects.values().any(|object| match &object.kind {
            ObjectKind::Multicast { bindings, .. } => bindings.iter().any(|binding| binding.memory == handle),
            ObjectKind::Physical { .. } => false,
        });
        let Some(object) = self.objects.get(&handle) else { return };
        if object.references > 0 || object.mapped_at.is_some() || is_bound {
            return;
        }
        let Some(object) = self.objects.remove(&handle) else { return };
        match object.kind {
            ObjectKind::Physical { device, .. } => {
                driver.devices[device].used_bytes.fetch_sub(object.bytes, Ordering::AcqRel);
            }
            ObjectKind::Multicast { bindings, .. } => {
                for binding in bindings {
                    self.collect(driver, binding.memory);
                }
            }
        }
    }

    /// Tells the machine which memory each mapped multicast object reaches: nothing until every device has bound some.
    fn update_groups(&self, driver: &Driver) {
        for object in self.objects.values() {
            let ObjectKind::Multicast { device_count, devices, bindings } = &object.kind else { continue };
            let Some(group) = object.mapped_at else { continue };
            let member = |binding: &Binding| {
                let memory = self.objects.get(&binding.memory)?.mapped_at?;
                Some((memory + binding.memory_at).wrapping_sub(binding.at))
            };
            let mut members: Vec<u64> = Vec::new();
            for device in devices {
                let own = bindings.iter().filter(|binding| binding.device == *device).filter_map(member);
                members.extend(own.take(1));
            }
            if members.len() < *device_count {
                members.clear();
            }
            // The group is there as long as it is mapped.
            let _ = driver.machine.set_members(group, &members);
        }
    }

    fn object(&mut self, handle: u64) -> Result<&mut Object> {
        self.objects.get_mut(&handle).ok_or(Code::INVALID_VALUE)
    }
}

/// `cuMemRelease`.
pub(crate) fn release(handle: u64) -> Result {
    let driver = driver()?;
    let mut all = lock(&driver.virtual_memory);
    let object = all.object(handle)?;
    object.references = object.references.checked_sub(1).ok_or(Code::INVALID_VALUE)?;
    all.collect(driver, handle);
    Ok(())
}

/// `cuMemRetainAllocationHandle`.
pub(crate) fn retain(address: u64) -> Result<u64> {
    let driver = driver()?;
    let mut all = lock(&driver.virtual_memory);
    let (&base, mapping) = all.mappings.range(..=address).next_back().ok_or(Code::INVALID_VALUE)?;
    if address - base >= mapping.bytes {
        return Err(Code::INVALID_VALUE);
    }
    let handle = mapping.object;
    all.object(handle)?.references += 1;
    Ok(handle)
}

/// `cuMemMap`.
pub(crate) fn map(address: u64, bytes: u64, offset: u64, handle: u64, flags: u64) -> Result {
    let driver = driver()?;
    check_size(bytes)?;
    if offset != 0 || flags != 0 || !address.is_multiple_of(GRANULARITY) {
        return Err(Code::INVALID_VALUE);
    }
    let mut all = lock(&driver.virtual_memory);
    let (&base, reserved) = all.reservations.range(..=address).next_back().ok_or(Code::INVALID_VALUE)?;
    let reserved = reserved.clone();
    let object = all.object(handle)?;
    if bytes > object.bytes || address - base + bytes > reserved.bytes() {
        return Err(Code::INVALID_VALUE);
    }
    if object.mapped_at.is_some() {
        return Err(Code::NOT_SUPPORTED);
    }
    let (kind, device) = match &object.kind {
        ObjectKind::Physical { device, .. } => (MemoryKind::Device, *device),
        ObjectKind::Multicast { .. } => (MemoryKind::Multicast, 0),
    };
    let placed = driver.machine.place(&reserved, address - base, bytes, kind, device as u32);
    placed.map_err(|_| Code::INVALID_VALUE)?;
    object.mapped_at = Some(address);
    if let ObjectKind::Physical { contents, .. } = &mut object.kind
        && let Some(contents) = contents.take()
    {
        let put_back = contents.len().min(bytes as usize);
        driver.machine.write(address, &contents[..put_back]).map_err(|_| Code::UNKNOWN)?;
    }
    all.mappings.insert(address, Mapping { bytes, object: handle });
    all.update_groups(driver);
    Ok(())
}

/// `cuMemUnmap`: whole mappings.
pub(crate) fn unmap(address: u64, bytes: u64) -> Result {
    let driver = driver()?;
    for device in 0..driver.devices.len() {
        driver.wait_for_kernels(device);
    }
    let mut all = lock(&driver.virtual_memory);
    let inside = mappings_in(&all, address, bytes)?;
    for base in inside {
        let Some(mapping) = all.mappings.remove(&base) else { continue };
        let object = all.object(mapping.object)?;
        object.mapped_at = None;
        if let ObjectKind::Physical { contents, .. } = &mut object.kind
            && object.references > 0
        {
            let mut bytes = vec![0; mapping.bytes as usize];
            *contents = driver.machine.read(base, &mut bytes).is_ok().then_some(bytes);
        }
        let _ = driver.machine.free(base);
        all.collect(driver, mapping.object);
    }
    all.update_groups(driver);
    Ok(())
}

/// The mappings that make up a range, without gap or rest.
fn mappings_in(all: &VirtualMemory, address: u64, bytes: u64) -> Result<Vec<u64>> {
    let end = address.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
    let mut at = address;
    let mut inside = Vec::new();
    for (&base, mapping) in all.mappings.range(address..end) {
        if base != at {
            return Err(Code::INVALID_VALUE);
        }
        inside.push(base);
        at += mapping.bytes;
    }
    if at == end && !inside.is_empty() { Ok(inside) } else { Err(Code::INVALID_VALUE) }
}

/// `cuMemSetAccess` for one device: no access or all of it.
pub(crate) fn set_access(address: u64, bytes: u64, ordinal: i32, flags: i32) -> Result {
    let driver = driver()?;
    let device = driver.device(ordinal)?;
    let allowed = match flags {
        0 => false,
        3 => true,
        // Read-only mappings are not made here.
        1 => return Err(Code::NOT_SUPPORTED),
        _ => return Err(Code::INVALID_VALUE),
    };
    let all = lock(&driver.virtual_memory);
    let inside = mappings_in(&all, address, bytes)?;
    for &base in &inside {
        let Some(object) = all.mappings.get(&base).and_then(|mapping| all.objects.get(&mapping.object)) else {
            continue;
        };
        match &object.kind {
            ObjectKind::Physical { device: owner, .. } if allowed && *owner != device => {
                if !can_access(driver, device, *owner) {
                    return Err(Code::INVALID_DEVICE);
                }
                let refused = driver.faults().refuses_enable(device, *owner);
                if let Some(code) = refused {
                    return Err(Code(code));
                }
            }
            ObjectKind::Multicast { devices, .. } if allowed && !devices.contains(&device) => {
                return Err(Code::INVALID_DEVICE);
            }
            _ => {}
        }
    }
    for base in inside {
        let lies = match driver.machine.allocation(base) {
            Some((MemoryKind::Device, owner, ..)) => driver.faults().lies(device, owner as usize),
            _ => false,
        };
        driver.machine.grant(base, device as u32, allowed && !lies).map_err(|_| Code::INVALID_VALUE)?;
    }
    Ok(())
}

/// `cuMemGetAccess`: the flags.
pub(crate) fn access(address: u64, ordinal: i32) -> Result<u64> {
    let driver = driver()?;
    let device = driver.device(ordinal)?;
    if !is_mapped(driver, address) {
        return Err(Code::INVALID_VALUE);
    }
    Ok(if driver.machine.is_granted(address, device as u32) { 3 } else { 0 })
}

/// `cuMulticastCreate`.
pub(crate) fn create_multicast(device_count: u32, bytes: u64) -> Result<u64> {
    let driver = driver()?;
    check_size(bytes)?;
    let able = (0..driver.devices.len()).filter(|&device| driver.topology.has_multicast(device)).count();
    if device_count == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if able < device_count as usize {
        return Err(Code::NOT_SUPPORTED);
    }
    let handle = driver.new_handle(HandleKind::Physical);
    let kind = ObjectKind::Multicast { device_count: device_count as usize, devices: Vec::new(), bindings: Vec::new() };
    lock(&driver.virtual_memory).objects.insert(handle, Object { bytes, references: 1, mapped_at: None, kind });
    Ok(handle)
}

/// `cuMulticastGetGranularity`.
pub(crate) fn multicast_granularity() -> Result<u64> {
    let driver = driver()?;
    if (0..driver.devices.len()).any(|device| driver.topology.has_multicast(device)) {
        Ok(GRANULARITY)
    } else {
        Err(Code::NOT_SUPPORTED)
    }
}

/// `cuMulticastAddDevice`.
pub(crate) fn add_device(handle: u64, ordinal: i32) -> Result {
    let driver = driver()?;
    let device = driver.device(ordinal)?;
    if !driver.topology.has_multicast(device) {
        return Err(Code::NOT_SUPPORTED);
    }
    let mut all = lock(&driver.virtual_memory);
    let ObjectKind::Multicast { device_count, devices, .. } = &mut all.object(handle)?.kind else {
        return Err(Code::INVALID_VALUE);
    };
    if devices.contains(&device) || devices.len() == *device_count {
        return Err(Code::INVALID_VALUE);
    }
    devices.push(device);
    Ok(())
}

/// `cuMulticastBindMem`.
pub(crate) fn bind_memory(handle: u64, at: u64, memory: u64, memory_at: u64, bytes: u64, flags: u64) -> Result {
    let driver = driver()?;
    check_size(bytes)?;
    if flags != 0 || !at.is_multiple_of(GRANULARITY) || !memory_at.is_multiple_of(GRANULARITY) {
        return Err(Code::INVALID_VALUE);
    }
    let mut all = lock(&driver.virtual_memory);
    let source = all.object(memory)?;
    let ObjectKind::Physical { device, .. } = source.kind else { return Err(Code::INVALID_VALUE) };
    if memory_at.checked_add(bytes).is_none_or(|end| end > source.bytes) {
        return Err(Code::INVALID_VALUE);
    }
    let object = all.object(handle)?;
    if at.checked_add(bytes).is_none_or(|end| end > object.bytes) {
        return Err(Code::INVALID_VALUE);
    }
    let ObjectKind::Multicast { device_count, devices, bindings } = &mut object.kind else {
        return Err(Code::INVALID_VALUE);
    };
    if devices.len() < *device_count {
        return Err(Code::ILLEGAL_STATE);
    }
    if !devices.contains(&device) {
        return Err(Code::INVALID_DEVICE);
    }
    for other in bindings.iter().filter(|other| other.device == device) {
        if at < other.at + other.bytes && other.at < at + bytes {
            return Err(Code::INVALID_VALUE);
        }
        // One distance from the object's addresses to the memory's serves all of a device.
        if other.memory != memory || memory_at.wrapping_sub(at) != other.memory_at.wrapping_sub(other.at) {
            return Err(Code::NOT_SUPPORTED);
        }
    }
    bindings.push(Binding { device, at, memory, memory_at, bytes });
    all.update_groups(driver);
    Ok(())
}

/// `cuMulticastBindAddr`.
pub(crate) fn bind_address(handle: u64, at: u64, address: u64, bytes: u64, flags: u64) -> Result {
    let driver = driver()?;
    let (memory, memory_at) = {
        let all = lock(&driver.virtual_memory);
        let (&base, mapping) = all.mappings.range(..=address).next_back().ok_or(Code::INVALID_VALUE)?;
        (mapping.object, address - base)
    };
    bind_memory(handle, at, memory, memory_at, bytes, flags)
}

/// `cuMulticastUnbind`.
pub(crate) fn unbind(handle: u64, ordinal: i32, at: u64, bytes: u64) -> Result {
    let driver = driver()?;
    let device = driver.device(ordinal)?;
    driver.wait_for_kernels(device);
    let mut all = lock(&driver.virtual_memory);
    let ObjectKind::Multicast { bindings, .. } = &mut all.object(handle)?.kind else {
        return Err(Code::INVALID_VALUE);
    };
    let is_it = |binding: &Binding| (binding.device, binding.at, binding.bytes) == (device, at, bytes);
    let found = bindings.iter().position(is_it).ok_or(Code::INVALID_VALUE)?;
    let memory = bindings.remove(found).memory;
    all.collect(driver, memory);
    all.update_groups(driver);
    Ok(())
}
