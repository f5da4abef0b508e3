"""The runs of benchmarks/continued.py, not trained, and its table."""

import continued
import pytest

from electra_jax import train_config


@pytest.mark.parametrize("recipe", continued.RECIPES)
def test_every_recipe_is_a_run_that_starts_from_the_discriminator(recipe, tmp_path):
    config = train_config.resolve(continued.Trial(tmp_path, "text", tmp_path).config(recipe, 1000))
    assert config.init_from == f"{tmp_path}/exported/discriminator"
    assert (config.steps, config.model.encoder, config.model.tying) == (1000, "deberta", "gdes")
    assert config.objective.generator_steps == (100 if "generator first" in recipe else 0)
    assert config.init.generator == ("spread" if "encoder's layers" in recipe else "random")
    assert bool(config.generator_from) == (recipe == "its own generator")


def test_the_table_has_a_line_for_each_recipe():
    numbers = {"disc_loss": 0.25, "disc_auc": 0.8, "word_order": 70.5}
    later = {"100": {**numbers, "disc_loss": 0.3}, "1000": {**numbers, "word_order": 60.0}}
    assert continued.table({"before": {"0": numbers}, "random generator": later}).splitlines()[2:] == [
        "| random generator | 0.250 | 0.300 | 0.250 | 70.5 | 70.5 | 60.0 |",
    ]
