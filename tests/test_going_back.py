"""Runs that go back to a checkpoint and leave out batches."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli_runs import arrays, assert_same_bits, logged, small_config

from electra_jax import train_config, train_setup
from electra_jax.config.errors import UserError
from electra_jax.data.batches import HeldoutBatch
from electra_jax.runtime import rewind, sharding
from electra_jax.runtime.checkpoint import Checkpoints
from electra_jax.runtime.progress import Progress
from electra_jax.runtime.rewind import Rewind
from electra_jax.runtime.workdir import WorkDir
from electra_jax.train import train


@pytest.fixture
def batches(monkeypatch) -> list[bytes]:
    """What is put on the devices, from now on; the batches of an evaluation come after those of the steps."""
    seen: list[bytes] = []
    put = sharding.put_batch

    def note(batch, mesh, batch_size):
        whole = batch.batch if isinstance(batch, HeldoutBatch) else batch
        seen.append(whole.input_ids.tobytes())
        return put(batch, mesh, batch_size)

    monkeypatch.setattr(sharding, "put_batch", note)
    return seen


@pytest.fixture
def run(text_file, tmp_path, batches, light_steps):
    """Trains six steps, the first three on short sequences; returns the batches of the steps that were made."""
    settings = {"phases": "1/2 data.seq_length=16; 1/2", "log_every": 1, "eval_every": 100, "eval_batches": 1}
    config = small_config(text_file, "objective=mlm", steps=6, checkpoint__every=1, checkpoint__keep_last=9, **settings)

    def start(*asked: int) -> list[bytes]:
        batches.clear()
        train(config, tmp_path, rewind=Rewind(*asked) if asked else None)
        return batches[: 6 - asked[0] if asked else 6]

    return start


def test_a_batch_is_left_out(small_run, text_file, tmp_path, batches, light_steps):
    config = small_config(text_file, steps=2, eval_batches=1, checkpoint__every=1)
    workdir = Path(shutil.copytree(small_run, tmp_path / "run"))
    of_second_step = []
    for skip_batches in (0, 1):
        batches.clear()
        train(config, workdir, rewind=Rewind(1, skip_batches))
        of_second_step.append(batches[0])
    assert of_second_step[0] != of_second_step[1]
    checkpoints = Checkpoints(workdir / "checkpoints", read_only=True)
    assert [checkpoints.metadata(step)["data"]["next_index"] for step in (1, 2)] == [1, 3]
    checkpoints.close()
    fewer = train_config.resolve(small_config(text_file, steps=1, eval_batches=1, checkpoint__every=1))
    train_setup.claim(WorkDir(workdir), fewer, 1, Progress())  # a run that goes back may end earlier
    with pytest.raises(UserError, match=r"is at step 2: expected config\.steps=2 or more"):
        train(fewer, workdir, rewind=Rewind(1, 1))  # which has been made, so the run is at its last step


def test_a_damaged_checkpoint_to_go_back_to_leaves_the_later_ones(small_run, text_file, tmp_path):
    config = small_config(text_file, steps=2, eval_batches=1, checkpoint__every=1)
    workdir = Path(shutil.copytree(small_run, tmp_path / "run"))
    for path in (workdir / "checkpoints" / "1" / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="damaged"):
        train(config, workdir, rewind=Rewind(1, 1))
    assert Checkpoints(workdir / "checkpoints", read_only=True).steps() == [1, 2]
    assert not (workdir / rewind.FILE).exists()
    train(config, workdir)  # from step 2


def test_a_run_keeps_the_phases_that_it_has_done(tmp_path):
    """Phases are shares of the steps, so with another number of steps they end elsewhere."""

    def config(steps: int, phases: str):
        return train_config.resolve(small_config(steps=steps, phases=phases))

    begun = config(8, "1/2 batch_size=4; 1/2")
    (tmp_path / "config.json").write_text(json.dumps(train_config.to_dict(begun)))
    for done, steps, phases in [(8, 8, begun.phases), (2, 16, begun.phases), (6, 16, "1/4 batch_size=4; 3/4")]:
        train_setup.claim(WorkDir(tmp_path), config(steps, phases), done, Progress())
    with pytest.raises(UserError, match=r"holds a run with other settings \(steps: 8 -> 16\)"):
        train_setup.claim(WorkDir(tmp_path), config(16, begun.phases), 8, Progress())
    with pytest.raises(UserError, match=r"other settings \(phases: '1/2 batch_size=4; 1/2' -> ''\)"):
        train_setup.claim(WorkDir(tmp_path), config(8, ""), 2, Progress())
    other = train_config.resolve(small_config(steps=16, batch_size=4, phases=begun.phases))
    with pytest.raises(UserError, match=r"other settings \(batch_size: 8 -> 4\)"):
        train_setup.claim(WorkDir(tmp_path), other, 2, Progress())


def test_a_start_that_left_no_checkpoint_does_not_decide_on_the_vocabulary(tmp_path):
    first, other = (small_config(init_from="there", init__vocabulary=taken) for taken in ("same", "pieces"))
    begun = train_config.to_dict(train_config.resolve(first))
    begun["data"]["vocabulary"] = "there/vocab.model"
    (tmp_path / "config.json").write_text(json.dumps(begun))
    adopted = [
        train_setup.adopt_settings(train_config.resolve(each), tmp_path, Progress()).data.vocabulary
        for each in (first, other)
    ]
    assert adopted == ["there/vocab.model", ""]


@pytest.mark.slow
def test_a_run_is_made_longer_from_its_constant_learning_rate_without_any_loss(text_file, tmp_path):
    """It becomes the run that would have been started with that number of steps."""
    common = {"optim__schedule": "stable", "optim__decay": 0.5, "eval_batches": 1, "checkpoint__every": 1}
    short, long = (small_config(text_file, steps=steps, checkpoint__keep_last=9, **common) for steps in (4, 8))
    train(short, tmp_path / "short")
    train(long, tmp_path / "short", rewind=Rewind(2, 0))
    train(long, tmp_path / "long")
    for step in (3, 8):
        assert_same_bits(arrays(tmp_path / "short", step), arrays(tmp_path / "long", step))


@pytest.mark.slow
def test_batches_are_left_out(run, tmp_path):
    """One batch of the first length, which the next length's batches do not notice, then one of the second."""
    first = run()
    assert len(first) == len(set(first)) == 6
    epochs = [line["epoch"] for line in logged(tmp_path)]
    again = run(2, 1)
    assert [line["epoch"] for line in logged(tmp_path)] == epochs
    assert again[0] not in first
    assert again[1:] == first[3:]
    assert rewind.read(WorkDir(tmp_path)) == rewind.Rewinds([Rewind(2, 1)], False)
    assert run(4, 1)[0] == first[5]
    assert [line["step"] for line in logged(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert rewind.read(WorkDir(tmp_path)).made == [Rewind(2, 1), Rewind(4, 1)]


@pytest.mark.slow
def test_a_run_that_went_back_resumes_exactly(run, tmp_path):
    """Killed before its next checkpoint, killed after it, and started by the same command or without the option."""
    run()
    run(3, 2)
    wanted = arrays(tmp_path, 6)
    for lost, asked in (((4, 5, 6), (3, 2)), ((5, 6), ()), ((6,), (3, 2))):
        for step in lost:
            shutil.rmtree(tmp_path / "checkpoints" / str(step))
        run(*asked)
        assert_same_bits(arrays(tmp_path, 6), wanted)


@pytest.mark.slow
def test_a_run_that_passes_the_step_of_a_rewind_anew_leaves_nothing_out(run, tmp_path):
    """Its later checkpoints were moved away by hand, and it is killed at that very step."""
    first = run()
    run(4, 1)
    for lost in ((3, 4, 5, 6), (5, 6)):
        for step in lost:
            shutil.rmtree(tmp_path / "checkpoints" / str(step))
        again = run()
        assert again[: len(lost)] == first[-len(lost) :]


@pytest.mark.slow
def test_a_rewind_that_was_interrupted_is_completed(run, tmp_path):
    """Killed when it was recorded, and no checkpoint was deleted yet."""
    run()
    old = arrays(tmp_path, 6)
    rewind.write(WorkDir(tmp_path), rewind.plan(WorkDir(tmp_path), Rewind(5, 1), [5]))
    run()
    assert not rewind.read(WorkDir(tmp_path)).pending
    assert any(not np.array_equal(value, old[name]) for name, value in arrays(tmp_path, 6).items())
