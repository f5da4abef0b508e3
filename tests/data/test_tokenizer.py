import io

import pytest
import sentencepiece as spm
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.data import tokenizer
from electra_jax.data.tokenizer import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK
from electra_jax.errors import UserError

TEXT = "The model reads a line of text and says which word was replaced by another one in this Sentence."
WORDS = TEXT.split()
LINES = [" ".join(WORDS[i] for i in (n % 19, n % 7, n % 11, n % 13, n % 17)) for n in range(400)]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join)


@pytest.fixture(scope="module")
def cased():
    return tokenizer.train(LINES, vocab_size=45, lowercase=False)


def test_special_tokens_are_the_first_five_ids(cased):
    pieces = spm.SentencePieceProcessor(model_proto=cased.model)
    assert (PAD, UNK, CLS, SEP, MASK) == (0, 1, 2, 3, 4)
    assert [pieces.id_to_piece(i) for i in range(5)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert pieces.unk_id() == UNK
    assert len(cased) == pieces.get_piece_size() == 45


def test_text_never_becomes_a_special_token_but_unknown(cased):
    ids = cased.encode([" ".join(SPECIAL_TOKENS), "<s> </s> <pad> \u4f60"])
    assert {i for line in ids for i in line if i < 5} == {UNK}


@given(TEXTS)
@settings(max_examples=30, deadline=None)
def test_decode_undoes_encode(cased, text):
    assert cased.decode(cased.encode([text])[0]) == text


def test_lines_are_encoded_one_by_one_in_order(cased):
    together = cased.encode(LINES[:50], threads=4)
    assert together == [cased.encode([line], threads=1)[0] for line in LINES[:50]]
    assert cased.encode([]) == []
    assert cased.encode([""]) == [[]]


def test_lowercase_folds_case_and_its_absence_keeps_it(cased):
    folded = tokenizer.train(LINES, vocab_size=45, lowercase=True)
    the, THE = "The Sentence.", "tHE sENTENCE."
    assert folded.encode([the]) == folded.encode([THE])
    assert folded.decode(folded.encode([the])[0]) == "the sentence."
    assert cased.encode([the]) != cased.encode([THE])
    assert cased.decode(cased.encode([the])[0]) == the


@given(TEXTS, st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_words_are_the_text_between_spaces(cased, text, padding):
    ids = [CLS, *cased.encode([text])[0], SEP] + [PAD] * padding
    words = cased.words(ids)
    assert [word for word, _ in words] == text.split()
    assert [cased.decode(ids[where]) for _, where in words] == text.split()
    assert [i for _, where in words for i in range(len(ids))[where]] == list(range(1, len(ids) - 1 - padding))


def test_special_tokens_end_words_and_are_in_none(cased):
    model, text = cased.encode(["model"])[0], cased.encode(["text"])[0]
    m, t = len(model), len(text)
    assert cased.words([CLS, *model, MASK, *text, SEP, SEP, PAD]) == [
        ("model", slice(1, 1 + m)),
        ("text", slice(2 + m, 2 + m + t)),
    ]
    assert cased.words([CLS, MASK, SEP, PAD]) == []
    assert cased.words([]) == []


def test_unknown_piece_belongs_to_its_word(cased):
    ids = cased.encode(["model m\u4f60l text"])[0]
    assert UNK in ids
    assert [word for word, _ in cased.words(ids)] == ["model", "m \u2047 l", "text"]


def test_words_without_a_start_begin_where_the_ids_do(cased):
    ids = cased.encode(["Sentence. text"])[0]
    whole, text = (where for _, where in cased.words(ids))
    assert whole.stop > 2
    assert [where for _, where in cased.words(ids[1:])] == [
        slice(0, whole.stop - 1),
        slice(text.start - 1, text.stop - 1),
    ]


@pytest.mark.parametrize("lines", [LINES, [], [" "]], ids=["little", "none", "blank"])
def test_too_large_a_vocabulary_is_refused_in_one_line(lines):
    with pytest.raises(UserError, match=r"no vocabulary of 30522 pieces.*config\.data\.vocab_size") as error:
        tokenizer.train(lines, vocab_size=30522)
    assert "\n" not in str(error.value)


def test_too_small_a_vocabulary_is_refused_with_advice_to_enlarge_it():
    with pytest.raises(UserError, match="no vocabulary of 6 pieces") as error:
        tokenizer.train(LINES, vocab_size=6)
    assert "smaller config.data.vocab_size" not in str(error.value)


@pytest.mark.parametrize("model", [b"", b"no model", b"\0" * 100])
def test_bytes_that_are_no_model_are_refused(tmp_path, model):
    path = tmp_path / "vocab.model"
    path.write_bytes(model)
    with pytest.raises(UserError, match=r"vocab\.model"):
        tokenizer.Tokenizer.load(path)


def test_model_with_other_special_tokens_is_refused(tmp_path):
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_writer=model, vocab_size=40, minloglevel=2)
    path = tmp_path / "other.model"
    path.write_bytes(model.getvalue())
    with pytest.raises(UserError, match=r"other\.model: ids 0 to 4 are <unk> <s> </s> .*, expected \[PAD\] \[UNK\]"):
        tokenizer.Tokenizer.load(path)


def test_saved_model_is_the_same_vocabulary(cased, tmp_path):
    path = tmp_path / "vocab.model"
    path.write_bytes(cased.model)
    loaded = tokenizer.Tokenizer.load(path)
    assert loaded.encode(LINES) == cased.encode(LINES)


def test_same_text_gives_the_same_bytes(cased):
    assert tokenizer.train(LINES, vocab_size=45, lowercase=False).model == cased.model
    assert tokenizer.train(LINES[::-2], vocab_size=45, lowercase=False).model != cased.model
