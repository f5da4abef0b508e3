"""Command lines of `--name=value`, and what a setting's value can be. Nothing here knows of configs."""

import ast
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from electra_jax.errors import UserError

Check = tuple[Callable[[Any], bool], str]  # what must hold of a value, and how to say it


def read(
    argv: list[str], usage: str, options: Mapping[str, Any], words: list[str] | None = None
) -> dict[str, str] | None:
    """The text given for each name; an option whose default is False needs none, one whose default is a tuple takes
    several, as words or with commas between, and gives them with newlines between. Prints `usage` for --help.

    Args:
      argv: the arguments.
      usage: what --help prints.
      options: those of the command, with their defaults.
      words: where it is given, arguments without a name are allowed and put there.

    Raises:
      UserError: an argument that is no `--name=value`.
    """
    if any(arg in ("-h", "--help") for arg in argv):
        print(usage)
        return None
    given: dict[str, str] = {}
    rest = list(argv)
    while rest:
        if words is not None and not rest[0].startswith("--"):
            words.append(rest.pop(0))
            continue
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("--"):
            raise UserError(f"argument {name!r} is not understood; arguments look like --name=value, see --help")
        if not equals and options.get(name[2:]) is False:
            value = "true"
        elif not equals:
            if not rest or rest[0].startswith("--"):
                raise UserError(f"{name} lacks a value; write {name}=VALUE")
            value = rest.pop(0)
        if isinstance(options.get(name[2:]), tuple):
            several = [each for each in value.split(",") if each]
            while rest and not rest[0].startswith("--"):
                several.append(rest.pop(0))
            value = "\n".join(several)
        if name[2:] in given and not name.startswith("--config."):
            raise UserError(f"{name} is given twice; give it once")
        given[name[2:]] = value
    return given


def parse(
    argv: list[str], usage: str, options: Mapping[str, Any], words: list[str] | None = None
) -> dict[str, Any] | None:
    """`choose` of what `read` gives; None after --help."""
    given = read(argv, usage, options, words)
    return None if given is None else choose(given, options)


def choose(given: Mapping[str, str], options: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """Each option's value, of the type of its default; `others` may be given too.

    Raises:
      UserError: a name that is neither, or a value of another type.
    """
    known = [*others, *options]
    for name in given:
        if name not in known:
            raise UserError(f"--{name} is unknown{nearest(name, [*known, 'debug', 'help'], '--')}")
    return {name: typed(f"--{name}", given.get(name), default) for name, default in options.items()}


def typed(name: str, text: str | None, default: Any) -> Any:
    """`text` as a value of the type that `default` has; `default` where there is no text."""
    if text is None:
        return default
    value = _value(text, type(default))
    if value is None:
        raise UserError(f"{name}={text} is no {type(default).__name__}; it is {default!r} now")
    return value


def _value(text: str, kind: type) -> Any:
    if kind is str:
        return text
    if kind is tuple:
        return tuple(filter(None, text.split("\n")))
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # of the text, whatever it is
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if kind is int:
        return int(value) if value == int(value) else None  # 1e5 is a whole number
    return float(value)


def nearest(name: str, names: list[str], prefix: str) -> str:
    """What to add to a message about an unknown name: the one that was most likely meant."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    tail = [other for other in names if other.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    return f"; did you mean {prefix}{(tail or close)[0]}?"


def require(chosen: Mapping[str, Any], names: Iterable[str], way_out: str = "see --help") -> None:
    """Raises UserError at the first of `names` that was not given."""
    for name in names:
        if not chosen[name]:
            raise UserError(f"--{name} is missing; {way_out}")


def above(bound: float) -> Check:
    return lambda value: value > bound, f"more than {bound:g}"


def at_least(bound: float) -> Check:
    return lambda value: value >= bound, f"{bound:g} or more"


def between(low: float, high: float) -> Check:
    return lambda value: low < value < high, f"more than {low:g} and less than {high:g}"


def within(low: float, high: float) -> Check:
    return lambda value: low <= value <= high, f"from {low:g} to {high:g}"


def one_of(*values: str) -> Check:
    return lambda value: value in values, " or ".join(values)


def check(values: Mapping[str, Any], checks: Mapping[str, Check], prefix: str) -> None:
    """Raises UserError at the first of `values` that cannot be; `prefix` and its name are what a person knows it by."""
    for name, (holds, wanted) in checks.items():
        if name in values and not holds(values[name]):
            raise UserError(f"{prefix}{name}={values[name]!r} cannot be; give {wanted}")
