import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from cli_runs import make_objective, small_config
from jax.sharding import PartitionSpec as P

from electra_jax.config.errors import UserError
from electra_jax.runtime import sharding
from electra_jax.runtime.sharding import MeshConfig
from electra_jax.sharded_step import ShardedStep


def sizes(data: int = -1, fsdp: int = 1, tensor: int = 1) -> MeshConfig:
    return MeshConfig(data, fsdp, tensor)


@pytest.mark.parametrize(
    ("settings", "shape"),
    [(sizes(), (8, 1, 1)), (sizes(1, -1), (1, 8, 1)), (sizes(2, 2, 2), (2, 2, 2)), (sizes(-1, 2, 2), (2, 2, 2))],
)
def test_minus_one_is_the_number_of_remaining_devices(settings, shape):
    assert sharding.make_mesh(settings, 16).shape == dict(zip(("data", "fsdp", "tensor"), shape, strict=True))


@pytest.mark.parametrize("settings", [sizes(3), sizes(4), sizes(-1, 3), sizes(-1, -1), sizes(16)])
def test_sizes_that_do_not_multiply_to_the_devices_are_refused(settings):
    with pytest.raises(UserError, match=r"config\.mesh\.data=.* does not match 8 devices: expected sizes with"):
        sharding.make_mesh(settings, 16)


@pytest.mark.parametrize(("size", "nearest"), [(12, "8 or 16"), (3, "8"), (9, "8 or 16")])
def test_a_batch_size_that_is_not_divisible_is_refused(size, nearest):
    with pytest.raises(UserError, match=f"batch_size={size} is not divisible by 8 devices; use {nearest}"):
        sharding.make_mesh(sizes(), size)


def test_a_batch_is_split_over_devices_and_parts():
    assert sharding.make_mesh(sizes(), 32, grad_accum_steps=4).size == 8
    assert sharding.make_mesh(sizes(2, 2, 2), 4).size == 8  # `tensor` does not split it
    with pytest.raises(UserError, match="=40 is not divisible by 8 devices x 4 accumulation steps; use 32 or 64"):
        sharding.make_mesh(sizes(), 40, grad_accum_steps=4)


def test_slices_lie_along_data():
    devices = [FakeTpu(number) for number in range(8)]
    mesh = sharding.make_mesh(sizes(4, 2), 8, devices=devices)
    assert [[d.slice_index for d in row.ravel()] for row in mesh.devices] == [[0, 0], [0, 0], [1, 1], [1, 1]]
    with pytest.raises(UserError, match=r"config\.mesh\.data=1 is not divisible by 2 slices; use a multiple of 2"):
        sharding.make_mesh(sizes(1, 8), 8, devices=devices)


class FakeTpu:
    """A device of two slices of four, with the attributes that making a mesh reads."""

    def __init__(self, number: int):
        self.id = number
        self.slice_index, self.process_index = number // 4, number // 4
        self.platform, self.device_kind, self.core_on_chip = "cpu", "cpu", 0
        self.coords = (number % 2, number // 2 % 2, 0)
        self.client = SimpleNamespace(platform="cpu", runtime_type="fake", process_index=lambda: 0)


def test_a_model_that_is_not_divisible_by_tensor_is_refused():
    mesh = sharding.make_mesh(sizes(1, 1, 8), 8)
    with pytest.raises(UserError, match=r"model\.heads=12 is not divisible by config\.mesh\.tensor=8; use a divisor"):
        sharding.check_divisible(12, 3072, mesh)
    sharding.check_divisible(16, 4096, mesh)


def test_a_batch_is_put_on_the_devices_by_rows():
    for settings, shares in ((sizes(), 8), (sizes(2, 2, 2), 4), (sizes(1, 1, 8), 1)):
        mesh = sharding.make_mesh(settings, 16)
        assert sharding.local_rows(mesh, 16).tolist() == list(range(16))
        ids = np.arange(32).reshape(16, 2)
        batch = sharding.put_batch({"input_ids": ids}, mesh, 16)["input_ids"]
        assert {shard.data.shape for shard in batch.addressable_shards} == {(16 // shares, 2)}
        np.testing.assert_array_equal(batch, ids)


def program(encoder: str = "bert", mesh: dict[str, int] | None = None, vocabulary: int = 60, **settings) -> ShardedStep:
    config = small_config(model__encoder=encoder, data__seq_length=16, model__unroll=False, **settings)
    config.mesh.update(vars(mesh or sizes(2, 2, 2)))
    objective = make_objective(config, vocabulary)
    return ShardedStep(config, objective, sharding.make_mesh(config.mesh, config.batch_size))


@pytest.mark.parametrize("encoder", ["bert", "modernbert"])
def test_rules_place_parameters_and_their_moments(encoder):
    state = program(encoder).state
    places = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.sharding.spec
        for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]
    }
    expected = {
        "embeddings/word": P("tensor", "fsdp"),
        "encoder/layers/attention/qkv/kernel": P(None, "fsdp", None, "tensor", None),
        "encoder/layers/attention/out/kernel": P(None, "tensor", None, "fsdp"),
        "encoder/layers/ffn_in/kernel": P(None, "fsdp", *([None] if encoder == "modernbert" else []), "tensor"),
        "encoder/layers/ffn_out/kernel": P(None, "tensor", "fsdp"),
        "encoder/layers/ffn_norm/scale": P(),
        "generator/layers/attention/qkv/kernel": P(None, "fsdp", None, None, None),  # one head
        "generator_head/bias": P("tensor"),
        "generator_head/dense/kernel": P("fsdp", None),
        "discriminator_head/classifier/kernel": P(),
    }
    for name, spec in expected.items():
        there = [place for path, place in places.items() if path.endswith(name)]
        assert there == [spec] * 3, name  # the parameter and two moments
    assert places["step"] == P()


def test_every_rule_is_of_some_parameter():
    names = set()
    for encoder in ("bert", "modernbert"):
        leaves = jax.tree_util.tree_flatten_with_path(program(encoder, model__embedding_size=32).state.params)[0]
        names |= {(jax.tree_util.keystr(path, simple=True, separator="/"), leaf.ndim) for path, leaf in leaves}
    for pattern, axes in sharding.RULES:
        assert any(re.search(f"(^|/|_)({pattern})$", name) and ndim == len(axes) for name, ndim in names), pattern


def collectives(run: ShardedStep) -> list[tuple[str, list[int]]]:
    found = []
    for line in run.lower(run.segments[-1]).compile().as_text().splitlines():
        kind = re.search(r" (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(-start)?\(", line)
        if kind:
            shapes = re.findall(r"\w+\[([\d,]*)\]", line[: kind.start()])
            found += [(kind[1], [int(n) for n in shape.split(",") if n]) for shape in shapes]
    return found


@pytest.mark.parametrize("encoder", ["bert", "modernbert"])
def test_logits_are_not_gathered_where_the_table_is_split(encoder):
    """Neither for the softmax nor for the sampler: no product of a collective has the vocabulary's length."""
    run = program(encoder, sizes(4, 1, 2), vocabulary=9000)
    padded = run.objective.model.config.padded_vocab_size
    assert padded == 9216
    found = collectives(run)
    assert found
    share = padded // 2
    for kind, shape in found:
        whole = padded in shape or (kind == "all-gather" and share in shape)
        assert not whole, (kind, shape)


def test_along_fsdp_weights_are_gathered_and_states_are_not():
    run = program("modernbert", sizes(1, 8, 1), model__dropout=0.0)
    rows = run.config.batch_size
    gathered = [shape for kind, shape in collectives(run) if kind in ("all-gather", "all-to-all")]
    width = run.config.model.width
    assert any(width in shape for shape in gathered)
    states = [shape for shape in gathered if len(shape) == 3 and shape[:2] == [rows, 16]]
    assert not states
