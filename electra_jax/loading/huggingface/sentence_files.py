"""Writes the files that make an encoder's directory a sentence-transformers model.

The format is that of sentence-transformers 2, which later versions read too.
"""

import json

_MODULES = "sentence_transformers.models"


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
        "modules.json": modules,
        # Without this file, PyLate and txtai ask the Hub for it, and wait about a minute for it offline.
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",  # sentence-transformers' own default
        },
        # The tokenizer lowercases by itself; `do_lower_case` would do so for cased models too.
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True},
    }
    return {name: json.dumps(content, indent=2) + "\n" for name, content in contents.items()}
