"""What shapes a model: the settings of the two networks, frozen so that Linen can hash them."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp

from electra_jax.config.errors import UserError
from electra_jax.config.settings import above, from_up_to_below, one_of, setting

HEAD_SIZE = 64  # of every network of the paper; a generator's heads are counted by it
VOCAB_MULTIPLE = 128  # lanes of a TPU register; also the block of the sampler
VOCAB_SHARDS = 8  # devices that a table of many entries can be split over, so that each has whole blocks


@dataclasses.dataclass(frozen=True)
class ModernBertSettings:
    """Settings that only encoder=modernbert uses."""

    local_window: int = setting(128, "Tokens that a local layer attends to, half of them to each side.", above(0))
    global_every: int = setting(3, "Every how many layers one attends globally, from the first on.", above(0))


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The networks of a run, as a config file describes them."""

    encoder: str = setting("bert", "Architecture of both networks.", one_of("bert", "modernbert"))
    layers: int = setting(12, "Layers of the encoder.", above(0))
    width: int = setting(256, "Hidden size of the encoder.", above(0))
    ffn: int = setting(1024, "Inner width of the encoder's feed-forward layers.", above(0))
    heads: int = setting(4, "Attention heads of the encoder.", above(0))
    embedding_size: int = setting(128, "Width of the embedding tables.", above(0))
    max_length: int = setting(512, "Positions that the networks can read.", above(0))
    generator_width: float = setting(0.25, "Width of the generator as a fraction of the encoder's.", above(0))
    generator_layers: float = setting(1.0, "Layers of the generator as a fraction of the encoder's.", above(0))
    tying: str = setting(
        "embeddings",
        "What generator and encoder share: nothing, the embeddings, all layers, or gradient-disentangled embeddings.",
        one_of("none", "embeddings", "all", "gdes"),
    )
    init_stddev: float = setting(0.02, "Standard deviation of the initial weights.", above(0))
    dropout: float = setting(0.1, "Dropout rate in both networks.", from_up_to_below(0, 1))
    dtype: str = setting(
        "bfloat16", "Precision of the computation; parameters are float32.", one_of("float32", "bfloat16")
    )
    unroll: bool = setting(False, "Write the layers out instead of scanning over them.", resumable=True)
    remat: str = setting(
        "none",
        "What the backward pass recomputes to save memory: nothing, all but the matrix products, or whole layers.",
        one_of("none", "dots", "full"),
        resumable=True,
    )
    modernbert: ModernBertSettings = ModernBertSettings()


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """One transformer.

    Attributes:
      kind: `bert` (post-LN, absolute positions) or `modernbert` (pre-norm, RoPE, GeGLU, no biases).
      layers, width, ffn, heads: its shape; `ffn` is the inner width.
      init_stddev: of the truncated normal that weights start from.
      dropout: rate on embeddings, attention and hidden states.
      dtype: of the computation; parameters are float32.
      unroll: layers written out one after another instead of one scanned body. Same parameters, same result; scanning
        compiles faster, unrolled code lets XLA optimise across layers.
      remat: what the backward pass computes again instead of keeping it: `none`, `dots` (all but the products with
        weights: attention's scores, norms, activations) or `full` (whole layers).
      local_window, global_every: of `modernbert`: every `global_every`-th layer, from the first, sees the whole
        sequence; the others see half of `local_window` to each side.
    """

    kind: str
    layers: int
    width: int
    ffn: int
    heads: int
    init_stddev: float
    dropout: float
    dtype: Any
    unroll: bool
    local_window: int
    global_every: int
    remat: str = "none"

    @property
    def head_size(self) -> int:
        return self.width // self.heads


@dataclasses.dataclass(frozen=True)
class ElectraConfig:
    """The networks of a system and what they share.

    Attributes:
      vocab_size: token ids in use.
      embedding_size: E, of all tables. (In google-research/electra a generator's own are as wide as itself; here they
        are as the encoder's, so that a generator can be taken from a run that shared them.)
      max_length: positions of BERT's table.
      encoder: the network that is kept after pre-training; ELECTRA's discriminator.
      generator: the network that makes the fakes, None where the system has none.
      two_towers: whether the generator is two causal networks, one from each side, instead of one that sees [MASK].
      tying: what the two share: `none`, `embeddings`, `all`, or `gdes` (see `Electra`).
      heads: what reads the encoder (`discriminator_head`, `mlm_head`, `copy_gate`) or the generator (`baseline`).
    """

    vocab_size: int
    embedding_size: int
    max_length: int
    encoder: EncoderConfig
    generator: EncoderConfig | None = None
    two_towers: bool = False
    tying: str = "embeddings"
    heads: tuple[str, ...] = ("discriminator_head",)

    @property
    def padded_vocab_size(self) -> int:
        """Entries of the word table: whole blocks, and for each of `VOCAB_SHARDS` devices where that adds little."""
        large = self.vocab_size >= 8 * VOCAB_SHARDS * VOCAB_MULTIPLE
        multiple = VOCAB_MULTIPLE * (VOCAB_SHARDS if large else 1)
        return multiple * math.ceil(self.vocab_size / multiple)

    @property
    def absolute(self) -> bool:
        """Whether positions and segments are learned tables, as in BERT."""
        return self.encoder.kind == "bert"


def from_settings(
    model: ModelConfig, vocab_size: int, heads: tuple[str, ...], has_generator: bool = True, two_towers: bool = False
) -> ElectraConfig:
    """The model that `config.model` describes, with the generator as the reference builds it.

    The generator is `generator_width` times as wide as the encoder, its FFN too, and `generator_layers` times as deep;
    its heads are of size 64, at least one (google-research/electra, run_pretraining.py, get_generator_config).

    Args:
      model: the settings.
      vocab_size: token ids in use.
      heads: as `ElectraConfig.heads`.
      has_generator: whether there is a generator network.
      two_towers: as `ElectraConfig.two_towers`.

    Raises:
      UserError: a setting that no model can have.
    """
    encoder = EncoderConfig(
        kind=model.encoder,
        layers=model.layers,
        width=model.width,
        ffn=model.ffn,
        heads=model.heads,
        init_stddev=model.init_stddev,
        dropout=model.dropout,
        dtype=jnp.dtype(model.dtype),
        unroll=model.unroll,
        local_window=model.modernbert.local_window,
        global_every=model.modernbert.global_every,
        remat=model.remat,
    )
    _check(encoder, "encoder")
    if not has_generator:
        return ElectraConfig(vocab_size, model.embedding_size, model.max_length, encoder, heads=heads)
    generator = encoder
    if model.generator_width != 1 or model.generator_layers != 1:
        width = round(model.width * model.generator_width)
        generator = dataclasses.replace(
            encoder,
            layers=round(model.layers * model.generator_layers),
            width=width,
            ffn=round(model.ffn * model.generator_width),
            heads=max(1, width // HEAD_SIZE),
        )
        _check(generator, "generator")
    if model.tying == "all" and generator != encoder:
        raise UserError(
            f"config.model.tying=all makes one network of both, but generator_width={model.generator_width:g} and "
            f"generator_layers={model.generator_layers:g}; set both to 1"
        )
    if model.tying == "all" and two_towers:
        raise UserError("config.model.tying=all cannot make one network of an encoder and two towers; use another")
    return ElectraConfig(
        vocab_size, model.embedding_size, model.max_length, encoder, generator, two_towers, model.tying, heads
    )


def _check(network: EncoderConfig, name: str) -> None:
    if min(network.layers, network.width, network.ffn, network.heads) < 1:
        raise UserError(f"config.model gives the {name} no layers or no width: {network}")
    if network.width % network.heads or (network.kind == "modernbert" and network.head_size % 2):
        raise UserError(
            f"config.model gives the {name} width {network.width} and {network.heads} heads, which do not divide "
            "it into (for modernbert even) heads; change width, heads or generator_width"
        )
