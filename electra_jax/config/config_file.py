"""Config files: Python files with `get_config(arg) -> ConfigDict`, loaded by name or path, overridden by name.

`--config=base:runlocal` calls `get_config("runlocal")` of the packaged configs/base.py; `--config=my/run.py` that of a
file of one's own. `--config.model.layers=3` overrides a setting.
"""

import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from electra_jax.config import cli
from electra_jax.config.errors import UserError
from electra_jax.config.settings import flatten, nearest

PACKAGED = Path(__file__).parents[1] / "configs"
_KINDS = {"objective": "pre-training: --config=tiny", "task": "fine-tuning: --config=glue:task=cola"}


class Arguments(NamedTuple):
    """A parsed command line.

    Attributes:
      config: the config with its overrides; None where none was given and the command needs none.
      workdir: `--workdir`, or runs/NAME after the config.
      options: the command's other options.
    """

    config: ConfigDict | None
    workdir: str
    options: dict[str, Any]


def parse(
    argv: list[str],
    usage: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    shorthands: Sequence[str] = (),
    kind: str = "objective",
) -> Arguments | None:
    """Parses `--config=NAME[:ARG] [--workdir=DIR] [--config.NAME=VALUE ...]`; prints `usage` for --help.

    Args:
      argv: the arguments.
      usage: what --help prints.
      options: further options of the command with their defaults. With `config` among them the config may be left out.
      shorthands: settings that may be given without `config.` before them.
      kind: the setting that the config must have: `objective` for pre-training, `task` for fine-tuning.

    Returns:
      The parsed arguments; None after --help.

    Raises:
      UserError: an argument, file or setting that does not exist, or a value of another type.
    """
    given = cli.read(argv, usage, options)
    if given is None:
        return None
    given = {f"config.{name}" if name in shorthands else name: value for name, value in given.items()}
    overrides = {name: given.pop(name) for name in list(given) if name.startswith("config.")}
    chosen = cli.choose(given, options, "config", "workdir")
    if not given.get("config"):
        if "config" not in options or overrides:
            raise UserError(f"--config is missing: expected a config of {_KINDS[kind]}")
        return Arguments(None, "runs", chosen)
    name, _, arg = given["config"].partition(":")
    config = load(name, arg)
    if kind not in config:
        raise UserError(f"--config={given['config']} is of another kind: expected a config of {_KINDS[kind]}")
    for setting, value in overrides.items():
        override(config, setting.removeprefix("config."), value)
    # Another objective is another run: runs/tiny, runs/tiny-mlm.
    run = "-".join([Path(name).stem, *(part.rpartition("=")[2] for part in arg.split(",") if part)])
    return Arguments(config, given.get("workdir") or f"runs/{run}", chosen)


def load(name: str | Path, arg: str = "") -> ConfigDict:
    """The config that a file gives for `arg`.

    Args:
      name: the path of a Python file, or the name of a packaged config such as `tiny`.
      arg: what `get_config` is called with.

    Raises:
      UserError: there is no such file, it does not run, or it returns no ConfigDict.
    """
    path = Path(name)
    if not path.is_file() and not path.suffix and (PACKAGED / f"{path}.py").is_file():
        path = PACKAGED / f"{path}.py"
    if not path.is_file():
        names = ", ".join(sorted(each.stem for each in PACKAGED.glob("[!_]*.py")))
        raise UserError(f"config {name} does not exist: expected the path of a Python file, or one of {names}")
    try:
        module = runpy.run_path(str(path))
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"config file {path} fails with {type(error).__name__}: {error}; see configs/tiny.py for an example, and "
            "--debug for the line"
        ) from error
    if not callable(module.get("get_config")):
        raise UserError(f"config file {path} defines no get_config(arg); see configs/tiny.py for an example")
    config = module["get_config"](arg)
    if not isinstance(config, ConfigDict):
        raise UserError(
            f"config file {path}: get_config({arg!r}) returns a {type(config).__name__}: expected a ConfigDict; see "
            "configs/tiny.py for an example"
        )
    return config


def override(config: ConfigDict, name: str, text: str) -> None:
    """Sets `config.NAME` to `text`, read as the type that the setting has.

    Raises:
      UserError: there is no such setting, or `text` is of another type.
    """
    settings = flatten(config)
    if name not in settings:
        raise UserError(f"--config.{name} is unknown{nearest(name, list(settings), '--config.')}")
    config.update_from_flattened_dict({name: cli.typed(f"--config.{name}", text, settings[name])})
