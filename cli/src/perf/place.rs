//! Where ranks run: on threads of this process, or on CUDA devices; and their buffers, where their calls take them.
//!
//! A device is opened here and nowhere else in this command.

use super::PerfArgs;
use crate::failure::Failure;
use crate::guarded::Guarded;
use crate::inputs::Number;
use crate::size::format_size;
use std::ops::{Deref, DerefMut};
use tutti::cuda::{Device, DeviceBuffer, DeviceSlice, Driver};
use tutti::plan::MAX_RANK_COUNT;
use tutti::{Communicator, Options};

/// What runs ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    Cpu,
    Cuda,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Cpu => "cpu",
            Kind::Cuda => "cuda",
        }
    }
}

/// What runs each rank.
#[derive(Debug)]
pub(super) enum Place {
    /// So many threads.
    Cpu(usize),
    Cuda(Gpus),
}

/// CUDA devices, as the ranks share them.
#[derive(Debug)]
pub(super) struct Gpus {
    /// By rank.
    devices: Vec<Device>,
    /// The CUDA version that the driver supports.
    pub(super) cuda_version: String,
    pub(super) ranks_per_gpu: usize,
}

impl Place {
    /// The place that the command line asks for, and as many ranks.
    pub(super) fn open(args: &PerfArgs) -> Result<Place, Failure> {
        match args.device {
            Kind::Cpu => {
                const RANKS: usize = 2;
                for (flag, is_given) in [("--ranks-per-gpu", args.ranks_per_gpu.is_some()), ("-G", args.graph > 0)] {
                    if is_given {
                        return Err(Failure::Usage(format!("{flag} goes with --device cuda")));
                    }
                }
                rank_count(args, RANKS).map(Place::Cpu)
            }
            Kind::Cuda => Gpus::open(args).map(Place::Cuda),
        }
    }

    pub(super) fn rank_count(&self) -> usize {
        match self {
            Place::Cpu(count) => *count,
            Place::Cuda(gpus) => gpus.devices.len(),
        }
    }

    /// The devices, if that is where ranks run.
    pub(super) fn gpus(&self) -> Option<&Gpus> {
        match self {
            Place::Cpu(_) => None,
            Place::Cuda(gpus) => Some(gpus),
        }
    }

    pub(super) fn communicators(&self, options: Options) -> Result<Vec<Communicator>, Failure> {
        match self {
            Place::Cpu(count) => Ok(tutti::local_with(*count, options)?),
            Place::Cuda(gpus) => Ok(tutti::cuda::local_with(&gpus.devices, options)?),
        }
    }
}

/// The number of ranks that the command line asks for, or `default` as nccl-tests counts devices: for all threads together.
fn rank_count(args: &PerfArgs, default: usize) -> Result<usize, Failure> {
    let threads = args.threads as usize;
    let ranks = args.ranks.unwrap_or(if args.device == Kind::Cpu { default } else { (default / threads).max(1) });
    let count = ranks * threads;
    if count > MAX_RANK_COUNT {
        return Err(Failure::Usage(format!(
            "-t {threads} -g {ranks}: expected 1 to {MAX_RANK_COUNT} ranks, got {count}"
        )));
    }
    Ok(count)
}

impl Gpus {
    fn open(args: &PerfArgs) -> Result<Gpus, Failure> {
        if args.graph > 0 && args.warmup_iterations == 0 {
            return Err(Failure::Usage(
                "-G goes with a warm-up iteration (-w 1): what it prepares cannot be captured".to_owned(),
            ));
        }
        if args.graph > 0 && args.switches.per_iteration {
            return Err(Failure::Usage("-I 1 does not go with -G: a graph is timed as a whole".to_owned()));
        }
        let driver = Driver::open()?;
        let gpu_count = driver.device_count()?;
        if gpu_count == 0 {
            return Err(Failure::Failed("there are no GPUs, says the CUDA driver".to_owned()));
        }
        // Sooner than a kernel is looked for.
        tutti::ptx::images().map_err(|reason| Failure::Failed(reason.to_string()))?;
        let ranks_per_gpu = args.ranks_per_gpu.unwrap_or(1) as usize;
        let rank_count = rank_count(args, gpu_count.saturating_mul(ranks_per_gpu).min(MAX_RANK_COUNT))?;
        if rank_count > gpu_count.saturating_mul(ranks_per_gpu) {
            return Err(Failure::Usage(too_many(rank_count, gpu_count, ranks_per_gpu)));
        }
        let used = rank_count.div_ceil(ranks_per_gpu);
        let opened = (0..used).map(|gpu| driver.device(gpu)).collect::<tutti::Result<Vec<Device>>>()?;
        Ok(Gpus {
            devices: (0..rank_count).map(|rank| opened[rank / ranks_per_gpu].clone()).collect(),
            cuda_version: driver.version()?.to_string(),
            ranks_per_gpu,
        })
    }

    /// By rank.
    pub(super) fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// What the buffers of each rank leave of its device's memory, for each rank on it; refuses what does not fit.
    pub(super) fn bytes_left(&self, rank_bytes: u64) -> Result<u64, Failure> {
        let mut left = u64::MAX;
        for ranks in self.devices.chunk_by(|one, other| one == other) {
            let (device, count) = (&ranks[0], ranks.len() as u64);
            let (needed, there) = (rank_bytes.saturating_mul(count), device.memory_bytes()?);
            if needed > there {
                return Err(Failure::Failed(format!(
                    "the buffers of {count} rank{} need {}, and GPU {} has {}: choose a smaller -e or --ranks-per-gpu",
                    if count == 1 { "" } else { "s" },
                    format_size(needed),
                    device.ordinal(),
                    format_size(there),
                )));
            }
            left = left.min((there - needed) / count);
        }
        Ok(left)
    }
}

fn too_many(rank_count: usize, gpu_count: usize, ranks_per_gpu: usize) -> String {
    let gpus = if gpu_count == 1 { "there is 1 GPU".to_owned() } else { format!("there are {gpu_count} GPUs") };
    let each = if ranks_per_gpu == 1 { "one rank each".to_owned() } else { format!("{ranks_per_gpu} ranks each") };
    let enough = rank_count.div_ceil(gpu_count);
    format!(
        "{gpus}, for {each}, and {rank_count} ranks are too many; --ranks-per-gpu {enough} lets that many share a GPU"
    )
}

/// A buffer between guard bands, where a rank's calls take it: in memory of the host or, for a rank on a device, in the device's.
/// What this dereferences to is the host's copy then.
pub(super) struct Buffer<T: Number> {
    host: Guarded<T>,
    /// As long as the whole.
    device: Option<DeviceBuffer<T>>,
}

impl<T: Number> Buffer<T> {
    /// A buffer of `count` zeros, `unalign` elements off a cache line's start.
    pub(super) fn new(communicator: &Communicator, count: usize, unalign: usize) -> Result<Buffer<T>, Failure> {
        if communicator.device().is_none() {
            return Ok(Buffer { host: Guarded::new(count, unalign)?, device: None });
        }
        let host = Guarded::to_be_copied(count, unalign)?;
        let device = communicator.alloc(host.whole().len())?;
        Ok(Buffer { host, device: Some(device) })
    }

    /// Brings what was written here to the device, if there is one.
    pub(super) fn upload(&mut self) -> Result<(), Failure> {
        match &mut self.device {
            Some(device) => Ok(device.write(self.host.whole())?),
            None => Ok(()),
        }
    }

    /// Brings what calls have written back here, if it is elsewhere.
    pub(super) fn download(&mut self) -> Result<(), Failure> {
        match &self.device {
            Some(device) => Ok(device.read(self.host.whole_mut())?),
            None => Ok(()),
        }
    }

    /// The buffer on the device, if there is one.
    pub(super) fn on_device(&mut self) -> Option<DeviceSlice<'_, T>> {
        let range = self.host.range();
        self.device.as_mut().map(|device| device.slice(range))
    }

    /// How many guard elements have changed, as of the last download.
    pub(super) fn count_overwritten(&self) -> u64 {
        self.host.count_overwritten()
    }
}

impl<T: Number> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.host
    }
}

impl<T: Number> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.host
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_for_too_many_ranks_is_told_how_many_gpus_there_are_and_what_would_do() {
        assert_eq!(
            too_many(4, 1, 1),
            "there is 1 GPU, for one rank each, and 4 ranks are too many; --ranks-per-gpu 4 lets that many share a GPU"
        );
        assert_eq!(
            too_many(9, 2, 3),
            "there are 2 GPUs, for 3 ranks each, and 9 ranks are too many; --ranks-per-gpu 5 lets that many share a GPU"
        );
    }
}
