//! Two ranks on two devices that exchange messages through slots of each format: the first sends its input and receives the
//! result, the second reduces and sends back.
//!
//! Messages go through few slots, and their numbers begin anywhere: the slots hold what earlier messages may have left there.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use softgpu::{Machine, Module};
use tutti::ptx::Image;
use tutti::{DType, Reduction};
use tutti_codegen::{Entry, Slots};
use tutti_kernels::layout::{buffer, launch_status, operand_kind};

use super::gpu::{self, Bench, Call, End, Loop, Operand, SlotFormat};
use super::number::{Format, Number};
use super::replay::{Random, for_any, mix};
use super::values::{bytes_of, compare, factor_bits, factors, numbers};

/// Exchanges of each element type, reduction and kind of slots.
const CASES: u32 = 2;

/// The messages of the flags of LL: they begin again after so many.
const LL_MESSAGES: u64 = 1 << 32;

/// An exchange.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    format: SlotFormat,
    count: usize,
    /// Elements of one message at most.
    chunk: u64,
    /// Messages without data, at the end.
    empty_messages: u64,
    /// Connections each way, all of which take every message.
    connections: usize,
    slot_count: u32,
    /// Messages that went through each connection before.
    moved: u64,
    /// The ranks' own sources, and the results that they keep: of each, its distance from an aligned address in elements.
    sources: [Vec<usize>; 2],
    results: [Vec<usize>; 2],
    is_marked: bool,
    is_finished: bool,
    warps: u32,
    salt: u64,
}

fn any_case(slots: Slots) -> impl Strategy<Value = Case> {
    let format = match slots {
        // A GPU's host places slots so that their data is aligned to 64 bytes. Where it is aligned to less, it takes longer.
        Slots::Simple => prop_oneof![
            3 => Just(SlotFormat::Simple(16)),
            1 => (0..4_u64).prop_map(|distance| SlotFormat::Simple(16 * distance))
        ]
        .boxed(),
        Slots::LowLatency => prop_oneof![Just(SlotFormat::Ll), Just(SlotFormat::Ll128)].boxed(),
    };
    let count = prop_oneof![1 => Just(0), 3 => 1..60_usize, 2 => 60..600_usize];
    let moved = prop_oneof![Just(0), Just(LL_MESSAGES - 3), Just(LL_MESSAGES / 2 - 2), 0..1_u64 << 50];
    let skews = |most: usize| vec(prop_oneof![Just(0), 0..9_usize], 1..=most);
    let traffic = (8..120_u64, 0..3_u64, 1..=2_usize, 0..3_u32, moved);
    let operands = (skews(3), skews(2), skews(2), skews(2), any::<bool>(), any::<bool>());
    (format, count, traffic, operands, 1..=8_u32, any::<u64>()).prop_map(
        |(format, count, traffic, operands, warps, salt)| {
            let (chunk, empty_messages, connections, slot_shift, moved) = traffic;
            Case {
                format,
                count,
                // Not so many messages that most of the time goes into them.
                chunk: chunk.max(count as u64 / 12),
                empty_messages,
                connections,
                slot_count: 1 << slot_shift,
                moved,
                sources: [operands.0, operands.1],
                results: [operands.2, operands.3],
                is_marked: operands.4,
                is_finished: operands.5,
                warps,
                salt,
            }
        },
    )
}

impl Case {
    /// One with nothing special about it.
    fn plain(format: SlotFormat, count: usize, chunk: u64) -> Case {
        Case {
            format,
            count,
            chunk,
            empty_messages: 0,
            connections: 1,
            slot_count: 2,
            moved: 0,
            sources: [vec![0], vec![0]],
            results: [vec![0], vec![0]],
            is_marked: false,
            is_finished: false,
            warps: 2,
            salt: 0,
        }
    }

    /// The same without anything to reduce: the second rank keeps what it receives, and sends it back.
    fn into_copy(self) -> Case {
        let first = self.sources[0][0];
        Case { connections: 1, sources: [vec![first], Vec::new()], is_marked: false, is_finished: false, ..self }
    }

    fn is_copy(&self) -> bool {
        self.sources[1].is_empty()
    }

    fn iterations(&self) -> u64 {
        ((self.count as u64).div_ceil(self.chunk) + self.empty_messages).max(1)
    }
}

/// Fills a connection's slots with what earlier messages may have left: any bytes, and the numbers of messages that are older by
/// less than [`LL_MESSAGES`] / 2, within which every slot is written to its end once.
fn leave_behind(bench: &Bench, case: &Case, slots: u64, bytes: u64) {
    let mut random = Random(case.salt ^ slots);
    let older = |random: &mut Random| {
        let oldest = case.moved.min(LL_MESSAGES / 2 - 8);
        case.moved - if oldest == 0 { 0 } else { random.next() % oldest }
    };
    // Of connections that are new, nothing.
    let mut words: Vec<u64> = (0..bytes / 8).map(|_| if case.moved == 0 { 0 } else { random.next() }).collect();
    let every = |first: usize, step: usize| (first..words.len()).step_by(step).collect::<Vec<_>>();
    if case.moved > 0 {
        match case.format {
            SlotFormat::Simple(_) => {
                for slot in every(5, case.format.stride_bytes(data_bytes(case)) as usize / 8) {
                    words[slot] = older(&mut random);
                }
            }
            SlotFormat::Ll => {
                for word in &mut words {
                    *word = *word & 0xffff_ffff | older(&mut random) << 32;
                }
            }
            SlotFormat::Ll128 => {
                for flag in every(15, 16) {
                    words[flag] = older(&mut random);
                }
            }
        }
    }
    bench.write(slots, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
}

/// Bytes of data that a slot has room for; some more than a message has.
fn data_bytes(case: &Case) -> u64 {
    case.chunk * 8 + 24 * (case.salt % 3)
}

/// Both ranks, laid out, and what must come of it.
struct Exchange<'a> {
    bench: &'a Bench<'a>,
    case: &'a Case,
    dtype: DType,
    launches: Vec<gpu::Launch>,
    /// Each rank's results: their addresses and distances.
    results: [Vec<(u64, usize)>; 2],
    /// What each rank's results must be, and whether as copies.
    expected: [(Vec<u64>, bool); 2],
    abort: u64,
    /// Of each of the connections, first those that the second rank receives from.
    slots: [Vec<u64>; 2],
    empties: [Vec<u64>; 2],
}

impl<'a> Exchange<'a> {
    /// `fingerprints` are what each rank says that it is doing.
    fn new(
        bench: &'a Bench<'a>,
        case: &'a Case,
        dtype: DType,
        reduction: Reduction,
        fingerprints: [[u64; 5]; 2],
    ) -> Exchange<'a> {
        let format = Format::of(dtype);
        let size = dtype.bytes();
        let bytes = (case.count * size) as u64;
        let abort = bench.words(&[0], 0);
        let stride_bytes = case.format.stride_bytes(data_bytes(case));
        let lead = if let SlotFormat::Simple(distance) = case.format { distance } else { 0 };
        let slot_bytes = stride_bytes * u64::from(case.slot_count);
        // Slots lie at the receiver, counters at the sender.
        let connect = |receiver: u32| {
            (0..case.connections)
                .map(|_| {
                    let slots = bench.allocate((lead + slot_bytes) as usize, receiver) + lead;
                    leave_behind(bench, case, slots, slot_bytes);
                    slots
                })
                .collect::<Vec<u64>>()
        };
        let slots = [connect(1), connect(0)];
        let empties = [0, 1].map(|sender| {
            (0..case.connections).map(|_| bench.words(&[case.moved, 0, 0, 0, 0, 0, 0, 0], sender)).collect::<Vec<u64>>()
        });
        let ends = |direction: usize| {
            let pairs = slots[direction].iter().zip(&empties[direction]);
            let end = |(slots, empty): (&u64, &u64)| End {
                slots: *slots,
                stride_bytes,
                slot_count: case.slot_count,
                empty: *empty,
                moved: case.moved,
            };
            pairs.map(end).collect::<Vec<End>>()
        };

        let step = factors(dtype, reduction, case.is_finished, mix(case.salt));
        let through = (0..case.connections).map(|end| Operand::new(operand_kind::SLOT, end as u32)).collect::<Vec<_>>();
        let mut values: Vec<Vec<Vec<Number>>> = Vec::new();
        let mut own: Vec<Vec<Operand>> = Vec::new();
        let mut kept: Vec<Vec<Operand>> = Vec::new();
        let mut results: [Vec<(u64, usize)>; 2] = Default::default();
        let mut inputs = [0; 2];
        for rank in 0..2 {
            let all: Vec<Vec<Number>> = (0..case.sources[rank].len())
                .map(|source| numbers(format, case.salt ^ mix((7 * rank + source) as u64), case.count))
                .collect();
            // All sources of a rank are parts of its input, all its results parts of a window of its own: the distances differ.
            let places = |skews: &[usize]| {
                let mut end = 0;
                let place = |skew: &usize| {
                    let start = (end as u64).next_multiple_of(64) + (skew * size) as u64;
                    end = start as usize + case.count * size;
                    start
                };
                let starts: Vec<u64> = skews.iter().map(place).collect();
                (starts, end)
            };
            let (starts, end) = places(&case.sources[rank]);
            inputs[rank] = bench.allocate(end, rank as u32);
            let mut operands = Vec::new();
            for (start, numbers) in starts.iter().zip(&all) {
                bench.write(inputs[rank] + start, &bytes_of(numbers));
                let operand = Operand::new(operand_kind::LOCAL, buffer::INPUT);
                operands.push(operand.at(*start).scaled(case.is_marked));
            }
            values.push(all);
            own.push(operands);
            let (starts, end) = places(&case.results[rank]);
            let base = bench.allocate(end, rank as u32);
            results[rank] = starts.iter().map(|start| (base, *start as usize)).collect();
            let result = |start: &u64| Operand::new(operand_kind::LOCAL, buffer::OUTPUT).at(*start);
            kept.push(starts.iter().map(result).collect());
        }

        let flags = gpu::finish_flag(case.is_finished);
        let looped = |steps: Vec<gpu::Step>| {
            let chunk_bytes = (case.chunk * size as u64) as u32;
            vec![vec![Loop { iterations: case.iterations(), chunk_bytes, steps }]]
        };
        let laid_step = |sources: &[&[Operand]], destinations: &[&[Operand]], flags: u32| gpu::Step {
            bytes,
            sources: sources.concat(),
            destinations: destinations.concat(),
            flags,
        };
        let programs = [
            looped(vec![laid_step(&[&own[0]], &[&through], 0), laid_step(&[&through], &[&kept[0]], 0)]),
            looped(vec![laid_step(&[&through, &own[1]], &[&kept[1], &through], flags)]),
        ];
        let launches = programs.into_iter().enumerate().map(|(rank, programs)| {
            let call = Call {
                device: rank as u32,
                fingerprint: fingerprints[rank],
                buffers: [inputs[rank], results[rank][0].0, 0],
                sends: ends(rank),
                receives: ends(1 - rank),
                abort,
                scale: factor_bits(dtype, step.scale),
                finish: step.finish.map_or(0, |finish| factor_bits(dtype, finish)),
                slot_format: case.format.code(),
                programs,
                ..Call::default()
            };
            call.lay_out(bench)
        });
        let launches = launches.collect();

        let unfinished = super::oracle::Step { finish: None, ..step };
        let (mut second, mut first) = (Vec::new(), Vec::new());
        let is_copy = case.is_copy();
        let marks = |rank: usize, received: usize| {
            let mut marks = vec![false; received];
            marks.resize(received + case.sources[rank].len(), case.is_marked);
            marks
        };
        let element = |rank: usize, index: usize| values[rank].iter().map(move |source| source[index]);
        for index in 0..case.count {
            let sent = unfinished.bits(&element(0, index).collect::<Vec<_>>(), &marks(0, 0));
            let mut elements = vec![format.number(sent); case.connections];
            elements.extend(element(1, index));
            let reduced = step.bits(&elements, &marks(1, case.connections));
            second.push(reduced);
            let received = vec![format.number(reduced); case.connections];
            first.push(unfinished.bits(&received, &vec![false; case.connections]));
        }
        Exchange {
            bench,
            case,
            dtype,
            launches,
            results,
            expected: [(first, is_copy), (second, is_copy)],
            abort,
            slots,
            empties,
        }
    }

    /// Runs both ranks to their ends; the error is what the GPU reports, or what is wrong with the results.
    fn run(&self, module: &Arc<Module>, entry: &Entry) -> Result<(), String> {
        let begin = |launch: &gpu::Launch| launch.begin(self.bench, module, entry, 32 * self.case.warps);
        // Whoever still waits for a rank that has given up is told so.
        let ended = |rank: usize| {
            if self.launches[rank].status(self.bench) != launch_status::GOOD {
                self.raise_abort();
            }
        };
        gpu::all(self.launches.iter().map(begin).collect(), ended).map_err(|error| error.to_string())?;
        for rank in 0..2 {
            let launch = &self.launches[rank];
            let status = launch.status(self.bench);
            let moved = self.case.moved + self.case.iterations();
            for end in 0..self.case.connections {
                let ends = [true, false].map(|sends| launch.moved(self.bench, sends, end));
                let empty = self.bench.word(self.empties[rank][end]);
                if (status, ends, empty) != (launch_status::GOOD, [moved; 2], moved) {
                    return Err(format!("rank {rank}: status {status}, {ends:?} and {empty} of {moved} messages"));
                }
            }
            self.check(rank)?;
        }
        Ok(())
    }

    fn check(&self, rank: usize) -> Result<(), String> {
        let format = Format::of(self.dtype);
        let (expected, is_copy) = &self.expected[rank];
        for (index, (base, start)) in self.results[rank].iter().enumerate() {
            let came = self.bench.read(base + *start as u64, self.case.count * self.dtype.bytes());
            compare(format, &came, expected, *is_copy, &format!("rank {rank}, result {index}"))?;
        }
        Ok(())
    }
}

/// Both ranks make the same call.
const AGREED: [[u64; 5]; 2] = [[7, 8, 9, 10, 11]; 2];

#[test]
fn any_exchange_is_right_and_free_of_races_through_slots_of_every_format() {
    let machine = Machine::new();
    for dtype in DType::ALL {
        for reduction in dtype.reductions() {
            for slots in Slots::ALL {
                let about = format!("{} {} {slots:?}", dtype.name(), reduction.name());
                for_any(
                    "ptx",
                    "any_exchange_is_right_and_free_of_races_through_slots_of_every_format",
                    &about,
                    CASES,
                    &any_case(*slots),
                    |case| {
                        for (image, entry) in gpu::entries(*slots, *dtype, reduction) {
                            let bench = Bench::new(&machine);
                            Exchange::new(&bench, &case, *dtype, reduction, AGREED)
                                .run(&gpu::module(image), &entry)
                                .map_err(|error| {
                                    format!("{about} by {} of {}: {error}", entry.name(), image.file_name())
                                })?;
                        }
                        Ok(())
                    },
                );
            }
        }
    }
}

#[test]
fn any_message_that_is_only_passed_on_keeps_every_bit_through_slots_of_every_format() {
    let machine = Machine::new();
    for slots in Slots::ALL {
        for_any(
            "ptx",
            "any_message_that_is_only_passed_on_keeps_every_bit_through_slots_of_every_format",
            &format!("{slots:?}"),
            8 * CASES,
            &(any_case(*slots), any::<prop::sample::Index>()),
            |(case, dtype)| {
                let (case, dtype) = (case.into_copy(), *dtype.get(DType::ALL));
                for (image, entry) in gpu::copy_entries(*slots) {
                    let bench = Bench::new(&machine);
                    Exchange::new(&bench, &case, dtype, Reduction::Sum, AGREED)
                        .run(&gpu::module(image), &entry)
                        .map_err(|error| format!("{dtype} by {} of {}: {error}", entry.name(), image.file_name()))?;
                }
                Ok(())
            },
        );
    }
}

/// Each image for low latency with one of its entry points and a type that this serves.
fn low_latency() -> impl Iterator<Item = (&'static Image, Entry, DType, Reduction)> {
    let images = super::images().iter().filter(|image| image.slots() == Slots::LowLatency && !only_copies(image));
    images.map(|image| {
        let entry = image.entries()[0];
        let (dtype, reduction) = types(&entry);
        (image, entry, dtype, reduction)
    })
}

/// Whether an image is of the kernels that reduce nothing.
fn only_copies(image: &Image) -> bool {
    image.dtype() == tutti_codegen::BYTES.name
}

/// What an entry point is named for, as the library has it.
fn types(entry: &Entry) -> (DType, Reduction) {
    let dtype = DType::ALL.iter().find(|dtype| dtype.name() == entry.dtype.name).expect("the library has the type");
    let reduction = dtype.reductions().find(|reduction| reduction.name() == entry.reduction.name);
    (*dtype, reduction.expect("the type offers the reduction"))
}

/// What the memory for results holds before.
const BEFORE: u8 = 0x5a;

impl Exchange<'_> {
    /// Begins one rank alone.
    fn begin(&self, rank: usize, module: &Arc<Module>, entry: &Entry) -> softgpu::Running {
        self.launches[rank].begin(self.bench, module, entry, 32 * self.case.warps)
    }

    /// Where the first message to the second rank belongs.
    fn first_slot(&self) -> u64 {
        let stride_bytes = self.case.format.stride_bytes(data_bytes(self.case));
        self.slots[0][0] + (self.case.moved & u64::from(self.case.slot_count - 1)) * stride_bytes
    }

    /// Puts the fingerprint of that message there, without its data.
    fn plant_header(&self, fingerprint: &[u64; 5]) {
        let lines = self.case.format.lines(&gpu::as_posted(*fingerprint), self.case.moved + 1);
        let mut header = self.bench.read(self.first_slot(), self.case.format.header_bytes() as usize);
        for (word, line) in header.chunks_exact_mut(8).zip(lines) {
            word.copy_from_slice(&line.to_le_bytes());
        }
        self.bench.write(self.first_slot(), &header);
    }

    fn raise_abort(&self) {
        self.bench.machine.store_release(self.abort, 4, 1).expect("the word is there");
    }

    fn fill_results(&self) {
        for (base, start) in self.results.iter().flatten() {
            self.bench.write(base + *start as u64, &vec![BEFORE; self.case.count * self.dtype.bytes()]);
        }
    }

    /// Whether a rank has written no result, and moved no message.
    fn is_untouched(&self, rank: usize) -> bool {
        let bytes = self.case.count * self.dtype.bytes();
        let result = |(base, start): &(u64, usize)| self.bench.read(base + *start as u64, bytes);
        let moved = [true, false].map(|sends| self.launches[rank].moved(self.bench, sends, 0));
        self.results[rank].iter().all(|each| result(each).iter().all(|byte| *byte == BEFORE))
            && moved == [self.case.moved; 2]
            && self.bench.word(self.empties[1 - rank][0]) == self.case.moved
    }
}

/// Long enough for a kernel to come to where it waits.
fn wait_a_little() {
    std::thread::sleep(std::time::Duration::from_millis(10));
}

/// The three formats.
const FORMATS: [SlotFormat; 3] = [SlotFormat::Simple(16), SlotFormat::Ll, SlotFormat::Ll128];

#[test]
fn a_message_of_another_call_is_a_mismatch_and_none_of_its_data_is_used() {
    let machine = Machine::new();
    for (index, image) in super::images().iter().enumerate().filter(|(_, image)| !only_copies(image)) {
        let entry = image.entries()[index % image.entries().len()];
        let (dtype, reduction) = types(&entry);
        for format in FORMATS.into_iter().filter(|format| format.slots() == image.slots()) {
            let bench = Bench::new(&machine);
            let case = Case::plain(format, 100, 40);
            let mut fingerprints = AGREED;
            fingerprints[1][index % 5] ^= 1 << (index % 64);
            let exchange = Exchange::new(&bench, &case, dtype, reduction, fingerprints);
            exchange.fill_results();
            let what = format!("{} of {}, {format:?}", entry.name(), image.file_name());
            let [first, second] = [0, 1].map(|rank| exchange.begin(rank, &gpu::module(image), &entry));
            second.wait().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(exchange.launches[1].status(&bench), launch_status::MISMATCH, "{what}");
            // The first one waits for an answer that never comes.
            exchange.raise_abort();
            first.wait().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(exchange.launches[0].status(&bench), launch_status::ABORTED, "{what}");
            assert!(exchange.is_untouched(1), "{what}: the second rank used what it received");
        }
    }
}

#[test]
fn an_abort_ends_a_rank_that_waits_for_data_inside_a_step() {
    let machine = Machine::new();
    for (image, entry, dtype, reduction) in low_latency() {
        for format in [SlotFormat::Ll, SlotFormat::Ll128] {
            let bench = Bench::new(&machine);
            let case = Case::plain(format, 100, 40);
            let exchange = Exchange::new(&bench, &case, dtype, reduction, AGREED);
            exchange.fill_results();
            exchange.plant_header(&AGREED[0]);
            let running = exchange.begin(1, &gpu::module(image), &entry);
            wait_a_little();
            let what = format!("{} of {}, {format:?}", entry.name(), image.file_name());
            assert!(!running.is_finished(), "{what}: it did not wait for the data");
            exchange.raise_abort();
            running.wait().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(exchange.launches[1].status(&bench), launch_status::ABORTED, "{what}");
            assert!(exchange.is_untouched(1), "{what}: it moved messages, or made results of nothing");
        }
    }
}

/// Old lines lie where only long messages come, and look like those of a message that is due: of one with the same number modulo
/// 2^32. The short messages that come first write their slots to the end, so none of the old ones is left by then.
#[test]
fn lines_of_a_much_older_message_are_gone_before_they_could_be_taken_for_new_ones() {
    const DUE: u64 = LL_MESSAGES + 5;
    let machine = Machine::new();
    for (image, entry, dtype, reduction) in low_latency() {
        let what = format!("{} of {}", entry.name(), image.file_name());
        let module = gpu::module(image);
        let old_line = 0x3c00 | DUE << 32;
        let bench = Bench::new(&machine);
        let short =
            Case { moved: LL_MESSAGES - 2, empty_messages: DUE - LL_MESSAGES, ..Case::plain(SlotFormat::Ll, 1, 64) };
        let first = Exchange::new(&bench, &short, dtype, reduction, AGREED);
        let bytes = SlotFormat::Ll.stride_bytes(data_bytes(&short)) as usize * short.slot_count as usize;
        let old_lines = old_line.to_le_bytes().repeat(bytes / 8);
        for slots in &first.slots {
            bench.write(slots[0], &old_lines);
        }
        first.run(&module, &entry).unwrap_or_else(|error| panic!("{what}: {error}"));

        // Now the message is due that they look like, and long.
        let long = Case { moved: DUE - 1, ..Case::plain(SlotFormat::Ll, 64, 64) };
        for is_protected in [true, false] {
            let second = Exchange::new(&bench, &long, dtype, reduction, AGREED);
            second.fill_results();
            let left = if is_protected { bench.read(first.slots[0][0], bytes) } else { old_lines.clone() };
            bench.write(second.slots[0][0], &left);
            second.plant_header(&AGREED[0]);
            let running = second.begin(1, &module, &entry);
            if is_protected {
                wait_a_little();
                assert!(!running.is_finished(), "{what}: it took old lines for new ones");
                second.raise_abort();
            }
            running.wait().unwrap_or_else(|error| panic!("{what}: {error}"));
            let expected = if is_protected { launch_status::ABORTED } else { launch_status::GOOD };
            assert_eq!(second.launches[1].status(&bench), expected, "{what}: with old lines, it should have gone on");
        }
    }
}

/// The text with each store of a pair of words replaced by what `replace` makes of the address, the first and the second word.
fn with_other_stores(text: &str, replace: impl Fn(&str, &str, &str) -> String) -> String {
    let mut replaced = 0;
    let lines = text.lines().map(|line| {
        let Some(rest) = line.strip_prefix("\tst.relaxed.sys.global.v2.b64 [") else { return line.to_owned() };
        let mut words = rest.split(['[', ']', '{', '}', ',', ';', ' ']).filter(|word| !word.is_empty());
        let [address, low, high] = [(); 3].map(|()| words.next().expect("an address and two words"));
        assert!(!address.contains('+'), "{line}");
        replaced += 1;
        replace(address, low, high)
    });
    let text = lines.collect::<Vec<String>>().join("\n");
    assert!(replaced > 0, "there is no such store");
    text
}

#[test]
fn a_line_of_ll128_that_is_not_stored_whole_is_noticed_and_ll_needs_only_whole_words() {
    let machine = Machine::new();
    for (image, entry, dtype, reduction) in low_latency() {
        // The second words come first, the flag of each line among them; the first words take their time.
        let torn = with_other_stores(image.text(), |address, low, high| {
            format!(
                "\tst.relaxed.sys.global.b64 [{address}+8], {high};\n\tnanosleep.u32 200000;\n\
                 \tst.relaxed.sys.global.b64 [{address}], {low};"
            )
        });
        let torn = gpu::parsed(image, &torn);
        let run = |format: SlotFormat| {
            let bench = Bench::new(&machine);
            let case = Case::plain(format, 100, 40);
            Exchange::new(&bench, &case, dtype, reduction, AGREED).run(&torn, &entry)
        };
        let what = format!("{} of {}", entry.name(), image.file_name());
        run(SlotFormat::Ll).unwrap_or_else(|error| panic!("{what}: {error}"));
        // Whether the other side looks in between is chance, though a good one.
        let report = (0..30).find_map(|_| run(SlotFormat::Ll128).err());
        let report = report.unwrap_or_else(|| panic!("{what}: nobody noticed"));
        assert!(report.contains("status") || report.contains("element"), "{what}: {report}");
    }
}

#[test]
fn a_word_of_ll_whose_flag_is_stored_before_its_data_is_reported_as_a_race() {
    let machine = Machine::new();
    for (image, entry, dtype, reduction) in low_latency() {
        let torn = with_other_stores(image.text(), |address, low, high| {
            format!(
                "\t{{ .reg .b32 data; .reg .b32 flag;\n\
                 \tmov.b64 {{data, flag}}, {low};\n\tst.relaxed.sys.global.b32 [{address}+4], flag;\n\
                 \tst.relaxed.sys.global.b32 [{address}], data;\n\
                 \tmov.b64 {{data, flag}}, {high};\n\tst.relaxed.sys.global.b32 [{address}+12], flag;\n\
                 \tst.relaxed.sys.global.b32 [{address}+8], data; }}"
            )
        });
        let bench = Bench::new(&machine);
        let case = Case::plain(SlotFormat::Ll, 100, 40);
        let exchange = Exchange::new(&bench, &case, dtype, reduction, AGREED);
        let report = exchange.run(&gpu::parsed(image, &torn), &entry).expect_err(image.file_name().as_str());
        assert!(report.contains("data race"), "{} of {}: {report}", entry.name(), image.file_name());
    }
}

#[test]
fn a_kernel_that_does_not_look_at_the_flags_of_ll_takes_data_that_is_not_there() {
    let machine = Machine::new();
    for (image, entry, dtype, reduction) in low_latency() {
        // Where a flag has been taken out of a word, it is compared with itself.
        let (mut flags, mut changed) = (Vec::new(), 0);
        let lines = image.text().lines().map(|line| {
            if line.contains(".entry ") {
                // From here on the names are another kernel's.
                flags.clear();
            }
            if let Some(flag) = line.trim().strip_prefix("{ .reg .b32 tmp; mov.b64 {tmp, ") {
                flags.push(flag.split('}').next().unwrap_or_default());
            }
            let words: Vec<&str> = line.trim().trim_end_matches(';').split([' ', '\t', ',']).collect();
            let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
            match words[..] {
                [compare @ ("setp.ne.b32" | "setp.eq.b32"), result, left, right] => {
                    let Some(flag) = [left, right].into_iter().find(|word| flags.contains(word)) else {
                        return line.to_owned();
                    };
                    changed += 1;
                    format!("\t{compare} {result}, {flag}, {flag};")
                }
                _ => line.to_owned(),
            }
        });
        let blind = lines.collect::<Vec<String>>().join("\n");
        assert!(changed > 0, "{}: there is no such comparison", image.file_name());
        let bench = Bench::new(&machine);
        let case = Case::plain(SlotFormat::Ll, 40, 40);
        let exchange = Exchange::new(&bench, &case, dtype, reduction, AGREED);
        exchange.plant_header(&AGREED[0]);
        let what = format!("{} of {}", entry.name(), image.file_name());
        exchange.begin(1, &gpu::parsed(image, &blind), &entry).wait().unwrap_or_else(|error| panic!("{what}: {error}"));
        let report = exchange.check(1).expect_err(&what);
        assert!(report.contains("element"), "{what}: {report}");
    }
}

#[test]
fn a_flag_without_its_release_is_reported_as_a_race() {
    let machine = Machine::new();
    for image in super::images().iter().filter(|image| image.slots() == Slots::Simple && !only_copies(image)) {
        let weakened = image.text().replace("st.release.sys.global.u64", "st.relaxed.sys.global.u64");
        assert_ne!(weakened, image.text(), "{} publishes nothing", image.file_name());
        let entry = image.entries()[0];
        let (dtype, reduction) = types(&entry);
        let bench = Bench::new(&machine);
        let case = Case::plain(SlotFormat::Simple(16), 100, 40);
        let exchange = Exchange::new(&bench, &case, dtype, reduction, AGREED);
        let report = exchange.run(&gpu::parsed(image, &weakened), &entry);
        let report = report.expect_err("the data is not ordered before its flag");
        assert!(report.contains("race"), "{}: {report}", image.file_name());
    }
}
