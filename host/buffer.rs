//! What callers hand in: memory that holds elements.

use crate::dtype::Element;

/// Memory that can be read as elements.
///
/// # Safety
/// `as_ptr` is valid for reading `len` initialised elements, aligned for them, for as long as the buffer is borrowed, and
/// stays the same for as long. (So it is while an asynchronous call owns the buffer, which neither moves then nor is used.)
///
/// Both are asked by the thread that makes the call, before anybody else hears of it: a panic there is that thread's own, and
/// the call has not been made.
pub unsafe trait Buffer {
    /// What it holds.
    type Element: Element;
    /// The address of the first element.
    fn as_ptr(&self) -> *const Self::Element;
    /// How many elements.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Where it lies. What is not the host's may only be given to communicators whose devices reach it.
    fn memory(&self) -> Memory {
        Memory::Host
    }
}

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Memory {
    /// In memory of the host.
    Host,
    /// In memory that a CUDA device reaches.
    Cuda {
        /// The device, as the driver counts.
        device: usize,
        /// Whether the peers reach it too, so that they may read and write it in place.
        exposed: bool,
    },
    /// In memory of a CUDA context, as another library makes it. A rank reaches it if the context is the one in which it runs: the
    /// primary one of its device. Its peers do not.
    CudaContext {
        /// The device, as the driver counts.
        device: usize,
        /// The `CUcontext`, as a number; 0 where the memory belongs to none of the device's contexts, as that of a pool does.
        context: usize,
    },
    /// Nobody knows: the CUDA driver, asked about the memory, gave an error. No call takes it.
    Unknown {
        /// The driver's error code.
        code: u32,
    },
}

/// Memory that can be written as elements.
///
/// # Safety
/// As [`Buffer`], for writing too.
pub unsafe trait BufferMut: Buffer {
    /// The address of the first element.
    fn as_mut_ptr(&mut self) -> *mut Self::Element;
}

macro_rules! buffer {
    ({ $($generics:tt)* } $type:ty) => {
        // SAFETY: it is, or dereferences to, a slice, which does not move while it is borrowed.
        unsafe impl<T: Element, $($generics)*> Buffer for $type {
            type Element = T;

            fn as_ptr(&self) -> *const T {
                <[T]>::as_ptr(self)
            }

            fn len(&self) -> usize {
                <[T]>::len(self)
            }
        }

        // SAFETY: as above, borrowed for writing.
        unsafe impl<T: Element, $($generics)*> BufferMut for $type {
            fn as_mut_ptr(&mut self) -> *mut T {
                <[T]>::as_mut_ptr(self)
            }
        }
    };
}

buffer!({}[T]);
buffer!({} Vec<T>);
buffer!({} Box<[T]>);
buffer!({ const N: usize } [T; N]);
