//! The step interpreter: runs one program of a plan, one step at a time.
//!
//! [`advance`] looks at the program's current step. If every operand is ready — a source's slot is full, a destination's
//! slot is free, the step it waits on is done — it runs the whole copy-and-reduce, publishes and releases the slots, and
//! moves on. If not, it says so and returns: nothing here waits. A CPU thread rotates its programs through it, a thread
//! block polls it.
//!
//! All threads of a team call it together. The operands of a step are shared out among them: thread `t` polls operand `t`,
//! leaves its address where all can read it, and publishes or releases it at the end; votes join their findings.

use core::ptr;

#[cfg(target_arch = "nvptx64")]
use crate::flagged;
use crate::layout::{
    Call, Loop, NO_PROGRAM, Operand, Program, ReceiveEnd, SLOT_HEADER_BYTES, SendEnd, SlotHeader, Step, operand_flag,
    operand_kind, step_flag,
};
use crate::reduce_copy::Operands;
use crate::target::{
    LOOKS_FOR_ABORT_AT_ONCE, all, any, barrier, begin_touch, end_touch, forgotten, is_aborted, load_acquire,
    load_address, note_read, note_write, store_release, thread_count, thread_index, timestamp,
};

/// The copy-and-reduce that steps run: that of one element type and one reduction. The interpreter knows neither.
pub trait Kernel: Copy {
    /// Whether slots are of a format whose data is its own signal.
    const FLAGGED: bool = false;

    /// `destinations ← finish(reduce(scale(sources)))` over `bytes` bytes, by the whole team.
    ///
    /// # Safety
    /// The operands keep their contract; `bytes` is a multiple of the element's size, and every address is a multiple of it
    /// too.
    unsafe fn reduce_copy(self, operands: &StepOperands, bytes: usize);

    /// The same if [`Kernel::FLAGGED`], of `bytes` bytes that may be 0; false on threads that saw the abort word raised while
    /// they waited for data.
    ///
    /// # Safety
    /// As [`Kernel::reduce_copy`], except that source slots need not hold all their data yet.
    #[inline(always)]
    unsafe fn reduce_copy_flagged(self, _operands: &StepOperands, _call: &Call, _bytes: usize) -> bool {
        false
    }
}

/// How far a program has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The current loop.
    pub loop_index: u32,
    /// The current step of that loop.
    pub step: u32,
    /// The current iteration of that loop.
    pub iteration: u64,
}

impl State {
    /// Steps completed, in all iterations of all loops.
    ///
    /// # Safety
    /// The state is one of the program, which has not come to its end.
    #[inline(always)]
    pub unsafe fn completed(&self, program: &Program) -> u64 {
        // SAFETY: passed on from the caller.
        let looped = unsafe { &*program.loops.add(self.loop_index as usize) };
        looped.steps_before + self.iteration * u64::from(looped.step_count) + u64::from(self.step)
    }
}

/// The answer of [`advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A step ran.
    Fired,
    /// The current step's operand of this index is not ready ([`NO_OPERAND`]: the step that it comes after is not done).
    Waiting {
        /// Index among the step's operands; on a GPU, of one that this thread looked at.
        operand: u32,
    },
    /// Every step has run.
    Done,
    /// The abort word is raised. (On a GPU, whoever sees a program wait for long looks at it: see [`LOOKS_FOR_ABORT_AT_ONCE`].)
    Aborted,
    /// The slot of the current step's operand of this index belongs to another call.
    Mismatch {
        /// Index among the step's operands.
        operand: u32,
    },
}

/// See [`Progress::Waiting`].
pub const NO_OPERAND: u32 = u32::MAX;

/// What one thread found out about the operands that it polled.
enum Poll {
    Ready,
    Waiting(u32),
    Mismatch(u32),
}

/// Fires the current step of `program` if it is ready.
///
/// # Safety
/// `program` and `call` describe memory that is valid until the call is over, as the host lays it out: indices in range,
/// connections with one producing and one consuming program each, local and window operands inside their buffers,
/// addresses aligned to `kernel`'s elements. `state` is this program's own, starts as the default and is only changed here.
/// No other team runs the same program.
#[inline(always)]
pub unsafe fn advance<K: Kernel>(kernel: K, program: &Program, state: &mut State, call: &Call) -> Progress {
    if state.loop_index == program.loop_count {
        return Progress::Done;
    }
    // SAFETY: the state is in range: it starts at the first step, and `move_on` keeps it there.
    let (looped, step, operands) = unsafe { current(program, state) };
    let start = state.iteration * u64::from(looped.chunk_bytes);
    let remaining = step.bytes.saturating_sub(start);
    let chunk = u64::from(looped.chunk_bytes);
    let bytes = if remaining < chunk { remaining } else { chunk };

    // SAFETY: passed on from the caller.
    let poll = unsafe { poll::<K>(program, state, call, step, operands, start) };
    if any(matches!(poll, Poll::Mismatch(_))) {
        return Progress::Mismatch { operand: if let Poll::Mismatch(operand) = poll { operand } else { NO_OPERAND } };
    }
    if !all(matches!(poll, Poll::Ready)) {
        // SAFETY: the abort word outlives the call.
        if LOOKS_FOR_ABORT_AT_ONCE && any(unsafe { is_aborted(call.abort) }) {
            return Progress::Aborted;
        }
        return Progress::Waiting { operand: if let Poll::Waiting(operand) = poll { operand } else { NO_OPERAND } };
    }
    let touches_windows = step.flags & step_flag::TOUCHES_WINDOWS != 0;
    // SAFETY: both words outlive the call.
    if touches_windows && !all(unsafe { begin_touch(call.touching, call.abort) }) {
        // SAFETY: as above.
        unsafe { end_touch(call.touching) };
        return Progress::Aborted;
    }
    if !call.traces.is_null() && thread_index() == 0 {
        // SAFETY: passed on from the caller; this is the program's leader.
        unsafe { record_start(program, call) };
    }
    let step_operands = StepOperands {
        addresses: program.resolved,
        operands,
        source_count: step.source_count,
        destination_count: step.destination_count,
        flags: step.flags,
        scale: call.scale,
        finish: call.finish,
    };
    if K::FLAGGED {
        // SAFETY: as below.
        if !all(unsafe { kernel.reduce_copy_flagged(&step_operands, call, bytes as usize) }) {
            return Progress::Aborted;
        }
    } else {
        if bytes > 0 {
            // SAFETY: `poll` has resolved the addresses, each valid for `bytes` bytes from there.
            unsafe { kernel.reduce_copy(&step_operands, bytes as usize) };
        }
        // Every thread's loads and stores come before the counters that any thread moves below.
        barrier();
    }
    // SAFETY: as above.
    let (looped, step, operands) = unsafe { current(forgotten(program), state) };
    let touches_windows = step.flags & step_flag::TOUCHES_WINDOWS != 0;
    if touches_windows {
        // SAFETY: as above.
        unsafe { end_touch(call.touching) };
    }
    // SAFETY: passed on from the caller.
    unsafe {
        publish::<K>(call, step, operands);
        if !call.traces.is_null() && thread_index() == 0 {
            record_end(program, state, call, looped.first_step + state.step);
        }
    }
    if step.flags & step_flag::AWAITED != 0 && thread_index() == 0 {
        // SAFETY: the state is in range; the table has an entry for each program, and only this program writes this one.
        unsafe {
            let completed = state.completed(program) + 1;
            store_release(&raw mut (*call.completed.add(program.index as usize)).steps, completed);
        }
    }
    move_on(state, looped.step_count, looped.iterations);
    Progress::Fired
}

/// The loop and the step at which a program is, and that step's first operand.
///
/// # Safety
/// The state is in range.
#[inline(always)]
unsafe fn current<'a>(program: &'a Program, state: &State) -> (&'a Loop, &'a Step, *const Operand) {
    // SAFETY: passed on from the caller.
    unsafe {
        let looped = &*program.loops.add(state.loop_index as usize);
        let step = &*program.steps.add((looped.first_step + state.step) as usize);
        (looped, step, program.operands.add(step.first_operand as usize))
    }
}

/// The next step, iteration or loop.
#[inline(always)]
fn move_on(state: &mut State, step_count: u32, iterations: u64) {
    state.step += 1;
    if state.step < step_count {
        return;
    }
    state.step = 0;
    state.iteration += 1;
    if state.iteration < iterations {
        return;
    }
    state.iteration = 0;
    state.loop_index += 1;
}

/// Polls this thread's share of the step's operands and leaves the address of each in `program.resolved`.
///
/// # Safety
/// As [`advance`].
#[inline(always)]
unsafe fn poll<K: Kernel>(
    program: &Program,
    state: &State,
    call: &Call,
    step: &Step,
    operands: *const Operand,
    start: u64,
) -> Poll {
    let mut found = Poll::Ready;
    if step.after_program != NO_PROGRAM && thread_index() == 0 {
        let needed = step.after_first + state.iteration * step.after_stride;
        // SAFETY: the table has an entry for each program.
        let done = unsafe { load_acquire(&raw const (*call.completed.add(step.after_program as usize)).steps) };
        if done < needed {
            found = Poll::Waiting(NO_OPERAND);
        }
    }
    let count = step.source_count + step.destination_count;
    let mut index = thread_index() as u32;
    while index < count {
        // SAFETY: the step's operands are in range, and `resolved` has room for as many addresses as any step has.
        unsafe {
            let operand = &*operands.add(index as usize);
            let address = match operand.kind {
                operand_kind::LOCAL => (*(&raw const call.buffers).cast::<*mut u8>().add(operand.index as usize))
                    .wrapping_add((operand.offset + start) as usize),
                operand_kind::WINDOW | operand_kind::MULTICAST => {
                    let window = if operand.kind == operand_kind::WINDOW {
                        call.windows.add(operand.index as usize)
                    } else {
                        call.multicast
                    };
                    note_read(window);
                    load_address((&raw const (*window).buffers).cast::<*mut u8>().add(operand.buffer as usize))
                        .wrapping_add((operand.offset + start) as usize)
                }
                _ if index < step.source_count => {
                    let end = &mut *call.receives.add(operand.index as usize);
                    let (found, address) = poll_receive::<K>(end, call);
                    match found {
                        Found::Ready => address,
                        Found::Waiting => return Poll::Waiting(index),
                        Found::Mismatch => return Poll::Mismatch(index),
                    }
                }
                _ => {
                    let end = &mut *call.sends.add(operand.index as usize);
                    let address = poll_send::<K>(end, call);
                    if address.is_null() {
                        return Poll::Waiting(index);
                    }
                    address
                }
            };
            *program.resolved.add(index as usize) = address;
        }
        index += thread_count() as u32;
    }
    found
}

/// What there is at a slot.
enum Found {
    Ready,
    Waiting,
    Mismatch,
}

/// The data of the current slot if it is full, and belongs to this call; else null.
///
/// # Safety
/// The connection's memory is valid, and no other thread uses this end now.
#[inline(always)]
unsafe fn poll_receive<K: Kernel>(end: &mut ReceiveEnd, call: &Call) -> (Found, *mut u8) {
    // SAFETY: the slot lies inside the connection's memory; its data is this side's from when `full` says so until the slot
    // is released.
    unsafe {
        let slot = slot(end.slots, end.slot_stride_bytes, end.slot_count, end.received);
        #[cfg(target_arch = "nvptx64")]
        if K::FLAGGED {
            let found = match flagged::header(call.slot_format, slot, end.received + 1, &call.fingerprint) {
                flagged::Header::Ready => Found::Ready,
                flagged::Header::Waiting => Found::Waiting,
                flagged::Header::Mismatch => Found::Mismatch,
            };
            return (found, slot.add(header_bytes::<K>(call)));
        }
        let header = slot.cast::<SlotHeader>();
        // Acquires what the producer wrote into the slot before it published it.
        if load_acquire(&raw const (*header).full) != end.received.wrapping_add(1) {
            return (Found::Waiting, ptr::null_mut());
        }
        note_read(&raw const (*header).fingerprint);
        if (*header).fingerprint != call.fingerprint {
            return (Found::Mismatch, ptr::null_mut());
        }
        (Found::Ready, slot.add(SLOT_HEADER_BYTES))
    }
}

/// The data of the next slot if it is free, else null.
///
/// # Safety
/// As [`poll_receive`].
#[inline(always)]
unsafe fn poll_send<K: Kernel>(end: &mut SendEnd, call: &Call) -> *mut u8 {
    if end.sent.wrapping_sub(end.credit) >= u64::from(end.slot_count) {
        // Acquires the consumer's last look at the slot that it released.
        // SAFETY: the counter is valid.
        end.credit = unsafe { load_acquire(&raw const (*end.empty).value) };
        if end.sent.wrapping_sub(end.credit) >= u64::from(end.slot_count) {
            return ptr::null_mut();
        }
    }
    // SAFETY: the slot lies inside the connection's memory, and is this side's until it is published.
    unsafe { slot(end.slots, end.slot_stride_bytes, end.slot_count, end.sent).add(header_bytes::<K>(call)) }
}

/// Bytes of a slot in front of its data.
#[inline(always)]
fn header_bytes<K: Kernel>(call: &Call) -> usize {
    #[cfg(target_arch = "nvptx64")]
    if K::FLAGGED {
        return flagged::header_bytes(call.slot_format);
    }
    let _ = call;
    SLOT_HEADER_BYTES
}

/// The header of the slot that comes `count`-th on a connection.
///
/// # Safety
/// `slots` is the first of `slot_count` (a power of two) slots.
#[inline(always)]
unsafe fn slot(slots: *mut u8, stride_bytes: u64, slot_count: u32, count: u64) -> *mut u8 {
    // SAFETY: the index is below `slot_count`.
    unsafe { slots.add(((count & u64::from(slot_count - 1)) * stride_bytes) as usize) }
}

/// Releases this thread's share of source slots and publishes its share of destination slots.
///
/// # Safety
/// As [`advance`]; the operands have been polled ready, and the team's data is in place.
#[inline(always)]
unsafe fn publish<K: Kernel>(call: &Call, step: &Step, operands: *const Operand) {
    let count = step.source_count + step.destination_count;
    let mut index = thread_index() as u32;
    while index < count {
        // SAFETY: as in `poll`.
        unsafe {
            let operand = &*operands.add(index as usize);
            if operand.kind == operand_kind::SLOT {
                if index < step.source_count {
                    let end = &mut *call.receives.add(operand.index as usize);
                    end.received = end.received.wrapping_add(1);
                    // Orders the team's loads from the slot before the producer's next stores to it.
                    store_release(&raw mut (*end.empty).value, end.received);
                } else {
                    let end = &mut *call.sends.add(operand.index as usize);
                    let header = slot(end.slots, end.slot_stride_bytes, end.slot_count, end.sent).cast::<SlotHeader>();
                    end.sent = end.sent.wrapping_add(1);
                    // What was its own signal has been published as it was stored.
                    if !K::FLAGGED {
                        note_write(&raw mut (*header).fingerprint);
                        (*header).fingerprint = call.fingerprint;
                        // Orders the fingerprint and the team's stores to the slot before the consumer's loads from it.
                        store_release(&raw mut (*header).full, end.sent);
                    }
                }
            }
        }
        index += thread_count() as u32;
    }
}

/// Keeps when the step begins, if there is room: where its times go, and not in a register that the step could use.
///
/// # Safety
/// `call.traces` has an entry for each program, with room for as many entries as it says; this is the program's leader.
#[inline(always)]
unsafe fn record_start(program: &Program, call: &Call) {
    // SAFETY: passed on from the caller.
    unsafe {
        let trace = &mut *call.traces.add(program.index as usize);
        if trace.count < trace.capacity {
            (*trace.entries.add(trace.count as usize)).start = timestamp();
        }
    }
}

/// Keeps when the step ran, if there is room.
///
/// # Safety
/// As [`record_start`].
#[inline(always)]
unsafe fn record_end(program: &Program, state: &State, call: &Call, step: u32) {
    // SAFETY: passed on from the caller.
    unsafe {
        let trace = &mut *call.traces.add(program.index as usize);
        if trace.count < trace.capacity {
            let entry = &mut *trace.entries.add(trace.count as usize);
            entry.end = timestamp();
            entry.iteration = state.iteration;
            entry.program = program.index;
            entry.step = step;
        }
        trace.count += 1;
    }
}

/// A step's operands, their addresses resolved.
#[derive(Clone, Copy, Debug)]
pub struct StepOperands {
    /// The address of each operand, sources first; they do not change while the operands are in use, and what they point at
    /// keeps the contract of [`Operands`].
    pub addresses: *const *mut u8,
    /// The operands as the plan lists them, for their flags.
    pub operands: *const Operand,
    /// How many sources; at least one.
    pub source_count: u32,
    /// How many destinations; at least one.
    pub destination_count: u32,
    /// Bits of [`step_flag`].
    pub flags: u32,
    /// [`Call::scale`].
    pub scale: u64,
    /// [`Call::finish`].
    pub finish: u64,
}

/// A destination slot whose data is its own signal.
#[cfg(target_arch = "nvptx64")]
pub(crate) struct FlaggedSlot {
    /// Of the message that goes into it, counted from 1.
    pub(crate) number: u64,
    /// Whether all of it is written, so that nothing very old is left in it.
    pub(crate) is_rewritten: bool,
    /// How many times 16 bytes it has, behind its header.
    pub(crate) places: usize,
}

#[cfg(target_arch = "nvptx64")]
impl StepOperands {
    /// The number of the message in the source `index`, if that is a slot.
    ///
    /// # Safety
    /// The operand is in range, and a connection's end in `call` belongs to this program.
    #[inline(always)]
    pub(crate) unsafe fn receive_number(&self, index: usize, call: &Call) -> Option<u64> {
        // SAFETY: passed on from the caller.
        unsafe {
            let operand = &*self.operands.add(index);
            (operand.kind == operand_kind::SLOT).then(|| (*call.receives.add(operand.index as usize)).received + 1)
        }
    }

    /// The destination `index`, if it is a slot.
    ///
    /// # Safety
    /// As [`StepOperands::receive_number`].
    #[inline(always)]
    pub(crate) unsafe fn send_slot(&self, index: usize, call: &Call) -> Option<FlaggedSlot> {
        // SAFETY: passed on from the caller.
        unsafe {
            let operand = &*self.operands.add(self.source_count as usize + index);
            (operand.kind == operand_kind::SLOT).then(|| {
                let end = &*call.sends.add(operand.index as usize);
                FlaggedSlot {
                    number: end.sent + 1,
                    is_rewritten: (end.sent & 0x7fff_ffff) < u64::from(end.slot_count),
                    places: (end.slot_stride_bytes as usize - flagged::header_bytes(call.slot_format)) / 16,
                }
            })
        }
    }
}

// SAFETY: as the field says.
unsafe impl Operands for StepOperands {
    #[inline(always)]
    fn source_count(&self) -> usize {
        self.source_count as usize
    }

    #[inline(always)]
    fn destination_count(&self) -> usize {
        self.destination_count as usize
    }

    #[inline(always)]
    fn source(&self, index: usize) -> *const u8 {
        // SAFETY: there is an address for each operand.
        unsafe { *self.addresses.add(index) }
    }

    #[inline(always)]
    fn destination(&self, index: usize) -> *mut u8 {
        // SAFETY: as above; destinations come after the sources.
        unsafe { *self.addresses.add(self.source_count as usize + index) }
    }

    #[inline(always)]
    fn scale(&self, index: usize) -> Option<u64> {
        // SAFETY: the operand is in range.
        let marked = unsafe { (*self.operands.add(index)).flags } & operand_flag::SCALE != 0;
        marked.then_some(self.scale)
    }

    #[inline(always)]
    fn finish(&self) -> Option<u64> {
        (self.flags & step_flag::FINISH != 0).then_some(self.finish)
    }

    #[inline(always)]
    fn backwards(&self) -> bool {
        self.flags & step_flag::BACKWARDS != 0
    }

    #[inline(always)]
    fn streams(&self) -> bool {
        self.flags & step_flag::STREAMS != 0
    }
}
