"""Converts encoders to and from BERT's tensor names and config.json.

An ELECTRA encoder whose embedding size equals its width is a BERT with other tensor names, so tools that support only
BERT can serve it. BERT has no class for the discriminator. BERT checkpoints from elsewhere are read in the same way.
"""

from collections.abc import Mapping
from typing import Any

from electra_jax.config.errors import UserError
from electra_jax.loading.huggingface.weights import State
from electra_jax.modeling.config import ElectraConfig

MODEL_TYPE = "bert"
# Prefixes of ELECTRA's tensor names -> BERT's.
_NAMES = {
    "electra.": "bert.",
    "generator_predictions.": "cls.predictions.transform.",
    "generator_lm_head.bias": "cls.predictions.bias",
    "generator_lm_head.weight": "cls.predictions.decoder.weight",
}
# BERT's pooler and classifier, which compute tanh where ELECTRA's head has GELU: `head=bert` fine-tunes with tanh.
_CLASSIFIER = {"classifier.dense.": "bert.pooler.dense.", "classifier.out_proj.": "classifier."}
_OWN_SETTINGS = ("embedding_size", "summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout")
_WAY_OUT = "leave --as=bert, or head=bert, out"
_NEVER_READ = ("bert.pooler.", "pooler.", "cls.seq_relationship.", "cls.predictions.decoder.bias")


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


def class_name(electra: str) -> str:
    """Returns BERT's class for a class of ELECTRA."""
    return electra.replace("Electra", "Bert", 1)


def write(config: Mapping[str, Any], state: State) -> tuple[dict[str, Any], State]:
    """Converts config.json and the tensors of an ELECTRA to BERT's names."""
    (architecture,) = config["architectures"]
    described = {name: value for name, value in config.items() if name not in _OWN_SETTINGS}
    described |= {"architectures": [class_name(architecture)], "model_type": MODEL_TYPE}
    return described, {_renamed(name, _NAMES | _CLASSIFIER): value for name, value in state.items()}


def read_config(described: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the config.json of a BERT to ELECTRA's. `BertForPreTraining` becomes a model with an MLM head."""
    # BERT has no projection between E and D.
    result = {**described, "model_type": "electra", "embedding_size": described.get("hidden_size")}
    architectures = described.get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        electra = architectures[0].replace("Bert", "Electra", 1).replace("ForPreTraining", "ForMaskedLM")
        result["architectures"] = [electra]
    return result


def read(state: State) -> State:
    """Converts the tensors of a BERT to ELECTRA's names. Tensors that an encoder with an MLM head does not have are
    dropped."""
    # Without `_CLASSIFIER`: heads of fine-tuned models are written, but never read.
    back = {bert: electra for electra, bert in _NAMES.items()}
    renamed = {}
    for name, value in state.items():
        if not name.startswith(_NEVER_READ):
            # The names of layer norms in checkpoints that were converted from TensorFlow.
            modern = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            renamed[_renamed(modern, back)] = value
    return renamed


def _renamed(name: str, names: Mapping[str, str]) -> str:
    there = next((part for part in names if name.startswith(part)), "")
    return names.get(there, "") + name.removeprefix(there)
