"""Frozen configs of the Linen modules; `model_config` makes them from settings, `huggingface` from a config.json."""

import dataclasses
import math
from typing import Any

from electra_jax.modeling.architecture import Architecture

VOCAB_MULTIPLE = 128  # the lanes of a TPU register, and the block size of `electra.sample`
VOCAB_SHARDS = 8  # large tables are padded so that this many devices get whole blocks


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Config of one transformer.

    Attributes:
      architecture: `bert.Bert()`, for example.
      layers: the number of layers.
      width: the hidden size.
      ffn: the feed-forward (intermediate) size.
      heads: the number of attention heads.
      init_stddev: the standard deviation of the truncated normal that initializes weights.
      dropout: the dropout rate of embeddings and hidden states.
      dtype: the compute dtype; parameters are float32.
      own: the settings that only this architecture has, such as `modernbert.ModernBertSettings`; None if it has none.
      unroll: whether layers are unrolled instead of scanned, as only train steps do (`electra.unroll`). Parameters and
        results are the same; scanning compiles faster, unrolled layers run faster.
      remat: what the backward pass recomputes: `none`, `dots` (all but matrix products: norms, activations, dropout;
        attention scores too, where attention is plain) or `full` (whole layers).
      attention: the attention implementation: `auto`, `plain` or `fused` (`fused_attention.choose`).
      attention_dropout: the dropout rate of attention weights; None: same as `dropout`.
    """

    architecture: Architecture
    layers: int
    width: int
    ffn: int
    heads: int
    init_stddev: float
    dropout: float
    dtype: Any
    own: Any = None
    unroll: bool = False
    remat: str = "none"
    attention: str = "auto"
    attention_dropout: float | None = None

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @property
    def attention_rate(self) -> float:
        """Dropout rate of attention weights."""
        if not self.architecture.drops_weights:
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
        # Only a table of positions has entries that training may not have reached.
        trained = self.trained_length if self.absolute else 0
        return min(trained or self.max_length, self.max_length)

    @property
    def padded_vocab_size(self) -> int:
        """Number of entries of the word table: a multiple of VOCAB_MULTIPLE, times VOCAB_SHARDS for large tables."""
        # From 8 x 1024 entries on, padding to a multiple of 1024 adds at most an eighth.
        large = self.vocab_size >= 8 * VOCAB_SHARDS * VOCAB_MULTIPLE
        multiple = VOCAB_MULTIPLE * (VOCAB_SHARDS if large else 1)
        return multiple * math.ceil(self.vocab_size / multiple)

    @property
    def absolute(self) -> bool:
        """True if positions and segments have learned tables."""
        return self.encoder.architecture.absolute
