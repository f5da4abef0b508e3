import dataclasses
from pathlib import Path

import jax.numpy as jnp
import pytest
import tiny_models

from electra_jax import train_config
from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.modeling.config import ElectraConfig
from electra_jax.modeling.deberta import DebertaSettings
from electra_jax.modeling.modernbert import ModernBert, ModernBertSettings

CONFIGS = Path(__file__).parents[2] / "configs"
HEADS = ("discriminator_head",)


def settings(**changes):
    model = train_config.paper().model
    model.update(**changes)
    return model


def make(vocab_size: int = 30522, two_towers: bool = False, **changes) -> ElectraConfig:
    return tiny_models.shape(settings(**changes), vocab_size, HEADS, two_towers=two_towers)


@pytest.mark.parametrize(
    ("size", "layers", "encoder", "generator"),
    [
        ("small", 12, (256, 1024, 4), (64, 256, 1)),
        ("base", 12, (768, 3072, 12), (256, 1024, 4)),
        ("large", 24, (1024, 4096, 16), (256, 1024, 4)),
    ],
)
def test_both_networks_have_the_papers_shapes(size, layers, encoder, generator):
    config = config_file.load(CONFIGS / f"{size}.py")
    model = tiny_models.shape(config.model, 30522, HEADS)
    for network, shape in ((model.encoder, encoder), (model.generator, generator)):
        assert (network.width, network.ffn, network.heads) == shape
        assert (network.layers, network.head_size) == (layers, 64)


def test_networks_differ_in_their_shape_alone():
    model = make()
    shape = {name: getattr(model.encoder, name) for name in ("width", "ffn", "heads")}
    assert dataclasses.replace(model.generator, **shape) == model.encoder


def test_generator_can_be_shallower():
    model = make(generator_layers=0.5)
    assert (model.generator.layers, model.encoder.layers) == (6, 12)


def test_a_generator_of_the_encoders_size_is_the_same_network_whatever_its_heads():
    model = make(generator_width=1.0, generator_layers=1.0, heads=8)  # of size 32
    assert model.generator == model.encoder
    assert make(generator_width=1.0, generator_layers=0.5, heads=8).generator.heads == 8
    assert make(generator_width=0.5, heads=8).generator.heads == 2  # of size 64


def test_settings_reach_the_model():
    given = settings(encoder="modernbert", dtype="float32", dropout=0.3, init_stddev=0.5, max_length=99)
    given.modernbert.update(local_window=6, global_every=2, activation="relu2", zero_outputs=True)
    given.tying = "none"
    model = tiny_models.shape(given, 1000, ("mlm_head", "copy_gate"), two_towers=True)
    for network in (model.encoder, model.generator):
        assert (network.architecture, network.dtype, network.dropout) == (ModernBert(), jnp.float32, 0.3)
        assert (network.init_stddev, network.own) == (0.5, ModernBertSettings(6, 2, "relu2", zero_outputs=True))
    assert (model.vocab_size, model.embedding_size, model.max_length, model.absolute) == (1000, 128, 99, False)
    assert (model.heads, model.two_towers, model.tying) == (("mlm_head", "copy_gate"), True, "none")
    assert make().absolute
    assert not make().two_towers
    assert make().tying == "embeddings"


@pytest.mark.parametrize(
    ("changes", "rate"), [({}, 0.1), ({"attention_dropout": 0.0}, 0), ({"attention_dropout": 0.2}, 0.2)]
)
def test_attention_weights_may_have_a_dropout_of_their_own(changes, rate):
    model = make(dropout=0.1, **changes)
    for network in (model.encoder, model.generator):
        assert (network.dropout, network.attention_rate) == (0.1, rate)


def test_modernbert_has_no_dropout_of_attention_weights():
    for rate in (-1.0, 0.0):
        assert make(encoder="modernbert", dropout=0.1, attention_dropout=rate).encoder.attention_rate == 0
    with pytest.raises(
        UserError, match=r"attention_dropout=0\.1 is invalid with encoder=modernbert, .*: expected -1 or 0"
    ):
        make(encoder="modernbert", attention_dropout=0.1)


def test_settings_of_deberta_reach_both_networks():
    given = settings(encoder="deberta", max_length=99)
    given.deberta.update(position_buckets=6, max_relative_positions=70, discriminator_head="linear")
    model = tiny_models.shape(given, 1000, ("discriminator_head",))
    for network in (model.encoder, model.generator):
        assert network.own == DebertaSettings(6, 70, "linear")
    assert not model.absolute
    assert make().encoder.own is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "fused"}, r"attention=fused is invalid with encoder=deberta.*: expected auto or plain"),
        (
            {"deberta": {"max_relative_positions": 129}},
            r"deberta\.max_relative_positions=129 .*position_buckets=256.*: expected 130 or more",
        ),
    ],
)
def test_what_deberta_cannot_compute_is_refused(changes, message):
    given = settings(encoder="deberta")
    given.deberta.update(changes.pop("deberta", {}))
    given.update(changes)
    with pytest.raises(UserError, match=message):
        tiny_models.shape(given, 1000, ("discriminator_head",))


def test_an_objective_without_a_generator_has_the_encoder_only():
    model = tiny_models.shape(settings(), 1000, ("mlm_head",), has_generator=False)
    assert model.generator is None
    assert model.encoder == make().encoder
    assert (model.vocab_size, model.embedding_size, model.max_length) == (1000, 128, 512)
    assert model.heads == ("mlm_head",)


@pytest.mark.parametrize(
    ("vocab_size", "padded"), [(1, 128), (128, 128), (129, 256), (8191, 8192), (8193, 9216), (30522, 30720)]
)
def test_vocabulary_is_padded_to_whole_lanes(vocab_size, padded):
    assert make(vocab_size).padded_vocab_size == padded


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"width": 250}, "encoder"),  # 4 heads
        ({"heads": 0}, "encoder"),
        ({"heads": 0, "generator_width": 1.0}, "encoder"),
        ({"generator_layers": 0.01}, "generator"),
        ({"generator_width": 0.001}, "generator"),
        ({"generator_width": 0.51}, "generator"),  # 131 in 2 heads
        ({"encoder": "modernbert", "width": 12, "heads": 4, "generator_width": 1.0}, "encoder"),  # heads of 3
        ({"encoder": "modernbert", "width": 256, "generator_width": 33 / 256}, "generator"),  # a head of 33
    ],
    ids=str,
)
def test_shapes_that_no_model_can_have_are_refused(changes, place):
    with pytest.raises(UserError, match=f"gives the {place}"):
        make(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"generator_width": 0.25, "generator_layers": 1.0},
        {"generator_width": 1.0, "generator_layers": 0.5},
    ],
    ids=str,
)
def test_networks_of_unequal_size_cannot_be_one(changes):
    with pytest.raises(UserError, match=r"tying=all.*expected generator_width=1 and generator_layers=1"):
        make(tying="all", **changes)


def test_two_towers_cannot_be_one_network_with_the_encoder():
    equal = {"generator_width": 1.0, "generator_layers": 1.0}
    with pytest.raises(UserError, match=r"tying=all.*two-tower"):
        make(tying="all", two_towers=True, **equal)
    assert make(tying="all", **equal).tying == "all"


OTHER_VALUES = {
    "encoder": "modernbert",
    "layers": 2,
    "width": 512,
    "ffn": 32,
    "heads": 2,
    "embedding_size": 16,
    "max_length": 99,
    "generator_width": 0.5,
    "generator_layers": 0.5,
    "tying": "none",
    "init_stddev": 0.5,
    "dropout": 0.5,
    "attention_dropout": 0.0,
    "dtype": "float32",
    "remat": "full",
    "attention": "plain",
    "modernbert.local_window": 2,
    "modernbert.global_every": 1,
    "modernbert.activation": "relu2",
    "modernbert.zero_outputs": True,
    "deberta.position_buckets": 6,
    "deberta.max_relative_positions": 299,
    "deberta.discriminator_head": "linear",
}


def test_no_setting_is_ignored():
    """What networks make of their config: the other tests here, against definitions that have other values."""
    names = {f"{part}.{name}" for part in ("modernbert", "deberta") for name in settings()[part]}
    assert OTHER_VALUES.keys() == names | set(settings()) - {"modernbert", "deberta", "unroll"}  # see test_step.py
    for name, value in OTHER_VALUES.items():
        encoder = name.partition(".")[0] if "." in name else "bert"
        given, changed = settings(encoder=encoder), settings(encoder=encoder)
        changed.update_from_flattened_dict({name: value})
        assert tiny_models.shape(changed, 1000, HEADS) != tiny_models.shape(given, 1000, HEADS), name
