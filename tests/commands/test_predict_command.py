import functools
import io
import json

import jax
import numpy as np
import pytest
import tiny_models
from cli_runs import ROOT

import electra_jax
from electra_jax.commands import finetune, predict
from electra_jax.config import errors
from electra_jax.data import vocabulary_training
from electra_jax.data.config import CorpusConfig
from electra_jax.downstream.finetuning import job, kept, recipe
from electra_jax.downstream.tasks import custom_table, registry
from electra_jax.loading.huggingface import directory
from electra_jax.modeling.batch import Batch


@pytest.fixture(scope="module")
def pieces(text_file):
    return vocabulary_training.train(text_file.read_text().splitlines(), CorpusConfig(vocab_size=30))


def written(folder, pieces, config, make_task):
    """A fine-tuned model with random parameters, which reads 24 tokens. That predictions of fine-tuned ones are the
    answers of fine-tuning is in downstream/finetuning/test_finetuning_run.py.
    """
    config.update(max_length=24)
    config = recipe.resolve(config)
    task, given = make_task(config.task), tiny_models.network("modernbert", head=None, layers=1)
    model = job.make_model(config, task, given)
    ids = np.zeros((1, 2), np.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), Batch(ids, ids, ids))["params"]
    made = job.Job(config, task, model, given, pieces, None)
    params = {**given.params, "head": tiny_models.random_like(shapes["head"])}
    kept.write(folder / "out", made, params, {"seed": 0, "scores": {}, "init_from": "nowhere"})
    return folder / "out"


@pytest.fixture(scope="module")
def sst2(pieces, tmp_path_factory):
    """Of single texts."""
    task = functools.partial(registry.make_task, data_dir="")
    return written(tmp_path_factory.mktemp("sst2"), pieces, recipe.make("sst2"), task)


@pytest.fixture(scope="module")
def pairs(pieces, tmp_path_factory):
    """A regression on pairs of texts."""
    config = recipe.make("table")
    config.task.update(kind="regression", text="a", pair="b")
    task = functools.partial(custom_table.restore_task, scale=(5.0, 2.0))
    return written(tmp_path_factory.mktemp("pairs"), pieces, config, task)


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_a_table_keeps_its_order_and_lines(sst2, tmp_path, capsys):
    texts = ["of the line", "it was a very long text of the film and more of it", "fine", ""] * 5
    (tmp_path / "in.tsv").write_text("sentence\tother\n" + "".join(f"{text}\tx\n" for text in texts))
    argv = [f"--model={sst2}", f"--input={tmp_path}/in.tsv", "--batch_size=2"]
    assert errors.run(predict.main, argv) == 0
    found = lines(capsys.readouterr().out)
    assert [row["line"] for row in found] == list(range(2, 22))
    assert [row["label"] for row in found] == [row["label"] for row in found[:4]] * 5
    assert all(row["probabilities"][row["label"]] == row["probability"] for row in found)
    assert errors.run(predict.main, [*argv, f"--output={tmp_path}/out.tsv"]) == 0
    header, *cells = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    assert header == ["line", "prediction", "probability"]
    assert [(int(line), label) for line, label, _ in cells] == [(row["line"], row["label"]) for row in found]
    assert {path.name for path in tmp_path.iterdir()} == {"in.tsv", "out.tsv"}


def test_the_answers_are_those_of_the_model(sst2, tmp_path, capsys):
    texts = ["the model", "a line of text", "which word was replaced in this sentence", "says"]
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    assert errors.run(predict.main, [f"--model={sst2}", f"--input={tmp_path}/in.txt", "--batch_size=2"]) == 0
    expected = electra_jax.load(sst2, batch_size=2).predict(texts)
    assert len({label.label for label in expected}) == 2
    found = [(row["label"], row["probabilities"]) for row in lines(capsys.readouterr().out)]
    assert found == [(label.label, label.probabilities) for label in expected]


def test_text_in_another_encoding_is_refused_and_rows_without_text_are_counted(sst2, tmp_path, capsys):
    (tmp_path / "in.txt").write_bytes("the model\n".encode("utf-16"))
    assert errors.run(predict.main, [f"--model={sst2}", f"--input={tmp_path}/in.txt"]) == 2
    assert "in.txt is UTF-16: expected UTF-8" in capsys.readouterr().err
    (tmp_path / "in.txt").write_text("the model\n\n  \n")
    assert errors.run(predict.main, [f"--model={sst2}", f"--input={tmp_path}/in.txt"]) == 0
    assert "rows without text, which were predicted like others: 2" in capsys.readouterr().err


def test_a_file_without_a_row_to_use_is_refused(pairs, tmp_path, capsys):
    source, output = tmp_path / "in.csv", tmp_path / "out.tsv"
    for content, said in (
        ("", "in.csv:1: no column 'a'"),
        ("a,b\nx\n", "in.csv has no row to use: expected rows with a"),
    ):
        source.write_text(content)
        assert errors.run(predict.main, [f"--model={pairs}", f"--input={source}", f"--output={output}"]) == 2
        assert said in capsys.readouterr().err
        assert not output.exists()
    argv = [f"--model={pairs}", f"--input={source}", f"--output={tmp_path}/missing/out.tsv"]
    assert errors.run(predict.main, argv) == 2
    assert "missing/out.tsv is in a folder that does not exist" in capsys.readouterr().err


def test_lines_of_standard_input(pairs, monkeypatch, capsys):
    given = "a text\tanother\nalone\n\xe9\t\n".encode() + b"\xff\tx\n" + b"last\tone\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(given))))
    assert errors.run(predict.main, [f"--model={pairs}", "--input=-"]) == 0
    captured = capsys.readouterr()
    found = lines(captured.out)
    assert [row["line"] for row in found] == [1, 3, 5]
    assert all(isinstance(row["prediction"], float) for row in found)
    assert "standard input:2: 1 texts, expected a and b separated by a tab" in captured.err
    assert "standard input:4: byte 0xff in column 1 is not valid UTF-8" in captured.err
    assert "2 rows could not be used and have no output" in captured.err


def test_other_columns(pairs, tmp_path, capsys):
    rows = [
        {"premise": "x", "claim": "y"},
        {"premise": "x"},
        {"premise": "x", "claim": None},
        {"premise": "", "claim": "z"},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = [f"--model={pairs}", f"--input={tmp_path}/in.jsonl", "--text=premise", "--pair=claim"]
    assert errors.run(predict.main, argv) == 0
    captured = capsys.readouterr()
    assert [row["line"] for row in lines(captured.out)] == [1, 4]
    assert "in.jsonl:2: no 'claim', expected 'premise', 'claim'" in captured.err
    assert "in.jsonl:3: claim is None, expected a text" in captured.err


def test_texts_that_are_cut_are_counted(sst2, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("fine\n" + "very " * 500 + "\n")
    assert errors.run(predict.main, [f"--model={sst2}", f"--input={tmp_path}/in.txt", "--batch_size=2"]) == 0
    captured = capsys.readouterr()
    assert len(lines(captured.out)) == 2
    assert "rows that were cut, as this model reads 24 tokens: 1" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input=x.tsv"], "--model is missing; try --model=runs/mrpc --input=pairs.tsv"),
        (["--model={sst2}"], "--input is missing"),
        (["--model={sst2}", "--input=x.json"], "--input=x.json is invalid: expected a .tsv, .csv, .jsonl or .txt file"),
        (["--model={sst2}", "--input=x.txt", "--output=y.csv"], "--output=y.csv is invalid: expected a .jsonl or .tsv"),
        (["--model={sst2}", "--input=-", "--batch_size=0"], "--batch_size=0 is invalid: expected more than 0"),
        (["--model={sst2}", "--input=-", "--pair=b"], "--pair=b has no effect: this model reads single texts"),
        (["--model={encoder}", "--input=-"], "was not fine-tuned; use what electra-jax finetune wrote"),
        (["--model={sst2}", "--input={tmp}/none.txt"], "none.txt"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message, sst2, pieces, tmp_path, capsys):
    encoder = tmp_path / "encoder"
    directory.write(encoder, tiny_models.network(head=None, layers=1), None, pieces, "")
    given = [each.format(sst2=sst2, encoder=encoder, tmp=tmp_path) for each in arguments]
    assert errors.run(predict.main, given) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_tags_have_their_words_and_no_cells(small_run, tmp_path, capsys):
    for split in ("train", "dev"):
        (tmp_path / f"{split}.txt").write_text("Ada B-PER\nlives O\nin O\nOslo B-LOC\n\n" * 10)
    argv = [f"--config={ROOT}/configs/tags.py:runlocal", f"--init_from={small_run}", f"--data_dir={tmp_path}"]
    assert errors.run(finetune.main, [*argv, f"--workdir={tmp_path}/out", "--config.seeds=1"]) == 0
    capsys.readouterr()
    (tmp_path / "in.txt").write_text("Ada  lives\nOslo\n")
    argv = [f"--model={tmp_path}/out", f"--input={tmp_path}/in.txt"]
    assert errors.run(predict.main, argv) == 0
    found = lines(capsys.readouterr().out)
    assert [[(word["text"], word["begin"], word["end"]) for word in row["words"]] for row in found] == [
        [("Ada", 0, 3), ("lives", 5, 10)],
        [("Oslo", 0, 4)],
    ]
    assert {word["tag"] for row in found for word in row["words"]} <= {"O", "B-PER", "B-LOC"}
    assert errors.run(predict.main, [*argv, f"--output={tmp_path}/out.tsv"]) == 2
    assert "out.tsv is invalid for tags: expected a .jsonl file" in capsys.readouterr().err
    assert not (tmp_path / "out.tsv").exists()


@pytest.mark.slow
def test_any_number_of_classes_has_a_column_for_each(pieces, tmp_path, capsys):
    config = recipe.make("table")
    config.task.kind = "multilabel"
    task = functools.partial(custom_table.restore_task, labels=("joy", "fear"))
    model = written(tmp_path, pieces, config, task)
    (tmp_path / "in.txt").write_text("a line\nof text\n")
    for output in ("-", f"{tmp_path}/out.tsv"):
        assert errors.run(predict.main, [f"--model={model}", f"--input={tmp_path}/in.txt", f"--output={output}"]) == 0
    found = lines(capsys.readouterr().out)
    heading, *cells = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    assert heading == ["line", "prediction", "joy", "fear"]
    assert cells == [
        [str(row["line"]), ",".join(row["labels"]), *(f"{p:.6g}" for p in row["probabilities"].values())]
        for row in found
    ]


def test_questions_of_a_table_have_answers_in_cells(small_run, tmp_path, capsys):
    context = "ada lives in oslo and ben lives in bergen"
    asked = [
        {"question": "where does ada live?", "answers": [{"text": "oslo", "answer_start": 13}]},
        {"question": "who is carl?", "answers": [], "is_impossible": True},
    ]
    questions = [{**question, "id": str(number)} for number, question in enumerate(asked * 6)]
    for split in ("train", "dev"):
        data = {"version": "v2.0", "data": [{"title": "", "paragraphs": [{"context": context, "qas": questions}]}]}
        (tmp_path / f"{split}-v2.0.json").write_text(json.dumps(data))
    argv = [f"--config={ROOT}/configs/squad.py:version=2.0,runlocal", f"--init_from={small_run}"]
    settings = ["--config.seeds=1", "--config.max_length=64", "--config.shortest_bucket=64", "--config.task.query=16"]
    argv += [f"--data_dir={tmp_path}", f"--workdir={tmp_path}/out", *settings]
    assert errors.run(finetune.main, argv) == 0
    table = f"question\tcontext\nben?\t{context}\n" + f"{'where ' * 40}?\t{context}\n"
    (tmp_path / "in.tsv").write_text(table)
    capsys.readouterr()
    argv = [f"--model={tmp_path}/out", f"--input={tmp_path}/in.tsv", f"--output={tmp_path}/out.tsv"]
    assert errors.run(predict.main, argv) == 0
    assert "as this model reads 64 tokens: 1\n" in capsys.readouterr().err
    header, *rows = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    assert header == ["line", "prediction", "begin", "end", "probability", "no_answer"]
    assert [row[0] for row in rows] == ["2", "3"]
    assert all(context[int(begin) : int(end)] == text for _, text, begin, end, *_ in rows)
