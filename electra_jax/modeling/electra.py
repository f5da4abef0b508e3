"""The networks of the ELECTRA paper and of its successors: an encoder, a generator, their embeddings and heads."""

from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from electra_jax.modeling import bert, layers, modernbert
from electra_jax.modeling.config import ElectraConfig, EncoderConfig

Array = jax.Array
Batch = Mapping[str, Any]  # input_ids, token_type_ids, sequence_ids, each [B, L] int32; see data/examples.py
ENCODERS = {"bert": bert.Encoder, "modernbert": modernbert.Encoder}
_SEGMENTS = 2


class Embeddings(nn.Module):
    """The word table, and for BERT the position and segment tables and their layer norm.

    Attributes:
      config: of the whole model.
      base: where it is given, every table of these is the base's, without a gradient to it, plus its own difference,
        zero at the start: gradient-disentangled embedding sharing (DeBERTaV3, arXiv 2111.09543, section 3.3).
    """

    config: ElectraConfig
    base: "Embeddings | None" = None

    def setup(self):
        c = self.config
        init = layers.truncated_normal(c.encoder.init_stddev) if self.base is None else nn.initializers.zeros
        self.word = self.param("word", init, (c.padded_vocab_size, c.embedding_size))
        if c.absolute:
            self.position = self.param("position", init, (c.max_length, c.embedding_size))
            self.segment = self.param("segment", init, (_SEGMENTS, c.embedding_size))
            self.norm = layers.LayerNorm(bert.EPSILON, True, c.encoder.dtype)
        self.drop = nn.Dropout(c.encoder.dropout)

    def table(self, name: str) -> Array:
        """The table `word`, `position` or `segment` as it is used, [entries, E]."""
        own = getattr(self, name)
        table = own if self.base is None else jax.lax.stop_gradient(self.base.table(name)) + own
        return layers.shard_vocab(table) if name == "word" else table

    def __call__(self, input_ids_BL: Array, token_type_ids_BL: Array, sequence_ids_BL: Array, train: bool) -> Array:
        c = self.config
        x_BLE = jnp.take(self.table("word"), input_ids_BL, axis=0)
        if not c.absolute:
            return x_BLE.astype(c.encoder.dtype)
        x_BLE += jnp.take(self.table("position"), layers.sequence_positions(sequence_ids_BL), axis=0)
        x_BLE += jnp.take(self.table("segment"), token_type_ids_BL, axis=0)
        return self.drop(self.norm(x_BLE), deterministic=not train)


class TwoTowers(nn.Module):
    """A network that predicts every token from the others at once: one reads from the left, one from the right.

    What comes out for a position is the left tower's state before it beside the right tower's after it, zeros where its
    sequence has none (arXiv 1903.07785, as Electric uses it, arXiv 2012.08561).
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, x_BLE: Array, sequence_ids_BL: Array, train: bool) -> Array:
        """[B, L, 2 D]."""
        encoder = ENCODERS[self.config.kind]
        same = layers.same_sequence(sequence_ids_BL)
        length = x_BLE.shape[1]
        seen = jnp.tril(jnp.ones((length, length), bool))[None, None]
        left_BLD = encoder(self.config, name="left")(x_BLE, same & seen, train)
        right_BLD = encoder(self.config, name="right")(x_BLE, same & seen.swapaxes(2, 3), train)
        follows = (sequence_ids_BL[:, 1:] == sequence_ids_BL[:, :-1])[..., None]
        none = jnp.zeros_like(left_BLD[:, :1])
        before = jnp.concatenate([none, jnp.where(follows, left_BLD[:, :-1], none)], axis=1)
        after = jnp.concatenate([jnp.where(follows, right_BLD[:, 1:], none), none], axis=1)
        return jnp.concatenate([before, after], axis=-1)


class MLMHead(nn.Module):
    """dense(D -> E), GELU, layer norm, times the word table, plus a bias [V].

    ModernBERT's is dense(D -> D), GELU, layer norm, and where E is not D a linear map D -> E before the table: folded
    into it, that is the head of `transformers.ModernBertForMaskedLM`.
    """

    config: EncoderConfig
    vocab_size: int

    @nn.compact
    def __call__(self, x_BMD: Array, table_VE: Array) -> Array:
        """Scores of every vocabulary entry, [B, M, V] float32; the lowest float for padded entries."""
        c = self.config
        is_bert = c.kind == "bert"
        padded, size = table_VE.shape
        init = layers.truncated_normal(c.init_stddev if is_bert else modernbert.out_stddev(c))
        width = size if is_bert else c.width
        x = nn.Dense(width, use_bias=is_bert, dtype=c.dtype, kernel_init=init, name="dense")(x_BMD)
        epsilon = bert.EPSILON if is_bert else modernbert.EPSILON
        x_BME = layers.LayerNorm(epsilon, is_bert, c.dtype, name="norm")(layers.gelu(x))
        if width != size:
            init = nn.initializers.xavier_uniform()
            x_BME = nn.Dense(size, use_bias=False, dtype=c.dtype, kernel_init=init, name="project")(x_BME)
        table = table_VE.astype(x_BME.dtype)
        logits = jnp.einsum("bme,ve->bmv", x_BME, table, preferred_element_type=jnp.float32)
        logits += self.param("bias", nn.initializers.zeros, (padded,))[None, None]
        return jnp.where((jnp.arange(padded) < self.vocab_size)[None, None], logits, jnp.finfo(jnp.float32).min)


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


class ScalarHead(nn.Module):
    """dense(D -> 1): the copy gate, and the baseline of REINFORCE."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x_BMD: Array) -> Array:
        init = nn.initializers.xavier_uniform()
        x = nn.Dense(1, dtype=self.config.dtype, kernel_init=init, name="dense")(x_BMD)
        return x[..., 0].astype(jnp.float32)


class Electra(nn.Module):
    """The networks that a system trains.

    Parameters, all float32: `embeddings` and `encoder`; where there is a generator, `generator` and `generator_head`;
    and the heads that `config.heads` names. `config.tying` says what the generator shares with the encoder:

      none        nothing; `generator_embeddings` are its own
      embeddings  the embeddings, as in the paper
      all         embeddings and encoder, the heads aside; there is no `generator`
      gdes        `generator_embeddings` are its own, and `embeddings` hold the encoder's difference from them
    """

    config: ElectraConfig

    def setup(self):
        c = self.config
        base = None
        if c.generator is not None:
            if c.tying in ("none", "gdes"):
                self.generator_embeddings = Embeddings(c)
                base = self.generator_embeddings if c.tying == "gdes" else None
            if c.tying != "all":
                kind: Any = TwoTowers if c.two_towers else ENCODERS[c.generator.kind]
                self.generator = kind(c.generator)
            self.generator_head = MLMHead(c.generator, c.vocab_size)
        self.embeddings = Embeddings(c, base)
        self.encoder = ENCODERS[c.encoder.kind](c.encoder)
        for name in c.heads:
            setattr(self, name, self._make_head(name))

    def _make_head(self, name: str) -> nn.Module:
        c = self.config
        if name == "discriminator_head":
            return DiscriminatorHead(c.encoder)
        if name == "mlm_head":
            return MLMHead(c.encoder, c.vocab_size)
        if name == "baseline":
            assert c.generator is not None
            return ScalarHead(c.generator)
        return ScalarHead(c.encoder)

    def _embeddings_of(self, network: str) -> Embeddings:
        own = network == "generator" and self.config.tying in ("none", "gdes")
        return self.generator_embeddings if own else self.embeddings

    def read(
        self, network: str, input_ids_BL: Array, token_type_ids_BL: Array, sequence_ids_BL: Array, train: bool = False
    ) -> Array:
        """States [B, L, D] of `generator` ([B, L, 2 D] of two towers) or `encoder`."""
        x_BLE = self._embeddings_of(network)(input_ids_BL, token_type_ids_BL, sequence_ids_BL, train)
        if network == "generator" and self.config.two_towers:
            return self.generator(x_BLE, sequence_ids_BL, train)
        reader = self.encoder if network == "encoder" or self.config.tying == "all" else self.generator
        return reader(x_BLE, layers.same_sequence(sequence_ids_BL), train)

    def predict(self, network: str, states_BMD: Array) -> Array:
        """Logits [B, M, V] float32 of the tokens at states of `generator` or `encoder`, over that network's table."""
        head = self.generator_head if network == "generator" else self.mlm_head
        return head(states_BMD, self._embeddings_of(network).table("word"))

    def score(self, head: str, states_BMD: Array) -> Array:
        """One number a state, [B, M] float32, by `discriminator_head`, `copy_gate` or `baseline`."""
        return getattr(self, head)(states_BMD)

    def __call__(self, input_ids_BL: Array, token_type_ids_BL: Array, sequence_ids_BL: Array) -> None:
        """Uses every parameter once, for `init`."""
        batch = (input_ids_BL, token_type_ids_BL, sequence_ids_BL)
        states = {name: self.read(name, *batch) for name in self.networks}
        if "generator" in states:
            self.predict("generator", states["generator"])
        for head in self.config.heads:
            if head == "mlm_head":
                self.predict("encoder", states["encoder"])
            else:
                self.score(head, states["generator" if head == "baseline" else "encoder"])

    @property
    def networks(self) -> tuple[str, ...]:
        return ("encoder",) if self.config.generator is None else ("generator", "encoder")


def read(
    model: Electra, params: Any, network: str, batch: Batch, input_ids_BL: Array, dropout_key: Array | None = None
) -> Array:
    """`Electra.read` of `input_ids_BL` in the place of the batch's own; dropout is on where it has a key."""
    inputs = (network, input_ids_BL, batch["token_type_ids"], batch["sequence_ids"])
    rngs = None if dropout_key is None else {"dropout": dropout_key}
    return cast(Array, model.apply({"params": params}, *inputs, train=rngs is not None, method="read", rngs=rngs))


def predict(model: Electra, params: Any, network: str, states_BMD: Array) -> Array:
    """`Electra.predict`."""
    return cast(Array, model.apply({"params": params}, network, states_BMD, method="predict"))


def score(model: Electra, params: Any, head: str, states_BMD: Array) -> Array:
    """`Electra.score`."""
    return cast(Array, model.apply({"params": params}, head, states_BMD, method="score"))


def gather_positions(states_BLD: Array, positions_BM: Array) -> Array:
    """States [B, M, D] at `positions_BM`."""
    return jnp.take_along_axis(states_BLD, positions_BM[..., None], axis=1)
