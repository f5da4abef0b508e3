"""The front door's Model: texts in, numbers out."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny_models
from cli_runs import small_config

from electra_jax.config.errors import UserError
from electra_jax.data import vocabulary_training
from electra_jax.loading import inference
from electra_jax.loading import model as model_module
from electra_jax.loading.huggingface import directory
from electra_jax.loading.huggingface.directory import Pretrained
from electra_jax.loading.model import Candidate, Model
from electra_jax.modeling import electra
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.subnetwork import Network
from electra_jax.runtime import compile_cache

TEXT = "the model reads a line of text"
LONG = "the model reads a line of text and says which word was replaced"


@pytest.fixture(scope="module")
def pieces():
    return vocabulary_training.train([LONG] * 20, small_config(data__vocab_size=28).data)


def make(pieces, kind="bert", head="discriminator_head", generator=None, scores="", batch_size=4):
    """Of 16 positions: 14 tokens between [CLS] and [SEP]. ModernBERT's second layer is a local one."""
    network = tiny_models.network(kind, head, layers=2 if kind == "modernbert" else 1)
    networks = Pretrained(network, generator, pieces, (), scores)
    return Model("a test", networks, pieces, batch_size)


@pytest.fixture(scope="module")
def detector(pieces):
    return make(pieces)


@pytest.fixture(scope="module")
def filler(pieces):
    return make(pieces, head="mlm_head")


encode, mlm_logits, discriminator_logits = (
    jax.jit(function, static_argnums=0)
    for function in (electra.encode, electra.mlm_logits, electra.discriminator_logits)
)


def states(network, tokens, special):
    """States of one row without padding, [1, L, D]."""
    ids = np.array([[special.cls, *tokens, special.sep]], np.int32)
    return np.asarray(encode(network.model, network.params, Batch(ids, np.zeros_like(ids), np.ones_like(ids))))


def logits(network, tokens, special):
    found = discriminator_logits(
        network.model, network.params, states(network, tokens, special), np.ones((1, len(tokens) + 2), np.int32)
    )
    return np.asarray(found)[0, 1:-1]


def token_logits(network, tokens, special, position):
    found = mlm_logits(network.model, network.params, states(network, tokens, special))
    return np.asarray(found)[0, position]


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_encoding_is_that_of_the_text_alone(pieces, detector, kind):
    model = detector if kind == "bert" else make(pieces, kind)
    texts = ["the model", "", "model the"]  # of two lengths: each is a program for `states`
    for text, row in zip(texts, model.encode(texts, None), strict=True):
        expected = np.asarray(states(model.encoder, pieces.encode([text])[0], pieces.special))[0]
        np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-5)


def test_states_are_pooled(detector):
    texts = ["the model", "", "a line of"]
    mean, first = (detector.encode(texts, pooling) for pooling in ("mean", "cls"))
    for i, row in enumerate(detector.encode(texts, None)):
        np.testing.assert_allclose(mean[i], row.mean(axis=0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(first[i], row[0], rtol=1e-4, atol=1e-5)
    assert mean.dtype == np.float32
    np.testing.assert_allclose(detector.encode("the  \n model "), mean[0], rtol=1e-5, atol=1e-6)


def test_programs_are_kept_in_the_users_cache_folder(pieces, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compile_cache, "_SHORTEST", 0.0)
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)  # as outside of the tests
    try:
        with compile_cache.compile_cache(compile_cache.NONE):
            make(pieces).encode("the model")
        assert not (tmp_path / "electra_jax").exists()
        inference.encode.clear_cache()
        make(pieces).encode("the model")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert any("encode" in path.name for path in (tmp_path / "electra_jax" / "compiled").iterdir())


def test_encoding_cuts_long_texts_and_takes_none(detector, pieces):
    (row,) = pieces.encode([LONG])
    assert len(row) > 14
    np.testing.assert_array_equal(detector.encode([LONG], None)[0].shape, (16, 32))
    expected = np.asarray(states(detector.encoder, row[:14], pieces.special))[0]
    np.testing.assert_allclose(detector.encode(LONG, None), expected, rtol=1e-4, atol=1e-5)
    assert detector.encode([]).shape == (0, 32)
    assert detector.encode([], None) == []


def test_order_is_kept_over_lengths_and_batches(pieces):
    model = make(pieces, batch_size=3)
    texts = [" ".join(LONG.split()[: i % 4]) for i in range(11)]
    whole = model.encode(texts)
    for text, row in zip(texts, whole, strict=True):
        np.testing.assert_allclose(model.encode(text), row, rtol=1e-5, atol=1e-6)


def test_each_length_is_compiled_once(pieces):
    """Whatever the number of texts and of calls, but for a single text."""
    compiled = inference.encode, inference.discriminate
    for function in compiled:
        function.clear_cache()
    network = inference.Inference(tiny_models.network(layers=1), pieces.special, 4)
    for rows in ([[7]], [[7]] * 9, [[7, 8, 9]] * 5):
        network.encode(rows, "mean")
        network.discriminate(rows)
    assert [function._cache_size() for function in compiled] == [2, 2]


def test_words_stand_in_the_text_as_it_was_given(detector):
    text = "  The Model\t\u2603 reads\n a line. "
    words = detector.detect(text)
    assert all(text[word.begin : word.end] == word.text for word in words)
    assert [word.text for word in words] == text.split()
    assert all(0 < word.probability < 1 for word in words)


def test_a_word_is_as_suspect_as_its_most_suspect_piece(detector, pieces):
    (row,) = pieces.encode(["the model"])
    expected = jax.nn.sigmoid(logits(detector.encoder, row, pieces.special))
    found = pieces.words(row)
    assert len(row) > len(found) == 2
    for word, (text, at) in zip(detector.detect("the model"), found, strict=True):
        assert word.text == text
        np.testing.assert_allclose(word.probability, np.max(expected[at]), rtol=1e-4)


def test_each_text_has_one_result_and_long_ones_are_read_in_windows(detector, pieces):
    first, empty, last = detector.detect([LONG, " ", "text"])
    assert [word.text for word in first] == LONG.split()
    assert empty == []
    assert [word.text for word in last] == ["text"]
    (row,) = pieces.encode([LONG])
    expected = np.concatenate(
        [logits(detector.encoder, row[i : i + 14], pieces.special) for i in range(0, len(row), 14)]
    )
    (found,) = detector._encoder_inference.discriminate([row])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert detector.detect([]) == []


def test_a_discriminators_score_is_the_log_probability_that_nothing_was_replaced(detector, pieces):
    rows = pieces.encode([TEXT[:9], ""])
    expected = [np.log1p(-np.asarray(jax.nn.sigmoid(logits(detector.encoder, rows[0], pieces.special)))).sum(), 0]
    np.testing.assert_allclose(detector.score([TEXT[:9], ""]), expected, rtol=1e-4)
    np.testing.assert_allclose(detector.score(TEXT[:9]), expected[0], rtol=1e-4)
    per_token = detector.score([TEXT[:9], ""], per_token=True)
    np.testing.assert_allclose(per_token, [expected[0] / len(rows[0]), 0], rtol=1e-4)


def test_an_energy_is_summed_with_its_sign(pieces):
    model = make(pieces, scores="how unlikely it is")
    (row,) = pieces.encode([TEXT[:9]])
    np.testing.assert_allclose(model.score(TEXT[:9]), -logits(model.encoder, row, pieces.special).sum(), rtol=1e-4)


def test_without_a_discriminator_the_score_is_the_pseudo_log_likelihood(filler, pieces):
    (row,) = pieces.encode([TEXT[:9]])
    total = 0.0
    for i, token in enumerate(row):
        masked = [*row[:i], pieces.special.mask, *row[i + 1 :]]
        scores = token_logits(filler.encoder, masked, pieces.special, i + 1)
        total += float(jax.nn.log_softmax(scores)[token])
    np.testing.assert_allclose(filler.score([TEXT[:9], ""]), [total, 0], rtol=1e-4)
    assert filler.score([]).shape == (0,)
    assert np.isfinite(filler.score(LONG))


def test_one_pass_scores_each_token_where_nothing_is_masked(filler, pieces):
    (row,) = pieces.encode([TEXT[:9]])
    expected = sum(
        float(jax.nn.log_softmax(token_logits(filler.encoder, row, pieces.special, i + 1))[token])
        for i, token in enumerate(row)
    )
    np.testing.assert_allclose(filler.score([TEXT[:9], ""], by="one_pass"), [expected, 0], rtol=1e-4)


def test_an_encoder_with_both_heads_fills_by_itself_and_scores_by_either(pieces, detector, filler):
    """Its parameters are those of the two others."""
    config = dataclasses.replace(detector.encoder.config, heads=("discriminator_head", "mlm_head"))
    params = {**filler.encoder.params, "discriminator_head": detector.encoder.params["discriminator_head"]}
    generator = tiny_models.network(head="mlm_head", layers=1, seed=3)
    both = Model("both", Pretrained(Network(config, params), generator, pieces), pieces, batch_size=4)
    assert both.fill("the [MASK]") == filler.fill("the [MASK]")
    assert both.score(TEXT) == both.score(TEXT, by="masks") == filler.score(TEXT)
    assert both.score(TEXT, by="one_pass") == filler.score(TEXT, by="one_pass")
    other = Model(
        "one",
        Pretrained(
            Network(detector.encoder.config, {k: v for k, v in params.items() if k != "mlm_head"}), None, pieces
        ),
        pieces,
        batch_size=4,
    )
    assert both.score(TEXT, by="detection") == other.score(TEXT)


def test_masks_are_filled_with_the_likeliest_tokens(filler, pieces):
    row = [*pieces.encode(["the"])[0], pieces.special.mask, *pieces.encode(["a line"])[0]]
    at = row.index(pieces.special.mask) + 1
    scores = token_logits(filler.encoder, row, pieces.special, at)
    expected = np.asarray(jax.nn.softmax(scores))[: len(pieces)]
    for top in (0, -1, 2.5):
        with pytest.raises(UserError, match=f"top={top} is invalid: expected an integer, 1 or more"):
            filler.fill("the [MASK]", top=top)
    ((best, *rest),) = filler.fill("the [MASK] a line", top=28)
    assert best.token == pieces.decode([int(expected.argmax())])
    np.testing.assert_allclose(best.probability, expected.max(), rtol=1e-4)
    assert len(rest) == 27
    np.testing.assert_allclose([c.probability for c in rest], np.sort(expected)[-2::-1], rtol=1e-4)


def test_every_mask_of_every_text_has_its_candidates(filler):
    first, second = filler.fill(["the [MASK] reads [MASK]", "[MASK]"], top=2)
    assert [len(candidates) for candidates in first] == [2, 2]
    assert [len(candidates) for candidates in second] == [2]
    assert all(isinstance(candidate, Candidate) for candidate in second[0])


def test_the_generator_fills_masks_where_there_is_one(pieces, filler):
    generator = tiny_models.network(head="mlm_head", layers=1, seed=3)
    model = make(pieces, generator=generator)
    alone = Model("the generator", Pretrained(generator, None, pieces), pieces, batch_size=4)
    assert model.fill("the [MASK]") == alone.fill("the [MASK]") != filler.fill("the [MASK]")


def test_what_a_model_cannot_do_is_one_line_with_a_way_out(pieces, detector, filler, tmp_path):
    bare = make(pieces, head=None)
    for call, message in (
        (lambda: filler.detect("a"), "a test has no discriminator, which detect needs; use a model that"),
        (lambda: detector.fill("[MASK]"), "no head that fill can use; use a model with a generator or an MLM head"),
        (lambda: bare.score("a"), "no head that score can use; use a model with a generator or an MLM head"),
        (
            lambda: filler.score("a", by="detection"),
            r"a test has no discriminator, which score\(by='detection'\) needs",
        ),
        (lambda: detector.score("a", by="masks"), "a generator or an MLM head; or use by='detection'"),
        (lambda: detector.score("a", by="best"), "by='best' is invalid: expected detection or masks or one_pass"),
        (lambda: filler.fill("the model"), r"text 'the model' has no mask: expected \[MASK\]"),
        (lambda: filler.fill(LONG + " [MASK]"), "tokens: expected 14 or fewer; shorten it"),
        (lambda: bare.encode("a", "max"), "pooling='max' is invalid: expected 'mean', 'cls' or None"),
        (lambda: make(pieces, batch_size=0), "batch_size=0 is invalid: expected an integer, 1 or more"),
        (lambda: make(pieces, batch_size="16"), "batch_size='16' is invalid: expected an integer, 1 or more"),
        (lambda: model_module.load(tmp_path / "none"), "none has no model: expected a run's work directory, an export"),
        (lambda: model_module.load(tmp_path, step=3), "is not a run, so it has no checkpoint of step 3"),
    ):
        with pytest.raises(UserError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


def test_a_directory_is_loaded_with_what_it_has(pieces, tmp_path):
    directory.write(tmp_path / "model", tiny_models.network(), "discriminator_head", pieces, "")
    model = model_module.load(tmp_path / "model")
    assert tiny_models.same(model.encoder.params, tiny_models.network().params)
    assert model.tokenizer.encode([TEXT]) == pieces.encode([TEXT])
    assert model.generator is None
    assert "bert encoder with 3 layers of width 32; heads: discriminator_head; without a generator" in repr(model)
    for name in ("spiece.model", "tokenizer.json"):
        (tmp_path / "model" / name).unlink()
    with pytest.raises(UserError, match=r"has no tokenizer; add its tokenizer\.json to the directory"):
        model_module.load(tmp_path / "model")
