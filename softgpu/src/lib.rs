//! Executes PTX on the machine's cores, for tests: the very kernels that ship, on computers without a GPU.
//!
//! A [`Module`] is PTX text, parsed and decoded once. A [`Machine`] has memory, devices (numbers that allocations and
//! launches carry) and workers; [`Machine::load`] gives a module's variables addresses, [`Machine::launch`] runs a grid.
//! Launches run concurrently, blocks take turns, every lane of a warp makes progress of its own, and
//! memory lies at real addresses of this process, so that kernels and host threads can talk through flags.
//!
//! It checks what hardware would not, and names kernel, line of the text, block, thread and address of a [`Fault`]:
//!
//! - accesses outside an allocation, to freed memory, or to another device's memory without leave;
//! - misaligned accesses;
//! - reads of bytes that nobody wrote;
//! - data races: two accesses to a byte, one of them a write, that no barrier and no release and acquire order, scopes
//!   respected (`.cta` does not order another block, `.gpu` not another device), as PTX's memory model has it; nor does anything
//!   order an access by way of a multicast address with one at the bytes' own address, but a `fence.proxy.alias` between them;
//! - threads that do not come to a barrier to which others of their block come, or to a `.sync` instruction of their warp;
//! - traps. What is not supported is an error when the text is parsed: `unsupported instruction NAME at line N`.
//!
//! ```
//! use std::sync::Arc;
//! use softgpu::{Arguments, LaunchError, LaunchOptions, Machine, MemoryKind, Module};
//!
//! let text = "
//!     .version 7.0
//!     .target sm_70
//!     .address_size 64
//!     .visible .entry double_all(.param .u64 data) {
//!         .reg .b32 %r<3>;
//!         .reg .b64 %rd<4>;
//!         ld.param.u64 %rd1, [data];
//!         mov.u32 %r1, %tid.x;
//!         mul.wide.u32 %rd2, %r1, 4;
//!         add.s64 %rd3, %rd1, %rd2;
//!         ld.global.u32 %r2, [%rd3];
//!         shl.b32 %r2, %r2, 1;
//!         st.global.u32 [%rd3], %r2;
//!         ret;
//!     }";
//! let machine = Machine::new();
//! let module = machine.load(&Arc::new(Module::parse(text)?), 0)?;
//! let data = machine.allocate(128, MemoryKind::Device, 0)?;
//! machine.write(data, &[1; 128])?;
//! let options = LaunchOptions {
//!     block: 32.into(),
//!     arguments: Arguments::new().u64(data).into_bytes(),
//!     ..LaunchOptions::default()
//! };
//! let statistics = machine.run(&module, "double_all", options.clone())?;
//! assert_eq!(statistics.thread_instructions, 32 * 8);
//! let mut result = [0; 128];
//! machine.read(data, &mut result)?;
//! assert_eq!(result, [2; 128]);
//!
//! // One thread too many.
//! let error = machine.run(&module, "double_all", LaunchOptions { block: 33.into(), ..options }).unwrap_err();
//! assert!(error.to_string().contains("kernel double_all, line 12, block (0, 0, 0), thread (32, 0, 0)"), "{error}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What differs from a device
//!
//! A cluster is one block. Approximate instructions (`ex2.approx`, `rsqrt.approx`, …) give the correctly rounded result
//! or one within a unit of it. `fence.sc` orders as `fence.acq_rel` does, for the race detector. Vector accesses of 16 and
//! 32 bytes that are relaxed, volatile, acquire or release take place one 128-byte line at a time; other vector accesses in
//! pieces of 8 bytes. Directed rounding of f64, textures, matrices and asynchronous copies are not supported.
//!
//! **Invariant.** Only the memory's module has unsafe code; no text makes the parser panic.

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
pub use launch::{
    Arguments, LaunchError, LaunchOptions, Link, LoadedModule, Machine, Moment, Reservation, Running, Statistics,
    Stopper,
};
pub use memory::{MemoryError, MemoryKind};
pub use module::{Module, Needs, Parameter};
pub use parse::ParseError;
pub use types::WARP_THREADS;
