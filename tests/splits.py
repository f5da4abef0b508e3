"""Splits in memory, for tests of what reads them."""

import itertools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from electra_jax.data.records import Ints, Split, offsets, spans


class InMemory:
    """`Tokens` in an array [T]."""

    def __init__(self, ids: Ints):
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def take(self, begins: Ints, lengths: Ints) -> Ints:
        taken: Ints = self._ids[spans(begins, lengths)]
        return taken


def from_lists(*sources: Iterable[Iterable[list[int]]], dtype: npt.DTypeLike = np.uint16) -> Split:
    """A source is a list of documents, a document of lines, and a line of ids."""
    by_source = [[list(lines) for lines in documents] for documents in sources]
    documents = list(itertools.chain.from_iterable(by_source))
    lines = [line for document in documents for line in document]
    ids = np.fromiter(itertools.chain.from_iterable(lines), dtype)
    return Split(InMemory(ids), offsets(map(len, lines)), offsets(map(len, documents)), offsets(map(len, by_source)))
