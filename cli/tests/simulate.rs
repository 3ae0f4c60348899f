//! `tutti simulate`, `tutti train-cost` and the machines of `tutti topo`, from end to end.

mod common;

use common::{run, run_line};
use serde_json::Value;

#[test]
fn a_simulation_is_a_table_with_the_critical_path_and_the_busiest_links() {
    let outcome = run_line("simulate all_reduce --topo dgx1v --size 16M").good();
    let text = &outcome.stdout;
    assert!(text.starts_with("# all_reduce among 8 ranks on dgx1v, simulated\n"), "{text}");
    for algorithm in ["ring", "tree", "one_shot", "direct"] {
        assert!(
            text.contains(&format!("\n      16777216  {algorithm} ")) || text.contains(&format!("  {algorithm} ")),
            "{text}"
        );
        assert!(text.contains(&format!("\n{algorithm}\n  critical path: ")), "{text}");
    }
    assert!(text.contains("gpu0 -> gpu1 (nvlink2)"), "{text}");
    // No switch of that machine reduces.
    assert!(!text.contains("nvls"), "{text}");
}

#[test]
fn a_sweep_is_json_with_more_bandwidth_for_more_data() {
    let outcome = run_line("simulate all_gather --topo dgx-a100 -b 64K -e 64M -f 32 --algorithm ring --json").good();
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&report["rank_count"], &report["topology"]), (&8.into(), &"dgx-a100".into()));
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    let bandwidths: Vec<f64> = rows.iter().map(|row| row["bus_bandwidth_gb_per_s"].as_f64().unwrap()).collect();
    assert!(bandwidths.is_sorted() && bandwidths[2] > 100.0 && bandwidths[2] < 240.0, "{bandwidths:?}");
}

#[test]
fn pictures_and_traces_are_files_that_appear_whole() {
    let folder = tempfile::tempdir().unwrap();
    let [svg, trace] = ["busbw.svg", "trace.json"].map(|name| folder.path().join(name));
    let line =
        ["simulate", "all_reduce", "--topo", "dgx1v x2", "-b", "1K", "-e", "1M", "--algorithm", "ring,tree", "--svg"];
    run(line.iter().map(AsRef::as_ref).chain([svg.as_os_str()])).good();
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n") && picture.matches("<polyline").count() == 2);
    let line = ["simulate", "all_reduce", "--topo", "v100-x4", "-s", "1M", "--algorithm", "ring", "--trace"];
    run(line.iter().map(AsRef::as_ref).chain([trace.as_os_str()])).good();
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 50);
}

#[test]
fn slow_links_and_ranks_take_longer_and_a_dead_link_is_an_error_that_names_who_waits() {
    let time = |more: &str| -> f64 {
        let line = format!("simulate all_reduce --topo dgx-a100 --size 64M --algorithm ring --json {more}");
        let report: Value = serde_json::from_str(&run_line(&line).good().stdout).unwrap();
        report["rows"][0]["time_us"].as_f64().unwrap()
    };
    let well = time("");
    assert!(time("--slow-link gpu3:nvswitch=0.25") > 2.0 * well);
    assert!(time("--slow-rank 3=20") > 1.05 * well);
    let outcome =
        run_line("simulate all_reduce --topo dgx-a100 --size 1M --algorithm ring --slow-link gpu3:nvswitch=0");
    assert_eq!(outcome.code, Some(1));
    assert!(
        outcome.stderr.contains(
            "nothing moves any more: r2 p0 s0 waits for bytes to cross nvswitch -> gpu3 (nvlink3 x12), which is dead"
        ),
        "{outcome:?}"
    );
}

#[test]
fn a_wrong_command_line_says_what_was_expected() {
    for (line, expected) in [
        ("simulate all_reduce --size 1M", "expected --topo MACHINE"),
        ("simulate all_reduce --topo dgx9 --size 1M", "there is no machine \"dgx9\"; there are dgx1v, "),
        ("simulate all_reduce --topo dgx1v", "expected --size SIZE, or sizes from -b to -e"),
        ("simulate all_reduce --topo dgx1v --net token-ring --size 1M", "expected a network"),
        ("simulate barrier --topo dgx1v --size 1M", "expected no size"),
        ("simulate broadcast --topo dgx1v --size 1M -r 8", "8"),
        ("simulate all_reduce --topo dgx1v --size 1M --algorithm chain", "chain does not offer all_reduce"),
        ("simulate all_reduce --topo dgx1v --size 1M --slow-link gpu0:gpu7=0.5", "no link joins gpu0 and gpu7"),
        ("simulate all_reduce --topo dgx1v --size 1M --slow-link gpu0:gpu1=2", "expected a part from 0 to 1"),
        ("simulate all_reduce --topo dgx1v --size 1M --slow-rank 9=2", "of an existing rank"),
        ("simulate all_reduce --topo dgx1v -b 1K --trace x.json", "expected one size and one algorithm"),
        ("train-cost --parameters 1M --step-ms 1", "expected --topo MACHINE"),
        ("train-cost --parameters no --step-ms 1", "expected a number of parameters"),
    ] {
        let outcome = run_line(line);
        assert_eq!(outcome.code, Some(2), "{line}: {outcome:?}");
        assert!(outcome.stderr.contains(expected), "{line}: {outcome:?}");
    }
}

#[test]
fn communications_share_of_a_step_is_what_bandwidth_makes_it() {
    let share = |line: &str| -> f64 {
        let line = format!("train-cost --parameters 340M -d half --step-ms 153.5 --json {line}");
        let report: Value = serde_json::from_str(&run_line(&line).good().stdout).unwrap();
        report["share"].as_f64().unwrap()
    };
    assert!((share("--ranks 8 --busbw 7.2") - 0.52).abs() < 0.005);
    assert!((share("--ranks 8 --busbw 135.5") - 0.05).abs() < 0.005);
    assert_eq!(share("--ranks 1 --busbw 1"), 0.0);
    let (nvlink, pcie) = (share("--topo dgx1v"), share("--topo pcie3-x8"));
    assert!(nvlink < 0.08 && (0.4..0.7).contains(&pcie), "{nvlink} over NVLink, {pcie} over PCI Express");
}

#[test]
fn machines_and_link_classes_are_shown() {
    let outcome = run_line("topo --topo dgx1v").good();
    assert!(outcome.stdout.contains("gpu0  X     NV1   NV1   NV2   NV2   NVB   NVB   NVB\n"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("\n6 rings"), "{}", outcome.stdout);
    let links: Value = serde_json::from_str(&run_line("topo --links --json").good().stdout).unwrap();
    let nvlink2 = links.as_array().unwrap().iter().find(|row| row["class"] == "nvlink2").unwrap();
    assert_eq!((nvlink2["textbook_gb_per_s"].as_f64(), nvlink2["usable_gb_per_s"].as_f64()), (Some(50.0), Some(20.0)));
    let presets = run_line("topo --presets").good().stdout;
    assert!(presets.lines().any(|line| line.starts_with("hgx-b200  ")), "{presets}");
}

#[test]
fn advice_names_the_quickest_and_where_rings_and_trees_meet() {
    let advice: Value = serde_json::from_str(&run_line("advise --topo v100-x4 --json").good().stdout).unwrap();
    let rows = advice["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 25);
    let row = |collective: &str, size: u64| {
        rows.iter().find(|row| row["collective"] == collective && row["size_bytes"] == size).unwrap()
    };
    let quickest = |collective, size| row(collective, size)["candidates"][0]["algorithm"].as_str().unwrap();
    assert_eq!((quickest("all_reduce", 1 << 10), quickest("all_reduce", 1 << 30)), ("one_shot", "direct"));
    assert_eq!(row("all_reduce", 1 << 30)["nccl"]["algorithm"], "Ring");
    let text = run_line("advise --topo v100-x4").good().stdout;
    assert!(text.contains("rings and trees meet between "), "{text}");
    run_line("advise").failed(2, &["expected --topo MACHINE"]);
}

#[test]
fn a_file_is_a_machine_and_what_is_wrong_with_it_is_said_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let matrix = file("pair.txt", "GPU0 GPU1\nGPU0 X NV2\nGPU1 NV2 X\n");
    let outcome = run(["topo", "--topo", &matrix]).good();
    assert!(outcome.stdout.starts_with("pair.txt: 2 ranks on 1 host\n"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("assumed V100"), "{}", outcome.stderr);
    run(["simulate", "all_reduce", "--size", "1M", "--topo", &matrix]).good();
    let wrong = file("wrong.xml", "<system version='1'>\n<cpu><pci/></cpu></system>");
    run(["topo", "--topo", &wrong]).failed(1, &["wrong.xml:2: expected a busid"]);
    run(["topo", "--topo", "no-such-machine"]).failed(2, &["there is no machine", "nor is there a file"]);
}
