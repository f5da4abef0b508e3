import jax
import jax.numpy as jnp
import pytest

from electra_jax.config.errors import UserError
from electra_jax.runtime import jax_errors


def test_a_lack_of_memory_on_a_device_says_what_to_do():
    message = r"the memory of a device is not enough \(RESOURCE_EXHAUSTED: .*\); do this"
    with pytest.raises(UserError, match=message), jax_errors.reported("do this"):
        jnp.zeros(2**50, jnp.int8).block_until_ready()


def test_a_platform_that_is_not_there_is_named():
    message = r"Unable to initialize backend 'x'.*; install JAX for this device, or change"
    with pytest.raises(UserError, match=message), jax_errors.reported():
        raise RuntimeError("Unable to initialize backend 'x': it is not there\nmore")


def test_other_errors_are_left_alone():
    for error in (jax.errors.JaxRuntimeError("INTERNAL: x"), ValueError("x"), RuntimeError("x")):
        with pytest.raises(type(error)) as raised, jax_errors.reported():
            raise error
        assert raised.value is error


def test_a_cache_that_jax_would_fail_with_is_refused(monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "file://")
    with pytest.raises(UserError, match="JAX_COMPILATION_CACHE_DIR=file:// is invalid"):
        jax_errors.check_environment()
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "cache")
    jax_errors.check_environment()
