"""Does the work of a preparation as an Apache Beam pipeline, on many machines that see the output folder.

Beam hands out and brings together; the work is `shards.write`, as on one machine, and so are the bytes. A unit of the
input is read by one machine, so that many files of moderate size are better than a few large ones.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from electra_jax.config.errors import UserError
from electra_jax.data import readers, shards, sources, tokenizer
from electra_jax.data.chunks import MEGABYTE, Sample, job
from electra_jax.data.config import CorpusConfig, corpus_settings
from electra_jax.data.local_runner import Watch
from electra_jax.data.readers import Document
from electra_jax.data.shards import Shard

try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
except ImportError as error:
    raise UserError("--beam needs Apache Beam; pip install 'electra_jax[beam]'") from error

Numbered = tuple[int, sources.Unit]
Place = tuple[int, int]  # (number of the unit, number of the chunk)
Chunk = tuple[Numbered, int, list[Document]]


class BeamRunner:
    """Works on the machines of a runner."""

    def __init__(self, options: str, folder: Path, watch: Watch | None = None):
        """Takes the pipeline's options, as `--runner=DirectRunner`, the output folder, and who is told what happens."""
        self._options = PipelineOptions(options.split())
        try:
            beam.Pipeline(options=self._options)
        except (ValueError, SystemExit) as error:  # argparse prints its own complaint
            raise UserError(f"--beam={options} cannot be ({error}); see Apache Beam's pipeline options") from error
        self._result = folder / "beam.pickle"
        self.watch = watch or Watch()

    def sample(self, settings: CorpusConfig, units: list[sources.Unit]) -> Sample:
        """Reads all of the text for a sample of it."""
        self.watch.begin("reading a sample")
        reading = corpus_settings(settings)
        return self._run(units, lambda p: p | beam.FlatMap(_documents, reading) | beam.CombineGlobally(_Draw(reading)))

    def write(
        self, folder: Path, settings: CorpusConfig, vocabulary: tokenizer.Tokenizer, units: list[sources.Unit]
    ) -> list[Shard]:
        """Writes all shards; returns them in order."""
        self.watch.begin("encoding")
        reading = corpus_settings(settings)

        def pipeline(p: Any) -> Any:
            found = p | "read" >> beam.FlatMap(_chunks, reading) | "spread chunks" >> beam.Reshuffle()
            duplicates = (
                found
                | "digests" >> beam.FlatMap(_digests)
                | "equal texts" >> beam.GroupByKey()
                | "all but the first" >> beam.FlatMap(_later)
            )
            together = (found | "by place" >> beam.Map(_by_place), duplicates) | "together" >> beam.CoGroupByKey()
            write = beam.ParDo(_Write(folder, vocabulary.file, settings.heldout_fraction))
            return together | "write" >> write | beam.combiners.ToList()

        return sorted(self._run(units, pipeline), key=lambda shard: shard.name)

    def _run(self, units: list[sources.Unit], pipeline: Callable[[Any], Any]) -> Any:
        """What the pipeline makes of the units: its one element, which it leaves in the output folder."""
        try:
            with beam.Pipeline(options=self._options) as p:
                given = p | beam.Create(list(enumerate(units))) | "spread units" >> beam.Reshuffle()
                pipeline(given) | "leave" >> beam.Map(_leave, self._result)
        except UserError as error:
            raise UserError(str(error).partition(" [while running")[0]) from error
        found = pickle.loads(self._result.read_bytes())
        self._result.unlink()
        return found


def _leave(value: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(value))


def _documents(numbered: Numbered, reading: Mapping[str, Any]) -> Iterator[tuple[tuple[int, int], Document]]:
    """Each document after its place in the text."""
    documents = readers.read(numbered[1], reading["field"], reading["documents"])
    return (((numbered[0], i), document) for i, document in enumerate(documents))


class _Draw(beam.CombineFn):
    """Documents with their places -> a sample of them."""

    def __init__(self, reading: Mapping[str, Any]):
        self._size, self._heldout_fraction = reading["sample_mb"] * MEGABYTE, reading["heldout_fraction"]

    def create_accumulator(self) -> Sample:
        return Sample(self._size, self._heldout_fraction)

    def add_input(self, sample: Sample, placed: tuple[tuple[int, int], Document]) -> Sample:
        sample.add(*placed)
        return sample

    def merge_accumulators(self, samples: Iterable[Sample]) -> Sample:
        together = self.create_accumulator()
        for sample in samples:
            together.join(sample)
        return together

    def extract_output(self, sample: Sample) -> Sample:
        return sample


def _chunks(numbered: Numbered, reading: Mapping[str, Any]) -> Iterator[Chunk]:
    documents = readers.read(numbered[1], reading["field"], reading["documents"])
    for k, chunk in enumerate(readers.together(documents, reading["shard_mb"] * MEGABYTE)):
        yield numbered, k, chunk


def _by_place(chunk: Chunk) -> tuple[Place, Chunk]:
    (unit, _), k, _ = chunk
    return (unit, k), chunk


def _digests(chunk: Chunk) -> Iterator[tuple[bytes, tuple[int, int, int]]]:
    """(digest, place in the text) of each document with text."""
    (unit, _), k, documents = chunk
    for i, document in enumerate(documents):
        if document.text:
            yield shards.digest(document), (unit, k, i)


def _later(equal: tuple[bytes, Iterable[tuple[int, int, int]]]) -> Iterator[tuple[Place, int]]:
    """The chunk of each of these equal documents but the first, and its number there."""
    for unit, k, i in sorted(equal[1])[1:]:
        yield (unit, k), i


class _Write(beam.DoFn):
    """A chunk with the numbers of its duplicates -> the shard of it."""

    def __init__(self, folder: Path, vocabulary: str, heldout_fraction: float):
        self._folder, self._file, self._heldout_fraction = folder, vocabulary, heldout_fraction

    def setup(self) -> None:
        self._vocabulary = tokenizer.load(self._folder / self._file)

    def process(self, together: tuple[Place, tuple[Iterable[Chunk], Iterable[int]]]) -> Iterator[Shard]:
        ((numbered, k, chunk),), duplicates = together[1]
        todo = job(self._folder, numbered, k, chunk, set(duplicates))
        yield shards.write(*todo, self._vocabulary, self._heldout_fraction)
