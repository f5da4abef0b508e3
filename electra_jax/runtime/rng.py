"""Random streams: every random number of a run comes from its seed and one of these names.

The values are part of a run's results: changing one changes every run.
"""

import enum

import jax


class Stream(enum.IntEnum):
    """Independent streams of one seed."""

    INIT = 0  # initial parameters
    STEP = 1  # masks, fakes and dropout; folded with the number of the step
    EVALUATION = 2  # masks and fakes of held-out batches
    SAMPLES = 3  # masks and fakes of the sentences that are shown after training
    ROUNDING = 4  # stochastic rounding of moments; folded with the number of the step


class Dropout(enum.IntEnum):
    """Streams within a step's dropout key, one for each network."""

    GENERATOR = 0
    ENCODER = 1


def stream_key(seed: jax.Array | int, stream: Stream) -> jax.Array:
    """The key of one stream of a run; `seed` may be traced."""
    return jax.random.fold_in(jax.random.key(seed), int(stream))


def dropout_key(key: jax.Array, network: Dropout) -> jax.Array:
    """The dropout key of one network, from the step's dropout key."""
    return jax.random.fold_in(key, int(network))


def rounding_key(count: jax.Array) -> jax.Array:
    """The key for stochastic rounding of the moments in the optimizer's step `count`; the same for every seed."""
    return jax.random.fold_in(stream_key(0, Stream.ROUNDING), count)
