"""Writes and reads the files that make an encoder's directory a sentence-transformers model.

The format is that of sentence-transformers 2, which later versions read too.
"""

import json
import re
from pathlib import Path

from electra_jax.loading.huggingface import tokenizer_files
from electra_jax.runtime.io import read_json

_MODULES = "sentence_transformers.models"
_LIST, _LIMIT, _POOLING = "modules.json", "sentence_bert_config.json", "1_Pooling/config.json"
_PROMPTS = "config_sentence_transformers.json"


def files(width: int, max_length: int) -> dict[str, str]:
    """Returns the content of each file by name. A sentence vector is the mean hidden state, as in `Model.encode`.

    Args:
      width: the encoder's hidden size.
      max_length: tokens that texts are truncated to.
    """
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{_MODULES}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{_MODULES}.Pooling"},
    ]
    contents = {
        _LIST: modules,
        # Without this file, PyLate and txtai ask the Hub for it, and wait about a minute for it offline.
        _PROMPTS: {
            "model_type": "SentenceTransformer",
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",  # sentence-transformers' own default
        },
        # The tokenizer lowercases by itself; `do_lower_case` would do so for cased models too.
        _LIMIT: {"max_seq_length": max_length, "do_lower_case": False},
        _POOLING: {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True},
    }
    return {name: json.dumps(content, indent=2) + "\n" for name, content in contents.items()}


def read(folder: Path) -> tuple[int, list[str]]:
    """Returns the number of tokens that a sentence-transformers model truncates texts to, and warnings.

    The number is 0 if the directory is no such model, or does not say.
    """
    if not (folder / _LIST).is_file():
        return 0, []
    settings, pooling, prompts = (
        read_json(folder / name) if (folder / name).is_file() else {} for name in (_LIMIT, _POOLING, _PROMPTS)
    )
    limit = settings.get("max_seq_length") or tokenizer_files.longest(folder)
    # Version 6 names the mode; before, there was a setting for each.
    is_mean = pooling.get("pooling_mode_mean_tokens", pooling.get("pooling_mode", "mean") == "mean")
    notes = []
    if not is_mean:
        notes.append(
            f"{_POOLING} asks for other sentence vectors than the mean, which `encode` returns without pooling='cls'"
        )
    # A list of objects, each with the name of a class.
    modules = re.findall(r'"type":\s*"(?:\w+\.)*(\w+)"', (folder / _LIST).read_text(encoding="utf-8"))
    if others := [name for name in modules if name not in ("Transformer", "Pooling")]:
        notes.append(f"{_LIST} has {', '.join(others)} after the encoder, which `encode` leaves out")
    if prompts.get("default_prompt_name"):
        notes.append(f"{_PROMPTS} puts a prompt before each text, which `encode` leaves out")
    return int(limit), notes
