//! Rust text that build scripts write and other crates include.

use std::fmt::Write;

use crate::{Architecture, BYTES, DTYPES, DType, Kind, MULTIMEM_CAPABILITY, PARAMETERS, REDUCTIONS, Slots, entries_of};

/// The entry points of one element type for one architecture, for the kernels to include where the functions
/// `run`, `run_copies` and `run_flagged` are.
pub fn entry_points(slots: Slots, dtype: &'static DType, architecture: &Architecture) -> String {
    let parameters: Vec<String> =
        PARAMETERS.iter().map(|parameter| format!("{}: {}", parameter.name, parameter.rust)).collect();
    let arguments: Vec<&str> = PARAMETERS.iter().map(|parameter| parameter.name).collect();
    let mut text = String::from("// Generated from the kernel table.\n");
    for entry in entries_of(slots, dtype) {
        let loops = dtype.loops(entry.reduction, architecture);
        let switched =
            dtype.multimem(entry.reduction).filter(|_| architecture.compute_capability >= MULTIMEM_CAPABILITY);
        let multimem = switched.map_or("0".to_owned(), |name| format!("{{ crate::target::multimem::{name} }}"));
        let kernel = format!("crate::element::{}, crate::reduction::{}", entry.dtype.marker, entry.reduction.variant);
        let call = match slots {
            Slots::Simple if dtype == BYTES => format!("run_copies::<{loops}, {multimem}>"),
            Slots::Simple => format!("run::<{kernel}, {loops}, {multimem}>"),
            Slots::LowLatency => format!("run_flagged::<{kernel}>"),
        };
        write!(
            text,
            "
#[unsafe(no_mangle)]
unsafe extern \"ptx-kernel\" fn {name}({parameters}) {{
    // SAFETY: whoever launches the kernel keeps the contract of what it calls.
    unsafe {{ {call}({arguments}) }}
}}
",
            name = entry.name(),
            parameters = parameters.join(", "),
            arguments = arguments.join(", "),
        )
        .expect("a string takes all that is written to it");
    }
    text
}

/// The host's kernels and the way to them from an element type and a reduction that are known at run time: a function `row`,
/// for the kernels to include where `Row`, `Isa` and the modules `element` and `reduction` are.
pub fn host_table() -> String {
    let mut text = String::from(
        "// Generated from the kernel table.

/// The row of an element type and a reduction, by their places in the kernel table; none where the type does not offer the
/// reduction.
///
/// # Safety
/// The processor has `isa`.
pub unsafe fn row(dtype: usize, reduction: usize, isa: Isa) -> Option<Row> {
    // SAFETY: passed on from the caller.
    let row = unsafe {
        match (dtype, reduction) {
",
    );
    for (reduction_index, reduction) in REDUCTIONS.iter().enumerate() {
        for (dtype_index, dtype) in DTYPES.iter().enumerate().filter(|(_, dtype)| dtype.offers(reduction)) {
            let (marker, variant) = (dtype.kernel(reduction).marker, reduction.variant);
            let (loops, wide) = (dtype.host_loops(reduction), dtype.host_wide(reduction));
            line(
                &mut text,
                format_args!(
                    "            ({dtype_index}, {reduction_index}) => \
                     Row::of::<element::{marker}, reduction::{variant}, {loops}, {wide}>(isa),"
                ),
            );
        }
    }
    text.push_str("            _ => return None,\n        }\n    };\n    Some(row)\n}\n");
    text
}

/// The library's types: the enums `DType` and `Reduction`, the `Element` of each Rust type, and the macro that goes from the
/// one to the other; to be included where the macro `named!`, the trait `Element` and its seal are.
pub fn types() -> String {
    let mut text = String::from("// Generated from the kernel table.\n");
    text.push_str("\nnamed!(\n    /// The type of the elements.\n    DType, \"element type\" {\n");
    for dtype in DTYPES {
        variant(&mut text, dtype.doc, dtype.variant, dtype.name, dtype.aliases.iter().chain([&dtype.nccl]));
    }
    text.push_str("    }\n);\n");
    text.push_str(
        "
named!(
    /// How the ranks' elements become one.
    ///
    /// 16-bit and 8-bit floats are widened to f32, reduced there and rounded once per step, to nearest even (8-bit floats to
    /// what is finite); f64 stays f64. NaN propagates through all of them; −0 is less than +0; subnormals are kept, but for
    /// the scaling of averages. Integers wrap.
    ///
    /// All ranks end with the same bits, and so does the same call every time, with one exception: where a result is a NaN it
    /// is a NaN on every rank, but its sign and payload may differ between ranks, and from one call to the next.
    Reduction, \"reduction\" {
",
    );
    for reduction in REDUCTIONS {
        variant(&mut text, reduction.doc, reduction.variant, reduction.name, reduction.aliases.iter());
    }
    text.push_str("    }\n);\n\nimpl DType {\n");
    let of_each = |text: &mut String, doc: &str, signature: &str, value: &dyn Fn(&DType) -> String| {
        line(text, format_args!("    /// {doc}\n    pub const fn {signature} {{\n        match self {{"));
        for dtype in DTYPES {
            line(text, format_args!("            DType::{} => {},", dtype.variant, value(dtype)));
        }
        text.push_str("        }\n    }\n\n");
    };
    of_each(&mut text, "Bytes of one element.", "bytes(self) -> usize", &|dtype| dtype.bytes.to_string());
    of_each(&mut text, "Whether its numbers are whole.", "is_integer(self) -> bool", &|dtype| {
        (dtype.kind != Kind::Float).to_string()
    });
    of_each(&mut text, "Whether it holds negative numbers.", "is_signed(self) -> bool", &|dtype| {
        (dtype.kind != Kind::Unsigned).to_string()
    });
    of_each(&mut text, "nccl-tests' name for it.", "nccl_name(self) -> &'static str", &|dtype| {
        format!("{:?}", dtype.nccl)
    });
    of_each(&mut text, "Its name in `.safetensors` files.", "safetensors_name(self) -> &'static str", &|dtype| {
        format!("{:?}", dtype.safetensors)
    });
    of_each(
        &mut text,
        "NumPy's codes for it, without the byte order; none where NumPy has no such type.",
        "numpy_codes(self) -> &'static [&'static str]",
        &|dtype| format!("&{:?}", dtype.numpy),
    );
    text.push_str("    /// Whether its elements can be reduced so.\n    pub const fn offers(self, reduction: Reduction) -> bool {\n");
    text.push_str("        match reduction {\n");
    for reduction in REDUCTIONS {
        let offering: Vec<String> = DTYPES
            .iter()
            .filter(|dtype| dtype.offers(reduction))
            .map(|dtype| format!("DType::{}", dtype.variant))
            .collect();
        let test = if offering.len() == DTYPES.len() {
            "true".to_owned()
        } else {
            format!("matches!(self, {})", offering.join(" | "))
        };
        line(&mut text, format_args!("            Reduction::{} => {test},", reduction.variant));
    }
    text.push_str("        }\n    }\n}\n");
    for DType { rust, variant, bytes, .. } in DTYPES {
        line(
            &mut text,
            format_args!(
                "
impl sealed::Sealed for {rust} {{}}

impl Element for {rust} {{
    const DTYPE: DType = DType::{variant};
}}

const _: () = assert!(size_of::<{rust}>() == {bytes} && align_of::<{rust}>() == {bytes});"
            ),
        );
    }
    text.push_str(
        "
/// An expression in which a name stands for the Rust type of a [`DType`] that is known only at run time:
///
/// ```
/// let dtype: tutti::DType = \"bf16\".parse().unwrap();
/// assert_eq!(tutti::with_element!(dtype, T => size_of::<T>()), 2);
/// ```
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
",
    );
    for dtype in DTYPES {
        let rust = dtype.rust.replace("half::", "$crate::half::").replace("float8::", "$crate::float8::");
        line(
            &mut text,
            format_args!(
                "            $crate::DType::{} => {{\n                type $element = {rust};\n                $body\n            }}",
                dtype.variant
            ),
        );
    }
    text.push_str(
        "            #[allow(unreachable_patterns)]
            _ => ::core::unreachable!(\"every element type is listed\"),
        }
    };
}
",
    );
    text
}

/// A variant of `named!`.
fn variant<'a>(text: &mut String, doc: &str, variant: &str, name: &str, others: impl Iterator<Item = &'a &'a str>) {
    let others: Vec<String> = others.filter(|other| **other != name).map(|other| format!(" | {other:?}")).collect();
    for doc in doc.lines() {
        line(text, format_args!("        /// {doc}"));
    }
    line(text, format_args!("        {variant} = {name:?}{},", others.concat()));
}

/// Appends a line.
fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("a string takes all that is written to it");
}

/// The table of the documentation, in Markdown: which element types there are and which reductions they offer.
pub fn document() -> String {
    let mut text = String::from("| type | Rust | nccl-tests | bytes | reductions |\n|:--|:--|:--|--:|:--|\n");
    for dtype in DTYPES {
        let offered: Vec<&str> =
            REDUCTIONS.iter().filter(|reduction| dtype.offers(reduction)).map(|reduction| reduction.name).collect();
        let DType { name, rust, nccl, bytes, .. } = dtype;
        line(&mut text, format_args!("| `{name}` | `{rust}` | `{nccl}` | {bytes} | {} |", offered.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ARCHITECTURES;

    fn dtype(name: &str) -> &'static DType {
        DTYPES.iter().find(|dtype| dtype.name == name).unwrap()
    }

    #[test]
    fn each_entry_point_calls_its_kernel_with_all_its_parameters() {
        let text = entry_points(Slots::Simple, dtype("bf16"), &ARCHITECTURES[2]);
        assert_eq!(text.matches("#[unsafe(no_mangle)]").count(), entries_of(Slots::Simple, dtype("bf16")).len());
        assert!(text.contains("fn tutti_run_bf16_min(issue: IssueWords) {"), "{text}");
        assert!(
            text.contains(
                "run::<crate::element::Bf16, crate::reduction::Min, 2, { crate::target::multimem::MIN_BF16 }>(issue)"
            ),
            "{text}"
        );
        assert!(text.contains("crate::reduction::Avg, 2, 0>(issue)"), "{text}");
        let text = entry_points(Slots::Simple, dtype("bf16"), &ARCHITECTURES[1]);
        assert!(text.contains("crate::reduction::Sum, 4, 0>(issue)"), "{text}");
        let text = entry_points(Slots::LowLatency, dtype("bf16"), &ARCHITECTURES[0]);
        assert!(text.contains("run_flagged::<crate::element::Bf16, crate::reduction::Min>(issue)"), "{text}");
    }

    #[test]
    fn the_hosts_table_has_a_row_for_each_element_type_and_each_reduction_that_it_offers() {
        let text = host_table();
        let rows: usize =
            DTYPES.iter().map(|dtype| REDUCTIONS.iter().filter(|reduction| dtype.offers(reduction)).count()).sum();
        assert_eq!(text.matches("Row::of").count(), rows);
        assert!(text.contains("(3, 4) => Row::of::<element::Bf16, reduction::Avg, 4, true>(isa),"), "{text}");
        assert!(text.contains("(10, 0) => Row::of::<element::U32, reduction::Sum, 2, false>(isa),"), "{text}");
    }

    #[test]
    fn the_librarys_types_have_a_variant_for_each_row_and_an_element_for_each_type() {
        let text = types();
        for dtype in DTYPES {
            assert!(text.contains(&format!("impl Element for {} {{", dtype.rust)), "{text}");
        }
        assert!(text.contains("F16 = \"f16\" | \"float16\" | \"half\","), "{text}");
        assert!(text.contains("I8 = \"i8\" | \"int8\","), "{text}");
        assert!(text.contains("Reduction::Sum => true,"), "{text}");
    }

    #[test]
    fn the_documentations_table_has_a_line_for_each_type() {
        let text = document();
        assert_eq!(text.lines().count(), 2 + DTYPES.len());
        assert!(
            text.contains("| `i8` | `i8` | `int8` | 1 | sum, prod, min, max, avg, scaled_sum, band, bor, bxor |"),
            "{text}"
        );
    }
}
