//! The fused copy-and-reduce: every destination gets the reduction of all sources, read once and rounded once.
//!
//! The team's threads walk the range in tiles: each thread loads a few packs of every source, combines them in the order
//! in which the sources are listed, and stores the result to every destination. There is a loop for each number of sources
//! and destinations up to [`SPECIALISED_OPERANDS`], where all addresses stay in registers, and one loop that asks for each
//! address as it goes for everything above. All of them do the same arithmetic, so the bits depend on neither.
//!
//! A pack is loaded from every source before it is stored to any destination, so a destination may be one of the sources.

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr;

use crate::element::{Element, Number};
use crate::layout::SPECIALISED_OPERANDS;
use crate::reduction::Reduction;
use crate::target::{
    PACK_ALIGNMENT, PACK_BYTES, PACKS_MUST_ALIGN, PADDED_TAIL_BYTES_MIN, UNROLL, WARP_THREADS, copy, load_pack,
    prefetch_for_writing, store_pack, thread_count, thread_index,
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
        let is_move = is_plain_copy::<R>(operands) && operands.destination_count() == 1;
        if is_move && copy(operands.source(0), operands.destination(0), bytes) {
            return;
        }
        match isa {
            // Every x86-64 of the last decade has more than the baseline: there, code size counts.
            #[cfg(target_arch = "x86_64")]
            Isa::Baseline => any_shape::<E, R>(operands, bytes),
            #[cfg(not(target_arch = "x86_64"))]
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

/// What the source is multiplied by. A source that is not marked counts once, which changes no number: that costs less than
/// to ask inside the loop.
#[inline(always)]
fn scale_of<R: Reduction>(operands: &impl Operands, index: usize) -> f32 {
    if R::SCALES { operands.scale(index).unwrap_or(1.0) } else { 1.0 }
}

/// What the result is multiplied by, likewise.
#[inline(always)]
fn finish_of<R: Reduction>(operands: &impl Operands) -> f32 {
    if R::SCALES { operands.finish().unwrap_or(1.0) } else { 1.0 }
}

/// Picks the loop for the number of sources and destinations.
///
/// # Safety
/// As [`reduce_copy`].
#[inline(always)]
unsafe fn by_shape<E: Element, R: Reduction>(operands: &impl Operands, bytes: usize) {
    const { assert!(SPECIALISED_OPERANDS == 4) };
    let any_number = Indirect(operands, PhantomData::<R>);
    let range = Range::of(&any_number, bytes);
    let few_destinations = operands.destination_count() <= SPECIALISED_OPERANDS;
    // SAFETY: passed on from the caller; the counts are those just matched.
    unsafe {
        before_packs::<E, R, _>(&any_number, &range);
        match if few_destinations { operands.source_count() } else { 0 } {
            1 => walk::<E, R, _>(&Registers::<1>::new::<R>(operands), &range),
            2 => walk::<E, R, _>(&Registers::<2>::new::<R>(operands), &range),
            3 => walk::<E, R, _>(&Registers::<3>::new::<R>(operands), &range),
            4 => walk::<E, R, _>(&Registers::<4>::new::<R>(operands), &range),
            _ => walk::<E, R, _>(&any_number, &range),
        }
        after_packs::<E, R, _>(&any_number, &range);
    }
}

/// One loop for all numbers of sources and destinations.
///
/// # Safety
/// As [`reduce_copy`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn any_shape<E: Element, R: Reduction>(operands: &impl Operands, bytes: usize) {
    let any_number = Indirect(operands, PhantomData::<R>);
    let range = Range::of(&any_number, bytes);
    // SAFETY: passed on from the caller.
    unsafe {
        before_packs::<E, R, _>(&any_number, &range);
        walk::<E, R, _>(&any_number, &range);
        after_packs::<E, R, _>(&any_number, &range);
    }
}

/// How one loop gets at its operands: loads and stores at a byte offset.
trait Access {
    /// Calls `f` for each source: its index, its address and its scale.
    fn each_source(&self, f: impl FnMut(usize, *const u8, f32));
    /// Calls `f` for each destination's address.
    fn each_destination(&self, f: impl FnMut(*mut u8));
    /// The finish.
    fn finish(&self) -> f32;
    /// Whether the elements travel unchanged.
    fn is_plain_copy(&self) -> bool;
}

/// Operands whose addresses are known to the loop one by one, so that they live in registers. The number of sources is a
/// constant, that of destinations (up to [`SPECIALISED_OPERANDS`]) a test before each store, the same for all threads.
struct Registers<const SOURCES: usize> {
    sources: [(*const u8, f32); SOURCES],
    destinations: [*mut u8; SPECIALISED_OPERANDS],
    destination_count: usize,
    finish: f32,
    plain: bool,
}

impl<const SOURCES: usize> Registers<SOURCES> {
    #[inline(always)]
    fn new<R: Reduction>(operands: &impl Operands) -> Self {
        let mut sources = [(ptr::null(), 1.0); SOURCES];
        for (index, source) in sources.iter_mut().enumerate() {
            *source = (operands.source(index), scale_of::<R>(operands, index));
        }
        let destination_count = operands.destination_count();
        let mut destinations = [ptr::null_mut(); SPECIALISED_OPERANDS];
        for (index, destination) in destinations.iter_mut().enumerate() {
            if index < destination_count {
                *destination = operands.destination(index);
            }
        }
        let plain = SOURCES == 1 && is_plain_copy::<R>(operands);
        Registers { sources, destinations, destination_count, finish: finish_of::<R>(operands), plain }
    }
}

impl<const SOURCES: usize> Access for Registers<SOURCES> {
    #[inline(always)]
    fn each_source(&self, mut f: impl FnMut(usize, *const u8, f32)) {
        for (index, (address, scale)) in self.sources.iter().enumerate() {
            f(index, *address, *scale);
        }
    }

    #[inline(always)]
    fn each_destination(&self, mut f: impl FnMut(*mut u8)) {
        for (index, address) in self.destinations.iter().enumerate() {
            if index < self.destination_count {
                f(*address);
            }
        }
    }

    #[inline(always)]
    fn finish(&self) -> f32 {
        self.finish
    }

    #[inline(always)]
    fn is_plain_copy(&self) -> bool {
        SOURCES == 1 && self.plain
    }
}

/// Operands of any number, asked for as the loop goes.
struct Indirect<'a, O, R>(&'a O, PhantomData<R>);

impl<O: Operands, R: Reduction> Access for Indirect<'_, O, R> {
    #[inline(always)]
    fn each_source(&self, mut f: impl FnMut(usize, *const u8, f32)) {
        for index in 0..self.0.source_count() {
            f(index, self.0.source(index), scale_of::<R>(self.0, index));
        }
    }

    #[inline(always)]
    fn each_destination(&self, mut f: impl FnMut(*mut u8)) {
        for index in 0..self.0.destination_count() {
            f(self.0.destination(index));
        }
    }

    #[inline(always)]
    fn finish(&self) -> f32 {
        finish_of::<R>(self.0)
    }

    #[inline(always)]
    fn is_plain_copy(&self) -> bool {
        is_plain_copy::<R>(self.0)
    }
}

/// The bytes that one copy-and-reduce handles: single elements up to the first aligned pack, packs, single elements.
struct Range {
    /// Bytes before the first aligned pack.
    head_bytes: usize,
    /// Bytes in packs.
    packs_bytes: usize,
    /// All bytes.
    bytes: usize,
}

impl Range {
    /// The first pack begins where the first destination is aligned. Where packs must be aligned and the other addresses do
    /// not agree on where that is, everything is handled element by element; where they only had better be, a short range is
    /// not worth the single elements in front.
    #[inline(always)]
    fn of(operands: &impl Access, bytes: usize) -> Range {
        const SHORT_BYTES: usize = 8 * PACK_BYTES;
        let packs_from = |head_bytes: usize| Range {
            head_bytes,
            packs_bytes: (bytes - head_bytes) / PACK_BYTES * PACK_BYTES,
            bytes,
        };
        if !PACKS_MUST_ALIGN && bytes < SHORT_BYTES {
            return packs_from(0);
        }
        let misalignment_of = |address: usize| address & (PACK_ALIGNMENT - 1);
        let mut misalignment = PACK_ALIGNMENT;
        let mut differing = 0;
        operands.each_destination(|address| {
            if misalignment == PACK_ALIGNMENT {
                misalignment = misalignment_of(address.addr());
            }
            differing |= misalignment_of(address.addr()) ^ misalignment;
        });
        if PACKS_MUST_ALIGN {
            operands.each_source(|_, address, _| differing |= misalignment_of(address.addr()) ^ misalignment);
            if differing != 0 {
                return Range { head_bytes: bytes, packs_bytes: 0, bytes };
            }
        }
        let head = (PACK_ALIGNMENT - misalignment) & (PACK_ALIGNMENT - 1);
        packs_from(if head < bytes { head } else { bytes })
    }
}

/// Handles the packs of the range: tiles of them, then those that are left.
///
/// # Safety
/// As [`reduce_copy`].
#[inline(always)]
unsafe fn walk<E: Element, R: Reduction, A: Access>(operands: &A, range: &Range) {
    let (thread, threads) = (thread_index(), thread_count());
    let lane = thread & (WARP_THREADS - 1);
    let warp_bytes = WARP_THREADS * PACK_BYTES;
    let tile_bytes = UNROLL * warp_bytes;
    let tiles_end = range.head_bytes + range.packs_bytes / tile_bytes * tile_bytes;
    let packs_end = range.head_bytes + range.packs_bytes;
    // SAFETY: the offsets lie inside the range's packs, and each pack is handled by exactly one thread.
    unsafe {
        let mut offset = range.head_bytes + thread / WARP_THREADS * tile_bytes + lane * PACK_BYTES;
        while offset < tiles_end {
            packs::<E, R, A, UNROLL>(operands, offset, warp_bytes);
            offset += threads / WARP_THREADS * tile_bytes;
        }
        offset = tiles_end + thread * PACK_BYTES;
        // Where a tile is one pack, none is left.
        while tile_bytes > PACK_BYTES && offset < packs_end {
            packs::<E, R, A, 1>(operands, offset, warp_bytes);
            offset += threads * PACK_BYTES;
        }
    }
}

/// Handles the elements before the packs, on a thread that is alone.
///
/// Ranks that share out a buffer share the cache lines at the ends of their parts. Each does the first line of its part first
/// and the last one last, so that two neighbours are not at the same line at the same time; and it asks for the last line
/// now, since that takes as long as copying some kilobytes.
///
/// # Safety
/// As [`reduce_copy`].
#[inline(always)]
unsafe fn before_packs<E: Element, R: Reduction, A: Access>(operands: &A, range: &Range) {
    if !PACKS_MUST_ALIGN {
        if range.packs_bytes > 0 {
            operands.each_destination(|address| prefetch_for_writing(address.wrapping_add(range.bytes - 1)));
        }
        // SAFETY: passed on from the caller.
        unsafe { edges::<E, R, A>(operands, &Range { packs_bytes: range.bytes - range.head_bytes, ..*range }) };
    }
}

/// Handles the elements that [`before_packs`] left.
///
/// # Safety
/// As [`reduce_copy`].
#[inline(always)]
unsafe fn after_packs<E: Element, R: Reduction, A: Access>(operands: &A, range: &Range) {
    let done_bytes = if PACKS_MUST_ALIGN { 0 } else { range.head_bytes };
    let range = Range {
        head_bytes: range.head_bytes - done_bytes,
        packs_bytes: range.packs_bytes + done_bytes,
        bytes: range.bytes,
    };
    // SAFETY: passed on from the caller.
    unsafe { edges::<E, R, A>(operands, &range) };
}

/// Handles the elements of the range that lie before and behind its packs.
///
/// # Safety
/// As [`reduce_copy`].
#[inline(always)]
unsafe fn edges<E: Element, R: Reduction, A: Access>(operands: &A, range: &Range) {
    let tail_bytes = range.bytes - range.head_bytes - range.packs_bytes;
    // Said in two steps, the first of which the compiler knows: where no tail is padded, no code for it is left.
    let pads = PADDED_TAIL_BYTES_MIN < usize::MAX;
    let padded_bytes = if pads && tail_bytes >= PADDED_TAIL_BYTES_MIN { tail_bytes } else { 0 };
    if padded_bytes > 0 {
        // SAFETY: the tail lies inside the operands, and is shorter than a pack.
        unsafe { padded_pack::<E, R, A>(operands, range.bytes - tail_bytes, tail_bytes) };
    }
    let mut place = thread_index() * E::BYTES;
    while place < range.bytes - range.packs_bytes - padded_bytes {
        let offset = if place < range.head_bytes { place } else { place + range.packs_bytes };
        // SAFETY: the offset lies inside the range, at a multiple of the element's size, and each element is handled by
        // exactly one thread.
        unsafe { element::<E, R, A>(operands, offset) };
        place += thread_count() * E::BYTES;
    }
}

/// `COUNT` packs of each operand, `spacing_bytes` apart: all loads of a source before the next, so that many are in flight.
///
/// # Safety
/// The packs lie inside the operands, aligned to [`PACK_ALIGNMENT`] where they must be.
#[inline(always)]
unsafe fn packs<E: Element, R: Reduction, A: Access, const COUNT: usize>(
    operands: &A,
    offset: usize,
    spacing_bytes: usize,
) {
    if operands.is_plain_copy() {
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
            // SAFETY: the pack lies inside the source; the first source comes first.
            unsafe { accumulate::<E, R>(sum, index, address.add(offset + pack * spacing_bytes), scale) };
        }
    });
    for (pack, sum) in sums.iter_mut().enumerate() {
        // SAFETY: there is a first source, and it initialised the sum.
        let result = finish::<E, R>(unsafe { sum.assume_init_mut() }, operands.finish());
        // SAFETY: the packs lie inside the destination.
        operands.each_destination(|address| unsafe {
            store_pack(address.add(offset + pack * spacing_bytes), result);
        });
    }
}

/// The last `bytes` bytes, fewer than a pack, as a pack of which the rest is zeros: on targets where a pack is long this is
/// much quicker than going through its elements. Never on a team of several threads.
///
/// # Safety
/// The bytes lie inside the operands.
#[inline(always)]
unsafe fn padded_pack<E: Element, R: Reduction, A: Access>(operands: &A, offset: usize, bytes: usize) {
    let mut padded = [0_u8; PACK_BYTES];
    let mut sum = MaybeUninit::<E::Wide>::uninit();
    let plain = operands.is_plain_copy();
    operands.each_source(|index, address, scale| {
        // SAFETY: the bytes lie inside the source, and fit; the first source comes first.
        unsafe {
            ptr::copy_nonoverlapping(address.add(offset), padded.as_mut_ptr(), bytes);
            if !plain {
                accumulate::<E, R>(&mut sum, index, padded.as_ptr(), scale);
            }
        }
    });
    if !plain {
        // SAFETY: there is a first source, and it initialised the sum; the array is a pack's size.
        unsafe { store_pack(padded.as_mut_ptr(), finish::<E, R>(sum.assume_init_mut(), operands.finish())) };
    }
    // SAFETY: the bytes lie inside the destination, and are no more than there are.
    operands.each_destination(|address| unsafe {
        ptr::copy_nonoverlapping(padded.as_ptr(), address.add(offset), bytes);
    });
}

/// Combines the pack at `address` of the source `index` into `sum`.
///
/// # Safety
/// The pack is there to be loaded; `sum` is initialised unless this is the first source.
#[inline(always)]
unsafe fn accumulate<E: Element, R: Reduction>(
    sum: &mut MaybeUninit<E::Wide>,
    index: usize,
    address: *const u8,
    scale: f32,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        if index == 0 {
            let sum = sum.write(E::load(address));
            if R::SCALES {
                E::map(sum, |number| number.scaled(scale));
            }
        } else {
            E::load_with(sum.assume_init_mut(), address, |sum, number| {
                R::combine(sum, if R::SCALES { number.scaled(scale) } else { number })
            });
        }
    }
}

/// The pack that a sum ends as.
#[inline(always)]
fn finish<E: Element, R: Reduction>(sum: &mut E::Wide, factor: f32) -> E::Pack {
    if R::SCALES {
        E::map(sum, |number| E::finished(number, factor));
    }
    E::narrow_pack(sum)
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
        let bits: E::Bits = unsafe { address.add(offset).cast::<E::Bits>().read() };
        copied = Some(bits);
        let mut number = E::widen(bits);
        if R::SCALES {
            number = number.scaled(scale);
        }
        sum = Some(match sum {
            Some(sum) if index > 0 => R::combine(sum, number),
            _ => number,
        });
    });
    let result = if operands.is_plain_copy() {
        copied
    } else {
        sum.map(|sum| E::narrow(if R::SCALES { E::finished(sum, operands.finish()) } else { sum }))
    };
    if let Some(result) = result {
        // SAFETY: the element lies inside the destination.
        operands.each_destination(|address| unsafe { address.add(offset).cast::<E::Bits>().write(result) });
    }
}
