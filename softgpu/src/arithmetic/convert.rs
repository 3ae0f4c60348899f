//! `cvt`: from every type to every other.
//!
//! f64 and i128 hold every other format's numbers, so a conversion is: read the source exactly, round once, write the
//! destination. The pairs that kernels use most have a function of their own; the others share [`Conversion`].

use super::float::{self, BF16, E4M3, E5M2, F16, F32, Format, Rounding, TF32};
use super::{Flags, Operation, Unary};
use crate::types::{Type, mask_of, sign_extend};

/// A conversion of any two types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Conversion {
    to: Type,
    from: Type,
    rounding: Rounding,
    /// Round to an integer in the format itself (`.rni` and its kin).
    integral: bool,
    flush: bool,
    saturate: bool,
    finite: bool,
    relu: bool,
}

pub(super) fn conversion(to: Type, from: Type, operands: usize, flags: &mut Flags) -> Option<Operation> {
    let integral = flags.take_one(&["rni", "rzi", "rmi", "rpi"]);
    let rounding = match integral {
        Some("rni") => Some(Rounding::Nearest),
        Some("rzi") => Some(Rounding::Zero),
        Some("rmi") => Some(Rounding::Down),
        Some(_) => Some(Rounding::Up),
        None => flags.take_rounding(),
    };
    let conversion = Conversion {
        to,
        from,
        rounding: rounding.unwrap_or(Rounding::Nearest),
        integral: integral.is_some(),
        flush: flags.take("ftz"),
        saturate: flags.take("sat"),
        finite: flags.take("satfinite"),
        relu: flags.take("relu"),
    };
    let plain =
        !conversion.flush && !conversion.saturate && !conversion.finite && !conversion.relu && integral.is_none();
    let is_float = |kind: Type| kind == Type::F64 || format_of(kind).is_some();
    match (to, from, operands) {
        (Type::F32, Type::F16, 1) if plain => Some(Operation::Unary(unary!(u16, |a| float::widen_f16(a)))),
        (Type::F32, Type::Bf16, 1) if plain => Some(Operation::Unary(unary!(u16, |a| float::widen_bf16(a)))),
        (Type::F16, Type::F32, 1) if plain && rounding == Some(Rounding::Nearest) => {
            Some(Operation::Unary(unary!(f32, |a| float::narrow_f16(a))))
        }
        (Type::Bf16, Type::F32, 1) if plain && rounding == Some(Rounding::Nearest) => {
            Some(Operation::Unary(unary!(f32, |a| float::narrow_bf16(a))))
        }
        // The first source goes to the upper half.
        (Type::F16x2 | Type::Bf16x2 | Type::E4m3x2 | Type::E5m2x2, Type::F32, 2) if integral.is_none() => {
            Some(Operation::ConvertTwo(conversion))
        }
        (Type::E4m3x2 | Type::E5m2x2, Type::F16x2 | Type::Bf16x2, 1)
        | (Type::F16x2 | Type::Bf16x2, Type::E4m3x2 | Type::E5m2x2, 1) => Some(Operation::Convert(conversion)),
        (_, _, 1) if to.is_integer() && from.is_integer() => match integers(to, from) {
            Some(lanes) if !conversion.saturate && integral.is_none() => Some(Operation::Unary(lanes)),
            _ => Some(Operation::Convert(conversion)),
        },
        (_, _, 1) if to.is_integer() && is_float(from) && integral.is_some() => Some(Operation::Convert(conversion)),
        (_, _, 1) if is_float(to) && from.is_integer() && rounding.is_some() => Some(Operation::Convert(conversion)),
        (_, _, 1) if is_float(to) && is_float(from) => Some(Operation::Convert(conversion)),
        _ => None,
    }
}

/// The formats of a single number of up to 32 bits.
fn format_of(kind: Type) -> Option<Format> {
    Some(match kind {
        Type::F32 => F32,
        Type::F16 => F16,
        Type::Bf16 => BF16,
        Type::Tf32 => TF32,
        _ => return None,
    })
}

/// The format of each half of a pair, and its bits.
fn half_of(kind: Type) -> Option<(Format, u32)> {
    Some(match kind {
        Type::F16x2 => (F16, 16),
        Type::Bf16x2 => (BF16, 16),
        Type::E4m3x2 => (E4M3, 8),
        Type::E5m2x2 => (E5M2, 8),
        _ => return None,
    })
}

fn integers(to: Type, from: Type) -> Option<Unary> {
    macro_rules! to {
        ($to:ty) => {
            integers!(from, unary, |a| a as $to)
        };
    }
    #[allow(trivial_numeric_casts)]
    match to {
        Type::U8 | Type::B8 | Type::S8 => to!(u8),
        Type::U16 | Type::B16 | Type::S16 => to!(u16),
        Type::U32 | Type::B32 | Type::S32 => to!(u32),
        _ => to!(u64),
    }
}

impl Conversion {
    /// One number (or pair) to one.
    pub(crate) fn apply(&self, bits: u64) -> u64 {
        if let (Some((to, to_bits)), Some((from, from_bits))) = (half_of(self.to), half_of(self.from)) {
            let part = |index: u32| {
                let field = (bits >> (index * from_bits)) & ((1 << from_bits) - 1);
                self.encode(to, from.decode(field as u32)) << (index * to_bits)
            };
            return part(0) | part(1);
        }
        if self.from.is_integer() {
            let bytes = self.from.bytes();
            let bits = bits & mask_of(bytes);
            let value =
                if self.from.is_signed() { i128::from(sign_extend(bits, bytes) as i64) } else { i128::from(bits) };
            return if self.to.is_integer() { self.integer(value) } else { self.real_of_integer(value) };
        }
        let value = self.read(bits);
        if self.to.is_integer() {
            // As hardware has it, a NaN becomes zero, and what is out of range the nearest number that is not.
            return if value.is_nan() { 0 } else { self.clamped(self.integral(value) as i128) };
        }
        let value = if self.integral { self.integral(value) } else { value };
        match format_of(self.to) {
            Some(format) => self.encode(format, value),
            None => if self.saturate { if value >= 0.0 { value.min(1.0) } else { 0.0 } } else { value }.to_bits(),
        }
    }

    /// Two f32 to a pair: `upper` is the instruction's first source.
    pub(crate) fn apply_two(&self, upper: u64, lower: u64) -> u64 {
        let Some((format, bits)) = half_of(self.to) else { return 0 };
        let part = |source: u64| self.encode(format, self.read(source));
        part(upper) << bits | part(lower)
    }

    fn read(&self, bits: u64) -> f64 {
        match self.from {
            Type::F64 => f64::from_bits(bits),
            Type::F32 if self.flush => f64::from(float::flush(f32::from_bits(bits as u32))),
            Type::F32 | Type::Tf32 => f64::from(f32::from_bits(bits as u32)),
            Type::F16 => f64::from(float::widen_f16(bits as u16)),
            _ => f64::from(float::widen_bf16(bits as u16)),
        }
    }

    fn integral(&self, value: f64) -> f64 {
        match self.rounding {
            Rounding::Nearest | Rounding::NearestAway => value.round_ties_even(),
            Rounding::Zero => value.trunc(),
            Rounding::Down => value.floor(),
            Rounding::Up => value.ceil(),
        }
    }

    fn encode(&self, format: Format, value: f64) -> u64 {
        let value = if self.relu && value <= 0.0 { 0.0 } else { value };
        let value = if self.saturate { if value >= 0.0 { value.min(1.0) } else { 0.0 } } else { value };
        let bits = format.encode(value, self.rounding, self.finite);
        match self.to {
            // A TF32 number is an f32 whose last 13 bits are zero.
            Type::Tf32 => u64::from(bits) << 13,
            Type::F32 if self.flush => u64::from(float::flush(f32::from_bits(bits)).to_bits()),
            _ => u64::from(bits),
        }
    }

    fn integer(&self, value: i128) -> u64 {
        if self.saturate { self.clamped(value) } else { value as u64 & mask_of(self.to.bytes()) }
    }

    fn clamped(&self, value: i128) -> u64 {
        let bits = self.to.bytes() * 8;
        let (least, most) = if self.to.is_signed() {
            (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
        } else {
            (0, (1i128 << bits) - 1)
        };
        value.clamp(least, most) as u64 & mask_of(self.to.bytes())
    }

    fn real_of_integer(&self, value: i128) -> u64 {
        // To f64 first, rounded to odd where 53 bits do not hold it, so that the second rounding is the only one.
        let magnitude = value.unsigned_abs() as u64;
        let dropped = 11u32.saturating_sub(magnitude.leading_zeros());
        let rest = magnitude & ((1 << dropped) - 1);
        let kept = magnitude >> dropped << dropped;
        let exact = |kept: u64| if value < 0 { -(kept as f64) } else { kept as f64 };
        match format_of(self.to) {
            Some(format) => self.encode(format, exact(kept | u64::from(rest != 0) << dropped)),
            None => {
                let half = 1u64 << dropped >> 1;
                let up = rest != 0
                    && match self.rounding {
                        Rounding::Nearest => rest > half || (rest == half && kept >> dropped & 1 == 1),
                        Rounding::NearestAway => rest >= half,
                        Rounding::Zero => false,
                        Rounding::Down => value < 0,
                        Rounding::Up => value > 0,
                    };
                // 2^64 itself may come of it, which u64 does not hold but f64 does.
                exact(kept).to_bits() + u64::from(up)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(to: Type, from: Type, flags: &[&'static str], bits: u64) -> u64 {
        let mut flags = Flags(flags.to_vec());
        let mut result = [0; 32];
        match conversion(to, from, 1, &mut flags).expect("the conversion exists") {
            Operation::Unary(lanes) => lanes(&mut result, &[bits; 32], 1),
            Operation::Convert(conversion) => result[0] = conversion.apply(bits),
            other => panic!("{other:?}"),
        }
        assert!(flags.0.is_empty());
        result[0]
    }

    #[test]
    fn integers_are_cut_extended_or_clamped() {
        assert_eq!(convert(Type::S64, Type::S8, &[], 0x80), (-128i64) as u64);
        assert_eq!(convert(Type::U64, Type::U32, &[], 0xffff_ffff_0000_0005), 5);
        assert_eq!(convert(Type::U8, Type::S32, &["sat"], (-5i32) as u32 as u64), 0);
        assert_eq!(convert(Type::S16, Type::S64, &["sat"], 1 << 40), 0x7fff);
        assert_eq!(convert(Type::S8, Type::U32, &["sat"], 200), 127);
    }

    #[test]
    fn floats_become_integers_in_every_rounding_and_never_overflow() {
        for (flag, want) in [("rni", 2), ("rzi", 2), ("rmi", 2), ("rpi", 3)] {
            assert_eq!(convert(Type::S32, Type::F32, &[flag], 2.5f32.to_bits().into()), want, "{flag}");
        }
        assert_eq!(convert(Type::S32, Type::F32, &["rmi"], (-2.5f32).to_bits().into()) as u32 as i32, -3);
        assert_eq!(convert(Type::U32, Type::F32, &["rzi"], (-1f32).to_bits().into()), 0);
        assert_eq!(convert(Type::U64, Type::F64, &["rzi"], 1e300f64.to_bits()), u64::MAX);
        assert_eq!(convert(Type::S64, Type::F64, &["rzi"], f64::NAN.to_bits()), 0);
    }

    #[test]
    fn integers_become_floats_rounded_once_in_every_mode() {
        let mut state = 7u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            let value = state >> (state & 31) | 1;
            assert_eq!(convert(Type::F32, Type::U64, &["rn"], value) as u32, (value as f32).to_bits(), "{value}");
            assert_eq!(convert(Type::F64, Type::U64, &["rn"], value), (value as f64).to_bits(), "{value}");
            assert_eq!(convert(Type::F64, Type::S64, &["rn"], value), (value as i64 as f64).to_bits(), "{value}");
            assert_eq!(
                convert(Type::F32, Type::S64, &["rn"], value) as u32,
                (value as i64 as f32).to_bits(),
                "{value}"
            );
            let down = f64::from_bits(convert(Type::F64, Type::U64, &["rm"], value));
            let up = f64::from_bits(convert(Type::F64, Type::U64, &["rp"], value));
            assert!(down as u128 <= u128::from(value) && up as u128 >= u128::from(value));
            assert!(down == up || down.next_up() == up);
        }
        assert_eq!(f64::from_bits(convert(Type::F64, Type::U64, &["rp"], u64::MAX)), 2f64.powi(64));
    }

    #[test]
    fn every_eight_bit_float_survives_the_way_to_f16_and_back() {
        for kind in [Type::E4m3x2, Type::E5m2x2] {
            for byte in 0..=255u64 {
                let wide = convert(Type::F16x2, kind, &["rn"], byte | byte << 8);
                let (low, high) = (wide & 0xffff, wide >> 16);
                assert_eq!(low, high);
                let back = convert(kind, Type::F16x2, &["rn", "satfinite"], wide);
                let magnitude = byte & 0x7f;
                let (nan, infinite) = if kind == Type::E4m3x2 {
                    (magnitude == 0x7f, false)
                } else {
                    (magnitude > 0x7c, magnitude == 0x7c)
                };
                let want = if nan {
                    0x7f
                } else if infinite {
                    byte - 1
                } else {
                    byte
                };
                assert_eq!(back, want | want << 8, "{kind:?} {byte:#x}");
            }
        }
    }
}
