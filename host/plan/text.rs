//! The readable text form of a plan, written and parsed.
//!
//! ```text
//! plan all_reduce ring ranks 2 count 1024 element_bytes 4   # a comment runs to the end of its line
//! connection c0 r0 -> r1 slots 2 slot_bytes 2048
//! connection c1 r1 -> r0 slots 2 slot_bytes 2048
//! rank r0 scratch_bytes 0
//!   program p0
//!     loop iterations 1 chunk_bytes 32768
//!       s0 2048: c0 <- scale input@2048
//!       s1 2048: output@0, c0 <- finish reduce(c1, scale input@0)
//!       s2 2048: output@2048 <- c1
//! rank r1 scratch_bytes 0
//!   ...
//! ```
//!
//! One line is one thing. A collective with a root names it (`broadcast root r2`). A plan of several channels says before its
//! connections in which order each takes the ranks (`order r0, r2, r1`). A step is `id bytes: destinations <-
//! sources`; `input@64` is the rank's own buffer from byte 64 on, `r2.input@64` a window into another rank's, `c0` the
//! current slot of a connection. A step that waits on another program's ends in `after p1.s2`. Indentation and blank lines are
//! for the eye.
//!
//! What is written parses back to the same plan, whatever the plan. The parser checks form alone (that a plan is *right*
//! is the verifier's to say), takes time and memory in proportion to the text, and never panics.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use super::names::{QUOTED_CHARS_MAX, UnknownName};
use super::{
    After, Algorithm, Buffer, Collective, Connection, ConnectionId, Loop, MAX_CHANNEL_COUNT, Operand, Plan, Program,
    ProgramId, Rank, RankPlan, Source, Step, StepId,
};

/// Writes a plan; `plan.to_string()` is the same.
pub fn write(plan: &Plan) -> String {
    plan.to_string()
}

/// Reads what [`write()`] wrote; `text.parse::<Plan>()` is the same.
///
/// # Errors
///
/// The first place at which the text is not a plan.
pub fn parse(text: &str) -> Result<Plan, ParseError> {
    let mut parser = Parser::default();
    let mut line_count = 0;
    for (index, line) in text.lines().enumerate() {
        line_count = index + 1;
        let mut cursor = Cursor::new(line_count, line);
        if cursor.peek() != Token::End {
            parser.line(&mut cursor)?;
        }
    }
    parser.finish(&Cursor::new(line_count + 1, ""))
}

/// Where a text is not a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Counted from 1; one more than the text has where it ends too early.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    /// What the parser would have read there.
    pub expected: String,
    /// What stands there, cut to a readable length; empty at the end of a line.
    pub came: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: expected {}, came ", self.line, self.column, self.expected)?;
        if self.came.is_empty() { f.write_str("the end of the line") } else { write!(f, "{:?}", self.came) }
    }
}

impl Error for ParseError {}

impl FromStr for Plan {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Plan, ParseError> {
        parse(text)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { collective, algorithm, count, element_bytes, orders, connections, ranks } = self;
        let rank_count = ranks.len();
        writeln!(f, "plan {collective} {algorithm} ranks {rank_count} count {count} element_bytes {element_bytes}")?;
        for order in orders {
            f.write_str("order ")?;
            if order.is_empty() {
                f.write_str("nothing")?;
            }
            list(f, order)?;
            writeln!(f)?;
        }
        for (id, Connection { from, to, slots, slot_bytes }) in connections.iter().enumerate() {
            writeln!(f, "connection c{id} {from} -> {to} slots {slots} slot_bytes {slot_bytes}")?;
        }
        for (rank, RankPlan { scratch_bytes, programs }) in ranks.iter().enumerate() {
            writeln!(f, "rank r{rank} scratch_bytes {scratch_bytes}")?;
            for (id, program) in programs.iter().enumerate() {
                writeln!(f, "  program p{id}")?;
                let mut step_id = 0_usize;
                for Loop { iterations, chunk_bytes, steps } in &program.loops {
                    writeln!(f, "    loop iterations {iterations} chunk_bytes {chunk_bytes}")?;
                    for step in steps {
                        writeln!(f, "      s{step_id} {step}")?;
                        step_id += 1;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Without the id, which only the step's place in its program says: `1024: output@0 <- c0`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.bytes)?;
        if self.destinations.is_empty() {
            f.write_str("nothing")?;
        }
        list(f, &self.destinations)?;
        f.write_str(" <- ")?;
        match (self.finish, &self.sources[..]) {
            (false, [source]) => write!(f, "{source}")?,
            (finish, sources) => {
                f.write_str(if finish { "finish reduce(" } else { "reduce(" })?;
                list(f, sources)?;
                f.write_str(")")?;
            }
        }
        match self.after {
            Some(After { program, step }) => write!(f, " after {program}.{step}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scale { write!(f, "scale {}", self.operand) } else { self.operand.fmt(f) }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Local { buffer, offset } => write!(f, "{buffer}@{offset}"),
            Operand::Slot(connection) => connection.fmt(f),
            Operand::Window { rank, buffer, offset } => write!(f, "{rank}.{buffer}@{offset}"),
            Operand::Multicast { buffer, offset } => write!(f, "all.{buffer}@{offset}"),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, items: &[impl fmt::Display]) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(", ")?;
        }
        item.fmt(f)?;
    }
    Ok(())
}

/// A plan as far as it has been read: each line adds to what the lines before it began.
#[derive(Default)]
struct Parser {
    /// From the first line on.
    plan: Option<Plan>,
    /// How many ranks the first line announces. Nothing is allocated for them before their own lines come.
    rank_count: u64,
    /// Steps of the current program, over all its loops.
    step_count: usize,
}

impl Parser {
    fn line(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
        let Some(plan) = &mut self.plan else {
            let (plan, rank_count) = header(cursor)?;
            self.plan = Some(plan);
            self.rank_count = rank_count;
            return cursor.end();
        };
        let Plan { orders, connections, ranks, .. } = plan;
        let start = cursor.clone();
        let keyword = cursor.next();
        let rank_is_due = (ranks.len() as u64) < self.rank_count;
        // What may stand here, innermost first; a line that is none of these is told all of them.
        let mut expected = Vec::new();
        let next_rank = ranks.len();
        if let Some(RankPlan { programs, .. }) = ranks.last_mut() {
            let next_program = programs.len();
            if let Some(Program { loops }) = programs.last_mut() {
                if let Some(Loop { steps, .. }) = loops.last_mut() {
                    let due = format!("s{}", self.step_count);
                    if keyword == Token::Word(&due) {
                        steps.push(step(cursor)?);
                        self.step_count += 1;
                        return cursor.end();
                    }
                    expected.push(format!("step {due}"));
                }
                if keyword == Token::Word("loop") {
                    let iterations = cursor.named_number("iterations")?;
                    let chunk_bytes = cursor.named_number("chunk_bytes")?;
                    loops.push(Loop { iterations, chunk_bytes, steps: Vec::new() });
                    return cursor.end();
                }
                expected.push("loop".to_owned());
            }
            if keyword == Token::Word("program") {
                cursor.id_in_order("p", next_program)?;
                programs.push(Program::default());
                self.step_count = 0;
                return cursor.end();
            }
            expected.push(format!("program p{next_program}"));
        } else {
            if connections.is_empty() && orders.len() < MAX_CHANNEL_COUNT {
                if keyword == Token::Word("order") {
                    orders.push(order(cursor)?);
                    return cursor.end();
                }
                expected.push("order".to_owned());
            }
            if keyword == Token::Word("connection") {
                cursor.id_in_order("c", connections.len())?;
                connections.push(connection(cursor)?);
                return cursor.end();
            }
            expected.push(format!("connection c{}", connections.len()));
        }
        if rank_is_due {
            if keyword == Token::Word("rank") {
                cursor.id_in_order("r", next_rank)?;
                let scratch_bytes = cursor.named_number("scratch_bytes")?;
                ranks.push(RankPlan { scratch_bytes, programs: Vec::new() });
                return cursor.end();
            }
            expected.push(format!("rank r{next_rank}"));
        } else {
            expected.push("the end of the text".to_owned());
        }
        Err(start.unexpected(expected.join(" or ")))
    }

    /// At the end of the text.
    fn finish(self, end: &Cursor<'_>) -> Result<Plan, ParseError> {
        match self.plan {
            None => Err(end.unexpected("a line that begins with plan")),
            Some(plan) if (plan.ranks.len() as u64) < self.rank_count => {
                Err(end.unexpected(format!("rank r{}, one of {}", plan.ranks.len(), self.rank_count)))
            }
            Some(plan) => Ok(plan),
        }
    }
}

fn header(cursor: &mut Cursor<'_>) -> Result<(Plan, u64), ParseError> {
    cursor.keyword("plan")?;
    let mut collective: Collective = cursor.name()?;
    if collective.root().is_some() {
        cursor.keyword("root")?;
        collective = collective.with_root(Rank(cursor.id("r")?));
    }
    let algorithm: Algorithm = cursor.name()?;
    let rank_count = cursor.named_number("ranks")?;
    let count = cursor.named_number("count")?;
    let element_bytes = cursor.named_number("element_bytes")?;
    let (orders, connections, ranks) = (Vec::new(), Vec::new(), Vec::new());
    let plan = Plan { collective, algorithm, count, element_bytes, orders, connections, ranks };
    Ok((plan, rank_count))
}

/// What follows `order`.
fn order(cursor: &mut Cursor<'_>) -> Result<Vec<Rank>, ParseError> {
    if cursor.accept(Token::Word("nothing")) {
        return Ok(Vec::new());
    }
    let mut ranks = vec![Rank(cursor.id("r")?)];
    while cursor.accept(Token::Mark(",")) {
        ranks.push(Rank(cursor.id("r")?));
    }
    Ok(ranks)
}

fn connection(cursor: &mut Cursor<'_>) -> Result<Connection, ParseError> {
    let from = Rank(cursor.id("r")?);
    cursor.mark("->")?;
    let to = Rank(cursor.id("r")?);
    let slots = cursor.named_number("slots")?;
    let slot_bytes = cursor.named_number("slot_bytes")?;
    Ok(Connection { from, to, slots, slot_bytes })
}

/// What follows a step's id.
fn step(cursor: &mut Cursor<'_>) -> Result<Step, ParseError> {
    let bytes = cursor.number()?;
    cursor.mark(":")?;
    let mut destinations = Vec::new();
    if !cursor.accept(Token::Word("nothing")) {
        destinations.push(operand(cursor)?);
        while cursor.accept(Token::Mark(",")) {
            destinations.push(operand(cursor)?);
        }
    }
    cursor.mark("<-")?;
    let finish = cursor.accept(Token::Word("finish"));
    let mut sources = Vec::new();
    if cursor.accept(Token::Word("reduce")) {
        cursor.mark("(")?;
        if !cursor.accept(Token::Mark(")")) {
            sources.push(source(cursor)?);
            while cursor.accept(Token::Mark(",")) {
                sources.push(source(cursor)?);
            }
            cursor.mark(")")?;
        }
    } else {
        sources.push(source(cursor)?);
    }
    let mut after = None;
    if cursor.accept(Token::Word("after")) {
        let program = ProgramId(cursor.id("p")?);
        cursor.mark(".")?;
        after = Some(After { program, step: StepId(cursor.id("s")?) });
    }
    Ok(Step { bytes, sources, destinations, finish, after })
}

fn source(cursor: &mut Cursor<'_>) -> Result<Source, ParseError> {
    let scale = cursor.accept(Token::Word("scale"));
    Ok(Source { operand: operand(cursor)?, scale })
}

fn operand(cursor: &mut Cursor<'_>) -> Result<Operand, ParseError> {
    const EXPECTED: &str = "an operand such as input@0, c0, r1.output@64 or all.input@0";
    let Token::Word(word) = cursor.peek() else { return Err(cursor.unexpected(EXPECTED)) };
    if let Ok(buffer) = word.parse::<Buffer>() {
        cursor.next();
        return Ok(Operand::Local { buffer, offset: offset(cursor)? });
    }
    if let Some(connection) = id_with_prefix(word, "c") {
        cursor.next();
        return Ok(Operand::Slot(ConnectionId(connection)));
    }
    if let Some(rank) = id_with_prefix(word, "r") {
        cursor.next();
        cursor.mark(".")?;
        let buffer = cursor.name()?;
        return Ok(Operand::Window { rank: Rank(rank), buffer, offset: offset(cursor)? });
    }
    if word == "all" {
        cursor.next();
        cursor.mark(".")?;
        let buffer = cursor.name()?;
        return Ok(Operand::Multicast { buffer, offset: offset(cursor)? });
    }
    Err(cursor.unexpected(EXPECTED))
}

fn offset(cursor: &mut Cursor<'_>) -> Result<u64, ParseError> {
    cursor.mark("@")?;
    cursor.number()
}

/// The number of an id such as `c12`.
fn id_with_prefix(word: &str, prefix: &str) -> Option<u32> {
    word.strip_prefix(prefix)?.parse().ok()
}

/// A piece of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// Letters, digits and underscores.
    Word(&'a str),
    /// An arrow, or one other character.
    Mark(&'a str),
    /// Nothing more on this line.
    End,
}

/// A place in a line.
#[derive(Clone)]
struct Cursor<'a> {
    line: usize,
    text: &'a str,
    /// Bytes of `text` that have been read.
    read_bytes: usize,
}

impl<'a> Cursor<'a> {
    fn new(line: usize, text: &'a str) -> Cursor<'a> {
        let (text, _comment) = text.split_once('#').unwrap_or((text, ""));
        Cursor { line, text, read_bytes: 0 }
    }

    fn peek(&self) -> Token<'a> {
        self.clone().next()
    }

    fn next(&mut self) -> Token<'a> {
        let rest = self.skip_blanks();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = match rest.chars().next() {
            None => return Token::End,
            Some(first) if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            Some(_) if rest.starts_with("<-") || rest.starts_with("->") => 2,
            Some(first) => first.len_utf8(),
        };
        self.read_bytes += length;
        let token = &rest[..length];
        if token.starts_with(is_word) { Token::Word(token) } else { Token::Mark(token) }
    }

    /// The rest of the line, from its next token on.
    fn skip_blanks(&mut self) -> &'a str {
        let rest = &self.text[self.read_bytes..];
        let trimmed = rest.trim_start();
        self.read_bytes += rest.len() - trimmed.len();
        trimmed
    }

    /// Reads `token` if it is the next one.
    fn accept(&mut self, token: Token<'_>) -> bool {
        let mut ahead = self.clone();
        let accepted = ahead.next() == token;
        if accepted {
            *self = ahead;
        }
        accepted
    }

    fn keyword(&mut self, word: &str) -> Result<(), ParseError> {
        if self.accept(Token::Word(word)) { Ok(()) } else { Err(self.unexpected(word)) }
    }

    fn mark(&mut self, mark: &str) -> Result<(), ParseError> {
        if self.accept(Token::Mark(mark)) { Ok(()) } else { Err(self.unexpected(format!("{mark:?}"))) }
    }

    fn end(&mut self) -> Result<(), ParseError> {
        if self.accept(Token::End) { Ok(()) } else { Err(self.unexpected("the end of the line")) }
    }

    /// A word that `T` reads, such as an algorithm's name.
    fn name<T: FromStr<Err = UnknownName>>(&mut self) -> Result<T, ParseError> {
        let word = if let Token::Word(word) = self.peek() { word } else { "" };
        let name = word.parse().map_err(|unknown: UnknownName| {
            self.unexpected(format!("the name of one {}: {}", unknown.what, unknown.expected.join(", ")))
        })?;
        self.next();
        Ok(name)
    }

    fn named_number<T: FromStr + Bounded>(&mut self, name: &str) -> Result<T, ParseError> {
        self.keyword(name)?;
        self.number()
    }

    fn number<T: FromStr + Bounded>(&mut self) -> Result<T, ParseError> {
        // A word has no sign, so the parser of the standard library takes digits only.
        let word = if let Token::Word(word) = self.peek() { word } else { "" };
        let number = word.parse().map_err(|_| self.unexpected(format!("a number below {}", T::BOUND)))?;
        self.next();
        Ok(number)
    }

    /// An id such as `c12`.
    fn id(&mut self, prefix: &str) -> Result<u32, ParseError> {
        let word = if let Token::Word(word) = self.peek() { word } else { "" };
        let id = id_with_prefix(word, prefix)
            .ok_or_else(|| self.unexpected(format!("an id such as {prefix}0, with a number below {}", u32::BOUND)))?;
        self.next();
        Ok(id)
    }

    /// The id that is due: ids count up from 0.
    fn id_in_order(&mut self, prefix: &str, due: usize) -> Result<(), ParseError> {
        self.keyword(&format!("{prefix}{due}"))
    }

    /// The error that the next token is not what was expected.
    fn unexpected(&self, expected: impl Into<String>) -> ParseError {
        let mut place = self.clone();
        place.skip_blanks();
        let column = self.text[..place.read_bytes].chars().count() + 1;
        let came = match place.next() {
            Token::Word(came) | Token::Mark(came) => came.chars().take(QUOTED_CHARS_MAX).collect(),
            Token::End => String::new(),
        };
        ParseError { line: self.line, column, expected: expected.into(), came }
    }
}

/// A number's bound, as an error states it.
trait Bounded {
    const BOUND: &'static str;
}

impl Bounded for u32 {
    const BOUND: &'static str = "2^32";
}

impl Bounded for u64 {
    const BOUND: &'static str = "2^64";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Geometry, build};
    use proptest::collection::vec;
    use proptest::prelude::*;

    const RING: &str = "\
plan all_reduce ring ranks 2 count 1024 element_bytes 4
connection c0 r0 -> r1 slots 2 slot_bytes 2048
connection c1 r1 -> r0 slots 2 slot_bytes 2048
rank r0 scratch_bytes 0
  program p0
    loop iterations 1 chunk_bytes 32768
      s0 2048: c0 <- scale input@2048
      s1 2048: output@0, c0 <- finish reduce(c1, scale input@0)
      s2 2048: output@2048 <- c1
rank r1 scratch_bytes 0
  program p0
    loop iterations 1 chunk_bytes 32768
      s0 2048: c1 <- scale input@0
      s1 2048: output@2048, c1 <- finish reduce(c0, scale input@2048)
      s2 2048: output@0 <- c0
";

    #[test]
    fn a_ring_of_two_reads_like_this() {
        let plan = build(Collective::AllReduce, Algorithm::Ring, 2, 1024, 4, &Geometry::default()).unwrap();
        assert_eq!(write(&plan), RING);
        assert_eq!(parse(RING), Ok(plan));
    }

    #[test]
    fn a_root_a_window_and_a_dependency_read_like_this() {
        let text = "\
plan broadcast root r1 direct ranks 2 count 3 element_bytes 2
connection c0 r0 -> r1 slots 1 slot_bytes 0
rank r0 scratch_bytes 64
  program p0
    loop iterations 1 chunk_bytes 2
      s0 0: c0 <- input@0
    loop iterations 3 chunk_bytes 2
      s1 6: output@0, scratch@58 <- r1.input@0 after p1.s0
  program p1
rank r1 scratch_bytes 0
";
        let plan = parse(text).unwrap();
        assert_eq!(plan.collective, Collective::Broadcast { root: Rank(1) });
        let step = &plan.ranks[0].programs[0].loops[1].steps[0];
        assert_eq!(step.after, Some(After { program: ProgramId(1), step: StepId(0) }));
        assert_eq!(step.sources[0].operand, Operand::Window { rank: Rank(1), buffer: Buffer::Input, offset: 0 });
        assert_eq!(write(&plan), text);
    }

    #[test]
    fn comments_blank_lines_and_indentation_are_for_the_eye() {
        let loose: String = RING.lines().map(|line| format!("\t{} # c9 <- nonsense\r\n\n", line.trim())).collect();
        assert_eq!(parse(&loose), parse(RING));
    }

    #[test]
    fn an_error_names_the_line_the_column_what_was_expected_and_what_came() {
        let cases = [
            ("", "line 1, column 1: expected a line that begins with plan, came the end of the line"),
            (
                "plan",
                "line 1, column 5: expected the name of one collective: all_reduce, reduce_scatter, all_gather, \
                broadcast, reduce, barrier, came the end of the line",
            ),
            ("plan reduce ring", "line 1, column 13: expected root, came \"ring\""),
            ("plan all_reduce ring ranks -1", "line 1, column 28: expected a number below 2^64, came \"-\""),
            (
                "plan all_reduce ring ranks 1 count 1 element_bytes 4294967296",
                "line 1, column 52: expected a number below 2^32, came \"4294967296\"",
            ),
            (
                "plan all_reduce ring ranks 1 count 1 element_bytes 4",
                "line 2, column 1: expected rank r0, one of 1, came the end of the line",
            ),
            (&RING.replace("connection c1", "connection c2"), "line 3, column 12: expected c1, came \"c2\""),
            (&RING.replace("r0 -> r1", "r0 - r1"), "line 2, column 18: expected \"->\", came \"-\""),
            (
                &RING.replace("rank r1", "rang r1"),
                "line 10, column 1: expected step s3 or loop or program p1 or rank r1, \
                came \"rang\"",
            ),
            (
                &RING.replace("s1 2048: output@2048", "s1 2048: outptu@2048"),
                "line 14, column 16: expected an operand \
                such as input@0, c0, r1.output@64 or all.input@0, came \"outptu\"",
            ),
            (&RING.replace("(c0,", "(c0;"), "line 14, column 51: expected \")\", came \";\""),
            (
                &RING.replace("ranks 2", "ranks 1"),
                "line 10, column 1: expected step s3 or loop or program p1 or the end of \
                the text, came \"rank\"",
            ),
            (
                &RING.replace("scale input@2048", "scale input@2048 é"),
                "line 7, column 39: expected the end of the line, \
                came \"é\"",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn a_header_that_announces_too_much_costs_nothing() {
        let text = format!("plan all_reduce ring ranks {} count 1 element_bytes 4", u64::MAX);
        assert_eq!(parse(&text).unwrap_err().line, 2);
    }

    fn any_operand() -> impl Strategy<Value = Operand> {
        let any_buffer = prop::sample::select(&Buffer::ALL[..]);
        prop_oneof![
            (any_buffer.clone(), any::<u64>()).prop_map(|(buffer, offset)| Operand::Local { buffer, offset }),
            any::<u32>().prop_map(|id| Operand::Slot(ConnectionId(id))),
            (any::<u32>(), any_buffer, any::<u64>()).prop_map(|(rank, buffer, offset)| Operand::Window {
                rank: Rank(rank),
                buffer,
                offset
            }),
        ]
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let any_source = (any_operand(), any::<bool>()).prop_map(|(operand, scale)| Source { operand, scale });
        let any_after = any::<(u32, u32)>().prop_map(|(p, s)| After { program: ProgramId(p), step: StepId(s) });
        (any::<u64>(), vec(any_source, 0..4), vec(any_operand(), 0..4), any::<bool>(), prop::option::of(any_after))
            .prop_map(|(bytes, sources, destinations, finish, after)| Step {
                bytes,
                sources,
                destinations,
                finish,
                after,
            })
    }

    /// Plans of any form, right or wrong, empty lists included.
    fn any_plan() -> impl Strategy<Value = Plan> {
        let any_collective = (prop::sample::select(&Collective::ALL[..]), any::<u32>())
            .prop_map(|(collective, root)| collective.with_root(Rank(root)));
        let any_connection = any::<(u32, u32, u32, u32)>().prop_map(|(from, to, slots, slot_bytes)| Connection {
            from: Rank(from),
            to: Rank(to),
            slots,
            slot_bytes,
        });
        let any_loop = (any::<u64>(), any::<u32>(), vec(any_step(), 0..4))
            .prop_map(|(iterations, chunk_bytes, steps)| Loop { iterations, chunk_bytes, steps });
        let any_program = vec(any_loop, 0..3).prop_map(|loops| Program { loops });
        let any_rank = (any::<u64>(), vec(any_program, 0..3))
            .prop_map(|(scratch_bytes, programs)| RankPlan { scratch_bytes, programs });
        let any_algorithm = prop::sample::select(&Algorithm::ALL[..]);
        let any_header = (any_collective, any_algorithm, any::<u64>(), any::<u32>());
        let any_orders = vec(vec(any::<u32>().prop_map(Rank), 0..4), 0..3);
        (any_header, any_orders, vec(any_connection, 0..4), vec(any_rank, 0..4)).prop_map(
            |((collective, algorithm, count, element_bytes), orders, connections, ranks)| Plan {
                orders,
                collective,
                algorithm,
                count,
                element_bytes,
                connections,
                ranks,
            },
        )
    }

    proptest! {
        #[test]
        fn any_plan_that_is_written_parses_back_to_the_same_plan(plan in any_plan()) {
            let text = write(&plan);
            let parsed = parse(&text);
            prop_assert_eq!(parsed.as_ref(), Ok(&plan), "{}", text);
            prop_assert_eq!(parsed.unwrap().digest(), plan.digest());
        }

        #[test]
        fn any_text_at_all_is_a_plan_or_an_error_with_a_place_in_it(text in any::<String>()) {
            if let Err(error) = parse(&text) {
                prop_assert!((1..=text.lines().count() + 1).contains(&error.line));
            }
        }

        #[test]
        fn a_plan_with_any_piece_replaced_is_a_plan_or_an_error_with_a_place_in_it(
            plan in any_plan(),
            cut in any::<prop::sample::Index>(),
            length in 0_usize..6,
            piece in prop_oneof![
                "[a-z0-9_@:,.()#<> \n-]{0,4}",
                Just("99999999999999999999999".to_owned()),
                any::<char>().prop_map(String::from),
            ],
        ) {
            let mut text = write(&plan);
            let start = cut.index(text.len());
            text.replace_range(start..(start + length).min(text.len()), &piece);
            match parse(&text) {
                Ok(parsed) => prop_assert_eq!(parse(&write(&parsed)), Ok(parsed)),
                Err(error) => prop_assert!((1..=text.lines().count() + 1).contains(&error.line)),
            }
        }
    }
}
