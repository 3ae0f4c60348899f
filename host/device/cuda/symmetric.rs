//! Symmetric memory: pieces at the same places of every rank's device, which a switch reaches all at once through one more address, the
//! multicast one.
//!
//! A segment is a piece of memory on each device, mapped for all of them, and a multicast object that is bound to all of these pieces,
//! mapped too. Each rank hands out its own part of the segments, in an order that depends on nothing but the sizes that it is asked
//! for; so ranks that allocate the same get the same places, without a word to each other. Whoever is the first to need another
//! segment makes it for all.
//!
//! **Invariant.** Whether ranks really pass the same places is for the caller to compare; here is only said which these are.

use std::sync::{Arc, Mutex};

use super::heap::{Chunk, Heap};
use super::mapped::MappedMemory;
use super::result::Failure;
use super::safe::Device;
use crate::sync::lock;

/// See the module.
pub(crate) struct Symmetric {
    /// By rank; each stands there once.
    devices: Vec<Device>,
    granularity: usize,
    segments: Mutex<Vec<Arc<Segment>>>,
    /// Held by who makes another one, which may take long; calls look at those that there are meanwhile.
    making: Mutex<()>,
    /// By rank.
    parts: Vec<Mutex<Part>>,
}

/// What a rank hands out.
#[derive(Default)]
struct Part {
    heap: Heap<Piece>,
    /// How many segments it has come past.
    segments: usize,
}

/// A rank's part of a segment.
struct Piece {
    segment: Arc<Segment>,
    rank: usize,
}

impl Chunk for Piece {
    fn address(&self) -> u64 {
        self.segment.pieces[self.rank].address()
    }
}

struct Segment {
    /// It is bound to the pieces, and so goes first.
    multicast: MappedMemory,
    /// By rank.
    pieces: Vec<MappedMemory>,
}

/// Symmetric memory of one rank's.
pub(crate) struct SymmetricMemory {
    symmetric: Arc<Symmetric>,
    rank: usize,
    address: u64,
    bytes: usize,
}

impl SymmetricMemory {
    /// The device of its rank.
    pub(crate) fn device(&self) -> &Device {
        &self.symmetric.devices[self.rank]
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for SymmetricMemory {
    fn drop(&mut self) {
        lock(&self.symmetric.parts[self.rank]).heap.give(self.address, self.bytes);
    }
}

/// Where a buffer is in symmetric memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The same on all ranks whose buffers are at the same place, and another one for any other place; never zero.
    pub(crate) name: u64,
    /// Where a switch reaches the place in every rank's memory.
    pub(crate) multicast: u64,
}

/// Bits of a place's name that say where it is in its segment.
const OFFSET_BITS: u32 = 48;

impl Symmetric {
    /// For ranks on these devices, of which each stands there once and takes part in multicast.
    pub(crate) fn new(devices: &[Device]) -> Result<Symmetric, Failure> {
        Ok(Symmetric {
            granularity: MappedMemory::multicast_granularity(devices)?,
            devices: devices.to_vec(),
            segments: Mutex::default(),
            making: Mutex::default(),
            parts: devices.iter().map(|_| Mutex::default()).collect(),
        })
    }

    /// Memory of a rank's, of which nothing is known.
    pub(crate) fn allocate(self: &Arc<Symmetric>, rank: usize, bytes: usize) -> Result<SymmetricMemory, Failure> {
        let mut part = lock(&self.parts[rank]);
        let Part { heap, segments } = &mut *part;
        let address = heap.take(bytes, |bytes| {
            let (index, segment) = self.segment(*segments, bytes)?;
            *segments = index + 1;
            Ok(Piece { segment, rank })
        })?;
        Ok(SymmetricMemory { symmetric: Arc::clone(self), rank, address, bytes })
    }

    /// Where so many bytes of a rank's are, if they are here.
    pub(crate) fn place(&self, rank: usize, address: u64, bytes: usize) -> Option<Place> {
        let segments = lock(&self.segments);
        segments.iter().enumerate().find_map(|(index, segment)| {
            let piece = &segment.pieces[rank];
            let offset = address.checked_sub(piece.address())?;
            let fits = offset.checked_add(bytes as u64)? <= piece.bytes() as u64;
            fits.then(|| Place {
                name: (index as u64 + 1) << OFFSET_BITS | offset,
                multicast: segment.multicast.address() + offset,
            })
        })
    }

    /// The first segment of at least so many bytes, from the `first` on; a new one if there is none.
    fn segment(&self, first: usize, bytes: usize) -> Result<(usize, Arc<Segment>), Failure> {
        let _making = lock(&self.making);
        let has_room = |segment: &Arc<Segment>| segment.multicast.bytes() >= bytes;
        let there = lock(&self.segments).iter().cloned().enumerate().skip(first).find(|(_, segment)| has_room(segment));
        if let Some(there) = there {
            return Ok(there);
        }
        let segment = Arc::new(self.new_segment(bytes.next_multiple_of(self.granularity))?);
        let mut segments = lock(&self.segments);
        segments.push(Arc::clone(&segment));
        Ok((segments.len() - 1, segment))
    }

    fn new_segment(&self, bytes: usize) -> Result<Segment, Failure> {
        let piece = |device: &Device| MappedMemory::new(device, &self.devices, bytes, self.granularity);
        let pieces = self.devices.iter().map(piece).collect::<Result<Vec<MappedMemory>, Failure>>()?;
        Ok(Segment { multicast: MappedMemory::multicast(&self.devices, &pieces, self.granularity)?, pieces })
    }
}
