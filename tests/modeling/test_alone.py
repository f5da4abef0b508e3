import jax
import networks
import numpy as np
import pytest

from electra_jax.modeling import alone, electra


def read(model, params, network: str, head: str):
    """States of a network and what its head makes of them, over the vocabulary."""
    batch = networks.batch()
    states = electra.read(model, params, network, batch, batch["input_ids"])
    if head in ("mlm_head", "generator_head"):
        return states, electra.predict(model, params, network, states)[..., : networks.VOCABULARY]
    return states, electra.score(model, params, head, states)


@pytest.mark.parametrize("encoder", ["bert", "modernbert"])
@pytest.mark.parametrize("tying", ["none", "embeddings", "all", "gdes"])
@pytest.mark.parametrize("network", ["encoder", "generator"])
def test_a_network_alone_says_what_it_says_in_its_system(encoder, tying, network):
    o = networks.system("electra", tying, model__encoder=encoder)
    params = networks.parameters(o)
    found = alone.alone(o.model.config, params, network)
    inside, outside = ("discriminator_head",) * 2 if network == "encoder" else ("generator_head", "mlm_head")
    expected = read(o.model, params, network, inside)
    for ours, theirs in zip(read(found.model, found.params, "encoder", outside), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    shapes = alone.shapes(found.config)
    assert jax.tree.map(lambda x: x.shape, shapes) == jax.tree.map(lambda x: x.shape, found.params)
    assert alone.config_of(o.model.config, network) == found.config


def test_heads_go_with_the_network_that_they_read():
    o = networks.system("all_tokens_mlm")
    params = networks.parameters(o)
    assert alone.alone(o.model.config, params, "encoder").config.heads == ("mlm_head", "copy_gate")
    o = networks.system("adversarial")
    encoder = alone.alone(o.model.config, networks.parameters(o), "encoder")
    assert set(encoder.params) == {"embeddings", "encoder", "discriminator_head"}  # the baseline is the generator's


@pytest.mark.parametrize("system", [("mlm",), ("electra", "", "unigram"), ("electric",)], ids=str)
def test_without_a_generator_of_one_tower_there_is_none(system):
    o = networks.system(*system)
    assert alone.alone(o.model.config, networks.parameters(o), "generator") is None
