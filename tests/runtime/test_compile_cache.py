import jax
import pytest

from electra_jax.config.errors import UserError
from electra_jax.runtime.compile_cache import compile_cache, folder


@pytest.fixture
def unset(monkeypatch, tmp_path):
    """JAX without a cache, as it is outside of tests; the user's cache folder is in `tmp_path`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    with compile_cache("none"):
        yield


def test_programs_are_kept_in_the_users_cache_folder(unset, tmp_path):
    before = dict(jax.config.values)
    with compile_cache("auto"):
        assert folder() == str(tmp_path / "user" / "electra_jax" / "compiled")
        assert jax.config.values["jax_compilation_cache_max_size"] == 4 * 2**30
    assert dict(jax.config.values) == before


def test_a_folder_that_jax_was_given_is_used(tmp_path):
    with compile_cache(str(tmp_path)), compile_cache("auto"):
        assert folder() == str(tmp_path)
        assert jax.config.values["jax_compilation_cache_max_size"] == -1, "whose folder it is decides what is deleted"


def test_contexts_of_threads_need_not_end_in_reverse_order(tmp_path):
    before = dict(jax.config.values)
    first, second = compile_cache(str(tmp_path / "a")), compile_cache(str(tmp_path / "b"))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert folder() == str(tmp_path / "b")
    second.__exit__(None, None, None)
    assert dict(jax.config.values) == before


def test_a_cache_folder_that_cannot_be_made_keeps_nothing(unset, tmp_path):
    (tmp_path / "user").write_text("a file")
    with compile_cache("auto"):
        assert folder() is None


def test_an_address_that_jax_would_fail_with_is_refused():
    with pytest.raises(UserError, match=r"config.compile_cache=file:///x is invalid: expected a folder or gs://"):
        compile_cache("file:///x").__enter__()
