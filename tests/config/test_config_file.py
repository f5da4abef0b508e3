import dataclasses

import pytest
from cli_runs import ROOT

from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.config.settings import setting
from electra_jax.train_config import TrainConfig

TINY = "--config=tiny"


def parse(*argv: str):
    return config_file.parse(list(argv), "usage")


def test_the_config_its_argument_overrides_and_workdir_are_read(tmp_path):
    arguments = parse(TINY, "--config.steps=40", "--config.optim.learning_rate", "1e-3", f"--workdir={tmp_path}")
    assert arguments.config.steps == 40
    assert arguments.config.optim.learning_rate == 1e-3
    assert arguments.workdir == str(tmp_path)
    assert arguments.options == {}
    assert parse(TINY + ":runlocal").config.steps < parse(TINY).config.steps


def test_a_setting_that_the_objective_does_not_have_has_no_effect():
    arguments = [f"{TINY}:objective=mlm", "--config.objective.discriminator_weight=3"]
    with pytest.raises(UserError, match=r"discriminator_weight has no effect with config\.objective\.name=mlm; leave"):
        config_file.parse(arguments, "usage", config_class=TrainConfig)
    with pytest.raises(UserError, match=r"did you mean --config\.objective\.mask_prob\?"):
        parse(TINY, "--config.objective.maks_prob=.2")


def test_a_setting_of_another_encoder_has_no_effect():
    window = "--config.model.modernbert.local_window=4"
    assert parse(TINY, window, "--config.model.dropout=0").config.model.modernbert.local_window == 4
    parse(TINY, "--config.model.encoder=bert")  # although tiny has settings of ModernBERT
    with pytest.raises(UserError, match=r"local_window has no effect with config\.model\.encoder=bert; leave it out"):
        parse(TINY, window, "--config.model.encoder=bert")


def test_a_config_is_the_name_of_a_packaged_one_or_a_path(monkeypatch, tmp_path):
    expected = config_file.load(ROOT / "configs" / "tiny.py").to_dict()
    monkeypatch.chdir(tmp_path)
    assert config_file.load("tiny").to_dict() == expected
    assert config_file.load("tiny.py").to_dict() == expected
    (tmp_path / "tiny.py").write_text(
        "from ml_collections import ConfigDict\ndef get_config(arg): return ConfigDict(dict(objective=arg))\n"
    )
    assert parse("--config=tiny.py:mine").config.objective == "mine"
    assert parse("--config=tiny").config.to_dict() == expected


@pytest.mark.parametrize(
    ("config", "workdir"),
    [
        ("tiny", "runs/tiny"),
        (f"{ROOT}/configs/tiny.py", "runs/tiny"),
        ("tiny:objective=mlm", "runs/tiny-mlm"),
        ("tiny:runlocal,objective=replace_mlm,generator=unigram", "runs/tiny-runlocal-replace_mlm-unigram"),
    ],
)
def test_the_default_workdir_is_named_after_the_config(config, workdir):
    assert parse(f"--config={config}").workdir == workdir


def test_a_default_workdir_has_the_last_part_of_a_path(tmp_path):
    (tmp_path / "mine.py").write_text("from electra_jax.configs import tiny\nget_config = lambda arg: tiny()\n")
    assert parse(f"--config={tmp_path}/mine.py:corpus=/data/train_100M").workdir == "runs/mine-train_100M"


def test_an_empty_workdir_is_refused():
    with pytest.raises(UserError, match="--workdir is empty: expected a folder; leave it out for the default"):
        parse(TINY, "--workdir=")


def test_arguments_of_a_config_are_separated_by_commas():
    config = parse(TINY + ":runlocal,objective=replace_mlm,generator=unigram").config
    assert config.steps == parse(TINY + ":runlocal").config.steps
    assert (config.objective.name, config.objective.generator) == ("replace_mlm", "unigram")


def test_a_command_has_options_of_its_own():
    options = {"config": "", "chips": 8, "mfu": 0.4, "json": False}

    def read(*argv):
        return config_file.parse(list(argv), "usage", options)

    assert read().config is None
    assert read().options == options
    assert read("--json", "--chips=16", "--mfu", ".5").options == {"config": "", "chips": 16, "mfu": 0.5, "json": True}
    assert read(TINY, "--config.steps=7", "--json").config.steps == 7
    with pytest.raises(UserError, match="--config is missing"):  # what would it override?
        read("--config.steps=7")


def test_a_setting_can_have_a_shorthand():
    arguments = config_file.parse([TINY, "--init_from=x"], "usage", shorthands=("init_from",))
    assert arguments.config.init_from == "x"


def test_help_config_prints_the_settings(capsys):
    @dataclasses.dataclass(frozen=True)
    class Config:
        """A run."""

        steps: int = setting(3, "Steps.")

    with pytest.raises(SystemExit):
        config_file.parse(["--help-config"], "usage", config_class=Config)
    assert capsys.readouterr().out == "A run.\n  --config.steps=3  (an integer)\n      Steps.\n"
    with pytest.raises(UserError, match="--help-config"):
        parse(TINY, "--help-config")


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--config.step=40", "--config.step is unknown; did you mean --config.steps?"),
        ("--config.learning_rate=1", "did you mean --config.optim.learning_rate?"),
        ("--config.optim=1", "--config.optim is unknown"),
        ("--config.steps=many", "--config.steps=many is invalid: expected an integer, such as 1060"),
        ("--wrkdir=x", "--wrkdir is unknown; did you mean --workdir?"),
        ("--steps=10", "--steps is unknown; did you mean --config.steps?"),
        ("--learning_rate=10", "--learning_rate is unknown; did you mean --config.optim.learning_rate?"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_to_do(argument, expected):
    with pytest.raises(UserError) as error:
        parse(TINY, argument)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--workdir=x", "--config is missing: expected a config for pre-training, such as --config=tiny"),
        (
            "--config=huge",
            "config huge does not exist: expected the path of a Python file, or one of babylm, base, budget, ",
        ),
        ("--config=configs/huge.py", "config configs/huge.py does not exist: expected the path of a Python file, or "),
        ("--config=glue:task=cola", "--config=glue:task=cola has the wrong kind: expected a config for pre-training"),
        ("--config=tiny:runlokal", "config argument 'runlokal' is unknown"),
        ("--config=tiny:runlocal=no", "config argument 'runlocal=no' is unknown: expected runlocal, objective=NAME"),
        ("--config=tiny:objective=bert", "objective=bert is unknown"),
    ],
)
def test_a_wrong_config_is_refused_with_what_to_do(argument, expected):
    with pytest.raises(UserError) as error:
        parse(argument)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", r"has no function get_config\(arg\)"),
        ("get_config = 1", r"has no function get_config\(arg\)"),
        ("def get_config(arg):", r"fails with IndentationError: .*; see configs/tiny\.py for an example"),
        ("import nothing_of_that_name", "fails with ModuleNotFoundError: "),
        ("def get_config(arg): return 1 / 0", "fails with ZeroDivisionError: "),
        ("def get_config(arg): return {}", r"get_config\('x'\) returns a dict: expected a ConfigDict"),
    ],
)
def test_a_broken_config_file_is_refused(tmp_path, text, expected):
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(UserError, match=f"config file .*broken.py:? {expected}"):
        config_file.load(tmp_path / "broken.py", "x")
