//! Kernels on a device: loaded on first use, one image for each element type, and kept for every communicator of the process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::result::Failure;
use super::safe::{Device, Kernel, Module};
use crate::dtype::{DType, Reduction};
use crate::error::{Error, Result};
use crate::ptx::{self, Entry, Image, Slots};
use crate::sync::lock;

/// Warps that a block has at most.
const WARPS_MAX: usize = (tutti_codegen::BLOCK_THREADS_MAX / tutti_codegen::WARP_THREADS) as usize;

/// What has been loaded.
#[derive(Default)]
pub(super) struct Code {
    kernels: Mutex<HashMap<KernelKey, LoadedKernel>>,
    /// By the images' names.
    modules: Mutex<HashMap<String, Arc<Module>>>,
}

/// A kernel, as calls ask for it: the reduction matters only where there is one.
pub(crate) type KernelKey = (DType, Option<Reduction>);

/// A kernel on one device.
#[derive(Clone)]
pub(crate) struct LoadedKernel {
    pub(crate) kernel: Kernel,
    /// Whether it has steps that a switch does.
    pub(crate) switches: bool,
    module: Arc<Module>,
    /// By warps of a block, how many blocks a multiprocessor holds, where that has been asked.
    blocks: Arc<[AtomicU32; WARPS_MAX + 1]>,
}

/// Whether an image's kernel for a type and a reduction has steps that a switch does: the image is new enough for them, and switches
/// offer the reduction.
fn switches(image: &Image, (dtype, reduction): KernelKey) -> bool {
    let compute_capability = image.architecture().compute_capability;
    match reduction {
        Some(reduction) => ptx::check_multimem(dtype, reduction, compute_capability).is_ok(),
        None => compute_capability >= tutti_codegen::MULTIMEM_CAPABILITY,
    }
}

impl Device {
    /// The kernel for a type and a reduction, if it has been loaded.
    pub(super) fn loaded(&self, key: KernelKey) -> Option<LoadedKernel> {
        lock(&self.code().kernels).get(&key).cloned()
    }

    /// The kernel for a type and a reduction, loaded if need be.
    pub(super) fn kernel(&self, key: KernelKey) -> Result<LoadedKernel> {
        if let Some(loaded) = self.loaded(key) {
            return Ok(loaded);
        }
        let device = self.ordinal();
        let (image, entry) = self.entry(key)?;
        let switches = switches(image, key);
        let mut modules = lock(&self.code().modules);
        let mut load = || {
            let module = match modules.get(&image.file_name()) {
                Some(module) => Arc::clone(module),
                None => {
                    let module = Arc::new(self.load(image.text())?);
                    modules.insert(image.file_name(), Arc::clone(&module));
                    module
                }
            };
            let kernel = module.kernel(&entry.name())?;
            Ok(LoadedKernel { kernel, switches, module, blocks: Arc::default() })
        };
        let loaded: LoadedKernel = load().map_err(|failure: Failure| {
            failure.during(format_args!("loading {} on device {device}", image.file_name()))
        })?;
        lock(&self.code().kernels).insert(key, loaded.clone());
        Ok(loaded)
    }

    /// Whether the kernel for a type and a reduction has steps that a switch does.
    pub(crate) fn switches(&self, key: KernelKey) -> bool {
        match self.loaded(key) {
            Some(loaded) => loaded.switches,
            None => self.entry(key).is_ok_and(|(image, _)| switches(image, key)),
        }
    }

    /// The entry point for a type and a reduction, and the image that has it.
    fn entry(&self, key: KernelKey) -> Result<(&'static Image, Entry)> {
        let (compute_capability, cuda) = (self.compute_capability()?, self.driver().version()?);
        match key {
            (dtype, Some(reduction)) => ptx::entry_for(Slots::Simple, dtype, reduction, compute_capability, cuda),
            (_, None) => ptx::copy_entry(Slots::Simple, compute_capability, cuda),
        }
        .map_err(|reason| Error::NoKernel { device: self.ordinal(), reason })
    }

    /// Whether so many blocks of a kernel are on the device at once.
    pub(crate) fn check_resident(&self, loaded: &LoadedKernel, blocks: u32, threads: u32) -> Result<()> {
        let device = self.ordinal();
        let known = &loaded.blocks[(threads / tutti_codegen::WARP_THREADS) as usize];
        let mut each = known.load(Ordering::Relaxed);
        if each == 0 {
            each = loaded
                .module
                .blocks_per_multiprocessor(loaded.kernel, threads)
                .map_err(|failure| failure.during(format_args!("asking device {device} how many blocks it holds")))?;
            known.store(each, Ordering::Relaxed);
        }
        let resident = each * self.multiprocessors()?;
        if blocks <= resident {
            return Ok(());
        }
        Err(Error::NotResident { device, blocks, resident })
    }
}
