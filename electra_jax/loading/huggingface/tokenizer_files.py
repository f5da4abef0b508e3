"""Writes and reads the tokenizer files of a Hugging Face directory: the same ids for all text, but see `files`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from electra_jax.config.errors import UserError
from electra_jax.data import converted, proof, vocabulary
from electra_jax.data.proof import Vocabulary
from electra_jax.data.tokenizer import SPECIAL_TOKENS, Library, SentencePiece, Tokenizer
from electra_jax.data.vocabulary import SPECIAL_ROLES
from electra_jax.modeling.architecture import SENTENCEPIECE_FILES
from electra_jax.runtime.io import read_json

CONFIG = "tokenizer_config.json"
_FILES = (*SENTENCEPIECE_FILES, Library.file, "vocab.txt")  # the first that exists is read
_BERT = {  # WordPiece as BERT's tokenizer has it
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}
_NO_LIMIT = 10**9  # transformers writes 1e30


def files(ours: Tokenizer, max_length: int, segments: bool, sentencepiece_file: str = _FILES[0]) -> dict[str, bytes]:
    """Returns the content of each tokenizer file by name.

    There are two differences from `ours`. A special token written in a text, such as "[MASK]", becomes that
    token, as users of `fill-mask` expect; `ours` treats it as text. A byte piece written in a text, such as
    "<0x41>", becomes that piece.

    Args:
      ours: the tokenizer.
      max_length: maximum length of the model, special tokens included.
      segments: whether the model reads segment ids.
      sentencepiece_file: the name of a SentencePiece model.

    Raises:
      UserError: tokenizer.json cannot express this SentencePiece model, or would segment text differently.
    """
    result = {}
    model = converted.convert(ours)
    kind: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if isinstance(ours, SentencePiece):
        result[sentencepiece_file] = ours.model
    elif bert := _bert_settings(json.loads(ours.model)):
        pieces = [ours.name_of(id_) for id_ in range(len(ours))]
        result["vocab.txt"] = "".join(f"{piece}\n" for piece in pieces).encode()
        kind = {"tokenizer_class": "BertTokenizer", **bert}
    names = {role: model.id_to_token(id_) for role, id_ in zip(SPECIAL_ROLES, ours.special, strict=True)}
    # Only in the export is "[MASK]" in a text the mask: in text for training, only training may mask.
    model.add_special_tokens([_special(model, name) for name in names.values()])
    check(ours, model, proof.lines(ours))
    cls, sep = names["cls_token"], names["sep_token"]
    # The second text of a pair has segment 1, [SEP] included, as in BERT.
    model.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, ours.special.cls), (sep, ours.special.sep)],
    )
    settings = {
        **kind,
        **names,
        "model_max_length": max_length,
        "model_input_names": ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    result["tokenizer.json"] = model.to_str(pretty=True).encode()
    result[CONFIG] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
    result["special_tokens_map.json"] = (json.dumps(names, indent=2, ensure_ascii=False) + "\n").encode()
    return result


def _bert_settings(described: Mapping[str, Any]) -> dict[str, object]:
    """Returns the settings of a `BertTokenizer` that is equivalent to a tokenizer.json; empty if there is none."""
    model, normalizer = described["model"], described.get("normalizer") or {}
    # vocab.txt has a piece per line, in the order of ids: it can express neither gaps nor added tokens.
    if (
        {name: model.get(name) for name in _BERT} != _BERT
        or sorted(model["vocab"].values()) != list(range(len(model["vocab"])))
        or any(token["content"] not in SPECIAL_TOKENS for token in described.get("added_tokens") or ())
        or (normalizer.get("type"), normalizer.get("clean_text")) != ("BertNormalizer", True)
        or described.get("pre_tokenizer") != {"type": "BertPreTokenizer"}
    ):
        return {}
    return {
        "do_lower_case": normalizer["lowercase"],
        "strip_accents": normalizer["strip_accents"],
        "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
    }


def check(ours: Tokenizer, model: tokenizers.Tokenizer, texts: Iterable[str]) -> None:
    """Raises UserError if `model`, which becomes tokenizer.json, segments one of `texts` differently."""
    difference = proof.first_difference(ours, model, texts)
    if difference is not None:
        text, here, there = difference
        raise UserError(
            f"tokenizer.json would read text differently: {text!r} is {' '.join(here)} ... here and {' '.join(there)} "
            "... there; train with another vocabulary"
        )


def longest(folder: Path) -> int:
    """Returns the length that the tokenizer of a directory truncates texts to; 0 if it does not say."""
    path = folder / CONFIG
    said = read_json(path).get("model_max_length") if path.is_file() else None
    return int(said) if isinstance(said, int | float) and 2 < said < _NO_LIMIT else 0


def _special(model: tokenizers.Tokenizer, name: str | None) -> AddedToken:
    """Makes a special token that strips neighboring spaces if the model's own does, as ModernBERT's [MASK]."""
    own = next((each for each in model.get_added_tokens_decoder().values() if each.content == name), AddedToken(name))
    spaces = {"lstrip": own.lstrip, "rstrip": own.rstrip, "single_word": own.single_word}
    return AddedToken(name, normalized=False, special=True, **spaces)


def find(folder: Path) -> Path | None:
    """Returns the vocabulary file of a Hugging Face directory; None if it has none."""
    return next((path for name in _FILES if (path := folder / name).is_file()), None)


def load(folder: Path) -> Vocabulary | None:
    """Loads the vocabulary of a Hugging Face directory; None if it has none.

    Raises:
      UserError: the vocabulary cannot be read, or transformers would give text or an added token other ids.
    """
    path = find(folder)
    if path is None:
        return None
    found, described, notes = vocabulary.read(path), vocabulary.describe(path), []
    if described.get("truncation_side") == "left":
        notes.append(f"{CONFIG} cuts long texts off at their beginning; they are cut off at their end here")
    # Other classes of transformers make a post-processor of their own, BERT's.
    reads_it = str(described["tokenizer_class"]).startswith(("PreTrained", "Tokenizers"))
    if (folder / Library.file).is_file() and reads_it:
        library = tokenizers.Tokenizer.from_file(str(folder / Library.file))
        library.no_truncation()
        library.no_padding()
        _, _, cls, sep, _ = found.tokenizer.special
        (text,) = found.tokenizer.encode(["a"])
        if library.encode("a").ids != [cls, *text, sep]:
            notes.append(f"{Library.file} puts other special tokens around a text; [CLS] and [SEP] are used here")
    return found._replace(notes=(*found.notes, *notes))
