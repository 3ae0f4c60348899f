//! Calls that are wrong get the code that CUDA's documentation gives.

#![allow(
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    reason = "the tests are the caller that the functions ask for"
)]

mod common;

use std::ffi::{CString, c_char, c_int};
use std::sync::atomic::Ordering;

use common::*;

fn load_code(ptx: &str) -> i32 {
    let image = CString::new(ptx).unwrap();
    let mut module = 0;
    unsafe { cuModuleLoadData((&mut module).into(), image.as_c_str().into()) }
}

#[test]
fn without_a_current_context_nothing_works() {
    start();
    std::thread::spawn(|| {
        let mut address = 0;
        assert_eq!(unsafe { cuMemAlloc_v2((&mut address).into(), 16) }, 201);
        assert_eq!(unsafe { cuCtxSynchronize() }, 201);
        assert_eq!(unsafe { cuStreamCreate((&mut address).into(), 0) }, 201);
        assert_eq!(unsafe { cuMemFree_v2(512) }, 201);
        assert_eq!(unsafe { cuCtxPopCurrent_v2((&mut address).into()) }, 201);
        assert_eq!(load_code(KERNELS), 201);
        ok(unsafe { cuCtxGetCurrent((&mut address).into()) });
        assert_eq!(address, 0);
    })
    .join()
    .unwrap();
}

#[test]
fn contexts_are_pushed_and_popped_by_each_thread_for_itself() {
    let (first, second) = (gpu(), gpu());
    let current = || {
        let mut context = 0;
        ok(unsafe { cuCtxGetCurrent((&mut context).into()) });
        context
    };
    assert_eq!(current(), second.context);
    ok(unsafe { cuCtxPushCurrent_v2(first.context) });
    assert_eq!(current(), first.context);
    let mut popped = 0;
    ok(unsafe { cuCtxPopCurrent_v2((&mut popped).into()) });
    assert_eq!((popped, current()), (first.context, second.context));
    assert_eq!(unsafe { cuCtxSetCurrent(0xdead) }, 201);
    std::thread::spawn(move || {
        let mut device = 0;
        assert_eq!(unsafe { cuCtxGetDevice((&mut device).into()) }, 201);
    })
    .join()
    .unwrap();
}

#[test]
fn a_context_that_was_released_is_destroyed_with_all_it_had() {
    let gpu = gpu();
    let data = gpu.alloc(64);
    let stream = gpu.stream(0);
    ok(unsafe { cuDevicePrimaryCtxRelease_v2(gpu.ordinal) });
    let mut address = 0;
    assert_eq!(unsafe { cuMemAlloc_v2((&mut address).into(), 16) }, 709);
    assert_eq!(unsafe { cuCtxSetCurrent(gpu.context) }, 709);
    assert_eq!(unsafe { cuDevicePrimaryCtxRelease_v2(gpu.ordinal) }, 201);
    let mut numbers = SoftgpuStatistics::default();
    ok(unsafe { softgpu_statistics(gpu.ordinal, (&mut numbers).into()) });
    assert_eq!((numbers.allocations, numbers.allocated_bytes, numbers.streams), (0, 0, 0));
    let mut context = 0;
    ok(unsafe { cuDevicePrimaryCtxRetain((&mut context).into(), gpu.ordinal) });
    assert_eq!(context, gpu.context);
    gpu.enter();
    assert_eq!(unsafe { cuMemFree_v2(data) }, 1);
    assert_eq!(unsafe { cuStreamSynchronize(stream) }, 400);
    gpu.alloc(64);
}

#[test]
fn handles_of_another_context_are_refused() {
    let (first, second) = (gpu(), gpu());
    first.enter();
    let (stream, event, add) = (first.stream(1), event(), first.function(KERNELS, "add"));
    let module = first.load(KERNELS);
    let data = second.words(&[0; 32]);
    assert_eq!(launch(add, 1, 32, 0, &[data, 1]), 201);
    let own = second.function(KERNELS, "add");
    assert_eq!(launch(own, 1, 32, stream, &[data, 1]), 400);
    assert_eq!(unsafe { cuEventRecord(event, 0) }, 400);
    let mut function = 0;
    assert_eq!(unsafe { cuModuleGetFunction((&mut function).into(), module, c"add".into()) }, 201);
    assert_eq!(unsafe { cuModuleUnload(module) }, 201);
    // To wait across devices is allowed.
    ok(unsafe { cuStreamWaitEvent(0, event, 0) });
    ok(unsafe { cuStreamSynchronize(stream) });
    ok(unsafe { cuEventSynchronize(event) });
}

#[test]
fn handles_that_were_never_given_are_refused() {
    let gpu = gpu();
    let data = gpu.words(&[0; 32]);
    for handle in [3, 0x1234_5678_9abc, u64::MAX] {
        assert_eq!(unsafe { cuStreamSynchronize(handle) }, 400);
        assert_eq!(unsafe { cuStreamDestroy_v2(handle) }, 400);
        assert_eq!(unsafe { cuEventRecord(handle, 0) }, 400);
        assert_eq!(unsafe { cuEventDestroy_v2(handle) }, 400);
        assert_eq!(unsafe { cuModuleUnload(handle) }, 400);
        assert_eq!(launch(handle, 1, 32, 0, &[data, 1]), 400);
        assert_eq!(unsafe { cuGraphLaunch(handle, 0) }, 1);
    }
    let stream = gpu.stream(0);
    ok(unsafe { cuStreamDestroy_v2(stream) });
    assert_eq!(unsafe { cuStreamDestroy_v2(stream) }, 400);
    assert_eq!(unsafe { cuMemAlloc_v2(Out::NULL, 16) }, 1);
}

#[test]
fn pointers_are_freed_once_and_only_whole() {
    let gpu = gpu();
    let data = gpu.alloc(1024);
    assert_eq!(unsafe { cuMemFree_v2(data + 512) }, 1);
    assert_eq!(unsafe { cuMemFreeHost(data) }, 1);
    ok(unsafe { cuMemFree_v2(data) });
    assert_eq!(unsafe { cuMemFree_v2(data) }, 1);
    ok(unsafe { cuMemFree_v2(0) });
    let host = pinned(64);
    assert_eq!(unsafe { cuMemFree_v2(host) }, 1);
    ok(unsafe { cuMemFreeHost(host) });
    assert_eq!(unsafe { cuMemFreeHost(host) }, 1);
    let mut address = 0;
    assert_eq!(unsafe { cuMemAlloc_v2((&mut address).into(), 0) }, 1);
    assert_eq!(unsafe { cuMemAlloc_v2((&mut address).into(), 2 << 30) }, 2);
}

#[test]
fn copies_outside_of_an_allocation_are_refused() {
    let gpu = gpu();
    let data = gpu.words(&[0; 8]);
    let mut own = [0u32; 16];
    let host = own.as_mut_ptr() as u64;
    assert_eq!(unsafe { cuMemcpyHtoD_v2(data, host, 64) }, 1);
    assert_eq!(unsafe { cuMemcpyDtoH_v2(host, data + 4, 32) }, 1);
    assert_eq!(unsafe { cuMemcpyHtoD_v2(host, host, 4) }, 1);
    assert_eq!(unsafe { cuMemcpyDtoH_v2(data, data, 4) }, 1);
    assert_eq!(unsafe { cuMemcpyDtoH_v2(0, data, 4) }, 1);
    assert_eq!(unsafe { cuMemsetD8_v2(data, 0, 33) }, 1);
    ok(unsafe { cuMemcpyDtoH_v2(host, data, 32) });
}

#[test]
fn launches_that_no_device_takes_are_refused() {
    let gpu = gpu();
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    assert_eq!(launch(add, 1, 1025, 0, &[data, 1]), 1);
    assert_eq!(launch(add, 0, 32, 0, &[data, 1]), 1);
    assert_eq!(launch(add, 1, 0, 0, &[data, 1]), 1);
    let with_shared = |bytes| unsafe {
        let places = [In::from(&data).cast(), In::from(&1u64).cast()];
        cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, bytes, 0, In::from(&places[..]), In::NULL)
    };
    ok(with_shared(48 << 10));
    assert_eq!(with_shared((48 << 10) + 1), 1);
    ok(unsafe { cuFuncSetAttribute(add, 8, 200 << 10) });
    ok(with_shared(200 << 10));
    assert_eq!(unsafe { cuFuncSetAttribute(add, 8, 228 << 10) }, 1);
    assert_eq!(unsafe { cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, 0, In::NULL, In::NULL) }, 1);
    ok(launch(add, 1, 32, 0, &[data, 1]));
    assert_eq!(gpu.synchronise(), 0);
}

#[test]
fn the_bounds_that_a_kernel_declares_hold() {
    let gpu = gpu();
    let text = "
        .version 7.8
        .target sm_70
        .address_size 64
        .visible .entry small() .maxntid 64, 1, 1 { ret; }
        .visible .entry exact() .reqntid 32, 2, 1 { ret; }";
    let module = gpu.load(text);
    let (small, exact) = (function(module, "small"), function(module, "exact"));
    ok(launch(small, 1, 64, 0, &[]));
    assert_eq!(launch(small, 1, 65, 0, &[]), 1);
    assert_eq!(launch(exact, 1, 64, 0, &[]), 1);
    ok(unsafe { cuLaunchKernel(exact, 1, 1, 1, 32, 2, 1, 0, 0, In::NULL, In::NULL) });
    let mut most = 0;
    ok(unsafe { cuFuncGetAttribute((&mut most).into(), 0, small) });
    assert_eq!(most, 64);
}

#[test]
fn occupancy_follows_threads_and_shared_memory() {
    let gpu = gpu();
    let add = gpu.function(KERNELS, "add");
    let blocks = |threads, shared| {
        let mut blocks = -1;
        ok(unsafe { cuOccupancyMaxActiveBlocksPerMultiprocessor((&mut blocks).into(), add, threads, shared) });
        blocks
    };
    assert_eq!((blocks(32, 0), blocks(256, 0), blocks(1024, 0)), (32, 8, 2));
    assert_eq!((blocks(32, 100 << 10), blocks(32, 200 << 10), blocks(32, 230 << 10)), (2, 1, 0));
}

#[test]
fn a_cooperative_launch_must_fit_and_waits_until_it_does() {
    let gpu = gpu();
    let (meet, wait) = (gpu.function(KERNELS, "meet"), gpu.function(KERNELS, "wait_and_write"));
    let arrivals = gpu.words(&[0]);
    // Four multiprocessors, two blocks of 1024 threads on each.
    assert_eq!(launch_cooperative(meet, 9, 1024, 0, &[arrivals]), 720);
    let (stream, other) = (gpu.stream(1), gpu.stream(1));
    let (begun, go) = (pinned(4), pinned(4));
    let data = gpu.words(&[0]);
    ok(launch(wait, 1, 1, stream, &[begun, go, data, 1]));
    while flag(begun).load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    ok(launch_cooperative(meet, 8, 1024, other, &[arrivals]));
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(unsafe { cuStreamQuery(other) }, 600);
    flag(go).store(1, Ordering::Release);
    ok(unsafe { cuStreamSynchronize(other) });
    assert_eq!(get(arrivals, 1), [8]);
}

#[test]
fn a_launch_with_attributes_is_cooperative_when_it_says_so() {
    let gpu = gpu();
    let meet = gpu.function(KERNELS, "meet");
    let arrivals = gpu.words(&[0]);
    let stream = gpu.stream(1);
    let launch = |blocks: u32, attributes: &[CUlaunchAttribute]| {
        let configuration = CUlaunchConfig {
            grid: [blocks, 1, 1],
            block: [1024, 1, 1],
            shared_bytes: 0,
            stream,
            attributes: attributes.into(),
            attribute_count: attributes.len() as u32,
        };
        let places = [In::from(&arrivals).cast()];
        unsafe { cuLaunchKernelEx(In::from(&configuration), meet, In::from(&places[..]), In::NULL) }
    };
    let attribute = |id, value| {
        let mut values = [0; 16];
        values[0] = value;
        CUlaunchAttribute { id, padding: 0, value: values }
    };
    assert_eq!(launch(9, &[attribute(2, 1)]), 720);
    assert_eq!(launch(1, &[attribute(4, 2)]), 801);
    ok(launch(8, &[attribute(2, 1), attribute(8, 0)]));
    ok(unsafe { cuStreamSynchronize(stream) });
    assert_eq!(get(arrivals, 1), [8]);
}

#[test]
fn text_that_is_not_ptx_is_refused_with_a_log() {
    let gpu = gpu();
    gpu.enter();
    assert_eq!(load_code("hello"), 218);
    assert_eq!(load_code(""), 200);
    assert_eq!(load_code("\x7fELF"), 200);
    let image = CString::new(KERNELS.replace("add.u32", "frobnicate.u32")).unwrap();
    let mut log = [1 as c_char; 512];
    let options: [c_int; 3] = [7, 5, 6];
    let mut values = [4usize, log.as_mut_ptr() as usize, 512];
    let mut module = 0;
    let code = unsafe {
        let values = Out::from(&mut values[..]).cast();
        cuModuleLoadDataEx((&mut module).into(), image.as_c_str().into(), 3, In::from(&options[..]), values)
    };
    assert_eq!(code, 218);
    let said: String = log[..values[2] - 1].iter().map(|&byte| byte as u8 as char).collect();
    assert!(said.contains("frobnicate"), "{said}");
}

#[test]
fn ptx_for_other_devices_or_newer_drivers_is_refused() {
    let gpu = gpu();
    gpu.enter();
    let text = |version: &str, target: &str| KERNELS.replace("7.8", version).replace("sm_70", target);
    assert_eq!(load_code(&text("8.6", "sm_100")), 209);
    assert_eq!(load_code(&text("9.0", "sm_90")), 222);
    assert_eq!(load_code(&text("8.0", "sm_80a")), 209);
    ok(load_code(&text("8.0", "sm_90")));
    ok(load_code(&text("8.0", "sm_90a")));
    let mut function = 0;
    let module = gpu.load(KERNELS);
    assert_eq!(unsafe { cuModuleGetFunction((&mut function).into(), module, c"missing".into()) }, 500);
}

#[test]
fn a_wild_access_spoils_the_context_until_it_is_reset() {
    let gpu = gpu();
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    ok(launch(add, 2, 32, 0, &[data, 1]));
    assert_eq!(gpu.synchronise(), 700);
    let mut address = 0;
    assert_eq!(unsafe { cuMemAlloc_v2((&mut address).into(), 4) }, 700);
    assert_eq!(launch(add, 1, 32, 0, &[data, 1]), 700);
    assert_eq!(unsafe { cuStreamQuery(0) }, 700);
    let said = said_about(gpu);
    assert!(said.contains("the launch of add on device") && said.contains("failed with 700"), "{said}");
    assert!(faults().iter().any(|line| line.contains("out of bounds: kernel add, line")), "{:?}", faults());
    ok(unsafe { cuDevicePrimaryCtxReset_v2(gpu.ordinal) });
    let data = gpu.words(&[1; 32]);
    let add = gpu.function(KERNELS, "add");
    ok(launch(add, 1, 32, 0, &[data, 1]));
    assert_eq!(get(data, 32), [2; 32]);
}

#[test]
fn a_fault_ends_the_other_kernels_of_its_context() {
    let gpu = gpu();
    let (begun, go) = (pinned(4), pinned(4));
    let data = gpu.words(&[0]);
    let (wait, trap) = (gpu.function(KERNELS, "wait_and_write"), gpu.function(KERNELS, "trap_at_once"));
    let (first, second) = (gpu.stream(1), gpu.stream(1));
    ok(launch(wait, 1, 1, first, &[begun, go, data, 1]));
    while flag(begun).load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    ok(launch(trap, 1, 32, second, &[]));
    assert_eq!(unsafe { cuStreamSynchronize(first) }, 719);
    assert_eq!(flag(go).load(Ordering::Acquire), 0);
}

#[test]
fn other_faults_have_their_codes_too() {
    let misaligned = gpu();
    let data = misaligned.words(&[0; 64]);
    let add = misaligned.function(KERNELS, "add");
    ok(launch(add, 1, 32, 0, &[data + 2, 1]));
    assert_eq!(misaligned.synchronise(), 716);
    let trapped = gpu();
    let trap = trapped.function(KERNELS, "trap_at_once");
    ok(launch(trap, 1, 32, 0, &[]));
    assert_eq!(trapped.synchronise(), 719);
    let unwritten = gpu();
    let data = unwritten.alloc(128);
    let add = unwritten.function(KERNELS, "add");
    ok(launch(add, 1, 32, 0, &[data, 1]));
    assert_eq!(unwritten.synchronise(), 719);
    assert!(faults().iter().any(|line| line.starts_with("uninitialised: kernel add")), "{:?}", faults());
}

#[test]
fn a_race_between_streams_is_a_failure() {
    let gpu = gpu();
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    let (first, second) = (gpu.stream(1), gpu.stream(1));
    ok(launch(add, 1, 32, first, &[data, 1]));
    ok(launch(add, 1, 32, second, &[data, 1]));
    assert_eq!(gpu.synchronise(), 719);
    assert!(faults().iter().any(|line| line.starts_with("data race: kernel add")), "{:?}", faults());
}

#[test]
fn a_copy_that_nothing_orders_with_a_kernel_is_a_failure() {
    let gpu = gpu();
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    let (first, second) = (gpu.stream(1), gpu.stream(1));
    ok(launch(add, 1, 32, first, &[data, 1]));
    ok(unsafe { cuMemsetD8Async(data, 0, 128, second) });
    assert_eq!(gpu.synchronise(), 719);
    // With an event in between it is none.
    ok(unsafe { cuDevicePrimaryCtxReset_v2(gpu.ordinal) });
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    let (first, second, event) = (gpu.stream(1), gpu.stream(1), event());
    ok(launch(add, 1, 32, first, &[data, 1]));
    ok(unsafe { cuEventRecord(event, first) });
    ok(unsafe { cuStreamWaitEvent(second, event, 0) });
    ok(unsafe { cuMemsetD8Async(data, 0, 128, second) });
    assert_eq!(gpu.synchronise(), 0);
}

#[test]
fn calls_that_synchronise_wait_for_running_kernels() {
    let gpu = gpu();
    let stream = gpu.stream(1);
    let (begun, go) = (pinned(4), pinned(4));
    let data = gpu.words(&[0]);
    let wait = gpu.function(KERNELS, "wait_and_write");
    let free = gpu.alloc(64);
    ok(launch(wait, 1, 1, stream, &[begun, go, data, 1]));
    let freed = std::thread::spawn(move || {
        gpu.enter();
        let code = unsafe { cuMemFree_v2(free) };
        (code, std::time::Instant::now())
    });
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert!(!freed.is_finished());
    let before = std::time::Instant::now();
    flag(go).store(1, Ordering::Release);
    let (code, when) = freed.join().unwrap();
    assert!(code == 0 && when >= before);
}

#[test]
fn names_and_texts_of_codes_are_those_of_cuda() {
    let mut text: In<c_char> = In::NULL;
    ok(unsafe { cuGetErrorName(720, (&mut text).into()) });
    let read = |text: In<c_char>| unsafe { std::mem::transmute::<In<c_char>, *const c_char>(text) };
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(read(text)) }, c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE");
    ok(unsafe { cuGetErrorString(1, (&mut text).into()) });
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(read(text)) }, c"invalid argument");
    assert_eq!(unsafe { cuGetErrorString(12345, (&mut text).into()) }, 1);
}
