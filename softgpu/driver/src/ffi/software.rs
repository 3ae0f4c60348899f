//! What a driver in software has besides: configuration, faults on request, what has happened.

use std::ffi::{c_char, c_int};

use super::raw::{HostRange, In, Out};
use super::{CUresult, enter};
use crate::code::{Code, Result};
use crate::driver::{driver, lock};
use crate::topology::Faults;

/// Numbers of one device, or of the host.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftgpuStatistics {
    /// Kernels that have begun.
    pub launches: u64,
    /// Instructions, counted once for each thread that executed them, of kernels that have ended.
    pub thread_instructions: u64,
    /// Accesses through multicast objects, likewise.
    pub multimem_accesses: u64,
    /// Kernels that are running now.
    pub running_kernels: u64,
    /// Live allocations (for the host: pinned ones and registrations).
    pub allocations: u64,
    /// Their bytes; with physical memory, mapped or not, for a device.
    pub allocated_bytes: u64,
    /// Modules that are loaded.
    pub modules: u64,
    /// Streams that have been created and not destroyed.
    pub streams: u64,
    /// Events that have been created and not destroyed.
    pub events: u64,
    /// Graphs and executable graphs; counted for the host.
    pub graphs: u64,
}

fn text(text: In<c_char>, bytes: usize) -> Result<String> {
    if text.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    String::from_utf8(HostRange::new(text.address(), bytes as u64).read()).map_err(|_| Code::INVALID_VALUE)
}

fn statistics(device: c_int) -> Result<SoftgpuStatistics> {
    use crate::driver::RegionKind;
    use std::sync::atomic::Ordering::Relaxed;
    let driver = driver()?;
    let tables = lock(&driver.tables);
    let count = |items: usize| items as u64;
    if device < 0 {
        let host =
            tables.memory.values().filter(|region| matches!(region.kind, RegionKind::Pinned | RegionKind::Registered));
        let (allocations, allocated_bytes) = host.fold((0, 0), |sum, region| (sum.0 + 1, sum.1 + region.bytes));
        return Ok(SoftgpuStatistics {
            allocations,
            allocated_bytes,
            graphs: count(tables.graphs.len() + tables.graph_execs.len()),
            ..SoftgpuStatistics::default()
        });
    }
    let index = driver.device(device)?;
    let state = &driver.devices[index];
    let own = tables.memory.values().filter(|region| {
        region.context.device == index && matches!(region.kind, RegionKind::Device | RegionKind::Pooled)
    });
    Ok(SoftgpuStatistics {
        launches: state.launches.load(Relaxed),
        thread_instructions: state.thread_instructions.load(Relaxed),
        multimem_accesses: state.multimem_accesses.load(Relaxed),
        running_kernels: state.running.load(Relaxed),
        allocations: count(own.count()),
        allocated_bytes: state.used_bytes.load(Relaxed),
        modules: count(tables.modules.values().filter(|module| module.context.device == index).count()),
        streams: count(tables.streams.values().filter(|stream| stream.context.device == index).count()),
        events: count(tables.events.values().filter(|event| event.context.device == index).count()),
        graphs: 0,
    })
}

/// Sets the topology, as the text of a topology file, instead of `SOFTGPU_TOPOLOGY`. Answers 0, or 1 for a text that is no topology, or 401
/// after `cuInit`.
///
/// # Safety
/// `topology` points to `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softgpu_configure(topology: In<c_char>, bytes: usize) -> CUresult {
    enter("softgpu_configure", || crate::driver::configure(text(topology, bytes)?))
}

/// Adds faults: the text of a topology file's table `faults` alone (`[[launch_error]]` and so on). They count from now. Answers 0, 1 for
/// a text that is none, 3 before `cuInit`.
///
/// # Safety
/// `faults` points to `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softgpu_inject(faults: In<c_char>, bytes: usize) -> CUresult {
    enter("softgpu_inject", || {
        let driver = driver()?;
        let new = Faults::parse(&text(faults, bytes)?, driver.devices.len()).map_err(|error| {
            eprintln!("softcuda: the faults given to softgpu_inject: {error}");
            Code::INVALID_VALUE
        })?;
        driver.faults.write().unwrap_or_else(std::sync::PoisonError::into_inner).add(new);
        Ok(())
    })
}

/// Forgets all faults that were asked for (those of the topology file too), finds lost devices again, and empties the list of
/// `softgpu_faults`. Contexts that have failed stay so until they are reset. Answers 0, 3 before `cuInit`.
#[unsafe(no_mangle)]
pub extern "C" fn softgpu_clear() -> CUresult {
    enter("softgpu_clear", || {
        driver()?.clear();
        Ok(())
    })
}

/// Copies what was said about kernels and copies that failed since `softgpu_clear`, a line each, as much as fits with a NUL at its end; answers
/// how many bytes all of it has, without the NUL.
///
/// # Safety
/// `buffer` is null or has room for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softgpu_faults(buffer: Out<c_char>, capacity: usize) -> usize {
    let texts = driver().map_or_else(|_| Vec::new(), |driver| driver.fault_texts()).join("\n");
    buffer.put_text(texts.as_bytes(), capacity);
    texts.len()
}

/// The numbers of a device, or with -1 of the host. Answers 0, 3 before `cuInit`, 101 for a device that there is not.
///
/// # Safety
/// `statistics` points to a writable [`SoftgpuStatistics`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softgpu_statistics(device: c_int, statistics: Out<SoftgpuStatistics>) -> CUresult {
    enter("softgpu_statistics", || statistics.put(self::statistics(device)?))
}

/// Everything that was said about kernels and copies that failed since [`softgpu_clear`].
pub fn faults() -> Vec<String> {
    driver().map_or_else(|_| Vec::new(), |driver| driver.fault_texts())
}
