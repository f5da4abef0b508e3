"""Extracts one network of a pre-training system as a model of its own, to export, import or run it."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from electra_jax.config.errors import UserError
from electra_jax.config.settings import whole
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.config import ElectraConfig
from electra_jax.modeling.electra import Electra

# Without `baseline`, which reads the generator's states.
_ENCODER_HEADS = ("discriminator_head", "mlm_head", "copy_gate")


class Network(NamedTuple):
    """An encoder with its embeddings and heads, without a generator.

    Attributes:
      config: its shape; `config.heads` names its heads.
      params: the parameters of `Electra(config)`, NumPy arrays: `embeddings`, `encoder` and the heads.
    """

    config: ElectraConfig
    params: Any

    @property
    def model(self) -> Electra:
        return Electra(self.config)

    def first_layers(self, count: int) -> "Network":
        """Returns the network with its first `count` layers only.

        Raises:
          UserError: it does not have so many, or its layers share their weights.
        """
        encoder = self.config.encoder
        # The case of an encoder such as ALBERT's, which docs/understand/add_encoder.md adds.
        if "layers" not in self.params["encoder"]:
            raise UserError(f"layers={count} is invalid: the layers of this encoder share their weights; leave it out")
        if not whole(1).holds(count) or count > encoder.layers:
            raise UserError(
                f"layers={count} is invalid: expected an integer from 1 to {encoder.layers}, the encoder's layers"
            )
        layers = jax.tree.map(lambda x: x[:count], self.params["encoder"]["layers"])
        params = {**self.params, "encoder": {**self.params["encoder"], "layers": layers}}
        return Network(dataclasses.replace(self.config, encoder=dataclasses.replace(encoder, layers=count)), params)


@functools.cache  # tracing takes a third of a second
def param_shapes(config: ElectraConfig) -> Any:
    """Returns the parameters of `Electra(config)` as ShapeDtypeStructs; cached, so do not modify the result."""
    # No parameter depends on the shape of a batch.
    ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(Electra(config).init, jax.random.key(0), Batch(ids, ids, ids))["params"]


def flatten_params(params: Any) -> dict[str, Any]:
    """Flattens a tree of parameters to a dict from paths, such as `encoder/project/kernel`, to leaves."""
    return dict(traverse_util.flatten_dict(params, sep="/"))


def unflatten_params(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Reverses `flatten_params`."""
    return dict(traverse_util.unflatten_dict(flat, sep="/"))


def network_config(config: ElectraConfig, network: str) -> ElectraConfig | None:
    """Returns the config of `extract(config, params, network)`; None if that is None."""
    if network == "encoder":
        heads = tuple(head for head in config.heads if head in _ENCODER_HEADS)
        return dataclasses.replace(config, generator=None, two_towers=False, tying="embeddings", heads=heads)
    # Two causal networks are not an encoder.
    if config.generator is None or config.two_towers:
        return None
    return dataclasses.replace(
        config, encoder=config.generator, generator=None, tying="embeddings", heads=("mlm_head",)
    )


def extract(config: ElectraConfig, params: Any, network: str) -> Network | None:
    """Extracts the encoder or the generator of a system, with the embeddings and layers that the two share.

    Args:
      config: the config of the system's model.
      params: the system's parameters.
      network: `encoder` or `generator`; a generator's head becomes an `mlm_head`.

    Returns:
      The network; None if a generator is requested and the system has none, or one with two towers.
    """
    own = network_config(config, network)
    if own is None:
        return None
    if network == "encoder":
        tables = params["embeddings"]
        if config.tying == "gdes":  # the encoder's tables are stored as differences from the generator's
            base = params["generator_embeddings"]
            # The norm has no base: each network has its own.
            tables = {name: value + base[name] if name != "norm" else value for name, value in tables.items()}
        parts = {"encoder": params["encoder"], **{head: params[head] for head in own.heads}}
    else:
        tables = params["generator_embeddings" if config.tying in ("none", "gdes") else "embeddings"]
        encoder = params["encoder" if config.tying == "all" else "generator"]
        parts = {"encoder": encoder, "mlm_head": params["generator_head"]}
    return Network(own, jax.tree.map(np.asarray, {"embeddings": tables, **parts}))
