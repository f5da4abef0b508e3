import importlib.util

import jax
import pytest

from electra_jax.config.errors import UserError
from electra_jax.runtime import cuda

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 12\n"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a GPU, its driver and JAX's plugin for CUDA 13, where no platform was chosen and JAX has a CPU."""
    (tmp_path / "nvidia0").touch()
    (tmp_path / "version").write_text(VERSION)
    monkeypatch.setattr(cuda, "_DEVICES", tmp_path)
    monkeypatch.setattr(cuda, "_VERSION", tmp_path / "version")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "jax_cuda13_plugin" or None)
    before = jax.config.values["jax_platforms"]
    jax.config.update("jax_platforms", "")
    yield tmp_path
    jax.config.update("jax_platforms", before)


def test_a_driver_that_is_too_old_is_named(machine):
    message = r"plugin for CUDA 13 cannot use .* \(driver 535.104.05\): expected driver 580 or later; .*\[cuda12\]"
    with pytest.raises(UserError, match=message):
        cuda.check_is_used()
    (machine / "version").unlink()
    with pytest.raises(UserError, match=r"\(driver unknown\)"):
        cuda.check_is_used()


def test_a_plugin_that_is_installed_is_not_advised(machine, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "jax_cuda12_plugin" or None)
    (machine / "version").write_text(VERSION.replace("535.104.05", "470.57.02"))
    with pytest.raises(UserError, match=r"plugin for CUDA 12 .* expected driver 525 or later; update it, or set"):
        cuda.check_is_used()


def test_a_plugin_that_cannot_be_loaded_is_not_blamed_on_the_driver(machine):
    (machine / "version").write_text(VERSION.replace("535.104.05", "580.65.06"))
    with pytest.raises(UserError, match=r"\(driver 580.65.06\): it cannot be loaded; JAX prints why"):
        cuda.check_is_used()


def test_a_cpu_that_was_chosen_or_is_all_there_is_is_used(machine, monkeypatch):
    jax.config.update("jax_platforms", "cpu")
    cuda.check_is_used()
    jax.config.update("jax_platforms", "")
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        cuda.check_is_used()
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        cuda.check_is_used()
    (machine / "nvidia0").unlink()
    cuda.check_is_used()
