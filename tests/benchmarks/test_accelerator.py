"""What accelerator.py plans and reports, on made-up results, and a rehearsal of all of it on the CPU."""

import json

import accelerator
import accelerator_jobs
import accelerator_plan
import pytest
from accelerator_plan import ON_CPU, ON_DEVICE, TASKS, Plan, Recipe, report
from job_queue import ResultsFile

GPU = "NVIDIA H200"


def losses(kind, **scales):
    curves = {name: {"mlm_loss": [10.0, 9.0 * x], "disc_loss": [0.7, 0.6 * x]} for name, x in scales.items()}
    return {"kind": kind, "devices": 2, **curves}


def speed(tokens_per_second):
    measured = {"fits": True, "bytes": 2**31, "batch_size": 4, "length": 8, "attention": "plain", "mfu": 0.4}
    spent = {"idle": 0.1, "kinds": {"matrix products": 0.6}, "places": [["encoder, forward", 0.3]]}
    return {**measured, **spent, "tokens_per_second": tokens_per_second}


def checked(kind, device=1.005):
    return {ON_CPU: losses("cpu", float32=1.0, bfloat16=1.001), ON_DEVICE: losses(kind, bfloat16=device)}


def named(plan):
    return [job.name for job in plan.jobs()]


def test_more_parts_are_tried_until_the_step_fits():
    results = checked("TPU v4")
    plan = Plan(results, sizes=("base",), shares=(0.25,), scored=True)
    first = ["speed/base/1-none", "speed/base/1-dots", "speed/small/1-none", "speed/small/1-dots"]
    assert named(plan) == [ON_CPU, ON_DEVICE, *first]
    too_large = {"fits": False, "bytes": 9 * 2**30, "limit": 2**30}
    results |= {"speed/base/1-none": too_large, "speed/base/1-dots": {"fits": False, "limit": 2**30}}
    assert named(plan)[2:6] == ["speed/base/1-none", "speed/base/8-none", "speed/base/1-dots", "speed/base/2-dots"]
    results |= {"speed/base/8-none": speed(50), "speed/base/2-dots": speed(40)}
    assert plan.best(Recipe("base")) == "speed/base/8-none"
    results |= {"speed/small/1-none": speed(100), "speed/small/1-dots": speed(200)}
    train, *scores = plan.jobs()[-6:]
    assert (train.name, train.settings["steps"]) == ("train/small-0.25", 250_000)
    assert train.settings["model"] == {"remat": "dots"}
    assert [(job.name, job.needs) for job in scores] == [
        (f"score/small-0.25/{task}", ("train/small-0.25",)) for task in TASKS
    ]


def fits_in_no_way(size, most):
    parts = [2**n for n in range(most.bit_length())]
    return {f"speed/{size}/{n}-{remat}": {"fits": False, "limit": 1} for n in parts for remat in ("none", "dots")}


def test_what_fits_in_no_way_is_given_up():
    results = checked("TPU v4") | fits_in_no_way("small", most=64)  # 64 sequences on each of two devices
    plan = Plan(results, sizes=("small",))
    assert named(plan)[-1] == "speed/small/64-dots"
    assert plan.best(Recipe("small")) is None


def test_small_is_trained_where_a_larger_one_fits_in_no_way():
    results = checked("TPU v4") | fits_in_no_way("large", most=1024)
    plan = Plan(results, sizes=("large",), shares=(0.25,))
    assert not any(name.startswith("train/") for name in named(plan))
    results |= {"speed/small/1-none": speed(100), "speed/small/1-dots": speed(200)}
    assert named(plan)[-1] == "train/small-0.25"


def test_on_a_gpu_steps_without_dropout_of_attention_are_measured_too():
    jobs = {job.name: job for job in Plan(checked(GPU), sizes=("large",)).jobs()}
    without = jobs["speed/large, no attention dropout/1-dots"]
    assert without.settings["model"] == {"remat": "dots", "attention_dropout": 0.0}


def test_the_report():
    results = checked(GPU) | {"speed/small/1-none": speed(1000), "speed/small/1-dots": speed(900)}
    trained = {"flops": 7.2e16, "tokens": 1e9, "epochs": 40, "device_seconds": 720}
    results["train/small-0.0625"] = {**trained, "heldout": [{"mlm_loss": 2.5, "disc_auc": 0.9}]}
    results["score/small-0.0625/cola"] = {"metric": "matthews", "scores": {"0": 40.0, "1": 45.0, "2": 41.0}}
    text = report(Plan(results, sizes=("small",), scored=True))
    assert "2 x NVIDIA H200: losses of 2 steps" in text
    assert "| mlm_loss | 0.50% | 0.10% | yes |" in text
    small = "| small | 4 x 8 | 1 | none | plain | 2.0 | 1,000 | 40.0% | 10% | 60% | encoder, forward (30%) |"
    assert small in text
    assert "| 6.25% of the steps | 7.2e+16 | 1.00e+09 | 40.0 | 0.20 | 2.500 | 0.900 | 41.0 |" in text
    assert "| NO |" in report(Plan(checked(GPU, device=1.02), sizes=("small",)))
    assert report(Plan({})) == ""


@pytest.mark.slow
def test_a_rehearsal(tmp_path, capsys, monkeypatch):
    """Each kind of job here, few and short, and the last one in a process of its own, as all are in use."""
    monkeypatch.setattr(accelerator_jobs, "_ROUND", 0.1)
    monkeypatch.setattr(accelerator_jobs, "CHECKED_STEPS", 4)
    monkeypatch.setattr(accelerator_plan, "_REMAT", ("none",))
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    sizes, shares = ("small",), (0.002,)  # two steps
    arguments = ["--rehearse", f"--output={tmp_path}", "--sizes", *sizes, "--shares", "0.002"]
    results = ResultsFile(tmp_path / "results.jsonl")
    while True:
        done = results.read()
        todo = [job for job in Plan(done, sizes, shares, rehearse=True).jobs() if job.name not in done]
        if todo[0].settings["kind"] == "train":
            break
        result = tmp_path / "result.json"
        if todo[0].name != ON_DEVICE:  # the device is this CPU, whose losses are the last result
            accelerator.main([*arguments, f"--job={json.dumps(todo[0].settings)}", f"--result={result}"])
        results.add(todo[0].name, json.loads(result.read_text()))
    assert accelerator.main([*arguments, "--minutes=0.0001"]) == 0
    assert capsys.readouterr().out.endswith("not all jobs are done; the same command goes on\n")
    assert accelerator.main([*arguments, "--minutes=5"]) == 0
    report = (tmp_path / "report.md").read_text()
    assert capsys.readouterr().out.endswith(report)
    assert all(f"\n| {line}" in report for line in ("mlm_loss |", "small |", "0.20% of the steps |"))
    assert " NO " not in report
    assert (tmp_path / "exported" / "small-0.002" / "discriminator").is_dir()
