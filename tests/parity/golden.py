"""The reference's numbers, `reference/*.npz`, and its names of parameters in terms of ours."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_jax.modeling.subnetwork import flatten_params, unflatten_params

FOLDER = Path(__file__).with_name("reference")
# What results may be off by: several times what was measured on CPU, far less than an error that matters.
LOSS, GRADIENT = 2e-6, 1e-5  # relative; a gradient's by norms
LOGIT, PARAMETER = 1e-5, 1e-6  # absolute
# The gradients of these are 0 but for rounding: a softmax does not change if a number is added to all of its inputs.
ZERO = ("attention/self/key/bias", "squad/dense/bias", "squad/dense_1/bias")

_IN_LAYER = {
    "attention/output/dense": "attention/out",
    "attention/output/LayerNorm": "attention_norm",
    "intermediate/dense": "ffn_in",
    "output/dense": "ffn_out",
    "output/LayerNorm": "ffn_norm",
}
_TABLES = {"word_embeddings": "word", "position_embeddings": "position", "token_type_embeddings": "segment"}
_ANSWERING = {
    "dense": "start",
    "qa_hidden": "end_hidden",
    "dense_1": "end",
    "dense_2": "impossible_hidden",
    "dense_3": "impossible",
}
_ROLES = ("query", "key", "value")


@functools.cache
def archive(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def under(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays below `prefix`, by the rest of their names."""
    return {name.removeprefix(f"{prefix}/"): value for name, value in arrays.items() if name.startswith(f"{prefix}/")}


class Place(NamedTuple):
    """Where a variable of the reference is in our tree.

    Attributes:
      path: the path of our parameter.
      layer: its index on our first axis; None for parameters outside the layers.
      role: of attention's joint projection, 0 query, 1 key, 2 value; None for others.
    """

    path: str
    layer: int | None = None
    role: int | None = None


def place(name: str) -> Place:
    """The place of a variable, such as `electra/encoder/layer_0/intermediate/dense/kernel`."""
    network, _, rest = name.partition("/")
    rest = rest.replace("LayerNorm/gamma", "LayerNorm/scale").replace("LayerNorm/beta", "LayerNorm/bias")
    ours = {"electra": "encoder", "generator": "generator"}.get(network, "")
    if layer := re.fullmatch(r"encoder/layer_(\d+)/(.+)/(\w+)", rest):
        number, part, leaf = int(layer[1]), layer[2], layer[3]
        if role := re.fullmatch(r"attention/self/(\w+)", part):
            return Place(f"{ours}/layers/attention/qkv/{leaf}", number, _ROLES.index(role[1]))
        return Place(f"{ours}/layers/{_IN_LAYER[part]}/{leaf}", number)
    if rest.startswith("embeddings_project/"):
        return Place(f"{ours}/{rest.replace('embeddings_project', 'project')}")
    if rest.startswith("embeddings/"):
        entry = rest.removeprefix("embeddings/")
        entry = _TABLES.get(entry, entry.replace("LayerNorm", "norm"))
        return Place(f"{'embeddings' if network == 'electra' else 'generator_embeddings'}/{entry}")
    if network == "generator_predictions":
        return Place(f"generator_head/{rest.replace('LayerNorm', 'norm').replace('output_bias', 'bias')}")
    if network == "discriminator_predictions":
        return Place(f"discriminator_head/{rest.replace('dense_1', 'classifier')}")
    _, task, module, leaf = name.split("/")
    if task == "squad":
        joint = "_" if module == "qa_hidden" else "/"
        return Place(f"head/{_ANSWERING[module]}{joint}{leaf}")
    return Place(f"head/{module}/{leaf}")


def to_ours(variables: Mapping[str, np.ndarray], shapes: Any = None, head: str = "generator_head") -> Any:
    """The tree of our parameters that holds the reference's variables.

    Args:
      variables: by the reference's names.
      shapes: our tree of shapes, which a vocabulary is padded to; None: the variables' own shapes, without attention's
        joint projection.
      head: our name of the reference's `generator_predictions`.

    Raises:
      ValueError: a parameter is missing, or there is one that we do not have.
    """
    parts: dict[str, dict[tuple[int, int], np.ndarray]] = {}
    for name, value in variables.items():
        path, layer, role = place(name)
        parts.setdefault(path.replace("generator_head", head), {})[(layer or 0, role or 0)] = value
    flat = {}
    for path, values in parts.items():
        count = 1 + max(layer for layer, _ in values)
        roles = 1 + max(role for _, role in values)
        layers = [np.stack([values[layer, role] for role in range(roles)], axis=-2) for layer in range(count)]
        whole = np.stack(layers) if "/layers/" in path else layers[0]
        flat[path] = whole if roles > 1 else np.squeeze(whole, axis=-2)
    if shapes is None:
        return unflatten_params(flat)
    like = flatten_params(shapes)
    if like.keys() != flat.keys():
        raise ValueError(f"parameters differ: {sorted(like.keys() ^ flat.keys())}")
    return unflatten_params({path: _fit(flat[path], leaf.shape) for path, leaf in like.items()})


def _fit(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`value` in another shape of as many numbers, or with zeros below its last row."""
    if value.size == np.prod(shape):
        return value.reshape(shape)
    return np.pad(value, [(0, shape[0] - len(value)), *((0, 0) for _ in shape[1:])])


def variable(tree: Any, name: str, shape: tuple[int, ...], head: str = "generator_head") -> np.ndarray:
    """The part of our tree that is the reference's variable `name`; the inverse of `to_ours`."""
    path, layer, role = place(name)
    value = np.asarray(flatten_params(tree)[path.replace("generator_head", head)])
    if layer is not None:
        value = value[layer]
    if role is not None:
        value = value[:, role] if name.endswith("kernel") else value[role]
    return value.reshape(shape) if value.size == np.prod(shape) else value[: shape[0]]


def assert_gradients(tree: Any, expected: Mapping[str, np.ndarray], head: str = "generator_head") -> None:
    """Each gradient agrees, measured by norms; those that are 0 but for rounding are as small."""
    for name, theirs in expected.items():
        off = np.linalg.norm(variable(tree, name, theirs.shape, head) - theirs)
        if name.endswith(ZERO):
            assert max(off, np.linalg.norm(theirs)) < 2 * PARAMETER, name
        else:
            assert off <= GRADIENT * np.linalg.norm(theirs), f"{name}: off by {off / np.linalg.norm(theirs):.1e}"
