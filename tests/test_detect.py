import io

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from runs import small_config

from electra_jax import detect
from electra_jax.data import tokenizer
from electra_jax.data.records import Split
from electra_jax.data.tokenizer import CLS, OWN, PAD, SEP
from electra_jax.objectives import table

WORDS = [("the", 0.01, False), ("dog", 0.2, False), ("sat", 0.4, True), ("down", 0.9, True)]


def test_without_colours_words_carry_their_probability():
    assert detect.render(WORDS, colours=False).plain == "the dog[20%] *sat*[40%] *down*[90%]"


def test_with_colours_text_is_untouched_and_shades_deepen():
    text = detect.render(WORDS, colours=True)
    assert text.plain == "the dog sat down"
    styles = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert "the" not in styles or not styles["the"].strip()
    assert styles["dog"] == "black on light_goldenrod1"
    assert styles["sat"] == "black on orange1 underline"
    assert styles["down"] == "bold white on red3 underline"


def test_sentences_are_framed_lines_of_fitting_length():
    lengths = [3, 12, 40, 41, 20]
    split = Split.from_lists([[[9] * n for n in lengths]])
    batch = detect.sentences(split, count=10, length=32, seed=0, special=OWN)
    used = (batch["input_ids"] != PAD).sum(axis=1)
    assert sorted(used) == [14, 22]  # with CLS and SEP; 40 does not fit in 32, 3 is too short
    assert set(batch["input_ids"][:, 0]) == {CLS}
    for row, n in zip(batch["input_ids"], used, strict=True):
        assert row[n - 1] == SEP
    np.testing.assert_array_equal(batch["sequence_ids"], batch["input_ids"] != PAD)
    assert len(detect.sentences(split, count=1, length=32, seed=0, special=OWN)["input_ids"]) == 1


def test_what_is_corrupted_is_labelled_and_special_tokens_stay(text_file):
    vocabulary = tokenizer.train(text_file.read_text().split("\n"), small_config(text_file).data)
    objective = table.make(small_config(), len(vocabulary))
    line = vocabulary.encode(["the model reads a line of text and says which word was replaced"])
    batch = detect.sentences(Split.from_lists([line]), 1, 64, 0, OWN)
    params = jax.jit(objective.model.init)(jax.random.key(0), *[jnp.zeros((1, 64), jnp.int32)] * 3)["params"]
    find = jax.jit(detect.make_corrupt_and_detect(objective))
    found = find(params, jnp.int32(5), batch, jax.random.key(1))
    corrupted, labels, probabilities = jax.device_get(found)
    np.testing.assert_array_equal(labels > 0, corrupted != batch["input_ids"])
    assert labels.sum() > 0
    assert np.all(corrupted[batch["input_ids"] == PAD] == PAD)
    assert np.all((probabilities > 0) & (probabilities < 1))

    out = io.StringIO()
    detect.show(Console(file=out, width=200), vocabulary, corrupted, labels, probabilities)
    legend, sentence = out.getvalue().splitlines()
    assert legend.startswith("*starred*: replaced by the generator")
    assert sentence.startswith("• ")
    assert "*" in sentence
    assert "\x1b" not in sentence
