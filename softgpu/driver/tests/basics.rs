//! Devices, contexts, memory, streams, events and launches, as a program meets them that does everything right.

#![allow(
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    reason = "the tests are the caller that the functions ask for"
)]

mod common;

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use common::*;

#[test]
fn a_kernel_adds_to_what_was_copied_to_the_device() {
    let gpu = gpu();
    let input: Vec<u32> = (0..96).map(|index| index * 3).collect();
    let data = gpu.words(&input);
    let add = gpu.function(KERNELS, "add");
    ok(launch(add, 3, 32, 0, &[data, 1000]));
    let expected: Vec<u32> = input.iter().map(|value| value + 1000).collect();
    assert_eq!(get(data, 96), expected);
    ok(unsafe { cuMemFree_v2(data) });
}

#[test]
fn what_one_thread_waited_for_another_one_may_use() {
    let gpu = gpu();
    let data = gpu.words(&[1; 32]);
    let add = gpu.function(KERNELS, "add");
    let (stream, other) = (gpu.stream(1), gpu.stream(1));
    std::thread::spawn(move || {
        gpu.enter();
        ok(launch(add, 1, 32, stream, &[data, 1]));
        ok(unsafe { cuStreamSynchronize(stream) });
    })
    .join()
    .unwrap();
    ok(launch(add, 1, 32, other, &[data, 1]));
    ok(unsafe { cuStreamSynchronize(other) });
    assert_eq!(get(data, 32), [3; 32]);
}

#[test]
fn streams_that_come_and_go_do_not_make_it_slow() {
    let gpu = gpu();
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    let mut times = Vec::new();
    for _ in 0..1000 {
        let begin = std::time::Instant::now();
        let stream = gpu.stream(1);
        ok(launch(add, 1, 32, stream, &[data, 1]));
        ok(unsafe { cuStreamSynchronize(stream) });
        ok(unsafe { cuStreamDestroy_v2(stream) });
        times.push(begin.elapsed());
    }
    assert_eq!(get(data, 32), [1000; 32]);
    let median = |times: &[std::time::Duration]| {
        let mut times = times.to_vec();
        times.sort();
        times[times.len() / 2]
    };
    let (early, late) = (median(&times[..200]), median(&times[800..]));
    assert!(late < 5 * early, "{early:?}, later {late:?}");
}

#[test]
fn a_thousand_small_launches_take_a_moment() {
    let gpu = gpu();
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    let stream = gpu.stream(1);
    let begin = std::time::Instant::now();
    for _ in 0..500 {
        ok(launch(add, 1, 32, stream, &[data, 1]));
    }
    ok(unsafe { cuStreamSynchronize(stream) });
    let queued = begin.elapsed();
    for _ in 0..500 {
        ok(launch(add, 1, 32, stream, &[data, 1]));
        ok(unsafe { cuStreamSynchronize(stream) });
    }
    println!("queued {:?}, one by one {:?} each", queued / 500, (begin.elapsed() - queued) / 500);
    assert_eq!(get(data, 32), [1000; 32]);
}

#[test]
fn parameters_come_from_one_buffer_too() {
    let gpu = gpu();
    let data = gpu.words(&[1; 32]);
    let add = gpu.function(KERNELS, "add");
    let (buffer, bytes) = ([data, 41], 16usize);
    let extra: [usize; 5] = [1, buffer.as_ptr() as usize, 2, &raw const bytes as usize, 0];
    let extra = In::from(&extra[..]).cast::<In<c_void>>();
    ok(unsafe { cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, 0, In::NULL, extra) });
    assert_eq!(get(data, 32), [42; 32]);
}

#[test]
fn a_variable_of_a_module_has_an_address() {
    let gpu = gpu();
    let module = gpu.load(KERNELS);
    let (mut address, mut bytes) = (0, 0);
    let global = |name: &std::ffi::CStr, address: &mut u64, bytes: &mut usize| unsafe {
        cuModuleGetGlobal_v2(address.into(), bytes.into(), module, name.into())
    };
    ok(global(c"counter", &mut address, &mut bytes));
    assert_eq!(bytes, 4);
    assert_eq!(get(address, 1), [7]);
    assert_eq!(global(c"nothing", &mut address, &mut bytes), 500);
    ok(unsafe { cuModuleUnload(module) });
    let mut word = 0u32;
    assert_eq!(unsafe { cuMemcpyDtoH_v2(&raw mut word as u64, address, 4) }, 1);
}

#[test]
fn what_a_device_is_comes_from_the_topology() {
    let gpu = gpu();
    let mut name = [0 as c_char; 64];
    ok(unsafe { cuDeviceGetName((&mut name[..]).into(), 64, gpu.ordinal) });
    let length = name.iter().position(|&byte| byte == 0).unwrap();
    let name: String = name[..length].iter().map(|&byte| byte as u8 as char).collect();
    assert_eq!(name, format!("softgpu {}", gpu.ordinal));
    let attribute = |number| {
        let mut value = 0;
        ok(unsafe { cuDeviceGetAttribute((&mut value).into(), number, gpu.ordinal) });
        value
    };
    assert_eq!((attribute(75), attribute(76), attribute(16), attribute(132)), (9, 0, 4, 1));
    let mut bytes = 0;
    ok(unsafe { cuDeviceTotalMem_v2((&mut bytes).into(), gpu.ordinal) });
    assert_eq!(bytes, 1 << 30);
    let mut count = 0;
    ok(unsafe { cuDeviceGetCount((&mut count).into()) });
    assert_eq!(count, 64);
    assert_eq!(unsafe { cuDeviceGet((&mut count).into(), 64) }, 101);
    let mut uuids = [[0u8; 16]; 2];
    let [first, second] = &mut uuids;
    ok(unsafe { cuDeviceGetUuid_v2(first.into(), gpu.ordinal) });
    ok(unsafe { cuDeviceGetUuid(second.into(), (gpu.ordinal + 1) % 64) });
    assert_ne!(uuids[0], uuids[1]);
    let mut id = [0 as c_char; 16];
    ok(unsafe { cuDeviceGetPCIBusId((&mut id[..]).into(), 16, gpu.ordinal) });
    let mut found = -1;
    ok(unsafe { cuDeviceGetByPCIBusId((&mut found).into(), In::from(&id[..])) });
    assert_eq!(found, gpu.ordinal);
}

#[test]
fn kernels_of_two_streams_run_at_once() {
    let gpu = gpu();
    let (begun, go) = (pinned(8), pinned(8));
    flag(begun).store(0, Ordering::Relaxed);
    flag(go).store(0, Ordering::Relaxed);
    let data = gpu.words(&[0]);
    let wait = gpu.function(KERNELS, "wait_and_write");
    let publish = gpu.function(KERNELS, "wait_and_publish");
    let (first, second) = (gpu.stream(1), gpu.stream(1));
    // The first one waits for what the second one writes.
    let word = pinned(4);
    flag(word).store(1, Ordering::Relaxed);
    ok(launch(wait, 1, 1, first, &[begun, go, data, 5]));
    ok(launch(publish, 1, 1, second, &[begun + 4, word, go, 6]));
    ok(unsafe { cuStreamSynchronize(first) });
    ok(unsafe { cuStreamSynchronize(second) });
    assert_eq!((get(data, 1), flag(go).load(Ordering::Acquire)), (vec![5], 6));
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let gpu = gpu();
    let (begun, go) = (pinned(4), pinned(4));
    let data = gpu.words(&[0, 0]);
    let wait = gpu.function(KERNELS, "wait_and_write");
    let add = gpu.function(KERNELS, "add");
    let (blocking, free) = (gpu.stream(0), gpu.stream(1));
    ok(launch(wait, 1, 1, blocking, &[begun, go, data, 10]));
    while flag(begun).load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    ok(launch(add, 1, 1, 0, &[data, 1]));
    let other = gpu.stream(0);
    ok(launch(add, 1, 1, other, &[data, 1]));
    assert_eq!(unsafe { cuStreamQuery(0) }, 600);
    assert_eq!(unsafe { cuStreamQuery(other) }, 600);
    // One that does not block is not held up.
    ok(launch(add, 1, 1, free, &[data + 4, 1]));
    ok(unsafe { cuStreamSynchronize(free) });
    flag(go).store(1, Ordering::Release);
    ok(unsafe { cuStreamSynchronize(other) });
    assert_eq!(get(data, 2), [12, 1]);
    ok(unsafe { cuStreamQuery(0) });
}

#[test]
fn events_order_streams_and_measure_time() {
    let gpu = gpu();
    let (begun, go) = (pinned(4), pinned(4));
    let data = gpu.words(&[0]);
    let (wait, add) = (gpu.function(KERNELS, "wait_and_write"), gpu.function(KERNELS, "add"));
    let (first, second) = (gpu.stream(1), gpu.stream(1));
    let (start, end) = (event(), event());
    ok(unsafe { cuEventQuery(end) });
    ok(unsafe { cuEventRecord(start, first) });
    ok(launch(wait, 1, 1, first, &[begun, go, data, 10]));
    ok(unsafe { cuEventRecord(end, first) });
    ok(unsafe { cuStreamWaitEvent(second, end, 0) });
    ok(launch(add, 1, 1, second, &[data, 5]));
    assert_eq!(unsafe { cuEventQuery(end) }, 600);
    let mut milliseconds = 0.0;
    assert_eq!(unsafe { cuEventElapsedTime((&mut milliseconds).into(), start, end) }, 600);
    while flag(begun).load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    std::thread::sleep(std::time::Duration::from_millis(5));
    flag(go).store(1, Ordering::Release);
    ok(unsafe { cuStreamSynchronize(second) });
    ok(unsafe { cuEventSynchronize(end) });
    ok(unsafe { cuEventElapsedTime((&mut milliseconds).into(), start, end) });
    assert!(milliseconds >= 5.0, "{milliseconds}");
    assert_eq!(get(data, 1), [15]);
}

#[test]
fn a_callback_runs_in_the_order_of_its_stream_and_may_not_call_the_driver() {
    static RESULT: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn callback(data: *mut c_void) {
        let mut count = 0;
        let code = unsafe { cuDeviceGetCount((&mut count).into()) };
        RESULT.store(code as u32 + unsafe { data.cast::<u32>().read() }, Ordering::Release);
    }
    let gpu = gpu();
    let stream = gpu.stream(1);
    let mut seven = 7u32;
    ok(unsafe { cuLaunchHostFunc(stream, Some(callback), Out::from(&mut seven).cast()) });
    ok(unsafe { cuStreamSynchronize(stream) });
    assert_eq!(RESULT.load(Ordering::Acquire), 800 + 7);
}

#[test]
fn copies_and_fills_reach_every_byte() {
    let gpu = gpu();
    let stream = gpu.stream(1);
    let bytes = 5000;
    let (first, second) = (gpu.alloc(bytes), gpu.alloc(bytes));
    ok(unsafe { cuMemsetD8Async(first, 0x11, bytes, stream) });
    ok(unsafe { cuMemsetD32Async(first + 4, 0xaabbccdd, 3, stream) });
    ok(unsafe { cuMemsetD16Async(first + 4000, 0x0102, 5, stream) });
    // A copy between addresses that are aligned differently.
    ok(unsafe { cuMemcpyDtoDAsync_v2(second + 3, first, bytes - 3, stream) });
    let mut result = vec![0u8; bytes - 3];
    ok(unsafe { cuMemcpyDtoHAsync_v2(result.as_mut_ptr() as u64, second + 3, bytes - 3, stream) });
    ok(unsafe { cuStreamSynchronize(stream) });
    let expected = |index: usize| match index {
        4..16 => [0xdd, 0xcc, 0xbb, 0xaa][index % 4],
        4000..4010 => [2, 1][index % 2],
        _ => 0x11,
    };
    for (index, &byte) in result.iter().enumerate() {
        assert_eq!(byte, expected(index), "byte {index}");
    }
    assert_eq!(unsafe { cuMemsetD32Async(first + 2, 0, 1, stream) }, 1);
    assert_eq!(unsafe { cuMemcpyDtoDAsync_v2(second, first + 1, bytes, stream) }, 1);
}

#[test]
fn host_memory_is_reached_by_kernels_at_its_own_address() {
    let gpu = gpu();
    let add = gpu.function(KERNELS, "add");
    let mut own = vec![3u32; 64];
    let address = own.as_mut_ptr() as u64;
    ok(unsafe { cuMemHostRegister_v2(address, 256, 2) });
    assert_eq!(unsafe { cuMemHostRegister_v2(address + 128, 8, 0) }, 712);
    let mut device = 0;
    ok(unsafe { cuMemHostGetDevicePointer_v2((&mut device).into(), address, 0) });
    ok(launch(add, 2, 32, 0, &[device, 4]));
    assert_eq!(gpu.synchronise(), 0);
    assert_eq!(own, [7; 64]);
    let mut flags = 0;
    ok(unsafe { cuMemHostGetFlags((&mut flags).into(), address) });
    assert_eq!(flags, 2);
    ok(unsafe { cuMemHostUnregister(address) });
    assert_eq!(unsafe { cuMemHostUnregister(address) }, 713);
    let memory = pinned(256);
    for word in 0..32 {
        flag(memory + 4 * word).store(word as u32, Ordering::Relaxed);
    }
    ok(launch(add, 1, 32, 0, &[memory, 1]));
    assert_eq!(gpu.synchronise(), 0);
    assert_eq!(flag(memory + 4 * 31).load(Ordering::Relaxed), 32);
    ok(unsafe { cuMemFreeHost(memory) });
}

#[test]
fn a_pointer_says_what_it_is() {
    let gpu = gpu();
    let data = gpu.alloc(100);
    let host = pinned(100);
    let word = |attribute: i32, address: u64| {
        let mut value = 0u64;
        let code = unsafe { cuPointerGetAttribute(In::from(&value).cast(), attribute, address) };
        let read = unsafe { (&raw mut value).read_volatile() };
        (code, read)
    };
    assert_eq!(word(2, data + 50), (0, 2));
    assert_eq!(word(2, host), (0, 1));
    assert_eq!(word(9, data), (0, gpu.ordinal as u64));
    assert_eq!(word(1, data), (0, gpu.context));
    assert_eq!(word(11, data + 5), (0, data));
    assert_eq!(word(12, data + 5), (0, 100));
    let own = 5u32;
    assert_eq!(word(2, &raw const own as u64).0, 1);
    let (mut base, mut bytes) = (0, 0);
    ok(unsafe { cuMemGetAddressRange_v2((&mut base).into(), (&mut bytes).into(), data + 9) });
    assert_eq!((base, bytes), (data, 100));
}

#[test]
fn memory_of_a_pool_lives_in_the_order_of_a_stream() {
    let gpu = gpu();
    let stream = gpu.stream(1);
    let mut address = 0;
    ok(unsafe { cuMemAllocAsync((&mut address).into(), 128, stream) });
    ok(unsafe { cuMemsetD32Async(address, 9, 32, stream) });
    let add = gpu.function(KERNELS, "add");
    ok(launch(add, 1, 32, stream, &[address, 1]));
    let mut result = [0u32; 32];
    ok(unsafe { cuMemcpyDtoHAsync_v2(result.as_mut_ptr() as u64, address, 128, stream) });
    ok(unsafe { cuMemFreeAsync(address, stream) });
    ok(unsafe { cuStreamSynchronize(stream) });
    assert_eq!(result, [10; 32]);
    assert_eq!(unsafe { cuMemFree_v2(address) }, 1);
}

#[test]
fn what_is_alive_is_counted() {
    let gpu = gpu();
    let count = || {
        let mut numbers = SoftgpuStatistics::default();
        ok(unsafe { softgpu_statistics(gpu.ordinal, (&mut numbers).into()) });
        numbers
    };
    let before = count();
    let data = gpu.words(&[0; 100]);
    let module = gpu.load(KERNELS);
    let (stream, event) = (gpu.stream(0), event());
    ok(launch(function(module, "add"), 1, 32, stream, &[data, 1]));
    assert_eq!(gpu.synchronise(), 0);
    let during = count();
    assert_eq!((during.allocations, during.allocated_bytes), (before.allocations + 1, before.allocated_bytes + 400));
    assert_eq!((during.modules, during.streams, during.events), (1, 1, 1));
    assert_eq!((during.launches, during.running_kernels), (1, 0));
    assert!(during.thread_instructions >= 32 * 10);
    ok(unsafe { cuModuleUnload(module) });
    ok(unsafe { cuStreamDestroy_v2(stream) });
    ok(unsafe { cuEventDestroy_v2(event) });
    ok(unsafe { cuMemFree_v2(data) });
    let (launches, thread_instructions) = (during.launches, during.thread_instructions);
    assert_eq!(count(), SoftgpuStatistics { launches, thread_instructions, ..before });
}
