//! The conformance suite on CUDA ranks: the same plans, run by the very PTX that ships, on the driver in software or a real one.

#[macro_use]
mod conformance;

mod software_driver;

use std::sync::OnceLock;

use tutti::cuda::{Device, Driver};
use tutti::{Communicator, Options};

/// The driver that `TUTTI_LIBCUDA` names, or else the one in software, which is built with the tests; none, with the reason, where
/// it does not work or has no devices.
fn driver() -> Result<&'static Driver, &'static str> {
    static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
    let open = || {
        let opened = match std::env::var_os("TUTTI_LIBCUDA") {
            Some(_) => Driver::open(),
            None => {
                // A process of its own for each test is what nextest gives.
                if std::env::var_os("NEXTEST").is_none() {
                    software_driver::do_not_wait();
                }
                Driver::open_at(software_driver::library())
            }
        };
        let driver = opened.map_err(|error| error.to_string())?;
        match driver.device_count() {
            Ok(0) => Err("the driver has no devices".to_owned()),
            Ok(_) => Ok(driver),
            Err(error) => Err(error.to_string()),
        }
    };
    DRIVER.get_or_init(open).as_ref().map_err(String::as_str)
}

/// Whether there is a device; a test without one is skipped, unless `TUTTI_REQUIRE_CUDA` is set: then it fails.
fn is_ready() -> bool {
    let Err(reason) = driver() else { return true };
    assert!(std::env::var_os("TUTTI_REQUIRE_CUDA").is_none(), "no CUDA device: {reason}");
    println!("skipped: no CUDA device: {reason} (TUTTI_REQUIRE_CUDA=1 makes this a failure)");
    false
}

/// Communicators of ranks on the devices that there are, one after the other.
fn on_devices(rank_count: usize, options: Options) -> tutti::Result<Vec<Communicator>> {
    let driver = driver().expect("a test begins only where there is one");
    let count = driver.device_count()?;
    let devices = (0..rank_count).map(|rank| driver.device(rank % count)).collect::<tutti::Result<Vec<Device>>>()?;
    tutti::cuda::local_with(&devices, options)
}

/// Whether the first call of its kind loads code, for which a device may have to be idle.
const LOADS_CODE: bool = true;

/// As cargo knows these tests.
const SUITE: &str = "cuda";

/// Every call of the driver in software is interpreted, so the cases are spread out: every collective, algorithm, element type,
/// reduction and number of ranks is still met. With `TUTTI_ALL_CASES` at build time, all of them are run.
const IS_QUICK: bool = option_env!("TUTTI_ALL_CASES").is_some();

conformance!(crate::on_devices);
