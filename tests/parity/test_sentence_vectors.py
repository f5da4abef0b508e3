"""Exported encoders in sentence-transformers: the same vectors."""
# ruff: noqa: E402 (nothing else is imported where it is not installed)

import pytest

_REASON = "compares with sentence-transformers: pip install sentence-transformers"
library = pytest.importorskip("sentence_transformers", reason=_REASON)

import numpy as np

import electra_jax

TEXTS = ["a line of text", "the file", "another line that is longer than the others are", ""]


def test_vectors_are_those_of_encode(small_run, tmp_path):
    electra_jax.export(small_run, tmp_path / "out", sentence_transformers=True)
    theirs = library.SentenceTransformer(str(tmp_path / "out" / "encoder"), device="cpu")
    ours = electra_jax.load(tmp_path / "out")
    np.testing.assert_allclose(theirs.encode(TEXTS), ours.encode(TEXTS), rtol=1e-4, atol=1e-5)
    assert theirs.max_seq_length == 64
