//! Memory that is handed out in pieces: a driver's own allocations are slow, and freeing them waits for kernels.
//!
//! Pieces come from large allocations and go back to lists by size. The allocations themselves live as long as the heap.

use std::collections::HashMap;

use super::result::Failure;

/// What pieces are aligned to: as much as any access or slot asks for.
pub(crate) const ALIGNMENT: usize = 256;

/// Bytes of an allocation from which pieces come.
const CHUNK_BYTES: usize = 4 << 20;

/// Memory of the driver's.
pub(crate) trait Chunk {
    fn address(&self) -> u64;
}

/// See the module.
pub(crate) struct Heap<C> {
    chunks: Vec<C>,
    /// What is left of the last chunk.
    next: u64,
    end: u64,
    free: HashMap<usize, Vec<u64>>,
}

impl<C> Default for Heap<C> {
    fn default() -> Heap<C> {
        Heap { chunks: Vec::new(), next: 0, end: 0, free: HashMap::new() }
    }
}

/// The size of the piece that holds so many bytes: rounded so that there are few sizes.
fn class_of(bytes: usize) -> usize {
    let bytes = bytes.max(ALIGNMENT);
    let grain = (bytes.next_power_of_two() / 8).max(ALIGNMENT);
    bytes.next_multiple_of(grain)
}

impl<C: Chunk> Heap<C> {
    /// A piece of so many bytes; `allocate` makes a chunk.
    pub(crate) fn take(
        &mut self,
        bytes: usize,
        allocate: impl FnOnce(usize) -> Result<C, Failure>,
    ) -> Result<u64, Failure> {
        let class = class_of(bytes);
        if let Some(address) = self.free.get_mut(&class).and_then(Vec::pop) {
            return Ok(address);
        }
        if class > CHUNK_BYTES / 4 {
            let chunk = allocate(class)?;
            let address = chunk.address();
            self.chunks.push(chunk);
            return Ok(address);
        }
        if (self.end - self.next) < class as u64 {
            let chunk = allocate(CHUNK_BYTES)?;
            self.next = chunk.address();
            self.end = self.next + CHUNK_BYTES as u64;
            self.chunks.push(chunk);
        }
        let address = self.next;
        self.next += class as u64;
        Ok(address)
    }

    /// Gives a piece back. Nobody uses it any more.
    pub(crate) fn give(&mut self, address: u64, bytes: usize) {
        self.free.entry(class_of(bytes)).or_default().push(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(u64);

    impl Chunk for Fake {
        fn address(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn pieces_do_not_overlap_and_come_back_by_size() {
        let (mut heap, mut made, mut made_first) = (Heap::default(), 0, 0);
        let mut pieces: Vec<(u64, usize)> = Vec::new();
        for round in 0..3 {
            for bytes in [1, 256, 257, 5000, 100_000, 1 << 20, 5 << 20, 1] {
                let address = heap
                    .take(bytes, |bytes| {
                        made += 1;
                        assert!(bytes >= CHUNK_BYTES / 4);
                        Ok(Fake(made << 32))
                    })
                    .expect("there is memory");
                assert!(address.is_multiple_of(ALIGNMENT as u64));
                assert!(
                    pieces
                        .iter()
                        .all(|(other, size)| { address + bytes as u64 <= *other || other + *size as u64 <= address })
                );
                pieces.push((address, bytes));
            }
            if round == 0 {
                made_first = made;
            }
            assert_eq!(made, made_first, "what came back is used again");
            for (address, bytes) in pieces.drain(..) {
                heap.give(address, bytes);
            }
        }
    }
}
