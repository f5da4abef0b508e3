"""The `model` accounting: operations that the hardware must execute. MFU is computed from these.

Assumptions:
- a multiply-add is two operations; only matrix multiplications count, those of Muon included (element-wise work,
  dropout, Adam and sampling stay below 3% for every objective: tests/flops/test_hardware.py compares with XLA's
  count);
- the backward pass costs twice the forward pass, so a training step costs three forward passes;
- embedding lookups are gathers and free;
- padding counts, since it is computed;
- attention counts over the whole sequence, even if most of it is masked and local layers compute less, so that the
  count does not depend on the implementation of attention;
- each of DeBERTa's two relative terms takes 2 L C D operations, where C = L + 63 are the distances that a block of 64
  positions meets (2 L - 1 in sequences of up to 64); scores by content take 2 L^2 D. Queries and keys of the R relative
  embeddings in use take 4 R D^2 in each layer, once per batch.
"""

import dataclasses
from collections.abc import Mapping

from electra_jax import optim
from electra_jax.modeling.config import ElectraConfig, EncoderConfig
from electra_jax.objectives.masking import max_masked
from electra_jax.objectives.spec import Objective, Pass, Stage


@dataclasses.dataclass(frozen=True)
class Parts:
    """Operations of one network, by part.

    Attributes:
      embeddings: lookups, if they count, and the projection to the network's width.
      attention: attention in all layers.
      ffn: feed-forward blocks in all layers.
      head: the heads without the softmax.
      softmax: the product with the word table, and the softmax over the vocabulary.
    """

    embeddings: float = 0
    attention: float = 0
    ffn: float = 0
    head: float = 0
    softmax: float = 0

    @property
    def total(self) -> float:
        return float(sum(dataclasses.astuple(self)))

    def __mul__(self, factor: float) -> "Parts":
        return Parts(*(factor * part for part in dataclasses.astuple(self)))

    def __add__(self, other: "Parts") -> "Parts":
        return Parts(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


def sum_networks(networks: Mapping[str, Parts]) -> float:
    """Sums the operations of all networks."""
    return sum(parts.total for parts in networks.values())


def encoder(config: EncoderConfig, embedding_size: int, batch: int, length: int) -> Parts:
    """Counts forward operations of an encoder without a head, on `batch` sequences of `length`."""
    tokens = batch * length
    d, f = config.width, config.ffn
    # queries, keys, values and output: 4 D^2; scores and weighted sum: 2 L D
    attention = config.layers * tokens * 2 * (4 * d * d + 2 * length * d)
    # DeBERTa's two relative terms; queries and keys of its relative embeddings are computed once per batch.
    pairs, rows = config.architecture.relative(config, length)
    attention += config.layers * 2 * (batch * 2 * pairs * d + rows * 2 * d * d)
    return Parts(
        embeddings=2 * embedding_size * d * tokens if embedding_size != d else 0,
        attention=attention,
        ffn=config.layers * tokens * 2 * _ffn_matrices(config) * d * f,
    )


def _ffn_matrices(config: EncoderConfig) -> int:
    return 3 if config.architecture.gated else 2


def forward(config: ElectraConfig, network_pass: Pass, batch: int, length: int, mask_prob: float) -> Parts:
    """Counts forward operations of one pass over a batch."""
    e = config.embedding_size
    if network_pass.network == "encoder":
        network = config.encoder
        parts, states = encoder(network, e, batch, length), network.width
    else:
        assert config.generator is not None
        network = config.generator
        towers = 2 if config.two_towers else 1
        parts, states = encoder(network, e, batch, length) * towers, network.width * towers
    for head in network_pass.heads:
        # Masked positions are as many as the step computes, fillers included.
        read = batch * (length if head.everywhere else max_masked(length, mask_prob))
        if head.name == "discriminator":
            dense = 0 if network.architecture.detector(network) == "linear" else network.width
            parts += Parts(head=2 * read * states * (dense + 1))
        else:
            width = network.width if network.architecture.normed_heads else e
            # A dense layer, a projection to E where the widths differ, and the copy gate D -> 1.
            matrices = states * width + (width * e if width != e else 0) + (states if head.name == "copy" else 0)
            parts += Parts(head=2 * read * matrices, softmax=2 * read * e * config.padded_vocab_size)
    return parts


def newton_schulz(config: EncoderConfig) -> Parts:
    """Counts operations of Muon's Newton-Schulz iterations for the matrices in a network's layers.

    An iteration on a matrix X of m rows and n columns, m <= n, is A = X X^T, B = b A + c A A and a X + B X.
    """

    def matrix(inputs: int, outputs: int) -> int:
        # optax transposes a matrix of more rows than columns, so that X X^T is the smaller product.
        m, n = sorted((inputs, outputs))
        return optim.MUON_STEPS * 2 * (2 * m * m * n + m**3)

    d, f = config.width, config.ffn
    ffn = _ffn_matrices(config) * matrix(d, f)
    # Query, key, value and output are orthogonalized one by one, and so are the two halves of a gated layer.
    return Parts(attention=config.layers * 4 * matrix(d, d), ffn=config.layers * ffn)


def train_step(
    objective: Objective, stage: Stage, batch: int, length: int, optimizer: str = "adam"
) -> dict[str, Parts]:
    """Counts the operations of a train step by network, and those of the optimizer if it multiplies matrices.

    Args:
      objective: the run's objective.
      stage: the stage of the step.
      batch: global batch size, in sequences.
      length: sequence length, in tokens.
      optimizer: `config.optim.name`.
    """
    counted: dict[str, Parts] = {}
    for network_pass in stage.passes:
        parts = forward(objective.model.config, network_pass, batch, length, objective.settings.largest_mask_prob)
        counted[network_pass.network] = parts * (3 if network_pass.trained else 1)
    if optimizer == "muon":
        c = objective.model.config
        counted["optimizer"] = newton_schulz(c.encoder)
        # With tying=all the generator has no layers of its own.
        if c.generator is not None and c.tying != "all":
            counted["optimizer"] += newton_schulz(c.generator) * (2 if c.two_towers else 1)
    return counted
