"""Settings of the training text: what a corpus is prepared from, and how examples are made from it."""

import dataclasses

from electra_jax.config.settings import Check, above, at_least, between, one_of, setting, within

MEGABYTE = 10**6
SENTENCE_PIECE = ("unigram", "bpe")
MODEL_TYPES = (*SENTENCE_PIECE, "wordpiece", "byte_bpe")
_SIMILARITY = Check(lambda value: value == 0 or 0.5 <= value <= 1, "0, or from 0.5 to 1")
NORMALIZATIONS = ("nmt_nfkc_cf", "nfkc_cf", "nmt_nfkc", "nfkc", "identity")  # SentencePiece's; _cf folds case

# Settings that have an effect only where a vocabulary is trained.
VOCABULARY_TRAINING = ("vocab_size", "model_type", "byte_fallback", "character_coverage", "sample_mb")


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
    """What a corpus is prepared from, and how. `electra-jax prepare` takes the same settings as arguments.

    The order of the fields is part of a corpus's key: add new ones at the end.
    """

    input: str = setting(
        "docstrings",
        "Files, a folder, a glob, the address of these (s3://, gs://), hf:USER/NAME/CONFIG:SPLIT@REVISION, "
        "tfds:NAME/CONFIG, docstrings, or the folder of a prepared corpus. Separate several by semicolons; each may "
        "have a weight after an @: 'wiki/*.txt@3;books/*.jsonl.gz@1'. A number after the last @ is a weight, unless a "
        "file has this name.",
    )
    vocabulary: str = setting(
        "",
        "A SentencePiece model, tokenizer.json or vocab.txt to use; empty: train a vocabulary.",
    )
    vocab_size: int = setting(30522, "Number of pieces, if a vocabulary is trained.", within(6, 1e6))
    model_type: str = setting(
        "unigram",
        "Kind of vocabulary, if one is trained: SentencePiece's unigram or bpe, BERT's wordpiece, or byte_bpe as "
        "ModernBERT's.",
        one_of(*MODEL_TYPES),
    )
    normalization: str = setting(
        "nmt_nfkc_cf",
        "SentencePiece normalization; those with _cf lowercase. wordpiece and byte_bpe take only that from it: they "
        "have BERT's normalization and NFC.",
        one_of(*NORMALIZATIONS),
    )
    byte_fallback: bool = setting(False, "Encode characters outside the vocabulary as bytes instead of [UNK].")
    character_coverage: float = setting(
        0.9995, "Share of the text's characters that get a piece; 1 suits small alphabets.", within(0.98, 1)
    )
    sample_mb: int = setting(20, "Megabytes of text to train the vocabulary on, sampled from all of it.", above(0))
    heldout_fraction: float = setting(0.02, "Share of the documents held out from training.", between(0, 1))
    field: str = setting("text", "Field that holds the text in JSON lines, Parquet, Arrow and data sets.")
    documents: str = setting(
        "blank_line",
        "What ends a document in text files: a blank line, or the end of the file (in an archive, of each file in it).",
        one_of("blank_line", "file"),
    )
    shard_mb: int = setting(8, "Megabytes of text in a shard.", above(0))
    language: str = setting(
        "",
        "Languages of the pages that are read from WET files, as Common Crawl writes them: eng,deu; empty: all.",
    )
    near_duplicates: float = setting(
        0.0,
        "Leave out documents that share this part of their runs of five words with an earlier one; 0: only copies.",
        _SIMILARITY,
    )
    temperature: float = setting(
        1.0,
        "Exponent of the sources' sizes: the shares of several sources in the training examples are proportional to "
        "(number of tokens)^temperature. 1: by size; 0: equal shares.",
        within(0, 1),
    )

    @property
    def sample_bytes(self) -> int:
        return self.sample_mb * MEGABYTE

    @property
    def shard_bytes(self) -> int:
        return self.shard_mb * MEGABYTE


@dataclasses.dataclass(frozen=True)
class DataConfig(CorpusConfig):
    """The training text and the examples made from it."""

    mode: str = setting(
        "pairs",
        "Examples: pairs of segments as in the reference, or whole documents packed end to end.",
        one_of("pairs", "packed"),
    )
    seq_length: int = setting(128, "Tokens in a sequence.", above(4))
    short_length: int = setting(128, "Tokens in a sequence during the first short_steps steps.", above(4))
    short_steps: int = setting(0, "Steps at short_length before those at seq_length.", at_least(0))


def corpus_settings(config: CorpusConfig) -> dict[str, object]:
    """The settings of `CorpusConfig` alone by name, also where `config` has more."""
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(CorpusConfig)}
