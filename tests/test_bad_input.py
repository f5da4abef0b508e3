"""Wrong input in real runs: one line with cause and advice, exit status 2, and nothing is lost."""

import json
import resource
import shutil
from pathlib import Path

import pytest
from cli_runs import small_config, train_arguments
from etils import epath

from electra_jax import train as train_module
from electra_jax.commands import train
from electra_jax.config import errors
from electra_jax.runtime.checkpoint import Checkpoints
from electra_jax.runtime.lock import lock
from electra_jax.runtime.workdir import WorkDir


def start(*arguments: str | Path, **options: str) -> int:
    """Trains in this process; the exit status."""
    return errors.run(train.main, train_arguments(*arguments, **options))


def refused(capsys: pytest.CaptureFixture[str], expected: str, *arguments: str | Path, **options: str) -> None:
    """Starts training and checks that it ends with one line that has `expected` in it."""
    assert start(*arguments, **options) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert expected in line


def files(folder: Path) -> dict[str, bytes]:
    """All but the lock, which names the process that has tried last."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture
def set_up_only(monkeypatch):
    """A run ends where it would compile its first step, as if it had been stopped there."""

    def end(setup, progress, clock, hooks):
        setup.checkpoints.close()
        return train_module.TrainResult(int(setup.state.step), False, {}, {}, [])

    monkeypatch.setattr(train_module, "run_steps", end)


@pytest.fixture
def workdir(small_run, tmp_path) -> Path:
    return Path(shutil.copytree(small_run, tmp_path / "copy"))


def test_an_empty_corpus(tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n\n")
    refused(capsys, "has no document to train on", tmp_path / "empty.txt", tmp_path / "run")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("batch_size=9", "use 8 or 16"),
        ("model.attention=fused", "config.model.attention=fused needs TPUs"),
    ],
)
def test_what_the_devices_cannot_do_leaves_no_folder(tmp_path, text_file, setting, expected, capsys):
    refused(capsys, expected, text_file, tmp_path / "run", f"--config.{setting}")
    assert not (tmp_path / "run").exists()


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


@pytest.mark.parametrize("name", ["vocab.model", "manifest.json"])
def test_a_corpus_that_was_changed(text_file, workdir, name, capsys):
    path = next(workdir.glob(f"data/*/{name}"))
    path.write_bytes(path.read_bytes()[:-9])
    expected = f"{name} is missing or has changed since it was written; delete"
    refused(capsys, expected, text_file, workdir, "--config.steps=2")


def test_steps_and_intervals_may_change_and_are_named(text_file, workdir, capsys, set_up_only):
    assert start(text_file, workdir, "--config.steps=3", "--config.log_every=1") == 143
    out = capsys.readouterr().out
    assert "changed since this run was started: steps: 2 -> 3" in out
    assert "resuming from step 2" in out


def test_fewer_steps_than_were_done(text_file, workdir, capsys):
    before = files(workdir)
    refused(capsys, "is at step 2: expected config.steps=2 or more", text_file, workdir, "--config.steps=1")
    assert files(workdir) == before


def test_a_loss_of_nan_ends_the_run_before_it_is_saved(text_file, tmp_path, capsys):
    settings = ("--config.optim.weight_decay=1e38", "--config.optim.warmup_steps=1", "--config.steps=8")
    message = (
        "2 updates in a row were skipped, up to step 4: its loss or gradient is not finite; nothing is saved after "
        "step 0; start again in another --workdir with a lower config.optim.learning_rate"
    )
    settings += ("--config.guard.patience=2",)
    refused(capsys, message, text_file, tmp_path / "run", *settings, arg="objective=mlm")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == []


def test_a_work_directory_that_is_a_file(tmp_path, text_file, capsys):
    (tmp_path / "file").write_text("mine")
    refused(capsys, "a parent of the path is a file: expected a folder", text_file, tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.slow
def test_a_full_disk(text_file, tmp_path, capfd, monkeypatch, light_steps):
    """A limit on the size of files, below that of the parameters, fails in the same places as a full disk."""
    limits, save = resource.getrlimit(resource.RLIMIT_FSIZE), Checkpoints.save

    def save_on_a_full_disk(self, step, *more):
        self.wait()  # the checkpoint before is written in other threads
        resource.setrlimit(resource.RLIMIT_FSIZE, (60 * 1024 if step == 2 else limits[0], limits[1]))
        save(self, step, *more)

    settings = ("--config.steps=3", "--config.checkpoint.every=1")
    monkeypatch.setattr(Checkpoints, "save", save_on_a_full_disk)
    try:
        assert start(text_file, tmp_path, *settings, arg="objective=mlm") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    printed = capfd.readouterr().err
    assert "Traceback" not in printed
    (line,) = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert "while writing a checkpoint; earlier ones are complete" in line

    monkeypatch.setattr(Checkpoints, "save", save)
    assert start(text_file, tmp_path, *settings, arg="objective=mlm") == 0
    assert "resuming from step 1" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("left", "named"),
    [
        ({"config.json": '{"model_type": "electra"}', "tokenizer.json": "{}"}, "config.json"),  # of Hugging Face
        ({"config.json": '{"task": {"name": "cola"}, "seeds": 3}'}, "config.json"),  # a fine-tuning's
        ({"vocab.model": "x", "manifest.json": "{}", "000000-000000.npz": "x"}, "000000-000000.npz"),  # a corpus
        ({"data/mine.txt": "text"}, "data/mine.txt"),
        ({"notes": "mine"}, "notes"),
    ],
)
@pytest.mark.parametrize("kind", [Path, epath.Path])
def test_a_folder_that_is_not_a_run_is_left_as_it_was(tmp_path, text_file, left, named, kind):
    for name, text in left.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = files(tmp_path)
    with pytest.raises(errors.UserError, match=rf"holds something other than a run \({named}\): expected a run, or an"):
        train_module.train(small_config(text_file), kind(tmp_path))
    assert files(tmp_path) == before


def test_what_a_killed_start_leaves_is_no_other_folder(tmp_path):
    for name in ("data/0123456789abcdef/vocabulary.json.tmp", ".lock", "config.json.tmp", "train.log", ".shared-1/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "checkpoints").mkdir()
    WorkDir(tmp_path).check_is_run()


def test_two_runs_in_one_work_directory(text_file, workdir, capsys):
    before = files(workdir)
    with lock(workdir, print):
        refused(capsys, "is in use by another run", text_file, workdir, "--config.steps=3")
    assert files(workdir) == before


def test_a_checkpoint_that_cannot_be_restored_leaves_the_settings(text_file, workdir, capsys):
    for array in (workdir / "checkpoints" / "2").rglob("*"):
        if array.is_file() and array.stat().st_size > 1000:
            array.write_bytes(b"")
    before = (workdir / "config.json").read_bytes()
    refused(capsys, "checkpoint", text_file, workdir, "--config.steps=3")
    assert (workdir / "config.json").read_bytes() == before


def test_a_run_that_an_earlier_version_began_goes_on(text_file, workdir, capsys, set_up_only):
    written = json.loads((workdir / "config.json").read_text())
    del written["init"]["generator"]
    (workdir / "config.json").write_text(json.dumps(written))
    refused(capsys, "with other settings (seed: 0 -> 1)", text_file, workdir, "--config.seed=1")
    assert (
        start(text_file, workdir, "--config.steps=2", "--config.eval_batches=1", "--config.checkpoint.every=1") == 143
    )
    assert json.loads((workdir / "config.json").read_text())["init"]["generator"] == "random"


def test_a_run_without_its_checkpoints_keeps_what_it_has_logged(text_file, workdir, capsys, set_up_only):
    shutil.rmtree(workdir / "checkpoints")
    before = files(workdir)
    refused(
        capsys, "with other settings and without its checkpoints (seed: 0 -> 1", text_file, workdir, "--config.seed=1"
    )
    after = files(workdir)
    assert {name: after[name] for name in before} == before

    logged = (workdir / "metrics.jsonl").read_text()
    settings = ("--config.steps=2", "--config.eval_batches=1", "--config.checkpoint.every=1")
    assert start(text_file, workdir, *settings) == 143
    out = capsys.readouterr().out
    assert "no checkpoint: starting again at step 0; what was logged until step 2 is kept in metrics.1.jsonl" in out
    assert (workdir / "metrics.1.jsonl").read_text() == logged
    assert not (workdir / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rewind_to=1"], "has no checkpoint of --rewind_to=1: it has none yet; leave --rewind_to out"),
        (["--rewind_to=one"], "--rewind_to=one is invalid: expected an integer"),
        (["--skip_batches=2"], "--skip_batches=2 has no effect without --rewind_to"),
    ],
)
def test_a_rewind_that_cannot_be_made(text_file, tmp_path, options, message, capsys):
    refused(capsys, message, text_file, tmp_path / "run", *options)
