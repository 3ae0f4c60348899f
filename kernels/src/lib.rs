//! tutti's data plane: the fused copy-and-reduce and the step interpreter.
//!
//! One source for both targets: compiled for `nvptx64-nvidia-cuda` it becomes the PTX that runs on GPUs, compiled for the
//! host it is what CPU ranks run. What differs by target (loads and stores, thread index, barriers, acquire and release)
//! sits in [`target`].
//!
//! **Invariant.** `no_std`, no allocation, no panics, no blocking: [`interpreter::advance`] either fires one step or says
//! why it cannot. The interpreter never knows which transport it is on: a connection is memory, nothing more. This crate
//! depends on nothing.

#![cfg_attr(not(loom), no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_ptx, asm_experimental_arch, f16, link_llvm_intrinsics, stdarch_nvptx),
    allow(internal_features)
)]

#[macro_use]
mod unrolled;

pub mod element;
#[cfg(target_arch = "nvptx64")]
mod entry;
#[cfg(target_arch = "nvptx64")]
mod flagged;
mod float8;
pub mod interpreter;
#[cfg(target_arch = "nvptx64")]
mod launch;
pub mod layout;
#[cfg(loom)]
pub mod model;
#[cfg(all(target_arch = "nvptx64", target_feature = "sm_90"))]
mod multicast;
pub mod reduce_copy;
pub mod reduction;
#[cfg(not(target_arch = "nvptx64"))]
pub mod table;
pub mod target;
#[cfg(target_arch = "x86_64")]
mod vectors;
