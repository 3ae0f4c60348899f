//! Streams of other libraries, as streams to queue calls on.
//!
//! **Invariant.** Nothing here outlives what it was lent, and what is lent belongs to the context in which ranks run.

use std::ffi::c_void;
use std::fmt;
use std::ops::Deref;

use crate::device::cuda::{Device, Stream};
use crate::error::Error;

/// A stream of another library's, which it borrows: where a [`Stream`] is asked for, a reference to this will do.
///
/// Dropping it does nothing to the stream, or to what is queued there.
pub struct LentStream<'a, S> {
    stream: Stream,
    lender: &'a S,
}

impl<'a, S> LentStream<'a, S> {
    /// # Safety
    /// `raw` is `lender`'s handle, lives as long as it does, and belongs to the primary context of the device.
    pub(super) unsafe fn new(device: &Device, raw: *mut c_void, lender: &'a S) -> Self {
        // SAFETY: passed on from the caller; the borrow of the lender sees to it that the stream lives longer than this.
        LentStream { stream: unsafe { device.stream_from_raw(raw) }, lender }
    }

    /// The other library's stream.
    pub fn lender(&self) -> &'a S {
        self.lender
    }
}

impl<S> Deref for LentStream<'_, S> {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.stream
    }
}

impl<S> fmt::Debug for LentStream<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LentStream").field(&self.stream).finish()
    }
}

/// A stream whose context is not the device's primary one; `other` is the device that it belongs to, if that is known.
pub(super) fn not_primary(call: &'static str, device: &Device, other: Option<usize>) -> Error {
    let own = device.ordinal();
    let expected = format!("a stream of the primary context of device {own}");
    let came = match other {
        Some(other) if other != own => format!("a stream of device {other}"),
        Some(_) => "a stream of another context of that device".to_owned(),
        None => "a stream of another context".to_owned(),
    };
    Error::Argument { call, what: "stream", expected, came }
}
