//! The CUDA driver in software, for tests: where it is, and drivers of one's own that know nothing of each other.

#![allow(dead_code)] // each file of tests uses a part of it

use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use libloading::Library;
use tutti::cuda::{Device, Driver};

/// Where cargo leaves the library that it builds beside the tests.
pub(crate) fn library() -> PathBuf {
    let mut path = std::env::current_exe().expect("a test has a file");
    path.pop();
    path.join("libsoftcuda.so")
}

/// Tells the driver of [`library`] that allocations need not wait for kernels, before it is opened: where tests share it, those of
/// one would wait for those of another.
pub(crate) fn do_not_wait() {
    // SAFETY: loading it runs nothing but the loader.
    let library = unsafe { Library::new(library()) }.expect("the library was built with the tests");
    call(&library, b"softgpu_configure\0", "synchronising = false\n");
    // What is loaded stays so.
    std::mem::forget(library);
}

/// A driver in software that nobody else uses: a copy of the library is a driver of its own.
pub(crate) struct Software {
    pub(crate) driver: Driver,
    symbols: Library,
    path: PathBuf,
}

impl Drop for Software {
    fn drop(&mut self) {
        // What is loaded stays so.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Software {
    /// With the devices, links and faults that a topology file of `softgpu-driver` describes.
    pub(crate) fn new(topology: &str) -> Software {
        static COPIES: AtomicUsize = AtomicUsize::new(0);
        let copy = COPIES.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("libsoftcuda-{}-{copy}.so", std::process::id()));
        std::fs::copy(library(), &path).expect("the library was built with the tests");
        // SAFETY: loading it runs nothing but the loader.
        let library = unsafe { Library::new(&path) }.expect("it is a library");
        call(&library, b"softgpu_configure\0", topology);
        let driver = Driver::open_at(&path).expect("the driver opens");
        Software { driver, symbols: library, path }
    }

    /// What goes wrong from now on.
    pub(crate) fn inject(&self, faults: &str) {
        call(&self.symbols, b"softgpu_inject\0", faults);
    }

    /// Nothing goes wrong from now on.
    pub(crate) fn clear(&self) {
        // SAFETY: the function has this type.
        let clear = unsafe { self.symbols.get::<extern "C" fn() -> c_int>(b"softgpu_clear\0") };
        assert_eq!(clear.expect("it is there")(), 0);
    }

    pub(crate) fn device(&self, ordinal: usize) -> Device {
        self.driver.device(ordinal).expect("there is such a device")
    }

    /// The first devices.
    pub(crate) fn devices(&self, count: usize) -> Vec<Device> {
        (0..count).map(|ordinal| self.device(ordinal)).collect()
    }

    /// How often kernels of a device that have ended reached memory through a switch.
    pub(crate) fn multimem_accesses(&self, device: usize) -> u64 {
        self.statistics(device)[2]
    }

    /// Bytes of a device that are allocated.
    pub(crate) fn allocated_bytes(&self, device: usize) -> u64 {
        self.statistics(device)[5]
    }

    /// A device's numbers, in the order of the library's `SoftgpuStatistics`, and room to spare.
    fn statistics(&self, device: usize) -> [u64; 32] {
        let mut numbers = [0_u64; 32];
        // SAFETY: the function has this type.
        let statistics = unsafe {
            self.symbols
                .get::<unsafe extern "C" fn(c_int, *mut u64) -> c_int>(b"softgpu_statistics\0")
                .expect("it is there")
        };
        // SAFETY: there is room.
        assert_eq!(unsafe { statistics(device as c_int, numbers.as_mut_ptr()) }, 0);
        numbers
    }

    /// What kernels have done that they must not, so far.
    pub(crate) fn faults(&self) -> String {
        // SAFETY: the function has this type.
        let faults = unsafe {
            self.symbols
                .get::<unsafe extern "C" fn(*mut c_char, usize) -> usize>(b"softgpu_faults\0")
                .expect("it is there")
        };
        let mut text = vec![0_u8; 1 << 16];
        // SAFETY: the buffer is as long as it says.
        let length = unsafe { faults(text.as_mut_ptr().cast(), text.len()) };
        String::from_utf8_lossy(&text[..length.min(text.len())]).into_owned()
    }
}

fn call(library: &Library, name: &[u8], text: &str) {
    let text = CString::new(text).expect("there are no zeros in it");
    // SAFETY: the functions by which a text is given have this type.
    let function = unsafe { library.get::<unsafe extern "C" fn(*const c_char, usize) -> c_int>(name) };
    // SAFETY: the text is as long as it says.
    let code = unsafe { function.expect("it is there")(text.as_ptr(), text.as_bytes().len()) };
    assert_eq!(code, 0, "{text:?}");
}
