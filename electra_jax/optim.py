"""The reference's optimizer, which is Adam without bias correction, and Muon, as chains of optax transformations."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from optax.contrib import MuonDimensionNumbers

from electra_jax.config.settings import above, above_up_to, at_least, from_up_to_below, one_of, setting
from electra_jax.runtime import rng

Rates = Sequence[tuple[int, float]]  # (steps, peak learning rate) of each phase
_NOT_DECAYED = ("bias", "scale")  # suffixes of the names of biases and layer-norm scales


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    """The optimizer and its learning rate, with the paper's values (arXiv 2003.10555, appendix A)."""

    name: str = setting(
        "adam",
        "Optimizer for the weight matrices of the layers; embeddings, biases and norms always use Adam.",
        one_of("adam", "muon"),
    )
    learning_rate: float = setting(5e-4, "Peak learning rate.", above_up_to(0, 1))
    muon_rate: float = setting(1.0, "Muon's learning rate, as a multiple of learning_rate.", above(0))
    generator_rate: float = setting(
        1.0, "Learning rate of the generator's own parameters, as a multiple of learning_rate.", above(0)
    )
    schedule: str = setting(
        "linear",
        "Learning-rate schedule: linear or cosine decay over the whole run, or warmup-stable-decay (constant, then "
        "linear decay over the last `decay` of the steps).",
        one_of("linear", "cosine", "stable"),
    )
    decay: float = setting(0.2, "Fraction of the steps, at the end, over which `stable` decays.", above_up_to(0, 1))
    warmup_steps: int = setting(10_000, "Number of linear warm-up steps.", at_least(0))
    weight_decay: float = setting(0.01, "Decoupled weight decay; not applied to biases and layer norms.", at_least(0))
    b1: float = setting(0.9, "Adam's beta1.", from_up_to_below(0, 1))
    b2: float = setting(0.999, "Adam's beta2.", from_up_to_below(0, 1))
    eps: float = setting(1e-6, "Adam's epsilon.", above(0))
    clip_norm: float = setting(1.0, "Gradient clipping by global norm.", above(0))
    clip_apart: bool = setting(
        False, "Clip the gradients of the generator's own parameters separately from all others."
    )
    moments_dtype: str = setting(
        "float32",
        "Storage dtype of Adam's moments; bfloat16 uses stochastic rounding.",
        one_of("float32", "bfloat16"),
    )


def schedule(peak: float, warmup_steps: Any, steps: Any, shape: str = "linear", decay: float = 0.2) -> optax.Schedule:
    """Returns the schedule peak x decay(t) x min(1, t / warmup_steps); the decay also runs during the warm-up.

    google-research/electra, model/optimization.py: polynomial_decay times warm-up.

    Args:
      peak: the peak learning rate.
      warmup_steps: the number of warm-up steps.
      steps: the number of steps in total; from then on the rate is 0.
      shape: decay(t) is 1 - t / steps (`linear`), (1 + cos(pi t / steps)) / 2 (`cosine`), or 1 and then, over the last
        `decay` of the steps, linear to 0 (`stable`: warmup-stable-decay, arXiv 2404.06395).
      decay: the fraction of the steps over which `stable` decays.
    """

    def rate(count: Any) -> Any:
        t = jnp.asarray(count, jnp.float32)
        left = jnp.maximum(0.0, 1 - t / steps)
        # All shapes are functions of `left`, so they stay at 0 after the last step.
        shapes = {
            "linear": lambda: left,
            "cosine": lambda: (1 - jnp.cos(jnp.pi * left)) / 2,
            "stable": lambda: jnp.minimum(1.0, left / decay),
        }
        # `maximum` avoids 0 / 0 at the first step of a run without warm-up.
        return peak * shapes[shape]() * jnp.minimum(1.0, t / jnp.maximum(1.0, warmup_steps))

    return rate


def in_stages(settings: OptimConfig, stages: Sequence[int], rates: Rates = ()) -> optax.Schedule:
    """Returns `schedule` restarted at each stage, warm-up included; `stages` are the stages' numbers of steps.

    If there are several stages, a stage shorter than ten warm-ups warms up over a tenth of its steps. A phase with a
    learning rate of its own has the same schedule with that peak.
    """
    s = settings
    warmups = [min(s.warmup_steps, -(-steps // 10)) if len(stages) > 1 else s.warmup_steps for steps in stages]
    schedules = [
        schedule(s.learning_rate, warmup, steps, s.schedule, s.decay)
        for warmup, steps in zip(warmups, stages, strict=True)
    ]
    # `join_schedules` passes each schedule the count since its boundary, so warm-up and decay start again.
    whole = optax.join_schedules(schedules, list(itertools.accumulate(stages[:-1])))
    peaks = [rate for _, rate in rates]
    if set(peaks) <= {s.learning_rate}:
        return whole
    ends = list(itertools.accumulate(steps for steps, _ in rates))[:-1]
    # Phases divide the run elsewhere than stages do, so their rates are a factor on the whole schedule.
    factor = optax.join_schedules([optax.constant_schedule(peak / s.learning_rate) for peak in peaks], ends)
    return lambda count: whole(count) * factor(count)


def scale_by_uncorrected_adam(
    b1: float, b2: float, eps: float, dtype: Any = jnp.float32
) -> optax.GradientTransformation:
    """Returns Adam without bias correction, with epsilon outside the square root: m / (sqrt(v) + eps).

    google-research/electra, model/optimization.py, AdamWeightDecayOptimizer; optax.scale_by_adam always corrects.

    Args:
      b1, b2, eps: Adam's hyperparameters.
      dtype: storage dtype of the moments, which are computed in float32. In bfloat16, second moments use stochastic
        rounding: with b2 = .999 an update is below half a unit in the last place and would otherwise be lost.
    """

    def init(params: Any) -> optax.ScaleByAdamState:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, dtype), params)
        return optax.ScaleByAdamState(count=jnp.zeros((), jnp.int32), mu=zeros, nu=zeros)

    def update(grads: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        del params
        old_mu, old_nu = optax.tree.cast((state.mu, state.nu), jnp.float32)
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, old_mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), old_nu, grads)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        # First moments are rounded to nearest: with b1 = .9, updates are far above half a unit in the last place.
        if dtype == jnp.bfloat16:
            mu, nu = optax.tree.cast(mu, dtype), stochastic_round(rng.rounding_key(state.count), nu)
        # The count is only used for the key of the rounding: there is no bias correction.
        return updates, optax.ScaleByAdamState(count=state.count + 1, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def stochastic_round(key: jax.Array, tree: Any) -> Any:
    """Rounds a float32 tree to bfloat16, up or down with probabilities that preserve each number's expectation.

    A bfloat16 is the upper half of a float32, so this adds 16 random bits to the lower half and truncates.
    """
    leaves, structure = jax.tree.flatten(tree)

    def round_leaf(key: jax.Array, x: jax.Array) -> jax.Array:
        noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
        bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + noise
        return jax.lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)

    # With one key for all, leaves of the same shape would get the same noise.
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [round_leaf(key, x) for key, x in zip(keys, leaves, strict=True)])


def decay_mask(params: Any) -> Any:
    """Returns a tree that is True where weight decay applies: not for biases and layer norms."""
    return jax.tree_util.tree_map_with_path(lambda path, _: not path[-1].key.endswith(_NOT_DECAYED), params)


# Input and output axes of each kind of weight matrix in the layers, by its name and its rank without the first axis,
# which indexes the layers. Queries, keys and values are a matrix each, as are the two halves of a gated layer.
_MATRICES = {
    ("qkv", 4): MuonDimensionNumbers(1, (3, 4)),  # [layers, D, 3, H, K]
    ("out", 3): MuonDimensionNumbers((1, 2), 3),  # [layers, H, K, D]
    ("ffn_in", 2): MuonDimensionNumbers(1, 2),  # [layers, D, F]
    ("ffn_in", 3): MuonDimensionNumbers(1, 3),  # [layers, D, 2, F]
    ("ffn_out", 2): MuonDimensionNumbers(1, 2),  # [layers, F, D]
}
# Newton-Schulz iterations; the FLOPs of a run count them too.
MUON_STEPS = 5
_MUON_MOMENTUM = 0.95
_MUON_RMS = 0.2  # root mean square of an update, about that of Adam's (arXiv 2502.16982)


def _matrix(path: Any, leaf: Any) -> MuonDimensionNumbers | None:
    """Returns the input and output axes of a weight matrix in the layers; None for other parameters."""
    names = [key.key for key in path]
    if "layers" not in names or names[-1] != "kernel":
        return None
    return _MATRICES[names[-2], leaf.ndim - 1]


def scale_by_muon(rate: float, dtype: Any = jnp.float32) -> optax.GradientTransformation:
    """Returns Muon for the weight matrices of the layers: momentum orthogonalized by Newton-Schulz iterations.

    Updates are scaled by .2 sqrt(max(inputs, outputs)), which gives their elements the magnitude of Adam's, so that one
    learning rate and weight decay serve both (arXiv 2502.16982, section 2.2).

    Args:
      rate: multiple of the learning rate.
      dtype: storage dtype of the momentum.
    """

    def dimensions(updates: Any) -> Any:
        return jax.tree_util.tree_map_with_path(_matrix, updates)

    def scale(path: Any, update: Any) -> Any:
        matrix = _matrix(path, update)
        assert matrix is not None
        # The numbers of inputs and outputs; each may be a product of axes, such as heads x head size.
        sizes = (math.prod(np.take(update.shape, axes).flat) for axes in matrix)
        return rate * _MUON_RMS * max(sizes) ** 0.5 * update

    muon = optax.contrib.scale_by_muon(
        ns_steps=MUON_STEPS, beta=_MUON_MOMENTUM, mu_dtype=dtype, weight_dimension_numbers=dimensions
    )

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        # optax raises a float to the power of an integer, which JAX's strict promotion rejects.
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            updates, state = muon.update(updates, state, params)
        return jax.tree_util.tree_map_with_path(scale, updates), state

    return optax.GradientTransformation(muon.init, update)


def _by_matrix(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: "adam" if _matrix(path, leaf) is None else "muon", params
    )


def _by_network(params: Any) -> Any:
    """Labels the generator's own parameters `generator` and all others, shared embeddings included, `encoder`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "generator" if path[0].key.startswith("generator") else "encoder", params
    )


def make(settings: OptimConfig, *stages: int, rates: Rates = ()) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Builds the optimizer: clipping by global norm, Adam or Muon, and decoupled weight decay lr x wd x p.

    Args:
      settings: the run's `config.optim`.
      stages: the number of steps in each stage of the run; the learning-rate schedule restarts at each stage.
      rates: the number of steps of each phase and its peak learning rate; empty: the run's.

    Returns:
      The optimizer and the learning-rate schedule, for logging.
    """
    rate, dtype = in_stages(settings, stages, rates), jnp.dtype(settings.moments_dtype)
    clip = optax.clip_by_global_norm(settings.clip_norm)
    if settings.clip_apart:
        # Under `partition`, each label has a global norm of its own.
        clip = optax.partition({"generator": clip, "encoder": clip}, _by_network)
    scale = scale_by_uncorrected_adam(settings.b1, settings.b2, settings.eps, dtype)
    if settings.name == "muon":
        scale = optax.partition({"adam": scale, "muon": scale_by_muon(settings.muon_rate, dtype)}, _by_matrix)
    # The weight decay comes after Adam's division by the second moments: it is decoupled (AdamW).
    parts = [clip, scale, optax.add_decayed_weights(settings.weight_decay, decay_mask)]
    # After the weight decay: decoupled decay is lr x wd x p, with the generator's own lr.
    if settings.generator_rate != 1:
        own = {"generator": optax.scale(settings.generator_rate), "encoder": optax.identity()}
        parts.append(optax.partition(own, _by_network))
    return optax.chain(*parts, optax.scale_by_learning_rate(rate)), rate
