//! Many calls, many ranks, many communicators.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use tutti::{Collective, DType, Rank, Reduction};

use super::Make;
use super::case::{Buffers, Case, Drive, Values, call, check, collectives};
use super::ranks::{LATER, Random, SOON, on_threads, options, some_of, times, within};

pub(crate) fn ten_thousand_mixed_calls_agree_on_every_rank(make: Make) {
    const RANKS: usize = 4;
    /// Calls between two checks, which all ranks' buffers are kept for.
    const ROW: usize = 100;

    fn next_case(random: &mut Random) -> Case {
        let collectives = collectives(RANKS);
        let collective = if random.below(20) == 0 { Collective::Barrier } else { random.one_of(&collectives) };
        let offered: Vec<_> = collective.algorithms().collect();
        let dtype = random.one_of(DType::ALL);
        let reductions: Vec<_> = dtype.reductions().collect();
        Case {
            algorithm: (random.below(2) == 0).then(|| random.one_of(&offered)),
            in_place: random.next(),
            offset: random.below(16),
            needless_buffers: random.below(2) == 0,
            values: if random.below(2) == 0 { Values::Exact } else { Values::Rough },
            salt: random.next(),
            ..Case::new(collective, dtype, random.one_of(&reductions), random.below(130))
        }
    }

    fn make_one(communicator: &tutti::Communicator, case: &Case) -> Buffers {
        let rank = communicator.rank();
        let mut buffers = Buffers::new(case, rank, RANKS, &case.inputs(RANKS)[rank]);
        buffers.call(communicator, case).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        buffers
    }

    within(LATER, move || {
        let communicators: Vec<_> = make(RANKS, options(|_| {})).unwrap().into_iter().map(Arc::new).collect();
        let mut random = Random(2026);
        for _ in 0..times(10_000, 300) / ROW {
            let row: Vec<Case> = (0..ROW).map(|_| next_case(&mut random)).collect();
            let mut kept: Vec<Vec<Buffers>> = std::thread::scope(|scope| {
                let threads: Vec<_> = communicators
                    .iter()
                    .map(|communicator| {
                        let row = &row;
                        scope.spawn(move || row.iter().map(|case| make_one(communicator, case)).collect())
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for case in row.iter().rev() {
                let all: Vec<Buffers> = kept.iter_mut().map(|rank| rank.pop().unwrap()).collect();
                check(case, &case.inputs(RANKS), &all).unwrap_or_else(|error| panic!("{case:?}: {error}"));
            }
        }
    });
}

pub(crate) fn a_root_may_run_ahead(make: Make) {
    within(SOON, move || {
        for count in some_of([1, 100, 20_000], 1) {
            for algorithm in (Collective::Broadcast { root: Rank(0) }).algorithms() {
                on_threads(make(3, options(|_| {})).unwrap(), |communicator| {
                    let rank = communicator.rank();
                    for round in 0..times(60, 12) {
                        let mut buffer = vec![if rank == 0 { round as f32 } else { -1.0 }; count];
                        communicator.call().algorithm(algorithm).broadcast_in_place(&mut buffer, 0).unwrap();
                        // The root's buffer changes at once; whoever reads it later reads what it was.
                        assert!(buffer.iter().all(|element| *element == round as f32), "round {round} by {algorithm}");
                        buffer.fill(f32::NAN);
                        if rank != 0 && round.is_multiple_of(20) {
                            std::thread::sleep(Duration::from_millis(2 * rank as u64));
                        }
                    }
                    // The other way: everyone else runs ahead of the root of a reduce.
                    for round in 0..times(60, 12) {
                        let mut buffer = vec![(round + rank) as f32; count];
                        communicator.reduce_in_place(&mut buffer, Reduction::Sum, 0).unwrap();
                        let expected = if rank == 0 { 3 * round + 3 } else { round + rank };
                        assert!(buffer.iter().all(|element| *element == expected as f32));
                        if rank == 0 && round.is_multiple_of(20) {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                    }
                });
            }
        }
    });
}

pub(crate) fn a_small_call_follows_a_much_larger_one(make: Make) {
    within(LATER, move || {
        let communicators = make(3, options(|_| {})).unwrap();
        for collective in collectives(3) {
            for algorithm in collective.algorithms() {
                for (nth, count) in [times(100_000, 9_000), 2, 0, times(40_000, 4_000), 1].into_iter().enumerate() {
                    let case = Case {
                        algorithm: Some(algorithm),
                        salt: nth as u64,
                        ..Case::new(collective, DType::F16, Reduction::Max, count)
                    };
                    call(&communicators, &case, Drive::Threads);
                }
            }
        }
    });
}

pub(crate) fn threads_may_share_a_communicator(make: Make) {
    within(SOON, move || {
        // Each rank's calls come from four threads in no particular order; all of them are the same call.
        let communicators: Vec<_> = make(2, options(|_| {})).unwrap().into_iter().map(Arc::new).collect();
        let start = Barrier::new(8);
        std::thread::scope(|scope| {
            for communicator in &communicators {
                for _ in 0..4 {
                    let (communicator, start) = (Arc::clone(communicator), &start);
                    scope.spawn(move || {
                        start.wait();
                        for round in 0..times(250, 20) {
                            let mut buffer = [1.0_f32, 2.0, 3.0];
                            if round % 10 == 0 {
                                buffer = communicator.all_reduce_async(buffer, Reduction::Sum).unwrap().wait().unwrap();
                            } else {
                                communicator.all_reduce_in_place(&mut buffer, Reduction::Sum).unwrap();
                            }
                            assert_eq!(buffer, [2.0, 4.0, 6.0]);
                        }
                    });
                }
            }
        });
    });
}

pub(crate) fn many_communicators_work_side_by_side(make: Make) {
    within(SOON, move || {
        // Sixty-four of them on three threads, each with a call for all of them in another order.
        let mut of_rank: Vec<Vec<_>> = (0..3).map(|_| Vec::new()).collect();
        let count = times(64, 6);
        for _ in 0..count {
            for communicator in make(3, options(|_| {})).unwrap() {
                of_rank[communicator.rank()].push(communicator);
            }
        }
        std::thread::scope(|scope| {
            for communicators in &of_rank {
                scope.spawn(move || {
                    for round in 0..times(10, 4) {
                        let pending: Vec<_> = (0..count)
                            .map(|place| if communicators[0].rank() == 1 { count - 1 - place } else { place })
                            .map(|place| {
                                (
                                    place,
                                    communicators[place]
                                        .all_reduce_async(vec![(place + round) as f32; 5], Reduction::Sum),
                                )
                            })
                            .collect();
                        for (place, call) in pending {
                            assert_eq!(call.unwrap().wait().unwrap(), [3.0 * (place + round) as f32; 5]);
                        }
                    }
                });
            }
        });
    });
}

pub(crate) fn many_more_ranks_than_processors_make_progress(make: Make) {
    within(LATER, move || {
        for rank_count in some_of([16, 33], 1) {
            let communicators = make(rank_count, options(|_| {})).unwrap();
            let root = Rank(rank_count as u32 / 2);
            for collective in [
                Collective::AllReduce,
                Collective::ReduceScatter,
                Collective::AllGather,
                Collective::Broadcast { root },
                Collective::Reduce { root },
            ] {
                for algorithm in collective.algorithms() {
                    for count in some_of([3, 5000], 1) {
                        let case = Case {
                            algorithm: Some(algorithm),
                            in_place: 0x5a5a_5a5a,
                            ..Case::new(collective, DType::F32, Reduction::Avg, count)
                        };
                        call(&communicators, &case, Drive::Threads);
                    }
                }
            }
            on_threads(communicators, |communicator| {
                (0..times(50, 3)).try_for_each(|_| communicator.barrier()).unwrap()
            });
        }
    });
}

pub(crate) fn communicators_come_and_go(make: Make) {
    fn used(make: Make, rank_count: usize, case: &Case) {
        let communicators = make(rank_count, options(|_| {})).unwrap();
        call(&communicators, case, Drive::Group);
        drop(communicators);
    }
    within(SOON, move || {
        for round in 0..times(1000, 12) {
            let dtype = DType::ALL[round % DType::ALL.len()];
            let case = Case::new(Collective::AllReduce, dtype, Reduction::Sum, round % 50);
            used(make, 1 + round % 5, &case);
            // Some are never used at all.
            drop(make(3, options(|_| {})).unwrap());
        }
    });
}
