import io
import re

import pytest
import tiny_models
from cli_runs import small_config

from electra_jax.commands import detect
from electra_jax.config import errors
from electra_jax.data import vocabulary_training
from electra_jax.loading.huggingface import directory


@pytest.fixture
def model(tmp_path):
    lines = ["the model reads a line of text and says which word was replaced"] * 20
    pieces = vocabulary_training.train(lines, small_config(data__vocab_size=28).data)
    directory.write(tmp_path / "model", tiny_models.network(), "discriminator_head", pieces, "")
    return tmp_path / "model"


def test_it_marks_words_of_its_arguments_or_of_its_input(model, capsys, monkeypatch):
    assert errors.run(detect.main, [f"--model={model}", "The Model", "", "reads a line"]) == 0
    legend, *lines = capsys.readouterr().out.splitlines()
    assert legend == "[n%]: probability of being replaced, shown from 15%"
    assert [re.sub(r"\[\d+%\]", "", line).rstrip() for line in lines] == ["• The Model", "•", "• reads a line"]
    monkeypatch.setattr("sys.stdin", io.StringIO("The Model\n\nreads a line\n"))
    assert errors.run(detect.main, ["--model", str(model)]) == 0
    assert capsys.readouterr().out.splitlines() == [legend, *lines]
    monkeypatch.setattr("sys.stdin", io.StringIO("a\u2028line\n"))
    assert errors.run(detect.main, ["--model", str(model)]) == 0
    assert capsys.readouterr().out.count("•") == 1
    assert errors.run(detect.main, [f"--model={model}", "caf\udce9 a line"]) == 0  # bytes that are not UTF-8


def test_a_long_text_is_one_result(model, capsys):
    text = "the model reads a line of text and says which word was replaced " * 4
    assert errors.run(detect.main, [f"--model={model}", text]) == 0
    _, line = capsys.readouterr().out.splitlines()
    assert re.sub(r"\[\d+%\]", "", line).split() == ["•", *text.split()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["the model"], "--model is missing"),
        (["--model=none", "a"], "none has no model: expected a run's work directory, an export, or"),
        (["--model=none", "--text=a"], "--text is unknown"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capsys):
    assert errors.run(detect.main, arguments) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert message in line


def test_standard_input_in_another_encoding_is_refused(model, monkeypatch, capsys):
    given = io.BufferedReader(io.BytesIO("a text\n".encode("utf-16")))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(given))
    assert errors.run(detect.main, [f"--model={model}"]) == 2
    assert "standard input is UTF-16: expected UTF-8" in capsys.readouterr().err
