//! The PTX that ships, executed: every entry point of every image, on a GPU in software that reports races, reads of what nobody
//! wrote and accesses out of bounds, against the plainest reduction there is.
//!
//! Single steps get random numbers of sources and destinations, counts, alignments and values (any bits among them). Whole
//! calls are of two ranks on two devices: the first sends its input through a connection of two slots and receives the
//! result, the second reduces and sends back. All that is random comes from the entry point's name, so a failure comes again.

use std::sync::Arc;
use std::time::Duration;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use softgpu::{Arguments, LaunchOptions, LoadedModule, Machine, MemoryKind, Module};
use tutti::ptx::Entry;
use tutti_codegen::Kind;

/// Single steps of each entry point.
const CASES: usize = 12;

/// A generator of numbers (splitmix64).
struct Random(u64);

impl Random {
    fn of(name: &str) -> Random {
        Random(name.bytes().fold(0, |seed, byte| (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A float of up to 32 bits.
fn widen(dtype: &str, bytes: &[u8]) -> f32 {
    match dtype {
        "f32" => f32::from_le_bytes(bytes.try_into().unwrap()),
        "f16" => f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        "bf16" => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        "f8e4m3" => F8E4M3::from_bits(bytes[0]).to_f32(),
        "f8e5m2" => F8E5M2::from_bits(bytes[0]).to_f32(),
        _ => panic!("what {dtype} is worth is not known here"),
    }
}

fn narrow(dtype: &str, value: f32) -> Vec<u8> {
    match dtype {
        "f32" => value.to_le_bytes().to_vec(),
        "f16" => f16::from_f32(value).to_le_bytes().to_vec(),
        "bf16" => bf16::from_f32(value).to_le_bytes().to_vec(),
        "f8e4m3" => vec![F8E4M3::from_f32(value).to_bits()],
        _ => vec![F8E5M2::from_f32(value).to_bits()],
    }
}

fn largest(dtype: &str) -> f32 {
    match dtype {
        "f32" => f32::MAX,
        "f16" => f16::MAX.to_f32(),
        "bf16" => bf16::MAX.to_f32(),
        "f8e4m3" => 448.0,
        _ => 57344.0,
    }
}

/// Any element, or a float of some size.
fn random_element(entry: &Entry, random: &mut Random, any: bool) -> Vec<u8> {
    let dtype = entry.dtype;
    let value = random.below(4001) as f32 / 64.0 - 31.0;
    match (dtype.kind, dtype.name) {
        (Kind::Float, "f64") if !any => (f64::from(value) / 3.0).to_le_bytes().to_vec(),
        (Kind::Float, name) if !any => narrow(name, value),
        _ => random.next().to_le_bytes()[..dtype.bytes as usize].to_vec(),
    }
}

/// What a reduction makes of two floats.
macro_rules! combine {
    ($reduction:expr, $left:expr, $right:expr) => {{
        let (left, right) = ($left, $right);
        let left_is_less = left < right || (left == right && left.is_sign_negative());
        match $reduction {
            "sum" | "avg" | "scaled_sum" => left + right,
            "prod" => left * right,
            "min" | "max" if left.is_nan() || right.is_nan() => left + right,
            "min" if left_is_less => left,
            "max" if left_is_less => right,
            "min" => right,
            "max" => left,
            other => panic!("what {other} does is not known here"),
        }
    }};
}

/// What must come out of one element of each source; only floats are scaled here.
fn expected(entry: &Entry, sources: &[&[u8]], scale: Option<f64>, finish: Option<f64>) -> Vec<u8> {
    let (dtype, reduction) = (entry.dtype, entry.reduction.name);
    if sources.len() == 1 && scale.is_none() && finish.is_none() {
        return sources[0].to_vec();
    }
    let no_source = "there is a source";
    if dtype.kind != Kind::Float {
        let width = 8 * dtype.bytes;
        let whole = |bits: u64| {
            let bits = i128::from(bits & (u64::MAX >> (64 - width)));
            if dtype.kind == Kind::Signed && bits >> (width - 1) == 1 { bits - (1 << width) } else { bits }
        };
        let numbers = sources.iter().map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            whole(u64::from_le_bytes(word))
        });
        let result = numbers.reduce(|left, right| match reduction {
            "sum" | "avg" | "scaled_sum" => whole((left + right) as u64),
            "prod" => whole(left.wrapping_mul(right) as u64),
            "min" => left.min(right),
            "max" => left.max(right),
            "band" => left & right,
            "bor" => left | right,
            "bxor" => left ^ right,
            other => panic!("what {other} does is not known here"),
        });
        return (result.expect(no_source) as u64).to_le_bytes()[..dtype.bytes as usize].to_vec();
    }
    let bound = |result: f64, sum: f64, largest: f64| {
        if reduction == "avg" && sum.is_finite() { result.clamp(-largest, largest) } else { result }
    };
    if dtype.name == "f64" {
        let numbers =
            sources.iter().map(|bytes| f64::from_le_bytes((*bytes).try_into().unwrap()) * scale.unwrap_or(1.0));
        let sum = numbers.reduce(|left, right| combine!(reduction, left, right)).expect(no_source);
        return bound(sum * finish.unwrap_or(1.0), sum, f64::MAX).to_le_bytes().to_vec();
    }
    let numbers = sources.iter().map(|bytes| widen(dtype.name, bytes) * scale.unwrap_or(1.0) as f32);
    let sum = numbers.reduce(|left, right| combine!(reduction, left, right)).expect(no_source);
    let result = sum * finish.unwrap_or(1.0) as f32;
    narrow(dtype.name, bound(result.into(), sum.into(), largest(dtype.name).into()) as f32)
}

fn assert_same(entry: &Entry, came: &[u8], expected: &[u8], what: impl Fn() -> String) {
    let is_nan = |bytes: &[u8]| match (entry.dtype.kind, entry.dtype.name) {
        (Kind::Float, "f64") => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        (Kind::Float, name) => widen(name, bytes).is_nan(),
        _ => false,
    };
    let are_nan = is_nan(came) && is_nan(expected);
    assert!(came == expected || are_nan, "{}: {came:x?} came, {expected:x?} was expected", what());
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// One step of random sources and destinations, all at alignments of their own or all at the same one: each block's program
/// handles a section of it.
fn run_one_step(machine: &Machine, loaded: &LoadedModule, entry: &Entry, random: &mut Random, case: usize) {
    let bytes_each = entry.dtype.bytes as usize;
    let (sources, destinations) = (1 + random.below(6) as usize, 1 + random.below(5) as usize);
    let count = match case {
        0 => 0,
        1 => 1,
        2 => 1 + random.below(20) as usize,
        _ => random.below(9000) as usize,
    };
    let bytes = count * bytes_each;
    let skew = random.below(2) * random.below(8) * bytes_each as u64;
    let mut allocations = Vec::new();
    let mut allocate = |bytes: u64| {
        let address = machine.allocate(bytes, MemoryKind::Device, 0).expect("there is memory");
        allocations.push(address);
        address
    };
    let mut addresses = Vec::new();
    let mut inputs: Vec<Vec<u8>> = Vec::new();
    for _ in 0..sources {
        let element = |random: &mut Random| {
            let any = random.below(11) == 0;
            random_element(entry, random, any)
        };
        let data: Vec<u8> = (0..count).flat_map(|_| element(random)).collect();
        let own_skew = if random.below(3) == 0 { random.below(8) * bytes_each as u64 } else { skew };
        let address = allocate(bytes as u64 + own_skew) + own_skew;
        machine.write(address, &data).expect("the memory is there");
        addresses.push(address);
        inputs.push(data);
    }
    addresses.extend((0..destinations).map(|_| allocate(bytes as u64 + skew) + skew));
    let mut put = |values: &[u64]| {
        let address = allocate(8 * values.len() as u64);
        machine.write(address, &words(values)).expect("the memory is there");
        address
    };

    // Peers' windows can be anywhere, so each operand is one.
    let (scales, finishes) = if entry.reduction.name == "avg" && entry.dtype.kind == Kind::Float {
        (random.below(2) == 1, random.below(2) == 1)
    } else {
        (false, false)
    };
    let (scale, finish) = (0.25_f64, 1.75_f64);
    let bits = |value: f64| if entry.dtype.bytes == 8 { value.to_bits() } else { (value as f32).to_bits().into() };
    let windows = put(&addresses.iter().flat_map(|address| [*address, 0, 0, 0, 0, 0, 0, 0]).collect::<Vec<_>>());
    let (grid, block) = (1 + random.below(4) as u32, 32 * (1 + random.below(8) as u32));
    let section = (bytes as u64).div_ceil(grid.into()).next_multiple_of(16);
    let (resolved, completed, abort) = (put(&vec![0; 16 * grid as usize]), put(&vec![0; 8 * grid as usize]), put(&[0]));
    let mut programs = Vec::new();
    for index in 0..u64::from(grid) {
        let start = (index * section).min(bytes as u64);
        let length = section.min(bytes as u64 - start);
        let operands: Vec<u64> = (0..addresses.len() as u32)
            .flat_map(|operand| [pair(2, (scales && (operand as usize) < sources).into()), pair(operand, 0), start])
            .collect();
        let flags = u32::from(finishes) | 2;
        let step = [length, 0, 0, pair(0, sources as u32), pair(destinations as u32, flags), pair(u32::MAX, 0)];
        let loops = [1, pair(section.max(1) as u32, 0), pair(1, 0)];
        programs.extend([put(&loops), put(&step), put(&operands), resolved + 128 * index, pair(1, index as u32)]);
    }
    let programs = put(&programs);
    let mut launch = vec![1, 2, count as u64, 4, 5, 0, 0, 0, windows, 0, 0, 0, completed, abort, 0, 0];
    launch.extend([bits(scale), bits(finish), 0, programs, pair(grid, 0)]);
    let arguments = Arguments::new().u64(put(&launch));
    let options = LaunchOptions {
        grid: grid.into(),
        block: block.into(),
        arguments: arguments.into_bytes(),
        ..LaunchOptions::default()
    };
    let what = format!(
        "{} of {case}, {sources} to {destinations}, {count} elements, {skew} off, scaled {scales}, finished {finishes}, \
         {grid} blocks of {block}",
        entry.name(),
    );
    machine.run(loaded, &entry.name(), options).unwrap_or_else(|error| panic!("{what}: {error}"));

    let (scale, finish) = (scales.then_some(scale), finishes.then_some(finish));
    for destination in &addresses[sources..] {
        let mut came = vec![0; bytes];
        machine.read(*destination, &mut came).expect("the memory is there");
        for (index, came) in came.chunks_exact(bytes_each).enumerate() {
            let place = index * bytes_each..(index + 1) * bytes_each;
            let elements: Vec<&[u8]> = inputs.iter().map(|input| &input[place.clone()]).collect();
            let expected = expected(entry, &elements, scale, finish);
            assert_same(entry, came, &expected, || format!("{what}: element {index}"));
        }
    }
    for address in allocations {
        machine.free(address).expect("it was allocated");
    }
}

/// Two 32-bit fields beside each other.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Two ranks on two devices, laid out as `tutti_kernels::layout` says. The error is what the GPU reports.
fn run_two_ranks(machine: &Machine, module: &Arc<Module>, entry: &Entry, random: &mut Random) -> Result<(), String> {
    const CHUNK_BYTES: u64 = 1024;
    const SLOTS: u64 = 2;
    let bytes_each = entry.dtype.bytes as usize;
    let count = 1 + random.below(3000) as usize;
    let bytes = (count * bytes_each) as u64;
    let allocate = |bytes: u64, device: u32| {
        let address = machine.allocate(bytes, MemoryKind::Device, device).expect("there is memory");
        machine.write(address, &vec![0; bytes as usize]).expect("the memory is there");
        address
    };
    let put = |values: &[u64], device: u32| {
        let address = allocate(8 * values.len() as u64, device);
        machine.write(address, &words(values)).expect("the memory is there");
        address
    };
    let fingerprint = [7, 8, count as u64, 9, 10];
    let abort = allocate(64, 0);
    let stride_bytes = 64 + CHUNK_BYTES;
    // The connection from rank 0 to rank 1, and the one back: slots at the receiver, the counter at the sender.
    let slots = [allocate(stride_bytes * SLOTS, 1), allocate(stride_bytes * SLOTS, 0)];
    let empties = [allocate(64, 0), allocate(64, 1)];
    let mut launches = Vec::new();
    let mut buffers = Vec::new();
    for rank in 0..2_u32 {
        let input: Vec<u8> = (0..count).flat_map(|_| random_element(entry, random, false)).collect();
        let (input_address, output) = (allocate(bytes, rank), allocate(bytes, rank));
        machine.write(input_address, &input).expect("the memory is there");
        let (sends, receives) = if rank == 0 { (0, 1) } else { (1, 0) };
        let peer = pair(SLOTS as u32, 1 - rank);
        let send = put(&[slots[sends], stride_bytes, empties[sends], 0, 0, peer, 0, 0], rank);
        let receive = put(&[slots[receives], stride_bytes, empties[receives], 0, peer, 0, 0, 0], rank);
        let local = |buffer: u32| [pair(0, 0), pair(buffer, 0), 0];
        let slot = [pair(1, 0), pair(0, 0), 0];
        let step = |first: u32, sources: u32, destinations: u32| {
            [bytes, 0, 0, pair(first, sources), pair(destinations, 0), pair(u32::MAX, 0)]
        };
        let (operands, steps) = if rank == 0 {
            ([local(0), slot, slot, local(1)].concat(), [step(0, 1, 1), step(2, 1, 1)].concat())
        } else {
            ([slot, local(0), local(1), slot].concat(), step(0, 2, 2).to_vec())
        };
        let step_count = (steps.len() / 6) as u32;
        let loops = put(&[bytes.div_ceil(CHUNK_BYTES), pair(CHUNK_BYTES as u32, 0), pair(step_count, 0)], rank);
        let resolved = allocate(64, rank);
        let program = put(&[loops, put(&steps, rank), put(&operands, rank), resolved, pair(1, 0)], rank);
        let completed = allocate(64, rank);
        let mut launch = fingerprint.to_vec();
        launch.extend([input_address, output, 0, 0, 0, send, receive, completed, abort, 0, 0, 0, 0, 0]);
        launch.extend([program, pair(1, 0)]);
        launches.push(put(&launch, rank));
        buffers.push((input, output));
    }
    let running: Vec<_> = (0..2)
        .map(|rank| {
            let loaded = machine.load(module, rank).expect("the module loads");
            let arguments = Arguments::new().u64(launches[rank as usize]).into_bytes();
            let deadline = Some(Duration::from_secs(60));
            let options = LaunchOptions { block: 128.into(), arguments, deadline, ..LaunchOptions::default() };
            machine.launch(&loaded, &entry.name(), options).expect("it launches")
        })
        .collect();
    let ended: Vec<_> = running.into_iter().map(|running| running.wait()).collect();
    for (rank, ended) in ended.into_iter().enumerate() {
        ended.map_err(|error| format!("{} on rank {rank}: {error}", entry.name()))?;
    }
    for (rank, (_, output)) in buffers.iter().enumerate() {
        let mut came = vec![0; bytes as usize];
        machine.read(*output, &mut came).expect("the memory is there");
        for (index, came) in came.chunks_exact(bytes_each).enumerate() {
            let place = index * bytes_each..(index + 1) * bytes_each;
            // The second rank reduces what it received, and then its own.
            let expected = expected(entry, &[&buffers[0].0[place.clone()], &buffers[1].0[place]], None, None);
            assert_same(entry, came, &expected, || {
                format!("{} on rank {rank}: element {index} of {count}", entry.name())
            });
        }
    }
    Ok(())
}

#[test]
fn every_entry_point_is_right_and_free_of_races_on_a_gpu_in_software() {
    for image in super::images() {
        let module = Module::parse(image.text()).unwrap_or_else(|error| panic!("{}: {error}", image.file_name()));
        let module = Arc::new(module);
        let machine = Machine::new();
        let loaded = machine.load(&module, 0).expect("the module loads");
        for entry in image.entries() {
            let mut random = Random::of(&format!("{} {}", image.file_name(), entry.name()));
            (0..CASES).for_each(|case| run_one_step(&machine, &loaded, &entry, &mut random, case));
            run_two_ranks(&machine, &module, &entry, &mut random)
                .unwrap_or_else(|report| panic!("{}: {report}", image.file_name()));
        }
    }
}

#[test]
fn a_flag_without_its_release_is_reported_as_a_race() {
    for image in super::images() {
        let weakened = image.text().replace("st.release.sys.global.u64", "st.relaxed.sys.global.u64");
        assert_ne!(weakened, image.text(), "{} publishes nothing", image.file_name());
        let module = Arc::new(Module::parse(&weakened).expect("it parsed before"));
        let entry = image.entries()[0];
        let report = run_two_ranks(&Machine::new(), &module, &entry, &mut Random::of(&image.file_name()));
        let report = report.expect_err("the data is not ordered before its flag");
        assert!(report.contains("race"), "{}: {report}", image.file_name());
    }
}
