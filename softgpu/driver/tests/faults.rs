//! Faults on request, and access between devices.

#![allow(
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    reason = "the tests are the caller that the functions ask for"
)]

mod common;

use std::sync::atomic::Ordering;

use common::*;

fn enable(from: Gpu, to: Gpu) -> i32 {
    from.enter();
    unsafe { cuCtxEnablePeerAccess(to.context, 0) }
}

fn can_access(from: Gpu, to: Gpu) -> i32 {
    let mut can = -1;
    ok(unsafe { cuDeviceCanAccessPeer((&mut can).into(), from.ordinal, to.ordinal) });
    can
}

#[test]
fn another_devices_memory_is_out_of_reach_until_access_is_enabled() {
    let (first, second) = (gpu(), gpu());
    let data = second.words(&[1; 32]);
    let add = first.function(KERNELS, "add");
    first.enter();
    ok(launch(add, 1, 32, 0, &[data, 1]));
    assert_eq!(first.synchronise(), 700);
    let said = said_about(first);
    assert!(said.contains("without peer access from device") || !said.is_empty(), "{said}");
    // The other device is none the worse.
    assert_eq!(second.synchronise(), 0);
    ok(unsafe { cuDevicePrimaryCtxReset_v2(first.ordinal) });
    assert_eq!(can_access(first, second), 1);
    ok(enable(first, second));
    assert_eq!(enable(first, second), 704);
    let add = first.function(KERNELS, "add");
    ok(launch(add, 1, 32, 0, &[data, 1]));
    assert_eq!(first.synchronise(), 0);
    second.enter();
    assert_eq!(get(data, 32), [2; 32]);
    first.enter();
    ok(unsafe { cuCtxDisablePeerAccess(second.context) });
    assert_eq!(unsafe { cuCtxDisablePeerAccess(second.context) }, 705);
    assert_eq!(unsafe { cuCtxEnablePeerAccess(first.context, 0) }, 201);
    assert_eq!(unsafe { cuCtxEnablePeerAccess(second.context, 1) }, 1);
}

#[test]
fn a_copy_between_devices_needs_access_or_a_call_made_for_it() {
    let (first, second) = (gpu(), gpu());
    let from = second.words(&[7; 8]);
    let to = first.words(&[0; 8]);
    ok(unsafe { cuMemcpyPeer(to, first.context, from, second.context, 32) });
    assert_eq!(get(to, 8), [7; 8]);
    ok(unsafe { cuMemcpyDtoDAsync_v2(to, from, 32, 0) });
    assert_eq!(first.synchronise(), 700);
}

#[test]
fn peer_access_is_refused_as_it_was_asked_for() {
    let (first, second, third) = (gpu(), gpu(), gpu());
    let pair = |other: Gpu| format!("pair = [{}, {}]", first.ordinal, other.ordinal);
    inject(&format!("[[refuse_peer_access]]\n{}\nstage = \"query\"", pair(second)));
    inject(&format!("[[refuse_peer_access]]\n{}\ncode = 711\none_way = true", pair(third)));
    assert_eq!((can_access(first, second), can_access(second, first)), (0, 0));
    assert_eq!(enable(first, second), 217);
    assert_eq!(can_access(first, third), 1);
    assert_eq!(enable(first, third), 711);
    ok(enable(third, first));
}

#[test]
fn peer_access_lies_as_it_was_asked_to() {
    let (first, second) = (gpu(), gpu());
    inject(&format!("[[peer_access_lies]]\npair = [{}, {}]", first.ordinal, second.ordinal));
    let data = second.words(&[1; 32]);
    ok(enable(first, second));
    let add = first.function(KERNELS, "add");
    ok(launch(add, 1, 32, 0, &[data, 1]));
    assert_eq!(first.synchronise(), 700);
}

#[test]
fn the_nth_launch_fails_at_once_or_later() {
    let gpu = gpu();
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    inject(&format!("[[launch_error]]\ndevice = {}\nlaunch = 2\ncode = 701", gpu.ordinal));
    let codes: Vec<i32> = (0..3).map(|_| launch(add, 1, 32, 0, &[data, 1])).collect();
    assert_eq!(codes, [0, 701, 0]);
    assert_eq!(get(data, 32), [2; 32]);
    inject(&format!("[[launch_error]]\ndevice = {}\ncode = 715\nasynchronous = true", gpu.ordinal));
    ok(launch(add, 1, 32, 0, &[data, 1]));
    assert_eq!(gpu.synchronise(), 715);
    assert!(said_about(gpu).contains("fails with 715, as it was asked to"), "{}", said_about(gpu));
}

#[test]
fn the_nth_or_a_large_allocation_fails() {
    let gpu = gpu();
    inject(&format!("[[allocation_failure]]\ndevice = {}\nallocation = 2", gpu.ordinal));
    inject(&format!("[[allocation_failure]]\ndevice = {}\nabove_bytes = 1000", gpu.ordinal));
    let allocate = |bytes| {
        let mut address = 0;
        unsafe { cuMemAlloc_v2((&mut address).into(), bytes) }
    };
    assert_eq!([1000, 10, 10, 1001, 10].map(allocate), [0, 2, 0, 2, 0]);
}

#[test]
fn a_device_is_lost_in_the_middle_of_a_kernel() {
    for (moment, code) in [("after_thread_instructions = 5000", 46), ("after_ms = 5", 999)] {
        let gpu = gpu();
        let (begun, go) = (pinned(4), pinned(4));
        let data = gpu.words(&[0]);
        let wait = gpu.function(KERNELS, "wait_and_write");
        inject(&format!("[[device_lost]]\ndevice = {}\nlaunch = 1\n{moment}\ncode = {code}", gpu.ordinal));
        ok(launch(wait, 1, 1, 0, &[begun, go, data, 1]));
        assert_eq!(gpu.synchronise(), code);
        assert_eq!(flag(begun).load(Ordering::Acquire), 1);
        let mut address = 0;
        assert_eq!(unsafe { cuMemAlloc_v2((&mut address).into(), 16) }, code);
        assert_eq!(unsafe { cuDevicePrimaryCtxRetain((&mut address).into(), gpu.ordinal) }, code);
        assert!(said_about(gpu).contains("is lost while it runs wait_and_write"), "{}", said_about(gpu));
    }
}

#[test]
fn a_kernel_that_is_over_before_its_device_would_be_lost_is_fine() {
    let gpu = gpu();
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    inject(&format!("[[device_lost]]\ndevice = {}\nafter_thread_instructions = 100000", gpu.ordinal));
    ok(launch(add, 1, 32, 0, &[data, 1]));
    assert_eq!(get(data, 32), [1; 32]);
}

#[test]
fn every_nth_store_to_a_peer_is_corrupted() {
    let (first, second) = (gpu(), gpu());
    inject(&format!("[[corrupt_peer_writes]]\npair = [{}, {}]\nevery = 10", first.ordinal, second.ordinal));
    let (own, data) = (first.words(&[0; 64]), second.words(&[0; 64]));
    ok(enable(first, second));
    let add = first.function(KERNELS, "add");
    ok(launch(add, 2, 32, 0, &[own, 4]));
    assert_eq!(get(own, 64), [4; 64]);
    ok(launch(add, 2, 32, 0, &[data, 4]));
    assert_eq!(first.synchronise(), 0);
    second.enter();
    let wrong = get(data, 64).iter().filter(|&&value| value != 4).map(|&value| value ^ 4).collect::<Vec<u32>>();
    assert_eq!(wrong, [1; 6]);
}

#[test]
fn a_slow_link_makes_a_kernel_late() {
    let (first, second) = (gpu(), gpu());
    let data = second.words(&[0; 32]);
    ok(enable(first, second));
    let add = first.function(KERNELS, "add");
    let time = |first: Gpu| {
        let begin = std::time::Instant::now();
        ok(launch(add, 1, 32, 0, &[data, 1]));
        assert_eq!(first.synchronise(), 0);
        begin.elapsed()
    };
    inject(&format!("[[slow_link]]\npair = [{}, {}]\nnanoseconds = 2000000", first.ordinal, second.ordinal));
    // 64 accesses.
    let slow = time(first);
    assert!(slow.as_millis() >= 100, "{slow:?}");
}

#[test]
fn what_is_no_table_of_faults_is_refused() {
    start();
    for text in
        ["[[no_such_fault]]", "[[device_lost]]\ndevice = 99", "[[launch_error]]", "[[slow_link]]\npair = [1, 1]"]
    {
        assert_eq!(unsafe { softgpu_inject(bytes_of(text), text.len()) }, 1, "{text}");
    }
    assert_eq!(unsafe { softgpu_configure(bytes_of(""), 0) }, 401);
}
