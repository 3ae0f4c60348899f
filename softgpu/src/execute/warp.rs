//! A warp: its registers, its fragments, and the execution of one instruction after the other.

use std::time::{Duration, Instant};

use super::access::{Accessor, element, updated, window};
use super::block::{Common, IDLE_POLLS_MAX};
use super::{LOCAL_WINDOW, Launched, PARAMETER_WINDOW, SHARED_WINDOW, Stop, WINDOW_MASK};
use crate::arithmetic::each;
use crate::fault::FaultKind;
use crate::module::{
    AtomicAccess, BLOCK_START, BarrierVote, CONSTANT, Combine, Kernel, MemoryAccess, Moving, MultimemAccess,
    MultimemAction, NEGATED, NO_GUARD, Op, ShuffleMode, Source, Space, Special, Strength, Update, VoteMode, WarpOp,
};
use crate::types::{Lanes, Type, WARP_THREADS, mask_of, sign_extend};

/// Choices among fragments after which another than the earliest gets a turn.
const TURNS_MAX: u32 = 128;

/// How many times as long a sleep takes here: instructions take some hundred times as long as on a device, and a block that
/// polls in between should leave as much of the time to the others.
const SLOWNESS: u32 = 500;

/// The longest that a `nanosleep` really sleeps.
const SLEEP_MAX: Duration = Duration::from_micros(200);

/// What a fragment waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    No,
    Barrier(u32),
    /// Those members of its warp.
    Warp(u32),
}

/// Lanes that stand at one instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment {
    pub(super) position: usize,
    pub(super) lanes: u32,
    pub(super) waiting: Waiting,
    /// When it last ran, in choices of its warp.
    last: u32,
}

/// What a warp's turn came to.
pub(super) enum Ran {
    Done,
    Progress,
    Blocked,
    Asleep(Instant),
}

#[expect(clippy::vec_box, reason = "registers are swapped with the scratch one, by their pointers")]
pub(super) struct Warp {
    pub(super) index: u32,
    pub(super) registers: Vec<Box<Lanes>>,
    scratch: Box<Lanes>,
    pub(super) fragments: Vec<Fragment>,
    valid: u32,
    exited: u32,
    local: Vec<u8>,
    local_written: Vec<bool>,
    wake: Option<Instant>,
    turn: u32,
    last_poll: (u64, u64),
}

fn source<'a>(registers: &'a [Box<Lanes>], constants: &'a [Lanes], source: Source) -> &'a Lanes {
    if source.0 & CONSTANT == 0 { &registers[source.0 as usize] } else { &constants[(source.0 & !CONSTANT) as usize] }
}

impl Warp {
    pub(super) fn new(launched: &Launched, block: u64, index: u32) -> Warp {
        let threads = launched.block.volume() as u32;
        let count = (threads - index * 32).min(32);
        let valid = if count == 32 { u32::MAX } else { (1 << count) - 1 };
        let kernel = &launched.kernel;
        let mut registers: Vec<Box<Lanes>> = (0..kernel.registers).map(|_| Box::new([0; WARP_THREADS])).collect();
        let at = launched.grid.coordinate(block);
        let mut set = |special: Special, value: &dyn Fn(u32) -> u64| {
            *registers[special as usize] = std::array::from_fn(|lane| value(lane as u32));
        };
        let thread = |lane: u32| launched.block.coordinate((index * 32 + lane).into());
        set(Special::TidX, &|lane| thread(lane).x.into());
        set(Special::TidY, &|lane| thread(lane).y.into());
        set(Special::TidZ, &|lane| thread(lane).z.into());
        for (special, value) in [
            (Special::NtidX, launched.block.x),
            (Special::NtidY, launched.block.y),
            (Special::NtidZ, launched.block.z),
            (Special::CtaidX, at.x),
            (Special::CtaidY, at.y),
            (Special::CtaidZ, at.z),
            (Special::NctaidX, launched.grid.x),
            (Special::NctaidY, launched.grid.y),
            (Special::NctaidZ, launched.grid.z),
            (Special::WarpId, index),
            (Special::WarpCount, threads.div_ceil(32)),
            (Special::MultiprocessorId, block as u32),
            (Special::GridId, launched.number as u32),
            (Special::DynamicSharedBytes, launched.dynamic_shared_bytes),
            (Special::TotalSharedBytes, launched.shared_bytes),
        ] {
            set(special, &|_| value.into());
        }
        set(Special::LaneId, &|lane| lane.into());
        set(Special::MaskEqual, &|lane| 1 << lane);
        set(Special::MaskLess, &|lane| (1 << lane) - 1);
        set(Special::MaskLessEqual, &|lane| (2 << lane) - 1);
        set(Special::MaskGreater, &|lane| u64::from(u32::MAX) & !((2 << lane) - 1));
        set(Special::MaskGreaterEqual, &|lane| u64::from(u32::MAX) & !((1 << lane) - 1));
        let local = kernel.local_bytes as usize * WARP_THREADS;
        Warp {
            index,
            registers,
            scratch: Box::new([0; WARP_THREADS]),
            fragments: vec![Fragment { position: 0, lanes: valid, waiting: Waiting::No, last: 0 }],
            valid,
            exited: 0,
            local: vec![0; local],
            local_written: vec![false; local],
            wake: None,
            turn: 0,
            last_poll: (0, 0),
        }
    }

    /// Merges what has met, and picks the fragment that goes on.
    fn choose(&mut self, kernel: &Kernel) -> Option<usize> {
        let mut at = 0;
        while at < self.fragments.len() {
            let one = self.fragments[at];
            let meets = |other: &Fragment| other.position == one.position && other.waiting == Waiting::No;
            if one.waiting == Waiting::No
                && let Some(earlier) = self.fragments[..at].iter().position(meets)
            {
                self.fragments[earlier].lanes |= one.lanes;
                self.fragments.swap_remove(at);
            } else {
                at += 1;
            }
        }
        self.turn = self.turn.wrapping_add(1);
        let ready = self.fragments.iter().enumerate().filter(|(_, fragment)| fragment.waiting == Waiting::No);
        let chosen = if self.turn.is_multiple_of(TURNS_MAX) {
            ready.max_by_key(|(_, fragment)| self.turn.wrapping_sub(fragment.last))?.0
        } else {
            ready.min_by_key(|(_, fragment)| (kernel.order[fragment.position] & !BLOCK_START, fragment.position))?.0
        };
        self.fragments[chosen].last = self.turn;
        Some(chosen)
    }

    /// Executes up to `budget` instructions.
    pub(super) fn run(&mut self, common: &mut Common, budget: u32) -> Result<Ran, Stop> {
        if self.fragments.is_empty() {
            return Ok(Ran::Done);
        }
        if let Some(wake) = self.wake {
            if Instant::now() < wake {
                return Ok(Ran::Asleep(wake));
            }
            self.wake = None;
        }
        let launched = common.launched.clone();
        let (kernel, constants) = (&*launched.kernel, &launched.constants[..]);
        let mut left = budget;
        while left > 0 {
            let Some(chosen) = self.choose(kernel) else {
                if self.fragments.is_empty() {
                    return Ok(if left < budget { Ran::Progress } else { Ran::Done });
                }
                if self.meet_members(common, kernel)? {
                    continue;
                }
                return Ok(if left < budget { Ran::Progress } else { Ran::Blocked });
            };
            if self.execute(common, kernel, constants, chosen, &mut left)? {
                // It only polled, or went to sleep.
                break;
            }
        }
        common.warp_instructions += u64::from(budget - left);
        Ok(Ran::Progress)
    }

    fn accessor(&self, kernel: &Kernel, position: usize, lane: usize) -> Accessor {
        Accessor { thread: self.index * 32 + lane as u32, position, line: kernel.code[position].line, alias: false }
    }

    /// Runs one fragment until it ends, splits, waits or meets another; answers whether the warp should give its turn back.
    fn execute(
        &mut self,
        common: &mut Common,
        kernel: &Kernel,
        constants: &[Lanes],
        chosen: usize,
        left: &mut u32,
    ) -> Result<bool, Stop> {
        let Fragment { mut position, lanes, .. } = self.fragments[chosen];
        let alone = self.fragments.len() == 1;
        let full_count = u64::from(lanes.count_ones());
        loop {
            if *left == 0 {
                self.fragments[chosen].position = position;
                return Ok(false);
            }
            *left -= 1;
            let instr = &kernel.code[position];
            let mask = if instr.guard == NO_GUARD {
                common.instructions += full_count;
                lanes
            } else {
                let predicate = &self.registers[(instr.guard & !NEGATED) as usize];
                let mut bits = 0u32;
                for (lane, &value) in predicate.iter().enumerate() {
                    bits |= u32::from(value != 0) << lane;
                }
                let mask = lanes & if instr.guard & NEGATED == 0 { bits } else { !bits };
                common.instructions += u64::from(mask.count_ones());
                mask
            };
            if mask == 0 {
                position += 1;
                if !alone && kernel.order[position] & BLOCK_START != 0 {
                    self.fragments[chosen].position = position;
                    return Ok(false);
                }
                continue;
            }
            macro_rules! read {
                ($source:expr) => {
                    source(&self.registers, constants, $source)
                };
            }
            // Full warps need not keep what the destination held.
            macro_rules! write {
                ($d:expr, |$out:ident| $body:expr) => {{
                    let d = $d as usize;
                    if mask != u32::MAX {
                        *self.scratch = *self.registers[d];
                    }
                    {
                        let $out = &mut *self.scratch;
                        $body;
                    }
                    std::mem::swap(&mut self.scratch, &mut self.registers[d]);
                }};
            }
            match &instr.op {
                Op::Unary { f, d, a } => write!(*d, |out| f(out, read!(*a), mask)),
                Op::Binary { f, d, a, b } => write!(*d, |out| f(out, read!(*a), read!(*b), mask)),
                Op::Ternary { f, d, a, b, c } => write!(*d, |out| f(out, read!(*a), read!(*b), read!(*c), mask)),
                Op::Quaternary { f, d, s } => {
                    write!(*d, |out| f(out, [read!(s[0]), read!(s[1]), read!(s[2]), read!(s[3])], mask))
                }
                Op::Convert { conversion, d, a } => write!(*d, |out| {
                    let a = read!(*a);
                    each(mask, |lane| out[lane] = conversion.apply(a[lane]))
                }),
                Op::ConvertTwo { conversion, d, a, b } => write!(*d, |out| {
                    let (a, b) = (read!(*a), read!(*b));
                    each(mask, |lane| out[lane] = conversion.apply_two(a[lane], b[lane]))
                }),
                Op::SignExtend { d, a, from_bytes, to_bytes } => write!(*d, |out| {
                    let a = read!(*a);
                    each(mask, |lane| out[lane] = sign_extend(a[lane], *from_bytes) & mask_of(*to_bytes))
                }),
                Op::SetPredicate(set) => {
                    let mut compared = [0; WARP_THREADS];
                    (set.compare)(&mut compared, read!(set.a), read!(set.b), mask);
                    let mut opposite = [0; WARP_THREADS];
                    if set.q.is_some() {
                        each(mask, |lane| opposite[lane] = compared[lane] ^ 1);
                    }
                    if let Some((c, negate)) = set.c {
                        let c = read!(c);
                        let combine = |value: u64, c: u64| match set.combine {
                            Combine::None => value,
                            Combine::And => value & c,
                            Combine::Or => value | c,
                            Combine::Xor => value ^ c,
                        };
                        each(mask, |lane| {
                            let c = c[lane] ^ u64::from(negate);
                            compared[lane] = combine(compared[lane], c);
                            opposite[lane] = combine(opposite[lane], c);
                        });
                    }
                    for (d, values) in [(set.p, &compared), (set.q, &opposite)] {
                        if let Some(d) = d {
                            let out = &mut self.registers[d as usize];
                            each(mask, |lane| out[lane] = values[lane]);
                        }
                    }
                }
                Op::Pack { d, sources, bits } => write!(*d, |out| {
                    each(mask, |lane| out[lane] = 0);
                    for (index, a) in sources.iter().enumerate() {
                        let a = read!(*a);
                        let keep = mask_of(bits / 8);
                        each(mask, |lane| out[lane] |= (a[lane] & keep) << (index as u32 * bits));
                    }
                }),
                Op::Unpack { destinations, a, bits } => {
                    let a = *read!(*a);
                    let keep = mask_of(bits / 8);
                    for (index, &d) in destinations.iter().enumerate() {
                        if d != NO_GUARD {
                            let out = &mut self.registers[d as usize];
                            each(mask, |lane| out[lane] = a[lane] >> (index as u32 * bits) & keep);
                        }
                    }
                }
                Op::Read { what, d } => {
                    let clock = common.launched.nanoseconds();
                    let value = match what {
                        Moving::Clock => clock & 0xffff_ffff,
                        Moving::Clock64 | Moving::GlobalTimer => clock,
                        Moving::ClockHigh | Moving::GlobalTimerHigh => clock >> 32,
                        Moving::GlobalTimerLow => clock & 0xffff_ffff,
                        Moving::ActiveMask => mask.into(),
                    };
                    let out = &mut self.registers[*d as usize];
                    each(mask, |lane| out[lane] = value);
                }
                Op::ToGeneric { d, a, space } => {
                    let base = base_of(*space);
                    write!(*d, |out| {
                        let a = read!(*a);
                        each(mask, |lane| out[lane] = a[lane].wrapping_add(base))
                    });
                }
                Op::FromGeneric { d, a, space } => {
                    let base = base_of(*space);
                    write!(*d, |out| {
                        let a = read!(*a);
                        each(mask, |lane| out[lane] = a[lane].wrapping_sub(base))
                    });
                }
                Op::IsSpace { d, a, space } => {
                    let base = base_of(*space);
                    write!(*d, |out| {
                        let a = read!(*a);
                        each(mask, |lane| out[lane] = u64::from(a[lane] & WINDOW_MASK == base))
                    });
                }
                Op::Load(access) => {
                    self.load(common, kernel, constants, access, mask, position)?;
                    if common.idle_polls > IDLE_POLLS_MAX {
                        self.fragments[chosen].position = position + 1;
                        return Ok(true);
                    }
                }
                Op::Store(access) => self.store(common, kernel, constants, access, mask, position)?,
                Op::Atomic(access) => self.atomic(common, kernel, constants, access, mask, position)?,
                Op::Multimem(access) => self.multimem(common, kernel, constants, access, mask, position)?,
                Op::Fence(scope) => {
                    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
                    if let Some(clock) = &mut common.clock {
                        each(mask, |lane| clock.fence((self.index * 32 + lane as u32) as u16, *scope));
                    }
                }
                Op::AliasFence => {
                    if let Some(clock) = &mut common.clock {
                        let first = self.index * 32;
                        let lanes = (0..32).filter(|lane| mask >> lane & 1 != 0);
                        clock.alias_fence(lanes.map(|lane| (first + lane) as u16));
                    }
                }
                Op::Nothing => {}
                Op::Branch { target } => {
                    let target = *target as usize;
                    if mask == lanes {
                        position = target;
                        if alone {
                            continue;
                        }
                        self.fragments[chosen].position = position;
                        return Ok(false);
                    }
                    self.fragments[chosen] = Fragment { position: target, lanes: mask, ..self.fragments[chosen] };
                    self.fragments.push(Fragment {
                        position: position + 1,
                        lanes: lanes & !mask,
                        waiting: Waiting::No,
                        last: self.turn,
                    });
                    return Ok(false);
                }
                Op::BranchIndexed { index, targets } => {
                    let index = *read!(*index);
                    self.fragments.swap_remove(chosen);
                    if lanes != mask {
                        self.fragments.push(Fragment {
                            position: position + 1,
                            lanes: lanes & !mask,
                            waiting: Waiting::No,
                            last: self.turn,
                        });
                    }
                    let mut rest = mask;
                    while rest != 0 {
                        let lane = rest.trailing_zeros() as usize;
                        let choice = index[lane] & 0xffff_ffff;
                        let Some(&target) = targets.get(choice as usize) else {
                            let who = self.accessor(kernel, position, lane);
                            let detail = format!("branch to target {choice} of {}", targets.len());
                            common.fault(FaultKind::Undefined, who.line, who.thread, None, detail)?;
                            return Err(Stop);
                        };
                        let mut group = 0;
                        each(rest, |lane| group |= u32::from(index[lane] & 0xffff_ffff == choice) << lane);
                        self.fragments.push(Fragment {
                            position: target as usize,
                            lanes: group,
                            waiting: Waiting::No,
                            last: self.turn,
                        });
                        rest &= !group;
                    }
                    return Ok(false);
                }
                Op::Exit => {
                    self.exited |= mask;
                    common.exited += mask.count_ones();
                    if mask == lanes {
                        self.fragments.swap_remove(chosen);
                    } else {
                        self.fragments[chosen] =
                            Fragment { position: position + 1, lanes: lanes & !mask, ..self.fragments[chosen] };
                    }
                    return Ok(false);
                }
                Op::Trap => {
                    let who = self.accessor(kernel, position, mask.trailing_zeros() as usize);
                    common.fault(FaultKind::Trap, who.line, who.thread, None, "the kernel gives up".to_owned())?;
                    return Err(Stop);
                }
                Op::Undefined(name) => {
                    let who = self.accessor(kernel, position, mask.trailing_zeros() as usize);
                    let detail = format!("call of `{name}`, which the module only declares");
                    common.fault(FaultKind::Undefined, who.line, who.thread, None, detail)?;
                    return Err(Stop);
                }
                Op::Sleep { a } => {
                    let nanoseconds = read!(*a)[mask.trailing_zeros() as usize] & 0xffff_ffff;
                    self.wake = Some(Instant::now() + (Duration::from_nanos(nanoseconds) * SLOWNESS).min(SLEEP_MAX));
                    self.fragments[chosen].position = position + 1;
                    return Ok(true);
                }
                Op::Barrier(barrier) => {
                    let first = mask.trailing_zeros() as usize;
                    let id = read!(barrier.id)[first] & 0xffff_ffff;
                    let count = barrier.count.map(|count| read!(count)[first] & 0xffff_ffff);
                    let mut votes_true = 0;
                    if let BarrierVote::And(_, a, negate)
                    | BarrierVote::Or(_, a, negate)
                    | BarrierVote::Count(_, a, negate) = barrier.vote
                    {
                        let a = read!(a);
                        each(mask, |lane| votes_true += u32::from((a[lane] != 0) != negate));
                    }
                    common.arrive(
                        self.index,
                        mask,
                        position,
                        id,
                        count,
                        !barrier.arrive,
                        barrier.aligned,
                        votes_true,
                    )?;
                    if barrier.arrive {
                        position += 1;
                        continue;
                    }
                    self.fragments[chosen] =
                        Fragment { position, lanes: mask, waiting: Waiting::Barrier(id as u32), last: self.turn };
                    if mask != lanes {
                        self.fragments.push(Fragment {
                            position: position + 1,
                            lanes: lanes & !mask,
                            waiting: Waiting::No,
                            last: self.turn,
                        });
                    }
                    return Ok(false);
                }
                Op::Warp { members, op } => {
                    let members = *read!(*members);
                    let first = mask.trailing_zeros() as usize;
                    let group = members[first] as u32;
                    let mut arriving = 0;
                    each(mask, |lane| arriving |= u32::from(members[lane] as u32 == group) << lane);
                    if arriving & !group != 0 {
                        let lane = (arriving & !group).trailing_zeros() as usize;
                        let who = self.accessor(kernel, position, lane);
                        let detail = format!("lane {lane} is not among the members {group:#010x} that it names");
                        common.fault(FaultKind::DivergentWarp, who.line, who.thread, None, detail)?;
                    }
                    if arriving == lanes && alone && arriving & group == group & self.valid & !self.exited {
                        self.warp_op(common, kernel, constants, op, arriving, group, position)?;
                        position += 1;
                        continue;
                    }
                    self.fragments[chosen] =
                        Fragment { position, lanes: arriving, waiting: Waiting::Warp(group), last: self.turn };
                    if mask & !arriving != 0 {
                        self.fragments.push(Fragment {
                            position,
                            lanes: mask & !arriving,
                            waiting: Waiting::No,
                            last: self.turn,
                        });
                    }
                    if mask != lanes {
                        self.fragments.push(Fragment {
                            position: position + 1,
                            lanes: lanes & !mask,
                            waiting: Waiting::No,
                            last: self.turn,
                        });
                    }
                    self.meet_members(common, kernel)?;
                    return Ok(false);
                }
            }
            position += 1;
            if !alone && kernel.order[position] & BLOCK_START != 0 {
                self.fragments[chosen].position = position;
                return Ok(false);
            }
        }
    }

    /// Lets go the fragments whose members have all come to a `.sync` instruction; answers whether there were any.
    fn meet_members(&mut self, common: &mut Common, kernel: &Kernel) -> Result<bool, Stop> {
        let launched = common.launched.clone();
        let mut any = false;
        for at in 0..self.fragments.len() {
            let Fragment { position, waiting: Waiting::Warp(group), .. } = self.fragments[at] else { continue };
            let Op::Warp { op, .. } = &kernel.code[position].op else { continue };
            let barrier = matches!(**op, WarpOp::Barrier);
            let joins = |other: &Fragment| {
                let other_is_barrier =
                    matches!(&kernel.code[other.position].op, Op::Warp { op, .. } if matches!(**op, WarpOp::Barrier));
                other.waiting == Waiting::Warp(group) && (other.position == position || (barrier && other_is_barrier))
            };
            let lanes = self.fragments.iter().filter(|other| joins(other)).fold(0, |lanes, other| lanes | other.lanes);
            if lanes & group != group & self.valid & !self.exited {
                continue;
            }
            self.warp_op(common, kernel, &launched.constants, op, lanes, group, position)?;
            for fragment in &mut self.fragments {
                if joins(fragment) {
                    fragment.position += 1;
                    fragment.waiting = Waiting::No;
                }
            }
            any = true;
        }
        Ok(any)
    }

    #[expect(clippy::too_many_arguments, reason = "all of it is the instruction")]
    fn warp_op(
        &mut self,
        common: &mut Common,
        kernel: &Kernel,
        constants: &[Lanes],
        op: &WarpOp,
        mask: u32,
        group: u32,
        position: usize,
    ) -> Result<(), Stop> {
        if let Some(clock) = &mut common.clock
            && (matches!(op, WarpOp::Barrier) || common.launched.votes_order_memory)
        {
            let threads: Vec<u16> =
                (0..32).filter(|lane| mask >> lane & 1 != 0).map(|lane| (self.index * 32 + lane) as u16).collect();
            clock.barrier_some(&threads, &threads);
        }
        let set = |registers: &mut Vec<Box<Lanes>>, d: u32, values: &dyn Fn(usize) -> u64| {
            let out = &mut registers[d as usize];
            each(mask, |lane| out[lane] = values(lane));
        };
        match op {
            WarpOp::Barrier => {}
            WarpOp::Shuffle { mode, d, valid, a, b, c } => {
                let (a, b, c) = (
                    *source(&self.registers, constants, *a),
                    *source(&self.registers, constants, *b),
                    *source(&self.registers, constants, *c),
                );
                let from = |lane: usize| {
                    let segment = (c[lane] >> 8 & 31) as u32;
                    let (lane, bval, cval) = (lane as u32, (b[lane] & 31) as u32, (c[lane] & 31) as u32);
                    let last = (lane & segment) | (cval & !segment);
                    let (from, inside) = match mode {
                        ShuffleMode::Up => (lane.wrapping_sub(bval), lane as i32 - bval as i32 >= last as i32),
                        ShuffleMode::Down => (lane + bval, lane + bval <= last),
                        ShuffleMode::Butterfly => (lane ^ bval, lane ^ bval <= last),
                        ShuffleMode::Index => {
                            let from = (lane & segment) | (bval & !segment);
                            (from, from <= last)
                        }
                    };
                    (if inside { from & 31 } else { lane }, inside)
                };
                let mut absent = None;
                each(mask, |lane| {
                    if mask >> from(lane).0 & 1 == 0 {
                        absent.get_or_insert((lane, from(lane).0));
                    }
                });
                if let Some((lane, from)) = absent {
                    let who = self.accessor(kernel, position, lane);
                    let detail = format!("lane {lane} reads from lane {from}, which does not take part");
                    common.fault(FaultKind::DivergentWarp, who.line, who.thread, None, detail)?;
                }
                set(&mut self.registers, *d, &|lane| a[from(lane).0 as usize] & 0xffff_ffff);
                if let Some(valid) = valid {
                    set(&mut self.registers, *valid, &|lane| u64::from(from(lane).1));
                }
            }
            WarpOp::Vote { mode, d, a, negate } => {
                let a = source(&self.registers, constants, *a);
                let mut ballot = 0u32;
                each(mask, |lane| ballot |= u32::from((a[lane] != 0) != *negate) << lane);
                let value = match mode {
                    VoteMode::All => u64::from(ballot == mask),
                    VoteMode::Any => u64::from(ballot != 0),
                    VoteMode::Uniform => u64::from(ballot == 0 || ballot == mask),
                    VoteMode::Ballot => ballot.into(),
                };
                set(&mut self.registers, *d, &|_| value);
            }
            WarpOp::MatchAny { d, a } => {
                let a = *source(&self.registers, constants, *a);
                set(&mut self.registers, *d, &|lane| {
                    let mut equal = 0u64;
                    each(mask, |other| equal |= u64::from(a[other] == a[lane]) << other);
                    equal
                });
            }
            WarpOp::MatchAll { d, valid, a } => {
                let a = *source(&self.registers, constants, *a);
                let first = a[mask.trailing_zeros() as usize];
                let mut all = true;
                each(mask, |lane| all &= a[lane] == first);
                set(&mut self.registers, *d, &|_| if all { mask.into() } else { 0 });
                if let Some(valid) = valid {
                    set(&mut self.registers, *valid, &|_| all.into());
                }
            }
            WarpOp::Reduce { update, kind, d, a } => {
                let a = *source(&self.registers, constants, *a);
                let mut result = None;
                each(mask, |lane| {
                    let value = a[lane] & 0xffff_ffff;
                    result = Some(result.map_or(value, |sum| updated(*update, *kind, sum, value, 0)));
                });
                set(&mut self.registers, *d, &|_| result.unwrap_or(0));
            }
            WarpOp::Elect { d, elected } => {
                let leader = (mask & group).trailing_zeros() as u64;
                if let Some(d) = d {
                    set(&mut self.registers, *d, &|_| leader);
                }
                set(&mut self.registers, *elected, &|lane| u64::from(lane as u64 == leader));
            }
        }
        Ok(())
    }

    /// Where bytes of local memory or of the parameters begin.
    #[expect(clippy::too_many_arguments, reason = "all of it is the access")]
    fn private(
        &mut self,
        common: &Common,
        who: Accessor,
        lane: usize,
        address: u64,
        bytes: usize,
        space: Space,
        is_write: bool,
    ) -> Result<usize, Stop> {
        let (name, size) = match space {
            Space::Local => ("the thread's", self.local.len() / WARP_THREADS),
            _ => ("the kernel's", common.launched.parameters.len()),
        };
        let what = if space == Space::Local { "local memory" } else { "parameters" };
        let verb = if is_write { "store" } else { "load" };
        if !address.is_multiple_of(bytes as u64) {
            let detail = format!("{verb} of {bytes} bytes in {what}, which must be aligned to as many,");
            common.fault(FaultKind::Misaligned, who.line, who.thread, Some(address), detail)?;
        }
        if address >= size as u64 || bytes as u64 > size as u64 - address || (is_write && space != Space::Local) {
            let detail = format!("{verb} of {bytes} bytes outside {name} {size} bytes of {what}");
            common.fault(FaultKind::OutOfBounds, who.line, who.thread, Some(address), detail)?;
        }
        Ok(address as usize + if space == Space::Local { lane * size } else { 0 })
    }

    fn load(
        &mut self,
        common: &mut Common,
        kernel: &Kernel,
        constants: &[Lanes],
        access: &MemoryAccess,
        mask: u32,
        position: usize,
    ) -> Result<(), Stop> {
        let addresses = *source(&self.registers, constants, access.address);
        let count = access.values.len();
        let total = access.bytes as usize * count;
        let strong = access.strength != Strength::Weak;
        let memory = common.launched.memory.clone();
        let mut line = None;
        let mut values = [0u64; 8];
        let mut left = mask;
        while left != 0 {
            let lane = left.trailing_zeros() as usize & 31;
            left &= left - 1;
            let who = self.accessor(kernel, position, lane);
            let (space, address) = place(access.space, addresses[lane].wrapping_add(access.offset as u64));
            match space {
                Space::Shared => common.load_shared(who, address, access.bytes, count, access.strength, &mut values)?,
                Space::Local | Space::Parameter => {
                    let at = self.private(common, who, lane, address, total, space, false)?;
                    if space == Space::Local
                        && common.launched.uninitialised
                        && !self.local_written[at..at + total].iter().all(|&written| written)
                    {
                        let detail = format!("load of {total} bytes of local memory of which nobody has written all");
                        common.fault(FaultKind::Uninitialised, who.line, who.thread, Some(address), detail)?;
                    }
                    let bytes = if space == Space::Local { &self.local[..] } else { &common.launched.parameters[..] };
                    for (index, value) in values.iter_mut().enumerate().take(count) {
                        let from = at + index * access.bytes as usize;
                        *value = element(&bytes[from..from + access.bytes as usize]);
                    }
                }
                _ => {
                    if strong && total >= 16 && line.as_ref().is_none_or(|&(at, _)| at != address / 128) {
                        drop(line.take());
                        line = Some((
                            address / 128,
                            memory.line(address).lock().unwrap_or_else(std::sync::PoisonError::into_inner),
                        ));
                    }
                    common.load_global(who, address, access.bytes, count, access.strength, &mut values)?;
                    if strong {
                        if self.last_poll == (address, values[0]) {
                            common.idle_polls += 1;
                        } else {
                            self.last_poll = (address, values[0]);
                            common.idle_polls = 0;
                        }
                    }
                }
            }
            for (index, &d) in access.values.iter().enumerate() {
                if d != NO_GUARD {
                    let value = values[index];
                    self.registers[d as usize][lane] = if access.sign_bytes == 0 {
                        value
                    } else {
                        sign_extend(value, access.bytes) & mask_of(access.sign_bytes)
                    };
                }
            }
        }
        Ok(())
    }

    fn store(
        &mut self,
        common: &mut Common,
        kernel: &Kernel,
        constants: &[Lanes],
        access: &MemoryAccess,
        mask: u32,
        position: usize,
    ) -> Result<(), Stop> {
        let count = access.values.len();
        let total = access.bytes as usize * count;
        let keep = mask_of(access.bytes);
        let strong = access.strength != Strength::Weak;
        let memory = common.launched.memory.clone();
        let mut line = None;
        let mut values = [0u64; 8];
        let mut left = mask;
        while left != 0 {
            let lane = left.trailing_zeros() as usize & 31;
            left &= left - 1;
            for (value, &from) in values.iter_mut().zip(&access.values) {
                *value = source(&self.registers, constants, Source(from))[lane] & keep;
            }
            let who = self.accessor(kernel, position, lane);
            let base = source(&self.registers, constants, access.address)[lane];
            let (space, address) = place(access.space, base.wrapping_add(access.offset as u64));
            match space {
                Space::Shared => common.store_shared(who, address, access.bytes, count, access.strength, &values)?,
                Space::Local | Space::Parameter => {
                    let at = self.private(common, who, lane, address, total, space, true)?;
                    self.local_written[at..at + total].fill(true);
                    for (index, value) in values.iter().enumerate().take(count) {
                        let from = at + index * access.bytes as usize;
                        let bytes = value.to_le_bytes();
                        self.local[from..from + access.bytes as usize].copy_from_slice(&bytes[..access.bytes as usize]);
                    }
                }
                _ => {
                    if strong && total >= 16 && line.as_ref().is_none_or(|&(at, _)| at != address / 128) {
                        drop(line.take());
                        line = Some((
                            address / 128,
                            memory.line(address).lock().unwrap_or_else(std::sync::PoisonError::into_inner),
                        ));
                    }
                    common.store_global(who, address, access.bytes, count, access.strength, &values)?;
                }
            }
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        common: &mut Common,
        kernel: &Kernel,
        constants: &[Lanes],
        access: &AtomicAccess,
        mask: u32,
        position: usize,
    ) -> Result<(), Stop> {
        let mut left = mask;
        while left != 0 {
            let lane = left.trailing_zeros() as usize & 31;
            left &= left - 1;
            let who = self.accessor(kernel, position, lane);
            let base = source(&self.registers, constants, access.address)[lane];
            let (space, address) = place(access.space, base.wrapping_add(access.offset as u64));
            let swap = access.swap.map_or(0, |swap| source(&self.registers, constants, swap)[lane]);
            for (index, &operand) in access.operands.iter().enumerate() {
                let a = source(&self.registers, constants, operand)[lane];
                let at = address.wrapping_add(index as u64 * u64::from(access.kind.bytes()));
                let next = |old| updated(access.update, access.kind, old, a, swap);
                let orders = (access.acquire, access.release);
                let old = match space {
                    Space::Shared => common.update_shared(who, at, access.kind, access.scope, orders, next)?,
                    Space::Global => common.update_global(who, at, access.kind, access.scope, orders, next)?,
                    _ => {
                        let detail = "atomic access to local memory or parameters".to_owned();
                        common.fault(FaultKind::Undefined, who.line, who.thread, Some(address), detail)?;
                        return Err(Stop);
                    }
                };
                if let Some(&d) = access.destinations.get(index)
                    && d != NO_GUARD
                {
                    self.registers[d as usize][lane] = old;
                }
            }
        }
        Ok(())
    }

    fn multimem(
        &mut self,
        common: &mut Common,
        kernel: &Kernel,
        constants: &[Lanes],
        access: &MultimemAccess,
        mask: u32,
        position: usize,
    ) -> Result<(), Stop> {
        let bytes = access.kind.bytes();
        let count = access.values.len();
        let mut left = mask;
        while left != 0 {
            let lane = left.trailing_zeros() as usize & 31;
            left &= left - 1;
            let who = Accessor { alias: true, ..self.accessor(kernel, position, lane) };
            let address = source(&self.registers, constants, access.address)[lane].wrapping_add(access.offset as u64);
            let members = common.multicast(who, address, bytes * count as u32)?;
            common.multimem_accesses += 1;
            let mut values = [0u64; 8];
            if access.action != MultimemAction::LoadReduce {
                for (value, &from) in values.iter_mut().zip(&access.values) {
                    *value = source(&self.registers, constants, Source(from))[lane] & mask_of(bytes);
                }
            }
            match access.action {
                MultimemAction::LoadReduce => {
                    let mut loaded = Vec::with_capacity(members.len());
                    for &member in &members {
                        let mut values = [0u64; 8];
                        common.load_global(who, member, bytes, count, access.strength, &mut values)?;
                        loaded.push(values);
                    }
                    for (index, &d) in access.values.iter().enumerate() {
                        let parts = loaded.iter().map(|values| values[index]);
                        self.registers[d as usize][lane] = reduced(access, parts);
                    }
                }
                MultimemAction::Store => {
                    for &member in &members {
                        common.store_global(who, member, bytes, count, access.strength, &values)?;
                    }
                }
                MultimemAction::Reduce => {
                    let (scope, release) = match access.strength {
                        Strength::Ordered(scope) => (scope, true),
                        Strength::Relaxed(scope) => (scope, false),
                        Strength::Weak => (crate::race::Scope::System, false),
                    };
                    for &member in &members {
                        for (index, &value) in values.iter().enumerate().take(count) {
                            let at = member + index as u64 * u64::from(bytes);
                            let next = |old| updated(access.update, access.kind, old, value, 0);
                            common.update_global(who, at, access.kind, scope, (false, release), next)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// The reduction of a multicast load, in the order of the members; with `.acc::f32` rounded once at the end.
fn reduced(access: &MultimemAccess, parts: impl Iterator<Item = u64>) -> u64 {
    use crate::arithmetic::float::{narrow_bf16, narrow_f16, widen_bf16, widen_f16};
    let brain = matches!(access.kind, Type::Bf16 | Type::Bf16x2);
    let narrow = brain || matches!(access.kind, Type::F16 | Type::F16x2);
    if !(narrow && access.wide && access.update == Update::Add) {
        return parts.reduce(|sum, part| updated(access.update, access.kind, sum, part, 0)).unwrap_or(0);
    }
    let widen = |bits: u64| if brain { widen_bf16(bits as u16) } else { widen_f16(bits as u16) };
    let (mut low, mut high) = (0f32, 0f32);
    for (index, part) in parts.enumerate() {
        let (a, b) = (widen(part), widen(part >> 16));
        (low, high) = if index == 0 { (a, b) } else { (low + a, high + b) };
    }
    let round = |value: f32| u64::from(if brain { narrow_bf16(value) } else { narrow_f16(value) });
    if access.kind.bytes() == 4 { round(low) | round(high) << 16 } else { round(low) }
}

fn base_of(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Parameter => PARAMETER_WINDOW,
        _ => 0,
    }
}

/// The state space of an address, and the address in it.
#[inline(always)]
fn place(space: Space, address: u64) -> (Space, u64) {
    match space {
        Space::Generic => match window(address) {
            SHARED_WINDOW => (Space::Shared, address - SHARED_WINDOW),
            LOCAL_WINDOW => (Space::Local, address - LOCAL_WINDOW),
            PARAMETER_WINDOW => (Space::Parameter, address - PARAMETER_WINDOW),
            _ => (Space::Global, address),
        },
        Space::Constant => (Space::Global, address),
        space => (space, address),
    }
}
