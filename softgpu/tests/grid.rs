//! Whole grids: calls, warps, atomics, wide vectors, barriers with names, multicast, and text that is not PTX.

use std::sync::Arc;

use half::bf16;
use proptest::prelude::*;
use softgpu::{Arguments, LaunchOptions, LoadedModule, Machine, MemoryKind, Module};

const GRID: &str = include_str!("grid.ptx");

fn bench() -> (Machine, LoadedModule, u64) {
    let machine = Machine::with_workers(2);
    let module = machine.load(&Arc::new(Module::parse(GRID).unwrap()), 0).unwrap();
    let data = machine.allocate(4096, MemoryKind::Device, 0).unwrap();
    machine.write(data, &[0; 4096]).unwrap();
    (machine, module, data)
}

fn words(machine: &Machine, address: u64, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    machine.read(address, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|chunk| u32::from_le_bytes(chunk.try_into().unwrap())).collect()
}

fn run(kernel: &str, grid: u32, block: u32, count: usize) -> Vec<u32> {
    let (machine, module, data) = bench();
    let arguments = Arguments::new().u64(data).into_bytes();
    let options = LaunchOptions { grid: grid.into(), block: block.into(), arguments, ..LaunchOptions::default() };
    machine.run(&module, kernel, options).unwrap_or_else(|error| panic!("{error}"));
    words(&machine, data, count)
}

#[test]
fn functions_are_called_and_variables_hold_addresses() {
    assert_eq!(run("calls", 1, 40, 40), (0..40).map(|thread| 2 * thread + 20).collect::<Vec<u32>>());
}

#[test]
fn warps_shuffle_vote_match_and_reduce() {
    let want = (0..64).map(|thread: u32| {
        let lane = thread % 32;
        let above = if lane == 0 { 1000 } else { thread - 1 };
        above + 8 * 10_000 + if lane < 5 { 31 * 1_000_000 } else { 0 }
    });
    assert_eq!(run("warps", 1, 64, 64), want.collect::<Vec<u32>>());
}

#[test]
fn the_last_block_sees_what_all_others_wrote() {
    let result = run("last_block", 37, 64, 3);
    assert_eq!(result, [37, 36, (0..37).map(|block| block * block).sum::<u32>()]);
}

#[test]
fn a_thread_moves_32_bytes_at_once_and_has_local_memory() {
    let (machine, module, data) = bench();
    let bytes: Vec<u8> = (0..2048u32).map(|index| (index * 7 % 251) as u8).collect();
    machine.write(data, &bytes).unwrap();
    let arguments = Arguments::new().u64(data).into_bytes();
    let options = LaunchOptions { block: 64.into(), arguments, ..LaunchOptions::default() };
    machine.run(&module, "wide", options).unwrap();
    let mut copy = vec![0; 2048];
    machine.read(data + 2048, &mut copy).unwrap();
    assert_eq!(copy, bytes);
}

#[test]
fn lanes_of_a_warp_that_wait_for_each_other_all_get_on() {
    assert_eq!(run("chain", 1, 96, 1), [96]);
}

#[test]
fn barriers_with_names_order_those_who_come() {
    let (machine, module, data) = bench();
    let arguments = Arguments::new().u64(data).into_bytes();
    machine
        .run(&module, "named_barriers", LaunchOptions { block: 64.into(), arguments, ..LaunchOptions::default() })
        .unwrap();
    assert_eq!(words(&machine, data, 32), (0..32).rev().collect::<Vec<u32>>());
}

#[test]
fn a_multicast_group_reduces_and_stores_over_its_members() {
    let (machine, module, out) = bench();
    let members: Vec<u64> = (0..3).map(|device| machine.allocate(64, MemoryKind::Device, device).unwrap()).collect();
    for (index, &member) in members.iter().enumerate() {
        let floats = [1.0f32, -2.5, 0.25, 1e20].map(|value| value * (index + 1) as f32);
        machine.write(member, &floats.map(f32::to_le_bytes).concat()).unwrap();
        // 256 + 0.75 + 0.75: rounded at each addition it would stay 256.
        let value = if index == 0 { 256.0 } else { 0.75 };
        machine.write(member + 16, &[bf16::from_f32(value).to_le_bytes(); 4].concat()).unwrap();
        machine.write(member + 32, &[7, 0, 0, 0, index as u8, 0, 0, 0]).unwrap();
    }
    let group = machine.multicast(64, &members).unwrap();
    let arguments = Arguments::new().u64(group).u64(out).into_bytes();
    machine
        .run(
            &module,
            "multicast",
            LaunchOptions { block: 1.into(), arguments: arguments.clone(), ..LaunchOptions::default() },
        )
        .unwrap();
    let want = [6.0f32, -15.0, 1.5, 6e20].map(f32::to_bits);
    assert_eq!(words(&machine, out, 4), want);
    let halves = bf16::from_f32(258.0).to_bits();
    assert_eq!(words(&machine, out + 16, 2), [u32::from(halves) << 16 | u32::from(halves); 2]);
    for (index, &member) in members.iter().enumerate() {
        assert_eq!(words(&machine, member + 32, 2), [5, index as u32 + 5]);
    }
    let outside = Arguments::new().u64(out).u64(out).into_bytes();
    let error = machine.run(
        &module,
        "multicast",
        LaunchOptions { block: 1.into(), arguments: outside, ..LaunchOptions::default() },
    );
    assert!(error.unwrap_err().to_string().contains("outside any multicast group"));
}

#[test]
fn what_is_stored_at_a_multicast_address_is_read_at_another_one_only_after_a_fence_for_aliases() {
    let (machine, module, _) = bench();
    let report = |kernel: &str| {
        let members: Vec<u64> =
            (0..2).map(|device| machine.allocate(64, MemoryKind::Device, device).unwrap()).collect();
        let group = machine.multicast(64, &members).unwrap();
        let arguments = Arguments::new().u64(group).u64(members[0]).into_bytes();
        machine
            .run(&module, kernel, LaunchOptions { block: 64.into(), arguments, ..LaunchOptions::default() })
            .map_or_else(|error| error.to_string(), |_| String::new())
    };
    assert_eq!(report("aliases_fenced"), "");
    assert_eq!(report("aliases_fenced_later"), "");
    let early = report("aliases_fenced_too_early");
    assert!(early.starts_with("data race") && early.contains("without fence.proxy.alias"), "{early}");
}

#[test]
fn memory_of_another_device_needs_peer_access() {
    let machine = Machine::with_workers(1);
    let module = machine.load(&Arc::new(Module::parse(GRID).unwrap()), 0).unwrap();
    let data = machine.allocate(4096, MemoryKind::Device, 1).unwrap();
    let arguments = Arguments::new().u64(data).into_bytes();
    let options = |peers| LaunchOptions { arguments: arguments.clone(), peers, ..LaunchOptions::default() };
    machine.run(&module, "calls", options(Some(vec![1]))).unwrap();
    let error = machine.run(&module, "calls", options(Some(vec![]))).unwrap_err();
    assert!(error.to_string().contains("device 1's memory without peer access from device 0"), "{error}");
}

#[test]
fn launches_that_no_device_takes_are_refused() {
    let (machine, module, _) = bench();
    let refused = |kernel: &str, options| machine.run(&module, kernel, options).unwrap_err().to_string();
    assert!(refused("absent", LaunchOptions::default()).contains("expected a kernel of the module"));
    assert!(refused("calls", LaunchOptions::default()).contains("expected 8 argument bytes for calls, found 0"));
    let large = LaunchOptions { block: 2048.into(), arguments: vec![0; 8], ..LaunchOptions::default() };
    assert!(refused("calls", large).contains("1 to 1024 threads"));
}

#[test]
fn errors_say_what_was_expected_and_on_which_line() {
    for (text, want) in [
        ("", "line 1: expected `.version`, found the end of the text"),
        (".version 7.0\n.entry k(", "line 2: expected `.param`, found the end of the text"),
        (".version 7.0\n.entry k() {\n bra nowhere;\n}", "line 3: expected a label of this function, found `nowhere`"),
        (".version 7.0\n.entry k() {\n add.u32 %r1, %r2, 3;\n}", "line 3: expected a declared name, found `%r1`"),
        (
            ".version 7.0\n.entry k() {\n.reg .b16 %h<3>;\n add.u32 %h1, %h2, 3;\n}",
            "line 4: expected a register of 32 bits, found `%h1` of 16 bits",
        ),
        (
            ".version 7.0\n.entry k() {\n.reg .b32 %r<3>;\n add.silly.u32 %r1, %r2, 3;\n}",
            "line 4: unsupported instruction add.silly.u32 at line 4",
        ),
    ] {
        assert_eq!(Module::parse(text).unwrap_err().to_string(), want);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes of real files are replaced, removed, doubled and moved: whatever comes of it is a module or an error.
    #[test]
    fn no_text_makes_the_parser_panic(
        which in 0usize..5,
        edits in prop::collection::vec((0usize..1 << 16, 0usize..6, "[ -~\n]{0,3}", 0usize..40), 1..12),
    ) {
        let files = [GRID, include_str!("access.ptx"), include_str!("shared.ptx"), include_str!("flags.ptx"), include_str!("sum.ptx")];
        let mut bytes = files[which].as_bytes().to_vec();
        for (at, kind, text, length) in edits {
            let at = at % bytes.len().max(1);
            let end = (at + length).min(bytes.len());
            match kind {
                0 => { bytes.splice(at..end.min(at + 1), text.bytes()); }
                1 => { bytes.drain(at..end); }
                2 => { let copy = bytes[at..end].to_vec(); bytes.splice(at..at, copy); }
                3 => bytes.truncate(at.max(100)),
                4 => { let part: Vec<u8> = bytes.drain(at..end).collect(); let to = at / 2; bytes.splice(to..to, part); }
                _ => { bytes.splice(at..at, "99999999999".bytes()); }
            }
        }
        let _ = Module::parse(&String::from_utf8_lossy(&bytes));
    }
}
