//! In which order ranks are taken, once for each channel.
//!
//! A plan may have several channels: each is programs and connections of its own, which carry its part of the data. On a network
//! where one way round uses only some of the links, each channel goes round in another order and uses others; on any network,
//! several channels keep a rank busy while one of them waits.

use super::{PlanError, Rank};

/// The most channels of a plan.
pub const MAX_CHANNEL_COUNT: usize = 64;

/// All ranks, in some order round a circle.
#[derive(Clone, Debug)]
pub(super) struct Order {
    ranks: Vec<Rank>,
    /// By rank, where it stands.
    places: Vec<u32>,
}

impl Order {
    /// The orders that are asked for, or the ranks' own where there are none.
    pub(super) fn all(orders: &[Vec<Rank>], rank_count: u32) -> Result<Vec<Order>, PlanError> {
        if orders.len() > MAX_CHANNEL_COUNT {
            return Err(PlanError::TooManyChannels { channel_count: orders.len() });
        }
        if orders.is_empty() {
            let ranks: Vec<Rank> = (0..rank_count).map(Rank).collect();
            return Ok(vec![Order { places: (0..rank_count).collect(), ranks }]);
        }
        orders.iter().enumerate().map(|(channel, ranks)| Order::new(channel, ranks, rank_count)).collect()
    }

    fn new(channel: usize, ranks: &[Rank], rank_count: u32) -> Result<Order, PlanError> {
        const UNSEEN: u32 = u32::MAX;
        let mut places = vec![UNSEEN; rank_count as usize];
        for (place, rank) in (0..).zip(ranks) {
            match places.get_mut(rank.index()) {
                Some(seen) if *seen == UNSEEN => *seen = place,
                _ => return Err(PlanError::NotAnOrder { channel, rank_count, rank: *rank }),
            }
        }
        match places.iter().position(|place| *place == UNSEEN) {
            Some(rank) => Err(PlanError::NotAnOrder { channel, rank_count, rank: Rank(rank as u32) }),
            None => Ok(Order { ranks: ranks.to_vec(), places }),
        }
    }

    /// The rank that comes `distance` after `rank`.
    pub(super) fn after(&self, rank: Rank, distance: u32) -> Rank {
        self.ranks[(self.places[rank.index()] + distance) as usize % self.ranks.len()]
    }

    /// The rank that comes `distance` before `rank`, at most once round.
    pub(super) fn before(&self, rank: Rank, distance: u32) -> Rank {
        self.after(rank, self.ranks.len() as u32 - distance)
    }
}
