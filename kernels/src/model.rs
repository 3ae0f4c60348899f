//! What stands in for threads, words and memory while a model checker runs the interpreter (`--cfg loom`).
//!
//! The interpreter and the host's target are compiled as they are; only the words that threads share are loom's. They are found
//! by address, as the interpreter has nothing else: a model says which of its memory is words ([`share_word`]) and which is
//! plain ([`share_plain`]). An access to anything else fails the model, so that nothing goes unchecked by accident. loom then
//! runs the model once for each order in which its threads could come to their words, and for each value that a load could
//! give there, and fails it where two accesses to plain memory are ordered by nothing.
//!
//! A check that could not fail would prove nothing, so orderings can be weakened on purpose ([`Weakened`]).
//!
//! loom takes sequentially consistent fences for stronger than they are: one orders plain memory after another, even if no
//! word carries that. It takes sequentially consistent loads and stores for acquire and release.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

use loom::cell::UnsafeCell;

use crate::interpreter::StepOperands;
use crate::layout::{Counter, Fingerprint, SLOT_HEADER_BYTES, SlotHeader};
use crate::reduce_copy::Operands;

pub use loom::thread::{JoinHandle, yield_now};

/// An ordering that a check gives up, to see that the model misses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weakened {
    /// Stores release nothing.
    Release,
    /// Loads acquire nothing.
    Acquire,
    /// Fences are not there.
    Fence,
}

/// Plain memory, and what loom knows of the accesses to it.
type Plain = (Range<usize>, Rc<UnsafeCell<()>>);

std::thread_local! {
    // loom's threads all run on the thread that called `check`, one at a time.
    static WEAKENED: Cell<Option<Weakened>> = const { Cell::new(None) };
    static WORDS_32: RefCell<BTreeMap<usize, atomic::AtomicU32>> = const { RefCell::new(BTreeMap::new()) };
    static WORDS_64: RefCell<BTreeMap<usize, atomic::AtomicU64>> = const { RefCell::new(BTreeMap::new()) };
    static PLAIN: RefCell<Vec<Plain>> = const { RefCell::new(Vec::new()) };
}

/// Runs `model` in every way in which its threads can come in between each other, up to `preemptions` times in one run (a
/// thread that gives way by itself does not count; none: any number), and with `weakened` given up. Answers how many runs
/// there were.
///
/// # Panics
/// If one of the runs panics, is a data race, or does not end.
pub fn check(
    preemptions: Option<usize>,
    weakened: Option<Weakened>,
    model: impl Fn() + Send + Sync + 'static,
) -> usize {
    static RUNS: std::sync::Mutex<()> = std::sync::Mutex::new(());
    // Models of one process take turns: loom's stacks are large.
    let _turn = RUNS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    WEAKENED.set(weakened);
    let runs = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    let (counted, model) = (runs.clone(), Arc::new(model));
    builder.check(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        WORDS_32.take();
        WORDS_64.take();
        PLAIN.take();
        // On a thread of its own: loom gives the first one a small stack.
        let model = model.clone();
        spawn(move || model()).join().expect("loom ends a run at its first panic");
    });
    runs.load(std::sync::atomic::Ordering::Relaxed)
}

/// A thread of a model.
pub fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    // In words: enough for a planner.
    const STACK: usize = 1 << 16;
    loom::thread::Builder::new().stack_size(STACK).spawn(body).expect("loom always has a thread")
}

/// What the first run of the model that fails says, as [`check`] runs it; none if all of them end well.
pub fn failure(
    preemptions: Option<usize>,
    weakened: Option<Weakened>,
    model: impl Fn() + Send + Sync + 'static,
) -> Option<String> {
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(preemptions, weakened, model)));
    let payload = checked.err()?;
    let said = payload.downcast_ref::<String>().cloned();
    Some(said.or_else(|| Some((*payload.downcast_ref::<&str>()?).into())).unwrap_or_default())
}

/// Makes the word at `address` one that the model's threads share; it begins as what is there.
///
/// # Safety
/// `address` is valid for reads until the end of the run.
pub unsafe fn share_word(address: *const u64) {
    // SAFETY: passed on from the caller.
    let word = atomic::AtomicU64::new(unsafe { *address });
    WORDS_64.with_borrow_mut(|words| words.insert(address.addr(), word));
}

/// Makes `bytes` bytes at `address` plain memory that the model's threads share.
pub fn share_plain(address: *const u8, bytes: usize) {
    let range = address.addr()..address.addr() + bytes;
    PLAIN.with_borrow_mut(|plain| plain.push((range, Rc::new(UnsafeCell::new(())))));
}

/// Makes a connection's memory what the model's threads share: the counter, and of each slot its header and `slot_bytes` bytes.
///
/// # Safety
/// The memory is valid until the end of the run, and holds what the connection has carried so far.
pub unsafe fn share_connection(
    empty: *const Counter,
    slots: *const u8,
    slot_stride_bytes: usize,
    slot_count: usize,
    slot_bytes: usize,
) {
    // SAFETY: passed on from the caller; slots lie one after the other.
    unsafe {
        share_word(&raw const (*empty).value);
        for slot in 0..slot_count {
            let header = slots.add(slot * slot_stride_bytes).cast::<SlotHeader>();
            share_word(&raw const (*header).full);
            share_plain(header.cast(), size_of::<Fingerprint>());
            share_plain(header.cast::<u8>().add(SLOT_HEADER_BYTES), slot_bytes);
        }
    }
}

/// Says that plain memory is read.
pub fn note_read(address: *const u8, bytes: usize) {
    for_each_plain(address, bytes, |cell| cell.with(|_| ()));
}

/// Says that plain memory is written.
pub fn note_write(address: *const u8, bytes: usize) {
    for_each_plain(address, bytes, |cell| cell.with_mut(|_| ()));
}

fn for_each_plain(address: *const u8, bytes: usize, access: impl Fn(&UnsafeCell<()>)) {
    let (start, end) = (address.addr(), address.addr() + bytes);
    let touched: Vec<_> = PLAIN.with_borrow(|plain| {
        plain.iter().filter(|(range, _)| range.start < end && start < range.end).cloned().collect()
    });
    let covered: usize = touched.iter().map(|(range, _)| range.end.min(end) - range.start.max(start)).sum();
    assert_eq!(covered, bytes, "an access to memory that the model does not know");
    touched.iter().for_each(|(_, cell)| access(cell));
}

/// Says that a kernel reads `bytes` bytes of its sources and writes as many to its destinations.
pub(crate) fn note_operands(operands: &StepOperands, bytes: usize) {
    for index in 0..operands.source_count() {
        note_read(operands.source(index), bytes);
    }
    for index in 0..operands.destination_count() {
        note_write(operands.destination(index), bytes);
    }
}

/// The standard library's names, for loom's words.
pub mod atomic {
    use std::sync::Arc;

    pub use std::sync::atomic::Ordering;

    use super::{WEAKENED, WORDS_32, WORDS_64, Weakened};

    fn of_store(order: Ordering) -> Ordering {
        if WEAKENED.get() == Some(Weakened::Release) { Ordering::Relaxed } else { order }
    }

    fn of_load(order: Ordering) -> Ordering {
        if WEAKENED.get() == Some(Weakened::Acquire) { Ordering::Relaxed } else { order }
    }

    /// A fence.
    pub fn fence(order: Ordering) {
        if WEAKENED.get() != Some(Weakened::Fence) {
            loom::sync::atomic::fence(order);
        }
    }

    macro_rules! words {
        ($($name:ident: $value:ty, $loom:ident;)*) => {$(
            /// A word that threads share; a clone is the same word.
            #[derive(Clone, Debug)]
            pub struct $name(Arc<loom::sync::atomic::$loom>);

            impl $name {
                /// A new word.
                pub fn new(value: $value) -> $name {
                    $name(Arc::new(loom::sync::atomic::$loom::new(value)))
                }

                /// Reads it.
                pub fn load(&self, order: Ordering) -> $value {
                    self.0.load(of_load(order))
                }

                /// Writes it.
                pub fn store(&self, value: $value, order: Ordering) {
                    self.0.store(value, of_store(order));
                }
            }

            impl Default for $name {
                fn default() -> $name {
                    $name::new(Default::default())
                }
            }
        )*};
    }

    words! {
        AtomicBool: bool, AtomicBool;
        AtomicU32: u32, AtomicU32;
        AtomicU64: u64, AtomicU64;
    }

    impl AtomicU64 {
        /// Replaces the value by what `change` makes of it, if anything.
        pub fn fetch_update(
            &self,
            set: Ordering,
            fetch: Ordering,
            change: impl FnMut(u64) -> Option<u64>,
        ) -> Result<u64, u64> {
            self.0.fetch_update(set, fetch, change)
        }

        /// The word at an address that the model has shared.
        ///
        /// # Safety
        /// None: the standard library's has some.
        pub unsafe fn from_ptr(address: *mut u64) -> AtomicU64 {
            let word = WORDS_64.with_borrow(|words| words.get(&address.addr()).cloned());
            word.expect("an access to a word that the model does not know")
        }
    }

    impl AtomicU32 {
        /// The word's address.
        pub fn as_ptr(&self) -> *mut u32 {
            let address = std::ptr::from_ref(self).cast_mut().cast::<u32>();
            WORDS_32.with_borrow_mut(|words| words.insert(address.addr(), self.clone()));
            address
        }

        /// The word that gave this address.
        ///
        /// # Safety
        /// None: the standard library's has some.
        pub unsafe fn from_ptr(address: *mut u32) -> AtomicU32 {
            let word = WORDS_32.with_borrow(|words| words.get(&address.addr()).cloned());
            word.expect("an access to a word that the model does not know")
        }
    }
}
