import io
import json

import pytest
import sentencepiece as spm
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.config.errors import UserError
from electra_jax.data import tokenizer, vocabulary_training
from electra_jax.data.config import CorpusConfig
from electra_jax.data.tokenizer import CLS, MASK, OWN, PAD, SEP, SPECIAL_TOKENS, UNK, Special

TEXT = "The model reads a line of text and says which word was replaced by another one in this Sentence."
WORDS = TEXT.split()
LINES = [" ".join(WORDS[i] for i in (n % 19, n % 7, n % 11, n % 13, n % 17)) for n in range(400)]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join)


def train(lines=LINES, **changes):
    chosen = {"vocab_size": 45, "normalization": "nmt_nfkc", **changes}
    return vocabulary_training.train(lines, CorpusConfig(**chosen))


@pytest.fixture(scope="module")
def cased():
    return train()


def test_lines_are_encoded_one_by_one_in_order(cased):
    together = cased.encode(LINES[:50], threads=4)
    assert together == [cased.encode([line], threads=1)[0] for line in LINES[:50]]
    assert cased.encode([]) == []
    assert cased.encode([""]) == [[]]


@given(TEXTS, st.integers(0, 3))
@settings(max_examples=30)
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


@pytest.mark.parametrize("model", [b"", b"no model", b"\0" * 100])
def test_bytes_that_are_no_model_are_refused(tmp_path, model):
    path = tmp_path / "vocab.model"
    path.write_bytes(model)
    with pytest.raises(UserError, match=r"vocab\.model"):
        tokenizer.load(path)


def foreign(**options):
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, vocab_size=40, minloglevel=2, **options
    )
    return model.getvalue()


def test_special_tokens_that_a_model_of_others_lacks_are_added_after_its_own(cased):
    """SentencePiece's own has <unk> <s> </s> and no more."""
    found = tokenizer.SentencePiece(foreign())
    assert found.special == Special(unk=0, cls=1, sep=2, pad=40, mask=41)
    assert len(found) == 42
    plain = spm.SentencePieceProcessor(model_proto=foreign())
    assert found.encode(LINES) == plain.encode(LINES)
    assert {*found.encode([" ".join(SPECIAL_TOKENS)])[0]} & {40, 41} == set()
    ids = [found.special.cls, *found.encode(["model"])[0], found.special.mask, *found.encode(["text"])[0], 40]
    assert [word for word, _ in found.words(ids)] == ["model", "text"]
    again = tokenizer.SentencePiece(found.model)
    assert (again.special, again.model) == (found.special, found.model)


def test_a_model_with_all_special_tokens_stays_as_it_is():
    model = foreign(pad_id=3, control_symbols=["<mask>"])
    found = tokenizer.SentencePiece(model)
    assert found.model == model
    assert found.special == Special(unk=0, cls=1, sep=2, pad=3, mask=4)


def test_special_tokens_of_other_names_are_known_by_their_roles():
    model = foreign(unk_piece="<oov>", bos_piece="<begin>", eos_piece="<end>", pad_id=3, pad_piece="<nothing>")
    found = tokenizer.SentencePiece(model)
    assert found.special == Special(unk=0, cls=1, sep=2, pad=3, mask=40)
    assert set(found.encode(["\u4f60"])[0]) & {0}


def test_special_tokens_that_a_model_makes_of_text_are_unknown_there():
    model = foreign(user_defined_symbols=["[MASK]", "[SEP]"], control_symbols=["[CLS]"])
    found = tokenizer.SentencePiece(model)
    plain = spm.SentencePieceProcessor(model_proto=model).encode(["the [MASK] [SEP]"])[0]
    assert {found.special.mask, found.special.sep} <= {*plain}
    replaced = [found.special.unk if i in found.special else i for i in plain]
    assert found.encode(["the [MASK] [SEP]"]) == [replaced]
    assert found.encode(LINES) == spm.SentencePieceProcessor(model_proto=model).encode(LINES)


def test_byte_fallback_knows_every_character(cased):
    found = train(byte_fallback=True, vocab_size=305)
    assert found.special == OWN
    ids = found.encode(["model \u4f60"])[0]
    assert UNK not in ids
    assert found.decode(ids) == "model \u4f60"
    assert UNK in cased.encode(["model \u4f60"])[0]


PIECES = ["[PAD]", "a", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "model", "##s", "text", ".", "w", "##ord"]


@pytest.fixture
def word_pieces(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return tmp_path / "vocab.txt"


def test_word_pieces_of_the_released_models(word_pieces):
    found = tokenizer.load(word_pieces)
    assert found.special == Special(pad=0, unk=2, cls=3, sep=4, mask=5)
    assert len(found) == len(PIECES)
    assert found.encode(["The models.", "", "word"]) == [[6, 7, 8, 10], [], [11, 12]]
    assert found.encode(["T\u00e9xt"]) == [[9]]  # accents are taken off with the case, as in BERT
    assert found.decode([6, 7, 8]) == "the models"
    assert [word for word, _ in found.words([3, 6, 7, 8, 5, 11, 12, 4, 0])] == ["the", "models", "word"]
    cased = tokenizer.load(word_pieces, fold_case=False)
    assert cased.encode(["The the"]) == [[2, 6]]


def test_special_tokens_in_a_text_are_text(word_pieces):
    found = tokenizer.load(word_pieces)
    assert {2} == {*found.encode(["[MASK] [SEP]"])[0]}


def test_word_pieces_are_kept_with_their_normalization(word_pieces, tmp_path):
    for fold_case in (True, False):
        found = tokenizer.load(word_pieces, fold_case)
        tokenizer.save(found, tmp_path)
        assert tokenizer.load_from_folder(tmp_path).encode(["The models"]) == found.encode(["The models"])


def test_one_vocabulary_is_kept_at_a_time(cased, word_pieces, tmp_path):
    with pytest.raises(UserError, match="has no vocabulary"):
        tokenizer.load_from_folder(tmp_path)
    tokenizer.save(tokenizer.load(word_pieces), tmp_path)
    tokenizer.save(cased, tmp_path)
    assert tokenizer.load_from_folder(tmp_path).model == cased.model


def test_word_pieces_without_a_special_token_are_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n")
    with pytest.raises(UserError, match=r"vocab.txt has no \[MASK\]; add a line for each"):
        tokenizer.load(tmp_path / "vocab.txt")


def test_what_is_no_tokenizer_is_refused(tmp_path):
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"tokenizer.json has no \[PAD\] \[UNK\] \[CLS\] \[SEP\] \[MASK\]"):
        tokenizer.load(tmp_path / "tokenizer.json")
    panics = {"version": "1.0", "normalizer": {"type": "Precompiled", "precompiled_charsmap": "A"}}
    for damaged in ({}, {**panics, "model": {"type": "BPE", "vocab": {}, "merges": []}}):
        (tmp_path / "tokenizer.json").write_text(json.dumps(damaged))
        with pytest.raises(UserError, match=r"tokenizer.json is not a tokenizer.json"):
            tokenizer.load(tmp_path / "tokenizer.json")


def test_a_vocabulary_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"none.model is not a file: expected a SentencePiece model, tok"):
        tokenizer.load(tmp_path / "none.model")


def stands_for(vocabulary, text):
    """(piece, the characters it stands for)."""
    ids, spans = vocabulary.spans(text)
    assert [ids] == vocabulary.encode([text])
    return [(vocabulary.name_of(id_), text[begin:end]) for id_, (begin, end) in zip(ids, spans, strict=True)]


START = tokenizer.WORD_START


def test_pieces_stand_for_characters(cased):
    assert stands_for(cased, " The  model. ") == [(f"{START}The", "The"), (f"{START}model", "model"), (".", ".")]
    assert cased.spans(" The  model. ")[1] == [(1, 4), (6, 11), (11, 12)]
    assert stands_for(cased, "") == stands_for(cased, " ") == []
    # The space before a word that has none in its first piece is empty, and stands where the word begins.
    assert cased.spans("The \u4f60\u597d")[1] == [(0, 3), (4, 4), (4, 6)]


def test_pieces_of_what_normalization_takes_apart_have_all_of_it(cased):
    assert stands_for(cased, "w\ufb01 x") == [
        (START, ""),
        ("w", "w"),
        ("f", "\ufb01"),
        ("i", "\ufb01"),
        (START, ""),
        ("x", "x"),
    ]
    found = train(byte_fallback=True, vocab_size=305)
    assert stands_for(found, "\u4f60a") == [
        (START, ""),
        *[(f"<0x{byte:02X}>", "\u4f60") for byte in "\u4f60".encode()],
        ("a", "a"),
    ]


def test_pieces_of_a_word_that_is_composed_first_have_all_of_it(cased):
    text = "The \u00c9text re\u0301ad \u0130s model."
    assert [characters for _, characters in stands_for(cased, text)][-2:] == ["model", "."]
    assert {"re\u0301ad"} == {characters for _, characters in stands_for(cased, "re\u0301ad") if characters}
    folded = train(normalization="nmt_nfkc_cf")
    found = stands_for(folded, text)
    assert found[0] == (f"{START}the", "The")
    assert ("[UNK]", "\u00c9") in found  # it is one letter, in lower case too
    assert {"re\u0301ad", "\u0130s"} < {characters for _, characters in found}
    assert found[-1] == (".", ".")
    # As long as before, because one letter became two and two others one.
    equally_long = "\u0130re\u0301ad"
    assert {equally_long} == {characters for _, characters in stands_for(folded, equally_long) if characters}


def test_text_that_is_a_special_token_stands_where_it_is():
    found = tokenizer.SentencePiece(foreign(user_defined_symbols=["[MASK]"], control_symbols=["[CLS]", "[SEP]"]))
    assert ("<unk>", "[MASK]") in stands_for(found, "The [MASK] reads")


def test_word_pieces_stand_for_characters(word_pieces):
    found = tokenizer.load(word_pieces)
    assert stands_for(found, " T\u00e9xt  models.word[MASK]")[:6] == [
        ("text", "T\u00e9xt"),
        ("model", "model"),
        ("##s", "s"),
        (".", "."),
        ("w", "w"),
        ("##ord", "ord"),
    ]


def test_byte_level_pieces_stand_for_characters_without_their_space():
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290, special_tokens=[*SPECIAL_TOKENS], initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(LINES, trainer)
    found = tokenizer.Library(model.to_str().encode())
    text = "The \u4f60 The"
    characters = [each for _, each in stands_for(found, text)]
    assert characters.count("\u4f60") == 3
    assert "".join(dict.fromkeys(characters)) == "The\u4f60"


ODD_LETTERS = "\u0301\u00e9\ufb01\u0130\u03a3\u00df\u1e9e\u4f60\u00bd\u2000\u3000\u200b\u0958\U0001f600"
ODD = st.text(st.sampled_from("aTe.  \t\n" + ODD_LETTERS))


@given(ODD.map("x".join) | st.text() | ODD)
@settings(max_examples=200)
def test_spans_have_the_ids_of_encode_and_all_characters(vocabularies, text):
    for vocabulary in vocabularies:
        ids, spans = vocabulary.spans(text)
        assert [ids] == vocabulary.encode([text])
        assert len(spans) == len(ids)
        for begin, end in spans:
            assert 0 <= begin <= end <= len(text)
            assert text[begin:end] == text[begin:end].strip()
        covered = {i for begin, end in spans for i in range(begin, end)}
        assert {i for i, letter in enumerate(text) if letter in "aTe.x\u4f60\u00e9\ufb01\U0001f600"} <= covered


@pytest.fixture(scope="module")
def vocabularies(cased):
    folded = train(normalization="nmt_nfkc_cf", byte_fallback=True, vocab_size=300)
    plain = train(normalization="identity", model_type="bpe")
    others = foreign(treat_whitespace_as_suffix=True), foreign(remove_extra_whitespaces=False, add_dummy_prefix=False)
    return [cased, folded, plain, *map(tokenizer.SentencePiece, others)]
