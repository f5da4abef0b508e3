import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax.modeling.attention import Visible

BOTH = [
    [1, 1, 0, 0, 0],
    [1, 1, 0, 0, 0],
    [0, 0, 1, 0, 0],
    [0, 0, 0, 1, 1],
    [0, 0, 0, 1, 1],
]
BEFORE = [
    [1, 0, 0, 0, 0],
    [1, 1, 0, 0, 0],
    [0, 0, 1, 0, 0],
    [0, 0, 0, 1, 0],
    [0, 0, 0, 1, 1],
]


@pytest.mark.parametrize(
    ("direction", "expected"), [("both", BOTH), ("before", BEFORE), ("after", np.transpose(BEFORE))]
)
def test_a_position_sees_its_own_sequence(direction, expected):
    seen = Visible(jnp.asarray([[1, 1, 2, 0, 0]]), direction).mask()
    np.testing.assert_array_equal(seen, np.asarray([[expected]], bool))
