//! How a command ends when it does not end well: what is printed, and the exit code.
//!
//! Nothing here prints or exits; `main` does both, in one place.

use crate::shown::shown;
use std::io;

/// Why a command stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line asks for something that cannot be: exit code 2.
    Usage(String),
    /// The data, the machine or a result is wrong: exit code 1.
    Failed(String),
    /// A check that was asked for could not be made; nothing has been found wrong: exit code 3.
    Unchecked(String),
    /// Whoever read standard output has gone away, as `| head` does: no message, exit code 0.
    ReaderGone,
}

impl Failure {
    /// A failed write to standard output.
    pub(crate) fn output(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Failure::ReaderGone
        } else {
            Failure::Failed(format!("cannot write to standard output: {error}"))
        }
    }

    /// A failed operation on a file, named.
    pub(crate) fn file(what: &str, path: &std::path::Path, error: &io::Error) -> Failure {
        Failure::Failed(format!("cannot {what} {}: {error}", shown(path)))
    }
}

impl From<tutti::Error> for Failure {
    fn from(error: tutti::Error) -> Failure {
        Failure::Failed(error.to_string())
    }
}
