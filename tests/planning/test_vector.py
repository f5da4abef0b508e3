import jax
import jax.numpy as jnp
import pytest

from electra_jax.planning import hlo
from electra_jax.planning.vector import count_vector

PROGRAM = """\
HloModule jit_f

%max (l: bf16[], r: bf16[]) -> bf16[] {
  %l = bf16[] parameter(0)
  %r = bf16[] parameter(1)
  ROOT %m = bf16[] maximum(%l, %r)
}

%fused (x: f32[10,20]) -> bf16[10] {
  %x = f32[10,20]{1,0} parameter(0)
  %e = f32[10,20]{1,0} exponential(%x)
  %b = f32[10,20]{1,0} broadcast(%e), dimensions={0,1}
  %is = pred[10,20]{1,0} compare(%e, %b), direction=GT
  %both = pred[10,20]{1,0} and(%is, %is)
  %c = bf16[10,20]{1,0} convert(%e)
  %h = bf16[10,20]{1,0} multiply(%c, %c)
  %zero = bf16[] constant(0)
  ROOT %s = bf16[10]{0} reduce(%h, %zero), dimensions={1}, to_apply=%max
}

ENTRY %main (a: f32[10,20]) -> bf16[10] {
  %a = f32[10,20]{1,0} parameter(0)
  %dot = f32[10,20]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT %f = bf16[10]{0} fusion(%dot), kind=kLoop, calls=%fused
}
"""


def test_element_wise_operations_of_a_program_by_hand():
    assert count_vector(hlo.Program(PROGRAM)) == 4 * 200  # exponential, compare, multiply, reduce
    assert count_vector(hlo.Program(PROGRAM), packed16=True) == 2 * 200 + 2 * 100


@pytest.mark.parametrize(("steps", "expected"), [(1, 2), (7, 14)])
def test_those_of_a_loop_count_as_often_as_it_runs(steps, expected):
    def f(x):
        return jax.lax.fori_loop(0, steps, lambda _, x: jnp.tanh(x) * 1.5, x)

    text = jax.jit(f).lower(jnp.zeros(100_000)).compile().as_text()
    assert count_vector(hlo.Program(text)) == pytest.approx(expected * 100_000, rel=1e-3)  # and the loop's counter
