"""Breaks one line at a time and checks that the tests notice it.

    python tests/mutations.py              # all of them; about 20 seconds each
    python tests/mutations.py resume       # those whose description or file contains "resume"

Each mutation names the tests of the fast suite that must fail. A mutation that they pass shows a property that nothing
tests. The work is done in a copy of the checkout. Exit status 1: a mutation was not noticed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Mutation(NamedTuple):
    """One change to one file.

    Attributes:
      what: what it breaks.
      file: the file, relative to electra_jax/.
      before: a text that the file contains once.
      after: what replaces it.
      tests: pytest's arguments, relative to tests/.
    """

    what: str
    file: str
    before: str
    after: str
    tests: str


_LIST = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["mutation"]
MUTATIONS = tuple(Mutation(**entry) for entry in _LIST)


def copy_checkout(to: Path) -> None:
    """Copies the files that git knows."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    for name in filter(None, names):
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)


def run_tests(checkout: Path, tests: str) -> subprocess.CompletedProcess[str]:
    paths = [f"tests/{name}" for name in tests.split()]
    command = [sys.executable, "-m", "pytest", "-x", "-n", "0", "-p", "no:cacheprovider", *paths]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "ELECTRA_JAX_TESTS_CACHE": str(checkout / ".compiled")}
    return subprocess.run(command, cwd=checkout, env=env, check=False, capture_output=True, text=True)


def is_noticed(mutation: Mutation, checkout: Path) -> str:
    """The first test that fails; empty if all pass."""
    path = checkout / "electra_jax" / mutation.file
    original = path.read_text(encoding="utf-8")
    if original.count(mutation.before) != 1:
        raise ValueError(f"{mutation.file} has {original.count(mutation.before)} times {mutation.before!r}: expected 1")
    path.write_text(original.replace(mutation.before, mutation.after), encoding="utf-8")
    try:
        result = run_tests(checkout, mutation.tests)
    finally:
        path.write_text(original, encoding="utf-8")
    if result.returncode in (4, 5):  # wrong arguments, or no test was selected
        raise ValueError(f"{mutation.tests} cannot be run (status {result.returncode}): {result.stdout[-500:]}")
    failed = [line for line in result.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "" if result.returncode == 0 else failed[0] if failed else result.stdout[-500:]


def main(words: list[str]) -> int:
    chosen = [m for m in MUTATIONS if all(word in f"{m.what} {m.file}" for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder)
        copy_checkout(checkout)
        for mutation in chosen:
            noticed = is_noticed(mutation, checkout)
            missed += not noticed
            print(f"{'noticed' if noticed else 'MISSED '} {mutation.file}: {mutation.what}: {noticed}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
