"""The runs of the ELECTRA paper's tables, each in both accountings."""

import dataclasses

import jax.numpy as jnp

from electra_jax.flops import hardware, paper
from electra_jax.flops.paper import Transformer
from electra_jax.modeling.bert import Bert
from electra_jax.modeling.config import EncoderConfig
from electra_jax.modeling.model_config import HEAD_SIZE
from electra_jax.objectives.masking import max_masked

# Not transformers of this kind. The script takes their figures from TensorFlow's count of the graph: examples x
# operations per example, forward and backward. ELMo: 10 epochs of 768,648,884 words in batches of 20 x 128 words,
# 568,093,262,680 operations per batch. XLNet: 500k steps of 8192, 15,064,773,691,518 operations for 32.
_ELMO = 2 * 10 * 768648884 * 568093262680 / (20.0 * 128)
_XLNET = 2 * 500_000 * 8192 * 15064773691518 / 32.0


@dataclasses.dataclass(frozen=True)
class Run:
    """A pre-training run.

    Attributes:
      name: the name in the script; for other runs a name of our own.
      printed: the training FLOPs that the paper prints.
      batch, steps: global batch size in sequences, and number of steps.
      encoder, generator: their shapes; without them only `fixed` is known.
      mask_prob: fraction of positions that are masked, in the `model` accounting.
      share: fraction of positions that go through the softmax, in the `paper` accounting, which takes 15.625% for any
        ELECTRA; with 1, all positions in the `model` accounting too.
      fixed: total operations as a given number, not counted from shapes.
    """

    name: str
    printed: str
    batch: float = 0
    steps: float = 0
    encoder: Transformer | None = None
    generator: Transformer | None = None
    mask_prob: float = 0.15
    share: float = paper.OUTPUT_SHARE
    fixed: float = 0

    def paper(self, corrected: bool = False) -> float:
        """Counts operations like the script; `corrected`: with the layer norm after attention counted in full."""
        if self.fixed:
            return self.fixed
        assert self.encoder is not None
        encoder = dataclasses.replace(self.encoder, norm_slip=not corrected)
        if self.generator is None:
            return paper.mlm_run(encoder, self.batch, self.steps, self.share)
        generator = dataclasses.replace(self.generator, norm_slip=not corrected)
        return paper.electra_run(encoder, generator, self.batch, self.steps)

    def model(self) -> float | None:
        """Counts operations that the hardware must execute; None if the network is not one of ours."""
        if self.fixed or self.encoder is None:
            return None
        length = self.encoder.length
        masked = length if self.share == 1 else max_masked(length, self.mask_prob)
        forward = _body(self.encoder)
        if self.generator is None:
            forward += _mlm(self.encoder, masked)
        else:
            width = self.encoder.width
            forward += 2 * length * width * (width + 1) + _body(self.generator) + _mlm(self.generator, masked)
        return 3 * self.batch * self.steps * forward


def _body(shape: Transformer) -> float:
    network = EncoderConfig(
        Bert(),
        layers=shape.layers,
        width=shape.width,
        ffn=4 * shape.width,
        heads=max(1, shape.width // HEAD_SIZE),
        init_stddev=0.02,
        dropout=0.0,
        dtype=jnp.float32,
    )
    return hardware.encoder(network, shape.embedding_size or shape.width, 1, shape.length).total


def _mlm(shape: Transformer, positions: int) -> float:
    e = shape.embedding_size or shape.width
    return 2 * positions * e * (shape.width + shape.vocabulary)


def _t5() -> float:
    """Counts T5 11B: an encoder without a softmax and a decoder with one at every position."""
    shape = Transformer(1024, 24, vocabulary=32000, ffn=65536, heads=128, attention_width=128 * 128)
    decoder = dataclasses.replace(shape, cross=True)
    return paper.mlm_run(shape, 2048, 1e6, share=0.0) + paper.mlm_run(decoder, 2048, 1e6, share=1.0)


_SMALL = Transformer(256, 12, 128, embedding_size=128)
_SMALL_GENERATOR = dataclasses.replace(_SMALL, width=64)
_LARGE = Transformer(1024, 24)
_LARGE_GENERATOR = Transformer(256, 24, embedding_size=1024)

# The 13 totals of the script, in its names; printed: tables 1 and 2 of the paper.
RUNS = (
    Run("elmo", "3.3e18", fixed=_ELMO),
    Run("gpt", "4.0e19", 128, 960_800, Transformer(768, 12, vocabulary=40000), share=1.0),
    Run("xlnet", "3.9e21", fixed=_XLNET),
    Run("bert_small", "1.4e18", 128, 1.45e6, _SMALL),
    Run("bert_base", "6.4e19", 256, 1e6, Transformer(768, 12)),
    Run("bert_large", "1.9e20", 256, 1e6, _LARGE),
    Run("electra_small", "1.4e18", 128, 1e6, _SMALL, _SMALL_GENERATOR),
    Run("electra_base", "6.4e19", 256, 766_000, Transformer(768, 12), Transformer(256, 12, embedding_size=768)),
    Run("electra_400k", "7.1e20", 2048, 400_000, _LARGE, _LARGE_GENERATOR, mask_prob=0.25),
    Run("electra_1.75M", "3.1e21", 2048, 1_750_000, _LARGE, _LARGE_GENERATOR, mask_prob=0.25),
    Run("roberta", "3.2e21", 8000, 500_000, Transformer(1024, 24, vocabulary=50265)),
    Run("albert", "3.1e22", 4096, 1.5e6, Transformer(4096, 12, vocabulary=30000, embedding_size=128)),
    Run("t5_11b", "", fixed=_t5()),
)

# The fractions of ELECTRA-Small that table 1 prints. Its 1.4e18 is what the script gives for a generator of width 128,
# not for the 64 of the model as built, so these rows take 128.
_PRINTED_GENERATOR = dataclasses.replace(_SMALL, width=128)
FRACTIONS = tuple(
    Run(f"electra_small_128 {share:.4g}%", printed, 128, share / 100 * 1e6, _SMALL, _PRINTED_GENERATOR)
    for share, printed in ((100, "1.4e18"), (50, "7.1e17"), (25, "3.6e17"), (12.5, "1.8e17"), (6.25, "8.9e16"))
)

# BERT-Large as the paper's authors trained it (its "BERT, ours"), which the script's row is not.
OTHERS = (Run("bert_large 464k x 2048", "7.1e20", 2048, 464_000, _LARGE), *FRACTIONS)
