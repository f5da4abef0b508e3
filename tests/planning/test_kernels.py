import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from electra_jax.modeling import pallas_attention, triton_attention
from electra_jax.modeling.pallas_tiles import Form
from electra_jax.planning import hlo
from electra_jax.planning.kernels import KernelCost, count_kernels, signature

ROWS, WIDTH = 256, 128


def kernel(x_ref, w_ref, out_ref):
    def turn(_, x):
        return x * 2.0 + 1.0

    x = jax.lax.fori_loop(0, 3, turn, x_ref[...])
    out_ref[...] = jnp.exp(jnp.dot(x, w_ref[...]))

    @pl.when(pl.program_id(0) == 0)
    def _():
        out_ref[...] = -out_ref[...]


def call(x, turns=None, name="attend"):
    def body(x_ref, w_ref, out_ref):
        kernel(x_ref, w_ref, out_ref)
        if turns is not None:
            out_ref[...] = jax.lax.fori_loop(0, turns + pl.program_id(0), lambda _, x: jnp.abs(x), out_ref[...])

    block = pl.BlockSpec((64, WIDTH), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32),
        grid=(ROWS // 64,),
        in_specs=[block, pl.BlockSpec((WIDTH, WIDTH), lambda i: (0, 0))],
        out_specs=block,
        name=name,
    )(x, jnp.zeros((WIDTH, WIDTH)))


X = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
NAME = ("attend", (f"f32[{ROWS},{WIDTH}]",))


def test_a_kernel_counts_by_its_grid_its_loops_and_its_longer_branch():
    flops = 2 * ROWS * WIDTH * WIDTH
    vector = (3 * 2 + 5 + 1) * ROWS * WIDTH  # the loop, an exponential, the branch
    assert count_kernels(jax.make_jaxpr(call)(X)) == {NAME: KernelCost(flops, vector)}


def test_kernels_are_found_inside_loops_and_functions():
    def f(x):
        return jax.lax.scan(lambda x, _: (jax.jit(call)(x), None), x, None, length=5)[0]

    # A call's cost; how often it is called says the compiled program.
    assert count_kernels(jax.make_jaxpr(f)(X)) == count_kernels(jax.make_jaxpr(call)(X))


def test_of_two_kernels_with_one_signature_the_larger_counts():
    larger = count_kernels(jax.make_jaxpr(lambda x: call(x, turns=4))(X))
    assert count_kernels(jax.make_jaxpr(lambda x: call(call(call(x), turns=4)))(X)) == larger


def test_forms_of_attention_are_told_apart():
    length, width = 512, 128
    qkv, ids = jnp.zeros((1, length, 3 * width)), jnp.zeros((1, length), jnp.int32)

    def attend(number):
        branches = [
            lambda form=form: pallas_attention.forward(form, qkv, ids, jnp.zeros(5, jnp.uint32))
            for form in (Form(2), Form(2, reach=64), Form(2, rate=0.1))
        ]
        return jax.lax.switch(number, branches)

    found = {name: cost for (name, _), cost in count_kernels(jax.make_jaxpr(attend)(0)).items()}
    assert set(found) == {"attention", "attention_local", "attention_dropout"}
    assert found["attention_local"].flops < 0.8 * found["attention"].flops
    assert found["attention_dropout"].flops == found["attention"].flops
    assert found["attention_dropout"].vector > found["attention"].vector


def test_a_loop_whose_length_depends_on_the_program_counts_with_the_mean():
    """Programs 0 to 3 make 4 to 7 turns."""
    found = count_kernels(jax.make_jaxpr(lambda x: call(x, turns=4))(X))[NAME]
    assert found == KernelCost(2 * ROWS * WIDTH * WIDTH, (3 * 2 + 5 + 1 + 5.5) * ROWS * WIDTH)


def test_a_loop_of_unknown_length_is_said():
    def body(x_ref, out_ref):
        out_ref[...] = jax.lax.fori_loop(0, x_ref[0, 0].astype(jnp.int32), lambda _, x: jnp.abs(x), x_ref[...])

    run = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32), name="attend")
    assert count_kernels(jax.make_jaxpr(run)(X)) == {NAME: KernelCost(0, ROWS * WIDTH, known=False)}


def test_causal_kernels_for_gpus_count_the_blocks_that_they_compute():
    """Of 256 positions, programs of 128 see 128 and 256, and four of 64 see 64 to 256; 2 products forward, 7 back."""
    qkv, ids, scalars = jnp.zeros((1, 256, 3 * WIDTH)), jnp.zeros((1, 256), jnp.int32), jnp.zeros(5, jnp.uint32)
    for direction in ("before", "after"):
        form = Form(2, rate=0.1, direction=direction)

        def attend(qkv, form=form):
            out, lse = triton_attention.forward(form, qkv, ids, scalars)
            return triton_attention.backward(form, qkv, ids, scalars, out, lse, out)

        found = {name: cost for (name, _), cost in count_kernels(jax.make_jaxpr(attend)(qkv)).items()}
        assert all(cost.known for cost in found.values())
        assert found["attention"].flops == 2 * WIDTH * 2 * 128 * (128 + 256)
        assert found["attention_backward"].flops == 2 * WIDTH * 7 * 64 * (64 + 128 + 192 + 256)


def test_a_step_without_kernels_has_none():
    assert count_kernels(jax.make_jaxpr(lambda x: jnp.exp(x @ x.T))(X)) == {}


def test_the_compiled_call_has_the_same_signature():
    text = f"""\
ENTRY %main (a: f32[{ROWS},{WIDTH}]) -> f32[{ROWS},{WIDTH}] {{
  %a = f32[{ROWS},{WIDTH}]{{1,0}} parameter(0)
  ROOT %attend.12 = f32[{ROWS},{WIDTH}]{{1,0:T(8,128)S(1)}} custom-call(%a), custom_call_target="tpu_custom_call"
}}
"""
    program = hlo.Program(text)
    assert program.has_kernels
    assert signature(program.computations["main"]["attend.12"]) == NAME
