"""Mixtures of sources: their fractions of the training examples, and their short names in metrics."""

import itertools
import re
from collections.abc import Sequence

from electra_jax.config.errors import UserError
from electra_jax.config.settings import check_effects
from electra_jax.data import sources
from electra_jax.data.config import CorpusConfig
from electra_jax.data.sources import Source

_WORD = re.compile(r"[^\W_]+")


def parse(config: CorpusConfig) -> list[Source]:
    """Parses the sources of `config.input`.

    Raises:
      UserError: as `sources.parse`; or `config.temperature` is set for sources with weights, or for a single source.
    """
    mixture = sources.parse(config.input)
    # `sources.parse` accepts weights for all sources or for none.
    if config.temperature != 1 and mixture[0].weight is not None:
        raise UserError(
            f"temperature={config.temperature:g} and the weights in input={config.input!r} cannot both be set; remove "
            "the temperature or every @WEIGHT"
        )
    check_effects(config, [("temperature", len(mixture) > 1, f"on input={config.input!r}, a single source")], "")
    return mixture


def shares(sizes: Sequence[int], temperature: float) -> list[float]:
    """Returns fractions proportional to size ** temperature, which add up to 1.

    XLM-R (arXiv 1911.02116, section 3) and mT5 (arXiv 2010.11934, section 3.2) call the exponent alpha; both use .3.
    Their sizes are numbers of sentences and of examples.

    Args:
      sizes: numbers of tokens, each above 0.
      temperature: from 0 (equal fractions) to 1 (proportional to size).
    """
    powers = [size**temperature for size in sizes]
    total = sum(powers)
    return [power / total for power in powers]


def labels(names: Sequence[str]) -> list[str]:
    """Returns a short name for each source, of letters, digits and underscores: the words in which the names differ.

    Words that all names begin or end with are left out: `text/en/*.txt` and `text/de/*.txt` become `en` and `de`. If
    nothing is left of a name, or two become equal, all are numbered from 1: `1_en`.
    """
    words = [_WORD.findall(name) for name in names]
    # At least one word of each name must remain.
    spare = min(map(len, words)) - 1 if len(words) > 1 else 0
    begin = _count_common(words, spare)
    end = _count_common([each[::-1] for each in words], spare - begin)
    found = ["_".join(each[begin : len(each) - end]) for each in words]
    if all(found) and len(set(found)) == len(found):
        return found
    # If the label is empty, only the number remains.
    return [f"{number}_{label}".rstrip("_") for number, label in enumerate(found, 1)]


def _count_common(words: Sequence[Sequence[str]], most: int) -> int:
    """Counts the leading words that all have in common, up to `most`."""
    columns = itertools.islice(zip(*words, strict=False), max(0, most))
    return sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
