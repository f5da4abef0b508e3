"""Random streams: every random number of a run derives from its seed and one of these streams.

The values are part of a run's results: changing one changes every run.
"""

import enum

import jax


class Stream(enum.IntEnum):
    """Independent streams of one seed."""

    INIT = 0  # initial parameters
    STEP = 1  # masks, fakes and dropout; folded with the step number
    EVALUATION = 2  # masks and fakes of held-out batches
    SAMPLES = 3  # masks and fakes of the sentences that are shown after training
    ROUNDING = 4  # stochastic rounding of moments; folded with the step number


class Dropout(enum.IntEnum):
    """Streams within a step's dropout key, one for each network."""

    GENERATOR = 0
    ENCODER = 1


def stream_key(seed: jax.Array | int, stream: Stream) -> jax.Array:
    """Returns the key of one stream of a run; `seed` may be traced."""
    return jax.random.fold_in(jax.random.key(seed), int(stream))


def dropout_key(key: jax.Array, network: Dropout) -> jax.Array:
    """Returns the dropout key of one network, from the step's dropout key."""
    return jax.random.fold_in(key, int(network))


def rounding_key(count: jax.Array) -> jax.Array:
    """Returns the key for stochastic rounding of moments in the optimizer's step `count`; the same for every seed."""
    return jax.random.fold_in(stream_key(0, Stream.ROUNDING), count)
