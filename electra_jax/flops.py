"""How many floating-point operations a step takes, counted by hand.

Assumptions:
- a multiply-add is two operations; only matrix multiplications are counted (element-wise work, dropout, the optimizer
  and sampling stay below 3% at the sizes of the paper, see tests/test_flops.py, which compares with XLA's own count);
- the gradient costs twice the forward pass, so training is three times the forward pass;
- embedding look-ups are gathers and free;
- padding is counted: the machine computes it;
- attention is counted over the whole sequence, also where a mask hides most of it: that is how it is computed here.
"""

import dataclasses

import jax

from electra_jax.modeling.config import ElectraConfig, EncoderConfig
from electra_jax.objectives.masking import max_masked

# Dense bf16 peak of one JAX device, FLOP/s, from the makers' data sheets. TPU v2 and v3 have two devices a chip.
PEAK_FLOPS = {
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}


@dataclasses.dataclass(frozen=True)
class Parts:
    """Forward operations of one network on one batch."""

    projection: int
    attention: int
    ffn: int
    head: int
    softmax: int

    @property
    def total(self) -> int:
        return self.projection + self.attention + self.ffn + self.head + self.softmax


def encoder(config: EncoderConfig, embedding_size: int, batch: int, length: int) -> tuple[int, int, int]:
    """(projection, attention, ffn) forward operations of an encoder on `batch` sequences of `length`."""
    tokens = batch * length
    d, f = config.width, config.ffn
    projection = 2 * embedding_size * d * tokens if embedding_size != d else 0
    # queries, keys, values and output: 4 D^2; scores and weighted sum: 2 L D
    attention = config.layers * tokens * 2 * (4 * d * d + 2 * length * d)
    matrices = 2 if config.kind == "bert" else 3  # GeGLU has a gate
    ffn = config.layers * tokens * 2 * matrices * d * f
    return projection, attention, ffn


def forward(config: ElectraConfig, batch: int, length: int, mask_prob: float) -> dict[str, Parts]:
    """Forward operations of generator and discriminator."""
    masked = batch * max_masked(length, mask_prob)
    e = config.embedding_size
    generator, discriminator = config.generator, config.discriminator
    return {
        "generator": Parts(
            *encoder(generator, e, batch, length),
            head=2 * masked * generator.width * e,
            softmax=2 * masked * e * config.padded_vocab_size,
        ),
        "discriminator": Parts(
            *encoder(discriminator, e, batch, length),
            head=2 * batch * length * discriminator.width * (discriminator.width + 1),
            softmax=0,
        ),
    }


def train_step(config: ElectraConfig, batch: int, length: int, mask_prob: float) -> int:
    """Operations of one train step on the whole batch."""
    return 3 * sum(parts.total for parts in forward(config, batch, length, mask_prob).values())


def peak(device: jax.Device) -> float | None:
    """Peak FLOP/s of a device, None where it is not known."""
    kind = device.device_kind
    if kind in PEAK_FLOPS:
        return PEAK_FLOPS[kind]
    return next(
        (value for name, value in PEAK_FLOPS.items() if name.startswith("NVIDIA") and kind.startswith(name)), None
    )
