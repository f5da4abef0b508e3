"""Real processes that are one run, over localhost."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cli_runs import arrays, command, environment, free_port, logged, processes, run, sst2_files, until

from electra_jax.config.errors import UserError
from electra_jax.runtime import distributed as library

STEPS = 40
SETTINGS = (f"--config.steps={STEPS}", "--config.checkpoint.every=5", "--config.log_every=1", "--config.eval_every=20")
NUMBERS = ("step", "loss", "mlm_loss", "tokens", "total_flops", "heldout_mlm_loss", "heldout_unigram_auc")


@pytest.fixture(scope="module")
def extract(tmp_path_factory, text_file) -> Path:
    """The run of one process."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    done = run(command(text_file, workdir, *SETTINGS))
    assert done.returncode == 0, done.stderr
    return workdir


def finish(started, workdir: Path, expected: int = 0) -> None:
    for number, process in enumerate(started):
        assert process.wait(timeout=240) == expected, Path(f"{workdir}-{number}.err").read_text()


def assert_same_numbers(one: Path, other: Path) -> None:
    """Of every logged step, and of the state at the end; to what float32 loses by adding in another order."""
    for ours, theirs in zip(logged(one), logged(other), strict=True):
        for name in (name for name in NUMBERS if name in ours):
            assert theirs[name] == pytest.approx(ours[name], rel=1e-4), (ours["step"], name)
    ours, theirs = arrays(one, STEPS), arrays(other, STEPS)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, rtol=0, atol=1e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "devices", "mesh"),
    [
        (2, 1, ()),
        (4, 1, ()),
        (2, 2, ("--config.mesh.data=1", "--config.mesh.fsdp=2", "--config.mesh.tensor=2")),
        (2, 1, ("--config.mesh.data=1", "--config.mesh.tensor=2")),  # both have the whole batch
    ],
)
def test_several_processes_are_as_one(count, devices, mesh, alone, text_file, tmp_path):
    workdir = tmp_path / "run"
    with processes(text_file, workdir, count, *SETTINGS, *mesh, devices=devices) as started:
        finish(started, workdir)
    assert_same_numbers(alone, workdir)
    said = [Path(f"{workdir}-{number}.out").read_text() for number in range(count)]
    assert f"Done: {STEPS} steps" in said[0]
    assert all("step" not in text for text in said[1:])  # process 0 alone speaks


@pytest.mark.slow
def test_a_probe_of_an_encoder_that_is_split_over_processes(alone, text_file, tmp_path):
    workdir, folder = tmp_path / "run", sst2_files(tmp_path / "sst2")
    mesh = ("--config.mesh.data=1", "--config.mesh.fsdp=2")
    probe = ("--config.probe.every=20", "--config.probe.task=sst2", f"--config.probe.data_dir={folder}")
    with processes(text_file, workdir, 2, *SETTINGS, *mesh, *probe) as started:
        finish(started, workdir)
    assert [line["step"] for line in logged(workdir) if "probe_sst2_accuracy" in line] == [20, 40]
    assert_same_numbers(alone, workdir)
    (folder / "dev.tsv").unlink()
    with processes(text_file, tmp_path / "other", 2, *SETTINGS, *probe) as started:
        finish(started, tmp_path / "other", expected=2)
    said = Path(f"{tmp_path}/other-1.err").read_text()
    assert said.startswith("error: process 0: ")
    assert "has no dev.tsv" in said


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["slurm", "ompi"])
def test_a_cluster_tells_the_processes_their_places(cluster, text_file, tmp_path):
    workdir = tmp_path / "run"
    with processes(text_file, workdir, 2, "--config.steps=4", cluster=cluster) as started:
        finish(started, workdir)
    assert "2 x cpu" in Path(f"{workdir}-0.out").read_text()
    assert json.loads((workdir / "environment.json").read_text())["processes"] == 2


@pytest.mark.slow
def test_one_is_killed_the_others_stop_in_time_and_any_number_goes_on(alone, text_file, tmp_path):
    whole, workdir, patience = tmp_path / "whole", tmp_path / "run", 5
    with processes(text_file, whole, 2, *SETTINGS) as started:
        finish(started, whole)
    with processes(text_file, workdir, 2, *SETTINGS, f"--patience={patience}") as started:
        until(lambda: (workdir / "checkpoints" / "10").exists())
        started[1].kill()
        killed = time.monotonic()
        assert started[0].wait(timeout=60) == 2
        assert time.monotonic() - killed < 2 * patience + 5
    last = Path(f"{workdir}-0.err").read_text().splitlines()[-1]
    assert last == (
        f"error: process 0 stops: process 1 of 2 has said nothing for {patience} seconds; the same command, in all "
        "processes, goes on from the last checkpoint"
    )
    saved = max(int(folder.name) for folder in (workdir / "checkpoints").iterdir() if folder.name.isdigit())
    assert saved < STEPS
    resharded = shutil.copytree(workdir, tmp_path / "resharded")
    for count, folder in ((2, workdir), (4, resharded)):
        with processes(text_file, folder, count, *SETTINGS) as started:
            finish(started, folder)
        assert f"going on from step {saved}" in Path(f"{folder}-0.out").read_text()
    uninterrupted = arrays(whole, STEPS)
    assert all(np.array_equal(value, uninterrupted[name]) for name, value in arrays(workdir, STEPS).items())
    assert_same_numbers(alone, resharded)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_any_process_saves_the_same_step_of_all(text_file, tmp_path, number):
    workdir = tmp_path / "run"
    with processes(text_file, workdir, 2, *SETTINGS, "--config.steps=100000") as started:
        until(lambda: (workdir / "metrics.jsonl").exists() and len(logged(workdir)) > 5)
        started[1].send_signal(number)
        finish(started, workdir)
    saved = max(int(folder.name) for folder in (workdir / "checkpoints").iterdir())
    assert f"stopped and saved at step {saved}" in Path(f"{workdir}-0.out").read_text()
    assert logged(workdir)[-1]["step"] == saved


@pytest.mark.slow
def test_a_folder_that_is_not_shared_is_refused_by_all(text_file, tmp_path):
    workdir = tmp_path / "run"
    with processes(text_file, workdir, 2, *SETTINGS) as started:
        started[1].kill()
        place = [part for part in started[1].args if part.startswith(("--coord", "--process"))]
        elsewhere = run(command(text_file, tmp_path / "other", *place, *SETTINGS))
        assert started[0].wait(timeout=60) == 2
    assert elsewhere.returncode == 2
    for text in (Path(f"{workdir}-0.err").read_text(), elsewhere.stderr):
        assert "is not the same folder for all processes: what process 0 writes is not seen by 1" in text


def test_a_process_that_does_not_come_is_waited_for_so_long_and_no_longer(text_file, tmp_path):
    began = time.monotonic()
    done = run(
        command(
            text_file, tmp_path / "run", "--coordinator=localhost:1", *["--processes=2", "--process=1", "--patience=2"]
        )
    )
    assert done.returncode == 2
    assert time.monotonic() - began < 60
    assert "the processes of this run did not all come within 2 seconds" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


RESTLESS = """
import sys
from electra_jax import processes
processes._BEAT = 0
place = {"coordinator": sys.argv[1], "processes": 2, "process": int(sys.argv[2]), "patience": 60}
with processes.together(place):
    print(processes.several())
"""


@pytest.mark.slow
def test_a_watch_that_never_rests_does_not_outlive_python(tmp_path):
    for _ in range(3):
        coordinator = f"localhost:{free_port()}"
        started = [
            subprocess.Popen(
                [sys.executable, "-c", RESTLESS, coordinator, str(number)],
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        for process in started:
            said, errors = process.communicate(timeout=120)
            assert (process.returncode, said) == (0, "True\n"), errors


def join(**given):
    with library.together({**library.OPTIONS, **given}):
        pass


@pytest.mark.parametrize(
    "given",
    [
        {"coordinator": "host:1"},
        {"processes": 2},
        {"process": 0},
        {"coordinator": "host:1", "processes": 2, "process": 2},
        {"coordinator": "host", "processes": 2, "process": 1},
    ],
)
def test_half_a_place_is_refused(given):
    with pytest.raises(UserError, match="is no place among processes; give all three"):
        join(**given)


def test_alone_it_asks_nobody():
    join(processes=1)
    assert library.first()
    assert not library.several()
    assert library.by_first(lambda: 1, others=lambda: 2) == 1
    library.check_shared(Path("/nowhere"))
    library.check_same("a text", "x")
    with pytest.raises(UserError, match=r"--patience=0 cannot be"):
        join(patience=0)
