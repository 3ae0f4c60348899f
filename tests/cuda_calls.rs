//! What ranks on CUDA devices can beside what every communicator can: calls on streams, graphs, memory that peers reach, and the bits
//! that CPU ranks have. On the driver in software.

mod software_driver;

use std::time::{Duration, Instant};

use software_driver::Software;
use tutti::cuda::{self, DeviceBuffer, DeviceSlice, Stream};
use tutti::{Algorithm, Communicator, DType, Error, Options, Reduction};

/// Runs `body` on a thread for each rank, with a stream of its device's; what each returned.
fn on_streams<R: Send>(ranks: &[Communicator], body: impl Fn(&Communicator, &Stream) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = ranks
            .iter()
            .map(|rank| {
                scope.spawn(move || {
                    let stream = rank.device().expect("a device runs it").stream().expect("there is room");
                    body(rank, &stream)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

fn read<T: tutti::Element + Default>(buffer: &DeviceBuffer<T>) -> Vec<T> {
    let mut elements = vec![T::default(); buffer.len()];
    buffer.read(&mut elements).expect("the copy is made");
    elements
}

#[test]
fn calls_on_a_stream_come_one_after_the_other_and_are_waited_for_by_their_handles() {
    let software = Software::new("devices = 3\nmulticast = false\n");
    let ranks = cuda::local(&software.devices(3)).expect("the ranks are made");
    on_streams(&ranks, |rank, stream| {
        let device = rank.device().expect("a device runs it");
        // Elements 1, 2, 3, ...: three times as much in each call.
        let mut buffer = rank.alloc::<i32>(1000).expect("there is room");
        buffer.write(&(1..=1000).collect::<Vec<_>>()).expect("the copy is made");
        let handles: Vec<_> = (0..5)
            .map(|_| rank.on(stream).all_reduce_in_place(&mut buffer, Reduction::Sum).expect("it is queued"))
            .collect();
        handles.last().expect("there are some").wait().expect("all of them are right");
        assert!(handles.iter().all(|handle| handle.is_done() == Ok(true)));
        assert_eq!(read(&buffer), (1..=1000).map(|one| one * 243).collect::<Vec<_>>());

        // Another stream's call comes after those before it; so does a blocking one.
        let other = device.stream().expect("there is room");
        let mut output = DeviceBuffer::<i32>::new(&device, 3000).expect("there is room");
        rank.on(&other).all_gather(&buffer, &mut output).expect("it is queued");
        rank.barrier().expect("everybody comes");
        rank.on(stream).barrier().expect("it is queued").wait().expect("everybody comes");
        let gathered = read(&output);
        assert!((0..3000).all(|index| gathered[index] == (index as i32 % 1000 + 1) * 243));
    });
    assert_eq!(software.faults(), "");
}

#[test]
fn a_graph_of_calls_is_replayed_and_its_calls_are_told_apart() {
    let software = Software::new("devices = 2\nmulticast = false\n");
    let ranks = cuda::local(&software.devices(2)).expect("the ranks are made");
    on_streams(&ranks, |rank, stream| {
        let mut buffer = rank.alloc::<u64>(5000).expect("there is room");
        buffer.write(&vec![1 + rank.rank() as u64; 5000]).expect("the copy is made");
        let mut once = vec![rank.rank() as u64; 10];
        rank.all_reduce_in_place(&mut once, Reduction::Sum).expect("a call before the capture");

        stream.begin_capture().expect("it begins");
        let first = rank.on(stream).all_reduce_in_place(&mut buffer, Reduction::Sum).expect("it is captured");
        rank.on(stream).broadcast_in_place(&mut buffer, 1).expect("it is captured");
        rank.on(stream).all_reduce_in_place(&mut buffer, Reduction::Max).expect("it is captured");
        let graph = stream.end_capture().expect("it ends");
        assert!(first.wait().is_err(), "nobody has made the call");
        assert_eq!(first.is_done(), Ok(false));

        for _ in 0..6 {
            graph.launch(stream).expect("it is launched");
        }
        stream.synchronize().expect("they are made");
        // 3, then twice as much each time.
        assert_eq!(read(&buffer), vec![3 << 5; 5000]);
        rank.check().expect("nothing went wrong");

        // Calls that are not captured go on where the graph has left off.
        rank.all_reduce_in_place(&mut once, Reduction::Sum).expect("a call after the replays");
        assert_eq!(once, vec![2; 10]);
        graph.launch(stream).expect("it is launched");
        stream.synchronize().expect("it is made");
        assert_eq!(read(&buffer), vec![3 << 6; 5000]);
    });
    assert_eq!(software.faults(), "");
}

#[test]
fn a_call_that_was_timed_is_captured_without_its_times() {
    let software = Software::new("devices = 2\nmulticast = false\n");
    let ranks = cuda::local(&software.devices(2)).expect("the ranks are made");
    on_streams(&ranks, |rank, stream| {
        let mut buffer = rank.alloc::<u32>(300).expect("there is room");
        buffer.write(&[1; 300]).expect("the copy is made");
        rank.start_trace(100);
        rank.all_reduce_in_place(&mut buffer, Reduction::Sum).expect("the call is right");
        assert!(!rank.take_trace().is_empty());
        stream.begin_capture().expect("it begins");
        rank.on(stream).all_reduce_in_place(&mut buffer, Reduction::Sum).expect("it is captured");
        let graph = stream.end_capture().expect("it ends");
        for _ in 0..3 {
            graph.launch(stream).expect("it is launched");
        }
        stream.synchronize().expect("they are made");
        assert_eq!(read(&buffer), [16; 300]);
        rank.check().expect("nothing went wrong");
    });
    assert_eq!(software.faults(), "");
}

#[test]
fn replays_that_differ_are_a_mismatch_on_every_rank_and_one_that_never_comes_is_named() {
    let software = Software::new("devices = 2\nmulticast = false\n");
    for is_missing in [false, true] {
        let options = Options::default().arrival_timeout(Duration::from_millis(400));
        let ranks = cuda::local_with(&software.devices(2), options).expect("the ranks are made");
        let begun = Instant::now();
        on_streams(&ranks, |rank, stream| {
            let mut buffer = rank.alloc::<f32>(100).expect("there is room");
            buffer.write(&[1.0; 100]).expect("the copy is made");
            let graph = |count: usize, buffer: &mut DeviceBuffer<f32>| {
                stream.begin_capture().expect("it begins");
                let mut part = buffer.slice(0..count);
                rank.on(stream).all_reduce_in_place(&mut part, Reduction::Sum).expect("it is captured");
                stream.end_capture().expect("it ends")
            };
            let (same, own) = (graph(100, &mut buffer), graph(50 + rank.rank(), &mut buffer));
            same.launch(stream).expect("it is launched");
            stream.synchronize().expect("it is made");
            assert_eq!(read(&buffer), [2.0; 100]);
            if is_missing {
                if rank.rank() == 0 {
                    same.launch(stream).expect("it is launched");
                }
            } else {
                own.launch(stream).expect("it is launched");
            }
            let error = loop {
                assert!(begun.elapsed() < Duration::from_secs(20), "nobody noticed");
                match rank.check() {
                    Ok(()) => std::thread::sleep(Duration::from_millis(5)),
                    Err(error) => break error,
                }
            };
            let text = error.to_string();
            match error {
                Error::Late { .. } if is_missing => assert!(text.contains("rank 1 has not come"), "{text}"),
                Error::Mismatch { .. } if !is_missing => {
                    assert!(text.contains("count 50") && text.contains("count 51"), "{text}");
                }
                _ => panic!("{text}"),
            }
            // The kernels end by themselves, and the context is as good as before.
            stream.synchronize().expect("the kernel has ended");
            buffer.write(&[3.0; 100]).expect("the copy is made");
            assert_eq!(read(&buffer), [3.0; 100]);
        });
    }
    assert_eq!(software.faults(), "");
}

#[test]
fn a_call_on_a_stream_that_nobody_waits_for_still_has_its_deadline() {
    let software = Software::new("devices = 2\nmulticast = false\n");
    let options = Options::default().arrival_timeout(Duration::from_millis(200));
    let ranks = cuda::local_with(&software.devices(2), options).expect("the ranks are made");
    let stream = software.device(0).stream().expect("there is room");
    let mut buffer = ranks[0].alloc::<f32>(10).expect("there is room");
    buffer.write(&[1.0; 10]).expect("the copy is made");
    let handle = ranks[0].on(&stream).all_reduce_in_place(&mut buffer, Reduction::Sum).expect("it is queued");
    let begun = Instant::now();
    stream.synchronize().expect("the kernel ends");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let text = handle.wait().expect_err("nobody else came").to_string();
    assert!(text.contains("rank 1 has not come to any call"), "{text}");
    assert_eq!(ranks[1].check().expect_err("it is broken for all").to_string(), text);
}

#[test]
fn memory_that_peers_reach_is_used_in_place_and_other_memory_is_not() {
    let software = Software::new("devices = 2\nmulticast = false\n");
    let ranks = cuda::local(&software.devices(2)).expect("the ranks are made");
    on_streams(&ranks, |rank, stream| {
        let device = rank.device().expect("a device runs it");
        let count = 100_000;
        let mut exposed = rank.alloc::<f32>(count).expect("there is room");
        let mut own = DeviceBuffer::<f32>::new(&device, count).expect("there is room");
        for round in 0..2 {
            exposed.write(&vec![1.5; count]).expect("the copy is made");
            own.write(&vec![1.5; count]).expect("the copy is made");
            let before = rank.memory();
            rank.all_reduce_in_place(&mut exposed, Reduction::Sum).expect("the call is right");
            let between = rank.memory();
            rank.on(stream)
                .all_reduce_in_place(&mut own, Reduction::Sum)
                .expect("it is queued")
                .wait()
                .expect("so is this");
            if round == 0 {
                assert_eq!((before.plans, between.plans, rank.memory().plans), (0, 1, 2), "two ways, so two plans");
            }
            assert_eq!(read(&exposed), vec![3.0; count]);
            assert_eq!(read(&own), vec![3.0; count]);
        }
        // Windows are only for memory that peers reach.
        let direct = rank.call().algorithm(Algorithm::Direct);
        let text = direct.all_reduce_in_place(&mut own, Reduction::Sum).expect_err("peers do not").to_string();
        assert!(text.contains("`alloc`") && text.contains("came direct"), "{text}");
        let (mut left, mut right) = (0.0, 0.0);
        // SAFETY: the memory is the buffer's.
        let mut raw = unsafe { DeviceSlice::<f32>::from_raw(&device, own.address(), count, true) };
        direct.all_reduce_in_place(&mut raw, Reduction::Sum).expect("the call is right");
        for element in read(&own) {
            (left, right) = (right, element);
        }
        assert_eq!([left, right], [6.0, 6.0]);
    });
    assert_eq!(software.faults(), "");
}

#[test]
fn buffers_and_streams_of_the_wrong_place_are_mistakes_that_break_nothing() {
    let software = Software::new("devices = 2\nmulticast = false\n");
    let ranks = cuda::local(&software.devices(2)).expect("the ranks are made");
    let streams = [0, 1].map(|ordinal| software.device(ordinal).stream().expect("there is room"));
    let mut other = ranks[1].alloc::<f32>(10).expect("there is room");
    let text = ranks[0].all_reduce_in_place(&mut other, Reduction::Sum).expect_err("another device's").to_string();
    assert_eq!(text, "all_reduce: input: expected memory of device 0, which runs rank 0, came memory of device 1");
    let mut own = ranks[0].alloc::<f32>(10).expect("there is room");
    let text =
        ranks[0].on(&streams[1]).all_reduce_in_place(&mut own, Reduction::Sum).expect_err("likewise").to_string();
    assert_eq!(text, "all_reduce: stream: expected a stream of device 0, which runs rank 0, came a stream of device 1");
    let mut host = [1.0_f32; 10];
    let text =
        ranks[0].on(&streams[0]).all_reduce_in_place(&mut host, Reduction::Sum).expect_err("the host's").to_string();
    assert_eq!(
        text,
        "all_reduce: input: expected memory of device 0, where a call is queued on a stream, came memory of the host"
    );
    let cpu = tutti::local(1).expect("one rank");
    let text = cpu[0].all_reduce_in_place(&mut own, Reduction::Sum).expect_err("a device's").to_string();
    assert!(text.contains("a CPU runs these ranks"), "{text}");
    let text = cpu[0].on(&streams[0]).barrier().expect_err("there are no streams").to_string();
    assert!(text.contains("a CPU runs these ranks") && text.contains("a stream of device 0"), "{text}");
    assert!(cpu[0].alloc::<f32>(1).is_err() && cpu[0].device().is_none());
    // Nothing has happened, and the ranks can be used.
    std::thread::scope(|scope| {
        for rank in &ranks {
            scope.spawn(|| {
                let mut buffer = [1.0_f32; 10];
                rank.all_reduce_in_place(&mut buffer, Reduction::Sum).expect("the call is right");
                assert_eq!(buffer, [2.0; 10]);
            });
        }
    });
}

/// Rank `rank`'s elements, as bits: any that a type has, NaNs aside.
fn elements<T: Copy>(rank: usize, count: usize, is_float: bool) -> Vec<T> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(rank as u64 + 1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 11
    };
    (0..count)
        .map(|_| {
            let mut bits = next();
            if is_float {
                // The top bits of the exponent apart, so that sums neither overflow nor are NaN.
                let width = 8 * size_of::<T>();
                let mantissa = match width {
                    8 => 3,
                    16 => 7,
                    32 => 23,
                    _ => 52,
                };
                let sign = bits >> 40 & 1;
                let exponent = match width {
                    8 => 5 + (bits >> 32) % 4,
                    16 => 13 + (bits >> 32) % 4,
                    32 => 120 + (bits >> 32) % 12,
                    _ => 1015 + (bits >> 32) % 12,
                };
                bits = sign << (width - 1) | exponent << mantissa | bits & ((1 << mantissa) - 1);
            }
            // SAFETY: an element is so many bytes of integers or a float, for which any bits will do; the machine is little-endian.
            unsafe { std::mem::transmute_copy(&bits) }
        })
        .collect()
}

#[test]
fn cuda_and_cpu_ranks_have_the_same_bits_for_every_type_and_reduction() {
    const RANKS: usize = 3;
    const COUNT: usize = 517;
    let software = Software::new("devices = 3\nmulticast = false\n");
    let device_ranks = cuda::local(&software.devices(RANKS)).expect("the ranks are made");
    let host_ranks = tutti::local(RANKS).expect("the ranks are made");
    let mut pairs = 0;
    for dtype in DType::ALL {
        for reduction in dtype.reductions() {
            let algorithms = [Algorithm::Ring, Algorithm::Tree, Algorithm::OneShot, Algorithm::Direct];
            let algorithm = algorithms[pairs % algorithms.len()];
            let results = |ranks: &[Communicator]| -> Vec<Vec<u8>> {
                std::thread::scope(|scope| {
                    let threads: Vec<_> = ranks
                        .iter()
                        .map(|rank| {
                            scope.spawn(move || {
                                tutti::with_element!(*dtype, T => {
                                    let mut buffer: Vec<T> = elements(rank.rank(), COUNT, !dtype.is_integer());
                                    let mut call = rank.call().algorithm(algorithm);
                                    if reduction == Reduction::ScaledSum {
                                        call = call.scale(if dtype.is_integer() { 3.0 } else { 0.5 });
                                    }
                                    call.all_reduce_in_place(&mut buffer, reduction).expect("the call is right");
                                    let bytes = buffer.as_ptr().cast::<u8>();
                                    // SAFETY: these are the buffer's bytes.
                                    unsafe { std::slice::from_raw_parts(bytes, size_of_val(&buffer[..])) }.to_vec()
                                })
                            })
                        })
                        .collect();
                    threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
                })
            };
            assert!(results(&device_ranks) == results(&host_ranks), "{reduction} of {dtype} by {algorithm}");
            pairs += 1;
        }
    }
    assert!(pairs > 100, "{pairs} pairs");
    assert_eq!(software.faults(), "");
}
