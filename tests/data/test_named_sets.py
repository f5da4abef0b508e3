"""Sets that a library finds by their name."""

import json
import subprocess
import sys

import hub_server
import pytest
from cli_runs import environment

from electra_jax.config.errors import UserError
from electra_jax.data import named_sets
from electra_jax.data.named_sets import HubSet
from electra_jax.runtime.workdir import LOCK


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("user/name", HubSet("user/name", None, "train", None)),
        ("user/name:test", HubSet("user/name", None, "test", None)),
        ("user/name@v1.0", HubSet("user/name", None, "train", "v1.0")),
        ("user/na.me-x/20231101.en:train@refs/pr/1", HubSet("user/na.me-x", "20231101.en", "train", "refs/pr/1")),
    ],
)
def test_a_name_on_the_hub_has_parts(name, found):
    assert HubSet.parse(name) == found
    assert HubSet.parse(str(found)) == found


@pytest.mark.parametrize("name", ["", "name", "user/", "/name", "user/name@", "user/name:", "user/name/", "../a b/c"])
def test_other_names_are_refused(name):
    with pytest.raises(UserError, match=r"is invalid: expected hf:USER/NAME\[/CONFIG\]\[:SPLIT\]\[@REVISION\]"):
        HubSet.parse(name)


_READ_HUB = """
import json, sys
from electra_jax.config.errors import UserError
from electra_jax.data import readers, sources
from electra_jax.data.config import CorpusConfig

def read(name, field="text"):
    these = sources.parse(name)
    units = list(sources.units(these, 1))
    documents = [[d.text.decode() for d in readers.read_documents(unit, CorpusConfig(field=field))] for unit in units]
    return sources.fingerprint(these), documents

found = []
for arguments in json.loads(sys.argv[1]):
    try:
        found.append(read(*arguments))
    except UserError as error:
        found.append(str(error))
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_set_on_the_hub_is_read_at_one_commit_in_parts(tmp_path):
    pytest.importorskip("datasets", reason="datasets is an extra")

    def rows(numbers):
        return "".join(json.dumps({"text": f"Text {n}.", "id": n}) + "\n" for n in numbers).encode()

    with hub_server.serve() as hub:
        old = hub.commit({"data/train-00000-of-00001.jsonl": rows(range(3))})
        files = {f"data/train-0000{part}-of-00002.jsonl": rows(range(5 * part, 5 * part + 5)) for part in range(2)}
        new = hub.commit({**files, "data/test-00000-of-00001.jsonl": rows([77])})
        hub.repos["user/name"] = {"main": new, "v1": old}
        asked = [
            ["hf:user/name"],
            ["hf:user/name:test"],
            ["hf:user/name@v1@2"],
            ["hf:user/name", "body"],
            ["hf:user/name:none"],
            ["hf:user/name/config"],
            ["hf:user/name@none"],
            ["hf:user/none"],
            ["hf://datasets/user/name/data/train-*.jsonl"],
        ]
        env = {**environment(), "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)}
        env.pop("HF_HUB_OFFLINE", None)
        command = [sys.executable, "-c", _READ_HUB, json.dumps(asked)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        whole, test, before, *refused, by_address = json.loads(done.stdout.splitlines()[-1])
    assert whole == [[f"hf:user/name:train@{new}"], [[f"Text {n}." for n in range(5 * p, 5 * p + 5)] for p in range(2)]]
    assert test == [[f"hf:user/name:test@{new}"], [["Text 77."]]]
    assert before == [[f"hf:user/name:train@{old}"], [["Text 0.", "Text 1.", "Text 2."]]]
    assert by_address[1] == whole[1]
    assert refused[0].startswith(f"hf:user/name:train@{new}:1:1 has no field 'body'; name one of these")
    reasons = ("Bad split: none", "'config' not found", "Revision Not Found", "404")
    for text, reason in zip(refused[1:], reasons, strict=True):
        assert reason in text
        assert text.endswith("check name and network, or log in with `hf auth login`")


@pytest.mark.slow
def test_a_set_on_the_hub_is_prepared_and_an_interrupted_preparation_goes_on(tmp_path):
    pytest.importorskip("datasets", reason="datasets is an extra")

    def prepare():
        command = [sys.executable, "-m", "electra_jax", "prepare", "--input=hf:user/name", f"--output={tmp_path}/out"]
        command += ["--vocab_size=60", "--heldout_fraction=0.2", "--workers=1"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.name != LOCK}

    with hub_server.serve() as hub:
        files = {}
        for part in range(2):
            texts = [f"The text of number {n} in part {part}.\nIts next line is {n * n}." for n in range(30)]
            rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
            files[f"data/train-0000{part}-of-00002.jsonl"] = rows.encode()
        commit = hub.commit(files)
        hub.repos["user/name"] = {"main": commit}
        env = {**environment(), "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        env.pop("HF_HUB_OFFLINE", None)
        whole = prepare()
        (source,) = json.loads(whole["manifest.json"])["sources"]
        assert source["read"] == f"hf:user/name:train@{commit}"
        shards = sorted(name for name in whole if name.endswith(".npz"))
        assert len(shards) == 2
        kept = tmp_path / "out" / shards[0]
        written = kept.stat().st_mtime_ns
        for name in ("manifest.json", "report.json", shards[1]):  # as a kill during the second shard leaves it
            (tmp_path / "out" / name).unlink()
        assert prepare() == whole
        assert kept.stat().st_mtime_ns == written


def test_without_a_network_a_set_on_the_hub_is_refused_in_one_line():
    code = f"from electra_jax.data import named_sets\n{_ONE_LINE}"
    env = {**environment(), "HF_ENDPOINT": "http://127.0.0.1:9"}  # nothing listens there
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("hf:user/name cannot be read (")
    assert done.stdout.count("\n") == 1


_ONE_LINE = """
try:
    named_sets.at_commit("user/name")
except Exception as error:
    print(error)
"""


def test_the_package_datasets_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        UserError, match=r"hf:user/name:train needs the package datasets; pip install 'electra_jax\[dat"
    ):
        named_sets.count_parts(HubSet.parse("user/name"))


_MAKE = """
import sys
import tensorflow_datasets as tfds

class Small(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        text = tfds.features.Text()
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"text": text, "id": text}))

    def _split_generators(self, manager):
        return {"train": ((n, {"text": f"Text {n}.\\nGrün.", "id": str(n)}) for n in range(30))}

    def _generate_examples(self):
        raise NotImplementedError

Small(data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
"""
_READ = """
import json, sys
from electra_jax.data import readers, sources
from electra_jax.data.config import CorpusConfig
from electra_jax.config.errors import UserError

(unit,) = sources.units(sources.parse(f"tfds:{sys.argv[1]}"), 1)
try:
    documents = readers.read_documents(unit, CorpusConfig(field=sys.argv[2]))
    found = [(document.place, document.text.decode()) for document in documents]
except UserError as error:
    found = str(error)
assert "tensorflow" not in sys.modules
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def tfds_read(tmp_path_factory):
    """Reads a field of a set of TFDS, in a process of its own; there is `small`, made without TensorFlow."""
    pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is an extra")
    folder = tmp_path_factory.mktemp("tfds")

    def python(*arguments):
        env = {**environment(), "TFDS_DATA_DIR": str(folder)}
        done = subprocess.run([sys.executable, "-c", *arguments], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (folder / "make.py").write_text(_MAKE)
    python(f"import runpy; runpy.run_path({str(folder / 'make.py')!r})", str(folder))
    return lambda name, field="text": json.loads(python(_READ, name, field).splitlines()[-1])


@pytest.mark.parametrize("name", ["small:1.0.0", "small"])
def test_tfds(tfds_read, name):
    found = tfds_read(name)
    assert sorted(text for _, text in found) == sorted(f"Text {n}.\nGrün." for n in range(30))
    assert [place for place, _ in found] == [f"tfds:{name}:{row}" for row in range(1, 31)]


def test_a_field_that_a_set_of_tfds_has_not(tfds_read):
    found = tfds_read("small:1.0.0", "body")
    assert found.startswith("tfds:small:1.0.0:1 has no field 'body'; name one of these with --field=: ")


@pytest.mark.parametrize("name", ["none", "small:2.0.0", "wikipedia/20230601.en"])
def test_what_tfds_has_not_is_refused_with_how_to_prepare_it(tfds_read, name):
    found = tfds_read(name)
    assert found.startswith(f"tfds:{name} is not prepared as ArrayRecord (")
    assert f"`tfds build {name} --file_format=array_record`" in found
    assert "\n" not in found
