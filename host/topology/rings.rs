//! Ways round: the orders in which rings take a cluster's ranks, so that together they use its links.
//!
//! In a mesh of NVLinks no single ring uses all links. There a set of Hamiltonian cycles is looked for in which no link is in more
//! cycles than it has lanes: each cycle is two rings, one either way, since links carry both ways at once. Through a switch, or over
//! PCI Express, one order is as good as another that keeps near what is near. Between hosts each ring goes by one adapter of each
//! host, so there are as many rings as adapters.
//!
//! The search tries everything, in an order that depends on the links alone; it is for the GPUs of one host.

use super::cluster::{Cluster, NodeKind};
use super::link::LinkClass;

/// GPUs of a host up to which cycles are searched for.
const SEARCHED_GPUS_MAX: usize = 16;

/// Steps after which the search is content with what it has found.
const SEARCH_STEPS_MAX: u64 = 4_000_000;

/// Rings where one order is as good as another: with several, one moves bytes while another waits.
const EQUAL_RINGS: usize = 4;

/// Cycles, each as the GPUs in order from GPU 0 on.
pub type Cycle = Vec<usize>;

/// How many NVLinks join each two of some GPUs directly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    links: Vec<Vec<u32>>,
}

impl Mesh {
    /// That of a cluster's first host; none where it has no direct links, or too many GPUs.
    pub fn of(cluster: &Cluster) -> Option<Mesh> {
        let count = cluster.hosts()[0].ranks[1] as usize;
        let mut links = vec![vec![0; count]; count];
        for link in cluster.links() {
            let rank = |end: usize| (0..count).find(|rank| cluster.node_of_rank(*rank) == link.ends[end]);
            if let (LinkClass::NvLink(_), Some(one), Some(other)) = (link.class, rank(0), rank(1)) {
                links[one][other] += link.count;
                links[other][one] += link.count;
            }
        }
        let is_mesh = count <= SEARCHED_GPUS_MAX && links.iter().flatten().any(|count| *count > 0);
        is_mesh.then_some(Mesh { links })
    }

    /// Links of the GPU that has the fewest.
    fn degree(&self) -> u32 {
        self.links.iter().map(|row| row.iter().sum()).min().unwrap_or(0)
    }

    /// All cycles through all GPUs, each one way only.
    pub fn hamiltonian_cycles(&self) -> Vec<Cycle> {
        let mut search = Search { mesh: self, way: vec![0], found: Vec::new(), end: None, steps: 0 };
        search.go_on();
        search.found
    }

    /// A way from one GPU through all others to another one.
    fn hamiltonian_path(&self, from: usize, to: usize) -> Option<Vec<usize>> {
        let mut search = Search { mesh: self, way: vec![from], found: Vec::new(), end: Some(to), steps: 0 };
        search.go_on();
        search.found.into_iter().next()
    }

    /// All sets of so many Hamiltonian cycles that together use each link at most as often as it is there; a cycle may be there more
    /// than once.
    pub fn disjoint_cycles(&self, count: usize) -> Vec<Vec<Cycle>> {
        let cycles = self.hamiltonian_cycles();
        let (mut left, mut chosen, mut found, mut steps) = (self.links.clone(), Vec::new(), Vec::new(), 0);
        choose(&cycles, 0, count, &mut left, &mut chosen, &mut found, &mut steps);
        let cycles_of = |set: Vec<usize>| set.into_iter().map(|index| cycles[index].clone()).collect();
        found.into_iter().map(cycles_of).collect()
    }
}

/// A way that is tried.
struct Search<'a> {
    mesh: &'a Mesh,
    way: Vec<usize>,
    found: Vec<Cycle>,
    /// Where it is to end; a cycle, if nowhere.
    end: Option<usize>,
    steps: u64,
}

impl Search<'_> {
    fn go_on(&mut self) {
        self.steps += 1;
        let count = self.mesh.links.len();
        let (first, last) = (self.way[0], self.way[self.way.len() - 1]);
        if self.way.len() == count {
            let is_whole = match self.end {
                Some(end) => last == end,
                // Each cycle is found twice, once either way: one is enough.
                None => self.mesh.links[last][first] > 0 && (count < 3 || self.way[1] < last),
            };
            if is_whole {
                self.found.push(self.way.clone());
            }
            return;
        }
        // Wide links first.
        let mut next: Vec<usize> = (0..count)
            .filter(|gpu| self.mesh.links[last][*gpu] > 0 && !self.way.contains(gpu))
            .filter(|gpu| self.end != Some(*gpu) || self.way.len() + 1 == count)
            .collect();
        next.sort_by_key(|gpu| (std::cmp::Reverse(self.mesh.links[last][*gpu]), *gpu));
        for gpu in next {
            if self.steps > SEARCH_STEPS_MAX || self.end.is_some() && !self.found.is_empty() {
                return;
            }
            self.way.push(gpu);
            self.go_on();
            self.way.pop();
        }
    }
}

fn choose(
    cycles: &[Cycle],
    from: usize,
    count: usize,
    left: &mut [Vec<u32>],
    chosen: &mut Vec<usize>,
    found: &mut Vec<Vec<usize>>,
    steps: &mut u64,
) {
    if chosen.len() == count {
        found.push(chosen.clone());
        return;
    }
    for index in from..cycles.len() {
        *steps += 1;
        if *steps > SEARCH_STEPS_MAX {
            return;
        }
        if take(left, &cycles[index], true) {
            chosen.push(index);
            choose(cycles, index, count, left, chosen, found, steps);
            chosen.pop();
            take(left, &cycles[index], false);
        }
    }
}

/// Takes a cycle's links, or gives them back; whether there were any left of each.
fn take(left: &mut [Vec<u32>], cycle: &[usize], takes: bool) -> bool {
    let pairs = || cycle.iter().zip(cycle.iter().cycle().skip(1)).map(|(one, other)| (*one, *other));
    // Between two GPUs a cycle goes there and back over two links.
    let needed =
        |one: usize, other: usize| pairs().filter(|pair| *pair == (one, other) || *pair == (other, one)).count();
    if takes && pairs().any(|(one, other)| (left[one][other] as usize) < needed(one, other)) {
        return false;
    }
    for (one, other) in pairs() {
        for (one, other) in [(one, other), (other, one)] {
            if takes { left[one][other] -= 1 } else { left[one][other] += 1 }
        }
    }
    true
}

impl Cluster {
    /// For each ring the order in which it takes the ranks.
    pub fn ring_orders(&self) -> Vec<Vec<u32>> {
        if self.hosts().len() == 1 { self.rings_inside() } else { self.rings_between() }
    }

    fn rings_inside(&self) -> Vec<Vec<u32>> {
        let plain: Vec<u32> = (0..self.rank_count() as u32).collect();
        let Some(mesh) = Mesh::of(self) else {
            let nvswitch = self.nodes().iter().any(|node| node.kind == NodeKind::NvSwitch);
            let rings = if nvswitch { EQUAL_RINGS } else { 1 };
            return vec![plain; rings];
        };
        for count in (1..=mesh.degree() as usize / 2).rev() {
            let Some(cycles) = mesh.disjoint_cycles(count).into_iter().next() else { continue };
            let forward = cycles.iter().map(|cycle| cycle.iter().map(|gpu| *gpu as u32).collect::<Vec<u32>>());
            let forward: Vec<Vec<u32>> = forward.collect();
            let backward = forward.iter().map(|cycle| cycle.iter().rev().copied().collect());
            return forward.iter().cloned().chain(backward).collect();
        }
        vec![plain]
    }

    /// One ring for each adapter of a host that ranks leave by: in each host it begins at a rank that is near that adapter, and ends at
    /// one.
    fn rings_between(&self) -> Vec<Vec<u32>> {
        let [first, end] = self.hosts()[0].ranks.map(|rank| rank as usize);
        let exits: Vec<_> = (first..end).map(|rank| self.exit(rank)).collect();
        let mut adapters = exits.clone();
        adapters.sort_unstable();
        adapters.dedup();
        let mesh = Mesh::of(self);
        let inside = |adapter| -> Vec<u32> {
            let near: Vec<usize> = (0..exits.len()).filter(|gpu| exits[*gpu] == adapter).collect();
            let (enters, leaves) = (near[0], near[near.len() - 1]);
            let searched =
                mesh.as_ref().filter(|_| enters != leaves).and_then(|mesh| mesh.hamiltonian_path(enters, leaves));
            let way = searched.unwrap_or_else(|| {
                let others = (0..exits.len()).map(|gpu| (enters + gpu) % exits.len());
                let middle: Vec<usize> = others.filter(|gpu| *gpu != enters && *gpu != leaves).collect();
                let last = (enters != leaves).then_some(leaves);
                [enters].into_iter().chain(middle).chain(last).collect()
            });
            way.into_iter().map(|gpu| gpu as u32).collect()
        };
        // Hosts are alike, so the way through the first one is the way through each.
        let each = (end - first) as u32;
        let ring = |adapter| -> Vec<u32> {
            let way = inside(adapter);
            (0..self.hosts().len() as u32).flat_map(|host| way.iter().map(move |gpu| host * each + gpu)).collect()
        };
        adapters.into_iter().map(ring).collect()
    }
}
