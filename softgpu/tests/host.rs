//! What the host does beside kernels: copies and fills, memory that is placed, links that are slow or bad.

use std::sync::Arc;
use std::time::{Duration, Instant};

use softgpu::{Arguments, FaultKind, LaunchError, LaunchOptions, Link, LoadedModule, Machine, MemoryKind, Module};

const ADD_ONE: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry add_one(.param .u64 data) {
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%rd3], %r2;
    ret;
}
";

fn bench() -> (Machine, LoadedModule) {
    let machine = Machine::with_workers(2);
    let module = machine.load(&Arc::new(Module::parse(ADD_ONE).unwrap()), 0).unwrap();
    (machine, module)
}

fn options(data: u64) -> LaunchOptions {
    LaunchOptions { arguments: Arguments::new().u64(data).into_bytes(), ..LaunchOptions::default() }
}

fn fault(error: LaunchError) -> (FaultKind, String) {
    match error {
        LaunchError::Faults { faults, .. } => (faults[0].kind, faults[0].to_string()),
        other => panic!("{other}"),
    }
}

#[test]
fn a_copy_takes_along_which_bytes_nobody_wrote() {
    let (machine, module) = bench();
    let from = machine.allocate(1000, MemoryKind::Device, 0).unwrap();
    let to = machine.allocate(1000, MemoryKind::Device, 0).unwrap();
    machine.fill(from, &[7], 999).unwrap();
    machine.fill(to, &1u16.to_le_bytes(), 500).unwrap();
    machine.copy(from + 1, to, 999).unwrap();
    let mut bytes = [0; 1000];
    machine.read(to, &mut bytes).unwrap();
    assert_eq!((&bytes[..998], &bytes[998..]), (&[7; 998][..], &[0, 0][..]));
    machine.run(&module, "add_one", options(to)).unwrap();
    // The last word has a byte that nobody wrote.
    let block = LaunchOptions { block: 1.into(), ..options(to + 996) };
    let (kind, _) = fault(machine.run(&module, "add_one", block).unwrap_err());
    assert_eq!(kind, FaultKind::Uninitialised);
}

#[test]
fn memory_that_was_placed_is_open_to_those_who_were_given_access() {
    let (machine, module) = bench();
    let reservation = machine.reserve(1 << 20, 1 << 20).unwrap();
    assert_eq!((reservation.address() % (1 << 20), reservation.bytes()), (0, 1 << 20));
    let data = machine.place(&reservation, 4096, 4096, MemoryKind::Device, 0).unwrap();
    assert_eq!(data, reservation.address() + 4096);
    assert!(machine.place(&reservation, 8000, 4096, MemoryKind::Device, 0).is_err(), "there is some already");
    assert!(machine.place(&reservation, 1 << 20, 1, MemoryKind::Device, 0).is_err(), "outside");
    machine.fill(data, &[0], 4096).unwrap();
    let (kind, text) = fault(machine.run(&module, "add_one", options(data)).unwrap_err());
    assert!(kind == FaultKind::OutOfBounds && text.contains("without peer access"), "{text}");
    machine.grant(data, 0, true).unwrap();
    machine.run(&module, "add_one", options(data)).unwrap();
    machine.free(data).unwrap();
    machine.place(&reservation, 8000, 4096, MemoryKind::Device, 0).unwrap();
}

#[test]
fn links_can_be_late_and_wrong() {
    let (machine, module) = bench();
    let own = machine.allocate(128, MemoryKind::Device, 0).unwrap();
    let far = machine.allocate(128, MemoryKind::Device, 1).unwrap();
    let counter = Arc::default();
    let link = Link { device: 1, delay: Duration::from_micros(500), corrupt_every: Some((8, Arc::clone(&counter))) };
    for (data, corrupted, least) in [(own, 0, Duration::ZERO), (far, 4, Duration::from_millis(30))] {
        machine.fill(data, &[0], 128).unwrap();
        let begin = Instant::now();
        machine.run(&module, "add_one", LaunchOptions { links: vec![link.clone()], ..options(data) }).unwrap();
        assert!(begin.elapsed() >= least);
        let mut bytes = [0; 128];
        machine.read(data, &mut bytes).unwrap();
        assert_eq!(bytes.chunks(4).filter(|word| word[0] != 1).count(), corrupted);
    }
}

#[test]
fn threads_that_share_the_hosts_clock_are_taken_for_one() {
    let (machine, module) = bench();
    machine.share_host_clock();
    let data = machine.allocate(128, MemoryKind::Device, 0).unwrap();
    let in_thread = |body: &(dyn Fn() + Sync)| std::thread::scope(|scope| scope.spawn(body).join().unwrap());
    in_thread(&|| machine.fill(data, &[0], 128).unwrap());
    in_thread(&|| {
        machine.run(&module, "add_one", options(data)).unwrap();
    });
    machine.run(&module, "add_one", options(data)).unwrap();
    // One with a clock of its own knows nothing of that.
    in_thread(&|| {
        machine.own_clock();
        assert!(machine.fill(data, &[0], 128).is_err());
        machine.forget_this_thread();
    });
}
