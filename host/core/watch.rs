//! Looking around while a call waits: is somebody doing something else, gone, or too late? The same for every device.

use std::time::{Duration, Instant};

use tutti_kernels::layout::Fingerprint;

use crate::board::{Board, Missing};
use crate::error::{Error, RankCall, Result};
use crate::fingerprint::describe;
use crate::options::{Options, Overrides};

/// The deadlines of one call, and how long it has seen no progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    progress_timeout: Duration,
    arrival_timeout: Duration,
    /// When this rank first looked around in vain, and how far all ranks had come then.
    stalled: Option<(Instant, u64)>,
}

impl Watch {
    pub(crate) fn new(options: &Options, overrides: &Overrides) -> Watch {
        Watch {
            progress_timeout: overrides.progress_timeout.unwrap_or(options.progress_timeout),
            arrival_timeout: overrides.arrival_timeout.unwrap_or(options.arrival_timeout),
            stalled: None,
        }
    }

    /// The rank itself has made progress.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.stalled = None;
    }

    /// Looks around on behalf of `rank`, whose call `fingerprint` waits, for `peer` if that is known. With `unconfirmed` it waits
    /// until all have come to the call before.
    pub(crate) fn look(
        &mut self,
        board: &Board,
        rank: usize,
        fingerprint: &Fingerprint,
        unconfirmed: bool,
        peer: Option<usize>,
        now: Instant,
    ) -> Result<()> {
        if let Some(error) = board.verdict() {
            return Err(error);
        }
        if let Some(error) = board.disagreement(rank, fingerprint) {
            return Err(board.fail(error));
        }
        board.note_waiting(rank, peer);
        let progress = board.progress();
        let since = match self.stalled {
            Some((since, before)) if before == progress => since,
            _ => {
                self.stalled = Some((now, progress));
                now
            }
        };
        let sequence = fingerprint.sequence - u64::from(unconfirmed);
        let limit = match board.missing(sequence) {
            // The last one has just come, and the next poll will see it.
            Missing::Nobody if unconfirmed => return Ok(()),
            Missing::Nobody => self.progress_timeout,
            Missing::Live => self.arrival_timeout,
            Missing::Panicked => self.progress_timeout.min(self.arrival_timeout),
        };
        let waited = now.saturating_duration_since(since);
        if waited < limit {
            return Ok(());
        }
        let late = board.late(rank, sequence);
        let call = RankCall { rank, call: describe(fingerprint) };
        let error = if late.is_empty() {
            Error::Internal { what: format!("all ranks wait for each other in call {sequence}: {call}") }
        } else {
            Error::Late { sequence: fingerprint.sequence, call, waited, late }
        };
        Err(board.fail(error))
    }
}
