//! What differs between a GPU thread block and a CPU thread.
//!
//! Both modules offer the same names with the same meaning; everything else in this crate is written once, against them.
//! A team of threads (a thread block, or one CPU thread) runs each function below; a team's threads agree on control flow.

#[cfg(not(target_arch = "nvptx64"))]
mod host;
#[cfg(all(target_arch = "nvptx64", target_feature = "sm_90"))]
pub mod multimem;
#[cfg(target_arch = "nvptx64")]
mod nvptx;

#[cfg(not(target_arch = "nvptx64"))]
pub use host::*;
#[cfg(target_arch = "nvptx64")]
pub use nvptx::*;
