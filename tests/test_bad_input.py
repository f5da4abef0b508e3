"""Wrong input in real runs: one line with cause and advice, exit status 2, and nothing is lost."""

import os
import shutil
from pathlib import Path

import pytest
from cli_runs import command, run, train_arguments

from electra_jax.commands import train
from electra_jax.config import errors


def start(*arguments: str | Path, **options: str) -> int:
    """Trains in this process; the exit status."""
    return errors.run(train.main, train_arguments(*arguments, **options))


def refused(capsys: pytest.CaptureFixture[str], expected: str, *arguments: str | Path) -> None:
    """Starts training and checks that it ends with one line that has `expected` in it."""
    assert start(*arguments) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert expected in line


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, text_file) -> Path:
    """A run of two steps."""
    workdir = tmp_path_factory.mktemp("bad") / "finished"
    assert start(text_file, workdir, "--config.steps=2") == 0
    return workdir


@pytest.fixture
def workdir(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def test_a_missing_corpus(tmp_path, capsys):
    refused(
        capsys, "matches no file: expected files, a folder, a glob, 'docstrings'", tmp_path / "no*", tmp_path / "run"
    )


def test_an_empty_corpus(tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n\n")
    refused(capsys, "has no document to train on", tmp_path / "empty.txt", tmp_path / "run")


def test_a_batch_that_the_devices_do_not_divide(tmp_path, text_file, capsys):
    refused(capsys, "use 8 or 16", text_file, tmp_path / "run", "--config.batch_size=9")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rate", ["0", "1", "-0.1", "1.5"])
def test_a_mask_rate_outside_0_and_1(tmp_path, text_file, rate, capsys):
    setting = f"--config.objective.mask_prob={rate}"
    refused(capsys, "is invalid: expected more than 0 and less than 1", text_file, tmp_path / "run", setting)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("--config.model.layers=3", "model.layers: 2 -> 3"),
        ("--config.data.vocab_size=39", "data.vocab_size: 40 -> 39"),
        ("--config.seed=1", "seed: 0 -> 1"),
        ("--config.model.encoder=bert", "model.encoder: 'modernbert' -> 'bert'"),
    ],
)
def test_a_work_directory_of_another_run(text_file, workdir, setting, named, capsys):
    before = files(workdir)
    refused(capsys, named, text_file, workdir, "--config.steps=2", setting)
    assert files(workdir) == before


def test_a_vocabulary_that_was_changed(text_file, workdir, capsys):
    vocabulary = next(workdir.glob("data/*/vocab.model"))
    vocabulary.write_bytes(vocabulary.read_bytes()[:-1])
    refused(capsys, "is missing or has changed since it was written; delete", text_file, workdir, "--config.steps=2")


def test_steps_and_intervals_may_change_and_are_named(text_file, workdir, capsys):
    assert start(text_file, workdir, "--config.steps=3", "--config.log_every=1") == 0
    out = capsys.readouterr().out
    assert "changed since this run was started: steps: 2 -> 3" in out
    assert "resuming from step 2" in out


def test_fewer_steps_than_were_done(text_file, workdir, capsys):
    before = files(workdir)
    refused(capsys, "is at step 2: expected config.steps=2 or more", text_file, workdir, "--config.steps=1")
    assert files(workdir) == before


def test_a_truncated_manifest(text_file, workdir, capsys):
    manifest = next(workdir.glob("data/*/manifest.json"))
    manifest.write_text(manifest.read_text()[:40])
    refused(
        capsys,
        "manifest.json is missing or has changed since it was written; delete",
        text_file,
        workdir,
        "--config.steps=2",
    )


def test_a_loss_of_nan_ends_the_run_before_it_is_saved(text_file, tmp_path, capsys):
    settings = ("--config.optim.learning_rate=1e30", "--config.optim.warmup_steps=1", "--config.steps=8")
    refused(capsys, "the loss is nan near step", text_file, tmp_path / "run", *settings)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == []


def test_a_work_directory_that_is_a_file(tmp_path, text_file, capsys):
    (tmp_path / "file").write_text("mine")
    refused(capsys, "a parent of the path is a file: expected a folder", text_file, tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_read_only_directory(tmp_path, text_file):
    """In a process without root's permission to write everywhere."""
    drop = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may write everywhere, and there is no setpriv to drop that right")
        drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
    folder = tmp_path / "readonly"
    folder.mkdir()
    (folder / "kept").write_text("mine")
    folder.chmod(0o555)
    done = run([*drop, *command(text_file, folder / "run")])
    folder.chmod(0o755)
    assert done.returncode == 2, done.stderr
    assert "permission denied; use a path that this user can access" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert [path.name for path in folder.iterdir()] == ["kept"]


def test_a_full_disk(text_file, finished, tmp_path):
    """A limit on the size of files, below that of the parameters, fails in the same places as a full disk."""
    workdir = Path(shutil.copytree(finished, tmp_path / "full"))
    before = files(workdir / "checkpoints")

    arguments = command(text_file, workdir, "--config.steps=4")
    done = run(["bash", "-c", 'ulimit -f 60; exec "$@"', "bash", *arguments])  # KiB a file
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "while writing a checkpoint; earlier ones are complete" in line
    assert {name: content for name, content in files(workdir / "checkpoints").items() if name in before} == before

    done = run(arguments)  # without the limit it resumes
    assert done.returncode == 0, done.stderr
    assert "resuming from step 2" in done.stdout


def test_a_traceback_only_with_debug(tmp_path):
    arguments = command(tmp_path / "none", tmp_path / "run")
    assert "Traceback" not in run(arguments).stderr
    assert "Traceback" in run([*arguments, "--debug"]).stderr
