//! The driver as opened, with errors as values: `sys`, one call at a time.
//!
//! **Invariant.** Nothing here panics when a driver lacks a function: all of them are looked for when the driver is opened.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr, c_char};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::paths::Path;
use super::retired::Retired;
use super::safe::Context;
use super::sys;
use crate::error::{Error, Result};
use crate::ptx::Version;

/// Where the driver is, if not where the system looks for it.
pub(super) const LIBRARY_VARIABLE: &str = "TUTTI_LIBCUDA";

/// The driver's library as the system knows it.
const LIBRARY: &str = "libcuda.so.1";

/// An error code of the driver, with the call that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    pub(crate) code: sys::CUresult,
    name: String,
    description: String,
}

impl Failure {
    /// A driver that says that all is well, and gives nothing.
    pub(super) fn null(call: &'static str) -> Failure {
        Failure::ours(call, "the driver gave nothing")
    }

    /// Host memory that devices know by another address: tutti needs one address for all (which 64-bit systems have).
    pub(super) fn other_address(call: &'static str) -> Failure {
        Failure::ours(call, "the device's address of host memory is not the host's: unified addressing is needed")
    }

    fn ours(call: &'static str, what: &str) -> Failure {
        let (name, description) = ("CUDA_ERROR_UNKNOWN".to_owned(), what.to_owned());
        Failure { call, code: sys::CUDA_ERROR_UNKNOWN, name, description }
    }

    /// As an error of whoever was doing `what`.
    pub(crate) fn during(self, what: impl fmt::Display) -> Error {
        let Failure { call, code, name, description } = self;
        Error::Cuda { doing: what.to_string(), call, code, name, description }
    }
}

/// A path that works, and what was seen of better ones.
pub(crate) type Tried = (Path, Vec<String>);

/// The driver's functions.
pub(crate) struct Functions {
    symbols: sys::Library,
    pub(crate) path: PathBuf,
    /// What was seen where a switch with a reduction unit does not work, by the numbers of the devices among which one was tried;
    /// nothing where it does.
    pub(crate) tried_switches: Mutex<HashMap<Vec<usize>, Vec<String>>>,
    /// Memory to give back, and what keeps it from that.
    pub(super) retired: Retired,
    /// Devices that have been opened, by their numbers.
    pub(super) opened: Mutex<HashMap<usize, Arc<Context>>>,
    /// How devices reach each other, by their numbers, where that has been tried; and what was seen then.
    pub(crate) tried: Mutex<HashMap<(usize, usize), Tried>>,
}

/// Makes methods of the driver's functions: each checks the code. Those behind `newer` are of drivers that not everybody has; they say
/// so where they are missing.
macro_rules! functions {
    (
        { $($name:ident($($argument:ident: $type:ty),* $(,)?);)* }
        newer { $($newer:ident($($newer_argument:ident: $newer_type:ty),* $(,)?);)* }
    ) => {
        impl Functions {
            $(
                /// The driver's function of this name, if it has it.
                ///
                /// # Safety
                /// As CUDA's documentation says of it.
                #[allow(non_snake_case)]
                pub(crate) unsafe fn $newer(&self, $($newer_argument: $newer_type),*) -> Result<(), Failure> {
                    if self.symbols.$newer.is_err() {
                        return Err(Failure::ours(stringify!($newer), "the driver is too old to have this function"));
                    }
                    // SAFETY: passed on from the caller; the function is there.
                    self.check(stringify!($newer), unsafe { self.symbols.$newer($($newer_argument),*) })
                }
            )*
            $(
                /// The driver's function of this name.
                ///
                /// # Safety
                /// As CUDA's documentation says of it.
                #[allow(non_snake_case, clippy::too_many_arguments)]
                pub(crate) unsafe fn $name(&self, $($argument: $type),*) -> Result<(), Failure> {
                    // SAFETY: passed on from the caller. The function is there: `open` looked, or the caller did.
                    self.check(stringify!($name), unsafe { self.symbols.$name($($argument),*) })
                }
            )*

            /// The first function that this library lacks.
            fn missing(&self) -> Option<&'static str> {
                $(
                    if self.symbols.$name.is_err() {
                        return Some(stringify!($name));
                    }
                )*
                None
            }
        }
    };
}

functions! {
    {
        cuInit(flags: u32);
        cuDriverGetVersion(version: *mut i32);
        cuDeviceGetCount(count: *mut i32);
        cuDeviceGet(device: *mut sys::CUdevice, ordinal: i32);
        cuDeviceGetName(name: *mut c_char, length: i32, device: sys::CUdevice);
        cuDeviceGetAttribute(value: *mut i32, attribute: sys::CUdevice_attribute, device: sys::CUdevice);
        cuDeviceTotalMem_v2(bytes: *mut usize, device: sys::CUdevice);
        cuDeviceGetPCIBusId(name: *mut c_char, length: i32, device: sys::CUdevice);
        cuDeviceCanAccessPeer(can: *mut i32, device: sys::CUdevice, peer: sys::CUdevice);
        cuDevicePrimaryCtxRetain(context: *mut sys::CUcontext, device: sys::CUdevice);
        cuCtxPushCurrent_v2(context: sys::CUcontext);
        cuCtxPopCurrent_v2(context: *mut sys::CUcontext);
        cuCtxEnablePeerAccess(peer: sys::CUcontext, flags: u32);
        cuMemAlloc_v2(address: *mut sys::CUdeviceptr, bytes: usize);
        cuMemFree_v2(address: sys::CUdeviceptr);
        cuMemHostAlloc(address: *mut *mut core::ffi::c_void, bytes: usize, flags: u32);
        cuMemFreeHost(address: *mut core::ffi::c_void);
        cuMemHostGetDevicePointer_v2(device: *mut sys::CUdeviceptr, host: *mut core::ffi::c_void, flags: u32);
        cuMemcpyHtoDAsync_v2(to: sys::CUdeviceptr, from: *const core::ffi::c_void, bytes: usize, stream: sys::CUstream);
        cuMemcpyDtoHAsync_v2(to: *mut core::ffi::c_void, from: sys::CUdeviceptr, bytes: usize, stream: sys::CUstream);
        cuMemAddressReserve(address: *mut sys::CUdeviceptr, bytes: usize, alignment: usize, hint: sys::CUdeviceptr, flags: u64);
        cuMemAddressFree(address: sys::CUdeviceptr, bytes: usize);
        cuMemCreate(
            handle: *mut sys::CUmemGenericAllocationHandle,
            bytes: usize,
            properties: *const sys::CUmemAllocationProp,
            flags: u64,
        );
        cuMemRelease(handle: sys::CUmemGenericAllocationHandle);
        cuMemMap(
            address: sys::CUdeviceptr,
            bytes: usize,
            offset: usize,
            handle: sys::CUmemGenericAllocationHandle,
            flags: u64,
        );
        cuMemUnmap(address: sys::CUdeviceptr, bytes: usize);
        cuMemSetAccess(address: sys::CUdeviceptr, bytes: usize, accesses: *const sys::CUmemAccessDesc, count: usize);
        cuStreamCreate(stream: *mut sys::CUstream, flags: u32);
        cuStreamDestroy_v2(stream: sys::CUstream);
        cuStreamSynchronize(stream: sys::CUstream);
        cuStreamWaitEvent(stream: sys::CUstream, event: sys::CUevent, flags: u32);
        cuStreamIsCapturing(stream: sys::CUstream, status: *mut sys::CUstreamCaptureStatus);
        cuStreamBeginCapture_v2(stream: sys::CUstream, mode: sys::CUstreamCaptureMode);
        cuThreadExchangeStreamCaptureMode(mode: *mut sys::CUstreamCaptureMode);
        cuStreamEndCapture(stream: sys::CUstream, graph: *mut sys::CUgraph);
        cuGraphInstantiateWithFlags(exec: *mut sys::CUgraphExec, graph: sys::CUgraph, flags: u64);
        cuGraphLaunch(exec: sys::CUgraphExec, stream: sys::CUstream);
        cuGraphExecDestroy(exec: sys::CUgraphExec);
        cuGraphDestroy(graph: sys::CUgraph);
        cuEventCreate(event: *mut sys::CUevent, flags: u32);
        cuEventDestroy_v2(event: sys::CUevent);
        cuEventRecord(event: sys::CUevent, stream: sys::CUstream);
        cuEventQuery(event: sys::CUevent);
        cuModuleLoadDataEx(
            module: *mut sys::CUmodule,
            image: *const core::ffi::c_void,
            option_count: u32,
            options: *mut sys::CUjit_option,
            values: *mut *mut core::ffi::c_void,
        );
        cuModuleUnload(module: sys::CUmodule);
        cuModuleGetFunction(function: *mut sys::CUfunction, module: sys::CUmodule, name: *const c_char);
        cuOccupancyMaxActiveBlocksPerMultiprocessor(
            blocks: *mut i32,
            function: sys::CUfunction,
            threads: i32,
            shared_bytes: usize,
        );
        cuLaunchKernel(
            function: sys::CUfunction,
            grid_x: u32,
            grid_y: u32,
            grid_z: u32,
            block_x: u32,
            block_y: u32,
            block_z: u32,
            shared_bytes: u32,
            stream: sys::CUstream,
            parameters: *mut *mut core::ffi::c_void,
            extra: *mut *mut core::ffi::c_void,
        );
        cuLaunchCooperativeKernel(
            function: sys::CUfunction,
            grid_x: u32,
            grid_y: u32,
            grid_z: u32,
            block_x: u32,
            block_y: u32,
            block_z: u32,
            shared_bytes: u32,
            stream: sys::CUstream,
            parameters: *mut *mut core::ffi::c_void,
        );
    }
    newer {
        cuMulticastCreate(
            handle: *mut sys::CUmemGenericAllocationHandle,
            properties: *const sys::CUmulticastObjectProp,
        );
        cuMulticastAddDevice(handle: sys::CUmemGenericAllocationHandle, device: sys::CUdevice);
        cuMulticastBindMem(
            handle: sys::CUmemGenericAllocationHandle,
            at: usize,
            memory: sys::CUmemGenericAllocationHandle,
            memory_at: usize,
            bytes: usize,
            flags: u64,
        );
        cuMulticastGetGranularity(
            bytes: *mut usize,
            properties: *const sys::CUmulticastObjectProp,
            option: sys::CUmulticastGranularity_flags,
        );
    }
}

impl Functions {
    /// Opens the driver: the library that the environment names, or else the system's.
    pub(crate) fn open() -> Result<Functions> {
        match std::env::var_os(LIBRARY_VARIABLE) {
            Some(path) => Functions::open_at(path.as_os_str()),
            None => Functions::open_at(LIBRARY),
        }
    }

    /// Opens a driver.
    pub(crate) fn open_at(path: impl AsRef<OsStr>) -> Result<Functions> {
        let path = PathBuf::from(path.as_ref());
        let no_driver = |reason: String| Error::NoDriver { library: path.display().to_string(), reason };
        // SAFETY: a driver's library may be loaded into any process; whoever names another one vouches for it. It is never
        // unloaded, since it may have threads of its own.
        let library = unsafe { libloading::Library::new(&path) }.map_err(|error| {
            no_driver(format!(
                "{error}; install NVIDIA's driver, or let {LIBRARY_VARIABLE} name its library where it is elsewhere"
            ))
        })?;
        // SAFETY: the functions have the types that the driver's header gives them.
        let symbols = unsafe { sys::Library::from_library(library) }.map_err(|error| no_driver(error.to_string()))?;
        let functions = std::mem::ManuallyDrop::new(Functions {
            symbols,
            path: path.clone(),
            retired: Retired::default(),
            opened: Mutex::default(),
            tried: Mutex::default(),
            tried_switches: Mutex::default(),
        });
        if let Some(name) = functions.missing() {
            return Err(no_driver(format!("it has no function {name}; install a newer driver")));
        }
        // SAFETY: the driver is told first what it must be told first.
        unsafe { functions.cuInit(0) }.map_err(|failure| no_driver(format!("it does not start: {failure}")))?;
        Ok(std::mem::ManuallyDrop::into_inner(functions))
    }

    /// The CUDA version that the driver supports.
    pub(crate) fn version(&self) -> Result<Version, Failure> {
        let mut version = 0;
        // SAFETY: the driver writes one number.
        unsafe { self.cuDriverGetVersion(&raw mut version)? };
        Ok(Version { major: version as u32 / 1000, minor: version as u32 % 1000 / 10 })
    }

    /// The error that a code stands for, unless it says that all is well.
    pub(crate) fn check(&self, call: &'static str, code: sys::CUresult) -> Result<(), Failure> {
        if code == sys::CUDA_SUCCESS {
            return Ok(());
        }
        let text = |get: &dyn Fn(*mut *const c_char) -> sys::CUresult| {
            let mut text = std::ptr::null();
            if get(&raw mut text) != sys::CUDA_SUCCESS || text.is_null() {
                return "unknown".to_owned();
            }
            // SAFETY: the driver gives a string that lives as long as it does.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        // SAFETY: the driver writes one address.
        let name = text(&|text| unsafe { self.symbols.cuGetErrorName(code, text) });
        // SAFETY: as above.
        let description = text(&|text| unsafe { self.symbols.cuGetErrorString(code, text) });
        Err(Failure { call, code, name, description })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { call, code, name, description } = self;
        write!(f, "{call} gave {name} ({code}): {description}")
    }
}
