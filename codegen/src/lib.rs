//! The kernel table, and what is generated from it.
//!
//! One table says which kernels there are: every element type × every reduction that it offers, for every architecture that
//! makes a difference to it. From it come the PTX entry points ([`generate::entry_points`]), the host's kernels and the way to
//! them ([`generate::host_table`]), the library's types ([`generate::types`]), the lists that tests and the command line walk
//! ([`entries`]) and the table in the documentation ([`generate::document`]). A new element type, reduction or architecture is
//! one row here (and what is new about it in the kernels: its conversions, or how it combines two numbers).
//!
//! **Invariant.** Pure: tables and text, no I/O, no dependencies. Build scripts and tests are its only callers, and the
//! library, which shows parts of it.

#![forbid(unsafe_code)]

use std::fmt;

pub mod generate;

/// What an element type's numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Floating point.
    Float,
    /// Integers in two's complement.
    Signed,
    /// Integers from zero.
    Unsigned,
}

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DType {
    /// Its name in entry points, file names and on the command line.
    pub name: &'static str,
    /// The variant of the library's `DType`.
    pub variant: &'static str,
    /// The type that stands for it in `tutti_kernels::element`.
    pub marker: &'static str,
    /// The Rust type of its elements.
    pub rust: &'static str,
    /// Bytes of one element.
    pub bytes: u32,
    /// What its numbers are.
    pub kind: Kind,
    /// nccl-tests' name for it.
    pub nccl: &'static str,
    /// Other names that people know it by.
    pub aliases: &'static [&'static str],
    /// Its name in `.safetensors` files.
    pub safetensors: &'static str,
    /// Its codes in `.npy` files, without the byte order; none where NumPy has no such type.
    pub numpy: &'static [&'static str],
    /// The architectures that have instructions for it which the one before lacks: each has an image of its own. PTX runs on
    /// every later architecture as well, and each image costs every build its time.
    pub architectures: &'static [&'static str],
    /// What it is, in words.
    pub doc: &'static str,
}

/// What a reduction looks at in an integer. Where it is less than the value, several types are the same machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// Its value.
    Value,
    /// Its bits as a number modulo two to their number: the sign makes no difference.
    Word,
    /// Each bit for itself: not even the size makes a difference. Floats do not offer it.
    Bits,
}

/// A reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// Its name in entry points and on the command line.
    pub name: &'static str,
    /// The variant of the library's `Reduction`, and the type that stands for it in `tutti_kernels::reduction`.
    pub variant: &'static str,
    /// Other names that people know it by.
    pub aliases: &'static [&'static str],
    /// What it looks at in an integer.
    pub sees: Sees,
    /// What it is, in words.
    pub doc: &'static str,
}

impl DType {
    /// Whether its elements can be reduced so.
    pub fn offers(&self, reduction: &Reduction) -> bool {
        reduction.sees != Sees::Bits || self.kind != Kind::Float
    }

    /// Whether it is the sum of what gradients are: it is to be fast in every shape.
    fn is_common(&self, reduction: &Reduction) -> bool {
        self.kind == Kind::Float && matches!(self.bytes, 2 | 4) && reduction.name == "sum"
    }

    /// Whether it is a float of 8 bits.
    pub fn is_float8(&self) -> bool {
        self.kind == Kind::Float && self.bytes == 1
    }

    /// Up to how many sources (of copies: one), and destinations, there is a loop for each number of them; above, one loop
    /// serves them all. Rings have up to two of either. Code that is not worth its size costs every build its time, and every driver that
    /// compiles it: the oldest architectures get less, and 8-bit floats that no instruction converts least.
    pub fn loops(&self, reduction: &Reduction, architecture: &Architecture) -> u32 {
        let capability = architecture.compute_capability;
        if (self.is_common(reduction) || self == BYTES) && capability >= version(8, 0) {
            4
        } else if self.is_float8() && capability < version(9, 0) {
            0
        } else {
            2
        }
    }

    /// The same on the host, where a row that goes without is little slower.
    pub fn host_loops(&self, reduction: &Reduction) -> u32 {
        let is_rare = matches!(reduction.name, "prod" | "scaled_sum") || self.is_float8();
        if is_rare {
            0
        } else if self.kind == Kind::Float && self.bytes <= 4 && matches!(reduction.name, "sum" | "avg") {
            4
        } else {
            2
        }
    }

    /// Whether the host has a row of its own for processors with the widest registers (AVX-512); elsewhere these run the row
    /// before it (AVX2), which is little slower and not compiled twice.
    pub fn host_wide(&self, reduction: &Reduction) -> bool {
        self.kind == Kind::Float && !self.is_float8() && matches!(reduction.name, "sum" | "avg")
    }

    /// The type whose kernel this one's reduction is: another one's where that is the same machine code.
    pub fn kernel(&'static self, reduction: &Reduction) -> &'static DType {
        let same = |other: &&'static DType| match reduction.sees {
            Sees::Value => false,
            Sees::Word => self.kind == Kind::Signed && other.kind == Kind::Unsigned && other.bytes == self.bytes,
            Sees::Bits => other.kind == Kind::Unsigned && other.bytes == 1,
        };
        DTYPES.iter().find(same).unwrap_or(self)
    }

    /// The instruction by which a switch reduces its elements so, if there is one: its name in `tutti_kernels::target::multimem`.
    pub fn multimem(&'static self, reduction: &Reduction) -> Option<&'static str> {
        if self == BYTES {
            return Some("STORE");
        }
        let kernel = self.kernel(reduction);
        let row = MULTIMEM.iter().find(|row| (row.0, row.1) == (kernel.name, reduction.name));
        row.filter(|_| self.offers(reduction)).map(|row| row.2)
    }

    /// The architectures that it has images for, oldest first.
    pub fn architectures(&self) -> impl Iterator<Item = &'static Architecture> {
        ARCHITECTURES.iter().filter(|architecture| self.architectures.contains(&architecture.name))
    }
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

/// Copies and sums of these types have the widest accesses and the packed instructions of each architecture.
const EVERY: &[&str] = &["sm_70", "sm_80", "sm_90", "sm_100"];

/// Every element type.
pub const DTYPES: &[DType] = &[
    DType {
        name: "f32",
        variant: "F32",
        marker: "F32",
        rust: "f32",
        bytes: 4,
        kind: Kind::Float,
        nccl: "float",
        aliases: &["float32"],
        safetensors: "F32",
        numpy: &["f4", "f"],
        architectures: EVERY,
        doc: "IEEE 754 binary32.",
    },
    DType {
        name: "f64",
        variant: "F64",
        marker: "F64",
        rust: "f64",
        bytes: 8,
        kind: Kind::Float,
        nccl: "double",
        aliases: &["float64"],
        safetensors: "F64",
        numpy: &["f8", "d"],
        architectures: &["sm_70", "sm_90"],
        doc: "IEEE 754 binary64.",
    },
    DType {
        name: "f16",
        variant: "F16",
        marker: "F16",
        rust: "half::f16",
        bytes: 2,
        kind: Kind::Float,
        nccl: "half",
        aliases: &["float16"],
        safetensors: "F16",
        numpy: &["f2", "e"],
        architectures: EVERY,
        doc: "IEEE 754 binary16, calculated in f32.",
    },
    DType {
        name: "bf16",
        variant: "BF16",
        marker: "Bf16",
        rust: "half::bf16",
        bytes: 2,
        kind: Kind::Float,
        nccl: "bfloat16",
        aliases: &[],
        safetensors: "BF16",
        numpy: &[],
        architectures: EVERY,
        doc: "The upper half of a binary32, calculated in f32.",
    },
    DType {
        name: "f8e4m3",
        variant: "F8E4M3",
        marker: "F8E4m3",
        rust: "float8::F8E4M3",
        bytes: 1,
        kind: Kind::Float,
        nccl: "fp8_e4m3",
        aliases: &["float8_e4m3fn"],
        safetensors: "F8_E4M3",
        numpy: &[],
        architectures: &["sm_70", "sm_90"],
        doc: "OCP 8-bit float of 4 exponent bits, without infinities, calculated in f32 and rounded to what is finite.",
    },
    DType {
        name: "f8e5m2",
        variant: "F8E5M2",
        marker: "F8E5m2",
        rust: "float8::F8E5M2",
        bytes: 1,
        kind: Kind::Float,
        nccl: "fp8_e5m2",
        aliases: &["float8_e5m2"],
        safetensors: "F8_E5M2",
        numpy: &[],
        architectures: &["sm_70", "sm_90"],
        doc: "OCP 8-bit float of 5 exponent bits, calculated in f32 and rounded to what is finite.",
    },
    DType {
        name: "i8",
        variant: "I8",
        marker: "I8",
        rust: "i8",
        bytes: 1,
        kind: Kind::Signed,
        nccl: "int8",
        aliases: &[],
        safetensors: "I8",
        numpy: &["i1", "b"],
        architectures: &["sm_70"],
        doc: "Signed integer of 8 bits.",
    },
    DType {
        name: "u8",
        variant: "U8",
        marker: "U8",
        rust: "u8",
        bytes: 1,
        kind: Kind::Unsigned,
        nccl: "uint8",
        aliases: &[],
        safetensors: "U8",
        numpy: &["u1", "B"],
        architectures: &["sm_70", "sm_90"],
        doc: "Unsigned integer of 8 bits.",
    },
    DType {
        name: "i16",
        variant: "I16",
        marker: "I16",
        rust: "i16",
        bytes: 2,
        kind: Kind::Signed,
        nccl: "int16",
        aliases: &[],
        safetensors: "I16",
        numpy: &["i2", "h"],
        architectures: &["sm_70"],
        doc: "Signed integer of 16 bits.",
    },
    DType {
        name: "u16",
        variant: "U16",
        marker: "U16",
        rust: "u16",
        bytes: 2,
        kind: Kind::Unsigned,
        nccl: "uint16",
        aliases: &[],
        safetensors: "U16",
        numpy: &["u2", "H"],
        architectures: &["sm_70"],
        doc: "Unsigned integer of 16 bits.",
    },
    DType {
        name: "i32",
        variant: "I32",
        marker: "I32",
        rust: "i32",
        bytes: 4,
        kind: Kind::Signed,
        nccl: "int32",
        aliases: &[],
        safetensors: "I32",
        numpy: &["i4", "i"],
        architectures: &["sm_70", "sm_90"],
        doc: "Signed integer of 32 bits.",
    },
    DType {
        name: "u32",
        variant: "U32",
        marker: "U32",
        rust: "u32",
        bytes: 4,
        kind: Kind::Unsigned,
        nccl: "uint32",
        aliases: &[],
        safetensors: "U32",
        numpy: &["u4", "I"],
        architectures: &["sm_70", "sm_90"],
        doc: "Unsigned integer of 32 bits.",
    },
    DType {
        name: "i64",
        variant: "I64",
        marker: "I64",
        rust: "i64",
        bytes: 8,
        kind: Kind::Signed,
        nccl: "int64",
        aliases: &[],
        safetensors: "I64",
        numpy: &["i8", "q", "l"],
        architectures: &["sm_70", "sm_90"],
        doc: "Signed integer of 64 bits.",
    },
    DType {
        name: "u64",
        variant: "U64",
        marker: "U64",
        rust: "u64",
        bytes: 8,
        kind: Kind::Unsigned,
        nccl: "uint64",
        aliases: &[],
        safetensors: "U64",
        numpy: &["u8", "Q", "L"],
        architectures: &["sm_70", "sm_90"],
        doc: "Unsigned integer of 64 bits.",
    },
];

/// What collectives that do not reduce move, whatever their elements: bytes, by kernels of their own. No caller names it.
pub const BYTES: &DType = &DType {
    name: "bytes",
    variant: "",
    marker: "U8",
    rust: "u8",
    bytes: 1,
    kind: Kind::Unsigned,
    nccl: "",
    aliases: &[],
    safetensors: "",
    numpy: &[],
    architectures: EVERY,
    doc: "Bytes that are only moved.",
};

/// What is done to [`BYTES`]; there is one source.
pub const COPY: &Reduction =
    &Reduction { name: "copy", variant: "Copy", aliases: &[], sees: Sees::Bits, doc: "The only source." };

/// Every reduction.
pub const REDUCTIONS: &[Reduction] = &[
    Reduction {
        name: "sum",
        variant: "Sum",
        aliases: &[],
        sees: Sees::Word,
        doc: "The sum; of integers, modulo two to the number of their bits.",
    },
    Reduction {
        name: "prod",
        variant: "Prod",
        aliases: &["product"],
        sees: Sees::Word,
        doc: "The product; of integers, modulo two to the number of their bits.",
    },
    Reduction { name: "min", variant: "Min", aliases: &["minimum"], sees: Sees::Value, doc: "The minimum." },
    Reduction { name: "max", variant: "Max", aliases: &["maximum"], sees: Sees::Value, doc: "The maximum." },
    Reduction {
        name: "avg",
        variant: "Avg",
        aliases: &["average"],
        sees: Sees::Value,
        doc: "\
The average. Of floats: each source times 2^−k, k = ⌈log2 N⌉, and the final sum times 2^k / N, so that an average that can be
represented never overflows on the way. Of integers: the sum, modulo two to the number of their bits, divided by N and rounded
toward zero.

Floats pay the price next to zero. Let η be the smallest positive number of the element type (2^−149 for f32, 2^−24 for f16,
2^−133 for bf16). A source whose last bit is worth less than 2^k η may lose up to k bits when it is scaled; together these
losses move the average by at most 2^k η / 2, beside its last rounding, and averages of the very smallest numbers come out as
zero. (Plans that reduce everything in one step do so in f32, and types of 8 and 16 bits lose nothing by the scaling.) Of all
other sources the scaling is exact.",
    },
    Reduction {
        name: "scaled_sum",
        variant: "ScaledSum",
        aliases: &["mulsum"],
        sees: Sees::Word,
        doc: "The sum of every source times the scale of the call; of integers, modulo two to the number of their bits.",
    },
    Reduction {
        name: "band",
        variant: "Band",
        aliases: &[],
        sees: Sees::Bits,
        doc: "The bitwise and; of integers only.",
    },
    Reduction { name: "bor", variant: "Bor", aliases: &[], sees: Sees::Bits, doc: "The bitwise or; of integers only." },
    Reduction {
        name: "bxor",
        variant: "Bxor",
        aliases: &[],
        sees: Sees::Bits,
        doc: "The bitwise exclusive or; of integers only.",
    },
];

/// What a switch reduces (the table of `multimem.ld_reduce` in the PTX manual): element type and reduction, as kernels, and the
/// instruction. From [`MULTIMEM_CAPABILITY`] on.
const MULTIMEM: &[(&str, &str, &str)] = &[
    ("f32", "sum", "ADD_F32"),
    ("f64", "sum", "ADD_F64"),
    ("f16", "sum", "ADD_F16"),
    ("f16", "min", "MIN_F16"),
    ("f16", "max", "MAX_F16"),
    ("bf16", "sum", "ADD_BF16"),
    ("bf16", "min", "MIN_BF16"),
    ("bf16", "max", "MAX_BF16"),
    ("u32", "sum", "ADD_U32"),
    ("u32", "min", "MIN_U32"),
    ("u32", "max", "MAX_U32"),
    ("i32", "min", "MIN_S32"),
    ("i32", "max", "MAX_S32"),
    ("u64", "sum", "ADD_U64"),
    ("u64", "min", "MIN_U64"),
    ("u64", "max", "MAX_U64"),
    ("i64", "min", "MIN_S64"),
    ("i64", "max", "MAX_S64"),
    ("u8", "band", "AND_B64"),
    ("u8", "bor", "OR_B64"),
    ("u8", "bxor", "XOR_B64"),
];

/// The least compute capability of a device that reaches a switch by the instructions for it.
pub const MULTIMEM_CAPABILITY: Version = version(9, 0);

/// Every architecture, oldest first.
///
/// The PTX version is the oldest one that has what the architecture's kernels may use: 7.0 for sm_80; 8.2 for multimem with
/// sums in f32 on sm_90; 8.8 for 256-bit accesses on sm_100. A driver that is too old for one image takes the one before it.
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
        ptx: version(8, 2),
        cuda: version(12, 2),
        driver: "535.54",
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

/// What slots the entry points of an image are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slots {
    /// Data, then a flag: for bandwidth, with a loop for each number of sources and destinations.
    Simple,
    /// Data that is its own signal (LL and LL128): for latency. One loop serves all, so no architecture makes a difference.
    LowLatency,
}

impl Slots {
    /// Both.
    pub const ALL: &'static [Slots] = &[Slots::Simple, Slots::LowLatency];

    /// What stands before the element type in names.
    const fn prefix(self) -> &'static str {
        match self {
            Slots::Simple => "",
            Slots::LowLatency => "ll_",
        }
    }

    /// The architectures that an element type has images for, oldest first.
    pub fn architectures(self, dtype: &'static DType) -> impl Iterator<Item = &'static Architecture> {
        let count = match self {
            Slots::Simple => usize::MAX,
            Slots::LowLatency => 1,
        };
        dtype.architectures().take(count)
    }
}

/// A parameter of an entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its type in the kernel's source.
    pub rust: &'static str,
    /// Its type in PTX; of an array, with its length.
    pub ptx: &'static str,
}

/// What every entry point is given, in this order.
pub const PARAMETERS: &[Parameter] = &[Parameter { name: "issue", rust: "IssueWords", ptx: "b8[112]" }];

/// An entry point of an image: block `b` interprets program `b` of a launch to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Through which slots.
    pub slots: Slots,
    /// On which elements.
    pub dtype: &'static DType,
    /// With which reduction.
    pub reduction: &'static Reduction,
}

impl Entry {
    /// The name by which a driver finds it.
    pub fn name(&self) -> String {
        format!("tutti_run_{}{}_{}", self.slots.prefix(), self.dtype.name, self.reduction.name)
    }

    /// Every element type whose elements it reduces so: one, or several where they are the same machine code.
    pub fn serves(&self) -> impl Iterator<Item = &'static DType> {
        let Entry { dtype, reduction, .. } = *self;
        let is_served = move |other: &&'static DType| {
            reduction == COPY || (other.offers(reduction) && other.kernel(reduction) == dtype)
        };
        DTYPES.iter().filter(is_served)
    }
}

/// As in a declaration: `tutti_run_f32_sum(issue: IssueWords)`.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters: Vec<String> =
            PARAMETERS.iter().map(|parameter| format!("{}: {}", parameter.name, parameter.rust)).collect();
        write!(f, "{}({})", self.name(), parameters.join(", "))
    }
}

/// Every entry point.
pub fn entries() -> Vec<Entry> {
    images()
        .flat_map(|(slots, dtype, architecture)| {
            // Every architecture's image has the same ones.
            let is_first = slots.architectures(dtype).next() == Some(architecture);
            if is_first { entries_of(slots, dtype) } else { Vec::new() }
        })
        .collect()
}

/// Every image: its slots, its element type (or [`BYTES`]) and its architecture.
pub fn images() -> impl Iterator<Item = (Slots, &'static DType, &'static Architecture)> {
    let of_slots = |dtype: &'static DType, slots: Slots| slots.architectures(dtype).map(move |row| (slots, dtype, row));
    let of_type = move |dtype| Slots::ALL.iter().flat_map(move |slots| of_slots(dtype, *slots));
    DTYPES.iter().chain([BYTES]).flat_map(of_type)
}

/// The entry points that lie in the images of one element type: its reductions, but for those that are another type's kernels.
pub fn entries_of(slots: Slots, dtype: &'static DType) -> Vec<Entry> {
    if dtype == BYTES {
        return vec![Entry { slots, dtype, reduction: COPY }];
    }
    let own = REDUCTIONS.iter().filter(|reduction| dtype.offers(reduction) && dtype.kernel(reduction) == dtype);
    own.map(|reduction| Entry { slots, dtype, reduction }).collect()
}

/// The entry point that reduces elements of `dtype`; none where the type does not offer the reduction.
pub fn entry_for(slots: Slots, dtype: &'static DType, reduction: &'static Reduction) -> Option<Entry> {
    dtype.offers(reduction).then(|| Entry { slots, dtype: dtype.kernel(reduction), reduction })
}

/// The entry point of collectives that do not reduce.
pub fn copy_entry(slots: Slots) -> Entry {
    Entry { slots, dtype: BYTES, reduction: COPY }
}

/// The name of an image's file: `tutti_f32.sm_90.ptx`, or `tutti_ll_f32.sm_70.ptx`.
pub fn image_file_name(slots: Slots, dtype: &str, architecture: &str) -> String {
    format!("tutti_{}{dtype}.{architecture}.ptx", slots.prefix())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_entry_point_has_a_name_of_its_own() {
        let names: HashSet<String> = entries().iter().map(Entry::name).collect();
        assert_eq!(names.len(), entries().len());
        assert!(names.contains("tutti_run_bf16_avg") && names.contains("tutti_run_ll_u8_bxor"));
        assert!(!names.contains("tutti_run_f64_bxor") && !names.contains("tutti_run_i32_sum"));
    }

    #[test]
    fn every_name_stands_for_one_thing() {
        let mut names = HashSet::new();
        for dtype in DTYPES {
            let all: HashSet<&str> = dtype.aliases.iter().copied().chain([dtype.name, dtype.nccl]).collect();
            assert!(all.into_iter().all(|name| names.insert(name)), "{}", dtype.name);
        }
        for reduction in REDUCTIONS {
            assert!(
                reduction.aliases.iter().chain([&reduction.name]).all(|name| names.insert(name)),
                "{}",
                reduction.name
            );
        }
        let codes: Vec<&str> = DTYPES.iter().flat_map(|dtype| dtype.numpy.iter().copied()).collect();
        assert_eq!(codes.iter().collect::<HashSet<_>>().len(), codes.len());
    }

    #[test]
    fn types_share_kernels_where_only_their_words_or_bits_are_seen() {
        let marker = |dtype: &str, reduction: &str| {
            let dtype = DTYPES.iter().find(|row| row.name == dtype).unwrap();
            dtype.kernel(REDUCTIONS.iter().find(|row| row.name == reduction).unwrap()).marker
        };
        assert_eq!((marker("i32", "sum"), marker("u32", "sum"), marker("i64", "scaled_sum")), ("U32", "U32", "U64"));
        assert_eq!((marker("i32", "max"), marker("u32", "max"), marker("i8", "avg")), ("I32", "U32", "I8"));
        assert_eq!((marker("i64", "bor"), marker("u16", "band")), ("U8", "U8"));
        assert_eq!((marker("f16", "sum"), marker("f8e5m2", "prod")), ("F16", "F8E5m2"));
    }

    #[test]
    fn an_entry_point_prints_as_its_declaration() {
        let entry = Entry { slots: Slots::Simple, dtype: &DTYPES[2], reduction: &REDUCTIONS[3] };
        assert_eq!(entry.to_string(), "tutti_run_f16_max(issue: IssueWords)");
    }

    #[test]
    fn each_type_has_exactly_one_entry_point_for_each_reduction_that_it_offers() {
        for dtype in DTYPES {
            let copying: Vec<Entry> = entries().into_iter().filter(|entry| entry.reduction == COPY).collect();
            assert_eq!(copying, Slots::ALL.iter().map(|slots| copy_entry(*slots)).collect::<Vec<_>>());
            assert!(copying.iter().all(|entry| entry.serves().any(|served| served == dtype)));
            for reduction in REDUCTIONS {
                let serving: Vec<Entry> = entries()
                    .into_iter()
                    .filter(|entry| entry.reduction == reduction && entry.serves().any(|served| served == dtype))
                    .collect();
                let expected = Slots::ALL.iter().filter_map(|slots| entry_for(*slots, dtype, reduction));
                assert_eq!(serving, expected.collect::<Vec<_>>(), "{} {}", dtype.name, reduction.name);
            }
        }
    }

    #[test]
    fn every_type_has_an_image_for_the_oldest_architecture_and_for_no_unknown_one() {
        for dtype in DTYPES {
            let architectures: Vec<&str> = dtype.architectures().map(|architecture| architecture.name).collect();
            assert_eq!(architectures, dtype.architectures, "{}", dtype.name);
            assert_eq!(architectures[0], ARCHITECTURES[0].name);
            // A kernel that another type shares is to run wherever that type has an image.
            for reduction in REDUCTIONS.iter().filter(|reduction| dtype.offers(reduction)) {
                assert!(dtype.kernel(reduction).architectures[0] == ARCHITECTURES[0].name);
            }
        }
    }

    #[test]
    fn a_switch_reduces_what_the_hardware_offers_and_nothing_else() {
        let instruction = |dtype: &str, reduction: &str| {
            let dtype = DTYPES.iter().find(|row| row.name == dtype).unwrap();
            dtype.multimem(REDUCTIONS.iter().find(|row| row.name == reduction).unwrap())
        };
        assert_eq!((instruction("i64", "sum"), instruction("i64", "min")), (Some("ADD_U64"), Some("MIN_S64")));
        assert_eq!((instruction("i16", "bxor"), instruction("i16", "sum")), (Some("XOR_B64"), None));
        assert_eq!(
            (instruction("f32", "min"), instruction("f8e4m3", "sum"), instruction("bf16", "avg")),
            (None, None, None)
        );
        for (dtype, _, _) in MULTIMEM {
            let dtype = DTYPES.iter().find(|row| row.name == *dtype).unwrap();
            assert!(dtype.architectures().any(|row| row.compute_capability >= MULTIMEM_CAPABILITY), "{}", dtype.name);
        }
    }

    #[test]
    fn architectures_are_listed_oldest_first_and_need_no_older_driver_than_the_one_before() {
        for pair in ARCHITECTURES.windows(2) {
            assert!(pair[0].compute_capability < pair[1].compute_capability);
            assert!(pair[0].ptx <= pair[1].ptx && pair[0].cuda <= pair[1].cuda);
        }
    }
}
