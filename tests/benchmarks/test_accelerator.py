"""All parts of accelerator.py in small, on the CPU."""

import json
import time
from types import SimpleNamespace

import accelerator
import accelerator_steps
import pytest
from cli_runs import environment, sst2_files

from electra_jax.config.errors import UserError

ROW = {"batch": [4, 8], "attention": "plain", "gib": 2.04, "compile_seconds": 31.2}
SPEED = {"milliseconds": 35.51, "tokens_per_second": 1845802, "mfu": 0.131}


def test_the_table_of_steps():
    parts = {"launches": 1328.0, "idle": 0.1, "kinds": {"matrix products": 0.6}, "places": [["encoder, forward", 0.3]]}
    steps = {"small": {**ROW, **SPEED}, "large": ROW, "small, profiled": {**ROW, **parts}}
    lines = list(accelerator_steps.table(steps))
    assert lines[2] == "| small | 4 x 8 | plain | 35.5 | 1,845,802 | 13.1% | 2.0 | 31 |"
    assert lines[3] == "| large | 4 x 8 | plain | does not fit |  |  | 2.0 | 31 |"
    assert lines[-1].startswith("small, profiled: 1,328 launches, idle 10%; of the rest matrix products 60%, encoder, ")


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(UserError, match="the part='x' is invalid: expected speed or train or score or report"):
        accelerator.main(["x"])
    with pytest.raises(UserError, match=r"steps\.json has no budget:flops=1e17: give --steps, or run"):
        accelerator.main(["train", "--input=text", f"--output={tmp_path}"])


def test_a_step_that_fails_does_not_lose_the_others(tmp_path, monkeypatch, capsys):
    def measure(step):
        if step == "small":
            raise ValueError("no profile")
        return {**ROW, **SPEED}

    monkeypatch.setattr(accelerator_steps, "compile_step", lambda config, settings, rehearse: config)
    monkeypatch.setattr(accelerator_steps, "measure", measure)
    monkeypatch.setattr(accelerator_steps, "STEPS", {name: (name, {}) for name in ("small", "base", "large")})
    with pytest.raises(UserError, match=r"^small failed, as standard error says; the others are in "):
        accelerator.main(["speed", f"--output={tmp_path}"])
    assert "ValueError: no profile\n" in capsys.readouterr().err
    assert sorted(accelerator.read_steps(tmp_path)) == ["base", "large"]


def test_steps_of_another_device_are_kept_apart(tmp_path):
    steps = {"device": "another", "steps": {"small": {**ROW, **SPEED}}}
    (tmp_path / "steps.json").write_text(json.dumps(steps))
    with pytest.raises(UserError, match=r"steps\.json is of another, and this is cpu, rehearsed: use another --output"):
        accelerator.main(["speed", "--rehearse", f"--output={tmp_path}"])
    with pytest.raises(UserError, match="--only=huge is in no name of a step: expected part of base, "):
        accelerator.main(["speed", "--only=huge", f"--output={tmp_path / 'new'}"])


def test_another_call_goes_on_with_the_run_and_exports_it_again(tmp_path, monkeypatch):
    monkeypatch.setattr(accelerator.goodput, "process_started", time.monotonic)
    trained = []
    monkeypatch.setattr(accelerator.electra_jax, "pretrain", lambda config, run, progress: trained.append(config.steps))
    monkeypatch.setattr(accelerator.electra_jax, "export", lambda run, folder, dtype: folder.mkdir())
    (tmp_path / "exported" / "old").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"steps": 1234}')
    assert accelerator.main(["train", "--input=text", f"--output={tmp_path}"]) == 0
    assert trained == [1234]
    assert not list((tmp_path / "exported").iterdir())
    with pytest.raises(UserError, match="--steps is missing; expected it with --config"):
        accelerator.main(["train", "--config", "base", "--input=text", f"--output={tmp_path}"])


def test_a_fine_tuning_that_fails_is_named(tmp_path, monkeypatch, capsys):
    statuses, commands = iter((0, 2, 0, 0, 1)), list[list[str]]()
    process = SimpleNamespace(wait=lambda seconds: next(statuses))
    monkeypatch.setattr(accelerator.subprocess, "Popen", lambda command, **options: commands.append(command) or process)
    with pytest.raises(UserError, match=r"^sst2, rte failed; see log\.txt of each in "):
        accelerator.main(["score", f"--data_dir={tmp_path}", f"--output={tmp_path}"])
    assert "sst2: exit status 2; " in capsys.readouterr().out
    # With the state of [CLS] a small encoder's scores are 11 points lower.
    assert all("--config.pooling=mean" in command for command in commands)


def test_training_that_would_end_before_it_begins_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(accelerator.goodput, "process_started", lambda: time.monotonic() - 600)
    with pytest.raises(UserError, match=r"--minutes=9 leaves -60 s: give 2\.5 or more"):
        accelerator.main(["train", "--steps=2", "--input=text", f"--output={tmp_path}"])


@pytest.mark.slow
def test_a_rehearsal(tmp_path, text_file, monkeypatch, capsys):
    """Each part, of one step and of one task."""
    trained = accelerator_steps.TRAINED
    monkeypatch.setattr(accelerator_steps, "STEPS", {trained: accelerator_steps.STEPS[trained]})
    monkeypatch.setattr(accelerator_steps, "_ROUND", 0.1)
    monkeypatch.setattr(accelerator, "_TASKS", ("sst2",))
    monkeypatch.setattr(accelerator.goodput, "process_started", time.monotonic)  # this process is older than the part
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    sst2_files(tmp_path / "glue" / "SST-2")
    both = (f"--output={tmp_path}", "--rehearse")
    assert accelerator.main(["speed", *both]) == 0
    settings = ("--config.data.vocab_size=40", "--config.data.heldout_fraction=.1")
    assert accelerator.main(["train", *both, f"--input={text_file}", "--steps=2", *settings]) == 0
    assert [each.name for each in (tmp_path / "run" / "checkpoints").iterdir()] == ["2"]
    assert accelerator.main(["score", *both, f"--data_dir={tmp_path / 'glue'}"]) == 0
    said = capsys.readouterr().out
    assert said.endswith((tmp_path / "report.md").read_text())
    for begin in (f"| {trained} | ", "| step | total_tokens | ", "| 2 | ", "| sst2 | accuracy | "):
        assert f"\n{begin}" in said
