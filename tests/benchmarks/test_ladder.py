"""The ladder's plan and report on results that are made up, and its jobs for real on a small text."""

import functools
import itertools
import json
import math
from pathlib import Path

import ladder
import ladder_jobs
import ladder_report
import pytest
from cli_runs import ROOT
from job_queue import Job, ResultsFile
from ladder_jobs import MODERN, THEN_MLM, Shape, pretraining_config
from ladder_plan import ASSUMED, BUDGETS, SEEDS, SYSTEMS, TASKS, TUNED, VARIANTS, Plan, step_flops
from matplotlib.figure import Figure

import electra_jax
from electra_jax.config.errors import UserError

METRICS = {"cola": "matthews", "sst2": "accuracy", "mrpc": "accuracy", "stsb": "spearman", "rte": "accuracy"}
BEST_SHAPES = {1e13: Shape(3, 128), 3e13: Shape(4, 192)}
BEST_RATE = 1.5e-3


def made_up(job: Job) -> dict:
    """A result: `electra` is better than others by 2, a budget than the one before by 10, the controls have 10."""
    settings = job.settings
    if settings["kind"] == "pretrain":
        spent = {"flops": settings["flops"], "flops_paper": 1.0, "tokens": 2e6, "device_seconds": 5.0}
        return {"steps": 10, **spent, "heldout": [{"mlm_loss": 9.0}]}
    if settings["kind"] == "abilities":
        return {"fill": 31.0, **{f"{kind} by masks": 70.0 for kind in ("agreement", "order")}}
    if settings["kind"] == "probe" and not settings["tasks"]:
        flops, *_, shape, rate = settings["run"].split("-")
        best = (str(BEST_SHAPES[float(flops)]) == shape) + (float(rate) == BEST_RATE)
        return {"word_order": 60.0 + 10 * best}
    if settings["kind"] == "probe":
        return {**dict.fromkeys(TASKS, 40.0), "word_order": 55.0}
    score = 10.0
    if settings["run"] != "untrained":
        budget, system, *_ = settings["run"].split("-")
        flops = float(budget)
        score = 20.0 + 10 * BUDGETS.index(flops) + 2 * (system == "electra")
        score += 10 * (settings["epochs"] == 10) - 20 * (settings["pooling"] == "cls")
        score += settings["rate"] == (2e-3 if system == "electra" else 5e-4)
    return {"metric": METRICS[settings["task"]], "scores": {str(s): score + 0.1 * (s % 100) for s in settings["seeds"]}}


class Remembering(Plan):
    """A plan that finds each thing once, since there are as many plans as jobs. Its results must stay as they are."""

    shape_for = functools.cache(Plan.shape_for)
    merit = functools.cache(Plan.merit)
    run_of = functools.cache(Plan.run_of)
    fine_rate = functools.cache(Plan.fine_rate)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The plan with the results of all its jobs, and the order in which they were done."""
    results, order = {}, []
    while True:
        plan = Remembering(results, tmp_path_factory.getbasetemp(), BUDGETS[-1])
        todo = (job for job in plan.jobs() if job.name not in results and all(name in results for name in job.needs))
        job = next(todo, None)
        if job is None:
            return Plan(results, plan.runs, plan.largest), order
        results[job.name] = made_up(job)
        order.append(job.name)


def test_shapes_and_rates_are_those_that_did_best(finished):
    plan, _ = finished
    assert [plan.shape_for(flops) for flops in (1e13, 3e13)] == [Shape(3, 128), Shape(4, 192)]
    assert {plan.run_of(system, flops).rate for system in SYSTEMS for flops in BUDGETS} == {1.5e-3}
    assert plan.run_of("mlm", 1e13).name == "1e13-mlm-3x128-0.0015"
    assert plan.fine_rate("electra", "rte") == 2e-3
    assert plan.fine_rate("mlm", "rte") == 5e-4


def test_flops_of_a_step_grow_as_the_root_of_the_budget(finished):
    plan, _ = finished
    small, large = (step_flops(plan.shape_for(flops)) for flops in (1e13, 3e14))
    assert math.sqrt(30) / 2 < large / small < math.sqrt(30) * 2


def test_every_job_is_named_once_and_costs_what_the_dry_run_says(finished):
    plan, order = finished
    assert len(order) == len(set(order)) == len(plan.jobs())
    assumed = Plan({}, plan.runs, BUDGETS[-1], assumed=ASSUMED).jobs()
    assert sum(job.flops for job in assumed) == pytest.approx(sum(job.flops for job in plan.jobs()), rel=0.02)
    assert ladder.cost(plan.jobs(), plan.results).splitlines()[-1].split() == ["left", "0", "0", "0.0e+00", "0.0"]


def test_the_largest_budgets_are_scored_before_second_runs_and_before_the_smaller_budgets_of_the_others(finished):
    _, order = finished
    scored = {name: i for i, name in enumerate(order) if name.startswith("finetune/") and name.endswith("-0-1-2")}

    def places(budget: str, *systems: str, again: bool = False) -> list[int]:
        return [
            i
            for name, i in scored.items()
            if name.split("/")[1].startswith(tuple(f"{budget}-{system}-" for system in systems))
            and name.split("/")[1].endswith("-1") == again
        ]

    others = SYSTEMS[3:]
    phases = [
        places("1e14", "electra", "mlm"),
        places("3e14", "electra"),
        *(places(budget, system) for system in others for budget in ("3e13", "1e14")),
        places("3e14", "mlm"),
        places("1e14", "electra", "modern", "mlm", again=True),
        places("1e13", *others),
    ]
    assert [len(phase) // len(TASKS) for phase in phases] == [2, 1, *[1] * 10, 1, 3, 5]
    for phase, following in itertools.pairwise(phases):
        assert max(phase) < min(following)
    assert not any("electra_15-" in name for name in order if name.startswith("word_order/") and "0.0015" not in name)


def test_some_runs_of_pre_training_are_repeated_with_another_seed(finished):
    plan, order = finished
    jobs = [job for job in plan.jobs() if job.settings.get("changes", {}).get("seed")]
    assert [job.settings["run"] for job in jobs] == [
        f"1e14-{system}-{plan.shape_for(1e14)}-0.0015-1" for system in ("electra", "modern", "mlm")
    ]
    changes = jobs[0].settings["changes"]
    assert pretraining_config("electra", Shape(3, 128), 3e-3, 1e13, changes).seed == 1
    scored = [name for name in order if name.startswith(f"finetune/{jobs[0].settings['run']}/")]
    assert len(scored) == len(TASKS) + len(VARIANTS)


def test_second_runs_are_fine_tuned_in_other_ways_on_one_task(finished):
    plan, _ = finished
    usual = {"epochs": 3, "pooling": "mean"}
    jobs = [job for job in plan.jobs() if job.settings["kind"] == "finetune"]
    varied = [job for job in jobs if {name: job.settings[name] for name in usual} != usual]
    runs = ["untrained", *(f"1e14-{name}-{plan.shape_for(1e14)}-0.0015-1" for name in ("electra", "modern", "mlm"))]
    rates = ("0.0005", "0.002", "0.0005", "0.0005")
    assert [job.name for job in varied] == [
        f"finetune/{run}/stsb-{rate}-0-1-2-{variant}"
        for run, rate in zip(runs, rates, strict=True)
        for variant in ("10_epochs", "state_of_CLS")
    ]
    longer, first_state = varied[:2]
    assert (longer.settings["epochs"], longer.settings["pooling"]) == (10, "mean")
    assert (first_state.settings["epochs"], first_state.settings["pooling"]) == (3, "cls")
    assert longer.flops == pytest.approx(10 / 3 * first_state.flops)
    config = ladder_jobs.finetuning_config("stsb", 1e-3, SEEDS, 10, "cls", Path("cache"))
    assert (config.epochs, config.pooling) == (10, "cls")


def test_a_smaller_ladder_has_no_larger_runs(finished):
    plan, _ = finished
    assert not any("3e14" in job.name for job in Plan(plan.results, plan.runs, 1e14).jobs())


def test_the_systems_of_a_budget_are_compared_seed_by_seed(finished):
    plan, _ = finished
    found = {(entry.system, entry.flops): entry for entry in ladder_report.entries(plan) if not entry.seed}
    assert len(found) == 3 * 8 + 2 + 2
    again = [entry for entry in ladder_report.entries(plan) if entry.seed]
    assert [(entry.system, entry.flops) for entry in again] == [(name, 1e14) for name in ("electra", "modern", "mlm")]
    by = ladder_report.difference(found["electra", 1e13], found["mlm", 1e13])
    assert (by.mean, by.margin) == (pytest.approx(2), pytest.approx(0, abs=1e-9))
    uneven = found["mlm", 1e13]._replace(scores={task: {0: 22.0, 1: 24.0, 2: 26.0} for task in TASKS})
    shifted = found["mlm", 1e13]._replace(scores={task: dict.fromkeys(SEEDS, 20.0) for task in TASKS})
    by = ladder_report.difference(uneven, shifted)
    # The differences 2, 4, 6 have variance 4, their mean over three seeds and five tasks 4 / 15; t(10) is 2.228.
    assert (by.mean, by.margin) == (pytest.approx(4), pytest.approx(2.228 * math.sqrt(4 / 15), rel=1e-3))
    # With one such task and four whose seeds agree, the mean's standard error is sqrt(4 / 3) / 5; t(2) is 4.303.
    steady = uneven.scores | {task: dict.fromkeys(SEEDS, 24.0) for task in TASKS[1:]}
    by = ladder_report.difference(uneven._replace(scores=steady), shifted)
    assert (by.mean, by.margin) == (pytest.approx(4), pytest.approx(4.303 * math.sqrt(4 / 3) / 5, rel=1e-3))
    assert str(by) == "+4.0 ± 1.0"
    # Variances 4 and 1 with two degrees of freedom each have (4 + 1)^2 / (4^2 / 2 + 1^2 / 2) = 50 / 17 together.
    by = ladder_report.estimate({"cola": [2.0, 4.0, 6.0], "rte": [1.0, 2.0, 3.0]})
    assert by == pytest.approx((3.0, math.sqrt(5 / 3) / 2, 50 / 17))


def test_the_better_of_fine_tuning_and_a_linear_model_is_chosen_by_task(finished):
    plan, _ = finished
    found = {(entry.system, entry.flops): entry for entry in ladder_report.entries(plan)}
    entry = found["mlm", 1e13]  # 21.1 fine-tuned, in the mean over seeds
    frozen = {"cola": 10.0, "sst2": 51.1, "mrpc": 21.1, "stsb": 31.1, "rte": 0.0}
    assert entry._replace(frozen=frozen).better_of_both() == pytest.approx(21.1 + (30 + 10) / 5)


def test_how_many_times_fewer_flops_a_system_needs(finished):
    plan, _ = finished
    found = {(entry.system, entry.flops): entry for entry in ladder_report.entries(plan)}
    curve = [found["electra", flops] for flops in BUDGETS]  # 23.1, 33.1, 43.1, 53.1
    flat = [dict.fromkeys(SEEDS, score) for score in (28.1, 20.0, 80.0)]
    half, below, above = (found["mlm", 1e14]._replace(scores=dict.fromkeys(TASKS, scores)) for scores in flat)
    found = ladder_report.saving(curve, half)
    assert found.ratio == pytest.approx(1e14 / math.sqrt(1e13 * 3e13))
    assert found.low < found.ratio < found.high
    # Seeds differ by .1, so averages have a standard error of .026 and ten degrees of freedom; the slope is 10 for a
    # factor of 3. The ratio varies as the mean of two averages, whose t is a little below 2.228, that of one.
    assert math.log(found.high / found.ratio, 3) == pytest.approx(2.2 * 0.0258 * math.sqrt(0.5) / 10, rel=0.05)
    assert str(found) == "5.8 (5.7 to 5.8)"
    assert str(ladder_report.saving(curve, below)) == "10.0 or more"
    assert str(ladder_report.saving(curve, above)) == "less than 0.3"


def test_results_without_a_scored_run_cannot_be_drawn(tmp_path):
    with pytest.raises(UserError, match="there is nothing to draw: expected --results=FILE"):
        ladder.main([f"--draw={tmp_path}/out", f"--results={tmp_path}/missing.jsonl"])
    with pytest.raises(UserError, match=r"--flops=5000000000000\.0 is invalid: expected 1e\+13 or more"):
        ladder.main([f"--output={tmp_path}", "--flops=5e12", "--dry_run"])
    assert not (tmp_path / "out").exists()


def test_modern_is_the_config_of_that_name_and_the_others_have_adam():
    ours, electra = (pretraining_config(system, Shape(3, 128), 3e-3, 1e13) for system in (MODERN, "electra"))
    config = electra_jax.configs.modern(size="tiny")
    assert (ours.optim.name, ours.optim.muon_rate) == (config.optim.name, config.optim.muon_rate) == ("muon", 2.0)
    assert electra.optim.name == "adam"
    assert ours.optim.learning_rate == electra.optim.learning_rate == 3e-3
    assert ours.steps < electra.steps  # Muon's FLOPs are counted
    assert ours.model == electra.model


def test_an_encoder_that_fills_masks_in_a_last_phase_costs_what_the_others_do():
    last, joint = (pretraining_config(system, Shape(3, 128), 3e-3, 1e13) for system in (THEN_MLM, "electra_mlm"))
    assert (last.objective, last.model, joint.phases) == (joint.objective, joint.model, "")
    assert last.steps > joint.steps
    assert electra_jax.count_flops(last).total["model"] == pytest.approx(1e13, rel=0.01)


@pytest.fixture(scope="module")
def of_results() -> Plan:
    """The plan with the results that are committed."""
    return Plan(ResultsFile(ROOT / "benchmarks" / "results" / "ladder.jsonl").read(), ROOT, BUDGETS[-1])


def test_the_config_has_the_learning_rate_that_was_best(of_results):
    config, best = electra_jax.configs.modern(size="tiny"), of_results.run_of(MODERN, TUNED)
    assert (config.optim.learning_rate, config.model.width) == (best.rate, best.shape.width)


def test_the_page_has_the_table_of_the_results(of_results):
    page = (ROOT / "docs" / "reference" / "ladder.md").read_text(encoding="utf-8")
    assert ladder_report.table(ladder_report.entries(of_results), of_results) in page, (
        "run: python docs/make_tables.py ladder"
    )


def test_nothing_is_saved_on_what_an_untrained_encoder_reaches():
    untrained = {"untrained": 10.0, "electra": 20.0, "mlm": 10.0}
    found = [
        ladder_report.Entry(
            name, 1e13 * (name != "untrained"), name, {task: dict.fromkeys(SEEDS, x) for task in TASKS}, {}
        )
        for name, x in untrained.items()
    ]
    assert ladder_report._savings(found)[2:] == []
    better = found[-1]._replace(scores={task: dict.fromkeys(SEEDS, 11.0) for task in TASKS})
    assert ladder_report._savings([*found[:-1], better])[2:] == ["| `electra` | `mlm` at 1e13 | 1.0 or more |"]


def test_the_table_and_the_figures(finished, tmp_path, capsys, monkeypatch):
    """Such files of figures are read in tests/commands/test_curves_command.py."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.touch())
    plan, _ = finished
    results = tmp_path / "ladder.jsonl"
    results.write_text("".join(json.dumps({"job": name, **result}) + "\n" for name, result in plan.results.items()))
    assert ladder.main([f"--draw={tmp_path}", f"--results={results}"]) == 0
    text = (tmp_path / "ladder.md").read_text()
    assert capsys.readouterr().out == text
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    score = 20 + 2 + 1  # with the best learning rate
    assert ["1e13", "`electra`", *[f"{score + 0.1:.1f}"] * 6, "40.0", "40.0", "55.0"] in rows
    assert ["1e13", "`electra`", "3x128", "2.0M", *[f"{score:.1f} to {score + 0.2:.1f}"] * 6] in rows
    assert ["1e14", "`electra`, seed 1"] in [row[:2] for row in rows]
    assert ["3e14", "`electra`", *["+43.0 ± 0.0"] * 2, "", ""] in rows
    assert ["3e14", "`mlm`", *["+41.0 ± 0.0"] * 2, *["-2.0 ± 0.0"] * 2] in rows
    assert ["`electra`", "`mlm` at 3e14", "1.2 (1.2 to 1.3)"] in rows  # 51.1 between 43.1 at 1e14 and 53.1 at 3e14
    assert ["`modern`", "`electra` at 3e14", "less than 3.0"] in rows
    assert ["`mlm`", "41.1", "", "31.0", "", "70.0 / 70.0", ""] in rows
    assert ["`mlm`, seed 1", "41.1 (41.0 to 41.2)", "51.1 (51.0 to 51.2)", "21.1 (21.0 to 21.2)"] in rows
    assert {path.name for path in tmp_path.iterdir()} >= {"ladder.png", "ladder.svg", "ladder_and_paper.png"}
