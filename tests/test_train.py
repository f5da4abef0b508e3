"""The loop as a whole, in this process."""

import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from cli_runs import arrays, assert_same_bits, logged, small_config, until

import electra_jax
from electra_jax import evaluate, step
from electra_jax.config.errors import UserError
from electra_jax.runtime import sharding
from electra_jax.runtime.progress import Progress
from electra_jax.train import train


@pytest.mark.slow
def test_nothing_is_transferred_but_what_is_meant(text_file, tmp_path, monkeypatch, light_steps):
    """The step is called under a guard: a batch that goes to the devices by itself ends the run."""
    config = small_config(text_file, "objective=mlm", steps=6, log_every=2, eval_every=3)
    train(config, tmp_path / "run")
    assert [line["step"] for line in logged(tmp_path / "run")] == [2, 3, 4, 6]
    monkeypatch.setattr(sharding, "put_batch", lambda batch, mesh, batch_size: batch)
    with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
        train(config, tmp_path / "other")


def test_a_step_that_hangs_prints_where(text_file, tmp_path, capfd, monkeypatch, light_steps):
    printed = []

    def is_reported() -> bool:
        printed.append(capfd.readouterr().err)
        return "Timeout (0:00:00.1" in "".join(printed)

    class Hang(Progress):
        def update(self, completed: float, numbers: str = "") -> None:
            if completed == 0:
                until(is_reported, 60)

    monkeypatch.setattr("electra_jax.train._HANG", 0.1)
    config = small_config(text_file, "objective=mlm", steps=2)
    assert train(config, tmp_path / "run", Hang()).finished
    assert "in run_steps" in "".join(printed)


def test_hooks_measure_the_encoder_as_it_is_and_change_nothing(text_file, tmp_path, light_steps):
    called = []

    def norm(step, model):
        called.append(step)
        return {"norm": np.linalg.norm(model.encode("a text"))}

    often = {"steps": 5, "log_every": 5, "checkpoint__every": 2}
    config = small_config(text_file, "objective=mlm", model__dtype="bfloat16", **often)
    hooks = [(2, norm), (3, lambda step, model: {"three": step}), (4, lambda step, model: None)]
    run = electra_jax.pretrain(config, tmp_path / "with", hooks=hooks)
    assert called == [2, 4, 5]
    lines = {line["step"]: line for line in run.metrics}
    assert {step: line["three"] for step, line in lines.items() if "three" in line} == {3: 3, 5: 5}
    kept = float(np.linalg.norm(electra_jax.load(tmp_path / "with", step=4).encode("a text")))
    assert lines[4]["norm"] == pytest.approx(kept, rel=1e-5), "computed in float32, as by load"
    electra_jax.pretrain(config, tmp_path / "without")
    assert_same_bits(arrays(tmp_path / "with", 5), arrays(tmp_path / "without", 5))


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ((0, lambda step, model: {}), r"hooks=.* is invalid: expected pairs \(every, function\)"),
        ((2.5, lambda step, model: {}), r"hooks=.* is invalid: expected pairs \(every, function\)"),
        ((lambda step, model: {}, 2), r"hooks=.* is invalid: expected pairs \(every, function\)"),
        (lambda step, model: {}, r"hooks=.* is invalid: expected pairs \(every, function\)"),
        (
            (1, lambda step, model: np.zeros(2)),
            r"a hook returned array\(.*: expected a dict of numbers by name, or None",
        ),
        ((1, lambda step, model: 3.0), "a hook returned 3.0: expected a dict of numbers by name, or None"),
        ((1, lambda step, model: {1: 1.0}), "a hook returned {1: 1.0}: expected a dict of numbers by name, or None"),
        ((1, lambda step, model: {"tokens": 1.0}), "a hook returned 'tokens', which the run logs itself"),
        ((1, lambda step, model: {"heldout_x": 1.0}), "a hook returned 'heldout_x', which the run logs itself"),
        ((1, lambda step, model: {"step": 1.0}), "a hook returned 'step', which the run logs itself"),
        ((1, lambda step, model: {"mine": None}), "a hook returned 'mine' as None: expected a number"),
        ((1, lambda step, model: {"mine": "3"}), "a hook returned 'mine' as '3': expected a number"),
        ((1, lambda step, model: {"other": 1.0}), "two hooks returned 'other'; choose another name"),
    ],
)
def test_hooks_that_cannot_be_used(hook, message, text_file, tmp_path, light_steps):
    other = (1, lambda step, model: {"other": 2.0})
    with pytest.raises(UserError, match=message):
        electra_jax.pretrain(small_config(text_file, "objective=mlm", steps=1), tmp_path, hooks=[hook, other])


def test_batches_cannot_be_left_out_without_going_back(tmp_path):
    with pytest.raises(UserError, match="skip_batches=3 has no effect without rewind_to; give both or neither"):
        electra_jax.pretrain(small_config(), tmp_path, skip_batches=3)


@pytest.mark.slow
def test_a_mixture_is_evaluated_by_source_and_resumes_with_the_same_bits(text_file, tmp_path):
    (tmp_path / "fy.txt").write_text("\n\n".join(f"in lyts ferhaal mei it nûmer {n}" for n in range(80)))
    shutil.copy2(text_file, tmp_path / "en.txt")
    often = {"steps": 6, "log_every": 3, "eval_every": 3, "eval_batches": 8, "checkpoint__every": 3}
    config = small_config(text_file, "objective=mlm", **often)
    config.data.update(input=f"{tmp_path}/en.txt;{tmp_path}/fy.txt", temperature=0.3)
    run = electra_jax.pretrain(config, tmp_path / "run")
    whole, by_source = run.heldout().metrics, run.heldout().by_source
    assert set(by_source) == {"en", "fy"}
    losses = sorted(numbers["mlm_loss"] for numbers in by_source.values())
    assert losses[0] < whole["mlm_loss"] < losses[1]
    expected = arrays(tmp_path / "run", 6)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "6")
    again = electra_jax.pretrain(config, tmp_path / "run")
    assert again.heldout() == run.heldout()
    assert_same_bits(arrays(tmp_path / "run", 6), expected)


@pytest.fixture
def compiled():
    """The names of the functions that were compiled."""
    seen = []

    def note(event, duration, **details):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(str(details.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(note)
    yield seen
    jax.monitoring.unregister_event_duration_listener(note)


def test_pretraining_from_a_notebook(text_file, tmp_path, compiled):
    """Compiles each step once, returns what was logged, and changes neither the caller's config nor JAX's settings."""
    often = {"steps": 4, "log_every": 2, "eval_every": 4, "eval_batches": 1}
    config = small_config(text_file, "objective=mlm", **often, compile_cache=str(tmp_path / "cache"))
    config.optim.clip_norm = 1.5
    before, settings = config.to_dict(), dict(jax.config.values)
    run = electra_jax.pretrain(config, workdir=tmp_path / "run")
    assert [line["step"] for line in run.metrics] == [2, 4]
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["attention"] == "plain"
    assert run.heldout().metrics["mlm_loss"] > 0
    assert config.to_dict() == before
    assert dict(jax.config.values) == settings
    assert sum("train_step" in name for name in compiled) == 1, compiled
    assert sum("eval_step" in name for name in compiled) == 1, compiled
    again = electra_jax.pretrain(config, workdir=tmp_path / "run")  # it is finished
    assert again.metrics == run.metrics
    assert sum("train_step" in name for name in compiled) == 1, "a finished run needs no step"


@pytest.mark.slow
def test_a_trace_of_the_steps_asked_for(text_file, tmp_path, light_steps):
    config = small_config(text_file, "objective=mlm", steps=6, profile__at=3, profile__steps=2)
    train(config, tmp_path / "run")
    (trace,) = (tmp_path / "run" / "profile").rglob("*.xplane.pb")
    assert trace.stat().st_size > 0


@pytest.mark.parametrize("is_compiled", [False, True], ids=["by the compiler", "by its size"])
def test_an_evaluation_that_needs_too_much_memory_shows_before_the_first_step(
    text_file, tmp_path, light_steps, monkeypatch, is_compiled
):
    def compile(self, params, stages):
        assert "embeddings" in params
        assert len(stages) == 1
        if not is_compiled:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: too much")
        sizes = {f"{name}_size_in_bytes": 0 for name in ("argument", "output", "alias", "temp", "generated_code")}
        sizes["temp_size_in_bytes"] = 2**41
        return [SimpleNamespace(memory_analysis=lambda: SimpleNamespace(**sizes))]

    monkeypatch.setattr(evaluate.Evaluator, "compile", compile)
    monkeypatch.setattr(step, "device_memory", lambda: 2**40)
    reason = r"an evaluation needs 2048\.\d GiB, and JAX may use 1024\.0" if is_compiled else "RESOURCE_EXHAUSTED: .*"
    advice = r"use a smaller config\.batch_size" if is_compiled else r"set config\.model\.remat"
    with pytest.raises(UserError, match=rf"the memory of a device is not enough \({reason}\); {advice}"):
        train(small_config(text_file, "objective=mlm", steps=1, log_every=1), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_compile_cache_is_filled(text_file, tmp_path, light_steps):
    cache, shortest = tmp_path / "cache", jax.config.values["jax_persistent_cache_min_compile_time_secs"]
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        electra_jax.pretrain(
            small_config(text_file, "objective=mlm", steps=1, compile_cache=str(cache)), tmp_path / "run"
        )
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", shortest)
    assert any("train_step" in path.name for path in cache.iterdir())
