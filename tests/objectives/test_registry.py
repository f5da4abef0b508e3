"""The table of systems: what `objective=` makes of a config, and that no setting is there for nothing."""

import math

import pytest
import systems
from cli_runs import make_objective

from electra_jax import train_config
from electra_jax.config.errors import UserError
from electra_jax.objectives import registry

MASKING = {"mask_prob": 0.15, "mask_prob_end": -1.0, "replace_prob": 0.85, "random_prob": 0.0, "whole_words": False}
SAMPLING = {"temperature": 1.0, "temperature_decay": 0.0, "disallow_correct": False}
DETECTION = {"generator_weight": 1.0, "discriminator_weight": 50.0}
PREDICTION = {"generator_weight": 1.0, "encoder_weight": 1.0}
SETTINGS = {
    "electra": {**MASKING, "generator": "transformer", **SAMPLING, **DETECTION, "generator_steps": 0},
    "electra_15": {**MASKING, "generator": "transformer", **SAMPLING, **DETECTION, "generator_steps": 0},
    "electra_mlm": {
        **MASKING,
        "generator": "transformer",
        **SAMPLING,
        **DETECTION,
        "encoder_weight": 1.0,
        "encoder_mask_prob": 0.5,
        "encoder_positions": "masked",
    },
    "replace_mlm": {**MASKING, "generator": "transformer", **SAMPLING, **PREDICTION},
    "all_tokens_mlm": {**MASKING, "generator": "transformer", **SAMPLING, **PREDICTION},
    "mlm": MASKING,
    "two_stage": {**MASKING, **SAMPLING, **DETECTION, "generator_steps": 500_000},
    "adversarial": {**MASKING, **SAMPLING, **DETECTION},
    "electric": {"mask_prob": 0.15, "temperature": 1.0, "temperature_decay": 0.0, **DETECTION},
    "frozen_generator": {
        **MASKING,
        "temperature": 2.0,
        "temperature_decay": 0.1,
        "disallow_correct": False,
        "discriminator_weight": 50.0,
    },
}
OF_GENERATORS = {"generator_width", "generator_layers", "tying"}
ROWS = [(name, "transformer") for name in registry.SYSTEMS] + [
    ("electra", kind) for kind in ("unigram", "uniform", "clusters")
]


def configured(name: str, generator: str = "transformer", **objective):
    """The paper's config as that system; `objective` is what a size's config sets before."""
    config = train_config.paper()
    config.objective.update(objective)
    train_config.choose_objective(config, name, generator)
    return config


every_system = pytest.mark.parametrize("name", registry.SYSTEMS)


@every_system
@pytest.mark.parametrize("changes", [{}, {"mask_prob": 0.25, "temperature": 1.5}], ids=["paper's", "of a size"])
def test_the_settings_are_the_systems_own_and_what_a_size_sets_is_kept(name, changes):
    """Its own defaults stand where the size has the paper's: `frozen_generator` keeps its temperature."""
    own = {setting: changes.get(setting, value) for setting, value in SETTINGS[name].items()}
    assert dict(configured(name, **changes).objective) == {"name": name, **own}


@every_system
def test_the_system_of_the_table_is_that_of_the_config(name):
    o = make_objective(configured(name), systems.VOCABULARY)
    assert o.system is registry.SYSTEMS[name]
    assert o.settings.name == name
    assert o.steps == 1_000_000
    assert sum(stage.steps for stage in o.stages) == o.steps


@pytest.mark.parametrize(("name", "generator"), ROWS)
def test_a_config_without_a_generator_has_no_settings_of_one(name, generator):
    has_network = name != "mlm" and generator == "transformer"
    assert OF_GENERATORS & set(configured(name, generator).model) == (OF_GENERATORS if has_network else set())


def test_unknown_names_are_refused_with_those_there_are():
    with pytest.raises(UserError, match="objective=elektra is unknown: expected one of " + ", ".join(registry.SYSTEMS)):
        configured("elektra")
    with pytest.raises(
        UserError, match="generator=lstm is unknown: expected one of transformer, unigram, uniform, clusters"
    ):
        configured("electra", "lstm")


@every_system
def test_a_generator_of_no_use_is_refused(name):
    if "generator" in SETTINGS[name]:
        assert configured(name, "unigram").objective.generator == "unigram"
        return
    usable = "electra, electra_15, electra_mlm, replace_mlm, all_tokens_mlm"
    with pytest.raises(UserError, match=f"objective={name} cannot use generator=unigram: only {usable} can"):
        configured(name, "unigram")


@every_system
def test_a_name_changed_alone_is_refused(name):
    """--config.objective.name=mlm leaves the settings of another system."""
    config = configured("adversarial" if name == "electra" else "electra")
    config.objective.name = name
    other_settings = set(SETTINGS[name]) != set(config.objective) - {"name"}
    if not other_settings and registry.SYSTEMS[name].generator:  # electra_15 has the settings of electra
        return
    with pytest.raises(UserError, match=f"objective={name}"):
        train_config.resolve(config)


def test_an_unknown_name_in_a_config_is_refused():
    config = configured("electra")
    config.objective.name = "elektra"
    with pytest.raises(UserError, match=r"config\.objective\.name='elektra' is invalid: expected electra or "):
        train_config.resolve(config)


@pytest.mark.parametrize(("was", "becomes"), [("transformer", "unigram"), ("uniform", "transformer")])
def test_a_generator_changed_alone_is_refused(was, becomes):
    config = configured("electra", was)
    config.objective.generator = becomes
    with pytest.raises(UserError, match="does not match the other settings"):
        train_config.resolve(config)


def test_shares_of_more_than_all_are_refused():
    with pytest.raises(
        UserError, match=r"replace_prob=0.85 and random_prob=0.2 add up to more than 1: expected 1 or less"
    ):
        train_config.resolve(configured("electra", random_prob=0.2))
    train_config.resolve(configured("electra", random_prob=0.1, replace_prob=0.9))


# From what each setting is changed, and to what.
BEFORE = {"replace_prob": 0.4, "random_prob": 0.1, "temperature": 1.0}
AFTER = {
    "mask_prob": 0.43,
    "mask_prob_end": 0.1,
    "replace_prob": 0.0,
    "random_prob": 0.6,
    "whole_words": True,
    "temperature": 2.0,
    "disallow_correct": True,
    "generator_weight": 3.0,
    "discriminator_weight": 3.0,
    "encoder_weight": 3.0,
    "encoder_mask_prob": 0.2,
    "encoder_positions": "all",
    "generator_steps": 8,
}
FAST = ("electra", "mlm", "two_stage", "electric")  # the others' losses are made of the same functions
# Not by a change of the loss, but below: a generator, and the schedule of the temperature.
ELSEWHERE = {"generator", "temperature_decay"}
OWN_PROGRAM = "disallow_correct"  # of the fakes of `electra`: test_electra_corruption.py


def settings_of(name: str, generator: str) -> list[str]:
    return sorted(set(configured(name, generator).objective) - {"name"})


@pytest.mark.parametrize(
    ("name", "generator", "setting"),
    [
        pytest.param(*row, setting, marks=() if row[0] in FAST and setting != OWN_PROGRAM else pytest.mark.slow)
        for row in ROWS
        for setting in settings_of(*row)
        if setting not in ELSEWHERE and (row[0], setting) != ("electra", OWN_PROGRAM)
    ],
)
def test_every_setting_of_every_system_changes_the_loss(name, generator, setting):
    """Of step 6 of 10, the first of two_stage's second stage; its generator's loss is that of the first."""
    step = 3 if (name, setting) == ("two_stage", "generator_weight") else 6
    how = {"step": step, **{s: value for s, value in BEFORE.items() if s in settings_of(name, generator)}}
    old, new = (
        systems.loss(name, "", generator, **{**how, **change})["loss"] for change in ({}, {setting: AFTER[setting]})
    )
    assert math.isfinite(old)
    assert math.isfinite(new)
    assert abs(old - new) > 1e-5 * abs(old)


@pytest.mark.parametrize(
    ("name", "generator"),
    [
        pytest.param(*row, marks=() if row[0] in FAST else pytest.mark.slow)
        for row in ROWS
        if "temperature_decay" in settings_of(*row)
    ],
)
def test_every_system_follows_the_schedule_of_the_temperature(name, generator):
    """1 + (T - 1) exp(-u / .5): at u = .5 a T of 2 is what 1 + exp(.6) is at .8, and nothing else knows the step."""

    def loss(step: int, temperature: float) -> float:
        return systems.loss(name, "", generator, step=step, temperature=temperature)["loss"]

    now = loss(5, 2.0)
    assert now == pytest.approx(loss(8, 1 + math.exp(0.6)), rel=1e-4)
    assert now != pytest.approx(loss(8, 2.0), rel=1e-4)


@pytest.mark.parametrize(("start", "end"), [(0.4, 0.1), (0.1, 0.4)])
def test_the_masked_share_changes_in_a_line(start, end):
    """Of the second row's 16 tokens; the step has as many places at all times, those of the larger share."""
    o = systems.with_settings(systems.objective("electra"), mask_prob=start, mask_prob_end=end)
    masked = [systems.inputs(o, step).masked for step in (0, 5, 10)]
    counts = [int(m.weights[1].sum()) for m in masked]
    assert counts == ([6, 4, 2] if start > end else [2, 4, 6])
    assert {m.positions.shape[1] for m in masked} == {6}
    assert o.settings.largest_mask_prob == 0.4
