//! Between threads of one process: a connection is memory on the heap, and both sides have the same address for it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Mutex;

use tutti_kernels::layout::{Counter, LINE_BYTES, ReceiveEnd, SLOT_HEADER_BYTES, SendEnd};

use super::{ConnectionKey, Guarantees, NoMemory, Transport};
use crate::plan::Geometry;
use crate::sync::lock;

/// See the module.
pub(crate) struct InProcess {
    geometry: Geometry,
    connections: Mutex<HashMap<ConnectionKey, Memory>>,
}

/// The `empty` counter and the slots of one connection.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory belongs to no thread; both sides access it through the interpreter's protocol.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `Memory::new`; the ends that point here go before the transport does.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl InProcess {
    pub(crate) fn new(geometry: Geometry) -> InProcess {
        InProcess { geometry, connections: Mutex::new(HashMap::new()) }
    }

    fn slot_stride_bytes(&self) -> usize {
        (SLOT_HEADER_BYTES + self.geometry.slot_bytes as usize).next_multiple_of(LINE_BYTES)
    }

    /// The `empty` counter and the first slot.
    fn memory(&self, key: ConnectionKey) -> Result<(*mut Counter, *mut u8), NoMemory> {
        let mut connections = lock(&self.connections);
        let memory = match connections.entry(key) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let needed_bytes = self.connection_bytes();
                let layout = usize::try_from(needed_bytes)
                    .ok()
                    .and_then(|bytes| Layout::from_size_align(bytes, COUNTER_BYTES).ok())
                    .ok_or(NoMemory { needed_bytes })?;
                // SAFETY: the layout has a size, since a connection has counters.
                let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(NoMemory { needed_bytes })?;
                #[cfg(loom)]
                self.share(start.as_ptr());
                entry.insert(Memory { start, layout })
            }
        };
        let start = memory.start.as_ptr();
        // SAFETY: the layout has room for the counter in front of the slots.
        unsafe { Ok((start.cast(), start.add(COUNTER_BYTES))) }
    }
}

#[cfg(loom)]
impl InProcess {
    /// Tells the model checker of a connection's memory.
    fn share(&self, start: *mut u8) {
        let Geometry { slot_bytes, slots } = self.geometry;
        let (stride_bytes, slots, slot_bytes) = (self.slot_stride_bytes(), slots as usize, slot_bytes as usize);
        // SAFETY: the memory has just been allocated for these, and nothing has been carried.
        unsafe {
            let first_slot = start.add(COUNTER_BYTES);
            tutti_kernels::model::share_connection(start.cast(), first_slot, stride_bytes, slots, slot_bytes);
        }
    }
}

/// The counter and the line after it: some processors fetch lines in pairs.
const COUNTER_BYTES: usize = 2 * LINE_BYTES;

impl Transport for InProcess {
    fn guarantees(&self) -> Guarantees {
        Guarantees { windows: true }
    }

    fn connection_bytes(&self) -> u64 {
        COUNTER_BYTES as u64 + u64::from(self.geometry.slots) * self.slot_stride_bytes() as u64
    }

    fn connect_send(&self, key: ConnectionKey) -> Result<SendEnd, NoMemory> {
        let (empty, slots) = self.memory(key)?;
        Ok(SendEnd {
            slots,
            slot_stride_bytes: self.slot_stride_bytes() as u64,
            empty,
            sent: 0,
            credit: 0,
            slot_count: self.geometry.slots,
            peer: key.to as u32,
        })
    }

    fn connect_receive(&self, key: ConnectionKey) -> Result<ReceiveEnd, NoMemory> {
        let (empty, slots) = self.memory(key)?;
        Ok(ReceiveEnd {
            slots,
            slot_stride_bytes: self.slot_stride_bytes() as u64,
            empty,
            received: 0,
            slot_count: self.geometry.slots,
            peer: key.from as u32,
        })
    }
}
