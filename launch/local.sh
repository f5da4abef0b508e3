#!/usr/bin/env bash
# Trains with several processes on this machine: one per GPU, or any number on the CPU to try out a cluster setup.
#
#   launch/local.sh 4 --config=configs/base.py --workdir=runs/base
#
# Gotchas:
# - On GPUs start as many processes as there are GPUs: process I sees only GPU I. One process with all GPUs is as fast;
#   several are for finding multi-process problems here and not on the cluster.
# - On the CPU each process is one device, and their threads compete for cores: this is for trying out, not for speed.
# - If one process dies, the others stop within --patience seconds. The same command resumes from the last checkpoint,
#   also with another number of processes.
# - Ctrl-C reaches all processes, and they save the same step before they end.
set -euo pipefail

count=${1:?"usage: launch/local.sh PROCESSES --config=FILE [--workdir=DIR ...]"}
shift
port=${PORT:-$((20000 + RANDOM % 20000))} # two runs on one machine need different ports
gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)

started=()
for ((i = 0; i < count; i++)); do
  if ((gpus > 0)); then export CUDA_VISIBLE_DEVICES=$i; fi
  python -m electra_jax.train "$@" --coordinator="localhost:$port" --processes="$count" --process="$i" &
  started+=($!)
done
trap 'kill -TERM "${started[@]}" 2>/dev/null || true' TERM
trap ':' INT # the processes receive it too

status=0
for process in "${started[@]}"; do
  # A signal ends `wait` before the process ends, so wait again.
  while kill -0 "$process" 2>/dev/null; do wait "$process" && break || true; done
  wait "$process" || status=$?
done
exit "$status"
