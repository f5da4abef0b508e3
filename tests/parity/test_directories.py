"""Directories that transformers wrote are read here, and those written here by transformers, with the same numbers."""
# ruff: noqa: E402 (nothing else is imported where there is no PyTorch)

import pytest

_REASON = "compares with Hugging Face's PyTorch classes: pip install torch transformers"
torch = pytest.importorskip("torch", reason=_REASON)
transformers = pytest.importorskip("transformers", reason=_REASON)

import argparse
import doctest
import functools
import itertools
import logging
import optparse
import pdb
import re
import unittest.mock
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tokenizers
from cli_runs import ROOT, quiet, small_config

from electra_jax import train
from electra_jax.commands import detect
from electra_jax.config import config_file
from electra_jax.data import tokenizer
from electra_jax.data.config import CorpusConfig
from electra_jax.data.docstrings import docstrings
from electra_jax.loading.export import export
from electra_jax.loading.huggingface import directory, tokenizer_files
from electra_jax.loading.networks import load_networks
from electra_jax.modeling import electra
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.subnetwork import Network

TOLERANCE = 1e-5  # absolute, in float32
VOCABULARY = 300
LENGTHS = (7, 128, 512)

# Of the paper and the reference: layers, heads, whether the table is narrower; the widths are reduced to 16 a head.
SHAPES = {"small": (12, 4, True), "base": (12, 12, False), "large": (24, 16, False)}
GENERATORS = {"small": (12, 1), "base": (12, 4), "large": (24, 4)}
MODULES = (argparse, doctest, logging, optparse, pdb, unittest.mock)
LINES = [
    line
    for module in MODULES
    for text in docstrings(Path(module.__file__).read_bytes())
    for line in text.split("\n")
    if line.strip()
]


@functools.cache
def batch(length: int) -> dict[str, np.ndarray]:
    """A full row, a pair with padding behind it, and a row that is nearly empty."""
    rng = np.random.default_rng(length)
    ids = rng.integers(5, VOCABULARY, (3, length)).astype(np.int32)
    used, segments = np.ones_like(ids), np.zeros_like(ids)
    used[1, length * 3 // 4 :], used[2, 3:], segments[:2, length // 3 :] = 0, 0, 1
    return Batch(ids * used, segments * used, used)


def ours(network: Network, length: int) -> np.ndarray:
    """Logits of the head, or states where there is none."""
    text = batch(length)

    @jax.jit
    def run(params: Any) -> Any:
        states = electra.encode(network.model, params, text)
        if not network.config.heads:
            return states
        if network.config.heads == ("mlm_head",):
            return electra.mlm_logits(network.model, params, states)[..., : network.config.vocab_size]
        return electra.discriminator_logits(network.model, params, states)

    return np.asarray(run(network.params))


def theirs(model: Any, length: int) -> np.ndarray:
    text = {name: torch.from_numpy(value.astype(np.int64)) for name, value in batch(length)._asdict().items()}
    given = {"input_ids": text["input_ids"], "attention_mask": text["sequence_ids"]}
    if model.config.model_type == "electra":
        given["token_type_ids"] = text["token_type_ids"]
    with torch.no_grad():
        out = model.eval()(**given)
    found = (out.logits if "logits" in out else out.last_hidden_state).numpy()
    return found[..., 1] - found[..., 0] if type(model).__name__.endswith("TokenClassification") else found


def agree(network: Network, model: Any, lengths=LENGTHS) -> None:
    for length in lengths:
        real = batch(length).sequence_ids == 1
        difference = np.abs(ours(network, length)[real] - theirs(model, length)[real]).max()
        assert difference <= TOLERANCE, (length, difference)


def electra_config(layers: int, heads: int, narrow: bool) -> Any:
    return transformers.ElectraConfig(
        vocab_size=VOCABULARY,
        embedding_size=16 * heads // (2 if narrow else 1),
        hidden_size=16 * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=64 * heads,
    )


def modernbert_config(**changes: Any) -> Any:
    """Of 22 layers, as ModernBERT-base; 32 positions are local."""
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 22, "num_attention_heads": 4}
    return transformers.ModernBertConfig(vocab_size=VOCABULARY, local_attention=32, **shape, **special, **changes)


@functools.cache
def random_model(name: str, size: str) -> Any:
    """Of transformers, as it initializes it, with biases and norms that would be seen."""
    torch.manual_seed(0)
    if size == "modernbert":
        labels = {"id2label": {0: "original", 1: "replaced"}} if name.endswith("TokenClassification") else {}
        model = getattr(transformers, name)(modernbert_config(**labels))
    elif name == "ElectraForMaskedLM":
        layers, heads = GENERATORS[size]
        model = transformers.ElectraForMaskedLM(electra_config(layers, heads, narrow=False))
    else:
        model = getattr(transformers, name)(electra_config(*SHAPES[size]))
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("bias") or "orm" in path:
                parameter += 0.05 * torch.randn_like(parameter)
    return model


MODELS = [
    *((name, size) for size in SHAPES for name in ("ElectraForPreTraining", "ElectraForMaskedLM", "ElectraModel")),
    *((f"ModernBert{name}", "modernbert") for name in ("ForTokenClassification", "ForMaskedLM", "Model")),
]


@pytest.mark.parametrize(("name", "size"), MODELS)
def test_a_model_of_theirs_gives_the_same_logits_here(name, size, tmp_path):
    model = random_model(name, size)
    model.save_pretrained(tmp_path)
    found = directory.read(tmp_path)
    assert found.notes == ()
    agree(found.network, model)


@pytest.mark.parametrize(("name", "size"), MODELS[:3] + MODELS[-3:])
def test_every_bit_of_theirs_comes_back(name, size, tmp_path):
    """Theirs to ours to theirs."""
    model = random_model(name, size)
    model.save_pretrained(tmp_path / "theirs")
    network = directory.read(tmp_path / "theirs").network
    head = next(iter(network.config.heads), None)
    directory.write(tmp_path / "ours", network, head, pieces("unigram"), "")
    again, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    for path, value in again.state_dict().items():
        before = model.state_dict()[path]
        if path.startswith("classifier."):  # what is the same for both labels is lost
            value, before = (each[1] - each[0] for each in (value, before))
        assert torch.equal(value, before), path


@functools.cache
def pieces(model_type: str) -> tokenizer.Tokenizer:
    settings = {"vocab_size": 1000, "model_type": model_type, "byte_fallback": False}
    return tokenizer.train(LINES, CorpusConfig(**settings))


@pytest.fixture(scope="module", params=["small", "tiny"])
def run(request, tmp_path_factory):
    """A run of some steps, and its export: of BERT, and of ModernBERT with a generator narrower than the table."""
    place = tmp_path_factory.mktemp("runs") / request.param
    config = small_config(steps=2) if request.param == "tiny" else bert_config()
    train.train(config, place / "run", quiet())
    export(place / "run", place / "exported")
    return place


def bert_config():
    config = config_file.load(ROOT / "configs" / "small.py", "runlocal")
    config.steps = 2
    return config


CLASSES = {
    "discriminator": ("AutoModelForPreTraining", "AutoModelForTokenClassification"),
    "generator": ("AutoModelForMaskedLM",) * 2,
    "encoder": ("AutoModel",) * 2,
}


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_exported_gives_the_same_logits_there(run, name):
    found = directory.read(run / "exported" / name)
    auto = CLASSES[name][found.network.config.encoder.kind == "modernbert"]
    model, report = getattr(transformers, auto).from_pretrained(run / "exported" / name, output_loading_info=True)
    assert not any(report.values()), report  # nothing is missing, nothing is left over
    agree(found.network, model, lengths=(7, 64))


def test_what_was_trained_is_what_is_read(run):
    """Run, export, directory: one network."""
    encoder = load_networks(run / "run").encoder
    auto = "AutoModelForPreTraining" if encoder.config.absolute else "AutoModelForTokenClassification"
    agree(encoder, getattr(transformers, auto).from_pretrained(run / "exported" / "discriminator"), lengths=(7, 64))


def test_a_pair_is_read_as_it_was_in_training(run):
    there = transformers.AutoTokenizer.from_pretrained(run / "exported" / "encoder")
    here = load_networks(run / "run").tokenizer
    found, (first, second), special = there(*LINES[:2]), here.encode(LINES[:2]), here.special
    assert found.input_ids == [special.cls, *first, special.sep, *second, special.sep]
    assert ("token_type_ids" in found) == ("small" in run.name)
    assert there.mask_token_id == special.mask
    assert there.pad_token_id == special.pad


def word_pieces(place: Path) -> tokenizer.Tokenizer:
    """As those of a released model: made by BERT's trainer."""
    trained = tokenizers.BertWordPieceTokenizer()
    trained.train_from_iterator(LINES, vocab_size=1000, show_progress=False)
    trained.save_model(str(place))
    return tokenizer.load(place / "vocab.txt")


@pytest.mark.parametrize("kind", ["unigram", "bpe", "WordPiece"])
def test_auto_tokenizer_gives_our_ids(kind, tmp_path):
    mine = word_pieces(tmp_path) if kind == "WordPiece" else pieces(kind)
    config = '{"model_type": "electra"}'
    for name, content in {**tokenizer_files.files(mine, 512, True), "config.json": config.encode()}.items():
        (tmp_path / name).write_bytes(content)
    there = transformers.AutoTokenizer.from_pretrained(tmp_path)
    special = mine.special
    lines = [*LINES, "", " ", "\u00c9TE\u0301 J\u030c\u0130 \u4f60 \u2026 4444 444"]
    expected = [[special.cls, *ids, special.sep] for ids in mine.encode(lines)]
    assert there(lines).input_ids == expected
    pairs = there(lines[:-1], lines[1:])
    assert pairs.input_ids == [a + b[1:] for a, b in itertools.pairwise(expected)]
    assert pairs.token_type_ids[5] == [0] * len(expected[5]) + [1] * (len(expected[6]) - 1)


def test_fine_tuning_an_export_with_plain_transformers_lowers_its_loss(run):
    """Twenty steps: is a line a question? Of the word "what" in most that are."""
    place = run / "exported" / "discriminator"
    torch.manual_seed(0)
    there = transformers.AutoTokenizer.from_pretrained(place)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place, num_labels=2).train()
    texts = [f"{'what is' if i % 2 else 'this is'} {LINES[i]}" for i in range(32)]
    inputs = there(texts, padding=True, truncation=True, max_length=32, return_tensors="pt")
    labels = torch.tensor([i % 2 for i in range(32)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        loss = model(**inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3]), losses


def code_of(text: str, heading: str) -> str:
    """The first block of Python under a heading."""
    return re.search(r"```py(?:thon)?\n(.*?)```", text.partition(heading)[2], re.DOTALL)[1]


@pytest.mark.parametrize("name", CLASSES)
def test_the_code_on_a_card_works_where_it_lies(run, name, monkeypatch, capsys):
    monkeypatch.chdir(run / "exported")
    exec(code_of(Path(name, "README.md").read_text(), "## How to use it"), {})
    assert capsys.readouterr().out.strip()


def test_the_lines_of_the_first_run_work_when_copied(run, monkeypatch, capsys):
    code = code_of((ROOT / "docs" / "start" / "first_run.md").read_text(), "## Take it to transformers")
    assert len([line for line in code.splitlines() if line]) == 4
    monkeypatch.chdir(run)
    exec(code, {})
    assert "torch.Size" in capsys.readouterr().out


def test_detection_is_of_any_directory_of_theirs(tmp_path, capsys):
    random_model("ElectraForPreTraining", "small").save_pretrained(tmp_path)
    mine = tokenizer.train(LINES, CorpusConfig(vocab_size=VOCABULARY))
    for name, content in tokenizer_files.files(mine, 512, True).items():
        (tmp_path / name).write_bytes(content)
    assert detect.main([f"--model={tmp_path}", "a line of text"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
