//! A CUDA driver library in software, for tests: a `libcuda.so.1` that runs PTX on the computer's cores, by way of [`softgpu`].
//!
//! The shared library (`libsoftcuda.so`) exports the functions of the CUDA driver API under the names that `libcuda.so.1` has (with `_v2`
//! where `cuda.h` maps the plain name to it). Programs open it instead of the driver, or link against it as `-lcuda`. Several *copies* of
//! the file in one process are several drivers that know nothing of each other: all state is in the copy's own statics and
//! thread-locals. A copy is never unloaded, since its workers run on. The same functions are here for tests that
//! link the crate; pointers are [`raw::In`] and [`raw::Out`] there, which are pointers to the ABI.
//!
//! # The topology
//!
//! A TOML file, named by the environment's `SOFTGPU_TOPOLOGY` when `cuInit` is called, or a text that [`softgpu_configure`] was given before.
//! Without either: 8 devices of compute capability 9.0 with 132 multiprocessors and 80 GiB each, all pairs connected by NVLink, with multicast.
//! All keys, with what they are when they are missing:
//!
//! ```toml
//! devices = 8                # how many, or a list of tables: [[devices]] with the keys of [device], at most 64
//! driver_version = 12090     # decides which PTX is too new
//! workers = 2                # threads that execute blocks; when missing, as many as there are cores
//! race_detector = true       # data races fail kernels and copies
//! synchronising = true       # see below
//! synchronising_ms = 0       # how long what waits for kernels takes before it does: time for others to launch some
//! watchdog_ms = 0            # a kernel that runs longer ends with CUDA_ERROR_LAUNCH_TIMEOUT; 0: never
//! multicast = true           # of devices of compute capability 9.0 and later
//! link = "nvlink"            # of pairs that [[links]] does not name: nvlink, pcie or none (no peer access)
//!
//! [device]                   # of devices whose own table does not say otherwise
//! name = "softgpu 0"         # when missing, with the device's ordinal
//! compute_capability = "9.0"
//! multiprocessors = 132
//! memory_bytes = 85899345920
//! registers_per_thread = 32  # of every kernel, for the occupancy: registers are given out by ptxas, which is not here
//!
//! [[links]]                  # none
//! between = [0, 1]
//! kind = "pcie"
//! peer_access = false        # when missing, true unless the kind is none
//! ```
//!
//! # Faults
//!
//! They stand in the topology file below `faults`, or are given to [`softgpu_inject`] at run time, without that prefix; they count from then on.
//! [`softgpu_clear`] takes all of them away. A pair means both directions, unless `one_way = true` (from the first to the second).
//!
//! ```toml
//! [[faults.refuse_peer_access]]  # enabling peer access (and mapping memory for the other device) fails
//! pair = [0, 1]
//! stage = "enable"               # or "query": cuDeviceCanAccessPeer says so already
//! code = 217
//!
//! [[faults.peer_access_lies]]    # enabling works, accesses fault
//! pair = [0, 1]
//!
//! [[faults.launch_error]]        # the nth launch on a device fails
//! device = 0
//! launch = 1
//! code = 719
//! asynchronous = false           # true: the call succeeds, the code comes later and stays
//!
//! [[faults.allocation_failure]]  # CUDA_ERROR_OUT_OF_MEMORY
//! device = 0                     # or host = true, for pinned memory and registrations
//! allocation = 3                 # the nth ...
//! above_bytes = 1048576          # ... or each that is larger
//!
//! [[faults.corrupt_peer_writes]] # a bit flips in every nth store (of at most 32 bytes) of one device's kernels to the other's memory
//! pair = [0, 1]
//! every = 1000
//!
//! [[faults.device_lost]]         # the nth launch on a device ends before its time, and nothing works there afterwards
//! device = 0
//! launch = 1
//! after_thread_instructions = 10000  # or after_ms = 5; a kernel that is over by then is fine
//! code = 719                     # what all calls answer: also 46, 214, 999, ...
//!
//! [[faults.slow_link]]           # each access of a thread to the other's memory takes longer
//! pair = [0, 1]
//! nanoseconds = 1000
//! ```
//!
//! [`softgpu_faults`] has the texts of all faults of kernels and copies so far, which are said on the standard error too;
//! [`softgpu_statistics`] counts launches and what is alive. With `SOFTGPU_TRACE=1` each call that fails says so on the standard error.
//!
//! # Strictness
//!
//! - A fault of a kernel (see [`softgpu`]: wild and misaligned accesses, unwritten bytes, races, traps, divergent barriers) makes its context
//!   unusable: `CUDA_ERROR_ILLEGAL_ADDRESS`, `CUDA_ERROR_MISALIGNED_ADDRESS`, `CUDA_ERROR_ASSERT` or, for the rest,
//!   `CUDA_ERROR_LAUNCH_FAILED`, from every call until the primary context is reset or released by its last holder, which ends its kernels.
//! - What orders operations for the race detector: their stream, events that are waited for, the legacy stream, and what any thread of the
//!   host had synchronised with before they were asked for (a successful query counts, and so does a callback), since nobody sees here how
//!   threads of the host order themselves. *Not*: a flag in pinned memory that the host polls itself.
//!   `cuMemsetD*`, and `cuMemcpyDtoD` between devices, return before they are done, as CUDA documents it.
//! - With `synchronising`, these calls wait for the kernels that the device has been given, as real drivers do, so that a program that allocates
//!   while a kernel waits for it hangs here too: `cuMemAlloc`, `cuMemFree`, `cuMemHostAlloc`, `cuMemFreeHost`, `cuMemHostRegister`,
//!   `cuMemHostUnregister`, `cuModuleLoadData*`, `cuModuleUnload`, `cuCtxEnablePeerAccess` (both devices), `cuMemUnmap` (all devices),
//!   `cuMulticastUnbind`.
//! - Blocks are resident as the occupancy says (threads, blocks, shared memory and the topology's registers per multiprocessor). A cooperative
//!   launch begins when all its blocks fit beside those that run; another one begins with as many as fit (at most 1024), and
//!   runs in waves of so many.
//! - Copies and fills of another device's memory need peer access from the current context, as kernels do; only `cuMemcpyPeer` does not. Real
//!   drivers are more lenient.
//! - Functions, modules, and streams to launch in must be of the current context; to wait for streams and events of another one is allowed.
//!   A thread with a current context may free any context's memory.
//! - Calls from a callback of `cuLaunchHostFunc` answer `CUDA_ERROR_NOT_PERMITTED`.
//!
//! # What differs from a real driver
//!
//! - PTX only: no cubins, no fat binaries, no linker. Textures, arrays, managed memory, external memory, interprocess handles and clusters are not
//!   supported (`CUDA_ERROR_NOT_SUPPORTED`); graphs are made by capture only, and event nodes in them are mere dependencies.
//! - A stream's operations run one after the other on a thread of their own. Priorities are kept, and mean nothing.
//! - `cuMemAllocAsync` allocates at once; a device has one pool.
//! - Physical memory (`cuMemCreate`) is mapped at one address at a time, and access to it is all or nothing. A multicast object reaches
//!   its members while they are mapped; one device binds one piece of memory, at one distance.
//! - A copy from pageable memory has read it when the call returns, whatever its size; one to pageable memory is done.
//!
//! **Invariant.** Handles are looked up in tables, never followed; unsafe code is in [`ffi`] alone.

#![deny(unsafe_code)]

mod capture;
mod code;
mod device;
mod driver;
#[allow(unsafe_code)]
pub mod ffi;
mod graph;
mod launch;
mod memory;
mod module;
mod stream;
mod topology;
mod virtual_memory;

pub use code::Code;
pub use ffi::*;
