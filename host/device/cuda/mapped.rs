//! Memory that is mapped at addresses of its own (the driver's virtual memory management): that of one device, or a multicast object,
//! through which a switch reaches memory of several devices at once.

use super::result::Failure;
use super::safe::Device;
use super::sys;

/// Memory, and where it is mapped.
pub(crate) struct MappedMemory {
    /// In whose context the driver is called.
    device: Device,
    handle: sys::CUmemGenericAllocationHandle,
    /// Zero until it is reserved.
    address: u64,
    bytes: usize,
    is_mapped: bool,
}

impl MappedMemory {
    /// What sizes and places in a multicast object of these devices are multiples of.
    pub(crate) fn multicast_granularity(devices: &[Device]) -> Result<usize, Failure> {
        let properties = multicast_properties(devices, 0);
        let option = sys::CU_MULTICAST_GRANULARITY_MINIMUM;
        let mut bytes = 0;
        devices[0].with(|functions| {
            // SAFETY: the driver reads one struct and writes one number.
            unsafe { functions.cuMulticastGetGranularity(&raw mut bytes, &raw const properties, option) }
        })?;
        if bytes.is_power_of_two() { Ok(bytes) } else { Err(Failure::null("cuMulticastGetGranularity")) }
    }

    /// Memory of a device that each of `users` reaches, of which nothing is known; sizes and addresses are multiples of
    /// `granularity`.
    pub(crate) fn new(
        device: &Device,
        users: &[Device],
        bytes: usize,
        granularity: usize,
    ) -> Result<MappedMemory, Failure> {
        let mut properties = ZEROED_ALLOCATION;
        properties.type_ = sys::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = location(device);
        let mut handle = 0;
        device.with(|functions| {
            // SAFETY: the driver reads one struct and writes one handle.
            unsafe { functions.cuMemCreate(&raw mut handle, bytes, &raw const properties, 0) }
        })?;
        MappedMemory { device: device.clone(), handle, address: 0, bytes, is_mapped: false }.mapped(users, granularity)
    }

    /// A multicast object over these pieces, one of each device, that all devices reach.
    pub(crate) fn multicast(
        devices: &[Device],
        pieces: &[MappedMemory],
        granularity: usize,
    ) -> Result<MappedMemory, Failure> {
        let bytes = pieces[0].bytes;
        let properties = multicast_properties(devices, bytes);
        let mut handle = 0;
        devices[0].with(|functions| {
            // SAFETY: the driver reads one struct and writes one handle.
            unsafe { functions.cuMulticastCreate(&raw mut handle, &raw const properties) }
        })?;
        let object = MappedMemory { device: devices[0].clone(), handle, address: 0, bytes, is_mapped: false };
        // All devices first: the driver binds no memory before.
        for device in devices {
            // SAFETY: the object is this one's.
            device.with(|functions| unsafe { functions.cuMulticastAddDevice(handle, device.handle()) })?;
        }
        for (device, piece) in devices.iter().zip(pieces) {
            // SAFETY: both are alive, and of the same size; the piece is unmapped after the object.
            device.with(|functions| unsafe { functions.cuMulticastBindMem(handle, 0, piece.handle, 0, bytes, 0) })?;
        }
        object.mapped(devices, granularity)
    }

    /// As devices know it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The same, at an address.
    fn mapped(mut self, users: &[Device], granularity: usize) -> Result<MappedMemory, Failure> {
        let device = self.device.clone();
        device.with(|functions| {
            // SAFETY: the driver writes one address; it is mapped as a whole, and given back in `drop`.
            unsafe {
                functions.cuMemAddressReserve(&raw mut self.address, self.bytes, granularity, 0, 0)?;
                functions.cuMemMap(self.address, self.bytes, 0, self.handle, 0)?;
            }
            self.is_mapped = true;
            let access = |user| sys::CUmemAccessDesc {
                location: location(user),
                flags: sys::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            let accesses: Vec<sys::CUmemAccessDesc> = users.iter().map(access).collect();
            // SAFETY: the driver reads so many structs.
            unsafe { functions.cuMemSetAccess(self.address, self.bytes, accesses.as_ptr(), accesses.len()) }
        })?;
        Ok(self)
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        let (device, handle) = (self.device.clone(), self.handle);
        let (address, bytes, is_mapped) = (self.address, self.bytes, self.is_mapped);
        // Every device may reach it. What is retired first is given back first: a multicast object before what is bound to it.
        self.device.retire(&[], move || {
            device.with(|functions| {
                // SAFETY: what has been made is undone once, in the opposite order; who used it is done with it.
                unsafe {
                    if is_mapped {
                        functions.cuMemUnmap(address, bytes)?;
                    }
                    if address != 0 {
                        functions.cuMemAddressFree(address, bytes)?;
                    }
                    functions.cuMemRelease(handle)
                }
            })
        });
    }
}

/// In a device's memory.
fn location(device: &Device) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CU_MEM_LOCATION_TYPE_DEVICE, id: device.handle() }
}

fn multicast_properties(devices: &[Device], bytes: usize) -> sys::CUmulticastObjectProp {
    sys::CUmulticastObjectProp { numDevices: devices.len() as u32, size: bytes, handleTypes: 0, flags: 0 }
}

/// Nothing asked for.
// SAFETY: it is made of numbers and of a pointer that may be null.
const ZEROED_ALLOCATION: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
