"""Operations by the part of a network that does them."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Parts:
    """Operations of one network.

    Attributes:
      embeddings: look-ups, where they are counted, and the map from the embeddings to the network's width.
      attention, ffn: of all layers.
      head: what reads the states, the softmax aside.
      softmax: the product with the word table, and what follows it.
    """

    embeddings: float = 0
    attention: float = 0
    ffn: float = 0
    head: float = 0
    softmax: float = 0

    @property
    def total(self) -> float:
        return sum(dataclasses.astuple(self))

    def __mul__(self, factor: float) -> "Parts":
        return Parts(*(factor * part for part in dataclasses.astuple(self)))

    def __add__(self, other: "Parts") -> "Parts":
        return Parts(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


def until(steps: int, stages: Iterable[Any], count: Callable[[int], dict[str, Parts]]) -> float:
    """Operations of the first `steps` steps of a run.

    Args:
      steps: how many.
      stages: of its `Objective`.
      count: operations of the step that follows so many steps.
    """
    operations, start = 0.0, 0
    for stage in stages:
        if start < steps:
            operations += min(stage.steps, steps - start) * together(count(start))
        start += stage.steps
    return operations


def together(networks: dict[str, Parts]) -> float:
    """Operations of all networks."""
    return sum(parts.total for parts in networks.values())
