//! Runs the command and says what it did.

#![allow(dead_code, unreachable_pub)] // Each test file uses a part.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// What a run left behind.
#[derive(Debug)]
pub struct Outcome {
    /// The exit code; none if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// The command, in an environment without settings of its own.
pub fn tutti() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tutti"));
    command.env_remove("NCCL_TESTS_MIN_BW").stdin(Stdio::null());
    command
}

/// Runs the command to its end. A panic anywhere in it fails the test.
pub fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Outcome {
    finish(tutti().args(args))
}

/// Runs a prepared command to its end. Whatever it was given, it prints nothing that a terminal would act on.
pub fn finish(command: &mut Command) -> Outcome {
    let output = command.output().expect("the command starts");
    let outcome = Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("standard output is text"),
        stderr: String::from_utf8(output.stderr).expect("standard error is text"),
    };
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
    let acts_on_a_terminal = |c: char| c.is_control() && c != '\n';
    assert!(
        !outcome.stdout.contains(acts_on_a_terminal) && !outcome.stderr.contains(acts_on_a_terminal),
        "{outcome:?}"
    );
    outcome
}

/// Runs a command line without blanks in its arguments.
pub fn run_line(line: &str) -> Outcome {
    run(line.split_whitespace())
}

/// As [`run_line`], with so many KiB of addresses.
pub fn run_line_within(address_kib: u64, line: &str) -> Outcome {
    let script = format!("ulimit -v {address_kib} && exec \"$0\" {line}");
    finish(Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_tutti")]).env_remove("NCCL_TESTS_MIN_BW"))
}

impl Outcome {
    /// The run must have been good.
    pub fn good(self) -> Outcome {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// The run must have failed with this code and have said all of this on standard error.
    #[track_caller]
    pub fn failed(self, code: i32, said: &[&str]) -> Outcome {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.stderr.starts_with("error: ") || self.stderr.starts_with("warning: "), "{self:?}");
        for text in said {
            assert!(self.stderr.contains(text), "{text:?} is not in {}", self.stderr);
        }
        self
    }
}

/// The names in a directory, sorted.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("the directory is there");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
