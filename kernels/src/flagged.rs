//! Slots whose data is its own signal: the low-latency formats.
//!
//! A slot of the plain format is data, then a flag, and the flag may only be written once all the data has arrived, which across
//! a link takes a round trip. Here every store carries a flag beside its data, so the consumer knows of each by itself:
//!
//! - LL: 4 bytes of data and a 4-byte flag in each store of 8 bytes, two of them side by side;
//! - LL128: 120 bytes of data and an 8-byte flag in each line of 128 bytes, which eight neighbouring threads store in one
//!   instruction. Only where the transport delivers such a line whole.
//!
//! (The formats are NCCL's, `src/device/prims_ll.h` and `prims_ll128.h`.) The flag is the number of the message, so nothing is
//! reset between messages. Of LL it is the lower half of the number: so that a line which many short messages have left alone
//! is never taken for that of another message with the same lower half, every slot is written to its end at least once in
//! 2^31 messages, the first time at once.
//!
//! The producer's fingerprint comes first, in lines of the same format, and is compared before any data is used; here too the
//! step fires when that is there. The data is then waited for inside the step, by each thread for its own, while the abort word
//! is watched.
//!
//! All accesses to slots are relaxed at scope `.sys`: nothing but the slot itself is ordered by them. So a plan whose messages
//! announce anything else, such as a window, must not use these formats.

use core::mem::{MaybeUninit, size_of, transmute_copy};

use crate::element::Element;
use crate::interpreter::StepOperands;
use crate::layout::{Call, FINGERPRINT_WORDS, Fingerprint, slot_format};
use crate::reduce_copy::{Operands, accumulate, finish, finish_of, is_plain_copy, scale_of};
use crate::reduction::ReductionOf;
use crate::target::{
    PACK_BYTES, load_acquire, load_pair, sees_abort, store_pair, thread_count, thread_index, warp_any,
};

/// Threads that store one line of LL128 together.
const LINE_THREADS: usize = 8;

/// Polls of one place between looks at the abort word.
const POLLS_PER_LOOK: u32 = 256;

/// One of the two formats.
trait Format {
    /// Bytes of a slot in front of its data.
    const HEADER_BYTES: usize;
    /// Whether a warp's threads wait together.
    const TOGETHER: bool;
    /// Where the data of the 16 bytes at the place `index` of a slot is, and how many words of 8 bytes it is.
    fn data(index: usize) -> (usize, usize);
    /// The 16 bytes at a place.
    fn encode(index: usize, words: [u64; 2], number: u64) -> [u64; 2];
    /// The data in the 16 bytes at a place, if they are those of the message `number`; LL128 knows only where its flag is.
    fn decode(index: usize, stored: [u64; 2], number: u64) -> Option<[u64; 2]>;
}

struct Ll;

impl Format for Ll {
    const HEADER_BYTES: usize = 16 * FINGERPRINT_WORDS;
    const TOGETHER: bool = false;

    #[inline(always)]
    fn data(index: usize) -> (usize, usize) {
        (8 * index, 1)
    }

    #[inline(always)]
    fn encode(_index: usize, words: [u64; 2], number: u64) -> [u64; 2] {
        [words[0] & 0xffff_ffff | number << 32, words[0] >> 32 | number << 32]
    }

    #[inline(always)]
    fn decode(_index: usize, stored: [u64; 2], number: u64) -> Option<[u64; 2]> {
        let flag = number as u32;
        let is_there = (stored[0] >> 32) as u32 == flag && (stored[1] >> 32) as u32 == flag;
        is_there.then_some([stored[0] & 0xffff_ffff | stored[1] << 32, 0])
    }
}

struct Ll128;

impl Format for Ll128 {
    const HEADER_BYTES: usize = 16 * LINE_THREADS;
    const TOGETHER: bool = true;

    #[inline(always)]
    fn data(index: usize) -> (usize, usize) {
        let (line, part) = (index / LINE_THREADS, index % LINE_THREADS);
        (8 * (line * (2 * LINE_THREADS - 1) + 2 * part), if part == LINE_THREADS - 1 { 1 } else { 2 })
    }

    #[inline(always)]
    fn encode(index: usize, words: [u64; 2], number: u64) -> [u64; 2] {
        if index % LINE_THREADS == LINE_THREADS - 1 { [words[0], number] } else { words }
    }

    #[inline(always)]
    fn decode(index: usize, stored: [u64; 2], number: u64) -> Option<[u64; 2]> {
        let has_flag = index % LINE_THREADS == LINE_THREADS - 1;
        if has_flag && stored[1] != number { None } else { Some(stored) }
    }
}

/// Places of 16 bytes that hold so many bytes of data.
#[inline(always)]
fn places<F: Format>(bytes: usize) -> usize {
    if F::TOGETHER { bytes.div_ceil(8 * (2 * LINE_THREADS - 1)) * LINE_THREADS } else { bytes.div_ceil(8) }
}

/// Bytes of a slot in front of its data.
#[inline(always)]
pub(crate) fn header_bytes(format: u32) -> usize {
    if format == slot_format::LL { Ll::HEADER_BYTES } else { Ll128::HEADER_BYTES }
}

/// What the consumer finds at the front of a slot.
pub(crate) enum Header {
    /// This call's message `number`.
    Ready,
    /// Not yet that message.
    Waiting,
    /// A message of another call.
    Mismatch,
}

/// Looks for the fingerprint of the message `number`, once, on one thread.
///
/// # Safety
/// `slot` is valid for reading its header.
#[inline(always)]
pub(crate) unsafe fn header(format: u32, slot: *const u8, number: u64, expected: &Fingerprint) -> Header {
    // SAFETY: passed on from the caller.
    unsafe {
        if format == slot_format::LL {
            header_of::<Ll>(slot, number, expected)
        } else {
            header_of::<Ll128>(slot, number, expected)
        }
    }
}

/// # Safety
/// As [`header`].
#[inline(always)]
unsafe fn header_of<F: Format>(slot: *const u8, number: u64, expected: &Fingerprint) -> Header {
    // SAFETY: a fingerprint is so many words.
    let expected: [u64; FINGERPRINT_WORDS] = unsafe { transmute_copy(expected) };
    let mut differs = false;
    // A line of LL128 arrives whole: what is read after its flag is of the same message.
    // SAFETY: the line lies in the header.
    if F::TOGETHER && unsafe { load_acquire(slot.add(16 * LINE_THREADS - 8).cast()) } != number {
        return Header::Waiting;
    }
    let mut index = 0;
    while F::data(index).0 < 8 * FINGERPRINT_WORDS {
        // SAFETY: as above.
        let Some(words) = F::decode(index, unsafe { load_pair(slot.add(16 * index)) }, number) else {
            return Header::Waiting;
        };
        let first = F::data(index).0 / 8;
        differs |= words[0] != expected[first];
        if F::data(index).1 == 2 && first + 1 < FINGERPRINT_WORDS {
            differs |= words[1] != expected[first + 1];
        }
        index += 1;
    }
    if differs { Header::Mismatch } else { Header::Ready }
}

/// A step whose slots are of such a format. False where the abort word was raised meanwhile, on the threads that saw it: they
/// have not stored all, and nothing may be published.
///
/// # Safety
/// As [`crate::interpreter::Kernel::reduce_copy`]; the addresses of slots are those of their data, and the headers of source
/// slots have been found ready. `bytes` may be 0: then only the headers are written.
#[inline(always)]
pub(crate) unsafe fn reduce_copy<E: Element, R: ReductionOf<E>>(
    operands: &StepOperands,
    call: &Call,
    bytes: usize,
) -> bool {
    // SAFETY: passed on from the caller.
    unsafe {
        if call.slot_format == slot_format::LL {
            in_format::<E, R, Ll>(operands, call, bytes)
        } else {
            in_format::<E, R, Ll128>(operands, call, bytes)
        }
    }
}

/// # Safety
/// As [`reduce_copy`].
#[inline(always)]
unsafe fn in_format<E: Element, R: ReductionOf<E>, F: Format>(
    operands: &StepOperands,
    call: &Call,
    bytes: usize,
) -> bool {
    let (thread, threads) = (thread_index(), thread_count());
    let used = places::<F>(bytes);
    let mut count = used;
    let mut destination = 0;
    while destination < operands.destination_count() {
        // SAFETY: the operand is in range, and its end of a connection is this program's.
        if let Some(slot) = unsafe { operands.send_slot(destination, call) } {
            // SAFETY: a fingerprint is so many words.
            let words: [u64; FINGERPRINT_WORDS] = unsafe { transmute_copy(&call.fingerprint) };
            if thread < F::HEADER_BYTES / 16 {
                let first = F::data(thread).0 / 8;
                let word = |index: usize| {
                    let mut word = 0;
                    unrolled!(0 1 2 3 4, WORD < FINGERPRINT_WORDS => { if index == WORD { word = words[WORD] } });
                    word
                };
                let pair = F::encode(thread, [word(first), word(first + 1)], slot.number);
                // SAFETY: the slot's header is in front of its data.
                unsafe { store_pair(operands.destination(destination).sub(F::HEADER_BYTES).add(16 * thread), pair) };
            }
            if slot.is_rewritten && slot.places > count {
                count = slot.places;
            }
        }
        destination += 1;
    }
    let mut is_good = true;
    // All threads of a warp go round equally often.
    let mut first = thread - thread % 32;
    while first < count {
        let index = first + thread % 32;
        // SAFETY: passed on from the caller.
        is_good &= unsafe { place::<E, R, F>(operands, call, bytes, index, index < used) };
        first += threads;
    }
    is_good
}

/// The 16 bytes at one place of every slot, and the data that belongs there of all other operands.
///
/// # Safety
/// As [`reduce_copy`].
#[inline(always)]
unsafe fn place<E: Element, R: ReductionOf<E>, F: Format>(
    operands: &StepOperands,
    call: &Call,
    bytes: usize,
    index: usize,
    is_used: bool,
) -> bool {
    let (offset, words) = F::data(index);
    let left = if is_used && offset < bytes { bytes - offset } else { 0 };
    let left = if left < 8 * words { left } else { 8 * words };
    let mut sum = MaybeUninit::<E::Wide>::zeroed();
    let mut copied = [0_u64; 2];
    let mut source = 0;
    while source < operands.source_count() {
        let address = operands.source(source);
        // SAFETY: passed on from the caller; the place lies inside the slot, and so many bytes inside any other operand.
        let data = unsafe {
            match operands.receive_number(source, call) {
                Some(number) => match wait::<F>(address, index, number, call, is_used) {
                    Some(data) => data,
                    None => return false,
                },
                None => load_words::<E>(address.wrapping_add(offset), left),
            }
        };
        copied = data;
        // SAFETY: the first source comes first.
        unsafe { accumulate::<E, R>(&mut sum, source, pack_of::<E::Pack>(data), scale_of::<E, R>(operands, source)) };
        source += 1;
    }
    if !is_plain_copy::<E, R>(operands) {
        // SAFETY: there is a first source, and it initialised the sum; a pack is at least two words.
        copied = unsafe { transmute_copy(&finish::<E, R>(sum.assume_init_mut(), finish_of::<E, R>(operands))) };
    }
    let mut destination = 0;
    while destination < operands.destination_count() {
        let address = operands.destination(destination);
        // SAFETY: as above.
        unsafe {
            match operands.send_slot(destination, call) {
                Some(slot) => {
                    if is_used || (slot.is_rewritten && index < slot.places) {
                        store_pair(address.add(16 * index), F::encode(index, copied, slot.number));
                    }
                }
                None => store_words::<E>(address.wrapping_add(offset), copied, left),
            }
        }
        destination += 1;
    }
    true
}

/// Waits for the data at one place of a slot; none when the abort word is raised first.
///
/// # Safety
/// The place lies inside the slot, if it is used; where threads wait together, the whole warp calls.
#[inline(always)]
unsafe fn wait<F: Format>(
    address: *const u8,
    index: usize,
    number: u64,
    call: &Call,
    is_used: bool,
) -> Option<[u64; 2]> {
    let mut polls = 0;
    loop {
        let data = if is_used {
            // SAFETY: passed on from the caller.
            F::decode(index, unsafe { load_pair(address.add(16 * index)) }, number)
        } else {
            Some([0; 2])
        };
        let is_waiting = if F::TOGETHER { warp_any(data.is_none()) } else { data.is_none() };
        if !is_waiting {
            return data;
        }
        polls += 1;
        if polls % POLLS_PER_LOOK == 0 {
            // SAFETY: the abort word outlives the call.
            let sees = unsafe { sees_abort(call.abort) };
            if if F::TOGETHER { warp_any(sees) } else { sees } {
                return None;
            }
        }
    }
}

/// A pack that begins with two words and goes on with zeros.
#[inline(always)]
fn pack_of<P>(words: [u64; 2]) -> P {
    const { assert!(size_of::<P>() == PACK_BYTES) };
    let mut pack = [0_u64; PACK_BYTES / 8];
    pack[0] = words[0];
    pack[1] = words[1];
    // SAFETY: a `P` is so many bytes of integers.
    unsafe { transmute_copy(&pack) }
}

/// An element inside a word.
union Word<B: Copy> {
    word: u64,
    bits: B,
}

/// The first `left` (at most 16) bytes at `address`, and zeros.
///
/// # Safety
/// So many bytes are valid for reading, a multiple of the element's size, as the address is.
#[inline(always)]
unsafe fn load_words<E: Element>(address: *const u8, left: usize) -> [u64; 2] {
    let mut words = [0_u64; 2];
    let is_aligned = address.addr().is_multiple_of(8);
    unrolled!(0 1, WORD < 2 => {
        // SAFETY: what is read lies inside the operand, and is aligned.
        unsafe {
            if is_aligned && left >= 8 * (WORD + 1) {
                words[WORD] = address.add(8 * WORD).cast::<u64>().read();
            } else {
                unrolled!(0 1 2 3 4 5 6 7, ELEMENT < (8 / E::BYTES) => {
                    let at = 8 * WORD + ELEMENT * E::BYTES;
                    if at < left {
                        let mut word = Word::<E::Bits> { word: 0 };
                        word.bits = address.add(at).cast::<E::Bits>().read();
                        words[WORD] |= word.word << (8 * E::BYTES * ELEMENT);
                    }
                });
            }
        }
    });
    words
}

/// Stores the first `left` (at most 16) bytes of two words at `address`.
///
/// # Safety
/// As [`load_words`], for writing.
#[inline(always)]
unsafe fn store_words<E: Element>(address: *mut u8, words: [u64; 2], left: usize) {
    let is_aligned = address.addr().is_multiple_of(8);
    unrolled!(0 1, WORD < 2 => {
        // SAFETY: what is written lies inside the operand, and is aligned.
        unsafe {
            if is_aligned && left >= 8 * (WORD + 1) {
                address.add(8 * WORD).cast::<u64>().write(words[WORD]);
            } else {
                unrolled!(0 1 2 3 4 5 6 7, ELEMENT < (8 / E::BYTES) => {
                    let at = 8 * WORD + ELEMENT * E::BYTES;
                    if at < left {
                        let word = Word::<E::Bits> { word: words[WORD] >> (8 * E::BYTES * ELEMENT) };
                        address.add(at).cast::<E::Bits>().write(word.bits);
                    }
                });
            }
        }
    });
}
