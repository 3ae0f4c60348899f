//! Changes right plans and asks the verifier.
//!
//! Two promises are held against each other. A change that is wrong whatever the plan (a dropped step, a doubled
//! source, a missing scale, …) is found. And of any change at all, however senseless: what the verifier calls right
//! gives the right numbers when it is executed, step by step in a random order, with as many slots as claimed or
//! more, out of place and in place.

use std::cell::Cell;
use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;
use tutti::plan::verify::{MAX_VIOLATIONS, buffer_bytes, verify};
use tutti::plan::{
    After, Algorithm, Buffer, Collective, ConnectionId, Geometry, Operand, Plan, ProgramId, Rank, Source, Step, StepId,
    build,
};

const ELEMENT_BYTES: u32 = 8;

/// What numbers are multiplied by when they enter a reduction and when it is complete: odd, so that nothing is lost,
/// and applying one twice, or not at all, shows.
const SCALE: u64 = 0x9e37_79b9_7f4a_7c15;
const FINISH: u64 = 0xc2b2_ae3d_27d4_eb4f;

/// A random generator for the schedule (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// The number at an index of a rank's input.
fn number(rank: usize, index: usize) -> u64 {
    Random((rank as u64) << 32 | index as u64).next()
}

/// One rank's buffers; in place, input and output are parts of the same one.
struct RankMemory {
    storage: Vec<Vec<u64>>,
    /// Of input, output and scratch: which storage, and where in it.
    views: [(usize, usize); 3],
}

impl RankMemory {
    fn new(plan: &Plan, rank: usize, in_place: bool) -> Self {
        let elements = |buffer| (buffer_bytes(plan, Rank(rank as u32), buffer) / u64::from(ELEMENT_BYTES)) as usize;
        let [input, output] = [Buffer::Input, Buffer::Output].map(elements);
        let scratch =
            buffer_bytes(plan, Rank(rank as u32), Buffer::Scratch).div_ceil(u64::from(ELEMENT_BYTES)) as usize;
        let numbers: Vec<_> = (0..input).map(|index| number(rank, index)).collect();
        let junk = |length| vec![0xdead_dead_dead_dead; length];
        let shares = match plan.collective {
            Collective::Reduce { root } => root.index() == rank,
            Collective::Barrier => false,
            _ => true,
        };
        if !(in_place && shares) {
            return RankMemory { storage: vec![numbers, junk(output), junk(scratch)], views: [(0, 0), (1, 0), (2, 0)] };
        }
        let (mut shared, mut views) = (junk(input.max(output)), [(0, 0), (0, 0), (1, 0)]);
        if input > output {
            views[1].1 = rank * output;
        } else if output > input {
            // The root's output is as long as its input, and the others have no input to place.
            views[0].1 = if plan.collective == Collective::AllGather { rank * input } else { 0 };
        }
        shared[views[0].1..][..input].copy_from_slice(&numbers);
        RankMemory { storage: vec![shared, junk(scratch)], views }
    }

    fn at(&mut self, buffer: Buffer, index: usize) -> &mut u64 {
        let (storage, start) = self.views[buffer as usize];
        &mut self.storage[storage][start + index]
    }
}

struct ProgramState {
    rank: usize,
    program: usize,
    loop_index: usize,
    iteration: u64,
    step_index: usize,
    /// Of each step, how often it has run.
    completed: Vec<u64>,
}

/// Executes a plan that the verifier calls right, and answers the outputs; or says where it got stuck.
fn execute(plan: &Plan, in_place: bool, more_slots: u32, seed: u64) -> Result<Vec<Vec<u64>>, String> {
    let plan = &*plan.without_multicast();
    let mut random = Random(seed);
    let mut memories: Vec<_> = (0..plan.ranks.len()).map(|rank| RankMemory::new(plan, rank, in_place)).collect();
    let mut slots = vec![VecDeque::<Vec<u64>>::new(); plan.connections.len()];
    let mut programs = Vec::new();
    for (rank, rank_plan) in plan.ranks.iter().enumerate() {
        for (program, loops) in rank_plan.programs.iter().enumerate() {
            let step_count = loops.loops.iter().map(|looped| looped.steps.len()).sum();
            let completed = vec![0; step_count];
            programs.push(ProgramState { rank, program, loop_index: 0, iteration: 0, step_index: 0, completed });
        }
    }
    loop {
        // All that can fire now.
        let ready: Vec<_> =
            (0..programs.len()).filter(|at| is_ready(plan, &programs, *at, &slots, more_slots)).collect();
        if ready.is_empty() {
            break;
        }
        let state = &mut programs[ready[random.below(ready.len())]];
        let loops = &plan.ranks[state.rank].programs[state.program].loops;
        let looped = &loops[state.loop_index];
        let step = &looped.steps[state.step_index];
        let chunk_bytes = u64::from(looped.chunk_bytes);
        let begin = (state.iteration * chunk_bytes).min(step.bytes);
        let length = (chunk_bytes.min(step.bytes - begin) / u64::from(ELEMENT_BYTES)) as usize;
        fire(step, state.rank, begin, length, &mut memories, &mut slots)?;
        let step_id: usize =
            loops[..state.loop_index].iter().map(|looped| looped.steps.len()).sum::<usize>() + state.step_index;
        state.completed[step_id] += 1;
        state.step_index += 1;
        if state.step_index == looped.steps.len() {
            state.step_index = 0;
            state.iteration += 1;
        }
        if state.iteration == looped.iterations {
            state.iteration = 0;
            state.loop_index += 1;
        }
    }
    if programs.iter().any(|state| state.loop_index < plan.ranks[state.rank].programs[state.program].loops.len()) {
        return Err("stuck".to_owned());
    }
    if slots.iter().any(|slots| !slots.is_empty()) {
        return Err("slots are left".to_owned());
    }
    let output = |rank: usize| {
        let elements = (buffer_bytes(plan, Rank(rank as u32), Buffer::Output) / u64::from(ELEMENT_BYTES)) as usize;
        (0..elements).map(|index| *memories[rank].at(Buffer::Output, index)).collect()
    };
    Ok((0..plan.ranks.len()).map(output).collect())
}

fn is_ready(plan: &Plan, programs: &[ProgramState], at: usize, slots: &[VecDeque<Vec<u64>>], more_slots: u32) -> bool {
    let state = &programs[at];
    let loops = &plan.ranks[state.rank].programs[state.program].loops;
    let Some(looped) = loops.get(state.loop_index) else { return false };
    let step = &looped.steps[state.step_index];
    let full = |source: &Source| !matches!(source.operand, Operand::Slot(id) if slots[id.index()].is_empty());
    let room = |destination: &Operand| match destination {
        Operand::Slot(id) => {
            slots[id.index()].len() < plan.connections[id.index()].slots.saturating_add(more_slots) as usize
        }
        _ => true,
    };
    let complete = |after: After| {
        let target = programs.iter().find(|other| other.rank == state.rank && other.program == after.program.index());
        target.is_some_and(|target| target.completed[after.step.index()] > state.iteration)
    };
    step.sources.iter().all(full) && step.destinations.iter().all(room) && step.after.is_none_or(complete)
}

fn fire(
    step: &Step,
    rank: usize,
    begin: u64,
    length: usize,
    memories: &mut [RankMemory],
    slots: &mut [VecDeque<Vec<u64>>],
) -> Result<(), String> {
    let first = |offset: u64| ((offset + begin) / u64::from(ELEMENT_BYTES)) as usize;
    let mut result = vec![0_u64; length];
    for Source { operand, scale } in &step.sources {
        let numbers: Vec<u64> = match *operand {
            Operand::Slot(id) => slots[id.index()].pop_front().ok_or("an empty slot")?,
            _ if length == 0 => Vec::new(),
            Operand::Local { buffer, offset } => {
                (0..length).map(|index| *memories[rank].at(buffer, first(offset) + index)).collect()
            }
            Operand::Window { rank, buffer, offset } => {
                (0..length).map(|index| *memories[rank.index()].at(buffer, first(offset) + index)).collect()
            }
            Operand::Multicast { .. } => unreachable!("the plan is without multicast operands"),
        };
        if numbers.len() != length {
            return Err("a slot of another length".to_owned());
        }
        for (result, number) in result.iter_mut().zip(numbers) {
            *result = result.wrapping_add(if *scale { number.wrapping_mul(SCALE) } else { number });
        }
    }
    if step.finish {
        result.iter_mut().for_each(|result| *result = result.wrapping_mul(FINISH));
    }
    for destination in &step.destinations {
        let (rank, buffer, offset) = match *destination {
            Operand::Slot(id) => {
                slots[id.index()].push_back(result.clone());
                continue;
            }
            Operand::Local { buffer, offset } => (rank, buffer, offset),
            Operand::Window { rank, buffer, offset } => (rank.index(), buffer, offset),
            Operand::Multicast { .. } => unreachable!("the plan is without multicast operands"),
        };
        for (index, number) in result.iter().enumerate() {
            *memories[rank].at(buffer, first(offset) + index) = *number;
        }
    }
    Ok(())
}

/// What the ranks should end up with.
fn expected(plan: &Plan) -> Vec<Vec<u64>> {
    let (ranks, count) = (plan.ranks.len(), plan.count as usize);
    let reduced = |index: usize| {
        let scaled = (0..ranks).map(|rank| number(rank, index).wrapping_mul(SCALE));
        scaled.fold(0, u64::wrapping_add).wrapping_mul(FINISH)
    };
    let output = |rank: usize| -> Vec<u64> {
        match plan.collective {
            Collective::AllReduce => (0..count).map(reduced).collect(),
            Collective::ReduceScatter => (rank * count..(rank + 1) * count).map(reduced).collect(),
            Collective::AllGather => {
                (0..ranks).flat_map(|from| (0..count).map(move |index| number(from, index))).collect()
            }
            Collective::Broadcast { root } => (0..count).map(|index| number(root.index(), index)).collect(),
            Collective::Reduce { root } if root.index() == rank => (0..count).map(reduced).collect(),
            Collective::Reduce { .. } | Collective::Barrier => Vec::new(),
        }
    };
    (0..ranks).map(output).collect()
}

/// The verifier's word, held against executions.
fn assert_word_is_kept(plan: &Plan, seed: u64) {
    for (run, in_place) in [false, true, false, true].into_iter().enumerate() {
        let more_slots = if run < 2 { 0 } else { 3 };
        let outputs = execute(plan, in_place, more_slots, seed.wrapping_add(run as u64));
        assert_eq!(outputs, Ok(expected(plan)), "in place: {in_place}, slots more than claimed: {more_slots}\n{plan}");
    }
}

fn right_plan() -> impl Strategy<Value = Plan> {
    let shape = (0..6_usize, any::<Index>(), 2..=5_usize, any::<Index>(), 0..40_u64);
    (shape, prop_oneof![Just(8_u32), Just(64), Just(65536)], 1..=4_u32).prop_map(
        |((kind, algorithm, rank_count, root, count), slot_bytes, slots)| {
            let root = Rank(root.index(rank_count) as u32);
            let collective = [
                Collective::AllReduce,
                Collective::AllReduce,
                Collective::ReduceScatter,
                Collective::AllGather,
                Collective::Broadcast { root },
                Collective::Reduce { root },
            ][kind];
            let offering: Vec<_> =
                Algorithm::ALL.into_iter().filter(|algorithm| algorithm.offers(collective)).collect();
            let algorithm = offering[algorithm.index(offering.len())];
            // Some algorithms need two slots.
            let build =
                |slots| build(collective, algorithm, rank_count, count, ELEMENT_BYTES, &Geometry { slot_bytes, slots });
            build(slots).or_else(|_| build(slots + 1)).expect("the plan can be built")
        },
    )
}

/// All steps of a plan: rank, program, loop, step in the loop.
fn steps(plan: &Plan) -> Vec<[usize; 4]> {
    let mut steps = Vec::new();
    for (rank, rank_plan) in plan.ranks.iter().enumerate() {
        for (program, loops) in rank_plan.programs.iter().enumerate() {
            for (looped, loop_steps) in loops.loops.iter().enumerate() {
                steps.extend((0..loop_steps.steps.len()).map(|step| [rank, program, looped, step]));
            }
        }
    }
    steps
}

fn step_mut(plan: &mut Plan, [rank, program, looped, step]: [usize; 4]) -> &mut Step {
    &mut plan.ranks[rank].programs[program].loops[looped].steps[step]
}

/// Changes that are wrong whatever the step.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    DropStep,
    DropSource,
    DropDestination,
    DoubleSource,
    DropScale,
    AddScale,
    DropFinish,
    AddFinish,
    MoveSource,
    MoveDestination,
    HalveBytes,
}

const WRONGS: [Wrong; 11] = [
    Wrong::DropStep,
    Wrong::DropSource,
    Wrong::DropDestination,
    Wrong::DoubleSource,
    Wrong::DropScale,
    Wrong::AddScale,
    Wrong::DropFinish,
    Wrong::AddFinish,
    Wrong::MoveSource,
    Wrong::MoveDestination,
    Wrong::HalveBytes,
];

/// Makes the change to one step; whether that step could be so changed.
fn make_wrong(plan: &mut Plan, at: [usize; 4], wrong: Wrong, choice: Index) -> bool {
    let reduces = plan.collective.reduces();
    let step = step_mut(plan, at);
    // A step that moves nothing but slots is about the slots; one that moves nothing at all is about nothing.
    let moves = step.bytes > 0;
    let is_slot = |operand: &Operand| matches!(operand, Operand::Slot(_));
    let source = choice.index(step.sources.len());
    let destination = choice.index(step.destinations.len());
    let shift = |operand: &mut Operand| match operand {
        Operand::Local { offset, .. } | Operand::Window { offset, .. } | Operand::Multicast { offset, .. } => {
            *offset += u64::from(ELEMENT_BYTES);
            true
        }
        Operand::Slot(_) => false,
    };
    match wrong {
        Wrong::DropStep => {
            let used = moves
                || step.sources.iter().any(|source| is_slot(&source.operand))
                || step.destinations.iter().any(is_slot);
            plan.ranks[at[0]].programs[at[1]].loops[at[2]].steps.remove(at[3]);
            used
        }
        Wrong::DropSource => {
            let dropped = step.sources.remove(source);
            moves || is_slot(&dropped.operand)
        }
        Wrong::DropDestination => {
            let dropped = step.destinations.remove(destination);
            moves || is_slot(&dropped)
        }
        Wrong::DoubleSource => {
            let doubled = step.sources[source];
            step.sources.push(doubled);
            moves || is_slot(&doubled.operand)
        }
        Wrong::DropScale => std::mem::replace(&mut step.sources[source].scale, false) && moves,
        Wrong::AddScale => !std::mem::replace(&mut step.sources[source].scale, true) && moves && reduces,
        Wrong::DropFinish => std::mem::replace(&mut step.finish, false) && moves,
        Wrong::AddFinish => !std::mem::replace(&mut step.finish, true) && moves && reduces,
        Wrong::MoveSource => shift(&mut step.sources[source].operand) && moves,
        Wrong::MoveDestination => shift(&mut step.destinations[destination]) && moves,
        Wrong::HalveBytes => {
            step.bytes = step.bytes / 2 / u64::from(ELEMENT_BYTES) * u64::from(ELEMENT_BYTES);
            moves
        }
    }
}

/// Any change.
#[derive(Clone, Copy, Debug)]
struct Change {
    kind: u8,
    step: Index,
    other: Index,
    number: u64,
}

fn change() -> impl Strategy<Value = Change> {
    let number = prop_oneof![0..4_u64, (0..64_u64).prop_map(|number| number * 8), Just(u64::MAX), any::<u64>()];
    (0..18_u8, any::<Index>(), any::<Index>(), number).prop_map(|(kind, step, other, number)| Change {
        kind,
        step,
        other,
        number,
    })
}

fn make_change(plan: &mut Plan, Change { kind, step, other, number }: Change) {
    let places = steps(plan);
    if places.is_empty() {
        return;
    }
    let [rank, program, looped, index] = places[step.index(places.len())];
    let at = [rank, program, looped, index];
    let other_step = step_mut(plan, places[other.index(places.len())]).clone();
    let connection_count = plan.connections.len();
    let loops = &mut plan.ranks[rank].programs[program].loops;
    let the_loop = &mut loops[looped];
    let operand = |operand: &mut Operand| match operand {
        Operand::Local { offset, .. } | Operand::Window { offset, .. } | Operand::Multicast { offset, .. } => {
            *offset = number
        }
        Operand::Slot(id) => *id = ConnectionId(number as u32),
    };
    match kind {
        0 => the_loop.iterations = number,
        1 => the_loop.chunk_bytes = number as u32,
        2 => {
            let other = other.index(the_loop.steps.len());
            the_loop.steps.swap(index, other);
        }
        3 => {
            let looped = loops.remove(looped);
            loops.push(looped);
        }
        4 if connection_count > 0 => plan.connections[other.index(connection_count)].slots = number as u32,
        5 if connection_count > 0 => plan.connections[other.index(connection_count)].slot_bytes = number as u32,
        6 if connection_count > 0 => plan.connections[other.index(connection_count)].from = Rank(number as u32),
        7 => the_loop.steps[index] = other_step,
        8 => the_loop.steps.insert(index, other_step),
        _ => {
            let step = step_mut(plan, at);
            let (sources, destinations) = (step.sources.len(), step.destinations.len());
            match kind {
                9 => step.bytes = number,
                10 if sources > 0 => step.sources.reverse(),
                11 if destinations > 0 => step.destinations.rotate_left(1),
                12 if sources > 0 => operand(&mut step.sources[other.index(sources)].operand),
                13 if destinations > 0 => operand(&mut step.destinations[other.index(destinations)]),
                14 => step.destinations.extend(other_step.destinations),
                15 => step.sources = other_step.sources,
                16 => {
                    step.after = Some(After { program: ProgramId(number as u32), step: StepId(other.index(4) as u32) })
                }
                _ => step.finish = !step.finish,
            }
        }
    }
}

/// The first step that can be made wrong this way, from `step` on, is; or else another way is tried.
fn wrong_plan(plan: &Plan, step: Index, wrong: Index, choice: Index) -> (Wrong, Plan) {
    let places = steps(plan);
    let rotated = |length: usize, index: Index| (0..length).map(move |offset| (index.index(length) + offset) % length);
    for wrong in rotated(WRONGS.len(), wrong).map(|index| WRONGS[index]) {
        for at in rotated(places.len(), step).map(|index| places[index]) {
            let mut wrong_plan = plan.clone();
            if make_wrong(&mut wrong_plan, at, wrong, choice) {
                return (wrong, wrong_plan);
            }
        }
    }
    panic!("no step can be made wrong:\n{plan}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_wrong_step_is_found_in_any_plan(plan in right_plan(), step: Index, wrong: Index, choice: Index) {
        prop_assert!(verify(&plan).is_ok());
        let (wrong, wrong_plan) = wrong_plan(&plan, step, wrong, choice);
        prop_assert!(verify(&wrong_plan).is_err(), "{wrong:?}\n{plan}\n{wrong_plan}");
    }
}

#[test]
fn what_is_called_right_gives_the_right_numbers_in_any_order() {
    let changed_and_right = Cell::new(0);
    let strategy = (right_plan(), prop::collection::vec(change(), 0..3), any::<u64>());
    let mut runner = TestRunner::new(ProptestConfig::with_cases(3000));
    let result = runner.run(&strategy, |(right, changes, seed)| {
        let mut plan = right.clone();
        for change in changes {
            make_change(&mut plan, change);
        }
        match verify(&plan) {
            Ok(_) => {
                changed_and_right.set(changed_and_right.get() + usize::from(plan != right));
                assert_word_is_kept(&plan, seed);
            }
            Err(violations) => {
                prop_assert!((1..=MAX_VIOLATIONS + 1).contains(&violations.len()));
                violations.iter().for_each(|violation| assert!(!violation.to_string().is_empty()));
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    // Otherwise the test would say nothing about plans that no algorithm makes.
    assert!(changed_and_right.get() > 100, "{} changed plans were right", changed_and_right.get());
}
