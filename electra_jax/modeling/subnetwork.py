"""One network of a system as a model of its own: what is exported, imported, and shown a text."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax.modeling.config import ElectraConfig
from electra_jax.modeling.electra import Electra

_OF_ENCODERS = ("discriminator_head", "mlm_head", "copy_gate")


class Network(NamedTuple):
    """An encoder with its embeddings and heads, without a generator.

    Attributes:
      config: its shape; `config.heads` are those that it has.
      params: of `Electra(config)`, in NumPy: `embeddings`, `encoder` and the heads.
    """

    config: ElectraConfig
    params: Any

    @property
    def model(self) -> Electra:
        return Electra(self.config)


def shapes(config: ElectraConfig) -> Any:
    """The parameters of `Electra(config)`, as ShapeDtypeStructs."""
    ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(Electra(config).init, jax.random.key(0), ids, ids, ids)["params"]


def config_of(config: ElectraConfig, network: str) -> ElectraConfig | None:
    """The config of `extract(config, params, network)`, None where there is no such network of one tower."""
    if network == "encoder":
        heads = tuple(head for head in config.heads if head in _OF_ENCODERS)
        return dataclasses.replace(config, generator=None, two_towers=False, tying="embeddings", heads=heads)
    if config.generator is None or config.two_towers:
        return None
    return ElectraConfig(
        config.vocab_size, config.embedding_size, config.max_length, config.generator, heads=("mlm_head",)
    )


def extract(config: ElectraConfig, params: Any, network: str) -> Network | None:
    """`encoder` or `generator` of a system, with all that it reads, whatever the two share.

    Args:
      config: of the system's model.
      params: its parameters.
      network: which; a generator's head becomes an `mlm_head`.

    Returns:
      The network; None where the system has no such, or one of two towers.
    """
    own = config_of(config, network)
    if own is None:
        return None
    if network == "encoder":
        tables = params["embeddings"]
        if config.tying == "gdes":  # what is kept is the difference from the generator's
            base = params["generator_embeddings"]
            tables = {name: value + base[name] if name != "norm" else value for name, value in tables.items()}
        parts = {"encoder": params["encoder"], **{head: params[head] for head in own.heads}}
    else:
        tables = params["generator_embeddings" if config.tying in ("none", "gdes") else "embeddings"]
        encoder = params["encoder" if config.tying == "all" else "generator"]
        parts = {"encoder": encoder, "mlm_head": params["generator_head"]}
    return Network(own, jax.tree.map(np.asarray, {"embeddings": tables, **parts}))
