import ast
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from electra_jax.data import docstrings
from electra_jax.data.sources import Source

PROSE = "These seven words make a fine paragraph."
MORE = "Another paragraph that has enough words follows."


def module(root: Path, name: str, *paragraphs: str, code: str = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(paragraphs)
    path.write_text(f'"""{text}"""\n{code}', encoding="utf-8")
    return path


INTRODUCTION = "These seven words introduce a code block"
CODE = "some words that look just like any prose"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"These seven words\n    make a  fine\n    paragraph.\n\n    {MORE}\n", [PROSE, MORE]),
        (f"{INTRODUCTION}::\n\n    {CODE}\n\n    and some more after a blank line\n\n{MORE}\n", [INTRODUCTION, MORE]),
        (f"Head of all.\n\n    {INTRODUCTION}::\n\n        {CODE}\n\n    {MORE}\n", [INTRODUCTION, MORE]),
        (f"Args:\n\n    {PROSE}\n", [PROSE]),
        (f"Code::\n\n    {CODE}\n\n{PROSE}\n\n    {MORE}\n", [PROSE, MORE]),
        (f"{PROSE}\n>>> words()\n{CODE}\n\n{MORE}\n======\n", [PROSE, MORE]),
        (f"{PROSE}\n\nLook up `the\nmodule <https://example.org>`_ and more.", [PROSE, "Look up the module and more."]),
    ],
    ids=["lines", "code", "indented code", "indented", "indented after code", "beside doctest and table", "link"],
)
def test_paragraphs_of_prose_are_lines(text, expected):
    assert docstrings.paragraphs(text) == expected


NOT_PROSE = {
    "doctest": f">>> print('{CODE}')\n{CODE}",
    "doctest continued": f">>> if True:\n...     print('words')\n{CODE}",
    "indented doctest": f"    >>> words()\n    {CODE}",
    "backtick fence": f"```python\n{CODE}\n\nand some more after a blank line\n```",
    "tilde fence": f"~~~\n{CODE}\n\nand some more after a blank line\n~~~",
    "directive": f".. code-block:: python\n\n    {CODE}\n\n    and some more after a blank line",
    "directive with text": ".. note:: some words that stand in this note\n   and its second line of some words",
    "comment": ".. some words that nobody was ever meant to read",
    "table with borders": f"+------+------+\n| {CODE} |\n+------+------+",
    "columns by spaces": "name      some words that say what it is here",
    "columns by bars": "name | some words that say what | it is here",
    "single-letter column": "n    some words that say what it is here",
    "heading": "Some Short Heading\n---\nand three more",
    "five words": "These are only five words.",
    "numbers": "1 22 333 4444 55555 666666 7777777 and so on",
    "code": "f(x, y=0)[1:-1] == {a: b} != (c, d) <- g(z) % 2 ** k",
}


@pytest.mark.parametrize("block", NOT_PROSE.values(), ids=NOT_PROSE)
def test_what_is_no_prose_is_dropped_and_prose_around_it_stays(block):
    assert docstrings.paragraphs(f"{PROSE}\n\n{block}\n\n{MORE}\n") == [PROSE, MORE]


@pytest.mark.parametrize("bullet", ["-", "*", "•", "+", "1.", "12)", ":param name:", ":returns:", "@return"])
def test_each_bullet_is_a_paragraph_without_its_mark(bullet):
    text = f"{bullet} These seven words make\n  a fine paragraph.\n{bullet} {MORE}\n"
    assert docstrings.paragraphs(text) == [PROSE, MORE]


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        (":class:`Reader`", "Reader"),
        (":py:class:`Reader`", "Reader"),
        (":class:`~codecs.Reader`", "codecs.Reader"),
        (":ref:`the reader <reader-objects>`", "the reader"),
        ("`the reader <https://example.org/reader>`_", "the reader"),
        ("`the reader <https://example.org/reader>`__", "the reader"),
        ("``Reader``", "Reader"),
        ("`Reader`", "Reader"),
        ("*Reader*", "Reader"),
        ("**Reader**", "Reader"),
    ],
)
def test_markup_leaves_its_text(marked, plain):
    text = f"Here we speak of {marked} and of some other things."
    assert docstrings.paragraphs(text) == [f"Here we speak of {plain} and of some other things."]


@pytest.mark.parametrize(
    "source",
    [
        b'"""words"""\ndef f(:\n',
        b'"""words"""\nprint "python 2"\n',
        b'"""words \xff"""\n',
        b'"""words"""\n\0',
        b'"""words"""\nx = ' + b"-" * 100_000 + b"1",
    ],
    ids=["syntax", "python 2", "not utf-8", "null byte", "too deep"],
)
def test_source_that_does_not_parse_is_skipped(source):
    assert list(docstrings.docstrings(source)) == []


def test_bad_escape_in_others_source_does_not_warn():
    assert list(docstrings.docstrings(b'"""a \\d b"""\n')) == ["a \\d b"]


def test_every_line_can_be_written_as_utf8(tmp_path):
    module(tmp_path, "a.py", PROSE, "These words hold half of a pair \\udc80 and some more words.")
    lines = [line for _, lines in docstrings.read_modules(roots=[tmp_path]) for line in lines]
    assert lines[0] == PROSE
    "\n".join(lines).encode("utf-8")


def test_one_document_a_module_named_by_its_dotted_path_and_sorted(tmp_path):
    module(tmp_path, "b.py", "Module b speaks of one thing alone.")
    module(tmp_path, "a/__init__.py", "Package a speaks of one thing alone.", "And it has a second paragraph too.")
    module(tmp_path, "a/c/d.py", "Module d speaks of one thing alone.")
    assert list(docstrings.read_modules(roots=[tmp_path])) == [
        ("a.__init__", ["Package a speaks of one thing alone.", "And it has a second paragraph too."]),
        ("a.c.d", ["Module d speaks of one thing alone."]),
        ("b", ["Module b speaks of one thing alone."]),
    ]


def test_paragraph_seen_before_is_dropped_also_in_another_module(tmp_path):
    module(tmp_path, "a.py", PROSE, PROSE)
    module(tmp_path, "b.py", MORE, PROSE)
    module(tmp_path, "c.py", PROSE)
    assert list(docstrings.read_modules(roots=[tmp_path])) == [("a", [PROSE]), ("b", [MORE])]


def test_broken_module_does_not_stop_the_others(tmp_path):
    module(tmp_path, "a.py", "These words stand in a broken module.", code="def f(:")
    module(tmp_path, "b.py", PROSE)
    (tmp_path / "c.py").mkdir()
    assert list(docstrings.read_modules(roots=[tmp_path])) == [("b", [PROSE])]


def test_nothing_is_imported_or_executed(tmp_path, monkeypatch):
    trace = tmp_path / "trace"
    module(tmp_path, "raises_on_import.py", PROSE, code=f"open({str(trace)!r}, 'w')\nraise SystemExit(1)")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(docstrings.read_modules(roots=[tmp_path])) == [("raises_on_import", [PROSE])]
    assert not trace.exists()
    assert "raises_on_import" not in sys.modules


def test_only_the_packages_asked_for_are_read(tmp_path):
    module(tmp_path, "ab/c.py", PROSE)
    module(tmp_path, "abc.py", MORE)
    module(tmp_path, "d/ab.py", "This module has the name of a package.")
    module(tmp_path, "e.py", "This module was asked for as well.")
    assert [name for name, _ in docstrings.read_modules(["ab", "e"], roots=[tmp_path])] == ["ab.c", "e"]


@pytest.mark.parametrize("folder", ["test", "tests", "testing", "_tests"])
def test_tests_and_other_files_are_left_out_at_any_depth(tmp_path, folder):
    left_out = (f"{folder}/a.py", f"p/{folder}/a.py", f"p/{folder}/q/a.py", f"p/{folder}.py", "p/notes.txt")
    for path in (*left_out, "p/contest/a.py", "unittest/a.py"):
        module(tmp_path, path)
    assert [name for name, _ in docstrings.module_files([tmp_path])] == ["p.contest.a", "unittest.a"]


def test_installed_packages_below_the_standard_library_are_another_root(tmp_path):
    inner = tmp_path / "site-packages"
    module(tmp_path, "a.py")
    module(inner, "b.py")
    module(tmp_path, "dist-packages/c.py")
    assert docstrings.module_files([tmp_path]) == [("a", tmp_path / "a.py")]
    assert docstrings.module_files([tmp_path, inner]) == [("a", tmp_path / "a.py"), ("b", inner / "b.py")]


def test_earlier_root_wins_a_name(tmp_path):
    first, second = module(tmp_path / "1", "a.py"), module(tmp_path / "2", "a.py")
    assert docstrings.module_files([tmp_path / "1", tmp_path / "2"]) == [("a", first)]
    assert docstrings.module_files([tmp_path / "2", tmp_path / "1"]) == [("a", second)]


def test_default_roots_hold_the_standard_library_and_the_installed_packages():
    roots = docstrings.default_roots()
    assert any((root / "argparse.py").is_file() for root in roots)
    assert any((root / "pytest" / "__init__.py").is_file() for root in roots)
    assert len(roots) == len(set(roots))


def test_fingerprint_names_the_interpreter_and_the_installed_versions():
    (lines,) = map(str.splitlines, docstrings.fingerprint(Source("docstrings", None)))
    assert lines[0] == f"python {sys.version.split()[0]}"
    assert f"numpy=={metadata.version('numpy')}" in lines


def test_a_module_that_was_changed_is_read_again_and_one_that_is_gone_has_none(tmp_path):
    path = module(tmp_path, "a.py", "These words stand in a first version.")
    assert docstrings.prose_of_file(path) == ("These words stand in a first version.",)
    path.write_text('"""These words stand in a second version."""')
    os.utime(path, ns=(1, 1))
    assert docstrings.prose_of_file(path) == ("These words stand in a second version.",)
    path.unlink()
    assert docstrings.prose_of_file(path) == ()


def test_docstrings_come_in_the_order_of_a_walk_through_the_whole_tree():
    """Those in classes, functions, conditions, handlers, cases and loops, an outer one before an inner one."""
    source = (
        Path(ast.__file__).read_bytes()
        + b"""
try:
    def a(): 'one'
except E:
    class B:
        'two'
        async def c(): 'three'
else:
    for _ in x:
        def d(): 'four'
finally:
    match x:
        case 1:
            def e(): "five"
"""
    )
    walked = [
        text
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node, clean=False))
    ]
    assert len(walked) > 40
    assert list(docstrings.docstrings(source)) == walked
