"""Tests run on eight fake devices, with JAX's strictest rules: no implicit type or rank promotion."""

import gc
import os
import secrets
import shutil
import tempfile
from pathlib import Path

import hypothesis
import jax
import jax.numpy as jnp
import pytest

PLATFORMS = os.environ.get("ELECTRA_JAX_TESTS_PLATFORMS", "cpu")  # tests/modeling/test_gpu.py says more
jax.config.update("jax_platforms", PLATFORMS)
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compilation takes most of the time of these tests. JAX 0.10 still has XLA's older code generator for CPUs, which takes
# a third of the newer one's time. Child processes inherit the flag (cli_runs.py).
jax.config.update("jax_disable_most_optimizations", PLATFORMS == "cpu")
os.environ["XLA_FLAGS"] = "--xla_cpu_parallel_codegen_split_count=1"  # each worker has one core
if jax.__version_info__ < (0, 11):
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"

# A slow machine is no failure: no example has a time limit.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

CACHE = "ELECTRA_JAX_TESTS_CACHE"
_own_cache: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long tests/storm and tests/fuzz are at it."""
    group = parser.getgroup("storm and fuzz", "Random trials; a failure names the seed that repeats it.")
    group.addoption("--storm-kills", type=int, default=12, help="SIGKILLs of tests/storm (default 12; by hand 100)")
    group.addoption("--storm-seed", type=int, help="seed of the moments of tests/storm (default: another every time)")
    group.addoption("--fuzz-cases", type=int, default=150, help="cases of tests/fuzz (default 150; by hand 1000)")
    group.addoption("--fuzz-seed", type=int, help="seed of the cases of tests/fuzz (default: another every time)")


def pytest_configure(config: pytest.Config) -> None:
    """Draws the seeds that are not given, and makes a compilation cache for all workers and what they start.

    Where the environment names a folder, that is the cache, and kept. Workers of xdist inherit the options.
    """
    for name in ("storm_seed", "fuzz_seed"):
        if getattr(config.option, name) is None:
            setattr(config.option, name, secrets.randbelow(10**6))
    if CACHE not in os.environ:
        os.environ[CACHE] = tempfile.mkdtemp(prefix="electra_jax_tests_")
        _own_cache.append(os.environ[CACHE])
    jax.config.update("jax_compilation_cache_dir", os.environ[CACHE])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


# Files that take longest for their number of tests: they start processes or train. The first workers begin with these.
LONG = (
    *("test_pages_of_training", "test_tiny", "test_distributed", "test_pages_of_models", "test_kill_points"),
    *("test_storm_training", "test_storm_commands", "test_fuzz_settings", "test_fuzz_files", "test_fuzz_command_lines"),
    *("test_package", "test_step", "test_export", "test_bad_input", "test_prepare_command"),
    *("test_interrupted_commands", "test_systems", "test_train", "test_served"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; otherwise in the order of collection."""
    rank = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONG)))


def pytest_collection_finish() -> None:
    """As `electra-jax` does: else a tenth of the tests' time goes into the collector, which finds next to nothing."""
    gc.freeze()
    gc.set_threshold(50_000)


def pytest_unconfigure() -> None:
    for folder in _own_cache:
        shutil.rmtree(folder, ignore_errors=True)
        del os.environ[CACHE]


_WORDS = """the model reads a line of text and says which word was replaced by another one in this sentence"""


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus: 300 documents of made-up English, separated by blank lines."""
    from cli_runs import made_once  # after the settings above

    def write(folder: Path) -> None:
        words, documents = _WORDS.split(), []
        for number in range(300):
            lines = []
            for line in range(2 + number % 5):
                at = (number * 7 + line * 3 + i * (1 + number % 4) for i in range(6 + number % 9))
                picked = [words[place % len(words)] for place in at]
                lines.append(" ".join(picked) + ".")
            documents.append("\n".join(lines))
        (folder / "corpus.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")

    return made_once(tmp_path_factory, "text", write) / "corpus.txt"


@pytest.fixture
def empty_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts of a page keep their titles and have nothing drawn in them: drawing a page's charts takes a second."""
    from electra_jax.report import plots

    class Empty:
        def __init__(self, *arguments: object):
            pass

        def append_to(self, root: object) -> None:
            pass

    monkeypatch.setattr(plots, "_Chart", Empty)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Path:
    """A run of two steps on `text_file`, with a checkpoint of each; copy it to change it."""
    from cli_runs import made_once, quiet, small_config  # after the settings above

    from electra_jax import train

    config = small_config(text_file, steps=2, eval_batches=1, checkpoint__every=1)

    def make(folder: Path) -> None:
        train.train(config, folder / "electra", quiet())

    return made_once(tmp_path_factory, "small_run", make) / "electra"


@pytest.fixture
def light_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process compile in a second: their gradient is of the words that a batch holds, without a network.

    The optimizer, the state, its checkpoints and the batches are those of any run; an evaluation says 1. It is for what
    a run does around its networks, with `objective=mlm`, which draws no samples at the end.
    """
    from electra_jax import evaluate, metrics, step

    def gradient(objective, stage, params, batch, steps_done, key, *_):  # type: ignore[no-untyped-def]
        word = jnp.zeros_like(params["embeddings"]["word"])
        word = word.at[batch.input_ids].add(1 + jax.random.uniform(key))
        grads = jax.tree.map(jnp.zeros_like, params)
        grads["embeddings"] = {**grads["embeddings"], "word": word}
        measured = {"tokens": metrics.total((batch.sequence_ids > 0).astype(jnp.float32))}
        return grads, jnp.mean(params["embeddings"]["word"]), measured

    monkeypatch.setattr(step, "gradient", gradient)
    monkeypatch.setattr(evaluate.Evaluator, "compile", lambda *_: [])
    monkeypatch.setattr(evaluate.Evaluator, "__call__", lambda *_: {"mlm_loss": 1.0})
