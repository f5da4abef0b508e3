"""Initializes a new run from pre-trained networks: `config.init_from`, `config.generator_from` and `config.init`.

Parameters are matched by name and shape. A different vocabulary, number of positions or number of layers is refused, or
adapted as `config.init` says. Parameters that no network provides keep their random initialization. Every decision is
reported.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.loading.huggingface.directory import Pretrained
from electra_jax.loading.networks import find_vocabulary, load_networks
from electra_jax.modeling.config import ElectraConfig
from electra_jax.modeling.subnetwork import Network, extract, flatten_params, network_config, unflatten_params
from electra_jax.objectives import registry
from electra_jax.train_config import TrainConfig, WarmStartConfig

Flat = dict[str, np.ndarray]  # parameters by path
_LAYERS = "encoder/layers/"
# A text that two tokenizers with the same pieces may still split differently.
_PROBE = "The CAF\u00c9 in M\u00fcnchen,  \u4f60\u597d  (x_1): na\u00efve \uff21\u2026"


@dataclasses.dataclass(frozen=True)
class Donor:
    """A pre-trained network that initializes the encoder or the generator of a run.

    Attributes:
      name: the setting that names it, and its value, for messages.
      part: the part that it initializes, `encoder` or `generator`.
      network: the network.
      tokenizer: its tokenizer; None if it has none.
      layers: how to adapt a different number of layers, as in `WarmStartConfig.layers`.
    """

    name: str
    part: str
    network: Network
    tokenizer: Tokenizer | None
    layers: str


def load_donors(config: TrainConfig, say: Callable[[str], None]) -> list[Donor]:
    """Loads the networks that `config.init_from` and `config.generator_from` name.

    Args:
      config: the settings of the new run.
      say: called with each warning.

    Raises:
      UserError: a network cannot be read or does not have the shape of the run, or the objective needs a pre-trained
        generator and none is named.
    """
    donors: list[Donor] = []
    shape = registry.electra_config(config.objective, config.model, vocab_size=1)  # the vocabulary is compared later

    def load(setting: str, path: str) -> tuple[str, Pretrained]:
        name = f"config.{setting}={path}"
        networks = load_networks(Path(path))
        for note in networks.notes:
            say(f"{name}: {note}")
        return name, networks

    if config.init_from:
        name, networks = load("init_from", config.init_from)
        donors.append(Donor(name, "encoder", networks.encoder, networks.tokenizer, config.init.layers))
        _check_shape(config, donors[-1], shape)
        # First, because the setting asks for the encoder's layers even where `init_from` has a generator.
        if config.init.generator != "random":
            donors.append(Donor(name, "generator", networks.encoder, networks.tokenizer, config.init.generator))
            _check_shape(config, donors[-1], shape)
        elif networks.generator is not None and shape.generator is not None and not config.generator_from:
            donor = Donor(name, "generator", networks.generator, networks.tokenizer, config.init.layers)
            mismatch = _mismatch(config, donor, shape)
            if mismatch:  # not an error: the user asked for the encoder only
                say(f"not used: {mismatch[0]}")
            else:
                donors.append(donor)
    if config.generator_from:
        name, networks = load("generator_from", config.generator_from)
        # A masked language model has no generator beside it: its encoder can be one.
        network = networks.generator or networks.encoder
        if "mlm_head" not in network.config.heads:
            raise UserError(f"{name} has no generator and no MLM head; use a run or directory that has one")
        donors.append(Donor(name, "generator", network, networks.tokenizer, config.init.layers))
        _check_shape(config, donors[-1], shape)
    elif registry.SYSTEMS[config.objective.name].pretrained_generator and not any(
        donor.part == "generator" for donor in donors
    ):
        raise UserError(
            f"objective={config.objective.name} needs a pre-trained generator; name the run or directory that has it: "
            "--generator_from=runs/NAME"
        )
    return donors


def vocabulary_of_donors(config: TrainConfig) -> str:
    """Returns the vocabulary file of the network that a run starts from, which the run must use; "" if none."""
    path = config.starts_from
    if not path or config.init.vocabulary != "same":
        return ""
    return str(find_vocabulary(Path(path)) or "")


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """Warm start of a run: copies pre-trained networks into its initial parameters.

    Attributes:
      settings: `config.init`.
      shape: the config of the run's model.
      tokenizer: the run's tokenizer.
      say: called with a line about every decision.
    """

    settings: WarmStartConfig
    shape: ElectraConfig
    tokenizer: Tokenizer
    say: Callable[[str], None]

    def apply(self, params: Any, donors: list[Donor]) -> Any:
        """Replaces random initial parameters with those of the donors.

        Args:
          params: the tree of `Electra`, freshly initialized.
          donors: from `load_donors`.

        Raises:
          UserError: a donor does not have the vocabulary or the shape of the run.
        """
        fitted = {donor.part: self.fit(donor, params) for donor in donors}
        result = self._merge(params, fitted.get("encoder"), fitted.get("generator"))
        names = " and ".join(dict.fromkeys(donor.name for donor in donors))
        taken = [name for name in params if result[name] is not params[name]]
        rest = [name for name in params if name not in taken]
        self.say(f"{names}: loaded {', '.join(taken)}" + (f"; random: {', '.join(rest)}" if rest else ""))
        return result

    def fit(self, donor: Donor, params: Any) -> Flat:
        """Adapts the donor's parameters to the shapes of this run. Keys are paths in a `Network`.

        Raises:
          UserError: vocabulary or shape differ, and `settings` do not say how to adapt them.
        """
        fresh = extract(self.shape, params, donor.part)
        assert fresh is not None
        flat, initial = (flatten_params(tree) for tree in (donor.network.params, fresh.params))
        flat = {path: value for path, value in flat.items() if path in initial}  # without heads that the run lacks
        # After these three, only shapes that nothing adapts can differ.
        flat = self._fit_vocabulary(donor, flat, initial)
        flat = self._fit_positions(donor, flat, initial)
        flat = self._fit_layers(donor, flat, initial)
        for path, value in flat.items():
            if value.shape != initial[path].shape:
                raise UserError(f"{donor.name}: {path} has shape {value.shape}; this run needs {initial[path].shape}")
        return flat

    def _fit_vocabulary(self, donor: Donor, flat: Flat, initial: Mapping[str, np.ndarray]) -> Flat:
        """Reorders the rows of all vocabulary-sized parameters. Rows of pieces that the donor lacks stay random."""
        rows = self._matching_rows(donor)
        result = dict(flat)
        for path in ("embeddings/word", "mlm_head/bias"):
            if path in flat:
                # A copy, because NumPy's view of a JAX array is read-only.
                result[path] = np.array(initial[path])
                result[path][list(rows)] = flat[path][list(rows.values())]
        return result

    def _matching_rows(self, donor: Donor) -> dict[int, int]:
        """Maps the rows of this run's vocabulary to the donor's rows of the same pieces; others are left out."""
        size = len(self.tokenizer)
        if donor.tokenizer is None:
            donor_size = donor.network.config.vocab_size
            if donor_size != size:
                raise UserError(
                    f"{donor.name} has {donor_size} embeddings and no tokenizer, and this run has {size} pieces; add "
                    "its tokenizer.json to the directory"
                )
            self.say(f"{donor.name} has no tokenizer: its {size} embeddings are assumed to be in this run's order")
            return {i: i for i in range(size)}
        names, donor_names = (
            [tokenizer.name_of(i) for i in range(len(tokenizer))] for tokenizer in (self.tokenizer, donor.tokenizer)
        )
        if names == donor_names:
            if self.tokenizer.encode([_PROBE]) != donor.tokenizer.encode([_PROBE]):
                self.say(
                    f"warning: {donor.name} has the same pieces as this run but splits text differently (case, accents "
                    "or spaces), so it was trained on other ids than this run will be"
                )
            return {i: i for i in range(size)}
        donor_rows = {name: i for i, name in enumerate(donor_names) if name}  # some ids have no piece
        rows = {i: donor_rows[name] for i, name in enumerate(names) if name in donor_rows}
        # Special tokens by their role: what one vocabulary calls [CLS] is <s> in another.
        rows |= zip(self.tokenizer.special, donor.tokenizer.special, strict=True)
        if self.settings.vocabulary != "pieces":
            raise UserError(
                f"{donor.name} has a different vocabulary ({len(donor_names)} pieces, this run {size}, {len(rows)} in "
                "both); train with its vocabulary (config.data.vocabulary), or take the embeddings of the shared "
                "pieces: --config.init.vocabulary=pieces"
            )
        self.say(f"{donor.name}: {len(rows)} of {size} pieces are in its vocabulary, the others are random")
        return rows

    def _fit_positions(self, donor: Donor, flat: Flat, initial: Mapping[str, np.ndarray]) -> Flat:
        path = "embeddings/position"
        if path not in flat or len(flat[path]) == len(initial[path]):
            return flat
        old, new = len(flat[path]), len(initial[path])
        self.say(f"{donor.name}, {donor.part}: took the first {min(old, new)} of {old} positions for {new}")
        # A longer table keeps its random rows beyond the donor's.
        return {**flat, path: np.concatenate([flat[path][:new], initial[path][old:]])}

    def _fit_layers(self, donor: Donor, flat: Flat, initial: Mapping[str, np.ndarray]) -> Flat:
        paths = [path for path in flat if path.startswith(_LAYERS)]
        # Layers are stacked on the first axis.
        old, new = (len(tree[paths[0]]) for tree in (flat, initial))
        if old == new:
            return flat
        if donor.layers == "first":
            self.say(f"{donor.name}, {donor.part}: took the first {min(old, new)} of {old} layers for {new}")
            first = {path: np.concatenate([flat[path][:new], initial[path][old:]]) for path in paths}
            return {**flat, **first}
        # Evenly spread from layer 0 on; a deeper network repeats layers: 4 of 2 are 0, 0, 1, 1.
        chosen = [i * old // new for i in range(new)]
        self.say(f"{donor.name}, {donor.part}: took layers {', '.join(map(str, chosen))} of {old}, counted from 0")
        return {**flat, **{path: flat[path][chosen] for path in paths}}

    def _merge(self, params: Any, encoder: Flat | None, generator: Flat | None) -> Any:
        """Merges both networks into the parameters of the whole model. `shape.tying` decides where embeddings go."""
        tying, result = self.shape.tying, dict(params)
        encoder_tree, generator_tree = (unflatten_params(flat or {}) for flat in (encoder, generator))
        tables, generator_tables = encoder_tree.pop("embeddings", None), generator_tree.pop("embeddings", None)
        result |= encoder_tree
        if generator_tree:
            # An encoder without an MLM head leaves the generator's head random.
            result["generator_head"] = generator_tree.get("mlm_head", result["generator_head"])
            if tying != "all":
                result["generator"] = generator_tree["encoder"]
            elif not encoder_tree:
                result["encoder"] = generator_tree["encoder"]
            else:
                self._warn_of_differences("layers", encoder_tree["encoder"], generator_tree["encoder"])
        if tying == "none":
            shared = tables
            result |= {"generator_embeddings": generator_tables} if generator_tables else {}
        elif tying == "gdes":
            # Except the norm, the encoder's tables are stored as differences from the generator's; `Electra` and
            # `subnetwork.extract` add the two.
            base = generator_tables or tables
            shared = tables and {name: v if name == "norm" else v - base[name] for name, v in tables.items()}
            result |= {"generator_embeddings": base} if base else {}
        else:
            shared = tables or generator_tables
            if tables and generator_tables:
                self._warn_of_differences("embeddings", tables, generator_tables)
        return result | ({"embeddings": shared} if shared else {})

    def _warn_of_differences(self, what: str, encoder_tree: Any, generator_tree: Any) -> None:
        """Warns if two donors differ in parameters that the run shares between encoder and generator."""
        ours, theirs = (flatten_params(tree) for tree in (encoder_tree, generator_tree))
        largest = {name: float(np.abs(ours[name] - theirs[name]).max()) for name in ours}
        differing = [f"{name} by up to {most:.3g}" for name, most in largest.items() if most]
        if differing:
            self.say(
                f"warning: the generator's {what} differ from the encoder's ({', '.join(differing)}); both use the "
                f"encoder's, because config.model.tying={self.shape.tying}; tying none and gdes keep the generator's"
            )


def _check_shape(config: TrainConfig, donor: Donor, shape: ElectraConfig) -> None:
    """Raises UserError, with the settings to change, if the shapes differ and `config.init` does not adapt them."""
    mismatch = _mismatch(config, donor, shape)
    if mismatch:
        raise UserError("; ".join(mismatch))


def _mismatch(config: TrainConfig, donor: Donor, shape: ElectraConfig) -> tuple[str, ...]:
    """Returns (how the donor's shape differs, what to do about it); empty if it fits or `config.init` adapts it."""
    wanted = network_config(shape, donor.part)
    if wanted is None:
        return (f"{donor.name}: this objective's generator has two towers; it cannot start from a network",)
    networks = (donor.network.config, wanted)
    # Settings of layers that only one of the networks has need not match.
    layers = min(network.encoder.layers for network in networks)
    theirs, ours = (_shape_settings(network, donor.layers, config.init.positions, layers) for network in networks)
    # A head that is not taken over may have another form.
    if all("discriminator_head" in network.heads for network in networks):
        for settings, network in zip((theirs, ours), networks, strict=True):
            e = network.encoder
            settings |= {f"{e.architecture.name}.{name}": getattr(e.own, name) for name in e.architecture.of_head}
    differing = [name for name in theirs if theirs[name] != ours.get(name)]
    if not differing:
        return ()
    listed = ", ".join(f"{name}={theirs[name]} (this run: {ours.get(name)})" for name in differing)
    advice = "use " + " ".join(f"--config.model.{name}={theirs[name]}" for name in differing)
    part = donor.part
    if part == "generator" and config.init.generator != "random":
        part, advice = "encoder", "set config.model.generator_width=1, or leave config.init.generator out"
    elif part == "generator":
        advice = "change config.model.generator_width and generator_layers to match"
    options = {"layers": "--config.init.layers=first or =spread", "max_length": "--config.init.positions=first"}
    if all(name in options for name in differing):
        advice += f", or adapt it: {' '.join(options[name] for name in differing)}"
    return (f"{donor.name}: its {part} has {listed}", advice)


def _shape_settings(network: ElectraConfig, depth: str, positions: str, layers: int) -> dict[str, Any]:
    """Returns the settings of `config.model` that must match if `layers` layers of both networks are used.

    `depth` and `positions` say how a different number of layers or positions is adapted: `layers` and `positions` of
    `WarmStartConfig`.
    """
    e = network.encoder
    settings: dict[str, Any] = {"encoder": e.architecture.name}
    if depth == "same":
        settings["layers"] = e.layers
    settings |= {"width": e.width, "ffn": e.ffn, "heads": e.heads, "embedding_size": network.embedding_size}
    if network.absolute and positions == "same":
        settings["max_length"] = network.max_length
    own = e.architecture.shape_settings(e, layers)
    return settings | {f"{e.architecture.name}.{name}": value for name, value in own.items()}
