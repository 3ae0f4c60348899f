//! The fused copy-and-reduce: every destination gets the reduction of all sources, read once and rounded once.
//!
//! The team's threads walk the range in tiles: each thread loads a few packs of every source, combines them in the order
//! in which the sources are listed, and stores the result to every destination. There is a loop for each number of sources
//! and destinations up to [`SPECIALISED_OPERANDS`], where all addresses stay in registers, and one loop that asks for each
//! address as it goes for everything above. All of them do the same arithmetic, so the bits depend on neither.
//!
//! A pack is loaded from every source before it is stored to any destination, so a destination may be one of the sources.

use core::mem::MaybeUninit;
use core::ptr;

use crate::element::{Element, Number};
use crate::layout::SPECIALISED_OPERANDS;
use crate::reduction::Reduction;
use crate::target::{
    PACK_ALIGNMENT, PACK_BYTES, UNROLL, WARP_THREADS, copy, load_pack, store_pack, thread_count, thread_index,
};

/// The operands of one copy-and-reduce.
///
/// # Safety
/// Addresses do not change while the operands are in use, and each is valid for the number of bytes that is passed beside
/// them: sources for reading, destinations for writing. A destination equals a source or does not overlap it; destinations
/// do not overlap one another.
pub unsafe trait Operands {
    /// At least one.
    fn source_count(&self) -> usize;
    /// At least one.
    fn destination_count(&self) -> usize;
    /// The address of the source `index`.
    fn source(&self, index: usize) -> *const u8;
    /// The address of the destination `index`.
    fn destination(&self, index: usize) -> *mut u8;
    /// What the source `index` is multiplied by, if anything (reductions that scale only).
    fn scale(&self, index: usize) -> Option<f32>;
    /// What the result is multiplied by, if anything (reductions that scale only).
    fn finish(&self) -> Option<f32>;
}

/// Instruction sets that the host's kernels are compiled for; a GPU image is compiled for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What the target guarantees.
    Baseline,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// `destinations ← finish(reduce(scale(sources)))` over `bytes` bytes, by the whole team.
///
/// # Safety
/// The operands keep their contract; `bytes` is a multiple of the element's size, and every address is a multiple of it
/// too; the processor has `isa`.
#[inline(always)]
pub unsafe fn reduce_copy<E: Element, R: Reduction>(isa: Isa, operands: &impl Operands, bytes: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        if is_plain_copy::<R>(operands) && operands.destination_count() == 1 {
            return copy(operands.source(0), operands.destination(0), bytes);
        }
        match isa {
            Isa::Baseline => by_shape::<E, R>(operands, bytes),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::<E, R>(operands, bytes),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::<E, R>(operands, bytes),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2<E: Element, R: Reduction>(operands: &impl Operands, bytes: usize) {
    // SAFETY: passed on from the caller.
    unsafe { by_shape::<E, R>(operands, bytes) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn avx512<E: Element, R: Reduction>(operands: &impl Operands, bytes: usize) {
    // SAFETY: passed on from the caller.
    unsafe { by_shape::<E, R>(operands, bytes) }
}

/// Whether the elements travel unchanged: then a NaN keeps its bits, so no arithmetic may touch them.
#[inline(always)]
fn is_plain_copy<R: Reduction>(operands: &impl Operands) -> bool {
    operands.source_count() == 1 && !(R::SCALES && (operands.scale(0).is_some() || operands.finish().is_some()))
}

/// Picks the loop for the number of sources and destinations.
///
/// # Safety
/// As [`reduce_copy`].
#[inline(always)]
unsafe fn by_shape<E: Element, R: Reduction>(operands: &impl Operands, bytes: usize) {
    macro_rules! shapes {
        ($(($sources:literal, $destinations:literal))*) => {
            match (operands.source_count(), operands.destination_count()) {
                $(
                    // SAFETY: passed on from the caller; the counts are those just matched.
                    ($sources, $destinations) => unsafe {
                        walk::<E, R, _>(&Registers::<$sources, $destinations>::new::<R>(operands), bytes)
                    },
                )*
                // SAFETY: passed on from the caller.
                _ => unsafe { walk::<E, R, _>(&Indirect(operands), bytes) },
            }
        };
    }
    const { assert!(SPECIALISED_OPERANDS == 4) };
    shapes! {
        (1, 1) (1, 2) (1, 3) (1, 4) (2, 1) (2, 2) (2, 3) (2, 4)
        (3, 1) (3, 2) (3, 3) (3, 4) (4, 1) (4, 2) (4, 3) (4, 4)
    }
}

/// How one loop gets at its operands: loads and stores at a byte offset.
trait Access {
    /// Calls `f` for each source: its address and its scale.
    fn each_source(&self, f: impl FnMut(usize, *const u8, Option<f32>));
    /// Calls `f` for each destination's address.
    fn each_destination(&self, f: impl FnMut(*mut u8));
    /// The finish.
    fn finish(&self) -> Option<f32>;
    /// Whether the elements travel unchanged.
    fn is_plain_copy<R: Reduction>(&self) -> bool;
}

/// Operands whose addresses are known to the loop one by one, so that they live in registers.
struct Registers<const SOURCES: usize, const DESTINATIONS: usize> {
    sources: [(*const u8, Option<f32>); SOURCES],
    destinations: [*mut u8; DESTINATIONS],
    finish: Option<f32>,
}

impl<const SOURCES: usize, const DESTINATIONS: usize> Registers<SOURCES, DESTINATIONS> {
    #[inline(always)]
    fn new<R: Reduction>(operands: &impl Operands) -> Self {
        let mut sources = [(ptr::null(), None); SOURCES];
        for (index, source) in sources.iter_mut().enumerate() {
            *source = (operands.source(index), if R::SCALES { operands.scale(index) } else { None });
        }
        let mut destinations = [ptr::null_mut(); DESTINATIONS];
        for (index, destination) in destinations.iter_mut().enumerate() {
            *destination = operands.destination(index);
        }
        Registers { sources, destinations, finish: if R::SCALES { operands.finish() } else { None } }
    }
}

impl<const SOURCES: usize, const DESTINATIONS: usize> Access for Registers<SOURCES, DESTINATIONS> {
    #[inline(always)]
    fn each_source(&self, mut f: impl FnMut(usize, *const u8, Option<f32>)) {
        for (index, (address, scale)) in self.sources.iter().enumerate() {
            f(index, *address, *scale);
        }
    }

    #[inline(always)]
    fn each_destination(&self, mut f: impl FnMut(*mut u8)) {
        for address in self.destinations {
            f(address);
        }
    }

    #[inline(always)]
    fn finish(&self) -> Option<f32> {
        self.finish
    }

    #[inline(always)]
    fn is_plain_copy<R: Reduction>(&self) -> bool {
        SOURCES == 1 && self.sources[0].1.is_none() && self.finish.is_none()
    }
}

/// Operands of any number, asked for as the loop goes.
struct Indirect<'a, O>(&'a O);

impl<O: Operands> Access for Indirect<'_, O> {
    #[inline(always)]
    fn each_source(&self, mut f: impl FnMut(usize, *const u8, Option<f32>)) {
        for index in 0..self.0.source_count() {
            f(index, self.0.source(index), self.0.scale(index));
        }
    }

    #[inline(always)]
    fn each_destination(&self, mut f: impl FnMut(*mut u8)) {
        for index in 0..self.0.destination_count() {
            f(self.0.destination(index));
        }
    }

    #[inline(always)]
    fn finish(&self) -> Option<f32> {
        self.0.finish()
    }

    #[inline(always)]
    fn is_plain_copy<R: Reduction>(&self) -> bool {
        is_plain_copy::<R>(self.0)
    }
}

/// Walks the range: single elements up to the first aligned pack, tiles of packs, single packs, single elements.
///
/// # Safety
/// As [`reduce_copy`].
#[inline(always)]
unsafe fn walk<E: Element, R: Reduction, A: Access>(operands: &A, bytes: usize) {
    let (head_bytes, packs_bytes) = split::<A>(operands, bytes);
    let (thread, threads) = (thread_index(), thread_count());
    let lane = thread & (WARP_THREADS - 1);
    let warp_bytes = WARP_THREADS * PACK_BYTES;
    let tile_bytes = UNROLL * warp_bytes;
    let tiles_end = head_bytes + packs_bytes / tile_bytes * tile_bytes;
    let packs_end = head_bytes + packs_bytes;
    // SAFETY: all ranges below lie inside `0..bytes`, at multiples of the element's size, and each byte is handled by
    // exactly one thread.
    unsafe {
        let mut offset = head_bytes + thread / WARP_THREADS * tile_bytes + lane * PACK_BYTES;
        while offset < tiles_end {
            packs::<E, R, A, UNROLL>(operands, offset, warp_bytes);
            offset += threads / WARP_THREADS * tile_bytes;
        }
        offset = tiles_end + thread * PACK_BYTES;
        while offset < packs_end {
            packs::<E, R, A, 1>(operands, offset, warp_bytes);
            offset += threads * PACK_BYTES;
        }
        offset = thread * E::BYTES;
        while offset < head_bytes {
            element::<E, R, A>(operands, offset);
            offset += threads * E::BYTES;
        }
        offset = packs_end + thread * E::BYTES;
        while offset < bytes {
            element::<E, R, A>(operands, offset);
            offset += threads * E::BYTES;
        }
    }
}

/// How many bytes come before the first aligned pack, and how many lie in packs. Where the addresses do not agree on where
/// that is, everything is handled element by element.
#[inline(always)]
fn split<A: Access>(operands: &A, bytes: usize) -> (usize, usize) {
    let mut misalignment = 0;
    if PACK_ALIGNMENT > 1 {
        let mut differing = 0;
        operands.each_source(|index, address, _| {
            if index == 0 {
                misalignment = address.addr() & (PACK_ALIGNMENT - 1);
            }
            differing |= (address.addr() & (PACK_ALIGNMENT - 1)) ^ misalignment;
        });
        operands.each_destination(|address| differing |= (address.addr() & (PACK_ALIGNMENT - 1)) ^ misalignment);
        if differing != 0 {
            return (bytes, 0);
        }
    }
    let head = if misalignment == 0 { 0 } else { PACK_ALIGNMENT - misalignment };
    let head = if head < bytes { head } else { bytes };
    (head, (bytes - head) / PACK_BYTES * PACK_BYTES)
}

/// `COUNT` packs of each operand, `spacing_bytes` apart: all loads of a source before the next, so that many are in flight.
///
/// # Safety
/// The packs lie inside the operands, aligned to [`PACK_ALIGNMENT`].
#[inline(always)]
unsafe fn packs<E: Element, R: Reduction, A: Access, const COUNT: usize>(
    operands: &A,
    offset: usize,
    spacing_bytes: usize,
) {
    if operands.is_plain_copy::<R>() {
        operands.each_source(|_, address, _| {
            // SAFETY: the packs lie inside the source.
            let copied: [E::Pack; COUNT] =
                core::array::from_fn(|pack| unsafe { load_pack(address.add(offset + pack * spacing_bytes)) });
            operands.each_destination(|address| {
                for (pack, value) in copied.iter().enumerate() {
                    // SAFETY: the packs lie inside the destination.
                    unsafe { store_pack(address.add(offset + pack * spacing_bytes), *value) };
                }
            });
        });
        return;
    }
    let mut sums: [MaybeUninit<E::Wide>; COUNT] = [const { MaybeUninit::uninit() }; COUNT];
    operands.each_source(|index, address, scale| {
        for (pack, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the pack lies inside the source; there is a first source, and it initialises the sum.
            unsafe {
                let address = address.add(offset + pack * spacing_bytes);
                match scale {
                    Some(scale) if R::SCALES && index == 0 => {
                        E::map(sum.write(E::load(address)), |number| number.scaled(scale));
                    }
                    Some(scale) if R::SCALES => {
                        E::load_with(sum.assume_init_mut(), address, |sum, number| {
                            R::combine(sum, number.scaled(scale))
                        });
                    }
                    _ if index == 0 => {
                        sum.write(E::load(address));
                    }
                    _ => E::load_with(sum.assume_init_mut(), address, R::combine),
                }
            }
        }
    });
    for (pack, sum) in sums.iter_mut().enumerate() {
        // SAFETY: there is a first source, and it initialised the sum.
        let sum = unsafe { sum.assume_init_mut() };
        if R::SCALES
            && let Some(finish) = operands.finish()
        {
            E::map(sum, |number| number.scaled(finish));
        }
        let result = E::narrow_pack(sum);
        // SAFETY: the packs lie inside the destination.
        operands.each_destination(|address| unsafe {
            store_pack(address.add(offset + pack * spacing_bytes), result);
        });
    }
}

/// One element of each operand.
///
/// # Safety
/// The element lies inside the operands.
#[inline(always)]
unsafe fn element<E: Element, R: Reduction, A: Access>(operands: &A, offset: usize) {
    let mut copied: Option<E::Bits> = None;
    let mut sum: Option<E::Number> = None;
    operands.each_source(|index, address, scale| {
        // SAFETY: the element lies inside the source.
        let bits: E::Bits = unsafe { ptr::read_unaligned(address.add(offset).cast()) };
        copied = Some(bits);
        let mut number = E::widen(bits);
        if R::SCALES
            && let Some(scale) = scale
        {
            number = Number::scaled(number, scale);
        }
        sum = Some(match sum {
            Some(sum) if index > 0 => R::combine(sum, number),
            _ => number,
        });
    });
    let result = if operands.is_plain_copy::<R>() {
        copied
    } else {
        sum.map(|sum| {
            let finish = if R::SCALES { operands.finish() } else { None };
            E::narrow(finish.map_or(sum, |finish| Number::scaled(sum, finish)))
        })
    };
    if let Some(result) = result {
        // SAFETY: the element lies inside the destination.
        operands.each_destination(|address| unsafe { ptr::write_unaligned(address.add(offset).cast(), result) });
    }
}
