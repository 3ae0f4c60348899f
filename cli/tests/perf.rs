//! `tutti perf` from end to end: the table, the JSON, the checks and what is refused.

mod common;

use common::{Outcome, finish, run, run_line, run_line_within, tutti};
use serde_json::Value;
use tutti::DType;

/// The rows of a table, as words.
fn rows(outcome: &Outcome) -> Vec<Vec<&str>> {
    let lines = outcome.stdout.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().collect()).collect()
}

#[track_caller]
fn all_is_right(outcome: &Outcome) {
    for row in rows(outcome) {
        assert_eq!(row.len(), 13, "{row:?}");
        assert_eq!((row[8], row[12]), ("0", "0"), "{row:?}");
    }
    assert!(
        outcome.stdout.contains("\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : "),
        "{}",
        outcome.stdout
    );
}

#[test]
fn every_type_and_reduction_is_right_for_every_collective() {
    for collective in ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"] {
        for ranks in ["1", "3"] {
            let line = format!("perf {collective} -g {ranks} -b 2 -e 40000 -f 11 -n 1 -d all -o all -c 2");
            let outcome = run_line(&line).good();
            // Sizes are 2, 22, 242, 2662 and 29282 bytes; those that hold no whole element for each rank are left out.
            let blocks =
                if ["reduce_scatter", "all_gather"].contains(&collective) { ranks.parse().unwrap() } else { 1 };
            let sizes = |dtype: &DType| {
                [2, 22, 242, 2662, 29282].iter().filter(|&&size| size >= dtype.bytes() * blocks).count()
            };
            let reductions = |dtype: &DType| if collective.contains("reduce") { dtype.reductions().count() } else { 1 };
            let expected: usize = DType::ALL.iter().map(|dtype| sizes(dtype) * reductions(dtype)).sum();
            assert_eq!(rows(&outcome).len(), expected, "{line}");
            all_is_right(&outcome);
        }
    }
}

#[test]
fn every_algorithm_is_right() {
    for (collective, algorithms) in [
        ("all_reduce", &["ring", "tree", "one_shot", "direct"][..]),
        ("reduce_scatter", &["ring", "direct"]),
        ("all_gather", &["ring", "direct"]),
        ("broadcast", &["tree", "chain", "direct"]),
        ("reduce", &["tree", "chain", "direct"]),
    ] {
        for algorithm in algorithms {
            let line =
                format!("perf {collective} --algorithm {algorithm} -g 4 -b 20 -e 1M -f 37 -n 1 -d bf16 -o avg -r all");
            all_is_right(&run_line(&line).good());
        }
    }
}

#[test]
fn buffers_off_their_alignment_are_right() {
    for unalign in ["1", "3", "7"] {
        let line = format!("perf all_reduce -g 3 -b 6 -e 100K -f 13 -n 2 -d half -u {unalign}");
        all_is_right(&run_line(&line).good());
    }
}

#[test]
fn the_table_has_the_lines_of_nccl_tests() {
    let outcome = run_line("perf all_reduce -g 2 -b 8 -e 32 -f 2 -n 3 -w 2").good();
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert!(lines[0].starts_with("# tutti version "));
    assert_eq!(lines[1], "# Collective test starting: all_reduce_perf");
    assert_eq!(
        lines[2],
        "# nThread 1 nGpus 2 minBytes 8 maxBytes 32 step: 2(factor) warmup iters: 2 iters: 3 agg iters: 1 validation: 1 \
         graph: 0 unalign: 0"
    );
    assert_eq!(&lines[3..5], ["#", "# Using devices"]);
    assert!(lines[5].starts_with("#  Rank  0 Group  0 Pid ") && lines[6].starts_with("#  Rank  1 Group  0 Pid "));
    assert_eq!(lines[7], "#");
    assert!(lines[8].trim_end().ends_with("out-of-place                       in-place"));
    assert!(
        lines[9].starts_with("#       size         count      type   redop    root     time   algbw   busbw  #wrong")
    );
    let row = lines[11];
    assert!(row.starts_with("           8             2     float     sum      -1  "), "{row}");
    assert_eq!(row.len(), lines[9].len(), "{row}");
    let end = &lines[lines.len() - 5..];
    assert_eq!(end[0], "# Out of bounds values : 0 OK");
    assert!(end[1].strip_prefix("# Avg bus bandwidth    : ").unwrap().parse::<f64>().unwrap() > 0.0);
    assert_eq!(&end[2..], ["#", "# Collective test concluded: all_reduce_perf", "#"]);
}

#[test]
fn counts_of_one_block_may_be_odd_and_zero() {
    let outcome = run_line("perf reduce_scatter -g 3 -b 0 -e 48 -i 12 -n 1").good();
    let sizes: Vec<(&str, &str)> = rows(&outcome).iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(sizes, [("0", "0"), ("12", "1"), ("24", "2"), ("36", "3"), ("48", "4")]);
    all_is_right(&outcome);
    let outcome = run_line("perf all_gather -g 7 -b 14 -e 100 -i 32 -n 1 -d half").good();
    all_is_right(&outcome);
}

#[test]
fn sizes_have_the_units_of_nccl_tests() {
    let outcome = run_line("perf -g 1 -b 8K -e 8M -f 1024 -n 1 -w 0").good();
    assert_eq!(rows(&outcome).iter().map(|row| row[0]).collect::<Vec<_>>(), ["8192", "8388608"]);
}

#[test]
fn each_size_is_measured_once() {
    let outcome = run_line("perf -b 12 -e 16 -i 1 -n 1").good();
    assert_eq!(rows(&outcome).iter().map(|row| row[0]).collect::<Vec<_>>(), ["12", "16"]);
}

#[test]
fn a_barrier_is_one_row_and_is_checked() {
    let outcome = run_line("perf barrier -g 4 -n 5 -c 50").good();
    assert_eq!(rows(&outcome).len(), 1);
    assert_eq!(rows(&outcome)[0][..5], ["0", "0", "none", "none", "-1"]);
    all_is_right(&outcome);
}

#[test]
fn without_checks_wrong_elements_are_not_available() {
    let outcome = run_line("perf -g 2 -b 8 -e 8 -n 1 -c 0").good();
    assert_eq!((rows(&outcome)[0][8], rows(&outcome)[0][12]), ("N/A", "N/A"));
}

#[test]
fn every_root_has_its_row() {
    let outcome = run_line("perf broadcast -g 3 -b 8 -e 8 -n 1 -r all").good();
    assert_eq!(rows(&outcome).iter().map(|row| row[4]).collect::<Vec<_>>(), ["0", "1", "2"]);
}

#[test]
fn the_json_says_what_the_table_says() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("result.json");
    let line = "perf reduce -g 3 -b 12 -e 1K -f 8 -n 4 -r 2 -I 1 -K 1 -S 1 -o max -J";
    let outcome = run(line.split(' ').map(Into::into).chain([path.clone().into_os_string()])).good();
    assert!(outcome.stdout.contains("# Writing JSON output to "));
    assert!(outcome.stdout.contains("i_p99") && outcome.stdout.contains("timestamp"));
    let report: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(report["version"], 3);
    assert_eq!(report["config"]["devices"].as_array().unwrap().len(), 3);
    assert_eq!(report["config"]["step_factor"], 8);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    for (result, size) in results.iter().zip([12, 96, 768]) {
        assert_eq!((&result["size"], &result["count"]), (&Value::from(size), &Value::from(size / 4)));
        assert_eq!((&result["type"], &result["redop"], &result["root"]), (&"float".into(), &"max".into(), &2.into()));
        for half in ["out_of_place", "in_place"] {
            assert_eq!(result[half]["nwrong"], 0);
            assert!(result[half]["time"].as_f64().unwrap() > 0.0);
            let iterations = &result[format!("{half}_per_iter")];
            assert_eq!(iterations["times_us"].as_array().unwrap().len(), 4);
            assert_eq!(iterations["skipped_iterations"], 1);
        }
    }
    assert_eq!(report["out_of_bounds"]["okay"], true);
    assert_eq!(report["average_bus_bandwidth"]["okay"], "unchecked");
    assert_eq!(report["errors"], serde_json::json!([]));
    assert_eq!(common::names(directory.path()), ["result.json"]);
}

#[test]
fn a_table_that_nobody_reads_to_its_end_leaves_a_json_that_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("result.json");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let outcome = finish(tutti().args(["perf", "-b", "8", "-e", "8", "-J"]).arg(&path).stdout(writer)).good();
    assert_eq!(outcome.stderr, "");
    let report: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(report["errors"], serde_json::json!(["not complete: standard output was closed"]));
}

#[test]
fn json_on_standard_output_is_alone_there() {
    let outcome = run_line("perf -g 2 -b 8 -e 8 -n 1 -J -").good();
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["results"][0]["size"], 8);
    assert!(outcome.stderr.contains("# Out of bounds values : 0 OK"));
}

#[test]
fn a_bandwidth_that_is_missed_is_a_failure() {
    let perf = |minimum: &str| finish(tutti().args(["perf", "-b", "8", "-e", "8"]).env("NCCL_TESTS_MIN_BW", minimum));
    let outcome = perf("1e9").failed(1, &["below 0.9 times NCCL_TESTS_MIN_BW"]);
    assert!(outcome.stdout.contains(" FAILED\n"), "{}", outcome.stdout);
    assert!(perf("1e-9").good().stdout.contains(" OK\n#\n"));
    assert_eq!(perf("abc").failed(2, &["NCCL_TESTS_MIN_BW=abc: expected a number of GB/s"]).stdout, "");
}

#[test]
fn what_does_not_fit_the_memory_is_refused_before_it_is_tried() {
    run_line("perf -b 1000T").failed(1, &["2 ranks", "available", "-e or -g"]);
    run_line("perf all_gather -g 200 -e 1T").failed(1, &["200 ranks", "available"]);
    // A connection for each pair: a quarter of a TiB.
    run_line("perf all_reduce --algorithm one_shot -g 1024 -b 8 -e 8")
        .failed(1, &["1024 ranks", "1047552 connections of 8 slots of 32 KiB", "available", "--algorithm"]);
}

#[test]
fn nonsense_is_a_usage_error() {
    for (line, said) in [
        ("perf -b 1E", "K, M, G or T"),
        ("perf -g 100000", "1 to 1024 ranks"),
        ("perf -g 0", "1 to 1024 ranks"),
        ("perf -g -1", "1 to 1024 ranks"),
        ("perf -g 9223372036854775808", "1 to 1024 ranks"),
        ("perf -t 600 -g 2", "-t 600 -g 2: expected 1 to 1024 ranks, got 1200"),
        ("perf -b -1", "--minbytes"),
        ("perf -b=", "--minbytes"),
        ("perf -b 1e3", "K, M, G or T"),
        ("perf -e 9223372036854775808", "too large"),
        ("perf -n -5", "whole number"),
        ("perf -w 9223372036854775808", "from 0 to 1000000000"),
        ("perf -c 1e3", "from 0 to 1000000000"),
        ("perf -N -1", "whole number"),
        ("perf -f -1", "2 or more"),
        ("perf all_reduce -r 5 -g 2", "there are 2 ranks, counted from 0"),
        ("perf -r -2", "expected a rank"),
        ("perf all_gather -g 4 -b 8 -e 8", "no size holds one f32 element for each of 4 ranks"),
        ("perf -b 1M -e 1K", "larger than -e"),
        ("perf -i 0", "at least one byte"),
        ("perf -f 1", "--stepfactor"),
        ("perf -f 0", "--stepfactor"),
        ("perf -n 0", "--iters"),
        ("perf -r 2 reduce", "counted from 0"),
        ("perf nothing", "all_reduce"),
        ("perf -d int4", "bfloat16"),
        ("perf -d half -o band", "band is offered by i8, u8, i16"),
        ("perf --algorithm chain", "offered by"),
        ("perf -J result.txt", ".json"),
    ] {
        run_line(line).failed(2, &[said]);
    }
    run_line("perf -J /no/such/directory/x.json").failed(1, &["/no/such/directory/x.json"]);
}

#[test]
#[cfg(target_os = "linux")]
fn more_ranks_than_the_addresses_have_room_for_are_refused() {
    for _ in 0..5 {
        run_line_within(200_000, "perf -g 64 -b 16K -e 16K -n 1").failed(1, &["64 ranks", "ulimit -v"]);
    }
    all_is_right(&run_line_within(300_000, "perf -g 2 -b 16K -e 16K -n 1").good());
}
