//! What a communicator, or one call of it, can be told.

use std::time::Duration;

use crate::dtype::Scale;
use crate::error::{Error, Result};
use crate::plan::{Algorithm, Geometry};

/// Settings of a communicator. Where they shape plans (the algorithm, the slots), all its ranks need the same ones.
///
/// ```
/// use std::time::Duration;
///
/// let options = tutti::Options::default().arrival_timeout(Duration::from_secs(60)).memory_budget_bytes(64 << 20);
/// let ranks = tutti::local_with(4, options)?;
/// # Ok::<(), tutti::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// How long a call waits without any rank making progress, once all have come to it: 30 s.
    pub progress_timeout: Duration,
    /// How long a call waits for a rank that has not come to it, without any rank making progress: 10 min. A rank whose
    /// thread has panicked since its last call, but may yet make another, gets `progress_timeout`, if that is shorter.
    pub arrival_timeout: Duration,
    /// The most bytes that one rank's connections, plans and step times may take; unlimited if none is given. A call that needs
    /// more fails; step times that do not fit are not kept.
    pub memory_budget_bytes: Option<u64>,
    /// The algorithm to use for every collective that it offers; chosen by size and number of ranks if none is given.
    pub algorithm: Option<Algorithm>,
    /// Bytes of one slot of a connection: 32 KiB.
    pub slot_bytes: u32,
    /// Slots of a connection, a power of two: 8.
    pub slots: u32,
}

impl Default for Options {
    fn default() -> Options {
        let Geometry { slot_bytes, slots } = Geometry::default();
        Options {
            progress_timeout: Duration::from_secs(30),
            arrival_timeout: Duration::from_secs(600),
            memory_budget_bytes: None,
            algorithm: None,
            slot_bytes,
            slots,
        }
    }
}

/// Makes, for each setting, the method that changes it.
macro_rules! setters {
    ($($setting:ident: $type:ty => $value:expr;)*) => {
        impl Options {
            $(
                #[doc = concat!("With another [`", stringify!($setting), "`](field@Options::", stringify!($setting), ").")]
                #[must_use = "the options are given back, changed"]
                pub fn $setting(mut self, $setting: $type) -> Options {
                    self.$setting = $value;
                    self
                }
            )*
        }
    };
}

setters! {
    progress_timeout: Duration => progress_timeout;
    arrival_timeout: Duration => arrival_timeout;
    memory_budget_bytes: u64 => Some(memory_budget_bytes);
    algorithm: Algorithm => Some(algorithm);
    slot_bytes: u32 => slot_bytes;
    slots: u32 => slots;
}

impl Options {
    /// The geometry of the connections, if it is one that connections can have.
    pub(crate) fn geometry(&self) -> Result<Geometry> {
        let argument = |what, expected: &str, came: u32| Error::Argument {
            call: "local",
            what,
            expected: expected.to_owned(),
            came: came.to_string(),
        };
        if !self.slots.is_power_of_two() || !(2..=1 << 16).contains(&self.slots) {
            return Err(argument("slots", "a power of two from 2 to 65536", self.slots));
        }
        if !(64..=1 << 30).contains(&self.slot_bytes) {
            return Err(argument("slot_bytes", "from 64 to 1073741824", self.slot_bytes));
        }
        Ok(Geometry { slot_bytes: self.slot_bytes, slots: self.slots })
    }
}

/// Settings of one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) progress_timeout: Option<Duration>,
    pub(crate) arrival_timeout: Option<Duration>,
    pub(crate) scale: Option<Scale>,
}
