//! Calls that differ between ranks: every rank gets a mismatch that names both sides, from this call or from the next one,
//! and nobody hangs.

use std::time::Duration;

use tutti::{Algorithm, Collective, Communicator, DType, Error, ErrorKind, Group, Rank, RankCall, Reduction};

use super::Make;
use super::case::{Buffers, Case};
use super::number::Format;
use super::ranks::{LATER, Random, SOON, on_threads, options, some_of, times, within};

/// What a rank does.
#[derive(Clone, Copy, Debug)]
enum Call {
    Case(Case),
    Split,
}

impl Call {
    fn make(self, communicator: &Communicator) -> tutti::Result<()> {
        fn made(communicator: &Communicator, case: &Case) -> tutti::Result<()> {
            let input = vec![Format::of(case.dtype).number(0); case.input_count(communicator.rank_count())];
            let mut buffers = Buffers::new(case, communicator.rank(), communicator.rank_count(), &input);
            buffers.call(communicator, case)
        }
        match self {
            Call::Split => communicator.split(Some(0), 0).map(drop),
            Call::Case(case) => made(communicator, &case),
        }
    }

    /// Words that an error must use for it.
    fn words(self) -> Vec<String> {
        let Call::Case(case) = self else { return vec!["split".to_owned()] };
        let mut words = vec![format!("{}(", case.collective.name())];
        if case.collective != Collective::Barrier {
            words.extend([format!("count {}", case.count), case.dtype.to_string()]);
        }
        if case.collective.reduces() {
            words.push(case.reduction.to_string());
        }
        words.extend(case.collective.root().map(|root| format!("root {}", root.0)));
        words.extend(case.algorithm.map(|algorithm| format!("by {algorithm}")));
        words
    }

    fn is_named_by(self, named: &RankCall) -> bool {
        self.words().iter().all(|word| named.call.contains(word.as_str()))
    }
}

fn plain(collective: Collective, dtype: DType, reduction: Reduction, count: usize) -> Call {
    Call::Case(Case::new(collective, dtype, reduction, count))
}

fn by(algorithm: Algorithm, collective: Collective, count: usize) -> Call {
    Call::Case(Case { algorithm: Some(algorithm), ..Case::new(collective, DType::F32, Reduction::Sum, count) })
}

/// Pairs of calls that differ in one thing each.
fn pairs() -> Vec<(Call, Call)> {
    use Collective::*;
    use DType::*;
    use Reduction::*;
    let root = Rank;
    vec![
        (plain(AllReduce, F32, Sum, 5), plain(AllReduce, F32, Sum, 6)),
        (plain(AllReduce, F32, Sum, 5), plain(AllReduce, F32, Max, 5)),
        (plain(AllReduce, F16, Sum, 5), plain(AllReduce, BF16, Sum, 5)),
        (plain(AllReduce, F32, Sum, 64), plain(AllReduce, F16, Sum, 128)),
        (plain(AllReduce, F32, Sum, 0), plain(AllReduce, F32, Sum, 3)),
        (plain(AllReduce, F32, Sum, 0), plain(AllReduce, F16, Sum, 0)),
        (plain(AllReduce, F32, Sum, 0), plain(Barrier, F32, Sum, 0)),
        (plain(AllReduce, F32, Sum, 100_000), plain(AllReduce, F32, Sum, 100_001)),
        (plain(AllReduce, F32, Sum, 8), plain(ReduceScatter, F32, Sum, 8)),
        (plain(AllGather, F32, Sum, 8), plain(ReduceScatter, F32, Sum, 8)),
        (plain(AllGather, F32, Sum, 8), plain(AllGather, F32, Sum, 9)),
        (plain(Broadcast { root: root(0) }, F32, Sum, 8), plain(Broadcast { root: root(0) }, F32, Sum, 9)),
        (plain(Broadcast { root: root(0) }, F32, Sum, 8), plain(Broadcast { root: root(1) }, F32, Sum, 8)),
        (plain(Broadcast { root: root(1) }, F32, Sum, 90_000), plain(Broadcast { root: root(0) }, F32, Sum, 90_000)),
        (plain(Reduce { root: root(0) }, F32, Sum, 8), plain(Reduce { root: root(1) }, F32, Sum, 8)),
        (plain(Reduce { root: root(0) }, F32, Sum, 8), plain(Reduce { root: root(0) }, F32, Prod, 8)),
        (plain(Reduce { root: root(0) }, F32, Sum, 8), plain(Broadcast { root: root(0) }, F32, Sum, 8)),
        (by(Algorithm::Ring, AllReduce, 8), by(Algorithm::Tree, AllReduce, 8)),
        (by(Algorithm::Direct, AllReduce, 8), by(Algorithm::OneShot, AllReduce, 8)),
        (by(Algorithm::Direct, AllGather, 8), by(Algorithm::Ring, AllGather, 8)),
        (by(Algorithm::Chain, Reduce { root: root(1) }, 8), by(Algorithm::Tree, Reduce { root: root(1) }, 8)),
        (Call::Split, plain(Barrier, F32, Sum, 0)),
        (Call::Split, plain(AllGather, F32, Sum, 4)),
    ]
}

/// Lets each rank make its calls, and then `next`, which is the same for all. What broke the communicator: every rank must
/// get the same error, from the call in which two ranks first differed or from the one after it. (Nobody waits for the others
/// between two calls, so those that are further may break the call before, too.)
///
/// The rank `slow`, if there is one, comes when the others have gone as far as they can.
fn verdict(
    make: Make,
    rank_count: usize,
    slow: Option<usize>,
    next: Call,
    calls_of: impl Fn(usize) -> Vec<Call> + Sync,
) -> Error {
    let verdicts = on_threads(make(rank_count, options(|_| {})).unwrap(), |communicator| {
        if slow == Some(communicator.rank()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut calls = calls_of(communicator.rank());
        calls.push(next);
        let failed = calls.into_iter().enumerate().find_map(|(nth, call)| Some((nth, call.make(&communicator).err()?)));
        if let Some((_, error)) = &failed {
            assert_eq!(communicator.barrier().as_ref(), Err(error), "two different errors");
        }
        // A rank that is gone is another error, so all stay until all have theirs.
        (communicator, failed)
    });
    let calls: Vec<_> = (0..rank_count).map(calls_of).collect();
    let of_rank =
        |rank: usize| verdicts[rank].1.clone().unwrap_or_else(|| panic!("no error on rank {rank}: {calls:?}"));
    let (_, error) = of_rank(0);
    let Error::Mismatch { sequence, .. } = error else { panic!("expected a mismatch, came: {error}, in {calls:?}") };
    for rank in 0..rank_count {
        let (nth, came) = of_rank(rank);
        assert_eq!(came, error);
        assert!(
            nth as u64 <= sequence,
            "rank {rank} got an error about call {sequence} from call {} only: {error}, in {calls:?}, then {next:?}",
            nth + 1
        );
    }
    assert_eq!(error.kind(), ErrorKind::Peer);
    error
}

/// Calls that all ranks make alike after those that differ: one for which everybody needs everybody, and some for which
/// nobody needs those who come late.
fn next_calls(rank_count: usize) -> Vec<Call> {
    let (first, last) = (Rank(0), Rank(rank_count as u32 - 1));
    vec![
        plain(Collective::AllReduce, DType::F32, Reduction::Sum, 1),
        by(Algorithm::Tree, Collective::Broadcast { root: first }, 10),
        by(Algorithm::Chain, Collective::Broadcast { root: last }, 10),
        by(Algorithm::Direct, Collective::Broadcast { root: first }, 10),
        by(Algorithm::Tree, Collective::Reduce { root: first }, 10),
        by(Algorithm::Chain, Collective::Reduce { root: last }, 10),
    ]
}

/// Checks that a mismatch in call `sequence` names what two ranks that differ really did.
fn check_names(error: &Error, sequence: u64, call_of: impl Fn(usize) -> Call) {
    let Error::Mismatch { sequence: named, left, right } = error else { panic!("expected a mismatch, came: {error}") };
    assert_eq!(*named, sequence, "{error}");
    assert_ne!(left.rank, right.rank, "{error}");
    for side in [left, right] {
        assert!(call_of(side.rank).is_named_by(side), "rank {} did {:?}: {error}", side.rank, call_of(side.rank));
        assert!(error.to_string().contains(&format!("rank {}", side.rank)) && error.to_string().contains(&side.call));
    }
    assert_ne!(left.call, right.call, "{error}");
}

pub(crate) fn calls_that_differ_on_one_rank_are_a_mismatch_on_every_rank(make: Make) {
    within(LATER, move || {
        for rank_count in some_of([2, 3, 5], 1) {
            for (nth, (one, other)) in pairs().into_iter().enumerate() {
                for odd in 0..rank_count {
                    let call_of = |rank| if rank == odd { other } else { one };
                    for (turn, next) in some_of(next_calls(rank_count).into_iter().enumerate(), 1) {
                        // The odd one is slow, or one of the others is, or nobody.
                        let slow = [None, Some(odd), Some((odd + 1) % rank_count)][(nth + turn) % 3];
                        let error = verdict(make, rank_count, slow, next, |rank| vec![call_of(rank)]);
                        let Error::Mismatch { left, right, .. } = &error else { unreachable!() };
                        assert!(left.rank == odd || right.rank == odd, "rank {odd} is the odd one: {error}");
                        check_names(&error, 1, call_of);
                    }
                }
            }
        }
    });
}

/// Every collective by every algorithm that offers it, at sizes that take other ways.
fn every_way() -> Vec<Case> {
    let mut cases = Vec::new();
    for collective in Collective::ALL {
        for algorithm in collective.algorithms() {
            for count in [0, 8, 50_000] {
                let case = Case::new(collective, DType::F32, Reduction::Sum, count);
                cases.push(Case { algorithm: Some(algorithm), ..case });
            }
        }
    }
    cases
}

/// The calls that differ from `case` in its collective, its count, its type, its reduction or its root.
fn others(case: &Case) -> Vec<Case> {
    let mut others = vec![];
    for collective in Collective::ALL {
        if collective.name() != case.collective.name() {
            others.push(Case { collective, algorithm: None, ..*case });
        }
    }
    if case.collective != Collective::Barrier {
        others.push(Case { count: case.count + 1, ..*case });
        others.extend([DType::F16, DType::BF16].map(|dtype| Case { dtype, ..*case }));
    }
    if case.collective.reduces() {
        others.extend([Reduction::Max, Reduction::Avg].map(|reduction| Case { reduction, ..*case }));
    }
    if case.collective.root().is_some() {
        others.extend([1, 2].map(|root| Case { collective: case.collective.with_root(Rank(root)), ..*case }));
    }
    others
}

pub(crate) fn any_difference_by_any_algorithm_is_a_mismatch_on_every_rank(make: Make) {
    within(LATER, move || {
        let mut random = Random(23);
        for case in every_way() {
            for other in some_of(others(&case), 1) {
                let odd = random.below(3);
                let call_of = |rank| Call::Case(if rank == odd { other } else { case });
                let (slow, next) = (random.below(4), random.one_of(&next_calls(3)));
                let error = verdict(make, 3, Some(slow), next, |rank| vec![call_of(rank)]);
                check_names(&error, 1, call_of);
            }
        }
    });
}

pub(crate) fn any_two_algorithms_in_another_order_are_a_mismatch_on_every_rank(make: Make) {
    within(LATER, move || {
        let mut random = Random(24);
        let ways = every_way();
        for (nth, one) in ways.iter().enumerate() {
            let other = &ways[(nth + 1 + random.below(ways.len() - 1)) % ways.len()];
            let odd = random.below(3);
            let order = |rank| if rank == odd { [*other, *one] } else { [*one, *other] }.map(Call::Case);
            let (slow, next) = (random.below(4), random.one_of(&next_calls(3)));
            let error = verdict(make, 3, Some(slow), next, |rank| order(rank).to_vec());
            check_names(&error, 1, |rank| order(rank)[0]);
        }
    });
}

pub(crate) fn calls_that_differ_on_every_rank_are_a_mismatch_on_every_rank(make: Make) {
    within(LATER, move || {
        let calls: Vec<Call> = pairs().into_iter().flat_map(|(one, other)| [one, other]).collect();
        for round in 0..times(200, 20) as u64 {
            let mut random = Random(round);
            // A count that is the rank's own makes all calls differ.
            let first = random.below(1000);
            let own = |rank: usize| plain(Collective::AllReduce, DType::F32, Reduction::Sum, first + rank);
            let slow = Some(random.below(5));
            let error = verdict(make, 4, slow, random.one_of(&next_calls(4)), |rank| vec![own(rank)]);
            check_names(&error, 1, own);
            let picked: [Call; 4] = std::array::from_fn(|_| random.one_of(&calls));
            if picked[0].words() != picked[1].words() && picked[1].words() != picked[2].words() {
                let error = verdict(make, 3, slow, random.one_of(&next_calls(3)), |rank| vec![picked[rank]]);
                check_names(&error, 1, |rank| picked[rank]);
            }
        }
    });
}

pub(crate) fn ranks_that_only_send_notice_who_comes_later(make: Make) {
    within(LATER, move || {
        for rank_count in [2, 3, 4] {
            let sends = |rank: usize, algorithm| by(algorithm, Collective::Broadcast { root: Rank(rank as u32) }, 10);
            for algorithm in [Algorithm::Tree, Algorithm::Chain] {
                for slow in 0..rank_count {
                    // Everybody is a root, and goes on as one until something is wrong.
                    let calls = |rank| vec![sends(rank, algorithm); 12];
                    let error = verdict(make, rank_count, Some(slow), sends(0, algorithm), calls);
                    check_names(&error, 1, |rank| sends(rank, algorithm));
                    // Two classes of ranks, each with a root of its own to follow.
                    let root = |rank: usize| if rank == slow { slow } else { (slow + 1) % rank_count };
                    let calls = |rank| vec![sends(root(rank), algorithm); 12];
                    let error = verdict(make, rank_count, Some(slow), sends(0, algorithm), calls);
                    check_names(&error, 1, |rank| sends(root(rank), algorithm));
                }
            }
        }
    });
}

pub(crate) fn calls_in_another_order_are_a_mismatch(make: Make) {
    within(SOON, move || {
        let calls = [
            plain(Collective::AllReduce, DType::F32, Reduction::Sum, 100),
            plain(Collective::Barrier, DType::F32, Reduction::Sum, 0),
            plain(Collective::AllGather, DType::F32, Reduction::Sum, 100),
            plain(Collective::Broadcast { root: Rank(0) }, DType::F32, Reduction::Sum, 100),
        ];
        for rank_count in [2, 4] {
            for odd in 0..rank_count {
                for (a, b) in [(0, 1), (1, 2), (2, 3), (0, 3), (3, 0)] {
                    let order = |rank| {
                        if rank == odd {
                            vec![calls[1], calls[b], calls[a]]
                        } else {
                            vec![calls[1], calls[a], calls[b]]
                        }
                    };
                    let next = plain(Collective::AllReduce, DType::F32, Reduction::Sum, 1);
                    let error = verdict(make, rank_count, Some(a % rank_count), next, order);
                    check_names(&error, 2, |rank| order(rank)[1]);
                }
            }
        }
    });
}

pub(crate) fn a_group_with_other_contents_is_a_mismatch(make: Make) {
    within(SOON, move || {
        for odd in 0..3 {
            for (odd_counts, usual_counts) in [([10, 20], [20, 10]), ([10, 20], [10, 21]), ([10, 20], [10, 10])] {
                let counts = |rank| if rank == odd { odd_counts } else { usual_counts };
                let errors = on_threads(make(3, options(|_| {})).unwrap(), |communicator| {
                    let mut buffers = counts(communicator.rank()).map(|count| vec![1.0_f32; count]);
                    let mut group = Group::new();
                    for buffer in &mut buffers {
                        group.all_reduce_in_place(&communicator, buffer, Reduction::Sum).unwrap();
                    }
                    group.run().expect_err("groups that differ")
                });
                let sequence = if odd_counts[0] == usual_counts[0] { 2 } else { 1 };
                let call_of = |rank| {
                    plain(Collective::AllReduce, DType::F32, Reduction::Sum, counts(rank)[sequence as usize - 1])
                };
                for error in &errors {
                    check_names(error, sequence, call_of);
                    assert_eq!(*error, errors[0]);
                }
            }
        }
    });
}

pub(crate) fn a_rank_with_one_call_too_many_is_a_mismatch_as_soon_as_the_others_call_something_else(make: Make) {
    within(SOON, move || {
        let usual = plain(Collective::AllReduce, DType::F32, Reduction::Sum, 10);
        let last = plain(Collective::AllReduce, DType::F32, Reduction::Sum, 11);
        for odd in 0..3 {
            let calls = |rank| if rank == odd { vec![usual, usual, last] } else { vec![usual, last] };
            let next = plain(Collective::AllReduce, DType::F32, Reduction::Sum, 1);
            let error = verdict(make, 3, None, next, calls);
            check_names(&error, 2, |rank| if rank == odd { usual } else { last });
        }
    });
}

pub(crate) fn broadcasts_from_different_roots_are_noticed_in_the_next_call(make: Make) {
    within(SOON, move || {
        for count in [0, 10, 100_000] {
            for slow in [0, 1, 2] {
                // Each rank believes that it is the root, and has nothing to wait for.
                let errors = on_threads(make(2, options(|_| {})).unwrap(), |communicator| {
                    if communicator.rank() == slow {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    let mut buffer = vec![communicator.rank() as f32; count];
                    let mut broadcast = || communicator.broadcast_in_place(&mut buffer, communicator.rank());
                    let error = broadcast().and_then(|()| broadcast()).expect_err("two broadcasts succeeded");
                    (communicator, error)
                });
                assert!(matches!(errors[0].1, Error::Mismatch { sequence: 1, .. }), "{}", errors[0].1);
                assert_eq!(errors[0].1, errors[1].1);
            }
        }
    });
}

pub(crate) fn any_single_difference_in_a_row_of_calls_reaches_every_rank(make: Make) {
    within(LATER, move || {
        let calls: Vec<Call> = pairs().into_iter().flat_map(|(one, other)| [one, other]).collect();
        for seed in 0..times(150, 20) as u64 {
            let mut random = Random(seed);
            let rank_count = 2 + random.below(3);
            let row: Vec<Call> = (0..1 + random.below(6)).map(|_| random.one_of(&calls)).collect();
            let (odd, place) = (random.below(rank_count), random.below(row.len()));
            let other = loop {
                let other = random.one_of(&calls);
                if other.words() != row[place].words() {
                    break other;
                }
            };
            // By algorithms that two calls may happen to share, or not, they can be the same call after all; those whose words
            // differ only there are left out.
            let is_part = |a: &Call, b: &Call| a.words().iter().all(|word| b.words().contains(word));
            if is_part(&other, &row[place]) || is_part(&row[place], &other) {
                continue;
            }
            let calls_of = |rank| {
                let mut calls = row.clone();
                if rank == odd {
                    calls[place] = other;
                }
                calls
            };
            let next = random.one_of(&next_calls(rank_count));
            let error = verdict(make, rank_count, Some(random.below(2 * rank_count)), next, calls_of);
            let Error::Mismatch { left, right, .. } = &error else { panic!("seed {seed}: {error}") };
            assert!(left.rank == odd || right.rank == odd, "seed {seed}: rank {odd} is the odd one: {error}");
        }
    });
}

pub(crate) fn large_calls_that_differ_by_one_element_write_nothing_outside_their_buffers(make: Make) {
    within(SOON, move || {
        for collective in [
            Collective::AllReduce,
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::Broadcast { root: Rank(0) },
        ] {
            for algorithm in collective.algorithms() {
                let communicators =
                    make(3, options(|options| options.arrival_timeout = Duration::from_secs(10))).unwrap();
                let beside = on_threads(communicators, |communicator| {
                    let count = 50_000 - communicator.rank();
                    let case =
                        Case { algorithm: Some(algorithm), ..Case::new(collective, DType::F32, Reduction::Sum, count) };
                    let input = case.inputs(3).swap_remove(communicator.rank());
                    let mut buffers = Buffers::new(&case, communicator.rank(), 3, &input);
                    // A root may be done before anybody notices.
                    if let Err(error) = buffers.call(&communicator, &case) {
                        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
                    } else {
                        assert_eq!(
                            communicator.rank(),
                            0,
                            "{algorithm} {collective} succeeded with a count of its own"
                        );
                    }
                    buffers
                });
                for (rank, buffers) in beside.iter().enumerate() {
                    assert_eq!(buffers.written_beside(), None, "rank {rank}, {algorithm} {collective}");
                }
            }
        }
    });
}

pub(crate) fn scaled_sums_that_differ_in_their_scale_name_both_scales(make: Make) {
    within(SOON, move || {
        for algorithm in Collective::AllReduce.algorithms() {
            for odd in 0..3 {
                let errors = on_threads(make(3, options(|_| {})).unwrap(), |communicator| {
                    let scale = if communicator.rank() == odd { 0.75 } else { -0.5 };
                    let mut buffer = [1.0_f32; 9];
                    let call = communicator.call().algorithm(algorithm).scale(scale);
                    let result = call.all_reduce_in_place(&mut buffer, Reduction::ScaledSum);
                    result.and_then(|()| communicator.barrier()).unwrap_err()
                });
                for error in errors {
                    assert!(matches!(error, Error::Mismatch { sequence: 1, .. }), "{error}");
                    let text = error.to_string();
                    assert!(
                        text.contains("scaled_sum, scale 0.75") && text.contains("scaled_sum, scale -0.5"),
                        "{text}"
                    );
                }
            }
        }
        // The same number is the same scale, whatever type it came in.
        on_threads(make(2, options(|_| {})).unwrap(), |communicator| {
            let call = communicator.call();
            let call = if communicator.rank() == 0 { call.scale(3) } else { call.scale(3.0) };
            let mut buffer = [2_i16, -5];
            call.all_reduce_in_place(&mut buffer, Reduction::ScaledSum).unwrap();
            assert_eq!(buffer, [12, -30]);
        });
    });
}
