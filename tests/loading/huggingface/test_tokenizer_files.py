"""`tokenizer.json` gives the ids of our own vocabularies, for every text."""

import functools
import io
import json
import unicodedata

import made_text
import pytest
import sentencepiece as spm
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from electra_jax.config.errors import UserError
from electra_jax.data import proof, tokenizer, vocabulary_training
from electra_jax.data.config import CorpusConfig
from electra_jax.loading.huggingface import tokenizer_files

LINES = made_text.make_lines(1200)
# Letters of several scripts, composed and not, with marks that do and that do not compose, and spaces of all kinds.
STRANGE = [*"Aa\u00c9\u01f0\u1e17\u0130\u00df\u1e9e\u03a3\u03c2\u2126\u212b\ufb01\u30ac\uff5e\u2026\u00bd\uff21\u1fa4"]
STRANGE += [*"\U0001d400\u0958\uac00 \t\u00a0\u3000\u200b\ufeff\ufffd\u0001\x7f.,<]\u2581", "  ", "\U0001f600\u200d"]
STRANGE += ["E\u0301", "e\u0301", "A\u030a", "J\u030c", "X\u0304\u0323", "\u0113\u0301", "I\u0307"]
STRANGE += ["\u1e13\u0323\u0301", "\uff76\uff9e", "\u30ab\u3099", "\u0915\u093c", "\u0e01\u0e33"]
STRANGE += ["\u1100\u1161\u11a8", "\u05e9\u05bc\u05c1"]
TEXTS = st.lists(st.sampled_from(STRANGE), max_size=12).map("".join)
TEXTS |= st.lists(st.sampled_from(LINES), max_size=2).map(" ".join)
KINDS = {
    "unigram": {},
    "bpe": {"model_type": "bpe"},
    "cased": {"normalization": "nmt_nfkc", "byte_fallback": True, "vocab_size": 900},
    "bpe, cased": {"model_type": "bpe", "normalization": "nfkc", "byte_fallback": True, "vocab_size": 900},
    "folded": {"normalization": "nfkc_cf"},
    "as it is": {"normalization": "identity"},
    "bpe, as it is": {"normalization": "identity", "model_type": "bpe"},
    "wordpiece": {"model_type": "wordpiece"},
    "byte_bpe, cased": {"model_type": "byte_bpe", "normalization": "nfkc"},
}


@functools.cache
def train(**changes):
    return vocabulary_training.train(LINES, CorpusConfig(**{"vocab_size": 600, **changes}))


class Both:
    """Iterable, for `ours, theirs = both`; with a short repr, for Hypothesis."""

    def __init__(self, ours):
        self._both = ours, theirs(ours)

    def __iter__(self):
        return iter(self._both)


@pytest.fixture(scope="module", params=KINDS)
def both(request):
    return Both(train(**KINDS[request.param]))


def theirs(ours) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer_files.files(ours, 512, True)["tokenizer.json"].decode())


def framed(ours, *segments: list[int]) -> list[int]:
    c = ours.special
    return [c.cls, *(id_ for segment in segments for id_ in [*segment, c.sep])]


def test_every_line_of_a_text_has_the_same_ids(both):
    ours, theirs = both
    for form in ("NFC", "NFD"):
        lines = [unicodedata.normalize(form, line) for line in LINES]
        found = [line.ids for line in theirs.encode_batch(lines)]
        assert found == [framed(ours, ids) for ids in ours.encode(lines)]


@given(TEXTS)
@example("")
@example("   ")
@example("\u00c9te\u0301 J\u030c")
@example("4444 444")
@example("\u0301\uff9e\U0001d400")
@example("\u0001a")
@example("\u008fa\u009f")
@example("a\u000bb\u001cc\u0085d")
@settings(max_examples=150)
def test_every_text_has_the_same_ids(both, text):
    ours, theirs = both
    assert theirs.encode(text).ids == framed(ours, ours.encode([text])[0])


def test_rare_white_space_is_a_space_as_in_prepared_text():
    ours = train()
    (expected,) = ours.encode(["a model is a line"])
    text = "a\u000bmodel\u001cis\u0085a\u2028line"
    assert ours.encode([text]) == [expected]
    assert theirs(ours).encode(text).ids == framed(ours, expected)


def test_pairs_are_two_segments(both):
    ours, theirs = both
    first, second = ours.encode(LINES[:2])
    found = theirs.encode(*LINES[:2])
    assert found.ids == framed(ours, first, second)
    assert found.type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)


def test_decoding_gives_the_same_text(both):
    ours, theirs = both
    for ids in ours.encode(LINES):
        if ours.special.unk not in ids:  # each library has its own sign for that
            assert theirs.decode(ids).strip() == ours.decode(ids)


def test_the_mask_in_a_text_is_the_mask_there_and_text_here(both):
    ours, theirs = both
    assert ours.special.mask in theirs.encode("a [MASK] line").ids
    assert ours.special.mask not in ours.encode(["a [MASK] line"])[0]


def test_scores_are_sums_without_rounding():
    """So that ties are ties in any precision and any order."""
    pieces = spm.SentencePieceProcessor(model_proto=train().model)
    scores = [pieces.get_score(i) for i in range(pieces.get_piece_size())]
    assert all(score * 128 == round(score * 128) for score in scores)
    assert len(set(scores)) > 150


def test_files_name_what_transformers_must_know():
    ours = train()
    for segments in (True, False):
        files = tokenizer_files.files(ours, 512, segments)
        described = json.loads(files["tokenizer_config.json"])
        assert described["model_max_length"] == 512
        assert ("token_type_ids" in described["model_input_names"]) == segments
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        assert json.loads(files["special_tokens_map.json"]) == {**names, "mask_token": "[MASK]"}
        assert files["spiece.model"] == ours.model


def write(folder, files):
    for name, content in files.items():
        (folder / name).write_bytes(content)


def test_a_vocabulary_comes_back_as_it_went(tmp_path):
    ours = train()
    assert tokenizer_files.load(tmp_path) is None
    write(tmp_path, tokenizer_files.files(ours, 512, True))
    found = tokenizer_files.load(tmp_path)
    assert (found.tokenizer.model, found.notes) == (ours.model, ())
    (tmp_path / "spiece.model").unlink()
    again = tokenizer_files.load(tmp_path).tokenizer
    assert again.encode(LINES) == ours.encode(LINES)
    assert again.special == ours.special
    assert [again.name_of(i) for i in range(len(again))] == [ours.name_of(i) for i in range(len(ours))]
    assert (again.word_starts == ours.word_starts).all()


def test_what_transformers_does_otherwise_is_noted(tmp_path):
    ours = train(model_type="wordpiece")
    write(tmp_path, tokenizer_files.files(ours, 512, True))
    path, settings = tmp_path / "tokenizer.json", {"tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert tokenizer_files.load(tmp_path).notes == ()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "truncation_side": "left"}))
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": None}))
    assert tokenizer_files.load(tmp_path).notes == (
        "tokenizer_config.json cuts long texts off at their beginning; they are cut off at their end here",
        "tokenizer.json puts other special tokens around a text; [CLS] and [SEP] are used here",
    )


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "model", "##s", "The", "."]


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces_of_a_released_model(tmp_path, lowercase):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    ours = tokenizer_files.load(tmp_path).tokenizer
    assert ours.encode(["The models."]) == [[5 if lowercase else 8, 6, 7, 9]]
    assert theirs(ours).encode("The models.", "the").ids == [2, 5 if lowercase else 8, 6, 7, 9, 3, 5, 3]


@pytest.mark.parametrize(("said", "expected"), [({"do_lower_case": False}, "M\u00fcn"), ({}, "mun")])
def test_a_list_of_word_pieces_is_read_as_the_file_beside_it_says(tmp_path, said, expected):
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, "M\u00fcn", "mun", "m\u00fcn"]) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    path = tokenizer_files.find(tmp_path)
    for fold_case in (True, False):
        assert (
            tokenizer.load(path, fold_case).decode(tokenizer.load(path, fold_case).encode(["M\u00fcn"])[0]) == expected
        )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"strip_accents": False}))
    assert tokenizer.load(path).encode(["M\u00fcn"]) == [[len(WORDS) + 2]]
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer_config\.json is not valid JSON"):
        tokenizer.load(path)


def test_byte_level_pieces_as_those_of_modernbert(tmp_path):
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(LINES, trainer)
    model.save(str(tmp_path / "tokenizer.json"))
    ours = tokenizer_files.load(tmp_path).tokenizer
    ids = ours.encode(["a line of text"])[0]
    assert [word for word, _ in ours.words(ids)] == ["a", "line", "of", "text"]
    assert theirs(ours).encode("a line of text").ids == framed(ours, ids)
    assert ours.decode(ids) == "a line of text"


def test_a_mask_that_takes_in_the_space_before_it_still_does():
    model = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", tokenizers.AddedToken("[MASK]", lstrip=True, special=True)]
    trainer = tokenizers.trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    model.train_from_iterator(["a b"], trainer)
    ours = tokenizer.Library(model.to_str().encode())
    before, after = ours.encode(["a", " b"])
    assert theirs(ours).encode("a [MASK] b").ids == framed(ours, [*before, ours.special.mask, *after])


def foreign(**options):
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, vocab_size=400, minloglevel=2, **options
    )
    return tokenizer.SentencePiece(model.getvalue())


@pytest.mark.parametrize(
    "options",
    [
        {"add_dummy_prefix": False},
        {"remove_extra_whitespaces": False},
        {"split_by_whitespace": False},
        {"user_defined_symbols": ["<url>", "(", "/"], "control_symbols": ["<task>"]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_models_that_others_trained(options):
    """Their scores are not rounded, and some have ties, so the tokenizer that is exported is the one to train with."""
    ours = proof.settle(foreign(**options)).tokenizer
    there = theirs(ours)
    lines = [line.replace(" of ", " <url>, (") for line in LINES]
    assert [found.ids[1:-1] for found in there.encode_batch(lines)] == ours.encode(lines)


@pytest.mark.parametrize("options", [{"model_type": "word"}, {"treat_whitespace_as_suffix": True}], ids=str)
def test_models_that_have_no_equal_are_refused(options):
    with pytest.raises(UserError, match="cannot express this SentencePiece model: expected unigram"):
        tokenizer_files.files(foreign(**options), 512, True)
