"""Scores of answers, as the evaluation scripts of SQuAD 1.1 and 2.0 have them (rajpurkar.github.io/SQuAD-explorer)."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Measure(NamedTuple):
    """Of an answer, or their mean.

    Attributes:
      exact: 1 where it is one of the true ones, else 0.
      f1: of the words that it shares with the true one that it shares most with.
    """

    exact: float
    f1: float


def normalize(text: str) -> str:
    """`text` in lower case without ASCII's punctuation, then without articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def overlap(true: str, said: str, wordless: float) -> float:
    """F1 of the words of two normalized texts; `wordless` of two without any."""
    there, found = true.split(), said.split()
    if not there and not found:
        return wordless
    both = sum((Counter(there) & Counter(found)).values())
    return 2 * both / (len(there) + len(found))


def measure(true: Sequence[str], said: str, may_be_none: bool) -> Measure:
    """An answer's scores.

    Args:
      true: the answers, any of which is right; none where the question has no answer.
      said: the answer; empty: that there is none.
      may_be_none: as in SQuAD 2.0, where a true answer without a word, such as "a", does not count, and saying nothing
        is right where there is none. In 1.1 it counts, though it has F1 0.
    """
    wanted = [normalize(text) for text in true]
    if may_be_none:
        wanted = list(filter(None, wanted)) or [""]
    normal = normalize(said)
    f1 = max((overlap(text, normal, float(may_be_none)) for text in wanted), default=0.0)
    return Measure(float(normal in wanted), f1)


def mean(measures: Sequence[Measure]) -> Measure:
    """In percent; 0 of none."""
    if not measures:
        return Measure(0.0, 0.0)
    exact, f1 = (100 * sum(values) / len(measures) for values in zip(*measures, strict=True))
    return Measure(exact, f1)


def best_threshold(
    no_answer: Sequence[float], scores: Sequence[float], answerable: Sequence[bool], said: Sequence[str]
) -> tuple[float, float]:
    """The mean score at the best threshold, above which questions are said to have no answer.

    As SQuAD 2.0's script, which goes through the questions from the most answerable on, one by one even where they are
    alike.

    Args:
      no_answer: of each question, the score of its having no answer.
      scores: of what is said where it is said to have one.
      answerable: whether it has one.
      said: what is said then.

    Returns:
      (percent, threshold). Where it is best to answer none, the threshold is 1 below the lowest.
    """
    score = best = float(len(answerable) - sum(answerable))
    threshold = min(no_answer) - 1.0
    for i in sorted(range(len(no_answer)), key=no_answer.__getitem__):
        score += scores[i] if answerable[i] else -float(said[i] != "")
        if score > best:
            best, threshold = score, no_answer[i]
    return 100 * best / len(answerable), threshold
