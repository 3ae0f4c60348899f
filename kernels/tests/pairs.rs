//! Every bit pattern of the small floats, reduced with others by every instruction set: a row converts and calculates in
//! vectors, and must give the very bits that one number at a time gives.

use half::{bf16, f16};
use tutti_codegen::{DTYPES, REDUCTIONS};
use tutti_kernels::element::{Element, F8E4m3, F8E5m2};
use tutti_kernels::interpreter::{Kernel, StepOperands};
use tutti_kernels::isas;
use tutti_kernels::layout::{Operand, operand_flag, operand_kind, step_flag};
use tutti_kernels::table::{Isa, row};

/// A type's bits, as the test sees them.
trait Bits: Copy + PartialEq + std::fmt::LowerHex {
    fn to_f32(self, dtype: &str) -> f32;
    fn from_f32(value: f32, dtype: &str) -> Self;
}

impl Bits for u16 {
    fn to_f32(self, dtype: &str) -> f32 {
        if dtype == "f16" { f16::from_bits(self).to_f32() } else { bf16::from_bits(self).to_f32() }
    }

    fn from_f32(value: f32, dtype: &str) -> u16 {
        if dtype == "f16" { f16::from_f32(value).to_bits() } else { bf16::from_f32(value).to_bits() }
    }
}

// `conversions.rs` compares these conversions with the definition of the formats.
impl Bits for u8 {
    fn to_f32(self, dtype: &str) -> f32 {
        if dtype == "f8e4m3" { F8E4m3::widen(self) } else { F8E5m2::widen(self) }
    }

    fn from_f32(value: f32, dtype: &str) -> u8 {
        if dtype == "f8e4m3" { F8E4m3::narrow(value) } else { F8E5m2::narrow(value) }
    }
}

fn place(names: impl Iterator<Item = &'static str>, name: &str) -> usize {
    names.into_iter().position(|other| other == name).expect("the table has it")
}

/// The reduction of each pair by one row, both scaled and the result finished where the reduction does that.
fn reduce<B: Bits>(dtype: &str, reduction: &str, isa: Isa, left: &[B], right: &[B], scale: f32, finish: f32) -> Vec<B> {
    let mut result = left.to_vec();
    let addresses = [left.as_ptr().cast_mut().cast(), right.as_ptr().cast_mut().cast(), result.as_mut_ptr().cast()];
    let marked = Operand { kind: operand_kind::LOCAL, flags: operand_flag::SCALE, index: 0, buffer: 0, offset: 0 };
    let operands = [marked; 2];
    let step = StepOperands {
        addresses: addresses.as_ptr(),
        operands: operands.as_ptr(),
        source_count: 2,
        destination_count: 1,
        flags: step_flag::FINISH,
        scale: scale.to_bits().into(),
        finish: finish.to_bits().into(),
    };
    let dtype = place(DTYPES.iter().map(|dtype| dtype.name), dtype);
    let reduction = place(REDUCTIONS.iter().map(|reduction| reduction.name), reduction);
    // SAFETY: the three are as long, aligned and apart; the machine has the instructions.
    unsafe { row(dtype, reduction, isa).expect("the table has the row").reduce_copy(&step, size_of_val(left)) };
    result
}

const SCALE: f32 = 0.5;
const FINISH: f32 = 4.0 / 3.0;

fn expected(dtype: &str, reduction: &str, left: f32, right: f32) -> f32 {
    let least = |left: f32, right: f32| if left.total_cmp(&right).is_le() { left } else { right };
    match reduction {
        "sum" => left + right,
        "prod" => left * right,
        "min" | "max" if left.is_nan() || right.is_nan() => f32::NAN,
        "min" => least(left, right),
        "max" => -least(-left, -right),
        "scaled_sum" => left * SCALE + right * SCALE,
        "avg" => {
            let largest = match dtype {
                "f16" => 65504.0,
                "bf16" => f32::from_bits(0x7f7f_0000),
                "f8e4m3" => 448.0,
                _ => 57344.0,
            };
            let sum = left * SCALE + right * SCALE;
            if sum.is_infinite() { sum } else { (sum * FINISH).clamp(-largest, largest) }
        }
        other => panic!("unknown reduction {other}"),
    }
}

/// Each of `patterns` with each of `others`, and the other way round.
fn every_pair<B: Bits>(dtype: &str, patterns: &[B], others: &[B]) {
    for other in others {
        let same = vec![*other; patterns.len()];
        for reduction in ["sum", "prod", "min", "max", "avg", "scaled_sum"] {
            let expected: Vec<Option<B>> = patterns
                .iter()
                .map(|bits| {
                    let value = expected(dtype, reduction, bits.to_f32(dtype), other.to_f32(dtype));
                    (!value.is_nan()).then(|| B::from_f32(value, dtype))
                })
                .collect();
            for isa in isas!() {
                for (left, right) in [(patterns, &same[..]), (&same[..], patterns)] {
                    let results = reduce(dtype, reduction, isa, left, right, SCALE, FINISH);
                    for ((came, expected), bits) in results.iter().zip(&expected).zip(patterns) {
                        let is_right = match expected {
                            Some(expected) => came == expected,
                            None => came.to_f32(dtype).is_nan(),
                        };
                        assert!(is_right, "{isa:?}: {reduction} of {dtype} {bits:x} and {other:x} is {came:x}");
                    }
                }
            }
        }
    }
}

/// Zero, the subnormal numbers' ends, one and its neighbours, the ends of the range, infinity and NaNs of either sign, and some
/// of all magnitudes.
fn spread(mantissa_bits: u32) -> Vec<u16> {
    let unit = 1_u16 << mantissa_bits;
    let infinity = if mantissa_bits == 10 { 0x7c00 } else { 0x7f80 };
    let one = if mantissa_bits == 10 { 0x3c00 } else { 0x3f80 };
    let mut bits = vec![0, 1, unit - 1, unit, one, one - 1, one + 1, infinity - 1, infinity, infinity + 1, 0x7fff];
    bits.extend((1..8).map(|nth| infinity / 8 * nth + 0x2b5 % unit));
    bits.iter().flat_map(|bits| [*bits, bits | 0x8000]).collect()
}

#[test]
fn every_f16_is_reduced_with_a_spread_of_others_by_every_instruction_set() {
    let patterns: Vec<u16> = (0..=u16::MAX).collect();
    every_pair("f16", &patterns, &spread(10));
}

#[test]
fn every_bf16_is_reduced_with_a_spread_of_others_by_every_instruction_set() {
    let patterns: Vec<u16> = (0..=u16::MAX).collect();
    every_pair("bf16", &patterns, &spread(7));
}

#[test]
fn all_pairs_of_8_bit_floats_are_reduced_by_every_instruction_set() {
    let patterns: Vec<u8> = (0..=u8::MAX).collect();
    for dtype in ["f8e4m3", "f8e5m2"] {
        every_pair(dtype, &patterns, &patterns);
    }
}

#[test]
fn a_scale_that_is_any_nan_gives_nans() {
    let values = vec![1_u16; 300];
    for scale in [0x7fff_ffff, 0xffff_ffff, 0x7f80_0001, 0xff80_0001, 0x7fc0_0000].map(f32::from_bits) {
        for dtype in ["f16", "bf16"] {
            for isa in isas!() {
                let results = reduce(dtype, "scaled_sum", isa, &values, &values, scale, 1.0);
                assert!(
                    results.iter().all(|bits| bits.to_f32(dtype).is_nan()),
                    "{isa:?}: {dtype} {:x}",
                    scale.to_bits()
                );
            }
        }
    }
}
