"""The config of a pre-training run: every setting in one typed dataclass, and how it is built from config files.

A config file returns an `ml_collections.ConfigDict`, which the command line overrides; `resolve` checks it and turns it
into a `TrainConfig` once. From then on only the dataclass is used.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

from electra_jax.config import cli, config_file, settings
from electra_jax.config import phases as phase_text
from electra_jax.config.errors import UserError
from electra_jax.config.settings import Check, above, at_least, check_value, one_of, setting
from electra_jax.data.config import DataConfig
from electra_jax.guard import GuardConfig
from electra_jax.modeling.model_config import ModelConfig
from electra_jax.objectives import registry
from electra_jax.objectives.segments import Phase
from electra_jax.objectives.spec import GENERATORS, ObjectiveConfig
from electra_jax.optim import OptimConfig
from electra_jax.runtime import trackers
from electra_jax.runtime.checkpoint import CheckpointConfig
from electra_jax.runtime.compile_cache import cache_setting
from electra_jax.runtime.metric_writers import ProfileConfig
from electra_jax.runtime.sharding import MeshConfig

_OPTIONS = Check(
    lambda value: all("=" in option for option in value.split(",") if option), "NAME=VALUE, separated by commas"
)


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
    """How to adapt the weights of `init_from` and `generator_from` if their shapes differ from this run's."""

    vocabulary: str = setting(
        "same", "A different vocabulary: refuse it, or take the rows of the pieces in both.", one_of("same", "pieces")
    )
    positions: str = setting(
        "same", "A different number of positions: refuse it, or take the first ones.", one_of("same", "first")
    )
    layers: str = setting(
        "same",
        "A different number of layers: refuse it, take the first ones, or take evenly spaced ones.",
        one_of("same", "first", "spread"),
    )
    generator: str = setting(
        "random",
        "Without generator_from, what the generator starts from: its own parameters if init_from has them, else random "
        "ones (random); or the first or evenly spaced layers of the encoder of init_from.",
        one_of("random", "first", "spread"),
    )


@dataclasses.dataclass(frozen=True)
class ProbeConfig:
    """A quick fine-tuning during pre-training, logged as `probe_*`."""

    every: int = setting(0, "Probe (a quick fine-tuning) every this many steps; 0: never.", at_least(0), resumable=True)
    task: str = setting("cola", "GLUE task of the probe.", resumable=True)
    data_dir: str = setting("", "The folder with the task's files.", resumable=True)
    examples: int = setting(
        2000, "Maximum number of training examples, and of evaluation examples.", above(0), resumable=True
    )
    epochs: int = setting(1, "Number of training epochs.", above(0), resumable=True)


_SEED = Check(lambda value: 0 <= value < 2**32, "0 or more and less than 2^32")  # JAX drops the bits above


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A pre-training run. Defaults are what all sizes of the paper share (arXiv 2003.10555, appendix A)."""

    seed: int = setting(0, "Seed for initialization, data order, masking, sampling and dropout.", _SEED)
    steps: int = setting(1_000_000, "Number of training steps.", above(0), resumable=True)
    batch_size: int = setting(128, "Global batch size, in sequences.", above(0))
    phases: str = setting(
        "",
        "Phases with settings of their own: SHARE NAME=VALUE ..., separated by semicolons; SHARE is a fraction of the "
        "steps, such as 9/10; empty: one phase; on resume, phases that have not begun may change.",
        resumable=True,
    )
    grad_accum_steps: int = setting(
        1, "Gradient accumulation: number of micro-batches per step, to save memory.", above(0)
    )
    mesh: MeshConfig = MeshConfig()
    compile_cache: str = cache_setting()
    # Latency hiding is on by default: on v5e, base, neither xla_tpu_enable_latency_hiding_scheduler nor the async
    # collective fusions change the compiled step.
    compiler_options: str = setting(
        "", "XLA compiler options: NAME=VALUE, separated by commas.", _OPTIONS, resumable=True
    )
    profile: ProfileConfig = ProfileConfig()
    tracker: str = setting(
        trackers.TENSORBOARD,
        "Experiment trackers besides metrics.jsonl.",
        trackers.VALID,
        resumable=True,
    )
    log_every: int = setting(100, "Log metrics every this many steps.", above(0), resumable=True)
    eval_every: int = setting(10_000, "Evaluate on held-out text every this many steps.", above(0), resumable=True)
    eval_batches: int = setting(64, "Number of held-out batches per evaluation.", above(0), resumable=True)
    probe: ProbeConfig = ProbeConfig()
    init_from: str = setting(
        "", "Run, export or Hugging Face directory to initialize the encoder from, and the generator if it has one."
    )
    generator_from: str = setting("", "Run, export or Hugging Face directory to initialize the generator from.")
    init: WarmStartConfig = WarmStartConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optim: OptimConfig = OptimConfig()
    guard: GuardConfig = GuardConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @property
    def starts_from(self) -> str:
        """The model that the run is initialized from; empty if all parameters are initialized at random."""
        return self.init_from or self.generator_from


RESUMABLE = frozenset(name for name, each in settings.settings_of(TrainConfig).items() if each.resumable)


def paper() -> ConfigDict:
    """Returns the settings that all sizes of the paper have in common, for a config file to change."""
    return ConfigDict(to_dict(TrainConfig()))


def choose_size(arg: str, sizes: Collection[str], default: str) -> tuple[str, str]:
    """Splits a config file's argument into the size that it names and the rest, which is for `finish`.

    Args:
      arg: may contain `size=NAME`; the last one counts.
      sizes: the sizes of this config file.
      default: the size if the argument names none.

    Raises:
      UserError: there is no such size, or it is given without `size=`.
    """
    for part in arg.split(","):
        if part in sizes:
            raise UserError(f"config argument {part!r} is unknown: expected size={part}")
    chosen, rest = config_file.take(arg, "size", default)
    if chosen not in sizes:
        raise UserError(f"config argument size={chosen} is unknown: expected size={' or '.join(sizes)}")
    return chosen, rest


def finish(config: ConfigDict, arg: str, own: str = "") -> ConfigDict:
    """Applies a config file's argument and locks the config.

    Args:
      config: the run.
      arg: empty, or some of these, separated by commas. `runlocal`: the same run, shrunk to less than a minute on a
        CPU. `objective=NAME`: another objective of `registry.SYSTEMS` at this size. `generator=KIND`: `unigram`,
        `uniform` or `clusters` instead of a network.
      own: the config file's own arguments, for the message about an unknown one.

    Raises:
      UserError: an argument is unknown.
    """
    given = dict(part.partition("=")[::2] for part in arg.split(",") if part)
    if given.get("runlocal") == "":
        del given["runlocal"]
        _shrink(config)
    choose_objective(config, given.pop("objective", "electra"), given.pop("generator", "transformer"))
    for name, value in given.items():
        unknown = f"{name}={value}" if value else name
        raise UserError(
            f"config argument {unknown!r} is unknown: expected {own and f'{own}, '}runlocal, objective=NAME or "
            "generator=KIND"
        )
    return config.lock()


def choose_objective(config: ConfigDict, name: str, generator: str = "transformer") -> None:
    """Changes the objective of an unlocked config, in place.

    `config.objective` then holds exactly the settings that this objective uses; settings that the config file changed
    keep their values. `config.model` has generator settings only if there is a generator network.

    Raises:
      UserError: there is no such objective or generator, or this objective cannot use that generator.
    """
    defaults = registry.objective_settings(name, generator, config.steps)
    before = registry.objective_settings(
        config.objective.name, config.objective.get("generator", "transformer"), config.steps
    )
    changed = {key: value for key, value in config.objective.items() if value != before.get(key)}
    kept = {key: value for key, value in changed.items() if key in defaults and key not in ("name", "generator")}
    config.objective = ConfigDict({**defaults, **kept})
    config.model.update(registry.SYSTEMS[name].model)
    for unused in registry.unused_settings(name, generator):
        group, _, setting_name = unused.partition(".")
        if setting_name in config[group]:
            del config[group][setting_name]


def _shrink(config: ConfigDict) -> None:
    config.steps, config.batch_size = 12, 8
    config.log_every, config.eval_every, config.eval_batches = 4, 6, 2
    config.checkpoint.update(every=4, keep_last=2, keep_every=100)
    config.data.update(input="docstrings:asyncio,email,logging,unittest", vocab_size=600, heldout_fraction=0.1)
    config.data.update(seq_length=min(config.data.seq_length, 64), weights="")
    config.phases = ""
    heads = min(config.model.heads, 2)
    config.model.update(layers=2, heads=heads, width=32 * heads, ffn=64 * heads, dtype="float32", max_length=64)
    config.model.embedding_size = 16 * heads  # less than the width, so that there is a projection
    config.model.generator_width = max(config.model.generator_width, 0.5)
    config.optim.warmup_steps = min(config.optim.warmup_steps, 4)


def resolve(config: ConfigDict | TrainConfig | Mapping[str, Any], of_a_run: bool = False) -> TrainConfig:
    """Converts a config to a dataclass, and checks it.

    Args:
      config: what a config file returns, or what a run's config.json holds.
      of_a_run: whether it is that of a run, which may have settings without effect: earlier versions took them.

    Raises:
      UserError: a setting is unknown, missing or invalid, or two settings contradict each other.
    """
    typed = as_dataclass(config)
    check(typed, of_a_run)
    return typed


def as_dataclass(config: ConfigDict | TrainConfig | Mapping[str, Any]) -> TrainConfig:
    """Converts a config to a dataclass, without checking its values.

    Raises:
      UserError: a setting is unknown or missing, or is not one of the config's objective.
    """
    if not isinstance(config, TrainConfig):
        name = settings.name_in(config, "objective")
        generator = config["objective"].get("generator", "transformer")
        check_value("config.objective.name", name, one_of(*registry.SYSTEMS))
        check_value("config.objective.generator", generator, one_of(*GENERATORS))
        unused = registry.unused_settings(name, generator)
        given = settings.flatten(config)
        expected = {each for each in settings.settings_of(TrainConfig) if each.startswith("objective.")} - unused
        if {each for each in given if each.startswith("objective.")} != expected or unused & given.keys():
            raise UserError(
                f"config.objective.name={name} does not match the other settings of this config; choose the objective "
                f"by the config's argument: --config=NAME:objective={name}"
                + (f",generator={generator}" if generator != "transformer" else "")
            )
        config = settings.from_dict(TrainConfig, config, optional=unused)
    return config


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Converts a config to a nested dict for JSON, without the settings that its objective does not use."""
    return settings.to_dict(config, registry.unused_settings(config.objective.name, config.objective.generator))


def check(config: TrainConfig, of_a_run: bool = False) -> None:
    """Raises UserError at the first setting that is invalid."""
    settings.validate(config)
    _check_phase(config)
    if not of_a_run:
        _check_effects(config)
    _check_warm_start(config)
    if config.probe.every and not config.probe.data_dir:
        raise UserError(
            f"config.probe.every={config.probe.every} needs the files of {config.probe.task}; set config.probe.data_dir"
        )
    if config.phases:
        for phase in phases(config):
            if phase.steps < 1:
                raise UserError(
                    f"config.phases={config.phases!r} is invalid: config.steps={config.steps} leaves no step for a "
                    "phase; raise one of them"
                )


def _check_phase(config: TrainConfig) -> None:
    """Raises UserError if settings that may differ between phases are invalid, or contradict the other settings."""
    registry.check(config.objective, config.model, config.steps)
    if config.data.seq_length > config.model.max_length:
        raise UserError(
            f"config.data.seq_length={config.data.seq_length} is longer than config.model.max_length="
            f"{config.model.max_length}; lower the first or raise the second"
        )


def _check_warm_start(config: TrainConfig) -> None:
    """Raises UserError if the settings of the warm start contradict each other or other settings."""
    from_encoder = config.init.generator != WarmStartConfig.generator
    if from_encoder and config.generator_from:
        raise UserError(
            f"config.init.generator={config.init.generator} contradicts config.generator_from={config.generator_from}, "
            "which says what the generator starts from; leave one of them out"
        )
    if from_encoder and registry.SYSTEMS[config.objective.name].pretrained_generator:
        raise UserError(
            f"config.init.generator={config.init.generator} is invalid with objective={config.objective.name}, which "
            "does not train its generator; use config.generator_from"
        )
    if config.init_from and config.objective.name == "two_stage":
        raise UserError(
            "config.init_from is invalid with objective=two_stage, whose encoder starts from its generator; use "
            "config.generator_from"
        )


def _check_effects(config: TrainConfig) -> None:
    """Raises UserError if a setting has no effect because of another one."""
    system, has_generator = registry.SYSTEMS[config.objective.name], registry.has_generator(config.objective)
    trains_generator = has_generator and not system.pretrained_generator
    together = trains_generator and config.objective.name != "two_stage"  # which trains one after the other
    objectives = [phase.objective for phase in phases(config)]
    # An objective's own decay is not refused.
    samples_hot = "temperature_decay" in system.defaults or any(each.temperature != 1 for each in objectives)
    predicts = any(each.encoder_weight for each in objectives)
    no_network = "with this objective, which has no generator network"
    not_alone = "with config.model.tying=all, where the generator is the encoder"
    settings.check_effects(
        config,
        [
            *((f"init.{each}", bool(config.starts_from), "without config.init_from") for each in vars(config.init)),
            *((name, has_generator, no_network) for name in ("generator_from", "init.generator")),
            ("init.generator", config.model.tying != "all", not_alone),
            ("optim.muon_rate", config.optim.name == "muon", "without config.optim.name=muon"),
            ("optim.decay", config.optim.schedule == "stable", "without config.optim.schedule=stable"),
            ("optim.generator_rate", trains_generator, "without a generator network that is trained"),
            ("optim.clip_apart", together, "without a generator and an encoder that are trained together"),
            ("objective.temperature_decay", samples_hot, "at a temperature of 1"),
            ("objective.encoder_mask_prob", predicts, "with config.objective.encoder_weight=0"),
            ("objective.encoder_positions", predicts, "with config.objective.encoder_weight=0"),
            ("profile.steps", config.profile.at > 0, "without config.profile.at"),
            *((f"probe.{each}", config.probe.every > 0, "without config.probe.every") for each in vars(config.probe)),
        ],
    )
    if config.profile.at > config.steps:
        raise UserError(
            f"config.profile.at={config.profile.at} is after the last step: expected {config.steps} (config.steps) or "
            "less"
        )


# Settings that a phase may change, besides all numbers of the objective that do not count steps.
_PHASE_SETTINGS = ("batch_size", "data.seq_length", "data.weights", "optim.learning_rate")


def phases(config: TrainConfig) -> list[Phase]:
    """Returns the phases of the run, in order.

    Raises:
      UserError: `config.phases` has another form, names a setting that a phase cannot change, or has an invalid value.
    """
    written = phase_text.parse(config.phases)
    stops = phase_text.stops(written, config.steps)
    found = []
    # Not strict: the last phase ends where no other starts.
    for (_, changes), start, stop in zip(written, [0, *stops], stops, strict=False):
        each = _changed(config, changes)
        weights = tuple(map(float, filter(None, each.data.weights.split(":"))))
        settings_of_phase = each.data.seq_length, each.batch_size, each.objective, each.optim.learning_rate, weights
        found.append(Phase(stop - start, *settings_of_phase))
    return found


def phases_until(config: TrainConfig, step: int) -> list[Phase]:
    """Returns the phases of the first `step` steps."""
    done, start = [], 0
    for phase in phases(config):
        done += [phase._replace(steps=min(phase.steps, step - start))] if start < step else []
        start += phase.steps
    return done


def _changed(config: TrainConfig, changes: Mapping[str, str]) -> TrainConfig:
    """Returns the config of a phase."""
    before, known = settings.flatten(config), settings.settings_of(TrainConfig)
    unused = registry.unused_settings(config.objective.name, config.objective.generator)
    numbers = {name for name in known if name.startswith("objective.") and known[name].type is float}
    usable = sorted({*_PHASE_SETTINGS, *numbers - unused})
    try:
        for name in changes:
            if name not in usable:
                raise UserError(f"{name} cannot differ between phases; expected one of {', '.join(usable)}")
        values = {name: cli.convert(f"config.{name}", text, before[name]) for name, text in changes.items()}
        changed = settings.replace(config, values)
        settings.validate(changed)
        _check_phase(changed)
    except UserError as error:
        raise UserError(f"config.phases={config.phases!r} is invalid: {error}") from error
    return changed
