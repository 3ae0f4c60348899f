//! Deadlines: who does not come in time is named, on every rank.
//!
//! (That a rank which has come and then stops is named too is a unit test of the library: no caller can stop inside a call.)

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use tutti::{Algorithm, Collective, Communicator, Error, ErrorKind, LateRank, Options, Reduction};

use super::Make;
use super::ranks::{SOON, each_on_a_thread, on_threads, options, within};

const SHORT: Duration = Duration::from_millis(150);

fn arrival_timeout(timeout: Duration) -> Options {
    options(|options| options.arrival_timeout = timeout)
}

fn all_reduce(communicator: &Communicator) -> tutti::Result<()> {
    communicator.all_reduce_in_place(&mut [1.0_f32; 3], Reduction::Sum)
}

fn late_ranks(error: &Error) -> &[LateRank] {
    let Error::Late { late, .. } = error else { panic!("expected late ranks, came: {error}") };
    assert_eq!(error.kind(), ErrorKind::Peer);
    late
}

fn absent(rank: usize, last_sequence: u64) -> LateRank {
    LateRank { rank, last_sequence, arrived: false, thread_ended: false, thread_panicked: false }
}

/// Lets the ranks for which `comes` is false wait until the others have failed, and then come; everyone's error.
fn errors(communicators: Vec<Communicator>, comes: impl Fn(usize) -> bool + Sync) -> Vec<Error> {
    let waiting = std::sync::Barrier::new(communicators.len());
    on_threads(communicators, |communicator| {
        if !comes(communicator.rank()) {
            waiting.wait();
            return all_reduce(&communicator).expect_err("the others have given up");
        }
        let before = Instant::now();
        let error = all_reduce(&communicator).expect_err("somebody never comes");
        assert!(before.elapsed() >= SHORT, "gave up after {:?}", before.elapsed());
        waiting.wait();
        error
    })
}

pub(crate) fn a_rank_that_never_comes_is_named_on_every_rank(make: Make) {
    within(SOON, move || {
        for rank_count in [2, 3, 5] {
            for late in 0..rank_count {
                let errors = errors(make(rank_count, arrival_timeout(SHORT)).unwrap(), |rank| rank != late);
                for error in &errors {
                    assert_eq!(late_ranks(error), [absent(late, 0)], "{error}");
                    assert_eq!(*error, errors[0]);
                    assert!(error.to_string().contains(&format!("rank {late} has not come to any call")), "{error}");
                }
                let Error::Late { sequence, call, waited, .. } = &errors[0] else { unreachable!() };
                assert_eq!(*sequence, 1);
                assert!(call.rank != late && call.call.contains("all_reduce(count 3, f32, sum"), "{}", errors[0]);
                assert!(*waited >= SHORT && *waited < SOON);
            }
        }
    });
}

pub(crate) fn several_late_ranks_are_all_named(make: Make) {
    within(SOON, move || {
        let errors = errors(make(6, arrival_timeout(SHORT)).unwrap(), |rank| rank == 1 || rank == 4);
        for error in &errors {
            assert_eq!(late_ranks(error), [absent(0, 0), absent(2, 0), absent(3, 0), absent(5, 0)]);
        }
        // More than a few are counted.
        let errors = self::errors(make(13, arrival_timeout(SHORT)).unwrap(), |rank| rank == 12);
        assert_eq!(late_ranks(&errors[0]).len(), 12);
        assert!(errors[0].to_string().contains("and 4 more"), "{}", errors[0]);
    });
}

pub(crate) fn a_deadline_of_one_call_is_its_own(make: Make) {
    within(SOON, move || {
        // Among ranks that all wait long, one call does not.
        let communicators = make(2, options(|_| {})).unwrap();
        let call = communicators[0].call().arrival_timeout(SHORT);
        let error = call.all_reduce_in_place(&mut [1.0_f32], Reduction::Sum).unwrap_err();
        assert_eq!(late_ranks(&error), [absent(1, 0)]);
        assert_eq!(all_reduce(&communicators[1]), Err(error));
        // And among ranks that do not wait, one call does. The last rank to come has nobody to wait for.
        on_threads(make(2, arrival_timeout(Duration::from_millis(1))).unwrap(), |communicator| {
            if communicator.rank() == 1 {
                std::thread::sleep(SHORT);
            }
            communicator.call().arrival_timeout(SOON).barrier().unwrap();
        });
    });
}

pub(crate) fn a_rank_that_comes_late_but_in_time_is_waited_for(make: Make) {
    within(SOON, move || {
        // A short deadline for those who have come does not count while somebody has not.
        let options = options(|options| options.progress_timeout = Duration::from_millis(50));
        for collective in ["all_reduce", "barrier", "split", "all_gather"] {
            on_threads(make(3, options.clone()).unwrap(), |communicator| {
                if communicator.rank() == 1 {
                    std::thread::sleep(2 * SHORT);
                }
                let waits = communicator.call().progress_timeout(SOON);
                match collective {
                    "all_reduce" => waits.all_reduce_in_place(&mut [1.0_f32], Reduction::Sum),
                    "barrier" => waits.barrier(),
                    "all_gather" => waits.all_gather_in_place(&mut [1.0_f32; 3]),
                    _ => communicator.split(None, 0).map(drop),
                }
                .unwrap();
            });
        }
    });
}

pub(crate) fn a_late_rank_is_named_with_its_last_call(make: Make) {
    within(SOON, move || {
        let communicators = make(3, arrival_timeout(SHORT)).unwrap();
        let errors = on_threads(communicators, |communicator| {
            let calls = if communicator.rank() == 2 { 4 } else { 5 };
            let result = (0..calls).try_for_each(|_| all_reduce(&communicator));
            if communicator.rank() == 2 {
                result.unwrap();
                // Still there, only late.
                std::thread::sleep(4 * SHORT);
            }
            all_reduce(&communicator).unwrap_err()
        });
        for error in &errors {
            assert_eq!(late_ranks(error), [absent(2, 4)], "{error}");
            assert!(error.to_string().contains("its last call was call 4"), "{error}");
        }
    });
}

pub(crate) fn a_late_rank_is_named_by_those_that_do_not_wait_for_it_directly(make: Make) {
    within(SOON, move || {
        // In a ring or a chain most ranks wait for one that waits itself.
        for collective in [Collective::AllReduce, Collective::Broadcast { root: tutti::Rank(3) }] {
            for algorithm in collective.algorithms() {
                let waiting = std::sync::Barrier::new(6);
                let errors = on_threads(make(6, arrival_timeout(SHORT)).unwrap(), |communicator| {
                    let call = communicator.call().algorithm(algorithm);
                    let mut buffer = vec![1.0_f32; 100_000];
                    let mut result = Ok(());
                    if communicator.rank() != 3 {
                        result = match collective {
                            Collective::AllReduce => call.all_reduce_in_place(&mut buffer, Reduction::Sum),
                            _ => call.broadcast_in_place(&mut buffer, 3),
                        };
                    }
                    waiting.wait();
                    let next = all_reduce(&communicator).unwrap_err();
                    if let Err(error) = result {
                        assert_eq!(error, next);
                    }
                    next
                });
                for error in &errors {
                    assert_eq!(late_ranks(error), [absent(3, 0)], "{algorithm} {collective}: {error}");
                }
            }
        }
    });
}

pub(crate) fn a_rank_whose_calls_come_from_short_lived_threads_is_waited_for(make: Make) {
    within(SOON, move || {
        let communicators = make(2, options(|options| options.progress_timeout = SHORT)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..3).for_each(|_| all_reduce(&communicators[0]).unwrap()));
            for _ in 0..3 {
                std::thread::scope(|step| {
                    step.spawn(|| all_reduce(&communicators[1]).unwrap());
                });
                std::thread::sleep(2 * SHORT);
            }
        });
    });
}

pub(crate) fn a_late_rank_whose_thread_has_ended_is_named_so(make: Make) {
    within(SOON, move || {
        let communicators = make(2, arrival_timeout(SHORT)).unwrap();
        // Rank 1's thread makes one call, and ends without giving up the communicator.
        let results = each_on_a_thread(&communicators, |communicator| {
            all_reduce(communicator).unwrap();
            if communicator.rank() == 0 { all_reduce(communicator) } else { Ok(()) }
        });
        let error = results[0].clone().expect_err("rank 1 made one call only");
        assert_eq!(late_ranks(&error), [LateRank { thread_ended: true, ..absent(1, 1) }]);
        assert!(error.to_string().contains("its last call was call 1, and its thread has ended"), "{error}");
    });
}

pub(crate) fn a_rank_whose_thread_has_panicked_and_lives_on_gets_the_shorter_deadline(make: Make) {
    within(SOON, move || {
        for calls in [0, 2] {
            let communicators = make(2, options(|options| options.progress_timeout = SHORT)).unwrap();
            // A scope waits for its threads before its own panic goes on, so the panicking thread waits for its peers.
            let mut error = None;
            let panic = catch_unwind(AssertUnwindSafe(|| {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        (0..calls).for_each(|_| all_reduce(&communicators[0]).unwrap());
                        error = all_reduce(&communicators[0]).err();
                    });
                    assert_eq!(communicators[1].rank(), 1);
                    (0..calls).for_each(|_| all_reduce(&communicators[1]).unwrap());
                    panic!("expected: rank 1 panics in a scope that has yet to end");
                });
            }));
            assert!(panic.is_err());
            let error = error.expect("rank 1 does not come");
            assert_eq!(late_ranks(&error), [LateRank { thread_panicked: true, ..absent(1, calls) }]);
            assert!(error.to_string().contains("and its thread has panicked"), "{error}");
        }
    });
}

pub(crate) fn a_root_waits_in_its_second_call_for_those_that_have_not_come_to_the_first(make: Make) {
    within(SOON, move || {
        for algorithm in [Algorithm::Tree, Algorithm::Chain] {
            let broadcast = |communicator: &Communicator| {
                communicator.call().algorithm(algorithm).broadcast_in_place(&mut [1.0_f32], 0)
            };
            let mut communicators = make(3, arrival_timeout(SHORT)).unwrap();
            broadcast(&communicators[0]).unwrap();
            broadcast(&communicators[1]).unwrap();
            let error = broadcast(&communicators[0]).unwrap_err();
            assert_eq!(late_ranks(&error), [absent(2, 0)], "{error}");
            let Error::Late { sequence: 2, .. } = error else { panic!("{error}") };
            // Gone is gone, and aborted is aborted, there too.
            for aborts in [false, true] {
                communicators = make(3, options(|_| {})).unwrap();
                let handle = communicators[1].abort_handle();
                let absent = communicators.pop().unwrap();
                broadcast(&communicators[0]).unwrap();
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        std::thread::sleep(SHORT / 10);
                        if aborts {
                            handle.abort("enough");
                        }
                        drop(absent);
                    });
                    let error = broadcast(&communicators[0]).unwrap_err();
                    assert_eq!(matches!(error, Error::Aborted { .. }), aborts, "{error}");
                    assert_eq!(matches!(error, Error::Left { rank: 2, .. }), !aborts, "{error}");
                });
            }
        }
    });
}

pub(crate) fn deadlines_of_zero_and_of_forever_are_deadlines(make: Make) {
    within(SOON, move || {
        let forever = options(|options| {
            options.arrival_timeout = Duration::MAX;
            options.progress_timeout = Duration::MAX;
        });
        on_threads(make(3, forever).unwrap(), |communicator| {
            std::thread::sleep(SHORT / 10 * communicator.rank() as u32);
            all_reduce(&communicator).unwrap();
        });
        let communicators = make(2, arrival_timeout(Duration::ZERO)).unwrap();
        let error = all_reduce(&communicators[0]).unwrap_err();
        assert_eq!(late_ranks(&error), [absent(1, 0)]);
    });
}
