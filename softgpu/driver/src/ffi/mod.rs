//! The exported functions: the driver's ABI. Each one only reads its arguments, calls the module that does the work, and writes results.

pub mod raw;

mod context;
mod graph;
mod launch;
mod memory;
mod process;
mod software;
mod stream;
mod unsupported;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::code::{Code, Result};
use crate::driver::IN_CALLBACK;

pub use context::*;
pub use graph::*;
pub use launch::*;
pub use memory::*;
pub use process::*;
pub use software::*;
pub use stream::*;

/// A result code.
pub type CUresult = i32;
/// A device's ordinal.
pub type CUdevice = i32;
/// An address that devices know.
pub type CUdeviceptr = u64;
/// A handle: a pointer for callers, a number here.
pub type Handle = u64;

/// Whether each failing call is said on the standard error.
fn traces() -> bool {
    static TRACES: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *TRACES.get_or_init(|| std::env::var_os("SOFTGPU_TRACE").is_some_and(|value| value != "0"))
}

/// Runs the body of an exported function: no panic crosses the ABI, and no callback of a stream calls the driver.
pub(crate) fn enter(name: &str, body: impl FnOnce() -> Result) -> CUresult {
    if IN_CALLBACK.get() {
        return Code::NOT_PERMITTED.0;
    }
    let result = catch_unwind(AssertUnwindSafe(body));
    let code = match result {
        Ok(Ok(())) => 0,
        Ok(Err(Code(code))) => code,
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            eprintln!("softcuda: {name} failed: {said}");
            Code::UNKNOWN.0
        }
    };
    if code != 0 && code != Code::NOT_READY.0 && traces() {
        let text = crate::code::describe(code).map_or("", |(name, _)| name.to_str().unwrap_or(""));
        eprintln!("softcuda: {name}: {code} {text}");
    }
    code
}

/// Exports functions of the driver's API, and makes the list of them.
macro_rules! functions {
    ($list:ident: $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of the CUDA driver API.")]
            ///
            /// # Safety
            /// Each pointer is null or points to what CUDA's documentation of the function says.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, clippy::too_many_arguments)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::ffi::CUresult {
                $crate::ffi::enter(stringify!($name), || $body)
            }
        )*

        /// The functions of this file, by their names.
        pub(crate) fn $list() -> Vec<(&'static str, usize)> {
            vec![$((stringify!($name), $name as *const () as usize)),*]
        }
    };
}
pub(crate) use functions;
