import contextlib
import random
import resource
import shutil
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax.config import settings
from electra_jax.config.errors import UserError
from electra_jax.guard import no_norms
from electra_jax.runtime.checkpoint import CheckpointConfig, Checkpoints
from electra_jax.runtime.sharding import MeshConfig, make_mesh, put_tree, shardings, with_shardings
from electra_jax.step import TrainState


def state(step: int, width: int = 3) -> TrainState:
    params = {"kernel": jnp.full((2, width), float(step)), "bias": jnp.zeros(width)}
    return TrainState(jnp.int32(step), params, {"mu": jnp.full(width, -float(step))}, no_norms())


def saved(folder, steps, **options) -> Checkpoints:
    checkpoints = Checkpoints(folder, **options)
    for step in steps:
        checkpoints.save(step, state(step), {"data": {"next_index": step}, "totals": {"flops": 1e18 + step}})
    checkpoints.wait()
    return checkpoints


@pytest.fixture
def five(tmp_path):
    """Checkpoints of one step, 5."""
    checkpoints = saved(tmp_path, [5])
    yield checkpoints
    checkpoints.close()


def test_a_saved_state_is_restored(tmp_path):
    saved(tmp_path, [3], keep_last=1, keep_every=100).close()
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() == 3
    assert checkpoints.metadata(3) == {"data": {"next_index": 3}, "totals": {"flops": 1e18 + 3}}
    restored = checkpoints.restore(3, state(0))
    jax.tree.map(np.testing.assert_array_equal, restored, state(3))
    assert restored.step.dtype == jnp.int32
    checkpoints.close()


def test_a_part_of_a_state_is_restored_without_the_rest(tmp_path):
    checkpoints = saved(tmp_path, [3])
    part = {"params": state(0).params}
    jax.tree.map(np.testing.assert_array_equal, checkpoints.restore(3, part, partial=True)["params"], state(3).params)
    other = {"params": {**part["params"], "scale": jnp.zeros(3)}}
    with pytest.raises(UserError, match=r"it has no params.scale, the model has params.scale of shape \[3\]"):
        checkpoints.restore(3, other, partial=True)
    with pytest.raises(UserError, match="does not fit this model: it has grad_norms"):
        checkpoints.restore(3, part)


def test_the_newest_and_every_nth_are_kept(tmp_path):
    saved(tmp_path, range(1, 12), keep_last=2, keep_every=4).close()
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == [4, 8, 10, 11]
    assert Checkpoints(tmp_path, read_only=True).steps() == [4, 8, 10, 11]


def test_steps_that_are_named_are_kept(tmp_path):
    keep = CheckpointConfig(keep_at=".2, 1/2").kept_steps(11)
    saved(tmp_path, range(1, 12), keep_last=1, keep_every=100, keep=keep).close()
    assert Checkpoints(tmp_path, read_only=True).steps() == [2, 6, 11]


@pytest.mark.parametrize(
    ("text", "steps"), [("", []), ("1", [1000]), (".000000001,.0155", [1, 16]), ("1/3, 2/3,", [333, 667])]
)
def test_fractions_of_a_run(text, steps):
    assert sorted(CheckpointConfig(keep_at=text).kept_steps(1000)) == steps


@pytest.mark.parametrize("text", ["0", "1.5", "half", "1/0", "-1", "1e-99999999"])
def test_fractions_that_are_none_are_refused(text):
    with pytest.raises(UserError, match=r"keep_at=.* is invalid: expected fractions up to 1, separated"):
        settings.validate(CheckpointConfig(keep_at=text))


def test_a_step_is_saved_once(five):
    five.save(5, state(6), {})
    five.wait()
    assert float(five.restore(5, state(0)).params["kernel"][0, 0]) == 5.0


@pytest.mark.parametrize("recovers", [True, False])
def test_after_a_checkpoint_that_could_not_be_written_the_next_one_is(tmp_path, caplog, recovers):
    noise = jax.random.normal(jax.random.key(0), (100, 100))
    checkpoints = Checkpoints(tmp_path, keep_last=2, keep_every=100)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpoints.save(1, noise, {})
    checkpoints.wait()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # bytes of a file
        checkpoints.save(2, noise, {})
        for thread in (each for each in threading.enumerate() if each.name == "save_finalize"):
            threading.Thread.join(thread)  # Orbax's own `join` would raise the error
        if recovers:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            checkpoints.save(3, noise, {})
        else:
            with pytest.raises(UserError, match=r"File too large while writing a checkpoint; earlier ones are"):
                checkpoints.save(3, noise, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    ours = [text for text in caplog.messages if text.startswith("warning: ")]
    assert ours == ["warning: the checkpoint before step 3 was not written (File too large)"]
    assert checkpoints.steps() == ([1, 3] if recovers else [1])
    checkpoints.close()


def test_an_incomplete_checkpoint_is_ignored(tmp_path):
    saved(tmp_path, [5]).close()
    half = tmp_path / "8.orbax-checkpoint-tmp"  # the name that Orbax uses until a checkpoint is complete
    shutil.copytree(tmp_path / "5", half)
    for path in list((half / "state").iterdir())[:2]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() == 5
    checkpoints.close()


KERNEL, BIAS, MORE = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 3), (3,), ()))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"opt_state": {"mu": MORE}},
            r"it has opt_state\.mu of shape \[3\] and type float32, the model has .* \[\] and",
        ),
        (
            {"opt_state": {"mu": jax.ShapeDtypeStruct((3,), jnp.bfloat16)}},
            "mu of .* type float32, the model has .* type bfloat16",
        ),
        (
            {"params": {"kernel": KERNEL}},
            r"it has params\.bias of shape \[3\] and type float32, the model has no params\.bias",
        ),
        (
            {"params": {"kernel": KERNEL, "bias": BIAS, "more": MORE}},
            r"it has no params\.more, the model has params\.more of shape \[\]",
        ),
    ],
)
def test_another_state_is_refused_by_the_name_of_the_array(five, other, message):
    with pytest.raises(UserError, match=message) as error:
        five.restore(5, state(0).replace(**other))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damaged", ["state", "state/_METADATA", "state/manifest.ocdbt", "progress/metadata"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_checkpoint_is_refused(tmp_path, damaged, cut):
    saved(tmp_path, [5]).close()
    path = tmp_path / "5" / damaged
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.write_text("{" if cut else "")
    checkpoints = Checkpoints(tmp_path, read_only=True)
    with pytest.raises(UserError, match=r"checkpoint .*/5 cannot be read \(.*\); try again, ") as error:
        checkpoints.metadata(5) if "progress" in damaged else checkpoints.restore(5, state(0))
    assert "\n" not in str(error.value)
    checkpoints.close()


@pytest.mark.parametrize("error", [PermissionError(13, "x"), ConnectionError("503"), MemoryError()])
def test_other_errors_are_not_blamed_on_the_checkpoint(five, monkeypatch, error):
    def restore(step, args):
        raise error

    monkeypatch.setattr(five._manager, "restore", restore)
    with pytest.raises(type(error)):
        five.metadata(5)


def test_a_state_is_restored_with_the_given_sharding(five):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), state(0))
    assert all(x.sharding.num_devices == 8 for x in jax.tree.leaves(five.restore(5, like)))


def test_a_value_that_is_not_finite_is_not_saved(five):
    for value in (float("nan"), float("-inf")):
        bad = state(6).replace(opt_state={"mu": jnp.array([0.0, value, 1.0])})
        with pytest.raises(UserError, match=r"step 6 is not saved: opt_state\.mu has a value that is not finite"):
            five.save(6, bad, {})
    five.wait()
    assert five.steps() == [5]


def test_the_last_good_checkpoint_is_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_every=100)
    for step in range(1, 8):
        if step in (2, 3):
            checkpoints.good.step = step
        checkpoints.save(step, state(step), {})
        checkpoints.wait()
    assert checkpoints.steps() == [3, 7]


METADATA = {"data": {"next_index": 7}, "totals": {"tokens": 10.5}, "corpus": "abcdef"}


def large_state() -> TrainState:
    """Arrays of more than a kilobyte, which Orbax writes without checksums of its own, and small ones."""
    draw = np.random.default_rng(7).standard_normal
    params = {"kernel": draw((64, 64), np.float32), "bias": np.zeros(8, np.float32)}
    moments = {"mu": draw((64, 32), np.float32).astype(jnp.bfloat16), "nu": -np.zeros((64, 64), np.float32)}
    return TrainState(jnp.int32(7), jax.tree.map(jnp.asarray, params), jax.tree.map(jnp.asarray, moments))


def save_large_state(folder: Path, state: TrainState) -> None:
    with contextlib.closing(Checkpoints(folder)) as checkpoints:
        checkpoints.save(7, state, METADATA)
        checkpoints.wait()


def bits(tree) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def largest_file(folder: Path) -> Path:
    return max(filter(Path.is_file, folder.rglob("*")), key=lambda path: path.stat().st_size)


def restore_all(folder: Path, step: int, like) -> tuple[dict, list[bytes]]:
    with contextlib.closing(Checkpoints(folder, read_only=True)) as checkpoints:
        return checkpoints.metadata(step), bits(checkpoints.restore(step, like))


def flip_bits(folder: Path, step: int, like, flips: int) -> dict[str, int]:
    """Flips one bit at a time of every file of a checkpoint; counts the refusals of one line, by file.

    Every restore that is not refused must give what was saved.
    """
    good = restore_all(folder, step, like)
    draw, refused = random.Random(20), {}
    for path in sorted(path for path in (folder / str(step)).rglob("*") if path.is_file()):
        name, size = str(path.relative_to(folder / str(step))), 8 * path.stat().st_size
        refused[name] = 0
        for bit in (draw.randrange(size) for _ in range(flips)):
            flip(path, bit)
            try:
                assert restore_all(folder, step, like) == good, f"bit {bit} of {name}"
            except UserError as error:
                refused[name] += "\n" not in str(error)
            flip(path, bit)
    assert restore_all(folder, step, like) == good
    return refused


def test_no_flipped_bit_is_loaded_as_other_numbers(tmp_path):
    saved = large_state()
    save_large_state(tmp_path, saved)
    assert restore_all(tmp_path, 7, saved) == (METADATA, bits(saved))
    refused = flip_bits(tmp_path, 7, saved, flips=3)
    assert refused["progress/metadata"] == refused["checksums/metadata"] == 3
    assert sum(refused.values()) >= 15


@pytest.mark.slow
def test_no_flipped_bit_of_a_run_is_loaded_as_other_numbers(small_run, tmp_path):
    shutil.copytree(small_run / "checkpoints", tmp_path / "checkpoints")
    checkpoints = Checkpoints(tmp_path / "checkpoints", read_only=True)
    like = checkpoints.saved_arrays(2)
    checkpoints.close()
    refused = flip_bits(tmp_path / "checkpoints", 2, like, flips=6)
    # The arrays are in files of each process. Orbax copies the small ones to state/d and reads only the copies, so a
    # flip of the first copy is neither seen nor loaded: how many these are depends on which arrays share a file.
    assert all(count == 6 for name, count in refused.items() if name.startswith("state/d/"))
    first = small_run / "checkpoints" / "2" / "state" / "ocdbt.process_0" / "d"
    large = [path.name for path in first.iterdir() if path.stat().st_size > 50_000]
    assert sum(refused[f"state/ocdbt.process_0/d/{name}"] for name in large) >= len(large)


@pytest.mark.parametrize("sizes", [(8, 1, 1), (1, 8, 1), (2, 2, 2)], ids=str)
def test_checksums_hold_on_any_mesh(tmp_path, sizes):
    def on_mesh(*sizes):
        values = {"params": {"embeddings": {"word": np.random.default_rng(1).standard_normal((256, 64), np.float32)}}}
        to = shardings(with_shardings(make_mesh(MeshConfig(*sizes), 8), values))
        return put_tree(values, to)

    there, here = on_mesh(2, 4, 1), on_mesh(*sizes)
    save_large_state(tmp_path, there)
    assert restore_all(tmp_path, 7, here) == (METADATA, bits(there))
    flip(largest_file(tmp_path / "7"), 50_000)
    with pytest.raises(UserError, match=r"/7 is damaged: params\.embeddings\.word has changed since the checkpoint"):
        restore_all(tmp_path, 7, here)


def test_damage_is_named_with_the_checkpoint_before(tmp_path):
    saved(tmp_path, [3, 5, 8], keep_last=3).close()
    for step in (3, 8):
        path = tmp_path / str(step) / "progress" / "metadata"
        path.write_text(path.read_text().replace('"next_index": ', '"next_index": 1'))
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(UserError) as error:
        checkpoints.metadata(8)
    assert str(error.value) == (
        f"checkpoint {tmp_path}/8 is damaged: progress has changed since it was written; move that folder away to use "
        "the checkpoint of step 5"
    )
    with pytest.raises(UserError, match=r"; it is the first one, so restore a copy of that folder, or move it away"):
        checkpoints.metadata(3)
    checkpoints.close()


def test_every_changed_array_counts(tmp_path):
    """The checkpoint has the arrays of step 8, and the checksums of another state at that step."""
    saved(tmp_path / "a", [8]).close()
    other = Checkpoints(tmp_path / "b")
    other.save(8, state(8).replace(params=state(9).params | {"bias": jnp.ones(3)}), {})
    other.wait()
    other.close()
    shutil.rmtree(tmp_path / "a" / "8" / "checksums")
    shutil.copytree(tmp_path / "b" / "8" / "checksums", tmp_path / "a" / "8" / "checksums")
    checkpoints = Checkpoints(tmp_path / "a", read_only=True)
    with pytest.raises(UserError, match=r"params\.bias has changed since the .* \(one of 2 such arrays\); "):
        checkpoints.restore(8, state(0))
    checkpoints.close()


def test_a_checkpoint_under_the_name_of_another_step_is_refused(tmp_path):
    saved(tmp_path, [5]).close()
    (tmp_path / "5").rename(tmp_path / "9")
    checkpoints = Checkpoints(tmp_path, read_only=True)
    for read in (checkpoints.metadata, lambda step: checkpoints.restore(step, state(0))):
        with pytest.raises(UserError, match=r"/9 is damaged: it was written as the checkpoint of step 5"):
            read(9)
    checkpoints.close()


def test_a_checkpoint_without_checksums_is_refused(tmp_path):
    saved(tmp_path, [5]).close()
    shutil.rmtree(tmp_path / "5" / "checksums")
    checkpoints = Checkpoints(tmp_path, read_only=True)
    for read in (checkpoints.metadata, lambda step: checkpoints.restore(step, state(0))):
        with pytest.raises(UserError, match=r"/5 cannot be read"):
            read(5)
    checkpoints.close()
