"""The loop as a whole, in this process."""

import logging
import re

import jax
import pytest
from runs import command, logged, quiet, run, small_config

from electra_jax import sharding
from electra_jax import train as library
from electra_jax.train import train


@pytest.mark.parametrize("short_steps", [0, 3])
def test_the_step_is_compiled_once_a_length_and_nothing_else_on_the_way(text_file, tmp_path, caplog, short_steps):
    config = small_config(text_file, steps=9, data__short_steps=short_steps, log_every=2, eval_every=3)
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
        train(config, tmp_path / "run", quiet())
    compiled = re.findall(r"Compiling jit\((\w+)\)", caplog.text) + re.findall(
        r"Compiling (\w+) with global", caplog.text
    )
    assert compiled.count("train_step") == (2 if short_steps else 1)
    assert compiled.count("eval_step") == 1


def test_nothing_is_transferred_but_what_is_meant(text_file, tmp_path, monkeypatch):
    """The step is called under a guard: a batch that goes to the devices by itself ends the run."""
    config = small_config(text_file, steps=6, log_every=2, eval_every=3)
    train(config, tmp_path / "run", quiet())
    assert [line["step"] for line in logged(tmp_path / "run")] == [2, 3, 4, 6]
    monkeypatch.setattr(sharding, "put", lambda batch, mesh, batch_size: batch)
    with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
        train(config, tmp_path / "other", quiet())


def test_what_a_run_may_change_on_its_way_are_settings():
    names = library.config_lib._flat(small_config())
    for name in library._FREE:
        assert any(setting.startswith(name) for setting in names), name


def test_a_trace_of_the_steps_asked_for(text_file, tmp_path):
    config = small_config(text_file, steps=6, profile__at=3, profile__steps=2)
    train(config, tmp_path / "run", quiet())
    (trace,) = (tmp_path / "run" / "profile").rglob("*.xplane.pb")
    assert trace.stat().st_size > 0


def test_a_compile_cache_is_filled(text_file, tmp_path):
    done = run(command(text_file, tmp_path / "run", f"--config.compile_cache={tmp_path}/cache"))
    assert done.returncode == 0, done.stderr
    assert any("train_step" in path.name for path in (tmp_path / "cache").iterdir())
