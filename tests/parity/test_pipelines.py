"""benchmarks/pipelines.py finds the same answers in transformers, and other ones where the model differs."""
# ruff: noqa: E402 (nothing else is imported where there is no PyTorch)

import pytest

_REASON = "compares with Hugging Face's PyTorch classes: pip install torch transformers"
pytest.importorskip("torch", reason=_REASON)
pytest.importorskip("transformers", reason=_REASON)

import json
import runpy

from cli_runs import ROOT
from tiny_finetuned import WORDS, make, train_pieces

from electra_jax.downstream.finetuning import hf_export

pytestmark = pytest.mark.slow
pipelines = runpy.run_path(str(ROOT / "benchmarks" / "pipelines.py"))
TEXTS = [" ".join(WORDS[n : n + 3]) for n in range(8)]


def squad():
    """A question of more tokens than `task.query`, contexts of one window and of several."""
    contexts = ["ada lives in oslo", " ".join(WORDS[1:8])]
    questions = ["ben", "the old harbour ada lives in oslo"]
    asked = [
        {"id": f"{i}-{j}", "question": question, "answers": [{"text": context.split()[0], "answer_start": 0}]}
        for i, context in enumerate(contexts)
        for j, question in enumerate(questions)
    ]
    paragraphs = [{"context": context, "qas": asked[2 * i : 2 * i + 2]} for i, context in enumerate(contexts)]
    return json.dumps({"version": "1.1", "data": [{"title": "a", "paragraphs": paragraphs}]})


FILES = {
    "classes": ("dev.jsonl", "".join(json.dumps({"text": text, "label": "good"}) + "\n" for text in TEXTS), 8),
    "numbers": ("dev.jsonl", "".join(json.dumps({"text": text, "label": 1.5}) + "\n" for text in TEXTS), 8),
    "tags": ("dev.txt", "\n".join("".join(f"{word} O\n" for word in text.split()) for text in TEXTS), 8),
    "squad1": ("dev.json", squad(), 2),
}


@pytest.mark.parametrize("task", FILES)
def test_all_answers_are_equal(task, tmp_path, monkeypatch):
    settings = {"max_length": 32}
    if task == "squad1":
        settings |= {"task.query": 6, "task.stride": 4, "max_length": 16}
    hf_export.export(make(task, train_pieces(), "modernbert", 16, **settings), tmp_path / "model")
    name, text, compared = FILES[task]
    (tmp_path / name).write_text(text)
    found = pipelines["compare"](tmp_path / "model", str(tmp_path), "dev", 0)
    assert (found["compared"], found["equal"]) == (compared, compared)
    assert found["largest_difference"] < 1e-4
    # An answer that differs counts.
    names = pipelines["compare"].__globals__
    ours = names["ours"]
    others = lambda *given: [each._replace(answer="another", number=9e9) for each in ours(*given)]  # noqa: E731
    monkeypatch.setitem(names, "ours", others)
    assert pipelines["compare"](tmp_path / "model", str(tmp_path), "dev", 0)["equal"] == 0
