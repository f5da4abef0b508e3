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
        # By digest, because copies are left out of the corpus too.
        self._drawn: dict[bytes, tuple[tuple[int, int], Document]] = {}
        # A heap has its lowest entry first: hashes are negated, so that the highest is dropped.
        self._hashes: list[tuple[int, bytes]] = []
        self._size = 0
        self._bound = bound  # documents with this hash or a higher one did not fit

    @property
    def bound(self) -> int:
        """Exclusive upper bound on the hashes of drawn documents; a sample to merge into this one needs no others."""
        return self._bound

    def add(self, order: tuple[int, int], document: Document) -> None:
        """Offers a document; `order` is (number of its unit, number in the unit)."""
        if document.text and not is_heldout(document.digest, self._heldout_fraction):
            self._push(order, document)

    def merge(self, other: "Sample") -> None:
        """Merges another sample into this one."""
        self._bound = min(self._bound, other._bound)
        for order, document in other._drawn.values():
            self._push(order, document)
        # The bound of the other sample may exclude documents of this one.
        self._drop()

    def lines(self) -> list[str]:
        """Returns the cleaned lines of the drawn documents, in input order."""
        ordered = sorted(self._drawn.values())
        return [line for _, document in ordered for line in clean(document, {})]

    def _push(self, order: tuple[int, int], document: Document) -> None:
        # The first four bytes decide the held-out split; these are independent of it.
        hash_value = int.from_bytes(document.digest[4:], "big")
        if hash_value >= self._bound:
            return
        if document.digest not in self._drawn:
            heapq.heappush(self._hashes, (-hash_value, document.digest))
            self._size += len(document.text)
        # The first of several copies, so that the result does not depend on the order of the parts.
        self._drawn[document.digest] = min(self._drawn.get(document.digest, (order, document)), (order, document))
        self._drop()

    def _drop(self) -> None:
        while len(self._drawn) > 1 and (self._size > self._limit or -self._hashes[0][0] >= self._bound):
            negative_hash, digest = heapq.heappop(self._hashes)
            _, document = self._drawn.pop(digest)
            self._size -= len(document.text)
            # Higher hashes are out from now on, else the sample would depend on the order of the documents.
            self._bound = min(self._bound, -negative_hash)
