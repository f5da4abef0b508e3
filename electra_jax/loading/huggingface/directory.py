"""Writes a network as a Hugging Face directory, and reads one with every tensor checked."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.loading.huggingface import bert, hf_config, sentence_files, tokenizer_files, weights
from electra_jax.modeling.architecture import LABELS, Architecture
from electra_jax.modeling.subnetwork import Network
from electra_jax.runtime.io import read_json, sha256, write_whole

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
# A ModernBERT with E != D is written with its projections folded into the tables. This file keeps the factors, so that
# training can continue from them.
FACTORS = "embedding_factors.safetensors"
DTYPES = ("float32", "float16")  # of the weights in a file
_SCORES = "scores"  # the key in config.json for `ObjectiveSpec.scores`
_INDEX = f"{WEIGHTS}.index.json"
_HISTORY = {"_name_or_path", "name_or_path", "transformers_version"}  # settings that only say where files came from
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def save_arrays(arrays: Mapping[str, Any], path: Path, framework: str = "np") -> None:
    """Writes a safetensors file, with the framework of its arrays in the metadata."""
    # safetensors writes the memory as it is, and an array from a device may be column-major.
    save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, path, {"format": framework})


class Pretrained(NamedTuple):
    """The networks of one run or directory.

    Attributes:
      encoder: the network that pre-training keeps, with its heads.
      generator: the generator; None if the directory has none.
      tokenizer: the tokenizer; None if the directory has none.
      notes: warnings about what was read, a sentence each.
      scores: as `ObjectiveSpec.scores`; empty if the discriminator's score is the probability of being replaced.
    """

    encoder: Network
    generator: Network | None
    tokenizer: Tokenizer | None
    notes: tuple[str, ...] = ()
    scores: str = ""


def write(
    folder: Path,
    network: Network,
    head: str | None,
    tokenizer: Tokenizer,
    card: str,
    scores: str = "",
    more: Mapping[str, Any] | None = None,
    max_length: int = 0,
    dtype: str = "float32",
) -> None:
    """Writes a directory that transformers' `from_pretrained` reads.

    Args:
      folder: the directory; it must not exist yet.
      network: the network to write.
      head: which of its heads to write; for a fine-tuned model, whose head is named `head`, the kind of its task; None
        writes the encoder alone.
      tokenizer: the network's tokenizer.
      card: the model card, in Markdown.
      scores: as `ObjectiveSpec.scores`.
      more: further entries of config.json.
      max_length: tokens that the tokenizer truncates texts to; 0: `ElectraConfig.longest`.
      dtype: one of `DTYPES`, in which the weights are stored. config.json asks for float32 in any case, so that the
        model computes in float32.

    Raises:
      UserError: a parameter is not finite or too large for `dtype`, or tokenizer.json cannot express the tokenizer.
    """
    state = weights.export(network, head)
    config = hf_config.write(network.config, head, tokenizer.special)
    # Before the folder is made, so that weights or a tokenizer that are refused leave nothing behind.
    _check_finite(state, "the checkpoint")
    state = _stored(state, dtype)
    longest = max_length or network.config.longest
    sentencepiece_file = network.config.encoder.architecture.sentencepiece_file
    files = tokenizer_files.files(tokenizer, longest, network.config.absolute, sentencepiece_file)
    folder.mkdir(parents=True)
    save_arrays(state, folder / WEIGHTS, framework="pt")
    if weights.is_folded(network.config):
        save_arrays(_stored(weights.factors(network), dtype), folder / FACTORS)
    config |= {_SCORES: scores} if scores and head == "discriminator_head" else {}
    config |= more or {}
    write_whole(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    write_whole(folder / CARD, card)
    for name in (WEIGHTS, FACTORS):
        if (folder / name).is_file():
            shutil.copymode(folder / CARD, folder / name)  # safetensors writes files that only their owner can read


def is_directory(folder: Path) -> bool:
    """True if `folder` has a config.json of transformers."""
    path = folder / CONFIG
    return path.is_file() and "model_type" in read_json(path)


def read(folder: Path) -> Pretrained:
    """Reads a directory that `write`, or transformers' `save_pretrained`, wrote.

    Raises:
      UserError: the directory has no model, a model that electra_jax does not support, or a damaged file.
    """
    path = folder / CONFIG
    described = read_json(path)
    architecture = hf_config.architecture_of(described, str(path))
    class_name = _class_name(described)
    hf_config.read(described, None, str(path))  # refuse a model before the advice to convert its weights
    state = architecture.rename(_tensors(folder))
    head = weights.head_in(architecture, state, class_name)
    is_tagger = head == "discriminator_head" and class_name.endswith("ForTokenClassification")
    if is_tagger and described.get("id2label") != LABELS:
        head = None  # a classifier for another task
    config = hf_config.read(described, head, str(path))
    # Exports limit the tokenizer to the trained length: later entries of BERT's position table are untrained.
    config = dataclasses.replace(config, trained_length=tokenizer_files.longest(folder))
    limit, notes = sentence_files.read(folder)
    # A sentence-transformers model cuts texts off there even if its positions go on.
    if limit and not config.absolute:
        config = dataclasses.replace(config, max_length=min(config.max_length, limit))
    factored = _arrays(folder / FACTORS) if (folder / FACTORS).is_file() else {}
    if factored:
        word = factored.get("embeddings/word", np.empty(0))
        if word.ndim != 2 or not architecture.folds:
            raise UserError(f"{folder / FACTORS} is not a file of embedding factors; delete it")
        # config.json describes the folded tables [V, D]; the factor is [V, E].
        config = dataclasses.replace(config, embedding_size=word.shape[1])
    # ELECTRA's class in transformers ties the two whatever the file has; ModernBERT's may have two matrices.
    if head == "mlm_head" and not factored and _has_another_decoder(architecture, state):
        if architecture.folds:
            raise UserError(
                f"{folder}: {architecture.decoder} differs from the word embeddings; electra_jax reads models with "
                "tied embeddings only"
            )
        notes.append(f"{architecture.decoder} differs from the word embeddings and was ignored: the two are tied here")
    network = Network(config, weights.load(config, state, factored, str(folder / WEIGHTS)))
    if factored:
        _check_factors(network, head, state, folder)
    ignored = weights.unread(config, state)
    of_layers = [name for name in ignored if weights.is_of_layers(architecture, name)]
    if of_layers:
        raise UserError(
            f"{folder / WEIGHTS} has {of_layers[0]}, which config.json does not describe, so the encoder would compute "
            "something else; use the config.json of these weights"
        )
    if ignored:
        notes.append(f"tensors of another head were ignored: {len(ignored)}, the first {ignored[0]}")
    scores = str(described.get(_SCORES, ""))
    notes += score_notes(scores)
    vocabulary = tokenizer_files.load(folder)
    tokenizer = vocabulary and vocabulary.tokenizer
    notes += vocabulary.notes if vocabulary else ()
    # Fewer pieces are fine: released models have rows that no piece uses.
    if tokenizer is not None and len(tokenizer) > config.vocab_size:
        raise UserError(
            f"{folder} has a tokenizer of {len(tokenizer)} pieces but embeddings for {config.vocab_size}; replace it "
            "by the tokenizer that the model was trained with"
        )
    return Pretrained(bert.without_names(network), None, tokenizer, tuple(notes), scores)


def _stored(state: Mapping[str, Any], dtype: str) -> dict[str, np.ndarray]:
    """Converts the weights to `dtype`. Raises UserError if one is too large for it."""
    with np.errstate(over="ignore"):  # an overflow is reported below
        stored = {name: np.asarray(value).astype(dtype) for name, value in state.items()}
    large = next((name for name, value in stored.items() if not np.all(np.isfinite(value))), None)
    if large is not None:
        raise UserError(f"{large} is too large for {dtype}; export in float32")
    return stored


def _class_name(described: Mapping[str, Any]) -> str:
    architectures = described.get("architectures")
    return str(architectures[0]) if isinstance(architectures, list) and architectures else ""


def score_notes(scores: str) -> list[str]:
    """Returns a warning if the discriminator's score is not the probability of being replaced; see `ObjectiveSpec`."""
    return [f"the discriminator's score of a token is {scores}"] if scores else []


def _has_another_decoder(architecture: Architecture, state: Mapping[str, np.ndarray]) -> bool:
    decoder, word = map(state.get, (architecture.decoder, weights.word_table(architecture, prefixed=True)))
    return decoder is not None and word is not None and not np.array_equal(decoder, word)


def digest(folder: Path) -> str:
    """Computes a digest of a directory's weights, configuration and vocabulary; empty if it has no weights."""
    files = [folder / WEIGHTS]
    if not files[0].is_file():
        # Sorted, because the order of `glob` is that of the file system.
        files = sorted(folder.glob("*.safetensors")) if (folder / _INDEX).is_file() else []
    if not files:
        return ""
    vocabulary = tokenizer_files.find(folder)
    parts = [sha256(file) for file in (*files, *([vocabulary] if vocabulary else []))]
    for path in (folder / CONFIG, folder / tokenizer_files.CONFIG):
        described = read_json(path) if path.is_file() else {}
        parts.append(json.dumps({key: described[key] for key in sorted(described.keys() - _HISTORY)}))
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _tensors(folder: Path) -> dict[str, np.ndarray]:
    """Reads all tensors of a directory, from one file or from several with an index."""
    if (folder / WEIGHTS).is_file():
        return _arrays(folder / WEIGHTS)
    if (folder / _INDEX).is_file():
        files = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(files, dict) or not all((folder / str(file)).is_file() for file in files.values()):
            raise UserError(f"{folder / _INDEX} names files that do not exist; download the directory again")
        return {name: value for file in sorted(set(files.values())) for name, value in _arrays(folder / file).items()}
    if any((folder / name).is_file() for name in _PICKLED):
        # Not by transformers, whose classes would drop the heads of the released DeBERTaV3 models.
        code = (
            "import pathlib, torch; from safetensors.torch import save_file; "
            f"folder = pathlib.Path({str(folder)!r}); "
            "files = (torch.load(f, 'cpu', weights_only=True) for f in folder.glob('pytorch_model*.bin')); "
            "own = {k: v.clone(memory_format=torch.contiguous_format) for file in files for k, v in file.items()}; "
            f"save_file(own, folder / {WEIGHTS!r})"
        )
        raise UserError(
            f"{folder} has its weights in pytorch_model*.bin, a pickle, which electra_jax does not read because it "
            f'can run code; if you trust it, convert it with PyTorch: python -c "{code}"'
        )
    raise UserError(f"{folder} has no {WEIGHTS}; use a directory that save_pretrained of transformers wrote")


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with safe_open(path, "numpy") as file:  # JAX registers bfloat16 with NumPy
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, TypeError) as error:
        raise UserError(
            f"{path} is damaged or not a safetensors file ({error}); download or export it again"
        ) from error
    _check_finite(arrays, str(path))
    return arrays


def _check_finite(arrays: Mapping[str, np.ndarray], place: str) -> None:
    for name, value in arrays.items():
        # Not `kind == "f"`, because NumPy gives bfloat16 the kind "V".
        if value.dtype.kind not in "iub" and not np.all(np.isfinite(value)):
            raise UserError(f"{place}: {name} has NaN or infinite values; use another checkpoint")


def _check_factors(network: Network, head: str | None, state: Mapping[str, np.ndarray], folder: Path) -> None:
    """Raises UserError if the tables are not the product of the factors, because they were trained after the export."""
    for name, value in weights.folded(network, head).items():
        prefixed = network.config.encoder.architecture.prefix + name  # in a class with an unknown head
        table = state.get(name, state.get(prefixed, np.empty(0, np.float32)))
        rounding = 1e-5 if table.dtype == np.float32 else 2.0**-8  # bfloat16's, the coarsest
        tolerance = rounding * np.abs(value).max()
        if table.shape != value.shape or np.abs(np.float32(table) - value).max() > tolerance:
            way = "export it again" if head == "mlm_head" else "delete it, and the full tables are used"
            raise UserError(f"{folder / FACTORS} does not match {name} in {WEIGHTS}, which was changed; {way}")
