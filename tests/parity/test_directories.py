"""Directories that transformers wrote are read here, and those written here by transformers, with the same numbers."""
# ruff: noqa: E402 (nothing else is imported where there is no PyTorch)

import pytest

_REASON = "compares with Hugging Face's PyTorch classes: pip install torch transformers"
torch = pytest.importorskip("torch", reason=_REASON)
transformers = pytest.importorskip("transformers", reason=_REASON)

import functools
import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import made_text
import numpy as np
import tiny_models
import tokenizer_parity
import tokenizers
from cli_runs import ROOT, quiet, small_config

import electra_jax
from electra_jax import train
from electra_jax.commands import detect
from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.data import tokenizer, vocabulary_training
from electra_jax.data.config import CorpusConfig
from electra_jax.loading.export import export
from electra_jax.loading.huggingface import bert, directory, tokenizer_files
from electra_jax.loading.networks import load_networks
from electra_jax.modeling import deberta, electra
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.subnetwork import Network

TOLERANCE = 1e-5  # absolute, in float32
VOCABULARY = 300
LENGTHS = (7, 128, 512)

# Of the paper and the reference: layers, heads, whether the table is narrower; the widths are reduced to 16 a head.
SHAPES = {"small": (12, 4, True), "base": (12, 12, False), "large": (24, 16, False)}
GENERATORS = {"small": (12, 1), "base": (12, 4), "large": (24, 4)}
# Of DeBERTaV3 (microsoft/DeBERTa, experiments/language_model/rtd_*.json): layers and heads; widths reduced to the same.
DEBERTAS = {"v3-xsmall": (12, 6), "v3-small": (6, 12), "v3-base": (12, 12), "v3-large": (24, 16)}
LINES = made_text.make_lines(1000)
# For tokenizers that transformers makes: they leave out normalizations. Runs have several segmentations of one score.
PLAIN = [line for line in made_text.make_lines(1000, runs=False) if line.isascii() and "\t" not in line]


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
        return electra.discriminator_logits(network.model, params, states, text.sequence_ids)

    return np.asarray(run(network.params))


def theirs(model: Any, length: int) -> np.ndarray:
    text = {name: torch.from_numpy(value.astype(np.int64)) for name, value in batch(length)._asdict().items()}
    given = {"input_ids": text["input_ids"], "attention_mask": text["sequence_ids"]}
    if model.config.model_type in ("electra", "bert"):
        given["token_type_ids"] = text["token_type_ids"]
    with torch.no_grad():
        out = model.eval()(**given)
    name = next(name for name in ("logits", "prediction_logits", "last_hidden_state") if name in out)
    found = out[name].numpy()
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


def deberta_config(layers: int, heads: int, **changes: Any) -> Any:
    """Trained at 128 positions: the longest text is beyond them."""
    return transformers.DebertaV2Config(
        vocab_size=VOCABULARY,
        hidden_size=16 * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=64 * heads,
        max_position_embeddings=128,
        relative_attention=True,
        position_buckets=32,
        max_relative_positions=-1,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type="p2c|c2p",
        position_biased_input=False,
        **changes,
    )


class ReleasedDiscriminator(transformers.DebertaV2PreTrainedModel):
    """DeBERTaV3's discriminator, which transformers has no class for; names as in the released files."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.deberta = transformers.DebertaV2Model(config)
        width = config.hidden_size
        parts = {"dense": torch.nn.Linear(width, width), "classifier": torch.nn.Linear(width, 1)}
        self.mask_predictions = torch.nn.ModuleDict({**parts, "LayerNorm": torch.nn.LayerNorm(width, 1e-7)})
        self.post_init()

    def forward(self, **given: Any) -> Any:
        states, head = self.deberta(**given).last_hidden_state, self.mask_predictions
        inner = torch.nn.functional.gelu(head["dense"](head["LayerNorm"](states + states[:, :1])))
        return transformers.modeling_outputs.TokenClassifierOutput(logits=head["classifier"](inner)[..., 0])


def class_of(name: str) -> Any:
    return ReleasedDiscriminator if name == "ReleasedDiscriminator" else getattr(transformers, name)


@functools.cache
def random_model(name: str, size: str) -> Any:
    """Of transformers, as it initializes it, with biases and norms that would be seen."""
    torch.manual_seed(0)
    labels = {"id2label": {0: "original", 1: "replaced"}} if name.endswith("TokenClassification") else {}
    if size in DEBERTAS:
        model = class_of(name)(deberta_config(*DEBERTAS[size], **labels))
    elif size == "modernbert":
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
    *((f"Electra{name}", "small") for name in ("ForPreTraining", "ForMaskedLM", "Model")),
    *((f"Electra{name}", size) for size in ("base", "large") for name in ("ForPreTraining", "ForMaskedLM")),
    *((f"ModernBert{name}", "modernbert") for name in ("ForTokenClassification", "ForMaskedLM", "Model")),
]


OF_DEBERTA = (
    "ReleasedDiscriminator",
    *(f"DebertaV2{name}" for name in ("ForTokenClassification", "ForMaskedLM", "Model")),
)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *MODELS,
        *((name, "v3-small") for name in OF_DEBERTA),
        *(pytest.param(OF_DEBERTA[0], size, marks=pytest.mark.slow) for size in DEBERTAS if size != "v3-small"),
    ],
)
def test_a_model_of_theirs_gives_the_same_logits_here_and_every_bit_comes_back(name, size, tmp_path):
    """Theirs to ours to theirs."""
    model = random_model(name, size)
    model.save_pretrained(tmp_path / "theirs")
    found = directory.read(tmp_path / "theirs")
    assert found.notes == ()
    agree(found.encoder, model)
    head = next(iter(found.encoder.config.heads), None)
    directory.write(tmp_path / "ours", found.encoder, head, pieces("unigram"), "")
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
    return vocabulary_training.train(LINES, CorpusConfig(**settings))


@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "BertForPreTraining"])
def test_a_bert_is_read_and_written_with_every_bit(name, tmp_path):
    """But for the heads that an encoder of this package does not have."""
    layers, heads, _ = SHAPES["base"]
    torch.manual_seed(0)
    shape = {"hidden_size": 16 * heads, "num_hidden_layers": layers, "num_attention_heads": heads}
    config = transformers.BertConfig(vocab_size=VOCABULARY, intermediate_size=64 * heads, **shape)
    model = getattr(transformers, name)(config)
    model.save_pretrained(tmp_path / "theirs")
    found = directory.read(tmp_path / "theirs")
    assert found.notes == ()
    agree(found.encoder, model)
    head = next(iter(found.encoder.config.heads), None)
    assert head == (None if name == "BertModel" else "mlm_head")
    directory.write(tmp_path / "ours", bert.with_names(found.encoder), head, pieces("unigram"), "")
    auto = transformers.AutoModelForMaskedLM if head else transformers.AutoModel
    again, report = auto.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert type(again).__name__ == ("BertForMaskedLM" if head else "BertModel")
    assert {part for values in report.values() for part in values} <= {"pooler.dense.weight", "pooler.dense.bias"}
    for path, value in again.state_dict().items():
        assert path.startswith("pooler") or torch.equal(value, model.state_dict()[path]), path


@pytest.mark.parametrize("legacy", [True, False])
def test_the_mlm_head_of_deberta_in_both_layouts(legacy, tmp_path):
    """And with a table that is narrower than the network, which only the first layout has."""
    torch.manual_seed(0)
    model = transformers.DebertaV2ForMaskedLM(
        deberta_config(2, 4, legacy=legacy, **({"embedding_size": 32} if legacy else {}))
    )
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("bias"):
                parameter += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path)
    found = directory.read(tmp_path)
    assert found.notes == ()
    assert found.encoder.config.heads == ("mlm_head",)
    agree(found.encoder, model, lengths=(7, 300))


def test_a_released_discriminator_with_all_that_its_file_has(tmp_path):
    """In PyTorch's format first, converted by the command of the error."""
    model = random_model("ReleasedDiscriminator", "v3-small")
    state, zeros = dict(model.state_dict()), torch.zeros(3, 4)
    for name in ("position_embeddings._weight", "position_embeddings.weight", "word_embeddings._weight"):
        state[f"deberta.embeddings.{name}"] = zeros
    for name in ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias", "bias"):
        state[f"lm_predictions.lm_head.{name}"] = zeros
    model.config.save_pretrained(tmp_path)
    state = {name: value.t().contiguous().t() if value.ndim == 2 else value for name, value in state.items()}
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="convert it with PyTorch: python -c") as error:
        directory.read(tmp_path)
    exec(str(error.value).partition('python -c "')[2].removesuffix('"'), {})
    found = directory.read(tmp_path)
    assert found.notes == ("tensors of another head were ignored: 5, the first lm_predictions.lm_head.LayerNorm.bias",)
    agree(found.encoder, model, lengths=(7,))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"position_biased_input": True}, "position_biased_input"),
        ({"conv_kernel_size": 3}, "conv_kernel_size"),
        ({"pos_att_type": "c2p"}, "pos_att_type"),
        ({"share_att_key": False}, "share_att_key"),
        ({"type_vocab_size": 2}, "type_vocab_size"),
        ({"norm_rel_ebd": "none"}, "norm_rel_ebd"),
    ],
    ids=str,
)
def test_other_models_of_debertas_second_version_are_refused(changes, name, tmp_path):
    config = deberta_config(1, 2)
    config.update(changes)
    transformers.DebertaV2Model(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"has {name}=.*: expected"):
        directory.read(tmp_path)


def test_the_first_deberta_is_refused(tmp_path):
    config = transformers.DebertaConfig(vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    transformers.DebertaModel(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="has model_type='deberta': expected electra or modernbert or deberta-v2"):
        directory.read(tmp_path)


def test_buckets_are_those_of_theirs_at_every_distance():
    distance = torch.arange(-6000, 6001)
    of_theirs = transformers.models.deberta_v2.modeling_deberta_v2.make_log_bucket_position
    for buckets, furthest in ((256, 512), (32, 128), (4, 8), (7, 40), (3, 9), (256, 513)):
        theirs = torch.clamp(of_theirs(distance, buckets, furthest).long() + buckets, 0, 2 * buckets - 1)
        np.testing.assert_array_equal(deberta.bucket(distance.numpy(), buckets, furthest), theirs)


@pytest.fixture(scope="module", params=["small", "tiny", "deberta", "linear"])
def run(request, tmp_path_factory):
    """A run and its export: of BERT, of ModernBERT with a generator narrower than the table, of DeBERTa."""
    place = tmp_path_factory.mktemp("runs") / request.param
    config = small_config(steps=2) if request.param == "tiny" else runlocal(request.param)
    train.train(config, place / "run", quiet())
    export(place / "run", place / "exported")
    return place


def runlocal(name):
    config = config_file.load(ROOT / "configs" / "small.py", "runlocal")
    config.steps = 2
    if name != "small":
        config.model.update(encoder="deberta", tying="gdes", generator_width=1.0, generator_layers=0.5)
        config.model.deberta.discriminator_head = {"deberta": "released", "linear": "linear"}[name]
    return config


CLASSES = ("discriminator", "generator", "encoder")


def load_there(place: Path, name: str) -> Any:
    """(the model, what was missing or left over) by the class that a user would take."""
    encoder = directory.read(place / name).encoder.config.encoder
    auto = {"generator": "AutoModelForMaskedLM", "encoder": "AutoModel"}.get(name, "AutoModelForTokenClassification")
    ends = {"ForPreTraining": "AutoModelForPreTraining", "Model": "ReleasedDiscriminator"}
    if name == "discriminator":
        auto = ends.get(encoder.architecture.detector_class(encoder), auto)
    return class_of(auto).from_pretrained(place / name, output_loading_info=True)


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_exported_gives_the_same_logits_there(run, name):
    model, report = load_there(run / "exported", name)
    assert not any(report.values()), report  # nothing is missing, nothing is left over
    agree(directory.read(run / "exported" / name).encoder, model, lengths=(7, 64))


@pytest.mark.parametrize("kind", ["bert", "modernbert", "deberta", "linear"])
def test_an_encoder_with_two_heads_fills_masks_there_as_here(kind, tmp_path):
    """As `objective=electra_mlm` exports it; the networks of `tiny_models` have equal encoders."""
    lines = ["the model reads a line of text and says which word was replaced"] * 20
    pieces = vocabulary_training.train(lines, CorpusConfig(vocab_size=28))
    for name, head in (("discriminator", "discriminator_head"), ("masked_lm", "mlm_head")):
        directory.write(tmp_path / name, tiny_models.network(kind, head, 32), head, pieces, "# A card\n")
    model = electra_jax.load(tmp_path)
    assert len(model.detect("the line")) == 2
    shutil.move(tmp_path / "discriminator", tmp_path / "masked_lm" / "discriminator")  # as in a repository
    assert electra_jax.load(tmp_path / "masked_lm").detect("the line") == model.detect("the line")
    (ours,) = model.fill("the [MASK] reads", top=3)
    fill = transformers.pipeline("fill-mask", str(tmp_path / "masked_lm"), top_k=tiny_models.VOCABULARY)
    theirs = [found for found in fill("the [MASK] reads") if found["token"] < len(pieces)][:3]  # 32 are no pieces
    assert [candidate.token for candidate in ours] == [pieces.decode([found["token"]]).strip() for found in theirs]
    np.testing.assert_allclose([c.probability for c in ours], [found["score"] for found in theirs], rtol=1e-4)
    row = np.asarray([pieces.special.cls, *pieces.encode(["the line reads"])[0], pieces.special.sep])
    masked = np.where(np.eye(len(row), dtype=bool), pieces.special.mask, row)  # one row for each position
    log_probs = torch.log_softmax(fill.model(torch.from_numpy(masked)).logits, dim=-1).detach().numpy()
    of_tokens = log_probs[np.arange(len(row)), np.arange(len(row)), row]
    assert model.score("the line reads", by="masks") == pytest.approx(of_tokens[1:-1].sum(), rel=1e-4)


def test_what_was_trained_is_what_is_read(run):
    """Run, export, directory: one network."""
    encoder = load_networks(run / "run").encoder
    agree(encoder, load_there(run / "exported", "discriminator")[0], lengths=(7, 64))


def test_a_pair_is_read_as_it_was_in_training(run):
    there = transformers.AutoTokenizer.from_pretrained(run / "exported" / "encoder")
    here = load_networks(run / "run").tokenizer
    found, (first, second), special = there(*LINES[:2]), here.encode(LINES[:2]), here.special
    assert found.input_ids == [special.cls, *first, special.sep, *second, special.sep]
    assert ("token_type_ids" in found) == (run.name == "small")
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


@pytest.fixture(scope="module")
def released_pieces(tmp_path_factory):
    """A directory with a small vocabulary in the layout of DeBERTaV3's: its own order, [MASK] after all pieces."""
    folder = tmp_path_factory.mktemp("v3")
    tokenizer_parity.write_deberta(folder, PLAIN, 1000, "identity")
    return folder


def test_the_tokenizer_that_transformers_4_made_of_deberta_gives_our_ids(tmp_path):
    """With the normalization of DeBERTaV3's, of which the class of transformers 5 makes nothing."""
    tokenizer_parity.write_deberta(tmp_path, PLAIN, 1000)
    mine, theirs = tokenizer_files.load(tmp_path).tokenizer, tokenizer_parity.deberta_of_transformers_4(tmp_path)
    lines = [*PLAIN, "\uff21 \u2460 \ufb01ne  two   spaces ", "\u00c9t\u00e9 E\u0301"]
    assert mine.encode(lines) == [ids[1:-1] for ids in theirs(lines).input_ids]
    assert tokenizer_parity.compare(mine, theirs, lines)["pairs_differing"] == 0


def test_the_tokenizer_of_deberta_gives_our_ids(released_pieces, tmp_path):
    """Theirs from the SentencePiece model, and from what is written here."""
    mine = tokenizer_files.load(released_pieces).tokenizer
    assert mine.special == tokenizer.Special(pad=0, unk=3, cls=1, sep=2, mask=1000)
    there = transformers.AutoTokenizer.from_pretrained(released_pieces)
    assert type(there).__name__.startswith("DebertaV2Tokenizer")
    for name, content in tokenizer_files.files(mine, 512, segments=False, sentencepiece_file="spm.model").items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    assert tokenizer_files.load(tmp_path).tokenizer.special == mine.special
    expected = [[1, *ids, 2] for ids in mine.encode(PLAIN)]
    for theirs in (there, transformers.AutoTokenizer.from_pretrained(tmp_path)):
        assert theirs(PLAIN).input_ids == expected
        assert (theirs.mask_token_id, theirs.pad_token_id, theirs.unk_token_id) == (1000, 0, 3)


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
    mine = vocabulary_training.train(LINES, CorpusConfig(vocab_size=VOCABULARY))
    for name, content in tokenizer_files.files(mine, 512, True).items():
        (tmp_path / name).write_bytes(content)
    assert detect.main([f"--model={tmp_path}", "a line of text"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
