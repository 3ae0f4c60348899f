//! What steps through a switch stand for.
//!
//! A switch with a reduction unit does in one step what needs an operand for each rank without it. [`Plan::without_multicast`]
//! writes these out. The verifier proves that form, and devices without a switch run it.

use std::borrow::Cow;

use super::{Operand, Plan, Rank, Source, Step};

/// What offsets, bytes and chunks of steps through a switch are multiples of: the widest access of any device that has one.
pub const MULTICAST_ALIGNMENT_BYTES: u64 = 32;

impl Operand {
    /// The operands that this one of `rank`'s stands for, in rank order: itself, unless it is a multicast one.
    fn each(self, rank: Rank, rank_count: u32) -> impl Iterator<Item = Operand> {
        let (buffer, offset) = match self {
            Operand::Multicast { buffer, offset } => (Some(buffer), offset),
            _ => (None, 0),
        };
        let ranks = (0..rank_count).map(Rank);
        let reached = buffer.into_iter().flat_map(move |buffer| {
            ranks.clone().map(move |peer| {
                if peer == rank {
                    Operand::Local { buffer, offset }
                } else {
                    Operand::Window { rank: peer, buffer, offset }
                }
            })
        });
        reached.chain(buffer.is_none().then_some(self))
    }
}

impl Step {
    /// Whether a source or a destination is a multicast operand.
    pub fn is_multicast(&self) -> bool {
        let operands = self.sources.iter().map(|source| &source.operand).chain(&self.destinations);
        operands.into_iter().any(|operand| matches!(operand, Operand::Multicast { .. }))
    }

    /// The same step of `rank`'s with an operand for each rank in place of each multicast one.
    pub(crate) fn without_multicast(&self, rank: Rank, rank_count: u32) -> Cow<'_, Step> {
        if !self.is_multicast() {
            return Cow::Borrowed(self);
        }
        let sources = self.sources.iter().flat_map(|source| {
            source.operand.each(rank, rank_count).map(|operand| Source { operand, scale: source.scale })
        });
        let destinations = self.destinations.iter().flat_map(|operand| operand.each(rank, rank_count));
        Cow::Owned(Step { sources: sources.collect(), destinations: destinations.collect(), ..self.clone() })
    }
}

impl Plan {
    /// The same plan with an operand for each rank in place of each multicast one; the plan itself, if it has none.
    ///
    /// Sources are then reduced in rank order. The order of a switch is its own, so the bits of floats may be others.
    pub fn without_multicast(&self) -> Cow<'_, Plan> {
        let programs = self.ranks.iter().flat_map(|rank| &rank.programs);
        let has_any =
            programs.flat_map(|program| &program.loops).flat_map(|looped| &looped.steps).any(Step::is_multicast);
        if !has_any {
            return Cow::Borrowed(self);
        }
        let mut plan = self.clone();
        let rank_count = self.ranks.len() as u32;
        for (rank, rank_plan) in plan.ranks.iter_mut().enumerate() {
            let loops = rank_plan.programs.iter_mut().flat_map(|program| &mut program.loops);
            for step in loops.flat_map(|looped| &mut looped.steps).filter(|step| step.is_multicast()) {
                *step = step.without_multicast(Rank(rank as u32), rank_count).into_owned();
            }
        }
        Cow::Owned(plan)
    }
}
