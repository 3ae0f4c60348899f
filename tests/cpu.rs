//! The conformance suite on CPU ranks: threads of this process, or one thread that drives them all.

#[macro_use]
mod conformance;

conformance!(tutti::local_with);
