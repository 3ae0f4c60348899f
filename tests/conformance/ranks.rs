//! Running ranks: on threads of their own, under a watchdog, with settings. Nothing here knows what a call does.

use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use tutti::{Communicator, Options};

pub(crate) use super::replay::{Random, mix};

/// How long a test may take whose calls are few: a hang is reported after this.
pub(crate) const SOON: Duration = Duration::from_secs(if cfg!(lean) || !crate::IS_QUICK { 200 } else { 20 });

/// How long a test may take that makes very many calls, on a machine that does other things too.
pub(crate) const LATER: Duration = Duration::from_secs(300);

/// Runs `body` and fails the test if it is not done within `limit`. (A thread that hangs cannot be ended; it goes with the
/// process.)
pub(crate) fn within<R: Send + 'static>(limit: Duration, body: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, done) = channel();
    let watched = std::thread::spawn(move || {
        let result = body();
        // Nobody listens any more once the limit has passed.
        let _ = sender.send(());
        result
    });
    if done.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
        panic!("the test hangs: it was not done within {limit:?}");
    }
    watched.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Runs `body` for each communicator on a thread of its own, which it moves to; what each returned, by rank. If any
/// panics, so does this, once all are done.
pub(crate) fn on_threads<R: Send>(communicators: Vec<Communicator>, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> =
            communicators.into_iter().map(|communicator| scope.spawn(move || body(communicator))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// As [`on_threads`], with communicators that are only lent.
pub(crate) fn each_on_a_thread<R: Send>(
    communicators: &[Communicator],
    body: impl Fn(&Communicator) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> =
            communicators.iter().map(|communicator| scope.spawn(move || body(communicator))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// How often something is done: `full` times on devices that are quick, `few` times where each call is interpreted.
pub(crate) fn times(full: usize, few: usize) -> usize {
    if crate::IS_QUICK { full } else { few }
}

/// All of these on devices that are quick; where each call is interpreted so many of them at most, spread over all.
pub(crate) fn some_of<T>(all: impl IntoIterator<Item = T>, few: usize) -> Vec<T> {
    let all: Vec<T> = all.into_iter().collect();
    if crate::IS_QUICK || all.len() <= few {
        return all;
    }
    let count = all.len();
    // The place within its part changes from part to part, so that what alternates is met either way.
    let is_taken = |index: usize| {
        let part = index * few / count;
        let (start, end) = ((part * count).div_ceil(few), ((part + 1) * count).div_ceil(few));
        index == start + mix(part as u64) as usize % (end - start)
    };
    all.into_iter().enumerate().filter(|(index, _)| is_taken(*index)).map(|(_, each)| each).collect()
}

/// The default options, changed by `change`.
pub(crate) fn options(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options::default();
    change(&mut options);
    options
}

/// Options whose slots hold `slot_bytes`, `slots` of them.
pub(crate) fn with_slots(slot_bytes: u32, slots: u32) -> Options {
    options(|options| {
        options.slot_bytes = slot_bytes;
        options.slots = slots;
    })
}
