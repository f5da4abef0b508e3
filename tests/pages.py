"""The documentation's pages as programs: their fenced blocks, as a reader would run them, one after the other.

The blocks of a page marked `bash` and `python` run in their order, in an empty folder. Blocks marked `console` cannot
run here (a TPU, a download). Blocks that several pages begin with run once: in an empty folder the same blocks make the
same files, so the other pages get a copy of these.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import pytest
from cli_runs import ROOT, environment, made_once

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line of the page that it begins in."""

    language: str
    text: str
    line: int


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    text = text_of(page)
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)
    return [Block(match[1], match[2], text.count("\n", 0, match.start()) + 1) for match in found]


def runnable(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.language in ("bash", "python")]


def script(begin: list[Block], name: str = "") -> str:
    """One shell script of some blocks; it says which block it is at."""
    parts = ["set -eo pipefail"]
    for block in begin:
        parts.append(f"echo '== {name}:{block.line}'")
        python = block.language == "python"
        parts.append(f"python - <<'END_OF_BLOCK'\n{block.text}END_OF_BLOCK" if python else block.text)
    return "\n".join(parts)


def shared(page: str) -> int:
    """How many of the first blocks of a page another page begins with too.

    They must be such that later ones need their files alone: no variables of the shell, no other folder.
    """

    def same(other: str) -> int:
        pairs = zip(runnable(page), runnable(other), strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0].text == pair[1].text, pairs))

    return max(same(other) for other in RUNNABLE - {page})


def run(page: str, folder: Path, factory: pytest.TempPathFactory, **variables: str) -> None:
    """Runs the blocks of a page.

    Args:
      page: the page.
      folder: an empty folder, where they run.
      factory: of this session, which makes once what blocks make that several pages begin with.
      variables: more environment variables.
    """
    all_blocks, count = runnable(page), shared(page)
    if count:
        shutil.copytree(_make(page, count, factory), folder, dirs_exist_ok=True)
    _succeeds(script(all_blocks[count:], page), folder, variables)


def _make(page: str, count: int, factory: pytest.TempPathFactory) -> Path:
    """The folder with what the first blocks of a page make; they run if that was not done for another page."""
    begin = runnable(page)[:count]

    def make(folder: Path) -> None:
        if count > 1:
            shutil.copytree(_make(page, count - 1, factory), folder, dirs_exist_ok=True)
        _succeeds(script(begin[-1:], page), folder, {})

    name = blake2b("\n".join(block.text for block in begin).encode(), digest_size=8).hexdigest()
    return made_once(factory, name, make)


def _succeeds(text: str, folder: Path, variables: Mapping[str, str]) -> None:
    env = {**environment(), **variables}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    command = ["bash", "-c", text]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


RUNNABLE = {page for page in PAGES if runnable(page)}
# What is done with models; the others are about training them. Two files of tests, so that two workers share the pages.
OF_MODELS = {f"docs/howto/{name}.md" for name in ("compare", "curves", "export", "finetune", "hub", "predict")}
NEEDS_HUB = "docs/howto/hub.md"
