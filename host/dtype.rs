//! Element types, reductions and scales, as callers name them. The types and reductions themselves come from the kernel table.

use std::fmt;
use std::str::FromStr;

/// Declares an enum whose variants have names, and a list of them all.
macro_rules! named {
    (
        $(#[$doc:meta])* $name:ident, $kind:literal {
            $($(#[$variant_doc:meta])* $variant:ident = $text:literal $(| $other:literal)*,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them, in the order of the kernel table.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// Its name in lower case, as in the command line and in errors.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }

            /// Other names that it is found by.
            pub const fn aliases(self) -> &'static [&'static str] {
                match self {
                    $($name::$variant => &[$($other),*],)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                let is_one = |one: &Self| one.name() == text || one.aliases().contains(&text);
                Self::ALL.iter().copied().find(is_one).ok_or_else(|| UnknownName {
                    kind: $kind,
                    name: text.to_owned(),
                    known: Self::ALL.iter().map(|one| one.name()).collect(),
                })
            }
        }
    };
}

/// A name that is none of those known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    kind: &'static str,
    name: String,
    known: Vec<&'static str>,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} {:?}: expected one of {}", self.kind, self.name, self.known.join(", "))
    }
}

impl std::error::Error for UnknownName {}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that tutti can reduce.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Its element type.
    const DTYPE: DType;
}

include!(concat!(env!("OUT_DIR"), "/types.rs"));

impl Reduction {
    /// Its row of the kernel table.
    pub(crate) fn row(self) -> &'static tutti_codegen::Reduction {
        &tutti_codegen::REDUCTIONS[self as usize]
    }
}

impl DType {
    /// Its row of the kernel table.
    pub(crate) fn row(self) -> &'static tutti_codegen::DType {
        &tutti_codegen::DTYPES[self as usize]
    }

    /// The reductions that its elements offer.
    pub fn reductions(self) -> impl Iterator<Item = Reduction> + Clone {
        Reduction::ALL.iter().copied().filter(move |reduction| self.offers(*reduction))
    }

    /// Whether a scaled sum of its elements takes this scale.
    pub fn takes(self, scale: impl Into<Scale>) -> bool {
        scale.into().bits(self).is_ok()
    }

    /// What is wrong with a reduction that its elements do not offer, if they do not: which reductions they offer, and which
    /// types offer the reduction.
    pub(crate) fn refusal(self, reduction: Reduction) -> Option<Refusal> {
        if self.offers(reduction) {
            return None;
        }
        let list = |names: Vec<&str>| names.join(", ");
        let reductions = list(self.reductions().map(Reduction::name).collect());
        let offering = DType::ALL.iter().filter(|dtype| dtype.offers(reduction));
        let dtypes = list(offering.map(|dtype| dtype.name()).collect());
        Some(Refusal {
            expected: format!("one of {reductions} for {self}, or for {reduction} elements of {dtypes}"),
            came: format!("{reduction} of {self}"),
        })
    }
}

/// See [`DType::refusal`].
pub(crate) struct Refusal {
    pub(crate) expected: String,
    pub(crate) came: String,
}

/// What a [scaled sum](Reduction::ScaledSum) multiplies each source by: a number, of any type.
///
/// Elements of up to 32 bits that are floats take it as the nearest f32, f64 as an f64; whole numbers beyond what these count
/// exactly are rounded. Integers take only whole numbers that their type holds, and their products wrap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale(ScaleValue);

#[derive(Clone, Copy, Debug, PartialEq)]
enum ScaleValue {
    Float(f64),
    Integer(i128),
}

macro_rules! scale {
    ($variant:ident: $($number:ty)*) => {
        $(
            impl From<$number> for Scale {
                fn from(number: $number) -> Scale {
                    Scale(ScaleValue::$variant(number.into()))
                }
            }
        )*
    };
}
scale!(Float: f32 f64);
scale!(Integer: i8 u8 i16 u16 i32 u32 i64 u64);

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ScaleValue::Float(value) => write!(f, "{value:?}"),
            ScaleValue::Integer(value) => write!(f, "{value}"),
        }
    }
}

impl Scale {
    /// As the kernels of an element type take it; or what the type would have taken.
    pub(crate) fn bits(self, dtype: DType) -> Result<u64, String> {
        if !dtype.is_integer() {
            let bits = match (self.0, dtype) {
                (ScaleValue::Float(value), DType::F64) => value.to_bits(),
                (ScaleValue::Integer(value), DType::F64) => (value as f64).to_bits(),
                (ScaleValue::Float(value), _) => u64::from((value as f32).to_bits()),
                (ScaleValue::Integer(value), _) => u64::from((value as f32).to_bits()),
            };
            return Ok(bits);
        }
        let bits = 8 * dtype.bytes() as u32;
        let (least, most) =
            if dtype.is_signed() { (-1 << (bits - 1), (1 << (bits - 1)) - 1) } else { (0, (1_i128 << bits) - 1) };
        let whole = match self.0 {
            ScaleValue::Integer(value) => Some(value),
            // Larger ones than an i128 holds become its largest, which no type holds.
            ScaleValue::Float(value) => (value.trunc() == value).then_some(value as i128),
        };
        match whole.filter(|value| (least..=most).contains(value)) {
            Some(value) => Ok(value as u64),
            None => Err(format!("a whole number from {least} to {most} for {dtype}")),
        }
    }

    /// What [`Scale::bits`] were made of.
    pub(crate) fn of_bits(bits: u64, dtype: DType) -> Scale {
        Scale(match dtype {
            DType::F64 => ScaleValue::Float(f64::from_bits(bits)),
            _ if !dtype.is_integer() => ScaleValue::Float(f32::from_bits(bits as u32).into()),
            _ if dtype.is_signed() => ScaleValue::Integer((bits as i64).into()),
            _ => ScaleValue::Integer(bits.into()),
        })
    }
}

/// What the sources of an average of `rank_count` elements are multiplied by, and what the result is finished by, as the
/// kernels take them. Floats: 2^−k and 2^k / N, k = ⌈log2 N⌉. Integers: nothing, and N, which they divide by.
pub(crate) fn average_factors(dtype: DType, rank_count: usize) -> (u64, u64) {
    let power = rank_count.next_power_of_two();
    match dtype {
        DType::F64 => ((1.0 / power as f64).to_bits(), (power as f64 / rank_count as f64).to_bits()),
        _ if dtype.is_integer() => (1, rank_count as u64),
        _ => {
            let (scale, finish) = (1.0 / power as f32, power as f32 / rank_count as f32);
            (scale.to_bits().into(), finish.to_bits().into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_types_places_are_those_of_the_kernel_table() {
        for (place, (dtype, row)) in DType::ALL.iter().zip(tutti_codegen::DTYPES).enumerate() {
            assert_eq!((*dtype as usize, dtype.name(), dtype.bytes()), (place, row.name, row.bytes as usize));
        }
        for (place, (reduction, row)) in Reduction::ALL.iter().zip(tutti_codegen::REDUCTIONS).enumerate() {
            assert_eq!((*reduction as usize, reduction.name()), (place, row.name));
        }
        assert_eq!(
            (DType::ALL.len(), Reduction::ALL.len()),
            (tutti_codegen::DTYPES.len(), tutti_codegen::REDUCTIONS.len())
        );
    }

    #[test]
    fn types_and_reductions_are_found_by_every_name_and_unknown_ones_are_told_what_there_is() {
        for (text, dtype) in
            [("bf16", DType::BF16), ("bfloat16", DType::BF16), ("int8", DType::I8), ("double", DType::F64)]
        {
            assert_eq!(text.parse(), Ok(dtype));
        }
        assert_eq!("mulsum".parse(), Ok(Reduction::ScaledSum));
        let error = "i4".parse::<DType>().unwrap_err().to_string();
        assert!(error.contains("\"i4\"") && error.contains("f32, f64, f16"), "{error}");
    }

    #[test]
    fn floats_offer_no_bitwise_reduction_and_integers_all() {
        for dtype in DType::ALL {
            for reduction in Reduction::ALL {
                let is_bitwise = matches!(reduction, Reduction::Band | Reduction::Bor | Reduction::Bxor);
                assert_eq!(dtype.offers(*reduction), dtype.is_integer() || !is_bitwise, "{reduction} of {dtype}");
                assert_eq!(dtype.refusal(*reduction).is_none(), dtype.offers(*reduction));
            }
        }
        let refusal = DType::F16.refusal(Reduction::Bxor).unwrap();
        assert!(
            refusal.expected.starts_with("one of sum, prod, min, max, avg, scaled_sum for f16"),
            "{}",
            refusal.expected
        );
        assert!(
            refusal.expected.ends_with("for bxor elements of i8, u8, i16, u16, i32, u32, i64, u64"),
            "{}",
            refusal.expected
        );
    }

    #[test]
    fn scales_are_taken_as_the_type_holds_them() {
        for dtype in DType::ALL {
            for scale in [Scale::from(2), Scale::from(2.0)] {
                let bits = scale.bits(*dtype).unwrap();
                assert!(
                    matches!(Scale::of_bits(bits, *dtype).0, ScaleValue::Float(2.0) | ScaleValue::Integer(2)),
                    "{dtype}"
                );
            }
            assert_eq!(Scale::from(0.5).bits(*dtype).is_ok(), !dtype.is_integer(), "{dtype}");
            assert_eq!(Scale::from(f64::NAN).bits(*dtype).is_ok(), !dtype.is_integer(), "{dtype}");
        }
        assert_eq!(Scale::from(-128).bits(DType::I8), Ok(-128_i64 as u64));
        assert_eq!(Scale::from(-128.0).bits(DType::I8), Ok(-128_i64 as u64));
        assert_eq!(Scale::from(128).bits(DType::I8).unwrap_err(), "a whole number from -128 to 127 for i8");
        assert_eq!(
            Scale::from(-1).bits(DType::U64).unwrap_err(),
            "a whole number from 0 to 18446744073709551615 for u64"
        );
        assert!(Scale::from(1e30).bits(DType::I64).is_err() && Scale::from(f64::INFINITY).bits(DType::U64).is_err());
        assert_eq!(Scale::from(0.1).bits(DType::F16), Ok(u64::from(0.1_f32.to_bits())));
        assert_eq!(Scale::from(0.1).bits(DType::F64), Ok(0.1_f64.to_bits()));
        assert_eq!(Scale::of_bits(-3_i64 as u64, DType::I16).to_string(), "-3");
        assert_eq!(Scale::of_bits(0.25_f64.to_bits(), DType::F64).to_string(), "0.25");
    }
}
