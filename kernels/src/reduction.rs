//! Reductions: how two numbers become one.
//!
//! A new reduction is one `impl` here and one row in the kernel table.

use crate::element::{Element, Integer, Number};

/// A reduction of numbers of one type.
pub trait Reduction<N: Number>: core::marker::Copy + 'static {
    /// Whether marked sources are scaled; without it their marks mean nothing.
    const SCALES: bool;
    /// Whether marked results are finished; without it their marks mean nothing.
    const FINISHES: bool;
    /// Whether two numbers, neither of them scaled, become their sum.
    const ADDS: bool = false;
    /// Whether there is only ever one source.
    const COPIES: bool = false;
    /// The reduction of two numbers.
    fn combine(left: N, right: N) -> N;
}

/// A reduction of elements of one type: of their numbers one by one, and of as many at once as their packs come in.
pub trait ReductionOf<E: Element>: Reduction<E::Number> {
    /// The reduction of two of what a pack's numbers come in.
    fn combine_lanes(left: E::Lanes, right: E::Lanes) -> E::Lanes;
}

impl<E: Element, R: Reduction<E::Number> + Reduction<E::Lanes>> ReductionOf<E> for R {
    #[inline(always)]
    fn combine_lanes(left: E::Lanes, right: E::Lanes) -> E::Lanes {
        R::combine(left, right)
    }
}

macro_rules! reduction {
    ($(#[$doc:meta])* $name:ident, $number:ident, scales $scales:expr, finishes $finishes:literal, $combine:ident $(, adds $adds:literal)?) => {
        $(#[$doc])*
        #[derive(Clone, core::marker::Copy, Debug)]
        pub struct $name;

        impl<N: $number> Reduction<N> for $name {
            const SCALES: bool = $scales;
            const FINISHES: bool = $finishes;
            $(const ADDS: bool = $adds;)?

            #[inline(always)]
            fn combine(left: N, right: N) -> N {
                left.$combine(right)
            }
        }
    };
}

reduction!(
    /// The sum.
    Sum,
    Number,
    scales false,
    finishes false,
    add,
    adds true
);
reduction!(
    /// The product.
    Prod,
    Number,
    scales false,
    finishes false,
    multiply
);
reduction!(
    /// The minimum; a NaN if there is one.
    Min,
    Number,
    scales false,
    finishes false,
    minimum
);
reduction!(
    /// The maximum; a NaN if there is one.
    Max,
    Number,
    scales false,
    finishes false,
    maximum
);
reduction!(
    /// The average. Of floats: a sum of sources scaled by 2^−k, k = ⌈log2 N⌉, finished by 2^k / N, so that an average that
    /// can be represented never overflows on the way. Of integers: the sum, divided by N at the end.
    Avg,
    Number,
    scales N::SCALES_AVERAGES,
    finishes true,
    add
);
reduction!(
    /// The sum of sources that the caller has scaled.
    ScaledSum,
    Number,
    scales true,
    finishes false,
    add
);
reduction!(
    /// The bits that all have.
    Band,
    Integer,
    scales false,
    finishes false,
    and
);
reduction!(
    /// The bits that any has.
    Bor,
    Integer,
    scales false,
    finishes false,
    or
);
reduction!(
    /// The bits that an odd number of them has.
    Bxor,
    Integer,
    scales false,
    finishes false,
    exclusive_or
);

/// What collectives that do not reduce do: there is one source.
#[derive(Clone, core::marker::Copy, Debug)]
pub struct Copy;

impl<N: Number> Reduction<N> for Copy {
    const SCALES: bool = false;
    const FINISHES: bool = false;
    const COPIES: bool = true;

    #[inline(always)]
    fn combine(left: N, _right: N) -> N {
        left
    }
}
