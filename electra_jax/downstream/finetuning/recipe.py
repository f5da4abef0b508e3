"""Config of fine-tuning: every setting in one typed dataclass, and the paper's recipe for each task.

Source of the recipes: arXiv 2003.10555, appendix B, and google-research/electra, configure_finetuning.py.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from electra_jax.config import settings
from electra_jax.config.errors import UserError
from electra_jax.config.settings import above, at_least, check_value, from_up_to_below, one_of, setting
from electra_jax.downstream.finetuning.rates import FinetuneOptimConfig
from electra_jax.downstream.tasks import config as tasks_config
from electra_jax.downstream.tasks.config import TaskConfig
from electra_jax.runtime.compile_cache import cache_setting

# Learning rate and layer-wise decay. (The paper's own small model was fine-tuned at 3e-4.)
_SIZES = {"small": (1e-4, 0.8), "base": (1e-4, 0.8), "large": (5e-5, 0.9)}
_EPOCHS = {"rte": 10, "stsb": 10, "squad1": 2, "squad2": 2}
_SQUAD = ("squad1", "squad2")
# No-answer threshold by head. Source: google-research/electra, configure_finetuning.py, qa_na_threshold.
_THRESHOLDS = {"transformers": 0.0, "bert": 0.0, "paper": -2.75}


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """Config of fine-tuning on one task. Seeds differ in the head's initial weights, the order of rows and dropout."""

    task: TaskConfig = TaskConfig()
    seed: int = setting(0, "First seed.", at_least(0), resumable=True)
    seeds: int = setting(5, "Number of seeds; the paper uses 10.", above(0), resumable=True)
    seeds_at_once: int = setting(1, "Number of seeds trained together by one compiled step.", above(0), resumable=True)
    epochs: int = setting(3, "Number of training epochs.", above(0))
    examples: int = setting(0, "Number of training examples, the same for every seed; 0: all.", at_least(0))
    dev_examples: int = setting(0, "Number of evaluation examples; 0: all.", at_least(0))
    batch_size: int = setting(32, "Batch size, in rows.", above(0))
    max_length: int = setting(
        128, "Maximum sequence length, in tokens; longer texts are truncated, or read in windows.", above(4)
    )
    shortest_bucket: int = setting(16, "Rows are padded to 1, 1.5, 2, 3, 4, 6 ... times this many tokens.", above(0))
    pooling: str = setting(
        "cls",
        "Pooling for classes and numbers: the state of [CLS], or the mean of all tokens' states.",
        one_of("cls", "mean"),
    )
    head: str = setting(
        "transformers",
        "The head on the encoder: of transformers' class for this encoder, of its BERT classes, or the paper's, which "
        "cannot be exported.",
        one_of(*_THRESHOLDS),
    )
    dropout: float = setting(0.1, "Dropout rate in encoder and head.", from_up_to_below(0, 1))
    dtype: str = setting(
        "float32", "Compute dtype of the encoder; the head computes in float32.", one_of("float32", "bfloat16")
    )
    compile_cache: str = cache_setting()
    optim: FinetuneOptimConfig = FinetuneOptimConfig()


RESUMABLE = frozenset(name for name, each in settings.settings_of(FinetuneConfig).items() if each.resumable)


def make(task: str, arg: str = "") -> ConfigDict:
    """Returns the paper's recipe for a task as a locked config, for use in a config file.

    Args:
      task: a name in `tasks.config.NAMES`.
      arg: empty, or options separated by commas. `size=small`, `base` or `large`: learning rates for an encoder of this
        size. `head=paper` or `bert`: the paper's heads, or those of transformers' BERT classes. `runlocal`: the same
        fine-tuning shrunk to a minute.

    Raises:
      UserError: the task or an argument is unknown.
    """
    check_value("config.task.name", task, one_of(*tasks_config.NAMES))
    given = dict(part.partition("=")[::2] for part in arg.split(",") if part)
    size = given.pop("size", "base")
    if size not in _SIZES:
        raise UserError(f"config argument size={size} is unknown: expected {' or '.join(_SIZES)}")
    rate, decay = _SIZES[size]
    head = given.pop("head", FinetuneConfig.head)
    check_value("config argument head", head, one_of(*_THRESHOLDS))
    config = FinetuneConfig(
        # Tasks without a threshold lose it in `to_dict`.
        task=TaskConfig(name=task, threshold=_THRESHOLDS[head]),
        head=head,
        epochs=_EPOCHS.get(task, 3),
        max_length=512 if task in _SQUAD else 128,
        shortest_bucket=128 if task in _SQUAD else 16,
        optim=FinetuneOptimConfig(learning_rate=rate, layer_decay=decay),
    )
    if given.get("runlocal") == "":
        del given["runlocal"]
        config = dataclasses.replace(
            config,
            seeds=2,
            epochs=1,
            examples=64,
            dev_examples=64,
            batch_size=8,
            max_length=128 if task in _SQUAD else 64,  # the number of positions of networks trained with :runlocal
        )
    for name, value in given.items():
        unknown = f"{name}={value}" if value else name
        raise UserError(f"config argument {unknown!r} is unknown: expected task=, size=, head= or runlocal")
    return ConfigDict(to_dict(config)).lock()


def to_dict(config: FinetuneConfig) -> dict[str, Any]:
    """Converts a config to a nested dict of JSON types, without settings that its task does not use."""
    return settings.to_dict(config, tasks_config.unused_settings(config.task.name))


def with_later_settings(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Completes a saved config with the defaults of its task's settings that were added since.

    Args:
      saved: a result of `to_dict`, possibly with further entries.
    """
    name = settings.name_in(saved, "task")
    check_value("config.task.name", name, one_of(*tasks_config.NAMES))
    defaults = to_dict(FinetuneConfig(task=TaskConfig(name=name)))["task"]
    return {**saved, "task": {**defaults, **saved["task"]}}


def resolve(config: ConfigDict | FinetuneConfig | Mapping[str, Any]) -> FinetuneConfig:
    """Converts a config to a validated dataclass.

    Args:
      config: the result of a config file, or the entries of a fine-tuning's config.json with the same names.

    Raises:
      UserError: a setting is unknown, missing or invalid, or two settings contradict each other.
    """
    if not isinstance(config, FinetuneConfig):
        name = settings.name_in(config, "task")
        check_value("config.task.name", name, one_of(*tasks_config.NAMES))
        unused = tasks_config.unused_settings(name)
        known = {each for each in settings.settings_of(FinetuneConfig) if each.startswith("task.")}
        # --config.task.name=OTHER would keep the recipe and the settings of the first task.
        if {each for each in settings.flatten(config) if each.startswith("task.")} & known != known - unused:
            raise UserError(
                f"config.task.name={name} does not match the other settings of config.task; choose the task by the "
                f"config: --config={_config_of(name)}"
            )
        config = settings.from_dict(FinetuneConfig, config, optional=unused)
    _check(config)
    return config


def _check(config: FinetuneConfig) -> None:
    settings.validate(config)
    if config.seed + config.seeds > 2**32:  # `multi_seed.train` passes them as uint32
        raise UserError(f"config.seed={config.seed} is too large: expected seeds below 2^32")
    pools = config.task.name not in ("tags", *_SQUAD)
    effects = (("task.beam", config.head == "paper", "without config.head=paper"), ("pooling", pools, "with this task"))
    settings.check_effects(config, effects)
    if config.pooling != "cls" and config.head == "bert":
        raise UserError(
            f"config.pooling={config.pooling} is invalid with head=bert: transformers' BERT classes read the state of "
            "[CLS]; leave one of them out"
        )
    # top_k returns at most as many starts as a row has positions, and all batches need the same number.
    if config.task.name in _SQUAD and config.head == "paper" and config.shortest_bucket < config.task.beam:
        raise UserError(
            f"config.shortest_bucket={config.shortest_bucket} is invalid: expected config.task.beam="
            f"{config.task.beam} or more"
        )


def _config_of(task: str) -> str:
    """Returns the value of `--config` for a task."""
    versions = {"squad1": "squad:version=1.1", "squad2": "squad:version=2.0", "table": "table", "tags": "tags"}
    return versions.get(task, f"glue:task={task}")
