import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from runs import ROOT, command, environment, logged

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
def test_local_starts_processes_that_are_one_run(text_file, tmp_path, count):
    arguments = command(text_file, tmp_path / "run", "--config.steps=4")[3:]
    env = {**environment(), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    script = [str(LAUNCH / "local.sh"), str(count), *arguments]
    done = subprocess.run(script, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert logged(tmp_path / "run")[-1]["step"] == 4


@pytest.mark.slow
def test_local_fails_as_its_processes_do(text_file, tmp_path):
    arguments = command(text_file, tmp_path / "run", "--config.batch_size=3")[3:]
    env = {**environment(), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    script = [str(LAUNCH / "local.sh"), "2", *arguments]
    done = subprocess.run(script, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 2
    assert done.stderr.count("config.batch_size=3 cannot be split over 2 devices; use 2 or 4") == 2


def test_scripts_can_be_run_and_name_no_setting_that_is_not():
    for script in (LAUNCH / "local.sh", LAUNCH / "tpu_vm.sh"):
        assert script.stat().st_mode & 0o111, script
        assert script.read_text().startswith("#!/usr/bin/env bash\n")


def test_the_jobset_has_a_pod_for_each_host_of_its_slice():
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
