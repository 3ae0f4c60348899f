//! What the bytes of a plan hold, as expressions over the ranks' inputs.
//!
//! An expression says which inputs have been reduced, in which order, with which scales and finishes; it leaves open which
//! element it is about, so one expression serves a whole range of bytes. Expressions are interned: equal ones have equal
//! ids, so that comparing two ids compares every rounding that led to them. What a step makes of its sources is worked out
//! once for each combination of expressions, faults included; the many steps that repeat the combination look it up.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::rc::Rc;

use super::violation::{RankList, ViolationKind};
use crate::plan::Rank;

/// An interned expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ExpressionId(u32);

impl ExpressionId {
    /// What a faulty step leaves behind. Nothing that it enters is a further fault.
    pub(super) const UNKNOWN: ExpressionId = ExpressionId(0);
}

/// How a source enters a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    pub(super) expression: ExpressionId,
    pub(super) scale: bool,
}

/// Faults of one combination. The text of each is complete but for its place.
pub(super) type Faults = Rc<[ViolationKind]>;

/// All expressions of one plan.
pub(super) struct Expressions {
    rank_count: u32,
    nodes: Vec<Node>,
    inputs: Vec<ExpressionId>,
    combined: HashMap<Rc<[u32]>, Result<ExpressionId, Faults>>,
    key: Vec<u32>,
    /// Words of rank sets that were touched; the caller moves them to its account.
    pub(super) work: u64,
    /// Terms, and words of rank sets, that are kept.
    pub(super) stored: u64,
}

struct Node {
    members: Members,
    scaled: bool,
    finished: bool,
    /// The finish, then each term: what `combined` is keyed by. Empty for an input.
    terms: Rc<[u32]>,
}

/// The ranks whose inputs an expression counts.
#[derive(Clone)]
enum Members {
    None,
    One(u32),
    Many(Rc<[u64]>),
}

impl Expressions {
    pub(super) fn new(rank_count: u32) -> Self {
        let unknown = Node { members: Members::None, scaled: false, finished: false, terms: Rc::new([]) };
        Expressions {
            rank_count,
            nodes: vec![unknown],
            inputs: vec![ExpressionId::UNKNOWN; rank_count as usize],
            combined: HashMap::new(),
            key: Vec::new(),
            work: 0,
            stored: 0,
        }
    }

    /// The input of a rank, as the caller passed it in.
    pub(super) fn input(&mut self, rank: Rank) -> ExpressionId {
        let known = self.inputs[rank.index()];
        if known != ExpressionId::UNKNOWN {
            return known;
        }
        let node = Node { members: Members::One(rank.0), scaled: false, finished: false, terms: Rc::new([]) };
        self.nodes.push(node);
        let id = ExpressionId(self.nodes.len() as u32 - 1);
        self.inputs[rank.index()] = id;
        id
    }

    /// The rank whose input this is, if it is an untouched input.
    pub(super) fn as_input(&self, id: ExpressionId) -> Option<Rank> {
        match &self.nodes[id.0 as usize] {
            Node { members: Members::One(rank), terms, .. } if terms.is_empty() => Some(Rank(*rank)),
            _ => None,
        }
    }

    /// What a step makes of its sources, at one element.
    ///
    /// One source without scale and finish is a copy: it keeps its expression. Everything else rounds, so it is a new
    /// expression. An unknown source makes the result unknown.
    pub(super) fn combine(&mut self, terms: &[Term], finish: bool) -> Result<ExpressionId, Faults> {
        if let [Term { expression, scale: false }] = terms
            && !finish
        {
            return Ok(*expression);
        }
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        key.push(u32::from(finish));
        key.extend(terms.iter().map(|term| term.expression.0 << 1 | u32::from(term.scale)));
        let result = match self.combined.get(key.as_slice()) {
            Some(known) => known.clone(),
            None => {
                let key: Rc<[u32]> = key.as_slice().into();
                self.stored += 1 + key.len() as u64;
                let result = self.combine_anew(terms, finish, &key);
                self.combined.insert(key, result.clone());
                result
            }
        };
        self.key = key;
        result
    }

    fn combine_anew(&mut self, terms: &[Term], finish: bool, key: &Rc<[u32]>) -> Result<ExpressionId, Faults> {
        if terms.iter().any(|term| term.expression == ExpressionId::UNKNOWN) {
            return Ok(ExpressionId::UNKNOWN);
        }
        let several = terms.len() > 1;
        // With one rank the scale and the finish are 1: leaving them out changes nothing.
        let scale_matters = self.rank_count > 1;
        let mut members = vec![0_u64; self.rank_count.div_ceil(64) as usize];
        let mut twice = vec![0_u64; members.len()];
        let mut faults = Vec::new();
        let mut unscaled = RankList::default();
        let mut scaled = true;
        for (source, term) in terms.iter().enumerate() {
            let source = source as u32;
            let node = &self.nodes[term.expression.0 as usize];
            for (word, more) in words(&node.members) {
                twice[word] |= members[word] & more;
                members[word] |= more;
                self.work += 1;
            }
            if term.scale && (node.scaled || node.finished) {
                faults.push(ViolationKind::ScaledTwice { source });
            }
            if node.finished && several {
                faults.push(ViolationKind::FinishedReduced { source });
            }
            if node.finished && !several && finish {
                faults.push(ViolationKind::FinishedTwice);
            }
            let term_scaled = node.scaled || term.scale;
            scaled &= term_scaled;
            if scale_matters && !term_scaled && (several || finish) {
                words(&node.members).for_each(|(word, bits)| push_ranks(&mut unscaled, word, bits));
            }
        }
        self.work += members.len() as u64;
        if unscaled.count > 0 {
            faults.push(ViolationKind::NotScaled { ranks: unscaled });
        }
        if twice.iter().any(|bits| *bits != 0) {
            faults.push(ViolationKind::CountsTwice { ranks: list(&twice) });
        }
        if finish {
            let lacking = self.lacking(&members);
            if lacking.count > 0 {
                faults.push(ViolationKind::FinishedEarly { lacking });
            }
        }
        if !faults.is_empty() {
            return Err(faults.into());
        }
        let members = match &self.nodes[terms[0].expression.0 as usize].members {
            one @ Members::One(_) if !several => one.clone(),
            _ => {
                self.stored += members.len() as u64;
                Members::Many(members.into())
            }
        };
        let finished = finish || (!several && self.nodes[terms[0].expression.0 as usize].finished);
        self.nodes.push(Node { members, scaled, finished, terms: key.clone() });
        Ok(ExpressionId(self.nodes.len() as u32 - 1))
    }

    /// What a reduction's result lacks: inputs, or the finish; nothing if it is complete or unknown.
    pub(super) fn incomplete(&mut self, id: ExpressionId) -> Option<ViolationKind> {
        if id == ExpressionId::UNKNOWN {
            return None;
        }
        let node = &self.nodes[id.0 as usize];
        if node.finished {
            // The step that finished it saw all inputs.
            return None;
        }
        let mut members = vec![0_u64; self.rank_count.div_ceil(64) as usize];
        words(&node.members).for_each(|(word, bits)| members[word] |= bits);
        self.work += members.len() as u64;
        let ranks = self.lacking(&members);
        if ranks.count > 0 {
            Some(ViolationKind::OutputLacks { ranks })
        } else if self.rank_count > 1 {
            Some(ViolationKind::OutputNotFinished)
        } else {
            None
        }
    }

    fn lacking(&self, members: &[u64]) -> RankList {
        let mut lacking = RankList::default();
        for (word, bits) in members.iter().enumerate() {
            let here = self.rank_count - word as u32 * 64;
            let all = if here >= 64 { u64::MAX } else { (1 << here) - 1 };
            push_ranks(&mut lacking, word, all & !bits);
        }
        lacking
    }

    /// The expression as text, as in `finish((scale r0 + scale r1) + scale r2)`; each pair of brackets rounds. Long expressions are
    /// cut.
    pub(super) fn render(&self, id: ExpressionId) -> String {
        let mut text = String::new();
        self.render_into(id, 12, &mut text);
        text
    }

    fn render_into(&self, id: ExpressionId, depth: u32, text: &mut String) {
        let node = &self.nodes[id.0 as usize];
        if let (Members::One(rank), []) = (&node.members, &node.terms[..]) {
            // Writing to a string cannot fail.
            let _ = write!(text, "{}", Rank(*rank));
            return;
        }
        if depth == 0 || text.len() > 200 || node.terms.is_empty() {
            text.push('…');
            return;
        }
        let terms = &node.terms[1..];
        text.push_str(if node.terms[0] == 1 { "finish(" } else { "(" });
        for (index, term) in terms.iter().enumerate() {
            text.push_str(if index > 0 { " + " } else { "" });
            text.push_str(if term & 1 == 1 { "scale " } else { "" });
            self.render_into(ExpressionId(term >> 1), depth - 1, text);
            if text.len() > 200 {
                text.push_str(" + …");
                break;
            }
        }
        text.push(')');
    }
}

/// The set as words of 64 ranks that hold any.
fn words(members: &Members) -> impl Iterator<Item = (usize, u64)> + '_ {
    let (one, many): (Option<(usize, u64)>, &[u64]) = match members {
        Members::None => (None, &[]),
        Members::One(rank) => (Some((*rank as usize / 64, 1 << (rank % 64))), &[]),
        Members::Many(words) => (None, words),
    };
    one.into_iter().chain(many.iter().copied().enumerate())
}

fn list(words: &[u64]) -> RankList {
    let mut ranks = RankList::default();
    words.iter().enumerate().for_each(|(word, bits)| push_ranks(&mut ranks, word, *bits));
    ranks
}

fn push_ranks(ranks: &mut RankList, word: usize, mut bits: u64) {
    while bits != 0 {
        ranks.push(Rank(word as u32 * 64 + bits.trailing_zeros()));
        bits &= bits - 1;
    }
}
