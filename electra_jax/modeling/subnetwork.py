"""One network of an objective as a model of its own, for export, import, fine-tuning and detection."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax.modeling.batch import Batch
from electra_jax.modeling.config import ElectraConfig
from electra_jax.modeling.electra import Electra

_ENCODER_HEADS = ("discriminator_head", "mlm_head", "copy_gate")


class Network(NamedTuple):
    """An encoder with its embeddings and heads, without a generator.

    Attributes:
      config: the config of this network alone.
      params: the parameters of `Electra(config)`, NumPy arrays: `embeddings`, `encoder` and the heads.
    """

    config: ElectraConfig
    params: Any

    @property
    def model(self) -> Electra:
        return Electra(self.config)


def shapes(config: ElectraConfig) -> Any:
    """The parameters of `Electra(config)`, as ShapeDtypeStructs."""
    ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(Electra(config).init, jax.random.key(0), Batch(ids, ids, ids))["params"]


def config_of(config: ElectraConfig, network: str) -> ElectraConfig | None:
    """The config of `extract(config, params, network)`; None where `extract` returns None."""
    if network == "encoder":
        heads = tuple(head for head in config.heads if head in _ENCODER_HEADS)
        return dataclasses.replace(config, generator=None, two_towers=False, tying="embeddings", heads=heads)
    if config.generator is None or config.two_towers:
        return None
    return ElectraConfig(
        config.vocab_size, config.embedding_size, config.max_length, config.generator, heads=("mlm_head",)
    )


def extract(config: ElectraConfig, params: Any, network: str) -> Network | None:
    """The encoder or the generator of a model, with its embeddings and heads.

    Args:
      config: the model's config.
      params: the model's parameters.
      network: `encoder` or `generator`; a generator's head becomes an `mlm_head`.

    Returns:
      The network, which shares nothing with the rest; None for a generator that does not exist or has two towers.
    """
    own = config_of(config, network)
    if own is None:
        return None
    if network == "encoder":
        tables = params["embeddings"]
        if config.tying == "gdes":  # these tables hold the difference from the generator's
            base = params["generator_embeddings"]
            tables = {name: value + base[name] if name != "norm" else value for name, value in tables.items()}
        parts = {"encoder": params["encoder"], **{head: params[head] for head in own.heads}}
    else:
        tables = params["generator_embeddings" if config.tying in ("none", "gdes") else "embeddings"]
        encoder = params["encoder" if config.tying == "all" else "generator"]
        parts = {"encoder": encoder, "mlm_head": params["generator_head"]}
    return Network(own, jax.tree.map(np.asarray, {"embeddings": tables, **parts}))
