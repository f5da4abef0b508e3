"""Networks at the smallest sizes with random parameters, for tests of what is exported, imported and taken."""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cli_runs import make_objective
from ml_collections import ConfigDict

from electra_jax import train_config
from electra_jax.config import settings
from electra_jax.modeling import model_config, subnetwork
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.config import ElectraConfig, EncoderConfig
from electra_jax.modeling.deberta import DebertaSettings
from electra_jax.modeling.model_config import ARCHITECTURES, ModelConfig
from electra_jax.modeling.modernbert import ModernBertSettings
from electra_jax.modeling.subnetwork import Network
from electra_jax.objectives.spec import Objective

VOCABULARY = 60  # padded to 128


def network(
    kind: str = "bert",
    head: str | None = "discriminator_head",
    embedding_size: int = 16,
    layers: int = 3,
    seed: int = 0,
    vocabulary: int = VOCABULARY,
) -> Network:
    """An encoder of width 32 and two heads; `linear` is a DeBERTa whose discriminator's head is linear."""
    linear = kind == "linear"
    kind = "deberta" if linear else kind
    own = {
        "modernbert": ModernBertSettings(local_window=8, global_every=2),
        "deberta": DebertaSettings(4, 8, "linear" if linear and head == "discriminator_head" else "released"),
    }
    dtype = jnp.dtype("float32")
    encoder = EncoderConfig(ARCHITECTURES[kind], layers, 32, 48, 2, 0.02, 0.1, dtype, own.get(kind))
    config = ElectraConfig(vocabulary, embedding_size, 16, encoder, heads=(head,) if head else ())
    return Network(config, random_like(subnetwork.param_shapes(config), seed, vocabulary))


def shape(model: ConfigDict, *args: Any, **kwargs: Any) -> ElectraConfig:
    """`from_settings` of a config file's `config.model`."""
    return model_config.from_settings(settings.from_dict(ModelConfig, model, "config.model."), *args, **kwargs)


def random_like(shapes: Any, seed: int = 0, vocabulary: int = VOCABULARY) -> Any:
    """Parameters that depend on their names and `seed`; those of padded pieces are 0, as what is read has them."""

    def draw(path: Any, leaf: Any) -> np.ndarray:
        name = jax.tree_util.keystr(path)
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        value = name.endswith("['scale']") + 0.3 * rng.standard_normal(leaf.shape)
        if name.endswith(("['word']", "_head']['bias']")):
            value[vocabulary:] = 0
        return value.astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def system(name: str, tying: str = "", generator: str = "transformer", **overrides: Any) -> Objective:
    """The system `name`: an encoder 32 wide, a generator half as wide, tables of 16; settings by names with __."""
    config = train_config.paper()
    config.steps = 10
    config.model.update(layers=2, width=32, ffn=32, heads=2, embedding_size=16, generator_width=0.5)
    config.model.update(max_length=16, dropout=0.0, dtype="float32")
    train_config.choose_objective(config, name, generator)
    if tying:
        config.model.tying = tying
    if tying == "all":
        config.model.update(generator_width=1.0, generator_layers=1.0)
    config.update_from_flattened_dict({key.replace("__", "."): value for key, value in overrides.items()})
    return make_objective(config, VOCABULARY)


def parameters(objective: Objective, seed: int = 0) -> Any:
    return random_like(subnetwork.param_shapes(objective.model.config), seed)


def same(a: Any, b: Any) -> bool:
    """Whether two trees of parameters have the same bits."""
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def batch(length: int = 12) -> Batch:
    """Two rows, one of them a pair with padding."""
    rng = np.random.default_rng(3)
    ids = rng.integers(5, VOCABULARY, (2, length)).astype(np.int32)
    segments, used = np.zeros_like(ids), np.ones_like(ids)
    segments[1, 4:9], used[1, 9:], ids[1, 9:] = 1, 0, 0
    return Batch(ids, segments, used)
