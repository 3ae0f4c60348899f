//! What callers cannot bring about: a rank that comes to a call and then does nothing. Time is what the tests say it is.

use std::time::{Duration, Instant};

use super::*;
use crate::buffer::Memory;
use crate::core::Core;
use crate::dtype::DType;
use crate::error::LateRank;
use crate::fingerprint::Purpose;
use crate::plan::{Algorithm, Collective, Rank};

/// A call of one rank, and the buffer that it is over.
fn start(core: &mut Core, buffer: &mut [f32], collective: Collective, algorithm: Algorithm) {
    let request = Request {
        purpose: Purpose::Collective,
        collective,
        dtype: Some(DType::F32),
        reduction: Some(Reduction::Sum),
        scale: 0,
        count: buffer.len() as u64,
        input: buffer.as_ptr().cast(),
        output: buffer.as_mut_ptr().cast(),
        memory: [Memory::Host; 2],
    };
    core.start(&request, &Overrides { algorithm: Some(algorithm), ..Overrides::default() }).unwrap()
}

#[test]
fn a_rank_that_comes_and_then_stops_is_named_on_every_rank() {
    let progress_timeout = Duration::from_millis(60);
    for (collective, algorithm) in [
        (Collective::AllReduce, Algorithm::Ring),
        (Collective::AllReduce, Algorithm::OneShot),
        (Collective::AllReduce, Algorithm::Direct),
        (Collective::Reduce { root: Rank(0) }, Algorithm::Chain),
    ] {
        let world = World::in_process(4, &Options::default()).unwrap();
        let options = Options { progress_timeout, ..Options::default() };
        let mut cores: Vec<Core> =
            (0..4).map(|rank| Core::new(Arc::clone(&world), rank, options.clone()).unwrap()).collect();
        let mut buffers = vec![vec![1.0_f32; 100]; 4];
        for (core, buffer) in cores.iter_mut().zip(&mut buffers) {
            start(core, buffer, collective, algorithm);
        }
        let begun = Instant::now();
        let mut now = begun;
        let stopped = 2;
        let error = 'waiting: loop {
            now += Duration::from_millis(1);
            assert!(now - begun < 2 * progress_timeout, "{algorithm}: nobody noticed");
            for rank in (0..4).filter(|rank| *rank != stopped) {
                let core = &mut cores[rank];
                if core.poll().unwrap() == Polled::Waiting
                    && let Err(error) = core.look(now)
                {
                    break 'waiting error;
                }
            }
        };
        let Error::Late { sequence: 1, late, waited, .. } = &error else { panic!("{algorithm}: {error}") };
        assert_eq!(
            *late,
            [LateRank { rank: stopped, last_sequence: 1, arrived: true, thread_ended: false, thread_panicked: false }],
            "{algorithm}: {error}"
        );
        assert!(*waited >= progress_timeout);
        assert!(error.to_string().contains("rank 2 came and then stopped"), "{error}");
        // Everyone learns of it, the stopped rank too when it goes on.
        for core in &mut cores {
            let came = loop {
                match core.poll() {
                    Ok(Polled::Done) => break None,
                    Ok(_) => {
                        if let Err(error) = core.look(now) {
                            break Some(error);
                        }
                    }
                    Err(error) => break Some(error),
                }
            };
            assert!(came.is_none_or(|came| core.give_up(came) == error));
            assert_eq!(world.board.verdict().as_ref(), Some(&error));
        }
    }
}

#[test]
fn ranks_that_make_progress_are_never_late_however_slowly_they_do() {
    let options = Options { progress_timeout: Duration::from_millis(40), ..Options::default() };
    let world = World::in_process(2, &Options::default().slot_bytes(64).slots(2)).unwrap();
    let mut cores: Vec<Core> =
        (0..2).map(|rank| Core::new(Arc::clone(&world), rank, options.clone()).unwrap()).collect();
    let mut buffers = vec![vec![1.0_f32; 800]; 2];
    for (core, buffer) in cores.iter_mut().zip(&mut buffers) {
        start(core, buffer, Collective::AllReduce, Algorithm::Ring);
    }
    let (begun, mut now) = (Instant::now(), Instant::now());
    let mut done = [false; 2];
    while done != [true; 2] {
        // Rank 1 takes a few steps, and then rests until just before rank 0 would lose patience.
        done[1] = done[1] || cores[1].poll().unwrap() == Polled::Done;
        for _ in 0..39 {
            now += Duration::from_millis(1);
            if !done[0] {
                match cores[0].poll().unwrap() {
                    Polled::Done => done[0] = true,
                    Polled::Waiting => cores[0].look(now).unwrap(),
                    Polled::Moved => {}
                }
            }
        }
    }
    assert!(now - begun > 10 * options.progress_timeout, "it took {:?}: nothing was tested", now - begun);
    assert_eq!(buffers, vec![vec![2.0; 800]; 2]);
}
