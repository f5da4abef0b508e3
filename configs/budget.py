"""ELECTRA with ModernBERT encoders and Muon, in the shape that fits a budget of FLOPs or hours.

    electra-jax train --config=budget:flops=1e15 --config.data.input='data/*.txt' --workdir=runs/english
    electra-jax train --config=budget:hours=8,device=cpu --config.data.input='data/*.txt' --workdir=runs/night

`flops=` is a number of training FLOPs (`model` count) from 1e13 to 1e17, 1e15 by default. `hours=` is a number of hours
on `device=`, cpu (two cores of a server, measured) or h100 (a forecast for the shape of 1e17; smaller ones keep it less
busy). The steps follow from either. `device=` also sets the precision; without it, budgets above 3e15 use bfloat16.

Trained so far, with the average of five GLUE tasks on development sets (docs/reference/models.md):

    flops=1e15                          5,379 steps, 1.7 hours of two CPU cores: 59.9
    flops=3e15,objective=electra_mlm    11,225 steps, 8.6 hours of two CPU cores: 60.1

The recipe is that of the ladder (docs/reference/ladder.md), and so are the shapes below 1e15, which were chosen by
trials at 1e13 and 3e13. Those above 3e15 are untried guesses. The shape for 1e17 is for one GPU; its steps have 512
sequences, to keep the GPU busy. For more FLOPs than that, see configs/modern.py.
`objective=electra_mlm` trains the encoder to fill masks in the last fifth of the steps, and to detect in all of them.
The learning rate is constant until 60% of the steps and then falls linearly, so that a run can be continued from its
constant part.

`--config=budget:flops=1e15,runlocal` shrinks the run to less than a minute on a CPU.
"""

import math
from typing import NamedTuple

from ml_collections import ConfigDict

from electra_jax import count_flops, train_config
from electra_jax.config import config_file
from electra_jax.config.errors import UserError


class _Row(NamedTuple):
    layers: int
    width: int
    vocab_size: int
    batch_size: int
    learning_rate: float


_ROWS = {
    1e13: _Row(2, 96, 4096, 32, 3e-3),
    3e13: _Row(3, 128, 4096, 32, 3e-3),
    1e14: _Row(3, 128, 4096, 32, 3e-3),
    3e14: _Row(4, 192, 4096, 32, 2e-3),
    1e15: _Row(4, 256, 8192, 64, 2e-3),
    3e15: _Row(6, 256, 8192, 64, 2e-3),
    1e16: _Row(8, 256, 16_384, 128, 2e-3),
    1e17: _Row(16, 256, 16_384, 512, 2e-3),
}
_LEAST, _MOST = 1e13, 1e17
_ON_CPUS = 3e15  # the largest that CPUs, which compute bfloat16 no faster, are expected to train
_LENGTH = 128  # tokens
# Sustained `model` FLOPs per second, and the precision.
_DEVICES = {
    # Measured on two cores: 3e15 FLOPs in 8.6 hours. 1e15 took 1.7 hours, which is 1.6e11 a second; the slower rate is
    # the safer one. Both runs had other work beside them.
    "cpu": (9.7e10, "float32"),
    # A forecast: 38 ms per step of 5.02e12 FLOPs (`electra-jax plan --config=budget:flops=1e17 --topology=h100:1`).
    "h100": (1.32e14, "bfloat16"),
}


def get_config(arg: str = "") -> ConfigDict:
    flops, device, rest = _budget(arg)
    dtype = _DEVICES[device][1] if device else "float32" if flops <= _ON_CPUS else "bfloat16"
    # By ratio: 2e13 is nearer to 3e13 than to 1e13.
    row = _ROWS[min(_ROWS, key=lambda budget: abs(math.log(flops / budget)))]
    # FLOPs are proportional to the steps, so any number of them gives the cost of one.
    trial = _config(row, dtype, 1000, rest)
    return _config(row, dtype, math.ceil(flops / count_flops(trial).total["model"] * trial.steps), rest)


def _budget(arg: str) -> tuple[float, str, str]:
    """Splits the argument into FLOPs, device (empty if not given) and the rest."""
    given = {part.partition("=")[0] for part in arg.split(",") if "=" in part}
    if {"flops", "hours"} <= given:
        raise UserError("config arguments flops= and hours= cannot both be set; remove one")
    unit = "hours" if "hours" in given else "flops"
    text, rest = config_file.take(arg, unit, "1e15")
    device, rest = config_file.take(rest, "device")
    if device not in _DEVICES and given & {"device", "hours"}:
        wrong = f"device={device} is unknown" if "device" in given else f"hours={text} needs a device"
        raise UserError(f"config argument {wrong}: expected device={' or '.join(_DEVICES)}")
    rate = 3600 * _DEVICES[device][0] if unit == "hours" else 1.0
    try:
        flops = float(text) * rate
    except ValueError:
        flops = math.nan
    if not _LEAST <= flops <= _MOST:
        expected = f"a number from {_LEAST:g} to {_MOST:g}"
        if unit == "hours":
            least, most = _LEAST / rate, _MOST / rate
            expected += f" FLOPs, on device={device} about {least:.2g} to {most:.3g} hours"
            expected += "" if math.isnan(flops) else f"; got {flops:.3g} FLOPs"
        raise UserError(f"config argument {unit}={text} is invalid: expected {expected}")
    return flops, device, rest


def _config(row: _Row, dtype: str, steps: int, rest: str) -> ConfigDict:
    config = train_config.paper()
    config.steps, config.batch_size = steps, row.batch_size
    config.log_every, config.eval_every, config.eval_batches = max(1, steps // 250), max(1, steps // 10), 24
    # Each tenth of the run is kept, so one at the end of the constant rate too.
    config.checkpoint.update(every=max(1, steps // 20), keep_last=2, keep_every=max(1, steps // 20) * 2)
    config.data.update(mode="packed", vocab_size=row.vocab_size, seq_length=_LENGTH)
    # ModernBERT's ratio of FFN to width: 1152 to 768.
    config.model.update(encoder="modernbert", layers=row.layers, width=row.width, ffn=3 * row.width // 2)
    config.model.update(heads=row.width // 32, embedding_size=row.width, max_length=_LENGTH, dropout=0.0)
    config.model.update(generator_width=0.5, generator_layers=2 / 3)
    config.model.dtype = dtype
    config.model.init_stddev = round(0.05 * (128 / row.width) ** 0.5, 4)  # as configs/tiny.py, at its width
    config.model.modernbert.local_window = 8  # bigrams are learned first, and these layers learn them
    config.objective.update(discriminator_weight=20.0, temperature=1.5)
    config.optim.update(name="muon", learning_rate=row.learning_rate, muon_rate=2.0, b2=0.98)
    config.optim.update(schedule="stable", decay=0.4, warmup_steps=max(1, steps // 20))
    if config_file.take(rest, "objective")[0] == "electra_mlm":
        # Detection alone in most steps: so the encoder's predictions cost no downstream score (the ladder).
        config.phases = "8/10 objective.encoder_weight=0; 2/10"
    return train_config.finish(config, rest, "flops=NUMBER, hours=NUMBER, device=NAME")
