import json
import shutil

import numpy as np
import pytest

from electra_jax.config.errors import UserError
from electra_jax.data import corpus, pipeline
from electra_jax.data.config import CorpusConfig
from electra_jax.data.local_runner import LocalRunner


@pytest.fixture(scope="module")
def made(tmp_path_factory, text_file):
    folder = tmp_path_factory.mktemp("corpus")
    config = CorpusConfig(input=f"{text_file}@3;docstrings:json@1", vocab_size=90, heldout_fraction=0.1)
    pipeline.build_corpus(folder, config, LocalRunner(1))
    return folder


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "copy")


def change(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_what_is_loaded_is_what_the_manifest_says(made):
    found = corpus.load(made)
    manifest = corpus.read_manifest(made)
    assert corpus.is_prepared(made)
    assert found.key == manifest["key"]
    assert found.weights == [3, 1]
    assert manifest["settings"]["vocab_size"] == len(found.tokenizer) == 90
    for name, split in (("train", found.train), ("heldout", found.heldout)):
        assert len(split.tokens) == sum(shard["tokens"][name] for shard in manifest["shards"]) > 0
        assert len(split.documents) - 1 == sum(shard["documents"][name] for shard in manifest["shards"]) > 0
        assert len(split.sources) == 3
        own = [sum(s["documents"][name] for s in manifest["shards"] if s["source"] == number) for number in (0, 1)]
        assert np.diff(split.sources).tolist() == own
    everything = found.train.tokens.take(found.train.lines[:-1], np.diff(found.train.lines))
    assert found.unigram.tolist() == np.bincount(everything, minlength=90).tolist()


def test_held_out_lines_are_the_first_ones_as_text(made, copy):
    found = corpus.load(made)
    lines, tokens = found.heldout.lines, found.heldout.tokens
    each = [tokens.take(lines[i : i + 1], np.diff(lines[i : i + 2])) for i in range(len(lines) - 1)]
    known = [found.tokenizer.decode(line) for line in each if found.tokenizer.special.unk not in line]
    assert corpus.heldout_lines(made, found.tokenizer, 10**6) == known
    assert corpus.heldout_lines(made, found.tokenizer, 3) == known[:3]
    change(copy / "000000-000000.npz")
    with pytest.raises(UserError, match=r"npz is missing or has changed"):
        corpus.heldout_lines(copy, found.tokenizer, 3)


def test_the_report_has_each_source(made):
    report = corpus.report(made)
    first, second = report.sources
    assert [source.label for source in report.sources] == corpus.load(made).sources
    assert second.name == "docstrings:json"
    assert (first.share, second.share) == (0.75, 0.25)
    for counts, both in (("documents", report.documents), ("tokens", report.tokens)):
        assert {split: getattr(first, counts)[split] + getattr(second, counts)[split] for split in both} == both
        assert min(getattr(second, counts).values()) > 0


def test_a_folder_without_a_manifest_is_no_corpus(made, tmp_path):
    assert not corpus.is_prepared(tmp_path)
    assert not corpus.is_prepared(made / "vocab.model")


@pytest.mark.parametrize("name", ["vocab.model", "000000-000000.npz"])
def test_a_changed_small_file_is_noticed_when_the_corpus_is_loaded(copy, name):
    change(copy / name)
    with pytest.raises(
        UserError, match=f"{copy / name} is missing or has changed since it was written; delete it and .*manifest.json"
    ):
        corpus.load(copy)


@pytest.mark.parametrize("name", ["vocab.model", "000000-000000.npz", "000000-000000.train.array_record"])
def test_a_file_that_is_gone_is_noticed_when_the_corpus_is_loaded(copy, name):
    (copy / name).unlink()
    with pytest.raises(UserError, match=f"{copy / name} is missing or has changed since it was written"):
        corpus.load(copy)


@pytest.mark.parametrize("name", ["vocab.model", "000000-000000.npz", "000001-000000.heldout.array_record"])
def test_every_file_is_verified(copy, name):
    assert list(corpus.check_files(copy)) == [None] * (1 + 2 * 3)
    change(copy / name)
    (error,) = filter(None, corpus.check_files(copy))
    assert str(error).startswith(f"{copy / name} is missing or has changed since it was written")


def test_a_file_that_cannot_be_read_does_not_end_the_check(copy, monkeypatch):
    def sha256(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(corpus, "sha256", sha256)
    found = list(corpus.check_files(copy))
    assert len(found) == 1 + 2 * 3
    assert (
        str(found[0]) == f"{copy / 'vocab.model'} cannot be read (Permission denied); restore a copy, or prepare again"
    )


@pytest.mark.parametrize("text", ["", "[]", '{"format": '])
def test_a_manifest_cut_off_is_one_line(copy, text):
    (copy / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"manifest.json is missing or has changed since it was written"):
        corpus.load(copy)


@pytest.mark.parametrize("change", [{"key": "x"}, {"shards": []}, {"more": 1}, {"checksum": "x"}])
def test_an_edited_manifest_is_noticed(copy, change):
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, **change}))
    for use in (corpus.load, lambda folder: list(corpus.check_files(folder))):
        with pytest.raises(UserError, match=r"manifest.json is missing or has changed since it was written"):
            use(copy)


def test_what_is_no_path_is_no_corpus(tmp_path):
    assert not corpus.is_prepared(tmp_path / ("a-long-name;" * 30))
    assert not corpus.is_prepared(tmp_path / "a\0b")


def test_a_corpus_of_another_version_is_refused(copy):
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "format": 1}))
    with pytest.raises(UserError, match=r"prepared by another version of electra_jax \(format 1, not 2\)"):
        corpus.load(copy)
