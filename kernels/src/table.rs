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
use crate::reduction::{self, Reduction, ReductionOf};
#[cfg(target_arch = "x86_64")]
use crate::vectors::Vectored;

/// Instruction sets that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What the target guarantees.
    Baseline,
    /// AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL, and what [`Isa::Avx2`] asks for.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// The instruction sets of the processor that this runs on, the plainest first, as a `Vec<Isa>`. A macro, because only the
/// standard library can ask.
#[macro_export]
macro_rules! isas {
    () => {{
        #[allow(unused_mut, reason = "only some targets have more than the baseline")]
        let mut isas = std::vec![$crate::table::Isa::Baseline];
        #[cfg(target_arch = "x86_64")]
        {
            // AVX2 comes without F16C on no processor that was ever sold, but it could.
            if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("f16c") {
                isas.push($crate::table::Isa::Avx2);
                if std::is_x86_feature_detected!("avx512f")
                    && std::is_x86_feature_detected!("avx512bw")
                    && std::is_x86_feature_detected!("avx512dq")
                    && std::is_x86_feature_detected!("avx512vl")
                {
                    isas.push($crate::table::Isa::Avx512);
                }
            }
        }
        isas
    }};
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
    #[cfg(not(target_arch = "x86_64"))]
    unsafe fn of<E: Element, R: ReductionOf<E>, const LOOPS: usize, const WIDE: bool>(isa: Isa) -> Row {
        let Isa::Baseline = isa;
        Row { function: baseline::<E, R, LOOPS>, scales: R::SCALES, finishes: R::FINISHES }
    }

    /// # Safety
    /// The processor has `isa`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn of<E: Vectored, R, const LOOPS: usize, const WIDE: bool>(isa: Isa) -> Row
    where
        R: ReductionOf<E> + ReductionOf<E::Avx2> + ReductionOf<E::Avx512>,
    {
        let function: unsafe fn(&StepOperands, usize) = match isa {
            Isa::Baseline => baseline::<E, R, LOOPS>,
            #[cfg(not(lean))]
            Isa::Avx2 => avx2::<E::Avx2, R, LOOPS>,
            #[cfg(not(lean))]
            Isa::Avx512 => {
                if const { WIDE } {
                    avx512::<E::Avx512, R, LOOPS>
                } else {
                    avx2::<E::Avx2, R, LOOPS>
                }
            }
            // Checks that need not be quick had better be compiled soon.
            #[cfg(lean)]
            _ => baseline::<E, R, LOOPS>,
        };
        Row { function, scales: <R as Reduction<E::Number>>::SCALES, finishes: <R as Reduction<E::Number>>::FINISHES }
    }
}

impl Kernel for Row {
    #[inline(always)]
    unsafe fn reduce_copy(self, operands: &StepOperands, bytes: usize) {
        #[cfg(loom)]
        crate::model::note_operands(operands, bytes);
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
unsafe fn baseline<E: Element, R: ReductionOf<E>, const LOOPS: usize>(operands: &StepOperands, bytes: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        // Every x86-64 of the last decade has more than the baseline: there, code size counts.
        if cfg!(all(target_arch = "x86_64", not(lean))) {
            by_shape::<E, R, 0>(operands, bytes)
        } else {
            by_shape::<E, R, LOOPS>(operands, bytes)
        }
    }
}

/// # Safety
/// As [`baseline`].
#[cfg(all(target_arch = "x86_64", not(lean)))]
#[target_feature(enable = "avx2,f16c")]
unsafe fn avx2<E: Element, R: ReductionOf<E>, const LOOPS: usize>(operands: &StepOperands, bytes: usize) {
    // SAFETY: passed on from the caller.
    unsafe { by_shape::<E, R, LOOPS>(operands, bytes) }
}

/// # Safety
/// As [`baseline`].
#[cfg(all(target_arch = "x86_64", not(lean)))]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn avx512<E: Element, R: ReductionOf<E>, const LOOPS: usize>(operands: &StepOperands, bytes: usize) {
    // SAFETY: passed on from the caller.
    unsafe { by_shape::<E, R, LOOPS>(operands, bytes) }
}

include!(concat!(env!("OUT_DIR"), "/table.rs"));
