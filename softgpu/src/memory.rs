//! Memory that kernels reach: allocations at real host addresses, and what is known of their bytes.
//!
//! The only unsafe code of the crate is here. Every access by a kernel or through this module is atomic, so that a race
//! in the PTX, or of the PTX with the host, is not undefined behaviour of the executor. Loads acquire and stores release,
//! so that a host thread that follows flags with Rust's own atomics sees what it may expect.
//!
//! An address lies in at most one live allocation. Freed memory leaves the table at once, and is returned to the system
//! when the last block that has looked it up lets go of it.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::race::Page;

/// What device allocations are aligned to, as those of CUDA are.
const ALLOCATION_ALIGNMENT: usize = 512;

/// Bytes under one lock of the race detector: what a warp accesses at once, so that warps seldom meet.
pub(crate) const PAGE_BYTES: u64 = 512;

/// Freed ranges that are remembered, so that a late access is told from a wild one.
const FREED_MAX: usize = 1024;

/// What kind of memory an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// A device's own.
    Device,
    /// The host's, allocated here (pinned).
    Host,
    /// The host's, allocated elsewhere and registered; its bytes count as written.
    Registered,
    /// A multicast group: addresses of `multimem` instructions, which reach the same offset of each member.
    Multicast,
}

/// Errors of the memory's interface to the host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The system has no more.
    #[error("no memory for {bytes} bytes")]
    Exhausted {
        /// How many were asked for.
        bytes: u64,
    },
    /// Bytes that belong to no allocation.
    #[error("expected {bytes} bytes of one allocation at {address:#x}, found {found}")]
    NotAllocated {
        /// The first byte.
        address: u64,
        /// How many.
        bytes: u64,
        /// What is there.
        found: String,
    },
    /// Memory that overlaps what is already known.
    #[error("expected unregistered memory at {address:#x}, found an allocation that overlaps it")]
    Overlap {
        /// The first byte.
        address: u64,
    },
    /// An address that is not the start of an allocation.
    #[error("expected the start of an allocation, found {address:#x}")]
    NotAStart {
        /// The address.
        address: u64,
    },
    /// An access by the host that nothing orders with one by a kernel.
    #[error("{0}")]
    Race(Box<crate::Fault>),
}

/// The race detector's notes, page by page, made when they are needed.
type Shadow = Box<[OnceLock<Box<Mutex<Page>>>]>;

/// A range of addresses in which allocations can be placed.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) base: u64,
    bytes: u64,
    raw: u64,
    layout: Layout,
}

impl Span {
    pub(crate) fn new(bytes: u64, alignment: u64) -> Result<Span, MemoryError> {
        let exhausted = || MemoryError::Exhausted { bytes };
        let size = usize::try_from(bytes.max(1)).map_err(|_| exhausted())?;
        let alignment = usize::try_from(alignment).map_err(|_| exhausted())?.max(ALLOCATION_ALIGNMENT);
        // Aligned by hand: asked for more alignment than its own, the system would touch every page to make it zero.
        let layout = size.checked_add(alignment).and_then(|total| Layout::from_size_align(total, 16).ok());
        let layout = layout.ok_or_else(exhausted)?;
        // SAFETY: the layout is not empty.
        let raw = unsafe { alloc_zeroed(layout) };
        if raw.is_null() {
            return Err(exhausted());
        }
        let raw = raw.expose_provenance() as u64;
        Ok(Span { base: raw.next_multiple_of(alignment as u64), bytes: size as u64, raw, layout })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // SAFETY: `Span::new` allocated this address with this layout, and nothing else frees it.
        unsafe { dealloc(self.raw as *mut u8, self.layout) };
    }
}

/// Whose the bytes of an allocation are.
#[derive(Debug)]
enum Backing {
    /// Its own (or those of a reservation, which several may share).
    Span(#[expect(dead_code, reason = "holds the memory")] Arc<Span>),
    /// Somebody else's, registered.
    Foreign,
}

/// A range of memory.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) kind: MemoryKind,
    pub(crate) device: u32,
    backing: Backing,
    /// For memory with access rights of its own: the devices that may touch it, a bit each.
    granted: Option<AtomicU64>,
    /// A bit for each byte that has been written; absent where all bytes count as written.
    written: OnceLock<Box<[AtomicU64]>>,
    shadow: OnceLock<Shadow>,
    /// For a multicast group: the members' addresses.
    pub(crate) members: RwLock<Vec<u64>>,
}

macro_rules! by_width {
    ($self:ident, $address:ident, $bytes:ident, |$cell:ident: $kind:ident| $body:expr) => {{
        assert!(
            $address >= $self.base && $address - $self.base <= $self.bytes.saturating_sub($bytes.into())
                && $address % u64::from($bytes) == 0 && u64::from($bytes) <= $self.bytes,
            "an access was not checked before it was made"
        );
        // SAFETY, in each arm: the assertion above says that the bytes lie in this allocation and are aligned. The memory is
        // alive as long as `self` (owned by it, or registered under that promise), and whoever else touches it does so
        // atomically or not at the same time, as `Memory::register` demands of the host.
        match $bytes {
            1 => {
                type $kind = u8;
                // SAFETY: as above.
                let $cell = unsafe { AtomicU8::from_ptr($address as *mut u8) };
                $body
            }
            2 => {
                type $kind = u16;
                // SAFETY: as above.
                let $cell = unsafe { AtomicU16::from_ptr($address as *mut u16) };
                $body
            }
            4 => {
                type $kind = u32;
                // SAFETY: as above.
                let $cell = unsafe { AtomicU32::from_ptr($address as *mut u32) };
                $body
            }
            _ => {
                type $kind = u64;
                // SAFETY: as above.
                let $cell = unsafe { AtomicU64::from_ptr($address as *mut u64) };
                $body
            }
        }
    }};
}

impl Allocation {
    /// Whether `bytes` bytes at `address` lie inside.
    #[inline(always)]
    pub(crate) fn contains(&self, address: u64, bytes: u64) -> bool {
        let offset = address.wrapping_sub(self.base);
        offset < self.bytes && bytes <= self.bytes - offset
    }

    /// Loads 1, 2, 4 or 8 aligned bytes.
    #[inline(always)]
    pub(crate) fn load(&self, address: u64, bytes: u32) -> u64 {
        #[allow(clippy::useless_conversion)]
        {
            by_width!(self, address, bytes, |cell: Kind| {
                let value: Kind = cell.load(Ordering::Acquire);
                u64::from(value)
            })
        }
    }

    /// Stores 1, 2, 4 or 8 aligned bytes.
    #[inline(always)]
    pub(crate) fn store(&self, address: u64, bytes: u32, value: u64) {
        by_width!(self, address, bytes, |cell: Kind| cell.store(value as Kind, Ordering::Release));
    }

    /// Replaces 1, 2, 4 or 8 aligned bytes by a function of them, as one atomic operation; answers what they were.
    pub(crate) fn update(&self, address: u64, bytes: u32, mut next: impl FnMut(u64) -> u64) -> u64 {
        #[allow(clippy::useless_conversion)]
        {
            by_width!(self, address, bytes, |cell: Kind| {
                let mut old: Kind = cell.load(Ordering::SeqCst);
                loop {
                    match cell.compare_exchange_weak(
                        old,
                        next(u64::from(old)) as Kind,
                        Ordering::SeqCst,
                        Ordering::SeqCst,
                    ) {
                        Ok(old) => break u64::from(old),
                        Err(newer) => old = newer,
                    }
                }
            })
        }
    }

    fn bits(&self) -> Option<&[AtomicU64]> {
        if matches!(self.backing, Backing::Foreign) {
            return None;
        }
        Some(self.written.get_or_init(|| (0..self.bytes.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()))
    }

    /// Whether the bytes (aligned, at most 32) have all been written.
    #[inline(always)]
    pub(crate) fn is_written(&self, address: u64, bytes: u32) -> bool {
        let Some(bits) = self.bits() else { return true };
        let offset = address - self.base;
        let mask = ((1u64 << bytes) - 1) << (offset % 64);
        bits[(offset / 64) as usize].load(Ordering::Relaxed) & mask == mask
    }

    /// Notes that the bytes (aligned, at most 32) have been written.
    #[inline(always)]
    pub(crate) fn mark_written(&self, address: u64, bytes: u32) {
        let Some(bits) = self.bits() else { return };
        let offset = address - self.base;
        let mask = ((1u64 << bytes) - 1) << (offset % 64);
        let word = &bits[(offset / 64) as usize];
        if word.load(Ordering::Relaxed) & mask != mask {
            word.fetch_or(mask, Ordering::Relaxed);
        }
    }

    /// Notes that the bytes (aligned, at most 32) count as not written.
    pub(crate) fn mark_unwritten(&self, address: u64, bytes: u32) {
        let Some(bits) = self.bits() else { return };
        let offset = address - self.base;
        let mask = ((1u64 << bytes) - 1) << (offset % 64);
        bits[(offset / 64) as usize].fetch_and(!mask, Ordering::Relaxed);
    }

    /// Whether a device may touch it: by its own rights, else by the device's reach.
    #[inline(always)]
    pub(crate) fn is_granted(&self, device: u32, otherwise: impl FnOnce() -> bool) -> bool {
        match &self.granted {
            None => otherwise(),
            Some(granted) => device < 64 && granted.load(Ordering::Relaxed) >> device & 1 != 0,
        }
    }

    /// Sets whether a device may touch it; answers false for memory without rights of its own.
    pub(crate) fn grant(&self, device: u32, allowed: bool) -> bool {
        let Some(granted) = self.granted.as_ref().filter(|_| device < 64) else { return false };
        if allowed {
            granted.fetch_or(1 << device, Ordering::Relaxed);
        } else {
            granted.fetch_and(!(1 << device), Ordering::Relaxed);
        }
        true
    }

    /// The race detector's notes on the page in which `address` lies.
    pub(crate) fn page(&self, address: u64) -> &Mutex<Page> {
        let first = self.base / PAGE_BYTES;
        let count = (self.base + self.bytes).div_ceil(PAGE_BYTES) - first;
        let pages = self.shadow.get_or_init(|| (0..count).map(|_| OnceLock::new()).collect());
        pages[(address / PAGE_BYTES - first) as usize].get_or_init(Box::default)
    }
}

/// The table of all allocations.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    table: RwLock<BTreeMap<u64, Arc<Allocation>>>,
    freed: Mutex<VecDeque<(u64, u64)>>,
    /// Moves whenever the table loses an entry, so that what blocks remember is looked up again.
    generation: AtomicU64,
    /// Locks for the 128-byte lines of which strong vector accesses are whole.
    lines: LineLocks,
}

#[derive(Debug)]
struct LineLocks(Box<[Mutex<()>]>);

impl Default for LineLocks {
    fn default() -> LineLocks {
        LineLocks((0..256).map(|_| Mutex::new(())).collect())
    }
}

impl Memory {
    /// A new allocation.
    pub(crate) fn allocate(&self, bytes: u64, kind: MemoryKind, device: u32) -> Result<u64, MemoryError> {
        let span = Span::new(bytes, ALLOCATION_ALIGNMENT as u64)?;
        let base = span.base;
        self.insert(base, bytes.max(1), kind, device, Backing::Span(Arc::new(span)), None);
        Ok(base)
    }

    /// A new allocation at an offset of a span, with access rights of its own, which nobody has yet.
    pub(crate) fn place(
        &self,
        span: &Arc<Span>,
        offset: u64,
        bytes: u64,
        kind: MemoryKind,
        device: u32,
    ) -> Result<u64, MemoryError> {
        let address = span.base + offset;
        if bytes == 0 || offset > span.bytes() || bytes > span.bytes() - offset {
            return Err(MemoryError::NotAllocated { address, bytes, found: "less of the reservation".to_owned() });
        }
        if self.overlaps(address, bytes) {
            return Err(MemoryError::Overlap { address });
        }
        self.insert(address, bytes, kind, device, Backing::Span(span.clone()), Some(AtomicU64::new(0)));
        Ok(address)
    }

    fn overlaps(&self, address: u64, bytes: u64) -> bool {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let before = table.range(..address.saturating_add(bytes)).next_back();
        before.is_some_and(|(_, found)| found.base + found.bytes > address)
    }

    /// Makes memory of the host usable by kernels at its own address.
    ///
    /// # Safety
    /// The memory stays valid for reads and writes until it is unregistered, no launch that may touch it is running any more by then,
    /// and while one is running, whoever else touches it does so with atomics.
    pub(crate) unsafe fn register(&self, base: *mut u8, bytes: u64) -> Result<(), MemoryError> {
        let address = base.expose_provenance() as u64;
        let overlaps = self.overlaps(address, bytes);
        if overlaps || bytes == 0 {
            return Err(MemoryError::Overlap { address });
        }
        self.insert(address, bytes, MemoryKind::Registered, 0, Backing::Foreign, None);
        Ok(())
    }

    fn insert(
        &self,
        base: u64,
        bytes: u64,
        kind: MemoryKind,
        device: u32,
        backing: Backing,
        granted: Option<AtomicU64>,
    ) {
        let allocation = Allocation {
            base,
            bytes,
            kind,
            device,
            backing,
            granted,
            written: OnceLock::new(),
            shadow: OnceLock::new(),
            members: RwLock::default(),
        };
        self.freed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|&(freed, length)| freed + length <= base || freed >= base + bytes);
        self.table.write().unwrap_or_else(PoisonError::into_inner).insert(base, Arc::new(allocation));
    }

    /// Takes an allocation (or a registration) out of the table.
    pub(crate) fn free(&self, address: u64) -> Result<(), MemoryError> {
        let removed = self.table.write().unwrap_or_else(PoisonError::into_inner).remove(&address);
        let removed = removed.ok_or(MemoryError::NotAStart { address })?;
        self.generation.fetch_add(1, Ordering::SeqCst);
        let mut freed = self.freed.lock().unwrap_or_else(PoisonError::into_inner);
        if freed.len() == FREED_MAX {
            freed.pop_front();
        }
        freed.push_back((removed.base, removed.bytes));
        Ok(())
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The allocation in which an address lies.
    pub(crate) fn find(&self, address: u64) -> Option<Arc<Allocation>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let (_, found) = table.range(..=address).next_back()?;
        found.contains(address, 1).then(|| found.clone())
    }

    /// The allocation that holds all of a range, for the host.
    pub(crate) fn find_range(&self, address: u64, bytes: u64) -> Result<Arc<Allocation>, MemoryError> {
        match self.find(address) {
            Some(found) if found.contains(address, bytes) || bytes == 0 => Ok(found),
            _ => Err(MemoryError::NotAllocated { address, bytes, found: self.describe(address) }),
        }
    }

    /// What is at and around an address, in words.
    pub(crate) fn describe(&self, address: u64) -> String {
        if let Some(found) = self.find(address) {
            let left = found.base + found.bytes - address;
            return format!("{left} bytes, the end of an allocation of {} bytes at {:#x}", found.bytes, found.base);
        }
        let freed = self.freed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((base, bytes)) = freed.iter().rev().find(|(base, bytes)| (*base..base + bytes).contains(&address)) {
            return format!("an allocation of {bytes} bytes at {base:#x} that has been freed");
        }
        drop(freed);
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        match table.range(..=address).next_back() {
            Some((base, found)) if address - (base + found.bytes) < 1 << 20 => {
                let beyond = address - (base + found.bytes);
                format!("no allocation; it is {beyond} bytes after one of {} bytes at {base:#x}", found.bytes)
            }
            _ => "no allocation".to_owned(),
        }
    }

    /// The lock of a 128-byte line.
    pub(crate) fn line(&self, address: u64) -> &Mutex<()> {
        &self.lines.0[(address / 128 % self.lines.0.len() as u64) as usize]
    }
}

/// Calls `each` with the address and width (a power of two up to 8) of the aligned pieces of a range.
pub(crate) fn pieces(address: u64, bytes: u64, mut each: impl FnMut(u64, u32)) {
    let (mut at, end) = (address, address + bytes);
    while at < end {
        let mut width = 8;
        while at % width != 0 || width > end - at {
            width /= 2;
        }
        each(at, width as u32);
        at += width;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_their_allocation_until_it_is_freed() {
        let memory = Memory::default();
        let base = memory.allocate(100, MemoryKind::Device, 3).unwrap();
        assert_eq!(base % 512, 0);
        assert_eq!(memory.find(base + 99).unwrap().device, 3);
        assert!(memory.find(base + 100).is_none());
        assert!(memory.describe(base + 104).contains("4 bytes after one of 100 bytes"));
        assert!(memory.free(base + 1).is_err());
        memory.free(base).unwrap();
        assert!(memory.find(base).is_none() && memory.describe(base + 7).contains("has been freed"));
    }

    #[test]
    fn bytes_count_as_written_one_by_one() {
        let memory = Memory::default();
        let allocation = memory.find(memory.allocate(256, MemoryKind::Device, 0).unwrap()).unwrap();
        allocation.mark_written(allocation.base + 60, 4);
        assert!(allocation.is_written(allocation.base + 60, 4) && !allocation.is_written(allocation.base + 56, 8));
        allocation.store(allocation.base + 8, 2, 0x1234_5678);
        assert_eq!(allocation.load(allocation.base + 8, 8), 0x5678);
        assert_eq!(allocation.update(allocation.base + 8, 4, |old| old + 1), 0x5678);
        assert_eq!(allocation.load(allocation.base + 8, 1), 0x79);
    }

    #[test]
    fn registered_memory_may_not_overlap_and_counts_as_written() {
        let memory = Memory::default();
        let mut host = vec![0u64; 16];
        let address = host.as_mut_ptr().cast::<u8>();
        // SAFETY: the vector outlives the registration, and nothing runs.
        unsafe {
            memory.register(address, 128).unwrap();
            assert!(memory.register(address.add(64), 8).is_err());
        }
        assert!(memory.find(address as u64).unwrap().is_written(address as u64, 32));
        memory.free(address as u64).unwrap();
    }
}
