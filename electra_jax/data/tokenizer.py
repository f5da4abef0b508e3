"""Tokenizers with one interface: SentencePiece models, trained here or elsewhere, and the tokenizers library's."""

import abc
import functools
import json
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sentencepiece as spm
import tokenizers

from electra_jax.config.errors import UserError, first_line
from electra_jax.data import sentencepiece_proto
from electra_jax.data.normalization import compose, places, trim
from electra_jax.runtime.io import read_json


class Special(NamedTuple):
    """Ids of the special tokens."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


# Ids in the vocabularies trained here. PAD is 0, as in BERT's and ELECTRA's vocabularies.
OWN = PAD, UNK, CLS, SEP, MASK = Special(*range(5))
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Their names in other models, in the order of `Special`; the first name that a model has is used.
_NAMES = (
    ("[PAD]", "<pad>"),
    ("[UNK]", "<unk>"),
    ("[CLS]", "<cls>", "<s>"),
    ("[SEP]", "<sep>", "</s>"),
    ("[MASK]", "<mask>"),
)
WORD_START = "\u2581"  # SentencePiece's space
_BYTE_LEVEL_START = "\u0120"  # the space of byte-level BPE (GPT-2's), which writes bytes as printable characters
_LEAD = "a "


class Tokenizer(abc.ABC):
    """A tokenizer, which converts text to ids and back.

    Attributes:
      file: name of its file in a corpus or run folder.
      model: content of that file.
      special: ids of the special tokens.
      word_starts: [V] bool, whether each piece begins a word; if pieces do not show it, True for every piece.
      marks_words: whether pieces show where words begin.
    """

    file: str
    model: bytes
    special: Special
    word_starts: np.ndarray
    marks_words: bool
    _spoken: Set[int] = frozenset()  # special tokens that a text may spell out

    def __len__(self) -> int:
        return len(self.word_starts)

    @abc.abstractmethod
    def encode(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Encodes each line as ids, without special tokens."""

    @abc.abstractmethod
    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encodes a text as `encode` does, and locates each id in the text.

        Returns:
          (ids, for each id the characters [begin, end) of `text` that it encodes, without spaces around them). If
          several pieces encode one character, each has that character; for a piece of white space begin = end.
        """

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Decodes ids to the text that they encode."""

    @abc.abstractmethod
    def name_of(self, id_: int) -> str:
        """Returns the piece with this id."""

    @functools.cached_property
    def _lead(self) -> int:
        """Number of pieces of `_LEAD`, which precedes parts that follow another one; 0 if every part begins a word."""
        alone, after = self.encode(["a", f"{_LEAD}a"])
        # A lead whose ids change with what follows cannot be cut off again.
        return 0 if after == 2 * alone or after[: len(alone)] != alone else len(alone)

    def encode_parts(self, parts: Sequence[str], follows: Sequence[bool], threads: int = 1) -> list[list[int]]:
        """Encodes lines or words one by one, with the ids that they have in the whole text.

        Args:
          parts: the parts.
          follows: for each part, whether it follows another after a space. Some tokenizers encode the space with it.
          threads: as for `encode`.
        """
        if not self._lead:
            return self.encode(parts, threads)
        led = [_LEAD + part if after else part for part, after in zip(parts, follows, strict=True)]
        ids = self.encode(led, threads)
        return [each[self._lead :] if after else each for each, after in zip(ids, follows, strict=True)]

    def _find_spoken(self) -> None:
        """Sets `_spoken`: some models encode the text "[MASK]" as the special token."""
        # A text may well be encoded as [UNK].
        special = {*self.special} - {self.special.unk}
        self._spoken = {id_ for id_ in special if id_ in self.encode([self.name_of(id_)])[0]}

    def _without_special(self, rows: list[list[int]]) -> list[list[int]]:
        """Replaces special tokens that a text spells out by unknown tokens: only training may mask."""
        if not self._spoken:
            return rows
        return [[self.special.unk if i in self._spoken else i for i in row] for row in rows]

    def _mark_words(self) -> None:
        """Sets `marks_words`; if no piece is marked as the beginning of a word, `word_starts` becomes True for all."""
        self.marks_words = bool(self.word_starts.any())
        if not self.marks_words:
            self.word_starts = np.ones_like(self.word_starts)

    def words(self, ids: Sequence[int]) -> list[tuple[str, slice]]:
        """Returns the words in `ids` as (text, slice of `ids`), without special tokens."""
        words: list[tuple[str, slice]] = []
        start = None
        unspoken = {*self.special} - {self.special.unk}
        # The [SEP] behind the last id ends the last word.
        for i, token in enumerate([*map(int, ids), self.special.sep]):
            special = token in unspoken
            begins = special or self.word_starts[token]
            if begins and start is not None:
                words.append((self.decode(ids[start:i]), slice(start, i)))
            if begins or start is None:
                start = None if special else i
        return words


class SentencePiece(Tokenizer):
    """A SentencePiece model. Special tokens that it lacks are added after its own pieces.

    Text goes through `compose` first, unless the model does not normalize it.
    """

    file = "vocab.model"

    def __init__(self, model: bytes, name: str = "vocabulary"):
        """Raises UserError if `model`, read from the file `name`, is not a SentencePiece model."""
        try:
            message = sentencepiece_proto.parse(model)
            self._processor = spm.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{name} is not a SentencePiece model ({error}); use a file made by its trainer") from error
        self.model, own = model, len(message.pieces)
        self.special = _complete(message, self._processor)
        # A loaded model takes no more pieces.
        if len(message.pieces) > own:
            self.model = message.SerializeToString()
            self._processor = spm.SentencePieceProcessor(model_proto=self.model)
        normalizer = message.normalizer_spec
        # Without compiled rules the model normalizes nothing, whatever their name.
        self.normalization: str = normalizer.name if normalizer.precompiled_charsmap else "identity"
        pieces = [self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size())]
        self.word_starts = np.array([piece.startswith(WORD_START) for piece in pieces])
        self._mark_words()
        self._find_spoken()
        self._bytes = {i for i in range(len(pieces)) if self._processor.is_byte(i)}

    def encode(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        composed = [compose(line, self.normalization) for line in lines]
        ids: list[list[int]] = self._processor.encode(composed, out_type=int, num_threads=threads)
        return self._without_special(ids)

    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        # Not from the library's immutable proto: its offsets are characters in some versions and bytes in others.
        # Pieces are parts of the normalized text, whose offsets are characters in all versions.
        composed = compose(text, self.normalization)
        normal, offsets = self._processor.normalize(composed, with_offsets=True)
        ends = list(offsets[1:])
        for k in range(len(normal) - 2, -1, -1):
            # A character normalized to several: all end where it ends. The space added before a text is not part of it.
            if ends[k] == offsets[k] and normal[k] not in (WORD_START, " "):
                ends[k] = ends[k + 1]
        origins = places(text, composed, self.normalization)
        (ids,) = self.encode([text])
        spans, at = [], 0
        for id_, piece in zip(ids, self._processor.encode(composed, out_type=str), strict=True):
            if id_ not in self._bytes:
                first, at = at, at + len(piece)
            else:  # a byte such as "<0xE4>"; all bytes of a character but the first are 0b10......
                at += int(piece[3:5], 16) >> 6 != 0b10
                first = at - 1
            begin, end = offsets[first], ends[at - 1]
            if end > begin:
                spans.append(trim(text, origins[begin][0], origins[end - 1][1]))
            else:
                spans.append((origins[begin][0],) * 2)
        return ids, spans

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._processor.decode([int(i) for i in ids]))

    def name_of(self, id_: int) -> str:
        return str(self._processor.id_to_piece(id_))


class Library(Tokenizer):
    """A tokenizer of the tokenizers library: WordPiece of BERT and ELECTRA, or byte-level BPE of ModernBERT."""

    file = "tokenizer.json"

    def __init__(self, model: bytes, name: str = "vocabulary"):
        """Raises UserError if `model`, read from the file `name`, is not a tokenizer.json with special tokens."""
        try:
            described = json.loads(model)
            self._tokenizer = tokenizers.Tokenizer.from_str(model.decode())
        except BaseException as error:  # the library raises Exception itself, and for a damaged normalizer it panics
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            reason = first_line(error)
            raise UserError(
                f"{name} is not a tokenizer.json ({reason}); save it with the tokenizers library"
            ) from error
        self.model = model
        ids = self._tokenizer.get_vocab()
        missing = [names[0] for names in _NAMES if not ids.keys() & set(names)]
        if missing:
            raise UserError(f"{name} has no {' '.join(missing)}; add a line for each to the vocabulary")
        self.special = Special(*(next(ids[name] for name in names if name in ids) for names in _NAMES))
        added = described.get("added_tokens") or ()
        # `encode_special_tokens`, set below, makes the library encode special tokens in a text as plain text.
        if any(token["special"] and token["id"] not in self.special for token in added):
            for token in added:  # all but those of `special` are tokens wherever a text has them
                token["special"] = token["id"] in self.special
            self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(described))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        # "[MASK]" in a text is text.
        self._tokenizer.encode_special_tokens = True
        # After `encode_special_tokens` is set: the model may still have a piece that spells a special token.
        self._find_spoken()
        # Ids may have gaps.
        self.word_starts = np.zeros(max(ids.values()) + 1, bool)
        # WordPiece marks the pieces that continue a word, the others those that begin one.
        continues = described["model"].get("continuing_subword_prefix")
        begins = _BYTE_LEVEL_START if "ByteLevel" in json.dumps(described.get("pre_tokenizer")) else WORD_START
        # A token is a word, and has no mark.
        if described["model"].get("type") == "WordLevel":
            self.word_starts[:] = True
        for piece, id_ in ids.items():
            self.word_starts[id_] |= not piece.startswith(continues) if continues else piece.startswith(begins)
        self._mark_words()

    def encode(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        del threads  # the library has its own thread pool, see TOKENIZERS_PARALLELISM
        ids = [line.ids for line in self._tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)]
        return self._without_special(ids)

    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        (ids,) = self._without_special([encoded.ids])
        return ids, [trim(text, begin, end) for begin, end in encoded.offsets]

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False).strip()

    def name_of(self, id_: int) -> str:
        return self._tokenizer.id_to_token(id_) or ""


def load(path: Path, fold_case: bool = True) -> Tokenizer:
    """Loads the tokenizer in a file: a SentencePiece model, a tokenizer.json, or a vocab.txt of WordPieces, one a line.

    Args:
      path: the file.
      fold_case: for a vocab.txt, whether to lowercase text and remove accents (the reference's `do_lower_case`). A
        tokenizer_config.json of transformers in the same folder takes precedence.

    Raises:
      UserError: the file is missing or has another format.
    """
    if not path.is_file():
        raise UserError(f"vocabulary={path} is not a file: expected a SentencePiece model, tokenizer.json or vocab.txt")
    if path.suffix == ".json":
        return Library(path.read_bytes(), str(path))
    if path.suffix == ".txt":
        config_file = path.with_name("tokenizer_config.json")
        config = read_json(config_file) if config_file.is_file() else {"do_lower_case": fold_case}
        try:
            pieces = path.read_text(encoding="utf-8").splitlines()
            word_pieces = tokenizers.BertWordPieceTokenizer(
                str(path),
                unk_token=next((name for name in _NAMES[1] if name in pieces), _NAMES[1][0]),
                lowercase=bool(config.get("do_lower_case", True)),
                strip_accents=config.get("strip_accents"),
                handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
            )
        except Exception as error:
            raise UserError(f"{path} is not a vocab.txt ({first_line(error)}): expected one piece per line") from error
        return Library(word_pieces.to_str().encode(), str(path))
    return SentencePiece(path.read_bytes(), str(path))


def save(vocabulary: Tokenizer, folder: Path) -> None:
    """Writes a tokenizer's file into `folder` and deletes that of any other tokenizer; keeps a file that is equal."""
    path = folder / vocabulary.file
    if path.is_file() and path.read_bytes() == vocabulary.model:
        return
    # `find_file` takes the first of them that there is.
    for kind in (SentencePiece, Library):
        (folder / kind.file).unlink(missing_ok=True)
    path.write_bytes(vocabulary.model)


def load_from_folder(folder: Path) -> Tokenizer:
    """Loads the tokenizer that `save` wrote into `folder`.

    Raises:
      UserError: there is none.
    """
    path = find_file(folder)
    if path is None:
        raise UserError(f"{folder} has no vocabulary: expected {SentencePiece.file} or {Library.file}")
    return load(path)


def find_file(folder: Path) -> Path | None:
    """Returns the file that `save` wrote into `folder`, or None."""
    return next((path for kind in (SentencePiece, Library) if (path := folder / kind.file).is_file()), None)


def _complete(model: Any, processor: spm.SentencePieceProcessor) -> Special:
    """Adds missing special tokens to the message `model` as control pieces; returns the ids of all of them."""
    ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
    # UNK is the model's own unknown piece; the others are looked up by name, then by role.
    roles = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id(), -1)
    special = []
    for names, role in zip(_NAMES, roles, strict=True):
        known = next((ids[name] for name in names if name in ids), role)
        known = role if role == processor.unk_id() else known
        if known < 0:
            known = len(model.pieces)
            model.pieces.add(piece=names[0], score=0, type=sentencepiece_proto.CONTROL)
        special.append(known)
    return Special(*special)
