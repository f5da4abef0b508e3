"""Eight steps of both optimizers give the parameters of google-research/electra's (`reference/README.md`)."""

import functools

import golden
import jax
import numpy as np
import optax
import pytest

from electra_jax import optim
from electra_jax.downstream.finetuning import rates
from electra_jax.downstream.finetuning.rates import FinetuneOptimConfig

GOLDEN = golden.archive("optimizer")
STEPS, LAYERS = 8, 3
# What is not given here has its default, which is the reference's.
PRETRAINING = optim.OptimConfig(learning_rate=0.01, warmup_steps=3)
FINETUNING = {
    "finetuning": FinetuneOptimConfig(learning_rate=0.01, reference_rates=True, weight_decay=0.01),
    "finetuning_no_weight_decay": FinetuneOptimConfig(learning_rate=0.01, reference_rates=True),
}
FINETUNING_STEPS = 28  # a tenth of them is no whole number
# Of the rates of fine-tuning, by column, a parameter that has it.
COLUMNS = (
    "electra/embeddings/word_embeddings",
    "electra/embeddings_project/kernel",
    *(f"electra/encoder/layer_{i}/intermediate/dense/kernel" for i in range(LAYERS)),
    "task_specific/mnli/dense/kernel",
)


def run(part, optimizer):
    """The parameters after each step."""
    params = golden.to_ours(golden.under(GOLDEN, f"{part}/params"))
    grads = golden.under(GOLDEN, f"{part}/grads")

    @jax.jit
    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state, after = optimizer.init(params), []
    for number in range(STEPS):
        params, state = step(params, state, golden.to_ours({name: value[number] for name, value in grads.items()}))
        after.append(jax.device_get(params))
    return after


def assert_after(run_name, after):
    expected = golden.under(GOLDEN, f"{run_name}/after")
    for name, theirs in expected.items():
        found = np.stack([golden.variable(params, name, theirs.shape[1:]) for params in after])
        np.testing.assert_allclose(found, theirs, atol=golden.PARAMETER, rtol=0, err_msg=name)


def test_pretraining():
    optimizer, rate = optim.make(PRETRAINING, 20)
    assert min(GOLDEN["pretraining/norms"]) < PRETRAINING.clip_norm < max(GOLDEN["pretraining/norms"])
    np.testing.assert_allclose([rate(t) for t in range(STEPS)], GOLDEN["pretraining/rates"], rtol=1e-6)
    assert_after("pretraining", run("pretraining", optimizer))


@functools.cache
def finetuned(name):
    params = golden.to_ours(golden.under(GOLDEN, "finetuning/params"))
    return run("finetuning", rates.make_optimizer(FINETUNING[name], params, LAYERS, FINETUNING_STEPS))


@pytest.mark.parametrize("name", FINETUNING)
def test_finetuning(name):
    assert_after(name, finetuned(name))


@pytest.mark.parametrize("name", FINETUNING)
def test_rates_of_finetuning(name):
    config, params = FINETUNING[name], golden.to_ours(golden.under(GOLDEN, "finetuning/params"))
    factors = rates.rate_factors(params, LAYERS, config.layer_decay, config.reference_rates)
    by_column = [golden.variable(factors, column, ()) for column in COLUMNS]
    rate = rates.schedule(config, FINETUNING_STEPS)
    found = np.array([[float(rate(t)) * factor for factor in by_column] for t in range(STEPS)])
    np.testing.assert_allclose(found, GOLDEN[f"{name}/rates"], rtol=1e-6)
