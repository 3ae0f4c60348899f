//! A file that appears whole or not at all.
//!
//! It is written under another name in the same directory, made durable, and renamed. Whatever ends the command before that
//! (an error, a panic, SIGINT, SIGTERM or SIGHUP) removes it.

use crate::failure::Failure;
use crate::shown::shown;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// What a signal has to remove. Whoever holds the lock may rename or remove; a signal holds it until the process is gone.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file on its way to its name.
#[derive(Debug)]
pub(crate) struct OutputFile {
    file: File,
    temporary: PathBuf,
    destination: PathBuf,
}

impl OutputFile {
    /// Creates the file under a temporary name. An existing file at `path` stays as it is until [`OutputFile::finish`].
    pub(crate) fn create(path: &Path) -> Result<OutputFile, Failure> {
        remove_on_signals();
        let cannot = |error| Failure::file("write", path, &error);
        // The file that a symbolic link leads to is replaced, not the link.
        let destination = match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_symlink() => fs::canonicalize(path).map_err(cannot)?,
            _ => path.to_owned(),
        };
        let existing = match fs::metadata(&destination) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(cannot(error)),
        };
        if let Some(metadata) = &existing
            && !metadata.is_file()
        {
            let what = if metadata.is_dir() { "a directory" } else { "not a regular file" };
            return Err(Failure::Failed(format!("cannot write {}: it is {what}", shown(path))));
        }
        let directory = directory(&destination).to_owned();
        let mut pending = unfinished();
        for attempt in 0.. {
            let temporary = directory.join(format!(".tutti-{}-{attempt}.tmp", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&temporary) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 1000 => {}
                Err(error) => return Err(cannot(error)),
                Ok(file) => {
                    pending.push(temporary.clone());
                    drop(pending);
                    let output = OutputFile { file, temporary, destination };
                    if let Some(metadata) = existing {
                        output.file.set_permissions(metadata.permissions()).map_err(cannot)?;
                    }
                    return Ok(output);
                }
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// The file, to be written at any offset.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Takes the disk space now, where the file system can, so that a full disk is known before the work.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            Err(error) if error == rustix::io::Errno::NOSPC || error == rustix::io::Errno::FBIG => {
                Err(self.failed(&error.into()))
            }
            _ => Ok(()),
        }
    }

    /// Makes the file durable and gives it its name.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        self.file.sync_all().map_err(|error| self.failed(&error))?;
        let mut pending = unfinished();
        fs::rename(&self.temporary, &self.destination).map_err(|error| self.failed(&error))?;
        pending.retain(|path| *path != self.temporary);
        drop(pending);
        // The name is durable once its directory is; some file systems cannot do that, and then it is as durable as it gets.
        let _ = File::open(directory(&self.destination)).and_then(|directory| directory.sync_all());
        Ok(())
    }

    /// A failed write.
    pub(crate) fn failed(&self, error: &io::Error) -> Failure {
        Failure::file("write", &self.destination, error)
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        let mut pending = unfinished();
        if let Some(place) = pending.iter().position(|path| *path == self.temporary) {
            pending.swap_remove(place);
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Starts, once, the thread that removes unfinished files when a signal asks the process to end, and then lets it end.
fn remove_on_signals() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Signals that are ignored (as `nohup` does) stay ignored.
        let ignored = ignored_signals();
        let signals = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let Ok(mut signals) = Signals::new(signals) else { return };
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let pending = unfinished();
                for path in pending.iter() {
                    let _ = fs::remove_file(path);
                }
                let _ = signal_hook::low_level::emulate_default_handler(signal);
                std::process::exit(128 + signal);
            }
        });
    });
}

/// The signals that this process ignores, as bits; signal 1 is bit 0.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_appears_when_it_is_finished_and_not_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        fs::write(&path, "old").unwrap();
        let output = OutputFile::create(&path).ok().unwrap();
        output.file().write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        output.finish().ok().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(directory.path()), ["out"]);
    }

    #[test]
    fn a_file_that_is_not_finished_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        drop(OutputFile::create(&directory.path().join("out")).ok().unwrap());
        assert!(names(directory.path()).is_empty());
        assert!(OutputFile::create(directory.path()).is_err());
        assert!(OutputFile::create(&directory.path().join("no/such/out")).is_err());
    }

    #[test]
    fn a_link_leads_to_the_file_that_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("target"), directory.path().join("link"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink("target", &link).unwrap();
        let output = OutputFile::create(&link).ok().unwrap();
        output.file().write_all(b"new").unwrap();
        output.finish().ok().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }
}
