//! The PTX images that this build carries: one for each element type, kind of slots and architecture that makes a difference, and
//! those that only move bytes, as the kernel table says.
//!
//! A build on a machine without a Rust compiler for PTX carries none; [`images`] then says why, as an ordinary value.
//!
//! **Invariant.** Only text and tables: no driver, no device, no I/O.

use std::fmt;

use crate::dtype::{DType, Reduction};

pub use tutti_codegen::{
    Architecture, BLOCK_THREADS_MAX, Entry, PARAMETERS, Parameter, Slots, Version, WARP_THREADS, entries,
};

include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// The kernels of one element type, compiled for one architecture.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Image {
    slots: Slots,
    dtype: &'static tutti_codegen::DType,
    architecture: &'static Architecture,
    text: &'static str,
}

impl Image {
    /// The name of its element type, such as `f32`; `bytes` where it only moves them.
    pub fn dtype(&self) -> &'static str {
        self.dtype.name
    }

    /// What slots its entry points are for.
    pub fn slots(&self) -> Slots {
        self.slots
    }

    /// What it is compiled for, and the driver that it needs.
    pub fn architecture(&self) -> &'static Architecture {
        self.architecture
    }

    /// The PTX.
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// Its entry points.
    pub fn entries(&self) -> Vec<Entry> {
        tutti_codegen::entries_of(self.slots, self.dtype)
    }

    /// A name for a file that holds it, such as `tutti_f32.sm_90.ptx`.
    pub fn file_name(&self) -> String {
        tutti_codegen::image_file_name(self.slots, self.dtype.name, self.architecture.name)
    }
}

/// Without the text, which is long.
impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("slots", &self.slots)
            .field("dtype", &self.dtype.name)
            .field("architecture", &self.architecture.name)
            .field("bytes", &self.text.len())
            .finish()
    }
}

/// Why this build carries no PTX, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPtx {
    reason: &'static str,
}

impl fmt::Display for NoPtx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this build of tutti carries no PTX: {}", self.reason)
    }
}

impl std::error::Error for NoPtx {}

/// Every image, by element type and then from the oldest architecture to the newest.
///
/// # Errors
/// [`NoPtx`] if the build carries none.
pub fn images() -> Result<&'static [Image], NoPtx> {
    IMAGES
}

/// Why there is no image for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoImage {
    /// The build carries none at all.
    NoPtx(NoPtx),
    /// The device is older than the oldest architecture.
    DeviceTooOld {
        /// The device's.
        compute_capability: Version,
        /// The least that an image runs on.
        needed: Version,
    },
    /// The driver is older than every image for the device.
    DriverTooOld {
        /// The CUDA version that the driver supports.
        cuda: Version,
        /// The least that an image for the device needs, and the driver that has it.
        needed: &'static Architecture,
    },
    /// The element type does not offer the reduction.
    NotOffered {
        /// The element type.
        dtype: DType,
        /// The reduction.
        reduction: Reduction,
    },
}

impl fmt::Display for NoImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoImage::NoPtx(reason) => reason.fmt(f),
            NoImage::DeviceTooOld { compute_capability, needed } => write!(
                f,
                "the device has compute capability {compute_capability}, tutti's kernels need {needed} or newer"
            ),
            NoImage::DriverTooOld { cuda, needed } => write!(
                f,
                "the driver supports CUDA {cuda}, tutti's kernels for this device need CUDA {} (driver {}) or newer",
                needed.cuda, needed.driver
            ),
            NoImage::NotOffered { dtype, reduction } => {
                let Some(refusal) = dtype.refusal(*reduction) else { return f.write_str("there is such a kernel") };
                write!(f, "expected {}, came {}", refusal.expected, refusal.came)
            }
        }
    }
}

impl std::error::Error for NoImage {}

/// Why a switch does not reduce something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoMultimem {
    /// The device has no instructions for it.
    DeviceTooOld {
        /// The device's.
        compute_capability: Version,
    },
    /// The hardware does not reduce elements of this type so.
    NotOffered {
        /// The element type.
        dtype: DType,
        /// The reduction.
        reduction: Reduction,
    },
}

impl fmt::Display for NoMultimem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            NoMultimem::DeviceTooOld { compute_capability } => write!(
                f,
                "the device has compute capability {compute_capability}, reductions in a switch need {} or newer",
                tutti_codegen::MULTIMEM_CAPABILITY
            ),
            NoMultimem::NotOffered { dtype, reduction } => {
                let is_offered = |one: &Reduction| dtype.row().multimem(one.row()).is_some();
                let offered: Vec<&str> = dtype.reductions().filter(is_offered).map(Reduction::name).collect();
                let offered = if offered.is_empty() { "nothing".to_owned() } else { offered.join(", ") };
                write!(f, "no switch does {reduction} of {dtype}; of {dtype} it does {offered}")
            }
        }
    }
}

impl std::error::Error for NoMultimem {}

/// Whether the kernels reduce elements of `dtype` so in a switch, on a device of `compute_capability`: plans with
/// [`Operand::Multicast`](crate::plan::Operand::Multicast) need it.
///
/// # Errors
/// [`NoMultimem`] says what the hardware lacks.
pub fn check_multimem(dtype: DType, reduction: Reduction, compute_capability: Version) -> Result<(), NoMultimem> {
    if compute_capability < tutti_codegen::MULTIMEM_CAPABILITY {
        return Err(NoMultimem::DeviceTooOld { compute_capability });
    }
    match dtype.row().multimem(reduction.row()) {
        Some(_) => Ok(()),
        None => Err(NoMultimem::NotOffered { dtype, reduction }),
    }
}

/// The entry point that reduces elements of `dtype`, and the newest image with it that both a device of `compute_capability` and
/// a driver that supports `cuda` take. PTX runs on every architecture from its own on, so a driver that is too old for one
/// image may still take an older one.
///
/// # Errors
/// [`NoImage`] says what is missing.
pub fn entry_for(
    slots: Slots,
    dtype: DType,
    reduction: Reduction,
    compute_capability: Version,
    cuda: Version,
) -> Result<(&'static Image, Entry), NoImage> {
    let entry = tutti_codegen::entry_for(slots, dtype.row(), reduction.row())
        .ok_or(NoImage::NotOffered { dtype, reduction })?;
    choose(images().map_err(NoImage::NoPtx)?, slots, entry.dtype, compute_capability, cuda).map(|image| (image, entry))
}

/// The entry point of collectives that do not reduce, whatever their elements, and its image: as [`entry_for`].
///
/// # Errors
/// [`NoImage`] says what is missing.
pub fn copy_entry(
    slots: Slots,
    compute_capability: Version,
    cuda: Version,
) -> Result<(&'static Image, Entry), NoImage> {
    let entry = tutti_codegen::copy_entry(slots);
    choose(images().map_err(NoImage::NoPtx)?, slots, entry.dtype, compute_capability, cuda).map(|image| (image, entry))
}

fn choose<'a>(
    images: &'a [Image],
    slots: Slots,
    dtype: &tutti_codegen::DType,
    compute_capability: Version,
    cuda: Version,
) -> Result<&'a Image, NoImage> {
    let of_dtype: Vec<&Image> = images.iter().filter(|image| image.slots == slots && image.dtype == dtype).collect();
    let oldest = of_dtype.first().expect("the table has an image for each element type").architecture;
    if compute_capability < oldest.compute_capability {
        return Err(NoImage::DeviceTooOld { compute_capability, needed: oldest.compute_capability });
    }
    of_dtype
        .into_iter()
        .rfind(|image| image.architecture.compute_capability <= compute_capability && image.architecture.cuda <= cuda)
        .ok_or(NoImage::DriverTooOld { cuda, needed: oldest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Vec<Image> {
        tutti_codegen::images()
            .map(|(slots, dtype, architecture)| Image { slots, dtype, architecture, text: "" })
            .collect()
    }

    fn version(major: u32, minor: u32) -> Version {
        Version { major, minor }
    }

    #[test]
    fn a_device_gets_the_newest_image_that_it_and_its_driver_take() {
        let images = table();
        let chosen =
            |capability, cuda| choose(&images, Slots::Simple, DType::F16.row(), capability, cuda).map(Image::file_name);
        assert_eq!(chosen(version(7, 0), version(12, 9)).as_deref(), Ok("tutti_f16.sm_70.ptx"));
        assert_eq!(chosen(version(8, 6), version(12, 9)).as_deref(), Ok("tutti_f16.sm_80.ptx"));
        assert_eq!(chosen(version(9, 0), version(12, 9)).as_deref(), Ok("tutti_f16.sm_90.ptx"));
        assert_eq!(chosen(version(9, 0), version(11, 8)).as_deref(), Ok("tutti_f16.sm_80.ptx"));
        assert_eq!(chosen(version(10, 0), version(12, 8)).as_deref(), Ok("tutti_f16.sm_90.ptx"));
        assert_eq!(chosen(version(12, 0), version(13, 0)).as_deref(), Ok("tutti_f16.sm_100.ptx"));
        let chosen = |slots, dtype: DType| {
            choose(&images, slots, dtype.row(), version(10, 0), version(12, 9)).map(Image::file_name)
        };
        let why = "no later architecture makes a difference";
        assert_eq!(chosen(Slots::Simple, DType::I16).as_deref(), Ok("tutti_i16.sm_70.ptx"), "{why}");
        let copies = choose(&images, Slots::Simple, tutti_codegen::BYTES, version(10, 3), version(12, 9));
        assert_eq!(copies.map(Image::file_name).as_deref(), Ok("tutti_bytes.sm_100.ptx"));
        assert_eq!(chosen(Slots::LowLatency, DType::F32).as_deref(), Ok("tutti_ll_f32.sm_70.ptx"), "{why}");
    }

    #[test]
    fn a_device_or_driver_that_is_too_old_is_told_what_it_needs() {
        let images = table();
        let error = choose(&images, Slots::Simple, DType::F32.row(), version(6, 1), version(12, 9)).unwrap_err();
        assert_eq!(error.to_string(), "the device has compute capability 6.1, tutti's kernels need 7.0 or newer");
        let error = choose(&images, Slots::Simple, DType::F32.row(), version(9, 0), version(10, 2)).unwrap_err();
        assert!(error.to_string().contains("CUDA 10.2") && error.to_string().contains("driver 450.36"), "{error}");
        let error = entry_for(Slots::Simple, DType::F32, Reduction::Bxor, version(9, 0), version(12, 9)).unwrap_err();
        assert!(error.to_string().contains("f32") && error.to_string().contains("bxor"), "{error}");
    }

    #[test]
    fn what_no_switch_reduces_is_told_what_one_does() {
        assert_eq!(check_multimem(DType::BF16, Reduction::Max, version(9, 0)), Ok(()));
        let error = check_multimem(DType::F32, Reduction::Max, version(10, 0)).unwrap_err();
        assert_eq!(error.to_string(), "no switch does max of f32; of f32 it does sum");
        let error = check_multimem(DType::F8E4M3, Reduction::Sum, version(9, 0)).unwrap_err();
        assert_eq!(error.to_string(), "no switch does sum of f8e4m3; of f8e4m3 it does nothing");
        let error = check_multimem(DType::F32, Reduction::Sum, version(8, 9)).unwrap_err();
        assert!(error.to_string().contains("8.9") && error.to_string().contains("9.0"), "{error}");
    }
}
