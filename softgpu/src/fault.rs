//! What a kernel did wrong, and where: kernel, line of the PTX, block, thread, address.

use std::fmt;
use std::sync::Arc;

/// A coordinate of a block or a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Index3 {
    /// First dimension.
    pub x: u32,
    /// Second dimension.
    pub y: u32,
    /// Third dimension.
    pub z: u32,
}

impl Index3 {
    /// Where the `linear`-th of a box of this size is.
    pub(crate) fn coordinate(self, linear: u64) -> Index3 {
        let (x, y) = (u64::from(self.x.max(1)), u64::from(self.y.max(1)));
        Index3 { x: (linear % x) as u32, y: (linear / x % y) as u32, z: (linear / x / y) as u32 }
    }

    /// How many there are in a box of this size.
    pub(crate) fn volume(self) -> u64 {
        u64::from(self.x) * u64::from(self.y) * u64::from(self.z)
    }
}

impl From<u32> for Index3 {
    fn from(x: u32) -> Index3 {
        Index3 { x, y: 1, z: 1 }
    }
}

impl From<[u32; 3]> for Index3 {
    fn from([x, y, z]: [u32; 3]) -> Index3 {
        Index3 { x, y, z }
    }
}

impl fmt::Display for Index3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {}, {})", self.x, self.y, self.z)
    }
}

/// Which rule was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access to bytes that belong to no allocation, or to none any more, or to another device's without leave.
    OutOfBounds,
    /// An address that is not a multiple of the access's size.
    Misaligned,
    /// A read of bytes that nobody wrote.
    Uninitialised,
    /// Two accesses, one of them a write, that nothing orders.
    Race,
    /// Threads of one block that do not come to the same barrier.
    DivergentBarrier,
    /// Threads of one warp that do not come to the same `.sync` instruction, or name the wrong members.
    DivergentWarp,
    /// A `trap`.
    Trap,
    /// Something that the instruction's definition leaves undefined, or a call of a function that the module lacks.
    Undefined,
}

impl FaultKind {
    /// Whether the launch ends there.
    pub(crate) fn is_fatal(self) -> bool {
        !matches!(self, FaultKind::Race | FaultKind::Uninitialised)
    }

    fn name(self) -> &'static str {
        match self {
            FaultKind::OutOfBounds => "out of bounds",
            FaultKind::Misaligned => "misaligned",
            FaultKind::Uninitialised => "uninitialised",
            FaultKind::Race => "data race",
            FaultKind::DivergentBarrier => "divergent barrier",
            FaultKind::DivergentWarp => "divergent warp",
            FaultKind::Trap => "trap",
            FaultKind::Undefined => "undefined",
        }
    }
}

/// A place in a running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kernel; `None` for an access by the host.
    pub kernel: Option<Arc<str>>,
    /// The line of the module's text, counted from 1.
    pub line: u32,
    /// The device that ran it.
    pub device: u32,
    /// The block's index in the grid.
    pub block: Index3,
    /// The thread's index in the block.
    pub thread: Index3,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kernel {
            Some(kernel) => {
                write!(f, "kernel {kernel}, line {}, block {}, thread {}", self.line, self.block, self.thread)?;
                if self.device != 0 { write!(f, " on device {}", self.device) } else { Ok(()) }
            }
            None => write!(f, "the host"),
        }
    }
}

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which rule.
    pub kind: FaultKind,
    /// Who broke it.
    pub place: Place,
    /// The address, where one is concerned, as the instruction's state space counts it.
    pub address: Option<u64>,
    /// What was attempted, in words.
    pub detail: String,
    /// The other access of a race.
    pub other: Option<Place>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.kind.name(), self.place, self.detail)?;
        if let Some(address) = self.address {
            write!(f, " at {address:#x}")?;
        }
        match &self.other {
            Some(other) => write!(f, ", which nothing orders with that of {other}"),
            None => Ok(()),
        }
    }
}
