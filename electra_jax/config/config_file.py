"""Config files: Python files with `get_config(arg) -> ConfigDict`, loaded by name or path, then overridden.

`--config=base:runlocal` calls `get_config("runlocal")` of the packaged configs/base.py; `--config=my/run.py` calls the
`get_config` of the user's own file. `--config.model.layers=3` overrides a setting.
"""

import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from electra_jax.config import cli
from electra_jax.config.errors import UserError
from electra_jax.config.settings import describe, flatten, nearest, settings_of

_KINDS = {
    "objective": "pre-training, such as --config=tiny",
    "task": "fine-tuning, such as --config=glue:task=cola",
}


class Arguments(NamedTuple):
    """A parsed command line.

    Attributes:
      config: the config with its overrides applied; None if no config was given and the command does not need one.
      workdir: `--workdir`, by default runs/NAME, named after the config; without a config, runs.
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
    config_class: type | None = None,
) -> Arguments:
    """Parses `--config=NAME[:ARG] [--workdir=DIR] [--config.NAME=VALUE ...]`.

    Args:
      argv: the arguments.
      usage: what --help prints.
      options: further options of the command with their defaults. If `config` is among them, --config is optional.
      shorthands: settings that may be given without the prefix `config.`.
      kind: the group of settings that the config must have: `objective` for pre-training, `task` for fine-tuning.
      config_class: the dataclass whose settings --help-config prints; None: the command has no such option.

    Raises:
      SystemExit: --help or --help-config was given; the answer has been printed.
      UserError: an argument, file or setting does not exist, the config has another kind, a setting has no effect, or
        a value has the wrong type.
    """
    # Before `read`, which would take the next argument for the value of --help-config.
    if config_class is not None and "--help-config" in argv:
        print(describe(config_class))
        raise SystemExit
    given = cli.read(argv, usage, options)
    given = {f"config.{name}" if name in shorthands else name: value for name, value in given.items()}
    overrides = {name: given.pop(name) for name in list(given) if name.startswith("config.")}
    name, _, arg = given.get("config", "").partition(":")
    config = load(name, arg) if name else ConfigDict()
    known = [*options, "config", "workdir", "debug", "help", *(f"config.{setting}" for setting in flatten(config))]
    # Before `cli.choose`, whose suggestions do not include settings.
    for option in given:
        if option not in known:
            raise UserError(f"--{option} is unknown{nearest(option, known, '--')}")
    chosen = cli.choose({name: text for name, text in given.items() if name in options}, options)
    if not name:
        if "config" not in options or overrides:
            raise UserError(f"--config is missing: expected a config for {_KINDS[kind]}")
        return Arguments(None, "runs", chosen)
    if kind not in config:
        raise UserError(f"--config={given['config']} has the wrong kind: expected a config for {_KINDS[kind]}")
    if given.get("workdir") == "":
        raise UserError("--workdir is empty: expected a folder; leave it out for the default")
    of_class = settings_of(config_class) if config_class is not None else {}
    for setting, text in overrides.items():
        # The setting exists, but not for this objective or task.
        if setting.removeprefix("config.") in of_class.keys() - flatten(config).keys():
            raise UserError(f"--{setting} has no effect with config.{kind}.name={config[kind].name}; leave it out")
        override(config, setting.removeprefix("config."), text)
    for setting in overrides:
        # Not in `resolve`: `--config=tiny --config.model.encoder=bert` has the ModernBERT settings of tiny.
        encoder = config.model.get("encoder") if setting.startswith("config.model.") else None
        if encoder and setting.split(".")[2:-1] not in ([], [encoder]):
            raise UserError(f"--{setting} has no effect with config.model.encoder={encoder}; leave it out")
    return Arguments(config, given.get("workdir") or _default_workdir(name, arg), chosen)


def _default_workdir(name: str, arg: str) -> str:
    """Returns runs/tiny for `tiny` and runs/tiny-mlm for `tiny:objective=mlm`: another objective is another run."""
    values = [part.rpartition("=")[2] for part in arg.split(",") if part]
    return "runs/" + "-".join([Path(name).stem, *(Path(value).name for value in values)])  # of a path, its last part


def packaged_configs() -> Path:
    """Returns the folder of the packaged configs: inside the package, or at the root of a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def load(name: str | Path, arg: str = "") -> ConfigDict:
    """Loads a config: returns what `get_config(arg)` of a config file returns.

    Args:
      name: path of a Python file, or name of a packaged config such as `tiny`.
      arg: the argument of `get_config`.

    Raises:
      UserError: the file does not exist, fails, or does not return a ConfigDict.
    """
    path = _find(name)
    try:
        # By path: a config file of the user need not be importable.
        get_config = runpy.run_path(str(path)).get("get_config")
        config = get_config(arg) if callable(get_config) else None
    # The file itself reports a wrong argument.
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"config file {path} fails with {type(error).__name__}: {error}; see configs/tiny.py for an example, and "
            "--debug for the line"
        ) from error
    if not callable(get_config):
        raise UserError(f"config file {path} has no function get_config(arg); see configs/tiny.py for an example")
    if not isinstance(config, ConfigDict):
        raise UserError(
            f"config file {path}: get_config({arg!r}) returns a {type(config).__name__}: expected a ConfigDict; see "
            "configs/tiny.py for an example"
        )
    return config


def _find(name: str | Path) -> Path:
    """Resolves the path of a config file, or the name of a packaged config, to a file."""
    path, packaged = Path(name), packaged_configs()
    if path.is_file():
        return path
    if path.parent == Path() and (packaged / f"{path.stem}.py").is_file() and path.suffix in ("", ".py"):
        return packaged / f"{path.stem}.py"
    names = sorted(file.stem for file in packaged.glob("[!_]*.py"))
    raise UserError(
        f"config {name} does not exist: expected the path of a Python file, or one of {', '.join(names)}"
        f"{nearest(str(name), names, '')}"
    )


def take(arg: str, name: str, default: str = "") -> tuple[str, str]:
    """Splits a config file's argument into the value of `NAME=` and the rest; the last value counts."""
    parts = arg.split(",")
    values = [part.removeprefix(f"{name}=") for part in parts if part.startswith(f"{name}=")]
    return [default, *values][-1], ",".join(part for part in parts if not part.startswith(f"{name}="))


def override(config: ConfigDict, name: str, text: str) -> None:
    """Sets `config.NAME` to `text`, converted to the type of the setting.

    Raises:
      UserError: there is no such setting, or `text` has the wrong type.
    """
    settings = flatten(config)
    if name not in settings:
        group = [each for each in settings if "." in name and each.rpartition(".")[0] == name.rpartition(".")[0]]
        raise UserError(f"--config.{name} is unknown{nearest(name, group or list(settings), '--config.')}")
    config.update_from_flattened_dict({name: cli.convert(f"--config.{name}", text, settings[name])})
