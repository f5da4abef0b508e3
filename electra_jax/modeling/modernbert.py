"""ModernBERT's encoder: pre-norm, rotary positions, GeGLU, no biases, local and global attention in turn.

Computes what `transformers.ModernBertModel` computes (arXiv 2412.13663). Where the embedding is narrower or wider than
the encoder, a linear map without bias comes before the first norm: folded into the table, it is a plain ModernBERT.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from electra_jax.modeling import layers
from electra_jax.modeling.config import EncoderConfig

EPSILON = 1e-5
GLOBAL_THETA, LOCAL_THETA = 160_000.0, 10_000.0


def out_stddev(config: EncoderConfig) -> float:
    """Initialiser of what writes to the residual stream: init_stddev / sqrt(2 x layers)."""
    return config.init_stddev / (2 * config.layers) ** 0.5


def rotary(length: int, head_size: int, theta: float) -> np.ndarray:
    """Angles [L, K]: position times theta^(-2i / K), the K / 2 frequencies twice (arXiv 2104.09864, halves rotated)."""
    frequencies = theta ** (-np.arange(0, head_size, 2) / head_size)
    angles = np.arange(length)[:, None] * frequencies
    return np.concatenate([angles, angles], axis=-1).astype(np.float32)


def rotate(x_BLHK: jax.Array, angles_LK: jax.Array) -> jax.Array:
    """Turns each pair (i, i + K / 2) of a head by its position's angle; computed in float32."""
    x = x_BLHK.astype(jnp.float32)
    first, second = jnp.split(x, 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
    angles = angles_LK[None, :, None, :]
    return (x * jnp.cos(angles) + turned * jnp.sin(angles)).astype(x_BLHK.dtype)


class Layer(nn.Module):
    config: EncoderConfig
    train: bool

    @nn.compact
    def __call__(
        self, x_BLD: jax.Array, number: jax.Array, mask_B1LL: jax.Array, angles_2LK: jax.Array
    ) -> tuple[jax.Array, None]:
        """`number`: this layer's, from 0; `angles_2LK`: of local and of global attention."""
        c = self.config

        def dense(features: int | tuple[int, ...], stddev: float, name: str) -> nn.DenseGeneral:
            init = layers.truncated_normal(stddev)
            return nn.DenseGeneral(features, use_bias=False, dtype=c.dtype, kernel_init=init, name=name)

        is_global = number % c.global_every == 0
        position = jnp.arange(x_BLD.shape[1])
        near = jnp.abs(position[:, None] - position[None, :]) <= c.local_window // 2
        mask = mask_B1LL & (near | is_global)[None, None]
        angles_LK = jnp.where(is_global, angles_2LK[1], angles_2LK[0])

        # The first layer has no norm of its own, the embedding's stands for it. Its entry in the stack stays unused.
        normed = layers.LayerNorm(EPSILON, False, c.dtype, name="attention_norm")(x_BLD)
        normed = jnp.where(number == 0, x_BLD, normed)
        attended = layers.SelfAttention(
            c, use_bias=False, out_stddev=out_stddev(c), train=self.train, attention_dropout=False, name="attention"
        )(normed, mask, lambda x: rotate(x, angles_LK))
        x_BLD = layers.shard_batch(x_BLD + attended)
        h = layers.LayerNorm(EPSILON, False, c.dtype, name="ffn_norm")(x_BLD)
        # Two matrices in one, and an axis for which: split along F, each device has both halves of its part.
        h_BL2F = dense((2, c.ffn), c.init_stddev, "ffn_in")(h)
        gated_BLF = layers.gelu(h_BL2F[:, :, 0]) * h_BL2F[:, :, 1]
        h_BLF = nn.Dropout(c.dropout, deterministic=not self.train)(gated_BLF)
        return layers.shard_batch(x_BLD + dense(c.width, out_stddev(c), "ffn_out")(h_BLF)), None


class Encoder(nn.Module):
    """Word vectors of any size in, normed hidden states out; the mask says what (second L) each position sees."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x_BLE: jax.Array, mask_B1LL: jax.Array, train: bool) -> jax.Array:
        c = self.config
        x = layers.shard_batch(x_BLE)
        if x.shape[-1] != c.width:
            init = nn.initializers.xavier_uniform()
            x = nn.Dense(c.width, use_bias=False, dtype=c.dtype, kernel_init=init, name="project")(x)
        x = layers.LayerNorm(EPSILON, False, c.dtype, name="embedding_norm")(x)
        x = nn.Dropout(c.dropout, deterministic=not train)(x)
        length = x.shape[1]
        angles = [rotary(length, c.head_size, theta) for theta in (LOCAL_THETA, GLOBAL_THETA)]
        stack = layers.stack(Layer, c, in_axes=(0, nn.broadcast, nn.broadcast))
        x = layers.shard_batch(x)
        x_BLD, _ = stack(c, train, name="layers")(x, jnp.arange(c.layers), mask_B1LL, jnp.asarray(np.stack(angles)))
        return layers.LayerNorm(EPSILON, False, c.dtype, name="final_norm")(x_BLD)
