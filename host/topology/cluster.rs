//! The model: hosts, nodes and links, and the ranks that run on them.

use std::fmt;

use super::link::{CpuModel, LinkClass};
use super::path::Routes;

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            /// As an index into a slice.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index!(
    /// A node, as an index into [`Cluster::nodes`].
    NodeId
);
index!(
    /// A link, as an index into [`Cluster::links`].
    LinkId
);

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// A GPU, with its compute capability as in 90 for 9.0.
    Gpu {
        /// Ten times the compute capability.
        compute_capability: u32,
    },
    /// A processor: one socket, or one NUMA node of it, with its memory.
    Cpu(CpuModel),
    /// A PCI Express switch.
    PcieSwitch,
    /// All NVSwitches of a host, which together are one crossbar.
    NvSwitch,
    /// A network adapter.
    Nic,
    /// The network that joins the hosts: every adapter reaches every other one at the rate of both.
    NetworkSwitch,
}

/// Something that links end at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// For people.
    pub name: String,
    /// What it is.
    pub kind: NodeKind,
    /// The host that it is part of, as an index into [`Cluster::hosts`]; none for the network.
    pub host: Option<u32>,
}

/// A link between two nodes. It carries bytes both ways at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Its ends; it runs forward from the first to the second.
    pub ends: [NodeId; 2],
    /// What it is.
    pub class: LinkClass,
    /// How many links of NVLink, lanes of PCI Express or ports are bonded into it.
    pub count: u32,
    /// GB/s that large transfers get, each way.
    pub bandwidth_gb_per_s: f64,
    /// Microseconds from one end to the other.
    pub latency_us: f64,
}

/// One machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its nodes, from the first to before the last.
    pub nodes: [NodeId; 2],
    /// Its ranks, likewise.
    pub ranks: [u32; 2],
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// The link.
    pub link: LinkId,
    /// From its first end to its second one.
    pub forward: bool,
}

impl Hop {
    /// A number of its own for each direction of each link, without gaps, below [`Cluster::directed_link_count`].
    pub fn index(self) -> usize {
        2 * self.link.index() + usize::from(!self.forward)
    }

    /// The hop with this [`Hop::index`].
    pub fn from_index(index: usize) -> Hop {
        Hop { link: LinkId(index as u32 / 2), forward: index.is_multiple_of(2) }
    }
}

/// Why something is not a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It has neither a GPU nor a processor.
    #[error("expected at least one GPU or processor for ranks to run on, came none")]
    NoRanks,
    /// Two ranks do not reach each other.
    #[error("{from} does not reach {to}: no links lead from one to the other")]
    Unreachable {
        /// A node that runs a rank.
        from: String,
        /// Another one.
        to: String,
    },
    /// More than fits the numbers.
    #[error("expected at most {allowed} {what}, came more")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        allowed: usize,
    },
}

/// Hosts and the network between them.
#[derive(Clone, Debug)]
pub struct Cluster {
    name: String,
    nodes: Vec<Node>,
    links: Vec<Link>,
    hosts: Vec<Host>,
    /// By rank, the node that runs it.
    ranks: Vec<NodeId>,
    routes: Routes,
}

/// Nodes that a cluster may have.
const NODES_MAX: usize = 1 << 22;

/// A cluster in the making.
#[derive(Clone, Debug, Default)]
pub(super) struct Builder {
    pub(super) nodes: Vec<Node>,
    pub(super) links: Vec<Link>,
    host_starts: Vec<NodeId>,
}

impl Builder {
    /// Whatever is added now is part of another host.
    pub(super) fn host(&mut self) {
        self.host_starts.push(NodeId(self.nodes.len() as u32));
    }

    /// A node of the current host.
    pub(super) fn node(&mut self, name: impl Into<String>, kind: NodeKind) -> NodeId {
        let host = self.host_starts.len().checked_sub(1).map(|host| host as u32);
        let host = host.filter(|_| kind != NodeKind::NetworkSwitch);
        self.nodes.push(Node { name: name.into(), kind, host });
        NodeId(self.nodes.len() as u32 - 1)
    }

    /// A link of `count` units of a class, with the table's figures.
    pub(super) fn link(&mut self, one: NodeId, other: NodeId, class: LinkClass, count: u32) {
        // A class without a row has no figures, and no links.
        let Some(row) = class.row() else { return };
        self.links.push(Link {
            ends: [one, other],
            class,
            count,
            bandwidth_gb_per_s: row.usable_gb_per_s * f64::from(count),
            latency_us: row.latency_us,
        });
    }

    /// The cluster, if each rank reaches each other one.
    pub(super) fn finish(self, name: impl Into<String>) -> Result<Cluster, Fault> {
        let Builder { nodes, links, host_starts } = self;
        if nodes.len() > NODES_MAX || links.len() > NODES_MAX {
            return Err(Fault::TooMany { what: "nodes or links", allowed: NODES_MAX });
        }
        let is_gpu = |node: &Node| matches!(node.kind, NodeKind::Gpu { .. });
        let is_cpu = |node: &Node| matches!(node.kind, NodeKind::Cpu(_));
        let has_gpus = nodes.iter().any(is_gpu);
        let runs = |node: &Node| if has_gpus { is_gpu(node) } else { is_cpu(node) };
        let ranks: Vec<NodeId> = (0..nodes.len() as u32).map(NodeId).filter(|id| runs(&nodes[id.index()])).collect();
        if ranks.is_empty() {
            return Err(Fault::NoRanks);
        }
        // A host ends where the next one starts, or the network's switch, which belongs to none, does.
        let end = nodes.iter().position(|node| node.host.is_none()).unwrap_or(nodes.len()) as u32;
        let ends = host_starts.iter().skip(1).copied().chain([NodeId(end)]);
        let mut hosts = Vec::with_capacity(host_starts.len());
        for (start, end) in host_starts.iter().zip(ends) {
            let before = |limit: &NodeId| ranks.partition_point(|node| node < limit) as u32;
            hosts.push(Host { nodes: [*start, end], ranks: [before(start), before(&end)] });
        }
        let routes = Routes::new(&nodes, &links, &hosts, &ranks)?;
        Ok(Cluster { name: name.into(), nodes, links, hosts, ranks, routes })
    }
}

impl Cluster {
    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Indexed by [`NodeId`].
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Indexed by [`LinkId`].
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The machines.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// One for each GPU; where there is no GPU, one for each processor.
    pub fn rank_count(&self) -> usize {
        self.ranks.len()
    }

    /// The node that runs a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn node_of_rank(&self, rank: usize) -> NodeId {
        self.ranks[rank]
    }

    /// The host of a rank, as an index into [`Cluster::hosts`].
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn host_of_rank(&self, rank: usize) -> usize {
        self.nodes[self.ranks[rank].index()].host.unwrap_or(0) as usize
    }

    /// How many there are of [`Hop::index`].
    pub fn directed_link_count(&self) -> usize {
        2 * self.links.len()
    }

    /// For people: `gpu0 -> nvswitch (nvlink3 x12)`.
    ///
    /// # Panics
    /// If there is no such link.
    pub fn describe_hop(&self, hop: Hop) -> String {
        let link = &self.links[hop.link.index()];
        let [first, second] = if hop.forward { link.ends } else { [link.ends[1], link.ends[0]] };
        format!("{} -> {} ({})", self.describe_node(first), self.describe_node(second), Count(link))
    }

    /// A node's name, with its host's number where there are several.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn describe_node(&self, node: NodeId) -> String {
        let Node { name, host, .. } = &self.nodes[node.index()];
        match host {
            Some(host) if self.hosts.len() > 1 => format!("host{host}/{name}"),
            _ => name.clone(),
        }
    }

    pub(super) fn routes(&self) -> &Routes {
        &self.routes
    }
}

/// A link's class and how many of its units there are.
struct Count<'a>(&'a Link);

impl fmt::Display for Count<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.class)?;
        if self.0.count > 1 { write!(f, " x{}", self.0.count) } else { Ok(()) }
    }
}
