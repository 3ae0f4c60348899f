//! Steps through a switch, as every entry point that has an instruction for it makes them: sources that are the reduction of
//! every rank's window, destinations that are every rank's window at once, and both.
//!
//! Ranks on devices of their own copy their input to their window by its own address, tell each other, go through the switch, tell
//! each other again, and copy their window to their output. So each byte is reached by more than one address, which takes fences.

use std::sync::Arc;

use proptest::prelude::*;
use softgpu::{Machine, Module};
use tutti::ptx::Image;
use tutti::{DType, Reduction};
use tutti_codegen::{DTYPES, Entry, MULTIMEM_CAPABILITY, REDUCTIONS, Slots};
use tutti_kernels::layout::{MULTICAST_ALIGNMENT_BYTES, buffer, launch_status, operand_kind, step_flag};

use super::gpu::{self, Bench, Call, End, Loop, Operand, SlotFormat};
use super::number::{Format, Number};
use super::oracle::reduced;
use super::replay::{Random, for_any, mix};
use super::values::{bits_of, bytes_of};

/// Calls of each entry point.
const CASES: u32 = 2;

/// What goes through the switch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Each rank reads the reduction of all windows into its output.
    Reduce,
    /// Each rank stores its part of its input to all windows.
    Store,
    /// Each rank reads the reduction of its part and stores it to all windows.
    Both,
}

#[derive(Clone, Debug)]
struct Case {
    way: Way,
    ranks: usize,
    /// Of each rank's part, in units of the alignment that there must be.
    units: u64,
    /// Bytes of a chunk, in the same units.
    chunk_units: u64,
    /// From the start of the window to the data, in the same units.
    skew_units: u64,
    warps: u32,
    salt: u64,
}

fn any_case() -> impl Strategy<Value = Case> {
    let way = prop_oneof![Just(Way::Reduce), Just(Way::Store), Just(Way::Both)];
    let units = prop_oneof![0..20_u64, 20..200_u64];
    (way, 2..=3_usize, units, prop_oneof![1..40_u64, Just(1000)], 0..4_u64, 1..=8_u32, any::<u64>()).prop_map(
        |(way, ranks, units, chunk_units, skew_units, warps, salt)| {
            // Not so many chunks that most of the time goes into them.
            let chunk_units = chunk_units.max(units * ranks as u64 / 8);
            Case { way, ranks, units, chunk_units, skew_units, warps, salt }
        },
    )
}

/// Numbers of which the order of combining makes no difference: whole ones that no sum rounds, or whichever of integers.
fn number(format: &'static Format, random: u64) -> Number {
    if format.dtype.is_integer() && random >> 62 == 0 {
        return format.number(mix(random));
    }
    match format.dtype.is_integer() {
        true => format.wrapped((random % 61) as i128 - 30),
        false => format.exact((random % 61) as f64 - 30.0),
    }
}

/// Runs a call on every rank; the error is what the GPU reports, or what is wrong with the results.
fn run(
    machine: &Machine,
    module: &Arc<Module>,
    entry: &Entry,
    (dtype, reduction): (DType, Reduction),
    case: &Case,
) -> Result<(), String> {
    const UNIT: u64 = MULTICAST_ALIGNMENT_BYTES as u64;
    let bench = Bench::new(machine);
    let format = Format::of(dtype);
    let ranks = case.ranks as u64;
    let (part, skew) = (case.units * UNIT, case.skew_units * UNIT);
    let bytes = part * ranks;
    let count = bytes as usize / dtype.bytes();
    let inputs: Vec<Vec<Number>> = (0..ranks)
        .map(|rank| {
            let mut random = Random(case.salt ^ mix(rank));
            (0..count).map(|_| number(format, random.next())).collect()
        })
        .collect();
    let window_bytes = (skew + bytes).max(UNIT) as usize;
    let windows: Vec<u64> = (0..ranks).map(|rank| bench.allocate(window_bytes, rank as u32)).collect();
    let outputs: Vec<u64> = (0..ranks).map(|rank| bench.allocate(bytes as usize, rank as u32)).collect();
    let group = bench.multicast(window_bytes, &windows);
    let abort = bench.words(&[0], 0);

    // From each rank to each other one, one connection.
    let format_of_slots = SlotFormat::Simple(16);
    let stride_bytes = format_of_slots.stride_bytes(0);
    let mut ends = vec![(Vec::new(), Vec::new()); case.ranks];
    for sender in 0..case.ranks {
        for receiver in (0..case.ranks).filter(|receiver| *receiver != sender) {
            let slots = bench.holding(&vec![0; 16 + 4 * stride_bytes as usize], receiver as u32) + 16;
            let empty = bench.words(&[0; 8], sender as u32);
            let end = End { slots, stride_bytes, slot_count: 4, empty, moved: 0 };
            ends[sender].0.push(end);
            ends[receiver].1.push(end);
        }
    }
    let slots: Vec<Operand> = (1..case.ranks).map(|end| Operand::new(operand_kind::SLOT, end as u32 - 1)).collect();
    let local = |buffer: u32| Operand::new(operand_kind::LOCAL, buffer);
    let window = local(buffer::SCRATCH).at(skew);
    let switched = Operand { buffer: buffer::INPUT, ..Operand::new(operand_kind::MULTICAST, 0) };
    let step = |bytes: u64, source: Operand, destination: Operand, flags: u32| gpu::Step {
        bytes,
        sources: vec![source],
        destinations: vec![destination],
        flags,
    };
    let looped = |step: gpu::Step| {
        let chunk_bytes = case.chunk_units * UNIT;
        Loop { iterations: step.bytes.div_ceil(chunk_bytes).max(1), chunk_bytes: chunk_bytes as u32, steps: vec![step] }
    };
    // Messages without data: each rank tells all others, and waits for all others.
    let meet = || {
        let tell = gpu::Step { bytes: 0, sources: vec![window], destinations: slots.clone(), flags: 0 };
        let hear = gpu::Step { bytes: 0, sources: slots.clone(), destinations: vec![window], flags: 0 };
        Loop { iterations: 1, chunk_bytes: UNIT as u32, steps: vec![tell, hear] }
    };
    let launches: Vec<gpu::Launch> = (0..ranks)
        .map(|rank| {
            let own = rank * part;
            let (input, output) = (local(buffer::INPUT), local(buffer::OUTPUT));
            let through = step_flag::TOUCHES_WINDOWS;
            let program = match case.way {
                Way::Reduce => vec![
                    looped(step(bytes, input, window, 0)),
                    meet(),
                    looped(step(bytes, switched.at(skew), output, through | step_flag::MULTICAST_SOURCE)),
                ],
                Way::Store => vec![
                    looped(step(
                        part,
                        input.at(own),
                        switched.at(skew + own),
                        through | step_flag::MULTICAST_DESTINATION,
                    )),
                    meet(),
                    looped(step(bytes, window, output, 0)),
                ],
                Way::Both => vec![
                    looped(step(bytes, input, window, 0)),
                    meet(),
                    looped(step(
                        part,
                        switched.at(skew + own),
                        switched.at(skew + own),
                        through | step_flag::MULTICAST_SOURCE | step_flag::MULTICAST_DESTINATION,
                    )),
                    meet(),
                    looped(step(bytes, window, output, 0)),
                ],
            };
            let (sends, receives) = ends[rank as usize].clone();
            let held = bench.holding(&bytes_of(&inputs[rank as usize]), rank as u32);
            Call {
                device: rank as u32,
                fingerprint: [1, 2, count as u64, 3, 4],
                buffers: [held, outputs[rank as usize], windows[rank as usize]],
                multicast: [group, 0],
                sends,
                receives,
                abort,
                programs: vec![program],
                ..Call::default()
            }
            .lay_out(&bench)
        })
        .collect();
    let begin = |launch: &gpu::Launch| launch.begin(&bench, module, entry, 32 * case.warps);
    gpu::all(launches.iter().map(begin).collect(), |_| ()).map_err(|error| error.to_string())?;
    for (rank, output) in outputs.iter().enumerate() {
        if launches[rank].status(&bench) != launch_status::GOOD {
            return Err(format!("rank {rank} did not end well"));
        }
        for (index, came) in bits_of(format, &bench.read(*output, bytes as usize)).enumerate() {
            let right = if case.way == Way::Store {
                let owner = index * dtype.bytes() / part.max(1) as usize;
                came == inputs[owner][index].bits()
            } else {
                let elements: Vec<Number> = inputs.iter().map(|input| input[index]).collect();
                reduced(&elements, reduction, 1.0).accepts(format.number(came))
            };
            if !right {
                let values: Vec<f64> = inputs.iter().map(|input| input[index].value()).collect();
                return Err(format!("rank {rank}: element {index} of {count}: {came:#x} came of {values:?}"));
            }
        }
    }
    Ok(())
}

/// Every type and reduction that a switch offers, with its image for each architecture that reaches one.
fn switched() -> impl Iterator<Item = (DType, Reduction, &'static Image, Entry)> {
    let all = DType::ALL.iter().flat_map(|dtype| dtype.reductions().map(move |reduction| (*dtype, reduction)));
    let offered =
        all.filter(|(dtype, reduction)| DTYPES[*dtype as usize].multimem(&REDUCTIONS[*reduction as usize]).is_some());
    offered.flat_map(|(dtype, reduction)| {
        gpu::entries(Slots::Simple, dtype, reduction)
            .filter(|(image, _)| reaches(image))
            .map(move |(image, entry)| (dtype, reduction, image, entry))
    })
}

/// Whether an image is of an architecture that reaches a switch.
fn reaches(image: &Image) -> bool {
    image.architecture().compute_capability >= MULTIMEM_CAPABILITY
}

#[test]
fn any_copy_to_all_through_a_switch_is_right_and_free_of_races() {
    let machine = Machine::new();
    for (image, entry) in gpu::copy_entries(Slots::Simple).filter(|(image, _)| reaches(image)) {
        let about = format!("{} of {}", entry.name(), image.file_name());
        let module = gpu::module(image);
        let dtypes = any::<prop::sample::Index>().prop_map(|index| *index.get(DType::ALL));
        let name = "any_copy_to_all_through_a_switch_is_right_and_free_of_races";
        for_any("ptx", name, &about, 2 * CASES, &(any_case(), dtypes), |(case, dtype)| {
            let case = Case { way: Way::Store, ..case };
            let what = (dtype, Reduction::Sum);
            run(&machine, &module, &entry, what, &case).map_err(|error| format!("{about} of {dtype}: {error}"))
        });
    }
}

#[test]
fn any_call_through_a_switch_is_right_and_free_of_races() {
    let machine = Machine::new();
    for (dtype, reduction, image, entry) in switched() {
        let about = format!("{} {} by {} of {}", dtype.name(), reduction.name(), entry.name(), image.file_name());
        let module = gpu::module(image);
        for_any("ptx", "any_call_through_a_switch_is_right_and_free_of_races", &about, CASES, &any_case(), |case| {
            run(&machine, &module, &entry, (dtype, reduction), &case).map_err(|error| format!("{about}: {error}"))
        });
    }
}

#[test]
fn steps_through_a_switch_without_their_fences_are_reported() {
    let machine = Machine::new();
    let case = Case { way: Way::Both, ranks: 2, units: 20, chunk_units: 40, skew_units: 0, warps: 2, salt: 1 };
    for (dtype, reduction, image, entry) in switched().filter(|(_, reduction, ..)| *reduction == Reduction::Sum) {
        let unfenced = image.text().replace("fence.proxy.alias;", "");
        assert_ne!(unfenced, image.text(), "{} has no fences for aliases", image.file_name());
        let unfenced = gpu::parsed(image, &unfenced);
        for way in [Way::Reduce, Way::Store, Way::Both] {
            let case = Case { way, ..case };
            let report = run(&machine, &unfenced, &entry, (dtype, reduction), &case);
            let report = report.expect_err(&format!("{} of {}, {way:?}", entry.name(), image.file_name()));
            assert!(report.contains("without fence.proxy.alias"), "{}: {report}", image.file_name());
        }
    }
}
