"""What `verify` finds in a run and in a prepared corpus."""

import json
import shutil
from pathlib import Path

import pytest

from electra_jax.data import pipeline, tokenizer
from electra_jax.loading import run_checkpoint
from electra_jax.loading.verify import Finding, verify
from electra_jax.step import ShardedStep


@pytest.fixture(scope="module")
def step(small_run) -> ShardedStep:
    """The train step of the run, with the shapes of its state."""
    config = run_checkpoint.read_config(small_run)
    return run_checkpoint.step_on_one_device(config, tokenizer.load_from_folder(small_run))


@pytest.fixture
def run(small_run, step, tmp_path, monkeypatch) -> Path:
    """A copy of a finished run of two steps; the shapes of its state are computed once for all tests."""
    monkeypatch.setattr(run_checkpoint, "step_on_one_device", lambda config, vocabulary: step)
    return Path(shutil.copytree(small_run, tmp_path / "run"))


def flip(path: Path, period: int = 0) -> None:
    """Changes the byte in the middle of a file, or every byte at a multiple of `period`."""
    content = bytearray(path.read_bytes())
    for byte in range(0, len(content), period) if period else [len(content) // 2]:
        content[byte] ^= 1
    path.write_bytes(content)


def largest(folder: Path) -> Path:
    return max(filter(Path.is_file, folder.rglob("*")), key=lambda path: path.stat().st_size)


def corpus_of(run: Path) -> Path:
    return next((run / "data").glob("*/manifest.json")).parent


def wrong(folder: Path) -> list[str]:
    return [finding.text for finding in verify(folder) if not finding.ok]


def change_json(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_good_run_is_ok(run):
    findings = list(verify(run))
    assert all(finding.ok for finding in findings)
    texts = [finding.text.removeprefix(str(run)) for finding in findings]
    assert texts[0] == "/config.json"
    assert texts[1].startswith("/checkpoints/1: ")
    assert texts[2].startswith("/checkpoints/2: ")
    assert int(texts[2].split()[1]) > 50
    assert texts[3] == f"{str(corpus_of(run)).removeprefix(str(run))}: 4 files"
    assert texts[4:] == ["/vocab.model: 40 pieces, those of the corpus", "/metrics.jsonl: 2 lines", "/environment.json"]


def test_all_damage_is_found_at_once(run):
    flip(largest(run / "checkpoints" / "1"), period=500)  # a single byte may be one that Orbax does not read
    progress = run / "checkpoints" / "2" / "progress" / "metadata"
    progress.write_text(progress.read_text().replace('"next_index": ', '"next_index": 3'))
    shard = next(corpus_of(run).glob("*.train.array_record"))
    flip(shard)
    (run / "environment.json").write_text("{")
    (run / "rewinds.json").write_text('{"rewinds": [{"step": 1}], "pending": false}')
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(f"{lines[1]}\n{{\n{lines[0]}\n{lines[1][:20]}")
    found = wrong(run)
    assert len(found) == 7
    # The order of the arrays in a file is Orbax's: a bit is in a number, or in what is needed to read it.
    begin = f"checkpoint {run}/checkpoints/1 "
    assert found[0].startswith((f"{begin}is damaged: ", f"{begin}cannot be read"))
    assert found[0].endswith(
        "it is the first one, so restore a copy of that folder, or move it away to start from step 0"
    )
    assert found[1] == (
        f"checkpoint {run}/checkpoints/2 is damaged: progress has changed since it was written; move that folder away "
        "to use the checkpoint of step 1"
    )
    assert found[2].startswith(f"{shard} is missing or has changed since it was written")
    assert found[3].startswith(f"{run}/metrics.jsonl:2 is not a JSON object with a step")
    assert found[4].startswith(f"{run}/metrics.jsonl:3 has step 1: expected more than 2")
    assert found[5].startswith(f"{run}/environment.json is not valid JSON")
    assert found[6].startswith(f"{run}/rewinds.json is damaged (KeyError)")


def test_another_vocabulary_is_found(run, text_file, tmp_path):
    original = corpus_of(run) / "vocab.model"
    pipeline.prepare(tmp_path / "other", input=str(text_file), vocab_size=45, heldout_fraction=0.1)
    shutil.copy(tmp_path / "other" / "vocab.model", run / "vocab.model")
    assert wrong(run) == [
        f"{run}/vocab.model is not the vocabulary of the corpus; copy {original} to its place",
    ]


def test_files_that_are_gone_are_found(run):
    (run / "config.json").unlink()
    (run / "vocab.model").unlink()
    (run / "metrics.jsonl").unlink()
    (corpus_of(run) / "000000-000000.npz").unlink()
    largest(run / "checkpoints" / "2").unlink()
    found = wrong(run)
    assert [
        next(name for name in ("config.json", "cannot be read", ".npz", "vocab", "metrics") if name in text)
        for text in found
    ] == [*("config.json", "cannot be read", ".npz", "vocab", "metrics")]
    assert any(finding.ok and "checkpoints/1" in finding.text for finding in verify(run))  # read without the config


def test_only_a_finished_run_can_be_without_its_corpus(run):
    folder = corpus_of(run)
    shutil.rmtree(run / "data")
    assert wrong(run) == []
    change_json(run / "config.json", steps=3)
    assert wrong(run) == [f"{folder} is missing: the run needs its corpus to be resumed; restore a copy"]


def test_another_corpus_is_found(run, text_file, tmp_path):
    pipeline.prepare(tmp_path / "other", input=str(text_file), vocab_size=40, heldout_fraction=0.2)
    settings = json.loads((run / "config.json").read_text())
    change_json(run / "config.json", data={**settings["data"], "input": str(tmp_path / "other")})
    assert wrong(run)[0] == (
        f"{tmp_path}/other holds another corpus than the one this run started with; restore that one"
    )


def test_a_corpus_alone(run):
    folder = corpus_of(run)
    assert [*verify(folder)] == [Finding(True, f"{folder}: 4 files")]
    flip(folder / "vocab.model")
    flip(next(folder.glob("*.train.array_record")))
    assert len(wrong(folder)) == 2
    (folder / "manifest.json").write_text("{}")
    (text,) = wrong(folder)
    assert text.startswith(f"{folder}/manifest.json is missing or has changed since it was written")


def test_another_folder_is_neither(tmp_path):
    assert wrong(tmp_path) == [
        f"{tmp_path} is neither the work directory of a run nor a prepared corpus; check the path"
    ]
