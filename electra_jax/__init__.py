"""Pre-training of text encoders by replaced-token detection (ELECTRA) in JAX and Flax.

    import electra_jax

    run = electra_jax.pretrain(electra_jax.configs.tiny(objective="electra"), workdir="runs/tiny")
    model = electra_jax.load("runs/tiny")
    model.detect("returns the number the of elements")

Importing this package imports neither JAX nor any other library: each name below is loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from electra_jax import configs as configs
    from electra_jax.data.pipeline import prepare as prepare
    from electra_jax.downstream.finetuning.run import finetune as finetune
    from electra_jax.flops.count import count_flops as count_flops
    from electra_jax.loading.model import Model as Model
    from electra_jax.models import card as card
    from electra_jax.models import export as export
    from electra_jax.models import load as load
    from electra_jax.models import push as push
    from electra_jax.objectives.registry import systems as systems
    from electra_jax.planning.estimate import estimate as estimate
    from electra_jax.train import pretrain as pretrain

# The module that defines each public name. No name may be that of a top-level module: importing such a module would set
# the package's attribute to the module, and `__getattr__` would no longer be called for the name.
_MODULES = {
    "load": "models",
    "Model": "loading.model",
    "pretrain": "train",
    "finetune": "downstream.finetuning.run",
    "prepare": "data.pipeline",
    "export": "models",
    "card": "models",
    "push": "models",
    "estimate": "planning.estimate",
    "count_flops": "flops.count",
    "systems": "objectives.registry",
}
__all__ = [*_MODULES, "configs"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("electra_jax")
    if name == "configs":
        return importlib.import_module("electra_jax.configs")
    if name in _MODULES:
        return getattr(importlib.import_module(f"electra_jax.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'electra_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
