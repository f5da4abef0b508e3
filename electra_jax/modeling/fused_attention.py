"""Fused attention kernels: where they can be used, and how they are sharded over a mesh.

On TPUs the kernels are those of `pallas_attention`. On NVIDIA GPUs they are cuDNN's (`cudnn_attention`), or those of
`triton_attention` if attention weights are dropped. The gradient of both Pallas forms is here.
"""

import dataclasses
import functools
import importlib
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from electra_jax.config.errors import UserError
from electra_jax.modeling import cudnn_attention, pallas_tiles
from electra_jax.modeling.config import EncoderConfig
from electra_jax.modeling.pallas_tiles import LANES, Form
from electra_jax.runtime import sharding

Array = jax.Array
_MIB = 2**20


class _Limits(NamedTuple):
    """Limits of a TPU generation, found by compiling the kernels for it with libtpu 0.0.42.

    Attributes:
      longest: the maximum sequence length whose keys, values and gradients fit into a core's memory.
      native: as in `pallas_tiles.Form`.
      vmem: as in `pallas_tiles.Form`.
    """

    longest: int
    native: bool = True
    vmem: int | None = None


_LIMITS = {
    "TPU v2": _Limits(2048, native=False),
    "TPU v3": _Limits(2048, native=False),
    "TPU v4": _Limits(4096),
    "TPU v5 lite": _Limits(8192, vmem=48 * _MIB),
    "TPU v5": _Limits(8192, vmem=48 * _MIB),
    "TPU v6 lite": _Limits(8192, vmem=48 * _MIB),
    "TPU7x": _Limits(2048),
}


def choose(network: EncoderConfig, device_kind: str, length: int, heads: int) -> str:
    """Returns how a network computes attention: `fused`, by a kernel that never writes the weights, or `plain`.

    Args:
      network: the network; `auto` is `fused` on TPUs and NVIDIA GPUs where the kernels can be used.
      device_kind: JAX's name of the devices that compute.
      length: the sequence length, in tokens.
      heads: the number of heads on one device.

    Raises:
      UserError: the network's `attention` is `fused`, and the kernels cannot be used.
    """
    if network.attention == "plain" or not network.architecture.fused:
        return "plain"
    problem = _problem(network, device_kind, length, heads)
    if network.attention == "fused" and problem:
        raise UserError(f"{problem}; use auto or plain")
    return "plain" if problem else "fused"


def chosen(network: EncoderConfig, length: int, mesh: jax.sharding.AbstractMesh) -> str:
    """Returns how a network computes attention on a mesh: `fused` or `plain`.

    Args:
      network: the network.
      length: the sequence length, in tokens.
      mesh: the mesh; empty if there is none. Without a mesh arrays may be on any device, so `auto` is `plain`; on GPUs
        so is `fused` if the kernels cannot be used, as in float32 inference.

    Raises:
      UserError: the setting is `fused`, and the kernels cannot be used on the mesh.
    """
    kind = device_kind(mesh)
    if not mesh.empty:
        return choose(network, kind, length, heads_on_device(network.heads, mesh))
    if network.attention != "fused" or (
        cudnn_attention.is_nvidia_gpu(kind) and cudnn_attention.problem(network, kind, length) is not None
    ):
        return "plain"
    return "fused"


def device_kind(mesh: jax.sharding.AbstractMesh) -> str:
    """Returns JAX's name of the devices of a mesh, or without a mesh that of this machine's devices."""
    # The mesh may be of devices that this machine lacks: `plan` compiles for those.
    return str(jax.devices()[0].device_kind if mesh.empty else mesh.abstract_device.device_kind)


def on_nvidia_gpu() -> bool:
    """True if the devices of the current mesh, or without a mesh this machine's, are NVIDIA GPUs."""
    return cudnn_attention.is_nvidia_gpu(device_kind(jax.sharding.get_abstract_mesh()))


def heads_on_device(heads: int, mesh: jax.sharding.AbstractMesh) -> int:
    """Returns the number of heads per device; a generator may have too few to shard them over `tensor`."""
    tensor = 1 if mesh.empty else mesh.shape["tensor"]
    return heads // tensor if heads % tensor == 0 else heads


def _problem(network: EncoderConfig, device_kind: str, length: int, heads: int) -> str | None:
    """Returns why `fused` is an error; None if the kernels can be used."""
    if cudnn_attention.is_nvidia_gpu(device_kind):
        return cudnn_attention.problem(network, device_kind, length)
    limits = _LIMITS.get(device_kind)
    if limits is None:
        return (
            f"config.model.attention=fused needs TPUs ({', '.join(_LIMITS)}) or NVIDIA GPUs: expected one of them, not "
            f"{device_kind}"
        )
    width = network.head_size * heads
    lanes = LANES * math.ceil(pallas_tiles.group_size(width, heads) / LANES)
    if lanes > LANES:
        lanes *= 2  # at least, for what the heads of a wider group need besides their arrays
    if length * lanes > limits.longest * LANES:
        longest = limits.longest * LANES // lanes
        return (
            f"config.model.attention=fused takes sequences of up to {longest} tokens at width {width} on "
            f"{device_kind}, not {length}"
        )
    return None


def attend_masked(q_BLHK: Array, k_BLHK: Array, v_BLHK: Array, mask_B1LL: Array) -> Array:
    """Computes attention with a mask by cuDNN, [B, L, H, K]; each device computes its own examples and heads."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return cudnn_attention.attend(q_BLHK, k_BLHK, v_BLHK, mask_B1LL)
    heads = q_BLHK.shape[2]
    # A generator may have too few heads to shard: each device of `tensor` then computes all of them.
    split = P(sharding.BATCH, None, "tensor" if heads_on_device(heads, mesh) < heads else None)
    on_each_device = jax.shard_map(
        cudnn_attention.attend,
        in_specs=(split, split, split, P(sharding.BATCH)),
        out_specs=split,
        check_vma=False,
    )
    return on_each_device(q_BLHK, k_BLHK, v_BLHK, mask_B1LL)


def attend(form: Form, qkv: Array, sequence_ids_BL: Array, words: Array, is_local: Array | None = None) -> Array:
    """Computes attention to the visible positions by Pallas; each device computes its own examples and heads.

    On other devices than TPUs and NVIDIA GPUs the kernels are interpreted, for tests.

    Args:
      form: the form of the kernels, with all heads; `reach` is that of local attention.
      qkv: queries, keys and values, [B, L, 3, H, K]; or [B, L, 3 D] if heads are not sharded over devices.
      sequence_ids_BL: as in `attention.Visible`.
      words: the words of the dropout key; ignored if `form.rate` is 0.
      is_local: bool scalar: whether attention is local; None: it is not.

    Returns:
      [B, L, H, K], or [B, L, D] if `qkv` is [B, L, 3 D].
    """
    mesh = jax.sharding.get_abstract_mesh()
    kind = device_kind(mesh)
    limits = _LIMITS.get(kind)
    if cudnn_attention.is_nvidia_gpu(kind):
        form = dataclasses.replace(form, gpu=True)
    elif limits is None:
        form = dataclasses.replace(form, native=False, interpret=True)
    else:
        form = dataclasses.replace(form, native=limits.native, vmem=limits.vmem)
    if mesh.empty:
        # One device has the whole batch, so examples and heads count from 0 (the layout is that of `forward`).
        numbers = jnp.asarray([0, 0, form.heads], jnp.uint32)
        return _reshaped(form, qkv, sequence_ids_BL, jnp.concatenate([words, numbers]), is_local)
    heads = heads_on_device(form.heads, mesh)

    def local(qkv: Array, sequence_ids_BL: Array, words: Array, is_local: Array | None) -> Array:
        # Dropout numbers examples and heads over the whole batch, so that its decisions do not depend on the mesh.
        example = jax.lax.axis_index(sharding.BATCH) * qkv.shape[0]
        head = jax.lax.axis_index("tensor") * heads if heads < form.heads else 0
        numbers = jnp.stack([jnp.asarray(number, jnp.uint32) for number in (example, head, form.heads)])
        own = dataclasses.replace(form, heads=heads)
        return _reshaped(own, qkv, sequence_ids_BL, jnp.concatenate([words, numbers]), is_local)

    # Only arrays with an axis for heads can be sharded over `tensor`.
    by_head = (None, None, "tensor") if heads < form.heads else ()
    on_each_device = jax.shard_map(
        local,
        in_specs=(P(sharding.BATCH, *by_head), P(sharding.BATCH), P(), P()),
        out_specs=P(sharding.BATCH, *by_head[1:]),
        # With the check, `pallas_call` asks for the mesh axes of each result.
        check_vma=False,
    )
    return on_each_device(qkv, sequence_ids_BL, words, is_local)


def _reshaped(form: Form, qkv: Array, sequence_ids_BL: Array, scalars: Array, is_local: Array | None) -> Array:
    # [B, L, 3, H, K] -> [B, L, 3 D]; nothing to do where the projection is flat already.
    flat = qkv.reshape(*qkv.shape[:2], -1)
    out = _attend(form, flat, sequence_ids_BL, scalars, is_local)
    return out if qkv.ndim == 3 else out.reshape(*qkv.shape[:2], *qkv.shape[3:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(form: Form, qkv: Array, sequence_ids_BL: Array, scalars: Array, is_local: Array | None) -> Array:
    out: Array = _forward(form, qkv, sequence_ids_BL, scalars, is_local)[0]
    return out


def _forward(form: Form, qkv: Array, sequence_ids_BL: Array, scalars: Array, is_local: Array | None) -> Any:
    out, lse = _switch(_kernels(form).forward, form, is_local, qkv, sequence_ids_BL, scalars)
    # With `remat=dots` both are saved: without one of them the forward kernel would run again.
    out, lse = checkpoint_name(out, "attended"), checkpoint_name(lse, "attended")
    return out, (qkv, sequence_ids_BL, scalars, is_local, out, lse)


def _backward(form: Form, kept: Any, d_out: Array) -> Any:
    qkv, sequence_ids_BL, scalars, is_local, out, lse = kept
    d_qkv = _switch(_kernels(form).backward, form, is_local, qkv, sequence_ids_BL, scalars, out, lse, d_out)
    return d_qkv, None, None, None


_attend.defvjp(_forward, _backward)


def _kernels(form: Form) -> Any:
    """Imports the module of the kernels, which is slow to import and needed on few devices."""
    return importlib.import_module(f"electra_jax.modeling.{'triton' if form.gpu else 'pallas'}_attention")


def _switch(kernel: Any, form: Form, is_local: Array | None, *args: Array) -> Any:
    """Calls the kernel for local or for global attention, whichever this layer of a scan has."""
    # Two kernels in a `cond`, because the reach is static in each.
    everywhere = functools.partial(kernel, dataclasses.replace(form, reach=None))
    if is_local is None:
        return everywhere(*args)
    return jax.lax.cond(is_local, functools.partial(kernel, form), everywhere, *args)
