//! The element types as the tests see them: bits, and exact values in f64.

use half::{bf16, f16};

/// An element whose value and rounding are spelled out.
pub(crate) trait Number: tutti::Element + Default {
    /// Bits of the significand, the hidden one included.
    const PRECISION: i32;
    /// The smallest positive number is 2 to this power.
    const EXPONENT_MIN: i32;
    /// The bits of the largest finite number.
    const LARGEST_BITS: u32;
    /// Bits that are ones in an infinity.
    const INFINITY_BITS: u32;
    /// The bit that is the sign.
    const SIGN_BIT: u32;

    /// From bits, of which there are as many as the type has.
    fn from_bits(bits: u32) -> Self;
    /// Its bits.
    fn bits(self) -> u32;
    /// Its value, exactly.
    fn value(self) -> f64;

    /// The number whose value this is; it must be one.
    fn exact(value: f64) -> Self;

    /// The nearest number, ties to even.
    fn nearest(value: f64) -> Self {
        Self::exact(nearest(value, Self::PRECISION, Self::EXPONENT_MIN, Self::largest()))
    }

    /// The largest finite value.
    fn largest() -> f64 {
        Self::from_bits(Self::LARGEST_BITS).value()
    }

    /// The smallest positive value.
    fn smallest() -> f64 {
        2.0_f64.powi(Self::EXPONENT_MIN)
    }

    /// The smallest positive value with full precision.
    fn smallest_normal() -> f64 {
        2.0_f64.powi(Self::EXPONENT_MIN + Self::PRECISION - 1)
    }
}

/// A format, and how Rust goes from its bits to its value and back.
macro_rules! number {
    (
        $type:ty, precision: $precision:literal, exponent_min: $exponent_min:literal,
        bits: $bits:ty { largest: $largest:literal, infinity: $infinity:literal, sign: $sign:literal },
        value: $value:expr, exact: $exact:expr
    ) => {
        impl Number for $type {
            const PRECISION: i32 = $precision;
            const EXPONENT_MIN: i32 = $exponent_min;
            const LARGEST_BITS: u32 = $largest;
            const INFINITY_BITS: u32 = $infinity;
            const SIGN_BIT: u32 = $sign;

            fn from_bits(bits: u32) -> $type {
                <$type>::from_bits(bits as $bits)
            }

            fn bits(self) -> u32 {
                u32::from(self.to_bits())
            }

            fn value(self) -> f64 {
                $value(self)
            }

            fn exact(value: f64) -> $type {
                $exact(value)
            }
        }
    };
}

number!(
    f32, precision: 24, exponent_min: -149,
    bits: u32 { largest: 0x7f7f_ffff, infinity: 0x7f80_0000, sign: 0x8000_0000 },
    value: f64::from, exact: |value| value as f32
);
number!(
    f16, precision: 11, exponent_min: -24,
    bits: u16 { largest: 0x7bff, infinity: 0x7c00, sign: 0x8000 },
    value: f16::to_f64, exact: f16::from_f64
);
number!(
    bf16, precision: 8, exponent_min: -133,
    bits: u16 { largest: 0x7f7f, infinity: 0x7f80, sign: 0x8000 },
    value: bf16::to_f64, exact: bf16::from_f64
);

/// `value` rounded to a format of `precision` bits whose smallest number is 2^`exponent_min` and whose largest is `largest`.
fn nearest(value: f64, precision: i32, exponent_min: i32, largest: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    // Distance between neighbouring numbers of the format near `value`. The divisions and products by it are exact.
    let unit = 2.0_f64.powi((exponent(value) - precision + 1).max(exponent_min));
    let rounded = (value / unit).round_ties_even() * unit;
    if rounded.abs() > largest { f64::INFINITY.copysign(value) } else { rounded }
}

/// The exponent of a number that is not zero: 2^exponent ≤ |value| < 2^(exponent + 1).
pub(crate) fn exponent(value: f64) -> i32 {
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i32;
    assert!(exponent != 0 && exponent != 0x7ff, "{value} has no plain exponent");
    exponent - 1023
}

/// The exponent of the lowest bit that is set in a number that is not zero.
pub(crate) fn lowest_bit(value: f64) -> i32 {
    let significand = value.to_bits() & ((1 << 52) - 1) | 1 << 52;
    exponent(value) - 52 + significand.trailing_zeros() as i32
}

/// Calls `$function::<T>(arguments)` for the Rust type of a [`tutti::DType`].
macro_rules! for_dtype {
    ($dtype:expr, $function:path $(, $argument:expr)* $(,)?) => {{
        use $function as function;
        match $dtype {
            tutti::DType::F32 => function::<f32>($($argument),*),
            tutti::DType::F16 => function::<half::f16>($($argument),*),
            tutti::DType::BF16 => function::<half::bf16>($($argument),*),
            other => panic!("the tests do not know the element type {other}"),
        }
    }};
}
pub(crate) use for_dtype;
