"""What a pre-training system is: the networks it needs, what it minimises, and what that costs.

Each family has a file with one `ObjectiveSpec` a row of the table in `table.py`. A system is a description and some pure
functions; `Objective` is a system with its settings and its model, ready for a step.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax import metrics
from electra_jax.config.settings import above, at_least, between, one_of, setting, within
from electra_jax.data.tokenizer import Special
from electra_jax.modeling.electra import Electra
from electra_jax.objectives import masking

Array = jax.Array
Params = Any  # the float32 tree of `Electra`

# The settings that systems share, with the paper's values; what a system does not use is no setting of it.
MASKING = {"mask_prob": 0.15, "replace_prob": 0.85, "random_prob": 0.0, "whole_words": False}
GENERATOR = {"generator": "transformer"}
SAMPLING = {"temperature": 1.0, "temperature_decay": 0.0, "disallow_correct": False}


GENERATORS = ("transformer", "unigram", "uniform")


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """What a run minimises. Each objective uses some of these settings; a config has those that its objective uses."""

    name: str = setting("electra", "The objective; chosen by the config's argument objective=NAME.")
    mask_prob: float = setting(0.15, "Share of the positions that are masked.", between(0, 1))
    replace_prob: float = setting(0.85, "Share of the masked positions that become [MASK].", within(0, 1))
    random_prob: float = setting(0.0, "Share of the masked positions that become a random token.", within(0, 1))
    whole_words: bool = setting(False, "Mask all pieces of a word or none.")
    generator: str = setting(
        "transformer", "What proposes the fakes; chosen by the config's argument generator=KIND.", one_of(*GENERATORS)
    )
    temperature: float = setting(1.0, "Sampling temperature of the fakes.", above(0))
    temperature_decay: float = setting(
        0.0, "Share of the run over which the temperature decays towards 1 by a factor of e; 0: constant.", at_least(0)
    )
    disallow_correct: bool = setting(False, "Never sample the original token.")
    generator_weight: float = setting(1.0, "Weight of the generator's loss.", at_least(0))
    discriminator_weight: float = setting(50.0, "Weight of the discriminator's loss.", at_least(0))
    encoder_weight: float = setting(1.0, "Weight of the loss of an encoder that predicts tokens.", at_least(0))
    generator_steps: int = setting(
        0, "Steps that train the generator alone, before those of the discriminator.", at_least(0)
    )


@dataclasses.dataclass(frozen=True)
class Pass:
    """One network on one batch, for counting its operations.

    Attributes:
      network: `generator` or `encoder`.
      head: what reads its states: `mlm`, `discriminator` or `copy`.
      everywhere: whether the head reads every position, or the masked ones only.
      trained: whether there is a gradient.
    """

    network: str
    head: str
    everywhere: bool
    trained: bool = True


@dataclasses.dataclass(frozen=True)
class Stage:
    """Steps that all compute the same passes; the learning rate's schedule begins anew in each stage."""

    steps: int
    passes: tuple[Pass, ...]


Loss = tuple[Array, metrics.Metrics]  # a float32 scalar, and the sums behind what is logged


class Inputs(NamedTuple):
    """What a loss reads beside the parameters.

    Attributes:
      masked: a batch or a part of it.
      counts: of the whole batch.
      step: how many steps are done, int32.
      key: of dropout, None where it is off.
    """

    masked: masking.Masked
    counts: masking.Counts
    step: Array
    key: Array | None = None

    @property
    def generator_key(self) -> Array | None:
        return None if self.key is None else jax.random.fold_in(self.key, 0)

    @property
    def encoder_key(self) -> Array | None:
        return None if self.key is None else jax.random.fold_in(self.key, 1)


class Detection(NamedTuple):
    """Fakes in a text and what the encoder says of them, each [B, L]: ids int32, labels and logits float32."""

    input_ids: Array
    labels: Array
    scores: Array


@dataclasses.dataclass(frozen=True)
class ObjectiveSpec:
    """One row of the table.

    Attributes:
      summary: what it is, in a line.
      paper: where it is from.
      settings: the settings of `ObjectiveConfig` that it uses, with their defaults; a function takes the run's steps.
      heads: as `ElectraConfig.heads`.
      loss: see `Objective.loss`.
      stages: (settings, steps of the run) -> what is computed when.
      generator: None, `masked` (it sees [MASK]) or `two_towers`.
      model: settings of `config.model` that it prescribes.
      detect: (objective, params, inputs) -> `Detection`; None where the encoder does not tell fakes.
      frozen: (settings, step) -> for top-level names of the parameters, whether they keep their bits in that step.
      begin: (settings, params, step) -> the parameters before that step, where a stage begins with others than the last
        one left.
      scores: what the sigmoid of the discriminator's score says of a token, where that is not the probability that it
        was replaced.
      pretrained_generator: whether the generator is one that was trained before, `config.generator_from`, and stays as it is.
    """

    summary: str
    paper: str
    settings: Mapping[str, Any]
    heads: tuple[str, ...]
    loss: Callable[["Objective", Params, Inputs], Loss]
    stages: Callable[[ObjectiveConfig, int], tuple[Stage, ...]]
    generator: str | None = "masked"
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    detect: Callable[["Objective", Params, Inputs], Detection] | None = None
    frozen: Callable[[ObjectiveConfig, Array], Mapping[str, Any]] = lambda settings, step: {}
    begin: Callable[[ObjectiveConfig, Params, Array], Params] = lambda settings, params, step: params
    scores: str = ""
    pretrained_generator: bool = False


@dataclasses.dataclass(frozen=True)
class Objective:
    """A system, ready for a step.

    Attributes:
      system: its row.
      settings: `config.objective`.
      steps: of the whole run.
      model: the networks it needs.
      unigram: [V] float32, log-probabilities of the tokens of the training text.
      special: ids of the special tokens.
      word_starts: [V] bool, which pieces begin a word.
    """

    system: ObjectiveSpec
    settings: ObjectiveConfig
    steps: int
    model: Electra
    unigram: np.ndarray
    special: Special
    word_starts: np.ndarray

    def mask(self, key: Array, batch: Mapping[str, Array]) -> masking.Masked:
        """Draws what is random about a batch, dropout aside."""
        s = self.settings
        starts = jnp.asarray(self.word_starts) if s.whole_words else None
        shown = (s.replace_prob, s.random_prob)
        return masking.mask(key, batch, self.model.config.vocab_size, self.special, s.mask_prob, *shown, starts)

    def draw(self, key: Array, batch: Mapping[str, Array], step: Array) -> Inputs:
        """What the loss of a whole batch reads, without dropout."""
        masked = self.mask(key, batch)
        return Inputs(masked, masking.count(masked), step)

    def loss(self, params: Params, x: Inputs) -> Loss:
        """What a step minimises.

        Every term is a sum over `x.masked` divided by a count over the whole batch, so that the losses of the batch's
        parts, and their gradients, add up to those of the whole, on whatever devices and in however many turns.
        """
        loss, measured = self.system.loss(self, params, x)
        return loss, {**measured, "tokens": metrics.total(x.masked.real)}

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.system.stages(self.settings, self.steps)

    def passes(self, step: int) -> tuple[Pass, ...]:
        """What is computed by the step that follows `step` steps."""
        for stage in self.stages:
            if step < stage.steps:
                return stage.passes
            step -= stage.steps
        return self.stages[-1].passes


def one_stage(*passes: Pass) -> Callable[[ObjectiveConfig, int], tuple[Stage, ...]]:
    """The same passes in every step."""
    return lambda settings, steps: (Stage(steps, passes),)
