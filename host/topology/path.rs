//! Ways through a cluster.
//!
//! As NCCL does (`paths.cc`): inside a host the way of the fewest links, of those the widest; traffic between hosts leaves by the
//! adapter that is nearest to the GPU. GPUs forward nothing, but for one in the middle where two of a mesh of NVLink have no link
//! of their own, which is preferred to the way through PCI Express.
//!
//! Ways are found once for each host, from each of its GPUs, and kept as the last link of each; those between hosts are put
//! together when they are asked for, so that the memory grows with the ranks and not with their pairs.

use std::collections::BinaryHeap;
use std::fmt;

use super::cluster::{Cluster, Fault, Hop, Host, Link, LinkId, Node, NodeId, NodeKind};
use super::link::LinkClass;

/// How near two ranks are, from the nearest on; the names are `nvidia-smi topo -m`'s and NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathClass {
    /// The same node.
    Local,
    /// NVLink, directly or through NVSwitches.
    NvLink,
    /// NVLink, through one GPU in the middle.
    NvLinkThroughGpu,
    /// One PCI Express switch.
    OneSwitch,
    /// Several PCI Express switches.
    SeveralSwitches,
    /// Through a processor.
    Processor,
    /// Through processors, from one to another.
    Processors,
    /// Through the network.
    Network,
}

impl PathClass {
    /// As in `nvidia-smi topo -m` and NCCL.
    pub fn name(self) -> &'static str {
        match self {
            PathClass::Local => "X",
            PathClass::NvLink => "NVL",
            PathClass::NvLinkThroughGpu => "NVB",
            PathClass::OneSwitch => "PIX",
            PathClass::SeveralSwitches => "PXB",
            PathClass::Processor => "PHB",
            PathClass::Processors => "SYS",
            PathClass::Network => "NET",
        }
    }
}

impl fmt::Display for PathClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The way from one rank to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// The links, one after the other.
    pub hops: Vec<Hop>,
    /// How near the ranks are.
    pub class: PathClass,
    /// GB/s of its narrowest link, less the overhead.
    pub bandwidth_gb_per_s: f64,
    /// How many times its bytes it takes of its links: more than once where a processor is in the middle.
    pub overhead: f64,
    /// Microseconds of all its wires.
    pub latency_us: f64,
}

/// How good a way is: NVLink first, then few links, then wide ones.
#[derive(Clone, Copy, PartialEq)]
struct Cost {
    leaves_nvlink: bool,
    hops: u32,
    bandwidth_gb_per_s: f64,
}

impl Cost {
    fn is_better(&self, other: &Cost) -> bool {
        let key = |cost: &Cost| (cost.leaves_nvlink, cost.hops);
        (key(self) < key(other)) || key(self) == key(other) && self.bandwidth_gb_per_s > other.bandwidth_gb_per_s
    }
}

/// No link.
const NONE: u32 = u32::MAX;

/// The ways inside each host, and the adapters by which its ranks leave it.
#[derive(Clone, Debug, Default)]
pub(super) struct Routes {
    /// By rank, where its host's part of `last_hops` begins.
    starts: Vec<u32>,
    /// For each rank, for each node of its host, the index of the last hop of the way there.
    last_hops: Vec<u32>,
    /// By rank, the adapter that is nearest to it, and that one's hop to the network.
    exits: Vec<Option<(NodeId, Hop)>>,
}

/// What Dijkstra's algorithm has yet to look at, the best first.
struct Reached {
    cost: Cost,
    node: NodeId,
}

impl PartialEq for Reached {
    fn eq(&self, other: &Reached) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Reached {}

impl PartialOrd for Reached {
    fn partial_cmp(&self, other: &Reached) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Reached {
    fn cmp(&self, other: &Reached) -> std::cmp::Ordering {
        let key = |reached: &Reached| (reached.cost.leaves_nvlink, reached.cost.hops);
        // The heap gives its greatest first. Of equals the one with the smaller number, so that ways depend on nothing else.
        key(other)
            .cmp(&key(self))
            .then(self.cost.bandwidth_gb_per_s.total_cmp(&other.cost.bandwidth_gb_per_s))
            .then(other.node.cmp(&self.node))
    }
}

impl Routes {
    pub(super) fn new(nodes: &[Node], links: &[Link], hosts: &[Host], ranks: &[NodeId]) -> Result<Routes, Fault> {
        // Of each node, the hops that leave it.
        let mut hops_of = vec![Vec::new(); nodes.len()];
        for (index, link) in links.iter().enumerate() {
            let [first, second] = link.ends;
            hops_of[first.index()].push((Hop { link: LinkId(index as u32), forward: true }, second));
            hops_of[second.index()].push((Hop { link: LinkId(index as u32), forward: false }, first));
        }
        let mut routes = Routes::default();
        for host in hosts {
            let [first, end] = host.nodes;
            let mut taken = vec![0_u32; (end.0 - first.0) as usize];
            for rank in host.ranks[0]..host.ranks[1] {
                let start = ranks[rank as usize];
                let (last_hops, costs) = search(nodes, links, &hops_of, host, start);
                routes.starts.push(routes.last_hops.len() as u32);
                let exit = exit_of(nodes, &hops_of, host, &costs, &mut taken);
                let other = &ranks[host.ranks[0] as usize..host.ranks[1] as usize];
                let alone = |node: &&NodeId| **node != start && last_hops[(node.0 - first.0) as usize] == NONE;
                if let Some(unreached) = other.iter().find(alone) {
                    return Err(unreachable(nodes, start, *unreached));
                }
                routes.last_hops.extend(last_hops);
                routes.exits.push(exit);
            }
        }
        if hosts.len() > 1
            && let Some(rank) = routes.exits.iter().position(Option::is_none)
        {
            let other =
                if nodes[ranks[rank].index()].host == nodes[ranks[0].index()].host { ranks.len() - 1 } else { 0 };
            return Err(unreachable(nodes, ranks[rank], ranks[other]));
        }
        Ok(routes)
    }
}

fn unreachable(nodes: &[Node], from: NodeId, to: NodeId) -> Fault {
    let name = |id: NodeId| {
        let Node { name, host, .. } = &nodes[id.index()];
        host.map_or(name.clone(), |host| format!("host{host}/{name}"))
    };
    Fault::Unreachable { from: name(from), to: name(to) }
}

/// Whether traffic of others goes through it.
fn forwards(kind: NodeKind) -> bool {
    matches!(kind, NodeKind::Cpu(_) | NodeKind::PcieSwitch | NodeKind::NvSwitch)
}

/// The best ways from a node to all nodes of its host: of each, the last hop and the cost.
fn search(
    nodes: &[Node],
    links: &[Link],
    hops_of: &[Vec<(Hop, NodeId)>],
    host: &Host,
    start: NodeId,
) -> (Vec<u32>, Vec<Option<Cost>>) {
    let [first, end] = host.nodes;
    let local = |node: NodeId| (node.0 - first.0) as usize;
    let mut last_hops = vec![NONE; (end.0 - first.0) as usize];
    let mut costs: Vec<Option<Cost>> = vec![None; last_hops.len()];
    let none = Cost { leaves_nvlink: false, hops: 0, bandwidth_gb_per_s: f64::INFINITY };
    costs[local(start)] = Some(none);
    let mut reached = BinaryHeap::from([Reached { cost: none, node: start }]);
    while let Some(Reached { cost, node }) = reached.pop() {
        if costs[local(node)] != Some(cost) {
            continue;
        }
        let kind = nodes[node.index()].kind;
        // A GPU in the middle passes on what came to it by its only link of NVLink, and by NVLink alone.
        let is_middle_gpu = node != start && matches!(kind, NodeKind::Gpu { .. });
        if node != start && !forwards(kind) && !(is_middle_gpu && cost.hops == 1 && !cost.leaves_nvlink) {
            continue;
        }
        for &(hop, to) in &hops_of[node.index()] {
            if to < first || to >= end {
                continue;
            }
            let link = &links[hop.link.index()];
            let is_nvlink = matches!(link.class, LinkClass::NvLink(_));
            if is_middle_gpu && !(is_nvlink && matches!(nodes[to.index()].kind, NodeKind::Gpu { .. })) {
                continue;
            }
            let cost = Cost {
                leaves_nvlink: cost.leaves_nvlink || !is_nvlink,
                hops: cost.hops + 1,
                bandwidth_gb_per_s: cost.bandwidth_gb_per_s.min(link.bandwidth_gb_per_s),
            };
            let known = &mut costs[local(to)];
            if known.is_none_or(|known| cost.is_better(&known)) {
                *known = Some(cost);
                last_hops[local(to)] = hop.index() as u32;
                reached.push(Reached { cost, node: to });
            }
        }
    }
    (last_hops, costs)
}

/// The adapter by which a rank leaves its host: the nearest one; of several, the one that the fewest ranks have taken so far.
fn exit_of(
    nodes: &[Node],
    hops_of: &[Vec<(Hop, NodeId)>],
    host: &Host,
    costs: &[Option<Cost>],
    taken: &mut [u32],
) -> Option<(NodeId, Hop)> {
    let [first, end] = host.nodes;
    let adapters = (first.0..end.0).map(NodeId).filter(|node| nodes[node.index()].kind == NodeKind::Nic);
    let with_exit = adapters.filter_map(|nic| {
        let leaves = |(_, to): &&(Hop, NodeId)| nodes[to.index()].kind == NodeKind::NetworkSwitch;
        let (hop, _) = hops_of[nic.index()].iter().find(leaves)?;
        let local = (nic.0 - first.0) as usize;
        let hops = costs[local].as_ref()?.hops;
        Some(((hops, taken[local]), nic, *hop))
    });
    let (_, nic, hop) = with_exit.min_by_key(|(key, nic, _)| (*key, *nic))?;
    taken[(nic.0 - first.0) as usize] += 1;
    Some((nic, hop))
}

impl Cluster {
    /// The way from one rank to another.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn path(&self, from: usize, to: usize) -> Path {
        let mut hops = Vec::new();
        let (here, there) = (self.host_of_rank(from), self.host_of_rank(to));
        if here == there {
            self.way_inside(from, self.node_of_rank(to), &mut hops);
        } else if let (Some((nic, out)), Some((their_nic, their_out))) =
            (self.routes().exits[from], self.routes().exits[to])
        {
            self.way_inside(from, nic, &mut hops);
            hops.push(out);
            hops.push(Hop { forward: !their_out.forward, ..their_out });
            // The way to the adapter, backwards.
            let start = hops.len();
            self.way_inside(to, their_nic, &mut hops);
            hops[start..].reverse();
            for hop in &mut hops[start..] {
                hop.forward = !hop.forward;
            }
        }
        self.described(hops)
    }

    /// The adapter by which a rank leaves its host.
    pub(super) fn exit(&self, rank: usize) -> Option<NodeId> {
        self.routes().exits[rank].map(|(nic, _)| nic)
    }

    /// Appends the way from a rank to a node of its host.
    fn way_inside(&self, from: usize, to: NodeId, hops: &mut Vec<Hop>) {
        let first = self.hosts()[self.host_of_rank(from)].nodes[0];
        let start = self.routes().starts[from] as usize;
        let (begin, mut node) = (hops.len(), to);
        while node != self.node_of_rank(from) {
            let hop = Hop::from_index(self.routes().last_hops[start + (node.0 - first.0) as usize] as usize);
            hops.push(hop);
            node = self.links()[hop.link.index()].ends[usize::from(!hop.forward)];
        }
        hops[begin..].reverse();
    }

    /// What a way is like.
    fn described(&self, hops: Vec<Hop>) -> Path {
        let links = || hops.iter().map(|hop| &self.links()[hop.link.index()]);
        // The nodes between the first and the last one.
        let middle = || {
            hops.iter().take(hops.len().saturating_sub(1)).map(|hop| {
                let end = self.links()[hop.link.index()].ends[usize::from(hop.forward)];
                self.nodes()[end.index()].kind
            })
        };
        let count = |is_so: &dyn Fn(NodeKind) -> bool| middle().filter(|kind| is_so(*kind)).count();
        let processors = count(&|kind| matches!(kind, NodeKind::Cpu(_)));
        let class = if hops.is_empty() {
            PathClass::Local
        } else if links().any(|link| link.class.is_network()) {
            PathClass::Network
        } else if links().all(|link| matches!(link.class, LinkClass::NvLink(_))) {
            match count(&|kind| matches!(kind, NodeKind::Gpu { .. })) {
                0 => PathClass::NvLink,
                _ => PathClass::NvLinkThroughGpu,
            }
        } else if links().any(|link| matches!(link.class, LinkClass::CpuToCpu(_))) {
            // Where processors are the ranks there is none in the middle.
            PathClass::Processors
        } else {
            match (processors, count(&|kind| kind == NodeKind::PcieSwitch)) {
                (0, 0 | 1) => PathClass::OneSwitch,
                (0, _) => PathClass::SeveralSwitches,
                (1, _) => PathClass::Processor,
                _ => PathClass::Processors,
            }
        };
        let narrowest = links().map(|link| link.bandwidth_gb_per_s).fold(f64::INFINITY, f64::min);
        let overhead = middle().fold(1.0, |overhead: f64, kind| match kind {
            NodeKind::Cpu(model) if class != PathClass::Network => overhead.max(model.overhead()),
            _ => overhead,
        });
        let latency_us = links().map(|link| link.latency_us).sum();
        Path { class, bandwidth_gb_per_s: narrowest / overhead, overhead, latency_us, hops }
    }
}
