"""The `paper` accounting: the conventions of the script behind the paper's figures, so that curves can be compared.

google-research/electra, flops_computation.py:
- a multiply-add is two operations; the backward pass costs as much as the forward pass;
- embedding look-ups are dense products with one-hot vectors;
- 15.625% of the positions go through the softmax of masked language modelling;
- per element, a layer norm takes 5 operations, GELU 8, dropout 4, a softmax 5.

Two slips of the script are kept, since the paper's figures have them: the layer norm after attention is counted once
for each position and not for each of its elements (its issue 121), and BERT-Large is taken as 1M steps of 256
sequences of 512, though BERT was trained at length 128 for nine tenths of them, and the paper's own BERT-Large run was
464k steps of 2048 (its issue 115).
"""

import dataclasses

from electra_jax.objectives.spec import Objective
from electra_jax.planning.flops.breakdown import Parts

VOCABULARY = 30522
OUTPUT_SHARE = 0.15625
_LAYER_NORM, _GELU, _DROPOUT, _SOFTMAX = 5, 8, 4, 5


@dataclasses.dataclass(frozen=True)
class Transformer:
    """The shape of a network.

    Attributes:
      width, layers, length: h, l and s of the script.
      vocabulary, embedding_size, ffn, heads: v, e, i and heads of the script; 0 takes its default.
      attention_width: of queries, keys and values together over all heads; 0: the width.
      cross: whether there is a second attention, over an encoder's states.
      gated: whether the FFN has a gate, as GeGLU has; the script knows none.
      wide_head: whether the head of language modelling is as wide as the network, with a map to the embedding's size
        behind it, as ModernBERT's; the script's is as wide as the embedding.
      absolute: whether positions and segments are tables.
      towers: networks of this shape that read the same embeddings and are read together; the script knows only one.
      norm_slip: whether the layer norm after attention is counted as the script does, once for each position.
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
    norm_slip: bool = True

    @property
    def _embedding_size(self) -> int:
        return self.embedding_size or self.width

    def body(self) -> Parts:
        """Forward operations of embeddings and layers on one sequence."""
        h, s, e = self.width, self.length, self._embedding_size
        i, heads, a = self.ffn or 4 * h, self.heads or max(h // 64, 1), self.attention_width or h
        attention = (
            3 * 2 * h * a
            + 3 * a
            + 2 * a * s
            + (_SOFTMAX + _DROPOUT + 1) * s * heads
            + 2 * h * s
            + 2 * h * h
            + h
            + _DROPOUT * h
            + h
            + _LAYER_NORM * (1 if self.norm_slip else h)
        )
        ffn = 2 * (2 + self.gated) * h * i + _GELU * i + i + h + _DROPOUT * h + h + _LAYER_NORM * h
        lookup = 2 * e * self.vocabulary + (_LAYER_NORM + _DROPOUT) * e
        lookup += 2 * e * (s + 2) + 2 * e if self.absolute else 0
        lookup += self.towers * (2 * h * e + h) if e != h else 0
        layers = self.towers * self.layers * s
        return Parts(embeddings=lookup * s, attention=attention * layers * (1 + self.cross), ffn=ffn * layers)

    def mlm(self, share: float = OUTPUT_SHARE) -> Parts:
        """Forward operations of predicting `share` of the positions."""
        h, e, v = self.towers * self.width, self._embedding_size, self.vocabulary
        positions = share * self.length
        w = self.width if self.wide_head else e
        head = 2 * h * w + w + (_GELU + _LAYER_NORM) * w + (2 * w * e if w != e else 0)
        return Parts(head=head * positions, softmax=(2 * e * v + _SOFTMAX * v + 2 * v) * positions)

    def discriminator(self) -> Parts:
        """Forward operations of the binary classification of every position."""
        h = self.width
        return Parts(head=(2 * h * h + h + _GELU * h + 2 * h) * self.length)


def training(forward: Parts, batch: float, steps: float) -> float:
    """Forward and backward."""
    return 2 * batch * steps * forward.total


def mlm_run(shape: Transformer, batch: float, steps: float, share: float = OUTPUT_SHARE) -> float:
    """Operations of training `shape` by language modelling."""
    return training(shape.body() + shape.mlm(share), batch, steps)


def electra_run(encoder: Transformer, generator: Transformer, batch: float, steps: float) -> float:
    """Operations of training ELECTRA."""
    forward = encoder.body() + encoder.discriminator() + generator.body() + generator.mlm()
    return training(forward, batch, steps)


def train_step(objective: Objective, batch: int, length: int, step: int = 0) -> dict[str, Parts]:
    """Operations, by network, of the train step that follows `step` steps, on the whole batch."""
    c = objective.model.config
    counted: dict[str, Parts] = {}
    for what in objective.passes(step):
        network = c.encoder if what.network == "encoder" else c.generator
        assert network is not None
        shape = Transformer(
            network.width,
            network.layers,
            length,
            c.vocab_size,
            c.embedding_size,
            network.ffn,
            network.heads,
            gated=network.kind == "modernbert",
            wide_head=network.kind == "modernbert",
            absolute=c.absolute,
            towers=2 if c.two_towers and what.network == "generator" else 1,
        )
        if what.head == "discriminator":
            parts = shape.body() + shape.discriminator()
        else:
            parts = shape.body() + shape.mlm(1.0 if what.everywhere else OUTPUT_SHARE)
        counted[what.network] = parts * (batch * (2 if what.trained else 1))
    return counted
