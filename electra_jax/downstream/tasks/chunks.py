"""Chunks (spans) encoded by tags, and their scores, as in conlleval (the CoNLL-2000 script)."""

import re
from collections.abc import Iterator, Sequence

OUTSIDE = "O"
# Prefixes of IOB, and of the schemes that also mark a chunk's last word (E, L) and single-word chunks (S, U).
_PREFIXED = re.compile(r"([BIELSU])-(.+)", re.DOTALL)
_MARKS = tuple("OBIELSU")
_SYNONYMS = {"L": "E", "U": "S"}


def mark_chunks(labels: Sequence[str]) -> bool:
    """True if tags mark chunks, as B-PER does. Part-of-speech tags do not."""
    # Marks without types, such as B, I, O. Without an O, single letters may be any tags.
    only_marks = OUTSIDE in labels and len(labels) > 1 and {*labels} <= {*_MARKS}
    marks = {prefixed[1] for prefixed in map(_PREFIXED.fullmatch, labels) if prefixed}
    # Without an O, "E-mail" and "S-curve" are names like any others.
    return only_marks or bool(marks & {"B", "I"}) or (bool(marks) and OUTSIDE in labels)


def find_chunks(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yields the chunks that tags mark as (type, first word, one past the last word).

    Chunks begin and end as in conlleval (with B, I, E, S, O), for every scheme and for ill-formed tag sequences. Each
    run of the same tag without a prefix is a chunk.
    """
    begin, before, type_before = 0, OUTSIDE, ""
    # The added tag ends a chunk at the end of the sentence.
    for i, tag in enumerate([*tags, OUTSIDE]):
        mark, type_ = _split_tag(tag)
        changes = type_ != type_before
        # endOfChunk and startOfChunk in conlleval.
        ends = before in "ES" or mark in "BSO" or changes
        if before != OUTSIDE and ends:
            yield type_before, begin, i
        if mark in "BS" or (mark in "IE" and (before in "ESO" or changes)):
            begin = i
        before, type_before = mark, type_


def _split_tag(tag: str) -> tuple[str, str]:
    """Returns (B, I, E, S or O, type)."""
    prefixed = _PREFIXED.fullmatch(tag)
    # A tag without a prefix continues while it repeats, as in IO encoding: I, with the tag as its type.
    mark, type_ = prefixed.groups() if prefixed else (tag, "") if tag in _MARKS else ("I", tag)
    return _SYNONYMS.get(mark, mark), type_


def score(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Computes F1, precision and recall of chunks, and accuracy of words, in percent.

    A chunk is right if its words and its type agree.
    """
    right = words = 0
    for true_tags, tags in zip(truth, predicted, strict=True):
        right += sum(a == b for a, b in zip(true_tags, tags, strict=True))
        words += len(true_tags)
    # The sentence's number makes equal chunks of two sentences differ.
    true_chunks, chunks = (
        {(number, *chunk) for number, tags in enumerate(sentences) for chunk in find_chunks(tags)}
        for sentences in (truth, predicted)
    )
    shared = len(true_chunks & chunks)
    return {
        "f1": _percent(2 * shared, len(true_chunks) + len(chunks)),
        "precision": _percent(shared, len(chunks)),
        "recall": _percent(shared, len(true_chunks)),
        "accuracy": _percent(right, words),
    }


def _percent(part: int, total: int) -> float:
    return 100 * part / total if total else 0.0
