"""The jobs of benchmarks/ladder.py: pre-training, fine-tuning, and linear models on frozen states."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import abilities
import frozen
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

import electra_jax
from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.downstream.finetuning import recipe, run
from electra_jax.downstream.finetuning.recipe import FinetuneConfig
from electra_jax.downstream.tasks import glue
from electra_jax.loading import networks
from electra_jax.loading.huggingface.directory import Pretrained
from electra_jax.loading.networks import Source
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.bert import Bert
from electra_jax.modeling.subnetwork import Network
from electra_jax.runtime.progress import Progress
from electra_jax.runtime.run_log import RunLog

VOCABULARY = 4096
LENGTH = 128
MODERN = "modern"  # the system of configs/modern.py
THEN_MLM = "electra_then_mlm"  # `electra_mlm` whose encoder fills masks in a last phase only
_LAST_PHASE = "8/10 objective.encoder_weight=0; 2/10"
_BATCH = 32
FINE_EPOCHS = 3  # of fine-tuning, where nothing else is said
_MOST_EXAMPLES = {"sst2": 16_000}
_WARMUP = 0.05  # share of the steps
_FFN = 1.5  # of the width
AVERAGED = 3  # checkpoints, the last ones, whose parameters a probe may average: the last fifth of the steps
_HELDOUT = ("mlm_loss", "disc_loss", "disc_auc", "unigram_auc", "encoder_mlm_loss", "fill_loss")


class Shape(NamedTuple):
    """An encoder's shape; its generator has half of the width and two thirds of the layers."""

    layers: int
    width: int

    def __str__(self) -> str:
        return f"{self.layers}x{self.width}"


@dataclasses.dataclass(frozen=True)
class Folders:
    """Where the jobs' data is.

    Attributes:
      text: a prepared corpus.
      glue: GLUE's folders.
      word_order: the task that benchmarks/word_order.py made.
      pairs: the pairs that benchmarks/minimal_pairs.py made.
      runs: for the runs.
    """

    text: str
    glue: str
    word_order: Path
    pairs: Path
    runs: Path


def pretraining_config(
    system: str, shape: Shape, rate: float, flops: float, changes: Mapping[str, Any] | None = None, text: str = ""
) -> ConfigDict:
    """The run of a system with an encoder of a shape that costs about `flops`.

    It is `configs/tiny.py` with Adam, or `configs/modern.py`, with sequences of 128 tokens, a vocabulary of 4,096
    pieces and batches of 32.

    Args:
      system: the objective, `MODERN` or `THEN_MLM`.
      shape: the encoder's shape.
      rate: the learning rate at width 128; wider encoders take as much less as they are wider.
      flops: FLOPs (`model` count) of the whole run.
      changes: settings by name that differ; `warmup` is a share of the steps, `ffn` one of the width, `generator` the
        config's argument.
      text: the prepared corpus.
    """
    changes = dict(changes or {})
    if system == MODERN:
        config = electra_jax.configs.modern(size="tiny")
    else:
        objective, generator = system, changes.pop("generator", "transformer")
        changes = {"optim.name": "adam", **changes}
        if system == THEN_MLM:
            objective, changes = "electra_mlm", {"phases": _LAST_PHASE, **changes}
        config = electra_jax.configs.tiny(objective=objective, generator=generator)
    warmup, ffn = changes.pop("warmup", _WARMUP), changes.pop("ffn", _FFN)
    settings = {
        "batch_size": _BATCH,
        "data.input": text,
        "data.vocab_size": VOCABULARY,
        "data.seq_length": LENGTH,
        "model.max_length": LENGTH,
        "model.layers": shape.layers,
        "model.width": shape.width,
        "model.ffn": round(shape.width * ffn),
        "model.heads": shape.width // 32,
        "model.embedding_size": min(shape.width, 128),
        "model.modernbert.global_every": 3,
        "optim.learning_rate": rate * min(1.0, 128 / shape.width),
        **changes,
    }
    for name, value in settings.items():
        config_file.override(config, name, str(value))
    config.steps = max(1, round(flops / flops_per_step(config)))
    config.optim.warmup_steps = max(1, round(warmup * config.steps))
    config.log_every, config.eval_every = max(1, config.steps // 100), max(1, config.steps // 5)
    config.checkpoint.update(every=max(1, config.steps // 10), keep_last=AVERAGED)
    return config


def flops_per_step(config: ConfigDict) -> float:
    """The FLOPs of a train step (`model` count), the mean where the batch grows."""
    return electra_jax.count_flops(config).total["model"] / int(config.steps)


def finetuning_config(
    task: str, rate: float, seeds: Sequence[int], epochs: int, pooling: str, cache: Path
) -> FinetuneConfig:
    """The fine-tuning of a run: the paper's recipe with another learning rate, other epochs and another pooling.

    Args:
      task: the task.
      rate: the learning rate.
      seeds: consecutive numbers.
      epochs: passes over the training set.
      pooling: what the head reads, as `FinetuneConfig.pooling`.
      cache: a folder for compiled programs, which jobs with the same task, shape and rate share.
    """
    config = recipe.make(task, "size=small,head=paper")
    config.update(epochs=epochs, examples=_MOST_EXAMPLES.get(task, 0), pooling=pooling, seed=seeds[0], seeds=len(seeds))
    config.compile_cache = str(cache)
    config.optim.learning_rate = rate
    return recipe.resolve(config)


def bag_of_words(source: Source) -> Source:
    """New embeddings without an encoder, for the vocabulary of a run: a BERT without layers."""

    def load() -> Pretrained:
        pretrained = source.load()
        shape = pretrained.encoder.config
        encoder = dataclasses.replace(shape.encoder, architecture=Bert(), layers=0, width=shape.embedding_size)
        network = Network(dataclasses.replace(shape, encoder=encoder, heads=()), {})
        zeros = jnp.zeros((1, 2), jnp.int32)
        params = network.model.init(jax.random.key(0), Batch(zeros, zeros, zeros), method="encode")["params"]
        return Pretrained(network._replace(params=jax.device_get(params)), None, pretrained.tokenizer)

    return Source(f"bag of words of {source.name}", f"bag-{source.digest}", load)


def train_to_end(config: ConfigDict, run: Path, progress: Progress) -> RunLog:
    """Pre-trains a run.

    Raises:
      UserError: a signal has stopped it.
    """
    log = electra_jax.pretrain(config, run, progress)
    last = log.metrics[-1]["step"] if log.metrics else 0
    if last < config.steps:
        raise UserError(f"{run.name} was stopped at step {last} of {config.steps}; start it again")
    return log


def pretrain(folders: Folders, name: str, settings: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Pre-trains a run; what it cost, and its held-out metrics at each evaluation."""
    del name
    config = pretraining_config(
        settings["system"],
        Shape(*settings["shape"]),
        settings["rate"],
        settings["flops"],
        settings.get("changes"),
        folders.text,
    )
    log = train_to_end(config, folders.runs / settings["run"], progress)
    last = log.metrics[-1]
    return {
        "steps": config.steps,
        "device_seconds": last["device_seconds"],
        **{name: last[f"total_{name}"] for name in ("flops", "flops_paper", "tokens")},
        "heldout": [
            {"step": each.step, **{name: round(each.metrics[name], 4) for name in _HELDOUT if name in each.metrics}}
            for each in log.evaluations()
        ],
    }


def finetune(folders: Folders, name: str, settings: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Fine-tunes a run on a task with some seeds; the main score of each."""
    task = settings["task"]
    rate, seeds, epochs, pooling = (settings[name] for name in ("rate", "seeds", "epochs", "pooling"))
    source = networks.find_source(folders.runs / settings["run"])
    cache = folders.runs.with_name("compiled")
    result = run.finetune_source(
        finetuning_config(task, rate, seeds, epochs, pooling, cache),
        bag_of_words(source) if settings["bag_of_words"] else source,
        glue.task_dir(folders.glue, task),
        folders.runs / name,
        tests=False,
        progress=progress,
    )
    return {
        "metric": result["metric"],
        "scores": {seed["seed"]: round(seed["scores"][result["metric"]], 3) for seed in result["seeds"]},
        "seconds": sum(seed["seconds"] for seed in result["seeds"]),
    }


def probe(folders: Folders, name: str, settings: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The scores of linear models on a run's frozen states."""
    del name, progress
    model = frozen.load(folders.runs / settings["run"], AVERAGED if settings.get("averaged") else 1)
    return frozen.scores(model, folders.glue, folders.word_order, settings["tasks"], _MOST_EXAMPLES)


def measure_abilities(folders: Folders, name: str, settings: Mapping[str, Any], progress: Progress) -> dict[str, float]:
    """What a run can do without fine-tuning."""
    del name, progress
    return abilities.measure(electra_jax.load(folders.runs / settings["run"]), Path(folders.text), folders.pairs)


KINDS = {"pretrain": pretrain, "finetune": finetune, "probe": probe, "abilities": measure_abilities}
