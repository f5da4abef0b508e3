"""Data sets that a library resolves by name: TensorFlow Datasets, and data sets on the Hugging Face Hub.

`tfds:NAME/CONFIG` must have been prepared on this machine. `hf:USER/NAME/CONFIG:SPLIT@REVISION` is streamed from the
Hub. It is read at one commit, whose hash is part of the corpus's key, and in parts, one per file.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from electra_jax.config.errors import UserError, first_line
from electra_jax.data.config import CorpusConfig
from electra_jax.data.documents import Document, from_fields
from electra_jax.data.sources import HUB, TFDS, Source, Unit

_HUB_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(/(?P<config>[^:@]+))?(:(?P<split>[^@]+))?(@(?P<revision>.+))?")
_REASON = 200  # characters of an error that are shown


class HubSet(NamedTuple):
    """A split of a data set on the Hub.

    Attributes:
      repo: USER/NAME.
      config: configuration of the data set; None if it has only one.
      split: the split.
      revision: branch, tag or commit; None: main.
    """

    repo: str
    config: str | None
    split: str
    revision: str | None

    @classmethod
    def parse(cls, name: str) -> "HubSet":
        """Parses `USER/NAME[/CONFIG][:SPLIT][@REVISION]`.

        Raises:
          UserError: the name has another form.
        """
        if not (match := _HUB_NAME.fullmatch(name)):
            raise UserError(
                f"{HUB}:{name} is invalid: expected {HUB}:USER/NAME[/CONFIG][:SPLIT][@REVISION], as in the address of "
                f"a data set on the Hub; a folder on this machine is named without {HUB}:"
            )
        return cls(match["repo"], match["config"], match["split"] or "train", match["revision"])

    def __str__(self) -> str:
        parts = (f"/{self.config}" if self.config else "", f":{self.split}", f"@{self.revision}" * bool(self.revision))
        return self.repo + "".join(parts)


def at_commit(name: str) -> HubSet:
    """Resolves a name on the Hub to the data set at the commit that its revision currently points to.

    Raises:
      UserError: there is no such data set or revision, or the Hub refuses access or is unreachable.
    """
    from huggingface_hub import HfApi

    named = HubSet.parse(name)
    with _one_line(name):
        # The commit, because a branch may move between two passes over the text.
        return named._replace(revision=HfApi().dataset_info(named.repo, revision=named.revision).sha)


def count_parts(named: HubSet) -> int:
    """Counts the parts of a data set on the Hub that can be read independently.

    Raises:
      UserError: the package `datasets` is missing, or cannot read the data set.
    """
    return int(_stream(named).num_shards)


def read_hub(name: str, field: str, part: tuple[int, int]) -> Iterator[Document]:
    """Yields the texts of a part of a data set on the Hub, in order.

    Args:
      name: the data set, with its revision.
      field: the column.
      part: (index of the part, number of parts as returned by `count_parts`).

    Raises:
      UserError: the data set cannot be read or has no such column, or the package `datasets` is missing.
    """
    number, parts = part
    rows = _stream(HubSet.parse(name)).shard(num_shards=parts, index=number)
    if rows.features and field in rows.features:
        # Other columns need not be downloaded from Parquet files.
        rows = rows.select_columns([field])
    place = f"{HUB}:{name}:" + (f"{number + 1}:" if parts > 1 else "")
    rows = iter(rows)
    row = 0
    while True:
        row += 1
        # Only the library's work: a UserError of `from_fields` keeps its own message.
        with _one_line(name):
            values = next(rows, None)
        if values is None:
            return
        yield from_fields(values, field, f"{place}{row}", 0)


def _stream(named: HubSet) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"{HUB}:{named} needs the package datasets; pip install 'electra_jax[datasets]'") from error
    datasets.disable_progress_bars()
    with _one_line(str(named)):
        return datasets.load_dataset(
            named.repo, named.config, split=named.split, revision=named.revision, streaming=True
        )


@contextlib.contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Context manager that raises any error of the libraries, which are of many types, as a UserError with the name."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{HUB}:{name} cannot be read ({reason[:_REASON]}); check name and network, or log in with `hf auth login`"
        ) from error


def tfds_splits(name: str) -> Mapping[str, Any]:
    """Returns the splits of a TFDS data set, each a sequence of records whose `dataset_info` has the features.

    Raises:
      UserError: the library is not installed, or the data set is not prepared.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise UserError(f"tfds:{name} needs tensorflow-datasets; pip install 'electra_jax[tfds]'") from error
    try:
        try:
            builder = tfds.builder(name, file_format="array_record")
        except Exception:
            # A data set without its code, named with its version, does not accept file_format.
            builder = tfds.builder(name)
        if not (splits := builder.as_data_source()):
            raise FileNotFoundError("it was not prepared")
        return cast(Mapping[str, Any], splits)
    # Of many kinds: unknown name, not prepared, another format, TensorFlow missing.
    except Exception as error:
        raise UserError(
            f"tfds:{name} is not prepared as ArrayRecord ({first_line(error)}); prepare it once with `tfds build "
            f"{name} --file_format=array_record`, for which many datasets need tensorflow besides 'electra_jax[tfds]'"
        ) from error


def tfds_split(name: str, split: str) -> Any:
    """Returns one split of a TFDS data set, see `tfds_splits`.

    Raises:
      UserError: the library is not installed, the data set is not prepared, or it has no such split.
    """
    splits = tfds_splits(name)
    if split not in splits:
        raise UserError(f"tfds:{name} has no split {split}: expected one of {', '.join(splits)}")
    return splits[split]


def read_tfds(name: str, field: str) -> Iterator[Document]:
    """Yields the texts of the training split of a TFDS data set, in order."""
    for row, values in enumerate(tfds_split(name, "train"), 1):
        yield from_fields(values, field, f"{TFDS}:{name}:{row}", 0)


def units(number: int, source: Source, size: int) -> Iterator[Unit]:
    """Yields the units of a data set: its parts, at the commit that the Hub has now; all of a TFDS set."""
    scheme, _, name = source.name.partition(":")
    if scheme == TFDS:
        yield Unit(number, TFDS, (name,), 0)
        return
    found = at_commit(name)
    parts = count_parts(found)
    yield from (Unit(number, HUB, (str(found),), 0, (i, parts)) for i in range(parts))


def fingerprint(source: Source) -> list[str]:
    """Returns strings that change whenever the source's documents may have changed."""
    scheme, _, name = source.name.partition(":")
    # The version of a TFDS set is part of its name.
    return [f"{HUB}:{at_commit(name)}" if scheme == HUB else source.name]


def read(name: str, unit: Unit, config: CorpusConfig) -> Iterator[Document]:
    """Yields the documents of a unit."""
    return read_hub(name, config.field, unit.part) if unit.kind == HUB else read_tfds(name, config.field)
