import numpy as np
import pytest
import tiny_models

from electra_jax.config.errors import UserError
from electra_jax.loading.huggingface import bert


def test_names_of_a_fine_tuned_classifier():
    config = {
        "architectures": ["ElectraForSequenceClassification"],
        "model_type": "electra",
        "embedding_size": 8,
        "x": 1,
    }
    names = ["electra.embeddings.LayerNorm.weight", "classifier.dense.bias", "classifier.out_proj.bias"]
    described, state = bert.write(config, {name: np.zeros(1) for name in names})
    assert described == {"architectures": ["BertForSequenceClassification"], "model_type": "bert", "x": 1}
    assert [*state] == ["bert.embeddings.LayerNorm.weight", "bert.pooler.dense.bias", "classifier.bias"]


def test_names_that_were_converted_from_tensorflow():
    names = [
        *("bert.embeddings.LayerNorm.gamma", "bert.encoder.layer.0.output.LayerNorm.beta", "bert.pooler.dense.bias"),
        *("cls.predictions.transform.LayerNorm.gamma", "cls.predictions.bias", "cls.predictions.decoder.weight"),
        *("cls.predictions.decoder.bias", "cls.seq_relationship.weight", "classifier.weight"),
    ]
    assert [*bert.read({name: np.zeros(1) for name in names})] == [
        *("electra.embeddings.LayerNorm.weight", "electra.encoder.layer.0.output.LayerNorm.bias"),
        *("generator_predictions.LayerNorm.weight", "generator_lm_head.bias", "generator_lm_head.weight"),
        "classifier.weight",
    ]


@pytest.mark.parametrize(
    ("architectures", "expected"),
    [(["BertForPreTraining"], ["ElectraForMaskedLM"]), (["BertModel"], ["ElectraModel"]), (None, None), ([7], [7])],
)
def test_a_config_is_that_of_an_electra(architectures, expected):
    found = bert.read_config({"model_type": "bert", "hidden_size": 8, "architectures": architectures})
    assert found == {"model_type": "electra", "hidden_size": 8, "embedding_size": 8, "architectures": expected}


@pytest.mark.parametrize(
    ("kind", "embedding_size", "message"),
    [
        ("modernbert", 32, "a modernbert encoder cannot be written as a BERT: expected config.model.encoder=bert"),
        ("bert", 16, "no map from embeddings of 16 numbers to layers of 32: expected config.model.embedding_size=32"),
    ],
)
def test_what_is_no_bert_is_refused(kind, embedding_size, message):
    with pytest.raises(UserError, match=message):
        bert.check(tiny_models.network(kind, embedding_size=embedding_size).config)
