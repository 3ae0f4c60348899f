use proptest::prelude::*;

use super::*;
use crate::plan::{Algorithm, Collective, Geometry, build, published_bytes};
use crate::topology::{SlotLatency, preset};

/// Software that costs nothing.
const FREE: Software = Software {
    message: SlotLatency { nvlink_us: 0.0, pcie_us: 0.0, network_us: 0.0 },
    step_us: 0.0,
    launch_us: 0.0,
    switch_us: 0.0,
    launch_each_rank_us: 0.0,
    payload: 1.0,
};

fn settings(step_us: f64) -> Settings {
    Settings { software: Software { step_us, ..FREE }, ..Settings::default() }
}

/// Ranks with links of 10 GB/s, 1 us apart.
fn flat(rank_count: usize) -> Flat {
    Flat { rank_count, bandwidth_gb_per_s: 10.0, latency_us: 1.0 }
}

/// A plan whose chunks are as large as its blocks.
fn plan(collective: Collective, algorithm: Algorithm, rank_count: usize, bytes: u64) -> Plan {
    build(collective, algorithm, rank_count, bytes, 1, &Geometry { slot_bytes: 1 << 20, slots: 8 }).expect("a plan")
}

fn time_us(plan: &Plan, network: &dyn Network, settings: &Settings) -> f64 {
    simulate(plan, network, settings).expect("it ends").time_us
}

fn assert_close(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() <= 1e-6 * expected.abs() + 1e-5, "{what}: {found} us, expected {expected} us");
}

#[test]
fn a_ring_takes_what_the_formula_says() {
    // Thakur, Rabenseifner and Gropp 2005: 2 (N − 1) α + 2 (N − 1) / N · S / B. The last step sends nothing.
    for rank_count in [2, 3, 4, 8, 16] {
        let bytes = 64 * 1024 * rank_count as u64;
        let plan = plan(Collective::AllReduce, Algorithm::Ring, rank_count, bytes);
        let found = time_us(&plan, &flat(rank_count), &settings(0.5));
        let steps = 2.0 * (rank_count as f64 - 1.0);
        let block_us = 64.0 * 1024.0 / 10e3;
        // Each message: software, the link, the wire. The last receive takes software once more.
        assert_close(found, steps * (0.5 + 1.0 + block_us) + 0.5, &format!("{rank_count} ranks"));
    }
}

#[test]
fn a_message_takes_its_wire_and_its_software_while_the_sender_works_on() {
    let (mut seen_at_once, mut seen_late) = (settings(0.5), settings(0.5));
    seen_at_once.software.message.nvlink_us = 0.0;
    seen_late.software.message.nvlink_us = 3.0;
    // A ring of one chunk waits for each of its messages.
    let one_chunk = plan(Collective::AllReduce, Algorithm::Ring, 4, 4096);
    let times = [&seen_at_once, &seen_late].map(|settings| time_us(&one_chunk, &flat(4), settings));
    assert_close(times[1] - times[0], 6.0 * 3.0, "six messages");
    // A sender of many waits for none but the last.
    let geometry = Geometry { slot_bytes: 8 << 10, slots: 8 };
    let many =
        build(Collective::Broadcast { root: Rank(0) }, Algorithm::Chain, 2, 1 << 20, 1, &geometry).expect("a plan");
    let times = [&seen_at_once, &seen_late].map(|settings| time_us(&many, &flat(2), settings));
    assert_close(times[1] - times[0], 3.0, "the last message");
}

#[test]
fn the_launch_is_added_once() {
    let plan = plan(Collective::AllReduce, Algorithm::Ring, 4, 4096);
    let (without, mut with) = (settings(0.5), settings(0.5));
    (with.software.launch_us, with.software.launch_each_rank_us) = (10.0, 2.0);
    assert_close(time_us(&plan, &flat(4), &with), time_us(&plan, &flat(4), &without) + 18.0, "launch");
}

#[test]
fn two_flows_on_a_link_take_twice_as_long() {
    // Rank 0 sends to two others at once over its one link out.
    let to_one = plan(Collective::Broadcast { root: Rank(0) }, Algorithm::Direct, 2, 1 << 19);
    let to_two = plan(Collective::Broadcast { root: Rank(0) }, Algorithm::Direct, 3, 1 << 19);
    let bytes_us = f64::from(1 << 19) / 10e3;
    let (one, two) = (time_us(&to_one, &flat(2), &settings(0.0)), time_us(&to_two, &flat(3), &settings(0.0)));
    assert!((two - one - bytes_us).abs() < 0.1, "{one} us for one, {two} us for two, {bytes_us} us more expected");
}

#[test]
fn bytes_on_links_are_those_that_are_published() {
    for algorithm in Algorithm::ALL {
        for &collective in algorithm.collectives() {
            if algorithm == Algorithm::Nvls {
                continue;
            }
            for rank_count in [1, 2, 3, 5, 8] {
                let plan = plan(collective, algorithm, rank_count, 1000);
                let found = simulate(&plan, &flat(rank_count), &settings(0.1)).expect("it ends");
                let sent: Vec<u64> = (0..rank_count).map(|rank| found.link_bytes[2 * rank]).collect();
                assert_eq!(sent, published_bytes(&plan).expect("a formula"), "{algorithm} {collective} {rank_count}");
            }
        }
    }
}

#[test]
fn a_pipeline_takes_its_hops_and_then_a_chunk_at_a_time() {
    let (rank_count, chunks) = (5_u64, 32_u64);
    let geometry = Geometry { slot_bytes: 8 << 10, slots: 8 };
    let bytes = chunks * (8 << 10);
    let root = Rank(0);
    let plan = build(Collective::Broadcast { root }, Algorithm::Chain, 5, bytes, 1, &geometry).expect("a plan");
    let network = Flat { latency_us: 0.0, ..flat(5) };
    let found = time_us(&plan, &network, &settings(0.0));
    let chunk_us = 8.0 * 1024.0 / 10e3;
    // N − 2 + k turns (planning: pipelined chain).
    assert_close(found, (rank_count - 2 + chunks) as f64 * chunk_us, "pipelined chain");
}

#[test]
fn the_same_simulation_takes_the_same_time() {
    let cluster = preset("dgx1v x2", None).expect("a machine");
    for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::OneShot] {
        let plan = plan(Collective::AllReduce, algorithm, 16, 1 << 22);
        let first = simulate(&plan, &cluster, &Settings::default()).expect("it ends");
        assert_eq!(simulate(&plan, &cluster, &Settings::default()).expect("it ends"), first);
        assert!(first.time_us > 0.0 && first.critical_path.is_some());
    }
}

#[test]
fn a_slow_link_and_a_slow_rank_take_longer_and_a_dead_link_is_named() {
    let cluster = preset("dgx-a100", None).expect("a machine");
    let plan = plan(Collective::AllReduce, Algorithm::Ring, 8, 1 << 26);
    let well = time_us(&plan, &cluster, &Settings::default());
    let link = cluster.path(0, 1).hops[0].index();
    let slow = time_us(&plan, &cluster, &Settings { slow_links: vec![(link, 0.25)], ..Settings::default() });
    assert!(slow > 2.0 * well, "{slow} us with a slow link, {well} us without");
    let slow = time_us(&plan, &cluster, &Settings { slow_ranks: vec![(Rank(3), 10.0)], ..Settings::default() });
    assert!(slow > 1.05 * well, "{slow} us with a slow rank, {well} us without");
    let dead = Settings { slow_links: vec![(link, 0.0)], ..Settings::default() };
    match simulate(&plan, &cluster, &dead) {
        Err(SimulateError::Stuck {
            rank: Rank(0), waits_for: WaitsFor::DeadLink { link: found, .. }, waiting, ..
        }) => {
            assert_eq!((found, waiting), (link, 8));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_critical_path_adds_up_to_the_time() {
    let cluster = preset("dgx1v x2", None).expect("a machine");
    for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::OneShot, Algorithm::Direct] {
        for bytes in [1000, 1 << 20, 1 << 24] {
            let plan = plan(Collective::AllReduce, algorithm, 16, bytes);
            let found = simulate(&plan, &cluster, &Settings::default()).expect("it ends");
            let path = found.critical_path.expect("it was kept");
            let moving: f64 = path.parts.iter().map(|part| part.time_us).sum();
            let sum = path.launch_us + path.software_us + path.message_us + moving;
            assert_close(sum, found.time_us, &format!("{algorithm}, {bytes} bytes: {path}"));
        }
    }
}

#[test]
fn the_trace_is_json_with_each_rank_and_each_step() {
    let plan = plan(Collective::AllReduce, Algorithm::Ring, 3, 300);
    let found = simulate(&plan, &flat(3), &settings(1.0)).expect("it ends");
    let trace = found.trace(&plan).expect("it was kept");
    assert!(trace.starts_with("{\"displayTimeUnit\""), "{trace}");
    assert_eq!(trace.matches("process_name").count(), 3);
    assert_eq!(trace.matches(" wait\"").count() as u64, found.events);
    let few = Settings { records_max: 3, ..settings(1.0) };
    let found = simulate(&plan, &flat(3), &few).expect("it ends");
    assert!(found.trace(&plan).is_none() && found.critical_path.is_none());
}

#[test]
fn a_plan_that_needs_more_ranks_or_a_switch_is_refused() {
    let big = plan(Collective::AllReduce, Algorithm::Ring, 4, 100);
    assert_eq!(
        simulate(&big, &flat(3), &Settings::default()),
        Err(SimulateError::TooFewRanks { offered: 3, needed: 4 })
    );
    let switched = plan(Collective::AllReduce, Algorithm::Nvls, 8, 1 << 20);
    assert_eq!(simulate(&switched, &flat(8), &Settings::default()), Err(SimulateError::NoSwitch));
    let hopper = preset("hgx-h100", None).expect("a machine");
    assert!(simulate(&switched, &hopper, &Settings::default()).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Whatever is planned ends, at no more than its bytes at the slowest and its steps one after the other.
    #[test]
    fn any_plan_ends(
        which in any::<prop::sample::Index>(), rank_count in 1..9_usize, count in 0..5000_u64, slots in 2..5_u32,
        slot_bytes in 64..2000_u32,
    ) {
        let offered: Vec<(Algorithm, Collective)> = Algorithm::ALL
            .into_iter()
            .filter(|algorithm| *algorithm != Algorithm::Nvls)
            .flat_map(|algorithm| algorithm.collectives().iter().map(move |collective| (algorithm, *collective)))
            .collect();
        let (algorithm, collective) = *which.get(&offered);
        let plan = build(collective, algorithm, rank_count, count, 4, &Geometry { slot_bytes, slots }).expect("a plan");
        let found = simulate(&plan, &flat(rank_count), &settings(0.5)).expect("it ends");
        let bytes: u64 = found.link_bytes.iter().sum();
        let most = found.events as f64 * 3.0 + bytes as f64 / 10e3 * 2.0 + 1.0;
        prop_assert!(found.time_us <= most, "{} us, at most {} expected", found.time_us, most);
    }
}
