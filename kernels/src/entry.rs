//! The kernels that a GPU launches: thin shells over the interpreter.
//!
//! The entry points themselves are generated from the kernel table, one for each element type and reduction; here is what
//! they call. A block has a multiple of 32 threads, at most 256, in one dimension (the kernel table says so too).
//!
//! **Invariant.** Nothing here panics, calls or spills: the checks on the PTX see to it.

use core::marker::PhantomData;

use crate::element::{Element, U8, U32};
use crate::flagged;
use crate::interpreter::{Kernel, Progress, State, StepOperands, advance};
#[cfg(target_feature = "sm_90")]
use crate::layout::step_flag;
use crate::layout::{Call, Launch, launch_status};
#[cfg(target_feature = "sm_90")]
use crate::multicast::through_switch;
use crate::reduce_copy::{Operands, by_shape};
use crate::reduction::{self, ReductionOf};
#[cfg(target_feature = "sm_90")]
use crate::target::multimem;
use crate::target::{barrier, block_index, compare_and_set, nanosleep, thread_index};

/// Polls in a row that find nothing before a block begins to sleep between them.
const EAGER_POLLS: u32 = 64;

/// How long a block sleeps between polls then.
const POLL_INTERVAL_NS: u32 = 100;

/// The copy-and-reduce of one element type and reduction, compiled into the interpreter that runs it; `MULTIMEM` is the
/// instruction by which a switch does it.
struct Compiled<E, R, const LOOPS: usize, const MULTIMEM: u32>(PhantomData<(E, R)>);

impl<E, R, const LOOPS: usize, const MULTIMEM: u32> Clone for Compiled<E, R, LOOPS, MULTIMEM> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<E, R, const LOOPS: usize, const MULTIMEM: u32> Copy for Compiled<E, R, LOOPS, MULTIMEM> {}

impl<E: Element, R: ReductionOf<E>, const LOOPS: usize, const MULTIMEM: u32> Kernel
    for Compiled<E, R, LOOPS, MULTIMEM>
{
    #[inline(always)]
    unsafe fn reduce_copy(self, operands: &StepOperands, bytes: usize) {
        #[cfg(target_feature = "sm_90")]
        if const { MULTIMEM != multimem::NONE } {
            const MULTICAST: u32 = step_flag::MULTICAST_SOURCE | step_flag::MULTICAST_DESTINATION;
            if operands.flags & MULTICAST != 0 {
                // SAFETY: passed on from the caller; the host lays out such steps as they must be.
                return unsafe { through_switch::<E, R, MULTIMEM>(operands, operands.flags, bytes) };
            }
        }
        // SAFETY: passed on from the caller.
        unsafe { by_shape::<E, R, LOOPS>(operands, bytes) }
    }
}

/// Copies of bytes: in words where they come in words, since what is not aligned for packs goes one by one.
#[derive(Clone, Copy)]
struct Copies<const LOOPS: usize, const MULTIMEM: u32>;

impl<const LOOPS: usize, const MULTIMEM: u32> Kernel for Copies<LOOPS, MULTIMEM> {
    #[inline(always)]
    unsafe fn reduce_copy(self, operands: &StepOperands, bytes: usize) {
        let mut all = operands.source(0).addr() | bytes;
        let mut destination = 0;
        while destination < operands.destination_count() {
            all |= operands.destination(destination).addr();
            destination += 1;
        }
        // SAFETY: passed on from the caller.
        unsafe {
            if all.is_multiple_of(4) {
                Compiled::<U32, reduction::Copy, LOOPS, MULTIMEM>(PhantomData).reduce_copy(operands, bytes);
            } else {
                by_shape::<U8, reduction::Copy, 0>(operands, bytes);
            }
        }
    }
}

/// The same for slots whose data is its own signal.
struct Flagged<E, R>(PhantomData<(E, R)>);

impl<E, R> Clone for Flagged<E, R> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<E, R> Copy for Flagged<E, R> {}

impl<E: Element, R: ReductionOf<E>> Kernel for Flagged<E, R> {
    const FLAGGED: bool = true;

    #[inline(always)]
    unsafe fn reduce_copy(self, _operands: &StepOperands, _bytes: usize) {}

    #[inline(always)]
    unsafe fn reduce_copy_flagged(self, operands: &StepOperands, call: &Call, bytes: usize) -> bool {
        // SAFETY: passed on from the caller.
        unsafe { flagged::reduce_copy::<E, R>(operands, call, bytes) }
    }
}

/// [`interpret`] with slots of the plain format.
///
/// # Safety
/// As [`interpret`].
#[inline(always)]
unsafe fn run<E: Element, R: ReductionOf<E>, const LOOPS: usize, const MULTIMEM: u32>(launch: *mut Launch) {
    // SAFETY: passed on from the caller.
    unsafe { interpret(Compiled::<E, R, LOOPS, MULTIMEM>(PhantomData), launch) }
}

/// [`interpret`] for collectives that do not reduce, with slots of the plain format.
///
/// # Safety
/// As [`interpret`].
#[inline(always)]
unsafe fn run_copies<const LOOPS: usize, const MULTIMEM: u32>(launch: *mut Launch) {
    // SAFETY: passed on from the caller.
    unsafe { interpret(Copies::<LOOPS, MULTIMEM>, launch) }
}

/// [`interpret`] with slots whose data is its own signal.
///
/// # Safety
/// As [`interpret`].
#[inline(always)]
unsafe fn run_flagged<E: Element, R: ReductionOf<E>>(launch: *mut Launch) {
    // SAFETY: passed on from the caller.
    unsafe { interpret(Flagged::<E, R>(PhantomData), launch) }
}

/// Interprets program `b` of the launch on block `b`, to its end.
///
/// # Safety
/// `launch` and all that it points at is valid until the kernel ends, as [`advance`] asks for. Nothing but
/// `launch.status` changes under it.
#[inline(always)]
unsafe fn interpret<K: Kernel>(kernel: K, launch: *mut Launch) {
    // SAFETY: passed on from the caller. The call and the programs are only read; the status, which other blocks may write,
    // is not borrowed.
    let (call, program) = unsafe {
        if block_index() >= (*launch).program_count as usize {
            return;
        }
        (&(*launch).call, &*(*launch).programs.add(block_index()))
    };
    let mut state = State::default();
    let mut idle_polls = 0;
    let status = loop {
        // SAFETY: passed on from the caller; this block alone runs the program.
        match unsafe { advance(kernel, program, &mut state, call) } {
            Progress::Fired => {
                idle_polls = 0;
                // A connection's end may be polled by another thread in the next step than the one that moved it in this.
                barrier();
            }
            Progress::Waiting { .. } => {
                if idle_polls < EAGER_POLLS {
                    idle_polls += 1;
                } else {
                    nanosleep(POLL_INTERVAL_NS);
                }
            }
            Progress::Done => return,
            Progress::Aborted => break launch_status::ABORTED,
            Progress::Mismatch { .. } => break launch_status::MISMATCH,
        }
    };
    if thread_index() == 0 {
        // SAFETY: the word is only accessed atomically while the kernel runs.
        unsafe { compare_and_set(&raw mut (*launch).status, launch_status::GOOD, status) };
    }
}

include!(env!("TUTTI_ENTRIES"));
