"""The ID column of CoNLL-U, which tells words from other rows (universaldependencies.org/format.html).

Words are numbered 1, 2, ... in their sentence. Other rows are not words: a range such as `3-4` holds a multiword token
as it is written (`au`) before its words (`à`, `le`), and an empty node such as `5.1` is part of the syntax only.
"""

import itertools
import re
from collections.abc import Iterable

from electra_jax.config.errors import UserError

SUFFIX = ".conllu"
_WORD = re.compile(r"[0-9]+")
_NO_WORD = re.compile(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+")


def is_comment(line: str) -> bool:
    """True if the line is a comment. Rows never begin with #, because they begin with an ID."""
    return line.startswith("#")


def id_of(line: str) -> str:
    """Returns the first column. Columns are separated by tabs or, in a line without tabs, by spaces."""
    return line.partition("\t")[0] if "\t" in line else line.lstrip(" ").partition(" ")[0]


def is_word(row_id: str) -> bool:
    return bool(_WORD.fullmatch(row_id))


def is_no_word(row_id: str) -> bool:
    """True for the ID of a range or an empty node."""
    return bool(_NO_WORD.fullmatch(row_id))


def has_ids(lines: Iterable[str]) -> bool:
    """True if the first of several columns is the ID, i.e. counts the words from 1 in most sentences.

    Files with fewer or more columns than the ten of CoNLL-U are recognized too.
    """
    sentences = counted = longest = 0
    for filled, group in itertools.groupby(lines, lambda line: bool(line.strip())):
        # A line of a single column has no ID: there, a number is a word.
        ids = [id_of(line) for line in group if filled and not is_comment(line) and id_of(line) != line.strip()]
        numbers = [each for each in ids if not is_no_word(each)]
        if numbers:
            counts = numbers == [str(number) for number in range(1, len(numbers) + 1)]
            sentences, counted = sentences + 1, counted + counts
            longest = max(longest, len(numbers) * counts)
    # A sentence of one word numbered 1 proves nothing; a few damaged sentences disprove nothing.
    return longest > 1 and 2 * counted > sentences


def check_columns(path: object, columns: Iterable[tuple[str, int]], width: int) -> None:
    """Raises UserError if a setting chooses the ID column.

    Args:
      path: the file, for the message.
      columns: (setting, its column) pairs; negative columns count from the last.
      width: number of columns of the file.
    """
    for setting, column in columns:
        if column in (0, -width):
            raise UserError(
                f"{path} has IDs of words in its first column, as in CoNLL-U: expected config.task.{setting} to be "
                "another column; use --config.task.words=1 --config.task.tags=3 for parts of speech"
            )
