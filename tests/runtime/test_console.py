import io

import pytest
from rich.table import Table

from electra_jax.runtime.console import PlainConsole
from electra_jax.runtime.marked_text import Mark, print_marked
from electra_jax.runtime.progress import ConsoleProgress

HOSTILE = "a\x1b]0;title\x07\x1b[31mb\x9b"
SHOWN = r"a\x1b]0;title\x07\x1b[31mb\x9b"


@pytest.mark.parametrize(("text", "shown"), [(HOSTILE, SHOWN), ("f[b].jsonl :smile: [/]",) * 2])
def test_texts_and_tables_show_control_characters_as_escapes_and_markup_as_text(text, shown):
    console, table = PlainConsole(file=io.StringIO(), width=100), Table.grid()
    table.add_row(text)
    console.print(text)
    console.print(table)
    assert console.file.getvalue().splitlines() == [shown, shown]


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_and_marked_texts_obey_no_control_characters(terminal):
    console = PlainConsole(file=io.StringIO(), width=200, force_terminal=terminal)
    with ConsoleProgress(console) as progress:
        progress.say(HOSTILE)
        progress.start(HOSTILE)
        progress.update(0.5, HOSTILE)
    print_marked(console, [(HOSTILE, [Mark(0, 1, 0.9)])])
    assert "\x1b]0" not in console.file.getvalue()
    assert not {"\x07", "\x9b"} & set(console.file.getvalue())
    assert r"\x1b]0;title\x07" in console.file.getvalue()


def test_a_closed_standard_output_is_an_error_that_the_command_reports():
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        PlainConsole(file=Closed()).print("x")
