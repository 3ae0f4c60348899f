//! Devices: where the interpreter runs, and on whose memory.
//!
//! **Invariant.** A device runs bound plans and says how far they came; it decides nothing about which plan, and knows
//! nothing of how ranks found each other.

pub(crate) mod cpu;
pub(crate) mod cuda;
pub(crate) mod program;
