"""Registry of the objectives, and the construction of a config's objective."""

import dataclasses
import pkgutil
from collections import UserDict
from typing import Any, NamedTuple

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data.corpus import Corpus
from electra_jax.data.tokenizer import OWN, Special
from electra_jax.modeling import model_config
from electra_jax.modeling.config import ElectraConfig
from electra_jax.modeling.electra import Electra
from electra_jax.modeling.model_config import ModelConfig
from electra_jax.objectives import electra, spec
from electra_jax.objectives.spec import ObjectiveConfig
from electra_jax.runtime.metric_text import NamedLoss


class _Systems(UserDict[str, Any]):
    """Objectives by name, either as a spec or as `module:NAME`, which is imported when it is read."""

    def __getitem__(self, name: str) -> spec.ObjectiveSpec:
        found = super().__getitem__(name)
        row: spec.ObjectiveSpec = pkgutil.resolve_name(f"{__package__}.{found}") if isinstance(found, str) else found
        return row


SYSTEMS = _Systems(
    electra="electra:ELECTRA",
    electra_15="electra:ELECTRA_15",
    electra_mlm="electra_mlm:ELECTRA_MLM",
    replace_mlm="mlm:REPLACE_MLM",
    all_tokens_mlm="mlm:ALL_TOKENS_MLM",
    mlm="mlm:MLM",
    two_stage="two_stage:TWO_STAGE",
    adversarial="adversarial:ADVERSARIAL",
    electric="electric:ELECTRIC",
    frozen_generator="frozen_generator:FROZEN_GENERATOR",
)

# Settings that have no effect, for each kind of generator.
# Without a generator network no [MASK] is read, and there is no generator loss to weight or to train first.
_OF_NETWORKS = ("generator_weight", "generator_steps", "replace_prob", "random_prob")
_UNUSED_BY_GENERATOR = {
    "transformer": (),
    "unigram": _OF_NETWORKS,
    # A temperature does not change equal logits.
    "uniform": (*_OF_NETWORKS, "temperature", "temperature_decay"),
    "clusters": _OF_NETWORKS,
}
_MODEL_SETTINGS_OF_GENERATORS = ("generator_width", "generator_layers", "tying")


def objective_settings(name: str, generator: str, steps: int) -> dict[str, Any]:
    """Returns the settings of `ObjectiveConfig` that an objective uses, with its defaults.

    Args:
      name: the objective.
      generator: one of `spec.GENERATORS`.
      steps: the number of training steps.

    Raises:
      UserError: there is no such objective or generator, or this objective cannot use that generator.
    """
    if name not in SYSTEMS:
        raise UserError(f"objective={name} is unknown: expected one of {', '.join(SYSTEMS)}")
    if generator not in spec.GENERATORS:
        raise UserError(f"generator={generator} is unknown: expected one of {', '.join(spec.GENERATORS)}")
    row = SYSTEMS[name]
    if generator != "transformer" and "generator" not in row.settings:
        usable = ", ".join(other for other, each in SYSTEMS.items() if "generator" in each.settings)
        raise UserError(f"objective={name} cannot use generator={generator}: only {usable} can; leave it out")
    # A default may depend on the length of the run: two_stage trains the generator for half of the steps.
    own = {key: value(steps) if callable(value) else value for key, value in row.defaults.items()}
    values = dataclasses.replace(ObjectiveConfig(name=name, generator=generator), **own)
    used = [key for key in row.settings if key not in _UNUSED_BY_GENERATOR[generator]]
    return {key: getattr(values, key) for key in ("name", *used)}


def unused_settings(name: str, generator: str = "transformer") -> set[str]:
    """Returns the dotted names of the settings of `objective` and `model` that an objective does not use."""
    used = {"name", *SYSTEMS[name].settings} - set(_UNUSED_BY_GENERATOR[generator])
    unused = {f"objective.{field.name}" for field in dataclasses.fields(ObjectiveConfig) if field.name not in used}
    if generator != "transformer" or SYSTEMS[name].generator is None:
        unused |= {f"model.{setting}" for setting in _MODEL_SETTINGS_OF_GENERATORS}
    return unused


def has_generator(objective: ObjectiveConfig) -> bool:
    """True if there is a generator network."""
    return SYSTEMS[objective.name].generator is not None and objective.generator == "transformer"


def check(objective: ObjectiveConfig, model: ModelConfig, steps: int) -> None:
    """Raises UserError if settings contradict the objective or each other."""
    for name, value in SYSTEMS[objective.name].model.items():
        if getattr(model, name) != value:
            raise UserError(
                f"config.model.{name}={getattr(model, name)!r} is invalid with objective={objective.name}: "
                f"expected {value!r}"
            )
    _check_generator_steps(objective, model, steps)
    if objective.replace_prob + objective.random_prob > 1:
        raise UserError(
            f"config.objective.replace_prob={objective.replace_prob} and random_prob={objective.random_prob} add up to "
            "more than 1: expected 1 or less"
        )


def _check_generator_steps(objective: ObjectiveConfig, model: ModelConfig, steps: int) -> None:
    # Without a first stage, two_stage would copy an untrained generator.
    least = 1 if objective.name == "two_stage" else 0
    name = f"config.objective.generator_steps={objective.generator_steps}"
    if "generator_steps" in SYSTEMS[objective.name].settings and not least <= objective.generator_steps < steps:
        raise UserError(f"{name} is invalid: expected {least} or more and less than config.steps={steps}")
    if objective.generator_steps and objective.name != "two_stage" and model.tying in ("all", "none"):
        raise UserError(
            f"{name} is invalid with config.model.tying={model.tying}: the networks must share their embeddings, which "
            "these steps leave as they are, and nothing else; expected embeddings or gdes"
        )


def electra_config(objective: ObjectiveConfig, model: ModelConfig, vocab_size: int) -> ElectraConfig:
    """Returns the config of an objective's networks. Raises UserError for settings that no network can have."""
    row = SYSTEMS[objective.name]
    two_towers = row.generator == "two_towers"
    return model_config.from_settings(model, vocab_size, row.heads, has_generator(objective), two_towers)


def make(
    objective: ObjectiveConfig,
    model: ModelConfig,
    steps: int,
    vocab_size: int,
    unigram_counts: np.ndarray | None = None,
    special: Special = OWN,
    word_starts: np.ndarray | None = None,
    clusters: np.ndarray | None = None,
) -> spec.Objective:
    """Makes an objective with its networks.

    Args:
      objective: the settings of the objective.
      model: the settings of the networks.
      steps: the number of training steps.
      vocab_size: the number of token ids in use.
      unigram_counts: [vocab_size], token counts of the training text; needed for training and evaluation.
      special: ids of the special tokens.
      word_starts: [vocab_size] bool, the pieces that begin a word; needed for whole-word masking.
      clusters: [vocab_size], the cluster of each token; needed for training and evaluation with `generator=clusters`.

    Raises:
      UserError: a setting that no network can have.
    """
    networks = electra_config(objective, model, vocab_size)
    # Without a text, as when a network is loaded or counted, frequencies are never read.
    counts = np.ones(vocab_size) if unigram_counts is None else unigram_counts
    unigram = electra.log_frequencies(counts, networks.padded_vocab_size, special)
    starts = np.ones(vocab_size, bool) if word_starts is None else word_starts
    # Padded like the logits that it masks; -1 is `token_clusters.NONE`.
    by_token = np.full(networks.padded_vocab_size, -1, np.int32)
    if clusters is not None:
        by_token[:vocab_size] = clusters
    row = SYSTEMS[objective.name]
    return spec.Objective(row, objective, steps, Electra(networks), unigram, special, starts, by_token)


def make_for_text(objective: ObjectiveConfig, model: ModelConfig, steps: int, text: Corpus) -> spec.Objective:
    """Makes an objective with its networks, to train on a text; arguments as in `make`.

    Raises:
      UserError: as in `make`; or words cannot be masked whole, because the vocabulary does not show where they begin.
    """
    vocabulary = text.tokenizer
    if objective.whole_words and not vocabulary.marks_words:
        raise UserError(
            "config.objective.whole_words=true is invalid with this vocabulary, whose pieces do not show where words "
            "begin: expected a mark at the beginning of words, as in SentencePiece, or in continuations, as in "
            "WordPiece; set whole_words=false"
        )
    clusters = None
    if objective.generator == "clusters":
        from electra_jax.data import token_clusters  # only needed by these

        clusters = token_clusters.cluster_tokens(text.train, text.unigram, vocabulary.special)
    return make(
        objective,
        model,
        steps,
        len(vocabulary),
        text.unigram,
        vocabulary.special,
        vocabulary.word_starts,
        clusters,
    )


def losses() -> dict[str, NamedLoss]:
    """Returns the names and baselines of all objectives' losses, by metric."""
    return {metric: loss for row in SYSTEMS.values() for metric, loss in row.losses.items()}


class SystemInfo(NamedTuple):
    """One value of `objective=`: its name, what it does, and where it was published."""

    name: str
    summary: str
    paper: str


def systems() -> list[SystemInfo]:
    """Returns the values of the config argument `objective=`, each with its name, summary and paper."""
    return [SystemInfo(name, row.summary, row.paper) for name, row in SYSTEMS.items()]


def describe() -> str:
    """Formats two lines for each objective, for --help: summary and source."""
    width = max(map(len, SYSTEMS))
    return "\n".join(f"{name:<{width}}  {row.summary}\n{'':<{width}}  ({row.paper})" for name, row in SYSTEMS.items())
