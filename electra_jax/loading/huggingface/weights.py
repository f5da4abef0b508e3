"""Converts parameters to and from Hugging Face's PyTorch classes, by one table that is read in both directions.

Hugging Face stores a linear layer's weight as [out, in], has separate tensors per layer, and does not pad the
vocabulary. Here layers are stacked on the first axis. Query, key and value are one kernel [layers, D, 3, H, K] here,
three matrices in Hugging Face's ELECTRA and one in its ModernBERT.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.modeling.config import ElectraConfig, EncoderConfig
from electra_jax.modeling.subnetwork import Network, flatten_params, param_shapes, unflatten_params

State = dict[str, np.ndarray]  # tensors by Hugging Face's names


class Tensor(NamedTuple):
    """A parameter, and its names in Hugging Face's classes.

    Attributes:
      ours: its path in electra_jax.
      theirs: its names in Hugging Face, with {} for the layer's number. Several tensors are concatenated along their
        first axis.
      inputs: number of leading input axes of a linear layer's kernel; 0 for other parameters.
      first: the first layer that has this parameter.
      labels: whether Hugging Face's tensor has a row of zeros before it: the logit of the label "original".
    """

    ours: str
    theirs: tuple[str, ...]
    inputs: int = 0
    first: int = 0
    labels: bool = False


def _linear(ours: str, *theirs: str, inputs: int = 1, labels: bool = False) -> list[Tensor]:
    return [
        Tensor(f"{ours}/kernel", tuple(f"{name}.weight" for name in theirs), inputs, labels=labels),
        Tensor(f"{ours}/bias", tuple(f"{name}.bias" for name in theirs), labels=labels),
    ]


def _norm(ours: str, theirs: str, first: int = 0) -> list[Tensor]:
    return [
        Tensor(f"{ours}/scale", (f"{theirs}.weight",), first=first),
        Tensor(f"{ours}/bias", (f"{theirs}.bias",), first=first),
    ]


_LAYERS = "encoder/layers"


def _post_norm_layers(projection: str) -> list[Tensor]:
    """Returns the layers of BERT and DeBERTa; `projection` names the matrices, with {} for query, key or value."""
    roles = (projection.format(role) for role in ("query", "key", "value"))
    return [
        *_linear(f"{_LAYERS}/attention/qkv", *(f"encoder.layer.{{}}.attention.self.{role}" for role in roles)),
        *_linear(f"{_LAYERS}/attention/out", "encoder.layer.{}.attention.output.dense", inputs=2),
        *_norm(f"{_LAYERS}/attention_norm", "encoder.layer.{}.attention.output.LayerNorm"),
        *_linear(f"{_LAYERS}/ffn_in", "encoder.layer.{}.intermediate.dense"),
        *_linear(f"{_LAYERS}/ffn_out", "encoder.layer.{}.output.dense"),
        *_norm(f"{_LAYERS}/ffn_norm", "encoder.layer.{}.output.LayerNorm"),
    ]


_BODIES = {
    "bert": [
        Tensor("embeddings/word", ("embeddings.word_embeddings.weight",)),
        Tensor("embeddings/position", ("embeddings.position_embeddings.weight",)),
        Tensor("embeddings/segment", ("embeddings.token_type_embeddings.weight",)),
        *_norm("embeddings/norm", "embeddings.LayerNorm"),
        *_linear("encoder/project", "embeddings_project"),
        *_post_norm_layers("{}"),
    ],
    "modernbert": [
        Tensor("embeddings/word", ("embeddings.tok_embeddings.weight",)),
        *_norm("encoder/embedding_norm", "embeddings.norm"),
        # The first layer has no norm of its own: it reads normalized embeddings. Its entry in our stack is not used.
        *_norm(f"{_LAYERS}/attention_norm", "layers.{}.attn_norm", first=1),
        *_linear(f"{_LAYERS}/attention/qkv", "layers.{}.attn.Wqkv"),
        *_linear(f"{_LAYERS}/attention/out", "layers.{}.attn.Wo", inputs=2),
        *_norm(f"{_LAYERS}/ffn_norm", "layers.{}.mlp_norm"),
        *_linear(f"{_LAYERS}/ffn_in", "layers.{}.mlp.Wi"),
        *_linear(f"{_LAYERS}/ffn_out", "layers.{}.mlp.Wo"),
        *_norm("encoder/final_norm", "final_norm"),
    ],
    "deberta": [
        Tensor("embeddings/word", ("embeddings.word_embeddings.weight",)),
        *_linear("encoder/project", "embeddings.embed_proj"),
        *_norm("encoder/embedding_norm", "embeddings.LayerNorm"),
        Tensor("encoder/relative", ("encoder.rel_embeddings.weight",)),
        *_norm("encoder/relative_norm", "encoder.LayerNorm"),
        *_post_norm_layers("{}_proj"),
    ],
}
_HEADS = {
    "bert": {
        "discriminator_head": [
            *_linear("discriminator_head/dense", "discriminator_predictions.dense"),
            *_linear("discriminator_head/classifier", "discriminator_predictions.dense_prediction"),
        ],
        "mlm_head": [
            *_linear("mlm_head/dense", "generator_predictions.dense"),
            *_norm("mlm_head/norm", "generator_predictions.LayerNorm"),
            Tensor("mlm_head/bias", ("generator_lm_head.bias",)),
        ],
    },
    "modernbert": {
        "discriminator_head": [
            *_linear("discriminator_head/dense", "head.dense"),
            *_norm("discriminator_head/norm", "head.norm"),
            *_linear("discriminator_head/classifier", "classifier", labels=True),
        ],
        "mlm_head": [
            *_linear("mlm_head/dense", "head.dense"),
            *_norm("mlm_head/norm", "head.norm"),
            Tensor("mlm_head/bias", ("decoder.bias",)),
        ],
    },
    "deberta": {
        "discriminator_head": [  # names from microsoft/DeBERTa, replaced_token_detection_model.py
            *_norm("discriminator_head/norm", "mask_predictions.LayerNorm"),
            *_linear("discriminator_head/dense", "mask_predictions.dense"),
            *_linear("discriminator_head/classifier", "mask_predictions.classifier"),
        ],
        "mlm_head": [
            *_linear("mlm_head/dense", "cls.predictions.transform.dense"),
            *_norm("mlm_head/norm", "cls.predictions.transform.LayerNorm"),
            Tensor("mlm_head/bias", ("cls.predictions.bias",)),
        ],
    },
}
_LINEAR_DISCRIMINATOR = _linear("discriminator_head/classifier", "classifier", labels=True)
# The MLM head's names in microsoft/DeBERTa, and in transformers where a config has legacy=False; read only.
_MLM_NAMES = {
    "lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
}
# Suffixes of tensors that are never read: buffers, a second name of a bias, the positions that DeBERTaV3 reads in
# pre-training only, and its tables' differences from the generator's, which its other tables already include.
_NEVER_READ = (
    "position_ids",
    "cls.predictions.decoder.bias",
    "deberta.embeddings.position_embeddings.weight",
    "_embeddings._weight",
)
_MODERNBERT_TASK = [
    *_linear("head/dense", "head.dense"),
    *_norm("head/norm", "head.norm"),
    *_linear("head/classifier", "classifier"),
]
# Heads of fine-tuned models, by kind of task; written, never read.
_TASK_HEADS = {
    "bert": {
        "classification": [
            *_linear("head/dense", "classifier.dense"),
            *_linear("head/classifier", "classifier.out_proj"),
        ],
        "tagging": _linear("head/classifier", "classifier"),
        "answering": _linear("head/classifier", "qa_outputs"),
    },
    "modernbert": {
        "classification": _MODERNBERT_TASK,
        "tagging": _MODERNBERT_TASK,
        "answering": _MODERNBERT_TASK,
    },
    "deberta": {
        "classification": [*_linear("head/dense", "pooler.dense"), *_linear("head/classifier", "classifier")],
        "tagging": _linear("head/classifier", "classifier"),
        "answering": _linear("head/classifier", "qa_outputs"),
    },
}
# Prefixes of the encoder's tensor names in classes with a head.
PREFIXES = {"bert": "electra.", "modernbert": "model.", "deberta": "deberta."}
_FOLDERS_OF_LAYERS = {"bert": "encoder.", "modernbert": "layers.", "deberta": "encoder."}
WORD_TABLES = {kind: body[0].theirs[0] for kind, body in _BODIES.items()}
DECODERS = {  # tied to the word table
    "bert": "generator_lm_head.weight",
    "modernbert": "decoder.weight",
    "deberta": "cls.predictions.decoder.weight",
}
_VOCABULARY_ROWS = ("embeddings/word", "mlm_head/bias")
# transformers' ModernBERT has E = D. If E differs from D, these projections are folded into its tables.
_FOLDED = ("encoder/project/kernel", "mlm_head/project/kernel")


def export(network: Network, head: str | None) -> State:
    """Converts a network to the tensors of the class with `head` (or the kind of a task); None: without a head."""
    c = network.config
    flat = flatten_params(network.params)
    state: State = {}
    for tensor in _table(c.encoder, head, prefixed=head is not None):
        if tensor.ours not in flat:
            continue
        value = flat[tensor.ours]
        if tensor.ours in _VOCABULARY_ROWS:
            value = value[: c.vocab_size]
        for where, names in _entries(tensor, c.encoder.layers):
            state.update(_to_theirs(tensor, names, value[where]))
    state |= folded(network, head) if is_folded(c) else {}
    return state


def is_folded(config: ElectraConfig) -> bool:
    """Returns True if the projections between E and D must be folded into the tables: ModernBERT has no projections."""
    return config.encoder.kind == "modernbert" and config.embedding_size != config.encoder.width


def folded(network: Network, head: str | None) -> State:
    """Returns the tables with the projections folded in: the word table, and for an MLM head the decoder's."""
    flat = flatten_params(network.params)
    word = flat["embeddings/word"][: network.config.vocab_size]
    tables = {(PREFIXES["modernbert"] if head else "") + WORD_TABLES["modernbert"]: word @ flat[_FOLDED[0]]}
    return tables | ({DECODERS["modernbert"]: word @ flat[_FOLDED[1]].T} if head == "mlm_head" else {})


def factors(network: Network) -> State:
    """Returns the factors of `folded`: the word table and the projections, by our paths."""
    flat = flatten_params(network.params)
    result = {path: flat[path] for path in _FOLDED if path in flat}
    return {"embeddings/word": flat["embeddings/word"][: network.config.vocab_size], **result}


def head_in(kind: str, names: Iterable[str], architecture: str) -> str | None:
    """Returns which of our heads is among the tensors with these names; None if there is none.

    Other classes of ModernBERT use the same tensor names for their heads as our discriminator, so the class decides. It
    also decides for DeBERTa's linear discriminator.
    """
    given = set(names)
    for head, tensors in _HEADS[kind].items():
        own = any(tensor.theirs[0] in given for tensor in tensors if not tensor.theirs[0].startswith("head."))
        if own and (kind != "modernbert" or head == "mlm_head" or architecture == "ModernBertForTokenClassification"):
            return head
    linear = architecture == "DebertaV2ForTokenClassification" and _LINEAR_DISCRIMINATOR[0].theirs[0] in given
    return "discriminator_head" if linear else None


def rename(kind: str, state: State) -> State:
    """Renames the MLM head's tensors of other DeBERTa layouts to the names of `export`; all others are unchanged."""
    if kind != "deberta" or any(name.startswith("mask_predictions.") for name in state):
        return state  # a released discriminator also has tensors that its generator's head began from

    def name_here(name: str) -> str:
        there = next((part for part in _MLM_NAMES if name.startswith(part)), "")
        return _MLM_NAMES[there] + name.removeprefix(there) if there else name

    return {name_here(name): value for name, value in state.items()}


def load(config: ElectraConfig, state: Mapping[str, np.ndarray], factored: Mapping[str, np.ndarray], place: str) -> Any:
    """Converts tensors to the parameters of `Electra(config)`, in float32.

    Args:
      config: the network, with at most one head.
      state: the tensors.
      factored: the output of `factors`; empty if nothing is folded.
      place: the file's path, for messages.

    Raises:
      UserError: a tensor is missing or has the wrong shape.
    """
    head = config.heads[0] if config.heads else None
    kind = config.encoder.kind
    prefixed = PREFIXES[kind] + WORD_TABLES[kind] in state
    tensors = {tensor.ours: tensor for tensor in _table(config.encoder, head, prefixed)}

    def find(name: str) -> np.ndarray:
        if name not in state:
            raise UserError(f"{place} lacks the tensor {name}, which config.json requires; download or export it again")
        return np.asarray(state[name], np.float32)

    def read(path: str, shape: tuple[int, ...]) -> np.ndarray:
        if path in factored:
            value = np.asarray(factored[path], np.float32)
            size = (config.vocab_size, *shape[1:]) if path in _VOCABULARY_ROWS else shape
            if value.shape != size:
                raise UserError(f"{place}: factor {path} has shape {value.shape}: expected {size}, from config.json")
            return np.pad(value, [(0, whole - part) for whole, part in zip(shape, size, strict=True)])
        if path not in tensors:
            raise UserError(
                f"{place} lacks the factor {path}, which it needs because embedding size and width differ; export it "
                "again"
            )
        tensor, result = tensors[path], np.zeros(shape, np.float32)
        result[: tensor.first] = 1  # the scale of a norm that no layer uses
        rows = slice(config.vocab_size) if path in _VOCABULARY_ROWS else slice(None)
        for where, names in _entries(tensor, config.encoder.layers):
            part = result[where][rows]
            part[...] = _to_ours(tensor, names, find, part.shape, place)
        return result

    flat = flatten_params(param_shapes(config))
    return unflatten_params({path: read(path, like.shape) for path, like in flat.items()})


def unread(config: ElectraConfig, names: Iterable[str]) -> list[str]:
    """Returns the tensors in `names` that `load` ignores, without those in `_NEVER_READ`."""
    read = {DECODERS[config.encoder.kind]}
    head = config.heads[0] if config.heads else None
    for tensor in (tensor for prefixed in (True, False) for tensor in _table(config.encoder, head, prefixed)):
        read |= {name for _, names in _entries(tensor, config.encoder.layers) for name in names}
    return sorted(name for name in names if name not in read and not name.endswith(_NEVER_READ))


def is_of_layers(kind: str, name: str) -> bool:
    """Returns True if a tensor belongs to the encoder's layers, in a class with a head or without."""
    return name.removeprefix(PREFIXES[kind]).startswith(_FOLDERS_OF_LAYERS[kind])


def _table(encoder: EncoderConfig, head: str | None, prefixed: bool) -> list[Tensor]:
    """Returns all tensors of a class. Names are `prefixed` in classes with a head, even one that electra_jax lacks."""
    kind = encoder.kind
    prefix = PREFIXES[kind] if prefixed else ""
    body = [tensor._replace(theirs=tuple(prefix + name for name in tensor.theirs)) for tensor in _BODIES[kind]]
    heads = _HEADS[kind] | _TASK_HEADS[kind]
    heads |= {"discriminator_head": _LINEAR_DISCRIMINATOR} if encoder.linear_head else {}
    return [*body, *(heads[head] if head else ())]


def _entries(tensor: Tensor, layers: int) -> list[tuple[Any, tuple[str, ...]]]:
    """Returns (index into our array, Hugging Face's names) per layer, or once for a parameter outside the layers."""
    if not tensor.ours.startswith(_LAYERS):
        return [(..., tensor.theirs)]
    return [(i, tuple(name.format(i) for name in tensor.theirs)) for i in range(tensor.first, layers)]


def _to_theirs(tensor: Tensor, names: tuple[str, ...], value: np.ndarray) -> State:
    if tensor.inputs:
        value = value.reshape(int(np.prod(value.shape[: tensor.inputs])), -1).T
    elif len(names) > 1 or tensor.theirs[0].endswith(".bias"):
        value = value.reshape(-1)
    if tensor.labels:
        value = np.concatenate([np.zeros_like(value), value])
    return dict(zip(names, np.split(value, len(names)), strict=True))


def _to_ours(
    tensor: Tensor, names: tuple[str, ...], find: Callable[[str], np.ndarray], shape: tuple[int, ...], place: str
) -> np.ndarray:
    """Inverts `_to_theirs`: returns our array of `shape`."""
    wanted = {name: like.shape for name, like in _to_theirs(tensor, names, np.empty(shape, np.float32)).items()}
    parts = [find(name) for name in names]
    for name, part in zip(names, parts, strict=True):
        if part.shape != wanted[name]:
            raise UserError(f"{place}: {name} has shape {part.shape}: expected {wanted[name]}, from config.json")
    value = np.concatenate(parts)
    if tensor.labels:  # the sigmoid of the difference is the softmax over both labels
        value = value[1:] - value[:1]
    return (value.T if tensor.inputs else value).reshape(shape)
