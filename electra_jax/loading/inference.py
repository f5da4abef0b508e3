"""Runs a trained network on rows of token ids, in length buckets whose compiled programs are cached on disk."""

import functools
from collections.abc import Callable
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from electra_jax.data.batches import pad_rows
from electra_jax.data.tokenizer import Special
from electra_jax.loading.text_batches import length_batches
from electra_jax.modeling import electra
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.electra import Electra
from electra_jax.modeling.subnetwork import Network
from electra_jax.runtime.compile_cache import compile_cache_unless_chosen

Array = jax.Array
Rows = list[list[int]]  # token ids without [CLS] and [SEP]
Pooling = Literal["mean", "cls"] | None
_WINDOW = 512  # positions; longer rows are split into windows


class Inference:
    """A network on the default device.

    Attributes:
      network: the network.
      special: ids of the special tokens.
      batch_size: rows per batch, see `length_batches`.
    """

    def __init__(self, network: Network, special: Special, batch_size: int):
        self.network, self.special, self.batch_size = network, special, batch_size

    @property
    def window(self) -> int:
        """Maximum number of tokens per window, without [CLS] and [SEP]."""
        return min(self.network.config.longest, _WINDOW) - 2

    def encode(self, rows: Rows, pooling: Pooling) -> list[np.ndarray]:
        """Computes the last hidden states per row, [L, D] float32, or pooled to [D].

        Rows are truncated to `network.config.longest` tokens, [CLS] and [SEP] included.
        """
        longest = self.network.config.longest - 2
        rows = [row[:longest] for row in rows]
        outputs = self._map(lambda batch, _: encode(self.network.model, self._params, batch, pooling), rows)
        if pooling is None:
            outputs = [output[: len(row) + 2] for output, row in zip(outputs, rows, strict=True)]
        return outputs

    def discriminate(self, rows: Rows) -> list[np.ndarray]:
        """Computes the discriminator's logits per row, [tokens] float32. Long rows are split into windows."""
        return self._of_tokens(discriminate, rows)

    def log_probs(self, rows: Rows) -> list[np.ndarray]:
        """Computes each token's log-probability with nothing masked, [tokens] float32 per row.

        Long rows are split into windows.
        """
        return self._of_tokens(log_probs, rows)

    def _of_tokens(self, compute: Callable[[Electra, Any, Batch], Array], rows: Rows) -> list[np.ndarray]:
        windows, owners = split_rows(rows, self.window)
        outputs = self._map(lambda batch, _: compute(self.network.model, self._params, batch), windows)
        # An empty row has no window, and `np.concatenate` needs at least one array.
        parts: list[list[np.ndarray]] = [[np.zeros(0, np.float32)] for _ in rows]
        for owner, window, output in zip(owners, windows, outputs, strict=True):
            # Between [CLS] at 0 and [SEP]; what follows is padding.
            parts[owner].append(output[1 : len(window) + 1])
        return [np.concatenate(part) for part in parts]

    def predict(self, rows: Rows, positions: list[int]) -> list[np.ndarray]:
        """Predicts the token at one position of each row (0: the first token): log-probabilities, [V] float32."""
        shifted = np.array(positions, np.int32) + np.int32(1)  # [CLS]
        model, params = self.network.model, self._params
        return self._map(lambda batch, i: predict(model, params, batch, _in_batch(shifted, i, batch)), rows)

    def masked_log_probs(self, rows: Rows) -> list[np.ndarray]:
        """Computes each token's log-probability with only that token masked, [tokens] float32 per row.

        Long rows are split into windows.
        """
        windows, owners = split_rows(rows, self.window)
        # The same list for each of its tokens: the mask is put into the batch.
        repeated = [window for window in windows for _ in window]
        shifted = np.array([i + 1 for window in windows for i in range(len(window))], np.int32)  # [CLS]
        targets = np.array([token for window in windows for token in window], np.int32)

        # Only the target's log-probability is kept: those of the whole vocabulary may take gigabytes.
        def compute(batch: Batch, indices: list[int]) -> Array:
            positions_B, targets_B = (_in_batch(values, indices, batch) for values in (shifted, targets))
            input_ids = np.array(batch.input_ids)
            input_ids[np.arange(len(indices)), positions_B[: len(indices)]] = self.special.mask
            batch = batch._replace(input_ids=input_ids)
            return cast(Array, predict_target(self.network.model, self._params, batch, positions_B, targets_B))

        log_probs = iter(self._map(compute, repeated))
        parts: list[list[np.ndarray]] = [[] for _ in rows]
        for owner, window in zip(owners, windows, strict=True):
            parts[owner] += [next(log_probs) for _ in window]
        return [np.array(part, np.float32) for part in parts]

    @compile_cache_unless_chosen()
    def _map(self, compute: Callable[[Batch, list[int]], Array], rows: Rows) -> list[np.ndarray]:
        """Calls `compute(batch, row indices)` on padded batches.

        Returns:
          The output of each row, padding included, in the order of `rows`.
        """
        results: list[np.ndarray] = [np.zeros(0)] * len(rows)
        lengths = [len(row) + 2 for row in rows]
        for length, size, indices in length_batches(lengths, self.network.config.longest, self.batch_size):
            padding: Rows = [[]] * (size - len(indices))
            batch = pad_rows([rows[i] for i in indices] + padding, length, self.special)
            outputs = np.asarray(compute(batch, indices))
            for i, output in zip(indices, outputs[: len(indices)], strict=True):
                results[i] = output.copy()  # a view could not be written to, and would keep the whole batch
        return results

    @functools.cached_property
    def _params(self) -> Any:
        # Once: the parameters are NumPy arrays, which every call would copy to the device again.
        return jax.device_put(self.network.params)


# The parameters are an argument: a closure would compile them into each program as constants. Models of equal shape
# share the programs, which are kept as long as the process.
_jit = functools.partial(jax.jit, static_argnames="model")


@functools.partial(jax.jit, static_argnames=("model", "pooling"))
def encode(model: Electra, params: Any, batch: Batch, pooling: Pooling) -> Array:
    """Computes the last hidden states, [B, L, D] float32, or pooled to [B, D]: `mean` (without padding) or `cls`."""
    states_BLD = electra.encode(model, params, batch).astype(jnp.float32)
    if pooling is None:
        return states_BLD
    if pooling == "cls":
        return states_BLD[:, 0]
    return electra.mean_state(states_BLD, batch.sequence_ids)


@_jit
def discriminate(model: Electra, params: Any, batch: Batch) -> Array:
    """Computes the discriminator's logits, [B, L] float32."""
    states_BLD = electra.encode(model, params, batch)
    return electra.discriminator_logits(model, params, states_BLD, batch.sequence_ids)


@_jit
def log_probs(model: Electra, params: Any, batch: Batch) -> Array:
    """Computes the log-probability of each input token, [B, L] float32."""
    logits_BLV = electra.mlm_logits(model, params, electra.encode(model, params, batch))
    # Entries that only pad the table have the lowest float as logit, and so no share in the softmax.
    nll_BL: Array = optax.softmax_cross_entropy_with_integer_labels(logits_BLV, batch.input_ids)
    return -nll_BL


@_jit
def predict(model: Electra, params: Any, batch: Batch, positions_B: Array) -> Array:
    """Computes log-probabilities over the vocabulary at one position of each row, [B, V] float32."""
    # [B, L, D] -> [B, 1, D] before the head: logits of all positions would take L times the memory.
    states_B1D = electra.gather_positions(electra.encode(model, params, batch), positions_B[:, None])
    logits_B1V = electra.mlm_logits(model, params, states_B1D)
    # [B, 1, padded V] -> [B, V]: the entries that only pad the table are no tokens.
    return jax.nn.log_softmax(logits_B1V[:, 0, : model.config.vocab_size])


@_jit
def predict_target(model: Electra, params: Any, batch: Batch, positions_B: Array, targets_B: Array) -> Array:
    """Computes the log-probability of a token at one position of each row, [B] float32."""
    log_probs_BV: Array = predict(model, params, batch, positions_B)
    return jnp.take_along_axis(log_probs_BV, targets_B[:, None], axis=1)[:, 0]


def _in_batch(values: np.ndarray, indices: list[int], batch: Batch) -> np.ndarray:
    """Returns the values of a batch's rows; 0 for rows of padding, whose outputs `_map` drops."""
    values_B = np.zeros(len(batch.input_ids), values.dtype)
    values_B[: len(indices)] = values[indices]
    return values_B


def split_rows(rows: Rows, window: int) -> tuple[Rows, list[int]]:
    """Splits rows into parts of at most `window` tokens. Returns (parts, row index of each); empty rows have none."""
    parts = [(row[begin : begin + window], i) for i, row in enumerate(rows) for begin in range(0, len(row), window)]
    return [part for part, _ in parts], [i for _, i in parts]
