"""The mutations can still be made: each text is in its file once, and the tests that it names are there."""

import mutations
import pytest


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.what)
def test_it_can_be_made(mutation):
    text = (mutations.ROOT / "electra_jax" / mutation.file).read_text(encoding="utf-8")
    assert text.count(mutation.before) == 1
    assert mutation.before != mutation.after
    assert all((mutations.ROOT / "tests" / name).exists() for name in mutation.tests.split())
