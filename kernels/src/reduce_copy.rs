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
use crate::layout::{LINE_BYTES, SPECIALISED_OPERANDS};
use crate::reduction::{Reduction, ReductionOf};
use crate::target::{
    COPIES_APART, GOES_BACKWARDS, PACK_ALIGNMENT, PACK_BYTES, PACKS_MUST_ALIGN, PADDED_TAIL_BYTES_MIN, PREFETCH_BYTES,
    SPECIALISES_DESTINATIONS, STREAM_ALIGNMENT, STREAMS, UNROLL, WARP_THREADS, end_streaming, load_pack, prefetch,
    prefetch_for_writing, store_pack, stream_pack, thread_count, thread_index,
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
    fn scale(&self, index: usize) -> Option<u64>;
    /// What the result is multiplied by, if anything (reductions that scale only).
    fn finish(&self) -> Option<u64>;
    /// Whether to go from the end to the start, on targets that care.
    fn backwards(&self) -> bool {
        false
    }
    /// Whether what is written, and not read as well, had better go past the caches, on targets that care.
    fn streams(&self) -> bool {
        false
    }
}

/// What an element type's scales and finishes are, to its arithmetic.
type Factor<E> = <<E as Element>::Number as Number>::Factor;

/// Whether the elements travel unchanged: then a NaN keeps its bits, so no arithmetic may touch them.
#[inline(always)]
pub(crate) fn is_plain_copy<E: Element, R: Reduction<E::Number>>(operands: &impl Operands) -> bool {
    let changed = (R::SCALES && operands.scale(0).is_some()) || (R::FINISHES && operands.finish().is_some());
    !COPIES_APART && operands.source_count() == 1 && !changed
}

/// What the source is multiplied by. A source that is not marked counts once, which changes no number: that costs less than
/// to ask inside the loop.
#[inline(always)]
pub(crate) fn scale_of<E: Element, R: Reduction<E::Number>>(operands: &impl Operands, index: usize) -> Factor<E> {
    let scale = if R::SCALES { operands.scale(index) } else { None };
    scale.map_or(E::Number::ONE, E::Number::factor)
}

/// What the result is multiplied by, likewise.
#[inline(always)]
pub(crate) fn finish_of<E: Element, R: Reduction<E::Number>>(operands: &impl Operands) -> Factor<E> {
    let finish = if R::FINISHES { operands.finish() } else { None };
    finish.map_or(E::Number::ONE, E::Number::factor)
}

/// `destinations ← finish(reduce(scale(sources)))` over `bytes` bytes, by the whole team, with the instructions that the
/// caller is compiled for: by the loop for the number of sources and destinations, where there is one: up to
/// `LOOPS` sources and [`destinations_max`] destinations.
///
/// # Safety
/// The operands keep their contract; `bytes` is a multiple of the element's size, and every address is a multiple of it
/// too. Where [`COPIES_APART`], this is no plain copy.
#[inline(always)]
pub(crate) unsafe fn by_shape<E: Element, R: ReductionOf<E>, const LOOPS: usize>(
    operands: &impl Operands,
    bytes: usize,
) {
    const { assert!(SPECIALISED_OPERANDS == 4 && LOOPS <= SPECIALISED_OPERANDS) };
    // What is there already stays: peers may be reading it.
    if !COPIES_APART
        && operands.destination_count() == 1
        && operands.source(0) == operands.destination(0).cast_const()
        && is_plain_copy::<E, R>(operands)
    {
        return;
    }
    let any_number: Indirect<_, E::Single, R> = Indirect::new(operands);
    let range =
        Range::of::<E>(&any_number, bytes, GOES_BACKWARDS && operands.backwards(), STREAMS && operands.streams());
    let destination_count = operands.destination_count();
    let source_count = if destination_count <= destinations_max(LOOPS) { operands.source_count() } else { usize::MAX };
    // SAFETY: passed on from the caller; the counts are those just compared. (What is `const` here keeps loops that nobody
    // could come to from being compiled.)
    unsafe {
        before_packs::<E, R, _>(&any_number, &range);
        if const { LOOPS >= 1 && (R::SCALES || R::FINISHES || !COPIES_APART) } && source_count == 1 {
            by_destinations::<E, R, LOOPS, 1>(operands, &range);
        } else if const { LOOPS >= 2 && !R::COPIES } && source_count == 2 {
            by_destinations::<E, R, LOOPS, 2>(operands, &range);
        } else if const { LOOPS >= 3 && !R::COPIES } && source_count == 3 {
            by_destinations::<E, R, LOOPS, 3>(operands, &range);
        } else if const { LOOPS >= 4 && !R::COPIES } && source_count == 4 {
            by_destinations::<E, R, LOOPS, 4>(operands, &range);
        } else {
            walk::<E, R, _, { UNROLL.div_ceil(4) }>(any_number, &range);
        }
        after_packs::<E, R, _>(&any_number, &range);
    }
    if STREAMS && range.streams {
        end_streaming();
    }
}

/// Up to how many destinations there is a loop, where there is one for up to `loops` sources. Rings have up to two of either:
/// those are quick for every type and reduction.
const fn destinations_max(loops: usize) -> usize {
    if SPECIALISES_DESTINATIONS { loops } else { SPECIALISED_OPERANDS }
}

/// Picks the loop for the number of destinations.
///
/// # Safety
/// As [`by_shape`]; the operands have that many sources, and no more destinations than [`destinations_max`].
#[inline(always)]
unsafe fn by_destinations<E: Element, R: ReductionOf<E>, const LOOPS: usize, const SOURCES: usize>(
    operands: &impl Operands,
    range: &Range,
) {
    // SAFETY: passed on from the caller; the counts are those just compared.
    unsafe {
        if const { !SPECIALISES_DESTINATIONS } {
            return by_weight::<E, R, SOURCES, SPECIALISED_OPERANDS, false>(operands, range);
        }
        let count = operands.destination_count();
        if count == 1 {
            by_weight::<E, R, SOURCES, 1, true>(operands, range);
        } else if const { LOOPS >= 2 } && count == 2 {
            by_weight::<E, R, SOURCES, 2, true>(operands, range);
        } else if const { LOOPS >= 3 } && count == 3 {
            by_weight::<E, R, SOURCES, 3, true>(operands, range);
        } else if const { LOOPS >= 4 } && count == 4 {
            by_weight::<E, R, SOURCES, 4, true>(operands, range);
        }
    }
}

/// Picks how many packs a trip handles: as many as registers hold the numbers of.
///
/// # Safety
/// As [`by_destinations`].
#[inline(always)]
unsafe fn by_weight<
    E: Element,
    R: ReductionOf<E>,
    const SOURCES: usize,
    const DESTINATIONS: usize,
    const EXACT: bool,
>(
    operands: &impl Operands,
    range: &Range,
) {
    let operands = Registers::<E, SOURCES, DESTINATIONS, EXACT>::new::<R>(operands);
    // SAFETY: passed on from the caller.
    unsafe {
        if const {
            let in_packs = SOURCES == 1 || (SOURCES == 2 && R::ADDS && E::ADDS_PACKS);
            UNROLL > 1 && !in_packs && size_of::<E::Wide>() > size_of::<E::Pack>()
        } {
            walk::<E, R, _, { UNROLL.div_ceil(2) }>(operands, range)
        } else {
            walk::<E, R, _, UNROLL>(operands, range)
        }
    }
}

/// How one loop gets at its operands: addresses, all at the same place of the range.
pub(crate) trait Access<N: Number> {
    /// The number of sources, where the loop is made for one.
    const SOURCES: Option<usize>;
    /// Calls `f` for each source: its index, its address and its scale.
    fn each_source(&self, f: impl FnMut(usize, *const u8, N::Factor));
    /// Calls `f` for each destination's address.
    fn each_destination(&self, f: impl FnMut(*mut u8));
    /// The finish.
    fn finish(&self) -> N::Factor;
    /// Whether the elements travel unchanged.
    fn is_plain_copy(&self) -> bool;
    /// Moves on by so many bytes.
    fn advance(&mut self, bytes: usize);
    /// Loads the pack of a source that is at `address + OFFSET`.
    ///
    /// # Safety
    /// As [`load_pack`].
    #[inline(always)]
    unsafe fn load<P: Copy, const OFFSET: usize>(address: *const u8) -> P {
        // SAFETY: passed on from the caller.
        unsafe { load_pack::<P, OFFSET>(address) }
    }
    /// Stores a pack of a destination at `address + OFFSET`.
    ///
    /// # Safety
    /// As [`store_pack`].
    #[inline(always)]
    unsafe fn store<P: Copy, const OFFSET: usize>(address: *mut u8, pack: P) {
        // SAFETY: passed on from the caller.
        unsafe { store_pack::<P, OFFSET>(address, pack) }
    }
}

/// Operands whose addresses are known to the loop one by one, so that they live in registers: the loop moves them on from
/// trip to trip, and reaches its packs at constant distances from them. The number of sources is a constant; that of
/// destinations is one as well if it is exact, and a bound otherwise: then each store is behind a test, the same for all
/// threads.
struct Registers<E: Element, const SOURCES: usize, const DESTINATIONS: usize, const EXACT: bool> {
    sources: [(*const u8, Factor<E>); SOURCES],
    destinations: [*mut u8; DESTINATIONS],
    destination_count: usize,
    finish: Factor<E>,
    plain: bool,
}

impl<E: Element, const SOURCES: usize, const DESTINATIONS: usize, const EXACT: bool>
    Registers<E, SOURCES, DESTINATIONS, EXACT>
{
    #[inline(always)]
    fn new<R: Reduction<E::Number>>(operands: &impl Operands) -> Self {
        let mut sources = [(ptr::null(), E::Number::ONE); SOURCES];
        for (index, source) in sources.iter_mut().enumerate() {
            *source = (operands.source(index), scale_of::<E, R>(operands, index));
        }
        let destination_count = if EXACT { DESTINATIONS } else { operands.destination_count() };
        let mut destinations = [ptr::null_mut(); DESTINATIONS];
        for (index, destination) in destinations.iter_mut().enumerate() {
            if index < destination_count {
                *destination = operands.destination(index);
            }
        }
        let plain = SOURCES == 1 && is_plain_copy::<E, R>(operands);
        Registers { sources, destinations, destination_count, finish: finish_of::<E, R>(operands), plain }
    }
}

impl<E: Element, const SOURCES: usize, const DESTINATIONS: usize, const EXACT: bool> Access<E::Number>
    for Registers<E, SOURCES, DESTINATIONS, EXACT>
{
    const SOURCES: Option<usize> = Some(SOURCES);

    #[inline(always)]
    fn each_source(&self, mut f: impl FnMut(usize, *const u8, Factor<E>)) {
        unrolled!(0 1 2 3, INDEX < SOURCES => {
            let (address, scale) = self.sources[INDEX];
            f(INDEX, address, scale);
        });
    }

    #[inline(always)]
    fn each_destination(&self, mut f: impl FnMut(*mut u8)) {
        unrolled!(0 1 2 3, INDEX < DESTINATIONS => {
            if EXACT || INDEX < self.destination_count {
                f(self.destinations[INDEX]);
            }
        });
    }

    #[inline(always)]
    fn finish(&self) -> Factor<E> {
        self.finish
    }

    #[inline(always)]
    fn is_plain_copy(&self) -> bool {
        SOURCES == 1 && self.plain
    }

    #[inline(always)]
    fn advance(&mut self, bytes: usize) {
        unrolled!(0 1 2 3, INDEX < SOURCES => { self.sources[INDEX].0 = self.sources[INDEX].0.wrapping_add(bytes) });
        unrolled!(0 1 2 3, INDEX < DESTINATIONS => {
            self.destinations[INDEX] = self.destinations[INDEX].wrapping_add(bytes);
        });
    }
}

/// Operands of any number, asked for as the loop goes.
struct Indirect<'a, O, E, R> {
    operands: &'a O,
    offset: usize,
    kernel: PhantomData<(E, R)>,
}

impl<'a, O, E, R> Indirect<'a, O, E, R> {
    #[inline(always)]
    fn new(operands: &'a O) -> Self {
        Indirect { operands, offset: 0, kernel: PhantomData }
    }
}

impl<O, E, R> Clone for Indirect<'_, O, E, R> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<O, E, R> Copy for Indirect<'_, O, E, R> {}

impl<O: Operands, E: Element, R: Reduction<E::Number>> Access<E::Number> for Indirect<'_, O, E, R> {
    const SOURCES: Option<usize> = None;

    #[inline(always)]
    fn each_source(&self, mut f: impl FnMut(usize, *const u8, Factor<E>)) {
        for index in 0..self.operands.source_count() {
            let address = self.operands.source(index).wrapping_add(self.offset);
            f(index, address, scale_of::<E, R>(self.operands, index));
        }
    }

    #[inline(always)]
    fn each_destination(&self, mut f: impl FnMut(*mut u8)) {
        for index in 0..self.operands.destination_count() {
            f(self.operands.destination(index).wrapping_add(self.offset));
        }
    }

    #[inline(always)]
    fn finish(&self) -> Factor<E> {
        finish_of::<E, R>(self.operands)
    }

    #[inline(always)]
    fn is_plain_copy(&self) -> bool {
        is_plain_copy::<E, R>(self.operands)
    }

    #[inline(always)]
    fn advance(&mut self, bytes: usize) {
        self.offset = self.offset.wrapping_add(bytes);
    }
}

/// The bytes that one copy-and-reduce handles: single elements up to the first aligned pack, packs, single elements.
pub(crate) struct Range {
    /// Bytes before the first aligned pack.
    pub(crate) head_bytes: usize,
    /// Bytes in packs.
    pub(crate) packs_bytes: usize,
    /// All bytes.
    pub(crate) bytes: usize,
    /// Whether the packs are handled from the last to the first.
    pub(crate) backwards: bool,
    /// Whether the packs are stored by [`stream_pack`].
    pub(crate) streams: bool,
}

impl Range {
    /// The first pack begins where the first destination is aligned. Where packs must be aligned and the other addresses do
    /// not agree on where that is, everything is handled element by element; where they only had better be, a short range is
    /// not worth the single elements in front.
    #[inline(always)]
    fn of<E: Element>(operands: &impl Access<E::Number>, bytes: usize, backwards: bool, streams: bool) -> Range {
        const SHORT_BYTES: usize = 8 * PACK_BYTES;
        let packs_from = |head_bytes: usize| Range {
            head_bytes,
            packs_bytes: (bytes - head_bytes) / E::PACK_BYTES * E::PACK_BYTES,
            bytes,
            backwards,
            streams: false,
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
                return Range { head_bytes: bytes, packs_bytes: 0, bytes, backwards, streams: false };
            }
        }
        let head = (PACK_ALIGNMENT - misalignment) & (PACK_ALIGNMENT - 1);
        let range = packs_from(if head < bytes { head } else { bytes });
        if !STREAMS || !E::IN_REGISTERS || !streams || differing & (STREAM_ALIGNMENT - 1) != 0 {
            return range;
        }
        // A line that is read anyway is in the cache already. (And where there is a choice of how to store it, the compiler keeps
        // an array in memory that might have stayed in registers.)
        let mut reads = false;
        operands.each_source(|_, source, _| operands.each_destination(|address| reads |= ptr::eq(source, address)));
        Range { streams: !reads, ..range }
    }
}

/// Bytes from one of a thread's packs to its next one in a tile: the warp's other threads' lie between.
const SPACING_BYTES: usize = WARP_THREADS * PACK_BYTES;

/// Handles the packs of the range: tiles of them, then those that are left.
///
/// # Safety
/// As [`by_shape`].
#[inline(always)]
pub(crate) unsafe fn walk<E: Element, R: ReductionOf<E>, A: Access<E::Number>, const COUNT: usize>(
    mut operands: A,
    range: &Range,
) {
    // Several packs a trip lie at constant distances, which are the same for all types.
    const { assert!(E::PACK_BYTES == PACK_BYTES || (COUNT == 1 && E::PACK_BYTES < PACK_BYTES)) };
    let tile_bytes = COUNT * WARP_THREADS * E::PACK_BYTES;
    let (thread, threads) = (thread_index(), thread_count());
    let (warp, warps) = (thread / WARP_THREADS, threads / WARP_THREADS);
    let lane = thread - warp * WARP_THREADS;
    let tiles = range.packs_bytes / tile_bytes;
    // SAFETY: the packs lie inside the range's, and each is handled by exactly one thread.
    unsafe {
        // Where a tile is one pack (of a team of one), none is left. What is left comes first, so that the hot loop need keep nothing for it.
        let mut offset = tiles * tile_bytes + thread * E::PACK_BYTES;
        operands.advance(range.head_bytes + offset);
        if COUNT * WARP_THREADS > 1 {
            while offset < range.packs_bytes {
                packs::<E, R, A, 1>(&operands, range);
                operands.advance(threads * E::PACK_BYTES);
                offset += threads * E::PACK_BYTES;
            }
        }
        // Trips are counted, rather than bytes compared: a counter of 32 bits takes fewer instructions, and no range has more
        // tiles than that.
        let mut trips =
            if warp < tiles { 1 + ((tiles - warp - 1) as u32).checked_div(warps as u32).unwrap_or(0) } else { 0 };
        let (first_tile, stride_bytes) = if range.backwards {
            (tiles.wrapping_sub(1 + warp), (warps * tile_bytes).wrapping_neg())
        } else {
            (warp, warps * tile_bytes)
        };
        operands.advance(first_tile.wrapping_mul(tile_bytes).wrapping_add(lane * E::PACK_BYTES).wrapping_sub(offset));
        while trips > 0 {
            packs::<E, R, A, COUNT>(&operands, range);
            operands.advance(stride_bytes);
            trips -= 1;
        }
    }
}

/// Handles the elements before the packs, on a thread that is alone; on a team those behind them as well, so that nothing of
/// the range need be kept while the packs are handled.
///
/// Ranks that share out a buffer share the cache lines at the ends of their parts. Each does the first line of its part first
/// and the last one last, so that two neighbours are not at the same line at the same time; and it asks for the last line
/// now, since that takes as long as copying some kilobytes.
///
/// # Safety
/// As [`by_shape`].
#[inline(always)]
unsafe fn before_packs<E: Element, R: ReductionOf<E>, A: Access<E::Number>>(operands: &A, range: &Range) {
    if PACKS_MUST_ALIGN {
        // SAFETY: passed on from the caller.
        return unsafe { elements::<E::Single, R, A>(operands, range) };
    }
    if range.packs_bytes > 0 {
        operands.each_destination(|address| prefetch_for_writing(address.wrapping_add(range.bytes - 1)));
    }
    // SAFETY: passed on from the caller.
    unsafe { elements::<E::Single, R, A>(operands, &Range { packs_bytes: range.bytes - range.head_bytes, ..*range }) };
}

/// Handles the elements that [`before_packs`] left.
///
/// # Safety
/// As [`by_shape`].
#[inline(always)]
unsafe fn after_packs<E: Element, R: ReductionOf<E>, A: Access<E::Number>>(operands: &A, range: &Range) {
    if const { !PACKS_MUST_ALIGN } {
        let done_bytes = range.head_bytes + range.packs_bytes;
        let tail_bytes = range.bytes - done_bytes;
        let padded_bytes = if tail_bytes >= PADDED_TAIL_BYTES_MIN { tail_bytes } else { 0 };
        let rest = Range { head_bytes: 0, packs_bytes: done_bytes + padded_bytes, ..*range };
        // SAFETY: the tail lies inside the operands, and is shorter than a pack; the rest is passed on from the caller.
        unsafe {
            if padded_bytes > 0 {
                padded_pack::<E, R, A>(operands, done_bytes, padded_bytes);
            }
            elements::<E::Single, R, A>(operands, &rest);
        }
    }
}

/// Handles the elements of the range that lie before and behind its packs, one by one. On the host no instruction set is any
/// better at it, so there is one function for all.
///
/// # Safety
/// As [`by_shape`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
unsafe fn elements<E: Element, R: Reduction<E::Number>, A: Access<E::Number>>(operands: &A, range: &Range) {
    let mut place = thread_index() * E::BYTES;
    while place < range.bytes - range.packs_bytes {
        let offset = if place < range.head_bytes { place } else { place + range.packs_bytes };
        // SAFETY: the offset lies inside the range, at a multiple of the element's size, and each element is handled by
        // exactly one thread.
        unsafe { element::<E, R, A>(operands, offset) };
        place += thread_count() * E::BYTES;
    }
}

/// `COUNT` packs of each operand, [`SPACING_BYTES`] apart: all loads of a source before the next, so that many are in flight.
///
/// What converts or reduces must be inlined to the last, closures too: only there are the instructions that it needs.
///
/// # Safety
/// The packs lie inside the operands, aligned to [`PACK_ALIGNMENT`] where they must be.
#[inline(always)]
unsafe fn packs<E: Element, R: ReductionOf<E>, A: Access<E::Number>, const COUNT: usize>(operands: &A, range: &Range) {
    const { assert!(COUNT <= 8) };
    if operands.is_plain_copy() {
        operands.each_source(|_, address, _| {
            let mut copied = [const { MaybeUninit::<E::Pack>::uninit() }; COUNT];
            unrolled!(0 1 2 3 4 5 6 7, PACK < COUNT => {
                // SAFETY: the pack lies inside the source.
                copied[PACK].write(unsafe { A::load::<_, { PACK * SPACING_BYTES }>(address) });
            });
            operands.each_destination(|address| {
                unrolled!(0 1 2 3 4 5 6 7, PACK < COUNT => {
                    // SAFETY: the pack lies inside the destination, and has been loaded.
                    unsafe { A::store::<_, { PACK * SPACING_BYTES }>(address, copied[PACK].assume_init()) };
                })
            });
        });
        return;
    }
    if A::SOURCES == Some(2) && R::ADDS && E::ADDS_PACKS {
        let mut loaded = [const { [const { MaybeUninit::<E::Pack>::uninit() }; COUNT] }; 2];
        operands.each_source(|index, address, _| {
            unrolled!(0 1 2 3 4 5 6 7, PACK < COUNT => {
                // SAFETY: the pack lies inside the source, of which there are two.
                loaded[index & 1][PACK].write(unsafe { A::load::<_, { PACK * SPACING_BYTES }>(address) });
            })
        });
        let [left, right] = &loaded;
        unrolled!(0 1 2 3 4 5 6 7, PACK < COUNT => {
            // SAFETY: both have been loaded.
            let result = unsafe { E::add_packs(left[PACK].assume_init(), right[PACK].assume_init()) };
            // SAFETY: the packs lie inside the destination.
            operands.each_destination(|address| unsafe { A::store::<_, { PACK * SPACING_BYTES }>(address, result) });
        });
        return;
    }
    // Zeroed, though the first source overwrites it: where the number of sources is not a constant, what begins as nothing in
    // particular would take registers in all the code around.
    let mut sums = [const { MaybeUninit::<E::Wide>::zeroed() }; COUNT];
    operands.each_source(#[inline(always)] |index, address, scale| {
        if PREFETCH_BYTES > 0 && size_of::<E::Wide>() > size_of::<E::Pack>() {
            prefetch_pack::<E>(address, range.backwards);
        }
        unrolled!(0 1 2 3 4 5 6 7, PACK < COUNT => {
            // SAFETY: the pack lies inside the source; the first source comes first.
            unsafe { accumulate::<E, R>(&mut sums[PACK], index, A::load::<_, { PACK * SPACING_BYTES }>(address), scale) };
        });
    });
    unrolled!(0 1 2 3 4 5 6 7, PACK < COUNT => {
        // SAFETY: there is a first source, and it initialised the sum.
        let result = finish::<E, R>(unsafe { sums[PACK].assume_init_mut() }, operands.finish());
        operands.each_destination(#[inline(always)] |address| {
            // SAFETY: the packs lie inside the destination, which is aligned to them where they are to be streamed.
            unsafe {
                if STREAMS && E::IN_REGISTERS && range.streams {
                    stream_pack::<_, { PACK * SPACING_BYTES }>(address, result)
                } else {
                    A::store::<_, { PACK * SPACING_BYTES }>(address, result)
                }
            }
        });
    });
}

/// Asks for what the loop comes to some packs after the one at this address.
#[inline(always)]
fn prefetch_pack<E: Element>(address: *const u8, backwards: bool) {
    let ahead_bytes = if backwards { PREFETCH_BYTES.wrapping_neg() } else { PREFETCH_BYTES };
    let ahead = address.wrapping_add(ahead_bytes);
    unrolled!(0 1 2 3, LINE < E::PACK_BYTES.div_ceil(LINE_BYTES) => { prefetch(ahead.wrapping_add(LINE * LINE_BYTES)) });
}

/// The last `bytes` bytes, fewer than a pack, as a pack of which the rest is zeros: on targets where a pack is long this is
/// much quicker than going through its elements. Never on a team of several threads.
///
/// # Safety
/// The bytes lie inside the operands.
#[inline(always)]
unsafe fn padded_pack<E: Element, R: ReductionOf<E>, A: Access<E::Number>>(operands: &A, offset: usize, bytes: usize) {
    let mut padded = [0_u8; PACK_BYTES];
    let mut sum = MaybeUninit::<E::Wide>::uninit();
    let plain = operands.is_plain_copy();
    operands.each_source(
        #[inline(always)]
        |index, address, scale| {
            // SAFETY: the bytes lie inside the source, and fit; the first source comes first.
            unsafe {
                ptr::copy_nonoverlapping(address.add(offset), padded.as_mut_ptr(), bytes);
                if !plain {
                    accumulate::<E, R>(&mut sum, index, load_pack::<_, 0>(padded.as_ptr()), scale);
                }
            }
        },
    );
    if !plain {
        // SAFETY: there is a first source, and it initialised the sum; the array is a pack's size.
        unsafe { store_pack::<_, 0>(padded.as_mut_ptr(), finish::<E, R>(sum.assume_init_mut(), operands.finish())) };
    }
    // SAFETY: the bytes lie inside the destination, and are no more than there are.
    operands.each_destination(|address| unsafe {
        ptr::copy_nonoverlapping(padded.as_ptr(), address.add(offset), bytes);
    });
}

/// Combines a pack of the source `index` into `sum`.
///
/// # Safety
/// `sum` is initialised unless this is the first source.
#[inline(always)]
pub(crate) unsafe fn accumulate<E: Element, R: ReductionOf<E>>(
    sum: &mut MaybeUninit<E::Wide>,
    index: usize,
    pack: E::Pack,
    scale: Factor<E>,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        if index == 0 {
            let sum = sum.write(E::widen_pack(pack));
            if R::SCALES {
                E::map(
                    sum,
                    #[inline(always)]
                    |lanes| lanes.scaled(scale),
                );
            }
        } else {
            E::widen_with(
                sum.assume_init_mut(),
                pack,
                #[inline(always)]
                |sum, lanes| R::combine_lanes(sum, if R::SCALES { lanes.scaled(scale) } else { lanes }),
            );
        }
    }
}

/// The pack that a sum ends as.
#[inline(always)]
pub(crate) fn finish<E: Element, R: ReductionOf<E>>(sum: &mut E::Wide, factor: Factor<E>) -> E::Pack {
    if R::FINISHES {
        E::map(
            sum,
            #[inline(always)]
            |lanes| E::finished_lanes(lanes, factor),
        );
    }
    E::narrow_pack(sum)
}

/// One element of each operand.
///
/// # Safety
/// The element lies inside the operands.
#[inline(always)]
unsafe fn element<E: Element, R: Reduction<E::Number>, A: Access<E::Number>>(operands: &A, offset: usize) {
    // Zeroed for the reason that `packs` gives.
    let (mut copied, mut sum) = (MaybeUninit::<E::Bits>::zeroed(), MaybeUninit::<E::Number>::zeroed());
    operands.each_source(|index, address, scale| {
        // SAFETY: the element lies inside the source; the first source comes first, and initialises both.
        unsafe {
            let bits = *copied.write(address.add(offset).cast::<E::Bits>().read());
            let number = E::widen(bits);
            let number = if R::SCALES { number.scaled(scale) } else { number };
            sum.write(if index == 0 { number } else { R::combine(sum.assume_init(), number) });
        }
    });
    // SAFETY: there is a first source.
    let result = unsafe {
        if operands.is_plain_copy() {
            copied.assume_init()
        } else {
            let sum = sum.assume_init();
            E::narrow(if R::FINISHES { E::finished(sum, operands.finish()) } else { sum })
        }
    };
    // SAFETY: the element lies inside the destination.
    operands.each_destination(|address| unsafe { address.add(offset).cast::<E::Bits>().write(result) });
}
