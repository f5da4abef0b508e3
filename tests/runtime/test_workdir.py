"""A folder behind `epath` stands for a bucket: it is written and read by the same calls."""

import sys

import pytest
from cli_runs import arrays, logged, quiet, small_config
from etils import epath

from electra_jax.config.errors import UserError
from electra_jax.runtime import workdir
from electra_jax.train import train


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A function from a machine's name to the bucket as that machine sees it; each has a disk of its own."""

    def on(machine: str):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        return epath.Path(tmp_path / "bucket")

    return on


def test_a_folder_is_itself(tmp_path):
    there = workdir.WorkDir(workdir.resolve(str(tmp_path / "run")))
    there.fetch()
    assert there.folder == there.place == tmp_path / "run"
    assert there.folder.is_dir()
    assert there.checkpoints == tmp_path / "run" / "checkpoints"
    there.publish()
    assert list(there.folder.iterdir()) == []


def test_what_is_published_is_fetched_on_another_machine(bucket, tmp_path):
    one = workdir.WorkDir(bucket("one"))
    one.fetch()
    (one.folder / "config.json").write_text("1")
    (one.folder / "tensorboard").mkdir()
    (one.folder / "tensorboard" / "events").write_bytes(b"\x00\xff")
    (one.folder / "data").mkdir()
    (one.folder / "data" / "shard").write_text("large")
    assert not (tmp_path / "bucket").exists()
    one.publish()
    assert sorted(path.name for path in (tmp_path / "bucket").rglob("*")) == ["config.json", "events", "tensorboard"]

    other = workdir.WorkDir(bucket("other"))
    other.fetch()
    assert (other.folder / "config.json").read_text() == "1"
    assert (other.folder / "tensorboard" / "events").read_bytes() == b"\x00\xff"
    (other.folder / "config.json").write_text("22")
    other.publish()

    again = workdir.WorkDir(bucket("one"))  # its disk has an older file, and one that nobody published
    (again.folder / "stale.json").write_text("old")
    again.fetch()
    assert (again.folder / "config.json").read_text() == "22"
    assert not (again.folder / "stale.json").exists()
    assert (again.folder / "data" / "shard").read_text() == "large"


def test_only_what_has_changed_is_copied_again(bucket, tmp_path):
    there = workdir.WorkDir(bucket("one"))
    there.fetch()
    (there.folder / "a").write_text("a")
    there.publish()
    (tmp_path / "bucket" / "a").write_text("changed behind its back")
    there.publish()
    assert (tmp_path / "bucket" / "a").read_text() == "changed behind its back"
    (there.folder / "a").write_text("longer")
    there.publish()
    assert (tmp_path / "bucket" / "a").read_text() == "longer"


@pytest.mark.slow
def test_a_run_goes_on_from_the_bucket_on_another_machine(bucket, tmp_path, text_file):
    for machine, steps in (("one", 6), ("other", 12)):
        config = small_config(text_file, steps=steps, checkpoint__every=3)
        train(config, bucket(machine), quiet())
    assert [line["step"] for line in logged(tmp_path / "bucket")] == [3, 4, 6, 8, 9, 12]
    assert {path.name for path in (tmp_path / "bucket").iterdir()} >= {"config.json", "tensorboard", "checkpoints"}
    assert arrays(tmp_path / "bucket", 12)  # copied to a disk, it is a run like any other
    assert not (tmp_path / "bucket" / "data").exists()


def test_other_places_are_refused(monkeypatch):
    with pytest.raises(UserError, match=r"s3://b/run cannot be: a run lives in a folder or on gs://"):
        workdir.resolve("s3://b/run")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UserError, match=r"gs://b/run needs gcsfs; install it: pip install 'electra_jax\[gcs\]'"):
        workdir.resolve("gs://b/run")
