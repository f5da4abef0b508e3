#!/usr/bin/env bash
# Trains on a TPU slice: creates the slice, installs electra_jax and starts the run on all hosts; when a spot slice is
# preempted, creates a new one and resumes; deletes the slice at the end.
#
#   export PROJECT=... ZONE=europe-west4-a BUCKET=gs://my-bucket
#   TEXT="$BUCKET/text" launch/tpu_vm.sh v3-32 --config=configs/base.py --config.data.input=text \
#     --workdir="$BUCKET/runs/base"
#
# Notes:
# - Types count cores for v2 to v4 and v5p (v3-32: 16 chips, four hosts) and chips from v5e on (v5litepod-16, v6e-16).
#   Check first, without cost, that the run fits: electra-jax plan --topology=v3:4x4 ...
# - The bucket must be in the same region as the slice; traffic between regions is slow, and billed.
# - The work directory must be on gs://: the disks of a slice are deleted with it, and hosts do not share them.
# - A prepared corpus (electra-jax prepare) is read from local files: TEXT is copied to every host, once.
# - Spot slices are preempted with little warning, after 24 hours at the latest. Usually SIGTERM comes first, and all
#   hosts save the same step; otherwise the steps since the last checkpoint are lost (config.checkpoint.every).
# - All hosts must run the same command: --worker=all. If one is missing, JAX aborts the others after --patience seconds.
# - A slice is billed from creation to deletion, even while nothing runs: the trap deletes it however this script ends.
#   So a slice that exists already, perhaps of another run, is refused.
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
if [[ $(state) != NONE ]]; then
  echo "$name exists in $ZONE; delete it, or set NAME to another name" >&2
  exit 1
fi
files=$(mktemp -d)
archive=$files/electra_jax.tar.gz log=$files/log
trap 'rm -rf "$files"; delete' EXIT
pack() { mkdir -p "$files" && git -C "$(dirname "$0")/.." archive --format=tar.gz --output="$archive" HEAD; }
pack # before anything is billed

# Joined by &&: bash ignores `set -e` in a condition, and a slice that is set up in part must not pass for a ready one.
create() {
  # Again: what cleans /tmp may have deleted it since.
  pack &&
    gcloud compute tpus tpu-vm create "$name" "${place[@]}" --accelerator-type="$type" --version="$image" ${SPOT:+--spot} &&
    gcloud compute tpus tpu-vm scp "$archive" "$name":electra_jax.tar.gz "${place[@]}" --worker=all &&
    # The Python of the image may be older than 3.11, so uv installs one.
    on_all 'curl -LsSf https://astral.sh/uv/install.sh | sh && mkdir -p electra_jax && tar -xzf electra_jax.tar.gz -C electra_jax &&
    cd electra_jax && ~/.local/bin/uv venv --python 3.12 && ~/.local/bin/uv pip install -c launch/constraints.txt -e ".[tpu,gcs]"' &&
    { [[ -z ${TEXT:-} ]] || on_all "gcloud storage cp --recursive $(printf %q "$TEXT") electra_jax/text"; }
}

command="cd electra_jax && .venv/bin/python -m electra_jax.train $(printf '%q ' "$@")"
# A status other than 0 may also be the connection's, so the output tells how the run ended.
finished() {
  on_all "$command" 2>&1 | tee "$log" || true
  grep -q 'Done: ' "$log"
}

until [[ $(state) == READY ]] && finished; do
  case $(state) in
    READY)
      if ! grep -q 'interrupted and saved' "$log"; then
        echo "the run failed, but its slice is ready; see the error above" >&2
        exit 1
      fi
      sleep 60 # the slice is being preempted
      continue
      ;;
    NONE) echo "creating $name" ;;
    *) echo "$name is $(state); replacing it" && delete ;; # PREEMPTED, TERMINATED
  esac
  until create; do
    echo "$name could not be set up, see above (often no $type is available); trying again in a minute" >&2
    delete
    sleep 60
  done
done
