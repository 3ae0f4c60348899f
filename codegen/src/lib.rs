//! The kernel table, and what is generated from it.
//!
//! One table says which kernels there are: every element type × every reduction × every kind of entry point, for every
//! architecture. From it come the PTX entry points ([`generate::entry_points`]), the host's dispatch to the same kernels
//! ([`generate::dispatch`]), and the lists that tests and the command line walk ([`entries`]). A new element type, reduction
//! or architecture is one row here (and its `impl` in the kernels).
//!
//! **Invariant.** Pure: tables and text, no I/O, no dependencies. Build scripts and tests are its only callers, and the
//! library, which shows parts of it.

#![forbid(unsafe_code)]

use std::fmt;

pub mod generate;

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DType {
    /// Its name in entry points, file names and on the command line.
    pub name: &'static str,
    /// The variant of the library's `DType`.
    pub variant: &'static str,
    /// The type that stands for it in `tutti_kernels::element`.
    pub marker: &'static str,
    /// Bytes of one element.
    pub bytes: u32,
}

/// A reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// Its name in entry points and on the command line.
    pub name: &'static str,
    /// The variant of the library's `Reduction`, and the type that stands for it in `tutti_kernels::reduction`.
    pub variant: &'static str,
}

/// A GPU architecture that images are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// The compiler's name for it.
    pub name: &'static str,
    /// The least compute capability that runs it. PTX runs on every later one as well.
    pub compute_capability: Version,
    /// The version of the PTX instruction set.
    pub ptx: Version,
    /// The first CUDA whose driver takes that PTX.
    pub cuda: Version,
    /// That driver's version, on Linux.
    pub driver: &'static str,
}

/// A version in two parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Before the dot.
    pub major: u32,
    /// After the dot.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

const fn version(major: u32, minor: u32) -> Version {
    Version { major, minor }
}

/// Every element type.
pub const DTYPES: &[DType] = &[
    DType { name: "f32", variant: "F32", marker: "F32", bytes: 4 },
    DType { name: "f16", variant: "F16", marker: "F16", bytes: 2 },
    DType { name: "bf16", variant: "BF16", marker: "Bf16", bytes: 2 },
];

/// Every reduction.
pub const REDUCTIONS: &[Reduction] = &[
    Reduction { name: "sum", variant: "Sum" },
    Reduction { name: "prod", variant: "Prod" },
    Reduction { name: "min", variant: "Min" },
    Reduction { name: "max", variant: "Max" },
    Reduction { name: "avg", variant: "Avg" },
];

/// Every architecture, oldest first.
///
/// The PTX version is the oldest one that has what the architecture's kernels may use: 7.0 for sm_80; 8.1 for multimem on
/// sm_90; 8.8 for 256-bit accesses on sm_100. A driver that is too old for one image takes the one before it.
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: "sm_70",
        compute_capability: version(7, 0),
        ptx: version(7, 0),
        cuda: version(11, 0),
        driver: "450.36",
    },
    Architecture {
        name: "sm_80",
        compute_capability: version(8, 0),
        ptx: version(7, 0),
        cuda: version(11, 0),
        driver: "450.36",
    },
    Architecture {
        name: "sm_90",
        compute_capability: version(9, 0),
        ptx: version(8, 1),
        cuda: version(12, 1),
        driver: "530.30",
    },
    Architecture {
        name: "sm_100",
        compute_capability: version(10, 0),
        ptx: version(8, 8),
        cuda: version(12, 9),
        driver: "575.51",
    },
];

/// Threads of a block at most; a block has a multiple of [`WARP_THREADS`]. So many may each use every register there is.
pub const BLOCK_THREADS_MAX: u32 = 256;

/// Threads of a warp.
pub const WARP_THREADS: u32 = 32;

/// What an entry point does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Block `b` interprets program `b` of a launch to its end.
    Run,
    /// The grid does one fused copy-and-reduce; for measuring bandwidth, so only for the reductions that gradients take.
    ReduceCopy,
}

/// A parameter of an entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its type in the kernel's source.
    pub rust: &'static str,
    /// Its type in PTX.
    pub ptx: &'static str,
}

const fn parameter(name: &'static str, rust: &'static str, ptx: &'static str) -> Parameter {
    Parameter { name, rust, ptx }
}

impl EntryKind {
    /// Every kind.
    pub const ALL: &'static [EntryKind] = &[EntryKind::Run, EntryKind::ReduceCopy];

    /// Its name in entry points.
    pub const fn name(self) -> &'static str {
        match self {
            EntryKind::Run => "run",
            EntryKind::ReduceCopy => "reduce_copy",
        }
    }

    /// Whether there is an entry point of this kind for a reduction. Each costs the compilers seconds, for every element type
    /// and architecture.
    fn offers(self, reduction: &Reduction) -> bool {
        match self {
            EntryKind::Run => true,
            EntryKind::ReduceCopy => matches!(reduction.name, "sum" | "avg"),
        }
    }

    /// The function in the kernels that the entry points call.
    pub const fn body(self) -> &'static str {
        match self {
            EntryKind::Run => "run",
            EntryKind::ReduceCopy => "reduce_copy_grid",
        }
    }

    /// What it is given, in this order.
    pub const fn parameters(self) -> &'static [Parameter] {
        match self {
            EntryKind::Run => const { &[parameter("launch", "*mut Launch", "u64")] },
            EntryKind::ReduceCopy => {
                const {
                    &[
                        parameter("sources", "*const *const u8", "u64"),
                        parameter("source_count", "u32", "u32"),
                        parameter("destinations", "*const *mut u8", "u64"),
                        parameter("destination_count", "u32", "u32"),
                        parameter("bytes", "u64", "u64"),
                        parameter("scale", "f32", "f32"),
                        parameter("finish", "f32", "f32"),
                        parameter("flags", "u32", "u32"),
                    ]
                }
            }
        }
    }
}

/// An entry point of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it does.
    pub kind: EntryKind,
    /// On which elements.
    pub dtype: &'static DType,
    /// With which reduction.
    pub reduction: &'static Reduction,
}

impl Entry {
    /// The name by which a driver finds it.
    pub fn name(&self) -> String {
        format!("tutti_{}_{}_{}", self.kind.name(), self.dtype.name, self.reduction.name)
    }

    /// What it is given, in this order.
    pub fn parameters(&self) -> &'static [Parameter] {
        self.kind.parameters()
    }
}

/// As in a declaration: `tutti_run_f32_sum(launch: *mut Launch)`.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters: Vec<String> =
            self.parameters().iter().map(|parameter| format!("{}: {}", parameter.name, parameter.rust)).collect();
        write!(f, "{}({})", self.name(), parameters.join(", "))
    }
}

/// Every entry point.
pub fn entries() -> Vec<Entry> {
    DTYPES.iter().flat_map(entries_of).collect()
}

/// The entry points of one element type: those of one image.
pub fn entries_of(dtype: &'static DType) -> Vec<Entry> {
    let of_kind = |&kind: &EntryKind| {
        let offered = REDUCTIONS.iter().filter(move |reduction| kind.offers(reduction));
        offered.map(move |reduction| Entry { kind, dtype, reduction })
    };
    EntryKind::ALL.iter().flat_map(of_kind).collect()
}

/// The name of an image's file: `tutti_f32.sm_90.ptx`.
pub fn image_file_name(dtype: &str, architecture: &str) -> String {
    format!("tutti_{dtype}.{architecture}.ptx")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_entry_point_has_a_name_of_its_own() {
        let names: HashSet<String> = entries().iter().map(Entry::name).collect();
        assert_eq!(names.len(), entries().len());
        assert_eq!(names.len(), DTYPES.len() * (REDUCTIONS.len() + 2));
        assert!(names.contains("tutti_run_bf16_avg") && names.contains("tutti_reduce_copy_f32_sum"));
    }

    #[test]
    fn an_entry_point_prints_as_its_declaration() {
        let entry = Entry { kind: EntryKind::Run, dtype: &DTYPES[1], reduction: &REDUCTIONS[3] };
        assert_eq!(entry.to_string(), "tutti_run_f16_max(launch: *mut Launch)");
    }

    #[test]
    fn architectures_are_listed_oldest_first_and_need_no_older_driver_than_the_one_before() {
        for pair in ARCHITECTURES.windows(2) {
            assert!(pair[0].compute_capability < pair[1].compute_capability);
            assert!(pair[0].ptx <= pair[1].ptx && pair[0].cuda <= pair[1].cuda);
        }
    }
}
