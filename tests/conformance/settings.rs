//! Options, memory, traces, plans, and which types may go between threads.

use std::time::Duration;

use tutti::plan::MAX_RANK_COUNT;
use tutti::{
    AbortHandle, Algorithm, Collective, Communicator, DType, Error, ErrorKind, Failed, MemoryReport, Options, Pending,
    Rank, Reduction,
};

use super::Make;
use super::case::{Case, Drive, call, collectives, try_call};
use super::ranks::{LATER, SOON, each_on_a_thread, on_threads, options, times, with_slots, within};

pub(crate) fn settings_out_of_range_are_errors_that_say_the_range(make: Make) {
    within(SOON, move || {
        let wrong = |rank_count, options: Options, what_is: &str, came_is: &str| {
            let error = make(rank_count, options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Caller, "{error}");
            let Error::Argument { what, expected, came, .. } = &error else { panic!("{error}") };
            assert_eq!((*what, came.as_str()), (what_is, came_is));
            assert!(error.to_string().contains(expected.as_str()), "{error}");
            error
        };
        wrong(0, Options::default(), "rank_count", "0");
        let more = (MAX_RANK_COUNT + 1).to_string();
        let error = wrong(MAX_RANK_COUNT + 1, Options::default(), "rank_count", &more);
        assert_eq!(error.to_string(), format!("local: rank_count: expected from 1 to {MAX_RANK_COUNT}, came {more}"));
        if crate::IS_QUICK {
            wrong(usize::MAX, Options::default(), "rank_count", &usize::MAX.to_string());
        }
        for slots in [0, 1, 3, 6, 1 << 17, u32::MAX] {
            wrong(2, with_slots(1024, slots), "slots", &slots.to_string());
        }
        for slot_bytes in [0, 1, 63, (1 << 30) + 1, u32::MAX] {
            wrong(2, with_slots(slot_bytes, 4), "slot_bytes", &slot_bytes.to_string());
        }
        for (slot_bytes, slots) in [(64, 2), (1 << 30, 4), (64, 1 << 16)] {
            make(2, with_slots(slot_bytes, slots)).unwrap();
        }
        let many = times(MAX_RANK_COUNT, 64);
        assert_eq!(make(many, Options::default()).unwrap().len(), many);
        let defaults = Options::default();
        assert_eq!(defaults.progress_timeout, Duration::from_secs(30));
        assert_eq!(defaults.arrival_timeout, Duration::from_secs(600));
        assert_eq!((defaults.memory_budget_bytes, defaults.algorithm), (None, None));
    });
}

fn reports(communicators: &[Communicator]) -> Vec<MemoryReport> {
    communicators.iter().map(Communicator::memory).collect()
}

pub(crate) fn a_memory_report_counts_connections_and_plans_and_prints_itself(make: Make) {
    within(SOON, move || {
        let options = options(|options| options.algorithm = Some(Algorithm::Ring));
        let communicators = make(3, options).unwrap();
        assert!(reports(&communicators).iter().all(|report| report.total_bytes() == 0 && report.connections == 0));
        let case = Case::new(Collective::AllReduce, DType::F32, Reduction::Sum, 1000);
        call(&communicators, &case, Drive::Threads);
        let first = reports(&communicators);
        for report in &first {
            // One connection from the rank before, with all its slots.
            assert_eq!((report.connections, report.plans), (1, 1));
            assert!((256 << 10..512 << 10).contains(&report.connection_bytes), "{report}");
            assert!(report.plan_bytes > 0);
            assert_eq!(report.total_bytes(), report.connection_bytes + report.plan_bytes + report.trace_bytes);
            let text = report.to_string();
            for number in [report.total_bytes(), report.connection_bytes, report.plan_bytes] {
                assert!(text.contains(&number.to_string()), "{text}");
            }
        }
        // The same call again, and one of another type with elements of the same size, need nothing new.
        for _ in 0..10 {
            call(&communicators, &case, Drive::Threads);
            call(&communicators, &Case { reduction: Reduction::Max, ..case }, Drive::Group);
        }
        assert_eq!(reports(&communicators), first);
        // Another count is another plan on the same connection.
        call(&communicators, &Case { count: 1001, ..case }, Drive::Threads);
        for (report, first) in reports(&communicators).iter().zip(&first) {
            assert_eq!((report.connections, report.connection_bytes, report.plans), (1, first.connection_bytes, 2));
        }
        // Sizes that never repeat do not fill the memory.
        for count in 0..times(1500, 600) {
            call(&communicators, &Case { count, ..case }, Drive::Group);
        }
        for report in reports(&communicators) {
            assert!(report.plans <= 300, "{report}");
            assert!(report.plan_bytes < 4 << 20, "{report}");
        }
    });
}

pub(crate) fn a_memory_budget_is_kept_or_a_typed_error_on_every_rank(make: Make) {
    within(SOON, move || {
        for budget_bytes in [0, 1000, 100_000, 300_000, 600_000, 2_000_000, 1 << 30] {
            let communicators = make(4, options(|options| options.memory_budget_bytes = Some(budget_bytes))).unwrap();
            let errors = each_on_a_thread(&communicators, |communicator| {
                for collective in collectives(4) {
                    for algorithm in collective.algorithms() {
                        let mut buffer = vec![1.0_f32; 4096];
                        let call = communicator.call().algorithm(algorithm);
                        let result = match collective {
                            Collective::AllReduce => call.all_reduce_in_place(&mut buffer, Reduction::Sum),
                            Collective::ReduceScatter => call.reduce_scatter_in_place(&mut buffer, Reduction::Sum),
                            Collective::AllGather => call.all_gather_in_place(&mut buffer),
                            Collective::Broadcast { root } => call.broadcast_in_place(&mut buffer, root.index()),
                            _ => call.reduce_in_place(&mut buffer, Reduction::Sum, 0),
                        };
                        let held_bytes = communicator.memory().total_bytes();
                        assert!(
                            held_bytes <= budget_bytes,
                            "{held_bytes} bytes held of {budget_bytes} ({algorithm} {collective})"
                        );
                        if let Err(error) = result {
                            return Some(error);
                        }
                    }
                }
                None
            });
            if budget_bytes == 1 << 30 {
                assert_eq!(errors, [None, None, None, None]);
                continue;
            }
            if budget_bytes < 100_000 {
                assert!(errors.iter().all(Option::is_some), "{budget_bytes} bytes are not enough for anything");
            }
            for error in errors.iter().flatten() {
                assert_eq!(error.kind(), ErrorKind::Machine, "{error}");
                let Error::MemoryBudget { rank, needed_bytes, held_bytes, budget_bytes: budget, .. } = error else {
                    panic!("expected a budget, came: {error}")
                };
                assert!(*rank < 4 && *budget == budget_bytes && held_bytes + needed_bytes > budget_bytes, "{error}");
                let text = error.to_string();
                assert!(text.contains(&format!("the budget is {budget_bytes}")), "{error}");
                assert!(text.contains(&format!("no budget for {needed_bytes} bytes of ")), "{error}");
                assert_eq!(Some(error), errors[0].as_ref());
            }
        }
    });
}

pub(crate) fn a_memory_budget_of_what_is_needed_is_enough_and_a_byte_less_is_not(make: Make) {
    within(SOON, move || {
        for collective in collectives(3) {
            for algorithm in collective.algorithms() {
                let case =
                    Case { algorithm: Some(algorithm), ..Case::new(collective, DType::F32, Reduction::Sum, 500) };
                let free = make(3, options(|_| {})).unwrap();
                call(&free, &case, Drive::Threads);
                let needed_bytes = reports(&free).iter().map(MemoryReport::total_bytes).max().unwrap();
                let budget = |bytes| options(|options| options.memory_budget_bytes = Some(bytes));
                let enough = make(3, budget(needed_bytes)).unwrap();
                call(&enough, &case, Drive::Threads);
                // Plans that are kept for later make room for others.
                call(&enough, &Case { count: 499, ..case }, Drive::Threads);
                call(&enough, &case, Drive::Threads);
                assert!(reports(&enough).iter().all(|report| report.total_bytes() <= needed_bytes));
                let error = try_call(&make(3, budget(needed_bytes - 1)).unwrap(), &case, Drive::Threads).unwrap_err();
                assert!(error.contains("the budget is"), "{error}");
            }
        }
    });
}

pub(crate) fn a_trace_has_every_step_in_order(make: Make) {
    within(SOON, move || {
        on_threads(make(3, with_slots(64, 2)).unwrap(), |communicator| {
            let mut buffer = vec![1.0_f32; 200];
            let mut ring =
                || communicator.call().algorithm(Algorithm::Ring).all_reduce_in_place(&mut buffer, Reduction::Sum);
            ring().unwrap();
            assert_eq!(communicator.take_trace(), [], "nobody asked for a trace");
            communicator.start_trace(1000);
            ring().unwrap();
            assert!(communicator.memory().trace_bytes > 0);
            let trace = communicator.take_trace();
            // 200 elements in three blocks, each of several chunks of 16 elements, and 2 N − 1 steps for each chunk.
            let chunks = 72_usize.div_ceil(16).max(200_usize.div_ceil(3).div_ceil(16));
            assert_eq!(trace.len(), chunks * 5, "{trace:?}");
            let order: Vec<_> = trace.iter().map(|step| (step.iteration, step.step)).collect();
            let expected: Vec<_> =
                (0..chunks as u64).flat_map(|iteration| (0..5).map(move |step| (iteration, step))).collect();
            assert_eq!(order, expected);
            for pair in trace.windows(2) {
                assert!(pair[0].start <= pair[0].end && pair[0].start <= pair[1].start, "{pair:?}");
            }
            assert!(trace.iter().all(|step| step.program == 0 && step.end < SOON));
            assert_eq!(communicator.take_trace(), [], "taken twice");
            assert_eq!(communicator.memory().trace_bytes, 0);
            // A shorter one keeps the first steps, and those of several calls.
            communicator.start_trace(7);
            ring().unwrap();
            ring().unwrap();
            assert_eq!(communicator.take_trace().len(), 7);
            communicator.start_trace(0);
            ring().unwrap();
            assert_eq!(communicator.take_trace(), []);
        });
    });
}

pub(crate) fn a_trace_of_any_length_can_be_asked_for(make: Make) {
    within(SOON, move || {
        on_threads(make(2, options(|_| {})).unwrap(), |communicator| {
            communicator.start_trace(usize::MAX);
            communicator.barrier().unwrap();
            assert_eq!(communicator.take_trace().len(), 2);
        });
    });
}

pub(crate) fn a_trace_ends_where_the_memory_budget_does(make: Make) {
    within(LATER, move || {
        let budget_bytes = 1_000_000;
        let communicators = make(2, options(|options| options.memory_budget_bytes = Some(budget_bytes))).unwrap();
        on_threads(communicators, |communicator| {
            let sum = || communicator.all_reduce_in_place(&mut [1.0_f32; 100], Reduction::Sum);
            communicator.start_trace(usize::MAX);
            sum().unwrap();
            let steps_per_call = communicator.take_trace().len();
            communicator.start_trace(usize::MAX);
            for _ in 0..20_000 {
                sum().unwrap();
                let report = communicator.memory();
                assert!(report.total_bytes() <= budget_bytes, "{report}");
            }
            let report = communicator.memory();
            assert!(report.total_bytes() > budget_bytes - 100, "there was room for more: {report}");
            let trace = communicator.take_trace();
            assert!(trace.len() > 1000 && trace.len() < 20_000 * steps_per_call, "{} steps", trace.len());
            assert!(trace.is_sorted_by_key(|step| step.start));
            // Room that no step has come to yet is given to whoever needs it: to another plan.
            communicator.start_trace(usize::MAX);
            while communicator.memory().total_bytes() <= budget_bytes - 100 {
                sum().unwrap();
            }
            let ring = communicator.call().algorithm(Algorithm::Ring);
            ring.all_reduce_in_place(&mut [1.0_f32; 100], Reduction::Sum).unwrap();
            assert!(communicator.memory().total_bytes() <= budget_bytes);
            assert!(communicator.take_trace().len() > 1000);
        });
    });
}

pub(crate) fn memory_and_plans_can_be_looked_at_while_a_call_waits(make: Make) {
    within(SOON, move || {
        let communicators = make(2, options(|_| {})).unwrap();
        let waiting = communicators[0].all_reduce_async(vec![1.0_f32; 10], Reduction::Sum).unwrap();
        // It is the call's own plan that is held, as soon as the call has begun.
        while communicators[0].memory().plans == 0 {
            std::thread::yield_now();
        }
        assert!(communicators[0].plan(Collective::AllReduce, 10, DType::F32).is_ok());
        assert!(!waiting.is_done());
        communicators[1].all_reduce_in_place(&mut [1.0_f32; 10], Reduction::Sum).unwrap();
        assert_eq!(waiting.wait().unwrap(), [2.0; 10]);
    });
}

pub(crate) fn a_plan_can_be_looked_at_before_it_runs(make: Make) {
    within(SOON, move || {
        let communicator = &make(5, options(|_| {})).unwrap()[3];
        for collective in collectives(5) {
            for count in [0, 1, 1000, 1 << 20] {
                let plan = communicator.plan(collective, count, DType::BF16).unwrap();
                assert_eq!((plan.collective, plan.count, plan.element_bytes), (collective, count as u64, 2));
                assert_eq!(plan.rank_count(), 5);
                assert!(plan.algorithm.offers(collective));
            }
        }
        let error = communicator.plan(Collective::Reduce { root: Rank(5) }, 1, DType::F32).unwrap_err();
        assert!(matches!(error, Error::Plan { .. }), "{error}");
        let error = communicator.plan(Collective::AllReduce, usize::MAX, DType::F32).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Caller);
    });
}

pub(crate) fn slots_beyond_all_memory_are_a_typed_error_on_every_rank(make: Make) {
    within(SOON, move || {
        // 64 TiB for each connection.
        let communicators = make(8, with_slots(1 << 30, 1 << 16)).unwrap();
        let errors = each_on_a_thread(&communicators, |communicator| {
            communicator.all_reduce_in_place(&mut [1.0_f32], Reduction::Sum).expect_err("so much memory")
        });
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Machine, "{error}");
            assert!(matches!(error, Error::OutOfMemory { needed_bytes: 70_368_744_177_664.., .. }), "{error}");
        }
    });
}

pub(crate) fn a_communicators_algorithm_is_used_where_it_offers_the_collective(make: Make) {
    within(SOON, move || {
        for algorithm in Algorithm::ALL {
            let communicators = make(4, options(|options| options.algorithm = Some(algorithm))).unwrap();
            for collective in collectives(4) {
                let plan = communicators[0].plan(collective, 100, DType::F32).unwrap();
                assert_eq!(plan.algorithm == algorithm, algorithm.offers(collective), "{algorithm} {collective}");
                call(&communicators, &Case::new(collective, DType::F32, Reduction::Sum, 100), Drive::Group);
            }
            on_threads(communicators, |communicator| communicator.barrier().unwrap());
        }
    });
}

pub(crate) fn every_setting_has_a_method_that_changes_it_alone(make: Make) {
    type Change = fn(&mut Options);
    let second = Duration::from_secs(1);
    let changed: [(Options, Change); 6] = [
        (Options::default().progress_timeout(second), |options| options.progress_timeout = Duration::from_secs(1)),
        (Options::default().arrival_timeout(second), |options| options.arrival_timeout = Duration::from_secs(1)),
        (Options::default().memory_budget_bytes(7), |options| options.memory_budget_bytes = Some(7)),
        (Options::default().algorithm(Algorithm::Tree), |options| options.algorithm = Some(Algorithm::Tree)),
        (Options::default().slot_bytes(128), |options| options.slot_bytes = 128),
        (Options::default().slots(2), |options| options.slots = 2),
    ];
    for (came, change) in changed {
        assert_eq!(came, options(change));
        assert_ne!(came, Options::default());
        make(2, came).unwrap();
    }
}

pub(crate) fn communicators_and_errors_can_go_between_threads(_make: Make) {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    fn owned<T: 'static>() {}
    send::<Communicator>();
    sync::<Communicator>();
    owned::<Communicator>();
    send::<AbortHandle>();
    sync::<AbortHandle>();
    send::<Pending<Vec<f32>>>();
    sync::<Pending<Vec<f32>>>();
    send::<Failed<Vec<half::f16>>>();
    send::<Error>();
    sync::<Error>();
    send::<Options>();
    sync::<Options>();
    send::<MemoryReport>();
}
