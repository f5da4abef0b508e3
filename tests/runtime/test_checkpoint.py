import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax.config.errors import UserError
from electra_jax.runtime.checkpoint import Checkpoints
from electra_jax.step import TrainState


def state(step: int, width: int = 3) -> TrainState:
    params = {"kernel": jnp.full((2, width), float(step)), "bias": jnp.zeros(width)}
    return TrainState(jnp.int32(step), params, {"mu": jnp.full(width, -float(step))})


def saved(folder, steps, **options) -> Checkpoints:
    checkpoints = Checkpoints(folder, **options)
    for step in steps:
        checkpoints.save(step, state(step), {"data": {"next_index": step}, "totals": {"flops": 1e18 + step}})
    checkpoints.wait()
    return checkpoints


def test_a_saved_state_is_restored(tmp_path):
    saved(tmp_path, [3], keep_last=1, keep_every=100).close()
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() == 3
    assert checkpoints.metadata(3) == {"data": {"next_index": 3}, "totals": {"flops": 1e18 + 3}}
    restored = checkpoints.restore(3, state(0))
    jax.tree.map(np.testing.assert_array_equal, restored, state(3))
    assert restored.step.dtype == jnp.int32
    checkpoints.close()


def test_the_newest_and_every_nth_are_kept(tmp_path):
    saved(tmp_path, range(1, 12), keep_last=2, keep_every=4).close()
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == [4, 8, 10, 11]
    assert Checkpoints(tmp_path, read_only=True).steps() == [4, 8, 10, 11]


def test_a_step_is_saved_once(tmp_path):
    checkpoints = saved(tmp_path, [5], keep_last=2, keep_every=100)
    checkpoints.save(5, state(6), {})
    checkpoints.wait()
    assert float(checkpoints.restore(5, state(0)).params["kernel"][0, 0]) == 5.0
    checkpoints.close()


def test_an_incomplete_checkpoint_is_ignored(tmp_path):
    saved(tmp_path, [5], keep_last=2, keep_every=100).close()
    half = tmp_path / "8.orbax-checkpoint-tmp"  # the name that Orbax uses until a checkpoint is complete
    shutil.copytree(tmp_path / "5", half)
    for path in list((half / "state").iterdir())[:2]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() == 5
    checkpoints.close()


def test_another_shape_is_refused(tmp_path):
    checkpoints = saved(tmp_path, [5], keep_last=2, keep_every=100)
    with pytest.raises(UserError, match=r"it has opt_state.mu of shape \[3\], the model has .* \[4\]") as error:
        checkpoints.restore(5, state(0, width=4))
    assert "\n" not in str(error.value)
    checkpoints.close()


@pytest.mark.parametrize("damaged", ["state", "state/_METADATA", "state/manifest.ocdbt", "progress/metadata"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_checkpoint_is_refused(tmp_path, damaged, cut):
    saved(tmp_path, [5], keep_last=2, keep_every=100).close()
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
def test_other_errors_are_not_blamed_on_the_checkpoint(tmp_path, monkeypatch, error):
    checkpoints = saved(tmp_path, [5], keep_last=2, keep_every=100)

    def restore(step, args):
        raise error

    monkeypatch.setattr(checkpoints._manager, "restore", restore)
    with pytest.raises(type(error)):
        checkpoints.metadata(5)
    checkpoints.close()


def test_a_state_is_restored_with_the_given_sharding(tmp_path):
    checkpoints = saved(tmp_path, [5], keep_last=2, keep_every=100)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), state(0))
    restored = checkpoints.restore(5, like)
    assert all(x.sharding.num_devices == 8 for x in jax.tree.leaves(restored))
    checkpoints.close()


def test_a_missing_or_an_additional_parameter_is_refused_by_name(tmp_path):
    checkpoints = saved(tmp_path, [5], keep_last=2, keep_every=100)
    like = state(0)
    less = {"kernel": like.params["kernel"]}
    with pytest.raises(UserError, match=r"it has params\.bias of shape \[3\], the model has no params\.bias"):
        checkpoints.restore(5, like.replace(params=less))
    with pytest.raises(UserError, match=r"it has no params\.more, the model has params\.more of shape \[\]"):
        checkpoints.restore(5, like.replace(params=like.params | {"more": jnp.zeros(())}))
    checkpoints.close()
