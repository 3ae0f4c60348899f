//! What a topology file can ask for besides many equal devices.

#![allow(
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    reason = "the tests are the caller that the functions ask for"
)]

mod common;

use std::ffi::CString;
use std::sync::atomic::Ordering;

use common::*;

const TOPOLOGY: &str = r#"
driver_version = 12000
workers = 2
race_detector = false
synchronising = false
watchdog_ms = 300
link = "pcie"

[device]
multiprocessors = 2
memory_bytes = 1048576

[[devices]]
[[devices]]
compute_capability = "8.0"
name = "an older one"
[[devices]]
[[devices]]
[[devices]]

[[links]]
between = [0, 1]
kind = "none"

[[links]]
between = [0, 2]
kind = "pcie"
peer_access = false

[[faults.launch_error]]
device = 4
launch = 2
code = 1
"#;

fn one(ordinal: i32) -> Gpu {
    start_with(TOPOLOGY);
    device(ordinal)
}

#[test]
fn devices_without_a_way_between_them_do_not_reach_each_other() {
    let gpus = [one(0), one(1), one(2), one(3)];
    let can = |from: usize, to: usize| {
        let mut can = -1;
        ok(unsafe { cuDeviceCanAccessPeer((&mut can).into(), from as i32, to as i32) });
        can
    };
    assert_eq!([can(0, 1), can(1, 0), can(0, 2), can(0, 3), can(1, 2), can(0, 0)], [0, 0, 0, 1, 1, 0]);
    gpus[0].enter();
    assert_eq!(unsafe { cuCtxEnablePeerAccess(gpus[2].context, 0) }, 217);
    let mut rank = -1;
    ok(unsafe { cuDeviceGetP2PAttribute((&mut rank).into(), 3, 0, 3) });
    assert_eq!(rank, 0, "no atomics over PCIe");
}

#[test]
fn an_older_device_and_an_older_driver_take_less() {
    let gpu = one(1);
    let load = |text: String| {
        let image = CString::new(text).unwrap();
        let mut module = 0;
        unsafe { cuModuleLoadData((&mut module).into(), image.as_c_str().into()) }
    };
    assert_eq!(load(KERNELS.replace("sm_70", "sm_90")), 209);
    assert_eq!(load(KERNELS.replace("7.8", "8.1")), 222);
    ok(load(KERNELS.replace("7.8", "8.0").replace("sm_70", "sm_80")));
    let mut value = -1;
    ok(unsafe { cuDeviceGetAttribute((&mut value).into(), 132, gpu.ordinal) });
    assert_eq!(value, 0, "no multicast before compute capability 9.0");
    ok(unsafe { cuDriverGetVersion((&mut value).into()) });
    assert_eq!(value, 12000);
    assert_eq!(unsafe { cuMulticastAddDevice(0, gpu.ordinal) }, 801);
}

#[test]
fn a_watchdog_ends_what_takes_too_long_and_nothing_else_waits_for_it() {
    let gpu = one(2);
    let (begun, go) = (pinned(4), pinned(4));
    let data = gpu.words(&[0]);
    let wait = gpu.function(KERNELS, "wait_and_write");
    let stream = gpu.stream(1);
    ok(launch(wait, 1, 1, stream, &[begun, go, data, 1]));
    // Not synchronising, these calls come back while the kernel spins.
    let other = gpu.alloc(64);
    ok(unsafe { cuMemFree_v2(other) });
    assert_eq!(unsafe { cuStreamQuery(stream) }, 600);
    assert_eq!(unsafe { cuStreamSynchronize(stream) }, 702);
    assert_eq!(flag(go).load(Ordering::Relaxed), 0);
}

#[test]
fn without_the_race_detector_a_race_is_let_pass() {
    let gpu = one(3);
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    let (first, second) = (gpu.stream(1), gpu.stream(1));
    ok(launch(add, 1, 32, first, &[data, 1]));
    ok(launch(add, 1, 32, second, &[data, 1]));
    assert_eq!(gpu.synchronise(), 0);
}

#[test]
fn faults_of_the_file_count_from_the_beginning_and_memory_is_what_it_says() {
    let gpu = one(4);
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    let codes = [(); 3].map(|()| launch(add, 1, 32, 0, &[data, 1]));
    assert_eq!(codes, [0, 1, 0]);
    let mut address = 0;
    assert_eq!(unsafe { cuMemAlloc_v2((&mut address).into(), 1 << 20) }, 2);
    let (mut free, mut total) = (0, 0);
    ok(unsafe { cuMemGetInfo_v2((&mut free).into(), (&mut total).into()) });
    assert_eq!((free, total), ((1 << 20) - 128, 1 << 20));
}

#[test]
fn what_is_no_topology_is_refused_in_words() {
    for text in [
        "devices = 0",
        "devices = 65",
        "nonsense = 1",
        "[device]\ncompute_capability = \"nine\"",
        "[[links]]\nbetween = [0, 9]\nkind = \"pcie\"",
    ] {
        // After `cuInit` nothing is taken any more, so before it or after it this is an error.
        assert_ne!(unsafe { softgpu_configure(bytes_of(text), text.len()) }, 0, "{text}");
    }
}
