//! Elements for tests of kernels, and what their steps are scaled and finished by.

use tutti::{DType, Reduction};

use super::number::{Format, Number};
use super::oracle::{Factor, Step};
use super::replay::{Random, mix};

/// Bits at the borders of what a format can say: zero, the smallest and largest subnormal, the smallest normal number, one and its
/// neighbours, the largest and what is above it (infinity, where there is one), NaNs. Signs come on top of them.
pub(crate) fn borders(format: &'static Format) -> Vec<u64> {
    let one = format.exact(1.0).bits();
    let largest = format.largest_bits;
    if format.dtype.is_integer() {
        return vec![0, 1, 2, largest - 1, largest, largest / 2, largest / 3, format.sign_bit >> 1];
    }
    let smallest_normal = format.exact(format.smallest_normal()).bits();
    let mut borders = vec![0, 1, 2, smallest_normal - 1, smallest_normal, smallest_normal + 1, one - 1, one, one + 1];
    borders.extend([largest - 1, largest, largest + 1]);
    borders.extend(format.nan_bits);
    borders
}

/// An element: one of any bits, one at the border of the format, or, more often than not, one of no extreme size.
pub(crate) fn any_number(format: &'static Format, random: u64) -> Number {
    let (choice, bits) = (random >> 60, mix(random));
    let sign = if bits >> 63 == 1 { format.sign_bit } else { 0 };
    match choice {
        0..2 => format.number(bits),
        2..5 => {
            let borders = borders(format);
            format.number(borders[bits as usize % borders.len()] ^ sign)
        }
        _ if format.dtype.is_integer() => format.wrapped((bits % 201) as i128 - 100),
        _ => {
            let binade = (bits >> 56 & 7) as i32 - 4;
            let fraction = (bits % (1 << (format.precision - 1))) as f64 / 2.0_f64.powi(format.precision - 1);
            format.number(format.exact((1.0 + fraction) * 2.0_f64.powi(binade)).bits() ^ sign)
        }
    }
}

/// So many of them.
pub(crate) fn numbers(format: &'static Format, salt: u64, count: usize) -> Vec<Number> {
    let mut random = Random(salt);
    (0..count).map(|_| any_number(format, random.next())).collect()
}

/// As memory holds them.
pub(crate) fn bytes_of(numbers: &[Number]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.bits().to_le_bytes().into_iter().take(number.format.dtype.bytes()))
        .collect()
}

/// What memory holds.
pub(crate) fn bits_of(format: &'static Format, bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(format.dtype.bytes()).map(|bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    })
}

/// Compares what came with what was expected: where that is a NaN, any will do, unless it is to be copied.
pub(crate) fn compare(
    format: &'static Format,
    came: &[u8],
    expected: &[u64],
    is_copy: bool,
    what: &str,
) -> Result<(), String> {
    for (index, (came, expected)) in bits_of(format, came).zip(expected).enumerate() {
        let are_nan = !is_copy && format.number(came).is_nan() && format.number(*expected).is_nan();
        if came != *expected && !are_nan {
            return Err(format!("{what}: element {index}: expected {expected:#x}, came {came:#x}"));
        }
    }
    Ok(())
}

/// What a step of that reduction scales and finishes by: an average's factors for some number of ranks, or any others.
pub(crate) fn factors(dtype: DType, reduction: Reduction, is_finished: bool, random: u64) -> Step {
    let ranks = 1 + random % 12;
    let (scale, finish) = if dtype.is_integer() {
        let divisor = if random & 1 << 40 == 0 { ranks } else { 1 + (random >> 8 & 0x7fff_fffe) };
        (Factor::Whole(mix(random)), Factor::Whole(divisor))
    } else {
        let exact = |value: f64| if dtype == DType::F64 { value } else { f64::from(value as f32) };
        let power = ranks.next_power_of_two() as f64;
        let scale =
            if reduction == Reduction::Avg { 1.0 / power } else { [0.75, -2.0, 1e-3, 300.0][random as usize >> 8 & 3] };
        (Factor::Float(exact(scale)), Factor::Float(exact(power / ranks as f64)))
    };
    Step { reduction, scale, finish: is_finished.then_some(finish) }
}

/// A factor as calls hold it.
pub(crate) fn factor_bits(dtype: DType, factor: Factor) -> u64 {
    match factor {
        Factor::Whole(number) => number,
        Factor::Float(value) if dtype == DType::F64 => value.to_bits(),
        Factor::Float(value) => (value as f32).to_bits().into(),
    }
}
