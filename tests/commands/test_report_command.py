import json
import shutil

import fake_runs
import numpy as np
import pytest
import tiny_models
from cli_runs import make_objective, small_config

from electra_jax import train, train_config
from electra_jax.commands import report as command
from electra_jax.config import errors
from electra_jax.data import pipeline
from electra_jax.loading import run_checkpoint
from electra_jax.report import samples
from electra_jax.runtime import run_log


def report(*arguments):
    return errors.run(command.main, list(map(str, arguments)))


def page_of(workdir, output):
    assert report("--runs", workdir, f"--output={output}", "--samples=0") == 0
    return output.read_text()


@pytest.mark.usefixtures("empty_charts")
def test_the_command_writes_a_page(tmp_path, capsys):
    first, second = (fake_runs.write(tmp_path / name) for name in "ab")
    output = tmp_path / "report.html"
    assert report("--runs", first, second, f"--output={output}", "--samples=0") == 0
    assert capsys.readouterr().out.startswith(f"{output}: 2 runs, ")
    text = output.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "Replaced tokens in sample sentences" not in text
    assert report(f"--runs={first},{second}", f"--output={output}") == 0  # commas between
    assert "No samples: " in output.read_text()  # there is no checkpoint
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.usefixtures("empty_charts")
def test_a_run_that_goes_on_has_a_page(tmp_path):
    workdir = fake_runs.write(tmp_path / "run")
    with open(workdir / "metrics.jsonl", "a") as file:
        file.write('{"step": 45, "lo')
    assert "40 of 40" in page_of(workdir, tmp_path / "a.html")


@pytest.mark.usefixtures("empty_charts")
def test_what_was_changed_by_hand_costs_no_page(tmp_path):
    lines = [fake_runs.line(5), fake_runs.line(10, loss=10**400, total_flops="many")]
    workdir = fake_runs.write(tmp_path / "run", lines, model__layers="four", batch_size=None, objective__generator=[])
    (workdir / "environment.json").write_text('{"devices": 4, "packages": [1], "commit": 7, "python": "3.11"}')
    assert "10 of 40" in page_of(workdir, tmp_path / "a.html")


@pytest.mark.usefixtures("empty_charts")
def test_a_folder_whose_name_is_no_text_has_a_page(tmp_path):
    workdir = fake_runs.write(tmp_path / "caf\udce9")
    assert "Pre-training run caf?" in page_of(workdir, tmp_path / "a.html")


def test_what_cannot_be_is_said_in_a_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = fake_runs.write(tmp_path / "good")
    fake_runs.write(tmp_path / "silent", [])
    other = fake_runs.write(tmp_path / "other")
    (other / "config.json").write_text('{"model_type": "electra"}')
    broken = fake_runs.write(tmp_path / "broken")
    (broken / "config.json").write_text("{")
    for name, value in (("steps", "9"), ("objective", []), ("objective__name", 1)):
        fake_runs.write(tmp_path / name, **{name: value})
    for name, text in (("empty", ""), ("short", '{"run": "a", "step": 1}'), ("list", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "curves.jsonl").write_text(text)
    (tmp_path / "none").mkdir()
    output = "--output=report.html"
    for arguments, message in (
        ([output], "--runs is missing; try --runs runs/a runs/b"),
        (["--runs=", output], "--runs is missing"),
        (["--runs", "good"], "--output is missing; try --output=report.html"),
        (["--runs", "good", "--output=nowhere/report.html"], "the folder nowhere of --output does not exist; create"),
        (["--runs", "good", "--output=none"], "--output=none is a folder: expected a file, such as none/report.html"),
        (["--runs", "good", output, "--samples=-1"], "--samples=-1 is invalid: expected 0 or more"),
        (["--runs", "good", output, "--samples=few"], "--samples=few is invalid: expected an integer"),
        (["--runs", "good", "gone", output], "gone does not exist: expected the work directory of a run"),
        (["--runs", "good", "none", output], "none has no config.json: expected the work directory of a run"),
        (["--runs", "good", "other", output], "other/config.json is not the config of a run; give"),
        (["--runs", "steps", output], "steps/config.json is not the config of a run; give"),
        (["--runs", "objective", output], "objective/config.json is not the config of a run; give"),
        (["--runs", "objective__name", output], "objective__name/config.json is not the config of a run; give"),
        (["--runs", "good", "broken", output], "broken/config.json is not valid JSON"),
        (["--runs", "good", "silent", output], "silent has no metrics yet; wait until"),
        (["--runs", "good", good, output], f"--runs names {good} twice; name each run once"),
        (["--runs", "good", "none/../good", output], "--runs names none/../good twice"),
        (["--runs", "good", output, "--curves=gone"], "gone/curves.jsonl does not exist: expected the output folder"),
        (["--runs", "good", output, "--curves=empty"], "empty/curves.jsonl has no scores"),
        (["--runs", "good", output, "--curves=short"], "short/curves.jsonl:1 is not a line of `electra-jax curves`"),
        (["--runs", "good", output, "--curves=list"], "list/curves.jsonl:1 is not a line of `electra-jax curves`"),
        (["--run", "good", output], "--run is unknown; did you mean --runs?"),
    ):
        assert report(*arguments) == 2, arguments
        line = capsys.readouterr().err
        assert line.startswith("error: ")
        assert message in line
        assert line.count("\n") == 1
    assert not (tmp_path / "report.html").exists()
    assert report("--help") == 0
    assert "--curves=DIR" in capsys.readouterr().out


def test_systems_that_tell_no_fakes_say_so(tmp_path):
    workdirs = [fake_runs.write(tmp_path / name, objective__name=name) for name in ("mlm", "unheard_of")]
    notes = [samples.make_samples(run, 5).note for run in run_log.read_run_logs(workdirs)]
    assert notes[0] == "mlm predicts tokens and does not detect replaced ones: no samples."
    assert notes[1] == "The objective unheard_of is unknown to this version of electra_jax."


@pytest.fixture
def learned(tmp_path, text_file, monkeypatch):
    """A run with its text, and what its last checkpoint would have: random parameters."""
    workdir = fake_runs.write(tmp_path / "run")
    config = train_config.as_dataclass(small_config(text_file, model__encoder="bert", model__layers=1))
    key = pipeline.corpus_key(config.data)
    text = pipeline.build_corpus(workdir / "data" / key, config.data)
    objective = make_objective(config, len(text.tokenizer))
    params = tiny_models.parameters(objective)
    there = run_checkpoint.RunCheckpoint(config, text.tokenizer, objective, 7, params, {"corpus": key})
    monkeypatch.setattr(run_checkpoint, "load_run_checkpoint", lambda place: there)
    return workdir


@pytest.mark.usefixtures("empty_charts")
def test_fakes_are_known_by_what_stood_there(learned, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(command, "make_samples", lambda *args: made.append(samples.make_samples(*args)) or made[-1])
    assert report("--runs", learned, f"--output={tmp_path / 'a.html'}") == 0
    (found,) = made
    assert (found.step, found.note, len(found.sentences)) == (7, "", 5)
    words = [word for sentence in found.sentences for word in sentence]
    assert all(0 < word.probability < 1 for word in words)
    assert 0 < sum(word.original is not None for word in words) < len(words)
    text = (tmp_path / "a.html").read_text()
    assert "checkpoint of step 7" in text
    assert text.count("was: ") == sum(word.original is not None for word in words)

    shutil.rmtree(learned / "data")
    (run,) = run_log.read_run_logs([learned])
    assert samples.make_samples(run, 5).note.startswith("No samples: the corpus of this run is neither")


def test_a_run_that_cannot_be_asked_says_why(tmp_path):
    workdir = fake_runs.write(tmp_path / "run")
    settings = train_config.to_dict(train_config.as_dataclass(small_config()))
    (workdir / "config.json").write_text(json.dumps(settings))
    (run,) = run_log.read_run_logs([workdir])
    expected = f"No samples: {workdir} has no checkpoint yet; continue the run until its first checkpoint"
    assert samples.make_samples(run, 5).note.startswith(expected)


@pytest.mark.slow
def test_sentences_are_those_of_the_end_of_training(tmp_path, text_file, monkeypatch):
    shown = train.train(small_config(text_file, steps=2, log_every=1, eval_every=2), tmp_path / "run").samples
    (run,) = run_log.read_run_logs([tmp_path / "run"])
    found = samples.make_samples(run, 5)
    assert (found.step, found.note, len(found.sentences)) == (2, "", 5)
    for sentence, end in zip(found.sentences, shown, strict=True):
        assert [(word.text, word.original) for word in sentence] == [(word.text, word.original) for word in end]
        probabilities = [word.probability for word in end]
        np.testing.assert_allclose([word.probability for word in sentence], probabilities, rtol=1e-3)
