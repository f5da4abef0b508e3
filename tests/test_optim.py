import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_models

from electra_jax import optim, train_config
from electra_jax.modeling import subnetwork
from electra_jax.optim import OptimConfig


def test_rate_without_warmup_starts_at_its_second_step():
    schedule = optim.schedule(1.0, 0, 4)
    np.testing.assert_allclose([schedule(t) for t in range(5)], [0, 0.75, 0.5, 0.25, 0])


@pytest.mark.parametrize(
    ("stages", "warmups"),
    [((60, 50), (5, 5)), ((20, 60), (2, 5)), ((19, 60), (2, 5)), ((10, 60), (1, 5)), ((4, 60), (1, 5)), ((6,), (5,))],
)
def test_each_stage_has_a_schedule_of_its_own_and_a_short_one_warms_up_in_a_tenth_of_its_steps(stages, warmups):
    """But for the only one."""
    rate = optim.in_stages(OptimConfig(learning_rate=1.0, warmup_steps=5), stages)
    alone = [optim.schedule(1.0, warmup, steps) for warmup, steps in zip(warmups, stages, strict=True)]
    expected = [schedule(t) for schedule, steps in zip(alone, stages, strict=True) for t in range(steps)]
    np.testing.assert_allclose([rate(t) for t in range(sum(stages))], expected)


@pytest.mark.parametrize(
    ("shape", "rates"),
    [
        ("linear", [0, 0.9 * 0.5, 0.8, 0.5, 0.1, 0, 0]),
        ("cosine", [0, 0.9755 * 0.5, 0.9045, 0.5, 0.0245, 0, 0]),
        ("stable", [0, 0.5, 1, 1, 0.25, 0, 0]),
    ],
)
def test_shapes_of_the_decay(shape, rates):
    """It runs during the warm-up too."""
    schedule = optim.schedule(2.0, 2, 10, shape, decay=0.4)
    np.testing.assert_allclose([schedule(t) for t in (0, 1, 2, 5, 9, 10, 12)], 2 * np.array(rates), atol=1e-4)


def shapes(encoder: str):
    """Of the parameters."""
    model = train_config.paper().model
    model.encoder = encoder
    return subnetwork.param_shapes(tiny_models.shape(model, 1000, ("discriminator_head",)))


@pytest.mark.parametrize(
    ("encoder", "tables"),
    [("bert", {"word", "position", "segment"}), ("modernbert", {"word"}), ("deberta", {"word", "relative"})],
)
def test_biases_and_norms_are_not_decayed_embeddings_are(encoder, tables):
    decayed = {True: set(), False: set()}
    for path, decays in jax.tree_util.tree_leaves_with_path(optim.decay_mask(shapes(encoder))):
        decayed[decays].add(path[-1].key)
    assert decayed == {True: {"kernel", *tables}, False: {"bias", "scale"}}


SETTINGS = OptimConfig(learning_rate=0.5, warmup_steps=3, weight_decay=0.1, b1=0.8, b2=0.9, eps=0.1, clip_norm=1.0)


def test_the_whole_chain_computes_the_definition():
    """Without Adam's bias correction, and with eps outside the root.

    Small and large gradients in turn, so that some steps clip and others do not.
    """
    transform, rate = optim.make(SETTINGS, 10)
    rng = np.random.default_rng(0)
    p = {"kernel": rng.standard_normal((2, 3)), "bias": rng.standard_normal(3), "scale": np.ones(3)}
    m, v = ({name: np.zeros_like(value) for name, value in p.items()} for _ in range(2))
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), p)
    state = transform.init(params)
    update = jax.jit(transform.update)
    for t in range(6):
        g = {name: (3.0 if t % 2 else 0.1) * rng.standard_normal(value.shape) for name, value in p.items()}
        updates, state = update(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), g), state, params)
        params = optax.apply_updates(params, updates)

        norm = np.sqrt(sum(np.sum(x**2) for x in g.values()))
        assert (norm > 1) == bool(t % 2)
        learning_rate = 0.5 * (1 - t / 10) * min(1, t / 3)
        assert float(rate(t)) == pytest.approx(learning_rate)
        for name in p:
            x = g[name] / max(1, norm)
            m[name], v[name] = 0.8 * m[name] + 0.2 * x, 0.9 * v[name] + 0.1 * x**2
            decay = 0.1 * p[name] if name == "kernel" else 0
            p[name] = p[name] - learning_rate * (m[name] / (np.sqrt(v[name]) + 0.1) + decay)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), params, p)


def orthogonal(x):
    """The orthogonal factor of a matrix."""
    left, _, right = np.linalg.svd(x, full_matrices=False)
    return left @ right


PATHS = {  # parameters of two layers, and which part of a gradient is a matrix of inputs and outputs
    ("encoder", "layers", "attention", "qkv"): ((2, 6, 3, 2, 4), lambda x: x[1, :, 2].reshape(6, 8)),
    ("encoder", "layers", "attention", "out"): ((2, 2, 4, 6), lambda x: x[1].reshape(8, 6)),
    ("generator", "layers", "ffn_in"): ((2, 6, 2, 9), lambda x: x[1, :, 1]),
    ("generator", "layers", "ffn_out"): ((2, 9, 6), lambda x: x[1]),
}


def nested(leaves):
    tree = {}
    for path, leaf in leaves.items():
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = leaf
    return tree


def test_muon_makes_the_update_of_each_matrix_orthogonal():
    """Newton-Schulz stops at singular values between .7 and 1.2, so that its result is orthogonal only roughly."""
    rng = np.random.default_rng(0)
    grads = {path: rng.standard_normal(shape).astype(np.float32) for path, (shape, _) in PATHS.items()}
    tree = nested({(*path, "kernel"): grad for path, grad in grads.items()})
    muon = optim.scale_by_muon(rate=3.0)
    updates, _ = jax.jit(muon.update)(tree, muon.init(tree))
    for path, (_, matrix) in PATHS.items():
        update = updates
        for name in (*path, "kernel"):
            update = update[name]
        exact, found = (
            matrix(grads[path]),
            matrix(np.asarray(update)) / (3 * 0.2 * max(matrix(grads[path]).shape) ** 0.5),
        )
        values = np.linalg.svd(found, compute_uv=False)
        assert values.min() > 0.6
        assert values.max() < 1.3
        cosine = np.sum(found * orthogonal(exact)) / np.linalg.norm(found) / np.linalg.norm(orthogonal(exact))
        assert cosine > 0.97


@pytest.mark.parametrize("encoder", ["bert", "modernbert", "deberta"])
def test_muon_updates_the_matrices_in_the_layers_and_adam_the_rest(encoder):
    """Seen by the moments: each parameter has those of one of them."""
    params = shapes(encoder)
    transform, _ = optim.make(dataclasses.replace(SETTINGS, name="muon"), 10)
    _, scales, *_ = jax.eval_shape(transform.init, params)

    def names(tree):
        return {tuple(key.key for key in path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}

    moments = {name: names(state.inner_state.mu) for name, state in scales.inner_states.items()}
    assert moments["muon"] == {name for name in names(params) if "layers" in name and name[-1] == "kernel"}
    assert len(moments["muon"]) == 2 * 4
    assert moments["adam"] == names(params) - moments["muon"]


def test_the_generators_own_parameters_have_their_rate_and_their_norm():
    params = {name: {"kernel": jnp.ones(4)} for name in ("embeddings", "encoder", "generator", "generator_head")}
    grads = {name: {"kernel": jnp.full(4, size)} for name, size in zip(params, (0.1, 0.2, 3.0, 4.0), strict=True)}

    def second_update(**changes):
        transform, _ = optim.make(
            dataclasses.replace(SETTINGS, b1=0.0, b2=0.0, eps=1e6, weight_decay=0.0, **changes), 10
        )
        _, state = transform.update(grads, transform.init(params), params)
        updates, _ = transform.update(grads, state, params)
        return np.array([float(updates[name]["kernel"][0]) for name in params]) * -1e6 / (0.5 * 0.9 / 3)

    sizes = np.array([0.1, 0.2, 3.0, 4.0])
    np.testing.assert_allclose(second_update(), sizes / np.sqrt(4 * np.sum(sizes**2)), rtol=1e-4)
    np.testing.assert_allclose(second_update(generator_rate=0.5, clip_norm=100.0), sizes * [1, 1, 0.5, 0.5], rtol=1e-4)
    np.testing.assert_allclose(second_update(clip_apart=True), [0.1, 0.2, 0.3, 0.4], rtol=1e-4)


def test_moments_in_bfloat16_follow_those_in_float32():
    """Where each was rounded to the nearest, the second would stay where its steps are under half a digit."""
    ends = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        adam = optim.scale_by_uncorrected_adam(0.9, 0.999, 1e-6, dtype)

        @functools.partial(jax.jit, static_argnums=(1, 2))
        def steps(state, gradient, count, adam=adam):
            grads = {"w": jnp.full(1000, gradient)}
            state = jax.lax.fori_loop(0, count - 1, lambda _, state: adam.update(grads, state)[1], state)
            return adam.update(grads, state)

        _, state = steps(adam.init({"w": jnp.zeros(1000)}), 1.0, 1000)  # up
        updates, state = steps(state, 0.1, 2000)  # and a long way down
        assert state.mu["w"].dtype == state.nu["w"].dtype == dtype
        ends[dtype] = state.nu["w"].astype(jnp.float32), updates["w"]
    exact, rounded = ends[jnp.float32], ends[jnp.bfloat16]
    assert float(jnp.mean(rounded[0])) == pytest.approx(float(jnp.mean(exact[0])), rel=0.01)
    assert float(jnp.mean(rounded[1])) == pytest.approx(float(jnp.mean(exact[1])), rel=0.03)
    np.testing.assert_allclose(rounded[1], exact[1], rtol=0.25)


def test_rounding_by_chance_keeps_the_mean_and_what_bfloat16_has():
    exact = jnp.array([0.0, 1.0, -2.5, 3.0e38, 1e-30], jnp.bfloat16)
    stochastic_round = jax.jit(optim.stochastic_round)
    kept = stochastic_round(jax.random.key(0), {"x": exact.astype(jnp.float32)})["x"]
    np.testing.assert_array_equal(kept, exact)
    between = jnp.full(10_000, 1.0 + 0.25 / 128)  # a quarter of the way from 1 to the next
    drawn = stochastic_round(jax.random.key(1), between)
    assert set(np.unique(drawn.astype(jnp.float32))) == {1.0, 1.0 + 1 / 128}
    assert float(jnp.mean(drawn > 1)) == pytest.approx(0.25, abs=0.02)


def test_rounding_is_the_same_on_any_number_of_devices():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    tree = {"x": np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)}
    split = jax.device_put(tree, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")))
    key = jax.random.key(3)
    there = jax.jit(optim.stochastic_round)(key, split)["x"]
    assert there.sharding.shard_shape(there.shape) == (2, 24)
    np.testing.assert_array_equal(jax.device_get(there), jax.device_get(optim.stochastic_round(key, tree)["x"]))
