//! The element types as the tests see them: bits, exact values in f64, whole ones in i128. Tests know types only at run time,
//! so that each is compiled once; only calls are made with the Rust types.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use tutti::DType;

/// An element type whose values and rounding are spelled out. What is said of floats means nothing for integers.
pub(crate) struct Format {
    pub(crate) dtype: DType,
    /// Bits of the significand, the hidden one included; of integers, bits below the sign.
    pub(crate) precision: i32,
    /// The smallest positive number is 2 to this power.
    pub(crate) exponent_min: i32,
    /// The bits of the largest finite number.
    pub(crate) largest_bits: u64,
    /// The bits of a quiet NaN, and of another one where there is one.
    pub(crate) nan_bits: [u64; 2],
    /// Whether what is too large becomes the largest number rather than infinity.
    pub(crate) saturates: bool,
    /// The bit that is the sign, or would be.
    pub(crate) sign_bit: u64,
    value: fn(u64) -> f64,
    exact: fn(f64) -> u64,
}

/// An element: its bits, and what they mean.
#[derive(Clone, Copy)]
pub(crate) struct Number {
    bits: u64,
    pub(crate) format: &'static Format,
}

impl Number {
    /// Its bits.
    pub(crate) fn bits(self) -> u64 {
        self.bits
    }

    /// Its value, exactly (that of an integer of 64 bits, nearly).
    pub(crate) fn value(self) -> f64 {
        (self.format.value)(self.bits)
    }

    /// Whether it is a NaN.
    pub(crate) fn is_nan(self) -> bool {
        !self.format.dtype.is_integer() && self.value().is_nan()
    }

    /// The value of an integer.
    pub(crate) fn whole(self) -> i128 {
        let (bits, sign_bit) = (i128::from(self.bits), i128::from(self.format.sign_bit));
        if self.format.dtype.is_signed() && bits & sign_bit != 0 { bits - 2 * sign_bit } else { bits }
    }
}

impl Format {
    /// That of an element type.
    pub(crate) fn of(dtype: DType) -> &'static Format {
        FORMATS.iter().find(|format| format.dtype == dtype).unwrap_or_else(|| panic!("the tests do not know {dtype}"))
    }

    /// From bits, of which there are as many as the type has; others are ignored.
    pub(crate) fn number(&'static self, bits: u64) -> Number {
        Number { bits: bits & (self.sign_bit | (self.sign_bit - 1)), format: self }
    }

    /// The number whose value this is; it must be one.
    pub(crate) fn exact(&'static self, value: f64) -> Number {
        self.number((self.exact)(value))
    }

    /// The nearest number, ties to even.
    pub(crate) fn nearest(&'static self, value: f64) -> Number {
        if self.dtype == DType::F64 {
            return self.exact(value);
        }
        let beyond = if self.saturates { self.largest() } else { f64::INFINITY };
        self.exact(nearest(value, self.precision, self.exponent_min, self.largest(), beyond))
    }

    /// The integer that is this number modulo two to the number of its bits.
    pub(crate) fn wrapped(&'static self, value: i128) -> Number {
        self.number(value as u64)
    }

    /// The largest finite value.
    pub(crate) fn largest(&'static self) -> f64 {
        self.number(self.largest_bits).value()
    }

    /// The smallest positive value.
    pub(crate) fn smallest(&'static self) -> f64 {
        self.number(1).value()
    }

    /// The smallest positive value with full precision.
    pub(crate) fn smallest_normal(&'static self) -> f64 {
        self.number(1 << (self.precision - 1)).value()
    }
}

/// A floating-point format: precision, the power of two that is the smallest number, whether it saturates; the bits of the
/// largest number, of NaNs and of the sign; how Rust goes from bits to a value and back.
macro_rules! float {
    (
        $dtype:ident, $precision:literal, $exponent_min:literal, $saturates:literal,
        $largest:literal, $nans:expr, $sign:literal, $value:expr, $exact:expr
    ) => {
        Format {
            dtype: DType::$dtype,
            precision: $precision,
            exponent_min: $exponent_min,
            largest_bits: $largest,
            nan_bits: $nans,
            saturates: $saturates,
            sign_bit: $sign,
            value: $value,
            exact: $exact,
        }
    };
}

/// The format of an integer.
macro_rules! integer {
    ($dtype:ident, $type:ty, $precision:literal) => {
        Format {
            dtype: DType::$dtype,
            precision: $precision,
            exponent_min: 0,
            largest_bits: <$type>::MAX as u64,
            nan_bits: [0; 2],
            saturates: false,
            sign_bit: 1 << (<$type>::BITS - 1),
            value: |bits| bits as $type as f64,
            exact: |value| value as $type as u64,
        }
    };
}

static FORMATS: [Format; 14] = [
    float!(
        F32,
        24,
        -149,
        false,
        0x7f7f_ffff,
        [0x7fc0_0005, 0x7f80_0001],
        0x8000_0000,
        |bits| f32::from_bits(bits as u32).into(),
        |value| (value as f32).to_bits().into()
    ),
    float!(
        F64,
        53,
        -1074,
        false,
        0x7fef_ffff_ffff_ffff,
        [0x7ff8_0000_0000_0005, 0x7ff0_0000_0000_0001],
        0x8000_0000_0000_0000,
        f64::from_bits,
        f64::to_bits
    ),
    float!(
        F16,
        11,
        -24,
        false,
        0x7bff,
        [0x7e05, 0x7c01],
        0x8000,
        |bits| f16::from_bits(bits as u16).to_f64(),
        |value| f16::from_f64(value).to_bits().into()
    ),
    float!(
        BF16,
        8,
        -133,
        false,
        0x7f7f,
        [0x7fc5, 0x7f81],
        0x8000,
        |bits| bf16::from_bits(bits as u16).to_f64(),
        |value| bf16::from_f64(value).to_bits().into()
    ),
    float!(
        F8E4M3,
        4,
        -9,
        true,
        0x7e,
        [0x7f, 0x7f],
        0x80,
        |bits| value_of_eight_bits(bits as u8, 3, 7, 0x7f, 0x80),
        |value| F8E4M3::from_f64(value).to_bits().into()
    ),
    float!(
        F8E5M2,
        3,
        -16,
        true,
        0x7b,
        [0x7f, 0x7d],
        0x80,
        |bits| value_of_eight_bits(bits as u8, 2, 15, 0x7d, 0x7c),
        |value| F8E5M2::from_f64(value).to_bits().into()
    ),
    integer!(I8, i8, 7),
    integer!(U8, u8, 8),
    integer!(I16, i16, 15),
    integer!(U16, u16, 16),
    integer!(I32, i32, 31),
    integer!(U32, u32, 32),
    integer!(I64, i64, 63),
    integer!(U64, u64, 64),
];

/// The value of a float of 8 bits, of which so many are the mantissa's, from the definition of the format: the least magnitude
/// that is a NaN, and the one that is infinity.
fn value_of_eight_bits(bits: u8, mantissa_bits: i32, bias: i32, nan: u8, infinity: u8) -> f64 {
    let magnitude = bits & 0x7f;
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    if magnitude == infinity {
        return sign * f64::INFINITY;
    }
    if magnitude >= nan {
        return f64::NAN;
    }
    let (exponent, mantissa) =
        (i32::from(magnitude) >> mantissa_bits, i32::from(magnitude) & ((1 << mantissa_bits) - 1));
    let (significand, exponent) =
        if exponent == 0 { (mantissa, 1) } else { (mantissa + (1 << mantissa_bits), exponent) };
    sign * f64::from(significand) * 2.0_f64.powi(exponent - bias - mantissa_bits)
}

/// `value` rounded to a format of `precision` bits whose smallest number is 2^`exponent_min` and whose largest is `largest`;
/// above that lies what is `beyond`.
fn nearest(value: f64, precision: i32, exponent_min: i32, largest: f64, beyond: f64) -> f64 {
    if value == 0.0 || value.is_nan() {
        return value;
    }
    if value.is_infinite() {
        return beyond.copysign(value);
    }
    // Distance between neighbouring numbers of the format near `value`. The divisions and products by it are exact.
    let unit = 2.0_f64.powi((exponent(value) - precision + 1).max(exponent_min));
    let rounded = (value / unit).round_ties_even() * unit;
    if rounded.abs() > largest { beyond.copysign(value) } else { rounded }
}

/// The exponent of a number that is not zero: 2^exponent ≤ |value| < 2^(exponent + 1).
pub(crate) fn exponent(value: f64) -> i32 {
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i32;
    assert!(value != 0.0 && exponent != 0x7ff, "{value} has no exponent");
    // Subnormal numbers are as many binades lower as they lack leading bits.
    if exponent == 0 { 63 - (value.to_bits() << 1 >> 1).leading_zeros() as i32 - 1074 } else { exponent - 1023 }
}

/// The exponent of the lowest bit that is set in a number that is not zero.
pub(crate) fn lowest_bit(value: f64) -> i32 {
    let fraction = value.to_bits() & ((1 << 52) - 1);
    if value.to_bits() >> 52 & 0x7ff == 0 {
        return fraction.trailing_zeros() as i32 - 1074;
    }
    exponent(value) - 52 + (fraction | 1 << 52).trailing_zeros() as i32
}
