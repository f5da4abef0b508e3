"""Configs: the settings that the paper's sizes share, and the command line that loads and overrides them.

A config is a Python file with `get_config(arg) -> ConfigDict`; `--config=configs/base.py:runlocal` calls it with
`runlocal`. `--config.model.layers=3` overrides a setting; an unknown name or a value of another type is refused.
"""

import dataclasses
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ml_collections import ConfigDict

from electra_jax import arguments, home, sharding
from electra_jax.arguments import above, at_least, between, one_of, within
from electra_jax.data import preparation
from electra_jax.errors import UserError
from electra_jax.objectives import table
from electra_jax.tasks import glue


def paper() -> ConfigDict:
    """What all sizes of the paper have in common (arXiv 2003.10555, appendix A; google-research/electra)."""
    return ConfigDict(
        {
            "seed": 0,
            "steps": 1_000_000,
            "batch_size": 128,
            "accumulate": 1,  # parts that a batch is computed in, one after another
            # Devices along each axis, -1: what is left. data and fsdp split the batch, fsdp the parameters too, tensor
            # heads, inner widths and the vocabulary.
            "mesh": {"data": -1, "fsdp": 1, "tensor": 1},
            "compile_cache": "",  # a folder for compiled programs: a run that is started again does not wait for them
            # Of XLA, NAME=VALUE with commas between. What hides collectives behind computation is on by default: on
            # v5e, base, neither xla_tpu_enable_latency_hiding_scheduler nor the async collective fusions change a step.
            "compiler_options": "",
            "profile": {"at": 0, "steps": 3},  # a trace of steps, from that one on; 0: none
            "log_every": 100,
            "eval_every": 10_000,
            "eval_batches": 64,
            # A quick fine-tuning every so many steps (0: none), on a task of GLUE, whose files are in data_dir.
            "probe": {"every": 0, "task": "cola", "data_dir": "", "examples": 2000, "epochs": 1},
            "init_from": "",  # a run or a Hugging Face directory that the encoder begins from, and its generator's too
            "generator_from": "",  # one that the generator begins from
            # What is done where these have another vocabulary, other positions or another depth; same: it is refused.
            "init": {"vocabulary": "same", "positions": "same", "layers": "same"},
            "data": {
                **preparation.SETTINGS,
                "mode": "pairs",  # or packed
                "seq_length": 128,
                "short_length": 128,  # of the sequences in the first short_steps steps
                "short_steps": 0,
            },
            "model": {
                "encoder": "bert",  # or modernbert
                "layers": 12,
                "width": 256,
                "ffn": 1024,
                "heads": 4,
                "embedding_size": 128,
                "max_length": 512,
                "generator_width": 0.25,
                "generator_layers": 1.0,
                "tying": "embeddings",  # or none, all, gdes
                "init_stddev": 0.02,
                "dropout": 0.1,
                "dtype": "bfloat16",
                "unroll": False,
                "remat": "none",  # or dots, full: what the backward pass computes again for want of memory
                "modernbert": {"local_window": 128, "global_every": 3},
            },
            "objective": {"name": "electra", **table.SYSTEMS["electra"].settings},  # another by the argument objective=
            "optim": {
                "learning_rate": 5e-4,
                "warmup_steps": 10_000,
                "weight_decay": 0.01,
                "b1": 0.9,
                "b2": 0.999,
                "eps": 1e-6,
                "clip_norm": 1.0,
                "moments_dtype": "float32",  # or bfloat16
            },
            "checkpoint": {"every": 5_000, "keep_last": 2, "keep_every": 100_000},
        }
    )


def finish(config: ConfigDict, arg: str) -> ConfigDict:
    """Applies a config file's argument and locks the config.

    Args:
      config: the run.
      arg: nothing, or some of these with commas between. `runlocal`: the same run shrunk to some seconds on a CPU, for
        tests and for a first look. `objective=NAME`: another system of `objectives/table.py` at this size.
        `generator=KIND`: one that is no network, `unigram` or `uniform`.
    """
    given = dict(part.partition("=")[::2] for part in arg.split(",") if part)
    if given.pop("runlocal", None) is not None:
        _shrink(config)
    table.configure(config, given.pop("objective", "electra"), given.pop("generator", "transformer"))
    if given:
        raise UserError(f"config argument {next(iter(given))!r} is unknown; there are runlocal, objective=, generator=")
    return config.lock()


def _shrink(config: ConfigDict) -> None:
    config.steps, config.batch_size = 12, 8
    config.log_every, config.eval_every, config.eval_batches = 4, 6, 2
    config.checkpoint.update(every=4, keep_last=2, keep_every=100)
    config.data.update(input="docstrings:asyncio,email,logging,unittest", vocab_size=600, heldout_fraction=0.1)
    config.data.seq_length, config.data.short_length = min(config.data.seq_length, 64), 32
    heads = min(config.model.heads, 2)
    config.model.update(layers=2, heads=heads, width=32 * heads, ffn=64 * heads, dtype="float32", max_length=64)
    same = config.model.embedding_size == config.model.width
    config.model.embedding_size = 32 * heads if same else 16 * heads
    config.model.generator_width = max(config.model.generator_width, 0.5)
    config.optim.warmup_steps = min(config.optim.warmup_steps, 4)


_KINDS = {"objective": "pre-training: configs/tiny.py", "task": "fine-tuning: configs/glue.py:task=cola"}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """A parsed command line: the config (None where none is given), where the run lives, and a command's options."""

    config: Any
    workdir: home.Place
    options: dict[str, Any]


def parse(
    argv: list[str],
    usage: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    shorthands: Sequence[str] = (),
    of: str = "objective",
) -> Arguments | None:
    """Parses `--config=FILE[:ARG] [--workdir=DIR] [--config.NAME=VALUE ...]`; prints `usage` for --help.

    Args:
      argv: the arguments.
      usage: what --help prints.
      options: further ones of the command, with their defaults; one that is False needs no value. With `config` among
        them the config may be left out.
      shorthands: settings that are also known without `config.` before them.
      of: what the config must have: `objective`, one of pre-training, or `task`, one of fine-tuning.

    Raises:
      UserError: an argument, a file or a setting that is not there, or a value of another type.
    """
    given = arguments.read(argv, usage, options)
    if given is None:
        return None
    given = {f"config.{name}" if name in shorthands else name: value for name, value in given.items()}
    overrides = {name: given.pop(name) for name in list(given) if name.startswith("config.")}
    chosen = arguments.choose(given, options, "config", "workdir")
    if not given.get("config"):
        if "config" not in options or overrides:
            raise UserError(f"--config is missing; give one of {_KINDS[of]}")
        return Arguments(None, Path("runs"), chosen)

    path, _, arg = given["config"].partition(":")
    config = load(Path(path), arg)
    if of not in config:
        raise UserError(f"--config={given['config']} is of another kind; give one of {_KINDS[of]}")
    for name, value in overrides.items():
        override(config, name.removeprefix("config."), value)
    # Another system is another run: runs/tiny, runs/tiny-mlm.
    name = "-".join([Path(path).stem, *(part.rpartition("=")[2] for part in arg.split(",") if part)])
    return Arguments(config, home.place(given.get("workdir") or f"runs/{name}"), chosen)


def load(path: Path, arg: str = "") -> ConfigDict:
    """The config that the file gives for `arg`."""
    if not path.is_file():
        there = ", ".join(sorted(map(str, Path("configs").glob("*.py")))) or "none; are you in the project's folder?"
        raise UserError(f"config file {path} is not there; configs here: {there}")
    try:
        module = runpy.run_path(str(path))
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"config file {path} is no Python that runs ({type(error).__name__}: {error}); see configs/tiny.py, and "
            "--debug for where"
        ) from error
    if not callable(module.get("get_config")):
        raise UserError(f"config file {path} defines no get_config(arg); see configs/tiny.py")
    config = module["get_config"](arg)
    if not isinstance(config, ConfigDict):
        raise UserError(f"config file {path}: get_config({arg!r}) gives no ConfigDict; see configs/tiny.py")
    return config


def override(config: ConfigDict, name: str, text: str) -> None:
    """Sets `config.NAME` to `text`, read as the type that the setting has.

    Raises:
      UserError: there is no such setting, or `text` is of another type.
    """
    names = flat(config)
    if name not in names:
        raise UserError(f"--config.{name} is unknown{arguments.nearest(name, list(names), '--config.')}")
    config.update_from_flattened_dict({name: arguments.typed(f"--config.{name}", text, names[name])})


_CHECKS: dict[str, arguments.Check] = {
    **{name: above(0) for name in ("steps", "batch_size", "accumulate", "log_every", "eval_every", "eval_batches")},
    "profile.at": at_least(0),
    "probe.every": at_least(0),
    "probe.task": one_of(*glue.TASKS),
    **{f"probe.{name}": above(0) for name in ("examples", "epochs")},
    "profile.steps": above(0),
    "compiler_options": (
        lambda value: all("=" in option for option in value.split(",") if option),
        "NAME=VALUE, with commas between",
    ),
    **{f"checkpoint.{name}": above(0) for name in ("every", "keep_last", "keep_every")},
    **{f"model.{name}": above(0) for name in ("layers", "width", "ffn", "heads", "embedding_size", "max_length")},
    **{f"model.{name}": above(0) for name in ("generator_width", "generator_layers", "init_stddev")},
    **{f"model.modernbert.{name}": above(0) for name in ("local_window", "global_every")},
    **{f"optim.{name}": above(0) for name in ("learning_rate", "eps", "clip_norm")},
    **{f"optim.{name}": between(-1e-9, 1) for name in ("b1", "b2")},
    **{f"data.{name}": check for name, check in preparation.CHECKS.items()},
    **{f"mesh.{axis}": (lambda value: value > 0 or value == -1, "above 0, or -1") for axis in sharding.AXES},
    "optim.moments_dtype": one_of("float32", "bfloat16"),
    "model.remat": one_of("none", "dots", "full"),
    "init.vocabulary": one_of("same", "pieces"),
    "init.positions": one_of("same", "first"),
    "init.layers": one_of("same", "first", "spread"),
    "data.mode": one_of("pairs", "packed"),
    "data.seq_length": above(4),
    "data.short_length": above(4),
    "data.short_steps": at_least(0),
    "model.encoder": one_of("bert", "modernbert"),
    "model.dtype": one_of("float32", "bfloat16"),
    "model.dropout": (lambda value: 0 <= value < 1, "from 0 up to below 1"),
    "objective.mask_prob": between(0, 1),
    "objective.replace_prob": within(0, 1),
    "objective.random_prob": within(0, 1),
    "objective.temperature": above(0),
    "objective.temperature_decay": at_least(0),
    **{f"objective.{name}_weight": at_least(0) for name in ("generator", "discriminator", "encoder")},
    "model.tying": one_of("none", "embeddings", "all", "gdes"),
}


def check(config: ConfigDict) -> None:
    """Raises UserError at the first setting that no run can have."""
    arguments.check(flat(config), _CHECKS, "config.")
    table.check(config)
    adapted = [name for name, how in config.init.items() if how != "same"]
    if adapted and not (config.init_from or config.generator_from):
        raise UserError(f"config.init.{adapted[0]}={config.init[adapted[0]]} is of no use without config.init_from")
    if config.generator_from and "generator_width" not in config.model:
        raise UserError("config.generator_from cannot be: this system has no generator to begin from it")
    if config.init_from and "generator_steps" in config.objective:
        raise UserError(
            "config.init_from cannot be with objective=two_stage, whose encoder begins from its generator; give that "
            "one: config.generator_from"
        )
    if config.data.short_steps and not (
        config.data.short_steps < config.steps and config.data.short_length < config.data.seq_length
    ):
        raise UserError(
            f"config.data.short_steps={config.data.short_steps} of config.data.short_length={config.data.short_length} "
            f"cannot be; give fewer than config.steps={config.steps}, and less than "
            f"config.data.seq_length={config.data.seq_length}"
        )
    if config.probe.every and not config.probe.data_dir:
        raise UserError(
            f"config.probe.every={config.probe.every} lacks the files of {config.probe.task}; give "
            "config.probe.data_dir"
        )
    if config.data.seq_length > config.model.max_length:
        raise UserError(
            f"config.data.seq_length={config.data.seq_length} is longer than config.model.max_length="
            f"{config.model.max_length}; shorten the one or lengthen the other"
        )


def phases(config: ConfigDict) -> list[tuple[int, int]]:
    """(length of the sequences, steps at that length), one phase after another."""
    data = config.data
    short = [(data.short_length, data.short_steps)] if data.short_steps else []
    return [*short, (data.seq_length, config.steps - data.short_steps)]


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """`name: old -> new` for each setting in which two configs (as plain nested dicts) differ."""
    before, after = flat(old), flat(new)
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [f"{name}: {before.get(name)!r} -> {after.get(name)!r}" for name in changed]


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """The settings of a config, or of a plain nested dict, by their dotted names."""
    found = {}
    for key, value in config.items():
        if isinstance(value, ConfigDict | dict):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found
