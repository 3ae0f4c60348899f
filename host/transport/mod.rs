//! How bytes reach a peer.
//!
//! A connection is memory, nothing more: slots, a `full` counter and an `empty` counter. A [`Transport`] decides where that
//! memory lives and hands each side its end, as addresses; what flows through it is the interpreter's business. Whoever
//! calls a transport learns what it guarantees, and never which one it is.
//!
//! **Invariant.** What two ranks share are addresses that a transport hands over, never a Rust object; a transport knows
//! nothing of plans, collectives or element types.

pub(crate) mod in_process;

use tutti_kernels::layout::{ReceiveEnd, SendEnd};

use crate::plan::select::Capabilities;

/// Which connection: the `index`-th from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionKey {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) index: u32,
}

/// What a transport promises of the memory that it hands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guarantees {
    /// Whether peers can read and write a rank's own buffers in place.
    pub(crate) windows: bool,
}

impl Guarantees {
    /// What an algorithm may use of it, whatever the buffers of a call.
    pub(crate) fn capabilities(self) -> Capabilities {
        Capabilities { windows: self.windows, switch: false }
    }
}

/// How much memory there is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory {
    pub(crate) needed_bytes: u64,
}

/// A way for bytes to reach a peer.
pub(crate) trait Transport: Send + Sync {
    /// What it promises.
    fn guarantees(&self) -> Guarantees;

    /// Bytes of memory that one connection takes.
    fn connection_bytes(&self) -> u64;

    /// The producer's end of a connection. The memory behind it lives as long as the transport.
    fn connect_send(&self, key: ConnectionKey) -> Result<SendEnd, NoMemory>;

    /// The consumer's end of a connection. The memory behind it lives as long as the transport.
    fn connect_receive(&self, key: ConnectionKey) -> Result<ReceiveEnd, NoMemory>;
}
