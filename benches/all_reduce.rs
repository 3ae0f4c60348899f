//! All-reduce over two in-process ranks, in place, against the floor of the machine.
//!
//! The floor is what two pinned threads need that add and store each other's halves with nothing else: every byte is read
//! once by one thread and written to both buffers, and one exchange of flags keeps the calls apart. No all-reduce can be
//! quicker. Both are measured in turn, round by round, because absolute figures drift on shared machines:
//!
//! ```text
//! cargo bench --bench all_reduce
//! ```
//!
//! prints the medians and their ratio for each size, then Criterion's statistics of both. With `TUTTI_BENCH_BYTES=65536` it
//! measures that size alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use tutti::{Communicator, Reduction};

const SIZES: [usize; 6] = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20];

/// Rounds of the comparison; medians are taken over them.
const ROUNDS: usize = 11;

/// Two threads that run the same job in step, one a rank each.
struct Pair {
    jobs: Vec<Sender<u64>>,
    results: Receiver<Duration>,
}

impl Pair {
    /// `job(rank)` makes the function that runs one call on that rank's thread.
    fn new<F: FnMut()>(job: impl Fn(usize) -> F + Send + Sync + 'static) -> Pair {
        let job = Arc::new(job);
        let (result, results) = channel();
        let jobs = (0..2)
            .map(|rank| {
                let (sender, receiver) = channel();
                let (job, result) = (Arc::clone(&job), result.clone());
                std::thread::spawn(move || {
                    pin(rank);
                    let mut call = job(rank);
                    while let Ok(iterations) = receiver.recv() {
                        call();
                        let start = Instant::now();
                        for _ in 0..iterations {
                            call();
                        }
                        if rank == 0 && result.send(start.elapsed()).is_err() {
                            return;
                        }
                    }
                });
                sender
            })
            .collect();
        Pair { jobs, results }
    }

    /// How long that many calls take on rank 0, after one that is not timed.
    fn run(&self, iterations: u64) -> Duration {
        for job in &self.jobs {
            job.send(iterations).expect("the rank's thread is there");
        }
        self.results.recv().expect("the rank's thread is there")
    }
}

/// Puts this thread on a processor of its own, if there is one.
fn pin(rank: usize) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(core) = cores.get(rank) {
        core_affinity::set_for_current(*core);
    }
}

fn tutti_pair(bytes: usize, memory: &Arc<Memory>) -> Pair {
    let memory = Arc::clone(memory);
    let ranks = std::sync::Mutex::new(tutti::local(2).expect("two ranks"));
    Pair::new(move |rank| {
        let communicator: Communicator = {
            let mut ranks = ranks.lock().expect("no rank panicked");
            let place = ranks.iter().position(|one| one.rank() == rank).expect("each rank is taken once");
            ranks.swap_remove(place)
        };
        let memory = Arc::clone(&memory);
        move || {
            // SAFETY: only this rank's calls use its buffer while they run.
            let buffer = unsafe { std::slice::from_raw_parts_mut(memory.address(rank), bytes / 4) };
            communicator.all_reduce_in_place(buffer, Reduction::Sum).expect("both ranks call");
        }
    })
}

/// The two ranks' buffers: the same memory for both sides of the comparison, since where its pages lie in the caches changes
/// the time of either by half.
struct Memory([std::cell::UnsafeCell<Vec<f32>>; 2]);

// SAFETY: used by one job at a time, and as it says.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: usize) -> Arc<Memory> {
        let count = bytes / 4;
        Arc::new(Memory([vec![0.0; count].into(), vec![0.0; count].into()]))
    }

    fn address(&self, rank: usize) -> *mut f32 {
        // SAFETY: the vectors themselves never change.
        unsafe { (*self.0[rank].get()).as_ptr().cast_mut() }
    }
}

#[repr(align(128))]
struct Line(AtomicU64);

fn floor_pair(bytes: usize, memory: &Arc<Memory>) -> Pair {
    let count = bytes / 4;
    let shared = Arc::new((Arc::clone(memory), [Line(AtomicU64::new(0)), Line(AtomicU64::new(0))]));
    Pair::new(move |rank| {
        let shared = Arc::clone(&shared);
        let half = count / 2;
        let (start, len) = if rank == 0 { (0, half) } else { (half, count - half) };
        let mut calls = 0;
        move || {
            let (memory, arrived) = &*shared;
            let [left, right] = [memory.address(0), memory.address(1)];
            // SAFETY: each thread writes only its own half of either buffer, and nobody else looks at them.
            let (left, right) = unsafe {
                (
                    std::slice::from_raw_parts_mut(left.add(start), len),
                    std::slice::from_raw_parts_mut(right.add(start), len),
                )
            };
            add_both(left, right);
            calls += 1;
            arrived[rank].0.store(calls, Ordering::Release);
            while arrived[1 - rank].0.load(Ordering::Acquire) < calls {
                std::hint::spin_loop();
            }
        }
    })
}

/// `left = right = left + right` with the widest vectors that the machine has.
fn add_both(left: &mut [f32], right: &mut [f32]) {
    #[inline(always)]
    fn body(left: &mut [f32], right: &mut [f32]) {
        for (left, right) in left.iter_mut().zip(right) {
            let sum = *left + *right;
            *left = sum;
            *right = sum;
        }
    }
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn avx512(left: &mut [f32], right: &mut [f32]) {
            body(left, right);
        }
        #[target_feature(enable = "avx2")]
        fn avx2(left: &mut [f32], right: &mut [f32]) {
            body(left, right);
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has it.
            return unsafe { avx512(left, right) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has it.
            return unsafe { avx2(left, right) };
        }
    }
    body(left, right);
}

/// Calls that take some 20 ms at the floor.
fn iterations(bytes: usize) -> u64 {
    ((200 << 20) / bytes.max(2 << 10) as u64).max(1)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The sizes to measure.
fn sizes() -> Vec<usize> {
    match std::env::var("TUTTI_BENCH_BYTES") {
        Ok(bytes) => vec![bytes.parse().expect("TUTTI_BENCH_BYTES is a number of bytes")],
        Err(_) => SIZES.to_vec(),
    }
}

fn compare() {
    println!("all_reduce f32 sum, 2 ranks, in place; medians of {ROUNDS} rounds, in turn");
    println!("{:>12} {:>14} {:>14} {:>8}", "size (B)", "floor (us)", "tutti (us)", "ratio");
    for bytes in sizes() {
        let memory = Memory::new(bytes);
        let (floor, tutti) = (floor_pair(bytes, &memory), tutti_pair(bytes, &memory));
        let calls = iterations(bytes);
        let (mut floor_us, mut tutti_us, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let [floor, tutti] = [&floor, &tutti].map(|pair| pair.run(calls).as_secs_f64() * 1e6 / calls as f64);
            floor_us.push(floor);
            tutti_us.push(tutti);
            ratios.push(tutti / floor);
        }
        println!("{bytes:>12} {:>14.3} {:>14.3} {:>8.2}", median(floor_us), median(tutti_us), median(ratios));
    }
}

fn main() {
    compare();
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("all_reduce_f32_sum_2_ranks_in_place");
    group.sample_size(10);
    for bytes in sizes() {
        group.throughput(Throughput::Bytes(bytes as u64));
        let memory = Memory::new(bytes);
        for (name, pair) in [("floor", floor_pair(bytes, &memory)), ("tutti", tutti_pair(bytes, &memory))] {
            group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                bencher.iter_custom(|iterations| pair.run(iterations));
            });
        }
    }
    group.finish();
    criterion.final_summary();
}
