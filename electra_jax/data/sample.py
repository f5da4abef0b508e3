"""The sample of the input that a vocabulary is trained on."""

import heapq

from electra_jax.data.documents import Document
from electra_jax.data.shards import clean, is_heldout

_HASHES = 2**32


class Sample:
    """The documents with the lowest hashes, up to a total size: a uniform sample of the whole input.

    Samples of parts can be merged; the result does not depend on the parts or their order. Held-out documents are not
    drawn.
    """

    def __init__(self, size: int, heldout_fraction: float, bound: int = _HASHES):
        """Starts an empty sample of at most `size` bytes, or one document, from those with a hash below `bound`."""
        self._limit, self._heldout_fraction = size, heldout_fraction
        # A heap has its lowest entry first: hashes are negated, so that the highest is dropped.
        self._drawn: list[tuple[int, tuple[int, int], Document]] = []
        self._size = 0
        self._bound = bound  # documents with this hash or a higher one did not fit

    @property
    def bound(self) -> int:
        """Exclusive upper bound on the hashes of drawn documents; a sample to merge into this one needs no others."""
        return self._bound

    def add(self, order: tuple[int, int], document: Document) -> None:
        """Offers a document; `order` is (number of its unit, number in the unit)."""
        if not is_heldout(document.digest, self._heldout_fraction):
            # The first four bytes decide the held-out split; these are independent of it.
            self._push(int.from_bytes(document.digest[4:], "big"), order, document)

    def merge(self, other: "Sample") -> None:
        """Merges another sample into this one."""
        self._bound = min(self._bound, other._bound)
        for negative_hash, order, document in other._drawn:
            self._push(-negative_hash, order, document)
        # The bound of the other sample may exclude documents of this one.
        self._drop()

    def lines(self) -> list[str]:
        """Returns the cleaned lines of the drawn documents, in input order."""
        ordered = sorted((order, document) for _, order, document in self._drawn)
        return [line for _, document in ordered for line in clean(document, {})]

    def _push(self, hash_value: int, order: tuple[int, int], document: Document) -> None:
        if hash_value < self._bound:
            heapq.heappush(self._drawn, (-hash_value, order, document))
            self._size += len(document.text)
            self._drop()

    def _drop(self) -> None:
        while len(self._drawn) > 1 and (self._size > self._limit or -self._drawn[0][0] >= self._bound):
            negative_hash, _, document = heapq.heappop(self._drawn)
            self._size -= len(document.text)
            # Higher hashes are out from now on, else the sample would depend on the order of the documents.
            self._bound = min(self._bound, -negative_hash)
