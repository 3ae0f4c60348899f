//! Every plan that can be built is proved right, for every shape in which plans differ.

use tutti::plan::verify::{Limit, Limits, MAX_VIOLATIONS, Violation, ViolationKind, verify, verify_within};
use tutti::plan::{Algorithm, Collective, Geometry, Plan, Rank, build, text};

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

/// A plan of one program of one rank; it is wrong, but large.
fn one_program(count: u64, scratch_bytes: u64, loops: &str) -> Plan {
    let head =
        format!("plan all_reduce ring ranks 1 count {count} element_bytes 1\nrank r0 scratch_bytes {scratch_bytes}\n");
    text::parse(&format!("{head}  program p0\n{loops}")).expect("the text is a plan")
}

fn violations(plan: &Plan) -> Vec<Violation> {
    verify(plan).expect_err("the plan is wrong")
}

#[test]
fn a_long_list_is_cut_and_the_rest_counted() {
    let steps: String = (0..250).map(|step| format!("      s{step} 7: nothing <- reduce()\n")).collect();
    let found = violations(&one_program(1, 0, &format!("    loop iterations 1 chunk_bytes 8\n{steps}")));
    assert_eq!(found.len(), MAX_VIOLATIONS + 1);
    // Each step lacks sources and destinations.
    let more = 2 * 250 - MAX_VIOLATIONS as u64;
    assert_eq!(found[MAX_VIOLATIONS].kind, ViolationKind::More { count: more });
    assert_eq!(found[MAX_VIOLATIONS].to_string(), format!("plan: {more} more violations are not listed"));
}

#[test]
fn the_same_fault_of_a_step_is_told_once_for_all_iterations() {
    let found =
        violations(&one_program(8, 8, "    loop iterations 8 chunk_bytes 1\n      s0 8: output@0 <- scratch@0\n"));
    let texts: Vec<_> = found.iter().map(ToString::to_string).collect();
    let place = "rank r0, program p0, step s0, iteration 0, scratch bytes 0..1";
    assert_eq!(texts, [format!("{place}: reads what was not written (and 7 times more)")]);
}

/// What a plan is refused for.
fn refused_for(plan: &Plan, limits: &Limits) -> (Limit, u64) {
    let found = verify_within(plan, limits).expect_err("the plan is too large");
    match found[0].kind {
        ViolationKind::TooLarge { limit, allowed, .. } => (limit, allowed),
        _ => panic!("{}", found[0]),
    }
}

#[test]
fn a_plan_that_keeps_too_many_intervals_is_given_up() {
    // Each iteration leaves sixteen more.
    let operands: Vec<_> = (0..16_u64).map(|index| format!("scratch@{}", index << 20)).collect();
    let step = format!("      s0 1048576: {} <- input@0\n", operands.join(", "));
    let plan = one_program(1 << 20, 16 << 20, &format!("    loop iterations 1048576 chunk_bytes 1\n{step}"));
    assert_eq!(refused_for(&plan, &Limits { stored: 100_000, ..Limits::default() }), (Limit::Stored, 100_000));
}

#[test]
fn a_plan_that_takes_too_much_work_is_given_up() {
    // The first loop cuts the scratch into single bytes, the second reads all of them again and again.
    let again: String = (1..=8192).map(|step| format!("      s{step} 65536: output@0 <- scratch@0\n")).collect();
    let first = "    loop iterations 65536 chunk_bytes 1\n      s0 65536: scratch@0 <- input@0\n";
    let plan = one_program(65536, 65536, &format!("{first}    loop iterations 1 chunk_bytes 65536\n{again}"));
    assert_eq!(refused_for(&plan, &Limits { work: 5_000_000, ..Limits::default() }), (Limit::Work, 5_000_000));
}

#[test]
fn ranks_and_operands_without_number_are_given_up_soon() {
    let mut ranks = String::from("plan all_gather ring ranks 20000 count 1 element_bytes 1\n");
    (0..20000).for_each(|rank| ranks += &format!("rank r{rank} scratch_bytes 0\n"));
    let plan = text::parse(&ranks).expect("the text is a plan");
    let limits = Limits { work: 1_000_000, ..Limits::default() };
    let found = verify_within(&plan, &limits).expect_err("nobody gets anything");
    assert!(matches!(found[0].kind, ViolationKind::OutputNotWritten), "{}", found[0]);

    // Each of the destinations is compared with each of the sources.
    let sources = vec!["scratch@0"; 30000].join(", ");
    let destinations: Vec<_> = (1..30000).map(|offset| format!("scratch@{offset}")).collect();
    let step = format!("      s0 1: {} <- reduce({sources})\n", destinations.join(", "));
    let plan = one_program(1, 30000, &format!("    loop iterations 1 chunk_bytes 1\n{step}"));
    assert_eq!(refused_for(&plan, &limits), (Limit::Work, 1_000_000));
}

#[test]
fn a_gigabyte_over_eight_ranks_is_verified() {
    let plan = build(Collective::AllReduce, Algorithm::Ring, 8, 1 << 28, 4, &Geometry::default()).expect("a plan");
    let report = verify(&plan).expect("it is right");
    // 2 (N − 1) / N · S.
    assert_eq!(report.bytes_sent, [(1 << 30) / 8 * 14; 8]);
    assert_eq!(report.bytes_received, report.bytes_sent);
}
