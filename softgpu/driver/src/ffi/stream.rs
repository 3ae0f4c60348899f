//! Streams and events.

use std::ffi::{c_int, c_uint, c_void};

use super::raw::Out;
use super::{CUdevice, Handle, functions};
use crate::code::Code;
use crate::driver::driver;
use crate::stream::{self, HostFunction, Work};

functions! { list:
    fn cuStreamCreate(stream: Out<Handle>, flags: c_uint) {
        stream.check()?;
        stream.put(stream::create(flags, 0)?)
    }
    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, priority: c_int) {
        stream.check()?;
        stream.put(stream::create(flags, priority)?)
    }
    fn cuStreamDestroy_v2(stream: Handle) {
        stream::destroy(stream)
    }
    fn cuStreamSynchronize(stream: Handle) {
        stream::synchronise(stream)
    }
    fn cuStreamQuery(stream: Handle) {
        stream::query(stream)
    }
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        stream::wait_event(stream, event)
    }
    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) {
        context.put(driver()?.stream(stream)?.context.handle)
    }
    fn cuStreamGetDevice(stream: Handle, device: Out<CUdevice>) {
        device.put(driver()?.stream(stream)?.context.device as CUdevice)
    }
    fn cuStreamGetFlags(stream: Handle, flags: Out<c_uint>) {
        flags.put(driver()?.stream(stream)?.flags)
    }
    fn cuStreamGetPriority(stream: Handle, priority: Out<c_int>) {
        priority.put(driver()?.stream(stream)?.priority)
    }
    fn cuStreamGetId(stream: Handle, id: Out<u64>) {
        id.put(driver()?.stream(stream)?.id)
    }
    fn cuEventCreate(event: Out<Handle>, flags: c_uint) {
        event.check()?;
        event.put(stream::create_event(flags)?)
    }
    fn cuEventDestroy_v2(event: Handle) {
        stream::destroy_event(event)
    }
    fn cuEventRecord(event: Handle, stream: Handle) {
        stream::record(event, stream)
    }
    fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) {
        if flags != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        stream::record(event, stream)
    }
    fn cuEventQuery(event: Handle) {
        stream::reach_event(event, false)
    }
    fn cuEventSynchronize(event: Handle) {
        stream::reach_event(event, true)
    }
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) {
        milliseconds.put(stream::elapsed(start, end)?)
    }
    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) {
        milliseconds.put(stream::elapsed(start, end)?)
    }
    fn cuLaunchHostFunc(
        stream: Handle, function: Option<unsafe extern "C" fn(*mut c_void)>, data: Out<c_void>
    ) {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let driver = driver()?;
        let stream = driver.stream(stream)?;
        let callback = HostFunction { function, data: data.address() as usize };
        stream.submit(driver, Work::HostFunction(callback)).map(drop)
    }
}
