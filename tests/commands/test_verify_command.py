import shutil

import pytest

from electra_jax.commands import verify
from electra_jax.config import errors
from electra_jax.data import pipeline


@pytest.fixture
def corpora(tmp_path, text_file):
    """Two prepared corpora; a shard of the second is damaged."""
    pipeline.prepare(tmp_path / "good", input=str(text_file), vocab_size=40, heldout_fraction=0.1)
    shutil.copytree(tmp_path / "good", tmp_path / "bad")
    shard = next((tmp_path / "bad").glob("*.train.array_record"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    return tmp_path / "good", tmp_path / "bad", shard


def test_a_line_for_each_thing_and_the_exit_status(corpora, capsys):
    good, bad, shard = corpora
    assert errors.run(verify.main, [str(good)]) == 0
    assert capsys.readouterr() == (f"ok    {good}: 4 files\n", "")
    assert errors.run(verify.main, [str(bad), str(good)]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"WRONG {shard} is missing or has changed since it was written; delete it and {bad}/manifest.json and prepare "
        "again",
        f"ok    {bad}: 3 files",
        f"ok    {good}: 4 files",
    ]
    assert err == "error: 1 of 3 checks failed; the lines that begin with WRONG say what to do\n"


def test_a_folder_is_needed(capsys):
    assert errors.run(verify.main, []) == 2
    assert capsys.readouterr().err.startswith("error: no folder is given: expected one, such as ")
