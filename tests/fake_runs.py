"""Work directories with made-up logs, without training."""

import json
import math
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = {
    "seed": 0,
    "steps": 40,
    "batch_size": 8,
    "data": {"input": "text/*.txt", "vocab_size": 600, "seq_length": 64, "mode": "packed"},
    "model": {
        "encoder": "bert",
        "layers": 4,
        "width": 128,
        "ffn": 512,
        "heads": 2,
        "embedding_size": 64,
        "generator_width": 0.5,
        "generator_layers": 0.5,
        "tying": "embeddings",
        "dtype": "float32",
    },
    "objective": {"name": "electra", "mask_prob": 0.15},
    "optim": {"learning_rate": 1e-3},
}


def line(step: int, **others: Any) -> dict[str, Any]:
    """The metrics of a step; every twentieth has held-out metrics."""
    fell = math.exp(-step / 20)
    measured = {
        "loss": 9 + 4 * fell,
        "mlm_loss": 4.5 + 2 * fell,
        "disc_loss": 0.3 + 0.1 * fell,
        "disc_auc": 0.75 - 0.2 * fell,
        "replaced_fraction": 0.12 + 0.02 * fell,
    }
    heldout = {f"heldout_{name}": value + 0.05 for name, value in measured.items() if name != "loss"}
    heldout |= {"heldout_unigram_auc": 0.71, "heldout_unigram_entropy": 5.94, "heldout_constant_entropy": 0.372}
    return {
        "step": step,
        **measured,
        "grad_norm": 1 + 20 * fell,
        "learning_rate": 1e-3 * (1 - step / 41),
        "tokens_per_second": 12_345.678,
        "total_flops": 1.5e10 * step,
        "total_flops_paper": 1.8e10 * step,
        "total_tokens": 512 * step,
        "device_seconds": 2.25 * step,
        "mfu": None,
        "loader_wait": 0.0004,
        "goodput": 0.75,
        "total_seconds_setup": 20.0,
        "total_seconds_compile": 10.0,
        "total_seconds_data": 0.0,
        "total_seconds_step": 150.0,
        "total_seconds_evaluation": 8.0,
        "total_seconds_checkpoint": 2.0,
        "total_seconds_lost": 10.0,
        "epoch": step / 100,
        **(heldout if step % 20 == 0 else {}),
        **others,
    }


def write(workdir: Path, lines: list[dict[str, Any]] | None = None, environment: bool = True, **settings: Any) -> Path:
    """Writes a work directory; `settings` have __ for dots in their names, and None removes a setting."""
    config = json.loads(json.dumps(SETTINGS))
    for name, value in settings.items():
        *parts, last = name.split("__")
        place = config
        for part in parts:
            place = place[part]
        place[last] = value
        if value is None:
            del place[last]
    workdir.mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(config))
    lines = [line(step) for step in range(5, 41, 5)] if lines is None else lines
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    if environment:
        packages = {"jax": "0.10.2", "flax": "0.12.8"}
        kept = {"python": "3.11.7", "packages": packages, "devices": ["cpu"] * 4, "processes": 2, "commit": "a1" * 20}
        (workdir / "environment.json").write_text(json.dumps(kept))
    return workdir


def scored(run: str, step: int, task: str, seed: int, score: float, metric: str = "accuracy") -> dict[str, Any]:
    """A line of `curves.jsonl`."""
    counted = {"flops": step * 1e9, "flops_paper": step * 2e9, "tokens": step * 1e3}
    of = {"run": run, "objective": "electra", "step": step, "weights": f"{run}{step}", **counted}
    return {**of, "task": task, "metric": metric, "seed": seed, "score": score}
