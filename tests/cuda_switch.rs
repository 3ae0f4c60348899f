//! Ranks on CUDA devices that hang on a switch with a reduction unit: which calls leave the work to it, that it comes out right, and
//! what happens where it cannot be had. On the driver in software, whose race detector watches.

mod software_driver;

use std::time::Duration;

use half::{bf16, f16};
use software_driver::Software;
use tutti::cuda::{self, DeviceBuffer, Path};
use tutti::ptx::{Version, check_multimem};
use tutti::{Algorithm, Communicator, Element, Error, Options, Reduction};

/// Runs `body` on a thread for each rank; what each returned.
fn on_threads<R: Send>(ranks: &[Communicator], body: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

/// Elements that hold small whole numbers.
trait Small: Element + PartialEq + std::fmt::Debug {
    fn of(number: i64) -> Self;
}

macro_rules! small {
    ($($type:ty: $of:expr),* $(,)?) => {
        $(
            impl Small for $type {
                fn of(number: i64) -> Self {
                    $of(number)
                }
            }
        )*
    };
}

small! {
    f32: |number| number as f32,
    f64: |number| number as f64,
    f16: |number| f16::from_f64(number as f64),
    bf16: |number| bf16::from_f64(number as f64),
    i32: |number| number as i32,
    u32: |number| number as u32,
    i64: |number| number,
    u64: |number| number as u64,
    u8: |number| number as u8,
}

/// What rank `rank` has at `index`: numbers whose sums over a few ranks every type holds exactly.
fn number(rank: usize, index: usize) -> i64 {
    ((index * 5 + index / 7 + 3 * rank) % 23) as i64
}

/// What all ranks' numbers at `index` come to.
fn reduced(ranks: usize, reduction: Reduction, index: usize) -> i64 {
    let numbers = (0..ranks).map(|rank| number(rank, index));
    let fold: fn(i64, i64) -> i64 = match reduction {
        Reduction::Sum => |left, right| left + right,
        Reduction::Min => i64::min,
        Reduction::Max => i64::max,
        Reduction::Band => |left, right| left & right,
        Reduction::Bor => |left, right| left | right,
        Reduction::Bxor => |left, right| left ^ right,
        other => panic!("no switch does {other}"),
    };
    numbers.reduce(fold).expect("there are ranks")
}

fn read<T: Small>(buffer: &DeviceBuffer<T>) -> Vec<T> {
    let mut elements = vec![T::of(0); buffer.len()];
    buffer.read(&mut elements).expect("the copy is made");
    elements
}

/// A buffer in memory that a switch reaches, with a rank's numbers.
fn numbers<T: Small>(rank: &Communicator, count: usize) -> DeviceBuffer<T> {
    let mut buffer = rank.alloc(count).expect("there is room");
    buffer.write(&(0..count).map(|index| T::of(number(rank.rank(), index))).collect::<Vec<_>>()).expect("it is copied");
    buffer
}

fn zeros<T: Small>(rank: &Communicator, count: usize) -> DeviceBuffer<T> {
    let mut buffer = rank.alloc(count).expect("there is room");
    buffer.write(&vec![T::of(0); count]).expect("it is copied");
    buffer
}

/// Every collective that the switch has a part in, out of place and in place, on `count` elements.
fn check_calls<T: Small>(ranks: &[Communicator], reduction: Reduction, count: usize) {
    on_threads(ranks, |rank| {
        let (size, me) = (rank.rank_count(), rank.rank());
        let of = |index| T::of(reduced(size, reduction, index));
        let nvls = || rank.call().algorithm(Algorithm::Nvls);
        let (input, mut output) = (numbers::<T>(rank, count), zeros::<T>(rank, count));
        nvls().all_reduce(&input, &mut output, reduction).expect("the call is right");
        assert_eq!(read(&output), (0..count).map(of).collect::<Vec<_>>(), "all_reduce {reduction}");

        let mut buffer = numbers::<T>(rank, count);
        nvls().all_reduce_in_place(&mut buffer, reduction).expect("the call is right");
        assert_eq!(read(&buffer), (0..count).map(of).collect::<Vec<_>>(), "all_reduce in place {reduction}");

        let (input, mut output) = (numbers::<T>(rank, size * count), zeros::<T>(rank, count));
        nvls().reduce_scatter(&input, &mut output, reduction).expect("the call is right");
        let block = (me * count..(me + 1) * count).map(of).collect::<Vec<_>>();
        assert_eq!(read(&output), block, "reduce_scatter {reduction}");

        let root = size - 1;
        let (input, mut output) = (numbers::<T>(rank, count), zeros::<T>(rank, count));
        nvls().reduce(&input, &mut output, reduction, root).expect("the call is right");
        if me == root {
            assert_eq!(read(&output), (0..count).map(of).collect::<Vec<_>>(), "reduce {reduction}");
        }
    });
}

/// Every collective that does not reduce.
fn check_copies<T: Small>(ranks: &[Communicator], count: usize) {
    on_threads(ranks, |rank| {
        let size = rank.rank_count();
        let nvls = || rank.call().algorithm(Algorithm::Nvls);
        let (input, mut output) = (numbers::<T>(rank, count), zeros::<T>(rank, size * count));
        nvls().all_gather(&input, &mut output).expect("the call is right");
        let all = (0..size * count).map(|index| T::of(number(index / count, index % count)));
        assert_eq!(read(&output), all.collect::<Vec<_>>(), "all_gather");

        let mut buffer = numbers::<T>(rank, count);
        nvls().broadcast_in_place(&mut buffer, 1).expect("the call is right");
        assert_eq!(read(&buffer), (0..count).map(|index| T::of(number(1, index))).collect::<Vec<_>>(), "broadcast");
    });
}

fn accesses(software: &Software, devices: usize) -> u64 {
    (0..devices).map(|device| software.multimem_accesses(device)).sum()
}

#[test]
fn whatever_a_switch_reduces_comes_out_right_on_every_rank() {
    let software = Software::new("devices = 3\n");
    let devices = software.devices(3);
    let paths = cuda::paths(&devices).expect("there are paths");
    assert!(paths.has_switch(), "{:?}", paths.warnings());
    let ranks = cuda::local(&devices).expect("the ranks are made");
    let capability = Version { major: 9, minor: 0 };
    let mut kinds = 0;
    macro_rules! check {
        ($($type:ty),*) => {
            $(
                for reduction in <$type>::DTYPE.reductions() {
                    if check_multimem(<$type>::DTYPE, reduction, capability).is_ok() {
                        let before = accesses(&software, 3);
                        check_calls::<$type>(&ranks, reduction, 301);
                        assert!(accesses(&software, 3) > before, "{reduction} of {} went by the switch", <$type>::DTYPE);
                        kinds += 1;
                    }
                }
            )*
        };
    }
    check!(f32, f64, f16, bf16, i32, u32, i64, u64);
    assert!(kinds >= 20, "{kinds}");
    for count in [1, 15, 16, 17, 1000] {
        check_copies::<u8>(&ranks, count);
    }
    for count in [0, 1, 7, 8, 24, 25, 3000, 40_000] {
        check_calls::<f32>(&ranks, Reduction::Sum, count);
        check_copies::<f32>(&ranks, count);
    }
    // What no switch does is done without one.
    let before = accesses(&software, 3);
    check_calls::<f32>(&ranks, Reduction::Max, 301);
    check_calls::<u8>(&ranks, Reduction::Sum, 301);
    assert_eq!(accesses(&software, 3), before);
    assert_eq!(software.faults(), "");
}

#[test]
fn large_calls_of_many_ranks_go_by_the_switch_unasked_and_small_ones_do_not() {
    let software = Software::new("devices = 5\n");
    let ranks = cuda::local(&software.devices(5)).expect("the ranks are made");
    let large = (1 << 20) / 4;
    for (count, switched) in [(1000, false), (large, true)] {
        let before = accesses(&software, 5);
        on_threads(&ranks, |rank| {
            let mut buffer = numbers::<f32>(rank, count);
            rank.all_reduce_in_place(&mut buffer, Reduction::Sum).expect("the call is right");
            let last = count - 1;
            assert_eq!(read(&buffer)[last], reduced(5, Reduction::Sum, last) as f32);
            // Memory of the host is not what a switch reaches.
            let mut copied: Vec<f32> = (0..count).map(|index| number(rank.rank(), index) as f32).collect();
            if !switched {
                rank.all_reduce_in_place(&mut copied, Reduction::Sum).expect("the call is right");
            }
        });
        assert_eq!(accesses(&software, 5) > before, switched, "{count} elements");
    }
    assert_eq!(software.faults(), "");
}

#[test]
fn parts_of_buffers_go_by_the_switch_where_they_are_aligned_for_it() {
    let software = Software::new("devices = 2\n");
    let ranks = cuda::local(&software.devices(2)).expect("the ranks are made");
    for (start, switched) in [(8, true), (1, false), (4, false), (16, true)] {
        let before = accesses(&software, 2);
        on_threads(&ranks, |rank| {
            let mut buffer = numbers::<f32>(rank, 1000);
            let call = rank.call().algorithm(Algorithm::Nvls);
            call.all_reduce_in_place(&mut buffer.slice(start..900), Reduction::Sum).expect("the call is right");
            let is_in = |index: &usize| (start..900).contains(index);
            for (index, came) in read(&buffer).into_iter().enumerate() {
                let sum = if is_in(&index) { reduced(2, Reduction::Sum, index) } else { number(rank.rank(), index) };
                assert_eq!(came, sum as f32, "element {index}");
            }
        });
        assert_eq!(accesses(&software, 2) > before, switched, "from element {start}");
    }
    assert_eq!(software.faults(), "");
}

#[test]
fn buffers_at_different_places_are_an_error_on_every_rank_before_anything_is_touched() {
    let software = Software::new("devices = 2\n");
    let ranks = cuda::local(&software.devices(2)).expect("the ranks are made");
    let errors = on_threads(&ranks, |rank| {
        // One rank has allocated something else before.
        let _other = (rank.rank() == 1).then(|| zeros::<f32>(rank, 10_000));
        let mut buffer = numbers::<f32>(rank, 1000);
        let call = rank.call().algorithm(Algorithm::Nvls);
        let error = call.all_reduce_in_place(&mut buffer, Reduction::Sum).expect_err("the places differ");
        assert_eq!(read(&buffer), (0..1000).map(|index| number(rank.rank(), index) as f32).collect::<Vec<_>>());
        error
    });
    for error in &errors {
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("by nvls") && text.contains("rank 0") && text.contains("rank 1"), "{text}");
        assert!(text.contains("places"), "{text}");
    }
    assert_eq!(software.faults(), "");
}

#[test]
fn memory_that_comes_back_is_at_the_same_places_again() {
    let software = Software::new("devices = 2\n");
    let ranks = cuda::local(&software.devices(2)).expect("the ranks are made");
    on_threads(&ranks, |rank| {
        for round in 0..4 {
            let buffers: Vec<DeviceBuffer<f32>> =
                [10, 5000, 2_000_000, 300, 1].map(|count| rank.alloc(count).expect("there is room")).into();
            drop(buffers);
            let mut buffer = numbers::<f32>(rank, 1000 + round);
            rank.call()
                .algorithm(Algorithm::Nvls)
                .all_reduce_in_place(&mut buffer, Reduction::Sum)
                .expect("it is right");
            assert_eq!(read(&buffer)[999], reduced(2, Reduction::Sum, 999) as f32);
        }
    });
    assert!(accesses(&software, 2) > 0);
    // Buffers outlive their communicators, and what they were allocated from outlives these too.
    let kept = on_threads(&ranks, |rank| numbers::<f32>(rank, 100));
    drop(ranks);
    for (rank, buffer) in kept.iter().enumerate() {
        assert_eq!(read(buffer), (0..100).map(|index| number(rank, index) as f32).collect::<Vec<_>>());
    }
    assert_eq!(software.faults(), "");
}

#[test]
fn a_graph_of_switched_calls_is_replayed() {
    let software = Software::new("devices = 2\n");
    let ranks = cuda::local(&software.devices(2)).expect("the ranks are made");
    on_threads(&ranks, |rank| {
        let stream = rank.device().expect("a device runs it").stream().expect("there is room");
        let mut buffer = rank.alloc::<u64>(4000).expect("there is room");
        buffer.write(&vec![1 + rank.rank() as u64; 4000]).expect("it is copied");
        stream.begin_capture().expect("it begins");
        let call = || rank.call().algorithm(Algorithm::Nvls).on(&stream);
        call().all_reduce_in_place(&mut buffer, Reduction::Sum).expect("it is captured");
        call().broadcast_in_place(&mut buffer, 1).expect("it is captured");
        let graph = stream.end_capture().expect("it ends");
        for _ in 0..5 {
            graph.launch(&stream).expect("it is launched");
        }
        stream.synchronize().expect("they are made");
        assert_eq!(read(&buffer), vec![3 << 4; 4000]);
        rank.check().expect("nothing went wrong");
    });
    assert!(accesses(&software, 2) > 0);
    assert_eq!(software.faults(), "");
}

#[test]
fn a_part_of_a_communicator_has_a_switch_of_its_own_and_ranks_that_share_a_device_have_none() {
    let software = Software::new("devices = 3\n");
    let devices = software.devices(3);
    let ranks = cuda::local(&devices).expect("the ranks are made");
    let before = accesses(&software, 3);
    on_threads(&ranks, |rank| {
        let color = u32::from(rank.rank() == 1);
        let part = rank.split(Some(color), 0).expect("it is split").expect("it has a part");
        let mut buffer = numbers::<f32>(&part, 500);
        part.call().algorithm(Algorithm::Nvls).all_reduce_in_place(&mut buffer, Reduction::Sum).expect("it is right");
        assert_eq!(read(&buffer)[499], reduced(part.rank_count(), Reduction::Sum, 499) as f32);
    });
    assert!(accesses(&software, 3) > before);
    let shared = [devices[0].clone(), devices[1].clone(), devices[1].clone()];
    let ranks = cuda::local(&shared).expect("the ranks are made");
    let before = accesses(&software, 3);
    // Allocated before any kernel runs, for which the driver would wait on a device that two ranks share.
    let buffers: Vec<_> = ranks.iter().map(|rank| std::sync::Mutex::new(numbers::<f32>(rank, 1000))).collect();
    on_threads(&ranks, |rank| {
        let mut buffer = buffers[rank.rank()].lock().expect("nobody panicked");
        rank.call().algorithm(Algorithm::Nvls).all_reduce_in_place(&mut *buffer, Reduction::Sum).expect("it is right");
        assert_eq!(read(&buffer)[999], reduced(3, Reduction::Sum, 999) as f32);
    });
    assert_eq!(accesses(&software, 3), before);
    assert_eq!(software.faults(), "");
}

#[test]
fn a_switch_that_stores_something_else_is_dropped_with_a_warning() {
    let software = Software::new("devices = 3\n");
    let devices = software.devices(3);
    // The pairs are tried before anything is wrong.
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        cuda::paths(&[devices[one].clone(), devices[other].clone()]).expect("there is a path");
    }
    software.inject("[[corrupt_peer_writes]]\npair = [0, 2]\nevery = 7\n");
    let paths = cuda::paths(&devices).expect("there are paths");
    assert!(!paths.has_switch());
    assert_eq!(paths.path(0, 2), Path::Peer);
    let [warning] = paths.warnings() else { panic!("{:?}", paths.warnings()) };
    assert!(warning.starts_with("devices 0, 1 and 2: the switch does not reduce: "), "{warning}");
    assert!(!warning.contains("internal error"), "{warning}");
    software.clear();
    let ranks = cuda::local(&devices).expect("the ranks are made");
    let before = accesses(&software, 3);
    check_calls::<f32>(&ranks, Reduction::Sum, 1000);
    assert_eq!(accesses(&software, 3), before, "it stays dropped");
    assert_eq!(software.faults(), "");
}

#[test]
fn each_allocation_that_fails_is_an_error_or_a_slower_path_with_the_right_result() {
    let patience = Duration::from_secs(10);
    let options = Options::default().progress_timeout(patience).arrival_timeout(patience);
    let (mut switched, mut slower, mut errors) = (0, 0, 0);
    for allocation in 1..=24 {
        let faults = format!("devices = 2\n[[faults.allocation_failure]]\ndevice = 1\nallocation = {allocation}\n");
        let software = Software::new(&faults);
        let devices = software.devices(2);
        let made = cuda::paths(&devices).and_then(|paths| Ok((paths, cuda::local_with(&devices, options.clone())?)));
        let (paths, ranks) = match made {
            Ok(made) => made,
            Err(error) => {
                assert!(
                    matches!(error, Error::Cuda { .. } | Error::OutOfMemory { .. } | Error::NoPath { .. }),
                    "{error}"
                );
                errors += 1;
                continue;
            }
        };
        assert_eq!(paths.has_switch(), paths.warnings().is_empty(), "{:?}", paths.warnings());
        // Who finds no room makes no call.
        let allocate = |rank: &Communicator| rank.alloc::<f32>(1000).map(std::sync::Mutex::new);
        let Ok(buffers) = ranks.iter().map(allocate).collect::<tutti::Result<Vec<_>>>() else {
            errors += 1;
            continue;
        };
        let results = on_threads(&ranks, |rank| -> tutti::Result<()> {
            let mut buffer = buffers[rank.rank()].lock().expect("nobody panicked");
            buffer.write(&(0..1000).map(|index| number(rank.rank(), index) as f32).collect::<Vec<_>>())?;
            rank.call().algorithm(Algorithm::Nvls).all_reduce_in_place(&mut *buffer, Reduction::Sum)?;
            assert_eq!(read(&buffer)[999], reduced(2, Reduction::Sum, 999) as f32);
            Ok(())
        });
        match results.into_iter().find_map(Result::err) {
            Some(error) => {
                assert!(!error.to_string().is_empty());
                errors += 1;
            }
            None if paths.has_switch() => switched += 1,
            None => slower += 1,
        }
    }
    assert!(switched > 0 && slower > 0 && errors > 0, "{switched} {slower} {errors}");
}

#[test]
fn a_topology_without_one_has_no_switch_and_no_warning() {
    for topology in ["devices = 2\nmulticast = false\n", "devices = 2\n[device]\ncompute_capability = \"8.0\"\n"] {
        let software = Software::new(topology);
        let devices = software.devices(2);
        let paths = cuda::paths(&devices).expect("there is a path");
        assert!(!paths.has_switch());
        assert_eq!(paths.warnings(), [] as [String; 0]);
        let ranks = cuda::local(&devices).expect("the ranks are made");
        check_calls::<f32>(&ranks, Reduction::Sum, 100);
        assert_eq!(software.faults(), "");
    }
}
