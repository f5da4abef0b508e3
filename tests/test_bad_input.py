"""What a person can get wrong, in real processes: one line that names cause and way out, status 2, nothing lost."""

import os
import shutil
from pathlib import Path

import pytest
from cli_runs import command, run

from electra_jax import train
from electra_jax.config import errors


def refused(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs training in this process, up to the refusal."""
    assert errors.run(train.main, arguments[3:]) == 2
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
    assert errors.run(train.main, command(text_file, workdir, "--config.steps=2")[3:]) == 0
    return workdir


@pytest.fixture
def workdir(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def test_a_missing_corpus(tmp_path, capsys):
    arguments = command(tmp_path / "no*.txt", tmp_path / "run")
    refused(arguments, "matches no file; give a file, a folder, a glob, 'docstrings' or", capsys)


def test_an_empty_corpus(tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n\n")
    refused(command(tmp_path / "empty.txt", tmp_path / "run"), "gives no document to train on", capsys)


def test_a_batch_that_the_devices_do_not_divide(tmp_path, text_file, capsys):
    refused(command(text_file, tmp_path / "run", "--config.batch_size=9"), "use 8 or 16", capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rate", ["0", "1", "-0.1", "1.5"])
def test_a_mask_rate_outside_0_and_1(tmp_path, text_file, rate, capsys):
    arguments = command(text_file, tmp_path / "run", f"--config.objective.mask_prob={rate}")
    refused(arguments, "cannot be; give more than 0 and less than 1", capsys)


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
    refused(command(text_file, workdir, "--config.steps=2", setting), named, capsys)
    assert files(workdir) == before


def test_a_vocabulary_that_was_changed(text_file, workdir, capsys):
    vocabulary = next(workdir.glob("data/*/vocab.model"))
    vocabulary.write_bytes(vocabulary.read_bytes()[:-1])
    refused(command(text_file, workdir, "--config.steps=2"), "is missing or has changed since it was written; delete", capsys)


def test_length_and_intervals_may_change_and_are_named(text_file, workdir, capsys):
    arguments = command(text_file, workdir, "--config.steps=3", "--config.log_every=1")
    assert errors.run(train.main, arguments[3:]) == 0
    out = capsys.readouterr().out
    assert "changed since this run was begun: steps: 2 -> 3" in out
    assert "going on from step 2" in out


def test_fewer_steps_than_were_done(text_file, workdir, capsys):
    before = files(workdir)
    arguments = command(text_file, workdir, "--config.steps=1")
    refused(arguments, "is at step 2 already; give config.steps=2 or more", capsys)
    assert files(workdir) == before


def test_a_manifest_that_was_cut_off(text_file, workdir, capsys):
    manifest = next(workdir.glob("data/*/manifest.json"))
    manifest.write_text(manifest.read_text()[:40])
    refused(command(text_file, workdir, "--config.steps=2"), "manifest.json is missing or has changed since it was written; delete", capsys)


def test_a_loss_that_is_no_number_ends_the_run_before_it_is_saved(text_file, tmp_path, capsys):
    settings = ("--config.optim.learning_rate=1e30", "--config.optim.warmup_steps=1", "--config.steps=8")
    refused(command(text_file, tmp_path / "run", *settings), "the loss is nan near step", capsys)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == []


def test_a_work_directory_that_is_a_file(tmp_path, text_file, capsys):
    (tmp_path / "file").write_text("mine")
    refused(command(text_file, tmp_path / "file" / "run"), "a part of the path is a file", capsys)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_read_only_directory(tmp_path, text_file):
    """In a process without root's right to write everywhere."""
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
    assert "permission denied; give a path that this user can use" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert [path.name for path in folder.iterdir()] == ["kept"]


def test_a_full_disk(text_file, finished, tmp_path):
    """No file may grow past a bound that the parameters do not fit in: the same refusal, in the same places."""
    workdir = Path(shutil.copytree(finished, tmp_path / "full"))
    before = files(workdir / "checkpoints")

    arguments = command(text_file, workdir, "--config.steps=4")
    done = run(["bash", "-c", 'ulimit -f 60; exec "$@"', "bash", *arguments])  # KiB a file
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "while a checkpoint was written; earlier ones are whole" in line
    assert {name: content for name, content in files(workdir / "checkpoints").items() if name in before} == before

    done = run(arguments)  # with room again it goes on
    assert done.returncode == 0, done.stderr
    assert "going on from step 2" in done.stdout


def test_a_traceback_only_with_debug(tmp_path):
    arguments = command(tmp_path / "none", tmp_path / "run")
    assert "Traceback" not in run(arguments).stderr
    assert "Traceback" in run([*arguments, "--debug"]).stderr
