"""Dense layers as products of two matrices."""

import math
from typing import Any

import jax
from flax import linen as nn

Array = jax.Array


class Dense(nn.Module):
    """A dense layer on the last axes of its input; same parameters as `nn.Dense` and `nn.DenseGeneral`.

    Attributes:
      features: the last axes of the kernel and of the output.
      kernel_init: initializes the kernel as a matrix [inputs, features].
      use_bias: whether a bias is added.
      dtype: the compute dtype; None: promoted from input and parameters.
      inputs: the first axes of the kernel, which are contracted; None: the last axis of the input.
      flat: whether input and output have one axis in place of `inputs` and of `features`.
    """

    features: int | tuple[int, ...]
    kernel_init: nn.initializers.Initializer
    use_bias: bool = True
    dtype: Any = None
    inputs: tuple[int, ...] | None = None
    flat: bool = False

    @nn.compact
    def __call__(self, x: Array, first: int | None = None) -> Array:
        """Maps [..., *inputs] to [..., *features]; `first`: only so many entries of the first feature axis."""
        features = (self.features,) if isinstance(self.features, int) else self.features
        inputs = x.shape[-1:] if self.inputs is None else self.inputs

        def init(key: Array, shape: tuple[int, ...], *dtype: Any) -> Array:
            # From a kernel's own axes, initializers such as xavier would compute other fans.
            matrix = self.kernel_init(key, (math.prod(inputs), math.prod(features)), *dtype)
            return matrix.reshape(shape)

        kernel = self.param("kernel", init, (*inputs, *features))
        bias = self.param("bias", nn.initializers.zeros, features) if self.use_bias else None
        if first is not None:
            kernel = jax.lax.slice_in_dim(kernel, 0, first, axis=len(inputs))
            bias = None if bias is None else bias[:first]
        # Kernels that were gathered along `data` are in the compute dtype already: `sharding.gather_over_data`.
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        if self.flat:
            kernel, bias = kernel.reshape(math.prod(inputs), -1), None if bias is None else bias.reshape(-1)
        return affine(x, kernel, bias, 1 if self.flat else len(inputs))


def affine(x: Array, kernel: Array, bias: Array | None, input_axes: int = 1) -> Array:
    """Computes x times kernel plus bias: [..., *inputs] x [*inputs, *features] -> [..., *features].

    On one device all operands are reshaped to matrices.
    """
    inputs, features = kernel.shape[:input_axes], kernel.shape[input_axes:]
    rows = x.shape[: x.ndim - input_axes]
    # On a mesh, a reshape could merge a sharded axis with one that is not; accelerators need no reshape.
    if jax.sharding.get_abstract_mesh().size > 1:
        contracted = tuple(range(len(rows), x.ndim)), tuple(range(input_axes))
        y = jax.lax.dot_general(x, kernel, (contracted, ((), ())))
        # Written out, here and elsewhere: the tests forbid implicit rank promotion.
        return y if bias is None else y + bias.reshape(*(1 for _ in rows), *features)
    # XLA:CPU multiplies matrices as they are, but first copies operands of a higher rank into another order, above all
    # for the kernel's gradient.
    y = x.reshape(-1, math.prod(inputs)) @ kernel.reshape(math.prod(inputs), -1)
    if bias is not None:
        y += bias.reshape(1, -1)
    return y.reshape(*rows, *features)
