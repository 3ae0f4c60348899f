//! CPU ranks: the caller's thread runs the interpreter.

mod bind;
mod dispatch;
mod float_mode;
mod isa;
mod wait;

pub(crate) use bind::BoundPlan;
pub(crate) use dispatch::kernel_for;
pub(crate) use float_mode::FloatMode;
pub(crate) use wait::Waiter;
