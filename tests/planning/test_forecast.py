import dataclasses

import pytest

from electra_jax.planning import hlo
from electra_jax.planning.forecast import Rates, forecast
from electra_jax.planning.kernels import KernelCost

# A cycle is a millisecond, a megabyte of memory a second, and so on: the times can be read off the shapes.
RATES = Rates(clock=1e3, peak=1e6, vector=1e5, bandwidth=4e3, interconnect=4e3)

PROGRAM = """\
HloModule jit_f, is_scheduled=true, num_partitions=2

%inside (x: f32[1000]) -> f32[1000] {
  %x = f32[1000]{0} parameter(0)
  ROOT %neg = f32[1000]{0} negate(%x), backend_config={"window_config":{"estimated_cycles":"99999"}}
}

%body (s: (s32[], f32[1000])) -> (s32[], f32[1000]) {
  %s = (s32[], f32[1000]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %v = f32[1000]{0} get-tuple-element(%s), index=1
  %f = f32[1000]{0} fusion(%v), kind=kLoop, calls=%inside, backend_config={"window_config":{"estimated_cycles":"200"}}
  ROOT %t = (s32[], f32[1000]{0}) tuple(%i, %f)
}

%cond (s.1: (s32[], f32[1000])) -> pred[] {
  %s.1 = (s32[], f32[1000]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %five = s32[] constant(5)
  ROOT %lt = pred[] compare(%i.1, %five), direction=LT
}

ENTRY %main (a: (s32[], f32[1000]), b: f32[1000]) -> f32[1000] {
  %a = (s32[], f32[1000]{0}) parameter(0)
  %b = f32[1000]{0} parameter(1)
  %loop = (s32[], f32[1000]{0}) while(%a), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %c = f32[1000]{0} get-tuple-element(%loop), index=1
LINES
}
"""


def run(*lines: str, kernels=None):
    program = hlo.Program(PROGRAM.replace("LINES", "\n".join(f"  {line}" for line in lines)))
    return forecast(program, 2, RATES, kernels or {})


def estimated(name: str, cycles: int) -> str:
    config = f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
    return f'%{name} = f32[1000]{{0}} copy(%c), metadata={{op_name="jit(f)/{name}"}}, {config}'


def test_cycles_count_as_often_as_their_loop_runs_and_not_inside_fusions():
    found = run(estimated("d", 500))
    assert found.parts["compiler"] == pytest.approx(5 * 0.2 + 0.5)
    assert found.seconds == found.parts["compiler"]
    assert found.unestimated == []


def test_what_has_no_estimate_takes_its_bytes_and_is_named():
    unknown = f'backend_config={{"window_config":{{"estimated_cycles":"{2**63 - 1}"}}}}'
    found = run(
        '%d = f32[1000]{0} reverse(%c), metadata={op_name="jit(f)/layer/flip"}',
        "%e = f32[] constant(1)",
        '%g = f32[] negate(%e), metadata={op_name="jit(f)/few_bytes"}',
        f'%h = f32[1000]{{0}} sort(%c), metadata={{op_name="jit(f)/sort"}}, {unknown}',
    )
    assert found.parts["other"] == pytest.approx(2 + 8 / 4e3 + 2)  # 4,000 bytes in and 4,000 out
    assert [name for _, name in found.unestimated] == ["sort of sort", "reverse of flip"]
    assert [seconds for seconds, _ in found.unestimated] == [2, 2]


GROUPS = "replica_groups={{0,1}}, to_apply=%sum"


def test_an_asynchronous_collective_waits_only_for_what_nothing_hides():
    """In a ring of two, an all-reduce sends its 4,000 bytes once: a second."""
    alone = run(f"%r = f32[1000]{{0}} all-reduce(%c), {GROUPS}")
    assert alone.parts["collectives"] == pytest.approx(1)
    start, done = f"%r = f32[1000]{{0}} all-reduce-start(%c), {GROUPS}", "%q = f32[1000]{0} all-reduce-done(%r)"
    assert run(start, estimated("d", 400), done).parts["collectives"] == pytest.approx(0.6)
    assert run(start, estimated("d", 1400), done).parts["collectives"] == 0
    second = [line.replace("%r", "%r2").replace("%q", "%q2") for line in (start, done)]
    # One at a time: the second ends two seconds after both started.
    assert run(start, second[0], estimated("d", 1400), done, second[1]).parts["collectives"] == pytest.approx(0.6)


def test_an_asynchronous_copy_runs_beside_the_work():
    start = "%r = (f32[1000]{0:S(1)}, f32[1000]{0}, u32[]{:S(2)}) copy-start(%c)"
    done = "%q = f32[1000]{0:S(1)} copy-done(%r)"
    assert run(start, done).parts["copies"] == pytest.approx(1)
    assert run(start, estimated("d", 250), done).parts["copies"] == pytest.approx(0.75)


def kernel(cost: str = "", metadata: str = "") -> str:
    """As XLA prints a Mosaic kernel; it breaks the line inside metadata."""
    config = f'backend_config={{"custom_call_config":{{"body":"AAAA"{cost}}}}}'
    return (
        '%attend.3 = f32[1000]{0} custom-call(%c), custom_call_target="tpu_custom_call", '
        f'frontend_attributes={{kernel_metadata={{{metadata}}}}}, metadata={{op_name="jit(f)/pallas_call"}}, {config}'
    )


COST = ',"cost_estimate":{"flops":"3000000","transcendentals":"50000","bytes_accessed":"7"}'
COUNTED = {("attend", ("f32[1000]",)): KernelCost(flops=1e6, vector=2e5)}


def test_a_kernel_takes_its_products_at_the_peak_and_its_vector_operations_after_them():
    found = run(kernel(COST, '\n"of":"a line"\n'), estimated("d", 10), kernels=COUNTED)
    assert found.parts["kernels"] == pytest.approx(1 + 2)
    assert found.parts["compiler"] == pytest.approx(1.01)
    assert found.unestimated == [(3, "kernel attend")]


def test_a_kernel_of_which_less_is_known_is_named():
    assert run(kernel(COST)).unestimated == [(3.5, "kernel attend, by its cost estimate alone")]
    assert run(kernel()).unestimated == [(2, "kernel attend, by its bytes alone")]
    loop = {name: dataclasses.replace(cost, known=False) for name, cost in COUNTED.items()}
    assert run(kernel(), kernels=loop).unestimated == [(3, "kernel attend, which has a loop of unknown length")]


def test_of_a_conditional_the_longest_branch_counts_and_is_named():
    lines = [estimated("d", 100) + "\n  ROOT %k = f32[1000]{0} reverse(%d)", estimated("d", 9000), kernel(COST)]
    branches = "\n".join(
        f"%branch{n} (p: f32[1000]) -> f32[1000] {{\n  %p = f32[1000]{{0}} parameter(0)\n  "
        + line.replace("%c", "%p")
        + "\n}\n"
        for n, line in enumerate(lines)
    )
    line = "%d = f32[1000]{0} conditional(%i, %c, %c, %c), branch_computations={%branch0, %branch1, %branch2}"
    text = PROGRAM.replace("LINES", f"  {line}").replace("ENTRY", branches + "\nENTRY")
    found = forecast(hlo.Program(text), 2, RATES, {})
    assert found.parts["compiler"] == pytest.approx(1 + 9)
    assert found.unestimated == []


def test_a_program_without_estimates_has_no_forecast():
    text = PROGRAM.replace("LINES", "").replace("estimated_cycles", "something")
    assert forecast(hlo.Program(text), 2, RATES, {}) is None
