//! Control flow: in which order branches meet again, and which registers may share a place.

use std::collections::HashMap;

use super::{BLOCK_START, BarrierVote, CONSTANT, Instr, NEGATED, NO_GUARD, Op, Source, WarpOp};

/// Successors of an instruction: where it may go on.
fn successors(code: &[Instr], at: usize, mut each: impl FnMut(usize)) {
    let instr = &code[at];
    let falls_through = match &instr.op {
        Op::Branch { target } => {
            each(*target as usize);
            instr.guard != NO_GUARD
        }
        Op::BranchIndexed { targets, .. } => {
            targets.iter().for_each(|&target| each(target as usize));
            instr.guard != NO_GUARD
        }
        Op::Exit | Op::Trap => instr.guard != NO_GUARD,
        _ => true,
    };
    if falls_through && at + 1 < code.len() {
        each(at + 1);
    }
}

struct Blocks {
    /// The first instruction of each block, in the order of the text.
    starts: Vec<usize>,
    edges: Vec<Vec<u32>>,
}

fn blocks(code: &[Instr]) -> Blocks {
    let mut leads = vec![false; code.len() + 1];
    leads[0] = true;
    for (at, instr) in code.iter().enumerate() {
        if matches!(instr.op, Op::Branch { .. } | Op::BranchIndexed { .. } | Op::Exit | Op::Trap) {
            leads[at + 1] = true;
            successors(code, at, |target| leads[target] = true);
        }
    }
    let starts: Vec<usize> = (0..code.len()).filter(|&at| leads[at]).collect();
    let block_of = |at: usize| starts.partition_point(|&start| start <= at) as u32 - 1;
    let mut edges = Vec::with_capacity(starts.len());
    for (index, _) in starts.iter().enumerate() {
        let last = starts.get(index + 1).copied().unwrap_or(code.len()) - 1;
        let mut list = Vec::new();
        successors(code, last, |target| list.push(block_of(target)));
        edges.push(list);
    }
    Blocks { starts, edges }
}

/// For each instruction the place of its basic block in an order such that what runs first at any time is what others will
/// meet: a block comes before all that can be reached from it, loops taken as one (so that a loop's exit comes after all
/// of the loop), and so on inside each loop with its entry taken out. The scheduler runs the lanes that stand earliest.
pub(super) fn order(code: &[Instr]) -> Vec<u32> {
    let blocks = blocks(code);
    let count = blocks.starts.len();
    let mut place = vec![0u32; count];
    let mut next = 0;
    // What is left to be placed, last first: a set of blocks to be sorted, or one block that gets the next place.
    enum Task {
        Sort(Vec<u32>),
        Place(u32),
    }
    let mut tasks = vec![Task::Sort((0..count as u32).collect())];
    let mut member = vec![u32::MAX; count];
    let mut round = 0;
    while let Some(task) = tasks.pop() {
        match task {
            Task::Place(block) => {
                place[block as usize] = next;
                next += 1;
            }
            Task::Sort(set) => {
                for &block in &set {
                    member[block as usize] = round;
                }
                // Components come in reverse topological order, which is the order in which tasks are to be stacked.
                for component in components(&set, &blocks.edges, &member, round) {
                    let entry = component.iter().copied().min().unwrap_or(0);
                    if component.len() > 1 {
                        // The entry is the block that is entered from outside; where there are several, the first of the text.
                        let inside: Vec<u32> = component.clone();
                        let entered = |block: u32| {
                            set.iter()
                                .any(|&from| !inside.contains(&from) && blocks.edges[from as usize].contains(&block))
                        };
                        let entry = if inside.len() <= 4096 {
                            inside.iter().copied().filter(|&block| entered(block)).min().unwrap_or(entry)
                        } else {
                            entry
                        };
                        tasks.push(Task::Sort(inside.into_iter().filter(|&block| block != entry).collect()));
                        tasks.push(Task::Place(entry));
                    } else {
                        tasks.push(Task::Place(entry));
                    }
                }
                round += 1;
            }
        }
    }
    let mut result = vec![0; code.len()];
    for (index, &start) in blocks.starts.iter().enumerate() {
        let end = blocks.starts.get(index + 1).copied().unwrap_or(code.len());
        result[start..end].fill(place[index]);
        result[start] |= BLOCK_START;
    }
    result
}

/// Tarjan's strongly connected components of the blocks of `set`, without recursion; a component comes after all that it leads to.
fn components(set: &[u32], edges: &[Vec<u32>], member: &[u32], round: u32) -> Vec<Vec<u32>> {
    const NEW: u32 = u32::MAX;
    let mut number: HashMap<u32, (u32, u32, bool)> = HashMap::with_capacity(set.len());
    let (mut result, mut stack, mut next) = (Vec::new(), Vec::new(), 0);
    for &root in set {
        if number.contains_key(&root) {
            continue;
        }
        let mut path = vec![(root, 0usize)];
        number.insert(root, (next, next, true));
        next += 1;
        stack.push(root);
        while let Some((block, edge)) = path.last_mut() {
            let block = *block;
            let target = edges[block as usize].get(*edge).copied();
            *edge += 1;
            match target {
                Some(target) if member[target as usize] != round => {}
                Some(target) => match number.get(&target).copied().unwrap_or((NEW, NEW, false)) {
                    (NEW, ..) => {
                        number.insert(target, (next, next, true));
                        next += 1;
                        stack.push(target);
                        path.push((target, 0));
                    }
                    (index, _, true) => {
                        if let Some(entry) = number.get_mut(&block) {
                            entry.1 = entry.1.min(index);
                        }
                    }
                    _ => {}
                },
                None => {
                    path.pop();
                    let (index, low, _) = number[&block];
                    if let Some((parent, _)) = path.last()
                        && let Some(entry) = number.get_mut(parent)
                    {
                        entry.1 = entry.1.min(low);
                    }
                    if index == low {
                        let mut component = Vec::new();
                        while let Some(top) = stack.pop() {
                            if let Some(entry) = number.get_mut(&top) {
                                entry.2 = false;
                            }
                            component.push(top);
                            if top == block {
                                break;
                            }
                        }
                        result.push(component);
                    }
                }
            }
        }
    }
    result
}

/// Calls `each` with every register that an instruction names, and whether it is written.
fn registers(instr: &mut Instr, mut each: impl FnMut(&mut u32, bool)) {
    fn source(source: &mut Source, each: &mut impl FnMut(&mut u32, bool)) {
        if source.0 & CONSTANT == 0 {
            each(&mut source.0, false);
        }
    }
    if instr.guard != NO_GUARD {
        let negated = instr.guard & NEGATED;
        let mut register = instr.guard & !NEGATED;
        each(&mut register, false);
        instr.guard = register | negated;
    }
    let each = &mut each;
    let optional = |register: &mut u32, each: &mut dyn FnMut(&mut u32, bool)| {
        if *register != NO_GUARD {
            each(register, true);
        }
    };
    match &mut instr.op {
        Op::Unary { d, a, .. }
        | Op::Convert { d, a, .. }
        | Op::SignExtend { d, a, .. }
        | Op::ToGeneric { d, a, .. }
        | Op::FromGeneric { d, a, .. }
        | Op::IsSpace { d, a, .. } => {
            source(a, each);
            each(d, true);
        }
        Op::Binary { d, a, b, .. } | Op::ConvertTwo { d, a, b, .. } => {
            source(a, each);
            source(b, each);
            each(d, true);
        }
        Op::Ternary { d, a, b, c, .. } => {
            source(a, each);
            source(b, each);
            source(c, each);
            each(d, true);
        }
        Op::Quaternary { d, s, .. } => {
            s.iter_mut().for_each(|s| source(s, each));
            each(d, true);
        }
        Op::SetPredicate(set) => {
            source(&mut set.a, each);
            source(&mut set.b, each);
            if let Some((c, _)) = &mut set.c {
                source(c, each);
            }
            set.p.iter_mut().chain(set.q.iter_mut()).for_each(|d| each(d, true));
        }
        Op::Pack { d, sources, .. } => {
            sources.iter_mut().for_each(|s| source(s, each));
            each(d, true);
        }
        Op::Unpack { destinations, a, .. } => {
            source(a, each);
            destinations.iter_mut().for_each(|d| optional(d, each));
        }
        Op::Read { d, .. } => each(d, true),
        Op::Load(access) => {
            source(&mut access.address, each);
            access.values.iter_mut().for_each(|d| optional(d, each));
        }
        Op::Store(access) => {
            source(&mut access.address, each);
            for value in &mut access.values {
                if *value & CONSTANT == 0 {
                    each(value, false);
                }
            }
        }
        Op::Atomic(access) => {
            source(&mut access.address, each);
            access.operands.iter_mut().chain(access.swap.iter_mut()).for_each(|s| source(s, each));
            access.destinations.iter_mut().for_each(|d| optional(d, each));
        }
        Op::Multimem(access) => {
            source(&mut access.address, each);
            let writes = access.action == super::MultimemAction::LoadReduce;
            for value in &mut access.values {
                if *value & CONSTANT == 0 {
                    each(value, writes);
                }
            }
        }
        Op::Barrier(barrier) => {
            source(&mut barrier.id, each);
            barrier.count.iter_mut().for_each(|count| source(count, each));
            if let BarrierVote::And(d, a, _) | BarrierVote::Or(d, a, _) | BarrierVote::Count(d, a, _) =
                &mut barrier.vote
            {
                source(a, each);
                each(d, true);
            }
        }
        Op::Warp { members, op } => {
            source(members, each);
            match &mut **op {
                WarpOp::Barrier => {}
                WarpOp::Shuffle { d, valid, a, b, c, .. } => {
                    [a, b, c].into_iter().for_each(|s| source(s, each));
                    each(d, true);
                    valid.iter_mut().for_each(|d| each(d, true));
                }
                WarpOp::Vote { d, a, .. } | WarpOp::MatchAny { d, a } | WarpOp::Reduce { d, a, .. } => {
                    source(a, each);
                    each(d, true);
                }
                WarpOp::MatchAll { d, valid, a } => {
                    source(a, each);
                    each(d, true);
                    valid.iter_mut().for_each(|d| each(d, true));
                }
                WarpOp::Elect { d, elected } => {
                    each(elected, true);
                    d.iter_mut().for_each(|d| each(d, true));
                }
            }
        }
        Op::BranchIndexed { index, .. } => source(index, each),
        Op::Sleep { a } => source(a, each),
        Op::Fence(_) | Op::AliasFence | Op::Branch { .. } | Op::Exit | Op::Trap | Op::Nothing | Op::Undefined(_) => {}
    }
}

/// Gives registers that are never alive at the same time one place, so that a warp's registers stay in a near cache. The
/// first `fixed` keep theirs. Answers how many places there are.
///
/// A register is alive in a lane by that lane's own path, so divergence needs no care. Where the graph is too large to be worth it,
/// every register keeps its own place.
pub(super) fn pack_registers(code: &mut [Instr], count: u32, fixed: u32) -> u32 {
    let blocks = blocks(code);
    let words = (count as usize).div_ceil(64);
    if words * blocks.starts.len() > 1 << 24 {
        return count;
    }
    let range = |index: usize| blocks.starts[index]..blocks.starts.get(index + 1).copied().unwrap_or(usize::MAX);
    // Registers read before they are written in a block, and those written for certain.
    let mut needed = vec![0u64; words * blocks.starts.len()];
    let mut written = needed.clone();
    for index in 0..blocks.starts.len() {
        let end = range(index).end.min(code.len());
        let (needed, written) = (&mut needed[index * words..][..words], &mut written[index * words..][..words]);
        for instr in &mut code[blocks.starts[index]..end] {
            let guarded = instr.guard != NO_GUARD;
            registers(instr, |&mut register, is_write| {
                let (word, bit) = (register as usize / 64, 1u64 << (register % 64));
                if !is_write || guarded {
                    needed[word] |= bit & !written[word];
                } else {
                    written[word] |= bit;
                }
            });
        }
    }
    // Alive at the end of a block: what any successor needs at its start.
    let mut changed = true;
    let mut alive_out = vec![0u64; words * blocks.starts.len()];
    while changed {
        changed = false;
        for index in (0..blocks.starts.len()).rev() {
            for &to in &blocks.edges[index] {
                let to = to as usize;
                for word in 0..words {
                    let alive = needed[to * words + word];
                    let out = &mut alive_out[index * words + word];
                    if alive & !*out != 0 {
                        *out |= alive;
                        changed = true;
                    }
                }
            }
            for word in 0..words {
                needed[index * words + word] |= alive_out[index * words + word] & !written[index * words + word];
            }
        }
    }
    // One interval of the text for each register: from the first to the last instruction at which it is alive.
    let mut first = vec![u32::MAX; count as usize];
    let mut last = vec![0u32; count as usize];
    let mut touch = |register: usize, at: usize| {
        first[register] = first[register].min(at as u32);
        last[register] = last[register].max(at as u32);
    };
    let each_bit = |bits: &[u64], each: &mut dyn FnMut(usize)| {
        for (word, &bits) in bits.iter().enumerate() {
            let mut left = bits;
            while left != 0 {
                each(word * 64 + left.trailing_zeros() as usize);
                left &= left - 1;
            }
        }
    };
    for index in 0..blocks.starts.len() {
        let end = range(index).end.min(code.len());
        each_bit(&needed[index * words..][..words], &mut |register| touch(register, blocks.starts[index]));
        each_bit(&alive_out[index * words..][..words], &mut |register| touch(register, end - 1));
        for (at, instr) in code.iter_mut().enumerate().take(end).skip(blocks.starts[index]) {
            registers(instr, |&mut register, _| touch(register as usize, at));
        }
    }
    // Linear scan: places are handed on when their interval has ended.
    let mut by_start: Vec<u32> = (fixed..count).filter(|&register| first[register as usize] != u32::MAX).collect();
    by_start.sort_by_key(|&register| first[register as usize]);
    let mut place: Vec<u32> = (0..count).collect();
    let mut free = Vec::new();
    let mut busy = std::collections::BinaryHeap::new();
    let mut places = fixed;
    for register in by_start {
        while let Some(&std::cmp::Reverse((end, old))) = busy.peek() {
            if end >= first[register as usize] {
                break;
            }
            busy.pop();
            free.push(old);
        }
        let chosen = free.pop().unwrap_or_else(|| {
            places += 1;
            places - 1
        });
        place[register as usize] = chosen;
        busy.push(std::cmp::Reverse((last[register as usize], chosen)));
    }
    for instr in code {
        registers(instr, |register, _| *register = place[*register as usize]);
    }
    places
}
