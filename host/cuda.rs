//! Ranks on CUDA devices.
//!
//! [`local`] gives communicators whose ranks are threads of this process, each with a device of its own or several on one. They are
//! [`Communicator`]s like any other: the same plans, run by the PTX of this build, with the same results to the last bit. What
//! differs is where buffers lie and when calls return:
//!
//! - The methods of [`Communicator`] take buffers of the host as well as of the device ([`DeviceBuffer`], or any memory as a
//!   [`DeviceSlice`]) and return when the result is there. Buffers of the host are copied to memory that the device reaches.
//! - [`Communicator::on`] queues calls on a [`Stream`] instead, behind what is queued there. They take buffers of the device and
//!   return at once with a [`Handle`]; they may be captured into a graph, and replayed.
//!
//! The first call with an element type, a reduction or a size loads code and finds memory, for all ranks. A driver may let that wait
//! until a device is idle; so who wants calls of several communicators to overlap makes each of them once before.
//!
//! Where all peers reach a buffer (memory from [`Communicator::alloc`]), plans read and write it in place; and where a switch reduces
//! (NVSwitch of the third generation and later), large ones leave the work to it. Its order of reduction is its own: floats may then
//! come out with other bits than by any other way, if the same on all ranks. Who wants none of that asks for another
//! [algorithm](crate::Algorithm).
//!
//! Memory and streams that the crates `cust` and `cudarc` made are taken too, with the features of these names; see the modules.
//!
//! Only the driver is needed, when a device is opened; nothing here is linked against CUDA (but by the feature
//! `cust`).

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::{Buffer, BufferMut, Memory};
use crate::calls::CallBuilder;
use crate::communicator::Communicator;
use crate::core::cuda::Flight;
use crate::device::cuda::symmetric::SymmetricMemory;
use crate::device::cuda::{DeviceMemory, Failure};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::plan::MAX_RANK_COUNT;

pub use crate::device::cuda::{Device, Driver, Graph, Path, Paths, Stream};

#[cfg(feature = "cudarc")]
pub mod cudarc;
#[cfg(feature = "cust")]
pub mod cust;
#[cfg(any(feature = "cudarc", feature = "cust"))]
mod lent;
mod trial;

#[cfg(any(feature = "cudarc", feature = "cust"))]
pub use lent::LentStream;

/// Communicators whose ranks run on these devices, one rank for each entry; a device may stand there several times.
///
/// # Errors
///
/// [`Error::Argument`] if there are no devices, or more ranks than [`MAX_RANK_COUNT`]; [`Error::Cuda`] if the driver refuses
/// something.
pub fn local(devices: &[Device]) -> Result<Vec<Communicator>> {
    local_with(devices, Options::default())
}

/// [`local`] with settings.
///
/// # Errors
///
/// As [`local`], and if a setting is out of range.
pub fn local_with(devices: &[Device], options: Options) -> Result<Vec<Communicator>> {
    if !(1..=MAX_RANK_COUNT).contains(&devices.len()) {
        return Err(Error::Argument {
            call: "local",
            what: "rank_count",
            expected: format!("from 1 to {MAX_RANK_COUNT}"),
            came: devices.len().to_string(),
        });
    }
    crate::communicator::on_cuda(devices, &paths(devices)?, options)
}

/// How these devices reach each other. What the driver grants is tried out before it is trusted, once in a process: data goes both
/// ways at once, under flags, and is compared. A path that fails is dropped, with a warning that says what was seen, for the next
/// one: memory of the host.
///
/// # Errors
///
/// [`Error::Cuda`] if the driver fails; [`Error::NoPath`] if two devices do not reach each other at all.
pub fn paths(devices: &[Device]) -> Result<Paths> {
    let mut each: Vec<Device> = Vec::new();
    for device in devices {
        if !each.contains(device) {
            each.push(device.clone());
        }
    }
    trial::paths(each)
}

/// Elements in a device's memory, owned.
pub struct DeviceBuffer<T: Element> {
    /// Freed when this goes; shared with nobody.
    memory: Owned,
    count: usize,
    elements: PhantomData<T>,
}

/// Memory of one buffer.
enum Owned {
    /// By itself.
    Alone { memory: DeviceMemory, exposed: bool },
    /// At the same place as others of its rank's peers; they reach it too.
    Symmetric(SymmetricMemory),
}

impl Owned {
    fn device(&self) -> &Device {
        match self {
            Owned::Alone { memory, .. } => memory.device(),
            Owned::Symmetric(memory) => memory.device(),
        }
    }

    fn address(&self) -> u64 {
        match self {
            Owned::Alone { memory, .. } => memory.address(),
            Owned::Symmetric(memory) => memory.address(),
        }
    }
}

impl<T: Element> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("device", &self.memory.device().ordinal())
            .field("address", &format_args!("{:#x}", self.memory.address()))
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// Room for `count` elements in the device's memory, of which nothing is known. Peers do not read or write it in place; for
    /// that there is [`Communicator::alloc`].
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`] if there is no room.
    pub fn new(device: &Device, count: usize) -> Result<DeviceBuffer<T>> {
        let ordinal = device.ordinal();
        DeviceBuffer::with(ordinal, count, |bytes| {
            device.allocate(bytes).map(|memory| Owned::Alone { memory, exposed: false })
        })
    }

    fn with(
        ordinal: usize,
        count: usize,
        allocate: impl FnOnce(usize) -> Result<Owned, Failure>,
    ) -> Result<DeviceBuffer<T>> {
        let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let Some(bytes) = bytes else {
            return Err(Error::Argument {
                call: "alloc",
                what: "count",
                expected: "elements that an address space holds".to_owned(),
                came: count.to_string(),
            });
        };
        let memory = allocate(bytes)
            .map_err(|failure| failure.during(format_args!("allocating {bytes} bytes on device {ordinal}")))?;
        Ok(DeviceBuffer { memory, count, elements: PhantomData })
    }

    /// A copy of these elements in the device's memory.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`] if there is no room.
    pub fn holding(device: &Device, elements: &[T]) -> Result<DeviceBuffer<T>> {
        let mut buffer = DeviceBuffer::new(device, elements.len())?;
        buffer.write(elements)?;
        Ok(buffer)
    }

    /// Copies elements to the device: as many as the buffer has. Returns when they are there.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there are not as many; [`Error::Cuda`] if the copy fails.
    pub fn write(&mut self, elements: &[T]) -> Result<()> {
        check_count("write", self.count, elements.len())?;
        let device = self.memory.device();
        let copy = || {
            let stream = device.copies()?;
            // SAFETY: both are as long, and the copy is waited for.
            unsafe { stream.upload(self.memory.address(), elements.as_ptr().cast(), size_of_val(elements))? };
            stream.wait()
        };
        copy().map_err(|failure| failure.during(format_args!("copying to device {}", device.ordinal())))
    }

    /// Copies elements from the device: as many as the buffer has. Returns when they are there.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::write`].
    pub fn read(&self, elements: &mut [T]) -> Result<()> {
        check_count("read", self.count, elements.len())?;
        let device = self.memory.device();
        let bytes = size_of_val(elements);
        let mut copy = || {
            let stream = device.copies()?;
            // SAFETY: both are as long, and the copy is waited for; an element may have any bits.
            unsafe { stream.download(elements.as_mut_ptr().cast(), self.memory.address(), bytes)? };
            stream.wait()
        };
        copy().map_err(|failure| failure.during(format_args!("copying from device {}", device.ordinal())))
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The device's address of the first one.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Some of the elements.
    ///
    /// # Panics
    ///
    /// If the range is not inside the buffer, as for slices.
    pub fn slice(&mut self, range: std::ops::Range<usize>) -> DeviceSlice<'_, T> {
        assert!(range.start <= range.end && range.end <= self.count, "{range:?} of {} elements", self.count);
        DeviceSlice {
            address: self.memory.address() + (range.start * size_of::<T>()) as u64,
            count: range.len(),
            memory: self.place(),
            elements: PhantomData,
        }
    }

    fn place(&self) -> Memory {
        let exposed = !matches!(self.memory, Owned::Alone { exposed: false, .. });
        Memory::Cuda { device: self.memory.device().ordinal(), exposed }
    }
}

fn check_count(call: &'static str, expected: usize, came: usize) -> Result<()> {
    if came == expected {
        return Ok(());
    }
    let (expected, came) = (format!("{expected} elements (the buffer's)"), came.to_string());
    Err(Error::Argument { call, what: "elements", expected, came })
}

// SAFETY: the memory is the device's, as `memory` says, and lives as long as this.
unsafe impl<T: Element> Buffer for DeviceBuffer<T> {
    type Element = T;

    fn as_ptr(&self) -> *const T {
        std::ptr::with_exposed_provenance(self.memory.address() as usize)
    }

    fn len(&self) -> usize {
        self.count
    }

    fn memory(&self) -> Memory {
        self.place()
    }
}

// SAFETY: as above.
unsafe impl<T: Element> BufferMut for DeviceBuffer<T> {
    fn as_mut_ptr(&mut self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.memory.address() as usize)
    }
}

/// Elements in a device's memory, of somebody else's.
#[derive(Debug)]
pub struct DeviceSlice<'a, T: Element> {
    address: u64,
    count: usize,
    memory: Memory,
    elements: PhantomData<&'a mut T>,
}

impl<T: Element> DeviceSlice<'_, T> {
    /// `count` elements at an address of the device's. With `exposed`, peers read and write them in place: then the memory is one
    /// that every peer's device reaches, as that of `cuMemAlloc` is where the driver grants it.
    ///
    /// # Safety
    ///
    /// The memory is the device's, holds as many elements, is aligned for them, and lives as long as calls use it; nobody else uses
    /// it meanwhile.
    pub unsafe fn from_raw(device: &Device, address: u64, count: usize, exposed: bool) -> Self {
        let memory = Memory::Cuda { device: device.ordinal(), exposed };
        DeviceSlice { address, count, memory, elements: PhantomData }
    }
}

// SAFETY: whoever made it vouches for the memory.
unsafe impl<T: Element> Buffer for DeviceSlice<'_, T> {
    type Element = T;

    fn as_ptr(&self) -> *const T {
        std::ptr::with_exposed_provenance(self.address as usize)
    }

    fn len(&self) -> usize {
        self.count
    }

    fn memory(&self) -> Memory {
        self.memory
    }
}

// SAFETY: as above.
unsafe impl<T: Element> BufferMut for DeviceSlice<'_, T> {
    fn as_mut_ptr(&mut self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

impl Communicator {
    /// The CUDA device that runs this rank, if one does.
    pub fn device(&self) -> Option<Device> {
        self.cuda().map(|ranks| ranks.gpu(self.rank()).device.clone())
    }

    /// How the devices of this communicator's ranks reach each other, if CUDA devices run them.
    pub fn paths(&self) -> Option<&Paths> {
        self.cuda().map(|ranks| ranks.paths())
    }

    /// Room for `count` elements in the memory of this rank's device, of which nothing is known. Peers whose devices reach it read
    /// and write it in place, which spares copies: a call does so if all its ranks pass such buffers.
    ///
    /// A driver may let an allocation wait until the device is idle: until a call of a peer's that shares the device, and waits for this
    /// rank, gives up. So buffers are best allocated before peers make calls.
    ///
    /// Where all devices hang on a switch that reduces ([`Paths::has_switch`]) and each has one rank, buffers that all ranks allocate
    /// and drop in the same order, with the same sizes, are at the same places of all devices; calls that get the same buffers, or the same
    /// part of them (in elements that make up a multiple of 32 bytes), on all ranks can leave the work to the switch. Ranks whose
    /// buffers are at different places learn of it as of any other difference between calls.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if no CUDA device runs this rank; [`Error::Cuda`] if there is no room.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<DeviceBuffer<T>> {
        let ranks = self.cuda().ok_or_else(|| no_device("alloc"))?;
        let device = &ranks.gpu(self.rank()).device;
        DeviceBuffer::with(device.ordinal(), count, |bytes| match ranks.symmetric() {
            Some(symmetric) => symmetric.allocate(self.rank(), bytes).map(Owned::Symmetric),
            None => device.allocate(bytes).map(|memory| Owned::Alone { memory, exposed: true }),
        })
    }

    /// Calls that are queued on a stream of this rank's device: `communicator.on(&stream).all_reduce(…)`.
    pub fn on<'a>(&'a self, stream: &'a Stream) -> OnStream<'a> {
        self.call().on(stream)
    }

    /// The error that broke the communicator, if something has: also what went wrong in calls that were captured and replayed, for
    /// which there is no handle.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn check(&self) -> Result<()> {
        self.verdict().map_or(Ok(()), Err)
    }
}

fn no_device(call: &'static str) -> Error {
    let (expected, came) = ("ranks on CUDA devices".to_owned(), "ranks that a CPU runs".to_owned());
    Error::Argument { call, what: "communicator", expected, came }
}

impl<'a> CallBuilder<'a> {
    /// Queues the call on a stream, behind what is queued there, instead of waiting for it.
    pub fn on(self, stream: &'a Stream) -> OnStream<'a> {
        OnStream { call: self, stream }
    }
}

/// Calls that are queued on a stream; see [`Communicator::on`]. They return when they are queued.
///
/// The calls of one communicator run in the order in which they were issued, whatever their streams. Their buffers belong to them
/// until they are done: until the stream, or the [`Handle`], says so.
///
/// On a stream that captures, calls become part of the graph. Whoever replays it sees to it that the launches of one rank do not
/// overlap, with each other or with its other calls, and that all ranks launch the same; kernels compare what they do at each
/// replay. What fails then breaks the communicator, as [`Communicator::check`] says.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is queued without a call"]
pub struct OnStream<'a> {
    pub(crate) call: CallBuilder<'a>,
    pub(crate) stream: &'a Stream,
}

/// A call that has been queued.
///
/// Deadlines are watched whether or not anybody waits for it.
#[derive(Clone)]
pub struct Handle(pub(crate) Arc<Flight>);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Waits until the call is over: its result is in place then, and its buffers are its caller's again.
    ///
    /// # Errors
    ///
    /// See [`Error`]; where it came too late for a rank, the error names it. [`Error::Argument`] if the call was captured, and so has
    /// not been made.
    pub fn wait(&self) -> Result<()> {
        const SPINS: u32 = 1000;
        const PAUSE: Duration = Duration::from_micros(20);
        if self.0.is_captured() {
            return Err(Error::Argument {
                call: "wait",
                what: "handle",
                expected: "that of a call that has been queued".to_owned(),
                came: "one of a call that was captured: wait for the stream on which its graph is launched".to_owned(),
            });
        }
        let mut polls = 0;
        while !self.0.poll()? {
            polls += 1;
            if polls < SPINS {
                std::hint::spin_loop();
            } else {
                self.0.look(std::time::Instant::now())?;
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Whether the call is over. One that was captured never is.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn is_done(&self) -> Result<bool> {
        if self.0.is_captured() { Ok(false) } else { self.0.poll() }
    }
}
