"""The loop as a whole, in this process."""

import jax
import pytest
from cli_runs import command, logged, quiet, run, small_config

from electra_jax import train as library
from electra_jax.runtime import sharding
from electra_jax.train import train


@pytest.mark.slow
def test_nothing_is_transferred_but_what_is_meant(text_file, tmp_path, monkeypatch):
    """The step is called under a guard: a batch that goes to the devices by itself ends the run."""
    config = small_config(text_file, steps=6, log_every=2, eval_every=3)
    train(config, tmp_path / "run", quiet())
    assert [line["step"] for line in logged(tmp_path / "run")] == [2, 3, 4, 6]
    monkeypatch.setattr(sharding, "put", lambda batch, mesh, batch_size: batch)
    with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
        train(config, tmp_path / "other", quiet())


def test_what_a_run_may_change_on_its_way_are_settings():
    names = library.config_lib.flat(small_config())
    for name in library._FREE:
        assert any(setting.startswith(name) for setting in names), name


@pytest.mark.slow
def test_a_trace_of_the_steps_asked_for(text_file, tmp_path):
    config = small_config(text_file, steps=6, profile__at=3, profile__steps=2)
    train(config, tmp_path / "run", quiet())
    (trace,) = (tmp_path / "run" / "profile").rglob("*.xplane.pb")
    assert trace.stat().st_size > 0


@pytest.mark.slow
def test_a_compile_cache_is_filled(text_file, tmp_path):
    done = run(command(text_file, tmp_path / "run", f"--config.compile_cache={tmp_path}/cache"))
    assert done.returncode == 0, done.stderr
    assert any("train_step" in path.name for path in (tmp_path / "cache").iterdir())
