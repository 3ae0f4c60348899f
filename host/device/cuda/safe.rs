//! The driver's objects as Rust values: a device and its context, memory, streams, events, modules. Each frees itself.
//!
//! **Invariant.** A thread's current context is as it was before after every call here. Nothing waits but what says so.

use std::ffi::{CString, OsStr, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use super::code::Code;
use super::result::{Failure, Functions};
use super::sys;
use crate::error::{Error, Result};
use crate::ptx::Version;
use crate::sync::lock;

/// An open CUDA driver.
#[derive(Clone)]
pub struct Driver(Arc<Functions>);

impl Driver {
    /// Opens the system's driver, or the one whose library the environment variable `TUTTI_LIBCUDA` names.
    ///
    /// # Errors
    /// [`Error::NoDriver`] where there is none that works.
    pub fn open() -> Result<Driver> {
        Ok(Driver(Arc::new(Functions::open()?)))
    }

    /// Opens a driver whose library is elsewhere.
    ///
    /// # Errors
    /// [`Error::NoDriver`] where there is none that works.
    pub fn open_at(path: impl AsRef<OsStr>) -> Result<Driver> {
        Ok(Driver(Arc::new(Functions::open_at(path)?)))
    }

    /// The CUDA version that it supports.
    ///
    /// # Errors
    /// [`Error::Cuda`] if it does not say.
    pub fn version(&self) -> Result<Version> {
        self.0.version().map_err(|failure| failure.during("asking for the driver's version"))
    }

    /// How many devices there are.
    ///
    /// # Errors
    /// [`Error::Cuda`] if it does not say.
    pub fn device_count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the driver writes one number.
        unsafe { self.0.cuDeviceGetCount(&raw mut count) }.map_err(|failure| failure.during("counting the devices"))?;
        Ok(count as usize)
    }

    /// Opens a device, counted from 0. Its primary context is this process's from then on, until it ends: what devices have been
    /// granted of each other lasts as long.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such device, [`Error::Cuda`] if it cannot be opened.
    pub fn device(&self, ordinal: usize) -> Result<Device> {
        let count = self.device_count()?;
        if ordinal >= count {
            return Err(Error::Argument {
                call: "device",
                what: "ordinal",
                expected: match count {
                    0 => "a device, but this driver has none".to_owned(),
                    _ => format!("a device below {count}"),
                },
                came: ordinal.to_string(),
            });
        }
        let open = || {
            let mut opened = lock(&self.0.opened);
            if let Some(context) = opened.get(&ordinal) {
                return Ok(Device(Arc::clone(context)));
            }
            let (mut handle, mut context) = (0, std::ptr::null_mut());
            // SAFETY: the driver writes a handle each.
            unsafe {
                self.0.cuDeviceGet(&raw mut handle, ordinal as i32)?;
                self.0.cuDevicePrimaryCtxRetain(&raw mut context, handle)?;
            }
            let context = Arc::new(Context {
                driver: self.clone(),
                ordinal,
                handle,
                context,
                copies: OnceLock::new(),
                code: Code::default(),
            });
            opened.insert(ordinal, Arc::clone(&context));
            Ok(Device(context))
        };
        open().map_err(|failure: Failure| failure.during(format_args!("opening device {ordinal}")))
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("library", &self.0.path).finish_non_exhaustive()
    }
}

/// An open device, with its primary context.
#[derive(Clone)]
pub struct Device(Arc<Context>);

/// A device that has been opened; it stays so, with what has been loaded, until the process ends.
pub(super) struct Context {
    driver: Driver,
    ordinal: usize,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    /// For copies between a buffer and the host.
    copies: OnceLock<RawStream>,
    code: Code,
}

/// A stream that goes with its context.
struct RawStream(sys::CUstream);

// SAFETY: the driver's handles may be used on any thread.
unsafe impl Send for RawStream {}
// SAFETY: as above; the driver locks what it must.
unsafe impl Sync for RawStream {}

// SAFETY: the driver's handles may be used on any thread.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks what it must.
unsafe impl Sync for Context {}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        self.0.context == other.0.context
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("ordinal", &self.0.ordinal).finish_non_exhaustive()
    }
}

impl Device {
    /// Its number.
    pub fn ordinal(&self) -> usize {
        self.0.ordinal
    }

    /// The driver that it belongs to.
    pub fn driver(&self) -> &Driver {
        &self.0.driver
    }

    pub(crate) fn functions(&self) -> &Functions {
        &self.0.driver.0
    }

    /// As the driver's functions name it.
    pub(super) fn handle(&self) -> sys::CUdevice {
        self.0.handle
    }

    /// Its primary context, in which ranks run.
    pub(crate) fn context(&self) -> sys::CUcontext {
        self.0.context
    }

    /// The kernels that have been loaded.
    pub(super) fn code(&self) -> &Code {
        &self.0.code
    }

    /// Calls the driver with the device's context current.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&Functions) -> Result<T, Failure>) -> Result<T, Failure> {
        let functions = self.functions();
        // SAFETY: the context is retained.
        unsafe { functions.cuCtxPushCurrent_v2(self.0.context)? };
        let result = call(functions);
        let mut popped = std::ptr::null_mut();
        // SAFETY: it was pushed above.
        unsafe { functions.cuCtxPopCurrent_v2(&raw mut popped)? };
        result
    }

    /// Its name.
    ///
    /// # Errors
    /// [`Error::Cuda`] if it does not say.
    pub fn name(&self) -> Result<String> {
        let mut name = [0_u8; 256];
        // SAFETY: the driver writes at most so many bytes, the last of them zero.
        unsafe { self.functions().cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, self.0.handle) }
            .map_err(|failure| failure.during(format_args!("asking device {} for its name", self.ordinal())))?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Ok(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    /// Its place on the PCI bus, such as `0000:1b:00.0`.
    ///
    /// # Errors
    /// [`Error::Cuda`] if it does not say.
    pub fn pci_bus_id(&self) -> Result<String> {
        let mut name = [0_u8; 64];
        // SAFETY: as above.
        unsafe { self.functions().cuDeviceGetPCIBusId(name.as_mut_ptr().cast(), name.len() as i32, self.0.handle) }
            .map_err(|failure| failure.during(format_args!("asking device {} for its place", self.ordinal())))?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Ok(String::from_utf8_lossy(&name[..end]).to_lowercase())
    }

    /// An attribute.
    pub(crate) fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<u32> {
        let mut value = 0;
        // SAFETY: the driver writes one number.
        unsafe { self.functions().cuDeviceGetAttribute(&raw mut value, attribute, self.0.handle) }.map_err(
            |failure| failure.during(format_args!("asking device {} for attribute {attribute}", self.ordinal())),
        )?;
        Ok(value as u32)
    }

    /// Its compute capability.
    ///
    /// # Errors
    /// [`Error::Cuda`] if it does not say.
    pub fn compute_capability(&self) -> Result<Version> {
        Ok(Version {
            major: self.attribute(sys::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: self.attribute(sys::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        })
    }

    /// Its multiprocessors.
    ///
    /// # Errors
    /// [`Error::Cuda`] if it does not say.
    pub fn multiprocessors(&self) -> Result<u32> {
        self.attribute(sys::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    }

    /// Its memory, in bytes.
    ///
    /// # Errors
    /// [`Error::Cuda`] if it does not say.
    pub fn memory_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the driver writes one number.
        unsafe { self.functions().cuDeviceTotalMem_v2(&raw mut bytes, self.0.handle) }
            .map_err(|failure| failure.during(format_args!("asking device {} for its memory", self.ordinal())))?;
        Ok(bytes as u64)
    }

    /// Whether the driver says that a switch with a reduction unit reaches this device's memory. (One that is too old to know of them
    /// says that it does not know the attribute.)
    pub(crate) fn has_multicast(&self) -> bool {
        self.attribute(sys::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED).is_ok_and(|has| has != 0)
    }

    /// Whether the driver says that this device can reach another one's memory.
    pub(crate) fn can_access(&self, peer: &Device) -> Result<bool, Failure> {
        let mut can = 0;
        // SAFETY: the driver writes one number.
        unsafe { self.functions().cuDeviceCanAccessPeer(&raw mut can, self.0.handle, peer.0.handle)? };
        Ok(can != 0)
    }

    /// Lets this device's kernels reach another one's memory.
    pub(crate) fn enable_access(&self, peer: &Device) -> Result<(), Failure> {
        // SAFETY: both contexts are retained.
        let enabled = self.with(|functions| unsafe { functions.cuCtxEnablePeerAccess(peer.0.context, 0) });
        match enabled {
            Err(failure) if failure.code == sys::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            other => other,
        }
    }

    /// Memory of the device, of which nothing is known.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<DeviceMemory, Failure> {
        let mut address = 0;
        // SAFETY: the driver writes one address. (It has no memory of no bytes.)
        self.with(|functions| unsafe { functions.cuMemAlloc_v2(&raw mut address, bytes.max(1)) })?;
        Ok(DeviceMemory { device: self.clone(), address })
    }

    /// Memory of the host that every device reaches at the same address, filled with zeros.
    pub(crate) fn allocate_pinned(&self, bytes: usize) -> Result<PinnedMemory, Failure> {
        let mut host = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        let device_address = self.with(|functions| {
            let mut device_address = 0;
            // SAFETY: the driver writes one address each.
            unsafe {
                functions.cuMemHostAlloc(&raw mut host, bytes.max(1), flags)?;
                functions.cuMemHostGetDevicePointer_v2(&raw mut device_address, host, 0)?;
            }
            Ok(device_address)
        })?;
        let Some(address) = NonNull::new(host.cast::<u8>()) else {
            return Err(Failure::null("cuMemHostAlloc"));
        };
        let memory = PinnedMemory { device: self.clone(), address, bytes };
        // SAFETY: the memory has just been allocated, and nobody else knows of it.
        unsafe { address.as_ptr().write_bytes(0, bytes) };
        if device_address != address.as_ptr().expose_provenance() as u64 {
            return Err(Failure::other_address("cuMemHostGetDevicePointer_v2"));
        }
        Ok(memory)
    }

    /// A new stream, which waits for no other one.
    ///
    /// # Errors
    /// [`Error::Cuda`] if there can be none.
    pub fn stream(&self) -> Result<Stream> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver writes one handle.
        self.with(|functions| unsafe { functions.cuStreamCreate(&raw mut raw, sys::CU_STREAM_NON_BLOCKING) })
            .map_err(|failure| failure.during(format_args!("making a stream on device {}", self.ordinal())))?;
        Ok(Stream { device: self.clone(), raw, is_ours: true })
    }

    /// Calls the driver for what a thread must not do while it captures, in the default way of capturing, because it would not be
    /// captured: here that is just what is wanted.
    pub(crate) fn beside_capture<T>(&self, call: impl FnOnce() -> T) -> Result<T, Failure> {
        let mut mode = sys::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the driver writes the mode that it was, which is put back.
        self.with(|functions| unsafe { functions.cuThreadExchangeStreamCaptureMode(&raw mut mode) })?;
        let result = call();
        // SAFETY: as above.
        self.with(|functions| unsafe { functions.cuThreadExchangeStreamCaptureMode(&raw mut mode) })?;
        Ok(result)
    }

    /// Gives memory back that nobody uses any more, when that waits for no kernel of ours on these devices, or on any if none is
    /// named.
    pub(super) fn retire(&self, devices: &[&Device], free: impl FnOnce() -> Result<(), Failure> + Send + 'static) {
        let device = self.clone();
        // Nobody is left who could be told of an error.
        self.functions().retired.retire(devices, move || drop(device.beside_capture(free)));
    }

    /// Gives back what was retired, where that can be done now.
    pub(crate) fn give_back(&self) {
        self.functions().retired.give_back();
    }

    /// While this is held no memory is given back; whoever launches a kernel of ours holds it until the end is recorded.
    pub(crate) fn launching(&self) -> impl Drop {
        self.functions().retired.launching()
    }

    /// The stream of copies that are waited for.
    pub(crate) fn copies(&self) -> Result<Stream, Failure> {
        let raw = match self.0.copies.get() {
            Some(raw) => raw.0,
            None => {
                let mut raw = std::ptr::null_mut();
                // SAFETY: the driver writes one handle.
                self.with(|functions| unsafe { functions.cuStreamCreate(&raw mut raw, sys::CU_STREAM_NON_BLOCKING) })?;
                // Should another thread have been quicker, this one goes with the context.
                self.0.copies.get_or_init(|| RawStream(raw)).0
            }
        };
        Ok(Stream { device: self.clone(), raw, is_ours: false })
    }

    /// A stream of the caller's: a `CUstream` of this device's primary context, or null for its default stream.
    ///
    /// # Safety
    /// The stream outlives the value, and belongs to this device's primary context.
    pub unsafe fn stream_from_raw(&self, raw: *mut c_void) -> Stream {
        Stream { device: self.clone(), raw: raw.cast(), is_ours: false }
    }

    pub(crate) fn event(&self) -> Result<Event, Failure> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver writes one handle.
        self.with(|functions| unsafe { functions.cuEventCreate(&raw mut raw, sys::CU_EVENT_DISABLE_TIMING) })?;
        Ok(Event { device: self.clone(), raw })
    }

    /// Loads PTX.
    pub(crate) fn load(&self, text: &str) -> Result<Module, Failure> {
        let text = CString::new(text).map_err(|_| Failure::null("cuModuleLoadDataEx"))?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the text ends with a zero; there are no options.
        self.with(|functions| unsafe {
            functions.cuModuleLoadDataEx(
                &raw mut raw,
                text.as_ptr().cast(),
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        })?;
        Ok(Module { device: self.clone(), raw })
    }
}

/// Memory of a device.
pub(crate) struct DeviceMemory {
    device: Device,
    address: u64,
}

impl DeviceMemory {
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let (device, address) = (self.device.clone(), self.address);
        // SAFETY: allocated once, freed once; who used it is done with it.
        self.device
            .retire(&[&self.device], move || device.with(|functions| unsafe { functions.cuMemFree_v2(address) }));
    }
}

/// Memory of the host, which kernels reach too.
pub(crate) struct PinnedMemory {
    device: Device,
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to no thread; whoever accesses it says how.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// As devices know it.
    pub(crate) fn address(&self) -> u64 {
        self.address.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let (device, address) = (self.device.clone(), self.address());
        // Every device reaches it.
        self.device.retire(&[], move || {
            let address = std::ptr::with_exposed_provenance_mut(address as usize);
            // SAFETY: as for device memory.
            device.with(|functions| unsafe { functions.cuMemFreeHost(address) })
        });
    }
}

/// Where calls of a device are queued: one after the other.
pub struct Stream {
    device: Device,
    raw: sys::CUstream,
    is_ours: bool,
}

// SAFETY: the driver's handles may be used on any thread.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks what it must.
unsafe impl Sync for Stream {}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_ours {
            // SAFETY: made once, destroyed once; what is queued still runs.
            let _ = self.device.with(|functions| unsafe { functions.cuStreamDestroy_v2(self.raw) });
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("device", &self.device.ordinal()).field("raw", &self.raw).finish_non_exhaustive()
    }
}

impl Stream {
    /// The device whose it is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The `CUstream`.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw.cast()
    }

    /// Waits until all that is queued is done. Calls of a communicator are better waited for by their handles, which have
    /// deadlines.
    ///
    /// # Errors
    /// [`Error::Cuda`] if something that was queued failed.
    pub fn synchronize(&self) -> Result<()> {
        self.wait()
            .map_err(|failure| failure.during(format_args!("waiting for a stream of device {}", self.device.ordinal())))
    }

    pub(crate) fn wait(&self) -> Result<(), Failure> {
        // SAFETY: the stream is alive.
        self.device.with(|functions| unsafe { functions.cuStreamSynchronize(self.raw) })
    }

    /// Whether what is queued now is captured into a graph.
    pub(crate) fn is_capturing(&self) -> Result<bool, Failure> {
        let mut status = sys::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive; the driver writes one number.
        self.device.with(|functions| unsafe { functions.cuStreamIsCapturing(self.raw, &raw mut status) })?;
        Ok(status != sys::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Lets what is queued from here on wait until another stream has come to a point.
    pub(crate) fn wait_event(&self, event: &Event) -> Result<(), Failure> {
        // SAFETY: both are alive.
        self.device.with(|functions| unsafe { functions.cuStreamWaitEvent(self.raw, event.raw, 0) })
    }

    /// Queues a copy to the device.
    ///
    /// # Safety
    /// Both are valid for so many bytes until the copy is done.
    pub(crate) unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: passed on from the caller.
        self.device.with(|functions| unsafe { functions.cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.raw) })
    }

    /// Queues a copy from the device.
    ///
    /// # Safety
    /// As [`Stream::upload`].
    pub(crate) unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: passed on from the caller.
        self.device.with(|functions| unsafe { functions.cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.raw) })
    }

    /// Begins to capture what this thread queues, instead of running it.
    ///
    /// # Errors
    /// [`Error::Cuda`] if the stream cannot.
    pub fn begin_capture(&self) -> Result<()> {
        let mode = sys::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        self.device
            .with(|functions| unsafe { functions.cuStreamBeginCapture_v2(self.raw, mode) })
            .map_err(|failure| failure.during("beginning to capture a graph"))
    }

    /// Ends it; what was captured, ready to be launched.
    ///
    /// # Errors
    /// [`Error::Cuda`] if the capture failed.
    pub fn end_capture(&self) -> Result<Graph> {
        let mut exec = std::ptr::null_mut();
        self.device
            // SAFETY: the stream is alive; the driver writes one handle each.
            .with(|functions| unsafe {
                let mut graph = std::ptr::null_mut();
                functions.cuStreamEndCapture(self.raw, &raw mut graph)?;
                let made = functions.cuGraphInstantiateWithFlags(&raw mut exec, graph, 0);
                functions.cuGraphDestroy(graph)?;
                made
            })
            .map_err(|failure| failure.during("capturing a graph"))?;
        Ok(Graph { device: self.device.clone(), exec })
    }
}

/// Calls that were captured.
pub struct Graph {
    device: Device,
    exec: sys::CUgraphExec,
}

// SAFETY: the driver's handles may be used on any thread, one at a time.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        let _ = self.device.with(|functions| unsafe { functions.cuGraphExecDestroy(self.exec) });
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("device", &self.device.ordinal()).finish_non_exhaustive()
    }
}

impl Graph {
    /// Makes the calls again.
    ///
    /// # Errors
    /// [`Error::Cuda`] if it cannot be launched.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both are alive.
        self.device
            .with(|functions| unsafe { functions.cuGraphLaunch(self.exec, stream.raw) })
            .map_err(|failure| failure.during("launching a graph"))
    }
}

/// A point in a stream.
pub(crate) struct Event {
    device: Device,
    raw: sys::CUevent,
}

// SAFETY: the driver's handles may be used on any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks what it must.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        let _ = self.device.with(|functions| unsafe { functions.cuEventDestroy_v2(self.raw) });
    }
}

impl Event {
    /// Makes it the point that the stream has come to when all that is queued now is done.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: both are alive.
        self.device.with(|functions| unsafe { functions.cuEventRecord(self.raw, stream.raw) })
    }

    /// Whether the stream has come there.
    pub(crate) fn is_done(&self) -> Result<bool, Failure> {
        // SAFETY: the event is alive.
        match self.device.with(|functions| unsafe { functions.cuEventQuery(self.raw) }) {
            Err(failure) if failure.code == sys::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.map(|()| true),
        }
    }
}

/// Code on a device.
pub(crate) struct Module {
    device: Device,
    raw: sys::CUmodule,
}

// SAFETY: the driver's handles may be used on any thread.
unsafe impl Send for Module {}
// SAFETY: as above; the driver locks what it must.
unsafe impl Sync for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once; no kernel of it runs any more.
        let _ = self.device.with(|functions| unsafe { functions.cuModuleUnload(self.raw) });
    }
}

/// A kernel. It lives as long as its module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel(sys::CUfunction);

// SAFETY: the driver's handles may be used on any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Module {
    pub(crate) fn kernel(&self, name: &str) -> Result<Kernel, Failure> {
        let name = CString::new(name).map_err(|_| Failure::null("cuModuleGetFunction"))?;
        let mut raw = std::ptr::null_mut();
        self.device
            // SAFETY: the name ends with a zero; the driver writes one handle.
            .with(|functions| unsafe { functions.cuModuleGetFunction(&raw mut raw, self.raw, name.as_ptr()) })?;
        Ok(Kernel(raw))
    }

    /// How many blocks of that many threads a multiprocessor holds at once.
    pub(crate) fn blocks_per_multiprocessor(&self, kernel: Kernel, threads: u32) -> Result<u32, Failure> {
        let mut blocks = 0;
        // SAFETY: the kernel is this module's; the driver writes one number.
        self.device.with(|functions| unsafe {
            functions.cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, kernel.0, threads as i32, 0)
        })?;
        Ok(blocks as u32)
    }
}

/// How a kernel is launched.
pub(crate) struct Grid {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    /// Whether all blocks must be there at once.
    pub(crate) cooperative: bool,
}

impl Stream {
    /// Queues a kernel with one parameter.
    ///
    /// # Safety
    /// The kernel is of the stream's device, and takes a parameter of this type; what it does with it is right.
    pub(crate) unsafe fn launch<T: Copy>(&self, kernel: Kernel, grid: &Grid, parameter: &T) -> Result<(), Failure> {
        let mut parameters = [std::ptr::from_ref(parameter).cast_mut().cast::<c_void>()];
        let Grid { blocks, threads, cooperative } = *grid;
        // SAFETY: passed on from the caller; the driver copies the parameter before it returns.
        self.device.with(|functions| unsafe {
            if cooperative {
                functions.cuLaunchCooperativeKernel(
                    kernel.0,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    self.raw,
                    parameters.as_mut_ptr(),
                )
            } else {
                functions.cuLaunchKernel(
                    kernel.0,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    self.raw,
                    parameters.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            }
        })
    }
}
