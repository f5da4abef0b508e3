import pytest

from electra_jax.planning import hlo
from electra_jax.planning.gpu_forecast import GpuRates, forecast
from electra_jax.planning.kernels import KernelCost

# A kilobyte of memory takes a second, a thousand operations another: the times can be read off the shapes.
RATES = GpuRates(products=1e3, attention=1e3, vector=1e3, memory=1e3, interconnect=1e3, launch=100.0)
GEMM = (
    'custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
    '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}'
)
PROGRAM = """\
HloModule jit_f, is_scheduled=true, num_partitions=2

%product (x: bf16[10,500], y: bf16[500,2]) -> (bf16[10,1], s8[9000]) {
  %x = bf16[10,500]{1,0} parameter(0)
  %y = bf16[500,2]{1,0} parameter(1)
  ROOT %gemm = (bf16[10,1]{1,0}, s8[9000]{0}) custom-call(%x, %y), GEMM
}

%body (s: (s32[], f32[250])) -> (s32[], f32[250]) {
  %s = (s32[], f32[250]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %v = f32[250]{0} get-tuple-element(%s), index=1
  %w = f32[250]{0} copy(%v)
  ROOT %t = (s32[], f32[250]{0}) tuple(%i, %w)
}

%cond (s.1: (s32[], f32[250])) -> pred[] {
  %s.1 = (s32[], f32[250]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %three = s32[] constant(3)
  ROOT %lt = pred[] compare(%i.1, %three), direction=LT
}

ENTRY %main (a: bf16[10,500], b: bf16[500,2], c: (s32[], f32[250])) -> f32[] {
  %a = bf16[10,500]{1,0} parameter(0)
  %b = bf16[500,2]{1,0} parameter(1)
  %c = (s32[], f32[250]{0}) parameter(2)
LINES
}
""".replace("GEMM", GEMM)


def run(*lines: str, kernels=None):
    return estimate(*lines, kernels=kernels).parts


def estimate(*lines: str, kernels=None):
    program = hlo.Program(PROGRAM.replace("LINES", "\n".join(f"  {line}" for line in lines)))
    return forecast(program, 2, RATES, kernels or {})


def test_a_product_takes_the_longer_of_its_operations_and_its_bytes():
    """2 x 10 x 500 x 2 operations; 12,040 bytes of operands and result are less than 20,000 operations."""
    parts = run(f"%d = (bf16[10,2]{{1,0}}, s8[9000]{{0}}) custom-call(%a, %b), {GEMM}")
    assert parts == {"products": 20.0, "attention": 0, "memory": 0, "collectives": 0, "launches": 100}
    narrow = run(f"%d = (bf16[10,1]{{1,0}}, s8[9000]{{0}}) custom-call(%a, %b), {GEMM}")
    assert narrow["products"] == pytest.approx(12.020)


def test_a_product_in_a_fusion_and_one_that_xla_computes_itself():
    called = "%d = (bf16[10,1]{1,0}, s8[9000]{0}) fusion(%a, %b), kind=kCustom, calls=%product"
    assert run(called)["products"] == pytest.approx(12.020)
    dot = "%d = bf16[10,2]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    assert run(dot)["products"] == 20.0


def test_a_product_of_float32_takes_twice_as_long_as_one_of_bfloat16():
    """Its rate is TF32's, whatever the dtype of its result."""
    wide = run(
        "%p = f32[10,500]{1,0} constant({...})",
        "%q = f32[500,9]{1,0} constant({...})",
        "%d = bf16[10,9]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    )
    assert wide["products"] == 2 * (2 * 10 * 500 * 9) / 1e3


def test_other_kernels_take_their_bytes_as_often_as_their_loop_runs():
    known = 'backend_config={"known_trip_count":{"n":"3"}}'
    parts = run(f"%d = (s32[], f32[250]{{0}}) while(%c), condition=%cond, body=%body, {known}")
    assert parts["memory"] == 3 * 2.0
    assert parts["launches"] == 3 * 100


def test_attention_of_cudnn_and_of_pallas():
    shape = '"cudnn_fmha_backend_config": {"intermediate_tensor_shape": {"dimensions": ["1", "1", "10", "50"]}}'
    for name, products in (("", 2), ("Backward", 5)):
        target = f'custom_call_target="__cudnn$fmhaSoftmax{name}", backend_config={{{shape}}}'
        parts = run(f"%d = (bf16[1,10,1,20]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%b), {target}")
        assert parts["attention"] == pytest.approx(2 * products * 10 * 50 * 20 / 1e3)
    kernel = (
        '%pallas_call.7 = f32[10]{0} custom-call(%b), custom_call_target="__gpu$xla.gpu.triton", '
        'metadata={op_name="jit(f)/layers/attention/pallas_call"}'
    )
    cost = {("attention", ("f32[10]",)): KernelCost(flops=3000, vector=4000)}
    assert run(kernel, kernels=cost)["attention"] == pytest.approx(7.0)
    assert estimate(kernel, kernels=cost).unestimated == []
    assert run(kernel)["attention"] == pytest.approx(2.04), "without a count, its bytes"
    assert estimate(kernel).unestimated == [(2.04, "kernel attention, by its bytes alone")]


def test_the_longest_branch_of_a_conditional_counts():
    """Branches of 1,500 and 3,000 bytes, and a launch for each instruction."""
    lines = ("%d = f32[375]{0} fusion()", "%d = f32[250]{0} fusion()\n  %e = f32[500]{0} fusion()")
    branches = "".join(f"%branch{n} () -> f32[] {{\n  {line}\n}}\n\n" for n, line in enumerate(lines))
    call = "%d = f32[] conditional(%a), branch_computations={%branch0, %branch1}"
    text = PROGRAM.replace("LINES", f"  {call}").replace("ENTRY", branches + "ENTRY")
    parts = forecast(hlo.Program(text), 2, RATES, {}).parts
    assert (parts["memory"], parts["launches"]) == (3.0, 200.0)


def test_a_collective_takes_what_a_device_sends():
    """In a ring of two, an all-reduce sends its 40 bytes once."""
    parts = run("%d = f32[] constant(1)", "%r = f32[10]{0} all-reduce(%d), replica_groups={{0,1}}, to_apply=%cond")
    assert parts["collectives"] == pytest.approx(0.04)
    assert parts["launches"] == 0
