"""Counts by hand: products x 2 x pairs of positions x width, for each layer."""

import pytest
from cli_runs import make_objective, small_config

from electra_jax.flops import attention
from electra_jax.modeling import pallas_tiles
from electra_jax.modeling.pallas_tiles import Form

LOCAL = {"modernbert__local_window": 8, "modernbert__global_every": 2}


def change(
    length: int,
    is_fused=lambda network: True,
    arg: str = "",
    is_unrolled: bool = False,
    is_gpu: bool = False,
    **settings,
) -> float:
    """With one layer of width 64 in each network, on one sequence."""
    sizes = {"layers": 1, "width": 64, "heads": 1, "generator_width": 1.0, **settings}
    config = small_config(arg=arg, **{f"model__{name}": value for name, value in sizes.items()})
    objective = make_objective(config, 60)
    return attention.change(objective, objective.stages[-1], 1, length, is_fused, lambda network: is_unrolled, is_gpu)


@pytest.mark.parametrize(("remat", "products"), [("none", 1), ("dots", 0), ("full", 1)])
def test_the_backward_kernel_computes_scores_again(remat, products):
    assert change(128, encoder="bert", remat=remat) == 2 * products * 2 * 128 * 128 * 64  # generator and encoder


def test_padding_is_computed():
    assert change(100, encoder="bert") == 2 * 2 * 64 * (7 * 128**2 - 6 * 100**2)


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_cudnn_computes_whole_sequences(remat):
    """Of ModernBERT's plain form, whose second layer is local, XLA counts scores that are computed again."""
    products = {"bert": 0 if remat == "dots" else 1, "modernbert": 0}
    for encoder, more in products.items():
        found = change(100, is_gpu=True, encoder=encoder, remat=remat, layers=2, generator_layers=1.0, **LOCAL)
        assert found == 2 * 2 * more * 2 * 100 * 100 * 64


def test_with_dropout_the_backward_kernel_for_gpus_computes_two_products_twice():
    settings = {"is_gpu": True, "encoder": "bert", "remat": "none"}
    more = change(128, **settings, dropout=0.1) - change(128, **settings, dropout=0.0)
    assert more == 2 * 2 * 2 * 128 * 128 * 64  # generator and encoder


def test_causal_kernels_for_gpus_skip_the_blocks_that_nothing_sees():
    """Of 256 positions, programs of 128 see 128 and 256, four of 64 see 64 to 256; 2 products forward, 7 backward."""
    settings = {"is_gpu": True, "arg": "objective=electric", "encoder": "bert", "remat": "none"}
    forward, backward = 128 * (128 + 256), 64 * (64 + 128 + 192 + 256)
    towers = 2 * (2 * forward + 7 * backward - 6 * 256**2)
    assert change(256, **settings, dropout=0.1) == 2 * 64 * (towers + (9 - 6) * 256**2)


def test_networks_without_the_kernel_do_not_count():
    assert change(128, lambda network: False, encoder="bert") == 0


def test_local_layers_compute_the_blocks_that_their_window_reaches():
    """128 queries see 64 positions to each side: three blocks of 128 keys, of 8."""
    assert pallas_tiles.pairs(Form(1, reach=64), 1024, 64) == 1024 * 3 * 128
    assert pallas_tiles.pairs(Form(1), 1024, 64) == 1024**2
    assert pallas_tiles.pairs(Form(1, reach=65), 1024, 64) == 1024 * 3 * 128
    assert pallas_tiles.pairs(Form(1, reach=129), 1024, 64) == 1024 * 5 * 128
    assert pallas_tiles.pairs(Form(1, reach=600), 1024, 64) == 1024**2


@pytest.mark.parametrize(
    ("remat", "is_unrolled", "products"),
    [("none", True, 6), ("none", False, 7), ("dots", True, 7), ("dots", False, 7), ("full", True, 9)],
)
def test_plain_local_layers_compute_blocks(remat, is_unrolled, products):
    """The first layer sees everything, the second 4 positions to each side: blocks of 16 queries and 24 keys."""
    settings = {"encoder": "modernbert", "layers": 2, "generator_layers": 1.0, "remat": remat}
    counted = {"none": 7, "dots": 7, "full": 9}[remat] * 2 * 128**2
    executed = products * (128**2 + 128 * 24)
    found = change(128, lambda network: False, is_unrolled=is_unrolled, **settings, **LOCAL)
    assert found == 2 * 2 * 64 * (executed - counted)  # generator and encoder


def test_plain_layers_without_blocks_are_counted_by_xla():
    """Blocks of 24 keys for 16 queries would be more than half of 32 x 32."""
    for is_unrolled in (False, True):
        assert change(32, lambda network: False, is_unrolled=is_unrolled, encoder="modernbert", layers=2, **LOCAL) == 0
