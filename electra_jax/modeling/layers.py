"""What both encoders are made of: initialisers, layer norm, self-attention, and a stack of equal layers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

from electra_jax.modeling.config import EncoderConfig
from electra_jax.runtime import sharding

Array = jax.Array


def truncated_normal(stddev: float) -> Callable[..., Array]:
    """BERT's initialiser: normal, cut at two standard deviations (and so .88 of `stddev` wide in the end)."""
    return nn.initializers.truncated_normal(stddev, lower=-2.0, upper=2.0)


def gelu(x: Array) -> Array:
    """x times the normal distribution function; by erf, since `jax.nn.gelu`'s erfc takes twice as long on CPU."""
    return 0.5 * x * (1.0 + jax.lax.erf(x * 0.5**0.5))


def shard_batch(x_BLD: Array) -> Array:
    """States, split over the mesh in use (`ShardedStep.jit`) by example and by nothing else; without a mesh, as they are.

    Where parameters are split along the same axis of the mesh as the batch, this tells the partitioner to gather the
    parameters, which are smaller, and not the states.
    """
    return _constrained(x_BLD, PartitionSpec(sharding.BATCH))


def shard_vocab(table_VE: Array) -> Array:
    """A table, split over the mesh in use by entry and by nothing else: what is looked up is whole."""
    return _constrained(table_VE, PartitionSpec("tensor"))


def _constrained(x: Array, spec: PartitionSpec) -> Array:
    return x if jax.sharding.get_abstract_mesh().empty else jax.lax.with_sharding_constraint(x, spec)


class LayerNorm(nn.Module):
    """Layer norm in float32, whatever comes in; what goes out is of `dtype`."""

    epsilon: float
    use_bias: bool
    dtype: Any

    @nn.compact
    def __call__(self, x: Array) -> Array:
        norm = nn.LayerNorm(self.epsilon, dtype=jnp.float32, use_bias=self.use_bias, use_fast_variance=False)
        nn.share_scope(self, norm)  # its parameters are this module's
        return norm(x.astype(jnp.float32)).astype(self.dtype)


class SelfAttention(nn.Module):
    """Multi-head self-attention; queries, keys and values in one matrix, softmax in float32.

    Attributes:
      config: the encoder it belongs to.
      use_bias: whether the projections have biases.
      out_stddev: of the output projection's initialiser.
      train: whether dropout is on.
      attention_dropout: whether dropout falls on the attention's probabilities too.
    """

    config: EncoderConfig
    use_bias: bool
    out_stddev: float
    train: bool
    attention_dropout: bool = True

    @nn.compact
    def __call__(self, x_BLD: Array, mask_B1LL: Array, rotate: Callable[[Array], Array] = lambda x: x) -> Array:
        """Attends where the mask holds; `rotate` is applied to queries and keys [B, L, H, K], for rotary positions."""
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
        weights = jax.nn.softmax(jnp.where(mask_B1LL, scores, jnp.finfo(jnp.float32).min)).astype(c.dtype)
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


# By name, what is kept for the backward pass; None: nothing but the layer's input.
_KEPT = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}


def stack(layer: type[nn.Module], config: EncoderConfig, in_axes: Any) -> Any:
    """`config.layers` copies of `layer`, their parameters stacked on a first axis, scanned or written out.

    `layer.__call__(x, *inputs)` returns `(x, None)`; `in_axes` says of each input whether it is the same for all layers
    (`nn.broadcast`) or has an entry for each (0).
    """
    if config.remat != "none":
        # XLA may find the second computation equal to the first and drop it, unless a scan's body parts the two.
        layer = nn.remat(layer, policy=_KEPT[config.remat], prevent_cse=config.unroll)
    return nn.scan(
        layer,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=in_axes,
        length=config.layers,
        unroll=config.layers if config.unroll else 1,
    )


def same_sequence(sequence_ids_BL: Array) -> Array:
    """[B, 1, L, L]: whether two positions belong to one sequence. Padding (0) sees only padding."""
    return (sequence_ids_BL[:, :, None] == sequence_ids_BL[:, None, :])[:, None]


def sequence_positions(sequence_ids_BL: Array) -> Array:
    """[B, L] int32: each position's place within its own sequence."""
    position_L = jnp.arange(sequence_ids_BL.shape[1], dtype=jnp.int32)[None]
    previous = jnp.pad(sequence_ids_BL[:, :-1], ((0, 0), (1, 0)))
    starts = jnp.where(sequence_ids_BL != previous, position_L, jnp.int32(0))
    return position_L - jax.lax.cummax(starts, axis=1)
