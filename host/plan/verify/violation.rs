//! What can be wrong with a plan, where, and in which words.
//!
//! A violation is data first (a kind and a place, for programs) and text second (for people). This file decides
//! nothing.

use std::collections::HashMap;
use std::fmt;
use std::mem::Discriminant;
use std::ops::Range;

use crate::plan::{Buffer, ConnectionId, MULTICAST_ALIGNMENT_BYTES, PlanError, ProgramId, Rank, StepId};

/// Violations that [`verify`](super::verify) lists; further ones are only counted, in a last [`ViolationKind::More`].
pub const MAX_VIOLATIONS: usize = 100;

/// Ranks that a [`RankList`] names.
const MAX_LISTED_RANKS: usize = 8;

/// Something that is wrong with a plan.
///
/// It prints as the place, a colon and the fault: `rank r2, program p0, step s3, iteration 1, output bytes 128..256:
/// counts the input of r1 twice`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What is wrong.
    pub kind: ViolationKind,
    /// Where the callers' inputs and outputs lay when it was found. What is wrong out of place is not told again in
    /// place.
    pub placement: Placement,
    /// Whose part of the plan it is in.
    pub rank: Option<Rank>,
    /// Which of the rank's programs.
    pub program: Option<ProgramId>,
    /// Which of the program's steps.
    pub step: Option<StepId>,
    /// Which iteration of the step's loop.
    pub iteration: Option<u64>,
    /// The memory that it concerns.
    pub memory: Option<Memory>,
    /// The bytes of that memory; from the start of the buffer, or of the slot.
    pub bytes: Option<Range<u64>>,
    /// How many more times the same step does the same wrong, at other iterations or other bytes.
    pub repeats: u64,
}

/// Memory as seen by the rank that a violation names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// A buffer of its own.
    Local(Buffer),
    /// A buffer of a peer.
    Window(Rank, Buffer),
    /// The slots of a connection.
    Slot(ConnectionId),
}

/// Where the callers' inputs and outputs lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Placement {
    /// Apart, on every rank.
    OutOfPlace,
    /// In the same memory, on every rank.
    InPlace,
    /// In the same memory on ranks 0, 2, 4, …, apart on the others.
    EvenRanksInPlace,
}

/// Ranks: the first few by name, the others as a number.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RankList {
    /// The lowest ranks, at most eight.
    pub named: Vec<Rank>,
    /// How many there are in all.
    pub count: u64,
}

/// The step at which a program stands, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has run to its end.
    Ended,
    /// It waits at a step.
    At {
        /// Which step.
        step: StepId,
        /// Which iteration of the step's loop.
        iteration: u64,
    },
}

/// What a stuck program waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// A slot to arrive.
    Full {
        /// On which connection.
        connection: ConnectionId,
        /// Who should fill it.
        from: Rank,
        /// Which of its programs.
        program: ProgramId,
        /// Where that program stands.
        standing: Standing,
    },
    /// A slot to be released.
    Room {
        /// On which connection.
        connection: ConnectionId,
        /// How many slots it has, all of them full.
        slots: u32,
        /// Who should empty one.
        to: Rank,
        /// Which of its programs.
        program: ProgramId,
        /// Where that program stands.
        standing: Standing,
    },
    /// A step of another program of the rank.
    After {
        /// Which program.
        program: ProgramId,
        /// Which of its steps.
        step: StepId,
        /// At which iteration.
        iteration: u64,
        /// Where that program stands.
        standing: Standing,
    },
}

/// One of [`Limits`](super::Limits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// [`Limits::fired_steps`](super::Limits::fired_steps).
    FiredSteps,
    /// [`Limits::clock_entries`](super::Limits::clock_entries).
    ClockEntries,
    /// [`Limits::work`](super::Limits::work).
    Work,
    /// [`Limits::stored`](super::Limits::stored).
    Stored,
}

/// What is wrong. The numbers refer to the list in the documentation of [`verify`](super).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ViolationKind {
    // 1. Well formed: the plan as a whole.
    /// There is no rank.
    NoRanks,
    /// The collective's root is not one of the ranks.
    UnknownRoot {
        /// Who.
        root: Rank,
        /// How many ranks there are.
        rank_count: u64,
    },
    /// Elements have no bytes.
    NoElementBytes,
    /// Count × element × ranks is 2^63 bytes or more.
    SizeOverflow,
    /// The plan is beyond what the verifier takes on.
    TooLarge {
        /// Which limit.
        limit: Limit,
        /// What the plan needs; for [`Limit::Work`] and [`Limit::Stored`], what it had used when it was given up.
        found: u64,
        /// What is allowed.
        allowed: u64,
    },
    // 1. Well formed: a connection.
    /// A connection or a window names a rank that is not there.
    UnknownRank {
        /// Who.
        rank: Rank,
        /// How many ranks there are.
        rank_count: u64,
    },
    /// A connection from a rank to itself.
    ConnectionToItself,
    /// A connection without slots.
    NoSlots,
    /// No program fills the connection.
    NoProducer,
    /// No program empties the connection.
    NoConsumer,
    /// Two programs fill the connection.
    SecondProducer {
        /// The first one; the violation's place is the second.
        first: ProgramId,
    },
    /// Two programs empty the connection.
    SecondConsumer {
        /// The first one; the violation's place is the second.
        first: ProgramId,
    },
    // 1. Well formed: a loop or a step.
    /// A loop without steps.
    NoSteps,
    /// A loop that never runs.
    NoIterations,
    /// `chunk_bytes` is 0 or no multiple of the element.
    ChunkBytes {
        /// What it is.
        chunk_bytes: u32,
        /// The element's size.
        element_bytes: u32,
    },
    /// A step's bytes are no multiple of the element.
    StepBytes {
        /// What they are.
        bytes: u64,
        /// The element's size.
        element_bytes: u32,
    },
    /// The loop ends before the step's bytes do.
    LoopTooShort {
        /// The step's bytes.
        bytes: u64,
        /// The bytes that all iterations of the loop cover.
        covered_bytes: u64,
    },
    /// A step without sources.
    NoSources,
    /// A step without destinations.
    NoDestinations,
    /// The collective reduces nothing, but the step has several sources, a scale or a finish.
    NotAReduction,
    /// An offset is no multiple of the element.
    Offset {
        /// What it is.
        offset: u64,
        /// The element's size.
        element_bytes: u32,
    },
    /// Bytes beyond the end of the buffer.
    OutOfRange {
        /// The buffer's size.
        size_bytes: u64,
    },
    /// The caller's input is a destination.
    InputWritten,
    /// A window of the rank itself.
    OwnWindow,
    /// A step through a switch that has another number of sources or of destinations than one.
    MulticastNotAlone {
        /// How many sources.
        sources: u64,
        /// How many destinations.
        destinations: u64,
    },
    /// Bytes, an offset or chunks of a step through a switch that are no multiples of [`MULTICAST_ALIGNMENT_BYTES`].
    MulticastMisaligned {
        /// The first that is not.
        bytes: u64,
    },
    /// A step names a connection that is not there.
    UnknownConnection {
        /// How many connections there are.
        connection_count: u64,
    },
    /// A destination slot on a rank that is not the connection's `from`.
    NotTheProducer {
        /// Who is.
        from: Rank,
    },
    /// A source slot on a rank that is not the connection's `to`.
    NotTheConsumer {
        /// Who is.
        to: Rank,
    },
    /// More bytes than a slot of the connection holds.
    SlotOverflow {
        /// What the step puts into a slot.
        bytes: u64,
        /// What the slot holds.
        slot_bytes: u32,
    },
    /// A connection is used twice in one step.
    ConnectionTwice,
    /// `after` names a program that is not there.
    UnknownProgram {
        /// Which one.
        program: ProgramId,
    },
    /// `after` names a step that is not there.
    UnknownStep {
        /// Of which program.
        program: ProgramId,
        /// Which one.
        step: StepId,
    },
    /// `after` names the program itself.
    AfterItself,
    /// `after` names a step that runs less often.
    AfterTooFew {
        /// How often it runs.
        iterations: u64,
        /// How often the step that waits on it runs.
        needed: u64,
    },

    // 2. Right.
    /// A slot arrives with more or fewer bytes than the step takes.
    PayloadLength {
        /// What the step takes.
        expected: u64,
        /// What arrived.
        came: u64,
    },
    /// A reduction counts an input more than once.
    CountsTwice {
        /// Whose.
        ranks: RankList,
    },
    /// A reduction mixes different elements.
    MixedElements {
        /// The source that differs from the first one.
        source: u32,
        /// The byte of the input at which the first source starts.
        expected_byte: u64,
        /// The byte at which this one starts.
        found_byte: u64,
    },
    /// A scale on what has been scaled.
    ScaledTwice {
        /// Which source.
        source: u32,
    },
    /// An input enters a reduction, or is finished, without its scale.
    NotScaled {
        /// Whose.
        ranks: RankList,
    },
    /// A finish on what is not complete.
    FinishedEarly {
        /// Whose inputs are not in it yet.
        lacking: RankList,
    },
    /// A finish on what has been finished.
    FinishedTwice,
    /// A finished value enters a reduction.
    FinishedReduced {
        /// Which source.
        source: u32,
    },
    /// The output was never written.
    OutputNotWritten,
    /// The output lacks inputs.
    OutputLacks {
        /// Whose.
        ranks: RankList,
    },
    /// The output was not finished.
    OutputNotFinished,
    /// The output holds another element than the one that belongs there.
    OutputElement {
        /// The byte of the input that belongs there.
        expected_byte: u64,
        /// The byte of the input that is there.
        found_byte: u64,
    },
    /// The output holds another rank's input.
    OutputInput {
        /// Whose belongs there.
        expected: Rank,
        /// Whose is there.
        found: Rank,
    },
    /// Two ranks reduce the same element in different orders, so that their bits may differ.
    OutputOrder {
        /// How it is reduced here.
        here: String,
        /// The rank that it is compared with.
        other: Rank,
        /// How it is reduced there.
        there: String,
    },

    /// A rank may leave the barrier when others have not come.
    BarrierLeft {
        /// Who may be absent.
        absent: RankList,
    },

    // 3. Written before read.
    /// A source that nobody has written.
    NotWritten,

    // 4. Ordered.
    /// Two operands of one step overlap without being the same bytes, or two destinations overlap.
    Overlap,
    /// The bytes are touched by two programs in no order, and one of them writes.
    Race {
        /// Whether the place named first writes them (else it reads them).
        writes: bool,
        /// The other's rank.
        other: Rank,
        /// The other's program.
        other_program: ProgramId,
        /// The other's step.
        other_step: StepId,
        /// The other's iteration.
        other_iteration: u64,
        /// Whether the other writes them (else it reads them).
        other_writes: bool,
    },
    /// A window is touched before its owner is known to have begun.
    WindowBeforeStart {
        /// Whose window.
        owner: Rank,
    },
    /// A window is touched when its owner may have ended.
    WindowAfterEnd {
        /// Whose window.
        owner: Rank,
    },

    // 6. No deadlock, no residue.
    /// A program that never ends.
    Stuck(WaitsFor),
    /// Slots that nobody has taken out.
    Residue {
        /// How many.
        slots: u64,
    },

    // 7. Bytes.
    /// A rank sends more or fewer bytes than the algorithm's published number.
    BytesSent {
        /// The published number.
        published: u64,
        /// What the plan sends.
        found: u64,
    },

    /// Nobody publishes a number of bytes for such a plan: its algorithm does not offer the collective, or it is too
    /// large.
    NoPublishedBytes(PlanError),

    /// The list was cut.
    More {
        /// How many further violations there are.
        count: u64,
    },
}

impl Placement {
    pub(super) fn is_in_place(self, rank: Rank) -> bool {
        match self {
            Placement::OutOfPlace => false,
            Placement::InPlace => true,
            Placement::EvenRanksInPlace => rank.0.is_multiple_of(2),
        }
    }
}

impl RankList {
    pub(super) fn push(&mut self, rank: Rank) {
        if self.named.len() < MAX_LISTED_RANKS {
            self.named.push(rank);
        }
        self.count += 1;
    }

    fn inputs(&self) -> &'static str {
        if self.count == 1 { "input" } else { "inputs" }
    }
}

impl fmt::Display for RankList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rank) in self.named.iter().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(f, "{separator}{rank}")?;
        }
        match self.count.saturating_sub(self.named.len() as u64) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Ended => write!(f, "has ended"),
            Standing::At { step, iteration } => write!(f, "stands at step {step}, iteration {iteration}"),
        }
    }
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitsFor::Full { connection, from, program, standing } => {
                write!(
                    f,
                    "waits for connection {connection} to be filled by rank {from}, program {program}; that {standing}"
                )
            }
            WaitsFor::Room { connection, slots, to, program, standing } => write!(
                f,
                "waits for connection {connection}, its slots ({slots}) all full, to be emptied by rank {to}, \
                 program {program}; that {standing}"
            ),
            WaitsFor::After { program, step, iteration, standing } => {
                write!(f, "waits for program {program}, step {step}, iteration {iteration}; that program {standing}")
            }
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::FiredSteps => "steps fired by all programs",
            Limit::ClockEntries => "clock entries (programs × programs, slots in flight and steps waited on)",
            Limit::Work => "units of work",
            Limit::Stored => "intervals and expressions kept",
        })
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Local(buffer) => write!(f, "{buffer}"),
            Memory::Window(rank, buffer) => write!(f, "{rank}'s {buffer}"),
            Memory::Slot(connection) => write!(f, "connection {connection}"),
        }
    }
}

fn touches(writes: bool) -> &'static str {
    if writes { "writes" } else { "reads" }
}

impl fmt::Display for ViolationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ViolationKind::*;
        match self {
            NoRanks => write!(f, "there are no ranks"),
            UnknownRoot { root, rank_count } => write!(f, "the root {root} is not one of the {rank_count} ranks"),
            NoElementBytes => write!(f, "elements have no bytes"),
            SizeOverflow => write!(f, "count × element × ranks is 2^63 bytes or more"),
            TooLarge { limit, found, allowed } => {
                write!(f, "too large to verify: {found} {limit}, at most {allowed} are taken on")
            }
            UnknownRank { rank, rank_count } => write!(f, "{rank} is not one of the {rank_count} ranks"),
            ConnectionToItself => write!(f, "goes from a rank to itself"),
            NoSlots => write!(f, "has no slots"),
            NoProducer => write!(f, "no program fills it"),
            NoConsumer => write!(f, "no program empties it"),
            SecondProducer { first } => write!(f, "is filled by program {first} too"),
            SecondConsumer { first } => write!(f, "is emptied by program {first} too"),
            NoSteps => write!(f, "a loop without steps"),
            NoIterations => write!(f, "a loop that never runs"),
            ChunkBytes { chunk_bytes, element_bytes } => {
                write!(f, "chunks of {chunk_bytes} bytes; a multiple of the element's {element_bytes} was expected")
            }
            StepBytes { bytes, element_bytes } => {
                write!(f, "handles {bytes} bytes; a multiple of the element's {element_bytes} was expected")
            }
            LoopTooShort { bytes, covered_bytes } => {
                write!(f, "handles {bytes} bytes, but its loop ends after {covered_bytes}")
            }
            NoSources => write!(f, "has no sources"),
            NoDestinations => write!(f, "has no destinations"),
            NotAReduction => write!(f, "reduces, scales or finishes in a collective that only copies"),
            Offset { offset, element_bytes } => {
                write!(f, "starts at byte {offset}; a multiple of the element's {element_bytes} was expected")
            }
            OutOfRange { size_bytes } => write!(f, "the buffer has only {size_bytes} bytes"),
            InputWritten => write!(f, "writes a caller's input"),
            MulticastNotAlone { sources, destinations } => write!(
                f,
                "goes through a switch from {sources} sources to {destinations} destinations; expected one of each"
            ),
            MulticastMisaligned { bytes } => write!(
                f,
                "goes through a switch with bytes, an offset or chunks of {bytes}; expected multiples of \
                 {MULTICAST_ALIGNMENT_BYTES}"
            ),
            OwnWindow => write!(f, "reaches its own memory through a window"),
            UnknownConnection { connection_count } => {
                write!(f, "the connection is not one of the plan's {connection_count}")
            }
            NotTheProducer { from } => write!(f, "fills a connection that belongs to {from}"),
            NotTheConsumer { to } => write!(f, "empties a connection that belongs to {to}"),
            SlotOverflow { bytes, slot_bytes } => write!(f, "puts {bytes} bytes into a slot of {slot_bytes}"),
            ConnectionTwice => write!(f, "is used twice in one step"),
            UnknownProgram { program } => write!(f, "waits on program {program}, which the rank does not have"),
            UnknownStep { program, step } => {
                write!(f, "waits on step {step} of program {program}, which has no such step")
            }
            AfterItself => write!(f, "waits on its own program"),
            AfterTooFew { iterations, needed } => {
                write!(f, "has {needed} iterations, but the step that it waits on has {iterations}")
            }
            PayloadLength { expected, came } => write!(f, "takes {expected} bytes, but the slot arrives with {came}"),
            CountsTwice { ranks } => write!(f, "counts the {} of {ranks} twice", ranks.inputs()),
            MixedElements { source, expected_byte, found_byte } => write!(
                f,
                "source {source} holds the inputs from byte {found_byte}, where source 0 holds them from byte {expected_byte}"
            ),
            ScaledTwice { source } => write!(f, "scales source {source} a second time"),
            NotScaled { ranks } => write!(f, "takes the {} of {ranks} without the scale", ranks.inputs()),
            FinishedEarly { lacking } => write!(f, "finishes before the {} of {lacking} came in", lacking.inputs()),
            FinishedTwice => write!(f, "finishes a second time"),
            FinishedReduced { source } => write!(f, "reduces source {source}, which has been finished"),
            OutputNotWritten => write!(f, "was never written"),
            OutputLacks { ranks } => write!(f, "lacks the {} of {ranks}", ranks.inputs()),
            OutputNotFinished => write!(f, "was not finished"),
            OutputElement { expected_byte, found_byte } => {
                write!(f, "holds the inputs from byte {found_byte}, where those from byte {expected_byte} belong")
            }
            OutputInput { expected, found } => {
                write!(f, "holds the input of {found}, where that of {expected} belongs")
            }
            OutputOrder { here, other, there } => {
                write!(f, "is reduced as {here}, but on rank {other} as {there}: the bits may differ")
            }
            BarrierLeft { absent } => write!(f, "may leave the barrier before {absent} came"),
            NotWritten => write!(f, "reads what was not written"),
            Overlap => write!(f, "overlaps another operand of the step"),
            Race { writes, other, other_program, other_step, other_iteration, other_writes } => write!(
                f,
                "{} what rank {other}, program {other_program}, step {other_step}, iteration {other_iteration} {}, in no order",
                touches(*writes),
                touches(*other_writes)
            ),
            WindowBeforeStart { owner } => {
                write!(f, "touches the window of {owner} before {owner} is known to have begun")
            }
            WindowAfterEnd { owner } => write!(f, "touches the window of {owner} when {owner} may have ended"),
            Stuck(waits_for) => write!(f, "{waits_for}"),
            Residue { slots: 1 } => write!(f, "1 slot is left full at the end"),
            Residue { slots } => write!(f, "{slots} slots are left full at the end"),
            BytesSent { published, found } => {
                write!(f, "sends {found} bytes, where the algorithm's published number is {published}")
            }
            NoPublishedBytes(error) => write!(f, "there is no published number of bytes: {error}"),
            More { count } => write!(f, "{count} more violations are not listed"),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.rank.map(|rank| format!("rank {rank}")));
        parts.extend(self.program.map(|program| format!("program {program}")));
        parts.extend(self.step.map(|step| format!("step {step}")));
        parts.extend(self.iteration.map(|iteration| format!("iteration {iteration}")));
        parts.extend(self.memory.map(|memory| match &self.bytes {
            Some(bytes) => format!("{memory} bytes {}..{}", bytes.start, bytes.end),
            None => memory.to_string(),
        }));
        if parts.is_empty() {
            parts.push("plan".to_string());
        }
        write!(f, "{}: {}", parts.join(", "), self.kind)?;
        if self.repeats > 0 {
            write!(f, " (and {} times more)", self.repeats)?;
        }
        match self.placement {
            Placement::OutOfPlace => Ok(()),
            Placement::InPlace => write!(f, " (in place)"),
            Placement::EvenRanksInPlace => write!(f, " (even ranks in place)"),
        }
    }
}

/// Where in the plan the verifier is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    pub(super) rank: Option<Rank>,
    pub(super) program: Option<ProgramId>,
    pub(super) step: Option<StepId>,
    pub(super) iteration: Option<u64>,
}

/// What makes two violations the same wrong, told once.
type Sameness = (Discriminant<ViolationKind>, Option<Rank>, Option<ProgramId>, Option<StepId>, Option<Memory>);

/// Violations as they are found: the same wrong once, the list no longer than [`MAX_VIOLATIONS`].
#[derive(Debug)]
pub(super) struct Violations {
    list: Vec<Violation>,
    known: HashMap<Sameness, Option<usize>>,
    more: u64,
    pub(super) placement: Placement,
}

impl Violations {
    pub(super) fn new() -> Self {
        Violations { list: Vec::new(), known: HashMap::new(), more: 0, placement: Placement::OutOfPlace }
    }

    pub(super) fn push(&mut self, place: Place, memory: Option<(Memory, Option<Range<u64>>)>, kind: ViolationKind) {
        let (memory, bytes) = match memory {
            Some((memory, bytes)) => (Some(memory), bytes),
            None => (None, None),
        };
        let Place { rank, program, step, iteration } = place;
        let sameness = (std::mem::discriminant(&kind), rank, program, step, memory);
        match self.known.get(&sameness) {
            Some(Some(index)) => {
                let first = &mut self.list[*index];
                first.repeats += u64::from(first.placement == self.placement);
            }
            Some(None) => {}
            None => {
                let listed = self.list.len() < MAX_VIOLATIONS;
                self.known.insert(sameness, listed.then_some(self.list.len()));
                if listed {
                    let placement = self.placement;
                    let repeats = 0;
                    self.list.push(Violation {
                        kind,
                        placement,
                        rank,
                        program,
                        step,
                        iteration,
                        memory,
                        bytes,
                        repeats,
                    });
                } else {
                    self.more += 1;
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether nothing more will be listed.
    pub(super) fn is_full(&self) -> bool {
        self.more > 0
    }

    pub(super) fn into_list(mut self) -> Vec<Violation> {
        if self.more > 0 {
            self.list.push(Violation {
                kind: ViolationKind::More { count: self.more },
                placement: Placement::OutOfPlace,
                rank: None,
                program: None,
                step: None,
                iteration: None,
                memory: None,
                bytes: None,
                repeats: 0,
            });
        }
        self.list
    }
}
