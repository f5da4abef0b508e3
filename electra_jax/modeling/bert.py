"""BERT's encoder: post-LN blocks with biases and exact GELU, as in the paper and `transformers.ElectraModel`."""

import jax
from flax import linen as nn

from electra_jax.modeling import layers
from electra_jax.modeling.config import EncoderConfig

EPSILON = 1e-12  # of every layer norm


class Layer(nn.Module):
    config: EncoderConfig
    train: bool

    @nn.compact
    def __call__(self, x_BLD: jax.Array, mask_B1LL: jax.Array) -> tuple[jax.Array, None]:
        c = self.config

        def dense(features: int, name: str) -> nn.Dense:
            return nn.Dense(features, dtype=c.dtype, kernel_init=layers.truncated_normal(c.init_stddev), name=name)

        drop = nn.Dropout(c.dropout, deterministic=not self.train)
        attended = layers.SelfAttention(c, use_bias=True, out_stddev=c.init_stddev, train=self.train, name="attention")(
            x_BLD, mask_B1LL
        )
        x_BLD = layers.shard_batch(x_BLD + drop(attended))
        x_BLD = layers.LayerNorm(EPSILON, True, c.dtype, name="attention_norm")(x_BLD)
        h_BLF = layers.gelu(dense(c.ffn, "ffn_in")(x_BLD))
        h_BLD = dense(c.width, "ffn_out")(h_BLF)
        x_BLD = layers.shard_batch(x_BLD + drop(h_BLD))
        return layers.LayerNorm(EPSILON, True, c.dtype, name="ffn_norm")(x_BLD), None


class Encoder(nn.Module):
    """Embeddings of any size in, hidden states out; a dense layer between where the sizes differ.

    The mask says which positions (second L) each position (first L) sees.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, x_BLE: jax.Array, mask_B1LL: jax.Array, train: bool) -> jax.Array:
        c = self.config
        x = layers.shard_batch(x_BLE)
        if x.shape[-1] != c.width:
            x = nn.Dense(c.width, dtype=c.dtype, kernel_init=nn.initializers.xavier_uniform(), name="project")(x)
        stack = layers.stack(Layer, c, in_axes=nn.broadcast)
        x_BLD, _ = stack(c, train, name="layers")(layers.shard_batch(x), mask_B1LL)
        return layers.shard_batch(x_BLD)
