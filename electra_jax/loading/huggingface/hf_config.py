"""Writes and reads the `config.json` of a Hugging Face directory; unsupported architectures are refused."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Special
from electra_jax.loading.huggingface import bert
from electra_jax.modeling import activations, deberta, modernbert, transformer
from electra_jax.modeling.config import ElectraConfig, EncoderConfig

MODEL_TYPES = {"bert": "electra", "modernbert": "modernbert", "deberta": "deberta-v2"}
CLASSES = {
    "bert": {
        "discriminator_head": "ElectraForPreTraining",
        "mlm_head": "ElectraForMaskedLM",
        "classification": "ElectraForSequenceClassification",
        "tagging": "ElectraForTokenClassification",
        "answering": "ElectraForQuestionAnswering",
        None: "ElectraModel",
    },
    "modernbert": {
        "discriminator_head": "ModernBertForTokenClassification",
        "mlm_head": "ModernBertForMaskedLM",
        "classification": "ModernBertForSequenceClassification",
        "tagging": "ModernBertForTokenClassification",
        "answering": "ModernBertForQuestionAnswering",
        None: "ModernBertModel",
    },
    "deberta": {
        "discriminator_head": "DebertaV2Model",  # no class has DeBERTaV3's head; see `class_name` for the linear one
        "mlm_head": "DebertaV2ForMaskedLM",
        "classification": "DebertaV2ForSequenceClassification",
        "tagging": "DebertaV2ForTokenClassification",
        "answering": "DebertaV2ForQuestionAnswering",
        None: "DebertaV2Model",
    },
}
LABELS = {"0": "original", "1": "replaced"}  # of a discriminator that is written as a class of token classification

# Settings that electra_jax fixes, by transformers' names; also the defaults for files that do not name them.
_FIXED: dict[str, dict[str, Any]] = {
    "bert": {
        "hidden_act": "gelu",
        "layer_norm_eps": transformer.EPSILON,
        "type_vocab_size": 2,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "is_decoder": False,
    },
    "modernbert": {
        "norm_eps": modernbert.EPSILON,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "decoder_bias": True,
        "classifier_bias": False,
        "classifier_activation": "gelu",
        "global_rope_theta": modernbert.GLOBAL_THETA,
        "local_rope_theta": modernbert.LOCAL_THETA,
    },
    "deberta": {
        "hidden_act": "gelu",
        "layer_norm_eps": deberta.EPSILON,
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["c2p", "p2c"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "conv_kernel_size": 0,
        "tie_word_embeddings": True,
    },
}
# transformers' defaults for settings that a file does not name, where they differ from the above.
_UNNAMED: dict[str, dict[str, Any]] = {
    "deberta": {
        "relative_attention": False,
        "position_biased_input": True,
        "pos_att_type": None,
        "share_att_key": False,
        "norm_rel_ebd": "none",
    },
}
# Far beyond any model: a damaged file is reported before anything is allocated.
_MOST_LAYERS, _LARGEST = 10_000, 10**8
_SHOWN = 20  # characters of a number in an error
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


def class_name(encoder: EncoderConfig, head: str | None, as_bert: bool = False) -> str:
    """Returns transformers' class for an encoder with a head of `CLASSES`; with `as_bert`, BERT's class."""
    if encoder.linear_head and head == "discriminator_head":
        head = "tagging"
    name = CLASSES[encoder.kind][head]
    return bert.class_name(name) if as_bert else name


def model_type(encoder: EncoderConfig, as_bert: bool = False) -> str:
    """Returns the `model_type` of config.json."""
    return bert.MODEL_TYPE if as_bert else MODEL_TYPES[encoder.kind]


def write(config: ElectraConfig, head: str | None, special: Special) -> dict[str, Any]:
    """Returns the content of config.json for the encoder with `head`; None: without a head."""
    c = config.encoder
    result = {
        "architectures": [class_name(c, head)],
        "model_type": model_type(c),
        "dtype": "float32",
        "vocab_size": config.vocab_size,
        "hidden_size": c.width,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "intermediate_size": c.ffn,
        "max_position_embeddings": config.max_length,
        "initializer_range": c.init_stddev,
        **_FIXED[c.kind],
        "pad_token_id": special.pad,
    }
    if c.kind == "bert":
        return result | {
            "embedding_size": config.embedding_size,
            "hidden_dropout_prob": c.dropout,
            "attention_probs_dropout_prob": c.attention_rate,
            "summary_type": "first",  # the classifier that fine-tuning adds on [CLS]
            "summary_use_proj": True,
            "summary_activation": "gelu",
            "summary_last_dropout": 0.1,
        }
    if head == "discriminator_head" and (c.kind == "modernbert" or c.linear_head):
        result |= {"id2label": LABELS, "label2id": {label: int(number) for number, label in LABELS.items()}}
    if c.kind == "deberta":
        return result | {
            "embedding_size": config.embedding_size,
            "position_buckets": c.position_buckets,
            "max_relative_positions": c.max_relative_positions,
            "hidden_dropout_prob": c.dropout,
            "attention_probs_dropout_prob": c.attention_rate,
            "pooler_hidden_size": c.width,  # for the classifier that fine-tuning adds on [CLS]
            "pooler_hidden_act": "gelu",
            "pooler_dropout": 0.0,
            "legacy": True,  # the names of the MLM head's tensors
        }
    return result | {
        "initializer_cutoff_factor": 2.0,  # see `transformer.truncated_normal`; text-embeddings-inference requires it
        "hidden_activation": c.activation,
        "local_attention": c.local_window,
        "global_attn_every_n_layers": c.global_every,
        "layer_types": [_LOCAL if layer % c.global_every else _GLOBAL for layer in range(c.layers)],
        "rope_parameters": {
            _GLOBAL: {"rope_type": "default", "rope_theta": modernbert.GLOBAL_THETA},
            _LOCAL: {"rope_type": "default", "rope_theta": modernbert.LOCAL_THETA},
        },
        "embedding_dropout": c.dropout,
        "mlp_dropout": c.dropout,
        "attention_dropout": 0.0,
        "tie_word_embeddings": config.embedding_size == c.width,
        "bos_token_id": special.cls,
        "eos_token_id": special.sep,
        "cls_token_id": special.cls,
        "sep_token_id": special.sep,
    }


def kind_of(described: Mapping[str, Any], place: str) -> str:
    """Returns the `EncoderConfig.kind` of a config.json. Raises UserError for other model types."""
    for kind, name in MODEL_TYPES.items():
        if name == described.get("model_type"):
            return kind
    known = " or ".join((*MODEL_TYPES.values(), bert.MODEL_TYPE))
    raise UserError(f"{place} has model_type={described.get('model_type')!r}: expected {known}; use such a model")


def read(described: Mapping[str, Any], head: str | None, place: str) -> ElectraConfig:
    """Returns the config of the network that a config.json describes, in float32, with `head`.

    Raises:
      UserError: the architecture differs from electra_jax's, for example in the activation.
    """
    kind = kind_of(described, place)
    described = {**_UNNAMED.get(kind, {}), **described}
    if kind == "deberta":
        described |= {name: _parts(described[name]) for name in ("pos_att_type", "norm_rel_ebd")}
    rope = {"global_rope_theta": _GLOBAL, "local_rope_theta": _LOCAL} if kind == "modernbert" else {}
    thetas = {name: _theta(described, part, place) for name, part in rope.items()}
    for name, value in _FIXED[kind].items():
        given = thetas.get(name) or described.get(name, value)
        if given != (_parts(value) if name in ("pos_att_type", "norm_rel_ebd") else value) and (
            name != "tie_word_embeddings" or head == "mlm_head"
        ):
            raise UserError(f"{place} has {name}={given!r}: expected {value!r}; electra_jax has no other architecture")

    def number(name: str, default: float | None = None, whole: bool = True, least: int = 1) -> Any:
        given = described.get(name, default)
        least = least if whole else 0
        most = _MOST_LAYERS if name == "num_hidden_layers" else _LARGEST
        if isinstance(given, bool) or not isinstance(given, int if whole else int | float) or given < least:
            kind = "an integer" if whole else "a number"
            raise UserError(f"{place} has {name}={given!r}: expected {kind} of {least} or more; check the file")
        if not given <= most:
            raise UserError(f"{place} has {name}={str(given)[:_SHOWN]}: expected at most {most:,}; check the file")
        return given

    layers, width, heads = (number(name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    if width % heads or (kind == "modernbert" and width // heads % 2):
        raise UserError(
            f"{place} has hidden_size={width} and num_attention_heads={heads}: expected heads that divide it (for "
            "modernbert into even sizes); check the file"
        )
    if kind == "deberta" and described.get("attention_head_size", width // heads) != width // heads:
        raise UserError(
            f"{place} has attention_head_size={described['attention_head_size']!r}: expected {width // heads}, the "
            "hidden_size by heads; electra_jax has no other architecture"
        )
    modern = kind == "modernbert"
    dropout = number("mlp_dropout" if modern else "hidden_dropout_prob", 0.0, whole=False)
    of_weights = dropout if modern else number("attention_probs_dropout_prob", dropout, whole=False)
    network = EncoderConfig(
        kind=kind,
        layers=layers,
        width=width,
        ffn=number("intermediate_size"),
        heads=heads,
        init_stddev=number("initializer_range", 0.02, whole=False),
        dropout=dropout,
        dtype=jnp.dtype("float32"),
        local_window=number("local_attention", 128),
        global_every=_period(described, layers, place) if modern else 1,
        attention_dropout=None if of_weights == dropout else of_weights,
        activation=_activation(described, place) if modern else "gelu",
        linear_head=head == "discriminator_head" and described.get("architectures") == [CLASSES["deberta"]["tagging"]],
    )
    if kind == "deberta":
        network = dataclasses.replace(network, **_relative(number, described))
    return ElectraConfig(
        vocab_size=number("vocab_size"),
        embedding_size=width if modern else number("embedding_size", width),
        max_length=number("max_position_embeddings"),
        encoder=network,
        heads=(head,) if head else (),
    )


def _parts(value: Any) -> Any:
    """Splits a setting of DeBERTa, a list or a string separated by bars, into sorted parts."""
    parts = value.lower().split("|") if isinstance(value, str) else value
    return sorted(part.strip() for part in parts) if isinstance(parts, list) and _are_texts(parts) else parts


def _are_texts(parts: list[Any]) -> bool:
    return all(isinstance(part, str) for part in parts)


def _relative(number: Callable[..., Any], described: Mapping[str, Any]) -> dict[str, Any]:
    """Reads DeBERTa's settings of relative positions. Without a positive `max_relative_positions`, their range is
    `max_position_embeddings`."""
    furthest = described.get("max_relative_positions", -1)
    from_positions = isinstance(furthest, int) and furthest < 1
    name = "max_position_embeddings" if from_positions else "max_relative_positions"
    buckets = number("position_buckets", least=2)
    return {"position_buckets": buckets, "max_relative_positions": number(name, least=buckets // 2 + 2)}


def _theta(described: Mapping[str, Any], part: str, place: str) -> Any:
    """Returns the RoPE theta from `rope_parameters` (transformers 5); None if the file lacks them. Raises UserError if
    the positions are scaled."""
    ropes = described.get("rope_parameters") or {}
    rope = ropes.get(part) or {} if isinstance(ropes, dict) else None
    if not isinstance(rope, dict) or described.get("rope_scaling") or rope.get("rope_type", "default") != "default":
        raise UserError(
            f"{place} scales its rotary positions: expected rope_type=default; such a model is not supported"
        )
    return rope.get("rope_theta")


def _activation(described: Mapping[str, Any], place: str) -> str:
    """Returns the activation of ModernBERT's feed-forward layers; transformers and electra_jax use the same names."""
    given = described.get("hidden_activation", "gelu")
    if given not in tuple(activations.ACTIVATIONS):  # a tuple, because the value may be unhashable
        raise UserError(
            f"{place} has hidden_activation={given!r}: expected {' or '.join(map(repr, activations.ACTIVATIONS))}; "
            "electra_jax has no other architecture"
        )
    return str(given)


def _period(described: Mapping[str, Any], layers: int, place: str) -> int:
    """Returns the period of the global attention layers. Raises UserError if they are not every n-th layer."""
    types = described.get("layer_types")
    every = described.get("global_attn_every_n_layers", 3)
    if types is None and isinstance(every, int) and every > 0:
        return every
    if isinstance(types, list) and len(types) == layers:
        period = next((layer for layer in range(1, layers) if types[layer] == _GLOBAL), layers)
        if types == [_LOCAL if layer % period else _GLOBAL for layer in range(layers)]:
            return period
    raise UserError(
        f"{place} has layer_types={types!r} (global_attn_every_n_layers={every!r}): expected {_GLOBAL} in the first of "
        f"{layers} layers and in every n-th after it"
    )
