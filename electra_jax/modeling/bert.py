"""BERT's encoder: post-LN blocks with biases and exact GELU, learned positions, as in the paper.

It computes what `transformers.ElectraModel` computes. If embedding size and width differ, a dense layer comes first.
"""

from typing import Any, ClassVar

import jax
from flax import linen as nn

from electra_jax.modeling import tensor_names, transformer
from electra_jax.modeling.architecture import Architecture
from electra_jax.modeling.attention import SelfAttention, Visible
from electra_jax.modeling.config import ElectraConfig, EncoderConfig
from electra_jax.modeling.dense import Dense
from electra_jax.modeling.tensor_names import Tensor

Array = jax.Array
# As in ELECTRA's reference and transformers' ElectraConfig.
EPSILON = 1e-12


class BertLayer(nn.Module):
    config: EncoderConfig
    train: bool

    @nn.compact
    def __call__(self, x_BLD: Array, visible: Visible) -> tuple[Array, None]:
        c = self.config

        init = transformer.truncated_normal(c.init_stddev)
        attended = SelfAttention(c, True, init, init, self.train, name="attention")(x_BLD, visible)
        # `nn.scan` expects a pair: the carry and an output for each layer.
        return transformer.finish_layer(c, x_BLD, attended, self.train), None


class BertEncoder(nn.Module):
    """BERT's encoder, from embeddings to hidden states."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x_BLE: Array, visible: Visible, train: bool) -> Array:
        c = self.config
        x = transformer.shard_batch(x_BLE)
        # The reference has this layer only if the sizes differ, with the default initializer of `tf.layers.dense`.
        if x.shape[-1] != c.width:
            x = Dense(c.width, nn.initializers.xavier_uniform(), dtype=c.dtype, name="project")(x)
        layers = transformer.stack(BertLayer, c, in_axes=nn.broadcast)
        # Constrained again: the projection contracts an axis that `fsdp` shards.
        x_BLD, _ = layers(c, train, name="layers")(transformer.shard_batch(x), visible)
        return transformer.shard_batch(x_BLD)


class Bert(Architecture):
    name = "bert"
    encoder = BertEncoder
    epsilon = EPSILON
    absolute = True
    drops_pooled = True

    model_type = "electra"
    class_prefix = "Electra"
    fixed: ClassVar = {
        "hidden_act": "gelu",
        "layer_norm_eps": EPSILON,
        "type_vocab_size": 2,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "is_decoder": False,
    }
    prefix = "electra."
    decoder = "generator_lm_head.weight"
    body: ClassVar = [
        Tensor("embeddings/word", ("embeddings.word_embeddings.weight",)),
        Tensor("embeddings/position", ("embeddings.position_embeddings.weight",)),
        Tensor("embeddings/segment", ("embeddings.token_type_embeddings.weight",)),
        *tensor_names.norm("embeddings/norm", "embeddings.LayerNorm"),
        *tensor_names.linear("encoder/project", "embeddings_project"),
        *tensor_names.post_norm_layers("{}"),
    ]
    heads: ClassVar = {
        "discriminator_head": [
            *tensor_names.linear("discriminator_head/dense", "discriminator_predictions.dense"),
            *tensor_names.linear("discriminator_head/classifier", "discriminator_predictions.dense_prediction"),
        ],
        "mlm_head": [
            *tensor_names.linear("mlm_head/dense", "generator_predictions.dense"),
            *tensor_names.norm("mlm_head/norm", "generator_predictions.LayerNorm"),
            Tensor("mlm_head/bias", ("generator_lm_head.bias",)),
        ],
    }
    task_heads: ClassVar = {
        "classification": [
            *tensor_names.linear("head/dense", "classifier.dense"),
            *tensor_names.linear("head/classifier", "classifier.out_proj"),
        ],
        **tensor_names.TOKEN_HEADS,
    }

    def describe(self, config: ElectraConfig, special: Any) -> dict[str, Any]:
        return super().describe(config, special) | {
            "summary_type": "first",  # the classifier that fine-tuning adds on [CLS]
            "summary_use_proj": True,
            "summary_activation": "gelu",
            "summary_last_dropout": 0.1,
        }
