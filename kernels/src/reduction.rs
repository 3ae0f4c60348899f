//! Reductions: how two numbers become one.
//!
//! A new reduction is one `impl` here and one row in the kernel table.

use crate::element::Number;

/// A reduction.
pub trait Reduction: Copy + 'static {
    /// Whether marked sources are scaled and marked results finished; without it the marks mean nothing.
    const SCALES: bool;
    /// Whether two numbers, neither of them scaled, become their sum.
    const ADDS: bool = false;
    /// Whether it is what gradients are reduced by: then a GPU has a hot loop for each number of sources and of destinations.
    /// All of them for every reduction would take its compilers many minutes.
    const COMMON: bool = false;
    /// The reduction of two numbers.
    fn combine<N: Number>(left: N, right: N) -> N;
}

macro_rules! reduction {
    ($(#[$doc:meta])* $name:ident, scales $scales:literal, $combine:ident $(, adds $adds:literal)? $(, common $common:literal)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Reduction for $name {
            const SCALES: bool = $scales;
            $(const ADDS: bool = $adds;)?
            $(const COMMON: bool = $common;)?

            #[inline(always)]
            fn combine<N: Number>(left: N, right: N) -> N {
                left.$combine(right)
            }
        }
    };
}

reduction!(
    /// The sum.
    Sum,
    scales false,
    add,
    adds true,
    common true
);
reduction!(
    /// The product.
    Prod,
    scales false,
    multiply
);
reduction!(
    /// The minimum; a NaN if there is one.
    Min,
    scales false,
    minimum
);
reduction!(
    /// The maximum; a NaN if there is one.
    Max,
    scales false,
    maximum
);
reduction!(
    /// The average: a sum of sources scaled by 2^−k, k = ⌈log2 N⌉, finished by 2^k / N, so that an average that can be
    /// represented never overflows on the way.
    Avg,
    scales true,
    add,
    common true
);
