//! Packs of floats in vector registers, for the instruction sets that the compiler needs to be told about.
//!
//! A plain loop over numbers becomes vector instructions by itself as long as the numbers are the elements. Where elements are
//! narrower than their numbers it does not: no loop in Rust becomes the instruction that widens an f16, and what it makes of the
//! arithmetic that stands for it goes through memory at every step. So here a pack is a few registers: elements of two
//! vectors of numbers are loaded, widened, reduced, narrowed and stored without a detour. What is done is written once, over
//! [`Vector`]; an instruction set brings the vector and the few instructions that it asks for.
//!
//! The bits are those that the numbers one by one give, but for the sign and the payload of NaNs.
//!
//! **Invariant.** The types here promise that the processor has their instructions: nothing but the row for an instruction set
//! (`table`) names them, and nothing makes a value of them anywhere else. All functions are inlined into the row, which
//! is compiled for these instructions; on their own they are not.

pub(crate) mod avx2;
pub(crate) mod avx512;

use core::marker::PhantomData;

use crate::element::{
    Bf16, Element, F8E4m3, F8E5m2, F16, F32, F64, I8, I16, I32, I64, LARGEST_BF16, LARGEST_F8E4M3, LARGEST_F8E5M2,
    LARGEST_F16, Number, U8, U16, U32, U64,
};

/// Several f32s, which are calculated with together. Functions that say "bits" see each as the u32 of its bits.
///
/// The lower half of the bits of a NaN is zero where it comes from arithmetic on such numbers (factors included, which are made
/// so): an instruction passes on an operand's NaN or makes one of its own, 0xffc00000.
pub(crate) trait Vector: Number<Factor = f32> + 'static {
    /// As many elements of 16 bits.
    type Halves: Copy;
    /// As many elements of 8 bits.
    type Quarters: Copy;
    /// A choice for each number.
    type Mask: Copy;

    /// All of them with these bits.
    fn splat(bits: u32) -> Self;
    /// The bits that both have.
    fn and(self, other: Self) -> Self;
    /// The bits that either has.
    fn or(self, other: Self) -> Self;
    /// The sum of the bits.
    fn add_bits(self, other: Self) -> Self;
    /// The difference of the bits.
    fn subtract_bits(self, other: Self) -> Self;
    /// The lesser bits.
    fn lesser_bits(self, other: Self) -> Self;
    /// The bits, so many places up.
    fn shift_left(self, places: i32) -> Self;
    /// The bits, so many places down.
    fn shift_right(self, places: i32) -> Self;
    /// The sums of the halves of the bits; 0xffff where one is more.
    fn add_halves_saturating(self, other: Self) -> Self;
    /// The upper halves of the bits, those of `odd` above those of `even`.
    fn upper_halves(even: Self, odd: Self) -> Self;
    /// The lower halves of the bits, those of `odd` above those of `even`.
    fn lower_halves(even: Self, odd: Self) -> Self;
    /// Which are NaNs.
    fn is_nan(self) -> Self::Mask;
    /// Which have lesser bits, all of them being below 2^31.
    fn is_below(self, other: Self) -> Self::Mask;
    /// `chosen` where the mask says so, else `other`.
    fn select(mask: Self::Mask, chosen: Self, other: Self) -> Self;
    /// Nothing above `largest` nor below its negative; NaNs stay.
    fn bounded(self, largest: f32) -> Self;

    /// f16 to f32, exactly.
    fn from_f16(halves: Self::Halves) -> Self;
    /// f32 to f16, to nearest even; overflow gives infinity, a NaN stays one.
    fn to_f16(self) -> Self::Halves;
    /// Bytes, as signed numbers of 16 bits, so many places up and without the bits that are not in the mask.
    fn spread(quarters: Self::Quarters, places: i32, mask: u16) -> Self::Halves;
    /// The lowest byte of each; the others are zero.
    fn low_bytes(self) -> Self::Quarters;
}

/// An element type whose numbers come in vectors.
pub(crate) trait InVectors<V: Vector>: Element<Number = f32> {
    /// The elements of two vectors.
    type Unit: Copy;
    /// The largest element that is finite.
    const LARGEST: f32;

    /// [`Element::widen`] of each.
    fn widen_unit(unit: Self::Unit) -> [V; 2];
    /// [`Element::narrow`] of each.
    fn narrow_unit(numbers: [V; 2]) -> Self::Unit;
}

/// Elements of the type `E` with packs of `UNITS` units, as many as leave registers to work with.
pub(crate) struct InPacks<E, V, const UNITS: usize>(PhantomData<(E, V)>);

impl<E, V, const UNITS: usize> Clone for InPacks<E, V, UNITS> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<E, V, const UNITS: usize> Copy for InPacks<E, V, UNITS> {}

impl<E: InVectors<V>, V: Vector, const UNITS: usize> Element for InPacks<E, V, UNITS> {
    const BYTES: usize = E::BYTES;
    type Bits = E::Bits;
    type Number = f32;
    type Lanes = V;
    type Single = E;
    const PACK_BYTES: usize = size_of::<Self::Pack>();
    type Pack = [E::Unit; UNITS];
    const IN_REGISTERS: bool = true;
    type Wide = [[V; 2]; UNITS];

    #[inline(always)]
    fn widen(bits: E::Bits) -> f32 {
        E::widen(bits)
    }

    #[inline(always)]
    fn narrow(number: f32) -> E::Bits {
        E::narrow(number)
    }

    #[inline(always)]
    fn finished(number: f32, factor: f32) -> f32 {
        E::finished(number, factor)
    }

    #[inline(always)]
    fn finished_lanes(lanes: V, factor: f32) -> V {
        // Infinities (and NaNs, which are no less good) stay.
        let is_finite = magnitude(lanes).is_below(V::splat(INFINITY));
        V::select(is_finite, lanes.scaled(factor).bounded(E::LARGEST), lanes)
    }

    #[inline(always)]
    fn widen_pack(pack: Self::Pack) -> Self::Wide {
        const { assert!(UNITS == 2 || UNITS == 4) };
        let mut wide = [[V::splat(0); 2]; UNITS];
        unrolled!(0 1 2 3, UNIT < UNITS => { wide[UNIT] = E::widen_unit(pack[UNIT]) });
        wide
    }

    #[inline(always)]
    fn widen_with(wide: &mut Self::Wide, pack: Self::Pack, f: impl Fn(V, V) -> V) {
        unrolled!(0 1 2 3, UNIT < UNITS => {
            let ([left, right], [with_left, with_right]) = (wide[UNIT], E::widen_unit(pack[UNIT]));
            wide[UNIT] = [f(left, with_left), f(right, with_right)];
        });
    }

    #[inline(always)]
    fn map(wide: &mut Self::Wide, f: impl Fn(V) -> V) {
        unrolled!(0 1 2 3, UNIT < UNITS => {
            let [left, right] = wide[UNIT];
            wide[UNIT] = [f(left), f(right)];
        });
    }

    #[inline(always)]
    fn narrow_pack(wide: &Self::Wide) -> Self::Pack {
        let mut pack = [E::narrow_unit(wide[0]); UNITS];
        unrolled!(1 2 3, UNIT < UNITS => { pack[UNIT] = E::narrow_unit(wide[UNIT]) });
        pack
    }
}

/// The bits of infinity.
const INFINITY: u32 = 0x7f80_0000;

/// The factor, with the one NaN that vectors may be multiplied by.
#[inline(always)]
fn plain_nan(factor: f32) -> f32 {
    if factor.is_nan() { f32::NAN } else { factor }
}

/// The numbers without their signs.
#[inline(always)]
fn magnitude<V: Vector>(numbers: V) -> V {
    numbers.and(V::splat(0x7fff_ffff))
}

impl<V: Vector> InVectors<V> for F32 {
    type Unit = [V; 2];
    const LARGEST: f32 = f32::MAX;

    #[inline(always)]
    fn widen_unit(unit: [V; 2]) -> [V; 2] {
        unit
    }

    #[inline(always)]
    fn narrow_unit(numbers: [V; 2]) -> [V; 2] {
        numbers
    }
}

impl<V: Vector> InVectors<V> for F16 {
    type Unit = [V::Halves; 2];
    const LARGEST: f32 = LARGEST_F16;

    #[inline(always)]
    fn widen_unit(unit: Self::Unit) -> [V; 2] {
        [V::from_f16(unit[0]), V::from_f16(unit[1])]
    }

    #[inline(always)]
    fn narrow_unit(numbers: [V; 2]) -> Self::Unit {
        [numbers[0].to_f16(), numbers[1].to_f16()]
    }
}

/// The upper half of each word is the upper half of a number already, and the lower half becomes that of another one by a
/// shift: so a unit is a whole vector, and its numbers are those of the even elements and those of the odd ones.
impl<V: Vector> InVectors<V> for Bf16 {
    type Unit = V;
    const LARGEST: f32 = LARGEST_BF16;

    #[inline(always)]
    fn widen_unit(unit: V) -> [V; 2] {
        [unit.shift_left(16), unit.and(V::splat(0xffff_0000))]
    }

    #[inline(always)]
    fn narrow_unit(numbers: [V; 2]) -> V {
        // Half a unit is added, which rounds to the nearest; where that leaves nothing in the lower half it was a tie, and
        // the odd of its two neighbours becomes the even one. In a NaN it does not reach the upper half, since the lower one
        // is zero (see `Vector`).
        let half = V::splat(0x8000);
        let (even, odd) = (numbers[0].add_bits(half), numbers[1].add_bits(half));
        // All ones, but for the last bit where a half is zero.
        let evens = V::lower_halves(even, odd).add_halves_saturating(V::splat(0xfffe_fffe));
        V::upper_halves(even, odd).and(evens)
    }
}

/// An e4m3 with its exponent and mantissa moved to where an f16 has them is 2^8 times smaller. What would be the largest of them
/// is the NaN.
#[inline(always)]
fn widen_f8e4m3<V: Vector>(quarters: V::Quarters) -> V {
    let numbers = V::from_f16(V::spread(quarters, 7, 0xbfff)).scaled(256.0);
    let is_number = magnitude(numbers).is_below(V::splat(480.0_f32.to_bits()));
    V::select(is_number, numbers, numbers.or(V::splat(0x7fc0_0000)))
}

impl<V: Vector> InVectors<V> for F8E4m3 {
    type Unit = [V::Quarters; 2];
    const LARGEST: f32 = LARGEST_F8E4M3;

    #[inline(always)]
    fn widen_unit(unit: Self::Unit) -> [V; 2] {
        [widen_f8e4m3(unit[0]), widen_f8e4m3(unit[1])]
    }

    #[inline(always)]
    fn narrow_unit(numbers: [V; 2]) -> Self::Unit {
        [narrow::<V, 3, 7, 0x7e, 0x7f>(numbers[0]), narrow::<V, 3, 7, 0x7e, 0x7f>(numbers[1])]
    }
}

/// An e5m2 is the upper byte of an f16.
impl<V: Vector> InVectors<V> for F8E5m2 {
    type Unit = [V::Quarters; 2];
    const LARGEST: f32 = LARGEST_F8E5M2;

    #[inline(always)]
    fn widen_unit(unit: Self::Unit) -> [V; 2] {
        [V::from_f16(V::spread(unit[0], 8, 0xff00)), V::from_f16(V::spread(unit[1], 8, 0xff00))]
    }

    #[inline(always)]
    fn narrow_unit(numbers: [V; 2]) -> Self::Unit {
        [narrow::<V, 2, 15, 0x7b, 0x7f>(numbers[0]), narrow::<V, 2, 15, 0x7b, 0x7f>(numbers[1])]
    }
}

/// As `float8::narrow`, which says why.
#[inline(always)]
fn narrow<V: Vector, const MANTISSA: u32, const BIAS: u32, const LARGEST: u32, const NAN: u32>(
    numbers: V,
) -> V::Quarters {
    let shift = 23 - MANTISSA;
    let magnitude = magnitude(numbers);
    let sign = numbers.shift_right(24).and(V::splat(0x80));
    let magic = V::splat((127 + 23 + 1 - BIAS - MANTISSA) << 23);
    let subnormal = magnitude.add(magic).subtract_bits(magic);
    let odd = magnitude.shift_right(shift as i32).and(V::splat(1));
    let rebias = V::splat(((1 << (shift - 1)) - 1_u32).wrapping_sub((127 - BIAS) << 23));
    let normal = magnitude.add_bits(odd).add_bits(rebias).shift_right(shift as i32);
    let finite = normal.lesser_bits(V::splat(LARGEST));
    let is_subnormal = magnitude.is_below(V::splat((127 + 1 - BIAS) << 23));
    let result = V::select(is_subnormal, subnormal, finite);
    V::select(numbers.is_nan(), V::splat(NAN), result).or(sign).low_bytes()
}

/// An element type with its packs for each instruction set: its own ones where the compiler makes vectors of them.
pub(crate) trait Vectored: Element {
    /// In AVX2.
    type Avx2: Element<Number = Self::Number>;
    /// In AVX-512.
    type Avx512: Element<Number = Self::Number>;
}

macro_rules! vectored {
    ($($name:ident, $avx2:ty, $avx512:ty;)*) => {
        $(
            impl Vectored for $name {
                type Avx2 = $avx2;
                type Avx512 = $avx512;
            }
        )*
    };
    ($($name:ident)*) => {
        vectored!($($name, $name, $name;)*);
    };
}

vectored! {
    F32, InPacks<F32, avx2::F32x8, 4>, InPacks<F32, avx512::F32x16, 2>;
    F16, InPacks<F16, avx2::F32x8, 4>, InPacks<F16, avx512::F32x16, 4>;
    Bf16, InPacks<Bf16, avx2::F32x8, 4>, InPacks<Bf16, avx512::F32x16, 4>;
    F8E4m3, InPacks<F8E4m3, avx2::F32x8, 4>, InPacks<F8E4m3, avx512::F32x16, 4>;
    F8E5m2, InPacks<F8E5m2, avx2::F32x8, 4>, InPacks<F8E5m2, avx512::F32x16, 4>;
}
vectored!(F64 I8 U8 I16 U16 I32 U32 I64 U64);
