//! The bytes of one piece of memory: what they hold, who wrote them, who has read them since.
//!
//! Ranges that were never written are absent. Of the reads, only those are kept that no later read is ordered after: a
//! write that is ordered after the later one is ordered after the earlier one, too (FastTrack's observation).

use std::collections::BTreeMap;

use super::expression::ExpressionId;

/// A moment of a program: the number of steps that it has fired, this one included. Tick 0 is before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) program: u32,
    pub(super) tick: u32,
}

impl Moment {
    pub(super) const BEFORE: Moment = Moment { program: 0, tick: 0 };
}

/// The step that is running, and what it is known to come after.
#[derive(Clone, Copy)]
pub(super) struct Now<'a> {
    pub(super) moment: Moment,
    /// For each program, the last tick that happened before; empty where no two programs touch the same bytes.
    pub(super) known: &'a [u32],
}

impl Now<'_> {
    pub(super) fn is_after(&self, moment: Moment) -> bool {
        let known = self.known.get(moment.program as usize);
        moment.program == self.moment.program || known.is_none_or(|known| *known >= moment.tick)
    }
}

/// What bytes hold: an expression, and which element of the inputs it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) expression: ExpressionId,
    /// Byte of the inputs minus position, wrapping.
    pub(super) shift: u64,
}

impl Value {
    pub(super) const UNKNOWN: Value = Value { expression: ExpressionId::UNKNOWN, shift: 0 };

    /// The same value in a range whose positions are counted from `base` on.
    pub(super) fn seen_from(self, base: u64) -> Value {
        Value { expression: self.expression, shift: self.shift.wrapping_add(base) }
    }

    /// The reverse of [`seen_from`](Self::seen_from).
    pub(super) fn placed_at(self, base: u64) -> Value {
        Value { expression: self.expression, shift: self.shift.wrapping_sub(base) }
    }
}

/// A value over a range of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) value: Value,
}

/// Appends a run, joined with the one before it if both hold the same.
pub(super) fn push_run(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.end == run.start && last.value == run.value => last.end = run.end,
        _ => runs.push(run),
    }
}

/// What an access found wrong, in positions of the memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    /// Not ordered after another access.
    Race { start: u64, end: u64, other: Moment, other_writes: bool },
    /// Read before it was written.
    NotWritten { start: u64, end: u64 },
}

#[derive(Clone, Debug)]
struct Cell {
    end: u64,
    value: Value,
    written: Moment,
    reads: Reads,
}

/// The last reads, none ordered after another.
#[derive(Clone, Debug)]
enum Reads {
    None,
    One(Moment),
    Many(Vec<Moment>),
}

impl Reads {
    fn as_slice(&self) -> &[Moment] {
        match self {
            Reads::None => &[],
            Reads::One(moment) => std::slice::from_ref(moment),
            Reads::Many(moments) => moments,
        }
    }

    fn count(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn add(&mut self, now: Now<'_>) {
        match self {
            Reads::None => *self = Reads::One(now.moment),
            Reads::One(moment) if now.is_after(*moment) => *moment = now.moment,
            Reads::One(moment) => *self = Reads::Many(vec![*moment, now.moment]),
            Reads::Many(moments) => {
                moments.retain(|moment| !now.is_after(*moment));
                moments.push(now.moment);
            }
        }
    }
}

impl Cell {
    /// What a read finds; troubles if the write that left it is not ordered before.
    fn read(&mut self, start: u64, now: Now<'_>, trouble: &mut Vec<Trouble>) -> Value {
        self.reads.add(now);
        if now.is_after(self.written) {
            return self.value;
        }
        trouble.push(Trouble::Race { start, end: self.end, other: self.written, other_writes: true });
        // In another schedule it would be another value.
        Value::UNKNOWN
    }

    /// Troubles if earlier accesses are not ordered before a write.
    fn check_write(&self, start: u64, now: Now<'_>, trouble: &mut Vec<Trouble>) {
        let reads = self.reads.as_slice().iter().map(|read| (*read, false));
        for (other, other_writes) in std::iter::once((self.written, true)).chain(reads) {
            if !now.is_after(other) {
                trouble.push(Trouble::Race { start, end: self.end, other, other_writes });
            }
        }
    }
}

/// What lies in a range.
enum Meeting<'a> {
    /// Exactly this cell.
    Cell(&'a mut Cell),
    /// Nothing.
    Nothing,
    /// Anything else.
    Several,
}

/// The memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Bytes {
    /// Keyed by the first byte; cells do not overlap.
    cells: BTreeMap<u64, Cell>,
    /// How many cells and reads are kept.
    pub(super) stored: u64,
}

impl Bytes {
    /// Memory that holds `value` from `start` to `end` before the call.
    pub(super) fn fill(&mut self, start: u64, end: u64, value: Value) {
        if start < end {
            self.cells.insert(start, Cell { end, value, written: Moment::BEFORE, reads: Reads::None });
            self.stored += 1;
        }
    }

    /// Makes `position` a border between cells.
    fn split(&mut self, position: u64) {
        if let Some((_, cell)) = self.cells.range_mut(..position).next_back()
            && cell.end > position
        {
            let right = cell.clone();
            cell.end = position;
            self.stored += 1 + right.reads.count();
            self.cells.insert(position, right);
        }
    }

    /// How `start..end` lies to the cells. Almost all accesses meet the borders that earlier ones have left, so that
    /// one look is enough.
    fn meet(&mut self, start: u64, end: u64) -> Meeting<'_> {
        match self.cells.range_mut(..end).next_back() {
            Some((at, cell)) if *at == start && cell.end == end => Meeting::Cell(cell),
            Some((_, cell)) if cell.end > start => Meeting::Several,
            _ => Meeting::Nothing,
        }
    }

    /// Reads `start..end`, not empty: appends what is there to `runs`, in positions counted from `start`. Answers how
    /// many intervals and earlier reads were looked at.
    pub(super) fn read(
        &mut self,
        start: u64,
        end: u64,
        now: Now<'_>,
        runs: &mut Vec<Run>,
        trouble: &mut Vec<Trouble>,
    ) -> u64 {
        if let Meeting::Cell(cell) = self.meet(start, end) {
            let reads_before = cell.reads.count();
            let value = cell.read(start, now, trouble);
            let reads_after = cell.reads.count();
            runs.push(Run { start: 0, end: end - start, value: value.seen_from(start) });
            self.stored = self.stored + reads_after - reads_before;
            return 1 + reads_before;
        }
        self.split(start);
        self.split(end);
        let mut visited = 1;
        let mut position = start;
        let gap = |from: u64, to: u64, runs: &mut Vec<Run>, trouble: &mut Vec<Trouble>| {
            if from < to {
                trouble.push(Trouble::NotWritten { start: from, end: to });
                push_run(runs, Run { start: from - start, end: to - start, value: Value::UNKNOWN });
            }
        };
        for (at, cell) in self.cells.range_mut(start..end) {
            gap(position, *at, runs, trouble);
            position = cell.end;
            visited += 1 + cell.reads.count();
            self.stored -= cell.reads.count();
            let value = cell.read(*at, now, trouble);
            self.stored += cell.reads.count();
            push_run(runs, Run { start: at - start, end: cell.end - start, value: value.seen_from(start) });
        }
        gap(position, end, runs, trouble);
        visited
    }

    /// Writes `runs`, whose positions are counted from `start` and cover `start..end`. Answers as
    /// [`read`](Self::read) does.
    pub(super) fn write(
        &mut self,
        start: u64,
        end: u64,
        now: Now<'_>,
        runs: &[Run],
        trouble: &mut Vec<Trouble>,
        doomed: &mut Vec<u64>,
    ) -> u64 {
        let mut visited = runs.len() as u64;
        let written = |run: &Run| Cell {
            end: start + run.end,
            value: run.value.placed_at(start),
            written: now.moment,
            reads: Reads::None,
        };
        match (self.meet(start, end), runs) {
            (Meeting::Cell(cell), [run]) => {
                let reads_before = cell.reads.count();
                cell.check_write(start, now, trouble);
                *cell = written(run);
                self.stored -= reads_before;
                return visited + reads_before;
            }
            (Meeting::Nothing, _) => {}
            _ => {
                self.split(start);
                self.split(end);
                doomed.clear();
                for (at, cell) in self.cells.range(start..end) {
                    visited += 1 + cell.reads.count();
                    self.stored -= 1 + cell.reads.count();
                    doomed.push(*at);
                    cell.check_write(*at, now, trouble);
                }
                for at in doomed.iter() {
                    self.cells.remove(at);
                }
            }
        }
        for run in runs {
            self.cells.insert(start + run.start, written(run));
            self.stored += 1;
        }
        visited
    }

    /// What lies in `start..end`, and who wrote it: (start, end, value, writer), without the ranges that nobody wrote.
    pub(super) fn look(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, Value, Moment)> + '_ {
        let first = self.cells.range(..=start).next_back().map_or(start, |(at, _)| *at);
        self.cells
            .range(first..end.max(first))
            .map(move |(at, cell)| ((*at).max(start), cell.end.min(end), cell.value, cell.written))
            .filter(|(from, to, _, _)| from < to)
    }
}
