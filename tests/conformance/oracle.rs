//! What must come out of a reduction: slow and obvious, in f64.
//!
//! Where every order of combining gives the same numbers (minima, maxima, sums and products that stay representable) the
//! answer is exact. For two ranks it is the correctly rounded result, since there is only one operation. Otherwise it is the
//! exact result and how far from it the result may lie.
//!
//! **The bound.** A result over N ranks is made by at most N − 1 operations in f32, each with a relative error of at most
//! v = 2^−24, and by at most N roundings to the element type, each with a relative error of at most u = 2^−precision or, among
//! subnormals, an absolute one of at most half the smallest number η. Every input takes part in at most all of these, so for a
//! sum with A = Σ|x|: |error| ≤ ((1 + u)^N (1 + v)^(N − 1) − 1) A + N η. As (1 + a)^m ≤ 1 + 2 m a while m a ≤ 1, this is at
//! most 2 N (u + v) A + N η. An average of scaled inputs adds a rounding of each scaled input (it is exact above the
//! subnormals), that of the factor 2^k / N and that of the product with it; the factor is below 2, hence
//! 2 (N + 2) (u + v) A / N + 4 (N + 1) η. For a product the relative errors add up to 2 N (u + v) as long as no part of it
//! leaves the range of normal numbers. The rounding errors of f64 here vanish in the factor 2.

use half::{bf16, f16};
use tutti::{DType, Reduction};

use super::number::{Number, exponent, lowest_bit};

/// What one element of a result must be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    /// A NaN, whichever.
    NotANumber,
    /// This, and with this sign if it is zero.
    Exactly(f64),
    /// This, give or take.
    Within(f64, f64),
}

impl Expected {
    /// Whether `came` is right.
    pub(crate) fn accepts<T: Number>(self, came: T) -> bool {
        match self {
            Expected::NotANumber => came.value().is_nan(),
            Expected::Exactly(value) => came.bits() == T::nearest(value).bits() && !came.value().is_nan(),
            Expected::Within(value, error) => (came.value() - value).abs() <= error,
        }
    }
}

/// The reduction of one element of each rank, for any algorithm.
pub(crate) fn reduced<T: Number>(elements: &[T], reduction: Reduction) -> Expected {
    let values = elements.iter().map(|element| element.value());
    if values.clone().any(f64::is_nan) {
        return Expected::NotANumber;
    }
    match reduction {
        Reduction::Min => Expected::Exactly(values.reduce(|a, b| if a.total_cmp(&b).is_le() { a } else { b }).unwrap()),
        Reduction::Max => Expected::Exactly(values.reduce(|a, b| if a.total_cmp(&b).is_ge() { a } else { b }).unwrap()),
        Reduction::Sum => sum::<T>(elements),
        Reduction::Prod => product::<T>(elements),
        Reduction::Avg => average::<T>(elements),
        other => panic!("the oracle does not know the reduction {other}"),
    }
}

/// u + v: the relative error of rounding to f32 and then to the element type.
fn relative_error<T: Number>() -> f64 {
    2.0_f64.powi(-T::PRECISION) + 2.0_f64.powi(-24)
}

/// Whether every sum of some of these, each times 2^−`shift`, is a number of the type, so that none is ever rounded.
fn sums_exactly<T: Number>(elements: &[T], shift: i32) -> bool {
    let magnitudes = || elements.iter().map(|element| element.value().abs()).filter(|value| *value != 0.0);
    let Some(lowest) = magnitudes().map(lowest_bit).min() else { return true };
    let sum: f64 = magnitudes().sum();
    lowest - shift >= T::EXPONENT_MIN
        && sum <= 2.0_f64.powi(lowest + T::PRECISION)
        && sum * 2.0_f64.powi(-shift) <= T::largest()
}

fn sum<T: Number>(elements: &[T]) -> Expected {
    let values = || elements.iter().map(|element| element.value());
    // Starts with the first, since 0 + −0 would lose a sign.
    let sum = values().reduce(|a, b| a + b).unwrap();
    if sum.is_nan() {
        return Expected::NotANumber;
    }
    if sum.is_infinite() || elements.len() <= 2 || sums_exactly(elements, 0) {
        return Expected::Exactly(sum);
    }
    let rank_count = elements.len() as f64;
    let magnitude: f64 = values().map(f64::abs).sum();
    assert!(
        magnitude * 1.5 < T::largest(),
        "a sum of {elements:?} may overflow on the way",
        elements = values().collect::<Vec<_>>()
    );
    Expected::Within(sum, 2.0 * rank_count * relative_error::<T>() * magnitude + rank_count * T::smallest())
}

fn product<T: Number>(elements: &[T]) -> Expected {
    let values = || elements.iter().map(|element| element.value());
    let product = values().reduce(|a, b| a * b).unwrap();
    if product.is_nan() {
        return Expected::NotANumber;
    }
    // The parts may be multiplied in any order; with a zero or an infinity there is nothing to round that matters, as long as
    // the other factors alone stay in range.
    if elements.len() <= 2 {
        // Products of bf16 that are subnormal even in f32 are rounded there first; for all others this changes nothing.
        return Expected::Exactly(f32::nearest(product).value());
    }
    let finite = || values().filter(|value| *value != 0.0 && value.is_finite());
    let binades_of = |value: f64| {
        let below = exponent(value);
        let above = if lowest_bit(value) == below { below } else { below + 1 };
        below.abs().max(above.abs())
    };
    let binades: i32 = finite().map(binades_of).sum();
    let narrowest = exponent(T::largest()).min(-exponent(T::smallest_normal()));
    assert!(binades < narrowest, "a product of {:?} may leave the range on the way", values().collect::<Vec<_>>());
    let significant_bits: i32 = finite().map(|value| exponent(value) - lowest_bit(value) + 1).sum();
    if product == 0.0 || product.is_infinite() || significant_bits <= T::PRECISION {
        return Expected::Exactly(product);
    }
    Expected::Within(product, 2.0 * elements.len() as f64 * relative_error::<T>() * product.abs())
}

fn average<T: Number>(elements: &[T]) -> Expected {
    let values = || elements.iter().map(|element| element.value());
    let sum = values().reduce(|a, b| a + b).unwrap();
    if sum.is_nan() {
        return Expected::NotANumber;
    }
    if sum.is_infinite() {
        return Expected::Exactly(sum);
    }
    let (rank_count, average) = (elements.len() as f64, sum / elements.len() as f64);
    let shift = elements.len().next_power_of_two().trailing_zeros() as i32;
    let scales_exactly = values().filter(|value| *value != 0.0).all(|value| {
        lowest_bit(value) - shift >= T::EXPONENT_MIN || value.abs() >= T::smallest_normal() * 2.0_f64.powi(shift)
    });
    let one_rounding = elements.len() <= 2 && scales_exactly;
    let no_rounding = elements.len().is_power_of_two() && scales_exactly && sums_exactly(elements, shift);
    let zeros = values().all(|value| value == 0.0);
    if zeros || one_rounding || no_rounding {
        return Expected::Exactly(average);
    }
    let magnitude: f64 = values().map(f64::abs).sum::<f64>() / rank_count;
    let error = 2.0 * (rank_count + 2.0) * relative_error::<T>() * magnitude + 4.0 * (rank_count + 1.0) * T::smallest();
    Expected::Within(average, error)
}

/// The bits of a reduction in rank order with one rounding at the end, as direct and one-shot plans do it: in f32, which has
/// room for every element type. Not for NaNs.
pub(crate) fn in_rank_order<T: Number>(elements: &[T], reduction: Reduction) -> u32 {
    let power = elements.len().next_power_of_two() as f32;
    let (scale, finish) =
        if reduction == Reduction::Avg { (1.0 / power, power / elements.len() as f32) } else { (1.0, 1.0) };
    let result = elements.iter().map(|element| element.value() as f32 * scale).reduce(|a, b| match reduction {
        Reduction::Prod => a * b,
        Reduction::Min => {
            if a.total_cmp(&b).is_le() {
                a
            } else {
                b
            }
        }
        Reduction::Max => {
            if a.total_cmp(&b).is_ge() {
                a
            } else {
                b
            }
        }
        _ => a + b,
    });
    let (sum, largest) = (result.unwrap(), T::largest() as f32);
    // An average of finite numbers is finite: it is the rounding of the factor, if anything, that goes beyond.
    let result =
        if reduction == Reduction::Avg && sum.is_finite() { (sum * finish).clamp(-largest, largest) } else { sum };
    T::nearest(f64::from(result)).bits()
}

/// The Rust types are those that the library says they are.
#[test]
fn the_oracles_types_are_the_librarys() {
    fn check<T: Number>(dtype: DType) {
        assert_eq!(T::DTYPE, dtype);
        assert_eq!(size_of::<T>(), dtype.bytes());
        assert_eq!(T::nearest(T::largest() * 1.01).bits(), T::INFINITY_BITS);
        assert_eq!(T::exact(T::smallest()).bits(), 1);
        assert_eq!(T::exact(T::smallest_normal()).value(), T::smallest_normal());
        assert_eq!(T::nearest(T::smallest() / 2.0).bits(), 0);
        assert_eq!(T::nearest(-T::smallest() * 0.75).bits(), T::SIGN_BIT | 1);
    }
    check::<f32>(DType::F32);
    check::<f16>(DType::F16);
    check::<bf16>(DType::BF16);
}
