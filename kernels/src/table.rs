//! The kernel table, compiled for the host: from an element type and a reduction that are known at run time to their
//! copy-and-reduce.
//!
//! The interpreter is compiled once and calls what it finds here, once for each step that moves data. Which rows there are,
//! and which of them are the same machine code, the kernel table says (the build script writes `table.rs` from it). Plain
//! copies are the same for all of them and made here.
//!
//! Each row is compiled for each instruction set, and in it one loop for each number of sources, as far as the table says that
//! the speed of the row is worth its size.

use core::ptr;

use crate::element::{self, Element};
use crate::interpreter::{Kernel, StepOperands};
use crate::reduce_copy::{Operands, by_shape};
use crate::reduction::{self, Reduction};

/// Instruction sets that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What the target guarantees.
    Baseline,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// One row of the table, for one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// As [`Kernel::reduce_copy`]; not for plain copies.
    function: unsafe fn(&StepOperands, usize),
    /// [`Reduction::SCALES`].
    scales: bool,
    /// [`Reduction::FINISHES`].
    finishes: bool,
}

impl Row {
    /// # Safety
    /// The processor has `isa`.
    unsafe fn of<E: Element, R: Reduction<E::Number>, const LOOPS: usize>(isa: Isa) -> Row {
        let function: unsafe fn(&StepOperands, usize) = match isa {
            Isa::Baseline => baseline::<E, R, LOOPS>,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::<E, R, LOOPS>,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::<E, R, LOOPS>,
        };
        Row { function, scales: R::SCALES, finishes: R::FINISHES }
    }
}

impl Kernel for Row {
    #[inline(always)]
    unsafe fn reduce_copy(self, operands: &StepOperands, bytes: usize) {
        // A copied NaN keeps its bits, so no arithmetic may touch what travels unchanged.
        let changed = (self.scales && operands.scale(0).is_some()) || (self.finishes && operands.finish().is_some());
        // SAFETY: passed on from the caller.
        unsafe {
            if operands.source_count > 1 || changed {
                (self.function)(operands, bytes);
            } else if operands.destination_count == 1 {
                copy(operands.source(0), operands.destination(0), bytes);
            } else {
                copy_to_all(operands, bytes);
            }
        }
    }
}

/// Copies bytes; the two ranges are the same or do not overlap.
///
/// # Safety
/// `source` is valid for reading and `destination` for writing `bytes` bytes.
#[inline(always)]
unsafe fn copy(source: *const u8, destination: *mut u8, bytes: usize) {
    if !ptr::eq(source, destination) {
        // SAFETY: passed on from the caller; ranges that are not the same do not overlap.
        unsafe { ptr::copy_nonoverlapping(source, destination, bytes) };
    }
}

/// Copies bytes to several destinations, in pieces that stay in the nearest cache meanwhile.
///
/// # Safety
/// As [`Kernel::reduce_copy`], with one source.
unsafe fn copy_to_all(operands: &StepOperands, bytes: usize) {
    const PIECE_BYTES: usize = 4096;
    let mut start = 0;
    while start < bytes {
        let piece_bytes = if bytes - start < PIECE_BYTES { bytes - start } else { PIECE_BYTES };
        for index in 0..operands.destination_count() {
            // SAFETY: the piece lies inside the source and the destination.
            unsafe { copy(operands.source(0).add(start), operands.destination(index).add(start), piece_bytes) };
        }
        start += piece_bytes;
    }
}

/// # Safety
/// As [`Kernel::reduce_copy`]; no plain copy.
unsafe fn baseline<E: Element, R: Reduction<E::Number>, const LOOPS: usize>(operands: &StepOperands, bytes: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        // Every x86-64 of the last decade has more than the baseline: there, code size counts.
        if cfg!(target_arch = "x86_64") {
            by_shape::<E, R, 0>(operands, bytes)
        } else {
            by_shape::<E, R, LOOPS>(operands, bytes)
        }
    }
}

/// # Safety
/// As [`baseline`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2<E: Element, R: Reduction<E::Number>, const LOOPS: usize>(operands: &StepOperands, bytes: usize) {
    // SAFETY: passed on from the caller.
    unsafe { by_shape::<E, R, LOOPS>(operands, bytes) }
}

/// # Safety
/// As [`baseline`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn avx512<E: Element, R: Reduction<E::Number>, const LOOPS: usize>(operands: &StepOperands, bytes: usize) {
    // SAFETY: passed on from the caller.
    unsafe { by_shape::<E, R, LOOPS>(operands, bytes) }
}

include!(concat!(env!("OUT_DIR"), "/table.rs"));
