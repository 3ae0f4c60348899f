//! Plans: a collective as data.
//!
//! A [`Plan`] says, for each rank, which steps its programs run; every step is one fused copy-and-reduce. The same plan is
//! verified ([`verify`]), printed and parsed ([`text`]), run on CPUs and run on GPUs.
//!
//! **Invariant.** This room is pure: it knows nothing of devices, threads, sockets, clocks or element types (only of their
//! size), does no I/O and contains no `unsafe`. One file holds one algorithm; all of them use the [`builder`].

#![forbid(unsafe_code)]

pub mod builder;
pub mod cost;
pub mod names;
pub mod select;
pub mod simulate;
pub mod text;
pub mod verify;

mod bruck;
mod chain;
mod digest;
mod direct;
mod dissemination;
mod double_tree;
mod halving_doubling;
mod multicast;
mod nvls;
mod one_shot;
mod order;
mod published;
mod ring;
mod tree;

#[cfg(test)]
mod tests;

pub use builder::{Geometry, MAX_RANK_COUNT, PlanError, build, build_in_orders};
pub use multicast::MULTICAST_ALIGNMENT_BYTES;
pub use order::MAX_CHANNEL_COUNT;
pub use published::published_bytes;

use std::fmt;

/// Declares a `u32` newtype that prints itself with a prefix, as in `r3`.
macro_rules! entity {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            /// As an index into a slice.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

entity!(
    /// One of the participants of a communicator, counted from 0.
    Rank,
    "r"
);
entity!(
    /// A one-way FIFO of slots, as an index into [`Plan::connections`].
    ConnectionId,
    "c"
);
entity!(
    /// A program of one rank, as an index into [`RankPlan::programs`].
    ProgramId,
    "p"
);
entity!(
    /// A step of one program, counted through all of its loops.
    StepId,
    "s"
);

/// What the ranks end up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Everyone gets the reduction of all inputs.
    AllReduce,
    /// Rank `r` gets the `r`-th block of the reduction. The count is that of one block.
    ReduceScatter,
    /// Everyone gets all inputs, one after the other. The count is that of one input.
    AllGather,
    /// Everyone gets the root's input.
    Broadcast {
        /// Whose input.
        root: Rank,
    },
    /// The root gets the reduction of all inputs.
    Reduce {
        /// Who gets it.
        root: Rank,
    },
    /// Nobody leaves before everyone has come.
    Barrier,
}

/// How the ranks get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Each rank talks to the next one round a circle.
    Ring,
    /// Up a binary tree, and down again.
    Tree,
    /// Along a line.
    Chain,
    /// Everyone sends everything to everyone, and each reduces for itself.
    OneShot,
    /// Each rank reduces one block out of its peers' windows and writes the result into them; and the collectives that are
    /// one half of that.
    Direct,
    /// As direct, but a switch reduces out of everyone's windows and writes into them.
    Nvls,
    /// Barrier in ⌈log2 N⌉ rounds.
    Dissemination,
    /// All-reduce in 2 ⌈log2 N⌉ exchanges of halves, quarters and so on.
    HalvingDoubling,
    /// Two trees at once, each for half of the data; leaves of one are inner ranks of the other.
    DoubleTree,
    /// All-gather in ⌈log2 N⌉ exchanges, of ever more blocks.
    Bruck,
}

/// A collective for all its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What the ranks end up with.
    pub collective: Collective,
    /// How they get there.
    pub algorithm: Algorithm,
    /// The count that callers pass, in elements (see [`Collective`] for what it counts).
    pub count: u64,
    /// Bytes of one element.
    pub element_bytes: u32,
    /// By channel, all ranks in the order in which it takes them. None: one channel, in the order of the ranks.
    pub orders: Vec<Vec<Rank>>,
    /// Indexed by [`ConnectionId`].
    pub connections: Vec<Connection>,
    /// Indexed by [`Rank`]; its length is the number of ranks.
    pub ranks: Vec<RankPlan>,
}

impl Plan {
    /// How many ranks take part.
    pub fn rank_count(&self) -> usize {
        self.ranks.len()
    }

    /// Whether some rank touches another's buffers.
    pub fn touches_windows(&self) -> bool {
        let programs = self.ranks.iter().flat_map(|rank| &rank.programs);
        programs.flat_map(|program| &program.loops).flat_map(|looped| &looped.steps).any(Step::touches_windows)
    }
}

/// A one-way FIFO of slots. It has exactly one producing and one consuming program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// The producer's rank.
    pub from: Rank,
    /// The consumer's rank; another one.
    pub to: Rank,
    /// How many slots the plan needs to be free of deadlock (a transport may offer more).
    pub slots: u32,
    /// The most bytes that the plan puts into one slot.
    pub slot_bytes: u32,
}

/// What one rank does.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RankPlan {
    /// Bytes of [`Buffer::Scratch`] that the programs use.
    pub scratch_bytes: u64,
    /// They run concurrently. Indexed by [`ProgramId`].
    pub programs: Vec<Program>,
}

/// Loops, run one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Program {
    /// In the order in which they run.
    pub loops: Vec<Loop>,
}

/// Steps repeated over chunks.
///
/// At iteration `k` each step handles the bytes `k × chunk_bytes .. min((k + 1) × chunk_bytes, step.bytes)` of its operands:
/// `Local` and `Window` operands at their offset plus `k × chunk_bytes`, slots from their start. Where that range is empty
/// the step still fires, and its slots travel with zero bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// How often the steps run; at least once.
    pub iterations: u64,
    /// Bytes that one iteration of one step handles at most; at least 1, a multiple of the element's size.
    pub chunk_bytes: u32,
    /// Run in order; at least one.
    pub steps: Vec<Step>,
}

/// `destinations ← reduce(sources)`: the only verb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes over all iterations of the loop; a multiple of the element's size.
    pub bytes: u64,
    /// At least one; they are reduced in this order.
    pub sources: Vec<Source>,
    /// At least one.
    pub destinations: Vec<Operand>,
    /// Whether the result is complete, and the reduction's finish (an average's division) is due.
    pub finish: bool,
    /// What the step waits on besides its operands.
    pub after: Option<After>,
}

impl Step {
    /// `destinations ← reduce(sources)` over `bytes`, without a finish and without a dependency.
    pub fn new(bytes: u64, sources: Vec<Source>, destinations: Vec<Operand>) -> Step {
        Step { bytes, sources, destinations, finish: false, after: None }
    }

    /// The same step, but its result is complete.
    #[must_use]
    pub fn finished(self) -> Step {
        Step { finish: true, ..self }
    }

    /// Whether it touches a peer's buffers.
    pub fn touches_windows(&self) -> bool {
        let operands = self.sources.iter().map(|source| &source.operand).chain(&self.destinations);
        operands.into_iter().any(|operand| matches!(operand, Operand::Window { .. } | Operand::Multicast { .. }))
    }
}

/// A source of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Where it lies.
    pub operand: Operand,
    /// Whether it is a caller's input entering a reduction, and the reduction's scale (an average's) is due.
    pub scale: bool,
}

/// Where a source or a destination lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// This rank's own memory.
    Local {
        /// Which buffer.
        buffer: Buffer,
        /// Bytes from its start, at iteration 0.
        offset: u64,
    },
    /// The current slot of a connection. As a source: wait until it is full, release it afterwards. As a destination: wait
    /// until it is empty, publish it afterwards.
    Slot(ConnectionId),
    /// A peer's memory, read or written in place.
    Window {
        /// Whose.
        rank: Rank,
        /// Which buffer.
        buffer: Buffer,
        /// Bytes from its start, at iteration 0.
        offset: u64,
    },
    /// Every rank's memory at the same place, by way of a switch that reduces. As a source, the reduction of all of them; as a
    /// destination, all of them. Its step has one source and one destination; bytes, offsets and chunks are multiples of
    /// [`MULTICAST_ALIGNMENT_BYTES`].
    Multicast {
        /// Which buffer.
        buffer: Buffer,
        /// Bytes from its start, at iteration 0.
        offset: u64,
    },
}

impl Operand {
    /// This rank's own input, from `offset` bytes on.
    pub fn input(offset: u64) -> Operand {
        Operand::Local { buffer: Buffer::Input, offset }
    }

    /// This rank's own output, from `offset` bytes on.
    pub fn output(offset: u64) -> Operand {
        Operand::Local { buffer: Buffer::Output, offset }
    }

    /// As a source that is taken as it is.
    pub fn plain(self) -> Source {
        Source { operand: self, scale: false }
    }

    /// As a caller's input that enters a reduction here.
    pub fn scaled(self) -> Source {
        Source { operand: self, scale: true }
    }
}

/// A buffer of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// What the caller passed in; not written, unless it is the output too.
    Input,
    /// Where the caller wants the result.
    Output,
    /// Memory of the communicator.
    Scratch,
}

/// A step of another program of the same rank, at the same iteration of its loop (which runs at least as often).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct After {
    /// Another program of the same rank.
    pub program: ProgramId,
    /// Which of its steps.
    pub step: StepId,
}
