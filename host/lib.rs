//! tutti: many ranks end up with the same numbers.
//!
//! A collective is a plan; a plan is data; every step of a plan is one fused copy-and-reduce. The same plan is verified and
//! run, by one interpreter, on CPUs and GPUs.
//!
//! ```
//! # fn main() -> tutti::Result<()> {
//! std::thread::scope(|scope| {
//!     for rank in tutti::local(4)? {
//!         scope.spawn(move || -> tutti::Result<()> {
//!             let mut numbers = vec![1.0_f32, 2.0, 3.0];
//!             rank.all_reduce_in_place(&mut numbers, tutti::Reduction::Sum)?;
//!             assert_eq!(numbers, [4.0, 8.0, 12.0]);
//!             Ok(())
//!         });
//!     }
//!     Ok(())
//! })
//! # }
//! ```
//!
//! Start with [`local`] and [`Communicator`]. `ARCHITECTURE.md` is the map of the rooms.

#![deny(unsafe_op_in_unsafe_fn)]

pub mod cuda;
pub mod plan;
pub mod ptx;
pub mod topology;

mod board;
mod buffer;
mod calls;
mod communicator;
mod core;
mod device;
mod dtype;
mod error;
mod fingerprint;
mod group;
#[cfg(all(test, loom))]
mod model;
mod options;
mod pending;
mod plan_cache;
mod presence;
mod request;
mod run;
mod sync;
mod transport;

pub use buffer::{Buffer, BufferMut, Memory};
pub use calls::{CallBuilder, GroupCall};
pub use communicator::{AbortHandle, Communicator, local, local_with};
pub use core::{MemoryReport, TimedStep};
pub use dtype::{DType, Element, Reduction, Scale};
pub use error::{Error, ErrorKind, LateRank, RankCall, Result};
pub use group::Group;
pub use options::Options;
pub use pending::{Failed, Pending};
pub use plan::{Algorithm, Collective, Rank};

/// The 8-bit floats that tutti reduces.
pub use float8;
/// The 16-bit floats that tutti reduces.
pub use half;

/// The README's code compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
