"""The default corpus: English prose from the docstrings of this Python installation; a first run needs no download.

Modules of the standard library and of installed packages are parsed with `ast`; nothing is imported or executed. A
module is a document, a paragraph is a line. Doctests, tables, code blocks, markup and repeated paragraphs are removed.
"""

import ast
import functools
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from importlib import metadata
from pathlib import Path

from electra_jax.config.errors import UserError
from electra_jax.data.config import CorpusConfig
from electra_jax.data.documents import Document
from electra_jax.data.sources import DOCSTRINGS, Source, Unit

_MIN_WORDS = 6  # a shorter paragraph is a heading or a signature, seldom a sentence
_MIN_LETTERS = 0.8  # fraction of letters and spaces; below it, a paragraph is code, numbers or a table
_TEST_NAMES = {"test", "tests", "testing", "_tests"}  # a third of the parsing, hardly any prose
_OTHER_ROOTS = {"site-packages", "dist-packages"}  # inside the standard library's folder
_FENCE = re.compile(r"^\s*(```|~~~)")
_RULE = re.compile(r"^[\s\W_]*$")  # blank, section underlines, table borders
_COLUMNS = re.compile(r"\S(\s{3,}|\s\|\s)\S.*")  # words set apart as columns
_BULLET = re.compile(r"^\s*([-*•+]|\d+[.)]|:[\w ]+:|@\w+)\s+")
_ROLE = re.compile(r":[\w:]+:`~?([^`<]*)[^`]*`")
_LINK = re.compile(r"`([^`<]+)\s*<[^>]*>`_*")
_MARKUP = re.compile(r"[`*]+")
_STATEMENTS = ("body", "handlers", "orelse", "finalbody", "cases")  # fields of a node that hold statements


def module_files(roots: Iterable[Path], packages: Sequence[str] = ()) -> list[tuple[str, Path]]:
    """Returns (dotted module name, file) of each module under `roots`, sorted by name; the first root with a name wins.

    Args:
      roots: folders to search.
      packages: top-level modules to find; empty: all.
    """
    files: dict[str, Path] = {}
    for root in roots:
        for folder, folders, names in os.walk(root):
            parents = Path(folder).relative_to(root).parts
            left_out = _TEST_NAMES if parents else _TEST_NAMES | _OTHER_ROOTS
            # In place: os.walk visits the folders that are left.
            folders[:] = [name for name in folders if name not in left_out]
            # At the top only: folders below belong to a package that was asked for.
            if not parents and packages:
                folders[:] = [name for name in folders if name in packages]
                names = [name for name in names if name.removesuffix(".py") in packages]
            for name in names:
                module = name.removesuffix(".py")
                if module != name and module not in left_out:
                    files.setdefault(".".join((*parents, module)), Path(folder, name))
    return sorted(files.items())


def default_roots() -> list[Path]:
    """Returns the folders of the standard library and of installed packages."""
    # purelib and platlib are mostly one folder.
    return [Path(p) for p in dict.fromkeys(sysconfig.get_path(k) for k in ("stdlib", "purelib", "platlib"))]


def paragraphs(docstring: str) -> list[str]:
    """Extracts the prose of one docstring, one string per paragraph."""
    prose: list[str] = []
    words: list[str] = []
    code_indent: int | None = None  # lines that are indented deeper than this are code
    in_doctest = in_fence = False

    def flush() -> None:
        text = " ".join(words)
        words.clear()
        # Roles and links are found by their backquotes, so these are removed last.
        text = _MARKUP.sub("", _LINK.sub(r"\1", _ROLE.sub(r"\1", text)))
        # An escape in a docstring may be a lone surrogate, which UTF-8 cannot encode.
        text = " ".join(text.split()).encode("utf-8", "ignore").decode()
        letters = sum(c.isalpha() or c == " " for c in text)
        if len(text.split()) >= _MIN_WORDS and letters >= _MIN_LETTERS * len(text):
            prose.append(text)

    for line in inspect.cleandoc(docstring).splitlines():
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        # First: within a fence, no other mark counts.
        if _FENCE.match(line):
            in_fence = not in_fence
            flush()
        elif in_fence:
            continue
        elif not stripped:
            in_doctest = False
            flush()
        elif in_doctest or stripped.startswith(">>>"):
            in_doctest = True
            flush()
        # Code after "::" or a directive lasts while lines are indented deeper, over blank lines too.
        elif code_indent is not None and indent > code_indent:
            continue
        elif _RULE.match(line) or _COLUMNS.search(stripped) or stripped.startswith("|"):
            flush()
        elif stripped.startswith(".. "):
            code_indent = indent
            flush()
        else:
            code_indent = None
            if _BULLET.match(line):
                flush()
                stripped = _BULLET.sub("", line)
            words.append(stripped.removesuffix("::"))
            if stripped.endswith("::"):
                code_indent = indent
                flush()
    flush()
    return prose


def docstrings(source: bytes) -> Iterator[str]:
    """Yields the docstrings in a module's source, outermost first; none if it does not parse."""
    # Parsing is most of the work, and hardly any docstring has other quotes.
    if b'"""' not in source and b"'''" not in source:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escape sequences in other packages
        try:
            tree = ast.parse(source)
        # ValueError: a null byte. RecursionError and MemoryError: nesting too deep for the parser.
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
    nodes: list[ast.AST] = [tree]
    # The list grows meanwhile: like ast.walk, but over statements only, a tenth of the nodes.
    for node in nodes:
        for field in _STATEMENTS:
            nodes += getattr(node, field, ())
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield text


def prose_of_file(path: Path) -> tuple[str, ...]:
    """Returns the prose of a module's docstrings; none if the file cannot be read.

    The result is cached for the next pass over the text, as parsing is most of the work; a changed file is read again.
    """
    try:
        return _read_prose(path, path.stat().st_mtime_ns)
    except OSError:
        return ()


@functools.cache
def _read_prose(path: Path, modified: int) -> tuple[str, ...]:
    del modified  # part of the cache's key
    return tuple(paragraph for text in docstrings(path.read_bytes()) for paragraph in paragraphs(text))


def packages_in(names: str) -> list[str]:
    """Returns the packages in a list that is separated by commas."""
    return [package for each in names.split(",") if (package := each.strip())]


def check(names: str) -> None:
    """Raises UserError if a package in a list is not installed, or has no module with source code."""
    packages = packages_in(names)
    found = {name.partition(".")[0] for name, _ in module_files(default_roots(), packages)} if packages else set()
    if missing := [package for package in packages if package not in found]:
        raise UserError(f"docstrings:{names} has no package {missing[0]} here: expected names as in import; install it")


def read_modules(packages: Sequence[str] = (), roots: Iterable[Path] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yields (module name, paragraphs) for each module with prose, without paragraphs that occurred before.

    Args:
      packages: top-level modules to read; empty: all.
      roots: folders to search; None: those of the standard library and of installed packages.
    """
    seen: set[bytes] = set()
    for name, path in module_files(default_roots() if roots is None else roots, packages):
        lines = []
        for paragraph in prose_of_file(path):
            digest = blake2b(paragraph.encode(), digest_size=8).digest()
            if digest not in seen:
                seen.add(digest)
                lines.append(paragraph)
        if lines:
            yield name, lines


def units(number: int, source: Source, size: int) -> Iterator[Unit]:
    """Yields the unit of a source: all its packages. Raises UserError if one is not installed."""
    _, _, names = source.name.partition(":")
    check(names)
    yield Unit(number, DOCSTRINGS, (names,), 0)


def fingerprint(source: Source) -> list[str]:
    """Returns a string that changes whenever the documents may: the versions of Python and of all distributions."""
    packages = sorted({f"{d.metadata['Name']}=={d.version}" for d in metadata.distributions()})
    return ["\n".join([f"python {sysconfig.get_config_var('py_version') or ''}", *packages])]


def read(name: str, unit: Unit, config: CorpusConfig) -> Iterator[Document]:
    """Yields a document for each module of the packages that `name` lists."""
    for place, lines in read_modules(packages_in(name)):
        yield Document(place, "\n".join(lines).encode())
