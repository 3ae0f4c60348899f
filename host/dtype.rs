//! Element types and reductions, as callers name them.

use std::fmt;
use std::str::FromStr;

/// Declares an enum whose variants have names, and a list of them all.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident, $kind:literal { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
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
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                Self::ALL.iter().copied().find(|one| one.name() == text).ok_or_else(|| UnknownName {
                    kind: $kind,
                    name: text.to_owned(),
                    known: Self::ALL.iter().map(|one| one.name()).collect(),
                })
            }
        }
    };
}

named!(
    /// The type of the elements.
    DType, "element type" {
        /// IEEE 754 binary32.
        F32 = "f32",
        /// IEEE 754 binary16.
        F16 = "f16",
        /// The upper half of a binary32.
        BF16 = "bf16",
    }
);

named!(
    /// How the ranks' elements become one.
    ///
    /// 16-bit floats are widened to f32, reduced there and rounded once per step, to nearest even. NaN propagates through
    /// all of them; −0 is less than +0; subnormals are kept, but for the scaling of averages.
    ///
    /// All ranks end with the same bits, and so does the same call every time, with one exception: where a result is a NaN it is
    /// a NaN on every rank, but its sign and payload may differ between ranks, and from one call to the next.
    Reduction, "reduction" {
        /// The sum.
        Sum = "sum",
        /// The product.
        Prod = "prod",
        /// The minimum.
        Min = "min",
        /// The maximum.
        Max = "max",
        /// The average: each source times 2^−k, k = ⌈log2 N⌉, and the final sum times 2^k / N, so that an average that
        /// can be represented never overflows on the way.
        ///
        /// The price is paid next to zero. Let η be the smallest positive number of the element type (2^−149 for f32, 2^−24
        /// for f16, 2^−133 for bf16). A source whose last bit is worth less than 2^k η may lose up to k bits when it is
        /// scaled; together these losses move the average by at most 2^k η / 2, beside its last rounding, and averages of the
        /// very smallest numbers come out as zero. (Plans that reduce everything in one step do so in f32, and
        /// 16-bit types lose nothing by the scaling.) Of all other sources the scaling is exact.
        Avg = "avg",
    }
);

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }
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
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// A Rust type that tutti can reduce.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Its element type.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for half::f16 {
    const DTYPE: DType = DType::F16;
}

impl Element for half::bf16 {
    const DTYPE: DType = DType::BF16;
}

// The interpreter reads elements through addresses of these sizes.
const _: () = {
    assert!(size_of::<f32>() == DType::F32.bytes());
    assert!(size_of::<half::f16>() == DType::F16.bytes());
    assert!(size_of::<half::bf16>() == DType::BF16.bytes());
};
