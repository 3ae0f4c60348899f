//! Leaves in `OUT_DIR` the rows that the host's kernels are compiled for, as the kernel table lists them.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var_os("OUT_DIR")
        .ok_or_else(|| io::Error::other("OUT_DIR is not set: cargo sets it for build scripts"))?;
    fs::write(PathBuf::from(out).join("table.rs"), tutti_codegen::generate::host_table())
}
