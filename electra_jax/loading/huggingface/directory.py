"""One network as a Hugging Face directory: written file by file, and read with every tensor checked."""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.loading.huggingface import hf_config, tokenizer_files, weights
from electra_jax.modeling.subnetwork import Network
from electra_jax.runtime.io import read_json, write_whole

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
# Beside a ModernBERT whose table was folded: the table and the maps, so that training can go on from them.
FACTORS = "embedding_factors.safetensors"
_SCORES = "scores"  # in config.json, where a discriminator's say something else than usual
_INDEX = f"{WEIGHTS}.index.json"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class Directory(NamedTuple):
    """What a directory holds.

    Attributes:
      network: with the head that it has, if that is one of ours.
      tokenizer: None where there is none.
      notes: what a person should know of it, a sentence each.
    """

    network: Network
    tokenizer: Tokenizer | None
    notes: tuple[str, ...]


def write(folder: Path, network: Network, head: str | None, tokenizer: Tokenizer, card: str, scores: str = "") -> None:
    """Makes `folder` a directory that `from_pretrained` reads.

    Args:
      folder: not there yet.
      network: in it.
      head: that is written with it, None for none.
      tokenizer: of the network.
      card: in Markdown.
      scores: as `ObjectiveSpec.scores`.

    Raises:
      UserError: a parameter is not finite, or the tokenizer is of a kind that has no equal there.
    """
    state = weights.export(network, head)
    _check_finite(state, "the checkpoint")
    folder.mkdir(parents=True)
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    if weights.is_folded(network.config):
        save_file(weights.factors(network), folder / FACTORS, metadata={"format": "np"})
    config = hf_config.write(network.config, head, tokenizer.special)
    config |= {_SCORES: scores} if scores and head == "discriminator_head" else {}
    write_whole(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    segments = network.config.absolute
    for name, content in tokenizer_files.files(tokenizer, network.config.max_length, segments).items():
        (folder / name).write_bytes(content)
    write_whole(folder / CARD, card)
    for name in (WEIGHTS, FACTORS):
        if (folder / name).is_file():
            shutil.copymode(folder / CARD, folder / name)  # the library writes files that only their owner may read


def read(folder: Path) -> Directory:
    """The network in a directory that transformers, or `write`, made.

    Raises:
      UserError: there is none, or one that cannot be read here, or a file of it is damaged.
    """
    path = folder / CONFIG
    described = read_json(path)
    kind = hf_config.kind_of(described, str(path))
    architectures = described.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    state = _tensors(folder, architecture)
    head = weights.head_in(kind, state, architecture)
    if kind == "modernbert" and head == "discriminator_head" and described.get("id2label") != hf_config.LABELS:
        head = None  # it tells other things apart
    config = hf_config.read(described, head, str(path))
    factored = _arrays(folder / FACTORS) if (folder / FACTORS).is_file() else {}
    if factored:
        word = factored.get("embeddings/word", np.empty(0))
        if word.ndim != 2 or kind != "modernbert":
            raise UserError(f"{folder / FACTORS} holds no factors of embeddings; delete it")
        config = dataclasses.replace(config, embedding_size=word.shape[1])
    notes: list[str] = []
    if head == "mlm_head" and not factored and _has_another_decoder(kind, state):
        if kind == "modernbert":
            raise UserError(f"{folder}: {weights.DECODERS[kind]} is another matrix than the embeddings; here it is one")
        notes.append(f"{weights.DECODERS[kind]} is another matrix than the embeddings, and is left out: here it is one")
    network = Network(config, weights.load(config, state, factored, str(folder / WEIGHTS)))
    if factored:
        _check_factors(network, head, state, folder)
    left = weights.unread(config, state)
    if left:
        notes.append(f"{len(left)} tensors of another head are left out ({left[0]}, ...)")
    notes += said_of(described.get(_SCORES, ""))
    tokenizer = tokenizer_files.load(folder)
    if tokenizer is not None and len(tokenizer) > config.vocab_size:
        raise UserError(
            f"{folder} has a tokenizer of {len(tokenizer)} pieces and embeddings of {config.vocab_size}; put the "
            "tokenizer there that it was trained with"
        )
    return Directory(network, tokenizer, tuple(notes))


def said_of(scores: str) -> list[str]:
    """The note on a discriminator with these `ObjectiveSpec.scores`, if it needs one."""
    return [f"of every token its discriminator says {scores}"] if scores else []


def _has_another_decoder(kind: str, state: Mapping[str, np.ndarray]) -> bool:
    decoder, word = (
        state.get(name) for name in (weights.DECODERS[kind], weights.PREFIXES[kind] + weights.WORD_TABLES[kind])
    )
    return decoder is not None and word is not None and not np.array_equal(decoder, word)


def _tensors(folder: Path, architecture: str) -> dict[str, np.ndarray]:
    """All tensors of a directory, from one file or from several with an index."""
    if (folder / WEIGHTS).is_file():
        return _arrays(folder / WEIGHTS)
    if (folder / _INDEX).is_file():
        files = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(files, dict) or not all((folder / str(file)).is_file() for file in files.values()):
            raise UserError(f"{folder / _INDEX} names files that are not there; get the directory again")
        return {name: value for file in sorted(set(files.values())) for name, value in _arrays(folder / file).items()}
    if any((folder / name).is_file() for name in _PICKLED):
        kind, place = architecture if architecture.isidentifier() else "AutoModel", repr(str(folder))
        code = f"from transformers import {kind} as A; A.from_pretrained({place}).save_pretrained({place})"
        raise UserError(
            f"{folder} has its weights in {_PICKLED[0]}, a pickle, which can run code when read and is not read here; "
            f'convert it once, if you trust it, with transformers: python -c "{code}"'
        )
    raise UserError(f"{folder} has no {WEIGHTS}; give a directory that save_pretrained of transformers wrote")


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with safe_open(path, "numpy") as file:  # NumPy knows bfloat16 from JAX
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
    except (SafetensorError, TypeError) as error:
        raise UserError(f"{path} is damaged or no safetensors file ({error}); get the file again") from error
    _check_finite(arrays, str(path))
    return arrays


def _check_finite(arrays: Mapping[str, np.ndarray], place: str) -> None:
    for name, value in arrays.items():
        if value.dtype.kind not in "iub" and not np.all(np.isfinite(value)):
            raise UserError(f"{place}: {name} has values that are no numbers (NaN or infinite); use another checkpoint")


def _check_factors(network: Network, head: str | None, state: Mapping[str, np.ndarray], folder: Path) -> None:
    """Raises UserError where the tables are not the product of the factors: they were trained on since."""
    for name, value in weights.folded(network, head).items():
        tolerance, found = 1e-5 * np.abs(value).max(), state.get(name, np.empty(0))
        if found.shape != value.shape or np.abs(np.float32(found) - value).max() > tolerance:
            way = "export it again" if head == "mlm_head" else "delete it to read a table as wide as the states"
            raise UserError(f"{folder / FACTORS} is not of the {name} in {WEIGHTS}, which was changed since; {way}")
