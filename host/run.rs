//! Drives calls to their end: one rank's, or those of several ranks at once.

use std::collections::VecDeque;

use crate::core::{Core, Polled, Request};
use crate::device::cpu::{FloatMode, Waiter};
use crate::error::{Error, Result};
use crate::options::Overrides;

/// Closes the guards of a call that panics: peers may be touching its buffers, and unwinding gives those back. (Whether the
/// thread is panicking does not tell: a call that is made while it unwinds may end well.)
struct Lent<'a> {
    core: &'a mut Core,
    in_call: bool,
}

impl Lent<'_> {
    fn give_up(&mut self, error: Error) -> Error {
        let error = self.core.give_up(error);
        self.in_call = false;
        error
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if self.in_call {
            let what = format!("rank {} panicked inside a call", self.core.rank);
            self.core.give_up(Error::Internal { what });
        }
    }
}

/// Runs one call to its end. When it returns, nobody else touches the request's buffers.
pub(crate) fn run(core: &mut Core, request: &Request, overrides: &Overrides) -> Result<()> {
    core.start(request, overrides)?;
    let mut lent = Lent { core, in_call: true };
    let core = &mut *lent.core;
    let _mode = FloatMode::standard();
    let mut waiter = Waiter::new(core.rank_count(), core.world.processors);
    loop {
        let failed = match core.poll() {
            Ok(Polled::Done) => {
                lent.in_call = false;
                return Ok(());
            }
            Ok(Polled::Moved) => {
                waiter.reset();
                None
            }
            Ok(Polled::Waiting) => waiter.pause().and_then(|now| core.look(now).err()),
            Err(error) => Some(error),
        };
        if let Some(error) = failed {
            return Err(lent.give_up(error));
        }
    }
}

/// One rank's calls of a group, in the order in which they were issued.
pub(crate) struct Lineup<'a> {
    rank: Lent<'a>,
    requests: VecDeque<(Request, Overrides)>,
}

impl<'a> Lineup<'a> {
    pub(crate) fn new(core: &'a mut Core, requests: VecDeque<(Request, Overrides)>) -> Lineup<'a> {
        Lineup { rank: Lent { core, in_call: false }, requests }
    }

    /// Advances the current call, or begins the next one. `Done` when all of them are.
    fn poll(&mut self) -> Result<Polled> {
        let rank = &mut self.rank;
        if rank.in_call {
            match rank.core.poll() {
                Ok(Polled::Done) => rank.in_call = false,
                Ok(polled) => return Ok(polled),
                Err(error) => return Err(rank.give_up(error)),
            }
        }
        let Some((request, overrides)) = self.requests.pop_front() else { return Ok(Polled::Done) };
        rank.core.start(&request, &overrides)?;
        rank.in_call = true;
        Ok(Polled::Moved)
    }

    fn look(&mut self, now: std::time::Instant) -> Result<()> {
        let rank = &mut self.rank;
        if !rank.in_call {
            return Ok(());
        }
        rank.core.look(now).map_err(|error| rank.give_up(error))
    }
}

/// Runs the calls of several ranks, each rank's in their order, all ranks at once on this thread. A rank whose call fails
/// leaves its later calls undone, while the others go on; the first error is returned when all have come to an end.
pub(crate) fn run_together(mut lineups: Vec<Lineup<'_>>) -> Result<()> {
    let Some(largest) = lineups.iter().map(|lineup| &*lineup.rank.core).max_by_key(|core| core.rank_count()) else {
        return Ok(());
    };
    let _mode = FloatMode::standard();
    let mut waiter = Waiter::new(largest.rank_count(), largest.world.processors);
    let mut first_error = None;
    while !lineups.is_empty() {
        let mut moved = false;
        lineups.retain_mut(|lineup| match lineup.poll() {
            Ok(Polled::Done) => {
                moved = true;
                false
            }
            Ok(Polled::Moved) => {
                moved = true;
                true
            }
            Ok(Polled::Waiting) => true,
            Err(error) => {
                first_error.get_or_insert(error);
                moved = true;
                false
            }
        });
        if moved {
            waiter.reset();
        } else if let Some(now) = waiter.pause() {
            lineups.retain_mut(|lineup| match lineup.look(now) {
                Ok(()) => true,
                Err(error) => {
                    first_error.get_or_insert(error);
                    false
                }
            });
        }
    }
    first_error.map_or(Ok(()), Err)
}
