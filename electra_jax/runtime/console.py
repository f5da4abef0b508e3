"""The console of the command line, which shows text of others without obeying it."""

import errno
import os
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text

from electra_jax.config.printable import printable


class PlainConsole(Console):
    """A console that prints long lines whole, and control characters in strings as escapes.

    Styles are given as `Text`, never as escapes in a string. A standard output that was closed is a BrokenPipeError.
    """

    def __init__(self, **options: Any):
        """Takes the options of rich's `Console`."""
        super().__init__(soft_wrap=True, **options)

    def render_str(self, text: str, **options: Any) -> Text:  # of every string, also in the cells of a table
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))  # rich would exit without a word
