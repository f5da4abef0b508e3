"""Verifies runs and prepared corpora: reads every file and compares it with its checksum."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from electra_jax.config.errors import MISTAKES, explain
from electra_jax.data import corpus, tokenizer
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.loading import run_checkpoint
from electra_jax.loading.networks import is_run
from electra_jax.runtime import rewind, run_log
from electra_jax.runtime.checkpoint import Checkpoints
from electra_jax.runtime.io import read_json
from electra_jax.runtime.workdir import WorkDir
from electra_jax.train_config import TrainConfig

T = TypeVar("T")


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
      ok: whether the check passed.
      text: what was checked, or what is wrong and what to do, in one line.
    """

    ok: bool
    text: str


def verify(folder: Path) -> Iterator[Finding]:
    """Verifies a run or a prepared corpus: reads every file, one checkpoint at a time, and changes nothing.

    Args:
      folder: the work directory of a run, or the folder of a prepared corpus.

    Yields:
      A finding for each check, as soon as it is done; damage does not stop the following checks.
    """
    if corpus.is_prepared(folder):
        yield from _check_corpus(folder)
    elif is_run(folder):
        yield from _check_run(folder)
    else:
        yield Finding(False, f"{folder} is neither the work directory of a run nor a prepared corpus; check the path")


def _check_run(workdir: Path) -> Iterator[Finding]:
    config, error = _attempt(lambda: run_checkpoint.read_config(workdir))
    yield _finding(workdir / "config.json", error)
    vocabulary, vocabulary_error = _attempt(lambda: tokenizer.load_from_folder(workdir))
    key, last_step = None, 0
    for step, found_key, finding in _check_checkpoints(workdir, config, vocabulary):
        yield finding
        # Steps ascend: the newest readable checkpoint says which corpus the run needs, and how far it has come.
        if found_key is not None:
            key, last_step = found_key, step
    text = _find_corpus(workdir, config, key)
    if text is not None:
        yield from _check_corpus_of_run(text, key, config is not None and last_step >= config.steps)
    yield Finding(False, vocabulary_error) if vocabulary is None else _compare_vocabulary(workdir, vocabulary, text)
    yield from _check_logs(workdir)


def _check_checkpoints(
    workdir: Path, config: TrainConfig | None, vocabulary: Tokenizer | None
) -> Iterator[tuple[int, str | None, Finding]]:
    """Reads each checkpoint. Yields (step, key of its corpus or None if unreadable, finding)."""
    if not (workdir / "checkpoints").is_dir():
        yield 0, None, Finding(True, f"{workdir / 'checkpoints'}: none yet")
        return
    # Without config or vocabulary no shapes are expected, but the checksums still tell damage.
    model = None
    if config is not None and vocabulary is not None:
        model, error = _attempt(lambda: run_checkpoint.step_on_one_device(config, vocabulary).state)
        if model is None:
            yield 0, None, Finding(False, error)
    with run_checkpoint.open_checkpoints(workdir) as checkpoints:
        for step in checkpoints.steps():
            key, findings = _check_checkpoint(checkpoints, step, model)
            if (checkpoints.folder / str(step)).exists():  # a run in progress deletes its older checkpoints
                yield from ((step, key, finding) for finding in findings)


def _check_checkpoint(checkpoints: Checkpoints, step: int, model: Any) -> tuple[str | None, list[Finding]]:
    """Reads one checkpoint. Returns (key of its corpus or None if unreadable, findings)."""
    metadata, metadata_error = _attempt(lambda: checkpoints.metadata(step))
    arrays, arrays_error = _attempt(lambda: _read_arrays(checkpoints, step, model))
    # Damaged checksums fail both reads, with the same message.
    if errors := dict.fromkeys(filter(None, (metadata_error, arrays_error))):
        findings = [Finding(False, error) for error in errors]
    else:
        findings = [Finding(True, f"{checkpoints.folder / str(step)}: {arrays} arrays")]
    return (metadata or {}).get("corpus"), findings


def _read_arrays(checkpoints: Checkpoints, step: int, model: Any) -> int:
    """Restores a checkpoint, into the shapes of `model` if that is not None. Returns the number of its arrays.

    Raises:
      UserError: the checkpoint is damaged.
    """
    return len(jax.tree.leaves(checkpoints.restore(step, checkpoints.saved_arrays(step) if model is None else model)))


def _find_corpus(workdir: Path, config: TrainConfig | None, key: str | None) -> Path | None:
    """Returns the folder of the run's corpus; None if it is unknown."""
    # A prepared corpus is read where it is; other text is prepared in the work directory, under its key.
    if config is not None and corpus.is_prepared(Path(config.data.input)):
        return Path(config.data.input)
    return workdir / "data" / key if key is not None else None


def _check_corpus_of_run(folder: Path, key: str | None, finished: bool) -> Iterator[Finding]:
    if not folder.is_dir():
        if finished:
            yield Finding(
                True, f"{folder}: is not there; a finished run does not need its corpus, which may also be elsewhere"
            )
        else:
            yield Finding(False, f"{folder} is missing: the run needs its corpus to be resumed; restore a copy")
        return
    yield from _check_corpus(folder)
    manifest, _ = _attempt(lambda: corpus.read_manifest(folder))
    if manifest is not None and key not in (None, manifest["key"]):
        yield Finding(False, f"{folder} holds another corpus than the one this run started with; restore that one")


def _check_corpus(folder: Path) -> Iterator[Finding]:
    """Yields a finding for each damaged file, and one for all intact files together."""
    intact = 0
    try:
        for error in corpus.check_files(folder):
            if error is None:
                intact += 1
            else:
                yield Finding(False, str(error))
        yield Finding(True, f"{folder}: {intact} files")
    except MISTAKES as error:  # the manifest's
        yield Finding(False, explain(error))


def _compare_vocabulary(workdir: Path, vocabulary: Tokenizer, text: Path | None) -> Finding:
    """Compares the run's copy of the vocabulary with that of its corpus."""
    place = workdir / vocabulary.file
    original = tokenizer.find_file(text) if text is not None else None
    if original is None:
        return Finding(True, f"{place}: {len(vocabulary)} pieces; there is no corpus to compare it with")
    of_corpus, error = _attempt(lambda: tokenizer.load(original))
    if of_corpus is not None and of_corpus.model != vocabulary.model:
        error = f"{place} is not the vocabulary of the corpus; copy {original} to its place"
    return _finding(place, error, f": {len(vocabulary)} pieces, those of the corpus")


def _check_logs(workdir: Path) -> Iterator[Finding]:
    checked, error = _attempt(lambda: run_log.check_metrics(workdir))
    lines, problems = checked or (0, [error])
    yield from (Finding(False, problem) for problem in problems)
    if not problems:
        yield Finding(True, f"{workdir / run_log.METRICS}: {lines} lines")
    environment, rewinds = workdir / "environment.json", workdir / rewind.FILE
    if environment.exists():
        yield _finding(environment, _attempt(lambda: read_json(environment))[1])
    if rewinds.exists():
        yield _finding(rewinds, _attempt(lambda: rewind.read(WorkDir(workdir)))[1])


def _finding(path: Path, error: str, more: str = "") -> Finding:
    return Finding(not error, error or f"{path}{more}")


def _attempt(read: Callable[[], T]) -> tuple[T | None, str]:
    """Returns (result of `read`, ""), or (None, error message)."""
    try:
        return read(), ""
    except MISTAKES as error:
        return None, explain(error)
