"""Which documents are in which shard, and which in the sample that a vocabulary is trained on: by the text alone."""

import heapq
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from electra_jax.data import cleaning, shards, sources
from electra_jax.data.readers import Document

MEGABYTE = 10**6
_HASHES = 2**32
DUPLICATE = "duplicates of earlier documents, left out"


class Job(NamedTuple):
    """A shard to be written: the first arguments of `shards.write`."""

    folder: Path
    name: str
    source: int
    documents: list[Document]
    digests: list[bytes]
    notes: cleaning.Notes


def job(
    folder: Path, unit: tuple[int, sources.Unit], k: int, chunk: list[Document], duplicates: Collection[int]
) -> Job:
    """The shard of chunk `k` of a numbered unit, without the documents whose numbers are in `duplicates`."""
    notes: cleaning.Notes = {}
    for i in sorted(duplicates):
        cleaning.note(notes, DUPLICATE, chunk[i].place)
    kept = [document for i, document in enumerate(chunk) if i not in duplicates]
    return Job(folder, _name(unit[0], k), unit[1].source, kept, [*map(shards.digest, kept)], notes)


def _name(unit: int, chunk: int) -> str:
    """Of the files of one shard; they sort in the order of the text."""
    return f"{unit:06d}-{chunk:06d}"


class Sample:
    """The documents of the lowest hashes, so many that their text has a certain size: a fair draw from the whole.

    Samples of parts can be joined; the same documents are drawn whatever the parts and their order.
    """

    def __init__(self, size: int, heldout_fraction: float):
        """Takes the size in bytes, and which documents are held out and so not drawn."""
        self._limit, self._heldout_fraction = size, heldout_fraction
        self._drawn: list[tuple[int, tuple[int, ...], Document]] = []  # a heap: the highest hash goes first
        self._size = 0
        self._bound = _HASHES  # no document of this hash or a higher one: that was one too many

    def add(self, order: tuple[int, ...], document: Document) -> None:
        """Offers a document; `order` is its place in the text."""
        digest = shards.digest(document)
        if not shards.is_heldout(digest, self._heldout_fraction):
            self._push(int.from_bytes(digest[4:], "big"), order, document)

    def join(self, other: "Sample") -> None:
        """Offers what another sample has drawn."""
        self._bound = min(self._bound, other._bound)
        for negative, order, document in other._drawn:
            self._push(-negative, order, document)
        self._drop()

    def lines(self) -> list[str]:
        """In the order of the text."""
        ordered = sorted((order, document) for _, order, document in self._drawn)
        return [line for _, document in ordered for line in cleaning.lines(document.text, document.place, {})]

    def _push(self, hashed: int, order: tuple[int, ...], document: Document) -> None:
        if hashed < self._bound:
            heapq.heappush(self._drawn, (-hashed, order, document))
            self._size += len(document.text)
            self._drop()

    def _drop(self) -> None:
        while len(self._drawn) > 1 and (self._size > self._limit or -self._drawn[0][0] >= self._bound):
            negative, _, document = heapq.heappop(self._drawn)
            self._size -= len(document.text)
            self._bound = min(self._bound, -negative)
