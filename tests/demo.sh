#!/usr/bin/env bash
# The main job on the embedded default: a published configuration planned and compared, and a real full-size refit replayed in
# this process with every byte verified. Usage: demo.sh BIN_DIR
set -euo pipefail
bin=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
job="--model qwen3-30b-a3b --train megatron:ep=8,pp=2 --gen vllm:tp=8,dp=2 --fabric dgx-h100"
run() { printf '\n$ %s\n' "$(sed "s|$bin/||; s|$work/||g" <<<"$*")"; "$@"; }

run "$bin/refit" compare $job
run "$bin/refit" plan $job -o "$work/qwen3-30b.plan"
run "$bin/refit" check "$work/qwen3-30b.plan"
run "$bin/refit" simulate "$work/qwen3-30b.plan"
run "$bin/refit" plan --model qwen3-0.6b --train megatron:tp=4,pp=2 --gen vllm:tp=8 --fabric dgx-h100 -o "$work/qwen3-0.6b.plan" --quiet
run "$bin/refit-exec" "$work/qwen3-0.6b.plan" --backend host --verify --iterations 3
