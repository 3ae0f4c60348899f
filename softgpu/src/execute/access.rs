//! Loads, stores and atomics of one lane: where they go, and what is checked on the way.

use std::sync::{Arc, PoisonError};

use super::block::Common;
use super::{Stop, WINDOW_MASK};
use crate::arithmetic::{add_float, max_float, min_float};
use crate::fault::{Fault, FaultKind};
use crate::memory::{Allocation, Memory, MemoryKind, PAGE_BYTES};
use crate::module::{Strength, Update};
use crate::race::{Access, Page};
use crate::types::{Type, mask_of, sign_extend};

/// An allocation as one block holds it: counted by the block itself once more, so that handing it out does not make workers
/// fight over one reference count.
pub(super) struct Held(Arc<Allocation>);

impl std::ops::Deref for Held {
    type Target = Allocation;

    fn deref(&self) -> &Allocation {
        &self.0
    }
}

/// The allocations that a block has touched last.
#[derive(Default)]
pub(super) struct Cache {
    entries: Vec<Arc<Held>>,
    generation: u64,
}

/// Allocations that a block remembers.
const CACHE_ENTRIES: usize = 8;

impl Cache {
    /// Forgets everything if something has been freed.
    pub(super) fn refresh(&mut self, memory: &Memory) {
        let generation = memory.generation();
        if generation != self.generation {
            self.entries.clear();
            self.generation = generation;
        }
    }

    #[inline(always)]
    fn find(&mut self, memory: &Memory, address: u64) -> Option<Arc<Held>> {
        if let Some(at) = self.entries.iter().position(|entry| entry.contains(address, 1)) {
            return Some(self.entries[at].clone());
        }
        let found = Arc::new(Held(memory.find(address)?));
        if self.entries.len() == CACHE_ENTRIES {
            self.entries.remove(0);
        }
        self.entries.push(found.clone());
        Some(found)
    }
}

/// A block's shared memory.
pub(super) struct Shared {
    pub(super) bytes: Vec<u8>,
    written: Vec<bool>,
    pages: Vec<Page>,
}

impl Shared {
    pub(super) fn new(bytes: usize, races: bool) -> Shared {
        let pages = if races { bytes.div_ceil(PAGE_BYTES as usize) } else { 0 };
        Shared {
            bytes: vec![0; bytes],
            written: vec![false; bytes],
            pages: (0..pages).map(|_| Page::default()).collect(),
        }
    }
}

/// A lane that accesses memory.
#[derive(Clone, Copy)]
pub(super) struct Accessor {
    pub(super) thread: u32,
    pub(super) position: usize,
    pub(super) line: u32,
    /// Whether it goes by way of a multicast address.
    pub(super) alias: bool,
}

/// Reads an element of a vector of bytes.
pub(super) fn element(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn scope_of(strength: Strength) -> Option<crate::race::Scope> {
    match strength {
        Strength::Weak => None,
        Strength::Relaxed(scope) | Strength::Ordered(scope) => Some(scope),
    }
}

fn name_of(is_write: bool, bytes: u32) -> String {
    format!("{} of {bytes} byte{}", if is_write { "store" } else { "load" }, if bytes == 1 { "" } else { "s" })
}

impl Common {
    fn fault_at(&self, kind: FaultKind, who: Accessor, address: u64, detail: String) -> Result<(), Stop> {
        self.fault(kind, who.line, who.thread, Some(address), detail)
    }

    fn access_of(&self, who: Accessor, strength: Strength, bytes: u32) -> Access {
        let (block, device, time) =
            self.clock.as_ref().map_or((0, 0, 0), |clock| (clock.block, clock.device, clock.time));
        Access {
            block,
            time,
            site: self.launched.first_site + who.position as u32,
            thread: who.thread as u16,
            device,
            bytes: bytes as u8,
            strong: scope_of(strength),
            alias: who.alias,
        }
    }

    fn report_race(
        &self,
        who: Accessor,
        is_write: bool,
        bytes: u32,
        address: u64,
        strength: Strength,
        other: (Access, bool),
    ) -> Result<(), Stop> {
        let detail = format!(
            "{}{}{} of bytes that another thread {}{}",
            if strength == Strength::Weak { "" } else { "strong " },
            name_of(is_write, bytes),
            if who.alias { " by way of a multicast address" } else { "" },
            if other.1 { "writes" } else { "reads" },
            if other.0.alias == who.alias { "" } else { " at another address of theirs, without fence.proxy.alias" },
        );
        let place = self.launched.place(self.index, who.thread, who.line);
        let other = self.launched.registry.place(&other.0);
        self.launched.report(Fault { kind: FaultKind::Race, place, address: Some(address), detail, other: Some(other) })
    }

    /// An access crosses a link to another device, which may be slow, or bad.
    #[cold]
    fn cross(&mut self, device: u32, is_write: bool) {
        let launched = self.launched.clone();
        let Some(link) = launched.links.iter().find(|link| link.device == device) else { return };
        self.delay += link.delay;
        if is_write && let Some((every, stores)) = &link.corrupt_every {
            let number = stores.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            self.corrupt_store = number.is_multiple_of((*every).max(1));
        }
    }

    /// The allocation of an access, all of whose bytes are inside it and may be reached.
    #[inline(always)]
    fn allocation(&mut self, who: Accessor, address: u64, bytes: u32, is_write: bool) -> Result<Arc<Held>, Stop> {
        if !address.is_multiple_of(u64::from(bytes)) {
            let detail = format!("{}, which must be aligned to as many,", name_of(is_write, bytes));
            self.fault_at(FaultKind::Misaligned, who, address, detail)?;
        }
        let launched = &self.launched;
        match self.cache.find(&launched.memory, address) {
            Some(found) if found.contains(address, bytes.into()) && found.kind != MemoryKind::Multicast => {
                let reachable = found.kind != MemoryKind::Device
                    || who.alias
                    || found.is_granted(launched.device, || {
                        found.device == launched.device
                            || launched.reachable.as_ref().is_none_or(|devices| devices.contains(&found.device))
                    });
                if !reachable {
                    let detail = format!(
                        "{} of device {}'s memory without peer access from device {}",
                        name_of(is_write, bytes),
                        found.device,
                        launched.device
                    );
                    self.fault_at(FaultKind::OutOfBounds, who, address, detail)?;
                }
                if found.device != launched.device && found.kind == MemoryKind::Device {
                    self.cross(found.device, is_write);
                }
                Ok(found)
            }
            Some(found) if found.kind == MemoryKind::Multicast => {
                let detail = format!("{} through a multicast address, without multimem,", name_of(is_write, bytes));
                self.fault_at(FaultKind::OutOfBounds, who, address, detail)?;
                Err(Stop)
            }
            _ => {
                let detail =
                    format!("{} where there is {}", name_of(is_write, bytes), launched.memory.describe(address));
                self.fault_at(FaultKind::OutOfBounds, who, address, detail)?;
                Err(Stop)
            }
        }
    }

    /// Loads `count` elements of `bytes` bytes from global memory.
    pub(super) fn load_global(
        &mut self,
        who: Accessor,
        address: u64,
        bytes: u32,
        count: usize,
        strength: Strength,
        values: &mut [u64; 8],
    ) -> Result<(), Stop> {
        let total = bytes * count as u32;
        let allocation = self.allocation(who, address, total, false)?;
        if self.launched.uninitialised && !allocation.is_written(address, total) {
            let detail = format!("{} of which nobody has written all", name_of(false, total));
            self.fault_at(FaultKind::Uninitialised, who, address, detail)?;
        }
        let mut conflict = None;
        let access = self.access_of(who, strength, bytes);
        let lock = self.clock.as_mut().map(|clock| {
            let mut page = allocation.page(address).lock().unwrap_or_else(PoisonError::into_inner);
            conflict = note_load(&mut page, clock, (address % PAGE_BYTES) as usize, bytes, count, access, strength);
            page
        });
        if bytes == 4 && count > 1 {
            for pair in 0..count / 2 {
                let both = allocation.load(address + pair as u64 * 8, 8);
                values[2 * pair] = both & 0xffff_ffff;
                values[2 * pair + 1] = both >> 32;
            }
        } else {
            for (index, value) in values.iter_mut().enumerate().take(count) {
                *value = allocation.load(address + u64::from(bytes) * index as u64, bytes);
            }
        }
        drop(lock);
        match conflict {
            Some(other) => self.report_race(who, false, total, address, strength, other),
            None => Ok(()),
        }
    }

    /// Stores `count` elements of `bytes` bytes to global memory.
    pub(super) fn store_global(
        &mut self,
        who: Accessor,
        address: u64,
        bytes: u32,
        count: usize,
        strength: Strength,
        values: &[u64; 8],
    ) -> Result<(), Stop> {
        let total = bytes * count as u32;
        let allocation = self.allocation(who, address, total, true)?;
        let mut values = *values;
        if std::mem::take(&mut self.corrupt_store) {
            values[0] ^= 1;
        }
        let mut conflict = None;
        let access = self.access_of(who, strength, bytes);
        let lock = self.clock.as_mut().map(|clock| {
            let mut page = allocation.page(address).lock().unwrap_or_else(PoisonError::into_inner);
            conflict = note_store(&mut page, clock, (address % PAGE_BYTES) as usize, bytes, count, access, strength);
            page
        });
        allocation.mark_written(address, total);
        if bytes == 4 && count > 1 {
            for pair in 0..count / 2 {
                let both = values[2 * pair] & 0xffff_ffff | values[2 * pair + 1] << 32;
                allocation.store(address + pair as u64 * 8, 8, both);
            }
        } else {
            for (index, value) in values.iter().enumerate().take(count) {
                allocation.store(address + u64::from(bytes) * index as u64, bytes, *value);
            }
        }
        drop(lock);
        match conflict {
            Some(other) => self.report_race(who, true, total, address, strength, other),
            None => Ok(()),
        }
    }

    /// Replaces one element of global memory by a function of it.
    pub(super) fn update_global(
        &mut self,
        who: Accessor,
        address: u64,
        kind: Type,
        scope: crate::race::Scope,
        (acquire, release): (bool, bool),
        next: impl Fn(u64) -> u64,
    ) -> Result<u64, Stop> {
        let bytes = kind.bytes();
        let allocation = self.allocation(who, address, bytes, true)?;
        // Links corrupt stores, not what is done at the other end.
        self.corrupt_store = false;
        if self.launched.uninitialised && !allocation.is_written(address, bytes) {
            let detail = format!("atomic access to {bytes} bytes of which nobody has written all");
            self.fault_at(FaultKind::Uninitialised, who, address, detail)?;
        }
        let mut conflict = None;
        let strength = Strength::Relaxed(scope);
        let access = self.access_of(who, strength, bytes);
        let lock = self.clock.as_mut().map(|clock| {
            let mut page = allocation.page(address).lock().unwrap_or_else(PoisonError::into_inner);
            conflict =
                note_update(&mut page, clock, (address % PAGE_BYTES) as usize, bytes, access, scope, acquire, release);
            page
        });
        let old = allocation.update(address, bytes, next);
        drop(lock);
        if let Some(other) = conflict {
            self.report_race(who, true, bytes, address, strength, other)?;
        }
        Ok(old)
    }

    /// Checks an access to shared memory; answers where it begins.
    fn shared_range(&mut self, who: Accessor, address: u64, bytes: u32, is_write: bool) -> Result<usize, Stop> {
        if !address.is_multiple_of(u64::from(bytes)) {
            let detail = format!("{} in shared memory, which must be aligned to as many,", name_of(is_write, bytes));
            self.fault_at(FaultKind::Misaligned, who, address, detail)?;
        }
        let size = self.shared.bytes.len() as u64;
        if address >= size || u64::from(bytes) > size - address {
            let detail = format!("{} outside the block's {size} bytes of shared memory", name_of(is_write, bytes));
            self.fault_at(FaultKind::OutOfBounds, who, address, detail)?;
        }
        Ok(address as usize)
    }

    pub(super) fn load_shared(
        &mut self,
        who: Accessor,
        address: u64,
        bytes: u32,
        count: usize,
        strength: Strength,
        values: &mut [u64; 8],
    ) -> Result<(), Stop> {
        let total = bytes * count as u32;
        let at = self.shared_range(who, address, total, false)?;
        if self.launched.uninitialised && !self.shared.written[at..at + total as usize].iter().all(|&written| written) {
            let detail = format!("{} in shared memory of which nobody has written all", name_of(false, total));
            self.fault_at(FaultKind::Uninitialised, who, address, detail)?;
        }
        let access = self.access_of(who, strength, bytes);
        if let Some(clock) = &mut self.clock {
            let page = &mut self.shared.pages[at / PAGE_BYTES as usize];
            if let Some(other) = note_load(page, clock, at % PAGE_BYTES as usize, bytes, count, access, strength) {
                self.report_race(who, false, total, address, strength, other)?;
            }
        }
        for (index, value) in values.iter_mut().enumerate().take(count) {
            let from = at + index * bytes as usize;
            *value = element(&self.shared.bytes[from..from + bytes as usize]);
        }
        Ok(())
    }

    pub(super) fn store_shared(
        &mut self,
        who: Accessor,
        address: u64,
        bytes: u32,
        count: usize,
        strength: Strength,
        values: &[u64; 8],
    ) -> Result<(), Stop> {
        let total = bytes * count as u32;
        let at = self.shared_range(who, address, total, true)?;
        let access = self.access_of(who, strength, bytes);
        if let Some(clock) = &mut self.clock {
            let page = &mut self.shared.pages[at / PAGE_BYTES as usize];
            if let Some(other) = note_store(page, clock, at % PAGE_BYTES as usize, bytes, count, access, strength) {
                self.report_race(who, true, total, address, strength, other)?;
            }
        }
        self.shared.written[at..at + total as usize].fill(true);
        for (index, value) in values.iter().enumerate().take(count) {
            let from = at + index * bytes as usize;
            self.shared.bytes[from..from + bytes as usize].copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
        }
        Ok(())
    }

    pub(super) fn update_shared(
        &mut self,
        who: Accessor,
        address: u64,
        kind: Type,
        scope: crate::race::Scope,
        (acquire, release): (bool, bool),
        next: impl Fn(u64) -> u64,
    ) -> Result<u64, Stop> {
        let bytes = kind.bytes();
        let at = self.shared_range(who, address, bytes, true)?;
        let range = at..at + bytes as usize;
        if self.launched.uninitialised && !self.shared.written[range.clone()].iter().all(|&written| written) {
            let detail = format!("atomic access to {bytes} bytes of shared memory of which nobody has written all");
            self.fault_at(FaultKind::Uninitialised, who, address, detail)?;
        }
        let strength = Strength::Relaxed(scope);
        let access = self.access_of(who, strength, bytes);
        if let Some(clock) = &mut self.clock {
            let page = &mut self.shared.pages[at / PAGE_BYTES as usize];
            if let Some(other) =
                note_update(page, clock, at % PAGE_BYTES as usize, bytes, access, scope, acquire, release)
            {
                self.report_race(who, true, bytes, address, strength, other)?;
            }
        }
        let old = element(&self.shared.bytes[range.clone()]);
        self.shared.bytes[range].copy_from_slice(&next(old).to_le_bytes()[..bytes as usize]);
        Ok(old)
    }

    /// The members of a multicast group at an address.
    pub(super) fn multicast(&mut self, who: Accessor, address: u64, bytes: u32) -> Result<Vec<u64>, Stop> {
        if !address.is_multiple_of(u64::from(bytes)) {
            let detail = format!("multimem access to {bytes} bytes, which must be aligned to as many,");
            self.fault_at(FaultKind::Misaligned, who, address, detail)?;
        }
        let launched = self.launched.clone();
        match self.cache.find(&launched.memory, address) {
            Some(found) if found.kind == MemoryKind::Multicast && found.contains(address, bytes.into()) => {
                let members = found.members.read().unwrap_or_else(PoisonError::into_inner);
                if !found.is_granted(launched.device, || true) {
                    let detail = format!(
                        "multimem access to a multicast group that device {} has no access to",
                        launched.device
                    );
                    self.fault_at(FaultKind::OutOfBounds, who, address, detail)?;
                }
                if members.is_empty() {
                    let detail = "multimem access where no member of the multicast group has memory".to_owned();
                    self.fault_at(FaultKind::OutOfBounds, who, address, detail)?;
                }
                Ok(members.iter().map(|member| member + (address - found.base)).collect())
            }
            _ => {
                let detail = format!("multimem access to {bytes} bytes outside any multicast group");
                self.fault_at(FaultKind::OutOfBounds, who, address, detail)?;
                Err(Stop)
            }
        }
    }
}

pub(crate) fn note_load(
    page: &mut Page,
    clock: &mut crate::race::BlockClock,
    offset: usize,
    bytes: u32,
    count: usize,
    access: Access,
    strength: Strength,
) -> Option<(Access, bool)> {
    if strength == Strength::Weak {
        return page.access(offset, bytes as usize * count, access, false, &clock.view(access.thread));
    }
    let mut conflict = None;
    for index in 0..count {
        let at = offset + index * bytes as usize;
        conflict = conflict.or(page.access(at, bytes as usize, access, false, &clock.view(access.thread)));
        if let Some(scope) = scope_of(strength) {
            clock.read_strong(access.thread, matches!(strength, Strength::Ordered(_)), scope, page.released(at));
        }
    }
    conflict
}

pub(crate) fn note_store(
    page: &mut Page,
    clock: &mut crate::race::BlockClock,
    offset: usize,
    bytes: u32,
    count: usize,
    access: Access,
    strength: Strength,
) -> Option<(Access, bool)> {
    if strength == Strength::Weak {
        page.clear_released(offset, bytes as usize * count);
        return page.access(offset, bytes as usize * count, access, true, &clock.view(access.thread));
    }
    let mut conflict = None;
    for index in 0..count {
        let at = offset + index * bytes as usize;
        conflict = conflict.or(page.access(at, bytes as usize, access, true, &clock.view(access.thread)));
        if let Some(scope) = scope_of(strength) {
            let records = clock.write_strong(access.thread, matches!(strength, Strength::Ordered(_)), scope);
            page.release(at, bytes as usize, records, false);
        }
    }
    conflict
}

#[expect(clippy::too_many_arguments, reason = "all of it is the access")]
fn note_update(
    page: &mut Page,
    clock: &mut crate::race::BlockClock,
    offset: usize,
    bytes: u32,
    access: Access,
    scope: crate::race::Scope,
    acquire: bool,
    release: bool,
) -> Option<(Access, bool)> {
    let conflict = page.access(offset, bytes as usize, access, true, &clock.view(access.thread));
    clock.read_strong(access.thread, acquire, scope, page.released(offset));
    let records = clock.write_strong(access.thread, release, scope);
    page.release(offset, bytes as usize, records, true);
    conflict
}

/// What an atomic makes of the old value.
pub(super) fn updated(update: Update, kind: Type, old: u64, a: u64, swap: u64) -> u64 {
    let bytes = kind.bytes();
    let signed = |value: u64| sign_extend(value, bytes) as i64;
    let value = match update {
        Update::Exchange => a,
        Update::CompareAndSwap => {
            if old == a & mask_of(bytes) {
                swap
            } else {
                old
            }
        }
        Update::And => old & a,
        Update::Or => old | a,
        Update::Xor => old ^ a,
        Update::Add if kind.is_integer() => old.wrapping_add(a),
        Update::Add => add_float(kind, old, a),
        Update::Min if kind.is_signed() => {
            if signed(a) < signed(old) {
                a
            } else {
                old
            }
        }
        Update::Max if kind.is_signed() => {
            if signed(a) > signed(old) {
                a
            } else {
                old
            }
        }
        Update::Min if kind.is_integer() => old.min(a & mask_of(bytes)),
        Update::Max if kind.is_integer() => old.max(a & mask_of(bytes)),
        Update::Min => min_float(kind, old, a),
        Update::Max => max_float(kind, old, a),
        Update::Increment => {
            if old >= a {
                0
            } else {
                old + 1
            }
        }
        Update::Decrement => {
            if old == 0 || old > a {
                a
            } else {
                old - 1
            }
        }
    };
    value & mask_of(bytes)
}

/// Whether a generic address lies in one of the windows.
pub(super) fn window(address: u64) -> u64 {
    address & WINDOW_MASK
}
