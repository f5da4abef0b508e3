"""Reader of the column format of CoNLL's shared tasks: one word per line, a blank line after each sentence.

CoNLL-U is recognized by the IDs in its first column, or by the file's suffix.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.downstream.tasks import conllu, files
from electra_jax.downstream.tasks.task import BadRows

_DOCUMENT = "-DOCSTART-"


class Sentence(NamedTuple):
    """A sentence.

    Attributes:
      words: the words.
      tags: the tag of each word; None in a test set.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None


class Columns(NamedTuple):
    """Column numbers; negative ones count from the last.

    Attributes:
      words: the column of the words.
      tags: the column of the tags; None if there are none to read.
    """

    words: int
    tags: int | None

    def fewest(self) -> int:
        """Returns the minimum number of columns in a row.

        Raises:
          UserError: words and tags are the same column.
        """
        used = [self.words] if self.tags is None else [self.words, self.tags]
        if len({*used}) < len(used):
            raise UserError(f"config.task.words and config.task.tags are both {self.words}: expected different columns")
        fewest = max(column + 1 if column >= 0 else -column for column in used)
        # Columns 0 and -1 need a row of two or more: in a row of one they are the same column.
        return fewest + (len({column % fewest for column in used}) < len(used))


def read_sentences(
    path: Path, columns: Columns, bad_rows: BadRows, labels: frozenset[str] = frozenset()
) -> Iterator[Sentence]:
    """Yields the sentences of a file. A sentence with a bad row is skipped as a whole.

    In CoNLL-U, the rows of ranges and empty nodes are skipped, as are all lines that begin with #.

    Args:
      path: the file; its columns are separated by tabs or, in a line without tabs, by spaces.
      columns: the columns of words and tags.
      bad_rows: receives the rows that cannot be used.
      labels: the valid tags; empty: any.

    Raises:
      UserError: the file has no usable sentence, or `columns` names the IDs of CoNLL-U.
    """
    fewest, empty = columns.fewest(), True
    known = len(bad_rows.problems)
    # All at once: most sentences must be seen to know if the first column has IDs.
    lines = [*files.read_lines(path, bad_rows)]
    # Counts lines that were not UTF-8, so that a loss at the end of the file shows as a gap too.
    lines.append((len(lines) + len(bad_rows.problems) - known + 1, ""))  # ends the last sentence
    numbered = path.suffix == conllu.SUFFIX or conllu.has_ids(line for _, line in lines)
    if numbered:
        _check_columns(path, columns, [line for _, line in lines])
    is_comment = conllu.is_comment if numbered else _make_is_comment(line for _, line in lines)
    words: list[str] = []
    tags: list[str] = []
    at_start = usable = True
    for (before, _), (number, line) in itertools.pairwise([(0, ""), *lines]):
        if number > before + 1:  # the skipped line was not UTF-8, and may have been a word
            usable = False
        # -DOCSTART- begins a document in CoNLL-2003; it is not a word.
        if not line.strip() or line.startswith(_DOCUMENT):
            if words and usable:
                empty = False
                yield Sentence(tuple(words), None if columns.tags is None else tuple(tags))
            words, tags, at_start, usable = [], [], True, True
        elif numbered and conllu.is_no_word(conllu.id_of(line)):
            at_start = False
        # Without IDs a line with # within a sentence is a word; with IDs it never is.
        elif not ((at_start or numbered) and is_comment(line)):
            at_start = False
            row = _parse_row(_split_fields(line), columns, fewest, labels, numbered)
            if isinstance(row, str):
                bad_rows.add(f"{path}:{number}", row)
                usable = False
            else:
                words.append(row[0])
                tags.append(row[1])
    if empty:
        raise UserError(f"{path} has no sentence to use{bad_rows.in_brackets()}: expected one word per line")


def _check_columns(path: Path, columns: Columns, lines: Iterable[str]) -> None:
    """Raises UserError if `columns` names the column of the IDs."""
    # A negative column counts from the end, so the number of columns decides if it is the first.
    rows = (line for line in lines if line.strip() and not conllu.is_comment(line))
    width = len(_split_fields(next(rows, "")))
    chosen = [("words", columns.words)] if columns.tags is None else [("words", columns.words), ("tags", columns.tags)]
    conllu.check_columns(path, chosen, width)


def _parse_row(
    fields: list[str], columns: Columns, fewest: int, labels: frozenset[str], numbered: bool
) -> tuple[str, str] | str:
    """Returns (word, tag), where the tag is empty if there is none to read, or a description of what is wrong."""
    if numbered and not conllu.is_word(fields[0]):
        return f"the ID is {fields[0]!r}, expected a number, a range such as 3-4, or an empty node such as 5.1"
    if len(fields) < fewest:
        return f"{len(fields)} columns, expected at least {fewest}"
    word = fields[columns.words]
    if not word.strip():
        return f"no word in column {columns.words}"
    if columns.tags is None:
        return word, ""
    tag = fields[columns.tags]
    # Labels are those of the training set: a new tag in dev has no output. `make_task` reads without any.
    if tag not in labels if labels else not tag.strip():
        expected = f"one of {', '.join(sorted(labels))}" if labels else "a tag"
        return f"column {columns.tags} is {tag!r}, expected {expected}"
    return word, tag


def _split_fields(line: str) -> list[str]:
    # Not str.split(), which also splits at other Unicode white space: a no-break space is part of a word.
    return line.split("\t") if "\t" in line else [field for field in line.split(" ") if field]


def _make_is_comment(lines: Iterable[str]) -> Callable[[str], bool]:
    """Returns a predicate for comments. A word that begins with # differs: it has as many columns as other words."""
    words = (line for line in lines if line.strip() and not (conllu.is_comment(line) or line.startswith(_DOCUMENT)))
    word = next(words, "")
    shape = "\t" in word, len(_split_fields(word))
    return lambda line: conllu.is_comment(line) and ("\t" in line, len(_split_fields(line))) != shape
