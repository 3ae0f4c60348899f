//! How a CPU rank waits: first spinning, then giving way, then sleeping, always with an eye on the clock.
//!
//! A peer that is about to answer does so within a microsecond or so, and spinning is the only way not to miss it. Where
//! there are more ranks than processors, though, the peer that is waited for may need this very processor: then a rank gives
//! way at once. A peer that takes long is doing something else, and the processor is better left to others.

use std::time::{Duration, Instant};

/// Polls before a rank first gives way, when every rank has a processor of its own: some ten microseconds.
const SPINS: u32 = 200;

/// Polls before a rank first gives way, when ranks must share processors.
const SPINS_SHARED: u32 = 4;

/// The pauses between two polls grow by one every so many polls, up to a most.
const POLLS_PER_PAUSE: u32 = 8;
const PAUSES_MAX: u32 = 8;

/// How long a rank gives way before it begins to sleep.
const YIELD_FOR: Duration = Duration::from_millis(2);

/// The first and the longest sleep.
const SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Polls between two looks at the clock while giving way.
const YIELDS_PER_LOOK: u32 = 16;

/// One rank's waiting.
#[derive(Debug)]
pub(crate) struct Waiter {
    spins: u32,
    polls: u32,
    /// When the rank began to give way.
    since: Option<Instant>,
    sleep: Duration,
}

impl Waiter {
    /// For a machine on which `ranks` ranks run on `processors`.
    pub(crate) fn new(ranks: usize, processors: usize) -> Waiter {
        let spins = if ranks <= processors { SPINS } else { SPINS_SHARED };
        Waiter { spins, polls: 0, since: None, sleep: SLEEP_MIN }
    }

    /// Something has moved.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.polls = 0;
        self.since = None;
        self.sleep = SLEEP_MIN;
    }

    /// Waits a little after a poll that found nothing; the time now, if it is time to look around.
    #[inline]
    pub(crate) fn pause(&mut self) -> Option<Instant> {
        self.polls += 1;
        if self.polls < self.spins {
            // The first polls come quickly, since most answers do. Later ones leave more room: the peer that is waited for may
            // be the other thread of this very core, and slow down with every instruction that runs here.
            for _ in 0..(1 + self.polls / POLLS_PER_PAUSE).min(PAUSES_MAX) {
                std::hint::spin_loop();
            }
            return None;
        }
        self.give_way()
    }

    #[cold]
    fn give_way(&mut self) -> Option<Instant> {
        let Some(since) = self.since else {
            std::thread::yield_now();
            // The first look around comes a few polls later: most waits are over by then.
            if self.polls == self.spins + YIELDS_PER_LOOK {
                let now = Instant::now();
                self.since = Some(now);
                return Some(now);
            }
            return None;
        };
        if !self.polls.is_multiple_of(YIELDS_PER_LOOK) && self.sleep == SLEEP_MIN {
            std::thread::yield_now();
            return None;
        }
        let now = Instant::now();
        if now - since < YIELD_FOR {
            std::thread::yield_now();
        } else {
            std::thread::sleep(self.sleep);
            self.sleep = (self.sleep * 2).min(SLEEP_MAX);
        }
        Some(now)
    }
}
