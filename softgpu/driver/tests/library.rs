//! The shared library, as programs open it: several copies in one process, and functions by their names.

#![allow(
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    reason = "the tests are the caller that the functions ask for"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;

use libloading::{Library, Symbol};

/// A copy of the library that Cargo has built beside this test.
fn copy(directory: &std::path::Path, name: &str) -> Library {
    let built = std::env::current_exe().unwrap().with_file_name("libsoftcuda.so");
    let path = directory.join(name);
    std::fs::copy(&built, &path).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
    unsafe { Library::new(&path) }.unwrap()
}

fn directory() -> PathBuf {
    let path = std::env::temp_dir().join(format!("softcuda-library-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

unsafe fn call<'a, F>(library: &'a Library, name: &str) -> Symbol<'a, F> {
    unsafe { library.get(name.as_bytes()) }.unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn copies_of_the_library_are_drivers_of_their_own() {
    let directory = directory();
    let copies = [copy(&directory, "first.so"), copy(&directory, "second.so")];
    let count = |library: &Library| unsafe {
        let mut count = 0;
        let code = call::<unsafe extern "C" fn(*mut c_int) -> c_int>(library, "cuDeviceGetCount")(&mut count);
        (code, count)
    };
    for (library, devices) in copies.iter().zip([3, 5]) {
        let text = format!("devices = {devices}");
        unsafe {
            let configure: Symbol<unsafe extern "C" fn(*const u8, usize) -> c_int> = call(library, "softgpu_configure");
            assert_eq!(configure(text.as_ptr(), text.len()), 0);
        }
        assert_eq!(count(library), (3, 0), "before cuInit");
    }
    for library in &copies {
        unsafe { assert_eq!(call::<unsafe extern "C" fn(u32) -> c_int>(library, "cuInit")(0), 0) };
    }
    assert_eq!(copies.each_ref().map(count), [(0, 3), (0, 5)]);
    // What one makes current is nothing to the other.
    let (mut context, mut current) = (0usize, 1usize);
    unsafe {
        let retain = call::<unsafe extern "C" fn(*mut usize, c_int) -> c_int>(&copies[0], "cuDevicePrimaryCtxRetain");
        assert_eq!(retain(&mut context, 0), 0);
        assert_eq!(call::<unsafe extern "C" fn(usize) -> c_int>(&copies[0], "cuCtxSetCurrent")(context), 0);
        let get = call::<unsafe extern "C" fn(*mut usize) -> c_int>(&copies[1], "cuCtxGetCurrent");
        assert_eq!(get(&mut current), 0);
        assert_eq!(current, 0);
        assert_eq!(call::<unsafe extern "C" fn(usize) -> c_int>(&copies[1], "cuCtxSetCurrent")(context), 201);
    }
    let _ = std::fs::remove_dir_all(directory);
}

#[test]
fn functions_are_found_by_the_names_of_the_header() {
    let directory = directory().with_extension("names");
    std::fs::create_dir_all(&directory).unwrap();
    let library = copy(&directory, "libcuda.so.1");
    type Get = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;
    let find = |name: &CStr, version: c_int| unsafe {
        let (mut function, mut status) = (std::ptr::null_mut(), -1);
        let code = call::<Get>(&library, "cuGetProcAddress_v2")(name.as_ptr(), &mut function, version, 0, &mut status);
        (code, function, status)
    };
    let symbol = |name: &str| unsafe { *call::<*mut c_void>(&library, name) };
    for (name, exported) in [
        (c"cuMemAlloc", "cuMemAlloc_v2"),
        (c"cuLaunchKernel", "cuLaunchKernel"),
        (c"cuGraphInstantiate", "cuGraphInstantiateWithFlags"),
        (c"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v2"),
        (c"cuGetProcAddress", "cuGetProcAddress_v2"),
    ] {
        assert_eq!(find(name, 12080), (0, symbol(exported), 0), "{name:?}");
    }
    assert_eq!(find(c"cuNoSuchFunction", 12080), (0, std::ptr::null_mut(), 1));
    let _ = std::fs::remove_dir_all(directory);
}
