import fnmatch
import importlib.metadata
import math
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from cli_runs import ROOT, environment, logged, train_arguments
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LAUNCH = ROOT / "launch"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.slow
@pytest.mark.parametrize("script", ["local.sh", "tpu_vm.sh", "slurm.sbatch"])
def test_shellcheck_finds_nothing(script):
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed; it is in the extra dev")
    done = subprocess.run([shellcheck, "--shell=bash", LAUNCH / script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_local_starts_a_multi_process_run(text_file, tmp_path):
    arguments = train_arguments(text_file, tmp_path / "run", "--config.steps=4", arg="objective=mlm")
    env = {**environment(), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    script = [str(LAUNCH / "local.sh"), "2", *arguments]
    done = subprocess.run(script, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert logged(tmp_path / "run")[-1]["step"] == 4


def test_local_returns_the_status_of_its_processes(tmp_path):
    (tmp_path / "python").write_text('#!/bin/bash\necho "$*"\n[[ "$*" != *--process=1* ]] || exit 2\n')
    (tmp_path / "python").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = [str(LAUNCH / "local.sh"), "2", "--config=c"]
    done = subprocess.run(script, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 2
    started = [line.rsplit(" ", 3) for line in sorted(done.stdout.splitlines())]
    assert [(before, *which) for before, _, *which in started] == [
        ("-m electra_jax.train --config=c", "--processes=2", f"--process={number}") for number in (0, 1)
    ]
    assert started[0][1] == started[1][1]  # the coordinator, at a port of this run


def test_local_gives_each_process_one_of_the_gpus_that_are_visible(tmp_path):
    (tmp_path / "python").write_text('#!/bin/bash\necho "$CUDA_VISIBLE_DEVICES ${!#}"\n')
    (tmp_path / "python").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "4,7"}
    script = [str(LAUNCH / "local.sh"), "3"]
    done = subprocess.run(script, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert sorted(done.stdout.splitlines()) == ["-1 --process=2", "4 --process=0", "7 --process=1"]


@pytest.mark.parametrize("count", [[], ["0"], ["two"]], ids=str)
def test_local_needs_a_number_of_processes(count):
    done = subprocess.run([LAUNCH / "local.sh", *count], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.split()[0]) == (2, "usage:")


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
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert pod["terminationGracePeriodSeconds"] >= 60
    assert container["command"] == ["python", "-m", "electra_jax.train"]
    assert "--config=base" in container["args"]  # by its name: an image has no folder configs/ where it starts


GCLOUD = """\
#!/usr/bin/env bash
# A cloud with one slice. The first run is stopped because the slice is preempted, the second prints OUTCOME.
cd "$CLOUD"
echo "$*" | head -n 1 >>calls
case "$*" in
  *describe*) cat state ;;
  *create*)
    # At first there is no capacity.
    [ -e asked ] || { touch asked; exit 1; }
    echo READY >state
    ;;
  *delete*) rm -f state ;;
  *electra_jax.train*)
    if [ ! -e stopped ]; then
      touch stopped
      echo PREEMPTED >state
      echo "interrupted and saved at step 5"
    else
      echo "$OUTCOME"
      exit "$STATUS"
    fi
    ;;
esac
"""


def train_on_a_slice(cloud: Path, **settings: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Returns the finished script, and what it did in the cloud."""
    for name, text in (("gcloud", GCLOUD), ("git", "#!/bin/sh\n"), ("sleep", "#!/bin/sh\n")):
        (cloud / name).write_text(text)
        (cloud / name).chmod(0o755)
    env = {"PATH": f"{cloud}:/usr/bin:/bin", "CLOUD": str(cloud), "PROJECT": "p", "ZONE": "z", **settings}
    script = [str(LAUNCH / "tpu_vm.sh"), "v3-32", "--config=configs/base.py", "--workdir=gs://b/run"]
    done = subprocess.run(script, capture_output=True, text=True, env=env, timeout=60, check=False)
    calls = (cloud / "calls").read_text().splitlines()
    doing = [next((verb for verb in ("create", "delete", "train", "scp") if verb in call), "") for call in calls]
    return done, [verb for verb in doing if verb]


@pytest.mark.parametrize(
    ("outcome", "of_ssh", "status"),
    [("Done: 10 steps", 0, 0), ("Done: 10 steps", 255, 0), ("error: no such text", 2, 1)],
)
def test_a_preempted_slice_is_replaced_and_deleted_at_the_end(tmp_path, outcome, of_ssh, status):
    done, doing = train_on_a_slice(tmp_path, OUTCOME=outcome, STATUS=str(of_ssh))
    assert done.returncode == status, done.stderr
    assert doing == ["create", "delete", *2 * ["create", "scp", "train", "delete"]]
    assert not (tmp_path / "state").exists()
    if status:
        assert "the run failed, but its slice is ready" in done.stderr


def test_a_slice_that_is_there_already_is_left_alone(tmp_path):
    (tmp_path / "state").write_text("READY\n")
    done, doing = train_on_a_slice(tmp_path)
    assert (done.returncode, doing) == (1, [])
    assert "electra-v3-32 exists in z; delete it, or set NAME" in done.stderr


def test_a_slice_needs_a_project_and_a_zone():
    done = subprocess.run(
        [str(LAUNCH / "tpu_vm.sh"), "v3-32"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, check=False
    )
    assert done.returncode != 0
    assert "set PROJECT" in done.stderr


SLURM = """\
#!/usr/bin/env bash
echo "$SRUN_CPUS_PER_TASK cores: $(basename "$0") $*"
"""


@pytest.mark.parametrize(("image", "before"), [("", ""), ("a b.sif", "apptainer exec --nv a b.sif ")])
def test_a_job_runs_in_an_image_if_one_is_given(image, before, tmp_path):
    (tmp_path / "srun").write_text(SLURM)
    (tmp_path / "srun").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "8", "IMAGE": image}
    script = ["bash", str(LAUNCH / "slurm.sbatch"), "--config=configs/base.py"]
    done = subprocess.run(script, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    command = f"{before}python -m electra_jax.train --config=configs/base.py"
    assert done.stdout == f"8 cores: srun --kill-on-bad-exit=1 {command}\n"


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, with their arguments."""
    lines = (LAUNCH / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.partition(" ")[2]) for line in lines if line.strip() and not line.startswith("#")]


def copied() -> list[str]:
    return [source for name, rest in instructions() if name == "COPY" for source in shlex.split(rest)[:-1]]


def test_the_image_gets_what_it_copies():
    """And the builder is sent that, and nothing else."""
    assert [name for name in copied() if not (ROOT / name).exists()] == []
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert ignored[0] == "*"
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == set(copied())
    # What a wheel is built from, besides the package.
    needed = ["pyproject.toml", "setup.py", "MANIFEST.in", PROJECT["readme"], *PROJECT["license-files"], "configs"]
    assert not {*needed, "electra_jax"} - set(copied())
    assert not any(
        fnmatch.fnmatch(name, line) for name in copied() for line in ignored if line not in ("*", f"!{name}")
    )


def test_the_image_has_a_python_that_the_package_supports():
    arguments = dict(rest.split("=") for name, rest in instructions() if name == "ARG")
    assert f"Programming Language :: Python :: {arguments['PYTHON']}" in PROJECT["classifiers"]
    assert set(arguments["EXTRAS"].split(",")) <= set(PROJECT["optional-dependencies"])
    assert ("FROM", "python:${PYTHON}-slim") in instructions()
    (install,) = (rest for name, rest in instructions() if name == "RUN")
    assert install.endswith('pip install -c constraints.txt ".[${EXTRAS}]"')
    assert ("ENTRYPOINT", '["electra-jax"]') in instructions()


PINNED = ["downstream", "parquet", "tfds", "gcs", "s3", "datasets", "warc", "near_duplicates"]
PINNED += ["wandb", "mlflow", "trackio", "cuda", "cuda12", "tpu"]
PYTHONS = [{"python_version": v, "python_full_version": f"{v}.9"} for v in ("3.11", "3.12")]
SYSTEM = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
}


def pins(python: dict[str, str]) -> dict[str, str]:
    """The version of each package for a version of Python on Linux."""
    found: dict[str, str] = {}
    for line in (LAUNCH / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        each = Requirement(line)
        assert not each.url, line
        assert re.fullmatch(r"==[\w.]+", str(each.specifier)), line
        if each.marker is None or each.marker.evaluate({**SYSTEM, **python}):
            assert canonicalize_name(each.name) not in found, line
            found[canonicalize_name(each.name)] = str(each.specifier).removeprefix("==")
    return found


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python["python_version"])
def test_every_dependency_is_pinned_within_its_bounds(python):
    chosen = pins(python)
    wanted = [*PROJECT["dependencies"], *(each for extra in PINNED for each in PROJECT["optional-dependencies"][extra])]
    for each in map(Requirement, wanted):
        assert each.specifier.contains(chosen[canonicalize_name(each.name)]), each


def test_what_the_dependencies_need_is_pinned_too():
    """As far as the pinned versions are the installed ones."""
    chosen = pins(PYTHONS[sys.version_info >= (3, 12)])
    installed = {canonicalize_name(each.name): each for each in importlib.metadata.distributions()}
    checked = [each for name, each in installed.items() if chosen.get(name) == each.version]
    for each in checked:
        for needed in map(Requirement, each.requires or []):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                pinned = chosen.get(canonicalize_name(needed.name))
                assert pinned is not None, f"{each.name} needs {needed}"
                assert needed.specifier.contains(pinned), f"{each.name} needs {needed}, pinned is {pinned}"


def test_the_page_and_the_list_name_the_same_extras():
    text = (LAUNCH / "constraints.txt").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "howto" / "container.md").read_text(encoding="utf-8")
    command = page.split("uv pip compile", 1)[1].split("```", 1)[0]
    assert re.findall(r"--extra=(\w+)", text) == re.findall(r"--extra=(\w+)", command) == PINNED
    assert shlex.split(command.replace("\\\n", " "))[-1] == "--output-file=launch/constraints.txt"
