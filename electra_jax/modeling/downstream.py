"""An encoder with the head of a downstream task.

Heads and initialisers are those of google-research/electra, finetune/. Heads compute in float32, whatever the encoder's
dtype: bfloat16 makes ties of scores that are to be ranked. S is the number of starts of answers.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from electra_jax.modeling import layers
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.config import ElectraConfig
from electra_jax.modeling.electra import ENCODERS, Embeddings, gather_positions

Array = jax.Array
Outputs = dict[str, Array]

_HIDDEN = 512  # width of the answering heads' inner layers
_NEVER = -1000.0  # what is added to the score of a token that no answer begins or ends at


def _dense(features: int, name: str) -> nn.Dense:
    return nn.Dense(features, kernel_init=nn.initializers.xavier_uniform(), name=name)


class Classifier(nn.Module):
    """Dropout and a dense layer on the state of CLS: `scores` [B, C]."""

    config: ElectraConfig
    outputs: int

    @nn.compact
    def __call__(self, states_BLD: Array, allowed_BL: Array | None, start_B: Array | None, train: bool) -> Outputs:
        x_BD = nn.Dropout(self.config.encoder.dropout)(states_BLD[:, 0], deterministic=not train)
        return {"scores": _dense(self.outputs, "dense")(x_BD)}


class Tagger(nn.Module):
    """Dropout and a dense layer on every state: `scores` [B, L, C]."""

    config: ElectraConfig
    outputs: int

    @nn.compact
    def __call__(self, states_BLD: Array, allowed_BL: Array | None, start_B: Array | None, train: bool) -> Outputs:
        x_BLD = nn.Dropout(self.config.encoder.dropout)(states_BLD, deterministic=not train)
        return {"scores": _dense(self.outputs, "dense")(x_BLD)}


class Answerer(nn.Module):
    """Where an answer begins, where it ends given that, and whether there is none.

    The start by a dense layer; the end by two, on the start's state beside each token's; that there is none by two, on
    the state of CLS beside the mean state of the start (arXiv 2003.10555, appendix B, after XLNet's).

    Attributes:
      outputs: 2 where it says whether there is none.
      beam: starts, and ends of each, that are returned.
    """

    config: ElectraConfig
    outputs: int
    beam: int

    @nn.compact
    def __call__(self, states_BLD: Array, allowed_BL: Array | None, start_B: Array | None, train: bool) -> Outputs:
        """To train, `start_logp` and `end_logp` [B, L], the latter given the true start; else the best:
        `start_score` and `start_index` [B, S], `end_score` and `end_index` [B, S, S]. And `impossible` [B], a logit.
        """
        assert allowed_BL is not None
        never_BL = jnp.where(allowed_BL == 1, 0.0, _NEVER)
        start_BL = _dense(1, "start")(states_BLD)[..., 0] + never_BL
        start_logp = jax.nn.log_softmax(start_BL)
        # A dense layer on [start's state; token's state], the token's half of it computed once for all starts.
        width = states_BLD.shape[-1]
        kernel = self.param("end_hidden_kernel", nn.initializers.xavier_uniform(), (2 * width, _HIDDEN))
        bias = self.param("end_hidden_bias", nn.initializers.zeros, (_HIDDEN,))
        token_BLH = states_BLD @ kernel[width:] + bias[None, None]
        end = _dense(1, "end")

        def ends(begin_B: Array) -> Array:
            begin_B1H = gather_positions(states_BLD, begin_B[:, None]) @ kernel[:width]
            return jax.nn.log_softmax(end(layers.gelu(begin_B1H + token_BLH))[..., 0] + never_BL)

        result: Outputs
        if train:
            assert start_B is not None
            result = {"start_logp": start_logp, "end_logp": ends(start_B)}
        else:
            beam = min(self.beam, states_BLD.shape[1])
            start_score_BS, start_BS = jax.lax.top_k(start_logp, beam)
            end_score_SBS, end_SBS = jax.lax.map(lambda begin_B: jax.lax.top_k(ends(begin_B), beam), start_BS.T)
            result = {
                "start_score": start_score_BS,
                "start_index": start_BS,
                "end_score": end_score_SBS.swapaxes(0, 1),
                "end_index": end_SBS.swapaxes(0, 1),
            }
        if self.outputs == 2:
            start_BD = jnp.einsum("bl,bld->bd", jax.nn.softmax(start_BL), states_BLD)
            beside_BD = jnp.concatenate([states_BLD[:, 0], start_BD], axis=-1)
            inner = layers.gelu(_dense(_HIDDEN, "impossible_hidden")(beside_BD))
            result["impossible"] = _dense(1, "impossible")(inner)[:, 0]
        return result


class Downstream(nn.Module):
    """`embeddings` and `encoder`, as in `Electra`, and `head`.

    Attributes:
      config: of the encoder.
      kind: of the task: `classification`, `regression`, `tagging` or `answering`.
      outputs: of the task.
      beam: of answering.
    """

    config: ElectraConfig
    kind: str
    outputs: int
    beam: int = 0

    def setup(self):
        c = self.config
        self.embeddings = Embeddings(c)
        self.encoder = ENCODERS[c.encoder.kind](c.encoder)
        self.head = self._make_head()

    def _make_head(self) -> nn.Module:
        if self.kind == "answering":
            return Answerer(self.config, self.outputs, self.beam)
        return (Tagger if self.kind == "tagging" else Classifier)(self.config, self.outputs)

    def __call__(
        self, batch: Batch, allowed: Array | None = None, start: Array | None = None, train: bool = False
    ) -> Outputs:
        """The outputs of the head.

        Args:
          batch: the rows.
          allowed: for answering, [B, L], 1 where an answer may begin or end.
          start: to train answering, [B], where the true answer begins.
          train: whether dropout is on.
        """
        sequences = batch.sequence_ids
        x_BLE = self.embeddings(batch.input_ids, batch.token_type_ids, sequences, train)
        states_BLD = self.encoder(x_BLE, layers.same_sequence(sequences), train)
        return self.head(states_BLD.astype(jnp.float32), allowed, start, train)
