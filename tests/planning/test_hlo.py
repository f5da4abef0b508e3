import pytest

from electra_jax.planning import hlo


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[]", 4),
        ("bf16[3,5]{1,0:T(8,128)(2,1)}", 30),
        ("(pred[7]{0}, /*index=1*/s4[8]{0})", 11),
        ("f8e4m3fn[10]", 10),
        ("token[]", 0),
        ("f32[2]{0:T(128)S(1)}", 0),
    ],
)
def test_sizes(text, size):
    assert hlo.size(text) == size
