"""What the encoders share: initializers, sharding of hidden states, layer stacks, post-LN blocks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from electra_jax.modeling import cudnn_attention, fused_attention
from electra_jax.modeling.activations import gelu
from electra_jax.modeling.config import EncoderConfig
from electra_jax.modeling.dense import Dense
from electra_jax.modeling.dropout import Dropout
from electra_jax.modeling.layer_norm import LayerNorm
from electra_jax.runtime import sharding

Array = jax.Array
Initializer = Callable[..., Array]


def truncated_normal(stddev: float) -> Initializer:
    """Returns BERT's initializer: a normal truncated at two sigma; the samples' deviation is .88 of `stddev`."""
    return nn.initializers.truncated_normal(stddev, lower=-2.0, upper=2.0)


def shard_batch(x_BLD: Array) -> Array:
    """Shards hidden states over the batch axis only; does nothing without a mesh.

    Under FSDP, parameters and batch are sharded over the same mesh axis. The constraint makes the partitioner gather
    the parameters, which are smaller, instead of the states.
    """
    return _constrain(x_BLD, PartitionSpec(sharding.BATCH))


def shard_vocab(table_VE: Array) -> Array:
    """Shards an embedding table over the vocabulary axis only, so that a lookup returns whole rows."""
    return _constrain(table_VE, PartitionSpec("tensor"))


def _constrain(x: Array, spec: PartitionSpec) -> Array:
    # Without a mesh the constraint would be an error.
    return x if jax.sharding.get_abstract_mesh().empty else jax.lax.with_sharding_constraint(x, spec)


# Names (`checkpoint_name`) of what `remat=dots` saves of a layer for the backward pass: enough to recompute no matrix
# products, except the scores of plain attention. Sums with the residual are saved instead of the products in them,
# since layer norms need the sums; a norm's mean and rate are two numbers for each position.
KEPT = ("qkv", "attended", "sum", "norm", "ffn_in")
# Also saved by unrolled layers on NVIDIA GPUs: the forward pass writes it for the next product anyway, and the backward
# pass need not write it again. In a scan it would be copied, and the chips of TPU plans have less memory.
ACTIVATED = "activated"


def remat_policy(config: EncoderConfig) -> Any:
    """Returns the checkpoint policy of a network's layers; None saves only a layer's input."""
    if config.remat == "full":
        return None
    kind = fused_attention.device_kind(jax.sharding.get_abstract_mesh())
    names = (*KEPT, ACTIVATED) if config.unroll and _has_memory(config, kind) else KEPT
    policies = jax.checkpoint_policies
    return policies.save_from_both_policies(policies.save_only_these_names(*names), cudnn_attention.is_forward)


# For v3:4x4, base (12 layers) compiles unrolled in two minutes; large (24) had not after ten, and had taken 10 GB.
_MOST_UNROLLED = 16
_MOST_ON_GPU = 24


def _has_memory(config: EncoderConfig, device_kind: str) -> bool:
    """True on NVIDIA GPUs, unless `remat=full` is set or plain attention, which DeBERTa needs, fills their memory."""
    # On one H100, large with remat=full takes 13.2 GiB unrolled and 11.4 scanned (batch of 128), DeBERTa-Large, in
    # parts of 64 sequences, 77 unrolled and 49 scanned.
    return cudnn_attention.is_nvidia_gpu(device_kind) and config.remat != "full" and config.architecture.fused


def is_unrolled(unroll: str, config: EncoderConfig, device_kind: str) -> bool:
    """True if a train step unrolls a network's layers, by `config.model.unroll`.

    A scan copies each layer's parameters, gradients and residuals for the backward pass out of and into stacked arrays.
    A train step is compiled once and runs often; other programs scan over the layers.

    Args:
      unroll: the setting.
      config: the network.
      device_kind: JAX's name of the devices.
    """
    most = _MOST_ON_GPU if _has_memory(config, device_kind) else _MOST_UNROLLED
    return unroll == "true" or (unroll == "auto" and config.layers <= most)


def stack(layer: type[nn.Module], config: EncoderConfig, in_axes: Any) -> Any:
    """Makes a module of `config.layers` copies of `layer`, scanned or unrolled; parameters are stacked along axis 0.

    Args:
      layer: a module whose `__call__(x, *inputs)` returns `(x, None)`.
      config: the encoder's config.
      in_axes: for each of `inputs`, `nn.broadcast` if all layers share it, or 0 if each layer has an entry.
    """
    if config.remat != "none":
        # XLA's CSE could merge the recomputation with the original; inside a scan the loop body keeps them apart.
        layer = nn.remat(layer, policy=remat_policy(config), prevent_cse=config.unroll)
    return nn.scan(
        layer,
        variable_axes={"params": 0},
        # Each layer draws its own initial values and its own dropout.
        split_rngs={"params": True, "dropout": True},
        in_axes=in_axes,
        length=config.layers,
        unroll=config.layers if config.unroll else 1,
    )


def sequence_positions(sequence_ids_BL: Array) -> Array:
    """Computes positions counted from the start of each sequence, [B, L] int32."""
    position_L = jnp.arange(sequence_ids_BL.shape[1], dtype=jnp.int32)[None]
    # Whether the first token counts as a start makes no difference: its index is 0, the value of no start.
    previous = jnp.pad(sequence_ids_BL[:, :-1], ((0, 0), (1, 0)))
    starts = jnp.where(sequence_ids_BL != previous, position_L, jnp.int32(0))
    return position_L - jax.lax.cummax(starts, axis=1)


def finish_layer(c: EncoderConfig, x_BLD: Array, attended_BLD: Array, train: bool) -> Array:
    """Computes the rest of a post-LN layer after attention: sum, norm, feed-forward layer, sum, norm.

    To be called in the layer's `__call__`, whose submodules the parts become.

    Args:
      c: the encoder's config.
      x_BLD: the layer's input.
      attended_BLD: the output of its attention.
      train: whether dropout is on.
    """

    def dense(features: int, name: str) -> Dense:
        return Dense(features, truncated_normal(c.init_stddev), dtype=c.dtype, name=name)

    drop, epsilon = Dropout(c.dropout), c.architecture.epsilon
    x_BLD = checkpoint_name(shard_batch(x_BLD + drop(attended_BLD, train)), "sum")
    x_BLD = LayerNorm(epsilon, True, c.dtype, name="attention_norm")(x_BLD)
    h_BLF = checkpoint_name(gelu(checkpoint_name(dense(c.ffn, "ffn_in")(x_BLD), "ffn_in")), ACTIVATED)
    h_BLD = dense(c.width, "ffn_out")(h_BLF)
    x_BLD = checkpoint_name(shard_batch(x_BLD + drop(h_BLD, train)), "sum")
    normed: Array = LayerNorm(epsilon, True, c.dtype, name="ffn_norm")(x_BLD)
    return normed
