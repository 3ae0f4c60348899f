//! Every row of the table for every instruction set, against one element at a time: floats in the type that they are
//! calculated in, integers in i128.

use half::{bf16, f16};
use tutti_codegen::{DTYPES, DType, Kind, REDUCTIONS, Reduction};
use tutti_kernels::element::{Element, F8E4m3, F8E5m2};
use tutti_kernels::interpreter::{Kernel, StepOperands};
use tutti_kernels::isas;
use tutti_kernels::layout::{Operand, operand_flag, operand_kind, step_flag};
use tutti_kernels::table::{Isa, row};

fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// An integer of the type from its bits.
fn whole(dtype: &DType, bits: u64) -> i128 {
    let width = 8 * dtype.bytes;
    let bits = i128::from(bits) & ((1 << width) - 1);
    if dtype.kind == Kind::Signed && bits >> (width - 1) == 1 { bits - (1 << width) } else { bits }
}

/// A float of up to 32 bits from its bits, and the nearest one's bits.
fn widen(dtype: &DType, bits: u64) -> f32 {
    match dtype.name {
        "f32" => f32::from_bits(bits as u32),
        "f16" => f16::from_bits(bits as u16).to_f32(),
        "bf16" => bf16::from_bits(bits as u16).to_f32(),
        "f8e4m3" => F8E4m3::widen(bits as u8),
        "f8e5m2" => F8E5m2::widen(bits as u8),
        other => panic!("unknown float {other}"),
    }
}

fn narrow(dtype: &DType, value: f32) -> u64 {
    match dtype.name {
        "f32" => value.to_bits().into(),
        "f16" => f16::from_f32(value).to_bits().into(),
        "bf16" => bf16::from_f32(value).to_bits().into(),
        "f8e4m3" => F8E4m3::narrow(value).into(),
        "f8e5m2" => F8E5m2::narrow(value).into(),
        other => panic!("unknown float {other}"),
    }
}

/// The scale of every second source, and the finish, of four ranks and of a scaled sum.
const SCALE: f64 = 0.25;
const FINISH: f64 = 4.0 / 3.0;
const WHOLE_SCALE: u64 = 7;
const WHOLE_FINISH: u64 = 3;

/// What must come out of one element of each source, the marked ones scaled; none of a NaN.
fn expected(dtype: &DType, reduction: &Reduction, bits: &[u64], finishes: bool) -> Option<u64> {
    let is_scaled = |nth: usize| nth.is_multiple_of(2);
    let scales = matches!(reduction.name, "avg" | "scaled_sum");
    let finishes = finishes && reduction.name == "avg";
    macro_rules! floats {
        ($float:ty, $widen:expr, $largest:expr) => {{
            let scaled = |(nth, bits): (usize, &u64)| {
                let value: $float = $widen(*bits);
                if scales && is_scaled(nth) { value * SCALE as $float } else { value }
            };
            let values = bits.iter().enumerate().map(scaled);
            let result = values.reduce(|a, b| match reduction.name {
                "prod" => a * b,
                "min" | "max" if a.is_nan() || b.is_nan() => <$float>::NAN,
                "min" => {
                    if a.total_cmp(&b).is_le() {
                        a
                    } else {
                        b
                    }
                }
                "max" => {
                    if a.total_cmp(&b).is_ge() {
                        a
                    } else {
                        b
                    }
                }
                _ => a + b,
            });
            let result = result.unwrap();
            if finishes && result.is_finite() {
                let largest: $float = $largest;
                (result * FINISH as $float).clamp(-largest, largest)
            } else {
                result
            }
        }};
    }
    if bits.len() == 1 && !((scales && is_scaled(0)) || finishes) {
        return Some(bits[0]);
    }
    match dtype.kind {
        Kind::Float if dtype.name == "f64" => {
            let result = floats!(f64, f64::from_bits, f64::MAX);
            (!result.is_nan()).then_some(result.to_bits())
        }
        Kind::Float => {
            let largest = match dtype.name {
                "f16" => 65504.0,
                "bf16" => f32::from_bits(0x7f7f_0000),
                "f8e4m3" => 448.0,
                "f8e5m2" => 57344.0,
                _ => f32::MAX,
            };
            let result = floats!(f32, |bits| widen(dtype, bits), largest);
            (!result.is_nan()).then(|| narrow(dtype, result))
        }
        Kind::Signed | Kind::Unsigned => {
            let wrapped = |value: i128| whole(dtype, value as u64);
            let scaled = |(nth, bits): (usize, &u64)| {
                let value = whole(dtype, *bits);
                if reduction.name == "scaled_sum" && is_scaled(nth) {
                    wrapped(value * i128::from(WHOLE_SCALE))
                } else {
                    value
                }
            };
            let values = bits.iter().enumerate().map(scaled);
            let result = values.reduce(|a, b| match reduction.name {
                "prod" => wrapped(a.wrapping_mul(b)),
                "min" => a.min(b),
                "max" => a.max(b),
                "band" => a & b,
                "bor" => a | b,
                "bxor" => a ^ b,
                _ => wrapped(a + b),
            });
            let result = if finishes { result.unwrap() / i128::from(WHOLE_FINISH) } else { result.unwrap() };
            Some(result as u64 & (u64::MAX >> (64 - 8 * dtype.bytes)))
        }
    }
}

/// Runs one row over `count` elements that begin `shift` elements after an aligned address, with these flags as well.
fn check(place: (usize, usize), isa: Isa, shape: (usize, usize), count: usize, shift: usize, way: u32) {
    let (dtype, reduction) = (&DTYPES[place.0], &REDUCTIONS[place.1]);
    let (source_count, destination_count) = shape;
    let size = dtype.bytes as usize;
    let what =
        format!("{} of {} by {isa:?}, {shape:?}, {count} elements, {shift} off, way {way}", reduction.name, dtype.name);
    // Bits of every kind; few enough are NaNs.
    let bits_of = |source: usize, index: usize| {
        let random = mix(mix((source as u64) << 32 | index as u64));
        let width = 8 * dtype.bytes;
        match (dtype.kind, index % 4) {
            (Kind::Float, 0) => random & (u64::MAX >> (64 - width)),
            // Near one, by half the exponent's bits.
            (Kind::Float, _) if dtype.name == "f64" => (0x3fe0_0000_0000_0000 | random >> 11) ^ (random & 1) << 63,
            (Kind::Float, _) => narrow(dtype, ((random % 4001) as f32 - 2000.0) / 256.0),
            _ => random & (u64::MAX >> (64 - width)),
        }
    };
    let bytes = count * size;
    // Words, so that all of them are aligned; two lines around.
    let memory = || vec![0xa5a5_a5a5_a5a5_a5a5_u64; bytes / 8 + 40];
    let start_of = |memory: &[u64]| memory.as_ptr().cast::<u8>().align_offset(64) + 64 + shift * size;
    let mut sources: Vec<Vec<u64>> = (0..source_count).map(|_| memory()).collect();
    let mut destinations: Vec<Vec<u64>> = (0..destination_count).map(|_| memory()).collect();
    let mut addresses = Vec::new();
    for (source, memory) in sources.iter_mut().enumerate() {
        let start = start_of(memory);
        let first = memory.as_mut_ptr().cast::<u8>().wrapping_add(start);
        for index in 0..count {
            let bits = bits_of(source, index).to_le_bytes();
            // SAFETY: the element lies inside the memory.
            unsafe { std::ptr::copy_nonoverlapping(bits.as_ptr(), first.add(index * size), size) };
        }
        addresses.push(first);
    }
    for memory in &mut destinations {
        let start = start_of(memory);
        addresses.push(memory.as_mut_ptr().cast::<u8>().wrapping_add(start));
    }
    let operands: Vec<Operand> = (0..source_count)
        .map(|nth| {
            let flags = if nth % 2 == 0 { operand_flag::SCALE } else { 0 };
            Operand { kind: operand_kind::LOCAL, flags, index: 0, buffer: 0, offset: 0 }
        })
        .collect();
    let finishes = count.is_multiple_of(2);
    let (scale, finish) = match (dtype.kind, dtype.name) {
        (Kind::Float, "f64") => (SCALE.to_bits(), FINISH.to_bits()),
        (Kind::Float, _) => ((SCALE as f32).to_bits().into(), (FINISH as f32).to_bits().into()),
        _ => (WHOLE_SCALE, WHOLE_FINISH),
    };
    let step = StepOperands {
        addresses: addresses.as_ptr(),
        operands: operands.as_ptr(),
        source_count: source_count as u32,
        destination_count: destination_count as u32,
        flags: if finishes { step_flag::FINISH } else { 0 } | if shift == 1 { step_flag::BACKWARDS } else { 0 } | way,
        scale,
        finish,
    };
    // SAFETY: the buffers are as long as is said, aligned to the element, and apart; the machine has the instructions.
    unsafe { row(place.0, place.1, isa).unwrap().reduce_copy(&step, bytes) };
    for memory in &destinations {
        let start = start_of(memory);
        let all: Vec<u8> = memory.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (before, rest) = all.split_at(start);
        let (data, after) = rest.split_at(bytes);
        assert!(before.iter().chain(after).all(|byte| *byte == 0xa5), "{what}: wrote beside a destination");
        for (index, element) in data.chunks_exact(size).enumerate() {
            let mut came = [0; 8];
            came[..size].copy_from_slice(element);
            let came = u64::from_le_bytes(came);
            let bits: Vec<u64> = (0..source_count).map(|source| bits_of(source, index)).collect();
            match expected(dtype, reduction, &bits, finishes) {
                Some(expected) => assert_eq!(came, expected, "{what}: element {index} of {bits:x?}"),
                None if dtype.name == "f64" => assert!(f64::from_bits(came).is_nan(), "{what}: element {index}"),
                None => assert!(widen(dtype, came).is_nan(), "{what}: element {index}"),
            }
        }
    }
}

#[test]
fn every_row_is_right_for_every_instruction_set_and_shape() {
    for (dtype_place, dtype) in DTYPES.iter().enumerate() {
        for (reduction_place, reduction) in REDUCTIONS.iter().enumerate() {
            let place = (dtype_place, reduction_place);
            for isa in isas!() {
                // SAFETY: the machine has the instructions.
                let is_there = unsafe { row(place.0, place.1, isa) }.is_some();
                assert_eq!(is_there, dtype.offers(reduction), "{} of {}", reduction.name, dtype.name);
                if !is_there {
                    continue;
                }
                let pack = 256 / dtype.bytes as usize;
                for (nth, shape) in
                    [(1, 1), (1, 3), (2, 1), (2, 2), (3, 1), (4, 2), (5, 1), (7, 5)].into_iter().enumerate()
                {
                    check(place, isa, shape, 10 * pack + 70, nth % 3, step_flag::STREAMS);
                    for count in [1, 7, 2 * pack + 9 + nth, 10 * pack + 70] {
                        check(place, isa, shape, count, nth % 3, 0);
                    }
                }
            }
        }
    }
}

#[test]
fn integers_wrap_and_their_averages_round_toward_zero() {
    for (values, average) in [([-4_i8, -3], -3), ([127, 127], -1), ([-128, -128], 0), ([-128, 0], -64), ([5, 0], 2)] {
        let mut sum = [0_i8];
        let addresses =
            [values.as_ptr().cast_mut(), (&raw const values[1]).cast_mut(), sum.as_mut_ptr()].map(<*mut i8>::cast);
        let unmarked = [Operand { kind: operand_kind::LOCAL, flags: 0, index: 0, buffer: 0, offset: 0 }; 2];
        let step = StepOperands {
            addresses: addresses.as_ptr(),
            operands: unmarked.as_ptr(),
            source_count: 2,
            destination_count: 1,
            flags: step_flag::FINISH,
            scale: 1,
            finish: 2,
        };
        let place = |name| REDUCTIONS.iter().position(|reduction| reduction.name == name).unwrap();
        let dtype = DTYPES.iter().position(|dtype| dtype.name == "i8").unwrap();
        // SAFETY: each address is that of one element.
        unsafe { row(dtype, place("avg"), Isa::Baseline).unwrap().reduce_copy(&step, 1) };
        assert_eq!(sum[0], average, "{values:?}");
    }
}
