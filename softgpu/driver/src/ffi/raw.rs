//! Pointers that callers of the exported functions give: the only unsafe code besides the exports themselves.
//!
//! Whoever calls an exported function promises, as CUDA's documentation demands, that each pointer is null or points to what the
//! function says, and that memory named in a copy stays valid until the copy is done. The types here carry that promise: outside
//! of tests they arise only as arguments of exported functions.

use std::ffi::{CStr, c_char, c_void};

use softgpu::{Machine, MemoryError};

use crate::code::{Code, Result};
use crate::driver::IN_CALLBACK;
use crate::stream::HostFunction;

/// Where a function puts a result: null, or one writable value (or as many as the function says).
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Out<T> {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> From<&mut T> for Out<T> {
    fn from(target: &mut T) -> Out<T> {
        Out(target)
    }
}

impl<T> From<&mut [T]> for Out<T> {
    fn from(target: &mut [T]) -> Out<T> {
        Out(target.as_mut_ptr())
    }
}

impl<T> Out<T> {
    /// No place.
    pub const NULL: Out<T> = Out(std::ptr::null_mut());

    /// Puts a value there; null is an invalid argument.
    pub(crate) fn put(self, value: T) -> Result {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and then writable, as the module's documentation says. C's callers align what they point to; where
        // one does not, this write does not mind.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Puts a value there, if there is a place.
    pub(crate) fn put_if(self, value: T) {
        // Null was allowed.
        let _ = self.put(value);
    }

    pub(crate) fn check(self) -> Result {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    pub(crate) fn get(self) -> Option<T>
    where
        T: Copy,
    {
        // SAFETY: as for `put`; functions that read what they overwrite are told so by their callers.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    pub(crate) fn add(self, count: usize) -> Out<T> {
        Out(self.0.wrapping_add(count))
    }

    /// The same address, for what lies there really.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

impl Out<c_char> {
    /// Puts text there, of which with its NUL at most `capacity` bytes fit.
    pub(crate) fn put_text(self, text: &[u8], capacity: usize) {
        if self.0.is_null() || capacity == 0 {
            return;
        }
        let length = text.len().min(capacity - 1);
        for (at, &byte) in text[..length].iter().chain(&[0]).enumerate() {
            self.add(at).put_if(byte as c_char);
        }
    }
}

/// What a function reads: null, or one value (or as many as the function says).
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> In<T> {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> From<&T> for In<T> {
    fn from(source: &T) -> In<T> {
        In(source)
    }
}

impl<T> From<&[T]> for In<T> {
    fn from(source: &[T]) -> In<T> {
        In(source.as_ptr())
    }
}

impl From<&CStr> for In<c_char> {
    fn from(text: &CStr) -> In<c_char> {
        In(text.as_ptr())
    }
}

impl<T> In<T> {
    /// Nothing.
    pub const NULL: In<T> = In(std::ptr::null());

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The same address, for what lies there really.
    pub fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }

    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

impl<T: Copy> In<T> {
    /// The `index`-th value.
    pub(crate) fn get(self, index: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and then readable up to what the function says, as the module's documentation says.
        Ok(unsafe { self.0.wrapping_add(index).read_unaligned() })
    }

    /// The first `count` values.
    pub(crate) fn all(self, count: usize) -> Result<Vec<T>> {
        (0..count).map(|index| self.get(index)).collect()
    }
}

impl In<c_char> {
    /// The bytes up to the NUL.
    pub(crate) fn text<'a>(self) -> Result<&'a CStr> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and then a NUL-terminated text, which the callers of exported functions keep during the call.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}

/// Memory of the host that a copy names, or that is registered.
#[derive(Clone, Copy)]
pub(crate) struct HostRange {
    address: u64,
    bytes: u64,
}

impl HostRange {
    pub(crate) fn new(address: u64, bytes: u64) -> HostRange {
        HostRange { address, bytes }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes its bytes.
    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes as usize);
        let from = std::ptr::with_exposed_provenance::<u8>(self.address as usize);
        // SAFETY: the range is readable as long as its copy is under way, as the module's documentation says; the vector has room
        // for as many bytes, and all of them are written before its length says so.
        unsafe {
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), self.bytes as usize);
            bytes.set_len(self.bytes as usize);
        }
        bytes
    }

    /// Writes as many of its bytes as are given.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.address as usize);
        // SAFETY: the range is writable as long as its copy is under way, and nobody else touches it meanwhile, as the module's
        // documentation says; the bytes are the driver's own.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len().min(self.bytes as usize)) };
    }

    /// Makes it usable by kernels.
    pub(crate) fn register(&self, machine: &Machine) -> std::result::Result<(), MemoryError> {
        let base = std::ptr::with_exposed_provenance_mut::<u8>(self.address as usize);
        // SAFETY: the caller of `cuMemHostRegister` keeps the memory until he has called `cuMemHostUnregister`, which waits for
        // kernels, and talks with running kernels as one talks with a device: by volatile or atomic accesses.
        unsafe { machine.register(base, self.bytes) }
    }
}

/// Calls a callback, during which the thread may not call the driver.
pub(crate) fn call(callback: &HostFunction) {
    IN_CALLBACK.set(true);
    let data = std::ptr::with_exposed_provenance_mut::<c_void>(callback.data);
    // SAFETY: the caller of `cuLaunchHostFunc` gave a function of this type and what it may be called with.
    unsafe { (callback.function)(data) };
    IN_CALLBACK.set(false);
}
