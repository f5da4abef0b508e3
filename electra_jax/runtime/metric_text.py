"""Metrics as text for people: short numbers, and the lines that training prints."""

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeGuard


class NamedLoss(NamedTuple):
    """Display name and baseline of a loss.

    Attributes:
      name: the name that is printed.
      baseline: the metric that holds the loss of a model without context; empty if there is none.
    """

    name: str
    baseline: str = ""


# Areas under the ROC curve, and what each distinguishes from real tokens.
AREAS: Mapping[str, str] = {"disc_auc": "own fakes", "nce_auc": "own noise", "unigram_auc": "unigram fakes"}


def short_number(number: float) -> str:
    """Formats a number with four significant digits and an SI letter: 18230 -> 18.23k."""
    for letter in ("", "k", "M", "G", "T", "P", "E"):
        # 999.95 would be rounded to 1000.
        if not abs(number) >= 999.95:
            return f"{number:.4g}{letter}"
        number /= 1000
    return f"{number:.4g}Z"


def format_duration(seconds: float) -> str:
    """Formats a time in its largest unit: 5.6 s, 3.4 min, 1.2 h."""
    unit, name = (3600, "h") if seconds >= 3600 else (60, "min") if seconds >= 60 else (1, "s")
    return f"{seconds / unit:.1f} {name}"


def format_logged(metrics: Mapping[str, float | None], losses: Mapping[str, NamedLoss]) -> str:
    """Formats the metrics of a logged step: losses, skipped steps if any, tokens per second, FLOPs so far."""
    found = [f"{loss.name} {value:.4g}" for key, loss in losses.items() if _is_known(value := metrics.get(key))]
    skipped = [f"skipped {number:.0f}"] if (number := metrics.get("total_skipped_steps")) else []
    speed = f"{short_number(metrics.get('tokens_per_second') or 0)} tok/s"
    flops = f"{short_number(metrics.get('total_flops') or 0)}FLOP"
    return " · ".join([*found, *skipped, speed, flops])


def format_heldout(metrics: Mapping[str, float], losses: Mapping[str, NamedLoss]) -> str:
    """Formats held-out losses, each with its baseline if it has one, and areas under the ROC curve."""
    parts = []
    for key, loss in losses.items():
        if _is_known(value := metrics.get(key)):
            baseline = metrics.get(loss.baseline)
            beside = "" if baseline is None else f" ({loss.baseline.split('_')[0]} {baseline:.3f})"
            parts.append(f"{loss.name} loss {value:.3f}{beside}")
    areas = [f"{value:.3f} {name}" for key, name in AREAS.items() if _is_known(value := metrics.get(key))]
    return " · ".join(parts + ([f"AUC {', '.join(areas)}"] if areas else []))


def _is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and not math.isnan(value)
