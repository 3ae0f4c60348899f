//! Buffers with guard bands: elements before and after the ones that a call is given, which no call may touch.

use crate::failure::Failure;
use crate::inputs::{Number, mix};
use std::ops::{Deref, DerefMut, Range};

/// Guard elements on either side.
const GUARD_ELEMENTS: usize = 256;

/// The buffer starts at a multiple of this many bytes, plus the elements that it is moved by.
const ALIGNMENT_BYTES: usize = 64;

/// A buffer between two guard bands.
pub(crate) struct Guarded<T> {
    elements: Vec<T>,
    start: usize,
    count: usize,
}

impl<T: Number> Guarded<T> {
    /// A buffer of `count` zeros that starts `unalign` elements after a cache line's start.
    pub(crate) fn new(count: usize, unalign: usize) -> Result<Guarded<T>, Failure> {
        Guarded::with(count, unalign, |elements: &[T]| {
            let to_line = elements.as_ptr().align_offset(ALIGNMENT_BYTES);
            if to_line < ALIGNMENT_BYTES / size_of::<T>() { to_line } else { 0 }
        })
    }

    /// A buffer of `count` zeros that starts `unalign` elements after a cache line's start where its [whole](Guarded::whole) is
    /// copied to a line's start.
    pub(crate) fn to_be_copied(count: usize, unalign: usize) -> Result<Guarded<T>, Failure> {
        Guarded::with(count, unalign, |_| 0)
    }

    fn with(count: usize, unalign: usize, to_line: impl FnOnce(&[T]) -> usize) -> Result<Guarded<T>, Failure> {
        let mut elements = Vec::new();
        let length = Self::bytes(count, unalign) / size_of::<T>();
        elements
            .try_reserve_exact(length)
            .map_err(|error| Failure::Failed(format!("no memory for {count} elements: {error}")))?;
        elements.resize(length, T::zeroed());
        let start = GUARD_ELEMENTS + to_line(&elements) + unalign;
        let mut buffer = Guarded { elements, start, count };
        for place in buffer.guards() {
            buffer.elements[place] = guard(place);
        }
        Ok(buffer)
    }

    /// Bytes that such a buffer takes.
    pub(crate) fn bytes(count: usize, unalign: usize) -> usize {
        let elements = [unalign, 2 * GUARD_ELEMENTS, ALIGNMENT_BYTES / size_of::<T>()];
        elements.into_iter().fold(count, usize::saturating_add).saturating_mul(size_of::<T>())
    }

    /// Everything, the guard bands too.
    pub(crate) fn whole(&self) -> &[T] {
        &self.elements
    }

    /// Everything, to be replaced by a copy of what it was copied to.
    pub(crate) fn whole_mut(&mut self) -> &mut [T] {
        &mut self.elements
    }

    /// Where the buffer lies in the whole.
    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.start + self.count
    }

    /// How many guard elements have changed.
    pub(crate) fn count_overwritten(&self) -> u64 {
        self.guards().filter(|&place| self.elements[place].bits() != guard::<T>(place).bits()).count() as u64
    }

    fn guards(&self) -> impl Iterator<Item = usize> + use<T> {
        (0..self.start).chain(self.start + self.count..self.elements.len())
    }
}

impl<T> Deref for Guarded<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.elements[self.start..][..self.count]
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.elements[self.start..][..self.count]
    }
}

fn guard<T: Number>(place: usize) -> T {
    T::of_bits(mix(!(place as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn a_guard_element_that_changes_is_counted_on_either_side() {
        for unalign in [0, 1, 3] {
            for count in [0, 1, 1000] {
                let mut buffer = Guarded::<f16>::new(count, unalign).ok().unwrap();
                assert_eq!((buffer.len(), buffer.count_overwritten()), (count, 0));
                assert_eq!((buffer.as_ptr() as usize - 2 * unalign) % ALIGNMENT_BYTES, 0);
                buffer.fill(f16::ONE);
                assert_eq!(buffer.count_overwritten(), 0);
                let (start, end) = (buffer.start, buffer.start + count);
                for (changed, place) in [start - 1, end, 0, buffer.elements.len() - 1].into_iter().enumerate() {
                    buffer.elements[place] = f16::from_bits(!buffer.elements[place].to_bits());
                    assert_eq!(buffer.count_overwritten(), changed as u64 + 1);
                }
            }
        }
    }

    #[test]
    fn a_copy_of_the_whole_lies_as_the_buffer_does() {
        for unalign in [0, 1, 3] {
            let mut buffer = Guarded::<f16>::to_be_copied(1000, unalign).ok().unwrap();
            assert_eq!(2 * (buffer.range().start - unalign) % ALIGNMENT_BYTES, 0);
            let range = buffer.range();
            buffer.whole_mut()[range.clone()].fill(f16::ONE);
            assert_eq!((buffer.len(), buffer.count_overwritten()), (1000, 0));
            assert!(buffer.iter().all(|element| *element == f16::ONE));
            buffer.whole_mut()[range.end] = f16::ONE;
            assert_eq!(buffer.count_overwritten(), 1);
            assert_eq!(buffer.whole().len(), Guarded::<f16>::bytes(1000, unalign) / 2);
        }
    }

    #[test]
    fn a_buffer_that_cannot_be_had_is_an_error() {
        assert!(Guarded::<f32>::new(usize::MAX / 16, 0).is_err());
        assert_eq!(Guarded::<f32>::bytes(usize::MAX, 5), usize::MAX);
    }
}
