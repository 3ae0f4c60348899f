//! CUDA devices: the driver, its objects, and what the ranks on its devices keep there.
//!
//! Three layers lead from C to Rust: `sys` is what bindgen makes of NVIDIA's header, `result` the driver as opened at run time, with
//! errors as values, `safe` its objects. On them stand the memory that ranks share ([`ranks`]) and plans laid out in a device's
//! memory ([`bind`]); and memory that a switch reaches on all devices at once ([`symmetric`]). What nobody uses any more is given
//! back where no kernel has to be waited for ([`retired`]).
//!
//! **Invariant.** Nothing fails at link time or panics where there is no driver: opening one is an ordinary error. Nothing here
//! allocates, loads code or synchronises between a kernel's launch and its end but on behalf of a call that all ranks make later.

pub(crate) mod bind;
mod code;
pub(crate) mod heap;
mod mapped;
pub(crate) mod paths;
pub(crate) mod ranks;
mod result;
mod retired;
mod safe;
pub(crate) mod symmetric;
mod sys;

pub(crate) use code::KernelKey;
pub use paths::{Path, Paths};
pub(crate) use result::Failure;
pub use safe::{Device, Driver, Graph, Stream};
pub(crate) use safe::{DeviceMemory, Event, Grid};
