import pytest

from electra_jax.config import cli
from electra_jax.config.errors import UserError


@pytest.mark.parametrize(
    ("text", "default", "value"),
    [("1e5", 3, 100_000), ("2", 0.5, 2.0), ("true", False, True), ("0", True, False), ("a=b", "x", "a=b")],
)
def test_a_text_becomes_a_value_of_the_type_of_the_default(text, default, value):
    assert cli.convert("--x", text, default) == value
    assert type(cli.convert("--x", text, default)) is type(value)


@pytest.mark.parametrize(
    ("text", "default"),
    [
        ("1.5", 3),
        ("many", 3),
        ("True", 3),
        ("maybe", True),
        ("[1]", 0.5),
        ("1e999", 3),
        ("1e999", 0.5),
        ("9" * 400, 3),
        ("9" * 400, 0.5),
        ("9" * 5000, 3),
        ("{[]: 1}", 3),
        ("(" * 999, 3),
    ],
)
def test_a_text_of_another_type_is_refused(text, default):
    expected = {int: "an integer", float: "a number", bool: "true or false"}[type(default)]
    with pytest.raises(UserError, match=rf"--x=.* is invalid: expected {expected}, such as {default}"):
        cli.convert("--x", text, default)


def test_a_value_follows_an_equals_sign_or_is_the_next_word():
    options = {"input": "", "steps": 3, "json": False}
    given = cli.read(["--input", "a b", "--json", "--steps=4"], "", options)
    assert cli.choose(given, options) == {"input": "a b", "steps": 4, "json": True}
    assert cli.choose({}, options) == options
    assert cli.parse(["--steps=4"], "", options) == {"input": "", "steps": 4, "json": False}


@pytest.mark.parametrize(
    "argv", [["--runs", "a", "b", "--json"], ["--runs=a,b", "--json"], ["--runs=a", "b", "--json"]]
)
def test_an_option_can_take_several_values(argv):
    options = {"runs": (), "json": False}
    assert cli.parse(argv, "", options) == {"runs": ("a", "b"), "json": True}
    assert cli.choose({}, options)["runs"] == ()


def test_the_last_value_of_a_config_setting_counts():
    assert cli.read(["--config.x=1", "--config.x=2"], "", {}) == {"config.x": "2"}


def test_values_of_a_list_are_separated_by_spaces_or_commas():
    assert cli.parse(["--x=a,b", "c,d", "--y", "e"], "", {"x": (), "y": ()}) == {"x": ("a", "b", "c", "d"), "y": ("e",)}


def test_words_are_arguments_without_a_name():
    words: list[str] = []
    assert cli.read(["a b", "--x=1", "-c", "--y", "2", "d"], "", {}, words) == {"x": "1", "y": "2"}
    assert words == ["a b", "-c", "d"]


def test_help_is_the_usage(capsys):
    with pytest.raises(SystemExit):
        cli.read(["--x=1", "-h"], "how to use it", {})
    assert capsys.readouterr().out == "how to use it\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["data"], "argument 'data' is not an option: expected --name=value; see --help"),
        (["--input"], "--input has no value: expected --input=VALUE"),
        (["--input", "--json"], "--input has no value"),
        (["--input=a", "--input=b"], "--input is given twice; give it once"),
        (["--inptu=x"], "--inptu is unknown; did you mean --input?"),
        (["--hlep=x"], "did you mean --help?"),
    ],
)
def test_a_wrong_argument_is_refused(argv, message):
    with pytest.raises(UserError) as error:
        cli.parse(argv, "", {"input": "", "json": False})
    assert message in str(error.value)


def test_an_option_can_be_required():
    cli.require({"a": "x", "b": ("y",), "c": ""}, ("a", "b"))
    with pytest.raises(UserError, match="--c is missing; see --help"):
        cli.require({"a": "x", "c": ""}, ("a", "c"))
    with pytest.raises(UserError, match="--c is missing; try --c=x"):
        cli.require({"c": ()}, ("c",), "try --c=x")
