//! Memory that nobody uses any more, until it can be given back without waiting for a kernel.
//!
//! A driver may let whoever frees memory wait for what its device runs, and a kernel of ours may be waiting for the very rank whose
//! thread frees: both would wait for ever, and no deadline would help a thread that is inside the driver. So memory is given back only
//! where no rank's launch is under way on its devices, and kept here until then. It is looked at again whenever a call has been
//! waited for, more memory is retired, or a communicator goes.
//!
//! What graphs replay is launched by nobody here, so a rank whose calls were captured counts as busy as long as it exists.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};

use super::safe::{Device, Event};
use crate::sync::lock;

/// Whether what a rank launches has ended.
pub(crate) struct Launches {
    device: usize,
    /// The end of its last launch.
    pub(crate) end: Event,
    /// Whether there has been one.
    pub(crate) has_launched: AtomicBool,
    /// Whether it has been captured, so that only its kernels know how many calls it has made.
    pub(crate) is_replayed: AtomicBool,
}

impl Launches {
    fn is_under_way(&self) -> bool {
        // A device that is lost runs nothing.
        self.is_replayed.load(Ordering::Acquire)
            || self.has_launched.load(Ordering::Acquire) && matches!(self.end.is_done(), Ok(false))
    }
}

/// How memory is given back, and the devices whose kernels that may wait for: every one if none is named.
struct Memory {
    devices: Vec<usize>,
    give_back: Box<dyn FnOnce() + Send>,
}

/// What one driver has to give back; see the module.
#[derive(Default)]
pub(crate) struct Retired {
    memory: Mutex<Vec<Memory>>,
    /// How much that is, to be seen without the lock.
    count: AtomicUsize,
    /// Of every rank. Whoever launches holds it shared, so that nothing is launched between a look and what follows from it.
    launches: RwLock<Vec<Weak<Launches>>>,
}

impl Retired {
    /// A rank's launches on a device, which has this event for their end.
    pub(crate) fn watch(&self, device: usize, end: Event) -> Arc<Launches> {
        let (has_launched, is_replayed) = (AtomicBool::new(false), AtomicBool::new(false));
        let launches = Arc::new(Launches { device, end, has_launched, is_replayed });
        let mut all = self.launches.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&launches));
        launches
    }

    /// While this is held nothing is given back: a launch and the record of its end are one.
    pub(crate) fn launching(&self) -> RwLockReadGuard<'_, Vec<Weak<Launches>>> {
        self.launches.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes memory that nobody uses any more; `give_back` frees it, which may wait for kernels of these devices, or of any if none
    /// is named.
    pub(crate) fn retire(&self, devices: &[&Device], give_back: impl FnOnce() + Send + 'static) {
        let devices = devices.iter().map(|device| device.ordinal()).collect();
        lock(&self.memory).push(Memory { devices, give_back: Box::new(give_back) });
        self.count.fetch_add(1, Ordering::Relaxed);
        self.give_back();
    }

    /// Gives back what can be given back now.
    pub(crate) fn give_back(&self) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let launches = self.launches.write().unwrap_or_else(PoisonError::into_inner);
        let under_way = launches.iter().filter_map(Weak::upgrade).filter(|launches| launches.is_under_way());
        let busy: Vec<usize> = under_way.map(|launches| launches.device).collect();
        let waits = |memory: &Memory| match memory.devices.as_slice() {
            [] => !busy.is_empty(),
            devices => devices.iter().any(|device| busy.contains(device)),
        };
        let mut memory = lock(&self.memory);
        let (kept, free): (Vec<Memory>, Vec<Memory>) = memory.drain(..).partition(waits);
        *memory = kept;
        drop(memory);
        self.count.fetch_sub(free.len(), Ordering::Relaxed);
        for memory in free {
            (memory.give_back)();
        }
    }
}
