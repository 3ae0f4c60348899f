//! Inputs whose reduction is known exactly before it is made, whatever the order in which it is made.
//!
//! The idea is that of nccl-tests' `verifiable`: choose the inputs so that no partial result of any order is ever rounded.
//! - *sum*: whole numbers of both signs whose magnitudes, summed over all ranks, stay within what the type counts exactly.
//! - *prod*: powers of two of both signs whose exponents, summed over all ranks, stay within the type's normal range.
//! - *min*, *max*: any numbers, with infinities and zeros of both signs (−0 < +0), but no NaN, which has no exact bits.
//! - *avg*: those of *sum*. Each is scaled by 2^−k, k = ⌈log2 N⌉, which is exact; so is their sum; and the finish, a
//!   multiplication by 2^k/N in f32 (of f64 in f64) and one rounding to the type, happens once and is repeated here.
//! - *scaled_sum*: those of *sum*, scaled by a half (integers by three).
//! - Integers, in every reduction: any bits at all, since they wrap.
//! - Collectives that only copy: any bits at all, NaNs with their payloads.
//!
//! Values depend on the rank and on the index. They repeat after [`PERIOD`] elements, a prime, so that making and checking
//! them costs about as much as copying, while a block that lands at another place, which is off by a power of two or by a
//! count, does not look right there.
//!
//! Results are compared bit by bit.

use bytemuck::Pod;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use tutti::{DType, Element, Reduction};

/// After how many elements the values repeat: a prime.
pub(crate) const PERIOD: usize = 8191;

/// What the checks need to know of an element type. Of integers they need no more than bits.
pub(crate) trait Number: Element + Pod {
    /// Whole numbers up to two to this power are exact.
    const WHOLE_BITS: u32;
    /// Two to this power, and its inverse, are normal numbers.
    const EXPONENT_MAX: i32;
    fn of_f64(value: f64) -> Self;
    fn of_bits(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn as_f64(self) -> f64;

    /// The value of an integer.
    fn whole(self) -> i128 {
        let (bits, width) = (i128::from(self.bits()), 8 * size_of::<Self>());
        if Self::DTYPE.is_signed() && bits >> (width - 1) == 1 { bits - (1 << width) } else { bits }
    }
}

macro_rules! float {
    ($type:ty, bits $bits:ty, whole $whole_bits:literal, exponent $exponent_max:literal, $of_f64:expr, $as_f64:expr) => {
        impl Number for $type {
            const WHOLE_BITS: u32 = $whole_bits;
            const EXPONENT_MAX: i32 = $exponent_max;
            fn of_f64(value: f64) -> $type {
                $of_f64(value)
            }
            fn of_bits(bits: u64) -> $type {
                <$type>::from_bits(bits as $bits)
            }
            fn bits(self) -> u64 {
                self.to_bits().into()
            }
            fn as_f64(self) -> f64 {
                $as_f64(self)
            }
        }
    };
}

float!(f32, bits u32, whole 24, exponent 126, |value| value as f32, f64::from);
float!(f64, bits u64, whole 53, exponent 1022, f64::from, f64::from);
float!(f16, bits u16, whole 11, exponent 14, f16::from_f64, f16::to_f64);
float!(bf16, bits u16, whole 8, exponent 126, bf16::from_f64, bf16::to_f64);
float!(F8E4M3, bits u8, whole 4, exponent 6, F8E4M3::from_f64, |number: F8E4M3| f64::from(number.to_f32()));
float!(F8E5M2, bits u8, whole 3, exponent 14, F8E5M2::from_f64, |number: F8E5M2| f64::from(number.to_f32()));

macro_rules! integers {
    ($($type:ty)*) => {
        $(
            impl Number for $type {
                const WHOLE_BITS: u32 = <$type>::BITS - 1;
                const EXPONENT_MAX: i32 = 0;
                fn of_f64(value: f64) -> $type {
                    value as $type
                }
                fn of_bits(bits: u64) -> $type {
                    bits as $type
                }
                fn bits(self) -> u64 {
                    self as u64 & (u64::MAX >> (64 - <$type>::BITS))
                }
                fn as_f64(self) -> f64 {
                    self as f64
                }
            }
        )*
    };
}

integers!(i8 u8 i16 u16 i32 u32 i64 u64);

/// What scaled sums are scaled by.
pub(crate) fn scale_of(dtype: DType) -> f64 {
    if dtype.is_integer() { 3.0 } else { 0.5 }
}

/// The inputs of all ranks, and their reduction if they are reduced.
pub(crate) struct Inputs<T> {
    /// By rank; one period each.
    ranks: Vec<Vec<T>>,
    /// One period; empty for collectives that only copy.
    reduced: Vec<T>,
}

impl<T: Number> Inputs<T> {
    /// Inputs for `rank_count` ranks that are reduced, or only copied.
    pub(crate) fn new(reduction: Option<Reduction>, rank_count: usize) -> Inputs<T> {
        let value = |rank, index| Self::value(reduction, rank_count, rank, index);
        let ranks: Vec<Vec<T>> =
            (0..rank_count).map(|rank| (0..PERIOD).map(|index| value(rank, index)).collect()).collect();
        let reduced = match reduction {
            None => Vec::new(),
            Some(reduction) => (0..PERIOD)
                .map(|index| Self::reduce(reduction, rank_count, ranks.iter().map(|values| values[index])))
                .collect(),
        };
        Inputs { ranks, reduced }
    }

    fn value(reduction: Option<Reduction>, rank_count: usize, rank: usize, index: usize) -> T {
        let random = mix(((rank as u64) << 32) | index as u64);
        // Small types take the bits that are mixed best, large ones all.
        let any = T::of_bits(random.rotate_right(16));
        if T::DTYPE.is_integer() {
            return any;
        }
        match reduction {
            None => any,
            Some(Reduction::Sum | Reduction::Avg | Reduction::ScaledSum) => {
                let magnitude = share(1 << T::WHOLE_BITS, rank_count, rank, index);
                let value = (random % (2 * magnitude + 1)) as i64 - magnitude as i64;
                // 8-bit floats have room above, and little below, where averages and scaled sums go.
                T::of_f64(value as f64 * if T::WHOLE_BITS <= 4 { 4.0 } else { 1.0 })
            }
            Some(Reduction::Prod) => {
                let magnitude = share(T::EXPONENT_MAX as u64, rank_count, rank, index);
                let exponent = (random % (2 * magnitude + 1)) as i32 - magnitude as i32;
                let sign = if random >> 63 == 0 { 1.0 } else { -1.0 };
                T::of_f64(sign * 2_f64.powi(exponent))
            }
            Some(_) => match (random >> 48) % 16 {
                // Zeros of both signs meet often enough to be compared with each other.
                0..6 => T::of_f64(if random & 1 == 0 { 0.0 } else { -0.0 }),
                // Nor are the infinities of 8-bit floats results of anything.
                _ if any.as_f64().is_nan() || (T::WHOLE_BITS <= 4 && any.as_f64().is_infinite()) => T::of_f64(1.0),
                _ => any,
            },
        }
    }

    fn reduce(reduction: Reduction, rank_count: usize, values: impl Iterator<Item = T>) -> T {
        if T::DTYPE.is_integer() {
            return Self::reduce_whole(reduction, rank_count, values.map(Number::whole));
        }
        let values = values.map(Number::as_f64);
        // Every partial result is exact in f64, and the final one is exact in the type, but for the average's finish.
        match reduction {
            Reduction::Sum => T::of_f64(values.sum::<f64>() + 0.0),
            Reduction::ScaledSum => T::of_f64(values.sum::<f64>() * scale_of(T::DTYPE) + 0.0),
            Reduction::Prod => T::of_f64(values.product()),
            Reduction::Min => T::of_f64(values.min_by(f64::total_cmp).unwrap_or(0.0)),
            Reduction::Max => T::of_f64(values.max_by(f64::total_cmp).unwrap_or(0.0)),
            Reduction::Avg => {
                let power = f64::from(rank_count.next_power_of_two() as u32);
                let scaled = (values.sum::<f64>() + 0.0) / power;
                let finish = power / rank_count as f64;
                T::of_f64(match T::DTYPE {
                    DType::F64 => scaled * finish,
                    _ => (scaled as f32 * finish as f32).into(),
                })
            }
            _ => T::of_f64(0.0),
        }
    }

    fn reduce_whole(reduction: Reduction, rank_count: usize, values: impl Iterator<Item = i128>) -> T {
        let wrapped = |value: i128| T::of_bits(value as u64);
        let reduced = match reduction {
            Reduction::Sum => Some(values.sum()),
            Reduction::ScaledSum => Some(values.sum::<i128>() * scale_of(T::DTYPE) as i128),
            Reduction::Prod => values.reduce(|left, right| wrapped(left.wrapping_mul(right)).whole()),
            Reduction::Min => values.min(),
            Reduction::Max => values.max(),
            Reduction::Avg => Some(wrapped(values.sum()).whole() / rank_count as i128),
            Reduction::Band => values.reduce(|left, right| left & right),
            Reduction::Bor => values.reduce(|left, right| left | right),
            Reduction::Bxor => values.reduce(|left, right| left ^ right),
            _ => None,
        };
        wrapped(reduced.unwrap_or(0))
    }

    /// Writes the elements `first ..` of a rank's input.
    pub(crate) fn fill(&self, rank: usize, first: usize, elements: &mut [T]) {
        for (place, values) in runs(first, elements.len()) {
            let length = values.len();
            elements[place..place + length].copy_from_slice(&self.ranks[rank][values]);
        }
    }

    /// How many of these differ from the elements `first ..` of a rank's input.
    pub(crate) fn count_unlike_input(&self, rank: usize, first: usize, elements: &[T]) -> u64 {
        count_unlike(&self.ranks[rank], first, elements)
    }

    /// How many of these differ from the elements `first ..` of the reduction.
    pub(crate) fn count_unlike_reduced(&self, first: usize, elements: &[T]) -> u64 {
        count_unlike(&self.reduced, first, elements)
    }
}

fn count_unlike<T: Number>(period: &[T], first: usize, elements: &[T]) -> u64 {
    let mut count = 0;
    for (place, values) in runs(first, elements.len()) {
        let (expected, got) = (&period[values.clone()], &elements[place..place + values.len()]);
        // Almost always equal, and comparing memory is much faster than counting.
        if bytemuck::cast_slice::<T, u8>(expected) != bytemuck::cast_slice::<T, u8>(got) {
            count += expected.iter().zip(got).filter(|(expected, got)| expected.bits() != got.bits()).count() as u64;
        }
    }
    count
}

/// Cuts `first .. first + length` where the values repeat: places in the buffer, and the piece of the period there.
fn runs(first: usize, length: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let mut place = 0;
    std::iter::from_fn(move || {
        let start = (first % PERIOD + place) % PERIOD;
        let run = (PERIOD - start).min(length - place);
        let item = (place, start..start + run);
        place += run;
        (run > 0).then_some(item)
    })
}

/// What one rank may take of a budget that all ranks together must not exceed, at one index.
///
/// Where there is less than one for each rank, every `period`-th rank gets one, and other ranks at other indices.
fn share(budget: u64, rank_count: usize, rank: usize, index: usize) -> u64 {
    let each = budget / rank_count as u64;
    if each > 0 {
        return each;
    }
    let period = rank_count.div_ceil(budget as usize);
    u64::from((rank + index).is_multiple_of(period))
}

/// Scrambles 64 bits (the finisher of splitmix64).
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reduces in the order given by a seed, as a random tree, rounding to the type at every node.
    fn reduce_in_some_order<T: Number>(reduction: Reduction, mut values: Vec<T>, seed: u64) -> T {
        let rank_count = values.len() as f64;
        let power = (values.len().next_power_of_two()) as f64;
        for value in &mut values {
            match reduction {
                Reduction::Avg => *value = T::of_f64(value.as_f64() / power),
                Reduction::ScaledSum => *value = T::of_f64(value.as_f64() * scale_of(T::DTYPE)),
                _ => {}
            }
        }
        let mut random = seed;
        let mut take = |values: &mut Vec<T>| {
            random = mix(random);
            values.swap_remove(random as usize % values.len()).as_f64()
        };
        while values.len() > 1 {
            let (a, b) = (take(&mut values), take(&mut values));
            let result = match reduction {
                Reduction::Sum | Reduction::Avg | Reduction::ScaledSum => a + b,
                Reduction::Prod => a * b,
                Reduction::Min => [a, b].into_iter().min_by(f64::total_cmp).unwrap(),
                Reduction::Max => [a, b].into_iter().max_by(f64::total_cmp).unwrap(),
                other => panic!("no rule for {other}"),
            };
            let last = values.is_empty() && reduction == Reduction::Avg;
            values.push(T::of_f64(match (last, T::DTYPE) {
                (false, _) => result,
                (true, DType::F64) => result * (power / rank_count),
                (true, _) => (result as f32 * (power as f32 / rank_count as f32)).into(),
            }));
        }
        values[0]
    }

    #[test]
    fn any_order_gives_the_predicted_bits_of_floats() {
        fn check<T: Number>() {
            // Many ranks are what small types have little room for.
            let many: &[usize] = if size_of::<T>() <= 2 { &[255, 256, 300, 1000] } else { &[300] };
            for &rank_count in [1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 64, 100].iter().chain(many) {
                for reduction in T::DTYPE.reductions() {
                    let inputs = Inputs::<T>::new(Some(reduction), rank_count);
                    for index in (0..PERIOD).step_by(97) {
                        let values: Vec<T> = inputs.ranks.iter().map(|rank| rank[index]).collect();
                        let got = reduce_in_some_order(reduction, values, index as u64);
                        let (expected, dtype) = (inputs.reduced[index], T::DTYPE);
                        assert_eq!(
                            got.bits(),
                            expected.bits(),
                            "{reduction} of {dtype} over {rank_count} ranks, index {index}"
                        );
                    }
                }
            }
        }
        for &dtype in DType::ALL.iter().filter(|dtype| !dtype.is_integer()) {
            tutti::with_element!(dtype, T => check::<T>());
        }
    }

    #[test]
    fn integers_wrap_and_their_averages_round_toward_zero() {
        let reduce = |reduction, values: &[i8]| Inputs::<i8>::reduce(reduction, values.len(), values.iter().copied());
        assert_eq!(reduce(Reduction::Sum, &[127, 1]), -128);
        assert_eq!(reduce(Reduction::Prod, &[100, 3, -1]), -44);
        assert_eq!(reduce(Reduction::Avg, &[-3, -4, 0]), -2);
        assert_eq!(reduce(Reduction::Avg, &[127, 127]), -1);
        assert_eq!(reduce(Reduction::ScaledSum, &[50, 1]), -103);
        assert_eq!((reduce(Reduction::Bxor, &[5, 3]), reduce(Reduction::Max, &[-5, 3])), (6, 3));
        assert_eq!(Inputs::<u8>::reduce(Reduction::Avg, 2, [200, 200].into_iter()), 72);
    }

    /// A rank that is left out, or another rank's values in its place, must show within few elements.
    #[test]
    fn a_missing_or_doubled_rank_is_seen() {
        for rank_count in [2, 3, 8, 64] {
            for reduction in DType::BF16.reductions() {
                let inputs = Inputs::<bf16>::new(Some(reduction), rank_count);
                for missing in 0..rank_count {
                    let other = (missing + 1) % rank_count;
                    let result: Vec<bf16> = (0..PERIOD)
                        .map(|index| {
                            let ranks = (0..rank_count).map(|rank| if rank == missing { other } else { rank });
                            let values = ranks.map(|rank| inputs.ranks[rank][index]);
                            Inputs::<bf16>::reduce(reduction, rank_count, values)
                        })
                        .collect();
                    let wrong = inputs.count_unlike_reduced(0, &result);
                    assert!(wrong > 0, "{reduction} over {rank_count} ranks without rank {missing}");
                }
            }
        }
    }

    #[test]
    fn values_are_found_again_from_any_index() {
        let inputs = Inputs::<f32>::new(None, 3);
        for first in [0, 1, PERIOD - 1, PERIOD, 5 * PERIOD + 17] {
            for count in [0, 1, 5, PERIOD, 2 * PERIOD + 3] {
                let mut elements = vec![0.0; count];
                inputs.fill(2, first, &mut elements);
                assert_eq!(inputs.count_unlike_input(2, first, &elements), 0);
                assert!(count == 0 || inputs.count_unlike_input(1, first, &elements) > 0);
                assert!(count == 0 || inputs.count_unlike_input(2, first + 4, &elements) > 0);
                if let Some(last) = elements.last_mut() {
                    *last = f32::from_bits(last.to_bits() ^ 1);
                    assert_eq!(inputs.count_unlike_input(2, first, &elements), 1);
                }
            }
        }
    }
}
