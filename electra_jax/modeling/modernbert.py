"""ModernBERT's encoder: pre-norm, rotary positions, gated layers, no biases, alternating local and global attention.

It computes what `transformers.ModernBertModel` computes (arXiv 2412.13663). If embedding size and width differ, a
linear map without bias precedes the first norm; multiplied into the word table, it gives a plain ModernBERT.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from electra_jax.modeling import transformer
from electra_jax.modeling.activations import ACTIVATIONS
from electra_jax.modeling.attention import SelfAttention, Visible
from electra_jax.modeling.config import EncoderConfig
from electra_jax.modeling.dense import Dense
from electra_jax.modeling.dropout import Dropout
from electra_jax.modeling.layer_norm import LayerNorm

EPSILON = 1e-5
GLOBAL_THETA, LOCAL_THETA = 160_000.0, 10_000.0


def out_stddev(config: EncoderConfig) -> float:
    """Computes the standard deviation of matrices that write to the residual stream: init_stddev / sqrt(2 x layers)."""
    return float(config.init_stddev / (2 * config.layers) ** 0.5)


def out_init(config: EncoderConfig) -> transformer.Initializer:
    """Returns the initializer of matrices that write to the residual stream."""
    return nn.initializers.zeros if config.zero_outputs else transformer.truncated_normal(out_stddev(config))


def rotary(length: int, head_size: int, theta: float) -> np.ndarray:
    """Computes angles [L, K], position x theta^(-2i / K); the K / 2 frequencies twice (arXiv 2104.09864, by halves)."""
    frequencies = theta ** (-np.arange(0, head_size, 2) / head_size)
    angles = np.arange(length)[:, None] * frequencies
    return np.concatenate([angles, angles], axis=-1).astype(np.float32)


def rotate(x: jax.Array, angles_LK: jax.Array, axis: int) -> jax.Array:
    """Rotates each pair (i, i + K / 2) of a head by its position's angle; computed in float32.

    Args:
      x: queries or keys of four axes, the last one K.
      angles_LK: the angles from `rotary`.
      axis: the axis of positions in `x`.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([-second, first], axis=-1)
    angles = jnp.expand_dims(angles_LK, [other for other in range(3) if other != axis])
    return (x.astype(jnp.float32) * jnp.cos(angles) + rotated * jnp.sin(angles)).astype(x.dtype)


class ModernBertLayer(nn.Module):
    config: EncoderConfig
    train: bool

    @nn.compact
    def __call__(
        self, x_BLD: jax.Array, number: jax.Array, visible: Visible, angles_2LK: jax.Array
    ) -> tuple[jax.Array, None]:
        """Applies layer `number`, from 0; `angles_2LK` holds the angles for local and for global attention."""
        c = self.config

        def dense(features: int | tuple[int, ...], init: transformer.Initializer, name: str) -> Dense:
            return Dense(features, init, use_bias=False, dtype=c.dtype, name=name)

        init = transformer.truncated_normal(c.init_stddev)

        is_global = number % c.global_every == 0
        angles_LK = jnp.where(is_global, angles_2LK[1], angles_2LK[0])

        # The first layer has no norm before attention: the embeddings are normalized already. Its entry in the stack
        # of parameters stays unused.
        normed = LayerNorm(EPSILON, False, c.dtype, name="attention_norm")(x_BLD)
        normed = jnp.where(number == 0, x_BLD, normed)
        attended = SelfAttention(
            c,
            use_bias=False,
            kernel_init=init,
            out_init=out_init(c),
            train=self.train,
            name="attention",
        )(normed, visible, lambda x, axis: rotate(x, angles_LK, axis), ~is_global)
        x_BLD = checkpoint_name(transformer.shard_batch(x_BLD + attended), "sum")
        h = LayerNorm(EPSILON, False, c.dtype, name="ffn_norm")(x_BLD)
        # Value and gate have an axis of their own, so that sharding F keeps both halves on one device.
        h_BL2F = checkpoint_name(dense((2, c.ffn), init, "ffn_in")(h), "ffn_in")
        value_BL1F, gate_BL1F = jnp.split(h_BL2F, 2, axis=2)
        gated_BLF = ACTIVATIONS[c.activation](value_BL1F[:, :, 0]) * gate_BL1F[:, :, 0]
        h_BLF = Dropout(c.dropout)(gated_BLF, self.train)
        return transformer.shard_batch(x_BLD + dense(c.width, out_init(c), "ffn_out")(h_BLF)), None


class ModernBertEncoder(nn.Module):
    """ModernBERT's encoder, from word embeddings to normalized hidden states; arguments as in `BertEncoder`."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x_BLE: jax.Array, visible: Visible, train: bool) -> jax.Array:
        c = self.config
        x = transformer.shard_batch(x_BLE)
        if x.shape[-1] != c.width:
            init = nn.initializers.xavier_uniform()
            x = Dense(c.width, init, use_bias=False, dtype=c.dtype, name="project")(x)
        x = LayerNorm(EPSILON, False, c.dtype, name="embedding_norm")(x)
        x = Dropout(c.dropout)(x, train)
        length = x.shape[1]
        angles = [rotary(length, c.head_size, theta) for theta in (LOCAL_THETA, GLOBAL_THETA)]
        layers = transformer.stack(ModernBertLayer, c, in_axes=(0, nn.broadcast, nn.broadcast))
        x = transformer.shard_batch(x)
        x_BLD, _ = layers(c, train, name="layers")(
            x, np.arange(c.layers, dtype=np.int32), visible, jnp.asarray(np.stack(angles))
        )
        return LayerNorm(EPSILON, False, c.dtype, name="final_norm")(x_BLD)
