"""ONNX files of exports, run by onnxruntime: the same outputs as ours, for any batch and length."""
# ruff: noqa: E402 (nothing else is imported where there is no PyTorch)

import pytest

_REASON = "runs exported ONNX files: pip install 'electra_jax[onnx]'"
torch = pytest.importorskip("torch", reason=_REASON)
transformers = pytest.importorskip("transformers", reason=_REASON)
onnxruntime = pytest.importorskip("onnxruntime", reason=_REASON)
pytest.importorskip("onnxscript", reason=_REASON)

import json
from typing import Any

import jax
import numpy as np
from tiny_finetuned import make, train_pieces
from tiny_models import network

import electra_jax
from electra_jax.config.errors import UserError
from electra_jax.downstream.finetuning import hf_export
from electra_jax.loading import export
from electra_jax.loading.huggingface import bert, directory, onnx_file
from electra_jax.modeling import electra
from electra_jax.modeling.batch import Batch

pytestmark = pytest.mark.slow  # an export takes some seconds
TOLERANCE = 1e-4  # absolute, in float32
# Batch and length: others than the file was traced with, the shortest, the longest, more than a local window of 8.
SHAPES = [(1, 1), (1, 16), (2, 5), (5, 13), (3, 2)]
HEADS = ["discriminator_head", "mlm_head", None]
TASKS = ["classes", "numbers", "tags", "squad2"]


def text(rows: int, length: int) -> Batch:
    """Random pairs; all rows but the first have padding."""
    rng = np.random.default_rng([rows, length])
    ids = rng.integers(5, 30, (rows, length)).astype(np.int32)
    used, segments = np.ones_like(ids), np.zeros_like(ids)
    for row in range(1, rows):
        used[row, max(1, length - 2 * row) :] = 0
    segments[:, length // 2 :] = 1
    return Batch(ids * used, segments * used, used)


def run(folder: Any, batch: Batch, file: Any = onnx_file.FILE) -> dict[str, np.ndarray]:
    """The outputs of one of the folder's ONNX files, by name."""
    session = onnxruntime.InferenceSession(folder / file)
    given = {
        "input_ids": batch.input_ids,
        "attention_mask": batch.sequence_ids,
        "token_type_ids": batch.token_type_ids,
    }
    inputs = {each.name: given[each.name].astype(np.int64) for each in session.get_inputs()}
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def check_directory(folder: Any, encoder: Any, head: str | None) -> None:
    """The outputs are ours at every token."""
    kind = encoder.config.encoder.architecture.name

    @jax.jit
    def ours(batch: Batch) -> Any:
        states = electra.encode(encoder.model, encoder.params, batch)
        if head is None:
            return states
        if head == "mlm_head":
            return electra.mlm_logits(encoder.model, encoder.params, states)[..., : encoder.config.vocab_size]
        return electra.discriminator_logits(encoder.model, encoder.params, states, batch.sequence_ids)

    for shape in SHAPES:
        batch = text(*shape)
        ((name, found),) = run(folder, batch).items()
        assert name == ("logits" if head else "last_hidden_state")
        if head == "discriminator_head" and kind == "modernbert":
            found = found[..., 1] - found[..., 0]
        real = batch.sequence_ids == 1
        np.testing.assert_allclose(found[real], np.asarray(ours(batch))[real], rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module")
def pieces():
    return train_pieces()


@pytest.mark.parametrize(
    ("kind", "head"),
    # DeBERTaV3's own discriminator has no class in transformers.
    [
        *(("modernbert", head) for head in HEADS),
        *(("bert", "discriminator_head"), ("bert", "mlm_head"), ("deberta", "mlm_head")),
    ],
)
def test_pretrained(kind, head, pieces, tmp_path):
    encoder = network(kind, head)
    directory.write(tmp_path / "out", encoder, head, pieces, "")
    onnx_file.write(tmp_path / "out")
    check_directory(tmp_path / "out", encoder, head)
    if head == "mlm_head":
        check_smaller_files(tmp_path / "out")
    if kind == "modernbert":
        optimize(tmp_path / "out" / onnx_file.FILE, encoder.config.encoder)
        check_directory(tmp_path / "out", encoder, head)


def check_smaller_files(folder: Any) -> None:
    """float16 rounds to 2^-11, int8 to 2^-8 of a matrix's largest number, in each of many products.

    Norms of differences; those of random logits are 1.4 of the logits' own.
    """
    whole, half, int8 = (folder / file for file in (onnx_file.FILE, onnx_file.FLOAT16, onnx_file.INT8))
    assert int8.stat().st_size < half.stat().st_size < whole.stat().st_size
    for shape in SHAPES:
        batch = text(*shape)
        real = batch.sequence_ids == 1
        expected, near, rough = (run(folder, batch, path)["logits"][real] for path in (whole, half, int8))
        assert near.dtype == rough.dtype == np.float32
        near_norm, rough_norm = (np.linalg.norm(found - expected) for found in (near, rough))
        assert near_norm < 2**-6 * np.linalg.norm(expected)
        assert rough_norm < 2**-1 * np.linalg.norm(expected)


def optimize(path: Any, encoder: Any) -> None:
    """As optimum's and sentence-transformers' level O2, which fuses operations of known networks."""
    from onnxruntime.transformers import optimizer

    settings = {"num_heads": encoder.heads, "hidden_size": encoder.width, "opt_level": 2}
    optimizer.optimize_model(str(path), model_type="bert", **settings).save_model_to_file(str(path))


def check_finetuned(folder: Any, model: Any) -> None:
    apply = jax.jit(lambda batch: model.model.apply({"params": model.params}, batch, batch.sequence_ids))
    offset, factor = model.task.scale if model.task.kind == "regression" else (0.0, 1.0)
    for shape in SHAPES:
        batch = text(*shape)
        found, ours = run(folder, batch), {name: np.asarray(value) for name, value in apply(batch).items()}
        real = batch.sequence_ids == 1
        if model.task.kind == "answering":
            assert [*found] == ["start_logits", "end_logits"]
            for name, logits in zip(("start", "end"), found.values(), strict=True):
                logp = np.asarray(jax.nn.log_softmax(np.where(real, logits, -np.inf).astype(np.float32), axis=1))
                np.testing.assert_allclose(logp[real], ours[name][real], rtol=0, atol=TOLERANCE)
            continue
        assert [*found] == ["logits"]
        read = real if model.task.kind == "tagging" else slice(None)
        expected = ours["scores"][read] * np.float32(factor) + np.float32(offset)
        np.testing.assert_allclose(found["logits"][read], expected, rtol=0, atol=TOLERANCE)
        if model.task.kind != "regression":
            np.testing.assert_array_equal(found["logits"][read].argmax(-1), expected.argmax(-1))


def test_a_bert_has_no_pooler(pieces, tmp_path):
    encoder = network("bert", None, embedding_size=32)
    directory.write(tmp_path / "out", bert.with_names(encoder), None, pieces, "")
    onnx_file.write(tmp_path / "out")
    check_directory(tmp_path / "out", encoder, None)


@pytest.mark.parametrize(
    ("kind", "task", "pooling"),
    [
        *(("modernbert", task, "cls") for task in TASKS),
        *(("modernbert", "pairs", "mean"), ("bert", "classes", "cls"), ("deberta", "tags", "cls")),
    ],
)
def test_finetuned(kind, task, pooling, pieces, tmp_path):
    model = make(task, pieces, kind, 16, pooling=pooling)
    hf_export.export(model, tmp_path / "out", onnx=True)
    check_finetuned(tmp_path / "out", model)


def test_every_directory_of_a_run_has_a_file(small_run, tmp_path):
    """Of ModernBERT with tables narrower than its networks."""
    classes = export.export(small_run, tmp_path / "out", onnx=True)
    assert {path.parent.parent.name for path in (tmp_path / "out").rglob("model_quantized.onnx")} == set(classes)
    encoder = directory.read(tmp_path / "out" / "discriminator").encoder
    check_directory(tmp_path / "out" / "discriminator", encoder, "discriminator_head")


def test_weights_that_a_file_cannot_hold_are_in_another(pieces, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "_MOST_BYTES", 1000)
    encoder = network("bert", "mlm_head")
    directory.write(tmp_path / "out", encoder, "mlm_head", pieces, "")
    onnx_file.write(tmp_path / "out")
    files = (onnx_file.FILE, onnx_file.FLOAT16, onnx_file.INT8)
    expected = {name for file in files for name in (file.name, f"{file.name}.data")}
    assert {path.name for path in (tmp_path / "out" / "onnx").iterdir()} == expected
    check_directory(tmp_path / "out", encoder, "mlm_head")


def test_the_export_is_silent_and_states_its_opset(pieces, tmp_path, capfd):
    """Whatever PyTorch and transformers have to say while they export is not for the user."""
    directory.write(tmp_path / "out", network("bert", None, layers=1), None, pieces, "")
    capfd.readouterr()
    onnx_file.write(tmp_path / "out")
    assert capfd.readouterr() == ("", "")
    import onnx

    (opset,) = onnx.load(tmp_path / "out" / onnx_file.FILE).opset_import
    assert (opset.domain, opset.version) == ("", onnx_file.OPSET)


def test_a_model_of_another_trainer_is_copied(tmp_path):
    source = tmp_path / "theirs"
    encoder = bert.with_names(network("bert", None, embedding_size=32))
    directory.write(source, encoder, None, train_pieces(), "")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source, num_labels=3)
    model.to(torch.bfloat16).save_pretrained(source)
    for left_out in ("checkpoint-5", "onnx"):
        (source / left_out).mkdir()
        (source / left_out / "old").touch()
    assert electra_jax.export(source, tmp_path / "ours", onnx=True) == {".": "BertForSequenceClassification"}
    expected = {"config.json", "model.safetensors", "tokenizer.json", "onnx"}
    assert expected <= {path.name for path in (tmp_path / "ours").iterdir()}
    assert not [path for path in (tmp_path / "ours").rglob("*") if path.name in ("old", "checkpoint-5")]
    for file in (onnx_file.FILE, onnx_file.FLOAT16, onnx_file.INT8):
        (found,) = run(tmp_path / "ours", text(2, 5), file).values()
        assert (found.dtype, found.shape) == (np.float32, (2, 3))
    with pytest.raises(UserError, match=r"theirs/a/b is inside .*theirs; use another --output"):
        electra_jax.export(source, source / "a" / "b", onnx=True)
    described = json.loads((source / "config.json").read_text())
    for names in (None, [], [1], ["BertModel", "BertModel"], ["Mine"]):
        (source / "config.json").write_text(json.dumps({**described, "architectures": names}))
        with pytest.raises(UserError, match=r"config\.json has architectures=.*: expected the name of one class"):
            electra_jax.export(source, tmp_path / "again", onnx=True)
    (source / "config.json").write_text(json.dumps({**described, "architectures": ["BertForMultipleChoice"]}))
    with pytest.raises(UserError, match="is a model of multiple choice"):
        electra_jax.export(source, tmp_path / "again", onnx=True)
    for path in (source / "tokenizer.json", *source.glob("*.model")):
        path.unlink()
    with pytest.raises(UserError, match="has no tokenizer: expected tokenizer"):
        electra_jax.export(source, tmp_path / "again", onnx=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "theirs"]
