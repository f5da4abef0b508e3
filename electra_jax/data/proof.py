"""Replaces a vocabulary by its exported form if the two segment text differently.

They are compared on lines generated from the vocabulary: its pieces in random combinations and spacings.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tokenizers

from electra_jax.config.errors import UserError
from electra_jax.data import converted
from electra_jax.data.tokenizer import Library, SentencePiece, Tokenizer

_LINES = 2000  # random lines, at most
_PIECES = 12  # of a random line, on average
# Repeated entries are more frequent: most pieces follow each other directly, or after a space.
_JOINTS = ("", "", "", "", " ", " ", " ", "  ", "\t", "\u00a0", "\u3000")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
# Runs of a character are shorter: "000" is "00 0" or "0 00", a tie between pieces.
_MOST_REPEATED = 12
_EDGES = (
    *("", " ", "  ", "a", " a", "a ", "  a  b  ", "\ta\tb\t", "a\u00a0b", "a\u2009b", "a\u200bb", "\ufeffa", "a\rb"),
    *("He wrote (in 1539) a book.", '"Quoted," she said; twice: "no"!', "e.g. 3.14 % of $1,000.00", "a/b\\c_d-e+f=g"),
    *("ALL CAPITALS AND Some", "don't, o'clock, rock 'n' roll", "``quotes'' -- and --- dashes", "#tag @name a@b.org"),
    *("\u201ccurly\u201d \u2018quotes\u2019 \u2013 \u2014 \u2026", "\u00e9 e\u0301 \u00c5 A\u030a \u1e61"),
    *("\u00bd \u2460 \u2122 \ufb01 \u33a1 \u00b5", "\uff21\uff22\uff43 \uff11\uff12 \uff61\uff76\uff9e\uff8a\uff9f"),
    *("\u4e2d\u6587\u5b57", "\u65e5\u672c\u8a9e\u3067\u3059\u3002", "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab"),
    *("\u0e44\u0e17\u0e22", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0939\u093f\u0928\u094d\u0926\u0940"),
    *("\u0b95\u0bcd\u0bb7", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd", "\u0391\u03a3 \u03a3\u0391\u03a3."),
    *("\u0416\u0438\u0437\u043d\u044c", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f"),
    *("\U0001d400\U0001d7d8", "\x01a\x7fb\x9fc"),
)  # fmt: skip


class Vocabulary(NamedTuple):
    """A vocabulary, with notes for the user.

    Attributes:
      tokenizer: the tokenizer to train with, which is also exported.
      notes: how it differs from the file, and what will not work with it.
    """

    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()


def settle(found: Tokenizer) -> Vocabulary:
    """Returns a tokenizer as a vocabulary, or its exported form if the export would segment text differently."""
    notes = [] if found.marks_words else ["its pieces do not show where words begin: there is no whole-word masking"]
    if not isinstance(found, SentencePiece):
        return Vocabulary(found, tuple(notes))
    try:
        other = converted.convert(found)
    except UserError as error:
        return Vocabulary(found, (*notes, f"models with it cannot be exported: {error}"))
    difference = first_difference(found, other, lines(found))
    if difference is None:
        return Vocabulary(found, tuple(notes))
    # A model that is trained on other ids than its export's tokenizer gives would be worse in use.
    return use_export(Library(other.to_str().encode()), difference, notes)


def use_export(library: Library, difference: tuple[str, list[str], list[str]], notes: list[str]) -> Vocabulary:
    """Returns the tokenizer of the export as the vocabulary, with a note on the text that the two read differently."""
    text, ours, theirs = difference
    said = (
        f"the SentencePiece model and the tokenizer that exports have differ: {text!r} is {' '.join(ours)} ... and "
        f"{' '.join(theirs)} ...; text is read by the latter, which is slower"
    )
    return Vocabulary(library, (*notes, said))


def lines(vocabulary: Tokenizer) -> list[str]:
    """Returns lines of text, always the same for a vocabulary, without the names of special tokens and bytes.

    The number of random lines grows with the vocabulary, up to 2,000.
    """
    # Sorted, because the order of a set of strings changes from process to process.
    texts = sorted(set(_texts(vocabulary)))
    rng = np.random.default_rng(0)
    made = []
    for _ in range(min(_LINES, 10 * len(texts))):
        picked = rng.integers(len(texts), size=rng.integers(1, 2 * _PIECES))
        joints = rng.integers(len(_JOINTS), size=len(picked))
        # A few in capitals, which no piece of a vocabulary that folds case has.
        words = [texts[i].upper() if rng.random() < 0.05 else texts[i] for i in picked]
        made.append("".join(word + _JOINTS[joint] for word, joint in zip(words, joints, strict=True)))
    repeated = {text[-1] for text in texts if len(text.strip()) > 1 and len(set(text.strip())) == 1}
    runs = [f"a {each * n} {each * n}b" for each in sorted(repeated) for n in range(2, _MOST_REPEATED)]
    return [line for line in (*_EDGES, *runs, *made) if _is_plain(line)]


def first_difference(
    vocabulary: Tokenizer, other: tokenizers.Tokenizer, texts: Iterable[str]
) -> tuple[str, list[str], list[str]] | None:
    """Returns the first text that `other` encodes differently, with the first pieces of both that differ; or None."""
    every = list(texts)
    ours = vocabulary.encode(every)
    theirs = other.encode_batch_fast(every, add_special_tokens=False)
    for text, mine, encoded in zip(every, ours, theirs, strict=True):
        if mine != encoded.ids:
            pairs = itertools.zip_longest(mine, encoded.ids)
            same = next(i for i, (a, b) in enumerate(pairs) if a != b)
            return text, _names(vocabulary, mine[same:]), _names(vocabulary, encoded.ids[same:])
    return None


def _names(vocabulary: Tokenizer, ids: Sequence[int]) -> list[str]:
    return [vocabulary.name_of(id_) for id_ in ids[:4]]


def _texts(vocabulary: Tokenizer) -> Iterator[str]:
    """Yields the text of each piece, with a space before it if it begins a word."""
    special = {*vocabulary.special}
    for id_ in range(len(vocabulary)):
        name = vocabulary.name_of(id_)
        # WordPiece decodes a continuation that stands alone with its mark.
        text = vocabulary.decode([id_]).removeprefix("##")
        if text.strip() and id_ not in special and not _BYTE.fullmatch(name):
            yield f" {text}" if vocabulary.word_starts[id_] else text


def _is_plain(line: str) -> bool:
    """False if a mark follows a space or a character that NFKC changes: tokenizers join such marks differently."""
    return not any(
        unicodedata.combining(mark) and (letter.isspace() or unicodedata.normalize("NFKC", letter) != letter)
        for letter, mark in itertools.pairwise(line)
    )
