//! The header of a `.safetensors` file: eight bytes of length, then JSON, then the tensors' data without gaps.
//!
//! The types of an entry are the `safetensors` crate's. The header itself is read here, because the crate wants the whole
//! file in memory, forgets the order of empty tensors, takes the last of two tensors with one name, and does not say which
//! tensor is wrong.

use super::{Header, Tensor, read_more, tensor_bytes};
use crate::shown::shown;
use safetensors::tensor::{Dtype, TensorInfo};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::Read;
use tutti::DType;

/// The crate's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Bytes of the header's length.
const LENGTH_BYTES: u64 = 8;

/// Reads and checks the header of a file of `file_bytes`.
pub(super) fn read_header(source: &mut impl Read, file_bytes: u64) -> Result<Header, String> {
    let mut raw = Vec::new();
    read_more(source, LENGTH_BYTES, &mut raw)?;
    let length = raw[..].try_into().map(u64::from_le_bytes).map_err(|_| "truncated".to_owned())?;
    if length > HEADER_BYTES_MAX {
        return Err(format!(
            "not a safetensors file: its header would be {length} bytes long, more than the limit of {HEADER_BYTES_MAX}"
        ));
    }
    let data_start = LENGTH_BYTES + length;
    if data_start > file_bytes {
        return Err(format!("truncated: the header is {length} bytes long, and the file only {file_bytes}"));
    }
    read_more(source, length, &mut raw)?;
    let entries: Entries = serde_json::from_slice(&raw[LENGTH_BYTES as usize..])
        .map_err(|error| format!("the header is not that of a safetensors file: {}", shown(&error.to_string())))?;

    let mut tensors = entries.tensors;
    // A stable sort: tensors without data keep the order of the header.
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let mut end = 0;
    let mut checked = Vec::with_capacity(tensors.len());
    for (tensor_name, info) in tensors {
        let name = shown(&tensor_name);
        let (from, to) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        if from != end || to < from {
            return Err(format!(
                "tensor `{name}`: its data lies at bytes {from}..{to}, but must begin at {end}, where the one before it \
                 ends: data may neither overlap nor leave gaps"
            ));
        }
        let Some(dtype) = dtype(info.dtype) else {
            return Err(format!("tensor `{name}` is {}: only {} can be reduced", info.dtype, names()));
        };
        let shape: Vec<u64> = info.shape.iter().map(|&extent| extent as u64).collect();
        let bytes = to - from;
        let Some(shape_bytes) = tensor_bytes(&shape, dtype.bytes() as u64) else {
            return Err(format!("tensor `{name}`: the shape {shape:?} is too large"));
        };
        if shape_bytes != bytes {
            return Err(format!("tensor `{name}`: {dtype} {shape:?} does not fill the {bytes} bytes of its data"));
        }
        end = to;
        let offset = data_start.checked_add(from).ok_or_else(|| format!("tensor `{name}`: its offset is too large"))?;
        checked.push(Tensor { name: tensor_name, dtype, shape, offset, bytes });
    }
    let present = file_bytes - data_start;
    if end != present {
        let what = if end > present { "truncated" } else { "trailing bytes" };
        return Err(format!("{what}: the header describes {end} bytes of data, and the file holds {present}"));
    }
    Ok(Header { raw, tensors: checked, metadata: entries.metadata })
}

fn dtype(dtype: Dtype) -> Option<DType> {
    let name = dtype.to_string();
    DType::ALL.iter().copied().find(|dtype| dtype.safetensors_name() == name)
}

/// The names of the types that can be reduced.
fn names() -> String {
    DType::ALL.iter().map(|dtype| dtype.safetensors_name()).collect::<Vec<_>>().join(", ")
}

/// The header's JSON, in its order.
#[derive(Default)]
struct Entries {
    tensors: Vec<(String, TensorInfo)>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with one entry for each tensor")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Entries::default();
                let mut seen = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format!("`{name}` is there twice")));
                    }
                    let named = |error: A::Error| A::Error::custom(format!("`{name}`: {error}"));
                    if name == "__metadata__" {
                        entries.metadata = map.next_value::<Option<_>>().map_err(named)?.unwrap_or_default();
                    } else {
                        let info = map.next_value().map_err(named)?;
                        entries.tensors.push((name, info));
                    }
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use safetensors::SafeTensors;
    use safetensors::tensor::TensorView;

    fn file(json: &str, data_bytes: usize) -> Vec<u8> {
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend(json.as_bytes());
        file.resize(file.len() + data_bytes, 7);
        file
    }

    fn read(file: &[u8]) -> Result<Header, String> {
        read_header(&mut &file[..], file.len() as u64)
    }

    #[test]
    fn headers_are_read_in_the_order_of_the_data() {
        let json = r#"{"__metadata__":{"format":"pt"},
            "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
            "z":{"dtype":"F16","shape":[0,5],"data_offsets":[16,16]},
            "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
            "y":{"dtype":"F32","shape":[0],"data_offsets":[16,16]}}"#;
        let header = read(&file(json, 16)).unwrap();
        let names: Vec<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "z", "y"]);
        assert_eq!(header.metadata["format"], "pt");
        assert_eq!(header.raw.len(), 8 + json.len());
        let b = &header.tensors[1];
        assert_eq!((b.dtype, &b.shape[..], b.offset, b.bytes), (DType::BF16, &[2, 3][..], 12 + json.len() as u64, 12));
        assert!(read(&file("{}", 0)).unwrap().tensors.is_empty());
    }

    #[test]
    fn wrong_headers_are_refused_with_a_reason() {
        let one = |entry: &str| format!(r#"{{"w":{{{entry}}}}}"#);
        for (json, data_bytes, reason) in [
            (one(r#""dtype":"F32","shape":[2],"data_offsets":[0,8]"#), 7, "truncated"),
            (one(r#""dtype":"F32","shape":[2],"data_offsets":[0,8]"#), 9, "trailing"),
            (one(r#""dtype":"F32","shape":[2],"data_offsets":[4,12]"#), 12, "must begin at 0"),
            (one(r#""dtype":"F32","shape":[2],"data_offsets":[8,0]"#), 8, "must begin at 0"),
            (one(r#""dtype":"F32","shape":[3],"data_offsets":[0,8]"#), 8, "does not fill"),
            (one(r#""dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]"#), 8, "is too large"),
            (one(r#""dtype":"F32","shape":[18446744073709551615,18446744073709551615,0],"data_offsets":[0,0]"#), 0, "is too large"),
            (one(r#""dtype":"F32","shape":[-1],"data_offsets":[0,8]"#), 8, "`w`"),
            (one(r#""dtype":"C64","shape":[1],"data_offsets":[0,8]"#), 8, "tensor `w` is C64"),
            (one(r#""dtype":"BOOL","shape":[1],"data_offsets":[0,1]"#), 1, "only F32, F64, F16, BF16, F8_E4M3"),
            (one(r#""dtype":"F99","shape":[1],"data_offsets":[0,8]"#), 8, "F99"),
            (one(r#""dtype":"F32","shape":[1]"#), 4, "data_offsets"),
            (r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#
                .to_owned(), 8, "twice"),
            (r#"{"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#
                .to_owned(), 8, "tensor `w`: its data lies at bytes 4..8"),
            (r#"{"__metadata__":{"a":1}}"#.to_owned(), 0, "__metadata__"),
            ("[]".to_owned(), 0, "not that of a safetensors file"),
            ("{".to_owned(), 0, "not that of a safetensors file"),
            ("{} x".to_owned(), 0, "not that of a safetensors file"),
            ("[".repeat(100_000), 0, "not that of a safetensors file"),
        ] {
            let error = read(&file(&json, data_bytes)).unwrap_err();
            assert!(error.contains(reason), "{json:.200}: {error}");
        }
    }

    #[test]
    fn lengths_are_not_believed() {
        for (file, reason) in [
            (&b""[..], "truncated"),
            (b"1234567", "truncated"),
            (&u64::MAX.to_le_bytes(), "not a safetensors file"),
            (&100_000_000_u64.to_le_bytes(), "truncated"),
            (&3_u64.to_le_bytes(), "truncated"),
        ] {
            assert!(read(file).unwrap_err().contains(reason));
        }
        // A file that says it is longer than it is.
        assert!(read_header(&mut &9_u64.to_le_bytes()[..], 1000).unwrap_err().contains("truncated"));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), length in 0_u64..300) {
            let _ = read(&bytes);
            let mut with_length = length.to_le_bytes().to_vec();
            with_length.extend(bytes);
            let _ = read(&with_length);
        }

        #[test]
        fn damaged_headers_never_panic(place in 0_usize..200, byte in any::<u8>(), cut in 0_usize..300) {
            let json = r#"{"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;
            let mut file = file(json, 16);
            let place = place % file.len();
            file[place] = byte;
            file.truncate(cut);
            let _ = read(&file);
        }

        #[test]
        fn what_the_crate_writes_is_read_as_the_crate_reads_it(
            shapes in prop::collection::vec((prop::collection::vec(0_usize..4, 0..4), 0..8_usize), 0..6)
        ) {
            let dtypes = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F64, Dtype::F8_E4M3, Dtype::F8_E5M2, Dtype::I8, Dtype::U64];
            let data = vec![1_u8; 8 * 27 * 3];
            let views = shapes.iter().enumerate().map(|(index, (shape, dtype))| {
                let bytes = shape.iter().product::<usize>() * dtypes[*dtype].bitsize() / 8;
                (format!("t{index}"), TensorView::new(dtypes[*dtype], shape.clone(), &data[..bytes]).unwrap())
            });
            let file = safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap();
            let (header, theirs) = (read(&file).unwrap(), SafeTensors::deserialize(&file).unwrap());
            prop_assert_eq!(header.tensors.len(), theirs.len());
            for tensor in &header.tensors {
                let view = theirs.tensor(&tensor.name).unwrap();
                prop_assert_eq!(view.shape().iter().map(|&extent| extent as u64).collect::<Vec<_>>(), tensor.shape.clone());
                prop_assert_eq!(dtype(view.dtype()), Some(tensor.dtype));
                prop_assert_eq!(view.data().as_ptr() as usize - file.as_ptr() as usize, tensor.offset as usize);
                prop_assert_eq!(view.data().len() as u64, tensor.bytes);
            }
        }
    }
}
