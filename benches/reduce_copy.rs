//! The host's kernels against a plain loop that adds two streams of f32s of the same bytes, on one processor.
//!
//! Each kernel is measured in turn with the plain loop, round by round, on the same memory, because absolute figures drift on
//! shared machines; what counts is the ratio of their rates. In the level-two cache the conversions show, out of cache
//! the memory does.
//!
//! ```text
//! cargo bench --bench reduce_copy
//! ```
//!
//! prints the medians and the ratio for each element type, reduction and place, then Criterion's statistics of the sums. With
//! `TUTTI_BENCH_BYTES=65536` it measures buffers of that size alone.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use tutti::{DType, Reduction};
use tutti_kernels::interpreter::{Kernel, StepOperands};
use tutti_kernels::layout::{Operand, operand_flag, operand_kind, step_flag};
use tutti_kernels::table::{Isa, Row, row};

/// Bytes of each of the three buffers: together in the level-two cache of any processor of today, and out of every cache.
const PLACES: [(&str, usize); 2] = [("L2", 96 << 10), ("memory", 64 << 20)];

/// What is measured: each for every place.
const KERNELS: [(DType, Reduction); 15] = [
    (DType::F32, Reduction::Sum),
    (DType::F16, Reduction::Sum),
    (DType::BF16, Reduction::Sum),
    (DType::F64, Reduction::Sum),
    (DType::F8E4M3, Reduction::Sum),
    (DType::F8E5M2, Reduction::Sum),
    (DType::I8, Reduction::Sum),
    (DType::I32, Reduction::Sum),
    (DType::F32, Reduction::Avg),
    (DType::F16, Reduction::Avg),
    (DType::BF16, Reduction::Avg),
    (DType::F32, Reduction::Max),
    (DType::F16, Reduction::Max),
    (DType::BF16, Reduction::Max),
    (DType::F8E4M3, Reduction::Max),
];

/// From where on the steps of plans stream their results.
const STREAMING_BYTES_MIN: usize = 16 << 20;

/// Rounds of the comparison; medians are taken over them.
const ROUNDS: usize = 21;

/// Two sources and a destination, each at the start of a page.
struct Buffers {
    memory: Vec<u8>,
    bytes: usize,
}

impl Buffers {
    const PAGE_BYTES: usize = 4096;

    fn new(bytes: usize) -> Buffers {
        // Between neighbours lies one line more, so that they do not compete for the same sets of the caches.
        let stride = bytes.next_multiple_of(Self::PAGE_BYTES) + 5 * 64;
        let mut memory = vec![0; 3 * stride + Self::PAGE_BYTES];
        // Elements of every type near one, and no subnormal numbers.
        for (index, byte) in memory.iter_mut().enumerate() {
            *byte = 0x38 + (index % 5) as u8;
        }
        Buffers { memory, bytes }
    }

    fn addresses(&mut self) -> [*mut u8; 3] {
        let stride = self.bytes.next_multiple_of(Self::PAGE_BYTES) + 5 * 64;
        let start = self.memory.as_ptr().align_offset(Self::PAGE_BYTES);
        [0, 1, 2].map(|nth| self.memory.as_mut_ptr().wrapping_add(start + nth * stride))
    }
}

/// The best instruction set of this machine.
fn isa() -> Isa {
    *tutti_kernels::isas!().last().expect("there is the baseline")
}

/// One step of a plan: `destination ← reduce(left, right)`, marked as averages are.
fn reduce(row: Row, [left, right, destination]: [*mut u8; 3], bytes: usize) {
    let operand = Operand { kind: operand_kind::LOCAL, flags: operand_flag::SCALE, index: 0, buffer: 0, offset: 0 };
    let (addresses, operands) = ([left, right, destination], [operand; 2]);
    let step = StepOperands {
        addresses: addresses.as_ptr(),
        operands: operands.as_ptr(),
        source_count: 2,
        destination_count: 1,
        flags: step_flag::FINISH | if bytes >= STREAMING_BYTES_MIN { step_flag::STREAMS } else { 0 },
        scale: 0.5_f32.to_bits().into(),
        finish: 1.0_f32.to_bits().into(),
    };
    // SAFETY: the three buffers are that long and apart, and nobody else uses them.
    unsafe { row.reduce_copy(&step, bytes) };
}

/// The plain loop, with the widest vectors that the machine has.
fn add([left, right, destination]: [*mut u8; 3], bytes: usize) {
    #[inline(always)]
    fn body(left: &[f32], right: &[f32], destination: &mut [f32]) {
        for ((left, right), destination) in left.iter().zip(right).zip(destination) {
            *destination = *left + *right;
        }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn avx512(left: &[f32], right: &[f32], destination: &mut [f32]) {
        body(left, right, destination);
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn avx2(left: &[f32], right: &[f32], destination: &mut [f32]) {
        body(left, right, destination);
    }
    let count = bytes / 4;
    // SAFETY: the three buffers are that long, aligned and apart, and nobody else uses them.
    let (left, right, destination) = unsafe {
        (
            std::slice::from_raw_parts(left.cast(), count),
            std::slice::from_raw_parts(right.cast(), count),
            std::slice::from_raw_parts_mut(destination.cast(), count),
        )
    };
    match isa() {
        // SAFETY: the processor has it.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512(left, right, destination) },
        // SAFETY: the processor has it.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2(left, right, destination) },
        Isa::Baseline => body(left, right, destination),
    }
}

fn time(calls: usize, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        call();
    }
    start.elapsed().as_secs_f64() / calls as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn kernel(dtype: DType, reduction: Reduction) -> Row {
    // SAFETY: the machine has the instruction set.
    unsafe { row(dtype as usize, reduction as usize, isa()) }.expect("the table has the row")
}

/// The places to measure.
fn places() -> Vec<(&'static str, usize)> {
    match std::env::var("TUTTI_BENCH_BYTES") {
        Ok(bytes) => vec![("given", bytes.parse().expect("TUTTI_BENCH_BYTES is a number of bytes"))],
        Err(_) => PLACES.to_vec(),
    }
}

fn compare() {
    println!("two sources, one destination, {:?}; medians of {ROUNDS} rounds, in turn", isa());
    println!(
        "{:>8} {:>12} {:>8} {:>6} {:>14} {:>14} {:>7}",
        "place", "bytes", "type", "redop", "plain (GB/s)", "tutti (GB/s)", "ratio"
    );
    for (place, bytes) in places() {
        let mut buffers = Buffers::new(bytes);
        let addresses = buffers.addresses();
        let calls = ((64 << 20) / bytes).max(1);
        for (dtype, reduction) in KERNELS {
            let row = kernel(dtype, reduction);
            let (mut plain_rates, mut rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let plain = time(calls, || add(addresses, bytes));
                let tutti = time(calls, || reduce(row, addresses, bytes));
                // Of result; three times as many bytes move.
                plain_rates.push(bytes as f64 / plain / 1e9);
                rates.push(bytes as f64 / tutti / 1e9);
                ratios.push(plain / tutti);
            }
            println!(
                "{place:>8} {bytes:>12} {:>8} {:>6} {:>14.2} {:>14.2} {:>7.2}",
                dtype.name(),
                reduction.name(),
                median(plain_rates),
                median(rates),
                median(ratios)
            );
        }
    }
}

fn main() {
    compare();
    let mut criterion = Criterion::default().configure_from_args();
    for (place, bytes) in places() {
        let mut group = criterion.benchmark_group(format!("reduce_copy_2_sources_1_destination_{place}"));
        group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
        group.throughput(Throughput::Bytes(bytes as u64));
        let mut buffers = Buffers::new(bytes);
        let addresses = buffers.addresses();
        group.bench_function(BenchmarkId::new("plain", bytes), |bencher| bencher.iter(|| add(addresses, bytes)));
        for (dtype, reduction) in KERNELS {
            let row = kernel(dtype, reduction);
            let name = format!("{}_{}", dtype.name(), reduction.name());
            group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                bencher.iter(|| reduce(row, addresses, bytes));
            });
        }
        group.finish();
    }
    criterion.final_summary();
}
