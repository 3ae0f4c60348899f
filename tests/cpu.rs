//! The conformance suite on CPU ranks: threads of this process, or one thread that drives them all.

#[macro_use]
mod conformance;

/// There is always a CPU.
fn is_ready() -> bool {
    true
}

/// Whether the first call of its kind loads code, for which a device may have to be idle.
const LOADS_CODE: bool = false;

/// As cargo knows these tests.
const SUITE: &str = "cpu";

/// Whether all cases are run.
const IS_QUICK: bool = true;

conformance!(tutti::local_with);
