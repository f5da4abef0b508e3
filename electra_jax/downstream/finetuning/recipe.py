"""Configs of fine-tuning: the paper's recipe, by task (arXiv 2003.10555, appendix B, and configure_finetuning.py)."""

from typing import Any

from ml_collections import ConfigDict

from electra_jax.config.errors import UserError
from electra_jax.config.settings import Check, above, at_least, between, check_value, one_of, within
from electra_jax.downstream.finetuning import rates
from electra_jax.downstream.finetuning.multi_seed import Recipe

# Learning rate and its decay from layer to layer. (The paper's own small model was trained at 3e-4.)
_SIZES = {"small": (1e-4, 0.8), "base": (1e-4, 0.8), "large": (5e-5, 0.9)}
# Epochs that are not 3, and settings of SQuAD.
_EPOCHS = {"rte": 10, "stsb": 10, "squad1": 2, "squad2": 2}
ANSWERING = {"query": 64, "stride": 128, "max_answer": 30, "beam": 20}
THRESHOLD = {"threshold": -2.75}  # of the logit of there being no answer
_SETTINGS = {
    "squad1": {"name", *ANSWERING},
    "squad2": {"name", *ANSWERING, *THRESHOLD},
    "table": {"name", "kind", "text", "pair", "label", "labels", "index"},
    "tags": {"name", "words", "tags"},
}


def make(task: dict[str, Any], arg: str = "") -> ConfigDict:
    """A config, locked.

    Args:
      task: its `name`, and the settings that it has beside.
      arg: nothing, or some of these with commas between: `size=small`, `base` or `large`, of the encoder, for the
        learning rates; `runlocal`, the same shrunk to a minute, for tests and for a first look.

    Raises:
      UserError: an argument that is unknown.
    """
    given = dict(part.partition("=")[::2] for part in arg.split(",") if part)
    size = given.pop("size", "base")
    if size not in _SIZES:
        raise UserError(f"config argument size={size} is unknown; there are {', '.join(_SIZES)}")
    rate, decay = _SIZES[size]
    answering = task["name"] in ("squad1", "squad2")
    config = ConfigDict(
        {
            "task": task,
            "seed": 0,  # the first
            "seeds": 5,  # the paper: 10
            "seeds_at_once": 1,  # trained as one program
            "epochs": _EPOCHS.get(task["name"], 3),
            "examples": 0,  # that it is trained on, drawn once; 0: all
            "dev_examples": 0,  # that it is evaluated on
            "batch_size": 32,
            "max_length": 512 if answering else 128,
            "shortest_bucket": 128 if answering else 16,  # rows are padded to this, or 1.5, 2, 3, 4 ... times as much
            "dropout": 0.1,
            "dtype": "float32",  # or bfloat16
            "compile_cache": "",
            "optim": {
                "learning_rate": rate,
                "layer_decay": decay,
                "reference_rates": False,  # the last layer begins with layer_decay squared, as in the reference's code
                "warmup": 0.1,  # of all steps
                "weight_decay": 0.0,
                "b1": 0.9,
                "b2": 0.999,
                "eps": 1e-6,
                "clip_norm": 1.0,
            },
        }
    )
    if given.pop("runlocal", None) is not None:
        config.update(seeds=2, epochs=1, examples=64, dev_examples=64, batch_size=8, max_length=128)
    if given:
        raise UserError(f"config argument {next(iter(given))!r} is unknown; there are task=, size=, runlocal")
    return config.lock()


_CHECKS: dict[str, Check] = {
    **{name: above(0) for name in ("seeds", "seeds_at_once", "epochs", "batch_size", "shortest_bucket")},
    **{name: at_least(0) for name in ("seed", "examples", "dev_examples")},
    "max_length": above(4),
    "dropout": Check(lambda value: 0 <= value < 1, "0 or more, less than 1"),
    "dtype": one_of("float32", "bfloat16"),
    **{f"optim.{name}": above(0) for name in ("learning_rate", "eps", "clip_norm")},
    **{f"optim.{name}": between(-1e-9, 1) for name in ("b1", "b2")},
    "optim.layer_decay": Check(lambda value: 0 < value <= 1, "more than 0, 1 or less"),
    "optim.warmup": within(0, 1),
    "optim.weight_decay": at_least(0),
    "task.kind": one_of("classification", "regression"),
    **{f"task.{name}": above(0) for name in ("query", "stride", "max_answer", "beam")},
}


def check(config: ConfigDict) -> None:
    """Raises UserError at the first setting that no fine-tuning can have."""
    flat = {f"{name}.{key}": value for name in ("task", "optim") for key, value in config[name].items()}
    values = {**config, **flat}
    for name, check in _CHECKS.items():
        if name in values:
            check_value(f"config.{name}", values[name], check)
    if config.seed + config.seeds > 2**32:
        raise UserError(f"config.seed={config.seed} is too large; a seed is below 2^32")
    if set(config.task) != _SETTINGS.get(config.task.name, {"name"}):
        raise UserError(f"config.task.name={config.task.name} is not the task of this config; give its own --config")
    if "beam" in config.task and config.shortest_bucket < config.task.beam:
        raise UserError(
            f"config.shortest_bucket={config.shortest_bucket} has no room for config.task.beam={config.task.beam} "
            "starts; lengthen the one or lessen the other"
        )


def recipe(config: ConfigDict) -> Recipe:
    return Recipe(config.epochs, config.batch_size, config.shortest_bucket, rates.Settings(**config.optim))
