//! What is connected to what, and how fast: the ground that plans are priced and simulated on.
//!
//! A [`Cluster`] is hosts full of nodes (GPUs, processors, PCIe switches, NVSwitches, network adapters) and one network that joins
//! the hosts, with links between them. A link carries bytes both ways at once, each way at its own bandwidth. How long bytes take is
//! the link's business (its bandwidth and the latency of its wire); what a step costs beside that, on the machine that makes it, is
//! [`Software`]'s, since the same wire costs different software differently.
//!
//! **Invariant.** This room is pure: it reads no files, asks no machine, and contains no `unsafe`. It knows nothing of plans.

#![forbid(unsafe_code)]

mod cluster;
pub mod formats;
mod link;
mod path;
mod presets;
mod rings;
mod software;

#[cfg(test)]
mod tests;

pub use cluster::{Cluster, Fault, Hop, Host, Link, LinkId, Node, NodeId, NodeKind};
pub use link::{CpuModel, LINK_CLASSES, LinkClass, LinkRow};
pub use path::{Path, PathClass};
pub use presets::{Network, PRESETS, Preset, PresetError, preset};
pub use rings::{Cycle, Mesh};
pub use software::{SlotLatency, Software};
