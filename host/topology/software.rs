//! What a step costs on the machine that makes it, beside what the wire costs.
//!
//! The figures are those that NCCL's model adds for each step (`tuning.cc`, version 2.30: "hardware" latencies of rings, which hold
//! the synchronisation too, and base latencies of a call), less the wire latency that this crate's links have themselves. They are
//! parameters, to be replaced by what a machine was measured to take.

use super::path::PathClass;

/// Microseconds from the moment at which a message's bytes have left until the other side goes on, beside those of the wire, by what it
/// goes over: the fence, the flag, and whoever polls it. Meanwhile the sender works on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotLatency {
    /// Inside a host, over NVLink.
    pub nvlink_us: f64,
    /// Inside a host, over PCI Express or through processors.
    pub pcie_us: f64,
    /// Between hosts.
    pub network_us: f64,
}

/// Costs that are no link's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Software {
    /// What each message takes.
    pub message: SlotLatency,
    /// Microseconds of each step in which its program does nothing else, before bytes move. Assumed.
    pub step_us: f64,
    /// What a call takes before its first step: launching, and coming back.
    pub launch_us: f64,
    /// What a call whose steps a switch does takes beside that.
    pub switch_us: f64,
    /// What each further rank of a host adds to that where one process launches them one after the other.
    pub launch_each_rank_us: f64,
    /// The share of the wire's bytes that are data: 1 for plain slots, 15/16 for LL128, 1/2 for LL.
    pub payload: f64,
}

impl Software {
    /// Plain slots ("Simple"): data, a fence, then a flag.
    pub const SIMPLE: Software = Software {
        message: SlotLatency { nvlink_us: 2.7, pcie_us: 4.7, network_us: 13.3 },
        step_us: 0.5,
        launch_us: 8.4,
        switch_us: 25.0,
        launch_each_rank_us: 0.0,
        payload: 1.0,
    };

    /// A flag in every line of 128 bytes.
    pub const LL128: Software = Software {
        message: SlotLatency { nvlink_us: 1.2, pcie_us: 1.5, network_us: 3.3 },
        step_us: 0.3,
        launch_us: 14.0,
        switch_us: 25.0,
        launch_each_rank_us: 0.0,
        payload: 120.0 / 128.0,
    };

    /// A flag beside every four bytes.
    pub const LL: Software = Software {
        message: SlotLatency { nvlink_us: 0.3, pcie_us: 0.4, network_us: 2.0 },
        step_us: 0.2,
        launch_us: 6.6,
        switch_us: 25.0,
        launch_each_rank_us: 0.0,
        payload: 0.5,
    };

    /// What a message over such a path takes beside the wire.
    pub fn message_us(&self, class: PathClass) -> f64 {
        match class {
            PathClass::Local => 0.0,
            PathClass::NvLink | PathClass::NvLinkThroughGpu => self.message.nvlink_us,
            PathClass::Network => self.message.network_us,
            _ => self.message.pcie_us,
        }
    }
}
