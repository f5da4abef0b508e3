"""Ctrl-C and SIGTERM at named points of real commands: one line, no traceback and a status."""

import signal
from pathlib import Path

import pytest
from cli_runs import environment, logged, prepare_arguments, train_arguments
from kill_points import Done, Point, commands, finish

pytestmark = pytest.mark.slow

LINE = "interrupted; run the same command again to continue\n"
STEPS = 5
LOGGED = "electra_jax.runtime.metric_writers:MetricsWriter.write"
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    with commands(environment(), tmp_path_factory.mktemp("commands")) as started:
        yield started


def train(corpus: Path, workdir: Path) -> list[str]:
    options = (f"--config.steps={STEPS}", "--config.log_every=1", "--config.checkpoint.every=100")
    return ["train", *train_arguments(corpus, workdir, *options, arg="objective=mlm")]


def assert_interrupted(done: Done, number: int) -> None:
    """One line, whatever it was doing."""
    assert (done.err, done.status) == (LINE, 128 + number), done.points


@pytest.mark.parametrize("number", SIGNALS)
def test_while_text_is_read(number, forked, text_file, tmp_path):
    point = Point("before", "electra_jax.data.local_runner:read_documents", number=number)
    argv = prepare_arguments(text_file, tmp_path / "corpus", "--workers=1")
    assert_interrupted(forked.run(argv, point), number)
    finish(forked, argv)


def test_while_other_processes_read_and_encode(forked, text_file, tmp_path):
    """They end with the command, and print nothing."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"{number}. {text_file.read_text()}" for number in range(20)))
    point = Point("before", "electra_jax.data.reading_ahead:read_fingerprints", time=2, number=signal.SIGTERM)
    argv = prepare_arguments(text, tmp_path / "corpus", "--workers=2")
    assert_interrupted(forked.run(argv, point), signal.SIGTERM)


def test_while_a_run_compiles(forked, text_file, tmp_path):
    point = Point("before", "electra_jax.step:ShardedStep.compile", number=signal.SIGINT)
    assert_interrupted(forked.run(train(text_file, tmp_path / "run"), point), signal.SIGINT)


def test_a_run_that_is_stopped_saves_and_says_how_to_resume(forked, text_file, tmp_path):
    """By SIGTERM, and by Ctrl-C when it has been resumed; each comes in a step, whose end it waits for.

    test_resume.py compares the bits.
    """
    stopped = tmp_path / "stopped"
    argv = train(text_file, stopped)
    for number, saved in ((signal.SIGTERM, 2), (signal.SIGINT, 4)):
        done = forked.run(argv, Point("after", LOGGED, number=number))
        assert (done.status, done.err) == (143, "")  # a supervisor starts it again
        assert f"interrupted and saved at step {saved};" in done.out
        assert done.out.rstrip().endswith("the same command resumes it")
        assert (stopped / "checkpoints" / str(saved)).is_dir()
        assert logged(stopped)[-1]["step"] == saved
    done = finish(forked, argv)
    assert "resuming from step 4" in done.out
    assert [line["step"] for line in logged(stopped)] == list(range(1, STEPS + 1))
