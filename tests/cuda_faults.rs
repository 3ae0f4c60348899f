//! What goes wrong on CUDA devices: each fault ends in a typed error, on every rank and in time, or in a slower path with the right
//! result. The driver in software brings the faults about.

mod software_driver;

use std::time::{Duration, Instant};

use software_driver::Software;
use tutti::cuda::{self, Path};
use tutti::{Communicator, Error, ErrorKind, Options, Reduction};

/// How long anything here may take that ends by itself.
const SOON: Duration = Duration::from_secs(20);

/// Two devices that reach each other.
const TWO: &str = "devices = 2\nmulticast = false\n";

/// Runs `body` on a thread for each rank; what each returned.
fn on_threads<R: Send>(ranks: &[Communicator], body: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

/// An all-reduce of `count` elements, checked.
fn sum(ranks: &[Communicator], count: usize) -> Vec<tutti::Result<()>> {
    on_threads(ranks, |rank| {
        let mut buffer: Vec<f32> = (0..count).map(|index| (index % 100 + rank.rank()) as f32).collect();
        rank.all_reduce_in_place(&mut buffer, Reduction::Sum)?;
        let ranks: usize = (0..rank.rank_count()).sum();
        for (index, came) in buffer.iter().enumerate() {
            assert_eq!(*came, (rank.rank_count() * (index % 100) + ranks) as f32, "element {index}");
        }
        Ok(())
    })
}

/// That the calls failed in time, with the same error of the machine's on every rank; its text.
fn machine_error(results: Vec<tutti::Result<()>>, since: Instant) -> String {
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
    let errors: Vec<Error> = results.into_iter().map(|result| result.expect_err("something went wrong")).collect();
    for error in &errors {
        assert_eq!(error.kind(), ErrorKind::Machine, "{error}");
        assert_eq!(error, &errors[0], "every rank gets the same error");
    }
    errors[0].to_string()
}

#[test]
fn refused_peer_access_is_a_slower_path_with_a_warning_that_says_what_was_seen() {
    let software = Software::new(&format!("{TWO}[[faults.refuse_peer_access]]\npair = [0, 1]\nstage = \"enable\"\n"));
    let devices = software.devices(2);
    let paths = cuda::paths(&devices).expect("there is another path");
    assert_eq!(paths.path(0, 1), Path::Host);
    let [warning] = paths.warnings() else { panic!("{:?}", paths.warnings()) };
    assert!(
        warning.starts_with("devices 0 and 1: peer access does not work: cuCtxEnablePeerAccess gave CUDA_ERROR_PEER_ACCESS_UNSUPPORTED (217)"),
        "{warning}"
    );
    let ranks = cuda::local(&devices).expect("the ranks are made");
    for count in [1, 1000, 100_000] {
        sum(&ranks, count).into_iter().for_each(|result| result.expect("the call is right"));
    }
    assert_eq!(software.faults(), "");
}

#[test]
fn devices_without_peer_access_use_memory_of_the_host_without_a_warning() {
    let software = Software::new("devices = 3\nmulticast = false\n[[links]]\nbetween = [0, 2]\nkind = \"none\"\n");
    let devices = software.devices(3);
    let paths = cuda::paths(&devices).expect("there is a path");
    assert_eq!([paths.path(0, 1), paths.path(1, 2), paths.path(2, 0)], [Path::Peer, Path::Peer, Path::Host]);
    assert_eq!(paths.path(1, 1), Path::Same);
    assert_eq!(paths.warnings(), [] as [String; 0]);
    let ranks = cuda::local(&devices).expect("the ranks are made");
    sum(&ranks, 10_000).into_iter().for_each(|result| result.expect("the call is right"));
    // Where not all reach each other there are no windows, and who asks for them is told so.
    let error = ranks[0].call().algorithm(tutti::Algorithm::Direct).all_reduce_in_place(&mut [1.0_f32], Reduction::Sum);
    let text = error.expect_err("there are no windows").to_string();
    assert!(text.contains("devices do not reach each other's memory") && text.contains("direct"), "{text}");
}

#[test]
fn a_path_that_corrupts_data_is_dropped_before_anybody_relies_on_it() {
    let software = Software::new(&format!("{TWO}[[faults.corrupt_peer_writes]]\npair = [0, 1]\nevery = 300\n"));
    let devices = software.devices(2);
    let paths = cuda::paths(&devices).expect("there is another path");
    assert_eq!(paths.path(0, 1), Path::Host);
    let warning = paths.warnings().join("\n");
    assert!(warning.starts_with("devices 0 and 1: peer access does not work: "), "{warning}");
    let ranks = cuda::local(&devices).expect("the ranks are made");
    sum(&ranks, 100_000).into_iter().for_each(|result| result.expect("the call is right"));
}

#[test]
fn a_driver_that_grants_what_does_not_work_is_an_error_that_says_so() {
    let software = Software::new(&format!("{TWO}[[faults.peer_access_lies]]\npair = [0, 1]\n"));
    let begun = Instant::now();
    // The access ends the devices' contexts, so there is no other path.
    let error = cuda::paths(&software.devices(2)).expect_err("the devices are lost");
    assert!(begun.elapsed() < SOON);
    assert_eq!(error.kind(), ErrorKind::Machine);
    assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{error}");
}

#[test]
fn a_launch_that_the_driver_refuses_is_the_same_error_on_every_rank() {
    for asynchronous in [false, true] {
        let software = Software::new(TWO);
        let ranks = cuda::local(&software.devices(2)).expect("the ranks are made");
        sum(&ranks, 1000).into_iter().for_each(|result| result.expect("the call is right"));
        software
            .inject(&format!("[[launch_error]]\ndevice = 1\nlaunch = 2\ncode = 719\nasynchronous = {asynchronous}\n"));
        sum(&ranks, 1000).into_iter().for_each(|result| result.expect("the first launch is right"));
        let begun = Instant::now();
        let text = machine_error(sum(&ranks, 1000), begun);
        assert!(text.contains("CUDA_ERROR_LAUNCH_FAILED (719)") && text.contains("rank 1"), "{text}");
    }
}

#[test]
fn memory_that_is_not_there_is_an_error_that_leaves_nothing_behind() {
    let software = Software::new(TWO);
    let devices = software.devices(2);
    let large_slots = || Options::default().slot_bytes(2 << 20);
    let ranks = cuda::local_with(&devices, large_slots()).expect("the ranks are made");
    software.inject("[[allocation_failure]]\ndevice = 1\nabove_bytes = 5000000\n");
    let begun = Instant::now();
    let text = machine_error(sum(&ranks, 100_000), begun);
    assert!(text.contains("no memory for") || text.contains("CUDA_ERROR_OUT_OF_MEMORY (2)"), "{text}");
    drop(ranks);
    software.clear();
    let ranks = cuda::local_with(&devices, large_slots()).expect("there is memory again");
    sum(&ranks, 100_000).into_iter().for_each(|result| result.expect("the call is right"));
}

#[test]
fn pinned_memory_that_is_not_there_is_an_error() {
    let software = Software::new(TWO);
    let devices = software.devices(2);
    cuda::paths(&devices).expect("they reach each other");
    software.inject("[[allocation_failure]]\nhost = true\nallocation = 1\n");
    let error = cuda::local(&devices).expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::Machine);
    assert!(
        error
            .to_string()
            .contains("making a communicator on CUDA devices: cuMemHostAlloc gave CUDA_ERROR_OUT_OF_MEMORY"),
        "{error}"
    );
}

#[test]
fn a_device_that_is_lost_in_a_call_ends_it_on_every_rank() {
    for moment in ["after_thread_instructions = 20000", "after_ms = 3"] {
        let software = Software::new("devices = 3\nmulticast = false\n");
        let ranks = cuda::local(&software.devices(3)).expect("the ranks are made");
        sum(&ranks, 1000).into_iter().for_each(|result| result.expect("the call is right"));
        software.inject(&format!("[[device_lost]]\ndevice = 2\nlaunch = 1\n{moment}\ncode = 999\n"));
        let begun = Instant::now();
        let text = machine_error(sum(&ranks, 400_000), begun);
        assert!(text.contains("rank 2") && text.contains("CUDA_ERROR_UNKNOWN (999)"), "{moment}: {text}");
    }
}

#[test]
fn a_slow_link_is_slow_and_right() {
    let software = Software::new(&format!("{TWO}[[faults.slow_link]]\npair = [0, 1]\nnanoseconds = 20000\n"));
    let ranks = cuda::local(&software.devices(2)).expect("the ranks are made");
    sum(&ranks, 3000).into_iter().for_each(|result| result.expect("the call is right"));
}

#[test]
fn a_deadline_and_an_abort_end_kernels_within_a_second_and_leave_the_devices_usable() {
    let software = Software::new(TWO);
    let devices = software.devices(2);
    let timeout = Duration::from_millis(300);
    for is_aborted in [false, true] {
        let options = Options::default().arrival_timeout(if is_aborted { SOON } else { timeout });
        let ranks = cuda::local_with(&devices, options).expect("the ranks are made");
        let begun = Instant::now();
        let error = std::thread::scope(|scope| {
            let abort = ranks[1].abort_handle();
            if is_aborted {
                scope.spawn(move || {
                    std::thread::sleep(timeout);
                    abort.abort("enough");
                });
            }
            ranks[0].all_reduce_in_place(&mut [1.0_f32; 100], Reduction::Sum).expect_err("nobody else comes")
        });
        assert!(begun.elapsed() < timeout + Duration::from_secs(1), "{:?}", begun.elapsed());
        let text = error.to_string();
        if is_aborted {
            assert_eq!(text, "the communicator was aborted by rank 1: enough");
        } else {
            assert!(text.contains("late: rank 1 has not come to any call"), "{text}");
        }
        drop(ranks);
        let ranks = cuda::local(&devices).expect("the devices are as before");
        sum(&ranks, 1000).into_iter().for_each(|result| result.expect("the call is right"));
    }
}

#[test]
fn more_blocks_than_a_device_holds_are_an_error_before_anything_waits_for_them() {
    let software = Software::new("devices = 1\nmulticast = false\n[device]\nmultiprocessors = 1\n");
    let devices = vec![software.device(0); 40];
    let ranks = cuda::local(&devices).expect("the ranks are made");
    let begun = Instant::now();
    let text = machine_error(sum(&ranks, 10), begun);
    assert!(text.starts_with("device 0: the ranks on it have "), "{text}");
    assert!(text.ends_with(" blocks in this call, and it holds 32 at once; use fewer ranks for each device"), "{text}");
}

#[test]
fn a_driver_that_is_missing_or_too_old_is_an_error_that_says_what_to_do() {
    let error = cuda::Driver::open_at("/there/is/no/libcuda.so.1").expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::Machine);
    let text = error.to_string();
    assert!(
        text.starts_with("no CUDA driver: /there/is/no/libcuda.so.1: ") && text.contains("TUTTI_LIBCUDA"),
        "{text}"
    );

    let software = Software::new("devices = 1\ndriver_version = 10020\n");
    let ranks = cuda::local(&[software.device(0)]).expect("the ranks are made");
    let text = machine_error(sum(&ranks, 10), Instant::now());
    assert!(text.contains("CUDA 10.2") && text.contains("driver 450"), "{text}");

    let software = Software::new("devices = 1\n[device]\ncompute_capability = \"6.1\"\n");
    let ranks = cuda::local(&[software.device(0)]).expect("the ranks are made");
    let text = machine_error(sum(&ranks, 10), Instant::now());
    assert!(text.contains("compute capability 6.1") && text.contains("7.0"), "{text}");
    let error = software.driver.device(1).expect_err("there is one device");
    assert_eq!(error.to_string(), "device: ordinal: expected a device below 1, came 1");
}

/// Four devices on which what may wait for kernels takes so long that others can launch theirs meanwhile.
const SLOW_TO_ALLOCATE: &str = "devices = 4\nmulticast = false\nsynchronising_ms = 3\n";

#[test]
fn no_rank_launches_while_another_one_still_allocates_for_all() {
    let software = Software::new(SLOW_TO_ALLOCATE);
    let devices: Vec<_> = (0..8).map(|rank| software.device(rank % 4)).collect();
    let ranks = cuda::local(&devices).expect("the ranks are made");
    let begun = Instant::now();
    // Each more than the one before, so more is allocated for each.
    for count in [1, 30_000, 70_000] {
        sum(&ranks, count).into_iter().for_each(|result| result.expect("the call is right"));
    }
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(software.faults(), "");
}

#[test]
fn a_group_allocates_for_all_of_its_communicators_before_it_launches_for_any() {
    let software = Software::new(SLOW_TO_ALLOCATE);
    let begun = Instant::now();
    // In whatever order the communicators come: that depends on where they are.
    for count in [10, 3000, 40_000] {
        let (pair, triple) = (cuda::local(&software.devices(2)), cuda::local(&software.devices(3)));
        let (pair, triple) = (pair.expect("two ranks"), triple.expect("three ranks"));
        let mut buffers: Vec<Vec<f32>> = (0..5).map(|_| vec![1.0; count]).collect();
        let mut again = vec![[1.0_f32; 9]; 5];
        let mut group = tutti::Group::new();
        for (rank, (buffer, again)) in pair.iter().chain(&triple).zip(buffers.iter_mut().zip(&mut again)) {
            group.all_reduce_in_place(rank, buffer, Reduction::Sum).expect("it is right");
            group.all_reduce_in_place(rank, again, Reduction::Sum).expect("it is right");
        }
        group.run().expect("it is right");
        for (index, (buffer, again)) in buffers.iter().zip(&again).enumerate() {
            let sum = if index < 2 { 2.0 } else { 3.0 };
            assert!(buffer.iter().chain(again).all(|came| *came == sum));
        }
    }
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(software.faults(), "");
}

#[test]
fn memory_is_not_given_back_while_kernels_wait_for_whoever_gives_it_back() {
    let software = Software::new(SLOW_TO_ALLOCATE);
    let begun = Instant::now();
    for _ in 0..3 {
        let ranks = cuda::local(&software.devices(4)).expect("the ranks are made");
        std::thread::scope(|scope| {
            for whole in ranks {
                scope.spawn(move || {
                    let part = whole.split(Some(0), 0).expect("all split").expect("a part");
                    let mut kept = whole.alloc::<f32>(100).expect("there is memory");
                    // The last one to drop it gives the whole's memory back, while the others' kernels wait for that rank.
                    drop(whole);
                    for _ in 0..3 {
                        kept.write(&[1.0; 100]).expect("it is memory");
                        part.all_reduce_in_place(&mut [1.0_f32; 9], Reduction::Sum).expect("it is right");
                    }
                });
            }
        });
    }
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    // Nothing is kept for ever.
    assert_eq!([0, 1, 2, 3].map(|device| software.allocated_bytes(device)), [0; 4]);
    assert_eq!(software.faults(), "");
}

#[test]
fn a_rank_that_runs_ahead_prepares_its_next_call_while_others_have_yet_to_begin_this_one() {
    let software = Software::new(SLOW_TO_ALLOCATE);
    let ranks = cuda::local(&software.devices(4)).expect("the ranks are made");
    let begun = Instant::now();
    // Who only sends is done with a reduce before others have begun, and then needs other code.
    let results = on_threads(&ranks, |rank| {
        rank.reduce_in_place(&mut [1.0_f32; 30], Reduction::Sum, 1)?;
        rank.reduce_in_place(&mut [1_i8; 30], Reduction::Max, 1)?;
        rank.reduce_in_place(&mut [1.0_f64; 30], Reduction::Prod, 1)?;
        rank.reduce_in_place(&mut [1_u16; 30], Reduction::Min, 1)?;
        rank.reduce_in_place(&mut [1_u32; 30], Reduction::Avg, 1)
    });
    results.into_iter().for_each(|result| result.expect("the calls are right"));
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(software.faults(), "");
}
