//! Direct: ranks read and write each other's memory in place, through windows.
//!
//! An all-reduce is the two-shot one: rank `r` reduces block `r` out of everyone's input and writes the result into
//! everyone's output. The other collectives are one half of that, or a part of one half. Nothing is copied into slots; slots
//! of zero bytes frame the work: with the first one a rank says that its memory may be touched, with the second one that it
//! has stopped touching its peer's, so nobody returns while a peer is still at his memory. They pass only between pairs
//! that need them, and at least one passes for each rank, so that calls that differ are noticed.
//!
//! Sources are reduced in rank order by one rank alone, so all ranks get the same bits. Within one call, each byte of a
//! rank's memory is written by one rank only, in the step that has read it or after; so any rank's input and output may be
//! the same memory whatever the others do.

use super::builder::{Block, Builder, Request, await_signals, signal};
use super::{Buffer, Collective, ConnectionId, Loop, Operand, Rank, Source, Step};

/// The second slot of a call waits until the peer has read the first, and for that the peer needs only first slots.
const SLOTS: u32 = 1;

pub(super) fn build(builder: &mut Builder) {
    match builder.request.collective {
        Collective::Broadcast { root } => broadcast(builder, root),
        Collective::Reduce { root } => reduce(builder, root),
        _ => all_to_all(builder),
    }
}

/// All-reduce, reduce-scatter and all-gather: every rank works on every other's memory.
fn all_to_all(builder: &mut Builder) {
    let request = builder.request;
    all_work(builder, |rank| {
        let own = request.block(rank);
        match request.collective {
            Collective::ReduceScatter => {
                let sources = inputs_in_rank_order(&request, rank, own);
                vec![Step::new(own.bytes, sources, vec![Operand::output(0)]).finished()]
            }
            Collective::AllGather => pull_every_input(&request, rank),
            _ => {
                let sources = inputs_in_rank_order(&request, rank, own);
                vec![Step::new(own.bytes, sources, every_output(&request, rank, own)).finished()]
            }
        }
    });
}

/// Each rank does `steps` on everyone's memory, between two frames of empty slots to and from everyone.
pub(super) fn all_work(builder: &mut Builder, steps: impl Fn(Rank) -> Vec<Step>) {
    let mesh = builder.connect_all(SLOTS);
    for rank in builder.request.ranks() {
        let frame = |builder: &Builder| {
            builder.once(vec![signal(mesh.slots_to_peers(rank)), await_signals(mesh.slots_from_peers(rank))])
        };
        let mut loops = vec![frame(builder)];
        loops.extend(work(builder, steps(rank)));
        loops.push(frame(builder));
        builder.add_program(rank, loops);
    }
}

/// The root does `steps` on everyone's memory; the others only lend theirs.
pub(super) fn root_works(builder: &mut Builder, root: Rank, steps: Vec<Step>) {
    let star = Star::connect(builder, root);
    for rank in builder.request.ranks().filter(|rank| *rank != root) {
        let steps = vec![signal(vec![star.slot_to_root(rank)]), await_signals(vec![star.slot_from_root(rank).plain()])];
        let loops = vec![builder.once(steps)];
        builder.add_program(rank, loops);
    }
    let mut loops = vec![builder.once(vec![await_signals(star.slots_from_leaves())])];
    loops.extend(work(builder, steps));
    loops.push(builder.once(vec![signal(star.slots_to_leaves())]));
    builder.add_program(root, loops);
}

/// Everyone pulls the root's input.
fn broadcast(builder: &mut Builder, root: Rank) {
    let request = builder.request;
    let star = Star::connect(builder, root);
    for rank in request.ranks() {
        let mut loops = Vec::with_capacity(3);
        if rank == root {
            loops.push(builder.once(vec![signal(star.slots_to_leaves())]));
            loops.extend(work(builder, vec![copy(&request, Operand::input(0))]));
            loops.push(builder.once(vec![await_signals(star.slots_from_leaves())]));
        } else {
            loops.push(builder.once(vec![await_signals(vec![star.slot_from_root(rank).plain()])]));
            loops.extend(work(builder, vec![copy(&request, input_of(root, 0))]));
            loops.push(builder.once(vec![signal(vec![star.slot_to_root(rank)])]));
        }
        builder.add_program(rank, loops);
    }
}

/// The root pulls everyone's input.
fn reduce(builder: &mut Builder, root: Rank) {
    let request = builder.request;
    let whole = Block { offset: 0, bytes: request.bytes() };
    let sources = inputs_in_rank_order(&request, root, whole);
    root_works(builder, root, vec![Step::new(whole.bytes, sources, vec![Operand::output(0)]).finished()]);
}

/// The loop between the frames; none where a rank has nothing to do.
fn work(builder: &Builder, steps: Vec<Step>) -> Option<Loop> {
    let something = steps.iter().any(|step| step.bytes > 0);
    something.then(|| builder.chunked(builder.memory_chunk_bytes(), steps))
}

/// `offset` bytes into a rank's input, seen from another rank.
fn input_of(rank: Rank, offset: u64) -> Operand {
    Operand::Window { rank, buffer: Buffer::Input, offset }
}

/// A block of every rank's input, in rank order.
pub(super) fn inputs_in_rank_order(request: &Request, rank: Rank, block: Block) -> Vec<Source> {
    let input = |peer| if peer == rank { Operand::input(block.offset) } else { input_of(peer, block.offset) };
    request.ranks().map(|peer| input(peer).scaled()).collect()
}

/// A block of every rank's output. Each rank starts with its own and goes round, so that not all write to the same one first.
pub(super) fn every_output(request: &Request, rank: Rank, block: Block) -> Vec<Operand> {
    let offset = block.offset;
    let others = (1..request.rank_count).map(|distance| request.rank_after(rank, distance));
    std::iter::once(Operand::output(offset))
        .chain(others.map(|rank| Operand::Window { rank, buffer: Buffer::Output, offset }))
        .collect()
}

/// A copy of every rank's input into its block of the own output, the own input first.
fn pull_every_input(request: &Request, rank: Rank) -> Vec<Step> {
    (0..request.rank_count)
        .map(|distance| {
            let peer = request.rank_after(rank, distance);
            let block = request.block(peer);
            let source = if peer == rank { Operand::input(0) } else { input_of(peer, 0) };
            Step::new(block.bytes, vec![source.plain()], vec![Operand::output(block.offset)])
        })
        .collect()
}

/// A copy of everything from `source` into the own output.
fn copy(request: &Request, source: Operand) -> Step {
    Step::new(request.bytes(), vec![source.plain()], vec![Operand::output(0)])
}

/// Connections between the root and each other rank (the leaves), both ways.
struct Star {
    root: Rank,
    leaf_count: u32,
}

impl Star {
    fn connect(builder: &mut Builder, root: Rank) -> Star {
        let star = Star { root, leaf_count: builder.request.rank_count - 1 };
        for leaf in star.leaves() {
            let to_root = builder.connect(leaf, root, SLOTS);
            let from_root = builder.connect(root, leaf, SLOTS);
            debug_assert_eq!(
                (star.slot_to_root(leaf), star.slot_from_root(leaf)),
                (Operand::Slot(to_root), Operand::Slot(from_root))
            );
        }
        star
    }

    fn leaves(&self) -> impl Iterator<Item = Rank> + use<> {
        let root = self.root;
        (0..=self.leaf_count).map(Rank).filter(move |&rank| rank != root)
    }

    /// The connection of a leaf to the root; the one from the root is the next.
    fn first_connection(&self, leaf: Rank) -> u32 {
        debug_assert_ne!(leaf, self.root, "the root has no connection to itself");
        2 * (leaf.0 - u32::from(leaf.0 > self.root.0))
    }

    fn slot_to_root(&self, leaf: Rank) -> Operand {
        Operand::Slot(ConnectionId(self.first_connection(leaf)))
    }

    fn slot_from_root(&self, leaf: Rank) -> Operand {
        Operand::Slot(ConnectionId(self.first_connection(leaf) + 1))
    }

    fn slots_to_leaves(&self) -> Vec<Operand> {
        self.leaves().map(|leaf| self.slot_from_root(leaf)).collect()
    }

    fn slots_from_leaves(&self) -> Vec<Source> {
        self.leaves().map(|leaf| self.slot_to_root(leaf).plain()).collect()
    }
}

/// Bytes that each rank's memory sends: what the rank writes into peers' windows and what peers read from its own.
///
/// In the two-shot all-reduce peers read every block of the rank's input but its own, and the rank writes its own block of
/// the result to every peer: `2 (N − 1) / N · S` for blocks of equal size, the bound of Patarasuk and Yuan 2009. In
/// reduce-scatter (of `S` bytes for each rank) every peer reads its block of the rank's input, in all-gather every peer reads
/// its whole input: `(N − 1) S` either way. In a broadcast `N − 1` peers read the root's `S` bytes; in a reduce the root
/// reads those of each peer.
pub(super) fn published_bytes(request: &Request) -> Vec<u64> {
    let bytes = request.bytes();
    let peers = u64::from(request.rank_count - 1);
    let sent = |rank: Rank| match request.collective {
        Collective::Broadcast { root } => {
            if rank == root {
                peers * bytes
            } else {
                0
            }
        }
        Collective::Reduce { root } => {
            if rank == root {
                0
            } else {
                bytes
            }
        }
        Collective::ReduceScatter | Collective::AllGather => peers * bytes,
        _ => {
            let own_bytes = request.block(rank).bytes;
            (bytes - own_bytes) + peers * own_bytes
        }
    };
    request.ranks().map(sent).collect()
}
