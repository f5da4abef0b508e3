"""BERT's form of an encoder.

An ELECTRA encoder whose embeddings are as wide as its layers is a BERT with other names, so tools that know BERT alone
can serve it. Its discriminator has no class there. BERTs that others trained are read in the same way.
"""

from collections.abc import Mapping
from typing import Any

from electra_jax.config.errors import UserError
from electra_jax.loading.huggingface.weights import State
from electra_jax.modeling.config import ElectraConfig

MODEL_TYPE = "bert"
# How ELECTRA's names begin, and BERT's.
_NAMES = {
    "electra.": "bert.",
    "generator_predictions.": "cls.predictions.transform.",
    "generator_lm_head.bias": "cls.predictions.bias",
    "generator_lm_head.weight": "cls.predictions.decoder.weight",
}
_CLASSIFIER = {"classifier.dense.": "bert.pooler.dense.", "classifier.out_proj.": "classifier."}
_OWN_SETTINGS = ("embedding_size", "summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout")
_WAY_OUT = "leave --as=bert, or head=bert, out"
_NEVER_READ = ("bert.pooler.", "pooler.", "cls.seq_relationship.", "cls.predictions.decoder.bias")


def check(config: ElectraConfig) -> None:
    """Raises UserError unless the network is a BERT but for its names."""
    encoder = config.encoder
    if encoder.kind != "bert":
        raise UserError(
            f"a {encoder.kind} encoder cannot be written as a BERT: expected config.model.encoder=bert; {_WAY_OUT}"
        )
    if config.embedding_size != encoder.width:
        raise UserError(
            f"this encoder cannot be written as a BERT, which has no map from embeddings of {config.embedding_size} "
            f"numbers to layers of {encoder.width}: expected config.model.embedding_size={encoder.width}; "
            f"{_WAY_OUT}"
        )


def class_name(electra: str) -> str:
    """BERT's class for a class of ELECTRA."""
    return electra.replace("Electra", "Bert", 1)


def write(config: Mapping[str, Any], state: State) -> tuple[dict[str, Any], State]:
    """config.json and the tensors of an ELECTRA by BERT's names."""
    (architecture,) = config["architectures"]
    described = {name: value for name, value in config.items() if name not in _OWN_SETTINGS}
    described |= {"architectures": [class_name(architecture)], "model_type": MODEL_TYPE}
    return described, {_renamed(name, _NAMES | _CLASSIFIER): value for name, value in state.items()}


def read_config(described: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a BERT as one of an ELECTRA. A model for pre-training has an MLM head."""
    result = {**described, "model_type": "electra", "embedding_size": described.get("hidden_size")}
    architectures = described.get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        electra = architectures[0].replace("Bert", "Electra", 1).replace("ForPreTraining", "ForMaskedLM")
        result["architectures"] = [electra]
    return result


def read(state: State) -> State:
    """The tensors of a BERT by ELECTRA's names, without those that an encoder and its MLM head do not have."""
    back = {bert: electra for electra, bert in _NAMES.items()}
    renamed = {}
    for name, value in state.items():
        if not name.startswith(_NEVER_READ):
            # Layer norms of checkpoints that were converted from TensorFlow.
            modern = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            renamed[_renamed(modern, back)] = value
    return renamed


def _renamed(name: str, names: Mapping[str, str]) -> str:
    there = next((part for part in names if name.startswith(part)), "")
    return names.get(there, "") + name.removeprefix(there)
