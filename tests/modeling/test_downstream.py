"""Heads against their definitions in NumPy; the paper's: tests/parity/test_reference_finetuning.py."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import reference
from tiny_models import network, random_like

from electra_jax.modeling.attention import Visible
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.downstream import Downstream, PaperHead, TransformersHead
from electra_jax.modeling.electra import Embeddings

CONFIG = network(head=None).config  # width 32
RNG = np.random.default_rng(0)
STATES = RNG.standard_normal((2, 6, 32)).astype(np.float32)
ALLOWED = np.array([[1, 0, 0, 1, 1, 1], [1, 0, 1, 1, 1, 0]], np.int32)
START = np.array([3, 2], np.int32)
TASKS = ("classification", "tagging", "answering")


def dense(params, name, x):
    return x @ params[name]["kernel"] + params[name]["bias"]


def test_the_input_for_classes_has_dropout_and_that_for_tags_has_none():
    def drawn(kind, train):
        rate = Downstream(CONFIG, kind, 3).bind({}).head.rate
        head, arguments = PaperHead(rate, 3), (STATES, train)
        keys = {name: jax.random.key(0) for name in ("params", "dropout")}
        return "name=drop" in str(
            jax.make_jaxpr(lambda params: head.apply({"params": params}, *arguments, rngs=keys))(
                jax.eval_shape(lambda: head.init(keys, *arguments))["params"]
            )
        )

    assert CONFIG.encoder.dropout > 0
    assert drawn("classification", True)
    assert not drawn("classification", False)
    assert not drawn("tagging", True)


def test_a_class_is_read_from_cls_or_from_the_mean_of_all_but_padding():
    """Of an encoder without layers, the state of [CLS] is the same for every text."""
    shape = dataclasses.replace(CONFIG, encoder=dataclasses.replace(CONFIG.encoder, layers=0))
    ids = np.array([[2, 5, 6, 3, 0], [2, 7, 3, 0, 0]], np.int32)
    batch = Batch(ids, np.zeros_like(ids), (ids > 0).astype(np.int32))
    cls, mean = (Downstream(shape, "classification", 3, pooling=pooling) for pooling in ("cls", "mean"))
    params = jax.device_get(jax.jit(lambda: cls.init(jax.random.key(0), batch))()["params"])

    @jax.jit
    def encode(params):
        x_BLE = Embeddings(shape).apply({"params": params["embeddings"]}, batch, False)
        encoder = shape.encoder.architecture.encoder(shape.encoder)
        return encoder.apply({"params": params["encoder"]}, x_BLE, Visible(batch.sequence_ids), False)

    embedded = np.asarray(encode(params))
    rows = np.stack([embedded[0, :4].mean(axis=0), embedded[1, :3].mean(axis=0)])
    for model, read in ((cls, embedded[:, 0]), (mean, rows)):
        scores = jax.jit(model.apply)({"params": params}, batch)["scores"]
        np.testing.assert_allclose(scores, dense(params["head"], "dense", read), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "deberta"])
@pytest.mark.parametrize("task", TASKS)
def test_heads_of_transformers(kind, task):
    """Against their definitions; tests/parity compares them with transformers' own classes."""
    shape = network(kind, head=None).config
    head = TransformersHead(shape, task, 2)
    params = random_like(jax.eval_shape(lambda: head.init(jax.random.key(0), STATES, False))["params"])
    layers = {"modernbert": {key: ["dense", "norm"] for key in TASKS}}
    assert sorted(params) == ["classifier", *layers.get(kind, {"classification": ["dense"]}).get(task, [])]
    x = STATES
    if "dense" in params:
        x = reference.gelu(x @ params["dense"]["kernel"] + params["dense"].get("bias", 0))
    if "norm" in params:
        x = reference.norm(x, 1e-5) * params["norm"]["scale"]
    found = head.apply({"params": params}, STATES, False)
    np.testing.assert_allclose(found, dense(params, "classifier", x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "task", "drops"),
    [
        *((kind, task, True) for kind in ("bert", "deberta", "modernbert") for task in ("classification", "tagging")),
        *(("bert", "answering", False), ("deberta", "answering", False), ("modernbert", "answering", True)),
    ],
)
def test_dropout_in_the_heads_of_transformers(kind, task, drops):
    head = TransformersHead(network(kind, head=None).config, task, 2)  # its rate is .1
    params = random_like(jax.eval_shape(lambda: head.init(jax.random.key(0), STATES, False))["params"])

    @functools.partial(jax.jit, static_argnums=1)
    def apply(params, train):
        return head.apply({"params": params}, STATES, train, rngs={"dropout": jax.random.key(1)})

    assert bool(np.any(apply(params, True) != apply(params, False))) == drops


def test_starts_and_ends_are_distributions_over_what_is_allowed():
    shape = dataclasses.replace(CONFIG, encoder=dataclasses.replace(CONFIG.encoder, layers=1))
    model = Downstream(shape, "answering", 2, form="transformers")
    ids = np.arange(10, 22, dtype=np.int32).reshape(2, 6)
    batch = Batch(ids, np.zeros_like(ids), np.ones_like(ids))
    shapes = jax.eval_shape(functools.partial(model.init, train=False), jax.random.key(0), batch, ALLOWED, START)
    params = {"params": random_like(shapes["params"])}
    rngs = {"dropout": jax.random.key(0)}
    trained = jax.eval_shape(functools.partial(model.apply, train=True, rngs=rngs), params, batch, ALLOWED, START)
    assert set(trained) == {"start_logp", "end_logp"}
    found = jax.device_get(jax.jit(model.apply)(params, batch, ALLOWED))
    assert set(found) == {"start", "end"}
    for values in found.values():
        np.testing.assert_allclose(np.exp(values).sum(-1), 1, rtol=1e-5)
        assert (np.exp(values)[ALLOWED == 0] < 1e-6).all()
