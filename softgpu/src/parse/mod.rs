//! PTX text to a syntax tree. Nothing here knows what an instruction means; it never panics, whatever the text.

mod lexer;

use lexer::Token;

/// Text that is not PTX, or not the PTX that is understood here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ParseError {
    /// Which line of the text, counted from 1.
    pub line: u32,
    /// What was expected and what was found, or which instruction is not supported.
    pub problem: String,
}

impl ParseError {
    pub(crate) fn new(line: u32, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> ParseError {
        ParseError { line, problem: format!("expected {expected}, found {found}") }
    }

    pub(crate) fn unsupported(line: u32, name: &str) -> ParseError {
        let name: String = name.chars().take(80).collect();
        ParseError { line, problem: format!("unsupported instruction {name} at line {line}") }
    }
}

/// A whole text.
#[derive(Debug, Default)]
pub(crate) struct Tree<'a> {
    pub(crate) target: &'a str,
    pub(crate) version: String,
    pub(crate) functions: Vec<Function<'a>>,
    pub(crate) variables: Vec<Variable<'a>>,
}

/// An `.entry` or a `.func`.
#[derive(Debug)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) line: u32,
    pub(crate) is_entry: bool,
    /// What it returns, for a `.func`.
    pub(crate) results: Vec<Variable<'a>>,
    pub(crate) parameters: Vec<Variable<'a>>,
    /// `.reqntid`, if it is given.
    pub(crate) required_threads: Option<[u32; 3]>,
    /// `.maxntid`, multiplied out, if it is given.
    pub(crate) threads_max: Option<u64>,
    /// Absent for a declaration.
    pub(crate) body: Option<Vec<Item<'a>>>,
}

/// Where a variable lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Register,
    Parameter,
    Global,
    Constant,
    Shared,
    Local,
}

/// A declared variable, parameter or bank of registers.
#[derive(Clone, Debug)]
pub(crate) struct Variable<'a> {
    pub(crate) name: &'a str,
    pub(crate) line: u32,
    pub(crate) space: Space,
    /// The type's name without its dot: `b32`, `pred`.
    pub(crate) type_name: &'a str,
    /// Elements of a vector type.
    pub(crate) vector: u32,
    pub(crate) align: Option<u64>,
    /// `None` for a scalar; elements otherwise, 0 when the declaration leaves it open.
    pub(crate) elements: Option<u64>,
    /// `%r<8>`: so many registers `%r0` to `%r7`.
    pub(crate) bank: Option<u32>,
    pub(crate) is_extern: bool,
    pub(crate) initial: Vec<Initial<'a>>,
}

/// One initial value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Initial<'a> {
    Integer(u64),
    Float32(u32),
    Float64(u64),
    /// The address of a variable, and so many bytes more.
    Address(&'a str, i64),
}

/// What a body consists of.
#[derive(Debug)]
pub(crate) enum Item<'a> {
    Open,
    Close,
    Label(&'a str, u32),
    Variable(Variable<'a>),
    /// `.branchtargets` under a label.
    Targets(&'a str, Vec<&'a str>),
    Instruction(Instruction<'a>),
}

/// `@guard opcode operands;`
#[derive(Debug)]
pub(crate) struct Instruction<'a> {
    pub(crate) line: u32,
    /// The predicate, and whether it is negated.
    pub(crate) guard: Option<(&'a str, bool)>,
    pub(crate) opcode: &'a str,
    pub(crate) operands: Vec<Operand<'a>>,
}

/// What an instruction works on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand<'a> {
    /// A register, label or variable, and so many bytes more.
    Name(&'a str, i64),
    /// `!%p`.
    Not(&'a str),
    Integer(u64),
    Float32(u32),
    Float64(u64),
    /// `{…}`.
    Vector(Vec<Operand<'a>>),
    /// `(…)` of a call.
    List(Vec<Operand<'a>>),
    /// `[base + offset]`; a constant address has no base.
    Address(Option<&'a str>, i64),
    /// `a|b`.
    Pair(Box<Operand<'a>>, Box<Operand<'a>>),
}

/// Reads a whole text.
pub(crate) fn parse(text: &str) -> Result<Tree<'_>, ParseError> {
    let mut parser = Parser { tokens: lexer::tokens(text)?, at: 0, depth: 0 };
    parser.module()
}

/// How deep operands and constant expressions may nest; more is no PTX that a compiler writes.
const DEPTH_MAX: u32 = 64;

struct Parser<'a> {
    tokens: Vec<(Token<'a>, u32)>,
    at: usize,
    depth: u32,
}

type Result<T, E = ParseError> = std::result::Result<T, E>;

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> Token<'a> {
        self.tokens.get(self.at + ahead).map_or(Token::End, |token| token.0)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.1)
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn wrong<T>(&self, expected: &str) -> Result<T> {
        Err(ParseError::new(self.line(), expected, self.peek().describe()))
    }

    fn accept(&mut self, mark: u8) -> bool {
        let found = self.peek() == Token::Mark(mark);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, mark: u8) -> Result<()> {
        if self.accept(mark) { Ok(()) } else { self.wrong(&format!("`{}`", mark as char)) }
    }

    fn accept_word(&mut self, word: &str) -> bool {
        let found = self.peek() == Token::Word(word);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, what: &str) -> Result<&'a str> {
        match self.peek() {
            Token::Word(word) => {
                self.at += 1;
                Ok(word)
            }
            _ => self.wrong(what),
        }
    }

    fn name(&mut self, what: &str) -> Result<&'a str> {
        match self.peek() {
            Token::Word(word) if !word.starts_with('.') => self.word(what),
            _ => self.wrong(what),
        }
    }

    fn module(&mut self) -> Result<Tree<'a>> {
        let mut tree = Tree::default();
        let mut versioned = false;
        loop {
            let line = self.line();
            match self.peek() {
                Token::End if versioned => return Ok(tree),
                Token::End => return self.wrong("`.version`"),
                Token::Mark(b';') => self.at += 1,
                Token::Word(".version") => {
                    self.at += 1;
                    tree.version = match self.next() {
                        Token::Float64(bits) => format!("{:.1}", f64::from_bits(bits)),
                        Token::Integer(value) => value.to_string(),
                        _ => {
                            self.at -= 1;
                            return self.wrong("a version");
                        }
                    };
                    versioned = true;
                }
                Token::Word(".target") => {
                    self.at += 1;
                    tree.target = self.name("a target")?;
                    while self.accept(b',') {
                        self.name("a target")?;
                    }
                }
                Token::Word(".address_size") => {
                    self.at += 1;
                    if self.peek() != Token::Integer(64) {
                        return self.wrong("64-bit addresses");
                    }
                    self.at += 1;
                }
                Token::Word(".file") => {
                    self.at += 1;
                    while matches!(self.peek(), Token::Integer(_) | Token::Text(_) | Token::Mark(b',')) {
                        self.at += 1;
                    }
                }
                Token::Word(".section") => self.skip_section()?,
                Token::Word(".pragma") => {
                    self.at += 1;
                    while !self.accept(b';') {
                        if self.next() == Token::End {
                            return self.wrong("`;`");
                        }
                    }
                }
                Token::Word(word) if word.starts_with('.') => self.declaration(&mut tree)?,
                _ => return Err(ParseError::new(line, "a directive", self.peek().describe())),
            }
        }
    }

    fn skip_section(&mut self) -> Result<()> {
        while !self.accept(b'{') {
            if self.next() == Token::End {
                return self.wrong("`{`");
            }
        }
        while !self.accept(b'}') {
            if self.next() == Token::End {
                return self.wrong("`}`");
            }
        }
        Ok(())
    }

    /// A variable or a function, with what stands before it.
    fn declaration(&mut self, tree: &mut Tree<'a>) -> Result<()> {
        let mut is_extern = false;
        loop {
            match self.peek() {
                Token::Word(".extern") => {
                    is_extern = true;
                    self.at += 1;
                }
                Token::Word(".visible" | ".weak" | ".common" | ".noreturn") => self.at += 1,
                Token::Word(".entry") => {
                    self.at += 1;
                    let function = self.function(true)?;
                    tree.functions.push(function);
                    return Ok(());
                }
                Token::Word(".func") => {
                    self.at += 1;
                    let function = self.function(false)?;
                    tree.functions.push(function);
                    return Ok(());
                }
                Token::Word(".global" | ".const" | ".shared") => {
                    let mut variables = self.variables()?;
                    variables.iter_mut().for_each(|variable| variable.is_extern = is_extern);
                    tree.variables.append(&mut variables);
                    return self.expect(b';');
                }
                _ => return self.wrong("`.entry`, `.func`, `.global`, `.const` or `.shared`"),
            }
        }
    }

    fn function(&mut self, is_entry: bool) -> Result<Function<'a>> {
        let line = self.line();
        while !is_entry && self.accept_word(".noreturn") {}
        let results = if !is_entry && self.peek() == Token::Mark(b'(') { self.parameters()? } else { Vec::new() };
        let name = self.name("the function's name")?;
        let parameters = if self.peek() == Token::Mark(b'(') { self.parameters()? } else { Vec::new() };
        let mut function = Function {
            name,
            line,
            is_entry,
            results,
            parameters,
            required_threads: None,
            threads_max: None,
            body: None,
        };
        loop {
            match self.peek() {
                Token::Mark(b';') => {
                    self.at += 1;
                    return Ok(function);
                }
                Token::Mark(b'{') => {
                    function.body = Some(self.body()?);
                    return Ok(function);
                }
                Token::Word(".reqntid") => {
                    self.at += 1;
                    let sizes = self.sizes()?;
                    function.required_threads = Some(sizes);
                }
                Token::Word(".maxntid") => {
                    self.at += 1;
                    let sizes = self.sizes()?;
                    function.threads_max = Some(sizes.iter().map(|&size| u64::from(size)).fold(1, u64::saturating_mul));
                }
                Token::Word(word) if word.starts_with('.') => {
                    self.at += 1;
                    while matches!(self.peek(), Token::Integer(_) | Token::Text(_) | Token::Mark(b',')) {
                        self.at += 1;
                    }
                }
                _ => return self.wrong("the function's body"),
            }
        }
    }

    fn sizes(&mut self) -> Result<[u32; 3]> {
        let mut sizes = [1; 3];
        for (index, size) in sizes.iter_mut().enumerate() {
            if index > 0 && !self.accept(b',') {
                break;
            }
            match self.peek() {
                Token::Integer(value) if value <= 1 << 20 => *size = value as u32,
                _ => return self.wrong("a number of threads"),
            }
            self.at += 1;
        }
        Ok(sizes)
    }

    fn parameters(&mut self) -> Result<Vec<Variable<'a>>> {
        self.expect(b'(')?;
        let mut parameters = Vec::new();
        while !self.accept(b')') {
            if !parameters.is_empty() {
                self.expect(b',')?;
            }
            if !matches!(self.peek(), Token::Word(".param" | ".reg")) {
                return self.wrong("`.param`");
            }
            parameters.push(self.variable_head()?.1);
        }
        Ok(parameters)
    }

    /// `.space .align n .type name[n] = …, name …`, without the semicolon.
    fn variables(&mut self) -> Result<Vec<Variable<'a>>> {
        let (template, first) = self.variable_head()?;
        let mut variables = vec![first];
        loop {
            if self.accept(b'=') {
                let initial = self.initials()?;
                if let Some(variable) = variables.last_mut() {
                    variable.initial = initial;
                }
            }
            if !self.accept(b',') {
                return Ok(variables);
            }
            let mut variable = template.clone();
            self.variable_name(&mut variable)?;
            variables.push(variable);
        }
    }

    fn variable_head(&mut self) -> Result<(Variable<'a>, Variable<'a>)> {
        let line = self.line();
        let space = match self.word("a state space")? {
            ".reg" => Space::Register,
            ".param" => Space::Parameter,
            ".global" => Space::Global,
            ".const" => Space::Constant,
            ".shared" => Space::Shared,
            ".local" => Space::Local,
            other => return Err(ParseError::new(line, "a state space", format!("`{other}`"))),
        };
        let mut template = Variable {
            name: "",
            line,
            space,
            type_name: "",
            vector: 1,
            align: None,
            elements: None,
            bank: None,
            is_extern: false,
            initial: Vec::new(),
        };
        loop {
            match self.peek() {
                Token::Word(".align") => {
                    self.at += 1;
                    match self.next() {
                        Token::Integer(align) if align.is_power_of_two() && align <= 4096 => {
                            template.align = Some(align)
                        }
                        _ => {
                            self.at -= 1;
                            return self.wrong("an alignment");
                        }
                    }
                }
                // `.param .u64 .ptr .global .align 16 name`: what the pointer points at, not the parameter's own alignment.
                Token::Word(".ptr") => {
                    self.at += 1;
                    while let Token::Word(".global" | ".const" | ".shared" | ".local" | ".align") = self.peek() {
                        if self.next() == Token::Word(".align") {
                            self.at += 1;
                        }
                    }
                }
                Token::Word(".v2") => {
                    self.at += 1;
                    template.vector = 2;
                }
                Token::Word(".v4") => {
                    self.at += 1;
                    template.vector = 4;
                }
                Token::Word(word) if word.starts_with('.') => {
                    self.at += 1;
                    if word.starts_with(".attribute") {
                        while !self.accept(b')') {
                            if self.next() == Token::End {
                                return self.wrong("`)`");
                            }
                        }
                    } else {
                        template.type_name = &word[1..];
                    }
                }
                _ => break,
            }
        }
        if template.type_name.is_empty() {
            return self.wrong("a type");
        }
        let mut first = template.clone();
        self.variable_name(&mut first)?;
        Ok((template, first))
    }

    fn variable_name(&mut self, variable: &mut Variable<'a>) -> Result<()> {
        variable.line = self.line();
        variable.name = self.name("a name")?;
        if self.accept(b'<') {
            match self.next() {
                Token::Integer(count) if count <= 1 << 20 => variable.bank = Some(count as u32),
                _ => {
                    self.at -= 1;
                    return self.wrong("a number of registers");
                }
            }
            self.expect(b'>')?;
        }
        while self.accept(b'[') {
            let size = match self.peek() {
                Token::Mark(b']') => 0,
                _ => self.constant()? as u64,
            };
            self.expect(b']')?;
            let elements = variable.elements.unwrap_or(1).checked_mul(size).filter(|&elements| elements <= 1 << 32);
            let Some(elements) = elements else {
                return self.wrong("an array of at most 2^32 elements");
            };
            variable.elements = Some(elements);
        }
        Ok(())
    }

    fn initials(&mut self) -> Result<Vec<Initial<'a>>> {
        let mut result = Vec::new();
        if !self.accept(b'{') {
            result.push(self.initial()?);
            return Ok(result);
        }
        // Nested braces of arrays of arrays list the elements in order, as one list does.
        let mut open = 1;
        while open > 0 {
            if self.accept(b'{') {
                open += 1;
            } else if self.accept(b'}') {
                open -= 1;
            } else if !self.accept(b',') {
                result.push(self.initial()?);
            }
        }
        Ok(result)
    }

    fn initial(&mut self) -> Result<Initial<'a>> {
        match self.peek() {
            Token::Float32(bits) => {
                self.at += 1;
                Ok(Initial::Float32(bits))
            }
            Token::Float64(bits) => {
                self.at += 1;
                Ok(Initial::Float64(bits))
            }
            Token::Mark(b'-') if matches!(self.peek_at(1), Token::Float64(_) | Token::Float32(_)) => {
                self.at += 1;
                Ok(match self.next() {
                    Token::Float32(bits) => Initial::Float32(bits ^ 1 << 31),
                    Token::Float64(bits) => Initial::Float64(bits ^ 1 << 63),
                    _ => Initial::Integer(0),
                })
            }
            Token::Word(word) if !word.starts_with('.') => {
                self.at += 1;
                let name = if word == "generic" && self.accept(b'(') {
                    let name = self.name("a variable")?;
                    self.expect(b')')?;
                    name
                } else {
                    word
                };
                let offset = self.offset()?;
                Ok(Initial::Address(name, offset))
            }
            _ => self.constant().map(|value| Initial::Integer(value as u64)),
        }
    }

    /// `+ n`, `- n`, `+ -n`, or nothing.
    fn offset(&mut self) -> Result<i64> {
        if self.accept(b'+') || self.peek() == Token::Mark(b'-') { Ok(self.constant()? as i64) } else { Ok(0) }
    }

    /// A constant expression of integers: signs, `~`, parentheses, and a chain of binary operators from left to right.
    fn constant(&mut self) -> Result<i128> {
        let mut value = self.constant_term()?;
        loop {
            let mark = match self.peek() {
                Token::Mark(mark @ (b'+' | b'-' | b'*' | b'/' | b'&' | b'|' | b'^')) => mark,
                Token::Mark(mark @ (b'<' | b'>')) if self.peek_at(1) == Token::Mark(mark) => {
                    self.at += 1;
                    mark
                }
                _ => return Ok(value),
            };
            self.at += 1;
            let other = self.constant_term()?;
            let (left, right) = (value as i64, other as i64);
            value = i128::from(match mark {
                b'+' => left.wrapping_add(right),
                b'-' => left.wrapping_sub(right),
                b'*' => left.wrapping_mul(right),
                b'/' if right == 0 => return self.wrong("a divisor other than zero before this"),
                b'/' => left.wrapping_div(right),
                b'&' => left & right,
                b'|' => left | right,
                b'^' => left ^ right,
                b'<' => left.wrapping_shl(right as u32),
                _ => left.wrapping_shr(right as u32),
            });
        }
    }

    fn constant_term(&mut self) -> Result<i128> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return self.wrong("a simpler constant");
        }
        let value = match self.peek() {
            Token::Mark(b'-') => {
                self.at += 1;
                self.constant_term()?.wrapping_neg()
            }
            Token::Mark(b'~') => {
                self.at += 1;
                !self.constant_term()?
            }
            Token::Mark(b'(') => {
                self.at += 1;
                let value = self.constant()?;
                self.expect(b')')?;
                value
            }
            Token::Integer(value) => {
                self.at += 1;
                i128::from(value)
            }
            _ => return self.wrong("an integer"),
        };
        self.depth -= 1;
        Ok(value)
    }

    fn body(&mut self) -> Result<Vec<Item<'a>>> {
        self.expect(b'{')?;
        let mut items = Vec::new();
        let mut open = 1;
        loop {
            let line = self.line();
            match self.peek() {
                Token::Mark(b';') => self.at += 1,
                Token::Mark(b'{') => {
                    self.at += 1;
                    open += 1;
                    items.push(Item::Open);
                }
                Token::Mark(b'}') => {
                    self.at += 1;
                    open -= 1;
                    if open == 0 {
                        return Ok(items);
                    }
                    items.push(Item::Close);
                }
                Token::Word(".loc") => {
                    while self.line() == line && self.peek() != Token::End {
                        self.at += 1;
                    }
                }
                Token::Word(".pragma") => {
                    while !self.accept(b';') {
                        if self.next() == Token::End {
                            return self.wrong("`;`");
                        }
                    }
                }
                Token::Word(".reg" | ".param" | ".local" | ".shared" | ".global" | ".const") => {
                    items.extend(self.variables()?.into_iter().map(Item::Variable));
                    self.expect(b';')?;
                }
                Token::Word(word) if !word.starts_with('.') && self.peek_at(1) == Token::Mark(b':') => {
                    self.at += 2;
                    match self.peek() {
                        Token::Word(".branchtargets") => {
                            self.at += 1;
                            let mut targets = vec![self.name("a label")?];
                            while self.accept(b',') {
                                targets.push(self.name("a label")?);
                            }
                            self.expect(b';')?;
                            items.push(Item::Targets(word, targets));
                        }
                        Token::Word(directive @ (".callprototype" | ".calltargets")) => {
                            return Err(ParseError::unsupported(line, directive));
                        }
                        _ => items.push(Item::Label(word, line)),
                    }
                }
                Token::Word(word) if word.starts_with('.') => {
                    return Err(ParseError::new(line, "an instruction", format!("`{word}`")));
                }
                Token::Word(_) | Token::Mark(b'@') => items.push(Item::Instruction(self.instruction()?)),
                _ => return self.wrong("an instruction"),
            }
        }
    }

    fn instruction(&mut self) -> Result<Instruction<'a>> {
        let line = self.line();
        let guard = if self.accept(b'@') {
            let negated = self.accept(b'!');
            Some((self.name("a predicate")?, negated))
        } else {
            None
        };
        let opcode = self.name("an instruction")?;
        let mut operands = Vec::new();
        while !self.accept(b';') {
            if !operands.is_empty() {
                self.expect(b',')?;
            }
            operands.push(self.operand()?);
        }
        Ok(Instruction { line, guard, opcode, operands })
    }

    fn operand(&mut self) -> Result<Operand<'a>> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return self.wrong("a simpler operand");
        }
        let operand = match self.peek() {
            Token::Word(word) if !word.starts_with('.') => {
                self.at += 1;
                let offset = if matches!(self.peek(), Token::Mark(b'+' | b'-')) { self.offset()? } else { 0 };
                Operand::Name(word, offset)
            }
            Token::Mark(b'!') => {
                self.at += 1;
                Operand::Not(self.name("a predicate")?)
            }
            Token::Float32(bits) => {
                self.at += 1;
                Operand::Float32(bits)
            }
            Token::Float64(bits) => {
                self.at += 1;
                Operand::Float64(bits)
            }
            Token::Mark(b'-') if matches!(self.peek_at(1), Token::Float32(_) | Token::Float64(_)) => {
                self.at += 1;
                match self.next() {
                    Token::Float32(bits) => Operand::Float32(bits ^ 1 << 31),
                    Token::Float64(bits) => Operand::Float64(bits ^ 1 << 63),
                    _ => return self.wrong("a number"),
                }
            }
            Token::Mark(b'{') => {
                self.at += 1;
                Operand::Vector(self.operands(b'}')?)
            }
            Token::Mark(b'(') if !matches!(self.peek_at(1), Token::Integer(_)) => {
                self.at += 1;
                Operand::List(self.operands(b')')?)
            }
            Token::Mark(b'[') => {
                self.at += 1;
                let address = match self.peek() {
                    Token::Word(word) if !word.starts_with('.') => {
                        self.at += 1;
                        Operand::Address(Some(word), self.offset()?)
                    }
                    _ => Operand::Address(None, self.constant()? as i64),
                };
                self.expect(b']')?;
                address
            }
            Token::Mark(b'-' | b'~' | b'(') | Token::Integer(_) => Operand::Integer(self.constant()? as u64),
            _ => return self.wrong("an operand"),
        };
        let operand =
            if self.accept(b'|') { Operand::Pair(Box::new(operand), Box::new(self.operand()?)) } else { operand };
        self.depth -= 1;
        Ok(operand)
    }

    fn operands(&mut self, close: u8) -> Result<Vec<Operand<'a>>> {
        let mut operands = Vec::new();
        while !self.accept(close) {
            if !operands.is_empty() {
                self.expect(b',')?;
            }
            operands.push(self.operand()?);
        }
        Ok(operands)
    }
}
