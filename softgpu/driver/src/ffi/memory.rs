//! Memory, copies, virtual memory, multicast objects, pools.

use std::ffi::{c_int, c_uint, c_ulonglong, c_ushort, c_void};

use super::raw::{HostRange, In, Out};
use super::{CUdevice, CUdeviceptr, Handle, functions};
use crate::code::{Code, Result};
use crate::driver::{RegionKind, driver};
use crate::memory::{self, Expected, PointerAttribute, Waiting};
use crate::virtual_memory;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUmemLocation {
    /// 1 for a device.
    pub kind: c_int,
    /// Which.
    pub id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationProp {
    /// 1: pinned.
    pub kind: c_int,
    /// Handles to be shared with other processes; there are none here.
    pub requested_handle_types: c_int,
    /// Where.
    pub location: CUmemLocation,
    /// Not used.
    pub win32_handle_meta_data: *mut c_void,
    /// Compression, GPUDirect.
    pub compression: [u8; 2],
    /// Usage.
    pub usage: c_ushort,
    /// Zero.
    pub reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUmemAccessDesc {
    /// Who.
    pub location: CUmemLocation,
    /// 0 for no access, 3 for all.
    pub flags: c_int,
}

/// `CUmulticastObjectProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUmulticastObjectProp {
    /// Devices that will take part.
    pub device_count: c_uint,
    /// Bytes.
    pub bytes: usize,
    /// Handles to be shared with other processes; there are none here.
    pub handle_types: c_ulonglong,
    /// Zero.
    pub flags: c_ulonglong,
}

fn put_attribute(place: u64, attribute: PointerAttribute) -> Result {
    if place == 0 {
        return Err(Code::INVALID_VALUE);
    }
    match attribute {
        PointerAttribute::U64(value) => HostRange::new(place, 8).write(&value.to_ne_bytes()),
        PointerAttribute::U32(value) => HostRange::new(place, 4).write(&value.to_ne_bytes()),
        PointerAttribute::Bool(value) => HostRange::new(place, 1).write(&[u8::from(value)]),
        PointerAttribute::Tokens(first, second) => {
            HostRange::new(place, 8).write(&first.to_ne_bytes());
            HostRange::new(place + 8, 4).write(&second.to_ne_bytes());
        }
    }
    Ok(())
}

/// What an attribute is for a pointer that the driver does not know.
fn nothing(attribute: c_int) -> PointerAttribute {
    match attribute {
        2 | 9 | 16 => PointerAttribute::U32(if attribute == 9 { -2i32 as u32 } else { 0 }),
        6 | 8 | 10 | 13 | 15 | 21 => PointerAttribute::Bool(false),
        _ => PointerAttribute::U64(0),
    }
}

type Direction = (Expected, Expected);
const TO_DEVICE: Direction = (Expected::Host, Expected::Device);
const TO_HOST: Direction = (Expected::Device, Expected::Host);
const ON_DEVICES: Direction = (Expected::Device, Expected::Device);
const ANY: Direction = (Expected::Any, Expected::Any);

fn copy(to: u64, from: u64, bytes: usize, kinds: Direction, stream: Handle, waiting: Waiting) -> Result {
    let bytes = bytes as u64;
    memory::copy((HostRange::new(from, bytes), kinds.0), (HostRange::new(to, bytes), kinds.1), stream, waiting, false)
}

fn copy_peer(to: u64, from: u64, contexts: [Handle; 2], bytes: usize, stream: Handle, waiting: Waiting) -> Result {
    let driver = driver()?;
    for context in contexts {
        driver.check(&*driver.context(context)?)?;
    }
    let bytes = bytes as u64;
    let (from, to) = (HostRange::new(from, bytes), HostRange::new(to, bytes));
    memory::copy((from, Expected::Device), (to, Expected::Device), stream, waiting, true)
}

use Waiting::{Asynchronous, Synchronous};

functions! { list:
    fn cuMemAlloc_v2(address: Out<CUdeviceptr>, bytes: usize) {
        address.check()?;
        address.put(memory::allocate(bytes as u64, RegionKind::Device)?)
    }
    fn cuMemAllocPitch_v2(
        address: Out<CUdeviceptr>, pitch: Out<usize>, width: usize, height: usize, _element_bytes: c_uint
    ) {
        address.check()?;
        let row = width.checked_next_multiple_of(512).ok_or(Code::INVALID_VALUE)?;
        let bytes = row.checked_mul(height).ok_or(Code::INVALID_VALUE)?;
        pitch.put(row)?;
        address.put(memory::allocate(bytes as u64, RegionKind::Device)?)
    }
    fn cuMemFree_v2(address: CUdeviceptr) {
        memory::free(address)
    }
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (left, all) = memory::information()?;
        free.put(left as usize)?;
        total.put(all as usize)
    }
    fn cuMemHostAlloc(address: Out<u64>, bytes: usize, flags: c_uint) {
        address.check()?;
        address.put(memory::allocate_host(bytes as u64, flags)?)
    }
    fn cuMemAllocHost_v2(address: Out<u64>, bytes: usize) {
        address.check()?;
        address.put(memory::allocate_host(bytes as u64, 0)?)
    }
    fn cuMemFreeHost(address: u64) {
        memory::free_host(address)
    }
    fn cuMemHostGetDevicePointer_v2(address: Out<CUdeviceptr>, host: u64, flags: c_uint) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        memory::host_flags(host)?;
        address.put(host)
    }
    fn cuMemHostGetFlags(flags: Out<c_uint>, host: u64) {
        flags.put(memory::host_flags(host)?)
    }
    fn cuMemHostRegister_v2(host: u64, bytes: usize, flags: c_uint) {
        memory::register(HostRange::new(host, bytes as u64), flags)
    }
    fn cuMemHostUnregister(host: u64) {
        memory::unregister(host)
    }
    fn cuPointerGetAttribute(data: In<c_void>, attribute: c_int, address: CUdeviceptr) {
        if data.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        put_attribute(data.address(), memory::pointer_attribute(attribute, address)?)
    }
    fn cuPointerGetAttributes(
        count: c_uint, attributes: In<c_int>, data: In<In<c_void>>, address: CUdeviceptr
    ) {
        for (attribute, place) in attributes.all(count as usize)?.into_iter().zip(data.all(count as usize)?) {
            if !(1..=21).contains(&attribute) || place.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            let found = memory::pointer_attribute(attribute, address);
            put_attribute(place.address(), found.unwrap_or_else(|_| nothing(attribute)))?;
        }
        Ok(())
    }
    fn cuPointerSetAttribute(_value: In<c_void>, attribute: c_int, address: CUdeviceptr) {
        memory::pointer_attribute(attribute, address)?;
        if attribute == 6 { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
    fn cuMemGetAddressRange_v2(base: Out<CUdeviceptr>, bytes: Out<usize>, address: CUdeviceptr) {
        let (start, length) = memory::address_range(address)?;
        base.put_if(start);
        bytes.put_if(length as usize);
        Ok(())
    }
    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: u64, bytes: usize) {
        copy(to, from, bytes, TO_DEVICE, 0, Synchronous)
    }
    fn cuMemcpyDtoH_v2(to: u64, from: CUdeviceptr, bytes: usize) {
        copy(to, from, bytes, TO_HOST, 0, Synchronous)
    }
    fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        copy(to, from, bytes, ON_DEVICES, 0, Synchronous)
    }
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: u64, bytes: usize, stream: Handle) {
        copy(to, from, bytes, TO_DEVICE, stream, Asynchronous)
    }
    fn cuMemcpyDtoHAsync_v2(to: u64, from: CUdeviceptr, bytes: usize, stream: Handle) {
        copy(to, from, bytes, TO_HOST, stream, Asynchronous)
    }
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: Handle) {
        copy(to, from, bytes, ON_DEVICES, stream, Asynchronous)
    }
    fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        copy(to, from, bytes, ANY, 0, Synchronous)
    }
    fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: Handle) {
        copy(to, from, bytes, ANY, stream, Asynchronous)
    }
    fn cuMemcpyPeer(
        to: CUdeviceptr, to_context: Handle, from: CUdeviceptr, from_context: Handle, bytes: usize
    ) {
        copy_peer(to, from, [to_context, from_context], bytes, 0, Synchronous)
    }
    fn cuMemcpyPeerAsync(
        to: CUdeviceptr, to_context: Handle, from: CUdeviceptr, from_context: Handle, bytes: usize, stream: Handle
    ) {
        copy_peer(to, from, [to_context, from_context], bytes, stream, Asynchronous)
    }
    fn cuMemsetD8_v2(address: CUdeviceptr, value: u8, count: usize) {
        memory::fill(address, &[value], count as u64, 0, Synchronous)
    }
    fn cuMemsetD16_v2(address: CUdeviceptr, value: c_ushort, count: usize) {
        memory::fill(address, &value.to_ne_bytes(), count as u64, 0, Synchronous)
    }
    fn cuMemsetD32_v2(address: CUdeviceptr, value: c_uint, count: usize) {
        memory::fill(address, &value.to_ne_bytes(), count as u64, 0, Synchronous)
    }
    fn cuMemsetD8Async(address: CUdeviceptr, value: u8, count: usize, stream: Handle) {
        memory::fill(address, &[value], count as u64, stream, Asynchronous)
    }
    fn cuMemsetD16Async(address: CUdeviceptr, value: c_ushort, count: usize, stream: Handle) {
        memory::fill(address, &value.to_ne_bytes(), count as u64, stream, Asynchronous)
    }
    fn cuMemsetD32Async(address: CUdeviceptr, value: c_uint, count: usize, stream: Handle) {
        memory::fill(address, &value.to_ne_bytes(), count as u64, stream, Asynchronous)
    }
    fn cuMemAddressReserve(
        address: Out<CUdeviceptr>, bytes: usize, alignment: usize, _hint: CUdeviceptr, flags: c_ulonglong
    ) {
        address.check()?;
        address.put(virtual_memory::reserve(bytes as u64, alignment as u64, flags)?)
    }
    fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) {
        virtual_memory::free_address(address, bytes as u64)
    }
    fn cuMemCreate(
        handle: Out<Handle>, bytes: usize, properties: In<CUmemAllocationProp>, flags: c_ulonglong
    ) {
        handle.check()?;
        let properties = properties.get(0)?;
        if flags != 0 || properties.kind != 1 {
            return Err(Code::INVALID_VALUE);
        }
        if properties.location.kind != 1 || properties.requested_handle_types != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        handle.put(virtual_memory::create(bytes as u64, properties.location.id)?)
    }
    fn cuMemRelease(handle: Handle) {
        virtual_memory::release(handle)
    }
    fn cuMemRetainAllocationHandle(handle: Out<Handle>, address: u64) {
        handle.check()?;
        handle.put(virtual_memory::retain(address)?)
    }
    fn cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: Handle, flags: c_ulonglong) {
        virtual_memory::map(address, bytes as u64, offset as u64, handle, flags)
    }
    fn cuMemUnmap(address: CUdeviceptr, bytes: usize) {
        virtual_memory::unmap(address, bytes as u64)
    }
    fn cuMemSetAccess(address: CUdeviceptr, bytes: usize, accesses: In<CUmemAccessDesc>, count: usize) {
        for access in accesses.all(count)? {
            if access.location.kind != 1 {
                return Err(Code::NOT_SUPPORTED);
            }
            virtual_memory::set_access(address, bytes as u64, access.location.id, access.flags)?;
        }
        Ok(())
    }
    fn cuMemGetAccess(flags: Out<c_ulonglong>, location: In<CUmemLocation>, address: CUdeviceptr) {
        flags.put(virtual_memory::access(address, location.get(0)?.id)?)
    }
    fn cuMemGetAllocationGranularity(bytes: Out<usize>, properties: In<CUmemAllocationProp>, _option: c_int) {
        let driver = driver()?;
        driver.device(properties.get(0)?.location.id)?;
        bytes.put(virtual_memory::GRANULARITY as usize)
    }
    fn cuMulticastCreate(handle: Out<Handle>, properties: In<CUmulticastObjectProp>) {
        handle.check()?;
        let properties = properties.get(0)?;
        if properties.handle_types != 0 || properties.flags != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        handle.put(virtual_memory::create_multicast(properties.device_count, properties.bytes as u64)?)
    }
    fn cuMulticastAddDevice(handle: Handle, device: CUdevice) {
        virtual_memory::add_device(handle, device)
    }
    fn cuMulticastBindMem(
        handle: Handle, at: usize, memory: Handle, memory_at: usize, bytes: usize, flags: c_ulonglong
    ) {
        virtual_memory::bind_memory(handle, at as u64, memory, memory_at as u64, bytes as u64, flags)
    }
    fn cuMulticastBindAddr(handle: Handle, at: usize, address: CUdeviceptr, bytes: usize, flags: c_ulonglong) {
        virtual_memory::bind_address(handle, at as u64, address, bytes as u64, flags)
    }
    fn cuMulticastUnbind(handle: Handle, device: CUdevice, at: usize, bytes: usize) {
        virtual_memory::unbind(handle, device, at as u64, bytes as u64)
    }
    fn cuMulticastGetGranularity(bytes: Out<usize>, properties: In<CUmulticastObjectProp>, _option: c_int) {
        properties.get(0)?;
        bytes.put(virtual_memory::multicast_granularity()? as usize)
    }
    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: CUdevice) {
        pool.put(memory::pool_handle(driver()?.device(device)?))
    }
    fn cuDeviceGetMemPool(pool: Out<Handle>, device: CUdevice) {
        pool.put(memory::pool_handle(driver()?.device(device)?))
    }
    fn cuMemPoolSetAttribute(pool: Handle, _attribute: c_int, value: In<c_void>) {
        if value.is_null() { Err(Code::INVALID_VALUE) } else { memory::pool_device(pool).map(drop) }
    }
    fn cuMemPoolGetAttribute(pool: Handle, attribute: c_int, value: Out<u64>) {
        memory::pool_device(pool)?;
        // The first three are switches of 4 bytes, the rest sizes.
        if attribute <= 3 {
            return put_attribute(value.address(), PointerAttribute::U32(0));
        }
        value.put(0)
    }
    fn cuMemPoolTrimTo(pool: Handle, _bytes: usize) {
        memory::pool_device(pool).map(drop)
    }
    fn cuMemAllocAsync(address: Out<CUdeviceptr>, bytes: usize, stream: Handle) {
        address.check()?;
        address.put(memory::allocate_async(bytes as u64, stream)?)
    }
    fn cuMemAllocFromPoolAsync(address: Out<CUdeviceptr>, bytes: usize, pool: Handle, stream: Handle) {
        address.check()?;
        memory::pool_device(pool)?;
        address.put(memory::allocate_async(bytes as u64, stream)?)
    }
    fn cuMemFreeAsync(address: CUdeviceptr, stream: Handle) {
        memory::free_async(address, stream)
    }
}
