"""Rejects settings for reading the input or training a vocabulary if they have no effect."""

from collections.abc import Collection, Sequence

from electra_jax.config.settings import check_effects
from electra_jax.data.config import CorpusConfig
from electra_jax.data.sources import HUB, TFDS, Unit

# The kinds of units and formats of files in which a setting has an effect, with their name in messages.
_USES: dict[str, tuple[Collection[str], str]] = {
    "field": (("json", "parquet", "arrow", TFDS, HUB), "JSON lines, tables or data sets"),
    "documents": (("text",), "plain text"),
    "language": (("warc",), "archives of web pages"),
}
# Settings without effect on a kind of vocabulary.
_NOT_OF_VOCABULARY = {"wordpiece": ("byte_fallback",), "byte_bpe": ("byte_fallback", "character_coverage")}
# Settings without effect on a given vocabulary. Not `vocab_size`: config files have it for any vocabulary.
_OF_TRAINING = ("model_type", "byte_fallback", "character_coverage", "sample_mb")


def check(units: Sequence[Unit], config: CorpusConfig) -> None:
    """Checks that each setting that differs from its default has an effect.

    File names decide if they can. Otherwise files are opened in order until one uses the setting; the first bytes of
    each are read, and the names in archives.

    Raises:
      UserError: a setting has no effect; or a file is broken, or its format is not supported.
    """
    given = f"on the given vocabulary={config.vocabulary}"
    check_effects(config, ((name, not config.vocabulary, given) for name in _OF_TRAINING), "")
    why = f"with model_type={config.model_type}"
    check_effects(config, ((name, False, why) for name in _NOT_OF_VOCABULARY.get(config.model_type, ())), "")
    for name, (kinds, described) in _USES.items():
        if getattr(config, name) != getattr(CorpusConfig, name):  # the files of others need not be opened
            why = f"on input={config.input!r}, which has no {described}"
            check_effects(config, [(name, _is_used(units, kinds), why)], "")


def _is_used(units: Sequence[Unit], kinds: Collection[str]) -> bool:
    by_name = {unit.kind for unit in units}
    # A file that is text by its name may be anything.
    if by_name & (set(kinds) - {"text"}):
        return True
    from electra_jax.data.source_files import open_files

    files = (name for unit in units if unit.kind == "text" for name in unit.names)
    return any(found in kinds for name in files for _, found in open_files(name))
