//! The conformance suite on CUDA ranks: the same plans, run by the very PTX that ships, on the driver in software or a real one.

#[macro_use]
mod conformance;

use std::path::PathBuf;
use std::sync::OnceLock;

use tutti::cuda::{Device, Driver};
use tutti::{Communicator, Options};

/// The driver that `TUTTI_LIBCUDA` names, or else the one in software, which is built with the tests.
fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let opened = match std::env::var_os("TUTTI_LIBCUDA") {
            Some(_) => Driver::open(),
            None => Driver::open_at(software_driver()),
        };
        opened.expect("the driver opens")
    })
}

/// Where cargo leaves the library that it builds beside the tests.
fn software_driver() -> PathBuf {
    let mut path = std::env::current_exe().expect("a test has a file");
    path.pop();
    path.join("libsoftcuda.so")
}

/// Communicators of ranks on the devices that there are, one after the other.
fn on_devices(rank_count: usize, options: Options) -> tutti::Result<Vec<Communicator>> {
    let driver = driver();
    let count = driver.device_count()?;
    let devices = (0..rank_count).map(|rank| driver.device(rank % count)).collect::<tutti::Result<Vec<Device>>>()?;
    tutti::cuda::local_with(&devices, options)
}

/// As cargo knows these tests.
const SUITE: &str = "cuda";

/// Every call of the driver in software is interpreted, so the cases are spread out: every collective, algorithm, element type,
/// reduction and number of ranks is still met. With `TUTTI_ALL_CASES` at build time, all of them are run.
const IS_QUICK: bool = option_env!("TUTTI_ALL_CASES").is_some();

conformance!(crate::on_devices);
