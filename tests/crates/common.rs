//! What both crates' tests share: the driver, ranks, and numbers that differ by rank and index.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tutti::cuda::{Device, Driver};
use tutti::{Communicator, Error};

/// Elements of a call: more than a chunk's worth of lanes, and not a multiple of anything.
pub(crate) const COUNT: usize = 1003;

/// The driver that the crates use too: the one that the system finds as `libcuda.so.1`.
pub(crate) fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| Driver::open_at("libcuda.so.1").expect("the driver opens"))
}

pub(crate) fn device(ordinal: usize) -> Device {
    driver().device(ordinal).expect("there is such a device")
}

/// One test at a time: a copy, or an allocation, may wait for all that a device runs, so that tests that share devices could wait
/// for each other in a circle.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A communicator for each of these devices.
pub(crate) fn ranks_on(ordinals: &[usize]) -> Vec<Communicator> {
    let devices: Vec<Device> = ordinals.iter().map(|ordinal| device(*ordinal)).collect();
    tutti::cuda::local(&devices).expect("there are ranks on these devices")
}

/// Runs `body` for each rank on a thread of its own.
pub(crate) fn on_threads(communicators: Vec<Communicator>, body: impl Fn(Communicator) + Sync) {
    std::thread::scope(|scope| {
        for communicator in communicators {
            scope.spawn(|| body(communicator));
        }
    });
}

/// What a rank has at an index: a small number, so that sums of two are exact in every element type.
pub(crate) fn number(rank: usize, index: usize) -> u8 {
    ((index * 7 + rank * 13) % 23) as u8
}

/// The sum of what two ranks have at an index.
pub(crate) fn sum_of_two(index: usize) -> u8 {
    number(0, index) + number(1, index)
}

/// An element type as one of the crates knows it.
pub(crate) trait Number: Copy + PartialEq + std::fmt::Debug {
    fn of(number: u8) -> Self;
}

macro_rules! numbers {
    ($($type:ty => $of:expr),* $(,)?) => {
        $(
            impl $crate::common::Number for $type {
                fn of(number: u8) -> Self {
                    let of: fn(u8) -> $type = $of;
                    of(number)
                }
            }
        )*
    };
}
pub(crate) use numbers;

numbers!(
    f32 => f32::from,
    f64 => f64::from,
    i8 => |number| number as i8,
    u8 => |number| number,
    i16 => i16::from,
    u16 => u16::from,
    i32 => i32::from,
    u32 => u32::from,
    i64 => i64::from,
    u64 => u64::from,
);

pub(crate) fn numbers_of<T: Number>(rank: usize) -> Vec<T> {
    (0..COUNT).map(|index| T::of(number(rank, index))).collect()
}

pub(crate) fn sums_of_two<T: Number>() -> Vec<T> {
    (0..COUNT).map(|index| T::of(sum_of_two(index))).collect()
}

/// What the error of an argument says was expected, and what came.
#[track_caller]
pub(crate) fn expected_and_came<T: std::fmt::Debug>(result: Result<T, Error>) -> (String, String) {
    match result {
        Err(Error::Argument { expected, came, .. }) => (expected, came),
        other => panic!("expected an argument to be refused, came {other:?}"),
    }
}
