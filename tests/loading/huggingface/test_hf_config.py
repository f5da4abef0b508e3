import dataclasses
import json

import pytest
import tiny_models

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import OWN
from electra_jax.loading.huggingface import hf_config
from electra_jax.modeling.deberta import DebertaSettings
from electra_jax.modeling.modernbert import ModernBertSettings

MODELS = [
    (kind, head)
    for kind in ("bert", "modernbert", "deberta", "linear")
    for head in ("discriminator_head", "mlm_head", None)
]


def written(kind="bert", head="discriminator_head", **changes):
    config = tiny_models.network(kind, head, 32 if kind == "modernbert" else 16).config
    return config, {**json.loads(json.dumps(hf_config.write(config, head, OWN))), **changes}


@pytest.mark.parametrize(("kind", "head"), MODELS)
def test_a_config_comes_back_as_it_went(kind, head):
    config, described = written(kind, head)
    again = hf_config.read(described, head, "there")
    assert again == config


def test_modernberts_activation_comes_back():
    config, described = written("modernbert")
    assert described["hidden_activation"] == "gelu"
    relu2 = dataclasses.replace(
        config, encoder=dataclasses.replace(config.encoder, own=ModernBertSettings(activation="relu2"))
    )
    described = hf_config.write(relu2, None, OWN)
    assert described["hidden_activation"] == "relu2"
    assert hf_config.read(described, None, "there").encoder.own.activation == "relu2"
    del described["hidden_activation"]
    assert hf_config.read(described, None, "there").encoder.own.activation == "gelu"


def test_a_server_that_wants_every_setting_of_modernbert_finds_it():
    """The fields of text-embeddings-inference's struct without a default, as read on 2026-11-27.

    And `layer_norm_eps`, which llama.cpp's converter (llama-cpp-python 0.3.36) reads instead of `norm_eps`.
    """
    numbers = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads max_position_embeddings"
    numbers += " initializer_range initializer_cutoff_factor norm_eps layer_norm_eps attention_dropout local_attention"
    numbers += " global_attn_every_n_layers global_rope_theta local_rope_theta"
    numbers += " pad_token_id bos_token_id eos_token_id cls_token_id sep_token_id"
    described = written("modernbert", None)[1]
    assert all(isinstance(described[name], int | float) for name in numbers.split())
    assert all(described[name] is False for name in ("norm_bias", "attention_bias"))
    assert described["hidden_activation"] == described["classifier_activation"] == "gelu"


def test_dropout_of_attention_weights_has_its_own_name():
    config, _ = written()
    own = dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, attention_dropout=0.0))
    described = hf_config.write(own, "discriminator_head", OWN)
    assert (described["hidden_dropout_prob"], described["attention_probs_dropout_prob"]) == (0.1, 0.0)
    assert hf_config.read(described, "discriminator_head", "there").encoder.attention_dropout == 0
    assert written()[1]["attention_probs_dropout_prob"] == 0.1
    assert written("modernbert")[1]["attention_dropout"] == 0
    assert hf_config.read(written("modernbert")[1], None, "there").encoder.attention_rate == 0


def test_classes_and_labels_are_those_of_transformers():
    classes = {written(kind, head)[1]["architectures"][0] for kind, head in MODELS}
    assert classes == {
        *("ElectraForPreTraining", "ElectraForMaskedLM", "ElectraModel"),
        *("ModernBertForTokenClassification", "ModernBertForMaskedLM", "ModernBertModel"),
        *("DebertaV2ForTokenClassification", "DebertaV2ForMaskedLM", "DebertaV2Model"),
    }
    for kind in ("modernbert", "linear"):
        assert written(kind)[1]["id2label"] == {"0": "original", "1": "replaced"}
    assert "id2label" not in written("deberta")[1]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("bert", {"hidden_act": "relu"}),
        ("bert", {"layer_norm_eps": 1e-5}),
        ("bert", {"type_vocab_size": 1}),
        ("bert", {"position_embedding_type": "relative_key"}),
        ("bert", {"is_decoder": True}),
        ("deberta", {"position_biased_input": True}),
        ("deberta", {"conv_kernel_size": 3}),
        ("deberta", {"pos_att_type": "c2p"}),
        ("deberta", {"pos_att_type": ["c2p", "p2c", "p2p"]}),
        ("deberta", {"share_att_key": False}),
        ("deberta", {"norm_rel_ebd": "none"}),
        ("deberta", {"relative_attention": False}),
        ("deberta", {"type_vocab_size": 2}),
        ("deberta", {"layer_norm_eps": 1e-12}),
        ("deberta", {"attention_head_size": 8}),
        ("modernbert", {"norm_bias": True}),
        ("modernbert", {"attention_bias": True}),
        ("modernbert", {"hidden_activation": "silu"}),
        ("modernbert", {"hidden_activation": ["gelu"]}),
        ("modernbert", {"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}),
        ("modernbert", {"rope_parameters": None, "local_rope_theta": 160_000.0}),
    ],
    ids=str,
)
def test_what_is_computed_otherwise_is_refused(kind, change):
    with pytest.raises(UserError, match=r"there has .*: expected .*; electra_jax has no other architecture"):
        hf_config.read(written(kind, **change)[1], None, "there")


@pytest.mark.parametrize(
    ("setting", "value", "heads"),
    [
        ("decoder_bias", False, ["mlm_head"]),
        ("classifier_bias", True, ["mlm_head", "discriminator_head"]),
        ("classifier_activation", "silu", ["mlm_head", "discriminator_head"]),
    ],
)
def test_a_setting_of_a_head_matters_where_that_is_read(setting, value, heads):
    described = written("modernbert", **{setting: value})[1]
    for head in (None, "mlm_head", "discriminator_head"):
        if head in heads:
            with pytest.raises(UserError, match=f"there has {setting}=.*: expected .*"):
                hf_config.read(described, head, "there")
        else:
            hf_config.read(described, head, "there")


@pytest.mark.parametrize("name", ["position_biased_input", "pos_att_type", "share_att_key", "norm_rel_ebd"])
def test_what_a_file_of_deberta_does_not_name_is_as_in_transformers(name):
    described = written("deberta")[1]
    del described[name]
    with pytest.raises(UserError, match=f"there has {name}=.*: expected .*; electra_jax has no other architecture"):
        hf_config.read(described, None, "there")


def test_settings_of_deberta_as_the_released_files_write_them():
    """microsoft/deberta-v3-base, config.json."""
    described = written("deberta", pos_att_type="p2c|c2p", max_relative_positions=-1, norm_rel_ebd="layer_norm")[1]
    described |= {"max_position_embeddings": 512, "position_buckets": 256, "attention_head_size": 16}
    del described["embedding_size"], described["conv_kernel_size"], described["architectures"]
    config = hf_config.read(described, "discriminator_head", "there")
    encoder = config.encoder
    assert encoder.own == DebertaSettings(256, 512, "released")
    assert (config.max_length, config.embedding_size) == (512, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position_buckets": -1}, "position_buckets=-1: expected an integer of 2 or more"),
        ({"max_relative_positions": 3}, "max_relative_positions=3: expected an integer of 4 or more"),
        (
            {"max_relative_positions": -1, "max_position_embeddings": 3},
            "max_position_embeddings=3: expected an integer",
        ),
        ({"max_relative_positions": "8"}, "max_relative_positions='8': expected an integer of 4 or more"),
    ],
)
def test_positions_of_deberta_that_have_no_buckets_are_refused(change, message):
    with pytest.raises(UserError, match=f"there has {message}"):
        hf_config.read(written("deberta", **change)[1], None, "there")


@pytest.mark.parametrize("kind", [None, "roberta", "deberta"])
def test_a_model_of_another_type_is_refused(kind):
    with pytest.raises(UserError, match=f"there has model_type={kind!r}: expected electra or modernbert"):
        hf_config.read(written(model_type=kind)[1], None, "there")


def test_a_config_that_does_not_say_is_refused():
    described = written()[1]
    del described["hidden_size"]
    with pytest.raises(UserError, match="there has hidden_size=None: expected an integer of 1 or more"):
        hf_config.read(described, None, "there")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"layer_types": None, "global_attn_every_n_layers": 3}, 3),
        ({"layer_types": None, "global_attn_every_n_layers": 2}, 2),
        ({"layer_types": ["full_attention"] * 3}, 1),
        ({"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}, 3),
    ],
    ids=str,
)
def test_which_layers_are_global_is_read_in_both_ways(changes, expected):
    assert hf_config.read(written("modernbert", **changes)[1], None, "there").encoder.own.global_every == expected


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("bert", {"num_hidden_layers": "2"}),
        ("bert", {"num_hidden_layers": 2.0}),
        ("bert", {"num_hidden_layers": 0}),
        ("bert", {"num_attention_heads": 0}),
        ("bert", {"vocab_size": -1}),
        ("bert", {"max_position_embeddings": [512]}),
        ("bert", {"intermediate_size": True}),
        ("bert", {"hidden_dropout_prob": "x"}),
        ("bert", {"embedding_size": None}),
        ("modernbert", {"local_attention": "8"}),
    ],
    ids=str,
)
def test_sizes_that_are_none_are_refused(kind, change):
    with pytest.raises(UserError, match=rf"there has {next(iter(change))}=.*: expected an? "):
        hf_config.read(written(kind, **change)[1], None, "there")


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
@pytest.mark.parametrize("name", ["num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize("size", [10**18, 10**400])
def test_sizes_that_no_model_has_are_refused_at_once(kind, name, size):
    with pytest.raises(UserError, match=rf"there has {name}=10{{17,19}}: expected at most 1"):
        hf_config.read(written(kind, **{name: size})[1], None, "there")


@pytest.mark.parametrize(("kind", "heads"), [("bert", 3), ("modernbert", 32)])
def test_heads_that_do_not_divide_the_width_are_refused(kind, heads):
    with pytest.raises(
        UserError, match=f"hidden_size=32 and num_attention_heads={heads}: expected heads that divide it"
    ):
        hf_config.read(written(kind, num_attention_heads=heads)[1], None, "there")


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 160_000.0}}},
        {"rope_parameters": ["full_attention"]},
        {"rope_parameters": {"full_attention": "default"}},
        {"rope_scaling": {"type": "linear", "factor": 2}},
    ],
    ids=str,
)
def test_scaled_positions_are_refused(change):
    with pytest.raises(UserError, match="there scales its rotary positions"):
        hf_config.read(written("modernbert", **change)[1], None, "there")


@pytest.mark.parametrize(
    "change",
    [
        {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        {"layer_types": ["full_attention", "full_attention", "sliding_attention"]},
        {"layer_types": ["full_attention"]},
        {"layer_types": 3},
        {"layer_types": None, "global_attn_every_n_layers": 0},
    ],
    ids=str,
)
def test_layers_of_another_pattern_are_refused(change):
    with pytest.raises(UserError, match="expected full_attention in the first of 3 layers"):
        hf_config.read(written("modernbert", **change)[1], None, "there")


def test_tying_is_of_no_concern_where_nothing_is_predicted():
    described = written(tie_word_embeddings=False)[1]
    assert hf_config.read(described, "discriminator_head", "there")
    with pytest.raises(UserError, match="tie_word_embeddings=False"):
        hf_config.read(described, "mlm_head", "there")
