"""Settings at their extremes: refused, or two steps with finite numbers, or stopped by the guard."""

import shutil

import numpy as np
import pytest
from cli_runs import arrays, logged, small_config, train_arguments
from fuzzing import NUMBERS, STRINGS, Fuzz

from electra_jax import train_config
from electra_jax.commands import train
from electra_jax.config import config_file, settings
from electra_jax.train_config import TrainConfig

pytestmark = pytest.mark.night

# Other values than these of settings that make arrays or programs larger are resolved, but not trained: what they need
# is memory and time, as was asked for, and a process that gets too much of either is killed.
SMALL = {"0", "-1", "1", "2", "0.5", "nan", "inf", "-inf", "1e-45", "1e-300", "-0.0"}
LARGER = (
    *("steps", "batch_size", "grad_accum_steps", "eval_batches", "data.vocab_size", "data.seq_length", "data.short_"),
    *("model.layers", "model.width", "model.ffn", "model.heads", "model.embedding_size", "model.max_length"),
    *("model.generator_", "mesh."),
)


def test_settings(request, text_file, tmp_path):
    fuzz = Fuzz(request, "settings", tmp_path)
    given = settings.flatten(small_config(text_file))
    known = settings.settings_of(TrainConfig)
    numeric = [name for name in given if known[name].type in (int, float)]
    for case in fuzz:
        name = fuzz.random.choice(numeric)
        value = fuzz.random.choice(NUMBERS) if fuzz.random.random() < 0.9 else fuzz.random.choice(STRINGS)
        if name.startswith(LARGER) and value not in SMALL:
            check_resolves(fuzz, case, name, value)
            continue
        workdir = tmp_path / "run"
        options = ("--config.steps=2", "--config.guard.patience=1", "--config.log_every=1", "--config.eval_batches=1")
        argv = train_arguments(text_file, workdir, *options, f"--config.{name}={value}")
        if fuzz.check(case, train.main, argv) == 0:
            steps = max(line["step"] for line in logged(workdir))
            for key, array in arrays(workdir, steps).items():
                if np.issubdtype(array.dtype, np.floating):
                    assert np.all(np.isfinite(array)), fuzz.told(case, (name, value), key)
            losses = [line["loss"] for line in logged(workdir)]
            assert all(loss is not None and np.isfinite(loss) for loss in losses), fuzz.told(case, (name, value))
        shutil.rmtree(workdir, ignore_errors=True)


def check_resolves(fuzz: Fuzz, case: int, name: str, value: str) -> None:
    """The settings are checked without training."""

    def resolve(argv: list[str]) -> None:
        config = small_config()
        config_file.override(config, name, value)
        train_config.resolve(config)

    fuzz.check(case, resolve, [], (name, value))
