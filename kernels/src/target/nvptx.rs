//! A GPU thread block: a team of its threads, a multiple of [`WARP_THREADS`] of them, in one dimension.
//!
//! Names are `cuda_std`'s where it has one. Every load, store and fence below says what it orders, for whom and at which
//! scope. The scope is `.sys` throughout: the other end of a connection may be another GPU or a CPU, and the interpreter
//! does not know which.
//!
//! How a team's data reaches a peer: each thread stores its share (weak stores), all meet at [`barrier`], then one thread
//! does [`store_release`]. The barrier makes the team's stores happen before that thread's release, and causality order in
//! the PTX memory model is transitive, so the peer's [`load_acquire`] and the barrier after it carry them on to every
//! thread of the peer's team. No thread but the one that moves the counter needs a fence.
//!
//! Addresses are generic ones as the host hands them out. All of them lie in global memory (a device's own, a peer's, or
//! mapped host memory), where generic and global addresses are the same numbers.

use core::arch::asm;
use core::arch::nvptx::{_block_idx_x, _syncthreads};
use core::mem::{size_of, transmute_copy};

/// Bytes that one thread loads and stores at once: the widest access that the architecture has.
pub const PACK_BYTES: usize = if cfg!(target_feature = "sm_100") { 32 } else { 16 };

/// What a pack's address must be a multiple of.
pub const PACK_ALIGNMENT: usize = PACK_BYTES;

/// Whether a pack's address must be aligned.
pub const PACKS_MUST_ALIGN: bool = true;

/// A tail of at least so many bytes is handled as a pack that is filled up with zeros: none is, since a pack is short, and
/// the team's threads share out the elements.
pub const PADDED_TAIL_BYTES_MIN: usize = usize::MAX;

/// Whether plain copies are made elsewhere: here they are part of the loops.
pub const COPIES_APART: bool = false;

/// Packs of each source that one thread has in flight per trip of the hot loop.
pub const UNROLL: usize = 128 / PACK_BYTES;

/// Whether there is a loop for each number of destinations: a test before each store costs as much as the store.
pub const SPECIALISES_DESTINATIONS: bool = true;

/// Whether the order in which one thread goes through memory matters: a GPU's threads go through all of it at once.
pub const GOES_BACKWARDS: bool = false;

/// Whether there are stores that go past the caches: here caches are told in other ways.
pub const STREAMS: bool = false;

/// What the address of such a store would be a multiple of.
pub const STREAM_ALIGNMENT: usize = PACK_ALIGNMENT;

/// Sources are never asked for ahead: a GPU hides that wait behind other threads.
pub const PREFETCH_BYTES: usize = 0;

/// Whether a program that waits looks at the abort word in each of its polls: the word lies across the bus, and a poll that waits
/// for it is slow to see what else it polls for.
pub const LOOKS_FOR_ABORT_AT_ONCE: bool = false;

/// Threads that read neighbouring packs.
pub const WARP_THREADS: usize = 32;

// LLVM's intrinsics rather than `asm!`: it knows the block's votes to be convergent, so that it neither duplicates a barrier
// into two branches nor moves it into one, and it picks the instructions of minimum and maximum by architecture.
unsafe extern "C" {
    #[link_name = "llvm.minimum.f32"]
    fn minimum_f32(left: f32, right: f32) -> f32;
    #[link_name = "llvm.maximum.f32"]
    fn maximum_f32(left: f32, right: f32) -> f32;
    #[link_name = "llvm.minimum.f64"]
    fn llvm_minimum_f64(left: f64, right: f64) -> f64;
    #[link_name = "llvm.maximum.f64"]
    fn llvm_maximum_f64(left: f64, right: f64) -> f64;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any_sync(mask: u32, vote: bool) -> bool;
    #[link_name = "llvm.nvvm.barrier0.or"]
    fn barrier0_or(vote: i32) -> i32;
    #[link_name = "llvm.nvvm.barrier0.and"]
    fn barrier0_and(vote: i32) -> i32;
}

/// This thread's place in its team.
///
/// `asm!` that is not `pure`, here and below: what is calculated from it is then calculated where it is needed, and not kept
/// in registers from the start of the kernel to its end. The hot loops need them.
#[inline(always)]
pub fn thread_index() -> usize {
    let index: u32;
    // SAFETY: reads a special register.
    unsafe { asm!("mov.u32 {index}, %tid.x;", index = out(reg32) index, options(nomem, nostack, preserves_flags)) };
    index as usize
}

/// Threads in the team.
#[inline(always)]
pub fn thread_count() -> usize {
    let count: u32;
    // SAFETY: reads a special register.
    unsafe { asm!("mov.u32 {count}, %ntid.x;", count = out(reg32) count, options(nomem, nostack, preserves_flags)) };
    count as usize
}

/// This block's place in the grid.
#[inline(always)]
pub fn block_index() -> usize {
    // SAFETY: reads a special register.
    unsafe { _block_idx_x() as usize }
}

/// Waits for the team; what its threads wrote before is visible to all of them afterwards (`bar.sync`: morally strong and
/// acquire-release among the threads of the block).
#[inline(always)]
pub fn barrier() {
    // SAFETY: a team's threads agree on control flow, so all of them come here.
    unsafe { _syncthreads() }
}

/// [`barrier`], and whether `vote` is true on any thread of the team.
#[inline(always)]
pub fn any(vote: bool) -> bool {
    // SAFETY: as in `barrier`.
    unsafe { barrier0_or(vote as i32) != 0 }
}

/// [`barrier`], and whether `vote` is true on every thread of the team.
#[inline(always)]
pub fn all(vote: bool) -> bool {
    // SAFETY: as in `barrier`.
    unsafe { barrier0_and(vote as i32) != 0 }
}

/// Reads a counter; what its writer did before [`store_release`] is visible afterwards, to this thread at once and to its
/// team after the next barrier or vote. Scope `.sys`: the writer may be any GPU or CPU.
///
/// # Safety
/// `counter` is valid for an aligned atomic read.
#[inline(always)]
pub unsafe fn load_acquire(counter: *const u64) -> u64 {
    let value: u64;
    // SAFETY: the caller vouches for the address. Not `readonly`: no access of this thread may move up across it.
    unsafe {
        asm!("ld.acquire.sys.global.u64 {value}, [{counter}];",
             value = out(reg64) value, counter = in(reg64) counter, options(nostack, preserves_flags));
    }
    value
}

/// Writes a counter after everything that this team did before it (its threads having met at a [`barrier`]): loads and
/// stores, weak ones too. Scope `.sys`: the reader may be any GPU or CPU.
///
/// # Safety
/// `counter` is valid for an aligned atomic write.
#[inline(always)]
pub unsafe fn store_release(counter: *mut u64, value: u64) {
    // SAFETY: the caller vouches for the address. Not `nomem`: no access of this thread may move down across it.
    unsafe {
        asm!("st.release.sys.global.u64 [{counter}], {value};",
             counter = in(reg64) counter, value = in(reg64) value, options(nostack, preserves_flags));
    }
}

/// Reads an address that another rank has written before it published a slot which this team has acquired. Relaxed, because that
/// rank's other blocks may be writing the same address there once more; scope `.sys`: the rank may be on another GPU.
///
/// # Safety
/// `address` is valid for an aligned atomic read.
#[inline(always)]
pub unsafe fn load_address(address: *const *mut u8) -> *mut u8 {
    let value: u64;
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("ld.relaxed.sys.global.u64 {value}, [{address}];",
             value = out(reg64) value, address = in(reg64) address, options(nostack, preserves_flags));
    }
    core::ptr::with_exposed_provenance_mut(value as usize)
}

/// Reads a word that another thread may be writing; orders nothing. Scope `.sys`: that thread may be any GPU's or CPU's.
///
/// # Safety
/// `word` is valid for an aligned atomic read.
#[inline(always)]
pub unsafe fn load_relaxed(word: *const u64) -> u64 {
    let value: u64;
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("ld.relaxed.sys.global.u64 {value}, [{word}];",
             value = out(reg64) value, word = in(reg64) word, options(nostack, preserves_flags));
    }
    value
}

/// Writes a word that another thread may be reading, or writing; orders nothing. Scope `.sys`: as above.
///
/// # Safety
/// `word` is valid for an aligned atomic write.
#[inline(always)]
pub unsafe fn store_relaxed(word: *mut u64, value: u64) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("st.relaxed.sys.global.u64 [{word}], {value};",
             word = in(reg64) word, value = in(reg64) value, options(nostack, preserves_flags));
    }
}

/// Orders this thread's stores before it against its loads after it, for whoever does the same the other way round; and acquires
/// and releases. Scope `.sys`: that may be any GPU or CPU.
#[inline(always)]
pub fn fence_all() {
    // SAFETY: a fence. Not `nomem`: no access of this thread may move across it.
    unsafe { asm!("fence.sc.sys;", options(nostack, preserves_flags)) };
}

/// Counts one more; what the counter was before. Acquire and release among the blocks of this GPU (scope `.gpu`): who counts last
/// comes after everything that those before it did.
///
/// # Safety
/// `counter` is valid for an aligned atomic addition.
#[inline(always)]
pub unsafe fn count_up(counter: *mut u32) -> u32 {
    let before: u32;
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("atom.acq_rel.gpu.global.add.u32 {before}, [{counter}], 1;",
             before = out(reg32) before, counter = in(reg64) counter, options(nostack, preserves_flags));
    }
    before
}

/// Reads the abort word. It orders nothing: who sees it raised only stops. Scope `.sys`: a CPU raises it.
///
/// One thread looks for the whole team, since the word may lie across the bus: the others say no, and the vote that follows
/// tells them.
///
/// # Safety
/// `abort` is valid for an aligned atomic read.
#[inline(always)]
pub unsafe fn is_aborted(abort: *const u32) -> bool {
    // SAFETY: passed on from the caller.
    thread_index() == 0 && unsafe { sees_abort(abort) }
}

/// Reads the abort word, or another one that is zero until it stops somebody, on whichever thread asks; otherwise as
/// [`is_aborted`].
///
/// # Safety
/// `abort` is valid for an aligned atomic read.
#[inline(always)]
pub unsafe fn sees_abort(abort: *const u32) -> bool {
    let value: u32;
    // SAFETY: the caller vouches for the address. Relaxed, yet never cached or merged: every call reads the word.
    unsafe {
        asm!("ld.relaxed.sys.global.u32 {value}, [{abort}];",
             value = out(reg32) value, abort = in(reg64) abort, options(nostack, preserves_flags));
    }
    value != 0
}

/// Whether `vote` is true on any thread of this warp, all of which come here.
#[inline(always)]
pub fn warp_any(vote: bool) -> bool {
    // SAFETY: the caller vouches for the warp.
    unsafe { vote_any_sync(u32::MAX, vote) }
}

/// Reads 16 bytes of a slot whose data is its own signal. Relaxed at scope `.sys`: it orders nothing; each half, of 8 bytes,
/// is whole by itself.
///
/// # Safety
/// `address` is valid for reading 16 bytes, and aligned to as many.
#[inline(always)]
pub unsafe fn load_pair(address: *const u8) -> [u64; 2] {
    let (low, high): (u64, u64);
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("ld.relaxed.sys.global.v2.b64 {{{low}, {high}}}, [{address}];",
             low = out(reg64) low, high = out(reg64) high, address = in(reg64) address,
             options(nostack, preserves_flags));
    }
    [low, high]
}

/// Writes 16 bytes of a slot whose data is its own signal: as [`load_pair`].
///
/// # Safety
/// `address` is valid for writing 16 bytes, and aligned to as many.
#[inline(always)]
pub unsafe fn store_pair(address: *mut u8, pair: [u64; 2]) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("st.relaxed.sys.global.v2.b64 [{address}], {{{low}, {high}}};",
             low = in(reg64) pair[0], high = in(reg64) pair[1], address = in(reg64) address,
             options(nostack, preserves_flags));
    }
}

/// Says that this rank is about to touch peers' memory, unless the communicator has been aborted: then it must not, and
/// the answer is false (on the thread that looked; a vote tells the others). Either way [`end_touch`] comes after it. Where no
/// memory depends on it (`touching` is null: it is not given back before the kernels have ended), there is nothing to say.
///
/// The guard on memory that was only lent, as the host's module explains it: each side writes its own word, then reads the
/// other's, with a sequentially consistent fence between. One thread does it for its team; the vote that follows keeps the
/// others from touching anything earlier. The word counts the blocks of this rank that are inside, since they come and go
/// independently.
///
/// # Safety
/// `abort` is valid for an aligned atomic read; `touching` is null or valid for an aligned atomic addition.
#[inline(always)]
pub unsafe fn begin_touch(touching: *mut u32, abort: *const u32) -> bool {
    if touching.is_null() {
        return true;
    }
    if thread_index() == 0 {
        // SAFETY: the caller vouches for the address. `fence.sc.sys` orders the addition before the look at the abort word,
        // for the owner of the memory, wherever it runs.
        unsafe {
            asm!("red.relaxed.sys.global.add.u32 [{touching}], 1;",
                 "fence.sc.sys;",
                 touching = in(reg64) touching, options(nostack, preserves_flags));
        }
    }
    // SAFETY: passed on from the caller.
    !unsafe { is_aborted(abort) }
}

/// Says that this block no longer touches peers' memory; everything that it did there comes before (release at `.sys`, the
/// team having met at a [`barrier`] or a vote).
///
/// # Safety
/// `touching` is null or valid for an aligned atomic addition; each call follows one of [`begin_touch`].
#[inline(always)]
pub unsafe fn end_touch(touching: *mut u32) {
    if thread_index() == 0 && !touching.is_null() {
        // SAFETY: the caller vouches for the address.
        unsafe {
            asm!("red.release.sys.global.add.u32 [{touching}], -1;",
                 touching = in(reg64) touching, options(nostack, preserves_flags));
        }
    }
}

/// Orders this thread's accesses through different addresses of the same memory, such as a rank's own and a switch's multicast
/// address. It says nothing about other threads: a barrier, and the acquire and release of the counters, do.
#[cfg(target_feature = "sm_90")]
#[inline(always)]
pub fn fence_aliases() {
    // SAFETY: a fence. Not `nomem`: no access of this thread may move across it.
    unsafe { asm!("fence.proxy.alias;", options(nostack, preserves_flags)) };
}

/// Writes `value` unless the word has already left `expected`; whether this did. Orders nothing. Scope `.gpu`: only the blocks of
/// this launch write the word, and later launches read it.
///
/// # Safety
/// `word` is valid for an aligned atomic exchange.
#[inline(always)]
pub unsafe fn compare_and_set(word: *mut u32, expected: u32, value: u32) -> bool {
    let old: u32;
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("atom.relaxed.gpu.global.cas.b32 {old}, [{word}], {expected}, {value};",
             old = out(reg32) old, word = in(reg64) word, expected = in(reg32) expected, value = in(reg32) value,
             options(nostack, preserves_flags));
    }
    old == expected
}

/// Lets other blocks of the multiprocessor run for about so long; orders nothing.
#[inline(always)]
pub fn nanosleep(nanoseconds: u32) {
    // SAFETY: touches no memory.
    unsafe {
        asm!("nanosleep.u32 {nanoseconds};", nanoseconds = in(reg32) nanoseconds,
             options(nomem, nostack, preserves_flags));
    }
}

/// For model checking, which is the host's.
#[inline(always)]
pub fn note_read<T>(_address: *const T) {}

/// For model checking, which is the host's.
#[inline(always)]
pub fn note_write<T>(_address: *mut T) {}

/// The same reference, of whose value the compiler knows nothing: it reads again what it had read before, and so need not keep
/// that in registers meanwhile.
#[inline(always)]
pub fn forgotten<T>(value: &T) -> &T {
    let mut address = core::ptr::from_ref(value);
    // SAFETY: a comment; the address is what it was.
    unsafe {
        asm!("// {address}", address = inout(reg64) address, options(nomem, nostack, preserves_flags));
        &*address
    }
}

/// The clock of step times, in nanoseconds; orders nothing. It is one clock for the whole GPU.
#[inline(always)]
pub fn timestamp() -> u64 {
    let nanoseconds: u64;
    // SAFETY: reads a special register. Not `nomem`, so that it stays where it stands among the accesses that it times.
    unsafe {
        asm!("mov.u64 {nanoseconds}, %globaltimer;", nanoseconds = out(reg64) nanoseconds,
             options(nostack, preserves_flags));
    }
    nanoseconds
}

/// Loads the pack at `address + OFFSET`, in one access. Weak: the acquire of the counter that announced the data ordered it.
///
/// `asm!`, because the compiler splits a plain load of an array into scalars. `readonly`, so that it may keep in registers what
/// it knows of memory; it is still volatile and stays in its place among loads, stores and barriers.
///
/// # Safety
/// That address is valid for reading a `P` of [`PACK_BYTES`] bytes, and aligned to [`PACK_ALIGNMENT`].
#[inline(always)]
pub unsafe fn load_pack<P: Copy, const OFFSET: usize>(address: *const u8) -> P {
    const { assert!(size_of::<P>() == PACK_BYTES) };
    let (a, b, c, d): (u32, u32, u32, u32);
    #[cfg(not(target_feature = "sm_100"))]
    // SAFETY: the caller vouches for the address; any 16 bytes are a `P`, which is an array of integers.
    unsafe {
        asm!("ld.global.v4.b32 {{{a}, {b}, {c}, {d}}}, [{address} + {offset}];",
             a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d, address = in(reg64) address,
             offset = const OFFSET,
             options(readonly, nostack, preserves_flags));
        transmute_copy(&[a, b, c, d])
    }
    #[cfg(target_feature = "sm_100")]
    // SAFETY: likewise, of 32 bytes.
    unsafe {
        let (e, f, g, h): (u32, u32, u32, u32);
        asm!("ld.global.v8.b32 {{{a}, {b}, {c}, {d}, {e}, {f}, {g}, {h}}}, [{address} + {offset}];",
             a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
             e = out(reg32) e, f = out(reg32) f, g = out(reg32) g, h = out(reg32) h, address = in(reg64) address,
             offset = const OFFSET,
             options(readonly, nostack, preserves_flags));
        transmute_copy(&[a, b, c, d, e, f, g, h])
    }
}

/// Stores a pack at `address + OFFSET`, in one access. Weak: the release of the counter that announces the data orders it.
///
/// # Safety
/// That address is valid for writing a `P` of [`PACK_BYTES`] bytes, and aligned to [`PACK_ALIGNMENT`].
#[inline(always)]
pub unsafe fn store_pack<P: Copy, const OFFSET: usize>(address: *mut u8, pack: P) {
    const { assert!(size_of::<P>() == PACK_BYTES) };
    #[cfg(not(target_feature = "sm_100"))]
    // SAFETY: a `P` is 16 bytes of integers; the caller vouches for the address.
    unsafe {
        let [a, b, c, d]: [u32; 4] = transmute_copy(&pack);
        asm!("st.global.v4.b32 [{address} + {offset}], {{{a}, {b}, {c}, {d}}};",
             a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d, address = in(reg64) address,
             offset = const OFFSET, options(nostack, preserves_flags));
    }
    #[cfg(target_feature = "sm_100")]
    // SAFETY: likewise, of 32 bytes.
    unsafe {
        let [a, b, c, d, e, f, g, h]: [u32; 8] = transmute_copy(&pack);
        asm!("st.global.v8.b32 [{address} + {offset}], {{{a}, {b}, {c}, {d}, {e}, {f}, {g}, {h}}};",
             a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
             e = in(reg32) e, f = in(reg32) f, g = in(reg32) g, h = in(reg32) h, address = in(reg64) address,
             offset = const OFFSET, options(nostack, preserves_flags));
    }
}

/// [`store_pack`].
///
/// # Safety
/// As [`store_pack`].
#[inline(always)]
pub unsafe fn stream_pack<P: Copy, const OFFSET: usize>(address: *mut u8, pack: P) {
    // SAFETY: passed on from the caller.
    unsafe { store_pack::<P, OFFSET>(address, pack) }
}

/// Nothing: stores are ordered by the release that follows them.
#[inline(always)]
pub fn end_streaming() {}

/// Asks for a cache line that is about to be read: not on this target ([`PREFETCH_BYTES`]).
#[inline(always)]
pub fn prefetch(_address: *const u8) {}

/// Asks for a cache line that is about to be written: a GPU hides that wait behind other threads.
#[inline(always)]
pub fn prefetch_for_writing(_address: *mut u8) {}

/// The lesser; a NaN if either is one; −0 is less than +0. One instruction from sm_80 on (`min.NaN.f32`).
#[inline(always)]
pub fn minimum(left: f32, right: f32) -> f32 {
    // SAFETY: arithmetic.
    unsafe { minimum_f32(left, right) }
}

/// The greater; a NaN if either is one; −0 is less than +0. One instruction from sm_80 on (`max.NaN.f32`).
#[inline(always)]
pub fn maximum(left: f32, right: f32) -> f32 {
    // SAFETY: arithmetic.
    unsafe { maximum_f32(left, right) }
}

/// Whether packs of f16 are added by [`add_f16_packs`]: every architecture adds them in pairs.
pub const ADDS_F16_PACKS: bool = true;

/// Whether packs of bf16 are added by [`add_bf16_packs`].
pub const ADDS_BF16_PACKS: bool = cfg!(target_feature = "sm_80");

/// One instruction for each four bytes of two packs.
macro_rules! by_words {
    ($left:ident, $right:ident, $instruction:literal) => {{
        const { assert!(size_of::<P>() == PACK_BYTES) };
        // SAFETY: a `P` is so many bytes of integers; arithmetic.
        unsafe {
            let (left, right): ([u32; PACK_BYTES / 4], [u32; PACK_BYTES / 4]) = (transmute_copy(&$left), transmute_copy(&$right));
            let mut sums = [0_u32; PACK_BYTES / 4];
            unrolled!(0 1 2 3 4 5 6 7, WORD < (PACK_BYTES / 4) => {
                asm!($instruction, sum = out(reg32) sums[WORD], left = in(reg32) left[WORD], right = in(reg32) right[WORD],
                     options(pure, nomem, nostack, preserves_flags));
            });
            transmute_copy(&sums)
        }
    }};
}

/// The sums of f16, to nearest even. They have the bits that f32 sums rounded to f16 have: f32 holds more than twice the
/// digits, and then rounding twice is rounding once (Figueroa, "When is double rounding innocuous?", 1995).
#[inline(always)]
pub fn add_f16_packs<P: Copy>(left: P, right: P) -> P {
    by_words!(left, right, "add.rn.f16x2 {sum}, {left}, {right};")
}

/// The sums of bf16, to nearest even; the same holds for their bits.
#[cfg(target_feature = "sm_90")]
#[inline(always)]
pub fn add_bf16_packs<P: Copy>(left: P, right: P) -> P {
    by_words!(left, right, "add.rn.bf16x2 {sum}, {left}, {right};")
}

/// As above, where there is no such instruction: once the left one, plus the right one, rounded once.
#[cfg(all(target_feature = "sm_80", not(target_feature = "sm_90")))]
#[inline(always)]
pub fn add_bf16_packs<P: Copy>(left: P, right: P) -> P {
    by_words!(
        left,
        right,
        "{{ .reg .b32 ones; mov.b32 ones, 0x3f803f80; fma.rn.bf16x2 {sum}, {left}, ones, {right}; }}"
    )
}

/// Not on this architecture.
#[cfg(not(target_feature = "sm_80"))]
#[inline(always)]
pub fn add_bf16_packs<P: Copy>(left: P, _right: P) -> P {
    left
}

/// The lesser; a NaN if either is one; −0 is less than +0.
#[inline(always)]
pub fn minimum_f64(left: f64, right: f64) -> f64 {
    // SAFETY: arithmetic.
    unsafe { llvm_minimum_f64(left, right) }
}

/// The greater; a NaN if either is one; −0 is less than +0.
#[inline(always)]
pub fn maximum_f64(left: f64, right: f64) -> f64 {
    // SAFETY: arithmetic.
    unsafe { llvm_maximum_f64(left, right) }
}

/// f16 to f32, exactly, subnormals included; a NaN stays one.
#[inline(always)]
pub fn widen_f16(bits: u16) -> f32 {
    f16::from_bits(bits) as f32
}

/// f32 to f16, to nearest even, subnormals included; overflow gives infinity, a NaN stays one.
#[inline(always)]
pub fn narrow_f16(value: f32) -> u16 {
    (value as f16).to_bits()
}

/// f32 to bf16, to nearest even, subnormals included; a NaN stays one.
#[cfg(target_feature = "sm_80")]
#[inline(always)]
pub fn narrow_bf16(value: f32) -> u16 {
    let bits: u16;
    // SAFETY: arithmetic.
    unsafe {
        asm!("cvt.rn.bf16.f32 {bits}, {value};", bits = out(reg16) bits, value = in(reg32) value,
             options(pure, nomem, nostack, preserves_flags));
    }
    bits
}

/// As above, for architectures that have no instruction for it: half a unit less one, plus the bit that decides ties.
#[cfg(not(target_feature = "sm_80"))]
#[inline(always)]
pub fn narrow_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    (if value.is_nan() { 0x7fff } else { rounded }) as u16
}

#[cfg(not(target_feature = "sm_90"))]
pub use crate::float8::{narrow_f8e4m3, narrow_f8e5m2, widen_f8e4m3, widen_f8e5m2};

#[cfg(target_feature = "sm_90")]
pub use float8_instructions::{narrow_f8e4m3, narrow_f8e5m2, widen_f8e4m3, widen_f8e5m2};

/// The instructions that convert 8-bit floats, two at a time, of which one is used. sm_89 has them too, but runs the image of
/// sm_80.
#[cfg(target_feature = "sm_90")]
mod float8_instructions {
    use core::arch::asm;

    macro_rules! conversions {
        ($widen:ident, $narrow:ident, $format:literal) => {
            /// To f32, by way of f16, which holds every number of the format; a NaN stays one.
            #[inline(always)]
            pub fn $widen(bits: u8) -> f32 {
                let pair: u32;
                // SAFETY: arithmetic.
                unsafe {
                    asm!(concat!("cvt.rn.f16x2.", $format, "x2 {pair}, {bits};"),
                         pair = out(reg32) pair, bits = in(reg16) u16::from(bits),
                         options(pure, nomem, nostack, preserves_flags));
                }
                f16::from_bits(pair as u16) as f32
            }

            /// From f32, to nearest even among the finite numbers; a NaN stays one.
            #[inline(always)]
            pub fn $narrow(value: f32) -> u8 {
                let pair: u16;
                // SAFETY: arithmetic.
                unsafe {
                    asm!(concat!("cvt.rn.satfinite.", $format, "x2.f32 {pair}, {zero}, {value};"),
                         pair = out(reg16) pair, zero = in(reg32) 0.0_f32, value = in(reg32) value,
                         options(pure, nomem, nostack, preserves_flags));
                }
                pair as u8
            }
        };
    }

    conversions!(widen_f8e4m3, narrow_f8e4m3, "e4m3");
    conversions!(widen_f8e5m2, narrow_f8e5m2, "e5m2");
}
