"""The examples in the docstrings of the front door and its Model."""

import doctest

import tiny_models
from cli_runs import small_config

from electra_jax import models
from electra_jax.data import vocabulary_training
from electra_jax.loading import model as model_module
from electra_jax.loading.huggingface.directory import Pretrained
from electra_jax.loading.model import Model


def test_examples_run():
    lines = ["the model reads a line of text and says which word was replaced"] * 20
    pieces = vocabulary_training.train(lines, small_config(data__vocab_size=28).data)
    networks = Pretrained(tiny_models.network(), tiny_models.network(head="mlm_head"), pieces)
    for module, attempted in ((model_module, 10), (models, 1)):
        model = Model("runs/tiny", networks, pieces)
        result = doctest.testmod(module, extraglobs={"model": model})
        assert result.failed == 0
        assert result.attempted >= attempted
