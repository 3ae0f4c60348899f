//! A module: PTX text, parsed and decoded once into what the interpreter runs.
//!
//! In decoded form a register is an index, and so is everything else that an instruction reads: constants, addresses of
//! variables and special registers stand in a table beside the registers ([`Source`]). Calls of the module's own functions
//! are decoded in place, with registers of their own. Labels are positions.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::arithmetic::{self, Binary, Conversion, Flags, Operation, Quaternary, Ternary, Unary};
use crate::parse::{self, Function, Initial, Instruction, Item, Operand, ParseError, Space as Where, Tree, Variable};
use crate::race::Scope;
use crate::types::{Type, mask_of};

mod flow;
mod opcode;

/// A module, decoded. It belongs to no device yet; see [`crate::Machine::load`].
pub struct Module {
    pub(crate) kernels: Vec<Arc<Kernel>>,
    pub(crate) variables: Vec<GlobalVariable>,
    target: String,
    version: String,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.kernels.iter().map(|kernel| &*kernel.name).collect();
        f.debug_struct("Module").field("target", &self.target).field("kernels", &names).finish_non_exhaustive()
    }
}

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Where it begins among the argument bytes.
    pub offset: u32,
    /// How many bytes it has.
    pub bytes: u32,
}

/// What a kernel asks of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Bytes of its parameters.
    pub parameter_bytes: u32,
    /// Bytes of shared memory that it declares.
    pub shared_bytes: u32,
    /// Bytes of local memory of each thread.
    pub local_bytes: u32,
    /// The block that it demands (`.reqntid`).
    pub required_threads: Option<[u32; 3]>,
    /// The most threads of a block that it allows (`.maxntid`).
    pub threads_max: Option<u64>,
}

/// A variable in global or constant memory.
#[derive(Debug)]
pub(crate) struct GlobalVariable {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) size: u64,
    pub(crate) initialised: bool,
    /// Where an address of another variable belongs, which variable, and so many bytes more.
    pub(crate) addresses: Vec<(u64, usize, i64)>,
}

/// A kernel, decoded.
pub(crate) struct Kernel {
    pub(crate) name: Arc<str>,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) parameter_bytes: u32,
    pub(crate) code: Vec<Instr>,
    pub(crate) registers: u32,
    pub(crate) constants: Vec<Constant>,
    /// For each instruction: its place in an order in which branches meet again (see [`flow`]); `BLOCK_START` marks the
    /// first of a basic block.
    pub(crate) order: Vec<u32>,
    pub(crate) shared_bytes: u32,
    pub(crate) local_bytes: u32,
    pub(crate) required_threads: Option<[u32; 3]>,
    pub(crate) threads_max: Option<u64>,
}

/// Marks the first instruction of a basic block in [`Kernel::order`].
pub(crate) const BLOCK_START: u32 = 1 << 31;

/// A register's index.
pub(crate) type Register = u32;

/// What an instruction reads: a register, or with the highest bit an entry of the table of constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source(pub(crate) u32);

pub(crate) const CONSTANT: u32 = 1 << 31;

/// An entry of the table of constants; addresses are known when the module is on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Value(u64),
    Variable(usize, i64),
    /// The start of the shared memory that the launch adds.
    DynamicShared,
}

/// Registers that are set when a warp begins, in this order, below all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Special {
    TidX,
    TidY,
    TidZ,
    NtidX,
    NtidY,
    NtidZ,
    CtaidX,
    CtaidY,
    CtaidZ,
    NctaidX,
    NctaidY,
    NctaidZ,
    LaneId,
    WarpId,
    WarpCount,
    MultiprocessorId,
    GridId,
    MaskEqual,
    MaskLess,
    MaskLessEqual,
    MaskGreater,
    MaskGreaterEqual,
    DynamicSharedBytes,
    TotalSharedBytes,
    /// The carry of `add.cc` and its kin.
    Carry,
    Count,
}

#[derive(Debug)]
pub(crate) struct Instr {
    /// A predicate register, `NEGATED` or not; `NO_GUARD` for none.
    pub(crate) guard: u32,
    pub(crate) line: u32,
    pub(crate) op: Op,
}

pub(crate) const NO_GUARD: u32 = u32::MAX;
pub(crate) const NEGATED: u32 = 1 << 30;

/// Where an address points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Constant,
    Shared,
    Local,
    Parameter,
}

/// What a load, store or atomic promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strength {
    Weak,
    /// Relaxed, or volatile.
    Relaxed(Scope),
    /// Acquire for a load, release for a store.
    Ordered(Scope),
}

#[derive(Debug)]
pub(crate) struct MemoryAccess {
    pub(crate) space: Space,
    pub(crate) strength: Strength,
    /// Bytes of one element.
    pub(crate) bytes: u32,
    /// Bytes to extend the sign to, or 0.
    pub(crate) sign_bytes: u32,
    pub(crate) address: Source,
    pub(crate) offset: i64,
    /// Destinations of a load (`NO_GUARD` for `_`), or sources of a store.
    pub(crate) values: Vec<u32>,
}

/// What an atomic makes of the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    Exchange,
    CompareAndSwap,
    And,
    Or,
    Xor,
    Add,
    Min,
    Max,
    Increment,
    Decrement,
}

#[derive(Debug)]
pub(crate) struct AtomicAccess {
    pub(crate) space: Space,
    pub(crate) scope: Scope,
    pub(crate) acquire: bool,
    pub(crate) release: bool,
    pub(crate) update: Update,
    pub(crate) kind: Type,
    pub(crate) destinations: Vec<u32>,
    pub(crate) address: Source,
    pub(crate) offset: i64,
    pub(crate) operands: Vec<Source>,
    /// What replaces the old value, for `cas`.
    pub(crate) swap: Option<Source>,
}

/// `multimem`.
#[derive(Debug)]
pub(crate) struct MultimemAccess {
    pub(crate) kind: Type,
    pub(crate) update: Update,
    pub(crate) wide: bool,
    pub(crate) strength: Strength,
    pub(crate) address: Source,
    pub(crate) offset: i64,
    pub(crate) action: MultimemAction,
    pub(crate) values: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MultimemAction {
    LoadReduce,
    Store,
    Reduce,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierVote {
    None,
    And(Register, Source, bool),
    Or(Register, Source, bool),
    Count(Register, Source, bool),
}

#[derive(Debug)]
pub(crate) struct Barrier {
    pub(crate) id: Source,
    pub(crate) count: Option<Source>,
    pub(crate) arrive: bool,
    pub(crate) aligned: bool,
    pub(crate) vote: BarrierVote,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteMode {
    All,
    Any,
    Uniform,
    Ballot,
}

/// An instruction of a warp that waits for its members.
#[derive(Debug)]
pub(crate) enum WarpOp {
    Barrier,
    Shuffle { mode: ShuffleMode, d: Register, valid: Option<Register>, a: Source, b: Source, c: Source },
    Vote { mode: VoteMode, d: Register, a: Source, negate: bool },
    MatchAny { d: Register, a: Source },
    MatchAll { d: Register, valid: Option<Register>, a: Source },
    Reduce { update: Update, kind: Type, d: Register, a: Source },
    Elect { d: Option<Register>, elected: Register },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    None,
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moving {
    Clock,
    Clock64,
    ClockHigh,
    GlobalTimer,
    GlobalTimerLow,
    GlobalTimerHigh,
    ActiveMask,
}

#[derive(Debug)]
pub(crate) struct SetPredicate {
    pub(crate) compare: Binary,
    pub(crate) combine: Combine,
    pub(crate) p: Option<Register>,
    pub(crate) q: Option<Register>,
    pub(crate) a: Source,
    pub(crate) b: Source,
    pub(crate) c: Option<(Source, bool)>,
}

#[derive(Debug)]
pub(crate) enum Op {
    Unary {
        f: Unary,
        d: Register,
        a: Source,
    },
    Binary {
        f: Binary,
        d: Register,
        a: Source,
        b: Source,
    },
    Ternary {
        f: Ternary,
        d: Register,
        a: Source,
        b: Source,
        c: Source,
    },
    Quaternary {
        f: Quaternary,
        d: Register,
        s: [Source; 4],
    },
    Convert {
        conversion: Box<Conversion>,
        d: Register,
        a: Source,
    },
    ConvertTwo {
        conversion: Box<Conversion>,
        d: Register,
        a: Source,
        b: Source,
    },
    SignExtend {
        d: Register,
        a: Source,
        from_bytes: u32,
        to_bytes: u32,
    },
    SetPredicate(Box<SetPredicate>),
    /// Several narrow registers into one.
    Pack {
        d: Register,
        sources: Box<[Source]>,
        bits: u32,
    },
    /// One register into several.
    Unpack {
        destinations: Box<[u32]>,
        a: Source,
        bits: u32,
    },
    Read {
        what: Moving,
        d: Register,
    },
    /// To or from a generic address.
    ToGeneric {
        d: Register,
        a: Source,
        space: Space,
    },
    FromGeneric {
        d: Register,
        a: Source,
        space: Space,
    },
    IsSpace {
        d: Register,
        a: Source,
        space: Space,
    },
    Load(Box<MemoryAccess>),
    Store(Box<MemoryAccess>),
    Atomic(Box<AtomicAccess>),
    Multimem(Box<MultimemAccess>),
    Fence(Scope),
    /// `fence.proxy.alias`.
    AliasFence,
    Barrier(Box<Barrier>),
    Warp {
        members: Source,
        op: Box<WarpOp>,
    },
    Branch {
        target: u32,
    },
    BranchIndexed {
        index: Source,
        targets: Box<[u32]>,
    },
    Exit,
    Trap,
    Sleep {
        a: Source,
    },
    Nothing,
    /// A call of a function that the module only declares.
    Undefined(Box<str>),
}

impl Module {
    /// Parses and decodes PTX text.
    ///
    /// # Errors
    /// The first line that is not PTX, or not supported.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let tree = parse::parse(text)?;
        let mut globals: HashMap<&str, usize> = HashMap::new();
        let mut declared: Vec<&Variable> = Vec::new();
        let functions = tree.functions.iter().flat_map(|function| function.body.iter().flatten());
        let inner = functions.filter_map(|item| match item {
            Item::Variable(variable) => Some(variable),
            _ => None,
        });
        for variable in tree.variables.iter().chain(inner) {
            if matches!(variable.space, Where::Global | Where::Constant) {
                globals.insert(variable.name, declared.len());
                declared.push(variable);
            }
        }
        let variables =
            declared.iter().map(|variable| global_variable(variable, &globals)).collect::<Result<_, _>>()?;
        let mut kernels = Vec::new();
        for function in tree.functions.iter().filter(|function| function.is_entry && function.body.is_some()) {
            kernels.push(Arc::new(decode(&tree, &globals, function)?));
        }
        Ok(Module { kernels, variables, target: tree.target.to_owned(), version: tree.version.clone() })
    }

    /// The architecture that the text names, such as `sm_90`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The PTX version that the text names, such as `8.8`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The names of its kernels, in the order of the text.
    pub fn kernel_names(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().map(|kernel| &*kernel.name)
    }

    /// A kernel's parameters.
    pub fn parameters(&self, kernel: &str) -> Option<&[Parameter]> {
        self.kernel(kernel).map(|kernel| &kernel.parameters[..])
    }

    /// What a kernel asks of a device.
    pub fn needs(&self, kernel: &str) -> Option<Needs> {
        self.kernel(kernel).map(|kernel| Needs {
            parameter_bytes: kernel.parameter_bytes,
            shared_bytes: kernel.shared_bytes.next_multiple_of(16),
            local_bytes: kernel.local_bytes,
            required_threads: kernel.required_threads,
            threads_max: kernel.threads_max,
        })
    }

    pub(crate) fn kernel(&self, name: &str) -> Option<&Arc<Kernel>> {
        self.kernels.iter().find(|kernel| &*kernel.name == name)
    }
}

fn type_of(variable: &Variable) -> Result<Type, ParseError> {
    Type::named(variable.type_name)
        .ok_or_else(|| ParseError::new(variable.line, "a type", format!("`.{}`", variable.type_name)))
}

/// Size and alignment of a variable, in bytes.
fn extent(variable: &Variable) -> Result<(u64, u64), ParseError> {
    let element = u64::from(type_of(variable)?.bytes()) * u64::from(variable.vector);
    let count = variable.elements.unwrap_or(1).max(if variable.initial.is_empty() { 0 } else { 1 });
    let count = if variable.elements == Some(0) { variable.initial.len() as u64 } else { count };
    let bytes = element.checked_mul(count).filter(|&bytes| bytes <= 1 << 32);
    let bytes = bytes.ok_or_else(|| ParseError::new(variable.line, "a variable of at most 4 GiB", "a larger one"))?;
    Ok((bytes, variable.align.unwrap_or(element).max(1)))
}

fn global_variable(variable: &Variable, globals: &HashMap<&str, usize>) -> Result<GlobalVariable, ParseError> {
    let (size, _) = extent(variable)?;
    let kind = type_of(variable)?;
    let element = kind.bytes() as usize;
    if variable.initial.len() as u64 * element as u64 > size {
        return Err(ParseError::new(variable.line, format!("values for {size} bytes"), "more"));
    }
    let mut bytes = if variable.initial.is_empty() { Vec::new() } else { vec![0; size as usize] };
    let mut addresses = Vec::new();
    for (index, initial) in variable.initial.iter().enumerate() {
        let at = index * element;
        let value = match *initial {
            Initial::Integer(value) => value,
            Initial::Float32(bits) => bits.into(),
            Initial::Float64(bits) if kind == Type::F32 => (f64::from_bits(bits) as f32).to_bits().into(),
            Initial::Float64(bits) => bits,
            Initial::Address(name, offset) => {
                let unknown = || ParseError::new(variable.line, "a variable in global memory", format!("`{name}`"));
                if element != 8 {
                    return Err(ParseError::new(
                        variable.line,
                        "8 bytes for an address",
                        format!("`.{}`", variable.type_name),
                    ));
                }
                addresses.push((at as u64, *globals.get(name).ok_or_else(unknown)?, offset));
                0
            }
        };
        bytes[at..at + element].copy_from_slice(&value.to_le_bytes()[..element]);
    }
    // A variable of global memory without a value begins as zeros.
    Ok(GlobalVariable { name: variable.name.to_owned(), bytes, size, initialised: !variable.is_extern, addresses })
}

/// What a name stands for inside a function.
#[derive(Clone, Copy, Debug)]
enum Meaning {
    Register(Register, Type),
    /// An address in a state space.
    Address(Space, i64),
    Global(usize),
    DynamicShared,
}

/// Functions inside functions, at most so deep.
const CALLS_MAX: usize = 32;

/// Instructions of one kernel, calls included.
const CODE_MAX: usize = 1 << 22;

struct Decoder<'t, 'a> {
    tree: &'t Tree<'a>,
    globals: &'t HashMap<&'a str, usize>,
    functions: HashMap<&'a str, &'t Function<'a>>,
    module_shared: HashMap<&'a str, Meaning>,
    code: Vec<Instr>,
    registers: u32,
    constants: Vec<Constant>,
    constant_index: HashMap<Constant, u32>,
    shared_bytes: u64,
    local_bytes: u64,
    calls: Vec<&'a str>,
    line: u32,
}

/// The names of one pair of braces.
#[derive(Default)]
struct Names<'a> {
    names: HashMap<&'a str, Meaning>,
    /// Prefix of the names; first register, how many, type.
    banks: HashMap<&'a str, (Register, u32, Type)>,
}

/// One function being decoded in place.
struct Frame<'t, 'a> {
    scopes: Vec<Names<'a>>,
    labels: HashMap<&'a str, u32>,
    targets: HashMap<&'a str, &'t [&'a str]>,
    /// Branches whose target is not known yet: instruction, which of its targets, label, line.
    open: Vec<(usize, usize, &'a str, u32)>,
    /// Branches to the end of the function, for a `ret` in a called one.
    returns: Vec<usize>,
    is_entry: bool,
}

fn decode(tree: &Tree, globals: &HashMap<&str, usize>, function: &Function) -> Result<Kernel, ParseError> {
    let mut decoder = Decoder {
        tree,
        globals,
        functions: tree.functions.iter().map(|function| (function.name, function)).collect(),
        module_shared: HashMap::new(),
        code: Vec::new(),
        registers: Special::Count as u32,
        constants: Vec::new(),
        constant_index: HashMap::new(),
        shared_bytes: 0,
        local_bytes: 0,
        calls: vec![function.name],
        line: function.line,
    };
    for candidate in &tree.functions {
        // A definition counts, not the declaration that may come after it.
        if candidate.body.is_some() {
            decoder.functions.insert(candidate.name, candidate);
        }
    }
    let mut scope = HashMap::new();
    let mut parameters = Vec::new();
    let mut offset = 0u64;
    for parameter in &function.parameters {
        let (bytes, align) = extent(parameter)?;
        offset = offset.next_multiple_of(align);
        if offset + bytes > 1 << 15 {
            return Err(ParseError::new(parameter.line, "at most 32 KiB of parameters", "more"));
        }
        scope.insert(parameter.name, Meaning::Address(Space::Parameter, offset as i64));
        parameters.push(Parameter { offset: offset as u32, bytes: bytes as u32 });
        offset += bytes;
    }
    decoder.body(function, scope)?;
    decoder.push(NO_GUARD, Op::Exit)?;
    if decoder.shared_bytes > 1 << 28 || decoder.local_bytes > 1 << 20 {
        return Err(ParseError::new(function.line, "at most 256 MiB shared and 1 MiB local memory", "more"));
    }
    let order = flow::order(&decoder.code);
    let registers = flow::pack_registers(&mut decoder.code, decoder.registers, Special::Count as u32);
    Ok(Kernel {
        name: function.name.into(),
        parameters,
        parameter_bytes: offset as u32,
        code: decoder.code,
        registers,
        constants: decoder.constants,
        order,
        shared_bytes: decoder.shared_bytes as u32,
        local_bytes: decoder.local_bytes as u32,
        required_threads: function.required_threads,
        threads_max: function.threads_max,
    })
}

impl<'t, 'a> Decoder<'t, 'a> {
    fn wrong<T>(&self, expected: impl fmt::Display, found: impl fmt::Display) -> Result<T, ParseError> {
        Err(ParseError::new(self.line, expected, found))
    }

    fn push(&mut self, guard: u32, op: Op) -> Result<(), ParseError> {
        if self.code.len() >= CODE_MAX {
            return self.wrong(format!("at most {CODE_MAX} instructions in a kernel"), "more");
        }
        self.code.push(Instr { guard, line: self.line, op });
        Ok(())
    }

    fn register(&mut self) -> Register {
        self.registers += 1;
        self.registers - 1
    }

    fn constant(&mut self, constant: Constant) -> Source {
        let next = self.constants.len() as u32;
        let index = *self.constant_index.entry(constant).or_insert(next);
        if index == next {
            self.constants.push(constant);
        }
        Source(CONSTANT | index)
    }

    fn value(&mut self, value: u64) -> Source {
        self.constant(Constant::Value(value))
    }

    /// Decodes a function's body behind what is there; `scope` holds its parameters.
    fn body(&mut self, function: &'t Function<'a>, scope: HashMap<&'a str, Meaning>) -> Result<(), ParseError> {
        let items = function.body.as_deref().unwrap_or(&[]);
        let mut frame = Frame {
            scopes: vec![Names { names: scope, banks: HashMap::new() }, Names::default()],
            labels: HashMap::new(),
            targets: HashMap::new(),
            open: Vec::new(),
            returns: Vec::new(),
            is_entry: self.calls.len() == 1,
        };
        for item in items {
            if let Item::Targets(name, targets) = item {
                frame.targets.insert(name, targets);
            }
        }
        for item in items {
            match item {
                Item::Open => frame.scopes.push(Names::default()),
                Item::Close => {
                    frame.scopes.pop();
                }
                Item::Label(name, line) => {
                    if frame.labels.insert(name, self.code.len() as u32).is_some() {
                        return Err(ParseError::new(*line, "a label once", format!("`{name}` again")));
                    }
                }
                Item::Targets(..) => {}
                Item::Variable(variable) => self.declare(&mut frame, variable)?,
                Item::Instruction(instruction) => {
                    self.line = instruction.line;
                    self.instruction(&mut frame, instruction)?;
                }
            }
        }
        let end = self.code.len() as u32;
        for at in std::mem::take(&mut frame.returns) {
            self.set_target(at, 0, end);
        }
        for (at, which, label, line) in std::mem::take(&mut frame.open) {
            let Some(&target) = frame.labels.get(label) else {
                return Err(ParseError::new(line, "a label of this function", format!("`{label}`")));
            };
            self.set_target(at, which, target);
        }
        Ok(())
    }

    fn set_target(&mut self, at: usize, which: usize, position: u32) {
        match &mut self.code[at].op {
            Op::Branch { target } => *target = position,
            Op::BranchIndexed { targets, .. } => targets[which] = position,
            _ => {}
        }
    }

    fn declare(&mut self, frame: &mut Frame<'t, 'a>, variable: &'t Variable<'a>) -> Result<(), ParseError> {
        self.line = variable.line;
        let meaning = match variable.space {
            Where::Register => {
                let kind = type_of(variable)?;
                if variable.vector != 1 {
                    return Err(ParseError::unsupported(variable.line, ".reg .v2/.v4"));
                }
                match variable.bank {
                    // The bank is found by its prefix; its registers follow each other.
                    Some(count) => {
                        let first = self.registers;
                        if u64::from(first) + u64::from(count) > 1 << 22 {
                            return self.wrong("at most 2^22 registers", "more");
                        }
                        self.registers += count;
                        if let Some(scope) = frame.scopes.last_mut() {
                            scope.banks.insert(variable.name, (first, count, kind));
                        }
                        return Ok(());
                    }
                    None => Meaning::Register(self.register(), kind),
                }
            }
            Where::Shared => self.shared(variable)?,
            Where::Local | Where::Parameter => Meaning::Address(Space::Local, self.local(variable)? as i64),
            Where::Global | Where::Constant => match self.globals.get(variable.name) {
                Some(&index) => Meaning::Global(index),
                None => return self.wrong("a variable", format!("`{}`", variable.name)),
            },
        };
        if let Some(scope) = frame.scopes.last_mut() {
            scope.names.insert(variable.name, meaning);
        }
        Ok(())
    }

    fn local(&mut self, variable: &Variable) -> Result<u64, ParseError> {
        let (bytes, align) = extent(variable)?;
        let offset = self.local_bytes.next_multiple_of(align);
        self.local_bytes = offset + bytes;
        Ok(offset)
    }

    fn shared(&mut self, variable: &Variable) -> Result<Meaning, ParseError> {
        if variable.is_extern || variable.elements == Some(0) {
            return Ok(Meaning::DynamicShared);
        }
        let (bytes, align) = extent(variable)?;
        let offset = self.shared_bytes.next_multiple_of(align);
        self.shared_bytes = offset + bytes;
        Ok(Meaning::Address(Space::Shared, offset as i64))
    }

    fn find(&mut self, frame: &Frame<'t, 'a>, name: &'a str) -> Result<Meaning, ParseError> {
        let bank = split_number(name);
        for scope in frame.scopes.iter().rev() {
            if let Some(&meaning) = scope.names.get(name) {
                return Ok(meaning);
            }
            if let Some((prefix, number)) = bank
                && let Some(&(first, count, kind)) = scope.banks.get(prefix)
                && number < count
            {
                return Ok(Meaning::Register(first + number, kind));
            }
        }
        if let Some(&meaning) = self.module_shared.get(name) {
            return Ok(meaning);
        }
        if let Some(&index) = self.globals.get(name) {
            return Ok(Meaning::Global(index));
        }
        let tree = self.tree;
        if let Some(variable) =
            tree.variables.iter().find(|variable| variable.name == name && variable.space == Where::Shared)
        {
            let meaning = self.shared(variable)?;
            self.module_shared.insert(name, meaning);
            return Ok(meaning);
        }
        self.wrong("a declared name", format!("`{name}`"))
    }
}

/// `%r12` as a bank's prefix and a number; a number with a leading zero is none.
fn split_number(name: &str) -> Option<(&str, u32)> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (prefix, number) = name.split_at(name.len() - digits);
    if number.len() > 1 && number.starts_with('0') {
        return None;
    }
    number.parse().ok().map(|number| (prefix, number))
}
