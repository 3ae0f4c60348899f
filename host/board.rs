//! The board: what each rank of a communicator lets the others see.
//!
//! Every rank has lines of its own that only it writes: which call it has come to, the fingerprints of its last calls, how
//! many steps it has fired, whom it is waiting for, whether it is still there. When all is well nobody reads another's
//! lines, so they cost nothing; a rank that is blocked reads them all, and can then say who is late or who does something
//! else. Beside them stand the abort word, which every wait watches, and the verdict: the error that broke the communicator,
//! written once and given to every rank.
//!
//! The board is also the guard on memory that is only lent. A rank marks its `touching` word while it may touch a peer's
//! memory (the interpreter does); a rank that leaves a call early raises the abort word and then waits, in
//! [`Board::expel`], until no peer is touching anything. See `begin_touch` in the kernels for why that is sound.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::Mutex;

use tutti_kernels::layout::{Fingerprint, Window, buffer};
use tutti_kernels::target::note_write;

use crate::error::{Error, LateRank, RankCall, Result};
use crate::fingerprint::{describe, describe_both};
use crate::presence::{Fate, ThreadToken};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::{lock, yield_now};

/// How many of a rank's last calls the board remembers. A rank is at most two calls ahead of its peers; what is beyond that lets
/// an error name the first call in which they differed.
pub(crate) const HISTORY: usize = 16;

/// [`Lines::waiting_on`] of a rank that is not waiting.
const NOBODY: u32 = u32::MAX;

/// What one rank lets the others see.
#[repr(align(128))]
struct Lines {
    /// The call that the rank has come to. Published after the call's fingerprint.
    sequence: AtomicU64,
    /// The last call that the rank has finished.
    finished: AtomicU64,
    /// Steps fired so far, in all calls.
    fired: AtomicU64,
    /// Whom the rank is waiting for.
    waiting_on: AtomicU32,
    /// The thread that made the rank's last call, a [`ThreadToken`], and in the bits from [`FATE_SHIFT`] on what has become of
    /// it since.
    driver: AtomicU64,
    /// Whether the rank has given up its communicator, and whether it was panicking.
    left: AtomicBool,
    panicked: AtomicBool,
    /// The fingerprints of the last calls, at their sequence modulo the length; each word on its own, so that a reader who
    /// comes too late reads nonsense but never a data race (see [`Board::fingerprint`]).
    history: [[AtomicU64; 5]; HISTORY],
    touching: Touching,
}

/// Where [`Lines::driver`] says what has become of the thread: 0 for nothing, else as [`Lines::fate`] reads it.
const FATE_SHIFT: u32 = 62;

impl Lines {
    /// What has become of the thread that made the rank's last call, if anything has.
    fn fate(&self) -> Option<Fate> {
        match self.driver.load(Ordering::Acquire) >> FATE_SHIFT {
            0 => None,
            1 => Some(Fate::Panicked),
            2 => Some(Fate::Ended),
            _ => Some(Fate::Died),
        }
    }

    /// Whether the rank makes no more calls, as far as anybody can tell.
    fn is_gone(&self) -> bool {
        self.left.load(Ordering::Acquire) || self.fate() == Some(Fate::Died)
    }

    /// As a rank that others wait for in a call to which it has come, or not.
    fn late(&self, rank: usize, last_sequence: u64, arrived: bool) -> LateRank {
        let fate = self.fate();
        LateRank {
            rank,
            last_sequence,
            arrived,
            thread_ended: matches!(fate, Some(Fate::Ended | Fate::Died)),
            thread_panicked: matches!(fate, Some(Fate::Panicked | Fate::Died)),
        }
    }
}

/// Nonzero while the rank may be touching a peer's memory. On lines of its own: it changes at every step.
#[repr(align(128))]
struct Touching(AtomicU32);

/// Who is missing from a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// All ranks have come.
    Nobody,
    /// Ranks that may be busy with something else.
    Live,
    /// Ranks, among them one whose thread has panicked since its last call.
    Panicked,
}

/// See the module.
pub(crate) struct Board {
    abort: Touching,
    verdict: Mutex<Option<Error>>,
    ranks: Box<[Lines]>,
    windows: Box<[UnsafeCell<Window>]>,
    /// Who else must know at once that the communicator is broken.
    on_abort: Option<Box<dyn Fn() + Send + Sync>>,
}

// SAFETY: all but `windows` is atomic or locked. A rank writes its own window before it publishes a slot of the call, peers
// read it after they acquired that slot and before they publish the slot that the rank waits for at the end of the call; the
// verifier proves both for every plan.
unsafe impl Sync for Board {}
// SAFETY: the addresses in `windows` are only used under the protocol above.
unsafe impl Send for Board {}

impl Board {
    /// For so many ranks; it tells somebody else too when the communicator breaks.
    pub(crate) fn new(rank_count: usize, on_abort: Option<Box<dyn Fn() + Send + Sync>>) -> Board {
        let lines = || Lines {
            sequence: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            fired: AtomicU64::new(0),
            waiting_on: AtomicU32::new(NOBODY),
            driver: AtomicU64::new(0),
            left: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            history: Default::default(),
            touching: Touching(AtomicU32::new(0)),
        };
        let window = || UnsafeCell::new(Window { buffers: [ptr::null_mut(); buffer::COUNT] });
        Board {
            abort: Touching(AtomicU32::new(0)),
            verdict: Mutex::new(None),
            ranks: (0..rank_count).map(|_| lines()).collect(),
            windows: (0..rank_count).map(|_| window()).collect(),
            on_abort,
        }
    }

    pub(crate) fn rank_count(&self) -> usize {
        self.ranks.len()
    }

    /// Says that `rank` has come to a call.
    pub(crate) fn post(&self, rank: usize, fingerprint: &Fingerprint) {
        let lines = &self.ranks[rank];
        let Fingerprint { sequence, call, count, plan, scale } = *fingerprint;
        let words = [sequence, call, count, plan, scale];
        // A reader that sees a new word of an old entry must also see that the call before this one was published.
        fence(Ordering::Release);
        for (place, word) in lines.history[fingerprint.sequence as usize % HISTORY].iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        lines.sequence.store(fingerprint.sequence, Ordering::Release);
    }

    /// Says that `rank` is done with the call that it had come to.
    pub(crate) fn finish(&self, rank: usize, sequence: u64) {
        self.ranks[rank].finished.store(sequence, Ordering::Release);
    }

    /// Says how many steps `rank` has fired.
    pub(crate) fn note_fired(&self, rank: usize, fired: u64) {
        self.ranks[rank].fired.store(fired, Ordering::Relaxed);
    }

    /// Says whom `rank` is waiting for.
    pub(crate) fn note_waiting(&self, rank: usize, peer: Option<usize>) {
        self.ranks[rank].waiting_on.store(peer.map_or(NOBODY, |peer| peer as u32), Ordering::Relaxed);
    }

    /// Whether `thread` is known to drive `rank`, and nothing is known to have become of it.
    pub(crate) fn is_driven_by(&self, rank: usize, thread: ThreadToken) -> bool {
        self.ranks[rank].driver.load(Ordering::Relaxed) == thread.0
    }

    /// Says which thread drives `rank` from now on.
    pub(crate) fn note_driver(&self, rank: usize, thread: ThreadToken) {
        self.ranks[rank].driver.store(thread.0, Ordering::Release);
    }

    /// Says what has become of a thread; it matters if it is the one that drove `rank` last.
    pub(crate) fn note_fate(&self, rank: usize, thread: ThreadToken, fate: Option<Fate>) {
        let code = match fate {
            None => 0,
            Some(Fate::Panicked) => 1,
            Some(Fate::Ended) => 2,
            Some(Fate::Died) => 3,
        };
        let fated =
            |driver: u64| (driver & !(u64::MAX << FATE_SHIFT) == thread.0).then_some(thread.0 | code << FATE_SHIFT);
        let _ = self.ranks[rank].driver.fetch_update(Ordering::Release, Ordering::Relaxed, fated);
    }

    /// Whether `rank` has come to a call yet.
    pub(crate) fn has_called(&self, rank: usize) -> bool {
        self.ranks[rank].sequence.load(Ordering::Relaxed) != 0
    }

    /// The last call that `rank` has come to.
    pub(crate) fn sequence(&self, rank: usize) -> u64 {
        self.ranks[rank].sequence.load(Ordering::Acquire)
    }

    /// Says that `rank` gives up its communicator.
    pub(crate) fn leave(&self, rank: usize) {
        self.ranks[rank].left.store(true, Ordering::Release);
    }

    /// Says that `rank` gives up its communicator because it panics.
    pub(crate) fn leave_panicking(&self, rank: usize) {
        self.ranks[rank].panicked.store(true, Ordering::Relaxed);
        self.leave(rank);
    }

    /// A number that changes as long as any rank comes to a call or fires a step.
    pub(crate) fn progress(&self) -> u64 {
        self.ranks.iter().fold(0, |sum: u64, lines| {
            let (fired, sequence) = (lines.fired.load(Ordering::Relaxed), lines.sequence.load(Ordering::Relaxed));
            sum.wrapping_add(fired).wrapping_add(sequence)
        })
    }

    /// Who is missing from a call.
    pub(crate) fn missing(&self, sequence: u64) -> Missing {
        let absent = || self.ranks.iter().filter(|lines| lines.sequence.load(Ordering::Relaxed) < sequence);
        if absent().next().is_none() {
            Missing::Nobody
        } else if absent().any(|lines| matches!(lines.fate(), Some(Fate::Panicked | Fate::Died))) {
            Missing::Panicked
        } else {
            Missing::Live
        }
    }

    /// What `rank` did as its call `sequence`, if it has come to it and the board still remembers.
    pub(crate) fn fingerprint(&self, rank: usize, sequence: u64) -> Option<Fingerprint> {
        let lines = &self.ranks[rank];
        if lines.sequence.load(Ordering::Acquire) < sequence {
            return None;
        }
        let words = lines.history[sequence as usize % HISTORY].each_ref().map(|word| word.load(Ordering::Relaxed));
        // If the rank has since begun to overwrite the entry, it has published a later call before: then the words that
        // were read may be mixed, and are not used.
        fence(Ordering::Acquire);
        if lines.sequence.load(Ordering::Relaxed) >= sequence + HISTORY as u64 - 1 {
            return None;
        }
        let [sequence, call, count, plan, scale] = words;
        Some(Fingerprint { sequence, call, count, plan, scale })
    }

    /// The error of a blocked rank that sees somebody do something else, or gone.
    pub(crate) fn disagreement(&self, rank: usize, mine: &Fingerprint) -> Option<Error> {
        let differs = |(peer, lines): (usize, &Lines)| {
            // A peer that has yet to come may have differed before; fingerprints depend on all calls so far.
            let sequence = lines.sequence.load(Ordering::Acquire).min(mine.sequence);
            let theirs = self.fingerprint(peer, sequence)?;
            let mine = if sequence == mine.sequence { *mine } else { self.fingerprint(rank, sequence)? };
            (theirs != mine).then(|| self.mismatch(rank, &mine, peer, &theirs))
        };
        // A rank that has left may be this one: it panics while its worker is in a call that may never end by itself.
        let is_gone = |(peer, lines): (usize, &Lines)| {
            (lines.is_gone() && lines.finished.load(Ordering::Acquire) < mine.sequence).then(|| Error::Left {
                sequence: mine.sequence,
                call: RankCall { rank, call: describe(mine) },
                rank: peer,
                panicked: lines.panicked.load(Ordering::Relaxed) || lines.fate() == Some(Fate::Died),
            })
        };
        // Who disagrees and then leaves has disagreed.
        let ranks = || self.ranks.iter().enumerate();
        ranks().find_map(differs).or_else(|| ranks().find_map(is_gone))
    }

    /// The error of a rank that is done with a call, if it can see already that somebody else's is another one.
    pub(crate) fn mismatch_seen(&self, rank: usize, mine: &Fingerprint) -> Option<Error> {
        // Of two ranks that both post and then look, at least one sees the other.
        fence(Ordering::SeqCst);
        (0..self.rank_count()).find_map(|peer| {
            let theirs = self.fingerprint(peer, mine.sequence)?;
            (theirs != *mine).then(|| self.mismatch(rank, mine, peer, &theirs))
        })
    }

    /// Whether all ranks have come to the last call of `rank` before call `sequence`; the error if one of them made another.
    pub(crate) fn agreed_before(&self, rank: usize, sequence: u64) -> Result<bool> {
        let last = sequence - 1;
        let Some(mine) = self.fingerprint(rank, last) else { return Ok(true) };
        let mut all_came = true;
        for (peer, lines) in self.ranks.iter().enumerate() {
            // Asked before its fingerprint is: a rank that comes between the two has not been compared yet.
            let came = lines.sequence.load(Ordering::Acquire) >= last;
            match self.fingerprint(peer, last) {
                Some(theirs) if theirs != mine => return Err(self.mismatch(rank, &mine, peer, &theirs)),
                Some(_) => {}
                // Nobody gets so far ahead that the board forgets what others have yet to do; a rank that has come, has agreed.
                None => all_came &= came,
            }
        }
        Ok(all_came)
    }

    /// The error for two calls that should have been the same. It is about the first call in which the two ranks differed, as
    /// far back as the board remembers: a fingerprint depends on all calls before it.
    pub(crate) fn mismatch(&self, rank: usize, mine: &Fingerprint, peer: usize, theirs: &Fingerprint) -> Error {
        let latest = mine.sequence.min(theirs.sequence);
        let remembered = (latest.saturating_sub(HISTORY as u64)..=latest).find_map(|sequence| {
            let both = (self.fingerprint(rank, sequence)?, self.fingerprint(peer, sequence)?);
            (both.0 != both.1).then_some(both)
        });
        let (left, right) = remembered.unwrap_or((*mine, *theirs));
        let sequence = left.sequence.min(right.sequence);
        let (left, right) = describe_both(&left, &right);
        Error::Mismatch { sequence, left: RankCall { rank, call: left }, right: RankCall { rank: peer, call: right } }
    }

    /// Who keeps `rank` from finishing its call: those who have not come to it, or else those who have come, have not
    /// finished, and are not waiting for anybody themselves.
    pub(crate) fn late(&self, rank: usize, sequence: u64) -> Vec<LateRank> {
        let others = || self.ranks.iter().enumerate().filter(move |(peer, _)| *peer != rank);
        let absent: Vec<_> = others()
            .map(|(peer, lines)| lines.late(peer, lines.sequence.load(Ordering::Relaxed), false))
            .filter(|late| late.last_sequence < sequence)
            .collect();
        if !absent.is_empty() {
            return absent;
        }
        others()
            .filter(|(_, lines)| {
                lines.finished.load(Ordering::Relaxed) < sequence && lines.waiting_on.load(Ordering::Relaxed) == NOBODY
            })
            .map(|(peer, lines)| lines.late(peer, sequence, true))
            .collect()
    }

    /// The error that broke the communicator, if one has.
    pub(crate) fn verdict(&self) -> Option<Error> {
        if self.abort.0.load(Ordering::Acquire) == 0 {
            return None;
        }
        lock(&self.verdict).clone()
    }

    /// Breaks the communicator, unless it is broken already; the error that did it first.
    pub(crate) fn fail(&self, error: Error) -> Error {
        let verdict = lock(&self.verdict).get_or_insert(error).clone();
        self.abort.0.store(1, Ordering::SeqCst);
        if let Some(on_abort) = &self.on_abort {
            on_abort();
        }
        verdict
    }

    /// Waits until no peer of `rank` is touching anybody's memory. Only for a broken communicator: there, who is not
    /// touching now never will be again, and who is will be done with its chunk soon.
    pub(crate) fn expel(&self, rank: usize) {
        fence(Ordering::SeqCst);
        for (peer, lines) in self.ranks.iter().enumerate() {
            while peer != rank && lines.touching.0.load(Ordering::Acquire) != 0 {
                yield_now();
            }
        }
    }

    /// Exposes buffers of `rank`, from the next slot that it publishes until it finishes its call.
    ///
    /// # Safety
    /// The rank has come to a call whose plan has peers touch its buffers, and has not yet published a slot of it.
    pub(crate) unsafe fn expose(&self, rank: usize, buffers: [*mut u8; buffer::COUNT]) {
        let window = self.windows[rank].get();
        // SAFETY: only this rank writes the entry, and no peer reads it between the rank's last call and its first slot of
        // this one (see `Sync`).
        unsafe {
            // A call with the same buffers as the last leaves the line where it is, in the peers' caches.
            if (*window).buffers != buffers {
                note_write(window);
                *window = Window { buffers };
            }
        }
    }

    /// The windows of all ranks, as the interpreter reads them.
    pub(crate) fn windows(&self) -> *const Window {
        self.windows.as_ptr().cast()
    }

    /// The abort word, as the interpreter reads it.
    pub(crate) fn abort_word(&self) -> *const u32 {
        self.abort.0.as_ptr()
    }

    /// The word by which `rank` says that it is touching a peer's memory, as the interpreter writes it.
    pub(crate) fn touching_word(&self, rank: usize) -> *mut u32 {
        self.ranks[rank].touching.0.as_ptr()
    }
}
