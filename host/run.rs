//! Drives calls to their end: one rank's, or those of several ranks at once.

use std::collections::VecDeque;
use std::ops::DerefMut;
use std::sync::MutexGuard;

use crate::core::{Core, Polled, Request};
use crate::device::cpu::{FloatMode, Waiter};
use crate::error::{Error, Result};
use crate::options::Overrides;
use crate::pending::Turn;

/// Closes the guards of a call that panics: peers may be touching its buffers, and unwinding gives those back. (Whether the
/// thread is panicking does not tell: a call that is made while it unwinds may end well.)
struct Lent<C: DerefMut<Target = Core>> {
    core: C,
    in_call: bool,
}

impl<C: DerefMut<Target = Core>> Drop for Lent<C> {
    fn drop(&mut self) {
        if self.in_call {
            let what = format!("rank {} panicked inside a call", self.core.rank());
            self.core.give_up(Error::Internal { what });
        }
    }
}

impl<C: DerefMut<Target = Core>> Lent<C> {
    fn give_up(&mut self, error: Error) -> Error {
        let error = self.core.give_up(error);
        self.in_call = false;
        error
    }
}

/// Runs one call to its end. When it returns, nobody else touches the request's buffers.
pub(crate) fn run(core: &mut Core, request: &Request, overrides: &Overrides) -> Result<()> {
    core.start(request, overrides)?;
    let mut lent = Lent { core, in_call: true };
    let core = &mut *lent.core;
    let _mode = FloatMode::standard();
    let mut waiter = Waiter::new(core.rank_count(), core.world().processors);
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

/// Runs one call of several ranks to its end, all on this thread. When it returns, nobody else touches the requests' buffers.
pub(crate) fn run_all(ranks: &mut [&mut Core], requests: &[Request], overrides: &Overrides) -> Result<()> {
    let mut waiter = Waiter::new(ranks.len(), 1);
    let mut lent = Vec::with_capacity(ranks.len());
    let mut failed = None;
    for (core, request) in ranks.iter_mut().zip(requests) {
        match core.start(request, overrides) {
            Ok(()) => lent.push(Lent { core: &mut **core, in_call: true }),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    while lent.iter().any(|rank| rank.in_call) {
        let look_at = waiter.pause();
        for rank in lent.iter_mut().filter(|rank| rank.in_call) {
            let polled = match look_at {
                Some(now) => rank.core.look(now).and_then(|()| rank.core.poll()),
                None => rank.core.poll(),
            };
            match polled {
                Ok(Polled::Done) => rank.in_call = false,
                Ok(Polled::Moved) => waiter.reset(),
                Ok(Polled::Waiting) => {}
                Err(error) => {
                    let error = rank.give_up(error);
                    failed.get_or_insert(error);
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

/// One rank's calls of a group, in the order in which they were issued.
pub(crate) struct Lineup<'a> {
    /// None until its turn has come.
    rank: Option<Lent<MutexGuard<'a, Core>>>,
    turn: Turn<'a>,
    requests: VecDeque<(Request, Overrides)>,
}

impl<'a> Lineup<'a> {
    pub(crate) fn new(turn: Turn<'a>, requests: VecDeque<(Request, Overrides)>) -> Lineup<'a> {
        Lineup { rank: None, turn, requests }
    }

    /// Takes its turn, if that has come, and prepares all of its calls.
    fn prepare(&mut self) {
        if self.rank.is_some() {
            return;
        }
        self.rank = self.turn.begin().map(|mut core| {
            for (request, overrides) in &self.requests {
                core.prepare(request, overrides);
            }
            Lent { core, in_call: false }
        });
    }

    /// Advances the current call, or begins the next one. `Done` when all of them are.
    fn poll(&mut self) -> Result<Polled> {
        self.prepare();
        let Some(rank) = &mut self.rank else { return Ok(Polled::Waiting) };
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
        match &mut self.rank {
            Some(rank) if rank.in_call => rank.core.look(now).map_err(|error| rank.give_up(error)),
            // Whoever still has the turn before watches deadlines of its own.
            _ => Ok(()),
        }
    }
}

/// Runs the calls of several ranks, each rank's in their order, all ranks at once on this thread. A rank whose call fails
/// leaves its later calls undone, while the others go on; the first error is returned when all have come to an end.
pub(crate) fn run_together(mut lineups: Vec<Lineup<'_>>) -> Result<()> {
    let worlds = lineups.iter().map(|lineup| lineup.turn.world());
    let Some(largest) = worlds.max_by_key(|world| world.board.rank_count()) else { return Ok(()) };
    let _mode = FloatMode::standard();
    let mut waiter = Waiter::new(largest.board.rank_count(), largest.processors);
    let mut first_error = None;
    // All before any of them begins: what is prepared may wait for kernels, which may wait for ranks that begin here later.
    lineups.iter_mut().for_each(Lineup::prepare);
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
