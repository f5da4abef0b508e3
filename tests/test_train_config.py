import pytest
from cli_runs import ROOT, small_config

from electra_jax import train_config
from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.config.settings import differences, flatten
from electra_jax.objectives import registry

TINY = f"--config={ROOT}/configs/tiny.py"


def parse(*argv: str):
    return config_file.parse(list(argv), "usage")


def test_the_file_its_argument_overrides_and_workdir_are_read(tmp_path):
    arguments = parse(TINY, "--config.steps=40", "--config.optim.learning_rate", "1e-3", f"--workdir={tmp_path}")
    assert arguments.config.steps == 40
    assert arguments.config.optim.learning_rate == 1e-3
    assert arguments.workdir == tmp_path
    assert str(parse(TINY).workdir) == "runs/tiny"
    assert parse(TINY + ":runlocal").config.steps < parse(TINY).config.steps
    assert str(parse(TINY + ":objective=mlm").workdir) == "runs/tiny-mlm"


def test_arguments_of_a_config_go_together():
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
    with pytest.raises(UserError, match="--chips=many is no int; it is 8 now"):
        read("--chips=many")
    with pytest.raises(UserError, match="--chip is unknown; did you mean --chips"):
        read("--chip=3")


def test_help_prints_the_usage(capsys):
    assert parse(TINY, "--help") is None
    assert capsys.readouterr().out == "usage\n"


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--config.step=40", "--config.step is unknown; did you mean --config.steps?"),
        ("--config.learning_rate=1", "did you mean --config.optim.learning_rate?"),
        ("--config.optim=1", "--config.optim is unknown"),
        ("--config.steps=many", "--config.steps=many is no int"),
        ("--config.steps=1.5", "--config.steps=1.5 is no int"),
        ("--config.steps=True", "is no int"),
        ("--config.model.dropout=none", "is no float; it is 0.0 now"),
        ("--config.model.unroll=maybe", "is no bool"),
        ("--wrkdir=x", "--wrkdir is unknown; did you mean --workdir?"),
        ("steps=3", "argument 'steps' is not understood"),
        ("--workdir", "--workdir lacks a value"),
    ],
)
def test_a_wrong_argument_is_named_with_a_way_out(argument, expected):
    with pytest.raises(UserError) as error:
        parse(TINY, argument)
    assert expected in str(error.value)


def test_a_missing_config_names_those_that_are_there(monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match=r"configs/base\.py, configs/glue\.py"):
        parse("--config=configs/huge.py")
    with pytest.raises(UserError, match=r"--config is missing; give one of pre-training: configs/tiny\.py"):
        parse("--workdir=x")
    with pytest.raises(UserError, match="config argument 'runlokal' is unknown"):
        parse(TINY + ":runlokal")
    with pytest.raises(UserError, match="objective=bert is unknown; there are electra, electra_15, "):
        parse(TINY + ":objective=bert")


def test_a_file_without_get_config_is_refused(tmp_path):
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(UserError, match="defines no get_config"):
        config_file.load(tmp_path / "empty.py")
    for text, message in (
        ("def get_config(arg):", r"is no Python that runs \(IndentationError: .*\); see configs/tiny\.py"),
        ("import nothing_of_that_name", r"is no Python that runs \(ModuleNotFoundError: "),
        ("get_config = 1", "defines no get_config"),
        ("def get_config(arg): return {}", r"get_config\('x'\) gives no ConfigDict"),
    ):
        (tmp_path / "broken.py").write_text(text)
        with pytest.raises(UserError, match=message):
            config_file.load(tmp_path / "broken.py", "x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("objective.mask_prob", 0.0),
        ("objective.mask_prob", 1.0),
        ("objective.replace_prob", 1.1),
        ("objective.temperature", 0.0),
        ("steps", 0),
        ("batch_size", -1),
        ("log_every", 0),
        ("checkpoint.every", 0),
        ("data.heldout_fraction", 1.0),
        ("data.mode", "pair"),
        ("data.seq_length", 4),
        ("model.encoder", "gpt"),
        ("model.dtype", "float16"),
        ("model.dropout", 1.0),
        ("model.modernbert.local_window", 0),
        ("optim.b2", 1.0),
    ],
)
def test_check_refuses_what_no_run_can_have(name, value):
    train_config.resolve(small_config())
    with pytest.raises(UserError, match=f"config.{name}={value!r} cannot be; give "):
        train_config.resolve(small_config(**{name: value}))


def test_a_sequence_longer_than_the_position_table_is_refused():
    with pytest.raises(UserError, match=r"seq_length=64 is longer than config\.model\.max_length=32"):
        train_config.resolve(small_config(data__seq_length=64, model__max_length=32))


def test_check_names_every_setting_by_the_name_it_has():
    named = set().union(*(flatten(small_config(arg=f"objective={system}")) for system in registry.SYSTEMS))
    assert set(train_config._CHECKS) <= named


def test_differences_are_named_with_both_values():
    old = {"steps": 3, "model": {"layers": 2, "width": 8}}
    new = {"steps": 4, "model": {"layers": 2, "heads": 1}}
    assert differences(old, new) == [
        "steps: 3 -> 4",
        "model.width: 8 -> None",
        "model.heads: None -> 1",
    ]
    assert differences(old, old) == []
