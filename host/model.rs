//! Whole calls, and the board, under a model checker: every order in which ranks can come to the words that they share.
//! Built with `--cfg loom` only (see `./test`); `tutti_kernels::model` says what stands in for what.
//!
//! The ranks run what they always run: the planner's plan, the interpreter, the board and connections in memory. Only
//! deadlines are left out, since there is no time here: that a rank gives up, for whatever reason, is a thread that does so.
//! Preemptions in one run are bounded where a model would take too long otherwise.

use std::sync::{Arc, Mutex};

use tutti_kernels::layout::{Fingerprint, Window};
use tutti_kernels::model::{self, Weakened};
use tutti_kernels::target::{is_aborted, note_read, note_write};

use crate::board::Board;
use crate::buffer::Memory;
use crate::core::{Core, Polled, Request, World};
use crate::dtype::{DType, Reduction};
use crate::error::{Error, Result};
use crate::fingerprint::Purpose;
use crate::options::{Options, Overrides};
use crate::plan::{Algorithm, Collective};
use crate::presence;
use crate::sync::lock;

const RANKS: usize = 2;

/// One float for each rank to reduce.
const COUNT: usize = RANKS;

/// What ends a call early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Nothing.
    Well,
    /// Another thread aborts the communicator, at any time.
    Abort,
    /// Rank 1 gives up after so many polls.
    GiveUp(usize),
}

/// One rank in its call, and the buffers that it has lent.
struct Caller {
    core: Core,
    input: Box<[f32; COUNT]>,
    output: Box<[f32; COUNT]>,
}

// SAFETY: a rank may go from thread to thread, as communicators do.
unsafe impl Send for Caller {}

fn aborted() -> Error {
    Error::Aborted { rank: 0, reason: "at any time".to_owned() }
}

fn gave_up() -> Error {
    Error::Aborted { rank: 1, reason: "enough".to_owned() }
}

impl Caller {
    /// Comes to the call, on the thread that made the world: connections are opened there.
    fn start(world: &Arc<World>, rank: usize, algorithm: Algorithm) -> Caller {
        let mut core = Core::new(Arc::clone(world), rank, Options::default()).expect("there is nothing to refuse");
        let mut input = Box::new([0.0; COUNT]);
        for (index, element) in input.iter_mut().enumerate() {
            *element = (1 + 10 * rank + index) as f32;
        }
        let mut output = Box::new([0.0; COUNT]);
        // Each element by itself: ranks share them out.
        for element in input.iter().chain(output.iter()) {
            model::share_plain(std::ptr::from_ref(element).cast(), size_of::<f32>());
        }
        let request = Request {
            purpose: Purpose::Collective,
            collective: Collective::AllReduce,
            dtype: Some(DType::F32),
            reduction: Some(Reduction::Sum),
            scale: 0,
            count: COUNT as u64,
            input: input.as_ptr().cast(),
            output: output.as_mut_ptr().cast(),
            memory: [Memory::Host; 2],
        };
        let overrides = Overrides { algorithm: Some(algorithm), ..Overrides::default() };
        core.start(&request, &overrides).expect("the call begins");
        Caller { core, input, output }
    }

    /// Runs the call to its end, or gives up after `polls` polls; then the buffers are the caller's own again.
    fn run(mut self, mut polls: Option<usize>) -> Result<()> {
        let ended = loop {
            if polls == Some(0) {
                break Err(self.core.give_up(gave_up()));
            }
            polls = polls.map(|polls| polls - 1);
            match self.core.poll() {
                Ok(Polled::Done) => break Ok(()),
                Ok(Polled::Moved) => {}
                Ok(Polled::Waiting) => model::yield_now(),
                Err(error) => break Err(self.core.give_up(error)),
            }
        };
        if ended.is_ok() {
            let expected: Vec<f32> = (0..COUNT).map(|index| (2 * (1 + index) + 10) as f32).collect();
            note_read(&raw const *self.output);
            assert_eq!(self.output[..], expected);
        }
        // Whatever has come of the call, the caller may write to its buffers, or free them.
        note_write(&raw mut *self.input);
        note_write(&raw mut *self.output);
        ended
    }
}

/// An all-reduce of two ranks.
fn all_reduce(algorithm: Algorithm, end: End) {
    // Threads of a model are one thread to the system: nobody's fate depends on it.
    presence::work_for_others();
    let world = World::in_process(RANKS, &Options::default().slot_bytes(64).slots(2)).expect("they are in range");
    for rank in 0..RANKS {
        model::share_plain(world.board.windows().wrapping_add(rank).cast(), size_of::<Window>());
    }
    let [first, second] = [0, 1].map(|rank| Caller::start(&world, rank, algorithm));
    let second = model::spawn(move || {
        second.run(match end {
            End::GiveUp(polls) => Some(polls),
            _ => None,
        })
    });
    let aborter = (end == End::Abort).then(|| {
        let world = Arc::clone(&world);
        model::spawn(move || world.abort(&aborted()))
    });
    let first = first.run(None);
    let second = second.join().expect("the rank ends");
    if let Some(aborter) = aborter {
        aborter.join().expect("the aborter ends");
    }
    let why = if end == End::Abort { aborted() } else { gave_up() };
    for ended in [&first, &second] {
        assert!(ended.is_ok() || (end != End::Well && *ended == Err(why.clone())), "{ended:?}");
    }
}

fn report(model: &str, runs: usize) {
    println!("{model}: {runs} runs");
    assert!(runs > 1, "a model with one run has not modelled anything");
}

#[test]
fn a_call_that_ends_well_gives_every_rank_its_buffers_back() {
    for algorithm in [Algorithm::Direct, Algorithm::OneShot, Algorithm::Ring] {
        let runs = model::check(Some(2), None, move || all_reduce(algorithm, End::Well));
        report(&format!("{algorithm} all-reduce"), runs);
    }
}

#[test]
fn an_abort_at_any_time_ends_every_rank_with_its_error_and_its_buffers_back() {
    for algorithm in [Algorithm::Direct, Algorithm::OneShot] {
        let runs = model::check(Some(2), None, move || all_reduce(algorithm, End::Abort));
        report(&format!("{algorithm} all-reduce, aborted"), runs);
    }
}

#[test]
fn a_rank_that_gives_up_at_any_time_gets_its_buffers_back_and_ends_the_others() {
    for polls in 0..4 {
        let runs = model::check(Some(2), None, move || all_reduce(Algorithm::Direct, End::GiveUp(polls)));
        report(&format!("giving up after {polls} polls"), runs);
    }
}

fn fingerprint(rank: usize, sequence: u64) -> Fingerprint {
    let word = |place| 1000 * rank as u64 + 10 * sequence + place;
    Fingerprint { sequence, call: word(1), count: word(2), plan: word(3), scale: word(4) }
}

/// A rank that posts a call into the place of an old one, which another rank reads at the time.
fn overwritten_history() {
    const HISTORY: u64 = crate::board::HISTORY as u64;
    let board = Arc::new(Board::new(RANKS, None));
    for sequence in 1..HISTORY {
        board.post(0, &fingerprint(0, sequence));
    }
    let poster = {
        let board = Arc::clone(&board);
        model::spawn(move || {
            for sequence in HISTORY..HISTORY + 2 {
                board.post(0, &fingerprint(0, sequence));
            }
        })
    };
    for sequence in [1, HISTORY] {
        let read = board.fingerprint(0, sequence);
        assert!(read.is_none_or(|read| read == fingerprint(0, sequence)), "mixed words: {read:?}");
    }
    poster.join().expect("the poster ends");
    assert_eq!(board.fingerprint(0, 1), None);
    assert_eq!(board.fingerprint(0, HISTORY + 1), Some(fingerprint(0, HISTORY + 1)));
}

#[test]
fn a_fingerprint_is_read_whole_or_not_at_all() {
    report("history", model::check(Some(2), None, overwritten_history));
}

/// Two ranks that come to different calls, and look.
fn both_post_and_look() {
    let board = Arc::new(Board::new(RANKS, None));
    let look = |board: &Board, rank| {
        board.post(rank, &fingerprint(rank, 1));
        board.mismatch_seen(rank, &fingerprint(rank, 1)).is_some()
    };
    let other = {
        let board = Arc::clone(&board);
        model::spawn(move || look(&board, 1))
    };
    let seen = look(&board, 0);
    assert!(other.join().expect("the rank ends") || seen, "neither rank saw the other");
}

#[test]
fn of_two_ranks_that_post_and_look_one_sees_the_other() {
    report("post and look", model::check(Some(3), None, both_post_and_look));
}

#[test]
fn whoever_sees_the_abort_word_finds_the_first_error() {
    let runs = model::check(None, None, || {
        let board = Arc::new(Board::new(RANKS, None));
        let verdicts = Arc::new(Mutex::new(Vec::new()));
        let failing = [aborted(), gave_up()].map(|error| {
            let (board, verdicts) = (Arc::clone(&board), Arc::clone(&verdicts));
            model::spawn(move || {
                let verdict = board.fail(error);
                lock(&verdicts).push(verdict);
            })
        });
        // SAFETY: the board is here.
        if unsafe { is_aborted(board.abort_word()) } {
            let verdict = board.verdict().expect("the error comes before the word");
            lock(&verdicts).push(verdict);
        }
        for failing in failing {
            failing.join().expect("the thread ends");
        }
        let verdicts = lock(&verdicts);
        assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]), "{verdicts:?}");
    });
    report("verdicts", runs);
}

/// Planted mistakes: a model must fail without an ordering that it needs.
#[test]
fn an_ordering_that_is_missing_is_reported() {
    use Weakened::{Acquire, Fence, Release};
    let fails = |weakened, model: fn(), says: &str| {
        let failure = model::failure(Some(2), Some(weakened), model);
        let failure = failure.unwrap_or_else(|| panic!("{weakened:?}: nothing was missed"));
        assert!(failure.contains(says), "{weakened:?}: {failure}");
    };
    for weakened in [Release, Acquire] {
        fails(weakened, || all_reduce(Algorithm::Direct, End::Well), "Causality violation");
        fails(weakened, || all_reduce(Algorithm::OneShot, End::Well), "Causality violation");
        fails(weakened, overwritten_history, "mixed words");
    }
    // The guard on lent memory is what the fence is for.
    fails(Fence, || all_reduce(Algorithm::Direct, End::Abort), "Causality violation");
    fails(Fence, || all_reduce(Algorithm::Direct, End::GiveUp(2)), "Causality violation");
    fails(Fence, overwritten_history, "mixed words");
    fails(Fence, both_post_and_look, "neither rank");
}
