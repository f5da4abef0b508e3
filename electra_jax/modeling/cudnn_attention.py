"""Fused attention on NVIDIA GPUs: where the kernels can be used, and the call of cuDNN.

cuDNN's kernels are for networks and passes without dropout of attention weights, those of `triton_attention` for the
others. None of them writes attention weights to memory. cuDNN gets a mask, the one form that covers packing, padding,
both directions and local layers: it has no two-sided local window, and lengths alone do not cover packed rows.
"""

from typing import Any

import jax
import jax.numpy as jnp

from electra_jax.modeling.config import EncoderConfig

Array = jax.Array
_OLDEST = "8.0"  # compute capability: cuDNN's fused attention begins with Ampere
# The limits of JAX's `check_is_flash_attention` before Hopper, which takes heads of up to 256.
_LARGEST_HEAD, _HEAD_MULTIPLE = 128, 8
_DROPOUT_HEADS, _DROPOUT_MULTIPLE = (16, 32, 64, 128), 32  # the sizes of Triton's matrices are powers of 2
_FORWARD = "dot_product_attention_fwd_wrapper"  # JAX's primitive


def is_nvidia_gpu(device_kind: str) -> bool:
    """True if a device is an NVIDIA GPU by its name; other names, such as Tesla T4, are of capability below 8.0."""
    return device_kind.startswith("NVIDIA ")


def problem(network: EncoderConfig, device_kind: str, length: int) -> str | None:
    """Returns why `fused` is an error on an NVIDIA GPU; None if the kernels can be used."""
    capability, size = _capability(device_kind), network.head_size
    if capability is not None and _version(capability) < _version(_OLDEST):
        return (
            f"config.model.attention=fused needs compute capability {_OLDEST} or more; {device_kind} has {capability}"
        )
    if network.dtype != jnp.bfloat16:
        return (
            f"config.model.attention=fused on GPUs computes in bfloat16: expected config.model.dtype=bfloat16, not "
            f"{network.dtype}"
        )
    if size % _HEAD_MULTIPLE or size > _LARGEST_HEAD:
        return (
            f"config.model.attention=fused on GPUs needs heads of a multiple of {_HEAD_MULTIPLE}, at most "
            f"{_LARGEST_HEAD}: width {network.width} and {network.heads} heads make heads of {size}"
        )
    # cuDNN's limit where there is a mask, which JAX passes as a bias.
    if length % 2:
        return f"config.model.attention=fused on GPUs needs sequences of an even length, not {length}"
    # Evaluation uses training's choice too: the code that chooses does not know if dropout is on.
    if network.attention_rate and (size not in _DROPOUT_HEADS or length % _DROPOUT_MULTIPLE):
        return (
            f"config.model.attention=fused on GPUs drops attention weights (at the rate {network.attention_rate:g}) of "
            f"heads of {', '.join(map(str, _DROPOUT_HEADS))} and lengths of a multiple of {_DROPOUT_MULTIPLE}, not of "
            f"heads of {size} and {length} tokens: set config.model.attention_dropout=0"
        )
    return None


def _capability(device_kind: str) -> str | None:
    """Returns the compute capability of a kind of GPU; None if this machine has no GPU of that kind.

    A mesh knows its devices by name only. A kind that this machine lacks is compiled for ahead of time, and all kinds
    that `plan` knows are new enough.
    """
    found = (device.compute_capability for device in jax.local_devices() if device.device_kind == device_kind)
    return next(found, None)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def attend(q_BLHK: Array, k_BLHK: Array, v_BLHK: Array, mask_B1LL: Array) -> Array:
    """Computes attention of queries to the keys that the mask shows, [B, L, H, K]."""
    # Named, because JAX's default is its plain implementation on every device.
    return jax.nn.dot_product_attention(q_BLHK, k_BLHK, v_BLHK, mask=mask_B1LL, implementation="cudnn")


def is_forward(primitive: Any, *_: Any, **__: Any) -> bool:
    """Returns True for the forward kernel: a `jax.checkpoint` policy that saves its result and the softmax's sums.

    `checkpoint_name` cannot do this: the backward kernel reads the values as the forward kernel returned them, before
    they could be named.
    """
    return bool(primitive.name == _FORWARD)
