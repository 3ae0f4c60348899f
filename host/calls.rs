//! The calls that move data, with their types: what each one takes and means is said once, in the list at the end.
//!
//! There are five ways to make a call: of a communicator, with the communicator's settings or with some of its own, as a part of a
//! group, either way, and queued on a stream. Each collective has three forms: with two buffers, in place, and asynchronous (which is in
//! place and owns its buffer; a group has none of these). The macro makes the methods of all of them.

use std::time::Duration;

use crate::buffer::{Buffer, BufferMut};
use crate::communicator::Communicator;
use crate::core::Request;
use crate::cuda::{Handle, OnStream};
use crate::dtype::{Reduction, Scale};
use crate::error::Result;
use crate::group::Group;
use crate::options::Overrides;
use crate::pending::{Failed, Pending};
use crate::plan::Algorithm;
use crate::request::{Asker, In, Out};
use crate::run::run;

/// A call with settings of its own; see [`Communicator::call`].
#[derive(Clone, Copy, Debug)]
#[must_use = "settings do nothing without a call"]
pub struct CallBuilder<'a> {
    communicator: &'a Communicator,
    overrides: Overrides,
}

/// A call with settings of its own that is added to a group; see [`Group::call`].
#[must_use = "settings do nothing without a call"]
pub struct GroupCall<'group, 'a> {
    group: &'group mut Group<'a>,
    communicator: &'a Communicator,
    overrides: Overrides,
}

/// The settings that a call can have.
macro_rules! settings {
    ($builder:ty) => {
        impl $builder {
            /// Uses this algorithm; the call fails where it does not offer the collective. All ranks need the same one.
            pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
                self.overrides.algorithm = Some(algorithm);
                self
            }

            /// Instead of [`Options::progress_timeout`](crate::Options::progress_timeout).
            pub fn progress_timeout(mut self, timeout: Duration) -> Self {
                self.overrides.progress_timeout = Some(timeout);
                self
            }

            /// Instead of [`Options::arrival_timeout`](crate::Options::arrival_timeout).
            pub fn arrival_timeout(mut self, timeout: Duration) -> Self {
                self.overrides.arrival_timeout = Some(timeout);
                self
            }

            /// What a [scaled sum](Reduction::ScaledSum) multiplies each source by; all ranks need the same one. A scaled sum
            /// without a scale is an error, and so is a scale that the elements do not hold (see [`Scale`]) or that any other
            /// call has no use for.
            pub fn scale(mut self, scale: impl Into<Scale>) -> Self {
                self.overrides.scale = Some(scale.into());
                self
            }
        }
    };
}

settings!(CallBuilder<'_>);
settings!(GroupCall<'_, '_>);

impl<'a> CallBuilder<'a> {
    pub(crate) fn new(communicator: &'a Communicator) -> CallBuilder<'a> {
        CallBuilder { communicator, overrides: Overrides::default() }
    }

    fn run(self, request: Result<Request>) -> Result<()> {
        let request = request?.with(&self.overrides)?;
        run(&mut self.communicator.in_turn(), &request, &self.overrides)
    }

    fn submit<B>(
        self,
        buffer: B,
        request: impl FnOnce(Asker, &mut B) -> Result<Request>,
    ) -> Result<Pending<B>, Failed<B>>
    where
        B: Send + 'static,
    {
        let (asker, overrides) = (self.communicator.asker(), self.overrides);
        // What is wrong with the arguments is said here rather than later.
        let checked = |buffer: &mut B| request(asker, buffer)?.with(&overrides);
        self.communicator.queue().submit(buffer, checked, overrides)
    }

    /// See [`Communicator::barrier`].
    ///
    /// # Errors
    ///
    /// See [`Error`](crate::Error).
    pub fn barrier(self) -> Result<()> {
        self.run(Ok(self.communicator.asker().barrier()))
    }
}

impl OnStream<'_> {
    /// [`Communicator::barrier`], queued: what is queued behind it runs when every rank has come.
    ///
    /// # Errors
    ///
    /// As of the others.
    pub fn barrier(self) -> Result<Handle> {
        self.enqueue(Ok(self.call.communicator.asker().barrier()))
    }

    fn enqueue(self, request: Result<Request>) -> Result<Handle> {
        let CallBuilder { communicator, overrides } = self.call;
        let request = request?.with(&overrides)?;
        communicator.in_turn().enqueue(&request, &overrides, self.stream).map(Handle)
    }
}

impl<'group, 'a> GroupCall<'group, 'a> {
    pub(crate) fn new(group: &'group mut Group<'a>, communicator: &'a Communicator) -> GroupCall<'group, 'a> {
        GroupCall { group, communicator, overrides: Overrides::default() }
    }

    fn add(self, request: Result<Request>) -> Result<()> {
        let request = request?.with(&self.overrides)?;
        self.group.push(self.communicator, request, self.overrides);
        Ok(())
    }

    /// Adds [`Communicator::barrier`].
    ///
    /// # Errors
    ///
    /// If the algorithm does not offer it, or a scale was given.
    pub fn barrier(self) -> Result<()> {
        let request = Ok(self.communicator.asker().barrier());
        self.add(request)
    }
}

/// Makes the methods for each collective: with two buffers, in place, asynchronous. What follows the buffers is in brackets.
macro_rules! calls {
    ($(
        $(#[$doc:meta])* $call:ident,
        $(#[$in_place_doc:meta])* $in_place:ident,
        $asynchronous:ident
        [$($argument:ident: $type:ty),*];
    )*) => {
        impl Communicator {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                ///
                /// See [`Error`](crate::Error).
                pub fn $call<B: Buffer + ?Sized>(
                    &self,
                    input: &B,
                    output: &mut (impl BufferMut<Element = B::Element> + ?Sized),
                    $($argument: $type),*
                ) -> Result<()> {
                    self.call().$call(input, output, $($argument),*)
                }

                $(#[$in_place_doc])*
                ///
                /// # Errors
                ///
                /// See [`Error`](crate::Error).
                pub fn $in_place(
                    &self,
                    buffer: &mut (impl BufferMut + ?Sized),
                    $($argument: $type),*
                ) -> Result<()> {
                    self.call().$in_place(buffer, $($argument),*)
                }

                #[doc = concat!("[`Communicator::", stringify!($in_place), "`] that returns at once and owns its buffer")]
                /// until it is waited for.
                ///
                /// # Errors
                ///
                /// [`Failed`] gives the buffer back.
                pub fn $asynchronous<B>(&self, buffer: B, $($argument: $type),*) -> Result<Pending<B>, Failed<B>>
                where
                    B: BufferMut + Send + 'static,
                {
                    self.call().$asynchronous(buffer, $($argument),*)
                }
            )*
        }

        impl CallBuilder<'_> {
            $(
                #[doc = concat!("See [`Communicator::", stringify!($call), "`].")]
                ///
                /// # Errors
                ///
                /// See [`Error`](crate::Error).
                pub fn $call<B: Buffer + ?Sized>(
                    self,
                    input: &B,
                    output: &mut (impl BufferMut<Element = B::Element> + ?Sized),
                    $($argument: $type),*
                ) -> Result<()> {
                    self.run(self.communicator.asker().$call(In::of(input), Out::of(output), $($argument),*))
                }

                #[doc = concat!("See [`Communicator::", stringify!($in_place), "`].")]
                ///
                /// # Errors
                ///
                /// See [`Error`](crate::Error).
                pub fn $in_place(self, buffer: &mut (impl BufferMut + ?Sized), $($argument: $type),*) -> Result<()> {
                    self.run(self.communicator.asker().$in_place(Out::of(buffer), $($argument),*))
                }

                #[doc = concat!("See [`Communicator::", stringify!($asynchronous), "`].")]
                ///
                /// # Errors
                ///
                /// [`Failed`] gives the buffer back.
                pub fn $asynchronous<B>(self, buffer: B, $($argument: $type),*) -> Result<Pending<B>, Failed<B>>
                where
                    B: BufferMut + Send + 'static,
                {
                    self.submit(buffer, move |asker, buffer| asker.$in_place(Out::of(buffer), $($argument),*))
                }
            )*
        }

        impl OnStream<'_> {
            $(
                #[doc = concat!("[`Communicator::", stringify!($call), "`], queued.")]
                ///
                /// # Errors
                ///
                /// What keeps it from being queued; what goes wrong later the handle says. See [`Error`](crate::Error).
                pub fn $call<B: Buffer + ?Sized>(
                    self,
                    input: &B,
                    output: &mut (impl BufferMut<Element = B::Element> + ?Sized),
                    $($argument: $type),*
                ) -> Result<Handle> {
                    self.enqueue(self.call.communicator.asker().$call(In::of(input), Out::of(output), $($argument),*))
                }

                #[doc = concat!("[`Communicator::", stringify!($in_place), "`], queued.")]
                ///
                /// # Errors
                ///
                /// As of the others.
                pub fn $in_place(self, buffer: &mut (impl BufferMut + ?Sized), $($argument: $type),*) -> Result<Handle> {
                    self.enqueue(self.call.communicator.asker().$in_place(Out::of(buffer), $($argument),*))
                }
            )*
        }

        impl<'a> Group<'a> {
            $(
                #[doc = concat!("Adds [`Communicator::", stringify!($call), "`].")]
                ///
                /// # Errors
                ///
                /// If the arguments do not fit; the group is then as before.
                pub fn $call<B: Buffer + ?Sized>(
                    &mut self,
                    communicator: &'a Communicator,
                    input: &'a B,
                    output: &'a mut (impl BufferMut<Element = B::Element> + ?Sized),
                    $($argument: $type),*
                ) -> Result<()> {
                    self.call(communicator).$call(input, output, $($argument),*)
                }

                #[doc = concat!("Adds [`Communicator::", stringify!($in_place), "`].")]
                ///
                /// # Errors
                ///
                /// If the arguments do not fit; the group is then as before.
                pub fn $in_place(
                    &mut self,
                    communicator: &'a Communicator,
                    buffer: &'a mut (impl BufferMut + ?Sized),
                    $($argument: $type),*
                ) -> Result<()> {
                    self.call(communicator).$in_place(buffer, $($argument),*)
                }
            )*
        }

        impl<'a> GroupCall<'_, 'a> {
            $(
                #[doc = concat!("Adds [`Communicator::", stringify!($call), "`].")]
                ///
                /// # Errors
                ///
                /// If the arguments or the algorithm do not fit; the group is then as before.
                pub fn $call<B: Buffer + ?Sized>(
                    self,
                    input: &'a B,
                    output: &'a mut (impl BufferMut<Element = B::Element> + ?Sized),
                    $($argument: $type),*
                ) -> Result<()> {
                    let request = self.communicator.asker().$call(In::of(input), Out::of(output), $($argument),*);
                    self.add(request)
                }

                #[doc = concat!("Adds [`Communicator::", stringify!($in_place), "`].")]
                ///
                /// # Errors
                ///
                /// If the arguments or the algorithm do not fit; the group is then as before.
                pub fn $in_place(
                    self,
                    buffer: &'a mut (impl BufferMut + ?Sized),
                    $($argument: $type),*
                ) -> Result<()> {
                    let request = self.communicator.asker().$in_place(Out::of(buffer), $($argument),*);
                    self.add(request)
                }
            )*
        }
    };
}

calls! {
    /// Every rank's `output` becomes the reduction of all ranks' `input`; both have the same count on all ranks.
    all_reduce,
    /// [`Communicator::all_reduce`] with one buffer for input and output.
    all_reduce_in_place,
    all_reduce_async
    [reduction: Reduction];

    /// Rank `r`'s `output` becomes block `r` of the reduction of all ranks' `input`. The input holds one block of the output's
    /// count for each rank.
    reduce_scatter,
    /// [`Communicator::reduce_scatter`] where the result takes the place of this rank's own block, `buffer[rank × count ..]`;
    /// the rest of the buffer stays as it was.
    reduce_scatter_in_place,
    reduce_scatter_async
    [reduction: Reduction];

    /// Every rank's `output` becomes all ranks' `input`, one after the other: it holds the input's count for each rank.
    all_gather,
    /// [`Communicator::all_gather`] where this rank's input stands in the output already, at `buffer[rank × count ..]`.
    all_gather_in_place,
    all_gather_async
    [];

    /// Every rank's `output` becomes the root's `input`. The other ranks' inputs are not read and may be empty.
    broadcast,
    /// [`Communicator::broadcast`] with one buffer for input and output.
    broadcast_in_place,
    broadcast_async
    [root: usize];

    /// The root's `output` becomes the reduction of all ranks' `input`. The other ranks' outputs are not written and may be
    /// empty.
    reduce,
    /// [`Communicator::reduce`] with one buffer for input and output; it stays as it was on all ranks but the root.
    reduce_in_place,
    reduce_async
    [reduction: Reduction, root: usize];
}
