//! Calls with everything about them chosen at random, by a seed that replays them.

use std::hash::{BuildHasher, RandomState};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tutti::{Collective, DType, Options, Rank};

use super::Make;
use super::case::{Case, Drive, Values, try_call};
use super::ranks::{LATER, Random, with_slots, within};

/// Runs `test` on `cases` values of `strategy`. Where one fails, it is shrunk, and shown with the command that replays it.
fn for_any<S: Strategy>(name: &str, cases: u32, strategy: &S, test: impl Fn(S::Value) -> Result<(), String>) {
    let seed = match std::env::var("TUTTI_SEED") {
        Ok(seed) => seed.parse().expect("TUTTI_SEED: expected a number"),
        Err(_) => RandomState::new().hash_one(name),
    };
    let mut random = Random(seed);
    let seed_bytes: Vec<u8> = (0..4).flat_map(|_| random.next().to_le_bytes()).collect();
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed_bytes));
    let result = runner.run(strategy, |value| test(value).map_err(TestCaseError::fail));
    if let Err(error) = result {
        panic!("{error}\nTo replay this: TUTTI_SEED={seed} cargo test --test cpu {name}");
    }
}

/// A call among `rank_count` ranks. Most are small; a few have up to about a hundred thousand elements in all.
fn any_case(rank_count: usize) -> impl Strategy<Value = Case> {
    let root = (0..rank_count as u32).prop_map(Rank);
    let collective = (0..Collective::ALL.len(), root).prop_map(|(index, root)| Collective::ALL[index].with_root(root));
    let count = prop_oneof![4 => 0..40_usize, 4 => 0..3000_usize, 1 => 0..100_000 / rank_count];
    let algorithm = proptest::option::of(any::<prop::sample::Index>());
    let dtype = (0..DType::ALL.len()).prop_map(|index| DType::ALL[index]);
    let reduction = any::<prop::sample::Index>();
    let values = prop_oneof![Just(Values::Exact), Just(Values::Rough)];
    ((collective, algorithm, dtype, reduction, count), (any::<u64>(), 0..16_usize, any::<bool>(), values, any::<u64>()))
        .prop_map(
            |((collective, algorithm, dtype, reduction, count), (in_place, offset, needless_buffers, values, salt))| {
                let offered: Vec<_> = collective.algorithms().collect();
                let reduction = *reduction.get(&dtype.reductions().collect::<Vec<_>>());
                let algorithm = algorithm.map(|index| *index.get(&offered));
                Case {
                    collective,
                    algorithm,
                    dtype,
                    reduction,
                    count,
                    in_place,
                    offset,
                    needless_buffers,
                    values,
                    salt,
                }
            },
        )
}

fn any_options() -> impl Strategy<Value = Options> {
    let slot_bytes = prop_oneof![64..300_u32, 300..5000_u32, Just(64 << 10)];
    (slot_bytes, 1..5_u32).prop_map(|(slot_bytes, shift)| with_slots(slot_bytes, 1 << shift))
}

pub(crate) fn any_call_is_right(make: Make) {
    within(LATER, move || {
        let strategy =
            (1..=12_usize).prop_flat_map(|rank_count| (Just(rank_count), any_options(), any_case(rank_count)));
        for_any("any_call_is_right", 600, &strategy, |(rank_count, mut options, case)| {
            // A group has no settings of its own, so there the communicator is told the algorithm.
            let communicators = make(rank_count, options.clone()).map_err(|error| error.to_string())?;
            try_call(&communicators, &case, Drive::Threads)?;
            options.algorithm = case.algorithm;
            let communicators = make(rank_count, options).map_err(|error| error.to_string())?;
            try_call(&communicators, &case, Drive::Group)
        });
    });
}

pub(crate) fn any_row_of_calls_is_right(make: Make) {
    within(LATER, move || {
        let strategy = (2..=6_usize).prop_flat_map(|rank_count| {
            let calls = vec((any_case(rank_count), any::<bool>()), 1..12);
            (Just(rank_count), any_options(), calls)
        });
        for_any("any_row_of_calls_is_right", 60, &strategy, |(rank_count, options, calls)| {
            let communicators = make(rank_count, options).map_err(|error| error.to_string())?;
            for (case, threads) in &calls {
                if *threads {
                    try_call(&communicators, case, Drive::Threads)?;
                } else {
                    try_call(&communicators, &Case { algorithm: None, ..*case }, Drive::Group)?;
                }
            }
            Ok(())
        });
    });
}
