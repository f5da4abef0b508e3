import dataclasses
import functools

import jax
import numpy as np
import pytest
import tiny_models

from electra_jax.modeling import electra, subnetwork


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def read(model, params, network: str, head: str):
    """States of a network and what its head makes of them, over the vocabulary."""
    batch = tiny_models.batch()
    states = (electra.encode if network == "encoder" else electra.generator_states)(model, params, batch)
    read_states = {
        "mlm_head": electra.mlm_logits,
        "generator_head": electra.generator_logits,
        "discriminator_head": electra.discriminator_logits,
    }[head]
    outputs = read_states(model, params, states, *([batch.sequence_ids] if head == "discriminator_head" else []))
    return states, outputs if head == "discriminator_head" else outputs[..., : tiny_models.VOCABULARY]


@pytest.mark.parametrize("tying", ["none", "embeddings", "all", "gdes"])
@pytest.mark.parametrize("network", ["encoder", "generator"])
def test_a_network_alone_says_what_it_says_in_its_system(tying, network):
    o = tiny_models.system("electra", tying, model__layers=1)
    params = tiny_models.parameters(o)
    found = subnetwork.extract(o.model.config, params, network)
    inside, outside = ("discriminator_head",) * 2 if network == "encoder" else ("generator_head", "mlm_head")
    expected = read(o.model, params, network, inside)
    for ours, theirs in zip(read(found.model, found.params, "encoder", outside), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert subnetwork.network_config(o.model.config, network) == found.config


@pytest.mark.parametrize("encoder", ["bert", "modernbert", "deberta"])
def test_the_config_of_a_network_alone_has_its_parameters(encoder):
    o = tiny_models.system("electra", "gdes", model__encoder=encoder)
    for network in ("encoder", "generator"):
        found = subnetwork.extract(o.model.config, tiny_models.parameters(o), network)
        shapes = subnetwork.param_shapes(found.config)
        assert jax.tree.map(lambda x: x.shape, shapes) == jax.tree.map(lambda x: x.shape, found.params)


def test_a_network_alone_reads_as_far_as_its_system_was_trained():
    config = dataclasses.replace(tiny_models.system("electra").model.config, trained_length=8)
    assert [subnetwork.network_config(config, network).longest for network in ("encoder", "generator")] == [8, 8]


def test_heads_go_with_the_network_that_they_read():
    o = tiny_models.system("all_tokens_mlm")
    params = tiny_models.parameters(o)
    assert subnetwork.extract(o.model.config, params, "encoder").config.heads == ("mlm_head", "copy_gate")
    o = tiny_models.system("adversarial")
    encoder = subnetwork.extract(o.model.config, tiny_models.parameters(o), "encoder")
    assert set(encoder.params) == {"embeddings", "encoder", "discriminator_head"}  # the baseline is the generator's


@pytest.mark.parametrize("system", [("mlm",), ("electra", "", "unigram"), ("electric",)], ids=str)
def test_without_a_generator_of_one_tower_there_is_none(system):
    o = tiny_models.system(*system)
    assert subnetwork.extract(o.model.config, tiny_models.parameters(o), "generator") is None
