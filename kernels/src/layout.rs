//! What the host lays out and the interpreter reads: programs, connections, windows, one call.
//!
//! Everything here is `#[repr(C)]`, made of fixed-width integers and addresses, because the two sides may be a CPU
//! thread and a GPU thread block. Sizes and offsets are asserted at the end of the file, on whichever side compiles it.
//! Nothing here allocates or frees: the memory belongs to the host, and outlives every interpreter that sees it.

/// Sources (or destinations) up to which `reduce_copy` has a loop of its own; above, one loop over the operands serves.
pub const SPECIALISED_OPERANDS: usize = 4;

/// A cache line: what slots are multiples of, and the spacing that keeps two counters apart.
pub const LINE_BYTES: usize = 64;

/// Bytes in front of each slot's data: the [`SlotHeader`], and as much as aligns the data to a GPU's widest access. The rest
/// of the first cache line is data, so that a small message is one line.
pub const SLOT_HEADER_BYTES: usize = 48;

/// What addresses and sizes of steps through a switch are multiples of: the widest access of any GPU.
pub const MULTICAST_ALIGNMENT_BYTES: usize = 32;

/// What a rank says it is doing: equal on all ranks of one call, or the call is an error.
///
/// The host packs the words (see `Fingerprint` there); the interpreter only compares them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Fingerprint {
    /// Which call of the communicator this is, counted from 1.
    pub sequence: u64,
    /// Collective, element type, reduction, algorithm and root.
    pub call: u64,
    /// The count that the caller passed, in elements.
    pub count: u64,
    /// A digest of the plan.
    pub plan: u64,
    /// What a scaled sum scales by, as [`Call::scale`]; otherwise zero.
    pub scale: u64,
}

impl Fingerprint {
    /// This one, as that of the call after `last`: what it digests of the plan then depends on all calls so far.
    ///
    /// Multiplication by an odd number and a rotation lose nothing, so histories that differ go on differing; and since the
    /// words of this call come in between, those that it makes equal by accident are as rare as chance has it.
    #[inline(always)]
    pub fn after(&self, last: &Fingerprint) -> Fingerprint {
        let sequence = last.sequence + 1;
        let with = |word: u64, part: u64| (word ^ part).wrapping_mul(ODD).rotate_left(29);
        let plan = with(with(with(with(last.plan, self.plan), self.call), self.count), sequence);
        Fingerprint { sequence, plan, ..*self }
    }
}

/// The golden ratio's digits: odd, and without a pattern.
pub const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A fingerprint's words of 8 bytes.
pub const FINGERPRINT_WORDS: usize = size_of::<Fingerprint>() / 8;

/// How a slot says that its data is there: one way for all connections of a plan.
pub mod slot_format {
    /// Data, then a flag: a [`super::SlotHeader`] and the data behind it. The flag's release orders whatever the producer did.
    pub const SIMPLE: u32 = 0;
    /// On GPUs: a flag in each 8 bytes. Slots are aligned to 16 bytes and begin with 80 bytes that hold the fingerprint; every 8
    /// bytes of data take 16.
    pub const LL: u32 = 1;
    /// On GPUs: a flag in each 128 bytes, which the transport delivers whole. Slots are aligned to 128 bytes and begin with 128
    /// bytes that hold the fingerprint; every 120 bytes of data take 128.
    pub const LL128: u32 = 2;
}

/// The first bytes of every slot of the format [`slot_format::SIMPLE`].
///
/// What the consumer polls stands beside what it compares first, so that a message costs one cache line. The
/// producer writes `fingerprint` and the data, then `full` with release semantics.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotHeader {
    /// The producer's call; the consumer compares it with its own before it touches the data.
    pub fingerprint: Fingerprint,
    /// How many slots of the connection the producer had published when it published this one, this one included: the
    /// consumer knows the number that it waits for, so nothing needs to be reset.
    pub full: u64,
}

/// Operand kinds, as numbers that both sides share.
pub mod operand_kind {
    /// This rank's own buffer: `index` is one of [`super::buffer`].
    pub const LOCAL: u32 = 0;
    /// The current slot of a connection: `index` counts this rank's send ends (destinations) or receive ends (sources).
    pub const SLOT: u32 = 1;
    /// A peer's exposed buffer: `index` is the rank, `buffer` one of [`super::buffer`].
    pub const WINDOW: u32 = 2;
    /// The same place in every rank's exposed buffer, by way of a switch: `buffer` is one of [`super::buffer`]. As a source, the
    /// reduction of all of them; as a destination, all of them. Its step has one source and one destination, and all their
    /// offsets and bytes are multiples of [`super::MULTICAST_ALIGNMENT_BYTES`].
    pub const MULTICAST: u32 = 3;
}

/// Buffers of a call, as indices into [`Call::buffers`] and [`Window::buffers`].
pub mod buffer {
    /// What the caller passed in.
    pub const INPUT: u32 = 0;
    /// Where the caller wants the result.
    pub const OUTPUT: u32 = 1;
    /// Memory of the communicator.
    pub const SCRATCH: u32 = 2;
    /// How many there are.
    pub const COUNT: usize = 3;
}

/// Flags of an [`Operand`].
pub mod operand_flag {
    /// This source is multiplied by [`super::Call::scale`] before it is reduced (reductions that scale only).
    pub const SCALE: u32 = 1;
}

/// Flags of a [`Step`].
pub mod step_flag {
    /// The result is multiplied by [`super::Call::finish`] before it is stored (reductions that scale only).
    pub const FINISH: u32 = 1;
    /// The step reads or writes a window: peers' memory is touched only inside the guard.
    pub const TOUCHES_WINDOWS: u32 = 2;
    /// A step of another program waits on this one, so its completion is published in [`super::Call::completed`].
    pub const AWAITED: u32 = 4;
    /// The step goes through its bytes from the end to the start, on targets that care.
    pub const BACKWARDS: u32 = 8;
    /// The step writes so much that nobody finds it in a cache afterwards: on targets that care, what it writes and does not
    /// read goes past the caches.
    pub const STREAMS: u32 = 16;
    /// The source is a multicast address.
    pub const MULTICAST_SOURCE: u32 = 32;
    /// The destination is a multicast address.
    pub const MULTICAST_DESTINATION: u32 = 64;
}

/// One source or destination of a step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// One of [`operand_kind`].
    pub kind: u32,
    /// Bits of [`operand_flag`].
    pub flags: u32,
    /// Buffer, connection end or rank, by `kind`.
    pub index: u32,
    /// For a window: one of [`buffer`]; otherwise 0.
    pub buffer: u32,
    /// Bytes from the start of the buffer at iteration 0; slots start at 0.
    pub offset: u64,
}

/// No dependency: the value of [`Step::after_program`] when the step waits only on its operands.
pub const NO_PROGRAM: u32 = u32::MAX;

/// `destinations ← reduce(sources)`: the operands are `first_operand ..`, sources first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Bytes that the step handles over all iterations of its loop.
    pub bytes: u64,
    /// Steps that `after_program` must have completed before this one fires, at iteration 0 ...
    pub after_first: u64,
    /// ... and how many more for each further iteration.
    pub after_stride: u64,
    /// Index of the first source among the program's operands.
    pub first_operand: u32,
    /// How many sources.
    pub source_count: u32,
    /// How many destinations, listed after the sources.
    pub destination_count: u32,
    /// Bits of [`step_flag`].
    pub flags: u32,
    /// The program of the same rank that this step also waits on, or [`NO_PROGRAM`].
    pub after_program: u32,
    /// Zero.
    pub reserved: u32,
}

/// Steps repeated over chunks: at iteration `k` each step handles bytes `k × chunk_bytes .. (k + 1) × chunk_bytes` of its
/// operands, cut at the step's own length.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Loop {
    /// How often the steps run.
    pub iterations: u64,
    /// Bytes that one iteration of one step handles at most.
    pub chunk_bytes: u32,
    /// Index of the first step.
    pub first_step: u32,
    /// How many steps; at least one.
    pub step_count: u32,
    /// Zero.
    pub reserved: u32,
    /// Steps that the program has completed when it comes to this loop.
    pub steps_before: u64,
}

/// A sequence of loops run by one thread block, or by one coroutine of a CPU thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// `loop_count` loops.
    pub loops: *const Loop,
    /// The steps that the loops index.
    pub steps: *const Step,
    /// The operands that the steps index.
    pub operands: *const Operand,
    /// Room for the address of each operand of one step: as many as the longest step has.
    pub resolved: *mut *mut u8,
    /// How many loops.
    pub loop_count: u32,
    /// This program's place in [`Call::completed`].
    pub index: u32,
}

/// Steps that one program has completed in this call; alone on its cache line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Completed {
    /// Written by the program, read by those that wait on it.
    pub steps: u64,
}

/// A 64-bit counter that one side writes and the other reads; alone on its cache line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Counter {
    /// Monotonic.
    pub value: u64,
}

/// The producer's end of a connection. Owned by one program at a time.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct SendEnd {
    /// The first slot's header.
    pub slots: *mut u8,
    /// From one slot's header to the next one's.
    pub slot_stride_bytes: u64,
    /// Slots released so far; lives near the producer.
    pub empty: *const Counter,
    /// Slots published so far, as the producer remembers it between calls.
    pub sent: u64,
    /// The newest value of `empty` that the producer has seen.
    pub credit: u64,
    /// How many slots there are; a power of two.
    pub slot_count: u32,
    /// The rank at the other end.
    pub peer: u32,
}

/// The consumer's end of a connection. Owned by one program at a time.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct ReceiveEnd {
    /// The first slot's header.
    pub slots: *mut u8,
    /// From one slot's header to the next one's.
    pub slot_stride_bytes: u64,
    /// Slots released so far; lives near the producer.
    pub empty: *mut Counter,
    /// Slots released so far, as the consumer remembers it between calls.
    pub received: u64,
    /// How many slots there are; a power of two.
    pub slot_count: u32,
    /// The rank at the other end.
    pub peer: u32,
}

/// The buffers that one rank exposes during a call, as addresses that this rank can use.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Indexed by [`buffer`].
    pub buffers: [*mut u8; buffer::COUNT],
}

/// When one step ran; written by the interpreter if the call carries a trace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    /// In ticks of the target's clock.
    pub start: u64,
    /// In ticks of the target's clock.
    pub end: u64,
    /// Iteration of the loop.
    pub iteration: u64,
    /// Which program.
    pub program: u32,
    /// Which of the program's steps.
    pub step: u32,
}

/// Room for step times: one for each program, so that one thread block writes it.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    /// `capacity` entries.
    pub entries: *mut StepTime,
    /// How many fit.
    pub capacity: u64,
    /// How many steps ran; entries above `capacity` were not kept.
    pub count: u64,
}

/// Everything that the programs of one rank share during one call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What this rank says it is doing.
    pub fingerprint: Fingerprint,
    /// Indexed by [`buffer`].
    pub buffers: [*mut u8; buffer::COUNT],
    /// Indexed by rank; an entry may be read once a slot of that rank has arrived in this call.
    pub windows: *const Window,
    /// Multicast addresses of every rank's buffers: those that the plan reaches through a switch. May be used once a slot of every
    /// rank has arrived in this call.
    pub multicast: *const Window,
    /// This rank's producing ends, as the plan numbers them.
    pub sends: *mut SendEnd,
    /// This rank's consuming ends, as the plan numbers them.
    pub receives: *mut ReceiveEnd,
    /// Indexed by program.
    pub completed: *mut Completed,
    /// Nonzero when the communicator has been aborted.
    pub abort: *const u32,
    /// Nonzero while this rank may be touching a window; null where nobody's memory depends on it.
    pub touching: *mut u32,
    /// Indexed by program; null when steps are not timed.
    pub traces: *mut Trace,
    /// What a marked source is multiplied by: the bits of a number, of the type that the element's arithmetic takes them in
    /// (`Number::factor`).
    pub scale: u64,
    /// What a marked result is multiplied by, or divided where it is an integer: likewise.
    pub finish: u64,
    /// One of [`slot_format`].
    pub slot_format: u32,
    /// Zero.
    pub reserved: u32,
}

/// One rank's part of a plan in a GPU's memory: what all its launches share.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// The call, but for what [`Issue`] and [`RankState`] say of it, and what lies in [`BlockView`].
    pub call: Call,
    /// One program for each thread block.
    pub programs: *const Program,
    /// Room for what each block sees of it.
    pub blocks: *mut BlockView,
    /// The rank.
    pub rank: *mut RankState,
    /// How many programs; there is one block at least, which may have none.
    pub program_count: u32,
    /// Zero.
    pub reserved: u32,
}

/// A call and its program as one block sees them: filled in by the block itself.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct BlockView {
    /// The call.
    pub call: Call,
    /// The program; one without steps for the only block of a rank that has nothing to do.
    pub program: Program,
    /// Where [`Call::multicast`] points: [`Issue::multicast`], and nothing for scratch memory.
    pub multicast: Window,
    /// [`Issue::launch`].
    pub launch: *const Launch,
    /// [`Issue::ticket`].
    pub ticket: u64,
    /// [`Issue::flags`].
    pub flags: u64,
}

/// One call, as a kernel receives it: by value, so that a launch needs no memory of its own and can be replayed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Issue {
    /// The rank's part of the plan.
    pub launch: *const Launch,
    /// The caller's input.
    pub input: *mut u8,
    /// The caller's output.
    pub output: *mut u8,
    /// Multicast addresses of the places of input and output in every rank's memory; null where the plan does without a switch.
    pub multicast: [*mut u8; 2],
    /// What this rank says it is doing, with no sequence number and without what was before: kernels know.
    pub fingerprint: Fingerprint,
    /// [`Call::scale`].
    pub scale: u64,
    /// [`Call::finish`].
    pub finish: u64,
    /// Which of the host's calls this is; zero for one that may be launched again.
    pub ticket: u64,
    /// Bits of [`issue_flag`].
    pub flags: u64,
}

/// Words of 8 bytes of an [`Issue`].
pub const ISSUE_WORDS: usize = size_of::<Issue>() / 8;

/// Flags of an [`Issue`].
pub mod issue_flag {
    /// Peers touch this rank's buffers, so it says where they are.
    pub const EXPOSES: u64 = 1;
    /// The rank may be done before others have come to the call.
    pub const ROOTED: u64 = 2;
    /// The rank publishes a slot before it has consumed one.
    pub const SENDS_FIRST: u64 = 4;
    /// The rank consumes no slot, so it compares nothing; at its end it looks at what the others said they do.
    pub const LOOKS: u64 = 8;
}

/// What the kernels of one rank of a communicator keep in its GPU's memory from launch to launch. Launches of a rank come one
/// after the other; within one, only the last block to end writes here (and `status` the first that fails).
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct RankState {
    /// The last call that ended well.
    pub last: Fingerprint,
    /// This rank's producing ends.
    pub sends: *mut SendEnd,
    /// This rank's consuming ends.
    pub receives: *mut ReceiveEnd,
    /// What each rank lets the others see, in memory of the host.
    pub reports: *mut Report,
    /// For each rank, where it looks up windows: as many entries as there are ranks.
    pub window_tables: *const *mut Window,
    /// Which rank this is.
    pub rank: u32,
    /// How many there are.
    pub rank_count: u32,
    /// Blocks that have ended in the launch under way.
    pub blocks_done: u32,
    /// One of [`launch_status`]; whatever but [`launch_status::GOOD`] stays.
    pub status: u32,
    /// Nonzero if the last call was [`issue_flag::ROOTED`].
    pub unconfirmed: u32,
    /// Zero.
    pub reserved: u32,
}

/// Calls that a [`Report`] remembers.
pub const HISTORY: usize = 16;

/// Programs of which a [`Report`] says how far they are; those beyond share the last place.
pub const REPORTED_PROGRAMS: usize = 64;

/// What the kernels of one rank let its peers and the host see: in memory of the host, to which they only store.
#[repr(C, align(128))]
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The call that the rank has come to. Released after the call's fingerprint.
    pub sequence: u64,
    /// The last call that it has finished. Released after everything that the call did.
    pub finished: u64,
    /// The last [`Issue::ticket`] that it has finished; released likewise.
    pub ticket: u64,
    /// [`RankState::status`].
    pub status: u64,
    /// The fingerprints of the last calls, at their sequence modulo the length.
    pub history: [Fingerprint; HISTORY],
    /// How far each program is, as it says when it has been waiting for a while.
    pub programs: [ProgramReport; REPORTED_PROGRAMS],
}

/// How far a program is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProgramReport {
    /// Steps completed in the call under way, and in the bits from [`ProgramReport::SEQUENCE_SHIFT`] on its sequence number.
    pub progress: u64,
    /// Nonzero while the program is waiting.
    pub is_waiting: u64,
}

impl ProgramReport {
    /// See [`ProgramReport::progress`].
    pub const SEQUENCE_SHIFT: u32 = 40;
}

/// Values of [`RankState::status`].
pub mod launch_status {
    /// Every program has run to its end, or is still running.
    pub const GOOD: u32 = 0;
    /// The abort word was raised.
    pub const ABORTED: u32 = 1;
    /// A slot arrived that belongs to another call, or another rank said that it does something else.
    pub const MISMATCH: u32 = 2;
}

// Both sides are 64-bit; a layout that moved would be read as nonsense, so it does not compile.
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<*const u8>() == 8);
    assert!(size_of::<Fingerprint>() == 40);
    assert!(size_of::<SlotHeader>() <= SLOT_HEADER_BYTES && offset_of!(SlotHeader, full) == 40);
    assert!(SLOT_HEADER_BYTES.is_multiple_of(16) && SLOT_HEADER_BYTES < LINE_BYTES);
    assert!(size_of::<Operand>() == 24 && offset_of!(Operand, offset) == 16);
    assert!(size_of::<Step>() == 48 && offset_of!(Step, first_operand) == 24);
    assert!(size_of::<Loop>() == 32 && offset_of!(Loop, chunk_bytes) == 8 && offset_of!(Loop, steps_before) == 24);
    assert!(size_of::<Program>() == 40 && offset_of!(Program, loop_count) == 32);
    assert!(size_of::<Completed>() == 64 && size_of::<Counter>() == 64);
    assert!(size_of::<SendEnd>() == 64 && offset_of!(SendEnd, slot_count) == 40);
    assert!(size_of::<ReceiveEnd>() == 64 && offset_of!(ReceiveEnd, slot_count) == 32);
    assert!(size_of::<Window>() == 64 && size_of::<StepTime>() == 32 && size_of::<Trace>() == 64);
    assert!(size_of::<Call>() == 152 && offset_of!(Call, scale) == 128 && offset_of!(Call, windows) == 64);
    assert!(size_of::<Launch>() == 184 && offset_of!(Launch, programs) == 152);
    assert!(size_of::<BlockView>() == 320 && offset_of!(BlockView, program) == 152);
    assert!(offset_of!(BlockView, multicast) == 192 && offset_of!(BlockView, launch) == 256);
    assert!(size_of::<Issue>() == 112 && offset_of!(Issue, fingerprint) == 40 && offset_of!(Issue, flags) == 104);
    assert!(size_of::<RankState>() == 128 && offset_of!(RankState, sends) == 40 && offset_of!(RankState, rank) == 72);
    assert!(size_of::<Report>() == 1792 && offset_of!(Report, history) == 32 && offset_of!(Report, programs) == 672);
};
