"""Metrics as text for people: names of losses, their baselines, short numbers, the lines that training prints."""

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeGuard


class Loss(NamedTuple):
    """Display name and baseline of a loss.

    Attributes:
      name: the name that is printed.
      baseline: the metric that holds the loss of a model without context; empty if there is none.
    """

    name: str
    baseline: str


# In display order.
LOSSES: Mapping[str, Loss] = {
    "mlm_loss": Loss("MLM", "unigram_entropy"),
    "cloze_loss": Loss("cloze", "unigram_entropy"),
    "encoder_mlm_loss": Loss("encoder's MLM", "unigram_entropy"),
    "fill_loss": Loss("at [MASK]", "unigram_entropy"),
    "all_tokens_loss": Loss("all-tokens", ""),
    "all_tokens_masked_loss": Loss("at masked positions", "unigram_entropy"),
    "disc_loss": Loss("detection", "constant_entropy"),
    "nce_loss": Loss("noise-contrastive", "constant_entropy"),
}
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


def format_logged(metrics: Mapping[str, float | None]) -> str:
    """Formats the metrics of a logged step: losses, skipped steps if any, tokens per second, FLOPs so far."""
    losses = [f"{loss.name} {value:.4g}" for key, loss in LOSSES.items() if _is_known(value := metrics.get(key))]
    skipped = [f"skipped {number:.0f}"] if (number := metrics.get("total_skipped_steps")) else []
    speed = f"{short_number(metrics.get('tokens_per_second') or 0)} tok/s"
    flops = f"{short_number(metrics.get('total_flops') or 0)}FLOP"
    return " · ".join([*losses, *skipped, speed, flops])


def format_heldout(metrics: Mapping[str, float]) -> str:
    """Formats held-out losses, each with its baseline if it has one, and areas under the ROC curve."""
    parts = []
    for key, loss in LOSSES.items():
        if _is_known(value := metrics.get(key)):
            baseline = metrics.get(loss.baseline)
            beside = "" if baseline is None else f" ({loss.baseline.split('_')[0]} {baseline:.3f})"
            parts.append(f"{loss.name} loss {value:.3f}{beside}")
    areas = [f"{value:.3f} {name}" for key, name in AREAS.items() if _is_known(value := metrics.get(key))]
    return " · ".join(parts + ([f"AUC {', '.join(areas)}"] if areas else []))


def _is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and not math.isnan(value)
