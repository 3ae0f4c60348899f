//! Everything that can go wrong, sorted by who can mend it.

use std::fmt::{self, Write};
use std::time::Duration;

use crate::plan::PlanError;
use crate::ptx::NoImage;

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Who can mend an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The code that made the call on this rank. The communicator is as good as before.
    Caller,
    /// Another rank, or the program's agreement with it. The communicator is broken on all ranks.
    Peer,
    /// The machine, or who configured it.
    Machine,
    /// We: please report it.
    Internal,
}

/// Why a call failed.
///
/// After an error of kind [`ErrorKind::Caller`] nothing has happened, and the communicator can be used further. After any
/// other, the communicator is broken: every rank gets the same error, from the call that it is in or from its next one, and
/// the outputs of calls that were under way are unspecified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument that does not fit the call or the communicator.
    #[error("{call}: {what}: expected {expected}, came {came}")]
    Argument {
        /// The call.
        call: &'static str,
        /// Which argument.
        what: &'static str,
        /// What would have been right.
        expected: String,
        /// What came.
        came: String,
    },

    /// There is no plan for what was asked.
    #[error("{call}: {source}")]
    Plan {
        /// The call.
        call: &'static str,
        /// Why.
        source: PlanError,
    },

    /// Two ranks made different calls where they should have made the same one.
    #[error("ranks disagree on call {sequence} of the communicator: {left} but {right}")]
    Mismatch {
        /// Which call of the communicator, counted from 1.
        sequence: u64,
        /// What the rank that noticed is doing.
        left: RankCall,
        /// What the other one is doing.
        right: RankCall,
    },

    /// Some ranks did not come to a call, or stopped in the middle of it, until a deadline passed.
    #[error("{call} (call {sequence}): no progress for {waited:?}; late: {late}", late = LateList(late))]
    Late {
        /// Which call of the communicator, counted from 1.
        sequence: u64,
        /// What the rank that waited is doing.
        call: RankCall,
        /// How long it waited without any rank making progress.
        waited: Duration,
        /// Who is late.
        late: Vec<LateRank>,
    },

    /// A rank gave up its communicator while others were still waiting for it.
    #[error(
        "{call} (call {sequence}): rank {rank} {how} and will not come",
        how = if *panicked { "panicked" } else { "dropped its communicator" }
    )]
    Left {
        /// Which call of the communicator, counted from 1.
        sequence: u64,
        /// What the rank that waited is doing.
        call: RankCall,
        /// Who left.
        rank: usize,
        /// Whether it was panicking.
        panicked: bool,
    },

    /// Somebody aborted the communicator, or one that it was made from.
    #[error("the communicator was aborted by rank {rank}: {}", Escaped(reason))]
    Aborted {
        /// Whose handle it was: the rank in the communicator that was aborted.
        rank: usize,
        /// What they said. It is shown with what a terminal would act on escaped, as in a Rust string.
        reason: String,
    },

    /// The communicator would hold more memory than its budget allows.
    #[error(
        "rank {rank}: no budget for {needed_bytes} bytes of {what}: {held_bytes} bytes are held already; the budget is \
         {budget_bytes}"
    )]
    MemoryBudget {
        /// Who needs it.
        rank: usize,
        /// What for.
        what: &'static str,
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes held already.
        held_bytes: u64,
        /// [`Options::memory_budget_bytes`](crate::Options::memory_budget_bytes).
        budget_bytes: u64,
    },

    /// The machine has no memory for it.
    #[error("rank {rank}: no memory for {what} of {needed_bytes} bytes")]
    OutOfMemory {
        /// Who needs it.
        rank: usize,
        /// What for.
        what: &'static str,
        /// Bytes needed.
        needed_bytes: u64,
    },

    /// A thread could not be started.
    #[error("cannot start a thread for asynchronous calls: {reason}")]
    Thread {
        /// What the system said.
        reason: String,
    },

    /// There is no CUDA driver here that works.
    #[error("no CUDA driver: {library}: {reason}")]
    NoDriver {
        /// The library that was to be opened.
        library: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },

    /// This build's kernels do not run on a device.
    #[error("device {device}: {reason}")]
    NoKernel {
        /// The device, as the driver counts.
        device: usize,
        /// Why.
        reason: NoImage,
    },

    /// Two devices do not reach each other, not even by memory of the host.
    #[error("devices {} and {} do not reach each other: {}", devices[0], devices[1], seen.join("; "))]
    NoPath {
        /// The devices, as the driver counts.
        devices: [usize; 2],
        /// What was seen of each path.
        seen: Vec<String>,
    },

    /// A device does not hold all blocks of a call at once, and blocks wait for each other.
    #[error(
        "device {device}: the ranks on it have {blocks} blocks in this call, and it holds {resident} at once; use fewer ranks \
         for each device"
    )]
    NotResident {
        /// The device, as the driver counts.
        device: usize,
        /// Blocks of all its ranks.
        blocks: u32,
        /// How many it holds.
        resident: u32,
    },

    /// The CUDA driver refused something, or says that something failed.
    #[error("{doing}: {call} gave {name} ({code}): {description}")]
    Cuda {
        /// What tutti was doing.
        doing: String,
        /// The driver's function.
        call: &'static str,
        /// Its error code.
        code: u32,
        /// That code's name.
        name: String,
        /// What the driver says about it.
        description: String,
    },

    /// Ranks wait for each other in a circle, or something else that a verified plan cannot do.
    #[error("internal error, please report it: {what}")]
    Internal {
        /// What was seen.
        what: String,
    },
}

impl Error {
    /// Who can mend it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Argument { .. } | Error::Plan { .. } => ErrorKind::Caller,
            Error::Mismatch { .. } | Error::Late { .. } | Error::Left { .. } | Error::Aborted { .. } => ErrorKind::Peer,
            Error::MemoryBudget { .. }
            | Error::OutOfMemory { .. }
            | Error::Thread { .. }
            | Error::NoDriver { .. }
            | Error::NoKernel { .. }
            | Error::NotResident { .. }
            | Error::NoPath { .. }
            | Error::Cuda { .. } => ErrorKind::Machine,
            Error::Internal { .. } => ErrorKind::Internal,
        }
    }
}

/// What one rank is doing, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankCall {
    /// The rank.
    pub rank: usize,
    /// Its call, such as `all_reduce(count 1024, f32, sum, by direct)`.
    pub call: String,
}

impl fmt::Display for RankCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} calls {}", self.rank, self.call)
    }
}

/// A rank for which others wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateRank {
    /// The rank.
    pub rank: usize,
    /// The last call that it came to; 0 if it came to none.
    pub last_sequence: u64,
    /// Whether it has come to the call in question, and then stopped.
    pub arrived: bool,
    /// Whether the thread that made its last call has ended.
    pub thread_ended: bool,
    /// Whether that thread has panicked since, and neither ended nor called again.
    pub thread_panicked: bool,
}

impl fmt::Display for LateRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.arrived, self.last_sequence) {
            (true, _) => write!(f, "rank {} came and then stopped", self.rank),
            (false, 0) => write!(f, "rank {} has not come to any call", self.rank),
            (false, last) => write!(f, "rank {} has not come; its last call was call {last}", self.rank),
        }?;
        if self.thread_panicked {
            f.write_str(", and its thread has panicked")
        } else if self.thread_ended {
            f.write_str(", and its thread has ended")
        } else {
            Ok(())
        }
    }
}

/// Late ranks in a row; a few, and how many more.
struct LateList<'a>(&'a [LateRank]);

impl fmt::Display for LateList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMED: usize = 8;
        for (index, late) in self.0.iter().take(NAMED).enumerate() {
            write!(f, "{}{late}", if index == 0 { "" } else { "; " })?;
        }
        if self.0.len() > NAMED {
            write!(f, "; and {} more", self.0.len() - NAMED)?;
        }
        Ok(())
    }
}

/// A caller's text, in which everything but printable characters and blanks is written as Rust writes it in a string.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\'' | '"' => f.write_char(c)?,
                // `Debug` for a string knows what is printable; marks that combine are so after a letter.
                _ => {
                    let mut after_a_letter = [b'a'; 5];
                    let end = 1 + c.encode_utf8(&mut after_a_letter[1..]).len();
                    let text = str::from_utf8(&after_a_letter[..end]).unwrap_or_default();
                    text.escape_debug().skip(1).try_for_each(|c| f.write_char(c))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_cannot_act_on_a_terminal() {
        for (reason, shown) in [
            ("it's \"over\", naïve, 漢 cafe\u{301}", "it's \"over\", naïve, 漢 cafe\u{301}"),
            ("stop\u{1b}[31m\r\nrank 0: fine", "stop\\u{1b}[31m\\r\\nrank 0: fine"),
            ("\u{9b}2J\u{202e}\u{7f} \\", "\\u{9b}2J\\u{202e}\\u{7f} \\\\"),
            ("", ""),
        ] {
            let error = Error::Aborted { rank: 3, reason: reason.to_owned() };
            assert_eq!(error.to_string(), format!("the communicator was aborted by rank 3: {shown}"));
        }
    }
}
