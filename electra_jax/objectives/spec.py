"""Specification of a pre-training objective: its networks, the stages of its training, and their losses.

Each family of objectives has a file with its losses and one `ObjectiveSpec` for each row of the table in `registry.py`.
An `Objective` is a spec together with the settings and the model of a run.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax import metrics
from electra_jax.config.settings import Check, above, at_least, between, one_of, setting, within
from electra_jax.data.tokenizer import Special
from electra_jax.modeling import electra as networks
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.electra import Electra
from electra_jax.objectives import masking
from electra_jax.runtime import rng
from electra_jax.runtime.metric_text import NamedLoss

Array = jax.Array
Params = networks.Params
Loss = tuple[Array, metrics.Unsummed]  # a float32 scalar, and unreduced metrics

# Settings that objectives share.
MASKING = ("mask_prob", "mask_prob_end", "replace_prob", "random_prob", "whole_words")
SAMPLING = ("temperature", "temperature_decay", "disallow_correct")
GENERATORS = ("transformer", "unigram", "uniform", "clusters")
_CONSTANT = -1.0  # value of `mask_prob_end` that means: same as `mask_prob`
_SHARE = Check(lambda value: value == _CONSTANT or 0 < value < 1, "more than 0, less than 1, or -1")


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """The pre-training objective. A config has only those of these settings that its objective uses."""

    # The defaults are the values of google-research/electra.

    name: str = setting("electra", "Pre-training objective; set by the config argument objective=NAME.")
    mask_prob: float = setting(0.15, "Masking rate: fraction of positions that are masked.", between(0, 1))
    mask_prob_end: float = setting(
        _CONSTANT, "Masking rate at the end of the run, reached linearly; -1 keeps it constant.", _SHARE
    )
    replace_prob: float = setting(0.85, "Fraction of masked positions that are replaced by [MASK].", within(0, 1))
    random_prob: float = setting(0.0, "Fraction of masked positions that are replaced by a random token.", within(0, 1))
    whole_words: bool = setting(False, "Whole-word masking: mask all pieces of a word or none.")
    generator: str = setting(
        "transformer",
        "Distribution that replacements are sampled from; set by the config argument generator=KIND.",
        one_of(*GENERATORS),
    )
    temperature: float = setting(1.0, "Temperature at which replacements are sampled.", above(0))
    temperature_decay: float = setting(
        0.0,
        "Time constant of the temperature's exponential decay towards 1, as a fraction of the run; 0: constant "
        "temperature.",
        at_least(0),
    )
    disallow_correct: bool = setting(False, "Never sample the original token as a replacement.")
    generator_weight: float = setting(1.0, "Weight of the generator's loss.", at_least(0))
    discriminator_weight: float = setting(50.0, "Weight of the discriminator's loss.", at_least(0))
    encoder_weight: float = setting(
        1.0, "Weight of the encoder's token-prediction loss; at 0, electra_mlm computes no prediction.", at_least(0)
    )
    encoder_mask_prob: float = setting(
        0.5,
        "Fraction of the masked positions at which the encoder reads [MASK] instead of a sampled replacement.",
        between(0, 1),
    )
    encoder_positions: str = setting(
        "masked",
        "Positions at which the encoder predicts the original tokens: the masked ones, or all of them, through the "
        "discriminator as a copy gate.",
        one_of("masked", "all"),
    )
    generator_steps: int = setting(0, "Number of initial steps that train the generator alone.", at_least(0))

    @property
    def largest_mask_prob(self) -> float:
        """The largest masking rate of any step; all steps compute this many masked positions."""
        return max(self.mask_prob, self.mask_prob_end)


UNIGRAM, CONSTANT = "unigram_entropy", "constant_entropy"  # metrics that are baselines of losses
# Those of the objectives of ELECTRA's family; those that are not measured are not printed.
LOSSES = {"mlm_loss": NamedLoss("MLM", UNIGRAM), "disc_loss": NamedLoss("detection", CONSTANT)}


class Head(NamedTuple):
    """A head on a network's hidden states.

    Attributes:
      name: the kind of head.
      everywhere: whether it reads every position; otherwise it reads the masked positions only.
    """

    name: Literal["mlm", "discriminator", "copy"]
    everywhere: bool


# FLOPs are counted from these: a head at the masked positions costs M / L of one at all.
MASKED_MLM, DISCRIMINATION = Head("mlm", everywhere=False), Head("discriminator", everywhere=True)


@dataclasses.dataclass(frozen=True)
class Pass:
    """One network's pass over a batch, for counting FLOPs.

    Attributes:
      network: the network that reads the batch.
      heads: the heads that read its states.
      trained: whether there is a backward pass.
    """

    network: Literal["generator", "encoder"]
    heads: tuple[Head, ...]
    trained: bool = True


class Inputs(NamedTuple):
    """Inputs of a loss, besides the parameters.

    Attributes:
      masked: the masked batch, or a micro-batch of it.
      counts: the counts of the whole batch.
      step: int32, the number of steps done.
      key: the step's dropout key; None if dropout is off.
    """

    masked: masking.Masked
    counts: masking.Counts
    step: Array
    key: Array | None = None

    @property
    def generator_key(self) -> Array | None:
        # A stream for each network, so that with tying=all their dropout differs.
        return None if self.key is None else rng.dropout_key(self.key, rng.Dropout.GENERATOR)

    @property
    def encoder_key(self) -> Array | None:
        return None if self.key is None else rng.dropout_key(self.key, rng.Dropout.ENCODER)


class Detection(NamedTuple):
    """A corrupted text and the encoder's scores for it.

    Attributes:
      input_ids: [B, L] int32, the text with fakes.
      labels: [B, L] float32, 1 where the token was replaced.
      scores: [B, L] float32, the encoder's logits of "this token was replaced".
    """

    input_ids: Array
    labels: Array
    scores: Array


@dataclasses.dataclass(frozen=True)
class Stage:
    """Consecutive steps with the same loss. Each stage has a learning-rate schedule of its own.

    Attributes:
      steps: the number of steps.
      passes: the passes that a step computes, for counting FLOPs.
      loss: (objective, params, inputs) -> the loss and its unreduced metrics; see `Objective.measure`.
      trainable: top-level names of the trainable parameters; None: all. The others do not change.
      init_params: applied to the parameters once, when the stage begins; None: they stay as they are.
    """

    steps: int
    passes: tuple[Pass, ...]
    loss: Callable[["Objective", Params, Inputs], Loss]
    trainable: tuple[str, ...] | None = None
    init_params: Callable[[Params], Params] | None = None


@dataclasses.dataclass(frozen=True)
class ObjectiveSpec:
    """One row of the table of objectives.

    Attributes:
      summary: one line about what the encoder learns.
      paper: the paper and its table or figure.
      settings: the names of the settings of `ObjectiveConfig` that it uses.
      heads: the heads, as in `ElectraConfig.heads`.
      stages: (settings, steps of the run) -> the stages, in order; their steps add up to those of the run.
      defaults: those of its settings that differ from the defaults there; a function takes the run's steps.
      generator: None, `masked` (it reads [MASK]) or `two_towers`.
      model: settings of `ModelConfig` that it prescribes.
      losses: the names and the baselines of its losses by metric, in display order.
      detect: (objective, params, inputs) -> `Detection`; None if the encoder does not detect fakes.
      scores: the meaning of the sigmoid of the discriminator's score, if it is not the probability that the token was
        replaced.
      pretrained_generator: whether the generator is pre-trained (`config.generator_from`) and stays frozen.
    """

    summary: str
    paper: str
    settings: tuple[str, ...]
    heads: tuple[str, ...]
    stages: Callable[[ObjectiveConfig, int], tuple[Stage, ...]]
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    generator: str | None = "masked"
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    losses: Mapping[str, NamedLoss] = dataclasses.field(default_factory=lambda: LOSSES)
    detect: Callable[["Objective", Params, Inputs], Detection] | None = None
    scores: str = ""
    pretrained_generator: bool = False


@dataclasses.dataclass(frozen=True)
class Objective:
    """An objective with the settings, the networks and the vocabulary of a run.

    Attributes:
      system: its spec, a row of the table of objectives.
      settings: the run's `config.objective`.
      steps: the number of steps of the whole run.
      model: the networks.
      unigram: [V] float32, log-probabilities of the tokens in the training text.
      special: ids of the special tokens.
      word_starts: [V] bool, the pieces that begin a word.
      clusters: [V] int32, the clusters of `data.token_clusters`; all -1 with other generators.
    """

    system: ObjectiveSpec
    settings: ObjectiveConfig
    steps: int
    model: Electra
    unigram: np.ndarray
    special: Special
    word_starts: np.ndarray
    clusters: np.ndarray

    @property
    def encoder_reads_masks(self) -> bool:
        """True if the encoder is trained on text with [MASK]."""
        # Where `encoder_mask_prob` is a setting, the encoder reads [MASK] beside fakes.
        return self.system.generator is None or "encoder_mask_prob" in self.system.settings

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.system.stages(self.settings, self.steps)

    def mask_prob(self, step: Array) -> float | Array:
        """Computes the masking rate of the step that follows `step` steps (arXiv 2305.15096)."""
        s = self.settings
        if s.mask_prob_end == _CONSTANT:
            return s.mask_prob
        # The last step of training has `step` = `steps` - 1, so `mask_prob_end` is never quite reached.
        return s.mask_prob + (s.mask_prob_end - s.mask_prob) * (step.astype(jnp.float32) / self.steps)

    def mask(self, key: Array, batch: Batch, step: Array) -> masking.Masked:
        """Draws everything random about a batch, except dropout."""
        s = self.settings
        # Electric's generator reads the original text, so it has no such setting.
        reads_masks = "replace_prob" in self.system.settings
        return masking.mask(
            key,
            batch,
            self.model.config.vocab_size,
            self.special,
            self.mask_prob(step),
            s.replace_prob if reads_masks else 0.0,
            s.random_prob if reads_masks else 0.0,
            # M is a static shape while the rate changes from step to step, so M must fit the largest rate.
            masking.max_masked(batch.input_ids.shape[1], s.largest_mask_prob),
            jnp.asarray(self.word_starts) if s.whole_words else None,
        )

    def draw(self, key: Array, batch: Batch, step: Array) -> Inputs:
        """Draws the inputs of a loss over a whole batch, without dropout."""
        # For the whole batch, before it is divided, so that masks do not depend on gradient accumulation.
        masked = self.mask(key, batch, step)
        return Inputs(masked, masking.count(masked), step)

    def loss(self, stage: Stage, params: Params, x: Inputs) -> tuple[Array, metrics.Metrics]:
        """Computes the loss that a step of `stage` minimizes, and the metrics.

        Every term is a sum over `x.masked` divided by a count over the whole batch. So the losses and gradients of
        micro-batches add up to those of the whole batch, for any number of devices and accumulation steps.
        """
        loss, measured = self.measure(stage, params, x)
        return loss, metrics.over_batch(measured)

    def measure(self, stage: Stage, params: Params, x: Inputs) -> Loss:
        """Like `loss`, but returns unreduced, per-example metrics."""
        loss, measured = stage.loss(self, params, x)
        # Positions that are not padding: their total is the number of tokens that a run has read.
        return loss, {**measured, "tokens": metrics.total(x.masked.real)}


def one_stage(
    loss: Callable[[Objective, Params, Inputs], Loss], *passes: Pass, trainable: tuple[str, ...] | None = None
) -> Callable[[ObjectiveConfig, int], tuple[Stage, ...]]:
    """Returns the stages of an objective that has the same loss in every step: one stage.

    Fakes that are drawn by frequency need no pass of a generator.
    """

    def stages(settings: ObjectiveConfig, steps: int) -> tuple[Stage, ...]:
        used = tuple(each for each in passes if each.network == "encoder" or settings.generator == "transformer")
        return (Stage(steps, used, loss, trainable),)

    return stages
