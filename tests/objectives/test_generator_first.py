"""`electra` whose generator learns alone at first, through real steps: nothing that the encoder reads moves."""

import numpy as np
import pytest
import systems
from cli_runs import make_objective

from electra_jax import train_config
from electra_jax.config.errors import UserError
from electra_jax.flops.totals import count_flops

FIRST, STEPS = 3, 6
TYINGS = {
    "embeddings": ("embeddings", "encoder", "discriminator_head"),
    "gdes": ("embeddings", "generator_embeddings", "encoder", "discriminator_head"),
}

tyings = pytest.mark.parametrize("tying", ["gdes", pytest.param("embeddings", marks=pytest.mark.slow)])


def config(tying="embeddings", name="electra", **overrides):
    learning = {"optim__learning_rate": 0.01, "optim__warmup_steps": 1, "optim__weight_decay": 0.1}
    learning["objective__temperature_decay"] = 0.0
    return systems.config(name, tying, **{"steps": STEPS, "objective__generator_steps": FIRST, **learning, **overrides})


@tyings
def test_only_the_generators_own_parameters_move_at_first(tying):
    """Weight decay and the gradients of shared embeddings would move the others, now or in the next stage."""
    states, _ = systems.train(config(tying), FIRST)
    for name in states[0].params:
        rests = name in TYINGS[tying]
        assert systems.same(states[0].params[name], states[FIRST].params[name]) == rests, name
        assert all(np.any(moment) != rests for moment in systems.moments(states[FIRST], name)), name


def test_then_all_move():
    """As in the one stage without such steps. The rate begins anew: tests/test_optim.py."""
    first, rest = make_objective(config(), systems.VOCABULARY).stages
    (always,) = make_objective(config(objective__generator_steps=0), systems.VOCABULARY).stages
    assert first.trainable == ("generator", "generator_head")
    assert (rest.loss, rest.trainable, rest.init_params) == (always.loss, None, None)
    assert (always.steps, always.trainable) == (STEPS, None)


def test_the_first_steps_cost_the_generators_flops():
    o = make_objective(config(), systems.VOCABULARY)
    first, rest = o.stages
    assert [stage.steps for stage in o.stages] == [FIRST, STEPS - FIRST]
    alone, both = (count_flops(systems.one_phase(o), steps)["model"] for steps in (FIRST, STEPS))
    assert [(p.network, p.trained) for p in first.passes] == [("generator", True)]
    assert [(p.network, p.trained) for p in rest.passes] == [("generator", True), ("encoder", True)]
    assert 0 < alone < (both - alone) / 2


@pytest.mark.parametrize("steps", [-1, STEPS])
def test_too_many_or_negative_steps_are_refused(steps):
    with pytest.raises(UserError, match=rf"generator_steps={steps} is invalid: expected (0 or more|.* less than)"):
        train_config.resolve(config(objective__generator_steps=steps))


@pytest.mark.parametrize("tying", ["none", "all"])
def test_a_generator_with_other_embeddings_or_the_encoders_layers_is_refused(tying):
    with pytest.raises(UserError, match=rf"generator_steps=3 is invalid with config\.model\.tying={tying}: .* or gdes"):
        train_config.resolve(config(tying))
    train_config.resolve(config(tying, objective__generator_steps=0))
