"""Two-stage ELECTRA: train the generator, then start the encoder from its weights and freeze the generator.

(arXiv 2003.10555, section 3.2, "Training Algorithms".) The networks have equal sizes and share nothing, so that one of
them can stay frozen while the other learns.
"""

import jax
import jax.numpy as jnp

from electra_jax.objectives import electra, spec
from electra_jax.objectives.spec import ObjectiveConfig, Params, Stage

_GENERATOR = ("generator_embeddings", "generator", "generator_head")
_ENCODER = ("embeddings", "encoder", "discriminator_head")
# The generator's head predicts tokens, so the encoder's starts from its initial values.
_COPIED = {"embeddings": "generator_embeddings", "encoder": "generator"}


def copy_generator(params: Params) -> Params:
    """Copies the generator's weights to the encoder and its embeddings; the encoder's head stays as it is."""
    # Real copies: a train step donates its state, and a buffer can be donated only once.
    return {**params, **{name: jax.tree.map(jnp.copy, params[source]) for name, source in _COPIED.items()}}


def stages(settings: ObjectiveConfig, steps: int) -> tuple[Stage, ...]:
    first = settings.generator_steps  # less than `steps`, see `registry.check`
    return (
        Stage(first, (electra.TRAINED_GENERATOR,), electra.generator_alone_loss, trainable=_GENERATOR),
        Stage(
            steps - first,
            (electra.FROZEN_GENERATOR, electra.DISCRIMINATOR),
            electra.frozen_generator_loss,
            trainable=_ENCODER,
            init_params=copy_generator,
        ),
    )


TWO_STAGE = spec.ObjectiveSpec(
    summary="the generator alone for generator_steps, then ELECTRA from its weights, with the generator frozen",
    paper="Two-Stage ELECTRA, figure 3",
    settings=(*spec.MASKING, *spec.SAMPLING, *electra.WEIGHTS, "generator_steps"),
    defaults={"generator_steps": lambda steps: steps // 2},
    heads=("discriminator_head",),
    stages=stages,
    # Weights can only be copied between equal shapes; shared ones could not stay frozen.
    model={"tying": "none", "generator_width": 1.0, "generator_layers": 1.0},
    detect=electra.detect,
)
