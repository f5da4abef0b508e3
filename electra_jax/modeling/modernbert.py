"""ModernBERT's encoder: pre-norm, rotary positions, GeGLU, no biases, alternating local and global attention.

It computes what `transformers.ModernBertModel` computes (arXiv 2412.13663). Where embedding size and width differ, a
linear map without bias precedes the first norm; multiplied into the word table, it gives a plain ModernBERT.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from electra_jax.modeling import transformer
from electra_jax.modeling.config import EncoderConfig

EPSILON = 1e-5
GLOBAL_THETA, LOCAL_THETA = 160_000.0, 10_000.0


def out_stddev(config: EncoderConfig) -> float:
    """Standard deviation for matrices that write to the residual stream: init_stddev / sqrt(2 x layers)."""
    return float(config.init_stddev / (2 * config.layers) ** 0.5)


def rotary(length: int, head_size: int, theta: float) -> np.ndarray:
    """Angles [L, K]: position times theta^(-2i / K), the K / 2 frequencies twice (arXiv 2104.09864, halves rotated)."""
    frequencies = theta ** (-np.arange(0, head_size, 2) / head_size)
    angles = np.arange(length)[:, None] * frequencies
    return np.concatenate([angles, angles], axis=-1).astype(np.float32)


def rotate(x_BLHK: jax.Array, angles_LK: jax.Array) -> jax.Array:
    """Rotates each pair (i, i + K / 2) of a head by its position's angle; computed in float32."""
    x = x_BLHK.astype(jnp.float32)
    first, second = jnp.split(x, 2, axis=-1)
    rotated = jnp.concatenate([-second, first], axis=-1)
    angles = angles_LK[None, :, None, :]
    return (x * jnp.cos(angles) + rotated * jnp.sin(angles)).astype(x_BLHK.dtype)


class ModernBertLayer(nn.Module):
    config: EncoderConfig
    train: bool

    @nn.compact
    def __call__(
        self, x_BLD: jax.Array, number: jax.Array, mask_B1LL: jax.Array, angles_2LK: jax.Array
    ) -> tuple[jax.Array, None]:
        """`number` counts layers from 0; `angles_2LK` holds the angles for local and for global attention."""
        c = self.config

        def dense(features: int | tuple[int, ...], stddev: float, name: str) -> nn.DenseGeneral:
            init = transformer.truncated_normal(stddev)
            return nn.DenseGeneral(features, use_bias=False, dtype=c.dtype, kernel_init=init, name=name)

        is_global = number % c.global_every == 0
        position = jnp.arange(x_BLD.shape[1])
        near = jnp.abs(position[:, None] - position[None, :]) <= c.local_window // 2
        mask = mask_B1LL & (near | is_global)[None, None]
        angles_LK = jnp.where(is_global, angles_2LK[1], angles_2LK[0])

        # The first layer has no norm before attention: the embeddings are normalized already. Its entry in the stack
        # of parameters stays unused.
        normed = transformer.LayerNorm(EPSILON, False, c.dtype, name="attention_norm")(x_BLD)
        normed = jnp.where(number == 0, x_BLD, normed)
        attended = transformer.SelfAttention(
            c, use_bias=False, out_stddev=out_stddev(c), train=self.train, attention_dropout=False, name="attention"
        )(normed, mask, lambda x: rotate(x, angles_LK))
        x_BLD = transformer.shard_batch(x_BLD + attended)
        h = transformer.LayerNorm(EPSILON, False, c.dtype, name="ffn_norm")(x_BLD)
        # Value and gate have an axis of their own, so that sharding F keeps both halves on one device.
        h_BL2F = dense((2, c.ffn), c.init_stddev, "ffn_in")(h)
        gated_BLF = transformer.gelu(h_BL2F[:, :, 0]) * h_BL2F[:, :, 1]
        h_BLF = nn.Dropout(c.dropout, deterministic=not self.train)(gated_BLF)
        return transformer.shard_batch(x_BLD + dense(c.width, out_stddev(c), "ffn_out")(h_BLF)), None


class ModernBertEncoder(nn.Module):
    """Maps word vectors to normalized hidden states; arguments as `transformer.BertEncoder`."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x_BLE: jax.Array, mask_B1LL: jax.Array, train: bool) -> jax.Array:
        c = self.config
        x = transformer.shard_batch(x_BLE)
        if x.shape[-1] != c.width:
            init = nn.initializers.xavier_uniform()
            x = nn.Dense(c.width, use_bias=False, dtype=c.dtype, kernel_init=init, name="project")(x)
        x = transformer.LayerNorm(EPSILON, False, c.dtype, name="embedding_norm")(x)
        x = nn.Dropout(c.dropout, deterministic=not train)(x)
        length = x.shape[1]
        angles = [rotary(length, c.head_size, theta) for theta in (LOCAL_THETA, GLOBAL_THETA)]
        layers = transformer.stack(ModernBertLayer, c, in_axes=(0, nn.broadcast, nn.broadcast))
        x = transformer.shard_batch(x)
        x_BLD, _ = layers(c, train, name="layers")(x, jnp.arange(c.layers), mask_B1LL, jnp.asarray(np.stack(angles)))
        return transformer.LayerNorm(EPSILON, False, c.dtype, name="final_norm")(x_BLD)
