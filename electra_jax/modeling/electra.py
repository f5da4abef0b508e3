"""ELECTRA's two networks over one set of embeddings (arXiv 2003.10555)."""

from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from electra_jax.modeling import bert, layers, modernbert
from electra_jax.modeling.config import ElectraConfig, EncoderConfig

Array = jax.Array
Batch = Mapping[str, Any]  # input_ids, token_type_ids, sequence_ids, each [B, L] int32; see data/examples.py
_ENCODERS = {"bert": bert.Encoder, "modernbert": modernbert.Encoder}
_SEGMENTS = 2


class Embeddings(nn.Module):
    """The word table, and for BERT the position and segment tables and their layer norm; shared by both networks."""

    config: ElectraConfig

    def setup(self):
        c = self.config
        init = layers.truncated_normal(c.discriminator.init_stddev)
        shape = (c.padded_vocab_size, c.embedding_size)
        self.word = self.param("word", init, shape)
        if c.absolute:
            self.position = self.param("position", init, (c.max_length, c.embedding_size))
            self.segment = self.param("segment", init, (_SEGMENTS, c.embedding_size))
            self.norm = layers.LayerNorm(bert.EPSILON, True, c.discriminator.dtype)
        self.drop = nn.Dropout(c.discriminator.dropout)

    def __call__(self, input_ids_BL: Array, token_type_ids_BL: Array, sequence_ids_BL: Array, train: bool) -> Array:
        c = self.config
        x_BLE = jnp.take(self.word, input_ids_BL, axis=0)
        if not c.absolute:
            return x_BLE.astype(c.discriminator.dtype)
        x_BLE += jnp.take(self.position, layers.sequence_positions(sequence_ids_BL), axis=0)
        x_BLE += jnp.take(self.segment, token_type_ids_BL, axis=0)
        return self.drop(self.norm(x_BLE), deterministic=not train)

    def decode(self, x_BME: Array) -> Array:
        """Scores of every vocabulary entry, [B, M, V] float32: the word table used as an output layer."""
        table = self.word.astype(x_BME.dtype)
        return jnp.einsum("bme,ve->bmv", x_BME, table, preferred_element_type=jnp.float32)


class GeneratorHead(nn.Module):
    """dense(D -> E), GELU, layer norm; what comes out is compared with the word table."""

    config: EncoderConfig
    embedding_size: int

    @nn.compact
    def __call__(self, x_BMD: Array) -> Array:
        c = self.config
        is_bert = c.kind == "bert"
        init = layers.truncated_normal(c.init_stddev if is_bert else modernbert.out_stddev(c))
        x = nn.Dense(self.embedding_size, use_bias=is_bert, dtype=c.dtype, kernel_init=init, name="dense")(x_BMD)
        epsilon = bert.EPSILON if is_bert else modernbert.EPSILON
        return layers.LayerNorm(epsilon, is_bert, c.dtype, name="norm")(layers.gelu(x))


class DiscriminatorHead(nn.Module):
    """dense(D -> D), GELU, (for ModernBERT a layer norm,) dense(D -> 1)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x_BLD: Array) -> Array:
        c = self.config
        is_bert = c.kind == "bert"
        init = layers.truncated_normal(c.init_stddev if is_bert else modernbert.out_stddev(c))
        x = nn.Dense(c.width, use_bias=is_bert, dtype=c.dtype, kernel_init=init, name="dense")(x_BLD)
        x = layers.gelu(x)
        if not is_bert:
            x = layers.LayerNorm(modernbert.EPSILON, False, c.dtype, name="norm")(x)
        # Glorot as the reference; ModernBERT's own classifiers are normal with 1 / sqrt(D).
        init = nn.initializers.xavier_uniform() if is_bert else layers.truncated_normal(c.width**-0.5)
        return nn.Dense(1, dtype=c.dtype, kernel_init=init, name="classifier")(x)[..., 0].astype(jnp.float32)


class Electra(nn.Module):
    """Generator and discriminator.

    Parameters: `embeddings`, `generator`, `generator_head`, `generator_bias` [V], `discriminator`,
    `discriminator_head`. All float32.
    """

    config: ElectraConfig

    def setup(self):
        c = self.config
        encoder = _ENCODERS[c.discriminator.kind]
        self.embeddings = Embeddings(c)
        self.generator = encoder(c.generator)
        self.generator_head = GeneratorHead(c.generator, c.embedding_size)
        self.generator_bias = self.param("generator_bias", nn.initializers.zeros, (c.padded_vocab_size,))
        self.discriminator = encoder(c.discriminator)
        self.discriminator_head = DiscriminatorHead(c.discriminator)

    def generate(
        self,
        input_ids_BL: Array,
        token_type_ids_BL: Array,
        sequence_ids_BL: Array,
        positions_BM: Array,
        train: bool = False,
    ) -> Array:
        """The generator's logits at `positions_BM`, [B, M, V] float32; the lowest float for padded entries."""
        x_BLE = self.embeddings(input_ids_BL, token_type_ids_BL, sequence_ids_BL, train)
        x_BLD = self.generator(x_BLE, sequence_ids_BL, train)
        x_BMD = jnp.take_along_axis(x_BLD, positions_BM[..., None], axis=1)
        logits = self.embeddings.decode(self.generator_head(x_BMD)) + self.generator_bias[None, None]
        real = jnp.arange(self.config.padded_vocab_size) < self.config.vocab_size
        return jnp.where(real[None, None], logits, jnp.finfo(jnp.float32).min)

    def discriminate(
        self, input_ids_BL: Array, token_type_ids_BL: Array, sequence_ids_BL: Array, train: bool = False
    ) -> Array:
        """The logit of "this token was replaced" at every position, [B, L] float32."""
        x_BLE = self.embeddings(input_ids_BL, token_type_ids_BL, sequence_ids_BL, train)
        return self.discriminator_head(self.discriminator(x_BLE, sequence_ids_BL, train))

    def __call__(self, input_ids_BL: Array, token_type_ids_BL: Array, sequence_ids_BL: Array) -> tuple[Array, Array]:
        """Both networks on one input; names every parameter, for `init`."""
        batch = (input_ids_BL, token_type_ids_BL, sequence_ids_BL)
        return self.generate(*batch, positions_BM=jnp.zeros_like(input_ids_BL)), self.discriminate(*batch)


def generator_logits(
    model: Electra,
    params: Any,
    batch: Batch,
    input_ids_BL: Array,
    positions_BM: Array,
    dropout_key: Array | None = None,
) -> Array:
    """`Electra.generate` on `input_ids_BL` in the place of the batch's own; dropout is on where it has a key."""
    inputs = (input_ids_BL, batch["token_type_ids"], batch["sequence_ids"], positions_BM)
    return _apply(model, params, inputs, dropout_key, "generate")


def discriminator_logits(
    model: Electra, params: Any, batch: Batch, input_ids_BL: Array, dropout_key: Array | None = None
) -> Array:
    """`Electra.discriminate` on `input_ids_BL` in the place of the batch's own; dropout is on where it has a key."""
    inputs = (input_ids_BL, batch["token_type_ids"], batch["sequence_ids"])
    return _apply(model, params, inputs, dropout_key, "discriminate")


def _apply(model: Electra, params: Any, inputs: tuple[Array, ...], dropout_key: Array | None, method: str) -> Array:
    rngs = None if dropout_key is None else {"dropout": dropout_key}
    return cast(Array, model.apply({"params": params}, *inputs, train=rngs is not None, method=method, rngs=rngs))
