"""Writes and reads the tokenizer files of a Hugging Face directory, which give the same ids for every text."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from electra_jax.config.errors import UserError
from electra_jax.data import sentencepiece_proto as proto
from electra_jax.data import tokenizer
from electra_jax.data.tokenizer import WORD_START, Library, SentencePiece, Tokenizer
from electra_jax.runtime.io import read_json

_SENTENCEPIECE_FILE = "spiece.model"  # the name that ALBERT and others use
_DEBERTA_FILE = "spm.model"  # DeBERTa's name for the same
_ADDED = "added_tokens.json"  # tokens beyond those of the SentencePiece model, by id
_FILES = (_SENTENCEPIECE_FILE, _DEBERTA_FILE, Library.file, "vocab.txt")  # the first that exists is read
_SPECIAL_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")  # in the order of `Special`

# The library's `Precompiled` looks up a letter together with its marks if they are few bytes, and then takes the
# shortest matching entry, so that a capital loses its accent. A noncharacter between letter and mark prevents that.
# (The library panics on one at the beginning of a text.)
_APART = "\ufdd0"
_REMOVED = r"[\x01-\x08\x0b\x0e-\x1f\x7f\x8f\x9f]"  # by nmt_*; the library panics on them at the beginning of a text
_MARKS = r"(?<=[\s\S])(?=[\p{M}\u200c\u200d\u0e33\u0eb3])"  # what joins the letter before it (grapheme clusters)


def files(vocabulary: Tokenizer, max_length: int, segments: bool, deberta: bool = False) -> dict[str, bytes]:
    """The content of each tokenizer file by its name.

    There are two differences from `vocabulary`. A special token written in a text, such as "[MASK]", becomes that
    token, as users of `fill-mask` expect; `vocabulary` treats it as text. A byte piece written in a text, such as
    "<0x41>", becomes that piece.

    Args:
      vocabulary: the tokenizer.
      max_length: positions of the model, special tokens included.
      segments: whether the model reads segment ids.
      deberta: whether a SentencePiece model gets the name that DeBERTa's tokenizer looks for.

    Raises:
      UserError: tokenizer.json cannot express this SentencePiece model.
    """
    result = {}
    if isinstance(vocabulary, SentencePiece):
        model = _converted(vocabulary)
        result[_DEBERTA_FILE if deberta else _SENTENCEPIECE_FILE] = vocabulary.model
    else:
        model = tokenizers.Tokenizer.from_str(vocabulary.model.decode())
        model.no_padding()
        model.no_truncation()
    names = {role: model.id_to_token(id_) for role, id_ in zip(_SPECIAL_NAMES, vocabulary.special, strict=True)}
    model.add_special_tokens([_special(model, name) for name in names.values()])
    cls, sep = names["cls_token"], names["sep_token"]
    model.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary.special.cls), (sep, vocabulary.special.sep)],
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "model_max_length": max_length,
        "model_input_names": ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    result["tokenizer.json"] = model.to_str(pretty=True).encode()
    result["tokenizer_config.json"] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
    result["special_tokens_map.json"] = (json.dumps(names, indent=2, ensure_ascii=False) + "\n").encode()
    return result


def _special(model: tokenizers.Tokenizer, name: str | None) -> AddedToken:
    """A special token, which takes in the spaces beside it where the model's own does, as ModernBERT's [MASK]."""
    own = next((each for each in model.get_added_tokens_decoder().values() if each.content == name), AddedToken(name))
    spaces = {"lstrip": own.lstrip, "rstrip": own.rstrip, "single_word": own.single_word}
    return AddedToken(name, normalized=False, special=True, **spaces)


def find(folder: Path) -> Path | None:
    """The vocabulary file of a Hugging Face directory; None where it has none."""
    return next((path for name in _FILES if (path := folder / name).is_file()), None)


def load(folder: Path) -> Tokenizer | None:
    """The tokenizer of a Hugging Face directory; None where it has none.

    Raises:
      UserError: it cannot be read, or it gives a special token another id than the directory's added tokens do.
    """
    path = find(folder)
    if path is None:
        return None
    found = tokenizer.load(path)
    added = read_json(folder / _ADDED) if path.name == _DEBERTA_FILE and (folder / _ADDED).is_file() else {}
    ids = {found.name_of(id_): id_ for id_ in found.special}
    for name, id_ in added.items():
        if ids.get(name, id_) != id_:
            raise UserError(
                f"{folder / _ADDED} has {name} as token {id_}, but after the pieces of {_DEBERTA_FILE} it is "
                f"{ids[name]}; add a tokenizer.json and remove {_DEBERTA_FILE}"
            )
    return found


def _converted(vocabulary: SentencePiece) -> tokenizers.Tokenizer:
    """A SentencePiece model in the tokenizers library."""
    spm = proto.parse(vocabulary.model)
    if spm.trainer_spec.model_type not in (proto.UNIGRAM, proto.BPE) or spm.trainer_spec.treat_whitespace_as_suffix:
        raise UserError(
            "tokenizer.json cannot express this SentencePiece model: expected unigram or BPE with spaces before words; "
            "train with another vocabulary"
        )
    result = tokenizers.Tokenizer(_model(spm))
    result.normalizer = normalizers.Sequence(_normalizers(spm.normalizer_spec, vocabulary.normalization))
    if not any(WORD_START in piece.piece[1:] for piece in spm.pieces):  # otherwise pieces may span a space
        result.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    result.decoder = decoders.Sequence(
        [decoders.Replace(WORD_START, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    whole = [piece for piece in spm.pieces if piece.type in (proto.CONTROL, proto.USER_DEFINED)]
    result.add_tokens(
        [AddedToken(piece.piece, normalized=False, special=piece.type == proto.CONTROL) for piece in whole]
    )
    return result


def _model(spm: Any) -> models.Model:
    unknown = next(i for i, piece in enumerate(spm.pieces) if piece.type == proto.UNKNOWN)
    byte_fallback = spm.trainer_spec.byte_fallback
    if spm.trainer_spec.model_type == proto.UNIGRAM:
        return models.Unigram([(piece.piece, piece.score) for piece in spm.pieces], unknown, byte_fallback)
    ids = {piece.piece: i for i, piece in enumerate(spm.pieces)}
    # SentencePiece has no list of merges: it merges the neighbours that form the piece with the best score.
    usable = {piece.piece: -piece.score for piece in spm.pieces if piece.type == proto.NORMAL}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(usable, key=lambda piece: (usable[piece], ids[piece]))
        for cut in range(1, len(piece))
        if piece[:cut] in usable and piece[cut:] in usable
    ]
    return models.BPE(ids, merges, unk_token=spm.pieces[unknown].piece, fuse_unk=True, byte_fallback=byte_fallback)


def _normalizers(spec: Any, normalization: str) -> list[normalizers.Normalizer]:
    """The same normalization as `tokenizer.compose` followed by the model's own.

    One difference remains: a mark after a character that becomes several letters, such as the ligature fi, joins the
    last letter here, and stays apart in SentencePiece.
    """
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps += [normalizers.Replace(wide, mark) for wide, mark in tokenizer.WIDE_MARKS.items()]
        steps.append(normalizers.NFC())
        if normalization.endswith("_cf"):
            steps += [normalizers.Lowercase(), normalizers.NFC()]
        if normalization.startswith("nmt_"):
            steps.append(normalizers.Replace(Regex(_REMOVED), ""))
        steps += [
            normalizers.Replace(Regex(_MARKS), _APART),
            normalizers.Precompiled(spec.precompiled_charsmap),
            normalizers.Replace(_APART, ""),
            normalizers.NFC(),
        ]
    if spec.remove_extra_whitespaces:
        # \A and \z, because ^ and $ match at every line. The model's own sign for a space is removed at the end too.
        steps += [normalizers.Replace(Regex(rf"\A +|[ {WORD_START}]+\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(WORD_START))
    return [*steps, normalizers.Replace(" ", WORD_START)] if spec.escape_whitespaces else steps
