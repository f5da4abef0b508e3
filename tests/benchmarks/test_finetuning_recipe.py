import json

import finetuning_recipe
import pytest
from cli_runs import sst2_files

from electra_jax.config import errors
from electra_jax.config.settings import differences
from electra_jax.downstream.finetuning.recipe import to_dict
from electra_jax.loading.networks import Source


def test_a_choice_is_scored_on_the_half_that_did_not_make_it():
    scores = {"low": (60.0, 50.0), "high": (70.0, 54.0), "last": (64.0, 58.0)}
    assert finetuning_recipe.cross_chosen(scores) == (("high", "last"), (54.0 + 64.0) / 2)


def result(even, odd):
    """A job's result with three seeds, whose median is in the middle."""
    halves = {str(seed): [even + seed, odd + seed] for seed in (-1, 0, 1)}
    return {"metric": "accuracy", "scores": {seed: sum(each) / 2 for seed, each in halves.items()}, "halves": halves}


def test_the_report_has_settings_that_were_tried_on_all_tasks(monkeypatch):
    monkeypatch.setattr(finetuning_recipe, "TASKS", {"cola": "CoLA", "rte": "RTE"})
    done = {
        "base/cola": result(10, 12),
        "base/rte": result(50, 54),
        "6 epochs/cola": result(16, 14),
        "6 epochs/rte": result(60, 44),
        "no dropout/cola": result(90, 90),
    }
    assert finetuning_recipe.report(done).splitlines() == [
        "| | CoLA | RTE | average |",
        "|---|---|---|---|",
        "| base | 11.0 | 52.0 | 31.5 |",
        "| 6 epochs | 15.0 | 52.0 | 33.5 |",
        "",
        "Chosen on one half, scored on the other:",
        "",
        "- CoLA: 6 epochs, 15.0 (base: 11.0)",
        "- RTE: 6 epochs or base, 47.0 (base: 52.0)",  # 44 on the odd half, 50 on the even one
        "- average, each task with its own: 31.0",
        "- average, all tasks with one: 6 epochs or base, 29.5 (base: 31.5)",
    ]


def test_the_report_is_written_to_a_new_folder(tmp_path, capsys):
    results = tmp_path / "results.jsonl"
    jobs = [{"job": f"base/{task}", **result(50, 54)} for task in finetuning_recipe.TASKS]
    results.write_text("".join(json.dumps(job) + "\n" for job in jobs))
    assert errors.run(finetuning_recipe.main, [f"--draw={tmp_path / 'new'}", f"--results={results}"]) == 0
    assert (tmp_path / "new" / finetuning_recipe.TABLE).read_text() == capsys.readouterr().out


@pytest.mark.parametrize("changed", [{"encoder": "of another"}, {"scores": {"0": 50.0}}])
def test_results_of_another_encoder_or_of_other_seeds_are_kept_apart(tmp_path, monkeypatch, changed):
    source = Source("run", "of this", lambda: pytest.fail("nothing is loaded"))
    monkeypatch.setattr(finetuning_recipe.networks, "find_source", lambda path: source)
    monkeypatch.setattr(finetuning_recipe, "run_jobs", lambda *plan, **options: True)
    results = tmp_path / "results.jsonl"
    command = ["--init_from=run", "--data_dir=glue", f"--output={tmp_path}", f"--results={results}"]
    done = {"job": "base/cola", "encoder": "of this", **result(50, 54)}
    results.write_text(json.dumps(done) + "\n")
    assert finetuning_recipe.main(command) == 0
    results.write_text(json.dumps({**done, **changed}) + "\n")
    with pytest.raises(errors.UserError, match="has base/cola of another encoder or seeds: give another --results"):
        finetuning_recipe.main(command)


@pytest.mark.parametrize("setting", finetuning_recipe.SETTINGS)
def test_a_setting_differs_from_the_base_in_one_thing(setting, tmp_path):
    base, changed = (
        to_dict(finetuning_recipe.finetuning_config(each, "rte", 3, tmp_path)) for each in ("base", setting)
    )
    assert set(differences(base, changed)) == set(finetuning_recipe.SETTINGS[setting])


@pytest.mark.slow
def test_a_job_scores_both_halves(small_run, tmp_path):
    sst2_files(tmp_path / "glue" / "SST-2")
    options = [f"--init_from={small_run}", f"--data_dir={tmp_path / 'glue'}", f"--output={tmp_path / 'out'}"]
    made = tmp_path / "made.json"
    assert errors.run(finetuning_recipe.main, [*options, "--seeds=2", "--job=base/sst2", f"--result={made}"]) == 0
    result = json.loads(made.read_text())
    assert result["metric"] == "accuracy"
    assert set(result["scores"]) == {"0", "1"}
    for seed, score in result["scores"].items():  # both halves have as many examples
        assert sum(result["halves"][seed]) / 2 == pytest.approx(score, abs=1e-3)
