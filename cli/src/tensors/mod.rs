//! Files of tensors: what is in them and where, and whether several of them hold the same tensors.
//!
//! Only headers are read here, and nothing that a header says is believed before it is compared with the file's length: no
//! allocation and no offset comes from an unchecked number. Data is read by whoever reduces it, at the offsets given here.

mod npy;
mod safetensors;

use crate::failure::Failure;
use crate::shown::shown;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tutti::DType;

#[cfg(target_endian = "big")]
compile_error!("both formats hold little-endian numbers, which are read here as they are");

/// The two formats, told apart by the file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    SafeTensors,
    Npy,
}

impl Format {
    /// The format that a name ends in.
    pub(crate) fn of(path: &Path) -> Result<Format, Failure> {
        let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        match extension.as_str() {
            "safetensors" => Ok(Format::SafeTensors),
            "npy" => Ok(Format::Npy),
            _ => Err(Failure::Usage(format!("{}: expected a name in .safetensors or .npy", shown(path)))),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::SafeTensors => ".safetensors",
            Format::Npy => ".npy",
        })
    }
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
    /// From the start of the file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Everything before a file's data.
#[derive(Debug)]
pub(crate) struct Header {
    /// As it is in the file: an output that holds the same tensors begins with the same bytes.
    pub(crate) raw: Vec<u8>,
    /// In the order of the data.
    pub(crate) tensors: Vec<Tensor>,
    /// What the file says about itself.
    pub(crate) metadata: BTreeMap<String, String>,
}

/// A file whose header has been read and checked.
#[derive(Debug)]
pub(crate) struct TensorFile {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) header: Header,
    /// The length and the time of the last change when it was opened.
    opened: (u64, Option<SystemTime>),
}

impl TensorFile {
    /// Opens a file and reads its header; the file is as long as its header says, or this is an error.
    pub(crate) fn open(path: &Path) -> Result<TensorFile, Failure> {
        let format = Format::of(path)?;
        let cannot = |error| Failure::file("read", path, &error);
        let metadata = std::fs::metadata(path).map_err(cannot)?;
        if !metadata.is_file() {
            let what = if metadata.is_dir() { "a directory" } else { "not a regular file" };
            return Err(Failure::Failed(format!("{} is {what}", shown(path))));
        }
        let mut file = File::open(path).map_err(cannot)?;
        let opened = stamp(&file).map_err(cannot)?;
        let bytes = opened.0;
        let header = match format {
            Format::SafeTensors => safetensors::read_header(&mut file, bytes),
            Format::Npy => npy::read_header(&mut file, bytes),
        };
        let header = header.map_err(|reason| Failure::Failed(format!("{}: {reason}", shown(path))))?;
        Ok(TensorFile { path: path.to_owned(), file, header, opened })
    }

    /// Reads data, as much as there is room for.
    pub(crate) fn read(&self, into: &mut [u8], offset: u64) -> Result<(), Failure> {
        self.file.read_exact_at(into, offset).map_err(|error| match (error.kind(), self.check_unchanged()) {
            // Its end is not where the header says, as it was when it was opened.
            (io::ErrorKind::UnexpectedEof, Err(changed)) => changed,
            _ => Failure::file("read", &self.path, &error),
        })
    }

    /// The file must be the one that it was when it was opened: what was read of it is then all of one state.
    pub(crate) fn check_unchanged(&self) -> Result<(), Failure> {
        let now = stamp(&self.file).map_err(|error| Failure::file("read", &self.path, &error))?;
        let what = match (self.opened.0, now.0) {
            _ if now == self.opened => return Ok(()),
            (before, after) if after < before => {
                format!("was cut short while it was read, from {before} to {after} bytes")
            }
            _ => "changed while it was read".to_owned(),
        };
        Err(Failure::Failed(format!("{}: the file {what}", shown(&self.path))))
    }
}

/// The length of a file and the time of its last change, if the file system keeps it.
fn stamp(file: &File) -> io::Result<(u64, Option<SystemTime>)> {
    file.metadata().map(|metadata| (metadata.len(), metadata.modified().ok()))
}

/// Says how a file differs from the first one, if it does: every tensor that is not the same in both.
pub(crate) fn differences(first: &TensorFile, other: &TensorFile) -> Vec<String> {
    let by_name = |file: &TensorFile| -> HashMap<String, String> {
        let describe = |tensor: &Tensor| (tensor.name.clone(), format!("{} {:?}", tensor.dtype, tensor.shape));
        file.header.tensors.iter().map(describe).collect()
    };
    let (in_first, in_other) = (by_name(first), by_name(other));
    let (first_path, other_path) = (shown(&first.path), shown(&other.path));
    let mut differences = Vec::new();
    for tensor in &first.header.tensors {
        let (name, expected) = (shown(&tensor.name), &in_first[&tensor.name]);
        match in_other.get(&tensor.name) {
            Some(got) if got == expected => {}
            Some(got) => {
                differences.push(format!("tensor `{name}`: {first_path} has {expected}, {other_path} has {got}"))
            }
            None => {
                differences.push(format!("tensor `{name}`: {first_path} has {expected}, {other_path} does not have it"))
            }
        }
    }
    for tensor in &other.header.tensors {
        if !in_first.contains_key(&tensor.name) {
            let (name, got) = (shown(&tensor.name), &in_other[&tensor.name]);
            differences.push(format!("tensor `{name}`: {first_path} does not have it, {other_path} has {got}"));
        }
    }
    differences
}

/// Bytes of a tensor, if its extents multiplied in their order, and then the bits of its elements, fit 64 bits: what the
/// `safetensors` crate takes, and no more, even where an extent is zero.
fn tensor_bytes(shape: &[u64], element_bytes: u64) -> Option<u64> {
    let elements = shape.iter().try_fold(1_u64, |elements, &extent| elements.checked_mul(extent))?;
    Some(elements.checked_mul(8 * element_bytes)? / 8)
}

/// Reads exactly `bytes` more, which the caller has compared with the file's length.
fn read_more(source: &mut impl Read, bytes: u64, into: &mut Vec<u8>) -> Result<(), String> {
    let read = source.by_ref().take(bytes).read_to_end(into).map_err(|error: io::Error| error.to_string())?;
    if read as u64 == bytes {
        Ok(())
    } else {
        Err(format!("truncated: {read} of {bytes} bytes of the header are there"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_after_it_was_opened_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.safetensors");
        std::fs::write(&path, b"\x02\0\0\0\0\0\0\0{}").unwrap();
        let open = || TensorFile::open(&path).unwrap_or_else(|failure| panic!("{failure:?}"));
        let change = || File::options().write(true).open(&path).unwrap();
        let said = |result: Result<(), Failure>| match result {
            Err(Failure::Failed(reason)) => reason,
            other => panic!("{other:?}"),
        };
        let file = open();
        assert!(file.check_unchanged().is_ok());
        // There is nothing after the header, and the header has not changed: the reader asks for too much.
        assert!(said(file.read(&mut [0], 10)).contains("cannot read"));
        change().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(said(file.check_unchanged()).contains("a.safetensors: the file changed while it was read"));
        let file = open();
        change().set_len(11).unwrap();
        assert!(said(file.check_unchanged()).contains("changed"));
        change().set_len(10).unwrap();
        let file = open();
        change().set_len(9).unwrap();
        assert!(said(file.read(&mut [0, 0], 8)).contains("cut short while it was read, from 10 to 9 bytes"));
    }

    #[test]
    fn tensor_sizes_that_do_not_fit_are_none() {
        assert_eq!(tensor_bytes(&[], 4), Some(4));
        assert_eq!(tensor_bytes(&[2, 3], 2), Some(12));
        assert_eq!(tensor_bytes(&[3, 0, 5], 4), Some(0));
        assert_eq!(tensor_bytes(&[u64::MAX, u64::MAX, 0], 4), None, "as the safetensors crate has it");
        assert_eq!(tensor_bytes(&[0, u64::MAX, u64::MAX], 4), Some(0));
        assert_eq!(tensor_bytes(&[1 << 62, 1 << 62], 4), None);
    }
}
