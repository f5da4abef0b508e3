"""Prepares a corpus with an Apache Beam pipeline, on many machines that share the output folder.

Beam distributes the work and collects the results. Shards are written by the same code as on one machine, so their
bytes are the same. A unit is read by one machine, so many files of moderate size are better than a few large ones.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from electra_jax.config.errors import UserError
from electra_jax.data.config import CorpusConfig
from electra_jax.data.documents import Document
from electra_jax.data.duplicates import DUPLICATE
from electra_jax.data.readers import read_documents
from electra_jax.data.runner import Job, Runner
from electra_jax.data.sample import Sample
from electra_jax.data.shards import Chunk, Shard, read_chunks, write_shard
from electra_jax.data.sources import Unit
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.data.tokenizer import load as load_tokenizer

try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
except ImportError as error:
    raise UserError("--beam needs Apache Beam; pip install 'electra_jax[beam]'") from error

NumberedUnit = tuple[int, Unit]
RESULT = "beam.pickle"  # in the output folder while a pipeline runs: `Pipeline.run` returns no values


class BeamRunner(Runner):
    """A runner that executes a Beam pipeline."""

    def __init__(self, options: str):
        """Parses the pipeline options, such as `--runner=DirectRunner`.

        Raises:
          UserError: Beam does not accept them.
        """
        self._options = PipelineOptions(options.split())
        try:
            # Built only to check the options, before any work.
            beam.Pipeline(options=self._options)
        except (ValueError, SystemExit) as error:  # argparse prints its own message
            raise UserError(f"--beam={options} is invalid ({error}); see Apache Beam's pipeline options") from error

    def draw_sample(self, job: Job) -> Sample:
        draw = beam.CombineGlobally(_DrawSample(job.config))
        return cast(Sample, self._run(job, lambda units: units | beam.FlatMap(_read_ordered, job.config) | draw))

    def write_shards(self, job: Job, tokenizer: Tokenizer) -> list[Shard]:
        def write(units: Any) -> Any:
            chunks = units | "read" >> beam.FlatMap(_read_named, job.config) | "spread chunks" >> beam.Reshuffle()
            duplicates = (
                chunks
                | "digests" >> beam.FlatMap(_digests)
                | "group equal texts" >> beam.GroupByKey()
                | "all but the first" >> beam.FlatMap(_all_but_first)
            )
            joined = (chunks, duplicates) | "join duplicates" >> beam.CoGroupByKey()
            write = beam.ParDo(_WriteShard(job.folder, tokenizer.file, job.config.heldout_fraction))
            return joined | "write" >> write | beam.combiners.ToList()

        # Beam has no order; names sort in the order of the text.
        return sorted(self._run(job, write), key=lambda shard: shard.name)

    def _run(self, job: Job, transform: Callable[[Any], Any]) -> Any:
        """Runs a pipeline that applies `transform` to the job's units; returns its single element."""
        if job.config.near_duplicates:  # found in text order, by a single process
            raise UserError("near_duplicates has no effect with --beam; leave one out")
        result = job.folder / RESULT
        try:
            with beam.Pipeline(options=self._options) as pipeline:
                units = pipeline | beam.Create(list(enumerate(job.units))) | "spread units" >> beam.Reshuffle()
                transform(units) | "save result" >> beam.Map(_save, result)
        except UserError as error:
            # Beam appends the name of the step to an error's message.
            raise UserError(str(error).partition(" [while running")[0]) from error
        value = pickle.loads(result.read_bytes())
        result.unlink()
        return value


def _save(value: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(value))


def _read_ordered(numbered: NumberedUnit, config: CorpusConfig) -> Iterator[tuple[tuple[int, int], Document]]:
    """Returns each document, preceded by its order: (number of the unit, number in the unit)."""
    unit_number, unit = numbered
    return (((unit_number, i), document) for i, document in enumerate(read_documents(unit, config)))


class _DrawSample(beam.CombineFn):  # type: ignore[misc] # Beam has no types
    """Combines ordered documents into a `Sample`."""

    def __init__(self, config: CorpusConfig):
        self._size, self._heldout_fraction = config.sample_bytes, config.heldout_fraction

    def create_accumulator(self) -> Sample:
        return Sample(self._size, self._heldout_fraction)

    def add_input(self, sample: Sample, ordered: tuple[tuple[int, int], Document]) -> Sample:
        sample.add(*ordered)
        return sample

    def merge_accumulators(self, samples: Iterable[Sample]) -> Sample:
        merged = self.create_accumulator()
        for sample in samples:
            merged.merge(sample)
        return merged

    def extract_output(self, sample: Sample) -> Sample:
        return sample


def _read_named(numbered: NumberedUnit, config: CorpusConfig) -> Iterator[tuple[str, Chunk]]:
    return ((chunk.name, chunk) for chunk in read_chunks(*numbered, config, config.shard_bytes))


def _digests(named: tuple[str, Chunk]) -> Iterator[tuple[bytes, tuple[str, int]]]:
    """Returns (digest, (chunk name, index in the chunk)) for each non-empty document."""
    name, chunk = named
    return ((document.digest, (name, i)) for i, document in enumerate(chunk.documents) if document.text)


def _all_but_first(equal: tuple[bytes, Iterable[tuple[str, int]]]) -> Iterator[tuple[str, int]]:
    """Yields (chunk name, index in the chunk) for each of these equal documents but the first in text order."""
    # The same documents are left out as by `LocalRunner`: names sort in the order of the text.
    yield from sorted(equal[1])[1:]


class _WriteShard(beam.DoFn):  # type: ignore[misc] # Beam has no types
    """Writes the shard of a chunk that is joined with the indices of its duplicates."""

    def __init__(self, folder: Path, tokenizer_file: str, heldout_fraction: float):
        self._folder, self._file, self._heldout_fraction = folder, tokenizer_file, heldout_fraction

    def setup(self) -> None:
        # Beam pickles this object before it is set up, so workers load the tokenizer from its file.
        self._tokenizer = load_tokenizer(self._folder / self._file)

    def process(self, joined: tuple[str, tuple[Iterable[Chunk], Iterable[int]]]) -> Iterator[Shard]:
        # Names are unique: a key has one chunk.
        (chunk,), duplicates = joined[1]
        distinct = chunk.without(dict.fromkeys(duplicates, DUPLICATE))
        yield write_shard(self._folder, distinct, self._tokenizer, self._heldout_fraction)
