//! A thread block: its warps in turn, its barriers and its shared memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::access::{Cache, Shared};
use super::warp::{Fragment, Ran, Waiting, Warp};
use super::{Launched, Stop, StopReason};
use crate::fault::{Fault, FaultKind};
use crate::module::{BarrierVote, Op};
use crate::race::BlockClock;
use crate::types::WARP_THREADS;

/// Warp instructions that a block executes before another gets its worker.
const BLOCK_SLICE: u32 = 8192;

/// Warp instructions that a warp executes before another of its block goes on.
const WARP_SLICE: u32 = 1024;

/// Strong loads in a row that found nothing new, after which a block gives its slice back.
pub(super) const IDLE_POLLS_MAX: u32 = 6;

/// What a block's turn came to.
pub(crate) enum Outcome {
    Finished,
    /// Another turn is due; not before then, if a time is given.
    Again(Option<Instant>),
    Stopped,
}

/// One of a block's barriers.
#[derive(Clone, Debug, Default)]
pub(super) struct BarrierState {
    /// Lanes of each warp that have arrived; empty when nobody has.
    arrived: Vec<u32>,
    /// Those that only arrived and went on.
    passed: Vec<u32>,
    /// Where the first lanes of each warp arrived.
    positions: Vec<usize>,
    count: Option<u64>,
    votes_true: u32,
    votes: u32,
}

/// What the warps of a block share.
pub(super) struct Common {
    pub(super) launched: Arc<Launched>,
    pub(super) index: u64,
    pub(super) threads: u32,
    pub(super) shared: Shared,
    pub(super) cache: Cache,
    pub(super) clock: Option<Box<BlockClock>>,
    pub(super) barriers: Vec<BarrierState>,
    pub(super) idle_polls: u32,
    pub(super) instructions: u64,
    pub(super) warp_instructions: u64,
    pub(super) multimem_accesses: u64,
    pub(super) exited: u32,
    /// How long the links that this slice's accesses crossed take.
    pub(super) delay: Duration,
    /// Whether the store under way crosses a link that corrupts it.
    pub(super) corrupt_store: bool,
}

impl Common {
    pub(super) fn fault(
        &self,
        kind: FaultKind,
        line: u32,
        thread: u32,
        address: Option<u64>,
        detail: String,
    ) -> Result<(), Stop> {
        let place = self.launched.place(self.index, thread, line);
        self.launched.report(Fault { kind, place, address, detail, other: None })
    }
}

/// A block that has begun.
pub(crate) struct Block {
    common: Common,
    warps: Vec<Warp>,
}

impl Block {
    pub(crate) fn new(launched: Arc<Launched>, index: u64) -> Block {
        let threads = launched.block.volume() as u32;
        let clock = launched.races.then(|| {
            let block = launched.first_block + index as u32;
            let clock = BlockClock::new(block, launched.device as u8, threads as usize, launched.clock.clone());
            Box::new(clock.with_alias_fences(launched.registry.alias_fences.clone()))
        });
        let warps = (0..threads.div_ceil(32)).map(|warp| Warp::new(&launched, index, warp)).collect();
        let common = Common {
            index,
            threads,
            shared: Shared::new(launched.shared_bytes as usize, launched.races),
            cache: Cache::default(),
            clock,
            barriers: vec![BarrierState::default(); 17],
            idle_polls: 0,
            instructions: 0,
            warp_instructions: 0,
            multimem_accesses: 0,
            exited: 0,
            delay: Duration::ZERO,
            corrupt_store: false,
            launched,
        };
        Block { common, warps }
    }

    pub(crate) fn launched(&self) -> &Arc<Launched> {
        &self.common.launched
    }

    /// Executes a slice.
    pub(crate) fn run(&mut self) -> Outcome {
        let launched = self.common.launched.clone();
        if launched.deadline.is_some_and(|deadline| Instant::now() > deadline) {
            launched.stop(StopReason::Deadline);
        }
        if launched.is_stopped() {
            return Outcome::Stopped;
        }
        self.common.cache.refresh(&launched.memory);
        self.common.idle_polls = 0;
        let outcome = self.slice().unwrap_or(Outcome::Stopped);
        launched.warp_instructions.fetch_add(std::mem::take(&mut self.common.warp_instructions), Ordering::Relaxed);
        launched.multimem_accesses.fetch_add(std::mem::take(&mut self.common.multimem_accesses), Ordering::Relaxed);
        let added = std::mem::take(&mut self.common.instructions);
        if launched.instructions.fetch_add(added, Ordering::Relaxed) + added > launched.budget {
            launched.stop(StopReason::Budget);
        }
        if matches!(outcome, Outcome::Finished)
            && let Some(clock) = &mut self.common.clock
        {
            let knowledge = clock.knowledge();
            if !Arc::ptr_eq(&knowledge, &launched.clock) {
                launched.end.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clock.join(&knowledge);
            }
        }
        outcome
    }

    fn slice(&mut self) -> Result<Outcome, Stop> {
        let end = self.common.warp_instructions + u64::from(BLOCK_SLICE);
        // Near the end of its budget a launch is watched more closely.
        let budget = self.common.launched.budget;
        let left = budget.saturating_sub(self.common.launched.instructions.load(Ordering::Relaxed));
        let warp_slice = u32::try_from(left / WARP_THREADS as u64).map_or(WARP_SLICE, |left| left.clamp(1, WARP_SLICE));
        loop {
            let (mut progress, mut wake, mut live) = (false, None::<Instant>, false);
            for warp in &mut self.warps {
                match warp.run(&mut self.common, warp_slice)? {
                    Ran::Done => continue,
                    Ran::Progress => progress = true,
                    Ran::Blocked => {}
                    Ran::Asleep(until) => wake = Some(wake.map_or(until, |wake| wake.min(until))),
                }
                live = true;
                if self.common.exited > 0 || !progress {
                    // Cheap enough to look at each time; arrivals themselves are looked at below.
                }
            }
            if !live {
                return Ok(Outcome::Finished);
            }
            if self.complete_barriers()? {
                progress = true;
            }
            if !progress {
                if wake.is_some() {
                    return Ok(Outcome::Again(wake));
                }
                self.report_deadlock()?;
            }
            if !self.common.delay.is_zero() {
                let late = Instant::now() + std::mem::take(&mut self.common.delay);
                return Ok(Outcome::Again(Some(wake.map_or(late, |wake| wake.max(late)))));
            }
            if self.common.warp_instructions >= end
                || self.common.instructions > left
                || self.common.idle_polls > IDLE_POLLS_MAX
            {
                return Ok(Outcome::Again(None));
            }
        }
    }

    /// Lets go those who wait at barriers at which all have arrived.
    fn complete_barriers(&mut self) -> Result<bool, Stop> {
        let mut any = false;
        for id in 0..self.common.barriers.len() {
            let barrier = &self.common.barriers[id];
            if barrier.arrived.is_empty() {
                continue;
            }
            let arrived: u32 = barrier.arrived.iter().chain(&barrier.passed).map(|lanes| lanes.count_ones()).sum();
            let expected = match barrier.count {
                Some(count) => count,
                None => u64::from(self.common.threads - self.common.exited),
            };
            if u64::from(arrived) < expected {
                continue;
            }
            let state = std::mem::take(&mut self.common.barriers[id]);
            if u64::from(arrived) > expected || (state.count.is_none() && self.common.exited > 0) {
                let (line, thread) = self.first_waiting(&state);
                let exited = self.common.exited;
                let detail = if exited > 0 && state.count.is_none() {
                    format!(
                        "barrier {id}, to which {exited} of the block's {} threads do not come: they have exited",
                        self.common.threads
                    )
                } else {
                    format!("barrier {id} for {expected} threads, at which {arrived} arrive")
                };
                self.common.fault(FaultKind::DivergentBarrier, line, thread, None, detail)?;
            }
            self.release(id, state);
            any = true;
        }
        Ok(any)
    }

    fn first_waiting(&self, state: &BarrierState) -> (u32, u32) {
        let warp = state.arrived.iter().position(|&lanes| lanes != 0).unwrap_or(0);
        let lanes = state.arrived.get(warp).copied().unwrap_or(1);
        let position = state.positions.get(warp).copied().unwrap_or(0);
        let line = self.common.launched.kernel.code.get(position).map_or(0, |instr| instr.line);
        (line, warp as u32 * 32 + lanes.trailing_zeros().min(31))
    }

    fn release(&mut self, id: usize, state: BarrierState) {
        if let Some(clock) = &mut self.common.clock {
            let all: u32 = state.arrived.iter().map(|lanes| lanes.count_ones()).sum();
            if all == self.common.threads {
                clock.barrier_all();
            } else {
                let threads = |masks: &[u32]| {
                    let lanes = |(warp, &mask): (usize, &u32)| {
                        (0..32).filter(move |lane| mask >> lane & 1 != 0).map(move |lane| (warp * 32 + lane) as u16)
                    };
                    masks.iter().enumerate().flat_map(lanes).collect::<Vec<u16>>()
                };
                let to = threads(&state.arrived);
                let mut from = to.clone();
                from.extend(threads(&state.passed));
                clock.barrier_some(&from, &to);
            }
        }
        let kernel = self.common.launched.kernel.clone();
        for warp in &mut self.warps {
            for at in 0..warp.fragments.len() {
                let Fragment { position, lanes, waiting, .. } = warp.fragments[at];
                if waiting != Waiting::Barrier(id as u32) {
                    continue;
                }
                if let Op::Barrier(barrier) = &kernel.code[position].op {
                    let (d, value) = match barrier.vote {
                        BarrierVote::None => (None, 0),
                        BarrierVote::And(d, ..) => (Some(d), u64::from(state.votes_true == state.votes)),
                        BarrierVote::Or(d, ..) => (Some(d), u64::from(state.votes_true > 0)),
                        BarrierVote::Count(d, ..) => (Some(d), u64::from(state.votes_true)),
                    };
                    if let Some(d) = d {
                        crate::arithmetic::each(lanes, |lane| warp.registers[d as usize][lane] = value);
                    }
                }
                warp.fragments[at].position = position + 1;
                warp.fragments[at].waiting = Waiting::No;
            }
        }
    }

    /// Nobody can go on, and nobody will be woken.
    fn report_deadlock(&mut self) -> Result<(), Stop> {
        let code = &self.common.launched.kernel.code;
        let mut waiting =
            self.warps.iter().flat_map(|warp| warp.fragments.iter().map(move |fragment| (warp, fragment)));
        let Some((warp, fragment)) = waiting.next() else { return Ok(()) };
        let line = code.get(fragment.position).map_or(0, |instr| instr.line);
        let thread = warp.index * WARP_THREADS as u32 + fragment.lanes.trailing_zeros();
        let elsewhere =
            waiting.find(|(_, other)| other.position != fragment.position || other.waiting != fragment.waiting);
        let rest = match elsewhere {
            Some((warp, other)) => {
                let line = code.get(other.position).map_or(0, |instr| instr.line);
                let thread = warp.index * WARP_THREADS as u32 + other.lanes.trailing_zeros();
                format!(
                    "thread {} waits at line {line} meanwhile",
                    self.common.launched.block.coordinate(thread.into())
                )
            }
            None => format!("{} threads of the block have exited", self.common.exited),
        };
        match fragment.waiting {
            Waiting::Barrier(id) => {
                let detail = format!("barrier {id}, to which not all threads of the block come: {rest}");
                self.common.fault(FaultKind::DivergentBarrier, line, thread, None, detail)
            }
            _ => {
                let detail = format!("waits for members of its warp that do not come: {rest}");
                self.common.fault(FaultKind::DivergentWarp, line, thread, None, detail)
            }
        }
    }
}

impl Common {
    /// Lanes of a warp arrive at a barrier.
    #[expect(clippy::too_many_arguments, reason = "all of it is the arrival")]
    pub(super) fn arrive(
        &mut self,
        warp: u32,
        lanes: u32,
        position: usize,
        id: u64,
        count: Option<u64>,
        waits: bool,
        aligned: bool,
        votes_true: u32,
    ) -> Result<(), Stop> {
        let line = self.launched.kernel.code[position].line;
        let thread = warp * 32 + lanes.trailing_zeros();
        let warps = self.threads.div_ceil(32) as usize;
        if id >= self.barriers.len() as u64 {
            let detail = format!("barrier {id} of 16");
            return self.fault(FaultKind::Undefined, line, thread, None, detail);
        }
        let barrier = &mut self.barriers[id as usize];
        if barrier.arrived.is_empty() {
            barrier.arrived = vec![0; warps];
            barrier.passed = vec![0; warps];
            barrier.positions = vec![usize::MAX; warps];
            barrier.count = count;
        }
        let (first, before) = (barrier.positions[warp as usize], barrier.count);
        if before != count {
            let name = |count: Option<u64>| count.map_or("all".to_owned(), |count| count.to_string());
            let detail = format!("barrier {id} for {} threads, at which others wait for {}", name(count), name(before));
            return self.fault(FaultKind::DivergentBarrier, line, thread, None, detail);
        }
        if aligned && first != usize::MAX && first != position {
            let other = self.launched.kernel.code[first].line;
            let detail = format!("barrier {id}, at which other threads of the warp have arrived at line {other}");
            return self.fault(FaultKind::DivergentBarrier, line, thread, None, detail);
        }
        barrier.positions[warp as usize] = position;
        let set = if waits { &mut barrier.arrived } else { &mut barrier.passed };
        set[warp as usize] |= lanes;
        barrier.votes += lanes.count_ones();
        barrier.votes_true += votes_true;
        Ok(())
    }
}
