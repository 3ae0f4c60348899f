//! Floating-point arithmetic: f32, f64, f16, bf16 and their packed pairs.

use std::marker::PhantomData;

use super::float::{self, BF16, F16, F32, Format, Rounding, flush, odd_quotient, odd_root, odd_sum};
use super::{Binary, Flags, Operation, Ternary, Unary, each, integer};
use crate::types::{Lanes, Type};

/// The modifiers of f32 arithmetic.
#[derive(Clone, Copy)]
struct Mode {
    rounding: Rounding,
    flush: bool,
    saturate: bool,
}

impl Mode {
    #[inline(always)]
    fn input(self, value: f32) -> f32 {
        if self.flush { flush(value) } else { value }
    }

    /// `nearest` where that is what is asked for, or else `exact` (an f64 rounded to odd) rounded as asked.
    #[inline(always)]
    fn output(self, nearest: impl FnOnce() -> f32, exact: impl FnOnce() -> f64) -> f32 {
        let value = match self.rounding {
            Rounding::Nearest => nearest(),
            rounding => {
                let exact = exact();
                // A sum of nothing is −0 when rounding down, which is the one sign that f64 to nearest does not give.
                f32::from_bits(F32.encode(exact, rounding, false))
            }
        };
        let value = if self.flush { flush(value) } else { value };
        if self.saturate { if value >= 0.0 { value.min(1.0) } else { 0.0 } } else { value }
    }

    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        let (a, b) = (self.input(a), self.input(b));
        self.output(
            || a + b,
            || {
                let sum = odd_sum(a.into(), b.into());
                let cancelled = sum == 0.0 && !(a == 0.0 && b == 0.0 && a.is_sign_positive() == b.is_sign_positive());
                if cancelled { if self.rounding == Rounding::Down { -0.0 } else { 0.0 } } else { sum }
            },
        )
    }

    #[inline(always)]
    fn multiply(self, a: f32, b: f32) -> f32 {
        let (a, b) = (self.input(a), self.input(b));
        self.output(|| a * b, || f64::from(a) * f64::from(b))
    }

    #[inline(always)]
    fn fuse(self, a: f32, b: f32, c: f32) -> f32 {
        let (a, b, c) = (self.input(a), self.input(b), self.input(c));
        self.output(|| a.mul_add(b, c), || odd_sum(f64::from(a) * f64::from(b), c.into()))
    }

    #[inline(always)]
    fn divide(self, a: f32, b: f32) -> f32 {
        let (a, b) = (self.input(a), self.input(b));
        self.output(|| a / b, || odd_quotient(a.into(), b.into()))
    }

    #[inline(always)]
    fn root(self, a: f32) -> f32 {
        let a = self.input(a);
        self.output(|| a.sqrt(), || odd_root(a.into()))
    }
}

/// `moded!(mode, binary, f32, |m, a, b| m.add(a, b))`: a function for each combination of modifiers.
macro_rules! moded {
    ($mode:expr, $make:ident, $kind:ty, |$m:ident $(, $a:ident)*| $value:expr) => {
        match ($mode.rounding, $mode.flush, $mode.saturate) {
            (Rounding::Nearest | Rounding::NearestAway, false, false) => moded!(@ Nearest false false $make $kind $m [$($a)*] $value),
            (Rounding::Nearest | Rounding::NearestAway, false, true) => moded!(@ Nearest false true $make $kind $m [$($a)*] $value),
            (Rounding::Nearest | Rounding::NearestAway, true, false) => moded!(@ Nearest true false $make $kind $m [$($a)*] $value),
            (Rounding::Nearest | Rounding::NearestAway, true, true) => moded!(@ Nearest true true $make $kind $m [$($a)*] $value),
            (Rounding::Zero, false, false) => moded!(@ Zero false false $make $kind $m [$($a)*] $value),
            (Rounding::Zero, false, true) => moded!(@ Zero false true $make $kind $m [$($a)*] $value),
            (Rounding::Zero, true, false) => moded!(@ Zero true false $make $kind $m [$($a)*] $value),
            (Rounding::Zero, true, true) => moded!(@ Zero true true $make $kind $m [$($a)*] $value),
            (Rounding::Down, false, false) => moded!(@ Down false false $make $kind $m [$($a)*] $value),
            (Rounding::Down, false, true) => moded!(@ Down false true $make $kind $m [$($a)*] $value),
            (Rounding::Down, true, false) => moded!(@ Down true false $make $kind $m [$($a)*] $value),
            (Rounding::Down, true, true) => moded!(@ Down true true $make $kind $m [$($a)*] $value),
            (Rounding::Up, false, false) => moded!(@ Up false false $make $kind $m [$($a)*] $value),
            (Rounding::Up, false, true) => moded!(@ Up false true $make $kind $m [$($a)*] $value),
            (Rounding::Up, true, false) => moded!(@ Up true false $make $kind $m [$($a)*] $value),
            (Rounding::Up, true, true) => moded!(@ Up true true $make $kind $m [$($a)*] $value),
        }
    };
    (@ $rounding:ident $flush:literal $saturate:literal $make:ident $kind:ty, $m:ident [$($a:ident)*] $value:expr) => {};
    (@ $rounding:ident $flush:literal $saturate:literal $make:ident $kind:ty) => {};
    (@ $rounding:ident $flush:literal $saturate:literal $make:ident $kind:tt $m:ident [$($a:ident)*] $value:expr) => {
        $make!($kind, |$($a),*| {
            let $m = Mode { rounding: Rounding::$rounding, flush: $flush, saturate: $saturate };
            $value
        })
    };
}

pub(super) fn operation(base: &str, kind: Type, operands: usize, flags: &mut Flags) -> Option<Operation> {
    match (base, kind, operands) {
        ("mov" | "selp", _, _) => {
            let bits = match kind.bytes() {
                2 => Type::B16,
                4 => Type::B32,
                8 => Type::B64,
                _ => return None,
            };
            integer::operation(base, bits, &[bits], operands, flags)
        }
        ("slct", Type::F32, _) => None,
        (_, Type::F32, _) => single(base, operands, flags),
        (_, Type::F32x2, _) => single_pair(base, operands, flags),
        (_, Type::F64, _) => double(base, operands, flags),
        (_, Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2, _) => half(base, kind, operands, flags),
        _ => None,
    }
}

fn single(base: &str, operands: usize, flags: &mut Flags) -> Option<Operation> {
    use Operation::{Binary, Ternary, Unary};
    let rounding = flags.take_rounding();
    let approximate = flags.take("approx") || flags.take("full");
    let mode =
        Mode { rounding: rounding.unwrap_or(Rounding::Nearest), flush: flags.take("ftz"), saturate: flags.take("sat") };
    if rounding == Some(Rounding::NearestAway) {
        return None;
    }
    Some(match (base, operands) {
        ("add", 2) => Binary(moded!(mode, binary, f32, |m, a, b| m.add(a, b))),
        ("sub", 2) => Binary(moded!(mode, binary, f32, |m, a, b| m.add(a, if b.is_nan() { b } else { -b }))),
        ("mul", 2) => Binary(moded!(mode, binary, f32, |m, a, b| m.multiply(a, b))),
        ("fma" | "mad", 3) => Ternary(moded!(mode, ternary, f32, |m, a, b, c| m.fuse(a, b, c))),
        ("div", 2) => Binary(moded!(mode, binary, f32, |m, a, b| m.divide(a, b))),
        ("rcp", 1) => Unary(moded!(mode, unary, f32, |m, a| m.divide(1.0, a))),
        ("sqrt", 1) => Unary(moded!(mode, unary, f32, |m, a| m.root(a))),
        ("abs", 1) if mode.flush => Unary(unary!(u32, |a| flush(f32::from_bits(a & !(1 << 31))))),
        ("abs", 1) => Unary(unary!(u32, |a| a & !(1 << 31))),
        ("neg", 1) if mode.flush => Unary(unary!(u32, |a| flush(f32::from_bits(a ^ 1 << 31)))),
        ("neg", 1) => Unary(unary!(u32, |a| a ^ 1 << 31)),
        ("copysign", 2) => Binary(binary!(u32, |a, b| a & 1 << 31 | b & !(1 << 31))),
        ("min" | "max", 2 | 3) => {
            let nan = flags.take("NaN");
            let xor_sign = flags.take("xorsign") && flags.take("abs");
            return minimum(base == "min", operands, nan, mode.flush, xor_sign);
        }
        ("rsqrt", 1) if approximate => {
            Unary(moded!(mode, unary, f32, |m, a| m.output(|| (1.0 / f64::from(m.input(a)).sqrt()) as f32, || 0.0)))
        }
        ("sin", 1) if approximate => {
            Unary(moded!(mode, unary, f32, |m, a| m.output(|| f64::from(m.input(a)).sin() as f32, || 0.0)))
        }
        ("cos", 1) if approximate => {
            Unary(moded!(mode, unary, f32, |m, a| m.output(|| f64::from(m.input(a)).cos() as f32, || 0.0)))
        }
        ("lg2", 1) if approximate => {
            Unary(moded!(mode, unary, f32, |m, a| m.output(|| f64::from(m.input(a)).log2() as f32, || 0.0)))
        }
        ("ex2", 1) if approximate => {
            Unary(moded!(mode, unary, f32, |m, a| m.output(|| f64::from(m.input(a)).exp2() as f32, || 0.0)))
        }
        ("tanh", 1) if approximate => {
            Unary(moded!(mode, unary, f32, |m, a| m.output(|| f64::from(m.input(a)).tanh() as f32, || 0.0)))
        }
        ("testp", 1) => {
            Unary(match flags.take_one(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"])? {
                "finite" => unary!(f32, |a| a.is_finite()),
                "infinite" => unary!(f32, |a| a.is_infinite()),
                "number" => unary!(f32, |a| !a.is_nan()),
                "notanumber" => unary!(f32, |a| a.is_nan()),
                "normal" => unary!(f32, |a| a.is_normal()),
                _ => unary!(f32, |a| a.is_subnormal()),
            })
        }
        _ => return None,
    })
}

/// The lesser, −0 before +0; of one NaN and a number the number, or with `nan` a NaN.
#[inline(always)]
fn lesser(a: f32, b: f32, nan: bool) -> f32 {
    if a.is_nan() || b.is_nan() {
        if nan || (a.is_nan() && b.is_nan()) {
            f32::NAN
        } else if a.is_nan() {
            b
        } else {
            a
        }
    } else if a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

#[inline(always)]
fn greater(a: f32, b: f32, nan: bool) -> f32 {
    if a.is_nan() || b.is_nan() {
        if nan || (a.is_nan() && b.is_nan()) {
            f32::NAN
        } else if a.is_nan() {
            b
        } else {
            a
        }
    } else if a > b || (a == b && a.is_sign_positive()) {
        a
    } else {
        b
    }
}

fn minimum(least: bool, operands: usize, nan: bool, ftz: bool, xor_sign: bool) -> Option<Operation> {
    Some(match (least, operands, nan, ftz, xor_sign) {
        (true, 2, false, false, false) => Operation::Binary(binary!(f32, |a, b| lesser(a, b, false))),
        (true, 2, true, false, false) => Operation::Binary(binary!(f32, |a, b| lesser(a, b, true))),
        (true, 2, false, true, false) => Operation::Binary(binary!(f32, |a, b| lesser(flush(a), flush(b), false))),
        (true, 2, true, true, false) => Operation::Binary(binary!(f32, |a, b| lesser(flush(a), flush(b), true))),
        (false, 2, false, false, false) => Operation::Binary(binary!(f32, |a, b| greater(a, b, false))),
        (false, 2, true, false, false) => Operation::Binary(binary!(f32, |a, b| greater(a, b, true))),
        (false, 2, false, true, false) => Operation::Binary(binary!(f32, |a, b| greater(flush(a), flush(b), false))),
        (false, 2, true, true, false) => Operation::Binary(binary!(f32, |a, b| greater(flush(a), flush(b), true))),
        (true, 3, false, false, false) => {
            Operation::Ternary(ternary!(f32, |a, b, c| lesser(lesser(a, b, false), c, false)))
        }
        (true, 3, true, false, false) => {
            Operation::Ternary(ternary!(f32, |a, b, c| lesser(lesser(a, b, true), c, true)))
        }
        (false, 3, false, false, false) => {
            Operation::Ternary(ternary!(f32, |a, b, c| greater(greater(a, b, false), c, false)))
        }
        (false, 3, true, false, false) => {
            Operation::Ternary(ternary!(f32, |a, b, c| greater(greater(a, b, true), c, true)))
        }
        (true, 2, nan, false, true) => Operation::Binary(if nan {
            binary!(f32, |a, b| lesser(a.abs(), b.abs(), true).copysign(sign_product(a, b)))
        } else {
            binary!(f32, |a, b| lesser(a.abs(), b.abs(), false).copysign(sign_product(a, b)))
        }),
        (false, 2, nan, false, true) => Operation::Binary(if nan {
            binary!(f32, |a, b| greater(a.abs(), b.abs(), true).copysign(sign_product(a, b)))
        } else {
            binary!(f32, |a, b| greater(a.abs(), b.abs(), false).copysign(sign_product(a, b)))
        }),
        _ => return None,
    })
}

#[inline(always)]
fn sign_product(a: f32, b: f32) -> f32 {
    if a.is_sign_negative() != b.is_sign_negative() { -1.0 } else { 1.0 }
}

#[inline(always)]
fn both(a: u64, b: u64, c: u64, combine: impl Fn(f32, f32, f32) -> f32) -> u64 {
    let part = |shift: u32| {
        let value = |bits: u64| f32::from_bits((bits >> shift) as u32);
        super::lanes::Lane::to_bits(combine(value(a), value(b), value(c))) << shift
    };
    part(0) | part(32)
}

fn single_pair(base: &str, operands: usize, flags: &mut Flags) -> Option<Operation> {
    let mode = Mode {
        rounding: flags.take_rounding().unwrap_or(Rounding::Nearest),
        flush: flags.take("ftz"),
        saturate: false,
    };
    Some(match (base, operands) {
        ("add", 2) => Operation::Binary(moded!(mode, binary, u64, |m, a, b| both(a, b, 0, |a, b, _| m.add(a, b)))),
        ("sub", 2) => Operation::Binary(moded!(mode, binary, u64, |m, a, b| both(a, b, 0, |a, b, _| m.add(a, -b)))),
        ("mul", 2) => Operation::Binary(moded!(mode, binary, u64, |m, a, b| both(a, b, 0, |a, b, _| m.multiply(a, b)))),
        ("fma", 3) => {
            Operation::Ternary(moded!(mode, ternary, u64, |m, a, b, c| both(a, b, c, |a, b, c| m.fuse(a, b, c))))
        }
        _ => return None,
    })
}

/// f64 to nearest; other modes have no instruction in any image.
fn double(base: &str, operands: usize, flags: &mut Flags) -> Option<Operation> {
    use Operation::{Binary, Ternary, Unary};
    if !matches!(flags.take_rounding(), None | Some(Rounding::Nearest)) {
        return None;
    }
    let approximate = flags.take("approx") && flags.take("ftz");
    Some(match (base, operands) {
        ("add", 2) => Binary(binary!(f64, |a, b| a + b)),
        ("sub", 2) => Binary(binary!(f64, |a, b| a - b)),
        ("mul", 2) => Binary(binary!(f64, |a, b| a * b)),
        ("fma" | "mad", 3) => Ternary(ternary!(f64, |a, b, c| a.mul_add(b, c))),
        ("div", 2) => Binary(binary!(f64, |a, b| a / b)),
        ("rcp", 1) => Unary(unary!(f64, |a| 1.0 / a)),
        ("sqrt", 1) => Unary(unary!(f64, |a| a.sqrt())),
        ("rsqrt", 1) if approximate => Unary(unary!(f64, |a| 1.0 / a.sqrt())),
        ("abs", 1) => Unary(unary!(u64, |a| a & !(1 << 63))),
        ("neg", 1) => Unary(unary!(u64, |a| a ^ 1 << 63)),
        ("copysign", 2) => Binary(binary!(u64, |a, b| a & 1 << 63 | b & !(1 << 63))),
        ("min", 2) => Binary(binary!(f64, |a, b| {
            if a.is_nan() {
                b
            } else if b.is_nan() || a < b || (a == b && a.is_sign_negative()) {
                a
            } else {
                b
            }
        })),
        ("max", 2) => Binary(binary!(f64, |a, b| {
            if a.is_nan() {
                b
            } else if b.is_nan() || a > b || (a == b && a.is_sign_positive()) {
                a
            } else {
                b
            }
        })),
        ("testp", 1) => {
            Unary(match flags.take_one(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"])? {
                "finite" => unary!(f64, |a| a.is_finite()),
                "infinite" => unary!(f64, |a| a.is_infinite()),
                "number" => unary!(f64, |a| !a.is_nan()),
                "notanumber" => unary!(f64, |a| a.is_nan()),
                "normal" => unary!(f64, |a| a.is_normal()),
                _ => unary!(f64, |a| a.is_subnormal()),
            })
        }
        _ => return None,
    })
}

/// A 16-bit format.
pub(super) trait Half {
    const FORMAT: Format;
    fn widen(bits: u16) -> f32;
    fn narrow(value: f32) -> u16;
}

pub(super) struct Ieee;

impl Half for Ieee {
    const FORMAT: Format = F16;
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        float::widen_f16(bits)
    }
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        float::narrow_f16(value)
    }
}

pub(super) struct Brain;

impl Half for Brain {
    const FORMAT: Format = BF16;
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        float::widen_bf16(bits)
    }
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        float::narrow_bf16(value)
    }
}

/// What is done with one, two or three 16-bit numbers; rounded once.
trait HalfOperation {
    fn apply<H: Half>(a: u16, b: u16, c: u16) -> u16;
}

macro_rules! half_operations {
    ($($name:ident: |$a:ident, $b:ident, $c:ident| $value:expr;)*) => {
        $(struct $name;
        impl HalfOperation for $name {
            #[inline(always)]
            fn apply<H: Half>($a: u16, $b: u16, $c: u16) -> u16 {
                $value
            }
        })*
    };
}

half_operations! {
    // An f32 has more than twice an f16's or bf16's digits, and two more: rounding a sum twice is rounding it once. A product
    // of two bf16 may be a subnormal f32, so products go by way of f64, where they are exact.
    Add: |a, b, _c| H::narrow(H::widen(a) + H::widen(b));
    Subtract: |a, b, _c| H::narrow(H::widen(a) - H::widen(b));
    Multiply: |a, b, _c| H::FORMAT.encode(f64::from(H::widen(a)) * f64::from(H::widen(b)), Rounding::Nearest, false) as u16;
    Fuse: |a, b, c| {
        let product = f64::from(H::widen(a)) * f64::from(H::widen(b));
        H::FORMAT.encode(odd_sum(product, H::widen(c).into()), Rounding::Nearest, false) as u16
    };
    Minimum: |a, b, _c| H::narrow(lesser(H::widen(a), H::widen(b), false));
    MinimumNan: |a, b, _c| H::narrow(lesser(H::widen(a), H::widen(b), true));
    Maximum: |a, b, _c| H::narrow(greater(H::widen(a), H::widen(b), false));
    MaximumNan: |a, b, _c| H::narrow(greater(H::widen(a), H::widen(b), true));
    Negate: |a, _b, _c| a ^ 0x8000;
    Absolute: |a, _b, _c| a & 0x7fff;
    Tangent: |a, _b, _c| H::FORMAT.encode(f64::from(H::widen(a)).tanh(), Rounding::Nearest, false) as u16;
    PowerOfTwo: |a, _b, _c| H::FORMAT.encode(f64::from(H::widen(a)).exp2(), Rounding::Nearest, false) as u16;
    Plain: |a, _b, _c| a;
}

/// Clamped to 0..=1, a NaN to 0.
struct Saturated<O>(PhantomData<O>);

impl<O: HalfOperation> HalfOperation for Saturated<O> {
    #[inline(always)]
    fn apply<H: Half>(a: u16, b: u16, c: u16) -> u16 {
        let result = H::widen(O::apply::<H>(a, b, c));
        if result >= 0.0 { H::narrow(result.min(1.0)) } else { 0 }
    }
}

/// Negative results become 0.
struct Rectified<O>(PhantomData<O>);

impl<O: HalfOperation> HalfOperation for Rectified<O> {
    #[inline(always)]
    fn apply<H: Half>(a: u16, b: u16, c: u16) -> u16 {
        let result = O::apply::<H>(a, b, c);
        if H::widen(result) < 0.0 || result == 0x8000 { 0 } else { result }
    }
}

/// Subnormals become zeros, before and after.
struct Flushed<O>(PhantomData<O>);

impl<O: HalfOperation> HalfOperation for Flushed<O> {
    #[inline(always)]
    fn apply<H: Half>(a: u16, b: u16, c: u16) -> u16 {
        let flush = |bits: u16| if bits & 0x7fff < 1 << H::FORMAT.mantissa_bits { bits & 0x8000 } else { bits };
        flush(O::apply::<H>(flush(a), flush(b), flush(c)))
    }
}

#[inline(always)]
fn halves<O: HalfOperation, H: Half, const PACKED: bool>(a: u64, b: u64, c: u64) -> u64 {
    let low = u64::from(O::apply::<H>(a as u16, b as u16, c as u16));
    if PACKED {
        low | u64::from(O::apply::<H>((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16)) << 16
    } else {
        low
    }
}

fn unary_lanes<O: HalfOperation, H: Half, const PACKED: bool>(d: &mut Lanes, a: &Lanes, mask: u32) {
    each(mask, |lane| d[lane] = halves::<O, H, PACKED>(a[lane], 0, 0));
}

fn binary_lanes<O: HalfOperation, H: Half, const PACKED: bool>(d: &mut Lanes, a: &Lanes, b: &Lanes, mask: u32) {
    each(mask, |lane| d[lane] = halves::<O, H, PACKED>(a[lane], b[lane], 0));
}

fn ternary_lanes<O: HalfOperation, H: Half, const PACKED: bool>(
    d: &mut Lanes,
    a: &Lanes,
    b: &Lanes,
    c: &Lanes,
    mask: u32,
) {
    each(mask, |lane| d[lane] = halves::<O, H, PACKED>(a[lane], b[lane], c[lane]));
}

/// The instance for a type and a number of operands.
fn instance<O: HalfOperation>(kind: Type, operands: usize) -> Option<Operation> {
    Some(match (operands, kind) {
        (1, Type::F16) => Operation::Unary(unary_lanes::<O, Ieee, false> as Unary),
        (1, Type::F16x2) => Operation::Unary(unary_lanes::<O, Ieee, true> as Unary),
        (1, Type::Bf16) => Operation::Unary(unary_lanes::<O, Brain, false> as Unary),
        (1, Type::Bf16x2) => Operation::Unary(unary_lanes::<O, Brain, true> as Unary),
        (2, Type::F16) => Operation::Binary(binary_lanes::<O, Ieee, false> as Binary),
        (2, Type::F16x2) => Operation::Binary(binary_lanes::<O, Ieee, true> as Binary),
        (2, Type::Bf16) => Operation::Binary(binary_lanes::<O, Brain, false> as Binary),
        (2, Type::Bf16x2) => Operation::Binary(binary_lanes::<O, Brain, true> as Binary),
        (3, Type::F16) => Operation::Ternary(ternary_lanes::<O, Ieee, false> as Ternary),
        (3, Type::F16x2) => Operation::Ternary(ternary_lanes::<O, Ieee, true> as Ternary),
        (3, Type::Bf16) => Operation::Ternary(ternary_lanes::<O, Brain, false> as Ternary),
        (3, Type::Bf16x2) => Operation::Ternary(ternary_lanes::<O, Brain, true> as Ternary),
        _ => return None,
    })
}

fn half(base: &str, kind: Type, operands: usize, flags: &mut Flags) -> Option<Operation> {
    fn modified<O: HalfOperation>(kind: Type, operands: usize, flags: &mut Flags) -> Option<Operation> {
        let (ftz, sat, relu) = (flags.take("ftz"), flags.take("sat"), flags.take("relu"));
        match (ftz, sat, relu) {
            (false, false, false) => instance::<O>(kind, operands),
            (false, true, false) => instance::<Saturated<O>>(kind, operands),
            (false, false, true) => instance::<Rectified<O>>(kind, operands),
            (true, false, false) => instance::<Flushed<O>>(kind, operands),
            (true, true, false) => instance::<Saturated<Flushed<O>>>(kind, operands),
            (true, false, true) => instance::<Rectified<Flushed<O>>>(kind, operands),
            _ => None,
        }
    }
    if !matches!(flags.take_rounding(), None | Some(Rounding::Nearest)) {
        return None;
    }
    flags.take("noftz");
    let nan = flags.take("NaN");
    match (base, operands) {
        ("add", 2) => modified::<Add>(kind, operands, flags),
        ("sub", 2) => modified::<Subtract>(kind, operands, flags),
        ("mul", 2) => modified::<Multiply>(kind, operands, flags),
        ("fma", 3) => modified::<Fuse>(kind, operands, flags),
        ("min", 2) if nan => modified::<MinimumNan>(kind, operands, flags),
        ("min", 2) => modified::<Minimum>(kind, operands, flags),
        ("max", 2) if nan => modified::<MaximumNan>(kind, operands, flags),
        ("max", 2) => modified::<Maximum>(kind, operands, flags),
        ("neg", 1) => modified::<Negate>(kind, operands, flags),
        ("abs", 1) => modified::<Absolute>(kind, operands, flags),
        ("mov", 1) => modified::<Plain>(kind, operands, flags),
        ("tanh", 1) if flags.take("approx") => modified::<Tangent>(kind, operands, flags),
        ("ex2", 1) if flags.take("approx") => modified::<PowerOfTwo>(kind, operands, flags),
        _ => None,
    }
}

/// `add.f32.f16` and its kin: narrow sources, one f32 accumulator, one rounding. Also `slct`, whose last type is its sign's.
pub(super) fn mixed(base: &str, to: Type, from: Type, flags: &mut Flags) -> Option<Operation> {
    use float::{widen_bf16, widen_f16};
    let mode = Mode {
        rounding: flags.take_rounding().unwrap_or(Rounding::Nearest),
        flush: flags.take("ftz"),
        saturate: flags.take("sat"),
    };
    if to != Type::F32 || mode.flush {
        return None;
    }
    macro_rules! with {
        ($widen:ident) => {
            match base {
                "add" => {
                    Operation::Binary(moded!(mode, mixed_binary, u16, |m, a, b| m.add($widen(a), f32::from_bits(b))))
                }
                "sub" => {
                    Operation::Binary(moded!(mode, mixed_binary, u16, |m, a, b| m.add($widen(a), -f32::from_bits(b))))
                }
                _ => Operation::Ternary(moded!(mode, mixed_ternary, u16, |m, a, b, c| {
                    m.fuse($widen(a), $widen(b), f32::from_bits(c))
                })),
            }
        };
    }
    macro_rules! mixed_binary {
        ($kind:tt, |$a:ident, $b:ident| $value:expr) => {
            binary!($kind, u32, |$a, $b| $value)
        };
    }
    macro_rules! mixed_ternary {
        ($kind:tt, |$a:ident, $b:ident, $c:ident| $value:expr) => {
            ternary!($kind, u16, u32, |$a, $b, $c| $value)
        };
    }
    Some(match from {
        Type::F16 => with!(widen_f16),
        Type::Bf16 => with!(widen_bf16),
        _ => return None,
    })
}

/// The sum of two numbers of a floating-point type, as an atomic addition makes it.
pub(crate) fn add_float(kind: Type, a: u64, b: u64) -> u64 {
    match kind {
        Type::F32 => super::lanes::Lane::to_bits(f32::from_bits(a as u32) + f32::from_bits(b as u32)),
        Type::F64 => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        Type::F16 => halves::<Add, Ieee, false>(a, b, 0),
        Type::F16x2 => halves::<Add, Ieee, true>(a, b, 0),
        Type::Bf16 => halves::<Add, Brain, false>(a, b, 0),
        _ => halves::<Add, Brain, true>(a, b, 0),
    }
}

/// The lesser of two numbers of a floating-point type, as a reduction makes it.
pub(crate) fn min_float(kind: Type, a: u64, b: u64) -> u64 {
    match kind {
        Type::F32 => lesser(f32::from_bits(a as u32), f32::from_bits(b as u32), false).to_bits().into(),
        Type::F16 => halves::<Minimum, Ieee, false>(a, b, 0),
        Type::F16x2 => halves::<Minimum, Ieee, true>(a, b, 0),
        Type::Bf16 => halves::<Minimum, Brain, false>(a, b, 0),
        _ => halves::<Minimum, Brain, true>(a, b, 0),
    }
}

/// The greater of two numbers of a floating-point type, as a reduction makes it.
pub(crate) fn max_float(kind: Type, a: u64, b: u64) -> u64 {
    match kind {
        Type::F32 => greater(f32::from_bits(a as u32), f32::from_bits(b as u32), false).to_bits().into(),
        Type::F16 => halves::<Maximum, Ieee, false>(a, b, 0),
        Type::F16x2 => halves::<Maximum, Ieee, true>(a, b, 0),
        Type::Bf16 => halves::<Maximum, Brain, false>(a, b, 0),
        _ => halves::<Maximum, Brain, true>(a, b, 0),
    }
}
