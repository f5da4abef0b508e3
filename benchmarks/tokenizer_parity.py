"""How many lines of a text get other ids from transformers' tokenizers than here.

    python benchmarks/tokenizer_parity.py --text=FILE [--vocab_size=30522] [--sample_mb=20]

FILE is plain text or .xz. A vocabulary of each kind that `prepare` trains is trained on its first megabytes, written as
`export` writes it, and compared with `AutoTokenizer` on every line, and on every pair of a line and the next, special
tokens and segments included. So are vocabularies by the recipes of ALBERT, XLNet, T5, RoBERTa, ModernBERT, HerBERT and
the tokenizers library's quick tour, as the gate for vocabularies reads them (`electra_jax.data.vocabulary`), and one in
the layout of DeBERTaV3's, which is compared with its fast tokenizer of transformers 4 too. Each line of JSON also has
the seconds of either, which are of one core with TOKENIZERS_PARALLELISM=false, tokens per word, and unknown tokens per
thousand. Needs transformers (`'.[parity]'`), and not PyTorch.
"""

import io
import itertools
import json
import lzma
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import extras
import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors, trainers

from electra_jax.config import cli, errors
from electra_jax.data import proof, sentencepiece_proto, tokenizer, vocabulary_training
from electra_jax.data.config import MODEL_TYPES, CorpusConfig
from electra_jax.loading.huggingface import tokenizer_files
from electra_jax.modeling.architecture import SENTENCEPIECE_FILES

with extras.needed("pip install '.[parity]'"):
    from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

_AT_ONCE = 10_000  # lines


def of_ours(sample: Sequence[str], size: int) -> Iterator[tuple[str, tokenizer.Tokenizer]]:
    """Vocabularies as `prepare` trains them."""
    for model_type in MODEL_TYPES:
        yield model_type, vocabulary_training.train(sample, CorpusConfig(model_type=model_type, vocab_size=size))


_SYMBOLS = ("(", ")", '"', "-", ".", "\u2013", "\u00a3", "\u20ac")  # ALBERT's
_SENTENCE_PIECES: dict[str, dict[str, Any]] = {
    "ALBERT": {"user_defined_symbols": _SYMBOLS, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"], "bos_id": -1},
    "XLNet": {
        "user_defined_symbols": ["<eop>", "."],
        "control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"],
    },
    "T5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "normalization_rule_name": "nmt_nfkc"},
    "BPE with symbols": {"model_type": "bpe", "user_defined_symbols": ["<num>", "("]},
}


def of_others(sample: Sequence[str], size: int) -> Iterator[tuple[str, tokenizer.Tokenizer]]:
    """Vocabularies as others train them."""
    for name, options in _SENTENCE_PIECES.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample), model_writer=model, vocab_size=size, minloglevel=2, **options
        )
        settled = proof.settle(tokenizer.SentencePiece(model.getvalue()))
        print(json.dumps({"kind": name, "notes": settled.notes}), flush=True)
        yield name, settled.tokenizer
    bert, roberta = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet, bert_words = pre_tokenizers.ByteLevel.alphabet(), pre_tokenizers.BertPreTokenizer()
    kinds: tuple[tuple[str, list[str], Any, Any, Any], ...] = (
        ("RoBERTa", roberta, models.BPE(), byte_level, {"initial_alphabet": alphabet}),
        ("ModernBERT", bert, models.BPE(), byte_level, {"initial_alphabet": alphabet}),
        ("HerBERT", roberta, models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), bert_words, {}),
        ("quick tour", bert, models.BPE(unk_token="[UNK]"), pre_tokenizers.Whitespace(), {}),
    )
    for name, special, model_of, splits, more in kinds:
        made = tokenizers.Tokenizer(model_of)
        made.pre_tokenizer = splits
        suffix: dict[str, Any] = {"end_of_word_suffix": "</w>"} if name == "HerBERT" else {}
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False, **more, **suffix)
        made.train_from_iterator(sample, trainer)
        yield name, proof.settle(tokenizer.Library(made.to_str().encode())).tokenizer


def write_deberta(folder: Path, sample: Sequence[str], size: int, normalization: str = "nmt_nfkc") -> None:
    """Writes a vocabulary in the layout of DeBERTaV3's: its own order of special tokens, [MASK] after all pieces."""
    model = io.BytesIO()
    special = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    roles: dict[str, Any] = {f"{role}_id": id_ for id_, role in enumerate(special)}
    roles |= {f"{role}_piece": piece for role, piece in special.items()}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sample),
        model_writer=model,
        vocab_size=size,
        normalization_rule_name=normalization,
        minloglevel=2,
        **roles,
    )
    (folder / "spm.model").write_bytes(model.getvalue())
    (folder / "added_tokens.json").write_text(json.dumps({"[MASK]": size}))
    (folder / "config.json").write_text('{"model_type": "deberta-v2"}')
    settings = {"do_lower_case": False, "vocab_type": "spm", "tokenizer_class": "DebertaV2Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def deberta_of_transformers_4(folder: Path) -> PreTrainedTokenizerBase:
    """The fast tokenizer that transformers 4 makes of `spm.model`; transformers 5 leaves out the normalization."""
    spm = sentencepiece_proto.parse((folder / "spm.model").read_bytes())
    made = tokenizers.Tokenizer(models.Unigram([(p.piece, p.score) for p in spm.pieces], 3, False))
    charsmap = spm.normalizer_spec.precompiled_charsmap
    steps = [normalizers.Strip(), *([normalizers.Precompiled(charsmap)] if charsmap else [])]
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    names = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    made.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=inputs)


def exported(ours: tokenizer.Tokenizer, deberta: bool = False) -> PreTrainedTokenizerBase:
    """What `AutoTokenizer` makes of the files that are exported."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in tokenizer_files.files(ours, 10**9, True, SENTENCEPIECE_FILES[deberta]).items():
            (Path(folder) / name).write_bytes(content)
        model_type = "deberta-v2" if deberta else "electra"
        (Path(folder) / "config.json").write_text(json.dumps({"model_type": model_type}))
        return AutoTokenizer.from_pretrained(folder)


def compare(ours: tokenizer.Tokenizer, theirs: PreTrainedTokenizerBase, lines: Sequence[str]) -> dict[str, int | float]:
    """Of all lines and all pairs of neighbors: how many have other ids there."""
    cls, sep = ours.special.cls, ours.special.sep
    differing = pairs = tokens = unknown = 0
    seconds = {"here": 0.0, "there": 0.0}
    last: list[tuple[str, list[int]]] = []
    for begin in range(0, len(lines), _AT_ONCE):
        some = lines[begin : begin + _AT_ONCE]
        started = time.perf_counter()
        ids = ours.encode(some)
        seconds["here"] += time.perf_counter() - started
        started = time.perf_counter()
        found = theirs(some)["input_ids"]
        seconds["there"] += time.perf_counter() - started
        tokens += sum(map(len, ids))
        unknown += sum(line.count(ours.special.unk) for line in ids)
        differing += sum([cls, *line, sep] != other for line, other in zip(ids, found, strict=True))

        both = [*last, *zip(some, ids, strict=True)]
        texts = [text for text, _ in both]
        paired = theirs(texts[:-1], texts[1:])
        for (_, a), (_, b), other, types in zip(
            both, both[1:], paired["input_ids"], paired["token_type_ids"], strict=False
        ):
            expected = [cls, *a, sep, *b, sep], [0] * (len(a) + 2) + [1] * (len(b) + 1)
            pairs += expected != (other, types)
        last = both[-1:]
    rounded = {f"seconds_{where}": round(value, 1) for where, value in seconds.items()}
    words = sum(len(line.split()) for line in lines)
    rates = {"tokens_per_word": round(tokens / words, 3), "unknown_per_thousand": round(1e3 * unknown / tokens, 3)}
    return {"lines": len(lines), "lines_differing": differing, "pairs_differing": pairs, **rounded, **rates}


def main(argv: list[str]) -> int:
    options = {"text": "", "vocab_size": 30522, "sample_mb": 20}
    chosen = cli.parse(argv, __doc__ or "", options)
    cli.require(chosen, ("text",))
    path = Path(chosen["text"])
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")
    if len(lines) < 2:
        raise errors.UserError(f"--text={path} has {len(lines)} line: expected two or more")
    sizes = itertools.accumulate(len(line) for line in lines)
    sample = [line for line, size in zip(lines, sizes, strict=True) if line and size < chosen["sample_mb"] * 1e6]
    size = chosen["vocab_size"]
    for kind, ours in itertools.chain(of_ours(sample, size), of_others(sample, size)):
        print(json.dumps({"kind": kind, "pieces": len(ours), **compare(ours, exported(ours), lines)}), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        write_deberta(Path(folder), sample, size)
        found = tokenizer_files.load(Path(folder))
        assert found is not None
        deberta = found.tokenizer
        for kind, theirs in (
            ("DeBERTaV3, exported", exported(deberta, deberta=True)),
            ("DeBERTaV3, of transformers 4", deberta_of_transformers_4(Path(folder))),
        ):
            print(json.dumps({"kind": kind, "pieces": len(deberta), **compare(deberta, theirs, lines)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
