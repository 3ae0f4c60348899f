//! `tutti perf --device cuda` and `tutti topo` from end to end, on the driver in software: the table, the JSON, and what is refused.

mod common;

use common::{Outcome, finish, tutti};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use tempfile::NamedTempFile;
use tutti::DType;

/// Where cargo leaves the driver that it builds beside the tests.
fn software_driver() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.join("libsoftcuda.so")
}

/// Runs a command line on the devices of a topology.
fn run_on(topology: &str, line: &str) -> Outcome {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(topology.as_bytes()).unwrap();
    let command = &mut tutti();
    command.env("TUTTI_LIBCUDA", software_driver()).env("SOFTGPU_TOPOLOGY", file.path());
    finish(command.args(line.split_whitespace()))
}

/// Whether the kernels are there; a build without them is right to say so, and then there is nothing more to see.
fn has_kernels() -> bool {
    let Err(reason) = tutti::ptx::images() else { return true };
    run_on("devices = 1", "perf --device cuda").failed(1, &[&reason.to_string()]);
    false
}

fn rows(outcome: &Outcome) -> Vec<Vec<&str>> {
    let lines = outcome.stdout.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().collect()).collect()
}

#[track_caller]
fn all_is_right(outcome: &Outcome, row_count: usize) {
    assert_eq!(rows(outcome).len(), row_count, "{}", outcome.stdout);
    for row in rows(outcome) {
        assert_eq!((row.len(), row[8], row[12]), (13, "0", "0"), "{row:?}");
    }
    assert!(outcome.stdout.contains("\n# Out of bounds values : 0 OK\n"), "{}", outcome.stdout);
}

#[test]
fn every_collective_is_right_on_every_number_of_gpus() {
    if !has_kernels() {
        return;
    }
    for collective in ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"] {
        for (gpus, ranks_per_gpu) in [(1, 1), (3, 1), (2, 2)] {
            let line = format!(
                "perf {collective} --device cuda --ranks-per-gpu {ranks_per_gpu} -b 48 -e 500 -f 9 -n 2 -u 1 -d bf16"
            );
            all_is_right(&run_on(&format!("devices = {gpus}"), &line).good(), 2);
        }
    }
    all_is_right(&run_on("devices = 2", "perf barrier --device cuda -n 2 -c 3").good(), 1);
}

#[test]
fn every_type_and_reduction_is_right() {
    if !has_kernels() {
        return;
    }
    let expected: usize = DType::ALL.iter().map(|dtype| dtype.reductions().count()).sum();
    let outcome = run_on("devices = 2", "perf all_reduce --device cuda -b 136 -e 136 -n 1 -w 0 -d all -o all").good();
    all_is_right(&outcome, expected);
}

#[test]
fn paths_through_memory_of_the_host_are_right_too() {
    if !has_kernels() {
        return;
    }
    let outcome = run_on("devices = 2\nlink = \"none\"", "perf --device cuda -b 8 -e 4K -f 512 -n 2").good();
    all_is_right(&outcome, 2);
    assert_eq!(outcome.stderr, "");
}

#[test]
fn captured_calls_are_right_and_timed_by_the_call() {
    if !has_kernels() {
        return;
    }
    for collective in ["all_reduce", "all_gather", "reduce"] {
        let line = format!("perf {collective} --device cuda --ranks-per-gpu 2 -b 64 -e 64 -n 3 -G 2 -c 2");
        let outcome = run_on("devices = 1", &line).good();
        all_is_right(&outcome, 1);
        assert!(outcome.stdout.contains(" graph: 2 "), "{}", outcome.stdout);
    }
}

#[test]
fn the_table_and_the_json_name_the_gpus() {
    if !has_kernels() {
        return;
    }
    let topology = "[[devices]]\nname = \"Some GPU\"\n[[devices]]\nname = \"Other \\u001bGPU\"";
    let outcome = run_on(topology, "perf --device cuda -g 3 --ranks-per-gpu 2 -b 8 -e 8 -n 2 -I 1 -J -").good();
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let config = &report["config"];
    assert_eq!((&config["device"], &config["ranks_per_gpu"], &config["ngpus"]), (&"cuda".into(), &2.into(), &3.into()));
    assert_eq!((&config["cuda_version"], &config["graph"]), (&"12.9".into(), &0.into()));
    let devices = config["devices"].as_array().unwrap();
    assert_eq!(devices.iter().map(|device| device["device"].as_i64().unwrap()).collect::<Vec<_>>(), [0, 0, 1]);
    assert_eq!(devices[0]["device_info"], "Some GPU");
    assert_eq!(report["results"][0]["in_place_per_iter"]["times_us"].as_array().unwrap().len(), 2);
    assert_eq!(report["errors"], serde_json::json!([]));
    assert!(outcome.stderr.contains(" device  0 [0000:"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("] Other \\u{1b}GPU\n"), "{}", outcome.stderr);
}

#[test]
fn the_json_of_ranks_on_the_cpu_says_so() {
    let outcome = finish(tutti().args(["perf", "--device", "cpu", "-b", "8", "-e", "8", "-n", "1", "-J", "-"])).good();
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["config"]["device"], "cpu");
    assert_eq!(report["config"].get("ranks_per_gpu"), None);
}

#[test]
fn without_a_driver_there_is_one_line_that_says_so() {
    for line in ["perf --device cuda", "perf all_gather --device cuda -g 4"] {
        let outcome = finish(tutti().env("TUTTI_LIBCUDA", "/no/libcuda.so").args(line.split(' ')));
        let outcome = outcome.failed(1, &["error: no CUDA driver: /no/libcuda.so: ", "TUTTI_LIBCUDA"]);
        assert_eq!((outcome.stderr.lines().count(), outcome.stdout.as_str()), (1, ""));
    }
}

#[test]
fn what_the_gpus_do_not_hold_is_refused_before_it_is_tried() {
    if !has_kernels() {
        return;
    }
    let one = |line: &str| run_on("devices = 1\n[device]\nmemory_bytes = 1048576", line);
    one("perf --device cuda -g 2").failed(2, &["there is 1 GPU,", "2 ranks are too many", "--ranks-per-gpu 2 lets"]);
    one("perf --device cuda -g 5 --ranks-per-gpu 3").failed(2, &["3 ranks each", "--ranks-per-gpu 5 lets"]);
    one("perf --device cuda -e 8M").failed(1, &["the buffers of 1 rank need 16", "GPU 0 has 1 MiB", "-e"]);
    let old =
        run_on("devices = 1\ndriver_version = 9000", "perf --device cuda").failed(1, &["supports CUDA 9.0", "newer"]);
    assert_eq!((old.stderr.lines().count(), old.stdout.as_str()), (1, ""));
    let old = "devices = 1\n[device]\ncompute_capability = \"5.2\"";
    run_on(old, "perf --device cuda").failed(1, &["compute capability 5.2", "7.0 or newer"]);
}

#[test]
fn a_launch_that_fails_is_an_error_and_not_a_hang() {
    if !has_kernels() {
        return;
    }
    for more in ["", "-G 1"] {
        // Some launches later than what comes before the first row.
        let faults = "devices = 2\n[[faults.launch_error]]\ndevice = 1\nlaunch = 20\ncode = 719\n";
        let outcome = run_on(faults, &format!("perf --device cuda -b 8 -e 1K -n 10 {more}"));
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!(outcome.stderr.contains("CUDA_ERROR_LAUNCH_FAILED (719)"), "{outcome:?}");
    }
}

#[test]
fn the_topology_shows_devices_and_paths() {
    if !has_kernels() {
        return;
    }
    let topology = "
        devices = 3
        [device]
        name = \"Some GPU\"
        compute_capability = \"8.0\"
        memory_bytes = 1073741824
        multiprocessors = 7
        [[links]]
        between = [0, 2]
        kind = \"none\"
        [[faults.corrupt_peer_writes]]
        pair = [1, 2]
        every = 10
    ";
    let outcome = run_on(topology, "topo").good();
    let text = &outcome.stdout;
    assert!(text.starts_with("CPU   ") && text.contains("\nCUDA  12.9, 3 GPUs\n"), "{text}");
    let matrix = "
      GPU0  GPU1  GPU2
GPU0  same  peer  host
GPU1  peer  same  host
GPU2  host  host  same
";
    assert!(text.contains(matrix), "{text}");
    assert!(text.contains("GPU1  Some GPU  8.0                 1 GiB   0000:"), "{text}");
    assert!(text.contains("\nwarning: devices 1 and 2: peer access does not work: "), "{text}");
    let outcome = run_on(topology, "topo --json").good();
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert!(json["cpu"]["cores"].as_u64().unwrap() > 0);
    let cuda = &json["cuda"];
    assert_eq!(cuda["paths"][1], serde_json::json!(["peer", "same", "host"]));
    assert_eq!(cuda["warnings"].as_array().unwrap().len(), 1);
    let device = &cuda["devices"][2];
    assert_eq!((&device["device"], &device["name"]), (&2.into(), &"Some GPU".into()));
    assert_eq!((&device["compute_capability"], &device["multiprocessors"]), (&"8.0".into(), &7.into()));
    assert_eq!((&device["memory_bytes"], &json["errors"]), (&(1_u64 << 30).into(), &serde_json::json!([])));
}

#[test]
fn paths_that_are_dropped_are_warned_of_and_the_table_is_right() {
    if !has_kernels() {
        return;
    }
    let refused = "devices = 2\n[[faults.refuse_peer_access]]\npair = [0, 1]\n";
    let outcome = run_on(refused, "perf --device cuda -b 8 -e 8 -n 2").good();
    all_is_right(&outcome, 1);
    assert!(outcome.stderr.starts_with("warning: devices 0 and 1: peer access does not work: "), "{}", outcome.stderr);
}

#[test]
fn a_machine_without_a_driver_has_its_processor_to_show() {
    let topo = |more: &[&str]| finish(tutti().env("TUTTI_LIBCUDA", "/no/libcuda.so").arg("topo").args(more)).good();
    let text = topo(&[]).stdout;
    assert!(text.starts_with("CPU   ") && text.contains("\nCUDA  no CUDA driver: /no/libcuda.so: "), "{text}");
    let json: Value = serde_json::from_str(&topo(&["--json"]).stdout).unwrap();
    assert_eq!(json["cuda"], Value::Null);
    assert!(json["errors"][0].as_str().unwrap().starts_with("no CUDA driver: "));
}
