"""JAX's persistent compilation cache for the time of a run."""

import contextlib
from collections.abc import Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache

from electra_jax.runtime import jax_errors


@contextlib.contextmanager
def compile_cache(folder: str) -> Iterator[None]:
    """Keeps compiled programs in `folder` inside the context; an empty name changes nothing.

    JAX opens its cache once, so the setting takes effect after a reset; at the end the earlier setting is restored.

    Raises:
      UserError: JAX does not know such an address.
    """
    if not folder:
        yield
        return
    jax_errors.check_cache(folder, "config.compile_cache")
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", folder)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()
