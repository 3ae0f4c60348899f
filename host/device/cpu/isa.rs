//! Which instruction set the kernels may use on this machine.

use std::sync::OnceLock;

use tutti_kernels::table::Isa;

/// The best that this processor has, asked for once.
pub(super) fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| tutti_kernels::isas!().pop().unwrap_or(Isa::Baseline))
}
