use std::collections::BTreeMap;

use super::*;

fn cluster(text: &str) -> Cluster {
    preset(text, None).expect("there is such a machine")
}

/// The bytes that links carry, by name of the class.
fn classes(cluster: &Cluster) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for link in cluster.links() {
        *counts.entry(link.class.to_string()).or_default() += link.count;
    }
    counts
}

#[test]
fn textbook_figures_are_those_of_the_textbook() {
    let both_ways =
        |class: LinkClass, count: f64| class.row().expect("a row").textbook_gb_per_s.expect("a figure") * count;
    assert_eq!(both_ways(LinkClass::NvLink(2), 1.0), 50.0);
    assert_eq!(both_ways(LinkClass::NvLink(2), 6.0), 300.0);
    assert_eq!(both_ways(LinkClass::Pcie(3), 16.0), 32.0);
    for (rate, latency_us) in [(56, 1.2), (100, 0.7), (200, 0.5)] {
        let row = LinkClass::InfiniBand(rate).row().expect("a row");
        assert_eq!((row.textbook_gb_per_s, row.latency_us), (Some(f64::from(rate) / 4.0), latency_us));
    }
}

#[test]
fn each_class_has_one_row_and_is_usable_at_less_than_the_textbook_says() {
    for row in &LINK_CLASSES {
        assert_eq!(row.class.row(), Some(row));
        assert_eq!(LinkClass::from_name(row.name), Some(row.class), "{}", row.name);
        assert!(row.usable_gb_per_s > 0.0 && row.latency_us > 0.0, "{}", row.name);
        if let Some(textbook) = row.textbook_gb_per_s {
            assert!(2.0 * row.usable_gb_per_s < textbook, "{}", row.name);
        }
    }
}

#[test]
fn the_mesh_has_six_links_at_each_gpu() {
    let cluster = cluster("dgx1v");
    assert_eq!(classes(&cluster)["nvlink2"], 24);
    for rank in 0..8 {
        let node = cluster.node_of_rank(rank);
        let own = cluster.links().iter().filter(|link| link.ends.contains(&node));
        let nvlinks: u32 = own.filter(|link| matches!(link.class, LinkClass::NvLink(_))).map(|link| link.count).sum();
        assert_eq!(nvlinks, 6, "gpu{rank}");
    }
}

#[test]
fn ways_prefer_nvlink_then_few_links_then_wide_ones() {
    let mesh = cluster("dgx1v");
    assert_eq!(mesh.path(0, 3).class, PathClass::NvLink);
    assert_eq!((mesh.path(0, 3).bandwidth_gb_per_s, mesh.path(0, 3).hops.len()), (40.0, 1));
    // No link between 0 and 7: by 3 or 4, and from 4 it is the wide one.
    let through = mesh.path(0, 7);
    assert_eq!((through.class, through.hops.len(), through.bandwidth_gb_per_s), (PathClass::NvLinkThroughGpu, 2, 40.0));
    assert_eq!(mesh.path(5, 5).class, PathClass::Local);
    let switched = cluster("dgx-a100");
    for (from, to) in [(0, 1), (0, 7), (5, 2)] {
        let path = switched.path(from, to);
        assert_eq!((path.class, path.hops.len(), path.bandwidth_gb_per_s), (PathClass::NvLink, 2, 240.0));
    }
    let pcie = cluster("pcie3-x8");
    assert_eq!(pcie.path(0, 1).class, PathClass::OneSwitch);
    assert_eq!(pcie.path(0, 2).class, PathClass::Processor);
    assert_eq!(pcie.path(0, 7).class, PathClass::Processors);
    // An Intel processor in the middle costs a fifth more.
    assert_eq!(pcie.path(0, 2).bandwidth_gb_per_s, 10.0);
    let alone = cluster("pcie3-x4");
    assert_eq!(alone.path(0, 1).class, PathClass::Processor);
}

#[test]
fn ways_lead_from_one_end_to_the_other_and_back_again() {
    for text in ["dgx1v x3", "dgx2 x2", "hgx-b200 x2", "pcie4-x8 x2", "cpu x4", "v100-x4"] {
        let cluster = cluster(text);
        for from in 0..cluster.rank_count() {
            for to in 0..cluster.rank_count() {
                let path = cluster.path(from, to);
                let mut node = cluster.node_of_rank(from);
                for hop in &path.hops {
                    let [start, end] = cluster.links()[hop.link.index()].ends;
                    let [start, end] = if hop.forward { [start, end] } else { [end, start] };
                    assert_eq!(start, node, "{text}: {from} to {to}");
                    assert_eq!(Hop::from_index(hop.index()), *hop);
                    assert!(hop.index() < cluster.directed_link_count());
                    node = end;
                }
                assert_eq!(node, cluster.node_of_rank(to), "{text}: {from} to {to}");
                assert_eq!(cluster.path(to, from).class, path.class);
                let network = cluster.host_of_rank(from) != cluster.host_of_rank(to);
                assert_eq!(path.class == PathClass::Network, network);
            }
        }
    }
}

#[test]
fn traffic_between_hosts_leaves_by_the_nearest_adapter_and_spreads_over_them() {
    let cluster = cluster("dgx1v x64");
    assert_eq!((cluster.rank_count(), cluster.hosts().len()), (512, 64));
    let exit = |rank: usize| {
        let path = cluster.path(rank, if rank < 8 { 8 } else { 0 });
        let leaves = path.hops.iter().find(|hop| cluster.links()[hop.link.index()].class.is_network());
        *leaves.expect("it leaves the host")
    };
    // Two GPUs and one adapter to each switch.
    for pair in 0..4 {
        assert_eq!(exit(2 * pair), exit(2 * pair + 1));
        assert_ne!(exit(2 * pair), exit((2 * pair + 2) % 8));
        let path = cluster.path(2 * pair, 8 + 2 * pair);
        assert_eq!((path.bandwidth_gb_per_s, path.hops.len()), (12.0, 6));
    }
}

#[test]
fn an_unknown_machine_is_an_error_that_names_those_that_there_are() {
    let error = preset("dgx9", None).unwrap_err().to_string();
    assert!(error.starts_with("there is no machine \"dgx9\"; there are dgx1v, dgx2, "), "{error}");
    for text in ["dgx1v x0", "dgx1v 64", "dgx1v x9999999", "dgx1v x", "dgx1v x-1"] {
        assert!(matches!(preset(text, None), Err(PresetError::Hosts { .. })), "{text}");
    }
}

#[test]
fn every_preset_is_a_cluster_and_so_are_rows_of_it_over_each_network() {
    for machine in &PRESETS {
        for hosts in [1, 2, 5] {
            for network in ["fdr", "edr", "hdr", "ndr", "ethernet100"] {
                let text = format!("{} x{hosts}", machine.name);
                let network = Network::from_name(network);
                assert!(network.is_some());
                let cluster = preset(&text, network).expect("it is a cluster");
                assert_eq!(cluster.rank_count() % hosts, 0);
                assert!(cluster.path(0, cluster.rank_count() - 1).bandwidth_gb_per_s.is_finite());
            }
        }
    }
}

#[test]
fn many_hosts_take_little_time() {
    let begun = std::time::Instant::now();
    let cluster = cluster("dgx1v x8192");
    assert_eq!(cluster.rank_count(), 65_536);
    assert_eq!(cluster.path(0, 65_535).class, PathClass::Network);
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

#[test]
fn the_mesh_has_thirteen_covers_by_three_cycles_and_six_rings() {
    let mesh = Mesh::of(&cluster("dgx1v")).expect("a mesh");
    assert_eq!(mesh.hamiltonian_cycles().len(), 30);
    let covers = mesh.disjoint_cycles(3);
    assert_eq!(covers.len(), 13);
    // One that is known from elsewhere.
    let known = [[0, 1, 2, 3, 7, 5, 6, 4], [0, 2, 6, 7, 4, 5, 1, 3], [0, 3, 2, 1, 5, 6, 7, 4]];
    assert!(covers.iter().any(|cover| known.iter().all(|cycle| cover.contains(&cycle.to_vec()))), "{covers:?}");
    assert_eq!(cluster("dgx1v").ring_orders().len(), 6);
    assert_eq!(cluster("v100-x4").ring_orders().len(), 6);
}

#[test]
fn rings_use_no_link_more_often_than_it_is_there_and_all_of_a_mesh() {
    for (text, rings) in
        [("dgx1v", 6), ("v100-x4", 6), ("dgx-a100", 4), ("pcie3-x8", 1), ("dgx1v x3", 4), ("hgx-h100 x2", 8)]
    {
        let cluster = cluster(text);
        let orders = cluster.ring_orders();
        assert_eq!(orders.len(), rings, "{text}");
        let mut used = vec![0; cluster.directed_link_count()];
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..cluster.rank_count() as u32).collect::<Vec<u32>>(), "{text}");
            for (from, to) in order.iter().zip(order.iter().cycle().skip(1)) {
                let path = cluster.path(*from as usize, *to as usize);
                path.hops.iter().for_each(|hop| used[hop.index()] += 1);
            }
        }
        for (index, used) in used.iter().enumerate() {
            let link = &cluster.links()[index / 2];
            match link.class {
                LinkClass::NvLink(_) if rings == 6 => assert_eq!(*used, link.count, "{text}"),
                // One ring goes by each adapter.
                class if class.is_network() => assert_eq!(*used, 1, "{text}"),
                _ => {}
            }
        }
    }
}
