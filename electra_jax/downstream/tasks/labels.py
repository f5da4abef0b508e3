"""Labels as text, and the order of classes."""

import decimal
import math
import re
from collections.abc import Collection
from typing import Any

from electra_jax.config.errors import UserError

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")  # codes such as 007 are names


def label_text(value: Any) -> str:
    """A label as text: JSON's true is "true", 1.0 is "1"; empty for a missing label."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else str(value) if math.isfinite(value) else ""
    return str(value) if isinstance(value, str | int) else ""


def in_order(labels: Collection[str], source: str) -> tuple[str, ...]:
    """Different labels in the order of their class numbers: numeric if all are numbers, else by their characters.

    Args:
      labels: the labels.
      source: where they are from, for the message.

    Raises:
      UserError: two labels are the same number, as 1 and 1.0 are.
    """
    numbers: dict[decimal.Decimal, str] = {}
    for label in sorted(filter(_NUMBER.fullmatch, labels)):
        number = decimal.Decimal(label)
        if number in numbers:
            raise UserError(
                f"{source} has the classes {numbers[number]} and {label}, which are the same number: expected one "
                "spelling; write it one way in all files"
            )
        numbers[number] = label
    if len(numbers) < len(labels):
        return tuple(sorted(labels))
    return tuple(numbers[number] for number in sorted(numbers))


def joined(labels: Collection[str]) -> str | None:
    """A label that is others with commas between them, as "joy,surprise" beside "joy" and "surprise"; or None."""
    parts = {label: {part.strip() for part in label.split(",")} for label in labels}
    return next((label for label, names in sorted(parts.items()) if len(names) > 1 and names <= {*labels}), None)
