"""How far apart two float32 computations of the same numbers may be: a bound from the arithmetic, not a measurement.

A float32 sum of n terms is the exact sum of terms that are each off by some roundings, of 2**-24 at most. Roundings go
up as often as down, so that n of them amount to about sqrt(n) * 2**-24 (Higham and Mary, A New Approach to
Probabilistic Rounding Error Analysis, 2019). What is computed in float32 is therefore about what exact arithmetic makes
of weights that are off by as much. How much results depend on their weights is a property of the network, so it is
found by changing them: each up or down at random, by far more than rounding does, because the effect is proportional.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

UNIT = 2.0**-24  # a rounding to float32 is off by at most this share
_CHANGE = 2.0**-14  # a thousand roundings: what is found is exact to a few percent, and the effect still proportional


def bounds(outputs: Callable[[Any], Any], given: Any, longest: int, draws: int = 8) -> Any:
    """The largest difference that rounding explains between two float32 computations, for each array of `outputs`.

    Both are off, hence twice. A result's own last sum counts by its size: its terms need not depend on weights.

    Args:
      outputs: a function of `given`; a tree of arrays. Integers among them have the bound 0.
      given: a tree of weights, or other numbers that the results depend on; only float32 arrays are changed.
      longest: the number of terms of the longest sum.
      draws: how often all of `given` is changed, of which the largest effect counts; for few outputs, many.
    """
    expected = jax.tree.map(np.asarray, outputs(given))
    moved = jax.tree.map(lambda _: 0.0, expected)
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        found = outputs(jax.tree.map(lambda each, rng=rng: _change(rng, np.asarray(each)), given))
        moved = jax.tree.map(lambda most, a, b: max(most, _largest(np.asarray(a) - b)), moved, found, expected)
    roundings = 2 * longest**0.5 * UNIT

    def bound(value: np.ndarray, most: float) -> float:
        return roundings * (_largest(value) + most / _CHANGE) if value.dtype.kind == "f" else 0.0

    return jax.tree.map(bound, expected, moved)


def torch_bounds(model: Any, outputs: Callable[[Any], Any], longest: int, draws: int = 8) -> Any:
    """`bounds` for `outputs` of a PyTorch model in float32, whose weights are as before afterwards."""
    import torch

    weights = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}

    def of_weights(changed: dict[str, np.ndarray]) -> Any:
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(torch.from_numpy(changed[name]))
            return outputs(model)

    found = bounds(of_weights, weights, longest, draws)
    of_weights(weights)
    return found


def _change(rng: np.random.Generator, value: np.ndarray) -> np.ndarray:
    if value.dtype != np.float32:
        return value
    return value * np.where(rng.random(value.shape, np.float32) < 0.5, np.float32(1 - _CHANGE), np.float32(1 + _CHANGE))


def _largest(value: np.ndarray) -> float:
    return float(np.abs(value).max(initial=0))
