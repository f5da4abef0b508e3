"""Fast-ELECTRA: ELECTRA with a pre-trained, frozen generator and a decaying sampling temperature (arXiv 2310.07347).

`config.generator_from` gives the generator's weights: another run's generator, the encoder of an `mlm` run, or a
released network (see `loading/warm_start.py`). The generator costs a forward pass and no gradient.
"""

from electra_jax import metrics
from electra_jax.objectives import electra, spec
from electra_jax.objectives.spec import Inputs, Loss, Objective, Params

_TRAINABLE = ("embeddings", "encoder", "discriminator_head")


def loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """Computes ELECTRA's loss with a frozen generator; logs the generator's quality and the temperature."""
    total, measured = electra.frozen_generator_loss(o, params, x)
    # Logged, because `disc_loss` depends on it: a lower temperature makes harder fakes.
    return total, {**measured, "temperature": metrics.scalar(electra.temperature(o, x.step))}


FROZEN_GENERATOR = spec.ObjectiveSpec(
    summary="ELECTRA with another run's generator, frozen, at a falling temperature",
    paper="Fast-ELECTRA, arXiv 2310.07347",
    settings=(*spec.MASKING, *spec.SAMPLING, "discriminator_weight"),
    defaults={"temperature": 2.0, "temperature_decay": 0.1},
    heads=("discriminator_head",),
    stages=spec.one_stage(loss, electra.FROZEN_GENERATOR, electra.DISCRIMINATOR, trainable=_TRAINABLE),
    # The encoder's training would change tables that it shares with the generator.
    model={"tying": "none"},
    detect=electra.detect,
    pretrained_generator=True,
)
