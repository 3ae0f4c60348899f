//! What instructions compute, lane by lane: pure functions on the bits of registers.
//!
//! [`find`] gives, for an opcode, a function over whole warps. Each is compiled for its own type, so that a compiler
//! vectorises it; the interpreter calls it through a pointer, once for 32 lanes.

#[macro_use]
mod lanes;
mod compare;
mod convert;
pub(crate) mod float;
mod integer;
mod real;

pub(crate) use compare::comparison;
pub(crate) use convert::Conversion;
pub(crate) use lanes::{Binary, Quaternary, Ternary, Unary, each};
pub(crate) use real::{add_float, max_float, min_float};

use crate::types::Type;

/// An opcode's modifiers that are not types, to be taken one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags<'a>(pub(crate) Vec<&'a str>);

impl<'a> Flags<'a> {
    /// Whether `flag` was there; it is not any more.
    pub(crate) fn take(&mut self, flag: &str) -> bool {
        let found = self.0.iter().position(|&candidate| candidate == flag);
        found.map(|at| self.0.remove(at)).is_some()
    }

    /// The first of `flags` that is there.
    pub(crate) fn take_one<'b>(&mut self, flags: &[&'b str]) -> Option<&'b str> {
        flags.iter().copied().find(|flag| self.take(flag))
    }

    /// The rounding mode of a floating-point instruction.
    pub(crate) fn take_rounding(&mut self) -> Option<float::Rounding> {
        use float::Rounding::*;
        Some(match self.take_one(&["rn", "rz", "rm", "rp", "rna"])? {
            "rn" => Nearest,
            "rz" => Zero,
            "rm" => Down,
            "rp" => Up,
            _ => NearestAway,
        })
    }
}

/// A function over the lanes of a warp.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Unary(Unary),
    Binary(Binary),
    Ternary(Ternary),
    Quaternary(Quaternary),
    Convert(Conversion),
    /// The first source goes to the upper half.
    ConvertTwo(Conversion),
}

/// The function of an opcode with these types (in the order in which they stand); `None` if there is none. `operands` counts
/// the sources. What is left in `flags` was not understood.
pub(crate) fn find(base: &str, types: &[Type], operands: usize, flags: &mut Flags) -> Option<Operation> {
    match (base, types) {
        ("cvt", &[to, from]) => convert::conversion(to, from, operands, flags),
        ("slct", _) => integer::select_by_sign(types).filter(|_| operands == 3),
        (_, &[to, from, ..]) if matches!(base, "add" | "sub" | "fma") => real::mixed(base, to, from, flags),
        (_, &[.., kind]) if kind.is_integer() || matches!(kind, Type::U16x2 | Type::S16x2 | Type::Pred) => {
            integer::operation(base, kind, types, operands, flags)
        }
        (_, &[.., kind]) => real::operation(base, kind, operands, flags),
        (_, &[]) if base == "prmt" => integer::operation(base, Type::B32, types, operands, flags),
        _ => None,
    }
}

/// Sum (or difference) of two numbers and a carry (or borrow): the functions for the value and for the carry that results.
pub(crate) fn carry(subtract: bool, wide: bool) -> (Ternary, Ternary) {
    match (subtract, wide) {
        (false, false) => (
            ternary!(u32, |a, b, c| a.wrapping_add(b).wrapping_add(c)),
            ternary!(u32, |a, b, c| u64::from(a) + u64::from(b) + u64::from(c) > u64::from(u32::MAX)),
        ),
        (false, true) => (
            ternary!(u64, |a, b, c| a.wrapping_add(b).wrapping_add(c)),
            ternary!(u64, |a, b, c| u128::from(a) + u128::from(b) + u128::from(c) > u128::from(u64::MAX)),
        ),
        (true, false) => (
            ternary!(u32, |a, b, c| a.wrapping_sub(b).wrapping_sub(c)),
            ternary!(u32, |a, b, c| u64::from(a) < u64::from(b) + u64::from(c)),
        ),
        (true, true) => (
            ternary!(u64, |a, b, c| a.wrapping_sub(b).wrapping_sub(c)),
            ternary!(u64, |a, b, c| u128::from(a) < u128::from(b) + u128::from(c)),
        ),
    }
}
