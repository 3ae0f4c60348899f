//! Buffers that notice when somebody writes beside them.

use tutti::Element;

use super::number::{Format, Number};
use super::ranks::mix;

/// Elements in front of a buffer and behind it that nobody may write to: more than a cache line of most types.
const GUARD: usize = 48;

/// Elements between two guards, at a chosen offset from an address that is a multiple of 64 bytes.
pub(crate) struct Guarded {
    format: &'static Format,
    /// More than enough for all of them, of the size that aligns every type.
    storage: Vec<u64>,
    /// Elements before the first aligned one.
    shift: usize,
    start: usize,
    count: usize,
}

impl Guarded {
    /// `count` elements, `offset` elements after an aligned address, that hold a pattern.
    pub(crate) fn new(format: &'static Format, count: usize, offset: usize) -> Guarded {
        let (bytes, line) = (format.dtype.bytes(), 64 / format.dtype.bytes());
        let start = GUARD.next_multiple_of(line) + offset;
        let places = start + count + GUARD;
        let storage = vec![0_u64; (places * bytes + 64).div_ceil(8)];
        // A vector's memory stays where it is while the vector does not grow.
        let shift = storage.as_ptr().cast::<u8>().align_offset(64) / bytes;
        let mut buffer = Guarded { format, storage, shift, start, count };
        for place in 0..places {
            buffer.write(place as isize - start as isize, buffer.untouched(place));
        }
        buffer
    }

    /// The same, that holds `elements`.
    pub(crate) fn holding(format: &'static Format, elements: &[Number], offset: usize) -> Guarded {
        let mut buffer = Guarded::new(format, elements.len(), offset);
        buffer.fill(0, elements);
        buffer
    }

    /// What a place holds that nobody has written to.
    fn untouched(&self, place: usize) -> Number {
        self.format.number(mix(place as u64 + 0x7075_7474))
    }

    /// The storage's bytes from the first aligned element on.
    fn bytes(&self) -> &[u8] {
        let shift = self.shift * self.format.dtype.bytes();
        // SAFETY: the vector's own memory, seen as bytes.
        unsafe {
            std::slice::from_raw_parts(self.storage.as_ptr().cast::<u8>().add(shift), self.storage.len() * 8 - shift)
        }
    }

    fn write(&mut self, index: isize, number: Number) {
        let bytes = self.format.dtype.bytes();
        let at = (self.shift + self.start).wrapping_add_signed(index) * bytes;
        let all = self.storage.as_mut_ptr().cast::<u8>();
        // SAFETY: the element lies inside the vector's memory.
        unsafe { std::ptr::copy_nonoverlapping(number.bits().to_le_bytes().as_ptr(), all.add(at), bytes) };
    }

    /// What lies at a place of the storage.
    fn at(&self, place: usize) -> Number {
        let bytes = self.format.dtype.bytes();
        let mut bits = [0; 8];
        bits[..bytes].copy_from_slice(&self.bytes()[place * bytes..(place + 1) * bytes]);
        self.format.number(u64::from_le_bytes(bits))
    }

    /// The elements.
    pub(crate) fn numbers(&self) -> Vec<Number> {
        (self.start..self.start + self.count).map(|place| self.at(place)).collect()
    }

    /// Makes the elements from `first` on these.
    pub(crate) fn fill(&mut self, first: usize, elements: &[Number]) {
        assert!(first + elements.len() <= self.count, "more elements than there is room for");
        for (index, number) in elements.iter().enumerate() {
            self.write((first + index) as isize, *number);
        }
    }

    /// The elements, as a call takes them.
    pub(crate) fn slice<T: Element>(&self) -> &[T] {
        assert_eq!(T::DTYPE, self.format.dtype);
        let first = self.bytes()[self.start * size_of::<T>()..].as_ptr();
        // SAFETY: so many elements lie there, aligned, and all bits are elements.
        unsafe { std::slice::from_raw_parts(first.cast(), self.count) }
    }

    /// The elements, as a call takes them.
    pub(crate) fn slice_mut<T: Element>(&mut self) -> &mut [T] {
        assert_eq!(T::DTYPE, self.format.dtype);
        let first = self.storage.as_mut_ptr().cast::<u8>().wrapping_add((self.shift + self.start) * size_of::<T>());
        // SAFETY: as above; the buffer is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(first.cast(), self.count) }
    }

    /// Whether the element `index` still holds the pattern of [`Guarded::new`].
    pub(crate) fn is_untouched(&self, index: usize) -> bool {
        let place = self.start + index;
        self.at(place).bits() == self.untouched(place).bits()
    }

    /// The first place beside the elements that was written to, relative to them.
    pub(crate) fn written_beside(&self) -> Option<isize> {
        let outside = (0..self.start).chain(self.start + self.count..self.start + self.count + GUARD);
        outside
            .into_iter()
            .find(|place| self.at(*place).bits() != self.untouched(*place).bits())
            .map(|place| place as isize - self.start as isize)
    }
}
