"""A local folder as an `epath.Path` stands for a bucket: it is written and read by the same calls."""

import sys
from pathlib import Path

import pytest
from cli_runs import arrays, logged, quiet, small_config
from etils import epath

from electra_jax.config.errors import UserError
from electra_jax.runtime import workdir
from electra_jax.train import train


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A function from a host's name to the bucket as that host sees it; each host has a disk of its own."""

    def on(host: str):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / host))
        return epath.Path(tmp_path / "bucket")

    return on


def test_a_local_work_directory_is_its_own_folder(tmp_path):
    run = workdir.WorkDir(workdir.resolve(str(tmp_path / "run")))
    assert not run.is_remote
    run.fetch()
    assert run.folder == run.path == tmp_path / "run"
    assert run.folder.is_dir()
    assert run.checkpoints == tmp_path / "run" / "checkpoints"
    run.publish()
    assert list(run.folder.iterdir()) == []
    with run.lock_data_folder() as folder:
        assert folder == tmp_path / "run" / "data"


def test_published_files_are_fetched_on_another_host(bucket, tmp_path):
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

    again = workdir.WorkDir(bucket("one"))  # its disk has an older file, and one that was never published
    (again.folder / "stale.json").write_text("old")
    again.fetch()
    assert (again.folder / "config.json").read_text() == "22"
    assert not (again.folder / "stale.json").exists()
    assert (again.folder / "data" / "shard").read_text() == "large"


def test_only_changed_files_are_copied_again(bucket, tmp_path):
    run = workdir.WorkDir(bucket("one"))
    run.fetch()
    (run.folder / "a").write_text("a")
    run.publish()
    (tmp_path / "bucket" / "a").write_text("changed by somebody else")
    run.publish()
    assert (tmp_path / "bucket" / "a").read_text() == "changed by somebody else"
    (run.folder / "a").write_text("longer")
    run.publish()
    assert (tmp_path / "bucket" / "a").read_text() == "longer"


def test_while_training_a_store_that_refuses_is_left_to_the_next_time(bucket, tmp_path, monkeypatch, caplog):
    run = workdir.WorkDir(bucket("one"))
    run.fetch()
    (run.folder / "a").write_text("a")

    class RefusedError(Exception):
        """As gcsfs's, of no class that others know."""

    def refuse(*arguments):
        raise RefusedError("503: try later")

    with monkeypatch.context() as patch:
        patch.setattr(epath.gpath.PosixGPath, "write_bytes", refuse)
        run.publish_if_possible()
        with pytest.raises(RefusedError):
            run.publish()
    assert caplog.messages == [
        f"warning: logs were not copied to {tmp_path / 'bucket'} (RefusedError: 503: try later); the next checkpoint "
        "tries again"
    ]
    run.publish_if_possible()
    assert (tmp_path / "bucket" / "a").read_text() == "a"


@pytest.mark.slow
def test_a_run_resumes_from_the_bucket_on_another_host(bucket, tmp_path, text_file, light_steps):
    for host, steps in (("one", 6), ("other", 12)):
        config = small_config(text_file, "objective=mlm", steps=steps, checkpoint__every=3)
        train(config, bucket(host), quiet())
    assert [line["step"] for line in logged(tmp_path / "bucket")] == [3, 4, 6, 8, 9, 12]
    assert {path.name for path in (tmp_path / "bucket").iterdir()} >= {"config.json", "tensorboard", "checkpoints"}
    assert arrays(tmp_path / "bucket", 12)  # on a disk it is a run like any other
    assert not (tmp_path / "bucket" / "data").exists()


@pytest.mark.parametrize("text", ["s3://b/run", "runs/\0", "runs/caf\udce9"])
def test_invalid_work_directories_are_refused(text):
    with pytest.raises(UserError, match=r"work directory .* is invalid: expected "):
        workdir.resolve(text)


def test_an_address_in_a_path_is_not_taken_for_a_folder():
    with pytest.raises(
        UserError, match="work directory gs:/b/run is an address that lost a slash in a Path; give it as"
    ):
        workdir.resolve(str(Path("gs://b/run")))


def test_a_file_is_no_work_directory(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match="run is a file: expected a folder; use another --workdir"):
        workdir.WorkDir(tmp_path / "run").check_is_run()


def test_a_bucket_needs_gcsfs(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UserError, match=r"gs://b/run needs gcsfs; install it: pip install 'electra_jax\[gcs\]'"):
        workdir.resolve("gs://b/run")
