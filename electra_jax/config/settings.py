"""Typed settings: frozen dataclasses whose fields say all that there is to say about a setting.

    @dataclasses.dataclass(frozen=True)
    class OptimConfig:
        learning_rate: float = setting(5e-4, "Peak learning rate.", above(0))

A field has a type, a default, a sentence of documentation, the values that are valid, and whether a resumed run may
change it. Validation, `--help-config` and docs/settings.md all read the fields. Dataclasses nest; a nested setting is
known by its dotted name, `optim.learning_rate`.
"""

import dataclasses
import difflib
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from electra_jax.config.errors import UserError

Config = TypeVar("Config")
_METADATA = "electra_jax"


class Check(NamedTuple):
    """What must hold of a value, and the words for it: "expected more than 0"."""

    holds: Callable[[Any], bool]
    expected: str


def above(bound: float) -> Check:
    return Check(lambda value: value > bound, f"more than {bound:g}")


def at_least(bound: float) -> Check:
    return Check(lambda value: value >= bound, f"{bound:g} or more")


def between(low: float, high: float) -> Check:
    """Both ends excluded."""
    return Check(lambda value: low < value < high, f"more than {low:g} and less than {high:g}")


def from_up_to_below(low: float, high: float) -> Check:
    return Check(lambda value: low <= value < high, f"{low:g} or more, less than {high:g}")


def within(low: float, high: float) -> Check:
    """Both ends included."""
    return Check(lambda value: low <= value <= high, f"from {low:g} to {high:g}")


def one_of(*values: str) -> Check:
    return Check(lambda value: value in values, " or ".join(values))


class Setting(NamedTuple):
    """One setting of a config class.

    Attributes:
      name: dotted.
      type: `int`, `float`, `bool` or `str`.
      default: its value where nothing is said.
      doc: one sentence.
      check: which values are valid; None where all of the type are.
      resumable: whether a run that goes on may have another value than it began with.
    """

    name: str
    type: type
    default: Any
    doc: str
    check: Check | None
    resumable: bool


def setting(default: Any, doc: str, check: Check | None = None, resumable: bool = False) -> Any:
    """A field of a config dataclass; the arguments are the attributes of `Setting`."""
    return dataclasses.field(default=default, metadata={_METADATA: (doc, check, resumable)})


def settings_of(config_class: type) -> dict[str, Setting]:
    """Every setting of a config class by its dotted name, those of nested classes included."""
    found: dict[str, Setting] = {}
    types = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        if dataclasses.is_dataclass(types[field.name]):
            for name, each in settings_of(types[field.name]).items():
                nested = f"{field.name}.{name}"
                default = _at(field.default, name)
                found[nested] = each._replace(name=nested, default=default)
        else:
            doc, check, resumable = field.metadata[_METADATA]
            found[field.name] = Setting(field.name, types[field.name], field.default, doc, check, resumable)
    return found


def _at(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """The settings of a config by their dotted names.

    Args:
      config: a config dataclass, or a nested mapping of the same shape.
      prefix: put before every name.
    """
    found: dict[str, Any] = {}
    for name, value in _items(config):
        if dataclasses.is_dataclass(value) or isinstance(value, Mapping) or hasattr(value, "items"):
            found |= flatten(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _items(config: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(config):
        yield from ((field.name, getattr(config, field.name)) for field in dataclasses.fields(config))
    else:
        yield from config.items()


def to_dict(config: Any, omit: Collection[str] = ()) -> dict[str, Any]:
    """A config dataclass as a nested dict that JSON can hold.

    Args:
      config: the dataclass.
      omit: dotted names of settings to leave out.
    """
    nested: dict[str, Any] = {}
    for name, value in flatten(config).items():
        if name not in omit:
            *parents, last = name.split(".")
            place = nested
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
    return nested


def from_dict(
    config_class: type[Config], values: Any, prefix: str = "config.", optional: Collection[str] = ()
) -> Config:
    """A config dataclass from a nested mapping with the same names; the inverse of `to_dict`.

    Args:
      config_class: the dataclass.
      values: a nested mapping, such as a `ConfigDict` or what JSON gives.
      prefix: what people write before the names.
      optional: dotted names that may be missing; such a setting has its default.

    Raises:
      UserError: a name is unknown or missing, or a value has another type.
    """
    known, given = settings_of(config_class), flatten(values)
    for name in given:
        if name not in known:
            raise UserError(f"{prefix}{name} is unknown{nearest(name, list(known), prefix)}")
    for name in known:
        if name not in given and name not in optional:
            raise UserError(f"{prefix}{name} is missing: expected a {known[name].type.__name__}; {known[name].doc}")
    typed = {name: _typed(known[name], value, prefix) for name, value in given.items()}
    return _build(config_class, typed, "")


def _typed(known: Setting, value: Any, prefix: str) -> Any:
    if known.type is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, known.type) or (known.type is not bool and isinstance(value, bool)):
        raise UserError(f"{prefix}{known.name}={value!r} has another type: expected a {known.type.__name__}")
    return value


def _build(config_class: type[Config], values: Mapping[str, Any], prefix: str) -> Config:
    types = typing.get_type_hints(config_class)
    given: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type] # always a dataclass
        name = prefix + field.name
        if dataclasses.is_dataclass(types[field.name]):
            given[field.name] = _build(types[field.name], values, f"{name}.")
        elif name in values:
            given[field.name] = values[name]
    return config_class(**given)


def replace(config: Config, **changes: Any) -> Config:
    """A copy of a config with other values; `optim__learning_rate=1e-3` changes a nested setting."""
    nested: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for name, value in changes.items():
        first, _, rest = name.partition("__")
        if rest:
            nested.setdefault(first, {})[rest] = value
        else:
            own[first] = value
    own |= {name: replace(getattr(config, name), **inner) for name, inner in nested.items()}
    return dataclasses.replace(config, **own)  # type: ignore[type-var] # always a dataclass


def validate(config: Any, prefix: str = "config.") -> None:
    """Raises UserError at the first setting of a config dataclass whose value is not valid."""
    known = settings_of(type(config))
    for name, value in flatten(config).items():
        check_value(prefix + name, value, known[name].check)


def check_value(name: str, value: Any, check: Check | None) -> None:
    """Raises UserError where `check` does not hold of the value of what is called `name`."""
    if check is not None and not check.holds(value):
        raise UserError(f"{name}={value!r} is invalid: expected {check.expected}")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """`old -> new` for each setting, by its dotted name, that differs between two nested mappings."""
    before, after = flatten(old), flatten(new)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: f"{before.get(name)!r} -> {after.get(name)!r}" for name in names}


def nearest(name: str, names: list[str], prefix: str) -> str:
    """What to add to a message about an unknown name: "; did you mean" the most similar one."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    same_ending = [other for other in names if other.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    return f"; did you mean {prefix}{(same_ending or close)[0]}?"


def describe(config_class: type, prefix: str = "--config.") -> str:
    """Two lines for each setting, for `--help-config`: name, default and valid values; then the sentence about it."""
    lines = []
    for name, each in settings_of(config_class).items():
        valid = f", {each.check.expected}" if each.check else ""
        resumable = ", may change on resume" if each.resumable else ""
        lines.append(f"{prefix}{name}={each.default}  ({each.type.__name__}{valid}{resumable})\n    {each.doc}")
    return "\n".join(lines)
