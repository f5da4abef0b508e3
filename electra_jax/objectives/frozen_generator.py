"""ELECTRA with a generator that is trained already and rests, sampled at a temperature that falls: Fast-ELECTRA.

(arXiv 2310.07347.) Its weights come from another run, `config.objective.generator_from`: that run's generator, or, of a
system without one (`mlm`), its encoder. It costs a forward pass and no gradient.
"""

import jax

from electra_jax import metrics
from electra_jax.errors import UserError
from electra_jax.objectives import corruption, electra, system
from electra_jax.objectives.system import Inputs, Loss, Objective, Params

_GENERATOR = ("generator_embeddings", "generator", "generator_head")


def loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """As ELECTRA's, with a generator that rests; what is measured of it says how good it is."""
    total, measured = electra.resting_generator_loss(o, params, x)
    return total, {**measured, "temperature": metrics.scalar(corruption.temperature(o, x.step))}


def take(params: Params, source: Params) -> Params:
    """`params` with the generator of another run's parameters.

    Raises:
      UserError: that run has no such generator, or one of another shape.
    """
    head = source.get("generator_head", source.get("mlm_head"))
    if head is None or "left" in source.get("generator", {}):
        raise UserError("config.objective.generator_from: that run has no generator that fills masks; give another run")
    network = source["generator"] if "generator" in source else source["encoder"]
    tables = source.get("generator_embeddings", source["embeddings"])
    own = {"generator_embeddings": tables, "generator": network, "generator_head": head}
    ours = jax.tree_util.tree_leaves_with_path({name: params[name] for name in _GENERATOR})
    theirs = dict(jax.tree_util.tree_leaves_with_path(own))
    for path, value in ours:
        shape = theirs[path].shape if path in theirs else "nothing"
        if shape != value.shape:
            raise UserError(
                f"config.objective.generator_from: its generator has {shape} at {jax.tree_util.keystr(path)} where "
                f"that of this run has {value.shape}; give it the same settings (config.model.generator_width, ...)"
            )
    if len(theirs) != len(ours):
        raise UserError("config.objective.generator_from: its generator is of another kind (config.model.encoder)")
    return {**params, **own}


FROZEN_GENERATOR = system.System(
    summary="ELECTRA with another run's generator, frozen, at a falling temperature",
    paper="Fast-ELECTRA, arXiv 2310.07347",
    settings={
        **system.MASKING,
        "generator_from": "",
        "temperature": 2.0,
        "temperature_decay": 0.1,
        "disallow_correct": False,
        "discriminator_weight": 50.0,
    },
    heads=("discriminator_head",),
    loss=loss,
    stages=system.one_stage(corruption.RESTING, electra.DISCRIMINATOR),
    model={"tying": "none"},
    detect=electra.detect,
    frozen=lambda settings, step: dict.fromkeys(_GENERATOR, True),
    take=take,
)
