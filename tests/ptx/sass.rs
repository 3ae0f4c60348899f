//! The machine code of the hot loops: how many instructions a pack of 16 bytes takes, and how many bytes a thread has asked
//! for before it waits for the first of them.
//!
//! Reads what `nvdisasm -c` prints. A hot loop is one block of instructions that ends in a branch to its start and moves packs;
//! what it does (how many sources become how many destinations) follows from its loads, stores and sums.

use std::fmt::{self, Write};

use tutti::ptx::Image;

/// What of a hot loop goes through a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Switched {
    Nothing,
    Loads,
    Stores,
    LoadsAndStores,
}

/// One hot loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HotLoop {
    pub(crate) sources: usize,
    pub(crate) destinations: usize,
    /// Packs of 16 bytes of result in one trip.
    pub(crate) packs: usize,
    /// Instructions of one trip, but for those that do nothing.
    pub(crate) instructions: usize,
    /// Bytes that a thread has asked for before it uses any of them.
    pub(crate) first_bytes: usize,
    /// Bytes of its narrowest load or store.
    pub(crate) access_bytes: usize,
    /// Whether the sources become wider numbers on the way.
    pub(crate) widens: bool,
    /// What goes through a switch.
    pub(crate) switched: Switched,
}

impl HotLoop {
    pub(crate) fn instructions_per_pack(&self) -> f64 {
        self.instructions as f64 / self.packs as f64
    }
}

/// An instruction: its name with all its suffixes, and its operands.
struct Instruction<'a> {
    name: &'a str,
    operands: &'a str,
}

/// Bytes that a load or store moves.
fn access_bytes(name: &str) -> usize {
    let widths = [(".256", 32), ("x4.", 16), ("x8.", 16), (".128", 16), (".64", 8), (".U16", 2), (".U8", 1)];
    widths.iter().find(|(suffix, _)| name.contains(suffix)).map_or(4, |(_, bytes)| *bytes)
}

/// The numbers of the registers that a text names.
fn registers(text: &str) -> impl Iterator<Item = usize> + '_ {
    text.match_indices('R').filter_map(|(place, _)| {
        let begins = !text[..place].ends_with(|before: char| before.is_ascii_alphanumeric() || before == '_');
        let digits: String = text[place + 1..].chars().take_while(char::is_ascii_digit).collect();
        if begins { digits.parse().ok() } else { None }
    })
}

/// What a loop's instructions do, if they move packs.
fn hot_loop(body: &[Instruction]) -> Option<HotLoop> {
    let is = |instruction: &Instruction, names: &[&str]| {
        let stem = instruction.name.split('.').next().unwrap_or_default();
        names.contains(&stem)
    };
    let is_load = |instruction: &Instruction| is(instruction, &["LDG", "LD", "LDGMC"]);
    let is_store = |instruction: &Instruction| is(instruction, &["STG", "ST"]);
    let count = |names: &[&str]| body.iter().filter(|instruction| is(instruction, names)).count();
    let accesses = || body.iter().filter(|instruction| is_load(instruction) || is_store(instruction));
    let bytes_of = |wanted: &dyn Fn(&Instruction) -> bool| -> usize {
        body.iter().filter(|one| wanted(one)).map(|one| access_bytes(one.name)).sum()
    };
    let (loaded, stored) = (bytes_of(&is_load) / 16, bytes_of(&is_store) / 16);
    if loaded < 4 || stored == 0 || count(&["LDL", "STL", "LDS", "STS"]) > 0 {
        return None;
    }
    // A conversion is spelled as a sum with nothing: `HADD2.F32`.
    let is_sum = |one: &&Instruction| is(one, &["FADD", "FHADD", "HADD2", "HFMA2"]) && !one.name.contains(".F32");
    let sums = body.iter().filter(is_sum).count();
    let widens = count(&["F2F", "F2FP"]) > 0;
    // A pack of four words takes four sums for each source but the first.
    let of_sums = (2..=4).find(|sources| loaded % sources == 0 && sums == 4 * (loaded / sources) * (sources - 1));
    let sources = if sums == 0 {
        1
    } else if widens {
        loaded / 4
    } else {
        of_sums?
    };
    let packs = loaded / sources;
    let mut first_bytes = 0;
    let mut pending = vec![false; 256];
    for instruction in body {
        // A load of 32 bytes names both halves of what it fills.
        let halves = if is_load(instruction) && access_bytes(instruction.name) == 32 { 2 } else { 1 };
        let end = instruction.operands.match_indices(',').map(|(place, _)| place).nth(halves - 1);
        let (target, operands) = match end {
            Some(end) if !is_store(instruction) => instruction.operands.split_at(end),
            _ => ("", instruction.operands),
        };
        if registers(operands).any(|register| pending.get(register) == Some(&true)) {
            break;
        }
        if is_load(instruction) {
            let bytes = access_bytes(instruction.name);
            first_bytes += bytes;
            for register in registers(target).flat_map(|first| first..first + bytes / 4 / halves) {
                pending[register] = true;
            }
        }
    }
    Some(HotLoop {
        sources,
        destinations: stored / packs,
        packs,
        instructions: body.iter().filter(|instruction| !is(instruction, &["NOP"])).count(),
        first_bytes,
        access_bytes: accesses().map(|access| access_bytes(access.name)).min().unwrap_or(0),
        widens,
        // Only such stores are strong; the flags of slots are stored elsewhere.
        switched: match (
            count(&["LDGMC"]) > 0,
            body.iter().any(|instruction| is_store(instruction) && instruction.name.contains("STRONG")),
        ) {
            (false, false) => Switched::Nothing,
            (true, false) => Switched::Loads,
            (false, true) => Switched::Stores,
            (true, true) => Switched::LoadsAndStores,
        },
    })
}

/// The hot loops of one kernel.
pub(crate) fn hot_loops(disassembly: &str, kernel: &str) -> Vec<HotLoop> {
    let header = format!(".text.{kernel}:");
    let lines = disassembly.lines().skip_while(|line| line.trim() != header).skip(1);
    let mut body: Vec<Instruction> = Vec::new();
    let mut label = "";
    let mut loops = Vec::new();
    for line in lines.take_while(|line| !line.starts_with(".text.")) {
        let line = line.trim();
        if let Some(name) = line.strip_suffix(':').filter(|name| name.starts_with(".L_")) {
            (label, body) = (name, Vec::new());
            continue;
        }
        let Some((_, code)) = line.strip_prefix("/*").and_then(|line| line.split_once("*/")) else { continue };
        let code = code.split(';').next().unwrap_or_default().trim().trim_start_matches('{').trim();
        let code = if code.starts_with('@') { code.split_once(' ').map_or("", |(_, code)| code.trim()) } else { code };
        let (name, operands) = code.split_once(' ').unwrap_or((code, ""));
        if name.is_empty() {
            continue;
        }
        body.push(Instruction { name, operands });
        if name.starts_with("BRA") {
            if !label.is_empty() && operands.contains(&format!("({label})")) {
                loops.extend(hot_loop(&body));
            }
            // What follows is another block, which nobody can name.
            (label, body) = ("", Vec::new());
        }
    }
    // For each shape there is a second loop, for the packs that fill no tile.
    loops.sort_by_key(|hot_loop| {
        (hot_loop.switched, hot_loop.sources, hot_loop.destinations, std::cmp::Reverse(hot_loop.packs))
    });
    loops
}

/// The most that the loop may take, where that is laid down: instructions for each pack, and the least it asks for at first.
fn limits(hot_loop: &HotLoop) -> Option<(f64, usize)> {
    match (hot_loop.sources, hot_loop.destinations) {
        _ if hot_loop.switched != Switched::Nothing => Some((3.0, 0)),
        (1, 1) => Some((3.25, 128)),
        (2, 1) => Some((8.5, 160)),
        (2, 2) => Some((10.0, 0)),
        // Loads, stores and sums, and what it takes to go round.
        (sources @ 3.., 1) if !hot_loop.widens => Some(((sources + 1 + 4 * (sources - 1)) as f64 + 2.5, 0)),
        _ => None,
    }
}

/// The registers that a kernel which sums may use.
const REGISTERS_MAX: u32 = 96;

/// A row of the table, and what is wrong with it.
pub(crate) struct Row {
    pub(crate) text: String,
    pub(crate) complaints: Vec<String>,
}

/// What there is to say about one kernel that sums.
pub(crate) fn row(image: &Image, kernel: &str, registers: u32, loops: &[HotLoop]) -> Row {
    let mut text = format!("{:<24} {registers:>4}", image.file_name());
    let mut complaints = Vec::new();
    let mut complain = |what: fmt::Arguments| complaints.push(format!("{}: {kernel}: {what}", image.file_name()));
    if registers > REGISTERS_MAX {
        complain(format_args!("{registers} registers; at most {REGISTERS_MAX}"));
    }
    let (capability, wide) = (image.architecture().compute_capability, image.architecture().name == "sm_100");
    for (switched, sources, destinations) in SHAPES {
        let is_offered = match switched {
            Switched::Nothing => sources == 1 || !kernel.ends_with("_copy"),
            Switched::Stores => capability >= tutti_codegen::MULTIMEM_CAPABILITY,
            _ => capability >= tutti_codegen::MULTIMEM_CAPABILITY && !kernel.ends_with("_copy"),
        };
        if !is_offered {
            write!(text, " {:>10}", "-").expect("a string takes all that is written to it");
            continue;
        }
        let found =
            loops.iter().find(|one| (one.switched, one.sources, one.destinations) == (switched, sources, destinations));
        let Some(hot_loop) = found else {
            complain(format_args!("no hot loop from {sources} to {destinations} was found"));
            continue;
        };
        let per_pack = hot_loop.instructions_per_pack();
        let cell = format!("{per_pack:.2}/{}", hot_loop.first_bytes);
        write!(text, " {cell:>10}").expect("a string takes all that is written to it");
        if hot_loop.access_bytes < if wide && switched == Switched::Nothing { 32 } else { 16 } {
            complain(format_args!("{sources} to {destinations}: an access of {} bytes", hot_loop.access_bytes));
        }
        if let Some((most, least)) = limits(hot_loop)
            && (per_pack > most || hot_loop.first_bytes < least)
        {
            complain(format_args!(
                "{sources} to {destinations}: {per_pack:.2} instructions for 16 bytes, {} bytes asked for at first; at most \
                 {most} and at least {least}",
                hot_loop.first_bytes
            ));
        }
    }
    Row { text, complaints }
}

/// The shapes that the table shows: what goes through a switch, the sources, the destinations.
const SHAPES: [(Switched, usize, usize); 10] = [
    (Switched::Nothing, 1, 1),
    (Switched::Nothing, 2, 1),
    (Switched::Nothing, 2, 2),
    (Switched::Nothing, 3, 1),
    (Switched::Nothing, 4, 1),
    (Switched::Nothing, 3, 3),
    (Switched::Nothing, 4, 4),
    (Switched::Loads, 1, 1),
    (Switched::Stores, 1, 1),
    (Switched::LoadsAndStores, 1, 1),
];

/// The table's first line.
pub(crate) fn header() -> String {
    let mut text = format!("{:<24} {:>4}", "sum: instructions per", "regs");
    for (switched, sources, destinations) in SHAPES {
        let shape = match switched {
            Switched::Nothing => format!("{sources} to {destinations}"),
            Switched::Loads => "mm to 1".to_owned(),
            Switched::Stores => "1 to mm".to_owned(),
            Switched::LoadsAndStores => "mm to mm".to_owned(),
        };
        write!(text, " {shape:>10}").expect("a string takes all that is written to it");
    }
    text + "\n16 B / bytes asked first"
}

#[test]
fn loops_are_found_and_measured() {
    let load = |register: usize, base: usize, offset: usize| {
        format!("        /*0010*/                   LDG.E.128 R{register}, desc[UR4][R{base}.64+{offset:#x}] ;\n")
    };
    let mut text = String::from(".text.k:\n        /*0000*/                   MOV R1, R2 ;\n.L_x_1:\n");
    for pack in 0..4 {
        text += &load(20 + 4 * pack, 2, 512 * pack);
        text += &load(60 + 4 * pack, 4, 512 * pack);
    }
    for word in 0..16 {
        let _ = writeln!(text, "        /*0020*/                   FADD R{0}, R{0}, R{1} ;", 20 + word, 60 + word);
    }
    for pack in 0..4 {
        let _ = writeln!(
            text,
            "        /*0030*/                   STG.E.128 desc[UR4][R6.64+{pack:#x}], R{} ;",
            20 + 4 * pack
        );
    }
    text += "        /*0040*/                   NOP ;\n        /*0050*/              @P1 BRA `(.L_x_1) ;\n";
    text += ".text.other:\n.L_x_2:\n        /*0000*/                   BRA `(.L_x_2) ;\n";
    let expected = HotLoop {
        sources: 2,
        destinations: 1,
        packs: 4,
        instructions: 29,
        first_bytes: 128,
        access_bytes: 16,
        widens: false,
        switched: Switched::Nothing,
    };
    assert_eq!(hot_loops(&text, "k"), [expected]);
    assert_eq!(hot_loops(&text, "other"), []);
}
