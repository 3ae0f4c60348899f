//! Loops over constants, for code whose arrays must be registers.

/// Runs a block for each of a few numbers below a bound, the number being a constant in it: then addresses are a register and
/// a constant, and arrays are registers, from the start and not only if the compiler unrolls a loop.
macro_rules! unrolled {
    ($($number:literal)*, $index:ident < $bound:expr => $block:block) => {{
        $(
            if $number < $bound {
                const $index: usize = $number;
                $block
            }
        )*
    }};
}
