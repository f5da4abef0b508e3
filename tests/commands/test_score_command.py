import json

import numpy as np
import pytest

from electra_jax.commands import score
from electra_jax.config import errors

PAIRS = [("a line of text", "line a of text"), ("the model reads", "the model reads"), ("it reads", "reads it")]


class ByFirstLetter:
    """Finds texts plausible that begin early in the alphabet."""

    notes = ("a note",)
    asked: tuple[str | None, ...] = ()

    def score(self, texts, by=None):
        self.asked += (by,)
        return -np.array([ord(text[0]) for text in texts])


@pytest.fixture
def model(monkeypatch):
    made = ByFirstLetter()
    monkeypatch.setattr(score, "load", lambda path, batch_size: made)
    return made


def write(path, columns=("sentence_good", "sentence_bad")):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(dict(zip(columns, pair, strict=True))) + "\n" for pair in PAIRS))
    return path


def test_equal_scores_are_errors_and_every_file_counts_alike(model, tmp_path, capsys):
    write(tmp_path / "blimp" / "order.jsonl")
    (tmp_path / "blimp" / "one.tsv").write_text("sentence_good\tsentence_bad\na b\tb a\n")
    assert errors.run(score.main, ["--model=m", f"--input={tmp_path / 'blimp'}", "--by=masks"]) == 0
    out = capsys.readouterr().out
    rows = [line.replace("│", " ").split() for line in out.splitlines()]
    assert ["one.tsv", "1", "100.0"] in rows
    assert ["order.jsonl", "3", "66.7"] in rows
    assert ["mean", "of", "the", "files", "83.3"] in rows
    assert out.startswith("a note\n")
    assert set(model.asked) == {"masks"}


def test_each_folder_has_a_mean(model, tmp_path, capsys):
    for folder in ("blimp", "supplement"):
        write(tmp_path / folder / "order.jsonl")
    (tmp_path / "supplement" / "one.tsv").write_text("sentence_good\tsentence_bad\na b\tb a\n")
    given = f"--input={tmp_path / 'blimp'};{tmp_path / 'supplement'}"
    assert errors.run(score.main, ["--model=m", given]) == 0
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    for row in (["blimp", "66.7"], ["supplement", "83.3"], ["the", "files", "77.8"]):
        assert ["mean", "of", *row] in rows


def test_columns_have_names(model, tmp_path, capsys):
    path = write(tmp_path / "pairs.jsonl", ("right", "wrong"))
    assert errors.run(score.main, ["--model=m", f"--input={path}", "--good=wrong", "--bad=right"]) == 0
    assert "0.0" in capsys.readouterr().out
    assert model.asked == (None, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input=pairs.jsonl"], "--model is missing"),
        (
            ["--model=m", "--input=none.jsonl"],
            "--input=none.jsonl is invalid: expected a .jsonl, .tsv or .csv file, or a",
        ),
        (["--model=m", "--input=pairs.txt"], "--input=pairs.txt is invalid: expected a .jsonl, .tsv or .csv file"),
        (["--model=m", "--input=empty"], "--input=empty is invalid"),
        (["--model=m", "--input=empty.jsonl"], "empty.jsonl has no pairs: expected rows with sentence_good and"),
        (["--model=m", "--input=;"], "--input=; names no file: expected files and folders"),
        (["--model=m", "--input=null.jsonl"], "null.jsonl:1: sentence_bad is None, expected a text; fix or remove it"),
        (["--model=m", "--input=blank.jsonl"], "blank.jsonl:1: sentence_good is ' ', expected a text"),
        (["--model=m", "--input=pairs.jsonl"], "pairs.jsonl:1: "),
        (["--model=m", "--input=pairs.jsonl", "--by=luck"], "--by='luck' is invalid: expected detection or masks or"),
    ],
)
def test_what_cannot_be_scored_is_one_line(arguments, message, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pairs.jsonl", ("right", "wrong"))
    (tmp_path / "pairs.txt").write_text("a\tb\n")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "empty" / "folder.tsv").mkdir(parents=True)
    (tmp_path / "null.jsonl").write_text('{"sentence_good": "a", "sentence_bad": null}\n')
    (tmp_path / "blank.jsonl").write_text('{"sentence_good": " ", "sentence_bad": "a"}\n')
    assert errors.run(score.main, arguments) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
    assert not model.asked
