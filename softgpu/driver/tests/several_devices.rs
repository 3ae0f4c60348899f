//! Many threads, devices and kernels at once, as ranks of one process use them.

#![allow(
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    reason = "the tests are the caller that the functions ask for"
)]

mod common;

use common::*;

/// A ring: each device's kernel waits for a flag in its own memory, adds to what came with it, and passes it to the next one's memory.
const RING: &str = "
.version 7.8
.target sm_70
.address_size 64
.visible .entry pass(.param .u64 own, .param .u64 next, .param .u64 rounds, .param .u64 is_first) {
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [own];
    ld.param.u64 %rd2, [next];
    ld.param.u32 %r1, [rounds];
    ld.param.u32 %r2, [is_first];
    mov.u32 %r3, 1;
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra receive;
send:
    // The data, then the flag with the number of the round.
    ld.global.u32 %r4, [%rd1+4];
    add.u32 %r4, %r4, 1;
    st.global.u32 [%rd2+4], %r4;
    st.release.sys.global.u32 [%rd2], %r3;
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra next;
receive:
    ld.acquire.sys.global.u32 %r5, [%rd1];
    setp.ne.u32 %p2, %r5, %r3;
    @%p2 bra receive;
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra send;
next:
    add.u32 %r3, %r3, 1;
    setp.le.u32 %p3, %r3, %r1;
    @!%p3 ret;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra send;
    bra receive;
}
";

#[test]
fn a_token_goes_round_among_the_kernels_of_eight_devices_and_threads() {
    const DEVICES: usize = 8;
    const ROUNDS: u64 = 50;
    let gpus: [Gpu; DEVICES] = std::array::from_fn(|_| gpu());
    let memory = gpus.map(|gpu| gpu.words(&[0, 0]));
    let loaded = std::sync::Arc::new(std::sync::Barrier::new(DEVICES));
    let ranks = std::array::from_fn::<_, DEVICES, _>(|rank| {
        let loaded = loaded.clone();
        std::thread::spawn(move || {
            let (own, next) = (gpus[rank], gpus[(rank + 1) % DEVICES]);
            own.enter();
            ok(unsafe { cuCtxEnablePeerAccess(next.context, 0) });
            let pass = own.function(RING, "pass");
            let stream = own.stream(1);
            // To enable access waits for the kernels of both devices, and none of these ends before all have begun.
            loaded.wait();
            let parameters = [memory[rank], memory[(rank + 1) % DEVICES], ROUNDS, u64::from(rank == 0)];
            ok(launch_cooperative(pass, 1, 1, stream, &parameters));
            ok(unsafe { cuStreamSynchronize(stream) });
        })
    });
    for rank in ranks {
        rank.join().unwrap();
    }
    gpus[0].enter();
    assert_eq!(get(memory[0], 2), [ROUNDS as u32, ROUNDS as u32 * DEVICES as u32]);
}

#[test]
fn without_the_release_the_race_detector_speaks() {
    let (first, second) = (gpu(), gpu());
    let memory = [first.words(&[0, 0]), second.words(&[0, 0])];
    let weak = RING.replace("st.release.sys", "st.relaxed.sys");
    let mut codes = Vec::new();
    for (own, other) in [(first, second), (second, first)] {
        own.enter();
        ok(unsafe { cuCtxEnablePeerAccess(other.context, 0) });
    }
    for (own, at) in [(first, 0), (second, 1)] {
        let pass = own.function(&weak, "pass");
        let stream = own.stream(1);
        ok(launch(pass, 1, 1, stream, &[memory[at], memory[1 - at], 3, u64::from(at == 0)]));
    }
    for own in [first, second] {
        codes.push(own.synchronise());
    }
    assert!(codes.contains(&719), "{codes:?}");
    assert!(faults().iter().any(|line| line.starts_with("data race: kernel pass")), "{:?}", faults());
}

#[test]
fn threads_that_share_a_device_have_their_work_done_side_by_side() {
    let gpu = gpu();
    let data = gpu.words(&[0; 8 * 32]);
    let add = gpu.function(KERNELS, "add");
    let threads: Vec<_> = (0..8u64)
        .map(|index| {
            std::thread::spawn(move || {
                gpu.enter();
                // The thread's own default stream.
                for _ in 0..50 {
                    ok(launch(add, 1, 32, 2, &[data + index * 128, index + 1]));
                }
                ok(unsafe { cuStreamSynchronize(2) });
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let expected: Vec<u32> = (0..256).map(|index| (index / 32 + 1) * 50).collect();
    assert_eq!(get(data, 256), expected);
}
