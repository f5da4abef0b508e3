"""Converts vocabularies to the tokenizers library, with which transformers reads exports."""

import re
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from electra_jax.config.errors import UserError
from electra_jax.data import sentencepiece_proto as proto
from electra_jax.data.normalization import SPACES, WIDE_MARKS
from electra_jax.data.tokenizer import WORD_START, SentencePiece, Tokenizer

# The library's `Precompiled` looks up a letter together with its marks if they are few bytes, and then takes the
# shortest matching entry, so that a capital loses its accent. A noncharacter between letter and mark prevents that.
# (The library panics on one at the beginning of a text.)
_APART = "\ufdd0"
# By nmt_*; the library panics on them at the beginning of a text. As characters: its r"\x8f" would match a byte.
_REMOVED = "[\x01-\x08\x0b\x0e-\x1f\x7f\x8f\x9f]"
_MARKS = r"(?<=[\s\S])(?=[\p{M}\u200c\u200d\u0e33\u0eb3])"  # joins the letter before it (grapheme clusters)


def convert(vocabulary: Tokenizer) -> tokenizers.Tokenizer:
    """Converts a vocabulary to a tokenizer of the tokenizers library, without padding or truncation.

    Raises:
      UserError: the library cannot express this SentencePiece model.
    """
    if not isinstance(vocabulary, SentencePiece):
        result = tokenizers.Tokenizer.from_str(vocabulary.model.decode())
        result.no_padding()
        result.no_truncation()
        return result
    spm = proto.parse(vocabulary.model)
    if spm.trainer_spec.model_type not in (proto.UNIGRAM, proto.BPE) or spm.trainer_spec.treat_whitespace_as_suffix:
        raise UserError(
            "tokenizer.json cannot express this SentencePiece model: expected unigram or BPE with spaces before words; "
            "train with another vocabulary"
        )
    result = tokenizers.Tokenizer(_model(spm))
    result.normalizer = normalizers.Sequence(_normalizers(spm.normalizer_spec, vocabulary.normalization))
    splits: list[pre_tokenizers.PreTokenizer] = []
    if not any(WORD_START in piece.piece[1:] for piece in spm.pieces):  # otherwise pieces may span a space
        # It only splits: the normalizer writes the space before the text.
        splits.append(pre_tokenizers.Metaspace(prepend_scheme="never"))
    # Longest first: a regular expression takes the first alternative that fits, SentencePiece the longest symbol.
    symbols = sorted((piece.piece for piece in spm.pieces if piece.type == proto.USER_DEFINED), key=len, reverse=True)
    if symbols:  # not as added tokens: the library would normalize what is between two of them as a text of its own
        splits.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, symbols))), "isolated"))
    if splits:
        result.pre_tokenizer = pre_tokenizers.Sequence(splits) if len(splits) > 1 else splits[0]
    result.decoder = decoders.Sequence(
        [decoders.Replace(WORD_START, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    control = [piece.piece for piece in spm.pieces if piece.type == proto.CONTROL]
    result.add_tokens([AddedToken(piece, normalized=False, special=True) for piece in control])
    return result


def _model(spm: Any) -> models.Model:
    unknown = next(i for i, piece in enumerate(spm.pieces) if piece.type == proto.UNKNOWN)
    byte_fallback = spm.trainer_spec.byte_fallback
    if spm.trainer_spec.model_type == proto.UNIGRAM:
        return models.Unigram([(piece.piece, piece.score) for piece in spm.pieces], unknown, byte_fallback)
    ids = {piece.piece: i for i, piece in enumerate(spm.pieces)}
    # SentencePiece has no list of merges: it merges the neighbors that form the piece with the best score.
    usable = {piece.piece: -piece.score for piece in spm.pieces if piece.type == proto.NORMAL}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(usable, key=lambda piece: (usable[piece], ids[piece]))
        for cut in range(1, len(piece))
        if piece[:cut] in usable and piece[cut:] in usable
    ]
    # No merges form a user-defined symbol: it is found as a whole, which ignore_merges makes the library do.
    symbols = any(piece.type == proto.USER_DEFINED and len(piece.piece) > 1 for piece in spm.pieces)
    unk = spm.pieces[unknown].piece
    return models.BPE(ids, merges, unk_token=unk, fuse_unk=True, byte_fallback=byte_fallback, ignore_merges=symbols)


def _normalizers(spec: Any, normalization: str) -> list[normalizers.Normalizer]:
    """Returns the same normalization as `normalization.compose` followed by the model's own.

    One difference remains: a mark after a character that becomes several letters, such as the ligature fi, joins the
    last letter here, but stays separate in SentencePiece.
    """
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Replace(Regex(SPACES), " "))
        steps += [normalizers.Replace(wide, mark) for wide, mark in WIDE_MARKS.items()]
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
        # \A and \z, because ^ and $ match at every line. SentencePiece's symbol for a space is removed at the end too.
        steps += [normalizers.Replace(Regex(rf"\A +|[ {WORD_START}]+\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(WORD_START))
    return [*steps, normalizers.Replace(" ", WORD_START)] if spec.escape_whitespaces else steps
