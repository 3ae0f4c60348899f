//! The fused copy-and-reduce, called directly: every element type, reduction, number of operands, length near a pack, alignment
//! and instruction set, against one element at a time.

use tutti_kernels::element::{Bf16, Element, F16, F32};
use tutti_kernels::interpreter::{Kernel, StepOperands};
use tutti_kernels::isas;
use tutti_kernels::layout::{Operand, operand_flag, operand_kind, step_flag};
use tutti_kernels::reduction::{Avg, Max, Min, Prod, Reduction, Sum};
use tutti_kernels::table::{Isa, row};
use tutti_kernels::target::PACK_BYTES;

/// Bytes around every destination that must stay as they are.
const GUARD_BYTES: usize = 64;

/// The operands of one copy-and-reduce, as a plan would give them.
struct Case {
    /// Addresses, and the scale of those that have one: the same for all.
    sources: Vec<(*const u8, Option<f32>)>,
    destinations: Vec<*mut u8>,
    finish: Option<f32>,
    /// How: bits of [`step_flag`].
    way: u32,
}

/// Runs the row of the table for `E` and `R`.
///
/// # Safety
/// The buffers are `bytes` long, aligned to the element, and apart, but for a destination that is a source; the machine has
/// `isa`.
unsafe fn reduce_copy<E: Bits, R: Plain>(isa: Isa, case: &Case, bytes: usize) {
    let sources = case.sources.iter().map(|(address, _)| address.cast_mut());
    let addresses: Vec<*mut u8> = sources.chain(case.destinations.iter().copied()).collect();
    let flags = |scale: &Option<f32>| if scale.is_some() { operand_flag::SCALE } else { 0 };
    let operands: Vec<Operand> = case
        .sources
        .iter()
        .map(|(_, scale)| Operand { kind: operand_kind::LOCAL, flags: flags(scale), index: 0, buffer: 0, offset: 0 })
        .collect();
    let operands = StepOperands {
        addresses: addresses.as_ptr(),
        operands: operands.as_ptr(),
        source_count: case.sources.len() as u32,
        destination_count: case.destinations.len() as u32,
        scale: case.sources.iter().find_map(|(_, scale)| *scale).unwrap_or(1.0).to_bits().into(),
        flags: if case.finish.is_some() { step_flag::FINISH } else { 0 } | case.way,
        finish: case.finish.map_or(0, |finish| finish.to_bits().into()),
    };
    // SAFETY: passed on from the caller.
    unsafe { row(E::INDEX, R::INDEX, isa).expect("the table has the row").reduce_copy(&operands, bytes) }
}

/// One element's bits, in the low bits of a word.
trait Bits: Element {
    /// Its place in the table.
    const INDEX: usize;
    fn read(bytes: &[u8]) -> u32;
    fn write(bits: u32) -> Vec<u8>;
    fn number(bits: u32) -> f32;
    fn nearest(number: f32) -> u32;
}

impl Bits for F32 {
    const INDEX: usize = 0;

    fn read(bytes: &[u8]) -> u32 {
        u32::from_ne_bytes(bytes.try_into().unwrap())
    }

    fn write(bits: u32) -> Vec<u8> {
        bits.to_ne_bytes().to_vec()
    }

    fn number(bits: u32) -> f32 {
        f32::from_bits(bits)
    }

    fn nearest(number: f32) -> u32 {
        number.to_bits()
    }
}

macro_rules! sixteen_bits {
    ($element:ty, $index:literal, $half:ty) => {
        impl Bits for $element {
            const INDEX: usize = $index;

            fn read(bytes: &[u8]) -> u32 {
                u32::from(u16::from_ne_bytes(bytes.try_into().unwrap()))
            }

            fn write(bits: u32) -> Vec<u8> {
                (bits as u16).to_ne_bytes().to_vec()
            }

            fn number(bits: u32) -> f32 {
                <$half>::from_bits(bits as u16).to_f32()
            }

            fn nearest(number: f32) -> u32 {
                u32::from(<$half>::from_f32(number).to_bits())
            }
        }
    };
}
sixteen_bits!(F16, 2, half::f16);
sixteen_bits!(Bf16, 3, half::bf16);

/// What a reduction does to two numbers, spelled out.
trait Plain: Reduction<f32> {
    /// Its place in the table.
    const INDEX: usize;
    fn plain(left: f32, right: f32) -> f32;
}

impl Plain for Sum {
    const INDEX: usize = 0;

    fn plain(left: f32, right: f32) -> f32 {
        left + right
    }
}

impl Plain for Avg {
    const INDEX: usize = 4;

    fn plain(left: f32, right: f32) -> f32 {
        left + right
    }
}

impl Plain for Prod {
    const INDEX: usize = 1;

    fn plain(left: f32, right: f32) -> f32 {
        left * right
    }
}

impl Plain for Min {
    const INDEX: usize = 2;

    fn plain(left: f32, right: f32) -> f32 {
        if left.is_nan() || right.is_nan() {
            f32::NAN
        } else if left.total_cmp(&right).is_le() {
            left
        } else {
            right
        }
    }
}

impl Plain for Max {
    const INDEX: usize = 3;

    fn plain(left: f32, right: f32) -> f32 {
        if left.is_nan() || right.is_nan() {
            f32::NAN
        } else if left.total_cmp(&right).is_ge() {
            left
        } else {
            right
        }
    }
}

fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Memory at a chosen distance from an aligned address, with guards.
struct Memory {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Memory {
    fn new(length: usize, misalignment: usize) -> Memory {
        let bytes: Vec<u8> = (0..length + 4 * GUARD_BYTES).map(|place| mix(place as u64) as u8).collect();
        let start = GUARD_BYTES + bytes[GUARD_BYTES..].as_ptr().align_offset(64) + misalignment;
        Memory { bytes, start, length }
    }

    fn data(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }

    fn check_guards(&self) {
        for (place, byte) in self.bytes.iter().enumerate() {
            let inside = (self.start..self.start + self.length).contains(&place);
            assert!(inside || *byte == mix(place as u64) as u8, "byte {place} beside {} was written", self.start);
        }
    }
}

/// The element `index` of source `source`: mostly ordinary numbers, and every so often any bits at all.
fn source_bits<E: Bits>(source: usize, index: usize) -> u32 {
    let random = mix(mix(source as u64 + 1) ^ index as u64);
    if random.is_multiple_of(5) {
        return (random >> 32) as u32 & if E::BYTES == 4 { u32::MAX } else { 0xffff };
    }
    E::nearest(((random >> 20) % 4096) as f32 / 256.0 - 8.0)
}

/// What must come out for one element: the bits, or any NaN.
fn expected<E: Bits, R: Plain>(case: &Case, bits: &[u32]) -> Option<u32> {
    if bits.len() == 1 && !(R::SCALES && (case.sources[0].1.is_some() || case.finish.is_some())) {
        return Some(bits[0]);
    }
    let factor = |factor: Option<f32>| if R::SCALES { factor.unwrap_or(1.0) } else { 1.0 };
    let numbers = bits.iter().zip(&case.sources).map(|(bits, source)| E::number(*bits) * factor(source.1));
    let sum = numbers.reduce(R::plain).unwrap();
    let mut result = sum * factor(case.finish);
    let largest = E::number(E::nearest(f32::INFINITY) - 1);
    if R::SCALES && sum.is_finite() {
        result = result.clamp(-largest, largest);
    }
    if result.is_nan() { None } else { Some(E::nearest(result)) }
}

/// Runs one case on every instruction set and checks the result of each, which must be the same bits.
fn check<E: Bits, R: Plain>(
    source_count: usize,
    destination_count: usize,
    count: usize,
    misalignment: usize,
    scales: bool,
) {
    let bytes = count * E::BYTES;
    let bits: Vec<Vec<u32>> =
        (0..source_count).map(|source| (0..count).map(|index| source_bits::<E>(source, index)).collect()).collect();
    let mut sources: Vec<Memory> = bits
        .iter()
        .enumerate()
        .map(|(source, bits)| {
            let mut memory = Memory::new(bytes, (misalignment + source * 3) % 16 * E::BYTES);
            let data: Vec<u8> = bits.iter().flat_map(|bits| E::write(*bits)).collect();
            memory.data().copy_from_slice(&data);
            memory
        })
        .collect();
    let before: Vec<Vec<u8>> = sources.iter().map(|source| source.bytes.clone()).collect();
    let what = format!("{source_count} to {destination_count}, {count} elements, {misalignment} off, scales {scales}");
    let mut first = None;
    let ways = [0, step_flag::BACKWARDS, step_flag::STREAMS, step_flag::BACKWARDS | step_flag::STREAMS];
    for (isa, way) in isas!().into_iter().flat_map(|isa| ways.map(|way| (isa, way))) {
        let mut destinations: Vec<Memory> =
            (0..destination_count).map(|nth| Memory::new(bytes, (misalignment * 5 + nth) % 16 * E::BYTES)).collect();
        let case = Case {
            // The first source is a partial sum: it has been scaled before.
            sources: sources
                .iter_mut()
                .enumerate()
                .map(|(nth, source)| {
                    (source.data().as_ptr(), (scales && (nth > 0 || source_count == 1)).then_some(0.125))
                })
                .collect(),
            destinations: destinations.iter_mut().map(|destination| destination.data().as_mut_ptr()).collect(),
            finish: scales.then_some(8.0 / 7.0),
            way,
        };
        // SAFETY: the buffers are as long as is said, aligned to the element, and apart; the machine has the instructions.
        unsafe { reduce_copy::<E, R>(isa, &case, bytes) };
        let mut result = Vec::new();
        for (nth, destination) in destinations.iter_mut().enumerate() {
            destination.check_guards();
            let data = destination.data();
            if nth == 0 {
                for (index, came) in data.chunks_exact(E::BYTES).enumerate() {
                    let elements: Vec<u32> = bits.iter().map(|bits| bits[index]).collect();
                    let came = E::read(came);
                    match expected::<E, R>(&case, &elements) {
                        Some(expected) => {
                            assert_eq!(came, expected, "{isa:?}: {what}: element {index} of {elements:x?}")
                        }
                        None => assert!(E::number(came).is_nan(), "{isa:?}: {what}: element {index}: {came:#x}"),
                    }
                }
            }
            assert!(nth == 0 || data == result, "{isa:?}: {what}: other bits in destination {nth}");
            if nth == 0 {
                result = data.to_vec();
            }
        }
        // Which of two NaNs an addition keeps is up to the order in which the compiler puts them; all else is the same bits.
        let bits_or_nan = |element: &[u8]| Some(E::read(element)).filter(|bits| !E::number(*bits).is_nan());
        let bits_of = |data: &[u8]| data.chunks_exact(E::BYTES).map(bits_or_nan).collect::<Vec<_>>();
        let first = first.get_or_insert_with(|| bits_of(&result));
        assert!(*first == bits_of(&result), "{isa:?}: {what}: other bits than the first");
        for (source, before) in sources.iter().zip(&before) {
            assert!(source.bytes == *before, "{isa:?}: {what}: a source changed");
        }
    }
}

/// Every shape, length and alignment for one element type and reduction.
fn every_case<E: Bits, R: Plain>() {
    let pack = PACK_BYTES / E::BYTES;
    let lengths = [0, 1, 2, 3, 15, 16, 17, pack - 1, pack, pack + 1, 2 * pack - 1, 2 * pack, 3 * pack + 7];
    for source_count in [1, 2, 3, 4, 5, 6, 9] {
        for destination_count in 1..=5 {
            for (nth, count) in lengths.into_iter().enumerate() {
                let misalignment = (nth * 5 + source_count + destination_count) % 16;
                check::<E, R>(source_count, destination_count, count, misalignment, false);
                if R::SCALES {
                    check::<E, R>(source_count, destination_count, count, misalignment, true);
                }
            }
        }
    }
    for misalignment in 0..16 {
        for source_count in [1, 2, 4, 5] {
            check::<E, R>(source_count, 2, pack + 9, misalignment, R::SCALES);
        }
    }
}

macro_rules! every_case {
    ($($name:ident: $element:ty, $reduction:ty;)*) => {
        $(
            #[test]
            fn $name() {
                every_case::<$element, $reduction>();
            }
        )*
    };
}
every_case! {
    sums_of_f32_are_right_in_every_shape: F32, Sum;
    sums_of_f16_are_right_in_every_shape: F16, Sum;
    sums_of_bf16_are_right_in_every_shape: Bf16, Sum;
    products_of_f32_are_right_in_every_shape: F32, Prod;
    products_of_f16_are_right_in_every_shape: F16, Prod;
    products_of_bf16_are_right_in_every_shape: Bf16, Prod;
    minima_of_f32_are_right_in_every_shape: F32, Min;
    minima_of_f16_are_right_in_every_shape: F16, Min;
    minima_of_bf16_are_right_in_every_shape: Bf16, Min;
    maxima_of_f32_are_right_in_every_shape: F32, Max;
    maxima_of_f16_are_right_in_every_shape: F16, Max;
    maxima_of_bf16_are_right_in_every_shape: Bf16, Max;
    averages_of_f32_are_right_in_every_shape: F32, Avg;
    averages_of_f16_are_right_in_every_shape: F16, Avg;
    averages_of_bf16_are_right_in_every_shape: Bf16, Avg;
}

/// A destination may be one of the sources.
fn in_place<E: Bits, R: Plain>(source_count: usize, destination_count: usize) {
    let count = 2 * PACK_BYTES / E::BYTES + 11;
    for target in 0..source_count {
        for isa in isas!() {
            let bits: Vec<Vec<u32>> = (0..source_count)
                .map(|source| (0..count).map(|index| source_bits::<E>(source, index)).collect())
                .collect();
            let mut sources: Vec<Memory> = bits
                .iter()
                .map(|bits| {
                    let mut memory = Memory::new(count * E::BYTES, E::BYTES);
                    let data: Vec<u8> = bits.iter().flat_map(|bits| E::write(*bits)).collect();
                    memory.data().copy_from_slice(&data);
                    memory
                })
                .collect();
            let mut others: Vec<Memory> =
                (1..destination_count).map(|_| Memory::new(count * E::BYTES, 3 * E::BYTES)).collect();
            // Addresses once and for all: each is used to read and to write.
            let addresses: Vec<*mut u8> = sources.iter_mut().map(|source| source.data().as_mut_ptr()).collect();
            let case = Case {
                sources: addresses.iter().map(|address| (address.cast_const(), None)).collect(),
                destinations: std::iter::once(addresses[target])
                    .chain(others.iter_mut().map(|other| other.data().as_mut_ptr()))
                    .collect(),
                finish: None,
                way: if target == 1 { step_flag::BACKWARDS | step_flag::STREAMS } else { 0 },
            };
            // SAFETY: as in `check`; one destination is one of the sources.
            unsafe { reduce_copy::<E, R>(isa, &case, count * E::BYTES) };
            for (index, came) in sources[target].data().chunks_exact(E::BYTES).enumerate() {
                let elements: Vec<u32> = bits.iter().map(|bits| bits[index]).collect();
                match expected::<E, R>(&case, &elements) {
                    Some(expected) => assert_eq!(E::read(came), expected, "{isa:?}: element {index}"),
                    None => assert!(E::number(E::read(came)).is_nan()),
                }
            }
            let result = sources[target].data().to_vec();
            sources.iter().for_each(Memory::check_guards);
            for other in &mut others {
                other.check_guards();
                assert!(other.data() == result);
            }
        }
    }
}

#[test]
fn a_destination_may_be_any_of_the_sources() {
    for source_count in [1, 2, 3, 4, 5] {
        for destination_count in [1, 2, 5] {
            in_place::<F32, Sum>(source_count, destination_count);
            in_place::<F16, Sum>(source_count, destination_count);
            in_place::<Bf16, Max>(source_count, destination_count);
        }
    }
}

/// A copy of every 16-bit pattern, or of many 32-bit ones.
fn copies<E: Bits, R: Plain>() {
    let patterns: Vec<u32> = if E::BYTES == 4 {
        (0..1 << 16).map(|index| index << 16 | mix(u64::from(index)) as u32 & 0xffff).collect()
    } else {
        (0..1 << 16).collect()
    };
    let mut data: Vec<u8> = patterns.iter().flat_map(|bits| E::write(*bits)).collect();
    for destination_count in [1, 2, 5] {
        for isa in isas!() {
            let mut destinations = vec![vec![0_u8; data.len()]; destination_count];
            let case = Case {
                sources: vec![(data.as_mut_ptr().cast_const(), None)],
                destinations: destinations.iter_mut().map(|destination| destination.as_mut_ptr()).collect(),
                finish: None,
                way: 0,
            };
            // SAFETY: as in `check`.
            unsafe { reduce_copy::<E, R>(isa, &case, data.len()) };
            for destination in &destinations {
                assert!(*destination == data, "{isa:?}: a copy to {destination_count} changed bits");
            }
        }
    }
}

#[test]
fn copies_keep_every_bit_pattern_to_1_2_and_5_destinations() {
    copies::<F32, Sum>();
    copies::<F16, Sum>();
    copies::<Bf16, Sum>();
    copies::<F32, Avg>();
    copies::<F16, Avg>();
    copies::<Bf16, Avg>();
    copies::<F16, Min>();
}

#[test]
fn minima_and_maxima_order_the_zeros() {
    fn check<R: Plain>(expected: [u32; 4]) {
        let (left, right) = ([0_u32, 0x8000_0000, 0, 0x8000_0000], [0_u32, 0, 0x8000_0000, 0x8000_0000]);
        for isa in isas!() {
            let mut out = [1_u32; 4];
            let case = Case {
                sources: vec![(left.as_ptr().cast(), None), (right.as_ptr().cast(), None)],
                destinations: vec![out.as_mut_ptr().cast()],
                finish: None,
                way: 0,
            };
            // SAFETY: as in `check` above.
            unsafe { reduce_copy::<F32, R>(isa, &case, 16) };
            assert_eq!(out, expected, "{isa:?}");
        }
    }
    check::<Min>([0, 0x8000_0000, 0x8000_0000, 0x8000_0000]);
    check::<Max>([0, 0, 0, 0x8000_0000]);
}
