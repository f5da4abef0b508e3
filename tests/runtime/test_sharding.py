import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cli_runs import make_objective, small_config
from jax.sharding import PartitionSpec as P

from electra_jax import train_config
from electra_jax.config.errors import UserError
from electra_jax.runtime import sharding
from electra_jax.runtime.sharding import MeshConfig
from electra_jax.step import ShardedStep


def sizes(data: int = -1, fsdp: int = 1, tensor: int = 1) -> MeshConfig:
    return MeshConfig(data, fsdp, tensor)


@pytest.mark.parametrize(
    ("settings", "shape"),
    [(sizes(), (8, 1, 1)), (sizes(1, -1), (1, 8, 1)), (sizes(2, 2, 2), (2, 2, 2)), (sizes(-1, 2, 2), (2, 2, 2))],
)
def test_minus_one_is_the_number_of_remaining_devices(settings, shape):
    assert sharding.make_mesh(settings, 16).shape == dict(zip(("data", "fsdp", "tensor"), shape, strict=True))


@pytest.mark.parametrize("settings", [sizes(3), sizes(4), sizes(-1, 3), sizes(-1, -1, 8), sizes(-1, -1, -1), sizes(16)])
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
    assert sharding.make_mesh(sizes(), 32, others=[8, 16]).size == 8
    with pytest.raises(UserError, match=r"^config.phases: batch_size=12 is not divisible by 8 devices; use 8 or 16"):
        sharding.make_mesh(sizes(), 8, others=[12])


def test_slices_lie_along_data():
    devices = [FakeTpu(number) for number in range(8)]
    mesh = sharding.make_mesh(sizes(4, 2), 8, devices=devices)
    assert [[d.slice_index for d in row.ravel()] for row in mesh.devices] == [[0, 0], [0, 0], [1, 1], [1, 1]]
    with pytest.raises(UserError, match=r"config\.mesh\.data=1 is not divisible by 2 slices; use a multiple of 2"):
        sharding.make_mesh(sizes(1, 8), 8, devices=devices)


def test_an_axis_of_the_mesh_may_be_a_part_of_one_of_the_slice():
    devices = [FakeTpu(number, slices_of=16, side=4, kind="TPU v6 lite") for number in range(16)]
    mesh = sharding.make_mesh(sizes(2, 4, 2), 16, devices=devices)
    assert {device.id for device in mesh.devices.ravel()} == set(range(16))
    for one, other in mesh.devices.reshape(-1, 2):  # along `tensor`
        assert sum(abs(a - b) for a, b in zip(one.coords, other.coords, strict=True)) in (1, 3)  # neighbors in a ring


def test_machines_with_gpus_need_not_lie_along_data():
    devices = [FakeTpu(number, platform="gpu") for number in (5, 0, 1, 2, 3, 4, 7, 6)]
    mesh = sharding.make_mesh(sizes(1, 8), 8, devices=devices)
    assert [device.id for device in mesh.devices.ravel()] == list(range(8))
    mesh = sharding.make_mesh(sizes(2, 4), 8, devices=devices)
    assert [[d.slice_index for d in row.ravel()] for row in mesh.devices] == [[0] * 4, [1] * 4]


class FakeTpu:
    """A device, by default of two slices of four, with the attributes that making a mesh reads."""

    def __init__(self, number: int, slices_of: int = 4, side: int = 2, kind: str = "cpu", platform: str = "cpu"):
        self.id = number
        self.slice_index = self.process_index = number // slices_of
        self.platform, self.device_kind, self.core_on_chip = platform, kind, 0
        self.coords = (number % side, number // side % side, 0)
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


def program(
    encoder: str = "bert", mesh: MeshConfig | None = None, vocabulary: int = 60, system: str = "electra", **settings
) -> ShardedStep:
    given = {"model__encoder": encoder, "model__layers": 1, "data__seq_length": 16, **settings}
    config = small_config(arg=f"objective={system}", **given)
    config.mesh.update(vars(mesh or sizes(2, 2, 2)))
    config = train_config.resolve(config)
    objective = make_objective(config, vocabulary)
    return ShardedStep(config, objective, sharding.make_mesh(config.mesh, config.batch_size))


def by_path(tree) -> dict:
    """The leaves of a tree."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


@pytest.mark.parametrize("encoder", ["bert", "modernbert", "deberta"])
def test_rules_place_parameters_and_their_moments(encoder):
    places = {name: leaf.sharding.spec for name, leaf in by_path(program(encoder).state).items()}
    gate = [None] if encoder == "modernbert" else []
    expected = {
        "embeddings/word": P(("tensor", "data"), "fsdp"),
        "encoder/layers/attention/qkv/kernel": P(None, ("fsdp", "data"), None, "tensor", None),
        "encoder/layers/attention/out/kernel": P(None, "tensor", "data", "fsdp"),  # one head on each device
        "encoder/layers/ffn_in/kernel": P(None, ("fsdp", "data"), *gate, "tensor"),
        "encoder/layers/ffn_out/kernel": P(None, ("tensor", "data"), "fsdp"),
        "encoder/layers/ffn_norm/scale": P(),
        "generator/layers/attention/qkv/kernel": P(None, ("fsdp", "data"), None, None, None),  # one head
        "generator_head/bias": P("tensor"),
        "generator_head/dense/kernel": P(("fsdp", "data"), None),
        "discriminator_head/classifier/kernel": P("data", None),
    }
    if encoder == "deberta":
        expected |= {"encoder/relative": P("data", "fsdp"), "encoder/relative_norm/scale": P()}
    for name, spec in expected.items():
        there = [place for path, place in places.items() if path.endswith(name)]
        assert there == [spec] * 3, name  # the parameter and two moments
    assert places["step"] == P()


@pytest.mark.parametrize(
    ("name", "shape", "share"),
    [
        ("embeddings/word", (256, 12), (32, 12)),
        ("embeddings/segment", (2, 16), (2, 2)),  # the first dimension that eight devices divide
        ("embeddings/word", (12, 20), (12, 20)),  # none
        ("encoder/layers/ffn_in/kernel", (8, 24, 32), (8, 3, 32)),  # never the layers
        ("encoder/layers/attention/out/kernel", (8, 4, 16, 64), (8, 4, 2, 64)),
        ("encoder/layers/ffn_in/bias", (8, 32), (8, 32)),
        ("encoder/layers/attention/qkv/bias", (8, 3, 8, 16), (8, 3, 8, 16)),
        ("head/norm/scale", (64,), (64,)),
    ],
)
def test_along_data_what_is_stored_is_split_where_it_can_be(name, shape, share):
    value = jax.ShapeDtypeStruct(shape, np.float32)
    for devices, expected in ((8, share), (1, shape)):
        mesh = sharding.make_mesh(sizes(devices), 8, devices=jax.devices()[:devices])
        state = sharding.with_shardings(mesh, {"params": {name: value}, "mu": {name: value}})
        assert {x.sharding.shard_shape(x.shape) for x in jax.tree.leaves(state)} == {expected}


def test_every_rule_is_of_some_parameter():
    names = set()
    for encoder in ("bert", "modernbert", "deberta"):
        params = program(encoder, model__embedding_size=32).state.params
        names |= {(name, leaf.ndim) for name, leaf in by_path(params).items()}
    for pattern, axes in sharding.RULES:
        assert any(re.search(f"(^|/|_)({pattern})$", name) and ndim == len(axes) for name, ndim in names), pattern


def collectives(run: ShardedStep) -> list[tuple[str, list[int]]]:
    return collectives_of(run.trace(run.segments[-1]).lower().compile())


def collectives_of(compiled: jax.stages.Compiled) -> list[tuple[str, list[int]]]:
    found = []
    for line in compiled.as_text().splitlines():
        kind = re.search(r" (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(-start)?\(", line)
        if kind:
            shapes = re.findall(r"\w+\[([\d,]*)\]", line[: kind.start()])
            found += [(kind[1], [int(n) for n in shape.split(",") if n]) for shape in shapes]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["bert", "modernbert"])
def test_logits_are_not_gathered_where_the_table_is_split(encoder):
    """Neither for the softmax nor for the sampler: no product of a collective has the vocabulary's length."""
    run = program(encoder, sizes(4, 1, 2), vocabulary=9000)
    padded = run.objective.model.config.padded_vocab_size
    assert padded == 9216
    found = collectives(run)
    assert found
    share = padded // 2
    table = [share, run.config.model.embedding_size]  # its half of the table, which is stored split by four
    assert ("all-gather", table) in found
    for kind, shape in found:
        whole = padded in shape or (kind == "all-gather" and share in shape and shape != table)
        assert not whole, (kind, shape)


def test_along_fsdp_weights_are_gathered_and_states_are_not():
    run = program("modernbert", sizes(1, 8, 1), system="mlm", model__dropout=0.0)
    rows = run.config.batch_size
    gathered = [shape for kind, shape in collectives(run) if kind in ("all-gather", "all-to-all")]
    width = run.config.model.width
    assert any(width in shape for shape in gathered)
    states = [shape for shape in gathered if len(shape) == 3 and shape[:2] == [rows, 16]]
    assert not states


@pytest.fixture(scope="module")
def split_over_data() -> tuple[ShardedStep, jax.stages.Lowered]:
    """A run, and its step."""
    run = program("bert", sizes(8, 1, 1), system="mlm", model__dropout=0.0, model__dtype="bfloat16")
    return run, run.trace(run.segments[-1]).lower()


def test_along_data_each_parameter_is_gathered_once_in_the_type_of_the_computation(split_over_data):
    """And looked up in float32, and nothing else is gathered but what is not a parameter."""
    run, _ = split_over_data
    lowered = run.jit(run.gather).lower(run.state.params)
    compiled = lowered.compile()
    assert all(there.is_fully_replicated for there in jax.tree.leaves(compiled.output_shardings))
    params = by_path(lowered.out_info)
    kernels = {name for name, leaf in params.items() if leaf.dtype == jnp.bfloat16}
    assert kernels == {name for name in params if name.endswith("kernel")}
    stored = jax.tree.leaves(run.state.params)
    split = [list(x.shape) for x in stored if not x.sharding.is_fully_replicated]
    shapes = [shape for kind, shape in collectives_of(compiled) if kind == "all-gather"]
    assert sorted(shapes) == sorted(split)


def test_along_data_no_device_updates_a_whole_table(split_over_data):
    """What the optimizer and the guard compute on has the shape of a share, in the whole program."""
    run, lowered = split_over_data
    text = lowered.compile().as_text()
    word = run.state.params["embeddings"]["word"]
    whole, share = (f"f32[{rows},{word.shape[1]}]" for rows in (word.shape[0], word.shape[0] // 8))
    entry = text[text.index("ENTRY") :]
    assert f" = {share}" in entry
    selected = [line for line in text.splitlines() if re.search(r" (select|sqrt)\(", line)]
    assert any(f" = {share}" in line for line in selected)
    assert not any(f" = {whole}" in line for line in selected)


def test_state_keeps_float32_whatever_the_computation_runs_in(split_over_data):
    state, measured = split_over_data[1].out_info
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype(jnp.float32)}
    assert measured["loss"].sum.dtype == jnp.float32
