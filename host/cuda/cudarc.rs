//! Memory and streams of the crate [`cudarc`]: the feature `cudarc`.
//!
//! cudarc remembers, for each slice of memory, what has been queued last that reads it and that writes it, lets streams wait for that,
//! and wants to be told of what others queue. So there are two ways to pass its memory:
//!
//! - To calls that are queued on one of cudarc's streams, by [`Device::cudarc_stream`]: as an [`Input`] or an [`Output`] for that
//!   stream, from [`LentStream::input`] and [`LentStream::output`]. The stream waits for what the slice has to wait for; dropped once
//!   the call is queued, the input or output tells the slice, so that whatever cudarc queues with it later waits for the call.
//! - To calls that are waited for: a [`CudaSlice`], [`CudaView`] or [`CudaViewMut`] as it is. The calling thread waits for what is
//!   queued for it on any stream, and then makes the call. (Such a wait ends a capture. Nothing is remembered here, so for what is queued
//!   this is right only if nobody uses the memory until the call is done.)
//!
//! Elements are those of [`Element`], all of which cudarc knows.
//!
//! What is assumed:
//!
//! - **The primary context.** Ranks run in the primary context of their device, as what `CudaContext::new` makes. Memory and streams of
//!   any other context are refused.
//! - **One driver.** cudarc opens `libcuda.so`, or links it. A [`Driver`](super::Driver) that was opened from another file has
//!   other contexts, so everything of cudarc's is refused.
//! - **Errors.** cudarc notes what fails where it cannot return an error; what is noted when memory is passed is this call's error.
//!
//! Peers do not read or write such memory in place.

use std::marker::PhantomData;
use std::sync::Arc;

use ::cudarc::driver::{CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut};
use ::cudarc::driver::{DevicePtr, DevicePtrMut, DriverError, SyncOnDrop};

use super::lent::{LentStream, not_primary};
use crate::buffer::{Buffer, BufferMut, Memory};
use crate::device::cuda::Device;
use crate::dtype::Element;
use crate::error::{Error, Result};

/// What stands for the default stream that each thread has of its own.
const PER_THREAD_STREAM: usize = 2;

impl Device {
    /// A stream of cudarc's, to queue calls on: `communicator.on(&device.cudarc_stream(&stream)?).all_reduce(…)`.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the stream is of another device, or of a context that is not the device's primary one, or the one that
    /// each thread has of its own.
    pub fn cudarc_stream<'a>(&self, stream: &'a CudaStream) -> Result<LentStream<'a, CudaStream>> {
        let context = stream.context();
        if context.cu_ctx().addr() != self.context().addr() {
            return Err(not_primary("cudarc_stream", self, Some(context.ordinal())));
        }
        if stream.cu_stream().addr() == PER_THREAD_STREAM {
            return Err(Error::Argument {
                call: "cudarc_stream",
                what: "stream",
                expected: "a stream that is the same for every thread".to_owned(),
                came: "the default stream that each thread has of its own".to_owned(),
            });
        }
        // SAFETY: it is the stream's handle; its context has just been compared.
        Ok(unsafe { LentStream::new(self, stream.cu_stream().cast(), stream) })
    }
}

impl LentStream<'_, CudaStream> {
    /// Memory that a call reads which is queued on this stream next. From here on the stream waits for what writes it.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if it is of another context than the stream; [`Error::Cuda`] if the stream cannot wait, or something has
    /// failed before of which cudarc could tell nobody.
    pub fn input<'b, T: Element>(&'b self, slice: &'b impl Slice<T>) -> Result<Input<'b, T>> {
        let memory = self.place("input", slice.stream().context())?;
        let (address, recorded) = slice.device_ptr(self.lender());
        self.settled("waiting for what writes a slice of cudarc's")?;
        Ok(Input { address, count: slice.len(), memory, _recorded: recorded, elements: PhantomData })
    }

    /// Memory that a call writes, or reads and writes, which is queued on this stream next. From here on the stream waits for what
    /// reads or writes it.
    ///
    /// # Errors
    ///
    /// As [`LentStream::input`].
    pub fn output<'b, T: Element>(&'b self, slice: &'b mut impl SliceMut<T>) -> Result<Output<'b, T>> {
        let memory = self.place("output", slice.stream().context())?;
        let count = slice.len();
        let (address, recorded) = slice.device_ptr_mut(self.lender());
        self.settled("waiting for what uses a slice of cudarc's")?;
        Ok(Output { address, count, memory, _recorded: recorded, elements: PhantomData })
    }

    /// Where memory of this context lies.
    fn place(&self, call: &'static str, context: &CudaContext) -> Result<Memory> {
        let own = self.lender().context();
        if context.cu_ctx() != own.cu_ctx() {
            let expected = format!("memory of the stream's context, of device {}", own.ordinal());
            let came = format!("memory of another context, of device {}", context.ordinal());
            return Err(Error::Argument { call, what: "slice", expected, came });
        }
        Ok(Memory::CudaContext { device: context.ordinal(), context: context.cu_ctx().addr() })
    }

    /// What cudarc has noted, as an error.
    fn settled(&self, doing: &'static str) -> Result<()> {
        let Err(DriverError(code)) = self.lender().context().check_err() else { return Ok(()) };
        let checked = self.device().functions().check("cuStreamWaitEvent", code as u32);
        checked.map_err(|failure| failure.during(doing))
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Memory of cudarc's that calls read: a [`CudaSlice`], a [`CudaView`] or a [`CudaViewMut`].
pub trait Slice<T>: DevicePtr<T> + sealed::Sealed {}

/// Memory of cudarc's that calls write: a [`CudaSlice`] or a [`CudaViewMut`].
pub trait SliceMut<T>: Slice<T> + DevicePtrMut<T> {}

/// Memory of cudarc's that a call reads, for one stream; see [`LentStream::input`].
#[derive(Debug)]
pub struct Input<'a, T> {
    address: u64,
    count: usize,
    memory: Memory,
    /// Tells the slice when it goes.
    _recorded: SyncOnDrop<'a>,
    elements: PhantomData<&'a [T]>,
}

/// Memory of cudarc's that a call writes, for one stream; see [`LentStream::output`].
#[derive(Debug)]
pub struct Output<'a, T> {
    address: u64,
    count: usize,
    memory: Memory,
    /// Tells the slice when it goes.
    _recorded: SyncOnDrop<'a>,
    elements: PhantomData<&'a mut [T]>,
}

macro_rules! for_a_stream {
    ($buffer:ident) => {
        // SAFETY: the address is that of a slice of cudarc's, which is borrowed and so stays; any bits of an element are some number.
        unsafe impl<T: Element> Buffer for $buffer<'_, T> {
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
    };
}

for_a_stream!(Input);
for_a_stream!(Output);

// SAFETY: as above, borrowed for writing.
unsafe impl<T: Element> BufferMut for Output<'_, T> {
    fn as_mut_ptr(&mut self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

/// The address of a slice, once nothing that is queued writes it any more. What fails cudarc notes, and [`place`] says.
fn settled<T>(slice: &impl Slice<T>) -> u64 {
    let stream = slice.stream();
    let (address, recorded) = slice.device_ptr(stream);
    drop(recorded);
    stream.context().record_err(stream.synchronize());
    address
}

/// The address of a slice, once nothing that is queued uses it any more. What fails cudarc notes, and [`place`] says.
fn settled_mut<T>(slice: &mut impl SliceMut<T>) -> u64 {
    let stream = Arc::clone(slice.stream());
    let (address, recorded) = slice.device_ptr_mut(&stream);
    drop(recorded);
    stream.context().record_err(stream.synchronize());
    address
}

/// Where memory of this context lies, unless something failed.
fn place(context: &CudaContext) -> Memory {
    match context.check_err() {
        Ok(()) => Memory::CudaContext { device: context.ordinal(), context: context.cu_ctx().addr() },
        Err(DriverError(code)) => Memory::Unknown { code: code as u32 },
    }
}

macro_rules! as_it_is {
    ($buffer:ty) => {
        impl<T> sealed::Sealed for $buffer {}

        impl<T> Slice<T> for $buffer {}

        // SAFETY: cudarc's memory lies where it says, is aligned for its elements, any bits of which are some number, and stays while
        // the slice is borrowed.
        unsafe impl<T: Element> Buffer for $buffer {
            type Element = T;

            fn as_ptr(&self) -> *const T {
                std::ptr::with_exposed_provenance(settled(self) as usize)
            }

            fn len(&self) -> usize {
                ::cudarc::driver::DeviceSlice::len(self)
            }

            fn memory(&self) -> Memory {
                place(::cudarc::driver::DeviceSlice::stream(self).context())
            }
        }
    };
}

as_it_is!(CudaSlice<T>);
as_it_is!(CudaView<'_, T>);
as_it_is!(CudaViewMut<'_, T>);

macro_rules! as_it_is_mut {
    ($buffer:ty) => {
        impl<T> SliceMut<T> for $buffer {}

        // SAFETY: as above; nobody else has the slice while it is borrowed for writing.
        unsafe impl<T: Element> BufferMut for $buffer {
            fn as_mut_ptr(&mut self) -> *mut T {
                std::ptr::with_exposed_provenance_mut(settled_mut(self) as usize)
            }
        }
    };
}

as_it_is_mut!(CudaSlice<T>);
as_it_is_mut!(CudaViewMut<'_, T>);
