"""Vocabularies of other people's making: read as transformers reads them, or refused."""

import io
import json
from types import SimpleNamespace

import made_text
import pytest
import sentencepiece as spm
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from electra_jax.config.errors import UserError
from electra_jax.data import converted, proof, sentencepiece_proto, tokenizer, vocabulary_training
from electra_jax.data.config import CorpusConfig
from electra_jax.data.proof import settle
from electra_jax.data.vocabulary import read
from electra_jax.modeling.model_config import ModelConfig
from electra_jax.objectives import registry
from electra_jax.objectives.spec import ObjectiveConfig

LINES = made_text.make_lines(300)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "the", "model", "##s", "e", "##1", "<", ">", "1"]


def trained(vocab_size=200, **options) -> bytes:
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, vocab_size=vocab_size, minloglevel=2, **options
    )
    return model.getvalue()


def write(folder, name="vocab.txt", content=None, **beside):
    """A vocabulary file with JSON files beside it, by their names without suffix."""
    (folder / name).write_bytes(content or ("\n".join(WORDS) + "\n").encode())
    for stem, value in beside.items():
        (folder / f"{stem}.json").write_text(json.dumps(value))
    return folder / name


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_symbols_that_a_user_defined_keep_the_spaces_around_them(model_type):
    ours = tokenizer.SentencePiece(trained(model_type=model_type, user_defined_symbols=["(", ")", "<num>"]))
    lines = ["a model (in a line) of text.", "<num><num> (a)(b)", "the<num>the", "( a )"]
    assert proof.first_difference(ours, converted.convert(ours), lines) is None
    pieces = [ours.name_of(id_) for id_ in ours.encode(["a (the)"])[0]]
    assert pieces[pieces.index("(") - 1] == "\u2581"


def test_a_model_with_ties_is_replaced_by_the_form_that_exports_have():
    model = sentencepiece_proto.parse(trained())
    for number, piece in enumerate(("\u2020", "\u2020\u2020", "\u2020\u2020\u2020")):
        model.pieces[10 + number].piece, model.pieces[10 + number].score = piece, -1.1 - 0.1 * number
    found = tokenizer.SentencePiece(model.SerializeToString())
    text, *_ = proof.first_difference(found, converted.convert(found), proof.lines(found))
    settled = settle(found)
    assert settled.tokenizer.encode([text]) == [converted.convert(found).encode(text).ids] != found.encode([text])
    assert f"differ: {text!r} is " in settled.notes[0]


def test_own_models_are_left_as_they_are():
    ours = vocabulary_training.train(LINES, CorpusConfig(vocab_size=200))
    assert settle(ours) == (ours, ())


def test_added_tokens_are_tokens(tmp_path):
    token = {"content": "<e1>", "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    both = {"added_tokens_decoder": {"0": {**token, "content": "[PAD]"}, str(len(WORDS)): {**token, "special": True}}}
    for beside in ({"added_tokens": {"<e1>": len(WORDS)}}, {"tokenizer_config": both}):
        folder = tmp_path / next(iter(beside))
        folder.mkdir()
        found = read(write(folder, **beside)).tokenizer
        assert len(found) == len(WORDS) + 1
        assert found.encode(["the <e1> models"]) == [[5, len(WORDS), 6, 7]]
    with pytest.raises(UserError, match=r"adds <e1> as token 99, but after the pieces of vocab\.txt it is 13"):
        read(write(tmp_path, added_tokens={"<e1>": 99}))
    with pytest.raises(UserError, match=r"has the as token 3, but in vocab\.txt it is 5"):
        read(write(tmp_path, added_tokens={"the": 3}))


@pytest.mark.parametrize(
    "beside",
    [
        {"added_tokens": {"<e1>": "x"}},
        {"added_tokens": {"<e1>": None}},
        {"tokenizer_config": {"added_tokens_decoder": ["<e1>"]}},
        {"tokenizer_config": {"added_tokens_decoder": {"13": {"lstrip": True}}}},
        {"tokenizer_config": {"added_tokens_decoder": {"13": "<e1>"}}},
    ],
)
def test_added_tokens_in_another_form_are_refused(tmp_path, beside):
    with pytest.raises(UserError, match=r"\.json has added tokens in another form .*: expected texts with their ids"):
        read(write(tmp_path, **beside))


def test_added_tokens_of_a_sentencepiece_model(tmp_path):
    model = trained(model_type="bpe")
    found = read(write(tmp_path, "spm.model", model, added_tokens={"[PAD]": 200, "[MASK]": 201}))
    plain = tokenizer.SentencePiece(model)
    assert plain.special.pad == 200, "special tokens that it lacks come first"
    assert found.tokenizer.model == plain.model
    more = {"<e1>": len(plain)}
    found = read(write(tmp_path, "spm.model", model, added_tokens=more)).tokenizer
    assert found.encode(["a <e1> line"])[0].count(len(plain)) == 1
    assert found.special == plain.special


def test_a_tokenizer_json_is_read_with_what_stands_beside_it(tmp_path):
    """As by transformers, whose BERT classes take settings from there, and all classes tokens."""
    lowercase = tokenizers.BertWordPieceTokenizer(str(write(tmp_path, content="\n".join([*WORDS, "The"]).encode())))
    made = lowercase.to_str().encode()
    kinds = {"BertTokenizerFast": False, "PreTrainedTokenizerFast": True}
    for kind, lowers in kinds.items():
        settings = {"tokenizer_class": kind, "do_lower_case": False}
        # Of the model's own file only the class is read.
        path = write(tmp_path, "tokenizer.json", made, config={"do_lower_case": True}, tokenizer_config=settings)
        assert read(path).tokenizer.encode(["The the"]) == [[5 if lowers else len(WORDS), 5]]
    more = {str(len(WORDS) + 1): {"content": "<e1>"}}
    found = read(write(tmp_path, "tokenizer.json", made, tokenizer_config={"added_tokens_decoder": more})).tokenizer
    assert found.encode(["the <e1>"]) == [[5, len(WORDS) + 1]]


def test_a_vocabulary_with_other_special_tokens_than_those_that_are_read_is_refused(tmp_path):
    words = "\n".join([*WORDS, "<s>"]).encode()
    with pytest.raises(UserError, match=r"has both <s>, which tokenizer_config\.json gives as cls_token, and \[CLS\]"):
        read(write(tmp_path, content=words, tokenizer_config={"cls_token": {"content": "<s>"}}))
    words = "\n".join(["<unk>" if word == "[UNK]" else word for word in WORDS]).encode()
    assert read(write(tmp_path, content=words, tokenizer_config={"unk_token": "<unk>"})).tokenizer.special.unk == 1


def test_tokens_that_a_tokenizer_json_adds_are_found_in_text():
    made = tokenizers.Tokenizer(models.WordLevel({**{name: i for i, name in enumerate(SPECIAL)}, "a": 5}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens([*SPECIAL, "<e1>"])
    found = tokenizer.Library(made.to_str().encode())
    assert found.encode(["a <e1> [MASK]"]) == [[5, 6, 1, 1, 1]], "[MASK] in a text is text"


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("vocab.txt", {"tokenizer_config": {"tokenizer_class": "BertJapaneseTokenizer"}}),
        ("vocab.txt", {"config": {"tokenizer_class": "RoFormerTokenizer"}}),
        ("spiece.model", {"tokenizer_config": {"tokenizer_class": "AlbertTokenizer"}}),
        ("spm.model", {"tokenizer_config": {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": True}}),
    ],
)
def test_a_file_that_another_tokenizer_reads_is_refused(tmp_path, name, beside):
    content = None if name == "vocab.txt" else trained()
    with pytest.raises(UserError, match=r"(belongs to|is read by) transformers' .*: save its tokenizer\.json"):
        read(write(tmp_path, name, content, **beside))


def test_the_tokenizer_json_beside_a_sentencepiece_model_is_what_is_read_where_they_differ(tmp_path):
    path = write(tmp_path, "spiece.model", trained(model_type="bpe"))
    other = converted.convert(tokenizer.SentencePiece(trained(model_type="bpe", vocab_size=150)))
    other.save(str(tmp_path / "tokenizer.json"))
    found = read(path)
    assert isinstance(found.tokenizer, tokenizer.Library)
    assert found.notes[0] == "tokenizer.json is read, not spiece.model"


def without_marks() -> tokenizer.Library:
    """BPE as in the library's quick tour: spaces are gone before pieces are made."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=120, special_tokens=SPECIAL, show_progress=False))
    return tokenizer.Library(made.to_str().encode())


def test_pieces_that_do_not_show_where_words_begin():
    found = settle(without_marks())
    assert not found.tokenizer.marks_words
    assert found.tokenizer.word_starts.all()
    assert "whole-word" in found.notes[0]
    with pytest.raises(UserError, match=r"whole_words=true is invalid with this vocabulary"):
        registry.make_for_text(
            ObjectiveConfig(whole_words=True), ModelConfig(), 1, SimpleNamespace(tokenizer=found.tokenizer)
        )
    assert tokenizer.SentencePiece(trained()).marks_words


def test_a_vocabulary_that_cannot_be_exported_is_said_to_be_one():
    assert "cannot be exported" in settle(tokenizer.SentencePiece(trained(model_type="char"))).notes[0]


def test_lines_that_follow_another_one_have_the_space_between_them():
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["a b"], trainer)
    byte_level = tokenizer.Library(made.to_str().encode())
    prefixless = tokenizer.SentencePiece(trained(add_dummy_prefix=False))
    for ours in (byte_level, prefixless, tokenizer.SentencePiece(trained()), without_marks()):
        parts = ours.encode_parts(["the line", "of text", "the"], [False, True, False])
        assert [*parts[0], *parts[1]] == ours.encode(["the line of text"])[0]
        assert parts[2] == ours.encode(["the"])[0]
