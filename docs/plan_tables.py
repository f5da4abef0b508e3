"""Tables of plans for docs/make_tables.py: what `electra-jax plan` says of configs, slices and GPUs."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Table = tuple[list[str], list[list[str]]]  # the head, and the rows
_GIB = 2.0**30

# config, slice, settings: the defaults where they fit, otherwise the fewest parts of a batch that fit.
_PLANS = (
    ("small", "v3:2x2", {}),
    ("small", "v5e:4x4", {}),
    ("base", "v3:2x2", {}),
    ("base", "v3:4x4", {}),
    ("base", "v4:2x2x2", {}),
    ("base", "v5e:4x4", {}),
    ("base", "v5p:2x2x1", {}),
    ("base", "v6e:4x4", {}),
    ("large", "v3:2x2", {"grad_accum_steps": 8}),
    ("large", "v3:4x4", {"grad_accum_steps": 2}),
    ("large", "v4:2x2x2", {"grad_accum_steps": 4}),
    ("large", "v5e:4x4", {"grad_accum_steps": 4}),
    ("large", "v5p:2x2x1", {"grad_accum_steps": 2}),
    ("large", "v6e:4x4", {"grad_accum_steps": 2}),
)


_GPU_PLANS = (
    ("small", "l4:1", {}),
    ("small", "rtx4090:1", {}),
    ("small", "h100:1", {}),
    ("small", "h100:1", {"batch_size": 512}),
    ("base", "rtx4090:1", {"model.remat": "full", "grad_accum_steps": 4}),
    ("base", "h100:1", {}),
    ("base", "h100:1", {"model.attention_dropout": 0.0}),
    ("modern:size=base", "h100:1", {}),
    ("base", "a100-80:8", {}),
    ("base", "h100:8", {}),
    ("large", "a100-80:8", {"model.remat": "full"}),
    ("large", "h100:8", {"model.remat": "full"}),
)


def plan(folder: str) -> Table:
    """What `electra-jax plan` says of each TPU slice."""
    rows = []
    for config, _, settings, p in _planned(folder, _PLANS):
        days = _days(p["days"], p["forecast_days"], p["days_at_mfu"])
        rows.append([*_row(config, settings, p), _forecast(p), *days])
    head = ["config", "slice (devices)", "settings", "GiB of one device", "lower bound of a step"]
    return [*head, "forecast, MFU", "days at the bound", "by the forecast", "at 40% MFU"], rows


_LENGTHS = (1024, 4096, 8192)  # of 131,072 tokens in a step, as base has


def plan_lengths(folder: str) -> Table:
    """What `electra-jax plan` says of base as a ModernBERT, by the length of sequences and the form of attention."""
    plans = []
    for length in _LENGTHS:
        settings = {
            "model.encoder": "modernbert",
            "model.max_length": length,
            "data.seq_length": length,
            "batch_size": 131_072 // length,
            "model.unroll": "false",  # compiles faster
        }
        plans += [("base", "v5e:4x4", settings | {"model.attention": form}) for form in ("plain", "fused")]
    rows = []
    for config, _, settings, p in _planned(folder, plans):
        flops = [f"{p['flops'][name] / 1e12:.0f}" for name in ("model", "paper", "xla")]
        memory, bound = _row(config, settings, p)[3:]
        shape = f"{settings['batch_size']} x {settings['data.seq_length']}"
        moved = f"{p['moved'] / 1e9:.0f}"
        rows.append([shape, settings["model.attention"], *flops, moved, memory, bound, _forecast(p)])
    head = ["sequences x tokens", "attention", "TFLOPs, `model`", "`paper`", "executed", "GB moved"]
    return [*head, "GiB of one device", "lower bound of a step", "forecast, MFU"], rows


def plan_gpus(folder: str) -> Table:
    """What `electra-jax plan` says of each set of GPUs."""
    rows = []
    for config, topology, settings, p in _planned(folder, _GPU_PLANS):
        command = f"`plan --config={config} --topology={topology}`"
        moved = f"{p['moved'] / 1e9:.0f}"
        bound = _row(config, settings, p)
        rows.append([command, *bound[2:4], moved, bound[4], _forecast(p), *_days(p["days"], p["forecast_days"])])
    head = ["`electra-jax` ...", "settings", "GiB of one GPU", "GB moved", "lower bound of a step"]
    return [*head, "forecast, MFU", "days at the bound", "by the forecast"], rows


_ATTENTION = {
    "this package's kernels": {},
    "cuDNN's, without dropout": {"model.attention_dropout": 0.0},
    "plain": {"model.attention": "plain"},
}


def plan_attention(folder: str) -> Table:
    """What `electra-jax plan` says of base on one H100, by the form of attention."""
    rows = []
    for form, settings in _ATTENTION.items():
        for _, _, _, p in _planned(folder, [("base", "h100:1", settings)]):
            bounds = (f"{1e3 * p['seconds'][name]:.0f}" for name in ("memory", "compute"))
            memory, moved = _row("base", settings, p)[2:4], f"{p['moved'] / 1e9:.0f}"
            rows.append([form, *memory, moved, *bounds, _forecast(p)])
    head = ["attention", "settings", "GiB", "GB moved", "bound by memory, ms", "bound by compute, ms"]
    return [*head, "forecast, MFU"], rows


_DEBERTA_PLANS = (
    *(
        (f"deberta_v3:size={size}", topology, {})
        for topology in ("v3:4x4", "v5e:4x4", "h100:8")
        for size in ("xsmall", "small", "base", "large")
    ),
    ("deberta_v3:size=base", "h100:1", {}),
    ("deberta_v3:size=large", "h100:1", {"grad_accum_steps": 4}),
)


def plan_deberta(folder: str) -> Table:
    """What `electra-jax plan` says of DeBERTaV3, with its vocabulary of 128,000 pieces."""
    rows = []
    for config, _, settings, p in _planned(folder, _DEBERTA_PLANS):
        moved = f"{p['moved'] / 1e9:.0f}"
        rows.append([*_row(config, settings, p), moved, _forecast(p), *_days(p["days"], p["days_at_mfu"])])
    head = ["config", "devices", "settings", "GiB of one device", "lower bound of a step", "GB moved", "forecast, MFU"]
    return [*head, "days at the bound", "at 40% MFU"], rows


def _planned(
    folder: str, plans: Iterable[tuple[str, str, dict[str, Any]]]
) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Each (config, topology, settings) whose plan there is or can be made, and that plan."""
    for config, topology, settings in plans:
        found = _make_plan(Path(folder), config, topology, settings)
        if found is not None:
            yield config, topology, settings, found


def _make_plan(folder: Path, config: str, topology: str, settings: dict[str, Any]) -> dict[str, Any] | None:
    """A plan from the folder, or else from `electra-jax plan`; None, with its message, if that fails."""
    overrides = [f"--config.{name}={value}" for name, value in settings.items()]
    path = folder / re.sub(r"[^\w.=-]+", "_", "_".join([config, topology, *overrides, "json"]))
    if not path.exists():
        command = [sys.executable, "-m", "electra_jax", "plan", f"--config={config}", f"--topology={topology}"]
        done = subprocess.run([*command, "--json", *overrides], check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(f"{config} on {topology}: left out, see its message above", file=sys.stderr)
            return None
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(done.stdout, encoding="utf-8")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _row(config: str, settings: dict[str, Any], p: dict[str, Any]) -> list[str]:
    """The cells that every table of plans has."""
    return [
        *(config, f"{p['topology']} ({p['devices']})"),
        ", ".join(f"`{name.split('.')[-1]}={value}`" for name, value in settings.items()) or "default",
        f"{p['memory']['total'] / _GIB:.1f} of {p['memory']['usable'] / _GIB:.1f}"
        + ("" if p["fits"] else " (too much)"),
        f"{p['bound']}, {max(p['seconds'].values()) * 1e3:.0f} ms",
    ]


def _forecast(p: dict[str, Any]) -> str:
    return f"{p['forecast_seconds'] * 1e3:.0f} ms, {p['forecast_mfu']:.0%}"


def _days(*days: float) -> list[str]:
    return [f"{each:.2f}" if each < 0.2 else f"{each:.1f}" for each in days]
