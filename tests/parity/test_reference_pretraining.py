"""Losses, logits and every gradient of pre-training are those of google-research/electra (`reference/README.md`)."""

import functools
from typing import Any, NamedTuple

import golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cli_runs import make_objective
from scipy.special import log_softmax

from electra_jax import metrics, train_config
from electra_jax.data.tokenizer import OWN
from electra_jax.modeling import electra as networks
from electra_jax.modeling import subnetwork
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import electra, masking
from electra_jax.objectives.spec import Inputs, Objective, ObjectiveConfig

VOCABULARY = 120  # padded to 128
SYSTEMS = {"electra": ("electra", "embeddings"), "untied": ("electra", "none"), "mlm": ("mlm", "")}
GOLDEN = golden.archive("pretraining")
systems = pytest.mark.parametrize("system", SYSTEMS)
detectors = pytest.mark.parametrize("system", ["electra", "untied"])


def inputs(system: str) -> Inputs:
    """The reference's batch; `uniform` are the numbers from which the reference's fakes are sampled."""
    given = golden.under(GOLDEN, "inputs")
    length = given["input_ids"].shape[1]
    positions, weights = given["masked_lm_positions"].copy(), given["masked_lm_weights"]
    for row, own in enumerate(positions):  # fillers, which are to be distinct
        free = np.setdiff1d(np.arange(length), own[weights[row] > 0])
        own[weights[row] == 0] = free[: int(np.sum(weights[row] == 0))]
    logits = GOLDEN[f"{system}/out/generator_logits"].astype(np.float64)
    probability = np.exp(log_softmax(logits, axis=-1))
    before = np.cumsum(probability, axis=-1) - probability / 2
    uniform = np.take_along_axis(before, given["fakes"][..., None], axis=-1)[..., 0]
    ids = given["input_ids"]
    masked = masking.Masked(
        batch=Batch(ids, given["segment_ids"], given["input_mask"]),
        candidates=(ids > OWN.mask).astype(np.float32),
        input_ids=given["masked_input_ids"],
        positions=positions,
        targets=np.take_along_axis(ids, positions, axis=1),
        weights=weights,
        uniform=uniform.astype(np.float32),
        hide=np.zeros_like(weights),
    )
    masked = jax.tree.map(jnp.asarray, masked)
    return Inputs(masked, masking.count(masked), jnp.int32(0))


class Ours(NamedTuple):
    """What this package computes from the reference's parameters and batch.

    Attributes:
      loss, metrics, grads: of a training step.
      token_logits: [B, M, V], the generator's, or of mlm the encoder's.
      detection: what the discriminator reads and says; None for mlm.
    """

    loss: Any
    metrics: Any
    grads: Any
    token_logits: Any
    detection: Any


def make(system: str) -> Objective:
    name, tying = SYSTEMS[system]
    config = train_config.paper()
    train_config.choose_objective(config, name)
    config.model.update(layers=2, width=32, ffn=128, heads=2, embedding_size=16, max_length=24)
    config.model.update(dropout=0.0, dtype="float32")
    if tying:
        config.model.update(generator_width=0.5, tying=tying)
    o = make_objective(config, VOCABULARY)
    defaults = ObjectiveConfig()
    assert all(getattr(o.settings, name) == getattr(defaults, name) for name in o.system.settings)
    return o


def head(system: str) -> str:
    """Our name of the reference's `generator_predictions`."""
    return "mlm_head" if system == "mlm" else "generator_head"


@functools.cache
def ours(system: str) -> Ours:
    o = make(system)
    shapes = subnetwork.param_shapes(o.model.config)
    params = golden.to_ours(golden.under(GOLDEN, f"{system}/params"), shapes, head(system))

    def run(params: Any, x: Inputs) -> Ours:
        (loss, measured), grads = jax.value_and_grad(lambda p: o.loss(o.stages[0], p, x), has_aux=True)(params)
        if system == "mlm":
            states = networks.encode(o.model, params, x.masked.batch._replace(input_ids=x.masked.input_ids))
            logits = networks.mlm_logits(o.model, params, networks.gather_positions(states, x.masked.positions))
            return Ours(loss, measured, grads, logits, None)
        return Ours(loss, measured, grads, electra.corrupt(o, params, x).logits, o.system.detect(o, params, x))

    return jax.device_get(jax.jit(run)(params, inputs(system)))


@systems
def test_losses(system):
    found, measured = ours(system), metrics.numbers(ours(system).metrics)
    out = golden.under(GOLDEN, f"{system}/out")
    assert float(found.loss) == pytest.approx(float(out["total_loss"]), rel=golden.LOSS)
    assert measured["mlm_loss"] == pytest.approx(float(out["mlm_loss"]), rel=golden.LOSS)
    chosen = GOLDEN["inputs/masked_lm_weights"] > 0
    targets = GOLDEN["inputs/masked_lm_ids"][..., None]
    nll = -np.take_along_axis(log_softmax(found.token_logits, axis=-1), targets, axis=-1)[..., 0]
    np.testing.assert_allclose(nll[chosen], out["mlm_losses"][chosen], atol=golden.LOGIT, rtol=0)
    if "disc_loss" in out:
        assert measured["disc_loss"] == pytest.approx(float(out["disc_loss"]), rel=golden.LOSS)


@systems
def test_token_logits(system):
    found, chosen = ours(system).token_logits, GOLDEN["inputs/masked_lm_weights"] > 0
    expected = GOLDEN[f"{system}/out/generator_logits"]
    np.testing.assert_allclose(found[chosen][:, :VOCABULARY], expected[chosen], atol=golden.LOGIT, rtol=0)
    assert (found[chosen][:, VOCABULARY:] == electra.LOWEST).all()


@detectors
def test_detection(system):
    """Padding aside: there the reference attends to the text, we to padding, and nobody reads it."""
    _, out = ours(system), golden.under(GOLDEN, f"{system}/out")
    found, real = ours(system).detection, GOLDEN["inputs/input_mask"] > 0
    np.testing.assert_array_equal(found.input_ids, out["corrupted_input_ids"])
    np.testing.assert_array_equal(found.labels, out["disc_labels"])
    np.testing.assert_allclose(found.scores[real], out["disc_logits"][real], atol=golden.LOGIT, rtol=0)
    losses = [electra.detection_loss(found.scores[i], found.labels[i], real[i].astype(np.float32))[0] for i in range(3)]
    rows = [metrics.mean(*loss).value for loss in losses]
    np.testing.assert_allclose(rows, out["disc_losses_per_example"], rtol=golden.LOSS)


@systems
def test_every_gradient(system):
    golden.assert_gradients(ours(system).grads, golden.under(GOLDEN, f"{system}/grads"), head(system))
