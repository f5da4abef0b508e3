"""The command, as real processes: prepared, stopped, trained on. test_kill_points.py kills it, and goes on."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from cli_runs import ROOT, electra_jax_command, environment, run, train_arguments, until

from electra_jax.commands import prepare, train
from electra_jax.config import errors
from electra_jax.data.config import CorpusConfig, corpus_settings
from electra_jax.data.corpus import SourceReport
from electra_jax.runtime.console import PlainConsole
from electra_jax.runtime.workdir import LOCK


def prepare_options(text, output, *arguments):
    options = [f"--input={text}", f"--output={output}", "--vocab_size=40", "--heldout_fraction=.1"]
    return [*options, "--model_type=bpe", *arguments]  # the slower to encode: there is time to stop it


def prepare_command(text, output, *arguments):
    return electra_jax_command("prepare", *prepare_options(text, output, *arguments))


@pytest.fixture(scope="module")
def large(tmp_path_factory, text_file):
    """Six megabytes."""
    words = text_file.read_text().split()
    path = tmp_path_factory.mktemp("large") / "text.txt"
    with path.open("w") as file:
        for number in range(12_000):
            picked = (words[(number * 7919 + i * (1 + number % 97)) % len(words)] for i in range(90))
            file.write(f"{number} {' '.join(picked)}\n\n")
    return path


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, large):
    folder = tmp_path_factory.mktemp("prepared") / "out"
    done = run(prepare_command(large, folder, "--shard_mb=1"))
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOCK}


def test_the_report_says_what_there_is(prepared):
    folder, printed = prepared
    found = json.loads((folder / "report.json").read_text())
    assert sum(found["documents"].values()) == 12_000 == sum(found["lengths"])
    assert 1100 < found["documents"]["heldout"] < 1300
    assert found["shards"] == 6
    assert found["unknown_rate"] < 0.05
    assert found["bytes"] / sum(found["tokens"].values()) == found["bytes_per_token"]
    assert len(found["longest"]) == 10
    for expected in (
        f"{found['documents']['train']:,} to train on, {found['documents']['heldout']:,} held out",
        "bytes per token",
        "documents by length in tokens",
        f"{found['longest'][0][0]:,}",
        f"Train on it with --config.data.input={folder}",
        "Training a vocabulary of 40 lowercased pieces on",
    ):
        assert expected in printed


def test_the_sources_of_a_mixture_are_shown_with_their_shares(capsys):
    counts = {"train": 1500, "heldout": 20}
    sources = [
        SourceReport(f"{name}/*.txt", name, counts, counts, share) for name, share in (("fy", 0.125), ("en", 0.875))
    ]
    PlainConsole().print(prepare._list_sources(sources))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1:] == [["en", "87.50%", "1.5k", "20", "en/*.txt"], ["fy", "12.50%", "1.5k", "20", "fy/*.txt"]]


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_workers_end_with_the_command(large, tmp_path, number):
    arguments = prepare_command(large, tmp_path / "out", "--shard_mb=1", "--workers=2")
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(arguments, env=environment(), start_new_session=True, **output)
    until(lambda: any((tmp_path / "out").glob("0*.npz")) or process.poll() is not None)
    assert process.poll() is None
    process.send_signal(number)
    process.wait()
    until(lambda: not members(process.pid))


def members(session: int) -> list[str]:
    """The processes of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, *numbers = stat.read_text().rpartition(")")[2].split()
            if int(numbers[2]) == session and state != "Z":
                found.append(stat.parent.name)
    return found


def test_prepared_already_and_a_terminal_that_cannot_show_the_report_stops_nothing(prepared, large):
    folder, _ = prepared
    before, env = files(folder), {**environment(), "PYTHONIOENCODING": "ascii"}
    command = prepare_command(large, folder, "--shard_mb=1")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, files(folder)) == (0, "", before)
    assert f"{folder} is prepared already" in done.stdout
    assert "documents by length" in done.stdout
    assert "\\u2588" in done.stdout


def test_another_text_does_not_take_its_place(prepared, large, capsys):
    folder, _ = prepared
    before = files(folder)
    assert errors.run(prepare.main, prepare_options(large, folder, "--shard_mb=2")) == 2
    assert files(folder) == before
    assert "holds a corpus of other sources or settings; use another output folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_trains_on_it_and_takes_its_settings(prepared, tmp_path, capsys):
    folder, _ = prepared
    settings = ("--config.steps=2", "--config.data.vocab_size=600")
    arguments = train_arguments(folder, tmp_path, *settings, arg="objective=mlm")
    assert errors.run(train.main, arguments) == 0
    out = capsys.readouterr().out
    assert f"{folder} was prepared with vocab_size=40, which replaces 600" in out
    assert "40 pieces" in out
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(large, prepared, tmp_path):
    arguments = prepare_command(large, tmp_path / "out", "--shard_mb=1")
    done = run(["bash", "-c", 'ulimit -f 300; exec "$@"', "bash", *arguments])  # KiB a file
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "a file would exceed the size limit of this process" in done.stderr
    assert run(arguments).returncode == 0
    assert files(tmp_path / "out") == files(prepared[0])


def test_ctrl_c_is_one_line(large, tmp_path):
    process = subprocess.Popen(
        # Where the tests run in the background of a shell, Ctrl-C is ignored, and children inherit that.
        ["env", "--default-signal=INT", *prepare_command(large, tmp_path / "out", "--shard_mb=1", "--workers=1")],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until((tmp_path / "out" / "vocab.model").exists)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 130
    assert stderr.strip() == "interrupted; run the same command again to continue"


GIVEN = ["--input=docstrings", "--output=x"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output=x"], "--input is missing; try --input="),
        (["--input=a.txt"], "--output is missing"),
        (["--input=none.txt", "--output=x"], "input='none.txt' matches no file"),
        ([*GIVEN, "--vocab_size=3"], "vocab_size=3 is invalid: expected from 6 to 1e+06"),
        ([*GIVEN, "--vocab_size=many"], "--vocab_size=many is invalid: expected an integer, such as 30522"),
        ([*GIVEN, "--model_type=word"], "model_type='word' is invalid: expected unigram or bpe"),
        ([*GIVEN, "--normalization=nfd"], "normalization='nfd' is invalid: expected nmt_nfkc_cf or"),
        ([*GIVEN, "--documents=line"], "documents='line' is invalid: expected blank_line or file"),
        ([*GIVEN, "--heldout_fraction=1"], "heldout_fraction=1.0 is invalid: expected more than 0 and less than 1"),
        ([*GIVEN, "--temperature=1.5"], "temperature=1.5 is invalid: expected from 0 to 1"),
        ([*GIVEN, "--temperature=.3"], "temperature=0.3 has no effect on input="),
        ([*GIVEN, "--workers=-1"], "--workers=-1 is invalid: expected from 0 to 4096"),
        ([*GIVEN, "--workers=1e30"], "is invalid: expected from 0 to 4096"),
        ([*GIVEN, "--vocab_size=1e12"], "vocab_size=1000000000000 is invalid: expected from 6 to 1e+06"),
        ([*GIVEN, "--vocabulary=v"], "vocabulary=v is not a file"),
        (
            [*GIVEN, "--vocabulary=v", "--vocab_size=9"],
            "vocab_size=9 has no effect on the given vocabulary=v; leave it",
        ),
        ([*GIVEN, "--vocabsize=9"], "--vocabsize is unknown; did you mean --vocab_size?"),
        ([*GIVEN, "--beam=--runner=DirectRunner", "--workers=2"], "--workers has no effect with --beam; leave it out"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert errors.run(prepare.main, arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_a_prepared_text_is_not_prepared_again(prepared, tmp_path, capsys):
    folder, _ = prepared
    assert errors.run(prepare.main, prepare_options(folder, tmp_path / "out")) == 2
    message = f"{folder} is a prepared corpus; train on it with --config.data.input={folder}"
    assert message in capsys.readouterr().err


def test_help_names_every_option(capsys):
    assert errors.run(prepare.main, ["--help"]) == 0
    shown = capsys.readouterr().out
    for name in (*corpus_settings(CorpusConfig()), "output", "workers", "beam"):
        assert f"--{name}=" in shown
    assert str(ROOT) not in shown
