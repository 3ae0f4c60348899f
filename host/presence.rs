//! Which thread drives a rank, and what becomes of it.
//!
//! A rank whose thread panics usually drops its communicator on the way out, and its peers learn of it at once. Where the
//! thread had only borrowed the communicator (a scoped thread, an `Arc`), nothing is dropped. So a panic hook, which runs
//! before the one that was there, marks the thread that panics, and what the thread does next decides what its panic was:
//!
//! - It makes another call, of any rank, and is not unwinding: the panic was caught, and is forgotten.
//! - It ends: every rank whose last call it made is gone, and the peers that wait for it are told so at once.
//! - Neither, for the time being. It may have caught the panic and be busy with something else; it may be a pool's thread that
//!   never ends, or wait in a scope for the very peers that wait for it. Its ranks get the shorter of their deadlines.
//!
//! Only the thread that made a rank's last call counts: a rank may go from thread to thread, and a thread that ends without a
//! panic says nothing about the ranks that it drove. Before a rank's first call the last thread that asked for its number is
//! taken for its own.
//!
//! All of this costs a call nothing, since a panic gives its thread a new token: a thread that calls with the token that the
//! board has as the rank's driver has no panic to forget.
//!
//! What cannot be noticed: unwinding that begins without the hook (`resume_unwind` on another thread than the one that
//! panicked, or a program that has replaced the hook), and a panic before a rank's first call on a thread that never asked
//! for its number. A thread that catches a panic and ends without another call counts as one that died of it. Where a panic
//! aborts the process there are no peers left to tell.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};

use crate::core::World;

/// A thread between two of its panics, by a number that nothing else in the process ever has; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadToken(pub(crate) u64);

impl ThreadToken {
    fn new() -> ThreadToken {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        ThreadToken(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What has become of the thread that made a rank's last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has panicked, and neither ended nor called again.
    Panicked,
    /// It has ended.
    Ended,
    /// It has ended by a panic.
    Died,
}

/// A rank that this thread has driven, and the token under which it made its last call.
struct Driven {
    world: Weak<World>,
    rank: usize,
    token: ThreadToken,
}

struct ThisThread {
    /// None for a thread that calls on others' behalf.
    token: Cell<Option<ThreadToken>>,
    /// Whether it has panicked and not called since.
    panicked: Cell<bool>,
    driven: RefCell<Vec<Driven>>,
}

impl ThisThread {
    /// Says on the boards of all ranks that were last driven by this thread what has become of it.
    fn tell(&self, fate: Option<Fate>) {
        // The hook may run in the middle of anything, though nothing here panics while the list is borrowed.
        let Ok(driven) = self.driven.try_borrow() else { return };
        for each in driven.iter() {
            if let Some(world) = each.world.upgrade() {
                world.board.note_fate(each.rank, each.token, fate);
            }
        }
    }
}

impl Drop for ThisThread {
    fn drop(&mut self) {
        self.tell(Some(if self.panicked.get() { Fate::Died } else { Fate::Ended }));
    }
}

thread_local! {
    static THIS_THREAD: ThisThread = ThisThread {
        token: Cell::new(Some(ThreadToken::new())),
        panicked: Cell::new(false),
        driven: RefCell::default(),
    };
}

/// Has panics noticed from now on.
pub(crate) fn watch_for_panics() {
    static WATCHING: Once = Once::new();
    // The hook cannot be changed by a thread that panics.
    if std::thread::panicking() {
        return;
    }
    WATCHING.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // A thread whose locals are gone has told already what became of it.
            let _ = THIS_THREAD.try_with(|this| {
                if this.token.get().is_some() {
                    this.token.set(Some(ThreadToken::new()));
                    this.panicked.set(true);
                    this.tell(Some(Fate::Panicked));
                }
            });
            previous(info);
        }));
    });
}

/// This thread; none if it is ending, or calls on others' behalf.
pub(crate) fn this_thread() -> Option<ThreadToken> {
    THIS_THREAD.try_with(|this| this.token.get()).ok().flatten()
}

/// Lets this thread make calls that others have asked for: it counts as no rank's own.
pub(crate) fn work_for_others() {
    let _ = THIS_THREAD.try_with(|this| this.token.set(None));
}

/// Makes this thread the one that drives `rank`, from its next call on.
pub(crate) fn drive(world: &Arc<World>, rank: usize) {
    if this_thread().is_some_and(|thread| !world.board.is_driven_by(rank, thread)) {
        begin_to_drive(world, rank);
    }
}

#[cold]
fn begin_to_drive(world: &Arc<World>, rank: usize) {
    // A thread that is ending already calls for the last time: there is nothing left to watch.
    let _ = THIS_THREAD.try_with(|this| {
        let Some(token) = this.token.get() else { return };
        world.board.note_driver(rank, token);
        let mut driven = this.driven.borrow_mut();
        driven.retain(|each| each.world.strong_count() > 0);
        match driven.iter_mut().find(|each| each.rank == rank && std::ptr::eq(each.world.as_ptr(), &**world)) {
            Some(each) => each.token = token,
            None => driven.push(Driven { world: Arc::downgrade(world), rank, token }),
        }
        drop(driven);
        if std::thread::panicking() {
            // A call on the way out. It forgets nothing, and another one, if there is one, must come here again.
            this.token.set(Some(ThreadToken::new()));
        } else if this.panicked.replace(false) {
            this.tell(None);
        }
    });
}
