"""Heads against their definitions in NumPy."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from scipy.special import erf, expit, log_softmax, softmax
from tiny_models import network, random_like

from electra_jax.modeling.attention import Visible
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.downstream import Answerer, Downstream, PaperHead, TransformersHead
from electra_jax.modeling.electra import Embeddings

CONFIG = network(head=None).config  # width 32
RNG = np.random.default_rng(0)
STATES = RNG.standard_normal((2, 6, 32)).astype(np.float32)
ALLOWED = np.array([[1, 0, 0, 1, 1, 1], [1, 0, 1, 1, 1, 0]], np.int32)
START = np.array([3, 2], np.int32)
TASKS = ("classification", "tagging", "answering")


def gelu(x):
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def dense(params, name, x):
    return x @ params[name]["kernel"] + params[name]["bias"]


@pytest.fixture(scope="module")
def answerer():
    head = Answerer(2, beam=4)
    shapes = jax.eval_shape(lambda: head.init(jax.random.key(0), STATES, ALLOWED, START, True))["params"]
    params = jax.tree.map(lambda x: RNG.standard_normal(x.shape).astype(np.float32) * np.float32(0.1), shapes)

    @functools.partial(jax.jit, static_argnums=1)
    def apply(start, train):
        return head.apply({"params": params}, STATES, ALLOWED, start, train)

    return lambda *arguments: jax.device_get(apply(*arguments)), params


def ends(params, row, start):
    """Log-probabilities of ends after `start`: two dense layers on [its state; each token's]."""
    beside = np.concatenate([np.broadcast_to(STATES[row, start], STATES[row].shape), STATES[row]], axis=-1)
    hidden = gelu(beside @ params["end_hidden_kernel"] + params["end_hidden_bias"])
    return log_softmax(dense(params, "end", hidden)[:, 0] + np.where(ALLOWED[row], 0, -1000))


def test_an_answer_ends_given_where_it_begins(answerer):
    apply, params = answerer
    trained, found = apply(START, True), apply(None, False)
    for row in range(2):
        starts = log_softmax(dense(params, "start", STATES[row])[:, 0] + np.where(ALLOWED[row], 0, -1000))
        np.testing.assert_allclose(trained["start_logp"][row], starts, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(trained["end_logp"][row], ends(params, row, START[row]), rtol=1e-4, atol=1e-5)
        best = np.argsort(-starts)[:4]
        assert found["start_index"][row].tolist() == best.tolist()
        np.testing.assert_allclose(found["start_score"][row], starts[best], rtol=1e-4, atol=1e-5)
        for i, start in enumerate(best):
            after = ends(params, row, start)
            assert found["end_index"][row, i].tolist() == np.argsort(-after)[:4].tolist()
            np.testing.assert_allclose(found["end_score"][row, i], np.sort(after)[::-1][:4], rtol=1e-4, atol=1e-5)


def test_that_there_is_no_answer_is_read_from_cls_and_from_the_mean_start(answerer):
    apply, params = answerer
    found = apply(None, False)
    for row in range(2):
        p = softmax(dense(params, "start", STATES[row])[:, 0] + np.where(ALLOWED[row], 0, -1000))
        beside = np.concatenate([STATES[row, 0], p @ STATES[row]])
        logit = dense(params, "impossible", gelu(dense(params, "impossible_hidden", beside)))[0]
        np.testing.assert_allclose(expit(found["impossible"][row]), expit(logit), rtol=1e-4)


def test_the_papers_head_is_a_dense_layer_on_the_states_of_rows_or_tokens():
    head = PaperHead(0.1, 3)
    params = jax.device_get(jax.jit(lambda: head.init(jax.random.key(0), STATES[:, 0], False))()["params"])
    for states in (STATES[:, 0], STATES):
        said = head.apply({"params": params}, states, False)
        np.testing.assert_allclose(said, dense(params, "dense", states), rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize("kind", ["classification", "regression", "tagging", "answering"])
def test_every_kind_has_the_encoder_and_a_head(kind):
    ids = np.ones((1, 4), np.int32)
    model = Downstream(CONFIG, kind, 2, 3)
    made = jax.eval_shape(model.init, jax.random.key(0), Batch(ids, ids, ids), ids)["params"]
    assert set(made) == {"embeddings", "encoder", "head"}


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
        x = gelu(x @ params["dense"]["kernel"] + params["dense"].get("bias", 0))
    if "norm" in params:
        centered = x - x.mean(-1, keepdims=True)
        x = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * params["norm"]["scale"]
    found = head.apply({"params": params}, STATES, False)
    np.testing.assert_allclose(found, dense(params, "classifier", x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "task", "drops"),
    [
        ("bert", "answering", False),
        ("deberta", "answering", False),
        *(
            (k, t, True)
            for k, t in [
                ("bert", "classification"),
                ("bert", "tagging"),
                ("deberta", "classification"),
                ("modernbert", "answering"),
                ("modernbert", "classification"),
            ]
        ),
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
