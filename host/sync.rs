//! What threads share words and locks by.
//!
//! The words of the board are the standard library's atomics, but in models, where the model checker's stand in for them.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(not(loom))]
pub(crate) use std::{sync::atomic, thread::yield_now};

#[cfg(loom)]
pub(crate) use tutti_kernels::model::{atomic, yield_now};

/// Locks, whether or not a thread panicked while it held the lock: what our mutexes protect is consistent at every step, and
/// a rank that panics must not take the others' error messages with it.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
