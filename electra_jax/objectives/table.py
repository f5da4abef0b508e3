"""The table of systems, and how a config becomes one of them."""

import numpy as np
from ml_collections import ConfigDict

from electra_jax.data.tokenizer import OWN, Special
from electra_jax.errors import UserError
from electra_jax.modeling import config as model_config
from electra_jax.modeling.config import ElectraConfig
from electra_jax.modeling.electra import Electra
from electra_jax.objectives import (
    adversarial,
    corruption,
    electra,
    electric,
    frozen_generator,
    mlm,
    sampling,
    system,
    two_stage,
)

SYSTEMS: dict[str, system.System] = {
    "electra": electra.ELECTRA,
    "electra_15": electra.ELECTRA_15,
    "replace_mlm": mlm.REPLACE_MLM,
    "all_tokens_mlm": mlm.ALL_TOKENS_MLM,
    "mlm": mlm.MLM,
    "two_stage": two_stage.TWO_STAGE,
    "adversarial": adversarial.ADVERSARIAL,
    "electric": electric.ELECTRIC,
    "frozen_generator": frozen_generator.FROZEN_GENERATOR,
}

_OF_GENERATORS = ("generator_width", "generator_layers", "tying")  # settings of config.model


def configure(config: ConfigDict, name: str, generator: str = "transformer") -> None:
    """Turns an unlocked config into that of the system `name`, in place.

    `config.objective` then holds the settings that this system uses and no others; what a size's config has set to
    another value than the default keeps it. `config.model` has the settings of a generator only if there is a network.

    Raises:
      UserError: there is no such system or generator, or this system cannot use that generator.
    """
    if name not in SYSTEMS:
        raise UserError(f"objective={name} is unknown; there are {', '.join(SYSTEMS)}")
    row = SYSTEMS[name]
    if generator not in corruption.GENERATORS:
        raise UserError(f"generator={generator} is unknown; there are {', '.join(corruption.GENERATORS)}")
    if generator != "transformer" and "generator" not in row.settings:
        usable = ", ".join(other for other, r in SYSTEMS.items() if "generator" in r.settings)
        raise UserError(f"objective={name} has no use for generator={generator}; these have: {usable}")
    settings = {setting: value(config) if callable(value) else value for setting, value in row.settings.items()}
    before = {"name": None, **SYSTEMS[config.objective.name].settings}
    settings |= {name: value for name, value in config.objective.items() if name in settings and value != before[name]}
    config.model.update(row.model)
    if "generator" in settings:
        settings["generator"] = generator
    settings = {setting: value for setting, value in settings.items() if setting not in corruption.NOT_OF[generator]}
    if generator != "transformer" or row.generator is None:
        for setting in set(_OF_GENERATORS) & set(config.model):
            del config.model[setting]
    config.objective = ConfigDict({"name": name, **settings})


def check(config: ConfigDict) -> None:
    """Raises UserError where the settings are not those of the system that they name."""
    o, model = config.objective, config.model
    if o.name not in SYSTEMS:
        raise UserError(f"config.objective.name={o.name!r} cannot be; give one of {', '.join(SYSTEMS)}")
    row = SYSTEMS[o.name]
    learned = row.generator is not None and corruption.kind(o) == "transformer"
    wanted = set(row.settings) - set(corruption.NOT_OF.get(corruption.kind(o), ()))
    if set(o) - {"name"} != wanted or ("generator_width" in model) != learned:
        raise UserError(
            f"config.objective.name={o.name} does not go with the other settings of this config; choose the system by "
            f"the config's argument: --config=FILE:objective={o.name}"
            + (f",generator={o.generator}" if "generator" in o and o.generator != "transformer" else "")
        )
    for name, value in row.model.items():
        if model[name] != value:
            raise UserError(
                f"config.model.{name}={model[name]!r} cannot be with objective={o.name}; it needs {value!r}"
            )
    if "generator_steps" in o and not 0 < o.generator_steps < config.steps:
        raise UserError(
            f"config.objective.generator_steps={o.generator_steps} cannot be; give more than 0 and less than "
            f"config.steps={config.steps}"
        )
    if o.get("replace_prob", 0) + o.get("random_prob", 0) > 1:
        raise UserError(
            f"config.objective.replace_prob={o.replace_prob} and random_prob={o.random_prob} are more than 1 together"
        )


def shape(config: ConfigDict, vocab_size: int) -> ElectraConfig:
    """The model of the system that a config names. Raises UserError for a setting that no model can have."""
    row = SYSTEMS[config.objective.name]
    return model_config.from_settings(config.model, vocab_size, row.heads, row.generator == "two_towers")


def make(
    config: ConfigDict,
    vocab_size: int,
    unigram_counts: np.ndarray | None = None,
    special: Special = OWN,
    word_starts: np.ndarray | None = None,
) -> system.Objective:
    """The system that a config names, with its model.

    Args:
      config: a run.
      vocab_size: token ids in use.
      unigram_counts: [vocab_size], how often each occurs in the training text; only training and evaluation need it.
      special: ids of the special tokens.
      word_starts: [vocab_size] bool, which pieces begin a word; masking whole words needs it.

    Raises:
      UserError: a setting that no model can have.
    """
    row, networks = SYSTEMS[config.objective.name], shape(config, vocab_size)
    counts = np.ones(vocab_size) if unigram_counts is None else unigram_counts
    unigram = sampling.log_frequencies(counts, networks.padded_vocab_size, special)
    starts = np.ones(vocab_size, bool) if word_starts is None else word_starts
    return system.Objective(row, config.objective, config.steps, Electra(networks), unigram, special, starts)


def describe() -> str:
    """Two lines a system, for --help: what it does and where it is from."""
    width = max(map(len, SYSTEMS))
    return "\n".join(f"{name:<{width}}  {row.summary}\n{'':<{width}}  ({row.paper})" for name, row in SYSTEMS.items())
