"""Exported models in sentence-transformers' CrossEncoder: the same numbers."""
# ruff: noqa: E402 (nothing else is imported where it is not installed)

import pytest

_REASON = "compares with sentence-transformers: pip install sentence-transformers"
library = pytest.importorskip("sentence_transformers", reason=_REASON)

import numpy as np
import rounding
from tiny_finetuned import make, train_pieces

from electra_jax.downstream.finetuned_model import FinetunedModel
from electra_jax.downstream.finetuning import hf_export

PAIRS = [("ada", "ben saw oslo"), ("the old", "ada and ben"), ("ben", "old")]


def test_numbers_and_probabilities_are_those_of_predict(tmp_path):
    for name, kind in (("numbers", "bert"), ("numbers", "modernbert"), ("topics", "deberta")):
        model = make(name, train_pieces(), kind, 16, **{"task.pair": "second"})
        hf_export.export(model, tmp_path / kind)
        theirs = library.CrossEncoder(str(tmp_path / kind), device="cpu")
        longest = max(theirs.config.hidden_size, theirs.config.intermediate_size)
        bound = rounding.torch_bounds(theirs.model, lambda _, theirs=theirs: theirs.predict(PAIRS), longest)
        ours = FinetunedModel("ours", model).predict(PAIRS)
        if name == "topics":
            ours = [list(each.probabilities.values()) for each in ours]
        np.testing.assert_allclose(theirs.predict(PAIRS), ours, rtol=0, atol=bound)
