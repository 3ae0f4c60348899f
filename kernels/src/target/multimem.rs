//! The instructions of a switch that reduces (NVSwitch, from sm_90 on): each names one multicast address, which is the same
//! place in the memory of every rank.
//!
//! Relaxed at scope `.sys`: the other ends are other GPUs. What was written before a counter that this team has acquired is
//! among what is reduced; what is stored here comes before a counter that this team releases afterwards. Both need
//! [`super::fence_aliases`] between, since the same memory has other addresses in its ranks.

use core::arch::asm;
use core::mem::transmute_copy;

use super::PACK_BYTES;

/// Four words of one instruction.
macro_rules! whole {
    ($instruction:literal, $address:ident, $offset:expr) => {{
        let (a, b, c, d): (u32, u32, u32, u32);
        asm!(concat!("multimem.ld_reduce.relaxed.sys.global.", $instruction, " {{{a}, {b}, {c}, {d}}}, [{address} + {offset}];"),
             a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d, address = in(reg64) $address,
             offset = const $offset, options(readonly, nostack, preserves_flags));
        [a, b, c, d]
    }};
}

/// One word of each of four instructions.
macro_rules! words {
    ($instruction:literal, $address:ident, $offset:expr) => {{
        let mut words = [0_u32; 4];
        unrolled!(0 1 2 3, WORD < 4 => {
            asm!(concat!("multimem.ld_reduce.relaxed.sys.global.", $instruction, " {word}, [{address} + {offset}];"),
                 word = out(reg32) words[WORD], address = in(reg64) $address,
                 offset = const $offset + 4 * WORD, options(readonly, nostack, preserves_flags));
        });
        words
    }};
}

/// Two words of each of two instructions.
macro_rules! pairs {
    ($instruction:literal, $address:ident, $offset:expr) => {{
        let mut pairs = [0_u64; 2];
        unrolled!(0 1, PAIR < 2 => {
            asm!(concat!("multimem.ld_reduce.relaxed.sys.global.", $instruction, " {pair}, [{address} + {offset}];"),
                 pair = out(reg64) pairs[PAIR], address = in(reg64) $address,
                 offset = const $offset + 8 * PAIR, options(readonly, nostack, preserves_flags));
        });
        transmute_copy(&pairs)
    }};
}

macro_rules! instructions {
    ($($name:ident = $number:literal: $shape:ident $text:literal,)*) => {
        $(
            #[doc = concat!("`", $text, "`")]
            pub const $name: u32 = $number;
        )*

        /// The 16 bytes of that part of a pack at `address + OFFSET`, reduced over all ranks.
        ///
        /// # Safety
        /// As [`load_reduced`].
        #[inline(always)]
        unsafe fn reduced<const INSTRUCTION: u32, const OFFSET: usize, const PART: usize>(
            address: *const u8,
        ) -> [u32; 4] {
            // SAFETY: the caller vouches for the address.
            unsafe {
                $(
                    if const { INSTRUCTION == $name } {
                        return $shape!($text, address, OFFSET + 16 * PART);
                    }
                )*
            }
            [0; 4]
        }
    };
}

/// There is no instruction.
pub const NONE: u32 = 0;

/// Only stores go through the switch.
pub const STORE: u32 = u32::MAX;

// Sums of 16-bit floats are made in f32 and rounded once.
instructions! {
    ADD_F32 = 1: whole "add.v4.f32",
    ADD_F64 = 2: pairs "add.f64",
    ADD_F16 = 3: whole "add.acc::f32.v4.f16x2",
    MIN_F16 = 4: whole "min.v4.f16x2",
    MAX_F16 = 5: whole "max.v4.f16x2",
    ADD_BF16 = 6: whole "add.acc::f32.v4.bf16x2",
    MIN_BF16 = 7: whole "min.v4.bf16x2",
    MAX_BF16 = 8: whole "max.v4.bf16x2",
    ADD_U32 = 9: words "add.u32",
    MIN_U32 = 10: words "min.u32",
    MAX_U32 = 11: words "max.u32",
    MIN_S32 = 12: words "min.s32",
    MAX_S32 = 13: words "max.s32",
    ADD_U64 = 14: pairs "add.u64",
    MIN_U64 = 15: pairs "min.u64",
    MAX_U64 = 16: pairs "max.u64",
    MIN_S64 = 17: pairs "min.s64",
    MAX_S64 = 18: pairs "max.s64",
    AND_B64 = 19: pairs "and.b64",
    OR_B64 = 20: pairs "or.b64",
    XOR_B64 = 21: pairs "xor.b64",
}

/// Loads the pack at `address + OFFSET`, reduced over all ranks, 16 bytes at a time.
///
/// # Safety
/// That address is a multicast one, valid for reading a `P` of [`PACK_BYTES`] bytes in every rank, and aligned to 16.
#[inline(always)]
pub unsafe fn load_reduced<P: Copy, const INSTRUCTION: u32, const OFFSET: usize>(address: *const u8) -> P {
    const { assert!(size_of::<P>() == PACK_BYTES) };
    let mut parts = [[0_u32; 4]; PACK_BYTES / 16];
    unrolled!(0 1, PART < (PACK_BYTES / 16) => {
        // SAFETY: the part lies inside the pack.
        parts[PART] = unsafe { reduced::<INSTRUCTION, OFFSET, PART>(address) };
    });
    // SAFETY: as many bytes, of integers.
    unsafe { transmute_copy(&parts) }
}

/// Stores a pack at `address + OFFSET` of every rank, 16 bytes at a time.
///
/// # Safety
/// That address is a multicast one, valid for writing a `P` of [`PACK_BYTES`] bytes in every rank, and aligned to 16.
#[inline(always)]
pub unsafe fn store_to_all<P: Copy, const OFFSET: usize>(address: *mut u8, pack: P) {
    const { assert!(size_of::<P>() == PACK_BYTES) };
    // SAFETY: a `P` is so many bytes of integers; the caller vouches for the address.
    unsafe {
        let parts: [[u32; 4]; PACK_BYTES / 16] = transmute_copy(&pack);
        unrolled!(0 1, PART < (PACK_BYTES / 16) => {
            let [a, b, c, d] = parts[PART];
            asm!("multimem.st.relaxed.sys.global.v4.f32 [{address} + {offset}], {{{a}, {b}, {c}, {d}}};",
                 a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d, address = in(reg64) address,
                 offset = const OFFSET + 16 * PART, options(nostack, preserves_flags));
        });
    }
}
