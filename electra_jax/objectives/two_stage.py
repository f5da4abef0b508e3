"""Two-stage ELECTRA: the generator is trained alone; then the encoder starts from its weights and the generator pretrained_generator.

(arXiv 2003.10555, section 3.2, "Training Algorithms".) The networks are of equal size and share nothing, so that the
generator can stand still while the encoder learns.
"""

import jax
import jax.numpy as jnp

from electra_jax.objectives import corruption, electra, spec
from electra_jax.objectives.spec import Inputs, Loss, Objective, ObjectiveConfig, Params, Stage

Array = jax.Array
_COPIED = {"embeddings": "generator_embeddings", "encoder": "generator"}
_GENERATOR = ("generator_embeddings", "generator", "generator_head")
_ENCODER = ("embeddings", "encoder", "discriminator_head")


def loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """MLM by the generator for `generator_steps` steps, replaced-token detection after them; one of them runs."""

    def first(params: Params) -> Loss:
        generator, measured = corruption.generator_loss(o, corruption.corrupt(o, params, x), x)
        nothing = jnp.zeros_like(x.masked.real)
        return generator, {**measured, **electra.detection_loss(nothing, nothing, nothing)[1]}

    def second(params: Params) -> Loss:
        return electra.resting_generator_loss(o, params, x)

    total, measured = jax.lax.cond(x.step < o.settings.generator_steps, first, second, params)
    return total, measured


def frozen(settings: ObjectiveConfig, step: Array) -> dict[str, Array]:
    """The encoder keeps its bits in the first stage, the generator in the second."""
    first = step < settings.generator_steps
    return dict.fromkeys(_ENCODER, first) | dict.fromkeys(_GENERATOR, ~first)


def begin(settings: ObjectiveConfig, params: Params, step: Array) -> Params:
    """Before the first step of the second stage the encoder takes the generator's weights, embeddings included."""

    def copy(params: Params) -> Params:
        return {**params, **{name: params[source] for name, source in _COPIED.items()}}

    return jax.lax.cond(step == settings.generator_steps, copy, lambda params: params, params)


def stages(settings: ObjectiveConfig, steps: int) -> tuple[Stage, ...]:
    first = min(settings.generator_steps, steps)
    second = (corruption.RESTING, electra.DISCRIMINATOR)
    return Stage(first, (corruption.LEARNING,)), Stage(steps - first, second)


TWO_STAGE = spec.ObjectiveSpec(
    summary="the generator alone for generator_steps, then ELECTRA from its weights, with the generator frozen",
    paper="Two-Stage ELECTRA, figure 3",
    settings={
        **spec.MASKING,
        **spec.SAMPLING,
        **electra.WEIGHTS,
        "generator_steps": lambda steps: steps // 2,
    },
    heads=("discriminator_head",),
    loss=loss,
    stages=stages,
    model={"tying": "none", "generator_width": 1.0, "generator_layers": 1.0},
    detect=electra.detect,
    frozen=frozen,
    begin=begin,
)
