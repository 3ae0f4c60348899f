//! Floating-point formats: exact decoding, and rounding once in any mode.
//!
//! The way to a result that is rounded once: compute in f64 *rounded to odd* ([`odd_sum`] and its kin: where the f64 result
//! is inexact, its last bit is one), then round to the narrower format. A format that has at least two bits less than f64
//! then gets what it would have got from the exact value, in every mode (Boldo and Melquiond, "When double rounding is
//! odd", 2005).

/// How a result that does not fit is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// To the nearest, ties to even (`.rn`).
    Nearest,
    /// To the nearest, ties away from zero (`.rna`).
    NearestAway,
    /// Toward zero (`.rz`).
    Zero,
    /// Toward minus infinity (`.rm`).
    Down,
    /// Toward plus infinity (`.rp`).
    Up,
}

/// A binary format of at most 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) exponent_bits: u32,
    pub(crate) mantissa_bits: u32,
    /// The largest finite number, without its sign.
    pub(crate) finite_max: u32,
    /// The NaN that instructions make.
    pub(crate) nan: u32,
    pub(crate) has_infinity: bool,
}

pub(crate) const F32: Format =
    Format { exponent_bits: 8, mantissa_bits: 23, finite_max: 0x7f7f_ffff, nan: 0x7fff_ffff, has_infinity: true };
pub(crate) const F16: Format =
    Format { exponent_bits: 5, mantissa_bits: 10, finite_max: 0x7bff, nan: 0x7fff, has_infinity: true };
pub(crate) const BF16: Format =
    Format { exponent_bits: 8, mantissa_bits: 7, finite_max: 0x7f7f, nan: 0x7fff, has_infinity: true };
pub(crate) const TF32: Format =
    Format { exponent_bits: 8, mantissa_bits: 10, finite_max: 0x3_fbff, nan: 0x3_ffff, has_infinity: true };
pub(crate) const E4M3: Format =
    Format { exponent_bits: 4, mantissa_bits: 3, finite_max: 0x7e, nan: 0x7f, has_infinity: false };
pub(crate) const E5M2: Format =
    Format { exponent_bits: 5, mantissa_bits: 2, finite_max: 0x7b, nan: 0x7f, has_infinity: true };

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// `value` rounded to this format; `saturate` turns overflow, infinity included, into the largest finite number.
    pub(crate) fn encode(self, value: f64, rounding: Rounding, saturate: bool) -> u32 {
        if value.is_nan() {
            return self.nan;
        }
        let negative = value.is_sign_negative();
        let sign = u32::from(negative) << (self.exponent_bits + self.mantissa_bits);
        let infinity = sign
            | if self.has_infinity && !saturate {
                ((1 << self.exponent_bits) - 1) << self.mantissa_bits
            } else if saturate {
                self.finite_max
            } else {
                self.nan
            };
        if value.is_infinite() {
            return infinity;
        }
        let bits = value.to_bits() & (u64::MAX >> 1);
        let (field, fraction) = ((bits >> 52) as i32, bits & ((1 << 52) - 1));
        // value = significand × 2^(exponent − 52)
        let (significand, exponent) = if field == 0 { (fraction, -1022) } else { (fraction | 1 << 52, field - 1023) };
        if significand == 0 {
            return sign;
        }
        let exponent_min = 1 - self.bias();
        // A significand without its leading bit belongs to an f64 subnormal, far below every format here.
        let target = exponent.max(exponent_min);
        let shift = (target - exponent + 52 - self.mantissa_bits as i32) as u32;
        let (kept, rest, half) = if shift > 63 {
            (0, 1, 2)
        } else {
            (significand >> shift, significand & ((1u64 << shift) - 1), 1u64 << (shift - 1))
        };
        let up = match rounding {
            Rounding::Nearest => rest > half || (rest == half && kept & 1 == 1),
            Rounding::NearestAway => rest >= half && rest != 0,
            Rounding::Zero => false,
            Rounding::Down => negative && rest != 0,
            Rounding::Up => !negative && rest != 0,
        };
        let kept = kept + u64::from(up);
        // The leading bit of `kept`, where there is one, adds the one that is missing in the exponent's field.
        let magnitude = (((target - exponent_min) as u64) << self.mantissa_bits) + kept;
        if magnitude <= u64::from(self.finite_max) {
            return sign | magnitude as u32;
        }
        let away = match rounding {
            Rounding::Nearest | Rounding::NearestAway => true,
            Rounding::Zero => false,
            Rounding::Down => negative,
            Rounding::Up => !negative,
        };
        if away { infinity } else { sign | self.finite_max }
    }

    /// The number that `bits` stand for, exactly.
    pub(crate) fn decode(self, bits: u32) -> f64 {
        let width = self.exponent_bits + self.mantissa_bits;
        let magnitude = bits & ((1 << width) - 1);
        let sign = if bits >> width & 1 != 0 { -1.0 } else { 1.0 };
        let infinity = if self.has_infinity { ((1 << self.exponent_bits) - 1) << self.mantissa_bits } else { u32::MAX };
        if magnitude == infinity {
            return sign * f64::INFINITY;
        }
        if magnitude > self.finite_max {
            return f64::NAN;
        }
        let (field, fraction) = (magnitude >> self.mantissa_bits, magnitude & ((1 << self.mantissa_bits) - 1));
        let significand = if field == 0 { fraction } else { fraction | 1 << self.mantissa_bits };
        let exponent = field.max(1) as i32 - self.bias() - self.mantissa_bits as i32;
        sign * f64::from(significand) * power_of_two(exponent)
    }
}

/// 2^exponent, for exponents of normal f64 numbers.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// `value`, or its neighbour with a last bit of one in the direction of the error that `value` lacks.
#[inline(always)]
fn odd(value: f64, error: f64) -> f64 {
    if error == 0.0 || !value.is_finite() || error.is_nan() || value.to_bits() & 1 == 1 {
        value
    } else if (error > 0.0) == (value > 0.0) {
        f64::from_bits(value.to_bits() | 1)
    } else {
        f64::from_bits(value.to_bits() - 1)
    }
}

/// a + b, rounded to odd.
#[inline(always)]
pub(crate) fn odd_sum(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let b_part = sum - a;
    let error = (a - (sum - b_part)) + (b - b_part);
    odd(sum, error)
}

/// a / b, rounded to odd, for numbers that came from at most 32 bits.
#[inline(always)]
pub(crate) fn odd_quotient(a: f64, b: f64) -> f64 {
    let quotient = a / b;
    if !quotient.is_finite() || b.is_infinite() {
        return quotient;
    }
    let rest = (-quotient).mul_add(b, a);
    odd(quotient, if b < 0.0 { -rest } else { rest })
}

/// The square root, rounded to odd.
#[inline(always)]
pub(crate) fn odd_root(a: f64) -> f64 {
    let root = a.sqrt();
    if root.is_nan() || root.is_infinite() { root } else { odd(root, (-root).mul_add(root, a)) }
}

/// f16 to f32, exactly.
#[inline(always)]
pub(crate) fn widen_f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    let sign = u32::from(bits & 0x8000) << 16;
    let value = if magnitude >= 0x7c00 {
        0x7f80_0000 | (magnitude & 0x3ff) << 13
    } else if magnitude >= 0x400 {
        (magnitude << 13) + ((127 - 15) << 23)
    } else {
        // A subnormal: its integer times 2^−24.
        ((magnitude as f32) * f32::from_bits((127 - 24) << 23)).to_bits()
    };
    f32::from_bits(value | sign)
}

/// f32 to f16, to nearest even.
#[inline(always)]
pub(crate) fn narrow_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let rounded = if magnitude > 0x7f80_0000 {
        return 0x7fff;
    } else if magnitude >= 0x4780_0000 {
        0x7c00
    } else if magnitude >= 0x3880_0000 {
        // A normal number: rebias, and round by adding half a unit less one, plus the bit that decides ties.
        ((magnitude - ((127 - 15) << 23)) + 0xfff + (magnitude >> 13 & 1)) >> 13
    } else {
        // Adding a number whose last place is f16's least subnormal rounds to a multiple of that.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
    };
    sign | rounded as u16
}

/// bf16 to f32, exactly.
#[inline(always)]
pub(crate) fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// f32 to bf16, to nearest even.
#[inline(always)]
pub(crate) fn narrow_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() { 0x7fff } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}

/// Zero of the same sign instead of a subnormal.
#[inline(always)]
pub(crate) fn flush(value: f32) -> f32 {
    if value.is_subnormal() { f32::from_bits(value.to_bits() & 1 << 31) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn every_f16_and_bf16_widens_as_the_half_crate_says() {
        for bits in 0..=u16::MAX {
            let (narrow, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            if narrow.is_nan() {
                assert!(widen_f16(bits).is_nan() && F16.decode(bits.into()).is_nan());
            } else {
                assert_eq!(widen_f16(bits).to_bits(), narrow.to_f32().to_bits(), "{bits:#x}");
                assert_eq!(F16.decode(bits.into()).to_bits(), narrow.to_f64().to_bits(), "{bits:#x}");
                assert_eq!(narrow_f16(narrow.to_f32()), bits);
                assert_eq!(F16.encode(narrow.to_f64(), Rounding::Zero, false), bits.into());
            }
            if brain.is_nan() {
                assert!(widen_bf16(bits).is_nan() && BF16.decode(bits.into()).is_nan());
            } else {
                assert_eq!(widen_bf16(bits).to_bits(), brain.to_f32().to_bits(), "{bits:#x}");
                assert_eq!(BF16.decode(bits.into()), brain.to_f64(), "{bits:#x}");
                assert_eq!(BF16.encode(brain.to_f64(), Rounding::Up, false), bits.into());
            }
        }
    }

    #[test]
    fn narrowing_rounds_as_the_half_crate_does_around_every_representable_number() {
        for bits in 0..=u16::MAX {
            let (narrow, brain) = (f16::from_bits(bits).to_f32(), bf16::from_bits(bits).to_f32());
            for base in [narrow, brain] {
                for step in [0u32, 1, 0x7ff, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001] {
                    let value = f32::from_bits(base.to_bits().wrapping_add(step));
                    if value.is_nan() {
                        assert_eq!((narrow_f16(value), narrow_bf16(value)), (0x7fff, 0x7fff));
                        continue;
                    }
                    assert_eq!(narrow_f16(value), f16::from_f32(value).to_bits(), "{value:e}");
                    assert_eq!(narrow_bf16(value), bf16::from_f32(value).to_bits(), "{value:e}");
                    let wide = f64::from(value);
                    assert_eq!(F16.encode(wide, Rounding::Nearest, false), narrow_f16(value).into(), "{value:e}");
                    assert_eq!(BF16.encode(wide, Rounding::Nearest, false), narrow_bf16(value).into(), "{value:e}");
                }
            }
        }
    }

    /// The slow and obvious rounding: look through all numbers of the format.
    fn look_up(format: Format, value: f64, rounding: Rounding) -> f64 {
        let width = format.exponent_bits + format.mantissa_bits + 1;
        let all = (0..1u32 << width).map(|bits| format.decode(bits)).filter(|number| number.is_finite());
        let below = all.clone().filter(|&number| number <= value).fold(f64::NEG_INFINITY, f64::max);
        let above = all.filter(|&number| number >= value).fold(f64::INFINITY, f64::min);
        match rounding {
            Rounding::Down => below,
            Rounding::Up => above,
            Rounding::Zero => {
                if value > 0.0 {
                    below
                } else {
                    above
                }
            }
            Rounding::Nearest | Rounding::NearestAway => {
                let (down, up) = (value - below, above - value);
                if down != up {
                    if down < up { below } else { above }
                } else if rounding == Rounding::NearestAway {
                    if value > 0.0 { above } else { below }
                } else if format.encode(below, Rounding::Zero, true) & 1 == 0 {
                    below
                } else {
                    above
                }
            }
        }
    }

    #[test]
    fn the_eight_bit_formats_round_as_a_search_through_all_their_numbers_does() {
        for format in [E4M3, E5M2] {
            let largest = format.decode(format.finite_max);
            for index in -3000i32..=3000 {
                let value = f64::from(index).powi(3) / 27e9 * largest * 0.99;
                for rounding in [Rounding::Nearest, Rounding::NearestAway, Rounding::Zero, Rounding::Down, Rounding::Up]
                {
                    let encoded = format.encode(value, rounding, true);
                    assert_eq!(
                        format.decode(encoded),
                        look_up(format, value, rounding),
                        "{value} {rounding:?} {format:?}"
                    );
                }
            }
            assert_eq!(format.encode(1e9, Rounding::Nearest, true), format.finite_max);
            assert_eq!(format.encode(f64::NEG_INFINITY, Rounding::Nearest, true), format.finite_max | 0x80);
            assert_eq!(format.encode(f64::NAN, Rounding::Nearest, true), 0x7f);
        }
        assert_eq!((E4M3.decode(0x7e), E5M2.decode(0x7b)), (448.0, 57344.0));
    }

    #[test]
    fn f32_results_by_way_of_odd_f64_are_those_of_the_processor() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Exponents close to each other, so that digits meet.
            let bits = (state >> 32) as u32;
            f32::from_bits(bits & 0x807f_ffff | (100 + (bits >> 23 & 0x3f)) << 23)
        };
        for _ in 0..200_000 {
            let (a, b, c) = (next(), next(), next());
            let nearest = |value| f32::from_bits(F32.encode(value, Rounding::Nearest, false));
            let wide = |value: f32| f64::from(value);
            assert_eq!(nearest(odd_sum(wide(a), wide(b))), a + b);
            assert_eq!(nearest(odd_quotient(wide(a), wide(b))), a / b);
            assert_eq!(nearest(odd_root(wide(a.abs()))), a.abs().sqrt());
            assert_eq!(nearest(odd_sum(wide(a) * wide(b), wide(c))), a.mul_add(b, c));
            let down = f32::from_bits(F32.encode(odd_sum(wide(a), wide(b)), Rounding::Down, false));
            let up = f32::from_bits(F32.encode(odd_sum(wide(a), wide(b)), Rounding::Up, false));
            assert!(wide(down) <= wide(a) + wide(b) && wide(up) >= wide(a) + wide(b));
            assert!(down == up || down.next_up() == up, "{a:e} + {b:e}: {down:e} {up:e}");
        }
    }
}
