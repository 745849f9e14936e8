#!/usr/bin/env bash
# All that one GPU can show, in under 8 minutes: builds the CUDA parts; compares copies and casts with the host for all dtypes,
# formats and odd strides, and times them beside a device-to-device copy in the same run; exchanges over NCCL with a captured
# graph; runs two ranks of the 512-rank DeepSeek-V3 plan alone; and replays plans, verified, with all their ranks on the one GPU
# where NCCL allows that (2.30 and later). Prints one table.
#
#   tests/gpu/run.sh [--dry] [BUILD_DIR]
#
# --dry: what of this runs without a GPU, on a build that is there: the plans, their replays on the host, and that all programs
# say what is missing. Exit 0 all right, 1 something wrong, 2 no GPU or no NCCL.
set -euo pipefail
cd "$(dirname "$0")/../.."
dry=no
if [ "${1:-}" = --dry ]; then
  dry=yes
  shift
fi
build=${1:-build-gpu}
minutes=8
work=$(mktemp -d)
pids=()

finish() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

# Seconds until the time is up.
left() { echo $((minutes * 60 - SECONDS)); }

row() { printf '%-48s %16s %16s %9s\n' "$@" | tee -a "$work/table"; }

median() { python3 -c 'import json, sys; print("%.1f ms" % (1e3 * json.load(open(sys.argv[1]))["median_s"]))' "$1"; }

make_plan() { # NAME, arguments of `refit plan`
  local name=$1
  shift
  timeout "$(left)" "$build/bin/refit" plan "$@" --fabric dgx-h100 --quiet -o "$work/$name.plan" >"$work/$name.log" 2>&1 ||
    { cat "$work/$name.log" >&2; return 1; }
}

# Replays a plan with all its ranks on this GPU, a process each; verified, enqueued once, captured, then as a graph.
replay_all() { # NAME RANKS
  local name=$1 ranks=$2 rank failed=0
  export REFIT_WORLD_SIZE=$ranks REFIT_LOCAL_RANK=0 REFIT_BOOTSTRAP_DIR=$work/$name.meet NCCL_MULTI_RANK_GPU_ENABLE=1
  REFIT_JOB_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
  export REFIT_JOB_TOKEN
  mkdir "$REFIT_BOOTSTRAP_DIR"
  pids=()
  for rank in $(seq 0 $((ranks - 1))); do
    REFIT_RANK=$rank timeout -k 5 90 "$build/bin/refit-exec" "$work/$name.plan" --backend nccl --verify --iterations 5 \
      --json "$work/$name.$rank.json" >"$work/$name.$rank.log" 2>&1 &
    pids+=($!)
  done
  for rank in "${!pids[@]}"; do wait "${pids[$rank]}" || failed=1; done
  pids=()
  if [ $failed = 1 ]; then
    tail -n 3 "$work/$name".*.log >&2
    row "$name, $ranks ranks on this GPU" failed "" ""
    return 1
  fi
  row "$name, $ranks ranks on this GPU" "$(median "$work/$name.0.json")" "5 x, graph" verified
}

# The plans that are replayed: small, with all kinds of casts. NAME RANKS, then arguments.
plans() {
  cat <<'PLANS'
qwen3-0.6b-tp2-tp2 4 --model qwen3-0.6b --train megatron:tp=2 --gen vllm:tp=2
qwen3-0.6b-tp2-tp4 6 --model qwen3-0.6b --train megatron:tp=2 --gen vllm:tp=4
qwen3-0.6b-relay 6 --model qwen3-0.6b --train megatron:tp=2,pp=2 --gen vllm:tp=2 --strategy relay
qwen3-0.6b-fp32 4 --model qwen3-0.6b --train megatron:tp=2,dtype=fp32 --gen vllm:tp=2
qwen3-0.6b-fp8-block 3 --model qwen3-0.6b --train megatron:tp=2 --gen vllm:tp=1,quant=fp8_block
qwen3-0.6b-mxfp8 4 --model qwen3-0.6b --train megatron:tp=2 --gen vllm:tp=2,quant=mxfp8
qwen3-0.6b-fp8 4 --model qwen3-0.6b --train megatron:tp=2 --gen vllm:tp=2,quant=fp8
qwen3-0.6b-nvfp4 4 --model qwen3-0.6b --train megatron:tp=2 --gen vllm:tp=2,quant=nvfp4
PLANS
}

if [ $dry = no ]; then
  if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
    echo "tests/gpu/run.sh: no GPU (nvidia-smi sees none); --dry checks what can be checked without one" >&2
    exit 2
  fi
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$work/table"
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DREFIT_CUDA=ON -DREFIT_NCCL=ON -DREFIT_BENCH=OFF >"$work/cmake.log" ||
    { cat "$work/cmake.log" >&2; exit 1; }
  timeout "$(left)" cmake --build "$build" --target refit refit-exec refit_gpu_check >"$work/build.log" ||
    { tail -n 30 "$work/build.log" >&2; exit 1; }
  echo "built after $SECONDS s"
fi
gpu_check=$(find "$build" -type f -name refit_gpu_check -perm -u+x | head -1)

if [ $dry = yes ]; then
  for program in "$gpu_check" "$build/bin/refit-exec $work/none.plan --backend nccl"; do
    status=0
    # shellcheck disable=SC2086  # a program with its arguments
    CUDA_VISIBLE_DEVICES='' $program >"$work/log" 2>&1 || status=$?
    if [ $status != 2 ]; then
      cat "$work/log" >&2
      echo "tests/gpu/run.sh: $program ended with $status without a GPU, expected 2" >&2
      exit 1
    fi
    row "$(basename "${program%% *}") without a GPU" "exit 2" "" ""
  done
else
  # The plan of two ranks that are measured alone takes half a minute and 2 GB.
  big=()
  if make_plan deepseek-v3 --model deepseek-v3 --train megatron:ep=16,pp=16 --gen vllm:tp=32,dp=8; then
    big=("$work/deepseek-v3.plan")
  fi
  status=0
  timeout -k 5 "$(left)" "$gpu_check" "${big[@]}" | tee -a "$work/table" || status=$?
  if [ "$status" != 0 ]; then exit "$status"; fi
fi

several=yes
if [ $dry = no ]; then
  version=$(sed -n 's/.*NCCL \([0-9]*\.[0-9]*\).*/\1/p' "$work/table" | head -1)
  if [ "$(printf '2.30\n%s\n' "$version" | sort -V | head -1)" != 2.30 ]; then
    several=no
    row "several ranks on this GPU" skipped "NCCL $version" "< 2.30"
  fi
fi
if [ $several = yes ]; then
  while read -r name ranks arguments; do
    if [ "$(left)" -lt 60 ]; then
      row "$name" skipped "" "no time"
      continue
    fi
    # shellcheck disable=SC2086  # words
    make_plan "$name" $arguments
    if [ $dry = yes ]; then
      timeout -k 5 300 "$build/bin/refit-exec" "$work/$name.plan" --verify --iterations 1 >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; exit 1; }
      row "$name, $ranks ranks on the host" "$(grep -o '[0-9]* ranks' "$work/log" | head -1)" "" verified
    else
      replay_all "$name" "$ranks"
    fi
    rm -f "$work/$name.plan"
  done < <(plans)
fi

echo
echo "tests/gpu/run.sh, $SECONDS s"
cat "$work/table"
