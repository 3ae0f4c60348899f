//! Clusters from files: NCCL's topology XML ([`xml`]) and what `nvidia-smi topo -m` prints ([`matrix`]).
//!
//! Such files leave much unsaid. What a reader takes for granted it says in a warning, so that nobody mistakes an
//! assumption for a fact; what it cannot make sense of is an error with its line.
//!
//! **Invariant.** Readers take a text, not a file; they never panic, and their time and memory are bounded by
//! [`TEXT_BYTES_MAX`] and [`DEVICES_MAX`].

pub mod matrix;
pub mod xml;

use std::fmt;

use super::cluster::{Cluster, Fault};

/// Longer texts are refused: the largest that NCCL itself reads are far below.
pub const TEXT_BYTES_MAX: usize = 4 << 20;

/// More devices of one machine are refused, as NCCL does.
pub const DEVICES_MAX: usize = 256;

/// What a text was read as.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The cluster.
    pub cluster: Cluster,
    /// What was assumed, and what was left out; each a sentence that begins with its line, in the order in which they
    /// came up.
    pub warnings: Vec<String>,
}

/// Why a text is no cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Something in it is not as it should be.
    #[error("line {line}: {reason}")]
    At {
        /// Counted from 1.
        line: u32,
        /// What was expected, and what was found.
        reason: String,
    },
    /// What it describes is no cluster.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Reads whichever of the formats the text is in; `name` is what the cluster is called.
///
/// # Errors
/// [`FormatError`], with the line.
pub fn read(name: &str, text: &str) -> Result<Reading, FormatError> {
    if text.trim_start_matches('\u{feff}').trim_start().starts_with('<') {
        xml::read(name, text)
    } else {
        matrix::read(name, text)
    }
}

/// An error at a line.
fn at<T>(line: u32, reason: impl fmt::Display) -> Result<T, FormatError> {
    Err(FormatError::At { line, reason: reason.to_string() })
}

fn check_length(text: &str) -> Result<(), FormatError> {
    if text.len() > TEXT_BYTES_MAX {
        return at(1, format_args!("expected at most {TEXT_BYTES_MAX} bytes, found {}", text.len()));
    }
    Ok(())
}

/// A piece of the text, cut to a readable length.
fn cut(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests;
