"""ELECTRA: a generator fills masked positions, and the encoder detects which tokens it replaced (arXiv 2003.10555).

In this order: the generator and its loss, sampling fakes and inserting them into the text, the discriminator and the
total loss. Other objectives reuse these functions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from electra_jax.data.tokenizer import Special
from electra_jax.metrics import Scored, Unsummed, Weighted
from electra_jax.modeling import electra as networks
from electra_jax.modeling.config import VOCAB_MULTIPLE
from electra_jax.objectives import masking, spec
from electra_jax.objectives.spec import Detection, Inputs, Loss, Objective, ObjectiveConfig, Params, Pass, Stage

Array = jax.Array
LOWEST = np.finfo(np.float32).min
TRAINED_GENERATOR = Pass("generator", (spec.MASKED_MLM,))
FROZEN_GENERATOR = Pass("generator", (spec.MASKED_MLM,), trained=False)
DISCRIMINATOR = Pass("encoder", (spec.DISCRIMINATION,))
# The paper's weights.
WEIGHTS = ("generator_weight", "discriminator_weight")


########## The generator ###############################################################################################


class Corrupted(NamedTuple):
    """A text with fakes.

    Attributes:
      input_ids: [B, L] int32.
      labels: [B, L] float32, 1 where the token differs from the original.
      fakes: [B, M] int32, the samples; some equal the originals.
      logits: [B, M, V] float32, the generator's logits, for its loss; [1, 1, V] where they are the same everywhere.
      sampling_logits: of the same shape or [B, M, V], the logits that the fakes are sampled from, see `temper`.
      states: [B, M, D], the generator's states at the masked positions; None for a generator without parameters.
    """

    input_ids: Array
    labels: Array
    fakes: Array
    logits: Array
    sampling_logits: Array
    states: Array | None


def corrupt(o: Objective, params: Params, x: Inputs) -> Corrupted:
    """Runs the generator and replaces the masked positions by its samples; no gradient flows through the samples."""
    logits_BMV, states_BMD = _GENERATORS[o.settings.generator](o, params, x)
    sampling_logits = temper(o, logits_BMV, x)
    fakes_BM = sample(x.masked.uniform, jax.lax.stop_gradient(sampling_logits))
    corrupted_BL, labels_BL = put_fakes(x.masked, fakes_BM)
    return Corrupted(corrupted_BL, labels_BL, fakes_BM, logits_BMV, sampling_logits, states_BMD)


def _transformer(o: Objective, params: Params, x: Inputs) -> tuple[Array, Array | None]:
    batch = x.masked.batch._replace(input_ids=x.masked.input_ids)
    # [B, L, D] -> [B, M, D] -> [B, M, V].
    states_BLD = networks.generator_states(o.model, params, batch, x.generator_key)
    # Before the head: logits of all L positions would be six times as large.
    states_BMD = networks.gather_positions(states_BLD, x.masked.positions)
    return networks.generator_logits(o.model, params, states_BMD), states_BMD


def _unigram(o: Objective, params: Params, x: Inputs) -> tuple[Array, Array | None]:
    del params, x
    return unigram_logits(o), None


def unigram_logits(o: Objective) -> Array:
    """Returns the log-frequencies of the training text's tokens, [1, 1, V] float32 (arXiv 2003.10555, section 3.2)."""
    # Not repeated for each position: XLA would fold a constant [B, M, V], which takes minutes at real size.
    return jnp.asarray(o.unigram)[None, None]


def _clusters(o: Objective, params: Params, x: Inputs) -> tuple[Array, Array | None]:
    """Returns the log-frequencies of the tokens in the original's cluster, or of all tokens if it has none."""
    del params
    clusters_V = jnp.asarray(o.clusters)
    own_BM1 = clusters_V[x.masked.targets][..., None]
    return jnp.where((own_BM1 == clusters_V[None, None]) | (own_BM1 < 0), unigram_logits(o), LOWEST), None


def _uniform(o: Objective, params: Params, x: Inputs) -> tuple[Array, Array | None]:
    """Returns equal logits for all tokens that are not special (google-research/electra, `uniform_generator`)."""
    del params, x
    c = o.model.config
    return jnp.asarray(log_frequencies(np.ones(c.vocab_size), c.padded_vocab_size, o.special))[None, None], None


_GENERATORS = {"transformer": _transformer, "unigram": _unigram, "uniform": _uniform, "clusters": _clusters}


def log_frequencies(counts: np.ndarray, padded_size: int, special: Special) -> np.ndarray:
    """Computes log-probabilities [padded_size] float32 of tokens that occur `counts` [V] times, except special ones."""
    frequency = np.zeros(padded_size)
    frequency[: len(counts)] = counts
    # Special tokens occur in the text, and are no fakes.
    frequency[list(special)] = 0
    with np.errstate(divide="ignore"):
        logits = np.log(frequency / frequency.sum())
    result: np.ndarray = np.maximum(logits, LOWEST).astype(np.float32)
    return result


def generator_loss(o: Objective, corrupted: Corrupted, x: Inputs) -> Loss:
    """Computes generator_weight x MLM and its metrics; zero and no metrics for a generator without parameters."""
    if corrupted.states is None:
        return jnp.float32(0), {}
    loss, accuracy = mlm(corrupted.logits, x)
    return o.settings.generator_weight * loss.sum / x.counts.masked, {"mlm_loss": loss, "mlm_accuracy": accuracy}


def mlm(logits_BMV: Array, x: Inputs) -> tuple[Weighted, Weighted]:
    """Computes (negative log-likelihood, accuracy) of the originals at the masked positions."""
    return prediction(logits_BMV, x.masked.targets, x.masked.weights)


def prediction(logits_BMV: Array, targets_BM: Array, weights_BM: Array) -> tuple[Weighted, Weighted]:
    """Computes (negative log-likelihood, accuracy) of `targets_BM`."""
    nll_BM = -log_prob(logits_BMV, targets_BM)
    correct_BM = (first_highest(logits_BMV) == targets_BM).astype(jnp.float32)
    return Weighted(nll_BM, weights_BM), Weighted(correct_BM, weights_BM)


@jax.custom_jvp
def log_prob(logits: Array, ids: Array) -> Array:
    """Computes the log-probabilities [...] of `ids` [...] under the softmax of `logits` [..., V].

    The gradient by its custom derivative, one-hot minus softmax, takes one pass over the logits. That of a lookup is a
    scatter, which reads and writes an array of their size once more.
    """
    return _log_prob(logits, ids)[0]


@log_prob.defjvp
def _derivative(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    (logits, ids), (t, _) = primals, tangents
    result, total = _log_prob(logits, ids)
    is_id = _entries(logits) == ids[..., None]
    return result, jnp.sum((is_id.astype(logits.dtype) - jnp.exp(logits - total)) * t, axis=-1)


def _log_prob(logits: Array, ids: Array) -> tuple[Array, Array]:
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    return (jnp.take_along_axis(logits, ids[..., None], axis=-1) - total)[..., 0], total


def _entries(x: Array) -> Array:
    return jnp.arange(x.shape[-1], dtype=jnp.int32).reshape(*(1 for _ in x.shape[:-1]), -1)


def first_highest(x: Array) -> Array:
    """Computes `jnp.argmax` over the last axis, int32, by two simple reductions: ten times as fast on XLA:CPU."""
    x = jax.lax.stop_gradient(x)
    return jnp.min(jnp.where(x == jnp.max(x, axis=-1, keepdims=True), _entries(x), x.shape[-1]), axis=-1)


########## Fakes #######################################################################################################


def temper(o: Objective, logits_BMV: Array, x: Inputs) -> Array:
    """Returns the logits to sample fakes from: divided by the temperature; `disallow_correct` removes the original."""
    logits = soften(o, logits_BMV, x.step)
    if o.settings.disallow_correct:
        logits = jnp.where(_entries(logits) == x.masked.targets[..., None], LOWEST, logits)
    return logits


def soften(o: Objective, logits: Array, step: Array) -> Array:
    """Divides logits by the temperature."""
    # A temperature below 1 would turn the lowest float into -inf.
    return jnp.maximum(logits / temperature(o, step), LOWEST)


def temperature(o: Objective, step: Array) -> Array:
    """Computes 1 + (temperature - 1) exp(-u / temperature_decay), where u is the fraction of the run that is done.

    This is Fast-ELECTRA's schedule (arXiv 2310.07347). If `temperature_decay` is 0, the temperature is constant.
    """
    start, decay = o.settings.temperature, o.settings.temperature_decay
    if not decay:
        return jnp.asarray(start, jnp.float32)
    done = step.astype(jnp.float32) / o.steps
    return 1 + (start - 1) * jnp.exp(-done / decay)


def sample(uniform: Array, logits: Array, block: int = VOCAB_MULTIPLE) -> Array:
    """Draws one entry from each categorical distribution, using one uniform number per draw.

    Gumbel sampling needs a random number for every entry. This inverts the cumulative distribution in two levels, first
    over blocks of the vocabulary, then within the chosen block: exact up to float32 rounding.

    Args:
      uniform: [...] float32 in [0, 1), one number per draw.
      logits: [..., V] float32, unnormalized log-probabilities; V is a multiple of `block`. Along an axis of size 1, all
        draws share one distribution, whose sums are then computed once.
      block: entries in a block.

    Returns:
      Ids [...] int32. An entry whose probability rounds to 0 is never drawn.
    """
    rows, size = logits.shape[:-1], logits.shape[-1]
    if size % block:
        raise ValueError(f"{size} entries cannot be split into blocks of {block}: expected a multiple of {block}")
    # The largest entry becomes exp(0), so none overflows.
    highest = jnp.max(logits, axis=-1, keepdims=True)
    # [..., V] -> [..., V / block, block].
    mass = jnp.exp(logits - highest).reshape(*rows, size // block, block)
    chosen, rest = _invert(jnp.sum(mass, axis=-1), uniform)
    # [..., block], the chosen block of each draw.
    within = jnp.take_along_axis(mass, chosen[..., None, None], axis=-2)[..., 0, :]
    entry, _ = _invert(within, rest)
    return chosen * block + entry


def _invert(mass: Array, uniform: Array) -> tuple[Array, Array]:
    """Returns the entry of `mass` [..., n] at quantile `uniform` [...], and the quantile within that entry.

    Both quantiles are in [0, 1). Only entries of positive mass qualify, so that rounding in the cumulative sum cannot
    select an empty one. Axes of `mass` may have size 1, as in `sample`.
    """
    ends = jnp.cumsum(mass, axis=-1)
    # The highest end that qualifies, not the last of the sums: `target` must lie below an entry's end.
    total = jnp.max(jnp.where(mass > 0, ends, 0.0), axis=-1)
    target = (uniform * total)[..., None]
    index = jnp.argmax((ends > target) & (mass > 0), axis=-1).astype(jnp.int32)
    end = jnp.take_along_axis(ends, index[..., None], axis=-1)
    size = jnp.take_along_axis(mass, index[..., None], axis=-1)
    into = 1.0 - (end - target) / size
    # `within` is inverted at the rest, which must be below 1 like a uniform number.
    return index, jnp.clip(into[..., 0], 0.0, 1.0 - 2.0**-24)  # the largest float32 below 1


def put_fakes(masked: masking.Masked, fakes_BM: Array) -> tuple[Array, Array]:
    """Inserts fakes at the masked positions. Returns the text, and labels [B, L] float32: 1 where the token changed."""
    corrupted = masking.scatter(masked.original, masked.positions, fakes_BM, masked.weights > 0)
    # Compared, not marked: a sample that equals the original counts as original.
    return corrupted, (corrupted != masked.original).astype(jnp.float32)


########## The discriminator ###########################################################################################


def discriminate(o: Objective, params: Params, x: Inputs, input_ids_BL: Array) -> Array:
    """Computes logits of "this token was replaced" at every position of `input_ids_BL`, [B, L] float32."""
    batch = x.masked.batch._replace(input_ids=input_ids_BL)
    states_BLD = networks.encode(o.model, params, batch, x.encoder_key)
    return networks.discriminator_logits(o.model, params, states_BLD, batch.sequence_ids)


def detection_loss(scores_BL: Array, labels_BL: Array, weights_BL: Array) -> tuple[Weighted, Unsummed]:
    """Computes the sigmoid cross-entropy, and metrics: loss, accuracy, AUC, and the fraction of replaced positions."""
    agreed = ((scores_BL > 0) == (labels_BL > 0)).astype(jnp.float32)
    loss = Weighted(optax.sigmoid_binary_cross_entropy(scores_BL, labels_BL), weights_BL)
    return loss, {
        "disc_loss": loss,
        "disc_accuracy": Weighted(agreed, weights_BL),
        "disc_auc": Scored(scores_BL, labels_BL, weights_BL),
        "replaced_fraction": Weighted(labels_BL, weights_BL),
    }


def loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """Computes generator_weight x MLM + discriminator_weight x replaced-token detection outside of padding."""
    return _loss(o, params, x, x.masked.real, x.counts.real)


def loss_15(o: Objective, params: Params, x: Inputs) -> Loss:
    """Like `loss`, but detection is trained and measured at the masked positions only."""
    return _loss(o, params, x, x.masked.chosen, x.counts.masked)


def _loss(o: Objective, params: Params, x: Inputs, weights_BL: Array, count: Array) -> Loss:
    corrupted = corrupt(o, params, x)
    generator, measured = generator_loss(o, corrupted, x)
    detection, detected = detection_loss(discriminate(o, params, x, corrupted.input_ids), corrupted.labels, weights_BL)
    # `count` is of the whole batch, so micro-batches add up.
    total = generator + o.settings.discriminator_weight * detection.sum / count
    return total, {**measured, **detected}


def generator_alone_loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """Computes `generator_loss` alone. Discriminator metrics have zero weight, so all steps log the same names."""
    loss, measured = generator_loss(o, corrupt(o, params, x), x)
    nothing = jnp.zeros_like(x.masked.real)
    return loss, {**measured, **detection_loss(nothing, nothing, nothing)[1]}


def frozen_generator_loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """Computes discriminator_weight x replaced-token detection; the generator, without dropout, is only measured."""
    corrupted = corrupt(o, params, x._replace(key=None))
    # Only logged: without it in the loss, no backward pass of the generator is computed.
    nll, accuracy = mlm(corrupted.logits, x)
    scores_BL = discriminate(o, params, x, corrupted.input_ids)
    detection, detected = detection_loss(scores_BL, corrupted.labels, x.masked.real)
    total = o.settings.discriminator_weight * detection.sum / x.counts.real
    return total, {"mlm_loss": nll, "mlm_accuracy": accuracy, **detected}


def detect(o: Objective, params: Params, x: Inputs) -> Detection:
    """Returns the text with the generator's fakes, and the encoder's logits for it."""
    corrupted = corrupt(o, params, x)
    return Detection(corrupted.input_ids, corrupted.labels, discriminate(o, params, x, corrupted.input_ids))


def after_generator(
    loss: Callable[[Objective, Params, Inputs], Loss],
) -> Callable[[ObjectiveConfig, int], tuple[Stage, ...]]:
    """Returns a stage that trains all, after `generator_steps` steps that train only the generator's own parameters.

    The embeddings do not change in these steps, so a trained encoder does not change either.
    """
    both = spec.one_stage(loss, TRAINED_GENERATOR, DISCRIMINATOR)

    def stages(settings: ObjectiveConfig, steps: int) -> tuple[Stage, ...]:
        first = settings.generator_steps  # less than `steps`, see `registry.check`
        if not first:
            return both(settings, steps)
        alone = Stage(first, (TRAINED_GENERATOR,), generator_alone_loss, trainable=("generator", "generator_head"))
        return (alone, *both(settings, steps - first))

    return stages


ELECTRA = spec.ObjectiveSpec(
    summary="replaced-token detection at every position",
    paper="ELECTRA, tables 1 and 5",
    settings=(*spec.MASKING, "generator", *spec.SAMPLING, *WEIGHTS, "generator_steps"),
    heads=("discriminator_head",),
    stages=after_generator(loss),
    detect=detect,
)
ELECTRA_15 = spec.ObjectiveSpec(
    summary="replaced-token detection at the masked positions only",
    paper="ELECTRA 15%, table 5",
    settings=ELECTRA.settings,
    heads=("discriminator_head",),
    stages=after_generator(loss_15),
    detect=detect,
)
