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
use crate::launch::{Block, IssueWords, begin};
#[cfg(target_feature = "sm_90")]
use crate::layout::step_flag;
use crate::layout::{Call, launch_status};
#[cfg(target_feature = "sm_90")]
use crate::multicast::through_switch;
use crate::reduce_copy::{Operands, by_shape};
use crate::reduction::{self, ReductionOf};
#[cfg(target_feature = "sm_90")]
use crate::target::multimem;
use crate::target::{barrier, nanosleep};

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
unsafe fn run<E: Element, R: ReductionOf<E>, const LOOPS: usize, const MULTIMEM: u32>(issue: IssueWords) {
    // SAFETY: passed on from the caller.
    unsafe { interpret(Compiled::<E, R, LOOPS, MULTIMEM>(PhantomData), issue) }
}

/// [`interpret`] for collectives that do not reduce, with slots of the plain format.
///
/// # Safety
/// As [`interpret`].
#[inline(always)]
unsafe fn run_copies<const LOOPS: usize, const MULTIMEM: u32>(issue: IssueWords) {
    // SAFETY: passed on from the caller.
    unsafe { interpret(Copies::<LOOPS, MULTIMEM>, issue) }
}

/// [`interpret`] with slots whose data is its own signal.
///
/// # Safety
/// As [`interpret`].
#[inline(always)]
unsafe fn run_flagged<E: Element, R: ReductionOf<E>>(issue: IssueWords) {
    // SAFETY: passed on from the caller.
    unsafe { interpret(Flagged::<E, R>(PhantomData), issue) }
}

/// Interprets program `b` of the launch on block `b`, to its end.
///
/// # Safety
/// The issue's launch and all that it points at is valid until the kernel ends, as [`advance`] asks for. Nothing but what the
/// rank's kernels keep changes under it.
#[inline(always)]
unsafe fn interpret<K: Kernel>(kernel: K, issue: IssueWords) {
    // SAFETY: passed on from the caller.
    let Some(block) = (unsafe { begin(issue) }) else { return };
    // SAFETY: passed on from the caller.
    match unsafe { run_program(kernel, block) } {
        launch_status::GOOD => block.end(),
        status => block.fail(status),
    }
}

/// Interprets the block's program; one of [`launch_status`].
///
/// # Safety
/// As [`interpret`].
#[inline(always)]
unsafe fn run_program<K: Kernel>(kernel: K, block: Block) -> u32 {
    let mut state = State::default();
    let mut idle_polls = 0;
    loop {
        // SAFETY: passed on from the caller; this block alone runs the program.
        match unsafe { advance(kernel, &block.0.program, &mut state, &block.0.call) } {
            Progress::Fired => {
                idle_polls = 0;
                // A connection's end may be polled by another thread in the next step than the one that moved it in this.
                barrier();
            }
            Progress::Waiting { .. } => {
                if idle_polls < EAGER_POLLS {
                    idle_polls += 1;
                    continue;
                }
                if idle_polls == EAGER_POLLS {
                    idle_polls += 1;
                    block.report_waiting(&state);
                }
                if block.is_aborted() {
                    return launch_status::ABORTED;
                }
                nanosleep(POLL_INTERVAL_NS);
            }
            Progress::Done => return launch_status::GOOD,
            Progress::Aborted => return launch_status::ABORTED,
            Progress::Mismatch { .. } => return launch_status::MISMATCH,
        }
    }
}

include!(env!("TUTTI_ENTRIES"));
