"""Exported models in sentence-transformers' CrossEncoder: the same numbers."""
# ruff: noqa: E402 (nothing else is imported where it is not installed)

import pytest

_REASON = "compares with sentence-transformers: pip install sentence-transformers"
library = pytest.importorskip("sentence_transformers", reason=_REASON)

import numpy as np
from tiny_finetuned import make, train_pieces

from electra_jax.downstream.finetuned_model import FinetunedModel
from electra_jax.downstream.finetuning import hf_export

PAIRS = [("ada", "ben saw oslo"), ("the old", "ada and ben"), ("ben", "old")]


@pytest.mark.parametrize("name", ["numbers", "topics"])
def test_numbers_and_probabilities_are_those_of_predict(name, tmp_path):
    for kind in ("bert", "modernbert", "deberta"):
        model = make(name, train_pieces(), kind, 16, **{"task.pair": "second"})
        hf_export.export(model, tmp_path / kind)
        theirs = library.CrossEncoder(str(tmp_path / kind), device="cpu").predict(PAIRS)
        ours = FinetunedModel("ours", model).predict(PAIRS)
        if name == "topics":
            ours = [list(each.probabilities.values()) for each in ours]
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)
