"""FLOPs by part of a network."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Parts:
    """Operations of one network, by part.

    Attributes:
      embeddings: lookups, if they count, and the projection to the network's width.
      attention: attention in all layers.
      ffn: feed-forward blocks in all layers.
      head: the heads without the softmax.
      softmax: the product with the word table, and the softmax over the vocabulary.
    """

    embeddings: float = 0
    attention: float = 0
    ffn: float = 0
    head: float = 0
    softmax: float = 0

    @property
    def total(self) -> float:
        return float(sum(dataclasses.astuple(self)))

    def __mul__(self, factor: float) -> "Parts":
        return Parts(*(factor * part for part in dataclasses.astuple(self)))

    def __add__(self, other: "Parts") -> "Parts":
        return Parts(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


def sum_networks(networks: Mapping[str, Parts]) -> float:
    """Sums the operations of all networks."""
    return sum(parts.total for parts in networks.values())
