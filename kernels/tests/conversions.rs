//! Widening and narrowing of 16-bit floats, against the `half` crate, and of 8-bit ones, against their definition.

use half::{bf16, f16};
use tutti_kernels::element::{Bf16, Element, F8E4m3, F8E5m2, F16};
use tutti_kernels::target::{narrow_f16, widen_f16};

/// What one element type does, beside what the `half` crate does.
struct Conversion {
    name: &'static str,
    widen: fn(u16) -> f32,
    narrow: fn(f32) -> u16,
    reference_widen: fn(u16) -> f32,
    reference_narrow: fn(f32) -> u16,
    /// The f32 bits that an element's lowest bit stands for, where it is normal.
    step: u32,
}

fn conversions() -> [Conversion; 2] {
    [
        Conversion {
            name: "f16",
            widen: F16::widen,
            narrow: F16::narrow,
            reference_widen: |bits| f16::from_bits(bits).to_f32(),
            reference_narrow: |value| f16::from_f32(value).to_bits(),
            step: 1 << 13,
        },
        Conversion {
            name: "bf16",
            widen: Bf16::widen,
            narrow: Bf16::narrow,
            reference_widen: |bits| bf16::from_bits(bits).to_f32(),
            reference_narrow: |value| bf16::from_f32(value).to_bits(),
            step: 1 << 16,
        },
    ]
}

impl Conversion {
    fn check_narrow(&self, value: f32) {
        let (came, expected) = ((self.narrow)(value), (self.reference_narrow)(value));
        if value.is_nan() {
            assert!(
                (self.reference_widen)(came).is_nan(),
                "{}: a NaN ({:#x}) became {came:#x}",
                self.name,
                value.to_bits()
            );
            assert_eq!(came >> 15, expected >> 15, "{}: the sign of a NaN ({:#x})", self.name, value.to_bits());
        } else {
            assert_eq!(came, expected, "{}: narrow({value:e} = {:#x})", self.name, value.to_bits());
        }
    }
}

#[test]
fn every_element_widens_to_its_value() {
    for conversion in conversions() {
        for bits in 0..=u16::MAX {
            let (came, expected) = ((conversion.widen)(bits), (conversion.reference_widen)(bits));
            if expected.is_nan() {
                assert!(came.is_nan(), "{}: {bits:#x}", conversion.name);
                assert_eq!(came.is_sign_negative(), bits >> 15 == 1, "{}: {bits:#x}", conversion.name);
            } else {
                assert_eq!(came.to_bits(), expected.to_bits(), "{}: {bits:#x}", conversion.name);
            }
        }
    }
}

#[test]
fn every_element_comes_back_from_its_value() {
    for conversion in conversions() {
        for bits in 0..=u16::MAX {
            let there_and_back = (conversion.narrow)((conversion.widen)(bits));
            if !(conversion.widen)(bits).is_nan() {
                assert_eq!(there_and_back, bits, "{}", conversion.name);
            }
        }
    }
}

#[test]
fn everything_near_a_midpoint_rounds_to_nearest_even() {
    for conversion in conversions() {
        for bits in (0..=u16::MAX).filter(|bits| (conversion.reference_widen)(*bits).is_finite()) {
            let value = (conversion.reference_widen)(bits);
            // Among normal numbers the midpoint is half a step away; among subnormals that is computed.
            let next = (conversion.reference_widen)(bits.wrapping_add(1));
            let middle = if next.is_finite() {
                ((f64::from(value) + f64::from(next)) / 2.0) as f32
            } else {
                f32::from_bits(value.to_bits() + conversion.step / 2)
            };
            for near in [value, middle] {
                for distance in -3..=3_i32 {
                    conversion.check_narrow(f32::from_bits(near.to_bits().wrapping_add_signed(distance)));
                }
            }
        }
    }
}

#[test]
fn numbers_all_over_the_range_of_f32_narrow_as_they_should() {
    for conversion in conversions() {
        // A stride that is prime to 2^32 and goes through all exponents and many significands.
        let mut bits = 0_u32;
        loop {
            conversion.check_narrow(f32::from_bits(bits));
            let (next, over) = bits.overflowing_add(797);
            if over {
                break;
            }
            bits = next;
        }
        for special in
            [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, 0.0, -0.0, f32::from_bits(0x7f80_0001)]
        {
            conversion.check_narrow(special);
        }
    }
}

#[test]
fn a_widened_nan_keeps_its_payload() {
    for payload in 1..0x400_u16 {
        let wide = widen_f16(0xfc00 | payload).to_bits();
        // A processor may make a signalling NaN quiet, and changes nothing else.
        assert_eq!(wide & !0x40_0000, 0xff80_0000 | u32::from(payload & 0x1ff) << 13);
    }
    assert_eq!(narrow_f16(f32::NAN) & 0x7c00, 0x7c00);
}

/// The value of an 8-bit float with so many mantissa bits, from the definition of the format; none of a NaN. (e4m3 has no
/// infinities, and a NaN where all bits are ones.)
fn value_of_eight_bits(bits: u8, mantissa_bits: i32, bias: i32) -> Option<f64> {
    let (exponent, mantissa) = (i32::from(bits & 0x7f) >> mantissa_bits, i32::from(bits) & ((1 << mantissa_bits) - 1));
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    if mantissa_bits == 3 && bits & 0x7f == 0x7f || mantissa_bits == 2 && exponent == 31 && mantissa != 0 {
        return None;
    }
    if mantissa_bits == 2 && exponent == 31 {
        return Some(sign * f64::INFINITY);
    }
    let (significand, exponent) =
        if exponent == 0 { (mantissa, 1) } else { (mantissa + (1 << mantissa_bits), exponent) };
    Some(sign * f64::from(significand) * 2.0_f64.powi(exponent - bias - mantissa_bits))
}

#[test]
fn eight_bit_floats_widen_to_their_values_and_narrow_to_the_nearest_finite_one() {
    fn check<E: Element<Bits = u8, Number = f32>>(mantissa_bits: i32, bias: i32) {
        let values: Vec<Option<f64>> =
            (0..=u8::MAX).map(|bits| value_of_eight_bits(bits, mantissa_bits, bias)).collect();
        for (bits, value) in (0..=u8::MAX).zip(&values) {
            let wide = E::widen(bits);
            assert_eq!(wide.is_sign_negative(), bits >> 7 == 1, "{bits:#x}");
            match value {
                Some(value) => assert_eq!(f64::from(wide), *value, "{bits:#x}"),
                None => assert!(wide.is_nan(), "{bits:#x}"),
            }
        }
        // The finite magnitudes, which ascend with their bits.
        let magnitudes: Vec<f64> = values[..0x80].iter().flatten().copied().filter(|value| value.is_finite()).collect();
        let nearest = |magnitude: f64| {
            let above = magnitudes.partition_point(|value| *value < magnitude);
            match (above.checked_sub(1), magnitudes.get(above)) {
                (_, None) => magnitudes.len() - 1,
                (None, Some(_)) => 0,
                (Some(below), Some(next)) => match (magnitude - magnitudes[below]).total_cmp(&(next - magnitude)) {
                    std::cmp::Ordering::Less => below,
                    std::cmp::Ordering::Greater => above,
                    std::cmp::Ordering::Equal => below + below % 2,
                },
            }
        };
        let check_narrow = |value: f32| {
            let came = E::narrow(value);
            if value.is_nan() {
                assert_eq!(values[usize::from(came)], None, "a NaN became {came:#x}");
            } else {
                let sign = if value.is_sign_negative() { 0x80 } else { 0 };
                let expected = nearest(f64::from(value.abs())) as u8 | sign;
                assert_eq!(came, expected, "narrow({value:e} = {:#x})", value.to_bits());
            }
        };
        for pair in magnitudes.windows(2) {
            for near in [pair[0] as f32, ((pair[0] + pair[1]) / 2.0) as f32] {
                for distance in -3..=3_i32 {
                    let value = f32::from_bits(near.to_bits().saturating_add_signed(distance));
                    check_narrow(value);
                    check_narrow(-value);
                }
            }
        }
        for bits in (0..=u32::MAX).step_by(40_009) {
            check_narrow(f32::from_bits(bits));
        }
        for special in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, 0.0, -0.0, 1e-45] {
            check_narrow(special);
        }
    }
    check::<F8E4m3>(3, 7);
    check::<F8E5m2>(2, 15);
}
