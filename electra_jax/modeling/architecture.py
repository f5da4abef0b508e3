"""What the rest of the package asks about an encoder's architecture; each file of an architecture has the answers.

Another architecture is one more file with a subclass of `Architecture`, an entry in `model_config.ARCHITECTURES` and,
for settings of its own, a field of `model_config.ModelConfig`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flax import linen as nn

from electra_jax.config.errors import UserError
from electra_jax.modeling.tensor_names import Tensor

# `modeling.config` imports this module, so an import at run time would be circular.
if TYPE_CHECKING:
    from electra_jax.data.tokenizer import Special
    from electra_jax.modeling.config import ElectraConfig, EncoderConfig

SENTENCEPIECE_FILES = "spiece.model", "spm.model"  # as ALBERT's tokenizer and others name it, and as DeBERTa's
LABELS = {"0": "original", "1": "replaced"}  # of a discriminator that is written as a class of token classification


@dataclasses.dataclass(frozen=True)
class Architecture:
    """An architecture of encoders.

    Attributes of the network:
      name: the value of `config.model.encoder`.
      encoder: the module from embeddings [B, L, E] to hidden states [B, L, D]; made from an `EncoderConfig`.
      epsilon: what layer norms add to the variance.
      use_bias: whether layer norms, and dense layers before the last one of a head, have biases.
      absolute: whether positions and segments have learned tables.
      rotary: whether positions rotate pairs of a head's numbers, so that heads have even sizes.
      gated: whether feed-forward layers have a gate, and so three matrices instead of two.
      drops_weights: whether attention weights have dropout.
      fused: whether the fused kernels can compute its attention.
      normed_heads: whether every head begins with dense(D -> D), GELU, layer norm.
      of_head: its own settings that only the discriminator's head reads.
      drops_pooled: whether transformers' classifier of rows has dropout before its first layer.

    Attributes of its classes in Hugging Face's transformers:
      model_type: as in config.json.
      class_prefix: the classes' names up to `For` or `Model`.
      fixed: settings of config.json that electra_jax fixes. They are also the values for files that do not name them.
      unnamed: the values for files that do not name them, where transformers' default is another.
      pools: whether its classifiers can read the mean of the states.
      classifier_dropout: the setting of config.json for the dropout before a classifier.
      sentencepiece_file: the name of a SentencePiece model.
      prefix: prefix of the encoder's tensor names in classes with a head.
      layers_prefix: prefix of the layers' tensor names after `prefix`.
      decoder: the MLM head's matrix, which is tied to the word table.
      folds: whether they have no projections between E and D, so that these are folded into the tables.
      body: the tensors of the encoder; the first one is the word table.
      heads: the tensors of each pre-training head, by our names.
      task_heads: the tensors of the heads of fine-tuned models, by kind of task; written, never read.
    """

    name: ClassVar[str]
    encoder: ClassVar[Callable[..., nn.Module]]
    epsilon: ClassVar[float]
    use_bias: ClassVar[bool] = True
    absolute: ClassVar[bool] = False
    rotary: ClassVar[bool] = False
    gated: ClassVar[bool] = False
    drops_weights: ClassVar[bool] = True
    fused: ClassVar[bool] = True
    normed_heads: ClassVar[bool] = False
    of_head: ClassVar[tuple[str, ...]] = ()
    drops_pooled: ClassVar[bool] = False

    model_type: ClassVar[str]
    class_prefix: ClassVar[str]
    fixed: ClassVar[Mapping[str, Any]]
    unnamed: ClassVar[Mapping[str, Any]] = {}
    pools: ClassVar[bool] = False
    classifier_dropout: ClassVar[str] = "classifier_dropout"
    sentencepiece_file: ClassVar[str] = SENTENCEPIECE_FILES[0]
    prefix: ClassVar[str]
    layers_prefix: ClassVar[str] = "encoder."
    decoder: ClassVar[str]
    folds: ClassVar[bool] = False
    # The word table comes first: `huggingface.weights.word_table` relies on it.
    body: ClassVar[list[Tensor]]
    heads: ClassVar[Mapping[str, list[Tensor]]]
    task_heads: ClassVar[Mapping[str, list[Tensor]]]

    def check(self, config: "EncoderConfig") -> None:
        """Raises UserError if settings of its own contradict each other."""

    def head_stddev(self, config: "EncoderConfig") -> float:
        """Returns the standard deviation of the initial dense layers of heads."""
        return config.init_stddev

    def classifier_init(self, config: "EncoderConfig") -> Any:
        """Returns the initializer of the discriminator head's last layer."""
        # The default of the reference's `tf.layers.dense`.
        return nn.initializers.xavier_uniform()

    def detector(self, config: "EncoderConfig") -> str:
        """Returns the form of the discriminator's head.

        `dense`: dense(D -> D), GELU, dense(D -> 1). `normed`: the layer norm of each state plus its sequence's first
        state comes before these. `linear`: dense(D -> 1) alone.
        """
        return "dense"

    def reach(self, config: "EncoderConfig") -> int | None:
        """Returns how many positions local layers see on each side; None if the architecture has no such layers."""
        return None

    def is_local(self, config: "EncoderConfig", layer: int) -> bool:
        """Returns True if the attention of `layer`, counted from 0, is local."""
        return False

    def relative(self, config: "EncoderConfig", length: int) -> tuple[int, int]:
        """Counts the work of relative positions in sequences of a length.

        Returns:
          The pairs of position and distance that each of two relative terms computes per example and head, and the
          rows of the table of relative embeddings that are in use. Both are 0 without such a table.
        """
        return 0, 0

    def shape_settings(self, config: "EncoderConfig", layers: int) -> dict[str, Any]:
        """Returns the settings of its own that must match if another network takes over its first `layers` layers."""
        return {}

    def detector_class(self, config: "EncoderConfig") -> str:
        """Returns the end of the name of transformers' class with the discriminator's head."""
        return "ForPreTraining"

    def describe(self, config: "ElectraConfig", special: "Special") -> dict[str, Any]:
        """Returns the entries of config.json that are not the same for all architectures, nor `fixed`."""
        c = config.encoder
        return {
            "embedding_size": config.embedding_size,
            "hidden_dropout_prob": c.dropout,
            "attention_probs_dropout_prob": c.attention_rate,
        }

    def normalized(self, described: Mapping[str, Any], place: str) -> dict[str, Any]:
        """Returns the content of a config.json with every setting of `fixed` in the form that it has there.

        Raises:
          UserError: the architecture differs from electra_jax's.
        """
        return dict(described)

    def read(
        self, described: Mapping[str, Any], number: Callable[..., Any], linear_head: bool, place: str
    ) -> dict[str, Any]:
        """Reads the dropout rates and the settings of its own from a normalized config.json.

        Args:
          described: its content.
          number: (name, default, whole, least) -> the value of a setting, which is checked.
          linear_head: whether the weights have a discriminator's head in a class of token classification.
          place: the file, for messages.

        Returns:
          Fields of `EncoderConfig`.

        Raises:
          UserError: the architecture differs from electra_jax's.
        """
        dropout = number("hidden_dropout_prob", 0.0, whole=False)
        weights = number("attention_probs_dropout_prob", dropout, whole=False)
        return {"dropout": dropout, "attention_dropout": None if weights == dropout else weights}

    def is_head(self, head: str, names: set[str], class_name: str) -> bool:
        """Returns True if the tensors with these names, of transformers' class `class_name`, include a head of ours."""
        # Names in `head.` do not count: in ModernBERT, several heads begin with them.
        return any(tensor.theirs[0] in names for tensor in self.heads[head] if not tensor.theirs[0].startswith("head."))

    def rename(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Renames tensors of other layouts to the names of `body` and `heads`; all others are unchanged."""
        return state

    def tensors(self, config: "EncoderConfig", head: str) -> list[Tensor]:
        """Returns the tensors of a head of `heads` or `task_heads`."""
        return self.heads[head] if head in self.heads else self.task_heads[head]


def different(place: str, name: str, given: Any, expected: str) -> UserError:
    """Makes the error about a config.json that describes another architecture than electra_jax's."""
    return UserError(f"{place} has {name}={given!r}: expected {expected}; electra_jax has no other architecture")
