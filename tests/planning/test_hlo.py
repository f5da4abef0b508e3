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


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (
            "jit(train_step)/transpose(jvp(Electra.encode))/encoder/while/body/closed_call/layers/ffn_out/dot_general",
            "encoder/layers/ffn_out, backward",
        ),
        ("jit(f)/jvp(E)/encoder/eval_jaxpr/checkpoint/layers/qkv/mul", "encoder/layers/qkv, forward"),
        ("jit(train_step)/jvp(Electra.generator_logits)/generator_head/norm/mul", "generator_head/norm, forward"),
        (
            "jit(train_step)/jvp(Electra.encode)/encoder/while/body/jit(dynamic_update_index_in_dim)/dynamic_update_slice",
            "encoder, kept for backward",
        ),
        ("jit(train_step)/add", "masking and optimizer"),
        ("jit(train_step)/jvp()/exp", "loss and sampling, forward"),
    ],
)
def test_places_are_modules_with_their_direction(source, name):
    assert hlo.place(source) == name


def test_a_fusion_without_a_name_is_what_it_calls():
    """As XLA:GPU writes a product that reads a slice."""
    text = """\
%inner (p: f32[3,4]) -> f32[4] {
  %p = f32[3,4]{1,0} parameter(0), metadata={op_name="p"}
  %product = f32[4]{0} custom-call(%p), metadata={op_name="jit(f)/layers/ffn_in/dot_general"}
  ROOT %flat = f32[4]{0} bitcast(%product)
}

ENTRY %main (a: f32[3,4]) -> f32[4] {
  %a = f32[3,4]{1,0} parameter(0)
  ROOT %dynamic_slice_fusion = f32[4]{0} fusion(%a), kind=kCustom, calls=%inner
}
"""
    program = hlo.Program(text)
    assert program.source(program.computations["main"]["dynamic_slice_fusion"]) == "jit(f)/layers/ffn_in/dot_general"
    assert program.source(program.computations["main"]["a"]) == ""
