//! One instruction: from its opcode and operands to what the interpreter runs.

use super::*;

/// Names of special registers that are set once.
const SPECIALS: &[(&str, Special)] = &[
    ("%tid.x", Special::TidX),
    ("%tid.y", Special::TidY),
    ("%tid.z", Special::TidZ),
    ("%ntid.x", Special::NtidX),
    ("%ntid.y", Special::NtidY),
    ("%ntid.z", Special::NtidZ),
    ("%ctaid.x", Special::CtaidX),
    ("%ctaid.y", Special::CtaidY),
    ("%ctaid.z", Special::CtaidZ),
    ("%nctaid.x", Special::NctaidX),
    ("%nctaid.y", Special::NctaidY),
    ("%nctaid.z", Special::NctaidZ),
    ("%laneid", Special::LaneId),
    ("%warpid", Special::WarpId),
    ("%nwarpid", Special::WarpCount),
    ("%smid", Special::MultiprocessorId),
    ("%gridid", Special::GridId),
    ("%lanemask_eq", Special::MaskEqual),
    ("%lanemask_lt", Special::MaskLess),
    ("%lanemask_le", Special::MaskLessEqual),
    ("%lanemask_gt", Special::MaskGreater),
    ("%lanemask_ge", Special::MaskGreaterEqual),
    ("%dynamic_smem_size", Special::DynamicSharedBytes),
    ("%total_smem_size", Special::TotalSharedBytes),
];

const MOVING: &[(&str, Moving)] = &[
    ("%clock", Moving::Clock),
    ("%clock64", Moving::Clock64),
    ("%clock_hi", Moving::ClockHigh),
    ("%globaltimer", Moving::GlobalTimer),
    ("%globaltimer_lo", Moving::GlobalTimerLow),
    ("%globaltimer_hi", Moving::GlobalTimerHigh),
];

/// Shared memory is at most so large, so that a multiprocessor's is never exceeded by `%total_smem_size`.
const OPERANDS_MAX: usize = 8;

/// What an opcode says besides its types.
struct Opcode<'a> {
    full: &'a str,
    base: &'a str,
    types: Vec<Type>,
    flags: Flags<'a>,
}

impl<'t, 'a> Decoder<'t, 'a> {
    fn unsupported<T>(&self, opcode: &Opcode) -> Result<T, ParseError> {
        Err(ParseError::unsupported(self.line, opcode.full))
    }

    /// Errors unless all modifiers have been understood.
    fn understood(&self, opcode: &Opcode) -> Result<(), ParseError> {
        if opcode.flags.0.is_empty() { Ok(()) } else { self.unsupported(opcode) }
    }

    pub(super) fn instruction(
        &mut self,
        frame: &mut Frame<'t, 'a>,
        instruction: &'t Instruction<'a>,
    ) -> Result<(), ParseError> {
        let guard = match instruction.guard {
            None => NO_GUARD,
            Some((name, negated)) => match self.find(frame, name)? {
                Meaning::Register(register, Type::Pred) => register | if negated { NEGATED } else { 0 },
                _ => return self.wrong("a predicate", format!("`{name}`")),
            },
        };
        let mut parts = instruction.opcode.split('.');
        let base = parts.next().unwrap_or("");
        let (mut types, mut flags) = (Vec::new(), Vec::new());
        for part in parts {
            match Type::named(part) {
                Some(kind) => types.push(kind),
                None => flags.extend(
                    part.split("::").enumerate().map(|(index, piece)| if index == 0 { part } else { piece }).take(1),
                ),
            }
        }
        let mut opcode = Opcode { full: instruction.opcode, base, types, flags: Flags(flags) };
        let operands = &instruction.operands[..];
        if operands.len() > OPERANDS_MAX && base != "call" {
            return self.wrong(format!("at most {OPERANDS_MAX} operands"), operands.len());
        }
        match base {
            "ld" | "ldu" => self.load(frame, guard, &mut opcode, operands),
            "st" => self.store(frame, guard, &mut opcode, operands),
            "atom" | "red" => self.atomic(frame, guard, &mut opcode, operands),
            "multimem" => self.multimem(frame, guard, &mut opcode, operands),
            "fence" | "membar" => self.fence(guard, &mut opcode),
            "bar" | "barrier" => self.barrier(frame, guard, &mut opcode, operands),
            "shfl" | "vote" | "match" | "redux" | "elect" => self.warp(frame, guard, &mut opcode, operands),
            "activemask" => {
                let [d] = self.exactly(operands)?;
                let d = self.destination(frame, d, 4)?;
                self.push(guard, Op::Read { what: Moving::ActiveMask, d })
            }
            "setp" | "set" => self.compare(frame, guard, &mut opcode, operands),
            "mov" => self.mov(frame, guard, &mut opcode, operands),
            "cvta" | "isspacep" => self.address(frame, guard, &mut opcode, operands),
            "bra" => {
                opcode.flags.take("uni");
                self.understood(&opcode)?;
                let [target] = self.exactly(operands)?;
                let Operand::Name(label, 0) = target else { return self.wrong("a label", "another operand") };
                frame.open.push((self.code.len(), 0, label, self.line));
                self.push(guard, Op::Branch { target: 0 })
            }
            "brx" => {
                let [index, list] = self.exactly(operands)?;
                let index = self.source(frame, index, Type::U32)?;
                let targets = match list {
                    Operand::Name(name, 0) => frame.targets.get(name).copied(),
                    _ => None,
                };
                let Some(targets) = targets else { return self.wrong("a list of branch targets", "another operand") };
                for (which, label) in targets.iter().enumerate() {
                    frame.open.push((self.code.len(), which, label, self.line));
                }
                self.push(guard, Op::BranchIndexed { index, targets: vec![0; targets.len()].into() })
            }
            "ret" if !frame.is_entry => {
                frame.returns.push(self.code.len());
                self.push(guard, Op::Branch { target: 0 })
            }
            "ret" | "exit" => self.push(guard, Op::Exit),
            "trap" | "brkpt" => self.push(guard, Op::Trap),
            "nanosleep" => {
                let [a] = self.exactly(operands)?;
                let a = self.source(frame, a, Type::U32)?;
                self.push(guard, Op::Sleep { a })
            }
            "call" => self.call(frame, guard, operands),
            "prefetch" | "prefetchu" | "applypriority" | "discard" | "pmevent" | "griddepcontrol" | "setmaxnreg" => {
                self.push(guard, Op::Nothing)
            }
            "createpolicy" => {
                let Some(d) = operands.first() else { return self.wrong("a destination", "nothing") };
                let (d, a) = (self.destination(frame, d, 8)?, self.value(0));
                self.push(guard, Op::Unary { f: self.copy(Type::B64), d, a })
            }
            "addc" | "subc" | "madc" => self.carried(frame, guard, &mut opcode, operands),
            "add" | "sub" | "mad" if opcode.flags.0.contains(&"cc") => {
                self.carried(frame, guard, &mut opcode, operands)
            }
            _ => self.arithmetic(frame, guard, &mut opcode, operands),
        }
    }

    fn exactly<const N: usize>(&self, operands: &'t [Operand<'a>]) -> Result<[&'t Operand<'a>; N], ParseError> {
        match <&[Operand<'a>; N]>::try_from(operands) {
            Ok(array) => Ok(array.each_ref()),
            Err(_) => self.wrong(format!("{N} operands"), operands.len()),
        }
    }

    fn copy(&self, kind: Type) -> Unary {
        match arithmetic::find("mov", &[kind], 1, &mut Flags::default()) {
            Some(Operation::Unary(f)) => f,
            _ => |d, a, mask| arithmetic::each(mask, |lane| d[lane] = a[lane]),
        }
    }

    /// A register that is written, at least `bytes` wide.
    fn destination(
        &mut self,
        frame: &Frame<'t, 'a>,
        operand: &Operand<'a>,
        bytes: u32,
    ) -> Result<Register, ParseError> {
        Ok(self.destination_of(frame, operand, bytes)?.0)
    }

    fn destination_of(
        &mut self,
        frame: &Frame<'t, 'a>,
        operand: &Operand<'a>,
        bytes: u32,
    ) -> Result<(Register, Type), ParseError> {
        let Operand::Name(name, 0) = operand else { return self.wrong("a register", "another operand") };
        match *name {
            "_" => Ok((self.register(), Type::B64)),
            name => match self.find(frame, name)? {
                Meaning::Register(register, kind) if kind.bytes() >= bytes => Ok((register, kind)),
                Meaning::Register(_, kind) => self.wrong(
                    format!("a register of {} bits", bytes * 8),
                    format!("`{name}` of {} bits", kind.bytes() * 8),
                ),
                _ => self.wrong("a register", format!("`{name}`")),
            },
        }
    }

    fn predicate(&mut self, frame: &Frame<'t, 'a>, operand: &Operand<'a>) -> Result<(Source, bool), ParseError> {
        match operand {
            Operand::Name(name, 0) | Operand::Not(name) => match self.find(frame, name)? {
                Meaning::Register(register, Type::Pred) => Ok((Source(register), matches!(operand, Operand::Not(_)))),
                _ => self.wrong("a predicate", format!("`{name}`")),
            },
            Operand::Integer(value) => Ok((self.value(u64::from(*value != 0)), false)),
            _ => self.wrong("a predicate", "another operand"),
        }
    }

    /// Something that is read as a value of type `kind`.
    fn source(&mut self, frame: &Frame<'t, 'a>, operand: &Operand<'a>, kind: Type) -> Result<Source, ParseError> {
        match operand {
            Operand::Integer(value) => Ok(self.value(match kind {
                Type::F32 if *value <= u64::from(u32::MAX) => *value,
                Type::Pred => u64::from(*value != 0),
                _ => value & mask_of(kind.bytes()),
            })),
            Operand::Float32(bits) => Ok(self.value(match kind {
                Type::F64 => f64::from(f32::from_bits(*bits)).to_bits(),
                _ => u64::from(*bits),
            })),
            Operand::Float64(bits) => Ok(self.value(match kind {
                Type::F64 | Type::B64 => *bits,
                _ => u64::from((f64::from_bits(*bits) as f32).to_bits()),
            })),
            Operand::Name("WARP_SZ", 0) => Ok(self.value(32)),
            Operand::Name(name, offset) => {
                if let Some(&(_, special)) = SPECIALS.iter().find(|entry| entry.0 == *name) {
                    return Ok(Source(special as u32));
                }
                if let Some(&(_, what)) = MOVING.iter().find(|entry| entry.0 == *name) {
                    let d = self.register();
                    self.push(NO_GUARD, Op::Read { what, d })?;
                    return Ok(Source(d));
                }
                match self.find(frame, name)? {
                    Meaning::Register(register, found) => {
                        if (found == Type::Pred) != (kind == Type::Pred) || found.bytes() < kind.bytes() {
                            return self.wrong(
                                format!("a source of {} bits", if kind == Type::Pred { 1 } else { kind.bytes() * 8 }),
                                format!("`{name}`"),
                            );
                        }
                        Ok(Source(register))
                    }
                    Meaning::Address(_, address) => Ok(self.value(address.wrapping_add(*offset) as u64)),
                    Meaning::Global(index) => Ok(self.constant(Constant::Variable(index, *offset))),
                    Meaning::DynamicShared if *offset == 0 => Ok(self.constant(Constant::DynamicShared)),
                    Meaning::DynamicShared => {
                        let (a, b) = (self.constant(Constant::DynamicShared), self.value(*offset as u64));
                        self.sum(a, b)
                    }
                }
            }
            _ => self.wrong("a register or a constant", "another operand"),
        }
    }

    fn sum(&mut self, a: Source, b: Source) -> Result<Source, ParseError> {
        let d = self.register();
        if let Some(Operation::Binary(f)) = arithmetic::find("add", &[Type::U64], 2, &mut Flags::default()) {
            self.push(NO_GUARD, Op::Binary { f, d, a, b })?;
        }
        Ok(Source(d))
    }

    /// `[base + offset]`.
    fn memory_operand(
        &mut self,
        frame: &Frame<'t, 'a>,
        operand: &Operand<'a>,
    ) -> Result<(Source, i64, Option<Space>), ParseError> {
        let Operand::Address(base, offset) = operand else {
            return self.wrong("an address in brackets", "another operand");
        };
        let Some(name) = base else { return Ok((self.value(0), *offset, None)) };
        match self.find(frame, name)? {
            Meaning::Register(register, kind) if kind.bytes() >= 4 => Ok((Source(register), *offset, None)),
            Meaning::Register(..) => self.wrong("an address of 32 or 64 bits", format!("`{name}`")),
            Meaning::Address(space, address) => Ok((self.value(0), address.wrapping_add(*offset), Some(space))),
            Meaning::Global(index) => Ok((self.constant(Constant::Variable(index, 0)), *offset, Some(Space::Global))),
            Meaning::DynamicShared => Ok((self.constant(Constant::DynamicShared), *offset, Some(Space::Shared))),
        }
    }

    fn space(&self, opcode: &mut Opcode) -> Space {
        let names = ["global", "shared", "shared::cta", "local", "const", "param", "param::entry", "param::func"];
        match opcode.flags.take_one(&names) {
            Some("global") => Space::Global,
            Some("shared" | "shared::cta") => Space::Shared,
            Some("local") => Space::Local,
            Some("const") => Space::Constant,
            Some(_) => Space::Parameter,
            None => Space::Generic,
        }
    }

    fn scope(&self, opcode: &mut Opcode) -> Option<Scope> {
        // A cluster here is one block.
        Some(match opcode.flags.take_one(&["cta", "cluster", "gpu", "sys"])? {
            "cta" | "cluster" => Scope::Block,
            "gpu" => Scope::Device,
            _ => Scope::System,
        })
    }

    fn strength(&self, opcode: &mut Opcode) -> Strength {
        let order = opcode.flags.take_one(&["weak", "relaxed", "acquire", "release", "volatile", "mmio"]);
        let scope = self.scope(opcode).unwrap_or(Scope::System);
        match order {
            None | Some("weak") => Strength::Weak,
            Some("acquire" | "release") => Strength::Ordered(scope),
            Some("relaxed") => {
                opcode.flags.take("mmio");
                Strength::Relaxed(scope)
            }
            Some(_) => Strength::Relaxed(Scope::System),
        }
    }

    /// Hints to caches change nothing here.
    fn take_hints(&self, opcode: &mut Opcode) {
        let hints = ["ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified"];
        while opcode.flags.take_one(&hints).is_some() {}
        opcode.flags.0.retain(|flag| !flag.starts_with("L1::") && !flag.starts_with("L2::"));
    }

    fn vector(&self, opcode: &mut Opcode) -> usize {
        match opcode.flags.take_one(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
            None => 1,
        }
    }

    fn one_type(&self, opcode: &Opcode) -> Result<Type, ParseError> {
        match opcode.types[..] {
            [kind] if kind != Type::Pred => Ok(kind),
            _ => self.unsupported(opcode),
        }
    }

    fn check_vector(&self, opcode: &Opcode, kind: Type, count: usize) -> Result<(), ParseError> {
        let bytes = kind.bytes() as usize * count;
        if bytes > 32 || (count == 8 && kind.bytes() != 4) { self.unsupported(opcode) } else { Ok(()) }
    }

    fn elements<'o>(&self, operand: &'o Operand<'a>, count: usize) -> Result<&'o [Operand<'a>], ParseError> {
        match operand {
            Operand::Vector(list) if list.len() == count => Ok(list),
            Operand::Vector(list) => self.wrong(format!("{count} elements"), list.len()),
            other if count == 1 => Ok(std::slice::from_ref(other)),
            _ => self.wrong(format!("{count} elements in braces"), "one operand"),
        }
    }

    fn load(
        &mut self,
        frame: &Frame<'t, 'a>,
        guard: u32,
        opcode: &mut Opcode,
        operands: &'t [Operand<'a>],
    ) -> Result<(), ParseError> {
        let space = self.space(opcode);
        let strength = self.strength(opcode);
        self.take_hints(opcode);
        let count = self.vector(opcode);
        self.understood(opcode)?;
        let kind = self.one_type(opcode)?;
        self.check_vector(opcode, kind, count)?;
        let (Some(d), Some(address)) = (operands.first(), operands.get(1)) else {
            return self.wrong("2 operands", operands.len());
        };
        let (address, offset, named) = self.memory_operand(frame, address)?;
        let mut values = Vec::new();
        let mut sign_bytes = 0;
        for d in self.elements(d, count)? {
            if *d == Operand::Name("_", 0) {
                values.push(NO_GUARD);
                continue;
            }
            let (register, held) = self.destination_of(frame, d, kind.bytes())?;
            if kind.is_signed() && held.bytes() > kind.bytes() {
                sign_bytes = held.bytes();
            }
            values.push(register);
        }
        // `.param` inside a called function is its frame's; there the name says so.
        let space = match (space, named) {
            (Space::Parameter | Space::Generic, Some(named)) => named,
            (space, _) => space,
        };
        self.push(
            guard,
            Op::Load(Box::new(MemoryAccess {
                space,
                strength,
                bytes: kind.bytes(),
                sign_bytes,
                address,
                offset,
                values,
            })),
        )
    }

    fn store(
        &mut self,
        frame: &Frame<'t, 'a>,
        guard: u32,
        opcode: &mut Opcode,
        operands: &'t [Operand<'a>],
    ) -> Result<(), ParseError> {
        let space = self.space(opcode);
        let strength = self.strength(opcode);
        self.take_hints(opcode);
        let count = self.vector(opcode);
        self.understood(opcode)?;
        let kind = self.one_type(opcode)?;
        self.check_vector(opcode, kind, count)?;
        let (Some(address), Some(value)) = (operands.first(), operands.get(1)) else {
            return self.wrong("2 operands", operands.len());
        };
        let (address, offset, named) = self.memory_operand(frame, address)?;
        let mut values = Vec::new();
        for value in self.elements(value, count)? {
            values.push(self.source(frame, value, kind)?.0);
        }
        let space = match (space, named) {
            (Space::Parameter | Space::Generic, Some(named)) => named,
            (space, _) => space,
        };
        if matches!(space, Space::Constant | Space::Parameter) {
            return self.unsupported(opcode);
        }
        self.push(
            guard,
            Op::Store(Box::new(MemoryAccess {
                space,
                strength,
                bytes: kind.bytes(),
                sign_bytes: 0,
                address,
                offset,
                values,
            })),
        )
    }

    fn update(&self, opcode: &mut Opcode) -> Result<Update, ParseError> {
        let names = ["exch", "cas", "and", "or", "xor", "add", "min", "max", "inc", "dec"];
        Ok(match opcode.flags.take_one(&names) {
            Some("exch") => Update::Exchange,
            Some("cas") => Update::CompareAndSwap,
            Some("and") => Update::And,
            Some("or") => Update::Or,
            Some("xor") => Update::Xor,
            Some("add") => Update::Add,
            Some("min") => Update::Min,
            Some("max") => Update::Max,
            Some("inc") => Update::Increment,
            Some("dec") => Update::Decrement,
            _ => return self.unsupported(opcode),
        })
    }

    fn update_fits(&self, opcode: &Opcode, update: Update, kind: Type) -> Result<(), ParseError> {
        let float = matches!(kind, Type::F32 | Type::F64 | Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2);
        let fits = match update {
            Update::Exchange | Update::CompareAndSwap => matches!(kind.bytes(), 2 | 4 | 8),
            Update::Add => (kind.is_integer() && kind.bytes() >= 4) || float,
            Update::Min | Update::Max => {
                (kind.is_integer() && kind.bytes() >= 4) || (float && kind.bytes() <= 4 && kind != Type::F32)
            }
            Update::Increment | Update::Decrement => kind == Type::U32,
            Update::And | Update::Or | Update::Xor => kind.is_integer() && kind.bytes() >= 4,
        };
        if fits { Ok(()) } else { self.unsupported(opcode) }
    }

    fn atomic(
        &mut self,
        frame: &Frame<'t, 'a>,
        guard: u32,
        opcode: &mut Opcode,
        operands: &'t [Operand<'a>],
    ) -> Result<(), ParseError> {
        let space = self.space(opcode);
        let order = opcode.flags.take_one(&["relaxed", "acquire", "release", "acq_rel"]).unwrap_or("relaxed");
        let scope = self.scope(opcode).unwrap_or(Scope::Device);
        let update = self.update(opcode)?;
        let count = self.vector(opcode);
        opcode.flags.take("noftz");
        self.take_hints(opcode);
        self.understood(opcode)?;
        let kind = self.one_type(opcode)?;
        self.update_fits(opcode, update, kind)?;
        self.check_vector(opcode, kind, count)?;
        let mut operands = operands.iter();
        let mut missing = || operands.next().ok_or_else(|| ParseError::new(self.line, "another operand", "`;`"));
        let d = if opcode.base == "atom" { Some(missing()?) } else { None };
        let (address, a) = (missing()?, missing()?);
        let b = if update == Update::CompareAndSwap { Some(missing()?) } else { None };
        let mut destinations = Vec::new();
        if let Some(d) = d {
            for d in self.elements(d, count)? {
                destinations.push(if *d == Operand::Name("_", 0) {
                    NO_GUARD
                } else {
                    self.destination(frame, d, kind.bytes())?
                });
            }
        }
        let (address, offset, _) = self.memory_operand(frame, address)?;
        let mut sources = Vec::new();
        for a in self.elements(a, count)? {
            sources.push(self.source(frame, a, kind)?);
        }
        let swap = b.map(|b| self.source(frame, b, kind)).transpose()?;
        if !matches!(space, Space::Generic | Space::Global | Space::Shared) {
            return self.unsupported(opcode);
        }
        self.push(
            guard,
            Op::Atomic(Box::new(AtomicAccess {
                space,
                scope,
                acquire: matches!(order, "acquire" | "acq_rel"),
                release: matches!(order, "release" | "acq_rel"),
                update,
                kind,
                destinations,
                address,
                offset,
                operands: sources,
                swap,
            })),
        )
    }

    fn multimem(
        &mut self,
        frame: &Frame<'t, 'a>,
        guard: u32,
        opcode: &mut Opcode,
        operands: &'t [Operand<'a>],
    ) -> Result<(), ParseError> {
        let action = match opcode.flags.take_one(&["ld_reduce", "st", "red"]) {
            Some("ld_reduce") => MultimemAction::LoadReduce,
            Some("st") => MultimemAction::Store,
            Some(_) => MultimemAction::Reduce,
            None => return self.unsupported(opcode),
        };
        opcode.flags.take("global");
        let strength = match self.strength(opcode) {
            // An order that is not written is weak for a load or store, and relaxed for a reduction.
            Strength::Weak if action == MultimemAction::Reduce => Strength::Relaxed(Scope::System),
            strength => strength,
        };
        let update = if action == MultimemAction::Store { Update::Exchange } else { self.update(opcode)? };
        let wide = opcode.flags.take("acc::f32") | opcode.flags.take("acc::f16");
        let count = self.vector(opcode);
        self.understood(opcode)?;
        let kind = self.one_type(opcode)?;
        let float = matches!(kind, Type::F32 | Type::F64 | Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2);
        if action != MultimemAction::Store {
            self.update_fits(opcode, update, kind)?;
        }
        if !(float || (kind.is_integer() && kind.bytes() >= 4)) {
            return self.unsupported(opcode);
        }
        self.check_vector(opcode, kind, count)?;
        let [first, second] = self.exactly(operands)?;
        let (list, address) = if action == MultimemAction::LoadReduce { (first, second) } else { (second, first) };
        let (address, offset, _) = self.memory_operand(frame, address)?;
        let mut values = Vec::new();
        for value in self.elements(list, count)? {
            values.push(match action {
                MultimemAction::LoadReduce => self.destination(frame, value, kind.bytes())?,
                _ => self.source(frame, value, kind)?.0,
            });
        }
        self.push(
            guard,
            Op::Multimem(Box::new(MultimemAccess { kind, update, wide, strength, address, offset, action, values })),
        )
    }

    fn fence(&mut self, guard: u32, opcode: &mut Opcode) -> Result<(), ParseError> {
        if opcode.flags.take("proxy") {
            if !opcode.flags.take("alias") {
                return self.unsupported(opcode);
            }
            self.understood(opcode)?;
            return self.push(guard, Op::AliasFence);
        }
        opcode.flags.take_one(&["acq_rel", "sc", "acquire", "release"]);
        let scope = match opcode.flags.take_one(&["gl"]) {
            Some(_) => Scope::Device,
            None => match self.scope(opcode) {
                Some(scope) => scope,
                None => return self.unsupported(opcode),
            },
        };
        self.understood(opcode)?;
        self.push(guard, Op::Fence(scope))
    }

    fn barrier(
        &mut self,
        frame: &Frame<'t, 'a>,
        guard: u32,
        opcode: &mut Opcode,
        operands: &'t [Operand<'a>],
    ) -> Result<(), ParseError> {
        if opcode.flags.take("warp") {
            let [members] = self.exactly(operands)?;
            let members = self.source(frame, members, Type::B32)?;
            return self.push(guard, Op::Warp { members, op: Box::new(WarpOp::Barrier) });
        }
        if opcode.flags.take("cluster") {
            // A cluster here is one block, so its barrier is the block's; waiting is where they meet.
            if opcode.flags.take("arrive") {
                return self.push(guard, Op::Nothing);
            }
            let id = self.value(16);
            let barrier = Barrier { id, count: None, arrive: false, aligned: false, vote: BarrierVote::None };
            return self.push(guard, Op::Barrier(Box::new(barrier)));
        }
        opcode.flags.take("cta");
        let aligned = opcode.flags.take("aligned") | (opcode.base == "bar");
        let action = opcode.flags.take_one(&["sync", "arrive", "red"]);
        let logic = opcode.flags.take_one(&["and", "or", "popc"]);
        self.understood(opcode)?;
        let (arrive, operands, vote) = match (action, logic) {
            (Some("sync"), None) => (false, operands, BarrierVote::None),
            (Some("arrive"), None) => (true, operands, BarrierVote::None),
            (Some("red"), Some(logic)) => {
                let (Some((d, rest)), true) = (operands.split_first(), operands.len() >= 3) else {
                    return self.wrong("at least 3 operands", operands.len());
                };
                let Some((predicate, rest)) = rest.split_last() else { return self.wrong("a predicate", "nothing") };
                let (a, negate) = self.predicate(frame, predicate)?;
                let d = self.destination(frame, d, if logic == "popc" { 4 } else { 1 })?;
                (
                    false,
                    rest,
                    match logic {
                        "and" => BarrierVote::And(d, a, negate),
                        "or" => BarrierVote::Or(d, a, negate),
                        _ => BarrierVote::Count(d, a, negate),
                    },
                )
            }
            _ => return self.unsupported(opcode),
        };
        let id = match operands.first() {
            Some(id) => self.source(frame, id, Type::U32)?,
            None => return self.wrong("a barrier", "nothing"),
        };
        let count = operands.get(1).map(|count| self.source(frame, count, Type::U32)).transpose()?;
        if arrive && count.is_none() {
            return self.wrong("a number of threads", "`;`");
        }
        self.push(guard, Op::Barrier(Box::new(Barrier { id, count, arrive, aligned, vote })))
    }

    /// `d` or `d|p`.
    fn pair<'o>(&self, operand: &'o Operand<'a>) -> (&'o Operand<'a>, Option<&'o Operand<'a>>) {
        match operand {
            Operand::Pair(first, second) => (first, Some(second)),
            other => (other, None),
        }
    }

    fn warp(
        &mut self,
        frame: &Frame<'t, 'a>,
        guard: u32,
        opcode: &mut Opcode,
        operands: &'t [Operand<'a>],
    ) -> Result<(), ParseError> {
        if !opcode.flags.take("sync") {
            return self.unsupported(opcode);
        }
        if opcode.base == "elect" {
            let [d, members] = self.exactly(operands)?;
            let (d, elected) = self.pair(d);
            let Some(elected) = elected else { return self.wrong("`d|p`", "one register") };
            let elected = self.destination(frame, elected, 1)?;
            let d = if *d == Operand::Name("_", 0) { None } else { Some(self.destination(frame, d, 4)?) };
            let members = self.source(frame, members, Type::B32)?;
            return self.push(guard, Op::Warp { members, op: Box::new(WarpOp::Elect { d, elected }) });
        }
        let (Some(d), Some(members)) = (operands.first(), operands.last()) else {
            return self.wrong("operands", "`;`");
        };
        let members = self.source(frame, members, Type::B32)?;
        let (d, valid) = self.pair(d);
        let valid = match valid {
            Some(Operand::Name("_", 0)) | None => None,
            Some(valid) => Some(self.destination(frame, valid, 1)?),
        };
        let op = match opcode.base {
            "shfl" => {
                let mode = match opcode.flags.take_one(&["up", "down", "bfly", "idx"]) {
                    Some("up") => ShuffleMode::Up,
                    Some("down") => ShuffleMode::Down,
                    Some("bfly") => ShuffleMode::Butterfly,
                    Some(_) => ShuffleMode::Index,
                    None => return self.unsupported(opcode),
                };
                let [_, a, b, c, _] = self.exactly(operands)?;
                let d = self.destination(frame, d, 4)?;
                WarpOp::Shuffle {
                    mode,
                    d,
                    valid,
                    a: self.source(frame, a, Type::B32)?,
                    b: self.source(frame, b, Type::B32)?,
                    c: self.source(frame, c, Type::B32)?,
                }
            }
            "vote" => {
                let (mode, bytes) = match opcode.flags.take_one(&["all", "any", "uni", "ballot"]) {
                    Some("all") => (VoteMode::All, 1),
                    Some("any") => (VoteMode::Any, 1),
                    Some("uni") => (VoteMode::Uniform, 1),
                    Some(_) => (VoteMode::Ballot, 4),
                    None => return self.unsupported(opcode),
                };
                let [_, a, _] = self.exactly(operands)?;
                let (a, negate) = self.predicate(frame, a)?;
                WarpOp::Vote { mode, d: self.destination(frame, d, bytes)?, a, negate }
            }
            "match" => {
                let kind = self.one_type(opcode)?;
                let [_, a, _] = self.exactly(operands)?;
                let a = self.source(frame, a, kind)?;
                let d = self.destination(frame, d, 4)?;
                match opcode.flags.take_one(&["any", "all"]) {
                    Some("any") => WarpOp::MatchAny { d, a },
                    Some(_) => WarpOp::MatchAll { d, valid, a },
                    None => return self.unsupported(opcode),
                }
            }
            _ => {
                let update = self.update(opcode)?;
                let kind = self.one_type(opcode)?;
                if kind.bytes() != 4
                    || !kind.is_integer()
                    || matches!(
                        update,
                        Update::Exchange | Update::CompareAndSwap | Update::Increment | Update::Decrement
                    )
                {
                    return self.unsupported(opcode);
                }
                let [_, a, _] = self.exactly(operands)?;
                WarpOp::Reduce { update, kind, d: self.destination(frame, d, 4)?, a: self.source(frame, a, kind)? }
            }
        };
        self.understood(opcode)?;
        self.push(guard, Op::Warp { members, op: Box::new(op) })
    }

    fn compare(
        &mut self,
        frame: &Frame<'t, 'a>,
        guard: u32,
        opcode: &mut Opcode,
        operands: &'t [Operand<'a>],
    ) -> Result<(), ParseError> {
        let operators = [
            "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu",
            "num", "nan",
        ];
        let Some(operator) = opcode.flags.take_one(&operators) else { return self.unsupported(opcode) };
        let combine = match opcode.flags.take_one(&["and", "or", "xor"]) {
            Some("and") => Combine::And,
            Some("or") => Combine::Or,
            Some(_) => Combine::Xor,
            None => Combine::None,
        };
        let ftz = opcode.flags.take("ftz");
        self.understood(opcode)?;
        let Some(&kind) = opcode.types.last() else { return self.unsupported(opcode) };
        let Some(compare) = arithmetic::comparison(operator, kind, ftz) else { return self.unsupported(opcode) };
        let wanted = if combine == Combine::None { 3 } else { 4 };
        if operands.len() != wanted {
            return self.wrong(format!("{wanted} operands"), operands.len());
        }
        let a = self.source(frame, &operands[1], kind)?;
        let b = self.source(frame, &operands[2], kind)?;
        let c = operands.get(3).map(|c| self.predicate(frame, c)).transpose()?;
        if opcode.base == "setp" {
            let (p, q) = self.pair(&operands[0]);
            let mut register = |operand: &Operand<'a>| match operand {
                Operand::Name("_", 0) => Ok(None),
                other => match self.destination_of(frame, other, 1)? {
                    (register, Type::Pred) => Ok(Some(register)),
                    _ => self.wrong("a predicate", "another register"),
                },
            };
            let p = register(p)?;
            let q = q.map(register).transpose()?.flatten();
            return self.push(guard, Op::SetPredicate(Box::new(SetPredicate { compare, combine, p, q, a, b, c })));
        }
        let [to, _] = opcode.types[..] else { return self.unsupported(opcode) };
        let yes = match to {
            Type::U32 | Type::S32 => u64::from(u32::MAX),
            Type::F32 => u64::from(1f32.to_bits()),
            _ => return self.unsupported(opcode),
        };
        let d = self.destination(frame, &operands[0], 4)?;
        let p = self.register();
        self.push(guard, Op::SetPredicate(Box::new(SetPredicate { compare, combine, p: Some(p), q: None, a, b, c })))?;
        let (yes, no) = (self.value(yes), self.value(0));
        match arithmetic::find("selp", &[Type::B32], 3, &mut Flags::default()) {
            Some(Operation::Ternary(f)) => self.push(guard, Op::Ternary { f, d, a: yes, b: no, c: Source(p) }),
            _ => self.unsupported(opcode),
        }
    }

    fn mov(
        &mut self,
        frame: &Frame<'t, 'a>,
        guard: u32,
        opcode: &mut Opcode,
        operands: &'t [Operand<'a>],
    ) -> Result<(), ParseError> {
        self.understood(opcode)?;
        let [kind] = opcode.types[..] else { return self.unsupported(opcode) };
        let [d, a] = self.exactly(operands)?;
        let part = |count: usize, decoder: &Self| match (kind.bytes() as usize * 8) / count {
            8 => Ok(Type::B8),
            16 => Ok(Type::B16),
            32 => Ok(Type::B32),
            _ => decoder.wrong("elements that fill the register", format!("{count} elements")),
        };
        match (d, a) {
            (Operand::Vector(list), a) if list.len() > 1 && list.len() <= 4 => {
                let element = part(list.len(), self)?;
                let a = self.source(frame, a, kind)?;
                let mut destinations = Vec::new();
                for d in list {
                    destinations.push(if *d == Operand::Name("_", 0) {
                        NO_GUARD
                    } else {
                        self.destination(frame, d, element.bytes())?
                    });
                }
                self.push(guard, Op::Unpack { destinations: destinations.into(), a, bits: element.bytes() * 8 })
            }
            (d, Operand::Vector(list)) if list.len() > 1 && list.len() <= 4 => {
                let element = part(list.len(), self)?;
                let d = self.destination(frame, d, kind.bytes())?;
                let mut sources = Vec::new();
                for a in list {
                    sources.push(self.source(frame, a, element)?);
                }
                self.push(guard, Op::Pack { d, sources: sources.into(), bits: element.bytes() * 8 })
            }
            _ => {
                let (d, held) = self.destination_of(frame, d, kind.bytes())?;
                if (held == Type::Pred) != (kind == Type::Pred) {
                    return self.wrong(format!("a register for {kind:?}"), format!("one of {held:?}"));
                }
                if let Operand::Name(name, 0) = a
                    && let Some(&(_, what)) = MOVING.iter().find(|entry| entry.0 == *name)
                {
                    return self.push(guard, Op::Read { what, d });
                }
                let a = match a {
                    // A register whose special value has fewer bits than is asked for holds zeros above.
                    Operand::Name(name, 0) if SPECIALS.iter().any(|entry| entry.0 == *name) => {
                        self.source(frame, a, Type::B8)?
                    }
                    _ => self.source(frame, a, kind)?,
                };
                self.push(guard, Op::Unary { f: self.copy(kind), d, a })
            }
        }
    }

    fn address(
        &mut self,
        frame: &Frame<'t, 'a>,
        guard: u32,
        opcode: &mut Opcode,
        operands: &'t [Operand<'a>],
    ) -> Result<(), ParseError> {
        let to_space = opcode.flags.take("to");
        let space = self.space(opcode);
        self.understood(opcode)?;
        let [d, a] = self.exactly(operands)?;
        if space == Space::Generic {
            return self.unsupported(opcode);
        }
        if opcode.base == "isspacep" {
            let (d, a) = (self.destination(frame, d, 1)?, self.source(frame, a, Type::B32)?);
            return self.push(guard, Op::IsSpace { d, a, space });
        }
        let kind = self.one_type(opcode)?;
        let (d, a) = (self.destination(frame, d, kind.bytes())?, self.source(frame, a, kind)?);
        self.push(guard, if to_space { Op::FromGeneric { d, a, space } } else { Op::ToGeneric { d, a, space } })
    }

    fn call(&mut self, frame: &Frame<'t, 'a>, guard: u32, operands: &'t [Operand<'a>]) -> Result<(), ParseError> {
        let (results, name, arguments) = match operands {
            [Operand::List(results), Operand::Name(name, 0), Operand::List(arguments), ..] => {
                (&results[..], *name, &arguments[..])
            }
            [Operand::List(results), Operand::Name(name, 0)] => (&results[..], *name, &[][..]),
            [Operand::Name(name, 0), Operand::List(arguments), ..] => (&[][..], *name, &arguments[..]),
            [Operand::Name(name, 0)] => (&[][..], *name, &[][..]),
            _ => return self.wrong("a function to call", "other operands"),
        };
        let Some(&function) = self.functions.get(name) else {
            return Err(ParseError::unsupported(self.line, &format!("call of `{name}`")));
        };
        if function.body.is_none() {
            return self.push(guard, Op::Undefined(name.into()));
        }
        if self.calls.contains(&name) || self.calls.len() >= CALLS_MAX {
            return Err(ParseError::unsupported(self.line, &format!("recursive call of `{name}`")));
        }
        if function.parameters.len() != arguments.len() || function.results.len() != results.len() {
            let wanted = format!("{} arguments and {} results", function.parameters.len(), function.results.len());
            return self.wrong(wanted, format!("{} and {}", arguments.len(), results.len()));
        }
        // A guarded call jumps over what is decoded in its place.
        let skip = self.code.len();
        if guard != NO_GUARD {
            self.push(guard ^ NEGATED, Op::Branch { target: 0 })?;
        }
        let line = self.line;
        let mut scope = HashMap::new();
        let mut after = Vec::new();
        for (formal, (actual, is_result)) in function
            .parameters
            .iter()
            .zip(arguments.iter().map(|actual| (actual, false)))
            .chain(function.results.iter().zip(results.iter().map(|actual| (actual, true))))
        {
            let kind = type_of(formal)?;
            let inner = match formal.space {
                Where::Register => Meaning::Register(self.register(), kind),
                _ => Meaning::Address(Space::Local, self.local(formal)? as i64),
            };
            scope.insert(formal.name, inner);
            let outer = match actual {
                Operand::Name(name, 0) => Some(self.find(frame, name)?),
                _ => None,
            };
            match (inner, outer, is_result) {
                (_, Some(Meaning::Address(Space::Local, outer)), _) => {
                    let Meaning::Address(_, inner) = inner else {
                        return self.wrong("a register as an argument", "a parameter");
                    };
                    let (bytes, align) = extent(formal)?;
                    let step = align.min(8);
                    for at in (0..bytes).step_by(step as usize) {
                        let (from, to) = if is_result { (inner, outer) } else { (outer, inner) };
                        let (from, to) = (from + at as i64, to + at as i64);
                        if is_result {
                            after.push((from, to, step as u32))
                        } else {
                            self.copy_local(from, to, step as u32)?
                        }
                    }
                }
                (Meaning::Register(inner, _), Some(Meaning::Register(outer, _)), true) => {
                    after.push((i64::from(inner), i64::from(outer), 0))
                }
                (Meaning::Register(inner, _), _, false) => {
                    let a = self.source(frame, actual, kind)?;
                    self.push(NO_GUARD, Op::Unary { f: self.copy(kind), d: inner, a })?;
                }
                (Meaning::Address(_, inner), _, false) => {
                    let a = self.source(frame, actual, kind)?;
                    self.store_local(inner, kind.bytes(), a)?;
                }
                _ => return self.wrong("a result that fits the function's", "another operand"),
            }
        }
        self.calls.push(name);
        self.body(function, scope)?;
        self.calls.pop();
        self.line = line;
        for (from, to, bytes) in after {
            if bytes == 0 {
                self.push(NO_GUARD, Op::Unary { f: self.copy(Type::B64), d: to as u32, a: Source(from as u32) })?;
            } else {
                self.copy_local(from, to, bytes)?;
            }
        }
        if guard != NO_GUARD {
            let end = self.code.len() as u32;
            self.set_target(skip, 0, end);
            self.push(NO_GUARD, Op::Nothing)?;
        }
        Ok(())
    }

    fn store_local(&mut self, offset: i64, bytes: u32, a: Source) -> Result<(), ParseError> {
        let address = self.value(0);
        let values = vec![a.0];
        let access = MemoryAccess {
            space: Space::Local,
            strength: Strength::Weak,
            bytes,
            sign_bytes: 0,
            address,
            offset,
            values,
        };
        self.push(NO_GUARD, Op::Store(Box::new(access)))
    }

    fn copy_local(&mut self, from: i64, to: i64, bytes: u32) -> Result<(), ParseError> {
        let (d, address) = (self.register(), self.value(0));
        let values = vec![d];
        let access = MemoryAccess {
            space: Space::Local,
            strength: Strength::Weak,
            bytes,
            sign_bytes: 0,
            address,
            offset: from,
            values,
        };
        self.push(NO_GUARD, Op::Load(Box::new(access)))?;
        self.store_local(to, bytes, Source(d))
    }

    /// Sums and products with a carry.
    fn carried(
        &mut self,
        frame: &Frame<'t, 'a>,
        guard: u32,
        opcode: &mut Opcode,
        operands: &'t [Operand<'a>],
    ) -> Result<(), ParseError> {
        let sets = opcode.flags.take("cc");
        let uses = opcode.base.ends_with('c');
        let kind = self.one_type(opcode)?;
        if !kind.is_integer() || kind.bytes() < 4 {
            return self.unsupported(opcode);
        }
        let base = opcode.base.trim_end_matches('c');
        let Some(d) = operands.first() else { return self.wrong("a destination", "`;`") };
        let d = self.destination(frame, d, kind.bytes())?;
        let (a, b) = if base == "mad" {
            let [_, a, b, c] = self.exactly(operands)?;
            let (a, b, c) = (self.source(frame, a, kind)?, self.source(frame, b, kind)?, self.source(frame, c, kind)?);
            let Some(Operation::Binary(f)) = arithmetic::find("mul", &[kind], 2, &mut opcode.flags) else {
                return self.unsupported(opcode);
            };
            let product = self.register();
            self.push(guard, Op::Binary { f, d: product, a, b })?;
            (Source(product), c)
        } else {
            let [_, a, b] = self.exactly(operands)?;
            (self.source(frame, a, kind)?, self.source(frame, b, kind)?)
        };
        self.understood(opcode)?;
        let carry = Special::Carry as u32;
        let c = if uses { Source(carry) } else { self.value(0) };
        let (value, out): (Ternary, Ternary) = arithmetic::carry(base == "sub", kind.bytes() == 8);
        let next = self.register();
        if sets {
            self.push(guard, Op::Ternary { f: out, d: next, a, b, c })?;
        }
        self.push(guard, Op::Ternary { f: value, d, a, b, c })?;
        if sets {
            self.push(guard, Op::Unary { f: self.copy(Type::B32), d: carry, a: Source(next) })?;
        }
        Ok(())
    }

    fn arithmetic(
        &mut self,
        frame: &Frame<'t, 'a>,
        guard: u32,
        opcode: &mut Opcode,
        operands: &'t [Operand<'a>],
    ) -> Result<(), ParseError> {
        let Some((d, sources)) = operands.split_first() else { return self.unsupported(opcode) };
        let Some(operation) = arithmetic::find(opcode.base, &opcode.types, sources.len(), &mut opcode.flags) else {
            return self.unsupported(opcode);
        };
        self.understood(opcode)?;
        let kind = opcode.types.last().copied().unwrap_or(Type::B32);
        let first = opcode.types.first().copied().unwrap_or(Type::B32);
        let wide = opcode.full.contains(".wide");
        let result = match opcode.base {
            "mul" | "mad" if wide => kind.bytes() * 2,
            "popc" | "clz" | "bfind" => 4,
            "testp" => 1,
            _ => first.bytes(),
        };
        let (register, held) = self.destination_of(frame, d, result)?;
        if (held == Type::Pred) != (first == Type::Pred || opcode.base == "testp") && *d != Operand::Name("_", 0) {
            return self.wrong("a register that holds the result", "another");
        }
        let mut s = [Source(0); 4];
        for (index, operand) in sources.iter().enumerate().take(4) {
            let wanted = match (opcode.base, index) {
                ("shl" | "shr", 1) | ("bfe", 1 | 2) | ("bfi", 2 | 3) => Type::U32,
                ("selp", 2) => Type::Pred,
                ("slct", 0 | 1) => first,
                ("mad", 2) if wide => {
                    if kind.bytes() == 2 {
                        Type::B32
                    } else {
                        Type::B64
                    }
                }
                ("add" | "sub", 1) | ("fma", 2) if opcode.types.len() == 2 => first,
                _ => kind,
            };
            s[index] = if wanted == Type::Pred && opcode.base == "selp" {
                let (source, negated) = self.predicate(frame, operand)?;
                if negated {
                    return self.wrong("a predicate", "a negated one");
                }
                source
            } else {
                self.source(frame, operand, wanted)?
            };
        }
        let [a, b, c, _] = s;
        let d = register;
        self.push(
            guard,
            match operation {
                Operation::Unary(f) => Op::Unary { f, d, a },
                Operation::Binary(f) => Op::Binary { f, d, a, b },
                Operation::Ternary(f) => Op::Ternary { f, d, a, b, c },
                Operation::Quaternary(f) => Op::Quaternary { f, d, s },
                Operation::Convert(conversion) => Op::Convert { conversion: Box::new(conversion), d, a },
                Operation::ConvertTwo(conversion) => Op::ConvertTwo { conversion: Box::new(conversion), d, a, b },
            },
        )?;
        if opcode.base == "cvt" && first.is_signed() && held.bytes() > first.bytes() {
            self.push(guard, Op::SignExtend { d, a: Source(d), from_bytes: first.bytes(), to_bytes: held.bytes() })?;
        }
        Ok(())
    }
}
