"""Typed settings: frozen dataclasses whose fields hold everything about a setting.

    @dataclasses.dataclass(frozen=True)
    class OptimConfig:
        learning_rate: float = setting(5e-4, "Peak learning rate.", above(0))

A field holds its type, default, one sentence of documentation, valid values, and whether a resumed run may change it.
Validation, `--help-config` and docs/reference/settings.md all use these fields. Dataclasses nest; a nested setting is
known by its dotted name, `optim.learning_rate`.
"""

import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

from electra_jax.config.errors import UserError

Config = TypeVar("Config")
_METADATA = "electra_jax"
# Columns of text that --help-config prints.
_COLUMNS = 100

# What an error message calls a value of each type.
TYPE_NAMES: Mapping[type, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    tuple: "a list",
}


class Check(NamedTuple):
    """A predicate for valid values, with a description.

    Attributes:
      holds: returns True for a valid value.
      expected: the valid values in words, as in "expected more than 0".
    """

    holds: Callable[[Any], bool]
    expected: str


def above(bound: float) -> Check:
    return Check(lambda value: value > bound, f"more than {bound:g}")


def at_least(bound: float) -> Check:
    return Check(lambda value: value >= bound, f"{bound:g} or more")


def whole(bound: int) -> Check:
    """Requires an integer of any type, such as NumPy's, that is `bound` or more; for arguments of functions."""
    return Check(
        lambda value: isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= bound,
        f"an integer, {bound} or more",
    )


def between(low: float, high: float) -> Check:
    """Requires low < value < high."""
    return Check(lambda value: low < value < high, f"more than {low:g} and less than {high:g}")


def above_up_to(low: float, high: float) -> Check:
    """Requires low < value <= high."""
    return Check(lambda value: low < value <= high, f"more than {low:g}, at most {high:g}")


def from_up_to_below(low: float, high: float) -> Check:
    """Requires low <= value < high."""
    return Check(lambda value: low <= value < high, f"{low:g} or more, less than {high:g}")


def within(low: float, high: float) -> Check:
    """Requires low <= value <= high."""
    return Check(lambda value: low <= value <= high, f"from {low:g} to {high:g}")


def one_of(*values: str) -> Check:
    return Check(lambda value: value in values, " or ".join(values))


class Setting(NamedTuple):
    """One setting of a config class.

    Attributes:
      name: dotted name.
      type: `int`, `float`, `bool` or `str`.
      default: value in a config that does not set it.
      doc: one sentence.
      check: the valid values; None: all values of the type.
      resumable: whether a resumed run may change it.
    """

    name: str
    type: type
    default: Any
    doc: str
    check: Check | None
    resumable: bool


def setting(default: Any, doc: str, check: Check | None = None, resumable: bool = False) -> Any:
    """Returns a field for a config dataclass; the arguments are the attributes of `Setting`."""
    return dataclasses.field(default=default, metadata={_METADATA: (doc, check, resumable)})


def settings_of(config_class: type) -> dict[str, Setting]:
    """Returns every setting of a config class by dotted name, including those of nested classes."""
    settings: dict[str, Setting] = {}
    types = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        if dataclasses.is_dataclass(types[field.name]):
            for name, inner in settings_of(types[field.name]).items():
                dotted = f"{field.name}.{name}"
                # The outer class may give other defaults than the nested class has.
                settings[dotted] = inner._replace(name=dotted, default=_value_at(field.default, name))
        else:
            doc, check, resumable = field.metadata[_METADATA]
            settings[field.name] = Setting(field.name, types[field.name], field.default, doc, check, resumable)
    return settings


def _value_at(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens a config to a dict of values by dotted name.

    Args:
      config: a config dataclass, or a nested mapping of the same shape.
      prefix: prepended to every name.
    """
    flat: dict[str, Any] = {}
    for name, value in _items(config):
        # A ConfigDict is not a Mapping.
        if dataclasses.is_dataclass(value) or hasattr(value, "items"):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _items(config: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(config):
        yield from ((field.name, getattr(config, field.name)) for field in dataclasses.fields(config))
    else:
        yield from config.items()


def to_dict(config: Any, omit: Collection[str] = ()) -> dict[str, Any]:
    """Converts a config dataclass to a nested dict that can be serialized as JSON.

    Args:
      config: the dataclass.
      omit: dotted names of settings to leave out.
    """
    return nest({name: value for name, value in flatten(config).items() if name not in omit})


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Builds a nested dict from values by dotted name; the inverse of `flatten`."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(".")
        inner = nested
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return nested


def from_dict(
    config_class: type[Config], values: Any, prefix: str = "config.", optional: Collection[str] = ()
) -> Config:
    """Builds a config dataclass from a nested mapping with the same names; the inverse of `to_dict`.

    Args:
      config_class: the dataclass.
      values: a nested mapping, such as a `ConfigDict` or parsed JSON.
      prefix: prepended to the names in error messages.
      optional: dotted names that may be missing; these settings then have their defaults.

    Raises:
      UserError: a name is unknown or missing, or a value has the wrong type.
    """
    known, given = settings_of(config_class), flatten(values)
    for name in given:
        if name not in known:
            raise UserError(f"{prefix}{name} is unknown{nearest(name, list(known), prefix)}")
    for name in known:
        if name not in given and name not in optional:
            raise UserError(f"{prefix}{name} is missing: expected {TYPE_NAMES[known[name].type]}; add it to the config")
    typed = {name: _typed(known[name], value, prefix) for name, value in given.items()}
    return _build(config_class, typed, "")


def name_in(config: Any, group: str) -> str:
    """Returns the `name` of a group of settings, which selects the other settings of the group.

    Args:
      config: a nested mapping.
      group: `objective` or `task`.

    Raises:
      UserError: the group is not a mapping, or has no name.
    """
    if isinstance(config, str):
        raise UserError(f"config is {config!r}: expected a ConfigDict, such as that of electra_jax.configs.tiny()")
    try:
        name = config[group]["name"]
    except (KeyError, TypeError):
        name = None
    if not isinstance(name, str):
        kind, example = {"objective": ("pre-training", "tiny"), "task": ("fine-tuning", "glue")}[group]
        raise UserError(
            f"config has no {group}.name: expected a {kind} config, such as that of electra_jax.configs.{example}()"
        )
    return name


def _typed(known: Setting, value: Any, prefix: str) -> Any:
    # 1 is a valid number; True is an int to isinstance, but not a number here.
    if known.type is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, known.type) or (known.type is not bool and isinstance(value, bool)):
        raise UserError(f"{prefix}{known.name}={value!r} is invalid: expected {TYPE_NAMES[known.type]}")
    return value


def _build(config_class: type[Config], values: Mapping[str, Any], prefix: str) -> Config:
    types = typing.get_type_hints(config_class)
    given: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type] # always a dataclass
        name = prefix + field.name
        if dataclasses.is_dataclass(types[field.name]):
            given[field.name] = _build(types[field.name], values, f"{name}.")
        # An optional setting may be missing; its field has the default.
        elif name in values:
            given[field.name] = values[name]
    return config_class(**given)


def replace(config: Config, changes: Mapping[str, Any]) -> Config:
    """Returns a copy of a config with some values replaced, by dotted name."""
    return from_dict(type(config), {**flatten(config), **changes})


def validate(config: Any, prefix: str = "config.") -> None:
    """Raises UserError for the first setting of a config dataclass that has an invalid value."""
    known = settings_of(type(config))
    for name, value in flatten(config).items():
        check_value(prefix + name, value, known[name].check)


def check_value(name: str, value: Any, check: Check | None) -> None:
    """Raises UserError unless `value` is valid; the message calls it `name`."""
    if check is not None and not check.holds(value):
        raise UserError(f"{name}={value!r} is invalid: expected {check.expected}")


def check_effects(config: Any, effects: Iterable[tuple[str, bool, str]], prefix: str = "config.") -> None:
    """Raises UserError for the first setting of a config dataclass that is not at its default and has no effect.

    Args:
      config: the dataclass.
      effects: (the setting's dotted name, whether it has an effect, why it has none); read until one is refused.
      prefix: prepended to the name in the message.
    """
    known, values = settings_of(type(config)), flatten(config)
    for name, has_effect, why in effects:
        if not has_effect and values[name] != known[name].default:
            raise UserError(
                f"{prefix}{name}={values[name]} has no effect {why}; leave it out, or set it to {known[name].default!r}"
            )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Returns "OLD -> NEW" by dotted name, for each setting that differs between two nested mappings."""
    before, after = flatten(old), flatten(new)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: f"{before.get(name)!r} -> {after.get(name)!r}" for name in names}


def nearest(name: str, names: Sequence[str], prefix: str) -> str:
    """Returns the end of a message about an unknown name: a suggestion of the most similar name, if there is one."""
    # The last parts are compared: equal groups would make any two names similar.
    group, _, last = name.rpartition(".")
    similar = get_close_matches(last, {other.rpartition(".")[2] for other in names}, n=1)
    found = [other for other in names if other.rpartition(".")[2] in similar]

    def closeness(other: str) -> tuple[float, int]:
        return SequenceMatcher(None, group, other.rpartition(".")[0]).ratio(), -len(other)

    best = max(found, key=closeness, default="")
    return f"; did you mean {prefix}{best}?" if best else ""


def describe(config_class: type, prefix: str = "--config.") -> str:
    """Formats all settings for `--help-config`: default, valid values and documentation, grouped by class."""
    groups: dict[str, list[Setting]] = {}
    for each in settings_of(config_class).values():
        groups.setdefault(each.name.rpartition(".")[0], []).append(each)
    blocks = []
    for group, settings in groups.items():
        heading = f"{prefix}{group}: " if group else ""
        lines = [textwrap.fill(heading + _class_doc(config_class, group), _COLUMNS)]
        for each in settings:
            resume = "; may change on resume" if each.resumable else ""
            first = f"  {prefix}{each.name}={_as_argument(each.default)}  ({_valid(each)}{resume})"
            lines.append(textwrap.fill(first, _COLUMNS, subsequent_indent=" " * 6))
            lines.append(textwrap.fill(each.doc, _COLUMNS, initial_indent=" " * 6, subsequent_indent=" " * 6))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def markdown_table(config_class: type) -> str:
    """Formats all settings as rows of a Markdown table, for docs/reference/settings.md."""
    rows = ["| setting | default | valid | what | resume |", "|---|---|---|---|---|"]
    for each in settings_of(config_class).values():
        default = f"`{_as_argument(each.default)}`" if each.default != "" else ""
        cells = [f"`{each.name}`", default, _valid(each), each.doc, "may change" if each.resumable else ""]
        # A | would end the cell.
        rows.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def _valid(each: Setting) -> str:
    """Describes the type and the valid values of a setting in words."""
    if each.check is None:
        return TYPE_NAMES[each.type]
    return each.check.expected if each.type is str else f"{TYPE_NAMES[each.type]}, {each.check.expected}"


def _as_argument(default: Any) -> str:
    """Formats a default in command-line syntax."""
    return str(default).lower() if isinstance(default, bool) else str(default)


def _class_doc(config_class: type, group: str) -> str:
    """Returns the first docstring line of a config class, or of the class nested in it under a dotted name."""
    for part in filter(None, group.split(".")):
        config_class = typing.get_type_hints(config_class)[part]
    return (inspect.getdoc(config_class) or "").partition("\n")[0]
