"""Protects the parameters of a run: updates with a bad gradient are skipped.

A skipped update leaves parameters and moments unchanged, bit for bit. Its step still counts: the number of the step,
its batch and its random key are not used again. The decision is made on the devices, inside the train step.
"""

import dataclasses
import math
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp

from electra_jax import metrics
from electra_jax.config.errors import UserError
from electra_jax.config.settings import Check, above, setting

Array = jax.Array
Tree = TypeVar("Tree")
WINDOW = 128
"""Gradient norms that the running median is taken of, as in OLMo-core's SkipStepOptimizer and levanter."""


@dataclasses.dataclass(frozen=True)
class GuardConfig:
    """Protection of a run from bad gradients; non-finite ones are always skipped."""

    spike: float = setting(
        0.0,
        "Skip an update whose gradient norm exceeds this multiple of the median over the last 128 steps; 0: off.",
        Check(lambda value: value == 0 or value > 1, "0, or more than 1"),
        resumable=True,
    )
    patience: int = setting(10, "End the run after this many consecutive skipped updates.", above(0), resumable=True)


def no_norms() -> Array:
    """Returns the gradient norms at the start of a run, [WINDOW] float32: none has been seen yet."""
    return jnp.zeros(WINDOW, jnp.float32)


def inspect(norms: Array, step: Array, loss: Array, norm: Array, spike: float) -> tuple[Array, Array]:
    """Decides whether the update of a step is applied.

    The update is skipped if the loss or the gradient norm is not finite, or if the norm is more than `spike` times the
    median of the previous norms. The median is used once there are WINDOW / 2 norms. Finite norms of skipped updates
    count too, so the median follows a lasting change.

    Args:
      norms: [WINDOW] float32, the norms of the last steps; 0 where a step had none.
      step: int32, the number of steps done.
      loss: the loss of the batch.
      norm: the global norm of the gradient, before clipping.
      spike: `GuardConfig.spike`; 0: spikes are not skipped.

    Returns:
      A bool scalar, whether the update is applied; and `norms` with this one.
    """
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    # A ring buffer. It stores 0 and not NaN: a checkpoint with a value that is not finite is refused.
    seen = norms.at[step % WINDOW].set(jnp.where(finite, norm, 0.0))
    # A Python number: a program without this protection computes no median.
    if spike == 0:
        return finite, seen
    enough = jnp.sum(norms > 0) >= WINDOW // 2
    # The median is that of `norms`, not of `seen`: a norm is compared with those before it.
    is_spike = enough & (norm > spike * jnp.nanmedian(jnp.where(norms > 0, norms, jnp.nan)))
    return finite & ~is_spike, seen


def select(accepted: Array, new: Tree, old: Tree) -> Tree:
    """Returns `new` if the update is accepted, else `old`; integers, which count steps, are always new.

    The learning rate and the random numbers of the optimizer therefore remain functions of the step.
    """

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(accepted, new, old) if jnp.issubdtype(new.dtype, jnp.inexact) else new

    return cast(Tree, jax.tree.map(choose, new, old))


def finite_only(measured: metrics.Metrics) -> metrics.Metrics:
    """Zeroes each metric that is not finite, its weight included, so that it does not spoil a mean."""

    def clean(metric: Any) -> Any:
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(metric)]))
        return jax.tree.map(lambda leaf: jnp.where(finite, leaf, jnp.zeros_like(leaf)), metric)

    return {name: clean(metric) for name, metric in measured.items()}


class SkipCounter:
    """Counter of consecutive skipped updates, which ends the run when there are too many.

    Attributes:
      in_a_row: the number of consecutive skipped updates up to now.
    """

    def __init__(self, patience: int, in_a_row: int = 0):
        self._patience = patience
        self.in_a_row = in_a_row

    def count(self, measured: metrics.Metrics, step: int, saved: int | None) -> None:
        """Counts the update of `step`.

        Args:
          measured: the step's metrics, on the host.
          step: the step.
          saved: the step of the last checkpoint; None if there is none.

        Raises:
          UserError: `patience` updates in a row were skipped.
        """
        self.in_a_row = self.in_a_row + 1 if measured["skipped_steps"].number() else 0
        if self.in_a_row < self._patience:
            return
        loss, norm = measured["loss"].number(), measured["grad_norm"].number()
        # `finite_only` has zeroed the weight of one that is not finite, so its mean is NaN.
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        cause = f"its gradient norm is {norm:.3g}" if is_finite else "its loss or gradient is not finite"
        back = "" if saved is None else f", or go back before it with --rewind_to={saved} --skip_batches=M"
        raise UserError(
            f"{self.in_a_row} updates in a row were skipped, up to step {step}: {cause}; nothing is saved after step "
            f"{saved or 0}; start again in another --workdir with a lower config.optim.learning_rate or a longer "
            f"config.optim.warmup_steps{back}"
        )
