//! A file that appears whole or not at all.
//!
//! The idea: the file has no name while it is written (Linux's `O_TMPFILE`), so that it is gone with the process, whatever
//! ends it, SIGKILL and a lost power supply included. When it is complete and on disk it is given its name. A link cannot
//! replace a file, so where there is one already, the new one is first linked under a temporary name and then renamed: for
//! these few microseconds, and no longer, there is something that a SIGKILL could leave behind.
//!
//! Where the file system has no files without a name, it is written under a temporary name in the same directory, which an
//! error, a panic, SIGINT, SIGTERM and SIGHUP remove.

use crate::failure::Failure;
use crate::shown::shown;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// What a signal has to remove. Whoever holds the lock may link, rename or remove; a signal holds it until the process is gone.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What happens to a file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// It is replaced.
    Replace,
    /// It stays, and that is an error.
    Keep,
}

/// A file on its way to its name.
#[derive(Debug)]
pub(crate) struct OutputFile {
    file: File,
    /// Its name until it is finished, if it has one.
    temporary: Option<PathBuf>,
    destination: PathBuf,
    existing: Existing,
}

impl OutputFile {
    /// Creates the file. An existing file at `path` stays as it is until [`OutputFile::finish`].
    pub(crate) fn create(path: &Path, existing: Existing) -> Result<OutputFile, Failure> {
        OutputFile::create_with(path, existing, open_unnamed)
    }

    fn create_with(
        path: &Path,
        existing: Existing,
        open_unnamed: impl Fn(&Path) -> Option<File>,
    ) -> Result<OutputFile, Failure> {
        remove_on_signals()?;
        let cannot = |error| Failure::file("write", path, &error);
        let destination = destination(path)?;
        let metadata = match fs::metadata(&destination) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(cannot(error)),
        };
        if let Some(metadata) = &metadata
            && !metadata.is_file()
        {
            let what = if metadata.is_dir() { "a directory" } else { "not a regular file" };
            return Err(Failure::Failed(format!("cannot write {}: it is {what}", shown(path))));
        }
        if metadata.is_some() && existing == Existing::Keep {
            return Err(exists(path));
        }
        let (file, temporary) = match open_unnamed(directory(&destination)) {
            Some(file) => (file, None),
            None => {
                let mut pending = unfinished();
                let create = |name: &Path| OpenOptions::new().write(true).create_new(true).open(name);
                let (temporary, file) = with_temporary_name(directory(&destination), create).map_err(cannot)?;
                pending.push(temporary.clone());
                (file, Some(temporary))
            }
        };
        let output = OutputFile { file, temporary, destination, existing };
        if let Some(metadata) = metadata {
            output.file.set_permissions(metadata.permissions()).map_err(cannot)?;
        }
        Ok(output)
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
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        self.file.sync_all().map_err(|error| self.failed(&error))?;
        // Signals wait for the name.
        let mut pending = unfinished();
        match self.give_name() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(exists(&self.destination)),
            Err(error) => return Err(self.failed(&error)),
            Ok(()) => {}
        }
        if let Some(temporary) = self.temporary.take() {
            pending.retain(|path| *path != temporary);
        }
        drop(pending);
        // The name is durable once its directory is; some file systems cannot do that, and then it is as durable as it gets.
        let _ = File::open(directory(&self.destination)).and_then(|directory| directory.sync_all());
        Ok(())
    }

    fn give_name(&self) -> io::Result<()> {
        if let Some(temporary) = &self.temporary {
            return rename(temporary, &self.destination, self.existing);
        }
        match link(&self.file, &self.destination) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.existing == Existing::Replace => {}
            linked => return linked,
        }
        let link = |name: &Path| link(&self.file, name);
        let (temporary, ()) = with_temporary_name(directory(&self.destination), link)?;
        fs::rename(&temporary, &self.destination).inspect_err(|_| drop(fs::remove_file(&temporary)))
    }

    /// A failed write.
    pub(crate) fn failed(&self, error: &io::Error) -> Failure {
        Failure::file("write", &self.destination, error)
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let mut pending = unfinished();
            pending.retain(|path| path != temporary);
            let _ = fs::remove_file(temporary);
        }
    }
}

fn exists(path: &Path) -> Failure {
    Failure::Failed(format!("{} exists, and is not to be replaced", shown(path)))
}

/// The file that is written: where a symbolic link leads to a file, that one is replaced and not the link.
fn destination(path: &Path) -> Result<PathBuf, Failure> {
    let name = path.as_os_str().as_encoded_bytes();
    if path.file_name().is_none() || name.ends_with(b"/") || name.ends_with(b"/.") {
        return Err(Failure::Failed(format!("cannot write {}: that is not the name of a file", shown(path))));
    }
    let Ok(target) = fs::read_link(path) else { return Ok(path.to_owned()) };
    fs::canonicalize(path).map_err(|error| match error.kind() {
        // As with cp, which does not make up a file where a link points to nothing.
        io::ErrorKind::NotFound => Failure::Failed(format!(
            "cannot write {}: it is a symbolic link to {}, which does not exist",
            shown(path),
            shown(&target)
        )),
        _ => Failure::file("write", path, &error),
    })
}

/// A file without a name in a directory, if its file system has such files and there is a way to name them later.
fn open_unnamed(directory: &Path) -> Option<File> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(directory, flags, Mode::from_raw_mode(0o666)).ok()?);
        fs::metadata(descriptor_path(&file)).is_ok().then_some(file)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = directory;
        None
    }
}

/// The name under which the system shows an open file, whether it has another one or not.
#[cfg(target_os = "linux")]
fn descriptor_path(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Gives a name to a file without one; never replaces another.
fn link(file: &File, name: &Path) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, CWD, linkat};
        Ok(linkat(CWD, descriptor_path(file), CWD, name, AtFlags::SYMLINK_FOLLOW)?)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (file, name);
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn rename(from: &Path, to: &Path, existing: Existing) -> io::Result<()> {
    if existing == Existing::Replace {
        return fs::rename(from, to);
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
    }
    #[cfg(not(target_os = "linux"))]
    {
        fs::hard_link(from, to).and_then(|()| fs::remove_file(from))
    }
}

/// Tries names that no other process uses, until one is free.
fn with_temporary_name<T>(directory: &Path, create: impl Fn(&Path) -> io::Result<T>) -> io::Result<(PathBuf, T)> {
    let mut attempt = 0;
    loop {
        let name = directory.join(format!(".tutti-{}-{attempt}.tmp", std::process::id()));
        match create(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 1000 => attempt += 1,
            Err(error) => return Err(error),
            Ok(created) => return Ok((name, created)),
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
fn remove_on_signals() -> Result<(), Failure> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        // Signals that are ignored (as `nohup` does) stay ignored.
        let ignored = ignored_signals();
        let signals = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let Ok(mut signals) = Signals::new(signals) else { return Ok(()) };
        let thread = std::thread::Builder::new().spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let pending = unfinished();
                for path in pending.iter() {
                    let _ = fs::remove_file(path);
                }
                let _ = signal_hook::low_level::emulate_default_handler(signal);
                std::process::exit(128 + signal);
            }
        });
        thread.map(drop).map_err(|error| format!("cannot start a thread that waits for signals: {error}"))
    });
    started.clone().map_err(Failure::Failed)
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

    /// Files without a name until they are finished, and files with a temporary one.
    const KINDS: [fn(&Path) -> Option<File>; 2] = [open_unnamed, |_| None];

    fn create(path: &Path, open_unnamed: fn(&Path) -> Option<File>) -> OutputFile {
        OutputFile::create_with(path, Existing::Replace, open_unnamed).unwrap_or_else(|failure| panic!("{failure:?}"))
    }

    #[test]
    fn a_file_appears_when_it_is_finished_and_not_before() {
        for kind in KINDS {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("out");
            for (before, after) in [(None, "new"), (Some("new"), "newer")] {
                let output = create(&path, kind);
                output.file().write_all(after.as_bytes()).unwrap();
                assert_eq!(fs::read_to_string(&path).ok().as_deref(), before);
                output.finish().ok().unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), after);
                assert_eq!(names(directory.path()), ["out"]);
            }
        }
    }

    #[test]
    fn a_file_that_is_not_finished_leaves_nothing() {
        for kind in KINDS {
            let directory = tempfile::tempdir().unwrap();
            drop(create(&directory.path().join("out"), kind));
            assert!(names(directory.path()).is_empty());
            let nameless = ["", "..", "/", "new/", "new/."].map(Path::new);
            for wrong in [directory.path(), &directory.path().join("no/such/out")].into_iter().chain(nameless) {
                assert!(OutputFile::create_with(wrong, Existing::Replace, kind).is_err());
            }
        }
    }

    #[test]
    fn a_file_that_came_meanwhile_is_kept_where_that_is_asked_for_and_otherwise_replaced() {
        for kind in KINDS {
            for existing in [Existing::Keep, Existing::Replace] {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("out");
                let output = OutputFile::create_with(&path, existing, kind).ok().unwrap();
                fs::write(&path, "theirs").unwrap();
                assert_eq!(output.finish().is_ok(), existing == Existing::Replace);
                let expected = if existing == Existing::Keep { "theirs" } else { "" };
                assert_eq!(fs::read_to_string(&path).unwrap(), expected);
                assert_eq!(names(directory.path()), ["out"]);
            }
        }
    }

    #[test]
    fn the_mode_of_a_file_that_is_replaced_stays() {
        use std::os::unix::fs::PermissionsExt;
        for kind in KINDS {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("out");
            create(&path, kind).finish().ok().unwrap();
            let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode() & 0o111, 0);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
            create(&path, kind).finish().ok().unwrap();
            assert_eq!(mode(), 0o640);
        }
    }

    #[test]
    fn a_link_leads_to_the_file_that_is_replaced() {
        for kind in KINDS {
            let directory = tempfile::tempdir().unwrap();
            let (target, link) = (directory.path().join("target"), directory.path().join("link"));
            std::os::unix::fs::symlink("target", &link).unwrap();
            let dangling = OutputFile::create_with(&link, Existing::Replace, kind);
            assert!(
                matches!(dangling, Err(Failure::Failed(reason)) if reason.contains("link to target, which does not exist"))
            );
            fs::write(&target, "old").unwrap();
            let output = create(&link, kind);
            output.file().write_all(b"new").unwrap();
            output.finish().ok().unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"new");
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        }
    }
}
