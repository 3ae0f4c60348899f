//! What arithmetic is: NaNs, zeros, infinities, overflow, subnormals, rounding.

use half::f16;
use tutti::{Algorithm, Collective, Communicator, DType, Rank, Reduction};

use super::Make;
use super::case::{Buffers, Case, Drive, Values, call, call_with, make_call};
use super::number::{Format, Number};
use super::oracle::in_rank_order;
use super::ranks::{LATER, Random, SOON, each_on_a_thread, mix, on_threads, options, some_of, with_slots, within};

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

/// Each type of floats, with each reduction that it offers.
fn floats() -> impl Iterator<Item = (DType, Reduction)> {
    let floats = DType::ALL.iter().filter(|dtype| !dtype.is_integer());
    floats.flat_map(|dtype| dtype.reductions().map(|reduction| (*dtype, reduction)))
}

/// A call of each collective that reduces, by each algorithm, with each type of floats, reduction and count.
fn each_reducing_case(
    make: Make,
    rank_counts: impl IntoIterator<Item = usize>,
    counts: &[usize],
    f: impl Fn(&[Communicator], &Case),
) {
    for rank_count in some_of(rank_counts, 2) {
        for collective in reducing(rank_count) {
            each_algorithm(make, rank_count, collective, |algorithm, communicators| {
                let of_count = |count: usize| floats().map(move |(dtype, reduction)| (dtype, reduction, count));
                for (dtype, reduction, count) in some_of(counts.iter().copied().flat_map(of_count), 2) {
                    let case = Case::new(collective, dtype, reduction, count);
                    f(communicators, &Case { algorithm: Some(algorithm), ..case });
                }
            });
        }
    }
}

pub(crate) fn a_nan_at_any_rank_is_a_nan_everywhere(make: Make) {
    fn check(communicators: &[Communicator], case: &Case) {
        let format = Format::of(case.dtype);
        let rank_count = communicators.len();
        let case = &Case { in_place: case.count as u64 >> 3, ..*case };
        for nan_rank in 0..rank_count {
            let mut inputs = case.inputs(rank_count);
            let count = inputs[nan_rank].len();
            // Quiet and signalling, of both signs, in the vector part and in the rest.
            for (nth, index) in [0, count / 3, count / 2, count - 1].into_iter().enumerate() {
                let sign = if nth / 2 == 0 { 0 } else { format.sign_bit };
                inputs[nan_rank][index] = format.number(sign | format.nan_bits[nth % 2]);
            }
            call_with(communicators, case, Drive::Group, &inputs);
        }
    }
    within(LATER, move || {
        each_reducing_case(make, 1..=9, &[1, 300], |communicators, case| {
            check(communicators, case);
        });
    });
}

/// Which of the ranks' NaNs comes through is up to the processor; that one does, on every rank, is not.
pub(crate) fn nans_that_differ_between_ranks_are_a_nan_on_every_rank(make: Make) {
    fn check(communicators: &[Communicator], case: &Case) {
        let format = Format::of(case.dtype);
        let mut inputs = case.inputs(communicators.len());
        for (rank, input) in inputs.iter_mut().enumerate() {
            // Two elements of three are NaNs, at other places on each rank, with other signs and payloads.
            for (index, element) in input.iter_mut().enumerate().filter(|(index, _)| !(index + rank).is_multiple_of(3))
            {
                let sign = if rank % 2 == 0 { format.sign_bit } else { 0 };
                *element = format.number(sign | format.nan_bits[(rank + index) % 2]);
            }
        }
        call_with(communicators, case, Drive::Group, &inputs);
    }
    within(LATER, move || {
        each_reducing_case(make, 2..=5, &[1, 7, 301], |communicators, case| {
            check(communicators, case);
        });
    });
}

pub(crate) fn copies_keep_every_bit_pattern(make: Make) {
    fn check(communicators: &[Communicator], case: &Case, drive: Drive) {
        let format = Format::of(case.dtype);
        let inputs: Vec<Vec<Number>> = (0..communicators.len() as u64)
            .map(|rank| {
                let pattern = |index: u64| {
                    // All patterns of 8 and 16 bits; of more bits some of every kind, NaNs above all.
                    if format.dtype.bytes() <= 2 {
                        index ^ rank
                    } else {
                        mix(index ^ rank << 40) | (format.nan_bits[1] * (index % 3 / 2))
                    }
                };
                (0..case.count as u64).map(|index| format.number(pattern(index))).collect()
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
                    let ways = DType::ALL.iter().flat_map(|dtype| [0, u64::MAX].map(|in_place| (*dtype, in_place)));
                    for (dtype, in_place) in some_of(ways, 1) {
                        let case = Case { in_place, ..Case::new(collective, dtype, Reduction::Sum, 1 << 16) };
                        check(&communicators, &case, Drive::Group);
                    }
                }
            }
        }
    });
}

/// Zeros, the edges of subnormals and normals, ones and their neighbours, the largest numbers, infinities (where results can be
/// infinite), NaNs; all with both signs.
fn special_values(format: &'static Format) -> Vec<Number> {
    let normal = format.exact(format.smallest_normal()).bits();
    let one = format.exact(1.0).bits();
    let infinity = if format.saturates { format.largest_bits } else { format.exact(f64::INFINITY).bits() };
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
        format.exact(3.0).bits(),
        format.largest_bits - 1,
        format.largest_bits,
        infinity,
        format.nan_bits[0],
        format.nan_bits[1],
    ];
    magnitudes.into_iter().flat_map(|bits| [format.number(bits), format.number(bits | format.sign_bit)]).collect()
}

pub(crate) fn special_values_meet_as_ieee_says(make: Make) {
    fn check(make: Make, case: &Case) {
        let format = Format::of(case.dtype);
        let specials = special_values(format);
        let pairs: Vec<(Number, Number)> =
            specials.iter().flat_map(|left| specials.iter().map(move |right| (*left, *right))).collect();
        // A reduce-scatter's input holds a block for each rank.
        let blocks = if case.collective == Collective::ReduceScatter { 2 } else { 1 };
        let lefts: Vec<Number> = pairs.iter().map(|pair| pair.0).collect();
        let rights: Vec<Number> = pairs.iter().map(|pair| pair.1).collect();
        let inputs = vec![lefts.repeat(blocks), rights.repeat(blocks)];
        each_algorithm(make, 2, case.collective, |algorithm, communicators| {
            let case = Case { algorithm: Some(algorithm), count: pairs.len(), ..*case };
            call_with(communicators, &case, Drive::Group, &inputs);
        });
    }
    within(LATER, move || {
        for collective in reducing(2) {
            for (dtype, reduction) in some_of(floats(), 6) {
                check(make, &Case::new(collective, dtype, reduction, 0));
            }
        }
    });
}

pub(crate) fn all_values_of_8_and_16_bits_meet_as_they_should(make: Make) {
    fn check(communicators: &[Communicator], case: &Case, round: u64) {
        let format = Format::of(case.dtype);
        let pair = |index: u64| match format.dtype.bytes() {
            // Every value meets every other one.
            1 => (index >> 8, index & 0xff),
            // Every value meets another one in each round: odd multipliers go through all of them.
            _ => (index, index.wrapping_mul(40503).wrapping_add(round * 9973)),
        };
        // Results are never infinite where they saturate, and then it depends on the algorithm how far an infinity gets.
        let number = |bits: u64| {
            let number = format.number(bits);
            if format.saturates && number.value().is_infinite() { format.number(0) } else { number }
        };
        let indices = || 0..1 << 16;
        let (left, right) =
            (indices().map(|index| number(pair(index).0)), indices().map(|index| number(pair(index).1)));
        call_with(communicators, case, Drive::Group, &[left.collect(), right.collect()]);
    }
    within(LATER, move || {
        each_algorithm(make, 2, Collective::AllReduce, |algorithm, communicators| {
            let short = DType::ALL.iter().filter(|dtype| dtype.bytes() <= 2);
            let cases = short.flat_map(|dtype| {
                let rounds = if dtype.bytes() == 1 { 1 } else { 2 };
                dtype.reductions().flat_map(move |reduction| (0..rounds).map(move |round| (*dtype, reduction, round)))
            });
            for (dtype, reduction, round) in some_of(cases, 2) {
                let case =
                    Case { algorithm: Some(algorithm), ..Case::new(Collective::AllReduce, dtype, reduction, 1 << 16) };
                check(communicators, &case, round);
            }
        });
    });
}

pub(crate) fn minus_zero_is_less_than_plus_zero(make: Make) {
    fn check(communicators: &[Communicator], case: &Case) {
        let format = Format::of(case.dtype);
        let rank_count = communicators.len();
        // Every combination of signs at once, one for each element; a reduce-scatter has them in every block.
        let combinations = 1_usize << rank_count;
        let case = Case { count: combinations, ..*case };
        let inputs: Vec<Vec<Number>> = (0..rank_count)
            .map(|rank| {
                (0..case.input_count(rank_count))
                    .map(|index| {
                        format.number(if ((index % combinations) >> rank) & 1 == 1 { format.sign_bit } else { 0 })
                    })
                    .collect()
            })
            .collect();
        call_with(communicators, &case, Drive::Group, &inputs);
    }
    within(LATER, move || {
        each_reducing_case(make, [1, 2, 3, 5], &[0], |communicators, case| {
            check(communicators, case);
        });
    });
}

pub(crate) fn infinities_and_their_differences_are_what_ieee_says(make: Make) {
    fn check(communicators: &[Communicator], case: &Case) {
        let format = Format::of(case.dtype);
        if format.saturates {
            return;
        }
        let values = [1.0, -2.0, f64::INFINITY, f64::NEG_INFINITY, 0.0];
        let mut random = Random(7);
        let inputs: Vec<Vec<Number>> = (0..communicators.len())
            .map(|_| (0..case.input_count(communicators.len())).map(|_| format.exact(random.one_of(&values))).collect())
            .collect();
        call_with(communicators, case, Drive::Group, &inputs);
    }
    within(LATER, move || {
        each_reducing_case(make, [2, 3, 4, 7], &[500], |communicators, case| {
            check(communicators, case);
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
    fn check(communicators: &[Communicator], case: &Case) {
        let format = Format::of(case.dtype);
        let rank_count = communicators.len();
        let count = case.input_count(rank_count);
        let input =
            |index: usize| format.exact(if index.is_multiple_of(2) { format.largest() } else { -format.largest() });
        let inputs = vec![(0..count).map(input).collect::<Vec<Number>>(); rank_count];
        let all = make_call(communicators, case, Drive::Group, &inputs).unwrap();
        let root = case.collective.root().map_or(0, Rank::index);
        let outputs: Vec<f64> = all[root].output().iter().map(|each| each.value()).collect();
        assert!(outputs.iter().all(|output| output.is_finite()), "{rank_count} ranks, {case:?}: {outputs:?}");
        call_with(communicators, case, Drive::Group, &inputs);
    }
    within(LATER, move || {
        for rank_count in some_of(1..=9, 3) {
            for collective in reducing(rank_count) {
                each_algorithm(make, rank_count, collective, |algorithm, communicators| {
                    for dtype in some_of(DType::ALL.iter().filter(|dtype| !dtype.is_integer()), 2) {
                        let case =
                            Case { algorithm: Some(algorithm), ..Case::new(collective, *dtype, Reduction::Avg, 40) };
                        check(communicators, &case);
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
    fn check(communicators: &[Communicator], case: &Case) {
        let (format, reduction) = (Format::of(case.dtype), case.reduction);
        // Small multiples of the smallest number, halves of which are numbers too; for products, a one beside them.
        let units = |rank: usize, index: usize| match (reduction, rank) {
            (Reduction::Prod, 1) => format.exact(1.0),
            _ => format.number(2 * (index as u64 % if format.precision <= 4 { 2 } else { 50 }) + 4 * rank as u64),
        };
        let expected: Vec<u64> = (0..200)
            .map(|index| {
                let values = [0, 1].map(|rank| units(rank, index).value());
                let value = match reduction {
                    Reduction::Sum => values[0] + values[1],
                    Reduction::Prod => values[0] * values[1],
                    Reduction::Min => values[0].min(values[1]),
                    Reduction::Max => values[0].max(values[1]),
                    _ => (values[0] + values[1]) / 2.0,
                };
                format.exact(value).bits()
            })
            .collect();
        each_on_a_thread(communicators, |communicator| {
            let input: Vec<Number> = (0..200).map(|index| units(communicator.rank(), index)).collect();
            let mut buffers = Buffers::new(case, communicator.rank(), 2, &input);
            let before = mode::read();
            mode::write(before | mode::UNUSUAL);
            let result = buffers.call(communicator, case);
            let after = mode::read();
            mode::write(before);
            result.unwrap();
            assert_eq!(after & mode::UNUSUAL, mode::UNUSUAL, "the thread's mode was changed");
            let came: Vec<u64> = buffers.output().iter().map(|each| each.bits()).collect();
            assert_eq!(came, expected, "{case:?}");
        });
    }
    within(SOON, move || {
        let communicators = make(2, options(|_| {})).unwrap();
        for algorithm in Collective::AllReduce.algorithms() {
            for (dtype, reduction) in some_of(floats(), 3) {
                let case = Case {
                    algorithm: Some(algorithm),
                    in_place: u64::MAX,
                    ..Case::new(Collective::AllReduce, dtype, reduction, 200)
                };
                check(&communicators, &case);
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
    fn check(communicators: &[Communicator], dtype: DType, algorithm: Algorithm) {
        let format = Format::of(dtype);
        let rank_count = communicators.len();
        let case = Case::new(Collective::AllReduce, format.dtype, Reduction::Avg, 1000);
        let case = Case { algorithm: Some(algorithm), ..case };
        let mut random = Random(rank_count as u64);
        // Of numbers that are multiples of the smallest one, as many as make no sum that is rounded.
        let limit = if format.precision <= 4 { 2 } else { 40 };
        let mut tiny =
            || format.number(random.below(limit) as u64 | if random.below(2) == 0 { format.sign_bit } else { 0 });
        let inputs: Vec<Vec<Number>> = (0..rank_count).map(|_| (0..case.count).map(|_| tiny()).collect()).collect();
        let all = make_call(communicators, &case, Drive::Group, &inputs).unwrap();
        let scaling = if matches!(algorithm, Algorithm::Direct | Algorithm::OneShot) && format.dtype.bytes() < 4 {
            0.0
        } else {
            rank_count.next_power_of_two() as f64 / 2.0
        };
        for (index, came) in all[0].output().iter().enumerate() {
            // In multiples of the smallest number.
            let exact =
                inputs.iter().map(|input| input[index].value() / format.smallest()).sum::<f64>() / rank_count as f64;
            let off = (came.value() / format.smallest() - exact).abs();
            assert!(off <= scaling + 0.5001, "{case:?}: element {index}: {off} from {exact}");
        }
    }
    within(SOON, move || {
        for rank_count in some_of(2..=9, 2) {
            each_algorithm(make, rank_count, Collective::AllReduce, |algorithm, communicators| {
                let floats = some_of(DType::ALL.iter().filter(|dtype| !dtype.is_integer()), 2);
                floats.into_iter().for_each(|dtype| check(communicators, *dtype, algorithm));
            });
        }
    });
}

pub(crate) fn direct_and_one_shot_reduce_in_rank_order_and_round_once(make: Make) {
    fn check(communicators: &[Communicator], case: &Case) {
        let inputs = case.inputs(communicators.len());
        let all = make_call(communicators, case, Drive::Group, &inputs).unwrap();
        for (index, came) in all[0].output().iter().enumerate() {
            let elements: Vec<Number> = inputs.iter().map(|input| input[index]).collect();
            assert_eq!(
                came.bits(),
                in_rank_order(&elements, case.reduction, case.scale()),
                "{case:?}: element {index}"
            );
        }
    }
    within(LATER, move || {
        for rank_count in some_of([3, 5, 9], 1) {
            for algorithm in [Algorithm::Direct, Algorithm::OneShot] {
                let mut options = options(|_| {});
                options.algorithm = Some(algorithm);
                let communicators = make(rank_count, options).unwrap();
                let pairs = DType::ALL.iter().flat_map(|dtype| dtype.reductions().map(|each| (*dtype, each)));
                for (dtype, reduction) in some_of(pairs, 8) {
                    let case = Case {
                        algorithm: Some(algorithm),
                        values: Values::Rough,
                        salt: rank_count as u64,
                        ..Case::new(Collective::AllReduce, dtype, reduction, 1500)
                    };
                    check(&communicators, &case);
                    call(&communicators, &case, Drive::Threads);
                }
            }
        }
    });
}
