"""Self-attention, and which positions see each other.

Encoders pass a `Visible` instead of an attention mask, because the mask [B, 1, L, L] is larger than the hidden states.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jax.ad_checkpoint import checkpoint_name

from electra_jax.modeling import cudnn_attention, dropout, fused_attention, pallas_tiles, plain_attention
from electra_jax.modeling.config import EncoderConfig
from electra_jax.modeling.dense import Dense

Array = jax.Array
Initializer = Callable[..., Array]
Rotate = Callable[[Array, int], Array]


@struct.dataclass
class Visible:
    """The positions that each position sees: those of its own sequence, on both sides or on one, and always itself.

    Attributes:
      sequence_ids: [B, L], as in `Batch`. Padding (0) sees padding only.
      direction: the side that a position sees: `both`, or in a causal network `before` or `after`.
      reach: the number of positions that it sees on each side if attention is local.
      is_local: bool scalar: whether attention is local; None: it is not.
    """

    sequence_ids: Array
    # Static: masks and kernels are made for one direction and reach.
    direction: str = struct.field(pytree_node=False, default="both")
    reach: int = struct.field(pytree_node=False, default=0)
    is_local: Array | None = None

    def mask(self) -> Array:
        """Makes the attention mask, [B, 1, L, L] bool: True where a query (first L) sees a key (second L)."""
        mask = plain_attention.mask(self.sequence_ids, self.direction)
        if self.is_local is not None:
            # In a scan over layers `is_local` is traced, so no Python branch can choose.
            mask &= plain_attention.mask(self.sequence_ids, self.direction, self.reach) | ~self.is_local
        return mask


class SelfAttention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values (QKV), and a float32 softmax.

    Attributes:
      config: the encoder's config.
      use_bias: whether the projections have biases.
      kernel_init: initializer of the QKV projection.
      out_init: initializer of the output projection.
      train: whether dropout is on.
    """

    config: EncoderConfig
    use_bias: bool
    kernel_init: Initializer
    out_init: Initializer
    train: bool

    @nn.compact
    def __call__(self, x_BLD: Array, visible: Visible, rotate: Rotate | None = None) -> Array:
        """Attends to the visible positions; returns [B, L, D].

        Args:
          x_BLD: the hidden states.
          visible: which positions see each other.
          rotate: applies rotary positions to queries or keys; the second argument is the axis of positions.
        """
        c, mesh = self.config, jax.sharding.get_abstract_mesh()
        # `init` needs shapes only, and may have a length that no kernel supports.
        is_fused = fused_attention.chosen(c, x_BLD.shape[1], mesh) == "fused" and not self.is_initializing()
        is_gpu = fused_attention.on_nvidia_gpu()
        # On a TPU, arrays of a higher rank have their positions in the lanes, and would be copied for the kernel.
        is_flat = is_fused and not is_gpu and fused_attention.heads_on_device(c.heads, mesh) == c.heads

        def dense(inputs: tuple[int, ...], features: tuple[int, ...], init: Initializer, name: str) -> Dense:
            return Dense(features, init, self.use_bias, c.dtype, inputs, is_flat, name=name)

        heads = c.heads, c.head_size
        # [B, L, D] -> [B, L, 3, H, K], or [B, L, 3 D] if flat. `remat=dots` saves what has this name.
        qkv = checkpoint_name(dense((x_BLD.shape[-1],), (3, *heads), self.kernel_init, "qkv")(x_BLD), "qkv")
        rate = c.attention_rate if self.train else 0.0
        # Without dropout there may be no RNG, and `make_rng` would raise.
        words = dropout.key_words(self.make_rng("dropout")) if rate else jnp.zeros(0, jnp.uint32)
        # Not with dropout: cuDNN counts its draws inside the program, so a resumed run would drop other weights.
        if is_fused and is_gpu and not rate:
            attended = _cudnn(c, qkv, visible, rotate)
        else:
            attended = (_fused if is_fused else _plain)(c, qkv, visible, rotate, rate, words)
        return dense(heads, (c.width,), self.out_init, "out")(attended)


def _plain(
    c: EncoderConfig,
    qkv: Array,
    visible: Visible,
    rotate: Rotate | None,
    rate: float,
    words: Array,
) -> Array:
    """Computes attention by matrix products and a softmax, [B, L, 3, H, K] (QKV) -> [B, L, H, K]."""
    # [B, L, 3, H, K] -> three of [B, H, L, K].
    # Heads before positions, by one transpose of all three: the products below then need no other transpose.
    q_BHLK, k_BHLK, v_BHLK = (part[0] for part in jnp.split(qkv.transpose(2, 0, 3, 1, 4), 3))
    if rotate is not None:
        q_BHLK, k_BHLK = rotate(q_BHLK, 2), rotate(k_BHLK, 2)
    reach, is_local = visible.reach, visible.is_local
    # Blocks cannot drop weights (no encoder does in local layers), and save too little in short sequences.
    if is_local is not None and not rate and plain_attention.block_size(qkv.shape[1], reach) is not None:
        attended = plain_attention.attend_local_or_global(
            reach, visible.direction, is_local, q_BHLK, k_BHLK, v_BHLK, visible.sequence_ids
        )
    else:
        attended = plain_attention.attend(q_BHLK, k_BHLK, v_BHLK, visible.mask(), words, rate)
    # [B, H, L, K] -> [B, L, H, K], as the output projection reads it.
    return attended.swapaxes(1, 2)


def _fused(
    c: EncoderConfig,
    qkv: Array,
    visible: Visible,
    rotate: Rotate | None,
    rate: float,
    words: Array,
) -> Array:
    """Computes the same by Pallas kernels; if `qkv` is [B, L, 3 D], the result is [B, L, D]."""
    if rotate is not None:
        q_BLHK, k_BLHK, v_BLHK = (qkv.reshape(*qkv.shape[:2], 3, c.heads, -1)[:, :, i] for i in range(3))
        # The kernels read one array, in the layout of the projection.
        qkv = jnp.stack([rotate(q_BLHK, 1), rotate(k_BLHK, 1), v_BLHK], axis=2).reshape(qkv.shape)
    reach = None if visible.is_local is None else visible.reach
    form = pallas_tiles.Form(c.heads, rate, visible.direction, reach)
    return fused_attention.attend(form, qkv, visible.sequence_ids, words, visible.is_local)


def _cudnn(c: EncoderConfig, qkv: Array, visible: Visible, rotate: Rotate | None) -> Array:
    """Computes the same by cuDNN, without dropout of attention weights."""

    def attend(qkv: Array, visible: Visible) -> Array:
        # cuDNN takes positions before heads, so nothing is transposed here.
        q_BLHK, k_BLHK, v_BLHK = (qkv[:, :, i] for i in range(3))
        if rotate is not None:
            q_BLHK, k_BLHK = rotate(q_BLHK, 1), rotate(k_BLHK, 1)
        # Saved by `remat=dots` as the kernel reads them, in place of `qkv`: else the backward pass makes them again.
        q_BLHK, k_BLHK, v_BLHK = (checkpoint_name(part, "qkv") for part in (q_BLHK, k_BLHK, v_BLHK))
        return fused_attention.attend_masked(q_BLHK, k_BLHK, v_BLHK, visible.mask())

    # Otherwise each layer would keep its own mask and parts of `qkv`; with `remat` it is rematerialized already.
    if c.remat == "none":
        attend = jax.checkpoint(attend, policy=cudnn_attention.is_forward, prevent_cse=False)
    return attend(qkv, visible)
