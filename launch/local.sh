#!/usr/bin/env bash
# Starts a multi-process run on this machine: one process per GPU, or any number of processes on the CPU.
#
#   launch/local.sh 4 --config=configs/base.py --workdir=runs/base
#
# Notes:
# - On GPUs start as many processes as there are GPUs: process I sees only GPU I. A single process with all GPUs is as
#   fast; several processes show on this machine, before the cluster does, what fails in a multi-process run.
# - On the CPU each process is one device, and the processes compete for cores: this is for testing, not for speed.
# - When a process dies, JAX aborts the others within --patience seconds. The same command then resumes from the last
#   checkpoint, also with another number of processes.
# - Ctrl-C reaches all processes; they save the same step and exit.
set -euo pipefail

count=${1:?"usage: launch/local.sh PROCESSES --config=FILE [--workdir=DIR ...]"}
shift
port=${PORT:-$((20000 + RANDOM % 20000))} # each run on a machine needs its own
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
