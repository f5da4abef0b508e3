"""BERT's encoder, and the parts that ModernBERT's shares with it: initializers, layer norm, attention, layer stacks.

BERT's blocks are post-LN, with biases and exact GELU, as in the paper and in `transformers.ElectraModel`.
"""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import PartitionSpec

from electra_jax.modeling.config import EncoderConfig
from electra_jax.runtime import sharding

Array = jax.Array
EPSILON = 1e-12  # added to the variance in BERT's layer norms


def truncated_normal(stddev: float) -> Callable[..., Array]:
    """BERT's initializer: a normal distribution truncated at two sigma; the samples' deviation is .88 of `stddev`."""
    return nn.initializers.truncated_normal(stddev, lower=-2.0, upper=2.0)


def gelu(x: Array) -> Array:
    """Exact GELU, x times the normal CDF. Uses erf: the erfc of `jax.nn.gelu` takes twice as long on CPU."""
    return 0.5 * x * (1.0 + jax.lax.erf(x * 0.5**0.5))


def shard_batch(x_BLD: Array) -> Array:
    """Constrains states to be sharded over the current mesh by example only; does nothing without a mesh.

    Under FSDP, parameters and batch are split along the same axis. The constraint makes the partitioner gather the
    parameters, which are smaller, instead of the states.
    """
    return _constrain(x_BLD, PartitionSpec(sharding.BATCH))


def shard_vocab(table_VE: Array) -> Array:
    """Constrains a table to be sharded by entry only, so that a look-up returns whole rows."""
    return _constrain(table_VE, PartitionSpec("tensor"))


def _constrain(x: Array, spec: PartitionSpec) -> Array:
    return x if jax.sharding.get_abstract_mesh().empty else jax.lax.with_sharding_constraint(x, spec)


class LayerNorm(nn.Module):
    """Layer norm computed in float32, with output in `dtype`."""

    epsilon: float
    use_bias: bool
    dtype: Any

    @nn.compact
    def __call__(self, x: Array) -> Array:
        norm = nn.LayerNorm(self.epsilon, dtype=jnp.float32, use_bias=self.use_bias, use_fast_variance=False)
        nn.share_scope(self, norm)  # its parameters are this module's
        return cast(Array, norm(x.astype(jnp.float32)).astype(self.dtype))


class SelfAttention(nn.Module):
    """Multi-head self-attention with one matrix for queries, keys and values, and a float32 softmax.

    Attributes:
      config: the encoder's config.
      use_bias: whether the projections have biases.
      out_stddev: standard deviation of the output projection's initializer.
      train: whether dropout is on.
      attention_dropout: whether dropout also applies to the attention probabilities.
    """

    config: EncoderConfig
    use_bias: bool
    out_stddev: float
    train: bool
    attention_dropout: bool = True

    @nn.compact
    def __call__(self, x_BLD: Array, mask_B1LL: Array, rotate: Callable[[Array], Array] = lambda x: x) -> Array:
        """Attends where the mask is True; `rotate` maps queries and keys [B, L, H, K], for rotary positions."""
        c = self.config
        qkv = nn.DenseGeneral(
            (3, c.heads, c.head_size),
            use_bias=self.use_bias,
            dtype=c.dtype,
            kernel_init=truncated_normal(c.init_stddev),
            name="qkv",
        )(x_BLD)
        q_BLHK, k_BLHK, v_BLHK = (qkv[:, :, i] for i in range(3))
        # Not `nn.dot_product_attention`: with its float32 softmax, bfloat16 values would be summed in float32 too.
        scores = jnp.einsum(
            "bqhk,bshk->bhqs", rotate(q_BLHK) * c.head_size**-0.5, rotate(k_BLHK), preferred_element_type=jnp.float32
        )
        weights = jax.nn.softmax(jnp.where(mask_B1LL, scores, np.finfo(np.float32).min)).astype(c.dtype)
        drop = nn.Dropout(c.dropout, deterministic=not (self.train and self.attention_dropout))
        attended = jnp.einsum("bhqs,bshk->bqhk", drop(weights), v_BLHK)
        return nn.DenseGeneral(
            c.width,
            axis=(-2, -1),
            use_bias=self.use_bias,
            dtype=c.dtype,
            kernel_init=truncated_normal(self.out_stddev),
            name="out",
        )(attended)


# Checkpoint policies by the name of `remat`; None keeps only the layer's input for the backward pass.
_REMAT_POLICIES = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}


def stack(layer: type[nn.Module], config: EncoderConfig, in_axes: Any) -> Any:
    """`config.layers` copies of `layer` with parameters stacked along axis 0, scanned or unrolled.

    Args:
      layer: a module whose `__call__(x, *inputs)` returns `(x, None)`.
      config: the encoder's config.
      in_axes: for each of `inputs`, `nn.broadcast` where all layers share it, or 0 where each layer has an entry.
    """
    if config.remat != "none":
        # XLA's CSE could merge the recomputation with the original; inside a scan the loop body keeps them apart.
        layer = nn.remat(layer, policy=_REMAT_POLICIES[config.remat], prevent_cse=config.unroll)
    return nn.scan(
        layer,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=in_axes,
        length=config.layers,
        unroll=config.layers if config.unroll else 1,
    )


def same_sequence(sequence_ids_BL: Array) -> Array:
    """[B, 1, L, L] bool: whether two positions belong to the same sequence. Padding (0) attends to padding only."""
    return (sequence_ids_BL[:, :, None] == sequence_ids_BL[:, None, :])[:, None]


def sequence_positions(sequence_ids_BL: Array) -> Array:
    """[B, L] int32: positions counted from the start of each sequence."""
    position_L = jnp.arange(sequence_ids_BL.shape[1], dtype=jnp.int32)[None]
    previous = jnp.pad(sequence_ids_BL[:, :-1], ((0, 0), (1, 0)))
    starts = jnp.where(sequence_ids_BL != previous, position_L, jnp.int32(0))
    return position_L - jax.lax.cummax(starts, axis=1)


class BertLayer(nn.Module):
    config: EncoderConfig
    train: bool

    @nn.compact
    def __call__(self, x_BLD: Array, mask_B1LL: Array) -> tuple[Array, None]:
        c = self.config

        def dense(features: int, name: str) -> nn.Dense:
            return nn.Dense(features, dtype=c.dtype, kernel_init=truncated_normal(c.init_stddev), name=name)

        drop = nn.Dropout(c.dropout, deterministic=not self.train)
        attended = SelfAttention(c, use_bias=True, out_stddev=c.init_stddev, train=self.train, name="attention")(
            x_BLD, mask_B1LL
        )
        x_BLD = shard_batch(x_BLD + drop(attended))
        x_BLD = LayerNorm(EPSILON, True, c.dtype, name="attention_norm")(x_BLD)
        h_BLF = gelu(dense(c.ffn, "ffn_in")(x_BLD))
        h_BLD = dense(c.width, "ffn_out")(h_BLF)
        x_BLD = shard_batch(x_BLD + drop(h_BLD))
        return LayerNorm(EPSILON, True, c.dtype, name="ffn_norm")(x_BLD), None


class BertEncoder(nn.Module):
    """Maps embeddings to hidden states; a dense layer comes first where their sizes differ.

    The mask is True where a query (first L) may attend to a key (second L).
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, x_BLE: Array, mask_B1LL: Array, train: bool) -> Array:
        c = self.config
        x = shard_batch(x_BLE)
        if x.shape[-1] != c.width:
            x = nn.Dense(c.width, dtype=c.dtype, kernel_init=nn.initializers.xavier_uniform(), name="project")(x)
        layers = stack(BertLayer, c, in_axes=nn.broadcast)
        x_BLD, _ = layers(c, train, name="layers")(shard_batch(x), mask_B1LL)
        return shard_batch(x_BLD)
