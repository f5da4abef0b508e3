import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from electra_jax.config.errors import UserError
from electra_jax.data import chunks, cleaning, corpus, local_runner, pipeline, readers, shards
from electra_jax.data.config import CorpusConfig, corpus_settings
from electra_jax.data.local_runner import LocalRunner, Watch


def settings(path, **changes):
    given = {"input": str(path), "vocab_size": 40, "heldout_fraction": 0.1}
    return CorpusConfig(**{**given, **changes})


def documents(split):
    """The ids of each document."""
    bounds = split.lines[split.documents]
    return [split.tokens.take(bounds[i : i + 1], np.diff(bounds[i : i + 2])).tolist() for i in range(len(bounds) - 1)]


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


class Told(Watch):
    def __init__(self):
        self.lines, self.stages, self.done = [], [], []

    def say(self, text):
        self.lines.append(text)

    def begin(self, stage):
        self.stages.append(stage)

    def advance(self, done):
        self.done.append(done)


@pytest.fixture
def small_shards(monkeypatch):
    """Shards of a kilobyte, so that a small text has many."""
    for module in (pipeline, local_runner, chunks):
        monkeypatch.setattr(module, "MEGABYTE", 1000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("corpora")


@pytest.fixture(scope="module")
def built(folder, text_file):
    return pipeline.find_or_prepare(folder, settings(text_file))


@pytest.fixture
def begun(tmp_path):
    """(folder, settings, corpus) of a run whose text can be changed."""
    text = tmp_path / "text.txt"
    lines = [f"the run was begun with line {number} of a text\nthat is one of many" for number in range(60)]
    text.write_text("\n\n".join(lines))
    wanted = settings(text)
    return tmp_path / "corpora", wanted, pipeline.find_or_prepare(tmp_path / "corpora", wanted)


def read(text_file):
    """(digest, lines) of every document, duplicates left out."""
    found = {}
    for part in text_file.read_bytes().strip().split(b"\n\n"):
        document = readers.Document("", part)
        found.setdefault(shards.digest(document), cleaning.lines(part, "", {}))
    return list(found.items())


def test_every_document_is_there_once_encoded_and_held_out_by_its_text(built, text_file):
    everything = read(text_file)
    assert len(everything) == 300
    for split, held in ((built.heldout, True), (built.train, False)):
        lines = [lines for digest, lines in everything if shards.is_heldout(digest, 0.1) == held]
        encoded = [built.tokenizer.encode(these) for these in lines]
        assert documents(split) == [[i for line in these for i in line] for these in encoded]
        assert np.diff(split.lines).tolist() == [len(line) for these in encoded for line in these]
        assert np.diff(split.documents).tolist() == [len(these) for these in encoded]
        assert [built.tokenizer.decode(ids) for ids in documents(split)] == [" ".join(these) for these in lines]
    assert len(built.tokenizer) == 40


def built_folder(built):
    return Path(built.train.tokens._files[0]).parent


def test_held_out_by_a_hash_that_never_changes():
    # Literal: another Python or another machine must hold out the same documents, or a resumed run has seen them.
    digests = [shards.digest(readers.Document("", f"text {i}".encode())) for i in range(60)]
    held = [i for i, digest in enumerate(digests) if shards.is_heldout(digest, 0.1)]
    assert held == [2, 3, 6, 18, 33, 38, 43, 44, 58]


def test_held_out_share():
    digests = [shards.digest(readers.Document("", f"text {i}".encode())) for i in range(20_000)]
    held = {share: {d for d in digests if shards.is_heldout(d, share)} for share in (0, 0.02, 0.5, 1)}
    assert (len(held[0]), len(held[1])) == (0, 20_000)
    assert 300 < len(held[0.02]) < 500  # 400, five standard deviations of 20
    assert 9_640 < len(held[0.5]) < 10_360
    assert held[0.02] < held[0.5]


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_writes_the_same_bytes(text_file, tmp_path, small_shards, workers):
    for number in (1, workers):
        pipeline.prepare(tmp_path / str(number), settings(text_file, shard_mb=20), LocalRunner(number))
    one, many = contents(tmp_path / "1"), contents(tmp_path / str(workers))
    assert len(one) > 15
    assert one == many


def test_shards_do_not_change_the_corpus(text_file, built, tmp_path, small_shards):
    found = pipeline.prepare(tmp_path, settings(text_file, shard_mb=3, sample_mb=1000), LocalRunner(1))
    assert len(list(tmp_path.glob("*.train.array_record"))) > 10
    for split, other in ((found.train, built.train), (found.heldout, built.heldout)):
        assert documents(split) == documents(other)
        np.testing.assert_array_equal(split.lines, other.lines)
    np.testing.assert_array_equal(found.unigram, built.unigram)


def test_finished_shards_are_not_written_again(text_file, tmp_path, small_shards, monkeypatch):
    wanted = settings(text_file, shard_mb=3)
    pipeline.prepare(tmp_path / "whole", wanted, LocalRunner(1))

    class Killed(BaseException):
        pass

    written = []
    original = shards.records.write

    def write(path, ids):
        written.append(path.name)
        if len(written) == 9:
            path.write_bytes(b"half a sh")
            raise Killed
        original(path, ids)

    monkeypatch.setattr(shards.records, "write", write)
    with pytest.raises(Killed):
        pipeline.prepare(tmp_path / "killed", wanted, LocalRunner(1))
    assert not corpus.is_prepared(tmp_path / "killed")
    first, written[:] = set(written[:-1]), [""] * 10
    pipeline.prepare(tmp_path / "killed", wanted, LocalRunner(1))
    again = first & set(written)
    assert len(again) <= 1  # of the shard that was not finished
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_shard_that_was_changed_is_written_again(text_file, tmp_path):
    pipeline.prepare(tmp_path, settings(text_file), LocalRunner(1))
    before = contents(tmp_path)
    for name in ("000000-000000.train.array_record", "000000-000000.npz", "000000-000000.json"):
        (tmp_path / name).write_bytes(b"changed")
    pipeline.prepare(tmp_path, settings(text_file), LocalRunner(1))
    assert contents(tmp_path) == before


def test_what_does_not_belong_to_the_text_is_deleted(text_file, built, tmp_path):
    for name in ("000007-000000.json", "000000-000000.json.tmp", "tokenizer.json"):
        (tmp_path / name).write_text("left by a run that was killed")
    pipeline.prepare(tmp_path, settings(text_file), LocalRunner(1))
    assert contents(tmp_path) == contents(built_folder(built))


def test_a_folder_with_other_things_in_it_is_refused_and_left_alone(text_file, tmp_path):
    (tmp_path / "thesis.txt").write_text("the only copy")
    with pytest.raises(UserError, match=r"holds other things \(thesis.txt\); give a new folder, or an empty one"):
        pipeline.prepare(tmp_path, settings(text_file), LocalRunner(1))
    assert contents(tmp_path) == {"thesis.txt": b"the only copy"}


def test_records_do_not_go_into_the_input(text_file, tmp_path):
    shutil.copy(text_file, tmp_path / "a.txt")
    pipeline.prepare(tmp_path / "out", settings(tmp_path / "a.txt"), LocalRunner(1))
    for output in (tmp_path / "out", tmp_path):
        with pytest.raises(UserError, match=r"is in .*, where the records are to go; give a folder outside"):
            pipeline.prepare(output, settings(tmp_path), LocalRunner(1))


@pytest.mark.parametrize("finished", [True, False])
def test_a_prepared_text_is_no_text(text_file, tmp_path, finished):
    pipeline.prepare(tmp_path / "out", settings(text_file), LocalRunner(1))
    if not finished:
        (tmp_path / "out" / "manifest.json").unlink()
    with pytest.raises(UserError, match="is a prepared text, or one whose preparation has not finished; finish that"):
        pipeline.prepare(tmp_path / "new", settings(f"{text_file};{tmp_path / 'out'}"), LocalRunner(1))
    assert not (tmp_path / "new").exists()


def test_another_mixture_of_the_same_files_is_another_corpus(tmp_path, small_shards):
    """Shards that an earlier one left in the folder are not taken for those of another source."""
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("\n\n".join(f"document {name} number {n}" for n in range(60)))
    found = {}
    for output, mixtures in {
        "again": ["[a].txt@1;{}/[bc].txt@1", "[ab].txt@1;{}/[c].txt@1"],
        "new": ["[ab].txt@1;{}/[c].txt@1"],
    }.items():
        for mixture in mixtures:
            wanted = settings(f"{tmp_path}/{mixture.format(tmp_path)}", shard_mb=1, vocab_size=30)
            found[output] = pipeline.prepare(tmp_path / output, wanted, LocalRunner(1)).train.sources.tolist()
    assert found["again"] == found["new"]
    assert contents(tmp_path / "again") == contents(tmp_path / "new")


def test_progress_is_told(text_file, tmp_path, small_shards):
    told = Told()
    pipeline.prepare(tmp_path, settings(text_file, shard_mb=20), LocalRunner(1, told))
    assert told.stages == ["reading a sample", "encoding"]
    assert told.lines == [line for line in told.lines if line.startswith("Training a vocabulary of 40 pieces on 0.0 M")]
    shares = [done.share for done in told.done[1:]]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    manifest = corpus.read_manifest(tmp_path)
    assert told.done[-1].documents == sum(sum(shard["documents"].values()) for shard in manifest["shards"])


def test_duplicates_are_left_out_wherever_they_are(tmp_path, small_shards):
    (tmp_path / "a.txt").write_text("\n\n".join(f"document number {n % 50}" for n in range(300)))
    (tmp_path / "b.txt").write_text("document number 7\n\nanother one")
    wanted = settings(f"{tmp_path}/a.txt;{tmp_path}/b.txt", shard_mb=1, model_type="bpe")
    found = pipeline.prepare(tmp_path / "out", wanted, LocalRunner(1))
    assert len(documents(found.train)) + len(documents(found.heldout)) == 51
    notes = cleaning.merge(shard["notes"] for shard in corpus.read_manifest(tmp_path / "out")["shards"])
    assert notes == {chunks.DUPLICATE: (251, f"{tmp_path}/a.txt:101")}


def test_a_given_vocabulary_is_used_as_it_is(built, text_file, tmp_path):
    model = built_folder(built) / "vocab.model"
    found = pipeline.prepare(tmp_path, settings(text_file, vocabulary=str(model), vocab_size=30522), LocalRunner(1))
    assert found.tokenizer.model == model.read_bytes()
    assert documents(found.train) == documents(built.train)
    assert pipeline.settings_of(tmp_path)["vocab_size"] == 40
    changed = settings(text_file, vocabulary=str(model))
    key = pipeline.corpus_key(changed)
    model_of_others = shutil.copy(model, tmp_path / "copy.model")
    assert pipeline.corpus_key(settings(text_file, vocabulary=str(model_of_others))) == key


def test_word_pieces_can_be_given(text_file, tmp_path):
    words = sorted(set(text_file.read_text().lower().replace(".", " ").split()))
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", *words, ".", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]) + "\n")
    found = pipeline.prepare(
        tmp_path / "out", settings(text_file, vocabulary=str(tmp_path / "vocab.txt")), LocalRunner(2)
    )
    assert found.tokenizer.special.mask == len(words) + 5
    everything = documents(found.train) + documents(found.heldout)
    assert not any(found.tokenizer.special.unk in ids for ids in everything)
    assert corpus.load(tmp_path / "out").tokenizer.model == found.tokenizer.model


# A run's own text, kept under its key.


def test_a_corpus_is_kept_under_its_key_with_what_it_was_made_from(built, folder, text_file):
    assert built.key == pipeline.corpus_key(settings(text_file))
    assert [path.name for path in folder.iterdir()] == [built.key]
    assert corpus.read_manifest(folder / built.key)["settings"] == settings(text_file).to_dict()


def test_a_corpus_that_is_there_is_used_again(built, folder, text_file):
    def times():
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    before, told = times(), Told()
    again = pipeline.find_or_prepare(folder, settings(text_file), watch=told)
    assert (told.lines, times()) == ([], before)
    assert again.key == built.key


OTHER = {
    "vocab_size": 41,
    "model_type": "bpe",
    "normalization": "nmt_nfkc",
    "byte_fallback": True,
    "character_coverage": 0.99,
    "sample_mb": 1,
    "heldout_fraction": 0.11,
    "field": "body",
    "documents": "file",
    "shard_mb": 1,
}


def test_the_key_changes_with_each_setting(text_file, tmp_path):
    assert set(OTHER) == set(corpus_settings(CorpusConfig())) - {"input", "vocabulary"}
    other_file = shutil.copy2(text_file, tmp_path / "other.txt")
    variants = [settings(text_file), settings(other_file)]
    variants += [settings(text_file, **{name: value}) for name, value in OTHER.items()]
    keys = [pipeline.corpus_key(variant) for variant in variants]
    assert len(set(keys)) == len(variants)
    assert pipeline.corpus_key(ConfigDict({**settings(text_file), "mode": "packed", "seq_length": 9})) == keys[0]


@pytest.mark.parametrize(
    ("name", "value", "vocab_size"),
    [
        ("vocab_size", 39, 40),
        ("model_type", "bpe", 40),
        ("normalization", "nmt_nfkc", 40),
        ("byte_fallback", True, 305),
        ("heldout_fraction", 0.5, 40),
        ("documents", "file", 40),
        ("shard_mb", 1, 40),
        ("sample_mb", 2, 40),
        ("character_coverage", 0.98, 40),
    ],
)
def test_each_setting_changes_what_is_made(tmp_path, small_shards, name, value, vocab_size):
    for number in range(40):
        text = (
            f"The Text {number} is one of many.\n\n" * 5 + f"And Its line {number**3} is another.\n\nqxz {number}" * 3
        )
        (tmp_path / f"{number}.txt").write_text(text)
    texts = f"{tmp_path}/*.txt"
    if name == "byte_fallback":
        before = settings(texts, vocab_size=45, model_type="bpe")
        after = settings(texts, vocab_size=vocab_size, model_type="bpe", byte_fallback=True)
    else:
        before, after = (
            settings(texts, vocab_size=vocab_size),
            settings(texts, **{"vocab_size": vocab_size, name: value}),
        )
    made = []
    for number, chosen in enumerate([before, after]):
        pipeline.prepare(tmp_path / str(number), chosen, LocalRunner(1))
        made.append(contents(tmp_path / str(number)))
        made[-1].pop("manifest.json")
    assert made[0] != made[1]


def test_a_run_goes_on_with_its_corpus_although_the_text_has_changed(begun):
    folder, wanted, old = begun
    Path(wanted.input).write_text(Path(wanted.input).read_text() + "\n\na document more that came later\n")
    told = Told()
    again = pipeline.find_or_prepare(folder, wanted, old.key, told)
    assert (again.key, told.lines) == (old.key, [])
    assert documents(again.train) == documents(old.train)

    new = pipeline.find_or_prepare(folder, wanted)
    assert new.key != old.key
    assert len(documents(new.train)) + len(documents(new.heldout)) == 61


def test_a_run_goes_on_with_its_corpus_although_the_text_is_gone(begun):
    folder, wanted, old = begun
    Path(wanted.input).unlink()
    assert pipeline.find_or_prepare(folder, wanted, old.key).key == old.key


def test_a_run_whose_corpus_is_gone_is_refused_where_the_text_has_changed(begun):
    folder, wanted, old = begun
    shutil.rmtree(folder / old.key)
    Path(wanted.input).write_text("Another text.\n\nOf two documents.\n")
    with pytest.raises(UserError, match=f"{old.key}.* is gone and its sources have changed.*--workdir"):
        pipeline.find_or_prepare(folder, wanted, old.key)
    assert list(folder.iterdir()) == []


def test_a_run_whose_corpus_is_gone_has_it_made_again_from_the_same_text(begun):
    folder, wanted, old = begun
    before = contents(folder / old.key)
    shutil.rmtree(folder / old.key)
    assert pipeline.find_or_prepare(folder, wanted, old.key).key == old.key
    assert contents(folder / old.key) == before


def test_a_prepared_text_is_used_where_it_is(begun, tmp_path):
    folder, wanted, old = begun
    given = settings(folder / old.key)
    found = pipeline.find_or_prepare(tmp_path / "none", given)
    assert found.key == old.key
    assert not (tmp_path / "none").exists()
    assert pipeline.settings_of(folder / old.key) == {k: v for k, v in wanted.to_dict().items() if k != "input"}
    assert pipeline.settings_of(tmp_path) == {}
    with pytest.raises(UserError, match="holds another text than the one this run was begun with"):
        pipeline.find_or_prepare(tmp_path / "none", given, "another key")


# What cannot be.


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_text_too_little_for_both_splits_is_refused(tmp_path, fraction):
    (tmp_path / "a.txt").write_text("One line.\n\nAnother.\n")
    with pytest.raises(UserError, match=r"documents? (and . held out|to train on).*heldout_fraction|no vocabulary of"):
        pipeline.prepare(tmp_path / "out", settings(tmp_path / "a.txt", heldout_fraction=fraction), LocalRunner(1))
    assert not corpus.is_prepared(tmp_path / "out")


def test_a_source_without_a_document_is_refused(text_file, tmp_path):
    (tmp_path / "b.txt").write_text(" \n")
    with pytest.raises(
        UserError, match=r"b.txt gives nothing to train on: all that is in it is empty, held out, or in"
    ):
        pipeline.prepare(tmp_path / "out", settings(f"{text_file}@1;{tmp_path}/b.txt@1"), LocalRunner(1))


def test_a_vocabulary_larger_than_the_text_supports_is_refused_and_leaves_no_corpus(text_file, tmp_path):
    for _ in range(2):
        with pytest.raises(UserError, match="no vocabulary of 30000 pieces"):
            pipeline.prepare(tmp_path, settings(text_file, vocab_size=30_000), LocalRunner(1))
        assert not corpus.is_prepared(tmp_path)


def test_a_broken_file_stops_the_preparation(text_file, built, tmp_path, small_shards):
    import lzma

    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(text_file.read_bytes() * 3)[:-20])
    vocabulary = str(built_folder(built) / "vocab.model")
    with pytest.raises(UserError, match=r"a.txt.xz:\d+: broken compressed file"):
        pipeline.prepare(tmp_path / "out", settings(path, vocabulary=vocabulary, shard_mb=1), LocalRunner(2))
    assert not corpus.is_prepared(tmp_path / "out")


def test_a_worker_that_is_killed_is_one_line(text_file, tmp_path, small_shards, monkeypatch):
    monkeypatch.setattr(local_runner, "_begin_worker", os.abort)
    with pytest.raises(
        UserError, match="a worker was killed, most likely for want of memory; the same command goes on"
    ):
        pipeline.prepare(tmp_path, settings(text_file, shard_mb=1), LocalRunner(2))
