"""Vocabularies as the tokenizer files of a Hugging Face directory, with the same ids for every text; and back."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from electra_jax.config.errors import UserError
from electra_jax.data import sentencepiece_proto as proto
from electra_jax.data import tokenizer
from electra_jax.data.tokenizer import WORD_START, Library, SentencePiece, Tokenizer

_SENTENCEPIECE_FILE = "spiece.model"  # what ALBERT and others call it
_FILES = (_SENTENCEPIECE_FILE, Library.file, "vocab.txt")  # the first that is there is read
_SPECIAL_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")  # in the order of `Special`

# The library's `Precompiled` looks up a letter and its marks together if they are few bytes, and then takes the
# shortest entry that fits, so that a capital loses its accent. A noncharacter between them keeps them apart. (At the
# beginning of a text the library panics over it.)
_APART = "\ufdd0"
_REMOVED = r"[\x01-\x08\x0b\x0e-\x1f\x7f\x8f\x9f]"  # by nmt_*; at a text's beginning the library panics over them
_MARKS = r"(?<=[\s\S])(?=[\p{M}\u200c\u200d\u0e33\u0eb3])"  # all that a letter draws to itself (grapheme clusters)


def files(vocabulary: Tokenizer, max_length: int, segments: bool) -> dict[str, bytes]:
    """The content of each tokenizer file, by its name.

    In one thing these differ from `vocabulary` on purpose: a special token written in a text, as "[MASK]", is that
    token there, as users of `fill-mask` expect, and text here. And a byte piece, "<0x41>", written in a text is that
    piece there.

    Args:
      vocabulary: SentencePiece or of the tokenizers library.
      max_length: positions of the model, special tokens included.
      segments: whether the model reads segment ids.

    Raises:
      UserError: a SentencePiece model of a kind that `tokenizer.json` has no equal of.
    """
    result = {}
    if isinstance(vocabulary, SentencePiece):
        model = _converted(vocabulary)
        result[_SENTENCEPIECE_FILE] = vocabulary.model
    else:
        model = tokenizers.Tokenizer.from_str(vocabulary.model.decode())
        model.no_padding()
        model.no_truncation()
    names = {role: model.id_to_token(id_) for role, id_ in zip(_SPECIAL_NAMES, vocabulary.special, strict=True)}
    model.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names.values()])
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


def find(folder: Path) -> Path | None:
    """The file in a Hugging Face directory that `config.data.vocabulary` can name; None where there is none."""
    return next((path for name in _FILES if (path := folder / name).is_file()), None)


def load(folder: Path) -> Tokenizer | None:
    """The vocabulary of a Hugging Face directory, None where it has none."""
    path = find(folder)
    return None if path is None else tokenizer.load(path)


def _converted(vocabulary: SentencePiece) -> tokenizers.Tokenizer:
    """A SentencePiece model in the tokenizers library."""
    spm = proto.parse(vocabulary.model)
    if spm.trainer_spec.model_type not in (proto.UNIGRAM, proto.BPE) or spm.trainer_spec.treat_whitespace_as_suffix:
        raise UserError(
            "this SentencePiece model is neither unigram nor BPE, or writes spaces behind words; tokenizer.json has no "
            "equal of it; train with another vocabulary"
        )
    result = tokenizers.Tokenizer(_model(spm))
    result.normalizer = normalizers.Sequence(_normalizers(spm.normalizer_spec, vocabulary.normalization))
    if not any(WORD_START in piece.piece[1:] for piece in spm.pieces):  # else pieces may go over a space
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
    # SentencePiece merges, of all neighbours that are a piece together, those of the best score: no list of merges.
    usable = {piece.piece: -piece.score for piece in spm.pieces if piece.type == proto.NORMAL}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(usable, key=lambda piece: (usable[piece], ids[piece]))
        for cut in range(1, len(piece))
        if piece[:cut] in usable and piece[cut:] in usable
    ]
    return models.BPE(ids, merges, unk_token=spm.pieces[unknown].piece, fuse_unk=True, byte_fallback=byte_fallback)


def _normalizers(spec: Any, normalization: str) -> list[normalizers.Normalizer]:
    """What `tokenizer.compose` and then the model do to a text.

    (But for a mark behind a character that becomes several letters, as the ligature of f and i does: SentencePiece
    leaves it as it is, here it joins the last letter.)
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
        # \A and \z: in this syntax ^ and $ are of every line. Behind a text its own sign for a space goes as well.
        steps += [normalizers.Replace(Regex(rf"\A +|[ {WORD_START}]+\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(WORD_START))
    return [*steps, normalizers.Replace(" ", WORD_START)] if spec.escape_whitespaces else steps
