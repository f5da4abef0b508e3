"""Interface of a runner, which does the work of preparing a corpus: on this machine, or with Apache Beam."""

import abc
import dataclasses
from pathlib import Path

from electra_jax.data.config import CorpusConfig
from electra_jax.data.sample import Sample
from electra_jax.data.shards import Shard
from electra_jax.data.sources import Unit
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.runtime.progress import Progress


@dataclasses.dataclass(frozen=True)
class Job:
    """A corpus to prepare.

    Attributes:
      folder: the output folder, which every worker can access.
      config: settings of the corpus.
      units: the whole input, in order.
      progress: receives the progress, in the process that runs the job.
    """

    folder: Path
    config: CorpusConfig
    units: list[Unit]
    progress: Progress


class Runner(abc.ABC):
    """Interface of a runner, which reads the input of a job in two passes. The results do not depend on the runner."""

    @abc.abstractmethod
    def draw_sample(self, job: Job) -> Sample:
        """Draws the sample of `config.sample_mb` to train a vocabulary on."""

    @abc.abstractmethod
    def write_shards(self, job: Job, tokenizer: Tokenizer) -> list[Shard]:
        """Writes all shards, without duplicates of earlier documents.

        Args:
          job: the corpus to prepare.
          tokenizer: encodes the text; it is also saved in `job.folder`, for other processes to load.

        Returns:
          The shards in the order of the text.
        """
