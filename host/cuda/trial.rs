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
use crate::dtype::{DType, Reduction};
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
    let mut paths = Paths::new(devices, |one, other| {
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
    })?;
    note_switch(&mut paths)?;
    Ok(paths)
}

/// Tries whether a switch reduces among all these devices, if the driver says so.
fn note_switch(paths: &mut Paths) -> Result<()> {
    let devices = paths.devices().to_vec();
    let all = 0..devices.len();
    let reach = all.clone().all(|one| all.clone().all(|other| one == other || paths.path(one, other) == Path::Peer));
    if devices.len() < 2 || !reach || !devices.iter().all(Device::has_multicast) {
        return Ok(());
    }
    let functions = devices[0].functions();
    let numbers: Vec<usize> = devices.iter().map(Device::ordinal).collect();
    let known = lock(&functions.tried_switches).get(&numbers).cloned();
    let seen = match known {
        Some(seen) => seen,
        None => {
            let seen = match switch_trial(paths)? {
                Ok(()) => Vec::new(),
                Err(what) => vec![format!("devices {}: the switch does not reduce: {what}", in_words(&numbers))],
            };
            lock(&functions.tried_switches).insert(numbers, seen.clone());
            seen
        }
    };
    paths.note_switch(seen.is_empty(), seen);
    Ok(())
}

/// Such as `0, 1 and 2`.
fn in_words(numbers: &[usize]) -> String {
    let words: Vec<String> = numbers.iter().map(usize::to_string).collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

/// Tries a switch by an all-reduce in symmetric memory, in which each device reads what the switch reduces and writes what it
/// stores everywhere, at the same time; the inner error says what was seen if it does not work.
fn switch_trial(paths: &Paths) -> Result<Result<(), String>> {
    let devices = paths.devices();
    let mut switched = paths.clone();
    switched.note_switch(true, Vec::new());
    let options = Options::default().slot_bytes(1024).slots(4).progress_timeout(PATIENCE);
    let world = match World::on_cuda(devices, &switched, &options) {
        Ok(world) => world,
        // The driver has no such object for these devices.
        Err(error @ Error::Cuda { .. }) => return Ok(Err(error.to_string())),
        Err(error) => return Err(error),
    };
    let ranks = world.cuda.as_ref().ok_or_else(no_error)?;
    let symmetric = ranks.symmetric().ok_or_else(no_error)?;
    if !ranks.switches((DType::F32, Some(Reduction::Sum))) {
        return Ok(Err("this driver takes no kernel that uses it; install a newer driver".to_owned()));
    }
    // Several chunks for each device, and something left that the switch does not do.
    let count = devices.len() * 3000 + 5;
    let sent = |rank: usize, index: usize| ((index * 31 + (index >> 8) * 7 + 101 * rank) % 1000) as f32;
    let mut buffers = Vec::with_capacity(devices.len());
    let bytes = count * size_of::<f32>();
    for (rank, device) in devices.iter().enumerate() {
        let elements: Vec<f32> = (0..count).map(|index| sent(rank, index)).collect();
        let fill = || {
            let memory = symmetric.allocate(rank, bytes)?;
            let stream = device.copies()?;
            // SAFETY: both are as long, and the copy is waited for.
            unsafe { stream.upload(memory.address(), elements.as_ptr().cast(), bytes)? };
            stream.wait()?;
            Ok(memory)
        };
        match fill() {
            Ok(memory) => buffers.push(memory),
            Err(failure) => {
                let failure: Failure = failure;
                return Ok(Err(failure.during("finding memory that it reaches").to_string()));
            }
        }
    }
    let mut cores = Vec::with_capacity(devices.len());
    for rank in 0..devices.len() {
        cores.push(Core::new(Arc::clone(&world), rank, options.clone())?);
    }
    let calls: Vec<Request> = buffers
        .iter()
        .map(|memory| Request {
            purpose: Purpose::Collective,
            collective: Collective::AllReduce,
            dtype: Some(DType::F32),
            reduction: Some(Reduction::Sum),
            scale: 0,
            count: count as u64,
            input: std::ptr::with_exposed_provenance(memory.address() as usize),
            output: std::ptr::with_exposed_provenance_mut(memory.address() as usize),
            memory: [Memory::Cuda { device: memory.device().ordinal(), exposed: true }; 2],
        })
        .collect();
    let overrides = Overrides { algorithm: Some(Algorithm::Nvls), ..Overrides::default() };
    let mut all: Vec<&mut Core> = cores.iter_mut().collect();
    match run_all(&mut all, &calls, &overrides) {
        Ok(()) => {}
        // What the machine lacks or refuses is no fault of the switch, but for what kernels ran into on it.
        Err(error @ (Error::NoKernel { .. } | Error::OutOfMemory { .. })) => return Err(error),
        Err(error) => return Ok(Err(seen(&error))),
    }
    for (rank, (device, memory)) in devices.iter().zip(&buffers).enumerate() {
        let mut came = vec![0.0_f32; count];
        let mut read = || {
            let stream = device.copies()?;
            // SAFETY: as above.
            unsafe { stream.download(came.as_mut_ptr().cast(), memory.address(), bytes)? };
            stream.wait()
        };
        read().map_err(|failure: Failure| failure.during(format_args!("copying from device {}", device.ordinal())))?;
        // Small whole numbers: the order of reduction makes no difference.
        let expected = |index: usize| (0..devices.len()).map(|rank| sent(rank, index)).sum::<f32>();
        if let Some(at) = (0..count).find(|at| came[*at] != expected(*at)) {
            let (device, came) = (devices[rank].ordinal(), came[at]);
            return Ok(Err(format!(
                "element {at} of {count} came to device {device} as {came}, expected {}",
                expected(at)
            )));
        }
    }
    Ok(Ok(()))
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
            Err(error) => return Ok(Err(seen(&error))),
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

/// What was seen when a trial failed. Ranks that made the same call, and met another one's data all the same, met what the path made of
/// it.
fn seen(error: &Error) -> String {
    match error {
        Error::Internal { .. } => "the flags of messages came as others than were sent".to_owned(),
        error => error.to_string(),
    }
}

fn no_error() -> Error {
    Error::Internal { what: "a rank is neither there nor refused".to_owned() }
}
