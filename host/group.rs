//! Several calls in one launch.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::calls::GroupCall;
use crate::communicator::Communicator;
use crate::core::Request;
use crate::error::Result;
use crate::options::Overrides;
use crate::pending::Turn;
use crate::run::{Lineup, run_together};

/// Several calls in one launch: of one communicator, or of several that one thread drives.
///
/// The calls are checked as they are added and begin with [`Group::run`]. Each communicator's calls run in the order in which
/// they were added; those of different communicators run at the same time, so one thread can be several ranks:
///
/// ```
/// # fn main() -> tutti::Result<()> {
/// let ranks = tutti::local(2)?;
/// let (mut a, mut b) = (vec![1.0_f32, 2.0], vec![10.0_f32, 20.0]);
/// let mut group = tutti::Group::new();
/// group.all_reduce_in_place(&ranks[0], &mut a, tutti::Reduction::Sum)?;
/// group.all_reduce_in_place(&ranks[1], &mut b, tutti::Reduction::Sum)?;
/// group.run()?;
/// assert_eq!((a, b), (vec![11.0, 22.0], vec![11.0, 22.0]));
/// # Ok(())
/// # }
/// ```
///
/// Each communicator's calls come after those that were issued before: asynchronous ones, other groups, a call that another
/// thread is in. A group does not wait for all of them before it begins; it goes on with each communicator when that one's
/// turn comes, so it may hold what the calls before wait for. Calls that are issued later come after the group's. Groups of
/// several threads that share communicators run in the same order on all of them.
///
/// What makes communicators has no form here: [`Communicator::split`] and [`Communicator::lane`] need a thread for each rank.
///
/// To its peers a group looks like its calls made one after the other; they need not use one too. A group that is dropped
/// without being run does nothing.
#[must_use = "a group does nothing until it is run"]
#[derive(Default)]
pub struct Group<'a> {
    calls: Vec<(&'a Communicator, Request, Overrides)>,
    buffers: PhantomData<&'a mut [u8]>,
}

impl<'a> Group<'a> {
    /// An empty group.
    pub fn new() -> Group<'a> {
        Group::default()
    }

    /// How many calls it holds.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether it holds no call.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// A call of `communicator` with settings of its own, which is added to the group:
    /// `group.call(&communicator).algorithm(Algorithm::Ring).all_reduce(…)?`.
    pub fn call<'group>(&'group mut self, communicator: &'a Communicator) -> GroupCall<'group, 'a> {
        GroupCall::new(self, communicator)
    }

    pub(crate) fn push(&mut self, communicator: &'a Communicator, request: Request, overrides: Overrides) {
        self.calls.push((communicator, request, overrides));
    }

    /// Adds [`Communicator::barrier`].
    pub fn barrier(&mut self, communicator: &'a Communicator) {
        self.push(communicator, communicator.asker().barrier(), Overrides::default());
    }

    /// Runs the calls to their end.
    ///
    /// # Errors
    ///
    /// The first error of any of the calls. A communicator whose call failed has not made its later ones; the other
    /// communicators have made theirs.
    pub fn run(self) -> Result<()> {
        let mut ranks: Vec<(&Communicator, VecDeque<(Request, Overrides)>)> = Vec::new();
        for (communicator, request, overrides) in self.calls {
            let request = (request, overrides);
            match ranks.iter_mut().find(|(one, _)| std::ptr::eq(*one, communicator)) {
                Some((_, requests)) => requests.push_back(request),
                None => ranks.push((communicator, VecDeque::from([request]))),
            }
        }
        ranks.sort_by_key(|(communicator, _)| Arc::as_ptr(communicator.queue()));
        let queues: Vec<_> = ranks.iter().map(|(communicator, _)| &**communicator.queue()).collect();
        let lineups =
            Turn::take(&queues).into_iter().zip(ranks).map(|(turn, (_, requests))| Lineup::new(turn, requests));
        run_together(lineups.collect())
    }
}
