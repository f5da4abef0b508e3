"""The generator's part: it fills the masked positions with samples; the encoder reads the text with those."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from electra_jax import metrics
from electra_jax.modeling import electra as networks
from electra_jax.objectives import masking, sampling
from electra_jax.objectives.spec import Inputs, Loss, Objective, ObjectiveConfig, Params, Pass, Stage

Array = jax.Array
LOWEST = jnp.finfo(jnp.float32).min
LEARNING = Pass("generator", "mlm", everywhere=False)
RESTING = Pass("generator", "mlm", everywhere=False, trained=False)


class Corrupted(NamedTuple):
    """A text with fakes.

    Attributes:
      input_ids: [B, L] int32.
      labels: [B, L] float32, 1 where the token is another than the original.
      fakes: [B, M] int32, the samples, some of them equal to the originals.
      logits: [B, M, V] float32, the generator's, as it was trained.
      sampled: [B, M, V] float32, those that the fakes were drawn from: tempered, the original perhaps forbidden.
      states: [B, M, D], the generator's at the masked positions; None where it has none.
    """

    input_ids: Array
    labels: Array
    fakes: Array
    logits: Array
    sampled: Array
    states: Array | None


def corrupt(o: Objective, params: Params, x: Inputs) -> Corrupted:
    """Runs the generator and draws the fakes; no gradient goes through them."""
    logits_BMV, states = _GENERATORS[o.settings.generator](o, params, x)
    sampled = temper(o, logits_BMV, x)
    fakes_BM = sampling.categorical(x.masked.uniform, jax.lax.stop_gradient(sampled))
    corrupted, labels_BL = put_fakes(x.masked, fakes_BM)
    return Corrupted(corrupted, labels_BL, fakes_BM, logits_BMV, sampled, states)


def temper(o: Objective, logits_BMV: Array, x: Inputs) -> Array:
    """The logits that fakes are drawn from: over the temperature; with `disallow_correct` without the original."""
    logits = soften(o, logits_BMV, x.step)
    if o.settings.disallow_correct:
        entries = jnp.arange(logits.shape[-1])[None, None]
        logits = jnp.where(entries == x.masked.targets[..., None], LOWEST, logits)
    return logits


def soften(o: Objective, logits: Array, step: Array) -> Array:
    """The logits divided by the temperature."""
    return jnp.maximum(logits / temperature(o, step), LOWEST)  # one below 1 takes the lowest float to -inf


def temperature(o: Objective, step: Array) -> Array:
    """1 + (temperature - 1) exp(-u / temperature_decay), u the share of the run that is done; constant where it is 0.

    Fast-ELECTRA's schedule (arXiv 2310.07347).
    """
    start, decay = o.settings.temperature, o.settings.temperature_decay
    if not decay:
        return jnp.float32(start)
    done = step.astype(jnp.float32) / o.steps
    return 1 + (start - 1) * jnp.exp(-done / decay)


def put_fakes(masked: masking.Masked, fakes_BM: Array) -> tuple[Array, Array]:
    """The original text with fakes at the masked positions, and labels [B, L] float32: 1 where the token changed."""
    corrupted = masking.scatter(masked.original, masked.positions, fakes_BM, masked.weights > 0)
    return corrupted, (corrupted != masked.original).astype(jnp.float32)


def generator_loss(o: Objective, found: Corrupted, x: Inputs) -> Loss:
    """generator_weight x MLM, and its metrics; nothing for a generator that has no parameters."""
    if found.states is None:
        return jnp.float32(0), {}
    loss, accuracy = mlm(found.logits, x)
    return o.settings.generator_weight * loss.sum / x.counts.masked, {"mlm_loss": loss, "mlm_accuracy": accuracy}


def beside(encoder: Pass) -> Callable[[ObjectiveConfig, int], tuple[Stage, ...]]:
    """In every step `encoder`, and the generator where it has parameters."""

    def stages(settings: ObjectiveConfig, steps: int) -> tuple[Stage, ...]:
        generator = (LEARNING,) if settings.generator == "transformer" else ()
        return (Stage(steps, (*generator, encoder)),)

    return stages


def mlm(logits_BMV: Array, x: Inputs) -> tuple[metrics.Mean, metrics.Mean]:
    """(negative log-likelihood, accuracy) of the originals at the masked positions."""
    return prediction(logits_BMV, x.masked.targets, x.masked.weights)


def prediction(logits_BMV: Array, targets_BM: Array, weights_BM: Array) -> tuple[metrics.Mean, metrics.Mean]:
    """(negative log-likelihood, accuracy) of `targets_BM`."""
    nll_BM = optax.softmax_cross_entropy_with_integer_labels(logits_BMV, targets_BM)
    correct_BM = (jnp.argmax(logits_BMV, axis=-1) == targets_BM).astype(jnp.float32)
    return metrics.mean(nll_BM, weights_BM), metrics.mean(correct_BM, weights_BM)


def _transformer(o: Objective, params: Params, x: Inputs) -> tuple[Array, Array | None]:
    states_BLD = networks.read(o.model, params, "generator", x.masked.batch, x.masked.input_ids, x.generator_key)
    states_BMD = networks.gather_positions(states_BLD, x.masked.positions)
    return networks.predict(o.model, params, "generator", states_BMD), states_BMD


def unigram_logits(o: Objective, x: Inputs) -> Array:
    """Of fakes as frequent as in the training text, [B, M, V] float32 (arXiv 2003.10555, section 3.2)."""
    return jnp.broadcast_to(jnp.asarray(o.unigram), (*x.masked.positions.shape, len(o.unigram)))


def _unigram(o: Objective, params: Params, x: Inputs) -> tuple[Array, Array | None]:
    del params
    return unigram_logits(o, x), None


def _uniform(o: Objective, params: Params, x: Inputs) -> tuple[Array, Array | None]:
    """Every token alike, special ones aside (google-research/electra, `uniform_generator`)."""
    del params
    c = o.model.config
    ones = sampling.log_frequencies(np.ones(c.vocab_size), c.padded_vocab_size, o.special)
    return jnp.broadcast_to(jnp.asarray(ones), (*x.masked.positions.shape, len(ones))), None


_GENERATORS = {"transformer": _transformer, "unigram": _unigram, "uniform": _uniform}
