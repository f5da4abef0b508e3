import hashlib

import pytest

from electra_jax.config.errors import UserError
from electra_jax.runtime import io


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        io.write_whole(path, "\ud800")  # fails while it writes
    assert path.read_text() == "old"
    io.write_whole(path, "néw\n")
    assert path.read_text(encoding="utf-8") == "néw\n"
    assert list(tmp_path.iterdir()) == [path]


def test_json_of_any_depth_is_a_value_or_a_value_error():
    assert io.from_json('{"a": [1, null]}') == {"a": [1, None]}
    with pytest.raises(ValueError, match="nested too deep"):
        io.from_json("[" * 100_000)
    with pytest.raises(ValueError, match="Expecting"):
        io.from_json("{")


def test_a_json_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert io.read_json(path) == {"a": 1}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", "is not valid JSON .*; restore or download the file"),
        (b"\xff{}", "is not valid JSON"),
        (b"[]", "is not a JSON object; restore or download the file"),
        (b"null", "is not a JSON object"),
    ],
)
def test_another_file_is_refused_by_its_path(tmp_path, content, expected):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"file.json {expected}"):
        io.read_json(path)


def test_sha256(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert io.sha256(tmp_path / "file") == hashlib.sha256(b"abc").hexdigest()
