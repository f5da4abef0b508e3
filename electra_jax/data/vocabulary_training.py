"""Trains vocabularies: SentencePiece's unigram and BPE, BERT's WordPiece, and byte-level BPE."""

import io
from collections import Counter
from collections.abc import Iterable
from typing import Any

import sentencepiece as spm
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from electra_jax.config.errors import UserError
from electra_jax.data import sentencepiece_proto
from electra_jax.data.config import CorpusConfig
from electra_jax.data.normalization import compose
from electra_jax.data.tokenizer import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK, Library, SentencePiece, Tokenizer

_THREADS = 4  # of SentencePiece; constant, because the sums of the EM steps, and so the pieces, depend on it
# In bytes. The trainer skips longer lines, by default those over 4,192; a cleaned line has at most 4,000 characters.
_LONGEST_SENTENCE = 16384
# Scores are rounded to multiples of 1 / _SCORE_STEPS. Segmentation adds scores, in float32 here and in float64 in other
# libraries; rounded scores add up exactly (to 2^17 nats, about 16,000 pieces), so every library sees the same ties and
# breaks them alike. Without rounding, 1 line in 20,000 of an encyclopedia was segmented differently there.
_SCORE_STEPS = 128
# The minimum frequency of a merge in the libraries' own recipes.
_LEAST_COUNT = 2


def train(lines: Iterable[str], config: CorpusConfig) -> Tokenizer:
    """Trains a vocabulary.

    Args:
      lines: the text, a sentence or paragraph per line.
      config: its `vocab_size` (special tokens included), `model_type`, `normalization`, `byte_fallback` and
        `character_coverage` are used.

    Raises:
      UserError: the text is too small for so many pieces.
    """
    if config.model_type == "wordpiece":
        return _word_pieces(lines, config)
    if config.model_type == "byte_bpe":
        return _byte_level(lines, config)
    return _sentence_piece(lines, config)


def _word_pieces(lines: Iterable[str], config: CorpusConfig) -> Library:
    """Trains WordPiece on text as `BertTokenizer` reads it, but keeps marks: many scripts have other words without."""
    options = {"lowercase": config.normalization.endswith("_cf"), "strip_accents": False}
    bert = tokenizers.BertWordPieceTokenizer(**options)
    words = Counter(word for line in lines for word in bert.normalizer.normalize_str(line).split())
    alphabet = _covering(words, config.character_coverage)
    parts = (part for word in words for part, _ in bert.pre_tokenizer.pre_tokenize_str(word))
    later = {character for part in parts for character in part[1:]}
    # The trainer numbers characters as it meets them in a hash map, and breaks ties between merges by these numbers.
    # Given as special tokens, they have the same numbers in every run.
    characters = [*alphabet, *(f"##{character}" for character in alphabet if character in later)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=_LEAST_COUNT,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        special_tokens=[*SPECIAL_TOKENS, *characters],
        show_progress=False,
    )
    trained = tokenizers.Tokenizer(models.WordPiece())
    trained.pre_tokenizer = bert.pre_tokenizer
    trained.train_from_iterator((f"{word} " * count for word, count in words.items()), trainer)
    return _checked(tokenizers.BertWordPieceTokenizer(trained.get_vocab(), **options), config)


def _covering(words: Counter[str], coverage: float) -> list[str]:
    """Returns the most frequent characters that make up a fraction `coverage` of the text, in code point order."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    missing, chosen = coverage * counts.total(), []
    # Ties in the order of code points, so that every run chooses the same characters.
    for character in sorted(counts, key=lambda character: (-counts[character], character)):
        if missing <= 0:
            break
        missing -= counts[character]
        chosen.append(character)
    return sorted(chosen)


def _byte_level(lines: Iterable[str], config: CorpusConfig) -> Library:
    """Trains byte-level BPE as in ModernBERT and, except for NFC, RoBERTa. A word includes the space before it."""
    result = tokenizers.Tokenizer(models.BPE())
    folds = [normalizers.Lowercase()] if config.normalization.endswith("_cf") else []
    result.normalizer = normalizers.Sequence([normalizers.NFC(), *folds])
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    result.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=_LEAST_COUNT,
        special_tokens=[*SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    result.train_from_iterator(lines, trainer)
    return _checked(result, config)


def _checked(trained: Any, config: CorpusConfig) -> Library:
    result = Library(trained.to_str().encode())
    if len(result) > config.vocab_size:
        raise _failure(config, f"its characters alone are {len(result)}")
    if len(result) < config.vocab_size:
        raise _failure(config, f"the text has {len(result)}")
    return result


def _failure(config: CorpusConfig, reason: str) -> UserError:
    return UserError(
        f"training a vocabulary of {config.vocab_size} pieces failed ({reason}); use more text or another vocab_size"
    )


def _sentence_piece(lines: Iterable[str], config: CorpusConfig) -> SentencePiece:
    model = io.BytesIO()
    try:
        spm.SentencePieceTrainer.train(
            # As `SentencePiece.encode` composes its text.
            sentence_iterator=(compose(line, config.normalization) for line in lines),
            model_writer=model,
            model_type=config.model_type,
            vocab_size=config.vocab_size,
            normalization_rule_name=config.normalization,
            byte_fallback=config.byte_fallback,
            character_coverage=config.character_coverage,
            max_sentence_length=_LONGEST_SENTENCE,
            # These are fixed; a control symbol gets the next id, which is MASK.
            pad_id=PAD,
            unk_id=UNK,
            bos_id=CLS,
            eos_id=SEP,
            pad_piece=SPECIAL_TOKENS[PAD],
            unk_piece=SPECIAL_TOKENS[UNK],
            bos_piece=SPECIAL_TOKENS[CLS],
            eos_piece=SPECIAL_TOKENS[SEP],
            control_symbols=[SPECIAL_TOKENS[MASK]],
            num_threads=_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        # Behind the place in the library's source and its condition: "INTERNAL: x.cc(1) [condition] reason".
        reason = str(error).rsplit("] ", 1)[-1]
        raise _failure(config, reason) from error
    trained = sentencepiece_proto.parse(model.getvalue())
    # Scores of BPE are ranks: whole numbers.
    if trained.trainer_spec.model_type == sentencepiece_proto.UNIGRAM:
        for piece in trained.pieces:
            piece.score = round(piece.score * _SCORE_STEPS) / _SCORE_STEPS
    return SentencePiece(trained.SerializeToString())
