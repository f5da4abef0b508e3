"""A tag for each word: names, parts of speech; columns as in the files of CoNLL's shared tasks."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.downstream.tasks import files
from electra_jax.downstream.tasks.task import IGNORED, BadRows, Rows, Task, frame
from electra_jax.runtime.io import write_whole

OUTSIDE = "O"
_DOCUMENT = "-DOCSTART-"
_COMMENT = "#"
# Of IOB, and of the schemes that also mark a chunk's last word (E, L) and one that is its only (S, U).
_PREFIXED = re.compile(r"([BIELSU])-(.*)", re.DOTALL)
_MARKS = tuple("OBIELSU")
_AS = {"L": "E", "U": "S"}


class Sentence(NamedTuple):
    """An example.

    Attributes:
      words: of it.
      tags: of each word; None in a test set.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging(Task):
    """Token classification.

    Attributes:
      labels: the tags, in the order of their numbers.
      name: of the task.
      words: number of the words' column, from 0; from the last one, -1, where it is negative.
      tags: of the tags' column.
    """

    labels: tuple[str, ...]
    name: str = "tags"
    words: int = 0
    tags: int = -1
    dev: tuple[str, ...] = ("dev",)
    test: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"test": "test"})

    @property
    def kind(self) -> str:
        return "tagging"

    @property
    def outputs(self) -> int:
        return len(self.labels)

    @property
    def main(self) -> str:
        """`f1` where tags mark chunks, as B-PER does; else, as of parts of speech, `accuracy`."""
        alone = OUTSIDE in self.labels and len(self.labels) > 1 and {*self.labels} <= {*_MARKS}
        return "f1" if alone or any(map(_PREFIXED.fullmatch, self.labels)) else "accuracy"

    @property
    def suffixes(self) -> tuple[str, ...]:
        return (".txt", ".conll", ".tsv")

    def read(self, place: str, split: str, faults: BadRows) -> list[Sentence]:
        columns = Columns(self.words, None if split in self.test else self.tags)
        path = files.find(Path(place), split, self.suffixes)
        return list(read(path, columns, faults, frozenset(self.labels)))

    def encode(self, examples: Sequence[Sentence], tokenizer: Tokenizer, max_length: int, train: bool) -> Rows:
        """Each word is encoded on its own; its first piece has the target. A long sentence has several rows."""
        del train
        room, special = max_length - 2, tokenizer.special
        before = _space_before(tokenizer)
        spaced = [(before if i else "") + word for example in examples for i, word in enumerate(example.words)]
        encoded = iter(tokenizer.encode(spaced))
        number_of = {label: i for i, label in enumerate(self.labels)}
        ids: list[list[int]] = []
        firsts: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        owners = []
        for number, example in enumerate(examples):
            # A word of nothing but what normalization drops is a word nonetheless.
            pieces = [(pieces or [special.unk])[:room] for pieces in itertools.islice(encoded, len(example.words))]
            at = 0
            for count in _fill([len(word) for word in pieces], room):
                row, _ = frame([*itertools.chain(*pieces[at : at + count])], None, special)
                first = 1 + np.cumsum([0, *map(len, pieces[at : at + count - 1])])
                if example.tags is not None:
                    target = np.full(len(row), IGNORED, np.int32)
                    target[first] = [number_of[tag] for tag in example.tags[at : at + count]]
                    targets.append(target)
                ids.append(row)
                firsts.append(first)
                owners.append(number)
                at += count
        named = {"target": targets} if targets else {}
        return Rows(ids, [len(row) for row in ids], np.array(owners, np.int64), named, firsts)

    def answer(self, outputs: Mapping[str, Any], rows: Rows, examples: Sequence[Sentence]) -> list[list[str]]:
        """The tags of each example; `outputs["scores"]` has [tokens, C] for each row."""
        found: list[list[str]] = [[] for _ in examples]
        for number, first, scores in zip(rows.example, rows.extra, outputs["scores"], strict=True):
            found[number] += [self.labels[i] for i in np.argmax(scores[first], axis=-1)]
        return found

    def score(self, examples: Sequence[Sentence], answers: Sequence[Sequence[str]]) -> dict[str, float]:
        """Of chunks, as conlleval: those are right that have the same words and the same type; and of words."""
        truth = [example.tags or () for example in examples]
        right = words = 0
        for tags, said in zip(truth, answers, strict=True):
            right += sum(a == b for a, b in zip(tags, said, strict=True))
            words += len(tags)
        there, found = (
            {(number, *chunk) for number, tags in enumerate(sentences) for chunk in chunks(tags)}
            for sentences in (truth, answers)
        )
        both = len(there & found)
        return {
            "f1": _percent(2 * both, len(there) + len(found)),
            "precision": _percent(both, len(found)),
            "recall": _percent(both, len(there)),
            "accuracy": _percent(right, words),
        }

    def write(self, path: Path, examples: Sequence[Sentence], answers: Sequence[Sequence[str]]) -> None:
        """A word and its tag a line, a tab between, a blank line after each sentence."""
        sentences = (
            "".join(f"{word}\t{tag}\n" for word, tag in zip(example.words, tags, strict=True))
            for example, tags in zip(examples, answers, strict=True)
        )
        write_whole(path.with_name(f"{path.name}.txt"), "\n".join(sentences))


def in_place(place: str, words: int = 0, tags: int = -1) -> Tagging:
    """The task of the files in a folder, whose tags are those of its training set.

    Raises:
      UserError: there is none, or it has no tags.
    """
    return Tagging(labels=labels_in(place, words, tags), words=words, tags=tags)


def labels_in(place: str, words: int = 0, tags: int = -1) -> tuple[str, ...]:
    """The tags of a training set, sorted, O first.

    Raises:
      UserError: there is no training set, or fewer than two tags in it.
    """
    if place.startswith(files.TFDS):
        raise UserError(f"{place} cannot be read as words and tags; give a folder with files in columns")
    path = files.find(Path(place), "train", Tagging(labels=()).suffixes)
    # What cannot be read is said, or counted, when it is read to train on.
    sentences = read(path, Columns(words, tags), BadRows(strict=False))
    found = {tag for sentence in sentences for tag in sentence.tags or ()}
    if len(found) < 2:
        raise UserError(
            f"{path} has {len(found)} tags in column {tags}; give the tags' column as config.task.tags and the words' "
            "as config.task.words"
        )
    return tuple(sorted(found, key=lambda tag: (tag != OUTSIDE, tag)))


class Columns(NamedTuple):
    """Numbers of columns, negative ones from the last.

    Attributes:
      words: of the words.
      tags: of the tags; None where there are none to read.
    """

    words: int
    tags: int | None

    def fewest(self) -> int:
        """That a row must have.

        Raises:
          UserError: both are the same column.
        """
        wanted = [self.words] if self.tags is None else [self.words, self.tags]
        if len({*wanted}) < len(wanted):
            raise UserError(f"config.task.words and config.task.tags are both {self.words}; give the column of each")
        fewest = max(column + 1 if column >= 0 else -column for column in wanted)
        # Of 0 and -1, two: in a row of one they were the same.
        return fewest + (len({column % fewest for column in wanted}) < len(wanted))


def read(path: Path, columns: Columns, faults: BadRows, labels: frozenset[str] = frozenset()) -> Iterator[Sentence]:
    """The sentences of a file. One with a row that cannot be used is left out whole.

    Args:
      path: of the file: a word a line, columns between tabs or else spaces, a blank line after each sentence.
      columns: where it has what.
      faults: told of rows that cannot be used.
      labels: that there are; empty: any.

    Raises:
      UserError: it has no sentence to use.
    """
    fewest, found = columns.fewest(), False
    known = len(faults.places)
    rows = [*files.lines(path, faults)]
    rows.append((len(rows) + len(faults.places) - known + 1, ""))  # the end, with its number
    is_comment = _comments(line for _, line in rows)
    words: list[str] = []
    tags: list[str] = []
    begins = usable = True
    for (before, _), (number, line) in itertools.pairwise([(0, ""), *rows]):
        if number > before + 1:  # a line between could not be read: it may have been a word
            usable = False
        if not line.strip() or line.startswith(_DOCUMENT):
            if words and usable:
                found = True
                yield Sentence(tuple(words), None if columns.tags is None else tuple(tags))
            words, tags, begins, usable = [], [], True, True
            continue
        if begins and is_comment(line):
            continue
        begins, fields = False, _fields(line)
        word, tag = "", None
        if len(fields) < fewest:
            faults(f"{path}:{number}", f"{len(fields)} columns, expected at least {fewest}")
            usable = False
        else:
            word, tag = fields[columns.words], None if columns.tags is None else fields[columns.tags]
            if not word.strip():
                faults(f"{path}:{number}", f"no word in column {columns.words}")
                usable = False
            elif tag is not None and (tag not in labels if labels else not tag.strip()):
                wanted = f"one of {', '.join(sorted(labels))}" if labels else "a tag"
                faults(f"{path}:{number}", f"column {columns.tags} is {tag!r}, expected {wanted}")
                usable = False
        words.append(word)
        tags.append(tag or "")
    if not found:
        raise UserError(f"{path} has no sentence to use{faults.aside()}; give a file with a word a line")


def _fields(line: str) -> list[str]:
    # Not at what else Unicode calls white: a no-break space is within a word.
    return line.split("\t") if "\t" in line else [field for field in line.split(" ") if field]


def _comments(lines: Iterator[str]) -> Any:
    """Tells a comment, which begins with #, from a word that does: that has as many columns as other words."""
    spoken = (line for line in lines if line.strip() and not line.startswith((_COMMENT, _DOCUMENT)))
    other = next(spoken, "")
    shape = "\t" in other, len(_fields(other))
    return lambda line: line.startswith(_COMMENT) and ("\t" in line, len(_fields(line))) != shape


def _space_before(tokenizer: Tokenizer) -> str:
    """What makes a text the next word of a sentence: a space in byte-level BPE, of which spaces are part of words."""
    alone, spaced = (any(tokenizer.word_starts[ids[:1]]) for ids in tokenizer.encode(["a", " a"]))
    return " " if spaced and not alone else ""


def _fill(lengths: Sequence[int], room: int) -> Iterator[int]:
    """How many words go into each row, as many as there is room for."""
    count = used = 0
    for length in lengths:
        if used + length > room:
            yield count
            count = used = 0
        count, used = count + 1, used + length
    if count:
        yield count


def chunks(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """The chunks that tags mark: (type, first word, the one after the last).

    A chunk begins and ends where conlleval (CoNLL-2000's, with B, I, E, S, O) says so, whatever the scheme, and where
    tags are not in order. Of tags without a prefix, each run of the same one is a chunk.
    """
    begin, before, type_before = 0, OUTSIDE, ""
    for i, tag in enumerate([*tags, OUTSIDE]):
        mark, type_ = _split(tag)
        changes = type_ != type_before
        ends = before in "ES" or mark in "BSO" or changes
        if before != OUTSIDE and ends:
            yield type_before, begin, i
        if mark in "BS" or (mark in "IE" and (before in "ESO" or changes)):
            begin = i
        before, type_before = mark, type_


def _split(tag: str) -> tuple[str, str]:
    """(B, I, E, S or O, type)."""
    prefixed = _PREFIXED.fullmatch(tag)
    mark, type_ = prefixed.groups() if prefixed else (tag, "") if tag in _MARKS else ("I", tag)
    return _AS.get(mark, mark), type_


def _percent(part: int, of: int) -> float:
    return 100 * part / of if of else 0.0
