import jax
import numpy as np
import pytest

from electra_jax import sharding
from electra_jax.errors import UserError


def test_a_batch_is_split_and_the_rest_is_everywhere():
    mesh = sharding.make_mesh(16)
    batch = sharding.put({"input_ids": np.arange(32).reshape(16, 2)}, mesh)["input_ids"]
    assert [shard.data.shape for shard in batch.addressable_shards] == [(2, 2)] * 8
    np.testing.assert_array_equal(batch, np.arange(32).reshape(16, 2))
    copies = jax.device_put(np.ones(3), sharding.replicated(mesh)).addressable_shards
    assert [shard.data.shape for shard in copies] == [(3,)] * 8


@pytest.mark.parametrize(("size", "nearest"), [(12, "8 or 16"), (3, "8"), (9, "8 or 16")])
def test_a_batch_that_the_devices_do_not_divide_is_refused(size, nearest):
    with pytest.raises(UserError, match=f"batch_size={size} cannot be split over 8 devices; use {nearest}"):
        sharding.make_mesh(size)


def test_a_batch_is_split_over_devices_and_parts():
    assert sharding.make_mesh(32, accumulate=4).size == 8
    with pytest.raises(UserError, match="batch_size=40 cannot be split over 8 devices, 4 times; use 32 or 64"):
        sharding.make_mesh(40, accumulate=4)
