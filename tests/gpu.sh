#!/usr/bin/env bash
# Tests and measures tutti on a machine with a GPU, and prints one JSON on standard output; what it is doing goes to standard
# error. It ends within 8 minutes: what there was no time for, the JSON says.
#
#   tests/gpu.sh                  builds what it needs with cargo, and runs
#   tests/gpu.sh --build DIR      only builds it into DIR, on any machine with Rust
#   tests/gpu.sh --binaries DIR   runs what is in DIR: takes bash, python3 and the CUDA driver, and no Rust
#
# It runs the CUDA test suite on the driver; measures every kernel (its bytes in a time against those of a copy by the driver),
# all-reduce among 2, 4 and 8 ranks, which share the GPUs where there are fewer, and all-reduce by NCCL, where PyTorch is there
# and as many GPUs are.
#
# Environment: TUTTI_LIBCUDA names another driver; TUTTI_GPU_MAX_BYTES makes all sizes smaller, and everything quicker, to try
# this script on a driver in software; TUTTI_GPU_TESTS runs only the tests with this in their names.
# Exit status: 0 if all that ran was right, 1 if not (or there is no driver), 2 for a wrong command line.
set -uo pipefail
exec </dev/null

readonly SECONDS_MAX=470 # the rest is for writing the JSON
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }

usage() {
    say "usage: $0 [--build DIR | --binaries DIR]"
    exit 2
}

# build DIR: what runs need, linked against nothing of this machine but the C library.
build() {
    local directory=$1 lines test
    mkdir -p "$directory" || return 1
    (cd "$here" && TUTTI_REQUIRE_PTX=1 cargo build --release -p tutti-cli) >&2 || return 1
    lines=$(cd "$here" && TUTTI_REQUIRE_PTX=1 cargo test -p tutti --test cuda --no-run --message-format=json) || return 1
    test=$(sed -n 's/.*"name":"cuda".*"executable":"\([^"]*\)".*/\1/p' <<<"$lines" | tail -n 1)
    [ -n "$test" ] || { say "cargo did not say where the test is"; return 1; }
    cp "$test" "$directory/cuda_tests" && cp "${CARGO_TARGET_DIR:-$here/target}/release/tutti" "$directory/tutti"
}

binaries=
case "${1:-}" in
    --build)
        [ $# = 2 ] || usage
        build "$2"
        exit
        ;;
    --binaries)
        [ $# = 2 ] || usage
        binaries=$2
        ;;
    '') ;;
    *) usage ;;
esac

# fail REASON: a JSON that says nothing else, without the help of python3. The reason is ours: no quotes in it.
fail() {
    say "$1"
    printf '{\n  "ok": false,\n  "errors": ["%s"]\n}\n' "$1"
    exit 1
}

if [ -z "$binaries" ]; then
    command -v cargo >/dev/null || fail "there is no cargo: build elsewhere with --build DIR, and run with --binaries DIR"
    binaries=$here/target/gpu
    build "$binaries" || fail "the build failed"
fi
command -v python3 >/dev/null || fail "there is no python3"
[ -x "$binaries/tutti" ] && [ -x "$binaries/cuda_tests" ] || fail "--binaries: tutti and cuda_tests are not there"

work=$(mktemp -d) || fail "there is no room for temporary files"
trap 'rm -rf "$work"' EXIT
SECONDS=0
: >"$work/left_out" >"$work/errors"
left_out() { say "left out: $*"; printf '%s\n' "$*" >>"$work/left_out"; }
error() { say "error: $*"; printf '%s\n' "$*" >>"$work/errors"; }

# stage NAME SECONDS COMMAND...: runs a command for so long, or as long as there is time; its output goes into the files NAME.out
# and NAME.err.
stage() {
    local name=$1 limit=$2 left=$((SECONDS_MAX - SECONDS)) started=$SECONDS status
    shift 2
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -le 0 ]; then
        left_out "$name: there was no time for it"
        return 1
    fi
    say "$name (at most $limit s)"
    timeout --kill-after=5 "$limit" "$@" >"$work/$name.out" 2>"$work/$name.err"
    status=$?
    say "$name: $((SECONDS - started)) s, exit status $status"
    case $status in
        0) ;;
        124 | 137) left_out "$name: it was not done after $limit s" ;;
        *) error "$name: exit status $status: $(tail -n 1 "$work/$name.err")" ;;
    esac
    return $status
}

# The driver is the machine's, whatever the tests would take without being told.
export TUTTI_LIBCUDA=${TUTTI_LIBCUDA:-libcuda.so.1} TUTTI_REQUIRE_CUDA=1
unset NCCL_TESTS_MIN_BW

max_bytes=${TUTTI_GPU_MAX_BYTES:-1073741824}
case $max_bytes in
    '' | *[!0-9]*) fail "TUTTI_GPU_MAX_BYTES: expected a number of bytes" ;;
esac
if [ -n "${TUTTI_GPU_MAX_BYTES:-}" ]; then factor=8 iterations=2; else factor=2 iterations=20; fi
kernel_bytes=$((max_bytes < 67108864 ? max_bytes : 67108864))
graph_bytes=$((max_bytes < 1048576 ? max_bytes : 1048576))

# What is here. A process that cannot start, or finds no driver, says why.
gpu_count=0
if stage topo 60 "$binaries/tutti" topo --json; then
    gpu_count=$(python3 -c 'import json, sys; print(len((json.load(open(sys.argv[1]))["cuda"] or {"devices": []})["devices"]))' \
        "$work/topo.out") || gpu_count=0
    [ "$gpu_count" -gt 0 ] || error "there is no GPU for tutti: see the topology"
fi

copies() {
    python3 - "$TUTTI_LIBCUDA" "$iterations" "$@" <<'PYTHON'
"""Copies within the first GPU by the driver: cuMemcpyDtoDAsync, back to back, waited for once."""
import ctypes, json, sys, time

cuda = ctypes.CDLL(sys.argv[1])
iterations = int(sys.argv[2])


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        sys.exit(f"{name} gave {code}")


def address(size):
    pointer = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    return pointer


device, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxPushCurrent_v2", context)
call("cuStreamCreate", ctypes.byref(stream), 1)
rows = []
for size in sorted(set(map(int, sys.argv[3:]))):
    source, target = address(size), address(size)
    call("cuMemsetD8Async", source, ctypes.c_ubyte(1), ctypes.c_size_t(size), stream)

    def copy(count):
        for _ in range(count):
            call("cuMemcpyDtoDAsync_v2", target, source, ctypes.c_size_t(size), stream)
        call("cuStreamSynchronize", stream)

    copy(2)
    start = time.perf_counter()
    copy(iterations)
    seconds = (time.perf_counter() - start) / iterations
    # Each byte is read and written.
    rows.append({"size": size, "time_us": seconds * 1e6, "moved_gb_s": 2 * size / 1e9 / seconds})
    call("cuMemFree_v2", source)
    call("cuMemFree_v2", target)
print(json.dumps(rows))
PYTHON
}

nccl() {
    python3 - "$iterations" "$factor" "$max_bytes" "$1" <<'PYTHON'
"""All-reduce by NCCL, in place, back to back, waited for once: a process for each GPU, the first one prints."""
import json, os, sys, tempfile, time

import torch
import torch.distributed as distributed

iterations, factor, max_bytes, rank_count = map(int, sys.argv[1:])
store = tempfile.mktemp()


def run(rank):
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=rank_count)
    rows, size = [], 8
    while size <= max_bytes:
        numbers = torch.ones(size // 4, dtype=torch.float32, device="cuda")
        for _ in range(5):
            distributed.all_reduce(numbers)
        torch.cuda.synchronize()
        distributed.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(iterations):
            distributed.all_reduce(numbers)
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / iterations
        bandwidth = size / 1e9 / seconds
        factor_of_bus = 2 * (rank_count - 1) / rank_count
        rows.append({"size": size, "time_us": seconds * 1e6, "alg_bw": bandwidth, "bus_bw": bandwidth * factor_of_bus})
        size *= factor
    if rank == 0:
        version = ".".join(map(str, torch.cuda.nccl.version()))
        print(json.dumps({"nccl": version, "torch": torch.__version__, "rows": rows}), flush=True)
    distributed.destroy_process_group()


children = []
for rank in range(rank_count):
    child = os.fork()
    if child == 0:
        try:
            run(rank)
            os._exit(0)
        except BaseException as reason:
            print(f"rank {rank}: {reason}", file=sys.stderr, flush=True)
            os._exit(1)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
PYTHON
}
export -f copies nccl
export iterations factor max_bytes

# perf NAME SECONDS ARGUMENTS...: a table as JSON, in NAME.out. What hangs is an error before its time is over.
perf() {
    local name=$1 limit=$2
    shift 2
    stage "$name" "$limit" "$binaries/tutti" perf all_reduce --device cuda -T 15 -J - "$@"
}

if [ "$gpu_count" -gt 0 ]; then
    # One test at a time: GPUs are not divided among tests as processors are.
    stage tests 200 "$binaries/cuda_tests" --test-threads=1 ${TUTTI_GPU_TESTS:+"$TUTTI_GPU_TESTS"}
    # What is slow and what hangs look the same, so this is no mere omission.
    case $? in 124 | 137) error "tests: they did not come to their end" ;; esac
    stage copies 30 bash -c 'copies "$@"' copies "$kernel_bytes" "$max_bytes"
    # Two ranks of one GPU by `direct`: each reads its half of both inputs, and writes it to both outputs.
    perf kernels 100 -n $((iterations < 5 ? iterations : 5)) -g 2 --ranks-per-gpu 2 --algorithm direct -d all -o all -b "$kernel_bytes" -e "$kernel_bytes"
    [ "$max_bytes" = "$kernel_bytes" ] ||
        perf kernels_large 30 -n "$iterations" -g 2 --ranks-per-gpu 2 --algorithm direct -b "$max_bytes" -e "$max_bytes"
    for ranks in 2 4 8; do
        each=$(((ranks + gpu_count - 1) / gpu_count))
        perf "all_reduce_$ranks" 60 -n "$iterations" -g "$ranks" --ranks-per-gpu "$each" -b 8 -e "$max_bytes" -f "$factor"
        perf "all_reduce_graph_$ranks" 30 -n "$iterations" -g "$ranks" --ranks-per-gpu "$each" -b 8 -e "$graph_bytes" -f "$factor" -G 5
    done
    if ! python3 -c 'import torch, torch.distributed as d; assert d.is_nccl_available()' 2>/dev/null; then
        left_out "nccl: there is no PyTorch with NCCL"
    else
        for ranks in 2 4 8; do
            if [ "$ranks" -le "$gpu_count" ]; then
                stage "nccl_$ranks" 60 bash -c 'nccl "$1"' nccl "$ranks"
            else
                left_out "nccl_$ranks: NCCL takes a GPU for each rank, and there are $gpu_count"
            fi
        done
    fi
fi

python3 - "$work" "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null)" \
    "$("$binaries/tutti" --version 2>/dev/null)" "$SECONDS" <<'PYTHON'
import json, os, re, sys, time

work, nvidia_smi, version, seconds = sys.argv[1:]


def text(name):
    try:
        with open(os.path.join(work, name), errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def parsed(name):
    try:
        return json.loads(text(f"{name}.out"))
    except ValueError:
        return None


def table(name):
    """What perf wrote: its JSON or, where it did not come to its end, the rows that it had printed."""
    whole = parsed(name)
    if whole:
        return whole["results"]
    rows = []
    for words in map(str.split, text(f"{name}.err").splitlines()):
        if len(words) == 13 and words[0].isdigit():
            half = lambda at: {
                "time": float(words[at]),
                "alg_bw": float(words[at + 1]),
                "bus_bw": float(words[at + 2]),
                "nwrong": int(float(words[at + 3])),
            }
            rows.append({"size": int(words[0]), "type": words[2], "redop": words[3], "out_of_place": half(5), "in_place": half(9)})
    return rows


def row(result, *names):
    """A row of perf's table, without what all rows share."""
    halves = {half: result[half] for half in ("out_of_place", "in_place")}
    return {name: result[name] for name in ("size", *names)} | halves


errors = text("errors").splitlines()
report = {"ok": True, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "seconds": int(seconds), "version": version}
report["driver"] = os.environ["TUTTI_LIBCUDA"]
report["nvidia_smi"] = nvidia_smi.splitlines()
report["topology"] = parsed("topo")
if report["topology"]:
    errors += report["topology"]["errors"]
gpu_count = len(((report["topology"] or {}).get("cuda") or {"devices": []})["devices"])

log = text("tests.out")
if log:
    results = re.findall(r"^test result: .* (\d+) passed; (\d+) failed; (\d+) ignored", log, re.M)
    # libtest's lines; what a test prints may stand between.
    verdicts = re.findall(r"^test (\S+) \.\.\.", log, re.M)
    failed = sorted(set(re.findall(r"^    (\S+::\S+)$", log, re.M)))
    report["tests"] = {
        "complete": bool(results),
        "begun": len(verdicts),
        "passed": int(results[-1][0]) if results else None,
        "failed": failed,
        "skipped": sorted(set(re.findall(r"skipped: .*", log + text("tests.err")))),
        "end_of_output": log.splitlines()[-40:] if failed or not results else [],
    }

copies = {copy["size"]: copy for copy in parsed("copies") or []}
report["copies"] = list(copies.values())
report["kernels"] = []
for name in ("kernels", "kernels_large"):
    for result in table(name):
        kernel = row(result, "type", "redop")
        for half in ("out_of_place", "in_place"):
            # Two ranks, each of which reads half of two inputs and writes it to two outputs.
            moved = 4 * result["size"] / 1e3 / result[half]["time"] if result[half]["time"] else None
            copied = copies.get(result["size"], {}).get("moved_gb_s")
            of_copy = moved / copied if moved and copied else None
            kernel[half] = {"time_us": result[half]["time"], "moved_gb_s": moved, "of_copy": of_copy, "nwrong": result[half]["nwrong"]}
        report["kernels"].append(kernel)

for name in ("all_reduce", "all_reduce_graph"):
    report[name] = {}
    for ranks in ("2", "4", "8"):
        rows = table(f"{name}_{ranks}")
        if rows:
            report[name][ranks] = {"ranks_per_gpu": -(-int(ranks) // gpu_count), "rows": [row(result) for result in rows]}
report["nccl"] = {ranks: parsed(f"nccl_{ranks}") for ranks in ("2", "4", "8") if parsed(f"nccl_{ranks}")}
report["left_out"] = text("left_out").splitlines()
report["errors"] = list(dict.fromkeys(errors))
report["ok"] = not report["errors"]
print(json.dumps(report, indent=1))
sys.exit(0 if report["ok"] else 1)
PYTHON
