"""ModernBERT's encoder: pre-norm, rotary positions, gated layers, no biases, alternating local and global attention.

It computes what `transformers.ModernBertModel` computes (arXiv 2412.13663). If embedding size and width differ, a
linear map without bias precedes the first norm; multiplied into the word table, it gives a plain ModernBERT.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from electra_jax.config.errors import UserError
from electra_jax.config.settings import above, one_of, setting
from electra_jax.modeling import tensor_names, transformer
from electra_jax.modeling.activations import ACTIVATIONS
from electra_jax.modeling.architecture import Architecture, different
from electra_jax.modeling.attention import SelfAttention, Visible
from electra_jax.modeling.config import ElectraConfig, EncoderConfig
from electra_jax.modeling.dense import Dense
from electra_jax.modeling.dropout import Dropout
from electra_jax.modeling.layer_norm import LayerNorm
from electra_jax.modeling.tensor_names import LAYERS, Tensor

# transformers' defaults for ModernBERT.
EPSILON = 1e-5
GLOBAL_THETA, LOCAL_THETA = 160_000.0, 10_000.0
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"  # transformers' names


@dataclasses.dataclass(frozen=True)
class ModernBertSettings:
    """Settings that only encoder=modernbert uses."""

    local_window: int = setting(
        128, "Window of local attention layers, in tokens, half of them on each side.", above(0)
    )
    global_every: int = setting(3, "Every how many layers attention is global, starting with the first.", above(0))
    activation: str = setting(
        "gelu", "Activation of the gated feed-forward layers; relu2: the square of a ReLU.", one_of(*ACTIVATIONS)
    )
    zero_outputs: bool = setting(
        False,
        "Initialize the output projections of attention and feed-forward layers with zeros, so that layers start as "
        "the identity.",
    )


def out_stddev(config: EncoderConfig) -> float:
    """Computes the standard deviation of matrices that write to the residual stream: init_stddev / sqrt(2 x layers)."""
    # `out` in `_init_weights` of transformers' ModernBertPreTrainedModel.
    return float(config.init_stddev / (2 * config.layers) ** 0.5)


def out_init(config: EncoderConfig) -> transformer.Initializer:
    """Returns the initializer of matrices that write to the residual stream."""
    return nn.initializers.zeros if config.own.zero_outputs else transformer.truncated_normal(out_stddev(config))


def rotary(length: int, head_size: int, theta: float) -> np.ndarray:
    """Computes angles [L, K], position x theta^(-2i / K); the K / 2 frequencies twice (arXiv 2104.09864, by halves)."""
    frequencies = theta ** (-np.arange(0, head_size, 2) / head_size)
    angles = np.arange(length)[:, None] * frequencies
    # Twice, because `rotate` pairs numbers i and i + K / 2.
    return np.concatenate([angles, angles], axis=-1).astype(np.float32)


def rotate(x: jax.Array, angles_LK: jax.Array, axis: int) -> jax.Array:
    """Rotates each pair (i, i + K / 2) of a head by its position's angle; computed in float32.

    Args:
      x: queries or keys of four axes, the last one K.
      angles_LK: the angles from `rotary`.
      axis: the axis of positions in `x`.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([-second, first], axis=-1)
    # [L, K] -> [1, L, 1, K] or [1, 1, L, K].
    angles = jnp.expand_dims(angles_LK, [other for other in range(3) if other != axis])
    return (x.astype(jnp.float32) * jnp.cos(angles) + rotated * jnp.sin(angles)).astype(x.dtype)


class ModernBertLayer(nn.Module):
    config: EncoderConfig
    train: bool

    @nn.compact
    def __call__(
        self, x_BLD: jax.Array, number: jax.Array, visible: Visible, angles_2LK: jax.Array
    ) -> tuple[jax.Array, None]:
        """Applies layer `number`, from 0; `angles_2LK` holds the angles for local and for global attention."""
        c = self.config

        def dense(features: int | tuple[int, ...], init: transformer.Initializer, name: str) -> Dense:
            return Dense(features, init, use_bias=False, dtype=c.dtype, name=name)

        init = transformer.truncated_normal(c.init_stddev)

        is_global = number % c.own.global_every == 0
        # In a scan over layers `number` is traced, so no Python branch can choose.
        angles_LK = jnp.where(is_global, angles_2LK[1], angles_2LK[0])

        # The first layer has no norm before attention: the embeddings are normalized already. Its entry in the stack
        # of parameters stays unused.
        normed = LayerNorm(EPSILON, False, c.dtype, name="attention_norm")(x_BLD)
        normed = jnp.where(number == 0, x_BLD, normed)
        attended = SelfAttention(
            c,
            use_bias=False,
            kernel_init=init,
            out_init=out_init(c),
            train=self.train,
            name="attention",
        )(
            normed,
            # Half of the window on each side, as in transformers.
            dataclasses.replace(visible, reach=c.own.local_window // 2, is_local=~is_global),
            lambda x, axis: rotate(x, angles_LK, axis),
        )
        x_BLD = checkpoint_name(transformer.shard_batch(x_BLD + attended), "sum")
        h = LayerNorm(EPSILON, False, c.dtype, name="ffn_norm")(x_BLD)
        # Value and gate have an axis of their own, so that sharding F keeps both halves on one device.
        h_BL2F = checkpoint_name(dense((2, c.ffn), init, "ffn_in")(h), "ffn_in")
        # transformers' order: the first half of `Wi` is activated, the second is the gate.
        value_BL1F, gate_BL1F = jnp.split(h_BL2F, 2, axis=2)
        gated_BLF = ACTIVATIONS[c.own.activation](value_BL1F[:, :, 0]) * gate_BL1F[:, :, 0]
        # The only dropout of a layer, transformers' `mlp_dropout`.
        h_BLF = Dropout(c.dropout)(checkpoint_name(gated_BLF, transformer.ACTIVATED), self.train)
        return transformer.shard_batch(x_BLD + dense(c.width, out_init(c), "ffn_out")(h_BLF)), None


class ModernBertEncoder(nn.Module):
    """ModernBERT's encoder, from word embeddings to normalized hidden states; arguments as in `BertEncoder`."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x_BLE: jax.Array, visible: Visible, train: bool) -> jax.Array:
        c = self.config
        x = transformer.shard_batch(x_BLE)
        if x.shape[-1] != c.width:
            # No bias: exports multiply the kernel into the word table (`Architecture.folds`).
            init = nn.initializers.xavier_uniform()
            x = Dense(c.width, init, use_bias=False, dtype=c.dtype, name="project")(x)
        x = LayerNorm(EPSILON, False, c.dtype, name="embedding_norm")(x)
        x = Dropout(c.dropout)(x, train)
        length = x.shape[1]
        angles = [rotary(length, c.head_size, theta) for theta in (LOCAL_THETA, GLOBAL_THETA)]
        layers = transformer.stack(ModernBertLayer, c, in_axes=(0, nn.broadcast, nn.broadcast))
        x = transformer.shard_batch(x)
        # The numbers are constants of unrolled layers, so that XLA removes the `cond` between local and global.
        x_BLD, _ = layers(c, train, name="layers")(
            x, np.arange(c.layers, dtype=np.int32), visible, jnp.asarray(np.stack(angles))
        )
        return LayerNorm(EPSILON, False, c.dtype, name="final_norm")(x_BLD)


_TASK_HEAD = [
    *tensor_names.linear("head/dense", "head.dense"),
    *tensor_names.norm("head/norm", "head.norm"),
    *tensor_names.linear("head/classifier", "classifier"),
]


class ModernBert(Architecture):
    name = "modernbert"
    encoder = ModernBertEncoder
    epsilon = EPSILON
    use_bias = False
    rotary = True
    gated = True
    drops_weights = False
    normed_heads = True

    model_type = "modernbert"
    class_prefix = "ModernBert"
    fixed: ClassVar = {
        "norm_eps": EPSILON,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "decoder_bias": True,
        "classifier_bias": False,
        "classifier_activation": "gelu",
        "global_rope_theta": GLOBAL_THETA,
        "local_rope_theta": LOCAL_THETA,
    }
    pools = True
    prefix = "model."
    layers_prefix = "layers."
    decoder = "decoder.weight"
    folds = True
    body: ClassVar = [
        Tensor("embeddings/word", ("embeddings.tok_embeddings.weight",)),
        *tensor_names.norm("encoder/embedding_norm", "embeddings.norm"),
        # The first layer has no norm of its own: it reads normalized embeddings. Its entry in our stack is not used.
        *tensor_names.norm(f"{LAYERS}/attention_norm", "layers.{}.attn_norm", first=1),
        *tensor_names.linear(f"{LAYERS}/attention/qkv", "layers.{}.attn.Wqkv"),
        *tensor_names.linear(f"{LAYERS}/attention/out", "layers.{}.attn.Wo", inputs=2),
        *tensor_names.norm(f"{LAYERS}/ffn_norm", "layers.{}.mlp_norm"),
        *tensor_names.linear(f"{LAYERS}/ffn_in", "layers.{}.mlp.Wi"),
        *tensor_names.linear(f"{LAYERS}/ffn_out", "layers.{}.mlp.Wo"),
        *tensor_names.norm("encoder/final_norm", "final_norm"),
    ]
    heads: ClassVar = {
        "discriminator_head": [
            *tensor_names.linear("discriminator_head/dense", "head.dense"),
            *tensor_names.norm("discriminator_head/norm", "head.norm"),
            *tensor_names.linear("discriminator_head/classifier", "classifier", labels=True),
        ],
        "mlm_head": [
            *tensor_names.linear("mlm_head/dense", "head.dense"),
            *tensor_names.norm("mlm_head/norm", "head.norm"),
            Tensor("mlm_head/bias", ("decoder.bias",)),
        ],
    }
    task_heads: ClassVar = dict.fromkeys(("classification", "tagging", "answering"), _TASK_HEAD)

    def head_stddev(self, config: EncoderConfig) -> float:
        return out_stddev(config)

    def classifier_init(self, config: EncoderConfig) -> transformer.Initializer:
        # `final_out` in the same `_init_weights`.
        return transformer.truncated_normal(config.width**-0.5)

    def reach(self, config: EncoderConfig) -> int:
        return int(config.own.local_window // 2)

    def is_local(self, config: EncoderConfig, layer: int) -> bool:
        return bool(layer % config.own.global_every)

    def shape_settings(self, config: EncoderConfig, layers: int) -> dict[str, Any]:
        return {
            "activation": config.own.activation,
            "local_window": config.own.local_window,
            "global_every": min(config.own.global_every, layers),  # a longer period makes no difference
        }

    def detector_class(self, config: EncoderConfig) -> str:
        return "ForTokenClassification"

    def describe(self, config: ElectraConfig, special: Any) -> dict[str, Any]:
        c = config.encoder
        return {
            # See `transformer.truncated_normal`; text-embeddings-inference requires it.
            "initializer_cutoff_factor": 2.0,
            "layer_norm_eps": EPSILON,  # llama.cpp's converter reads this name
            "hidden_activation": c.own.activation,
            "local_attention": c.own.local_window,
            "global_attn_every_n_layers": c.own.global_every,
            "layer_types": [_LOCAL if self.is_local(c, layer) else _GLOBAL for layer in range(c.layers)],
            "rope_parameters": {
                _GLOBAL: {"rope_type": "default", "rope_theta": GLOBAL_THETA},
                _LOCAL: {"rope_type": "default", "rope_theta": LOCAL_THETA},
            },
            "embedding_dropout": c.dropout,
            "mlp_dropout": c.dropout,
            "attention_dropout": 0.0,
            # Folding multiplies word table and decoder by different projections.
            "tie_word_embeddings": config.embedding_size == c.width,
            "bos_token_id": special.cls,
            "eos_token_id": special.sep,
            "cls_token_id": special.cls,
            "sep_token_id": special.sep,
        }

    def normalized(self, described: Mapping[str, Any], place: str) -> dict[str, Any]:
        ropes = {"global_rope_theta": _GLOBAL, "local_rope_theta": _LOCAL}
        thetas = {name: _theta(described, part, place) for name, part in ropes.items()}
        return {**described, **{name: theta for name, theta in thetas.items() if theta}}

    def read(
        self, described: Mapping[str, Any], number: Callable[..., Any], linear_head: bool, place: str
    ) -> dict[str, Any]:
        activation = described.get("hidden_activation", "gelu")
        if activation not in tuple(ACTIVATIONS):  # a tuple, because the value may be unhashable
            raise different(place, "hidden_activation", activation, " or ".join(map(repr, ACTIVATIONS)))
        window, every = number("local_attention", 128), _period(described, number("num_hidden_layers"), place)
        own = ModernBertSettings(window, every, activation)
        return {"dropout": number("mlp_dropout", 0.0, whole=False), "own": own}

    def is_head(self, head: str, names: set[str], class_name: str) -> bool:
        # Heads of other classes have the names of the discriminator's.
        ours = head == "mlm_head" or class_name == "ModernBertForTokenClassification"
        return ours and super().is_head(head, names, class_name)


def _theta(described: Mapping[str, Any], part: str, place: str) -> Any:
    """Returns the RoPE theta from `rope_parameters` (transformers 5); None if the file lacks them. Raises UserError if
    the positions are scaled."""
    ropes = described.get("rope_parameters") or {}
    rope = ropes.get(part) or {} if isinstance(ropes, dict) else None
    if not isinstance(rope, dict) or described.get("rope_scaling") or rope.get("rope_type", "default") != "default":
        raise UserError(
            f"{place} scales its rotary positions: expected rope_type=default; such a model is not supported"
        )
    return rope.get("rope_theta")


def _period(described: Mapping[str, Any], layers: int, place: str) -> int:
    """Returns the period of the global attention layers. Raises UserError if they are not every n-th layer."""
    types = described.get("layer_types")
    every = described.get("global_attn_every_n_layers", 3)
    if types is None and isinstance(every, int) and every > 0:
        return every
    if isinstance(types, list) and len(types) == layers:
        # Where only the first layer is global, any period from `layers` on describes it.
        period = next((layer for layer in range(1, layers) if types[layer] == _GLOBAL), layers)
        if types == [_LOCAL if layer % period else _GLOBAL for layer in range(layers)]:
            return period
    raise UserError(
        f"{place} has layer_types={types!r} (global_attn_every_n_layers={every!r}): expected {_GLOBAL} in the first of "
        f"{layers} layers and in every n-th after it"
    )
