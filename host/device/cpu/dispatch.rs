//! From an element type and a reduction to the interpreter that was compiled for them.

use tutti_kernels::interpreter::{Progress, State, advance};
use tutti_kernels::layout::{Call, Program};
use tutti_kernels::reduce_copy::Isa;
use tutti_kernels::{element, reduction};

use crate::dtype::{DType, Reduction};

include!(concat!(env!("OUT_DIR"), "/dispatch.rs"));

/// The interpreter for one element type and one reduction.
///
/// # Safety
/// As [`advance`].
pub(crate) type Advance = unsafe fn(Isa, &Program, &mut State, &Call) -> Progress;

/// The interpreter for `dtype` and `reduction`.
pub(crate) fn advance_for(dtype: DType, reduction: Reduction) -> Advance {
    dispatch!(dtype, reduction, advance)
}
