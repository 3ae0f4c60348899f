//! Pairs of numbers, exhaustively: of 8 bits every one with every one, of 16 bits every one with a spread of others. On the host
//! with each instruction set and on a GPU in software with every image, against the oracle.
//!
//! Races are not looked for here; that costs most of the time, and the other tests do it.

use softgpu::{LaunchOptions, Machine};
use tutti::{DType, Reduction};
use tutti_codegen::Slots;
use tutti_kernels::interpreter::{Kernel, StepOperands};
use tutti_kernels::layout::{self, launch_status, operand_flag, operand_kind, slot_format};
use tutti_kernels::table;

use super::gpu::{self, Bench, Call, Loop, Operand};
use super::number::{Format, Number};
use super::oracle::{Factor, Step};
use super::replay::Random;
use super::steps::HostBuffer;
use super::values::{borders, bytes_of, compare, factor_bits};

/// Numbers of 16 bits that each meet all others.
const SPREAD: usize = 64;

/// Blocks of each launch, and threads of each.
const BLOCKS: u64 = 4;
const THREADS: u32 = 256;

/// All numbers of 8 bits; of 16 bits those at the borders of the format, those that make ties with one and with each other and
/// their neighbours, those whose products just leave the range, and for the rest any.
fn spread(format: &'static Format) -> Vec<u64> {
    if format.sign_bit == 0x80 {
        return (0..0x100).collect();
    }
    let mut spread = borders(format);
    let half = format.exact(2.0_f64.powi(-format.precision)).bits();
    let root = format.nearest(format.largest().sqrt()).bits();
    let small_root = format.nearest(format.smallest().sqrt()).bits();
    for middle in
        [half, root, small_root, format.nearest(1.0 / 3.0).bits(), format.largest_bits - (1 << (format.precision - 1))]
    {
        spread.extend([middle - 1, middle, middle + 1]);
    }
    let negative: Vec<u64> = spread.iter().map(|bits| bits | format.sign_bit).collect();
    spread.extend(negative);
    let mut random = Random(format.largest_bits);
    spread.resize_with(SPREAD, || random.next() & 0xffff);
    spread
}

/// What an average of three ranks, or a scaled sum, is calculated with.
fn step(reduction: Reduction) -> Step {
    let (scale, finish) = match reduction {
        Reduction::Avg => (0.25, Some(Factor::Float(f64::from(4.0_f32 / 3.0)))),
        _ => (0.75, None),
    };
    Step { reduction, scale: Factor::Float(scale), finish }
}

/// Runs every pair through every kernel of one type and all its reductions.
fn sweep(dtype: DType) {
    let format = Format::of(dtype);
    let every = format.sign_bit * 2;
    let pairs = || spread(format).into_iter().flat_map(move |right| (0..every).map(move |left| [left, right]));
    let operands: Vec<Vec<Number>> = [0, 1].map(|side| pairs().map(|pair| format.number(pair[side])).collect()).into();
    let mut buffers: Vec<HostBuffer> =
        operands.iter().map(|numbers| HostBuffer::holding(&bytes_of(numbers), 0)).collect();
    let bytes = buffers[0].data().len();
    buffers.push(HostBuffer::holding(&vec![0; bytes], 0));
    let addresses: Vec<*mut u8> = buffers.iter_mut().map(HostBuffer::as_mut_ptr).collect();

    let machine = Machine::new();
    for address in &addresses {
        // SAFETY: the buffers outlive the machine's use of them: they are taken back below, when no launch is running any more.
        unsafe { machine.register(*address, bytes as u64) }.expect("nobody has registered it");
    }
    let isas = tutti_kernels::isas!();
    for reduction in dtype.reductions() {
        let step = step(reduction);
        let expected: Vec<u64> =
            operands[0].iter().zip(&operands[1]).map(|(left, right)| step.bits(&[*left, *right], &[true; 2])).collect();
        let mut check = |what: &str| {
            let buffer = &mut buffers[2];
            compare(format, buffer.data(), &expected, false, what).unwrap_or_else(|error| {
                let index: usize =
                    error.split([' ', ':']).filter_map(|word| word.parse().ok()).next_back().unwrap_or(0);
                panic!("{error} (element {index} is {:x?})", pairs().nth(index))
            });
            // Whoever comes next starts from nothing.
            // SAFETY: so many bytes, which nobody uses now.
            unsafe { addresses[2].write_bytes(0, bytes) };
        };
        let marked =
            [layout::Operand { kind: operand_kind::LOCAL, flags: operand_flag::SCALE, index: 0, buffer: 0, offset: 0 };
                3];
        let scale = factor_bits(dtype, step.scale);
        let finish = step.finish.map_or(0, |finish| factor_bits(dtype, finish));
        let flags = gpu::finish_flag(step.finish.is_some());
        for isa in &isas {
            let step_operands = StepOperands {
                addresses: addresses.as_ptr(),
                operands: marked.as_ptr(),
                source_count: 2,
                destination_count: 1,
                flags,
                scale,
                finish,
            };
            // SAFETY: the processor has the instruction set, as its list says; each address is valid for so many bytes, aligned,
            // and nobody else uses the buffers.
            unsafe {
                let row = table::row(dtype as usize, reduction as usize, *isa).expect("the type offers the reduction");
                row.reduce_copy(&step_operands, bytes);
            }
            check(&format!("{} {} by {isa:?}", dtype.name(), reduction.name()));
        }

        let section = bytes as u64 / BLOCKS;
        let program = |index: u64| {
            let window = |operand: u32| Operand::new(operand_kind::WINDOW, operand).at(index * section).scaled(true);
            let step =
                gpu::Step { bytes: section, sources: vec![window(0), window(1)], destinations: vec![window(2)], flags };
            vec![Loop { iterations: 1, chunk_bytes: section as u32, steps: vec![step] }]
        };
        for (image, entry) in Slots::ALL.iter().flat_map(|slots| gpu::entries(*slots, dtype, reduction)) {
            let bench = Bench::new(&machine);
            let is_simple = image.slots() == Slots::Simple;
            let launch = Call {
                windows: addresses.iter().map(|address| [address.addr() as u64, 0, 0]).collect(),
                abort: bench.words(&[0], 0),
                scale,
                finish,
                slot_format: if is_simple { slot_format::SIMPLE } else { slot_format::LL128 },
                programs: (0..BLOCKS).map(program).collect(),
                ..Call::default()
            }
            .lay_out(&bench);
            let options = LaunchOptions { races: false, ..LaunchOptions::default() };
            let what = format!("{} of {}", entry.name(), image.file_name());
            launch
                .begin_with(&bench, &gpu::module(image), &entry, THREADS, options)
                .wait()
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(launch.status(&bench), launch_status::GOOD, "{what}");
            check(&what);
        }
    }
    for address in &addresses {
        machine.free(address.addr() as u64).expect("it was registered");
    }
}

#[test]
fn every_pair_of_f8e4m3_has_the_same_bits_on_the_host_and_by_every_image() {
    sweep(DType::F8E4M3);
}

#[test]
fn every_pair_of_f8e5m2_has_the_same_bits_on_the_host_and_by_every_image() {
    sweep(DType::F8E5M2);
}

#[test]
fn every_f16_with_a_spread_of_others_has_the_same_bits_on_the_host_and_by_every_image() {
    sweep(DType::F16);
}

#[test]
fn every_bf16_with_a_spread_of_others_has_the_same_bits_on_the_host_and_by_every_image() {
    sweep(DType::BF16);
}

#[test]
fn the_spread_holds_every_class_of_number() {
    for dtype in [DType::F16, DType::BF16] {
        let format = Format::of(dtype);
        let numbers: Vec<Number> = spread(format).into_iter().map(|bits| format.number(bits)).collect();
        let has = |what: &dyn Fn(f64) -> bool| numbers.iter().filter(|number| what(number.value())).count() >= 2;
        assert!(numbers.len() >= SPREAD, "{dtype}");
        assert!(has(&|value| value == 0.0) && has(&f64::is_nan) && has(&f64::is_infinite), "{dtype}");
        assert!(
            has(&|value| value.abs() == format.largest()) && has(&|value| value.abs() == format.smallest()),
            "{dtype}"
        );
        assert!(has(&|value| value != 0.0 && value.abs() < format.smallest_normal()), "{dtype}");
    }
}
