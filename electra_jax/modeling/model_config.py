"""The settings of a run's networks, and the architectures that they can have."""

import dataclasses

import jax.numpy as jnp

from electra_jax.config.errors import UserError
from electra_jax.config.settings import Check, above, from_up_to_below, one_of, setting, within
from electra_jax.modeling.architecture import Architecture
from electra_jax.modeling.bert import Bert
from electra_jax.modeling.config import ElectraConfig, EncoderConfig
from electra_jax.modeling.deberta import Deberta, DebertaSettings
from electra_jax.modeling.modernbert import ModernBert, ModernBertSettings

ARCHITECTURES: dict[str, Architecture] = {each.name: each for each in (Bert(), ModernBert(), Deberta())}
HEAD_SIZE = 64  # of all networks in the paper; it determines a generator's number of heads
_SAME = -1.0  # value of `attention_dropout` that means: same as `dropout`
_RATE = Check(lambda value: value == _SAME or 0 <= value < 1, "0 or more, less than 1, or -1")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The networks of a run, as a config file describes them. The last fields have the names of architectures."""

    encoder: str = setting(
        "bert", "Architecture of both networks.", Check(ARCHITECTURES.__contains__, " or ".join(ARCHITECTURES))
    )
    layers: int = setting(12, "Number of encoder layers.", above(0))
    width: int = setting(256, "Hidden size of the encoder.", above(0))
    ffn: int = setting(1024, "Feed-forward (intermediate) size of the encoder.", above(0))
    heads: int = setting(4, "Number of attention heads of the encoder.", above(0))
    embedding_size: int = setting(128, "Embedding size.", above(0))
    max_length: int = setting(512, "Maximum sequence length of the networks.", above(0))
    generator_width: float = setting(0.25, "Hidden size of the generator as a fraction of the encoder's.", above(0))
    generator_layers: float = setting(1.0, "Number of generator layers as a fraction of the encoder's.", above(0))
    tying: str = setting(
        "embeddings",
        "Weights that generator and encoder share: none, embeddings, all, or gradient-disentangled embeddings (gdes).",
        one_of("none", "embeddings", "all", "gdes"),
    )
    init_stddev: float = setting(0.02, "Standard deviation of the initial weights.", within(1e-6, 1))
    dropout: float = setting(0.1, "Dropout rate in both networks.", from_up_to_below(0, 1))
    attention_dropout: float = setting(
        _SAME,
        "Dropout rate of attention weights (not in modernbert); -1: same as dropout.",
        _RATE,
    )
    dtype: str = setting("bfloat16", "Compute dtype; parameters are float32.", one_of("float32", "bfloat16"))
    unroll: str = setting(
        "auto",
        "Unroll the layers of the train step (true) or scan over them (false; compiles faster, runs slower); auto "
        "unrolls up to 16 layers, on NVIDIA GPUs up to 24 (not with remat=full, nor in deberta).",
        one_of("auto", "true", "false"),
        resumable=True,
    )
    remat: str = setting(
        "none",
        "Rematerialization: recompute nothing, everything except matrix products, or whole layers in the backward "
        "pass.",
        one_of("none", "dots", "full"),
        resumable=True,
    )
    attention: str = setting(
        "auto",
        "Attention implementation: a fused kernel that never writes the weights to memory, plain matrix products, or "
        "auto: the kernel if the devices have one that supports this network.",
        one_of("auto", "plain", "fused"),
        resumable=True,
    )
    modernbert: ModernBertSettings = ModernBertSettings()
    deberta: DebertaSettings = DebertaSettings()


def encoder_config(model: ModelConfig) -> EncoderConfig:
    """Makes the config of the encoder that `config.model` describes.

    Raises:
      UserError: the settings contradict each other.
    """
    encoder = EncoderConfig(
        ARCHITECTURES[model.encoder],
        layers=model.layers,
        width=model.width,
        ffn=model.ffn,
        heads=model.heads,
        init_stddev=model.init_stddev,
        dropout=model.dropout,
        dtype=jnp.dtype(model.dtype),
        # The field with the architecture's name; BERT has no settings of its own.
        own=getattr(model, model.encoder, None),
        remat=model.remat,
        attention=model.attention,
        attention_dropout=None if model.attention_dropout == _SAME else model.attention_dropout,
    )
    # -1 and 0 pass: they ask for nothing that such an encoder lacks.
    if encoder.attention_dropout and not encoder.architecture.drops_weights:
        raise UserError(
            f"config.model.attention_dropout={encoder.attention_dropout:g} is invalid with encoder={model.encoder}, "
            "whose attention weights have no dropout: expected -1 or 0"
        )
    if encoder.attention == "fused" and not encoder.architecture.fused:
        raise UserError(
            f"config.model.attention=fused is invalid with encoder={model.encoder}, whose attention no kernel here "
            "computes: expected auto or plain"
        )
    encoder.architecture.check(encoder)
    _check(encoder, "encoder")
    return encoder


def from_settings(
    model: ModelConfig, vocab_size: int, heads: tuple[str, ...], has_generator: bool = True, two_towers: bool = False
) -> ElectraConfig:
    """Makes the config of the networks that `config.model` describes, with a generator as in the reference.

    The generator's hidden and feed-forward sizes are `generator_width` times the encoder's, and its depth is
    `generator_layers` times the encoder's. A generator as wide as the encoder has as many heads; otherwise its heads
    have size 64, and there is at least one (google-research/electra, run_pretraining.py, get_generator_config).

    Args:
      model: the run's `config.model`.
      vocab_size: the number of token ids in use.
      heads: as `ElectraConfig.heads`.
      has_generator: whether there is a generator network.
      two_towers: as `ElectraConfig.two_towers`.

    Raises:
      UserError: the settings contradict each other.
    """
    encoder = encoder_config(model)
    if not has_generator:
        return ElectraConfig(vocab_size, model.embedding_size, model.max_length, encoder, heads=heads)
    generator = encoder
    if model.generator_width != 1 or model.generator_layers != 1:
        width = round(model.width * model.generator_width)
        generator = dataclasses.replace(
            encoder,
            # A small fraction rounds to 0, which `_check` refuses.
            layers=round(model.layers * model.generator_layers),
            width=width,
            ffn=round(model.ffn * model.generator_width),
            heads=model.heads if width == model.width else max(1, width // HEAD_SIZE),
        )
        _check(generator, "generator")
    # One network is both, so every size must agree.
    if model.tying == "all" and generator != encoder:
        raise UserError(
            f"config.model.tying=all needs networks of equal size: expected generator_width=1 and generator_layers=1, "
            f"not {model.generator_width:g} and {model.generator_layers:g}"
        )
    if model.tying == "all" and two_towers:
        raise UserError(
            "config.model.tying=all is invalid with a two-tower generator: expected none, embeddings or gdes"
        )
    return ElectraConfig(
        vocab_size, model.embedding_size, model.max_length, encoder, generator, two_towers, model.tying, heads
    )


def _check(network: EncoderConfig, name: str) -> None:
    if min(network.layers, network.width, network.ffn, network.heads) < 1:
        raise UserError(f"config.model gives the {name} no layers or no width: expected 1 or more of each in {network}")
    if network.width % network.heads or (network.architecture.rotary and network.head_size % 2):
        raise UserError(
            f"config.model gives the {name} width {network.width}, which {network.heads} heads do not divide (for "
            "modernbert into even sizes); change width, heads or generator_width"
        )
