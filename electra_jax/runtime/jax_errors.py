"""Errors of JAX that a user can fix, as a `UserError`. This module does not import JAX."""

import contextlib
import os
from collections.abc import Iterator

from electra_jax.config.errors import UserError, first_line

_MEMORY = "use less, for instance smaller batches or shorter sequences, or a device with more memory"
_CACHE = "JAX_COMPILATION_CACHE_DIR"
_REASON = 200  # characters of JAX's message that are shown


@contextlib.contextmanager
def reported(advice: str = _MEMORY) -> Iterator[None]:
    """Makes a UserError of a lack of memory on a device, and of a platform that JAX does not find.

    Args:
      advice: what to do where the memory is not enough.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:  # JaxRuntimeError is a RuntimeError; XLA raises it, or a ValueError
        text = first_line(error)[:_REASON]
        if "RESOURCE_EXHAUSTED" in str(error):
            raise UserError(f"the memory of a device is not enough ({text}); {advice}") from error
        if "Unable to initialize backend" in text:
            raise UserError(f"{text}; install JAX for this device, or change JAX_PLATFORMS") from error
        raise


def check_cache(folder: str, name: str) -> None:
    """Checks a folder for compiled programs, which the setting or variable `name` has.

    Raises:
      UserError: it has a scheme that JAX does not know, with which JAX fails at the first compilation.
    """
    scheme, colon, _ = folder.partition("://")
    if colon and scheme not in ("gs", "s3"):
        raise UserError(f"{name}={folder} is invalid: expected a folder or gs://BUCKET/FOLDER; use one of these")


def check_environment() -> None:
    """Raises UserError where JAX would fail because of the environment."""
    check_cache(os.environ.get(_CACHE, ""), _CACHE)
