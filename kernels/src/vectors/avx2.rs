//! Eight numbers in a register of 256 bits: AVX2, and F16C for f16.

use core::arch::x86_64::*;

use super::{Vector, plain_nan};
use crate::element::Number;

/// Eight f32s.
#[derive(Clone, Copy)]
pub(crate) struct F32x8(__m256);

/// The numbers' bits as integers, and back.
macro_rules! on_bits {
    ($function:ident($($operand:expr),*)) => {
        // SAFETY: the vector's type promises the instruction.
        F32x8(unsafe { _mm256_castsi256_ps($function($(_mm256_castps_si256($operand.0)),*)) })
    };
}

/// The lower half of each word of `even` and the upper half of each of `odd`.
///
/// # Safety
/// The processor has the instruction.
#[inline(always)]
unsafe fn from_odd(even: __m256i, odd: __m256i) -> __m256i {
    // SAFETY: passed on from the caller.
    unsafe { _mm256_blend_epi16::<0b1010_1010>(even, odd) }
}

impl Number for F32x8 {
    type Factor = f32;
    const ONE: f32 = 1.0;
    const SCALES_AVERAGES: bool = true;

    #[inline(always)]
    fn factor(bits: u64) -> f32 {
        f32::factor(bits)
    }

    #[inline(always)]
    fn add(self, other: F32x8) -> F32x8 {
        // SAFETY: the type promises the instruction.
        F32x8(unsafe { _mm256_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn multiply(self, other: F32x8) -> F32x8 {
        // SAFETY: the type promises the instruction.
        F32x8(unsafe { _mm256_mul_ps(self.0, other.0) })
    }

    // Where the operands are equal or one is a NaN, the instruction's result is its second operand. So of the two results there
    // the one is the left operand and the other the right one: of two zeros, −0 has more bits; and a NaN keeps its exponent
    // and its mantissa if bits are added, but not if they are taken away.
    #[inline(always)]
    fn minimum(self, other: F32x8) -> F32x8 {
        // SAFETY: the type promises the instructions.
        F32x8(unsafe { _mm256_or_ps(_mm256_min_ps(self.0, other.0), _mm256_min_ps(other.0, self.0)) })
    }

    #[inline(always)]
    fn maximum(self, other: F32x8) -> F32x8 {
        // SAFETY: the type promises the instructions.
        F32x8(unsafe {
            let maximum = _mm256_and_ps(_mm256_max_ps(self.0, other.0), _mm256_max_ps(other.0, self.0));
            let has_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, other.0);
            _mm256_or_ps(maximum, _mm256_and_ps(has_nan, _mm256_set1_ps(f32::NAN)))
        })
    }

    #[inline(always)]
    fn scaled(self, factor: f32) -> F32x8 {
        // SAFETY: the type promises the instruction.
        self.multiply(F32x8(unsafe { _mm256_set1_ps(plain_nan(factor)) }))
    }
}

impl Vector for F32x8 {
    type Halves = __m128i;
    type Quarters = u64;
    type Mask = __m256;

    #[inline(always)]
    fn splat(bits: u32) -> F32x8 {
        // SAFETY: the type promises the instruction.
        F32x8(unsafe { _mm256_castsi256_ps(_mm256_set1_epi32(bits as i32)) })
    }

    #[inline(always)]
    fn and(self, other: F32x8) -> F32x8 {
        on_bits!(_mm256_and_si256(self, other))
    }

    #[inline(always)]
    fn or(self, other: F32x8) -> F32x8 {
        on_bits!(_mm256_or_si256(self, other))
    }

    #[inline(always)]
    fn add_bits(self, other: F32x8) -> F32x8 {
        on_bits!(_mm256_add_epi32(self, other))
    }

    #[inline(always)]
    fn subtract_bits(self, other: F32x8) -> F32x8 {
        on_bits!(_mm256_sub_epi32(self, other))
    }

    #[inline(always)]
    fn lesser_bits(self, other: F32x8) -> F32x8 {
        on_bits!(_mm256_min_epu32(self, other))
    }

    #[inline(always)]
    fn shift_left(self, places: i32) -> F32x8 {
        // SAFETY: the type promises the instructions.
        F32x8(unsafe { _mm256_castsi256_ps(_mm256_sll_epi32(_mm256_castps_si256(self.0), _mm_cvtsi32_si128(places))) })
    }

    #[inline(always)]
    fn shift_right(self, places: i32) -> F32x8 {
        // SAFETY: the type promises the instructions.
        F32x8(unsafe { _mm256_castsi256_ps(_mm256_srl_epi32(_mm256_castps_si256(self.0), _mm_cvtsi32_si128(places))) })
    }

    #[inline(always)]
    fn add_halves_saturating(self, other: F32x8) -> F32x8 {
        on_bits!(_mm256_adds_epu16(self, other))
    }

    #[inline(always)]
    fn upper_halves(even: F32x8, odd: F32x8) -> F32x8 {
        on_bits!(from_odd(even.shift_right(16), odd))
    }

    #[inline(always)]
    fn lower_halves(even: F32x8, odd: F32x8) -> F32x8 {
        on_bits!(from_odd(even, odd.shift_left(16)))
    }

    #[inline(always)]
    fn is_nan(self) -> __m256 {
        // SAFETY: the type promises the instruction.
        unsafe { _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0) }
    }

    #[inline(always)]
    fn is_below(self, other: F32x8) -> __m256 {
        on_bits!(_mm256_cmpgt_epi32(other, self)).0
    }

    #[inline(always)]
    fn select(mask: __m256, chosen: F32x8, other: F32x8) -> F32x8 {
        // SAFETY: the type promises the instruction.
        F32x8(unsafe { _mm256_blendv_ps(other.0, chosen.0, mask) })
    }

    // The second operand is the result where one is a NaN.
    #[inline(always)]
    fn bounded(self, largest: f32) -> F32x8 {
        // SAFETY: the type promises the instructions.
        F32x8(unsafe { _mm256_max_ps(_mm256_set1_ps(-largest), _mm256_min_ps(_mm256_set1_ps(largest), self.0)) })
    }

    #[inline(always)]
    fn from_f16(halves: __m128i) -> F32x8 {
        // SAFETY: the type promises the instruction.
        F32x8(unsafe { _mm256_cvtph_ps(halves) })
    }

    #[inline(always)]
    fn to_f16(self) -> __m128i {
        // SAFETY: the type promises the instruction.
        unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0) }
    }

    #[inline(always)]
    fn spread(quarters: u64, places: i32, mask: u16) -> __m128i {
        // SAFETY: the type promises the instructions.
        unsafe {
            let halves = _mm_cvtepi8_epi16(_mm_cvtsi64_si128(quarters as i64));
            _mm_and_si128(_mm_sll_epi16(halves, _mm_cvtsi32_si128(places)), _mm_set1_epi16(mask as i16))
        }
    }

    #[inline(always)]
    fn low_bytes(self) -> u64 {
        // SAFETY: the type promises the instructions.
        unsafe {
            let words = _mm256_castps_si256(self.0);
            let halves = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_cvtsi128_si64(_mm_packus_epi16(halves, halves)) as u64
        }
    }
}
