//! Steps through a switch: a source that is the reduction of every rank's window, made on the way, or a destination that is
//! every rank's window at once.
//!
//! Such a step has one source and one destination, and moves whole packs ([`MULTICAST_ALIGNMENT_BYTES`]); whoever lays out the
//! plan handles what is left of a buffer in steps of their own. The order in which the switch reduces is its own: of floats the
//! bits may differ from those of any other way, and from one time to the next.

use crate::element::{Element, Number};
use crate::layout::{MULTICAST_ALIGNMENT_BYTES, step_flag};
use crate::reduce_copy::{Access, Operands, Range, walk};
use crate::reduction::ReductionOf;
use crate::target::multimem::{STORE, load_reduced, store_to_all};
use crate::target::{PACK_BYTES, UNROLL, fence_aliases, load_pack, store_pack};

/// Does a step of which the source, the destination or both are multicast addresses, as its flags say.
///
/// # Safety
/// As [`crate::interpreter::Kernel::reduce_copy`]; addresses and `bytes` are multiples of [`MULTICAST_ALIGNMENT_BYTES`], and
/// `INSTRUCTION` is one of this element type and reduction.
#[inline(always)]
pub(crate) unsafe fn through_switch<E: Element, R: ReductionOf<E>, const INSTRUCTION: u32>(
    operands: &impl Operands,
    flags: u32,
    bytes: usize,
) {
    const { assert!(MULTICAST_ALIGNMENT_BYTES.is_multiple_of(PACK_BYTES)) };
    let (source, destination) = (operands.source(0), operands.destination(0));
    let range = Range { head_bytes: 0, packs_bytes: bytes, bytes, backwards: false, streams: false };
    // The same memory has another address in each rank that wrote it, or will read it.
    fence_aliases();
    // SAFETY: passed on from the caller.
    unsafe {
        if const { INSTRUCTION == STORE } || flags & step_flag::MULTICAST_SOURCE == 0 {
            walk::<E, R, _, UNROLL>(Switched::<INSTRUCTION, false, true> { source, destination }, &range);
        } else if flags & step_flag::MULTICAST_DESTINATION == 0 {
            walk::<E, R, _, UNROLL>(Switched::<INSTRUCTION, true, false> { source, destination }, &range);
        } else {
            walk::<E, R, _, UNROLL>(Switched::<INSTRUCTION, true, true> { source, destination }, &range);
        }
    }
    fence_aliases();
}

/// One source and one destination, either of which may be a multicast address.
struct Switched<const INSTRUCTION: u32, const REDUCES: bool, const STORES_TO_ALL: bool> {
    source: *const u8,
    destination: *mut u8,
}

impl<N: Number, const INSTRUCTION: u32, const REDUCES: bool, const STORES_TO_ALL: bool> Access<N>
    for Switched<INSTRUCTION, REDUCES, STORES_TO_ALL>
{
    const SOURCES: Option<usize> = Some(1);

    #[inline(always)]
    fn each_source(&self, mut f: impl FnMut(usize, *const u8, N::Factor)) {
        f(0, self.source, N::ONE);
    }

    #[inline(always)]
    fn each_destination(&self, mut f: impl FnMut(*mut u8)) {
        f(self.destination);
    }

    #[inline(always)]
    fn finish(&self) -> N::Factor {
        N::ONE
    }

    #[inline(always)]
    fn is_plain_copy(&self) -> bool {
        true
    }

    #[inline(always)]
    fn advance(&mut self, bytes: usize) {
        self.source = self.source.wrapping_add(bytes);
        self.destination = self.destination.wrapping_add(bytes);
    }

    #[inline(always)]
    unsafe fn load<P: Copy, const OFFSET: usize>(address: *const u8) -> P {
        // SAFETY: passed on from the caller.
        unsafe {
            if REDUCES { load_reduced::<P, INSTRUCTION, OFFSET>(address) } else { load_pack::<P, OFFSET>(address) }
        }
    }

    #[inline(always)]
    unsafe fn store<P: Copy, const OFFSET: usize>(address: *mut u8, pack: P) {
        // SAFETY: passed on from the caller.
        unsafe {
            if STORES_TO_ALL {
                store_to_all::<P, OFFSET>(address, pack)
            } else {
                store_pack::<P, OFFSET>(address, pack)
            }
        }
    }
}
