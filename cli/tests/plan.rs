//! `tutti plan` from end to end.

mod common;

use common::{finish, run_line, run_line_within, tutti};
use serde_json::Value;
use std::io::Read;
use std::process::Stdio;

#[test]
fn a_plan_is_printed_in_a_form_that_parses_back() {
    let outcome = run_line("plan all_reduce -g 4 --size 4K --algorithm ring --verify").good();
    let plan: tutti::plan::Plan = outcome.stdout.parse().unwrap();
    assert_eq!((plan.rank_count(), plan.count), (4, 1024));
    // 2 (N − 1) / N of 4096 bytes.
    assert!(outcome.stdout.contains("\n# rank 3: sends 6144 bytes; "), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("\n# verified: "), "{}", outcome.stdout);
}

#[test]
fn every_collective_has_a_plan_that_is_verified() {
    for collective in ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "barrier"] {
        for (ranks, size) in [(1, 4), (3, 12), (3, 1200 * 1024), (8, 0), (8, 32)] {
            let size = if collective == "barrier" { String::new() } else { format!("--size {size}") };
            let outcome = run_line(&format!("plan {collective} -g {ranks} {size} --verify")).good();
            assert!(outcome.stdout.contains("# verified: "), "{}", outcome.stdout);
        }
    }
    let outcome = run_line("plan broadcast -g 5 -r 3 --size 2 -d bf16 --algorithm chain").good();
    assert!(outcome.stdout.starts_with("plan broadcast root r3 chain ranks 5 count 1 element_bytes 2\n"));
    assert!(!outcome.stdout.contains("verified"));
}

#[test]
fn the_json_holds_the_plan_and_its_summary() {
    let outcome = run_line("plan reduce-scatter -g 2 --size 64 --algorithm ring --verify --json").good();
    let summary: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&summary["collective"], &summary["algorithm"]), (&"reduce_scatter".into(), &"ring".into()));
    assert_eq!((&summary["count"], &summary["rank_count"]), (&8.into(), &2.into()));
    assert_eq!((&summary["verified"], &summary["violations"]), (&true.into(), &serde_json::json!([])));
    assert_eq!(summary["ranks"][1]["sent_bytes"], 32);
    assert!(summary["plan"].as_str().unwrap().parse::<tutti::plan::Plan>().is_ok());
    let unverified = run_line("plan barrier -g 2 --json").good();
    assert_eq!(serde_json::from_str::<Value>(&unverified.stdout).unwrap()["verified"], Value::Null);
}

#[test]
fn nonsense_is_a_usage_error() {
    for (line, said) in [
        ("plan all_reduce -g 4 --size 6", "multiple of 4"),
        ("plan all_reduce -g 4 --size 3 -d half", "multiple of 2"),
        ("plan all_gather -g 3 --size 16", "multiple of 12"),
        ("plan all_reduce -g 4", "--size"),
        ("plan all-reduce -g 4", "--size"),
        ("plan all_reduce --size 4", "--ranks"),
        ("plan all_reduce -g 0 --size 4", "1 to 1024 ranks"),
        ("plan all_reduce -g 100000 --size 4", "1 to 1024 ranks"),
        ("plan reduce -g 2 -r 2 --size 4", "counted from 0"),
        ("plan reduce -g 2 -r -1 --size 4", "whole number"),
        ("plan all_reduce -g -1 --size 4", "1 to 1024 ranks"),
        ("plan all_reduce -g 2 --size -1", "K, M, G or T"),
        ("plan all_reduce -g 2 --size 1E", "K, M, G or T"),
        ("plan all_reduce -g 2 --size 4 --algorithm chain", "does not offer"),
        ("plan barrier -g 2 -s 5", "expected no --size"),
        ("plan barrier -g 2 -s 0", "expected no --size"),
        ("plan barrier -g 2 -d half", "expected no --datatype"),
        ("plan all_reduce -g 2 -s 8 -r 1", "expected no --root"),
        ("plan teleport -g 2 --size 4", "all_reduce"),
        ("plan", "COLLECTIVE"),
        ("", "Usage"),
        ("fly", "fly"),
    ] {
        let outcome = run_line(line);
        assert_eq!(outcome.code, Some(2), "{line}: {outcome:?}");
        assert!(outcome.stderr.contains(said), "{line}: {}", outcome.stderr);
    }
}

#[test]
fn the_largest_plans_end_quickly() {
    for line in ["plan all_reduce -g 2 --size 65536T", "plan broadcast -g 1024 --size 4K --algorithm tree"] {
        run_line(line).good();
    }
}

#[test]
fn a_plan_that_is_too_large_to_verify_is_not_called_wrong_and_not_printed() {
    let line = "plan all_reduce -g 600 --size 4 --algorithm one_shot --verify";
    for quiet in ["", " --quiet"] {
        let outcome = run_line(&format!("{line}{quiet}")).failed(3, &["not verified", "too large"]);
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.matches("too large").count()), ("", 1));
    }
    let outcome = run_line(&format!("{line} --json")).failed(3, &["not verified"]);
    let summary: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(summary["verified"], Value::Null);
    assert!(run_line("plan --help").good().stdout.contains("3 if the plan is too large to be verified"));
}

#[test]
fn a_quiet_plan_is_its_summary_and_its_verdict() {
    let line = "plan all_reduce -g 3 --size 4K --algorithm ring --verify";
    let (all, quiet) = (run_line(line).good(), run_line(&format!("{line} -q")).good());
    let summary: String =
        all.stdout.lines().filter(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    assert_eq!(quiet.stdout, summary);
    assert_eq!(quiet.stdout.lines().count(), 4);
    let quiet = run_line(&format!("{line} --quiet --json")).good();
    let summary: Value = serde_json::from_str(&quiet.stdout).unwrap();
    assert_eq!((&summary["plan"], &summary["verified"]), (&Value::Null, &true.into()));
}

#[test]
#[cfg(target_os = "linux")]
fn a_plan_that_the_addresses_have_no_room_for_is_refused() {
    run_line_within(200_000, "plan all_reduce -g 512 -s 64M --verify").failed(3, &["ulimit -v", "verifying the plan"]);
    run_line_within(60_000, "plan all_reduce -g 1024 -s 4 --algorithm one_shot").failed(1, &["ulimit -v"]);
    run_line_within(200_000, "plan all_reduce -g 16 -s 1M --verify").good();
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = tutti()
        .args(["plan", "all_reduce", "-g", "64", "--size", "1M", "--algorithm", "ring"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(&first, b"plan all_r");
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn a_reader_that_goes_away_does_not_take_the_verdict_along() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let line = "plan all_reduce -g 600 --size 4 --algorithm one_shot --verify --json";
    finish(tutti().args(line.split(' ')).stdout(writer)).failed(3, &["not verified"]);
}

#[test]
fn help_and_version_are_there() {
    assert!(run_line("--version").good().stdout.starts_with("tutti "));
    let help = run_line("--help").good().stdout;
    for command in ["perf", "reduce", "plan", "ptx"] {
        assert!(help.contains(command), "{help}");
        assert!(run_line(&format!("{command} --help")).good().stdout.contains("Exit code: 0"));
    }
}
