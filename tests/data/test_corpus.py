import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from electra_jax.data import corpus, sources
from electra_jax.data.corpus import Split
from electra_jax.errors import UserError


def settings(path, **changes):
    return ConfigDict({"input": str(path), "vocab_size": 40, "lowercase": True, "heldout_fraction": 0.1, **changes})


def quiet(line):
    del line


def documents(split):
    """The ids of each document."""
    bounds = split.lines[split.documents]
    return [split.token_ids[begin:end].tolist() for begin, end in itertools.pairwise(bounds)]


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("corpora")


@pytest.fixture(scope="module")
def built(folder, text_file):
    return corpus.load_or_build(folder, settings(text_file), report=quiet)


@pytest.fixture
def begun(tmp_path):
    """(folder, settings, corpus) of a run whose text can be changed."""
    text = tmp_path / "text.txt"
    lines = [f"the run was begun with line {number} of a text\nthat is one of many" for number in range(60)]
    text.write_text("\n\n".join(lines))
    wanted = settings(text)
    return tmp_path / "corpora", wanted, corpus.load_or_build(tmp_path / "corpora", wanted, report=quiet)


def test_split_from_lists():
    split = Split.from_lists([[[7, 8], [], [9]], [], [[10]]], np.uint32)
    assert split.token_ids.tolist() == [7, 8, 9, 10]
    assert split.lines.tolist() == [0, 2, 2, 3, 4]
    assert split.documents.tolist() == [0, 3, 3, 4]
    assert (split.token_ids.dtype, split.lines.dtype, split.documents.dtype) == (np.uint32, np.int64, np.int64)


def test_split_of_nothing():
    split = Split.from_lists([])
    assert (split.token_ids.tolist(), split.lines.tolist(), split.documents.tolist()) == ([], [0], [0])


def test_unigram_counts():
    split = Split.from_lists([[[7, 5], [7]], [[7]]])
    assert split.unigram_counts(9).tolist() == [0, 0, 0, 0, 0, 1, 0, 3, 0]


def test_built_corpus_holds_every_document_encoded_and_held_out_by_its_name(built, text_file):
    encode = built.tokenizer.encode
    everything = list(sources.read_documents(str(text_file)))
    held = [encode(lines) for name, lines in everything if corpus.is_heldout(name, 0.1)]
    kept = [encode(lines) for name, lines in everything if not corpus.is_heldout(name, 0.1)]
    assert len(held) + len(kept) == 300
    for split, expected in ((built.heldout, held), (built.train, kept)):
        wanted = Split.from_lists(expected)
        np.testing.assert_array_equal(split.token_ids, wanted.token_ids)
        np.testing.assert_array_equal(split.lines, wanted.lines)
        np.testing.assert_array_equal(split.documents, wanted.documents)
        assert split.token_ids.dtype == np.uint16
    assert len(built.tokenizer) == 40
    read = [lines for name, lines in everything if not corpus.is_heldout(name, 0.1)]
    assert [built.tokenizer.decode(ids) for ids in documents(built.train)] == [" ".join(lines) for lines in read]
    assert built.characters == sum(len(line) for lines in read for line in lines)


def test_lowercase_reaches_the_vocabulary(text_file, tmp_path):
    titled = tmp_path / "titled.txt"
    titled.write_text(text_file.read_text().title())
    made = {
        lowercase: corpus.load_or_build(tmp_path, settings(titled, lowercase=lowercase), report=quiet)
        for lowercase in (True, False)
    }
    texts = {lowercase: made[lowercase].tokenizer.decode(made[lowercase].train.token_ids) for lowercase in made}
    assert texts[False].istitle()
    assert texts[True] == texts[False].lower()


def test_corpus_is_kept_under_its_key_with_what_it_was_made_from(built, folder, text_file):
    assert built.key == corpus.corpus_key(settings(text_file))
    assert [path.name for path in folder.iterdir()] == [built.key]
    manifest = json.loads((folder / built.key / "manifest.json").read_text())
    assert {name: manifest[name] for name in settings(text_file)} == settings(text_file).to_dict()
    assert manifest["documents"] == len(documents(built.train))
    assert manifest["heldout_documents"] == len(documents(built.heldout))
    assert {*manifest["sha256"], "manifest.json"} == set(contents(folder / built.key))


def test_corpus_that_is_there_is_used_again(built, folder, text_file):
    def times():
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    before, reports = times(), []
    again = corpus.load_or_build(folder, settings(text_file), report=reports.append)
    assert (reports, times()) == ([], before)
    assert again.key == built.key
    assert documents(again.train) == documents(built.train)


def test_same_text_gives_the_same_bytes(built, folder, text_file, tmp_path):
    corpus.load_or_build(tmp_path, settings(text_file), report=quiet)
    assert contents(tmp_path / built.key) == contents(folder / built.key)


def test_building_is_reported(text_file, tmp_path):
    reports = []
    corpus.load_or_build(tmp_path, settings(text_file), report=reports.append)
    assert reports[0] == f"Reading {text_file}"
    assert len(reports) > 1


def test_key_changes_with_each_setting_and_no_other(text_file, tmp_path):
    other_file = shutil.copy2(text_file, tmp_path / "other.txt")
    variants = [
        settings(text_file),
        settings(other_file),
        settings(text_file, vocab_size=41),
        settings(text_file, lowercase=False),
        settings(text_file, heldout_fraction=0.11),
    ]
    keys = [corpus.corpus_key(variant) for variant in variants]
    assert len(set(keys)) == 5
    assert corpus.corpus_key(settings(text_file, mode="packed", seq_length=9)) == keys[0]


def test_key_changes_with_the_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = corpus.corpus_key(settings(path))
    path.write_text("two and more")
    assert corpus.corpus_key(settings(path)) != before


def test_held_out_by_a_hash_that_never_changes():
    # Literal: another Python or another machine must hold out the same documents, or a resumed run has seen them.
    assert [i for i in range(60) if corpus.is_heldout(f"corpus.txt:{i}", 0.1)] == [3, 5, 9, 23, 26, 27, 49, 50, 56, 59]


def test_held_out_share():
    names = [f"corpus.txt:{number}" for number in range(20_000)]
    held = {fraction: {name for name in names if corpus.is_heldout(name, fraction)} for fraction in (0, 0.02, 0.5, 1)}
    assert (len(held[0]), len(held[1])) == (0, 20_000)
    assert 300 < len(held[0.02]) < 500  # 400, five standard deviations of 20
    assert 9_640 < len(held[0.5]) < 10_360
    assert held[0.02] < held[0.5]


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_text_too_little_for_both_splits_is_refused(tmp_path, fraction):
    (tmp_path / "a.txt").write_text("One line.\n\nAnother.\n")
    with pytest.raises(UserError, match=r"documents to train on and . held out.*heldout_fraction"):
        corpus.load_or_build(
            tmp_path / "corpora", settings(tmp_path / "a.txt", heldout_fraction=fraction), report=quiet
        )


FILES = ["vocab.model"] + [f"{s}.{p}.npy" for s in ("train", "heldout") for p in ("tokens", "lines", "documents")]


@pytest.mark.parametrize("name", FILES)
def test_changed_file_is_refused(built, folder, text_file, tmp_path, name):
    copy = Path(shutil.copytree(folder / built.key, tmp_path / built.key))
    data = bytearray((copy / name).read_bytes())
    data[-1] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(UserError, match=f"{copy / name} is not as it was written; delete {copy} "):
        corpus.load_or_build(tmp_path, settings(text_file), report=quiet)
    with pytest.raises(UserError, match=f"{copy / name} is not as it was written"):
        corpus.load_or_build(tmp_path, settings(text_file), key=built.key, report=quiet)

    shutil.rmtree(copy)
    assert corpus.load_or_build(tmp_path, settings(text_file), report=quiet).key == built.key


def test_what_a_killed_build_left_is_harmless(built, folder, text_file, tmp_path):
    left = tmp_path / f"{built.key}.tmp"
    left.mkdir()
    (left / "vocab.model").write_bytes(b"half a vocab")
    (left / "other.npy").write_bytes(b"half an array")
    (tmp_path / built.key).mkdir()  # and a folder that was half copied
    (tmp_path / built.key / "train.tokens.npy").write_bytes(b"half an array")
    corpus.load_or_build(tmp_path, settings(text_file), report=quiet)
    assert [path.name for path in tmp_path.iterdir()] == [built.key]
    assert contents(tmp_path / built.key) == contents(folder / built.key)


def test_build_that_fails_leaves_no_corpus(text_file, tmp_path):
    wanted = settings(text_file, vocab_size=30_000)
    for _ in range(2):
        with pytest.raises(UserError, match="no vocabulary of 30000 pieces"):
            corpus.load_or_build(tmp_path, wanted, report=quiet)
        assert not (tmp_path / corpus.corpus_key(wanted)).exists()


def test_run_goes_on_with_its_corpus_although_the_text_has_changed(begun):
    folder, wanted, old = begun
    Path(wanted.input).write_text(Path(wanted.input).read_text() + "\n\na document more that came later\n")
    reports = []
    again = corpus.load_or_build(folder, wanted, key=old.key, report=reports.append)
    assert (again.key, reports) == (old.key, [])
    assert documents(again.train) == documents(old.train)

    new = corpus.load_or_build(folder, wanted, report=quiet)
    assert new.key != old.key
    assert len(documents(new.train)) + len(documents(new.heldout)) == 61


def test_run_goes_on_with_its_corpus_although_the_text_is_gone(begun):
    folder, wanted, old = begun
    Path(wanted.input).unlink()
    assert corpus.load_or_build(folder, wanted, key=old.key, report=quiet).key == old.key


def test_run_whose_corpus_is_gone_is_refused_where_the_text_has_changed(begun):
    folder, wanted, old = begun
    shutil.rmtree(folder / old.key)
    Path(wanted.input).write_text("Another text.\n\nOf two documents.\n")
    with pytest.raises(UserError, match=f"{old.key}.* is gone and its sources have changed.*--workdir"):
        corpus.load_or_build(folder, wanted, key=old.key, report=quiet)
    assert list(folder.iterdir()) == []


def test_run_whose_corpus_is_gone_has_it_made_again_from_the_same_text(begun):
    folder, wanted, old = begun
    before = contents(folder / old.key)
    shutil.rmtree(folder / old.key)
    assert corpus.load_or_build(folder, wanted, key=old.key, report=quiet).key == old.key
    assert contents(folder / old.key) == before
