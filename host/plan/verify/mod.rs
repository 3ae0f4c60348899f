//! Proves plans right.
//!
//! [`verify`] executes all programs of a [`Plan`] on symbols instead of numbers, and so for all inputs, element types,
//! reductions and schedules at once. This is the list of what it proves.
//!
//! 1. **Well formed.** Ranks, connections, programs and steps that are named exist. A connection joins two different
//!    ranks, has at least one slot, and exactly one program fills and one empties it, each on its side. Loops run at
//!    least once, have steps, cover their steps' bytes, and their chunks hold whole elements; so do offsets and sizes.
//!    Operands lie inside their buffers (sizes: [`buffer_bytes`]), payloads inside their slots. A caller's input is
//!    never a destination, even where it shares the output's memory: the plan does not know. A rank does not reach
//!    itself through a window. No step uses a connection twice. `after` names a step of another program that runs at
//!    least as often.
//!    A step through a switch has one source and one destination, and is aligned; from there on it stands for one with an
//!    operand for each rank ([`Plan::without_multicast`]).
//! 2. **Right.** Each byte of each output (other ranks than the root have none in a reduce) ends as the reduction of
//!    all ranks' inputs at that very element, each counted once; in an all-gather or broadcast, as the untouched input
//!    of the one rank that belongs there. Each input is scaled once: when it enters a step with several sources, or
//!    before that, alone; a plain copy of an input may still be scaled later. The reduction is finished once, when it
//!    is complete, and not reduced further. (With one rank, scale and finish are 1 and may be missing.) In an
//!    all-reduce, all ranks come by each element through the same expression, scales, finishes, order, association and
//!    intermediate roundings included, so all end with the same bits. A slot arrives with as many bytes as its step
//!    takes. After a barrier, each rank knows that each other has come.
//! 3. **Written before read.** No step reads bytes of an output or of scratch that no step has written in this call.
//! 4. **Ordered.** Of two touches of the same byte, by any programs of any ranks, one of them writing, one *happened
//!    before* the other. A step happens before the later ones of its program, before the step that takes a slot which
//!    it filled, and before the steps that name it in `after`. That a released slot is used again orders nothing here:
//!    a transport may have more slots than the plan claims, and then nobody waits for that release. A peer's window is
//!    touched only after some step of that peer, so that the peer has begun the call, and before the last step of one
//!    of the peer's programs, because the caller gets the memory back when all of them have ended. Operands of one step
//!    are the same bytes or disjoint.
//! 5. **In place too.** 2 to 4 hold with each output in memory of its own; with each output in the same memory as the
//!    input (a reduce-scatter's output is the rank's block of the input, an all-gather's input the rank's block of the
//!    output); and with every other rank in place. A plain local copy of bytes onto themselves touches nothing: the
//!    interpreter skips it.
//! 6. **No deadlock, no residue.** With as many slots as the plan claims, or more, every program ends; and then every
//!    slot that was filled has been emptied, so that the next call finds the connections as this one did.
//! 7. **Bytes.** Each rank sends as many bytes as its algorithm's published number says ([`published_bytes`]): what it
//!    puts into slots, what it writes into windows, and what others read from its windows. (Compared once all the rest
//!    is right.)
//!
//! # Why one schedule stands for all
//!
//! Programs run here in one order, while real ones run at the same time. But what a program does next is fixed, and a
//! step that can fire stays able to: its sources are emptied, and its destinations filled, by its own program alone,
//! and steps that it comes after stay complete. So two steps of different programs that can both fire may fire in
//! either order, with the same slots in the same places afterwards. Hence (this is the diamond property, as in Kahn's
//! networks) all schedules that cannot be continued have fired the same steps: either all end, or all are stuck at the
//! same place. A further slot only lets steps fire earlier. The values could still depend on the order through memory;
//! 4 excludes it.
//!
//! # Limits
//!
//! Time and memory are bounded, whatever the plan, by [`Limits`]. A plan that would need more is refused, with a
//! violation that says so. Nothing here panics.
//!
//! A plan that is not well formed is not executed, and one that gets stuck is not looked at further. Everything else is
//! reported at once, the same wrong of the same step once, up to [`MAX_VIOLATIONS`]. What a faulty step leaves behind
//! is taken as right from there on, so that one fault is one violation.

mod execute;
mod expression;
mod memory;
mod shape;
mod violation;

use crate::plan::{Buffer, Collective, Plan, Rank, published_bytes};

use execute::{Context, Execution, Outcome};
use expression::Expressions;
pub use violation::{Limit, MAX_VIOLATIONS, Memory, Placement, RankList, Standing, Violation, ViolationKind, WaitsFor};
use violation::{Place, Violations};

/// What a verification may take. A plan that would need more is refused with a [`ViolationKind::TooLarge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Steps fired, over all iterations of all programs. By default 2^23; never more than 2^32 − 2.
    pub fired_steps: u64,
    /// Programs × (programs + slots in flight + iterations of steps that are waited on). At most so many 32-bit
    /// numbers are kept at one time, though programs that learn nothing new share them. By default 2^26.
    pub clock_entries: u64,
    /// Units of work. A unit is a step, an operand, an interval of bytes visited, an earlier access compared with, or
    /// eight entries of a vector clock. By default 2^28, around ten seconds; 1 GiB over 64 ranks needs less.
    pub work: u64,
    /// Intervals of bytes, earlier reads, and terms of expressions that are kept at one time. By default 2^23, around
    /// 1 GB; never more than 2^30.
    pub stored: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { fired_steps: 1 << 23, clock_entries: 1 << 26, work: 1 << 28, stored: 1 << 23 }
    }
}

/// What a right plan does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Of each rank: bytes that it puts into slots, writes into windows, and that others read from its windows.
    pub bytes_sent: Vec<u64>,
    /// Of each rank: bytes that arrive in slots, that others write into its windows, and that it reads from windows.
    pub bytes_received: Vec<u64>,
    /// Steps fired by all programs.
    pub steps: u64,
    /// Slots filled (and emptied) on all connections.
    pub slots: u64,
}

impl Report {
    fn new(rank_count: usize) -> Self {
        Report { bytes_sent: vec![0; rank_count], bytes_received: vec![0; rank_count], steps: 0, slots: 0 }
    }
}

/// Bytes of a rank's buffer. With S = count × element and N ranks:
///
/// | collective | input | output |
/// | --- | --- | --- |
/// | all-reduce | S | S |
/// | reduce-scatter | N·S | S |
/// | all-gather | S | N·S |
/// | broadcast | S on the root, 0 elsewhere | S |
/// | reduce | S | S on the root, 0 elsewhere |
/// | barrier | 0 | 0 |
///
/// Scratch has what the rank's plan says. What does not fit into 64 bits is `u64::MAX`, and what a rank that is not
/// there has is 0.
pub fn buffer_bytes(plan: &Plan, rank: Rank, buffer: Buffer) -> u64 {
    let Some(rank_plan) = plan.ranks.get(rank.index()) else { return 0 };
    let one = plan.count.saturating_mul(u64::from(plan.element_bytes));
    let all = one.saturating_mul(plan.ranks.len() as u64);
    match (plan.collective, buffer) {
        (_, Buffer::Scratch) => rank_plan.scratch_bytes,
        (Collective::AllReduce, _) => one,
        (Collective::ReduceScatter, Buffer::Input) | (Collective::AllGather, Buffer::Output) => all,
        (Collective::ReduceScatter, Buffer::Output) | (Collective::AllGather, Buffer::Input) => one,
        (Collective::Broadcast { root }, Buffer::Input) | (Collective::Reduce { root }, Buffer::Output) => {
            if rank == root { one } else { 0 }
        }
        (Collective::Broadcast { .. }, Buffer::Output) | (Collective::Reduce { .. }, Buffer::Input) => one,
        (Collective::Barrier, _) => 0,
    }
}

/// Proves a plan right, as the documentation of this module lists it, and counts what it does.
///
/// # Errors
/// Everything that is wrong with it, never an empty list. The same plan always gives the same list.
pub fn verify(plan: &Plan) -> Result<Report, Vec<Violation>> {
    verify_within(plan, &Limits::default())
}

/// As [`verify`], with other limits.
///
/// # Errors
/// As [`verify`].
pub fn verify_within(plan: &Plan, limits: &Limits) -> Result<Report, Vec<Violation>> {
    // Ticks and expressions are counted with 32 bits.
    let limits = Limits {
        fired_steps: limits.fired_steps.min(u64::from(u32::MAX) - 1),
        stored: limits.stored.min(1 << 30),
        ..*limits
    };
    let mut violations = Violations::new();
    shape::check_multicast(plan, &mut violations);
    if !violations.is_empty() {
        return Err(violations.into_list());
    }
    let plan = &*plan.without_multicast();
    let Some(shape) = shape::check(plan, &limits, &mut violations) else { return Err(violations.into_list()) };
    let expressions = Expressions::new(plan.ranks.len() as u32);
    let mut context = Context { plan, shape: &shape, limits, expressions, work: 0 };
    let placements: &[Placement] = match (plan.collective, plan.ranks.len()) {
        (Collective::Barrier, _) => &[],
        (_, 1) => &[Placement::InPlace],
        _ => &[Placement::InPlace, Placement::EvenRanksInPlace],
    };

    let (mut outcome, report) = Execution::new(&mut context, &mut violations, Placement::OutOfPlace).run();
    for placement in placements {
        if outcome == Outcome::Finished && !violations.is_full() {
            (outcome, _) = Execution::new(&mut context, &mut violations, *placement).run();
        }
    }
    if violations.is_empty() {
        violations.placement = Placement::OutOfPlace;
        compare_bytes(plan, &report, &mut violations);
    }
    if violations.is_empty() { Ok(report) } else { Err(violations.into_list()) }
}

/// Holds the bytes that were counted against the published ones.
fn compare_bytes(plan: &Plan, report: &Report, violations: &mut Violations) {
    let published = match published_bytes(plan) {
        Ok(published) => published,
        Err(error) => return violations.push(Place::default(), None, ViolationKind::NoPublishedBytes(error)),
    };
    for (rank, (&published, &found)) in published.iter().zip(&report.bytes_sent).enumerate() {
        if published != found {
            let place = Place { rank: Some(Rank(rank as u32)), ..Place::default() };
            violations.push(place, None, ViolationKind::BytesSent { published, found });
        }
    }
}
