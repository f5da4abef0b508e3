import io
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from cli_runs import make_objective, small_config
from rich.console import Console

from electra_jax.config import errors
from electra_jax.data import tokenizer
from electra_jax.data.records import Split
from electra_jax.data.tokenizer import CLS, OWN, PAD, SEP
from electra_jax.loading import detection
from electra_jax.loading.huggingface import directory
from electra_jax.modeling import electra
from electra_jax.modeling.batch import Batch

WORDS = [("the", 0.01, False), ("dog", 0.2, False), ("sat", 0.4, True), ("down", 0.9, True)]


def test_without_colours_words_carry_their_probability():
    assert detection.render(WORDS, colours=False).plain == "the dog[20%] *sat*[40%] *down*[90%]"


def test_with_colours_text_is_untouched_and_shades_deepen():
    text = detection.render(WORDS, colours=True)
    assert text.plain == "the dog sat down"
    styles = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert "the" not in styles or not styles["the"].strip()
    assert styles["dog"] == "black on light_goldenrod1"
    assert styles["sat"] == "black on orange1 underline"
    assert styles["down"] == "bold white on red3 underline"


def test_sentences_are_framed_lines_of_fitting_length():
    lengths = [3, 12, 40, 41, 20]
    split = Split.from_lists([[[9] * n for n in lengths]])
    batch = detection.sentences(split, count=10, length=32, seed=0, special=OWN)
    used = (batch.input_ids != PAD).sum(axis=1)
    assert sorted(used) == [14, 22]  # with CLS and SEP; 40 does not fit in 32, 3 is too short
    assert set(batch.input_ids[:, 0]) == {CLS}
    for row, n in zip(batch.input_ids, used, strict=True):
        assert row[n - 1] == SEP
    np.testing.assert_array_equal(batch.sequence_ids, batch.input_ids != PAD)
    assert len(detection.sentences(split, count=1, length=32, seed=0, special=OWN).input_ids) == 1


def test_what_is_corrupted_is_labelled_and_special_tokens_stay(text_file):
    vocabulary = tokenizer.train(text_file.read_text().split("\n"), small_config(text_file).data)
    objective = make_objective(small_config(), len(vocabulary))
    line = vocabulary.encode(["the model reads a line of text and says which word was replaced"])
    batch = detection.sentences(Split.from_lists([line]), 1, 64, 0, OWN)
    params = jax.jit(objective.model.init)(jax.random.key(0), Batch(*[jnp.zeros((1, 64), jnp.int32)] * 3))["params"]
    find = jax.jit(detection.make_corrupt_and_detect(objective))
    found = find(params, jnp.int32(5), batch, jax.random.key(1))
    corrupted, labels, probabilities = jax.device_get(found)
    np.testing.assert_array_equal(labels > 0, corrupted != batch.input_ids)
    assert labels.sum() > 0
    assert np.all(corrupted[batch.input_ids == PAD] == PAD)
    assert np.all((probabilities > 0) & (probabilities < 1))

    out = io.StringIO()
    detection.show(Console(file=out, width=200), vocabulary, zip(corrupted, labels, probabilities, strict=True))
    legend, sentence = out.getvalue().splitlines()
    assert legend.startswith("*starred*: replaced by the generator")
    assert sentence.startswith("• ")
    assert "*" in sentence
    assert "\x1b" not in sentence


def pieces():
    lines = ["the model reads a line of text and says which word was replaced"] * 20
    return tokenizer.train(lines, small_config(data__vocab_size=28).data)


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_a_text_is_scored_as_a_whole_and_a_long_one_in_parts(kind):
    """A network of 16 positions: 14 pieces between CLS and SEP."""
    network, vocabulary = tiny_models.network(kind), pieces()
    text = "the model reads a line of text"
    (ids, changed, found), *rest = detection.detect(network, vocabulary, [text[:9]])
    assert (rest, changed) == ([], None)
    pieces_of = vocabulary.encode([text[:9]])[0]
    assert ids[: len(pieces_of) + 2].tolist() == [CLS, *pieces_of, SEP]
    shape = (1, len(pieces_of) + 2)
    batch = Batch(ids[None, : len(pieces_of) + 2], np.zeros(shape, int), np.ones(shape, int))
    states = electra.encode(network.model, network.params, batch)
    expected = jax.nn.sigmoid(electra.discriminator_logits(network.model, network.params, states))[0]
    np.testing.assert_allclose(found[: len(expected)], expected, rtol=1e-5)

    rows = detection.detect(network, vocabulary, [text, "", "text"])
    whole = [i for row, _, _ in rows for i in row.tolist() if i not in (PAD, CLS, SEP)]
    assert whole == [i for line in vocabulary.encode([text, "text"]) for i in line]
    assert len(rows) == 1 + -(-len(vocabulary.encode([text])[0]) // 14)
    assert detection.detect(network, vocabulary, [""]) == []


def test_many_texts_are_read_some_at_a_time():
    network, vocabulary = tiny_models.network(), pieces()
    texts = ["the model", "reads a line"] * 20
    rows = detection.detect(network, vocabulary, texts)
    assert len(rows) == 40
    for (ids, _, found), (other_ids, _, other) in zip(rows[::2], rows[2::2], strict=False):
        np.testing.assert_array_equal(ids, other_ids)
        np.testing.assert_allclose(found, other, rtol=1e-5)


@pytest.fixture
def model(tmp_path):
    directory.write(tmp_path / "model", tiny_models.network(), "discriminator_head", pieces(), "")
    return tmp_path / "model"


def test_the_command_marks_words_of_its_arguments_or_of_its_input(model, capsys, monkeypatch):
    assert errors.run(detection.main, [f"--model={model}", "the model", "reads a line"]) == 0
    legend, first, second = capsys.readouterr().out.splitlines()
    assert legend == "[n%]: suspected by the discriminator with that probability"
    assert re.sub(r"\[\d+%\]", "", first) == "• the model"
    assert re.sub(r"\[\d+%\]", "", second) == "• reads a line"
    monkeypatch.setattr("sys.stdin", io.StringIO("the model\nreads a line\n"))
    assert errors.run(detection.main, ["--model", str(model)]) == 0
    assert capsys.readouterr().out.splitlines() == [legend, first, second]
    assert errors.run(detection.main, [f"--model={model}", "caf\udce9 a line"]) == 0  # bytes that are no UTF-8


def test_what_cannot_tell_is_refused(model, tmp_path, capsys):
    directory.write(tmp_path / "lm", tiny_models.network(head="mlm_head"), "mlm_head", pieces(), "")
    for name in ("spiece.model", "tokenizer.json"):
        (model / name).unlink()
    for arguments, message in (
        (["the model"], "--model is missing"),
        ([f"--model={tmp_path / 'none'}", "a"], "holds no model"),
        ([f"--model={tmp_path / 'lm'}", "a"], "has no discriminator, which alone can tell"),
        ([f"--model={model}", "a"], "has no tokenizer; put its tokenizer.json beside its weights"),
        ([f"--model={model}", "--text=a"], "--text is unknown"),
    ):
        assert errors.run(detection.main, arguments) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert message in line
