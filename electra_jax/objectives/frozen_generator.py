"""ELECTRA with a generator that is trained already and rests, sampled at a temperature that falls: Fast-ELECTRA.

(arXiv 2310.07347.) Its weights are given, `config.generator_from`: another run's generator, or, of a system without one
(`mlm`), its encoder; or a released one (initial.py). It costs a forward pass and no gradient.
"""

from electra_jax import metrics
from electra_jax.objectives import corruption, electra, spec
from electra_jax.objectives.spec import Inputs, Loss, Objective, Params

_GENERATOR = ("generator_embeddings", "generator", "generator_head")


def loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """As ELECTRA's, with a generator that rests; what is measured of it says how good it is."""
    total, measured = electra.resting_generator_loss(o, params, x)
    return total, {**measured, "temperature": metrics.scalar(corruption.temperature(o, x.step))}


FROZEN_GENERATOR = spec.ObjectiveSpec(
    summary="ELECTRA with another run's generator, frozen, at a falling temperature",
    paper="Fast-ELECTRA, arXiv 2310.07347",
    settings={
        **spec.MASKING,
        "temperature": 2.0,
        "temperature_decay": 0.1,
        "disallow_correct": False,
        "discriminator_weight": 50.0,
    },
    heads=("discriminator_head",),
    loss=loss,
    stages=spec.one_stage(corruption.RESTING, electra.DISCRIMINATOR),
    model={"tying": "none"},
    detect=electra.detect,
    frozen=lambda settings, step: dict.fromkeys(_GENERATOR, True),
    pretrained_generator=True,
)
