"""The documentation's pages as programs: their fenced blocks, as a reader would run them, one after the other.

The blocks of a page marked `bash` and `python` run in their order, in an empty folder. Blocks marked `console` cannot
run here (a TPU, a download).
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from cli_runs import ROOT, environment

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


def script(page: str) -> str:
    """One shell script of all blocks that can run; it says which block it is at."""
    parts = ["set -eo pipefail"]
    for block in blocks(page):
        if block.language not in ("bash", "python"):
            continue
        parts.append(f"echo '== {page}:{block.line}'")
        python = block.language == "python"
        parts.append(f"python - <<'END_OF_BLOCK'\n{block.text}END_OF_BLOCK" if python else block.text)
    return "\n".join(parts)


def run(page: str, folder: Path, **variables: str) -> None:
    """Runs the blocks of a page in an empty folder, with more environment variables."""
    env = {**environment(), **variables}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    command = ["bash", "-c", script(page)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


RUNNABLE = {page for page in PAGES if any(block.language in ("bash", "python") for block in blocks(page))}
# What is done with models; the others are about training them. Two files of tests, so that two workers share the pages.
OF_MODELS = {f"docs/howto/{name}.md" for name in ("compare", "curves", "export", "finetune", "hub", "predict")}
NEEDS_HUB = "docs/howto/hub.md"
