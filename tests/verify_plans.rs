//! Every plan that can be built is proved right, for every shape in which plans differ.

use tutti::plan::verify::verify;
use tutti::plan::{Algorithm, Collective, Geometry, Plan, Rank, build};

/// Connections of few and of many bytes: with the small one, small counts already take several chunks.
const GEOMETRIES: [Geometry; 2] = [Geometry { slot_bytes: 64, slots: 1 }, Geometry { slot_bytes: 64 << 10, slots: 4 }];

fn collectives(rank_count: u32) -> Vec<Collective> {
    let roots = || (0..rank_count).map(Rank);
    let mut collectives =
        vec![Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather, Collective::Barrier];
    collectives.extend(roots().map(|root| Collective::Broadcast { root }));
    collectives.extend(roots().map(|root| Collective::Reduce { root }));
    collectives
}

/// With more slots, where an algorithm does not do with one.
fn build_with_slots(
    collective: Collective,
    algorithm: Algorithm,
    rank_count: u32,
    count: u64,
    mut geometry: Geometry,
) -> Plan {
    loop {
        match build(collective, algorithm, rank_count as usize, count, 4, &geometry) {
            Ok(plan) => return plan,
            Err(tutti::plan::PlanError::TooFewSlots { needed, .. }) if needed > geometry.slots => {
                geometry.slots = needed
            }
            Err(error) => panic!("{collective:?} {algorithm:?} ranks {rank_count} count {count}: {error}"),
        }
    }
}

fn assert_right(plan: &Plan) {
    if let Err(violations) = verify(plan) {
        let texts: Vec<_> = violations.iter().map(ToString::to_string).collect();
        let Plan { collective, algorithm, count, .. } = plan;
        let rank_count = plan.ranks.len();
        panic!("{collective:?} {algorithm:?} ranks {rank_count} count {count}:\n{}", texts.join("\n"));
    }
}

#[test]
fn every_algorithm_is_right_for_every_collective_it_offers_and_every_small_shape() {
    let mut verified = 0;
    for rank_count in 1..=9_u32 {
        let ranks = u64::from(rank_count);
        let counts = [0, 1, ranks - 1, ranks, ranks + 1, 15, 16, 17, 16 * ranks - 1, 16 * ranks, 16 * ranks + 1, 1000];
        for collective in collectives(rank_count) {
            for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.offers(collective)) {
                for count in counts {
                    for geometry in GEOMETRIES {
                        assert_right(&build_with_slots(collective, algorithm, rank_count, count, geometry));
                        verified += 1;
                    }
                }
            }
        }
    }
    assert!(verified > 1000, "only {verified} plans");
}
