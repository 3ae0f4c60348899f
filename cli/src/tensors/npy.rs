//! The header of a `.npy` file, versions 1 to 3: magic, version, length, and a Python dictionary of three entries.
//! (<https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>)
//!
//! The dictionary is read by a small parser of its own for just the literals that NumPy writes; nothing in it is nested
//! without bound.

use super::{Header, Tensor, read_more, tensor_bytes};
use crate::shown::shown;
use std::collections::BTreeMap;
use std::io::Read;
use tutti::DType;

/// What a `.npy` file begins with.
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// NumPy itself refuses to evaluate dictionaries of more than 10000 bytes; this leaves room.
const DICTIONARY_BYTES_MAX: u64 = 1 << 20;

/// What the only tensor of a file is called in messages.
const NAME: &str = "array";

/// Reads and checks the header of a file of `file_bytes`.
pub(super) fn read_header(source: &mut impl Read, file_bytes: u64) -> Result<Header, String> {
    let mut raw = Vec::new();
    read_more(source, 8, &mut raw).map_err(|_| "truncated: not even a whole npy header is there".to_owned())?;
    if !raw.starts_with(MAGIC) {
        return Err("not an npy file: it does not begin with \\x93NUMPY".to_owned());
    }
    let (major, minor) = (raw[6], raw[7]);
    let length_bytes = match (major, minor) {
        (1, 0) => 2,
        (2 | 3, 0) => 4,
        _ => return Err(format!("npy version {major}.{minor}: expected 1.0, 2.0 or 3.0")),
    };
    read_more(source, length_bytes, &mut raw)?;
    let length = raw[8..].iter().rev().fold(0_u64, |length, &byte| length << 8 | u64::from(byte));
    if length > DICTIONARY_BYTES_MAX {
        return Err(format!("the header would be {length} bytes long, more than the limit of {DICTIONARY_BYTES_MAX}"));
    }
    let dictionary_start = raw.len();
    let data_start = dictionary_start as u64 + length;
    if data_start > file_bytes {
        return Err(format!("truncated: the header is {length} bytes long, and the file only {file_bytes}"));
    }
    read_more(source, length, &mut raw)?;
    let array = Literals { rest: &raw[dictionary_start..], python_2: major < 3 }.dictionary()?;
    let dtype = dtype(&array.descr)?;
    if array.fortran_order {
        return Err("Fortran order is not supported: save the array with numpy.ascontiguousarray".to_owned());
    }
    let present = file_bytes - data_start;
    match tensor_bytes(&array.shape, dtype.bytes() as u64) {
        Some(bytes) if bytes == present => {}
        Some(bytes) => {
            let what = if bytes > present { "truncated" } else { "trailing bytes" };
            return Err(format!("{what}: {dtype} {:?} is {bytes} bytes, and the file holds {present}", array.shape));
        }
        None => return Err(format!("the shape {:?} is too large", array.shape)),
    }
    let tensor = Tensor { name: NAME.to_owned(), dtype, shape: array.shape, offset: data_start, bytes: present };
    Ok(Header { raw, tensors: vec![tensor], metadata: BTreeMap::new() })
}

/// The type that NumPy takes the text for, on a little-endian machine: there `=`, `|` and no mark at all mean the same as `<`.
fn dtype(descr: &str) -> Result<DType, String> {
    let (order, kind) = match descr.split_at_checked(1) {
        Some((order @ ("<" | "=" | "|" | ">"), kind)) => (order, kind),
        _ => ("", descr),
    };
    let named = match kind {
        "float32" | "single" => Some(DType::F32),
        "float64" | "double" | "float" => Some(DType::F64),
        "float16" | "half" => Some(DType::F16),
        _ => kind.parse().ok().filter(|dtype: &DType| dtype.is_integer() && dtype.nccl_name() == kind),
    };
    let coded = DType::ALL.iter().copied().find(|dtype| dtype.numpy_codes().contains(&kind));
    let reason = match (coded, named.filter(|dtype| order.is_empty() && !dtype.numpy_codes().is_empty())) {
        (Some(dtype), _) if order == ">" && dtype.bytes() > 1 => {
            "big-endian numbers are not supported: save the array with .astype('<f4') or its like"
        }
        (Some(dtype), _) | (None, Some(dtype)) => return Ok(dtype),
        (None, None) => match (kind, order) {
            ("O", _) | ("object", "") => "Python objects are not supported",
            ("V2", _) => "npy has no bfloat16 (use .safetensors)",
            ("V1", _) => "npy has no 8-bit floats (use .safetensors)",
            _ => "only floats (<f8, <f4, <f2) and integers (from |i1 to <u8) can be reduced",
        },
    };
    Err(format!("the array's type is '{}': {reason}", shown(descr)))
}

/// What the dictionary says.
#[derive(Debug, PartialEq)]
struct Array {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// A parser of the few Python literals that a header is made of.
struct Literals<'a> {
    rest: &'a [u8],
    /// Whether Python 2 may have written it.
    python_2: bool,
}

impl Literals<'_> {
    fn dictionary(mut self) -> Result<Array, String> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while !self.take(b'}') {
            let key = self.string()?;
            self.expect(b':')?;
            let twice = match key.as_str() {
                "descr" => descr.replace(self.descr()?).is_some(),
                "fortran_order" => fortran_order.replace(self.boolean()?).is_some(),
                "shape" => shape.replace(self.tuple()?).is_some(),
                _ => return Err(format!("the header has an entry '{}' that no npy file has", shown(&key))),
            };
            if twice {
                return Err(format!("the header has two entries '{key}'"));
            }
            if !self.take(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        self.skip_blanks();
        if !self.rest.is_empty() {
            return Err("the header goes on after its dictionary".to_owned());
        }
        let missing = |key| format!("the header has no entry '{key}'");
        Ok(Array {
            descr: descr.ok_or_else(|| missing("descr"))?,
            fortran_order: fortran_order.ok_or_else(|| missing("fortran_order"))?,
            shape: shape.ok_or_else(|| missing("shape"))?,
        })
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    /// Takes a punctuation mark if it is next.
    fn take(&mut self, mark: u8) -> bool {
        self.skip_blanks();
        match self.rest.split_first() {
            Some((&first, rest)) if first == mark => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn expect(&mut self, mark: u8) -> Result<(), String> {
        if self.take(mark) { Ok(()) } else { Err(self.unexpected(&format!("'{}'", mark as char))) }
    }

    fn unexpected(&self, expected: &str) -> String {
        let found = String::from_utf8_lossy(&self.rest[..self.rest.len().min(20)]);
        format!("the header is not a Python dictionary as NumPy writes it: expected {expected}, found {found:?}")
    }

    fn descr(&mut self) -> Result<String, String> {
        self.skip_blanks();
        if self.rest.starts_with(b"[") {
            return Err("structured types are not supported: only arrays of one type can be reduced".to_owned());
        }
        self.string()
    }

    fn string(&mut self) -> Result<String, String> {
        self.skip_blanks();
        let quote = match self.rest.first() {
            Some(&quote @ (b'\'' | b'"')) => quote,
            _ => return Err(self.unexpected("a string")),
        };
        let body = &self.rest[1..];
        let end = body.iter().position(|&byte| byte == quote || byte == b'\\');
        match end {
            Some(end) if body[end] == quote => {
                self.rest = &body[end + 1..];
                Ok(String::from_utf8_lossy(&body[..end]).into_owned())
            }
            _ => Err(self.unexpected("a string")),
        }
    }

    fn boolean(&mut self) -> Result<bool, String> {
        self.skip_blanks();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word.as_bytes()) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err(self.unexpected("True or False"))
    }

    fn tuple(&mut self) -> Result<Vec<u64>, String> {
        let mut values = Vec::new();
        self.expect(b'(')?;
        while !self.take(b')') {
            values.push(self.integer()?);
            if !self.take(b',') {
                if values.len() == 1 {
                    return Err(self.unexpected("a tuple, which has a comma: (4,)"));
                }
                self.expect(b')')?;
                break;
            }
        }
        Ok(values)
    }

    fn integer(&mut self) -> Result<u64, String> {
        self.skip_blanks();
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (text, rest) = self.rest.split_at(digits);
        // Python takes no leading zeros, but any number of zeros.
        let leading = text.first() == Some(&b'0') && text.iter().any(|&digit| digit != b'0');
        let value = str::from_utf8(text).ok().filter(|_| !leading).and_then(|text| text.parse().ok());
        let value = value.ok_or_else(|| self.unexpected("an extent below 2^64"))?;
        self.rest = match rest.strip_prefix(b"L") {
            // Python 2 wrote long integers with an L, and versions 1 and 2.
            Some(rest) if self.python_2 => rest,
            _ => rest,
        };
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(version: u8, dictionary: &str, data_bytes: usize) -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        file.extend([version, 0]);
        match version {
            1 => file.extend((dictionary.len() as u16).to_le_bytes()),
            _ => file.extend((dictionary.len() as u32).to_le_bytes()),
        }
        file.extend(dictionary.as_bytes());
        file.resize(file.len() + data_bytes, 7);
        file
    }

    fn read(file: &[u8]) -> Result<Header, String> {
        read_header(&mut &file[..], file.len() as u64)
    }

    #[test]
    fn headers_of_every_version_are_read() {
        for (dictionary, shape, data_bytes) in [
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n", &[2, 3][..], 24),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (), }\n", &[], 4),
            ("{\"shape\":(5,),\"descr\":\"<f4\",\"fortran_order\":False}", &[5], 20),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1,)}", &[2, 1], 8),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': ( 5 ,\n), }", &[5], 20),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (00,), }", &[0], 0),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 7), }\n", &[0, 7], 0),
        ] {
            for version in 1..=3 {
                let file = file(version, dictionary, data_bytes);
                let header = read(&file).unwrap();
                let [tensor] = &header.tensors[..] else { panic!("one tensor") };
                assert_eq!((tensor.dtype, &tensor.shape[..]), (DType::F32, shape));
                assert_eq!((tensor.offset, tensor.bytes), ((file.len() - data_bytes) as u64, data_bytes as u64));
                assert_eq!(header.raw, file[..file.len() - data_bytes]);
            }
        }
    }

    #[test]
    fn types_are_those_that_numpy_takes_for_native_ones() {
        for (descr, dtype) in [
            ("<f4", DType::F32),
            ("=f4", DType::F32),
            ("|f4", DType::F32),
            ("f4", DType::F32),
            ("<f", DType::F32),
            ("f", DType::F32),
            ("float32", DType::F32),
            ("single", DType::F32),
            ("=f2", DType::F16),
            ("f2", DType::F16),
            ("|e", DType::F16),
            ("float16", DType::F16),
            ("half", DType::F16),
            ("<f8", DType::F64),
            ("float64", DType::F64),
            ("|i1", DType::I8),
            ("|u1", DType::U8),
            (">u1", DType::U8),
            ("<i2", DType::I16),
            ("<u4", DType::U32),
            ("<i8", DType::I64),
            ("uint64", DType::U64),
        ] {
            let dictionary = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (3,), }}\n");
            assert_eq!(read(&file(1, &dictionary, 3 * dtype.bytes())).unwrap().tensors[0].dtype, dtype, "{descr}");
        }
    }

    #[test]
    fn a_long_integer_is_taken_where_python_2_can_have_written_it() {
        let dictionary = "{'descr': '<f4', 'fortran_order': False, 'shape': (5L, 1L), }\n";
        for (version, good) in [(1, true), (2, true), (3, false)] {
            assert_eq!(read(&file(version, dictionary, 20)).is_ok(), good);
        }
    }

    #[test]
    fn wrong_headers_are_refused_with_a_reason() {
        let descr = |descr: &str| format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (2,), }}\n");
        for (dictionary, data_bytes, reason) in [
            (descr("'<f4'"), 7, "truncated"),
            (descr("'<f4'"), 9, "trailing"),
            (descr("'>f4'"), 8, "big-endian"),
            (descr("'>f2'"), 4, "big-endian"),
            (descr("'>f'"), 8, "big-endian"),
            (descr("'>float32'"), 8, "only floats"),
            (descr("'<float32'"), 8, "only floats"),
            (descr("'F4'"), 8, "only floats"),
            (descr("' f4'"), 8, "only floats"),
            (descr("'@f4'"), 8, "only floats"),
            (descr("''"), 8, "only floats"),
            (descr("'é'"), 8, "only floats"),
            (descr("4"), 8, "expected a string"),
            (descr("'|O'"), 8, "objects"),
            (descr("'<V2'"), 4, "bfloat16"),
            (descr("'<c8'"), 16, "'<c8': only floats"),
            (descr("'|b1'"), 2, "only floats"),
            (descr("'>i8'"), 16, "big-endian"),
            (descr("[('a', '<f4')]"), 8, "structured"),
            (descr("'<f4"), 8, "expected"),
            (descr("'<f4', 'descr': '<f4'"), 8, "two entries 'descr'"),
            (descr("'<f4', 'more': 1"), 8, "'more'"),
            ("{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }".to_owned(), 8, "Fortran"),
            ("{'descr': '<f4', 'fortran_order': None, 'shape': (2,), }".to_owned(), 8, "True or False"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }".to_owned(), 8, "extent"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }".to_owned(), 8, "extent"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999999999,9), }".to_owned(), 8, "too large"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } x".to_owned(), 8, "goes on"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (2), }".to_owned(), 8, "a comma"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': 2, }".to_owned(), 8, "expected '('"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': [2], }".to_owned(), 8, "expected '('"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (,), }".to_owned(), 4, "extent"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (2,,), }".to_owned(), 8, "extent"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (1 2), }".to_owned(), 8, "a comma"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (02,), }".to_owned(), 8, "extent"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (True,), }".to_owned(), 4, "extent"),
            ("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,), }".to_owned(), 8, "True or False"),
            ("{'descr': '<f4', 'fortran_order': Falsey, 'shape': (2,), }".to_owned(), 8, "expected '}'"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\0\0".to_owned(), 8, "goes on"),
            ("{'descr': '<f4', 'shape': (2,)}".to_owned(), 8, "no entry 'fortran_order'"),
            (String::new(), 8, "expected '{'"),
        ] {
            let error = read(&file(1, &dictionary, data_bytes)).unwrap_err();
            assert!(error.contains(reason), "{dictionary}: {error}");
        }
    }

    #[test]
    fn lengths_and_versions_are_not_believed() {
        for (file, reason) in [
            (&b""[..], "truncated"),
            (b"PK\x03\x04abcdefgh", "not an npy file"),
            (b"\x93NUMPY\x01\x00\xff\xff{", "truncated"),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "more than the limit"),
            (b"\x93NUMPY\x04\x00\x00\x00", "version 4.0"),
            (b"\x93NUMPY\x01\x01\x00\x00", "version 1.1"),
            (b"\x93NUMPY\x02\x00\x01\x00", "truncated"),
            (b"\x93NUMPY\x01\x00\x01", "truncated"),
        ] {
            let error = read(file).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
            let _ = read(&[&b"\x93NUMPY\x01\x00"[..], &bytes].concat());
        }

        #[test]
        fn arbitrary_dictionaries_never_panic(text in r#"[{}\[\]()'",: a-zA-Z0-9<>|_\\-]{0,100}"#) {
            let _ = read(&file(1, &text, 8));
        }

        #[test]
        fn damaged_headers_never_panic(place in 0_usize..90, byte in any::<u8>(), cut in 0_usize..100) {
            let mut file = file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", 24);
            let place = place % file.len();
            file[place] = byte;
            file.truncate(cut);
            let _ = read(&file);
        }
    }
}
