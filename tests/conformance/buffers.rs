//! Buffers that notice when somebody writes beside them.

use super::number::Number;
use super::ranks::mix;

/// Elements in front of a buffer and behind it that nobody may write to: more than a cache line of each type.
const GUARD: usize = 48;

/// Elements between two guards, at a chosen offset from an address that is a multiple of 64 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Guarded<T> {
    storage: Vec<T>,
    start: usize,
    count: usize,
}

/// What a place holds that nobody has written to.
fn untouched<T: Number>(place: usize) -> T {
    T::from_bits(mix(place as u64 + 0x7075_7474) as u32 & (T::SIGN_BIT | (T::SIGN_BIT - 1)))
}

impl<T: Number> Guarded<T> {
    /// `count` elements, `offset` elements after an aligned address, that hold a pattern.
    pub(crate) fn new(count: usize, offset: usize) -> Guarded<T> {
        let line = 64 / size_of::<T>();
        let storage: Vec<T> = (0..GUARD + line + offset + count + GUARD).map(untouched).collect();
        let start = GUARD + storage[GUARD..].as_ptr().align_offset(64) + offset;
        Guarded { storage, start, count }
    }

    /// The same, that holds `elements`.
    pub(crate) fn holding(elements: &[T], offset: usize) -> Guarded<T> {
        let mut buffer = Guarded::new(elements.len(), offset);
        buffer.slice_mut().copy_from_slice(elements);
        buffer
    }

    /// The elements.
    pub(crate) fn slice(&self) -> &[T] {
        &self.storage[self.start..self.start + self.count]
    }

    /// The elements.
    pub(crate) fn slice_mut(&mut self) -> &mut [T] {
        &mut self.storage[self.start..self.start + self.count]
    }

    /// Whether the element `index` still holds the pattern of [`Guarded::new`].
    pub(crate) fn is_untouched(&self, index: usize) -> bool {
        self.slice()[index].bits() == untouched::<T>(self.start + index).bits()
    }

    /// The first place beside the elements that was written to, relative to them.
    pub(crate) fn written_beside(&self) -> Option<isize> {
        let outside = (0..self.start).chain(self.start + self.count..self.storage.len());
        outside
            .into_iter()
            .find(|place| self.storage[*place].bits() != untouched::<T>(*place).bits())
            .map(|place| place as isize - self.start as isize)
    }
}
