"""SentencePiece vocabularies: trained from text, loaded from a file, one interface to both."""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencepiece as spm

from electra_jax.errors import UserError

# Ids of the special tokens in every vocabulary trained here. PAD is 0 as in BERT's and ELECTRA's vocabularies.
PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORD_START = "\u2581"
_TRAINER_THREADS = 4  # a constant: the sums of the EM steps, hence the pieces, depend on it


class Tokenizer:
    """A SentencePiece model with the special tokens [PAD] [UNK] [CLS] [SEP] [MASK] at ids 0 to 4."""

    def __init__(self, model: bytes, name: str = "vocabulary"):
        """Raises UserError where `model` is no SentencePiece model or places the special tokens elsewhere."""
        self.model = model
        try:
            self._processor = spm.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise UserError(f"{name} is no SentencePiece model; delete it to have it made again") from error
        found = tuple(self._processor.id_to_piece(i) for i in range(min(5, len(self))))
        if found != SPECIAL_TOKENS:
            raise UserError(f"{name}: ids 0 to 4 are {' '.join(found)}, expected {' '.join(SPECIAL_TOKENS)}")

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        return cls(path.read_bytes(), str(path))

    def __len__(self) -> int:
        return self._processor.get_piece_size()

    def encode(self, lines: Sequence[str], threads: int = 2) -> list[list[int]]:
        """The ids of each line, without special tokens."""
        return self._processor.encode(list(lines), out_type=int, num_threads=threads)

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.decode([int(i) for i in ids])

    def words(self, ids: Sequence[int]) -> list[tuple[str, slice]]:
        """Splits ids at the pieces that start a word: (text, where it stands in `ids`), special tokens left out."""
        words: list[tuple[str, slice]] = []
        start = None
        for i, token in enumerate([*map(int, ids), SEP]):
            special = token != UNK and token < len(SPECIAL_TOKENS)
            begins = special or self._processor.id_to_piece(token).startswith(_WORD_START)
            if begins and start is not None:
                words.append((self.decode(ids[start:i]), slice(start, i)))
            if begins or start is None:
                start = None if special else i
        return words


def train(lines: Iterable[str], vocab_size: int, lowercase: bool = True) -> Tokenizer:
    """Trains a unigram vocabulary of `vocab_size` pieces, the special tokens included.

    Args:
      lines: the text, a sentence or paragraph each.
      vocab_size: number of pieces.
      lowercase: folds case (NFKC_CF); otherwise NFKC.

    Raises:
      UserError: the text is too small for so many pieces.
    """
    model = io.BytesIO()
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
            character_coverage=0.9995,
            max_sentence_length=16384,
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
            f"no vocabulary of {vocab_size} pieces can be trained on this text ({reason}); "
            "give more text or another config.data.vocab_size"
        ) from error
    return Tokenizer(model.getvalue())
