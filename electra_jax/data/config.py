"""Settings of the training text: what it is prepared from, and how examples are made of it."""

import dataclasses

from electra_jax.config.settings import above, at_least, between, one_of, setting, within
from electra_jax.data import tokenizer

# Settings that only matter where a vocabulary is trained.
VOCABULARY_TRAINING = ("vocab_size", "model_type", "byte_fallback", "character_coverage", "sample_mb")


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
    """What a corpus is prepared from. `electra-jax prepare` takes the same settings as arguments."""

    input: str = setting(
        "docstrings",
        "Files, a folder, a glob, tfds:NAME/CONFIG, docstrings, or the folder of a prepared corpus; several are separated "
        "by semicolons, each with its weight after an @.",
    )
    vocabulary: str = setting(
        "",
        "A SentencePiece model, tokenizer.json or vocab.txt to use; empty: train a vocabulary.",
    )
    vocab_size: int = setting(30522, "Pieces of a vocabulary that is trained.", above(5))
    model_type: str = setting(
        "unigram", "SentencePiece model of a vocabulary that is trained.", one_of(*tokenizer.MODEL_TYPES)
    )
    normalization: str = setting(
        "nmt_nfkc_cf", "SentencePiece normalization; those with _cf lowercase.", one_of(*tokenizer.NORMALIZATIONS)
    )
    byte_fallback: bool = setting(False, "Encode characters outside the vocabulary as bytes instead of [UNK].")
    character_coverage: float = setting(
        0.9995, "Share of the text's characters that get a piece; 1 for small scripts.", within(0.98, 1)
    )
    sample_mb: int = setting(20, "Megabytes of text to train the vocabulary on, sampled from all of it.", above(0))
    heldout_fraction: float = setting(0.02, "Share of the documents held out from training.", between(0, 1))
    field: str = setting("text", "Field that holds the text in JSON lines, Parquet and TFDS.")
    documents: str = setting(
        "blank_line",
        "What ends a document in text files: a blank line, or the end of the file.",
        one_of("blank_line", "file"),
    )
    shard_mb: int = setting(8, "Megabytes of text in a shard.", above(0))


@dataclasses.dataclass(frozen=True)
class DataConfig(CorpusConfig):
    """The training text and the examples made of it."""

    mode: str = setting(
        "pairs",
        "Examples: pairs of segments as in the reference, or whole documents packed end to end.",
        one_of("pairs", "packed"),
    )
    seq_length: int = setting(128, "Tokens in a sequence.", above(4))
    short_length: int = setting(128, "Tokens in a sequence during the first short_steps steps.", above(4))
    short_steps: int = setting(0, "Steps at short_length before those at seq_length.", at_least(0))


def corpus_settings(data: CorpusConfig) -> dict[str, object]:
    """The settings that a corpus is made from, by name: those of `CorpusConfig` alone."""
    return {field.name: getattr(data, field.name) for field in dataclasses.fields(CorpusConfig)}
