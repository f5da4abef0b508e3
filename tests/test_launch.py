import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cli_runs import ROOT, environment, logged, train_arguments

LAUNCH = ROOT / "launch"


@pytest.mark.slow
@pytest.mark.parametrize("script", ["local.sh", "tpu_vm.sh", "slurm.sbatch"])
def test_shellcheck_finds_nothing(script):
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed; it is in the extra dev")
    done = subprocess.run([shellcheck, "--shell=bash", LAUNCH / script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_local_starts_a_multi_process_run(text_file, tmp_path, count):
    arguments = train_arguments(text_file, tmp_path / "run", "--config.steps=4")
    env = {**environment(), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    script = [str(LAUNCH / "local.sh"), str(count), *arguments]
    done = subprocess.run(script, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert logged(tmp_path / "run")[-1]["step"] == 4


@pytest.mark.slow
def test_local_returns_the_status_of_its_processes(text_file, tmp_path):
    arguments = train_arguments(text_file, tmp_path / "run", "--config.batch_size=3")
    env = {**environment(), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    script = [str(LAUNCH / "local.sh"), "2", *arguments]
    done = subprocess.run(script, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 2
    assert done.stderr.count("config.batch_size=3 is not divisible by 2 devices; use 2 or 4") == 2


def test_scripts_are_executable():
    for script in (LAUNCH / "local.sh", LAUNCH / "tpu_vm.sh"):
        assert script.stat().st_mode & 0o111, script
        assert script.read_text().startswith("#!/usr/bin/env bash\n")


def test_the_jobset_has_one_pod_per_host_of_its_slice():
    jobset = yaml.safe_load((LAUNCH / "gke.yaml").read_text())
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (job,) = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    chips = container["resources"]["limits"]["google.com/tpu"]
    assert container["resources"]["requests"]["google.com/tpu"] == chips
    topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    assert spec["parallelism"] == spec["completions"]
    assert spec["parallelism"] * chips == math.prod(map(int, topology.split("x")))
    assert jobset["spec"]["network"]["enableDNSHostnames"]
    assert pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] >= 60
    assert container["command"] == ["python", "-m", "electra_jax.train"]


GCLOUD = """\
#!/usr/bin/env bash
# A cloud with one slice. The first run is stopped because the slice is preempted, the second prints OUTCOME.
cd "$CLOUD"
echo "$*" | head -n 1 >>calls
case "$*" in
  *describe*) cat state ;;
  *create*) echo READY >state ;;
  *delete*) rm -f state ;;
  *electra_jax.train*)
    if [ ! -e stopped ]; then
      touch stopped
      echo PREEMPTED >state
      echo "interrupted and saved at step 5"
    else
      echo "$OUTCOME"
    fi
    ;;
esac
"""


@pytest.mark.parametrize(("outcome", "status"), [("Done: 10 steps", 0), ("error: no such text", 1)])
def test_a_preempted_slice_is_replaced_and_deleted_at_the_end(tmp_path, outcome, status):
    for name, text in (("gcloud", GCLOUD), ("git", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CLOUD": str(tmp_path), "OUTCOME": outcome, "PROJECT": "p", "ZONE": "z"}
    script = [str(LAUNCH / "tpu_vm.sh"), "v3-32", "--config=configs/base.py", "--workdir=gs://b/run"]
    done = subprocess.run(script, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    doing = [next((verb for verb in ("create", "delete", "train", "scp") if verb in call), "") for call in calls]
    assert [verb for verb in doing if verb] == 2 * ["create", "scp", "train", "delete"]
    assert not (tmp_path / "state").exists()
    if status:
        assert "the run failed, but its slice is ready" in done.stderr


def test_a_slice_needs_a_project_and_a_zone():
    done = subprocess.run(
        [str(LAUNCH / "tpu_vm.sh"), "v3-32"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, check=False
    )
    assert done.returncode != 0
    assert "set PROJECT" in done.stderr
