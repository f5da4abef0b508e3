import jax
import numpy as np
import pytest
from tiny_models import network

from electra_jax import optim
from electra_jax.downstream.finetuning import rates
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.downstream import Downstream
from electra_jax.modeling.subnetwork import flatten_params

SETTINGS = rates.FinetuneOptimConfig(learning_rate=1.0, layer_decay=0.25)


def parameters(kind):
    model = Downstream(network(kind, head=None, embedding_size=16).config, "classification", 2)
    ids = np.zeros((1, 4), np.int32)
    return jax.eval_shape(model.init, jax.random.key(0), Batch(ids, ids, ids))["params"]


# Three layers, decay 1/2: by the paper, and as the reference's code has it.
@pytest.mark.parametrize(
    ("reference", "layers", "embeddings"),
    [(False, [1 / 8, 1 / 4, 1 / 2], 1 / 16), (True, [1 / 16, 1 / 8, 1 / 4], 1 / 32)],
)
def test_rates_of_three_layers(reference, layers, embeddings):
    bert, modern, deberta = (
        rates.rate_factors(parameters(kind), 3, 0.5, reference) for kind in ("bert", "modernbert", "deberta")
    )
    for tree in (bert, modern, deberta):
        assert {float(x) for x in jax.tree.leaves(tree["head"])} == {1}
        assert {float(x) for x in jax.tree.leaves(tree["embeddings"])} == {embeddings}
        for leaf in jax.tree.leaves(tree["encoder"]["layers"]):
            assert leaf.ravel().tolist() == layers
        assert {float(x) for x in jax.tree.leaves(tree["encoder"]["project"])} == {embeddings}
    assert float(modern["encoder"]["embedding_norm"]["scale"]) == embeddings
    assert float(modern["encoder"]["final_norm"]["scale"]) == layers[-1]
    assert float(deberta["encoder"]["relative"]) == float(deberta["encoder"]["relative_norm"]["scale"]) == embeddings


def test_a_factor_stands_before_every_entry_of_its_layer():
    params = parameters("bert")
    factors = rates.rate_factors(params, 3, 0.5)
    kernel, factor = params["encoder"]["layers"]["ffn_in"]["kernel"], factors["encoder"]["layers"]["ffn_in"]["kernel"]
    assert factor.shape == (3, 1, 1)
    assert np.broadcast_shapes(kernel.shape, factor.shape) == kernel.shape


def test_an_update_is_the_rate_times_the_factor():
    params = {"head": np.ones(2, np.float32), "encoder": {"final_norm": {"scale": np.ones(2, np.float32)}}}
    optimizer = rates.make_optimizer(SETTINGS, params, layers=3, steps=10)
    grads = jax.tree.map(lambda x: 0.1 * x, params)
    _, state = optimizer.update(grads, optimizer.init(params), params)
    updates, _ = optimizer.update(grads, state, params)
    # Adam without correction, second step: m = .19 g, v = .001999 g^2; the rate after one of ten steps is 1 x (1 - .1).
    expected = -0.9 * 0.19 * 0.1 / (np.sqrt(0.001999) * 0.1 + 1e-6)
    np.testing.assert_allclose(updates["head"], expected, rtol=1e-5)
    np.testing.assert_allclose(updates["encoder"]["final_norm"]["scale"], 0.25 * expected, rtol=1e-5)


def test_the_warm_up_may_end_between_two_steps():
    config = rates.FinetuneOptimConfig(learning_rate=1.0, warmup=0.1)
    rate = rates.schedule(config, 28)  # 2.8 steps of warm-up
    expected = [(1 - t / 28) * min(1, t / 2.8) for t in range(5)]
    np.testing.assert_allclose([rate(t) for t in range(5)], expected, rtol=1e-6)


def test_biases_of_every_head_are_not_decayed():
    ids = np.zeros((1, 4), np.int32)
    model = Downstream(network("bert", head=None).config, "answering", 2, 2)
    shapes = jax.eval_shape(model.init, jax.random.key(0), Batch(ids, ids, ids), ids)["params"]
    decayed = flatten_params(optim.decay_mask(shapes["head"]))
    assert {name for name, decays in decayed.items() if decays} == {
        *(f"{layer}/kernel" for layer in ("start", "end", "impossible_hidden", "impossible")),
        "end_hidden_kernel",
    }
