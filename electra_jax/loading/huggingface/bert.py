"""BERT's tensor names and config.json, for writing and reading encoders as BERTs.

An ELECTRA encoder whose embedding size equals its width is a BERT with other tensor names, so tools that support only
BERT can serve it. BERT has no class for the discriminator.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.modeling import tensor_names
from electra_jax.modeling.architecture import Architecture
from electra_jax.modeling.bert import Bert
from electra_jax.modeling.config import ElectraConfig
from electra_jax.modeling.model_config import ARCHITECTURES
from electra_jax.modeling.subnetwork import Network
from electra_jax.modeling.tensor_names import Tensor

_WAY_OUT = "leave --as=bert, or head=bert, out"
_NEVER_READ = ("bert.pooler.", "pooler.", "cls.seq_relationship.", "cls.predictions.decoder.bias")


class NamedBert(Bert):
    """The same network as `Bert`, which has ELECTRA's names, with BERT's."""

    model_type = "bert"
    class_prefix = "Bert"
    prefix = "bert."
    decoder = "cls.predictions.decoder.weight"
    heads: ClassVar = {
        "mlm_head": [
            *tensor_names.linear("mlm_head/dense", "cls.predictions.transform.dense"),
            *tensor_names.norm("mlm_head/norm", "cls.predictions.transform.LayerNorm"),
            Tensor("mlm_head/bias", ("cls.predictions.bias",)),
        ]
    }
    task_heads: ClassVar = {
        # The pooler computes tanh where ELECTRA's head has GELU: `head=bert` fine-tunes with tanh.
        "classification": [
            *tensor_names.linear("head/dense", "bert.pooler.dense"),
            *tensor_names.linear("head/classifier", "classifier"),
        ],
        **tensor_names.TOKEN_HEADS,
    }

    def describe(self, config: ElectraConfig, special: Any) -> dict[str, Any]:
        described = Architecture.describe(self, config, special)
        del described["embedding_size"]  # BERT has no projection between E and D
        return described

    def normalized(self, described: Mapping[str, Any], place: str) -> dict[str, Any]:
        return {**described, "embedding_size": described.get("hidden_size")}

    def rename(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        # The names of layer norms in checkpoints that were converted from TensorFlow.
        return {
            name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): value
            for name, value in state.items()
            if not name.startswith(_NEVER_READ)
        }


def check(config: ElectraConfig) -> None:
    """Raises UserError unless the network is a BERT except for its tensor names."""
    encoder = config.encoder
    if encoder.architecture.name != "bert":
        raise UserError(
            f"a {encoder.architecture.name} encoder cannot be written as a BERT: expected config.model.encoder=bert; "
            f"{_WAY_OUT}"
        )
    if config.embedding_size != encoder.width:
        raise UserError(
            f"this encoder cannot be written as a BERT, which has no map from embeddings of {config.embedding_size} "
            f"numbers to layers of {encoder.width}: expected config.model.embedding_size={encoder.width}; "
            f"{_WAY_OUT}"
        )


def with_names(network: Network) -> Network:
    """Returns a network that is written with BERT's names. Raises UserError if it is none; see `check`."""
    check(network.config)
    return _with_architecture(network, NamedBert())


def without_names(network: Network) -> Network:
    """Returns a network whose architecture is one of `ARCHITECTURES`, which has the parameters' names in a run."""
    return _with_architecture(network, ARCHITECTURES[network.config.encoder.architecture.name])


def _with_architecture(network: Network, architecture: Architecture) -> Network:
    encoder = dataclasses.replace(network.config.encoder, architecture=architecture)
    return network._replace(config=dataclasses.replace(network.config, encoder=encoder))
