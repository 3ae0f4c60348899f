//! Every small call: every collective, algorithm, root, element type, reduction, number of ranks, count near a boundary and
//! way of passing buffers, with small slots so that boundaries are near.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use tutti::{Algorithm, Collective, DType, Rank, Reduction};

use super::Make;
use super::case::{Case, Drive, Values, call, collectives, make_call, reductions};
use super::ranks::{LATER, SOON, each_on_a_thread, options, some_of, times, with_slots, within};

/// Bytes that the kernels handle at once on a CPU, the alignment of blocks, and the slots that these tests use.
const PACK_BYTES: usize = 512;
const ALIGNMENT_BYTES: usize = 64;
const SLOT_BYTES: usize = 128;
const SLOTS: usize = 2;

/// Counts at, just below and just above everything that may make a difference.
fn boundary_counts(rank_count: usize, element_bytes: usize) -> BTreeSet<usize> {
    let (slot, line) = (SLOT_BYTES / element_bytes, ALIGNMENT_BYTES / element_bytes);
    let boundaries =
        [1, rank_count, slot, SLOTS * slot, PACK_BYTES / element_bytes, rank_count * line, rank_count * slot];
    let around = boundaries.into_iter().flat_map(|boundary| [boundary - 1, boundary, boundary + 1]);
    around.chain([2 * rank_count - 1, rank_count * (SLOTS + 1) * slot + 1]).collect()
}

/// All ranks, none, or every second or third one.
fn in_place_patterns(rank_count: usize) -> Vec<u64> {
    let ranks = (1_u64 << rank_count) - 1;
    BTreeSet::from([0, ranks, 0x5555 & ranks, 0xb6db & ranks]).into_iter().collect()
}

/// Every small call of the collectives that `wanted` picks.
fn every_small_call(make: Make, wanted: impl Fn(Collective) -> bool) {
    let mut calls = 0_usize;
    // Each call takes the next pair of those that there are, so that all are met.
    let mut pairs = DType::ALL.iter().flat_map(|dtype| dtype.reductions().map(|reduction| (*dtype, reduction))).cycle();
    for rank_count in 1..=times(9, 8) {
        for collective in collectives(rank_count).into_iter().filter(|collective| wanted(*collective)) {
            for algorithm in collective.algorithms() {
                let mut options = with_slots(SLOT_BYTES as u32, SLOTS as u32);
                options.algorithm = Some(algorithm);
                let communicators = make(rank_count, options).unwrap();
                let patterns = in_place_patterns(rank_count);
                let mut cases = Vec::new();
                for dtype in DType::ALL {
                    // Each count takes the next reduction, of which there are fewer than counts.
                    let reductions = reductions(collective, *dtype);
                    let counts = boundary_counts(rank_count, dtype.bytes()).into_iter().enumerate();
                    cases.extend(counts.map(|(nth, count)| (*dtype, reductions[nth % reductions.len()], count)));
                }
                if !crate::IS_QUICK {
                    let few = if collective.root().is_some() { 1 } else { 4 };
                    cases = pairs
                        .by_ref()
                        .take(few)
                        .zip(calls..)
                        .map(|((dtype, reduction), nth)| {
                            let counts: Vec<usize> = boundary_counts(rank_count, dtype.bytes()).into_iter().collect();
                            (dtype, reduction, counts[nth * 7 % counts.len()])
                        })
                        .collect();
                }
                {
                    for (dtype, reduction, count) in cases {
                        // The next pattern.
                        let case = Case {
                            algorithm: Some(algorithm),
                            in_place: patterns[calls % patterns.len()],
                            offset: calls % 16,
                            needless_buffers: calls.is_multiple_of(3),
                            values: if calls.is_multiple_of(2) { Values::Exact } else { Values::Rough },
                            salt: calls as u64,
                            ..Case::new(collective, dtype, reduction, count)
                        };
                        call(&communicators, &case, Drive::Group);
                        calls += 1;
                    }
                }
            }
        }
    }
    println!("{calls} calls");
}

pub(crate) fn every_small_all_reduce_is_right(make: Make) {
    within(LATER, move || every_small_call(make, |collective| collective == Collective::AllReduce));
}

pub(crate) fn every_small_reduce_scatter_is_right(make: Make) {
    within(LATER, move || every_small_call(make, |collective| collective == Collective::ReduceScatter));
}

pub(crate) fn every_small_all_gather_is_right(make: Make) {
    within(LATER, move || every_small_call(make, |collective| collective == Collective::AllGather));
}

pub(crate) fn every_small_broadcast_is_right(make: Make) {
    within(LATER, move || every_small_call(make, |collective| matches!(collective, Collective::Broadcast { .. })));
}

pub(crate) fn every_small_reduce_is_right(make: Make) {
    within(LATER, move || every_small_call(make, |collective| matches!(collective, Collective::Reduce { .. })));
}

pub(crate) fn every_algorithm_is_right_on_threads_too(make: Make) {
    within(LATER, move || {
        let mut calls = 0;
        for rank_count in some_of([2, 3, 4, 7], 2) {
            let communicators = make(rank_count, with_slots(SLOT_BYTES as u32, SLOTS as u32)).unwrap();
            for collective in collectives(rank_count) {
                for algorithm in collective.algorithms() {
                    // Threads are slow: each algorithm takes a quarter of the types in turn.
                    for dtype in DType::ALL.iter().skip(calls / 2 % 4).step_by(times(4, 14)) {
                        let reductions = reductions(collective, *dtype);
                        let reduction = &reductions[calls / 2 % reductions.len()];
                        for count in [1, rank_count * 3 * SLOT_BYTES / dtype.bytes() + 1] {
                            let case = Case {
                                algorithm: Some(algorithm),
                                in_place: calls as u64,
                                offset: calls % 16,
                                values: Values::Rough,
                                salt: calls as u64,
                                ..Case::new(collective, *dtype, *reduction, count)
                            };
                            call(&communicators, &case, Drive::Threads);
                            calls += 1;
                        }
                    }
                }
            }
        }
    });
}

/// The slots and chunks that a communicator has by default are too large for the exhaustive tests.
pub(crate) fn calls_around_the_default_slots_and_chunks_are_right(make: Make) {
    const DEFAULT_SLOT_BYTES: usize = 32 << 10;
    const CHUNK_BYTES: usize = 1 << 20;
    within(LATER, move || {
        let mut calls = 0;
        for rank_count in some_of([2, 3], 1) {
            let communicators = make(rank_count, options(|_| {})).unwrap();
            for collective in
                collectives(rank_count).into_iter().filter(|each| each.root().is_none_or(|root| root.0 == 1))
            {
                for algorithm in collective.algorithms() {
                    // A ring and a direct all-reduce cut the data into a block for each rank before they cut it into chunks.
                    let blocks = if collective == Collective::AllReduce { rank_count } else { 1 };
                    let blocks = if matches!(algorithm, Algorithm::Ring | Algorithm::Direct) { blocks } else { 1 };
                    let chunk = if algorithm == Algorithm::Direct { CHUNK_BYTES } else { DEFAULT_SLOT_BYTES };
                    let dtype = DType::ALL[calls % DType::ALL.len()];
                    let boundary = blocks * chunk / dtype.bytes();
                    let several_slots = 4 * blocks * DEFAULT_SLOT_BYTES / dtype.bytes() + 1;
                    for count in some_of([boundary - 1, boundary, boundary + 1, several_slots], 1) {
                        let case = Case {
                            algorithm: Some(algorithm),
                            in_place: calls as u64,
                            offset: calls % 16,
                            salt: calls as u64,
                            ..Case::new(collective, dtype, Reduction::Sum, count)
                        };
                        call(&communicators, &case, Drive::Threads);
                        calls += 1;
                    }
                }
            }
        }
    });
}

pub(crate) fn the_same_call_twice_gives_the_same_bits(make: Make) {
    fn bits(make: Make, case: &Case, drive: Drive) {
        for rank_count in some_of([2, 3, 5, 8], 1) {
            let communicators = make(rank_count, with_slots(SLOT_BYTES as u32, SLOTS as u32)).unwrap();
            let inputs = case.inputs(rank_count);
            let mut outputs = (0..3).map(|_| {
                // Neither where the buffers lie nor who comes first may matter.
                let case = Case { offset: rank_count % 7, ..*case };
                let all = make_call(&communicators, &case, drive, &inputs).unwrap();
                all.iter().flat_map(|buffers| buffers.output().into_iter().map(|each| each.bits())).collect::<Vec<_>>()
            });
            let first = outputs.next().unwrap();
            for next in outputs {
                assert!(first == next, "{rank_count} ranks, {case:?}: other bits the next time");
            }
        }
    }
    within(LATER, move || {
        for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce { root: Rank(1) }] {
            for algorithm in collective.algorithms() {
                // Integers come out the same in any order.
                for dtype in DType::ALL.iter().filter(|dtype| !dtype.is_integer()) {
                    for reduction in some_of([Reduction::Sum, Reduction::Prod, Reduction::Avg], 1) {
                        let case = Case {
                            algorithm: Some(algorithm),
                            values: Values::Rough,
                            ..Case::new(collective, *dtype, reduction, 333)
                        };
                        bits(make, &case, Drive::Threads);
                    }
                }
            }
        }
    });
}

pub(crate) fn slots_of_every_small_size_and_number_carry_every_algorithm(make: Make) {
    within(LATER, move || {
        let mut calls = 0;
        for slot_bytes in some_of([64, 65, 66, 67, 68, 100, 127, 129, 1000], 4) {
            for slots in some_of([2, 4, 16], 1) {
                for rank_count in some_of([2, 5], 1) {
                    for collective in collectives(rank_count) {
                        for algorithm in collective.algorithms() {
                            let mut options = with_slots(slot_bytes, slots);
                            options.algorithm = Some(algorithm);
                            let communicators = make(rank_count, options).unwrap();
                            let dtype = DType::ALL[calls % DType::ALL.len()];
                            let case = Case {
                                algorithm: Some(algorithm),
                                in_place: calls as u64,
                                offset: calls % 16,
                                salt: calls as u64,
                                ..Case::new(collective, dtype, Reduction::Sum, 1501)
                            };
                            call(&communicators, &case, Drive::Group);
                            calls += 1;
                        }
                    }
                }
            }
        }
    });
}

pub(crate) fn nobody_leaves_a_barrier_before_everyone_has_come(make: Make) {
    within(SOON, move || {
        for rank_count in 1..=9 {
            let communicators = make(rank_count, options(|_| {})).unwrap();
            let come: Vec<AtomicUsize> = (0..times(50, 5)).map(|_| AtomicUsize::new(0)).collect();
            let start = Barrier::new(rank_count);
            each_on_a_thread(&communicators, |communicator| {
                start.wait();
                for (round, come) in come.iter().enumerate() {
                    if (round + communicator.rank()).is_multiple_of(rank_count) {
                        std::thread::yield_now();
                    }
                    come.fetch_add(1, Ordering::SeqCst);
                    communicator.barrier().unwrap();
                    assert_eq!(come.load(Ordering::SeqCst), rank_count, "rank {} left early", communicator.rank());
                }
            });
        }
    });
}
