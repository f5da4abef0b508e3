"""Files by address, of fsspec's memory file system."""

import sys

import fsspec
import gcs_server
import pytest

from electra_jax.config.errors import UserError
from electra_jax.runtime import remote_files
from electra_jax.runtime.io import is_url


@pytest.fixture
def store():
    """A store in memory, empty before and after."""
    files = fsspec.filesystem("memory")
    files.rm("/", recursive=True) if files.ls("/") else None
    yield files
    files.rm("/", recursive=True) if files.ls("/") else None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("s3://b/x", True),
        ("memory://x", True),
        ("tfds:a", False),
        ("/a/b", False),
        ("a b://c", False),
        ("://x", False),
        ("hf:u/n", False),
    ],
)
def test_an_address_has_a_scheme(name, found):
    assert is_url(name) is found


def urls(pattern):
    return [file.name for file in remote_files.list_files(pattern)[0]]


def test_a_file_a_folder_and_a_glob_are_listed_in_order(store):
    for name in ("/b/c.txt", "/b/a.txt", "/b/deep/d.txt", "/b/e.md"):
        store.pipe(name, name.encode())
    assert remote_files.list_files("memory://b/c.txt")[0][0][:2] == ("memory:///b/c.txt", 8)
    assert urls("memory://b/*.txt") == ["memory:///b/a.txt", "memory:///b/c.txt"]
    assert urls("memory://b/**/*.txt") == ["memory:///b/a.txt", "memory:///b/c.txt", "memory:///b/deep/d.txt"]
    files, is_folder = remote_files.list_files("memory://b")
    assert is_folder
    assert len(files) == 4
    assert remote_files.list_files("memory://none") == ([], False)
    assert remote_files.list_files("memory://none/*") == ([], False)


def test_the_version_changes_with_the_content(store):
    store.pipe("/a", b"one")
    (before,), _ = remote_files.list_files("memory://a")
    assert remote_files.list_files("memory://a") == ([before], False)
    store.pipe("/a", b"two")
    (after,), _ = remote_files.list_files("memory://a")
    assert before.version
    assert before.version != after.version
    assert remote_files._version({"ETag": '"x"', "LastModified": "now"}) == '"x"'  # the content, not the time


def test_a_file_can_be_read_and_can_seek(store):
    store.pipe("/a", b"one two three")
    with remote_files.open_file("memory://a") as file:
        assert file.read(3) == b"one"
        assert file.tell() == 3
        assert file.seek(-5, 2) == 8
        assert file.read() == b"three"


def test_what_a_store_answers_is_one_line(store, monkeypatch):
    store.pipe("/a", b"x")

    def refuse(*args, **kwargs):
        raise RuntimeError("403\nForbidden")

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "info", refuse)
        with pytest.raises(UserError, match=r"^memory://a cannot be read \(RuntimeError: 403\); check the name, the n"):
            remote_files.list_files("memory://a")
    with remote_files.open_file("memory://a") as file:
        monkeypatch.setattr("fsspec.implementations.memory.MemoryFile.read", refuse)
        with pytest.raises(UserError, match="memory://a cannot be read"):
            file.read()
    with pytest.raises(UserError, match=r"memory://none cannot be read \(FileNotFoundError"):
        remote_files.open_file("memory://none")


@pytest.mark.parametrize(("scheme", "package", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs")])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, scheme, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"{scheme}://b/a needs {package}; .*pip install 'electra_jax\[{extra}\]'"):
        remote_files.list_files(f"{scheme}://b/a")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("foo://b/a", "has an unknown scheme foo: expected one of fsspec's"),
        ("zip://a.txt::memory://b.zip", "is a chain of addresses: expected one"),
    ],
)
def test_addresses_that_nothing_reads_are_refused(url, message):
    with pytest.raises(UserError, match=message):
        remote_files.list_files(url)


TEXTS = [f"document {n} of many\nwith another line {n * n}" for n in range(60)]
FILES = {f"text/{number}.txt": "\n\n".join(TEXTS[number::2]).encode() for number in range(2)}


def check_store(bucket, tmp_path, change):
    """Two files in the folder `text` of a bucket, prepared as those of a local folder; `change` changes the first."""
    from electra_jax.data import pipeline

    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    settings = {"vocab_size": 40, "heldout_fraction": 0.2}
    given = {"a": f"{bucket}/text/*.txt", "b": f"{bucket}/text", "c": str(tmp_path / "text")}
    reports = [pipeline.prepare(tmp_path / output, input=name, **settings) for output, name in given.items()]
    assert reports[0].tokens == reports[1].tokens == reports[2].tokens
    with pytest.raises(UserError, match=r"input='\w+://nobucket/a.txt' matches no file"):
        pipeline.prepare(tmp_path / "d", input=f"{bucket.partition('://')[0]}://nobucket/a.txt", **settings)
    first = remote_files.list_files(f"{bucket}/text")
    change()
    assert remote_files.list_files(f"{bucket}/text") != first


@pytest.mark.slow
def test_s3(monkeypatch, tmp_path):
    """Prepares from a bucket of a server that this test starts, and is refused one that is not there."""
    pytest.importorskip("s3fs", reason="s3fs is an extra")
    server_of_moto = pytest.importorskip("moto.server", reason="moto is an extra for tests")
    import s3fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    server = server_of_moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
        bucket = s3fs.S3FileSystem(skip_instance_cache=True)
        bucket.mkdir("bucket")
        for name, content in FILES.items():
            bucket.pipe(f"bucket/{name}", content)
        check_store("s3://bucket", tmp_path, lambda: bucket.pipe("bucket/text/0.txt", b"changed"))
    finally:
        server.stop()
    with pytest.raises(UserError, match=r"^s3://bucket/text cannot be read \(EndpointConnectionError: .*credentials$"):
        remote_files.list_files("s3://bucket/text")


@pytest.mark.slow
def test_gs(monkeypatch, tmp_path):
    """The same with a stand-in of Google's store."""
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # for which it asks the real one; read on import
    pytest.importorskip("gcsfs", reason="gcsfs is an extra")
    with gcs_server.serve() as served:
        monkeypatch.setitem(fsspec.config.conf, "gs", {"endpoint_url": served.url, "token": "anon"})
        served.buckets["bucket"] = dict(FILES)
        check_store("gs://bucket", tmp_path, lambda: served.buckets["bucket"].update({"text/0.txt": b"changed"}))
