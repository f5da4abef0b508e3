import json
import subprocess
import sys

import numpy as np
import pytest
from cli_runs import environment

from electra_jax.config.errors import UserError
from electra_jax.downstream.tasks import files
from electra_jax.downstream.tasks.task import BadRows


def rows(path, required=("text", "label"), columns=None, strict=True):
    bad_rows = BadRows(strict)
    return [record.values for record in files.read_records(path, required, bad_rows, columns)], bad_rows


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", 'text\tlabel\n"a, b\t1\n\nc\t0\n'),
        ("a.tsv", '\ufefftext\tlabel\r\n"a, b\t1\r\nc\t0'),
        ("a.csv", 'text,label\n"""a, b",1\nc,0\n'),
        ("a.jsonl", '{"text": "\\"a, b", "label": "1"}\n\n{"text": "c", "label": "0"}\n'),
    ],
)
def test_each_format_gives_the_same_rows(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", newline="")
    assert rows(path)[0] == [{"text": '"a, b', "label": "1"}, {"text": "c", "label": "0"}]


def test_a_quoted_field_may_have_lines_and_the_place_is_the_line_it_ends_at(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"one\ntwo",1\nthree,0\n')
    found = list(files.read_records(path, ("text",), BadRows()))
    assert [(record.place, record.values["text"]) for record in found] == [
        (f"{path}:3", "one\ntwo"),
        (f"{path}:4", "three"),
    ]


def test_an_unpaired_surrogate_is_a_bad_row_where_it_is_used(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "\\ud83d\\ude00", "other": "a \\ud83d"}\n')
    assert rows(path, ("text",))[0] == [{"text": "\U0001f600", "other": "a \ud83d"}]
    for used in ({"required": ("text", "other")}, {"required": ("text",), "optional": ("other",)}):
        with pytest.raises(UserError, match=r"a\.jsonl:1: unpaired surrogate '\\ud83d'"):
            list(files.read_records(path, bad_rows=BadRows(), **used))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_an_empty_line_is_a_row_where_there_is_one_column(tmp_path, name):
    path = tmp_path / name
    path.write_text("\ntext\nx\n\ny\n\n\n")  # but not before the first line, or at the end
    assert rows(path, ("text",))[0] == [{"text": "x"}, {"text": ""}, {"text": "y"}]


def test_columns_may_be_named_where_the_file_does_not(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("x\t1\n")
    assert rows(path, columns=("text", "label"))[0] == [{"text": "x", "label": "1"}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"text\tlabel\nx\n", r"a\.tsv:2: 1 fields, expected 2 \(text, label\)"),
        ("a.tsv", b"text\tlabel\nx\t1\t2\n", r"a\.tsv:2: 3 fields, expected 2"),
        ("a.tsv", b"text\tlabel\nx\xff\t1\n", r"a\.tsv:2: byte 0xff in column 2 is not valid UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n', r"a\.jsonl:1: no 'label', expected 'text', 'label'"),
        ("a.jsonl", b'{"text"\n', r"a\.jsonl:1: not a JSON object"),
        ("a.jsonl", b"[1]\n", r"a\.jsonl:1: not a JSON object"),
    ],
)
def test_rows_that_cannot_be_used_are_refused_or_counted(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=message + ".*--strict=false"):
        rows(path)
    found, bad_rows = rows(path, strict=False)
    assert found == []
    assert len(bad_rows.problems) == 1
    assert bad_rows.summary().startswith("1 rows left out, the first ")


def test_a_column_that_is_not_there_is_refused_in_any_case(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("sentence\tlabel\nx\t1\n")
    with pytest.raises(UserError, match=r"a\.tsv:1: no column 'text'; its columns are 'sentence', 'label'"):
        rows(path, strict=False)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_a_file_in_another_encoding_is_refused_whatever_is_left_out(tmp_path, suffix):
    (tmp_path / f"t{suffix}").write_bytes("text,label\nx,a\n".encode("utf-16"))
    for strict in (True, False):
        with pytest.raises(UserError, match=f"t{suffix} is UTF-16: expected UTF-8; convert it with iconv"):
            list(files.read_records(tmp_path / f"t{suffix}", ("text",), BadRows(strict)))


def test_a_row_of_several_lines_is_left_out_whole_where_one_is_not_utf_8(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,label\n"one\ncaf\xe9\nthree",1\n"a\xe9\nb",1\ngood,0\n"x\n\xe9",1\nlast,1\n')
    found, bad_rows = rows(path, strict=False)
    assert found == [{"text": "good", "label": "0"}, {"text": "last", "label": "1"}]
    assert [problem.partition(" ")[0] for problem in bad_rows.problems] == [f"{path}:{line}:" for line in (3, 5, 9)]
    with pytest.raises(UserError, match=r"a\.csv:3: byte 0xe9 in column 4 is not valid UTF-8 .*; .*--strict=false"):
        rows(path)


def test_an_open_quotation_mark_says_where(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"one\ntwo",1\n"x,1\ny,0\n')
    with pytest.raises(UserError, match=r"a\.csv:4: unexpected end of data; fix the row that begins there"):
        rows(path)


def test_the_file_of_a_split_is_found_by_its_suffix(tmp_path):
    with pytest.raises(UserError, match=r"has no dev\.tsv or dev\.csv"):
        files.find_split(tmp_path, "dev", (".tsv", ".csv"))
    (tmp_path / "dev.csv").touch()
    assert files.find_split(tmp_path, "dev", (".tsv", ".csv")) == tmp_path / "dev.csv"
    assert files.has_split(str(tmp_path), "dev", (".tsv", ".csv"))
    assert not files.has_split(str(tmp_path), "test", (".tsv", ".csv"))
    (tmp_path / "dev.tsv").touch()
    with pytest.raises(UserError, match=r"has dev\.tsv and dev\.csv: expected one of them; remove the rest"):
        files.find_split(tmp_path, "dev", (".tsv", ".csv"))


class Feature:
    def __init__(self, names=None):
        if names:
            self.int2str = names.__getitem__


class Set(list):
    """A split as TensorFlow Datasets gives it."""

    class dataset_info:  # noqa: N801
        features = {"sentence": Feature(), "label": Feature(["no", "yes"]), "score": Feature()}


def test_tfds_gives_text_names_of_classes_and_numbers(monkeypatch):
    record = {"sentence": b"caf\xc3\xa9", "label": np.int64(1), "score": np.float32(2.5)}
    hidden = {**record, "label": np.int64(-1)}
    monkeypatch.setattr(files, "tfds_split", lambda name, split: Set([record, hidden]))
    first, second = files.read_tfds_records("tfds:some/set", "dev", ("sentence", "label"), optional=("score", "other"))
    assert first.place == "tfds:some/set:validation:1"
    assert first.values == {"sentence": "café", "label": "yes", "score": 2.5}
    assert second.values["label"] == ""
    with pytest.raises(UserError, match="tfds:some/set has no column 'text'; its columns are 'sentence', 'label'"):
        list(files.read_tfds_records("tfds:some/set", "dev", ("text",)))


def test_tfds_gives_what_is_nested_as_json_has_it(monkeypatch):
    record = {"sentence": {"text": np.array([b"a", b"b"], object), "at": np.array([3, 5], np.int32)}, "label": 0}
    monkeypatch.setattr(files, "tfds_split", lambda name, split: Set([record]))
    (found,) = files.read_tfds_records("tfds:set", "train", ("sentence",))
    assert found.values == {"sentence": {"text": ["a", "b"], "at": [3, 5]}}


_MAKE = """
import sys
import numpy as np
import tensorflow_datasets as tfds

class Cola(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        label = tfds.features.ClassLabel(names=["unacceptable", "acceptable"])
        features = {"sentence": tfds.features.Text(), "label": label, "idx": tfds.features.Scalar(np.int32)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, manager):
        some = [(n, {"sentence": f"Text {n}, grün.", "label": n % 2, "idx": n}) for n in range(6)]
        hidden = [(n, {"sentence": f"Hidden {n}.", "label": -1, "idx": n}) for n in range(40)]
        return {"train": iter(some), "validation": iter(some[:3]), "test": iter(hidden)}

    def _generate_examples(self):
        raise NotImplementedError

class Asked(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        answers = tfds.features.Sequence({"text": tfds.features.Text(), "answer_start": np.int32})
        texts = {name: tfds.features.Text() for name in ("id", "title", "context", "question")}
        features = {**texts, "answers": answers, "is_impossible": np.bool_}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, manager):
        same = {"title": "Oak", "context": "Die Eiche ist grün.", "question": "Was?"}
        answers = {"text": ["Eiche", "Die Eiche"], "answer_start": [4, 0]}
        some = [
            ("a", {**same, "id": "a", "answers": answers, "is_impossible": False}),
            ("b", {**same, "id": "b", "answers": {"text": [], "answer_start": []}, "is_impossible": True}),
        ]
        return {"train": iter(some)}

    def _generate_examples(self):
        raise NotImplementedError

for builder in (Cola, Asked):
    builder(data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
"""
_READ = """
import json, sys
from electra_jax.downstream.tasks import files, glue
from electra_jax.downstream.tasks import registry
from electra_jax.downstream.tasks.config import TaskConfig
from electra_jax.downstream.tasks.task import BadRows

assert files.has_split("tfds:cola", "test", ()) and not files.has_split("tfds:cola", "diagnostic", ())
splits = ("train", "dev", "test")
found = {split: glue.TASKS["cola"].read("tfds:cola", split, BadRows()) for split in splits}
found = {split: [(e.texts[0], e.target) for e in examples] for split, examples in found.items()}
found["squad"] = sorted(registry.make_task(TaskConfig(name="squad2"), "").read("tfds:asked", "train", BadRows()))
assert "tensorflow" not in sys.modules
print(json.dumps(found))
"""


def test_glue_and_squad_of_tfds(tmp_path):
    pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is an extra")

    def python(*arguments):
        env = {**environment(), "TFDS_DATA_DIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", *arguments], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "make.py").write_text(_MAKE)
    python(f"import runpy; runpy.run_path({str(tmp_path / 'make.py')!r})", str(tmp_path))
    found = json.loads(python(_READ).splitlines()[-1])
    texts = [[f"Text {n}, grün.", n % 2] for n in range(6)]
    assert found["train"] == texts
    assert found["dev"] == texts[:3]
    assert found["test"] == [[f"Hidden {n}.", None] for n in range(40)]
    answers = [["Eiche", 4], ["Die Eiche", 0]]
    assert found["squad"] == [
        ["a", "Was?", "Die Eiche ist grün.", answers, False],
        ["b", "Was?", "Die Eiche ist grün.", [], True],
    ]
