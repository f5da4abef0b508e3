"""Metrics of answers, as in the evaluation scripts of SQuAD 1.1 and 2.0 (rajpurkar.github.io/SQuAD-explorer).

Word F1 would equal exact match in scripts without spaces, where an answer is a single word. For these, F1 counts
characters as in KorQuAD 1.0's script, or units as in CMRC 2018's (cmrc2018_evaluate.py of github.com/ymcui/cmrc2018).
"""

import difflib
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

_ASCII_PUNCTUATION = frozenset(string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WITHOUT_SPACES = (  # prefixes of the Unicode names of letters in scripts that do not put spaces between words
    *("CJK ", "IDEOGRAPHIC ", "HIRAGANA ", "KATAKANA", "HALFWIDTH KATAKANA", "BOPOMOFO "),
    *("THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN "),
)
# Signs that CMRC's script removes, and units that it counts: a Chinese character, or else a word, a number or a sign.
# Its regular expression for Chinese ends at U+9FA5, and NLTK splits the rest at these signs. This differs from NLTK in
# contractions, such as "can't", and abbreviations, such as "dr.".
_NO_CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_WORD = r"[^\s一-龥;@#$%&?!()\[\]{}<>,.\"'«»„‘–—]+"
_CMRC_UNITS = re.compile(rf"[一-龥]|\.{{2,}}|{_WORD}(?:\.{_WORD}|,(?=\d){_WORD})*|\S")


class Measure(NamedTuple):
    """Scores of an answer, or their mean over answers.

    Attributes:
      exact: exact match: 1 if the answer equals one of the true answers, else 0.
      f1: F1 of its overlap with the most similar true answer.
    """

    exact: float
    f1: float


def normalize(text: str) -> str:
    """Lowercases `text`, removes ASCII punctuation, then articles, and collapses white space."""
    # In the script's order: "a-b" becomes the word "ab", instead of losing an article.
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def normalize_characters(text: str) -> str:
    """Lowercases `text`, removes punctuation, also ASCII and full-width forms, and collapses white space."""
    return " ".join("".join(c for c in text.lower() if not _is_punctuation(c)).split())


def _is_punctuation(character: str) -> bool:
    """True for Unicode punctuation, and for symbols whose ASCII form is in `string.punctuation`, such as ～."""
    if unicodedata.category(character).startswith("P"):
        return True
    return unicodedata.normalize("NFKC", character) in _ASCII_PUNCTUATION


def normalize_cmrc(text: str) -> str:
    """Lowercases `text` and removes the signs that CMRC's script removes; the ASCII `.` and `,` are not among them."""
    return text.lower().strip().translate(_NO_CMRC_PUNCTUATION)


def split_characters(text: str) -> list[str]:
    return list("".join(text.split()))


def count_shared(one: Sequence[str], other: Sequence[str]) -> int:
    """Counts the items that two lists share, in any order."""
    return (Counter(one) & Counter(other)).total()


def longest_run(one: Sequence[str], other: Sequence[str]) -> int:
    """Returns the length of the longest common run of items of two lists."""
    # autojunk would ignore frequent items of a list of 200 or more.
    return difflib.SequenceMatcher(None, one, other, autojunk=False).find_longest_match().size


class Unit(NamedTuple):
    """Unit that F1 counts.

    Attributes:
      normalize: normalizes a text.
      split: splits a normalized text into units.
      shared: counts the units that two texts share.
    """

    normalize: Callable[[str], str]
    split: Callable[[str], list[str]]
    shared: Callable[[Sequence[str], Sequence[str]], int] = count_shared


WORDS = Unit(normalize, str.split)
CHARACTERS = Unit(normalize_characters, split_characters)
CMRC = Unit(normalize_cmrc, _CMRC_UNITS.findall, longest_run)
UNITS = {"words": WORDS, "characters": CHARACTERS, "cmrc": CMRC}


def has_no_spaces(texts: Iterable[str]) -> bool:
    """True if most letters of the texts are of scripts that do not put spaces between words."""
    # Letters alone: digits and signs occur in all scripts.
    counts = Counter(character for text in texts for character in text if character.isalpha())
    without = sum(n for c, n in counts.items() if unicodedata.name(c, "").startswith(_WITHOUT_SPACES))
    return 2 * without > counts.total()


def overlap(true: str, predicted: str, wordless: float, unit: Unit = WORDS) -> float:
    """Computes the F1 of two normalized texts; `wordless` if neither has a unit."""
    true_words, predicted_words = unit.split(true), unit.split(predicted)
    if not true_words and not predicted_words:
        return wordless
    return 2 * unit.shared(true_words, predicted_words) / (len(true_words) + len(predicted_words))


def measure(true: Sequence[str], predicted: str, may_be_impossible: bool, unit: Unit = WORDS) -> Measure:
    """Computes the scores of an answer.

    Args:
      true: the true answers, any of which is right; empty if the question has no answer.
      predicted: the predicted answer; empty if the question is left unanswered.
      may_be_impossible: whether to score as in SQuAD 2.0. There, a true answer without a word, such as "a", is ignored,
        and an empty prediction is right if no true answer is left. In 1.1 such an answer counts, but has F1 0.
      unit: the unit that F1 counts.
    """
    normal_true = [unit.normalize(text) for text in true]
    if may_be_impossible:
        normal_true = list(filter(None, normal_true)) or [""]
    normal = unit.normalize(predicted)
    f1 = max((overlap(text, normal, float(may_be_impossible), unit) for text in normal_true), default=0.0)
    return Measure(float(normal in normal_true), f1)


def mean(measures: Sequence[Measure]) -> Measure:
    """Computes the mean, in percent; 0 if there are none."""
    if not measures:
        return Measure(0.0, 0.0)
    exact, f1 = (100 * sum(values) / len(measures) for values in zip(*measures, strict=True))
    return Measure(exact, f1)


def best_threshold(
    no_answer: Sequence[float], scores: Sequence[float], answerable: Sequence[bool], predicted: Sequence[str]
) -> tuple[float, float]:
    """Finds the no-answer threshold with the best mean score; questions above it are left unanswered.

    Follows SQuAD 2.0's script, which visits the questions in order of their no-answer scores, lowest first, one by one
    even if scores are equal.

    Args:
      no_answer: no-answer score of each question.
      scores: score of each question's predicted answer.
      answerable: whether each question has an answer.
      predicted: predicted answer of each question.

    Returns:
      (percent, threshold). If it is best to answer no question, the threshold is the lowest no-answer score minus 1.
    """
    # Begins with no question answered, which is right for all that have no answer.
    score = best = float(len(answerable) - sum(answerable))
    threshold = min(no_answer) - 1.0
    for i in sorted(range(len(no_answer)), key=no_answer.__getitem__):
        # An empty prediction leaves the question unanswered at any threshold, so it loses nothing.
        score += scores[i] if answerable[i] else -float(predicted[i] != "")
        if score > best:
            best, threshold = score, no_answer[i]
    return 100 * best / len(answerable), threshold
