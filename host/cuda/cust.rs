//! Memory and streams of the crate [`cust`]: the feature `cust`.
//!
//! - A [`DeviceBuffer`] or a [`DeviceSlice`] is a [`Buffer`] like tutti's own: of numbers, and of the 16-bit floats of the version of
//!   `half` that cust uses, which are the same as [`half`]'s.
//! - [`Device::cust_stream`] makes a stream of cust's one to queue calls on.
//!
//! What is assumed:
//!
//! - **The primary context.** Ranks run in the primary context of their device, which is what `cust::context::Context::new` and
//!   `cust::quick_init` retain. Memory and streams of any other context, such as those of `cust::context::legacy`, are refused.
//! - **One driver.** cust is linked with `libcuda.so.1`. A [`Driver`](super::Driver) that was opened from another file has other
//!   contexts, so everything of cust's is refused.
//! - **The default stream.** cust's copies use it, and it waits for cust's streams, as these do for it. So a copy on a device may wait
//!   for a call that is queued there on a stream of cust's; if that is the call of one rank and the copy comes before the call of
//!   another one, in the same device, both wait until a deadline passes. Copy before the first of them calls, or give each its device.
//! - **Slices.** cust lets a [`DeviceSlice`] be copied, and outlive the buffer that it is of. Whoever passes one sees to it that the
//!   memory is there, and that nobody else uses it meanwhile.
//!
//! Peers do not read or write such memory in place.

use std::ffi::{c_int, c_void};

use ::cust::memory::{DeviceBuffer, DeviceCopy, DeviceSlice};
use ::cust::stream::Stream;
use ::cust::sys;

use super::lent::{LentStream, not_primary};
use crate::buffer::{Buffer, BufferMut, Memory};
use crate::device::cuda::Device;
use crate::dtype::Element;
use crate::error::Result;

impl Device {
    /// A stream of cust's, to queue calls on: `communicator.on(&device.cust_stream(&stream)?).all_reduce(…)`.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if the stream is of another device, or of a context that is not the device's primary
    /// one; [`Error::Cuda`](crate::Error::Cuda) if the driver does not know the stream's context.
    pub fn cust_stream<'a>(&self, stream: &'a Stream) -> Result<LentStream<'a, Stream>> {
        let mut context = std::ptr::null_mut();
        self.with(|functions| {
            // SAFETY: the stream is alive; the driver writes one handle.
            let code = unsafe { sys::cuStreamGetCtx(stream.as_inner(), &raw mut context) };
            functions.check("cuStreamGetCtx", code as u32)
        })
        .map_err(|failure| failure.during("asking a stream of cust's for its context"))?;
        if context.addr() != self.context().addr() {
            return Err(not_primary("cust_stream", self, device_of(context)));
        }
        // SAFETY: it is the stream's handle; its context has just been compared.
        Ok(unsafe { LentStream::new(self, stream.as_inner().cast(), stream) })
    }
}

/// The device of a context, if the driver says.
fn device_of(context: sys::CUcontext) -> Option<usize> {
    let (mut device, mut popped) = (0, std::ptr::null_mut());
    // SAFETY: a stream that is alive has this context; the driver writes one number and one handle.
    unsafe {
        if sys::cuCtxPushCurrent_v2(context) != sys::CUresult::CUDA_SUCCESS {
            return None;
        }
        let code = sys::cuCtxGetDevice(&raw mut device);
        let _ = sys::cuCtxPopCurrent_v2(&raw mut popped);
        if code == sys::CUresult::CUDA_SUCCESS { usize::try_from(device).ok() } else { None }
    }
}

/// Where memory of cust's lies.
fn place<T: DeviceCopy>(slice: &DeviceSlice<T>) -> Memory {
    use sys::CUpointer_attribute::{CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    let (mut context, mut device): (sys::CUcontext, c_int) = (std::ptr::null_mut(), -1);
    let mut attributes = [CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL];
    let mut results: [*mut c_void; 2] = [(&raw mut context).cast(), (&raw mut device).cast()];
    // SAFETY: there are two attributes, and room for what the driver writes for each: a handle and a number.
    let code = unsafe {
        sys::cuPointerGetAttributes(2, attributes.as_mut_ptr(), results.as_mut_ptr(), slice.as_device_ptr().as_raw())
    };
    match (code, usize::try_from(device)) {
        (sys::CUresult::CUDA_SUCCESS, Ok(device)) => Memory::CudaContext { device, context: context.addr() },
        // The driver has no error for memory that it does not know: it has no device.
        (sys::CUresult::CUDA_SUCCESS, Err(_)) => {
            Memory::Unknown { code: sys::CUresult::CUDA_ERROR_INVALID_VALUE as u32 }
        }
        (failed, _) => Memory::Unknown { code: failed as u32 },
    }
}

macro_rules! buffer {
    ({ $($generics:tt)* } $buffer:ident of $element:ty as $ours:ty) => {
        // SAFETY: cust's memory lies where the driver says, is aligned for its elements, any bits of which are some number, and does
        // not move. A buffer owns it; whoever keeps a slice longer than its buffer does what cust itself calls safe and is not.
        unsafe impl<$($generics)*> Buffer for $buffer<$element> {
            type Element = $ours;

            fn as_ptr(&self) -> *const $ours {
                std::ptr::with_exposed_provenance(self.as_device_ptr().as_raw() as usize)
            }

            fn len(&self) -> usize {
                DeviceSlice::len(self)
            }

            fn memory(&self) -> Memory {
                place(self)
            }
        }

        // SAFETY: as above.
        unsafe impl<$($generics)*> BufferMut for $buffer<$element> {
            fn as_mut_ptr(&mut self) -> *mut $ours {
                std::ptr::with_exposed_provenance_mut(self.as_device_ptr().as_raw() as usize)
            }
        }
    };
}

buffer!({ T: Element + DeviceCopy } DeviceBuffer of T as T);
buffer!({ T: Element + DeviceCopy } DeviceSlice of T as T);
buffer!({} DeviceBuffer of half_1::f16 as half::f16);
buffer!({} DeviceSlice of half_1::f16 as half::f16);
buffer!({} DeviceBuffer of half_1::bf16 as half::bf16);
buffer!({} DeviceSlice of half_1::bf16 as half::bf16);
