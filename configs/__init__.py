"""The shipped configs as functions: `electra_jax.configs.tiny(objective="mlm", runlocal=True)`.

Each config is the file of the same name in this folder. A function of that name calls the file's `get_config` with its
keyword arguments as the config's argument, so that the call above equals `--config=tiny:objective=mlm,runlocal` on a
command line. The result is an `ml_collections.ConfigDict`: change its settings, then pass it to `electra_jax.pretrain`
(`tiny`, `small`, `base`, `large`, `modern`, `budget`, `babylm`, `deberta_v3`) or `electra_jax.finetune` (`glue`,
`squad`, `table`, `tags`).
"""

import ast
from collections.abc import Callable
from pathlib import Path

from ml_collections import ConfigDict

from electra_jax.config import config_file

_FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("[!_]*.py"))}
__all__ = list(_FILES)
# The files are run, not imported: a submodule of the same name would replace the function.
__path__ = []


def __getattr__(name: str) -> Callable[..., ConfigDict]:
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no config {name!r}: expected one of {', '.join(_FILES)}")
    path = _FILES[name]

    def config(**arguments: str | float | bool) -> ConfigDict:
        # runlocal=True is the word `runlocal`; False leaves it out.
        words = [key if value is True else f"{key}={value}" for key, value in arguments.items() if value is not False]
        return config_file.load(path, ",".join(words))

    config.__name__ = config.__qualname__ = name
    # Parsed, not run: a config file imports JAX, which its docstring does not need.
    config.__doc__ = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return config


def __dir__() -> list[str]:
    return __all__
