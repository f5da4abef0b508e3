"""Writes and reads the tokenizer files of a Hugging Face directory, which give the same ids for every text."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from electra_jax.config.errors import UserError
from electra_jax.data import converted, tokenizer
from electra_jax.data.tokenizer import Library, SentencePiece, Tokenizer
from electra_jax.runtime.io import read_json

_SENTENCEPIECE_FILE = "spiece.model"  # the name that ALBERT and others use
_DEBERTA_FILE = "spm.model"  # DeBERTa's name for the same
_ADDED = "added_tokens.json"  # tokens beyond those of the SentencePiece model, by id
_FILES = (_SENTENCEPIECE_FILE, _DEBERTA_FILE, Library.file, "vocab.txt")  # the first that exists is read
_SPECIAL_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")  # in the order of `Special`


def files(vocabulary: Tokenizer, max_length: int, segments: bool, deberta: bool = False) -> dict[str, bytes]:
    """The content of each tokenizer file by its name.

    There are two differences from `vocabulary`. A special token written in a text, such as "[MASK]", becomes that
    token, as users of `fill-mask` expect; `vocabulary` treats it as text. A byte piece written in a text, such as
    "<0x41>", becomes that piece.

    Args:
      vocabulary: the tokenizer.
      max_length: positions of the model, special tokens included.
      segments: whether the model reads segment ids.
      deberta: whether a SentencePiece model gets the name that DeBERTa's tokenizer looks for.

    Raises:
      UserError: tokenizer.json cannot express this SentencePiece model.
    """
    result = {}
    if isinstance(vocabulary, SentencePiece):
        model = converted.convert(vocabulary)
        result[_DEBERTA_FILE if deberta else _SENTENCEPIECE_FILE] = vocabulary.model
    else:
        model = tokenizers.Tokenizer.from_str(vocabulary.model.decode())
        model.no_padding()
        model.no_truncation()
    names = {role: model.id_to_token(id_) for role, id_ in zip(_SPECIAL_NAMES, vocabulary.special, strict=True)}
    model.add_special_tokens([_special(model, name) for name in names.values()])
    cls, sep = names["cls_token"], names["sep_token"]
    model.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary.special.cls), (sep, vocabulary.special.sep)],
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "model_max_length": max_length,
        "model_input_names": ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    result["tokenizer.json"] = model.to_str(pretty=True).encode()
    result["tokenizer_config.json"] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
    result["special_tokens_map.json"] = (json.dumps(names, indent=2, ensure_ascii=False) + "\n").encode()
    return result


def _special(model: tokenizers.Tokenizer, name: str | None) -> AddedToken:
    """A special token, which takes in the spaces beside it where the model's own does, as ModernBERT's [MASK]."""
    own = next((each for each in model.get_added_tokens_decoder().values() if each.content == name), AddedToken(name))
    spaces = {"lstrip": own.lstrip, "rstrip": own.rstrip, "single_word": own.single_word}
    return AddedToken(name, normalized=False, special=True, **spaces)


def find(folder: Path) -> Path | None:
    """The vocabulary file of a Hugging Face directory; None where it has none."""
    return next((path for name in _FILES if (path := folder / name).is_file()), None)


def load(folder: Path) -> Tokenizer | None:
    """The tokenizer of a Hugging Face directory; None where it has none.

    Raises:
      UserError: it cannot be read, or it gives a special token another id than the directory's added tokens do.
    """
    path = find(folder)
    if path is None:
        return None
    found = tokenizer.load(path)
    added = read_json(folder / _ADDED) if path.name == _DEBERTA_FILE and (folder / _ADDED).is_file() else {}
    ids = {found.name_of(id_): id_ for id_ in found.special}
    for name, id_ in added.items():
        if ids.get(name, id_) != id_:
            raise UserError(
                f"{folder / _ADDED} has {name} as token {id_}, but after the pieces of {_DEBERTA_FILE} it is "
                f"{ids[name]}; add a tokenizer.json and remove {_DEBERTA_FILE}"
            )
    return found
