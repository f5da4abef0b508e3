"""The heads of the four kinds of task, their losses and every gradient are google-research/electra's."""

import functools
from typing import Any, NamedTuple

import golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from electra_jax.downstream.finetuning import losses, multi_seed
from electra_jax.downstream.finetuning.rates import FinetuneOptimConfig
from electra_jax.downstream.tasks.task import IGNORED, TaskBatch
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.bert import Bert
from electra_jax.modeling.config import ElectraConfig, EncoderConfig
from electra_jax.modeling.downstream import Downstream

GOLDEN = golden.archive("finetuning")
ENCODER = EncoderConfig(Bert(), 2, 16, 32, 2, 0.02, 0.0, jnp.dtype("float32"))
CONFIG = ElectraConfig(60, 8, 24, ENCODER, heads=())
OUTPUTS = {"classification": 3, "regression": 1, "tagging": 5, "answering": 2}
BEAM = 5
kinds = pytest.mark.parametrize("kind", OUTPUTS)


class Ours(NamedTuple):
    """What this package computes: the loss, its gradients, and the outputs in training and of a prediction."""

    loss: Any
    grads: Any
    trained: Any
    predicted: Any


def batch(kind: str) -> TaskBatch:
    text = golden.under(GOLDEN, "inputs")
    ids, segments, real = (text[name] for name in ("input_ids", "segment_ids", "input_mask"))
    given = golden.under(GOLDEN, f"{kind}/inputs")
    if kind == "classification":
        targets = {"target": given["label_ids"]}
    elif kind == "regression":
        targets = {"target": given["targets"]}
    elif kind == "tagging":
        target = np.full(ids.shape, IGNORED, np.int32)
        for row, (at, label, counts) in enumerate(
            zip(given["labeled_positions"], given["labels"], given["labels_mask"] > 0, strict=True)
        ):
            target[row, at[counts]] = label[counts]
        targets = {"target": target}
    else:
        allowed = real * segments
        allowed[:, 0] = 1
        targets = {
            "allowed": allowed,
            "start": given["start_positions"],
            "end": given["end_positions"],
            "impossible": given["is_impossible"],
        }
    return TaskBatch(Batch(ids, segments, real), np.ones(len(ids), np.float32), targets)


@functools.cache
def ours(kind: str) -> Ours:
    model = Downstream(CONFIG, kind, OUTPUTS[kind], BEAM)
    whole = jax.tree.map(jnp.asarray, batch(kind))
    zeros = jnp.zeros((1, 2), jnp.int32)
    text = Batch(zeros, zeros, zeros)
    shapes = jax.eval_shape(model.init, jax.random.key(0), text, zeros, zeros[:, 0])["params"]
    params = golden.to_ours(golden.under(GOLDEN, f"{kind}/params"), shapes)
    given = whole.targets.get("allowed"), whole.targets.get("start")

    def run(params: Any) -> Ours:
        def minimized(params: Any) -> Any:
            loss = multi_seed.batch_loss(model, params, whole, jax.random.key(0))
            return losses.REDUCTIONS[FinetuneOptimConfig().reduction](loss)

        loss, grads = jax.value_and_grad(minimized)(params)
        variables = {"params": params}
        trained = model.apply(variables, whole.inputs, *given, True, rngs={"dropout": jax.random.key(0)})
        return Ours(loss, grads, trained, model.apply(variables, whole.inputs, given[0]))

    return jax.device_get(jax.jit(run)(params))


@kinds
def test_the_loss_is_the_sum_over_the_batch(kind):
    out = golden.under(GOLDEN, f"{kind}/out")
    assert float(ours(kind).loss) == pytest.approx(float(out["loss"]), rel=golden.LOSS)
    rows = [jax.tree.map(lambda x, at=at: x[at : at + 1], (ours(kind).trained, batch(kind))) for at in range(4)]
    of_rows = [losses.BY_KIND[kind](*row).sum for row in rows]
    np.testing.assert_allclose(of_rows, out["losses"], rtol=golden.LOSS)


@kinds
def test_every_gradient(kind):
    golden.assert_gradients(ours(kind).grads, golden.under(GOLDEN, f"{kind}/grads"))


def test_logits_of_classes_and_numbers():
    found, out = ours("classification").predicted["scores"], GOLDEN["classification/out/logits"]
    np.testing.assert_allclose(found, out, atol=golden.LOGIT, rtol=0)
    found, out = ours("regression").predicted["scores"][:, 0], GOLDEN["regression/out/predictions"]
    np.testing.assert_allclose(found, out, atol=golden.LOGIT, rtol=0)


def test_logits_of_tags():
    positions, counts = (GOLDEN[f"tagging/inputs/{name}"] for name in ("labeled_positions", "labels_mask"))
    found = np.take_along_axis(ours("tagging").predicted["scores"], positions[..., None], axis=1)
    np.testing.assert_allclose(found[counts > 0], GOLDEN["tagging/out/logits"][counts > 0], atol=golden.LOGIT, rtol=0)


@pytest.mark.parametrize("end", ["start", "end"])
def test_log_probabilities_of_an_answer_in_training(end):
    expected = log_softmax(GOLDEN[f"answering/out/{end}_logits"], axis=-1)
    allowed = batch("answering").targets["allowed"] > 0
    found = ours("answering").trained[f"{end}_logp"]
    np.testing.assert_allclose(found[allowed], expected[allowed], atol=golden.LOGIT, rtol=0)
    assert (found[~allowed] < -900).all()


def test_the_search_for_an_answer():
    found, out = ours("answering").predicted, golden.under(GOLDEN, "answering/out")
    np.testing.assert_allclose(found["impossible"], out["answerable_logit"], atol=golden.LOGIT, rtol=0)
    for end in ("start", "end"):
        np.testing.assert_array_equal(found[f"{end}_index"], out[f"predict_{end}_top_index"])
        # Of what may not be, -1000 is added: float32 has steps of 6e-5 there.
        scores, expected = found[f"{end}_score"], out[f"predict_{end}_top_log_probs"]
        np.testing.assert_allclose(scores, expected, atol=golden.LOGIT, rtol=1e-7)
