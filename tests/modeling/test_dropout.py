"""Dropout's decisions as random numbers: rates and independence by tests that a fair coin passes; seeds are fixed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax.modeling import dropout

RATE = 0.1
HEADS = (4, 3, 256, 512)  # [B, H, Q, K]


def words(seed: int) -> jax.Array:
    return dropout.key_words(jax.random.key(seed))


@functools.cache
def dropped(seed: int = 0, shape: tuple[int, ...] = HEADS, rate: float = RATE) -> np.ndarray:
    decide = dropout.keep_weights if len(shape) == 4 else dropout.keep
    return ~np.asarray(jax.jit(decide, static_argnums=(1, 2))(words(seed), shape, rate))


def sigmas(observed: np.ndarray, n: int, p: float) -> np.ndarray:
    """How many standard deviations counts are from the mean of n draws with probability p."""
    return (observed - n * p) / np.sqrt(n * p * (1 - p))


@pytest.mark.parametrize("shape", [HEADS, (24, 128, 512)], ids=["weights", "states"])
@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5])
def test_the_rate_holds_overall_and_along_every_axis(shape, rate):
    drops = dropped(shape=shape, rate=rate)
    assert abs(sigmas(drops.sum(), drops.size, rate)) < 4
    for axis in range(len(shape)):
        counts = drops.sum(axis=tuple(a for a in range(len(shape)) if a != axis))
        chi_square = float((sigmas(counts, drops.size // shape[axis], rate) ** 2).sum())
        assert abs(chi_square - shape[axis]) < 5 * (2 * shape[axis]) ** 0.5, f"axis {axis}: {chi_square}"


@pytest.mark.parametrize("shape", [HEADS, (24, 128, 512)], ids=["weights", "states"])
def test_places_are_independent_in_pairs_and_in_rectangles(shape):
    """The chi-square of the 16 outcomes at the corners of rectangles; a linear hash fails at the fourth corner."""
    drops = dropped(shape=shape)
    for axis in range(len(shape) - 1):
        for step in (1, 2, 8):  # along the axis and along the last one
            if step >= shape[axis]:
                continue
            near, far = (np.moveaxis(drops, axis, 0)[part] for part in (slice(None, -step), slice(step, None)))
            for across in (1, 16, 128):
                corners = [near[..., :-across], near[..., across:], far[..., :-across], far[..., across:]]
                outcome = sum(corner.astype(int) << i for i, corner in enumerate(corners))
                counts = np.bincount(outcome.ravel(), minlength=16)
                ones = np.asarray([bin(i).count("1") for i in range(16)])
                expected = outcome.size * RATE**ones * (1 - RATE) ** (4 - ones)
                # Corners are shared between rectangles, so counts vary more than those of separate ones.
                chi_square = float(((counts - expected) ** 2 / expected).sum())
                assert chi_square < 70, f"axis {axis}, {step} x {across}: {chi_square:.0f}"


def test_seeds_layers_and_heads_are_independent():
    """Keys that `fold_in` and `split` give to steps and layers, and neighboring heads of one key."""
    layers = jax.random.split(jax.random.key(3), 2)
    keep = jax.jit(lambda key: dropout.keep_weights(dropout.key_words(key), (1, 2, 256, 256), RATE))
    masks = [~np.asarray(keep(key)) for key in layers]
    masks += [dropped(seed, (1, 2, 256, 256)) for seed in (0, 1, 2**31)]
    flat = np.stack([mask[0, head].ravel() for mask in masks for head in range(2)]).astype(float)
    correlation = np.corrcoef(flat)[np.triu_indices(len(flat), 1)] * flat.shape[1] ** 0.5
    assert np.abs(correlation).max() < 4


def test_what_is_kept_is_scaled_and_the_gradient_has_the_same_decisions():
    x = np.random.default_rng(1).standard_normal((8, 16, 32)).astype(np.float32)

    @jax.jit
    def value_and_gradient(x):
        out, pull = jax.vjp(lambda x: dropout.drop(x, words(0), 0.25), x)
        return out, pull(jnp.ones_like(x))[0]

    out, gradient = value_and_gradient(x)
    kept = ~dropped(0, x.shape, 0.25)
    np.testing.assert_allclose(out, np.where(kept, x / 0.75, 0), rtol=1e-6)
    np.testing.assert_allclose(gradient, kept / 0.75, rtol=1e-6)


def test_nothing_is_kept_for_the_backward_pass_but_the_key():
    kept = jax.eval_shape(lambda x: jax.vjp(lambda x: dropout.drop(x, words(0), 0.5), x)[1], jnp.zeros((64, 64)))
    assert sum(leaf.size for leaf in jax.tree.leaves(kept)) < 64


def test_the_module_drops_in_training_only():
    module, x = dropout.Dropout(0.5), jnp.ones((4, 8))
    assert module.apply({}, x, False) is x
    assert dropout.Dropout(0.0).apply({}, x, True) is x

    @jax.jit
    def run():
        rngs = {"dropout": jax.random.key(0)}
        return module.apply({}, x, True, rngs=rngs), Twice().apply({}, x, rngs=rngs)

    out, twice = jax.device_get(run())
    assert set(np.unique(out)) == {0.0, 2.0}
    assert np.any(twice[0] != twice[1])


class Twice(dropout.nn.Module):
    @dropout.nn.compact
    def __call__(self, x):
        drop = dropout.Dropout(0.5)
        return drop(x, True), drop(x, True)


def test_decisions_do_not_depend_on_the_mesh():
    mesh = jax.make_mesh((4, 2), ("data", "tensor"))
    for decide, shape in ((dropout.keep, (8, 16, 32)), (dropout.keep_weights, (8, 2, 16, 16))):
        spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", "tensor"))
        split = jax.jit(decide, static_argnums=(1, 2), out_shardings=spec)(words(0), shape, RATE)
        np.testing.assert_array_equal(split, ~dropped(0, shape))


def test_literal_decisions():
    """The decisions are part of a run's results: a change of them changes every run."""
    assert np.packbits(dropped(7, (2, 40), 0.25)).tobytes().hex() == "59c1044001c04a153980"
    assert np.packbits(dropped(7, (1, 2, 2, 40), 0.25)).tobytes().hex() == "130b3001041854050ac03018840810d980820428"
