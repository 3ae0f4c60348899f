//! Single steps of random sources and destinations: on the host with each instruction set, and on a GPU in software with every
//! image, against the oracle. Where both have the oracle's bits, they have each other's.

use proptest::collection::vec;
use proptest::prelude::*;
use softgpu::Machine;
use tutti::{DType, Reduction};
use tutti_codegen::Slots;
use tutti_kernels::interpreter::{Kernel, StepOperands};
use tutti_kernels::layout::{self, launch_status, operand_flag, operand_kind, step_flag};
use tutti_kernels::table::{self, Isa};

use super::gpu::{self, Bench, Call, Loop, Operand};
use super::number::Format;
use super::oracle::Step;
use super::replay::{for_any, mix};
use super::values::{bytes_of, compare, factor_bits, factors, numbers};

/// Steps of each element type and reduction.
const CASES: u32 = 8;

/// What lies around operands on the host, and in front of them on a GPU.
const BESIDE: u8 = 0xa5;

/// Bytes in front of and behind each operand on the host.
const BESIDE_BYTES: usize = 64;

/// A step.
#[derive(Clone, Debug)]
struct Case {
    /// Bytes, to be cut to whole elements.
    bytes: usize,
    /// Of each source, its distance from an aligned address in elements, and whether it is marked.
    sources: Vec<(usize, bool)>,
    /// Of each destination, its distance from an aligned address in elements.
    destinations: Vec<usize>,
    /// The source that the first destination is, if any: of that many.
    in_place: Option<prop::sample::Index>,
    is_finished: bool,
    is_backwards: bool,
    streams: bool,
    touches_windows: bool,
    blocks: u64,
    warps: u32,
    salt: u64,
}

/// Most steps have operands that are aligned alike, as it is in use.
fn any_case() -> impl Strategy<Value = Case> {
    let bytes = prop_oneof![1 => Just(0), 4 => 1..300_usize, 4 => 300..4000_usize, 1 => 4000..20_000_usize];
    let alike = prop_oneof![Just(0), Just(0), 0..33_usize];
    let alone = prop_oneof![6 => Just(None), 1 => (0..33_usize).prop_map(Some)];
    let operands = (alike, vec((alone.clone(), any::<bool>()), 1..=6), vec(alone, 1..=5));
    let in_place = proptest::option::of(any::<prop::sample::Index>());
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (bytes, operands, in_place, flags, 1..=4_u64, 1..=8_u32, any::<u64>()).prop_map(
        |(bytes, (alike, sources, destinations), in_place, flags, blocks, warps, salt)| Case {
            bytes,
            sources: sources.into_iter().map(|(skew, is_marked)| (skew.unwrap_or(alike), is_marked)).collect(),
            destinations: destinations.into_iter().map(|skew| skew.unwrap_or(alike)).collect(),
            in_place,
            is_finished: flags.0,
            is_backwards: flags.1,
            touches_windows: flags.2,
            streams: flags.3,
            blocks,
            warps,
            salt,
        },
    )
}

/// A case with its data, and what must come of it.
struct Prepared<'a> {
    case: &'a Case,
    format: &'static Format,
    step: Step,
    sources: Vec<Vec<u8>>,
    expected: Vec<u64>,
    is_copy: bool,
}

impl<'a> Prepared<'a> {
    fn new(case: &'a Case, dtype: DType, reduction: Reduction) -> Prepared<'a> {
        let format = Format::of(dtype);
        let step = factors(dtype, reduction, case.is_finished, mix(case.salt));
        let count = case.bytes / dtype.bytes();
        let sources: Vec<_> =
            (0..case.sources.len()).map(|source| numbers(format, case.salt ^ mix(source as u64), count)).collect();
        let marks: Vec<bool> = case.sources.iter().map(|(_, is_marked)| *is_marked).collect();
        let expected = (0..count)
            .map(|index| step.bits(&sources.iter().map(|source| source[index]).collect::<Vec<_>>(), &marks))
            .collect();
        let is_copy = marks.len() == 1 && step.copies(format, marks[0]);
        let sources = sources.iter().map(|source| bytes_of(source)).collect();
        Prepared { case, format, step, sources, expected, is_copy }
    }

    fn dtype(&self) -> DType {
        self.format.dtype
    }

    fn bytes(&self) -> usize {
        self.expected.len() * self.dtype().bytes()
    }

    /// The source that is the destination too.
    fn in_place(&self, destination: usize) -> Option<usize> {
        self.case.in_place.filter(|_| destination == 0).map(|index| index.index(self.sources.len()))
    }

    fn scale(&self) -> u64 {
        factor_bits(self.dtype(), self.step.scale)
    }

    fn finish(&self) -> u64 {
        self.step.finish.map_or(0, |finish| factor_bits(self.dtype(), finish))
    }

    fn flags(&self) -> u32 {
        let backwards = if self.case.is_backwards { step_flag::BACKWARDS } else { 0 };
        let streams = if self.case.streams { step_flag::STREAMS } else { 0 };
        let touches = if self.case.touches_windows { step_flag::TOUCHES_WINDOWS } else { 0 };
        gpu::finish_flag(self.case.is_finished) | backwards | streams | touches
    }

    fn check(&self, destination: usize, came: &[u8], beside: &[u8]) -> Result<(), String> {
        if beside.iter().any(|byte| *byte != BESIDE) {
            return Err(format!("destination {destination}: it wrote beside it"));
        }
        compare(self.format, came, &self.expected, self.is_copy, &format!("destination {destination}"))
    }

    /// The step by the host's kernels.
    fn on_the_host(&self, isa: Isa) -> Result<(), String> {
        let operand_bytes = |skew: &usize| skew * self.dtype().bytes();
        let mut buffers: Vec<HostBuffer> = self
            .sources
            .iter()
            .zip(&self.case.sources)
            .map(|(source, (skew, _))| HostBuffer::holding(source, operand_bytes(skew)))
            .collect();
        let beside = vec![BESIDE; self.bytes()];
        buffers.extend(self.case.destinations.iter().map(|skew| HostBuffer::holding(&beside, operand_bytes(skew))));
        let source_count = self.sources.len();
        let buffer_of = |operand: usize| {
            operand.checked_sub(source_count).and_then(|destination| self.in_place(destination)).unwrap_or(operand)
        };
        let mut addresses: Vec<*mut u8> = buffers.iter_mut().map(HostBuffer::as_mut_ptr).collect();
        for operand in source_count..addresses.len() {
            addresses[operand] = addresses[buffer_of(operand)];
        }
        let operand = |is_marked: bool| layout::Operand {
            kind: operand_kind::LOCAL,
            flags: if is_marked { operand_flag::SCALE } else { 0 },
            index: 0,
            buffer: 0,
            offset: 0,
        };
        let mut operands: Vec<_> = self.case.sources.iter().map(|(_, is_marked)| operand(*is_marked)).collect();
        operands.resize(addresses.len(), operand(false));
        let step_operands = StepOperands {
            addresses: addresses.as_ptr(),
            operands: operands.as_ptr(),
            source_count: source_count as u32,
            destination_count: self.case.destinations.len() as u32,
            flags: self.flags(),
            scale: self.scale(),
            finish: self.finish(),
        };
        // SAFETY: the processor has the instruction set, as its list says.
        let row = unsafe { table::row(self.dtype() as usize, self.step.reduction as usize, isa) };
        let row = row.expect("the type offers the reduction");
        if self.bytes() > 0 {
            // SAFETY: each address is valid for so many bytes, whole elements at multiples of their size; buffers are apart, and
            // nobody else uses them.
            unsafe { row.reduce_copy(&step_operands, self.bytes()) };
        }
        for destination in 0..self.case.destinations.len() {
            let buffer = &buffers[buffer_of(source_count + destination)];
            self.check(destination, buffer.data(), &buffer.beside())?;
        }
        for (index, source) in self.sources.iter().enumerate() {
            let is_written = self.in_place(0) == Some(index);
            if !is_written && (buffers[index].data() != source || buffers[index].beside().iter().any(|b| *b != BESIDE))
            {
                return Err(format!("source {index} has changed"));
            }
        }
        Ok(())
    }

    /// The step by an entry point. Peers' windows can be anywhere, so each operand is one; each block's program handles a section.
    fn on_a_gpu(
        &self,
        machine: &Machine,
        image: &tutti::ptx::Image,
        entry: &tutti_codegen::Entry,
    ) -> Result<(), String> {
        let bench = Bench::new(machine);
        let (size, bytes) = (self.dtype().bytes(), self.bytes() as u64);
        let mut skews: Vec<usize> = self.case.sources.iter().map(|(skew, _)| skew * size).collect();
        let mut addresses: Vec<u64> = self
            .sources
            .iter()
            .zip(&skews)
            .map(|(source, skew)| bench.holding(&[vec![BESIDE; *skew], source.clone()].concat(), 0))
            .collect();
        for (destination, skew) in self.case.destinations.iter().enumerate() {
            let (address, skew) = match self.in_place(destination) {
                Some(source) => (addresses[source], skews[source]),
                None => {
                    let address = bench.allocate(skew * size + bytes as usize, 0);
                    bench.write(address, &vec![BESIDE; skew * size]);
                    (address, skew * size)
                }
            };
            addresses.push(address);
            skews.push(skew);
        }
        let windows = addresses.iter().zip(&skews).map(|(address, skew)| [address + *skew as u64, 0, 0]).collect();
        let section = bytes.div_ceil(self.case.blocks).next_multiple_of(16);
        let program = |index: u64| {
            let start = (index * section).min(bytes);
            let window = |operand: usize| Operand::new(operand_kind::WINDOW, operand as u32).at(start);
            let marked = self.case.sources.iter().enumerate();
            let step = gpu::Step {
                bytes: section.min(bytes - start),
                sources: marked.map(|(operand, (_, is_marked))| window(operand).scaled(*is_marked)).collect(),
                destinations: (self.sources.len()..addresses.len()).map(window).collect(),
                flags: self.flags(),
            };
            vec![Loop { iterations: 1, chunk_bytes: section.max(1) as u32, steps: vec![step] }]
        };
        let touching = bench.words(&[0], 0);
        let launch = Call {
            windows,
            abort: bench.words(&[0], 0),
            touching,
            scale: self.scale(),
            finish: self.finish(),
            slot_format: if entry.slots == Slots::Simple {
                layout::slot_format::SIMPLE
            } else {
                1 + self.case.warps % 2
            },
            programs: (0..self.case.blocks).map(program).collect(),
            ..Call::default()
        }
        .lay_out(&bench);
        launch
            .begin(&bench, &gpu::module(image), entry, 32 * self.case.warps)
            .wait()
            .map_err(|error| error.to_string())?;
        if (launch.status(&bench), bench.word(touching)) != (launch_status::GOOD, 0) {
            return Err("it ended badly, or still says that it touches windows".to_owned());
        }
        for destination in 0..self.case.destinations.len() {
            let operand = self.sources.len() + destination;
            let came = bench.read(addresses[operand], skews[operand] + self.bytes());
            let (beside, came) = came.split_at(skews[operand]);
            self.check(destination, came, beside)?;
        }
        Ok(())
    }
}

/// Bytes at an alignment, with some beside them.
pub(crate) struct HostBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl HostBuffer {
    pub(crate) fn holding(data: &[u8], skew: usize) -> HostBuffer {
        let mut bytes = vec![BESIDE; data.len() + skew + 3 * BESIDE_BYTES];
        let start = bytes.as_ptr().align_offset(BESIDE_BYTES) + BESIDE_BYTES + skew;
        bytes[start..start + data.len()].copy_from_slice(data);
        HostBuffer { bytes, start, length: data.len() }
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    pub(crate) fn data(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    /// The bytes in front and behind, if they are as they were.
    fn beside(&self) -> Vec<u8> {
        [&self.bytes[..self.start], &self.bytes[self.start + self.length..]].concat()
    }
}

#[test]
fn any_step_has_the_same_bits_on_the_host_and_by_every_entry_point_of_every_image() {
    let (machine, isas) = (Machine::new(), tutti_kernels::isas!());
    for dtype in DType::ALL {
        for reduction in dtype.reductions() {
            let about = format!("{} {}", dtype.name(), reduction.name());
            for_any(
                "ptx",
                "any_step_has_the_same_bits_on_the_host_and_by_every_entry_point_of_every_image",
                &about,
                CASES,
                &any_case(),
                |case| {
                    let prepared = Prepared::new(&case, *dtype, reduction);
                    for isa in &isas {
                        prepared.on_the_host(*isa).map_err(|error| format!("{about} by {isa:?}: {error}"))?;
                    }
                    for (image, entry) in Slots::ALL.iter().flat_map(|slots| gpu::entries(*slots, *dtype, reduction)) {
                        prepared.on_a_gpu(&machine, image, &entry).map_err(|error| {
                            format!("{about} by {} of {}: {error}", entry.name(), image.file_name())
                        })?;
                    }
                    Ok(())
                },
            );
        }
    }
}

#[test]
fn any_copy_keeps_every_bit_by_the_kernels_that_only_copy() {
    let machine = Machine::new();
    for dtype in DType::ALL {
        for_any(
            "ptx",
            "any_copy_keeps_every_bit_by_the_kernels_that_only_copy",
            &dtype.name(),
            CASES,
            &any_case(),
            |mut case| {
                case.sources.truncate(1);
                case.is_finished = false;
                let prepared = Prepared::new(&case, *dtype, Reduction::Sum);
                for (image, entry) in Slots::ALL.iter().flat_map(|slots| gpu::copy_entries(*slots)) {
                    let about = || format!("{} by {} of {}", dtype.name(), entry.name(), image.file_name());
                    prepared.on_a_gpu(&machine, image, &entry).map_err(|error| format!("{}: {error}", about()))?;
                }
                Ok(())
            },
        );
    }
}
