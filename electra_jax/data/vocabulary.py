"""Reads and checks vocabularies from elsewhere: a file and the tokenizer files beside it, with notes for the user.

`tokenizer.load` reads a file as it is. Beside a file there may be a tokenizer_config.json that names a tokenizer with
its own rules, and tokens that were added to the vocabulary. transformers, which reads exports, may also segment text
differently from a SentencePiece model. What this module returns is what is exported.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from electra_jax.config.errors import UserError, first_line
from electra_jax.data import converted, proof, tokenizer
from electra_jax.data.proof import Vocabulary, settle, use_export
from electra_jax.data.tokenizer import Library, SentencePiece, Tokenizer
from electra_jax.runtime.io import read_json

SPECIAL_ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")  # in the order of `Special`
_CONFIG, _MODEL_CONFIG, _ADDED = "tokenizer_config.json", "config.json", "added_tokens.json"
_BERT_SETTINGS = {  # of a tokenizer_config.json, and their names in a tokenizer.json
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_DESCRIBED = ("tokenizer_class", "truncation_side", *_BERT_SETTINGS, *SPECIAL_ROLES)  # what is read beside a vocabulary
# Classes of transformers, without Tokenizer and Fast, that read such a file as `tokenizer.load` does.
_WORD_PIECES = {
    *("Bert", "Electra", "DistilBert", "ConvBert", "Funnel", "LayoutLM", "LayoutLMv2", "Lxmert", "MobileBert", "MPNet"),
    *("RetriBert", "Realm", "Splinter", "SqueezeBert", "DPRContextEncoder", "DPRQuestionEncoder", "DPRReader"),
    "PreTrained",
}
_SENTENCE_PIECES = {"BigBird", "DebertaV2", "Electra", "PreTrained", "Reformer", "T5"}
_SAVE = "save its tokenizer.json, which is read instead (AutoTokenizer's save_pretrained), or use another vocabulary"


def read(path: Path, fold_case: bool = True) -> Vocabulary:
    """Reads the vocabulary in a file, with the settings and the added tokens that files beside it list.

    Args:
      path: a SentencePiece model, a tokenizer.json or a vocab.txt.
      fold_case: for a vocab.txt, see `tokenizer.load`.

    Raises:
      UserError: it cannot be read, it belongs to a tokenizer with other rules or other special tokens, or the ids of
        its added tokens do not continue those of its pieces.
    """
    described = describe(path)
    if path.suffix != ".json":  # where rules are in the file itself
        _check_class(path, described)
    found = _as_described(tokenizer.load(path, fold_case), described, path)
    _check_special(path, described, found)
    added = list(_added_tokens(path, found))
    beside = path.with_name(Library.file)
    # transformers reads the tokenizer.json where both are there.
    is_read = beside.is_file() and beside != path and (bool(added) or isinstance(found, SentencePiece))
    library = Library(beside.read_bytes(), str(beside)) if is_read else None
    if not added:
        return settle(found) if library is None else _like(found, library, path.name)
    with_added = converted.convert(library or found)
    # The library numbers them on from the last piece, whatever ids the files give.
    with_added.add_tokens([token for _, token in added])
    for id_, token in added:
        if with_added.token_to_id(token.content) != id_:
            raise UserError(
                f"{path.parent} adds {token.content} as token {id_}, but after the pieces of {path.name} it is "
                f"{with_added.token_to_id(token.content)}: expected consecutive ids; {_SAVE}"
            )
    return settle(Library(with_added.to_str().encode(), str(path)))


def _like(found: Tokenizer, library: Library, name: str) -> Vocabulary:
    """Returns a SentencePiece model, or the tokenizer.json beside it, which transformers reads, if they differ."""
    # `convert` makes a copy without padding and truncation.
    difference = proof.first_difference(found, converted.convert(library), proof.lines(found))
    if difference is None:
        return Vocabulary(found)
    return use_export(library, difference, [f"tokenizer.json is read, not {name}"])


def describe(path: Path) -> dict[str, Any]:
    """Returns what the files beside the vocabulary `path` say of its tokenizer; `tokenizer_class` is always there."""
    described: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizer"}
    # The tokenizer's own file comes last, and takes precedence. transformers reads only the class from the model's.
    for name, keys in ((_MODEL_CONFIG, _DESCRIBED[:1]), (_CONFIG, _DESCRIBED)):
        beside = path.with_name(name)
        if beside.is_file():
            found = read_json(beside)
            described |= {key: found[key] for key in keys if found.get(key) is not None}
    return described


def _is_read_by(described: Mapping[str, Any], kinds: Collection[str]) -> bool:
    return str(described["tokenizer_class"]).removesuffix("Fast").removesuffix("Tokenizer") in kinds


def _check_class(path: Path, described: Mapping[str, Any]) -> None:
    """Raises UserError if the files beside `path` name a tokenizer that segments text in its own way."""
    kind = described["tokenizer_class"]
    if not _is_read_by(described, _WORD_PIECES if path.suffix == ".txt" else _SENTENCE_PIECES):
        raise UserError(f"{path} belongs to transformers' {kind}, which has rules of its own for text: {_SAVE}")
    if path.suffix != ".txt" and described.get("do_lower_case"):
        raise UserError(f"{path} is read by transformers' {kind} after lowercasing the text: {_SAVE}")


def _as_described(found: Tokenizer, described: Mapping[str, Any], path: Path) -> Tokenizer:
    """Returns a tokenizer.json with the settings beside it: transformers' BERT classes read those, not the file's."""
    if not isinstance(found, Library) or not _is_read_by(described, _WORD_PIECES - {"PreTrained"}):
        return found
    content = json.loads(found.model)
    normalizer = content.get("normalizer") or {}
    settings = {ours: described[theirs] for theirs, ours in _BERT_SETTINGS.items() if theirs in described}
    if normalizer.get("type") != "BertNormalizer" or normalizer | settings == normalizer:
        return found
    return Library(json.dumps({**content, "normalizer": normalizer | settings}).encode(), str(path))


def _check_special(path: Path, described: Mapping[str, Any], found: Tokenizer) -> None:
    """Raises UserError if a special token is another than `tokenizer.load`, which goes by names, has chosen."""
    for role, id_ in zip(SPECIAL_ROLES, found.special, strict=True):
        token = described.get(role)
        name = token.get("content") if isinstance(token, Mapping) else token
        # In this order: a look through all pieces is rarely needed.
        if name not in (None, found.name_of(id_)) and name in map(found.name_of, range(len(found))):
            raise UserError(
                f"{path} has both {name}, which {_CONFIG} gives as {role}, and {found.name_of(id_)}, which is read as "
                "this token here; use another vocabulary"
            )


def _added_tokens(path: Path, found: Tokenizer) -> Iterator[tuple[int, AddedToken]]:
    """Yields the tokens that transformers adds to the vocabulary, in the order of their ids.

    Raises:
      UserError: one is a piece of the vocabulary with another id, or a file is not as transformers writes it.
    """
    by_id: dict[int, AddedToken] = {}
    # tokenizer_config.json comes last: only it has the settings of each token.
    for name, parse in ((_ADDED, _parse_added), (_CONFIG, _parse_decoder)):
        beside = path.with_name(name)
        if beside.is_file():
            described = read_json(beside)
            try:
                by_id |= parse(described)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise UserError(
                    f"{beside} has added tokens in another form than transformers writes ({first_line(error)}): "
                    "expected texts with their ids; download the file again"
                ) from error
    ids = {found.name_of(id_): id_ for id_ in range(len(found))}
    for id_ in sorted(by_id):
        known = ids.get(by_id[id_].content)
        if known is None:
            yield id_, by_id[id_]
        elif known != id_:
            raise UserError(
                f"{path.parent} has {by_id[id_].content} as token {id_}, but in {path.name} it is {known}; {_SAVE}"
            )


def _parse_added(described: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Returns the tokens in an added_tokens.json by id."""
    return {int(id_): AddedToken(text) for text, id_ in described.items()}


def _parse_decoder(described: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Returns the tokens in a tokenizer_config.json by id."""
    names = ("lstrip", "rstrip", "single_word", "normalized")
    return {
        int(id_): AddedToken(str(token["content"]), **{name: bool(token.get(name)) for name in names})
        for id_, token in (described.get("added_tokens_decoder") or {}).items()
    }
