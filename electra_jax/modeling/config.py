"""Settings of the networks, and the frozen configs for Linen modules that are made from them."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp

from electra_jax.config.errors import UserError
from electra_jax.config.settings import Check, above, from_up_to_below, one_of, setting, within

HEAD_SIZE = 64  # of all networks in the paper; it determines a generator's number of heads
VOCAB_MULTIPLE = 128  # the lanes of a TPU register, and the block size of `electra.sample`
VOCAB_SHARDS = 8  # large tables are padded so that this many devices get whole blocks
_SAME = -1.0  # value of `attention_dropout` that means: same as `dropout`
_RATE = Check(lambda value: value == _SAME or 0 <= value < 1, "0 or more, less than 1, or -1")


@dataclasses.dataclass(frozen=True)
class ModernBertSettings:
    """Settings that only encoder=modernbert uses."""

    local_window: int = setting(
        128, "Window of local attention layers, in tokens, half of them on each side.", above(0)
    )
    global_every: int = setting(3, "Every how many layers attention is global, starting with the first.", above(0))
    activation: str = setting(
        "gelu", "Activation of the gated feed-forward layers; relu2: the square of a ReLU.", one_of("gelu", "relu2")
    )
    zero_outputs: bool = setting(
        False,
        "Initialize the output projections of attention and feed-forward layers with zeros, so that layers start as "
        "the identity.",
    )


@dataclasses.dataclass(frozen=True)
class DebertaSettings:
    """Settings that only encoder=deberta uses."""

    position_buckets: int = setting(
        256,
        "Number of relative-position buckets per side; distances beyond half of them share buckets logarithmically.",
        above(1),
    )
    max_relative_positions: int = setting(
        512, "Maximum relative distance; all larger distances share the last bucket.", above(1)
    )
    discriminator_head: str = setting(
        "released",
        "Discriminator head: DeBERTaV3's own, or a single linear layer, for which transformers has a class.",
        one_of("released", "linear"),
    )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The networks of a run, as a config file describes them."""

    encoder: str = setting("bert", "Architecture of both networks.", one_of("bert", "modernbert", "deberta"))
    layers: int = setting(12, "Number of encoder layers.", above(0))
    width: int = setting(256, "Hidden size of the encoder.", above(0))
    ffn: int = setting(1024, "Feed-forward (intermediate) size of the encoder.", above(0))
    heads: int = setting(4, "Number of attention heads of the encoder.", above(0))
    embedding_size: int = setting(128, "Embedding size.", above(0))
    max_length: int = setting(512, "Maximum sequence length of the networks.", above(0))
    generator_width: float = setting(0.25, "Hidden size of the generator as a fraction of the encoder's.", above(0))
    generator_layers: float = setting(1.0, "Number of generator layers as a fraction of the encoder's.", above(0))
    tying: str = setting(
        "embeddings",
        "Weights that generator and encoder share: none, embeddings, all, or gradient-disentangled embeddings (gdes).",
        one_of("none", "embeddings", "all", "gdes"),
    )
    init_stddev: float = setting(0.02, "Standard deviation of the initial weights.", within(1e-6, 1))
    dropout: float = setting(0.1, "Dropout rate in both networks.", from_up_to_below(0, 1))
    attention_dropout: float = setting(
        _SAME,
        "Dropout rate of attention weights (not in modernbert); -1: same as dropout.",
        _RATE,
    )
    dtype: str = setting("bfloat16", "Compute dtype; parameters are float32.", one_of("float32", "bfloat16"))
    unroll: str = setting(
        "auto",
        "Unroll the layers of the train step (true) or scan over them (false; compiles faster, runs slower); auto "
        "unrolls up to 16 layers.",
        one_of("auto", "true", "false"),
        resumable=True,
    )
    remat: str = setting(
        "none",
        "Rematerialization: recompute nothing, everything except matrix products, or whole layers in the backward "
        "pass.",
        one_of("none", "dots", "full"),
        resumable=True,
    )
    attention: str = setting(
        "auto",
        "Attention implementation: a fused kernel that never writes the weights to memory, plain matrix products, or "
        "auto: the kernel if the devices have one that supports this network.",
        one_of("auto", "plain", "fused"),
        resumable=True,
    )
    modernbert: ModernBertSettings = ModernBertSettings()
    deberta: DebertaSettings = DebertaSettings()


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Config of one transformer.

    Attributes:
      kind: `bert` (post-LN, absolute positions), `modernbert` (pre-norm, RoPE, GeGLU, no biases) or `deberta` (post-LN,
        relative positions in the scores of attention).
      layers: the number of layers.
      width: the hidden size.
      ffn: the feed-forward (intermediate) size.
      heads: the number of attention heads.
      init_stddev: the standard deviation of the truncated normal that initializes weights.
      dropout: the dropout rate of embeddings and hidden states.
      dtype: the compute dtype; parameters are float32.
      unroll: whether layers are unrolled instead of scanned, as only train steps do (`electra.unroll`). Parameters and
        results are the same; scanning compiles faster, unrolled layers run faster.
      remat: what the backward pass recomputes: `none`, `dots` (all but matrix products: norms, activations, dropout;
        attention scores too, where attention is plain) or `full` (whole layers).
      attention: the attention implementation: `auto`, `plain` or `fused` (`fused_attention.choose`).
      local_window: ModernBERT: local layers attend to half of this on each side.
      global_every: ModernBERT: every `global_every`-th layer, starting with the first, attends to the whole sequence.
      attention_dropout: BERT and DeBERTa: the dropout rate of attention weights; None: same as `dropout`.
      position_buckets, max_relative_positions: DeBERTa: as in `DebertaSettings`.
      linear_head: DeBERTa: whether the discriminator's head is one linear layer.
      activation: ModernBERT: the activation of the gated feed-forward layers, `gelu` or `relu2`.
      zero_outputs: ModernBERT: whether the projections that write to the residual stream are initialized with zeros.
    """

    kind: str
    layers: int
    width: int
    ffn: int
    heads: int
    init_stddev: float
    dropout: float
    dtype: Any
    local_window: int
    global_every: int
    unroll: bool = False
    remat: str = "none"
    attention: str = "auto"
    attention_dropout: float | None = None
    activation: str = "gelu"
    zero_outputs: bool = False
    position_buckets: int = 256
    max_relative_positions: int = 512
    linear_head: bool = False

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @property
    def attention_rate(self) -> float:
        """Dropout rate of attention weights; 0 for ModernBERT."""
        if self.kind == "modernbert":
            return 0.0
        return self.dropout if self.attention_dropout is None else self.attention_dropout


@dataclasses.dataclass(frozen=True)
class ElectraConfig:
    """Config of an objective's networks, and of the weights that they share.

    Attributes:
      vocab_size: the number of token ids in use.
      embedding_size: E, the width of all tables. In google-research/electra, a generator's own tables have the
        generator's width; here they have the encoder's, so that a generator can be taken from a run that shared them.
      max_length: the number of entries of BERT's position table.
      encoder: the network that is kept after pre-training; ELECTRA's discriminator.
      generator: the network that fakes are sampled from; None if there is none.
      two_towers: whether the generator is two causal networks, one for each direction; otherwise it reads [MASK].
      tying: the weights that the two share: `none`, `embeddings`, `all`, or `gdes` (see `Electra`).
      heads: heads on the encoder (`discriminator_head`, `mlm_head`, `copy_gate`) and on the generator (`baseline`).
      trained_length: the longest row in training, in tokens; 0: unknown. Later entries of BERT's position table are
        untrained.
    """

    vocab_size: int
    embedding_size: int
    max_length: int
    encoder: EncoderConfig
    generator: EncoderConfig | None = None
    two_towers: bool = False
    tying: str = "embeddings"
    heads: tuple[str, ...] = ("discriminator_head",)
    trained_length: int = 0

    @property
    def longest(self) -> int:
        """Maximum length of a row to read, in tokens; with BERT's positions, only the trained ones count."""
        trained = self.trained_length if self.absolute else 0
        return min(trained or self.max_length, self.max_length)

    @property
    def padded_vocab_size(self) -> int:
        """Number of entries of the word table: a multiple of VOCAB_MULTIPLE, times VOCAB_SHARDS for large tables."""
        large = self.vocab_size >= 8 * VOCAB_SHARDS * VOCAB_MULTIPLE
        multiple = VOCAB_MULTIPLE * (VOCAB_SHARDS if large else 1)
        return multiple * math.ceil(self.vocab_size / multiple)

    @property
    def absolute(self) -> bool:
        """True if positions and segments have learned tables, as in BERT."""
        return self.encoder.kind == "bert"


def encoder_config(model: ModelConfig) -> EncoderConfig:
    """Makes the config of the encoder that `config.model` describes.

    Raises:
      UserError: the settings contradict each other.
    """
    own = None if model.attention_dropout == _SAME else model.attention_dropout
    if own and model.encoder == "modernbert":
        raise UserError(
            f"config.model.attention_dropout={own:g} is invalid with encoder=modernbert, whose attention weights have "
            "no dropout: expected -1 or 0"
        )
    if model.encoder == "deberta" and model.attention == "fused":
        raise UserError(
            "config.model.attention=fused is invalid with encoder=deberta, whose scores depend on relative positions: "
            "expected auto or plain"
        )
    if model.encoder == "deberta" and model.deberta.max_relative_positions <= model.deberta.position_buckets // 2 + 1:
        raise UserError(
            f"config.model.deberta.max_relative_positions={model.deberta.max_relative_positions} is within half of "
            f"position_buckets={model.deberta.position_buckets}, whose rows are for one distance each: expected "
            f"{model.deberta.position_buckets // 2 + 2} or more"
        )
    encoder = EncoderConfig(
        kind=model.encoder,
        layers=model.layers,
        width=model.width,
        ffn=model.ffn,
        heads=model.heads,
        init_stddev=model.init_stddev,
        dropout=model.dropout,
        dtype=jnp.dtype(model.dtype),
        local_window=model.modernbert.local_window,
        global_every=model.modernbert.global_every,
        remat=model.remat,
        attention=model.attention,
        attention_dropout=own,
        activation=model.modernbert.activation,
        zero_outputs=model.modernbert.zero_outputs,
        position_buckets=model.deberta.position_buckets,
        max_relative_positions=model.deberta.max_relative_positions,
        linear_head=model.deberta.discriminator_head == "linear",
    )
    _check(encoder, "encoder")
    return encoder


def from_settings(
    model: ModelConfig, vocab_size: int, heads: tuple[str, ...], has_generator: bool = True, two_towers: bool = False
) -> ElectraConfig:
    """Makes the config of the networks that `config.model` describes, with a generator as in the reference.

    The generator's hidden and feed-forward sizes are `generator_width` times the encoder's, and its depth is
    `generator_layers` times the encoder's. A generator as wide as the encoder has as many heads; otherwise its heads
    have size 64, and there is at least one (google-research/electra, run_pretraining.py, get_generator_config).

    Args:
      model: the run's `config.model`.
      vocab_size: the number of token ids in use.
      heads: as `ElectraConfig.heads`.
      has_generator: whether there is a generator network.
      two_towers: as `ElectraConfig.two_towers`.

    Raises:
      UserError: the settings contradict each other.
    """
    encoder = encoder_config(model)
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
            heads=model.heads if width == model.width else max(1, width // HEAD_SIZE),
        )
        _check(generator, "generator")
    if model.tying == "all" and generator != encoder:
        raise UserError(
            f"config.model.tying=all needs networks of equal size: expected generator_width=1 and generator_layers=1, "
            f"not {model.generator_width:g} and {model.generator_layers:g}"
        )
    if model.tying == "all" and two_towers:
        raise UserError(
            "config.model.tying=all is invalid with a two-tower generator: expected none, embeddings or gdes"
        )
    return ElectraConfig(
        vocab_size, model.embedding_size, model.max_length, encoder, generator, two_towers, model.tying, heads
    )


def _check(network: EncoderConfig, name: str) -> None:
    if min(network.layers, network.width, network.ffn, network.heads) < 1:
        raise UserError(f"config.model gives the {name} no layers or no width: expected 1 or more of each in {network}")
    if network.width % network.heads or (network.kind == "modernbert" and network.head_size % 2):
        raise UserError(
            f"config.model gives the {name} width {network.width}, which {network.heads} heads do not divide (for "
            "modernbert into even sizes); change width, heads or generator_width"
        )
