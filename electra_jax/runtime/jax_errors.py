"""Converts errors of JAX that a user can fix to `UserError`. This module does not import JAX."""

import contextlib
import os
from collections.abc import Iterator

from electra_jax.config.errors import UserError, first_line

_MEMORY = "use less, for instance smaller batches or shorter sequences, or a device with more memory"
_CACHE = "JAX_COMPILATION_CACHE_DIR"


@contextlib.contextmanager
def reported(advice: str = _MEMORY) -> Iterator[None]:
    """Context manager that converts two errors to UserError: a device out of memory, and an unavailable JAX platform.

    Args:
      advice: what to do about too little memory.
    """
    try:
        yield
    # XLA raises a JaxRuntimeError, which is a RuntimeError, or a ValueError.
    except (RuntimeError, ValueError) as error:
        text = first_line(error)
        # XLA's status for too little memory.
        if "RESOURCE_EXHAUSTED" in str(error):
            raise UserError(f"the memory of a device is not enough ({text}); {advice}") from error
        if "Unable to initialize backend" in text:
            raise UserError(f"{text}; install JAX for this device, or change JAX_PLATFORMS") from error
        raise


def check_cache(folder: str, name: str) -> None:
    """Checks a folder for compiled programs, given by the setting or variable `name`.

    Raises:
      UserError: JAX does not support the scheme of its URL, and would fail at the first compilation.
    """
    scheme, colon, _ = folder.partition("://")
    if colon and scheme not in ("gs", "s3"):
        raise UserError(f"{name}={folder} is invalid: expected a folder or gs://BUCKET/FOLDER; use one of these")


def check_environment() -> None:
    """Raises UserError if JAX would fail because of an environment variable."""
    check_cache(os.environ.get(_CACHE, ""), _CACHE)
