//! Smaller communicators, and lanes.

use std::sync::Barrier;
use std::time::Duration;

use tutti::{Algorithm, Collective, Communicator, DType, Error, Reduction};

use super::Make;
use super::case::{Case, Drive, call};
use super::ranks::{SOON, each_on_a_thread, on_threads, options, times, within};

/// The sum of all ranks' numbers.
fn sum_of(communicator: &Communicator, number: usize) -> usize {
    let mut buffer = [number as f32];
    communicator.all_reduce_in_place(&mut buffer, Reduction::Sum).unwrap();
    buffer[0] as usize
}

pub(crate) fn colours_and_keys_decide_who_is_where(make: Make) {
    within(SOON, move || {
        // Rank, colour, key: evens in reverse order, odds with equal keys, the largest colour alone.
        let wishes = [(0, 4), (7, -1), (0, 2), (7, -1), (0, i64::MIN), (7, i64::MAX), (u32::MAX, 0)];
        let expected = [(2, 3), (0, 3), (1, 3), (1, 3), (0, 3), (2, 3), (0, 1)];
        let members = [[4, 2, 0], [1, 3, 5]];
        on_threads(make(7, options(|_| {})).unwrap(), |whole| {
            let (color, key) = wishes[whole.rank()];
            let part = whole.split(Some(color), key).unwrap().expect("a part");
            assert_eq!((part.rank(), part.rank_count()), expected[whole.rank()]);
            let mut all = vec![0.0_f32; part.rank_count()];
            part.all_gather(&[whole.rank() as f32], &mut all).unwrap();
            if color != u32::MAX {
                assert_eq!(all, members[usize::from(color == 7)].map(|rank: usize| rank as f32));
            }
        });
    });
}

pub(crate) fn a_rank_without_a_colour_gets_none(make: Make) {
    within(SOON, move || {
        on_threads(make(4, options(|_| {})).unwrap(), |whole| {
            let part = whole.split((whole.rank() == 2).then_some(5), 0).unwrap();
            assert_eq!(part.is_some(), whole.rank() == 2);
            if let Some(part) = part {
                assert_eq!((part.rank(), part.rank_count(), sum_of(&part, 9)), (0, 1, 9));
            }
            assert!(whole.split(None, 1).unwrap().is_none());
            assert_eq!(sum_of(&whole, 1), 4);
        });
    });
}

pub(crate) fn a_part_outlives_the_whole(make: Make) {
    within(SOON, move || {
        on_threads(make(6, options(|_| {})).unwrap(), |whole| {
            let rank = whole.rank();
            let part = whole.split(Some(rank as u32 % 2), 0).unwrap().unwrap();
            drop(whole);
            for round in 0..20 {
                assert_eq!(sum_of(&part, round), 3 * round);
            }
        });
    });
}

pub(crate) fn parts_of_parts_work_beside_their_parents(make: Make) {
    within(SOON, move || {
        on_threads(make(8, options(|_| {})).unwrap(), |whole| {
            let rank = whole.rank();
            let half = whole.split(Some(rank as u32 / 4), 0).unwrap().unwrap();
            let pair = half.split(Some(half.rank() as u32 / 2), 0).unwrap().unwrap();
            // The same grid the other way: who is at the same place of every pair.
            let across = whole.split(Some(rank as u32 % 2), rank as i64).unwrap().unwrap();
            for _ in 0..10 {
                assert_eq!(sum_of(&pair, rank), rank / 2 * 4 + 1);
                assert_eq!(sum_of(&half, rank), if rank < 4 { 6 } else { 22 });
                assert_eq!(sum_of(&across, rank), if rank % 2 == 0 { 12 } else { 16 });
                assert_eq!(sum_of(&whole, rank), 28);
            }
            for (index, part) in [&whole, &half, &pair, &across].into_iter().enumerate() {
                assert_eq!(part.rank_count(), [8, 4, 2, 4][index]);
            }
        });
    });
}

pub(crate) fn calls_on_lanes_overlap(make: Make) {
    within(SOON, move || {
        // A call of the communicator cannot end before one of the lane has: on one connection this would be a deadlock.
        on_threads(make(2, options(|_| {})).unwrap(), |communicator| {
            let lane = communicator.lane().unwrap();
            assert_eq!((lane.rank(), lane.rank_count()), (communicator.rank(), 2));
            if crate::LOADS_CODE {
                // Not beside other calls.
                assert_eq!((sum_of(&lane, 1), sum_of(&communicator, 1)), (2, 2));
                communicator.barrier().unwrap();
            }
            std::thread::scope(|scope| {
                if communicator.rank() == 0 {
                    scope.spawn(|| communicator.barrier().unwrap());
                    assert_eq!(sum_of(&lane, 1), 2);
                } else {
                    assert_eq!(sum_of(&lane, 1), 2);
                    std::thread::sleep(Duration::from_millis(20));
                    communicator.barrier().unwrap();
                }
            });
            // Many calls on both at once.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    (0..times(300, 30)).for_each(|round| assert_eq!(sum_of(&communicator, round), 2 * round))
                });
                (0..times(300, 30)).for_each(|round| assert_eq!(sum_of(&lane, 2 * round), 4 * round));
            });
        });
    });
}

pub(crate) fn a_broken_part_leaves_the_whole_usable(make: Make) {
    within(SOON, move || {
        let aborted = Barrier::new(4);
        on_threads(make(4, options(|_| {})).unwrap(), |whole| {
            let part = whole.split(Some(whole.rank() as u32 / 2), 0).unwrap().unwrap();
            let lane = whole.lane().unwrap();
            if whole.rank() == 0 {
                part.abort_handle().abort("only this part");
            }
            aborted.wait();
            let result = part.barrier();
            if whole.rank() < 2 {
                assert_eq!(result, Err(Error::Aborted { rank: 0, reason: "only this part".to_owned() }));
            } else {
                result.unwrap();
            }
            assert_eq!(sum_of(&whole, 1), 4);
            assert_eq!(sum_of(&lane, 1), 4);
        });
    });
}

pub(crate) fn an_abort_reaches_lanes_and_parts(make: Make) {
    within(SOON, move || {
        let expected = Error::Aborted { rank: 2, reason: "all of it".to_owned() };
        // Before the calls begin, and while all ranks but the last are in them.
        for delay_ms in [0, 30] {
            let whole = make(4, options(|_| {})).unwrap();
            let parts = each_on_a_thread(&whole, |whole| {
                let half = whole.split(Some(whole.rank() as u32 / 2), 0).unwrap().unwrap();
                let lane_of_half = half.lane().unwrap();
                [whole.lane().unwrap(), half, lane_of_half]
            });
            let handle = whole[2].abort_handle();
            std::thread::scope(|scope| {
                for part in parts.iter().flatten().filter(|part| part.rank() + 1 < part.rank_count()) {
                    scope.spawn(|| assert_eq!(part.barrier(), Err(expected.clone())));
                }
                std::thread::sleep(Duration::from_millis(delay_ms));
                handle.abort("all of it");
            });
            for communicator in parts.iter().flatten().chain(&whole) {
                assert_eq!(communicator.barrier(), Err(expected.clone()));
            }
        }
    });
}

pub(crate) fn an_abort_reaches_parts_of_parts_that_are_gone(make: Make) {
    within(SOON, move || {
        let whole = make(2, options(|_| {})).unwrap();
        let lanes = each_on_a_thread(&whole, |whole| {
            let lane = whole.lane().unwrap().lane().unwrap().lane().unwrap();
            // A communicator that has come to grief in another way still passes an abort on.
            whole.all_reduce_in_place(&mut vec![1.0_f32; whole.rank() + 1], Reduction::Sum).unwrap_err();
            lane
        });
        let expected = Error::Aborted { rank: 0, reason: "so be it".to_owned() };
        each_on_a_thread(&lanes, |lane| lane.barrier().unwrap());
        let handle = whole[0].abort_handle();
        drop(whole);
        handle.abort("so be it");
        each_on_a_thread(&lanes, |lane| assert_eq!(lane.barrier(), Err(expected.clone())));
        // Aborting a part of it leaves the whole alone.
        let whole = make(2, options(|_| {})).unwrap();
        let parts = each_on_a_thread(&whole, |whole| whole.lane().unwrap());
        let parts_of_parts = each_on_a_thread(&parts, |part| part.lane().unwrap());
        parts[1].abort_handle().abort("no more");
        each_on_a_thread(&whole, |whole| assert_eq!(sum_of(whole, 1), 2));
        for communicator in parts.iter().chain(&parts_of_parts) {
            let expected = Error::Aborted { rank: 1, reason: "no more".to_owned() };
            assert_eq!(communicator.barrier(), Err(expected));
        }
    });
}

pub(crate) fn parts_inherit_settings(make: Make) {
    within(SOON, move || {
        let options = options(|options| {
            options.arrival_timeout = Duration::from_millis(100);
            options.algorithm = Some(Algorithm::Ring);
            options.slot_bytes = 256;
        });
        let whole = make(4, options).unwrap();
        let parts = each_on_a_thread(&whole, |whole| whole.split(Some(whole.rank() as u32 / 2), 0).unwrap().unwrap());
        let plan = parts[0].plan(Collective::AllReduce, 1000, DType::F32).unwrap();
        assert_eq!(plan.algorithm, Algorithm::Ring);
        assert!(plan.connections.iter().all(|connection| connection.slot_bytes <= 256));
        call(&parts[2..], &Case::new(Collective::AllReduce, DType::F32, Reduction::Sum, 1000), Drive::Threads);
        assert!(matches!(parts[0].barrier(), Err(Error::Late { .. })));
    });
}
