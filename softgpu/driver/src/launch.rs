//! Launches: what is checked when one is asked for, when its blocks find room, how it ends.

use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use softgpu::{Fault, FaultKind, Index3, LaunchError, LaunchOptions};

use crate::code::{Code, Result};
use crate::device::Limits;
use crate::driver::{Context, Driver, driver, lock};
use crate::module::Function;
use crate::stream::{Failure, Work};
use crate::topology::LaunchEffect;

/// A kernel with its configuration and a copy of its parameters.
pub(crate) struct KernelLaunch {
    pub(crate) function: Arc<Function>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) parameters: Vec<u8>,
    pub(crate) is_cooperative: bool,
    /// Blocks that a multiprocessor holds.
    blocks_per_multiprocessor: u32,
    /// What befalls it.
    effect: Effect,
}

/// What befalls a launch: known when it is asked for, or, of a graph's, looked up when it begins.
#[derive(Clone, Copy)]
enum Effect {
    Known(Option<LaunchEffect>),
    AtEachRun,
}

/// A multiprocessor's room, in the unit in which blocks take it.
const ROOM: u64 = 1 << 20;

/// Blocks of an ordinary launch that are in progress at once: a block in progress costs the host memory.
const ORDINARY_BLOCKS_MAX: u64 = 1024;

/// The configuration of a launch, as it is asked for.
pub(crate) struct Asked {
    pub(crate) function: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) stream: u64,
    pub(crate) is_cooperative: bool,
}

fn volume(extent: [u32; 3]) -> u64 {
    extent.iter().map(|&length| u64::from(length)).product()
}

/// `cuLaunchKernel` and its kin; `parameters` reads the parameters once it is known how they lie.
pub(crate) fn launch(asked: &Asked, parameters: impl FnOnce(&Function) -> Result<Vec<u8>>) -> Result {
    let driver = driver()?;
    let function = crate::module::function(driver, asked.function)?;
    let stream = driver.own_stream(asked.stream)?;
    let index = stream.context.device;
    let device = &driver.topology.devices[index];
    let limits = Limits::of(device);
    let ([x, y, z], threads) = (asked.block, volume(asked.block));
    if volume(asked.grid) == 0 || threads == 0 || x > 1024 || y > 1024 || z > 64 || threads > 1024 {
        return Err(Code::INVALID_VALUE);
    }
    if asked.grid[0] > i32::MAX as u32 || asked.grid[1] > 65535 || asked.grid[2] > 65535 {
        return Err(Code::INVALID_VALUE);
    }
    if function.needs.required_threads.is_some_and(|required| required != asked.block) {
        return Err(Code::INVALID_VALUE);
    }
    if threads > function.threads_max() {
        return Err(Code::INVALID_VALUE);
    }
    if asked.dynamic_shared_bytes > function.dynamic_shared_max.load(Ordering::Relaxed) {
        return Err(Code::INVALID_VALUE);
    }
    let shared = function.needs.shared_bytes + asked.dynamic_shared_bytes;
    let blocks_per_multiprocessor = limits.blocks(device, threads, shared.into());
    if blocks_per_multiprocessor == 0 {
        return Err(Code::LAUNCH_OUT_OF_RESOURCES);
    }
    let room = u64::from(blocks_per_multiprocessor) * u64::from(device.multiprocessors);
    if asked.is_cooperative && volume(asked.grid) > room {
        return Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    let parameters = parameters(&function)?;
    if parameters.len() != function.needs.parameter_bytes as usize {
        return Err(Code::INVALID_VALUE);
    }
    let effect = if crate::capture::is_capturing(driver, &stream) {
        Effect::AtEachRun
    } else {
        Effect::Known(driver.faults().launch(index))
    };
    if let Effect::Known(Some(LaunchEffect::Refused(code))) = effect {
        return Err(Code(code));
    }
    let launch = KernelLaunch {
        function,
        grid: asked.grid,
        block: asked.block,
        dynamic_shared_bytes: asked.dynamic_shared_bytes,
        parameters,
        is_cooperative: asked.is_cooperative,
        blocks_per_multiprocessor,
        effect,
    };
    stream.submit(driver, Work::Kernel(Arc::new(launch))).map(drop)
}

/// `cuOccupancyMaxActiveBlocksPerMultiprocessor`.
pub(crate) fn occupancy(function: u64, threads: i32, dynamic_shared_bytes: u64) -> Result<u32> {
    let driver = driver()?;
    let function = crate::module::function(driver, function)?;
    let threads = u64::try_from(threads).ok().filter(|&threads| threads > 0).ok_or(Code::INVALID_VALUE)?;
    let device = &driver.topology.devices[function.module.context.device];
    let limits = Limits::of(device);
    let shared = u64::from(function.needs.shared_bytes) + dynamic_shared_bytes;
    if threads > function.threads_max() || shared > limits.shared_bytes_most.into() {
        return Ok(0);
    }
    Ok(limits.blocks(device, threads, shared))
}

/// Room for blocks on a device's multiprocessors, until it is dropped.
struct Residency<'a> {
    driver: &'a Driver,
    device: usize,
    taken: u64,
    blocks: u64,
}

impl Drop for Residency<'_> {
    fn drop(&mut self) {
        let device = &self.driver.devices[self.device];
        *lock(&device.residency) -= self.taken;
        device.residency_changed.notify_all();
    }
}

impl<'a> Residency<'a> {
    /// Waits for room: for all blocks of a cooperative launch, for at least one of another. `None` if the context fails meanwhile.
    fn wait(driver: &'a Driver, context: &Context, launch: &KernelLaunch) -> Option<Residency<'a>> {
        let index = context.device;
        let device = &driver.devices[index];
        let total = u64::from(driver.topology.devices[index].multiprocessors) * ROOM;
        let each = ROOM / u64::from(launch.blocks_per_multiprocessor);
        let all = volume(launch.grid);
        let least = if launch.is_cooperative { all } else { 1 };
        let mut busy = lock(&device.residency);
        loop {
            if driver.check(context).is_err() {
                return None;
            }
            let fit = (total - *busy) / each;
            if fit >= least {
                let blocks = if launch.is_cooperative { all } else { all.min(fit).min(ORDINARY_BLOCKS_MAX) };
                *busy += blocks * each;
                return Some(Residency { driver, device: index, taken: blocks * each, blocks });
            }
            busy = device.residency_changed.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn code_of(fault: &Fault) -> Code {
    match fault.kind {
        FaultKind::OutOfBounds => Code::ILLEGAL_ADDRESS,
        FaultKind::Misaligned => Code::MISALIGNED_ADDRESS,
        FaultKind::Undefined if fault.detail.contains("__assertfail") => Code::ASSERT,
        _ => Code::LAUNCH_FAILED,
    }
}

/// The stream has come to a launch.
pub(crate) fn run(driver: &Driver, context: &Context, launch: &KernelLaunch) -> std::result::Result<(), Failure> {
    let Some(residency) = Residency::wait(driver, context, launch) else { return Ok(()) };
    let index = context.device;
    let device = &driver.devices[index];
    let (peers, links) = {
        let faults = driver.faults();
        let peers = lock(&context.state).peers.clone();
        let reached = peers.into_iter().filter(|&peer| peer == index || !faults.lies(index, peer));
        (reached.map(|peer| peer as u32).collect(), faults.links(index))
    };
    let name = &launch.function.name;
    let effect = match launch.effect {
        Effect::Known(effect) => effect,
        Effect::AtEachRun => driver.faults().launch(index),
    };
    let (instructions_max, loss_ms, loss_code) = match effect {
        None => (None, None, None),
        Some(LaunchEffect::Refused(code) | LaunchEffect::Fails(code)) => {
            let text = format!("the launch of {name} on device {index} fails with {code}, as it was asked to");
            return Err(Failure { code, text });
        }
        Some(LaunchEffect::Lost { thread_instructions, ms, code }) => (thread_instructions, ms, Some(code)),
    };
    let options = LaunchOptions {
        grid: Index3::from(launch.grid),
        block: Index3::from(launch.block),
        dynamic_shared_bytes: launch.dynamic_shared_bytes,
        arguments: launch.parameters.clone(),
        races: driver.topology.race_detector,
        peers: Some(peers),
        links,
        instructions_max: instructions_max.unwrap_or(u64::MAX / 2),
        deadline: loss_ms.map(Duration::from_millis).or(driver.watchdog()),
        resident_blocks_max: residency.blocks as u32,
        ..LaunchOptions::default()
    };
    let running = driver.machine.launch(&launch.function.module.loaded, name, options).map_err(|error| Failure {
        code: Code::LAUNCH_FAILED.0,
        text: format!("the launch of {name} on device {index}: {error}"),
    })?;
    device.launches.fetch_add(1, Ordering::Relaxed);
    device.running.fetch_add(1, Ordering::Relaxed);
    let number = driver.next_number();
    let stopper = running.stopper();
    driver.begin_running(context, number, stopper.clone());
    let result = running.wait();
    driver.end_running(context, number);
    device.running.fetch_sub(1, Ordering::Relaxed);
    device.thread_instructions.fetch_add(stopper.thread_instructions(), Ordering::Relaxed);
    device.multimem_accesses.fetch_add(stopper.multimem_accesses(), Ordering::Relaxed);
    drop(residency);
    match (result, loss_code) {
        (Ok(_), _) => Ok(()),
        (Err(LaunchError::Budget { .. } | LaunchError::Deadline { .. }), Some(code)) => {
            driver.say_fault(&format!("device {index} is lost while it runs {name}, as it was asked to be"));
            driver.lose_device(index, code);
            Err(Failure { code, text: String::new() })
        }
        (Err(LaunchError::Faults { faults, dropped }), _) => {
            let code = faults.first().map_or(Code::LAUNCH_FAILED, code_of);
            let text = format!("the launch of {name} on device {index} failed with {code}:");
            let text = faults.iter().fold(text, |text, fault| text + "\n" + &fault.to_string());
            let text = if dropped > 0 { format!("{text}\nand {dropped} more") } else { text };
            Err(Failure { code: code.0, text })
        }
        // Its context has failed, and nothing more is to be said.
        (Err(LaunchError::Aborted { .. }), _) => Ok(()),
        (Err(error @ LaunchError::Deadline { .. }), None) => {
            let text = format!("{error} on device {index}: the topology's watchdog");
            Err(Failure { code: Code::LAUNCH_TIMEOUT.0, text })
        }
        (Err(error), _) => Err(Failure { code: Code::LAUNCH_FAILED.0, text: format!("{error} on device {index}") }),
    }
}
