//! What the simulator says, beside what was measured and published: all-reduces, broadcasts and reduces of 64 MiB and more on machines with
//! NVLink.
//!
//! The rows are sizes and times that others published, each with its source. Nothing is fitted at first: links, latencies and
//! efficiencies are those of the table of link classes. Then one factor for each class of links is fitted: the one that brings the most
//! rows within 10 %. The test prints the table, and holds that nine of ten rows are within 15 % without the factors, and
//! within 10 % with them; each row that is not is explained below it.

use std::collections::BTreeMap;

use tutti::plan::simulate::{Settings, simulate};
use tutti::plan::{Algorithm, Collective, Geometry, Rank, build_in_orders};
use tutti::topology::{Cluster, preset};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

struct Machine {
    name: &'static str,
    preset: &'static str,
    class: &'static str,
    ranks: usize,
    collective: Collective,
    /// Sizes in bytes, and microseconds.
    measured: &'static [(u64, f64)],
    source: &'static str,
    /// Sizes that are not within the bounds, and why.
    exceptions: &'static [(u64, &'static str)],
}

const ROOT: Rank = Rank(0);

const A100_MIDDLE: &str =
    "A100s were measured at 57 to 65 % of their links there and at 78 % from 512 MiB on; the model has no such dip";

const MACHINES: [Machine; 8] = [
    Machine {
        name: "8 V100, hybrid cube mesh",
        preset: "dgx1v",
        class: "nvlink2",
        ranks: 8,
        collective: Collective::AllReduce,
        measured: &[(64 * MIB, 992.7), (128 * MIB, 1818.8)],
        source: "konnase.github.io, NCCL.md (2019)",
        exceptions: &[],
    },
    Machine {
        name: "8 V100, hybrid cube mesh (OCI)",
        preset: "dgx1v",
        class: "nvlink2",
        ranks: 8,
        collective: Collective::AllReduce,
        measured: &[(GIB, 13_867.0)],
        source: "oracle-japan/ocitutorials, GPU standalone",
        exceptions: &[],
    },
    Machine {
        name: "DGX-2, 12 of 16 V100",
        preset: "dgx2",
        class: "nvlink2",
        ranks: 12,
        collective: Collective::AllReduce,
        measured: &[
            (64 * MIB, 1051.8),
            (128 * MIB, 2047.7),
            (256 * MIB, 4036.6),
            (512 * MIB, 8021.5),
            (GIB, 15_986.0),
            (2 * GIB, 31_928.0),
            (4 * GIB, 63_758.0),
            (8 * GIB, 127_453.0),
        ],
        source: "README of a public fork of nccl-tests",
        exceptions: &[],
    },
    Machine {
        name: "DGX-2, 12 of 16 V100",
        preset: "dgx2",
        class: "nvlink2",
        ranks: 12,
        collective: Collective::Broadcast { root: ROOT },
        measured: &[(64 * MIB, 635.5), (256 * MIB, 2283.9), (GIB, 8856.1), (8 * GIB, 70_321.0)],
        source: "README of a public fork of nccl-tests",
        exceptions: &[],
    },
    Machine {
        name: "DGX-2, 12 of 16 V100",
        preset: "dgx2",
        class: "nvlink2",
        ranks: 12,
        collective: Collective::Reduce { root: ROOT },
        measured: &[(256 * MIB, 2269.8), (GIB, 8823.3), (8 * GIB, 69_989.0)],
        source: "README of a public fork of nccl-tests",
        exceptions: &[],
    },
    Machine {
        name: "8 A100",
        preset: "dgx-a100",
        class: "nvlink3",
        ranks: 8,
        collective: Collective::AllReduce,
        measured: &[
            (64 * MIB, 684.6),
            (128 * MIB, 1327.6),
            (256 * MIB, 2420.6),
            (512 * MIB, 4218.4),
            (GIB, 8203.9),
            (2 * GIB, 16_240.0),
            (4 * GIB, 32_136.0),
            (8 * GIB, 64_074.0),
            (16 * GIB, 127_997.0),
        ],
        source: "stas00/ml-engineering, network/README.md",
        exceptions: &[(64 * MIB, A100_MIDDLE), (128 * MIB, A100_MIDDLE)],
    },
    Machine {
        name: "8 A100 (Azure)",
        preset: "dgx-a100",
        class: "nvlink3",
        ranks: 8,
        collective: Collective::AllReduce,
        measured: &[
            (64 * MIB, 704.8),
            (128 * MIB, 1348.5),
            (256 * MIB, 2196.5),
            (512 * MIB, 4240.1),
            (GIB, 8237.8),
            (2 * GIB, 16_323.9),
            (4 * GIB, 32_611.0),
            (8 * GIB, 64_912.3),
        ],
        source: "Azure/AI-benchmarking-guide, NCCL 2.18.5",
        exceptions: &[(64 * MIB, A100_MIDDLE), (128 * MIB, A100_MIDDLE)],
    },
    Machine {
        name: "8 H100 (Azure)",
        preset: "hgx-h100",
        class: "nvlink4",
        ranks: 8,
        collective: Collective::AllReduce,
        measured: &[
            (64 * MIB, 324.6),
            (128 * MIB, 586.3),
            (256 * MIB, 1109.6),
            (512 * MIB, 2142.8),
            (GIB, 4029.3),
            (2 * GIB, 7956.0),
            (4 * GIB, 15_805.6),
            (8 * GIB, 31_391.4),
        ],
        source: "Azure/AI-benchmarking-guide, NCCL 2.18.5",
        exceptions: &[],
    },
];

/// Bytes beyond which twice as many take twice as long, in the model.
const SIMULATED_BYTES_MAX: u64 = GIB;

/// Microseconds of the quickest algorithm among those that NCCL has, with links of so many times the bandwidth.
fn simulated_us(machine: &Machine, cluster: &Cluster, bytes: u64, factor: f64) -> f64 {
    let simulated_bytes = bytes.min(SIMULATED_BYTES_MAX);
    let geometry = Geometry { slot_bytes: 512 << 10, slots: 8 };
    let links = (0..cluster.directed_link_count()).map(|link| (link, factor)).collect();
    let settings = Settings { slow_links: links, records_max: 0, slots: geometry.slots, ..Settings::default() };
    let time_us = |algorithm: Algorithm| {
        let orders: Vec<Vec<Rank>> = if algorithm.takes_orders() {
            let of_machine = |rank: &u32| (*rank as usize) < machine.ranks;
            let order = |order: Vec<u32>| order.into_iter().filter(of_machine).map(Rank).collect();
            cluster.ring_orders().into_iter().map(order).collect()
        } else {
            Vec::new()
        };
        let count = simulated_bytes / 4;
        let plan = build_in_orders(machine.collective, algorithm, machine.ranks, count, 4, &geometry, &orders);
        simulate(&plan.expect("a plan"), cluster, &settings).ok().map(|simulated| simulated.time_us)
    };
    let candidates: &[Algorithm] = match machine.collective {
        Collective::AllReduce => &[Algorithm::Ring, Algorithm::Nvls],
        _ => &[Algorithm::Chain],
    };
    let times = candidates.iter().filter_map(|algorithm| time_us(*algorithm));
    times.fold(f64::INFINITY, f64::min) * bytes as f64 / simulated_bytes as f64
}

/// Of the factors from 0.8 to 1.25, the one with which the most times are within 10 % (a little less, since a simulation is not just
/// that much shorter); of those the one that is off least in all.
fn best_factor(simulated_over_measured: &[f64]) -> f64 {
    let off = |factor: f64| simulated_over_measured.iter().map(move |ratio| (factor / ratio - 1.0).abs());
    let score = |factor: f64| (off(factor).filter(|off| *off > 0.095).count(), off(factor).sum::<f64>());
    let factors = (160..=250).map(|part| f64::from(part) / 200.0);
    let best = factors.min_by(|one, other| {
        let (one, other) = (score(*one), score(*other));
        one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))
    });
    best.expect("there are factors")
}

#[test]
fn large_calls_take_about_as_long_as_was_measured() {
    let clusters: Vec<Cluster> =
        MACHINES.iter().map(|machine| preset(machine.preset, None).expect("a machine")).collect();
    let rows = |factors: &BTreeMap<&str, f64>| -> Vec<(usize, u64, f64, f64)> {
        let mut rows = Vec::new();
        for (index, machine) in MACHINES.iter().enumerate() {
            let factor = factors.get(machine.class).copied().unwrap_or(1.0);
            for (bytes, measured_us) in machine.measured {
                rows.push((index, *bytes, *measured_us, simulated_us(machine, &clusters[index], *bytes, factor)));
            }
        }
        rows
    };
    let plain = rows(&BTreeMap::new());
    let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (machine, _, measured_us, simulated_us) in &plain {
        ratios.entry(MACHINES[*machine].class).or_default().push(simulated_us / measured_us);
    }
    let factors: BTreeMap<&str, f64> =
        ratios.into_iter().map(|(class, ratios)| (class, best_factor(&ratios))).collect();
    let fitted = rows(&factors);
    println!(
        "{:<32} {:<16} {:>8} {:>12} {:>12} {:>8} {:>8}",
        "machine", "collective", "MiB", "measured us", "simulated us", "off", "fitted"
    );
    let (mut within, mut fitted_within, mut unexplained) = (0, 0, Vec::new());
    for ((index, bytes, measured_us, simulated_us), (.., fitted_us)) in plain.iter().zip(&fitted) {
        let machine = &MACHINES[*index];
        // Of the bandwidth, as published comparisons have it.
        let off = |time_us: &f64| 100.0 * (measured_us / time_us - 1.0);
        let (plain_off, fitted_off) = (off(simulated_us), off(fitted_us));
        within += usize::from(plain_off.abs() <= 15.0);
        fitted_within += usize::from(fitted_off.abs() <= 10.0);
        println!(
            "{:<32} {:<16} {:>8} {measured_us:>12.1} {simulated_us:>12.1} {plain_off:>+7.1}% {fitted_off:>+7.1}%",
            machine.name,
            machine.collective.name(),
            bytes / MIB,
        );
        let exception = machine.exceptions.iter().find(|(size, _)| size == bytes);
        match exception {
            Some((_, why)) => println!("    {why}"),
            None if plain_off.abs() <= 15.0 && fitted_off.abs() <= 10.0 => {}
            None => unexplained.push(format!("{}, {} MiB ({})", machine.name, bytes / MIB, machine.source)),
        }
    }
    println!("factors of link classes: {factors:.3?}");
    let count = plain.len();
    println!("{within} of {count} within 15 % unfitted, {fitted_within} within 10 % fitted");
    assert!(unexplained.is_empty(), "not explained: {unexplained:#?}");
    assert!(10 * within >= 9 * count, "{within} of {count}");
    assert!(10 * fitted_within >= 9 * count, "{fitted_within} of {count}");
}

#[test]
fn among_512_gpus_a_tree_is_quick_for_small_data_and_a_ring_for_large() {
    let cluster = preset("dgx1v x64", None).expect("a machine");
    let time_us = |algorithm: Algorithm, bytes: u64| {
        let orders: Vec<Vec<Rank>> = match algorithm.takes_orders() {
            true => cluster.ring_orders().into_iter().map(|order| order.into_iter().map(Rank).collect()).collect(),
            false => Vec::new(),
        };
        let geometry = Geometry { slot_bytes: 512 << 10, slots: 8 };
        let plan = build_in_orders(Collective::AllReduce, algorithm, 512, bytes / 4, 4, &geometry, &orders);
        let settings = Settings { records_max: 0, ..Settings::default() };
        simulate(&plan.expect("a plan"), &cluster, &settings).expect("it ends").time_us
    };
    let (ring, tree) = (time_us(Algorithm::Ring, 1 << 10), time_us(Algorithm::Tree, 1 << 10));
    println!("1 KiB among 64 x 8 V100 over EDR: ring {ring:.0} us, tree {tree:.0} us");
    assert!(ring > 10.0 * tree, "ring {ring} us, tree {tree} us");
    let (ring, tree) = (time_us(Algorithm::Ring, 64 << 20), time_us(Algorithm::Tree, 64 << 20));
    println!("64 MiB: ring {ring:.0} us, tree {tree:.0} us");
    assert!(ring < tree, "ring {ring} us, tree {tree} us");
}
