"""Both stages through real steps: frozen parameters keep their bits, and the second stage starts from the generator."""

import functools

import jax
import numpy as np
import pytest
import systems
from cli_runs import make_objective

from electra_jax import train_config
from electra_jax.config.errors import UserError
from electra_jax.objectives.segments import segment_at

ENCODER = ("embeddings", "encoder", "discriminator_head")
GENERATOR = ("generator_embeddings", "generator", "generator_head")
FIRST, STEPS = 3, 7  # steps of the first stage, and of the run


def config(**overrides):
    learning = {"optim__learning_rate": 0.01, "optim__warmup_steps": 1, "optim__weight_decay": 0.1}
    learning["objective__temperature_decay"] = 0.0
    return systems.config("two_stage", **{"steps": STEPS, "objective__generator_steps": FIRST, **learning, **overrides})


@functools.cache
def run():
    """States 0 to 7, by the number of steps done, and the learning rates of the steps."""
    return systems.train(config(), STEPS)


def params(step: int):
    return run()[0][step].params


@pytest.mark.parametrize("part", ENCODER)
def test_the_encoder_rests_in_the_first_stage(part):
    """Weight decay would move it; the learning rate is 0 in the first step of a stage alone."""
    assert run()[1][1] > 0
    assert systems.same(params(0)[part], params(FIRST - 1)[part])
    assert not systems.same(params(0)["generator"], params(FIRST - 1)["generator"])


@pytest.mark.parametrize("part", GENERATOR)
def test_the_generator_rests_in_the_second_stage(part):
    """Weight decay and what is left of Adam's moments would move it."""
    states, rates = run()
    assert rates[FIRST + 1] > 0
    assert any(np.any(m) for m in systems.moments(states[FIRST + 1], part))
    for step in range(FIRST + 1, STEPS + 1):
        assert systems.same(params(FIRST)[part], params(step)[part])
        assert step <= FIRST + 1 or not systems.same(params(FIRST)["encoder"], params(step)["encoder"])
    assert not systems.same(params(FIRST)["discriminator_head"], params(STEPS)["discriminator_head"])


def test_the_second_stage_begins_with_the_generators_last_weights():
    """Those after the first stage's last step, to the bit; the head is as it was at the beginning."""
    assert systems.same(params(FIRST)["embeddings"], params(FIRST)["generator_embeddings"])
    assert systems.same(params(FIRST)["encoder"], params(FIRST)["generator"])
    assert systems.same(params(FIRST)["discriminator_head"], params(0)["discriminator_head"])
    assert not systems.same(params(FIRST)["generator"], params(FIRST - 1)["generator"])


def test_the_encoder_learns_from_there_and_does_not_begin_anew():
    for part in ("embeddings", "encoder"):
        assert not systems.same(params(FIRST + 2)[part], params(FIRST)[part])
        far, near = (
            sum(np.sum((x - y) ** 2) for x, y in zip(*map(jax.tree.leaves, pair), strict=True))
            for pair in (
                (params(FIRST + 2)[part], params(0)[part]),
                (params(FIRST + 2)[part], params(FIRST)[part]),
            )
        )
        assert near < far / 10


def test_the_learning_rate_begins_anew():
    """peak x (1 - t / steps) x min(1, t / 1), t and steps those of the stage."""
    expected = [0, 2 / 3, 1 / 3, 0, 3 / 4, 2 / 4, 1 / 4]
    np.testing.assert_allclose(run()[1], 0.01 * np.asarray(expected), rtol=1e-5)


def test_stages_add_up_to_the_run():
    o = make_objective(config(), systems.VOCABULARY)
    assert [stage.steps for stage in o.stages] == [FIRST, STEPS - FIRST]
    trained = [
        [(p.network, p.trained) for p in segment_at(systems.one_phase(o), step).stage.passes]
        for step in (0, FIRST - 1, FIRST, STEPS - 1)
    ]
    first, second = [("generator", True)], [("generator", False), ("encoder", True)]
    assert trained == [first, first, second, second]


@pytest.mark.parametrize("steps", [-1, 0, STEPS, STEPS + 1])
def test_a_stage_without_steps_is_refused(steps):
    with pytest.raises(
        UserError,
        match=rf"config.objective.generator_steps={steps} is invalid: expected (.*config.steps={STEPS}|0 or more)",
    ):
        train_config.resolve(config(objective__generator_steps=steps))


@pytest.mark.parametrize("steps", [1, STEPS - 1])
def test_the_shortest_stages_are_accepted(steps):
    train_config.resolve(config(objective__generator_steps=steps))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("tying", "embeddings"),
        ("tying", "all"),
        ("tying", "gdes"),
        ("generator_width", 0.5),
        ("generator_layers", 2.0),
    ],
)
def test_other_sizes_and_tying_are_refused(setting, value):
    assert config().model[setting] != value
    with pytest.raises(UserError, match=f"config.model.{setting}=.*objective=two_stage"):
        train_config.resolve(config(**{f"model__{setting}": value}))


def test_wide_embeddings_can_be_copied_too():
    """Embeddings may be wider than the networks; both have tables of the same size then too."""
    o = make_objective(config(model__embedding_size=48), systems.VOCABULARY)
    shapes = systems.shapes(o)
    for part, source in (("embeddings", "generator_embeddings"), ("encoder", "generator")):
        assert jax.tree.map(lambda x: x.shape, shapes[part]) == jax.tree.map(lambda x: x.shape, shapes[source])
