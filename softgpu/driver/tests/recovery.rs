//! How a program gets on after a device was lost.

#![allow(
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    reason = "the tests are the caller that the functions ask for"
)]

mod common;

use common::*;

// Alone in its file: `softgpu_clear` is for all devices.
#[test]
fn a_lost_device_works_again_when_it_is_found_and_its_context_is_reset() {
    let (lost, other) = (gpu(), gpu());
    let (begun, go) = (pinned(4), pinned(4));
    let data = lost.words(&[0]);
    let (kept, add) = (other.words(&[5; 32]), other.function(KERNELS, "add"));
    let wait = lost.function(KERNELS, "wait_and_write");
    inject(&format!("[[device_lost]]\ndevice = {}\nafter_ms = 2\ncode = 214", lost.ordinal));
    ok(launch(wait, 1, 1, 0, &[begun, go, data, 1]));
    assert_eq!(lost.synchronise(), 214);
    assert_eq!(unsafe { cuMemFree_v2(data) }, 214);
    // The other device goes on.
    other.enter();
    ok(launch(add, 1, 32, 0, &[kept, 1]));
    assert_eq!(get(kept, 32), [6; 32]);
    let size = unsafe { softgpu_faults(Out::NULL, 0) };
    let mut text = vec![0; size + 1];
    assert_eq!(unsafe { softgpu_faults((&mut text[..]).into(), text.len()) }, size);
    let text: String = text[..size].iter().map(|&byte: &std::ffi::c_char| byte as u8 as char).collect();
    assert_eq!(text, format!("device {} is lost while it runs wait_and_write, as it was asked to be", lost.ordinal));
    ok(softgpu_clear());
    assert_eq!(faults(), Vec::<String>::new());
    lost.enter();
    let mut address = 0;
    assert_eq!(unsafe { cuMemAlloc_v2((&mut address).into(), 4) }, 214, "the context is as it was");
    ok(unsafe { cuDevicePrimaryCtxReset_v2(lost.ordinal) });
    let data = lost.words(&[1; 32]);
    let add = lost.function(KERNELS, "add");
    ok(launch(add, 1, 32, 0, &[data, 1]));
    assert_eq!(get(data, 32), [2; 32]);
}
