//! Inputs whose reduction is known exactly before it is made, whatever the order in which it is made.
//!
//! The idea is that of nccl-tests' `verifiable`: choose the inputs so that no partial result of any order is ever rounded.
//! - *sum*: whole numbers of both signs whose magnitudes, summed over all ranks, stay within what the type counts exactly.
//! - *prod*: powers of two of both signs whose exponents, summed over all ranks, stay within the type's normal range.
//! - *min*, *max*: any numbers, with infinities and zeros of both signs (−0 < +0), but no NaN, which has no exact bits.
//! - *avg*: those of *sum*. Each is scaled by 2^−k, k = ⌈log2 N⌉, which is exact; so is their sum; and the finish, a
//!   multiplication by 2^k/N in f32 and one rounding to the type, happens once and is repeated here.
//! - Collectives that only copy: any bits at all, NaNs with their payloads.
//!
//! Values depend on the rank and on the index. They repeat after [`PERIOD`] elements, a prime, so that making and checking
//! them costs about as much as copying, while a block that lands at another place, which is off by a power of two or by a
//! count, does not look right there.
//!
//! Results are compared bit by bit.

use bytemuck::Pod;
use half::{bf16, f16};
use tutti::{DType, Element, Reduction};

/// After how many elements the values repeat: a prime.
pub(crate) const PERIOD: usize = 8191;

/// What the checks need to know of an element type.
pub(crate) trait Number: Element + Pod {
    /// nccl-tests' name of the type.
    const NCCL_NAME: &'static str;
    /// Whole numbers up to two to this power are exact.
    const WHOLE_BITS: u32;
    /// Two to this power, and its inverse, are normal numbers.
    const EXPONENT_MAX: i32;
    fn of_f32(value: f32) -> Self;
    fn of_bits(bits: u32) -> Self;
    fn bits(self) -> u32;
    fn as_f32(self) -> f32;
}

impl Number for f32 {
    const NCCL_NAME: &'static str = "float";
    const WHOLE_BITS: u32 = 24;
    const EXPONENT_MAX: i32 = 126;
    fn of_f32(value: f32) -> f32 {
        value
    }
    fn of_bits(bits: u32) -> f32 {
        f32::from_bits(bits)
    }
    fn bits(self) -> u32 {
        self.to_bits()
    }
    fn as_f32(self) -> f32 {
        self
    }
}

impl Number for f16 {
    const NCCL_NAME: &'static str = "half";
    const WHOLE_BITS: u32 = 11;
    const EXPONENT_MAX: i32 = 14;
    fn of_f32(value: f32) -> f16 {
        f16::from_f32(value)
    }
    fn of_bits(bits: u32) -> f16 {
        f16::from_bits(bits as u16)
    }
    fn bits(self) -> u32 {
        u32::from(self.to_bits())
    }
    fn as_f32(self) -> f32 {
        self.to_f32()
    }
}

impl Number for bf16 {
    const NCCL_NAME: &'static str = "bfloat16";
    const WHOLE_BITS: u32 = 8;
    const EXPONENT_MAX: i32 = 126;
    fn of_f32(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
    fn of_bits(bits: u32) -> bf16 {
        bf16::from_bits(bits as u16)
    }
    fn bits(self) -> u32 {
        u32::from(self.to_bits())
    }
    fn as_f32(self) -> f32 {
        self.to_f32()
    }
}

/// nccl-tests' name of a type, which its tables show.
pub(crate) fn nccl_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => f32::NCCL_NAME,
        DType::F16 => f16::NCCL_NAME,
        DType::BF16 => bf16::NCCL_NAME,
        other => other.name(),
    }
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
        let any = T::of_bits((random >> 16) as u32);
        match reduction {
            None => any,
            Some(Reduction::Sum | Reduction::Avg) => {
                let magnitude = share(1 << T::WHOLE_BITS, rank_count, rank, index);
                let value = (random % (2 * magnitude + 1)) as i64 - magnitude as i64;
                T::of_f32(value as f32)
            }
            Some(Reduction::Prod) => {
                let magnitude = share(T::EXPONENT_MAX as u64, rank_count, rank, index);
                let exponent = (random % (2 * magnitude + 1)) as i32 - magnitude as i32;
                let sign = if random >> 63 == 0 { 1.0 } else { -1.0 };
                T::of_f32(sign * 2_f32.powi(exponent))
            }
            Some(Reduction::Min | Reduction::Max) => match (random >> 48) % 16 {
                // Zeros of both signs meet often enough to be compared with each other.
                0..6 => T::of_f32(if random & 1 == 0 { 0.0 } else { -0.0 }),
                _ if any.as_f32().is_nan() => T::of_f32(1.0),
                _ => any,
            },
            Some(_) => T::of_f32(0.0),
        }
    }

    fn reduce(reduction: Reduction, rank_count: usize, values: impl Iterator<Item = T>) -> T {
        let values = values.map(Number::as_f32);
        // Every partial result is exact in f64, and the final one is exact in the type, but for the average's finish.
        let exact = |value: f64| T::of_f32(value as f32);
        match reduction {
            Reduction::Sum => exact(values.map(f64::from).sum::<f64>() + 0.0),
            Reduction::Prod => exact(values.map(f64::from).product()),
            Reduction::Min => T::of_f32(values.min_by(f32::total_cmp).unwrap_or(0.0)),
            Reduction::Max => T::of_f32(values.max_by(f32::total_cmp).unwrap_or(0.0)),
            Reduction::Avg => {
                let power = f64::from(rank_count.next_power_of_two() as u32);
                let scaled = (values.map(f64::from).sum::<f64>() + 0.0) / power;
                let finish = (power / rank_count as f64) as f32;
                T::of_f32(scaled as f32 * finish)
            }
            _ => T::of_f32(0.0),
        }
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
        let rank_count = values.len() as f32;
        let power = (values.len().next_power_of_two()) as f32;
        if reduction == Reduction::Avg {
            for value in &mut values {
                *value = T::of_f32(value.as_f32() / power);
            }
        }
        let mut random = seed;
        let mut take = |values: &mut Vec<T>| {
            random = mix(random);
            values.swap_remove(random as usize % values.len()).as_f32()
        };
        while values.len() > 1 {
            let (a, b) = (take(&mut values), take(&mut values));
            let result = match reduction {
                Reduction::Sum | Reduction::Avg => a + b,
                Reduction::Prod => a * b,
                Reduction::Min => [a, b].into_iter().min_by(f32::total_cmp).unwrap(),
                Reduction::Max => [a, b].into_iter().max_by(f32::total_cmp).unwrap(),
                other => panic!("no rule for {other}"),
            };
            let last = values.is_empty() && reduction == Reduction::Avg;
            values.push(T::of_f32(if last { result * (power / rank_count) } else { result }));
        }
        values[0]
    }

    fn any_order_gives_the_predicted_bits<T: Number>() {
        for rank_count in [1, 2, 3, 4, 5, 7, 8, 13, 15, 16, 31, 64, 100, 127, 255, 256, 300, 1000] {
            for &reduction in Reduction::ALL {
                let inputs = Inputs::<T>::new(Some(reduction), rank_count);
                for index in (0..PERIOD).step_by(97) {
                    let values: Vec<T> = inputs.ranks.iter().map(|rank| rank[index]).collect();
                    let got = reduce_in_some_order(reduction, values, index as u64);
                    let expected = inputs.reduced[index];
                    assert_eq!(got.bits(), expected.bits(), "{reduction} over {rank_count} ranks, index {index}");
                }
            }
        }
    }

    #[test]
    fn any_order_gives_the_predicted_bits_in_f32() {
        any_order_gives_the_predicted_bits::<f32>();
    }

    #[test]
    fn any_order_gives_the_predicted_bits_in_f16() {
        any_order_gives_the_predicted_bits::<f16>();
    }

    #[test]
    fn any_order_gives_the_predicted_bits_in_bf16() {
        any_order_gives_the_predicted_bits::<bf16>();
    }

    /// A rank that is left out, or another rank's values in its place, must show within few elements.
    #[test]
    fn a_missing_or_doubled_rank_is_seen() {
        for rank_count in [2, 3, 8, 64] {
            for &reduction in Reduction::ALL {
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
