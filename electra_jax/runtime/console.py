"""Console of the command line, which shows foreign text without executing its control characters."""

import errno
import os
from collections.abc import Sequence
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from electra_jax.config.printable import printable


class PlainConsole(Console):
    """Console that prints strings as they are: without wrapping, markup, emoji codes or colors of its own.

    Control characters are printed as escapes; styles are given as `Text`. A closed standard output raises
    BrokenPipeError.
    """

    def __init__(self, **options: Any):
        """Takes the options of rich's `Console`."""
        super().__init__(soft_wrap=True, markup=False, emoji=False, highlight=False, **options)

    # Rich calls this for every string, table cells included.
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> NoReturn:
        # Rich itself would exit silently.
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def table_of(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """Returns a table without rows, with left-aligned columns for texts and then right-aligned ones for numbers."""
    table = Table(*texts, title=title, title_justify="left")
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table
