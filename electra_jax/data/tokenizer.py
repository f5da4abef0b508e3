"""Vocabularies: SentencePiece models, trained here or by others, and those of the tokenizers library. One interface."""

import abc
import io
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sentencepiece as spm
import tokenizers

from electra_jax.config.errors import UserError
from electra_jax.data import sentencepiece_proto
from electra_jax.data.config import CorpusConfig
from electra_jax.runtime.io import read_json


class Special(NamedTuple):
    """Ids of the special tokens."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


# In every vocabulary trained here. PAD is 0 as in BERT's and ELECTRA's vocabularies.
OWN = PAD, UNK, CLS, SEP, MASK = Special(*range(5))
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# What other people's models call them, in the order of `Special`; the first that a model has is taken.
_NAMES = (
    ("[PAD]", "<pad>"),
    ("[UNK]", "<unk>"),
    ("[CLS]", "<cls>", "<s>"),
    ("[SEP]", "<sep>", "</s>"),
    ("[MASK]", "<mask>"),
)
WORD_START = "\u2581"  # SentencePiece's space
WIDE_MARKS = {"\uff9e": "\u3099", "\uff9f": "\u309a"}  # marks of half-width kana, and the combining ones that they are
_BYTE_LEVEL_START = "\u0120"  # the space of byte-level BPE (GPT-2's), which writes bytes as printable characters
_TRAINER_THREADS = 4  # a constant: the sums of the EM steps, hence the pieces, depend on it
_WORD = re.compile(r"\S+")
_LONGEST_SENTENCE = 16384  # bytes; the trainer leaves out longer ones
# Scores are rounded to multiples of 1 / this. The best segmentation of a line is found by adding scores, in float32
# here and in float64 in other libraries; these add up without rounding (to 2^17 nats, some 16,000 pieces), so that ties
# are ties for everyone and are broken alike. Unrounded, 1 line in 20,000 of an encyclopedia had other pieces there.
_SCORE_STEPS = 128


class Tokenizer(abc.ABC):
    """Text to ids and back.

    Attributes:
      file: the name it is kept under beside the tokens.
      model: the content of that file.
      special: ids of the special tokens.
      word_starts: [V] bool, which pieces begin a word.
    """

    file: str
    model: bytes
    special: Special
    word_starts: np.ndarray

    def __len__(self) -> int:
        return len(self.word_starts)

    @abc.abstractmethod
    def encode(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        """The ids of each line, without special tokens."""

    @abc.abstractmethod
    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, as `encode` gives them, and where in it each stands.

        Returns:
          (ids, for each the characters [begin, end) of `text` that it stands for, spaces around them left out). Pieces
          of one character all have that character; a piece that is nothing but space has begin = end.
        """

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids."""

    @abc.abstractmethod
    def name_of(self, id_: int) -> str:
        """The piece with this id."""

    def words(self, ids: Sequence[int]) -> list[tuple[str, slice]]:
        """Splits ids at the pieces that start a word: (text, where it stands in `ids`), special tokens left out."""
        words: list[tuple[str, slice]] = []
        start = None
        unspoken = {*self.special} - {self.special.unk}
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

    Where the model normalises text, it is given text that `compose` has been over.
    """

    file = "vocab.model"

    def __init__(self, model: bytes, name: str = "vocabulary"):
        """Raises UserError where `model` is no SentencePiece model."""
        try:
            message = sentencepiece_proto.parse(model)
            self._processor = spm.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{name} is no SentencePiece model ({error})") from error
        self.model, own = model, len(message.pieces)
        self.special = _complete(message, self._processor)
        if len(message.pieces) > own:
            self.model = message.SerializeToString()
            self._processor = spm.SentencePieceProcessor(model_proto=self.model)
        normalizer = message.normalizer_spec
        self.normalization: str = normalizer.name if normalizer.precompiled_charsmap else "identity"
        pieces = [self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size())]
        self.word_starts = np.array([piece.startswith(WORD_START) for piece in pieces])
        # Some models make "[MASK]" of a text the token; here it is then unknown, as what only training may put there.
        special = {*self.special} - {self.special.unk}
        self._spoken = {i for i in special if i in self._processor.encode(pieces[i])}
        self._bytes = {i for i in range(len(pieces)) if self._processor.is_byte(i)}

    def encode(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        composed = [compose(line, self.normalization) for line in lines]
        ids = self._processor.encode(composed, out_type=int, num_threads=threads)
        if not self._spoken:
            return ids
        return [[self.special.unk if i in self._spoken else i for i in line] for line in ids]

    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        # Not by the message of pieces that the library can give: its offsets are characters in some versions and bytes
        # in others. Pieces are parts of the normalized text, whose offsets are characters in all.
        composed = compose(text, self.normalization)
        normal, offsets = self._processor.normalize(composed, with_offsets=True)
        ends = list(offsets[1:])
        for k in range(len(normal) - 2, -1, -1):
            # A character that became several: all end where it does. The space that is put before a text is none of it.
            if ends[k] == offsets[k] and normal[k] not in (WORD_START, " "):
                ends[k] = ends[k + 1]
        places = _places(text, composed, self.normalization)
        (ids,) = self.encode([text])
        found, at = [], 0
        for id_, piece in zip(ids, self._processor.encode(composed, out_type=str), strict=True):
            if id_ not in self._bytes:
                first, at = at, at + len(piece)
            else:  # "<0xE4>", of which a character has several; the first alone is no 0b10......
                at += int(piece[3:5], 16) >> 6 != 0b10
                first = at - 1
            begin, end = offsets[first], ends[at - 1]
            if end > begin:
                found.append(_trim(text, places[begin][0], places[end - 1][1]))
            else:
                found.append((places[begin][0],) * 2)
        return ids, found

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.decode([int(i) for i in ids])

    def name_of(self, id_: int) -> str:
        return self._processor.id_to_piece(id_)


class Library(Tokenizer):
    """A vocabulary of the tokenizers library: the WordPieces of BERT and ELECTRA, the byte-level BPE of ModernBERT."""

    file = "tokenizer.json"

    def __init__(self, model: bytes, name: str = "vocabulary"):
        """Raises UserError where `model` is no `tokenizer.json` of a vocabulary with the special tokens."""
        try:
            described = json.loads(model)
            self._tokenizer = tokenizers.Tokenizer.from_str(model.decode())
        except Exception as error:  # the library raises Exception itself
            raise UserError(f"{name} is no tokenizer.json ({str(error) or type(error).__name__})") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True  # "[MASK]" in a text is text
        self.model = model
        ids = self._tokenizer.get_vocab()
        missing = [names[0] for names in _NAMES if not ids.keys() & set(names)]
        if missing:
            raise UserError(f"{name} lacks {' '.join(missing)}; add such a line to the vocabulary")
        self.special = Special(*(next(ids[name] for name in names if name in ids) for names in _NAMES))
        self.word_starts = np.zeros(max(ids.values()) + 1, bool)
        # WordPiece marks what goes on, the others what begins.
        continues = described["model"].get("continuing_subword_prefix")
        begins = _BYTE_LEVEL_START if "ByteLevel" in json.dumps(described.get("pre_tokenizer")) else WORD_START
        for piece, id_ in ids.items():
            self.word_starts[id_] = not piece.startswith(continues) if continues else piece.startswith(begins)

    def encode(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        del threads  # the library has a pool of its own, see TOKENIZERS_PARALLELISM
        return [line.ids for line in self._tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)]

    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return encoded.ids, [_trim(text, begin, end) for begin, end in encoded.offsets]

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False).strip()

    def name_of(self, id_: int) -> str:
        return self._tokenizer.id_to_token(id_) or ""


def compose(line: str, normalization: str) -> str:
    """`line` with its marks composed (NFC), and in lower case where the normalization folds case.

    What a model's own normalization makes of the rest does not depend on how a mark and the letter before it were
    written, and so can be repeated character by character in `tokenizer.json`: see huggingface/vocabulary.py.
    """
    if normalization == "identity" or line.isascii():
        return line  # the model folds the case of ASCII itself
    for wide, mark in WIDE_MARKS.items():
        line = line.replace(wide, mark)
    return unicodedata.normalize("NFC", line.lower() if normalization.endswith("_cf") else line)


def _places(text: str, composed: str, normalization: str) -> list[tuple[int, int]]:
    """For each character of `composed`, which `compose` made of `text`, and for its end, the characters [begin, end).

    In a word (what is between spaces, which stay) that did not change one by one, each has the whole word.
    """
    if text == composed:
        return [*((i, i + 1) for i in range(len(text))), (len(text), len(text))]

    def parts() -> Iterator[tuple[int, int]]:
        at = 0
        for word, other in zip(_WORD.finditer(text), _WORD.finditer(composed), strict=True):
            yield from ((i, i + 1) for i in range(at, word.start()))
            at = word.end()
            changed = word[0] if word[0] != other[0] and not word[0].isascii() else ""
            if len(word[0]) == len(other[0]) and all(len(compose(letter, normalization)) == 1 for letter in changed):
                yield from ((i, i + 1) for i in range(*word.span()))
            else:
                yield from [word.span()] * len(other[0])
        yield from ((i, i + 1) for i in range(at, len(text)))

    return [*parts(), (len(text), len(text))]


def _trim(text: str, begin: int, end: int) -> tuple[int, int]:
    """[begin, end) of `text` without the spaces around it; what is nothing but space is empty, at its end."""
    inner = text[begin:end].lstrip()
    begin = end - len(inner)
    return begin, begin + len(inner.rstrip())


def load(path: Path, fold_case: bool = True) -> Tokenizer:
    """The vocabulary in a file: a SentencePiece model, a `tokenizer.json`, or a list of WordPieces, one a line (.txt).

    Args:
      path: the file.
      fold_case: what a list does not say: whether text is lowercased, and accents are taken off, first (the reference's
        `do_lower_case`). A `tokenizer_config.json` of transformers beside the list says it instead.

    Raises:
      UserError: there is no such file, or it is no vocabulary.
    """
    if not path.is_file():
        raise UserError(f"vocabulary {path} is no file; give a SentencePiece model, a vocab.txt or a tokenizer.json")
    if path.suffix == ".json":
        return Library(path.read_bytes(), str(path))
    if path.suffix == ".txt":
        beside = path.with_name("tokenizer_config.json")
        said = read_json(beside) if beside.is_file() else {"do_lower_case": fold_case}
        how = {"lowercase": bool(said.get("do_lower_case", True)), "strip_accents": said.get("strip_accents")}
        try:
            read = tokenizers.BertWordPieceTokenizer(
                str(path), **how, handle_chinese_chars=bool(said.get("tokenize_chinese_chars", True))
            )
        except Exception as error:
            raise UserError(f"{path} is no list of WordPieces, one a line ({error})") from error
        return Library(read.to_str().encode(), str(path))
    return SentencePiece(path.read_bytes(), str(path))


def keep(vocabulary: Tokenizer, folder: Path) -> None:
    """Writes a vocabulary into `folder`, if it is not there, and deletes another."""
    path = folder / vocabulary.file
    if path.is_file() and path.read_bytes() == vocabulary.model:
        return
    for kind in (SentencePiece, Library):
        (folder / kind.file).unlink(missing_ok=True)
    path.write_bytes(vocabulary.model)


def kept_in(folder: Path) -> Tokenizer:
    """The vocabulary that `keep` wrote.

    Raises:
      UserError: there is none.
    """
    path = file_in(folder)
    if path is None:
        raise UserError(f"{folder} has no vocabulary ({SentencePiece.file} or {Library.file})")
    return load(path)


def file_in(folder: Path) -> Path | None:
    """The file that `keep` wrote, None where there is none."""
    return next((path for kind in (SentencePiece, Library) if (path := folder / kind.file).is_file()), None)


def train(lines: Iterable[str], config: CorpusConfig) -> SentencePiece:
    """Trains a vocabulary.

    Args:
      lines: the text, a sentence or paragraph each.
      settings: `vocab_size` pieces, the special tokens included; `model_type`; `normalization`; `byte_fallback`,
        whether a character that is no piece becomes its bytes instead of [UNK]; `character_coverage`, the share of the
        text's characters that are pieces.

    Raises:
      UserError: the text is too small for so many pieces.
    """
    model = io.BytesIO()
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=(compose(line, settings.normalization) for line in lines),
            model_writer=model,
            model_type=settings.model_type,
            vocab_size=settings.vocab_size,
            normalization_rule_name=settings.normalization,
            byte_fallback=settings.byte_fallback,
            character_coverage=settings.character_coverage,
            max_sentence_length=_LONGEST_SENTENCE,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=CLS,
            eos_id=SEP,
            pad_piece=SPECIAL_TOKENS[PAD],
            unk_piece=SPECIAL_TOKENS[UNK],
            bos_piece=SPECIAL_TOKENS[CLS],
            eos_piece=SPECIAL_TOKENS[SEP],
            control_symbols=[SPECIAL_TOKENS[MASK]],
            num_threads=_TRAINER_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).rsplit("] ", 1)[-1]
        raise UserError(
            f"no vocabulary of {settings.vocab_size} pieces can be trained on this text ({reason}); "
            "give more text or another vocab_size"
        ) from error
    trained = sentencepiece_proto.parse(model.getvalue())
    if trained.trainer_spec.model_type == sentencepiece_proto.UNIGRAM:
        for piece in trained.pieces:
            piece.score = round(piece.score * _SCORE_STEPS) / _SCORE_STEPS
    return SentencePiece(trained.SerializeToString())


def _complete(model: Any, processor: spm.SentencePieceProcessor) -> Special:
    """Adds to `model`, a message, the special tokens that it lacks, as control pieces; where they all are then."""
    ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
    # UNK is what the model itself says for the unknown; the others by their names, or else by their roles.
    roles = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id(), -1)
    found = []
    for names, role in zip(_NAMES, roles, strict=True):
        known = next((ids[name] for name in names if name in ids), role)
        known = role if role == processor.unk_id() else known
        if known < 0:
            known = len(model.pieces)
            model.pieces.add(piece=names[0], score=0, type=sentencepiece_proto.CONTROL)
        found.append(known)
    return Special(*found)
