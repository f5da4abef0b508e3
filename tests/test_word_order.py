"""benchmarks/word_order.py."""

import runpy

import pytest
from cli_runs import ROOT

from electra_jax.config import errors

MAIN = runpy.run_path(str(ROOT / "benchmarks" / "word_order.py"))["main"]


def test_half_of_the_sentences_are_as_they_were_written(text_file, tmp_path):
    argv = [f"--input={text_file}", f"--output={tmp_path / 'out'}", "--train=20", "--dev=10"]
    assert errors.run(MAIN, argv) == 0
    written = {line.rstrip(".").casefold() for line in text_file.read_text().splitlines()}
    bags = {tuple(sorted(line.split())) for line in written}
    seen = []
    for split, count in (("train", 20), ("dev", 10)):
        header, *rows = (tmp_path / "out" / f"{split}.tsv").read_text().splitlines()
        assert header == "sentence\tlabel"
        found = [row.split("\t") for row in rows]
        assert [label for _, label in found] == ["written", "shuffled"] * (count // 2)
        assert all(sentence in written for sentence, label in found if label == "written")
        assert all(tuple(sorted(sentence.split())) in bags for sentence, _ in found)
        assert not any(sentence in written for sentence, label in found if label == "shuffled")
        seen += [sentence for sentence, _ in found]
    assert len({*seen}) == 30
    before = (tmp_path / "out" / "dev.tsv").read_text()
    assert errors.run(MAIN, argv) == 0
    assert (tmp_path / "out" / "dev.tsv").read_text() == before
    assert errors.run(MAIN, [*argv, "--seed=1"]) == 0
    assert (tmp_path / "out" / "dev.tsv").read_text() != before


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--output=x"], "--input is missing; see --help"),
        (["--input={text}", "--output=x", "--train=0"], "--train=0 is invalid: expected more than 0"),
        (["--input={text}", "--output=x", "--train=100000"], "usable sentences: expected 101000; add text"),
        (["--input=nowhere.txt", "--output=x"], "nowhere.txt"),
    ],
)
def test_a_mistake_is_one_line(argv, message, text_file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert errors.run(MAIN, [word.format(text=text_file) for word in argv]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "x").exists()
