"""Writes and reads the `config.json` of a Hugging Face directory; unsupported architectures are refused."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Special
from electra_jax.loading.huggingface.bert import NamedBert
from electra_jax.modeling.architecture import LABELS, Architecture, different
from electra_jax.modeling.config import ElectraConfig, EncoderConfig
from electra_jax.modeling.model_config import ARCHITECTURES

# Ends of the names of transformers' classes by head or kind of task; `Architecture.detector_class` has the other one.
_CLASSES = {
    "mlm_head": "ForMaskedLM",
    "classification": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
    "answering": "ForQuestionAnswering",
    None: "Model",
}
# The heads that read a setting of `Architecture.fixed`, for those that the encoder does not read.
_READ_BY = {
    "tie_word_embeddings": ("mlm_head",),
    "decoder_bias": ("mlm_head",),
    "classifier_bias": ("mlm_head", "discriminator_head"),
    "classifier_activation": ("mlm_head", "discriminator_head"),
}
# Far beyond any model: a damaged file is reported before anything is allocated.
_MOST_LAYERS, _LARGEST = 10_000, 10**8
_SHOWN = 20  # characters of a number in an error


def class_name(encoder: EncoderConfig, head: str | None) -> str:
    """Returns transformers' class for an encoder with a head, or one for the kind of a task; None: without a head."""
    architecture = encoder.architecture
    end = architecture.detector_class(encoder) if head == "discriminator_head" else _CLASSES[head]
    return architecture.class_prefix + end


def write(config: ElectraConfig, head: str | None, special: Special) -> dict[str, Any]:
    """Returns the content of config.json for the encoder with `head`; None: without a head."""
    c = config.encoder
    result = {
        "architectures": [class_name(c, head)],
        "model_type": c.architecture.model_type,
        "dtype": "float32",
        "vocab_size": config.vocab_size,
        "hidden_size": c.width,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "intermediate_size": c.ffn,
        "max_position_embeddings": config.max_length,
        "initializer_range": c.init_stddev,
        **c.architecture.fixed,
        "pad_token_id": special.pad,
        **c.architecture.describe(config, special),
    }
    if head == "discriminator_head" and result["architectures"][0].endswith(_CLASSES["tagging"]):
        result |= {"id2label": LABELS, "label2id": {label: int(number) for number, label in LABELS.items()}}
    return result


def architecture_of(described: Mapping[str, Any], place: str) -> Architecture:
    """Returns the architecture of a config.json. Raises UserError for other model types."""
    given = described.get("model_type")
    known = {each.model_type: each for each in (*ARCHITECTURES.values(), NamedBert())}
    if given not in known:
        raise UserError(f"{place} has model_type={given!r}: expected {' or '.join(known)}; use such a model")
    return known[given]


def read(described: Mapping[str, Any], head: str | None, place: str) -> ElectraConfig:
    """Returns the config of the network that a config.json describes, in float32, with `head`.

    Raises:
      UserError: the architecture differs from electra_jax's, for example in the activation.
    """
    architecture = architecture_of(described, place)
    # The file's own values come last: `unnamed` is for settings that it does not name.
    described = architecture.normalized({**architecture.unnamed, **described}, place)
    for name, value in architecture.fixed.items():
        given = described.get(name, value)
        # Settings of a head do not matter if it is not loaded.
        if given != value and head in _READ_BY.get(name, (head,)):
            raise different(place, name, given, repr(value))

    def number(name: str, default: float | None = None, whole: bool = True, least: int = 1) -> Any:
        given = described.get(name, default)
        least = least if whole else 0
        most = _MOST_LAYERS if name == "num_hidden_layers" else _LARGEST
        # `True` is an int in Python.
        if isinstance(given, bool) or not isinstance(given, int if whole else int | float) or given < least:
            kind = "an integer" if whole else "a number"
            raise UserError(f"{place} has {name}={given!r}: expected {kind} of {least} or more; check the file")
        # Not `given > most`, which is false for the NaN that Python's JSON allows.
        if not given <= most:
            raise UserError(f"{place} has {name}={str(given)[:_SHOWN]}: expected at most {most:,}; check the file")
        return given

    layers, width, heads = (number(name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    if width % heads or (architecture.rotary and width // heads % 2):
        raise UserError(
            f"{place} has hidden_size={width} and num_attention_heads={heads}: expected heads that divide it (for "
            "modernbert into even sizes); check the file"
        )
    is_tagger = described.get("architectures") == [architecture.class_prefix + _CLASSES["tagging"]]
    network = EncoderConfig(
        architecture,
        layers=layers,
        width=width,
        ffn=number("intermediate_size"),
        heads=heads,
        init_stddev=number("initializer_range", 0.02, whole=False),
        dtype=jnp.dtype("float32"),
        **architecture.read(described, number, is_tagger and head == "discriminator_head", place),
    )
    return ElectraConfig(
        vocab_size=number("vocab_size"),
        # A folded model does not tell E; `directory.read` takes it from the factors.
        embedding_size=width if architecture.folds else number("embedding_size", width),
        max_length=number("max_position_embeddings"),
        encoder=network,
        heads=(head,) if head else (),
    )
