#!/bin/bash
# All checks that need a GPU, in under five minutes on one.
#
#   bench/gpu_check.sh [BUILD]      BUILD (build/release) was configured with CUDA and is built: targets nccl_nets, nccl_gpu,
#                                   trainer, node-agent
#
# Each check prints a line "ok", "FAILED" or "skipped" with its figures. Exit status: 0, 1 if one failed, 77 if there is no GPU.
# MUSTER_TORCH_PYTHON names a Python with torch and CUDA, for samples/s beside PyTorch.
set -uo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
BUILD=$(realpath "${1:-$ROOT/build/release}")
DATA=$ROOT/tests/data/digits.bin
PROGRAMS=$BUILD/tests/sdk
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
CHECKS="CPU/GPU agreement in float64 and float32; trajectory over 10 epochs; samples/s beside PyTorch; one-rank NCCL communicator; overlap"
failed=0

say() { printf '%-8s %s\n' "$1" "$2"; }
bad() { say FAILED "$1"; sed 's/^/         /' "$2"; failed=1; }

# check NAME LIMIT COMMAND...: the command's last line is its figures.
check() {
    local name=$1 limit=$2 out=$WORK/out
    shift 2
    timeout "$limit" "$@" >"$out" 2>&1
    case $? in
    0) say ok "$name: $(tr '\n' ' ' <"$out")" ;;
    77) say skipped "$name: $(tail -1 "$out")" ;;
    *) bad "$name" "$out" ;;
    esac
}

for program in "$PROGRAMS/nccl_nets" "$PROGRAMS/nccl_gpu" "$BUILD/bin/trainer" "$BUILD/bin/node-agent"; do
    [ -x "$program" ] && continue
    say skipped "$program is not built (CUDA Toolkit, cmake --build): $CHECKS"
    exit 77
done
if ! "$PROGRAMS/nccl_nets" "$DATA" float64 2 >"$WORK/probe" 2>&1 && grep -q '^skipped' "$WORK/probe"; then
    say skipped "$(head -1 "$WORK/probe")"
    say skipped "not checked here: $CHECKS"
    exit 77
fi

# Step 1's gradients and 60 steps, on the CPU and on the GPU; and a second run on the GPU, bit for bit.
check "agreement, float64" 60 "$PROGRAMS/nccl_nets" "$DATA" float64 60
check "agreement, float32" 60 "$PROGRAMS/nccl_nets" "$DATA" float32 60
check "agreement, float64, 4 times the width" 60 "$PROGRAMS/nccl_nets" "$DATA" float64 20 4

# The whole training, as the trainer prints it: losses equal to the last digit that is shown.
trajectory() {
    local device
    for device in cpu cuda; do
        "$BUILD/bin/trainer" --data "$DATA" --dtype float64 --device $device 2>"$WORK/$device.err" |
            grep -o 'epoch [0-9]*: loss [0-9.]*, test loss [0-9.]*, accuracy [0-9.]*%' >"$WORK/$device" ||
            { cat "$WORK/$device.err"; return 1; }
    done
    [ "$(wc -l <"$WORK/cpu")" = 10 ] || { cat "$WORK"/*.err; return 1; }
    diff "$WORK/cpu" "$WORK/cuda" && tail -1 "$WORK/cuda"
}
export -f trajectory; export BUILD DATA WORK
check "trajectory" 60 bash -c trajectory

# Speed: the same network, batch and optimizer in PyTorch on the same GPU.
cat >"$WORK/torch_speed.py" <<'PY'
import struct, sys, time
try:
    import torch
except ImportError:
    sys.exit(77)
if not torch.cuda.is_available():
    print("this torch has no CUDA")
    sys.exit(77)
from torch import nn
raw = open(sys.argv[1], "rb").read()
n, = struct.unpack_from("<I", raw, 8)
x = torch.frombuffer(bytearray(raw[28:28 + n * 64]), dtype=torch.uint8).view(n, 1, 8, 8).float().div(16)
y = torch.frombuffer(bytearray(raw[28 + n * 64:28 + n * 65]), dtype=torch.uint8).long()
w = int(sys.argv[2])
net = nn.Sequential(nn.Conv2d(1, 32 * w, 3, padding=1), nn.ReLU(), nn.Conv2d(32 * w, 64 * w, 3, padding=1), nn.ReLU(),
                    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024 * w, 128 * w), nn.ReLU(), nn.Linear(128 * w, 10)).cuda()
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
x, y = x.pin_memory(), y.pin_memory()
def steps(count):
    for s in range(count):
        at = s * 32 % (n - 32)
        loss = nn.functional.cross_entropy(net(x[at:at + 32].cuda(non_blocking=True)), y[at:at + 32].cuda(non_blocking=True))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        loss.item()
steps(50)
t = time.perf_counter()
steps(1000)
print(f"{32000 / (time.perf_counter() - t):.0f}")
PY
speed() {
    local width=$1 ours theirs
    ours=$("$PROGRAMS/nccl_nets" "$DATA" float32 1000 "$width" | sed -n 's/.* gpu \([0-9]*\)$/\1/p')
    [ -n "$ours" ] || return 1
    theirs=$("${MUSTER_TORCH_PYTHON:-python3}" "$WORK/torch_speed.py" "$DATA" "$width" 2>"$WORK/torch.err")
    case $? in
    0) echo "$ours samples/s, PyTorch $theirs: ratio $(awk "BEGIN { printf \"%.2f\", $ours / $theirs }")" ;;
    *) echo "$ours samples/s; no torch with CUDA (MUSTER_TORCH_PYTHON) to compare with" ;;
    esac
}
export -f speed; export PROGRAMS
check "speed" 60 bash -c "speed 1"
check "speed, 4 times the width" 60 bash -c "speed 4"

# NCCL's id through the agent's store, all operations, the order of streams, and how much is hidden.
check "one-rank NCCL communicator, overlap" 60 "$BUILD/bin/node-agent" --standalone --nproc_per_node=1 --no-python "$PROGRAMS/nccl_gpu"
exit $failed
