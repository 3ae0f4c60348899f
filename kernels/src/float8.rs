//! OCP's 8-bit floats in plain integer arithmetic, where no instruction converts them.
//!
//! Branch-free, so that the compiler can vectorise it. The idea is that of `widen_f16` and `narrow_f16` on the host.

/// e4m3 to f32, exactly. There are no infinities; of the NaNs there is one for each sign.
#[inline(always)]
pub fn widen_f8e4m3(bits: u8) -> f32 {
    let magnitude = u32::from(bits & 0x7f);
    let sign = u32::from(bits & 0x80) << 24;
    let normal = (magnitude << 20) + ((127 - 7) << 23);
    // A multiple of 2^-9, the smallest number.
    let subnormal = (magnitude as i32 as f32 * f32::from_bits((127 - 9) << 23)).to_bits();
    let value = if magnitude < 8 { subnormal } else { normal };
    f32::from_bits(if magnitude == 0x7f { 0x7fc0_0000 } else { value } | sign)
}

/// e5m2 to f32, exactly; a NaN keeps its payload.
#[inline(always)]
pub fn widen_f8e5m2(bits: u8) -> f32 {
    let magnitude = u32::from(bits & 0x7f);
    let sign = u32::from(bits & 0x80) << 24;
    let normal = (magnitude << 21) + ((127 - 15) << 23);
    // A multiple of 2^-16, the smallest number.
    let subnormal = (magnitude as i32 as f32 * f32::from_bits((127 - 16) << 23)).to_bits();
    let value = if magnitude < 4 { subnormal } else { normal };
    // Infinities and NaNs have the largest exponent in f32 too.
    f32::from_bits(if magnitude >= 0x7c { normal + ((128 - 16) << 23) } else { value } | sign)
}

/// f32 to a float of `MANTISSA` mantissa bits, an exponent bias of `BIAS` and the largest finite number `LARGEST`: to nearest
/// even among those that are finite, infinities included; a NaN becomes `NAN`.
#[inline(always)]
fn narrow<const MANTISSA: u32, const BIAS: u32, const LARGEST: u32, const NAN: u32>(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = (bits >> 24) & 0x80;
    let shift = 23 - MANTISSA;
    // Subnormal results are multiples of the smallest number: added to a number whose last bit is worth just that, they are
    // rounded as they should be.
    let magic = (127 + 23 + 1 - BIAS - MANTISSA) << 23;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(magic)).to_bits().wrapping_sub(magic);
    // Half a unit less one, plus the bit that decides ties.
    let odd = (magnitude >> shift) & 1;
    let rounded = magnitude.wrapping_sub((127 - BIAS) << 23).wrapping_add((1 << (shift - 1)) - 1).wrapping_add(odd);
    let normal = rounded >> shift;
    let finite = if normal < LARGEST { normal } else { LARGEST };
    let result = if magnitude < (127 + 1 - BIAS) << 23 { subnormal } else { finite };
    (if magnitude > 0x7f80_0000 { NAN } else { result } | sign) as u8
}

/// f32 to e4m3, to nearest even among the finite numbers; a NaN stays one.
#[inline(always)]
pub fn narrow_f8e4m3(value: f32) -> u8 {
    narrow::<3, 7, 0x7e, 0x7f>(value)
}

/// f32 to e5m2, to nearest even among the finite numbers; a NaN stays one.
#[inline(always)]
pub fn narrow_f8e5m2(value: f32) -> u8 {
    narrow::<2, 15, 0x7b, 0x7f>(value)
}
