"""The `paper` accounting: the conventions of the script behind the paper's figures, so that curves are comparable.

google-research/electra, flops_computation.py:
- a multiply-add is two operations; the backward pass costs as much as the forward pass;
- embedding lookups are dense products with one-hot vectors;
- 15.625% of the positions go through the softmax of masked language modeling;
- per element, a layer norm takes 5 operations, GELU 8, dropout 4, a softmax 5.

Two errors of the script are kept, since the paper's figures contain them: the layer norm after attention counts once
per position instead of once per element (its issue 121), and BERT-Large counts as 1M steps of 256 sequences
of 512, though BERT was trained at length 128 for nine tenths of them, and the paper's own BERT-Large run was 464k steps
of 2048 (its issue 115).

The script has no DeBERTa. Here its relative terms count by the same conventions: two more products of queries or keys
with the distances that they meet (`deberta.pairs`) and an addition of each to the scores; and in each layer, once per
batch, queries and keys of the relative embeddings in use, with dropout. Their layer norm counts once per batch.
"""

import dataclasses

from electra_jax.flops.hardware import Parts
from electra_jax.objectives.spec import Objective, Stage

VOCABULARY = 30522
OUTPUT_SHARE = 0.15625
_LAYER_NORM, _GELU, _DROPOUT, _SOFTMAX = 5, 8, 4, 5


@dataclasses.dataclass(frozen=True)
class Transformer:
    """The shape of a network.

    Attributes:
      width: h in the script.
      layers: l in the script.
      length: s in the script.
      vocabulary: v in the script.
      embedding_size: e in the script; 0: the width.
      ffn: i in the script; 0: four times the width.
      heads: the script's heads; 0: one per 64 of the width.
      attention_width: total width of queries, of keys and of values over all heads; 0: the width.
      cross: whether each layer has a second attention, over an encoder's states.
      gated: whether the FFN has a gate, as in GeGLU; not in the script.
      wide_head: whether the MLM head has the network's width, followed by a projection to the embedding size, as in
        ModernBERT; the script's has the embedding size.
      absolute: whether positions and segments have embedding tables.
      towers: networks of this shape that share embeddings and one head; one in the script.
      relative: for DeBERTa, (pairs of a position and a distance in a sequence, rows of the relative table in use).
      detector: the discriminator's head: `dense` with a hidden layer, `normed` with a sum and a layer norm before it,
        or `linear`.
      norm_slip: whether to keep the script's error in the layer norm after attention.
    """

    width: int
    layers: int
    length: int = 512
    vocabulary: int = VOCABULARY
    embedding_size: int = 0
    ffn: int = 0
    heads: int = 0
    attention_width: int = 0
    cross: bool = False
    gated: bool = False
    wide_head: bool = False
    absolute: bool = True
    towers: int = 1
    relative: tuple[int, int] = (0, 0)
    detector: str = "dense"
    norm_slip: bool = True

    @property
    def _embedding_size(self) -> int:
        return self.embedding_size or self.width

    def body(self) -> Parts:
        """Counts forward operations of embeddings and layers on one sequence."""
        h, s, e = self.width, self.length, self._embedding_size
        i, heads, a = self.ffn or 4 * h, self.heads or max(h // 64, 1), self.attention_width or h
        attention = (
            # Queries, keys and values, with biases.
            3 * 2 * h * a
            + 3 * a
            # Scores, and softmax, dropout and scale of each.
            + 2 * a * s
            + (_SOFTMAX + _DROPOUT + 1) * s * heads
            # The weighted sum and the output, with h even where heads are wider in total, as the script has it.
            + 2 * h * s
            + 2 * h * h
            + h
            + _DROPOUT * h
            + h
            # The script's error: 5 operations per position instead of per element.
            + _LAYER_NORM * (1 if self.norm_slip else h)
        )
        relative = 2 * (2 * a * self.relative[0] / s + s * heads) if self.relative[0] else 0
        ffn = 2 * (2 + self.gated) * h * i + _GELU * i + i + h + _DROPOUT * h + h + _LAYER_NORM * h
        # One-hot products with the words, and with s positions and 2 segments, which are then added.
        lookup = 2 * e * self.vocabulary + (_LAYER_NORM + _DROPOUT) * e
        lookup += 2 * e * (s + 2) + 2 * e if self.absolute else 0
        lookup += self.towers * (2 * h * e + h) if e != h else 0
        layers = self.towers * self.layers * s
        return Parts(
            embeddings=lookup * s, attention=(attention + relative) * layers * (1 + self.cross), ffn=ffn * layers
        )

    def relative_rows(self) -> Parts:
        """Counts forward operations on DeBERTa's relative embeddings, for a batch of any size."""
        h, rows = self.width, self.relative[1]
        a = self.attention_width or h
        return Parts(
            attention=self.towers * rows * (_LAYER_NORM * h + self.layers * (2 * (2 * h * a + a) + _DROPOUT * h))
        )

    def mlm(self, share: float = OUTPUT_SHARE) -> Parts:
        """Counts forward operations of predicting a fraction `share` of the positions, on one sequence."""
        h, e, v = self.towers * self.width, self._embedding_size, self.vocabulary
        positions = share * self.length
        w = self.width if self.wide_head else e
        head = 2 * h * w + w + (_GELU + _LAYER_NORM) * w + (2 * w * e if w != e else 0)
        # The softmax's 2 V are the script's one-hot product for the target word.
        return Parts(head=head * positions, softmax=(2 * e * v + _SOFTMAX * v + 2 * v) * positions)

    def discriminator(self) -> Parts:
        """Counts forward operations of the binary classification of every position, on one sequence."""
        h = self.width
        inner = 0 if self.detector == "linear" else 2 * h * h + h + _GELU * h
        inner += (1 + _LAYER_NORM) * h if self.detector == "normed" else 0
        return Parts(head=(inner + 2 * h) * self.length)


def training(forward: Parts, batch: float, steps: float) -> float:
    """Counts operations of training: the backward pass costs as much as the forward pass."""
    return 2 * batch * steps * forward.total


def mlm_run(shape: Transformer, batch: float, steps: float, share: float = OUTPUT_SHARE) -> float:
    """Counts operations of training `shape` by language modeling."""
    return training(shape.body() + shape.mlm(share), batch, steps)


def electra_run(encoder: Transformer, generator: Transformer, batch: float, steps: float) -> float:
    """Counts operations of training ELECTRA."""
    forward = encoder.body() + encoder.discriminator() + generator.body() + generator.mlm()
    return training(forward, batch, steps)


def train_step(
    objective: Objective, stage: Stage, batch: int, length: int, optimizer: str = "adam"
) -> dict[str, Parts]:
    """Counts the operations of a train step by network, like `hardware.train_step`. The script counts no optimizer."""
    c = objective.model.config
    counted: dict[str, Parts] = {}
    for network_pass in stage.passes:
        network = c.encoder if network_pass.network == "encoder" else c.generator
        assert network is not None
        architecture = network.architecture
        shape = Transformer(
            network.width,
            network.layers,
            length,
            c.vocab_size,
            c.embedding_size,
            network.ffn,
            network.heads,
            gated=architecture.gated,
            wide_head=architecture.normed_heads,
            absolute=c.absolute,
            towers=2 if c.two_towers and network_pass.network == "generator" else 1,
            relative=architecture.relative(network, length),
            detector=architecture.detector(network),
        )
        parts = shape.body()
        for head in network_pass.heads:
            # 15.625% whatever the masking rate, as in the script.
            predicted = 1.0 if head.everywhere else OUTPUT_SHARE
            parts += shape.discriminator() if head.name == "discriminator" else shape.mlm(predicted)
        counted[network_pass.network] = (parts * batch + shape.relative_rows()) * (2 if network_pass.trained else 1)
    return counted if optimizer == "adam" else {**counted, "optimizer": Parts()}
