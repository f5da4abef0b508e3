"""Our parameters by the names of Hugging Face's PyTorch classes, in one table that is read in both directions.

A linear map's weight is [out, in] there. Layers are numbered there and stacked on a first axis here. Query, key and
value are one kernel [layers, D, 3, H, K] here, three matrices in ELECTRA's classes and one in ModernBERT's. The
vocabulary is not padded there.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.modeling.config import ElectraConfig
from electra_jax.modeling.subnetwork import Network, flatten_params, param_shapes, unflatten_params

State = dict[str, np.ndarray]  # by their names


class Tensor(NamedTuple):
    """One of our parameters and what it is there.

    Attributes:
      ours: its path.
      theirs: its names, {} for the layer; of several the arrays are put together along their first axis.
      inputs: of a linear map's kernel, how many leading axes are what comes in; 0 for all else.
      first: the first layer that has it.
      labels: whether a row of zeros comes before it: the logit of the label "original".
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
_BODIES = {
    "bert": [
        Tensor("embeddings/word", ("embeddings.word_embeddings.weight",)),
        Tensor("embeddings/position", ("embeddings.position_embeddings.weight",)),
        Tensor("embeddings/segment", ("embeddings.token_type_embeddings.weight",)),
        *_norm("embeddings/norm", "embeddings.LayerNorm"),
        *_linear("encoder/project", "embeddings_project"),
        *_linear(
            f"{_LAYERS}/attention/qkv",
            *(f"encoder.layer.{{}}.attention.self.{role}" for role in ("query", "key", "value")),
        ),
        *_linear(f"{_LAYERS}/attention/out", "encoder.layer.{}.attention.output.dense", inputs=2),
        *_norm(f"{_LAYERS}/attention_norm", "encoder.layer.{}.attention.output.LayerNorm"),
        *_linear(f"{_LAYERS}/ffn_in", "encoder.layer.{}.intermediate.dense"),
        *_linear(f"{_LAYERS}/ffn_out", "encoder.layer.{}.output.dense"),
        *_norm(f"{_LAYERS}/ffn_norm", "encoder.layer.{}.output.LayerNorm"),
    ],
    "modernbert": [
        Tensor("embeddings/word", ("embeddings.tok_embeddings.weight",)),
        *_norm("encoder/embedding_norm", "embeddings.norm"),
        # The first layer reads the embedding's norm; our entry for it in the stack is not used.
        *_norm(f"{_LAYERS}/attention_norm", "layers.{}.attn_norm", first=1),
        *_linear(f"{_LAYERS}/attention/qkv", "layers.{}.attn.Wqkv"),
        *_linear(f"{_LAYERS}/attention/out", "layers.{}.attn.Wo", inputs=2),
        *_norm(f"{_LAYERS}/ffn_norm", "layers.{}.mlp_norm"),
        *_linear(f"{_LAYERS}/ffn_in", "layers.{}.mlp.Wi"),
        *_linear(f"{_LAYERS}/ffn_out", "layers.{}.mlp.Wo"),
        *_norm("encoder/final_norm", "final_norm"),
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
}
PREFIXES = {"bert": "electra.", "modernbert": "model."}  # of the body in classes with a head
WORD_TABLES = {kind: body[0].theirs[0] for kind, body in _BODIES.items()}
DECODERS = {"bert": "generator_lm_head.weight", "modernbert": "decoder.weight"}  # the word table, once more
_OF_THE_VOCABULARY = ("embeddings/word", "mlm_head/bias")
# Where a ModernBERT's table is not as wide as its states, these are folded into its tables.
_FOLDED = ("encoder/project/kernel", "mlm_head/project/kernel")


def export(network: Network, head: str | None) -> State:
    """The arrays of the class with `head`, or, without one, of the bare encoder."""
    c = network.config
    flat = flatten_params(network.params)
    state: State = {}
    for tensor in _table(c.encoder.kind, head, prefixed=head is not None):
        if tensor.ours not in flat:
            continue
        value = flat[tensor.ours]
        if tensor.ours in _OF_THE_VOCABULARY:
            value = value[: c.vocab_size]
        for where, names in _entries(tensor, c.encoder.layers):
            state.update(_to_theirs(tensor, names, value[where]))
    state |= folded(network, head) if is_folded(c) else {}
    return {name: np.ascontiguousarray(value) for name, value in state.items()}


def is_folded(config: ElectraConfig) -> bool:
    """Whether maps between the table and the states are multiplied into the tables, as ModernBERT has no such maps."""
    return config.encoder.kind == "modernbert" and config.embedding_size != config.encoder.width


def folded(network: Network, head: str | None) -> State:
    """The tables with the maps multiplied into them: the word table, and where `head` predicts tokens the decoder's."""
    flat = flatten_params(network.params)
    word = flat["embeddings/word"][: network.config.vocab_size]
    tables = {(PREFIXES["modernbert"] if head else "") + WORD_TABLES["modernbert"]: word @ flat[_FOLDED[0]]}
    return tables | ({DECODERS["modernbert"]: word @ flat[_FOLDED[1]].T} if head == "mlm_head" else {})


def factors(network: Network) -> State:
    """What `export` folded: the word table as it is here, and the maps, by our paths."""
    flat = flatten_params(network.params)
    result = {path: flat[path] for path in _FOLDED if path in flat}
    return {"embeddings/word": flat["embeddings/word"][: network.config.vocab_size], **result}


def head_in(kind: str, names: Iterable[str], architecture: str) -> str | None:
    """Which of our heads the arrays with these names have, None for none.

    Other classes of ModernBERT name their heads as the discriminator's is named: so the class decides.
    """
    there = set(names)
    for head, tensors in _HEADS[kind].items():
        own = any(tensor.theirs[0] in there for tensor in tensors if not tensor.theirs[0].startswith("head."))
        if own and (kind == "bert" or head == "mlm_head" or architecture == "ModernBertForTokenClassification"):
            return head
    return None


def load(config: ElectraConfig, state: Mapping[str, np.ndarray], factored: Mapping[str, np.ndarray], place: str) -> Any:
    """Parameters of `Electra(config)` in float32, whose only head, if any, is `config.heads`.

    Args:
      config: as the arrays are to be.
      state: their arrays.
      factored: as `factors`; empty where nothing is folded.
      place: of the file, for messages.

    Raises:
      UserError: an array is missing, or has another shape.
    """
    head = config.heads[0] if config.heads else None
    kind = config.encoder.kind
    prefixed = PREFIXES[kind] + WORD_TABLES[kind] in state
    tensors = {tensor.ours: tensor for tensor in _table(kind, head, prefixed)}

    def find(name: str) -> np.ndarray:
        if name not in state:
            raise UserError(f"{place} lacks the tensor {name}; its config.json describes another model")
        return np.asarray(state[name], np.float32)

    def read(path: str, shape: tuple[int, ...]) -> np.ndarray:
        if path in factored:
            value = np.asarray(factored[path], np.float32)
            size = (config.vocab_size, *shape[1:]) if path in _OF_THE_VOCABULARY else shape
            if value.shape != size:
                raise UserError(f"{place}: the factor {path} is {value.shape} where its config.json says {size}")
            return np.pad(value, [(0, whole - part) for whole, part in zip(shape, size, strict=True)])
        if path not in tensors:
            raise UserError(f"{place} has a table wider or narrower than its states, and no factor {path} beside it")
        tensor, result = tensors[path], np.zeros(shape, np.float32)
        result[: tensor.first] = 1  # a norm that is not used
        rows = slice(config.vocab_size) if path in _OF_THE_VOCABULARY else slice(None)
        for where, names in _entries(tensor, config.encoder.layers):
            part = result[where][rows]
            part[...] = _to_ours(tensor, names, find, part.shape, place)
        return result

    flat = flatten_params(param_shapes(config))
    return unflatten_params({path: read(path, like.shape) for path, like in flat.items()})


def unread(config: ElectraConfig, names: Iterable[str]) -> list[str]:
    """Those of `names` that `load` does not read."""
    kind = config.encoder.kind
    read = {DECODERS[kind]}
    head = config.heads[0] if config.heads else None
    for tensor in (tensor for prefixed in (True, False) for tensor in _table(kind, head, prefixed)):
        read |= {name for _, names in _entries(tensor, config.encoder.layers) for name in names}
    return sorted(name for name in names if name not in read and not name.endswith("position_ids"))  # a buffer


def _table(kind: str, head: str | None, prefixed: bool) -> list[Tensor]:
    """Every tensor of a class, by its names there; `prefixed` in classes with a head, whether or not it is ours."""
    prefix = PREFIXES[kind] if prefixed else ""
    body = [tensor._replace(theirs=tuple(prefix + name for name in tensor.theirs)) for tensor in _BODIES[kind]]
    return [*body, *(_HEADS[kind][head] if head else ())]


def _entries(tensor: Tensor, layers: int) -> list[tuple[Any, tuple[str, ...]]]:
    """(index into ours, their names) of each layer that has this parameter; the whole of one that is of no layer."""
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


def _to_ours(tensor: Tensor, names: tuple[str, ...], find: Any, shape: tuple[int, ...], place: str) -> np.ndarray:
    """The array of `shape` that `_to_theirs` makes these of."""
    wanted = {name: like.shape for name, like in _to_theirs(tensor, names, np.empty(shape, np.float32)).items()}
    parts = [find(name) for name in names]
    for name, part in zip(names, parts, strict=True):
        if part.shape != wanted[name]:
            raise UserError(f"{place}: {name} is {part.shape} where its config.json says {wanted[name]}")
    value = np.concatenate(parts)
    if tensor.labels:
        value = value[1:] - value[:1]
    return (value.T if tensor.inputs else value).reshape(shape)
