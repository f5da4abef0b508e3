import gzip

import pytest
from made_files import tar_of

from electra_jax.config.errors import UserError
from electra_jax.data import pipeline, source_files, sources, unused_settings
from electra_jax.data.config import CorpusConfig

WET = b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 4\r\n\r\nTen.\r\n\r\n"
JSON = b'{"body": "One."}'


FILES = {
    "text.txt": b"One.",
    "a.jsonl": JSON,
    "RC_2010-01.gz": gzip.compress(JSON),
    "a.parquet": b"x",
    "a.wet.gz": gzip.compress(WET),
    "page": WET,
    "text.tar": tar_of({"a.txt": b"One."}),
    "json.tar": tar_of({"a": JSON}),
}
FIELD = {"field": "body"}
DOCUMENTS = {"documents": "file"}
LANGUAGE = {"language": "eng"}


def check(folder, names, settings):
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    config = CorpusConfig(input=";".join(name if ":" in name else f"{folder}/{name}" for name in names), **settings)
    units = [
        sources.Unit(0, name.split(":")[0], (name,), 0) if ":" in name else unit
        for name in names
        for unit in ([name] if ":" in name else sources.units(sources.parse(f"{folder}/{name}"), 9))
    ]
    unused_settings.check(units, config)


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        *((["a.jsonl"], FIELD), (["RC_2010-01.gz"], FIELD), (["a.parquet"], FIELD), (["json.tar"], FIELD)),
        *((["tfds:x"], FIELD), (["hf:x/y"], FIELD), (["text.txt", "text.tar", "json.tar"], FIELD)),
        *((["text.txt"], DOCUMENTS), (["text.tar"], DOCUMENTS), (["a.jsonl", "text.txt"], DOCUMENTS)),
        *((["a.wet.gz"], LANGUAGE), (["page"], LANGUAGE), (["text.txt", "page"], LANGUAGE)),
        *((["text.txt"], {}), (["docstrings:json"], {}), (["a.wet.gz", "a.jsonl"], LANGUAGE | FIELD)),
    ],
)
def test_a_setting_that_one_of_the_inputs_uses_is_used(tmp_path, names, settings):
    check(tmp_path, names, settings)


@pytest.mark.parametrize(
    ("names", "settings", "reason"),
    [
        *((names, FIELD, "no JSON lines, tables or data sets") for names in (["text.txt", "page"], ["text.tar"])),
        (["docstrings:json"], FIELD, "no JSON lines, tables or data sets"),
        *((names, DOCUMENTS, "no plain text") for names in (["a.jsonl"], ["RC_2010-01.gz", "page"], ["json.tar"])),
        *((["tfds:x"], DOCUMENTS, "no plain text"), (["docstrings:json"], DOCUMENTS, "no plain text")),
        *((names, LANGUAGE, "no archives of web pages") for names in (["text.txt"], ["a.jsonl"], ["hf:x/y"])),
    ],
)
def test_a_setting_that_no_input_uses_is_refused(tmp_path, names, settings, reason):
    ((name, value),) = settings.items()
    with pytest.raises(UserError, match=rf"^{name}={value} has no effect on input='.*', which has {reason}; leave it"):
        check(tmp_path, names, settings)


def test_files_are_opened_until_one_decides(tmp_path, monkeypatch):
    opened, open_files = [], source_files.open_files
    monkeypatch.setattr(source_files, "open_files", lambda name: opened.append(name[-1]) or open_files(name))
    for name in "abc":
        (tmp_path / name).write_bytes(JSON if name == "b" else b"One.")
    units = list(sources.units(sources.parse(str(tmp_path)), 1))
    unused_settings.check(units, CorpusConfig())
    assert opened == []
    unused_settings.check(units, CorpusConfig(field="body"))
    assert opened == ["a", "b"]


def test_nothing_is_written_before(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\nTwo.")
    with pytest.raises(UserError, match=r"^field=nonsense has no effect on input='.*a.txt'"):
        pipeline.prepare(tmp_path / "out", input=str(tmp_path / "a.txt"), field="nonsense")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model_type", "name", "value"),
    [
        ("wordpiece", "byte_fallback", True),
        ("byte_bpe", "byte_fallback", True),
        ("byte_bpe", "character_coverage", 1.0),
    ],
)
def test_a_setting_that_the_kind_of_vocabulary_does_not_use_is_refused(tmp_path, model_type, name, value):
    with pytest.raises(UserError, match=rf"^{name}={value} has no effect with model_type={model_type}; leave it out"):
        check(tmp_path, ["text.txt"], {"model_type": model_type, name: value})


def test_a_setting_for_training_a_vocabulary_has_no_effect_on_a_given_one(tmp_path):
    check(tmp_path, ["text.txt"], {"vocabulary": "v.model", "vocab_size": 9, "normalization": "nfkc"})
    with pytest.raises(UserError, match=r"^model_type=bpe has no effect on the given vocabulary=v\.model; leave"):
        check(tmp_path, ["text.txt"], {"vocabulary": "v.model", "model_type": "bpe"})
