"""Corrects XLA's FLOP count of a step to the operations that attention executes.

XLA sees nothing inside a kernel, and counts the larger branch of a conditional. The count to correct is that of plain
attention in unrolled layers, before XLA has resolved which of them are local.
"""

import math
from collections.abc import Callable

from electra_jax.modeling import pallas_tiles, plain_attention
from electra_jax.modeling.config import EncoderConfig
from electra_jax.modeling.pallas_tiles import Form
from electra_jax.objectives.spec import Objective, Stage

# Number of matrix products of a training step over the pairs of positions whose scores are computed, by `remat`.
# Forward: scores, and the weighted sum. Backward, if the attention weights are kept: two for the gradient of each;
# `dots` recomputes the scores, `full` both products. If they are not kept: the same four and the scores again; only
# `full` recomputes the weighted sum.
_KEPT = {"none": 6, "dots": 7, "full": 8}
_NOT_KEPT = {"none": 7, "dots": 7, "full": 9}
# The backward kernel of `triton_attention` computes the scores and the gradient of the weights twice, so 7 products.
_TWICE = {"none": 9, "dots": 9, "full": 11}
_TRITON_BLOCKS = 128, 64  # its positions of a program, forward and backward, or the largest divisor of the length
_FORWARD = dict.fromkeys(_KEPT, 2)


def change(
    objective: Objective,
    stage: Stage,
    batch: int,
    length: int,
    is_fused: Callable[[EncoderConfig], bool],
    is_unrolled: Callable[[EncoderConfig], bool],
    is_gpu: bool,
) -> float:
    """Returns the operations of attention that a train step executes minus those that XLA counts; often negative.

    Args:
      objective: the run's objective.
      stage: the stage of the step.
      batch: global batch size, in sequences.
      length: sequence length, in tokens.
      is_fused: whether a network computes attention with the fused kernel.
      is_unrolled: whether a network's layers are unrolled.
      is_gpu: whether that kernel is one for NVIDIA GPUs, where local layers also compute the whole sequence; causal
        networks do so without attention dropout.
    """
    total = 0.0
    for each in stage.passes:
        config = objective.model.config
        network = config.encoder if each.network == "encoder" else config.generator
        assert network is not None
        towers = 2 if config.two_towers and each.network == "generator" else 1
        fused, unrolled = is_fused(network), is_unrolled(network)
        pairs = _change_in_pairs(network, length, fused, is_gpu, unrolled, each.trained)
        if towers == 2 and fused and is_gpu and network.attention_rate:
            pairs -= network.layers * _skipped(network.remat, length, each.trained)
        # The heads share the width, so a product over a pair takes 2 D operations whatever their number.
        total += towers * batch * 2 * network.width * pairs
    return total


def _skipped(remat: str, length: int, trained: bool) -> float:
    """Returns pairs times products that the kernels of `triton_attention` skip in a layer of a causal network: the
    blocks that a program's positions do not see."""
    forward, backward = ((length**2 - length * math.gcd(length, block)) / 2 for block in _TRITON_BLOCKS)
    return (_TWICE[remat] - 7) * forward + 7 * backward if trained else 2 * forward


def _change_in_pairs(
    network: EncoderConfig, length: int, fused: bool, gpu: bool, unrolled: bool, trained: bool
) -> float:
    """Returns the change for one sequence, in pairs of positions times products over them."""
    architecture, reach = network.architecture, network.architecture.reach(network)
    # `plain_attention.attend_local_or_global` decides at run time which layers are local. XLA resolves this in unrolled
    # layers without `remat`, and then reuses the weights of the forward pass in the backward pass.
    conditional = reach is not None and plain_attention.block_size(length, reach) is not None
    counted = _NOT_KEPT if conditional else _KEPT
    executed = _NOT_KEPT if fused or (conditional and not (unrolled and network.remat == "none")) else _KEPT
    if fused and gpu and network.attention_rate:
        executed = _TWICE
    if not trained:
        counted = executed = _FORWARD
    total = 0.0
    for layer in range(network.layers):
        reached = reach if architecture.is_local(network, layer) else None
        if fused and gpu:
            pairs = length**2
        elif fused:
            pairs = pallas_tiles.pairs(Form(network.heads, reach=reached), length, network.width)
        else:
            pairs = plain_attention.pairs(length, reached)
        # XLA counts the larger branch, global attention, for local layers too.
        total += executed[network.remat] * pairs - counted[network.remat] * length**2
    return total
