"""Dense layers against Flax's, whose parameters and numbers they have."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from electra_jax.modeling.dense import Dense, affine

INIT = nn.initializers.xavier_uniform()
X = np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype(np.float32)

# The input's axes, the features, and the axes that a layer sums over.
SHAPES = {"matrix": (X[0], 5, 1), "split": (X[0], (3, 2, 4), 1), "joined": (X, 5, 2), "row": (X[0, 0], 5, 1)}


def flax_layer(features, input_axes: int, **settings):
    """Of matrices an `nn.Dense`, else an `nn.DenseGeneral`."""
    if isinstance(features, int) and input_axes == 1:
        return nn.Dense(features, kernel_init=INIT, **settings)
    return nn.DenseGeneral(features, axis=tuple(range(-input_axes, 0)), kernel_init=INIT, **settings)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("use_bias", [True, False])
def test_parameters_and_their_initial_values_are_those_of_flax(shape, use_bias):
    x, features, input_axes = SHAPES[shape]
    layers = (
        Dense(features, INIT, use_bias, inputs=x.shape[-input_axes:]),
        flax_layer(features, input_axes, use_bias=use_bias),
    )
    ours, theirs = jax.jit(lambda: [layer.init(jax.random.key(0), x) for layer in layers])()
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_flax(shape):
    x, features, input_axes = SHAPES[shape]
    theirs = flax_layer(features, input_axes)

    @jax.jit
    def compute():
        params = jax.tree.map(lambda p: p + 0.5, theirs.init(jax.random.key(0), x))
        results = []
        for layer in (Dense(features, INIT, inputs=x.shape[-input_axes:]), theirs):
            found, pull = jax.vjp(layer.apply, params, x)
            slopes = jnp.cos(jnp.arange(found.size, dtype=jnp.float32)).reshape(found.shape)
            results.append((found, pull(slopes)))
        return results

    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, *compute())


def test_a_flat_layer_has_one_axis_for_all():
    layer, joined = (Dense((3, 2, 4), INIT, inputs=(4, 6), flat=flat) for flat in (True, False))
    params = jax.tree.map(lambda p: np.asarray(p) + np.float32(0.5), jax.jit(joined.init)(jax.random.key(0), X))
    flat = jax.jit(layer.apply)(params, X.reshape(2, 3, 24))
    assert flat.shape == (2, 3, 24)
    np.testing.assert_array_equal(flat, np.asarray(jax.jit(joined.apply)(params, X)).reshape(2, 3, 24))


def test_several_devices_compute_the_same():
    """There operands keep their axes."""
    kernel, bias = np.ones((6, 2, 4), np.float32), np.arange(8, dtype=np.float32).reshape(2, 4)
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))

    def shapes(x):
        return [v.aval.shape for e in jax.make_jaxpr(affine)(x, kernel, bias).eqns for v in e.invars]

    assert (6, 8) in shapes(X[0])
    one = affine(X[0], kernel, bias)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        assert (6, 8) not in shapes(X[0])
        several = jax.jit(affine)(X[0], kernel, bias)
    np.testing.assert_allclose(several, one, rtol=1e-6)


def test_computes_in_the_dtype_that_is_asked_for():
    x = jnp.ones((2, 3), jnp.bfloat16)
    layer = Dense(4, INIT, dtype=jnp.bfloat16)
    params = layer.init(jax.random.key(0), x)
    assert layer.apply(params, x).dtype == jnp.bfloat16
    assert {p.dtype for p in jax.tree.leaves(params)} == {np.dtype(np.float32)}
    with jax.numpy_dtype_promotion("standard"):
        assert Dense(4, INIT).apply(params, x).dtype == jnp.float32
