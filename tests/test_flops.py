from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from runs import ROOT, small_config

from electra_jax import config as config_lib
from electra_jax import flops, optim, step
from electra_jax.modeling import config as model_config
from electra_jax.modeling.config import ElectraConfig, EncoderConfig
from electra_jax.modeling.electra import Electra


def encoder(kind: str, **shape: int) -> EncoderConfig:
    settings = {"layers": 1, "width": 4, "ffn": 8, "heads": 2, **shape}
    common = {"init_stddev": 0.02, "dropout": 0.0, "dtype": jnp.float32, "unroll": True}
    return EncoderConfig(kind=kind, **settings, **common, local_window=8, global_every=3)


def test_an_encoder_counted_by_hand():
    # 2 sequences of 3 tokens, D = 4, F = 8. Attention of a token: 4 matrices of 4 x 4, 2 products of 3 x 4.
    assert flops.encoder(encoder("bert"), 4, 2, 3) == (0, 6 * 2 * (4 * 16 + 2 * 3 * 4), 6 * 2 * (2 * 32))
    assert flops.encoder(encoder("modernbert"), 4, 2, 3)[2] == 6 * 2 * (3 * 32)  # the gate is a third matrix
    assert flops.encoder(encoder("bert"), 5, 2, 3)[0] == 6 * 2 * 5 * 4
    assert flops.encoder(encoder("bert", layers=7), 4, 2, 3)[1] == 7 * flops.encoder(encoder("bert"), 4, 2, 3)[1]


def test_heads_counted_by_hand():
    config = ElectraConfig(100, 6, 32, encoder("bert", width=2, heads=1), encoder("bert"))
    parts = flops.forward(config, batch=2, length=20, mask_prob=0.15)
    masked = 2 * 3  # int(.155 * 20) in each of two sequences
    assert parts["generator"].head == masked * 2 * 2 * 6
    assert parts["generator"].softmax == masked * 2 * 6 * 128  # the padded vocabulary is computed too
    assert parts["discriminator"].head == 40 * 2 * (4 * 4 + 4)
    assert parts["discriminator"].softmax == 0
    assert flops.train_step(config, 2, 20, 0.15) == 3 * (parts["generator"].total + parts["discriminator"].total)


@pytest.mark.parametrize(
    ("size", "length", "forward_flops"),
    [("small", 128, 3.05e9), ("base", 128, 2.63e10), ("base", 512, 1.158e11)],
)
def test_forward_of_the_papers_sizes_is_the_known_one(size, length, forward_flops):
    """Per sequence with gathers free, worked out from the formulas of the reference's flops_computation.py."""
    config = config_lib.load(ROOT / "configs" / f"{size}.py")
    model = model_config.from_settings(config.model, config.data.vocab_size)
    parts = flops.forward(model, 1, length, 0.15)
    assert parts["generator"].total + parts["discriminator"].total == pytest.approx(forward_flops, rel=0.03)


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_within_3_percent_of_what_xla_counts_in_the_unrolled_step(kind):
    config = small_config(model__encoder=kind, model__unroll=True, model__embedding_size=128)
    config.model.update(width=256, ffn=1024, heads=4, layers=2)
    model = Electra(model_config.from_settings(config.model, 4096))
    optimizer, schedule = optim.make(config.optim, 100)
    state = jax.eval_shape(lambda: step.init_state(model, optimizer, 0, 64))
    ids = jax.ShapeDtypeStruct((64, 64), jnp.int32)
    batch = {"input_ids": ids, "token_type_ids": ids, "sequence_ids": ids}
    train_step = jax.jit(step.make_train_step(model, optimizer, schedule, config.objective, 0))
    counted = train_step.lower(state, batch).compile().cost_analysis()["flops"]
    ours = flops.train_step(model.config, 64, 64, config.objective.mask_prob)
    assert ours == pytest.approx(counted, rel=0.03)


def test_the_peak_of_a_known_device_and_none_for_others():
    def peak(kind):
        return flops.peak(SimpleNamespace(device_kind=kind))

    assert peak("TPU v3") == 61.5e12  # a core, half a chip
    assert peak("NVIDIA H100 80GB HBM3") == peak("NVIDIA H200") == 989e12
    assert peak("NVIDIA H100 PCIe") == 756e12
    assert peak("cpu") is None
    assert peak("TPU v99") is None
