//! Faults that were planted in small PTX files are reported, each with its kind, line and thread; their sound twins are not.

use std::sync::Arc;

use softgpu::{
    Arguments, Fault, FaultKind, Index3, LaunchError, LaunchOptions, LoadedModule, Machine, MemoryKind, Module,
};

/// A machine, the module of a file in this folder, and 4 KiB of zeros.
struct Bench {
    machine: Machine,
    module: LoadedModule,
    data: u64,
}

fn bench(text: &str) -> Bench {
    let machine = Machine::with_workers(2);
    let module = machine.load(&Arc::new(Module::parse(text).expect("the text is PTX")), 0).unwrap();
    let data = machine.allocate(4096, MemoryKind::Device, 0).unwrap();
    machine.write(data, &[0; 4096]).unwrap();
    Bench { machine, module, data }
}

impl Bench {
    fn options(&self, grid: u32, block: u32) -> LaunchOptions {
        let arguments = Arguments::new().u64(self.data).into_bytes();
        LaunchOptions { grid: grid.into(), block: block.into(), arguments, ..LaunchOptions::default() }
    }

    fn faults(&self, kernel: &str, grid: u32, block: u32) -> Vec<Fault> {
        match self.machine.run(&self.module, kernel, self.options(grid, block)) {
            Ok(_) => Vec::new(),
            Err(LaunchError::Faults { faults, .. }) => faults,
            Err(other) => panic!("{other}"),
        }
    }

    fn one(&self, kernel: &str, grid: u32, block: u32) -> Fault {
        let faults = self.faults(kernel, grid, block);
        assert_eq!(faults.len(), 1, "{faults:#?}");
        faults[0].clone()
    }
}

/// The line (counted from 1) that bears a mark.
fn line_of(text: &str, mark: &str) -> u32 {
    let at = text.lines().position(|line| line.ends_with(mark)).unwrap_or_else(|| panic!("no line ends with {mark}"));
    at as u32 + 1
}

fn thread(x: u32) -> Index3 {
    Index3 { x, y: 0, z: 0 }
}

const ACCESS: &str = include_str!("access.ptx");
const SHARED: &str = include_str!("shared.ptx");
const FLAGS: &str = include_str!("flags.ptx");

#[test]
fn a_store_behind_the_end_names_kernel_line_thread_and_address() {
    let bench = bench(ACCESS);
    let fault = bench.one("out_of_bounds", 1, 64);
    assert_eq!(fault.kind, FaultKind::OutOfBounds);
    assert_eq!(fault.place.kernel.as_deref(), Some("out_of_bounds"));
    assert_eq!(fault.place.line, line_of(ACCESS, "// behind the end"));
    assert_eq!((fault.place.block, fault.place.thread), (thread(0), thread(63)));
    assert_eq!(fault.address, Some(bench.data + 4096));
    let text = fault.to_string();
    assert!(text.contains("store of 4 bytes") && text.contains("0 bytes after one of 4096 bytes"), "{text}");
}

#[test]
fn a_use_of_freed_memory_is_told_from_a_wild_address() {
    let bench = bench(ACCESS);
    let options = bench.options(1, 64);
    bench.machine.free(bench.data).unwrap();
    let error =
        bench.machine.run(&bench.module, "misaligned", LaunchOptions { block: 1.into(), ..options }).unwrap_err();
    assert!(error.to_string().contains("has been freed"), "{error}");
}

#[test]
fn a_misaligned_load_is_reported_for_the_first_lane_that_makes_it() {
    let bench = bench(ACCESS);
    let fault = bench.one("misaligned", 1, 32);
    assert_eq!((fault.kind, fault.place.line), (FaultKind::Misaligned, line_of(ACCESS, "// not a multiple of 16")));
    assert_eq!((fault.place.thread, fault.address), (thread(1), Some(bench.data + 8)));
}

#[test]
fn a_read_of_bytes_that_nobody_wrote_is_reported_and_the_kernel_goes_on() {
    let bench = bench(ACCESS);
    let fresh = bench.machine.allocate(4096, MemoryKind::Device, 0).unwrap();
    bench.machine.write(fresh, &[1; 40]).unwrap();
    let mut options = bench.options(1, 32);
    options.arguments = Arguments::new().u64(fresh).into_bytes();
    let Err(LaunchError::Faults { faults, .. }) = bench.machine.run(&bench.module, "uninitialised", options.clone())
    else {
        panic!("nothing was reported");
    };
    assert_eq!(faults.len(), 1, "once for a line: {faults:#?}");
    assert_eq!(
        (faults[0].kind, faults[0].place.line),
        (FaultKind::Uninitialised, line_of(ACCESS, "// only 40 bytes are written"))
    );
    assert_eq!((faults[0].place.thread, faults[0].address), (thread(10), Some(fresh + 40)));
    let mut last = [0; 4];
    bench.machine.read(fresh + 2048 + 31 * 4, &mut last).unwrap();
    assert_eq!(last, [0; 4], "the last lane has stored what it found");
    bench.machine.run(&bench.module, "uninitialised", LaunchOptions { uninitialised: false, ..options }).unwrap();
}

#[test]
fn a_trap_ends_the_launch() {
    let bench = bench(ACCESS);
    let fault = bench.one("trapping", 2, 64);
    assert_eq!((fault.kind, fault.place.line), (FaultKind::Trap, line_of(ACCESS, "// gives up")));
    assert_eq!((fault.place.block, fault.place.thread), (thread(1), thread(40)));
}

#[test]
fn an_instruction_that_is_not_supported_is_named_with_its_line() {
    let text = include_str!("unsupported.ptx");
    let error = Module::parse(text).unwrap_err();
    assert_eq!(error.line, line_of(text, "// not here"));
    let want = format!("unsupported instruction wgmma.fence.sync.aligned at line {}", error.line);
    assert!(error.to_string().contains(&want), "{error}");
}

#[test]
fn two_threads_that_write_one_word_race_and_both_are_named() {
    let bench = bench(ACCESS);
    let fault = bench.one("racing", 1, 2);
    let line = line_of(ACCESS, "// both write here");
    assert_eq!((fault.kind, fault.place.line, fault.address), (FaultKind::Race, line, Some(bench.data)));
    let other = fault.other.expect("the other access is named");
    assert_eq!((fault.place.thread, other.thread, other.line), (thread(1), thread(0), line));
    bench.machine.run(&bench.module, "racing", LaunchOptions { races: false, ..bench.options(1, 2) }).unwrap();
}

#[test]
fn blocks_race_byte_by_byte() {
    let bench = bench(ACCESS);
    assert_eq!(bench.faults("neighbours", 2, 1), [], "each block has a byte of its own");
    let fault = bench.one("overlapping", 2, 1);
    assert_eq!(
        (fault.kind, fault.place.line),
        (FaultKind::Race, line_of(ACCESS, "// two bytes, one of them the neighbour's"))
    );
    assert_ne!(fault.place.block, fault.other.unwrap().block);
}

#[test]
fn a_missing_barrier_is_a_race_in_shared_memory() {
    let bench = bench(SHARED);
    assert_eq!(bench.faults("with_barrier", 3, 256), []);
    let faults = bench.faults("without_barrier", 1, 64);
    assert!(!faults.is_empty());
    for fault in &faults {
        assert!(matches!(fault.kind, FaultKind::Race | FaultKind::Uninitialised), "{fault}");
    }
    let race = faults.iter().find(|fault| fault.kind == FaultKind::Race).expect("a race");
    let lines = [line_of(SHARED, "// writes its own"), line_of(SHARED, "// reads its neighbour's")];
    assert!(lines.contains(&race.place.line) && lines.contains(&race.other.as_ref().unwrap().line), "{race}");
}

#[test]
fn lanes_in_lock_step_are_ordered_by_a_warp_barrier_only() {
    let bench = bench(SHARED);
    assert_eq!(bench.faults("warp_barrier", 1, 32), []);
    let faults = bench.faults("warp_vote", 1, 32);
    assert!(faults.iter().any(|fault| fault.kind == FaultKind::Race), "{faults:#?}");
    let options = LaunchOptions { votes_order_memory: true, ..bench.options(1, 32) };
    bench.machine.run(&bench.module, "warp_vote", options).unwrap();
}

#[test]
fn a_barrier_to_which_half_a_warp_comes_is_divergent() {
    let bench = bench(SHARED);
    let fault = bench.one("half_comes", 1, 32);
    assert_eq!((fault.kind, fault.place.line), (FaultKind::DivergentBarrier, line_of(SHARED, "// odd threads only")));
    assert_eq!(fault.place.thread, thread(1));
    let fault = bench.one("two_barriers", 1, 32);
    assert_eq!(fault.kind, FaultKind::DivergentBarrier);
    let lines = [line_of(SHARED, "// odd threads here"), line_of(SHARED, "// even threads there")];
    assert!(lines.contains(&fault.place.line), "{fault}");
    let fault = bench.one("some_exit", 1, 64);
    assert_eq!(
        (fault.kind, fault.place.line),
        (FaultKind::DivergentBarrier, line_of(SHARED, "// the others have exited"))
    );
}

#[test]
fn a_release_at_the_right_scope_carries_data_to_another_block() {
    let bench = bench(FLAGS);
    for kernel in ["release_gpu", "fences_gpu", "release_by_atomic"] {
        bench.machine.write(bench.data, &[0; 4096]).unwrap();
        assert_eq!(bench.faults(kernel, 2, 64), [], "{kernel}");
        let mut result = [0; 4];
        bench.machine.read(bench.data + 512, &mut result).unwrap();
        assert_eq!(u32::from_le_bytes(result), 77, "{kernel}");
    }
}

#[test]
fn a_wrong_scope_or_a_relaxed_flag_is_a_race_on_the_data() {
    let bench = bench(FLAGS);
    for (kernel, mark) in [
        ("release_cta", "// reads what was released at .cta"),
        ("relaxed", "// reads what was never released"),
        ("fences_cta", "// reads behind a fence at .cta"),
    ] {
        bench.machine.write(bench.data, &[0; 4096]).unwrap();
        let faults = bench.faults(kernel, 2, 64);
        let on_data = faults.iter().find(|fault| fault.place.line == line_of(FLAGS, mark));
        let fault = on_data.unwrap_or_else(|| panic!("{kernel}: {faults:#?}"));
        assert_eq!((fault.kind, fault.address), (FaultKind::Race, Some(bench.data + 256)));
        assert_eq!((fault.place.block, fault.other.as_ref().unwrap().block), (thread(1), thread(0)), "{kernel}");
    }
}

#[test]
fn device_scope_does_not_order_another_device() {
    let text = FLAGS;
    let machine = Machine::with_workers(2);
    let module = Arc::new(Module::parse(text).unwrap());
    for (kernels, races) in [(["produce_gpu", "consume_gpu"], true), (["produce_sys", "consume_sys"], false)] {
        let data = machine.allocate(4096, MemoryKind::Device, 0).unwrap();
        machine.write(data, &[0; 4096]).unwrap();
        let options = LaunchOptions { arguments: Arguments::new().u64(data).into_bytes(), ..LaunchOptions::default() };
        let running: Vec<_> = (0..2)
            .map(|device| {
                let loaded = machine.load(&module, device).unwrap();
                machine.launch(&loaded, kernels[device as usize], options.clone()).unwrap()
            })
            .collect();
        let results: Vec<_> = running.into_iter().map(|running| running.wait()).collect();
        assert_eq!(results.iter().any(Result::is_err), races, "{results:?}");
    }
}

#[test]
fn launches_are_ordered_by_waiting_and_not_by_luck() {
    let bench = bench(ACCESS);
    // One after the other: what the first wrote, the second may write.
    for _ in 0..3 {
        assert_eq!(bench.faults("neighbours", 4, 1), []);
    }
    let first = bench.machine.launch(&bench.module, "neighbours", bench.options(4, 1)).unwrap();
    let second = bench.machine.launch(&bench.module, "neighbours", bench.options(4, 1)).unwrap();
    let results = [first.wait(), second.wait()];
    assert!(results.iter().any(Result::is_err), "two at a time race: {results:?}");
    let first = bench.machine.launch(&bench.module, "neighbours", bench.options(4, 1)).unwrap();
    let after = vec![first.finished()];
    let options = LaunchOptions { after, ..bench.options(4, 1) };
    bench.machine.launch(&bench.module, "neighbours", options).unwrap().wait().unwrap();
}

#[test]
fn a_host_flag_releases_a_spinning_kernel() {
    let bench = bench(FLAGS);
    let running = bench.machine.launch(&bench.module, "consume_sys", bench.options(1, 32)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!running.is_finished());
    bench.machine.write(bench.data + 256, &77u32.to_le_bytes()).unwrap();
    bench.machine.store_release(bench.data, 4, 1).unwrap();
    running.wait().unwrap();
}

#[test]
fn a_kernel_that_never_ends_is_ended_by_abort_deadline_and_budget() {
    let bench = bench(FLAGS);
    let launch = |options| bench.machine.launch(&bench.module, "consume_sys", options).unwrap();
    let running = launch(bench.options(1, 32));
    running.abort();
    assert!(matches!(running.wait(), Err(LaunchError::Aborted { .. })));
    let deadline = Some(std::time::Duration::from_millis(30));
    let running = launch(LaunchOptions { deadline, ..bench.options(1, 32) });
    assert!(matches!(running.wait(), Err(LaunchError::Deadline { .. })));
    let running = launch(LaunchOptions { instructions_max: 10_000, ..bench.options(1, 32) });
    assert!(matches!(running.wait(), Err(LaunchError::Budget { .. })));
}

#[test]
fn lines_of_128_bytes_that_a_warp_stores_at_once_arrive_whole() {
    let bench = bench(FLAGS);
    for races in [false, true] {
        bench.machine.write(bench.data, &[0; 4096]).unwrap();
        bench.machine.run(&bench.module, "whole_lines", LaunchOptions { races, ..bench.options(2, 32) }).unwrap();
        let mut torn = [1; 256];
        bench.machine.read(bench.data + 1024, &mut torn).unwrap();
        assert_eq!(torn, [0; 256], "some lane found words of different stores in one line");
    }
}
