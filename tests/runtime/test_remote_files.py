"""Files by address, of fsspec's memory file system."""

import sys

import fsspec
import pytest

from electra_jax.config.errors import UserError
from electra_jax.runtime import remote_files


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
    assert remote_files.is_url(name) is found


def urls(pattern):
    return [file.url for file in remote_files.list_files(pattern)[0]]


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


@pytest.mark.slow
def test_s3(monkeypatch, tmp_path):
    """Prepares from a bucket of a server that this test starts, and is refused one that is not there."""
    pytest.importorskip("s3fs", reason="s3fs is an extra")
    server_of_moto = pytest.importorskip("moto.server", reason="moto is an extra for tests")
    import s3fs

    from electra_jax.data import pipeline

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
        texts = [f"document {n} of many\nwith another line {n * n}" for n in range(60)]
        (tmp_path / "local").mkdir()
        for number in range(2):
            text = "\n\n".join(texts[number::2])
            bucket.pipe(f"bucket/text/{number}.txt", text.encode())
            (tmp_path / "local" / f"{number}.txt").write_text(text)
        settings = {"vocab_size": 40, "heldout_fraction": 0.2}
        reports = [
            pipeline.prepare(tmp_path / output, input=given, **settings)
            for output, given in (
                ("a", "s3://bucket/text/*.txt"),
                ("b", "s3://bucket/text"),
                ("c", str(tmp_path / "local")),
            )
        ]
        assert reports[0].tokens == reports[1].tokens == reports[2].tokens
        with pytest.raises(UserError, match=r"input='s3://nobucket/a.txt' matches no file"):
            pipeline.prepare(tmp_path / "d", input="s3://nobucket/a.txt", **settings)
        first = remote_files.list_files("s3://bucket/text")
        bucket.pipe("bucket/text/0.txt", b"changed")
        assert remote_files.list_files("s3://bucket/text") != first
    finally:
        server.stop()
    with pytest.raises(UserError, match=r"^s3://bucket/text cannot be read \(EndpointConnectionError: .*credentials$"):
        remote_files.list_files("s3://bucket/text")
