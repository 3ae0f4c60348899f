//! What it takes to plan an all-reduce, to prove the plan right and to simulate it, by the number of ranks: rings of four channels, on
//! one thread.
//!
//! ```console
//! $ cargo bench --bench planner
//! $ TUTTI_ALL_CASES=1 cargo bench --bench planner    # 512 and 1024 ranks too, which take minutes
//! ```

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tutti::plan::simulate::{Flat, Settings, simulate};
use tutti::plan::{Algorithm, Collective, Geometry, Plan, Rank, build_in_orders, verify};

const CHANNELS: usize = 4;

/// 64 KiB for each rank: a chunk for each block of each channel.
fn plan(rank_count: usize) -> Plan {
    let geometry = Geometry { slot_bytes: 512 << 10, slots: 8 };
    let orders = vec![(0..rank_count as u32).map(Rank).collect(); CHANNELS];
    let count = 16 * 1024 * rank_count as u64;
    build_in_orders(Collective::AllReduce, Algorithm::Ring, rank_count, count, 4, &geometry, &orders).expect("a plan")
}

fn planner(criterion: &mut Criterion) {
    let all = std::env::var_os("TUTTI_ALL_CASES").is_some();
    for rank_count in [8, 64, 512, 1024].into_iter().filter(|rank_count| all || *rank_count <= 64) {
        let mut group = criterion.benchmark_group("planner");
        group.sample_size(10).measurement_time(Duration::from_secs(if rank_count > 64 { 30 } else { 3 }));
        group.bench_function(BenchmarkId::new("plan", rank_count), |bencher| bencher.iter(|| plan(rank_count)));
        let plan = plan(rank_count);
        group.bench_function(BenchmarkId::new("verify", rank_count), |bencher| {
            bencher.iter(|| verify::verify(black_box(&plan)).expect("it is right"));
        });
        let network = Flat { rank_count, bandwidth_gb_per_s: 100.0, latency_us: 1.0 };
        let settings = Settings { records_max: 0, ..Settings::default() };
        let events = simulate(&plan, &network, &settings).expect("it ends").events;
        // Steps that run, each chunk of each program counted.
        group.throughput(Throughput::Elements(events));
        group.bench_function(BenchmarkId::new("simulate", rank_count), |bencher| {
            bencher.iter(|| simulate(black_box(&plan), &network, &settings));
        });
        group.finish();
    }
}

criterion_group!(benches, planner);
criterion_main!(benches);
