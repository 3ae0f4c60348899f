//! Rust text that build scripts write and other crates include.

use std::fmt::Write;

use crate::{DTYPES, DType, REDUCTIONS, entries_of};

/// The entry points of one element type, for the kernels to include where [`crate::EntryKind::body`]'s functions are.
pub fn entry_points(dtype: &'static DType) -> String {
    let mut text = String::from("// Generated from the kernel table.\n");
    for entry in entries_of(dtype) {
        let parameters: Vec<String> =
            entry.parameters().iter().map(|parameter| format!("{}: {}", parameter.name, parameter.rust)).collect();
        let arguments: Vec<&str> = entry.parameters().iter().map(|parameter| parameter.name).collect();
        write!(
            text,
            "
#[unsafe(no_mangle)]
unsafe extern \"ptx-kernel\" fn {name}({parameters}) {{
    // SAFETY: whoever launches the kernel keeps the contract of what it calls.
    unsafe {{ {body}::<crate::element::{element}, crate::reduction::{reduction}>({arguments}) }}
}}
",
            name = entry.name(),
            parameters = parameters.join(", "),
            body = entry.kind.body(),
            element = entry.dtype.marker,
            reduction = entry.reduction.variant,
            arguments = arguments.join(", "),
        )
        .expect("a string takes all that is written to it");
    }
    text
}

/// The host's way from an element type and a reduction that are known at run time to a function that is generic over them:
/// a macro `dispatch!(dtype, reduction, function)`. Where it is used, `DType` and `Reduction` are the library's, `element`
/// and `reduction` the kernels' modules.
///
/// The matches are exhaustive, so a variant without a row, or a row without a variant, does not compile.
pub fn dispatch() -> String {
    let mut text = String::from(
        "// Generated from the kernel table.\n\
         macro_rules! dispatch {\n    ($dtype:expr, $reduction:expr, $function:ident) => {\n        \
         match ($dtype, $reduction) {\n",
    );
    for dtype in DTYPES {
        for reduction in REDUCTIONS {
            let (variant, marker, reduction) = (dtype.variant, dtype.marker, reduction.variant);
            writeln!(
                text,
                "            (DType::{variant}, Reduction::{reduction}) => \
                 $function::<element::{marker}, reduction::{reduction}>,"
            )
            .expect("a string takes all that is written to it");
        }
    }
    text.push_str("        }\n    };\n}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_point_calls_its_kernel_with_all_its_parameters() {
        let text = entry_points(&DTYPES[2]);
        assert_eq!(text.matches("#[unsafe(no_mangle)]").count(), entries_of(&DTYPES[2]).len());
        assert!(text.contains("fn tutti_run_bf16_min(launch: *mut Launch) {"), "{text}");
        assert!(text.contains("run::<crate::element::Bf16, crate::reduction::Min>(launch)"), "{text}");
        assert!(text.contains("bytes, scale, finish, flags)"), "{text}");
    }

    #[test]
    fn the_dispatch_has_an_arm_for_each_element_type_and_reduction() {
        let text = dispatch();
        assert_eq!(text.matches("=> $function").count(), DTYPES.len() * REDUCTIONS.len());
        assert!(text.contains("(DType::BF16, Reduction::Avg) => $function::<element::Bf16, reduction::Avg>"), "{text}");
    }
}
