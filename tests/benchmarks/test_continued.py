"""The runs of benchmarks/continued.py, not trained, and its table."""

import json
from types import SimpleNamespace

import continued
import ladder
import ladder_jobs
import pytest

from electra_jax import train_config
from electra_jax.config.errors import UserError


@pytest.mark.parametrize("recipe", continued.RECIPES)
def test_every_recipe_is_a_run_that_starts_from_the_discriminator(recipe, tmp_path):
    config = train_config.resolve(continued.Trial(tmp_path, "text", tmp_path).config(recipe, 1000))
    assert config.init_from == f"{tmp_path}/exported/discriminator"
    assert (config.steps, config.model.encoder, config.model.tying) == (1000, "deberta", "gdes")
    assert config.objective.generator_steps == (100 if "generator first" in recipe else 0)
    assert config.init.generator == ("spread" if "encoder's layers" in recipe else "random")
    assert bool(config.generator_from) == (recipe == "its own generator")


def test_a_first_run_that_was_stopped_is_not_exported(tmp_path, monkeypatch):
    stopped = SimpleNamespace(metrics=[{"step": 1}])
    monkeypatch.setattr(ladder_jobs.electra_jax, "pretrain", lambda config, run, progress: stopped)
    monkeypatch.setattr(ladder_jobs.electra_jax, "export", lambda *paths: pytest.fail("it was exported"))
    with pytest.raises(UserError, match="first was stopped at step 1 of"):
        continued.Trial(tmp_path, "text", tmp_path).train_first(2e13)


def test_results_after_other_steps_are_kept_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(ladder, "prepare", lambda source, folders: None)
    monkeypatch.setattr(continued.Trial, "train_first", lambda trial, flops: None)
    found = {"before": {"0": {}}, "random generator": {step: {} for step in ("100", "300", "1000")}}
    (tmp_path / "continued.json").write_text(json.dumps(found))
    command = ["--input=text", f"--output={tmp_path}"]
    with pytest.raises(UserError, match="has other --steps than 500: use these, or another --output"):
        continued.main([*command, "--steps=500"])
    with pytest.raises(UserError, match="--steps=1005 is invalid: expected a multiple of 10"):
        continued.main([*command, "--steps=1005"])


def test_the_table_has_a_line_for_each_recipe():
    numbers = {"disc_loss": 0.25, "disc_auc": 0.8, "word_order": 70.5}
    later = {"100": {**numbers, "disc_loss": 0.3}, "1000": {**numbers, "word_order": 60.0}}
    assert continued.table({"before": {"0": numbers}, "random generator": later}).splitlines()[2:] == [
        "| random generator | 0.250 | 0.300 | 0.250 | 70.5 | 70.5 | 60.0 |",
    ]
