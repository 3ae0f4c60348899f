//! Devices and contexts.

use std::ffi::{c_char, c_int, c_uint};

use super::raw::{In, Out};
use super::{CUdevice, Handle, functions};
use crate::code::Code;
use crate::device;
use crate::driver::{current_handle, driver, initialise, lock, pop_current, push_current, set_current};

functions! { list:
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        initialise()
    }
    fn cuDriverGetVersion(version: Out<c_int>) {
        // The one call that needs no `cuInit`; without it, the version of the topology to come is not known yet.
        version.put(driver().map_or(12090, |driver| driver.topology.driver_version))
    }
    fn cuDeviceGetCount(count: Out<c_int>) {
        count.put(driver()?.devices.len() as c_int)
    }
    fn cuDeviceGet(device: Out<CUdevice>, ordinal: c_int) {
        driver()?.device(ordinal)?;
        device.put(ordinal)
    }
    fn cuDeviceGetName(name: Out<c_char>, length: c_int, device: CUdevice) {
        let driver = driver()?;
        let device = driver.device(device)?;
        name.check()?;
        let capacity = usize::try_from(length).ok().filter(|&length| length > 0).ok_or(Code::INVALID_VALUE)?;
        name.put_text(driver.topology.devices[device].name.as_bytes(), capacity);
        Ok(())
    }
    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: CUdevice) {
        value.put(device::attribute(attribute, device)?)
    }
    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: CUdevice) {
        uuid.put(device::uuid(device)?)
    }
    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: CUdevice) {
        uuid.put(device::uuid(device)?)
    }
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: CUdevice) {
        let driver = driver()?;
        bytes.put(driver.topology.devices[driver.device(device)?].memory_bytes as usize)
    }
    fn cuDeviceGetPCIBusId(id: Out<c_char>, length: c_int, device: CUdevice) {
        id.check()?;
        let text = device::bus_id(device)?;
        let capacity = usize::try_from(length).ok().filter(|&length| length > text.len()).ok_or(Code::INVALID_VALUE)?;
        id.put_text(text.as_bytes(), capacity);
        Ok(())
    }
    fn cuDeviceGetByPCIBusId(device: Out<CUdevice>, id: In<c_char>) {
        let text = id.text()?.to_str().map_err(|_| Code::INVALID_VALUE)?;
        device.put(device::by_bus_id(text)?)
    }
    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: CUdevice, peer: CUdevice) {
        let driver = driver()?;
        let (device, peer) = (driver.device(device)?, driver.device(peer)?);
        can.put(c_int::from(device::can_access(driver, device, peer)))
    }
    fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_int, device: CUdevice, peer: CUdevice) {
        value.put(device::peer_attribute(attribute, device, peer)?)
    }
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: CUdevice) {
        let driver = driver()?;
        let device = driver.device(device)?;
        context.check()?;
        context.put(driver.retain_primary(device)?)
    }
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) {
        let driver = driver()?;
        driver.release_primary(driver.device(device)?, false)
    }
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice) {
        let driver = driver()?;
        driver.release_primary(driver.device(device)?, true)
    }
    fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint) {
        let driver = driver()?;
        lock(&driver.devices[driver.device(device)?].primary).flags = flags;
        Ok(())
    }
    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: Out<c_uint>, active: Out<c_int>) {
        let driver = driver()?;
        let primary = lock(&driver.devices[driver.device(device)?].primary);
        flags.put(primary.flags)?;
        active.put(c_int::from(primary.references > 0))
    }
    fn cuCtxCreate_v2(context: Out<Handle>, _flags: c_uint, device: CUdevice) {
        let driver = driver()?;
        context.check()?;
        let created = driver.create_context(driver.device(device)?)?;
        push_current(created.handle);
        context.put(created.handle)
    }
    fn cuCtxCreate_v3(
        context: Out<Handle>, _affinities: In<c_int>, affinity_count: c_int, _flags: c_uint, device: CUdevice
    ) {
        let driver = driver()?;
        context.check()?;
        if affinity_count != 0 {
            return Err(Code::UNSUPPORTED_EXEC_AFFINITY);
        }
        let created = driver.create_context(driver.device(device)?)?;
        push_current(created.handle);
        context.put(created.handle)
    }
    fn cuCtxCreate_v4(context: Out<Handle>, parameters: In<c_int>, _flags: c_uint, device: CUdevice) {
        let driver = driver()?;
        context.check()?;
        if !parameters.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        let created = driver.create_context(driver.device(device)?)?;
        push_current(created.handle);
        context.put(created.handle)
    }
    fn cuCtxDestroy_v2(context: Handle) {
        let driver = driver()?;
        let found = driver.context(context)?;
        if found.is_primary {
            return Err(Code::INVALID_CONTEXT);
        }
        if current_handle() == context {
            pop_current();
        }
        driver.destroy_context(&found);
        Ok(())
    }
    fn cuCtxSetCurrent(context: Handle) {
        let driver = driver()?;
        if context != 0 {
            driver.context(context)?;
        }
        set_current(context);
        Ok(())
    }
    fn cuCtxGetCurrent(context: Out<Handle>) {
        driver()?;
        context.put(current_handle())
    }
    fn cuCtxPushCurrent_v2(context: Handle) {
        driver()?.context(context)?;
        push_current(context);
        Ok(())
    }
    fn cuCtxPopCurrent_v2(context: Out<Handle>) {
        driver()?;
        let popped = pop_current().ok_or(Code::INVALID_CONTEXT)?;
        context.put_if(popped);
        Ok(())
    }
    fn cuCtxGetDevice(device: Out<CUdevice>) {
        device.put(driver()?.current_unchecked()?.device as CUdevice)
    }
    fn cuCtxGetFlags(flags: Out<c_uint>) {
        driver()?.current_unchecked()?;
        flags.put(0)
    }
    fn cuCtxSetFlags(_flags: c_uint) {
        driver()?.current().map(drop)
    }
    fn cuCtxGetId(context: Handle, id: Out<u64>) {
        let driver = driver()?;
        let context = if context == 0 { driver.current_unchecked()? } else { driver.context(context)? };
        id.put(context.handle)
    }
    fn cuCtxGetApiVersion(context: Handle, version: Out<c_uint>) {
        let driver = driver()?;
        if context == 0 { driver.current_unchecked()? } else { driver.context(context)? };
        version.put(driver.topology.driver_version as c_uint)
    }
    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        driver()?.current()?;
        least.put_if(0);
        greatest.put_if(-5);
        Ok(())
    }
    fn cuCtxSynchronize() {
        crate::stream::synchronise_context()
    }
    fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) {
        device::enable_peer_access(peer, flags)
    }
    fn cuCtxDisablePeerAccess(peer: Handle) {
        device::disable_peer_access(peer)
    }
}
