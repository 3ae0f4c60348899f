//! Devices, contexts, memory, streams, events and launches, as a program meets them that does everything right.

#![allow(missing_docs, clippy::undocumented_unsafe_blocks, reason = "the tests are the caller that the functions ask for")]

mod common;
use std::ffi::{CStr, c_void};
use std::sync::atomic::Ordering;

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
fn a_thousand_small_launches_take_a_moment() {
    let gpu = gpu();
    let data = gpu.words(&[0; 32]);
    let add = gpu.function(KERNELS, "add");
    let stream = gpu.stream(1);
    ok(unsafe { cuCtxSynchronize() });
    let begin = std::time::Instant::now();
    for _ in 0..1000 {
        ok(launch(add, 1, 32, stream, &[data, 1]));
    }
    ok(unsafe { cuStreamSynchronize(stream) });
    let queued = begin.elapsed();
    for _ in 0..1000 {
        ok(launch(add, 1, 32, stream, &[data, 1]));
        ok(unsafe { cuStreamSynchronize(stream) });
    }
    println!("queued {:?}, one by one {:?} each", queued / 1000, (begin.elapsed() - queued) / 1000);
    assert_eq!(get(data, 32), [2000; 32]);
}
