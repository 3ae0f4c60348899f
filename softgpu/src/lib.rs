//! softgpu
#![deny(unsafe_code)]

mod arithmetic;
mod execute;
mod fault;
mod launch;
mod memory;
mod module;
mod parse;
mod race;
mod types;

pub use fault::{Fault, FaultKind, Index3, Place};
pub use launch::{Arguments, LaunchError, LaunchOptions, LoadedModule, Machine, Moment, Running, Statistics};
pub use memory::{MemoryError, MemoryKind};
pub use module::{Module, Parameter};
pub use parse::ParseError;
pub use types::WARP_THREADS;
