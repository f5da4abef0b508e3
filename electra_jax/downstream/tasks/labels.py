"""Conversion of labels to text, and the order of classes."""

import decimal
import math
import re
from collections.abc import Collection
from typing import Any

from electra_jax.config.errors import UserError

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")  # codes such as 007 are names


def label_text(value: Any) -> str:
    """Converts a label to text: JSON's true is "true", 1.0 is "1"; empty for a missing label."""
    # First, because a bool is an int, and would be "True".
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else str(value) if math.isfinite(value) else ""
    return str(value) if isinstance(value, str | int) else ""


def in_order(labels: Collection[str], source: str) -> tuple[str, ...]:
    """Sorts distinct labels into the order of their class indices: numerically if all are numbers, else as strings.

    Args:
      labels: the labels.
      source: the source of the labels, for the message.

    Raises:
      UserError: two labels are the same number, as 1 and 1.0 are.
    """
    # Not float, in which long integers that differ in the last digit are equal.
    numbers: dict[decimal.Decimal, str] = {}
    for label in sorted(filter(_NUMBER.fullmatch, labels)):
        number = decimal.Decimal(label)
        if number in numbers:
            raise UserError(
                f"{source} has the classes {numbers[number]} and {label}, which are the same number: expected one "
                "spelling; write it one way in all files"
            )
        numbers[number] = label
    # One label that is no number makes all of them names.
    if len(numbers) < len(labels):
        return tuple(sorted(labels))
    return tuple(numbers[number] for number in sorted(numbers))


def joined(labels: Collection[str]) -> str | None:
    """Returns a label that joins other labels by commas, as "joy,surprise" does "joy" and "surprise"; None if none."""
    parts = {label: {part.strip() for part in label.split(",")} for label in labels}
    return next((label for label, names in sorted(parts.items()) if len(names) > 1 and names <= {*labels}), None)
