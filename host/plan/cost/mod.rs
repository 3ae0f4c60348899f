//! What collectives cost, by formula: without a plan, and without simulating one.
//!
//! [`nccl`] is the model by which NCCL chooses; [`alpha_beta`] the literature's closed forms; [`training`] what a collective is
//! of a training step.
//!
//! **Invariant.** Arithmetic alone: nothing here builds a plan.

pub mod alpha_beta;
pub mod nccl;
pub mod training;
