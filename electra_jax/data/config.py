"""Settings of the training data: how a corpus is prepared, and how examples are made from it."""

import dataclasses

from electra_jax.config.settings import Check, above, between, one_of, setting, within

MEGABYTE = 10**6
SENTENCE_PIECE = ("unigram", "bpe")
MODEL_TYPES = (*SENTENCE_PIECE, "wordpiece", "byte_bpe")
_SIMILARITY = Check(lambda value: value == 0 or 0.5 <= value <= 1, "0, or from 0.5 to 1")
NORMALIZATIONS = ("nmt_nfkc_cf", "nfkc_cf", "nmt_nfkc", "nfkc", "identity")  # SentencePiece's; _cf folds case


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
    # As in BERT and ELECTRA. The least is five special tokens and a piece.
    vocab_size: int = setting(30522, "Vocabulary size, if a vocabulary is trained.", within(6, 1e6))
    model_type: str = setting(
        "unigram",
        "Type of vocabulary to train: SentencePiece's unigram or bpe, BERT's wordpiece, or ModernBERT's byte_bpe.",
        one_of(*MODEL_TYPES),
    )
    normalization: str = setting(
        "nmt_nfkc_cf",
        "SentencePiece normalization; those with _cf lowercase. wordpiece and byte_bpe take only that from it: they "
        "have BERT's normalization and NFC.",
        one_of(*NORMALIZATIONS),
    )
    byte_fallback: bool = setting(False, "Encode characters outside the vocabulary as bytes instead of [UNK].")
    # SentencePiece's default, and the range that it accepts.
    character_coverage: float = setting(
        0.9995, "Fraction of the text's characters that get a piece; 1 suits small alphabets.", within(0.98, 1)
    )
    sample_mb: int = setting(20, "Megabytes of text to train the vocabulary on, sampled from all of it.", above(0))
    heldout_fraction: float = setting(0.02, "Fraction of documents held out for evaluation.", between(0, 1))
    field: str = setting("text", "Name of the text field in JSON lines, Parquet, Arrow and data sets.")
    documents: str = setting(
        "blank_line",
        "What ends a document in text files: a blank line, or the end of the file (in an archive, of each file in it).",
        one_of("blank_line", "file"),
    )
    shard_mb: int = setting(8, "Shard size, in megabytes of text.", above(0))
    language: str = setting(
        "",
        "Keep only WET pages in these languages, in Common Crawl's codes: eng,deu; empty: all.",
    )
    near_duplicates: float = setting(
        0.0,
        "Near-deduplication by MinHash: drop documents whose five-word shingles overlap with an earlier document's "
        "by this fraction; 0: exact copies only.",
        _SIMILARITY,
    )
    temperature: float = setting(
        1.0,
        "Sampling exponent for several sources: a source's share of the training examples is proportional to (number "
        "of tokens)^temperature. 1: by size; 0: equal shares.",
        within(0, 1),
    )

    @property
    def sample_bytes(self) -> int:
        return self.sample_mb * MEGABYTE

    @property
    def shard_bytes(self) -> int:
        return self.shard_mb * MEGABYTE


def _are_weights(text: str) -> bool:
    try:
        weights = [float(each) for each in text.split(":")] if text else [1.0]
    except ValueError:
        return False
    return any(weights) and all(weight == 0 or 1e-6 <= weight <= 1e6 for weight in weights)


@dataclasses.dataclass(frozen=True)
class DataConfig(CorpusConfig):
    """The training text and the examples made from it."""

    mode: str = setting(
        "pairs",
        "How examples are built: pairs of segments as in the reference, or whole documents packed end to end.",
        one_of("pairs", "packed"),
    )
    # The reference's shortest examples have a target of 5 tokens, see `batches.py`.
    seq_length: int = setting(128, "Sequence length, in tokens.", above(4))
    weights: str = setting(
        "",
        "Sampling weights of several sources, in their order, such as 3:1; empty: those of the corpus.",
        Check(_are_weights, "numbers separated by colons, 0 or from 1e-6 to 1e6, not all 0"),
    )


def corpus_settings(config: CorpusConfig) -> dict[str, object]:
    """Returns the settings of `CorpusConfig` by name, without those that a subclass adds."""
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(CorpusConfig)}
