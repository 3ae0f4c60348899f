//! Several calls in one launch.

use std::collections::VecDeque;
use std::marker::PhantomData;

use crate::buffer::{Buffer, BufferMut};
use crate::communicator::Communicator;
use crate::core::Request;
use crate::dtype::Reduction;
use crate::error::Result;
use crate::options::Overrides;
use crate::pending::Turn;
use crate::request::{In, Out};
use crate::run::{Lineup, run_together};

/// Several calls in one launch: of one communicator, or of several that one thread drives.
///
/// The calls are checked as they are added and begin with [`Group::run`]. Each communicator's calls run in the order in which
/// they were added; those of different communicators run at the same time, so one thread can be several ranks:
///
/// ```
/// # fn main() -> tutti::Result<()> {
/// let ranks = tutti::local(2)?;
/// let (mut a, mut b) = (vec![1.0_f32, 2.0], vec![10.0, 20.0]);
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
/// To its peers a group looks like its calls made one after the other; they need not use one too. A group that is dropped
/// without being run does nothing.
#[must_use = "a group does nothing until it is run"]
#[derive(Default)]
pub struct Group<'a> {
    calls: Vec<(&'a Communicator, Request)>,
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

    fn push(&mut self, communicator: &'a Communicator, request: Result<Request>) -> Result<()> {
        self.calls.push((communicator, request?));
        Ok(())
    }

    /// Adds [`Communicator::all_reduce`].
    pub fn all_reduce<B: Buffer + ?Sized>(
        &mut self,
        communicator: &'a Communicator,
        input: &'a B,
        output: &'a mut (impl BufferMut<Element = B::Element> + ?Sized),
        reduction: Reduction,
    ) -> Result<()> {
        self.push(communicator, communicator.asker().all_reduce(In::of(input), Out::of(output), reduction))
    }

    /// Adds [`Communicator::all_reduce_in_place`].
    pub fn all_reduce_in_place(
        &mut self,
        communicator: &'a Communicator,
        buffer: &'a mut (impl BufferMut + ?Sized),
        reduction: Reduction,
    ) -> Result<()> {
        self.push(communicator, communicator.asker().all_reduce_in_place(Out::of(buffer), reduction))
    }

    /// Adds [`Communicator::reduce_scatter`].
    pub fn reduce_scatter<B: Buffer + ?Sized>(
        &mut self,
        communicator: &'a Communicator,
        input: &'a B,
        output: &'a mut (impl BufferMut<Element = B::Element> + ?Sized),
        reduction: Reduction,
    ) -> Result<()> {
        self.push(communicator, communicator.asker().reduce_scatter(In::of(input), Out::of(output), reduction))
    }

    /// Adds [`Communicator::reduce_scatter_in_place`].
    pub fn reduce_scatter_in_place(
        &mut self,
        communicator: &'a Communicator,
        buffer: &'a mut (impl BufferMut + ?Sized),
        reduction: Reduction,
    ) -> Result<()> {
        self.push(communicator, communicator.asker().reduce_scatter_in_place(Out::of(buffer), reduction))
    }

    /// Adds [`Communicator::all_gather`].
    pub fn all_gather<B: Buffer + ?Sized>(
        &mut self,
        communicator: &'a Communicator,
        input: &'a B,
        output: &'a mut (impl BufferMut<Element = B::Element> + ?Sized),
    ) -> Result<()> {
        self.push(communicator, communicator.asker().all_gather(In::of(input), Out::of(output)))
    }

    /// Adds [`Communicator::all_gather_in_place`].
    pub fn all_gather_in_place(
        &mut self,
        communicator: &'a Communicator,
        buffer: &'a mut (impl BufferMut + ?Sized),
    ) -> Result<()> {
        self.push(communicator, communicator.asker().all_gather_in_place(Out::of(buffer)))
    }

    /// Adds [`Communicator::broadcast`].
    pub fn broadcast<B: Buffer + ?Sized>(
        &mut self,
        communicator: &'a Communicator,
        input: &'a B,
        output: &'a mut (impl BufferMut<Element = B::Element> + ?Sized),
        root: usize,
    ) -> Result<()> {
        self.push(communicator, communicator.asker().broadcast(In::of(input), Out::of(output), root))
    }

    /// Adds [`Communicator::broadcast_in_place`].
    pub fn broadcast_in_place(
        &mut self,
        communicator: &'a Communicator,
        buffer: &'a mut (impl BufferMut + ?Sized),
        root: usize,
    ) -> Result<()> {
        self.push(communicator, communicator.asker().broadcast_in_place(Out::of(buffer), root))
    }

    /// Adds [`Communicator::reduce`].
    pub fn reduce<B: Buffer + ?Sized>(
        &mut self,
        communicator: &'a Communicator,
        input: &'a B,
        output: &'a mut (impl BufferMut<Element = B::Element> + ?Sized),
        reduction: Reduction,
        root: usize,
    ) -> Result<()> {
        self.push(communicator, communicator.asker().reduce(In::of(input), Out::of(output), reduction, root))
    }

    /// Adds [`Communicator::reduce_in_place`].
    pub fn reduce_in_place(
        &mut self,
        communicator: &'a Communicator,
        buffer: &'a mut (impl BufferMut + ?Sized),
        reduction: Reduction,
        root: usize,
    ) -> Result<()> {
        self.push(communicator, communicator.asker().reduce_in_place(Out::of(buffer), reduction, root))
    }

    /// Adds [`Communicator::barrier`].
    pub fn barrier(&mut self, communicator: &'a Communicator) {
        self.calls.push((communicator, communicator.asker().barrier()));
    }

    /// Runs the calls to their end.
    ///
    /// # Errors
    ///
    /// The first error of any of the calls. A communicator whose call failed has not made its later ones; the other
    /// communicators have made theirs.
    pub fn run(self) -> Result<()> {
        let mut ranks: Vec<(&Communicator, VecDeque<(Request, Overrides)>)> = Vec::new();
        for (communicator, request) in self.calls {
            let request = (request, Overrides::default());
            match ranks.iter_mut().find(|(one, _)| std::ptr::eq(*one, communicator)) {
                Some((_, requests)) => requests.push_back(request),
                None => ranks.push((communicator, VecDeque::from([request]))),
            }
        }
        ranks.sort_by_key(|(communicator, _)| std::ptr::from_ref(communicator.queue()));
        let queues: Vec<_> = ranks.iter().map(|(communicator, _)| communicator.queue()).collect();
        let lineups =
            Turn::take(&queues).into_iter().zip(ranks).map(|(turn, (_, requests))| Lineup::new(turn, requests));
        run_together(lineups.collect())
    }
}
