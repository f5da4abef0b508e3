import pytest

from electra_jax.config import cli
from electra_jax.config.errors import UserError


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [("1e5", 3, 100_000), ("2", 0.5, 2.0), ("true", False, True), ("0", True, False), ("a=b", "x", "a=b")],
)
def test_values_are_read_as_the_type_the_default_has(text, old, new):
    assert cli.typed("--x", text, old) == new
    assert type(cli.typed("--x", text, old)) is type(new)
    assert cli.typed("--x", None, old) == old


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("1.5", 3),
        ("many", 3),
        ("True", 3),
        ("maybe", True),
        ("[1]", 0.5),
        ("1e999", 3),
        ("1e999", 0.5),
        ("{[]: 1}", 3),
        ("(" * 999, 3),
    ],
)
def test_values_of_another_type_are_refused(text, old):
    with pytest.raises(UserError, match=rf"--x=.* is no {type(old).__name__}; it is {old} now"):
        cli.typed("--x", text, old)


def test_arguments_with_and_without_an_equals_sign():
    options = {"input": "", "steps": 3, "json": False}
    given = cli.read(["--input", "a b", "--json", "--steps=4"], "", options)
    assert cli.choose(given, options) == {"input": "a b", "steps": 4, "json": True}
    assert cli.choose({}, options) == options


@pytest.mark.parametrize(
    "argv", [["--runs", "a", "b", "--json"], ["--runs=a,b", "--json"], ["--runs=a", "b", "--json"]]
)
def test_an_option_can_take_several_words(argv):
    options = {"runs": (), "json": False}
    assert cli.choose(cli.read(argv, "", options), options) == {"runs": ("a", "b"), "json": True}
    assert cli.choose({}, options)["runs"] == ()


def test_of_settings_of_a_config_the_last_counts():
    assert cli.read(["--config.x=1", "--config.x=2"], "", {}) == {"config.x": "2"}


def test_words_are_arguments_without_a_name():
    words: list[str] = []
    assert cli.read(["a b", "--x=1", "-c", "--y", "2", "d"], "", {}, words) == {"x": "1", "y": "2"}
    assert words == ["a b", "-c", "d"]
    with pytest.raises(UserError, match="argument 'a' is not understood"):
        cli.read(["a"], "", {})


def test_help_is_the_usage(capsys):
    assert cli.read(["--x=1", "-h"], "how to use it", {}) is None
    assert capsys.readouterr().out == "how to use it\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["data"], "argument 'data' is not understood; arguments look like --name=value, see --help"),
        (["--input"], "--input lacks a value; write --input=VALUE"),
        (["--input", "--json"], "--input lacks a value"),
        (["--input=a", "--input=b"], "--input is given twice; give it once"),
        (["--inptu=x"], "--inptu is unknown; did you mean --input?"),
    ],
)
def test_what_cannot_be_read_is_refused(argv, message):
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        cli.choose(cli.read(argv, "", {"input": "", "json": False}), {"input": "", "json": False})


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (cli.above(0), [1, 0.1], [0, -1]),
        (cli.at_least(0), [0, 2], [-1]),
        (cli.between(0, 1), [0.5], [0, 1]),
        (cli.within(0, 1), [0, 0.5, 1], [-0.1, 1.1]),
        (cli.one_of("a", "b"), ["a", "b"], ["c", ""]),
    ],
)
def test_checks(check, good, bad):
    for value in good:
        cli.check({"x": value, "y": None}, {"x": check, "z": check}, "--")
    for value in bad:
        with pytest.raises(UserError, match=r"--x=.* cannot be; give "):
            cli.check({"x": value}, {"x": check}, "--")


def test_what_is_required_is_said_with_a_way_out():
    cli.require({"a": "x", "b": ("y",), "c": ""}, ("a", "b"))
    with pytest.raises(UserError, match="--c is missing; see --help"):
        cli.require({"a": "x", "c": ""}, ("a", "c"))
    with pytest.raises(UserError, match="--c is missing; try --c=x"):
        cli.require({"c": ()}, ("c",), "try --c=x")
