import json

import pytest
from cli_runs import small_config

from electra_jax import saved_config, train_config
from electra_jax.config.errors import UserError
from electra_jax.config.settings import flatten, settings_of
from electra_jax.objectives import registry
from electra_jax.train_config import TrainConfig

every_objective = pytest.mark.parametrize("objective", registry.SYSTEMS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("objective.mask_prob", 0.0),
        ("objective.mask_prob", 1.0),
        ("objective.mask_prob_end", 0.0),
        ("objective.replace_prob", 1.1),
        ("objective.temperature", 0.0),
        ("objective.generator", "bigram"),
        ("seed", -1),
        ("seed", 2**32),
        ("steps", 0),
        ("batch_size", -1),
        ("grad_accum_steps", 0),
        ("mesh.fsdp", 0),
        ("log_every", 0),
        ("checkpoint.every", 0),
        ("compiler_options", "xla_flag"),
        ("init.layers", "last"),
        ("data.heldout_fraction", 1.0),
        ("data.mode", "pair"),
        ("data.seq_length", 4),
        ("model.encoder", "gpt"),
        ("model.dtype", "float16"),
        ("model.dropout", 1.0),
        ("model.init_stddev", 1e-40),  # the weights would all be 0
        ("model.modernbert.local_window", 0),
        ("optim.b2", 1.0),
    ],
)
def test_an_invalid_value_is_refused_with_what_is_valid(name, value):
    expected = settings_of(TrainConfig)[name].check.expected
    with pytest.raises(UserError) as error:
        train_config.resolve(small_config(**{name: value}))
    assert str(error.value) == f"config.{name}={value!r} is invalid: expected {expected}"


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(UserError, match=r"seq_length=64 is longer than config\.model\.max_length=32"):
        train_config.resolve(small_config(data__seq_length=64, model__max_length=32))
    for given in ({"generator_from": "there"}, {"init_from": "here", "generator_from": "there"}):
        with pytest.raises(UserError, match=r"init\.generator=spread contradicts config\.generator_from=there"):
            train_config.resolve(small_config(init__generator="spread", **given))
    with pytest.raises(UserError, match=r"init\.generator=spread has no effect with this objective, which has no"):
        train_config.resolve(small_config(arg="objective=mlm", init_from="here", init__generator="spread"))
    with pytest.raises(UserError, match=r"init\.generator=first is invalid with objective=frozen_generator"):
        train_config.resolve(small_config(arg="objective=frozen_generator", init_from="here", init__generator="first"))
    same = {"model__tying": "all", "model__generator_width": 1.0, "model__generator_layers": 1.0}
    with pytest.raises(UserError, match=r"init\.generator=first has no effect with config\.model\.tying=all"):
        train_config.resolve(small_config(init_from="here", init__generator="first", **same))
    with pytest.raises(UserError, match=r"config\.profile\.at=9 is after the last step: expected 8"):
        train_config.resolve(small_config(steps=8, profile__at=9))
    with pytest.raises(UserError, match=r"probe\.every=5 needs the files of cola"):
        train_config.resolve(small_config(probe__every=5))


@pytest.mark.parametrize("objective", [{}, {"name": 3}, "mlm", None])
def test_an_objective_needs_a_name(objective):
    with pytest.raises(UserError, match=r"config has no objective\.name: expected a pre-training config, such as"):
        train_config.resolve({} if objective is None else {"objective": objective})


@pytest.mark.parametrize(
    ("name", "value", "objective", "why"),
    [
        ("init.layers", "first", "electra", "without config.init_from"),
        ("init.generator", "first", "electra", "without config.init_from"),
        ("generator_from", "there", "mlm", "with this objective, which has no generator network"),
        ("optim.muon_rate", 2.0, "electra", "without config.optim.name=muon"),
        ("optim.decay", 0.5, "electra", "without config.optim.schedule=stable"),
        ("optim.generator_rate", 2.0, "mlm", "without a generator network that is trained"),
        ("optim.clip_apart", True, "mlm", "without a generator and an encoder that are trained together"),
        ("optim.clip_apart", True, "two_stage", "without a generator and an encoder that are trained together"),
        ("optim.generator_rate", 2.0, "frozen_generator", "without a generator network that is trained"),
        ("profile.steps", 5, "mlm", "without config.profile.at"),
        ("probe.task", "rte", "mlm", "without config.probe.every"),
    ],
)
def test_settings_without_effect_are_refused(name, value, objective, why):
    config = small_config(arg=f"objective={objective}")
    config.update_from_flattened_dict({name: value})
    with pytest.raises(UserError) as error:
        train_config.resolve(config)
    default = settings_of(TrainConfig)[name].default
    assert str(error.value) == f"config.{name}={value} has no effect {why}; leave it out, or set it to {default!r}"


def test_a_setting_with_an_effect_in_one_phase_is_not_refused():
    unused = {"objective__encoder_weight": 0.0, "objective__encoder_positions": "all"}
    with pytest.raises(UserError, match=r"positions=all has no effect with config\.objective\.encoder_weight=0;"):
        train_config.resolve(small_config(arg="objective=electra_mlm", **unused))
    train_config.resolve(small_config(arg="objective=electra_mlm", **unused), of_a_run=True)  # of an earlier version
    with pytest.raises(UserError, match=r"decay=0\.3 has no effect at a temperature of 1; leave"):
        train_config.resolve(small_config(objective__temperature=1.0, objective__temperature_decay=0.3))
    phases = "1/2; 1/2 objective.encoder_weight=1 objective.temperature=2"
    used = {**unused, "objective__temperature_decay": 0.3, "phases": phases}
    train_config.resolve(small_config(arg="objective=electra_mlm", **used))
    # The objective's own decay.
    train_config.resolve(small_config(arg="objective=frozen_generator", objective__temperature=1.0))


@every_objective
def test_a_config_survives_its_json(objective):
    config = train_config.resolve(small_config(arg=f"objective={objective}"))
    assert train_config.resolve(json.loads(json.dumps(train_config.to_dict(config)))) == config


@every_objective
def test_a_config_has_the_settings_that_its_objective_uses_and_no_others(objective):
    config = small_config(arg=f"objective={objective}")
    written = flatten(train_config.to_dict(train_config.resolve(config)))
    assert written == flatten(config)
    assert {name for name in written if name.startswith("objective.")} == {
        "objective.name",
        *(f"objective.{name}" for name in registry.SYSTEMS[objective].settings),
    }


def test_the_callers_config_is_left_as_it_was():
    config = small_config()
    before = config.to_dict()
    train_config.resolve(config)
    assert config.to_dict() == before


@every_objective
def test_a_run_of_an_earlier_version_has_the_defaults_of_added_settings(objective):
    config = train_config.resolve(small_config(arg=f"objective={objective}", seed=7))
    written = train_config.to_dict(config)
    del written["mesh"], written["data"]["temperature"], written["init"]["generator"]
    objective_settings = [name for name in written["objective"] if name != "name"]
    for name in objective_settings[:1]:
        del written["objective"][name]
    assert train_config.resolve(saved_config.with_later_settings(written)) == config


def test_what_a_later_version_wrote_is_not_dropped():
    written = train_config.to_dict(train_config.resolve(small_config()))
    with pytest.raises(UserError, match=r"config\.optim\.momentum is unknown"):
        train_config.resolve(
            saved_config.with_later_settings({**written, "optim": {**written["optim"], "momentum": 0.9}})
        )


@pytest.mark.parametrize(
    ("name", "value"), [("seed", {"a": 1}), ("mesh", 3), ("model", {"layers": {"a": 1}, "deberta": 5})]
)
def test_a_damaged_config_is_refused(name, value):
    written = train_config.to_dict(train_config.resolve(small_config()))
    with pytest.raises(UserError, match="is unknown"):
        train_config.resolve(saved_config.with_later_settings({**written, name: value}))


def test_the_name_of_a_config_is_no_config():
    with pytest.raises(
        UserError, match=r"config is 'tiny': expected a ConfigDict, such as that of electra_jax.configs"
    ):
        train_config.as_dataclass("tiny")


def test_every_setting_is_documented_by_one_sentence():
    for name, each in settings_of(TrainConfig).items():
        assert each.doc.endswith("."), name
        assert each.doc[0].isupper() or each.doc.startswith("`"), name
        if each.check is not None and name not in ("objective.name",):
            assert each.check.holds(each.default) or name == "objective.generator_steps", name


def test_a_default_config_is_valid():
    train_config.check(TrainConfig())
