"""Reads the documents of a unit of any kind. Every document is hashed here, once per pass."""

from collections.abc import Iterator

from electra_jax.data.config import CorpusConfig
from electra_jax.data.documents import Document, split_long
from electra_jax.data.sources import Unit, reader


def read_documents(unit: Unit, config: CorpusConfig) -> Iterator[Document]:
    """Yields the documents of `unit` in order.

    Args:
      unit: what to read.
      config: its `field` names the text in JSON lines, tables and data sets; its `documents` says what ends a document
        in text files; its `language` selects the pages of a web archive.

    Raises:
      UserError: a file is broken or lacks the field, or a package to read it is missing.
    """
    # The readers of files count positions in their file, here they are in the unit.
    earlier_names = 0
    for name in unit.names:
        position = 0
        for document in reader(unit.kind).read(name, unit, config):
            position = document.position
            yield from split_long(document, earlier_names + position)
        earlier_names += position
