//! The PTX that ships: exactly the entry points that the kernel table lists, nothing that the kernels must not do, and the
//! real assembler takes it for every architecture without a spill or a stack frame, and makes hot loops of it that keep
//! their figures.
//!
//! Without PTX in the build these tests report that they are skipped (`TUTTI_REQUIRE_PTX=1` makes that build an error);
//! without ptxas or nvdisasm the last one does (`TUTTI_REQUIRE_PTXAS=1` and `TUTTI_REQUIRE_NVDISASM=1` make it a failure).
//! `TUTTI_PTXAS` and `TUTTI_NVDISASM` name them.

#[path = "../conformance/number.rs"]
mod number;
#[expect(dead_code, reason = "the conformance suite asks for more")]
#[path = "../conformance/oracle.rs"]
mod oracle;
#[expect(dead_code, reason = "likewise")]
#[path = "../conformance/replay.rs"]
mod replay;

mod exchanges;
mod gpu;
mod sass;
mod steps;
mod sweeps;
mod switch;
mod values;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tutti::ptx::{self, Image, PARAMETERS, Slots};

/// The images, or a line that says why there are none; then the test has nothing to look at.
fn images() -> &'static [Image] {
    ptx::images().unwrap_or_else(|reason| {
        eprintln!("skipped: {reason}");
        &[]
    })
}

/// An entry point as the text declares it: its name and its parameters' types.
type Declared = (String, Vec<String>);

/// Every `.entry` of the text. A parameter reads `.param .u64 .ptr .align 1 name,`, or `.param .align 8 .b8 name[112]`.
fn declared_entries(text: &str) -> Vec<Declared> {
    let mut entries: Vec<Declared> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix(".visible .entry ") else { continue };
        let name = name.split('(').next().unwrap_or_default().to_owned();
        let parameters = lines.by_ref().take_while(|line| !line.starts_with(')'));
        let types = parameters.map(|line| {
            let mut words = line.split_whitespace();
            assert_eq!(words.next(), Some(".param"), "{name}: {line}");
            let mut kind = words.next().unwrap_or_default();
            if kind == ".align" {
                kind = words.nth(1).unwrap_or_default();
            }
            let length = line.find('[').map_or("", |at| line[at..].trim_end_matches(','));
            format!("{}{length}", kind.trim_start_matches('.'))
        });
        let types = types.collect();
        entries.push((name, types));
    }
    entries
}

/// What the kernels must not contain, and why; each is looked for among the words of the instructions.
fn forbidden(instruction: &str) -> Option<&'static str> {
    let mut words = instruction.split_whitespace();
    let first = words.next()?;
    let first = if first.starts_with('@') { words.next()? } else { first };
    if first == ".extern" {
        return Some("a function from elsewhere: a panic path, or a part of the library that was not inlined");
    }
    if first == ".func" || (first == ".visible" && words.next() == Some(".func")) {
        return Some("a function that is not an entry point");
    }
    if first == "call" || first.starts_with("call.") {
        return Some("a call");
    }
    if first == ".local" || first.starts_with("ld.local") || first.starts_with("st.local") {
        return Some("local memory: an array that is indexed at run time, or a value too large for registers");
    }
    let is_float =
        [".f16", ".f16x2", ".bf16", ".bf16x2", ".f32", ".f32x2", ".f64"].iter().any(|end| first.ends_with(end));
    let is_rounded = ["add.", "sub.", "mul."].iter().any(|start| first.starts_with(start));
    // With a factor of one it is the sum of two bf16, where the architecture has no other (`a_fused_sum_multiplies_by_one`).
    let is_fused = ["fma.", "mad."].iter().any(|start| first.starts_with(start)) && first != "fma.rn.bf16x2";
    // Without `.rn`, the assembler is free to make one instruction of a product and a sum.
    if is_float && (is_fused || first.contains(".ftz") || (is_rounded && !first.contains(".rn"))) {
        return Some("arithmetic that may be fused or flushed to zero: the CPU's bits would differ");
    }
    None
}

#[test]
fn every_element_type_has_an_image_for_each_architecture_that_the_table_lists() {
    let images = images();
    if images.is_empty() {
        return;
    }
    let names: Vec<String> = images.iter().map(Image::file_name).collect();
    let expected: Vec<String> = tutti_codegen::images()
        .map(|(slots, dtype, architecture)| tutti_codegen::image_file_name(slots, dtype.name, architecture.name))
        .collect();
    assert_eq!(names, expected);
    for architecture in ["sm_70", "sm_80", "sm_90", "sm_100"] {
        for dtype in ["f32", "f16", "bf16", "bytes"] {
            assert!(names.contains(&format!("tutti_{dtype}.{architecture}.ptx")), "{dtype} {architecture}: {names:?}");
        }
    }
}

#[test]
fn each_image_has_exactly_the_entry_points_of_the_table_with_exactly_their_parameters() {
    for image in images() {
        let mut declared = declared_entries(image.text());
        declared.sort();
        let mut expected: Vec<Declared> = image
            .entries()
            .iter()
            .map(|entry| (entry.name(), PARAMETERS.iter().map(|parameter| parameter.ptx.to_owned()).collect()))
            .collect();
        expected.sort();
        assert_eq!(declared, expected, "{}", image.file_name());
    }
}

#[test]
fn each_image_says_the_architecture_and_the_ptx_version_of_the_table() {
    for image in images() {
        let line = |start: &str| image.text().lines().find_map(|line| line.strip_prefix(start)).map(str::trim);
        assert_eq!(line(".version "), Some(image.architecture().ptx.to_string().as_str()), "{}", image.file_name());
        assert_eq!(line(".target "), Some(image.architecture().name), "{}", image.file_name());
        assert_eq!(line(".address_size "), Some("64"), "{}", image.file_name());
    }
}

#[test]
fn no_image_calls_or_spills_or_calculates_inexactly() {
    for image in images() {
        for (number, line) in image.text().lines().enumerate() {
            if let Some(why) = forbidden(line) {
                panic!("{} line {}: {why}: {line}", image.file_name(), number + 1);
            }
        }
    }
}

#[test]
fn a_fused_sum_multiplies_by_one() {
    for image in images() {
        let lines: Vec<&str> = image.text().lines().collect();
        for (number, line) in lines.iter().enumerate().filter(|(_, line)| line.contains("fma.rn.bf16x2")) {
            let ones = "{ .reg .b32 ones; mov.b32 ones, 0x3f803f80; fma.rn.bf16x2 ";
            let operands: Vec<&str> = line.trim().strip_prefix(ones).unwrap_or_default().split(", ").collect();
            assert_eq!(operands.get(2), Some(&"ones"), "{} line {}: {line}", image.file_name(), number + 1);
        }
    }
}

#[test]
fn what_is_forbidden_is_recognised() {
    for line in [
        ".extern .func panic(",
        ".visible .func helper(",
        ".func (.param .b32 r) helper(",
        "\tcall.uni panic, (",
        "@%p1 call helper;",
        "\t.local .align 8 .b8 \t__local_depot0[104];",
        "\tst.local.u32 [%rd1], %r1;",
        "\tmul.f32 \t%r1, %r2, %r3;",
        "\tfma.rn.f32 \t%r1, %r2, %r3, %r4;",
        "\tadd.rn.ftz.f32 \t%r1, %r2, %r3;",
        "\tadd.f16x2 \t%r1, %r2, %r3;",
    ] {
        assert!(forbidden(line).is_some(), "{line}");
    }
    for line in [
        "\tadd.rn.f32 \t%r1, %r2, %r3;",
        "\tmul.rn.f16 \t%rs1, %rs2, %rs3;",
        "\tmin.NaN.f32 \t%r1, %r2, %r3;",
        "\tbar.sync \t0;",
        "\tmad.lo.s64 \t%rd1, %rd2, %rd3, %rd4;",
        ".visible .entry tutti_run_f32_sum(",
        "// call it what you like",
    ] {
        assert_eq!(forbidden(line), None, "{line}");
    }
}

#[test]
fn each_kernel_moves_its_data_in_the_widest_accesses_of_its_slots_and_architecture() {
    for image in images() {
        let widest = match (image.slots(), image.architecture().name) {
            (Slots::LowLatency, _) => "relaxed.sys.global.v2.b64",
            (Slots::Simple, "sm_100") => "global.v8.b32",
            (Slots::Simple, _) => "global.v4.b32",
        };
        for entry in image.text().split(".visible .entry ").skip(1) {
            let name = entry.split('(').next().unwrap_or_default();
            let count = |start: &str| entry.matches(&format!("\t{start}.{widest} ")).count();
            assert!(count("ld") >= 2 && count("st") >= 2, "{} {name}: {widest}", image.file_name());
        }
    }
}

#[test]
fn a_kernel_reaches_through_a_switch_exactly_where_the_table_says_that_it_can() {
    for image in images() {
        for entry in image.entries() {
            let (_, text) = image.text().split_once(&format!(".entry {}(", entry.name())).expect("it is declared");
            let text = text.split(".entry ").next().unwrap_or_default();
            let expected = image.slots() == Slots::Simple
                && image.architecture().compute_capability >= tutti_codegen::MULTIMEM_CAPABILITY
                && entry.dtype.multimem(entry.reduction).is_some();
            let found = (text.contains("multimem.ld_reduce."), text.contains("multimem.st."));
            assert_eq!(
                found,
                (expected && entry.reduction != tutti_codegen::COPY, expected),
                "{} {}",
                image.file_name(),
                entry.name()
            );
        }
    }
}

/// A program of NVIDIA's: what the variable names, or the one on the path. None if there is none and none is required.
fn tool(name: &str, variable: &str, required: &str) -> Option<PathBuf> {
    let (path, what) = match env::var_os(variable) {
        Some(path) => (PathBuf::from(path), format!("{variable} names something that does not run")),
        None => (PathBuf::from(name), format!("{variable} is not set, and there is none on the path")),
    };
    let reason = match Command::new(&path).arg("--version").output() {
        Ok(output) if output.status.success() => return Some(path),
        Ok(output) => format!("{what}: {} ends with {}", path.display(), output.status),
        Err(error) => format!("{what}: {}: {error}", path.display()),
    };
    assert!(
        env::var_os(required).is_none_or(|value| value != "1"),
        "{required} is set, but there is no {name} ({reason})"
    );
    eprintln!("skipped: no {name} ({reason})");
    None
}

/// What `ptxas -v` reports about one kernel.
#[derive(Debug, Default, PartialEq)]
struct Usage {
    kernel: String,
    stack_bytes: u32,
    spill_bytes: u32,
    registers: u32,
}

/// Reads ptxas' report, in which a kernel takes three lines: its name; stack frame and spills; registers.
fn usages(report: &str) -> Vec<Usage> {
    let number_before = |line: &str, what: &str| -> Option<u32> {
        let before = &line[..line.find(what)?];
        before.split_whitespace().next_back()?.parse().ok()
    };
    let mut usages: Vec<Usage> = Vec::new();
    for line in report.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            usages.push(Usage { kernel, stack_bytes: u32::MAX, spill_bytes: u32::MAX, registers: u32::MAX });
        }
        let Some(last) = usages.last_mut() else { continue };
        if let Some(bytes) = number_before(line, " bytes stack frame") {
            last.stack_bytes = bytes;
            let stores = number_before(line, " bytes spill stores").unwrap_or(u32::MAX);
            let loads = number_before(line, " bytes spill loads").unwrap_or(u32::MAX);
            last.spill_bytes = stores.saturating_add(loads);
        }
        if let Some(registers) = number_before(line, " registers") {
            last.registers = registers;
        }
    }
    usages
}

/// What was found out about an image.
#[derive(Default)]
struct Findings {
    /// Its line in the table of hot loops.
    row: Option<String>,
    complaints: Vec<String>,
}

/// Assembles one image, and measures the hot loops of its sum if there is a disassembler.
fn assemble(ptxas: &Path, nvdisasm: Option<&Path>, image: &Image, directory: &Path) -> Findings {
    let file_name = image.file_name();
    let (source, object) = (directory.join(&file_name), directory.join(format!("{file_name}.cubin")));
    fs::write(&source, image.text()).expect("the temporary directory takes files");
    let output = Command::new(ptxas)
        .args(["-v", "-arch", image.architecture().name])
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .output()
        .expect("ptxas ran before");
    let report = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let complaints = vec![format!("{file_name}: ptxas ends with {}:\n{report}", output.status)];
        return Findings { row: None, complaints };
    }
    let usages = usages(&report);
    let (mut row, mut complaints) = (None, Vec::new());
    for entry in image.entries() {
        let name = entry.name();
        match usages.iter().find(|usage| usage.kernel == name) {
            None => complaints.push(format!("{file_name}: ptxas reports nothing about {name}:\n{report}")),
            // A block has so many threads that each may have 255 registers.
            Some(Usage { stack_bytes: 0, spill_bytes: 0, registers: 0..=255, .. }) => {}
            Some(usage) => complaints.push(format!("{file_name}: {usage:?}")),
        }
    }
    let sum = image.entries().into_iter().map(|entry| entry.name()).find(|name| MEASURED.contains(&name.as_str()));
    // Today's disassembler no longer reads the oldest architecture's code.
    if let (Some(nvdisasm), Some(kernel), true) = (nvdisasm, sum, image.architecture().name != "sm_70") {
        let output = Command::new(nvdisasm).arg("-c").arg(&object).output().expect("nvdisasm ran before");
        let loops = sass::hot_loops(&String::from_utf8_lossy(&output.stdout), &kernel);
        let registers = usages.iter().find(|usage| usage.kernel == kernel).map_or(u32::MAX, |usage| usage.registers);
        let found = sass::row(image, &kernel, registers, &loops);
        row = Some(found.text);
        complaints.extend(found.complaints);
    }
    Findings { row, complaints }
}

/// The kernels that have figures to keep.
const MEASURED: [&str; 4] = ["tutti_run_f32_sum", "tutti_run_f16_sum", "tutti_run_bf16_sum", "tutti_run_bytes_copy"];

/// The second half needs a disassembler too; the table that it prints is that of the hot loops.
#[test]
fn ptxas_takes_each_image_without_a_spill_or_a_stack_frame_and_hot_loops_keep_their_figures() {
    let Some(ptxas) = tool("ptxas", "TUTTI_PTXAS", "TUTTI_REQUIRE_PTXAS") else { return };
    let nvdisasm = tool("nvdisasm", "TUTTI_NVDISASM", "TUTTI_REQUIRE_NVDISASM");
    let directory = env::temp_dir().join(format!("tutti-ptx-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("the temporary directory takes directories");
    let images = images();
    let findings = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(image) = images.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = assemble(&ptxas, nvdisasm.as_deref(), image, &directory);
                    findings.lock().expect("no worker panics with the lock").push(found);
                }
            });
        }
    });
    fs::remove_dir_all(&directory).expect("the directory is ours");
    let findings = findings.into_inner().expect("no worker panics with the lock");
    let mut rows: Vec<&str> = findings.iter().filter_map(|found| found.row.as_deref()).collect();
    rows.sort_unstable();
    println!("{}\n{}", sass::header(), rows.join("\n"));
    let complaints: Vec<&str> = findings.iter().flat_map(|found| &found.complaints).map(String::as_str).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn ptxas_reports_are_read() {
    let report = "\
ptxas info    : Compiling entry function 'tutti_run_f16_sum' for 'sm_70'
ptxas info    : Function properties for tutti_run_f16_sum
    136 bytes stack frame, 200 bytes spill stores, 340 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 136 bytes cumulative stack size, 360 bytes cmem[0]
ptxas info    : Compiling entry function 'b' for 'sm_70'
";
    let found = usages(report);
    let first = Usage { kernel: "tutti_run_f16_sum".to_owned(), stack_bytes: 136, spill_bytes: 540, registers: 128 };
    assert_eq!(found[0], first);
    assert_eq!(found[1].registers, u32::MAX, "what is not reported is not taken for good");
}
