#!/usr/bin/env bash
# Starts a multi-process run on this machine: one process per GPU, or any number of processes on the CPU.
#
#   launch/local.sh 4 --config=configs/base.py --workdir=runs/base
#
# Notes:
# - On GPUs start as many processes as there are GPUs: each sees one, of those in CUDA_VISIBLE_DEVICES if that is set. A
#   single process with all GPUs is as fast; several processes show on this machine, before the cluster does, what fails
#   in a multi-process run.
# - On the CPU each process is one device, and the processes compete for cores: this is for testing, not for speed.
# - When a process dies, JAX aborts the others within --patience seconds. The same command then resumes from the last
#   checkpoint, also with another number of processes.
# - After Ctrl-C or SIGTERM all processes save the same step and exit; a signal before the first step takes effect at the first step.
set -euo pipefail

count=${1:-}
if [[ ! $count =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: launch/local.sh PROCESSES --config=FILE [--workdir=DIR ...]" >&2
  exit 2
fi
shift
port=${PORT:-$((20000 + RANDOM % 20000))} # each run on a machine needs its own
visible=${CUDA_VISIBLE_DEVICES-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | paste -sd, || true)}
IFS=, read -ra gpus <<<"$visible"

# In a script, processes in the background ignore Ctrl-C until they are in the loop of the run.
trap 'kill -TERM "${started[@]}" 2>/dev/null || true' INT TERM
started=()
for ((i = 0; i < count; i++)); do
  if ((${#gpus[@]} > 0)); then export CUDA_VISIBLE_DEVICES=${gpus[i]:--1}; fi # -1: none
  python -m electra_jax.train "$@" --coordinator="localhost:$port" --processes="$count" --process="$i" &
  started+=($!)
done

status=0
for process in "${started[@]}"; do
  # A signal ends `wait` before the process ends, so wait again.
  while kill -0 "$process" 2>/dev/null; do wait "$process" && break || true; done
  wait "$process" || status=$?
done
exit "$status"
