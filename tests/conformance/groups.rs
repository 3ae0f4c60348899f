//! Several calls in one launch.

use std::time::Duration;

use tutti::{Algorithm, Error, ErrorKind, Group, Reduction};

use super::Make;
use super::ranks::{SOON, on_threads, options, within};

pub(crate) fn a_group_looks_like_its_calls_one_after_the_other(make: Make) {
    within(SOON, move || {
        on_threads(make(3, options(|_| {})).unwrap(), |communicator| {
            let rank = communicator.rank();
            for _ in 0..50 {
                let (mut sums, mut maxima, mut all) = (vec![1.0_f32; 500], [rank as f32], [0.0_f32; 3]);
                let (own, mut from_root, mut block) = ([rank as f32], vec![rank as f32; 9], [0.0_f32; 2]);
                let blocks = [rank as f32; 6];
                // Rank 1 has no group, and the others' look the same to it.
                if rank == 1 {
                    communicator.all_reduce_in_place(&mut sums, Reduction::Sum).unwrap();
                    communicator.reduce_in_place(&mut maxima, Reduction::Max, 0).unwrap();
                    communicator.all_gather(&own, &mut all).unwrap();
                    communicator.barrier().unwrap();
                    communicator.broadcast_in_place(&mut from_root, 2).unwrap();
                    communicator.reduce_scatter(&blocks, &mut block, Reduction::Sum).unwrap();
                } else {
                    let mut group = Group::new();
                    assert!(group.is_empty());
                    group.all_reduce_in_place(&communicator, &mut sums, Reduction::Sum).unwrap();
                    group.reduce_in_place(&communicator, &mut maxima, Reduction::Max, 0).unwrap();
                    group.all_gather(&communicator, &own, &mut all).unwrap();
                    group.barrier(&communicator);
                    group.broadcast_in_place(&communicator, &mut from_root, 2).unwrap();
                    group.reduce_scatter(&communicator, &blocks, &mut block, Reduction::Sum).unwrap();
                    assert_eq!(group.len(), 6);
                    group.run().unwrap();
                }
                assert_eq!(sums, [3.0; 500]);
                assert_eq!(maxima, if rank == 0 { [2.0] } else { own });
                assert_eq!(all, [0.0, 1.0, 2.0]);
                assert_eq!(from_root, [2.0; 9]);
                assert_eq!(block, [3.0; 2]);
            }
        });
    });
}

pub(crate) fn one_thread_can_be_all_ranks_of_several_communicators(make: Make) {
    within(SOON, move || {
        let (pair, triple) = (make(2, options(|_| {})).unwrap(), make(3, options(|_| {})).unwrap());
        let mut of_pair: Vec<Vec<f32>> = (0..2).map(|rank| vec![rank as f32 + 1.0; 40_000]).collect();
        let mut of_triple: Vec<Vec<f32>> = (0..3).map(|rank| vec![rank as f32 + 1.0; 10]).collect();
        let mut again: Vec<Vec<f32>> = (0..2).map(|rank| vec![rank as f32; 3]).collect();
        let mut group = Group::new();
        // In no particular order between communicators.
        for (rank, buffer) in of_triple.iter_mut().enumerate().rev() {
            group.all_reduce_in_place(&triple[rank], buffer, Reduction::Prod).unwrap();
        }
        for (rank, (buffer, again)) in of_pair.iter_mut().zip(&mut again).enumerate() {
            group.all_reduce_in_place(&pair[rank], buffer, Reduction::Sum).unwrap();
            group.all_reduce_in_place(&pair[rank], again, Reduction::Sum).unwrap();
            group.barrier(&pair[rank]);
        }
        assert_eq!(group.len(), 9);
        group.run().unwrap();
        assert_eq!(of_pair, vec![vec![3.0; 40_000]; 2]);
        assert_eq!(of_triple, vec![vec![6.0; 10]; 3]);
        assert_eq!(again, vec![vec![1.0; 3]; 2]);
    });
}

pub(crate) fn a_group_that_is_dropped_does_nothing(make: Make) {
    within(SOON, move || {
        let communicators = make(2, options(|_| {})).unwrap();
        let mut buffer = [1.0_f32; 4];
        let mut group = Group::new();
        group.all_reduce_in_place(&communicators[0], &mut buffer, Reduction::Sum).unwrap();
        drop(group);
        assert_eq!(buffer, [1.0; 4]);
        // Nor has a call been made that the next one would have to match.
        on_threads(communicators, |communicator| communicator.barrier().unwrap());
    });
}

pub(crate) fn a_mistake_is_reported_where_it_is_added(make: Make) {
    within(SOON, move || {
        on_threads(make(2, options(|_| {})).unwrap(), |communicator| {
            let (mut short, mut good, input) = ([0.0_f32; 2], [1.0_f32; 3], [1.0_f32; 3]);
            let mut group = Group::new();
            let error = group.all_reduce(&communicator, &input, &mut short, Reduction::Sum).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Caller);
            group.all_reduce_in_place(&communicator, &mut good, Reduction::Sum).unwrap();
            assert_eq!(group.len(), 1);
            group.run().unwrap();
            assert_eq!(good, [2.0; 3]);
        });
    });
}

pub(crate) fn a_failure_in_one_communicator_leaves_the_others_finished(make: Make) {
    within(SOON, move || {
        let (good, broken) = (make(2, options(|_| {})).unwrap(), make(2, options(|_| {})).unwrap());
        broken[1].abort_handle().abort("this one only");
        let mut sums = [[1.0_f32; 5], [2.0; 5]];
        let mut others = [[1.0_f32; 5], [2.0; 5]];
        let mut group = Group::new();
        for (rank, (sum, other)) in sums.iter_mut().zip(&mut others).enumerate() {
            group.all_reduce_in_place(&broken[rank], other, Reduction::Sum).unwrap();
            group.all_reduce_in_place(&good[rank], sum, Reduction::Sum).unwrap();
        }
        assert_eq!(group.run(), Err(Error::Aborted { rank: 1, reason: "this one only".to_owned() }));
        assert_eq!(sums, [[3.0; 5]; 2]);
        on_threads(good, |communicator| communicator.barrier().unwrap());
    });
}

pub(crate) fn a_group_waits_for_asynchronous_calls_that_were_issued_before(make: Make) {
    within(SOON, move || {
        let communicators = make(2, options(|_| {})).unwrap();
        let pending: Vec<_> = communicators
            .iter()
            .map(|communicator| communicator.all_reduce_async(vec![1.0_f32; 100_000], Reduction::Sum).unwrap())
            .collect();
        let mut buffers = [[1.0_f32], [2.0]];
        let mut group = Group::new();
        for (communicator, buffer) in communicators.iter().zip(&mut buffers) {
            group.all_reduce_in_place(communicator, buffer, Reduction::Max).unwrap();
        }
        group.run().unwrap();
        assert_eq!(buffers, [[2.0], [2.0]]);
        for call in pending {
            assert!(call.is_done());
            assert_eq!(call.wait().unwrap(), vec![2.0; 100_000]);
        }
    });
}

pub(crate) fn empty_groups_succeed(make: Make) {
    within(SOON, move || {
        Group::new().run().unwrap();
        let communicators = make(2, options(|_| {})).unwrap();
        // Nothing in them, but calls all the same.
        let mut buffers: [Vec<f32>; 2] = [Vec::new(), Vec::new()];
        let mut group = Group::new();
        for (communicator, buffer) in communicators.iter().zip(&mut buffers) {
            group.all_reduce_in_place(communicator, buffer, Reduction::Sum).unwrap();
        }
        group.run().unwrap();
    });
}

pub(crate) fn a_group_goes_on_beside_calls_that_need_it(make: Make) {
    within(SOON, move || {
        // Either communicator may be the one whose call is under way, whatever order a group takes them in.
        for busy in [0, 1] {
            for asynchronous in [true, false] {
                let communicators = make(2, options(|_| {})).unwrap();
                let (busy, other) = (&communicators[busy], &communicators[1 - busy]);
                std::thread::scope(|scope| {
                    let pending = if asynchronous {
                        Some(busy.all_reduce_async(vec![1.0_f32; 10], Reduction::Sum).unwrap())
                    } else {
                        scope.spawn(|| {
                            let mut early = [1.0_f32; 10];
                            busy.all_reduce_in_place(&mut early, Reduction::Sum).unwrap();
                            assert_eq!(early, [3.0; 10]);
                        });
                        std::thread::sleep(Duration::from_millis(20));
                        None
                    };
                    // The other rank's part of the call under way is in the group, before what the busy one has there.
                    let (mut part, mut last) = ([2.0_f32; 10], [[1.0_f32], [4.0]]);
                    let [one, two] = &mut last;
                    let mut group = Group::new();
                    group.all_reduce_in_place(busy, one, Reduction::Max).unwrap();
                    group.all_reduce_in_place(other, &mut part, Reduction::Sum).unwrap();
                    group.all_reduce_in_place(other, two, Reduction::Max).unwrap();
                    group.run().unwrap();
                    assert_eq!((part, last), ([3.0; 10], [[4.0], [4.0]]));
                    if let Some(pending) = pending {
                        assert_eq!(pending.wait().unwrap(), [3.0; 10]);
                    }
                });
            }
        }
    });
}

pub(crate) fn groups_of_two_threads_do_not_mix(make: Make) {
    within(SOON, move || {
        let communicators = make(3, options(|_| {})).unwrap();
        let communicators = &communicators;
        std::thread::scope(|scope| {
            for thread in [1.0_f32, 100.0] {
                scope.spawn(move || {
                    for round in 0..200 {
                        let mut buffers = [[thread; 4]; 3];
                        let mut group = Group::new();
                        let order: [usize; 3] = std::array::from_fn(|nth| (nth + round) % 3);
                        let mut places: Vec<_> = buffers.iter_mut().map(Some).collect();
                        for rank in order {
                            let buffer = places[rank].take().unwrap();
                            group.all_reduce_in_place(&communicators[rank], buffer, Reduction::Sum).unwrap();
                        }
                        group.run().unwrap();
                        assert_eq!(buffers, [[3.0 * thread; 4]; 3]);
                    }
                });
            }
        });
    });
}

pub(crate) fn a_call_of_a_group_has_settings_of_its_own(make: Make) {
    within(SOON, move || {
        // One that must not wait, between two that may.
        let communicators = make(2, options(|_| {})).unwrap();
        let mut buffers = [[1.0_f32; 3]; 3];
        let [first, second, third] = &mut buffers;
        let mut group = Group::new();
        let one = &communicators[0];
        group.call(one).algorithm(Algorithm::Ring).all_reduce_in_place(first, Reduction::Sum).unwrap();
        group.call(one).arrival_timeout(Duration::from_millis(50)).broadcast_in_place(second, 1).unwrap();
        group.all_reduce_in_place(one, third, Reduction::Sum).unwrap();
        let error = std::thread::scope(|scope| {
            // Another algorithm would be a mismatch.
            scope.spawn(|| {
                let call = communicators[1].call().algorithm(Algorithm::Ring);
                call.all_reduce_in_place(&mut [2.0_f32; 3], Reduction::Sum).unwrap();
            });
            group.run().expect_err("rank 1 makes one call only")
        });
        let Error::Late { sequence: 2, late, .. } = &error else { panic!("{error}") };
        assert_eq!((late.len(), late[0].rank, late[0].last_sequence), (1, 1, 1));
        assert_eq!(buffers, [[3.0; 3], [1.0; 3], [1.0; 3]]);
        // What an algorithm does not offer is said where it is added.
        let communicators = make(2, options(|_| {})).unwrap();
        let [first, second, third] = &mut buffers;
        let mut group = Group::new();
        let errors = [
            group.call(&communicators[0]).algorithm(Algorithm::Ring).broadcast_in_place(first, 0).unwrap_err(),
            group.call(&communicators[0]).algorithm(Algorithm::Ring).barrier().unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::Plan { .. }), "{error}");
            assert_eq!(error.kind(), ErrorKind::Caller);
        }
        assert!(group.is_empty());
        // Both kinds of calls go together.
        for (communicator, buffer) in communicators.iter().zip([second, third]) {
            group.barrier(communicator);
            let call = group.call(communicator).algorithm(Algorithm::Tree).progress_timeout(SOON);
            call.reduce_in_place(buffer, Reduction::Sum, 1).unwrap();
        }
        group.run().unwrap();
        assert_eq!(buffers, [[3.0; 3], [1.0; 3], [2.0; 3]]);
    });
}
