#!/bin/bash
# From a clone to a running job: installs what is missing, builds, and runs a job of two nodes with two workers each on this machine over
# loopback, showing its state while it runs and the result. With PyTorch at hand it trains a small network; else it computes pi.
#   tools/demo.sh [--keep]      --keep: leave the folder with the output
set -euo pipefail
case ${1:-} in
"" | --keep) ;;
-h | --help)
    sed -n '2,4s/^# //p' "$0"
    exit 0
    ;;
*)
    echo "tools/demo.sh: $1: it takes --keep alone, or nothing" >&2
    exit 2
    ;;
esac
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }

say "what it needs"
tools/deps.sh demo
echo "all packages are there"

say "build"
out=$(mktemp -d "${TMPDIR:-/tmp}/muster-demo.XXXXXX")
{
    cmake --preset release -DBUILD_TESTING=OFF -DMUSTER_BENCH=OFF -DMUSTER_WERROR=OFF -B build/demo &&
        cmake --build build/demo --target rdzv-server node-agent muster muster_http
} >"$out/build.log" 2>&1 || {
    tail -40 "$out/build.log"
    rm -rf "$out"
    echo "demo: the build failed"
    exit 1
}
bin=$PWD/build/demo/bin
echo "rdzv-server and node-agent are in $bin"
server=
agents=()
tidy() {
    for pid in "${agents[@]}" $server; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    [[ ${keep:-} ]] && echo "output is in $out" || rm -rf "$out"
}
trap tidy EXIT
[[ ${1:-} == --keep ]] && keep=1

# A Python that can import torch, and its training script; else the plain program.
python=python3
program=(tools/demo_worker.py)
what="four processes compute pi (no PyTorch found)"
for p in "$(tools/venv.sh --check || true)" python3; do
    [[ -n $p && -f tests/data/digits.bin ]] && "$p" -c 'import torch.distributed' 2>/dev/null || continue
    python=$p
    program=(tests/lab/train_ddp.py --data tests/data/digits.bin --epochs 5 --sleep-per-step 0.02)
    what="PyTorch DistributedDataParallel trains on digits"
    break
done
export PYTHON_EXEC=$python OMP_NUM_THREADS=1

say "rdzv-server"
"$bin/rdzv-server" --host 127.0.0.1 --port 0 --port-file "$out/port" --state-dir "" --log-level warning 2>"$out/server.log" &
server=$!
for _ in $(seq 200); do
    [[ -s $out/port ]] && break
    sleep 0.05
done
[[ -s $out/port ]] || {
    cat "$out/server.log"
    echo "demo: rdzv-server did not start"
    exit 1
}
port=$(<"$out/port")
echo "listens on 127.0.0.1:$port"

say "two nodes, two workers each: $what"
for node in 0 1; do
    command=("$bin/node-agent" --nnodes=2 --nproc-per-node=2 "--rdzv=127.0.0.1:$port" --rdzv-id=demo --max-restarts=1)
    [[ $node == 0 ]] && printf '%s ' node-agent "${command[@]:1}" "${program[@]}" && echo
    "${command[@]}" "${program[@]}" >"$out/node$node.out" 2>"$out/node$node.err" &
    agents+=($!)
done

status() { curl -sf --max-time 5 "http://127.0.0.1:$port/status"; }
for _ in $(seq 600); do
    state=$(status | jq -r '.jobs[0].state // "none"')
    [[ $state != none && $state != gathering ]] && break
    sleep 0.05
done
say "its state: curl -s 127.0.0.1:$port/status | jq"
status | jq '{version, jobs: [.jobs[] | {id, state, round, restarts, world, sentence,
    nodes: [.nodes[] | {host, node_rank, state, rank_base, workers: [.workers[] | "rank \(.rank): \(.state), pid \(.pid)"]}]}]}'

result=0
for pid in "${agents[@]}"; do
    wait "$pid" || result=$?
done
agents=()
say "what the workers printed"
cat "$out"/node*.out
grep -v '^\s*$' "$out"/node*.err || true
say "result"
status | jq -r '.jobs[] | "job \(.id): \(.state), \(.restarts) restarts. \(.sentence)"'
echo "both agents ended with status $result"
exit "$result"
