import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.config.errors import UserError
from electra_jax.data import tokenizer, vocabulary_training
from electra_jax.data.config import MODEL_TYPES, CorpusConfig
from electra_jax.data.tokenizer import OWN, SPECIAL_TOKENS, UNK

TEXT = "The model reads a line of text and says which word was replaced by another one in this S\u00e9ntence."
WORDS = TEXT.split()
LINES = [" ".join(WORDS[i] for i in (n % 19, n % 7, n % 11, n % 13, n % 17)) for n in range(400)]
SIZES = {"unigram": 45, "bpe": 45, "wordpiece": 60, "byte_bpe": 290}


def train(model_type, lines=LINES, **changes):
    chosen = {"vocab_size": SIZES[model_type], "normalization": "nmt_nfkc", **changes}
    return vocabulary_training.train(lines, CorpusConfig(model_type=model_type, **chosen))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_kind_has_the_size_and_the_same_special_tokens(model_type):
    found = train(model_type)
    assert (len(found), found.special) == (SIZES[model_type], OWN)
    assert [found.name_of(id_) for id_ in OWN] == [*SPECIAL_TOKENS]
    assert found.model == train(model_type).model, "training again gives the same bytes"
    spelled = found.encode([" ".join(SPECIAL_TOKENS)])[0]
    assert not {*spelled} & ({*OWN} - {UNK})


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@given(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=12))
@settings(max_examples=30)
def test_words_come_back_from_their_pieces(model_type, words):
    found = TRAINED[model_type]
    (ids,) = found.encode([" ".join(words)])
    # WordPiece does not say whether a space was before a full stop.
    assert found.decode(ids).replace(" .", ".") == " ".join(words)
    starts = [word for word, _ in found.words(ids)]
    assert len(starts) == len(words) + (model_type == "wordpiece") * sum(word.endswith(".") for word in words)


TRAINED = {model_type: train(model_type) for model_type in MODEL_TYPES}


def test_pieces_of_bpe_are_merged_pairs():
    def merges(model_type):
        names = {TRAINED[model_type].name_of(id_) for id_ in range(len(OWN), SIZES[model_type])}
        return [any({name[:i], name[i:]} <= names for i in range(1, len(name))) for name in names if len(name) > 1]

    assert all(merges("bpe"))
    assert not all(merges("unigram"))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_case_is_folded_and_accents_are_kept(model_type):
    cased, folded = train(model_type), train(model_type, normalization="nfkc_cf")
    assert folded.encode(["S\u00c9NTENCE"]) == folded.encode(["s\u00e9ntence"]) != folded.encode(["sentence"])
    assert cased.encode(["S\u00e9ntence"]) != cased.encode(["s\u00e9ntence"])


def test_marks_stay_in_word_pieces():
    words = ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e17\u0e35\u0e48", "\u30ac\u30e9\u30b9", "\ud55c\uad6d"]
    found = train("wordpiece", [" ".join(words)] * 9, vocab_size=30, character_coverage=1.0, normalization="nfkc_cf")
    assert [found.decode(ids) for ids in found.encode(words)] == words


def test_bytes_know_every_character():
    found = train("byte_bpe")
    for text in ("\u4f60\u597d", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\U0001f600"):
        (ids,) = found.encode([text])
        assert UNK not in ids
        assert found.decode(ids) == text


@pytest.mark.parametrize(("model_type", "sizes"), [("unigram", (14, 14)), ("wordpiece", (21, 20))])
def test_coverage_decides_which_characters_are_pieces(model_type, sizes):
    lines = ["abcdefg " * 20] * 50 + ["\u4f60 abc"]
    known, rare = (
        train(model_type, lines, vocab_size=size, character_coverage=coverage).encode(["\u4f60"])[0]
        for size, coverage in zip(sizes, (1.0, 0.99), strict=True)
    )
    assert UNK not in known
    assert UNK in rare


def test_only_characters_within_words_have_a_piece_that_continues():
    found = train("wordpiece", ["ab ab \u4f60\u597d"] * 4, vocab_size=11, character_coverage=1.0)
    names = [found.name_of(id_) for id_ in range(5, len(found))]
    assert names == ["a", "b", "\u4f60", "\u597d", "##b", "ab"]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("lines", [LINES, [], [" "]], ids=["little", "none", "blank"])
def test_more_pieces_than_the_text_has_are_refused_in_one_line(model_type, lines):
    refused = r"^training a vocabulary of 5000 pieces failed \(.*\); use more text or another vocab_size$"
    with pytest.raises(UserError, match=refused):
        train(model_type, lines, vocab_size=5000)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("unigram", ".*required_chars.*"),
        ("wordpiece", "its characters alone are 45"),
        ("byte_bpe", "its characters alone are 261"),
    ],
)
def test_fewer_pieces_than_characters_are_refused(model_type, reason):
    with pytest.raises(UserError, match=rf"pieces failed \({reason}\)"):
        train(model_type, vocab_size=10)


def test_a_vocab_txt_of_word_pieces_is_the_same_vocabulary(tmp_path):
    found = train("wordpiece", normalization="nfkc_cf")
    (tmp_path / "vocab.txt").write_text("".join(f"{found.name_of(i)}\n" for i in range(len(found))))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true, "strip_accents": false}')
    assert tokenizer.load(tmp_path / "vocab.txt").encode(LINES) == found.encode(LINES)
