//! What must come out of a reduction: slow and obvious, of floats in f64, of integers in i128 (where there is nothing to round).
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
//! leaves the range of normal numbers. A scaled sum is like an average without the finish: 2 (N + 2) (u + v) A + 4 (N + 1) η,
//! where A is of the scaled inputs. The rounding errors of f64 here vanish in the factor 2; for elements that are f64 themselves,
//! where v is u, they count as another v.

use tutti::{DType, Reduction};

use super::number::{Format, Number, exponent, lowest_bit};

/// What one element of a result must be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    /// A NaN, whichever.
    NotANumber,
    /// This, and with this sign if it is zero.
    Exactly(f64),
    /// This, give or take.
    Within(f64, f64),
    /// This integer, modulo two to the number of its bits.
    Whole(i128),
}

impl Expected {
    /// Whether `came` is right.
    pub(crate) fn accepts(self, came: Number) -> bool {
        let format = came.format;
        match self {
            Expected::NotANumber => came.value().is_nan(),
            Expected::Exactly(value) => came.bits() == format.nearest(value).bits() && !came.value().is_nan(),
            Expected::Within(value, error) => (came.value() - value).abs() <= error,
            Expected::Whole(value) => came.bits() == format.wrapped(value).bits(),
        }
    }
}

/// The reduction of one element of each rank, for any algorithm; of a scaled sum with this scale.
pub(crate) fn reduced(elements: &[Number], reduction: Reduction, scale: f64) -> Expected {
    let format = elements[0].format;
    if format.dtype.is_integer() {
        return Expected::Whole(whole(elements, reduction, scale as i128));
    }
    let values = elements.iter().map(|element| element.value());
    if values.clone().any(f64::is_nan) {
        return Expected::NotANumber;
    }
    match reduction {
        Reduction::Min => Expected::Exactly(values.reduce(|a, b| if a.total_cmp(&b).is_le() { a } else { b }).unwrap()),
        Reduction::Max => Expected::Exactly(values.reduce(|a, b| if a.total_cmp(&b).is_ge() { a } else { b }).unwrap()),
        Reduction::Sum => sum(format, &values.collect::<Vec<_>>()),
        Reduction::Prod => product(elements),
        Reduction::Avg => average(elements),
        Reduction::ScaledSum => scaled_sum(format, &values.map(|value| value * scale).collect::<Vec<_>>()),
        other => panic!("the oracle does not know the reduction {other} of floats"),
    }
}

/// A reduction of integers; modulo two to the number of their bits it is what must come out.
fn whole(elements: &[Number], reduction: Reduction, scale: i128) -> i128 {
    let format = elements[0].format;
    let values = elements.iter().map(|element| element.whole());
    match reduction {
        Reduction::Sum => values.sum(),
        Reduction::Prod => values.reduce(|a, b| format.wrapped(a.wrapping_mul(b)).whole()).unwrap(),
        Reduction::Min => values.min().unwrap(),
        Reduction::Max => values.max().unwrap(),
        // What is divided is the wrapped sum; Rust rounds toward zero.
        Reduction::Avg => format.wrapped(values.sum()).whole() / elements.len() as i128,
        Reduction::ScaledSum => values.map(|value| value.wrapping_mul(scale)).fold(0, i128::wrapping_add),
        Reduction::Band => values.reduce(|a, b| a & b).unwrap(),
        Reduction::Bor => values.reduce(|a, b| a | b).unwrap(),
        Reduction::Bxor => values.reduce(|a, b| a ^ b).unwrap(),
        other => panic!("the oracle does not know the reduction {other}"),
    }
}

/// u + v: the relative error of rounding to f32 and then to the element type.
fn relative_error(format: &Format) -> f64 {
    if format.dtype == DType::F64 {
        4.0 * 2.0_f64.powi(-53)
    } else {
        2.0_f64.powi(-format.precision) + 2.0_f64.powi(-24)
    }
}

/// Whether every sum of some of these, each times 2^−`shift`, is a number of the type, so that none is ever rounded.
fn sums_exactly(format: &'static Format, values: &[f64], shift: i32) -> bool {
    let magnitudes = || values.iter().map(|value| value.abs()).filter(|value| *value != 0.0);
    let Some(lowest) = magnitudes().map(lowest_bit).min() else { return true };
    let sum: f64 = magnitudes().sum();
    lowest - shift >= format.exponent_min
        && sum <= 2.0_f64.powi(lowest + format.precision)
        && sum * 2.0_f64.powi(-shift) <= format.largest()
}

fn sum(format: &'static Format, values: &[f64]) -> Expected {
    // Starts with the first, since 0 + −0 would lose a sign.
    let sum = values.iter().copied().reduce(|a, b| a + b).unwrap();
    if sum.is_nan() {
        return Expected::NotANumber;
    }
    if sum.is_infinite() || values.len() <= 2 || sums_exactly(format, values, 0) {
        return Expected::Exactly(sum);
    }
    let rank_count = values.len() as f64;
    let magnitude: f64 = values.iter().map(|value| value.abs()).sum();
    assert!(magnitude * 1.5 < format.largest(), "a sum of {values:?} may overflow on the way");
    Expected::Within(sum, 2.0 * rank_count * relative_error(format) * magnitude + rank_count * format.smallest())
}

/// The sum of what was scaled already: exactly, or as f64 rounds it.
fn scaled_sum(format: &'static Format, values: &[f64]) -> Expected {
    // Where each is a number of the type, it makes no difference whether it is scaled on its way or before.
    if values.iter().all(|value| !value.is_finite() || format.nearest(*value).value() == *value) {
        return sum(format, values);
    }
    let sum: f64 = values.iter().sum();
    if !sum.is_finite() {
        return if sum.is_nan() { Expected::NotANumber } else { Expected::Exactly(sum) };
    }
    let (rank_count, magnitude) = (values.len() as f64, values.iter().map(|value| value.abs()).sum::<f64>());
    if magnitude * 1.5 >= format.largest() {
        // It is one operation at most after the scaling: what is beyond the range is, whatever is rounded before.
        assert!(values.len() <= 2, "a scaled sum of {values:?} may overflow on the way");
    }
    let error =
        2.0 * (rank_count + 2.0) * relative_error(format) * magnitude + 4.0 * (rank_count + 1.0) * format.smallest();
    Expected::Within(sum, error)
}

fn product(elements: &[Number]) -> Expected {
    let format = elements[0].format;
    let values = || elements.iter().map(|element| element.value());
    let product = values().reduce(|a, b| a * b).unwrap();
    if product.is_nan() {
        return Expected::NotANumber;
    }
    // The parts may be multiplied in any order; with a zero or an infinity there is nothing to round that matters, as long as
    // the other factors alone stay in range.
    if elements.len() <= 2 {
        // Products of bf16 that are subnormal even in f32 are rounded there first; for all others this changes nothing.
        let wide = if format.dtype == DType::F64 { product } else { Format::of(DType::F32).nearest(product).value() };
        return Expected::Exactly(wide);
    }
    let finite = || values().filter(|value| *value != 0.0 && value.is_finite());
    let binades_of = |value: f64| {
        let below = exponent(value);
        let above = if lowest_bit(value) == below { below } else { below + 1 };
        below.abs().max(above.abs())
    };
    let binades: i32 = finite().map(binades_of).sum();
    let narrowest = exponent(format.largest()).min(-exponent(format.smallest_normal()));
    assert!(binades < narrowest, "a product of {:?} may leave the range on the way", values().collect::<Vec<_>>());
    let significant_bits: i32 = finite().map(|value| exponent(value) - lowest_bit(value) + 1).sum();
    if product == 0.0 || product.is_infinite() || significant_bits <= format.precision {
        return Expected::Exactly(product);
    }
    Expected::Within(product, 2.0 * elements.len() as f64 * relative_error(format) * product.abs())
}

fn average(elements: &[Number]) -> Expected {
    let format = elements[0].format;
    let values = || elements.iter().map(|element| element.value());
    let sum = values().reduce(|a, b| a + b).unwrap();
    if sum.is_nan() {
        return Expected::NotANumber;
    }
    if sum.is_infinite() && values().any(f64::is_infinite) {
        return Expected::Exactly(sum);
    }
    let rank_count = elements.len() as f64;
    // The sum of the largest f64 is beyond f64, that of their parts is not.
    let average = if sum.is_infinite() { values().map(|value| value / rank_count).sum() } else { sum / rank_count };
    let shift = elements.len().next_power_of_two().trailing_zeros() as i32;
    let scales_exactly = values().filter(|value| *value != 0.0).all(|value| {
        lowest_bit(value) - shift >= format.exponent_min
            || value.abs() >= format.smallest_normal() * 2.0_f64.powi(shift)
    });
    let one_rounding = elements.len() <= 2 && scales_exactly;
    let no_rounding = elements.len().is_power_of_two()
        && scales_exactly
        && sums_exactly(format, &values().collect::<Vec<_>>(), shift);
    let zeros = values().all(|value| value == 0.0);
    if zeros || one_rounding || no_rounding {
        return Expected::Exactly(average);
    }
    let magnitude: f64 = values().map(|value| value.abs() / rank_count).sum();
    let error =
        2.0 * (rank_count + 2.0) * relative_error(format) * magnitude + 4.0 * (rank_count + 1.0) * format.smallest();
    Expected::Within(average, error)
}

/// What elements are scaled or finished by: a value of their own arithmetic, or a whole number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Factor {
    /// Of floats: multiplied by.
    Float(f64),
    /// Of integers: what sources are multiplied by, and results divided by.
    Whole(u64),
}

impl Factor {
    fn float(self) -> f64 {
        if let Factor::Float(value) = self { value } else { panic!("{self:?} is no factor of floats") }
    }

    fn whole(self) -> i128 {
        if let Factor::Whole(value) = self { value.into() } else { panic!("{self:?} is no factor of integers") }
    }
}

/// What one step does: it reduces in this order, with these factors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) reduction: Reduction,
    /// What marked sources are multiplied by; of a reduction that scales.
    pub(crate) scale: Factor,
    /// What the result is finished by, if it is; of an average.
    pub(crate) finish: Option<Factor>,
}

impl Step {
    /// Whether marked sources are scaled at all: those of scaled sums, and of averages of floats.
    pub(crate) fn scales(&self, format: &Format) -> bool {
        self.reduction == Reduction::ScaledSum || (self.reduction == Reduction::Avg && !format.dtype.is_integer())
    }

    /// Whether the elements of one source, marked or not, travel as they are.
    pub(crate) fn copies(&self, format: &Format, is_marked: bool) -> bool {
        !(self.scales(format) && is_marked || self.reduction == Reduction::Avg && self.finish.is_some())
    }

    /// The bits that come of one element of each source, of which those are marked; which NaN is not said, unless it is copied.
    /// Floats are calculated in f32 (f64 in f64), each operation rounded to it, and rounded once to their type at the end.
    pub(crate) fn bits(&self, elements: &[Number], marks: &[bool]) -> u64 {
        let format = elements[0].format;
        if elements.len() == 1 && self.copies(format, marks[0]) {
            return elements[0].bits();
        }
        if format.dtype.is_integer() {
            return self.whole(elements, marks);
        }
        // An operation of two numbers of f32 that is rounded to f64 and then to f32 is rounded as one that is rounded once:
        // f64 has more than twice the digits.
        let rounded = |value: f64| if format.dtype == DType::F64 { value } else { f64::from(value as f32) };
        let scales = self.scales(format);
        let values = elements.iter().zip(marks).map(|(element, is_marked)| {
            if scales && *is_marked { rounded(element.value() * self.scale.float()) } else { element.value() }
        });
        let combined = values.reduce(|a, b| match self.reduction {
            Reduction::Prod => rounded(a * b),
            Reduction::Min | Reduction::Max if a.is_nan() || b.is_nan() => f64::NAN,
            Reduction::Min if a.total_cmp(&b).is_gt() => b,
            Reduction::Max if a.total_cmp(&b).is_lt() => b,
            Reduction::Min | Reduction::Max => a,
            _ => rounded(a + b),
        });
        let (sum, largest) = (combined.expect("there is a source"), format.largest());
        if self.reduction != Reduction::Avg || !sum.is_finite() {
            return format.nearest(sum).bits();
        }
        // An average of finite numbers is finite: it is the rounding of the factor, if anything, that goes beyond.
        let finished = rounded(sum * self.finish.map_or(1.0, Factor::float));
        format.nearest(finished.clamp(-largest, largest)).bits()
    }

    fn whole(&self, elements: &[Number], marks: &[bool]) -> u64 {
        let format = elements[0].format;
        let scales = self.scales(format);
        let scaled = elements.iter().zip(marks).map(|(element, is_marked)| {
            let factor = if scales && *is_marked { self.scale.whole() } else { 1 };
            format.wrapped(element.whole().wrapping_mul(factor))
        });
        let scaled: Vec<Number> = scaled.collect();
        let reduction = if self.reduction == Reduction::Avg { Reduction::Sum } else { self.reduction };
        let result = format.wrapped(whole(&scaled, reduction, 1));
        // Rust rounds toward zero.
        let divisor = if self.reduction == Reduction::Avg { self.finish.map_or(1, Factor::whole) } else { 1 };
        format.wrapped(result.whole() / divisor).bits()
    }
}

/// The bits of a reduction in rank order with one rounding at the end, as direct and one-shot plans do it. Not for NaNs.
pub(crate) fn in_rank_order(elements: &[Number], reduction: Reduction, scale: f64) -> u64 {
    let format = elements[0].format;
    let power = elements.len().next_power_of_two() as f64;
    let exact_in = |value: f64| if format.dtype == DType::F64 { value } else { f64::from(value as f32) };
    let (scale, finish) = match (format.dtype.is_integer(), reduction) {
        (true, Reduction::Avg) => (Factor::Whole(1), Some(Factor::Whole(elements.len() as u64))),
        (true, _) => (Factor::Whole(scale as i128 as u64), None),
        (false, Reduction::Avg) => {
            (Factor::Float(1.0 / power), Some(Factor::Float(exact_in(power / elements.len() as f64))))
        }
        (false, _) => (Factor::Float(exact_in(scale)), None),
    };
    Step { reduction, scale, finish }.bits(elements, &vec![true; elements.len()])
}

/// The Rust types are those that the library says they are.
#[test]
fn the_oracles_types_are_the_librarys() {
    fn check(dtype: DType) {
        let format = Format::of(dtype);
        assert_eq!(format.sign_bit, 1 << (8 * dtype.bytes() - 1));
        if dtype.is_integer() {
            let least = if dtype.is_signed() { -i128::from(format.sign_bit) } else { 0 };
            assert_eq!(format.number(format.largest_bits.wrapping_add(1)).whole(), least);
            assert_eq!(format.number(format.largest_bits).whole(), (1 << format.precision) - 1);
            return;
        }
        let beyond = format.nearest(format.largest() * 1.5).value();
        assert!(if format.saturates { beyond == format.largest() } else { beyond == f64::INFINITY }, "{dtype}");
        assert!(format.nan_bits.iter().all(|bits| format.number(*bits).is_nan()), "{dtype}");
        for bits in (0..=0xff).map(|bits| bits * (format.sign_bit >> 7)) {
            let number = format.number(bits);
            let is_infinite_and_saturates = format.saturates && number.value().is_infinite();
            assert!(
                number.is_nan() || is_infinite_and_saturates || format.exact(number.value()).bits() == bits,
                "{dtype}: {bits:#x}"
            );
        }
        assert_eq!(format.exact(format.smallest()).bits(), 1);
        assert_eq!(exponent(format.smallest()), format.exponent_min);
        assert_eq!(exponent(format.smallest_normal()), format.exponent_min + format.precision - 1);
        assert_eq!(format.exact(format.smallest_normal()).value(), format.smallest_normal());
        if dtype != DType::F64 {
            assert_eq!(format.nearest(format.smallest() / 2.0).bits(), 0);
            assert_eq!(format.nearest(-format.smallest() * 0.75).bits(), format.sign_bit | 1);
        }
    }
    DType::ALL.iter().copied().for_each(check);
}
