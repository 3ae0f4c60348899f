//! Element types: how a pack of elements becomes numbers to calculate with, and becomes elements again.
//!
//! A new type is one `element!` row here and one row in the kernel table.

use crate::target::{
    ADDS_BF16_PACKS, ADDS_F16_PACKS, PACK_BYTES, add_bf16_packs, add_f16_packs, maximum, minimum, narrow_bf16,
    narrow_f16, widen_f16,
};

/// What arithmetic is done in.
pub trait Number: Copy {
    /// `self + other`.
    fn add(self, other: Self) -> Self;
    /// `self × other`.
    fn multiply(self, other: Self) -> Self;
    /// The lesser; a NaN if either is one; −0 is less than +0.
    fn minimum(self, other: Self) -> Self;
    /// The greater; a NaN if either is one; −0 is less than +0.
    fn maximum(self, other: Self) -> Self;
    /// `self × factor`, for the scale and the finish of a reduction.
    fn scaled(self, factor: f32) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn add(self, other: f32) -> f32 {
        self + other
    }

    #[inline(always)]
    fn multiply(self, other: f32) -> f32 {
        self * other
    }

    #[inline(always)]
    fn minimum(self, other: f32) -> f32 {
        minimum(self, other)
    }

    #[inline(always)]
    fn maximum(self, other: f32) -> f32 {
        maximum(self, other)
    }

    #[inline(always)]
    fn scaled(self, factor: f32) -> f32 {
        self * factor
    }
}

/// An element type, as memory holds it and as arithmetic sees it.
pub trait Element: Copy + 'static {
    /// Bytes of one element.
    const BYTES: usize;
    /// What one element's bits are.
    type Bits: Copy;
    /// What arithmetic is done in.
    type Number: Number;
    /// [`PACK_BYTES`] bytes of elements.
    type Pack: Copy;
    /// The numbers of one pack.
    type Wide: Copy;

    /// One element's number; exact.
    fn widen(bits: Self::Bits) -> Self::Number;
    /// The nearest element, ties to even.
    fn narrow(number: Self::Number) -> Self::Bits;
    /// `number × factor`, the last step of an average. The average of finite elements is never larger than the largest of
    /// them, so where the product would be infinite that is a rounding error, and the result is the largest element.
    fn finished(number: Self::Number, factor: f32) -> Self::Number;
    /// [`Element::widen`] of a whole pack.
    fn widen_pack(pack: Self::Pack) -> Self::Wide;
    /// `f` of each number of `wide` and its counterpart in the pack.
    fn widen_with(wide: &mut Self::Wide, pack: Self::Pack, f: impl Fn(Self::Number, Self::Number) -> Self::Number);
    /// `f` of each number.
    fn map(wide: &mut Self::Wide, f: impl Fn(Self::Number) -> Self::Number);
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
        $(#[$doc:meta])* $name:ident, $bits:ty, $number:ty, $zero:expr, $largest:expr, $widen:expr, $narrow:expr
        $(, adds packs if $adds:expr, by $add:expr)?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Element for $name {
            const BYTES: usize = size_of::<$bits>();
            type Bits = $bits;
            type Number = $number;
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
            fn finished(number: $number, factor: f32) -> $number {
                const LARGEST: $number = $largest;
                let product = number.scaled(factor);
                let bounded = if product > LARGEST { LARGEST } else { product };
                let bounded = if bounded < -LARGEST { -LARGEST } else { bounded };
                if number.is_infinite() { number } else { bounded }
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

element!(
    /// IEEE 754 binary32.
    F32,
    u32,
    f32,
    0.0,
    f32::MAX,
    f32::from_bits,
    f32::to_bits
);
element!(
    /// IEEE 754 binary16, calculated in f32.
    F16,
    u16,
    f32,
    0.0,
    65504.0,
    widen_f16,
    narrow_f16,
    adds packs if ADDS_F16_PACKS, by add_f16_packs
);
element!(
    /// The upper half of a binary32, calculated in f32.
    Bf16,
    u16,
    f32,
    0.0,
    f32::from_bits(0x7f7f_0000),
    widen_bf16,
    narrow_bf16,
    adds packs if ADDS_BF16_PACKS, by add_bf16_packs
);

/// bf16 to f32, exactly.
#[inline(always)]
fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
