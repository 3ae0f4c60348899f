//! Calls with everything about them chosen at random, by a seed that replays them.

use proptest::collection::vec;
use proptest::prelude::*;
use tutti::{Collective, DType, Options, Rank};

use super::Make;
use super::case::{Case, Drive, Values, try_call};
use super::ranks::{LATER, times, with_slots, within};
use super::replay::for_any;

/// A call among `rank_count` ranks. Most are small; a few have up to about a hundred thousand elements in all.
fn any_case(rank_count: usize) -> impl Strategy<Value = Case> {
    let root = (0..rank_count as u32).prop_map(Rank);
    let collective = (0..Collective::ALL.len(), root).prop_map(|(index, root)| Collective::ALL[index].with_root(root));
    let count = prop_oneof![4 => 0..40_usize, 4 => 0..3000_usize, 1 => 0..times(100_000, 10_000) / rank_count];
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
        for_any(
            crate::SUITE,
            "any_call_is_right",
            &(),
            times(600, 30) as u32,
            &strategy,
            |(rank_count, mut options, case)| {
                // A group has no settings of its own, so there the communicator is told the algorithm.
                let communicators = make(rank_count, options.clone()).map_err(|error| error.to_string())?;
                try_call(&communicators, &case, Drive::Threads)?;
                options.algorithm = case.algorithm;
                let communicators = make(rank_count, options).map_err(|error| error.to_string())?;
                try_call(&communicators, &case, Drive::Group)
            },
        );
    });
}

pub(crate) fn any_row_of_calls_is_right(make: Make) {
    within(LATER, move || {
        let strategy = (2..=6_usize).prop_flat_map(|rank_count| {
            let calls = vec((any_case(rank_count), any::<bool>()), 1..12);
            (Just(rank_count), any_options(), calls)
        });
        for_any(
            crate::SUITE,
            "any_row_of_calls_is_right",
            &(),
            times(60, 6) as u32,
            &strategy,
            |(rank_count, options, calls)| {
                let communicators = make(rank_count, options).map_err(|error| error.to_string())?;
                for (case, threads) in &calls {
                    if *threads {
                        try_call(&communicators, case, Drive::Threads)?;
                    } else {
                        try_call(&communicators, &Case { algorithm: None, ..*case }, Drive::Group)?;
                    }
                }
                Ok(())
            },
        );
    });
}
