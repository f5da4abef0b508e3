import device_profile
import jax
import jax.numpy as jnp
import pytest
from device_profile import _Event

from electra_jax.planning import hlo

_TEXT = """
HloModule jit_train_step

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %sum = f32[8]{0} add(%p, %p)
}

%cut (p: f32[9]) -> f32[8] {
  %whole = f32[9]{0} parameter(0)
  ROOT %part = f32[8]{0} slice(%whole), slice={[0:8]}
}

%moved (p: f32[9], n: s32[]) -> f32[8] {
  %r = f32[9]{0} parameter(0)
  %n = s32[] parameter(1)
  %next = s32[] add(%n, %n)
  ROOT %cut = f32[8]{0} dynamic-slice(%r, %next), dynamic_slice_sizes={8}
}

%body (p: f32[8]) -> f32[8] {
  %q = f32[8]{0} parameter(0)
  %dot.1 = f32[8]{0} dot(%q, %q), metadata={op_name="jit(train_step)/jvp(E)/encoder/layers/ffn_in/dot_general"}
  ROOT %loop_fusion.3 = f32[8]{0} fusion(%dot.1), calls=%fused, metadata={op_name="NAME"}
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %while.1 = f32[8]{0} while(%a), body=%body
  %wrapped_slice = f32[8]{0} fusion(%a), calls=%cut
  %loop_dynamic_slice_fusion = f32[8]{0} fusion(%a, %a), calls=%moved
  ROOT %all-reduce.1 = f32[8]{0} all-reduce(%while.1)
}
"""
PROGRAM = hlo.Program(_TEXT.replace("NAME", "jit(train_step)/transpose(jvp(E))/encoder/layers/norm/dot"))


def test_operations_are_summed_by_kind_and_place_and_a_loop_is_what_it_contains():
    stream = [
        _Event("while.1", 0, 8),
        _Event("dot.1", 0, 4),
        _Event("loop_fusion_3", 4, 7),  # XLA's kernel of loop_fusion.3; its name in JAX ends in dot, it has no product
        _Event("all-reduce.1", 8, 9),
    ]
    other = [_Event("sm90_xmma_gemm_bf16", 8, 10)]
    found = device_profile.summarize([stream, other], PROGRAM, steps=2)
    assert found.launches == 4 / 2
    assert found.kinds == pytest.approx({"matrix products": 0.6, "other": 0.3, "collectives": 0.1})
    assert found.places[0] == ("encoder/layers/ffn_in, forward", pytest.approx(0.4))
    assert dict(found.places)["encoder/layers/norm, backward"] == pytest.approx(0.3)
    assert dict(found.places)["sm90_xmma_gemm_bf16"] == pytest.approx(0.2)
    assert found.idle == 0


def test_kernels_that_only_move_data_are_copies():
    stream = [_Event("wrapped_slice", 0, 1), _Event("loop_dynamic_slice_fusion", 1, 3), _Event("loop_fusion_3", 3, 4)]
    found = device_profile.summarize([stream], PROGRAM)
    assert found.kinds == pytest.approx({"copies": 0.75, "other": 0.25})


def test_the_device_is_idle_while_no_queue_has_an_operation():
    first, second = [_Event("a", 0, 2), _Event("b", 6, 8)], [_Event("c", 1, 3)]
    assert device_profile.summarize([first, second], PROGRAM).idle == pytest.approx(3 / 8)
    assert device_profile.summarize([], PROGRAM).idle == 0


def test_a_real_profile(tmp_path):
    matrix = jnp.ones((256, 256))
    compiled = jax.jit(lambda x: jnp.sort(x @ x, axis=0)).lower(matrix).compile()
    found = device_profile.measure(lambda: [compiled(matrix) for _ in range(3)], 3, compiled.as_text(), tmp_path)
    assert {"matrix products", "other"} <= found.kinds.keys()
    assert sum(found.kinds.values()) == pytest.approx(1)
    assert 0 <= found.idle < 1
