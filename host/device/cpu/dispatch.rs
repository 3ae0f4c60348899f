//! From an element type and a reduction to the kernel that was compiled for them.

use tutti_kernels::table::{self, Row};

use super::isa::isa;
use crate::dtype::{DType, Reduction};

/// The kernel for `dtype` and `reduction`, with the best instructions that this processor has; none if the table has none.
pub(crate) fn kernel_for(dtype: DType, reduction: Reduction) -> Option<Row> {
    // SAFETY: the processor was asked for its instruction sets.
    unsafe { table::row(dtype as usize, reduction as usize, isa()) }
}
