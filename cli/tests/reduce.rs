//! `tutti reduce` from end to end: results against a plain computation, and that every failure leaves nothing behind.

mod common;

use common::{Outcome, finish, names, run, tutti};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A tensor to be written: its values are rounded to its type.
#[derive(Clone)]
struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl Tensor {
    fn new(name: &str, dtype: Dtype, shape: &[usize], value: impl Fn(usize) -> f64) -> Tensor {
        let values = (0..shape.iter().product()).map(value).collect();
        Tensor { name: name.to_owned(), dtype, shape: shape.to_vec(), values }
    }

    fn data(&self) -> Vec<u8> {
        let values = self.values.iter();
        match self.dtype {
            Dtype::F32 => values.flat_map(|&value| (value as f32).to_le_bytes()).collect(),
            Dtype::F16 => values.flat_map(|&value| f16::from_f64(value).to_le_bytes()).collect(),
            Dtype::BF16 => values.flat_map(|&value| bf16::from_f64(value).to_le_bytes()).collect(),
            Dtype::F64 => values.flat_map(|&value| value.to_le_bytes()).collect(),
            Dtype::F8_E4M3 => values.map(|&value| F8E4M3::from_f64(value).to_bits()).collect(),
            Dtype::F8_E5M2 => values.map(|&value| F8E5M2::from_f64(value).to_bits()).collect(),
            Dtype::I8 => values.map(|&value| value as i8 as u8).collect(),
            Dtype::U8 => values.map(|&value| value as u8).collect(),
            Dtype::I16 => values.flat_map(|&value| (value as i16).to_le_bytes()).collect(),
            Dtype::U16 => values.flat_map(|&value| (value as u16).to_le_bytes()).collect(),
            Dtype::I32 => values.flat_map(|&value| (value as i32).to_le_bytes()).collect(),
            Dtype::U32 => values.flat_map(|&value| (value as u32).to_le_bytes()).collect(),
            Dtype::I64 => values.flat_map(|&value| (value as i64).to_le_bytes()).collect(),
            Dtype::U64 => values.flat_map(|&value| (value as u64).to_le_bytes()).collect(),
            other => panic!("no rule for {other}"),
        }
    }
}

fn decode(dtype: Dtype, data: &[u8]) -> Vec<f64> {
    let pairs = || data.chunks_exact(2).map(|bytes| [bytes[0], bytes[1]]);
    let words = |value: &dyn Fn(u128) -> f64| {
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0_u128, |word, &byte| word << 8 | u128::from(byte));
        data.chunks_exact(dtype.bitsize() / 8).map(|bytes| value(word(bytes))).collect()
    };
    match dtype {
        Dtype::F32 => {
            data.chunks_exact(4).map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()))).collect()
        }
        Dtype::F16 => pairs().map(|bytes| f16::from_le_bytes(bytes).to_f64()).collect(),
        Dtype::BF16 => pairs().map(|bytes| bf16::from_le_bytes(bytes).to_f64()).collect(),
        Dtype::F64 => words(&|word| f64::from_bits(word as u64)),
        Dtype::F8_E4M3 => words(&|word| F8E4M3::from_bits(word as u8).to_f64()),
        Dtype::F8_E5M2 => words(&|word| F8E5M2::from_bits(word as u8).to_f64()),
        Dtype::I8 => words(&|word| f64::from(word as i8)),
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => words(&|word| word as f64),
        Dtype::I16 => words(&|word| f64::from(word as i16)),
        Dtype::I32 => words(&|word| f64::from(word as i32)),
        Dtype::I64 => words(&|word| word as i64 as f64),
        other => panic!("no rule for {other}"),
    }
}

/// A place for files, which is removed at the end.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, tensors: &[Tensor]) -> PathBuf {
        self.write_with(name, tensors, &[])
    }

    fn write_with(&self, name: &str, tensors: &[Tensor], metadata: &[(&str, &str)]) -> PathBuf {
        let data: Vec<Vec<u8>> = tensors.iter().map(Tensor::data).collect();
        let views = tensors.iter().zip(&data).map(|(tensor, data)| {
            (tensor.name.clone(), TensorView::new(tensor.dtype, tensor.shape.clone(), data).unwrap())
        });
        let metadata: HashMap<String, String> =
            metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let metadata = (!metadata.is_empty()).then_some(metadata);
        let bytes = safetensors::serialize(views.collect::<Vec<_>>(), metadata).unwrap();
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    /// Writes a header as it is, and as many bytes of zeros.
    fn write_raw(&self, name: &str, header: &str, data_bytes: u64) -> PathBuf {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        fs::write(self.path(name), &bytes).unwrap();
        fs::File::options()
            .write(true)
            .open(self.path(name))
            .unwrap()
            .set_len(bytes.len() as u64 + data_bytes)
            .unwrap();
        self.path(name)
    }

    fn write_npy(&self, name: &str, dictionary: &str, data: &[u8]) -> PathBuf {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((dictionary.len() as u16).to_le_bytes());
        bytes.extend(dictionary.as_bytes());
        bytes.extend(data);
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    /// What the directory holds besides the inputs.
    fn others(&self, inputs: &[&str]) -> Vec<String> {
        names(self.0.path()).into_iter().filter(|name| !inputs.contains(&name.as_str())).collect()
    }
}

fn reduce(inputs: &[&Path], op: &str, output: &Path) -> Outcome {
    run(arguments(inputs, op, output))
}

fn arguments(inputs: &[&Path], op: &str, output: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["reduce".into()];
    arguments.extend(inputs.iter().map(|path| path.as_os_str().to_owned()));
    arguments.extend(["--op".into(), op.into(), "-o".into(), output.as_os_str().to_owned()]);
    arguments
}

/// Everything that a header says, without its bytes.
fn header(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[..8 + length].to_vec()
}

#[test]
fn an_average_of_three_files_is_exact_where_it_can_be() {
    let place = Place::new();
    let shapes: [(&str, Dtype, &[usize]); 6] = [
        ("model.weight", Dtype::F32, &[3, 1001]),
        ("model.bias", Dtype::F16, &[7]),
        ("head.weight", Dtype::BF16, &[5, 3]),
        ("step", Dtype::F32, &[]),
        ("empty", Dtype::F16, &[0, 4]),
        ("odd", Dtype::BF16, &[1]),
    ];
    // Multiples of 3 × 4 below 8 bits: sums, quarters and thirds of them are exact, and the ranks' shares differ.
    let value = |file: usize, index: usize| 12.0 * ((index * 7 + file * 5) % 13) as f64;
    let files: Vec<PathBuf> = (0..3)
        .map(|file| {
            let tensors =
                shapes.map(|(name, dtype, shape)| Tensor::new(name, dtype, shape, |index| value(file, index)));
            place.write_with(&format!("run{file}.safetensors"), &tensors, &[("format", "pt"), ("note", "é \"x\"")])
        })
        .collect();
    let inputs: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let output = place.path("average.safetensors");
    let outcome = reduce(&inputs, "avg", &output).good();
    assert!(outcome.stdout.contains("avg of 3 files, 6 tensors"), "{outcome:?}");
    assert_eq!(outcome.stderr, "");
    assert_eq!(header(&output), header(inputs[0]));
    let bytes = fs::read(&output).unwrap();
    let result = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(result.len(), shapes.len());
    for (name, dtype, shape) in shapes {
        let tensor = result.tensor(name).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (dtype, shape));
        let expected: Vec<f64> = (0..shape.iter().product())
            .map(|index| (value(0, index) + value(1, index) + value(2, index)) / 3.0)
            .collect();
        let got = decode(dtype, tensor.data());
        let close = |(got, expected): (&f64, &f64)| (got - expected).abs() <= expected * 0.5_f64.powi(8);
        assert!(got.iter().zip(&expected).all(close), "{name}: {got:?}, expected {expected:?}");
    }
}

/// Two sources: the correctly rounded result of the exact operation.
#[test]
fn two_files_reduce_to_the_correctly_rounded_result() {
    let place = Place::new();
    type Operation = fn(f64, f64) -> f64;
    let operations: [(&str, Operation); 5] = [
        ("sum", |a, b| a + b),
        ("prod", |a, b| a * b),
        ("min", f64::min),
        ("max", f64::max),
        ("avg", |a, b| (a + b) / 2.0),
    ];
    let value = |file: usize, index: usize| {
        let random = ((index as u64 + 1) * (file as u64 + 3)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11;
        (random as f64 / (1_u64 << 53) as f64 - 0.5) * 8.0
    };
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        let tensors: Vec<Tensor> = (0..2).map(|file| Tensor::new("w", dtype, &[997], |i| value(file, i))).collect();
        let [a, b] = [0, 1].map(|file| place.write(&format!("{file}.safetensors"), &tensors[file..=file]));
        let [of_a, of_b] = [0, 1].map(|file| decode(dtype, &tensors[file].data()));
        for (op, operation) in operations {
            let output = place.path("out.safetensors");
            reduce(&[&a, &b], op, &output).good();
            let exact: Vec<f64> = of_a.iter().zip(&of_b).map(|(&a, &b)| operation(a, b)).collect();
            let expected = Tensor { values: exact, ..tensors[0].clone() }.data();
            let bytes = fs::read(&output).unwrap();
            assert!(
                SafeTensors::deserialize(&bytes).unwrap().tensor("w").unwrap().data() == expected,
                "{op} of {dtype}"
            );
        }
    }
}

/// Tensors of several pieces, at other places in each file, and not aligned in any.
#[test]
fn large_tensors_in_another_order_and_off_their_alignment_are_right() {
    let place = Place::new();
    const COUNT: usize = 3_000_001;
    let odd = |file: usize| (0..3).flat_map(move |index| f16::from_f32((file * 3 + index) as f32).to_le_bytes());
    let big = |file: usize| (0..COUNT).flat_map(move |index| (((index * 31 + file * 17) % 1009) as f32).to_le_bytes());
    let small = r#""odd":{"dtype":"F16","shape":[3],"data_offsets":"#;
    let large = r#""big":{"dtype":"F32","shape":[3000001],"data_offsets":"#;
    let (big_bytes, end) = (4 * COUNT, 4 * COUNT + 6);
    let mut files = Vec::new();
    for file in 0..3 {
        let (json, data): (String, Vec<u8>) = if file == 1 {
            let json = format!("{{{large}[0,{big_bytes}]}},{small}[{big_bytes},{end}]}}}}   ");
            (json, big(file).chain(odd(file)).collect())
        } else {
            (format!("{{{small}[0,6]}},{large}[6,{end}]}}}}"), odd(file).chain(big(file)).collect())
        };
        let path = place.path(&format!("{file}.safetensors"));
        fs::write(&path, [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &data].concat()).unwrap();
        files.push(path);
    }
    let output = place.path("sum.safetensors");
    reduce(&[&files[0], &files[1], &files[2]], "sum", &output).good();
    assert_eq!(header(&output), header(&files[0]));
    let bytes = fs::read(&output).unwrap();
    let result = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(decode(Dtype::F16, result.tensor("odd").unwrap().data()), [9.0, 12.0, 15.0]);
    let got = decode(Dtype::F32, result.tensor("big").unwrap().data());
    let expected = |index: usize| (0..3).map(|file| (index * 31 + file * 17) % 1009).sum::<usize>() as f64;
    assert!(got.len() == COUNT && got.iter().enumerate().all(|(index, &got)| got == expected(index)));
}

#[test]
fn npy_files_of_both_types_and_of_any_shape_reduce() {
    let place = Place::new();
    let [a, b] = [("a.npy", 1.0_f32), ("b.npy", 10.0)].map(|(name, first)| {
        let data: Vec<u8> = (0..6).flat_map(|index| (first + index as f32).to_le_bytes()).collect();
        place.write_npy(name, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }      \n", &data)
    });
    let output = place.path("out.npy");
    reduce(&[&a, &b], "sum", &output).good();
    let (input, bytes) = (fs::read(&a).unwrap(), fs::read(&output).unwrap());
    let data_start = input.len() - 24;
    assert_eq!(bytes[..data_start], input[..data_start]);
    assert_eq!(decode(Dtype::F32, &bytes[data_start..]), [11.0, 13.0, 15.0, 17.0, 19.0, 21.0]);

    let scalar = "{'descr': '<f2', 'fortran_order': False, 'shape': (), }\n";
    let [c, d] = [("c.npy", 3.0), ("d.npy", 5.0)]
        .map(|(name, value)| place.write_npy(name, scalar, &f16::from_f32(value).to_le_bytes()));
    reduce(&[&c, &d, &d], "prod", &output).good();
    let bytes = fs::read(&output).unwrap();
    assert_eq!(decode(Dtype::F16, &bytes[bytes.len() - 2..]), [75.0]);
}

/// The types beside those of the tests above, and whether they hold negative numbers.
const OTHERS: [(Dtype, bool); 11] = [
    (Dtype::F64, true),
    (Dtype::F8_E4M3, true),
    (Dtype::F8_E5M2, true),
    (Dtype::I8, true),
    (Dtype::U8, false),
    (Dtype::I16, true),
    (Dtype::U16, false),
    (Dtype::I32, true),
    (Dtype::U32, false),
    (Dtype::I64, true),
    (Dtype::U64, false),
];

#[test]
fn every_type_of_a_safetensors_file_reduces_and_integers_average_toward_zero() {
    let place = Place::new();
    // Of three files: sums of 7, 5, and of negative types -7 and -12.
    let values = [[3.0, 1.0, -3.0, -4.0], [2.0, 2.0, -2.0, -4.0], [2.0, 2.0, -2.0, -4.0]];
    let files: Vec<PathBuf> = values
        .iter()
        .enumerate()
        .map(|(file, values)| {
            let tensor = |&(dtype, negative): &(Dtype, bool)| {
                Tensor::new(&dtype.to_string(), dtype, &[if negative { 4 } else { 2 }], |index| values[index])
            };
            place.write(&format!("{file}.safetensors"), &OTHERS.iter().map(tensor).collect::<Vec<_>>())
        })
        .collect();
    let output = place.path("out.safetensors");
    let inputs: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    for (op, expected) in [
        ("sum", [7.0, 5.0, -7.0, -12.0]),
        ("avg", [2.0, 1.0, -2.0, -4.0]),
        ("min", [2.0, 1.0, -3.0, -4.0]),
        ("max", [3.0, 2.0, -2.0, -4.0]),
    ] {
        reduce(&inputs, op, &output).good();
        let bytes = fs::read(&output).unwrap();
        let result = SafeTensors::deserialize(&bytes).unwrap();
        for (dtype, negative) in OTHERS {
            let got = decode(dtype, result.tensor(&dtype.to_string()).unwrap().data());
            let expected = &expected[..if negative { 4 } else { 2 }];
            let is_float = dtype.to_string().starts_with('F');
            if op == "avg" && is_float {
                let near = got.iter().zip([7.0, 5.0, -7.0, -12.0]).all(|(got, sum)| (got - sum / 3.0).abs() < 0.2);
                assert!(near, "{dtype}: {got:?}");
            } else {
                assert_eq!(got, expected, "{op} of {dtype}");
            }
        }
    }
    reduce(&inputs, "bxor", &output).failed(1, &["tensor `F64` is f64, which offers sum, prod", "but not bxor"]);
    reduce(&inputs, "scaled_sum", &output).failed(2, &["--scale"]);
}

#[test]
fn npy_files_of_integers_reduce_and_scale() {
    let place = Place::new();
    let [a, b] = [("a.npy", 7_i64), ("b.npy", -10)].map(|(name, value)| {
        let dictionary = "{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }\n";
        place.write_npy(name, dictionary, &value.to_le_bytes())
    });
    let output = place.path("out.npy");
    let result = || decode(Dtype::I64, fs::read(&output).unwrap().last_chunk::<8>().unwrap());
    reduce(&[&a, &b], "avg", &output).good();
    assert_eq!(result(), [-1.0]);
    reduce(&[&a, &b], "bxor", &output).good();
    assert_eq!(result(), [(7_i64 ^ -10) as f64]);
    let with_scale = |scale: &str| {
        run([
            "reduce".as_ref(),
            a.as_os_str(),
            b.as_os_str(),
            "--op".as_ref(),
            "scaled_sum".as_ref(),
            "--scale".as_ref(),
            scale.as_ref(),
            "-o".as_ref(),
            output.as_os_str(),
        ])
    };
    with_scale("-5").good();
    assert_eq!(result(), [15.0]);
    with_scale("0.5").failed(1, &["tensor `array` is i64, which does not take --scale 0.5"]);
}

#[test]
fn a_single_file_is_its_own_reduction() {
    let place = Place::new();
    let file = place.write("a.safetensors", &[Tensor::new("w", Dtype::BF16, &[100], |index| index as f64)]);
    for op in ["sum", "prod", "min", "max", "avg"] {
        let output = place.path("out.safetensors");
        reduce(&[&file], op, &output).good();
        assert_eq!(fs::read(&output).unwrap(), fs::read(&file).unwrap());
    }
}

#[test]
fn thousands_of_tensors_and_none_at_all_are_fine() {
    let place = Place::new();
    let files: Vec<PathBuf> = (0..3)
        .map(|file| {
            let tensor = |index: usize| {
                Tensor::new(&format!("layer.{index}"), Dtype::F32, &[index % 5], |element| {
                    (file * index + element) as f64
                })
            };
            place.write(&format!("{file}.safetensors"), &(0..4000).map(tensor).collect::<Vec<_>>())
        })
        .collect();
    let output = place.path("out.safetensors");
    reduce(&[&files[0], &files[1], &files[2]], "max", &output).good();
    // The last file has the largest value of every element.
    assert_eq!(fs::read(&output).unwrap(), fs::read(&files[2]).unwrap());

    let empty = place.write_raw("empty.safetensors", "{}", 0);
    reduce(&[&empty, &empty], "sum", &output).good();
    assert_eq!(fs::read(&output).unwrap(), fs::read(&empty).unwrap());
}

#[test]
fn the_json_says_what_was_done() {
    let place = Place::new();
    let file = place.write("a.safetensors", &[Tensor::new("w", Dtype::F16, &[2, 5], |index| index as f64)]);
    let output = place.path("out.safetensors");
    let mut arguments = arguments(&[&file, &file], "avg", &output);
    arguments.push("--json".into());
    let summary: Value = serde_json::from_str(&run(arguments).good().stdout).unwrap();
    assert_eq!((&summary["op"], &summary["tensors"]), (&"avg".into(), &1.into()));
    assert_eq!((&summary["elements"], &summary["bytes"]), (&10.into(), &20.into()));
    assert_eq!(summary["inputs"].as_array().unwrap().len(), 2);
}

#[test]
fn metadata_that_differs_is_a_warning_and_the_first_file_wins() {
    let place = Place::new();
    let tensors = [Tensor::new("w", Dtype::F32, &[1], |_| 1.0)];
    let a = place.write_with("a.safetensors", &tensors, &[("format", "pt"), ("step", "100")]);
    let b = place.write_with("b.safetensors", &tensors, &[("format", "pt"), ("step", "200"), ("by", "me")]);
    let output = place.path("out.safetensors");
    let outcome = reduce(&[&a, &b], "avg", &output).good();
    assert!(outcome.stderr.starts_with("warning: ") && outcome.stderr.contains("by, step"), "{outcome:?}");
    assert_eq!(header(&output), header(&a));
}

#[test]
fn tensors_that_do_not_match_are_named_with_both_files_and_nothing_is_written() {
    let place = Place::new();
    let tensor = |name, dtype, shape: &[usize]| Tensor::new(name, dtype, shape, |_| 1.0);
    let a = place.write("a.safetensors", &[tensor("w", Dtype::F32, &[2, 3]), tensor("b", Dtype::F32, &[2])]);
    let output = place.path("out.safetensors");
    for (tensors, said) in [
        (vec![tensor("w", Dtype::F32, &[3, 2]), tensor("b", Dtype::F32, &[2])], ["`w`", "f32 [2, 3]", "f32 [3, 2]"]),
        (vec![tensor("w", Dtype::F32, &[2, 3]), tensor("b", Dtype::F16, &[2])], ["`b`", "f32 [2]", "f16 [2]"]),
        (vec![tensor("w", Dtype::F32, &[2, 3])], ["`b`", "f32 [2]", "does not have it"]),
        (
            vec![tensor("w", Dtype::F32, &[2, 3]), tensor("b", Dtype::F32, &[2]), tensor("c", Dtype::F32, &[])],
            ["`c`", "does not have it", "f32 []"],
        ),
    ] {
        let b = place.write("b.safetensors", &tensors);
        let outcome = reduce(&[&a, &a, &b], "sum", &output).failed(1, &said);
        assert!(outcome.stderr.contains("a.safetensors") && outcome.stderr.contains("b.safetensors"), "{outcome:?}");
        assert_eq!(place.others(&["a.safetensors", "b.safetensors"]), Vec::<String>::new());
    }
}

#[test]
fn malformed_files_are_named_with_the_reason_and_nothing_is_written() {
    let place = Place::new();
    let good = place.write("good.safetensors", &[Tensor::new("w", Dtype::F32, &[2], |_| 1.0)]);
    let entry = |dtype: &str, shape: &str, from: u64, to: u64| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}}}"#)
    };
    let output = place.path("out.safetensors");
    for (header, data_bytes, reason) in [
        (entry("F32", "[2]", 0, 8), 7, "truncated"),
        (entry("F32", "[2]", 0, 8), 100, "trailing"),
        (entry("C64", "[1]", 0, 8), 8, "tensor `w` is C64"),
        (entry("F32", "[9223372036854775807,9223372036854775807]", 0, 8), 8, "is too large"),
        (entry("F32", "[2]", 1 << 63, (1 << 63) + 8), 8, "must begin at 0"),
        ("not json".to_owned(), 0, "header"),
    ] {
        let bad = place.write_raw("bad.safetensors", &header, data_bytes);
        for inputs in [[&good, &bad], [&bad, &good]] {
            reduce(&inputs.map(PathBuf::as_path), "sum", &output).failed(1, &["bad.safetensors: ", reason]);
        }
    }
    fs::write(place.path("bad.safetensors"), u64::MAX.to_le_bytes()).unwrap();
    reduce(&[&place.path("bad.safetensors")], "sum", &output).failed(1, &["bad.safetensors: ", "limit"]);
    fs::write(place.path("bad.safetensors"), "").unwrap();
    reduce(&[&place.path("bad.safetensors")], "sum", &output).failed(1, &["bad.safetensors: ", "truncated"]);
    fs::create_dir(place.path("directory.safetensors")).unwrap();
    reduce(&[&place.path("directory.safetensors")], "sum", &output).failed(1, &["a directory"]);
    reduce(&[&place.path("missing.safetensors")], "sum", &output).failed(1, &["missing.safetensors"]);

    for (dictionary, reason) in [
        ("{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }\n", "Fortran"),
        ("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }\n", "big-endian"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }\n", "objects"),
        ("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }\n", "only floats"),
        ("{'descr': '<V2', 'fortran_order': False, 'shape': (4,), }\n", "bfloat16"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n", "truncated"),
    ] {
        let bad = place.write_npy("bad.npy", dictionary, &[0; 8]);
        reduce(&[&bad], "sum", &place.path("out.npy")).failed(1, &["bad.npy: ", reason]);
    }
    let inputs = ["good.safetensors", "bad.safetensors", "directory.safetensors", "bad.npy"];
    assert_eq!(place.others(&inputs), Vec::<String>::new());
}

/// That nothing else reaches the terminal is checked wherever a command is run.
#[test]
fn names_and_texts_out_of_files_are_printed_without_what_a_terminal_would_act_on() {
    let place = Place::new();
    let entry = |name: &str, dtype: &str| {
        let entry = serde_json::json!({name: {"dtype": dtype, "shape": [1], "data_offsets": [0, 4]},
            "__metadata__": {name: "x"}});
        entry.to_string()
    };
    let (evil, visible) = ("w\u{1b}[31m\u{7}\nerror: \u{9b}2J", "w\\u{1b}[31m\\u{7}\\nerror: \\u{9b}2J");
    let name = format!("a{evil}.safetensors");
    let a = place.write_raw(&name, &entry(evil, "F32"), 4);
    let b = place.write_raw("b.safetensors", &entry("w", "F32"), 4);
    let output = place.path(&format!("out{evil}.safetensors"));
    let wrong = reduce(&[&a, &b], "sum", &output).failed(1, &[&format!("tensor `{visible}`: "), visible]);
    assert_eq!(wrong.stderr.lines().count(), 3, "{wrong:?}");
    let outcome = reduce(&[&a, &a], "sum", &output).good();
    assert!(outcome.stdout.contains(&format!("out{visible}.safetensors: sum")), "{outcome:?}");
    assert_eq!(fs::read(&output).unwrap(), fs::read(&a).unwrap());
    let mut summary = arguments(&[&a], "sum", &output);
    summary.push("--json".into());
    let summary: Value = serde_json::from_str(&run(summary).good().stdout).unwrap();
    assert_eq!(summary["output"], output.to_str().unwrap());

    place.write_raw("b.safetensors", &entry("w", evil), 4);
    reduce(&[&b], "sum", &output).failed(1, &["b.safetensors: ", "\\u{1b}[31m"]);
    for dictionary in [
        format!("{{'{evil}': 1}}"),
        format!("{{'descr': '{evil}', 'fortran_order': False, 'shape': ()}}"),
        evil.to_owned(),
    ] {
        let bad = place.write_npy("bad.npy", &dictionary, &[0; 4]);
        reduce(&[&bad], "sum", &place.path("out.npy")).failed(1, &["bad.npy: ", "\\u{1b}["]);
    }
    reduce(&[&a], evil, &output).failed(2, &["--op"]);
    reduce(&[&place.path(evil)], "sum", &output).failed(2, &[visible, ".npy"]);
    run(["perf", "-J", evil]).failed(2, &[visible, ".json"]);
    run([evil]).failed(2, &["unrecognized subcommand"]);
}

#[test]
fn an_existing_output_is_replaced_whole_or_not_at_all() {
    let place = Place::new();
    let a = place.write("a.safetensors", &[Tensor::new("w", Dtype::F32, &[2], |_| 1.0)]);
    let b = place.write("b.safetensors", &[Tensor::new("w", Dtype::F32, &[3], |_| 1.0)]);
    let output = place.path("out.safetensors");
    fs::write(&output, "old").unwrap();
    reduce(&[&a, &b], "sum", &output).failed(1, &["`w`"]);
    assert_eq!(fs::read(&output).unwrap(), b"old");
    let mut careful = arguments(&[&a, &a], "sum", &output);
    careful.push("--no-clobber".into());
    run(careful).failed(1, &["exists"]);
    assert_eq!(fs::read(&output).unwrap(), b"old");
    reduce(&[&a, &a], "sum", &output).good();
    assert_eq!(header(&output), header(&a));
    assert_eq!(place.others(&["a.safetensors", "b.safetensors"]), ["out.safetensors"]);
}

#[test]
fn an_output_that_cannot_be_written_is_refused_and_inputs_stay_as_they_are() {
    let place = Place::new();
    let a = place.write("a.safetensors", &[Tensor::new("w", Dtype::F32, &[2], |_| 1.0)]);
    let before = fs::read(&a).unwrap();
    reduce(&[&a, &a], "sum", &a).failed(1, &["one of the inputs"]);
    fs::hard_link(&a, place.path("same.safetensors")).unwrap();
    reduce(&[&a, &a], "sum", &place.path("same.safetensors")).failed(1, &["one of the inputs"]);
    fs::create_dir(place.path("directory.safetensors")).unwrap();
    reduce(&[&a, &a], "sum", &place.path("directory.safetensors")).failed(1, &["a directory"]);
    reduce(&[&a, &a], "sum", &place.path("no/such/out.safetensors")).failed(1, &["no/such/out.safetensors"]);
    reduce(&[&a, &a], "sum", &place.path("out.safetensors/")).failed(1, &["not the name of a file"]);
    let link = |name: &str, target: &str| std::os::unix::fs::symlink(target, place.path(name)).unwrap();
    link("link.safetensors", "a.safetensors");
    reduce(&[&a, &a], "sum", &place.path("link.safetensors")).failed(1, &["one of the inputs"]);
    reduce(&[&place.path("link.safetensors")], "sum", &a).failed(1, &["one of the inputs"]);
    link("dangling.safetensors", "nothing.safetensors");
    reduce(&[&a, &a], "sum", &place.path("dangling.safetensors"))
        .failed(1, &["dangling.safetensors: it is a symbolic link to nothing.safetensors, which does not exist"]);
    link("loop.safetensors", "loop.safetensors");
    reduce(&[&a, &a], "sum", &place.path("loop.safetensors")).failed(1, &["loop.safetensors: "]);
    assert_eq!(fs::read(&a).unwrap(), before);
    let links = ["dangling.safetensors", "link.safetensors", "loop.safetensors"];
    assert_eq!(place.others(&["a.safetensors", "same.safetensors", "directory.safetensors"]), links);
}

#[test]
fn nonsense_is_a_usage_error() {
    let place = Place::new();
    let a = place.write("a.safetensors", &[Tensor::new("w", Dtype::F32, &[2], |_| 1.0)]);
    let npy = place.write_npy("a.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n", &[0; 8]);
    let output = place.path("out.safetensors");
    reduce(&[], "sum", &output).failed(2, &["IN"]);
    reduce(&[&a], "median", &output).failed(2, &["sum, prod"]);
    reduce(&[&a, &npy], "sum", &output).failed(2, &["one kind"]);
    reduce(&[&a], "sum", &place.path("out.npy")).failed(2, &["one kind"]);
    reduce(&[&a], "sum", &place.path("out.pt")).failed(2, &[".safetensors or .npy"]);
    run([OsString::from("reduce"), a.clone().into_os_string()]).failed(2, &["--op"]);
    for algorithm in ["chain", "dissemination"] {
        let mut other = arguments(&[&a, &a], "sum", &output);
        other.extend(["--algorithm".into(), algorithm.into()]);
        run(other).failed(2, &[algorithm, "all_reduce is offered by ring, tree, one_shot, direct"]);
    }
    assert!(!output.exists());
    let many = vec![a.as_path(); 1025];
    reduce(&many, "sum", &output).failed(2, &["at most 1024"]);
}

/// Inputs whose data is not on disk (they are holes), so that making them is quick; reducing them is not.
fn large_inputs(place: &Place) -> [PathBuf; 2] {
    const COUNT: u64 = 1 << 28;
    let header = format!(r#"{{"w":{{"dtype":"F32","shape":[{COUNT}],"data_offsets":[0,{}]}}}}"#, 4 * COUNT);
    ["a.safetensors", "b.safetensors"].map(|name| place.write_raw(name, &header, 4 * COUNT))
}

/// Starts the command and comes back when it is writing its output.
fn started(place: &Place, arguments: Vec<OsString>) -> Child {
    let mut child = tutti().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let directory = place.0.path().canonicalize().unwrap();
    let writes = |file: fs::DirEntry| {
        let target = fs::read_link(file.path()).unwrap_or_default();
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        target.starts_with(&directory) && (name.starts_with('#') || name.starts_with(".tutti-"))
    };
    let start = Instant::now();
    while !fs::read_dir(format!("/proc/{}/fd", child.id())).is_ok_and(|files| files.flatten().any(writes)) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it began to write");
        assert!(start.elapsed() < Duration::from_secs(60), "it did not begin to write");
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

/// Whether files without a name can be made there, as they can on all common file systems of Linux.
fn has_unnamed_files(directory: &Path) -> bool {
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::WRONLY;
    rustix::fs::open(directory, flags, rustix::fs::Mode::RUSR).is_ok()
}

#[test]
fn a_signal_in_mid_write_leaves_no_output_and_the_old_file() {
    use rustix::process::{Pid, Signal, kill_process};
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15), (Signal::KILL, 9)] {
        let place = Place::new();
        if signal == Signal::KILL && !has_unnamed_files(place.0.path()) {
            println!("skipped: the file system of {} has no files without a name", place.0.path().display());
            continue;
        }
        let [a, b] = large_inputs(&place);
        let output = place.path("out.safetensors");
        // On a busy machine the command may be done before the signal is sent; then once more.
        let status = (0..10).find_map(|_| {
            fs::write(&output, "old").unwrap();
            let mut child = started(&place, arguments(&[&a, &b], "sum", &output));
            kill_process(Pid::from_child(&child), signal).unwrap();
            let status = child.wait().unwrap();
            (!status.success()).then_some(status)
        });
        let status = status.expect("a signal that comes in time");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(number), "{status:?}");
        assert_eq!(place.others(&["a.safetensors", "b.safetensors", "out.safetensors"]), Vec::<String>::new());
        assert_eq!(fs::read(&output).unwrap(), b"old");
    }
}

#[test]
fn an_input_that_is_cut_short_while_it_is_read_is_named_and_nothing_is_written() {
    let place = Place::new();
    let [a, b] = large_inputs(&place);
    let child = started(&place, arguments(&[&a, &b], "sum", &place.path("out.safetensors")));
    fs::File::options().write(true).open(&b).unwrap().set_len(5000).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let expected = ["error: ", "b.safetensors: ", "cut short while it was read", "to 5000 bytes"];
    assert!(expected.iter().all(|text| said.contains(text)), "{said}");
    assert_eq!(place.others(&["a.safetensors", "b.safetensors"]), Vec::<String>::new());
}

/// What is asked for on standard output counts, as it does for every other command; the output is not taken back.
#[test]
fn a_summary_that_cannot_be_written_is_a_failure_that_says_that_the_output_is_there() {
    let place = Place::new();
    let a = place.write("a.safetensors", &[Tensor::new("w", Dtype::F32, &[5], |index| index as f64)]);
    let output = place.path("out.safetensors");
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    finish(tutti().args(arguments(&[&a], "sum", &output)).stdout(full))
        .failed(1, &["standard output", "No space left", "out.safetensors is complete"]);
    assert_eq!(fs::read(&output).unwrap(), fs::read(&a).unwrap());
    fs::remove_file(&output).unwrap();

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(finish(tutti().args(arguments(&[&a], "sum", &output)).stdout(writer)).good().stderr, "");
    assert_eq!(fs::read(&output).unwrap(), fs::read(&a).unwrap());
}

#[test]
fn more_files_than_a_process_may_open_at_first_reduce() {
    let place = Place::new();
    let a = place.write("a.safetensors", &[Tensor::new("w", Dtype::F32, &[2], |index| index as f64)]);
    let output = place.path("out.safetensors");
    // The soft limit only, as a shell's default is.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -S -n 30 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tutti")]);
    finish(command.args(arguments(&[a.as_path(); 40], "avg", &output))).good();
    assert_eq!(fs::read(&output).unwrap(), fs::read(&a).unwrap());
}

#[test]
fn no_progress_bar_is_drawn_where_there_is_no_terminal() {
    let place = Place::new();
    let a = place.write("a.safetensors", &[Tensor::new("w", Dtype::F32, &[100_000], |index| index as f64)]);
    let outcome = finish(tutti().args(arguments(&[&a, &a], "sum", &place.path("out.safetensors")))).good();
    assert_eq!(outcome.stderr, "");
}
