"""Exported fine-tuned models in transformers: the same outputs, and the same answers from its pipelines."""
# ruff: noqa: E402 (nothing else is imported where there is no PyTorch)

import pytest

_REASON = "compares with Hugging Face's PyTorch classes: pip install torch transformers"
torch = pytest.importorskip("torch", reason=_REASON)
transformers = pytest.importorskip("transformers", reason=_REASON)

import dataclasses
import re

import numpy as np
import rounding
from tiny_finetuned import make, train_pieces

from electra_jax.config.errors import UserError
from electra_jax.downstream import predictions
from electra_jax.downstream.finetuned_model import FinetunedModel
from electra_jax.downstream.finetuning import hf_export
from electra_jax.downstream.tasks.squad_files import Example

TEXTS = ["ada lives in oslo", "the old harbour", "ben", "ben saw ada and the old harbour in oslo there and there"]
PAIRS = [("ada", "ben saw oslo"), ("the old", "ada and ben"), ("ben", "old")]
KINDS = [("bert", 16), ("bert", 32), ("modernbert", 16), ("modernbert", 32), ("deberta", 16), ("deberta", 32)]
CLASSES = {
    "classification": "SequenceClassification",
    "tagging": "TokenClassification",
    "answering": "QuestionAnswering",
}


GENERAL = {"regression": "classification", "multilabel": "classification"}  # transformers has one class for all


@pytest.fixture(scope="module")
def pieces():
    return train_pieces()


def exported(model, folder, kind):
    """The class that was written, loaded without a missing or unknown tensor, and the tokenizer."""
    name = hf_export.export(model, folder)
    prefix = "Bert" if model.config.head == "bert" else model.network.config.encoder.architecture.class_prefix
    assert name == f"{prefix}For{CLASSES[kind]}"
    auto = getattr(transformers, f"AutoModelFor{CLASSES[kind]}")
    theirs, loading = auto.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.get(key) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
    assert type(theirs).__name__ == name
    return theirs.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def our_logits(model, rows):
    """The outputs of the head, without what the tasks make of them."""
    return FinetunedModel("ours", model)._outputs(rows)


def encode(model, texts):
    given = [(text,) if isinstance(text, str) else text for text in texts]
    examples = predictions.make_examples(model.task, given)
    return model.task.encode(examples, model.tokenizer, model.config.max_length, train=False)


def their_logits(theirs, rows):
    """For each row the logits, in float32; of an answer those of its start and of its end."""
    found = []
    for ids, second in zip(rows.input_ids, rows.second, strict=True):
        inputs = {"input_ids": [ids], "attention_mask": [[1] * len(ids)]}
        if theirs.config.model_type != "modernbert":
            inputs["token_type_ids"] = [[0] * second + [1] * (len(ids) - second)]
        with torch.no_grad():
            out = theirs(**{key: torch.tensor(value) for key, value in inputs.items()})
        found += [out[key][0].numpy() for key in ("logits", "start_logits", "end_logits") if key in out]
    return found


def logit_bound(theirs, rows):
    """What rounding explains between our logits and theirs.

    Of a regression they are numbers on the scale of the labels, and so is this: the factor is in their last weights.
    A probability p changes with a difference of logits by p (1 - p), at most a quarter, and the difference by twice
    this: its bound is half of this. A log-probability changes by up to twice this.
    """
    longest = max(theirs.config.hidden_size, theirs.config.intermediate_size)
    return max(rounding.torch_bounds(theirs, lambda model: their_logits(model, rows), longest))


@pytest.mark.parametrize("name", ["classes", "pairs", "numbers", "tags"])
def test_logits_are_equal(name, pieces, tmp_path):
    for kind, embedding_size, head in [*((*each, "transformers") for each in KINDS), ("bert", 32, "bert")]:
        model = make(name, pieces, kind, embedding_size, head=head)
        folder, task = tmp_path / f"{kind}-{embedding_size}-{head}", model.task.kind
        theirs, _ = exported(model, folder, GENERAL.get(task, task))
        rows = encode(model, PAIRS if name == "pairs" else TEXTS)
        offset, factor = model.task.scale if task == "regression" else (0.0, 1.0)
        bound = logit_bound(theirs, rows)
        for found, scores in zip(their_logits(theirs, rows), our_logits(model, rows)["scores"], strict=True):
            np.testing.assert_allclose(found, scores * factor + offset, rtol=0, atol=bound)


def test_text_classification(pieces, tmp_path):
    for kind, embedding_size in KINDS:
        for pooling in ("cls", "mean") if kind == "modernbert" else ("cls",):
            folder = tmp_path / f"{kind}-{embedding_size}-{pooling}"
            model = make("classes", pieces, kind, embedding_size, pooling=pooling)
            theirs, _ = exported(model, folder, "classification")
            assert theirs.config.id2label == {0: "bad", 1: "good", 2: "mixed"}
            classify = transformers.pipeline("text-classification", str(folder), top_k=None)
            bound = logit_bound(theirs, encode(model, TEXTS)) / 2
            for text, ours in zip(TEXTS, FinetunedModel("ours", model).predict(TEXTS), strict=True):
                found = {each["label"]: each["score"] for each in classify([text], truncation=True)[0]}
                assert max(found, key=found.get) == ours.label
                assert found == pytest.approx(ours.probabilities, rel=0, abs=bound)


def test_any_number_of_classes(pieces, tmp_path):
    for kind, embedding_size in KINDS[::2]:
        folder = tmp_path / f"{kind}-{embedding_size}"
        model = make("topics", pieces, kind, embedding_size)
        theirs, _ = exported(model, folder, "classification")
        assert theirs.config.problem_type == "multi_label_classification"
        classify = transformers.pipeline("text-classification", str(folder), top_k=None)
        bound = logit_bound(theirs, encode(model, TEXTS)) / 4  # of a sigmoid
        for text, ours in zip(TEXTS, FinetunedModel("ours", model).predict(TEXTS), strict=True):
            for function in ({}, {"function_to_apply": "sigmoid"}):
                found = {each["label"]: each["score"] for each in classify([text], truncation=True, **function)[0]}
                assert found == pytest.approx(ours.probabilities, rel=0, abs=bound)
            assert ours.labels == tuple(label for label, p in ours.probabilities.items() if p >= 0.5)


def test_pairs(pieces, tmp_path):
    for kind, embedding_size in KINDS:
        folder = tmp_path / f"{kind}-{embedding_size}"
        model = make("pairs", pieces, kind, embedding_size)
        bound = logit_bound(exported(model, folder, "classification")[0], encode(model, PAIRS)) / 2
        classify = transformers.pipeline("text-classification", str(folder))
        for (first, second), ours in zip(PAIRS, FinetunedModel("ours", model).predict(PAIRS), strict=True):
            found = classify({"text": first, "text_pair": second}, truncation=True)
            assert found["label"] == ours.label
            assert found["score"] == pytest.approx(ours.probability, rel=0, abs=bound)


def test_numbers(pieces, tmp_path):
    for kind, embedding_size in KINDS:
        folder = tmp_path / f"{kind}-{embedding_size}"
        model = make("numbers", pieces, kind, embedding_size)
        bound = logit_bound(exported(model, folder, "classification")[0], encode(model, TEXTS))
        measure = transformers.pipeline("text-classification", str(folder))
        found = [measure([text], truncation=True)[0]["score"] for text in TEXTS]
        np.testing.assert_allclose(found, FinetunedModel("ours", model).predict(TEXTS), rtol=0, atol=bound)


def test_token_classification(pieces, tmp_path, monkeypatch, capsys):
    """The first piece of each word has its tag, as in fine-tuning; so do the lines on the card."""
    texts = TEXTS[:3]  # transformers cuts a longer one, where we read it in parts
    for kind, embedding_size in KINDS:
        folder = tmp_path / f"{kind}-{embedding_size}"
        model = make("tags", pieces, kind, embedding_size)
        bound = logit_bound(exported(model, folder, "tagging")[0], encode(model, texts)) / 2
        tag = transformers.pipeline("token-classification", str(folder), ignore_labels=[])
        for text, ours in zip(texts, FinetunedModel("ours", model).predict(texts), strict=True):
            found = tag(text.split(), is_split_into_words=True)
            pieces_of = found[0] if isinstance(found[0], list) else found
            firsts = [next(each for each in pieces_of if each["start"] == word.begin) for word in ours]
            assert [each["entity"] for each in firsts] == [word.tag for word in ours]
            expected = [word.probability for word in ours]
            assert [each["score"] for each in firsts] == pytest.approx(expected, rel=0, abs=bound)
        monkeypatch.chdir(tmp_path)
        (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)
        exec(code, {})
        (ours,) = FinetunedModel("ours", model).predict(["Ada lives in Oslo ."])
        assert capsys.readouterr().out == f"{[(word.text, word.tag) for word in ours]}\n"


def test_question_answering(pieces, tmp_path):
    for kind, embedding_size in KINDS:
        folder = tmp_path / f"{kind}-{embedding_size}"
        model = make("squad2", pieces, kind, embedding_size, **{"task.query": 4, "task.stride": 4})
        theirs, tokens = exported(model, folder, "answering")
        examples = [Example("1", "ben", "old ada", (), False)]
        rows = model.task.encode(examples, model.tokenizer, model.config.max_length, train=False)
        ours, bound = our_logits(model, rows), 2 * logit_bound(theirs, rows)
        encoded = tokens(examples[0].question, examples[0].context, return_tensors="pt")
        assert encoded["input_ids"][0].tolist() == rows.input_ids[0]
        with torch.no_grad():
            outputs = theirs(**encoded)
        allowed = torch.tensor(rows.targets["allowed"][0] == 1)
        for name in ("start", "end"):
            logits = getattr(outputs, f"{name}_logits")[0]
            expected = torch.log_softmax(logits.masked_fill(~allowed, -1e9), -1)[allowed]
            np.testing.assert_allclose(ours[name][0][allowed.numpy()], expected, rtol=0, atol=bound)


def test_what_has_no_class_there_is_refused(pieces, tmp_path):
    paper = make("classes", pieces, "bert", 16, head="paper")
    with pytest.raises(UserError, match="has the paper's head for table, for which transformers has no class"):
        hf_export.export(paper, tmp_path / "out")
    for kind, name in (("deberta", "DebertaV2"), ("bert", "Electra")):
        mean = make("classes", pieces, kind, 16, pooling="mean")
        message = rf"pooling=mean, but transformers' {name}ForSequenceClassification reads the state of \[CLS\]"
        with pytest.raises(UserError, match=message):
            hf_export.export(mean, tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    fine = dataclasses.replace(mean.config, pooling="cls")
    with pytest.raises(UserError, match="out is not an empty directory; use another --output"):
        hf_export.export(mean._replace(config=fine), tmp_path / "out")
