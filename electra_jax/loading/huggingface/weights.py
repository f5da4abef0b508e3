"""Converts parameters to and from Hugging Face's PyTorch classes, by an architecture's tables in both directions.

Hugging Face stores a linear layer's weight as [out, in], has separate tensors per layer, and does not pad the
vocabulary. Here layers are stacked on the first axis. Query, key and value are one kernel [layers, D, 3, H, K] here,
three matrices in Hugging Face's ELECTRA and one in its ModernBERT.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.modeling.architecture import Architecture
from electra_jax.modeling.config import ElectraConfig, EncoderConfig
from electra_jax.modeling.subnetwork import Network, flatten_params, param_shapes, unflatten_params
from electra_jax.modeling.tensor_names import LAYERS, Tensor

State = dict[str, np.ndarray]  # tensors by Hugging Face's names


# Suffixes of tensors that are never read: buffers, a second name of a bias, the positions that DeBERTaV3 reads in
# pre-training only, and its tables' differences from the generator's, which its other tables already include.
_NEVER_READ = (
    "position_ids",
    "cls.predictions.decoder.bias",
    "deberta.embeddings.position_embeddings.weight",
    "_embeddings._weight",
)
_VOCABULARY_ROWS = ("embeddings/word", "mlm_head/bias")
# Where an architecture `folds` and E differs from D, these projections are multiplied into its tables.
_FOLDED = ("encoder/project/kernel", "mlm_head/project/kernel")


def export(network: Network, head: str | None) -> State:
    """Converts a network to the tensors of the class with `head` (or the kind of a task); None: without a head."""
    c = network.config
    flat = flatten_params(network.params)
    state: State = {}
    for tensor in _table(c.encoder, head, prefixed=head is not None):
        # The projection between E and D exists only where they differ.
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
    """Returns True if the projections between E and D must be folded into the tables."""
    return config.encoder.architecture.folds and config.embedding_size != config.encoder.width


def folded(network: Network, head: str | None) -> State:
    """Returns the tables with the projections folded in: the word table, and for an MLM head the decoder's."""
    flat, architecture = flatten_params(network.params), network.config.encoder.architecture
    word = flat["embeddings/word"][: network.config.vocab_size]
    # [V, E] x [E, D] -> [V, D].
    tables = {word_table(architecture, prefixed=head is not None): word @ flat[_FOLDED[0]]}
    # The head's projection is [D, E], so its transpose goes the same way.
    return tables | ({architecture.decoder: word @ flat[_FOLDED[1]].T} if head == "mlm_head" else {})


def word_table(architecture: Architecture, prefixed: bool) -> str:
    """Returns the name of the word table. It is `prefixed` in classes with a head."""
    return (architecture.prefix if prefixed else "") + architecture.body[0].theirs[0]


def factors(network: Network) -> State:
    """Returns the factors of `folded`: the word table and the projections, by our paths."""
    flat = flatten_params(network.params)
    result = {path: flat[path] for path in _FOLDED if path in flat}
    return {"embeddings/word": flat["embeddings/word"][: network.config.vocab_size], **result}


def head_in(architecture: Architecture, names: Iterable[str], class_name: str) -> str | None:
    """Returns which of our heads is among the tensors with these names, of a class; None if there is none."""
    given = set(names)
    return next((head for head in architecture.heads if architecture.is_head(head, given, class_name)), None)


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
    prefixed = word_table(config.encoder.architecture, prefixed=True) in state
    tensors = {tensor.ours: tensor for tensor in _table(config.encoder, head, prefixed)}

    def find(name: str) -> np.ndarray:
        if name not in state:
            raise UserError(f"{place} lacks the tensor {name}, which config.json requires; download or export it again")
        # Files may have float16 or bfloat16; parameters here are always float32.
        return np.asarray(state[name], np.float32)

    def read(path: str, shape: tuple[int, ...]) -> np.ndarray:
        if path in factored:
            value = np.asarray(factored[path], np.float32)
            size = (config.vocab_size, *shape[1:]) if path in _VOCABULARY_ROWS else shape
            if value.shape != size:
                raise UserError(f"{place}: factor {path} has shape {value.shape}: expected {size}, from config.json")
            # Rows that only pad the vocabulary may have any value: the head masks their logits.
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
            # A view into `result`, because both are basic indices; a list of rows would give a copy.
            part = result[where][rows]
            part[...] = _to_ours(tensor, names, find, part.shape, place)
        return result

    flat = flatten_params(param_shapes(config))
    return unflatten_params({path: read(path, like.shape) for path, like in flat.items()})


def unread(config: ElectraConfig, names: Iterable[str]) -> list[str]:
    """Returns the tensors in `names` that `load` ignores, without those in `_NEVER_READ`."""
    # The decoder is tied to the word table, which is read under its own name.
    read = {config.encoder.architecture.decoder}
    head = config.heads[0] if config.heads else None
    # With and without prefix: classes with a head that electra_jax lacks have it too.
    for tensor in (tensor for prefixed in (True, False) for tensor in _table(config.encoder, head, prefixed)):
        read |= {name for _, names in _entries(tensor, config.encoder.layers) for name in names}
    return sorted(name for name in names if name not in read and not name.endswith(_NEVER_READ))


def is_of_layers(architecture: Architecture, name: str) -> bool:
    """Returns True if a tensor belongs to the encoder's layers, in a class with a head or without."""
    return name.removeprefix(architecture.prefix).startswith(architecture.layers_prefix)


def _table(encoder: EncoderConfig, head: str | None, prefixed: bool) -> list[Tensor]:
    """Returns all tensors of a class. Names are `prefixed` in classes with a head, even one that electra_jax lacks."""
    architecture = encoder.architecture
    prefix = architecture.prefix if prefixed else ""
    body = [tensor._replace(theirs=tuple(prefix + name for name in tensor.theirs)) for tensor in architecture.body]
    return [*body, *(architecture.tensors(encoder, head) if head else ())]


def _entries(tensor: Tensor, layers: int) -> list[tuple[Any, tuple[str, ...]]]:
    """Returns (index into our array, Hugging Face's names) per layer, or once for a parameter outside the layers."""
    if not tensor.ours.startswith(LAYERS):
        return [(..., tensor.theirs)]
    return [(i, tuple(name.format(i) for name in tensor.theirs)) for i in range(tensor.first, layers)]


def _to_theirs(tensor: Tensor, names: tuple[str, ...], value: np.ndarray) -> State:
    # Flax [*in, *out] -> PyTorch [out, in]; rows of query, key and value follow each other.
    if tensor.inputs:
        value = value.reshape(int(np.prod(value.shape[: tensor.inputs])), -1).T
    elif len(names) > 1 or tensor.theirs[0].endswith(".bias"):
        value = value.reshape(-1)
    # transformers has a logit per label, 0 for "original"; ours is the logit of "replaced" alone.
    if tensor.labels:
        value = np.concatenate([np.zeros_like(value), value])
    return dict(zip(names, np.split(value, len(names)), strict=True))


def _to_ours(
    tensor: Tensor, names: tuple[str, ...], find: Callable[[str], np.ndarray], shape: tuple[int, ...], place: str
) -> np.ndarray:
    """Inverts `_to_theirs`: returns our array of `shape`."""
    # The conversion of an empty array says which shapes the file must have.
    wanted = {name: like.shape for name, like in _to_theirs(tensor, names, np.empty(shape, np.float32)).items()}
    parts = [find(name) for name in names]
    for name, part in zip(names, parts, strict=True):
        if part.shape != wanted[name]:
            raise UserError(f"{place}: {name} has shape {part.shape}: expected {wanted[name]}, from config.json")
    value = np.concatenate(parts)
    if tensor.labels:  # the sigmoid of the difference is the softmax over both labels
        value = value[1:] - value[:1]
    return (value.T if tensor.inputs else value).reshape(shape)
