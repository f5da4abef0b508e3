import numpy as np
import pytest
import tiny_models

from electra_jax.config.errors import UserError
from electra_jax.loading.huggingface import bert, hf_config, weights
from electra_jax.modeling.subnetwork import Network


def test_names_of_a_fine_tuned_classifier():
    network = bert.with_names(tiny_models.network("bert", "discriminator_head", embedding_size=32))
    classes = [hf_config.class_name(network.config.encoder, head) for head in ("mlm_head", "classification", None)]
    assert classes == ["BertForMaskedLM", "BertForSequenceClassification", "BertModel"]
    head = {part: {"kernel": np.zeros((32, 32)), "bias": np.zeros(32)} for part in ("dense", "classifier")}
    names = weights.export(Network(network.config, {**network.params, "head": head}), "classification")
    assert {"bert.embeddings.LayerNorm.weight", "bert.pooler.dense.bias", "classifier.bias"} < {*names}
    assert all(name.startswith(("bert.", "classifier.")) for name in names)


def test_names_that_were_converted_from_tensorflow():
    names = [
        *("bert.embeddings.LayerNorm.gamma", "bert.encoder.layer.0.output.LayerNorm.beta", "bert.pooler.dense.bias"),
        *("cls.predictions.transform.LayerNorm.gamma", "cls.predictions.bias", "cls.predictions.decoder.weight"),
        *("cls.predictions.decoder.bias", "cls.seq_relationship.weight", "classifier.weight"),
    ]
    assert [*bert.NamedBert().rename({name: np.zeros(1) for name in names})] == [
        *("bert.embeddings.LayerNorm.weight", "bert.encoder.layer.0.output.LayerNorm.bias"),
        *("cls.predictions.transform.LayerNorm.weight", "cls.predictions.bias", "cls.predictions.decoder.weight"),
        "classifier.weight",
    ]


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
