"""An encoder with the head of a downstream task.

There are three forms of heads: `paper`, with the initializers of google-research/electra, finetune/; `transformers`,
which that library's class of the encoder can load; and `bert`, which its BERT classes can load. The shape letter S is
the number of candidate answer starts, C the number of classes.
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from electra_jax.modeling import transformer
from electra_jax.modeling.activations import gelu
from electra_jax.modeling.attention import Visible
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.config import ElectraConfig
from electra_jax.modeling.dense import Dense
from electra_jax.modeling.dropout import Dropout
from electra_jax.modeling.electra import Embeddings, gather_positions, mean_state
from electra_jax.modeling.layer_norm import LayerNorm

Array = jax.Array
Outputs = dict[str, Array]

# These two are from google-research/electra, finetune/qa/qa_tasks.py.
_HIDDEN = 512  # inner width of the answering heads
_NEVER = -1000.0  # added to the logits of tokens that cannot start or end an answer


def _dense(features: int, name: str) -> Dense:
    # The default of the reference's `tf.layers.dense`.
    return Dense(features, nn.initializers.xavier_uniform(), name=name)


class PaperHead(nn.Module):
    """Dropout and a dense layer on states, of rows or of all tokens."""

    rate: float
    outputs: int

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """Maps states [..., D] to [..., outputs]."""
        return _dense(self.outputs, "dense")(Dropout(self.rate)(x, train))


class Answerer(nn.Module):
    """Head of question answering: scores an answer's start, its end given the start, and that there is no answer.

    The start is a dense layer on each token's state. The end is two dense layers on [start's state; token's state].
    The score of no answer is two dense layers on [state of CLS; mean state of the start] (arXiv 2003.10555, appendix B,
    after XLNet).

    Attributes:
      outputs: 2 if questions may have no answer, else 1.
      beam: the number of starts to return, and of ends for each start.
    """

    outputs: int
    beam: int

    @nn.compact
    def __call__(self, states_BLD: Array, allowed_BL: Array, start_B: Array | None, train: bool) -> Outputs:
        """Returns log-probabilities in training, and otherwise the best answers.

        Args:
          states_BLD: the encoder's states.
          allowed_BL: 1 where an answer may start or end.
          start_B: the true starts; needed in training only.
          train: whether to return log-probabilities.

        Returns:
          In training `start_logp` and `end_logp` [B, L], the latter given the true start; else `start_score` and
          `start_index` [B, S], `end_score` and `end_index` [B, S, S]. With two outputs also `impossible` [B], a logit.
        """
        never_BL = jnp.where(allowed_BL == 1, 0.0, _NEVER)
        start_BL = _dense(1, "start")(states_BLD)[..., 0] + never_BL
        start_logp = jax.nn.log_softmax(start_BL)
        # A dense layer on [start's state; token's state]; the token's half is computed once for all starts.
        width = states_BLD.shape[-1]
        kernel = self.param("end_hidden_kernel", nn.initializers.xavier_uniform(), (2 * width, _HIDDEN))
        bias = self.param("end_hidden_bias", nn.initializers.zeros, (_HIDDEN,))
        # H is the inner width here. The bias is added once, with this half.
        token_BLH = states_BLD @ kernel[width:] + bias[None, None]
        end = _dense(1, "end")

        def end_logp(start_B: Array) -> Array:
            start_B1H = gather_positions(states_BLD, start_B[:, None]) @ kernel[:width]
            return jax.nn.log_softmax(end(gelu(start_B1H + token_BLH))[..., 0] + never_BL)

        result: Outputs
        if train:
            assert start_B is not None
            result = {"start_logp": start_logp, "end_logp": end_logp(start_B)}
        else:
            # `top_k` refuses a beam that is longer than the row.
            beam = min(self.beam, states_BLD.shape[1])
            start_score_BS, start_BS = jax.lax.top_k(start_logp, beam)
            # One start at a time: all at once would be [B, S, L, H].
            end_score_SBS, end_SBS = jax.lax.map(lambda start_B: jax.lax.top_k(end_logp(start_B), beam), start_BS.T)
            result = {
                "start_score": start_score_BS,
                "start_index": start_BS,
                "end_score": end_score_SBS.swapaxes(0, 1),
                "end_index": end_SBS.swapaxes(0, 1),
            }
        if self.outputs == 2:
            # The reference's `answerable_uses_start_logits`: the states' mean under the distribution of starts.
            start_BD = jnp.einsum("bl,bld->bd", jax.nn.softmax(start_BL), states_BLD)
            both_B2D = jnp.concatenate([states_BLD[:, 0], start_BD], axis=-1)
            inner = gelu(_dense(_HIDDEN, "impossible_hidden")(both_B2D))
            result["impossible"] = _dense(1, "impossible")(inner)[:, 0]
        return result


class TransformersHead(nn.Module):
    """Head of transformers' classes, on a row's state or on every state, with their initializers.

    For ELECTRA: dropout, dense, GELU, dropout, dense for a row; dropout, dense for tags; dense for answers. DeBERTa's
    are the same without the first dropout for a row; so are BERT's, with tanh instead of GELU. For ModernBERT, always:
    dense, GELU, layer norm, dropout, dense.
    """

    config: ElectraConfig
    kind: str
    outputs: int
    bert: bool = False

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """Maps states [..., D] to [..., outputs]."""
        c, a = self.config.encoder, self.config.encoder.architecture
        drop = Dropout(0.0 if self.kind == "answering" and not a.normed_heads else c.dropout)
        if a.normed_heads:
            init = transformer.truncated_normal(a.head_stddev(c))
            x = Dense(c.width, init, use_bias=a.use_bias, name="dense")(x)
            x = LayerNorm(a.epsilon, a.use_bias, jnp.float32, name="norm")(gelu(x))
            last = a.classifier_init(c)
        else:
            last = nn.initializers.normal(c.init_stddev)
            if self.kind in ("classification", "multilabel", "regression"):
                x = drop(x, train) if a.drops_pooled and not self.bert else x
                activation = jnp.tanh if self.bert else gelu
                x = activation(Dense(c.width, last, name="dense")(x))
        return Dense(self.outputs, last, name="classifier")(drop(x, train))


class Downstream(nn.Module):
    """An encoder with a task's head: parameters `embeddings` and `encoder`, as in `Electra`, and `head`.

    Attributes:
      config: the encoder's config.
      kind: the kind of task: `classification`, `multilabel`, `regression`, `tagging` or `answering`.
      outputs: the number of the head's outputs.
      beam: as `Answerer.beam`; only for the paper's form.
      pooling: the state that the heads of rows read: `cls`, or `mean` of all tokens.
      form: the form of the head, `paper`, `transformers` or `bert`.
    """

    config: ElectraConfig
    kind: str
    outputs: int
    beam: int = 0
    pooling: str = "cls"
    form: str = "paper"

    @property
    def per_token(self) -> bool:
        """True if there are outputs for each token, not for each row."""
        return self.kind == "tagging" or (self.kind == "answering" and self.form != "paper")

    def setup(self) -> None:
        c = self.config
        self.embeddings = Embeddings(c)
        self.encoder: Any = c.encoder.architecture.encoder(c.encoder)
        self.head = self._make_head()

    def _make_head(self) -> nn.Module:
        if self.form != "paper":
            # Logits of start and end; no answer is the span at [CLS], so it needs no output.
            outputs = 2 if self.kind == "answering" else self.outputs
            return TransformersHead(self.config, self.kind, outputs, self.form == "bert")
        if self.kind == "answering":
            return Answerer(self.outputs, self.beam)
        # Tags have no dropout here: google-research/electra, finetune/tagging/tagging_tasks.py.
        return PaperHead(0.0 if self.kind == "tagging" else self.config.encoder.dropout, self.outputs)

    def __call__(
        self, batch: Batch, allowed: Array | None = None, start: Array | None = None, train: bool = False
    ) -> Outputs:
        """Computes the head's outputs.

        Args:
          batch: the texts.
          allowed: [B, L] int32, 1 where an answer may start or end; needed for answering.
          start: [B] int32, the starts of the answers; needed for answering in training.
          train: whether dropout is on.
        """
        x_BLE = self.embeddings(batch, train)
        # In bfloat16, scores that must be ranked would tie: heads compute in float32 for every encoder dtype.
        states_BLD = self.encoder(x_BLE, Visible(batch.sequence_ids), train).astype(jnp.float32)
        mean = self.pooling == "mean"
        state_BD = mean_state(states_BLD, batch.sequence_ids) if mean else states_BLD[:, 0]
        if self.kind == "answering" and self.form == "paper":
            return cast(Outputs, self.head(states_BLD, allowed, start, train))
        scores = self.head(states_BLD if self.per_token else state_BD, train)
        if self.kind != "answering":
            return {"scores": scores}
        assert allowed is not None
        return _bounds(scores, allowed, train)


def _bounds(scores_BL2: Array, allowed_BL: Array, train: bool) -> Outputs:
    """Computes log-probabilities [B, L] of an answer's start and end, independent of each other; at CLS: no answer.

    Named `start_logp` and `end_logp` in training; otherwise `start` and `end`.
    """
    logits_BL2 = scores_BL2 + jnp.where(allowed_BL == 1, 0.0, _NEVER)[..., None]
    # Normalized over L: [B, L, 2] -> two of [B, L].
    start_BL, end_BL = jnp.moveaxis(jax.nn.log_softmax(logits_BL2, axis=1), -1, 0)
    return {"start_logp": start_BL, "end_logp": end_BL} if train else {"start": start_BL, "end": end_BL}
