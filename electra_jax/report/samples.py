"""Sentences with fakes in them, and what the encoder of a run says of each word: what training ends with."""

from pathlib import Path
from typing import NamedTuple

from electra_jax.config.errors import UserError, explain
from electra_jax.data import corpus
from electra_jax.loading import run_checkpoint
from electra_jax.loading.samples import SampledWord, sample_fakes
from electra_jax.objectives import registry
from electra_jax.runtime.run_log import Run


class Samples(NamedTuple):
    """What a run says of some sentences.

    Attributes:
      step: of the checkpoint that was asked; None where none was.
      sentences: words, marked.
      note: why there are none, or what the shade means where that is not the probability of a fake.
    """

    step: int | None
    sentences: list[list[SampledWord]]
    note: str


def of(run: Run, count: int) -> Samples:
    """`count` held-out sentences with fakes, as the last checkpoint of `run` sees them; none where that cannot be."""
    row = registry.SYSTEMS.get(run.system)
    if row is None:
        return Samples(None, [], f"{run.system} is no system that is known here.")
    if row.detect is None:
        return Samples(None, [], f"{run.system} predicts tokens and tells no fakes, so there is nothing to show.")
    try:
        return _ask(run.workdir, count)
    except UserError as error:
        return Samples(None, [], f"Nothing can be shown: {explain(error)}.")


def _ask(workdir: Path, count: int) -> Samples:
    learned = run_checkpoint.load_run_checkpoint(workdir)
    config, vocabulary, state = learned.config, learned.tokenizer, learned.state
    text = _text(workdir, config.data.input, str(learned.progress.get("corpus")))
    starts = vocabulary.word_starts
    objective = registry.make(
        config.objective, config.model, config.steps, len(vocabulary), text.unigram, vocabulary.special, starts
    )
    length, seed = config.data.seq_length, config.seed
    sentences = sample_fakes(objective, state.params, state.step, text.heldout, vocabulary, length, seed, count)
    if not sentences:
        raise UserError("no held-out line has the length of a sentence")
    return Samples(int(state.step), sentences, objective.system.scores)


def _text(workdir: Path, given: str, key: str) -> corpus.Corpus:
    """The text that the run was trained on; it is not prepared again for a page."""
    for folder in (workdir / "data" / key, Path(given)):
        if corpus.is_prepared(folder) and corpus.read_manifest(folder)["key"] == key:
            return corpus.load(folder)
    raise UserError(f"the text of this run is not there any more ({given})")
