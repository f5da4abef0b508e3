"""Every system of the table as a run: it trains, evaluates, saves and goes on; what it logs is what it is."""

import functools
import io
import json
import math
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from cli_runs import ROOT, arrays, logged, make_objective, quiet, small_config

from electra_jax import evaluate, train, train_config
from electra_jax.commands import train as train_command
from electra_jax.config import config_file, errors
from electra_jax.config.errors import UserError
from electra_jax.data import pipeline, tokenizer
from electra_jax.data.batches import HeldoutBatch
from electra_jax.loading import run_checkpoint
from electra_jax.objectives import registry
from electra_jax.runtime.console import PlainConsole
from electra_jax.runtime.progress import ConsoleProgress
from electra_jax.step import batch_shapes

SIZES = ("tiny", "small", "base", "large")

# What a run logs of its losses, at its end, and whether it tells fakes.
LOGGED = {
    "electra": ({"mlm_loss", "disc_loss"}, True),
    "electra_15": ({"mlm_loss", "disc_loss"}, True),
    "electra_mlm": ({"mlm_loss", "disc_loss", "encoder_mlm_loss", "fill_loss"}, True),
    "replace_mlm": ({"mlm_loss", "encoder_mlm_loss"}, False),
    "all_tokens_mlm": ({"mlm_loss", "all_tokens_loss", "all_tokens_masked_loss"}, False),
    "mlm": ({"mlm_loss"}, False),
    "two_stage": ({"mlm_loss", "disc_loss"}, True),
    "adversarial": ({"mlm_loss", "disc_loss", "baseline_loss"}, True),
    "electric": ({"cloze_loss", "nce_loss"}, True),
    "frozen_generator": ({"mlm_loss", "disc_loss"}, True),
}


def test_every_system_is_tested():
    assert LOGGED.keys() == registry.SYSTEMS.keys()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, text_file, small_run):
    """A function: the config and the work directory of a finished run of a system; copy it to change it.

    It has three steps, of which the last is the second stage's; what its frozen generator was taken from is deleted.
    """

    @functools.cache
    def run(system):
        folder = tmp_path_factory.mktemp(system)
        settings = {"steps": 3, "log_every": 1, "checkpoint__every": 1, "checkpoint__keep_last": 3}
        config = small_config(text_file, arg=f"objective={system}", **settings)
        if system == "two_stage":
            config.objective.generator_steps = 2
        if system == "frozen_generator":
            config.generator_from = str(shutil.copytree(small_run, folder / "source"))
        train.train(config, folder / "run", quiet())
        shutil.rmtree(folder / "source", ignore_errors=True)
        return config, folder / "run"

    return run


@pytest.mark.parametrize("system", LOGGED)
def test_its_losses_are_logged_and_measured_on_held_out_text(system):
    objective, key = make_objective(small_config(arg=f"objective={system}"), 40), jax.random.key(0)
    stage, batch = objective.stages[-1], batch_shapes(2, 8, None)
    heldout = HeldoutBatch(batch, jax.ShapeDtypeStruct((2,), np.int32))
    params = jax.eval_shape(objective.model.init, key, batch)["params"]

    def loss(params, batch):
        return objective.loss(stage, params, objective.draw(key, batch, np.int32(0)))

    _, in_step = jax.eval_shape(loss, params, batch)
    held_out = jax.eval_shape(evaluate.make_eval_step(objective, stage), params, np.int32(0), heldout, key).whole
    losses, detects = LOGGED[system]
    assert losses - {"baseline_loss"} <= objective.system.losses.keys()
    for measured in (in_step, held_out):
        assert {name for name in measured if name.endswith("_loss")} == losses
    assert ("unigram_auc" in held_out) == detects


@pytest.mark.slow
@pytest.mark.parametrize("system", ["electra", "two_stage", "adversarial", "electric", "frozen_generator"])
def test_it_trains_evaluates_and_saves(system, trained, small_run):
    """Those whose parameters or stages differ; the others differ from `electra` and `mlm` in their losses."""
    workdir = small_run if system == "electra" else trained(system)[1]
    losses, detects = LOGGED[system]
    lines = logged(workdir)
    assert all(math.isfinite(lines[-1][f"heldout_{name}"]) for name in losses)
    assert ("heldout_unigram_auc" in lines[-1]) == detects
    assert lines[-1]["total_flops"] == pytest.approx(sum(line["flops"] for line in lines))
    assert lines[-1]["total_flops_paper"] == pytest.approx(sum(line["flops_paper"] for line in lines))
    assert lines[-1]["flops"] != lines[-1]["flops_paper"]
    assert run_checkpoint.load_run_checkpoint(workdir).objective.settings.name == system


@pytest.mark.slow
def test_a_frozen_generator_keeps_the_bits_of_the_run_it_is_from(trained, small_run):
    theirs, ours = arrays(small_run, 2), arrays(trained("frozen_generator")[1], 3)
    for name, value in theirs.items():
        if name.startswith((".params.generator.", ".params.generator_head.")) and not name.endswith(".bias"):
            np.testing.assert_array_equal(value, ours[name], err_msg=name)
    size = len(tokenizer.load_from_folder(small_run))  # what is beyond is padding
    np.testing.assert_array_equal(
        theirs[".params.embeddings.word"][:size], ours[".params.generator_embeddings.word"][:size]
    )
    assert np.any(theirs[".params.encoder.final_norm.scale"] != ours[".params.encoder.final_norm.scale"])


@pytest.mark.slow
def test_it_goes_on_where_the_run_its_generator_is_from_was_deleted(tmp_path, trained):
    config, workdir = trained("frozen_generator")
    assert not Path(config.generator_from).exists()
    longer = config.copy_and_resolve_references()
    longer.steps = 4
    assert train.train(longer, shutil.copytree(workdir, tmp_path / "run"), quiet()).finished


@pytest.mark.parametrize(
    ("source", "message"),
    [("", "objective=frozen_generator needs a pre-trained generator"), ("runs/nowhere", "has no model")],
)
def test_a_generator_from_nowhere_is_refused_before_anything_is_written(tmp_path, text_file, source, message):
    config = small_config(text_file, arg="objective=frozen_generator", generator_from=source)
    with pytest.raises(UserError, match=message):
        train.train(config, tmp_path / "run", quiet())
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_generator_from_another_vocabulary_is_refused(tmp_path, text_file, small_run):
    """One that this run was not given: by itself it would take its generator's."""
    train_own = small_config(text_file, steps=1, data__vocab_size=39)
    own = pipeline.find_or_prepare(tmp_path / "text", train_config.as_dataclass(train_own).data)
    tokenizer.save(own.tokenizer, tmp_path)
    config = small_config(text_file, arg="objective=frozen_generator", steps=3)
    config.data.vocabulary = str(tmp_path / "vocab.model")
    config.generator_from = str(small_run)
    with pytest.raises(UserError, match="has a different vocabulary"):
        train.train(config, tmp_path / "run", quiet())


@pytest.mark.slow
def test_a_two_stage_run_goes_on_over_the_switch_with_the_same_bits(tmp_path, trained):
    """Taken up again from a checkpoint of its first stage, against the run that was never stopped."""
    config, workdir = trained("two_stage")
    again = shutil.copytree(workdir, tmp_path / "run")
    for step in (2, 3):
        shutil.rmtree(again / "checkpoints" / str(step))
    out = io.StringIO()
    train.train(config, again, ConsoleProgress(PlainConsole(file=out)))
    assert "resuming from step 1" in out.getvalue()
    for step in (2, 3):
        whole, ours = arrays(workdir, step), arrays(again, step)
        assert whole.keys() == ours.keys()
        for name, value in whole.items():
            np.testing.assert_array_equal(value, ours[name], err_msg=name)


def test_what_is_no_run_cannot_be_loaded(tmp_path):
    with pytest.raises(UserError, match=r"has no config\.json: expected the work directory of a run"):
        run_checkpoint.load_run_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(small_config().to_json_best_effort())
    with pytest.raises(UserError, match="has no checkpoint yet"):
        run_checkpoint.load_run_checkpoint(tmp_path)


def test_a_run_of_another_version_cannot_be_loaded(tmp_path, small_run):
    workdir = shutil.copytree(small_run, tmp_path / "run")
    of_now = json.loads((workdir / "config.json").read_text())
    for model in ({**of_now["model"], "of_later": 1}, {**of_now["model"], "layers": "two"}):
        (workdir / "config.json").write_text(json.dumps({**of_now, "model": model}))
        with pytest.raises(UserError, match=r"this version of electra_jax cannot use \(config\.model\."):
            run_checkpoint.load_run_checkpoint(workdir)


@pytest.mark.parametrize("system", registry.SYSTEMS)
@pytest.mark.parametrize("size", SIZES)
def test_every_size_has_every_system(size, system):
    config = config_file.load(ROOT / "configs" / f"{size}.py", f"objective={system}")
    train_config.resolve(config)
    objective = make_objective(config, 1000)
    assert sum(stage.steps for stage in objective.stages) == config.steps
    if size == "small":  # the names of parameters do not depend on the size
        params = jax.eval_shape(objective.model.init, jax.random.key(0), batch_shapes(1, 8, None))["params"]
        assert all(set(stage.trainable or ()) <= params.keys() for stage in objective.stages)


def test_help_lists_the_systems(capsys):
    assert errors.run(train_command.main, ["--help"]) == 0
    shown = capsys.readouterr().out
    for name, row in registry.SYSTEMS.items():
        assert re.search(rf"^ *{name} +{re.escape(row.summary)}\n +\({re.escape(row.paper)}\)$", shown, re.MULTILINE)
