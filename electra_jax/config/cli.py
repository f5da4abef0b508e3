"""Parses command lines of `--name=value` arguments."""

import ast
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from electra_jax.config.errors import UserError
from electra_jax.config.settings import TYPE_NAMES, nearest


def read(argv: list[str], usage: str, options: Mapping[str, Any], words: list[str] | None = None) -> dict[str, str]:
    """Returns the text given for each option, unconverted.

    An option whose default is False needs no value. An option whose default is a tuple takes several values, separated
    by spaces or commas; its text has them separated by newlines.

    Args:
      argv: the arguments.
      usage: what --help prints.
      options: the command's options with their defaults.
      words: a list that positional arguments are appended to; None: they are errors.

    Returns:
      The text of each option that was given.

    Raises:
      SystemExit: --help was given; `usage` has been printed.
      UserError: an argument is not `--name=value`, an option has no value, or an option other than a setting
        (`--config.NAME`) is given twice.
    """
    if any(arg in ("-h", "--help") for arg in argv):
        print(usage)
        raise SystemExit
    given: dict[str, str] = {}
    rest = list(argv)
    while rest:
        if words is not None and not rest[0].startswith("--"):
            words.append(rest.pop(0))
            continue
        argument, equals, value = rest.pop(0).partition("=")
        if not argument.startswith("--"):
            raise UserError(f"argument {argument!r} is not an option: expected --name=value; see --help")
        name = argument.removeprefix("--")
        if not equals:
            value = "true" if options.get(name) is False else _next_value(argument, rest)
        if isinstance(options.get(name), tuple):
            value = "\n".join(part for word in (value, *_following_values(rest)) for part in word.split(",") if part)
        # The last value of a repeated setting counts, so a command can be extended.
        if name in given and not name.startswith("config."):
            raise UserError(f"--{name} is given twice; give it once")
        given[name] = value
    return given


def _next_value(argument: str, rest: list[str]) -> str:
    if not rest or rest[0].startswith("--"):
        raise UserError(f"{argument} has no value: expected {argument}=VALUE")
    return rest.pop(0)


def _following_values(rest: list[str]) -> Iterable[str]:
    while rest and not rest[0].startswith("--"):
        yield rest.pop(0)


def parse(argv: list[str], usage: str, options: Mapping[str, Any], words: list[str] | None = None) -> dict[str, Any]:
    """Reads and converts the value of each option: `choose` after `read`."""
    return choose(read(argv, usage, options, words), options)


def choose(given: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the value of each option: the given text converted to the type of the default, or the default.

    Args:
      given: the text of each given option.
      options: the command's options with their defaults.

    Raises:
      UserError: a name is unknown, or a value has the wrong type.
    """
    for name in given:
        if name not in options:
            raise UserError(f"--{name} is unknown{nearest(name, [*options, 'debug', 'help'], '--')}")
    return {
        name: convert(f"--{name}", given[name], default) if name in given else default
        for name, default in options.items()
    }


def choose_one(options: Mapping[str, Any], first: str, second: str) -> str:
    """Returns the name of whichever option is given; `first` if neither is.

    Raises:
      UserError: both are given.
    """
    if options[first] and options[second]:
        raise UserError(f"--{first} and --{second} were both given: expected one of them")
    return second if options[second] else first


def convert(name: str, text: str, default: Any) -> Any:
    """Converts `text` to the type of `default`.

    Raises:
      UserError: `text` is not of that type; the message calls it `name`.
    """
    value = _value(text, type(default))
    if value is None:
        raise UserError(f"{name}={text} is invalid: expected {TYPE_NAMES[type(default)]}, such as {default!r}")
    return value


def _value(text: str, kind: type) -> Any:
    """Converts `text` to type `kind`; returns None if it is not a value of that type."""
    if kind is str:
        return text
    if kind is tuple:
        return tuple(filter(None, text.split("\n")))
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    try:
        value = ast.literal_eval(text)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
    # What literal_eval raises depends on the text; integers of more than 308 digits overflow a float.
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, OverflowError):
        return None
    if kind is int:
        # 1e5 is an integer.
        return int(value) if value == int(value) else None
    return float(value)


def require(chosen: Mapping[str, Any], names: Iterable[str], advice: str = "see --help") -> None:
    """Raises UserError for the first of `names` that was not given."""
    for name in names:
        if not chosen[name]:
            raise UserError(f"--{name} is missing; {advice}")


def check_output_file(output: Path, example: str) -> None:
    """Raises UserError if `--output` is not the name of a file, such as `example`, that can be written."""
    if output.is_dir():
        raise UserError(f"--output={output} is a folder: expected a file, such as {output / example}")
    # `write_whole` would replace a device.
    if output.exists() and not output.is_file():
        raise UserError(f"--output={output} is not a regular file: expected one, such as {example}")
    if not output.parent.is_dir():
        raise UserError(f"the folder {output.parent} of --output does not exist; create it, or give another")
