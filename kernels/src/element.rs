//! Element types: how a pack of elements becomes numbers to calculate with, and becomes elements again.
//!
//! A new type is one `element!` row here and one row in the kernel table.

use crate::target::{
    ADDS_BF16_PACKS, ADDS_F16_PACKS, PACK_BYTES, add_bf16_packs, add_f16_packs, maximum, maximum_f64, minimum,
    minimum_f64, narrow_bf16, narrow_f8e4m3, narrow_f8e5m2, narrow_f16, widen_f8e4m3, widen_f8e5m2, widen_f16,
};

/// What arithmetic is done in.
pub trait Number: Copy {
    /// What the scale and the finish of a reduction are.
    type Factor: Copy;
    /// The factor that changes nothing.
    const ONE: Self::Factor;
    /// Whether the sources of an average are scaled down, so that their sum does not overflow.
    const SCALES_AVERAGES: bool;
    /// A factor from the bits that the host hands over.
    fn factor(bits: u64) -> Self::Factor;
    /// `self + other`; integers wrap.
    fn add(self, other: Self) -> Self;
    /// `self × other`; integers wrap.
    fn multiply(self, other: Self) -> Self;
    /// The lesser; a NaN if either is one; −0 is less than +0.
    fn minimum(self, other: Self) -> Self;
    /// The greater; a NaN if either is one; −0 is less than +0.
    fn maximum(self, other: Self) -> Self;
    /// `self × factor`; integers wrap.
    fn scaled(self, factor: Self::Factor) -> Self;
}

/// A number whose bits mean something one by one.
pub trait Integer: Number {
    /// The bits that both have.
    fn and(self, other: Self) -> Self;
    /// The bits that either has.
    fn or(self, other: Self) -> Self;
    /// The bits that one of them has.
    fn exclusive_or(self, other: Self) -> Self;
}

macro_rules! float {
    ($float:ident, $minimum:ident, $maximum:ident, factor $factor:expr) => {
        impl Number for $float {
            type Factor = $float;
            const ONE: $float = 1.0;
            const SCALES_AVERAGES: bool = true;

            #[inline(always)]
            fn factor(bits: u64) -> $float {
                $factor(bits)
            }

            #[inline(always)]
            fn add(self, other: $float) -> $float {
                self + other
            }

            #[inline(always)]
            fn multiply(self, other: $float) -> $float {
                self * other
            }

            #[inline(always)]
            fn minimum(self, other: $float) -> $float {
                $minimum(self, other)
            }

            #[inline(always)]
            fn maximum(self, other: $float) -> $float {
                $maximum(self, other)
            }

            #[inline(always)]
            fn scaled(self, factor: $float) -> $float {
                self * factor
            }
        }
    };
}

float!(f32, minimum, maximum, factor |bits: u64| f32::from_bits(bits as u32));
float!(f64, minimum_f64, maximum_f64, factor f64::from_bits);

macro_rules! integers {
    ($($integer:ident)*) => {
        $(
            impl Number for $integer {
                /// What is multiplied by wraps as the product does; what is divided by may be more than the type holds.
                type Factor = u64;
                const ONE: u64 = 1;
                const SCALES_AVERAGES: bool = false;

                #[inline(always)]
                fn factor(bits: u64) -> u64 {
                    bits
                }

                #[inline(always)]
                fn add(self, other: $integer) -> $integer {
                    self.wrapping_add(other)
                }

                #[inline(always)]
                fn multiply(self, other: $integer) -> $integer {
                    self.wrapping_mul(other)
                }

                #[inline(always)]
                fn minimum(self, other: $integer) -> $integer {
                    if other < self { other } else { self }
                }

                #[inline(always)]
                fn maximum(self, other: $integer) -> $integer {
                    if other > self { other } else { self }
                }

                #[inline(always)]
                fn scaled(self, factor: u64) -> $integer {
                    self.wrapping_mul(factor as $integer)
                }
            }

            impl Integer for $integer {
                #[inline(always)]
                fn and(self, other: $integer) -> $integer {
                    self & other
                }

                #[inline(always)]
                fn or(self, other: $integer) -> $integer {
                    self | other
                }

                #[inline(always)]
                fn exclusive_or(self, other: $integer) -> $integer {
                    self ^ other
                }
            }
        )*
    };
}

integers!(i8 u8 i16 u16 i32 u32 i64 u64);

/// An element type, as memory holds it and as arithmetic sees it.
pub trait Element: Copy + 'static {
    /// Bytes of one element.
    const BYTES: usize;
    /// What one element's bits are.
    type Bits: Copy;
    /// What arithmetic is done in.
    type Number: Number;
    /// What arithmetic on packs is done in: the number, or a vector of several.
    type Lanes: Number<Factor = <Self::Number as Number>::Factor>;
    /// The same elements for code that handles them one by one, whatever their packs are.
    type Single: Element<Number = Self::Number>;
    /// Bytes of one pack; at most [`PACK_BYTES`].
    const PACK_BYTES: usize;
    /// That many bytes of elements.
    type Pack: Copy;
    /// Whether a pack is registers for sure, so that there may be a choice of what to do with it.
    const IN_REGISTERS: bool = false;
    /// The numbers of one pack.
    type Wide: Copy;

    /// One element's number; exact.
    fn widen(bits: Self::Bits) -> Self::Number;
    /// The nearest element, ties to even; of those that are finite, where the type is one of 8 bits.
    fn narrow(number: Self::Number) -> Self::Bits;
    /// The last step of an average. Floats: `number × factor`; the average of finite elements is never larger than the largest
    /// of them, so where the product would be infinite that is a rounding error, and the result is the largest element.
    /// Integers: `number ÷ factor`, rounded toward zero; the factor is below 2^31.
    fn finished(number: Self::Number, factor: <Self::Number as Number>::Factor) -> Self::Number;
    /// [`Element::finished`] of what a pack's numbers come in.
    fn finished_lanes(lanes: Self::Lanes, factor: <Self::Number as Number>::Factor) -> Self::Lanes;
    /// [`Element::widen`] of a whole pack.
    fn widen_pack(pack: Self::Pack) -> Self::Wide;
    /// `f` of the numbers of `wide` and their counterparts in the pack.
    fn widen_with(wide: &mut Self::Wide, pack: Self::Pack, f: impl Fn(Self::Lanes, Self::Lanes) -> Self::Lanes);
    /// `f` of the numbers.
    fn map(wide: &mut Self::Wide, f: impl Fn(Self::Lanes) -> Self::Lanes);
    /// [`Element::narrow`] of a whole pack.
    fn narrow_pack(wide: &Self::Wide) -> Self::Pack;
    /// Whether the target adds packs of this type, with the very bits that adding their numbers gives.
    const ADDS_PACKS: bool = false;
    /// The sum of two packs, element by element, if [`Element::ADDS_PACKS`].
    fn add_packs(left: Self::Pack, _right: Self::Pack) -> Self::Pack {
        left
    }
}

// On the host a pack is long, and each function below is one plain loop from memory to a local array or back: that is the
// shape which the compiler turns into vector instructions of whatever width the function is compiled for. On a GPU a pack
// is one 16-byte access, and the loops unroll into registers.
macro_rules! element {
    (
        $(#[$doc:meta])* $name:ident, $bits:ty, $number:ty, $zero:expr, $widen:expr, $narrow:expr, $finished:expr
        $(, adds packs if $adds:expr, by $add:expr)?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Element for $name {
            const BYTES: usize = size_of::<$bits>();
            type Bits = $bits;
            type Number = $number;
            type Lanes = $number;
            type Single = $name;
            const PACK_BYTES: usize = PACK_BYTES;
            type Pack = [$bits; PACK_BYTES / size_of::<$bits>()];
            type Wide = [$number; PACK_BYTES / size_of::<$bits>()];

            #[inline(always)]
            fn widen(bits: $bits) -> $number {
                $widen(bits)
            }

            #[inline(always)]
            fn narrow(number: $number) -> $bits {
                $narrow(number)
            }

            #[inline(always)]
            fn finished(number: $number, factor: <$number as Number>::Factor) -> $number {
                $finished(number, factor)
            }

            #[inline(always)]
            fn finished_lanes(number: $number, factor: <$number as Number>::Factor) -> $number {
                $finished(number, factor)
            }

            #[inline(always)]
            fn widen_pack(pack: Self::Pack) -> Self::Wide {
                let mut wide = [$zero; PACK_BYTES / size_of::<$bits>()];
                for (wide, bits) in wide.iter_mut().zip(&pack) {
                    *wide = $widen(*bits);
                }
                wide
            }

            #[inline(always)]
            fn widen_with(wide: &mut Self::Wide, pack: Self::Pack, f: impl Fn($number, $number) -> $number) {
                for (wide, bits) in wide.iter_mut().zip(&pack) {
                    *wide = f(*wide, $widen(*bits));
                }
            }

            #[inline(always)]
            fn map(wide: &mut Self::Wide, f: impl Fn($number) -> $number) {
                for number in wide {
                    *number = f(*number);
                }
            }

            #[inline(always)]
            fn narrow_pack(wide: &Self::Wide) -> Self::Pack {
                let mut pack: Self::Pack = [0; PACK_BYTES / size_of::<$bits>()];
                for (bits, wide) in pack.iter_mut().zip(wide) {
                    *bits = $narrow(*wide);
                }
                pack
            }

            $(
                const ADDS_PACKS: bool = $adds;

                #[inline(always)]
                fn add_packs(left: Self::Pack, right: Self::Pack) -> Self::Pack {
                    $add(left, right)
                }
            )?
        }
    };
}

/// The last step of an average of floats whose largest is `$largest`.
macro_rules! bounded_product {
    ($float:ty, $largest:expr) => {
        |number: $float, factor: $float| {
            const LARGEST: $float = $largest;
            let product = number * factor;
            let bounded = if product > LARGEST { LARGEST } else { product };
            let bounded = if bounded < -LARGEST { -LARGEST } else { bounded };
            if number.is_infinite() { number } else { bounded }
        }
    };
}

/// The largest finite f16.
pub(crate) const LARGEST_F16: f32 = 65504.0;
/// The largest finite bf16.
pub(crate) const LARGEST_BF16: f32 = f32::from_bits(0x7f7f_0000);
/// The largest e4m3.
pub(crate) const LARGEST_F8E4M3: f32 = 448.0;
/// The largest finite e5m2.
pub(crate) const LARGEST_F8E5M2: f32 = 57344.0;

element!(
    /// IEEE 754 binary32.
    F32,
    u32,
    f32,
    0.0,
    f32::from_bits,
    f32::to_bits,
    bounded_product!(f32, f32::MAX)
);
element!(
    /// IEEE 754 binary64.
    F64,
    u64,
    f64,
    0.0,
    f64::from_bits,
    f64::to_bits,
    bounded_product!(f64, f64::MAX)
);
element!(
    /// IEEE 754 binary16, calculated in f32.
    F16,
    u16,
    f32,
    0.0,
    widen_f16,
    narrow_f16,
    bounded_product!(f32, LARGEST_F16),
    adds packs if ADDS_F16_PACKS, by add_f16_packs
);
element!(
    /// The upper half of a binary32, calculated in f32.
    Bf16,
    u16,
    f32,
    0.0,
    widen_bf16,
    narrow_bf16,
    bounded_product!(f32, LARGEST_BF16),
    adds packs if ADDS_BF16_PACKS, by add_bf16_packs
);
element!(
    /// OCP 8-bit float of 4 exponent bits, calculated in f32.
    F8E4m3,
    u8,
    f32,
    0.0,
    widen_f8e4m3,
    narrow_f8e4m3,
    bounded_product!(f32, LARGEST_F8E4M3)
);
element!(
    /// OCP 8-bit float of 5 exponent bits, calculated in f32.
    F8E5m2,
    u8,
    f32,
    0.0,
    widen_f8e5m2,
    narrow_f8e5m2,
    bounded_product!(f32, LARGEST_F8E5M2)
);

/// Integers, with the type that they are divided in.
macro_rules! integer_elements {
    ($($(#[$doc:meta])* $name:ident $integer:ident in $wide:ident)*) => {
        $(
            element!(
                $(#[$doc])*
                $name,
                $integer,
                $integer,
                0,
                core::convert::identity,
                core::convert::identity,
                |number: $integer, factor: u64| {
                    // Said to be positive, so that the compiler knows that nothing can go wrong.
                    let divisor = if (factor as $wide) < 1 { 1 } else { factor as $wide };
                    (number as $wide / divisor) as $integer
                }
            );
        )*
    };
}

integer_elements! {
    /// Signed, of 8 bits.
    I8 i8 in i32
    /// Unsigned, of 8 bits.
    U8 u8 in u32
    /// Signed, of 16 bits.
    I16 i16 in i32
    /// Unsigned, of 16 bits.
    U16 u16 in u32
    /// Signed, of 32 bits.
    I32 i32 in i32
    /// Unsigned, of 32 bits.
    U32 u32 in u32
    /// Signed, of 64 bits.
    I64 i64 in i64
    /// Unsigned, of 64 bits.
    U64 u64 in u64
}

/// bf16 to f32, exactly.
#[inline(always)]
fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
