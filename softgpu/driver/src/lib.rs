//! A CUDA driver library in software, for tests.

#![deny(unsafe_code)]

mod capture;
mod code;
mod device;
mod driver;
#[allow(unsafe_code)]
pub mod ffi;
mod graph;
mod launch;
mod memory;
mod module;
mod stream;
mod topology;
mod virtual_memory;

pub use code::Code;
pub use ffi::*;
