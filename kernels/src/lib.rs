//! tutti's data plane.
#![no_std]
pub mod layout;
