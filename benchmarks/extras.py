"""Packages that only some benchmarks need."""

import contextlib
import sys
from collections.abc import Iterator

from electra_jax.config import errors


@contextlib.contextmanager
def needed(advice: str) -> Iterator[None]:
    """Context manager for imports: a package that is missing ends the process with one line, which has the advice."""
    try:
        yield
    except ModuleNotFoundError as error:
        print(f"error: {error.name} is not installed; {advice}", file=sys.stderr)
        raise SystemExit(errors.EXIT_USER_ERROR) from error
