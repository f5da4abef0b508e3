"""Scores of answers, as in the evaluation scripts of SQuAD 1.1 and 2.0 (rajpurkar.github.io/SQuAD-explorer)."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Measure(NamedTuple):
    """Scores of an answer, or their mean.

    Attributes:
      exact: 1 if it equals one of the true answers, else 0.
      f1: F1 of the words that it shares with the most similar true answer.
    """

    exact: float
    f1: float


def normalize(text: str) -> str:
    """`text` in lower case without ASCII punctuation, then without articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def overlap(true: str, predicted: str, wordless: float) -> float:
    """F1 of the words of two normalized texts; `wordless` if neither has a word."""
    true_words, predicted_words = true.split(), predicted.split()
    if not true_words and not predicted_words:
        return wordless
    shared = sum((Counter(true_words) & Counter(predicted_words)).values())
    return 2 * shared / (len(true_words) + len(predicted_words))


def measure(true: Sequence[str], predicted: str, may_be_impossible: bool) -> Measure:
    """The scores of an answer.

    Args:
      true: the true answers, any of which is right; empty if the question has no answer.
      predicted: the predicted answer; empty if the question is left unanswered.
      may_be_impossible: whether to score as SQuAD 2.0 does. There a true answer without a word, such as "a", does not
        count, and no answer is right where there is none. In 1.1 it counts, though it has F1 0.
    """
    normal_true = [normalize(text) for text in true]
    if may_be_impossible:
        normal_true = list(filter(None, normal_true)) or [""]
    normal = normalize(predicted)
    f1 = max((overlap(text, normal, float(may_be_impossible)) for text in normal_true), default=0.0)
    return Measure(float(normal in normal_true), f1)


def mean(measures: Sequence[Measure]) -> Measure:
    """The mean in percent; 0 if there are none."""
    if not measures:
        return Measure(0.0, 0.0)
    exact, f1 = (100 * sum(values) / len(measures) for values in zip(*measures, strict=True))
    return Measure(exact, f1)


def best_threshold(
    no_answer: Sequence[float], scores: Sequence[float], answerable: Sequence[bool], predicted: Sequence[str]
) -> tuple[float, float]:
    """The best mean score over all thresholds above which questions are left unanswered.

    As in SQuAD 2.0's script, which goes through the questions from the most answerable on, one by one even if their
    scores are equal.

    Args:
      no_answer: for each question, the score of its having no answer.
      scores: for each question, the score of its answer if it is given.
      answerable: whether each question has an answer.
      predicted: each question's answer if it is given.

    Returns:
      (percent, threshold). If it is best to answer no question, the threshold is 1 below the lowest score.
    """
    score = best = float(len(answerable) - sum(answerable))
    threshold = min(no_answer) - 1.0
    for i in sorted(range(len(no_answer)), key=no_answer.__getitem__):
        score += scores[i] if answerable[i] else -float(predicted[i] != "")
        if score > best:
            best, threshold = score, no_answer[i]
    return 100 * best / len(answerable), threshold
