//! Peers touch a rank's buffers only while it is in the call: however the call ends, once it has returned they are its own.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tutti::{Algorithm, Communicator, Error, Reduction};

use super::Make;
use super::ranks::{LATER, Random, on_threads, options, within};

const COUNT: usize = 300_000;

/// What a rank writes over its buffers as soon as they are its own again.
fn poison(rank: usize, round: u64) -> f32 {
    -(1.0 + rank as f32 + round as f32 * 10.0)
}

/// Makes a large call whose peers write into this rank's output, and poisons the output the moment that the call returns. Where
/// it failed, nobody may have written to it when all ranks are out of it.
fn lend_and_check(communicator: &Communicator, round: u64, all_out: &Barrier) -> tutti::Result<()> {
    let rank = communicator.rank();
    let poison = poison(rank, round);
    let (mut input, mut output) = (vec![1.0_f32; COUNT], vec![0.0_f32; COUNT]);
    let call = communicator.call().algorithm(Algorithm::Direct);
    let result = call.all_reduce(&input, &mut output, Reduction::Sum);
    output.fill(poison);
    input.fill(poison);
    all_out.wait();
    for buffer in [&input, &output] {
        let written = buffer.iter().position(|element| element.to_bits() != poison.to_bits());
        assert_eq!(written, None, "round {round}: a peer wrote to rank {rank} after its call had returned: {result:?}");
    }
    result
}

pub(crate) fn nobody_touches_buffers_after_an_aborted_call_has_returned(make: Make) {
    within(LATER, move || {
        let (mut ended_early, mut rounds) = (0, 0);
        let mut random = Random(11);
        while rounds < 150 {
            rounds += 1;
            let rank_count = 2 + random.below(3);
            let communicators = make(rank_count, options(|_| {})).unwrap();
            let handle = communicators[random.below(rank_count)].abort_handle();
            let delay = Duration::from_micros(random.below(1500) as u64);
            let (start, all_out) = (Barrier::new(rank_count + 1), Barrier::new(rank_count));
            let failed = std::thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    std::thread::sleep(delay);
                    handle.abort("now");
                });
                on_threads(communicators, |communicator| {
                    start.wait();
                    lend_and_check(&communicator, rounds, &all_out).is_err()
                })
            });
            ended_early += u64::from(failed.contains(&true));
        }
        println!("{ended_early} of {rounds} calls ended early");
        assert!(ended_early > 0, "no abort ever came in time: nothing was tested");
    });
}

pub(crate) fn nobody_touches_buffers_after_a_rank_has_left(make: Make) {
    within(LATER, move || {
        let mut random = Random(12);
        for round in 0..60 {
            let rank_count = 3 + random.below(2);
            let leaving = random.below(rank_count);
            let all_out = Barrier::new(rank_count - 1);
            let gone = AtomicBool::new(false);
            on_threads(make(rank_count, options(|_| {})).unwrap(), |communicator| {
                if communicator.rank() == leaving {
                    // Leaves when the others may have begun, in one of three ways.
                    std::thread::sleep(Duration::from_micros(50 * (round % 7)));
                    gone.store(true, Ordering::SeqCst);
                    if round % 3 == 0 {
                        communicator.barrier().expect_err("another call than the others'");
                    } else if round % 3 == 1 {
                        communicator.abort_handle().abort("leaving");
                    }
                    return;
                }
                let error = lend_and_check(&communicator, round, &all_out).expect_err("one rank never comes");
                assert!(gone.load(Ordering::SeqCst));
                let right = match round % 3 {
                    0 => matches!(error, Error::Mismatch { .. }),
                    1 => matches!(error, Error::Aborted { .. }),
                    _ => matches!(error, Error::Left { .. }),
                };
                assert!(right, "round {round}: {error}");
            });
        }
    });
}
