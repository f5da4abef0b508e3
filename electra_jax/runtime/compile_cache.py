"""JAX's persistent compilation cache, for the duration of a run or a command."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from electra_jax.config.settings import Check, setting
from electra_jax.runtime import io, jax_errors

AUTO, NONE = "auto", "none"
# Bytes in the user's cache folder: hundreds of train steps. JAX evicts the least recently used.
_MOST = 4 * 2**30
# Minimum compile time of cached programs, seconds; JAX's default of 1 excludes most programs of `load`.
_SHORTEST = 0.2

_chosen = False  # True inside a `compile_cache`


def cache_setting() -> Any:
    """Returns the setting for the argument of `compile_cache`."""
    doc = "Folder of the compilation cache; auto: the user's cache folder; none: no cache."
    return setting(AUTO, doc, Check(bool, "auto, none or a folder"), resumable=True)


@contextlib.contextmanager
def compile_cache(choice: str) -> Iterator[None]:
    """Context manager that caches compiled programs in a folder, and uses the cached ones.

    The earlier settings are restored on exit.

    Args:
      choice: a folder, also gs://BUCKET/FOLDER; `auto`: the folder that JAX has been given
        (`JAX_COMPILATION_CACHE_DIR`), or else one in the user's cache folder, limited to 4 GiB; `none`: no cache.

    Raises:
      UserError: JAX does not support the folder's URL.
    """
    global _chosen
    if choice not in (AUTO, NONE):
        jax_errors.check_cache(choice, "config.compile_cache")
    changes = _changes(choice)
    before, outer = {name: jax.config.values[name] for name in changes}, _chosen
    _update(changes)
    _chosen = True
    try:
        yield
    finally:
        _chosen = outer
        _update(before)


@contextlib.contextmanager
def compile_cache_unless_chosen() -> Iterator[None]:
    """Like `compile_cache(AUTO)`, but inside another `compile_cache` it keeps that one's choice."""
    with contextlib.nullcontext() if _chosen else compile_cache(AUTO):
        yield


def folder() -> str | None:
    """Returns the current folder of compiled programs; None if they are not cached."""
    kept: str | None = jax.config.values["jax_compilation_cache_dir"]
    return kept


def _changes(choice: str) -> dict[str, Any]:
    """Returns JAX's settings that change inside the context."""
    if choice == NONE:
        return {"jax_compilation_cache_dir": None}
    if choice != AUTO:
        return {"jax_compilation_cache_dir": choice}
    own = io.user_cache() / "compiled"
    # JAX_COMPILATION_CACHE_DIR or an outer `compile_cache` has chosen a folder already.
    if folder() is not None or not _is_writable(own):
        return {}
    return {
        "jax_compilation_cache_dir": str(own),
        "jax_compilation_cache_max_size": _MOST,
        "jax_persistent_cache_min_compile_time_secs": _SHORTEST,
    }


def _is_writable(path: Path) -> bool:
    with contextlib.suppress(OSError):
        path.mkdir(parents=True, exist_ok=True)
    return os.access(path, os.W_OK)


def _update(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    if settings:
        # JAX opens its cache once, and would keep the settings of that time.
        compilation_cache.reset_cache()
