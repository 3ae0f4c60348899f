//! The one way in which plans are made: [`build`] checks what is asked for and hands a builder to the algorithm's file.
//!
//! The builder allocates connections, cuts loops into chunks and keeps the books (slot sizes, iterations), so that an
//! algorithm's file says nothing but who talks to whom about which bytes. This room never chooses an algorithm (see
//! [`select`](super::select)) and never decides whether a plan is right (the verifier does).

use std::error::Error;
use std::fmt;

use super::order::Order;
use super::{
    Algorithm, Collective, Connection, ConnectionId, Loop, MAX_CHANNEL_COUNT, Operand, Plan, Program, Rank, RankPlan,
    Source, Step, bruck, chain, direct, dissemination, double_tree, halving_doubling, nvls, one_shot, ring, tree,
};

/// The most ranks that one plan may have. A plan holds the programs of all its ranks, and most algorithms have a step or a
/// connection for each pair of ranks; above this size a plan would take gigabytes.
pub const MAX_RANK_COUNT: usize = 1024;

/// Block boundaries and chunks are multiples of this where that is possible: one cache line, and the widest vector access.
const ALIGNMENT_BYTES: u32 = 64;

/// The most bytes of one chunk where slots set no limit. Chunks are where a program notices an abort, and 1 MiB takes far
/// less than a millisecond, while its fixed cost is already lost in the copying.
const CHUNK_BYTES_MAX: u32 = 1 << 20;

/// Over `hops` hops, `chunks` chunks take `chunks + hops − 1` turns; this many keep a pipeline of a few hops well filled.
/// To be measured.
const PIPELINE_CHUNKS: u64 = 8;

/// A pipeline's chunk is not cut smaller than this, since below it the fixed cost of a step rules. To be measured.
const PIPELINE_CHUNK_BYTES_MIN: u64 = 8 << 10;

/// What a connection of the transport offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Bytes that one slot holds.
    pub slot_bytes: u32,
    /// How many slots there are.
    pub slots: u32,
}

impl Default for Geometry {
    fn default() -> Geometry {
        Geometry { slot_bytes: 32 << 10, slots: 8 }
    }
}

/// Why there is no such plan. All of these are the caller's to mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// A plan for nobody.
    NoRanks,
    /// More ranks than [`MAX_RANK_COUNT`].
    TooManyRanks {
        /// How many were asked for.
        rank_count: usize,
    },
    /// The root is not one of the ranks.
    RootOutOfRange {
        /// The root that was asked for.
        root: Rank,
        /// How many ranks there are.
        rank_count: usize,
    },
    /// The algorithm does not offer the collective.
    NotOffered {
        /// The algorithm that was asked for.
        algorithm: Algorithm,
        /// The collective that it does not offer.
        collective: Collective,
    },
    /// Elements of zero bytes.
    NoElementBytes,
    /// The bytes that the ranks send do not fit 64 bits.
    TooManyBytes {
        /// How many ranks.
        rank_count: usize,
        /// Elements, as the collective counts them.
        count: u64,
        /// Bytes of one element.
        element_bytes: u32,
    },
    /// One slot does not hold one element.
    SlotTooSmall {
        /// Bytes that one slot holds.
        slot_bytes: u32,
        /// Bytes of one element.
        element_bytes: u32,
    },
    /// The algorithm has one channel, and takes the ranks in their own order.
    NoOrders {
        /// The algorithm that was asked for.
        algorithm: Algorithm,
    },
    /// More channels than [`MAX_CHANNEL_COUNT`].
    TooManyChannels {
        /// How many were asked for.
        channel_count: usize,
    },
    /// A channel's order does not have every rank once.
    NotAnOrder {
        /// Which channel.
        channel: usize,
        /// How many ranks there are.
        rank_count: u32,
        /// A rank that is not there, is there twice, or is none.
        rank: Rank,
    },
    /// The algorithm would come to a deadlock with so few slots.
    TooFewSlots {
        /// The algorithm that was asked for.
        algorithm: Algorithm,
        /// How many slots it needs.
        needed: u32,
        /// How many a connection has.
        offered: u32,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PlanError::NoRanks => f.write_str("expected at least one rank, came 0"),
            PlanError::TooManyRanks { rank_count } => {
                write!(f, "expected at most {MAX_RANK_COUNT} ranks, came {rank_count}")
            }
            PlanError::RootOutOfRange { root, rank_count } => {
                write!(f, "expected a root below {rank_count}, the number of ranks; came {root}")
            }
            PlanError::NotOffered { algorithm, collective } => {
                let offered: Vec<_> = algorithm.collectives().iter().map(|each| each.name()).collect();
                let offering: Vec<_> = collective.algorithms().map(Algorithm::name).collect();
                write!(
                    f,
                    "{algorithm} does not offer {name}; it offers {offered}, and {name} is offered by {offering}",
                    name = collective.name(),
                    offered = offered.join(", "),
                    offering = offering.join(", "),
                )
            }
            PlanError::NoElementBytes => f.write_str("expected elements of at least one byte, came 0"),
            PlanError::TooManyBytes { rank_count, count, element_bytes } => write!(
                f,
                "{count} elements of {element_bytes} bytes over {rank_count} ranks are more bytes than 64 bits count"
            ),
            PlanError::SlotTooSmall { slot_bytes, element_bytes } => {
                write!(f, "expected slots that hold an element of {element_bytes} bytes; they have {slot_bytes} bytes")
            }
            PlanError::NoOrders { algorithm } => {
                write!(f, "{algorithm} has one channel, in the order of the ranks; expected no orders")
            }
            PlanError::TooManyChannels { channel_count } => {
                write!(f, "expected at most {MAX_CHANNEL_COUNT} channels, came {channel_count}")
            }
            PlanError::NotAnOrder { channel, rank_count, rank } => write!(
                f,
                "the order of channel {channel}: expected each of {rank_count} ranks once; {rank} is missing, there twice or \
                 none of them"
            ),
            PlanError::TooFewSlots { algorithm, needed, offered } => {
                write!(f, "{algorithm} needs connections of {needed} slots or more; they have {offered}")
            }
        }
    }
}

impl Error for PlanError {}

/// The plan by which `rank_count` ranks do `collective` over `count` elements (see [`Collective`] for what it counts; a
/// barrier's count is taken as 0) with `algorithm`.
///
/// Building is deterministic: the same arguments give the same plan on every rank. A plan for one rank is a local copy. With
/// a count of 0 the ranks still exchange slots of zero bytes, by which they notice calls that differ.
///
/// # Errors
///
/// See [`PlanError`].
pub fn build(
    collective: Collective,
    algorithm: Algorithm,
    rank_count: usize,
    count: u64,
    element_bytes: u32,
    geometry: &Geometry,
) -> Result<Plan, PlanError> {
    build_in_orders(collective, algorithm, rank_count, count, element_bytes, geometry, &[])
}

/// As [`build`], with a channel for each of `orders`, which takes the ranks in that order; for algorithms whose channels go round
/// ([`Algorithm::takes_orders`]).
///
/// # Errors
///
/// See [`PlanError`].
pub fn build_in_orders(
    collective: Collective,
    algorithm: Algorithm,
    rank_count: usize,
    count: u64,
    element_bytes: u32,
    geometry: &Geometry,
    orders: &[Vec<Rank>],
) -> Result<Plan, PlanError> {
    let request = Request::check(collective, algorithm, rank_count, count, element_bytes)?;
    let mut builder = Builder::new(request, *geometry, orders)?;
    if rank_count == 1 {
        local_copy(&mut builder);
    } else {
        match algorithm {
            Algorithm::Ring => ring::build(&mut builder),
            Algorithm::Tree => tree::build(&mut builder),
            Algorithm::Chain => chain::build(&mut builder),
            Algorithm::OneShot => one_shot::build(&mut builder),
            Algorithm::Direct => direct::build(&mut builder),
            Algorithm::Nvls => nvls::build(&mut builder),
            Algorithm::Dissemination => dissemination::build(&mut builder),
            Algorithm::HalvingDoubling => halving_doubling::build(&mut builder),
            Algorithm::DoubleTree => double_tree::build(&mut builder),
            Algorithm::Bruck => bruck::build(&mut builder),
        }
    }
    builder.finish()
}

/// The plan of a rank that is alone: its input is the result.
fn local_copy(builder: &mut Builder) {
    let step = if builder.request.collective.reduces() {
        Step::new(builder.request.bytes(), vec![Operand::input(0).scaled()], vec![Operand::output(0)]).finished()
    } else {
        Step::new(builder.request.bytes(), vec![Operand::input(0).plain()], vec![Operand::output(0)])
    };
    let steps = builder.chunked(builder.memory_chunk_bytes(), vec![step]);
    builder.add_program(Rank(0), vec![steps]);
}

/// What a plan is asked to do, checked: nothing that an algorithm computes from it can overflow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) collective: Collective,
    pub(super) algorithm: Algorithm,
    pub(super) rank_count: u32,
    pub(super) count: u64,
    pub(super) element_bytes: u32,
}

impl Request {
    pub(super) fn check(
        collective: Collective,
        algorithm: Algorithm,
        rank_count: usize,
        count: u64,
        element_bytes: u32,
    ) -> Result<Request, PlanError> {
        if rank_count == 0 {
            return Err(PlanError::NoRanks);
        }
        if rank_count > MAX_RANK_COUNT {
            return Err(PlanError::TooManyRanks { rank_count });
        }
        if let Some(root) = collective.root()
            && root.index() >= rank_count
        {
            return Err(PlanError::RootOutOfRange { root, rank_count });
        }
        if !algorithm.offers(collective) {
            return Err(PlanError::NotOffered { algorithm, collective });
        }
        if element_bytes == 0 {
            return Err(PlanError::NoElementBytes);
        }
        let count = if collective == Collective::Barrier { 0 } else { count };
        // The largest buffer has N × count elements, and no rank sends as much as 2 N × count elements (or, in a tree of
        // two ranks or more, 3 × count); so all offsets, and all sums of bytes, fit 64 bits if this product does.
        let rank_count_doubled = 2 * rank_count as u64;
        if count.checked_mul(u64::from(element_bytes)).and_then(|bytes| bytes.checked_mul(rank_count_doubled)).is_none()
        {
            return Err(PlanError::TooManyBytes { rank_count, count, element_bytes });
        }
        Ok(Request { collective, algorithm, rank_count: rank_count as u32, count, element_bytes })
    }

    /// The channels for these orders.
    pub(super) fn channels(&self, orders: &[Vec<Rank>]) -> Result<Vec<Order>, PlanError> {
        if !orders.is_empty() && !self.algorithm.takes_orders() {
            return Err(PlanError::NoOrders { algorithm: self.algorithm });
        }
        Order::all(orders, self.rank_count)
    }

    /// The `channel`-th of the parts of a block that `channel_count` channels carry.
    pub(super) fn part(&self, block: Block, channel: usize, channel_count: usize) -> Block {
        let elements = block.bytes / u64::from(self.element_bytes);
        let Block { offset, bytes } = partition(elements, self.element_bytes, channel_count as u32, channel as u32);
        Block { offset: block.offset + offset, bytes }
    }

    /// The bytes of `count` elements.
    pub(super) fn bytes(&self) -> u64 {
        self.count * u64::from(self.element_bytes)
    }

    /// All ranks, in order.
    pub(super) fn ranks(&self) -> impl DoubleEndedIterator<Item = Rank> + ExactSizeIterator + use<> {
        (0..self.rank_count).map(Rank)
    }

    /// The rank that comes `distance` after `rank` round the circle of ranks.
    pub(super) fn rank_after(&self, rank: Rank, distance: u32) -> Rank {
        Rank((rank.0 + distance) % self.rank_count)
    }

    /// The rank that comes `distance` before `rank` round the circle of ranks.
    pub(super) fn rank_before(&self, rank: Rank, distance: u32) -> Rank {
        Rank((rank.0 + self.rank_count - distance % self.rank_count) % self.rank_count)
    }

    /// All of the data, of collectives that do not count by blocks.
    pub(super) fn whole(&self) -> Block {
        Block { offset: 0, bytes: self.bytes() }
    }

    /// The `index`-th of so many shares of the data.
    pub(super) fn share(&self, index: u32, share_count: u32) -> Block {
        partition(self.count, self.element_bytes, share_count, index)
    }

    /// The `rank`-th of the blocks that the collective works by: of `count` elements shared out over the ranks, or, where
    /// the collective itself counts by blocks, of one block of `count` elements for each rank.
    pub(super) fn block(&self, rank: Rank) -> Block {
        match self.collective {
            Collective::ReduceScatter | Collective::AllGather => {
                Block { offset: u64::from(rank.0) * self.bytes(), bytes: self.bytes() }
            }
            _ => self.share(rank.0, self.rank_count),
        }
    }
}

/// A contiguous piece of a buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The `index`-th of `parts` contiguous blocks that together cover `count` elements.
///
/// Where every block gets a whole aligned unit (the fewest elements that fill a multiple of 64 bytes), boundaries lie between
/// units, so that no cache line belongs to two blocks; blocks then differ by at most one unit. Smaller counts are cut
/// between elements; blocks then differ by at most one element and may be empty. `count × element_bytes` must fit 64 bits.
fn partition(count: u64, element_bytes: u32, parts: u32, index: u32) -> Block {
    let unit_elements = aligned_unit_bytes(element_bytes) / u64::from(element_bytes);
    let unit_elements = if count / unit_elements >= u64::from(parts) { unit_elements } else { 1 };
    let units = count.div_ceil(unit_elements);
    let (units_each, units_left) = (units / u64::from(parts), units % u64::from(parts));
    // Equal to index × units / parts, without the overflow. The units left over go to blocks spread evenly, the last block
    // among them; so a last unit that is cut short never makes the smallest block smaller still.
    let first_unit = |index: u32| {
        let index = u64::from(index);
        index * units_each + index * units_left / u64::from(parts)
    };
    let start = (first_unit(index) * unit_elements).min(count);
    // Only the last unit can reach past the end, and it can do so by less than one unit: saturate rather than overflow.
    let end = first_unit(index + 1).saturating_mul(unit_elements).min(count);
    Block { offset: start * u64::from(element_bytes), bytes: (end - start) * u64::from(element_bytes) }
}

/// The fewest bytes that are both whole elements and a multiple of [`ALIGNMENT_BYTES`].
pub(super) fn aligned_unit_bytes(element_bytes: u32) -> u64 {
    let power_of_two_in_both = element_bytes.trailing_zeros().min(ALIGNMENT_BYTES.trailing_zeros());
    u64::from(element_bytes) * u64::from(ALIGNMENT_BYTES >> power_of_two_in_both)
}

/// The largest chunk of whole elements within `limit_bytes`, aligned if that is possible; at least one element.
fn chunk_bytes_within(limit_bytes: u32, element_bytes: u32) -> u32 {
    let unit_bytes = aligned_unit_bytes(element_bytes);
    if unit_bytes <= u64::from(limit_bytes) {
        // The unit is at most `limit_bytes`, so it fits.
        limit_bytes - limit_bytes % unit_bytes as u32
    } else {
        (limit_bytes - limit_bytes % element_bytes).max(element_bytes)
    }
}

/// A plan in the making.
#[derive(Debug)]
pub(super) struct Builder {
    pub(super) request: Request,
    geometry: Geometry,
    orders: Vec<Vec<Rank>>,
    /// The same, or the ranks' own order where none is asked for.
    pub(super) channels: Vec<Order>,
    connections: Vec<Connection>,
    ranks: Vec<RankPlan>,
}

impl Builder {
    fn new(request: Request, geometry: Geometry, orders: &[Vec<Rank>]) -> Result<Builder, PlanError> {
        let channels = request.channels(orders)?;
        if geometry.slot_bytes < request.element_bytes {
            return Err(PlanError::SlotTooSmall {
                slot_bytes: geometry.slot_bytes,
                element_bytes: request.element_bytes,
            });
        }
        if geometry.slots == 0 {
            return Err(PlanError::TooFewSlots { algorithm: request.algorithm, needed: 1, offered: 0 });
        }
        let ranks = vec![RankPlan::default(); request.rank_count as usize];
        Ok(Builder { request, geometry, orders: orders.to_vec(), channels, connections: Vec::new(), ranks })
    }

    /// A new connection that needs `slots` slots to be free of deadlock.
    pub(super) fn connect(&mut self, from: Rank, to: Rank, slots: u32) -> ConnectionId {
        // At most a few for each pair of at most `MAX_RANK_COUNT` ranks, so the number fits.
        let id = ConnectionId(self.connections.len() as u32);
        self.connections.push(Connection { from, to, slots, slot_bytes: 0 });
        id
    }

    /// One connection from each rank to each other one.
    pub(super) fn connect_all(&mut self, slots: u32) -> Mesh {
        let mesh = Mesh { first: self.connections.len() as u32, rank_count: self.request.rank_count };
        self.connections.reserve(self.ranks.len() * (self.ranks.len() - 1));
        for from in self.request.ranks() {
            for to in mesh.peers(from) {
                let id = self.connect(from, to, slots);
                debug_assert_eq!(id, mesh.connection(from, to));
            }
        }
        mesh
    }

    /// How many slots a connection has.
    pub(super) fn slots(&self) -> u32 {
        self.geometry.slots
    }

    /// Bytes of a chunk that goes through slots.
    pub(super) fn slot_chunk_bytes(&self) -> u32 {
        chunk_bytes_within(self.geometry.slot_bytes.min(CHUNK_BYTES_MAX), self.request.element_bytes)
    }

    /// Bytes of a chunk that goes through slots along several hops, of `bytes` in all: small enough that the hops work at
    /// the same time, large enough that the steps' fixed cost does not rule.
    pub(super) fn pipeline_chunk_bytes(&self, bytes: u64) -> u32 {
        let unit_bytes = aligned_unit_bytes(self.request.element_bytes);
        let wanted_bytes = bytes.div_ceil(PIPELINE_CHUNKS).max(PIPELINE_CHUNK_BYTES_MIN).next_multiple_of(unit_bytes);
        let slot_chunk_bytes = self.slot_chunk_bytes();
        u32::try_from(wanted_bytes).map_or(slot_chunk_bytes, |wanted_bytes| wanted_bytes.min(slot_chunk_bytes))
    }

    /// Bytes of a chunk that touches only this rank's memory and windows.
    pub(super) fn memory_chunk_bytes(&self) -> u32 {
        chunk_bytes_within(CHUNK_BYTES_MAX, self.request.element_bytes)
    }

    /// A loop that runs `steps` until the longest of them is through, and at least once.
    pub(super) fn chunked(&self, chunk_bytes: u32, steps: Vec<Step>) -> Loop {
        let bytes_max = steps.iter().map(|step| step.bytes).max().unwrap_or(0);
        self.chunked_for(bytes_max, chunk_bytes, steps)
    }

    /// A loop that runs `steps` as often as `bytes` need, however many the steps have.
    pub(super) fn chunked_for(&self, bytes: u64, chunk_bytes: u32, steps: Vec<Step>) -> Loop {
        Loop { iterations: bytes.div_ceil(u64::from(chunk_bytes)).max(1), chunk_bytes, steps }
    }

    /// The ranks at the two ends of a connection.
    pub(super) fn ends(&self, id: ConnectionId) -> (Rank, Rank) {
        let Connection { from, to, .. } = self.connections[id.index()];
        (from, to)
    }

    /// A loop that runs `steps` once, on slots of zero bytes.
    pub(super) fn once(&self, steps: Vec<Step>) -> Loop {
        self.chunked(self.request.element_bytes, steps)
    }

    /// One more program for `rank`.
    pub(super) fn add_program(&mut self, rank: Rank, loops: Vec<Loop>) {
        for each in &loops {
            for step in &each.steps {
                let chunk_bytes = step.bytes.min(u64::from(each.chunk_bytes)) as u32;
                for destination in &step.destinations {
                    if let Operand::Slot(id) = *destination {
                        let connection = &mut self.connections[id.index()];
                        connection.slot_bytes = connection.slot_bytes.max(chunk_bytes);
                    }
                }
            }
        }
        self.ranks[rank.index()].programs.push(Program { loops });
    }

    fn finish(self) -> Result<Plan, PlanError> {
        let Request { collective, algorithm, count, element_bytes, .. } = self.request;
        let needed = self.connections.iter().map(|connection| connection.slots).max().unwrap_or(0);
        if needed > self.geometry.slots {
            return Err(PlanError::TooFewSlots { algorithm, needed, offered: self.geometry.slots });
        }
        let Builder { orders, connections, ranks, .. } = self;
        Ok(Plan { collective, algorithm, count, element_bytes, orders, connections, ranks })
    }
}

/// Connections from each rank to each other one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mesh {
    first: u32,
    rank_count: u32,
}

impl Mesh {
    /// The connection from one rank to another.
    pub(super) fn connection(&self, from: Rank, to: Rank) -> ConnectionId {
        debug_assert_ne!(from, to, "a rank has no connection to itself");
        ConnectionId(self.first + from.0 * (self.rank_count - 1) + to.0 - u32::from(to.0 > from.0))
    }

    /// All ranks but `rank`, in order.
    pub(super) fn peers(&self, rank: Rank) -> impl Iterator<Item = Rank> + use<> {
        (0..self.rank_count).map(Rank).filter(move |&peer| peer != rank)
    }

    /// As destinations: the slots to every other rank.
    pub(super) fn slots_to_peers(&self, rank: Rank) -> Vec<Operand> {
        self.peers(rank).map(|peer| Operand::Slot(self.connection(rank, peer))).collect()
    }

    /// As sources: the slots from every other rank, taken as they are.
    pub(super) fn slots_from_peers(&self, rank: Rank) -> Vec<Source> {
        self.peers(rank).map(|peer| Operand::Slot(self.connection(peer, rank)).plain()).collect()
    }
}

/// Tells the peers at the other ends of `destinations` that this rank has come this far: a slot of zero bytes to each.
pub(super) fn signal(destinations: Vec<Operand>) -> Step {
    Step::new(0, vec![Operand::input(0).plain()], destinations)
}

/// Waits until the peers at the other ends of `sources` have come this far: a slot of zero bytes from each.
pub(super) fn await_signals(sources: Vec<Source>) -> Step {
    Step::new(0, sources, vec![Operand::output(0)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check_partition(count: u64, element_bytes: u32, parts: u32) {
        let unit_bytes = aligned_unit_bytes(element_bytes);
        let aligned = count / (unit_bytes / u64::from(element_bytes)) >= u64::from(parts);
        let mut end = 0;
        let (mut smallest, mut largest) = (u64::MAX, 0);
        for index in 0..parts {
            let block = partition(count, element_bytes, parts, index);
            assert_eq!(block.offset, end, "block {index} does not start where the one before ends");
            assert_eq!(block.bytes % u64::from(element_bytes), 0);
            if aligned {
                assert_eq!(block.offset % 64, 0, "block {index} starts inside a cache line");
                assert!(block.bytes > 0);
            }
            end += block.bytes;
            smallest = smallest.min(block.bytes);
            largest = largest.max(block.bytes);
        }
        assert_eq!(end, count * u64::from(element_bytes), "the blocks do not cover everything");
        assert!(largest - smallest <= if aligned { unit_bytes } else { u64::from(element_bytes) });
    }

    #[test]
    fn small_partitions_cover_everything_in_blocks_that_differ_little() {
        for element_bytes in [1, 2, 3, 4, 8, 12, 16, 64, 100, 128] {
            for parts in 1..=9 {
                for count in 0..700 {
                    check_partition(count, element_bytes, parts);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_partition_covers_everything_in_blocks_that_differ_little(
            bytes in any::<u64>(), element_bytes in 1_u32.., parts in 1_u32..2048,
        ) {
            check_partition(bytes / u64::from(element_bytes), element_bytes, parts);
        }

        #[test]
        fn any_chunk_is_whole_elements_within_its_limit_and_aligned_where_that_is_possible(
            limit_bytes in any::<u32>(), element_bytes in prop_oneof![1_u32..200, 1_u32..],
        ) {
            let chunk_bytes = chunk_bytes_within(limit_bytes, element_bytes);
            prop_assert!(chunk_bytes > 0 && chunk_bytes.is_multiple_of(element_bytes));
            prop_assert!(chunk_bytes <= limit_bytes || chunk_bytes == element_bytes);
            if aligned_unit_bytes(element_bytes) <= u64::from(limit_bytes) {
                prop_assert_eq!(chunk_bytes % 64, 0);
            }
        }
    }

    #[test]
    fn a_mesh_numbers_each_pair_once() {
        let request = Request::check(Collective::AllReduce, Algorithm::OneShot, 5, 1, 4).unwrap();
        let mut builder = Builder::new(request, Geometry::default(), &[]).unwrap();
        builder.connect(Rank(0), Rank(1), 1);
        let mesh = builder.connect_all(1);
        for from in request.ranks() {
            for to in mesh.peers(from) {
                let connection = builder.connections[mesh.connection(from, to).index()];
                assert_eq!((connection.from, connection.to), (from, to));
            }
        }
        assert_eq!(builder.connections.len(), 1 + 5 * 4);
    }

    #[test]
    fn what_cannot_be_built_is_a_typed_error() {
        let geometry = Geometry::default();
        let build_with = |collective, algorithm, rank_count, count, element_bytes, geometry| {
            build(collective, algorithm, rank_count, count, element_bytes, &geometry).unwrap_err()
        };
        use {Algorithm::*, Collective::*};
        assert_eq!(build_with(AllReduce, Ring, 0, 1, 4, geometry), PlanError::NoRanks);
        assert_eq!(
            build_with(AllReduce, Ring, usize::MAX, 1, 4, geometry),
            PlanError::TooManyRanks { rank_count: usize::MAX }
        );
        assert_eq!(
            build_with(Broadcast { root: Rank(3) }, Tree, 3, 1, 4, geometry),
            PlanError::RootOutOfRange { root: Rank(3), rank_count: 3 }
        );
        assert_eq!(build_with(AllReduce, Ring, 2, 1, 0, geometry), PlanError::NoElementBytes);
        for count in [u64::MAX, u64::MAX / 4, u64::MAX / 16 + 1] {
            assert_eq!(
                build_with(AllReduce, Ring, 2, count, 4, geometry),
                PlanError::TooManyBytes { rank_count: 2, count, element_bytes: 4 }
            );
        }
        let slot_bytes = 3;
        assert_eq!(
            build_with(AllReduce, Ring, 2, 1, 4, Geometry { slot_bytes, ..geometry }),
            PlanError::SlotTooSmall { slot_bytes, element_bytes: 4 }
        );
        assert_eq!(
            build_with(AllReduce, Ring, 2, 1, 4, Geometry { slots: 1, ..geometry }),
            PlanError::TooFewSlots { algorithm: Ring, needed: 2, offered: 1 }
        );
        assert_eq!(
            build_with(AllReduce, OneShot, 2, 1, 4, Geometry { slots: 0, ..geometry }),
            PlanError::TooFewSlots { algorithm: OneShot, needed: 1, offered: 0 }
        );
        assert_eq!(
            build_with(Broadcast { root: Rank(0) }, Ring, 3, 1, 4, geometry).to_string(),
            "ring does not offer broadcast; it offers all_reduce, reduce_scatter, all_gather, \
             and broadcast is offered by tree, chain, direct, nvls"
        );
    }

    #[test]
    fn the_largest_count_that_fits_builds_with_every_algorithm() {
        for algorithm in Algorithm::ALL {
            for &collective in algorithm.collectives() {
                let count = u64::MAX / (2 * 9 * 4);
                let plan = build(collective, algorithm, 9, count, 4, &Geometry::default()).unwrap();
                assert_eq!(plan.rank_count(), 9);
            }
        }
    }
}
