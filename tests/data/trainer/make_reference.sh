#!/bin/bash
# All reference files of the trainer, from PyTorch: TORCHRUN=.../torchrun PYTHON=.../python make_reference.sh
set -euo pipefail
cd "$(dirname "$0")"
native=$(mktemp -d)
trap 'rm -rf "$native"' EXIT
export OMP_NUM_THREADS=1
for w in 1 2 4; do
    run=("${TORCHRUN:-torchrun}" --nproc_per_node $w make_reference.py)
    "${run[@]}" --out w$w.json
    "${run[@]}" --out w$w-f64.json --dtype float64
    "${run[@]}" --out "$native/w$w.json" --no-mkldnn
done
"${PYTHON:-python3}" make_tolerance.py "$native"
