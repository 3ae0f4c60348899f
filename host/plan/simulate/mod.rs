//! How long a plan takes: a simulation of its steps, message by message, over a network.
//!
//! Programs fire their steps in order, under the rules of the interpreter: a step waits until its source slots are full, its
//! destination slots are free and the step that it depends on is done. Then it takes what software takes ([`Software`]), and then its
//! bytes flow, all destinations at once, over the links of their ways; it is done when the last of them has left, and its program goes
//! on. A slot is full for the consumer when its last byte has crossed the wire and software has seen it, and free for the producer
//! when word of that has come back.
//!
//! Flows that meet on a link share it: each gets the same part of each link's bandwidth, and moves at the smallest of its parts. (That
//! is a little less than max-min fairness, which hands on what a flow that is held up elsewhere leaves; it needs a look at no more than the
//! flows that share a link whenever one begins or ends.) Links carry both ways at once. Memory of a rank is taken to be infinitely
//! fast: what it costs is hidden behind slower links, but for plans of one rank.
//!
//! Time is whole picoseconds, so the same plan on the same network takes the same time everywhere, whatever the order in which equal
//! times are looked at.
//!
//! **Invariant.** Pure, as all plans are. A plan that comes to a standstill is an error that says who waits for what.

mod engine;
mod flows;
mod network;
mod path;
mod trace;

#[cfg(test)]
mod tests;

pub use network::{Flat, LinkFacts, Network, Route};
pub use path::{CriticalPath, Part};

use std::fmt;

use crate::plan::{ConnectionId, Geometry, Plan, ProgramId, Rank, StepId};
use crate::topology::Software;

/// Picoseconds of a microsecond.
pub(crate) const PICOSECONDS: f64 = 1e6;

/// How a simulation is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What steps cost beside the wire.
    pub software: Software,
    /// Slots that a connection has, where the plan needs no more.
    pub slots: u32,
    /// Links of which only a part is left, and how much of it: 0 for one that is dead.
    pub slow_links: Vec<(usize, f64)>,
    /// Ranks whose software takes so many times as long.
    pub slow_ranks: Vec<(Rank, f64)>,
    /// Steps of which it is kept when they ran, for the critical path and the trace. A longer simulation has neither.
    pub records_max: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            software: Software::SIMPLE,
            slots: Geometry::default().slots,
            slow_links: Vec::new(),
            slow_ranks: Vec::new(),
            records_max: 1 << 21,
        }
    }
}

/// What a simulation found.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// Microseconds from the call to the last rank's return.
    pub time_us: f64,
    /// Of each directed link, the bytes that it carried (slots' flags among them).
    pub link_bytes: Vec<u64>,
    /// Steps that ran, each chunk of each program counted.
    pub events: u64,
    /// What the time went by, from the first step to the last one; none where there was more than was to be kept.
    pub critical_path: Option<CriticalPath>,
    records: Vec<Record>,
}

/// One step that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    /// Through all ranks.
    program: u32,
    step: u32,
    /// What it waited for last, as an index into the records; its own if nothing.
    cause: u32,
    /// The directed link that was the narrowest of what it sent over.
    link: u32,
    /// When it could run, when its bytes began to move, when they had left, in picoseconds.
    ready: u64,
    moved: u64,
    done: u64,
}

/// No link.
const NO_LINK: u32 = u32::MAX;

/// Why a plan could not be simulated to its end.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SimulateError {
    /// The plan has more ranks than the network.
    TooFewRanks {
        /// Of the network.
        offered: usize,
        /// Of the plan.
        needed: usize,
    },
    /// The plan has something done by a switch, and the network has none that reduces.
    NoSwitch,
    /// A step's number of bytes, operands or loops is not what a plan that was verified can have.
    NotAPlan {
        /// Where.
        rank: Rank,
        /// Where.
        program: ProgramId,
    },
    /// Nothing moves any more.
    Stuck {
        /// The first of the ranks that wait.
        rank: Rank,
        /// Which of its programs.
        program: ProgramId,
        /// At which step.
        step: StepId,
        /// For what.
        waits_for: WaitsFor,
        /// How many programs wait.
        waiting: usize,
        /// Microseconds until then.
        time_us: f64,
    },
}

/// What a program waits for that never comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// A message.
    Full(ConnectionId, Rank),
    /// Room for a message.
    Room(ConnectionId, Rank),
    /// Another step of the same rank.
    After(ProgramId),
    /// Bytes that move no more, over this link.
    DeadLink {
        /// The directed link.
        link: usize,
        /// Its name.
        name: String,
    },
}

impl fmt::Display for SimulateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SimulateError::TooFewRanks { offered, needed } => {
                write!(f, "expected a network of at least {needed} ranks, the plan's; came one of {offered}")
            }
            SimulateError::NoSwitch => f.write_str(
                "expected a network with a switch that reduces, which the plan has steps for; came one without",
            ),
            SimulateError::NotAPlan { rank, program } => {
                write!(f, "{rank} {program} is not a program that the verifier lets pass")
            }
            SimulateError::Stuck { rank, program, step, waits_for, waiting, time_us } => {
                write!(f, "after {time_us:.1} us nothing moves any more: {rank} {program} {step} waits for ")?;
                match waits_for {
                    WaitsFor::Full(connection, from) => write!(f, "a message of {from} in {connection}")?,
                    WaitsFor::Room(connection, to) => write!(f, "room in {connection}, which {to} has yet to empty")?,
                    WaitsFor::After(program) => write!(f, "a step of {program}")?,
                    WaitsFor::DeadLink { name, .. } => write!(f, "bytes to cross {name}, which is dead")?,
                }
                match waiting {
                    0 | 1 => Ok(()),
                    others => write!(f, ", and {} more programs wait", others - 1),
                }
            }
        }
    }
}

impl std::error::Error for SimulateError {}

impl Simulated {
    /// Bytes of the larger buffer in the time, in GB/s, as nccl-tests counts.
    pub fn algorithm_bandwidth_gb_per_s(&self, plan: &Plan) -> f64 {
        let bytes = plan.collective.larger_count(plan.count, plan.rank_count()) as f64 * f64::from(plan.element_bytes);
        if self.time_us > 0.0 { bytes / (self.time_us * 1e3) } else { 0.0 }
    }

    /// What a link that is fully used would show, whatever the collective and the number of ranks, as nccl-tests counts.
    pub fn bus_bandwidth_gb_per_s(&self, plan: &Plan) -> f64 {
        self.algorithm_bandwidth_gb_per_s(plan) * plan.collective.bus_factor(plan.rank_count())
    }
}

/// Simulates a plan, rank `r` of it as rank `r` of the network.
///
/// # Errors
/// [`SimulateError`].
pub fn simulate(plan: &Plan, network: &dyn Network, settings: &Settings) -> Result<Simulated, SimulateError> {
    engine::Engine::new(plan, network, settings)?.run()
}
