//! What arithmetic is: NaNs, zeros, infinities, overflow, subnormals, rounding.

use half::f16;
use tutti::{Algorithm, Collective, Communicator, DType, Rank, Reduction};

use super::Make;
use super::case::{Case, Drive, Values, call, call_with, make_call, reductions};
use super::number::{Number, for_dtype};
use super::oracle::in_rank_order;
use super::ranks::{LATER, Random, SOON, each_on_a_thread, mix, on_threads, options, with_slots, within};

/// The collectives that reduce, where a root is needed the last rank.
fn reducing(rank_count: usize) -> [Collective; 3] {
    [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce { root: Rank(rank_count as u32 - 1) }]
}

/// Communicators for each algorithm that offers `collective`.
fn each_algorithm(
    make: Make,
    rank_count: usize,
    collective: Collective,
    mut f: impl FnMut(Algorithm, &[Communicator]),
) {
    for algorithm in collective.algorithms() {
        let mut options = with_slots(256, 2);
        options.algorithm = Some(algorithm);
        f(algorithm, &make(rank_count, options).unwrap());
    }
}

/// A call of each collective that reduces, by each algorithm, with each type, reduction and count.
fn each_reducing_case(
    make: Make,
    rank_counts: impl IntoIterator<Item = usize>,
    counts: &[usize],
    f: impl Fn(&[Communicator], &Case),
) {
    for rank_count in rank_counts {
        for collective in reducing(rank_count) {
            each_algorithm(make, rank_count, collective, |algorithm, communicators| {
                for dtype in DType::ALL {
                    for reduction in Reduction::ALL {
                        for count in counts {
                            let case = Case::new(collective, *dtype, *reduction, *count);
                            f(communicators, &Case { algorithm: Some(algorithm), ..case });
                        }
                    }
                }
            });
        }
    }
}

pub(crate) fn a_nan_at_any_rank_is_a_nan_everywhere(make: Make) {
    fn check<T: Number>(communicators: &[Communicator], case: &Case) {
        let rank_count = communicators.len();
        let case = &Case { in_place: case.count as u64 >> 3, ..*case };
        for nan_rank in 0..rank_count {
            let mut inputs = case.inputs::<T>(rank_count);
            let count = inputs[nan_rank].len();
            // Quiet and signalling, of both signs, in the vector part and in the rest.
            for (nth, index) in [0, count / 3, count / 2, count - 1].into_iter().enumerate() {
                let payload = if nth % 2 == 0 { 1 } else { T::INFINITY_BITS >> 1 & !T::INFINITY_BITS | 3 };
                let sign = if nth / 2 == 0 { 0 } else { T::SIGN_BIT };
                inputs[nan_rank][index] = T::from_bits(sign | T::INFINITY_BITS | payload);
            }
            call_with(communicators, case, Drive::Group, &inputs);
        }
    }
    within(LATER, move || {
        each_reducing_case(make, 1..=9, &[1, 300], |communicators, case| {
            for_dtype!(case.dtype, check, communicators, case);
        });
    });
}

/// Which of the ranks' NaNs comes through is up to the processor; that one does, on every rank, is not.
pub(crate) fn nans_that_differ_between_ranks_are_a_nan_on_every_rank(make: Make) {
    fn check<T: Number>(communicators: &[Communicator], case: &Case) {
        let mut inputs = case.inputs::<T>(communicators.len());
        for (rank, input) in inputs.iter_mut().enumerate() {
            // Two elements of three are NaNs, at other places on each rank, with other signs and payloads.
            for (index, element) in input.iter_mut().enumerate().filter(|(index, _)| !(index + rank).is_multiple_of(3))
            {
                let quiet = T::INFINITY_BITS >> 1 & !T::INFINITY_BITS;
                let sign = if rank % 2 == 0 { T::SIGN_BIT } else { 0 };
                *element = T::from_bits(sign | T::INFINITY_BITS | quiet | (1 + (rank + index) as u32 % 30));
            }
        }
        call_with(communicators, case, Drive::Group, &inputs);
    }
    within(LATER, move || {
        each_reducing_case(make, 2..=5, &[1, 7, 301], |communicators, case| {
            for_dtype!(case.dtype, check, communicators, case);
        });
    });
}

pub(crate) fn copies_keep_every_bit_pattern(make: Make) {
    fn check<T: Number>(communicators: &[Communicator], case: &Case, drive: Drive) {
        let all_bits = T::SIGN_BIT | (T::SIGN_BIT - 1);
        let inputs: Vec<Vec<T>> = (0..communicators.len() as u64)
            .map(|rank| {
                let pattern = |index: usize| {
                    let index = index as u64;
                    // All patterns of 16 bits; of 32 bits some of every kind.
                    if all_bits == 0xffff {
                        index as u32 ^ rank as u32
                    } else {
                        mix(index ^ rank << 40) as u32 | (index % 3 * 0x7f80_0000) as u32
                    }
                };
                (0..case.count).map(|index| T::from_bits(pattern(index) & all_bits)).collect()
            })
            .collect();
        call_with(communicators, case, drive, &inputs);
    }
    within(LATER, move || {
        for rank_count in [1, 2, 3] {
            for collective in [Collective::AllGather, Collective::Broadcast { root: Rank(rank_count as u32 - 1) }] {
                for algorithm in collective.algorithms() {
                    let mut options = options(|_| {});
                    options.algorithm = Some(algorithm);
                    let communicators = make(rank_count, options).unwrap();
                    for dtype in DType::ALL {
                        for in_place in [0, u64::MAX] {
                            let case = Case { in_place, ..Case::new(collective, *dtype, Reduction::Sum, 1 << 16) };
                            for_dtype!(*dtype, check, &communicators, &case, Drive::Group);
                        }
                    }
                }
            }
        }
    });
}

/// Zeros, the edges of subnormals and normals, ones and their neighbours, the largest numbers, infinities, NaNs; all with both
/// signs.
fn special_values<T: Number>() -> Vec<T> {
    let normal = T::exact(T::smallest_normal()).bits();
    let one = T::exact(1.0).bits();
    let quiet = T::INFINITY_BITS | T::INFINITY_BITS >> 1;
    let magnitudes = [
        0,
        1,
        2,
        3,
        normal / 2,
        normal - 1,
        normal,
        normal + 1,
        2 * normal,
        one - 1,
        one,
        one + 1,
        T::exact(3.0).bits(),
        T::LARGEST_BITS - 1,
        T::LARGEST_BITS,
        T::INFINITY_BITS,
        T::INFINITY_BITS | 1,
        quiet,
        quiet | 5,
    ];
    magnitudes.into_iter().flat_map(|bits| [T::from_bits(bits), T::from_bits(bits | T::SIGN_BIT)]).collect()
}

pub(crate) fn special_values_meet_as_ieee_says(make: Make) {
    fn check<T: Number>(make: Make, case: &Case) {
        let specials = special_values::<T>();
        let pairs: Vec<(T, T)> =
            specials.iter().flat_map(|left| specials.iter().map(move |right| (*left, *right))).collect();
        // A reduce-scatter's input holds a block for each rank.
        let blocks = if case.collective == Collective::ReduceScatter { 2 } else { 1 };
        let lefts: Vec<T> = pairs.iter().map(|pair| pair.0).collect();
        let rights: Vec<T> = pairs.iter().map(|pair| pair.1).collect();
        let inputs = vec![lefts.repeat(blocks), rights.repeat(blocks)];
        each_algorithm(make, 2, case.collective, |algorithm, communicators| {
            let case = Case { algorithm: Some(algorithm), count: pairs.len(), ..*case };
            call_with(communicators, &case, Drive::Group, &inputs);
        });
    }
    within(LATER, move || {
        for collective in reducing(2) {
            for dtype in DType::ALL {
                for reduction in Reduction::ALL {
                    for_dtype!(*dtype, check, make, &Case::new(collective, *dtype, *reduction, 0));
                }
            }
        }
    });
}

pub(crate) fn all_sixteen_bit_values_meet_as_ieee_says(make: Make) {
    fn check<T: Number>(communicators: &[Communicator], case: &Case, round: u32) {
        // Every value meets another one in each round: odd multipliers go through all of them.
        let left = (0..=u16::MAX).map(|bits| T::from_bits(u32::from(bits))).collect();
        let right = (0..=u16::MAX)
            .map(|bits| T::from_bits(u32::from(bits.wrapping_mul(40503).wrapping_add(round as u16 * 9973))));
        call_with(communicators, case, Drive::Group, &[left, right.collect()]);
    }
    within(LATER, move || {
        each_algorithm(make, 2, Collective::AllReduce, |algorithm, communicators| {
            for dtype in [DType::F16, DType::BF16] {
                for reduction in Reduction::ALL {
                    for round in 0..2 {
                        let case = Case {
                            algorithm: Some(algorithm),
                            ..Case::new(Collective::AllReduce, dtype, *reduction, 1 << 16)
                        };
                        for_dtype!(dtype, check, communicators, &case, round);
                    }
                }
            }
        });
    });
}

pub(crate) fn minus_zero_is_less_than_plus_zero(make: Make) {
    fn check<T: Number>(communicators: &[Communicator], case: &Case) {
        let rank_count = communicators.len();
        // Every combination of signs at once, one for each element; a reduce-scatter has them in every block.
        let combinations = 1_usize << rank_count;
        let case = Case { count: combinations, ..*case };
        let inputs: Vec<Vec<T>> = (0..rank_count)
            .map(|rank| {
                (0..case.input_count(rank_count))
                    .map(|index| T::from_bits(if ((index % combinations) >> rank) & 1 == 1 { T::SIGN_BIT } else { 0 }))
                    .collect()
            })
            .collect();
        call_with(communicators, &case, Drive::Group, &inputs);
    }
    within(LATER, move || {
        each_reducing_case(make, [1, 2, 3, 5], &[0], |communicators, case| {
            for_dtype!(case.dtype, check, communicators, case);
        });
    });
}

pub(crate) fn infinities_and_their_differences_are_what_ieee_says(make: Make) {
    fn check<T: Number>(communicators: &[Communicator], case: &Case) {
        let values = [1.0, -2.0, f64::INFINITY, f64::NEG_INFINITY, 0.0];
        let mut random = Random(7);
        let inputs: Vec<Vec<T>> = (0..communicators.len())
            .map(|_| (0..case.input_count(communicators.len())).map(|_| T::exact(random.one_of(&values))).collect())
            .collect();
        call_with(communicators, case, Drive::Group, &inputs);
    }
    within(LATER, move || {
        each_reducing_case(make, [2, 3, 4, 7], &[500], |communicators, case| {
            for_dtype!(case.dtype, check, communicators, case);
        });
    });
}

pub(crate) fn sums_of_f16_overflow_to_infinity(make: Make) {
    within(SOON, move || {
        for algorithm in Collective::AllReduce.algorithms() {
            on_threads(make(3, options(|_| {})).unwrap(), |rank| {
                // 65520 is half way between the largest number and the next one that there would be: it rounds up.
                let mut buffer = match rank.rank() {
                    0 => [65504.0, 65504.0, -65504.0, 40000.0],
                    1 => [0.0, 16.0, -65504.0, 40000.0],
                    _ => [0.0, 0.0, 0.0, 40000.0],
                }
                .map(f16::from_f32);
                rank.call().algorithm(algorithm).all_reduce_in_place(&mut buffer, Reduction::Sum).unwrap();
                let expected = [65504.0, f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY].map(f16::from_f32);
                assert_eq!(buffer, expected, "by {algorithm}");
            });
        }
    });
}

pub(crate) fn averages_of_the_largest_numbers_do_not_overflow(make: Make) {
    fn check<T: Number>(communicators: &[Communicator], case: &Case) {
        let rank_count = communicators.len();
        let count = case.input_count(rank_count);
        let input = |index: usize| T::exact(if index.is_multiple_of(2) { T::largest() } else { -T::largest() });
        let inputs = vec![(0..count).map(input).collect::<Vec<T>>(); rank_count];
        let all = make_call(communicators, case, Drive::Group, &inputs).unwrap();
        let root = case.collective.root().map_or(0, Rank::index);
        let outputs: Vec<f64> = all[root].output().iter().map(|each| each.value()).collect();
        assert!(outputs.iter().all(|output| output.is_finite()), "{rank_count} ranks, {case:?}: {outputs:?}");
        call_with(communicators, case, Drive::Group, &inputs);
    }
    within(LATER, move || {
        for rank_count in 1..=9 {
            for collective in reducing(rank_count) {
                each_algorithm(make, rank_count, collective, |algorithm, communicators| {
                    for dtype in DType::ALL {
                        let case =
                            Case { algorithm: Some(algorithm), ..Case::new(collective, *dtype, Reduction::Avg, 40) };
                        for_dtype!(*dtype, check, communicators, &case);
                    }
                });
            }
        }
    });
}

/// The floating-point mode of this thread.
#[cfg(target_arch = "x86_64")]
mod mode {
    /// Flush to zero, denormals are zeros, round toward zero.
    pub(super) const UNUSUAL: u32 = 1 << 15 | 1 << 6 | 3 << 13;

    pub(super) fn read() -> u32 {
        let mut mode = 0_u32;
        // SAFETY: stores the register into `mode`, and nothing else.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack)) };
        mode
    }

    pub(super) fn write(mode: u32) {
        // SAFETY: between a change and its end these tests make calls and look at bits, and calculate nothing.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack)) };
    }
}

/// Where the mode cannot be changed from here, the test still checks that subnormals are kept in the usual one.
#[cfg(not(target_arch = "x86_64"))]
mod mode {
    pub(super) const UNUSUAL: u32 = 0;

    pub(super) fn read() -> u32 {
        0
    }

    pub(super) fn write(_mode: u32) {}
}

pub(crate) fn subnormals_are_kept_whatever_mode_the_calling_thread_is_in(make: Make) {
    fn check<T: Number>(communicators: &[Communicator], reduction: Reduction, algorithm: Algorithm) {
        // Small multiples of the smallest number, halves of which are numbers too; for products, a one beside them.
        let units = |rank: usize, index: usize| match (reduction, rank) {
            (Reduction::Prod, 1) => T::exact(1.0),
            _ => T::from_bits(2 * (index as u32 % 50) + 4 * rank as u32),
        };
        let expected: Vec<u32> = (0..200)
            .map(|index| {
                let values = [0, 1].map(|rank| units(rank, index).value());
                let value = match reduction {
                    Reduction::Sum => values[0] + values[1],
                    Reduction::Prod => values[0] * values[1],
                    Reduction::Min => values[0].min(values[1]),
                    Reduction::Max => values[0].max(values[1]),
                    _ => (values[0] + values[1]) / 2.0,
                };
                T::exact(value).bits()
            })
            .collect();
        each_on_a_thread(communicators, |communicator| {
            let mut buffer: Vec<T> = (0..200).map(|index| units(communicator.rank(), index)).collect();
            let before = mode::read();
            mode::write(before | mode::UNUSUAL);
            let result = communicator.call().algorithm(algorithm).all_reduce_in_place(&mut buffer, reduction);
            let after = mode::read();
            mode::write(before);
            result.unwrap();
            assert_eq!(after & mode::UNUSUAL, mode::UNUSUAL, "the thread's mode was changed");
            let came: Vec<u32> = buffer.iter().map(|each| each.bits()).collect();
            assert_eq!(came, expected, "{reduction} of {} by {algorithm}", T::DTYPE);
        });
    }
    within(SOON, move || {
        let communicators = make(2, options(|_| {})).unwrap();
        for algorithm in Collective::AllReduce.algorithms() {
            for dtype in DType::ALL {
                for reduction in Reduction::ALL {
                    for_dtype!(*dtype, check, &communicators, *reduction, algorithm);
                }
            }
        }
        // A call that fails gives the mode back too.
        let before = mode::read();
        communicators[0].abort_handle().abort("to see what becomes of the mode");
        mode::write(before | mode::UNUSUAL);
        let result = communicators[0].all_reduce_in_place(&mut [1.0_f32], Reduction::Sum);
        let after = mode::read();
        mode::write(before);
        assert!(result.is_err());
        assert_eq!(after & mode::UNUSUAL, mode::UNUSUAL);
    });
}

pub(crate) fn averages_next_to_zero_lose_no_more_than_is_documented(make: Make) {
    fn check<T: Number>(communicators: &[Communicator], algorithm: Algorithm) {
        let rank_count = communicators.len();
        let case = Case::new(Collective::AllReduce, T::DTYPE, Reduction::Avg, 1000);
        let case = Case { algorithm: Some(algorithm), ..case };
        let mut random = Random(rank_count as u64);
        let mut tiny = || T::from_bits(random.below(40) as u32 | if random.below(2) == 0 { T::SIGN_BIT } else { 0 });
        let inputs: Vec<Vec<T>> = (0..rank_count).map(|_| (0..case.count).map(|_| tiny()).collect()).collect();
        let all = make_call(communicators, &case, Drive::Group, &inputs).unwrap();
        let scaling = if matches!(algorithm, Algorithm::Direct | Algorithm::OneShot) && T::DTYPE != DType::F32 {
            0.0
        } else {
            rank_count.next_power_of_two() as f64 * T::smallest() / 2.0
        };
        for (index, came) in all[0].output().iter().enumerate() {
            let exact = inputs.iter().map(|input| input[index].value()).sum::<f64>() / rank_count as f64;
            let rounding = T::smallest() * 0.5001;
            let off = (came.value() - exact).abs();
            assert!(off <= scaling + rounding, "{case:?}: element {index}: {off:e} from {exact:e}");
        }
    }
    within(SOON, move || {
        for rank_count in 2..=9 {
            each_algorithm(make, rank_count, Collective::AllReduce, |algorithm, communicators| {
                DType::ALL.iter().for_each(|dtype| for_dtype!(*dtype, check, communicators, algorithm));
            });
        }
    });
}

pub(crate) fn direct_and_one_shot_reduce_in_rank_order_and_round_once(make: Make) {
    fn check<T: Number>(communicators: &[Communicator], case: &Case) {
        let inputs = case.inputs::<T>(communicators.len());
        let all = make_call(communicators, case, Drive::Group, &inputs).unwrap();
        for (index, came) in all[0].output().iter().enumerate() {
            let elements: Vec<T> = inputs.iter().map(|input| input[index]).collect();
            assert_eq!(came.bits(), in_rank_order(&elements, case.reduction), "{case:?}: element {index}");
        }
    }
    within(LATER, move || {
        for rank_count in [3, 5, 9] {
            for algorithm in [Algorithm::Direct, Algorithm::OneShot] {
                let mut options = options(|_| {});
                options.algorithm = Some(algorithm);
                let communicators = make(rank_count, options).unwrap();
                for dtype in DType::ALL {
                    for reduction in reductions(Collective::AllReduce) {
                        let case = Case {
                            algorithm: Some(algorithm),
                            values: Values::Rough,
                            ..Case::new(Collective::AllReduce, *dtype, *reduction, 5000)
                        };
                        for_dtype!(*dtype, check, &communicators, &case);
                        call(&communicators, &case, Drive::Threads);
                    }
                }
            }
        }
    });
}
