from types import SimpleNamespace

import pytest

from electra_jax.planning.flops.breakdown import Parts, together, until


def test_arithmetic():
    parts = Parts(embeddings=1, attention=2, ffn=3, head=4, softmax=5)
    assert parts.total == 15
    assert parts * 2 == Parts(2, 4, 6, 8, 10)
    assert parts + Parts(ffn=10) == Parts(1, 2, 13, 4, 5)
    assert together({"generator": parts, "encoder": Parts(head=100)}) == 115
    assert together({}) == 0


@pytest.mark.parametrize(("steps", "operations"), [(0, 0), (1, 7), (3, 21), (4, 21 + 50), (5, 21 + 100)])
def test_the_first_steps_of_a_run(steps, operations):
    """3 steps of 7 operations, then 2 of 50."""
    stages = [SimpleNamespace(steps=3), SimpleNamespace(steps=2)]

    def count(step: int) -> dict[str, Parts]:
        return {"generator": Parts(ffn=7)} if step < 3 else {"generator": Parts(ffn=9), "encoder": Parts(ffn=41)}

    assert until(steps, stages, count) == operations
