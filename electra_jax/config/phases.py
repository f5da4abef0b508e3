"""The text of `config.phases`: shares of a run's steps, each with the settings that differ there.

An example is `9/10 data.seq_length=128; 1/10 batch_size=64 optim.learning_rate=1e-4`.
"""

import itertools
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from electra_jax.config.errors import UserError

FORM = "SHARE NAME=VALUE ...; SHARE NAME=VALUE ...; ..., where the shares of the steps add up to 1"
# Without exponents and with few digits: Fraction would expand 1e999999999 to a billion digits.
_NUMBER = re.compile(r"\d{1,12}(\.\d{0,12})?|\.\d{1,12}|\d{1,12}/[1-9]\d{0,11}", re.ASCII)


def fraction(text: str) -> Fraction | None:
    """Parses a fraction of a run, such as 1/3 or .1; returns None unless it is above 0 and up to 1."""
    number = Fraction(text) if _NUMBER.fullmatch(text) else Fraction(0)
    return number if 0 < number <= 1 else None


class PhaseText(NamedTuple):
    """One phase, as it is written.

    Attributes:
      share: its share of the steps.
      changes: the settings that differ in this phase, by dotted name.
    """

    share: Fraction
    changes: Mapping[str, str]


def parse(text: str) -> list[PhaseText]:
    """Parses the text; an empty one is a single phase without changes.

    Raises:
      UserError: the text has another form, or the shares do not add up to 1.
    """
    if not text.strip():
        return [PhaseText(Fraction(1), {})]
    written = [_phase(part, text) for part in text.split(";") if part.strip()]
    total = sum(phase.share for phase in written)
    if total != 1:
        raise UserError(
            f"config.phases={text!r} is invalid: the shares add up to {total}; expected {FORM}; a third is 1/3"
        )
    return written


def stops(written: list[PhaseText], steps: int) -> list[int]:
    """Returns the number of steps done at the end of each phase of a run of `steps` steps."""
    # Running totals are rounded, not shares, so the steps of all phases add up to those of the run.
    return [round(steps * share) for share in itertools.accumulate(phase.share for phase in written)]


def _phase(part: str, text: str) -> PhaseText:
    share, *settings = part.split()
    changes = dict(setting.partition("=")[::2] for setting in settings)
    number = fraction(share)
    # There are fewer changes than settings if a name is given twice.
    if number is None or len(changes) < len(settings) or not all("=" in setting for setting in settings):
        raise UserError(f"config.phases={text!r} is invalid at {part.strip()!r}: expected {FORM}")
    return PhaseText(number, changes)
