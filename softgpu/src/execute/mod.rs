//! The interpreter: blocks, warps and lanes.
//!
//! A warp's lanes that stand at the same instruction form a **fragment**; one fragment is executed at a time, all its lanes in one
//! loop. A branch that lanes take differently splits it, fragments that meet at the start of a basic block merge, and of several the one that
//! stands earliest (in the order of `module::flow`) goes first, so that they do meet. No fragment starves: after a while another one
//! gets a turn. So each lane makes progress of its own, as on sm_70 and later.
//!
//! A block runs on one worker for a slice of instructions and is then put at the end of the queue, so that blocks, launches and devices
//! that wait for each other all get on, whatever the number of workers. A block that only polls gives its slice back.

pub(crate) mod access;
mod block;
mod warp;

pub(crate) use block::{Block, Outcome};

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::fault::{Fault, FaultKind, Index3, Place};
use crate::launch::Link;
use crate::memory::Memory;
use crate::module::Kernel;
use crate::race::{Access, AliasFences, Clock};
use crate::types::Lanes;

/// Where the generic addresses of a block's shared memory begin; no host has memory there.
pub(crate) const SHARED_WINDOW: u64 = 1 << 60;
/// ... of a thread's local memory ...
pub(crate) const LOCAL_WINDOW: u64 = 2 << 60;
/// ... and of the kernel's parameters.
pub(crate) const PARAMETER_WINDOW: u64 = 3 << 60;
pub(crate) const WINDOW_MASK: u64 = 15 << 60;

/// Why a launch ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    Fault,
    Aborted,
    Deadline,
    Budget,
    /// The interpreter itself panicked.
    Internal,
}

/// A block cannot go on; the reason is with the launch.
#[derive(Debug)]
pub(crate) struct Stop;

/// Everything that the blocks of one launch share.
pub(crate) struct Launched {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) constants: Arc<Vec<Lanes>>,
    pub(crate) parameters: Vec<u8>,
    pub(crate) grid: Index3,
    pub(crate) block: Index3,
    pub(crate) shared_bytes: u32,
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) device: u32,
    pub(crate) races: bool,
    pub(crate) uninitialised: bool,
    pub(crate) votes_order_memory: bool,
    pub(crate) reachable: Option<HashSet<u32>>,
    pub(crate) links: Vec<Link>,
    pub(crate) budget: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) faults_max: usize,
    pub(crate) memory: Arc<Memory>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) number: u64,
    pub(crate) first_block: u32,
    pub(crate) first_site: u32,
    pub(crate) clock: Arc<Clock>,
    pub(crate) next_block: AtomicU64,
    pub(crate) tickets: AtomicUsize,
    pub(crate) stopped: AtomicBool,
    pub(crate) instructions: AtomicU64,
    pub(crate) warp_instructions: AtomicU64,
    pub(crate) multimem_accesses: AtomicU64,
    pub(crate) end: Mutex<End>,
    pub(crate) ended: Condvar,
}

/// How a launch ends.
#[derive(Debug, Default)]
pub(crate) struct End {
    pub(crate) finished: bool,
    pub(crate) reason: Option<StopReason>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) faults_dropped: u64,
    seen: HashSet<(FaultKind, u32, u32)>,
    pub(crate) clock: Clock,
}

impl Launched {
    pub(crate) fn stop(&self, reason: StopReason) {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).reason.get_or_insert(reason);
        self.stopped.store(true, Ordering::Release);
    }

    /// The clock of all devices: nanoseconds of the host's day, so that kernels of several launches agree.
    pub(crate) fn nanoseconds(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_nanos() as u64)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).finished
    }

    /// A ticket that starts no more blocks is given back; the last one ends the launch.
    pub(crate) fn give_back_ticket(&self) {
        if self.tickets.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
            end.finished = true;
            drop(end);
            self.ended.notify_all();
        }
    }

    /// Notes a fault once for each kind, line and other line; a fatal one ends the launch.
    pub(crate) fn report(&self, fault: Fault) -> Result<(), Stop> {
        let fatal = fault.kind.is_fatal();
        let other = fault.other.as_ref().map_or(0, |place| place.line);
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if end.seen.insert((fault.kind, fault.place.line, other)) {
            if end.faults.len() < self.faults_max {
                end.faults.push(fault);
            } else {
                end.faults_dropped += 1;
            }
        }
        drop(end);
        if fatal {
            self.stop(StopReason::Fault);
            return Err(Stop);
        }
        Ok(())
    }

    pub(crate) fn place(&self, block: u64, thread: u32, line: u32) -> Place {
        Place {
            kernel: Some(self.kernel.name.clone()),
            line,
            device: self.device,
            block: self.grid.coordinate(block),
            thread: self.block.coordinate(thread.into()),
        }
    }
}

/// What is needed to name the other side of a race: which numbers belong to which launch and which instruction.
#[derive(Default)]
pub(crate) struct Registry {
    launches: Mutex<Vec<(u32, Index3, Index3, u32)>>,
    sites: Mutex<Vec<(u32, Arc<Kernel>)>>,
    next_block: AtomicU32,
    next_site: AtomicU32,
    pub(crate) alias_fences: Arc<AliasFences>,
}

impl Registry {
    /// Numbers for the blocks of a launch; 0 is nobody's.
    pub(crate) fn add_blocks(&self, grid: Index3, block: Index3, device: u32) -> u32 {
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let first = self.next_block.fetch_add(grid.volume() as u32, Ordering::Relaxed) + 1;
        launches.push((first, grid, block, device));
        first
    }

    /// Numbers for the instructions of a kernel; 0 is the host's.
    pub(crate) fn add_kernel(&self, kernel: &Arc<Kernel>) -> u32 {
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        let first = self.next_site.fetch_add(kernel.code.len() as u32, Ordering::Relaxed) + 1;
        sites.push((first, kernel.clone()));
        first
    }

    /// Who made an access.
    pub(crate) fn place(&self, access: &Access) -> Place {
        let sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        let launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let launch = launches.partition_point(|launch| launch.0 <= access.block).checked_sub(1).map(|at| launches[at]);
        let kernel = sites.partition_point(|site| site.0 <= access.site).checked_sub(1).map(|at| &sites[at]);
        match (launch, kernel) {
            (Some((first, grid, block, device)), Some((site, kernel))) if access.site != 0 => Place {
                kernel: Some(kernel.name.clone()),
                line: kernel.code.get((access.site - site) as usize).map_or(0, |instr| instr.line),
                device,
                block: grid.coordinate((access.block - first).into()),
                thread: block.coordinate(access.thread.into()),
            },
            _ => Place { kernel: None, line: 0, device: 0, block: Index3::default(), thread: Index3::default() },
        }
    }
}
