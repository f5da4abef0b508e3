"""The `model` accounting: what the machine must do, counted by hand. It is what MFU is measured in.

Assumptions:
- a multiply-add is two operations; only matrix multiplications are counted (element-wise work, dropout, the optimizer
  and sampling stay below 3% for every system, see tests/flops/test_model.py, which compares with XLA's own count);
- the gradient costs twice the forward pass, so training is three times the forward pass;
- embedding look-ups are gathers and free;
- padding is counted: the machine computes it;
- attention is counted over the whole sequence, also where a mask hides most of it: that is how it is computed here.
"""

from electra_jax.modeling.config import ElectraConfig, EncoderConfig
from electra_jax.objectives.masking import max_masked
from electra_jax.objectives.spec import Objective, Pass
from electra_jax.planning.flops.breakdown import Parts


def encoder(config: EncoderConfig, embedding_size: int, batch: int, length: int) -> Parts:
    """Forward operations of an encoder on `batch` sequences of `length`, without a head."""
    tokens = batch * length
    d, f = config.width, config.ffn
    # queries, keys, values and output: 4 D^2; scores and weighted sum: 2 L D
    attention = config.layers * tokens * 2 * (4 * d * d + 2 * length * d)
    matrices = 2 if config.kind == "bert" else 3  # GeGLU has a gate
    return Parts(
        embeddings=2 * embedding_size * d * tokens if embedding_size != d else 0,
        attention=attention,
        ffn=config.layers * tokens * 2 * matrices * d * f,
    )


def forward(config: ElectraConfig, what: Pass, batch: int, length: int, mask_prob: float) -> Parts:
    """Forward operations of one pass on a batch."""
    e = config.embedding_size
    read = batch * (length if what.everywhere else max_masked(length, mask_prob))
    if what.network == "encoder":
        network = config.encoder
        parts, states = encoder(network, e, batch, length), network.width
    else:
        assert config.generator is not None
        network = config.generator
        towers = 2 if config.two_towers else 1
        parts, states = encoder(network, e, batch, length) * towers, network.width * towers
    if what.head == "discriminator":
        return parts + Parts(head=2 * read * states * (network.width + 1))
    width = e if network.kind == "bert" else network.width
    head = states * width + (width * e if width != e else 0) + (states if what.head == "copy" else 0)
    return parts + Parts(head=2 * read * head, softmax=2 * read * e * config.padded_vocab_size)


def train_step(objective: Objective, batch: int, length: int, step: int = 0) -> dict[str, Parts]:
    """Operations, by network, of the train step that follows `step` steps, on the whole batch."""
    counted: dict[str, Parts] = {}
    for what in objective.passes(step):
        parts = forward(objective.model.config, what, batch, length, objective.settings.mask_prob)
        counted[what.network] = parts * (3 if what.trained else 1)
    return counted
