import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_collections import ConfigDict

from electra_jax.config import settings
from electra_jax.config.errors import UserError
from electra_jax.config.settings import above, above_up_to, at_least, between, from_up_to_below, one_of, setting, within


@dataclasses.dataclass(frozen=True)
class Inner:
    """How layers are made.

    More about it.
    """

    depth: int = setting(2, "Layers.", above(0))
    kind: str = setting("plain", "Kind of layer: a|b.", one_of("plain", "gated"))


@dataclasses.dataclass(frozen=True)
class Middle:
    """A network."""

    inner: Inner = Inner(depth=5)
    rate: float = setting(0.5, "Dropout rate.", from_up_to_below(0, 1))


@dataclasses.dataclass(frozen=True)
class Outer:
    """A run."""

    steps: int = setting(10, "Steps.", above(0), resumable=True)
    model: Middle = Middle()
    fast: bool = setting(False, "Whether to hurry.")
    name: str = setting("", "Any name.")


NESTED = {
    "steps": 10,
    "model": {"inner": {"depth": 5, "kind": "plain"}, "rate": 0.5},
    "fast": False,
    "name": "",
}
FLAT = {
    "steps": 10,
    "model.inner.depth": 5,
    "model.inner.kind": "plain",
    "model.rate": 0.5,
    "fast": False,
    "name": "",
}

configs = st.builds(
    Outer,
    st.integers(),
    st.builds(Middle, st.builds(Inner, st.integers(), st.text()), st.floats(allow_nan=False, allow_infinity=False)),
    st.booleans(),
    st.text(),
)


@pytest.mark.parametrize(
    ("check", "valid", "invalid", "expected"),
    [
        (above(0), [1, 0.1], [0, -1], "more than 0"),
        (at_least(0), [0, 2], [-1], "0 or more"),
        (between(0, 1), [0.5], [0, 1], "more than 0 and less than 1"),
        (above_up_to(0, 1), [0.5, 1], [0, 1.1], "more than 0, at most 1"),
        (from_up_to_below(0, 1), [0, 0.5], [-0.1, 1], "0 or more, less than 1"),
        (within(0, 1), [0, 0.5, 1], [-0.1, 1.1], "from 0 to 1"),
        (one_of("a", "b"), ["a", "b"], ["c", ""], "a or b"),
    ],
)
def test_checks(check, valid, invalid, expected):
    for value in valid:
        settings.check_value("--x", value, check)
    for value in invalid:
        with pytest.raises(UserError) as error:
            settings.check_value("--x", value, check)
        assert str(error.value) == f"--x={value!r} is invalid: expected {expected}"
    settings.check_value("--x", object(), None)


def test_nan_is_never_valid():
    for check in (above(0), above_up_to(0, 1), at_least(0), between(0, 1), from_up_to_below(0, 1), within(0, 1)):
        assert not check.holds(float("nan"))


def test_settings_have_dotted_names_and_the_defaults_of_the_class_around_them():
    known = settings.settings_of(Outer)
    assert {name: each.default for name, each in known.items()} == FLAT
    assert [each.name for each in known.values()] == list(FLAT)
    depth = known["model.inner.depth"]
    assert (depth.type, depth.doc, depth.check.expected, depth.resumable) == (int, "Layers.", "more than 0", False)
    assert [name for name, each in known.items() if each.resumable] == ["steps"]
    assert known["fast"].check is None


def test_flatten_takes_a_dataclass_a_dict_and_a_config_dict():
    for config in (Outer(), NESTED, ConfigDict(NESTED)):
        assert settings.flatten(config) == FLAT
    assert list(settings.flatten(Inner(), "x.")) == ["x.depth", "x.kind"]


def test_to_dict_nests_by_name_and_can_omit_settings():
    assert settings.to_dict(Outer()) == NESTED
    without = settings.to_dict(Outer(), omit=("model.inner.kind", "name"))
    assert without == {"steps": 10, "model": {"inner": {"depth": 5}, "rate": 0.5}, "fast": False}


@given(configs)
def test_from_dict_inverts_to_dict(config):
    nested = settings.to_dict(config)
    assert settings.from_dict(Outer, nested) == config
    assert settings.from_dict(Outer, json.loads(json.dumps(nested))) == config
    assert settings.from_dict(Outer, ConfigDict(nested)) == config


def test_an_integer_is_a_number_too():
    config = settings.from_dict(Outer, {**NESTED, "model": {**NESTED["model"], "rate": 0}})
    assert isinstance(config.model.rate, float)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stps": 1}, "config.stps is unknown; did you mean config.steps?"),
        ({"depth": 1}, "config.depth is unknown; did you mean config.model.inner.depth?"),
        ({"model": 3}, "config.model is unknown"),
        ({"steps": {"x": 1}}, "config.steps.x is unknown"),
        ({"steps": 1.0}, "config.steps=1.0 is invalid: expected an integer"),
        ({"steps": True}, "config.steps=True is invalid: expected an integer"),
        ({"steps": None}, "config.steps=None is invalid: expected an integer"),
        ({"fast": 1}, "config.fast=1 is invalid: expected true or false"),
        ({"name": 1}, "config.name=1 is invalid: expected a string"),
        (
            {"model": {**NESTED["model"], "rate": "x"}},
            "config.model.rate='x' is invalid: expected a number",
        ),
        ({"model": {"rate": 0.1}}, "config.model.inner.depth is missing: expected an integer; add it to the config"),
    ],
)
def test_from_dict_refuses_unknown_missing_and_mistyped_settings(changes, message):
    with pytest.raises(UserError) as error:
        settings.from_dict(Outer, {**NESTED, **changes})
    assert message in str(error.value)


def test_a_setting_may_be_optional_and_the_prefix_is_the_callers():
    config = settings.from_dict(Inner, {"depth": 3}, optional=("kind",))
    assert config == Inner(depth=3)
    with pytest.raises(UserError, match="--kind is missing: expected a string"):
        settings.from_dict(Inner, {"depth": 3}, prefix="--")


def test_replace_changes_nested_settings():
    config = settings.replace(Outer(), {"steps": 3, "model.inner.depth": 1, "model.rate": 0.0})
    assert settings.flatten(config) == {**FLAT, "steps": 3, "model.inner.depth": 1, "model.rate": 0.0}
    with pytest.raises(UserError, match="stps is unknown"):
        settings.replace(Outer(), {"stps": 3})


def test_validate_names_the_first_invalid_setting():
    settings.validate(Outer())
    bad = settings.replace(Outer(), {"model.inner.depth": 0})
    with pytest.raises(UserError, match=r"^config\.model\.inner\.depth=0 is invalid: expected more than 0$"):
        settings.validate(bad)
    with pytest.raises(UserError, match=r"^--depth=0 is invalid"):
        settings.validate(bad.model.inner, "--")


def test_differences_show_both_values():
    old = {"steps": 3, "model": {"layers": 2, "width": 8}}
    new = {"steps": 4, "model": {"layers": 2, "heads": 1}}
    assert settings.differences(old, new) == {
        "steps": "3 -> 4",
        "model.width": "8 -> None",
        "model.heads": "None -> 1",
    }
    assert settings.differences(old, old) == {}


def test_nearest_prefers_the_same_last_part():
    names = ["optim.learning_rate", "learning", "steps"]
    assert settings.nearest("learning_rate", names, "--") == "; did you mean --optim.learning_rate?"
    assert settings.nearest("stps", names, "") == "; did you mean steps?"
    assert settings.nearest("x", [], "") == ""
    assert settings.nearest("color", names, "") == ""  # nothing is similar


def test_describe():
    assert settings.describe(Outer).splitlines() == [
        "A run.",
        "  --config.steps=10  (an integer, more than 0; may change on resume)",
        "      Steps.",
        "  --config.fast=false  (true or false)",
        "      Whether to hurry.",
        "  --config.name=  (a string)",
        "      Any name.",
        "",
        "--config.model.inner: How layers are made.",
        "  --config.model.inner.depth=5  (an integer, more than 0)",
        "      Layers.",
        "  --config.model.inner.kind=plain  (plain or gated)",
        "      Kind of layer: a|b.",
        "",
        "--config.model: A network.",
        "  --config.model.rate=0.5  (a number, 0 or more, less than 1)",
        "      Dropout rate.",
    ]


def test_markdown_table():
    assert settings.markdown_table(Outer).splitlines() == [
        "| setting | default | valid | what | resume |",
        "|---|---|---|---|---|",
        "| `steps` | `10` | an integer, more than 0 | Steps. | may change |",
        "| `model.inner.depth` | `5` | an integer, more than 0 | Layers. |  |",
        "| `model.inner.kind` | `plain` | plain or gated | Kind of layer: a&#124;b. |  |",
        "| `model.rate` | `0.5` | a number, 0 or more, less than 1 | Dropout rate. |  |",
        "| `fast` | `false` | true or false | Whether to hurry. |  |",
        "| `name` |  | a string | Any name. |  |",
    ]
