//! Integers and bits.

use super::{Flags, Operation};
use crate::types::Type;

/// What is wide enough for a product.
trait Product: Sized {
    /// The upper half of the product.
    fn high(self, other: Self) -> Self;
    /// Quotient and remainder as hardware gives them: all ones and the dividend where the divisor is zero.
    fn quotient(self, other: Self) -> Self;
    fn remainder(self, other: Self) -> Self;
}

macro_rules! products {
    ($($type:ty, $wide:ty);* $(;)?) => {
        $(impl Product for $type {
            #[inline(always)]
            fn high(self, other: $type) -> $type {
                ((<$wide>::from(self) * <$wide>::from(other)) >> <$type>::BITS) as $type
            }
            #[inline(always)]
            fn quotient(self, other: $type) -> $type {
                if other == 0 { !0 } else { self.wrapping_div(other) }
            }
            #[inline(always)]
            fn remainder(self, other: $type) -> $type {
                if other == 0 { self } else { self.wrapping_rem(other) }
            }
        })*
    };
}

products! { u8, u16; u16, u32; u32, u64; u64, u128; i8, i16; i16, i32; i32, i64; i64, i128 }

pub(super) fn operation(
    base: &str,
    kind: Type,
    types: &[Type],
    operands: usize,
    flags: &mut Flags,
) -> Option<Operation> {
    use Operation::{Binary, Quaternary, Ternary, Unary};
    let bits16 = matches!(kind, Type::U16 | Type::S16 | Type::B16);
    match (base, operands) {
        ("add", 2) if flags.take("sat") => Some(Binary(match kind {
            Type::S32 => binary!(i32, |a, b| a.saturating_add(b)),
            _ => return None,
        })),
        ("sub", 2) if flags.take("sat") => Some(Binary(match kind {
            Type::S32 => binary!(i32, |a, b| a.saturating_sub(b)),
            _ => return None,
        })),
        ("add", 2) if matches!(kind, Type::U16x2 | Type::S16x2) => {
            Some(Binary(binary!(u32, |a, b| pairs(a, b, u16::wrapping_add))))
        }
        ("min", 2) if kind == Type::U16x2 => Some(Binary(binary!(u32, |a, b| pairs(a, b, u16::min)))),
        ("max", 2) if kind == Type::U16x2 => Some(Binary(binary!(u32, |a, b| pairs(a, b, u16::max)))),
        ("min", 2) if kind == Type::S16x2 => {
            let relu = flags.take("relu");
            Some(Binary(if relu {
                binary!(u32, |a, b| pairs(a, b, |a, b| (a as i16).min(b as i16).max(0) as u16))
            } else {
                binary!(u32, |a, b| pairs(a, b, |a, b| (a as i16).min(b as i16) as u16))
            }))
        }
        ("max", 2) if kind == Type::S16x2 => {
            let relu = flags.take("relu");
            Some(Binary(if relu {
                binary!(u32, |a, b| pairs(a, b, |a, b| (a as i16).max(b as i16).max(0) as u16))
            } else {
                binary!(u32, |a, b| pairs(a, b, |a, b| (a as i16).max(b as i16) as u16))
            }))
        }
        ("min", 2) if kind == Type::S32 && flags.take("relu") => Some(Binary(binary!(i32, |a, b| a.min(b).max(0)))),
        ("max", 2) if kind == Type::S32 && flags.take("relu") => Some(Binary(binary!(i32, |a, b| a.max(b).max(0)))),
        ("add", 2) => integers!(kind, binary, |a, b| a.wrapping_add(b)).map(Binary),
        ("sub", 2) => integers!(kind, binary, |a, b| a.wrapping_sub(b)).map(Binary),
        ("min", 2) => integers!(kind, binary, |a, b| a.min(b)).map(Binary),
        ("max", 2) => integers!(kind, binary, |a, b| a.max(b)).map(Binary),
        ("div", 2) => integers!(kind, binary, |a, b| a.quotient(b)).map(Binary),
        ("rem", 2) => integers!(kind, binary, |a, b| a.remainder(b)).map(Binary),
        ("neg", 1) => integers!(kind, unary, |a| a.wrapping_neg()).map(Unary),
        ("abs", 1) => match kind {
            Type::S16 => Some(Unary(unary!(i16, |a| a.wrapping_abs()))),
            Type::S32 => Some(Unary(unary!(i32, |a| a.wrapping_abs()))),
            Type::S64 => Some(Unary(unary!(i64, |a| a.wrapping_abs()))),
            _ => None,
        },
        ("mul", 2) => match flags.take_one(&["lo", "hi", "wide"])? {
            "lo" => integers!(kind, binary, |a, b| a.wrapping_mul(b)).map(Binary),
            "hi" => integers!(kind, binary, |a, b| a.high(b)).map(Binary),
            _ => Some(Binary(match kind {
                Type::U16 => binary!(u16, |a, b| u32::from(a) * u32::from(b)),
                Type::S16 => binary!(i16, |a, b| i32::from(a) * i32::from(b)),
                Type::U32 => binary!(u32, |a, b| u64::from(a) * u64::from(b)),
                Type::S32 => binary!(i32, |a, b| i64::from(a) * i64::from(b)),
                _ => return None,
            })),
        },
        ("mad", 3) => match flags.take_one(&["lo", "hi", "wide"])? {
            "lo" => integers!(kind, ternary, |a, b, c| a.wrapping_mul(b).wrapping_add(c)).map(Ternary),
            "hi" if kind == Type::S32 && flags.take("sat") => {
                Some(Ternary(ternary!(i32, |a, b, c| a.high(b).saturating_add(c))))
            }
            "hi" => integers!(kind, ternary, |a, b, c| a.high(b).wrapping_add(c)).map(Ternary),
            _ => Some(Ternary(match kind {
                Type::U16 => ternary!(u16, u16, u32, |a, b, c| (u32::from(a) * u32::from(b)).wrapping_add(c)),
                Type::S16 => ternary!(i16, i16, i32, |a, b, c| (i32::from(a) * i32::from(b)).wrapping_add(c)),
                Type::U32 => ternary!(u32, u32, u64, |a, b, c| (u64::from(a) * u64::from(b)).wrapping_add(c)),
                Type::S32 => ternary!(i32, i32, i64, |a, b, c| (i64::from(a) * i64::from(b)).wrapping_add(c)),
                _ => return None,
            })),
        },
        ("mul24", 2) => match (flags.take_one(&["lo", "hi"])?, kind) {
            ("lo", Type::U32) => Some(Binary(binary!(u32, |a, b| (product24_unsigned(a, b)) as u32))),
            ("lo", Type::S32) => Some(Binary(binary!(u32, |a, b| product24_signed(a, b) as u32))),
            ("hi", Type::U32) => Some(Binary(binary!(u32, |a, b| (product24_unsigned(a, b) >> 16) as u32))),
            ("hi", Type::S32) => Some(Binary(binary!(u32, |a, b| (product24_signed(a, b) >> 16) as u32))),
            _ => None,
        },
        ("sad", 3) => match kind {
            Type::U16 => Some(Ternary(ternary!(u16, |a, b, c| a.abs_diff(b).wrapping_add(c)))),
            Type::U32 => Some(Ternary(ternary!(u32, |a, b, c| a.abs_diff(b).wrapping_add(c)))),
            Type::U64 => Some(Ternary(ternary!(u64, |a, b, c| a.abs_diff(b).wrapping_add(c)))),
            Type::S16 => Some(Ternary(ternary!(i16, |a, b, c| (a.abs_diff(b) as i16).wrapping_add(c)))),
            Type::S32 => Some(Ternary(ternary!(i32, |a, b, c| (a.abs_diff(b) as i32).wrapping_add(c)))),
            Type::S64 => Some(Ternary(ternary!(i64, |a, b, c| (a.abs_diff(b) as i64).wrapping_add(c)))),
            _ => None,
        },
        ("and", 2) if kind == Type::Pred => Some(Binary(binary!(bool, |a, b| a & b))),
        ("or", 2) if kind == Type::Pred => Some(Binary(binary!(bool, |a, b| a | b))),
        ("xor", 2) if kind == Type::Pred => Some(Binary(binary!(bool, |a, b| a ^ b))),
        ("not", 1) if kind == Type::Pred => Some(Unary(unary!(bool, |a| !a))),
        ("and", 2) => integers!(kind, binary, |a, b| a & b).map(Binary),
        ("or", 2) => integers!(kind, binary, |a, b| a | b).map(Binary),
        ("xor", 2) => integers!(kind, binary, |a, b| a ^ b).map(Binary),
        ("not", 1) => integers!(kind, unary, |a| !a).map(Unary),
        ("cnot", 1) => integers!(kind, unary, |a| a == 0).map(Unary),
        ("shl", 2) => match kind.bytes() {
            2 => Some(Binary(binary!(u16, u32, |a, b| a.checked_shl(b).unwrap_or(0)))),
            4 => Some(Binary(binary!(u32, u32, |a, b| a.checked_shl(b).unwrap_or(0)))),
            8 => Some(Binary(binary!(u64, u32, |a, b| a.checked_shl(b).unwrap_or(0)))),
            _ => None,
        },
        ("shr", 2) => match kind {
            Type::U16 | Type::B16 => Some(Binary(binary!(u16, u32, |a, b| a.checked_shr(b).unwrap_or(0)))),
            Type::U32 | Type::B32 => Some(Binary(binary!(u32, u32, |a, b| a.checked_shr(b).unwrap_or(0)))),
            Type::U64 | Type::B64 => Some(Binary(binary!(u64, u32, |a, b| a.checked_shr(b).unwrap_or(0)))),
            Type::S16 => Some(Binary(binary!(i16, u32, |a, b| a >> b.min(15)))),
            Type::S32 => Some(Binary(binary!(i32, u32, |a, b| a >> b.min(31)))),
            Type::S64 => Some(Binary(binary!(i64, u32, |a, b| a >> b.min(63)))),
            _ => None,
        },
        ("shf", 3) => {
            let left = flags.take("l") || !flags.take("r");
            let clamp = flags.take("clamp") || !flags.take("wrap");
            Some(Ternary(match (left, clamp) {
                (true, false) => ternary!(u32, |a, b, c| (joined(a, b) << (c & 31) >> 32) as u32),
                (true, true) => ternary!(u32, |a, b, c| (joined(a, b) << c.min(32) >> 32) as u32),
                (false, false) => ternary!(u32, |a, b, c| (joined(a, b) >> (c & 31)) as u32),
                (false, true) => ternary!(u32, |a, b, c| (joined(a, b) >> c.min(32)) as u32),
            }))
        }
        ("popc", 1) => match kind.bytes() {
            4 => Some(Unary(unary!(u32, |a| a.count_ones()))),
            8 => Some(Unary(unary!(u64, |a| a.count_ones()))),
            _ => None,
        },
        ("clz", 1) => match kind.bytes() {
            4 => Some(Unary(unary!(u32, |a| a.leading_zeros()))),
            8 => Some(Unary(unary!(u64, |a| a.leading_zeros()))),
            _ => None,
        },
        ("brev", 1) => match kind.bytes() {
            4 => Some(Unary(unary!(u32, |a| a.reverse_bits()))),
            8 => Some(Unary(unary!(u64, |a| a.reverse_bits()))),
            _ => None,
        },
        ("bfind", 1) => {
            let shift_amount = flags.take("shiftamt");
            Some(Unary(match (kind, shift_amount) {
                (Type::U32, false) => unary!(u32, |a| a.checked_ilog2().unwrap_or(u32::MAX)),
                (Type::U64, false) => unary!(u64, |a| a.checked_ilog2().unwrap_or(u32::MAX)),
                (Type::S32, false) => unary!(i32, |a| ((a ^ (a >> 31)) as u32).checked_ilog2().unwrap_or(u32::MAX)),
                (Type::S64, false) => unary!(i64, |a| ((a ^ (a >> 63)) as u64).checked_ilog2().unwrap_or(u32::MAX)),
                (Type::U32, true) => unary!(u32, |a| if a == 0 { u32::MAX } else { a.leading_zeros() }),
                (Type::U64, true) => unary!(u64, |a| if a == 0 { u32::MAX } else { a.leading_zeros() }),
                (Type::S32, true) => unary!(i32, |a| {
                    let magnitude = (a ^ (a >> 31)) as u32;
                    if magnitude == 0 { u32::MAX } else { magnitude.leading_zeros() }
                }),
                (Type::S64, true) => unary!(i64, |a| {
                    let magnitude = (a ^ (a >> 63)) as u64;
                    if magnitude == 0 { u32::MAX } else { magnitude.leading_zeros() }
                }),
                _ => return None,
            }))
        }
        ("bfe", 3) => Some(Ternary(match kind {
            Type::U32 => ternary!(u32, |a, b, c| extract(a.into(), 32, false, b, c) as u32),
            Type::U64 => ternary!(u64, u32, u32, |a, b, c| extract(a, 64, false, b, c)),
            Type::S32 => ternary!(u32, |a, b, c| extract(a.into(), 32, true, b, c) as u32),
            Type::S64 => ternary!(u64, u32, u32, |a, b, c| extract(a, 64, true, b, c)),
            _ => return None,
        })),
        ("bfi", 4) => Some(Quaternary(match kind.bytes() {
            4 => quaternary!(u32, u32, u32, u32, |a, b, c, d| insert(a.into(), b.into(), 32, c, d) as u32),
            8 => quaternary!(u64, u64, u32, u32, |a, b, c, d| insert(a, b, 64, c, d)),
            _ => return None,
        })),
        ("bmsk", 2) => {
            let clamp = flags.take("clamp") || !flags.take("wrap");
            Some(Binary(if clamp {
                binary!(u32, |a, b| bit_mask(a.min(32), b.min(32)))
            } else {
                binary!(u32, |a, b| bit_mask(a & 31, b & 31))
            }))
        }
        ("szext", 2) => {
            let clamp = flags.take("clamp") || !flags.take("wrap");
            Some(Binary(match (kind, clamp) {
                (Type::U32, true) => binary!(u32, |a, b| extract(a.into(), 32, false, 0, b.min(32)) as u32),
                (Type::U32, false) => binary!(u32, |a, b| extract(a.into(), 32, false, 0, b & 31) as u32),
                (Type::S32, true) => binary!(u32, |a, b| extract(a.into(), 32, true, 0, b.min(32)) as u32),
                (Type::S32, false) => binary!(u32, |a, b| extract(a.into(), 32, true, 0, b & 31) as u32),
                _ => return None,
            }))
        }
        ("lop3", 4) => Some(Quaternary(quaternary!(u32, u32, u32, u32, |a, b, c, table| {
            let mut result = 0;
            for row in 0..8u32 {
                let pick = |value: u32, bit: u32| if row & bit != 0 { value } else { !value };
                let chosen = if table >> row & 1 != 0 { u32::MAX } else { 0 };
                result |= pick(a, 4) & pick(b, 2) & pick(c, 1) & chosen;
            }
            result
        }))),
        ("prmt", 3) => Some(Ternary(match flags.take_one(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]) {
            None => ternary!(u32, |a, b, c| permute(joined(a, b), c)),
            Some("f4e") => {
                ternary!(u32, |a, b, c| permute(joined(a, b), [0x3210, 0x4321, 0x5432, 0x6543][c as usize & 3]))
            }
            Some("b4e") => {
                ternary!(u32, |a, b, c| permute(joined(a, b), [0x5670, 0x6701, 0x7012, 0x0123][c as usize & 3]))
            }
            Some("rc8") => {
                ternary!(u32, |a, b, c| permute(joined(a, b), [0x0000, 0x1111, 0x2222, 0x3333][c as usize & 3]))
            }
            Some("ecl") => {
                ternary!(u32, |a, b, c| permute(joined(a, b), [0x3210, 0x3211, 0x3222, 0x3333][c as usize & 3]))
            }
            Some("ecr") => {
                ternary!(u32, |a, b, c| permute(joined(a, b), [0x0000, 0x1110, 0x2210, 0x3210][c as usize & 3]))
            }
            _ => ternary!(u32, |a, b, c| permute(joined(a, b), [0x1010, 0x3232, 0x1010, 0x3232][c as usize & 3])),
        })),
        ("dp4a", 3) => Some(Ternary(match types {
            [Type::U32, Type::U32] => ternary!(u32, |a, b, c| dot4(a, b, |x| x.into(), |x| x.into()).wrapping_add(c)),
            [Type::S32, Type::S32] => {
                ternary!(u32, |a, b, c| dot4(a, b, |x| (x as i8).into(), |x| (x as i8).into()).wrapping_add(c))
            }
            [Type::U32, Type::S32] => {
                ternary!(u32, |a, b, c| dot4(a, b, |x| x.into(), |x| (x as i8).into()).wrapping_add(c))
            }
            [Type::S32, Type::U32] => {
                ternary!(u32, |a, b, c| dot4(a, b, |x| (x as i8).into(), |x| x.into()).wrapping_add(c))
            }
            _ => return None,
        })),
        ("selp", 3) => Some(Ternary(match kind.bytes() {
            _ if kind == Type::Pred => return None,
            2 => ternary!(u16, u16, bool, |a, b, c| if c { a } else { b }),
            4 => ternary!(u32, u32, bool, |a, b, c| if c { a } else { b }),
            8 => ternary!(u64, u64, bool, |a, b, c| if c { a } else { b }),
            _ => return None,
        })),
        ("slct", 3) => select_by_sign(types),
        ("mov", 1) if kind == Type::Pred => Some(Unary(unary!(bool, |a| a))),
        ("mov", 1) => match kind.bytes() {
            1 => Some(Unary(unary!(u8, |a| a))),
            _ if bits16 => Some(Unary(unary!(u16, |a| a))),
            4 => Some(Unary(unary!(u32, |a| a))),
            _ => Some(Unary(unary!(u64, |a| a))),
        },
        _ => None,
    }
}

/// `slct.type.s32` and `slct.type.f32`.
pub(super) fn select_by_sign(types: &[Type]) -> Option<Operation> {
    Some(Operation::Ternary(match types {
        [kind, Type::S32] => match kind.bytes() {
            2 => ternary!(u16, u16, i32, |a, b, c| if c >= 0 { a } else { b }),
            4 => ternary!(u32, u32, i32, |a, b, c| if c >= 0 { a } else { b }),
            8 => ternary!(u64, u64, i32, |a, b, c| if c >= 0 { a } else { b }),
            _ => return None,
        },
        [kind, Type::F32] => match kind.bytes() {
            2 => ternary!(u16, u16, f32, |a, b, c| if c >= 0.0 { a } else { b }),
            4 => ternary!(u32, u32, f32, |a, b, c| if c >= 0.0 { a } else { b }),
            8 => ternary!(u64, u64, f32, |a, b, c| if c >= 0.0 { a } else { b }),
            _ => return None,
        },
        _ => return None,
    }))
}

#[inline(always)]
fn pairs(a: u32, b: u32, combine: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(combine(a as u16, b as u16)) | u32::from(combine((a >> 16) as u16, (b >> 16) as u16)) << 16
}

#[inline(always)]
fn product24_unsigned(a: u32, b: u32) -> u64 {
    u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)
}

#[inline(always)]
fn product24_signed(a: u32, b: u32) -> i64 {
    i64::from((a << 8) as i32 >> 8) * i64::from((b << 8) as i32 >> 8)
}

/// `b` above `a`.
#[inline(always)]
fn joined(a: u32, b: u32) -> u64 {
    u64::from(b) << 32 | u64::from(a)
}

#[inline(always)]
fn extract(a: u64, bits: u32, signed: bool, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let sign = if !signed || length == 0 { false } else { a >> (position + length - 1).min(bits - 1) & 1 != 0 };
    let field = if position >= bits { 0 } else { a >> position };
    let available = length.min(bits.saturating_sub(position));
    let kept = if available == 0 { 0 } else { u64::MAX >> (64 - available) };
    field & kept | if sign { !kept } else { 0 }
}

#[inline(always)]
fn insert(a: u64, b: u64, bits: u32, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let available = length.min(bits.saturating_sub(position));
    if available == 0 {
        return b;
    }
    let mask = (u64::MAX >> (64 - available)) << position;
    b & !mask | a << position & mask
}

#[inline(always)]
fn bit_mask(position: u32, length: u32) -> u32 {
    (((1u64 << length) - 1) << position) as u32
}

#[inline(always)]
fn permute(bytes: u64, selector: u32) -> u32 {
    let mut result = 0;
    for index in 0..4 {
        let choice = selector >> (4 * index) & 0xf;
        let byte = (bytes >> (8 * (choice & 7))) as u8;
        let byte = if choice & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 };
        result |= u32::from(byte) << (8 * index);
    }
    result
}

#[inline(always)]
fn dot4(a: u32, b: u32, widen_a: impl Fn(u8) -> i32, widen_b: impl Fn(u8) -> i32) -> u32 {
    let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes()).map(|(a, b)| widen_a(a) * widen_b(b));
    products.sum::<i32>() as u32
}
