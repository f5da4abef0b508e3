import json
import math

import ablations
import pytest
from ablations_plan import OPTIMIZERS, SEEDS, VARIANTS, Plan, intervals, report
from ladder_jobs import Shape, pretraining_config
from ladder_plan import power

import electra_jax

SHAPE = Shape(1, 64)
PAYS, VARIES, HARMS = "masked 30%", "batch 16", "batch 64"


def made_up(job):
    """Muon at 3e-3 is the best; one change gains 3 with every seed, one varies with it, one loses 6."""
    if job.settings["kind"] == "pretrain":
        return {"steps": 1}
    run = job.settings["run"]
    seed = int(run.rpartition("-")[2])
    score = 70.0 + seed + 5 * ("muon" in run) + 3 * ("0.003" in run)
    pays, varies, harms = (f"_{name.replace(' ', '_')}-" in run for name in (PAYS, VARIES, HARMS))
    score += 3 * pays + 0.5 * (seed - 1) * varies - 6 * harms
    return {"word_order": score + 1.0 * ("averaged" in job.settings)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    results, folder = {}, tmp_path_factory.getbasetemp()
    while todo := [job for job in Plan(results, folder, SHAPE, 1e9).jobs() if job.name not in results]:
        results |= {job.name: made_up(job) for job in todo}
    return Plan(results, folder, SHAPE, 1e9)


def test_the_base_is_the_better_optimizer_at_its_best_rate(finished):
    assert finished.base == "muon"
    changes = finished.best("muon")
    assert (changes["optim.name"], changes["optim.learning_rate"]) == ("muon", 3e-3)
    assert finished.best("adam") == {"optim.learning_rate": 3e-3}


def test_every_variant_has_the_base_s_settings_and_all_seeds_unless_it_is_far_behind(finished):
    jobs = [job for job in finished.jobs() if job.settings["kind"] == "pretrain"]
    tuned = sum(map(len, OPTIMIZERS.values()))
    trained = [name for name, changes in VARIANTS.items() if "averaged" not in changes]
    assert len(jobs) == tuned + len(SEEDS) * (len(OPTIMIZERS) + 1 + len(trained)) - len(SEEDS[1:])
    assert [job.name for job in jobs if "batch_64-" in job.name] == ["pretrain/5e08-1x64-muon_0.003_1_batch_64-0"]
    assert {job.flops for job in jobs if "batch" in job.name or "masked" in job.name} == {5e8}
    assert len([job for job in jobs if job.flops == 5e8 and "-muon_0.003_1-" in job.name]) == len(SEEDS)
    of_variant = [job for job in jobs if "masked_30%-" in job.name]
    assert [job.settings["changes"]["seed"] for job in of_variant] == list(SEEDS)
    assert all(job.settings["rate"] == 3e-3 for job in of_variant)
    assert of_variant[0].settings["changes"]["optim.name"] == "muon"
    assert len({job.name for job in jobs}) == len(jobs)


@pytest.mark.parametrize("changes", [*VARIANTS.values(), *OPTIMIZERS["muon"][:1]], ids=str)
def test_every_variant_is_a_run_of_as_many_flops(changes):
    changes = {
        "optim.name": "muon",
        **{k: v for k, v in changes.items() if k not in ("optim.learning_rate", "averaged")},
    }
    config = pretraining_config("electra", Shape(3, 128), 3e-3, 1e13, changes)
    assert electra_jax.count_flops(config).total["model"] == pytest.approx(1e13, rel=0.01)


def test_averages_are_of_the_probe(finished):
    jobs = {job.name: job for job in finished.jobs()}
    assert sum("mean" in name for name in jobs) == 2 * len(SEEDS)
    for recipe in ("muon_0.003_1", "muon_0.003_1_schedule_stable,_decay_.2"):
        job = jobs[f"word_order/5e08-1x64-{recipe}-0-mean"]
        assert job.settings["averaged"]
        assert job.needs == (f"pretrain/5e08-1x64-{recipe}-0",)
        assert job.settings["run"] == f"5e08-1x64-{recipe}-0"


def test_the_report(finished, tmp_path, capsys):
    text = report(finished)
    assert "| muon 0.003 1 | 178.0 |" in text
    optimizers, changes = text.split("| 5e08 FLOPs, 1x64 |")
    assert "| muon | 79.0 (78.0 to 80.0) |  | the base |" in optimizers
    assert "| adam | 74.0 (73.0 to 75.0) | -5.0 ± 2.3 | worse |" in optimizers
    assert "| muon | 79.0 (78.0 to 80.0) |  | the base |" in changes
    assert f"| {PAYS} | 82.0 (81.0 to 83.0) | +3.0 ± 2.7 | better |" in text
    assert f"| {HARMS} | 72.0 (one seed) | -7.0 ± 3.9 | worse |" in text
    assert "| mean of the last checkpoints | 80.0 (79.0 to 81.0) | +1.0 ± 2.7 | no difference shown |" in text
    assert f"| {VARIES} | 79.0 (77.5 to 80.5) | +0.0 ± 2.7 | no difference shown |" in text
    results = tmp_path / "ablations.jsonl"
    results.write_text("".join(json.dumps({"job": name, **result}) + "\n" for name, result in finished.results.items()))
    arguments = [f"--results={results}", "--shape=1x64", "--flops=1e9"]
    assert ablations.main([f"--draw={tmp_path}/out", *arguments]) == 0
    assert capsys.readouterr().out == text == (tmp_path / "out" / "ablations.md").read_text()
    assert ablations.main(["--input=x", "--data_dir=x", f"--output={tmp_path}", "--dry_run", *arguments]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == ["left", "0", "0"]


def test_the_variance_is_pooled_over_recipes():
    scores = {"base": [70.0, 71.0, 72.0], "a": [75.0, 75.0, 75.0], "b": [70.0, 72.0], "c": [60.0]}
    found = intervals(scores, "base")
    # Sums of squares 2, 0 and 2 over 5 degrees of freedom; t(5) at 1 - .025 / 3 is 3.534.
    assert found["a"] == pytest.approx((4.0, 3.534 * math.sqrt(0.8 * (1 / 3 + 1 / 3))), rel=1e-3)
    assert found["b"] == pytest.approx((0.0, 3.534 * math.sqrt(0.8 * (1 / 2 + 1 / 3))), rel=1e-3)
    assert found["c"] == pytest.approx((-11.0, 3.534 * math.sqrt(0.8 * (1 + 1 / 3))), rel=1e-3)
    assert [found[name].verdict for name in "abc"] == ["better", "no difference shown", "worse"]
    assert "base" not in found
    assert intervals({"base": [1.0]}, "base") == intervals({"base": [1.0, 2.0]}, "base") == {}


def test_results_of_another_shape_cannot_be_drawn(finished, tmp_path):
    with pytest.raises(ablations.errors.UserError, match="there is nothing to draw: expected --results=FILE"):
        report(finished._replace(shape=Shape(2, 64)))
    with pytest.raises(ablations.errors.UserError, match="there is nothing to draw: expected --results=FILE"):
        ablations.main([f"--draw={tmp_path}/out", f"--results={tmp_path}/missing.jsonl", "--shape=2x96"])
    assert not (tmp_path / "out").exists()


def test_a_table_grows_with_the_results(finished):
    first = finished.tuning("adam")[0]
    only = {job.name: finished.results[job.name] for job in finished._of(first)}
    assert report(finished._replace(results=only)).splitlines()[2:] == ["| adam 0.0015 | 170.0 |"]
    at_full = {name: result for name, result in finished.results.items() if "/1e09-" in name}
    text = report(finished._replace(results=at_full))
    assert "| adam | 74.0 (73.0 to 75.0) | -5.0 ± 2.3 | worse |" in text
    assert "5e08" not in text


def test_runs_of_other_flops_have_other_names():
    assert [power(flops) for flops in (5e12, 1e13, 1.5e13, 2e13)] == ["5e12", "1e13", "1.5e13", "2e13"]


def test_a_shape_that_is_none():
    with pytest.raises(ablations.errors.UserError, match="--shape=small is invalid: expected layers and width"):
        ablations.main(["--shape=small"])
