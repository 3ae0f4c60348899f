//! Trying out paths between devices before ranks rely on them.
//!
//! A trial is a collective like any other, of two ranks: an all-gather, by slots and, between peers, by windows, in which each device
//! writes to the other at the same time, and waits for its flags. What comes out is compared with what went in. So what is tried
//! is what is going to be used, down to the kernel.

use std::sync::Arc;
use std::time::Duration;

use crate::buffer::Memory;
use crate::core::{Core, Request, World};
use crate::device::cuda::{Device, Failure, Path, Paths};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fingerprint::Purpose;
use crate::options::{Options, Overrides};
use crate::plan::{Algorithm, Collective};
use crate::run::run_all;
use crate::sync::lock;

/// Bytes that each device sends: several slots and chunks of them, and no whole number of either.
const BYTES: usize = 20_011;

/// How long a trial waits for data that does not come.
const PATIENCE: Duration = Duration::from_secs(5);

/// How these devices, of which each stands there once, reach each other.
pub(super) fn paths(devices: Vec<Device>) -> Result<Paths> {
    let known = |one: &Device, other: &Device| {
        let tried = lock(&one.functions().tried);
        tried.get(&(one.ordinal(), other.ordinal())).cloned()
    };
    // Granted for all pairs before anything runs: a driver may let it wait for kernels.
    let mut granted = std::collections::HashMap::new();
    for (place, one) in devices.iter().enumerate() {
        for other in devices[..place].iter().filter(|other| known(other, one).is_none()) {
            granted.insert((other.ordinal(), one.ordinal()), grant(other, one));
        }
    }
    Paths::new(devices, |one, other| {
        if let Some(tried) = known(one, other) {
            return Ok(tried);
        }
        let numbers = (one.ordinal(), other.ordinal());
        let mut seen = Vec::new();
        for path in [Path::Peer, Path::Host] {
            let usable = match (path, granted.get(&numbers)) {
                (Path::Peer, Some(Ok(false)) | None) => continue,
                (Path::Peer, Some(Err(failure))) => Err(failure.to_string()),
                _ => trial(one, other, path)?,
            };
            match usable {
                Ok(()) => {
                    let tried = (path, seen);
                    lock(&one.functions().tried).insert(numbers, tried.clone());
                    return Ok(tried);
                }
                Err(what) => {
                    let way = if path == Path::Peer { "peer access" } else { "memory of the host" };
                    seen.push(format!("devices {} and {}: {way} does not work: {what}", numbers.0, numbers.1));
                }
            }
        }
        Err(Error::NoPath { devices: [numbers.0, numbers.1], seen })
    })
}

/// Lets each device reach the other's memory, if the driver says that it can.
fn grant(one: &Device, other: &Device) -> Result<bool, Failure> {
    if !one.can_access(other)? || !other.can_access(one)? {
        return Ok(false);
    }
    one.enable_access(other)?;
    other.enable_access(one)?;
    Ok(true)
}

/// Tries a path; the inner error says what was seen if it does not work.
fn trial(one: &Device, other: &Device, path: Path) -> Result<Result<(), String>> {
    let devices = [one.clone(), other.clone()];
    let untried = Paths::new(devices.to_vec(), |_, _| Ok::<_, Error>((path, Vec::new())))?;
    let options = Options::default().slot_bytes(1024).slots(4).progress_timeout(PATIENCE);
    let world = World::on_cuda(&devices, &untried, &options)?;
    let mut ranks = [0, 1].map(|rank| Core::new(Arc::clone(&world), rank, options.clone()));
    let [first, second] = &mut ranks;
    let (Ok(first), Ok(second)) = (first, second) else {
        return Err(ranks.into_iter().find_map(Result::err).unwrap_or_else(no_error));
    };
    let algorithms: &[Algorithm] =
        if path == Path::Peer { &[Algorithm::Ring, Algorithm::Direct] } else { &[Algorithm::Ring] };
    for algorithm in algorithms {
        let sent = |rank: usize| (0..BYTES).map(move |index| (index * 31 + (index >> 8) * 7 + 101 * rank) as u8);
        let expected: Vec<u8> = sent(0).chain(sent(1)).collect();
        let inputs: [Vec<u8>; 2] = [sent(0).collect(), sent(1).collect()];
        let mut outputs = [vec![0_u8; 2 * BYTES], vec![0_u8; 2 * BYTES]];
        let overrides = Overrides { algorithm: Some(*algorithm), ..Overrides::default() };
        let [left, right] = &mut outputs;
        let calls = [(&inputs[0], left), (&inputs[1], right)].map(|(input, output)| Request {
            purpose: Purpose::Collective,
            collective: Collective::AllGather,
            dtype: Some(DType::U8),
            reduction: None,
            scale: 0,
            count: BYTES as u64,
            input: input.as_ptr(),
            output: output.as_mut_ptr(),
            memory: [Memory::Host; 2],
        });
        match run_all(&mut [&mut *first, &mut *second], &calls, &overrides) {
            Ok(()) => {}
            // What the machine lacks or refuses is no fault of the path, but for what kernels ran into on it.
            Err(error @ (Error::NoKernel { .. } | Error::NoDriver { .. } | Error::OutOfMemory { .. })) => {
                return Err(error);
            }
            Err(error) => return Ok(Err(error.to_string())),
        }
        for (rank, output) in outputs.iter().enumerate() {
            if let Some(at) = (0..expected.len()).find(|at| output[*at] != expected[*at]) {
                let (came, device) = (output[at], devices[rank].ordinal());
                return Ok(Err(format!(
                    "byte {at} of {} came to device {device} as {came:#04x}, expected {:#04x}",
                    expected.len(),
                    expected[at]
                )));
            }
        }
    }
    Ok(Ok(()))
}

fn no_error() -> Error {
    Error::Internal { what: "a rank is neither there nor refused".to_owned() }
}
