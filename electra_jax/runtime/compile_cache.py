"""JAX's persistent compilation cache, for the duration of a run or a command."""

import contextlib
import os
import threading
from collections import ChainMap
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

_NAMES = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
)
_lock = threading.Lock()
_outside: dict[str, Any] = {}  # JAX's settings outside all contexts
_open: list[dict[str, Any]] = []  # the changes of each open context, the innermost last


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
    if choice not in (AUTO, NONE):
        jax_errors.check_cache(choice, "config.compile_cache")
    with _lock:
        if not _open:
            _outside.update({name: jax.config.values[name] for name in _NAMES})
        changes = _changes(choice)
        _open.append(changes)
    try:
        _update()
        yield
    finally:
        with _lock:
            # By identity, and not the last one: runs in threads need not end in reverse order.
            del _open[next(i for i, each in enumerate(_open) if each is changes)]
        _update()


@contextlib.contextmanager
def compile_cache_unless_chosen() -> Iterator[None]:
    """Like `compile_cache(AUTO)`, but inside another `compile_cache` it keeps that one's choice."""
    with contextlib.nullcontext() if _open else compile_cache(AUTO):
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


def _update() -> None:
    """Gives JAX the settings of the open contexts."""
    with _lock:
        wanted = ChainMap(*reversed(_open), _outside)
        changed = {name: value for name, value in wanted.items() if jax.config.values[name] != value}
        for name, value in changed.items():
            jax.config.update(name, value)
    if changed:
        # JAX opens its cache once, and would keep the settings of that time.
        compilation_cache.reset_cache()
