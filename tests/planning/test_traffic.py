import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from electra_jax.planning import hlo
from electra_jax.planning.traffic import Traffic, count_traffic
from electra_jax.runtime import sharding

PROGRAM = """\
HloModule jit_f, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

%inner (p: f32[5,100,10], n: s32[]) -> f32[100,10] {
  %p = f32[5,100,10]{2,1,0} parameter(0)
  %n = s32[] parameter(1)
  %zero = s32[] constant(0)
  %cut = f32[1,100,10]{2,1,0} dynamic-slice(%p, %n, %zero, %zero), dynamic_slice_sizes={1,100,10}
  ROOT %flat = f32[100,10]{1,0} bitcast(%cut)
}

%sliced (p.1: f32[5,100,10], n.1: s32[], w: f32[10,10]) -> f32[100,10] {
  %p.1 = f32[5,100,10]{2,1,0} parameter(0)
  %n.1 = s32[] parameter(1)
  %w = f32[10,10]{1,0} parameter(2)
  %one = f32[100,10]{1,0} fusion(%p.1, %n.1), kind=kLoop, calls=%inner
  ROOT %dot = f32[100,10]{1,0} dot(%one, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%kept (all: f32[5,100,10], new: f32[100,10], n.2: s32[]) -> f32[5,100,10] {
  %all = f32[5,100,10]{2,1,0} parameter(0)
  %new = f32[100,10]{1,0} parameter(1)
  %n.2 = s32[] parameter(2)
  %z = s32[] constant(0)
  %row = f32[1,100,10]{2,1,0} bitcast(%new)
  ROOT %up = f32[5,100,10]{2,1,0} dynamic-update-slice(%all, %row, %n.2, %z, %z)
}

%body (s.1: (s32[], f32[5,100,10], f32[5,100,10], f32[10,10])) -> (s32[], f32[5,100,10], f32[5,100,10], f32[10,10]) {
  %s.1 = (s32[], f32[5,100,10]{2,1,0}, f32[5,100,10]{2,1,0}, /*index=3*/f32[10,10]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s.1), index=0
  %from = f32[5,100,10]{2,1,0} get-tuple-element(%s.1), index=1
  %to = f32[5,100,10]{2,1,0} get-tuple-element(%s.1), index=2
  %w.1 = f32[10,10]{1,0} get-tuple-element(%s.1), index=3
  %f.1 = f32[100,10]{1,0} fusion(%from, %i, %w.1), kind=kOutput, calls=%sliced, metadata={op_name="a/dot"}
  %r = f32[100,10]{1,0} all-reduce(%f.1), replica_groups={{0,1,2,3},{4,5,6,7}}, metadata={op_name="a/sum"}
  %f.2 = f32[5,100,10]{2,1,0} fusion(%to, %r, %i), kind=kLoop, calls=%kept
  ROOT %t = (s32[], f32[5,100,10]{2,1,0}, f32[5,100,10]{2,1,0}, f32[10,10]{1,0}) tuple(%i, %from, %f.2, %w.1)
}

%cond (s.2: (s32[], f32[5,100,10], f32[5,100,10], f32[10,10])) -> pred[] {
  %s.2 = (s32[], f32[5,100,10]{2,1,0}, f32[5,100,10]{2,1,0}, f32[10,10]{1,0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%s.2), index=0
  %five = s32[] constant(5)
  ROOT %lt = pred[] compare(%i.2, %five), direction=LT
}

ENTRY %main (a: (s32[], f32[5,100,10], f32[5,100,10], f32[10,10])) -> f32[8,100] {
  %a = (s32[], f32[5,100,10]{2,1,0}, f32[5,100,10]{2,1,0}, f32[10,10]{1,0}) parameter(0)
  %loop = (s32[], f32[5,100,10]{2,1,0}, f32[5,100,10]{2,1,0}, f32[10,10]{1,0}) while(%a), condition=%cond, body=%body
  %b = bf16[100]{0:T(256)S(1)} constant({...})
  ROOT %g = bf16[8,100]{1,0} all-gather(%b), replica_groups=mesh['x'=8] {'x'}, dimensions={0}
}
"""


def traffic(text: str, devices: int) -> Traffic:
    return count_traffic(hlo.Program(text), devices)


def test_a_small_program_is_counted_as_by_hand():
    counted = traffic(PROGRAM, devices=8)
    row, weights = 4 * 100 * 10, 4 * 10 * 10
    by_source = {(moved.opcode, moved.source): moved.bytes for moved in counted.moved if moved.bytes}
    # A slice of a row, the scalar that says which, the weights, a row out; five times.
    assert by_source["fusion", "a/dot"] == 5 * (row + 4 + weights + row)
    assert by_source["all-reduce", "a/sum"] == 5 * 2 * row
    assert by_source["fusion", ""] == 5 * (row + 4 + row)  # a row and its number in, that row of five out
    assert by_source["all-gather", ""] == 2 * 8 * 100  # what it gathers lies in the device's own memory
    assert counted.bytes == sum(by_source.values())

    reduce, gather = sorted(counted.collectives, key=lambda each: each.devices)
    assert (reduce.kind, reduce.times, reduce.devices, reduce.bytes) == ("all-reduce", 5, 4, 5 * row)
    assert reduce.sent == 5 * 2 * 3 / 4 * row  # each part goes round the ring twice
    assert (gather.kind, gather.times, gather.devices, gather.bytes) == ("all-gather", 1, 8, 1600)
    assert gather.sent == 7 / 8 * 1600
    assert counted.sent == reduce.sent + gather.sent


def scanned(unroll: int):
    def loss(weights, x):
        return jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights, unroll=unroll)[0])

    return jax.jit(jax.grad(loss)).lower(jnp.zeros((6, 64, 64)), jnp.zeros((128, 64))).compile()


def test_an_asynchronous_fusion_moves_what_it_moves_otherwise():
    """As JAX 0.11 and 0.12 write the slices and the updates of a scan for GPUs."""
    shapes = {
        "f.1": "(f32[5,100,10]{2,1,0}, s32[], f32[10,10]{1,0})",
        "f.2": "(f32[5,100,10]{2,1,0}, f32[100,10]{1,0}, s32[])",
    }
    text = PROGRAM
    for name, operands in shapes.items():
        found = re.search(rf"%{name} = (\S+) fusion(\(.*)", text)
        start = f"%start.{name} = ({operands}, {found[1]}, u32[]) fusion-start{found[2]}"
        text = text.replace(found[0], f"{start}\n  %{name} = {found[1]} fusion-done(%start.{name})")
    assert traffic(text, devices=8) == traffic(PROGRAM, devices=8)


def test_a_loop_counts_as_often_as_it_runs():
    """Of a program without a loop the bytes are XLA's; of one with it they are, but that XLA counts its body once."""
    written_out, loop = scanned(6), scanned(1)
    assert traffic(written_out.as_text(), 1).bytes == written_out.cost_analysis()["bytes accessed"]
    moved = traffic(loop.as_text(), 1).moved
    assert {each.times for each in moved} == {1, 6}
    once = sum(each.bytes / each.times for each in moved)
    assert once == pytest.approx(loop.cost_analysis()["bytes accessed"], rel=0.1)
    assert sum(each.bytes for each in moved) > 2 * once


def test_a_fused_gather_reads_what_it_takes_and_a_scatter_reads_and_writes_what_it_touches():
    """As XLA:GPU compiles the loss of a token among 300 and its gradient: of 4 x 300 logits, 4 are needed."""
    text = """\
%taken (logits: f32[4,300], largest: f32[4], which: s32[4,2]) -> f32[4] {
  %logits = f32[4,300]{1,0} parameter(0)
  %largest = f32[4]{0} parameter(1)
  %rows = f32[4,300]{1,0} broadcast(%largest), dimensions={0}
  %less = f32[4,300]{1,0} subtract(%logits, %rows)
  %more = f32[4,300]{1,0} exponential(%less)
  %both = f32[4,300]{1,0} multiply(%more, %less)
  %flat = f32[4,3,100]{2,1,0} bitcast(%both)
  %which = s32[4,2]{1,0} parameter(2)
  %one = f32[4,1,1]{2,1,0} gather(%flat, %which), offset_dims={1,2}, start_index_map={0,1}, slice_sizes={1,1,1}
  ROOT %out = f32[4]{0} bitcast(%one)
}

%added (zeros: f32[4,300], which.1: s32[4,2], gradient: f32[4]) -> f32[4,300] {
  %zeros = f32[4,300]{1,0} parameter(0)
  %which.1 = s32[4,2]{1,0} parameter(1)
  %gradient = f32[4]{0} parameter(2)
  %negative = f32[4]{0} negate(%gradient)
  %updates = f32[4,1,1]{2,1,0} bitcast(%negative)
  ROOT %sum = f32[4,300]{1,0} scatter(%zeros, %which.1, %updates), update_window_dims={1,2}, to_apply=%add
}

ENTRY %main (a: f32[4,300], b: f32[4], c: s32[4,2]) -> f32[4,300] {
  %a = f32[4,300]{1,0} parameter(0)
  %b = f32[4]{0} parameter(1)
  %c = s32[4,2]{1,0} parameter(2)
  %loss = f32[4]{0} fusion(%a, %b, %c), kind=kLoop, calls=%taken, metadata={op_name="take"}
  ROOT %f = f32[4,300]{1,0} fusion(%a, %c, %loss), kind=kInput, calls=%added, metadata={op_name="add"}
}
"""
    four, indices = 4 * 4, 4 * 2 * 4
    found = {moved.source: moved.bytes for moved in traffic(text, 1).moved}
    assert found == {"take": four + four + indices + four, "add": four + indices + four + four}
    whole = text.replace("%flat = f32[4,3,100]{2,1,0} bitcast", "%flat = f32[4,3,100]{2,1,0} reduce-window")
    assert traffic(whole, 1).moved[0].bytes == 4 * 300 * 4 + four + indices + four


def test_of_a_conditional_the_branch_counts_that_moves_or_sends_the_least():
    """One branch moves 400 bytes twice and sends nothing; the other sends 40 bytes and moves 40 twice."""
    text = """\
%moves (x: f32[100], y: f32[10]) -> f32[10] {
  %x = f32[100]{0} parameter(0)
  %y = f32[10]{0} parameter(1)
  %c = f32[100]{0} copy(%x)
  ROOT %t = f32[10]{0} bitcast(%y)
}

%sends (x.1: f32[100], y.1: f32[10]) -> f32[10] {
  %y.1 = f32[10]{0} parameter(1)
  ROOT %r = f32[10]{0} collective-permute(%y.1), source_target_pairs={{0,1}}
}

ENTRY %main (i: s32[], a: f32[100], b: f32[10]) -> f32[10] {
  %i = s32[] parameter(0)
  %a = f32[100]{0} parameter(1)
  %b = f32[10]{0} parameter(2)
  ROOT %d = f32[10]{0} conditional(%i, %a, %b), branch_computations={%moves, %sends}
}
"""
    counted = traffic(text, devices=2)
    assert (counted.bytes, counted.sent) == (2 * 40, 0)
    both = traffic(text.replace("%moves, ", "%sends, "), devices=2)
    assert (both.bytes, both.sent) == (2 * 40, 40)


def test_an_all_reduce_of_which_a_part_is_kept_is_a_reduce_scatter():
    """As the TPU's compiler writes it; S(3) is the memory that the two cores of v4 share."""
    text = """\
%scatter (input: bf16[64,10]) -> bf16[16,10] {
  %input = bf16[64,10]{1,0} parameter(0)
  %whole = bf16[64,10]{1,0} all-reduce(%input), replica_groups={{0,1,2,3}}, to_apply=%add
  %zero = s32[] constant(0)
  ROOT %part = bf16[16,10]{1,0:S(3)} dynamic-slice(%whole, %zero, %zero), dynamic_slice_sizes={16,10}
}

ENTRY %main (a: bf16[64,10]) -> bf16[16,10] {
  %a = bf16[64,10]{1,0} parameter(0)
  ROOT %f = bf16[16,10]{1,0:S(3)} fusion(%a), kind=kCustom, calls=%scatter, metadata={op_name="sum"}
}
"""
    counted = traffic(text, 8)
    assert counted.bytes == 2 * 64 * 10
    (found,) = counted.collectives
    assert (found.kind, found.source, found.devices, found.bytes) == ("reduce-scatter", "sum", 4, 2 * 16 * 10)
    assert found.sent == 3 / 4 * 2 * 64 * 10


@pytest.mark.parametrize(("axes", "devices"), [(("data",), 4), (("data", "tensor"), 8)])
def test_collectives_of_a_real_program(axes, devices):
    mesh = sharding.make_mesh(sharding.MeshConfig(4, 1, 2), 8)
    placed = jax.ShapeDtypeStruct((8, 1024), jnp.float32, sharding=NamedSharding(mesh, P(axes)))
    program = jax.jit(lambda x: jnp.sum(x, axis=0), out_shardings=sharding.replicated(mesh)).lower(placed).compile()
    (found,) = traffic(program.as_text(), 8).collectives
    assert (found.kind, found.devices, found.bytes) == ("all-reduce", devices, 4096)
