import dataclasses
from pathlib import Path

import jax.numpy as jnp
import pytest

from electra_jax import config as config_lib
from electra_jax.errors import UserError
from electra_jax.modeling import config as model_config

CONFIGS = Path(__file__).parents[2] / "configs"


def settings(**changes):
    model = config_lib.paper().model
    model.update(**changes)
    return model


@pytest.mark.parametrize(
    ("size", "layers", "discriminator", "generator"),
    [
        ("small", 12, (256, 1024, 4), (64, 256, 1)),
        ("base", 12, (768, 3072, 12), (256, 1024, 4)),
        ("large", 24, (1024, 4096, 16), (256, 1024, 4)),
    ],
)
def test_both_networks_have_the_papers_shapes(size, layers, discriminator, generator):
    config = config_lib.load(CONFIGS / f"{size}.py")
    model = model_config.from_settings(config.model, 30522)
    for network, shape in ((model.discriminator, discriminator), (model.generator, generator)):
        assert (network.width, network.ffn, network.heads) == shape
        assert (network.layers, network.head_size) == (layers, 64)


def test_networks_differ_in_their_shape_alone():
    model = model_config.from_settings(settings(), 30522)
    shape = {name: getattr(model.discriminator, name) for name in ("width", "ffn", "heads")}
    assert dataclasses.replace(model.generator, **shape) == model.discriminator


def test_generator_can_be_shallower():
    model = model_config.from_settings(settings(generator_layers=0.5), 30522)
    assert (model.generator.layers, model.discriminator.layers) == (6, 12)


def test_settings_reach_the_model():
    given = settings(encoder="modernbert", dtype="float32", dropout=0.3, init_stddev=0.5, unroll=True, max_length=99)
    given.modernbert.update(local_window=6, global_every=2)
    model = model_config.from_settings(given, 1000)
    network = model.discriminator
    assert (network.kind, network.dtype, network.dropout) == ("modernbert", jnp.float32, 0.3)
    assert (network.init_stddev, network.unroll, network.local_window, network.global_every) == (0.5, True, 6, 2)
    assert (model.vocab_size, model.embedding_size, model.max_length, model.absolute) == (1000, 128, 99, False)
    assert model_config.from_settings(settings(), 1000).absolute


@pytest.mark.parametrize(("vocab_size", "padded"), [(1, 128), (128, 128), (129, 256), (30522, 30592)])
def test_vocabulary_is_padded_to_whole_lanes(vocab_size, padded):
    assert model_config.from_settings(settings(), vocab_size).padded_vocab_size == padded


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"width": 250}, "discriminator"),  # 4 heads
        ({"heads": 0}, "discriminator"),
        ({"generator_layers": 0.01}, "generator"),
        ({"generator_width": 0.001}, "generator"),
        ({"generator_width": 0.51}, "generator"),  # 131 in 2 heads
        ({"encoder": "modernbert", "width": 12, "heads": 4, "generator_width": 1.0}, "discriminator"),  # heads of 3
        ({"encoder": "modernbert", "width": 256, "generator_width": 33 / 256}, "generator"),  # a head of 33
    ],
    ids=str,
)
def test_shapes_that_no_model_can_have_are_refused(changes, place):
    with pytest.raises(UserError, match=place):
        model_config.from_settings(settings(**changes), 30522)
