"""DeBERTa's encoder: post-LN blocks with disentangled attention, which also scores relative positions.

It computes what `transformers.DebertaV2Model` computes with DeBERTaV3's settings (arXiv 2006.03654 and 2111.09543): no
absolute positions, logarithmic buckets of relative positions whose embeddings all layers share, with a layer norm, and
in each layer the same projections for tokens and positions. Position i scores position j by

    (q_i . k_j + q_i . k'_b + q'_b . k_j) / sqrt(3 K),   b = bucket(i - j)

where q' and k' are queries and keys of the relative embeddings. If embedding size and width differ, a linear map
without bias precedes the first norm.

The two relative terms avoid a gather [B, H, L, L] by bucket. Queries are split into N blocks of S. A block has
C = L + S - 1 distances; its scores for all of them are one product [S, C], in which the row of each query starts one
column later than that of the next: padding and a reshape align the rows (`_align`). Shape letters: R rows of the table
of relative embeddings, N blocks, S queries in a block, C distances of a block.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from electra_jax.config.errors import UserError
from electra_jax.config.settings import above, one_of, setting
from electra_jax.modeling import dropout, plain_attention, tensor_names, transformer
from electra_jax.modeling.architecture import SENTENCEPIECE_FILES, Architecture, different
from electra_jax.modeling.attention import Visible
from electra_jax.modeling.config import ElectraConfig, EncoderConfig
from electra_jax.modeling.dense import Dense
from electra_jax.modeling.dropout import Dropout
from electra_jax.modeling.layer_norm import LayerNorm
from electra_jax.modeling.tensor_names import Tensor

Array = jax.Array
# transformers' default for DeBERTa-v2.
EPSILON = 1e-7
# Attention alone, 16 x 12 heads of 64 at length 512, compiled for v5e and v3: by XLA's count, forward and backward
# access 10.9 and 9.2 GB with blocks of 64, 11.9 and 10.3 with 128, 14.7 and 13.9 with one block, 42.5 and 40.4 with the
# gather. On two CPU cores, 32 x 4 heads of 64 at length 128 take 228, 316, 339 and 575 ms.
_BLOCK = 64


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


def rows_used(config: EncoderConfig, length: int) -> tuple[int, int]:
    """Returns the first and last row of the table of relative embeddings that sequences of a length use."""
    ends = bucket(np.asarray([1 - length, length - 1]), config.own.position_buckets, config.own.max_relative_positions)
    return int(ends[0]), int(ends[1])


def block_size(length: int) -> int:
    """Returns S, the number of queries in a block of the relative scores."""
    return min(_BLOCK, length)


def pairs(length: int) -> int:
    """Counts the pairs of position and distance that each relative term computes per example and head: N S C."""
    size = block_size(length)
    return math.ceil(length / size) * size * (length + size - 1)


def bucket(distance: np.ndarray, buckets: int, furthest: int) -> np.ndarray:
    """Maps distances i - j to rows of the table of relative embeddings, in [0, 2 x buckets).

    Distances up to half of `buckets` on each side have rows of their own. Larger ones share rows, whose numbers grow
    with the logarithm of the distance up to `furthest`; all distances beyond it share the last row.
    """
    half = buckets // 2
    # The operations of transformers' `make_log_bucket_position`, in float32 as there: at the edges of buckets, rounding
    # decides. The maximum keeps the logarithm finite where the other branch is taken.
    size = np.maximum(np.abs(distance), half).astype(np.float32)
    span = np.log(np.float32((furthest - 1) / half))
    logarithmic = np.ceil(np.log(size / np.float32(half)) / span * np.float32(half - 1)) + half
    row = np.where(np.abs(distance) <= half, distance, np.sign(distance) * logarithmic)
    clipped: np.ndarray = np.clip(row.astype(np.int32) + buckets, 0, 2 * buckets - 1)
    return clipped


def _blocks(length: int, sign: int) -> np.ndarray:
    """Computes sign x (i - j), [N, C]: i is the query in row 0 of block n, j its key in column c; clips to (-L, L)."""
    size = block_size(length)
    first: np.ndarray = np.arange(math.ceil(length / size)) * size
    # In NumPy: the indices are constants, and one lookup serves the whole batch.
    distance = first[:, None] + size - 1 - np.arange(length + size - 1)[None]
    # Only queries that pad the last block are further away; `_relative` cuts them off.
    clipped: np.ndarray = sign * np.clip(distance, 1 - length, length - 1)
    return clipped


def _align(scores: Array) -> Array:
    """Moves entry (s, c) to column c + s - (S - 1): [..., S, C] -> [..., S, C - S + 1]."""
    size, columns = scores.shape[-2:]
    # With one more column, each row of the flat array is one entry longer than the rows that it is then split into.
    flat = jnp.pad(scores, [(0, 0)] * (scores.ndim - 1) + [(0, 1)]).reshape(*scores.shape[:-2], -1)
    flat = flat[..., size - 1 : size - 1 + size * columns]
    return flat.reshape(scores.shape)[..., : columns - size + 1]


def _relative(x_BHLK: Array, rows_RHK: Array, index_NC: np.ndarray) -> Array:
    """Computes products of each position's vector with the row for its distance to each position, [B, H, L, L]."""
    length = x_BHLK.shape[2]
    blocks, size = len(index_NC), block_size(length)
    # [B, H, L, K] -> [B, H, N, S, K], padded to whole blocks.
    x_BHNSK = jnp.pad(x_BHLK, ((0, 0), (0, 0), (0, blocks * size - length), (0, 0)))
    x_BHNSK = x_BHNSK.reshape(*x_BHLK.shape[:2], blocks, size, -1)
    # [R, H, K] -> [N, C, H, K]: the rows for the distances of each block.
    scores_BHNSC = jnp.einsum("bhnsk,nchk->bhnsc", x_BHNSK, jnp.take(rows_RHK, index_NC, axis=0))
    # [B, H, N, S, C] -> [B, H, N, S, L] -> [B, H, L, L].
    return _align(scores_BHNSC).reshape(*x_BHLK.shape[:2], blocks * size, length)[:, :, :length]


class DisentangledAttention(nn.Module):
    """Self-attention by content and relative position; same parameters as `attention.SelfAttention`."""

    config: EncoderConfig
    train: bool

    @nn.compact
    def __call__(self, x_BLD: Array, visible: Visible, relative_RD: Array) -> Array:
        """Returns [B, L, D]; `relative_RD` are the embeddings of the rows for distances below L, the lowest first."""
        c, length = self.config, x_BLD.shape[1]
        init, heads = transformer.truncated_normal(c.init_stddev), (c.heads, c.head_size)
        # One module for tokens and positions: DeBERTaV3 shares their projections (`share_att_key`).
        project = Dense((3, *heads), init, dtype=c.dtype, inputs=(c.width,), name="qkv")
        qkv = checkpoint_name(project(x_BLD), "qkv")
        # [B, L, 3, H, K] -> three of [B, H, L, K].
        q_BHLK, k_BHLK, v_BHLK = (part[0] for part in jnp.split(qkv.transpose(2, 0, 3, 1, 4), 3))

        # At the rate of hidden states, as transformers' `pos_dropout`.
        relative_RD = Dropout(c.dropout)(relative_RD, self.train)
        scale = (3 * c.head_size) ** -0.5
        # Positions have no values: [R, D] -> [R, 2, H, K] -> two of [R, H, K].
        queries_RHK, keys_RHK = (part[:, 0] * scale for part in jnp.split(project(relative_RD, first=2), 2, axis=1))
        to_position, to_content = (
            bucket(_blocks(length, sign), c.own.position_buckets, c.own.max_relative_positions) for sign in (1, -1)
        )
        first, _ = rows_used(c, length)
        # `relative_RD` begins with row `first`.
        relative = _relative(q_BHLK, keys_RHK, to_position - first)
        # Computed for each key, so the last two axes are exchanged: [keys, queries] -> [queries, keys].
        relative += _relative(k_BHLK, queries_RHK, to_content - first).swapaxes(2, 3)

        rate = c.attention_rate if self.train else 0.0
        words = dropout.key_words(self.make_rng("dropout")) if rate else jnp.zeros(0, jnp.uint32)
        # `attend` divides by the root of K.
        attended_BHLK = plain_attention.attend(q_BHLK * 3**-0.5, k_BHLK, v_BHLK, visible.mask(), words, rate, relative)
        return Dense((c.width,), init, dtype=c.dtype, inputs=heads, name="out")(attended_BHLK.swapaxes(1, 2))


class DebertaLayer(nn.Module):
    config: EncoderConfig
    train: bool

    @nn.compact
    def __call__(self, x_BLD: Array, visible: Visible, relative_RD: Array) -> tuple[Array, None]:
        attended = DisentangledAttention(self.config, self.train, name="attention")(x_BLD, visible, relative_RD)
        return transformer.finish_layer(self.config, x_BLD, attended, self.train), None


class DebertaEncoder(nn.Module):
    """DeBERTa's encoder, from word embeddings to hidden states; arguments as in `bert.BertEncoder`."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x_BLE: Array, visible: Visible, train: bool) -> Array:
        c = self.config
        x = transformer.shard_batch(x_BLE)
        if x.shape[-1] != c.width:
            init = nn.initializers.xavier_uniform()
            x = Dense(c.width, init, use_bias=False, dtype=c.dtype, name="project")(x)
        x = LayerNorm(EPSILON, True, c.dtype, name="embedding_norm")(x)
        x_BLD = Dropout(c.dropout)(x, train)
        init = transformer.truncated_normal(c.init_stddev)
        table = self.param("relative", init, (2 * c.own.position_buckets, c.width))
        first, last = rows_used(c, x.shape[1])
        # Rows that no distance below L uses are neither normalized nor projected.
        relative_RD = LayerNorm(EPSILON, True, c.dtype, name="relative_norm")(table[first : last + 1])
        layers = transformer.stack(DebertaLayer, c, in_axes=(nn.broadcast, nn.broadcast))
        x_BLD, _ = layers(c, train, name="layers")(transformer.shard_batch(x_BLD), visible, relative_RD)
        return transformer.shard_batch(x_BLD)


_LINEAR_DISCRIMINATOR = tensor_names.linear("discriminator_head/classifier", "classifier", labels=True)
# The MLM head's names in microsoft/DeBERTa, and in transformers where a config has legacy=False; read only.
_MLM_NAMES = {
    "lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
}
_LISTS = ("pos_att_type", "norm_rel_ebd")  # settings of config.json: lists, or strings separated by bars


class Deberta(Architecture):
    name = "deberta"
    encoder = DebertaEncoder
    epsilon = EPSILON
    fused = False  # no kernel here computes scores of relative positions
    of_head = ("discriminator_head",)

    model_type = "deberta-v2"
    class_prefix = "DebertaV2"
    fixed: ClassVar = {
        "hidden_act": "gelu",
        "layer_norm_eps": EPSILON,
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["c2p", "p2c"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "conv_kernel_size": 0,
        "tie_word_embeddings": True,
    }
    unnamed: ClassVar = {
        "relative_attention": False,
        "position_biased_input": True,
        "pos_att_type": None,
        "share_att_key": False,
        "norm_rel_ebd": "none",
    }
    classifier_dropout = "cls_dropout"
    sentencepiece_file = SENTENCEPIECE_FILES[1]
    prefix = "deberta."
    decoder = "cls.predictions.decoder.weight"
    body: ClassVar = [
        Tensor("embeddings/word", ("embeddings.word_embeddings.weight",)),
        *tensor_names.linear("encoder/project", "embeddings.embed_proj"),
        *tensor_names.norm("encoder/embedding_norm", "embeddings.LayerNorm"),
        Tensor("encoder/relative", ("encoder.rel_embeddings.weight",)),
        *tensor_names.norm("encoder/relative_norm", "encoder.LayerNorm"),
        *tensor_names.post_norm_layers("{}_proj"),
    ]
    heads: ClassVar = {
        "discriminator_head": [  # names from microsoft/DeBERTa, replaced_token_detection_model.py
            *tensor_names.norm("discriminator_head/norm", "mask_predictions.LayerNorm"),
            *tensor_names.linear("discriminator_head/dense", "mask_predictions.dense"),
            *tensor_names.linear("discriminator_head/classifier", "mask_predictions.classifier"),
        ],
        "mlm_head": [
            *tensor_names.linear("mlm_head/dense", "cls.predictions.transform.dense"),
            *tensor_names.norm("mlm_head/norm", "cls.predictions.transform.LayerNorm"),
            Tensor("mlm_head/bias", ("cls.predictions.bias",)),
        ],
    }
    task_heads: ClassVar = {
        "classification": [
            *tensor_names.linear("head/dense", "pooler.dense"),
            *tensor_names.linear("head/classifier", "classifier"),
        ],
        **tensor_names.TOKEN_HEADS,
    }

    def check(self, config: EncoderConfig) -> None:
        own, rows = config.own, config.own.position_buckets // 2 + 1
        # The logarithm that `bucket` divides by would not be positive.
        if own.max_relative_positions <= rows:
            raise UserError(
                f"config.model.deberta.max_relative_positions={own.max_relative_positions} is within half of "
                f"position_buckets={own.position_buckets}, whose rows are for one distance each: expected {rows + 1} "
                "or more"
            )

    def detector(self, config: EncoderConfig) -> str:
        return "linear" if config.own.discriminator_head == "linear" else "normed"

    def relative(self, config: EncoderConfig, length: int) -> tuple[int, int]:
        first, last = rows_used(config, length)
        return pairs(length), last + 1 - first

    def shape_settings(self, config: EncoderConfig, layers: int) -> dict[str, Any]:
        return {
            "position_buckets": config.own.position_buckets,
            "max_relative_positions": config.own.max_relative_positions,
        }

    def detector_class(self, config: EncoderConfig) -> str:
        return "ForTokenClassification" if self.detector(config) == "linear" else "Model"  # no class has DeBERTaV3's

    def describe(self, config: ElectraConfig, special: Any) -> dict[str, Any]:
        own = config.encoder.own
        return super().describe(config, special) | {
            "position_buckets": own.position_buckets,
            "max_relative_positions": own.max_relative_positions,
            "pooler_hidden_size": config.encoder.width,  # for the classifier that fine-tuning adds on [CLS]
            "pooler_hidden_act": "gelu",
            "pooler_dropout": 0.0,
            "legacy": True,  # the names of the MLM head's tensors
        }

    def normalized(self, described: Mapping[str, Any], place: str) -> dict[str, Any]:
        same = [name for name in _LISTS if _parts(described[name]) == _parts(self.fixed[name])]
        return {**described, **{name: self.fixed[name] for name in same}}

    def read(
        self, described: Mapping[str, Any], number: Callable[..., Any], linear_head: bool, place: str
    ) -> dict[str, Any]:
        size = number("hidden_size") // number("num_attention_heads")
        if described.get("attention_head_size", size) != size:
            raise different(
                place, "attention_head_size", described["attention_head_size"], f"{size}, the hidden_size by heads"
            )
        # Without a positive `max_relative_positions`, their range is `max_position_embeddings`.
        furthest, buckets = described.get("max_relative_positions", -1), number("position_buckets", least=2)
        from_positions = isinstance(furthest, int) and furthest < 1
        name = "max_position_embeddings" if from_positions else "max_relative_positions"
        head = "linear" if linear_head else "released"
        own = DebertaSettings(buckets, number(name, least=buckets // 2 + 2), head)
        return {**super().read(described, number, linear_head, place), "own": own}

    def is_head(self, head: str, names: set[str], class_name: str) -> bool:
        if super().is_head(head, names, class_name):
            return True
        linear = class_name == "DebertaV2ForTokenClassification" and _LINEAR_DISCRIMINATOR[0].theirs[0] in names
        return linear and head == "discriminator_head" and not super().is_head("mlm_head", names, class_name)

    def rename(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if any(name.startswith("mask_predictions.") for name in state):
            return state  # a released discriminator also has tensors that its generator's head began from

        def name_here(name: str) -> str:
            there = next((part for part in _MLM_NAMES if name.startswith(part)), "")
            return _MLM_NAMES[there] + name.removeprefix(there) if there else name

        return {name_here(name): value for name, value in state.items()}

    def tensors(self, config: EncoderConfig, head: str) -> list[Tensor]:
        is_linear = head == "discriminator_head" and self.detector(config) == "linear"
        return _LINEAR_DISCRIMINATOR if is_linear else super().tensors(config, head)


def _parts(value: Any) -> Any:
    """Splits a setting of config.json, a list or a string separated by bars, into sorted parts."""
    parts = value.lower().split("|") if isinstance(value, str) else value
    is_list = isinstance(parts, list) and all(isinstance(part, str) for part in parts)
    return sorted(part.strip() for part in parts) if is_list else parts
