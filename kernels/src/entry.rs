//! The kernels that a GPU launches: thin shells over the interpreter and the copy-and-reduce.
//!
//! The entry points themselves are generated from the kernel table, one for each element type and reduction; here is what
//! they call. A block has a multiple of 32 threads, at most 256, in one dimension (the kernel table says so too).
//!
//! **Invariant.** Nothing here panics, calls or spills: the checks on the PTX see to it.

use core::marker::PhantomData;

use crate::element::Element;
use crate::interpreter::{Kernel, Progress, State, StepOperands, advance};
use crate::layout::{Launch, launch_status, reduce_copy_flag};
use crate::reduce_copy::{Operands, by_shape};
use crate::reduction::Reduction;
use crate::target::{barrier, block_index, compare_and_set, grid_block_count, nanosleep, thread_index};

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

/// The operands of one block of a stand-alone copy-and-reduce.
struct Section {
    sources: *const *const u8,
    source_count: u32,
    destinations: *const *mut u8,
    destination_count: u32,
    start: usize,
    scale: Option<u64>,
    finish: Option<u64>,
}

// SAFETY: what the arrays hold does not change during the kernel, and `reduce_copy_grid`'s caller vouches for the ranges.
unsafe impl Operands for Section {
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
        // SAFETY: the array has that many entries, and the section lies inside the operand.
        unsafe { (*self.sources.add(index)).add(self.start) }
    }

    #[inline(always)]
    fn destination(&self, index: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { (*self.destinations.add(index)).add(self.start) }
    }

    #[inline(always)]
    fn scale(&self, _index: usize) -> Option<u64> {
        self.scale
    }

    #[inline(always)]
    fn finish(&self) -> Option<u64> {
        self.finish
    }
}

/// One copy-and-reduce over the whole grid: each block handles one section of the range.
///
/// # Safety
/// `sources` and `destinations` hold that many addresses (at least one), each valid for `bytes` bytes; a destination equals
/// a source or overlaps nothing. `bytes` and every address are multiples of the element's size.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "they are the kernel's parameters")]
unsafe fn reduce_copy_grid<E: Element, R: Reduction<E::Number>, const LOOPS: usize>(
    sources: *const *const u8,
    source_count: u32,
    destinations: *const *mut u8,
    destination_count: u32,
    bytes: u64,
    scale: u64,
    finish: u64,
    flags: u32,
) {
    /// What a section is a multiple of, so that all of them are aligned as the first one is.
    const SECTION_BYTES: usize = 4096;
    let bytes = bytes as usize;
    let section = bytes.div_ceil(grid_block_count()).next_multiple_of(SECTION_BYTES);
    let start = block_index() * section;
    if start >= bytes {
        return;
    }
    let length = if section < bytes - start { section } else { bytes - start };
    let operands = Section {
        sources,
        source_count,
        destinations,
        destination_count,
        start,
        scale: (flags & reduce_copy_flag::SCALE != 0).then_some(scale),
        finish: (flags & reduce_copy_flag::FINISH != 0).then_some(finish),
    };
    // SAFETY: passed on from the caller; sections do not overlap.
    unsafe { by_shape::<E, R, LOOPS>(&operands, length) }
}

include!(env!("TUTTI_ENTRIES"));
