//! The kernels that a GPU launches: thin shells over the interpreter.
//!
//! The entry points themselves are generated from the kernel table, one for each element type and reduction; here is what
//! they call. A block has a multiple of 32 threads, at most 256, in one dimension (the kernel table says so too).
//!
//! **Invariant.** Nothing here panics, calls or spills: the checks on the PTX see to it.

use core::marker::PhantomData;

use crate::element::Element;
use crate::interpreter::{Kernel, Progress, State, StepOperands, advance};
use crate::layout::{Launch, launch_status};
use crate::reduce_copy::by_shape;
use crate::reduction::Reduction;
use crate::target::{barrier, block_index, compare_and_set, nanosleep, thread_index};

/// Polls in a row that find nothing before a block begins to sleep between them.
const EAGER_POLLS: u32 = 64;

/// How long a block sleeps between polls then.
const POLL_INTERVAL_NS: u32 = 100;

/// The copy-and-reduce of one element type and reduction, compiled into the interpreter that runs it.
struct Compiled<E, R, const LOOPS: usize>(PhantomData<(E, R)>);

impl<E, R, const LOOPS: usize> Clone for Compiled<E, R, LOOPS> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<E, R, const LOOPS: usize> Copy for Compiled<E, R, LOOPS> {}

impl<E: Element, R: Reduction<E::Number>, const LOOPS: usize> Kernel for Compiled<E, R, LOOPS> {
    #[inline(always)]
    unsafe fn reduce_copy(self, operands: &StepOperands, bytes: usize) {
        // SAFETY: passed on from the caller.
        unsafe { by_shape::<E, R, LOOPS>(operands, bytes) }
    }
}

/// Interprets program `b` of the launch on block `b`, to its end.
///
/// # Safety
/// `launch` and all that it points at is valid until the kernel ends, as [`advance`] asks for. Nothing but
/// `launch.status` changes under it.
#[inline(always)]
unsafe fn run<E: Element, R: Reduction<E::Number>, const LOOPS: usize>(launch: *mut Launch) {
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
        match unsafe { advance(Compiled::<E, R, LOOPS>(PhantomData), program, &mut state, call) } {
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
