//! tutti: collectives as verified plans.

pub mod plan;
