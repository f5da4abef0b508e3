import jax.numpy as jnp
import numpy as np
import tiny_models
from cli_runs import make_objective, small_config
from splits import from_lists

from electra_jax.data import vocabulary_training
from electra_jax.data.tokenizer import CLS, OWN, PAD, SEP, UNK
from electra_jax.loading import samples
from electra_jax.loading.samples import SampledWord
from electra_jax.runtime.marked_text import Mark


def test_sentences_are_lines_of_fitting_length():
    lengths = [3, 12, 40, 41, 20]
    split = from_lists([[[9] * n for n in lengths]])
    batch = samples.sample_sentences(split, count=10, length=32, seed=0, special=OWN)
    used = (batch.input_ids != PAD).sum(axis=1)
    assert sorted(used) == [14, 22]  # with CLS and SEP; 40 does not fit in 32, 3 is too short
    assert set(batch.input_ids[:, 0]) == {CLS}
    for row, n in zip(batch.input_ids, used, strict=True):
        assert row[n - 1] == SEP
    assert len(samples.sample_sentences(split, count=1, length=32, seed=0, special=OWN).input_ids) == 1


def test_replaced_words_know_their_original_and_special_tokens_stay(text_file, monkeypatch):
    vocabulary = vocabulary_training.train(text_file.read_text().split("\n"), small_config(text_file).data)
    objective = make_objective(small_config(model__encoder="bert", model__layers=1), len(vocabulary))
    text = "the model reads a line of text and says which word was replaced"
    split = from_lists([vocabulary.encode([text])])
    params = tiny_models.parameters(objective)
    rows, words = [], samples._words
    monkeypatch.setattr(samples, "_words", lambda vocabulary, *row: rows.append(row) or words(vocabulary, *row))
    (sentence,) = samples.sample_fakes(objective, params, jnp.int32(5), split, vocabulary, 64, seed=1)
    ((original, corrupted, labels, probabilities),) = rows
    np.testing.assert_array_equal(labels > 0, corrupted != original)
    assert not labels[np.isin(original, [PAD, CLS, SEP])].any()
    shown = np.where(np.isin(corrupted, OWN) & (labels > 0), UNK, corrupted)  # of the fakes one is [PAD]
    for word, (text, at) in zip(sentence, vocabulary.words(shown.tolist()), strict=True):
        replaced = np.any(original[at] != corrupted[at])
        before = vocabulary.decode(original[at].tolist()) if replaced else None
        assert word == SampledWord(text, probabilities[at].max(), before)
    assert 0 < sum(word.original is not None for word in sentence) < len(sentence)
    assert samples.sample_fakes(objective, params, jnp.int32(5), from_lists([[[9]]]), vocabulary, 64, 1) == []


def test_a_fake_that_is_a_special_token_loses_no_word(text_file):
    vocabulary = vocabulary_training.train(text_file.read_text().split("\n"), small_config(text_file).data)
    ids = np.array([CLS, *vocabulary.encode(["the model reads"])[0], SEP])
    corrupted = np.where(np.arange(len(ids)) == len(ids) - 2, PAD, ids)
    *_, last = samples._words(vocabulary, ids, corrupted, (ids != corrupted).astype(int), np.linspace(0, 1, len(ids)))
    assert last.original is not None
    assert "reads" in last.original


def test_a_sentence_becomes_a_text_with_marks():
    text, marks = samples.mark_words([SampledWord("the", 0.25, None), SampledWord("cat", 0.5, "dog")])
    assert text == "the cat"
    assert marks == [Mark(0, 3, 0.25, False), Mark(4, 7, 0.5, True)]
