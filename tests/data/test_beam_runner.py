"""The same preparation by Apache Beam's direct runner."""

import dataclasses

import pytest
from made_files import contents

from electra_jax.config.errors import UserError
from electra_jax.data import config, corpus, pipeline, shards
from electra_jax.data.config import CorpusConfig
from electra_jax.data.local_runner import LocalRunner

pytest.importorskip("apache_beam", reason="Apache Beam is an extra")
from electra_jax.data.beam_runner import BeamRunner

OPTIONS = "--runner=DirectRunner --direct_running_mode=in_memory"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Text of several units and shards, with duplicates within and across them, empty lines and broken parts."""
    monkeypatch.setattr(config, "MEGABYTE", 1000)
    for name in "abc":
        texts = [f"document {n % 70} of many lines\nand {name if n % 3 else ''} words {n % 70}" for n in range(100)]
        (tmp_path / f"{name}.txt").write_text("\n\n".join(texts) + "\n\n \x00 \n\ncut " + "long " * 900)
    (tmp_path / "d.jsonl").write_text(
        '{"text": "document 3 of many lines\\nand  words 3"}\n{"text": ""}\n{"text": null}\n'
    )
    return CorpusConfig(input=f"{tmp_path}/*.*", vocab_size=60, heldout_fraction=0.1, shard_mb=2, sample_mb=9)


def test_beam_writes_the_same_bytes(settings, tmp_path):
    pipeline.build_corpus(tmp_path / "local", settings, LocalRunner(1))
    pipeline.build_corpus(tmp_path / "beam", settings, BeamRunner(OPTIONS))
    local, by_beam = contents(tmp_path / "local"), contents(tmp_path / "beam")
    assert len(local) > 20
    assert local == by_beam
    notes = shards.merge_notes(shard["notes"] for shard in corpus.read_manifest(tmp_path / "beam")["shards"])
    assert len(notes) == 5


def test_near_duplicates_are_refused(settings, tmp_path):
    pytest.importorskip("rensa", reason="rensa is an extra")
    wanted = dataclasses.replace(settings, near_duplicates=0.8)
    with pytest.raises(UserError, match="near_duplicates has no effect with --beam; leave one out"):
        pipeline.build_corpus(tmp_path / "beam", wanted, BeamRunner(OPTIONS))


def test_a_user_s_mistake_is_one_line_from_beam_too(settings, tmp_path):
    (tmp_path / "e.jsonl").write_text('{"body": "x"}\n')
    with pytest.raises(UserError, match=r"e.jsonl:1 has no field 'text'; name one of these with --field=: body"):
        pipeline.build_corpus(tmp_path / "beam", settings, BeamRunner(OPTIONS))
    assert not corpus.is_prepared(tmp_path / "beam")
