//! Which thread drives a rank, and whether it has ended.
//!
//! A rank whose thread panics usually drops its communicator on the way out, and its peers learn of it at once. Where the
//! thread had only borrowed the communicator nothing is dropped; but the thread ends, and then its rank no longer counts as a
//! live one that may be busy with something else: its peers give it the shorter of their deadlines.

use std::cell::RefCell;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::core::World;

/// A thread, by a number that no other thread of the process ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadToken(pub(crate) u64);

/// The ranks that this thread has driven.
struct Driven {
    token: ThreadToken,
    ranks: RefCell<Vec<(Weak<World>, usize)>>,
}

impl Drop for Driven {
    fn drop(&mut self) {
        for (world, rank) in self.ranks.get_mut() {
            if let Some(world) = world.upgrade() {
                world.board.note_thread_ended(*rank, self.token);
            }
        }
    }
}

thread_local! {
    static DRIVEN: Driven = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Driven { token: ThreadToken(NEXT.fetch_add(1, Ordering::Relaxed)), ranks: RefCell::default() }
    };
}

/// This thread, unless it is ending.
pub(crate) fn this_thread() -> Option<ThreadToken> {
    DRIVEN.try_with(|driven| driven.token).ok()
}

/// Sees to it that the board learns when this thread ends.
pub(crate) fn note(world: Weak<World>, rank: usize) {
    // A thread that is ending already calls for the last time: there is nothing left to watch.
    let _ = DRIVEN.try_with(|driven| {
        let mut ranks = driven.ranks.borrow_mut();
        ranks.retain(|(other, _)| other.strong_count() > 0);
        if !ranks.iter().any(|(other, one)| *one == rank && other.ptr_eq(&world)) {
            ranks.push((world, rank));
        }
    });
}
