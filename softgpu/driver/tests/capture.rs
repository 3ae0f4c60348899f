//! Stream capture and graphs.

#![allow(
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    reason = "the tests are the caller that the functions ask for"
)]

mod common;

use std::ffi::{c_int, c_void};

use common::*;

const GLOBAL: c_int = 0;
const THREAD_LOCAL: c_int = 1;
const RELAXED: c_int = 2;

fn begin(stream: Handle, mode: c_int) -> i32 {
    unsafe { cuStreamBeginCapture_v2(stream, mode) }
}

fn end(stream: Handle) -> (i32, Handle) {
    let mut graph = 1;
    let code = unsafe { cuStreamEndCapture(stream, (&mut graph).into()) };
    (code, graph)
}

fn status(stream: Handle) -> c_int {
    let mut status = -1;
    ok(unsafe { cuStreamIsCapturing(stream, (&mut status).into()) });
    status
}

fn instantiate(graph: Handle) -> Handle {
    let mut exec = 0;
    ok(unsafe { cuGraphInstantiateWithFlags((&mut exec).into(), graph, 0) });
    exec
}

// Captures of the global mode forbid calls to all threads of the process, so those tests take turns with all others.
static TURNS: std::sync::RwLock<()> = std::sync::RwLock::new(());

fn shared() -> std::sync::RwLockReadGuard<'static, ()> {
    TURNS.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn alone() -> std::sync::RwLockWriteGuard<'static, ()> {
    TURNS.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn a_captured_graph_runs_each_time_with_the_parameters_of_its_capture() {
    let _turn = shared();
    let gpu = gpu();
    let data = gpu.words(&[1; 32]);
    let add = gpu.function(KERNELS, "add");
    let stream = gpu.stream(1);
    let mut addend = 5u64;
    ok(begin(stream, THREAD_LOCAL));
    assert_eq!(status(stream), 1);
    ok(launch(add, 1, 32, stream, &[data, addend]));
    addend = 1000;
    ok(launch(add, 1, 32, stream, &[data, 2]));
    let (code, graph) = end(stream);
    ok(code);
    assert_eq!(status(stream), 0);
    assert_eq!(get(data, 32), [1; 32]);
    let mut count = 0;
    ok(unsafe { cuGraphGetNodes(graph, Out::NULL, (&mut count).into()) });
    assert_eq!(count, 2);
    let exec = instantiate(graph);
    ok(unsafe { cuGraphDestroy(graph) });
    for _ in 0..3 {
        ok(unsafe { cuGraphLaunch(exec, stream) });
    }
    ok(unsafe { cuStreamSynchronize(stream) });
    assert_eq!(get(data, 32), [22; 32]);
    assert_eq!(addend, 1000);
    ok(unsafe { cuGraphExecDestroy(exec) });
    assert_eq!(unsafe { cuGraphLaunch(exec, stream) }, 1);
}

#[test]
fn branches_of_a_graph_run_at_once_and_on_several_devices() {
    let _turn = shared();
    let (first, second) = (gpu(), gpu());
    let (begun, word) = (pinned(8), pinned(4));
    flag(word).store(1, std::sync::atomic::Ordering::Relaxed);
    let go = pinned(4);
    first.enter();
    let (one, fork) = (first.stream(1), event());
    let data = first.words(&[0; 2]);
    let wait = first.function(KERNELS, "wait_and_write");
    let two = second.stream(1);
    let join = event();
    let other = second.words(&[0; 2]);
    let other_wait = second.function(KERNELS, "wait_and_publish");
    first.enter();
    ok(begin(one, RELAXED));
    ok(unsafe { cuEventRecord(fork, one) });
    second.enter();
    ok(unsafe { cuStreamWaitEvent(two, fork, 0) });
    assert_eq!(status(two), 1);
    // The one on the first device waits for the one on the second, which writes the flag.
    first.enter();
    ok(launch(wait, 1, 1, one, &[begun, go, data, 5]));
    second.enter();
    ok(launch(other_wait, 1, 1, two, &[begun + 4, word, go, 6]));
    ok(unsafe { cuMemsetD32Async(other, 8, 2, two) });
    ok(unsafe { cuEventRecord(join, two) });
    first.enter();
    ok(unsafe { cuStreamWaitEvent(one, join, 0) });
    let (code, graph) = end(one);
    ok(code);
    let exec = instantiate(graph);
    for _ in 0..3 {
        flag(go).store(0, std::sync::atomic::Ordering::Release);
        ok(unsafe { cuGraphLaunch(exec, one) });
        ok(unsafe { cuStreamSynchronize(one) });
    }
    assert_eq!(get(data, 1), [5]);
    second.enter();
    assert_eq!(get(other, 2), [8, 8]);
}

#[test]
fn copies_and_callbacks_are_captured_too() {
    unsafe extern "C" fn callback(data: *mut c_void) {
        unsafe { *data.cast::<u32>() += 1 };
    }
    let _turn = shared();
    let gpu = gpu();
    let data = gpu.words(&[0; 4]);
    let (from, to) = (pinned(16), pinned(16));
    let stream = gpu.stream(1);
    let mut calls = 0u32;
    ok(begin(stream, THREAD_LOCAL));
    ok(unsafe { cuMemcpyHtoDAsync_v2(data, from, 16, stream) });
    ok(unsafe { cuMemcpyDtoHAsync_v2(to, data, 16, stream) });
    ok(unsafe { cuLaunchHostFunc(stream, Some(callback), Out::from(&mut calls).cast()) });
    let (code, graph) = end(stream);
    ok(code);
    let exec = instantiate(graph);
    for value in [7, 9] {
        flag(from + 4).store(value, std::sync::atomic::Ordering::Release);
        ok(unsafe { cuGraphLaunch(exec, stream) });
        ok(unsafe { cuStreamSynchronize(stream) });
        assert_eq!(flag(to + 4).load(std::sync::atomic::Ordering::Acquire), value);
    }
    assert_eq!(unsafe { (&raw const calls).read_volatile() }, 2);
}

#[test]
fn what_would_synchronise_spoils_a_capture() {
    let _turn = alone();
    let gpu = gpu();
    let stream = gpu.stream(1);
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    let mut address = 0;
    let event = event();
    let calls: [(&str, &dyn Fn() -> i32, i32); 4] = [
        ("synchronise", &|| unsafe { cuStreamSynchronize(stream) }, 900),
        ("query", &|| unsafe { cuStreamQuery(stream) }, 900),
        ("context", &|| unsafe { cuCtxSynchronize() }, 900),
        ("allocate", &|| unsafe { cuMemAlloc_v2(Out::from(&mut { address }), 16) }, 900),
    ];
    for (name, call, code) in calls {
        ok(begin(stream, GLOBAL));
        ok(launch(add, 1, 32, stream, &[data, 1]));
        assert_eq!(call(), code, "{name}");
        assert_eq!(status(stream), 2, "{name}");
        assert_eq!(launch(add, 1, 32, stream, &[data, 1]), 901, "{name}");
        assert_eq!(end(stream), (901, 0), "{name}");
        assert_eq!(status(stream), 0);
    }
    // An event of the capture is no event for the host.
    ok(begin(stream, RELAXED));
    ok(unsafe { cuEventRecord(event, stream) });
    assert_eq!(unsafe { cuEventSynchronize(event) }, 907);
    assert_eq!(end(stream).0, 901);
    address += 1;
    assert_eq!(address, 1);
}

#[test]
fn the_mode_says_which_calls_are_forbidden_to_whom() {
    let _turn = alone();
    let gpu = gpu();
    let stream = gpu.stream(1);
    let allocate = move || {
        gpu.enter();
        let mut address = 0;
        unsafe { cuMemAlloc_v2((&mut address).into(), 16) }
    };
    let elsewhere = move || std::thread::spawn(allocate).join().unwrap();
    for (mode, here, there) in [(GLOBAL, 900, 900), (THREAD_LOCAL, 900, 0), (RELAXED, 0, 0)] {
        ok(begin(stream, mode));
        assert_eq!(elsewhere(), there, "{mode}");
        assert_eq!(allocate(), here, "{mode}");
        end(stream);
    }
    // A thread that has said that it knows what it does.
    ok(begin(stream, GLOBAL));
    let mut mode = RELAXED;
    ok(unsafe { cuThreadExchangeStreamCaptureMode((&mut mode).into()) });
    assert_eq!(mode, GLOBAL);
    assert_eq!(allocate(), 0);
    ok(unsafe { cuThreadExchangeStreamCaptureMode((&mut mode).into()) });
    ok(end(stream).0);
}

#[test]
fn the_legacy_stream_may_not_be_used_while_a_blocking_stream_captures() {
    let _turn = shared();
    let gpu = gpu();
    let (blocking, free) = (gpu.stream(0), gpu.stream(1));
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    assert_eq!(begin(0, RELAXED), 900);
    ok(begin(blocking, RELAXED));
    assert_eq!(launch(add, 1, 32, 0, &[data, 1]), 906);
    assert_eq!(end(blocking).0, 901);
    ok(begin(free, RELAXED));
    ok(launch(add, 1, 32, 0, &[data, 1]));
    ok(end(free).0);
}

#[test]
fn forks_must_be_joined_and_captures_stay_apart() {
    let _turn = shared();
    let gpu = gpu();
    let (first, second) = (gpu.stream(1), gpu.stream(1));
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    let (fork, outside) = (event(), event());
    // Not joined.
    ok(begin(first, RELAXED));
    ok(unsafe { cuEventRecord(fork, first) });
    ok(unsafe { cuStreamWaitEvent(second, fork, 0) });
    ok(launch(add, 1, 32, second, &[data, 1]));
    assert_eq!(end(first), (904, 0));
    assert_eq!(status(second), 0);
    // Ended in the wrong stream.
    ok(begin(first, RELAXED));
    ok(unsafe { cuEventRecord(fork, first) });
    ok(unsafe { cuStreamWaitEvent(second, fork, 0) });
    assert_eq!(end(second).0, 903);
    end(first);
    // Two captures that would become one.
    ok(begin(first, RELAXED));
    ok(begin(second, RELAXED));
    ok(unsafe { cuEventRecord(fork, first) });
    assert_eq!(unsafe { cuStreamWaitEvent(second, fork, 0) }, 902);
    assert_eq!((end(first).0, end(second).0), (901, 901));
    // Work from outside.
    ok(unsafe { cuEventRecord(outside, second) });
    ok(begin(first, RELAXED));
    assert_eq!(unsafe { cuStreamWaitEvent(first, outside, 0) }, 905);
    assert_eq!(end(first).0, 901);
    assert_eq!(end(first).0, 401);
    // A second beginning.
    ok(begin(first, RELAXED));
    assert_eq!(begin(first, RELAXED), 401);
    ok(end(first).0);
}

#[test]
fn only_the_thread_that_began_a_capture_ends_it_unless_it_is_relaxed() {
    let _turn = shared();
    let gpu = gpu();
    let stream = gpu.stream(1);
    for (mode, code) in [(THREAD_LOCAL, 908), (RELAXED, 0)] {
        ok(begin(stream, mode));
        let there = std::thread::spawn(move || {
            gpu.enter();
            end(stream).0
        });
        assert_eq!(there.join().unwrap(), code);
        if code != 0 {
            assert_eq!(end(stream).0, 901);
        }
    }
}

#[test]
fn the_capture_of_a_stream_has_a_number_and_a_graph() {
    let _turn = shared();
    let gpu = gpu();
    let stream = gpu.stream(1);
    ok(begin(stream, RELAXED));
    let (mut state, mut id, mut graph, mut count) = (0, 0, 0, 9);
    ok(unsafe {
        cuStreamGetCaptureInfo_v2(
            stream,
            (&mut state).into(),
            (&mut id).into(),
            (&mut graph).into(),
            Out::NULL,
            (&mut count).into(),
        )
    });
    assert!(state == 1 && id != 0 && graph != 0 && count == 0);
    assert_eq!(end(stream), (0, graph));
}
