"""Padded batches of token rows in a few length buckets, so that few programs are compiled."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from electra_jax.config.errors import UserError

_SHORTEST = 16  # the first bucket
_FULL_ROWS = 512  # the longest bucket whose batches have `batch_size` rows


def check_texts(texts: Any) -> list[str]:
    """Returns a text or a sequence of texts as a list.

    Raises:
      UserError: a text is not a string, or contains a lone surrogate, which is not a character.
    """
    check_sequence(texts, "texts", "a string or a sequence of strings")
    many = [texts] if isinstance(texts, str) else list(texts)
    for number, text in enumerate(many):
        if not isinstance(text, str):
            raise UserError(f"text {number} is {text!r}: expected a string; leave it out or put one in its place")
        try:
            # The tokenizers library refuses a lone surrogate with a message about types.
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"text {number} has a lone surrogate at character {error.start}: expected Unicode; decode its bytes "
                "with errors='replace'"
            ) from error
    return many


def check_sequence(value: Any, name: str, expected: str) -> None:
    """Raises UserError if `value` cannot be iterated over, or is a mapping or a table, whose keys would be read."""
    if not isinstance(value, Iterable) or isinstance(value, Mapping) or hasattr(value, "columns"):
        shown = f"a {type(value).__name__}" if isinstance(value, Iterable) else repr(value)
        raise UserError(f"{name} is {shown}: expected {expected}")


def bucket_lengths(longest: int, shortest: int = _SHORTEST) -> list[int]:
    """Returns the bucket lengths that rows are padded to: 16, 24, 32, 48, 64, 96, ... up to and including `longest`.

    They do not depend on the rows, so that a program compiled for one call serves all later calls.
    """
    lengths, length = [], shortest
    while length < longest:
        # Steps by 3/2 and 4/3: in a row of more than 16 tokens less than a third is padding.
        lengths += [length, length * 3 // 2]
        length *= 2
    return [*(length for length in lengths if length < longest), longest]


def length_batches(lengths: Sequence[int], longest: int, batch_size: int) -> Iterator[tuple[int, int, list[int]]]:
    """Groups rows into batches by length bucket.

    Args:
      lengths: length of each row, special tokens included.
      longest: the network's maximum length.
      batch_size: rows per batch in buckets of up to 512 positions; batches of longer buckets have fewer rows, for the
        same number of tokens.

    Yields:
      (padded length, padded number of rows, indices of the rows). The number of rows is padded to a power of two, or to
      a full batch if that is smaller, so that a single row does not take a whole batch's time, and few programs serve
      all calls.
    """
    buckets = bucket_lengths(longest)
    # Callers have cut or split rows to `longest`: a longer row would be in no bucket, and lost.
    bucket_of_row = np.searchsorted(buckets, np.asarray(lengths, np.int64))
    for bucket, length in enumerate(buckets):
        rows = np.flatnonzero(bucket_of_row == bucket).tolist()
        # At least one row: the tokens of `batch_size` rows of 512 may be fewer than those of one longer row.
        size = max(1, min(batch_size, batch_size * _FULL_ROWS // length))
        for begin in range(0, len(rows), size):
            part = rows[begin : begin + size]
            yield length, min(size, 1 << (len(part) - 1).bit_length()), part
