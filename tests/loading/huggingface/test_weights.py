"""Names and shapes in both directions. That they are those of transformers is shown in tests/parity."""

import numpy as np
import pytest
import tiny_models
from flax import traverse_util

from electra_jax.config.errors import UserError
from electra_jax.loading.huggingface import weights
from electra_jax.modeling.deberta import Deberta
from electra_jax.modeling.model_config import ARCHITECTURES

HEADS = ("discriminator_head", "mlm_head", None)
KINDS = ("bert", "modernbert", "deberta", "linear")
MODELS = [(kind, head, size) for kind in KINDS for head in HEADS for size in (16, 32)]
V = tiny_models.VOCABULARY


@pytest.mark.parametrize(("kind", "head", "size"), MODELS)
def test_every_bit_comes_back(kind, head, size):
    network = tiny_models.network(kind, head, size)
    state = weights.export(network, head)
    factors = weights.factors(network) if weights.is_folded(network.config) else {}
    again = weights.load(network.config, state, factors, "there")
    for path, value in traverse_util.flatten_dict(network.params, sep="/").items():
        found = traverse_util.flatten_dict(again, sep="/")[path]
        if kind == "modernbert" and path == "encoder/layers/attention_norm/scale":
            assert np.all(found[0] == 1)  # the first layer has none
            found, value = found[1:], value[1:]
        np.testing.assert_array_equal(found, value, err_msg=path)
    assert weights.unread(network.config, state) == []


def test_a_linear_map_is_out_by_in():
    network = tiny_models.network(head="discriminator_head")
    state = weights.export(network, "discriminator_head")
    dense = network.params["discriminator_head"]["dense"]["kernel"]
    np.testing.assert_array_equal(state["discriminator_predictions.dense.weight"], dense.T)
    qkv = network.params["encoder"]["layers"]["attention"]["qkv"]
    name = "electra.encoder.layer.2.attention.self.key"
    np.testing.assert_array_equal(state[f"{name}.weight"], qkv["kernel"][2][:, 1].reshape(32, 32).T)
    np.testing.assert_array_equal(state[f"{name}.bias"], qkv["bias"][2, 1].reshape(32))
    np.testing.assert_array_equal(
        state["electra.embeddings.word_embeddings.weight"], network.params["embeddings"]["word"][:V]
    )


def test_the_discriminator_of_modernbert_has_two_labels():
    network = tiny_models.network("modernbert", embedding_size=32)
    state = weights.export(network, "discriminator_head")
    assert np.all(state["classifier.weight"][0] == 0)
    assert state["classifier.bias"][0] == 0
    np.testing.assert_array_equal(
        state["classifier.weight"][1], network.params["discriminator_head"]["classifier"]["kernel"][:, 0]
    )
    state["classifier.weight"] += 1  # the same to both labels is nothing
    again = weights.load(network.config, state, {}, "there")
    np.testing.assert_allclose(
        again["discriminator_head"]["classifier"]["kernel"],
        network.params["discriminator_head"]["classifier"]["kernel"],
        atol=1e-6,
    )


def test_a_narrow_table_is_folded():
    network = tiny_models.network("modernbert", "mlm_head", 16)
    state = weights.export(network, "mlm_head")
    word = network.params["embeddings"]["word"][:V]
    into, out = (network.params[part]["project"]["kernel"] for part in ("encoder", "mlm_head"))
    np.testing.assert_array_equal(state["model.embeddings.tok_embeddings.weight"], word @ into)
    np.testing.assert_array_equal(state["decoder.weight"], word @ out.T)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "deberta"])
def test_a_bare_encoder_takes_no_head_and_a_head_may_be_put_on_one(kind):
    network = tiny_models.network(kind, None, 32)
    state, architecture = weights.export(network, None), network.config.encoder.architecture
    assert weights.head_in(architecture, state, "") is None
    assert not any(name.startswith(architecture.prefix) for name in state)
    assert tiny_models.same(
        weights.load(network.config, state, {}, "there")["embeddings"],
        network.params["embeddings"],
    )


@pytest.mark.parametrize("kind", ["bert", "modernbert", "deberta"])
@pytest.mark.parametrize("head", ["discriminator_head", "mlm_head"])
def test_heads_are_told_by_their_names_and_modernberts_by_their_class(kind, head):
    names = weights.export(tiny_models.network(kind, head, 32), head)
    classes = {"discriminator_head": "ModernBertForTokenClassification", "mlm_head": "ModernBertForMaskedLM"}
    assert weights.head_in(ARCHITECTURES[kind], names, classes[head]) == head
    other = weights.head_in(ARCHITECTURES[kind], names, "ModernBertForSequenceClassification")
    assert other == (None if (kind, head) == ("modernbert", "discriminator_head") else head)


def test_a_linear_head_of_deberta_is_told_by_its_class():
    names = weights.export(tiny_models.network("linear"), "discriminator_head")
    assert weights.head_in(Deberta(), names, "DebertaV2ForTokenClassification") == "discriminator_head"
    assert weights.head_in(Deberta(), names, "DebertaV2ForSequenceClassification") is None


def test_a_released_discriminator_of_deberta_is_told_by_its_own_head():
    """Beside it are the head that its generator began from, tables of positions, and the difference of its table."""
    network = tiny_models.network("deberta")
    state = weights.export(network, "discriminator_head")
    assert {name.split(".")[0] for name in state} == {"deberta", "mask_predictions"}
    more = ("lm_predictions.lm_head.bias", "deberta.embeddings.position_embeddings._weight")
    more += ("deberta.embeddings.position_embeddings.weight", "deberta.embeddings.word_embeddings._weight")
    state |= dict.fromkeys(more, np.zeros(1, np.float32))
    assert weights.head_in(Deberta(), Deberta().rename(state), "") == "discriminator_head"
    assert weights.unread(network.config, state) == ["lm_predictions.lm_head.bias"]


def test_a_released_generator_of_deberta_has_other_names():
    network = tiny_models.network("deberta", "mlm_head")
    state = weights.export(network, "mlm_head")
    released = {
        name.replace("cls.predictions.transform", "lm_predictions.lm_head").replace(
            "cls.predictions", "lm_predictions.lm_head"
        ): value
        for name, value in state.items()
    }
    assert {name for name in released if name.startswith("lm")} == {
        "lm_predictions.lm_head.bias",
        *(f"lm_predictions.lm_head.{part}.{kind}" for part in ("dense", "LayerNorm") for kind in ("weight", "bias")),
    }
    again = Deberta().rename(released)
    assert list(again) == list(state)
    assert weights.head_in(Deberta(), again, "") == "mlm_head"


def test_a_tensor_that_is_missing_or_of_another_shape_is_named():
    network = tiny_models.network()
    state = weights.export(network, "discriminator_head")
    name = "electra.encoder.layer.1.output.dense.weight"
    with pytest.raises(UserError, match=rf"there: {name} has shape \(32, 47\): expected \(32, 48\), from config\.json"):
        weights.load(network.config, {**state, name: state[name][:, 1:]}, {}, "there")
    del state[name]
    with pytest.raises(UserError, match=f"there lacks the tensor {name}"):
        weights.load(network.config, state, {}, "there")


def test_what_is_not_read_is_named():
    network = tiny_models.network()
    names = [*weights.export(network, "discriminator_head"), "classifier.weight", "electra.embeddings.position_ids"]
    assert weights.unread(network.config, names) == ["classifier.weight"]
