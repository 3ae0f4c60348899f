//! What a simulation needs to know of a network.

use crate::topology::{Cluster, LinkClass, NodeKind, PathClass};

/// One direction of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkFacts {
    /// For people.
    pub name: String,
    /// GB/s.
    pub bandwidth_gb_per_s: f64,
}

/// The way from one rank to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The directed links, one after the other.
    pub links: Vec<u32>,
    /// Microseconds of all of them.
    pub latency_us: f64,
    /// What kind of way it is, by which software takes its time.
    pub class: PathClass,
    /// The part of its links' bandwidth that it makes use of: each byte takes as much of them as 1 / efficiency bytes.
    pub efficiency: f64,
}

/// Directed links, and the ways of ranks over them.
pub trait Network {
    /// How many ranks there are.
    fn rank_count(&self) -> usize;

    /// How many directed links.
    fn link_count(&self) -> usize;

    /// One of them, by its number below [`Network::link_count`].
    fn link(&self, index: usize) -> LinkFacts;

    /// The way from one rank to another one.
    fn route(&self, from: usize, to: usize) -> Route;

    /// Where a switch reduces: the links over which every rank's data comes together and the result comes to `rank`; or, the other
    /// way, over which what `rank` writes comes to all.
    fn switched_route(&self, rank: usize, to_all: bool) -> Option<Route> {
        let _ = (rank, to_all);
        None
    }
}

/// Ranks at one ideal switch, each with a link to it and one from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flat {
    /// How many ranks.
    pub rank_count: usize,
    /// GB/s of each link.
    pub bandwidth_gb_per_s: f64,
    /// Microseconds from one rank to another.
    pub latency_us: f64,
}

impl Network for Flat {
    fn rank_count(&self) -> usize {
        self.rank_count
    }

    fn link_count(&self) -> usize {
        2 * self.rank_count
    }

    fn link(&self, index: usize) -> LinkFacts {
        let (rank, way) = (index / 2, ["out", "in"][index % 2]);
        LinkFacts { name: format!("rank{rank} {way}"), bandwidth_gb_per_s: self.bandwidth_gb_per_s }
    }

    fn route(&self, from: usize, to: usize) -> Route {
        let links = if from == to { Vec::new() } else { vec![2 * from as u32, 2 * to as u32 + 1] };
        Route { links, latency_us: self.latency_us, class: PathClass::NvLink, efficiency: 1.0 }
    }
}

impl Network for Cluster {
    fn rank_count(&self) -> usize {
        Cluster::rank_count(self)
    }

    fn link_count(&self) -> usize {
        self.directed_link_count()
    }

    fn link(&self, index: usize) -> LinkFacts {
        let hop = crate::topology::Hop::from_index(index);
        let bandwidth_gb_per_s = self.links()[hop.link.index()].bandwidth_gb_per_s;
        LinkFacts { name: self.describe_hop(hop), bandwidth_gb_per_s }
    }

    fn route(&self, from: usize, to: usize) -> Route {
        let path = self.path(from, to);
        Route {
            links: path.hops.iter().map(|hop| hop.index() as u32).collect(),
            latency_us: path.latency_us,
            class: path.class,
            efficiency: 1.0 / path.overhead,
        }
    }

    /// NVSwitches reduce from the third generation on, which came with the fourth generation of NVLink; and only within a host.
    fn switched_route(&self, rank: usize, to_all: bool) -> Option<Route> {
        if self.hosts().len() > 1 {
            return None;
        }
        let reduces = |class| matches!(class, LinkClass::NvLink(generation) if generation >= 4);
        let switched = self.links().iter().enumerate().filter(|(_, link)| {
            reduces(link.class) && link.ends.iter().any(|end| self.nodes()[end.index()].kind == NodeKind::NvSwitch)
        });
        let mut links = Vec::new();
        let mut latency_us = 0.0_f64;
        for (index, link) in switched {
            let gpu = if self.nodes()[link.ends[0].index()].kind == NodeKind::NvSwitch { 1 } else { 0 };
            let is_own = link.ends[gpu] == self.node_of_rank(rank);
            let (up, down) = (2 * index + gpu, 2 * index + 1 - gpu);
            // What is reduced comes from all and goes to one; what is written the other way.
            if is_own || !to_all {
                links.push(up as u32);
            }
            if is_own || to_all {
                links.push(down as u32);
            }
            latency_us = latency_us.max(2.0 * link.latency_us);
        }
        let complete = !links.is_empty();
        let (class, efficiency) = (PathClass::NvLink, SWITCH_EFFICIENCY);
        complete.then_some(Route { links, latency_us, class, efficiency })
    }
}

/// What of a link's bandwidth reductions in a switch get: NCCL's figure for H100.
const SWITCH_EFFICIENCY: f64 = 0.85;
