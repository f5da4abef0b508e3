"""A prepared corpus: a folder with a vocabulary, the training and held-out splits, and a manifest.

The manifest is written last and holds the checksum of every file. pipeline.py prepares such a folder.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from electra_jax.config.errors import UserError
from electra_jax.data import mixtures, records, shards, tokenizer
from electra_jax.data.records import Split
from electra_jax.data.shards import Notes
from electra_jax.runtime.io import from_json, json_checksum, sha256

MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A loaded corpus, ready to train on.

    Attributes:
      key: hash of the sources and settings that it was prepared from.
      tokenizer: its vocabulary.
      train, heldout: the splits.
      unigram: [V] int64, count of each id in the training split.
      weights: relative sampling weights of the sources; None: by size.
      sources: names of the sources in metrics, see `mixtures.labels`.
    """

    key: str
    tokenizer: tokenizer.Tokenizer
    train: Split
    heldout: Split
    unigram: npt.NDArray[np.int64]
    weights: Sequence[float] | None
    sources: Sequence[str]


@dataclasses.dataclass(frozen=True)
class SourceReport:
    """Statistics of one source of a prepared corpus.

    Attributes:
      name: the source as given, without its weight.
      label: its name in metrics, see `mixtures.labels`.
      documents, tokens: numbers of documents and tokens by split, `train` and `heldout`.
      share: its fraction of the training examples, or of the training tokens if sources are sampled by size.
    """

    name: str
    label: str
    documents: dict[str, int]
    tokens: dict[str, int]
    share: float


@dataclasses.dataclass(frozen=True)
class CorpusReport:
    """Statistics of a prepared corpus.

    Attributes:
      documents, tokens: numbers of documents and tokens by split, `train` and `heldout`.
      bytes: size of the cleaned text, in UTF-8.
      bytes_per_token: mean over both splits.
      lines: number of lines in both splits.
      unknown_rate: fraction of tokens that are [UNK].
      shards: number of shards.
      left_out: number of files (`files`) that were not read because of their type, and the `first` of them.
      lengths: entry i is the number of documents with 2**(i-1) to 2**i - 1 tokens.
      longest: (tokens, place, first words) of the longest documents.
      notes: maps what was repaired or left out to (number of documents, place of the first).
      sources: one entry per source.
    """

    documents: dict[str, int]
    tokens: dict[str, int]
    bytes: int
    bytes_per_token: float
    lines: int
    unknown_rate: float
    shards: int
    left_out: dict[str, Any]
    lengths: list[int]
    longest: list[tuple[int, str, str]]
    notes: Notes
    sources: list[SourceReport]


def is_prepared(folder: Path) -> bool:
    """True if `folder` holds a prepared corpus."""
    # Unlike Path.is_file, it is False for names that are too long.
    return os.path.isfile(folder / MANIFEST)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads the manifest of a prepared corpus.

    Raises:
      UserError: it is missing, damaged, or written by another version of this package.
    """
    if not is_prepared(folder):
        raise UserError(f"{folder / MANIFEST} is missing: expected a folder that `electra-jax prepare` has finished")
    try:
        manifest: dict[str, Any] = from_json((folder / MANIFEST).read_text())
        version, checksum = manifest["format"], manifest.pop("checksum", None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(folder / MANIFEST) from error
    # Before the checksum: a manifest of another version is not damaged.
    if version != shards.FORMAT:
        raise UserError(
            f"{folder} was prepared by another version of electra_jax (format {version}, not {shards.FORMAT}); "
            "prepare the text again into another folder"
        )
    # Refuses an edited manifest, too.
    if checksum != json_checksum(manifest):
        raise _damaged(folder / MANIFEST)
    return manifest


def load(folder: Path) -> Corpus:
    """Loads a prepared corpus. Token files are opened on first read, and damage to them is noticed only then.

    Raises:
      UserError: a file is missing, or an index or the vocabulary is damaged.
    """
    manifest = read_manifest(folder)
    parts = _shards(manifest)
    # Token files are large, and ArrayRecord checks each record that it reads, so they need only be there.
    for name, checksum in _checksums(manifest).items():
        has_tokens = name.endswith(shards.TOKENS_SUFFIX)
        if not (folder / name).is_file() or (not has_tokens and sha256(folder / name) != checksum):
            raise _damaged(folder / name)

    vocabulary = tokenizer.load(folder / manifest["vocabulary"]["file"])
    indexes = [dict(np.load(shards.index_file(folder, shard.name))) for shard in parts]
    # As `shards.py` wrote them: the files do not name their type.
    dtype = np.min_scalar_type(len(vocabulary) - 1)

    def load_split(name: str) -> Split:
        # A shard without tokens in this split has no file, which is never opened.
        files = [shards.token_file(folder, shard.name, name) for shard in parts]
        documents = [shard.documents[name] for shard in parts]
        by_source = np.bincount([shard.source for shard in parts], documents)
        return Split(
            records.Shards(files, [shard.tokens[name] for shard in parts], dtype),
            records.offsets(np.concatenate([index[f"{name}_lines"] for index in indexes])),
            records.offsets(np.concatenate([index[f"{name}_documents"] for index in indexes])),
            records.offsets(by_source.astype(np.int64)),
        )

    # A shard's counts are uint32, which their sum may exceed.
    unigram = np.zeros(len(vocabulary), np.int64)
    for index in indexes:
        unigram += index["unigram"]
    weights = [source["weight"] for source in manifest["sources"]]
    return Corpus(
        manifest["key"],
        vocabulary,
        load_split("train"),
        load_split("heldout"),
        unigram,
        None if None in weights else weights,
        mixtures.labels([source["name"] for source in manifest["sources"]]),
    )


def heldout_lines(folder: Path, vocabulary: tokenizer.Tokenizer, most: int) -> list[str]:
    """Returns up to `most` held-out lines of a prepared corpus as text, without lines that have an unknown token.

    Args:
      folder: the corpus.
      vocabulary: its vocabulary.
      most: maximum number of lines. The first ones are taken; files beyond them are not read.

    Raises:
      UserError: a file is missing or damaged.
    """
    found: list[str] = []
    dtype = np.min_scalar_type(len(vocabulary) - 1)
    for shard in _shards(read_manifest(folder)):
        if len(found) >= most:
            break
        # Checked here: `load`, which checks every index, is not called.
        index = shards.index_file(folder, shard.name)
        if not index.is_file() or sha256(index) != shard.sha256[index.name]:
            raise _damaged(index)
        # One entry more than the lines that are wanted: where the last ends.
        ends = records.offsets(np.load(index)["heldout_lines"])[: most - len(found) + 1]
        if len(ends) > 1:
            split = records.Shards([shards.token_file(folder, shard.name, "heldout")], [shard.tokens["heldout"]], dtype)
            lines = np.split(split.take(ends[:1], ends[-1:]), ends[1:-1])
            # An unknown token does not decode to its text.
            found += [vocabulary.decode(line) for line in lines if vocabulary.special.unk not in line]
    return found


def report(folder: Path) -> CorpusReport:
    """Returns statistics of a prepared corpus, from its manifest alone."""
    manifest = read_manifest(folder)
    parts = _shards(manifest)
    tokens = {split: sum(shard.tokens[split] for shard in parts) for split in shards.SPLITS}
    all_tokens = max(1, sum(tokens.values()))
    size = sum(shard.bytes for shard in parts)
    return CorpusReport(
        documents={split: sum(shard.documents[split] for shard in parts) for split in shards.SPLITS},
        tokens=tokens,
        bytes=size,
        bytes_per_token=size / all_tokens,
        lines=sum(shard.lines for shard in parts),
        unknown_rate=sum(shard.unknown for shard in parts) / all_tokens,
        shards=len(parts),
        left_out=manifest["left_out"],
        lengths=[sum(counts) for counts in zip(*(shard.lengths for shard in parts), strict=True)],
        longest=shards.longest_documents(entry for shard in parts for entry in shard.longest),
        notes=shards.merge_notes(shard.notes for shard in parts),
        sources=_report_sources(manifest["sources"], parts),
    )


def _report_sources(sources: Sequence[dict[str, Any]], parts: Sequence[shards.Shard]) -> list[SourceReport]:
    own = [[shard for shard in parts if shard.source == number] for number in range(len(sources))]
    tokens = [{split: sum(shard.tokens[split] for shard in some) for split in shards.SPLITS} for some in own]
    weights = [source["weight"] for source in sources]
    # By size: examples are drawn in proportion to the training tokens.
    if None in weights:
        weights = [counts["train"] for counts in tokens]
    names = [source["name"] for source in sources]
    return [
        SourceReport(
            name=name,
            label=label,
            documents={split: sum(shard.documents[split] for shard in some) for split in shards.SPLITS},
            tokens=counts,
            share=weight / sum(weights),
        )
        for name, label, some, counts, weight in zip(names, mixtures.labels(names), own, tokens, weights, strict=True)
    ]


def check_files(folder: Path) -> Iterator[UserError | None]:
    """Reads every file of a prepared corpus; yields for each an error if it is damaged, or None if it is intact.

    Raises:
      UserError: the manifest is missing or damaged.
    """
    for name, checksum in _checksums(read_manifest(folder)).items():
        try:
            intact = (folder / name).is_file() and sha256(folder / name) == checksum
            # Errors are yielded, so that one damaged file does not end the check.
            yield None if intact else _damaged(folder / name)
        except OSError as error:
            yield UserError(f"{folder / name} cannot be read ({error.strerror}); restore a copy, or prepare again")


def _shards(manifest: dict[str, Any]) -> list[shards.Shard]:
    return [shards.Shard(**shard) for shard in manifest["shards"]]


def _checksums(manifest: dict[str, Any]) -> dict[str, str]:
    """Returns the SHA-256 of each file by name."""
    checksums = {manifest["vocabulary"]["file"]: manifest["vocabulary"]["sha256"]}
    for shard in manifest["shards"]:
        checksums |= shard["sha256"]
    return checksums


def _damaged(path: Path) -> UserError:
    and_manifest = "" if path.name == MANIFEST else f" and {path.parent / MANIFEST}"
    return UserError(
        f"{path} is missing or has changed since it was written; delete it{and_manifest} and prepare again"
    )
