"""What a fresh run begins with: random parameters, and in their place those of networks that exist.

Weights are taken name by name and shape by shape. Another vocabulary, another number of positions and another depth are
refused, or adapted as `config.init` says; what nothing is given for stays random. All of it is said aloud.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.loading import networks
from electra_jax.loading.networks import Pretrained
from electra_jax.modeling.config import ElectraConfig
from electra_jax.modeling.subnetwork import Network, config_of, extract
from electra_jax.objectives import registry
from electra_jax.train_config import TrainConfig, WarmStartConfig

Flat = dict[str, np.ndarray]  # parameters by their paths
_OF_LAYERS = "encoder/layers/"
# What vocabularies of the same pieces may cut otherwise.
_PROBE = "The CAF\u00c9 in M\u00fcnchen,  \u4f60\u597d  (x_1): na\u00efve \uff21\u2026"


@dataclasses.dataclass(frozen=True)
class Given:
    """A network for the encoder or the generator of a run.

    Attributes:
      place: the setting that gives it, and its value.
      part: `encoder` or `generator`.
      network, tokenizer: of that place.
    """

    place: str
    part: str
    network: Network
    tokenizer: Tokenizer | None


def load(config: TrainConfig, say: Callable[[str], None]) -> list[Given]:
    """The networks that `config.init_from` and `config.generator_from` name; told what is odd about them.

    Raises:
      UserError: one of them cannot be read; or the system needs another's generator, and none is named.
    """
    given: list[Given] = []
    shape = registry.electra_config(config.objective, config.model, vocab_size=1)  # of whatever vocabulary

    def read(setting: str, value: str) -> tuple[str, Pretrained]:
        place = f"config.{setting}={value}"
        found = networks.load(Path(value))
        for note in found.notes:
            say(f"{place}: {note}")
        return place, found

    if config.init_from:
        place, found = read("init_from", config.init_from)
        given.append(Given(place, "encoder", found.encoder, found.tokenizer))
        _check_shape(config, given[-1], shape)
        if found.generator is not None and shape.generator is not None and not config.generator_from:
            beside = Given(place, "generator", found.generator, found.tokenizer)
            misfit = _misfit(config, beside, shape)
            if misfit:  # nobody asked for it
                say(f"left out: {misfit[0]}")
            else:
                given.append(beside)
    if config.generator_from:
        place, found = read("generator_from", config.generator_from)
        network = found.generator or found.encoder
        if "mlm_head" not in network.config.heads:
            raise UserError(f"{place} has no generator that fills masks; give another run or directory")
        given.append(Given(place, "generator", network, found.tokenizer))
        _check_shape(config, given[-1], shape)
    elif registry.SYSTEMS[config.objective.name].pretrained_generator and not any(
        network.part == "generator" for network in given
    ):
        raise UserError(
            f"objective={config.objective.name} needs a generator that is trained already; give the run, or the "
            "directory, whose generator is to be used: --generator_from=runs/NAME"
        )
    return given


def vocabulary(config: TrainConfig) -> str:
    """The vocabulary of what a run begins with, which it then needs itself; "" where there is none."""
    place = config.init_from or config.generator_from
    if not place or config.init.vocabulary != "same":
        return ""
    return str(networks.vocabulary_of(Path(place)) or "")


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """Puts networks into the fresh parameters of a run.

    Attributes:
      settings: `config.init`.
      shape: of the run's model.
      tokenizer: of the run.
      say: told what was taken and what was not.
    """

    settings: WarmStartConfig
    shape: ElectraConfig
    tokenizer: Tokenizer
    say: Callable[[str], None]

    def __call__(self, params: Any, given: list[Given]) -> Any:
        """`params`, which are fresh, with what is given in their place.

        Raises:
          UserError: it does not fit.
        """
        fitted = {network.part: self.fit(network, params) for network in given}
        result = self._place(params, fitted.get("encoder"), fitted.get("generator"))
        places = " and ".join(dict.fromkeys(network.place for network in given))
        taken = [name for name in params if result[name] is not params[name]]
        rest = [name for name in params if name not in taken]
        self.say(f"{places}: {', '.join(taken)} taken" + (f"; {', '.join(rest)} begin at random" if rest else ""))
        return result

    def fit(self, given: Given, params: Any) -> Flat:
        """The parameters that `given` has for its part, by their paths in `alone`, in the shapes of this run.

        Raises:
          UserError: they are of another vocabulary, and `settings` do not say how to adapt them.
        """
        fresh = extract(self.shape, params, given.part)
        assert fresh is not None
        flat, start = (traverse_util.flatten_dict(tree, sep="/") for tree in (given.network.params, fresh.params))
        flat = {path: value for path, value in flat.items() if path in start}  # without heads of no use here
        flat = self._layers(given, self._positions(given, self._rows(given, flat, start), start), start)
        for path, value in flat.items():
            if value.shape != start[path].shape:
                raise UserError(f"{given.place}: {path} is {value.shape} there and {start[path].shape} in this run")
        return flat

    def _rows(self, given: Given, flat: Flat, start: Mapping[str, np.ndarray]) -> Flat:
        """With the rows of this run's pieces in what has a row a piece."""
        ours, theirs = self.tokenizer, given.tokenizer
        size = len(ours)
        if theirs is None:
            if given.network.config.vocab_size != size:
                raise UserError(
                    f"{given.place} has {given.network.config.vocab_size} pieces and no tokenizer that says which, and "
                    f"this run has {size}; put its tokenizer.json beside it"
                )
            self.say(f"{given.place} has no tokenizer: its {size} pieces are taken for those of this run")
            rows = {i: i for i in range(size)}
        else:
            names, others = ([each.name_of(i) for i in range(len(each))] for each in (ours, theirs))
            known = {name: i for i, name in enumerate(others) if name}  # an id may have none
            rows = {i: known[name] for i, name in enumerate(names) if name in known}
            if names == others:
                rows = {i: i for i in range(size)}
                if ours.encode([_PROBE]) != theirs.encode([_PROBE]):
                    self.say(
                        f"warning: {given.place} has the pieces of this run but cuts a text otherwise (by case, "
                        "accents or spaces): it was trained on other ids than this run will be"
                    )
            elif self.settings.vocabulary == "pieces":
                self.say(f"{given.place}: {len(rows)} of {size} pieces are in its vocabulary, the others are random")
            else:
                raise UserError(
                    f"{given.place} has another vocabulary than this run ({len(theirs)} pieces, here {size}, "
                    f"{len(rows)} in both); train with its own (config.data.vocabulary), or take the rows of those "
                    "in both: --config.init.vocabulary=pieces"
                )
        result = dict(flat)
        for path in ("embeddings/word", "mlm_head/bias"):
            if path in flat:
                result[path] = np.array(start[path])
                result[path][list(rows)] = flat[path][list(rows.values())]
        return result

    def _positions(self, given: Given, flat: Flat, start: Mapping[str, np.ndarray]) -> Flat:
        path = "embeddings/position"
        if path not in flat or len(flat[path]) == len(start[path]):
            return flat
        there, here = len(flat[path]), len(start[path])
        self.say(f"the {given.part} of {given.place}: the first {min(there, here)} of {there} positions for {here}")
        return {**flat, path: np.concatenate([flat[path][:here], start[path][there:]])}

    def _layers(self, given: Given, flat: Flat, start: Mapping[str, np.ndarray]) -> Flat:
        of_layers = [path for path in flat if path.startswith(_OF_LAYERS)]
        there, here = (len(tree[of_layers[0]]) for tree in (flat, start))
        if there == here:
            return flat
        if self.settings.layers == "first":
            self.say(f"the {given.part} of {given.place}: the first {min(there, here)} of {there} layers for {here}")
            cut = {path: np.concatenate([flat[path][:here], start[path][there:]]) for path in of_layers}
            return {**flat, **cut}
        chosen = [i * there // here for i in range(here)]
        self.say(f"the {given.part} of {given.place}: layers {', '.join(map(str, chosen))} of {there}, counted from 0")
        return {**flat, **{path: flat[path][chosen] for path in of_layers}}

    def _place(self, params: Any, encoder: Flat | None, generator: Flat | None) -> Any:
        """The system's parameters, with tables where its tying has them."""
        tying, result = self.shape.tying, dict(params)
        kept, other = (traverse_util.unflatten_dict(flat or {}, sep="/") for flat in (encoder, generator))
        tables, others = kept.pop("embeddings", None), other.pop("embeddings", None)
        result |= kept
        if other:
            result["generator_head"] = other["mlm_head"]
            if tying != "all":
                result["generator"] = other["encoder"]
            elif not kept:
                result["encoder"] = other["encoder"]
            else:
                self._compare("layers", kept["encoder"], other["encoder"])
        if tying == "none":
            shared = tables
            result |= {"generator_embeddings": others} if others else {}
        elif tying == "gdes":
            base = others or tables
            shared = tables and {name: v if name == "norm" else v - base[name] for name, v in tables.items()}
            result |= {"generator_embeddings": base} if base else {}
        else:
            shared = tables or others
            if tables and others:
                self._compare("embeddings", tables, others)
        return result | ({"embeddings": shared} if shared else {})

    def _compare(self, what: str, kept: Any, other: Any) -> None:
        """Says where two networks differ in what they are to share."""
        ours, theirs = (traverse_util.flatten_dict(tree, sep=".") for tree in (kept, other))
        apart = {name: float(np.abs(ours[name] - theirs[name]).max()) for name in ours}
        differing = [f"{name} by up to {most:.3g}" for name, most in apart.items() if most]
        if differing:
            self.say(
                f"warning: the generator's {what} differ from the encoder's ({', '.join(differing)}); both use the "
                f"encoder's now, as config.model.tying={self.shape.tying} says; none and gdes keep the generator's"
            )


def _check_shape(config: TrainConfig, given: Given, shape: ElectraConfig) -> None:
    """Raises UserError, with the settings to give, where the two differ in what nothing adapts."""
    misfit = _misfit(config, given, shape)
    if misfit:
        raise UserError("; ".join(misfit))


def _misfit(config: TrainConfig, given: Given, shape: ElectraConfig) -> tuple[str, ...]:
    """(in what the two differ that nothing adapts, the way out); empty where they fit."""
    wanted = config_of(shape, given.part)
    if wanted is None:
        return (f"{given.place}: the generator of this system has two towers, of which none can be given",)
    adapted = {"layers": config.init.layers != "same", "positions": config.init.positions != "same"}
    fewest = min(given.network.config.encoder.layers, wanted.encoder.layers)

    def described(config: ElectraConfig) -> dict[str, Any]:
        e = config.encoder
        all_of_it = {
            "encoder": e.kind,
            "layers": None if adapted["layers"] else e.layers,
            "width": e.width,
            "ffn": e.ffn,
            "heads": e.heads,
            "embedding_size": config.embedding_size,
            "max_length": config.max_length if e.kind == "bert" and not adapted["positions"] else None,
            "modernbert.local_window": e.local_window if e.kind == "modernbert" else None,
            "modernbert.global_every": min(e.global_every, fewest) if e.kind == "modernbert" else None,
        }
        return {name: value for name, value in all_of_it.items() if value is not None}

    theirs, ours = described(given.network.config), described(wanted)
    differing = [name for name in theirs if theirs[name] != ours.get(name)]
    if not differing:
        return ()
    listed = ", ".join(f"{name}={theirs[name]} (here {ours.get(name)})" for name in differing)
    way = "give " + " ".join(f"--config.model.{name}={theirs[name]}" for name in differing)
    if given.part == "generator":
        way = "set config.model.generator_width and generator_layers for it"
    ways = {"layers": "--config.init.layers=first or =spread", "max_length": "--config.init.positions=first"}
    adapting = [ways[name] for name in differing if name in ways]
    if len(adapting) == len(differing):
        way += f", or adapt it: {' '.join(adapting)}"
    return (f"the {given.part} of {given.place} has {listed}", way)
