//! A CPU thread: a team of one.

use core::ptr;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
use crate::model::atomic::{AtomicU32, AtomicU64, Ordering, fence};

pub use crate::float8::{narrow_f8e4m3, narrow_f8e5m2, widen_f8e4m3, widen_f8e5m2};

/// Bytes that one thread handles at once: long enough that the compiler makes a vector loop of it, of whatever width.
pub const PACK_BYTES: usize = 256;

/// What a pack's address had better be a multiple of: an access that crosses cache lines costs two.
pub const PACK_ALIGNMENT: usize = 64;

/// Whether a pack's address must be aligned.
pub const PACKS_MUST_ALIGN: bool = false;

/// A tail of at least so many bytes is handled as a pack that is filled up with zeros: a pack is long, and going through
/// its elements one by one is slow.
pub const PADDED_TAIL_BYTES_MIN: usize = 64;

/// Whether plain copies are made elsewhere (`table::Row`), so that the loops of no element type need to know how.
pub const COPIES_APART: bool = true;

/// Packs that one thread handles per trip of the hot loop.
pub const UNROLL: usize = 1;

/// Whether there is a loop for each number of destinations: a test before a store costs nothing where a pack is long.
pub const SPECIALISES_DESTINATIONS: bool = false;

/// Whether the order in which one thread goes through memory matters, so that it goes backwards where it is asked to.
pub const GOES_BACKWARDS: bool = true;

/// Whether there are stores that go past the caches ([`stream_pack`]).
pub const STREAMS: bool = cfg!(target_arch = "x86_64");

/// What the address of such a store is a multiple of.
pub const STREAM_ALIGNMENT: usize = 16;

/// How far ahead sources are asked for where their elements are converted: a processor looks some hundred instructions ahead by
/// itself, and where there are conversions between one load and the next that is not far enough to keep memory busy.
pub const PREFETCH_BYTES: usize = 512;

/// Whether a program that waits looks at the abort word in each of its polls.
pub const LOOKS_FOR_ABORT_AT_ONCE: bool = true;

/// Threads that read neighbouring packs.
pub const WARP_THREADS: usize = 1;

/// This thread's place in its team.
#[inline(always)]
pub fn thread_index() -> usize {
    0
}

/// Threads in the team.
#[inline(always)]
pub fn thread_count() -> usize {
    1
}

/// Waits for the team; what its threads wrote before is visible to all of them afterwards.
#[inline(always)]
pub fn barrier() {}

/// [`barrier`], and whether `vote` is true on any thread of the team.
#[inline(always)]
pub fn any(vote: bool) -> bool {
    vote
}

/// [`barrier`], and whether `vote` is true on every thread of the team.
#[inline(always)]
pub fn all(vote: bool) -> bool {
    vote
}

/// Reads a counter; what its writer did before [`store_release`] is visible afterwards.
///
/// # Safety
/// `counter` is valid for an aligned atomic read.
#[inline(always)]
pub unsafe fn load_acquire(counter: *const u64) -> u64 {
    // SAFETY: the caller vouches for the address; the counter is only ever accessed atomically while shared.
    unsafe { AtomicU64::from_ptr(counter.cast_mut()) }.load(Ordering::Acquire)
}

/// Writes a counter after everything that this team did before it (its threads having met at a [`barrier`]).
///
/// # Safety
/// `counter` is valid for an aligned atomic write.
#[inline(always)]
pub unsafe fn store_release(counter: *mut u64, value: u64) {
    // SAFETY: as in `load_acquire`.
    unsafe { AtomicU64::from_ptr(counter) }.store(value, Ordering::Release);
}

/// Reads an address that another rank has written before it published a slot which this team has acquired.
///
/// # Safety
/// `address` is valid for reading.
#[inline(always)]
pub unsafe fn load_address(address: *const *mut u8) -> *mut u8 {
    // SAFETY: the caller vouches for the address, which the slot's acquire has ordered.
    unsafe { *address }
}

/// Reads the abort word. It orders nothing: who sees it raised only stops.
///
/// # Safety
/// `abort` is valid for an aligned atomic read.
#[inline(always)]
pub unsafe fn is_aborted(abort: *const u32) -> bool {
    // SAFETY: as in `load_acquire`.
    unsafe { AtomicU32::from_ptr(abort.cast_mut()) }.load(Ordering::Relaxed) != 0
}

/// Says that this rank is about to touch peers' memory, unless the communicator has been aborted: then it must not, and
/// the answer is false.
///
/// Together with [`end_touch`] this is the guard on memory that was only lent: its owner raises the abort word, then waits
/// for every peer's `touching` to fall. The fence is what makes that sound: of the two sides, each writing its own word and
/// then reading the other's, at least one sees the other (Dekker's argument), so either this rank sees the abort and stays
/// out or the owner sees this rank inside and waits.
///
/// # Safety
/// `abort` is valid for an aligned atomic read; `touching` is null or valid for an aligned atomic write.
#[inline(always)]
pub unsafe fn begin_touch(touching: *mut u32, abort: *const u32) -> bool {
    if !touching.is_null() {
        // SAFETY: the caller vouches for the address, and the word is only ever accessed atomically.
        unsafe { AtomicU32::from_ptr(touching) }.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
    // SAFETY: passed on from the caller.
    if unsafe { is_aborted(abort) } {
        // SAFETY: passed on from the caller.
        unsafe { end_touch(touching) };
        return false;
    }
    true
}

/// Says that this rank no longer touches peers' memory; everything that it did there comes before.
///
/// # Safety
/// `touching` is null or valid for an aligned atomic write.
#[inline(always)]
pub unsafe fn end_touch(touching: *mut u32) {
    if !touching.is_null() {
        // SAFETY: as in `begin_touch`.
        unsafe { AtomicU32::from_ptr(touching) }.store(0, Ordering::Release);
    }
}

/// Says that plain memory, which another thread may write at other times, is about to be read: model checking asks for it.
#[inline(always)]
pub fn note_read<T>(address: *const T) {
    #[cfg(loom)]
    crate::model::note_read(address.cast(), size_of::<T>());
    #[cfg(not(loom))]
    let _ = address;
}

/// Says that plain memory, which another thread may read or write at other times, is about to be written: likewise.
#[inline(always)]
pub fn note_write<T>(address: *mut T) {
    #[cfg(loom)]
    crate::model::note_write(address.cast(), size_of::<T>());
    #[cfg(not(loom))]
    let _ = address;
}

/// The same reference: a GPU forgets what it knew of the value, to have the registers.
#[inline(always)]
pub fn forgotten<T>(value: &T) -> &T {
    value
}

/// The clock of step times, in ticks; orders nothing.
#[inline(always)]
pub fn timestamp() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 has a time-stamp counter, and nothing here runs where reading it is forbidden.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: the virtual counter is readable at every exception level that runs ordinary programs.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        0
    }
}

/// Loads the pack at `address + OFFSET`.
///
/// # Safety
/// That address is valid for reading a `P`, at any alignment.
#[inline(always)]
pub unsafe fn load_pack<P: Copy, const OFFSET: usize>(address: *const u8) -> P {
    // SAFETY: passed on from the caller.
    unsafe { ptr::read_unaligned(address.add(OFFSET).cast()) }
}

/// Stores a pack at `address + OFFSET`.
///
/// # Safety
/// That address is valid for writing a `P`, at any alignment.
#[inline(always)]
pub unsafe fn store_pack<P: Copy, const OFFSET: usize>(address: *mut u8, pack: P) {
    // SAFETY: passed on from the caller.
    unsafe { ptr::write_unaligned(address.add(OFFSET).cast(), pack) }
}

/// Stores a pack at `address + OFFSET` past the caches: a line that is written whole is not read first, and takes no room.
/// Such stores come after no other one until [`end_streaming`].
///
/// # Safety
/// That address is valid for writing a `P`, and aligned to [`STREAM_ALIGNMENT`]; a `P` is a multiple of that many bytes.
#[inline(always)]
pub unsafe fn stream_pack<P: Copy, const OFFSET: usize>(address: *mut u8, pack: P) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{__m128i, _mm_stream_si128};
        let (pack, address) = ((&raw const pack).cast::<__m128i>(), address.wrapping_add(OFFSET).cast::<__m128i>());
        for index in 0..size_of::<P>() / size_of::<__m128i>() {
            // SAFETY: passed on from the caller; every x86-64 has the instruction.
            unsafe { _mm_stream_si128(address.add(index), pack.add(index).read_unaligned()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: passed on from the caller.
    unsafe {
        store_pack::<P, OFFSET>(address, pack);
    }
}

/// Every [`stream_pack`] so far comes before whatever is stored from now on.
#[inline(always)]
pub fn end_streaming() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

/// A float's minimum and maximum.
macro_rules! order {
    ($float:ident, $signed:ident, $unsigned:ident, $key:ident, $nan_or:ident, $minimum:ident, $maximum:ident) => {
        /// A float's bits as an integer that orders as the float does, −0 below +0; NaNs lie outside both infinities.
        #[inline(always)]
        fn $key(value: $float) -> $signed {
            let bits = value.to_bits() as $signed;
            bits ^ (((bits >> ($signed::BITS - 1)) as $unsigned) >> 1) as $signed
        }

        /// `chosen` unless one of the operands is a NaN: then that one.
        #[inline(always)]
        fn $nan_or(left: $float, right: $float, chosen: $float) -> $float {
            let chosen = if right.is_nan() { right } else { chosen };
            if left.is_nan() { left } else { chosen }
        }

        /// The lesser; a NaN if either is one; −0 is less than +0.
        #[inline(always)]
        pub fn $minimum(left: $float, right: $float) -> $float {
            $nan_or(left, right, if $key(left) < $key(right) { left } else { right })
        }

        /// The greater; a NaN if either is one; −0 is less than +0.
        #[inline(always)]
        pub fn $maximum(left: $float, right: $float) -> $float {
            $nan_or(left, right, if $key(left) > $key(right) { left } else { right })
        }
    };
}

order!(f32, i32, u32, order_key, nan_or, minimum, maximum);
order!(f64, i64, u64, order_key_f64, nan_or_f64, minimum_f64, maximum_f64);

/// Whether packs of f16 are added by [`add_f16_packs`]: they are widened, added and narrowed.
pub const ADDS_F16_PACKS: bool = false;

/// Whether packs of bf16 are added by [`add_bf16_packs`]: likewise.
pub const ADDS_BF16_PACKS: bool = false;

/// Not on this target.
#[inline(always)]
pub fn add_f16_packs<P>(left: P, _right: P) -> P {
    left
}

/// Not on this target.
#[inline(always)]
pub fn add_bf16_packs<P>(left: P, _right: P) -> P {
    left
}

/// Asks for a cache line that is about to be written; a hint, whatever the address.
#[inline(always)]
pub fn prefetch_for_writing(address: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for a cache line that is about to be read; a hint, whatever the address.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// f16 to f32, exactly; a NaN keeps its payload.
///
/// Branch-free so that the compiler can vectorise it. The exponent is rebased by adding; infinities and NaNs need it a
/// second time, and subnormals are normalised by a subtraction that is exact (Fabian Giesen, "half to float done quick").
#[inline(always)]
pub fn widen_f16(bits: u16) -> f32 {
    const EXPONENT: u32 = 0x7c00 << 13;
    let magnitude = (u32::from(bits) & 0x7fff) << 13;
    let sign = (u32::from(bits) & 0x8000) << 16;
    let exponent = magnitude & EXPONENT;
    let normal = magnitude.wrapping_add((127 - 15) << 23);
    let special = normal.wrapping_add((128 - 16) << 23);
    let subnormal = (f32::from_bits(normal.wrapping_add(1 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let value = if exponent == EXPONENT {
        special
    } else if exponent == 0 {
        subnormal
    } else {
        normal
    };
    f32::from_bits(value | sign)
}

/// f32 to f16, to nearest even; overflow gives infinity, a NaN stays one.
///
/// As in [`widen_f16`], without branches: subnormal results let one addition of a large number do the rounding, normal ones
/// add half a unit less one, plus the bit that decides ties.
#[inline(always)]
pub fn narrow_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = ((bits >> 16) & 0x8000) as u16;
    const SUBNORMAL_MAGIC: u32 = ((127 - 15) + (23 - 10) + 1) << 23;
    let subnormal =
        (f32::from_bits(magnitude) + f32::from_bits(SUBNORMAL_MAGIC)).to_bits().wrapping_sub(SUBNORMAL_MAGIC);
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff).wrapping_add(odd) >> 13;
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let result = if magnitude >= 0x4780_0000 {
        special
    } else if magnitude < 113 << 23 {
        subnormal
    } else {
        normal
    };
    result as u16 | sign
}

/// f32 to bf16, to nearest even; a NaN stays one.
#[inline(always)]
pub fn narrow_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // Rounding could carry a NaN's payload into the sign, and truncation could leave none of it.
    let quiet = (bits >> 16) | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
}
