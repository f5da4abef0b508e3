#!/usr/bin/env bash
# One run in several processes on this machine: one for each GPU, or any number on the CPU to try a cluster's ways.
#
#   launch/local.sh 4 --config=configs/base.py --workdir=runs/base
#
# Gotchas:
# - On GPUs give as many processes as GPUs: process I sees GPU I alone. One process with all GPUs is as fast; several are
#   for finding out here, not on the cluster, what breaks with several.
# - On the CPU each process is one device, and its threads compete: it is for trying, not for speed.
# - When one process dies, the others stop by themselves within --patience seconds; the same command goes on from the
#   last checkpoint, also with another number of processes.
# - Ctrl-C reaches all of them, and they save the same step before they end.
set -euo pipefail

count=${1:?"usage: launch/local.sh PROCESSES --config=FILE [--workdir=DIR ...]"}
shift
port=${PORT:-$((20000 + RANDOM % 20000))} # two runs on one machine need two
gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)

started=()
for ((i = 0; i < count; i++)); do
  if ((gpus > 0)); then export CUDA_VISIBLE_DEVICES=$i; fi
  python -m electra_jax.train "$@" --coordinator="localhost:$port" --processes="$count" --process="$i" &
  started+=($!)
done
trap 'kill -TERM "${started[@]}" 2>/dev/null || true' TERM
trap ':' INT # the processes have had it too

status=0
for process in "${started[@]}"; do
  # A signal ends `wait` before the process: so it is asked again.
  while kill -0 "$process" 2>/dev/null; do wait "$process" && break || true; done
  wait "$process" || status=$?
done
exit "$status"
