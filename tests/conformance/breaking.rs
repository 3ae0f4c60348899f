//! What breaks a communicator, and what does not: aborts, panics, ranks that leave, mistakes of a caller.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use half::f16;
use tutti::{Algorithm, Collective, Communicator, DType, Error, ErrorKind, Group, Rank, Reduction};

use super::Make;
use super::case::{Case, Drive, call};
use super::ranks::{LATER, SOON, each_on_a_thread, on_threads, options, times, within};

/// How long the other ranks may take to notice, on a machine that does other things too.
const QUICK: Duration = Duration::from_secs(if crate::IS_QUICK { 5 } else { 60 });

fn sum(communicator: &Communicator, count: usize) -> tutti::Result<()> {
    communicator.all_reduce_in_place(&mut vec![1.0_f32; count], Reduction::Sum)
}

fn aborted(rank: usize, reason: &str) -> Error {
    Error::Aborted { rank, reason: reason.to_owned() }
}

pub(crate) fn abort_ends_a_call_that_is_under_way(make: Make) {
    within(SOON, move || {
        for handle_of in 0..3 {
            let mut communicators = make(3, options(|_| {})).unwrap();
            let handle = communicators[handle_of].abort_handle();
            // Rank 2 never comes, so the others are in the call when it ends.
            let absent = communicators.pop().unwrap();
            let started = Barrier::new(3);
            let since = Instant::now();
            let errors = std::thread::scope(|scope| {
                scope.spawn(|| {
                    started.wait();
                    std::thread::sleep(Duration::from_millis(30));
                    handle.abort("enough");
                });
                on_threads(communicators, |communicator| {
                    started.wait();
                    sum(&communicator, 1000).unwrap_err()
                })
            });
            assert!(since.elapsed() < QUICK);
            assert_eq!(errors, [aborted(handle_of, "enough"), aborted(handle_of, "enough")]);
            assert_eq!(errors[0].kind(), ErrorKind::Peer);
            assert_eq!(sum(&absent, 1000), Err(aborted(handle_of, "enough")));
        }
    });
}

pub(crate) fn abort_ends_calls_that_come_later(make: Make) {
    within(SOON, move || {
        let communicators = make(2, options(|_| {})).unwrap();
        let handle = communicators[0].abort_handle();
        handle.clone().abort(String::from("before anything"));
        handle.abort("too late to be the reason");
        for communicator in &communicators {
            assert_eq!(sum(communicator, 0), Err(aborted(0, "before anything")));
            assert_eq!(communicator.barrier(), Err(aborted(0, "before anything")));
            assert_eq!(communicator.split(None, 0).unwrap_err(), aborted(0, "before anything"));
            assert_eq!(communicator.lane().unwrap_err(), aborted(0, "before anything"));
            let failed = communicator.all_reduce_async(vec![1.0_f32], Reduction::Sum).unwrap().wait().unwrap_err();
            assert_eq!(failed.error, aborted(0, "before anything"));
            assert_eq!(failed.buffer, [1.0]);
        }
        // Others are none of its business.
        each_on_a_thread(&make(2, options(|_| {})).unwrap(), |communicator| sum(communicator, 10).unwrap());
    });
}

pub(crate) fn abort_reaches_every_algorithm(make: Make) {
    within(LATER, move || {
        for collective in Collective::ALL {
            for algorithm in collective.algorithms() {
                for delay_us in [0, 200, 2000] {
                    let mut communicators = make(4, options(|_| {})).unwrap();
                    let handle = communicators[0].abort_handle();
                    // Somebody whom everyone needs does not come: the root of a broadcast is rank 0, and goes on without.
                    let kept = communicators.pop().unwrap();
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            std::thread::sleep(Duration::from_micros(delay_us));
                            handle.abort("stop");
                        });
                        on_threads(communicators, |communicator| {
                            let call = communicator.call().algorithm(algorithm);
                            let mut big = vec![f16::from_f32(1.0); 400_000];
                            let result = match collective {
                                Collective::AllReduce => call.all_reduce_in_place(&mut big, Reduction::Max),
                                Collective::ReduceScatter => call.reduce_scatter_in_place(&mut big, Reduction::Max),
                                Collective::AllGather => call.all_gather_in_place(&mut big),
                                Collective::Broadcast { .. } => call.broadcast_in_place(&mut big, 0),
                                Collective::Reduce { .. } => call.reduce_in_place(&mut big, Reduction::Max, 0),
                                Collective::Barrier => call.barrier(),
                            };
                            // Ranks that did not need the missing one may have been through before.
                            result
                                .or_else(|error| if error == aborted(0, "stop") { Ok(()) } else { Err(error) })
                                .unwrap();
                        });
                    });
                    assert_eq!(kept.barrier(), Err(aborted(0, "stop")), "{algorithm} {collective}");
                }
            }
        }
    });
}

pub(crate) fn abort_outlives_the_communicators(make: Make) {
    within(SOON, move || {
        let handle = make(2, options(|_| {})).unwrap()[1].abort_handle();
        handle.abort("nobody is there");
        assert!(format!("{handle:?}").contains("rank: 1"));
    });
}

/// Runs ranks of which `panicking` panics on the way, and gives the others' errors.
fn with_a_panic(make: Make, rank_count: usize, panicking: usize, calls_before: usize) -> Vec<Error> {
    let communicators = make(rank_count, options(|_| {})).unwrap();
    let since = Instant::now();
    // What breaks a communicator in a call reaches ranks that are still in the one before.
    let all_through = &Barrier::new(rank_count);
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = communicators
            .into_iter()
            .map(|communicator| {
                scope.spawn(move || {
                    for _ in 0..calls_before {
                        sum(&communicator, 100).unwrap();
                    }
                    all_through.wait();
                    if communicator.rank() == panicking {
                        // Without the message of an ordinary panic, which is expected here.
                        std::panic::resume_unwind(Box::new("expected"));
                    }
                    sum(&communicator, 100).unwrap_err()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    assert!(since.elapsed() < QUICK, "the others waited for {:?}", since.elapsed());
    assert!(results[panicking].is_err());
    results.into_iter().flatten().collect()
}

fn check_left(error: &Error, sequence_is: u64, rank_is: usize, panicked_is: bool) {
    let Error::Left { sequence, call, rank, panicked } = error else {
        panic!("expected a rank that left, came: {error}")
    };
    assert_eq!((*sequence, *rank, *panicked), (sequence_is, rank_is, panicked_is), "{error}");
    assert_ne!(call.rank, rank_is);
    assert!(call.call.starts_with("all_reduce(count 100, f32, sum"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Peer);
    let how = if panicked_is { "panicked" } else { "dropped its communicator" };
    assert!(error.to_string().contains(&format!("rank {rank_is} {how}")), "{error}");
}

pub(crate) fn a_panic_frees_the_other_ranks(make: Make) {
    within(SOON, move || {
        for rank_count in [2, 3, 6] {
            for panicking in 0..rank_count {
                let errors = with_a_panic(make, rank_count, panicking, 0);
                assert_eq!(errors.len(), rank_count - 1);
                for error in &errors {
                    check_left(error, 1, panicking, true);
                    assert_eq!(*error, errors[0]);
                }
            }
        }
    });
}

pub(crate) fn a_panic_in_the_middle_of_a_row_of_calls_frees_the_other_ranks(make: Make) {
    within(SOON, move || {
        for panicking in 0..4 {
            for error in with_a_panic(make, 4, panicking, 25) {
                check_left(&error, 26, panicking, true);
            }
        }
    });
}

/// Lets rank 1 of `rank_count` panic after some calls, on a thread that only borrows what `share` makes of its communicator; the
/// others' errors from their next call. `calls_before` are made by `before`.
fn with_a_borrower_that_panics(make: Make, rank_count: usize, before: impl Fn(&Communicator) + Sync) -> Vec<Error> {
    let communicators: Vec<_> = make(rank_count, options(|_| {})).unwrap().into_iter().map(Arc::new).collect();
    let all_through = Barrier::new(rank_count);
    let (since, borrowed) = (Instant::now(), &communicators);
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = borrowed
            .iter()
            .map(|communicator| {
                let (communicator, before, all_through) = (Arc::clone(communicator), &before, &all_through);
                scope.spawn(move || {
                    let rank = communicator.rank();
                    before(&communicator);
                    all_through.wait();
                    if rank == 1 {
                        panic!("expected: the thread of rank 1 panics");
                    }
                    sum(&communicator, 100).unwrap_err()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    assert!(since.elapsed() < QUICK, "the others waited for {:?}", since.elapsed());
    assert!(results[1].is_err());
    results.into_iter().flatten().collect()
}

pub(crate) fn a_panic_of_a_thread_that_only_borrows_its_communicator_frees_the_other_ranks(make: Make) {
    within(SOON, move || {
        for rank_count in [2, 3, 6] {
            // Before its first call a rank is known by the thread that asked which one it is.
            for calls in [0, 1, 5] {
                let errors = with_a_borrower_that_panics(make, rank_count, |communicator| {
                    (0..calls).for_each(|_| sum(communicator, 100).unwrap());
                });
                assert_eq!(errors.len(), rank_count - 1);
                for error in &errors {
                    check_left(error, calls + 1, 1, true);
                    assert_eq!(*error, errors[0]);
                }
            }
            // The worker that runs asynchronous calls lives on; it is their caller's thread that counts.
            let errors = with_a_borrower_that_panics(make, rank_count, |communicator| {
                communicator.all_reduce_async(vec![1.0_f32; 100], Reduction::Sum).unwrap().wait().unwrap();
            });
            errors.iter().for_each(|error| check_left(error, 2, 1, true));
            // And the thread of the last call, not that of one before.
            let errors = with_a_borrower_that_panics(make, rank_count, |communicator| {
                std::thread::scope(|scope| drop(scope.spawn(|| sum(communicator, 100).unwrap())));
                sum(communicator, 100).unwrap();
            });
            errors.iter().for_each(|error| check_left(error, 3, 1, true));
        }
    });
}

pub(crate) fn a_panic_that_is_caught_breaks_nothing(make: Make) {
    /// Makes a call on the way out.
    struct CallsWhenDropped<'a>(&'a Communicator);

    impl Drop for CallsWhenDropped<'_> {
        fn drop(&mut self) {
            sum(self.0, 5).unwrap();
        }
    }

    fn catch(body: impl FnOnce()) {
        assert!(catch_unwind(AssertUnwindSafe(body)).is_err());
    }

    within(SOON, move || {
        let communicators = make(3, options(|_| {})).unwrap();
        each_on_a_thread(&communicators, |communicator| {
            let unlucky = communicator.rank() == 1;
            if unlucky {
                catch(|| panic!("expected: before the first call"));
            }
            sum(communicator, 5).unwrap();
            if unlucky {
                catch(|| panic!("expected: between two calls, the others of which wait"));
                std::thread::sleep(Duration::from_millis(30));
            }
            sum(communicator, 5).unwrap();
            if unlucky {
                catch(|| {
                    let _last_words = CallsWhenDropped(communicator);
                    panic!("expected: with a call on the way out");
                });
            } else {
                sum(communicator, 5).unwrap();
            }
            sum(communicator, 5).unwrap();
        });
        // Those threads have ended, and what they caught is forgotten.
        each_on_a_thread(&communicators, |communicator| {
            if communicator.rank() == 1 {
                std::thread::sleep(Duration::from_millis(30));
            }
            sum(communicator, 5).unwrap();
        });
        // A thread that ends by a panic after a later thread has made the rank's last call is none of the rank's.
        let (older, newer) = (Barrier::new(2), Barrier::new(2));
        let (communicators, older, newer) = (&communicators, &older, &newer);
        std::thread::scope(|scope| {
            let panics = scope.spawn(move || {
                sum(&communicators[1], 5).unwrap();
                older.wait();
                newer.wait();
                panic!("expected: of a thread that had its turn");
            });
            scope.spawn(move || {
                older.wait();
                sum(&communicators[1], 5).unwrap();
                newer.wait();
                assert!(panics.join().is_err());
                std::thread::sleep(Duration::from_millis(10));
                sum(&communicators[1], 5).unwrap();
            });
            for communicator in [&communicators[0], &communicators[2]] {
                scope.spawn(move || (0..3).for_each(|_| sum(communicator, 5).unwrap()));
            }
        });
    });
}

pub(crate) fn a_panic_among_asynchronous_calls_unwinds_at_once(make: Make) {
    within(SOON, move || {
        // One thread holds all ranks, and panics when only the first has made its call: unwinding drops that communicator
        // first, and its call can never end by itself.
        let since = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| {
            let communicators = make(3, options(|_| {})).unwrap();
            let _pending = communicators[0].all_reduce_async(vec![1.0_f32; 10], Reduction::Sum).unwrap();
            std::panic::resume_unwind(Box::new("expected"));
        }));
        assert!(result.is_err());
        assert!(since.elapsed() < QUICK, "unwinding took {:?}", since.elapsed());
    });
}

pub(crate) fn a_dropped_communicator_frees_the_other_ranks(make: Make) {
    within(SOON, move || {
        for rank_count in [2, 5] {
            for leaving in 0..rank_count {
                let since = Instant::now();
                // What breaks a communicator in a call reaches ranks that are still in the one before.
                let all_through = Barrier::new(rank_count);
                let errors = on_threads(make(rank_count, options(|_| {})).unwrap(), |communicator| {
                    sum(&communicator, 100).unwrap();
                    all_through.wait();
                    (communicator.rank() != leaving).then(|| sum(&communicator, 100).unwrap_err())
                });
                assert!(since.elapsed() < QUICK);
                for error in errors.iter().flatten() {
                    check_left(error, 2, leaving, false);
                }
            }
        }
    });
}

pub(crate) fn a_rank_may_leave_as_soon_as_it_has_finished(make: Make) {
    within(LATER, move || {
        for round in 0..times(200, 8) {
            for collective in
                [Collective::AllReduce, Collective::Broadcast { root: Rank(1) }, Collective::Reduce { root: Rank(0) }]
            {
                on_threads(make(3, options(|_| {})).unwrap(), |communicator| {
                    let mut buffer = vec![1.0_f32; if round % 2 == 0 { 1 } else { 30_000 }];
                    match collective {
                        Collective::AllReduce => communicator.all_reduce_in_place(&mut buffer, Reduction::Sum),
                        Collective::Broadcast { .. } => communicator.broadcast_in_place(&mut buffer, 1),
                        _ => communicator.reduce_in_place(&mut buffer, Reduction::Sum, 0),
                    }
                    .unwrap();
                    // Drops the communicator while others may still be in the call.
                });
            }
        }
    });
}

pub(crate) fn a_broken_communicator_stays_broken_with_the_same_error(make: Make) {
    within(SOON, move || {
        let errors = on_threads(make(3, options(|_| {})).unwrap(), |communicator| {
            let first = sum(&communicator, 10 + communicator.rank()).unwrap_err();
            assert!(matches!(first, Error::Mismatch { .. }), "{first}");
            communicator.abort_handle().abort("this is not what broke it");
            for _ in 0..3 {
                assert_eq!(sum(&communicator, 10).unwrap_err(), first);
                assert_eq!(communicator.barrier().unwrap_err(), first);
                let mut buffer = [1.0_f32];
                let mut group = Group::new();
                group.all_reduce_in_place(&communicator, &mut buffer, Reduction::Sum).unwrap();
                assert_eq!(group.run().unwrap_err(), first);
                assert_eq!(communicator.split(Some(0), 0).unwrap_err(), first);
                // What needs no peer still works.
                assert!(communicator.memory().connections <= 2);
                assert_eq!(communicator.rank_count(), 3);
            }
            first
        });
        assert!(errors.iter().all(|error| *error == errors[0]));
    });
}

pub(crate) fn mistakes_of_one_caller_leave_the_communicator_usable(make: Make) {
    within(SOON, move || {
        let communicators = make(3, options(|_| {})).unwrap();
        each_on_a_thread(&communicators, |communicator| {
            for round in 0..20 {
                // Another rank makes the mistakes each time, while the others are waiting for it already.
                if communicator.rank() == round % 3 {
                    let (input, mut output) = ([1.0_f32; 6], [0.0_f32; 4]);
                    let mut odd = [1.0_f32; 5];
                    let mistakes = [
                        communicator.all_reduce(&input, &mut output, Reduction::Sum),
                        communicator.reduce_scatter(&input, &mut output, Reduction::Sum),
                        communicator.reduce_scatter_in_place(&mut odd, Reduction::Sum),
                        communicator.all_gather(&input, &mut output),
                        communicator.all_gather_in_place(&mut odd),
                        communicator.broadcast(&input, &mut output, communicator.rank()),
                        communicator.broadcast_in_place(&mut output, 3),
                        communicator.broadcast_in_place(&mut output, usize::MAX),
                        communicator.reduce(&input, &mut output, Reduction::Sum, communicator.rank()),
                        communicator.reduce_in_place(&mut output, Reduction::Sum, 3),
                        communicator.call().algorithm(Algorithm::Ring).broadcast_in_place(&mut output, 0),
                        communicator.call().algorithm(Algorithm::Tree).barrier(),
                        communicator.call().algorithm(Algorithm::Dissemination).all_gather_in_place(&mut input.clone()),
                    ];
                    for mistake in mistakes {
                        let error = mistake.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::Caller, "{error}");
                    }
                    let failed = communicator.all_gather_async(odd.to_vec()).unwrap_err();
                    assert_eq!((failed.error.kind(), failed.buffer.len()), (ErrorKind::Caller, 5));
                    assert_eq!((input, output), ([1.0; 6], [0.0; 4]));
                }
                let mut buffer = [1.0_f32; 7];
                communicator.all_reduce_in_place(&mut buffer, Reduction::Sum).unwrap();
                assert_eq!(buffer, [3.0; 7]);
            }
        });
        call(&communicators, &Case::new(Collective::AllGather, DType::F16, Reduction::Sum, 100), Drive::Threads);
    });
}

pub(crate) fn mistakes_are_described_with_what_was_expected_and_what_came(make: Make) {
    within(SOON, move || {
        let communicators = make(3, options(|_| {})).unwrap();
        let one = &communicators[1];
        let (input, mut output) = ([1.0_f32; 6], [0.0_f32; 4]);
        let text = |result: tutti::Result<()>| result.unwrap_err().to_string();
        assert_eq!(
            text(one.all_reduce(&input, &mut output, Reduction::Sum)),
            "all_reduce: output: expected 6 elements (as many as the input), came 4"
        );
        assert_eq!(
            text(one.reduce_scatter(&input, &mut output, Reduction::Sum)),
            "reduce_scatter: input: expected 12 elements (the output's count for each rank), came 6"
        );
        assert_eq!(
            text(one.all_gather_in_place(&mut output)),
            "all_gather_in_place: buffer: expected a multiple of 3 elements, one block for each rank, came 4"
        );
        assert_eq!(text(one.broadcast_in_place(&mut output, 3)), "broadcast: root: expected a rank below 3, came 3");
        let error = one.call().algorithm(Algorithm::Ring).broadcast_in_place(&mut output, 0).unwrap_err();
        assert!(matches!(error, Error::Plan { call: "broadcast", .. }), "{error}");
        assert!(error.to_string().contains("broadcast is offered by tree, chain, direct"), "{error}");
    });
}

pub(crate) fn reductions_and_scales_that_do_not_fit_are_described_and_do_no_harm(make: Make) {
    within(SOON, move || {
        let communicators = make(2, options(|_| {})).unwrap();
        let one = &communicators[1];
        let (mut floats, mut whole) = ([1.0_f32; 3], [1_u8; 3]);
        let text = |result: tutti::Result<()>| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Caller, "{error}");
            error.to_string()
        };
        assert_eq!(
            text(one.all_reduce_in_place(&mut floats, Reduction::Bxor)),
            "all_reduce: reduction: expected one of sum, prod, min, max, avg, scaled_sum for f32, or for bxor elements of i8, \
             u8, i16, u16, i32, u32, i64, u64, came bxor of f32"
        );
        assert_eq!(
            text(one.reduce_in_place(&mut floats, Reduction::ScaledSum, 0)),
            "reduce: scale: expected one, as in communicator.call().scale(0.5), for a scaled_sum, came none"
        );
        assert_eq!(
            text(one.call().scale(2).all_reduce_in_place(&mut floats, Reduction::Sum)),
            "all_reduce: scale: expected none: only a scaled_sum scales, came 2"
        );
        assert_eq!(
            text(one.call().scale(0.5).all_reduce_in_place(&mut whole, Reduction::ScaledSum)),
            "all_reduce: scale: expected a whole number from 0 to 255 for u8, came 0.5"
        );
        assert!(text(one.call().scale(-1).broadcast_in_place(&mut whole, 0)).contains("only a scaled_sum scales"));
        let failed = one.call().all_reduce_async(vec![1.0_f64], Reduction::Band).unwrap_err();
        assert_eq!((failed.error.kind(), failed.buffer), (ErrorKind::Caller, vec![1.0]));
        let mut group = Group::new();
        let added = group.call(one).all_reduce_in_place(&mut whole, Reduction::ScaledSum);
        assert_eq!(added.unwrap_err().kind(), ErrorKind::Caller);
        group.run().unwrap();
        assert_eq!((floats, whole), ([1.0; 3], [1; 3]));
        call(&communicators, &Case::new(Collective::AllReduce, DType::U8, Reduction::Bxor, 100), Drive::Threads);
    });
}
