"""Command lines of `--name=value`."""

import ast
import math
from collections.abc import Iterable, Mapping
from typing import Any

from electra_jax.config.errors import UserError
from electra_jax.config.settings import nearest


def read(
    argv: list[str], usage: str, options: Mapping[str, Any], words: list[str] | None = None
) -> dict[str, str] | None:
    """The text given for each option; prints `usage` for --help.

    An option whose default is False needs no value. One whose default is a tuple takes several, as words or
    separated by commas, and gives them separated by newlines.

    Args:
      argv: the arguments.
      usage: what --help prints.
      options: the command's options with their defaults.
      words: a list that arguments without a name are appended to; None: they are errors.

    Returns:
      The text of each option that was given; None after --help.

    Raises:
      UserError: an argument that is not `--name=value`.
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
            raise UserError(f"argument {name!r} is not an option: expected --name=value, see --help")
        if not equals and options.get(name[2:]) is False:
            value = "true"
        elif not equals:
            if not rest or rest[0].startswith("--"):
                raise UserError(f"{name} has no value: expected {name}=VALUE")
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
    """Each option's value, of the type of its default; `others` are further names that may be given.

    Raises:
      UserError: an unknown name, or a value of another type.
    """
    known = [*others, *options]
    for name in given:
        if name not in known:
            raise UserError(f"--{name} is unknown{nearest(name, [*known, 'debug', 'help'], '--')}")
    return {name: typed(f"--{name}", given.get(name), default) for name, default in options.items()}


def typed(name: str, text: str | None, default: Any) -> Any:
    """`text` as a value of the type of `default`; `default` where there is no text."""
    if text is None:
        return default
    value = _value(text, type(default))
    if value is None:
        raise UserError(f"{name}={text} has another type: expected a {type(default).__name__}, such as {default!r}")
    return value


def _value(text: str, kind: type) -> Any:
    """None where `text` is not of that type."""
    if kind is str:
        return text
    if kind is tuple:
        return tuple(filter(None, text.split("\n")))
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # whatever the text is
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if kind is int:
        return int(value) if value == int(value) else None  # 1e5 is an integer
    return float(value)


def require(chosen: Mapping[str, Any], names: Iterable[str], advice: str = "see --help") -> None:
    """Raises UserError at the first of `names` that was not given."""
    for name in names:
        if not chosen[name]:
            raise UserError(f"--{name} is missing; {advice}")
