#!/usr/bin/env bash
# A run on a TPU slice, from nothing to nothing: creates it, installs, starts on all its hosts, and when a spot slice is
# taken away makes a new one and goes on; deletes it in the end.
#
#   export PROJECT=... ZONE=europe-west4-a BUCKET=gs://my-bucket
#   TEXT="$BUCKET/text" launch/tpu_vm.sh v3-32 --config=configs/base.py --config.data.input=text \
#     --workdir="$BUCKET/runs/base"
#
# Gotchas:
# - Types count cores for v2 to v4 and v5p (v3-32: 16 chips, four hosts) and chips from v5e on (v5litepod-16, v6e-16).
#   What fits is known before anything is paid for: python -m electra_jax.plan --topology=v3:4x4 ...
# - The bucket must be in the region of the slice; another region is slow, and billed.
# - The work directory must be on gs://: the disks of a slice go with it. No host sees another's.
# - A prepared text (python -m electra_jax.prepare) is read from files: TEXT is copied to every host, once.
# - Spot slices are taken away without much warning, at the latest after 24 hours. A SIGTERM comes first and all hosts
#   save the same step; where it does not, the last checkpoint counts: config.checkpoint.every is what can be lost.
# - All hosts must run the same command: --worker=all. One that is missing is reported after --patience seconds.
# - A slice is billed from create to delete, also while nothing runs: hence the trap.
set -euo pipefail

type=${1:?"usage: launch/tpu_vm.sh TYPE --config=FILE --workdir=gs://... [--config.NAME=VALUE ...]"}
shift
: "${PROJECT:?set PROJECT}" "${ZONE:?set ZONE}"
name=${NAME:-electra-$type}
image=${IMAGE:-tpu-ubuntu2204-base}
place=(--project="$PROJECT" --zone="$ZONE")

on_all() { gcloud compute tpus tpu-vm ssh "$name" "${place[@]}" --worker=all --command="$1"; }
state() { gcloud compute tpus tpu-vm describe "$name" "${place[@]}" --format='value(state)' 2>/dev/null || echo NONE; }
delete() { gcloud compute tpus tpu-vm delete "$name" "${place[@]}" --quiet || true; }
archive=$(mktemp --suffix=.tar.gz)
log=$(mktemp)
trap 'rm -f "$archive" "$log"; delete' EXIT

create() {
  gcloud compute tpus tpu-vm create "$name" "${place[@]}" --accelerator-type="$type" --version="$image" ${SPOT:+--spot}
  git archive --format=tar.gz --output="$archive" HEAD
  gcloud compute tpus tpu-vm scp "$archive" "$name":electra_jax.tar.gz "${place[@]}" --worker=all
  # The image's Python may be older than 3.11: uv brings one.
  on_all 'curl -LsSf https://astral.sh/uv/install.sh | sh && mkdir -p electra_jax && tar -xzf electra_jax.tar.gz -C electra_jax &&
    cd electra_jax && ~/.local/bin/uv venv --python 3.12 && ~/.local/bin/uv pip install -e ".[tpu,gcs]"'
  if [[ -n ${TEXT:-} ]]; then on_all "gcloud storage cp --recursive '$TEXT' electra_jax/text"; fi
}

command="cd electra_jax && .venv/bin/python -m electra_jax.train $(printf '%q ' "$@")"
# Asked to stop, a run saves and ends well: only what it says tells that from its end.
finished() { on_all "$command" 2>&1 | tee "$log" && grep -q 'Done: ' "$log"; }

until [[ $(state) == READY ]] && finished; do
  case $(state) in
    READY)
      if ! grep -q 'stopped and saved' "$log"; then
        echo "the run failed on a slice that is well; see its message" >&2
        exit 1
      fi
      sleep 60 # it is about to be taken away
      continue
      ;;
    NONE) echo "creating $name" ;;
    *) echo "$name is $(state): a new one" && delete ;; # PREEMPTED, TERMINATED
  esac
  until create; do
    echo "no $type in $ZONE now; again in a minute" >&2
    delete
    sleep 60
  done
done
