"""Tests run on eight fake devices, with JAX's strictest rules: no implicit type or rank promotion."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compilation takes most of the time of these tests.
jax.config.update("jax_disable_most_optimizations", True)


def pytest_configure(config: pytest.Config) -> None:
    """Makes a compilation cache that all workers share, and the processes that they start (cli_runs.py)."""
    if not hasattr(config, "workerinput"):
        os.environ["ELECTRA_JAX_TESTS_CACHE"] = tempfile.mkdtemp(prefix="electra_jax_tests_")
    jax.config.update("jax_compilation_cache_dir", os.environ["ELECTRA_JAX_TESTS_CACHE"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop("ELECTRA_JAX_TESTS_CACHE"), ignore_errors=True)


_WORDS = """the model reads a line of text and says which word was replaced by another one in this sentence"""


@pytest.fixture(scope="session", autouse=True)
def ignore_closed_event_loops() -> Iterator[None]:
    """A damaged checkpoint leaves reads behind that end in a closed event loop; the command line hides them too."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda args: None if str(args.exc_value) == "Event loop is closed" else hook(args)
    yield
    sys.unraisablehook = hook


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus: 300 documents of made-up English, separated by blank lines."""
    words = _WORDS.split()
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    documents = []
    for number in range(300):
        lines = []
        for line in range(2 + number % 5):
            picked = [words[(number * 7 + line * 3 + i * (1 + number % 4)) % len(words)] for i in range(6 + number % 9)]
            lines.append(" ".join(picked) + ".")
        documents.append("\n".join(lines))
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path
