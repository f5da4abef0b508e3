import dataclasses
import json
import os
import re
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from made_files import contents

from electra_jax.config.errors import UserError
from electra_jax.data import config, corpus, duplicates, local_runner, pipeline, shards
from electra_jax.data import documents as documents_lib
from electra_jax.data.config import CorpusConfig, DataConfig, corpus_settings
from electra_jax.data.documents import NO_TEXT, Document, hashed
from electra_jax.data.local_runner import LocalRunner
from electra_jax.runtime import lock
from electra_jax.runtime.progress import Progress


def settings(path, **changes):
    given = {"input": str(path), "vocab_size": 40, "heldout_fraction": 0.1}
    return CorpusConfig(**{**given, **changes})


def documents(split):
    """The ids of each document."""
    bounds = split.lines[split.documents]
    return [split.tokens.take(bounds[i : i + 1], np.diff(bounds[i : i + 2])).tolist() for i in range(len(bounds) - 1)]


class Recorded(Progress):
    def __init__(self):
        self.lines, self.stages, self.updates = [], [], []

    def say(self, text):
        self.lines.append(text)

    def start(self, stage, total=1.0, completed=0.0):
        self.stages.append(stage)

    def update(self, completed, numbers=""):
        self.updates.append((completed, numbers))

    def stop(self):
        self.stages.append("stopped")


@pytest.fixture
def small_shards(monkeypatch):
    """Shards of a kilobyte, so that a small text has many."""
    monkeypatch.setattr(config, "MEGABYTE", 1000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("corpora")


@pytest.fixture(scope="module")
def built(folder, text_file):
    return pipeline.find_or_prepare(folder, settings(text_file))


@pytest.mark.parametrize(
    ("model_type", "vocab_size", "joiner", "advice"),
    [
        ("unigram", 24, "\u200c", "normalization=nfkc_cf"),
        ("wordpiece", 40, "", "model_type=unigram or byte_bpe keeps them"),  # as BERT's
    ],
)
def test_zero_width_non_joiners_stay_in_words_or_are_said_to_be_lost(tmp_path, model_type, vocab_size, joiner, advice):
    word, said = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", Recorded()
    (tmp_path / "text.txt").write_text("\n\n".join(f"{word} {i}" for i in range(300)), encoding="utf-8")
    wanted = settings(tmp_path / "text.txt", vocab_size=vocab_size, model_type=model_type)
    found = pipeline.find_or_prepare(tmp_path / "data", wanted, progress=said)
    ids = found.tokenizer.encode([f"{word}\t{word}"])[0]
    assert found.tokenizer.decode(ids) == f"{word} {word}".replace("\u200c", joiner)
    assert any("U+200C" in line and advice in line for line in said.lines)


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
        document = hashed(Document("", part))
        found.setdefault(document.digest, shards.clean(document, {}))
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
    digests = [hashed(Document("", f"text {i}".encode())).digest for i in range(60)]
    held = [i for i, digest in enumerate(digests) if shards.is_heldout(digest, 0.1)]
    assert held == [2, 3, 6, 18, 33, 38, 43, 44, 58]


def test_held_out_share():
    digests = [hashed(Document("", f"text {i}".encode())).digest for i in range(20_000)]
    held = {share: {d for d in digests if shards.is_heldout(d, share)} for share in (0, 0.02, 0.5, 1)}
    assert (len(held[0]), len(held[1])) == (0, 20_000)
    assert 300 < len(held[0.02]) < 500  # 400, five standard deviations of 20
    assert 9_640 < len(held[0.5]) < 10_360
    assert held[0.02] < held[0.5]


def test_shards_do_not_change_the_corpus(text_file, built, tmp_path, small_shards):
    found = pipeline.build_corpus(tmp_path, settings(text_file, shard_mb=3, sample_mb=1000), LocalRunner(1))
    assert len(list(tmp_path.glob("*.train.array_record"))) > 10
    for split, other in ((found.train, built.train), (found.heldout, built.heldout)):
        assert documents(split) == documents(other)
        np.testing.assert_array_equal(split.lines, other.lines)
    np.testing.assert_array_equal(found.unigram, built.unigram)


def test_finished_shards_are_not_written_again(text_file, tmp_path, small_shards, monkeypatch):
    wanted = settings(text_file, shard_mb=3)
    pipeline.build_corpus(tmp_path / "whole", wanted, LocalRunner(1))

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
        pipeline.build_corpus(tmp_path / "killed", wanted, LocalRunner(1))
    assert not corpus.is_prepared(tmp_path / "killed")
    first, written[:] = set(written[:-1]), [""] * 10
    pipeline.build_corpus(tmp_path / "killed", wanted, LocalRunner(1))
    again = first & set(written)
    assert len(again) <= 1  # of the shard that was not finished
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    "names",
    [
        *(["000000-000000.train.array_record"], ["000000-000000.npz"], ["000000-000000.json"]),
        ["000007-000000.json", "000000-000000.json.tmp", "tokenizer.json"],
    ],
)
def test_what_does_not_belong_to_the_text_is_written_again_or_deleted(text_file, built, tmp_path, names):
    out = shutil.copytree(built_folder(built), tmp_path / "out")
    for name in names:
        (out / name).write_text("left by a run that was killed")
    pipeline.build_corpus(out, settings(text_file), LocalRunner(1))
    assert contents(out) == contents(built_folder(built))


def test_a_folder_with_other_things_in_it_is_refused_and_left_alone(text_file, tmp_path):
    (tmp_path / "thesis.txt").write_text("the only copy")
    with pytest.raises(UserError, match=r"holds other files \(thesis.txt\); use a new folder, or an empty one"):
        pipeline.build_corpus(tmp_path, settings(text_file), LocalRunner(1))
    assert contents(tmp_path) == {"thesis.txt": b"the only copy"}


def test_records_do_not_go_into_the_input(text_file, tmp_path):
    shutil.copy(text_file, tmp_path / "a.txt")
    pipeline.build_corpus(tmp_path / "out", settings(tmp_path / "a.txt"), LocalRunner(1))
    for output in (tmp_path / "out", tmp_path):
        with pytest.raises(UserError, match=r"is in the output folder .*; use an output folder outside"):
            pipeline.build_corpus(output, settings(tmp_path), LocalRunner(1))


def test_the_output_is_not_inside_the_input(text_file, tmp_path):
    """Else the next command would read it as text, and neither go on with it nor find it finished."""
    shutil.copy(text_file, tmp_path / "a.txt")
    with pytest.raises(UserError, match=r"out is inside the input .*, so its files would be read as text; use an"):
        pipeline.build_corpus(tmp_path / "out", settings(tmp_path), LocalRunner(1))
    assert not (tmp_path / "out").exists()
    hidden = tmp_path / ".out"  # hidden folders are not read
    assert pipeline.build_corpus(hidden, settings(tmp_path), LocalRunner(1)).key
    pipeline.build_corpus(hidden, settings(tmp_path), LocalRunner(1))


def test_another_preparation_in_the_same_folder_is_refused(text_file, tmp_path):
    with (
        lock.lock(tmp_path / "out", lambda text: None),
        pytest.raises(UserError, match=r"out is in use by another run \(.*\): expected one run or preparation"),
    ):
        pipeline.build_corpus(tmp_path / "out", settings(text_file), LocalRunner(1))


def test_a_file_with_the_name_of_ours_is_text(text_file, tmp_path):
    (tmp_path / "in").mkdir()
    shutil.copy(text_file, tmp_path / "in" / "a.txt")
    (tmp_path / "in" / "vocabulary.json").write_text('{"text": "a"}')
    assert pipeline.build_corpus(tmp_path / "out", settings(tmp_path / "in"), LocalRunner(1)).key


@pytest.mark.parametrize("finished", [True, False])
def test_a_prepared_text_is_no_text(text_file, tmp_path, finished):
    pipeline.build_corpus(tmp_path / "out", settings(text_file), LocalRunner(1))
    if not finished:
        (tmp_path / "out" / "manifest.json").unlink()
    with pytest.raises(
        UserError, match="is a prepared corpus or an unfinished one: expected text; finish the preparation"
    ):
        pipeline.build_corpus(tmp_path / "new", settings(f"{text_file};{tmp_path / 'out'}"), LocalRunner(1))
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
            found[output] = pipeline.build_corpus(tmp_path / output, wanted, LocalRunner(1)).train.sources.tolist()
    assert found["again"] == found["new"]
    assert contents(tmp_path / "again") == contents(tmp_path / "new")


def test_a_temperature_decides_the_shares_of_sources_and_belongs_to_the_corpus(tmp_path):
    for name, count in (("en", 160), ("fy", 40)):
        text = "\n\n".join(f"the document {name} has a number {n}" for n in range(count))
        (tmp_path / f"{name}.txt").write_text(text)
    found = {}
    for temperature in (1.0, 0.5, 0.0):
        wanted = settings(f"{tmp_path}/en.txt;{tmp_path}/fy.txt", temperature=temperature)
        found[temperature] = pipeline.find_or_prepare(tmp_path / "corpora", wanted)
    assert len({each.key for each in found.values()}) == 3
    bounds = found[1.0].train
    en, fy = np.diff(bounds.lines[bounds.documents[bounds.sources]])
    assert found[1.0].weights is None
    assert found[0.5].weights == pytest.approx([en**0.5 / (en**0.5 + fy**0.5), fy**0.5 / (en**0.5 + fy**0.5)])
    assert found[0.0].weights == [0.5, 0.5]
    assert found[0.5].sources == ["en", "fy"]
    folder = tmp_path / "corpora" / found[0.5].key
    assert [source.share for source in corpus.report(folder).sources] == found[0.5].weights
    by_size = [source.share for source in corpus.report(tmp_path / "corpora" / found[1.0].key).sources]
    assert by_size == pytest.approx([en / (en + fy), fy / (en + fy)])


def test_a_corpus_from_before_a_setting_has_its_default(built):
    folder = built_folder(built)
    known = pipeline.settings_of(folder)
    assert known["vocab_size"] == 40
    manifest = corpus.read_manifest(folder)
    del manifest["settings"]["temperature"]
    with mock.patch.object(corpus, "read_manifest", return_value=manifest):
        assert pipeline.settings_of(folder) == known


def test_progress_is_reported(text_file, tmp_path, small_shards, monkeypatch):
    monkeypatch.setattr(local_runner, "_SAMPLED_BETWEEN_UPDATES", 100)
    progress = Recorded()
    pipeline.build_corpus(tmp_path, settings(text_file, shard_mb=20), LocalRunner(1), progress)
    assert progress.stages == ["reading a sample", "encoding", "stopped"]
    (line,) = progress.lines
    assert line.startswith("Training a vocabulary of 40 lowercased pieces on 0.0 M")
    shares = [share for share, _ in progress.updates]
    assert shares[:3] == sorted(shares[:3])  # 300 documents in the first pass
    assert shares[3:] == sorted(shares[3:])
    assert shares[2] == shares[-1] == 1
    assert re.fullmatch(r"300 documents · \d+\.\d MB/s", progress.updates[2][1])
    manifest = corpus.read_manifest(tmp_path)
    documents = sum(sum(shard["documents"].values()) for shard in manifest["shards"])
    assert progress.updates[-1][1].startswith(f"{documents} documents · ")


def test_each_document_is_hashed_once_in_each_pass(text_file, tmp_path, monkeypatch):
    counted, blake2b = [], documents_lib.blake2b

    def count(text, **options):
        counted.append(text)
        return blake2b(text, **options)

    monkeypatch.setattr(documents_lib, "blake2b", count)
    pipeline.build_corpus(tmp_path, settings(text_file), LocalRunner(1))
    assert 2 <= len(counted) - 2 * 300 < 60  # the sample, the shards, and until both splits have a document
    assert len(set(counted)) == 300


def test_duplicates_are_left_out_wherever_they_are(tmp_path, small_shards):
    (tmp_path / "a.txt").write_text("\n\n".join(f"document number {n % 50}" for n in range(300)))
    (tmp_path / "b.txt").write_text("document number 7\n\nanother one")
    wanted = settings(f"{tmp_path}/a.txt;{tmp_path}/b.txt", shard_mb=1, model_type="bpe")
    found = pipeline.build_corpus(tmp_path / "out", wanted, LocalRunner(1))
    assert len(documents(found.train)) + len(documents(found.heldout)) == 51
    notes = shards.merge_notes(shard["notes"] for shard in corpus.read_manifest(tmp_path / "out")["shards"])
    assert notes == {duplicates.DUPLICATE: (251, f"{tmp_path}/a.txt:101")}


def test_records_without_text_are_counted_once(tmp_path):
    lines = [json.dumps({"text": f"document number {n}"}) for n in range(60)]
    nothing = ['{"text": null}', '{"text": null}', '{"text": " "}']
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, *nothing]))
    pipeline.build_corpus(tmp_path / "out", settings(tmp_path / "a.jsonl", model_type="bpe"), LocalRunner(1))
    notes = shards.merge_notes(shard["notes"] for shard in corpus.read_manifest(tmp_path / "out")["shards"])
    assert notes == {NO_TEXT: (2, f"{tmp_path}/a.jsonl:61"), shards.EMPTY: (1, f"{tmp_path}/a.jsonl:63")}


def test_a_given_vocabulary_is_used_as_it_is(built, text_file, tmp_path):
    model = built_folder(built) / "vocab.model"
    wanted = settings(text_file, vocabulary=str(model), vocab_size=30522)
    found = pipeline.build_corpus(tmp_path, wanted, LocalRunner(1))
    assert found.tokenizer.model == model.read_bytes()
    assert documents(found.train) == documents(built.train)
    assert pipeline.settings_of(tmp_path)["vocab_size"] == 40
    copy = shutil.copy(model, tmp_path / "copy.model")
    assert pipeline.corpus_key(dataclasses.replace(wanted, vocabulary=str(copy))) == found.key


def test_word_pieces_can_be_given(text_file, tmp_path):
    words = sorted(set(text_file.read_text().lower().replace(".", " ").split()))
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", *words, ".", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]) + "\n")
    found = pipeline.build_corpus(
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
    assert corpus.read_manifest(folder / built.key)["settings"] == corpus_settings(settings(text_file))


def test_a_corpus_that_is_there_is_used_again(built, folder, text_file):
    def times():
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    before, progress = times(), Recorded()
    again = pipeline.find_or_prepare(folder, settings(text_file), progress=progress)
    assert (progress.lines, times()) == ([], before)
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
    "language": "eng",
    "near_duplicates": 0.8,
    "temperature": 0.5,
}


def test_the_key_changes_with_each_setting(text_file, tmp_path):
    assert set(OTHER) == set(corpus_settings(CorpusConfig())) - {"input", "vocabulary"}
    other_file = shutil.copy2(text_file, tmp_path / "other.txt")
    mixture = f"{text_file};{other_file}"
    variants = [settings(mixture), settings(text_file), settings(f"{text_file}@1;{other_file}@2")]
    variants += [settings(mixture, **{name: value}) for name, value in OTHER.items()]
    keys = [pipeline.corpus_key(variant) for variant in variants]
    assert len(set(keys)) == len(variants)
    data = DataConfig(**corpus_settings(settings(mixture)), mode="packed", seq_length=9)
    assert pipeline.corpus_key(data) == keys[0]


def test_the_key_does_not_change_when_a_setting_is_added(text_file, monkeypatch):
    key = pipeline.corpus_key(settings(text_file))
    monkeypatch.setattr(pipeline, "corpus_settings", lambda config: {**corpus_settings(config), "new": "default"})
    assert pipeline.corpus_key(settings(text_file)) == key


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocab_size", 39),
        ("model_type", "bpe"),
        ("normalization", "nmt_nfkc"),
        ("byte_fallback", True),
        ("heldout_fraction", 0.5),
        ("documents", "file"),
        ("shard_mb", 1),
        ("sample_mb", 2),
        ("character_coverage", 0.98),
    ],
)
def test_each_setting_changes_what_is_made(tmp_path, small_shards, name, value):
    for number in range(40):
        text = (
            f"The Text {number} is one of many.\n\n" * 5 + f"And Its line {number**3} is another.\n\nqxz {number}" * 3
        )
        (tmp_path / f"{number}.txt").write_text(text)
    made = []
    for changes in ({}, {name: value}):
        chosen = {"vocab_size": 305, "model_type": "bpe"} if name == "byte_fallback" else {}
        folder = tmp_path / str(len(made))
        pipeline.build_corpus(folder, settings(f"{tmp_path}/*.txt", **chosen, **changes), LocalRunner(1))
        # The JSON files have hashes of the settings, which differ in any case.
        made.append({path: data for path, data in contents(folder).items() if not path.endswith(".json")})
    assert made[0] != made[1]


def test_a_run_goes_on_with_its_corpus_although_the_text_has_changed_or_is_gone(begun):
    folder, wanted, old = begun
    Path(wanted.input).write_text(Path(wanted.input).read_text() + "\n\na document more that came later\n")
    progress = Recorded()
    again = pipeline.find_or_prepare(folder, wanted, old.key, progress)
    assert (again.key, progress.lines) == (old.key, [])
    assert documents(again.train) == documents(old.train)

    new = pipeline.find_or_prepare(folder, wanted)
    assert new.key != old.key
    assert len(documents(new.train)) + len(documents(new.heldout)) == 61

    Path(wanted.input).unlink()
    assert pipeline.find_or_prepare(folder, wanted, old.key).key == old.key


def test_a_run_whose_corpus_is_gone_is_refused_where_the_text_has_changed(begun):
    folder, wanted, old = begun
    shutil.rmtree(folder / old.key)
    Path(wanted.input).write_text("Another text.\n\nOf two documents.\n")
    with pytest.raises(UserError, match=f"{old.key}.* is missing and its sources have changed.*--workdir"):
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
    assert pipeline.settings_of(folder / old.key) == {k: v for k, v in corpus_settings(wanted).items() if k != "input"}
    assert pipeline.settings_of(tmp_path) == {}
    with pytest.raises(UserError, match="holds another corpus than the one this run started with"):
        pipeline.find_or_prepare(tmp_path / "none", given, "another key")


# What cannot be.


@pytest.mark.parametrize(("fraction", "which"), [(1e-9, "none"), (1 - 1e-9, "all")])
def test_text_too_little_for_both_splits_is_refused(tmp_path, fraction, which):
    (tmp_path / "a.txt").write_text("One line.\n\nAnother.\n")
    with pytest.raises(UserError, match=f"has 2 documents; heldout_fraction=.* holds out {which}: expected some"):
        pipeline.build_corpus(tmp_path / "out", settings(tmp_path / "a.txt", heldout_fraction=fraction), LocalRunner(1))
    assert not (tmp_path / "out").exists()


def test_the_fraction_that_is_advised_holds_out_a_document(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text(
        "\n\n".join(
            f"the novel of number {n} is long, quite long\nand just has very many lines by {n} people, from A to Z"
            for n in range(16)
        )
    )
    with pytest.raises(UserError, match=r"has 16 documents; heldout_fraction=0\.0001 holds out none") as refused:
        pipeline.build_corpus(tmp_path / "no", settings(text, heldout_fraction=0.0001, vocab_size=40), LocalRunner(1))
    (advised,) = re.findall(r"use heldout_fraction=([\d.]+)", str(refused.value))
    found = pipeline.build_corpus(
        tmp_path / "out", settings(text, heldout_fraction=float(advised), vocab_size=40), LocalRunner(1)
    )
    assert len(documents(found.heldout)) == 1


def test_a_source_without_a_document_is_refused(text_file, tmp_path):
    (tmp_path / "b.txt").write_text(" \n")
    with pytest.raises(UserError, match=r"b.txt has nothing to train on; its documents are empty, held out, or dup"):
        pipeline.build_corpus(tmp_path / "out", settings(f"{text_file}@1;{tmp_path}/b.txt@1"), LocalRunner(1))


def test_a_preparation_that_fails_stops_its_progress_and_leaves_no_corpus(text_file, tmp_path):
    for _ in range(2):
        progress = Recorded()
        with pytest.raises(UserError, match="training a vocabulary of 30000 pieces failed"):
            pipeline.build_corpus(tmp_path, settings(text_file, vocab_size=30_000), LocalRunner(1), progress)
        assert progress.stages == ["reading a sample", "stopped"]
        assert not corpus.is_prepared(tmp_path)


def test_a_worker_that_is_killed_is_one_line(text_file, tmp_path, small_shards, monkeypatch):
    monkeypatch.setattr(local_runner, "_start_worker", os.abort)
    with pytest.raises(
        UserError, match="a worker process was killed, probably because memory ran out; run the same command"
    ):
        pipeline.build_corpus(tmp_path, settings(text_file, shard_mb=1), LocalRunner(2))


# The front door.


def test_sources_are_given_by_name(tmp_path):
    with pytest.raises(UserError, match=r"config='a\.txt' is invalid: .*; give the sources by name, as input="):
        pipeline.prepare(tmp_path / "mine", "a.txt")


def test_prepare_takes_settings_and_returns_a_report(text_file, tmp_path):
    progress = Recorded()
    output = str(tmp_path / "mine")
    options = {"input": str(text_file), "vocab_size": 40, "heldout_fraction": 0.1}
    report = pipeline.prepare(output, progress=progress, **options)
    prepared = corpus.load(tmp_path / "mine")
    assert report == corpus.report(tmp_path / "mine")
    assert report.documents == {name: len(documents(getattr(prepared, name))) for name in ("train", "heldout")}
    assert report.tokens == {"train": len(prepared.train.tokens), "heldout": len(prepared.heldout.tokens)}
    assert json.loads((tmp_path / "mine" / "report.json").read_text())["tokens"] == report.tokens

    before, progress.lines = contents(tmp_path / "mine"), []
    config = settings(text_file, heldout_fraction=0.2)
    assert pipeline.prepare(output, config, progress=progress, heldout_fraction=0.1) == report
    assert progress.lines == [f"{output} is prepared already"]
    assert contents(tmp_path / "mine") == before
    with pytest.raises(UserError, match="holds a corpus of other sources or settings; use another output"):
        pipeline.prepare(output, config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 3}, "vocab_size=3 is invalid: expected from 6 to 1e+06"),
        ({"vocab_size": "many"}, "vocab_size='many' is invalid: expected an integer"),
        ({"vocabsize": 300}, "vocabsize is unknown; did you mean vocab_size?"),
        ({"vocabulary": "v.model", "sample_mb": 3}, "sample_mb=3 has no effect on the given vocabulary=v.model"),
        ({"vocabulary": "v.model", "normalization": "nfkc"}, "normalization=nfkc has no effect on the given"),
    ],
)
def test_an_invalid_setting_is_refused_before_anything_is_written(text_file, tmp_path, changes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        pipeline.prepare(tmp_path / "out", input=str(text_file), **changes)
    assert not (tmp_path / "out").exists()
