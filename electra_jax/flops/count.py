"""Counts the FLOPs of a config, for `electra_jax.count_flops` and `electra-jax flops --config=...`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from electra_jax import train_config
from electra_jax.config.errors import UserError
from electra_jax.config.settings import above_up_to, check_value, whole
from electra_jax.data import pipeline, vocabulary
from electra_jax.flops import devices, totals
from electra_jax.flops.hardware import Parts, sum_networks
from electra_jax.objectives import registry
from electra_jax.objectives.segments import make_segments
from electra_jax.objectives.spec import Objective
from electra_jax.train_config import TrainConfig


@dataclasses.dataclass(frozen=True)
class StepFlops:
    """FLOPs of one step in a segment of the run, whose steps all cost the same.

    Attributes:
      steps: the number of steps in the segment.
      batch: batch size, in sequences.
      length: sequence length, in tokens.
      total: FLOPs of a step by accounting, `model` or `paper`.
      networks: the same by accounting, network and part.
    """

    steps: int
    batch: int
    length: int
    total: dict[str, float]
    networks: dict[str, dict[str, Parts]]


@dataclasses.dataclass(frozen=True)
class RunFlops:
    """FLOPs of a run.

    Attributes:
      objective: the objective's name.
      steps: number of training steps.
      batch: `config.batch_size`, in sequences.
      length: `config.data.seq_length`, in tokens.
      tokens: tokens in all steps, padding included.
      segments: FLOPs of a step, for each segment of the run.
      total: FLOPs of the run by accounting, `model` or `paper`.
      precision: the dtype of the computation.
    """

    objective: str
    steps: int
    batch: int
    length: int
    tokens: int
    segments: tuple[StepFlops, ...]
    total: dict[str, float]
    precision: str

    def hours(self, device: str, chips: int = 8, mfu: float = 0.4) -> float:
        """Returns the hours that the run takes on `chips` chips of a device, at a model FLOPs utilization of `mfu`.

        `device` is a key of `devices.PEAK_FLOPS`, or an unambiguous part of one, such as H200.

        Raises:
          UserError: the device is unknown, or a number is invalid.
        """
        check_value("chips", chips, whole(1))
        check_value("mfu", mfu, above_up_to(0, 1))
        kind = devices.find(device)
        if kind is None:
            raise UserError(f"device {device!r} is unknown: expected one of {', '.join(devices.PEAK_FLOPS)}")
        peak = devices.PEAK_FLOPS[kind][self.precision]
        # The peak is that of one device; a chip of v2, v3 and 7x has two.
        count = chips * devices.DEVICES_A_CHIP.get(kind, 1)
        return self.total["model"] / (peak * count * mfu) / 3600


def count_flops(config: ConfigDict | TrainConfig | Mapping[str, Any]) -> RunFlops:
    """Counts the training FLOPs of a config, without training or downloading anything.

    Args:
      config: the run, as a config file returns it.

    Returns:
      FLOPs by segment, network and part, in two accountings: `model`, operations that the hardware must execute, and
      `paper`, operations that the ELECTRA paper's script counts.

    Raises:
      UserError: the config is invalid.
    """
    checked = train_config.resolve(config)
    objective = make_objective(checked)
    segments, parts = make_segments(objective, train_config.phases(checked)), []
    for segment in segments:
        networks = {name: count(*segment.cost, checked.optim.name) for name, count in totals.ACCOUNTINGS.items()}
        total = {name: sum_networks(each) for name, each in networks.items()}
        steps = segment.stop - segment.start
        parts.append(StepFlops(steps, segment.batch_size, segment.length, total, networks))
    return RunFlops(
        objective=checked.objective.name,
        steps=checked.steps,
        batch=checked.batch_size,
        length=checked.data.seq_length,
        tokens=sum(part.steps * part.batch * part.length for part in parts),
        segments=tuple(parts),
        total=totals.count_flops(segments, checked.steps, checked.optim.name),
        precision=checked.model.dtype,
    )


def make_objective(config: TrainConfig) -> Objective:
    """Builds the objective of a config, with the vocabulary size of its prepared corpus or of the vocabulary it names.

    Raises:
      UserError: the vocabulary cannot be read.
    """
    data = config.data
    prepared = pipeline.settings_of(Path(data.input))
    # The setting `vocab_size` is for a vocabulary that is yet to be trained.
    if prepared:
        vocab_size = prepared["vocab_size"]
    else:
        vocab_size = len(vocabulary.read(Path(data.vocabulary)).tokenizer) if data.vocabulary else data.vocab_size
    return registry.make(config.objective, config.model, config.steps, vocab_size)
