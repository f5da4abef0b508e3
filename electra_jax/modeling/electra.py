"""The networks of ELECTRA and its successors: an encoder, a generator, their embeddings and heads.

`Electra` is the Linen module. The functions at the end apply it to given parameters; losses call those.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from electra_jax.modeling import transformer
from electra_jax.modeling.activations import gelu
from electra_jax.modeling.attention import Visible
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.config import ElectraConfig, EncoderConfig
from electra_jax.modeling.dense import Dense
from electra_jax.modeling.dropout import Dropout
from electra_jax.modeling.layer_norm import LayerNorm

Array = jax.Array
Params = Any  # the nested dict of float32 arrays that `Electra.init` returns
_SEGMENTS = 2


class Embeddings(nn.Module):
    """Word embeddings, and with absolute positions also position and segment embeddings and a layer norm.

    Attributes:
      config: the whole model's config.
      base: embeddings to share without passing them a gradient; None: share nothing. Each table is then
        stop_gradient(base's table) plus its own difference, which starts at zero: gradient-disentangled embedding
        sharing (DeBERTaV3, arXiv 2111.09543, section 3.3).
    """

    config: ElectraConfig
    base: "Embeddings | None" = None

    def setup(self) -> None:
        c = self.config
        init = transformer.truncated_normal(c.encoder.init_stddev) if self.base is None else nn.initializers.zeros
        self.word = self.param("word", init, (c.padded_vocab_size, c.embedding_size))
        if c.absolute:
            self.position = self.param("position", init, (c.max_length, c.embedding_size))
            self.segment = self.param("segment", init, (_SEGMENTS, c.embedding_size))
            self.norm = LayerNorm(c.encoder.architecture.epsilon, True, c.encoder.dtype)
        self.drop = Dropout(c.encoder.dropout)

    def table(self, name: str) -> Array:
        """Returns the effective table `word`, `position` or `segment`, [entries, E]."""
        own = getattr(self, name)
        table = own if self.base is None else jax.lax.stop_gradient(self.base.table(name)) + own
        return transformer.shard_vocab(table) if name == "word" else table

    def __call__(self, batch: Batch, train: bool) -> Array:
        """Returns the embeddings of a batch, [B, L, E]."""
        c = self.config
        # Summed in float32, the tables' type; the norm or the cast at the end gives the compute dtype.
        x_BLE = jnp.take(self.table("word"), batch.input_ids, axis=0)
        if not c.absolute:
            return x_BLE.astype(c.encoder.dtype)
        positions_BL = transformer.sequence_positions(batch.sequence_ids)
        # Padding may be longer than the table, whose rows beyond its end would be NaN.
        x_BLE += jnp.take(self.table("position"), positions_BL, axis=0, mode="clip")
        x_BLE += jnp.take(self.table("segment"), batch.token_type_ids, axis=0)
        return cast(Array, self.drop(self.norm(x_BLE), train))


class TwoTowers(nn.Module):
    """Two causal encoders, left-to-right and right-to-left, that see every token but the one to predict.

    The output at a position is the left tower's state at the position before, concatenated with the right tower's state
    at the position after; zeros where the sequence ends (arXiv 1903.07785, as used by Electric, arXiv 2012.08561).
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, x_BLE: Array, sequence_ids_BL: Array, train: bool) -> Array:
        """Returns the towers' states before and after each position, [B, L, 2 D]."""
        encoder: Any = self.config.architecture.encoder
        left_BLD = encoder(self.config, name="left")(x_BLE, Visible(sequence_ids_BL, "before"), train)
        right_BLD = encoder(self.config, name="right")(x_BLE, Visible(sequence_ids_BL, "after"), train)
        # In packed rows, the neighbor at a boundary is another text's.
        follows = (sequence_ids_BL[:, 1:] == sequence_ids_BL[:, :-1])[..., None]
        # Zeros, where the reference's roll wraps around: that state has read the token that it is to predict.
        none = jnp.zeros_like(left_BLD[:, :1])
        before = jnp.concatenate([none, jnp.where(follows, left_BLD[:, :-1], none)], axis=1)
        after = jnp.concatenate([jnp.where(follows, right_BLD[:, 1:], none), none], axis=1)
        return jnp.concatenate([before, after], axis=-1)


class MLMHead(nn.Module):
    """Token-prediction head: dense(D -> E), GELU, layer norm, times the word table, plus a bias [V].

    With `normed_heads` it is dense(D -> D), GELU, layer norm, and a linear map D -> E if E differs from D. Multiplied
    into the table, this map gives the head of `transformers.ModernBertForMaskedLM`.
    """

    config: EncoderConfig
    vocab_size: int

    @nn.compact
    def __call__(self, x_BMD: Array, table_VE: Array) -> Array:
        """Computes logits [B, M, V] float32; the lowest float for entries that only pad the table."""
        c, a = self.config, self.config.architecture
        padded, size = table_VE.shape
        init = transformer.truncated_normal(a.head_stddev(c))
        width = c.width if a.normed_heads else size
        x = Dense(width, init, use_bias=a.use_bias, dtype=c.dtype, name="dense")(x_BMD)
        x_BME = LayerNorm(a.epsilon, a.use_bias, c.dtype, name="norm")(gelu(x))
        # Without a bias, so that exports can fold it into the table (`huggingface.weights.folded`).
        if width != size:
            init = nn.initializers.xavier_uniform()
            x_BME = Dense(size, init, use_bias=False, dtype=c.dtype, name="project")(x_BME)
        # Padding of the table then has no share of the softmax and is never sampled: the lowest float absorbs products.
        bias = self.param("bias", nn.initializers.zeros, (padded,))
        bias = jnp.where(jnp.arange(padded) < self.vocab_size, bias, np.finfo(np.float32).min)
        return token_products(x_BME, table_VE) + bias[None, None]


@jax.custom_vjp
def token_products(x_BME: Array, table_VE: Array) -> Array:
    """Computes products of states with the word table in the dtype of the states, [B, M, V] float32.

    The backward pass casts the gradient [B, M, V], the largest array of a step, to that dtype before it is written and
    multiplied. The gradient of the table has the table's dtype. There is no forward mode, except over reverse mode.
    """
    # Sums in float32, as the softmax and the sampler are.
    return _product("bme,ve->bmv", x_BME, table_VE.astype(x_BME.dtype))


def _token_products_forward(x_BME: Array, table_VE: Array) -> tuple[Array, tuple[Array, Array]]:
    # Not `token_products` itself, whose rule has no derivative of its own: a Hessian differentiates this function.
    return _product("bme,ve->bmv", x_BME, table_VE.astype(x_BME.dtype)), (x_BME, table_VE)


def _token_products_backward(kept: tuple[Array, Array], d_BMV: Array) -> tuple[Array, Array]:
    x_BME, table_VE = kept
    d_BMV = d_BMV.astype(x_BME.dtype)
    d_x = _product("bmv,ve->bme", d_BMV, table_VE.astype(x_BME.dtype)).astype(x_BME.dtype)
    return d_x, _product("bmv,bme->ve", d_BMV, x_BME).astype(table_VE.dtype)


token_products.defvjp(_token_products_forward, _token_products_backward)
_product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


class DiscriminatorHead(nn.Module):
    """Head of replaced-token detection, in the form of `Architecture.detector`; with `normed_heads`, a layer norm
    follows GELU.

    DeBERTaV3's form, `normed`, is from microsoft/DeBERTa, replaced_token_detection_model.py.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, x_BLD: Array, sequence_ids_BL: Array) -> Array:
        c, a, x = self.config, self.config.architecture, x_BLD
        form = a.detector(c)
        if form == "normed":
            # Not the state of position 0: packed rows have several sequences.
            x = x + first_states(x_BLD, sequence_ids_BL)
            x = LayerNorm(a.epsilon, a.use_bias, c.dtype, name="norm")(x)
        if form != "linear":
            init = transformer.truncated_normal(a.head_stddev(c))
            x = gelu(Dense(c.width, init, use_bias=a.use_bias, dtype=c.dtype, name="dense")(x))
        if a.normed_heads:
            x = LayerNorm(a.epsilon, a.use_bias, c.dtype, name="norm")(x)
        return Dense(1, a.classifier_init(c), dtype=c.dtype, name="classifier")(x)[..., 0].astype(jnp.float32)


class ScalarHead(nn.Module):
    """Head dense(D -> 1): the copy gate, and the baseline of REINFORCE."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x_BMD: Array) -> Array:
        x = Dense(1, nn.initializers.xavier_uniform(), dtype=self.config.dtype, name="dense")(x_BMD)
        return x[..., 0].astype(jnp.float32)


class Electra(nn.Module):
    """The networks of an objective.

    Parameters, all float32: `embeddings` and `encoder`; with a generator also `generator` and `generator_head`; and the
    heads named by `config.heads`. `config.tying` says what the generator shares with the encoder:

      none        nothing; the generator has its own `generator_embeddings`
      embeddings  the embeddings, as in the paper
      all         the embeddings and the encoder; there is no `generator`, only its head
      gdes        `generator_embeddings` are the generator's; `embeddings` hold the encoder's difference from them
    """

    config: ElectraConfig

    def setup(self) -> None:
        c = self.config
        base = None
        if c.generator is not None:
            if c.tying in ("none", "gdes"):
                self.generator_embeddings = Embeddings(c)
                base = self.generator_embeddings if c.tying == "gdes" else None
            if c.tying != "all":
                kind: Any = TwoTowers if c.two_towers else c.generator.architecture.encoder
                self.generator = kind(c.generator)
            self.generator_head = MLMHead(c.generator, c.vocab_size)
        # After the generator's, which are their base with gdes.
        self.embeddings = Embeddings(c, base)
        self.encoder: Any = c.encoder.architecture.encoder(c.encoder)
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

    def encode(self, batch: Batch, train: bool = False) -> Array:
        """Computes the encoder's hidden states, [B, L, D]."""
        x_BLE = self.embeddings(batch, train)
        return cast(Array, self.encoder(x_BLE, Visible(batch.sequence_ids), train))

    def generator_states(self, batch: Batch, train: bool = False) -> Array:
        """Computes the generator's hidden states, [B, L, D]; [B, L, 2 D] from two towers."""
        x_BLE = self._generator_embeddings()(batch, train)
        if self.config.two_towers:
            return cast(Array, self.generator(x_BLE, batch.sequence_ids, train))
        network = self.encoder if self.config.tying == "all" else self.generator
        return cast(Array, network(x_BLE, Visible(batch.sequence_ids), train))

    def _generator_embeddings(self) -> Embeddings:
        return self.generator_embeddings if self.config.tying in ("none", "gdes") else self.embeddings

    def generator_logits(self, states_BMD: Array) -> Array:
        """Computes the generator's token logits, [B, M, V] float32."""
        # With gdes the generator's own table, so that its loss does not train the encoder's difference.
        return self.generator_head(states_BMD, self._generator_embeddings().table("word"))

    def mlm_logits(self, states_BMD: Array) -> Array:
        """Computes the encoder's token logits, [B, M, V] float32."""
        return cast(Array, self.mlm_head(states_BMD, self.embeddings.table("word")))

    def discriminator_logits(self, states_BLD: Array, sequence_ids_BL: Array) -> Array:
        """Computes logits of "this token was replaced", [B, L] float32."""
        return cast(Array, self.discriminator_head(states_BLD, sequence_ids_BL))

    def copy_logits(self, states_BLD: Array) -> Array:
        """Computes logits of the copy gate, [B, L] float32."""
        return cast(Array, self.copy_gate(states_BLD))

    def baseline_logits(self, states_BMD: Array) -> Array:
        """Computes logits of the baseline from the generator's hidden states, [B, M] float32."""
        return cast(Array, self.baseline(states_BMD))

    def __call__(self, batch: Batch) -> None:
        """Uses every parameter once, for `init`."""
        # A head that is not called here would have no parameters.
        heads = self.config.heads
        encoder_BLD = self.encode(batch)
        if self.config.generator is not None:
            generator_BLD = self.generator_states(batch)
            self.generator_logits(generator_BLD)
            if "baseline" in heads:
                self.baseline_logits(generator_BLD)
        if "mlm_head" in heads:
            self.mlm_logits(encoder_BLD)
        if "discriminator_head" in heads:
            self.discriminator_logits(encoder_BLD, batch.sequence_ids)
        if "copy_gate" in heads:
            self.copy_logits(encoder_BLD)


def unroll(model: Electra, choice: str, device_kind: str) -> Electra:
    """Returns the networks as a train step computes them: with layers unrolled by `transformer.is_unrolled`."""

    def unrolled(network: EncoderConfig) -> EncoderConfig:
        return dataclasses.replace(network, unroll=transformer.is_unrolled(choice, network, device_kind))

    c = model.config
    generator = None if c.generator is None else unrolled(c.generator)
    return Electra(dataclasses.replace(c, encoder=unrolled(c.encoder), generator=generator))


def encode(model: Electra, params: Params, batch: Batch, dropout_key: Array | None = None) -> Array:
    """Computes the encoder's hidden states, [B, L, D]; dropout is on if a key is given."""
    return _states(Electra.encode, model, params, batch, dropout_key)


def generator_states(model: Electra, params: Params, batch: Batch, dropout_key: Array | None = None) -> Array:
    """Computes the generator's hidden states, [B, L, D] or from two towers [B, L, 2 D]; a key turns dropout on."""
    return _states(Electra.generator_states, model, params, batch, dropout_key)


def generator_logits(model: Electra, params: Params, states_BMD: Array) -> Array:
    """Computes the generator's token logits, [B, M, V] float32."""
    return cast(Array, model.apply({"params": params}, states_BMD, method=Electra.generator_logits))


def mlm_logits(model: Electra, params: Params, states_BMD: Array) -> Array:
    """Computes the encoder's token logits, [B, M, V] float32."""
    return cast(Array, model.apply({"params": params}, states_BMD, method=Electra.mlm_logits))


def discriminator_logits(model: Electra, params: Params, states_BLD: Array, sequence_ids_BL: Array) -> Array:
    """Computes logits of "this token was replaced", [B, L] float32; `sequence_ids_BL` as in `Batch`."""
    method = Electra.discriminator_logits
    return cast(Array, model.apply({"params": params}, states_BLD, sequence_ids_BL, method=method))


def copy_logits(model: Electra, params: Params, states_BLD: Array) -> Array:
    """Computes logits of the copy gate, [B, L] float32."""
    return cast(Array, model.apply({"params": params}, states_BLD, method=Electra.copy_logits))


def baseline_logits(model: Electra, params: Params, states_BMD: Array) -> Array:
    """Computes logits of the baseline from the generator's hidden states, [B, M] float32."""
    return cast(Array, model.apply({"params": params}, states_BMD, method=Electra.baseline_logits))


def _states(
    method: Callable[..., Array], model: Electra, params: Params, batch: Batch, dropout_key: Array | None
) -> Array:
    # Linen folds each module's path into the key, so modules drop independently.
    rngs = None if dropout_key is None else {"dropout": dropout_key}
    return cast(Array, model.apply({"params": params}, batch, train=rngs is not None, method=method, rngs=rngs))


def gather_positions(states_BLD: Array, positions_BM: Array) -> Array:
    """Gathers the states at `positions_BM`, [B, M, D]."""
    return jnp.take_along_axis(states_BLD, positions_BM[..., None], axis=1)


def first_states(states_BLD: Array, sequence_ids_BL: Array) -> Array:
    """Gathers for each position the state of the first token of its own sequence, [B, L, D]."""
    position_BL = transformer.sequence_positions(sequence_ids_BL)
    # A token's index in the row minus its position in the sequence: the index of the sequence's first token.
    return gather_positions(states_BLD, jnp.arange(position_BL.shape[1], dtype=jnp.int32)[None] - position_BL)


def mean_state(states_BLD: Array, sequence_ids_BL: Array) -> Array:
    """Computes the mean of each row's states, without padding, [B, D]."""
    real_BL = (jnp.asarray(sequence_ids_BL) > 0).astype(states_BLD.dtype)
    return jnp.einsum("bld,bl->bd", states_BLD, real_BL) / real_BL.sum(axis=1, keepdims=True)
