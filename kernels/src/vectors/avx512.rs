//! Sixteen numbers in a register of 512 bits: AVX-512 F, BW, DQ and VL.
//!
//! The extensions that calculate with 16-bit floats are not for us: AVX512_BF16 takes subnormal numbers for zeros, and what
//! AVX512_FP16 offers cannot be asked for in stable Rust.

use core::arch::x86_64::*;

use super::{Vector, plain_nan};
use crate::element::Number;

/// Sixteen f32s.
#[derive(Clone, Copy)]
pub(crate) struct F32x16(__m512);

/// The numbers' bits as integers, and back.
macro_rules! on_bits {
    ($function:ident($($operand:expr),*)) => {
        // SAFETY: the vector's type promises the instruction.
        F32x16(unsafe { _mm512_castsi512_ps($function($(_mm512_castps_si512($operand.0)),*)) })
    };
}

/// The lower half of each word of `even` and the upper half of each of `odd`.
///
/// # Safety
/// The processor has the instruction.
#[inline(always)]
unsafe fn from_odd(even: __m512i, odd: __m512i) -> __m512i {
    // SAFETY: passed on from the caller.
    unsafe { _mm512_mask_mov_epi16(even, 0xaaaa_aaaa, odd) }
}

impl Number for F32x16 {
    type Factor = f32;
    const ONE: f32 = 1.0;
    const SCALES_AVERAGES: bool = true;

    #[inline(always)]
    fn factor(bits: u64) -> f32 {
        f32::factor(bits)
    }

    #[inline(always)]
    fn add(self, other: F32x16) -> F32x16 {
        // SAFETY: the type promises the instruction.
        F32x16(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn multiply(self, other: F32x16) -> F32x16 {
        // SAFETY: the type promises the instruction.
        F32x16(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    // As in AVX2.
    #[inline(always)]
    fn minimum(self, other: F32x16) -> F32x16 {
        // SAFETY: the type promises the instructions.
        F32x16(unsafe { _mm512_or_ps(_mm512_min_ps(self.0, other.0), _mm512_min_ps(other.0, self.0)) })
    }

    #[inline(always)]
    fn maximum(self, other: F32x16) -> F32x16 {
        // SAFETY: the type promises the instructions.
        F32x16(unsafe {
            let maximum = _mm512_and_ps(_mm512_max_ps(self.0, other.0), _mm512_max_ps(other.0, self.0));
            let has_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, other.0);
            _mm512_mask_mov_ps(maximum, has_nan, _mm512_set1_ps(f32::NAN))
        })
    }

    #[inline(always)]
    fn scaled(self, factor: f32) -> F32x16 {
        // SAFETY: the type promises the instruction.
        self.multiply(F32x16(unsafe { _mm512_set1_ps(plain_nan(factor)) }))
    }
}

impl Vector for F32x16 {
    type Halves = __m256i;
    type Quarters = __m128i;
    type Mask = __mmask16;

    #[inline(always)]
    fn splat(bits: u32) -> F32x16 {
        // SAFETY: the type promises the instruction.
        F32x16(unsafe { _mm512_castsi512_ps(_mm512_set1_epi32(bits as i32)) })
    }

    #[inline(always)]
    fn and(self, other: F32x16) -> F32x16 {
        on_bits!(_mm512_and_si512(self, other))
    }

    #[inline(always)]
    fn or(self, other: F32x16) -> F32x16 {
        on_bits!(_mm512_or_si512(self, other))
    }

    #[inline(always)]
    fn add_bits(self, other: F32x16) -> F32x16 {
        on_bits!(_mm512_add_epi32(self, other))
    }

    #[inline(always)]
    fn subtract_bits(self, other: F32x16) -> F32x16 {
        on_bits!(_mm512_sub_epi32(self, other))
    }

    #[inline(always)]
    fn lesser_bits(self, other: F32x16) -> F32x16 {
        on_bits!(_mm512_min_epu32(self, other))
    }

    #[inline(always)]
    fn shift_left(self, places: i32) -> F32x16 {
        // SAFETY: the type promises the instructions.
        F32x16(unsafe { _mm512_castsi512_ps(_mm512_sll_epi32(_mm512_castps_si512(self.0), _mm_cvtsi32_si128(places))) })
    }

    #[inline(always)]
    fn shift_right(self, places: i32) -> F32x16 {
        // SAFETY: the type promises the instructions.
        F32x16(unsafe { _mm512_castsi512_ps(_mm512_srl_epi32(_mm512_castps_si512(self.0), _mm_cvtsi32_si128(places))) })
    }

    #[inline(always)]
    fn add_halves_saturating(self, other: F32x16) -> F32x16 {
        on_bits!(_mm512_adds_epu16(self, other))
    }

    #[inline(always)]
    fn upper_halves(even: F32x16, odd: F32x16) -> F32x16 {
        on_bits!(from_odd(even.shift_right(16), odd))
    }

    #[inline(always)]
    fn lower_halves(even: F32x16, odd: F32x16) -> F32x16 {
        on_bits!(from_odd(even, odd.shift_left(16)))
    }

    #[inline(always)]
    fn is_nan(self) -> __mmask16 {
        // SAFETY: the type promises the instruction.
        unsafe { _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0) }
    }

    #[inline(always)]
    fn is_below(self, other: F32x16) -> __mmask16 {
        // SAFETY: the type promises the instruction.
        unsafe { _mm512_cmplt_epi32_mask(_mm512_castps_si512(self.0), _mm512_castps_si512(other.0)) }
    }

    #[inline(always)]
    fn select(mask: __mmask16, chosen: F32x16, other: F32x16) -> F32x16 {
        // SAFETY: the type promises the instruction.
        F32x16(unsafe { _mm512_mask_mov_ps(other.0, mask, chosen.0) })
    }

    // The second operand is the result where one is a NaN.
    #[inline(always)]
    fn bounded(self, largest: f32) -> F32x16 {
        // SAFETY: the type promises the instructions.
        F32x16(unsafe { _mm512_max_ps(_mm512_set1_ps(-largest), _mm512_min_ps(_mm512_set1_ps(largest), self.0)) })
    }

    #[inline(always)]
    fn from_f16(halves: __m256i) -> F32x16 {
        // SAFETY: the type promises the instruction.
        F32x16(unsafe { _mm512_cvtph_ps(halves) })
    }

    #[inline(always)]
    fn to_f16(self) -> __m256i {
        // SAFETY: the type promises the instruction.
        unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0) }
    }

    #[inline(always)]
    fn spread(quarters: __m128i, places: i32, mask: u16) -> __m256i {
        // SAFETY: the type promises the instructions.
        unsafe {
            let halves = _mm256_sll_epi16(_mm256_cvtepi8_epi16(quarters), _mm_cvtsi32_si128(places));
            _mm256_and_si256(halves, _mm256_set1_epi16(mask as i16))
        }
    }

    #[inline(always)]
    fn low_bytes(self) -> __m128i {
        // SAFETY: the type promises the instruction.
        unsafe { _mm512_cvtepi32_epi8(_mm512_castps_si512(self.0)) }
    }
}
