//! Every algorithm's plans, held against the words of the plan types' documentation and run by a slow, obvious interpreter.
//!
//! The verifier proves more; this file stands without it, so that the two can disagree.

use std::collections::{HashMap, VecDeque};

use super::*;

/// Small slots, so that small counts already take several chunks.
const SMALL_SLOTS: Geometry = Geometry { slot_bytes: 100, slots: 2 };

/// Enough of them that blocks of several chunks go in parts.
const SMALL_SLOTS_ENOUGH: Geometry = Geometry { slot_bytes: 100, slots: 3 };

/// Every algorithm, collective and root, for 1 to 9 ranks and the counts around every boundary.
fn for_each_plan(geometry: &Geometry, mut check: impl FnMut(&Plan)) {
    for rank_count in 1..=9_u32 {
        for algorithm in Algorithm::ALL {
            for collective in algorithm.collectives() {
                let roots = if collective.root().is_some() { rank_count } else { 1 };
                for root in (0..roots).map(Rank) {
                    let n = u64::from(rank_count);
                    for count in [0, 1, n - 1, n, n + 1, 15, 16 * n - 1, 16 * n, 16 * n + 1, 33 * n + 7, 250] {
                        for element_bytes in [1, 2, 4, 12] {
                            let collective = collective.with_root(root);
                            let rank_count = rank_count as usize;
                            for orders in [Vec::new(), orders(rank_count)] {
                                if !orders.is_empty() && !algorithm.takes_orders() {
                                    continue;
                                }
                                let plan = build_in_orders(
                                    collective,
                                    algorithm,
                                    rank_count,
                                    count,
                                    element_bytes,
                                    geometry,
                                    &orders,
                                );
                                check(&plan.unwrap_or_else(|error| panic!("{algorithm} {collective}: {error}")));
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Three channels: in the ranks' order, the other way round, and by an odd step over the ranks.
fn orders(rank_count: usize) -> Vec<Vec<Rank>> {
    let ranks = rank_count as u32;
    let jumps = (0..ranks).filter(|rank| rank % 2 == 0).chain((0..ranks).filter(|rank| rank % 2 == 1));
    vec![(0..ranks).map(Rank).collect(), (0..ranks).rev().map(Rank).collect(), jumps.map(Rank).collect()]
}

/// The steps of one rank, each with its program and its loop.
fn steps(rank: &RankPlan) -> impl Iterator<Item = (usize, &Loop, &Step)> {
    rank.programs.iter().enumerate().flat_map(|(program, Program { loops })| {
        loops.iter().flat_map(move |each| each.steps.iter().map(move |step| (program, each, step)))
    })
}

fn operands(step: &Step) -> impl Iterator<Item = Operand> {
    step.sources.iter().map(|source| source.operand).chain(step.destinations.iter().copied())
}

#[test]
fn every_plan_keeps_to_what_its_types_promise() {
    for geometry in [SMALL_SLOTS, SMALL_SLOTS_ENOUGH, Geometry::default()] {
        for_each_plan(&geometry, |plan| {
            for (rank, rank_plan) in plan.ranks.iter().enumerate() {
                assert_eq!(rank_plan.scratch_bytes, 0, "no algorithm needs scratch yet");
                assert!(rank_plan.programs.iter().all(|program| !program.loops.is_empty()));
                for each in rank_plan.programs.iter().flat_map(|program| &program.loops) {
                    let bytes_max = each.steps.iter().map(|step| step.bytes).max().expect("a loop has a step");
                    assert!(each.chunk_bytes > 0 && each.chunk_bytes.is_multiple_of(plan.element_bytes));
                    let iterations = bytes_max.div_ceil(u64::from(each.chunk_bytes)).max(1);
                    // What is cut at the end of the buffer takes as many turns as what is not.
                    assert!(
                        each.iterations == iterations
                            || each.iterations > iterations && plan.algorithm == Algorithm::Bruck
                    );
                }
                for (_, each, step) in steps(rank_plan) {
                    assert!(step.bytes.is_multiple_of(u64::from(plan.element_bytes)));
                    assert!(!step.sources.is_empty() && !step.destinations.is_empty());
                    let slot_chunk_bytes = step.bytes.min(u64::from(each.chunk_bytes));
                    for operand in operands(step) {
                        match operand {
                            Operand::Slot(id) => {
                                assert!(each.chunk_bytes <= geometry.slot_bytes || step.bytes == 0);
                                assert!(slot_chunk_bytes <= u64::from(plan.connections[id.index()].slot_bytes));
                            }
                            Operand::Window { rank: peer, .. } => {
                                assert_ne!(peer.index(), rank, "own memory is never a window");
                                assert!(plan.algorithm.needs_windows());
                            }
                            Operand::Multicast { .. } => {
                                assert_eq!((step.sources.len(), step.destinations.len()), (1, 1));
                                assert_eq!(plan.algorithm, Algorithm::Nvls);
                            }
                            Operand::Local { .. } => {}
                        }
                    }
                }
            }
        });
    }
}

#[test]
fn every_connection_has_one_producing_and_one_consuming_program_and_no_more_room_than_it_uses() {
    for_each_plan(&SMALL_SLOTS, |plan| {
        let mut producers = vec![Vec::new(); plan.connections.len()];
        let mut consumers = producers.clone();
        let mut largest = vec![0; plan.connections.len()];
        for (rank, rank_plan) in plan.ranks.iter().enumerate() {
            for (program, each, step) in steps(rank_plan) {
                for source in &step.sources {
                    if let Operand::Slot(id) = source.operand {
                        consumers[id.index()].push((rank, program));
                    }
                }
                for destination in &step.destinations {
                    if let Operand::Slot(id) = *destination {
                        producers[id.index()].push((rank, program));
                        largest[id.index()] = step.bytes.min(u64::from(each.chunk_bytes)).max(largest[id.index()]);
                    }
                }
            }
        }
        for (index, connection) in plan.connections.iter().enumerate() {
            assert_ne!(connection.from, connection.to);
            for (programs, end) in [(&mut producers[index], connection.from), (&mut consumers[index], connection.to)] {
                programs.dedup();
                assert_eq!(programs.len(), 1, "c{index} of {plan}");
                assert_eq!(programs[0].0, end.index());
            }
            assert!((1..=SMALL_SLOTS.slots).contains(&connection.slots));
            assert_eq!(u64::from(connection.slot_bytes), largest[index]);
        }
        for rank in 0..plan.rank_count() {
            let joins = |connection: &Connection| connection.from.index() == rank || connection.to.index() == rank;
            assert!(plan.rank_count() == 1 || plan.connections.iter().any(joins), "r{rank} cannot notice a mismatch");
        }
    });
}

#[test]
fn every_plan_sends_as_many_bytes_as_the_literature_says() {
    for_each_plan(&SMALL_SLOTS_ENOUGH, |plan| {
        let plan = &*plan.without_multicast();
        let mut sent = vec![0; plan.rank_count()];
        for (rank, rank_plan) in plan.ranks.iter().enumerate() {
            for (_, _, step) in steps(rank_plan) {
                for source in &step.sources {
                    if let Operand::Window { rank: peer, .. } = source.operand {
                        sent[peer.index()] += step.bytes;
                    }
                }
                let leave = |operand: &&Operand| !matches!(operand, Operand::Local { .. });
                sent[rank] += step.bytes * step.destinations.iter().filter(leave).count() as u64;
            }
        }
        assert_eq!(published_bytes(plan).as_ref(), Ok(&sent), "{plan}");
    });
}

#[test]
fn an_all_reduce_of_equal_blocks_sends_two_n_minus_one_nths_of_the_data() {
    for algorithm in [Algorithm::Ring, Algorithm::Direct] {
        for n in 2..=9_u64 {
            let count = 16 * n * 5;
            let plan = build(Collective::AllReduce, algorithm, n as usize, count, 4, &Geometry::default()).unwrap();
            assert_eq!(published_bytes(&plan), Ok(vec![2 * (n - 1) * count * 4 / n; n as usize]));
        }
    }
}

#[test]
fn published_bytes_of_a_plan_that_cannot_be_is_a_typed_error() {
    let mut plan = build(Collective::AllReduce, Algorithm::Ring, 2, 1, 4, &Geometry::default()).unwrap();
    plan.count = u64::MAX;
    assert!(matches!(published_bytes(&plan), Err(PlanError::TooManyBytes { .. })));
    plan.algorithm = Algorithm::Chain;
    assert!(matches!(published_bytes(&plan), Err(PlanError::NotOffered { .. })));
    plan.ranks.clear();
    assert_eq!(published_bytes(&plan), Err(PlanError::NoRanks));
}

#[test]
fn every_plan_reads_back_from_its_text() {
    for_each_plan(&SMALL_SLOTS, |plan| assert_eq!(text::parse(&text::write(plan)).as_ref(), Ok(plan)));
}

#[test]
fn digests_are_equal_for_equal_plans_and_differ_for_different_ones() {
    let mut plans: HashMap<u64, Plan> = HashMap::new();
    for geometry in [SMALL_SLOTS, SMALL_SLOTS_ENOUGH, Geometry::default()] {
        for_each_plan(&geometry, |plan| {
            let known = plans.entry(plan.digest()).or_insert_with(|| plan.clone());
            assert!(known == plan, "one digest for\n{known}\nand\n{plan}");
        });
    }
    assert!(plans.len() > 1000);
}

#[test]
fn a_digest_never_changes_between_platforms_and_builds() {
    let plan = build(Collective::AllReduce, Algorithm::Ring, 2, 1024, 4, &Geometry { slot_bytes: 64 << 10, slots: 4 })
        .unwrap();
    assert_eq!(plan.digest(), 5_280_762_700_915_640_886);
}

/// One element: which inputs are in it, and what has been done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    sum: u64,
    inputs: u32,
    scaled: u32,
    finished: bool,
}

/// What nobody has written.
const POISON: Value = Value { sum: 0xdead, inputs: 0, scaled: 0, finished: false };

/// A rank's input, another number for each rank and index.
fn input_value(rank: usize, index: u64) -> Value {
    let sum = (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index * index + 3 * index);
    Value { sum, inputs: 1, scaled: 0, finished: false }
}

/// Where a rank's program stands.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    loop_index: usize,
    iteration: u64,
    step_index: usize,
}

/// Runs plans one step at a time in an order that a seed decides, with exactly the slots that the plan claims to need.
struct Interpreter<'a> {
    plan: &'a Plan,
    /// All memory there is: each rank has two pieces, and `buffers` says which is its input and which its output.
    memory: Vec<Vec<Value>>,
    /// For each rank and buffer, the memory and the first element in it.
    buffers: Vec<[(usize, usize); 2]>,
    slots: Vec<VecDeque<Vec<Value>>>,
    places: Vec<Vec<Place>>,
}

impl<'a> Interpreter<'a> {
    /// Ranks whose bit is set in `in_place` pass one buffer as input and output.
    fn new(plan: &'a Plan, in_place: u32) -> Interpreter<'a> {
        let n = plan.rank_count();
        let count = plan.count as usize;
        let mut memory = Vec::new();
        let mut buffers = Vec::new();
        for rank in 0..n {
            let (input_length, output_length) = match plan.collective {
                Collective::AllReduce => (count, count),
                Collective::ReduceScatter => (n * count, count),
                Collective::AllGather => (count, n * count),
                Collective::Broadcast { root } => (if rank == root.index() { count } else { 0 }, count),
                Collective::Reduce { root } => (count, if rank == root.index() { count } else { 0 }),
                Collective::Barrier => (0, 0),
            };
            let first = memory.len();
            if in_place >> rank & 1 == 1 {
                memory.push(vec![POISON; input_length.max(output_length)]);
                memory.push(Vec::new());
                let block = (first, rank * count);
                buffers.push(match plan.collective {
                    Collective::ReduceScatter => [(first, 0), block],
                    Collective::AllGather => [block, (first, 0)],
                    _ => [(first, 0), (first, 0)],
                });
            } else {
                memory.push(vec![POISON; input_length]);
                memory.push(vec![POISON; output_length]);
                buffers.push([(first, 0), (first + 1, 0)]);
            }
            let (piece, start) = buffers[rank][0];
            for index in 0..input_length {
                memory[piece][start + index] = input_value(rank, index as u64);
            }
        }
        let slots = vec![VecDeque::new(); plan.connections.len()];
        let places = plan.ranks.iter().map(|rank| vec![Place::default(); rank.programs.len()]).collect();
        Interpreter { plan, memory, buffers, slots, places }
    }

    fn run(&mut self, mut seed: u64) {
        let programs: Vec<(usize, usize)> = (0..self.plan.rank_count())
            .flat_map(|rank| (0..self.plan.ranks[rank].programs.len()).map(move |program| (rank, program)))
            .collect();
        loop {
            // A random starting point, and runs of random length, let ranks get far ahead of each other.
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let start = (seed >> 33) as usize % programs.len();
            let fired = (0..programs.len()).any(|index| {
                let (rank, program) = programs[(start + index) % programs.len()];
                let steps_max = 1 + (seed >> 60);
                (0..steps_max).take_while(|_| self.advance(rank, program)).count() > 0
            });
            if !fired {
                break;
            }
        }
        for (rank, program) in programs {
            let place = self.places[rank][program];
            let end = self.plan.ranks[rank].programs[program].loops.len();
            assert_eq!(place.loop_index, end, "r{rank}.p{program} is stuck in a deadlock of\n{}", self.plan);
        }
        assert!(self.slots.iter().all(VecDeque::is_empty), "a slot is left over in\n{}", self.plan);
    }

    /// Fires the program's next step if it is ready.
    fn advance(&mut self, rank: usize, program: usize) -> bool {
        let place = self.places[rank][program];
        let Some(each) = self.plan.ranks[rank].programs[program].loops.get(place.loop_index) else { return false };
        let step = &each.steps[place.step_index];
        assert_eq!(step.after, None, "this interpreter does not know dependencies");
        let full = |source: &Source| match source.operand {
            Operand::Slot(id) => !self.slots[id.index()].is_empty(),
            _ => true,
        };
        let empty = |destination: &Operand| match *destination {
            Operand::Slot(id) => self.slots[id.index()].len() < self.plan.connections[id.index()].slots as usize,
            _ => true,
        };
        if !step.sources.iter().all(full) || !step.destinations.iter().all(empty) {
            return false;
        }
        let chunk_bytes = u64::from(each.chunk_bytes);
        let start = (place.iteration * chunk_bytes).min(step.bytes);
        let end = ((place.iteration + 1) * chunk_bytes).min(step.bytes);
        self.fire(rank, step, start, end);
        let place = &mut self.places[rank][program];
        place.step_index += 1;
        if place.step_index == each.steps.len() {
            place.step_index = 0;
            place.iteration += 1;
        }
        if place.iteration == each.iterations {
            *place = Place { loop_index: place.loop_index + 1, ..Place::default() };
        }
        true
    }

    fn fire(&mut self, rank: usize, step: &Step, start: u64, end: u64) {
        let element_bytes = u64::from(self.plan.element_bytes);
        let length = ((end - start) / element_bytes) as usize;
        let mut result: Option<Vec<Value>> = None;
        for source in &step.sources {
            let mut values = match self.locate(rank, source.operand, start) {
                Ok((piece, first)) => self.memory[piece][first..first + length].to_vec(),
                Err(id) => self.slots[id.index()].pop_front().expect("checked to be full"),
            };
            assert_eq!(values.len(), length, "a slot of another size than expected in\n{}", self.plan);
            for value in &mut values {
                assert!(!source.scale || (value.inputs == 1 && value.scaled == 0), "scaled twice, or not an input");
                value.scaled += u32::from(source.scale);
            }
            result = Some(match result {
                None => values,
                Some(so_far) => so_far.into_iter().zip(values).map(|(a, b)| reduce(a, b)).collect(),
            });
        }
        let mut result = result.expect("a step has a source");
        if step.finish {
            for value in &mut result {
                assert!(!value.finished && value.inputs as usize == self.plan.rank_count(), "finished too early");
                value.finished = true;
            }
        }
        for destination in &step.destinations {
            match self.locate(rank, *destination, start) {
                Ok((piece, first)) => self.memory[piece][first..first + length].copy_from_slice(&result),
                Err(id) => self.slots[id.index()].push_back(result.clone()),
            }
        }
    }

    /// The memory that an operand means, and the first element in it; or the connection whose slot it is.
    fn locate(&self, rank: usize, operand: Operand, start: u64) -> Result<(usize, usize), ConnectionId> {
        let (rank, buffer, offset) = match operand {
            Operand::Slot(id) => return Err(id),
            Operand::Multicast { .. } => unreachable!("the plan is without multicast operands"),
            Operand::Local { buffer, offset } => (rank, buffer, offset),
            Operand::Window { rank: peer, buffer, offset } => {
                let places = self.places[peer.index()].iter().zip(&self.plan.ranks[peer.index()].programs);
                let is_inside = places.clone().any(|(place, program)| place.loop_index < program.loops.len());
                let has_entered = places.clone().any(|(place, _)| *place != Place::default());
                assert!(
                    has_entered && is_inside,
                    "r{rank} is at the memory of {peer} outside its call of\n{}",
                    self.plan
                );
                (peer.index(), buffer, offset)
            }
        };
        let (piece, first) = self.buffers[rank][buffer as usize];
        Ok((piece, first + ((offset + start) / u64::from(self.plan.element_bytes)) as usize))
    }

    fn check(&self, in_place: u32) {
        let n = self.plan.rank_count();
        let count = self.plan.count;
        let reduced = |index| {
            let sum = (0..n).map(|rank| input_value(rank, index).sum).fold(0, u64::wrapping_add);
            Value { sum, inputs: n as u32, scaled: n as u32, finished: true }
        };
        for rank in 0..n {
            let expected: Vec<Value> = match self.plan.collective {
                Collective::AllReduce => (0..count).map(reduced).collect(),
                Collective::ReduceScatter => (0..count).map(|index| reduced(rank as u64 * count + index)).collect(),
                Collective::AllGather => {
                    (0..n).flat_map(|peer| (0..count).map(move |index| input_value(peer, index))).collect()
                }
                Collective::Broadcast { root } => (0..count).map(|index| input_value(root.index(), index)).collect(),
                Collective::Reduce { root } if root.index() == rank => (0..count).map(reduced).collect(),
                Collective::Reduce { .. } | Collective::Barrier => Vec::new(),
            };
            let [(input, input_start), (output, output_start)] = self.buffers[rank];
            let result = &self.memory[output][output_start..output_start + expected.len()];
            assert!(result == expected, "r{rank} holds\n{result:?}\nin place {in_place:b}, after\n{}", self.plan);
            let only_read = input != output || expected.is_empty();
            if only_read {
                let values = self.memory[input][input_start..].iter().zip(0..);
                for (value, index) in values {
                    assert_eq!(*value, input_value(rank, index), "an input was written by\n{}", self.plan);
                }
            }
        }
    }
}

fn reduce(a: Value, b: Value) -> Value {
    assert!(!a.finished && !b.finished, "a finished value is reduced again");
    assert_eq!((a.scaled, b.scaled), (a.inputs, b.inputs), "an input enters the reduction without its scale");
    Value { sum: a.sum.wrapping_add(b.sum), inputs: a.inputs + b.inputs, scaled: a.scaled + b.scaled, finished: false }
}

/// Runs a plan with everyone out of place, everyone in place, and two mixtures.
fn run_and_check(plan: &Plan) {
    let plan = &*plan.without_multicast();
    for (seed, in_place) in [0, u32::MAX, 0b101_0101, 0b1_1001_1010].into_iter().enumerate() {
        let mut interpreter = Interpreter::new(plan, in_place);
        interpreter.run(seed as u64 * 0x1234_5678_9abc_def1 + plan.count);
        interpreter.check(in_place);
    }
}

#[test]
fn every_plan_gives_every_rank_what_it_should_hold_in_place_and_out_of_place() {
    for_each_plan(&SMALL_SLOTS, run_and_check);
    for_each_plan(&SMALL_SLOTS_ENOUGH, run_and_check);
}

#[test]
fn plans_of_several_chunks_of_memory_give_every_rank_what_it_should_hold() {
    for collective in Algorithm::Direct.collectives() {
        for rank_count in 1..=3 {
            let count = (3 << 20) / 64 + 5;
            let plan = build(*collective, Algorithm::Direct, rank_count, count, 64, &SMALL_SLOTS).unwrap();
            assert!(plan.ranks[0].programs[0].loops.iter().any(|each| each.iterations > 1));
            run_and_check(&plan);
        }
    }
}

#[test]
fn plans_of_several_channels_are_proved_like_others_and_survive_their_text() {
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.takes_orders()) {
        for &collective in algorithm.collectives() {
            for rank_count in [1, 2, 3, 5, 8, 13] {
                for count in [0, 1, 100, 1000] {
                    let orders = orders(rank_count);
                    for geometry in [SMALL_SLOTS, SMALL_SLOTS_ENOUGH] {
                        let plan = build_in_orders(collective, algorithm, rank_count, count, 4, &geometry, &orders);
                        let plan = plan.expect("there is a plan");
                        let verdict = verify::verify(&plan);
                        assert!(verdict.is_ok(), "{verdict:?} of {plan}");
                        assert_eq!(plan.to_string().parse(), Ok(plan));
                    }
                }
            }
        }
    }
}

#[test]
fn orders_that_are_none_are_typed_errors() {
    let orders = |orders: &[&[u32]]| -> Vec<Vec<Rank>> {
        orders.iter().map(|order| order.iter().copied().map(Rank).collect()).collect()
    };
    let try_orders = |algorithm, orders: &[Vec<Rank>]| {
        build_in_orders(Collective::AllReduce, algorithm, 3, 9, 4, &Geometry::default(), orders).unwrap_err()
    };
    let wrong: [(&[u32], u32); 5] = [(&[0, 1], 2), (&[0, 1, 1], 1), (&[0, 1, 3], 3), (&[], 0), (&[0, 1, 2, 0], 0)];
    for (wrong, rank) in wrong {
        let found = try_orders(Algorithm::Ring, &orders(&[&[0, 1, 2], wrong]));
        assert_eq!(found, PlanError::NotAnOrder { channel: 1, rank_count: 3, rank: Rank(rank) }, "{wrong:?}");
    }
    assert_eq!(try_orders(Algorithm::Tree, &orders(&[&[0, 1, 2]])), PlanError::NoOrders { algorithm: Algorithm::Tree });
    let many = vec![vec![Rank(0), Rank(1), Rank(2)]; MAX_CHANNEL_COUNT + 1];
    assert_eq!(try_orders(Algorithm::Ring, &many), PlanError::TooManyChannels { channel_count: MAX_CHANNEL_COUNT + 1 });
}

#[test]
fn every_algorithm_is_proved_for_every_number_of_ranks_to_64_and_some_beyond() {
    for algorithm in Algorithm::ALL {
        // All pairs of many ranks take the verifier long, so there a spread of numbers has to do.
        let all_pairs = matches!(algorithm, Algorithm::OneShot | Algorithm::Direct | Algorithm::Nvls);
        let (each, beyond): (usize, &[usize]) =
            if all_pairs { (17, &[24, 31, 32, 33, 48, 64]) } else { (64, &[65, 96, 128]) };
        for &collective in algorithm.collectives() {
            for rank_count in (1..=each).chain(beyond.iter().copied()) {
                let root = Rank(rank_count as u32 / 3);
                let count = 2 * rank_count as u64 + 1;
                let geometry = Geometry { slot_bytes: 64, slots: 3 };
                let plan =
                    build(collective.with_root(root), algorithm, rank_count, count, 4, &geometry).expect("a plan");
                let verdict = verify::verify(&plan);
                assert!(verdict.is_ok(), "{algorithm} {collective}, {rank_count} ranks: {verdict:?}");
            }
        }
    }
}
